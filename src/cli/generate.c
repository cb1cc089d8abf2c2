/* deltarule generate: continues prompts, printing each token as it comes; memory does not grow with the text.
 *
 * A terminal obeys control characters, so what a model makes of them is shown, not sent; files and pipes get every byte. Either
 * gets whole characters, so that a reader never sees half of one. */
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/model.h"
#include "cli/prompts.h"
#include "cli/sampling.h"
#include "cli/text_print.h"

#include <inttypes.h>
#include <string.h>

enum {
    MODEL,
    PROMPT,
    PROMPT_IDS,
    PROMPT_FILE,
    PROMPTS,
    NO_ECHO,
    SAMPLES,
    AT_ONCE,
    SAMPLING,
    LOGPROBS = SAMPLING + CLI_SAMPLING_FLAGS,
    JSON,
    DRAFT,
    DRAFT_TOKENS,
    TOKENIZER,
    IGNORE_EOS,
    VERBOSE,
    BACKEND,
    DTYPE,
    DEVICE,
    THREADS,
    WEIGHTS,
    ISA,
    FLAGS
};

static const cli_flag table[FLAGS] = {
    [MODEL] = {.setting = {"model", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL, "folder with config.json and model.safetensors"},
               .placeholder = "DIR",
               .required = true},
    [PROMPT] = {.setting = {"prompt", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                            "text to continue, which is printed first; may be given several times; by default empty"},
                .placeholder = "TEXT"},
    [PROMPT_IDS] = {.setting = {"prompt_ids", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                                "token ids to continue as they are, \"1 2 3\"; may be given several times"},
                    .placeholder = "IDS"},
    [PROMPT_FILE] = {.setting = {"prompt_file", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                                 "read the prompt from a file, to its last byte; - is standard input"},
                     .placeholder = "FILE"},
    [PROMPTS] = {.setting = {"prompts", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                             "a prompt of each line of a file, a JSON string or list of token ids; - is standard input"},
                 .placeholder = "FILE"},
    [NO_ECHO] = {.setting = {"no_echo", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL, "do not print the prompt"}},
    [SAMPLES] = {.setting = {"samples", DR_SETTING_INTEGER, "1", 1, 1e6, NULL, NULL,
                             "how many texts of a prompt; of several, a line with its number stands before each"},
                 .placeholder = "N"},
    [AT_ONCE] = {.setting = {"at_once", DR_SETTING_INTEGER, "8", 1, 4096, NULL, NULL,
                             "texts made side by side, which no text depends on"},
                 .placeholder = "N"},
    [LOGPROBS] = {.setting = {"logprobs", DR_SETTING_INTEGER, NULL, 0, DR_MOST_TOP_LOGPROBS, NULL, NULL,
                              "with --json: log-probabilities of each token and of the N likeliest"},
                  .placeholder = "N"},
    [JSON] = {.setting = {"json", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL,
                          "a JSON object a text, on a line, and last one of speeds"}},
    [DRAFT] =
        {.setting = {"draft", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                     "what guesses tokens that the model then computes together: the folder of a smaller model with the same "
                     "tokenizer, or 'ngram', what followed the last tokens before; the text is the same"},
         .placeholder = "DIR"},
    [DRAFT_TOKENS] = {.setting = {"draft_tokens", DR_SETTING_INTEGER, "4", 1, DR_MOST_DRAFT_TOKENS, NULL, NULL,
                                  "with --draft: tokens that are guessed at a time"},
                      .placeholder = "N"},
    [TOKENIZER] = CLI_FLAG_TOKENIZER,
    [IGNORE_EOS] = {.setting = {"ignore_eos", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL,
                                "with a tokenizer: go on after the token that ends a text"}},
    [VERBOSE] = CLI_FLAG_VERBOSE,
    [BACKEND] = CLI_FLAG_BACKEND,
    [DTYPE] = CLI_FLAG_DTYPE,
    [DEVICE] = CLI_FLAG_DEVICE,
    [THREADS] = CLI_FLAG_THREADS,
    [WEIGHTS] = CLI_FLAG_WEIGHTS,
    [ISA] = CLI_FLAG_ISA,
};

static bool emit(void *context, const dr_piece *piece) {
    return cli_text_print_add(context, piece) && !cli_interrupted();
}

static dr_status print_texts(dr_model *model, const cli_flag *flags, const cli_prompts *prompts,
                             const dr_generate_options *options) {
    const int64_t samples = cli_flag_integer(&flags[SAMPLES]);
    const bool json = cli_flag_boolean(&flags[JSON]);
    cli_text_print print;
    dr_generate_speed speed = {0};
    if (!cli_text_print_begin(&print, prompts->prompts, prompts->count, samples, options->tokenizer,
                              !cli_flag_boolean(&flags[NO_ECHO]) && !json, json, flags[LOGPROBS].given)) {
        fprintf(stderr, "deltarule generate: not enough memory for %" PRId64 " texts\n", prompts->count * samples);
        return DR_ERROR_MEMORY;
    }
    dr_status status = dr_generate_texts(model, prompts->prompts, prompts->count, samples, options, emit, &print, &speed);
    cli_text_print_end(&print);
    if (print.out_of_memory) fprintf(stderr, "deltarule generate: not enough memory to hold the texts\n");
    cli_text_print_release(&print);
    if (speed.tokens > 0) cli_print_speed(json ? stdout : stderr, &speed, json);
    return status;
}

/* The model that guesses is loaded on the backend of the one that is guessed for. */
static dr_status open_draft(const cli_flag *flags, dr_backend *backend, dr_generate_options *options, dr_model **draft) {
    if (!flags[DRAFT].given) return DR_OK;
    options->draft_tokens = cli_flag_integer(&flags[DRAFT_TOKENS]);
    if (strcmp(flags[DRAFT].value, "ngram") == 0) return DR_OK;
    const dr_status status = dr_model_load(backend, flags[DRAFT].value, draft);
    options->draft = *draft;
    return status;
}

static int generate(const cli_flag *flags, const cli_prompts *prompts, dr_generate_options *options) {
    const cli_model_flags how = {
        &flags[BACKEND], &flags[THREADS], &flags[ISA],   &flags[TOKENIZER], cli_flag_boolean(&flags[VERBOSE]),
        &flags[WEIGHTS], &flags[DTYPE],   &flags[DEVICE]};
    cli_model of;
    int exit_status = cli_model_open(&cli_generate, flags[MODEL].value, &how, &of);
    if (exit_status) return exit_status;
    options->tokenizer = of.tokenizer;
    cli_interrupt_catch("");
    dr_model *draft = NULL;
    dr_status status = open_draft(flags, of.backend, options, &draft);
    if (status == DR_OK) status = dr_generate_check(of.model, options);
    if (status == DR_OK && !ferror(stdout)) status = print_texts(of.model, flags, prompts, options);
    if (cli_interrupted())
        exit_status = CLI_STATUS_INTERRUPTED;
    else if (status != DR_OK && !ferror(stdout))
        exit_status = cli_failure(&cli_generate, status); /* else main tells of stdout */
    dr_model_destroy(draft);
    cli_model_close(&of);
    return exit_status;
}

static int run(int argc, char **argv) {
    cli_flag flags[FLAGS];
    cli_sampling_room room;
    cli_prompts prompts = {0};
    dr_generate_options options;
    const char *texts[CLI_MOST_PROMPTS], *ids[CLI_MOST_PROMPTS];
    int operands, exit_status;
    memcpy(flags, table, sizeof flags);
    cli_sampling_flags(flags + SAMPLING, &room);
    flags[PROMPT].values = texts, flags[PROMPT].most_values = CLI_MOST_PROMPTS;
    flags[PROMPT_IDS].values = ids, flags[PROMPT_IDS].most_values = CLI_MOST_PROMPTS;
    if (!cli_flags_parse(&cli_generate, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    if (flags[DRAFT_TOKENS].given && !flags[DRAFT].given)
        return cli_usage(&cli_generate, "--draft-tokens is for --draft, which says what guesses");
    if (flags[LOGPROBS].given && !cli_flag_boolean(&flags[JSON]))
        return cli_usage(&cli_generate, "--logprobs is for --json, which has a place for them");
    exit_status = cli_sampling_read(&cli_generate, flags + SAMPLING, &room, &options);
    options.ignore_eos = cli_flag_boolean(&flags[IGNORE_EOS]);
    options.at_once = cli_flag_integer(&flags[AT_ONCE]);
    options.sampling.logprobs = flags[LOGPROBS].given;
    if (flags[LOGPROBS].given) options.sampling.top_logprobs = cli_flag_integer(&flags[LOGPROBS]);
    if (exit_status == 0)
        exit_status =
            cli_prompts_read(&cli_generate, &flags[PROMPT], &flags[PROMPT_IDS], &flags[PROMPT_FILE], &flags[PROMPTS], &prompts);
    if (exit_status == 0) exit_status = generate(flags, &prompts, &options);
    cli_prompts_release(&prompts);
    return exit_status;
}

const cli_command cli_generate = {
    .name = "generate",
    .arguments = "--model DIR [--prompt TEXT ... | --prompt-file FILE | --prompts FILE] [flags]",
    .summary = "continues prompts, printing tokens as they come",
    .details = "The memory used does not depend on how long the text becomes. On a terminal, control characters and bytes\n"
               "that are not UTF-8 are shown as \\xNN; files and pipes get them as they are. Speeds and the time to the first\n"
               "token stand on standard error at the end. docs/generation.md tells what the options do, in which order.",
    .run = run,
};
