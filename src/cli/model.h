/* Opening the model that a command is about. */
#ifndef DR_CLI_MODEL_H
#define DR_CLI_MODEL_H

#include "cli/flags.h"

#include <deltarule/tokenizer.h>

typedef struct {
    dr_backend *backend;
    dr_model *model;
    dr_tokenizer *tokenizer; /* NULL: ids are bytes */
} cli_model;

/* The flags of a command that say how a model is opened. */
typedef struct {
    const cli_flag *backend, *threads, *isa;
    const cli_flag *tokenizer; /* names one, or "bytes"; not given: that of the model's folder, if there is one; NULL: none */
    bool verbose;              /* names the tensors that the model does not use */
} cli_model_flags;

/* Opens the backend, the model of a folder and its tokenizer. On failure says so, leaves nothing open and returns the exit
 * status, else 0. */
int cli_model_open(const cli_command *command, const char *folder, const cli_model_flags *flags, cli_model *opened);
void cli_model_close(cli_model *opened);

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
