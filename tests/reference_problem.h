/* A recurrence of the reference with its data: drawn rules, shapes, inputs and states, and calls whose workspaces are as long
 * as the plan says to the byte. The random cases start from a seed; DELTARULE_SEED chooses another. */
#ifndef DR_TESTS_REFERENCE_PROBLEM_H
#define DR_TESTS_REFERENCE_PROBLEM_H

#include "backends/reference/reference.h"
#include "base/random.h"
#include "differences.h"
#include "ops/shapes.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_SEQUENCES = 6, MOST_KEYS = 3 };

static inline uint64_t seed(void) {
    const char *chosen = getenv("DELTARULE_SEED");
    return chosen ? strtoull(chosen, NULL, 10) : 20260;
}
typedef struct {
    int64_t key_heads, value_heads, key_size, value_size;
    int sequences;
    int64_t lengths[MOST_SEQUENCES];
} shape;

typedef struct {
    dr_backend *backend;
    dr_rule rule;
    dr_recurrence recurrence;
    int64_t cu_seqlens[MOST_SEQUENCES + 1];
    dr_recurrence_memory memory;
    int64_t input_count[DR_INPUTS], state_count[DR_STATES], o_count; /* 0 where the rule has none */
    double *input[DR_INPUTS], *gradient[DR_INPUTS];
    double *initial[DR_STATES], *d_initial[DR_STATES], *final[DR_STATES], *d_final[DR_STATES];
    double *o, *d_o;
    void *workspace; /* as long as the plan says to the byte, so that sanitizers see more */
} problem;

static inline double uniform(dr_random *random, double from, double to) {
    return from + (to - from) * dr_random_uniform(random);
}

/* Away from zero, so that 1/m has no steep slope; short, so that 1 + b r.w stays above 1/8 for every r and w of three. */
static inline double key_element(dr_random *random) {
    double size = uniform(random, 0.1, 0.3);
    return dr_random_below(random, 2) ? size : -size;
}

static inline double draw(dr_random *random, int input) {
    switch (input) {
    case DR_INPUT_VALUE:
        return dr_random_normal(random);
    case DR_INPUT_LOG_DECAY:
    case DR_INPUT_SCAN_LOG_DECAY:
        return uniform(random, -1.5, 0);
    case DR_INPUT_BETA:
    case DR_INPUT_ERASE_GAIN:
    case DR_INPUT_SCAN_GAIN:
        return uniform(random, 0.1, 1);
    case DR_INPUT_LAMBDA:
    case DR_INPUT_RATE:
    case DR_INPUT_ERASE_GATE:
    case DR_INPUT_WRITE_GATE:
    case DR_INPUT_CORRECTION:
        return uniform(random, -0.5, 0.5);
    case DR_INPUT_SCAN_CENTRE:
        return uniform(random, -3, 1);
    case DR_INPUT_RIDGE:
        return uniform(random, 0.6, 1.2);
    default:
        return key_element(random);
    }
}

/* count numbers that no computation should leave behind; one more, so that none is not NULL */
static inline double *numbers(int64_t count) {
    double *x = malloc((size_t)(count + 1) * sizeof(double));
    assert_non_null(x);
    for (int64_t i = 0; i <= count; i++) x[i] = NAN;
    return x;
}

static inline double *normals(dr_random *random, int64_t count) {
    double *x = numbers(count);
    for (int64_t i = 0; i < count; i++) x[i] = dr_random_normal(random);
    return x;
}

static inline void *workspace_of(size_t bytes) {
    void *memory = malloc(bytes);
    assert_non_null(memory);
    memset(memory, 0xff, bytes);
    return memory;
}

static inline bool is_matrix(int state) {
    return state == DR_STATE_K || state == DR_STATE_P;
}

/* Symmetric and positive definite matrices of this side: at least 1/2 on the diagonal, beside which the rest is small. */
static inline void draw_matrices(dr_random *random, int64_t side, int64_t count, double *x) {
    for (double *matrix = x; matrix < x + count; matrix += side * side)
        for (int64_t i = 0; i < side; i++) {
            matrix[i * side + i] = uniform(random, 0.5, 1);
            for (int64_t j = 0; j < i; j++) matrix[i * side + j] = matrix[j * side + i] = uniform(random, -0.15, 0.15);
        }
}

static inline problem *problem_create(const dr_rule *rule, const shape *size, dr_random *random) {
    problem *p = calloc(1, sizeof *p);
    assert_non_null(p);
    assert_int_equal(dr_reference_open(NULL, &p->backend), DR_OK);
    p->rule = *rule;
    for (int i = 0; i < size->sequences; i++) p->cu_seqlens[i + 1] = p->cu_seqlens[i] + size->lengths[i];
    p->recurrence = (dr_recurrence){.rule = &p->rule,
                                    .layout = {size->sequences, p->cu_seqlens[size->sequences], p->cu_seqlens},
                                    .key_heads = size->key_heads,
                                    .value_heads = size->value_heads,
                                    .key_size = size->key_size,
                                    .value_size = size->value_size};
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dr_rule_uses(rule, i)) continue;
        p->input_count[i] = dr_recurrence_input_count(&p->recurrence, i);
        p->input[i] = numbers(p->input_count[i]);
        p->gradient[i] = numbers(p->input_count[i]);
        for (int64_t j = 0; j < p->input_count[i]; j++) p->input[i][j] = draw(random, i);
    }
    for (int i = 0; i < DR_STATES; i++) {
        if (!dr_rule_carries(rule, i)) continue;
        p->state_count[i] = dr_recurrence_state_count(&p->recurrence, i);
        p->initial[i] = normals(random, p->state_count[i]);
        if (i == DR_STATE_A)
            for (int64_t j = 0; j < p->state_count[i]; j++) p->initial[i][j] = uniform(random, 0.2, 1);
        if (is_matrix(i)) draw_matrices(random, p->recurrence.key_size, p->state_count[i], p->initial[i]);
        p->final[i] = numbers(p->state_count[i]);
        p->d_initial[i] = numbers(p->state_count[i]);
        p->d_final[i] = normals(random, p->state_count[i]);
    }
    p->o_count = p->recurrence.layout.rows * size->value_heads * size->value_size;
    p->o = numbers(p->o_count);
    p->d_o = normals(random, p->o_count);
    assert_int_equal(dr_recurrence_plan(p->backend, &p->recurrence, &p->memory), DR_OK);
    p->workspace = workspace_of(p->memory.forward);
    return p;
}

static inline void problem_free(problem *p) {
    for (int i = 0; i < DR_INPUTS; i++) free(p->input[i]), free(p->gradient[i]);
    for (int i = 0; i < DR_STATES; i++) free(p->initial[i]), free(p->final[i]), free(p->d_initial[i]), free(p->d_final[i]);
    free(p->o), free(p->d_o), free(p->workspace);
    p->backend->ops->close(p->backend);
    free(p);
}

static inline dr_inputs inputs_of(const problem *p) {
    dr_inputs inputs;
    for (int i = 0; i < DR_INPUTS; i++) inputs.at[i] = p->input[i];
    return inputs;
}

static inline dr_states states_of(double *const from[DR_STATES]) {
    dr_states states;
    for (int i = 0; i < DR_STATES; i++) states.at[i] = from[i];
    return states;
}

static inline dr_mutable_states mutable_states_of(double *const from[DR_STATES]) {
    dr_mutable_states states;
    for (int i = 0; i < DR_STATES; i++) states.at[i] = from[i];
    return states;
}

static inline void forward(problem *p) {
    dr_inputs inputs = inputs_of(p);
    dr_states initial = states_of(p->initial);
    dr_mutable_states final = mutable_states_of(p->final);
    dr_status status = dr_recurrence_forward(p->backend, &p->recurrence, &inputs, &initial, p->o, &final, NULL, p->workspace);
    if (status != DR_OK) fail_msg("forward: %s", dr_last_error());
}

static inline void backward_into(problem *p, const dr_input_gradients *gradients, const dr_mutable_states *d_initial) {
    dr_inputs inputs = inputs_of(p);
    dr_states initial = states_of(p->initial), d_final = states_of(p->d_final);
    void *workspace = workspace_of(p->memory.backward);
    dr_status status = dr_recurrence_backward(p->backend, &p->recurrence, &inputs, &initial, NULL, p->d_o, &d_final, gradients,
                                              d_initial, workspace);
    free(workspace);
    if (status != DR_OK) fail_msg("backward: %s", dr_last_error());
}

static inline void backward(problem *p) {
    dr_input_gradients gradients;
    for (int i = 0; i < DR_INPUTS; i++) gradients.at[i] = p->gradient[i];
    dr_mutable_states d_initial = mutable_states_of(p->d_initial);
    backward_into(p, &gradients, &d_initial);
}
static inline void fill(problem *p, dr_input input, double value, int64_t every) {
    for (int64_t i = 0; i < p->input_count[input]; i += every) p->input[input][i] = value;
}
static const shape packed_shape = {1, 3, 3, 2, 4, {3, 0, 2, 1}}; /* three value heads a key head, K > V */
static const shape token_shape = {2, 2, 2, 4, 1, {1}};
static const shape empty_shape = {1, 2, 2, 3, 2, {0, 0}};

typedef enum {
    AXIS_DECAY,
    AXIS_READ,
    AXIS_UNDECAYED,
    AXIS_WRITE,
    AXIS_GAIN,
    AXIS_VALUE,
    AXIS_ROWS,
    AXIS_REPEAT,
    AXIS_SCAN,
    AXIS_QUERY,
    AXIS_NORMALIZER,
    AXIS_TIED,
    AXIS_INTERVAL,
    AXIS_FUNCTION,
    AXIS_CG_START,
    AXES
} axis;

static const int options_of[AXES] = {
    [AXIS_DECAY] = 4,      [AXIS_READ] = 7, [AXIS_UNDECAYED] = 2, [AXIS_WRITE] = 7,    [AXIS_GAIN] = 6,
    [AXIS_VALUE] = 4,      [AXIS_ROWS] = 2, [AXIS_REPEAT] = 3,    [AXIS_SCAN] = 4,     [AXIS_QUERY] = 5,
    [AXIS_NORMALIZER] = 4, [AXIS_TIED] = 2, [AXIS_INTERVAL] = 3,  [AXIS_FUNCTION] = 2, [AXIS_CG_START] = 2,
};

static inline bool has_write(const dr_rule *rule, dr_write write) {
    return rule->row[0].write == write || (rule->rows == 2 && rule->row[1].write == write);
}

static inline bool has(const dr_rule *rule, axis which, int option) {
    for (int i = 0; i < rule->rows; i++) {
        const dr_row *row = &rule->row[i];
        if (which == AXIS_READ && (int)row->read == option) return true;
        if (which == AXIS_UNDECAYED && (int)row->undecayed == option) return true;
        if (which == AXIS_WRITE && (int)row->write == option) return true;
        if (which == AXIS_GAIN && (int)row->gain == option) return true;
        if (which == AXIS_VALUE && (int)row->value == option) return true;
    }
    bool squashes = has_write(rule, DR_WRITE_PRECONDITIONED);
    return (which == AXIS_DECAY && (int)rule->decay == option) || (which == AXIS_ROWS && rule->rows == option + 1) ||
           (which == AXIS_REPEAT && rule->repeat == option + 1) || (which == AXIS_SCAN && (int)rule->scan == option) ||
           (which == AXIS_QUERY && (int)rule->query == option) ||
           (which == AXIS_NORMALIZER && (int)rule->normalizer == option) ||
           (which == AXIS_TIED && (int)rule->tied_scan == option) ||
           (which == AXIS_CG_START && rule->query == DR_QUERY_CONJUGATE_GRADIENT && (int)rule->cg_start == option) ||
           (which == AXIS_INTERVAL && squashes && (int)rule->squash.interval == option) ||
           (which == AXIS_FUNCTION && squashes && (int)rule->squash.function == option);
}

/* Any options; the scan is there if something uses it, since else most would be refused. */
static inline dr_rule draw_rule(dr_random *random) {
    dr_rule rule = dr_rule_blank();
    rule.decay = dr_random_below(random, 4);
    rule.rows = 1 + (int)dr_random_below(random, 2);
    rule.repeat = dr_random_below(random, 4) ? 1 : 2 + (int)dr_random_below(random, 2);
    for (int i = 0; i < rule.rows; i++)
        rule.row[i] = (dr_row){.read = dr_random_below(random, 7),
                               .undecayed = dr_random_below(random, 3) == 0,
                               .write = dr_random_below(random, 7),
                               .gain = dr_random_below(random, 6),
                               .value = dr_random_below(random, 4)};
    rule.query = dr_random_below(random, 5);
    bool preconditioned = has_write(&rule, DR_WRITE_PRECONDITIONED);
    if (preconditioned || has_write(&rule, DR_WRITE_SHERMAN_MORRISON) || rule.query == DR_QUERY_RIDGE)
        rule.scan = DR_SCAN_DIAGONAL;
    else if (rule.query == DR_QUERY_EXACT || rule.query == DR_QUERY_CONJUGATE_GRADIENT)
        rule.scan = DR_SCAN_GRAM;
    else if (has_write(&rule, DR_WRITE_EXACT))
        rule.scan = DR_SCAN_INVERSE_GRAM;
    rule.cg_start = dr_random_below(random, 2);
    rule.cg_iters = MOST_KEYS; /* the gradient is that of the converged solve */
    if (preconditioned) rule.normalizer = dr_random_below(random, 4);
    rule.tied_scan = rule.scan == DR_SCAN_DIAGONAL && dr_random_below(random, 3) == 0;
    rule.squash.x = uniform(random, 1, 2);
    rule.squash.interval = dr_random_below(random, 3);
    rule.squash.function = dr_random_below(random, 2);
    rule.gain_eps = 2; /* keeps r.w + eps away from 0 */
    return rule;
}

/* A right rule that has this option. */
static inline dr_rule draw_rule_with(dr_random *random, axis which, int option) {
    for (int tries = 0; tries < 1000000; tries++) {
        dr_rule rule = draw_rule(random);
        if (has(&rule, which, option) && dr_rule_check(&rule) == DR_OK) return rule;
    }
    fail_msg("no rule has option %d of axis %d", option, (int)which);
    return dr_rule_blank();
}

static inline shape draw_shape(dr_random *random, const dr_rule *rule) {
    shape size = {.key_heads = 1 + (int64_t)dr_random_below(random, 2),
                  .key_size = 1 + (int64_t)dr_random_below(random, MOST_KEYS),
                  .value_size = 1 + (int64_t)dr_random_below(random, 3),
                  .sequences = 1 + (int)dr_random_below(random, 3)};
    size.value_heads = size.key_heads * (rule->tied_scan ? 1 : 1 + (int64_t)dr_random_below(random, 3));
    for (int i = 0; i < size.sequences; i++) size.lengths[i] = (int64_t)dr_random_below(random, 4);
    return size;
}

#endif
