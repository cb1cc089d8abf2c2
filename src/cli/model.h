/* Opening the model that a command is about. */
#ifndef DR_CLI_MODEL_H
#define DR_CLI_MODEL_H

#include "cli/flags.h"

/* Opens the backend and loads the model of a folder; verbose: names the tensors that the model does not use. On failure says so
 * and returns the exit status, else 0. */
int cli_model_open(const cli_command *command, const char *folder, const cli_flag *backend_flag, const cli_flag *threads,
                   const cli_flag *isa, bool verbose, dr_backend **backend, dr_model **model);

#endif
