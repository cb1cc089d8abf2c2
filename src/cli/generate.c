/* deltarule generate: continues a prompt, printing each token as it comes; memory does not grow with the text.
 *
 * A terminal obeys control characters, so what a model makes of them is shown, not sent; files and pipes get every byte. Either
 * gets whole characters, so that a reader never sees half of one. */
#include "cli/commands.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/model.h"
#include "cli/text.h"

#include <deltarule/generate.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    MODEL,
    PROMPT,
    PROMPT_FILE,
    NO_ECHO,
    TOKENS,
    STOP,
    SAMPLES,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    SEED,
    TOKENIZER,
    IGNORE_EOS,
    VERBOSE,
    BACKEND,
    THREADS,
    ISA,
    FLAGS
};
enum { MOST_STOPS = 64 };

static const cli_flag table[FLAGS] = {
    [MODEL] = {.setting = {"model", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL, "folder with config.json and model.safetensors"},
               .placeholder = "DIR",
               .required = true},
    [PROMPT] = {.setting = {"prompt", DR_SETTING_TEXT, "", 0, 0, NULL, NULL, "text to continue; it is printed first"},
                .placeholder = "TEXT"},
    [PROMPT_FILE] = {.setting = {"prompt_file", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                                 "read the prompt from a file, to its last byte; - is standard input"},
                     .placeholder = "FILE"},
    [NO_ECHO] = {.setting = {"no_echo", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL, "do not print the prompt"}},
    [TOKENS] = {.setting = {"tokens", DR_SETTING_INTEGER, "500", 0, 1e15, NULL, NULL, "how many tokens to make"},
                .placeholder = "N"},
    [STOP] = {.setting = {"stop", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                          "end before this text appears; may be given several times"},
              .placeholder = "TEXT"},
    [SAMPLES] = {.setting = {"samples", DR_SETTING_INTEGER, "1", 1, 1e9, NULL, NULL,
                             "how many texts; of several, a line with its number stands before each"},
                 .placeholder = "N"},
    [TEMPERATURE] = {.setting = {"temperature", DR_SETTING_REAL, "1", 0, 100, NULL, NULL, "0: always the likeliest token"},
                     .placeholder = "X"},
    [TOP_K] = {.setting = {"top_k", DR_SETTING_INTEGER, "0", 0, 1e9, NULL, NULL, "draw from the K likeliest only; 0: from all"},
               .placeholder = "K"},
    [TOP_P] = {.setting = {"top_p", DR_SETTING_REAL, "1", 0, 1, NULL, NULL,
                           "draw from the likeliest that together have this probability"},
               .placeholder = "P"},
    [SEED] = {.setting = {"seed", DR_SETTING_INTEGER, "0", 0, 9007199254740992.0, NULL, NULL,
                          "the same seed gives the same text"},
              .placeholder = "N"},
    [TOKENIZER] = CLI_FLAG_TOKENIZER,
    [IGNORE_EOS] = {.setting = {"ignore_eos", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL,
                                "with a tokenizer: go on after the token that ends a text"}},
    [VERBOSE] = CLI_FLAG_VERBOSE,
    [BACKEND] = CLI_FLAG_BACKEND,
    [THREADS] = CLI_FLAG_THREADS,
    [ISA] = CLI_FLAG_ISA,
};

static bool emit(void *context, const char *bytes, size_t count) {
    return cli_text_write(context, bytes, count) && fflush(stdout) == 0 && !cli_interrupted();
}

/* Defaults as the library has them; the flags only override. */
static dr_generate_options read_options(const cli_flag *flags) {
    dr_generate_options options = dr_generate_defaults();
    options.tokens = cli_flag_integer(&flags[TOKENS]);
    options.sampling.temperature = cli_flag_real(&flags[TEMPERATURE]);
    options.sampling.top_k = cli_flag_integer(&flags[TOP_K]);
    options.sampling.top_p = cli_flag_real(&flags[TOP_P]);
    options.sampling.seed = (uint64_t)cli_flag_integer(&flags[SEED]);
    options.stop = flags[STOP].values;
    options.stop_count = flags[STOP].value_count;
    options.ignore_eos = cli_flag_boolean(&flags[IGNORE_EOS]);
    return options;
}

/* One text: heading, prompt, what the model makes of it, and the end of the last line. */
static dr_status print_sample(dr_model *model, const cli_flag *flags, const char *prompt, size_t bytes,
                              const dr_generate_options *options) {
    int64_t samples = cli_flag_integer(&flags[SAMPLES]);
    cli_text printed = cli_text_begin(stdout);
    printed.last = '\n';
    if (samples > 1) printf("--- sample %" PRId64 " of %" PRId64 " ---\n", options->sampling.sample + 1, samples);
    dr_status status = DR_OK;
    if (cli_flag_boolean(&flags[NO_ECHO]) || emit(&printed, prompt, bytes))
        status = dr_generate(model, prompt, bytes, options, emit, &printed);
    if (printed.last != '\n') putchar('\n');
    return status;
}

static int generate(const cli_flag *flags, const char *prompt, size_t bytes) {
    dr_generate_options options = read_options(flags);
    dr_backend *backend;
    dr_model *model;
    int exit_status = cli_model_open(&cli_generate, flags[MODEL].value, &flags[BACKEND], &flags[THREADS], &flags[ISA],
                                     cli_flag_boolean(&flags[VERBOSE]), &backend, &model);
    if (exit_status) return exit_status;
    dr_tokenizer *tokenizer;
    exit_status = cli_tokenizer_open(&cli_generate, flags[MODEL].value, flags[TOKENIZER].value, &tokenizer);
    options.tokenizer = tokenizer;
    cli_interrupt_catch("");
    dr_status status = exit_status == 0 ? dr_generate_check(model, &options) : DR_ERROR_INTERRUPTED;
    for (int64_t i = 0; i < cli_flag_integer(&flags[SAMPLES]) && status == DR_OK && !cli_interrupted() && !ferror(stdout);
         i++) {
        options.sampling.sample = i;
        status = print_sample(model, flags, prompt, bytes, &options);
    }
    if (cli_interrupted())
        exit_status = CLI_STATUS_INTERRUPTED;
    else if (exit_status == 0 && status != DR_OK && !ferror(stdout))
        exit_status = cli_failure(&cli_generate, status); /* else main tells of stdout */
    dr_tokenizer_destroy(tokenizer);
    dr_model_destroy(model);
    dr_backend_close(backend);
    return exit_status;
}

static int run(int argc, char **argv) {
    cli_flag flags[FLAGS];
    const char *stops[MOST_STOPS];
    int operands, exit_status;
    memcpy(flags, table, sizeof flags);
    flags[STOP].values = stops, flags[STOP].most_values = MOST_STOPS;
    if (!cli_flags_parse(&cli_generate, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    if (flags[PROMPT].given && flags[PROMPT_FILE].given)
        return cli_usage(&cli_generate, "--prompt and --prompt-file are two prompts: leave one out");
    if (!flags[PROMPT_FILE].given) return generate(flags, flags[PROMPT].value, strlen(flags[PROMPT].value));
    char *prompt;
    size_t bytes;
    exit_status = cli_read_input(&cli_generate, flags[PROMPT_FILE].value, CLI_MOST_PROMPT, &prompt, &bytes);
    if (exit_status) return exit_status;
    exit_status = generate(flags, prompt, bytes);
    free(prompt);
    return exit_status;
}

const cli_command cli_generate = {
    .name = "generate",
    .arguments = "--model DIR [--prompt TEXT | --prompt-file FILE] [flags]",
    .summary = "continues a prompt, printing tokens as they come",
    .details = "The memory used does not depend on how long the text becomes. On a terminal, control characters and bytes\n"
               "that are not UTF-8 are shown as \\xNN; files and pipes get them as they are.",
    .run = run,
};
