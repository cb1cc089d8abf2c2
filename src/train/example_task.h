/* The tasks of synthetic examples, as training runs and scoring have them. */
#ifndef DR_TRAIN_EXAMPLE_TASK_H
#define DR_TRAIN_EXAMPLE_TASK_H

#include "data/example_batch.h"
#include "data/sizes.h"
#include "train/task.h"

/* What the settings say of such a task. */
typedef struct {
    dr_generator *generator;
    dr_sizes training, held_out;
    uint64_t held_out_seed;
    int64_t step, batch, examples; /* of a step; of a batch, which accumulate makes a part of it; of a held-out set */
    bool named;                    /* held-out sets have names */
} dr_example_task;

/* vocabulary: 0, or of a model that is only scored, where the sizes of training do not matter: they are those of the held-out
 * sets then. DR_ERROR_ARGUMENT names what cannot be. */
dr_status dr_example_task_open(const dr_train_options *options, int64_t vocabulary, dr_example_task *task);
void dr_example_task_close(dr_example_task *task); /* of one that is all zeros too */
/* The most tokens of a call: those of a training batch, if all its examples are of the largest size. */
int64_t dr_example_task_rows(const dr_example_task *task);

#endif
