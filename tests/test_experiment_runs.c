/* Runs of experiments: what they measured, runs of other settings, files that are broken, what follows a run, what is recorded.
 */
#include "experiment_file.h"

#include <math.h>

/* ---- runs ----------------------------------------------------------------------------------------------------------- */

static const char one[] = "{\"title\": \"t\", \"source\": \"s\", \"measures\": [\"accuracy\", \"loss\"], \"seeds\": 1, "
                          "\"settings\": {\"task\": \"mqar\", \"hidden\": %d, \"steps\": 40}}";

static void make_run(const char *metrics) {
    const char *name = "sweep/seed=1";
    mkdir(scratch_path("sweep"), 0777);
    mkdir(scratch_path(name), 0777);
    write_file("sweep/seed=1/settings.json",
               "{\"task\": \"mqar\", \"hidden\": 16, \"steps\": 40, \"seed\": 1, \"threads\": 2}");
    write_file("sweep/seed=1/metrics.csv", metrics);
    remove(scratch_path("sweep/seed=1/result.json"));
}

static dr_experiment *open_one(int hidden) {
    char text[512];
    dr_experiment *experiment;
    snprintf(text, sizeof text, one, hidden);
    assert_int_equal(open_text(text, NULL, &experiment), DR_OK);
    return experiment;
}

static double measured(const dr_experiment *experiment, const char *name) {
    return json_number_value(json_object_get(experiment->cell[0].measures, name));
}

static void test_results(void **state) {
    (void)state;
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", scratch_path("sweep"));
    make_run("step,loss,accuracy\n38,5,\n39,2,0.25\n40,4,0.5\n");
    dr_experiment *experiment = open_one(16);
    assert_int_equal(dr_experiment_load(experiment, folder), DR_OK);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_BEGUN);
    assert_int_equal(dr_experiment_finish(experiment, folder, 0), DR_OK);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_DONE);
    /* the last evaluation; the loss of the last twentieth of 40 steps, 39 and 40 */
    assert_true(measured(experiment, "accuracy") == 0.5 && measured(experiment, "loss") == 3 &&
                measured(experiment, "steps") == 40);
    assert_int_equal(dr_experiment_finish(experiment, folder, 1), DR_ERROR_ARGUMENT);
    dr_experiment_close(experiment);
    experiment = open_one(16);
    assert_int_equal(dr_experiment_load(experiment, folder), DR_OK);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_DONE);
    assert_true(measured(experiment, "accuracy") == 0.5);
    dr_experiment_close(experiment);
    experiment = open_one(32);
    assert_int_equal(dr_experiment_load(experiment, folder), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "holds a run with hidden 16, and the experiment has 32"));
    dr_experiment_close(experiment);
}

static void test_broken_results(void **state) {
    (void)state;
    static const char *const broken[] = {"", "step,loss\n", "loss\n1\n"};
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", scratch_path("sweep"));
    dr_experiment *experiment = open_one(16);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        make_run(broken[i]);
        assert_int_equal(dr_experiment_finish(experiment, folder, 0), DR_ERROR_FORMAT);
        assert_non_null(strstr(dr_last_error(), "it has no steps"));
        assert_int_not_equal(dr_experiment_state(experiment, 0), DR_CELL_DONE);
    }
    make_run("step,loss\n1,2\n");
    write_file("sweep/seed=1/result.json", "{\"measures\": 5}");
    assert_int_equal(dr_experiment_load(experiment, folder), DR_ERROR_FORMAT);
    write_file("sweep/seed=1/result.json", "{");
    assert_int_equal(dr_experiment_load(experiment, folder), DR_ERROR_FORMAT);
    dr_experiment_close(experiment);
}

/* ---- what follows a run --------------------------------------------------------------------------------------------- */

static const char followed[] =
    "{\"title\": \"t\", \"source\": \"s\", \"measures\": [\"accuracy\"], \"seeds\": 1, \"settings\": {\"task\": \"mqar\", "
    "\"hidden\": 16, \"steps\": 40, \"then\": [{\"probe\": \"erase\", \"tokens\": %d}, {\"evaluate\": "
    "\"needle-64\", "
    "\"max_length\": 9, \"format\": \"generate\"}, {\"bench\": \"op\"}]}}";

static const char figures_printed[] = "{\"layer\": 0, \"figure\": \"f\", \"count\": 2, \"mean\": 1, \"least\": 0, \"low\": 0, "
                                      "\"median\": 2, \"high\": 3, \"most\": 4}\n"
                                      "{\"layer\": 2, \"figure\": \"f\", \"count\": 2, \"mean\": 2, \"least\": -1, \"low\": 0, "
                                      "\"median\": 3, \"high\": 3, \"most\": 3}\n";

static const char *const broken_figures[] = {"", "5\n", "{\"layer\": 0}\n",
                                             "{\"layer\": 0, \"figure\": \"f\", \"mean\": null}\n", "{"};

static dr_experiment *open_followed(int tokens, const dr_experiment_options *options) {
    char text[sizeof followed + 16];
    dr_experiment *experiment;
    snprintf(text, sizeof text, followed, tokens);
    if (open_text(text, options, &experiment) != DR_OK) fail_msg("%s", dr_last_error());
    return experiment;
}

static void expect_command(dr_experiment *experiment, const char *folder, const char *wanted) {
    const char *const *arguments;
    char joined[1024] = "";
    if (dr_experiment_next(experiment, folder, 0, &arguments) != DR_OK) fail_msg("%s", dr_last_error());
    for (int i = 0; arguments && arguments[i]; i++)
        snprintf(joined + strlen(joined), sizeof joined - strlen(joined), "%s%s", i ? " " : "", arguments[i]);
    assert_string_equal(joined, wanted);
}

/* Of a cell whose results are there a probe of other flags is made again, and nothing else; a file that is none is refused. */
static void check_made_again(const char *folder, const dr_experiment_options *options) {
    dr_experiment *experiment;
    experiment = open_followed(10, options);
    assert_int_equal(dr_experiment_load(experiment, folder), DR_OK);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_TRAINED);
    assert_int_equal(dr_experiment_keep(experiment, folder, 0, figures_printed), DR_OK);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_DONE);
    dr_experiment_close(experiment);
    write_file("sweep/seed=1/bench-op.json", "{}");
    experiment = open_followed(10, options);
    assert_int_equal(dr_experiment_load(experiment, folder), DR_ERROR_FORMAT);
    dr_experiment_close(experiment);
}

/* One command after the other, their figures, and a folder that is read again at each point. */
static void test_what_follows(void **state) {
    (void)state;
    char folder[PATH_MAX], tasks[PATH_MAX], text[PATH_MAX], wanted[3 * PATH_MAX];
    snprintf(folder, sizeof folder, "%s", scratch_path("sweep"));
    snprintf(tasks, sizeof tasks, "%s", scratch_path(""));
    snprintf(text, sizeof text, "%s", scratch_path("words"));
    const dr_experiment_options options = {.text = text, .tasks = tasks};
    const char *const *arguments;
    make_run("step,loss,accuracy\n40,4,0.5\n");
    dr_experiment *experiment = open_followed(9, NULL);
    assert_int_equal(dr_experiment_load(experiment, folder), DR_OK);
    assert_int_equal(dr_experiment_next(experiment, folder, 0, &arguments), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "give --tasks"));
    dr_experiment_close(experiment);
    experiment = open_followed(9, &options);
    assert_int_equal(dr_experiment_next(experiment, folder, 0, &arguments), DR_ERROR_IO); /* before anything has run */
    assert_non_null(strstr(dr_last_error(), "needle-64.jsonl is missing"));
    assert_int_equal(dr_experiment_next(experiment, folder, 1, &arguments), DR_ERROR_ARGUMENT);
    write_file("needle-64.jsonl", "{}\n");
    assert_int_equal(dr_experiment_next(experiment, folder, 0, &arguments), DR_ERROR_IO);
    assert_non_null(strstr(dr_last_error(), "words, which runs of this experiment are probed on"));
    write_file("words", "some words");
    assert_int_equal(dr_experiment_load(experiment, folder), DR_OK);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_BEGUN);
    assert_int_equal(dr_experiment_keep(experiment, folder, 0, figures_printed), DR_ERROR_ARGUMENT); /* its run is not over */
    assert_int_equal(dr_experiment_finish(experiment, folder, 0), DR_OK);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_TRAINED);
    snprintf(wanted, sizeof wanted, "probe erase --model %s/seed=1 --corpus %s --tokens 9 --json", folder, text);
    expect_command(experiment, folder, wanted);
    for (size_t i = 0; i < sizeof broken_figures / sizeof *broken_figures; i++)
        assert_int_equal(dr_experiment_keep(experiment, folder, 0, broken_figures[i]), DR_ERROR_FORMAT);
    assert_int_equal(dr_experiment_keep(experiment, folder, 0, figures_printed), DR_OK);
    assert_true(measured(experiment, "f") == 1.5 && measured(experiment, "f:median") == 2.5 &&
                measured(experiment, "f:least") == -1 && measured(experiment, "f:most") == 4 &&
                measured(experiment, "f:layer 2") == 2 && measured(experiment, "accuracy") == 0.5);
    snprintf(wanted, sizeof wanted, "evaluate %s/seed=1 %s/needle-64.jsonl --max-length 9 --format generate --json", folder,
             tasks);
    expect_command(experiment, folder, wanted);
    dr_experiment_close(experiment);
    experiment = open_followed(9, &options);
    assert_int_equal(dr_experiment_load(experiment, folder), DR_OK);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_TRAINED);
    assert_true(measured(experiment, "f:most") == 4);
    expect_command(experiment, folder, wanted);
    assert_int_equal(dr_experiment_keep(experiment, folder, 0, "{\"format\": \"generate\", \"items\": 4, \"found\": 0.25}\n"),
                     DR_OK);
    assert_true(measured(experiment, "needle-64:found") == 0.25);
    expect_command(experiment, folder, "bench op --rule gdn --tokens 64 --sequences 64 --heads 4 --head-size 4 --json");
    static const char times[] =
        "{\"rule\": \"gdn\", \"forward\": {\"seconds\": 0.5}, \"forward_backward\": {\"seconds\": 2}}\n";
    assert_int_equal(dr_experiment_keep(experiment, folder, 0, times), DR_OK);
    assert_true(measured(experiment, "recurrence_forward_ms") == 500 &&
                measured(experiment, "recurrence_forward_backward_ms") == 2000);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_DONE);
    expect_command(experiment, folder, "");
    assert_int_equal(dr_experiment_keep(experiment, folder, 0, times), DR_ERROR_ARGUMENT);
    dr_experiment_close(experiment);
    check_made_again(folder, &options);
}

/* The rate of a run is that of its second half, where it has come to its pace. */
static void test_rates(void **state) {
    (void)state;
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", scratch_path("sweep"));
    make_run("step,loss,tokens_per_second\n37,1,10\n20,1,10\n30,1,20\n38,1,30\n40,1,40\n");
    dr_experiment *experiment = open_one(16);
    assert_int_equal(dr_experiment_finish(experiment, folder, 0), DR_OK);
    assert_true(measured(experiment, "tokens_per_second") == 25);
    dr_experiment_close(experiment);
}

/* ---- what is recorded ----------------------------------------------------------------------------------------------- */

static const char drawn[] =
    "{\"title\": \"t\", \"source\": \"s\", \"measures\": [\"f:layer 1\"], \"seeds\": 1, \"curves\": \"loss\", "
    "\"settings\": {\"task\": \"mqar\", \"hidden\": 16, \"steps\": %d}}";

static dr_experiment *open_recorded(int steps, const char *machine) {
    char text[512], results[PATH_MAX];
    dr_experiment *experiment;
    snprintf(text, sizeof text, drawn, steps);
    snprintf(results, sizeof results, "%s", scratch_path("recorded/drawn.jsonl"));
    assert_int_equal(open_text(text, &(dr_experiment_options){.results = results, .machine = machine}, &experiment), DR_OK);
    assert_int_equal(dr_experiment_load(experiment, scratch_path("nowhere")), DR_OK);
    return experiment;
}

static int lines_of(const char *name) {
    FILE *file = fopen(name, "re");
    assert_non_null(file);
    int lines = 0;
    for (int c; (c = getc(file)) != EOF;) lines += c == '\n';
    fclose(file);
    return lines;
}

/* A cell that is done elsewhere counts, by its settings. */
static void test_recorded(void **state) {
    (void)state;
    static char table[16384];
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", scratch_path("sweep"));
    dr_experiment *experiment = open_recorded(40, "a machine");
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_MISSING);
    make_run("step,loss,accuracy,f:layer 1,g:layer 1\n20,5,,,\n40,0.123456789,0.5,3,4\n");
    assert_int_equal(dr_experiment_finish(experiment, folder, 0), DR_OK);
    assert_int_equal(dr_experiment_record(experiment, folder), DR_OK);
    assert_int_equal(dr_experiment_record(experiment, folder), DR_OK);
    dr_experiment_close(experiment);
    assert_int_equal(lines_of(scratch_path("recorded/drawn.jsonl")), 1); /* once is enough */

    experiment = open_recorded(40, NULL);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_DONE);
    assert_true(measured(experiment, "accuracy") == 0.5 && measured(experiment, "f:layer 1") == 3);
    assert_true(measured(experiment, "loss") == 0.12345679); /* eight digits */
    assert_null(json_object_get(experiment->cell[0].measures, "g:layer 1"));
    const json_t *curve = json_object_get(experiment->cell[0].record, "curve");
    assert_int_equal(json_array_size(curve), 2);
    assert_true(json_number_value(json_array_get(json_array_get(curve, 1), 0)) == 40 &&
                json_number_value(json_array_get(json_array_get(curve, 1), 1)) == 0.123457);
    table[0] = '\0';
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_TABLE, keep_all, table), DR_OK);
    assert_non_null(strstr(table, "recorded: 1 of 1 runs, a machine; deltarule "));
    table[0] = '\0';
    assert_int_equal(dr_experiment_report(experiment, DR_REPORT_PLOT, keep_all, table), DR_OK);
    assert_non_null(strstr(table, "$curve0 << END\n20,5\n40,0.123457\nEND\n"));
    assert_non_null(strstr(table, "plot $curve0 using 1:2 with lines"));
    dr_experiment_close(experiment);
    experiment = open_recorded(41, NULL);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_MISSING);
    dr_experiment_close(experiment);
}

/* The last of several lines counts; one with another list of what follows does not; what is no record is named. */
static void test_lines_of_records(void **state) {
    (void)state;
    static const char before[] = "{\"cell\": \"seed=1\", \"settings\": ", own[] = ", \"measures\": {\"accuracy\": 1}}\n\n",
                      followed_by[] = ", \"then\": [{\"bench\": \"op\"}], \"measures\": {\"accuracy\": 3}}\n";
    static const struct {
        const char *line, *says;
    } broken[] = {{"{", "line 1"},
                  {"{\"cell\": \"a\"}", "line 1: the key \"settings\""},
                  {"{\"cell\": 5, \"settings\": {}, \"measures\": {}}", "line 1: \"cell\" must be a string"},
                  {"{\"cell\": \"a\", \"settings\": {}, \"measures\": 5}", "measures and settings must be objects"}};
    char text[4096];
    dr_experiment *experiment = open_recorded(40, NULL);
    char *settings = json_dumps(json_object_get(experiment->cell[0].record, "settings"), JSON_COMPACT);
    assert_non_null(settings);
    snprintf(text, sizeof text, "%s%s%s%s%s, \"measures\": {\"accuracy\": 2}}\n%s%s%s", before, settings, own, before, settings,
             before, settings, followed_by);
    free(settings);
    dr_experiment_close(experiment);
    write_file("recorded/drawn.jsonl", text);
    experiment = open_recorded(40, NULL);
    assert_int_equal(dr_experiment_state(experiment, 0), DR_CELL_DONE);
    assert_true(measured(experiment, "accuracy") == 2);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        write_file("recorded/drawn.jsonl", broken[i].line);
        assert_int_equal(dr_experiment_load(experiment, scratch_path("nowhere")), DR_ERROR_FORMAT);
        if (!strstr(dr_last_error(), broken[i].says)) fail_msg("%s: %s", broken[i].line, dr_last_error());
    }
    dr_experiment_close(experiment);
}

/* A curve of many steps in a few points, each the mean of the steps since the one before. */
static void test_points(void **state) {
    (void)state;
    json_t *points;
    write_file("m.csv", "step,loss\n1,1\n2,3\n3,\n4,5\n5,7\n6,8\n");
    assert_int_equal(dr_metrics_curve(scratch_path("m.csv"), "loss", 3, &points), DR_OK);
    char *text = json_dumps(points, JSON_COMPACT);
    assert_string_equal(text, "[[2,2.0],[4,5.0],[6,7.5]]");
    free(text);
    json_decref(points);
    assert_int_equal(dr_metrics_curve(scratch_path("m.csv"), "lost", 3, &points), DR_OK);
    assert_int_equal(json_array_size(points), 0);
    json_decref(points);
    assert_int_equal(dr_metrics_curve(scratch_path("not there"), "loss", 3, &points), DR_ERROR_IO);
    write_file("m.csv", "step,loss\n");
    assert_int_equal(dr_metrics_curve(scratch_path("m.csv"), "loss", 3, &points), DR_ERROR_FORMAT);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_results),      cmocka_unit_test(test_broken_results),
                                       cmocka_unit_test(test_what_follows), cmocka_unit_test(test_rates),
                                       cmocka_unit_test(test_recorded),     cmocka_unit_test(test_lines_of_records),
                                       cmocka_unit_test(test_points)};
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
