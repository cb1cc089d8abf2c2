/* A model lives in a backend's memory, so the two are opened together; the caller closes the backend last. */
#include "cli/model.h"

#include "cli/text.h"

#include <string.h>
#include <unistd.h>

int cli_model_open(const cli_command *command, const char *folder, const cli_flag *backend_flag, const cli_flag *threads,
                   const cli_flag *isa, bool verbose, dr_backend **backend, dr_model **model) {
    dr_backend_options options = {.threads = (int)cli_flag_integer(threads), .isa = isa->value};
    dr_status status = dr_backend_open(backend_flag->value, &options, backend);
    if (status != DR_OK) return cli_failure(command, status);
    status = dr_model_load(*backend, folder, model);
    if (status != DR_OK) {
        dr_backend_close(*backend);
        return cli_failure(command, status);
    }
    for (int64_t i = 0; verbose && i < dr_model_ignored_count(*model); i++) {
        fprintf(stderr, "deltarule %s: the model does not use the stored tensor ", command->name);
        cli_print_name(stderr, dr_model_ignored_name(*model, i));
        fputc('\n', stderr);
    }
    return 0;
}

int cli_tokenizer_open(const cli_command *command, const char *folder, const char *given, dr_tokenizer **tokenizer) {
    char path[4096];
    *tokenizer = NULL;
    if (given && strcmp(given, "bytes") == 0) return 0;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    if (!given && access(path, F_OK) != 0) return 0;
    dr_status status = dr_tokenizer_load(given ? given : folder, tokenizer);
    return status == DR_OK ? 0 : cli_failure(command, status);
}
