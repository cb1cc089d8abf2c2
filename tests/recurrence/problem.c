/* Problems: drawing their numbers, cutting parts out of them, running them. The directions of a token's keys are close to each
 * other, so that r . w stays away from where a gain has a pole. */
#include "problem.h"

#include "ops/shapes.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool fault_is(fault *what, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what->text, sizeof what->text, format, arguments);
    va_end(arguments);
    return false;
}

double uniform(dr_random *random, double from, double to) {
    return from + (to - from) * dr_random_uniform(random);
}

int64_t between(dr_random *random, int64_t least, int64_t most) {
    return least + (int64_t)dr_random_below(random, (uint64_t)(most - least + 1));
}

void *block(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "no memory for a test's %zu bytes\n", bytes);
        exit(1);
    }
    memset(memory, 0xff, bytes);
    return memory;
}

double *numbers(int64_t count) {
    return block((size_t)count * sizeof(double));
}

/* ---- drawing -------------------------------------------------------------------------------------------------------- */

/* Keys of length about 1 near one direction a token and head, that of its first key; free_read, which enters with a minus, on
 * the other side. zeros: some are zero. */
static void draw_keys(dr_random *random, problem *p, int input, bool zeros) {
    const int64_t K = p->recurrence.key_size, H = p->recurrence.key_heads;
    const bool own = input == DR_INPUT_KEY || input == DR_INPUT_QUERY;
    for (int64_t i = 0; i < p->input_count[input] / K; i++) {
        double *key = p->input[input] + i * K, sum = 0;
        const double *first = p->input[DR_INPUT_KEY] + i / H * H * p->rule.repeat * K + i % H * K;
        for (int64_t d = 0; d < K; d++) {
            key[d] = own ? dr_random_normal(random) : first[d] + 0.3 * dr_random_normal(random) / sqrt((double)K);
            sum += key[d] * key[d];
        }
        double size = (input == DR_INPUT_FREE_READ ? -1 : 1) * uniform(random, 0.7, 1.1) / sqrt(sum + 1e-3);
        if (zeros && dr_random_below(random, 8) == 0) size = 0;
        for (int64_t d = 0; d < K; d++) key[d] = (float)(key[d] * size);
    }
}

static double draw_scalar(dr_random *random, const dr_rule *rule, int input, bool strong) {
    bool edge = strong && dr_random_below(random, 8) == 0;
    switch (input) {
    case DR_INPUT_LOG_DECAY:
    case DR_INPUT_SCAN_LOG_DECAY:
        if (edge) return dr_random_below(random, 3) ? uniform(random, -60, 0) : -INFINITY;
        return dr_random_below(random, 10) ? uniform(random, -0.3, 0) : 0;
    case DR_INPUT_BETA: /* 1/(alpha + beta m) has a pole where both are 0 */
        if (rule->normalizer == DR_NORMALIZER_DISCOUNTED) return uniform(random, 0.2, 1);
        return edge ? 2 : dr_random_below(random, 16) ? uniform(random, 0, 1) : 0;
    case DR_INPUT_ERASE_GAIN:
        return edge ? 2 : dr_random_below(random, 16) ? uniform(random, 0, 1) : 0;
    case DR_INPUT_SCAN_GAIN:
    case DR_INPUT_RATE:
    case DR_INPUT_ERASE_GATE:
    case DR_INPUT_RIDGE:
        return uniform(random, 0.3, 1);
    case DR_INPUT_LAMBDA:
    case DR_INPUT_CORRECTION:
        return uniform(random, -0.4, 0.4);
    case DR_INPUT_SCAN_CENTRE:
        return uniform(random, -3, 1);
    default:
        return dr_random_normal(random);
    }
}

static bool is_key(int input) {
    return input == DR_INPUT_QUERY || input == DR_INPUT_KEY || input == DR_INPUT_ERASE_KEY || input == DR_INPUT_FEEDBACK_KEY ||
           input == DR_INPUT_FREE_READ || input == DR_INPUT_FREE_WRITE;
}

static double *normals(dr_random *random, int64_t count, double size) {
    double *x = numbers(count);
    for (int64_t i = 0; i < count; i++) x[i] = (float)(size * dr_random_normal(random));
    return x;
}

/* to[n][n] = diagonal + sum of two outer products, symmetric to the bit */
static void draw_positive_matrix(dr_random *random, double least, double most, int64_t n, double *to) {
    double *x = normals(random, 2 * n, 0.5 / sqrt((double)n)), *y = x + n;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            to[i * n + j] = (float)(x[i] * x[j] + y[i] * y[j] + (i == j ? uniform(random, least, most) : 0));
    free(x);
}

static void draw_initial(dr_random *random, problem *p, dr_state_kind kind) {
    const int64_t K = p->recurrence.key_size, count = p->state_count[kind];
    double *x = p->initial[kind] = normals(random, count, 0.5);
    if (kind == DR_STATE_A)
        for (int64_t i = 0; i < count; i++) x[i] = fabs(x[i]);
    if (kind != DR_STATE_K && kind != DR_STATE_P) return;
    for (int64_t i = 0; i < count; i += K * K) {
        draw_positive_matrix(random, kind == DR_STATE_P ? 0.5 : 0, kind == DR_STATE_P ? 1.5 : 0.2, K, x + i);
        /* a zero P stands for the one before the first token */
        if (dr_random_below(random, 4) == 0) memset(x + i, 0, (size_t)(K * K) * sizeof *x);
    }
}

/* 1/(alpha + beta m) grows without bound as alpha does the contrary, unless the key keeps it small. */
static bool bears_zero_keys(const dr_rule *rule) {
    return rule->normalizer != DR_NORMALIZER_DISCOUNTED;
}

problem *problem_create(const dr_rule *rule, const dr_recurrence *sizes, bool strong, dr_random *random) {
    problem *p = block(sizeof *p);
    *p = (problem){.rule = *rule, .recurrence = *sizes};
    p->recurrence.forget = DR_FORGET;
    p->recurrence.rule = &p->rule;
    for (int64_t i = 0; i <= sizes->layout.sequences; i++) p->cu_seqlens[i] = dr_layout_begin(&sizes->layout, i);
    p->recurrence.layout.cu_seqlens = p->cu_seqlens;
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dr_rule_uses(rule, (dr_input)i)) continue;
        p->input_count[i] = dr_recurrence_input_count(&p->recurrence, (dr_input)i);
        p->input[i] = numbers(p->input_count[i]);
    }
    const bool zeros = strong && bears_zero_keys(rule);
    draw_keys(random, p, DR_INPUT_KEY, zeros);
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!p->input[i] || i == DR_INPUT_KEY) continue;
        if (is_key(i))
            draw_keys(random, p, i, zeros);
        else
            for (int64_t j = 0; j < p->input_count[i]; j++) p->input[i][j] = (float)draw_scalar(random, rule, i, strong);
    }
    for (int i = 0; i < DR_STATES; i++) {
        if (!dr_rule_carries(rule, (dr_state_kind)i)) continue;
        p->state_count[i] = dr_recurrence_state_count(&p->recurrence, (dr_state_kind)i);
        draw_initial(random, p, (dr_state_kind)i);
        p->d_final[i] = normals(random, p->state_count[i], 1);
    }
    p->o_count = p->recurrence.layout.rows * sizes->value_heads * sizes->value_size;
    p->d_o = normals(random, p->o_count, 1);
    return p;
}

static double *copy_of(const double *from, int64_t count) {
    if (!from) return NULL;
    double *to = numbers(count);
    memcpy(to, from, (size_t)count * sizeof(double));
    return to;
}

problem *problem_copy(const problem *from) {
    problem *p = block(sizeof *p);
    *p = *from;
    p->recurrence.rule = &p->rule;
    p->recurrence.layout.cu_seqlens = p->cu_seqlens;
    for (int i = 0; i < DR_INPUTS; i++) p->input[i] = copy_of(from->input[i], from->input_count[i]);
    for (int i = 0; i < DR_STATES; i++) {
        p->initial[i] = copy_of(from->initial[i], from->state_count[i]);
        p->d_final[i] = copy_of(from->d_final[i], from->state_count[i]);
    }
    p->d_o = copy_of(from->d_o, from->o_count);
    return p;
}

void problem_forget_states(problem *p) {
    for (int i = 0; i < DR_STATES; i++) {
        free(p->initial[i]), free(p->d_final[i]);
        p->initial[i] = p->d_final[i] = NULL;
    }
}

void problem_free(problem *p) {
    for (int i = 0; i < DR_INPUTS; i++) free(p->input[i]);
    for (int i = 0; i < DR_STATES; i++) free(p->initial[i]), free(p->d_final[i]);
    free(p->d_o);
    free(p);
}

static result result_create(const problem *p) {
    result r = {.o = numbers(p->o_count)};
    for (int i = 0; i < DR_INPUTS; i++) r.gradient[i] = p->input[i] ? numbers(p->input_count[i]) : NULL;
    for (int i = 0; i < DR_STATES; i++) {
        r.final[i] = p->initial[i] ? numbers(p->state_count[i]) : NULL;
        r.d_initial[i] = p->initial[i] ? numbers(p->state_count[i]) : NULL;
    }
    return r;
}

void result_free(result *r) {
    for (int i = 0; i < DR_INPUTS; i++) free(r->gradient[i]);
    for (int i = 0; i < DR_STATES; i++) free(r->final[i]), free(r->d_initial[i]);
    free(r->o);
    *r = (result){0};
}

void move_inputs(problem *p, dr_random *random) {
    for (int i = 0; i < DR_INPUTS; i++)
        for (int64_t j = 0; j < p->input_count[i]; j++) p->input[i][j] *= 1 + uniform(random, -0x1p-24, 0x1p-24);
}

static int64_t draw_size(dr_random *random) {
    static const int64_t round[4] = {16, 32, 64, 128};
    return dr_random_below(random, 3) ? between(random, 1, 40) : round[dr_random_below(random, 3)];
}

int64_t least_key_size(const dr_rule *rule) {
    bool whole = rule->normalizer == DR_NORMALIZER_INVERSE;
    for (int i = 0; i < rule->rows; i++) whole |= rule->row[i].gain == DR_GAIN_NORMALIZED && rule->gain_eps == 0;
    return whole ? 2 : 1;
}

dr_recurrence draw_sizes(dr_random *random, const dr_rule *rule, int64_t cu_seqlens[MOST_SEQUENCES + 1]) {
    dr_recurrence sizes = {.rule = rule, .key_heads = between(random, 1, 2)};
    sizes.key_size = draw_size(random);
    if (sizes.key_size < least_key_size(rule)) sizes.key_size = least_key_size(rule);
    sizes.value_size = draw_size(random);
    sizes.value_heads = sizes.key_heads * (rule->tied_scan ? 1 : between(random, 1, 3));
    sizes.scale = dr_random_below(random, 2) ? uniform(random, 0.2, 2) : 0;
    sizes.layout.sequences = between(random, 1, 3);
    const bool equal = dr_random_below(random, 2);
    const int64_t length = between(random, 1, 50);
    cu_seqlens[0] = 0;
    for (int64_t i = 0; i < sizes.layout.sequences; i++) {
        int64_t own = dr_random_below(random, 4) ? between(random, 0, 80) : between(random, 0, 2);
        cu_seqlens[i + 1] = cu_seqlens[i] + (equal ? length : own);
    }
    sizes.layout.rows = cu_seqlens[sizes.layout.sequences];
    sizes.layout.cu_seqlens = cu_seqlens;
    return sizes;
}

/* ---- parts ---------------------------------------------------------------------------------------------------------- */

bool is_per_token(const problem *p, dr_input input) {
    return dr_recurrence_input_form(&p->recurrence, input).per_row;
}

int64_t input_width(const problem *p, dr_input input) {
    dr_input_form form = dr_recurrence_input_form(&p->recurrence, input);
    return form.steps * form.heads * form.size;
}

bool equally_long(const dr_layout *layout) {
    const int64_t tokens = layout->rows / layout->sequences;
    for (int64_t i = 0; i <= layout->sequences; i++)
        if (dr_layout_begin(layout, i) != i * tokens) return false;
    return tokens > 0;
}

/* The rows of a part, gathered from those of the whole; width numbers each. */
static double *gather(const problem *part, const int64_t *from_row, const double *from, int64_t width) {
    double *to = numbers(part->recurrence.layout.rows * width);
    for (int64_t i = 0; i < part->recurrence.layout.sequences; i++) {
        const int64_t begin = part->cu_seqlens[i], tokens = part->cu_seqlens[i + 1] - begin;
        memcpy(to + begin * width, from + from_row[i] * width, (size_t)(tokens * width) * sizeof(double));
    }
    return to;
}

problem *problem_part(const problem *from, int64_t sequence, int64_t sequences, const int64_t *first, const int64_t *tokens,
                      double *const initial[DR_STATES]) {
    problem *p = block(sizeof *p);
    int64_t from_row[MOST_SEQUENCES];
    *p = (problem){.rule = from->rule, .recurrence = from->recurrence};
    p->recurrence.rule = &p->rule;
    for (int64_t i = 0; i < sequences; i++) {
        from_row[i] = from->cu_seqlens[sequence + i] + first[i];
        p->cu_seqlens[i + 1] = p->cu_seqlens[i] + tokens[i];
    }
    p->recurrence.layout = (dr_layout){.sequences = sequences, .rows = p->cu_seqlens[sequences], .cu_seqlens = p->cu_seqlens};
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!from->input[i]) continue;
        const int64_t width = input_width(from, (dr_input)i);
        const bool per_token = is_per_token(from, (dr_input)i);
        p->input_count[i] = per_token ? p->recurrence.layout.rows * width : from->input_count[i];
        p->input[i] = per_token ? gather(p, from_row, from->input[i], width) : copy_of(from->input[i], width);
    }
    for (int i = 0; i < DR_STATES; i++) {
        if (!from->initial[i]) continue;
        const int64_t count = from->state_count[i] / from->recurrence.layout.sequences;
        p->state_count[i] = sequences * count;
        p->initial[i] = copy_of(initial ? initial[i] : from->initial[i] + sequence * count, p->state_count[i]);
        p->d_final[i] = copy_of(from->d_final[i] + sequence * count, p->state_count[i]);
    }
    const int64_t width = from->recurrence.value_heads * from->recurrence.value_size;
    p->o_count = p->recurrence.layout.rows * width;
    p->d_o = gather(p, from_row, from->d_o, width);
    return p;
}

/* ---- running -------------------------------------------------------------------------------------------------------- */

/* A backend that keeps its memory elsewhere has operations to get there; others, the plain loop among them, take the host's. */
static bool is_elsewhere(const dr_backend *backend) {
    return backend->ops->upload_as != NULL;
}

void *backend_block(const dr_backend *backend, size_t bytes) {
    void *host = block(bytes), *memory;
    if (!is_elsewhere(backend)) return host;
    const int64_t count = (int64_t)((bytes + sizeof(float) - 1) / sizeof(float));
    host = realloc(host, (size_t)count * sizeof(float) + 1);
    if (host) memset(host, 0xff, (size_t)count * sizeof(float));
    if (!host || dr_backend_allocate((dr_backend *)backend, (size_t)count * sizeof(float), &memory) != DR_OK ||
        dr_backend_upload((dr_backend *)backend, memory, host, DR_F32, count) != DR_OK) {
        fprintf(stderr, "no memory of the backend for a test's %zu bytes: %s\n", bytes, dr_last_error());
        exit(1);
    }
    free(host);
    return memory;
}

void backend_release(const dr_backend *backend, void *memory) {
    if (is_elsewhere(backend))
        dr_backend_free((dr_backend *)backend, memory);
    else
        free(memory);
}

void *tensor_in_as(const dr_backend *backend, dr_dtype dtype, const double *from, int64_t count) {
    if (!from) return NULL;
    void *to = backend_block(backend, (size_t)count * dr_dtype_size(dtype));
    if (is_elsewhere(backend) && dr_backend_upload_as((dr_backend *)backend, to, dtype, from, DR_F64, count) != DR_OK) {
        fprintf(stderr, "%s\n", dr_last_error());
        exit(1);
    }
    for (int64_t i = 0; i < count && !is_elsewhere(backend); i++)
        if (dtype == DR_F64)
            ((double *)to)[i] = from[i];
        else
            ((float *)to)[i] = (float)from[i];
    return to;
}

void tensor_out_as(const dr_backend *backend, dr_dtype dtype, void *from, double *to, int64_t count) {
    if (!from) return;
    if (is_elsewhere(backend) && dr_backend_download_as((dr_backend *)backend, to, DR_F64, from, dtype, count) != DR_OK) {
        fprintf(stderr, "%s\n", dr_last_error());
        exit(1);
    }
    for (int64_t i = 0; i < count && !is_elsewhere(backend); i++)
        to[i] = dtype == DR_F64 ? ((double *)from)[i] : (double)((float *)from)[i];
    backend_release(backend, from);
}

void *tensor_in(const dr_backend *backend, const double *from, int64_t count) {
    return tensor_in_as(backend, backend->ops->dtype, from, count);
}

void tensor_out(const dr_backend *backend, void *from, double *to, int64_t count) {
    tensor_out_as(backend, backend->ops->dtype, from, to, count);
}

void *poisoned_as(const dr_backend *backend, dr_dtype dtype, const double *like, int64_t count) {
    return like ? backend_block(backend, (size_t)count * dr_dtype_size(dtype)) : NULL;
}

void *poisoned(const dr_backend *backend, const double *like, int64_t count) {
    return poisoned_as(backend, backend->ops->dtype, like, count);
}

/* All tensors of one forward and backward in the backend's type. */
typedef struct {
    dr_inputs inputs;
    dr_input_gradients gradients;
    dr_states initial, d_final;
    dr_mutable_states final, d_initial;
    void *o, *d_o;
} operands;

static operands operands_in(const dr_backend *backend, const problem *p) {
    const dr_dtype output = dr_recurrence_output_dtype(backend);
    operands x = {.o = poisoned_as(backend, output, p->d_o, p->o_count),
                  .d_o = tensor_in_as(backend, output, p->d_o, p->o_count)};
    for (int i = 0; i < DR_INPUTS; i++) {
        const dr_dtype dtype = dr_recurrence_input_dtype(backend, (dr_input)i);
        x.inputs.at[i] = tensor_in_as(backend, dtype, p->input[i], p->input_count[i]);
        x.gradients.at[i] = poisoned_as(backend, dtype, p->input[i], p->input_count[i]);
    }
    for (int i = 0; i < DR_STATES; i++) {
        x.initial.at[i] = tensor_in(backend, p->initial[i], p->state_count[i]);
        x.d_final.at[i] = tensor_in(backend, p->d_final[i], p->state_count[i]);
        x.final.at[i] = poisoned(backend, p->initial[i], p->state_count[i]);
        x.d_initial.at[i] = poisoned(backend, p->initial[i], p->state_count[i]);
    }
    return x;
}

static void operands_out(const dr_backend *backend, const problem *p, operands *x, result *r) {
    tensor_out_as(backend, dr_recurrence_output_dtype(backend), x->o, r->o, p->o_count);
    backend_release(backend, x->d_o);
    for (int i = 0; i < DR_INPUTS; i++) {
        tensor_out_as(backend, dr_recurrence_input_dtype(backend, (dr_input)i), x->gradients.at[i], r->gradient[i],
                      p->input_count[i]);
        backend_release(backend, (void *)x->inputs.at[i]);
    }
    for (int i = 0; i < DR_STATES; i++) {
        tensor_out(backend, x->final.at[i], r->final[i], p->state_count[i]);
        tensor_out(backend, x->d_initial.at[i], r->d_initial[i], p->state_count[i]);
        backend_release(backend, (void *)x->initial.at[i]), backend_release(backend, (void *)x->d_final.at[i]);
    }
}

/* One forward and, with a workspace for it, backward. */
typedef struct {
    dr_backend *backend;
    const dr_recurrence *recurrence;
    const operands *x;
    void *saved, *forward, *backward;
} calls_of_run;

static dr_status make_calls(void *run) {
    const calls_of_run *c = run;
    const operands *x = c->x;
    const dr_status status = dr_recurrence_forward(c->backend, c->recurrence, &x->inputs, &x->initial, x->o, &x->final,
                                                   c->backward ? c->saved : NULL, c->forward);
    if (status != DR_OK || !c->backward) return status;
    return dr_recurrence_backward(c->backend, c->recurrence, &x->inputs, &x->initial, c->saved, x->d_o, &x->d_final,
                                  &x->gradients, &x->d_initial, c->backward);
}

static dr_status call_once(problem_calls calls, void *run, void *context) {
    (void)context;
    return calls(run);
}

bool problem_run_around(dr_backend *backend, const problem *p, dr_path path, int64_t chunk, bool backwards,
                        dr_status (*around)(problem_calls calls, void *run, void *context), void *context, result *r,
                        fault *what) {
    *r = result_create(p);
    dr_recurrence recurrence = p->recurrence;
    recurrence.path = path;
    recurrence.chunk = chunk;
    dr_recurrence_memory memory;
    if (dr_recurrence_plan(backend, &recurrence, &memory) != DR_OK) return fault_is(what, "plan: %s", dr_last_error());
    operands x = operands_in(backend, p);
    calls_of_run run = {backend,
                        &recurrence,
                        &x,
                        backend_block(backend, memory.saved),
                        backend_block(backend, memory.forward),
                        backwards ? backend_block(backend, memory.backward) : NULL};
    const dr_status status = around(make_calls, &run, context);
    backend_release(backend, run.saved), backend_release(backend, run.forward);
    if (run.backward) backend_release(backend, run.backward);
    operands_out(backend, p, &x, r);
    return status == DR_OK || fault_is(what, "%s", dr_last_error());
}

bool problem_run(dr_backend *backend, const problem *p, dr_path path, int64_t chunk, bool backwards, result *r, fault *what) {
    return problem_run_around(backend, p, path, chunk, backwards, call_once, NULL, r, what);
}

bool problem_boundary(dr_backend *backend, const problem *p, dr_path path, int64_t chunk, int64_t sequence, int64_t back,
                      int64_t *token, double *states[DR_STATES], fault *what) {
    int64_t length = 0, count = 0;
    dr_recurrence recurrence = p->recurrence;
    recurrence.path = path;
    recurrence.chunk = chunk;
    *token = -1;
    for (int i = 0; i < DR_STATES; i++)
        states[i] = p->initial[i] ? numbers(p->state_count[i] / p->recurrence.layout.sequences) : NULL;
    dr_recurrence_memory memory;
    if (dr_recurrence_plan(backend, &recurrence, &memory) != DR_OK) return fault_is(what, "plan: %s", dr_last_error());
    result unused = result_create(p);
    operands x = operands_in(backend, p);
    void *saved = backend_block(backend, memory.saved), *workspace = backend_block(backend, memory.forward);
    dr_mutable_states at = {{0}};
    dr_status status = dr_recurrence_forward(backend, &recurrence, &x.inputs, &x.initial, x.o, NULL, saved, workspace);
    if (status == DR_OK) status = dr_recurrence_boundaries(backend, &recurrence, sequence, &length, &count);
    if (status == DR_OK && back < count) {
        *token = (count - 1 - back) * length;
        for (int i = 0; i < DR_STATES; i++)
            at.at[i] = poisoned(backend, states[i], p->state_count[i] / p->recurrence.layout.sequences);
        status = dr_recurrence_boundary(backend, &recurrence, saved, sequence, count - 1 - back, &at);
        for (int i = 0; i < DR_STATES; i++)
            tensor_out(backend, at.at[i], states[i], p->state_count[i] / p->recurrence.layout.sequences);
    }
    backend_release(backend, saved), backend_release(backend, workspace);
    operands_out(backend, p, &x, &unused);
    result_free(&unused);
    return status == DR_OK || fault_is(what, "%s", dr_last_error());
}

/* The inputs of token t of each of the equally long sequences. */
static dr_inputs token_inputs(const dr_backend *backend, const problem *p, int64_t t) {
    const int64_t sequences = p->recurrence.layout.sequences, tokens = p->recurrence.layout.rows / sequences;
    dr_inputs inputs = {{0}};
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!p->input[i]) continue;
        const int64_t width = input_width(p, (dr_input)i);
        const dr_dtype dtype = dr_recurrence_input_dtype(backend, (dr_input)i);
        if (!is_per_token(p, (dr_input)i)) {
            inputs.at[i] = tensor_in_as(backend, dtype, p->input[i], width);
            continue;
        }
        double *part = numbers(sequences * width);
        for (int64_t s = 0; s < sequences; s++)
            memcpy(part + s * width, p->input[i] + (s * tokens + t) * width, (size_t)width * sizeof(double));
        inputs.at[i] = tensor_in_as(backend, dtype, part, sequences * width);
        free(part);
    }
    return inputs;
}

bool problem_decode(dr_backend *backend, const problem *p, result *r, fault *what) {
    const int64_t sequences = p->recurrence.layout.sequences, tokens = p->recurrence.layout.rows / sequences;
    const int64_t width = p->recurrence.value_heads * p->recurrence.value_size;
    *r = result_create(p);
    dr_recurrence recurrence = p->recurrence;
    recurrence.layout = (dr_layout){.sequences = sequences, .rows = sequences};
    dr_recurrence_memory memory;
    if (dr_recurrence_plan(backend, &recurrence, &memory) != DR_OK) return fault_is(what, "plan: %s", dr_last_error());
    dr_mutable_states states = {{0}};
    for (int i = 0; i < DR_STATES; i++) states.at[i] = tensor_in(backend, p->initial[i], p->state_count[i]);
    void *workspace = backend_block(backend, memory.decode);
    dr_status status = DR_OK;
    for (int64_t t = 0; t < tokens && status == DR_OK; t++) {
        dr_inputs inputs = token_inputs(backend, p, t);
        double *part = numbers(sequences * width);
        void *o = poisoned_as(backend, dr_recurrence_output_dtype(backend), part, sequences * width);
        status = dr_recurrence_decode(backend, &recurrence, &inputs, &states, o, workspace);
        tensor_out_as(backend, dr_recurrence_output_dtype(backend), o, part, sequences * width);
        for (int64_t s = 0; s < sequences; s++)
            memcpy(r->o + (s * tokens + t) * width, part + s * width, (size_t)width * sizeof(double));
        free(part);
        for (int i = 0; i < DR_INPUTS; i++) backend_release(backend, (void *)inputs.at[i]);
    }
    backend_release(backend, workspace);
    for (int i = 0; i < DR_STATES; i++) tensor_out(backend, states.at[i], r->final[i], p->state_count[i]);
    return status == DR_OK || fault_is(what, "%s", dr_last_error());
}
