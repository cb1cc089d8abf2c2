/* The table of settings as a whole: every default, what a run folder keeps of values that are all off their defaults, and which
 * settings may change when a run is resumed. */
#include "base/number.h"
#include "scratch.h"
#include "statuses.h"
#include "train/settings.h"

#include <deltarule/train.h>
#include <stdlib.h>

int __wrap_fsync(int);
int __wrap_fsync(int descriptor) { /* nothing here is about the disk */
    (void)descriptor;
    return 0;
}

/* Each setting: its default in task lm and in task mqar, a value of a small run of recall that is not the default, another
 * value that is refused when the run is resumed, or (may_change) taken. */
static const struct {
    const char *name, *lm, *mqar, *value, *other;
    bool may_change;
} rows[] = {
    {"task", "lm", "mqar", "mqar", "lm", false},
    {"rule", "gdn", "gdn", "kda", "gdn", false},
    {"init", "", "", "", NULL, false},
    {"corpus", "", "", NULL, NULL, true},
    {"tokenizer", "", "", NULL, NULL, true},
    {"skip_unreadable", "false", "false", "true", "false", true},
    {"held_out", "auto", "1000", "5", "6", false},
    {"held_out_seed", "1", "1", "3", "4", false},
    {"steps", "1500", "1200", "7", "9", true},
    {"seed", "1", "1", "5", "6", false},
    {"threads", "0", "0", "2", "1", true},
    {"save_every", "250", "250", "3", "4", true},
    {"save_keep", "0", "0", "2", "3", true},
    {"evaluate_every", "250", "50", "2", "3", true},
    {"evaluate_tokens", "32768", "32768", "100", "101", false},
    {"batch", "8", "64", "2", "3", false},
    {"seq_len", "256", "64", "12", "16", false},
    {"tokens_per_step", "0", "0", "32", "64", false},
    {"accumulate", "1", "1", "2", "1", false},
    {"keep_level", "0", "0", "4", "0", true},
    {"reset_at_documents", "true", "true", "false", "true", false},
    {"learning_rate", "0.004", "0.004", "0.003", "0.002", false},
    {"min_learning_rate_ratio", "0.1", "0.1", "0.2", "0.3", false},
    {"warmup", "0.05", "0.05", "0.3", "0.4", false},
    {"warmup_steps", "0", "0", "2", "3", false},
    {"schedule", "cosine", "cosine", "wsd", "linear", false},
    {"decay", "0.2", "0.2", "0.3", "0.4", false},
    {"decay_shape", "linear", "linear", "sqrt", "cosine", false},
    {"optimizer", "adamw", "adamw", "muon", "adamw", false},
    {"muon_momentum", "0.95", "0.95", "0.9", "0.8", false},
    {"groups", "", "", "*norm* rate=2", "*norm* rate=3", false},
    {"weight_decay", "0.1", "0.1", "0.2", "0.3", false},
    {"beta1", "0.9", "0.9", "0.8", "0.7", false},
    {"beta2", "0.95", "0.95", "0.85", "0.75", false},
    {"eps", "1e-8", "1e-8", "1e-6", "1e-5", false},
    {"clip", "1", "1", "2", "3", false},
    {"hidden", "128", "64", "12", "15", false},
    {"layers", "3", "2", "1", "4", false},
    {"layer_list", "", "", "gdn*2", "gdn+none", false},
    {"heads", "2", "4", "3", "1", false},
    {"value_heads", "0", "0", "6", "3", false},
    {"key_size", "0", "0", "5", "7", false},
    {"value_size", "0", "0", "6", "8", false},
    {"intermediate", "256", "128", "9", "10", false},
    {"conv_size", "auto", "4", "3", "2", false},
    {"tied", "true", "true", "false", "true", false},
    {"output_gate", "auto", "auto", "false", "true", false},
    {"negative_eigenvalues", "auto", "auto", "true", "false", false},
    {"force", "false", "false", "true", "false", false},
    {"gate", "auto", "auto", "kda_bounded", "log", false},
    {"lower_bound", "auto", "auto", "-3", "-4", false},
    {"lambda_bias", "auto", "auto", "0.5", "0.25", false},
    {"initializer_range", "auto", "auto", "0.125", "0.25", false},
    {"conv_initializer_range", "0", "0", "0.25", "0.5", false},
    {"vocabulary", "8192", "8192", "40", "41", false},
    {"pairs", "4", "4", "2", "1", false},
    {"least_pairs", "0", "0", "1", "2", false},
    {"power_a", "0.01", "0.01", "0.5", "0.25", false},
    {"random_fillers", "true", "true", "false", "true", false},
    {"updates", "0", "0", "1", "2", false},
    {"group", "S3", "S3", "A5", "S4", false},
    {"moves", "0", "0", "3", "2", false},
    {"element_tokens", "1", "1", "2", "3", false},
    {"repeat_elements", "false", "false", "true", "false", false},
    {"lengths", "auto", "auto", "12/2 16/2*2", "12/2", false},
    {"held_out_lengths", "auto", "auto", "16/2 20/3", "20/3", false},
    {"stop_accuracy", "0.99", "0.99", "0.5", "0.75", false},
};
enum { ROWS = sizeof rows / sizeof *rows };

static dr_backend *reference;

static dr_train_options *new_options(void) {
    dr_train_options *options;
    must(dr_train_options_create(&options));
    return options;
}

/* The row of a setting, which there must be. */
static int row_of(const char *name) {
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].name, name) == 0) return i;
    fail_msg("the setting %s has no row here", name);
    return -1;
}

static void test_defaults(void **state) {
    (void)state;
    const dr_setting *settings;
    int count = dr_train_settings(&settings);
    dr_train_options *options = new_options();
    assert_int_equal(count, ROWS);
    for (int i = 0; i < count; i++)
        assert_string_equal(dr_train_options_get(options, settings[i].name), rows[row_of(settings[i].name)].lm);
    must(dr_train_options_set(options, "task", "mqar"));
    for (int i = 0; i < count; i++)
        assert_string_equal(dr_train_options_get(options, settings[i].name), rows[row_of(settings[i].name)].mqar);
    dr_train_options_destroy(options);
}

static bool same_value(const char *one, const char *other) {
    double a, b;
    if (strcmp(one, other) == 0) return true;
    return dr_number_parse(one, DR_NUMBER_ANY, &a) && dr_number_parse(other, DR_NUMBER_ANY, &b) && a == b;
}

static const char *value_of(int row) {
    return rows[row].value ? rows[row].value : scratch_folder;
}

/* A new run with every setting off its default. */
static void start_run(void) {
    dr_train_options *options = new_options();
    dr_run *run;
    for (int i = 0; i < ROWS; i++) must(dr_train_options_set(options, rows[i].name, value_of(i)));
    scratch_remove(scratch_path("run"));
    must(dr_run_create(reference, options, scratch_path("run"), &run));
    dr_run_destroy(run);
    dr_train_options_destroy(options);
}

/* All but threads, on which no result depends. */
static void test_a_run_keeps_its_settings(void **state) {
    (void)state;
    dr_train_options *kept = new_options();
    start_run();
    must(dr_train_options_read(kept, scratch_path("run")));
    for (int i = 0; i < ROWS; i++) {
        const char *found = dr_train_options_get(kept, rows[i].name);
        bool off_default = strcmp(value_of(i), rows[i].mqar) != 0 || strcmp(value_of(i), rows[i].lm) != 0;
        if (strcmp(rows[i].name, "init") != 0) assert_true(off_default); /* test_init.c */
        if (strcmp(rows[i].name, "threads") != 0 && !same_value(found, value_of(i)))
            fail_msg("%s was %s and is kept as %s", rows[i].name, value_of(i), found);
    }
    dr_train_options_destroy(kept);
}

static void test_what_may_change(void **state) {
    (void)state;
    start_run();
    for (int i = 0; i < ROWS; i++) {
        dr_run *run = NULL;
        dr_train_options *changes = new_options();
        must(dr_train_options_set(changes, rows[i].name, value_of(i)));
        must(dr_run_resume(reference, scratch_path("run"), changes, &run)); /* as it was */
        dr_run_destroy(run);
        if (rows[i].other) {
            run = NULL;
            must(dr_train_options_set(changes, rows[i].name, rows[i].other));
            dr_status status = dr_run_resume(reference, scratch_path("run"), changes, &run);
            if (rows[i].may_change != (status == DR_OK)) fail_msg("%s: %s", rows[i].name, dr_last_error());
            if (status != DR_OK) assert_refused(status, DR_ERROR_ARGUMENT, rows[i].name);
            dr_run_destroy(run);
        }
        dr_train_options_destroy(changes);
    }
}

static int begin(void **state) {
    reference = open_backend("reference", NULL, 1);
    return scratch_begin(state);
}

static int end(void **state) {
    dr_backend_close(reference);
    return scratch_end(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_a_run_keeps_its_settings),
        cmocka_unit_test(test_what_may_change),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
