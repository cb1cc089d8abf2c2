/* Many blocks, offsets that do not fit in 32 bits, and stages that run beside one another. */
#include "rounding.h"

#include "ops/shapes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The tensors of a gdn call: only what has to be told apart is random, the rest is zero. */
typedef struct {
    dr_backend *backend;
    dr_recurrence recurrence;
    dr_recurrence_memory memory;
    void *input[DR_INPUTS], *gradient[DR_INPUTS], *o, *d_o, *saved, *forward, *backward;
} call;

static bool take(const call *c, size_t bytes, void **memory, fault *what) {
    return dr_backend_allocate(c->backend, bytes, memory) == DR_OK || fault_is(what, "%s", dr_last_error());
}

static int64_t o_count(const dr_recurrence *r) {
    return r->layout.rows * r->value_heads * r->value_size;
}

static void call_free(call *c) {
    for (int i = 0; i < DR_INPUTS; i++) dr_backend_free(c->backend, c->input[i]), dr_backend_free(c->backend, c->gradient[i]);
    dr_backend_free(c->backend, c->o), dr_backend_free(c->backend, c->d_o), dr_backend_free(c->backend, c->saved);
    dr_backend_free(c->backend, c->forward), dr_backend_free(c->backend, c->backward);
}

static void calls_free(call c[2]) {
    for (int n = 0; n < 2; n++)
        if (c[n].backend) call_free(&c[n]);
}

/* Everything allocated, inputs and d_o zero, results poisoned where `poisons`. */
static bool call_create(dr_backend *backend, const dr_recurrence *recurrence, bool backward, call *c, fault *what) {
    *c = (call){.backend = backend, .recurrence = *recurrence};
    if (dr_recurrence_plan(backend, recurrence, &c->memory) != DR_OK) return fault_is(what, "%s", dr_last_error());
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dr_rule_uses(recurrence->rule, (dr_input)i)) continue;
        const size_t bytes = (size_t)dr_recurrence_input_count(recurrence, (dr_input)i) *
                             dr_dtype_size(dr_recurrence_input_dtype(backend, (dr_input)i));
        if (!take(c, bytes, &c->input[i], what) || (backward && !take(c, bytes, &c->gradient[i], what))) return false;
        dr_backend_zero(backend, c->input[i], bytes);
    }
    const size_t bytes = (size_t)o_count(recurrence) * dr_dtype_size(dr_recurrence_output_dtype(backend));
    if (!take(c, bytes, &c->o, what) || !take(c, c->memory.forward, &c->forward, what)) return false;
    if (!backward) return true;
    if (!take(c, bytes, &c->d_o, what) || !take(c, c->memory.saved, &c->saved, what) ||
        !take(c, c->memory.backward, &c->backward, what))
        return false;
    dr_backend_zero(backend, c->d_o, bytes);
    return true;
}

static bool call_run(const call *c, fault *what) {
    dr_inputs inputs;
    dr_input_gradients gradients;
    for (int i = 0; i < DR_INPUTS; i++) inputs.at[i] = c->input[i], gradients.at[i] = c->gradient[i];
    dr_status status = dr_recurrence_forward(c->backend, &c->recurrence, &inputs, NULL, c->o, NULL, c->saved, c->forward);
    if (status == DR_OK && c->backward)
        status = dr_recurrence_backward(c->backend, &c->recurrence, &inputs, NULL, c->saved, c->d_o, NULL, &gradients, NULL,
                                        c->backward);
    if (status == DR_OK) status = dr_backend_wait(c->backend);
    return status == DR_OK || fault_is(what, "%s", dr_last_error());
}

/* Values of an input: keys of length one half or so, decays below 0, gains within 0 and 1. */
static double draw(dr_random *random, int input, int64_t size) {
    if (input == DR_INPUT_LOG_DECAY || input == DR_INPUT_SCAN_LOG_DECAY) return -0.2 * dr_random_uniform(random);
    if (input == DR_INPUT_BETA || input == DR_INPUT_SCAN_GAIN) return dr_random_uniform(random);
    return dr_random_normal(random) / (input == DR_INPUT_VALUE ? 1 : 2 * sqrt((double)size));
}

static double *drawn(dr_random *random, int input, int64_t count, int64_t size) {
    double *x = numbers(count);
    for (int64_t i = 0; i < count; i++) x[i] = (float)draw(random, input, size);
    return x;
}

/* Inputs, and behind them o or its gradient: numbers of a token, 0 for a parameter. */
static int64_t width_of(const dr_recurrence *r, int i) {
    return (i == DR_INPUTS ? o_count(r) : dr_recurrence_input_count(r, (dr_input)i)) / r->layout.rows;
}

static dr_dtype dtype_of(const dr_backend *backend, int i) {
    return i == DR_INPUTS ? dr_recurrence_output_dtype(backend) : dr_recurrence_input_dtype(backend, (dr_input)i);
}

static const char *name_of(int i) {
    return i == DR_INPUTS ? "o" : dr_input_name((dr_input)i);
}

/* Elements of the last tokens of a tensor: rows of width. */
static bool put_last(const call *c, void *to, dr_dtype dtype, int64_t rows, int64_t width, const double *x, int64_t last,
                     fault *what) {
    char *at = (char *)to + (size_t)((rows - last) * width) * dr_dtype_size(dtype);
    return dr_backend_upload_as(c->backend, at, dtype, x, DR_F64, last * width) == DR_OK ||
           fault_is(what, "%s", dr_last_error());
}

static bool get_last(const call *c, const void *from, dr_dtype dtype, int64_t rows, int64_t width, double *x, int64_t last,
                     fault *what) {
    const char *at = (const char *)from + (size_t)((rows - last) * width) * dr_dtype_size(dtype);
    return dr_backend_download_as(c->backend, x, DR_F64, at, dtype, last * width) == DR_OK ||
           fault_is(what, "%s", dr_last_error());
}

/* The same last tokens into a long call and a short one. */
static bool fill(call *calls[2], int64_t last, fault *what) {
    dr_random random = dr_random_start(11, 1);
    for (int i = 0; i <= DR_INPUTS; i++) { /* behind the inputs, d_o */
        const bool output = i == DR_INPUTS;
        if (output ? !calls[1]->d_o : !calls[1]->input[i]) continue;
        const int64_t width = width_of(&calls[1]->recurrence, i);
        double *x = drawn(&random, i, last * width, calls[1]->recurrence.key_size);
        bool holds = true;
        for (int n = 0; n < 2 && holds; n++)
            holds = put_last(calls[n], output ? calls[n]->d_o : calls[n]->input[i], dtype_of(calls[n]->backend, i),
                             calls[n]->recurrence.layout.rows, width, x, last, what);
        free(x);
        if (!holds) return false;
    }
    return true;
}

/* Output and gradients of the last tokens are the same bits in both calls; where: of the first, in words. */
static bool last_are_same(gpu *g, call *calls[2], const char *where, int64_t last, fault *what) {
    for (int i = 0; i <= DR_INPUTS; i++) {
        const bool output = i == DR_INPUTS;
        if (!output && !calls[1]->gradient[i]) continue;
        const int64_t width = width_of(&calls[1]->recurrence, i);
        double *x[2] = {numbers(last * width), numbers(last * width)};
        bool holds = true;
        for (int n = 0; n < 2 && holds; n++)
            holds = get_last(calls[n], output ? calls[n]->o : calls[n]->gradient[i], dtype_of(calls[n]->backend, i),
                             calls[n]->recurrence.layout.rows, width, x[n], last, what);
        for (int64_t j = 0; j < last * width && holds; j++)
            if (x[1][j] != x[1][j]) holds = fault_is(what, "%s: a NaN", where);
        holds = holds && numbers_same(where, name_of(i), x[0], x[1], last * width, what);
        free(x[0]), free(x[1]);
        g->checks++;
        if (!holds) return false;
    }
    return true;
}

/* A sequence of 100 tokens behind one of 2^17, 64 value heads of 256 channels: its values begin 2^31 elements into theirs. */
static bool long_offsets_are_right(gpu *g, dr_path path, bool backward, fault *what) {
    enum { LAST = 100, LONG = 1 << 17 };
    const int64_t long_seqlens[] = {0, LONG, LONG + LAST}, last_seqlens[] = {0, LAST};
    dr_recurrence together = {
        .forget = DR_FORGET,
        .rule = dr_rule_find("gdn"),
        .layout = {.sequences = 2, .rows = LONG + LAST, .cu_seqlens = long_seqlens},
        .key_heads = 1,
        .value_heads = 64,
        .key_size = 64,
        .value_size = 256,
        .path = path,
    };
    dr_recurrence alone = together;
    alone.layout = (dr_layout){.sequences = 1, .rows = LAST, .cu_seqlens = last_seqlens};
    call c[2] = {{0}};
    call *calls[2] = {&c[0], &c[1]};
    bool holds = call_create(g->cuda[1], &together, backward, &c[0], what) &&
                 call_create(g->cuda[1], &alone, backward, &c[1], what) && fill(calls, LAST, what) && call_run(&c[0], what) &&
                 call_run(&c[1], what) && last_are_same(g, calls, "behind a long sequence", LAST, what);
    calls_free(c);
    return holds;
}

/* The inputs of a call as another one has them, rounded. */
static bool fill_as(const call *to, const call *from, int64_t last, fault *what) {
    bool holds = true;
    for (int i = 0; i <= DR_INPUTS && holds; i++) {
        const bool output = i == DR_INPUTS;
        const int64_t width = output || to->input[i] ? width_of(&to->recurrence, i) : 0;
        if (width == 0) continue;
        double *x = numbers(last * width);
        holds = get_last(from, output ? from->d_o : from->input[i], dtype_of(from->backend, i), last, width, x, last, what) &&
                put_last(to, output ? to->d_o : to->input[i], dtype_of(to->backend, i), last, width, x, last, what);
        free(x);
    }
    return holds;
}

/* Whether o or a gradient of the first call is as near the second's, in every row, as it may be: within the tolerance of
 * float32, or twice the error of the third, the second's with rounded inputs, as it is rounded itself. */
static bool tensor_is_near(gpu *g, int type, const call c[3], int i, fault *what) {
    const int64_t rows = c[1].recurrence.layout.rows, width = width_of(&c[1].recurrence, i);
    double *x[3], error[3];
    bool holds = true;
    for (int n = 0; n < 3; n++) {
        x[n] = numbers(rows * width);
        if (c[n].backend)
            holds = holds && get_last(&c[n], i == DR_INPUTS ? c[n].o : c[n].gradient[i], dtype_of(c[n].backend, i), rows, width,
                                      x[n], rows, what);
    }
    const dr_dtype dtype = dtype_of(c[0].backend, i);
    if (type > 0 && dtype != DR_F32) round_numbers(x[2], rows * width, dtype);
    for (int n = 0; n < 3; n += 2) error[n] = holds && c[n].backend ? row_error(x[n], x[1], rows, width) : 0;
    const double allowed = type > 0 ? times_of_plain * fmax(error[2], least_error(c[0].backend)) : tolerance_backward;
    g->worst[type] = fmax(g->worst[type], error[0] / allowed);
    g->checks++;
    for (int n = 0; n < 3; n++) free(x[n]);
    return holds && (error[0] <= allowed || fault_is(what, "many sequences of %s: %s has error %.3g in a row, %.2g is right",
                                                     c[1].recurrence.rule->name, name_of(i), error[0], allowed));
}

/* 70,000 sequences of 1 to 3 tokens, forward and backward, against the CPU. */
static bool many_sequences_are_right(gpu *g, int type, const char *rule, int64_t key_size, dr_path path, fault *what) {
    enum { SEQUENCES = 70000 };
    int64_t *cu_seqlens = block((SEQUENCES + 1) * sizeof *cu_seqlens);
    cu_seqlens[0] = 0;
    for (int i = 0; i < SEQUENCES; i++) cu_seqlens[i + 1] = cu_seqlens[i] + 1 + i % 3;
    const int64_t rows = cu_seqlens[SEQUENCES];
    const dr_recurrence r = {
        .forget = DR_FORGET,
        .rule = dr_rule_find(rule),
        .layout = {.sequences = SEQUENCES, .rows = rows, .cu_seqlens = cu_seqlens},
        .key_heads = 1,
        .value_heads = 1,
        .key_size = key_size,
        .value_size = 8,
        .path = path,
    };
    call c[3] = {{0}};
    call *calls[2] = {&c[0], &c[1]};
    bool holds = call_create(g->cuda[type], &r, true, &c[0], what) && call_create(g->cpu, &r, true, &c[1], what) &&
                 fill(calls, rows, what) && call_run(&c[0], what) && call_run(&c[1], what);
    if (type > 0)
        holds =
            holds && call_create(g->cpu, &r, true, &c[2], what) && fill_as(&c[2], &c[0], rows, what) && call_run(&c[2], what);
    for (int i = 0; i <= DR_INPUTS && holds; i++) /* without parameters, whose gradients are a few sums */
        if (i == DR_INPUTS || (c[1].gradient[i] && width_of(&r, i) > 0)) holds = tensor_is_near(g, type, c, i, what);
    calls_free(c);
    if (c[2].backend) call_free(&c[2]);
    free(cu_seqlens);
    return holds;
}

/* Equally long sequences whose scans leave a quarter of an H200's multiprocessors to other stages, and the same ones packed,
 * whose stages follow one another: the same bits, run after run. */
static bool stages_beside_are_right(gpu *g, const dr_rule *rule, int64_t key_heads, fault *what) {
    enum { SEQUENCES = 7, TOKENS = 500, ROWS = SEQUENCES * TOKENS, RUNS = 5 };
    int64_t cu_seqlens[SEQUENCES + 1];
    for (int i = 0; i <= SEQUENCES; i++) cu_seqlens[i] = i * TOKENS;
    dr_recurrence equal = {
        .forget = DR_FORGET,
        .rule = rule,
        .layout = {.sequences = SEQUENCES, .rows = ROWS},
        .key_heads = key_heads,
        .value_heads = 7,
        .key_size = 64,
        .value_size = 128,
        .path = DR_PATH_CHUNKWISE,
    };
    dr_recurrence packed = equal;
    packed.layout.cu_seqlens = cu_seqlens;
    call c[2] = {{0}};
    call *calls[2] = {&c[0], &c[1]};
    bool holds = call_create(g->cuda[1], &equal, true, &c[0], what) && call_create(g->cuda[1], &packed, true, &c[1], what) &&
                 fill(calls, ROWS, what) && call_run(&c[1], what);
    for (int run = 0; run < RUNS && holds; run++)
        holds = call_run(&c[0], what) && last_are_same(g, calls, "stages beside one another", ROWS, what);
    calls_free(c);
    return holds;
}

bool suite_large(gpu *g, fault *what) {
    static const char *const rules[] = {"gdn", "delta_net", "kda", "gla", "pgdn", "pkda", "eda", "dplr"};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (!stages_beside_are_right(g, dr_rule_find(rules[i]), 7, what)) return false;
    dr_rule late = *dr_rule_find("eda"); /* two rows that only the kernel for any rule prepares */
    late.row[0].undecayed = true;
    dr_rule sum = *dr_rule_find("kda"); /* one row, likewise, as value heads share a key head */
    sum.row[0].read = DR_READ_KEY_PLUS_QUERY;
    if (!stages_beside_are_right(g, &late, 7, what) || !stages_beside_are_right(g, &sum, 1, what)) return false;
    return many_sequences_are_right(g, 0, "gdn", 8, DR_PATH_RECURRENT, what) &&
           many_sequences_are_right(g, 0, "gdn", 8, DR_PATH_CHUNKWISE, what) &&
           many_sequences_are_right(g, 1, "pgdn", 64, DR_PATH_CHUNKWISE, what) &&
           long_offsets_are_right(g, DR_PATH_CHUNKWISE, true, what) &&
           long_offsets_are_right(g, DR_PATH_RECURRENT, false, what);
}
