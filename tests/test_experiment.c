/* Experiments: medians and intervals, files that are none, cells, choices among them, reports. Whole sweeps run in
 * tests/cli/experiment.sh. */
#include "allocation.h"
#include "experiment_file.h"

#include <math.h>

/* ---- statistics ----------------------------------------------------------------------------------------------------- */

static void test_spreads(void **state) {
    (void)state;
    double none[1] = {0}, three[] = {3, 1, 2}, four[] = {4, 1, 3, 2}, nine[] = {9, 8, 7, 6, 5, 4, 3, 2, 1}, many[30];
    assert_true(isnan(dr_spread_of(none, 0).median));
    dr_spread spread = dr_spread_of(three, 3);
    assert_true(spread.median == 2 && spread.low == 1 && spread.high == 3 && spread.coverage == 0.75);
    spread = dr_spread_of(four, 4);
    assert_true(spread.median == 2.5 && spread.low == 1 && spread.high == 4 && spread.coverage == 0.875);
    /* of nine the second and the eighth: 1 - 2 (1 + 9)/512 */
    spread = dr_spread_of(nine, 9);
    assert_true(spread.low == 2 && spread.high == 8);
    assert_true(fabs(spread.coverage - (1 - 20.0 / 512)) < 1e-12);
    /* of thirty the tenth and the twenty-first, as tables of the sign test have it: 0.9572 */
    for (int i = 0; i < 30; i++) many[i] = i + 1;
    spread = dr_spread_of(many, 30);
    assert_true(spread.low == 10 && spread.high == 21 && fabs(spread.coverage - 0.9572) < 1e-4);
}

/* ---- files ---------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *text, *says;
} refused[] = {
    {"[]", "e.json"},
    {"{", "e.json"},
    {"{\"title\": \"t\"}", "source"},
    {"{\"title\": 5, \"source\": \"s\", \"measures\": [\"a\"]}", "must be a string, not the integer 5"},
    {"{\"title\": \"t\", \"source\": \"s\"}", "measures must be a list"},
    {"{\"title\": \"t\", \"source\": \"s\", \"measures\": []}", "measures must be a list"},
    {"{\"title\": \"t\", \"source\": \"s\", \"measures\": [5]}", "measures: each must be a string"},
    {"{\"title\": \"t\", \"source\": \"s\", \"measures\": 5}", "measures must be a list, not the integer 5"},
    {HEAD "\"gird\": {}}", "grid"},
    {HEAD "\"grid\": []}", "grid must be an object"},
    {HEAD "\"grid\": {\"rule\": []}}", "grid: rule: an axis is a list"},
    {HEAD "\"grid\": {\"rule\": 5}}", "grid: rule: an axis is a list"},
    {HEAD "\"grid\": {\"rule\": [null]}}", "is no value of a setting"},
    {HEAD "\"grid\": {\"rule\": [{\"base\": \"gdn\"}]}}", "needs a name"},
    {HEAD "\"grid\": {\"rule\": [\"gdn\", \"gdn\"]}}", "\"gdn\" stands twice"},
    {HEAD "\"grid\": {\"rule\": [\"gdm\"]}}", "gdm"},
    {HEAD "\"grid\": {\"a\": {\"x\": 5}}}", "must be an object of settings"},
    {HEAD "\"grid\": {\"a\": {\"x\": {\"hiden\": 5}}}}", "did you mean \"hidden\"?"},
    {HEAD "\"grid\": {\"a\": {\"x\": {\"hidden\": []}}}}", "is no value of setting hidden"},
    {HEAD "\"grid\": {\"a\": {\"x y\": {}, \"x/y\": {}}}}", "two cells have the name"},
    {HEAD "\"grid\": {\"a\": {\"\": {}}}}", "a name of 0 bytes"},
    {HEAD "\"grid\": {\"seed\": [1, 2]}}", "seeds are no axis"},
    {HEAD "\"settings\": 5}", "settings must be an object"},
    {HEAD "\"settings\": {\"steps\": 0.5}}", "steps is \"0.5\""},
    {HEAD "\"settings\": {\"seed\": 5}}", "seed is no setting of an experiment"},
    {HEAD "\"settings\": {\"threads\": 1}}", "threads is no setting of an experiment"},
    {HEAD "\"grid\": {\"heads\": [2, 3]}, \"settings\": {\"task\": \"parity\", \"hidden\": 8}}",
     "heads=3,seed=1: hidden is 8 and heads is 3"},
    {HEAD "\"seeds\": 0}", "seeds"},
    {HEAD "\"seeds\": 1e9}", "seeds"},
    {HEAD "\"best_of\": [\"rule\"]}", "\"rule\" is no axis"},
    {HEAD "\"best_of\": [5]}", "is no axis"},
    {HEAD "\"small\": 5}", "small must be an object"},
    {HEAD "\"small\": {\"measures\": []}}", "small"},
    {HEAD "\"claims\": {}}", "claims must be a list"},
    {HEAD "\"claims\": [5]}", "claims: number 1: it must be an object"},
    {HEAD "\"claims\": [{\"text\": \"c\", \"measure\": \"m\"}]}", "axis"},
    {HEAD "\"claims\": [{\"text\": \"c\", \"measure\": \"m\", \"axis\": \"rule\"}]}", "\"rule\" is no axis"},
    {HEAD "\"grid\": {\"rule\": [\"gdn\", \"kda\"]}, \"claims\": [{\"text\": \"c\", \"measure\": \"m\", \"axis\": \"rule\"}]}",
     "order must be a list of 2 or more"},
    {HEAD "\"grid\": {\"rule\": [\"gdn\"]}, \"claims\": [{\"text\": \"c\", \"measure\": \"m\", \"axis\": \"rule\", \"order\": "
          "[1, 2]}]}",
     "order: each must be a string"},
    {HEAD "\"grid\": {\"rule\": [\"gdn\"]}, \"claims\": [{\"text\": \"c\", \"measure\": \"m\", \"axis\": \"rule\", \"better\": "
          "\"big\"}]}",
     "it must be higher or lower"},
    {HEAD "\"grid\": {\"rule\": [\"gdn\"]}, \"claims\": [{\"text\": \"c\", \"measure\": \"m\", \"axis\": \"rule\", "
          "\"at_least\": \"x\"}]}",
     "are numbers"},
    {HEAD "\"grid\": {\"rule\": [\"gdn\"]}, \"claims\": [{\"text\": \"c\", \"measure\": \"m\", \"axis\": \"rule\", "
          "\"at_least\": 1, \"of\": [\"gdn\"], \"where\": {\"size\": \"1\"}}]}",
     "where: \"size\""},
    {HEAD "\"jobs\": 0}", "jobs"},
    {HEAD "\"curves\": 5}", "\"curves\" must be a string"},
    {HEAD "\"settings\": {\"then\": 5}}", "then must be a list"},
    {HEAD "\"settings\": {\"then\": [5]}}", "then: number 1: it must be an object with the key probe, evaluate or bench"},
    {HEAD "\"settings\": {\"then\": [{\"tokens\": 5}]}}", "with the key probe, evaluate or bench"},
    {HEAD "\"settings\": {\"then\": [{\"probe\": \"erasure\"}]}}", "there is no probe \"erasure\""},
    {HEAD "\"settings\": {\"then\": [{\"probe\": 5}]}}", "\"probe\" must be a string"},
    {HEAD "\"settings\": {\"then\": [{\"probe\": \"erase\", \"limit\": 5}]}}", "limit"},
    {HEAD "\"settings\": {\"then\": [{\"probe\": \"erase\", \"tokens\": 0}]}}", "tokens"},
    {HEAD "\"settings\": {\"then\": [{\"probe\": \"erase\"}, {\"probe\": \"erase\", \"tokens\": 5}]}}",
     "probe-erase stands twice"},
    {HEAD "\"settings\": {\"then\": [{\"evaluate\": \"../a\"}]}}", "must be the name of a file of tasks"},
    {HEAD "\"settings\": {\"then\": [{\"evaluate\": \"\"}]}}", "must be the name of a file of tasks"},
    {HEAD "\"settings\": {\"then\": [{\"evaluate\": \"a\", \"format\": 5}]}}", "\"format\" must be a string"},
    {HEAD "\"settings\": {\"then\": [{\"bench\": \"train\"}]}}", "it must be op"},
    {HEAD "\"grid\": {\"rule\": [\"gdn\", \"kda\"]}, \"claims\": [{\"text\": \"c\", \"measure\": \"m\", \"axis\": \"rule\", "
          "\"ratio\": [\"gdn\", \"kda\"]}]}",
     "ratio needs at_least or at_most"},
    {HEAD "\"grid\": {\"rule\": [\"gdn\", \"kda\"]}, \"claims\": [{\"text\": \"c\", \"measure\": \"m\", \"axis\": \"rule\", "
          "\"at_least\": 1, \"ratio\": [\"gdn\"]}]}",
     "ratio must be a list of two"},
    {HEAD "\"grid\": {\"rule\": [\"gdn\", \"kda\"]}, \"claims\": [{\"text\": \"c\", \"measure\": \"m\", \"axis\": \"rule\", "
          "\"at_least\": 1, \"than\": \"n\", \"ratio\": [\"gdn\", \"kda\"]}]}",
     "ratio and than: one of them"},
};

static void test_refused_files(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        dr_experiment *experiment = NULL;
        const long alive = allocation_alive;
        dr_status status = open_text(refused[i].text, NULL, &experiment);
        if (status == DR_OK) fail_msg("accepted: %s", refused[i].text);
        if (!strstr(dr_last_error(), refused[i].says)) fail_msg("%s: %s", refused[i].text, dr_last_error());
        assert_null(experiment);
        assert_int_equal(allocation_alive, alive);
    }
    dr_experiment *experiment;
    assert_int_equal(open_text(HEAD "\"seeds\": 2}", &(dr_experiment_options){.small = true}, &experiment), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "no small form"));
    assert_int_equal(open_text(HEAD "\"seeds\": 2}", &(dr_experiment_options){.seeds = -1}, &experiment), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_experiment_open(scratch_path("not there"), NULL, &experiment), DR_ERROR_IO);
}

/* ---- cells ---------------------------------------------------------------------------------------------------------- */

static void test_cells(void **state) {
    (void)state;
    dr_experiment *experiment;
    assert_int_equal(open_text(grid, NULL, &experiment), DR_OK);
    assert_int_equal(dr_experiment_cells(experiment), 12);
    assert_int_equal(dr_experiment_jobs(experiment), 0);
    assert_string_equal(dr_experiment_cell(experiment, 0), "rule=gdn,learning_rate=0.001,size=a-b,seed=1");
    assert_string_equal(dr_experiment_cell(experiment, 11), "rule=pgdn,learning_rate=0.01,size=a-b,seed=3");
    assert_null(dr_experiment_cell(experiment, 12));
    assert_null(dr_experiment_cell(experiment, -1));
    const json_t *settings = experiment->cell[5].settings;
    assert_int_equal(json_integer_value(json_object_get(settings, "seed")), 3);
    assert_string_equal(json_string_value(json_object_get(settings, "lengths")), "64/4");
    assert_true(json_real_value(json_object_get(settings, "learning_rate")) == 0.01);
    dr_experiment_close(experiment);
    assert_int_equal(open_text(HEAD "\"jobs\": 5}", NULL, &experiment), DR_OK);
    assert_int_equal(dr_experiment_jobs(experiment), 5);
    dr_experiment_close(experiment);
    const dr_experiment_options small = {.small = true, .corpus = "text"};
    assert_int_equal(open_text(grid, &small, &experiment), DR_OK);
    assert_int_equal(dr_experiment_cells(experiment), 4);
    assert_int_equal(json_integer_value(json_object_get(experiment->cell[0].settings, "hidden")), 4);
    assert_string_equal(json_string_value(json_object_get(experiment->cell[0].settings, "corpus")), "text");
    dr_experiment_close(experiment);
}

/* Part of the grid, settings instead of the file's, and the order in which cells have their turn. */
static void test_choices(void **state) {
    (void)state;
    static const struct {
        const char *settings, *only, *says;
    } wrong[] = {{"{\"learning_rate\": 1}", NULL, "axis learning_rate sets learning_rate: choose among its values with only"},
                 {"{\"lengths\": \"64/8\"}", NULL, "axis size sets lengths"},
                 {"{\"hiden\": 1}", NULL, "did you mean \"hidden\"?"},
                 {"hidden 5", NULL, "settings"},
                 {"[]", NULL, "settings"},
                 {NULL, "{\"rule\": \"gdn\"}", "only: rule must be a list of values of that axis, such as [\"gdn\"]"},
                 {NULL, "{\"rule\": []}", "must be a list"},
                 {NULL, "{\"rule\": [\"kda\"]}", "only: axis rule has no value \"kda\"; its first is \"gdn\""},
                 {NULL, "{\"rule\": [null]}", "axis rule has no value"},
                 {NULL, "{\"rul\": [\"gdn\"]}", "only: \"rul\" is no axis of the grid"},
                 {NULL, "{", "only"}};
    dr_experiment *experiment;
    const long alive = allocation_alive;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const dr_experiment_options options = {.settings = wrong[i].settings, .only = wrong[i].only};
        assert_int_equal(open_text(grid, &options, &experiment), DR_ERROR_ARGUMENT);
        if (!strstr(dr_last_error(), wrong[i].says)) fail_msg("%s: %s", wrong[i].says, dr_last_error());
    }
    assert_int_equal(allocation_alive, alive);
    const dr_experiment_options options = {.settings = "{\"steps\": 7, \"hidden\": 4}",
                                           .only = "{\"learning_rate\": [0.01], \"rule\": [\"pgdn\", \"gdn\"]}"};
    assert_int_equal(open_text(grid, &options, &experiment), DR_OK);
    assert_int_equal(dr_experiment_cells(experiment), 6);
    assert_string_equal(dr_experiment_cell(experiment, 5), "rule=pgdn,learning_rate=0.01,size=a-b,seed=3");
    assert_int_equal(json_integer_value(json_object_get(experiment->cell[0].settings, "steps")), 7);
    assert_int_equal(json_integer_value(json_object_get(experiment->cell[0].settings, "hidden")), 4);
    static const int turns[] = {0, 3, 1, 4, 2, 5, -1};
    for (int i = 0; i < 7; i++) assert_int_equal(dr_experiment_turn(experiment, i), turns[i]);
    assert_int_equal(dr_experiment_turn(experiment, -1), -1);
    /* the claims are about what stays */
    for (int i = 0; i < 6; i++) measure(experiment, i, i < 3 ? 0.25 : 0.75);
    assert_int_equal(judge(experiment, 0, keep, (char[256]){""}), DR_CLAIM_HOLDS);
    dr_experiment_close(experiment);
}

/* ---- reports -------------------------------------------------------------------------------------------------------- */

static void count(void *context, const char *text) {
    assert_non_null(text);
    ++*(int *)context;
}

static void test_reports(void **state) {
    (void)state;
    dr_experiment *experiment;
    int lines = 0;
    assert_int_equal(open_text(grid, NULL, &experiment), DR_OK);
    measure(experiment, 4, 0.25);
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_CSV, count, &lines), DR_OK);
    assert_int_equal(lines, 5); /* a head, four rows */
    char last[256];
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_CSV, keep, last), DR_OK);
    assert_string_equal(last, "pgdn,0.01,a b,0,3,,,");
    lines = 0;
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_JSON, count, &lines), DR_OK);
    assert_int_equal(lines, 1 + 3); /* a cell, three claims */
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_TABLE, count, &lines), DR_OK);
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_PLOT, count, &lines), DR_OK);
    assert_int_equal(dr_experiment_report(experiment, (dr_report)9, count, &lines), DR_ERROR_ARGUMENT);
    dr_experiment_close(experiment);
}

/* The whole of a CSV report: labels with commas and quotes in quotes, numbers of done seeds, a median and both ends. */
static void test_csv(void **state) {
    (void)state;
    static const char text[] =
        HEAD "\"settings\": {\"task\": \"mqar\"}, \"seeds\": 3,"
             "\"grid\": {\"size\": {\"a, \\\"b\\\"\": {\"lengths\": \"64/4\"}, \"c\": {\"lengths\": \"64/8\"}}}}";
    static const double figures[] = {0.5, 0.25, 0.75};
    static char report[16384];
    dr_experiment *experiment;
    if (open_text(text, NULL, &experiment) != DR_OK) fail_msg("%s", dr_last_error());
    for (int s = 0; s < 3; s++) measure(experiment, s, figures[s]);
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_CSV, keep_all, report), DR_OK);
    assert_string_equal(report, "size,done,seeds,accuracy,accuracy:low,accuracy:high\n"
                                "\"a, \"\"b\"\"\",3,3,0.5,0.25,0.75\n"
                                "c,0,3,,,\n");
    dr_experiment_close(experiment);
}

/* Curves of the runs that have begun. */
static void test_curves(void **state) {
    (void)state;
    static char text[16384];
    dr_experiment *experiment;
    assert_int_equal(
        open_text(HEAD "\"curves\": \"loss\", \"seeds\": 2, \"grid\": {\"rule\": [\"gdn\", \"kda\"]}}", NULL, &experiment),
        DR_OK);
    text[0] = '\0';
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_PLOT, keep_all, text), DR_OK);
    assert_non_null(strstr(text, "plot [0:1] NaN notitle"));
    experiment->cell[2].state = DR_CELL_BEGUN;
    measure(experiment, 3, 1);
    text[0] = '\0';
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_PLOT, keep_all, text), DR_OK);
    assert_non_null(strstr(text, "plot 'rule=kda,seed=1/metrics.csv' using 'step':'loss' with lines linetype 2 title \"kda\""));
    assert_non_null(strstr(text, "    , 'rule=kda,seed=2/metrics.csv' using 'step':'loss' with lines linetype 2 notitle"));
    assert_null(strstr(text, "rule=gdn"));
    dr_experiment_close(experiment);
}

/* Each allocation of the library fails once: nothing stays, and the next try succeeds. */
static void test_allocations(void **state) {
    (void)state;
    const long alive = allocation_alive;
    dr_status status = DR_ERROR_MEMORY;
    long n = 1;
    for (; status == DR_ERROR_MEMORY && n < 2000; n++) {
        dr_experiment *experiment = NULL;
        allocation_fail_at(n);
        status = open_text(grid, NULL, &experiment);
        allocation_fail_at(0);
        if (status == DR_OK) dr_experiment_close(experiment);
        assert_int_equal(allocation_alive, alive);
    }
    assert_int_equal(status, DR_OK);
    assert_true(n > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_spreads), cmocka_unit_test(test_refused_files),
                                       cmocka_unit_test(test_cells),   cmocka_unit_test(test_choices),
                                       cmocka_unit_test(test_reports), cmocka_unit_test(test_csv),
                                       cmocka_unit_test(test_curves),  cmocka_unit_test(test_allocations)};
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
