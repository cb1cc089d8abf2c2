/* deltarule generate: continues a prompt, printing each token as it comes; memory does not grow with the text. */
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/model.h"

#include <deltarule/generate.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    char last; /* the byte printed last */
} output;

static bool emit(void *context, const char *bytes, size_t count) {
    output *printed = context;
    if (count > 0) printed->last = bytes[count - 1];
    return fwrite(bytes, 1, count, stdout) == count && fflush(stdout) == 0 && !cli_interrupted();
}

/* Defaults as the library has them; the flags only override. */
static dr_generate_options read_options(const cli_flag *tokens, const cli_flag *temperature, const cli_flag *top_k,
                                        const cli_flag *top_p, const cli_flag *seed) {
    dr_generate_options options = dr_generate_defaults();
    options.tokens = cli_flag_integer(tokens);
    options.temperature = cli_flag_real(temperature);
    options.top_k = cli_flag_integer(top_k);
    options.top_p = cli_flag_real(top_p);
    options.seed = (uint64_t)cli_flag_integer(seed);
    return options;
}

static int run(int argc, char **argv) {
    enum { MODEL, PROMPT, TOKENS, TEMPERATURE, TOP_K, TOP_P, SEED, BACKEND, THREADS, ISA, FLAGS };
    cli_flag flags[FLAGS] = {
        [MODEL] = {.setting = {"model", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                               "folder with config.json and model.safetensors"},
                   .placeholder = "DIR",
                   .required = true},
        [PROMPT] = {.setting = {"prompt", DR_SETTING_TEXT, "", 0, 0, NULL, NULL, "text to continue; it is printed first"},
                    .placeholder = "TEXT"},
        [TOKENS] = {.setting = {"tokens", DR_SETTING_INTEGER, "500", 0, 1e15, NULL, NULL, "how many tokens to make"},
                    .placeholder = "N"},
        [TEMPERATURE] = {.setting = {"temperature", DR_SETTING_REAL, "1", 0, 100, NULL, NULL, "0: always the likeliest token"},
                         .placeholder = "X"},
        [TOP_K] = {.setting = {"top_k", DR_SETTING_INTEGER, "0", 0, 1e9, NULL, NULL,
                               "draw from the K likeliest only; 0: from all"},
                   .placeholder = "K"},
        [TOP_P] = {.setting = {"top_p", DR_SETTING_REAL, "1", 0, 1, NULL, NULL,
                               "draw from the likeliest that together have this probability"},
                   .placeholder = "P"},
        [SEED] = {.setting = {"seed", DR_SETTING_INTEGER, "0", 0, 9007199254740992.0, NULL, NULL,
                              "the same seed gives the same text"},
                  .placeholder = "N"},
        [BACKEND] = CLI_FLAG_BACKEND,
        [THREADS] = CLI_FLAG_THREADS,
        [ISA] = CLI_FLAG_ISA,
    };
    int operands, exit_status;
    if (!cli_flags_parse(&cli_generate, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;

    dr_generate_options options = read_options(&flags[TOKENS], &flags[TEMPERATURE], &flags[TOP_K], &flags[TOP_P], &flags[SEED]);
    dr_backend *backend;
    dr_model *model;
    exit_status =
        cli_model_open(&cli_generate, flags[MODEL].value, &flags[BACKEND], &flags[THREADS], &flags[ISA], &backend, &model);
    if (exit_status) return exit_status;
    cli_interrupt_catch("");
    output printed = {'\n'};
    const char *prompt = flags[PROMPT].value;
    dr_status status = DR_OK;
    if (emit(&printed, prompt, strlen(prompt))) status = dr_generate(model, prompt, strlen(prompt), &options, emit, &printed);
    if (printed.last != '\n') putchar('\n');
    if (cli_interrupted())
        exit_status = CLI_STATUS_INTERRUPTED;
    else if (status != DR_OK && !ferror(stdout))
        exit_status = cli_failure(&cli_generate, status); /* else main tells of stdout */
    dr_model_destroy(model);
    dr_backend_close(backend);
    return exit_status;
}

const cli_command cli_generate = {
    .name = "generate",
    .arguments = "--model DIR --prompt TEXT [flags]",
    .summary = "continues a prompt, printing tokens as they come",
    .details = "The memory used does not depend on how long the prompt and the text are.",
    .run = run,
};
