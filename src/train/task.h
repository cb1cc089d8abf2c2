/* What a run learns: batches to train on, and an evaluation on data that it never trains on. A task is one file that fills this
 * table, and a word in the choices of the setting `task`; those of synthetic examples share one, with a generator each
 * (data/examples.h). */
#ifndef DR_TRAIN_TASK_H
#define DR_TRAIN_TASK_H

#include "formats/folder.h"
#include "train/settings.h"

/* One of several held-out sets. NaN: not measured. */
typedef struct {
    double loss, bits_per_byte;
    double accuracy, sequence_accuracy; /* of targets; of sequences of which all targets are right */
} dr_set_evaluation;

typedef struct {
    double loss;                   /* nats a target, mean over all sets */
    double bits_per_byte;          /* NaN if targets are not text */
    double accuracy;               /* NaN if it is not measured */
    const dr_set_evaluation *sets; /* [those that the task names], valid until the next evaluation */
} dr_evaluation;

/* Names of held-out sets that are told apart; they live as long as the task. */
typedef struct {
    const char *const *names; /* [count] */
    int count;                /* 0: there is one, which needs no name */
    bool of_text;             /* what is told of a set: loss and bits per byte, or loss and the two accuracies */
} dr_set_names;

typedef struct dr_task dr_task;

typedef struct {
    /* Batch number 1, 2, ..: a function of the settings and the number alone; a step takes as many as the setting accumulate
     * says. It is valid until the next call. bytes: how many bytes of text its targets are, 0 if they are not text. */
    dr_status (*batch)(dr_task *, int64_t number, dr_batch *batch, int64_t *bytes);
    /* Does beforehand, out of measured time, what the batches from a number on need once; NULL: nothing. */
    void (*prepare)(dr_task *, int64_t number);
    dr_status (*evaluate)(dr_task *, dr_session *session, dr_evaluation *evaluation);
    /* Writes what the user needs beside the model among the first files of a run; NULL: nothing. */
    dr_status (*publish)(const dr_task *, dr_folder *change);
    void (*describe)(const dr_task *, void (*line)(void *context, const char *text), void *context);
    void (*destroy)(dr_task *);
} dr_task_operations;

struct dr_task {
    const dr_task_operations *ops;
    int64_t vocabulary;
    int64_t sequences, rows, targets; /* of the largest batch */
    bool selects;                     /* targets are at positions, not all rows */
    dr_set_names sets;
    uint64_t fingerprint; /* of data that lies outside of the run folder: a resumed run must find the same */
};

/* The task that the settings name. */
dr_status dr_task_create(const dr_train_options *options, dr_task **task);
dr_status dr_task_language_model_create(const dr_train_options *options, dr_task **task);
dr_status dr_task_examples_create(const dr_train_options *options, dr_task **task);

#endif
