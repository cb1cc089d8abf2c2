/* Writing checkpoints. Where the backend can work beside itself (dr_operations.beside) and has room for what a checkpoint
 * holds, that is copied within its memory, which takes milliseconds, and a thread writes the copy while the run goes on. */
#ifndef DR_TRAIN_SAVE_H
#define DR_TRAIN_SAVE_H

#include "train/run.h"

/* Writes the checkpoint of the run's position, and its kept copy, when the one before is written. last: no step follows, so it
 * is there on return; else it may be under way. */
dr_status dr_save(dr_run *run, bool last);
/* The first checkpoint of a new run, with the other files in `change`, which is gone on return; it may be under way. Opens the
 * run's metrics. */
dr_status dr_save_first(dr_run *run, dr_folder *change);
/* What came of a checkpoint that was under way and is no more; DR_OK while it is. */
dr_status dr_save_check(dr_run *run);
/* Waits for it. */
dr_status dr_save_end(dr_run *run);
/* Waits, and releases what saving took. */
void dr_save_release(dr_run *run);
/* What a write into the run folder came to. One that failed because the folder or its lock went meanwhile says so. */
dr_status dr_save_written(const dr_run *run, dr_status status);

#endif
