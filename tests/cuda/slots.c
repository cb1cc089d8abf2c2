/* Decoding from a pool of states against decoding each sequence with a state of its own: the same bits, though several tokens
 * may be another kernel's than one. And many sequences at once against few at a time: the same bits, whichever kernel takes
 * them. */
#include "instances.h"

#include "ops/shapes.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 5, TOKENS = 3, SLOTS = 20, REPLAYS = 2 };
enum { MANY = 80, MANY_SLOTS = 2 * MANY, FEW = 4 };

/* Sequence 1 is skipped; a negative number keeps no state. */
static const int32_t from_slots[SEQUENCES] = {3, -1, 7, 0, 12};
static const int32_t to_slots[SEQUENCES][TOKENS] = {{4, 5, 3}, {6, 6, 6}, {8, -1, 9}, {-1, -1, -1}, {13, 14, 15}};

typedef struct {
    gpu *g;
    dr_backend *backend;
    problem *pool, *tokens; /* SLOTS sequences of no token, for their states; SEQUENCES of TOKENS tokens */
    dr_inputs inputs;
    int64_t width, state[DR_STATES]; /* of o for a token, of the states for a slot */
    fault *what;
} fixture;

static double *states_of(const fixture *f, int kind) {
    return f->pool->initial[kind];
}

/* Expected: o [SEQUENCES, TOKENS, width] and states [SEQUENCES, TOKENS, ..] by decoding one sequence after the other. */
static bool expect(const fixture *f, double *o, double *states[DR_STATES]) {
    dr_recurrence one = f->tokens->recurrence;
    one.layout = (dr_layout){.sequences = 1, .rows = 1};
    const dr_dtype output = dr_recurrence_output_dtype(f->backend);
    for (int s = 0; s < SEQUENCES; s++) {
        if (from_slots[s] < 0) continue;
        dr_mutable_states own = {{0}};
        for (int i = 0; i < DR_STATES; i++)
            if (states[i]) own.at[i] = tensor_in(f->backend, states_of(f, i) + from_slots[s] * f->state[i], f->state[i]);
        for (int t = 0; t < TOKENS; t++) {
            dr_inputs inputs = {{0}};
            for (int i = 0; i < DR_INPUTS; i++) {
                if (!f->inputs.at[i]) continue;
                const size_t row = (size_t)input_width(f->tokens, (dr_input)i) *
                                   dr_dtype_size(dr_recurrence_input_dtype(f->backend, (dr_input)i));
                const bool per_token = is_per_token(f->tokens, (dr_input)i);
                inputs.at[i] = (const char *)f->inputs.at[i] + (per_token ? (size_t)(s * TOKENS + t) * row : 0);
            }
            double *to = o + (s * TOKENS + t) * f->width;
            void *got = poisoned_as(f->backend, output, to, f->width);
            if (dr_recurrence_decode(f->backend, &one, &inputs, &own, got, NULL) != DR_OK)
                return fault_is(f->what, "%s", dr_last_error());
            tensor_out_as(f->backend, output, got, to, f->width);
            for (int i = 0; i < DR_STATES; i++)
                if (states[i])
                    dr_backend_download(f->backend, states[i] + (s * TOKENS + t) * f->state[i], DR_F64, own.at[i], f->state[i]);
        }
        for (int i = 0; i < DR_STATES; i++) backend_release(f->backend, own.at[i]);
    }
    return true;
}

/* The pool and o after a call are what they must be: written where a token's state goes, untouched elsewhere. */
static bool pool_is_right(const fixture *f, const char *name, bool in_place, void *o, dr_mutable_states *pool,
                          const double *want_o, double *const want[DR_STATES]) {
    double *got = numbers(SEQUENCES * TOKENS * f->width);
    tensor_out_as(f->backend, dr_recurrence_output_dtype(f->backend), o, got, SEQUENCES * TOKENS * f->width);
    bool holds = true;
    for (int s = 0; s < SEQUENCES && holds; s++) {
        const int64_t at = s * TOKENS * f->width;
        if (from_slots[s] < 0)
            for (int64_t j = 0; j < TOKENS * f->width && holds; j++)
                holds =
                    got[at + j] != got[at + j] || fault_is(f->what, "%s: the output of a skipped sequence was written", name);
        else
            holds = numbers_same(name, "o", got + at, want_o + at, TOKENS * f->width, f->what);
    }
    free(got);
    for (int i = 0; i < DR_STATES; i++) {
        if (!want[i]) continue;
        double *expected = numbers(SLOTS * f->state[i]), *found = numbers(SLOTS * f->state[i]);
        memcpy(expected, states_of(f, i), (size_t)(SLOTS * f->state[i]) * sizeof(double));
        for (int s = 0; s < SEQUENCES; s++)
            for (int t = 0; t < TOKENS; t++) {
                const int32_t slot = in_place ? t == TOKENS - 1 ? from_slots[s] : -1 : to_slots[s][t];
                if (from_slots[s] >= 0 && slot >= 0)
                    memcpy(expected + slot * f->state[i], want[i] + (s * TOKENS + t) * f->state[i],
                           (size_t)f->state[i] * sizeof(double));
            }
        tensor_out(f->backend, pool->at[i], found, SLOTS * f->state[i]);
        holds = holds && numbers_same(name, "the pool", found, expected, SLOTS * f->state[i], f->what);
        free(expected), free(found);
    }
    f->g->checks += 2;
    return holds;
}

static void *slots_in(const fixture *f, const int32_t *slots, int64_t count) {
    void *memory = backend_block(f->backend, (size_t)count * sizeof *slots);
    dr_backend_upload(f->backend, memory, slots, DR_F32, count); /* four bytes each, copied as they are */
    return memory;
}

typedef struct {
    void *o;
    dr_mutable_states pool;
} operands;

static operands fresh(const fixture *f) {
    operands x = {.o = backend_block(f->backend, (size_t)(SEQUENCES * TOKENS * f->width) *
                                                     dr_dtype_size(dr_recurrence_output_dtype(f->backend)))};
    for (int i = 0; i < DR_STATES; i++) x.pool.at[i] = tensor_in(f->backend, states_of(f, i), SLOTS * f->state[i]);
    return x;
}

/* Captured once; before each replay the pool and o are as at first, so each must give the same. */
static bool graph_is_right(const fixture *f, cudaStream_t stream, const dr_slots *slots, const double *o,
                           double *const states[DR_STATES]) {
    operands x = fresh(f);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t run = NULL;
    bool holds = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
    const dr_status status =
        dr_recurrence_decode_slots(f->backend, &f->tokens->recurrence, slots, &f->inputs, &x.pool, x.o, NULL);
    holds = cudaStreamEndCapture(stream, &graph) == cudaSuccess && holds && status == DR_OK &&
            cudaGraphInstantiate(&run, graph, 0) == cudaSuccess && cudaGraphLaunch(run, stream) == cudaSuccess &&
            dr_backend_wait(f->backend) == DR_OK;
    if (!holds) fault_is(f->what, "a CUDA graph of decoding: %s; %s", cudaGetErrorString(cudaGetLastError()), dr_last_error());
    if (run) cudaGraphExecDestroy(run);
    if (graph) cudaGraphDestroy(graph);
    return holds && pool_is_right(f, "a replayed graph", false, x.o, &x.pool, o, states);
}

static bool fixture_is_right(const fixture *f, cudaStream_t stream) {
    double *o = numbers(SEQUENCES * TOKENS * f->width), *states[DR_STATES] = {0};
    for (int i = 0; i < DR_STATES; i++)
        if (f->state[i]) states[i] = numbers(SEQUENCES * TOKENS * f->state[i]);
    void *from = slots_in(f, from_slots, SEQUENCES), *to = slots_in(f, to_slots[0], SEQUENCES * TOKENS);
    bool holds = expect(f, o, states);
    for (int in_place = 0; in_place < 2 && holds; in_place++) {
        const dr_slots slots = {.slots = SLOTS, .tokens = TOKENS, .from = from, .to = in_place ? NULL : to};
        operands x = fresh(f);
        holds = dr_recurrence_decode_slots(f->backend, &f->tokens->recurrence, &slots, &f->inputs, &x.pool, x.o, NULL) == DR_OK
                    ? pool_is_right(f, in_place ? "in place" : "to slots", in_place, x.o, &x.pool, o, states)
                    : fault_is(f->what, "%s", dr_last_error());
    }
    if (holds)
        holds = graph_is_right(f, stream, &(dr_slots){.slots = SLOTS, .tokens = TOKENS, .from = from, .to = to}, o, states);
    backend_release(f->backend, from), backend_release(f->backend, to);
    for (int i = 0; i < DR_STATES; i++) free(states[i]);
    free(o);
    return holds;
}

/* A problem of so many sequences, each of so many tokens. Sequences are more than problem_create's. */
static problem *drawn(const dr_rule *rule, int64_t sequences, int64_t tokens, int64_t key_size, int64_t value_size,
                      uint64_t seed) {
    const dr_recurrence sizes = {
        .rule = rule,
        .layout = {.sequences = 1, .rows = sequences * tokens},
        .key_heads = 2,
        .value_heads = rule->tied_scan ? 2 : 4,
        .key_size = key_size,
        .value_size = value_size,
    };
    dr_random random = dr_random_start(seed, 5);
    problem *p = problem_create(rule, &sizes, false, &random);
    p->recurrence.layout = (dr_layout){.sequences = sequences, .rows = sequences * tokens};
    for (int i = 0; i < DR_STATES; i++) { /* states of all sequences */
        if (!p->initial[i]) continue;
        const int64_t count = p->state_count[i] * sequences;
        free(p->initial[i]);
        p->initial[i] = numbers(count);
        for (int64_t j = 0; j < count; j++) p->initial[i][j] = (float)uniform(&random, 0, 0.5);
    }
    return p;
}

/* ---- many sequences --------------------------------------------------------------------------------------------------- */

/* Sequence s starts from slot s; every seventh is skipped, of every fifth no state is kept, of the others a new slot or (in
 * place) the old one. */
static void many_slots(bool in_place, int32_t from[MANY], int32_t to[MANY]) {
    for (int s = 0; s < MANY; s++) {
        from[s] = s % 7 == 3 ? -1 : s;
        to[s] = s % 5 == 1 ? -1 : in_place ? s : MANY_SLOTS - 1 - s;
    }
}

/* o and the pool after all sequences in calls of `batch` each. */
static dr_status decode_batches(const fixture *f, int batch, const int32_t *from, const int32_t *to, double *o,
                                double *pool[DR_STATES]) {
    const dr_dtype output = dr_recurrence_output_dtype(f->backend);
    dr_recurrence some = f->tokens->recurrence;
    some.layout = (dr_layout){.sequences = batch, .rows = batch};
    for (int64_t j = 0; j < MANY * f->width; j++) o[j] = NAN;
    char *got = poisoned_as(f->backend, output, o, MANY * f->width);
    const size_t output_row = (size_t)f->width * dr_dtype_size(output);
    dr_mutable_states states = {{0}};
    for (int i = 0; i < DR_STATES; i++)
        if (f->state[i]) states.at[i] = tensor_in(f->backend, states_of(f, i), MANY_SLOTS * f->state[i]);
    dr_status status = DR_OK;
    for (int s = 0; s < MANY && status == DR_OK; s += batch) {
        dr_inputs inputs = {{0}};
        for (int i = 0; i < DR_INPUTS; i++) {
            if (!f->inputs.at[i]) continue;
            const size_t row =
                (size_t)input_width(f->tokens, (dr_input)i) * dr_dtype_size(dr_recurrence_input_dtype(f->backend, (dr_input)i));
            inputs.at[i] = (const char *)f->inputs.at[i] + (is_per_token(f->tokens, (dr_input)i) ? (size_t)s * row : 0);
        }
        const dr_slots slots = {.slots = MANY_SLOTS, .tokens = 1, .from = from + s, .to = to ? to + s : NULL};
        status = dr_recurrence_decode_slots(f->backend, &some, &slots, &inputs, &states, got + (size_t)s * output_row, NULL);
    }
    if (status == DR_OK) tensor_out_as(f->backend, output, got, o, MANY * f->width);
    for (int i = 0; i < DR_STATES; i++)
        if (f->state[i]) tensor_out(f->backend, states.at[i], pool[i], MANY_SLOTS * f->state[i]);
    return status;
}

static bool many_are_right(const fixture *f) {
    static const char *const names[] = {"many in place", "many to slots", "many, only the last kept"};
    double *o[2], *pool[2][DR_STATES] = {{0}};
    bool holds = true;
    for (int n = 0; n < 2; n++) {
        o[n] = numbers(MANY * f->width);
        for (int i = 0; i < DR_STATES; i++) pool[n][i] = f->state[i] ? numbers(MANY_SLOTS * f->state[i]) : NULL;
    }
    for (int how = 0; how < 3 && holds; how++) {
        int32_t from[MANY], to[MANY];
        many_slots(how == 0, from, to);
        void *from_there = slots_in(f, from, MANY), *to_there = how < 2 ? slots_in(f, to, MANY) : NULL;
        const bool ran = decode_batches(f, FEW, from_there, to_there, o[0], pool[0]) == DR_OK &&
                         decode_batches(f, MANY, from_there, to_there, o[1], pool[1]) == DR_OK;
        holds = ran ? numbers_same(names[how], "o", o[1], o[0], MANY * f->width, f->what)
                    : fault_is(f->what, "%s", dr_last_error());
        for (int i = 0; i < DR_STATES && holds; i++)
            if (f->state[i])
                holds = numbers_same(names[how], "the pool", pool[1][i], pool[0][i], MANY_SLOTS * f->state[i], f->what);
        backend_release(f->backend, from_there), backend_release(f->backend, to_there);
        f->g->checks += 2;
    }
    for (int n = 0; n < 2; n++) {
        free(o[n]);
        for (int i = 0; i < DR_STATES; i++) free(pool[n][i]);
    }
    return holds;
}

/* A rule's fixture, of heads of one of these sizes. */
static const int64_t head_sizes[4][2] = {{72, 40}, {128, 128}, {33, 64}, {200, 72}};

static bool take_fixture(gpu *g, const dr_rule *rule, dr_dtype dtype, bool many, int size, uint64_t seed, fault *what) {
    const int64_t K = head_sizes[size][0], V = head_sizes[size][1];
    fixture f = {.g = g, .what = what};
    cudaStream_t stream;
    /* not one that waits for the default stream, whose use by another thread would end what is captured */
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return fault_is(what, "no stream");
    const dr_backend_options options = {.dtype = dtype, .device = g->device, .stream = stream};
    if (dr_backend_open("cuda", &options, &f.backend) != DR_OK) return fault_is(what, "%s", dr_last_error());
    f.pool = drawn(rule, many ? MANY_SLOTS : SLOTS, 1, K, V, seed);
    f.tokens = drawn(rule, many ? MANY : SEQUENCES, many ? 1 : TOKENS, K, V, 100 + seed);
    f.width = f.tokens->recurrence.value_heads * f.tokens->recurrence.value_size;
    for (int i = 0; i < DR_STATES; i++) f.state[i] = f.pool->state_count[i];
    for (int i = 0; i < DR_INPUTS; i++)
        f.inputs.at[i] = tensor_in_as(f.backend, dr_recurrence_input_dtype(f.backend, (dr_input)i), f.tokens->input[i],
                                      f.tokens->input_count[i]);
    const bool holds = many ? many_are_right(&f) : fixture_is_right(&f, stream);
    for (int i = 0; i < DR_INPUTS; i++) backend_release(f.backend, (void *)f.inputs.at[i]);
    problem_free(f.pool), problem_free(f.tokens);
    instances_note(f.backend);
    dr_backend_close(f.backend);
    cudaStreamDestroy(stream);
    return holds;
}

static const dr_dtype types[3] = {DR_F32, DR_BF16, DR_F16};

/* Rules of the table, each in three types and two sizes, and four that are composed; then sizes of their own. */
static bool slots_case_is_right(gpu *own, uint64_t n, void *context, fault *what) {
    static const char *const rules[] = {"gdn",    "kda",    "eda", "rwkv7",         "pkda", "pdn_unstable",
                                        "mamba2", "qdelta", "gla", "delta_product", "gdn2", "comba"};
    static const dr_read reads[] = {DR_READ_ERASE_KEY, DR_READ_FREE, DR_READ_GATED_KEY, DR_READ_KEY_PLUS_QUERY};
    enum { NAMED = sizeof rules / sizeof *rules, ALL = 6 * (NAMED + 4) };
    (void)context;
    if (n >= ALL) {
        const uint64_t i = n - ALL;
        return take_fixture(own, dr_rule_find(i < 6 ? "kda" : "pkda"), types[i % 3], false, 2 + (int)(i % 6) / 3, i, what);
    }
    const int i = (int)(n / 6) - NAMED;
    dr_rule rule = *dr_rule_find(i < 0 ? rules[n / 6] : i % 2 ? "kda" : "gdn");
    if (i >= 0) rule.row[0].read = reads[i];
    return take_fixture(own, &rule, types[n % 3], false, n % 6 > 2, n, what);
}

bool suite_slots(gpu *g, fault *what) {
    return gpu_share(g, 0, 6 * 16 + 12 - 1, slots_case_is_right, NULL, what);
}

/* The last four: up to 64 channels of keys in every type, and more in fp16. */
static bool many_case_is_right(gpu *own, uint64_t n, void *context, fault *what) {
    static const char *const rules[] = {"gdn", "eda", "pkda", "delta_product"};
    (void)context;
    if (n < 8) return take_fixture(own, dr_rule_find(rules[n / 2]), types[n % 2], true, n / 4 != n % 2, n, what);
    const int i = (int)n - 8;
    return take_fixture(own, dr_rule_find("kda"), types[i < 3 ? i : 2], true, i < 3 ? 2 : 0, (uint64_t)(20 + i), what);
}

bool suite_many(gpu *g, fault *what) {
    return gpu_share(g, 0, 11, many_case_is_right, NULL, what);
}
