/* The property tests can fail: an engine whose results are changed is caught by each check, the trial is made small and the
 * list of steps repeats it. And their trials are what they say: right, the same for a seed, over all options. */
#include "recurrence/checks.h"
#include "recurrence/pairs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static machine engines;

static int open_engines(void **state) {
    (void)state;
    machine_open(&engines);
    return 0;
}

static int close_engines(void **state) {
    (void)state;
    machine_close(&engines);
    return 0;
}

/* ---- what is caught ------------------------------------------------------------------------------------------------- */

static const char *tampered_check; /* where results are changed, and which of them */
static int tampered_input;         /* an input's gradient; DR_INPUTS: o; DR_INPUTS + i: a final state */
static bool by_a_bit;
static long times_tampered;

static double *tampered_numbers(const problem *p, const result *r, int64_t *count) {
    if (tampered_input < DR_INPUTS) {
        *count = p->input_count[tampered_input];
        return r->gradient[tampered_input];
    }
    *count = tampered_input == DR_INPUTS ? p->o_count : p->state_count[tampered_input - DR_INPUTS - 1];
    return tampered_input == DR_INPUTS ? r->o : r->final[tampered_input - DR_INPUTS - 1];
}

/* Changes the last number by its least bit, or by as much as a hundredth of all of them together, but at least 1e-3. */
static void tamper(const trial *t, const problem *p, const char *check, result *r) {
    int64_t count;
    double size = 0, *x = tampered_numbers(p, r, &count);
    (void)t;
    if (strcmp(check, tampered_check) != 0 || count == 0) return;
    for (int64_t i = 0; i < count; i++) size += x[i] * x[i];
    x[count - 1] = by_a_bit ? nextafter(x[count - 1], 1e9) : x[count - 1] + fmax(0.01 * sqrt(size), 1e-3);
    times_tampered++;
}

static trial plain_of(uint64_t seed, const char *rule) {
    trial t = trial_draw(seed);
    t.rule = *dr_rule_find(rule);
    t.heads = HEADS_ONE;
    t.key_heads = t.group = 1;
    t.key_size = t.value_size = 4;
    t.packing = PACKING_EQUAL;
    t.values = VALUES_MILD;
    t.sequences = 2;
    t.length[0] = t.length[1] = 7;
    t.cut[0] = t.cut[1] = 3;
    t.threads = 2;
    t.chunk = 4;
    t.scale = 0;
    return t;
}

static void test_each_check_catches(void **state) {
    (void)state;
    static const struct {
        const char *check, *words;
        bool by_a_bit, backwards, states;
    } cases[] = {
        {"recurrent", "cpu recurrent portable: ", false, true, true},
        {"chunkwise", "cpu chunkwise portable chunk 16: ", false, true, true},
        {"decode", "cpu decode: ", false, false, true},
        {"split", "split: ", false, true, true},
        {"threads", "another number of threads: ", true, true, true},
        {"packed", "packed: ", true, true, true},
        {"resumed", "resumed: ", true, false, true},
    };
    const trial t = plain_of(2, "pkda"); /* seed 2: bit-for-bit checks run chunkwise */
    problem *p = trial_problem(&t);
    fault what;
    engines.tamper = NULL;
    assert_true(trial_holds(&t, &engines, &what));
    engines.tamper = tamper;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int of = 0; of <= DR_INPUTS + DR_STATES; of++) {
            const bool gradient = of < DR_INPUTS;
            if (gradient ? !cases[i].backwards || !p->input[of] : of > DR_INPUTS && !p->initial[of - DR_INPUTS - 1]) continue;
            /* a parameter's gradient is a sum over sequences: alone it is another */
            if (gradient && !is_per_token(p, (dr_input)of) && strcmp(cases[i].check, "packed") == 0) continue;
            tampered_check = cases[i].check;
            tampered_input = of;
            by_a_bit = cases[i].by_a_bit;
            times_tampered = 0;
            if (trial_holds(&t, &engines, &what)) fail_msg("check %s did not see a change of number %d", cases[i].check, of);
            assert_int_equal(times_tampered, 1);
            if (!strstr(what.text, cases[i].words)) fail_msg("'%s' is not in: %s", cases[i].words, what.text);
        }
    engines.tamper = NULL;
    problem_free(p);
}

/* A float32 engine may err by its roundings. */
static void test_roundings_are_allowed(void **state) {
    (void)state;
    const trial t = plain_of(2, "gdn");
    fault what;
    engines.tamper = tamper;
    by_a_bit = true;
    tampered_check = "chunkwise";
    tampered_input = DR_INPUT_VALUE;
    times_tampered = 0;
    assert_true(trial_holds(&t, &engines, &what));
    assert_true(times_tampered > 0);
    engines.tamper = NULL;
}

/* ---- making small --------------------------------------------------------------------------------------------------- */

/* An engine that is wrong where the decay is by channel and a row reads the erase key, from the third token of a sequence on.
 */
static void err_somewhere(const trial *t, const problem *p, const char *check, result *r) {
    bool erases = t->rule.row[0].read == DR_READ_ERASE_KEY || (t->rule.rows == 2 && t->rule.row[1].read == DR_READ_ERASE_KEY);
    if (strcmp(check, "chunkwise") != 0 || t->rule.decay != DR_DECAY_CHANNEL || !erases) return;
    for (int64_t i = 0; i < t->sequences; i++)
        if (t->length[i] >= 3) r->o[p->o_count - 1] += 10;
}

static bool holds(const trial *t, void *context) {
    fault what;
    return trial_holds(t, context, &what);
}

static void take(trial *t, const char *steps) {
    char text[2048];
    snprintf(text, sizeof text, "%s", steps);
    for (char *at = strtok(text, ","); at; at = strtok(NULL, ",")) assert_true(trial_shrink_by(t, at));
}

static void test_shrinking(void **state) {
    (void)state;
    int shrunk = 0;
    engines.tamper = err_somewhere;
    for (uint64_t seed = 1; shrunk < 5; seed++) {
        const trial drawn = trial_draw(seed);
        trial small = drawn, again = drawn;
        char steps[2048];
        assert_true(seed < 1000);
        if (holds(&drawn, &engines)) continue;
        trial_shrink(&small, holds, &engines, steps, sizeof steps);
        assert_false(holds(&small, &engines));
        /* what the error needs is left, and hardly more */
        assert_int_equal(small.rule.decay, DR_DECAY_CHANNEL);
        assert_int_equal(small.sequences, 1);
        assert_int_equal(small.length[0], 3);
        assert_int_equal(small.rule.rows, 1);
        assert_int_equal(small.rule.row[0].read, DR_READ_ERASE_KEY);
        assert_int_equal(small.rule.scan, DR_SCAN_NONE);
        assert_int_equal(small.key_heads * small.group * small.key_size * small.value_size, 1);
        assert_int_equal(small.chunk, 1);
        /* the steps repeat it */
        take(&again, steps);
        assert_true(again.length[0] == 3 && again.sequences == 1 && again.rule.row[0].read == DR_READ_ERASE_KEY);
        assert_false(holds(&again, &engines));
        shrunk++;
    }
    engines.tamper = NULL;
    trial t = trial_draw(1);
    assert_false(trial_shrink_by(&t, "no_such_step"));
}

/* ---- trials --------------------------------------------------------------------------------------------------------- */

static void test_trials(void **state) {
    (void)state;
    bool empty = false, grouped = false, edges = false;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        const trial t = trial_draw(seed), again = trial_draw(seed);
        assert_int_equal(dr_rule_check(&t.rule), DR_OK);
        for (int axis = 0; axis < axis_count(); axis++) {
            assert_in_range(option_of(&t, axis), 0, axis_options(axis) - 1);
            assert_int_equal(option_of(&t, axis), option_of(&again, axis));
            assert_string_not_equal(option_name(axis, option_of(&t, axis)), "unknown");
        }
        problem *p = trial_problem(&t), *other = trial_problem(&again);
        for (int i = 0; i < DR_INPUTS; i++) {
            if (!p->input[i]) continue;
            assert_memory_equal(p->input[i], other->input[i], (size_t)p->input_count[i] * sizeof(double));
            for (int64_t j = 0; j < p->input_count[i]; j++) {
                assert_true((double)(float)p->input[i][j] == p->input[i][j]);
                edges |= p->input[i][j] == -INFINITY;
            }
        }
        for (int64_t i = 0; i < t.sequences; i++) {
            assert_in_range(t.cut[i], 0, t.length[i]);
            empty |= t.length[i] == 0;
        }
        grouped |= t.group > 1;
        problem_free(p), problem_free(other);
    }
    assert_true(empty && grouped && edges);
}

/* Every enumerator that has a name is an option. */
static void test_axes_know_all_options(void **state) {
    (void)state;
    int checked = 0;
    for (int axis = 0; axis < axis_count(); axis++) {
        const char *name = axis_name(axis);
        const bool of_row = strcmp(name, "write 1") == 0 || strcmp(name, "write 2") == 0;
        if (of_row) assert_string_equal(dr_write_name((dr_write)axis_options(axis)), "unknown");
        if (strcmp(name, "decay") == 0) assert_string_equal(dr_decay_name((dr_decay)axis_options(axis)), "unknown");
        if (strcmp(name, "scan") == 0) assert_string_equal(dr_scan_name((dr_scan)axis_options(axis)), "unknown");
        if (strcmp(name, "query") == 0) assert_string_equal(dr_query_name((dr_query)axis_options(axis)), "unknown");
        if (strcmp(name, "normalizer") == 0)
            assert_string_equal(dr_normalizer_name((dr_normalizer)axis_options(axis)), "unknown");
        checked += of_row || strcmp(name, "decay") == 0 || strcmp(name, "scan") == 0 || strcmp(name, "query") == 0 ||
                   strcmp(name, "normalizer") == 0;
    }
    assert_int_equal(checked, 6);
}

/* A pair that no rule can have is found to be refused, one that was merely not drawn is found to be missing. */
static void test_pairs(void **state) {
    (void)state;
    pairs counted = pairs_create();
    char missing[160], *text = NULL;
    size_t size = 0;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        const trial t = trial_draw(seed);
        pairs_add(&counted, &t);
    }
    assert_true(pairs_find_refused(&counted, missing, sizeof missing) > 100);
    assert_non_null(strstr(missing, " with "));
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    pairs_print(&counted, true, out);
    fclose(out);
    assert_non_null(strstr(text, "repeat 2, scan diagonal: refused\n"));
    assert_non_null(strstr(text, "scan gram, query ridge: refused\n"));
    assert_null(strstr(text, "decay none, scan diagonal: refused\n"));
    assert_null(strstr(text, "packing one, threads 3: refused\n"));
    free(text);
    pairs_free(&counted);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_check_catches),
        cmocka_unit_test(test_roundings_are_allowed),
        cmocka_unit_test(test_shrinking),
        cmocka_unit_test(test_trials),
        cmocka_unit_test(test_axes_know_all_options),
        cmocka_unit_test(test_pairs),
    };
    return cmocka_run_group_tests(tests, open_engines, close_engines);
}
