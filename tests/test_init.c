/* Runs that go on from a model: an own one at eight times its length, a published one, and what is refused. */
#include "short_runs.h"

static dr_backend *cpu;

/* Settings of a model at their defaults say nothing; short_options sets others. */
#define GOES_ON "hidden", "128", "layers", "3", "heads", "2", "intermediate", "256", "init"

/* Without learning the model stays what it was; another length, and resuming without the folder that it began with. */
static void test_own_models(void **state) {
    (void)state;
    short_run first = {0}, second = {0}, stopped = {.stop_at = 2};
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", scratch_path("first"));
    must(short_train(cpu, "first", &first, SETTINGS("steps", "4", "rule", "kda")));
    must(short_train(cpu, "second", &second,
                     SETTINGS(GOES_ON, folder, "seq_len", "128", "batch", "1", "learning_rate", "0", "steps", "2")));
    short_assert_same_file("first", "second", "model.safetensors");
    short_assert_same_file("first", "second", "config.json");
    short_run whole = {0};
    const char *const *settings = SETTINGS(GOES_ON, folder, "steps", "4", "seed", "9");
    must(short_train(cpu, "whole", &whole, settings));
    assert_int_equal(short_train(cpu, "stopped", &stopped, settings), DR_ERROR_INTERRUPTED);
    scratch_remove(folder);
    must(short_resume(cpu, "stopped", &stopped));
    for (int64_t step = 1; step <= 4; step++) assert_true(stopped.told[step].loss == whole.told[step].loss);
    short_assert_same_file("whole", "stopped", "model.safetensors");
    assert_true(whole.told[1].loss < first.told[1].loss); /* it had learned something */
}

static void test_what_cannot_be_is_refused(void **state) {
    (void)state;
    short_run first = {0};
    char folder[PATH_MAX], none[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", scratch_path("first"));
    snprintf(none, sizeof none, "%s", scratch_path("none"));
    must(short_train(cpu, "first", &first, SETTINGS("steps", "1", "task", "mqar", "vocabulary", "64", "held_out", "4")));
    short_refused(cpu, "hidden is set, but it is that of the model", SETTINGS("init", folder));
    short_refused(cpu, "rule is set, but it is that of the model", SETTINGS(GOES_ON, folder, "rule", "kda"));
    short_refused(cpu, "has 64 ids, and the data 257", SETTINGS(GOES_ON, folder));
    dr_train_options *options = short_options(SETTINGS(GOES_ON, none));
    dr_run *run = NULL;
    assert_true(dr_run_prepare(cpu, options, &run) != DR_OK);
    assert_non_null(strstr(dr_last_error(), "init: "));
    dr_train_options_destroy(options);
}

static int begin(void **state) {
    if (scratch_begin(state) != 0) return -1;
    short_write_corpus();
    cpu = open_backend("cpu", NULL, 1);
    return 0;
}

static int end(void **state) {
    dr_backend_close(cpu);
    return scratch_end(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_models),
        cmocka_unit_test(test_what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
