/* Settings of training by name and from configuration files: every one is checked, and wrong ones are refused by name; and what
 * memory a run with such settings is said to need. */
#include "nn/session.h"
#include "scratch.h"
#include "train/run.h"
#include "train/settings.h"

#include <deltarule/train.h>
#include <math.h>

static dr_train_options *new_options(void) {
    dr_train_options *options;
    assert_int_equal(dr_train_options_create(&options), DR_OK);
    return options;
}

static void set(dr_train_options *options, const char *name, const char *value) {
    if (dr_train_options_set(options, name, value) != DR_OK) fail_msg("%s", dr_last_error());
}

static void assert_set_fails(const char *name, const char *value, const char *part) {
    dr_train_options *options = new_options();
    char before[64];
    snprintf(before, sizeof before, "%s", dr_train_options_get(options, name) ? dr_train_options_get(options, name) : "");
    assert_int_equal(dr_train_options_set(options, name, value), DR_ERROR_ARGUMENT);
    if (!strstr(dr_last_error(), part)) fail_msg("\"%s\" lacks \"%s\"", dr_last_error(), part);
    if (*before) assert_string_equal(dr_train_options_get(options, name), before);
    dr_train_options_destroy(options);
}

/* Every row: a default that it takes itself, and values of a wrong type or range that it refuses by name. */
static void test_every_setting_is_checked(void **state) {
    (void)state;
    const dr_setting *settings;
    int count = dr_train_settings(&settings);
    assert_int_equal(count, DR_SETTINGS);
    for (int i = 0; i < count; i++) {
        const dr_setting *setting = &settings[i];
        dr_train_options *options = new_options();
        static const char *const tasks[] = {"lm", "mqar"};
        for (int task = 0; task < 2; task++) {
            char fallback[64];
            set(options, "task", tasks[task]);
            snprintf(fallback, sizeof fallback, "%s", dr_train_options_get(options, setting->name));
            if (i != DR_SET_TASK) set(options, setting->name, fallback);
        }
        dr_train_options_destroy(options);
        char beyond[64];
        assert_true(setting->help && *setting->help && setting->group && *setting->group);
        switch (setting->type) {
        case DR_SETTING_INTEGER:
            assert_set_fails(setting->name, "1.5", setting->name);
            /* fall through */
        case DR_SETTING_REAL:
            assert_set_fails(setting->name, "", setting->name);
            assert_set_fails(setting->name, "many", setting->name);
            assert_set_fails(setting->name, "nan", setting->name);
            snprintf(beyond, sizeof beyond, "%.0f", setting->most + 1 + fabs(setting->most));
            assert_set_fails(setting->name, beyond, setting->name);
            snprintf(beyond, sizeof beyond, "%.0f", setting->least - 1 - fabs(setting->least));
            assert_set_fails(setting->name, beyond, setting->name);
            break;
        case DR_SETTING_BOOLEAN:
            assert_set_fails(setting->name, "yes", "true or false");
            break;
        case DR_SETTING_TEXT:
            if (setting->choices) assert_set_fails(setting->name, "neither", setting->choices);
            break;
        }
    }
    assert_set_fails("corpus", "text-\xff\n", "corpus is \"text-\\xff\\x0a\", which is not UTF-8");
    assert_set_fails("rule", "gdm", "did you mean");
    assert_set_fails("learning_rat", "1", "did you mean \"learning_rate\"?");
    assert_set_fails("colour_of_the_sky", "blue", "--help");
    dr_train_options *options = new_options();
    assert_null(dr_train_options_get(options, "colour_of_the_sky"));
    dr_train_options_destroy(options);
}

static void test_defaults_follow_the_task(void **state) {
    (void)state;
    dr_train_options *options = new_options();
    assert_string_equal(dr_train_options_get(options, "task"), "lm");
    assert_string_equal(dr_train_options_get(options, "seq_len"), "256");
    set(options, "task", "mqar");
    assert_string_equal(dr_train_options_get(options, "seq_len"), "64");
    assert_string_equal(dr_train_options_get(options, "hidden"), "64");
    set(options, "seq_len", "128");
    set(options, "task", "lm");
    assert_string_equal(dr_train_options_get(options, "seq_len"), "128");
    dr_train_options_destroy(options);
}

static dr_status read_json(dr_train_options *options, const char *text) {
    return dr_train_options_read(options, scratch_write("config-file.json", text, strlen(text)));
}

static void test_configuration_files(void **state) {
    (void)state;
    dr_train_options *options = new_options();
    assert_int_equal(read_json(options,
                               "{\"task\": \"mqar\", \"learning_rate\": 0.002, \"steps\": 7, \"tied\": false, \"clip\": 2,"
                               " \"conv_size\": \"auto\", \"lower_bound\": -5.5}"),
                     DR_OK);
    assert_string_equal(dr_train_options_get(options, "task"), "mqar");
    assert_true(dr_setting_real(options, DR_SET_LEARNING_RATE) == 0.002);
    assert_true(dr_setting_real(options, DR_SET_CLIP) == 2);
    assert_int_equal(dr_setting_integer(options, DR_SET_STEPS), 7);
    assert_false(dr_setting_boolean(options, DR_SET_TIED));
    assert_true(dr_setting_is_auto(options, DR_SET_CONV_SIZE));
    assert_int_equal(read_json(options, "{\"steps\": 1e3, \"heads\": 4.0, \"clip\": 1e3, \"held_out\": 2e2}"), DR_OK);
    assert_string_equal(dr_train_options_get(options, "steps"), "1000");
    assert_string_equal(dr_train_options_get(options, "heads"), "4");
    assert_string_equal(dr_train_options_get(options, "held_out"), "200");
    assert_true(dr_setting_real(options, DR_SET_CLIP) == 1000);
    static const struct {
        const char *text;
        dr_status status;
        const char *part;
    } bad[] = {{"{\"stepps\": 7}", DR_ERROR_ARGUMENT, "did you mean \"steps\"?"},
               {"{\"steps\": \"7\"}", DR_ERROR_ARGUMENT, "steps must be a whole number, not the string \"7\""},
               {"{\"steps\": 7.5}", DR_ERROR_ARGUMENT, "steps must be a whole number"},
               {"{\"steps\": -3}", DR_ERROR_ARGUMENT, "steps is \"-3\""},
               {"{\"learning_rate\": true}", DR_ERROR_ARGUMENT, "learning_rate must be a number, not true"},
               {"{\"tied\": 1}", DR_ERROR_ARGUMENT, "tied must be true or false"},
               {"{\"rule\": [1]}", DR_ERROR_ARGUMENT, "rule must be a string, not an array"},
               {"{\"rule\": \"gnd\"}", DR_ERROR_ARGUMENT, "gnd"},
               {"{\"heads\": \"auto\"}", DR_ERROR_ARGUMENT, "heads must be a whole number"},
               {"{\"steps\": 1, \"steps\": 2}", DR_ERROR_FORMAT, "config-file.json"},
               {"{\"steps\": 7", DR_ERROR_FORMAT, "config-file.json"},
               {"[]", DR_ERROR_FORMAT, "config-file.json"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(read_json(options, bad[i].text), bad[i].status);
        if (!strstr(dr_last_error(), bad[i].part)) fail_msg("\"%s\" lacks \"%s\"", dr_last_error(), bad[i].part);
        assert_non_null(strstr(dr_last_error(), "config-file.json"));
    }
    assert_int_equal(dr_train_options_read(options, scratch_path("no-such.json")), DR_ERROR_IO);
    dr_train_options_destroy(options);
}

static dr_status prepare_mqar(dr_backend *backend, const char *hidden, const char *heads, dr_run **run) {
    dr_train_options *options = new_options();
    set(options, "task", "mqar");
    set(options, "hidden", hidden);
    set(options, "heads", heads);
    dr_status status = dr_run_prepare(backend, options, run);
    dr_train_options_destroy(options);
    return status;
}

/* A run holds parameters, their gradient and the two means of AdamW, and what a step needs. */
static void test_memory_of_a_run(void **state) {
    (void)state;
    dr_backend *backend;
    dr_run *run;
    dr_run_costs costs;
    assert_int_equal(dr_backend_open("reference", NULL, &backend), DR_OK);
    assert_int_equal(prepare_mqar(backend, "16", "2", &run), DR_OK);
    assert_int_equal(dr_run_measure(run, &costs), DR_OK);
    const int64_t blocks = 4 * (int64_t)sizeof(double) * dr_model_block_count(dr_run_model(run));
    assert_true(blocks >= 4 * (int64_t)sizeof(double) * costs.parameters);
    assert_int_equal(costs.bytes - blocks, (int64_t)run->session->capacity);
    dr_run_destroy(run);

    assert_int_equal(prepare_mqar(backend, "100000", "1000", &run), DR_ERROR_MEMORY);
    long long parameters = 0;
    double gigabytes = 0;
    const char *said = strstr(dr_last_error(), "a model of ");
    assert_non_null(said);
    assert_int_equal(sscanf(said, "a model of %lld parameters: it needs %lf GB", &parameters, &gigabytes), 2);
    const double expected = 4e-9 * (double)sizeof(double) * (double)parameters;
    if (!(fabs(gigabytes / expected - 1) < 1e-3)) fail_msg("%s, not %.1f GB", dr_last_error(), expected);
    dr_backend_close(backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_setting_is_checked),
        cmocka_unit_test(test_defaults_follow_the_task),
        cmocka_unit_test(test_configuration_files),
        cmocka_unit_test(test_memory_of_a_run),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
