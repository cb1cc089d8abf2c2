/* Gram matrices, their inverses and the systems they stand for, by what must hold of them on the reference and on the CPU: the
 * inverse is one, exact write keys and exact queries reach the same least squares by different ways, conjugate gradients take
 * the textbook's steps, and a zero inverse is the one before the first token. */
#include "base/random.h"
#include "recurrence/problem.h"
#include <deltarule/backend.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BACKENDS = 2, KEYS = 5, VALUES = 4, HEADS = 2, VALUE_HEADS = 4 };

static const struct {
    const char *name;
    double forward, backward;
} backends[BACKENDS] = {{"reference", 1e-11, 1e-10}, {"cpu", 2e-5, 1e-4}};

static const int64_t cu_seqlens[] = {0, 23, 23, 24, 60};
static const dr_recurrence sizes = {.layout = {.sequences = 4, .rows = 60, .cu_seqlens = cu_seqlens},
                                    .key_heads = HEADS,
                                    .value_heads = VALUE_HEADS,
                                    .key_size = KEYS,
                                    .value_size = VALUES};

static const dr_row weighted = {.read = DR_READ_NONE, .write = DR_WRITE_KEY, .gain = DR_GAIN_BETA, .value = DR_VALUE_GAIN};
static const dr_row exact = {.read = DR_READ_KEY, .write = DR_WRITE_EXACT, .gain = DR_GAIN_BETA, .value = DR_VALUE_GAIN};

static dr_rule rule_of(dr_row row, dr_scan scan, dr_query query) {
    dr_rule rule = dr_rule_blank();
    rule.row[0] = row;
    rule.rows = 1;
    rule.scan = scan;
    rule.query = query;
    return rule;
}

static dr_backend *open_backend(int which) {
    dr_backend *backend = NULL;
    if (dr_backend_open(backends[which].name, &(dr_backend_options){.threads = 2}, &backend) != DR_OK)
        fail_msg("%s", dr_last_error());
    return backend;
}

static result run(dr_backend *backend, const problem *p) {
    result r;
    fault what;
    if (!problem_run(backend, p, DR_PATH_BEST, 7, true, &r, &what)) fail_msg("%s", what.text);
    return r;
}

static void assert_near(const char *what, const double *got, const double *want, int64_t count, double tolerance) {
    double error = error_of(got, want, count, 1e-6);
    if (!(error <= tolerance)) fail_msg("%s: error %.3g of at most %.3g", what, error, tolerance);
}

static void clear(double *x, int64_t count) {
    if (x) memset(x, 0, (size_t)count * sizeof *x);
}

/* ---- least squares -------------------------------------------------------------------------------------------------- */

/* From nothing, S_t of exact write keys is (K_t + Diag(ridge))^-1 C_t, the ridge regression of the values on the keys, with
 * C_t = sum of b k v^T what linear attention stores: so both give the same o, and the same gradients. */
static void test_two_ways_to_least_squares(void **state) {
    (void)state;
    dr_rule query = rule_of(weighted, DR_SCAN_GRAM, DR_QUERY_EXACT),
            write = rule_of(exact, DR_SCAN_INVERSE_GRAM, DR_QUERY_PLAIN);
    for (int b = 0; b < BACKENDS; b++) {
        dr_random random = dr_random_start(21, 0);
        dr_backend *backend = open_backend(b);
        problem *p = problem_create(&query, &sizes, false, &random), *q = problem_create(&write, &sizes, false, &random);
        for (int i = 0; i < DR_INPUTS; i++)
            if (p->input[i]) memcpy(q->input[i], p->input[i], (size_t)p->input_count[i] * sizeof(double));
        memcpy(q->d_o, p->d_o, (size_t)p->o_count * sizeof(double));
        for (int s = 0; s < DR_STATES; s++) {
            clear(p->initial[s], p->state_count[s]), clear(p->d_final[s], p->state_count[s]);
            clear(q->initial[s], q->state_count[s]), clear(q->d_final[s], q->state_count[s]);
        }
        result by_query = run(backend, p), by_write = run(backend, q);
        assert_near("o", by_write.o, by_query.o, p->o_count, backends[b].forward);
        for (int i = 0; i < DR_INPUTS; i++)
            if (p->input[i])
                assert_near(dr_input_name((dr_input)i), by_write.gradient[i], by_query.gradient[i], p->input_count[i],
                            backends[b].backward);

        /* and P (K + Diag(ridge)) = I */
        for (int64_t head = 0; head < sizes.layout.sequences * VALUE_HEADS; head++) {
            const double *P = by_write.final[DR_STATE_P] + head * KEYS * KEYS,
                         *K = by_query.final[DR_STATE_K] + head * KEYS * KEYS;
            const double *ridge = p->input[DR_INPUT_RIDGE] + head % VALUE_HEADS / (VALUE_HEADS / HEADS) * KEYS;
            for (int64_t i = 0; i < KEYS; i++)
                for (int64_t j = 0; j < KEYS; j++) {
                    double sum = P[i * KEYS + j] * ridge[j];
                    for (int64_t c = 0; c < KEYS; c++) sum += P[i * KEYS + c] * K[c * KEYS + j];
                    if (!(fabs(sum - (i == j)) <= backends[b].forward))
                        fail_msg("P (K + ridge) is not I: off by %g", sum - (i == j));
                }
        }
        result_free(&by_query), result_free(&by_write);
        problem_free(p), problem_free(q);
        dr_backend_close(backend);
    }
}

/* ---- the state before the first token ------------------------------------------------------------------------------- */

/* A zero P and Diag(1 / ridge) are the same bits, forward and backward; but only with the first is the ridge an input. */
static void test_zero_inverse(void **state) {
    (void)state;
    dr_rule rule = rule_of(exact, DR_SCAN_INVERSE_GRAM, DR_QUERY_PLAIN);
    for (int b = 0; b < BACKENDS; b++) {
        dr_random random = dr_random_start(22, 0);
        dr_backend *backend = open_backend(b);
        problem *zero = problem_create(&rule, &sizes, false, &random), *given = problem_copy(zero);
        for (int64_t i = 0; i < zero->input_count[DR_INPUT_RIDGE]; i++) /* whose inverse is exact in float32 */
            zero->input[DR_INPUT_RIDGE][i] = given->input[DR_INPUT_RIDGE][i] = i % 2 ? 0.5 : 2;
        clear(zero->initial[DR_STATE_P], zero->state_count[DR_STATE_P]);
        clear(given->initial[DR_STATE_P], zero->state_count[DR_STATE_P]);
        for (int64_t i = 0; i < zero->state_count[DR_STATE_P]; i += KEYS * KEYS)
            for (int64_t c = 0; c < KEYS; c++) {
                int64_t key_head = i / (KEYS * KEYS) % VALUE_HEADS / (VALUE_HEADS / HEADS);
                given->initial[DR_STATE_P][i + c * KEYS + c] = 1 / zero->input[DR_INPUT_RIDGE][key_head * KEYS + c];
            }
        result from_zero = run(backend, zero), from_given = run(backend, given);
        assert_memory_equal(from_zero.o, from_given.o, (size_t)zero->o_count * sizeof(double));
        for (int s = 0; s < DR_STATES; s++) {
            if (!zero->initial[s]) continue;
            assert_memory_equal(from_zero.final[s], from_given.final[s], (size_t)zero->state_count[s] * sizeof(double));
            assert_memory_equal(from_zero.d_initial[s], from_given.d_initial[s], (size_t)zero->state_count[s] * sizeof(double));
        }
        double sum[HEADS * KEYS] = {0}; /* of -dP_ii / ridge^2, over sequences and value heads */
        for (int64_t i = 0; i < zero->state_count[DR_STATE_P]; i += KEYS * KEYS)
            for (int64_t c = 0; c < KEYS; c++) {
                int64_t at = i / (KEYS * KEYS) % VALUE_HEADS / (VALUE_HEADS / HEADS) * KEYS + c;
                double ridge = zero->input[DR_INPUT_RIDGE][at];
                sum[at] -= from_zero.d_initial[DR_STATE_P][i + c * KEYS + c] / (ridge * ridge);
            }
        assert_near("d_ridge", from_zero.gradient[DR_INPUT_RIDGE], sum, HEADS * KEYS, 1e-6);
        for (int64_t i = 0; i < HEADS * KEYS; i++) assert_true(from_given.gradient[DR_INPUT_RIDGE][i] == 0);
        result_free(&from_zero), result_free(&from_given);
        problem_free(zero), problem_free(given);
        dr_backend_close(backend);
    }
}

/* ---- conjugate gradients -------------------------------------------------------------------------------------------- */

/* x after some steps on (K + Diag(ridge)) x = b, written out in the order of flash-linear-attention's loop */
static void textbook(const dr_rule *rule, const double *K, const double *ridge, const double *b, double *x) {
    double r[KEYS], p[KEYS], old = 0;
    for (int i = 0; i < KEYS; i++) x[i] = rule->cg_start == DR_CG_JACOBI ? b[i] / (K[i * KEYS + i] + ridge[i]) : 0;
    for (int i = 0; i < KEYS; i++) {
        r[i] = b[i] - ridge[i] * x[i];
        for (int j = 0; j < KEYS; j++) r[i] -= K[i * KEYS + j] * x[j];
        p[i] = r[i];
        old += r[i] * r[i];
    }
    for (int step = 0; step < rule->cg_iters; step++) {
        double q[KEYS], curvature = 0, new = 0;
        for (int i = 0; i < KEYS; i++) {
            q[i] = ridge[i] * p[i];
            for (int j = 0; j < KEYS; j++) q[i] += K[i * KEYS + j] * p[j];
            curvature += p[i] * q[i];
        }
        double alpha = old / (curvature + rule->cg_eps);
        for (int i = 0; i < KEYS; i++) {
            x[i] += alpha * p[i];
            r[i] -= alpha * q[i];
            new += r[i] * r[i];
        }
        double beta = new / (old + rule->cg_eps);
        for (int i = 0; i < KEYS; i++) p[i] = r[i] + beta * p[i];
        old = new;
    }
}

/* One token that writes nothing and S = I, so that o = q~. */
static problem *bare_system(const dr_rule *rule, dr_random *random) {
    dr_recurrence one = {.layout = {.sequences = 1, .rows = 1}, .key_heads = 1, .value_heads = 1, .key_size = KEYS};
    one.value_size = KEYS;
    one.scale = 1;
    problem *p = problem_create(rule, &one, false, random);
    clear(p->input[DR_INPUT_BETA], 1);
    clear(p->initial[DR_STATE_S], KEYS * KEYS);
    for (int i = 0; i < KEYS; i++) p->initial[DR_STATE_S][i * KEYS + i] = 1;
    for (int i = 0; i < KEYS; i++) /* K0 of order one, so that a step is far from the solution */
        for (int j = 0; j <= i; j++) {
            double x = i == j ? 1 + i : 0.5 * sin(3 * i + j);
            p->initial[DR_STATE_K][i * KEYS + j] = p->initial[DR_STATE_K][j * KEYS + i] = (float)x;
        }
    return p;
}

static void test_steps_of_conjugate_gradients(void **state) {
    (void)state;
    static const double eps[] = {0, 1e-5, 0.1};
    dr_rule rule = rule_of(weighted, DR_SCAN_GRAM, DR_QUERY_CONJUGATE_GRADIENT);
    for (int b = 0; b < BACKENDS; b++) {
        dr_backend *backend = open_backend(b);
        dr_random random = dr_random_start(23, 0);
        for (int start = DR_CG_ZERO; start <= DR_CG_JACOBI; start++)
            for (int e = 0; e < 3; e++)
                for (int steps = 1; steps <= KEYS; steps++) {
                    rule.cg_start = (dr_cg_start)start;
                    rule.cg_eps = eps[e];
                    rule.cg_iters = steps;
                    problem *p = bare_system(&rule, &random);
                    double x[KEYS];
                    textbook(&rule, p->initial[DR_STATE_K], p->input[DR_INPUT_RIDGE], p->input[DR_INPUT_QUERY], x);
                    result r = run(backend, p);
                    assert_near("x", r.o, x, KEYS, b == 0 ? 1e-12 : 1e-6);
                    result_free(&r);
                    problem_free(p);
                }
        dr_backend_close(backend);
    }
}

/* With as many steps as key channels, or more, all is as with the exact query; and nothing turns to NaN where a query is zero
 * or the first iterate already is the solution. */
static void test_converged_conjugate_gradients(void **state) {
    (void)state;
    for (int b = 0; b < BACKENDS; b++)
        for (int start = DR_CG_ZERO; start <= DR_CG_JACOBI; start++)
            for (int steps = KEYS; steps <= 40; steps += 35) {
                dr_random random = dr_random_start(24, 0);
                dr_backend *backend = open_backend(b);
                dr_rule rule = rule_of(weighted, DR_SCAN_GRAM, DR_QUERY_EXACT);
                rule.decay = DR_DECAY_SCALAR;
                problem *p = problem_create(&rule, &sizes, false, &random);
                clear(p->input[DR_INPUT_QUERY], HEADS * KEYS);
                clear(p->initial[DR_STATE_K], KEYS * KEYS); /* with no key yet the system is diagonal */
                clear(p->input[DR_INPUT_BETA], 1);
                result want = run(backend, p);
                p->rule.query = DR_QUERY_CONJUGATE_GRADIENT;
                p->rule.cg_start = (dr_cg_start)start;
                p->rule.cg_iters = steps;
                result got = run(backend, p);
                assert_near("o", got.o, want.o, p->o_count, backends[b].forward);
                for (int i = 0; i < DR_INPUTS; i++)
                    if (p->input[i])
                        assert_near(dr_input_name((dr_input)i), got.gradient[i], want.gradient[i], p->input_count[i],
                                    backends[b].backward);
                for (int s = 0; s < DR_STATES; s++)
                    if (p->initial[s])
                        assert_near(dr_state_name((dr_state_kind)s), got.d_initial[s], want.d_initial[s], p->state_count[s],
                                    backends[b].backward);
                result_free(&want), result_free(&got);
                problem_free(p);
                dr_backend_close(backend);
            }
}

/* o is linear in the values whatever the query, so their gradient is exact after any number of steps: <d_v, v> is the part of
 * <o, d_o> + <S, d_S> that comes from the values. */
static void test_values_have_exact_gradients(void **state) {
    (void)state;
    dr_rule rule = rule_of(weighted, DR_SCAN_GRAM, DR_QUERY_CONJUGATE_GRADIENT);
    rule.cg_iters = 1;
    for (int b = 0; b < BACKENDS; b++) {
        dr_random random = dr_random_start(25, 0);
        dr_backend *backend = open_backend(b);
        problem *p = problem_create(&rule, &sizes, false, &random);
        clear(p->initial[DR_STATE_S], p->state_count[DR_STATE_S]);
        result r = run(backend, p);
        double loss = 0, size = 0, by_values = 0;
        for (int64_t i = 0; i < p->o_count; i++) loss += r.o[i] * p->d_o[i], size += fabs(r.o[i] * p->d_o[i]);
        for (int64_t i = 0; i < p->state_count[DR_STATE_S]; i++) {
            loss += r.final[DR_STATE_S][i] * p->d_final[DR_STATE_S][i];
            size += fabs(r.final[DR_STATE_S][i] * p->d_final[DR_STATE_S][i]);
        }
        for (int64_t i = 0; i < p->input_count[DR_INPUT_VALUE]; i++)
            by_values += p->input[DR_INPUT_VALUE][i] * r.gradient[DR_INPUT_VALUE][i];
        assert_true(fabs(loss - by_values) <= backends[b].forward * size);
        result_free(&r);
        problem_free(p);
        dr_backend_close(backend);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ways_to_least_squares),    cmocka_unit_test(test_zero_inverse),
        cmocka_unit_test(test_steps_of_conjugate_gradients), cmocka_unit_test(test_converged_conjugate_gradients),
        cmocka_unit_test(test_values_have_exact_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
