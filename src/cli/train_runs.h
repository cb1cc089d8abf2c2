/* Several runs of one process side by side on one device: those of deltarule train --runs. */
#ifndef DR_CLI_TRAIN_RUNS_H
#define DR_CLI_TRAIN_RUNS_H

#include "cli/flags.h"

#include <deltarule/train.h>

enum { CLI_MOST_RUNS = 64 };

/* Trains `count` runs, each of its own settings, in folder/seed-N by its seed, each by a thread, beside `backend`.
 * Returns the exit status: that of the first run that failed. */
int cli_train_runs(const cli_command *command, dr_backend *backend, dr_train_options *const *options, int count,
                   const char *folder);

#endif
