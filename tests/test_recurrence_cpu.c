/* The recurrence on the CPU against the reference, on every instruction set of the machine: the named rules and random
 * compositions over all axes, with random shapes, on every engine and several chunk lengths; and what holds of any engine:
 * threads, packing, splitting, decays at the edges, linearity. What repeats a failing case is printed: a seed, which
 * DELTARULE_SEED sets, and the number of the case. */
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
    return chosen ? strtoull(chosen, NULL, 10) : 20261;
}

static dr_backend *open_cpu(const char *isa, int threads) {
    return open_backend("cpu", isa, threads);
}

static result run(dr_backend *backend, const problem *p, dr_path path, int64_t chunk, bool backwards) {
    result r;
    fault what;
    if (!problem_run(backend, p, path, chunk, backwards, &r, &what)) fail_msg("%s", what.text);
    return r;
}

static void assert_same(const char *name, const char *of, const double *a, const double *b, int64_t count) {
    fault what;
    if (!numbers_same(name, of, a, b, count, &what)) fail_msg("%s", what.text);
}

static void assert_results_same(const char *name, const problem *p, const result *a, const result *b) {
    fault what;
    if (!results_same(name, p, a, b, &what)) fail_msg("%s", what.text);
}

static problem *part_of(const problem *from, int64_t sequence, int64_t first, int64_t tokens,
                        double *const initial[DR_STATES]) {
    return problem_part(from, sequence, 1, &first, &tokens, initial);
}

static int isa_count(void) {
    dr_cpu_features features = dr_cpu_detect();
    return features.avx512 ? 3 : features.avx2 ? 2 : 1;
}

static const char *const isas[] = {"portable", "avx2", "avx512"};

/* ---- every engine against the reference ----------------------------------------------------------------------------- */

static double worst_error; /* of a test, over all its comparisons, in units of what is allowed */

static void assert_engines_agree(const char *name, const problem *p, dr_random *random) {
    static const struct {
        dr_path path;
        int64_t chunk;
    } engines[] = {{DR_PATH_RECURRENT, 0}, {DR_PATH_BEST, 0},       {DR_PATH_CHUNKWISE, 1},
                   {DR_PATH_CHUNKWISE, 7}, {DR_PATH_CHUNKWISE, 16}, {DR_PATH_CHUNKWISE, 64}};
    dr_backend *reference = open_backend("reference", NULL, 1);
    standard s;
    fault what;
    result got;
    if (!standard_create(reference, p, random, &s, &what)) fail_msg("%s: %s", name, what.text);
    for (int isa = 0; isa < isa_count(); isa++) {
        dr_backend *cpu = open_cpu(isas[isa], 1);
        char text[768], kernel[64];
        for (size_t e = 0; e < sizeof engines / sizeof engines[0]; e++) {
            dr_recurrence recurrence = p->recurrence;
            recurrence.path = engines[e].path;
            recurrence.chunk = engines[e].chunk;
            dr_recurrence_kernel(cpu, &recurrence, false, kernel, sizeof kernel);
            snprintf(text, sizeof text, "%s, %s", name, kernel);
            got = run(cpu, p, engines[e].path, engines[e].chunk, true);
            if (!results_near(text, p, &got, &s, true, engines[e].path, &worst_error, &what) ||
                !dead_decays(text, p, &got, &what))
                fail_msg("%s", what.text);
            result_free(&got);
        }
        if (equally_long(&p->recurrence.layout)) {
            snprintf(text, sizeof text, "%s, cpu decode %s", name, isas[isa]);
            if (!problem_decode(cpu, p, &got, &what) ||
                !results_near(text, p, &got, &s, false, DR_PATH_RECURRENT, &worst_error, &what))
                fail_msg("%s", what.text);
            result_free(&got);
        }
        dr_backend_close(cpu);
    }
    standard_free(&s);
    dr_backend_close(reference);
}

static void describe(char *text, size_t size, const char *what, uint64_t number, const dr_recurrence *r) {
    char equation[160];
    dr_rule_equation(r->rule, equation, sizeof equation);
    snprintf(text, size, "seed %llu, %s %llu: %s; H %lld HV %lld K %lld V %lld, %lld tokens in %lld sequences",
             (unsigned long long)seed(), what, (unsigned long long)number, equation, (long long)r->key_heads,
             (long long)r->value_heads, (long long)r->key_size, (long long)r->value_size, (long long)r->layout.rows,
             (long long)r->layout.sequences);
}

static void check_rule(const dr_rule *rule, const char *what, uint64_t number, bool strong, dr_random *random) {
    int64_t cu_seqlens[MOST_SEQUENCES + 1];
    dr_recurrence sizes = draw_sizes(random, rule, cu_seqlens);
    problem *p = problem_create(rule, &sizes, strong, random);
    char text[512];
    describe(text, sizeof text, what, number, &p->recurrence);
    assert_engines_agree(text, p, random);
    problem_free(p);
}

static void test_named_rules(void **state) {
    (void)state;
    worst_error = 0;
    for (int i = 0; i < dr_rule_count(); i++)
        for (int strong = 0; strong < 2; strong++) {
            dr_random random = dr_random_start(seed(), (uint64_t)(2 * i + strong));
            check_rule(dr_rule_at(i), dr_rule_at(i)->name, (uint64_t)strong, strong, &random);
        }
    print_message("worst error: %.3f of the tolerance\n", worst_error);
}

static void test_compositions(void **state) {
    (void)state;
    enum { CASES = 150 };
    const char *only = getenv("DELTARULE_CASE");
    worst_error = 0;
    for (uint64_t i = 0; i < CASES; i++) {
        if (only && strtoull(only, NULL, 10) != i) continue;
        dr_random random = dr_random_start(seed(), 1000 + i);
        dr_rule rule = draw_rule(&random);
        check_rule(&rule, "composition", i, dr_random_below(&random, 3) == 0, &random);
    }
    print_message("worst error: %.3f of the tolerance\n", worst_error);
}

/* ---- what holds of every engine --------------------------------------------------------------------------------------- */

static const dr_path paths[2] = {DR_PATH_RECURRENT, DR_PATH_CHUNKWISE};

/* A problem with that rule, or a composition if it is NULL; layout: [sequences + 1]. */
static problem *some_problem(const dr_rule *rule, int64_t sequences, const int64_t *cu_seqlens, dr_random *random) {
    dr_rule drawn = rule ? *rule : draw_rule(random);
    int64_t unused[MOST_SEQUENCES + 1];
    dr_recurrence sizes = draw_sizes(random, &drawn, unused);
    sizes.layout = (dr_layout){.sequences = sequences, .rows = cu_seqlens[sequences], .cu_seqlens = cu_seqlens};
    return problem_create(&drawn, &sizes, false, random);
}

static void test_threads(void **state) {
    (void)state;
    static const int64_t cu_seqlens[] = {0, 40, 40, 133, 140};
    dr_random random = dr_random_start(seed(), 1);
    for (int i = 0; i < 20; i++) {
        problem *p = some_problem(NULL, 4, cu_seqlens, &random);
        for (int j = 0; j < 2; j++) {
            dr_backend *one = open_cpu(NULL, 1);
            result want = run(one, p, paths[j], 0, true);
            dr_backend_close(one);
            for (int threads = 2; threads <= 4; threads += 2) {
                dr_backend *more = open_cpu(NULL, threads);
                result got = run(more, p, paths[j], 0, true);
                assert_results_same("another number of threads", p, &got, &want);
                result_free(&got);
                dr_backend_close(more);
            }
            result_free(&want);
        }
        problem_free(p);
    }
}

/* More threads than sequences and heads share out the columns of the values, and in a backward then the segments. */
static void test_value_blocks(void **state) {
    (void)state;
    static const int64_t one_sequence[] = {0, 70}, some[] = {0, 0, 330};
    dr_random random = dr_random_start(seed(), 11);
    for (int i = 0; i < 16; i++) {
        dr_rule drawn = draw_rule(&random);
        int64_t unused[MOST_SEQUENCES + 1];
        dr_recurrence sizes = draw_sizes(&random, &drawn, unused);
        const bool packed = i % 3 == 2;
        sizes.layout = packed ? (dr_layout){.sequences = 2, .rows = 330, .cu_seqlens = some}
                              : (dr_layout){.sequences = 1, .rows = 70, .cu_seqlens = one_sequence};
        sizes.key_heads = 1;
        sizes.value_heads = drawn.tied_scan ? 1 : between(&random, 1, 2);
        sizes.value_size = i % 4 == 0 ? 128 : 2 * between(&random, 17, 90);
        problem *p = problem_create(&drawn, &sizes, false, &random);
        for (int j = 0; j < 2; j++) {
            dr_backend *one = open_cpu(isas[i % isa_count()], 1);
            result want = run(one, p, paths[j], 0, true);
            dr_backend_close(one);
            for (int threads = 2; threads <= 8; threads += 3) {
                dr_backend *more = open_cpu(isas[i % isa_count()], threads);
                result got = run(more, p, paths[j], 0, true);
                assert_results_same("columns on several threads", p, &got, &want);
                result_free(&got);
                dr_backend_close(more);
            }
            result_free(&want);
        }
        problem_free(p);
    }
}

/* Wide states are read in bands of rows, and by strips of several widths. */
static void test_wide_decode(void **state) {
    (void)state;
    static const char *const rules[] = {"gdn", "linear_attention", "eda", "delta_product", "pkda", "rwkv7"};
    static const int64_t value_sizes[] = {200, 256, 300, 523};
    dr_random random = dr_random_start(seed(), 12);
    dr_backend *reference = open_backend("reference", NULL, 1);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        for (size_t j = 0; j < sizeof value_sizes / sizeof *value_sizes; j++) {
            const dr_recurrence sizes = {.rule = dr_rule_find(rules[i]),
                                         .key_heads = 1,
                                         .value_heads = 1,
                                         .key_size = 37,
                                         .value_size = value_sizes[j],
                                         .layout = {.sequences = 2, .rows = 6}};
            problem *p = problem_create(sizes.rule, &sizes, false, &random);
            standard s;
            fault what;
            if (!standard_create(reference, p, &random, &s, &what)) fail_msg("%s", what.text);
            for (int isa = 0; isa < isa_count(); isa++) {
                dr_backend *cpu = open_cpu(isas[isa], 2);
                result got;
                if (!problem_decode(cpu, p, &got, &what) ||
                    !results_near(rules[i], p, &got, &s, false, DR_PATH_RECURRENT, &worst_error, &what))
                    fail_msg("%s, %lld columns: %s", isas[isa], (long long)value_sizes[j], what.text);
                result_free(&got);
                dr_backend_close(cpu);
            }
            standard_free(&s);
            problem_free(p);
        }
    dr_backend_close(reference);
}

static void test_packed_is_separate(void **state) {
    (void)state;
    static const int64_t cu_seqlens[] = {0, 37, 37, 38, 110};
    dr_random random = dr_random_start(seed(), 2);
    dr_backend *cpu = open_cpu(NULL, 2);
    for (int i = 0; i < 20; i++) {
        problem *p = some_problem(NULL, 4, cu_seqlens, &random);
        result packed = run(cpu, p, paths[i % 2], 0, true);
        for (int64_t s = 0; s < 4; s++) {
            const int64_t first = cu_seqlens[s], tokens = cu_seqlens[s + 1] - first;
            problem *own = part_of(p, s, 0, tokens, NULL);
            result r = run(cpu, own, paths[i % 2], 0, true);
            assert_same("packed", "o", packed.o + first * (p->o_count / 110), r.o, own->o_count);
            for (int j = 0; j < DR_INPUTS; j++) /* a parameter's gradient is a sum over sequences */
                if (p->input[j] && dr_recurrence_input_form(&p->recurrence, (dr_input)j).per_row)
                    assert_same("packed", dr_input_name((dr_input)j), packed.gradient[j] + first * (p->input_count[j] / 110),
                                r.gradient[j], own->input_count[j]);
            for (int j = 0; j < DR_STATES; j++) {
                if (!p->initial[j]) continue;
                const int64_t count = own->state_count[j];
                assert_same("packed", "a final state", packed.final[j] + s * count, r.final[j], count);
                assert_same("packed", "a gradient of a state", packed.d_initial[j] + s * count, r.d_initial[j], count);
            }
            result_free(&r);
            problem_free(own);
        }
        result_free(&packed);
        problem_free(p);
    }
    dr_backend_close(cpu);
}

static void test_split_is_whole(void **state) {
    (void)state;
    enum { TOKENS = 75 };
    static const int64_t cu_seqlens[] = {0, TOKENS};
    dr_random random = dr_random_start(seed(), 3);
    dr_backend *cpu = open_cpu(NULL, 1);
    for (int i = 0; i < 30; i++) {
        problem *p = some_problem(NULL, 1, cu_seqlens, &random);
        const int64_t cut = between(&random, 0, TOKENS), width = p->o_count / TOKENS;
        result whole = run(cpu, p, paths[i % 2], 0, false);
        problem *head = part_of(p, 0, 0, cut, NULL);
        result first = run(cpu, head, paths[i % 2], 0, false);
        problem *tail = part_of(p, 0, cut, TOKENS - cut, first.final);
        result second = run(cpu, tail, paths[i % 2], 0, false);
        double *joined = numbers(p->o_count);
        memcpy(joined, first.o, (size_t)head->o_count * sizeof(double));
        memcpy(joined + cut * width, second.o, (size_t)tail->o_count * sizeof(double));
        char text[64];
        snprintf(text, sizeof text, "problem %d split after %lld tokens", i, (long long)cut);
        if (error_of(joined, whole.o, p->o_count, least_size_chunkwise) > tolerance_forward) fail_msg("%s: o is another", text);
        for (int j = 0; j < DR_STATES; j++)
            if (p->initial[j] &&
                error_of(second.final[j], whole.final[j], p->state_count[j], least_size_chunkwise) > tolerance_forward)
                fail_msg("%s: final %s is another", text, dr_state_name((dr_state_kind)j));
        free(joined);
        result_free(&whole), result_free(&first), result_free(&second);
        problem_free(head), problem_free(tail), problem_free(p);
    }
    dr_backend_close(cpu);
}

/* A decay of zero, whatever its kind, gives what the reference gives without decay, as near as results of float32 are held to
 * it: the kinds are summed in different orders, and where sums all but cancel no two orders agree better than that. */
static void test_no_decay_is_zero_decay(void **state) {
    (void)state;
    static const int64_t cu_seqlens[] = {0, 50, 77};
    dr_random random = dr_random_start(seed(), 4);
    dr_backend *reference = open_backend("reference", NULL, 1), *cpu = open_cpu(NULL, 1);
    for (int i = 0; i < 10; i++) {
        dr_rule rule = draw_rule(&random);
        /* the matrix scans do not go with every decay */
        while (rule.decay != DR_DECAY_NONE || dr_rule_carries(&rule, DR_STATE_K) || dr_rule_carries(&rule, DR_STATE_P))
            rule = draw_rule(&random);
        problem *p = some_problem(&rule, 2, cu_seqlens, &random);
        standard s;
        fault what;
        if (!standard_create(reference, p, &random, &s, &what)) fail_msg("problem %d: %s", i, what.text);
        for (int decay = DR_DECAY_CONSTANT; decay <= DR_DECAY_CHANNEL; decay++) {
            problem *q = problem_copy(p);
            q->rule.decay = (dr_decay)decay;
            assert_int_equal(dr_rule_check(&q->rule), DR_OK);
            q->input_count[DR_INPUT_LOG_DECAY] = dr_recurrence_input_count(&q->recurrence, DR_INPUT_LOG_DECAY);
            q->input[DR_INPUT_LOG_DECAY] = calloc((size_t)q->input_count[DR_INPUT_LOG_DECAY], sizeof(double));
            result got = run(cpu, q, DR_PATH_CHUNKWISE, 0, true);
            char text[64];
            snprintf(text, sizeof text, "problem %d, decay %s of 0", i, dr_decay_name((dr_decay)decay));
            if (!results_near(text, p, &got, &s, true, DR_PATH_CHUNKWISE, &worst_error, &what)) fail_msg("%s", what.text);
            result_free(&got);
            problem_free(q);
        }
        standard_free(&s);
        problem_free(p);
    }
    dr_backend_close(cpu);
    dr_backend_close(reference);
}

static void twice(double *x, int64_t count) {
    for (int64_t i = 0; i < count && x; i++) x[i] *= 2;
}

/* Twice the values and the initial state give twice the output, to the bit: a factor of two commutes with every rounding. */
static void test_linear_in_values(void **state) {
    (void)state;
    static const int64_t cu_seqlens[] = {0, 60};
    dr_random random = dr_random_start(seed(), 5);
    dr_backend *cpu = open_cpu(NULL, 1);
    for (int i = 0; i < 20; i++) {
        problem *p = some_problem(NULL, 1, cu_seqlens, &random);
        result once = run(cpu, p, paths[i % 2], 0, false);
        twice(p->input[DR_INPUT_VALUE], p->input_count[DR_INPUT_VALUE]);
        twice(p->initial[DR_STATE_S], p->state_count[DR_STATE_S]);
        result got = run(cpu, p, paths[i % 2], 0, false);
        twice(once.o, p->o_count);
        twice(once.final[DR_STATE_S], p->state_count[DR_STATE_S]);
        assert_same("twice the values", "o", got.o, once.o, p->o_count);
        assert_same("twice the values", "S", got.final[DR_STATE_S], once.final[DR_STATE_S], p->state_count[DR_STATE_S]);
        result_free(&once), result_free(&got);
        problem_free(p);
    }
    dr_backend_close(cpu);
}

/* A NaN in one value comes out at its token, and neither another sequence nor another value head sees it. */
static void test_nan_survives(void **state) {
    (void)state;
    static const int64_t cu_seqlens[] = {0, 20, 40};
    dr_random random = dr_random_start(seed(), 6);
    dr_backend *cpu = open_cpu(NULL, 1);
    for (int j = 0; j < 2; j++) {
        problem *p = some_problem(dr_rule_find("kda"), 2, cu_seqlens, &random);
        const int64_t width = p->o_count / 40, V = p->recurrence.value_size;
        p->input[DR_INPUT_VALUE][25 * width] = NAN;
        result r = run(cpu, p, paths[j], 0, false);
        assert_true(isnan(r.o[25 * width]));
        for (int64_t i = 0; i < p->o_count; i++)
            if (i < 20 * width || i % width >= V) assert_true(isfinite(r.o[i]));
        result_free(&r);
        problem_free(p);
    }
    dr_backend_close(cpu);
}

/* Everything that may be missing: initial states, d_final, and all gradients but one, which keeps its bits. */
static void test_missing_operands(void **state) {
    (void)state;
    static const int64_t cu_seqlens[] = {0, 21, 230}; /* a backward in two passes, where no parameter's gradient is wanted */
    dr_random random = dr_random_start(seed(), 7);
    dr_backend *cpu = open_cpu(NULL, 8);
    for (int n = 0; n < 12; n++) {
        problem *p = some_problem(NULL, 2, cu_seqlens, &random);
        for (int i = 0; i < DR_STATES; i++) {
            free(p->initial[i]), free(p->d_final[i]);
            p->initial[i] = p->d_final[i] = NULL;
            p->state_count[i] = 0;
        }
        p->recurrence.path = paths[n % 2];
        result want = run(cpu, p, paths[n % 2], 0, true);
        dr_recurrence_memory memory;
        must(dr_recurrence_plan(cpu, &p->recurrence, &memory));
        void *saved = block(memory.saved),
             *workspace = block(memory.forward > memory.backward ? memory.forward : memory.backward);
        void *o = poisoned(cpu, p->d_o, p->o_count), *d_o = tensor_in(cpu, p->d_o, p->o_count);
        dr_inputs inputs = {{0}};
        for (int i = 0; i < DR_INPUTS; i++) inputs.at[i] = tensor_in(cpu, p->input[i], p->input_count[i]);
        must(dr_recurrence_forward(cpu, &p->recurrence, &inputs, NULL, o, NULL, saved, workspace));
        for (int i = 0; i < DR_INPUTS; i++) {
            if (!p->input[i]) continue;
            dr_input_gradients only = {{0}};
            double *got = numbers(p->input_count[i]);
            only.at[i] = poisoned(cpu, p->input[i], p->input_count[i]);
            must(dr_recurrence_backward(cpu, &p->recurrence, &inputs, NULL, saved, d_o, NULL, &only, NULL, workspace));
            tensor_out(cpu, only.at[i], got, p->input_count[i]);
            assert_same("one gradient alone", dr_input_name((dr_input)i), got, want.gradient[i], p->input_count[i]);
            free(got);
        }
        for (int i = 0; i < DR_INPUTS; i++) free((void *)inputs.at[i]);
        free(saved), free(workspace), free(o), free(d_o);
        result_free(&want);
        problem_free(p);
    }
    dr_backend_close(cpu);
}

static void test_kernel_names(void **state) {
    (void)state;
    dr_backend *cpu = open_cpu("portable", 1);
    dr_recurrence r = {.rule = dr_rule_find("eda"),
                       .layout = {1, 100, NULL},
                       .key_heads = 1,
                       .value_heads = 1,
                       .key_size = 8,
                       .value_size = 8};
    char text[64];
    dr_recurrence_kernel(cpu, &r, false, text, sizeof text);
    assert_string_equal(text, "cpu chunkwise portable chunk 8");
    r.chunk = 7;
    dr_recurrence_kernel(cpu, &r, false, text, sizeof text);
    assert_string_equal(text, "cpu chunkwise portable chunk 7");
    dr_recurrence_kernel(cpu, &r, true, text, sizeof text);
    assert_string_equal(text, "cpu decode portable");
    r.path = DR_PATH_RECURRENT;
    assert_int_equal(dr_recurrence_kernel(cpu, &r, false, text, sizeof text), strlen("cpu recurrent portable"));
    assert_string_equal(text, "cpu recurrent portable");
    dr_backend_close(cpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_named_rules),      cmocka_unit_test(test_compositions),
        cmocka_unit_test(test_threads),          cmocka_unit_test(test_wide_decode),
        cmocka_unit_test(test_value_blocks),     cmocka_unit_test(test_packed_is_separate),
        cmocka_unit_test(test_split_is_whole),   cmocka_unit_test(test_no_decay_is_zero_decay),
        cmocka_unit_test(test_linear_in_values), cmocka_unit_test(test_nan_survives),
        cmocka_unit_test(test_missing_operands), cmocka_unit_test(test_kernel_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
