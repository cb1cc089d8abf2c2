/* deltarule evaluate: a model's answers to the items of a user's file: choices, last words, texts, answers. */
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/model.h"
#include "cli/progress.h"
#include "cli/text.h"

#include "base/number.h"

#include <deltarule/evaluate.h>
#include <inttypes.h>
#include <string.h>

enum {
    FORMAT,
    NO_START,
    MAX_LENGTH,
    LIMIT,
    TOKENS,
    STOP,
    CUT_CONTEXT,
    ANSWER_LENGTH,
    ITEMS,
    JSON,
    TOKENIZER,
    VERBOSE,
    BACKEND,
    DTYPE,
    DEVICE,
    THREADS,
    WEIGHTS,
    ISA,
    FLAGS
};
enum { MOST_STOPS = 64 };

#define INTEGER_FLAG(key, value, least, line)                                                                                  \
    { .setting = {key, DR_SETTING_INTEGER, value, least, 2147483647, NULL, NULL, line}, .placeholder = "N" }
#define SWITCH(key, line)                                                                                                      \
    {                                                                                                                          \
        .setting = { key, DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL, line }                                                \
    }

static const cli_flag table[FLAGS] = {
    [FORMAT] = {.setting = {"format", DR_SETTING_TEXT, NULL, 0, 0,
                            "choices piqa hellaswag winogrande arc openbookqa boolq sciq lambada rolling cloze generate", NULL,
                            "of the items; by default that of the first item's keys"},
                .placeholder = "NAME"},
    [NO_START] = SWITCH("no_start", "put nothing before a text; else the token that begins a document"),
    [MAX_LENGTH] = INTEGER_FLAG("max_length", "0", 0, "tokens of a request, contexts lose their beginnings; 0: no bound"),
    [LIMIT] = INTEGER_FLAG("limit", "0", 0, "the first N items only; 0: all"),
    [TOKENS] = INTEGER_FLAG("tokens", "48", 1, "tokens of an answer at most"),
    [STOP] = {.setting = {"stop", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                          "an answer ends before this text; may be given several times; by default the end of a line"},
              .placeholder = "TEXT"},
    [CUT_CONTEXT] = INTEGER_FLAG("cut_context", "0", 0,
                                 "of the context before an answer keep N tokens less answer-length, around the answer; 0: all"),
    [ANSWER_LENGTH] = INTEGER_FLAG("answer_length", "50", 0, "tokens that a cut leaves room for"),
    [ITEMS] = SWITCH("items", "a JSON object a line for each item before the result"),
    [JSON] = SWITCH("json", "the result as a JSON object"),
    [TOKENIZER] = CLI_FLAG_TOKENIZER,
    [VERBOSE] = CLI_FLAG_VERBOSE,
    [BACKEND] = CLI_FLAG_BACKEND,
    [DTYPE] = CLI_FLAG_DTYPE,
    [DEVICE] = CLI_FLAG_DEVICE,
    [THREADS] = CLI_FLAG_THREADS,
    [WEIGHTS] = CLI_FLAG_WEIGHTS,
    [ISA] = CLI_FLAG_ISA,
};

typedef struct {
    cli_progress progress;
} output;

static bool report(void *context, int64_t done, int64_t total) {
    output *self = context;
    if (self->progress.live && cli_progress_due(&self->progress)) {
        char line[64];
        dr_format(line, sizeof line, "%.0f%%", 100.0 * (double)done / (double)total);
        cli_progress_show(&self->progress, false, line);
    }
    return !cli_interrupted() && !ferror(stdout);
}

static void print_item(void *context, const dr_item_score *score) {
    output *self = context;
    cli_progress_end(&self->progress);
    printf("{\"line\": %" PRId64, score->line);
    if (score->kind == DR_ITEM_ANSWER) {
        printf(", ");
        cli_print_json_text("text", score->text ? score->text : "");
        printf(", \"exact\": %s, \"contained\": %s, ", score->exact ? "true" : "false", score->contained ? "true" : "false");
        cli_print_json_number("found", score->found);
        printf("}\n");
        return;
    }
    printf(", \"logprobs\": [");
    for (int64_t i = 0; i < score->choices; i++) dr_print(stdout, i > 0 ? ", %.17g" : "%.17g", score->logprobs[i]);
    printf("]");
    if (score->kind == DR_ITEM_CHOICES)
        printf(", \"chosen\": %" PRId64 ", \"chosen_normalized\": %" PRId64 ", \"gold\": %" PRId64, score->chosen,
               score->chosen_normalized, score->gold);
    if (score->kind == DR_ITEM_LAST_WORD) printf(", \"greedy\": %s", score->greedy ? "true" : "false");
    printf("}\n");
}

/* ---- the result ---- */

static void print_number(bool json, const char *name, double number) {
    if (json) {
        printf(", ");
        cli_print_json_number(name, number);
    } else {
        dr_print(stdout, "%-20s %.6g\n", name, number);
    }
}

static void print_count(bool json, const char *name, int64_t count) {
    if (json)
        printf(", \"%s\": %" PRId64, name, count);
    else
        printf("%-20s %" PRId64 "\n", name, count);
}

static void print_result(const dr_evaluate_result *result, bool json) {
    printf(json ? "{\"format\": \"%s\"" : "format               %s\n", result->format);
    print_count(json, "items", result->items);
    if (result->skipped > 0) print_count(json, "skipped", result->skipped);
    switch (result->kind) {
    case DR_ITEM_CHOICES:
    case DR_ITEM_LAST_WORD:
        print_number(json, "accuracy", result->accuracy);
        print_number(json, "accuracy_error", result->accuracy_error);
        if (result->normalizes) print_number(json, "accuracy_normalized", result->accuracy_normalized);
        if (result->kind == DR_ITEM_LAST_WORD) print_number(json, "perplexity", result->perplexity);
        break;
    case DR_ITEM_ROLLING:
        print_number(json, "word_perplexity", result->word_perplexity);
        print_number(json, "byte_perplexity", result->byte_perplexity);
        print_number(json, "bits_per_byte", result->bits_per_byte);
        break;
    case DR_ITEM_ANSWER:
        print_number(json, "exact", result->exact);
        print_number(json, "contained", result->contained);
        print_number(json, "found", result->found);
        break;
    }
    print_number(json, "seconds", result->seconds);
    if (json) printf("}\n");
}

/* ---- the command ---- */

static dr_evaluate_options read_options(const cli_flag *flags, const dr_tokenizer *tokenizer, output *self) {
    dr_evaluate_options options = dr_evaluate_defaults();
    options.format = flags[FORMAT].value;
    options.tokenizer = tokenizer;
    options.no_start = cli_flag_boolean(&flags[NO_START]);
    options.max_length = cli_flag_integer(&flags[MAX_LENGTH]);
    options.limit = cli_flag_integer(&flags[LIMIT]);
    options.tokens = cli_flag_integer(&flags[TOKENS]);
    options.cut_context = cli_flag_integer(&flags[CUT_CONTEXT]);
    options.answer_length = cli_flag_integer(&flags[ANSWER_LENGTH]);
    options.progress = report;
    options.item = cli_flag_boolean(&flags[ITEMS]) ? print_item : NULL;
    options.context = self;
    if (flags[STOP].given) options.stop = flags[STOP].values, options.stop_count = flags[STOP].value_count;
    return options;
}

static int evaluate(const cli_flag *flags, const char *folder, const char *file) {
    const cli_model_flags how = {
        &flags[BACKEND], &flags[THREADS], &flags[ISA],   &flags[TOKENIZER], cli_flag_boolean(&flags[VERBOSE]),
        &flags[WEIGHTS], &flags[DTYPE],   &flags[DEVICE]};
    cli_model of;
    dr_evaluate_result result;
    int exit_status = cli_model_open(&cli_evaluate, folder, &how, &of);
    if (exit_status) return exit_status;
    cli_interrupt_catch("\nstopping; once more to leave at once\n");
    output self = {.progress = cli_progress_begin(stderr)};
    const dr_evaluate_options options = read_options(flags, of.tokenizer, &self);
    dr_status status = dr_evaluate_file(of.model, file, &options, &result);
    cli_progress_end(&self.progress);
    if (cli_interrupted())
        exit_status = CLI_STATUS_INTERRUPTED;
    else if (status != DR_OK && !ferror(stdout))
        exit_status = cli_failure(&cli_evaluate, status); /* else main tells of stdout */
    else if (status == DR_OK)
        print_result(&result, cli_flag_boolean(&flags[JSON]));
    cli_model_close(&of);
    return exit_status;
}

static int run(int argc, char **argv) {
    cli_flag flags[FLAGS];
    const char *stops[MOST_STOPS];
    int operands, exit_status;
    memcpy(flags, table, sizeof flags);
    flags[STOP].values = stops, flags[STOP].most_values = MOST_STOPS;
    if (!cli_flags_parse(&cli_evaluate, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    return evaluate(flags, argv[1], argv[2]);
}

const cli_command cli_evaluate = {
    .name = "evaluate",
    .arguments = "MODEL TASK.jsonl [flags]",
    .summary = "a model's answers to a file of tasks: choices, last words, texts, answers",
    .details = "Each line of the file is a JSON object, in the format of a published task or a plain one;\n"
               "docs/evaluation.md lists them. What is computed is what lm-evaluation-harness computes without examples.",
    .run = run,
    .least_operands = 2,
    .most_operands = 2,
};
