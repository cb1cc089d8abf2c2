/* The library in a program that set a locale with other numbers: everything it computes, writes and says is as in the locale
 * "C", and what one locale wrote another goes on with. */
#include "foreign_locale.h"
#include "scratch.h"

#include <deltarule/generate.h>
#include <deltarule/state.h>
#include <deltarule/theory.h>
#include <deltarule/train.h>
#include <deltarule/verify.h>
#include <math.h>

static dr_backend *backend;

static void must(dr_status status) {
    if (status != DR_OK) fail_msg("%s", dr_last_error());
}

/* A host sets no locale in between: the current one is that of the whole test. -1 stands for "C". */
static void enter(int locale) {
    if (locale < 0)
        setlocale(LC_ALL, "C");
    else
        assert_true(foreign_locale_set(locale));
}

/* ---- what the library says, gathered in one text ---- */

static char said[200000];

static void say(void *context, const char *text) {
    (void)context;
    size_t used = strlen(said);
    assert_in_range(used + strlen(text), 0, sizeof said - 3);
    strcat(strcat(said, text), "\n");
}

static void say_failure(dr_status status) {
    assert_true(status != DR_OK);
    say(NULL, dr_last_error());
}

/* ---- runs ---- */

static const char RULE[] = "{\"base\": \"qdelta\", \"rows\": [{\"read\": \"key_plus_query\", \"write\": \"preconditioned\", "
                           "\"gain\": \"beta\", \"value\": "
                           "\"gain_v\"}], \"scan\": \"diagonal\", \"squash\": {\"x\": 1.25, \"eps\": 1e-5}, \"gate\": "
                           "\"eda_bounded\", \"lower_bound\": -4.5}";

static dr_train_options *tiny_run(void) {
    static const char *const values[][2] = {
        {"task", "mqar"},        {"steps", "6"},   {"batch", "4"},      {"seq_len", "32"},       {"hidden", "16"},
        {"layers", "1"},         {"heads", "2"},   {"save_every", "3"}, {"vocabulary", "64"},    {"held_out", "8"},
        {"evaluate_every", "2"}, {"rule", RULE},   {"beta1", "0.85"},   {"beta2", "0.975"},      {"learning_rate", "3.5e-3"},
        {"clip", "0.75"},        {"threads", "1"}, {"power_a", "0.25"}, {"weight_decay", ".05"}, {"stop_accuracy", "0"},
    };
    dr_train_options *options;
    must(dr_train_options_create(&options));
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) must(dr_train_options_set(options, values[i][0], values[i][1]));
    return options;
}

static bool until_step(void *stop_at, const dr_progress *progress) {
    return progress->step != *(int64_t *)stop_at;
}

/* Trains from the beginning, or goes on, until a step. */
static void train(const char *folder, bool resumed, int64_t stop_at) {
    dr_train_options *options = tiny_run();
    dr_run *run;
    must(resumed ? dr_run_resume(backend, folder, options, &run) : dr_run_create(backend, options, folder, &run));
    if (!resumed) dr_run_describe(run, say, NULL);
    dr_status status = dr_run_train(run, until_step, &stop_at);
    assert_int_equal(status, stop_at == 6 ? status : DR_ERROR_INTERRUPTED);
    dr_run_destroy(run);
    dr_train_options_destroy(options);
}

/* Takes the cells out of metrics.csv that tell times. */
static void drop_times(char *text) {
    enum { TOKENS_PER_SECOND = 5, SECONDS = 6, LAST = 11 };
    int column = 0;
    char *to = text;
    for (const char *from = text; *from; from++) {
        if (*from == '\n') {
            assert_int_equal(column, LAST); /* no cell holds a comma */
            column = 0;
        }
        if (*from == ',') column++;
        if ((column != TOKENS_PER_SECOND && column != SECONDS) || *from == ',') *to++ = *from;
    }
    *to = '\0';
}

static char *contents(const char *folder, const char *name) {
    char path[PATH_MAX];
    size_t bytes;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    char *text = scratch_read_at(path, &bytes);
    if (!text) fail_msg("%s is missing", path);
    if (strcmp(name, "metrics.csv") == 0) drop_times(text);
    return text;
}

static void assert_same_files(const char *one, const char *other) {
    size_t bytes = 0, more = 0;
    char *first = scratch_read_at(one, &bytes), *second = scratch_read_at(other, &more);
    assert_non_null(first);
    assert_non_null(second);
    assert_int_equal(bytes, more);
    if (memcmp(first, second, bytes) != 0) fail_msg("%s and %s differ", one, other);
    free(first);
    free(second);
}

static void assert_same_runs(const char *one, const char *other) {
    static const char *const texts[] = {"config.json", "settings.json", "metrics.csv"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char *first = contents(one, texts[i]), *second = contents(other, texts[i]);
        assert_string_equal(first, second);
        free(first);
        free(second);
    }
    char paths[2][PATH_MAX];
    snprintf(paths[0], PATH_MAX, "%s/model.safetensors", one);
    snprintf(paths[1], PATH_MAX, "%s/model.safetensors", other);
    assert_same_files(paths[0], paths[1]);
}

/* ---- everything else that reads, writes or tells numbers ---- */

static void compose_rules(void) {
    char text[2000];
    dr_rule rule;
    dr_gates gates;
    must(dr_rule_read_text(RULE, &rule, &gates));
    assert_true(rule.squash.x == 1.25 && rule.squash.eps == 1e-5 && gates.lower_bound == -4.5);
    assert_in_range(dr_rule_write_text(&rule, &gates, text, sizeof text), 1, sizeof text - 1);
    say(NULL, text);
    assert_in_range(dr_rule_equation(&rule, text, sizeof text), 1, sizeof text - 1);
    say(NULL, text);
    say_failure(dr_rule_read_text("{\"base\": \"kda\", \"lower_bound\": 1.5}", &rule, &gates));
    say_failure(dr_rule_read_text("{\"base\": \"kda\", \"squash\": 1.5}", &rule, &gates));
    say_failure(dr_rule_read_text("{\"base\": \"kda\", \"lower_bound\": 0,5}", &rule, &gates));
}

static void refuse_settings(void) {
    static const char *const wrong[][2] = {{"learning_rate", "0,001"}, {"learning_rate", "1e9"}, {"beta1", "1.5"},
                                           {"clip", "1.000,5"},        {"steps", "1.000"},       {"steps", "1 000"}};
    dr_train_options *options = tiny_run();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        say_failure(dr_train_options_set(options, wrong[i][0], wrong[i][1]));
    const char *file = scratch_write("settings.json", "{\"learning_rate\": 2.5e-3, \"steps\": 1.5}", 38);
    say_failure(dr_train_options_read(options, file));
    say(NULL, dr_train_options_get(options, "learning_rate"));
    say_failure(dr_train_options_read(options, scratch_path("no-such-file")));
    dr_train_options_destroy(options);
}

/* The file of a state; what is loaded from it is saved as the same bytes. */
static void keep_a_state(const char *file) {
    dr_rule rule;
    dr_gates gates;
    must(dr_rule_read_text(RULE, &rule, &gates));
    dr_recurrence recurrence = {.rule = &rule,
                                .layout = {.sequences = 2, .rows = 6},
                                .key_heads = 2,
                                .value_heads = 2,
                                .key_size = 3,
                                .value_size = 5,
                                .scale = 0.125};
    dr_state *state, *again;
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s.again", file);
    must(dr_state_create(backend, &recurrence, &state));
    must(dr_state_save(state, file));
    must(dr_state_load(backend, &recurrence, file, &again));
    must(dr_state_save(again, copy));
    assert_same_files(file, copy);
    dr_state_destroy(state);
    dr_state_destroy(again);
}

static void check_statements(void) {
    dr_verify_options options = {.backend = "reference"};
    dr_verify_counts counts = {0};
    dr_theory_result result;
    char text[64];
    must(dr_verify(DR_TESTS_FOLDER "/vectors/act_squash__T9.safetensors", &options, say, NULL, &counts));
    must(dr_verify(DR_TESTS_FOLDER "/vectors/gdn__scale1.safetensors", &options, say, NULL, &counts));
    assert_int_equal(counts.failed, 0);
    assert_true(counts.passed > 0);
    must(dr_theory_check(0, 1, &result));
    assert_true(result.holds && result.counter_fails);
    locale_t before = uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
    snprintf(text, sizeof text, "%a", result.figure);
    uselocale(before);
    say(NULL, text);
}

/* All of it in a locale. The folders' names begin with its number. */
static void do_everything(int locale) {
    char name[32];
    said[0] = '\0';
    enter(locale);
    compose_rules();
    refuse_settings();
    check_statements();
    snprintf(name, sizeof name, "%d-state", locale);
    keep_a_state(scratch_path(name));
    snprintf(name, sizeof name, "%d-run", locale);
    train(scratch_path(name), false, 6);
}

static int located; /* the locale that a test is run in */

static void test_everything_is_as_in_c(void **state) {
    (void)state;
    static char in_c[sizeof said];
    char name[32];
    if (!*in_c) {
        do_everything(-1);
        strcpy(in_c, said);
    }
    do_everything(located);
    assert_string_equal(said, in_c);
    snprintf(name, sizeof name, "%d-run", located);
    assert_same_runs(scratch_path(name), scratch_path("-1-run"));
    snprintf(name, sizeof name, "%d-state", located);
    assert_same_files(scratch_path(name), scratch_path("-1-state"));
}

static void test_a_run_goes_on_in_another_locale(void **state) {
    (void)state;
    char there[32], back[32];
    snprintf(there, sizeof there, "%d-there", located);
    snprintf(back, sizeof back, "%d-back", located);
    enter(-1);
    train(scratch_path(there), false, 3);
    enter(located);
    train(scratch_path(there), true, 6);
    assert_same_runs(scratch_path(there), scratch_path("-1-run"));
    train(scratch_path(back), false, 2);
    enter(-1);
    train(scratch_path(back), true, 6);
    assert_same_runs(scratch_path(back), scratch_path("-1-run"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_is_as_in_c),
        cmocka_unit_test(test_a_run_goes_on_in_another_locale),
    };
    int failed = 0, set = 0;
    scratch_begin(NULL);
    if (dr_backend_open("cpu", &(dr_backend_options){.threads = 1}, &backend) != DR_OK) return 1;
    for (located = 0; located < FOREIGN_LOCALES; located++) {
        if (!foreign_locale_set(located)) continue;
        printf("in the locale %s:\n", foreign_locales[located]);
        failed += cmocka_run_group_tests(tests, NULL, NULL);
        set++;
    }
    dr_backend_close(backend);
    scratch_end(NULL);
    return failed ? 1 : set ? 0 : SKIPPED;
}
