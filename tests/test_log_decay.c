/* The gradient of log decays where gates are saturated. There its true size is that of the decay, exp(-16) or exp(-60) of what
 * the other gradients have, so that any term which should cancel shows. Held against the reference in double, relative to the
 * size of what is held: the sums that reach A_log (d_log_decay log_decay over tokens and channels, for each head), and the
 * elements, those of each size of decay for themselves. Beside that size twice what float32 costs a plain loop on the same
 * numbers is allowed, as backend cuda's suites allow: a gain that nearly erases what was written leaves differences of equal
 * numbers. The reference is held against derivatives in long double that know no backward. What repeats a failing case is
 * printed: a seed, which DELTARULE_SEED sets. */
#include "base/cpu.h"
#include "recurrence/trial.h"
#include "statuses.h"

#include "ops/shapes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed(void) {
    const char *chosen = getenv("DELTARULE_SEED");
    return chosen ? strtoull(chosen, NULL, 10) : 20263;
}

static const double levels[] = {-0.01, -1, -4, -10, -16, -30, -60, -INFINITY};
enum { LEVELS = sizeof levels / sizeof *levels, MIXED = LEVELS, DECAYS = 2 };
static const dr_input decay_inputs[DECAYS] = {DR_INPUT_LOG_DECAY, DR_INPUT_SCAN_LOG_DECAY};

static dr_backend *reference, *cpu[3];
static int isas;

/* Every log decay near one level (0 .. LEVELS - 1), or each near one of its own (MIXED). */
static void saturate(problem *p, int level, dr_random *random) {
    for (int k = 0; k < DECAYS; k++)
        for (int64_t i = 0; i < p->input_count[decay_inputs[k]]; i++) {
            const double at = levels[level == MIXED ? (int)dr_random_below(random, LEVELS) : level];
            p->input[decay_inputs[k]][i] = isinf(at) ? at : (float)(at * uniform(random, 0.9, 1));
        }
}

static int level_of(double log_decay) {
    int level = 0;
    while (level < LEVELS - 2 && log_decay <= 0.9 * levels[level + 1]) level++;
    return level;
}

static result run(dr_backend *backend, const problem *p, dr_path path, int64_t chunk) {
    result r;
    fault what;
    if (!problem_run(backend, p, path, chunk, true, &r, &what)) fail_msg("%s", what.text);
    return r;
}

static double worst; /* error in units of what is allowed */

/* Distances of what is held of one decay: sums by head, and elements by level. */
enum { MOST_HEADS = 16 };
typedef struct {
    double sum[MOST_HEADS], near[LEVELS];
} distances;

/* apart: between two gradients. size: of the second; sums are measured by the sum of the terms' sizes: what A_log gets is their
 * sum over all. */
static void measure(const problem *p, dr_input input, const result *got, const result *want, distances *apart,
                    distances *size) {
    const dr_input_form form = dr_recurrence_input_form(&p->recurrence, input);
    const double *g = p->input[input], *a = got->gradient[input], *b = want->gradient[input];
    double of_got[MOST_HEADS] = {0}, of_want[MOST_HEADS] = {0};
    assert_true(form.heads <= MOST_HEADS);
    *apart = *size = (distances){0};
    for (int64_t i = 0; i < p->input_count[input]; i++) {
        const int64_t head = i / form.size % form.heads;
        if (isinf(g[i])) continue;
        const int level = level_of(g[i]);
        of_got[head] += a[i] * g[i];
        of_want[head] += b[i] * g[i];
        size->sum[head] += fabs(b[i] * g[i]);
        apart->near[level] += (a[i] - b[i]) * (a[i] - b[i]);
        size->near[level] += b[i] * b[i];
    }
    for (int64_t head = 0; head < form.heads; head++) apart->sum[head] = fabs(of_got[head] - of_want[head]);
    for (int level = 0; level < LEVELS; level++) {
        apart->near[level] = sqrt(apart->near[level]);
        size->near[level] = sqrt(size->near[level]);
    }
}

/* What the reference says, and what float32 costs there: how far that moves where every number that an engine reads moves by at
 * most half a unit in the last place, and how far off a plain loop in float32 is then. The worst of some draws: 24 once
 * something is off by more than the tolerance, and up to 96 while it is off by more than these allow. */
enum { FEW_DRAWS = 24, MOST_DRAWS = 96 };
static const double times_of_plain = 2;
typedef struct {
    result want;
    int draws;
    dr_random random;
    distances cost[DECAYS];
} standard_of_decays;

static void move_numbers(double *x, int64_t count, dr_random *random) {
    for (int64_t i = 0; x && i < count; i++) x[i] *= 1 + uniform(random, -0x1p-24, 0x1p-24);
}

static void move_all(problem *p, dr_random *random) {
    move_inputs(p, random);
    for (int i = 0; i < DR_STATES; i++) {
        move_numbers(p->initial[i], p->state_count[i], random);
        move_numbers(p->d_final[i], p->state_count[i], random);
    }
    move_numbers(p->d_o, p->o_count, random);
}

static void raise_cost(const problem *p, standard_of_decays *s, const result *got, const result *want) {
    for (int k = 0; k < DECAYS; k++) {
        distances apart, size;
        if (!p->input[decay_inputs[k]]) continue;
        measure(p, decay_inputs[k], got, want, &apart, &size);
        for (int i = 0; i < MOST_HEADS; i++) s->cost[k].sum[i] = fmax(s->cost[k].sum[i], apart.sum[i]);
        for (int i = 0; i < LEVELS; i++) s->cost[k].near[i] = fmax(s->cost[k].near[i], apart.near[i]);
    }
}

static void draw_until(const problem *p, standard_of_decays *s, int draws) {
    for (; s->draws < draws; s->draws++) {
        fault what;
        problem *near = problem_copy(p);
        move_all(near, &s->random);
        result exact = run(reference, near, DR_PATH_BEST, 0), plain;
        if (!problem_run_plain(near, s->draws, &plain, &what)) fail_msg("%s", what.text);
        raise_cost(p, s, &exact, &s->want);
        raise_cost(p, s, &plain, &exact);
        result_free(&exact), result_free(&plain);
        problem_free(near);
    }
}

/* least: below it, float32 has no digits left. cost: one of s. */
static void assert_near(const char *name, const problem *p, standard_of_decays *s, const double *cost, const char *of,
                        double error, double size, double tolerance) {
    const double least = 1e-30, held_to = tolerance * size + least;
    double allowed = held_to + times_of_plain * *cost;
    for (int draws = FEW_DRAWS; !(error <= allowed) && draws <= MOST_DRAWS; draws *= 2) {
        draw_until(p, s, draws);
        allowed = held_to + times_of_plain * *cost;
    }
    if (!(error <= allowed))
        fail_msg("seed %llu, %s: %s is off by %g of %g, at most %g is right", (unsigned long long)seed(), name, of, error, size,
                 allowed);
    if (size > 1e3 * least && error / allowed > worst) worst = error / allowed;
}

static void assert_decays_near(const char *name, const problem *p, const result *got, standard_of_decays *s) {
    for (int k = 0; k < DECAYS; k++) {
        const dr_input input = decay_inputs[k];
        distances apart, size;
        if (!p->input[input]) continue;
        for (int64_t i = 0; i < p->input_count[input]; i++)
            if (isinf(p->input[input][i]) && got->gradient[input][i] != 0)
                fail_msg("%s: %g behind alpha = 0", name, got->gradient[input][i]);
        measure(p, input, got, &s->want, &apart, &size);
        for (int head = 0; head < MOST_HEADS; head++)
            assert_near(name, p, s, &s->cost[k].sum[head], "the sum that reaches A_log", apart.sum[head], size.sum[head], 1e-5);
        for (int level = 0; level < LEVELS; level++) {
            char of[64];
            snprintf(of, sizeof of, "%s near %g", dr_input_name(input), levels[level]);
            assert_near(name, p, s, &s->cost[k].near[level], of, apart.near[level], size.near[level], 1e-4);
        }
    }
}

static void check(const char *name, const problem *p) {
    static const struct {
        dr_path path;
        int64_t chunk;
    } engines[] = {{DR_PATH_RECURRENT, 0}, {DR_PATH_BEST, 0}, {DR_PATH_CHUNKWISE, 7}, {DR_PATH_CHUNKWISE, 64}};
    standard_of_decays s = {.want = run(reference, p, DR_PATH_BEST, 0), .random = dr_random_start(seed(), 6)};
    for (int isa = 0; isa < isas; isa++)
        for (size_t e = 0; e < sizeof engines / sizeof *engines; e++) {
            char kernel[64], text[256];
            dr_recurrence recurrence = p->recurrence;
            recurrence.path = engines[e].path;
            recurrence.chunk = engines[e].chunk;
            dr_recurrence_kernel(cpu[isa], &recurrence, false, kernel, sizeof kernel);
            result got = run(cpu[isa], p, engines[e].path, engines[e].chunk);
            snprintf(text, sizeof text, "%s, %s, K %lld V %lld, %lld tokens", name, kernel, (long long)recurrence.key_size,
                     (long long)recurrence.value_size, (long long)recurrence.layout.rows);
            assert_decays_near(text, p, &got, &s);
            result_free(&got);
        }
    result_free(&s.want);
}

static bool decays(const dr_rule *rule) {
    return dr_rule_uses(rule, DR_INPUT_LOG_DECAY) || dr_rule_uses(rule, DR_INPUT_SCAN_LOG_DECAY);
}

static void check_rule(const char *name, const dr_rule *rule, int64_t size, int64_t longest, int level, dr_random *random) {
    int64_t cu_seqlens[MOST_SEQUENCES + 1];
    dr_recurrence sizes = draw_sizes(random, rule, cu_seqlens);
    if (size > 0) { /* a real one, one sequence */
        sizes.key_size = sizes.value_size = size;
        sizes.layout.sequences = 1;
        cu_seqlens[1] = sizes.layout.rows = longest;
    }
    problem *p = problem_create(rule, &sizes, false, random);
    char text[128];
    if (dr_random_below(random, 2)) problem_forget_states(p);
    saturate(p, level, random);
    snprintf(text, sizeof text, "%s, decays near %g", name, level == MIXED ? NAN : levels[level]);
    check(text, p);
    problem_free(p);
}

static void test_named_rules(void **state) {
    (void)state;
    dr_random random = dr_random_start(seed(), 1);
    for (int i = 0; i < dr_rule_count(); i++) {
        const dr_rule *rule = dr_rule_at(i);
        if (!decays(rule)) continue;
        for (int level = 0; level <= MIXED; level++) check_rule(rule->name, rule, 0, 0, level, &random);
    }
    printf("worst error: %.3f of what is allowed\n", worst);
}

static void test_real_sizes(void **state) {
    (void)state;
    dr_random random = dr_random_start(seed(), 2);
    for (int i = 0; i < dr_rule_count(); i++) {
        const dr_rule *rule = dr_rule_at(i);
        if (!decays(rule) || rule->scan == DR_SCAN_GRAM) continue; /* K^3 a token in double */
        for (int level = 1; level <= MIXED; level += 5 + i % 2)
            check_rule(rule->name, rule, i % 2 ? 128 : 64, 50, level, &random);
    }
    printf("worst error: %.3f of what is allowed\n", worst);
}

static void test_compositions(void **state) {
    (void)state;
    dr_random random = dr_random_start(seed(), 3);
    for (int i = 0; i < 120;) {
        const dr_rule rule = draw_rule(&random);
        char equation[160];
        if (!decays(&rule)) continue;
        dr_rule_equation(&rule, equation, sizeof equation);
        check_rule(equation, &rule, 0, 0, i++ % (MIXED + 1), &random);
    }
    printf("worst error: %.3f of what is allowed\n", worst);
}

/* One token without a state: its decay has nothing to decay. */
static void test_one_token(void **state) {
    (void)state;
    dr_random random = dr_random_start(seed(), 4);
    for (int i = 0; i < dr_rule_count(); i++) {
        const dr_rule *rule = dr_rule_at(i);
        if (!decays(rule)) continue;
        for (int size = 16; size <= 128; size *= 2) {
            static const int64_t cu_seqlens[] = {0, 1, 2, 3};
            const dr_recurrence sizes = {.rule = rule,
                                         .key_heads = 2,
                                         .value_heads = rule->tied_scan ? 2 : 4,
                                         .key_size = size,
                                         .value_size = size,
                                         .layout = {3, 3, cu_seqlens}};
            problem *p = problem_create(rule, &sizes, false, &random);
            problem_forget_states(p);
            for (int isa = 0; isa < isas; isa++)
                for (int chunkwise = 0; chunkwise < 2; chunkwise++) {
                    result got = run(cpu[isa], p, chunkwise ? DR_PATH_CHUNKWISE : DR_PATH_RECURRENT, 0);
                    for (int k = 0; k < DECAYS; k++)
                        for (int64_t j = 0; j < p->input_count[decay_inputs[k]]; j++)
                            if (got.gradient[decay_inputs[k]][j] != 0)
                                fail_msg("%s, K %d: %g instead of 0", rule->name, size, got.gradient[decay_inputs[k]][j]);
                    result_free(&got);
                }
            problem_free(p);
        }
    }
}

/* ---- the reference ----------------------------------------------------------------------------------------------------- */

/* The derivative of L = <d_o, o> + <d_S, S_T> by log decay `moved` of token `at`, by the product rule along the recurrence: S
 * and its tangent go forward together. One head; row: read key k (or none), write key k, gain beta, value beta v. */
enum { MOST = 8 };
static long double tangent(const problem *p, int64_t at, int64_t moved) {
    const int64_t K = p->recurrence.key_size, V = p->recurrence.value_size, T = p->recurrence.layout.rows;
    const bool channel = p->rule.decay == DR_DECAY_CHANNEL, reads = p->rule.row[0].read != DR_READ_NONE;
    const bool undecayed = p->rule.row[0].undecayed;
    const long double scale = 1 / sqrtl((long double)K);
    long double S[MOST][MOST], dS[MOST][MOST] = {{0}}, sum = 0;
    for (int64_t k = 0; k < K; k++)
        for (int64_t v = 0; v < V; v++) S[k][v] = p->initial[DR_STATE_S][k * V + v];
    for (int64_t t = 0; t < T; t++) {
        const double *key = p->input[DR_INPUT_KEY] + t * K, *query = p->input[DR_INPUT_QUERY] + t * K;
        const long double beta = p->input[DR_INPUT_BETA] ? p->input[DR_INPUT_BETA][t] : 1;
        for (int64_t v = 0; v < V; v++) {
            long double e = 0, de = 0, o = 0;
            for (int pass = 0; pass < 2; pass++) { /* read and decay, in the order of the rule */
                if (reads && (pass == 0) == undecayed)
                    for (int64_t k = 0; k < K; k++) e += key[k] * S[k][v], de += key[k] * dS[k][v];
                for (int64_t k = 0; k < K && pass == 0; k++) {
                    const long double alpha = expl(p->input[DR_INPUT_LOG_DECAY][channel ? t * K + k : t]);
                    const bool is_moved = t == at && (!channel || k == moved);
                    dS[k][v] = alpha * (dS[k][v] + (is_moved ? S[k][v] : 0));
                    S[k][v] = alpha * S[k][v];
                }
            }
            const long double u = beta * (p->input[DR_INPUT_VALUE][t * V + v] - e), du = -beta * de;
            for (int64_t k = 0; k < K; k++) {
                S[k][v] += key[k] * u;
                dS[k][v] += key[k] * du;
                o += scale * query[k] * dS[k][v];
            }
            sum += p->d_o[t * V + v] * o;
        }
    }
    for (int64_t k = 0; k < K; k++)
        for (int64_t v = 0; v < V; v++) sum += p->d_final[DR_STATE_S][k * V + v] * dS[k][v];
    return sum;
}

static void test_reference(void **state) {
    (void)state;
    dr_random random = dr_random_start(seed(), 5);
    double error = 0;
    for (int draw = 0; draw < 300; draw++) {
        dr_rule rule = dr_rule_blank();
        rule.rows = 1;
        rule.decay = draw % 2 ? DR_DECAY_CHANNEL : DR_DECAY_SCALAR;
        rule.row[0] = (dr_row){.read = draw % 3 ? DR_READ_KEY : DR_READ_NONE,
                               .undecayed = draw % 3 == 2,
                               .gain = DR_GAIN_BETA,
                               .value = DR_VALUE_GAIN};
        const dr_recurrence sizes = {.rule = &rule,
                                     .key_heads = 1,
                                     .value_heads = 1,
                                     .key_size = between(&random, 1, MOST),
                                     .value_size = between(&random, 1, MOST),
                                     .layout = {1, between(&random, 1, 9), NULL}};
        problem *p = problem_create(&rule, &sizes, false, &random);
        saturate(p, draw % (MIXED + 1), &random);
        result r = run(reference, p, DR_PATH_BEST, 0);
        const int64_t width = rule.decay == DR_DECAY_CHANNEL ? sizes.key_size : 1;
        /* every token's gradient is a sum whose terms may cancel, all with the factor alpha of the token */
        for (int64_t i = 0; i < p->input_count[DR_INPUT_LOG_DECAY]; i++) {
            const double want = (double)tangent(p, i / width, i % width), got = r.gradient[DR_INPUT_LOG_DECAY][i];
            const double alpha = exp(p->input[DR_INPUT_LOG_DECAY][i]), apart = fabs(got - want);
            if (!(apart <= 1e-12 * alpha))
                fail_msg("draw %d, element %lld: %.17g instead of %.17g", draw, (long long)i, got, want);
            if (alpha > 0) error = fmax(error, apart / alpha);
        }
        result_free(&r);
        problem_free(p);
    }
    printf("worst error of the reference: %.1e of alpha\n", error);
}

static int open_backends(void **state) {
    (void)state;
    static const char *const names[] = {"portable", "avx2", "avx512"};
    const dr_cpu_features features = dr_cpu_detect();
    isas = features.avx512 ? 3 : features.avx2 ? 2 : 1;
    reference = open_backend("reference", NULL, 1);
    for (int i = 0; i < isas; i++) cpu[i] = open_backend("cpu", names[i], 1);
    return 0;
}

static int close_backends(void **state) {
    (void)state;
    dr_backend_close(reference);
    for (int i = 0; i < isas; i++) dr_backend_close(cpu[i]);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),    cmocka_unit_test(test_one_token),  cmocka_unit_test(test_named_rules),
        cmocka_unit_test(test_compositions), cmocka_unit_test(test_real_sizes),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
