/* Claims of experiments: orders, bounds, excesses and ratios, at places of the grid, and where runs are missing. */
#include "experiment_file.h"

static void test_claims(void **state) {
    (void)state;
    char last[256] = "";
    dr_experiment *experiment;
    assert_int_equal(open_text(grid, NULL, &experiment), DR_OK);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_NOT_RUN);
    assert_string_equal(last, "");
    /* rows: gdn 0.001, gdn 0.01, pgdn 0.001, pgdn 0.01, three seeds each */
    static const double figures[] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.6, 0.8, 0.0, 0.1, 0.2};
    for (int i = 0; i < 11; i++) measure(experiment, i, figures[i]);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_NOT_RUN); /* one is missing: the best cannot be told */
    measure(experiment, 11, figures[11]);
    /* the best rows: gdn 0.4 0.5 0.6, pgdn 0.7 0.6 0.8; by seed 0.3 0.1 0.2 */
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_HOLDS);
    assert_non_null(strstr(last, "size a b, pgdn better than gdn by: 0.2 [0.1, 0.3], holds"));
    assert_int_equal(judge(experiment, 1, keep, last), DR_CLAIM_HOLDS);
    assert_non_null(strstr(last, "0.7 [0.6, 0.8]"));
    measure(experiment, 7, 0.45); /* below gdn's of its seed, and below the bound */
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_IN_MEDIAN);
    assert_int_equal(judge(experiment, 1, keep, last), DR_CLAIM_IN_MEDIAN);
    measure(experiment, 6, 0.3);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_FAILS);
    assert_int_equal(judge(experiment, 1, keep, last), DR_CLAIM_FAILS);
    /* where less is better, the best rows are gdn 0.1 0.2 0.3 and pgdn 0.0 0.1 0.2: gdn is not lower */
    assert_int_equal(judge(experiment, 2, keep, last), DR_CLAIM_FAILS);
    for (int s = 0; s < 3; s++) measure(experiment, s, -1 - 0.1 * s);
    assert_int_equal(judge(experiment, 2, keep, last), DR_CLAIM_HOLDS);
    dr_experiment_close(experiment);
}

/* Runs that end where a task is solved: what is beyond counts as solved, and two that solve it are even. */
static void test_solved(void **state) {
    (void)state;
    static const char text[] =
        HEAD "\"settings\": {\"task\": \"mqar\"}, \"seeds\": 3, \"grid\": {\"rule\": [\"gdn\", \"kda\"]},"
             "\"claims\": [{\"text\": \"more\", \"measure\": \"accuracy\", \"axis\": \"rule\", \"order\": [\"gdn\", \"kda\"], "
             "\"solved\": 0.99},"
             "{\"text\": \"less\", \"measure\": \"accuracy\", \"axis\": \"rule\", \"order\": [\"gdn\", \"kda\"], \"better\": "
             "\"lower\", \"solved\": 0.99}]}";
    char last[256] = "";
    dr_experiment *experiment;
    if (open_text(text, NULL, &experiment) != DR_OK) fail_msg("%s", dr_last_error());
    /* rows: gdn, kda, three seeds each */
    static const double both[] = {0.991, 0.999, 0.995, 0.998, 0.992, 0.9955};
    for (int i = 0; i < 6; i++) measure(experiment, i, both[i]);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_EVEN);
    assert_non_null(strstr(last, "gdn better than kda by: 0 [0, 0], no difference"));
    assert_int_equal(judge(experiment, 1, keep, last), DR_CLAIM_IN_MEDIAN); /* of losses so high none is solved */
    measure(experiment, 3, 0.5);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_EVEN); /* one seed in three */
    measure(experiment, 4, 0.6);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_IN_MEDIAN);
    measure(experiment, 5, 0.7);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_HOLDS);
    for (int i = 0; i < 3; i++) measure(experiment, i, 0.2);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_FAILS);
    for (int i = 0; i < 6; i++) measure(experiment, i, 0.5 + 0.1 * i);
    assert_int_equal(judge(experiment, 1, keep, last), DR_CLAIM_EVEN); /* all are below 0.99 but the last */
    assert_non_null(strstr(last, "gdn better than kda by: 0 [0, 0.01], no difference"));
    dr_experiment_close(experiment);
}

/* Of a claim over several places the worst counts, one that was not run too; a bound may be met; where leaves places out. */
static void test_places_of_claims(void **state) {
    (void)state;
    static const char places[] =
        HEAD "\"settings\": {\"task\": \"mqar\"}, \"seeds\": 1,"
             "\"grid\": {\"rule\": [\"gdn\", \"pgdn\", \"kda\"], \"size\": {\"s\": {\"lengths\": \"64/4\"}, \"l\": "
             "{\"lengths\": \"64/8\"}}},"
             "\"claims\": [{\"text\": \"all\", \"measure\": \"accuracy\", \"axis\": \"rule\", \"order\": [\"pgdn\", \"gdn\", "
             "\"kda\"]},"
             "{\"text\": \"l\", \"measure\": \"accuracy\", \"axis\": \"rule\", \"order\": [\"pgdn\", \"gdn\", \"kda\"], "
             "\"where\": {\"size\": "
             "\"l\"}},"
             "{\"text\": \"bound\", \"measure\": \"accuracy\", \"axis\": \"rule\", \"of\": [\"gdn\"], \"at_least\": 0.5}]}";
    char last[256];
    dr_experiment *experiment;
    if (open_text(places, NULL, &experiment) != DR_OK) fail_msg("%s", dr_last_error());
    /* rows: gdn s, gdn l, pgdn s, pgdn l, kda s, kda l */
    measure(experiment, 1, 0.5);
    measure(experiment, 3, 0.7);
    measure(experiment, 5, 0.2);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_NOT_RUN);
    assert_int_equal(judge(experiment, 1, keep, last), DR_CLAIM_HOLDS);
    assert_int_equal(judge(experiment, 2, keep, last), DR_CLAIM_NOT_RUN);
    measure(experiment, 0, 0.5);
    measure(experiment, 2, 0.3);
    measure(experiment, 4, 0.1);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_FAILS);
    assert_int_equal(judge(experiment, 1, keep, last), DR_CLAIM_HOLDS);
    assert_int_equal(judge(experiment, 2, keep, last), DR_CLAIM_HOLDS);
    dr_experiment_close(experiment);
}

/* Excesses over another measure and quotients of two values: their verdicts, and what is not run. */
static void test_excesses_and_ratios(void **state) {
    (void)state;
    static const char text[] = HEAD
        "\"settings\": {\"task\": \"mqar\"}, \"seeds\": 3, \"grid\": {\"rule\": [\"gdn\", \"kda\"]},"
        "\"claims\": [{\"text\": \"more\", \"measure\": \"b\", \"than\": \"accuracy\", \"axis\": \"rule\", \"of\": [\"gdn\"]},"
        "{\"text\": \"much more\", \"measure\": \"b\", \"than\": \"accuracy\", \"axis\": \"rule\", \"of\": [\"gdn\"], "
        "\"at_least\": 0.15},"
        "{\"text\": \"as fast\", \"measure\": \"accuracy\", \"axis\": \"rule\", \"ratio\": [\"gdn\", \"kda\"], \"at_least\": "
        "0.9},"
        "{\"text\": \"not twice\", \"measure\": \"accuracy\", \"axis\": \"rule\", \"ratio\": [\"kda\", \"gdn\"], \"at_most\": "
        "2}]}";
    static const double of_gdn[] = {0.5, 0.6, 0.8}, of_kda[] = {0.5, 0.5, 0.9}, more[] = {0.1, 0.2, 0.3};
    char last[256] = "";
    dr_experiment *experiment;
    if (open_text(text, NULL, &experiment) != DR_OK) fail_msg("%s", dr_last_error());
    for (int s = 0; s < 3; s++) measure(experiment, s, of_gdn[s]);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_NOT_RUN); /* b was not measured */
    assert_int_equal(judge(experiment, 2, keep, last), DR_CLAIM_NOT_RUN);
    for (int s = 0; s < 3; s++) {
        json_object_set_new(experiment->cell[s].measures, "b", json_real(of_gdn[s] + more[s]));
        measure(experiment, 3 + s, of_kda[s]);
    }
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_HOLDS);
    assert_non_null(strstr(last, "gdn, at least 0: 0.2 [0.1, 0.3], holds"));
    assert_int_equal(judge(experiment, 1, keep, last), DR_CLAIM_IN_MEDIAN);
    /* quotients 1, 1.2, 0.889 of the seeds */
    assert_int_equal(judge(experiment, 2, keep, last), DR_CLAIM_IN_MEDIAN);
    assert_non_null(strstr(last, "gdn over kda, at least 0.9: 1 [0.8889, 1.2]"));
    assert_int_equal(judge(experiment, 3, keep, last), DR_CLAIM_HOLDS);
    measure(experiment, 3, 1.5);
    measure(experiment, 4, 1.5);
    assert_int_equal(judge(experiment, 2, keep, last), DR_CLAIM_FAILS);
    assert_int_equal(judge(experiment, 3, keep, last), DR_CLAIM_FAILS);
    json_object_del(experiment->cell[1].measures, "b"); /* of one seed it is missing */
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_NOT_RUN);
    dr_experiment_close(experiment);
}

/* Where runs are missing: comparisons by the seeds that all of their runs have, and how many these are. */
static void test_partial(void **state) {
    (void)state;
    static const double figures[] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.6, 0.8, 0.0, 0.1, 0.2};
    static char table[16384];
    char last[256] = "";
    dr_experiment *experiment;
    assert_int_equal(open_text(grid, &(dr_experiment_options){.partial = true}, &experiment), DR_OK);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_NOT_RUN);
    for (int i = 0; i < 11; i++) measure(experiment, i, figures[i]);
    /* the third seed of pgdn 0.01 is missing: the best rows are gdn 0.4 0.5 and pgdn 0.7 0.6 */
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_HOLDS);
    assert_non_null(strstr(last, "pgdn better than gdn by: 0.2 [0.1, 0.3], holds, by 2 of 3 seeds"));
    assert_int_equal(judge(experiment, 1, keep, last), DR_CLAIM_HOLDS);
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_TABLE, keep_all, table), DR_OK);
    assert_non_null(strstr(table, "holds: order (accuracy); so far 1 of 1 comparisons, by 2 or more of 3 seeds"));
    /* no seed that both sides have */
    for (int i = 3; i < 6; i++) experiment->cell[i].state = DR_CELL_MISSING, json_object_clear(experiment->cell[i].measures);
    assert_int_equal(judge(experiment, 0, keep, last), DR_CLAIM_NOT_RUN);
    assert_int_equal(judge(experiment, 1, keep, last), DR_CLAIM_HOLDS);
    dr_experiment_close(experiment);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_claims), cmocka_unit_test(test_solved),
                                       cmocka_unit_test(test_places_of_claims), cmocka_unit_test(test_excesses_and_ratios),
                                       cmocka_unit_test(test_partial)};
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
