/* Recurrence problems for tests of a float32 backend: random rules and shapes, inputs at which no gain meets a pole, running
 * them on a backend and comparing the results. Every number of a problem is exact in float32, so that all backends see the
 * same. */
#ifndef DR_TESTS_RECURRENCE_PROBLEM_H
#define DR_TESTS_RECURRENCE_PROBLEM_H

#include "base/random.h"
#include "ops/operations.h"
#include "ops/shapes.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

/* those of the recorded results; ||a - b|| / ||b|| over a whole tensor */
static const double tolerance_forward = 2e-5, tolerance_backward = 1e-4;

enum { MOST_SEQUENCES = 4 };

static inline uint64_t seed(void) {
    const char *chosen = getenv("DELTARULE_SEED");
    return chosen ? strtoull(chosen, NULL, 10) : 20261;
}

static inline double uniform(dr_random *random, double from, double to) {
    return from + (to - from) * dr_random_uniform(random);
}

static inline int64_t between(dr_random *random, int64_t least, int64_t most) {
    return least + (int64_t)dr_random_below(random, (uint64_t)(most - least + 1));
}

static inline void *block(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    assert_non_null(memory);
    memset(memory, 0xff, bytes); /* NaN in either type */
    return memory;
}

/* ---- problems ------------------------------------------------------------------------------------------------------- */

typedef struct {
    dr_rule rule;
    dr_recurrence recurrence;
    int64_t cu_seqlens[MOST_SEQUENCES + 1];
    int64_t input_count[DR_INPUTS], state_count[DR_STATES], o_count; /* 0 where the rule has none */
    double *input[DR_INPUTS], *initial[DR_STATES], *d_final[DR_STATES], *d_o;
} problem;

typedef struct {
    double *o, *final[DR_STATES], *gradient[DR_INPUTS], *d_initial[DR_STATES];
} result;

static inline double *numbers(int64_t count) {
    return block((size_t)count * sizeof(double));
}

/* Every key of a token is near one direction of length about 1, so that no gain meets a pole; free_read, which enters with a
 * minus, is on the other side. zeros: some keys are zero. All numbers are exact in float32. */
static inline void draw_keys(dr_random *random, problem *p, int input, bool zeros) {
    const int64_t K = p->recurrence.key_size, H = p->recurrence.key_heads;
    const bool free_query = input == DR_INPUT_QUERY;
    for (int64_t i = 0; i < p->input_count[input] / K; i++) {
        double *key = p->input[input] + i * K, sum = 0;
        for (int64_t d = 0; d < K; d++) {
            /* the direction of a token and head: the first key of the token */
            const double *first = p->input[DR_INPUT_KEY] + i / H * H * p->rule.repeat * K + i % H * K;
            bool own = input == DR_INPUT_KEY || free_query;
            key[d] = own ? dr_random_normal(random) : first[d] + 0.3 * dr_random_normal(random) / sqrt((double)K);
            sum += key[d] * key[d];
        }
        double size = (input == DR_INPUT_FREE_READ ? -1 : 1) * uniform(random, 0.7, 1.1) / sqrt(sum + 1e-3);
        if (zeros && dr_random_below(random, 8) == 0) size = 0;
        for (int64_t d = 0; d < K; d++) key[d] = (float)(key[d] * size);
    }
}

static inline double draw_scalar(dr_random *random, int input, bool strong) {
    bool edge = strong && dr_random_below(random, 8) == 0;
    switch (input) {
    case DR_INPUT_LOG_DECAY:
    case DR_INPUT_SCAN_LOG_DECAY:
        if (edge) return dr_random_below(random, 3) ? uniform(random, -60, 0) : -INFINITY;
        return dr_random_below(random, 10) ? uniform(random, -0.3, 0) : 0;
    case DR_INPUT_BETA:
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

static inline bool is_key(int input) {
    return input == DR_INPUT_QUERY || input == DR_INPUT_KEY || input == DR_INPUT_ERASE_KEY || input == DR_INPUT_FEEDBACK_KEY ||
           input == DR_INPUT_FREE_READ || input == DR_INPUT_FREE_WRITE;
}

static inline double *normals(dr_random *random, int64_t count, double size) {
    double *x = numbers(count);
    for (int64_t i = 0; i < count; i++) x[i] = (float)(size * dr_random_normal(random));
    return x;
}

/* Whether no gain of the rule has a pole at a zero key. */
static inline bool bears_zero_keys(const dr_rule *rule) {
    for (int i = 0; i < rule->rows; i++)
        if (rule->row[i].gain == DR_GAIN_NORMALIZED && rule->gain_eps == 0) return false;
    return rule->normalizer != DR_NORMALIZER_INVERSE && rule->normalizer != DR_NORMALIZER_DISCOUNTED;
}

/* sizes: sizes and layout (cu_seqlens is copied); the rule and what depends on it are set here. strong: decays down to -60 and
 * -inf, gains of 2, zero keys. */
static inline problem *problem_create(const dr_rule *rule, const dr_recurrence *sizes, bool strong, dr_random *random) {
    problem *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->rule = *rule;
    p->recurrence = *sizes;
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
            for (int64_t j = 0; j < p->input_count[i]; j++) p->input[i][j] = (float)draw_scalar(random, i, strong);
    }
    for (int i = 0; i < DR_STATES; i++) {
        if (!dr_rule_carries(rule, (dr_state_kind)i)) continue;
        p->state_count[i] = dr_recurrence_state_count(&p->recurrence, (dr_state_kind)i);
        p->initial[i] = normals(random, p->state_count[i], 0.5);
        if (i == DR_STATE_A)
            for (int64_t j = 0; j < p->state_count[i]; j++) p->initial[i][j] = fabs(p->initial[i][j]);
        p->d_final[i] = normals(random, p->state_count[i], 1);
    }
    p->o_count = p->recurrence.layout.rows * sizes->value_heads * sizes->value_size;
    p->d_o = normals(random, p->o_count, 1);
    return p;
}

static inline double *copy_of(const double *from, int64_t count) {
    if (!from) return NULL;
    double *to = numbers(count);
    memcpy(to, from, (size_t)count * sizeof(double));
    return to;
}

static inline problem *problem_copy(const problem *from) {
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

static inline void problem_free(problem *p) {
    for (int i = 0; i < DR_INPUTS; i++) free(p->input[i]);
    for (int i = 0; i < DR_STATES; i++) free(p->initial[i]), free(p->d_final[i]);
    free(p->d_o);
    free(p);
}

static inline result result_create(const problem *p) {
    result r = {.o = numbers(p->o_count)};
    for (int i = 0; i < DR_INPUTS; i++) r.gradient[i] = p->input[i] ? numbers(p->input_count[i]) : NULL;
    for (int i = 0; i < DR_STATES; i++) {
        r.final[i] = p->initial[i] ? numbers(p->state_count[i]) : NULL;
        r.d_initial[i] = p->initial[i] ? numbers(p->state_count[i]) : NULL;
    }
    return r;
}

static inline void result_free(result *r) {
    for (int i = 0; i < DR_INPUTS; i++) free(r->gradient[i]);
    for (int i = 0; i < DR_STATES; i++) free(r->final[i]), free(r->d_initial[i]);
    free(r->o);
}

/* ---- drawing rules and sizes ------------------------------------------------------------------------------------------ */

static inline bool any_row_writes(const dr_rule *rule, dr_write write) {
    return rule->row[0].write == write || (rule->rows == 2 && rule->row[1].write == write);
}

static inline dr_rule draw_rule(dr_random *random) {
    dr_rule rule;
    do {
        rule = dr_rule_blank();
        rule.decay = (dr_decay)dr_random_below(random, 4);
        rule.rows = (int)between(random, 1, 2);
        rule.repeat = dr_random_below(random, 4) ? 1 : (int)between(random, 2, 5);
        for (int i = 0; i < rule.rows; i++)
            rule.row[i] = (dr_row){.read = (dr_read)dr_random_below(random, 7),
                                   .undecayed = dr_random_below(random, 2),
                                   .write = (dr_write)dr_random_below(random, 6),
                                   .gain = (dr_gain)dr_random_below(random, 6),
                                   .value = (dr_value)dr_random_below(random, 4)};
        rule.query = (dr_query)dr_random_below(random, 3);
        bool preconditioned = any_row_writes(&rule, DR_WRITE_PRECONDITIONED);
        if (preconditioned || any_row_writes(&rule, DR_WRITE_SHERMAN_MORRISON) || rule.query == DR_QUERY_RIDGE)
            rule.scan = DR_SCAN_DIAGONAL;
        if (preconditioned) rule.normalizer = (dr_normalizer)dr_random_below(random, 4);
        rule.tied_scan = rule.scan == DR_SCAN_DIAGONAL && dr_random_below(random, 2);
        rule.squash.x = uniform(random, 1, 2);
        rule.squash.interval = (dr_squash_interval)dr_random_below(random, 3);
        rule.squash.function = (dr_squash_function)dr_random_below(random, 2);
        rule.gain_eps = 0.5;
    } while (dr_rule_check(&rule) != DR_OK);
    return rule;
}

static inline int64_t draw_size(dr_random *random) {
    static const int64_t round[4] = {16, 32, 64, 128};
    return dr_random_below(random, 3) ? between(random, 1, 40) : round[dr_random_below(random, 3)];
}

/* lengths from 0 on, or all equal, which decoding needs */
static inline dr_recurrence draw_sizes(dr_random *random, const dr_rule *rule, int64_t cu_seqlens[MOST_SEQUENCES + 1]) {
    dr_recurrence sizes = {.rule = rule, .key_heads = between(random, 1, 2)};
    sizes.key_size = draw_size(random);
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

/* ---- running -------------------------------------------------------------------------------------------------------- */

static inline void must(dr_status status) {
    if (status != DR_OK) fail_msg("%s", dr_last_error());
}

static inline dr_backend *open_backend(const char *name, const char *isa, int threads) {
    dr_backend *backend;
    must(dr_backend_open(name, &(dr_backend_options){.isa = isa, .threads = threads}, &backend));
    return backend;
}

static inline dr_backend *open_cpu(const char *isa, int threads) {
    return open_backend("cpu", isa, threads);
}

/* A tensor in the backend's type: converted in, or poisoned for what is to be written. */
static inline void *tensor_in(const dr_backend *backend, const double *from, int64_t count) {
    if (!from) return NULL;
    void *to = block((size_t)count * dr_dtype_size(backend->ops->dtype));
    for (int64_t i = 0; i < count; i++)
        if (backend->ops->dtype == DR_F64)
            ((double *)to)[i] = from[i];
        else
            ((float *)to)[i] = (float)from[i];
    return to;
}

static inline void tensor_out(const dr_backend *backend, void *from, double *to, int64_t count) {
    for (int64_t i = 0; i < count && from; i++)
        to[i] = backend->ops->dtype == DR_F64 ? ((double *)from)[i] : (double)((float *)from)[i];
    free(from);
}

static inline void *poisoned(const dr_backend *backend, const double *like, int64_t count) {
    return like ? block((size_t)count * dr_dtype_size(backend->ops->dtype)) : NULL;
}

/* Forward and backward into a result; NULL d_o runs the forward only. */
static inline result run(dr_backend *backend, const problem *p, dr_path path, int64_t chunk, bool backwards) {
    result r = result_create(p);
    dr_recurrence recurrence = p->recurrence;
    recurrence.path = path;
    recurrence.chunk = chunk;
    dr_recurrence_memory memory;
    must(dr_recurrence_plan(backend, &recurrence, &memory));
    dr_inputs inputs = {{0}};
    dr_input_gradients gradients = {{0}};
    dr_states initial = {{0}}, d_final = {{0}};
    dr_mutable_states final = {{0}}, d_initial = {{0}};
    for (int i = 0; i < DR_INPUTS; i++) {
        inputs.at[i] = tensor_in(backend, p->input[i], p->input_count[i]);
        gradients.at[i] = poisoned(backend, p->input[i], p->input_count[i]);
    }
    for (int i = 0; i < DR_STATES; i++) {
        initial.at[i] = tensor_in(backend, p->initial[i], p->state_count[i]);
        d_final.at[i] = tensor_in(backend, p->d_final[i], p->state_count[i]);
        final.at[i] = poisoned(backend, p->initial[i], p->state_count[i]);
        d_initial.at[i] = poisoned(backend, p->initial[i], p->state_count[i]);
    }
    void *o = poisoned(backend, p->d_o, p->o_count), *d_o = tensor_in(backend, p->d_o, p->o_count);
    void *saved = block(memory.saved), *workspace = block(memory.forward);
    must(dr_recurrence_forward(backend, &recurrence, &inputs, &initial, o, &final, backwards ? saved : NULL, workspace));
    free(workspace);
    workspace = block(memory.backward);
    if (backwards)
        must(dr_recurrence_backward(backend, &recurrence, &inputs, &initial, saved, d_o, &d_final, &gradients, &d_initial,
                                    workspace));
    free(workspace), free(saved), free(d_o);
    tensor_out(backend, o, r.o, p->o_count);
    for (int i = 0; i < DR_INPUTS; i++) {
        tensor_out(backend, gradients.at[i], r.gradient[i], p->input_count[i]);
        free((void *)inputs.at[i]);
    }
    for (int i = 0; i < DR_STATES; i++) {
        tensor_out(backend, final.at[i], r.final[i], p->state_count[i]);
        tensor_out(backend, d_initial.at[i], r.d_initial[i], p->state_count[i]);
        free((void *)initial.at[i]), free((void *)d_final.at[i]);
    }
    return r;
}

/* The same forward, one token at a time; all sequences are equally long. */
static inline result decode(dr_backend *backend, const problem *p) {
    const int64_t sequences = p->recurrence.layout.sequences, tokens = p->recurrence.layout.rows / sequences;
    result r = result_create(p);
    dr_recurrence recurrence = p->recurrence;
    recurrence.layout = (dr_layout){.sequences = sequences, .rows = sequences};
    dr_recurrence_memory memory;
    must(dr_recurrence_plan(backend, &recurrence, &memory));
    dr_mutable_states states = {{0}};
    for (int i = 0; i < DR_STATES; i++) states.at[i] = tensor_in(backend, p->initial[i], p->state_count[i]);
    void *workspace = block(memory.decode);
    for (int64_t t = 0; t < tokens; t++) {
        dr_inputs inputs = {{0}};
        for (int i = 0; i < DR_INPUTS; i++) {
            if (!p->input[i]) continue;
            bool per_row = dr_recurrence_input_form(&recurrence, (dr_input)i).per_row;
            int64_t width = p->input_count[i] / (per_row ? p->recurrence.layout.rows : 1);
            double *part = numbers(per_row ? sequences * width : width);
            for (int64_t s = 0; s < (per_row ? sequences : 1); s++)
                memcpy(part + s * width, p->input[i] + (per_row ? s * tokens + t : 0) * width, (size_t)width * sizeof(double));
            inputs.at[i] = tensor_in(backend, part, per_row ? sequences * width : width);
            free(part);
        }
        const int64_t width = p->o_count / p->recurrence.layout.rows;
        void *o = poisoned(backend, p->d_o, sequences * width);
        double *part = numbers(sequences * width);
        must(dr_recurrence_decode(backend, &recurrence, &inputs, &states, o, workspace));
        tensor_out(backend, o, part, sequences * width);
        for (int64_t s = 0; s < sequences; s++)
            memcpy(r.o + (s * tokens + t) * width, part + s * width, (size_t)width * sizeof(double));
        free(part);
        for (int i = 0; i < DR_INPUTS; i++) free((void *)inputs.at[i]);
    }
    free(workspace);
    for (int i = 0; i < DR_STATES; i++) tensor_out(backend, states.at[i], r.final[i], p->state_count[i]);
    return r;
}

/* ---- comparing ------------------------------------------------------------------------------------------------------ */

static double worst_error; /* of a test, over all its comparisons, in units of the tolerance */

/* ||got - want|| / max(||want||, 1e-6 sqrt(count)); infinite where a number is missing or not finite. */
static inline double error_of(const double *got, const double *want, int64_t count) {
    double apart = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(got[i])) return INFINITY;
        apart += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    return sqrt(apart) / fmax(sqrt(size), 1e-6 * sqrt((double)count));
}

enum { MOVES = 3 };

/* One tensor: from the engine, from the reference, and the reference's when every input moves by at most half a unit in the
 * last place of float32. No float32 engine can be closer than that, which matters where a gradient is a sum that all but
 * cancels: some twenty roundings of that size are allowed beside the tolerance. */
typedef struct {
    const double *got, *want, *moved[MOVES];
    int64_t count;
} comparison;

static inline void assert_near(const char *name, const char *of, const char *what, comparison c, double tolerance) {
    if (c.count == 0) return;
    double error = error_of(c.got, c.want, c.count), moved = 0;
    for (int i = 0; i < MOVES; i++) moved = fmax(moved, error_of(c.moved[i], c.want, c.count));
    double allowed = tolerance + 20 * moved;
    worst_error = fmax(worst_error, error / allowed);
    if (!(error <= allowed)) fail_msg("%s: %s %s has error %.3g, at most %.2g is right", name, of, what, error, allowed);
}

#define COMPARISON(member, elements)                                                                                           \
    (comparison) {                                                                                                             \
        got->member, want->member, {moved[0].member, moved[1].member, moved[2].member}, elements                               \
    }

static inline void assert_results_near(const char *name, const problem *p, const result *got, const result *want,
                                       const result moved[MOVES], bool backwards) {
    assert_near(name, "output", "o", COMPARISON(o, p->o_count), tolerance_forward);
    for (int i = 0; i < DR_STATES; i++)
        assert_near(name, "final", dr_state_name((dr_state_kind)i), COMPARISON(final[i], p->state_count[i]), tolerance_forward);
    if (!backwards) return;
    for (int i = 0; i < DR_INPUTS; i++)
        assert_near(name, "gradient of", dr_input_name((dr_input)i), COMPARISON(gradient[i], p->input_count[i]),
                    tolerance_backward);
    for (int i = 0; i < DR_STATES; i++)
        assert_near(name, "gradient of initial", dr_state_name((dr_state_kind)i), COMPARISON(d_initial[i], p->state_count[i]),
                    tolerance_backward);
}

static inline void assert_same(const char *name, const char *what, const double *a, const double *b, int64_t count) {
    if (count && memcmp(a, b, (size_t)count * sizeof(double))) fail_msg("%s: %s differs in its bits", name, what);
}

static inline void assert_results_same(const char *name, const problem *p, const result *a, const result *b) {
    assert_same(name, "o", a->o, b->o, p->o_count);
    for (int i = 0; i < DR_INPUTS; i++)
        assert_same(name, dr_input_name((dr_input)i), a->gradient[i], b->gradient[i], p->input_count[i]);
    for (int i = 0; i < DR_STATES; i++) {
        assert_same(name, "a final state", a->final[i], b->final[i], p->state_count[i]);
        assert_same(name, "a gradient of an initial state", a->d_initial[i], b->d_initial[i], p->state_count[i]);
    }
}

/* Where a log decay is -inf its gradient is 0 to the bit. */
static inline void assert_dead_decays(const char *name, const problem *p, const result *r) {
    static const dr_input decays[2] = {DR_INPUT_LOG_DECAY, DR_INPUT_SCAN_LOG_DECAY};
    for (int n = 0; n < 2; n++)
        for (int64_t i = 0; i < p->input_count[decays[n]]; i++)
            if (p->input[decays[n]][i] == -INFINITY && r->gradient[decays[n]][i] != 0)
                fail_msg("%s: gradient of %s at -inf is %g", name, dr_input_name(decays[n]), r->gradient[decays[n]][i]);
}

#endif
