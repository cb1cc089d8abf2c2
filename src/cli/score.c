/* deltarule score: loss, perplexity and bits per byte of a model on text, over windows with carried state; or its accuracy in
 * associative recall, at sizes of the user's choice. */
#include "base/number.h"
#include "cli/commands.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/model.h"
#include "cli/progress.h"
#include "cli/text.h"

#include <deltarule/evaluate.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Those of text from CORPUS on, those of recall from SEQ_LEN on. */
enum {
    MODEL,
    TASK,
    CORPUS,
    WINDOW,
    TOKENIZER,
    SKIP_UNREADABLE,
    PER_FILE,
    JSON,
    VERBOSE,
    BACKEND,
    THREADS,
    ISA,
    SEQ_LEN,
    PAIRS,
    EXAMPLES,
    SEED,
    BATCH,
    POWER_A,
    RANDOM_FILLERS,
    FLAGS
};

typedef struct {
    cli_progress progress;
    const char *unit; /* "bytes" */
    bool json, per_file;
} output;

/* ---- what is told ---- */

static bool report(void *context, int64_t done, int64_t total) {
    output *self = context;
    if (self->progress.live && cli_progress_due(&self->progress)) {
        char line[96];
        snprintf(line, sizeof line, "scored %" PRId64 " of %" PRId64 " %s", done, total, self->unit);
        cli_progress_show(&self->progress, false, line);
    }
    return !cli_interrupted() && !ferror(stdout);
}

static void report_left_out(void *context, const char *sentence) {
    (void)context;
    fprintf(stderr, "deltarule score: left out: %s\n", sentence);
}

static void print_json_numbers(const dr_score *score) {
    printf(", \"bytes\": %" PRId64 ", \"tokens\": %" PRId64 ", ", score->bytes, score->tokens);
    cli_print_json_number("loss", score->loss);
    printf(", ");
    cli_print_json_number("perplexity", score->perplexity);
    printf(", ");
    cli_print_json_number("bits_per_byte", score->bits_per_byte);
    printf(", ");
    cli_print_json_number("seconds", score->seconds);
    printf("}\n");
}

static void report_file(void *context, const char *name, const dr_score *score) {
    output *self = context;
    if (!self->per_file) return;
    cli_progress_end(&self->progress);
    if (self->json) {
        putchar('{');
        cli_print_json_text("file", name);
        print_json_numbers(score);
        return;
    }
    dr_print(stdout, "%12" PRId64 "  %10.4f  %13.4f  ", score->bytes, score->loss, score->bits_per_byte);
    cli_print_name(stdout, name);
    putchar('\n');
}

static void print_score(const output *self, const dr_score *score) {
    if (self->json) {
        printf("{\"files\": %" PRId64, score->files);
        print_json_numbers(score);
        return;
    }
    if (self->per_file) putchar('\n');
    printf("files          %" PRId64 "\n", score->files);
    printf("bytes          %" PRId64 "\n", score->bytes);
    printf("tokens         %" PRId64 "\n", score->tokens);
    dr_print(stdout, "loss           %.4f\n", score->loss);
    dr_print(stdout, "perplexity     %.3f\n", score->perplexity);
    dr_print(stdout, "bits_per_byte  %.4f\n", score->bits_per_byte);
    dr_print(stdout, "seconds        %.1f\n", score->seconds);
}

static void print_recall(const output *self, const dr_recall_options *options, const dr_recall_score *score) {
    if (self->json) {
        printf("{\"task\": \"mqar\", \"seq_len\": %" PRId64 ", \"pairs\": %" PRId64 ", \"examples\": %" PRId64
               ", \"queries\": %" PRId64 ", ",
               options->seq_len, options->pairs, score->examples, score->queries);
        cli_print_json_number("loss", score->loss);
        printf(", ");
        cli_print_json_number("accuracy", score->accuracy);
        printf(", ");
        cli_print_json_number("seconds", score->seconds);
        printf("}\n");
        return;
    }
    printf("seq_len        %" PRId64 "\n", options->seq_len);
    printf("pairs          %" PRId64 "\n", options->pairs);
    printf("examples       %" PRId64 "\n", score->examples);
    printf("queries        %" PRId64 "\n", score->queries);
    dr_print(stdout, "loss           %.4f\n", score->loss);
    dr_print(stdout, "accuracy       %.4f\n", score->accuracy);
    dr_print(stdout, "seconds        %.1f\n", score->seconds);
}

/* ---- what is scored ---- */

/* text: standard input, or NULL for the files of the corpus. */
static dr_status score_text(dr_model *model, const dr_tokenizer *tokenizer, const cli_flag *flags, const char *text,
                            size_t bytes, output *self) {
    dr_score_options options = dr_score_defaults();
    dr_score score;
    options.window = cli_flag_integer(&flags[WINDOW]);
    options.tokenizer = tokenizer;
    options.skip_unreadable = cli_flag_boolean(&flags[SKIP_UNREADABLE]);
    options.progress = report;
    options.file = report_file;
    options.left_out = report_left_out;
    options.context = self;
    self->unit = "bytes";
    if (self->per_file && !self->json) printf("%12s  %10s  %13s  %s\n", "bytes", "loss", "bits_per_byte", "file");
    dr_status status = text ? dr_score_text(model, "standard input", text, bytes, &options, &score)
                            : dr_score_files(model, flags[CORPUS].value, &options, &score);
    cli_progress_end(&self->progress);
    if (status == DR_OK) print_score(self, &score);
    return status;
}

static dr_status score_recall(dr_model *model, const dr_recall_options *options, output *self) {
    dr_recall_score score;
    self->unit = "examples";
    dr_status status = dr_score_recall(model, options, report, self, &score);
    cli_progress_end(&self->progress);
    if (status == DR_OK) print_recall(self, options, &score);
    return status;
}

/* ---- flags ---- */

static double run_number(const dr_train_options *run, const char *name) {
    double number = 0;
    dr_number_parse(dr_train_options_get(run, name), DR_NUMBER_FINITE, &number);
    return number;
}

/* The sizes of the flags; where none is given those of the run that the folder holds, so that a run's last evaluation is
 * repeated, or else the defaults. */
static dr_recall_options read_recall(const cli_flag *flags, const dr_train_options *run) {
    dr_recall_options options = dr_recall_defaults();
    if (run) {
        options.seq_len = (int64_t)run_number(run, "seq_len");
        options.pairs = (int64_t)run_number(run, "pairs");
        options.examples = (int64_t)run_number(run, "held_out");
        options.batch = (int64_t)run_number(run, "batch");
        options.power_a = run_number(run, "power_a");
        options.random_fillers = strcmp(dr_train_options_get(run, "random_fillers"), "true") == 0;
        options.seed = (uint64_t)run_number(run, "held_out_seed");
    }
    if (flags[SEQ_LEN].given) options.seq_len = cli_flag_integer(&flags[SEQ_LEN]);
    if (flags[PAIRS].given) options.pairs = cli_flag_integer(&flags[PAIRS]);
    if (flags[EXAMPLES].given) options.examples = cli_flag_integer(&flags[EXAMPLES]);
    if (flags[BATCH].given) options.batch = cli_flag_integer(&flags[BATCH]);
    if (flags[POWER_A].given) options.power_a = cli_flag_real(&flags[POWER_A]);
    if (flags[RANDOM_FILLERS].given) options.random_fillers = cli_flag_boolean(&flags[RANDOM_FILLERS]);
    if (flags[SEED].given) options.seed = (uint64_t)cli_flag_integer(&flags[SEED]);
    return options;
}

/* The settings of the run of task mqar that a model's folder holds, or NULL. */
static dr_train_options *read_run(const char *folder) {
    dr_train_options *run = NULL;
    char path[4096];
    snprintf(path, sizeof path, "%s/settings.json", folder);
    if (access(path, F_OK) != 0 || dr_train_options_create(&run) != DR_OK) return NULL;
    if (dr_train_options_read(run, folder) == DR_OK && strcmp(dr_train_options_get(run, "task"), "mqar") == 0) return run;
    dr_train_options_destroy(run);
    return NULL;
}

/* Flags of the other task would be passed over in silence. */
static bool check_flags(const cli_flag *flags, bool recall, int *status) {
    int first = recall ? CORPUS : SEQ_LEN, end = recall ? JSON : FLAGS;
    for (int i = first; i < end; i++) {
        if (!flags[i].given) continue;
        *status = cli_usage(&cli_score, "%s is a setting of task %s", flags[i].setting.name,
                            recall ? "lm, and this is task mqar" : "mqar: add --task mqar");
        return false;
    }
    if (recall || flags[CORPUS].given) return true;
    *status = cli_usage(&cli_score, "--corpus PATH is missing; a model of task mqar is scored with --task mqar");
    return false;
}

#define TEXT_FLAG(key, value, words, name, line)                                                                               \
    { .setting = {key, DR_SETTING_TEXT, value, 0, 0, words, NULL, line}, .placeholder = name }
#define INTEGER_FLAG(key, value, least, most, line)                                                                            \
    { .setting = {key, DR_SETTING_INTEGER, value, least, most, NULL, NULL, line}, .placeholder = "N" }
#define RECALL_FLAG(key, least, most, line)                                                                                    \
    { .setting = {key, DR_SETTING_INTEGER, NULL, least, most, NULL, "Task mqar", line}, .placeholder = "N" }
#define SWITCH(key, line)                                                                                                      \
    {                                                                                                                          \
        .setting = { key, DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL, line }                                                \
    }

static const cli_flag table[FLAGS] = {
    [MODEL] = {.setting = {"model", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL, "folder with config.json and model.safetensors"},
               .placeholder = "DIR",
               .required = true},
    [TASK] = TEXT_FLAG("task", NULL, "lm mqar", "NAME",
                       "what is scored: text, or associative recall; lm, unless the folder holds a run of task mqar"),
    [CORPUS] = TEXT_FLAG("corpus", NULL, NULL, "PATH", "a UTF-8 text file, a folder of them, or - for standard input"),
    [WINDOW] = INTEGER_FLAG("window", "1024", 1, 1 << 20, "tokens a call; the state is carried from window to window"),
    [TOKENIZER] = CLI_FLAG_TOKENIZER,
    [SKIP_UNREADABLE] =
        SWITCH("skip_unreadable", "leave out and name the files of a folder that cannot be read or are no text"),
    [PER_FILE] = SWITCH("per_file", "a line for each file before those of all"),
    [JSON] = SWITCH("json", "a JSON object a line, that of all files last"),
    [VERBOSE] = CLI_FLAG_VERBOSE,
    [BACKEND] = CLI_FLAG_BACKEND,
    [THREADS] = CLI_FLAG_THREADS,
    [ISA] = CLI_FLAG_ISA,
    [SEQ_LEN] =
        RECALL_FLAG("seq_len", 4, 1e7, "tokens an example; by default, like all of these, as the run that the folder holds"),
    [PAIRS] = RECALL_FLAG("pairs", 1, 1e6, "keys with their values; 4 tokens of seq_len each"),
    [EXAMPLES] = RECALL_FLAG("examples", 1, 1e9, "how many are asked"),
    [SEED] = RECALL_FLAG("seed", 0, 9007199254740992.0, "of the examples; a run's held_out_seed gives those it evaluates on"),
    [BATCH] = RECALL_FLAG("batch", 1, 1e6, "examples a call"),
    [POWER_A] = {.setting = {"power_a", DR_SETTING_REAL, NULL, 1e-6, 100, NULL, "Task mqar",
                             "slot g of the queries has weight (g + 1)^(power_a - 1)"},
                 .placeholder = "X"},
    [RANDOM_FILLERS] = {.setting = {"random_fillers", DR_SETTING_BOOLEAN, NULL, 0, 0, NULL, "Task mqar",
                                    "other tokens are random, not 0"},
                        .placeholder = "true|false"},
};

/* ---- the command ---- */

static int score(const cli_flag *flags, const dr_recall_options *recall, const char *text, size_t bytes) {
    dr_backend *backend;
    dr_model *model;
    int exit_status = cli_model_open(&cli_score, flags[MODEL].value, &flags[BACKEND], &flags[THREADS], &flags[ISA],
                                     cli_flag_boolean(&flags[VERBOSE]), &backend, &model);
    if (exit_status) return exit_status;
    cli_interrupt_catch("\nstopping; once more to leave at once\n");
    output self = {.progress = cli_progress_begin(stderr),
                   .json = cli_flag_boolean(&flags[JSON]),
                   .per_file = cli_flag_boolean(&flags[PER_FILE])};
    dr_tokenizer *tokenizer = NULL;
    if (!recall) exit_status = cli_tokenizer_open(&cli_score, flags[MODEL].value, flags[TOKENIZER].value, &tokenizer);
    dr_status status = DR_OK;
    if (exit_status == 0)
        status = recall ? score_recall(model, recall, &self) : score_text(model, tokenizer, flags, text, bytes, &self);
    if (cli_interrupted())
        exit_status = CLI_STATUS_INTERRUPTED;
    else if (status != DR_OK && !ferror(stdout))
        exit_status = cli_failure(&cli_score, status); /* else main tells of stdout */
    dr_tokenizer_destroy(tokenizer);
    dr_model_destroy(model);
    dr_backend_close(backend);
    return exit_status;
}

static int run(int argc, char **argv) {
    cli_flag flags[FLAGS];
    int operands, exit_status;
    memcpy(flags, table, sizeof flags);
    if (!cli_flags_parse(&cli_score, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    bool recall = flags[TASK].given ? strcmp(flags[TASK].value, "mqar") == 0 : !flags[CORPUS].given;
    dr_train_options *of_run = recall ? read_run(flags[MODEL].value) : NULL;
    if (!flags[TASK].given) recall = of_run != NULL;
    char *text = NULL;
    size_t bytes = 0;
    exit_status = 0;
    if (check_flags(flags, recall, &exit_status) && !recall && strcmp(flags[CORPUS].value, "-") == 0)
        exit_status = cli_read_input(&cli_score, "-", 0, &text, &bytes);
    dr_recall_options sizes = read_recall(flags, of_run);
    dr_train_options_destroy(of_run);
    if (exit_status == 0) exit_status = score(flags, recall ? &sizes : NULL, text, bytes);
    free(text);
    return exit_status;
}

const cli_command cli_score = {
    .name = "score",
    .arguments = "--model DIR [--corpus PATH | --task mqar] [flags]",
    .summary = "loss, perplexity and bits per byte of a model on text, or its accuracy in recall",
    .details = "Each file is read from its beginning in windows, the state carried from one to the next. loss is in nats a\n"
               "token, bits_per_byte counts the bytes of the text. A loss that is not finite is a failure.",
    .run = run,
};
