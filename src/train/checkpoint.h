/* What a run folder holds so that a run can go on where it was: the model, settings.json, and optimizer.safetensors with the
 * means of AdamW and the position. All of it changes in one atomic step (formats/folder.h), so model and optimizer never
 * disagree. */
#ifndef DR_TRAIN_CHECKPOINT_H
#define DR_TRAIN_CHECKPOINT_H

#include "formats/folder.h"
#include "train/optimizer.h"
#include "train/settings.h"

/* How far a run is. Data needs no more: batches are functions of the step. */
typedef struct {
    int64_t step;              /* done so far */
    int64_t skipped;           /* of them without an update */
    int64_t skipped_in_row;    /* of these the last ones */
    double seconds;            /* of work */
    double held_out, accuracy; /* of the last evaluation; NaN: none */
    uint64_t fingerprint;      /* of the data (train/task.h) */
} dr_run_position;

/* Replaces the checkpoint of a run. */
dr_status dr_checkpoint_write(const char *folder, const dr_train_options *options, const dr_optimizer *optimizer,
                              const dr_run_position *position);
/* Adds the checkpoint to a change that holds other files of a new run, and publishes it. The change is gone on return. */
dr_status dr_checkpoint_finish(dr_folder *change, const dr_train_options *options, const dr_optimizer *optimizer,
                               const dr_run_position *position);
/* Fills an optimizer that was made for the folder's model. */
dr_status dr_checkpoint_read(const char *folder, dr_optimizer *optimizer, dr_run_position *position);
/* Whether the folder has a checkpoint. */
bool dr_checkpoint_exists(const char *folder);

#endif
