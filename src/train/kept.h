/* Copies of a run's last checkpoints, as many as its setting save_keep says: FOLDER/checkpoints/step-000250 and so on. Each is
 * a folder that can be loaded as a model and resumed as a run. */
#ifndef DR_TRAIN_KEPT_H
#define DR_TRAIN_KEPT_H

#include "train/run.h"

/* Writes the copy of the run's position, whose checkpoint FOLDER has already, then removes the oldest ones beyond save_keep.
 * One that is there: anew says whether it is replaced. Nothing where save_keep is 0. */
dr_status dr_kept_write(const dr_run *run, bool anew);

#endif
