/* Every pointer of verify.h, theory.h, bench.h, experiment.h and probe.h, NULL. */
#include "null.h"

#include <deltarule/bench.h>
#include <deltarule/experiment.h>
#include <deltarule/probe.h>
#include <deltarule/theory.h>
#include <deltarule/verify.h>

static void test_verify(void **unused) {
    (void)unused;
    const char *path = DR_TESTS_FOLDER "/vectors";
    const dr_verify_options options = {.backend = "reference", .path = "decode"};
    dr_verify_counts counts = {0};
    REFUSED(dr_verify, "path", NULL, &options, null_line, NULL, &counts);
    REFUSED(dr_verify, "options", path, NULL, null_line, NULL, &counts);
    REFUSED(dr_verify, "line", path, &options, NULL, NULL, &counts);
    REFUSED(dr_verify, "counts", path, &options, null_line, NULL, NULL);
    null_all_right();
}

static void test_theory(void **unused) {
    (void)unused;
    REFUSED(dr_theory_check, "result", 0, 1, NULL);
    null_all_right();
}

static void test_experiment(void **unused) {
    (void)unused;
    const char *file = DR_TESTS_FOLDER "/../experiments/recall.json", *folder = "/tmp/deltarule-no-such-folder";
    dr_experiment *experiment = NULL, *made = NULL;
    assert_int_equal(dr_experiment_open(file, NULL, &experiment), DR_OK);
    REFUSED(dr_experiment_open, "file", NULL, NULL, &made);
    ALLOWED(dr_experiment_open, "options", file, NULL, &made);
    REFUSED(dr_experiment_open, "experiment", file, NULL, NULL);
    NOTHING(dr_experiment_close, "experiment", NULL);
    int descriptor;
    REFUSED(dr_experiment_hold, "folder", NULL, 0, &descriptor);
    REFUSED(dr_experiment_hold, "descriptor", folder, 0, NULL);
    HARMLESS(dr_experiment_title, "experiment", == NULL, NULL);
    HARMLESS(dr_experiment_source, "experiment", == NULL, NULL);
    HARMLESS(dr_experiment_cells, "experiment", == 0, NULL);
    HARMLESS(dr_experiment_cell, "experiment", == NULL, NULL, 0);
    HARMLESS(dr_experiment_turn, "experiment", == -1, NULL, 0);
    HARMLESS(dr_experiment_state, "experiment", == DR_CELL_MISSING, NULL, 0);
    REFUSED(dr_experiment_load, "experiment", NULL, folder);
    REFUSED(dr_experiment_load, "folder", experiment, NULL);
    REFUSED(dr_experiment_prepare, "experiment", NULL, folder, 0);
    REFUSED(dr_experiment_prepare, "folder", experiment, NULL, 0);
    REFUSED(dr_experiment_finish, "experiment", NULL, folder, 0);
    REFUSED(dr_experiment_finish, "folder", experiment, NULL, 0);
    const char *const *arguments;
    HARMLESS(dr_experiment_jobs, "experiment", == 0, NULL);
    REFUSED(dr_experiment_next, "experiment", NULL, folder, 0, &arguments);
    REFUSED(dr_experiment_next, "folder", experiment, NULL, 0, &arguments);
    REFUSED(dr_experiment_next, "arguments", experiment, folder, 0, NULL);
    REFUSED(dr_experiment_keep, "experiment", NULL, folder, 0, "{}");
    REFUSED(dr_experiment_keep, "folder", experiment, NULL, 0, "{}");
    REFUSED(dr_experiment_keep, "output", experiment, folder, 0, NULL);
    REFUSED(dr_experiment_report, "experiment", NULL, DR_REPORT_CSV, null_line, NULL);
    REFUSED(dr_experiment_report, "line", experiment, DR_REPORT_CSV, NULL, NULL);
    REFUSED(dr_experiment_write, "experiment", NULL, folder);
    REFUSED(dr_experiment_write, "folder", experiment, NULL);
    REFUSED(dr_experiment_record, "experiment", NULL, folder);
    REFUSED(dr_experiment_record, "folder", experiment, NULL);
    dr_experiment_close(experiment);
    null_all_right();
}

static void probe_nobody(void *context, const dr_probe_figure *figure) {
    (void)context;
    (void)figure;
}

static void test_probe(void **unused) {
    (void)unused;
    dr_backend *backend = NULL;
    dr_model *model = NULL;
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = 257;
    config.hidden = 8;
    config.layers = config.heads = 1;
    config.intermediate = 0;
    assert_int_equal(dr_backend_open("reference", NULL, &backend), DR_OK);
    assert_int_equal(dr_model_create(backend, &config, 1, &model), DR_OK);
    REFUSED(dr_probe, "model", NULL, "value", "text", 4, 8, NULL, probe_nobody, NULL);
    REFUSED(dr_probe, "kind", model, NULL, "text", 4, 8, NULL, probe_nobody, NULL);
    REFUSED(dr_probe, "text", model, "value", NULL, 4, 8, NULL, probe_nobody, NULL);
    ALLOWED(dr_probe, "tokenizer", model, "value", "text", 4, 8, NULL, probe_nobody, NULL);
    REFUSED(dr_probe, "figure", model, "value", "text", 4, 8, NULL, NULL, NULL);
    dr_model_destroy(model);
    dr_backend_close(backend);
    null_all_right();
}

static void test_bench(void **unused) {
    (void)unused;
    const int threads[] = {1};
    const dr_bench_options options = {.repeats = 1, .threads = threads, .thread_counts = 1, .seed = 1};
    dr_recurrence recurrence = dr_recurrence_default();
    recurrence.rule = dr_rule_find("gdn");
    recurrence.layout = (dr_layout){.sequences = 1, .rows = 1};
    recurrence.key_heads = recurrence.value_heads = 1;
    recurrence.key_size = recurrence.value_size = 4;
    dr_bench_op_result op;
    dr_bench_decode_result decode;
    dr_bench_train_result train;
    dr_train_options *settings = NULL;
    assert_int_equal(dr_train_options_create(&settings), DR_OK);
    const dr_train_options *const runs[] = {settings}, *const none[] = {NULL};
    REFUSED(dr_bench_blas, "text", NULL, 128);
    REFUSED(dr_bench_op, "options", NULL, true, 1, &recurrence, &op);
    REFUSED(dr_bench_op, "recurrences", &options, true, 1, NULL, &op);
    REFUSED(dr_bench_op, "results", &options, true, 1, &recurrence, NULL);
    REFUSED(dr_bench_decode, "options", NULL, 1, &recurrence, &decode);
    REFUSED(dr_bench_decode, "recurrences", &options, 1, NULL, &decode);
    REFUSED(dr_bench_decode, "results", &options, 1, &recurrence, NULL);
    REFUSED(dr_bench_train, "options", NULL, 1, runs, &train);
    REFUSED(dr_bench_train, "settings", &options, 1, NULL, &train);
    REFUSED(dr_bench_train, "results", &options, 1, runs, NULL);
    REFUSED(dr_bench_train, "settings 0", &options, 1, none, &train);
    REFUSED(dr_bench_score, "options", NULL, 1, runs, &train);
    REFUSED(dr_bench_score, "settings", &options, 1, NULL, &train);
    REFUSED(dr_bench_score, "results", &options, 1, runs, NULL);
    REFUSED(dr_bench_score, "settings 0", &options, 1, none, &train);
    REFUSED(dr_bench_generate, "options", NULL, 1, runs, &train);
    REFUSED(dr_bench_generate, "settings", &options, 1, NULL, &train);
    REFUSED(dr_bench_generate, "results", &options, 1, runs, NULL);
    REFUSED(dr_bench_generate, "settings 0", &options, 1, none, &train);
    dr_bench_options without = options;
    without.threads = NULL;
    REFUSED(dr_bench_op, "threads", &without, true, 1, &recurrence, &op);
    recurrence.rule = NULL;
    REFUSED(dr_bench_op, "rule", &options, true, 1, &recurrence, &op);
    REFUSED(dr_bench_decode, "rule", &options, 1, &recurrence, &decode);
    dr_train_options_destroy(settings);
    null_all_right();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_verify), cmocka_unit_test(test_theory),
                                       cmocka_unit_test(test_experiment), cmocka_unit_test(test_probe),
                                       cmocka_unit_test(test_bench)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
