/* States in bfloat16: a call gives the bits of the same call on the widened state, and leaves its state rounded to the nearest,
 * for every named rule on every instruction set; over many tokens it stays within a bound of the reference; and states as
 * objects know their type, in memory, in parts and in files. */
#include "base/cpu.h"
#include "base/half.h"
#include "recurrence/problem.h"
#include "scratch.h"
#include "statuses.h"

#include <deltarule/state.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 24, SEQUENCES = 3 };

static int isa_count(void) {
    dr_cpu_features features = dr_cpu_detect();
    return features.avx512 ? 3 : features.avx2 ? 2 : 1;
}

static const char *const isas[] = {"portable", "avx2", "avx512"};

/* ---- calls ---------------------------------------------------------------------------------------------------------- */

static uint16_t rounded(double x) {
    return dr_bf16_from_float((float)x);
}

/* Values over 128 columns fill strips of several widths, with a rest on every instruction set. */
static problem *problem_of(const dr_rule *rule, int64_t value_size, int64_t tokens, dr_random *random) {
    const dr_recurrence sizes = {.layout = {.sequences = SEQUENCES, .rows = SEQUENCES * tokens},
                                 .key_heads = 2,
                                 .value_heads = rule->tied_scan ? 2 : 4,
                                 .key_size = 7,
                                 .value_size = value_size};
    problem *p = problem_create(rule, &sizes, false, random);
    double *s = p->initial[DR_STATE_S];
    for (int64_t i = 0; i < p->state_count[DR_STATE_S]; i++) s[i] = (double)dr_bf16_to_float(rounded(s[i]));
    return p;
}

/* The problem with S in bfloat16, by decode (of one token) or forward: o, and the states after it. */
static void run_bf16(dr_backend *backend, const problem *p, bool decode, double *o, double *final[DR_STATES]) {
    dr_recurrence recurrence = p->recurrence;
    recurrence.bf16_state = true;
    dr_recurrence_memory memory;
    must(dr_recurrence_plan(backend, &recurrence, &memory));
    dr_inputs inputs;
    dr_states initial = {{0}};
    dr_mutable_states states = {{0}};
    for (int i = 0; i < DR_INPUTS; i++) inputs.at[i] = tensor_in(backend, p->input[i], p->input_count[i]);
    for (int i = 0; i < DR_STATES; i++) initial.at[i] = states.at[i] = tensor_in(backend, p->initial[i], p->state_count[i]);
    const int64_t count = p->state_count[DR_STATE_S];
    uint16_t *s = malloc((size_t)count * sizeof *s);
    for (int64_t i = 0; i < count; i++) s[i] = rounded(p->initial[DR_STATE_S][i]);
    free(states.at[DR_STATE_S]);
    initial.at[DR_STATE_S] = states.at[DR_STATE_S] = s;
    void *got = poisoned(backend, p->d_o, p->o_count), *workspace = block(decode ? memory.decode : memory.forward);
    must(decode ? dr_recurrence_decode(backend, &recurrence, &inputs, &states, got, workspace)
                : dr_recurrence_forward(backend, &recurrence, &inputs, &initial, got, &states, NULL, workspace));
    tensor_out(backend, got, o, p->o_count);
    for (int64_t i = 0; i < count; i++) final[DR_STATE_S][i] = (double)dr_bf16_to_float(s[i]);
    free(s);
    for (int i = 0; i < DR_STATES; i++)
        if (i != DR_STATE_S) tensor_out(backend, states.at[i], final[i], p->state_count[i]);
    for (int i = 0; i < DR_INPUTS; i++) free((void *)inputs.at[i]);
    free(workspace);
}

/* got, of run_bf16, against want, of the same call in float. */
static void assert_rounded(const char *name, const problem *p, const double *o, double *const final[DR_STATES],
                           const result *want) {
    fault what;
    if (!numbers_same(name, "o", o, want->o, p->o_count, &what)) fail_msg("%s", what.text);
    for (int64_t i = 0; i < p->state_count[DR_STATE_S]; i++)
        if (rounded(want->final[DR_STATE_S][i]) != rounded(final[DR_STATE_S][i]))
            fail_msg("%s: S[%lld] is %g where %g is to be rounded", name, (long long)i, final[DR_STATE_S][i],
                     want->final[DR_STATE_S][i]);
    for (int i = 0; i < DR_STATES; i++)
        if (i != DR_STATE_S && !numbers_same(name, dr_state_name(i), final[i], want->final[i], p->state_count[i], &what))
            fail_msg("%s", what.text);
}

static void check_rule(const dr_rule *rule, int64_t value_size, const char *isa, dr_random *random) {
    dr_backend *cpu = open_backend("cpu", isa, 2);
    char name[128];
    result want;
    fault what;
    for (int decode = 0; decode <= 1; decode++) {
        problem *p = problem_of(rule, value_size, decode ? 1 : 5, random);
        double *o = numbers(p->o_count), *final[DR_STATES];
        for (int i = 0; i < DR_STATES; i++) final[i] = numbers(p->state_count[i]);
        snprintf(name, sizeof name, "%s, %s, %s of %lld columns", rule->name, isa, decode ? "decode" : "forward",
                 (long long)value_size);
        run_bf16(cpu, p, decode, o, final);
        if (!(decode ? problem_decode(cpu, p, &want, &what) : problem_run(cpu, p, DR_PATH_BEST, 0, false, &want, &what)))
            fail_msg("%s", what.text);
        assert_rounded(name, p, o, final, &want);
        result_free(&want);
        for (int i = 0; i < DR_STATES; i++) free(final[i]);
        free(o);
        problem_free(p);
    }
    dr_backend_close(cpu);
}

static void test_calls_round_once(void **state) {
    (void)state;
    static const int64_t value_sizes[] = {2, 24, 72, 130, 256, 530};
    dr_random random = dr_random_start(11, 0);
    for (int i = 0; i < dr_rule_count(); i++)
        for (int isa = 0; isa < isa_count(); isa++) check_rule(dr_rule_at(i), value_sizes[i % 6], isas[isa], &random);
}

/* NaN stays NaN, the largest numbers become infinite, ties go to even: through a token that changes nothing. */
static void test_edges(void **state) {
    (void)state;
    dr_random random = dr_random_start(12, 0);
    for (int isa = 0; isa < isa_count(); isa++) {
        dr_backend *cpu = open_backend("cpu", isas[isa], 2);
        problem *p = problem_of(dr_rule_find("linear_attention"), 24, 1, &random);
        const float values[] = {NAN, INFINITY, -INFINITY, 3.4e38f, -0.0f, 1e-40f, 1.0f, -3.0f};
        double *o = numbers(p->o_count), *final[DR_STATES];
        for (int i = 0; i < DR_STATES; i++) final[i] = numbers(p->state_count[i]);
        for (int64_t i = 0; i < p->input_count[DR_INPUT_KEY]; i++) p->input[DR_INPUT_KEY][i] = 0;
        for (int64_t i = 0; i < p->state_count[DR_STATE_S]; i++) p->initial[DR_STATE_S][i] = (double)values[i % 8];
        run_bf16(cpu, p, true, o, final);
        for (int64_t i = 0; i < p->state_count[DR_STATE_S]; i++) {
            const uint16_t want = rounded((double)values[i % 8]), got = rounded(final[DR_STATE_S][i]);
            if (i % 8 == 0)
                assert_true(isnan(final[DR_STATE_S][i]));
            else if (i % 8 != 4) /* -0 + 0 = 0 */
                assert_int_equal(got, want);
        }
        for (int i = 0; i < DR_STATES; i++) free(final[i]);
        free(o);
        problem_free(p);
        dr_backend_close(cpu);
    }
}

/* ---- many tokens ---------------------------------------------------------------------------------------------------- */

/* Token by token in bfloat16 against the reference, which keeps double: each token rounds each element of S by at most 2^-9 of
 * it, and the sum of such errors grows as the root of their number. It must be more than float would make, too. */
static void test_many_tokens(void **state) {
    (void)state;
    static const char *const rules[] = {"gdn", "kda", "eda", "qdelta", "pgdn", "gla", "delta_product"};
    dr_random random = dr_random_start(13, 0);
    dr_backend *reference, *cpu = open_backend("cpu", NULL, 2);
    must(dr_backend_open("reference", NULL, &reference));
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        problem *p = problem_of(dr_rule_find(rules[r]), 16, TOKENS, &random);
        result want;
        fault what;
        if (!problem_decode(reference, p, &want, &what)) fail_msg("%s", what.text);
        double *o = numbers(p->o_count), *final[DR_STATES];
        for (int i = 0; i < DR_STATES; i++) {
            final[i] = numbers(p->state_count[i]);
            if (p->initial[i]) memcpy(final[i], p->initial[i], (size_t)p->state_count[i] * sizeof(double));
        }
        const int64_t width = p->o_count / (SEQUENCES * TOKENS);
        for (int64_t t = 0; t < TOKENS; t++) {
            problem *part = problem_part(p, 0, SEQUENCES, (int64_t[]){t, t, t}, (int64_t[]){1, 1, 1}, final);
            double *part_o = numbers(part->o_count);
            run_bf16(cpu, part, true, part_o, final);
            for (int64_t s = 0; s < SEQUENCES; s++)
                memcpy(o + (s * TOKENS + t) * width, part_o + s * width, (size_t)width * sizeof *o);
            free(part_o);
            problem_free(part);
        }
        const double error = error_of(o, want.o, p->o_count, 1e-6);
        print_message("%s: %.2g of the outputs\n", rules[r], error);
        assert_true(error < sqrt(TOKENS) * 0x1p-9);
        assert_true(error > 1e-5);
        for (int i = 0; i < DR_STATES; i++) free(final[i]);
        free(o);
        result_free(&want);
        problem_free(p);
    }
    dr_backend_close(cpu), dr_backend_close(reference);
}

/* ---- states as objects ---------------------------------------------------------------------------------------------- */

static dr_recurrence recurrence_of(const char *rule, int64_t sequences) {
    return (dr_recurrence){.rule = dr_rule_find(rule),
                           .layout = {.sequences = sequences, .rows = sequences},
                           .key_heads = 1,
                           .value_heads = 1,
                           .key_size = 3,
                           .value_size = 6,
                           .bf16_state = true};
}

enum { ELEMENTS = 3 * 6 };

static uint16_t *s_of(dr_state *state) {
    dr_mutable_states at;
    must(dr_state_final(state, dr_state_backend(state), dr_state_recurrence(state), &at));
    return at.at[DR_STATE_S];
}

static void test_objects(void **unused) {
    (void)unused;
    const char *file = scratch_path("state.safetensors");
    dr_backend *cpu = open_backend("cpu", NULL, 2);
    dr_recurrence recurrence = recurrence_of("pkda", 2), plain = recurrence;
    plain.bf16_state = false;
    dr_state *state, *part, *whole, *loaded, *other;
    must(dr_state_create(cpu, &recurrence, &state));
    assert_true(dr_state_recurrence(state)->bf16_state);
    uint16_t *s = s_of(state);
    for (int i = 0; i < 2 * ELEMENTS; i++) assert_int_equal(s[i], 0), s[i] = (uint16_t)(0x3f80 + i);

    must(dr_state_slice(state, 1, 1, &part));
    assert_memory_equal(s_of(part), s + ELEMENTS, ELEMENTS * sizeof *s);
    must(dr_state_concatenate((const dr_state *[]){part, state}, 2, &whole));
    assert_memory_equal(s_of(whole), s + ELEMENTS, ELEMENTS * sizeof *s);
    assert_memory_equal(s_of(whole) + ELEMENTS, s, 2 * ELEMENTS * sizeof *s);

    must(dr_state_save(whole, file));
    must(dr_state_load(cpu, NULL, file, &loaded));
    assert_true(dr_state_recurrence(loaded)->bf16_state);
    assert_memory_equal(s_of(loaded), s_of(whole), 3 * ELEMENTS * sizeof *s);

    assert_refused(dr_state_check(state, cpu, &plain), DR_ERROR_ARGUMENT, "keeps S in bfloat16");
    plain.layout = (dr_layout){.sequences = 3, .rows = 3};
    assert_refused(dr_state_load(cpu, &plain, file, &other), DR_ERROR_ARGUMENT, "keeps S in bfloat16");
    must(dr_state_create(cpu, &plain, &other));
    assert_refused(dr_state_concatenate((const dr_state *[]){state, other}, 2, &part), DR_ERROR_ARGUMENT, "bfloat16");
    dr_state_destroy(state), dr_state_destroy(part), dr_state_destroy(whole), dr_state_destroy(loaded), dr_state_destroy(other);

    dr_backend *reference;
    must(dr_backend_open("reference", NULL, &reference));
    dr_recurrence_memory memory;
    assert_refused(dr_recurrence_plan(reference, &recurrence, &memory), DR_ERROR_UNSUPPORTED, "reference has no states in");
    assert_refused(dr_state_create(reference, &recurrence, &state), DR_ERROR_UNSUPPORTED, "reference has no states in");
    assert_refused(dr_state_load(reference, NULL, file, &state), DR_ERROR_ARGUMENT, "tensor S is BF16");
    recurrence.value_size = 5;
    assert_refused(dr_recurrence_plan(cpu, &recurrence, &memory), DR_ERROR_ARGUMENT, "value size 5 is odd");
    dr_backend_close(cpu), dr_backend_close(reference);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_round_once),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_many_tokens),
        cmocka_unit_test(test_objects),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
