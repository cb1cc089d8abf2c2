/* The reference recurrence: every gradient against differences, for the named rules and for random compositions over all axes,
 * also at the edges; what holds of any engine (decode, split, packed); and refused arguments, which write nothing. The random
 * cases start from a seed that is printed; DELTARULE_SEED chooses another. */
#include "backends/reference/reference.h"
#include "base/random.h"
#include "differences.h"
#include "ops/shapes.h"

#include <stdlib.h>
#include <string.h>

static const double tolerance = 1e-6;

enum { MOST_SEQUENCES = 6, MOST_KEYS = 3 };

static uint64_t seed(void) {
    const char *chosen = getenv("DELTARULE_SEED");
    return chosen ? strtoull(chosen, NULL, 10) : 20260;
}

/* ---- a recurrence with its data ------------------------------------------------------------------------------------- */

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

static double uniform(dr_random *random, double from, double to) {
    return from + (to - from) * dr_random_uniform(random);
}

/* Away from zero, so that 1/m has no steep slope; short, so that 1 + b r.w stays above 1/8 for every r and w of three. */
static double key_element(dr_random *random) {
    double size = uniform(random, 0.1, 0.3);
    return dr_random_below(random, 2) ? size : -size;
}

static double draw(dr_random *random, int input) {
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
static double *numbers(int64_t count) {
    double *x = malloc((size_t)(count + 1) * sizeof(double));
    assert_non_null(x);
    for (int64_t i = 0; i <= count; i++) x[i] = NAN;
    return x;
}

static double *normals(dr_random *random, int64_t count) {
    double *x = numbers(count);
    for (int64_t i = 0; i < count; i++) x[i] = dr_random_normal(random);
    return x;
}

static void *workspace_of(size_t bytes) {
    void *memory = malloc(bytes);
    assert_non_null(memory);
    memset(memory, 0xff, bytes);
    return memory;
}

static bool is_matrix(int state) {
    return state == DR_STATE_K || state == DR_STATE_P;
}

/* Symmetric and positive definite matrices of this side: at least 1/2 on the diagonal, beside which the rest is small. */
static void draw_matrices(dr_random *random, int64_t side, int64_t count, double *x) {
    for (double *matrix = x; matrix < x + count; matrix += side * side)
        for (int64_t i = 0; i < side; i++) {
            matrix[i * side + i] = uniform(random, 0.5, 1);
            for (int64_t j = 0; j < i; j++) matrix[i * side + j] = matrix[j * side + i] = uniform(random, -0.15, 0.15);
        }
}

static problem *problem_create(const dr_rule *rule, const shape *size, dr_random *random) {
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

static void problem_free(problem *p) {
    for (int i = 0; i < DR_INPUTS; i++) free(p->input[i]), free(p->gradient[i]);
    for (int i = 0; i < DR_STATES; i++) free(p->initial[i]), free(p->final[i]), free(p->d_initial[i]), free(p->d_final[i]);
    free(p->o), free(p->d_o), free(p->workspace);
    p->backend->ops->close(p->backend);
    free(p);
}

static dr_inputs inputs_of(const problem *p) {
    dr_inputs inputs;
    for (int i = 0; i < DR_INPUTS; i++) inputs.at[i] = p->input[i];
    return inputs;
}

static dr_states states_of(double *const from[DR_STATES]) {
    dr_states states;
    for (int i = 0; i < DR_STATES; i++) states.at[i] = from[i];
    return states;
}

static dr_mutable_states mutable_states_of(double *const from[DR_STATES]) {
    dr_mutable_states states;
    for (int i = 0; i < DR_STATES; i++) states.at[i] = from[i];
    return states;
}

static void forward(problem *p) {
    dr_inputs inputs = inputs_of(p);
    dr_states initial = states_of(p->initial);
    dr_mutable_states final = mutable_states_of(p->final);
    dr_status status = dr_recurrence_forward(p->backend, &p->recurrence, &inputs, &initial, p->o, &final, NULL, p->workspace);
    if (status != DR_OK) fail_msg("forward: %s", dr_last_error());
}

static void backward_into(problem *p, const dr_input_gradients *gradients, const dr_mutable_states *d_initial) {
    dr_inputs inputs = inputs_of(p);
    dr_states initial = states_of(p->initial), d_final = states_of(p->d_final);
    void *workspace = workspace_of(p->memory.backward);
    dr_status status = dr_recurrence_backward(p->backend, &p->recurrence, &inputs, &initial, NULL, p->d_o, &d_final, gradients,
                                              d_initial, workspace);
    free(workspace);
    if (status != DR_OK) fail_msg("backward: %s", dr_last_error());
}

static void backward(problem *p) {
    dr_input_gradients gradients;
    for (int i = 0; i < DR_INPUTS; i++) gradients.at[i] = p->gradient[i];
    dr_mutable_states d_initial = mutable_states_of(p->d_initial);
    backward_into(p, &gradients, &d_initial);
}

/* ---- gradients against differences ---------------------------------------------------------------------------------- */

/* L = <o, d_o> + <final, d_final>, by a variable moved in its own unit. The elements of a symmetric matrix move with their
 * mirror images; of anything else, mirror is the variable. */
typedef struct {
    problem *p;
    double *variable, *mirror, start, unit, moved;
} probe;

static double loss(void *context) {
    probe *at = context;
    problem *p = at->p;
    double sum = 0;
    *at->variable = *at->mirror = at->moved == 0 ? at->start : at->start + at->unit * at->moved;
    forward(p);
    for (int64_t i = 0; i < p->o_count; i++) sum += p->o[i] * p->d_o[i];
    for (int s = 0; s < DR_STATES; s++)
        for (int64_t i = 0; i < p->state_count[s]; i++) sum += p->final[s][i] * p->d_final[s][i];
    *at->variable = *at->mirror = at->start;
    return sum;
}

/* The element on the other side of the diagonal, of matrices of this side; 0: of no matrices. */
static int64_t mirror_of(int64_t i, int64_t side) {
    if (side == 0) return i;
    int64_t at = i % (side * side);
    return i - at + at % side * side + at / side;
}

/* Where a variable is -inf, a decay, the gradient is 0 to the bit. side: of symmetric matrices, or 0. */
static void assert_one_gradient(problem *p, const char *case_, const char *name, double *variables, int64_t count,
                                const double *gradient, double unit, int64_t side) {
    double scale = 1e-4, worst = 0;
    int64_t worst_at = 0;
    for (int64_t i = 0; i < count; i++) {
        if (isinf(variables[i])) {
            if (gradient[i] != 0)
                fail_msg("%s: the gradient of %s[%lld] at -inf is %g", case_, name, (long long)i, gradient[i]);
            continue;
        }
        int64_t j = mirror_of(i, side);
        probe at = {.p = p, .variable = &variables[i], .mirror = &variables[j], .start = variables[i], .unit = unit};
        double estimate = difference_estimate(loss, &at, &at.moved) / unit;
        double apart = fabs(gradient[i] + (i == j ? 0 : gradient[j]) - estimate);
        if (!isfinite(apart)) fail_msg("%s: the gradient of %s[%lld] is %g", case_, name, (long long)i, gradient[i]);
        scale = fmax(scale, fabs(estimate));
        if (apart > worst) {
            worst = apart;
            worst_at = i;
        }
    }
    if (worst > tolerance * scale)
        fail_msg("%s: the gradient of %s[%lld], %.12g, is %.3g from its difference, of at most %.3g", case_, name,
                 (long long)worst_at, gradient[worst_at], worst, tolerance * scale);
}

/* near_zero_scan: A is 0 in places, where the squash has eps = 1e-6 as its only length: steps must be far below it. */
static void assert_gradients(problem *p, const char *case_, bool near_zero_scan) {
    backward(p);
    for (int i = 0; i < DR_INPUTS; i++) {
        double unit = !near_zero_scan ? 1 : i == DR_INPUT_KEY ? 0.05 : i == DR_INPUT_SCAN_GAIN ? 5e-4 : 1;
        if (p->input[i])
            assert_one_gradient(p, case_, dr_input_name(i), p->input[i], p->input_count[i], p->gradient[i], unit, 0);
    }
    for (int i = 0; i < DR_STATES; i++) {
        double unit = near_zero_scan && i == DR_STATE_A ? 5e-5 : 1;
        if (p->initial[i])
            assert_one_gradient(p, case_, dr_state_name(i), p->initial[i], p->state_count[i], p->d_initial[i], unit,
                                is_matrix(i) ? p->recurrence.key_size : 0);
    }
}

/* ---- the named rules, at the edges ---------------------------------------------------------------------------------- */

static void fill(problem *p, dr_input input, double value, int64_t every) {
    for (int64_t i = 0; i < p->input_count[input]; i += every) p->input[input][i] = value;
}

static void no_edge(problem *p) {
    (void)p;
}

static void beta_0(problem *p) {
    fill(p, DR_INPUT_BETA, 0, 1);
    fill(p, DR_INPUT_ERASE_GAIN, 0, 1);
}

static void beta_2(problem *p) {
    fill(p, DR_INPUT_BETA, 2, 1);
    fill(p, DR_INPUT_ERASE_GAIN, 2, 1);
}

/* The normalized gain 1 / (key . key) has no value there unless something is added. */
static void zero_keys(problem *p) {
    p->rule.gain_eps = 1;
    fill(p, DR_INPUT_KEY, 0, 1);
    fill(p, DR_INPUT_ERASE_KEY, 0, 1);
}

/* no state, some elements of keys zero and some tokens without scan gain: A is 0 where either is so */
static void zero_scan(problem *p) {
    for (int64_t i = 0; i < p->state_count[DR_STATE_A]; i++) p->initial[DR_STATE_A][i] = 0;
    fill(p, DR_INPUT_KEY, 0, 2);
    fill(p, DR_INPUT_SCAN_GAIN, 0, 2);
}

static void zero_retention(problem *p) {
    fill(p, DR_INPUT_LOG_DECAY, -INFINITY, 2);
    fill(p, DR_INPUT_SCAN_LOG_DECAY, -INFINITY, 3);
}

static void strong_decay(problem *p) {
    fill(p, DR_INPUT_LOG_DECAY, -60, 2);
    fill(p, DR_INPUT_SCAN_LOG_DECAY, -60, 3);
}

static const struct {
    const char *name;
    void (*apply)(problem *);
    bool near_zero_scan;
} edges[] = {
    {"ordinary", no_edge, false},          {"beta 0", beta_0, false},  {"beta 2", beta_2, false},
    {"zero keys", zero_keys, false},       {"A = 0", zero_scan, true}, {"zero retention", zero_retention, false},
    {"decay to -60", strong_decay, false},
};
enum { EDGES = sizeof edges / sizeof edges[0] };

static const shape packed_shape = {1, 3, 3, 2, 4, {3, 0, 2, 1}}; /* three value heads a key head, K > V */
static const shape token_shape = {2, 2, 2, 4, 1, {1}};
static const shape empty_shape = {1, 2, 2, 3, 2, {0, 0}};

static void test_named_rules(void **state) {
    (void)state;
    const shape *shapes[] = {&packed_shape, &token_shape, &empty_shape};
    dr_random random = dr_random_start(1, 0);
    for (int r = 0; r < dr_rule_count(); r++)
        for (int e = 0; e < EDGES; e++)
            for (int s = 0; s < 3; s++) {
                char name[128];
                snprintf(name, sizeof name, "%s, %s, shape %d", dr_rule_at(r)->name, edges[e].name, s);
                problem *p = problem_create(dr_rule_at(r), shapes[s], &random);
                edges[e].apply(p);
                assert_gradients(p, name, edges[e].near_zero_scan);
                problem_free(p);
            }
}

/* ---- random compositions -------------------------------------------------------------------------------------------- */

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

static bool has_write(const dr_rule *rule, dr_write write) {
    return rule->row[0].write == write || (rule->rows == 2 && rule->row[1].write == write);
}

static bool has(const dr_rule *rule, axis which, int option) {
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
static dr_rule draw_rule(dr_random *random) {
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
static dr_rule draw_rule_with(dr_random *random, axis which, int option) {
    for (int tries = 0; tries < 1000000; tries++) {
        dr_rule rule = draw_rule(random);
        if (has(&rule, which, option) && dr_rule_check(&rule) == DR_OK) return rule;
    }
    fail_msg("no rule has option %d of axis %d", option, (int)which);
    return dr_rule_blank();
}

static shape draw_shape(dr_random *random, const dr_rule *rule) {
    shape size = {.key_heads = 1 + (int64_t)dr_random_below(random, 2),
                  .key_size = 1 + (int64_t)dr_random_below(random, MOST_KEYS),
                  .value_size = 1 + (int64_t)dr_random_below(random, 3),
                  .sequences = 1 + (int)dr_random_below(random, 3)};
    size.value_heads = size.key_heads * (rule->tied_scan ? 1 : 1 + (int64_t)dr_random_below(random, 3));
    for (int i = 0; i < size.sequences; i++) size.lengths[i] = (int64_t)dr_random_below(random, 4);
    return size;
}

static void test_compositions(void **state) {
    (void)state;
    enum { EACH = 6 };
    print_message("seed %llu\n", (unsigned long long)seed());
    dr_random random = dr_random_start(seed(), 1);
    for (int which = 0; which < AXES; which++)
        for (int option = 0; option < options_of[which]; option++)
            for (int i = 0; i < EACH; i++) {
                dr_rule rule = draw_rule_with(&random, which, option);
                shape size = draw_shape(&random, &rule);
                char name[512];
                dr_rule_equation(&rule, name, sizeof name);
                problem *p = problem_create(&rule, &size, &random);
                if (i == 0) fill(p, DR_INPUT_LOG_DECAY, -INFINITY, 2);
                assert_gradients(p, name, false);
                problem_free(p);
            }
}

/* The exponential gain where its formula is a series (beta key . key < 1/2), where it is a quotient, and at a zero key. */
static void test_exponential_gain(void **state) {
    (void)state;
    static const double factors[] = {0, 1e-3, 1, 2, 5, 12};
    dr_rule rule = dr_rule_blank();
    rule.rows = 1;
    rule.row[0] = (dr_row){DR_READ_KEY, false, DR_WRITE_KEY, DR_GAIN_EXPONENTIAL, DR_VALUE_GAIN};
    dr_random random = dr_random_start(11, 0);
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) {
        problem *p = problem_create(&rule, &packed_shape, &random);
        for (int64_t j = 0; j < p->input_count[DR_INPUT_KEY]; j++) p->input[DR_INPUT_KEY][j] *= factors[i];
        char name[64];
        snprintf(name, sizeof name, "exponential gain, keys times %g", factors[i]);
        assert_gradients(p, name, false);
        problem_free(p);
    }
}

/* ---- values by hand ------------------------------------------------------------------------------------------------- */

/* Two tokens of gdn with K = V = 1, scale 1: S1 = S0/2 + 0.5 * 2 (3 - 2 S0/2) with S0 = 4 is 2 - 1 = 1; then
 * S2 = 1 + 1 * 1 (5 - 1) = 5; o = S q. */
static void test_gdn_by_hand(void **state) {
    (void)state;
    dr_random random = dr_random_start(2, 0);
    problem *p = problem_create(dr_rule_find("gdn"), &(shape){1, 1, 1, 1, 1, {2}}, &random);
    p->recurrence.scale = 1;
    p->initial[DR_STATE_S][0] = 4;
    const double query[] = {10, 100}, key[] = {2, 1}, value[] = {3, 5}, beta[] = {0.5, 1}, log_decay[] = {log(0.5), 0};
    memcpy(p->input[DR_INPUT_QUERY], query, sizeof query);
    memcpy(p->input[DR_INPUT_KEY], key, sizeof key);
    memcpy(p->input[DR_INPUT_VALUE], value, sizeof value);
    memcpy(p->input[DR_INPUT_BETA], beta, sizeof beta);
    memcpy(p->input[DR_INPUT_LOG_DECAY], log_decay, sizeof log_decay);
    forward(p);
    assert_true(fabs(p->o[0] - 10) < 1e-14 && fabs(p->o[1] - 500) < 1e-12 && fabs(p->final[DR_STATE_S][0] - 5) < 1e-14);
    problem_free(p);
}

/* scale 0 stands for K^-1/2 */
static void test_scale(void **state) {
    (void)state;
    dr_random random = dr_random_start(3, 0);
    problem *p = problem_create(dr_rule_find("kda"), &(shape){1, 1, 4, 2, 1, {3}}, &random);
    forward(p);
    double *o = numbers(p->o_count);
    memcpy(o, p->o, (size_t)p->o_count * sizeof *o);
    p->recurrence.scale = 0.5;
    forward(p);
    assert_memory_equal(p->o, o, (size_t)p->o_count * sizeof *o);
    free(o);
    problem_free(p);
}

/* ---- what holds of any engine --------------------------------------------------------------------------------------- */

/* Pointers to the rows from first on of the inputs that have rows; the parameters as they are. */
static dr_inputs inputs_from(const problem *p, int64_t first) {
    dr_inputs inputs = inputs_of(p);
    for (int i = 0; i < DR_INPUTS; i++)
        if (p->input[i] && dr_recurrence_input_form(&p->recurrence, i).per_row)
            inputs.at[i] = p->input[i] + first * (p->input_count[i] / p->recurrence.layout.rows);
    return inputs;
}

/* Rules that between them use every axis: the named ones and some drawn. */
enum { DRAWN = 40 };
static dr_rule rule_number(int i, dr_random *random) {
    return i < dr_rule_count() ? *dr_rule_at(i) : draw_rule_with(random, AXIS_ROWS, i % 2);
}

static void copy_states(const problem *p, double *const from[DR_STATES], double *to[DR_STATES], int64_t sequence) {
    for (int s = 0; s < DR_STATES; s++) {
        int64_t each = p->state_count[s] / p->recurrence.layout.sequences;
        to[s] = p->initial[s] ? numbers(each) : NULL;
        if (to[s]) memcpy(to[s], from[s] + sequence * each, (size_t)each * sizeof(double));
    }
}

static void free_states(double *states[DR_STATES]) {
    for (int s = 0; s < DR_STATES; s++) free(states[s]);
}

/* Each sequence of a packed call, alone, gives the same bits; so does one token after the other through decode, and a split
 * anywhere with the state carried over: the reference runs the same operations in each. */
static void assert_pieces_agree(problem *p, int64_t piece, bool decode) {
    int64_t row_size = p->recurrence.value_heads * p->recurrence.value_size;
    double *o = numbers(p->o_count);
    for (int64_t i = 0; i < p->recurrence.layout.sequences; i++) {
        double *carried[DR_STATES];
        copy_states(p, p->initial, carried, i);
        for (int64_t row = p->cu_seqlens[i]; row < p->cu_seqlens[i + 1]; row += piece) {
            int64_t left = p->cu_seqlens[i + 1] - row, rows = left < piece ? left : piece;
            dr_recurrence part = p->recurrence;
            part.layout = (dr_layout){.sequences = 1, .rows = rows};
            dr_inputs inputs = inputs_from(p, row);
            dr_states initial = states_of(carried);
            dr_mutable_states final = mutable_states_of(carried);
            double *o_part = o + row * row_size;
            dr_status status =
                decode ? dr_recurrence_decode(p->backend, &part, &inputs, &final, o_part, p->workspace)
                       : dr_recurrence_forward(p->backend, &part, &inputs, &initial, o_part, &final, NULL, p->workspace);
            if (status != DR_OK) fail_msg("%s", dr_last_error());
        }
        for (int s = 0; s < DR_STATES; s++) {
            int64_t each = p->state_count[s] / p->recurrence.layout.sequences;
            if (carried[s]) assert_memory_equal(carried[s], p->final[s] + i * each, (size_t)each * sizeof(double));
        }
        free_states(carried);
    }
    assert_memory_equal(o, p->o, (size_t)p->o_count * sizeof(double));
    free(o);
}

static void test_pieces_agree(void **state) {
    (void)state;
    dr_random random = dr_random_start(seed(), 2);
    for (int i = 0; i < dr_rule_count() + DRAWN; i++) {
        dr_rule rule = rule_number(i, &random);
        shape size = {2, rule.tied_scan ? 2 : 4, 3, 2, 4, {5, 0, 1, 4}};
        problem *p = problem_create(&rule, &size, &random);
        if (i % 2) fill(p, DR_INPUT_LOG_DECAY, -INFINITY, 5);
        forward(p);
        assert_pieces_agree(p, 100, false);
        assert_pieces_agree(p, 2, false);
        assert_pieces_agree(p, 1, true);
        problem_free(p);
    }
}

/* The gradients of a packed call are those of each sequence alone, bit for bit. Parameters,
 * which all share, are left out. */
static void assert_sequences_have_own_gradients(problem *p) {
    backward(p);
    for (int64_t i = 0; i < p->recurrence.layout.sequences; i++) {
        int64_t first = p->cu_seqlens[i], rows = p->cu_seqlens[i + 1] - first, heads = p->recurrence.value_heads;
        dr_recurrence part = p->recurrence;
        part.layout = (dr_layout){.sequences = 1, .rows = rows};
        dr_inputs inputs = inputs_from(p, first);
        double *initial_of[DR_STATES], *d_final_of[DR_STATES], *d_initial_of[DR_STATES];
        copy_states(p, p->initial, initial_of, i);
        copy_states(p, p->d_final, d_final_of, i);
        copy_states(p, p->d_initial, d_initial_of, i); /* overwritten below */
        dr_states initial = states_of(initial_of), d_final = states_of(d_final_of);
        dr_mutable_states d_initial = mutable_states_of(d_initial_of);
        dr_input_gradients gradients = {{NULL}};
        for (int input = 0; input < DR_INPUTS; input++)
            if (p->input[input]) gradients.at[input] = numbers(dr_recurrence_input_count(&part, input));
        void *workspace = workspace_of(p->memory.backward);
        assert_int_equal(dr_recurrence_backward(p->backend, &part, &inputs, &initial, NULL,
                                                p->d_o + first * heads * p->recurrence.value_size, &d_final, &gradients,
                                                &d_initial, workspace),
                         DR_OK);
        free(workspace);
        for (int input = 0; input < DR_INPUTS; input++) {
            int64_t count = dr_recurrence_input_count(&part, input);
            if (p->input[input] && dr_recurrence_input_form(&part, input).per_row && rows > 0)
                assert_memory_equal(gradients.at[input], p->gradient[input] + first * (count / rows),
                                    (size_t)count * sizeof(double));
            free(gradients.at[input]);
        }
        for (int s = 0; s < DR_STATES; s++) {
            int64_t each = p->state_count[s] / p->recurrence.layout.sequences;
            if (p->initial[s]) assert_memory_equal(d_initial_of[s], p->d_initial[s] + i * each, (size_t)each * sizeof(double));
        }
        free_states(initial_of), free_states(d_final_of), free_states(d_initial_of);
    }
}

static void test_sequences_have_own_gradients(void **state) {
    (void)state;
    dr_random random = dr_random_start(seed(), 4);
    for (int i = 0; i < dr_rule_count() + DRAWN; i++) {
        dr_rule rule = rule_number(i, &random);
        shape size = {2, rule.tied_scan ? 2 : 4, 3, 2, 4, {3, 0, 1, 2}};
        problem *p = problem_create(&rule, &size, &random);
        assert_sequences_have_own_gradients(p);
        problem_free(p);
    }
}

/* Sequences of equal length without cu_seqlens are the same as with. */
static void test_equal_lengths_need_no_cu_seqlens(void **state) {
    (void)state;
    dr_random random = dr_random_start(4, 0);
    problem *p = problem_create(dr_rule_find("pkda"), &(shape){2, 4, 3, 2, 3, {4, 4, 4}}, &random);
    forward(p);
    double *o = numbers(p->o_count);
    memcpy(o, p->o, (size_t)p->o_count * sizeof *o);
    p->recurrence.layout.cu_seqlens = NULL;
    forward(p);
    assert_memory_equal(p->o, o, (size_t)p->o_count * sizeof *o);
    free(o);
    problem_free(p);
}

/* A sequence without tokens passes its states on, and their gradients back. */
static void test_empty_sequences(void **state) {
    (void)state;
    dr_random random = dr_random_start(5, 0);
    for (int r = 0; r < dr_rule_count(); r++) {
        problem *p = problem_create(dr_rule_at(r), &empty_shape, &random);
        forward(p);
        backward(p);
        for (int s = 0; s < DR_STATES; s++)
            if (p->initial[s]) {
                assert_memory_equal(p->final[s], p->initial[s], (size_t)p->state_count[s] * sizeof(double));
                assert_memory_equal(p->d_initial[s], p->d_final[s], (size_t)p->state_count[s] * sizeof(double));
            }
        for (int i = 0; i < DR_INPUTS; i++) /* parameters have a gradient, of nothing */
            for (int64_t j = 0; j < p->input_count[i]; j++) assert_true(p->gradient[i][j] == 0);
        problem_free(p);
    }
}

/* Missing states are zero ones; missing cotangents too. */
static void test_missing_states_are_zero(void **state) {
    (void)state;
    dr_random random = dr_random_start(6, 0);
    problem *p = problem_create(dr_rule_find("pgdn"), &packed_shape, &random);
    for (int s = 0; s < DR_STATES; s++) {
        if (!p->initial[s]) continue;
        memset(p->initial[s], 0, (size_t)p->state_count[s] * sizeof(double));
        memset(p->d_final[s], 0, (size_t)p->state_count[s] * sizeof(double));
    }
    forward(p);
    backward(p);
    double *o = numbers(p->o_count), *gradient[DR_INPUTS] = {NULL};
    dr_inputs inputs = inputs_of(p);
    dr_input_gradients gradients = {{NULL}};
    for (int i = 0; i < DR_INPUTS; i++)
        if (p->input[i]) gradients.at[i] = gradient[i] = numbers(p->input_count[i]);
    assert_int_equal(dr_recurrence_forward(p->backend, &p->recurrence, &inputs, NULL, o, NULL, NULL, p->workspace), DR_OK);
    assert_memory_equal(o, p->o, (size_t)p->o_count * sizeof(double));
    void *workspace = workspace_of(p->memory.backward);
    assert_int_equal(
        dr_recurrence_backward(p->backend, &p->recurrence, &inputs, NULL, NULL, p->d_o, NULL, &gradients, NULL, workspace),
        DR_OK);
    for (int i = 0; i < DR_INPUTS; i++) {
        if (gradient[i]) assert_memory_equal(gradient[i], p->gradient[i], (size_t)p->input_count[i] * sizeof(double));
        free(gradient[i]);
    }
    free(workspace);
    free(o);
    problem_free(p);
}

/* Each gradient alone, all others not wanted, has the same bits as with them. */
static void test_any_gradient_alone(void **state) {
    (void)state;
    dr_random random = dr_random_start(seed(), 3);
    for (int r = 0; r < dr_rule_count() + DRAWN; r++) {
        dr_rule rule = rule_number(r, &random);
        problem *p = problem_create(&rule, &(shape){1, 1, 2, 2, 2, {2, 1}}, &random);
        backward(p);
        for (int wanted = 0; wanted < DR_INPUTS + DR_STATES; wanted++) {
            dr_input_gradients gradients = {{NULL}};
            dr_mutable_states d_initial = {{NULL}};
            bool input = wanted < DR_INPUTS;
            int s = wanted - DR_INPUTS;
            int64_t count = input ? p->input_count[wanted] : p->state_count[s];
            if (count == 0) continue;
            double *alone = numbers(count);
            if (input)
                gradients.at[wanted] = alone;
            else
                d_initial.at[s] = alone;
            backward_into(p, &gradients, &d_initial);
            assert_memory_equal(alone, input ? p->gradient[wanted] : p->d_initial[s], (size_t)count * sizeof(double));
            free(alone);
        }
        problem_free(p);
    }
}

static void test_kernel(void **state) {
    (void)state;
    dr_random random = dr_random_start(7, 0);
    problem *p = problem_create(dr_rule_find("gdn"), &token_shape, &random);
    char text[64];
    for (int decode = 0; decode <= 1; decode++) {
        assert_int_equal(dr_recurrence_kernel(p->backend, &p->recurrence, decode, text, sizeof text), 19);
        assert_string_equal(text, "reference recurrent");
    }
    assert_int_equal(dr_recurrence_kernel(NULL, &p->recurrence, true, text, sizeof text), -1);
    problem_free(p);
}

/* ---- refused arguments ---------------------------------------------------------------------------------------------- */

/* Everything that the calls take, right as it is; a test changes one thing. */
typedef struct {
    dr_backend *backend;
    dr_recurrence recurrence;
    dr_inputs inputs;
    dr_states initial, d_final;
    dr_mutable_states final, d_initial;
    dr_input_gradients gradients;
    double *o, *d_o;
    void *workspace;
    const dr_recurrence *descriptor; /* &recurrence, or NULL */
} call;

static void call_of(problem *p, call *c) {
    *c = (call){.backend = p->backend,
                .recurrence = p->recurrence,
                .inputs = inputs_of(p),
                .initial = states_of(p->initial),
                .d_final = states_of(p->d_final),
                .final = mutable_states_of(p->final),
                .d_initial = mutable_states_of(p->d_initial),
                .o = p->o,
                .d_o = p->d_o,
                .descriptor = &c->recurrence};
    for (int i = 0; i < DR_INPUTS; i++) c->gradients.at[i] = p->gradient[i];
    c->workspace = p->workspace;
}

static dr_status call_plan(call *c) {
    dr_recurrence_memory memory = {1, 2, 3, 4};
    dr_status status = dr_recurrence_plan(c->backend, c->descriptor, &memory);
    if (status != DR_OK) assert_true(memory.forward == 1 && memory.backward == 2 && memory.saved == 3 && memory.decode == 4);
    return status;
}

static dr_status call_forward(call *c) {
    return dr_recurrence_forward(c->backend, c->descriptor, &c->inputs, &c->initial, c->o, &c->final, NULL, c->workspace);
}

static dr_status call_backward(call *c) {
    return dr_recurrence_backward(c->backend, c->descriptor, &c->inputs, &c->initial, NULL, c->d_o, &c->d_final, &c->gradients,
                                  &c->d_initial, c->workspace);
}

static dr_status call_decode(call *c) {
    return dr_recurrence_decode(c->backend, c->descriptor, &c->inputs, &c->final, c->o, c->workspace);
}

static void assert_untouched(const double *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) assert_true(isnan(x[i]));
}

static void assert_refused(problem *p, dr_status status, const char *reason) {
    if (status != DR_ERROR_ARGUMENT) fail_msg("%s, not refused: %s", dr_status_name(status), reason);
    if (!strstr(dr_last_error(), reason)) fail_msg("\"%s\" does not say \"%s\"", dr_last_error(), reason);
    assert_untouched(p->o, p->o_count);
    for (int i = 0; i < DR_INPUTS; i++) assert_untouched(p->gradient[i], p->input_count[i]);
    for (int i = 0; i < DR_STATES; i++) {
        assert_untouched(p->final[i], p->state_count[i]);
        assert_untouched(p->d_initial[i], p->state_count[i]);
    }
}

#define REFUSED(which, change, reason)                                                                                         \
    do {                                                                                                                       \
        call c;                                                                                                                \
        call_of(p, &c);                                                                                                        \
        change;                                                                                                                \
        assert_refused(p, which(&c), reason);                                                                                  \
    } while (0)

#define ALL_REFUSED(change, reason)                                                                                            \
    do {                                                                                                                       \
        REFUSED(call_plan, change, reason);                                                                                    \
        REFUSED(call_forward, change, reason);                                                                                 \
        REFUSED(call_backward, change, reason);                                                                                \
        REFUSED(call_decode, change, reason);                                                                                  \
    } while (0)

static void test_refuses_bad_descriptors(void **state) {
    (void)state;
    dr_random random = dr_random_start(8, 0);
    problem *p = problem_create(dr_rule_find("pgdn"), &(shape){2, 4, 3, 2, 2, {1, 1}}, &random);
    dr_rule senseless = p->rule, tied = p->rule;
    senseless.scan = DR_SCAN_NONE;
    tied.tied_scan = true;
    const int64_t falling[] = {0, 3, 2}, late[] = {1, 1, 2}, short_[] = {0, 1, 1};
    ALL_REFUSED(c.backend = NULL, "backend");
    ALL_REFUSED(c.descriptor = NULL, "recurrence is missing");
    ALL_REFUSED(c.recurrence.rule = NULL, "no rule");
    ALL_REFUSED(c.recurrence.rule = &senseless, "scan diagonal");
    ALL_REFUSED(c.recurrence.rule = &tied, "tied_scan needs as many value heads as key heads, not 4 and 2");
    ALL_REFUSED(c.recurrence.layout.sequences = 0, "sequence");
    ALL_REFUSED(c.recurrence.layout.rows = -1, "-1");
    ALL_REFUSED((c.recurrence.layout.cu_seqlens = NULL, c.recurrence.layout.rows = 3), "3");
    ALL_REFUSED(c.recurrence.layout.cu_seqlens = falling, "cu_seqlens");
    ALL_REFUSED(c.recurrence.layout.cu_seqlens = late, "cu_seqlens");
    ALL_REFUSED(c.recurrence.layout.cu_seqlens = short_, "cu_seqlens");
    ALL_REFUSED(c.recurrence.key_heads = 0, "key heads 0");
    ALL_REFUSED(c.recurrence.key_heads = 3, "4 value heads are not a multiple of 3");
    ALL_REFUSED(c.recurrence.value_heads = -4, "value heads -4");
    ALL_REFUSED(c.recurrence.key_size = 0, "key size 0");
    ALL_REFUSED(c.recurrence.value_size = 0, "value size 0");
    ALL_REFUSED(c.recurrence.key_size = INT64_MAX / 4, "more elements than can be addressed");
    ALL_REFUSED(c.recurrence.value_size = INT64_MAX / 16, "more elements than can be addressed");
    ALL_REFUSED(c.recurrence.scale = NAN, "scale");
    ALL_REFUSED(c.recurrence.scale = INFINITY, "scale");
    ALL_REFUSED(c.recurrence.path = DR_PATH_CHUNKWISE + 1, "path 3");
    ALL_REFUSED(c.recurrence.chunk = -1, "chunk -1");
    assert_int_equal(dr_recurrence_plan(p->backend, &p->recurrence, NULL), DR_ERROR_ARGUMENT);
    problem_free(p);
}

static void test_refuses_bad_pointers(void **state) {
    (void)state;
    dr_random random = dr_random_start(9, 0);
    problem *p = problem_create(dr_rule_find("gdn"), &(shape){2, 4, 3, 2, 2, {1, 1}}, &random);
    double other = 0;
    REFUSED(call_forward, c.inputs.at[DR_INPUT_BETA] = NULL, "input beta is missing");
    REFUSED(call_backward, c.inputs.at[DR_INPUT_LOG_DECAY] = NULL, "input log_decay is missing");
    REFUSED(call_decode, c.inputs.at[DR_INPUT_QUERY] = NULL, "input query is missing");
    REFUSED(call_forward, c.inputs.at[DR_INPUT_RATE] = &other, "input rate is given, but the rule does not use it");
    REFUSED(call_forward, c.o = NULL, "output o");
    REFUSED(call_decode, c.o = NULL, "output o");
    REFUSED(call_backward, c.d_o = NULL, "d_o");
    REFUSED(call_forward, c.initial.at[DR_STATE_A] = &other, "initial state A is given, but the rule does not carry it");
    REFUSED(call_forward, c.final.at[DR_STATE_A] = &other, "final state A");
    REFUSED(call_backward, c.d_final.at[DR_STATE_A] = &other, "final state A");
    REFUSED(call_backward, c.d_initial.at[DR_STATE_A] = &other, "initial state A");
    REFUSED(call_backward, c.gradients.at[DR_INPUT_RATE] = &other, "gradient of rate");
    REFUSED(call_decode, c.final.at[DR_STATE_S] = NULL, "state S in place");
    REFUSED(call_forward, c.workspace = NULL, "workspace");
    REFUSED(call_backward, c.workspace = NULL, "workspace");
    REFUSED(call_decode, c.workspace = NULL, "workspace");
    call c;
    call_of(p, &c);
    assert_refused(p, dr_recurrence_forward(c.backend, &c.recurrence, NULL, NULL, c.o, NULL, NULL, c.workspace), "inputs");
    assert_refused(p, dr_recurrence_decode(c.backend, &c.recurrence, &c.inputs, NULL, c.o, c.workspace), "state S in place");
    assert_refused(
        p, dr_recurrence_backward(c.backend, &c.recurrence, &c.inputs, NULL, NULL, c.d_o, NULL, NULL, NULL, c.workspace),
        "gradients");
    assert_true(other == 0);
    problem_free(p);
}

static void test_decode_takes_one_token_each(void **state) {
    (void)state;
    dr_random random = dr_random_start(10, 0);
    problem *p = problem_create(dr_rule_find("gdn"), &(shape){1, 1, 2, 2, 3, {2, 0, 1}}, &random);
    REFUSED(call_decode, (void)0, "sequence 1 begins at row 2");
    problem_free(p);
    p = problem_create(dr_rule_find("gdn"), &(shape){1, 1, 2, 2, 2, {2, 2}}, &random);
    REFUSED(call_decode, (void)0, "one token for each sequence, not 4 for 2");
    problem_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_named_rules),
        cmocka_unit_test(test_compositions),
        cmocka_unit_test(test_exponential_gain),
        cmocka_unit_test(test_gdn_by_hand),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_pieces_agree),
        cmocka_unit_test(test_sequences_have_own_gradients),
        cmocka_unit_test(test_equal_lengths_need_no_cu_seqlens),
        cmocka_unit_test(test_empty_sequences),
        cmocka_unit_test(test_missing_states_are_zero),
        cmocka_unit_test(test_any_gradient_alone),
        cmocka_unit_test(test_kernel),
        cmocka_unit_test(test_refuses_bad_descriptors),
        cmocka_unit_test(test_refuses_bad_pointers),
        cmocka_unit_test(test_decode_takes_one_token_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
