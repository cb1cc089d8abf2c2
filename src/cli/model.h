/* Opening the model that a command is about. */
#ifndef DR_CLI_MODEL_H
#define DR_CLI_MODEL_H

#include "cli/flags.h"

#include <deltarule/tokenizer.h>

/* Opens the backend and loads the model of a folder; verbose: names the tensors that the model does not use. On failure says so
 * and returns the exit status, else 0. */
int cli_model_open(const cli_command *command, const char *folder, const cli_flag *backend_flag, const cli_flag *threads,
                   const cli_flag *isa, bool verbose, dr_backend **backend, dr_model **model);

/* The tokenizer of a model: that which `given` names, the flag's value, or that of the model's folder. *tokenizer NULL: neither
 * is there, or the word is "bytes". On failure says so and returns the exit status, else 0. */
int cli_tokenizer_open(const cli_command *command, const char *folder, const char *given, dr_tokenizer **tokenizer);

#define CLI_FLAG_TOKENIZER                                                                                                     \
    {                                                                                                                          \
        .setting = {"tokenizer",                                                                                               \
                    DR_SETTING_TEXT,                                                                                           \
                    NULL,                                                                                                      \
                    0,                                                                                                         \
                    0,                                                                                                         \
                    NULL,                                                                                                      \
                    NULL,                                                                                                      \
                    "folder with tokenizer.json, or such a file; 'bytes': ids are bytes; by default that of the "              \
                    "model's folder, else bytes"},                                                                             \
        .placeholder = "DIR"                                                                                                   \
    }

#endif
