/* The bits of training: for each rule, tests/steps/RULE is a small model, and tests/steps/losses.txt holds
 * what 20 steps from it gave: the losses and a checksum of the last weights. A change that should move no number is held
 * against them in three ways of giving a batch, on every instruction set, and on 1, 2 and 4 threads of the machine's best.
 *
 * The bits also depend on the C library's exp, log and their kin. The recording holds a checksum of those; where it differs,
 * losses are compared to 1e-5 instead of to the bit, and the test says so.
 *
 *     test_recorded_steps --record losses   writes losses.txt anew: after a change that is meant to move numbers
 *     test_recorded_steps --record models   writes the models anew first
 *
 * tools/record-steps builds and runs it. */
#include "base/cpu.h"
#include "base/number.h"
#include "base/random.h"
#include "nn/config.h"
#include "train/optimizer.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <deltarule/deltarule.h>

enum { STEPS = 20, ROWS = 126, VOCABULARY = 23, MOST_LINES = 512 };

/* One call of packed sequences; a call for each sequence, whose gradients add up; one call of equal sequences, with targets at
 * some positions only. */
typedef enum { PACKED, SEPARATE, SELECTED, WAYS } batch_way;
static const char *const way_names[WAYS] = {"packed", "separate", "selected"};

static const int64_t boundaries[] = {0, 1, 38, 107, ROWS};
enum { SEQUENCES = sizeof boundaries / sizeof *boundaries - 1 };

typedef struct {
    double loss[STEPS];
    uint64_t weights;
} steps_outcome;

typedef struct {
    char rule[64], isa[16], way[16];
    steps_outcome outcome;
} recorded;

static recorded lines[MOST_LINES];
static int line_count;
static uint64_t recorded_library;

static uint64_t checksum(uint64_t sum, const void *bytes, size_t count) { /* FNV-1a */
    const unsigned char *at = bytes;
    for (size_t i = 0; i < count; i++) sum = (sum ^ at[i]) * UINT64_C(0x100000001b3);
    return sum;
}

static const uint64_t EMPTY = UINT64_C(0xcbf29ce484222325);

/* Of the functions that models and AdamW call, over a range of arguments. */
static uint64_t library_checksum(void) {
    uint64_t sum = EMPTY;
    for (int i = 1; i <= 4096; i++) {
        volatile double x = i * 0.00731;
        double values[] = {exp(x), exp(-x), expm1(-x), log(x), log1p(x), tanh(x), pow(0.95, x), cos(x), sin(x)};
        float singles[] = {expf(-(float)x), logf((float)x), log1pf((float)x)};
        sum = checksum(checksum(sum, values, sizeof values), singles, sizeof singles);
    }
    return sum;
}

static void check(dr_status status) {
    if (status == DR_OK) return;
    fprintf(stderr, "%s\n", dr_last_error());
    abort();
}

/* ---- models --------------------------------------------------------------------------------------------------------- */

static void folder_of(const char *rule, char path[512]) {
    snprintf(path, 512, "%s/steps/%s", DR_TESTS_FOLDER, rule);
}

static void record_models(void) {
    dr_backend *backend;
    check(dr_backend_open("cpu", NULL, &backend));
    for (int i = 0; i < dr_rule_count(); i++) {
        const dr_rule *rule = dr_rule_at(i);
        char path[512];
        dr_model *model;
        dr_model_config config = dr_model_config_default(rule);
        config.vocabulary = VOCABULARY;
        config.hidden = 16;
        config.layers = 2;
        config.heads = 2;
        config.key_size = 8;
        config.intermediate = 12;
        config.initializer_range = 0.1;
        folder_of(rule->name, path);
        check(dr_model_create(backend, &config, (uint64_t)i + 1, &model));
        check(dr_model_save(model, path));
        dr_model_destroy(model);
    }
    dr_backend_close(backend);
}

/* ---- steps ---------------------------------------------------------------------------------------------------------- */

static double gradient_of(dr_session *session, void *gradients, batch_way way, const int32_t *ids, const int32_t *labels) {
    double sum = 0, part;
    int64_t positions[ROWS], chosen = 0;
    if (way == SEPARATE) {
        for (int i = 0; i < SEQUENCES; i++) {
            int64_t rows = boundaries[i + 1] - boundaries[i];
            dr_batch batch = {{1, rows, NULL}, ids + boundaries[i], rows, NULL, labels + boundaries[i]};
            check(dr_session_gradient(session, &batch, 1.0 / ROWS, gradients, &part, NULL));
            sum += part;
        }
        return sum / ROWS;
    }
    dr_batch batch = {{SEQUENCES, ROWS, boundaries}, ids, ROWS, NULL, labels};
    if (way == SELECTED) {
        for (int64_t i = 0; i < ROWS; i += 1 + i % 3) positions[chosen++] = i;
        batch = (dr_batch){{2, ROWS, NULL}, ids, chosen, positions, labels};
    }
    check(dr_session_gradient(session, &batch, 1.0 / (double)batch.targets, gradients, &sum, NULL));
    return sum / (double)batch.targets;
}

static void take_steps(dr_backend *backend, const char *rule, batch_way way, steps_outcome *outcome) {
    const dr_optimizer_settings settings = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1};
    char path[512];
    dr_model *model;
    dr_session *session;
    dr_optimizer *optimizer;
    folder_of(rule, path);
    check(dr_model_load(backend, path, &model));
    check(dr_session_create(model, &session));
    check(dr_optimizer_create(model, &settings, &optimizer));
    size_t size = dr_dtype_size(dr_backend_dtype(backend)), bytes = (size_t)dr_model_block_count(model) * size;
    dr_random random = dr_random_start(7, 1);
    for (int step = 0; step < STEPS; step++) {
        int32_t ids[ROWS], labels[ROWS];
        double norm;
        bool skipped;
        for (int i = 0; i < ROWS; i++) ids[i] = (int32_t)dr_random_below(&random, VOCABULARY);
        for (int i = 0; i < ROWS; i++) labels[i] = (ids[i] * 5 + ids[i > 0 ? i - 1 : 0]) % VOCABULARY;
        dr_backend_zero(backend, optimizer->gradient, bytes);
        outcome->loss[step] = gradient_of(session, optimizer->gradient, way, ids, labels);
        check(dr_optimizer_step(optimizer, 5e-3, &norm, &skipped));
        if (skipped) fprintf(stderr, "%s: step %d was skipped\n", rule, step), abort();
    }
    void *weights = malloc(bytes);
    const dr_parameter *parameters;
    int64_t count = dr_model_parameters(model, &parameters);
    check(dr_backend_download(backend, weights, dr_backend_dtype(backend), dr_model_parameter_block(model),
                              dr_model_block_count(model)));
    outcome->weights = EMPTY; /* by parameter: where each stands in the block is not of interest */
    for (int64_t i = 0; i < count; i++)
        outcome->weights = checksum(outcome->weights, (char *)weights + (size_t)parameters[i].offset * size,
                                    (size_t)parameters[i].count * size);
    free(weights);
    dr_optimizer_destroy(optimizer);
    dr_session_destroy(session);
    dr_model_destroy(model);
}

/* ---- the recording -------------------------------------------------------------------------------------------------- */

static const char *const isa_names[] = {"portable", "avx2", "avx512", "double"};
enum { ISAS = sizeof isa_names / sizeof *isa_names };

static bool has_isa(int isa) {
    dr_cpu_features features = dr_cpu_detect();
    return isa == 1 ? features.avx2 : isa == 2 ? features.avx512 : true;
}

static dr_backend *open_isa(int isa, int threads) {
    bool is_reference = strcmp(isa_names[isa], "double") == 0;
    dr_backend_options options = {.threads = threads, .isa = is_reference ? NULL : isa_names[isa]};
    dr_backend *backend;
    check(dr_backend_open(is_reference ? "reference" : "cpu", &options, &backend));
    return backend;
}

static void record_losses(void) {
    FILE *file = fopen(DR_TESTS_FOLDER "/steps/losses.txt", "w");
    if (!file) perror(DR_TESTS_FOLDER "/steps/losses.txt"), exit(1);
    fprintf(file, "library %016" PRIx64 "\n", library_checksum());
    for (int i = 0; i < dr_rule_count(); i++)
        for (int isa = 0; isa < ISAS; isa++) {
            if (!has_isa(isa)) fprintf(stderr, "this machine has no %s: record on another\n", isa_names[isa]), exit(1);
            dr_backend *backend = open_isa(isa, 1);
            for (int way = 0; way < WAYS; way++) {
                steps_outcome outcome;
                take_steps(backend, dr_rule_at(i)->name, way, &outcome);
                fprintf(file, "%s %s %s %016" PRIx64, dr_rule_at(i)->name, isa_names[isa], way_names[way], outcome.weights);
                for (int step = 0; step < STEPS; step++) dr_print(file, " %a", outcome.loss[step]);
                fprintf(file, "\n");
            }
            dr_backend_close(backend);
        }
    if (fclose(file) != 0) perror(DR_TESTS_FOLDER "/steps/losses.txt"), exit(1);
}

static int read_recording(void **state) {
    (void)state;
    FILE *file = fopen(DR_TESTS_FOLDER "/steps/losses.txt", "r");
    if (!file || fscanf(file, "library %" SCNx64, &recorded_library) != 1) return 1;
    for (recorded *line = lines; line_count < MOST_LINES; line++, line_count++) {
        char number[64];
        if (fscanf(file, "%63s %15s %15s %" SCNx64, line->rule, line->isa, line->way, &line->outcome.weights) != 4) break;
        for (int step = 0; step < STEPS; step++)
            if (fscanf(file, "%63s", number) != 1 || !dr_number_parse(number, DR_NUMBER_FINITE, &line->outcome.loss[step]))
                return 1;
    }
    fclose(file);
    return 0;
}

static const steps_outcome *find_recorded(const char *rule, int isa, batch_way way) {
    for (int i = 0; i < line_count; i++)
        if (strcmp(lines[i].rule, rule) == 0 && strcmp(lines[i].isa, isa_names[isa]) == 0 &&
            strcmp(lines[i].way, way_names[way]) == 0)
            return &lines[i].outcome;
    fail_msg("%s %s %s is not recorded: tools/record-steps", rule, isa_names[isa], way_names[way]);
    return NULL;
}

static void assert_recorded(dr_backend *backend, const char *rule, int isa, batch_way way) {
    const steps_outcome *wanted = find_recorded(rule, isa, way);
    const bool same_library = library_checksum() == recorded_library;
    steps_outcome found;
    take_steps(backend, rule, way, &found);
    for (int step = 0; step < STEPS; step++) {
        double distance = fabs(found.loss[step] - wanted->loss[step]) / wanted->loss[step];
        if (same_library ? distance != 0 : !(distance <= 1e-5))
            fail_msg("%s %s %s, %d threads: the loss of step %d is %a and was %a", rule, isa_names[isa], way_names[way],
                     dr_backend_threads(backend), step + 1, found.loss[step], wanted->loss[step]);
    }
    if (same_library && found.weights != wanted->weights)
        fail_msg("%s %s %s, %d threads: the losses are as recorded, the last weights are not", rule, isa_names[isa],
                 way_names[way], dr_backend_threads(backend));
}

static void rules_are_as_recorded(int isa, int threads, batch_way ways) {
    dr_backend *backend = open_isa(isa, threads);
    for (int i = 0; i < dr_rule_count(); i++)
        for (int way = 0; way < (int)ways; way++) assert_recorded(backend, dr_rule_at(i)->name, isa, (batch_way)way);
    dr_backend_close(backend);
}

static void steps_are_as_recorded(void **state) {
    (void)state;
    int best = 0;
    if (library_checksum() != recorded_library)
        printf("another C library than that of the recording: losses are compared to 1e-5, not to the bit\n");
    for (int isa = 0; isa < ISAS; isa++) {
        if (!has_isa(isa)) printf("this machine has no %s: not tested\n", isa_names[isa]);
        if (has_isa(isa)) rules_are_as_recorded(isa, 1, WAYS);
        if (has_isa(isa) && isa < ISAS - 1) best = isa; /* the last is the reference, which has no threads */
    }
    rules_are_as_recorded(best, 2, SELECTED);
    rules_are_as_recorded(best, 4, SELECTED);
}

static void every_layer_is_recorded(void **state) {
    (void)state;
    assert_int_equal(line_count, dr_rule_count() * ISAS * WAYS);
}

int main(int count, char **arguments) {
    if (count == 3 && strcmp(arguments[1], "--record") == 0) {
        if (strcmp(arguments[2], "models") == 0) record_models();
        record_losses();
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_layer_is_recorded), cmocka_unit_test(steps_are_as_recorded)};
    return cmocka_run_group_tests(tests, read_recording, NULL);
}
