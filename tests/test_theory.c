/* The papers' statements: all hold and every counter-case fails, for several seeds; a result that is not a number, an engine
 * that computes anything else, and a lack of memory show. The linker puts the engine's functions below before the library's, so
 * that nothing in the library knows of being tested. */
#include "allocation.h"
#include "check/theory/theory.h"

#include <stdio.h>
#include <stdlib.h>

static const uint64_t seeds[] = {1, 20261, 7919};

/* ---- an engine that can be broken -------------------------------------------------------------------------------------------
 */

typedef enum { SOUND, NOT_A_NUMBER, SLIGHTLY_WRONG } engine_fault;

static engine_fault engine_fault_now;
static int engine_calls;

dr_status __real_dr_recurrence_forward(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                       const dr_states *initial, void *o, const dr_mutable_states *final, void *saved,
                                       void *workspace);
dr_status __wrap_dr_recurrence_forward(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                       const dr_states *initial, void *o, const dr_mutable_states *final, void *saved,
                                       void *workspace);

/* Adds to the first number of a result, by another amount each call, so that two wrong results are not the same. */
static void spoil(const dr_backend *backend, void *result) {
    double added = engine_fault_now == NOT_A_NUMBER ? NAN : 1e-3 * (1 + engine_calls % 7);
    if (dr_backend_dtype(backend) == DR_F64)
        *(double *)result += added;
    else
        *(float *)result += (float)added;
}

dr_status __wrap_dr_recurrence_forward(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                       const dr_states *initial, void *o, const dr_mutable_states *final, void *saved,
                                       void *workspace) {
    DR_TRY(__real_dr_recurrence_forward(backend, recurrence, inputs, initial, o, final, saved, workspace));
    engine_calls++;
    if (engine_fault_now == SOUND) return DR_OK;
    spoil(backend, o);
    for (int i = 0; final && i < DR_STATES; i++)
        if (final->at[i]) spoil(backend, final->at[i]);
    return DR_OK;
}

/* Checks a statement while the engine has a fault; returns how often the engine ran. */
static int check_with(engine_fault fault, int index, dr_theory_result *result) {
    engine_calls = 0;
    engine_fault_now = fault;
    dr_status status = dr_theory_check(index, 1, result);
    engine_fault_now = SOUND;
    if (status != DR_OK) fail_msg("%s", dr_last_error());
    return engine_calls;
}

/* ---- statements
 * --------------------------------------------------------------------------------------------------------------- */

static void assert_sound(const dr_theory_result *result, uint64_t seed) {
    if (!result->holds)
        fail_msg("%s does not hold with seed %llu: %g, %s %g", result->name, (unsigned long long)seed, result->figure,
                 result->at_least ? "at least" : "at most", result->bound);
    if (!result->counter_fails)
        fail_msg("the counter-case of %s holds with seed %llu: %g", result->name, (unsigned long long)seed,
                 result->counter_figure);
    if (result->at_least ? result->counter_bound > result->bound : result->counter_bound < result->bound)
        fail_msg("the bounds of %s overlap: %g and %g", result->name, result->bound, result->counter_bound);
}

static void test_all_hold(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof seeds / sizeof seeds[0]; s++)
        for (int i = 0; i < dr_theory_count(); i++) {
            dr_theory_result result;
            if (dr_theory_check(i, seeds[s], &result) != DR_OK) fail_msg("%s", dr_last_error());
            assert_sound(&result, seeds[s]);
        }
}

static void test_not_a_number_is_caught(void **state) {
    (void)state;
    int with_engine = 0;
    for (int i = 0; i < dr_theory_count(); i++) {
        dr_theory_result result;
        if (check_with(NOT_A_NUMBER, i, &result) == 0) continue;
        with_engine++;
        if (result.holds) fail_msg("%s holds although the engine gives NaN: %g", result.name, result.figure);
    }
    assert_in_range(with_engine, 80, dr_theory_count()); /* the others have no recurrence in them */
}

/* What an equality in double states must notice an error of a thousandth. */
static void test_wrong_engine_is_caught(void **state) {
    (void)state;
    int equalities = 0;
    for (int i = 0; i < dr_theory_count(); i++) {
        dr_theory_result result;
        int calls = check_with(SLIGHTLY_WRONG, i, &result);
        if (calls == 0 || result.at_least || result.bound == 0 || result.bound > 1e-4) continue;
        equalities++;
        if (result.holds) fail_msg("%s holds although the engine is wrong: %g", result.name, result.figure);
    }
    assert_in_range(equalities, 60, dr_theory_count());
}

static void test_seed_decides(void **state) {
    (void)state;
    dr_theory_result one, again, other;
    for (int i = 0; i < dr_theory_count(); i++) {
        if (strcmp(dr_theory_name(i), "pdn.f2.1-pgdn") != 0) continue;
        assert_int_equal(dr_theory_check(i, 5, &one), DR_OK);
        assert_int_equal(dr_theory_check(i, 5, &again), DR_OK);
        assert_int_equal(dr_theory_check(i, 6, &other), DR_OK);
        assert_true(one.figure == again.figure && one.counter_figure == again.counter_figure);
        assert_true(one.counter_figure != other.counter_figure);
        return;
    }
    fail_msg("pdn.f2.1-pgdn is gone");
}

static void test_out_of_range(void **state) {
    (void)state;
    dr_theory_result result;
    assert_null(dr_theory_name(-1));
    assert_null(dr_theory_name(dr_theory_count()));
    assert_int_equal(dr_theory_check(dr_theory_count(), 1, &result), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "numbered from 0"));
    assert_int_equal(dr_theory_check(-1, 1, &result), DR_ERROR_ARGUMENT);
}

/* ---- what judges
 * -------------------------------------------------------------------------------------------------------------- */

static dr_theory_result judged(double figure, bool at_least, double counter_figure) {
    dr_theory_result result = {.figure = figure,
                               .bound = at_least ? 2 : 1,
                               .at_least = at_least,
                               .counter_figure = counter_figure,
                               .counter_bound = at_least ? 1 : 2};
    dr_theory_judge(&result);
    return result;
}

static void test_judging(void **state) {
    (void)state;
    assert_true(judged(1, false, 0).holds);
    assert_false(judged(1.001, false, 0).holds);
    assert_false(judged(NAN, false, 0).holds);
    assert_false(judged(-INFINITY, false, 0).holds);
    assert_true(judged(2, true, 0).holds);
    assert_false(judged(1.999, true, 0).holds);
    assert_false(judged(NAN, true, 0).holds);
    assert_false(judged(INFINITY, true, 0).holds);

    assert_true(judged(0, false, 2.001).counter_fails);
    assert_false(judged(0, false, 2).counter_fails);
    assert_false(judged(0, false, NAN).counter_fails);
    assert_false(judged(0, false, INFINITY).counter_fails);
    assert_true(judged(0, true, 0.999).counter_fails);
    assert_false(judged(0, true, 1).counter_fails);
    assert_false(judged(0, true, NAN).counter_fails);
}

static void test_distances(void **state) {
    (void)state;
    const double one[] = {1, 2, 3}, other[] = {1, 2.5, 3}, none[] = {1, NAN, 3};
    assert_true(dr_theory_distance(3, one, other) == 0.5);
    assert_true(isinf(dr_theory_distance(3, one, none)));
    assert_true(isinf(dr_theory_distance(3, none, one)));
    assert_true(fabs(dr_theory_relative(3, other, one) - 0.5 / sqrt(14)) < 1e-15);
    assert_true(isinf(dr_theory_relative(3, none, one)));
    assert_true(isinf(worse(0, NAN)) && isinf(worse(NAN, 0)));
}

static void test_matrices(void **state) {
    (void)state;
    dr_random random = dr_random_start(1, 0);
    for (int size = 1; size <= MATRIX_SIZE; size++) {
        matrix a = definite(&random, size), b = normals(&random, size, MATRIX_SIZE - 1);
        assert_true(distance(product(a, solved(a, b)), b) < 1e-13);
    }
    assert_true(isnan(solved(zeros(2, 2), identity(2)).at[0]));
    const double turn[] = {0, -2, 2, 0}; /* eigenvalues 2i and -2i */
    matrix a = from_numbers(2, 2, turn);
    double real[MATRIX_SIZE], imaginary[MATRIX_SIZE];
    dr_matrix_eigenvalues(&a, real, imaginary);
    assert_true(fabs(real[0]) < 1e-14 && fabs(real[1]) < 1e-14);
    assert_true(fabs(fabs(imaginary[0]) - 2) < 1e-14 && fabs(imaginary[0] + imaginary[1]) < 1e-14);
    a.at[0] = NAN;
    dr_matrix_eigenvalues(&a, real, imaginary);
    assert_true(isnan(real[0]) && isnan(imaginary[1]));
}

/* ---- the table
 * ---------------------------------------------------------------------------------------------------------------- */

static char *contents_of(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("cannot open %s", path);
    static const size_t most = 1 << 20;
    char *text = malloc(most);
    assert_non_null(text);
    size_t length = fread(text, 1, most - 1, file);
    assert_true(feof(file));
    text[length] = '\0';
    fclose(file);
    return text;
}

/* docs/papers.md says which statement checks what, and where each rule is from: all must stand there by name. */
static void test_names(void **state) {
    (void)state;
    char *papers = contents_of(DR_TESTS_FOLDER "/../docs/papers.md");
    for (int i = 0; i < dr_theory_count(); i++) {
        const char *name = dr_theory_name(i), *point = strchr(name, '.');
        char quoted[64];
        assert_non_null(point);
        for (int j = 0; j < i; j++) assert_string_not_equal(name, dr_theory_name(j));
        assert_in_range(snprintf(quoted, sizeof quoted, "`%s`", name), 1, sizeof quoted - 1);
        if (!strstr(papers, quoted)) fail_msg("docs/papers.md does not name the statement %s", quoted);
    }
    for (int i = 0; i < dr_rule_count(); i++) {
        char line[64];
        snprintf(line, sizeof line, "\n| `%s` |", dr_rule_at(i)->name);
        if (!strstr(papers, line)) fail_msg("docs/papers.md has no line on the rule %s", dr_rule_at(i)->name);
    }
    free(papers);
}

static dr_status check_index(void *context) {
    dr_theory_result result;
    return dr_theory_check(*(int *)context, 1, &result);
}

/* One statement of each kind: of exact rules, Monte Carlo, gates, chunk forms. */
static void test_failed_allocations(void **state) {
    (void)state;
    static const char *const names[] = {"pdn.c2-diagonal-delta", "pdn.table-2-nlms", "eda.eq-15-taylor", "qdelta.eq-27-strict"};
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
        int index = 0;
        while (strcmp(dr_theory_name(index), names[n]) != 0) index++;
        assert_survives_failed_allocations(check_index, &index);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_hold),
        cmocka_unit_test(test_not_a_number_is_caught),
        cmocka_unit_test(test_wrong_engine_is_caught),
        cmocka_unit_test(test_seed_decides),
        cmocka_unit_test(test_out_of_range),
        cmocka_unit_test(test_judging),
        cmocka_unit_test(test_distances),
        cmocka_unit_test(test_matrices),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
