/* One optimizer step of a run, in two halves: what is asked of the backend, and what came of it. On a backend whose work goes
 * on beside the host's, the next step is asked for before the numbers of this one are read, so that the backend never waits. */
#ifndef DR_TRAIN_STEP_H
#define DR_TRAIN_STEP_H

#include "ops/operations.h"
#include "train/optimizer.h"
#include "train/task.h"

#include <deltarule/train.h>

/* What a step leaves in the backend's memory. Two steps may be under way: each has a place of its own. */
enum { DR_STEPS_UNDER_WAY = 2 };

typedef struct {
    dr_backend *backend;
    int64_t parts;                      /* of a step: its batch is computed in so many calls */
    size_t bytes;                       /* of one place */
    char *block;                        /* [DR_STEPS_UNDER_WAY] places, in the backend's memory */
    char *host;                         /* one place, in the host's */
    double *share[DR_STEPS_UNDER_WAY];  /* [parts] of the step's targets */
    void *transfer[DR_STEPS_UNDER_WAY]; /* to the host, under way; NULL: none */
} dr_step_numbers;

dr_status dr_step_numbers_create(dr_backend *backend, int64_t parts, dr_step_numbers *numbers);
void dr_step_numbers_release(dr_step_numbers *numbers); /* what is zero is allowed */
/* Whether the backend's work goes on beside the host's, so that reading the numbers of a step late saves time. */
bool dr_step_is_read_late(const dr_backend *backend);

/* A step that was asked for. */
typedef struct {
    int64_t step;
    int64_t tokens, bytes; /* read; of text, 0: the targets are no text */
    double mean;           /* 1 / targets; 0: there are none */
    double learning_rate;
} dr_step;

/* Asks for the gradient of the batch of a step, 1, 2, .., and for the update; waits for neither. */
dr_status dr_step_ask(dr_run *run, int64_t step, dr_step *asked);
/* Waits for the numbers of the earliest step that was asked for and not finished: moves the run's position to it, and tells
 * loss, bits per byte, balancing loss, learning rate and norm. DR_ERROR_NUMERIC after 50 steps in a row without an update. */
dr_status dr_step_finish(dr_run *run, const dr_step *asked, dr_progress *progress);

#endif
