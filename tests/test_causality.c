/* No token sees the future: NaN or infinity in any input of token t leaves what comes of the tokens before it, and of other
 * sequences, bit for bit as it was; in the backward, what is wrong with d_o of token t leaves the gradients of the tokens
 * behind it and of other sequences so, and what is wrong with an input leaves other sequences so. On every engine, instruction
 * set and chunk length. What repeats a failing case is printed: a seed, which DELTARULE_SEED sets. */
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
    return chosen ? strtoull(chosen, NULL, 10) : 20264;
}

static dr_backend *backends[4]; /* the reference first */
static int backend_count;
static int64_t poisons, reached; /* how many were put in, and how many of them came out somewhere */

static const double poison[] = {NAN, INFINITY, -INFINITY};

static result run(dr_backend *backend, const problem *p, dr_path path, int64_t chunk) {
    result r;
    fault what;
    if (!problem_run(backend, p, path, chunk, true, &r, &what)) fail_msg("%s", what.text);
    return r;
}

static void assert_untouched(const char *name, const char *of, const double *got, const double *clean, int64_t first,
                             int64_t end, int64_t width) {
    for (int64_t i = first * width; i < end * width; i++)
        if (memcmp(got + i, clean + i, sizeof *got) != 0)
            fail_msg("seed %llu, %s reaches %s of token %lld: %g instead of %g", (unsigned long long)seed(), name, of,
                     (long long)(i / width), got[i], clean[i]);
}

/* States of a whole sequence. */
static void assert_state_untouched(const char *name, const problem *p, double *const got[DR_STATES],
                                   double *const clean[DR_STATES], int64_t sequence) {
    for (int kind = 0; kind < DR_STATES; kind++)
        if (p->initial[kind])
            assert_untouched(name, dr_state_name((dr_state_kind)kind), got[kind], clean[kind], sequence, sequence + 1,
                             p->state_count[kind] / p->recurrence.layout.sequences);
}

static void assert_gradients_untouched(const char *name, const problem *p, const result *got, const result *clean,
                                       int64_t first, int64_t end) {
    for (int input = 0; input < DR_INPUTS; input++)
        if (p->input[input] && is_per_token(p, (dr_input)input))
            assert_untouched(name, dr_input_name((dr_input)input), got->gradient[input], clean->gradient[input], first, end,
                             input_width(p, (dr_input)input));
}

/* Other sequences than that of token t, which is `own`. */
static void assert_others_untouched(const char *name, const problem *p, const result *got, const result *clean, int64_t own) {
    const int64_t width = p->o_count / p->recurrence.layout.rows;
    for (int64_t i = 0; i < p->recurrence.layout.sequences; i++) {
        if (i == own) continue;
        assert_untouched(name, "o", got->o, clean->o, p->cu_seqlens[i], p->cu_seqlens[i + 1], width);
        assert_state_untouched(name, p, got->final, clean->final, i);
        assert_state_untouched(name, p, got->d_initial, clean->d_initial, i);
        assert_gradients_untouched(name, p, got, clean, p->cu_seqlens[i], p->cu_seqlens[i + 1]);
    }
}

static bool is_finite(const double *x, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

/* input DR_INPUTS: d_o */
static void check_poison(const char *rule, dr_backend *backend, const problem *p, const result *clean, dr_path path,
                         int64_t chunk, int input, dr_random *random) {
    problem *bad = problem_copy(p);
    const int64_t rows = p->recurrence.layout.rows, t = between(random, 0, rows - 1);
    const int64_t o_width = p->o_count / rows, width = input == DR_INPUTS ? o_width : input_width(p, (dr_input)input);
    const double value = poison[dr_random_below(random, 3)];
    int64_t own = 0;
    char name[512];
    while (p->cu_seqlens[own + 1] <= t) own++;
    (input == DR_INPUTS ? bad->d_o : bad->input[input])[t * width + between(random, 0, width - 1)] = value;
    snprintf(name, sizeof name, "%s, path %d chunk %lld on backend %s: %g in %s of token %lld of %lld", rule, (int)path,
             (long long)chunk, dr_backend_name(backend), value, input == DR_INPUTS ? "d_o" : dr_input_name((dr_input)input),
             (long long)(t - p->cu_seqlens[own]), (long long)(p->cu_seqlens[own + 1] - p->cu_seqlens[own]));
    result got = run(backend, bad, path, chunk);
    assert_others_untouched(name, p, &got, clean, own);
    if (input == DR_INPUTS) {
        assert_untouched(name, "o", got.o, clean->o, 0, rows, o_width);
        assert_gradients_untouched(name, p, &got, clean, t + 1, p->cu_seqlens[own + 1]);
        reached += !is_finite(got.gradient[DR_INPUT_QUERY], p->input_count[DR_INPUT_QUERY]);
    } else {
        assert_untouched(name, "o", got.o, clean->o, p->cu_seqlens[own], t, o_width);
        reached += !is_finite(got.o, p->o_count);
    }
    poisons++;
    result_free(&got);
    problem_free(bad);
}

static void check_rule(const char *name, const dr_rule *rule, int64_t size, int64_t longest, dr_random *random) {
    static const struct {
        dr_path path;
        int64_t chunk;
    } engines[] = {{DR_PATH_BEST, 0}, {DR_PATH_RECURRENT, 0}, {DR_PATH_CHUNKWISE, 7}, {DR_PATH_CHUNKWISE, 64}};
    int64_t cu_seqlens[MOST_SEQUENCES + 1];
    dr_recurrence sizes = draw_sizes(random, rule, cu_seqlens);
    if (size > 0) { /* a real one */
        sizes.key_size = sizes.value_size = size;
        sizes.layout.sequences = 2;
        cu_seqlens[1] = longest;
        cu_seqlens[2] = sizes.layout.rows = longest + 5;
    }
    if (sizes.layout.rows == 0) return;
    problem *p = problem_create(rule, &sizes, false, random);
    for (int b = 0; b < backend_count; b++)
        for (size_t e = 0; e < (b ? sizeof engines / sizeof *engines : 1); e++) {
            result clean = run(backends[b], p, engines[e].path, engines[e].chunk);
            for (int input = 0; input <= DR_INPUTS; input++)
                if (input == DR_INPUTS || (p->input[input] && is_per_token(p, (dr_input)input)))
                    check_poison(name, backends[b], p, &clean, engines[e].path, engines[e].chunk, input, random);
            result_free(&clean);
        }
    problem_free(p);
}

static void test_named_rules(void **state) {
    (void)state;
    dr_random random = dr_random_start(seed(), 1);
    for (int i = 0; i < dr_rule_count(); i++)
        for (int draw = 0; draw < 3; draw++) check_rule(dr_rule_at(i)->name, dr_rule_at(i), 0, 0, &random);
    printf("%lld of %lld came out\n", (long long)reached, (long long)poisons);
    assert_true(reached > poisons / 2);
}

static void test_real_sizes(void **state) {
    (void)state;
    dr_random random = dr_random_start(seed(), 2);
    for (int i = 0; i < dr_rule_count(); i++)
        if (dr_rule_at(i)->scan != DR_SCAN_GRAM) /* K^3 a token in double */
            check_rule(dr_rule_at(i)->name, dr_rule_at(i), i % 2 ? 128 : 64, 40, &random);
}

static void test_compositions(void **state) {
    (void)state;
    dr_random random = dr_random_start(seed(), 3);
    for (int i = 0; i < 60; i++) {
        const dr_rule rule = draw_rule(&random);
        char equation[160];
        dr_rule_equation(&rule, equation, sizeof equation);
        check_rule(equation, &rule, 0, 0, &random);
    }
}

static int open_backends(void **state) {
    (void)state;
    static const char *const names[] = {"portable", "avx2", "avx512"};
    const dr_cpu_features features = dr_cpu_detect();
    const int isas = features.avx512 ? 3 : features.avx2 ? 2 : 1;
    backends[backend_count++] = open_backend("reference", NULL, 1);
    for (int i = 0; i < isas; i++) backends[backend_count++] = open_backend("cpu", names[i], 1 + i % 2);
    return 0;
}

static int close_backends(void **state) {
    (void)state;
    for (int i = 0; i < backend_count; i++) dr_backend_close(backends[i]);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_named_rules),
        cmocka_unit_test(test_compositions),
        cmocka_unit_test(test_real_sizes),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
