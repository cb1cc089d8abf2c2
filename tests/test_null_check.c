/* Every pointer of verify.h, theory.h and bench.h, NULL. */
#include "null.h"

#include <deltarule/bench.h>
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
                                       cmocka_unit_test(test_bench)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
