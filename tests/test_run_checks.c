/* What a run finds out about itself: before its steps whether there is memory for it, when it is resumed whether settings and
 * model are of one run, after its last step whether the losses are numbers. */
#include "allocation.h"
#include "formats/json.h"
#include "scratch.h"
#include "train/run.h"

#include <deltarule/train.h>
#include <fcntl.h>
#include <math.h>

static int64_t available; /* what the library is told; 0: the truth */

int64_t __real_dr_memory_available(void);
int64_t __wrap_dr_memory_available(void);
int64_t __wrap_dr_memory_available(void) {
    return available > 0 ? available : __real_dr_memory_available();
}

/* Nothing here is about the disk, which would take most of the time. */
int __wrap_fsync(int descriptor);
int __wrap_fsync(int descriptor) {
    return fcntl(descriptor, F_GETFD) < 0 ? -1 : 0;
}

static dr_backend *cpu;

static void set(dr_train_options *options, const char *name, const char *value) {
    if (dr_train_options_set(options, name, value) != DR_OK) fail_msg("%s", dr_last_error());
}

/* A run of task mqar, a few steps long. */
static dr_train_options *new_options(const char *rule) {
    static const char *const values[][2] = {
        {"task", "mqar"},       {"steps", "4"}, {"batch", "8"},     {"seq_len", "64"},   {"hidden", "32"},
        {"layers", "2"},        {"heads", "2"}, {"held_out", "16"}, {"save_every", "2"}, {"vocabulary", "96"},
        {"intermediate", "48"}, {"pairs", "4"}, {"seed", "3"},      {"gate", "auto"},    {"stop_accuracy", "0"}};
    dr_train_options *options;
    assert_int_equal(dr_train_options_create(&options), DR_OK);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) set(options, values[i][0], values[i][1]);
    set(options, "rule", rule);
    return options;
}

static dr_run *create(dr_train_options *options, const char *folder) {
    dr_run *run;
    if (dr_run_create(cpu, options, scratch_path(folder), &run) != DR_OK) fail_msg("%s", dr_last_error());
    return run;
}

static bool stop(void *context, const dr_progress *progress) {
    (void)context, (void)progress;
    return false;
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

/* What --dry-run prints is what the run takes from the system at its most, with evaluations and checkpoints: to 5%, the
 * rounding of each large block to huge pages and the piece of a tensor that is written. */
static void test_memory_is_what_was_said(void **state) {
    (void)state;
    static const struct {
        const char *rule, *name, *value, *batch;
    } runs[] = {{"gdn", "hidden", "768", "1"},     {"kda", "vocabulary", "60000", "2"}, {"mesanet", "seq_len", "90", "64"},
                {"mamba2", "layers", "6", "32"},   {"pgdn", "hidden", "256", "16"},     {"retnet", "intermediate", "512", "48"},
                {"qdelta", "key_size", "64", "24"}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        dr_train_options *options = new_options(runs[i].rule);
        set(options, runs[i].name, runs[i].value);
        set(options, "batch", runs[i].batch);
        set(options, "steps", "2");
        dr_run *run;
        dr_run_costs costs;
        if (dr_run_prepare(cpu, options, &run) != DR_OK) fail_msg("%s", dr_last_error());
        assert_int_equal(dr_run_measure(run, &costs), DR_OK);
        dr_run_destroy(run);

        const long before = allocation_bytes;
        allocation_peak = before;
        run = create(options, "measured");
        assert_int_equal(dr_run_train(run, NULL, NULL), DR_OK);
        dr_run_destroy(run);
        const double taken = (double)(allocation_peak - before), said = (double)costs.bytes, some = 12e6;
        print_message("%-8s %-12s %-5s: %6.1f MB said, %6.1f MB taken\n", runs[i].rule, runs[i].name, runs[i].value,
                      1e-6 * said, 1e-6 * taken);
        assert_true(said > 3e7);
        assert_true(taken >= 0.95 * said && taken <= 1.05 * said + some);
        scratch_remove(scratch_path("measured"));
        dr_train_options_destroy(options);
    }
}

static void assert_no_memory(dr_train_options *options, int64_t bytes, const char *part) {
    dr_run *run = (dr_run *)1;
    char needs[64];
    snprintf(needs, sizeof needs, "it needs %.1f GB", 1e-9 * (double)(bytes + 1));
    available = bytes;
    assert_int_equal(dr_run_create(cpu, options, scratch_path("refused"), &run), DR_ERROR_MEMORY);
    available = 0;
    assert_null(run);
    if (!strstr(dr_last_error(), part) || !strstr(dr_last_error(), needs))
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", dr_last_error(), part, needs);
    assert_int_equal(access(scratch_path("refused"), F_OK), -1);
}

/* One byte too little for parameters, gradient and the two means, or for a step; and just enough. */
static void test_memory_is_refused_at_its_bound(void **state) {
    (void)state;
    static const char *const sizes[][2] = {{"hidden", "512"}, {"batch", "64"}};
    for (int i = 0; i < 2; i++) {
        dr_train_options *options = new_options("gdn");
        if (i == 0) set(options, "batch", "1");
        set(options, sizes[i][0], sizes[i][1]);
        dr_run *run;
        dr_run_costs costs;
        assert_int_equal(dr_run_prepare(cpu, options, &run), DR_OK);
        assert_int_equal(dr_run_measure(run, &costs), DR_OK);
        const int64_t blocks = 4 * dr_model_block_count(dr_run_model(run)) * (int64_t)sizeof(float);
        const int64_t step = costs.bytes - blocks;
        dr_run_destroy(run);
        assert_true(i == 0 ? blocks > step : step > blocks);
        assert_no_memory(options, (i == 0 ? blocks : step) - 1, i == 0 ? "training of a model" : "a step of a model");
        available = blocks > step ? blocks : step;
        dr_run_destroy(create(options, "enough"));
        available = 0;
        scratch_remove(scratch_path("enough"));
        dr_train_options_destroy(options);
    }
}

/* ---- settings and model --------------------------------------------------------------------------------------------- */

static void replace(const char *folder, const char *file, const char *key, const char *value) {
    char path[PATH_MAX];
    json_t *object, *read = json_loads(value, JSON_DECODE_ANY, NULL);
    assert_non_null(read);
    snprintf(path, sizeof path, "%s/%s", scratch_path(folder), file);
    assert_int_equal(dr_json_read(path, &object), DR_OK);
    assert_int_equal(json_object_set_new(object, key, read), 0);
    assert_int_equal(dr_json_write(path, object), DR_OK);
    json_decref(object);
}

#define BARE_GDN                                                                                                               \
    "{\"decay\": \"scalar\", \"rows\": [{\"read\": \"key\", \"write\": \"key\", \"gain\": \"beta\", \"value\": \"gain_v\"}]"

/* A rule without a base that equals gdn had the layers of compositions once, and has gdn's today. Neither file says so, and
 * runs of both versions go on as they began. */
static void test_rules_without_a_base_go_on(void **state) {
    (void)state;
    for (int today = 0; today < 2; today++) {
        dr_train_options *options = new_options(today ? BARE_GDN "}" : BARE_GDN ", \"family\": \"composition\"}");
        dr_run *run = create(options, "bare"), *resumed = NULL;
        const int64_t value_size = dr_model_get_config(dr_run_model(run))->value_size;
        assert_int_equal(value_size, today ? 32 : 16);
        assert_int_equal(dr_run_train(run, stop, NULL), DR_ERROR_INTERRUPTED);
        dr_run_destroy(run);
        if (!today) {
            replace("bare", "settings.json", "rule", BARE_GDN "}");
            replace("bare", "config.json", "rule", BARE_GDN "}");
        }
        for (int again = 0; again < 2; again++) { /* what the resumed run writes is read once more */
            if (dr_run_resume(cpu, scratch_path("bare"), NULL, &resumed) != DR_OK) fail_msg("%s", dr_last_error());
            assert_int_equal(dr_model_get_config(dr_run_model(resumed))->value_size, value_size);
            assert_int_equal(dr_run_train(resumed, again ? NULL : stop, NULL), again ? DR_OK : DR_ERROR_INTERRUPTED);
            dr_run_destroy(resumed);
        }
        scratch_remove(scratch_path("bare"));
        dr_train_options_destroy(options);
    }
}

/* A family that was edited, also one with layers of the same sizes. */
static void test_edited_families_are_refused(void **state) {
    (void)state;
    static const char *const families[] = {"delta_net", "composition", "kda"};
    dr_train_options *options = new_options("gdn");
    set(options, "value_size", "16");
    set(options, "output_gate", "true");
    set(options, "conv_size", "4");
    dr_run_destroy(create(options, "edited"));
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        char rule[64];
        dr_run *run = (dr_run *)1;
        snprintf(rule, sizeof rule, "{\"base\": \"gdn\", \"family\": \"%s\"}", families[i]);
        replace("edited", "settings.json", "rule", rule);
        assert_int_equal(dr_run_resume(cpu, scratch_path("edited"), NULL, &run), DR_ERROR_ARGUMENT);
        assert_null(run);
        if (!strstr(dr_last_error(), "settings.json") || !strstr(dr_last_error(), families[i]))
            fail_msg("\"%s\" does not name settings.json and %s", dr_last_error(), families[i]);
    }
    replace("edited", "settings.json", "rule", "{\"base\": \"gdn\"}");
    dr_run *run;
    if (dr_run_resume(cpu, scratch_path("edited"), NULL, &run) != DR_OK) fail_msg("%s", dr_last_error());
    dr_run_destroy(run);
    dr_train_options_destroy(options);
}

/* ---- losses --------------------------------------------------------------------------------------------------------- */

typedef struct {
    dr_model *model;
    int64_t step, parameter; /* which becomes NaN after this step */
    double last;             /* loss */
} breaker;

static bool break_parameter(void *context, const dr_progress *progress) {
    breaker *self = context;
    const double value = (double)NAN;
    void *to = (float *)dr_model_parameter_block(self->model) + self->parameter;
    if (progress->step == self->step) assert_int_equal(dr_backend_upload(cpu, to, &value, DR_F64, 1), DR_OK);
    self->last = progress->loss;
    return true;
}

/* A run whose parameter becomes NaN after the step before the last: what it says, and that its model is there. */
static double assert_says(dr_train_options *options, int64_t parameter, const char *words) {
    dr_run *run = create(options, "broken");
    breaker self = {.model = dr_run_model(run), .step = 3, .parameter = parameter};
    assert_int_equal(dr_run_train(run, break_parameter, &self), DR_ERROR_NUMERIC);
    if (!strstr(dr_last_error(), words)) fail_msg("\"%s\" lacks \"%s\"", dr_last_error(), words);
    dr_run_destroy(run);
    assert_int_equal(access(scratch_path("broken/model.safetensors"), F_OK), 0);
    scratch_remove(scratch_path("broken"));
    return self.last;
}

/* A last step whose loss is no number; and one whose loss is, but not that of held-out text: the embedding of a token is broken
 * that the step does not read. */
static void test_losses_that_are_no_numbers_are_said(void **state) {
    (void)state;
    dr_train_options *options = new_options("gdn");
    assert_true(
        isnan(assert_says(options, 0, "the run ended after step 4 with a loss of nan: begin again with a learning_rate")));

    enum { TOKEN = 8000, HIDDEN = 32 };
    set(options, "vocabulary", "8192");
    set(options, "tied", "false");
    set(options, "batch", "1");
    set(options, "held_out", "1000");
    set(options, "evaluate_every", "0");
    assert_true(isfinite(assert_says(options, (int64_t)TOKEN * HIDDEN, "after step 4 with a held-out loss of nan")));
    dr_train_options_destroy(options);
}

static int begin(void **state) {
    if (scratch_begin(state) != 0) return -1;
    return dr_backend_open("cpu", &(dr_backend_options){.threads = 2}, &cpu) == DR_OK ? 0 : -1;
}

static int end(void **state) {
    dr_backend_close(cpu);
    return scratch_end(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_what_was_said),
        cmocka_unit_test(test_memory_is_refused_at_its_bound),
        cmocka_unit_test(test_rules_without_a_base_go_on),
        cmocka_unit_test(test_edited_families_are_refused),
        cmocka_unit_test(test_losses_that_are_no_numbers_are_said),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
