/* A model lives in a backend's memory, so the two are opened together, and the backend is closed last. */
#include "cli/model.h"

#include "cli/text.h"

#include <string.h>
#include <unistd.h>

static dr_status open_tokenizer(const char *folder, const char *given, dr_tokenizer **tokenizer) {
    char path[4096];
    if (given && strcmp(given, "bytes") == 0) return DR_OK;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    if (!given && access(path, F_OK) != 0) return DR_OK;
    return dr_tokenizer_load(given ? given : folder, tokenizer);
}

dr_dtype cli_flag_weights(const cli_flag *flag) {
    return strcmp(flag->value, "bf16") == 0 ? DR_BF16 : strcmp(flag->value, "int8") == 0 ? DR_I8 : DR_F32;
}

int cli_model_open(const cli_command *command, const char *folder, const cli_model_flags *flags, cli_model *opened) {
    const dr_backend_options options = {.threads = (int)cli_flag_integer(flags->threads),
                                        .isa = flags->isa->value,
                                        .weights = flags->weights ? cli_flag_weights(flags->weights) : DR_F32,
                                        .dtype = flags->dtype ? cli_flag_dtype(flags->dtype) : DR_F32,
                                        .device = flags->device ? (int)cli_flag_integer(flags->device) : 0};
    *opened = (cli_model){0};
    dr_status status = dr_backend_open(flags->backend->value, &options, &opened->backend);
    if (status == DR_OK) status = dr_model_load(opened->backend, folder, &opened->model);
    for (int64_t i = 0; status == DR_OK && flags->verbose && i < dr_model_ignored_count(opened->model); i++) {
        fprintf(stderr, "deltarule %s: the model does not use the stored tensor ", command->name);
        cli_print_name(stderr, dr_model_ignored_name(opened->model, i));
        fputc('\n', stderr);
    }
    if (status == DR_OK && flags->tokenizer) status = open_tokenizer(folder, flags->tokenizer->value, &opened->tokenizer);
    if (status == DR_OK) return 0;
    cli_model_close(opened);
    return cli_failure(command, status);
}

void cli_model_close(cli_model *opened) {
    dr_tokenizer_destroy(opened->tokenizer);
    dr_model_destroy(opened->model);
    if (opened->backend) dr_backend_close(opened->backend);
    *opened = (cli_model){0};
}
