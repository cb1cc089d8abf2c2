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
    const cli_flag *weights;   /* CLI_FLAG_WEIGHTS, or NULL: as the backend computes */
    const cli_flag *dtype;     /* CLI_FLAG_DTYPE, or NULL: float32 */
    const cli_flag *device;    /* CLI_FLAG_DEVICE, or NULL: the first GPU */
} cli_model_flags;

/* Opens the backend, the model of a folder and its tokenizer. On failure says so, leaves nothing open and returns the exit
 * status, else 0. */
int cli_model_open(const cli_command *command, const char *folder, const cli_model_flags *flags, cli_model *opened);
void cli_model_close(cli_model *opened);

#define CLI_FLAG_WEIGHTS                                                                                                       \
    {                                                                                                                          \
        .setting = {"weights",                                                                                                 \
                    DR_SETTING_TEXT,                                                                                           \
                    "float32",                                                                                                 \
                    0,                                                                                                         \
                    0,                                                                                                         \
                    "float32 bf16 int8",                                                                                       \
                    NULL,                                                                                                      \
                    "how weights are kept in memory: bf16 and int8, which has a scale a row, take a half and a quarter and "   \
                    "are summed in float32"},                                                                                  \
        .placeholder = "TYPE"                                                                                                  \
    }

/* The value of CLI_FLAG_WEIGHTS, as backend.h counts types. */
dr_dtype cli_flag_weights(const cli_flag *flag);

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
