/* The reference recurrence: every gradient against differences, for the named rules and for random compositions over all axes,
 * also at the edges; and values by hand. */
#include "reference_problem.h"

static const double tolerance = 1e-6;

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
        const double whole = gradient[i] + (i == j ? 0 : gradient[j]);
        const double estimate = difference_estimate(loss, &at, &at.moved) / at.unit;
        double apart = fabs(whole - estimate);
        if (apart > tolerance * fmax(scale, fabs(estimate))) {
            /* near a pole the formula's error is what they are apart: it falls with the fourth power of the step */
            at.unit /= 8;
            apart = fmin(apart, fabs(whole - difference_estimate(loss, &at, &at.moved) / at.unit));
        }
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

/* The normalized gain 1 / (key . key) jumps there unless something is added: test_zero_key_changes_nothing. */
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

/* A zero key where the gain is a quotient by key . key: the token decays the state and does nothing else, and neither its key
 * nor its value gets a gradient. */
static void test_zero_key_changes_nothing(void **state) {
    (void)state;
    dr_rule rules[4];
    dr_random random = dr_random_start(12, 0);
    for (int i = 0; i < 4; i++) {
        rules[i] = dr_rule_blank();
        rules[i].rows = 1;
        rules[i].row[0] = (dr_row){DR_READ_KEY, false, DR_WRITE_PRECONDITIONED, DR_GAIN_BETA, DR_VALUE_GAIN};
        rules[i].decay = DR_DECAY_SCALAR;
        rules[i].scan = DR_SCAN_DIAGONAL;
    }
    rules[0] = *dr_rule_find("nlms");
    rules[1].normalizer = DR_NORMALIZER_INVERSE;
    rules[2].normalizer = DR_NORMALIZER_DISCOUNTED;
    rules[3].row[0].gain = DR_GAIN_NORMALIZED;
    for (int i = 0; i < 4; i++) {
        problem *p = problem_create(&rules[i], &(shape){1, 1, 3, 2, 1, {1}}, &random);
        fill(p, DR_INPUT_KEY, 0, 1);
        if (i == 2) fill(p, DR_INPUT_LOG_DECAY, -INFINITY, 1); /* alpha + beta m is 0 only there */
        forward(p);
        const double alpha = p->input[DR_INPUT_LOG_DECAY] ? exp(p->input[DR_INPUT_LOG_DECAY][0]) : 1;
        for (int64_t j = 0; j < p->state_count[DR_STATE_S]; j++)
            assert_true(p->final[DR_STATE_S][j] == alpha * p->initial[DR_STATE_S][j]);
        backward(p);
        for (int64_t j = 0; j < p->input_count[DR_INPUT_KEY]; j++) assert_true(p->gradient[DR_INPUT_KEY][j] == 0);
        for (int64_t j = 0; j < p->input_count[DR_INPUT_VALUE]; j++) assert_true(p->gradient[DR_INPUT_VALUE][j] == 0);
        for (int in = 0; in < DR_INPUTS; in++)
            for (int64_t j = 0; j < p->input_count[in]; j++) assert_true(isfinite(p->gradient[in][j]));
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_named_rules),      cmocka_unit_test(test_compositions),
        cmocka_unit_test(test_exponential_gain), cmocka_unit_test(test_zero_key_changes_nothing),
        cmocka_unit_test(test_gdn_by_hand),      cmocka_unit_test(test_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
