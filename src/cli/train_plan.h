/* What a training run would take, for people. */
#ifndef DR_CLI_TRAIN_PLAN_H
#define DR_CLI_TRAIN_PLAN_H

#include "cli/flags.h"

/* Prints parameters by kind, memory by part, tokens and steps, and, where there is data, the time of a step. Writes no file.
 * Returns the exit status. */
int cli_train_plan(const cli_command *command, dr_backend *backend, const dr_train_options *options);

#endif
