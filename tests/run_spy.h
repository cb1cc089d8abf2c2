/* A tiny training run that is watched where its settings are used: what reaches the operations of the backend (reference, with
 * some functions of its table replaced), the batches that reach the model, and what the callback is told. A program that
 * includes this wraps dr_session_gradient, dr_session_loss and fsync at link time. Include it in one file only. */
#ifndef DR_TESTS_RUN_SPY_H
#define DR_TESTS_RUN_SPY_H

#include "ops/operations.h"
#include "scratch.h"
#include "statuses.h"
#include "train/run.h"

#include <deltarule/train.h>
#include <math.h>

enum { SPY_MOST = 256, SPY_MOST_VALUES = 1 << 16 };

/* A batch as the model was given it. */
typedef struct {
    int64_t sequences, rows, targets;
    int32_t *ids, *labels;
    int64_t *positions;  /* NULL: all rows */
    double factor, loss; /* factor: of a gradient */
} spy_batch;

/* What AdamW was given for a run of parameters, in a step that is not skipped. */
typedef struct {
    dr_adamw step;
    dr_adamw_run run;
    dr_control control;
} spy_update;

typedef struct {
    spy_batch trained[SPY_MOST], evaluated[SPY_MOST];
    int trainings, evaluations;
    spy_update update[SPY_MOST];
    int updates;
    double beta; /* of Muon's momentum; 0: no matrix has it */
    dr_gate gate[SPY_MOST];
    int gates;
    dr_conv conv[SPY_MOST];
    int convs;
    dr_rms_norm norm[SPY_MOST];
    int norms;
    dr_recurrence recurrence; /* the last */
    dr_rule rule;             /* of it */
    dr_progress progress[SPY_MOST];
    int64_t saved[SPY_MOST]; /* the step of the checkpoint that is in the folder while step i is told; -1: none */
    int steps;
    dr_parameter parameter[SPY_MOST];
    int parameters;
    double value[SPY_MOST_VALUES]; /* the block before the first step */
    dr_status status;              /* of the run */
    char message[512];
    uint64_t fingerprint;
} spy_record;

static spy_record spy;
static dr_backend *spy_backend;
static const dr_operations *spy_true;
static dr_operations spy_operations;
static double spy_fake_accuracy = -1;    /* of evaluations; negative: the true one */
static bool (*spy_breaks)(int64_t step); /* whether the gradient of a step is to be NaN; NULL: never */
static char spy_folder[PATH_MAX];

#define SPY_KEEP(list, count, value) ((count) < SPY_MOST ? (void)((list)[(count)++] = (value)) : (void)0)

static dr_status spy_adamw(dr_backend *backend, const dr_adamw *step, const dr_control *control, int runs,
                           const dr_adamw_run *run, const void *gradient, void *parameter, void *m, void *v) {
    for (int i = 0; i < runs && control->skipped_in_row == 0; i++) {
        const spy_update update = {*step, run[i], *control};
        SPY_KEEP(spy.update, spy.updates, update);
    }
    return spy_true->adamw(backend, step, control, runs, run, gradient, parameter, m, v);
}

static dr_status spy_momentum(dr_backend *backend, double beta, const dr_control *control, int64_t count, const void *gradient,
                              void *momentum, void *y) {
    spy.beta = beta;
    return spy_true->momentum(backend, beta, control, count, gradient, momentum, y);
}

static dr_status spy_gate_forward(dr_backend *backend, const dr_gate *gate, const void *x, const void *a_log, const void *bias,
                                  void *y) {
    SPY_KEEP(spy.gate, spy.gates, *gate);
    return spy_true->gate_forward(backend, gate, x, a_log, bias, y);
}

static dr_status spy_conv_forward(dr_backend *backend, const dr_conv *conv, const void *x, const void *weight, const void *bias,
                                  const void *initial, void *y, void *final) {
    SPY_KEEP(spy.conv, spy.convs, *conv);
    return spy_true->conv_forward(backend, conv, x, weight, bias, initial, y, final);
}

static dr_status spy_rms_norm_forward(dr_backend *backend, const dr_rms_norm *norm, const void *x, const void *weight,
                                      const void *gate, void *y) {
    SPY_KEEP(spy.norm, spy.norms, *norm);
    return spy_true->rms_norm_forward(backend, norm, x, weight, gate, y);
}

static dr_status spy_recurrence_forward(const dr_plan *plan, const dr_call *call) {
    spy.recurrence = plan->recurrence;
    spy.rule = plan->rule;
    spy.recurrence.rule = &spy.rule;
    return spy_true->recurrence_forward(plan, call);
}

static dr_status spy_sum_squares(dr_backend *backend, int64_t count, const void *x, dr_control *control) {
    must(spy_true->sum_squares(backend, count, x, control));
    if (spy_breaks && spy_breaks(spy.steps + 1)) control->squares = NAN;
    return DR_OK;
}

static void *spy_copy(const void *from, size_t bytes) {
    void *to = from ? malloc(bytes + 1) : NULL;
    return to ? memcpy(to, from, bytes) : NULL;
}

static spy_batch spy_batch_of(const dr_batch *batch, double factor, double loss) {
    size_t rows = (size_t)batch->layout.rows, targets = (size_t)batch->targets;
    return (spy_batch){.sequences = batch->layout.sequences,
                       .rows = batch->layout.rows,
                       .targets = batch->targets,
                       .ids = spy_copy(batch->ids, rows * sizeof *batch->ids),
                       .labels = spy_copy(batch->labels, targets * sizeof *batch->labels),
                       .positions = spy_copy(batch->positions, targets * sizeof *batch->positions),
                       .factor = factor,
                       .loss = loss};
}

dr_status __real_dr_session_gradient(dr_session *, const dr_batch *, double, void *, double *, int64_t *);
dr_status __wrap_dr_session_gradient(dr_session *, const dr_batch *, double, void *, double *, int64_t *);
dr_status __wrap_dr_session_gradient(dr_session *session, const dr_batch *batch, double factor, void *gradients, double *loss,
                                     int64_t *hits) {
    double told = NAN;
    dr_status status = __real_dr_session_gradient(session, batch, factor, gradients, loss, hits);
    if (status == DR_OK) status = dr_session_result(session, &told, NULL);
    if (spy.trainings < SPY_MOST) spy.trained[spy.trainings++] = spy_batch_of(batch, factor, told);
    return status;
}

dr_status __real_dr_session_loss(dr_session *, const dr_batch *, dr_model_state *, double *, int64_t *, double *, uint8_t *);
dr_status __wrap_dr_session_loss(dr_session *, const dr_batch *, dr_model_state *, double *, int64_t *, double *, uint8_t *);
dr_status __wrap_dr_session_loss(dr_session *session, const dr_batch *batch, dr_model_state *state, double *loss, int64_t *hits,
                                 double *per_target, uint8_t *per_hit) {
    dr_status status = __real_dr_session_loss(session, batch, state, loss, hits, per_target, per_hit);
    if (spy.evaluations < SPY_MOST) spy.evaluated[spy.evaluations++] = spy_batch_of(batch, 0, *loss);
    if (hits && spy_fake_accuracy >= 0) *hits = (int64_t)(spy_fake_accuracy * (double)batch->targets);
    return status;
}

/* Nothing here is about the disk, which would take most of the time: a sync is only noted (spy_on_sync, NULL: not even that).
 */
static void (*spy_on_sync)(int descriptor);
int __wrap_fsync(int descriptor);
int __wrap_fsync(int descriptor) {
    if (spy_on_sync) spy_on_sync(descriptor);
    return 0;
}

static void spy_clear(void) {
    spy_batch *lists[] = {spy.trained, spy.evaluated};
    const int counts[] = {spy.trainings, spy.evaluations};
    for (int list = 0; list < 2; list++)
        for (int i = 0; i < counts[list]; i++) {
            free(lists[list][i].ids);
            free(lists[list][i].labels);
            free(lists[list][i].positions);
        }
    memset(&spy, 0, sizeof spy);
}

/* The number behind a key of the metadata of the folder's optimizer.safetensors; -1 if there is no such file. */
static inline int64_t spy_saved_count(const char *key) {
    char path[PATH_MAX + 32], quoted[40];
    size_t bytes;
    snprintf(path, sizeof path, "%s/optimizer.safetensors", spy_folder);
    char *data = scratch_read_at(path, &bytes);
    if (!data) return -1;
    snprintf(quoted, sizeof quoted, "\"%s\":\"", key);
    const char *found = memmem(data, bytes, quoted, strlen(quoted));
    assert_non_null(found);
    int64_t count = strtoll(found + strlen(quoted), NULL, 10);
    free(data);
    return count;
}

static bool spy_follow(void *context, const dr_progress *progress) {
    (void)context;
    if (spy.steps >= SPY_MOST) return false;
    spy.saved[spy.steps] = spy_saved_count("step");
    spy.progress[spy.steps++] = *progress;
    return true;
}

static void spy_open(void) {
    must(dr_backend_open("reference", NULL, &spy_backend));
    spy_true = spy_backend->ops;
    spy_operations = *spy_true;
    spy_operations.beside = NULL; /* a checkpoint is in the folder before the next step is told */
    spy_operations.adamw = spy_adamw;
    spy_operations.momentum = spy_momentum;
    spy_operations.gate_forward = spy_gate_forward;
    spy_operations.conv_forward = spy_conv_forward;
    spy_operations.rms_norm_forward = spy_rms_norm_forward;
    spy_operations.recurrence_forward = spy_recurrence_forward;
    spy_operations.sum_squares = spy_sum_squares;
    spy_backend->ops = &spy_operations;
}

static void spy_close(void) {
    spy_clear();
    spy_backend->ops = spy_true;
    dr_backend_close(spy_backend);
}

static void spy_keep_parameters(dr_model *model) {
    const dr_parameter *parameters;
    spy.parameters = (int)dr_model_parameters(model, &parameters);
    assert_true(spy.parameters <= SPY_MOST && dr_model_block_count(model) <= SPY_MOST_VALUES);
    memcpy(spy.parameter, parameters, (size_t)spy.parameters * sizeof *parameters);
    memcpy(spy.value, dr_model_parameter_block(model), (size_t)dr_model_block_count(model) * sizeof(double));
}

/* Runs from settings "name", "value", .., NULL over those of a tiny run (task first, if it is given), and watches it. */
static void spy_run(const char *const *settings) {
    static const char *const tiny[] = {"steps",          "2", "batch",         "2",  "seq_len",    "8",  "hidden", "8",
                                       "layers",         "1", "heads",         "2",  "save_every", "0",  "warmup", "0",
                                       "clip",           "0", "intermediate",  "12", "vocabulary", "16", "pairs",  "2",
                                       "evaluate_every", "0", "stop_accuracy", "0",  NULL};
    dr_train_options *options;
    dr_run *run;
    spy_clear();
    must(dr_train_options_create(&options));
    must(dr_train_options_set(options, "corpus", scratch_path("corpus")));
    for (int i = 0; tiny[i]; i += 2) must(dr_train_options_set(options, tiny[i], tiny[i + 1]));
    bool recall = settings[0] && strcmp(settings[0], "task") == 0 && strcmp(settings[1], "mqar") == 0;
    if (recall) must(dr_train_options_set(options, "held_out", "3")); /* examples; in task lm it is a share */
    for (int i = 0; settings[i]; i += 2) must(dr_train_options_set(options, settings[i], settings[i + 1]));
    snprintf(spy_folder, sizeof spy_folder, "%s", scratch_path("run"));
    scratch_remove(spy_folder);
    must(dr_run_create(spy_backend, options, spy_folder, &run));
    spy_clear(); /* a new run tries its model on a few tokens */
    spy.fingerprint = run->position.fingerprint;
    spy_keep_parameters(dr_run_model(run));
    spy.status = dr_run_train(run, spy_follow, NULL);
    if (spy.status != DR_OK) snprintf(spy.message, sizeof spy.message, "%s", dr_last_error());
    dr_run_destroy(run);
    dr_train_options_destroy(options);
}

#define SPY_RUN(...) spy_run((const char *const[]){__VA_ARGS__, NULL})

/* The parameter whose name ends so; NULL if there is none. Of more, the first. */
static inline const dr_parameter *spy_parameter(const char *ending) {
    for (int i = 0; i < spy.parameters; i++) {
        size_t length = strlen(spy.parameter[i].name), tail = strlen(ending);
        if (length >= tail && strcmp(spy.parameter[i].name + length - tail, ending) == 0) return &spy.parameter[i];
    }
    return NULL;
}

static inline void spy_assert_shape(const char *ending, int64_t rows, int64_t columns) {
    const dr_parameter *parameter = spy_parameter(ending);
    if (!parameter) fail_msg("the model has no parameter %s", ending);
    if (parameter->shape[0] != rows || (columns > 0 && parameter->shape[1] != columns))
        fail_msg("%s is %lld by %lld, not %lld by %lld", parameter->name, (long long)parameter->shape[0],
                 (long long)parameter->shape[1], (long long)rows, (long long)columns);
}

/* The first gate of a kind that ran. */
static inline const dr_gate *spy_gate(dr_gate_kind kind) {
    for (int i = 0; i < spy.gates; i++)
        if (spy.gate[i].kind == kind) return &spy.gate[i];
    fail_msg("no gate of kind %d ran", (int)kind);
    return NULL;
}

/* Whether any gate of this kind had this multiplier. */
static inline bool spy_has_gate(dr_gate_kind kind, double multiplier) {
    for (int i = 0; i < spy.gates; i++)
        if (spy.gate[i].kind == kind && spy.gate[i].multiplier == multiplier) return true;
    return false;
}

static void spy_write_corpus(void) {
    char name[64], text[512];
    for (int i = 0; i < 30; i++) {
        int length = snprintf(text, sizeof text, "page %d: ", i);
        for (int word = 0; word < 12; word++)
            length += snprintf(text + length, sizeof text - (size_t)length, "%c%d ", 'a' + (i + word) % 26, i * word % 89);
        snprintf(name, sizeof name, "corpus/%02d.txt", i);
        scratch_write(name, text, (size_t)length);
    }
}

#endif
