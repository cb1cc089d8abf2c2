/* Training: a model, data, AdamW, a run folder that can be resumed bit for bit.
 *
 * Threads. One thread at a time uses a run, and its model with it; different runs may train at once, also on one backend.
 * Options are read by any number of threads while none sets them. Functions of the caller's are called on the thread that
 * trains. */
#ifndef DELTARULE_TRAIN_H
#define DELTARULE_TRAIN_H

#include <deltarule/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Every setting of a run is one row of a table: the key of the JSON configuration and the flag of the command line have its
 * name (learning_rate and --learning-rate), so neither can know what the other does not. */
typedef enum { DR_SETTING_INTEGER, DR_SETTING_REAL, DR_SETTING_BOOLEAN, DR_SETTING_TEXT } dr_setting_type;

typedef struct {
    const char *name; /* "learning_rate" */
    dr_setting_type type;
    const char *fallback;     /* the default, as text */
    double least, most;       /* of numbers */
    const char *choices;      /* of texts: "auto log", or NULL */
    const char *group, *help; /* one line */
} dr_setting;

/* The table, and how many rows it has; settings may be NULL. */
DR_API int dr_train_settings(const dr_setting **settings);

typedef struct dr_train_options dr_train_options;
DR_API dr_status dr_train_options_create(dr_train_options **options); /* all at their defaults */
DR_API void dr_train_options_destroy(dr_train_options *options);      /* NULL is allowed */
/* Sets one by name from text. DR_ERROR_ARGUMENT: unknown name (near ones are told), wrong type, out of range. */
DR_API dr_status dr_train_options_set(dr_train_options *options, const char *name, const char *value);
/* Sets those in a JSON object in a file, or those of a run if `file` is its folder; unknown keys and wrong types are refused.
 */
DR_API dr_status dr_train_options_read(dr_train_options *options, const char *file);
/* The value of one as text, valid until it is set again; NULL for an unknown name, or where a pointer is missing. */
DR_API const char *dr_train_options_get(const dr_train_options *options, const char *name);

/* What a run tells while it works. */
typedef struct {
    int64_t step, steps;
    double loss;          /* of this step, nats a target, mean */
    double bits_per_byte; /* language modelling: of this step; else NaN */
    double accuracy;      /* tasks: of the last evaluation; NaN before */
    double held_out;      /* loss of the last evaluation; NaN before */
    double learning_rate, gradient_norm;
    double tokens_per_second, seconds, seconds_left;
    int64_t skipped;       /* steps whose gradient was not finite */
    bool evaluated;        /* held_out and accuracy are of this step */
    double balancing_loss; /* of the mixtures of experts, of this step; NaN: the model has none */
    double utilization; /* 6 operations a token and active parameter, of 989 TFLOP/s of H100 and H200 in bf16; NaN: neither */
    int64_t bytes;      /* of the backend's memory: parameters, gradient, what the optimizer keeps, and a step */
} dr_progress;

/* Return false to stop: a checkpoint is written and the run ends with DR_ERROR_INTERRUPTED. */
typedef bool (*dr_progress_callback)(void *context, const dr_progress *progress);

/* A run from its options: data, model, optimizer. folder: the run folder, made if missing; one that has files in it is refused.
 * The folder is this run's until it is destroyed: another process that wants it gets DR_ERROR_IO. What cannot run is refused
 * before the folder is made, and what fails leaves nothing behind: sizes that are too large for the memory that is there
 * (DR_ERROR_MEMORY), layers that the backend does not have, data that cannot be read. */
typedef struct dr_run dr_run;
DR_API dr_status dr_run_create(dr_backend *backend, const dr_train_options *options, const char *folder, dr_run **run);
/* The same on a backend of the run's own, over the same device, whose work goes on beside that of `backend` and of other such
 * runs: each may be trained by a thread of its own, and is bit for bit the run that it is alone. `backend` outlives it.
 * DR_ERROR_UNSUPPORTED on the CPU, whose processors would be shared. */
DR_API dr_status dr_run_create_beside(dr_backend *backend, const dr_train_options *options, const char *folder, dr_run **run);
/* The same without a folder: a run to describe and to measure, which cannot be trained. */
DR_API dr_status dr_run_prepare(dr_backend *backend, const dr_train_options *options, dr_run **run);

/* What a run takes. */
typedef struct {
    int64_t parameters, steps, tokens; /* tokens: of a step */
    int64_t bytes;                     /* of memory, beside the data and what the threads need */
    double step_seconds;
} dr_run_costs;

/* Makes a few steps of a prepared run to learn their time. */
DR_API dr_status dr_run_measure(dr_run *run, dr_run_costs *costs);

/* The same counted from the settings alone: nothing is read, made or measured, so that it may be more than this machine has. */
typedef struct {
    int64_t parameters;                                       /* all of */
    int64_t embedding, mixers, feed_forwards, norms, head;    /* head 0: it is the embedding */
    int64_t active;                                           /* of these a token goes through: of experts those it chooses */
    int64_t steps, tokens;                                    /* tokens: of a step */
    int64_t parameter_bytes, gradient_bytes, optimizer_bytes; /* of memory */
    int64_t step_bytes;                                       /* of one part of a step, where its batch is divided */
} dr_run_plan;

/* vocabulary: of the data; 0: that of the task, or in task lm the setting's, or that of bytes. DR_ERROR_ARGUMENT as
 * dr_run_create. */
DR_API dr_status dr_run_plan_make(dr_backend *backend, const dr_train_options *options, int64_t vocabulary, dr_run_plan *plan);

/* Continues the run in a folder: its options, model, optimizer and data position. Of the options steps, threads, save_every,
 * save_keep, evaluate_every and the place of the corpus may be changed. DR_ERROR_ARGUMENT: the folder holds no run, more steps
 * are done than there shall be, or settings.json contradicts config.json; DR_ERROR_IO: another process is training there.
 * changes NULL: none. */
DR_API dr_status dr_run_resume(dr_backend *backend, const char *folder, const dr_train_options *changes, dr_run **run);
/* Trains to the end, writing metrics.csv as it goes, a checkpoint every save_every steps and at the end, and the model.
 * DR_ERROR_NUMERIC if the gradients of 50 steps in a row were not finite, or the last loss is not, which is saved all the same.
 * callback NULL: nobody is told. */
DR_API dr_status dr_run_train(dr_run *run, dr_progress_callback callback, void *context);
DR_API dr_model *dr_run_model(dr_run *run); /* NULL of NULL */
/* One line a fact about the run: model, parameters, data, held-out data. Nothing without a run or a line. */
DR_API void dr_run_describe(const dr_run *run, void (*line)(void *context, const char *text), void *context);
DR_API void dr_run_destroy(dr_run *run); /* NULL is allowed */

/* How a model does on one set of a task's held-out examples. */
typedef struct {
    const char *set;           /* its lengths, "40-256", or "64/4" with pairs; valid during the call that tells of it */
    int sets;                  /* how many there are */
    int64_t length, pairs;     /* of the set, the most; pairs 0: the task has none */
    int64_t examples, queries; /* queries: tokens at which something is asked */
    double loss;               /* nats a query, mean */
    double accuracy;           /* share of the queries whose likeliest token is right */
    double sequence_accuracy;  /* share of the examples whose queries are all answered right */
    double seconds;
} dr_task_score;

/* Who is told; each may be NULL, and gets `context`. */
typedef struct {
    bool (*progress)(void *context, int64_t done, int64_t total); /* examples of all sets; false to stop */
    void (*set)(void *context, const dr_task_score *score);
    void *context;
} dr_task_score_calls;

/* Scores a model on the examples that a training run of these options evaluates on: those of `held_out_lengths`, `held_out` of
 * each, drawn from `held_out_seed`, `batch` a call. The task is any but lm. DR_ERROR_ARGUMENT if the options cannot be or the
 * model has other ids than the task; DR_ERROR_NUMERIC if a loss is not finite. calls NULL: nobody is told. */
DR_API dr_status dr_score_task(const dr_model *model, const dr_train_options *options, const dr_task_score_calls *calls);

#ifdef __cplusplus
}
#endif
#endif
