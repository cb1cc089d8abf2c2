/* deltarule score: loss, perplexity and bits per byte of a model on text, over windows with carried state; or its accuracy in
 * another task, at sizes of the user's choice. */
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

/* Those of text from CORPUS on, those of other tasks from EXAMPLES on. */
enum {
    MODEL,
    TASK,
    CORPUS,
    WINDOW,
    TOKENIZER,
    SKIP_UNREADABLE,
    PER_FILE,
    COMPARE,
    JSON,
    VERBOSE,
    BACKEND,
    DTYPE,
    DEVICE,
    THREADS,
    WEIGHTS,
    ISA,
    EXAMPLES,
    SEED,
    BATCH,
    LENGTHS,
    SEQ_LEN,
    PAIRS,
    UPDATES,
    POWER_A,
    RANDOM_FILLERS,
    GROUP,
    MOVES,
    ELEMENT_TOKENS,
    REPEAT_ELEMENTS,
    FLAGS
};

static const char ALL_TASKS[] = "All tasks but lm", MQAR[] = "Task mqar", OF_GROUPS[] = "Task group";

typedef struct {
    cli_progress progress;
    const char *unit; /* "bytes" */
    const char *task;
    int rows; /* of the table of sets that are printed */
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

typedef struct {
    const char *key;
    double value;
} named_number;

/* The last keys of an object of one line, and its end. */
static void end_json_line(const named_number *numbers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (i > 0) printf(", ");
        cli_print_json_number(numbers[i].key, numbers[i].value);
    }
    printf("}\n");
}

static void print_json_numbers(const dr_score *score) {
    const named_number numbers[] = {{"loss", score->loss},
                                    {"perplexity", score->perplexity},
                                    {"bits_per_byte", score->bits_per_byte},
                                    {"seconds", score->seconds}};
    printf(", \"bytes\": %" PRId64 ", \"tokens\": %" PRId64 ", ", score->bytes, score->tokens);
    end_json_line(numbers, sizeof numbers / sizeof *numbers);
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

static void print_json_set(const output *self, const dr_task_score *score) {
    const named_number numbers[] = {{"loss", score->loss},
                                    {"accuracy", score->accuracy},
                                    {"sequence_accuracy", score->sequence_accuracy},
                                    {"seconds", score->seconds}};
    printf("{\"task\": \"%s\", \"set\": \"%s\", \"seq_len\": %" PRId64 ", ", self->task, score->set, score->length);
    if (score->pairs > 0) printf("\"pairs\": %" PRId64 ", ", score->pairs);
    printf("\"examples\": %" PRId64 ", \"queries\": %" PRId64 ", ", score->examples, score->queries);
    end_json_line(numbers, sizeof numbers / sizeof *numbers);
}

/* One set line by line. */
static void print_set(const dr_task_score *score) {
    printf("%-18s %s\n", score->pairs > 0 ? "length/pairs" : "length", score->set);
    printf("examples           %" PRId64 "\n", score->examples);
    printf("queries            %" PRId64 "\n", score->queries);
    dr_print(stdout, "loss               %.4f\n", score->loss);
    dr_print(stdout, "accuracy           %.4f\n", score->accuracy);
    dr_print(stdout, "sequence_accuracy  %.4f\n", score->sequence_accuracy);
    dr_print(stdout, "seconds            %.1f\n", score->seconds);
}

/* Several sets are rows of a table. */
static void report_set(void *context, const dr_task_score *score) {
    output *self = context;
    cli_progress_end(&self->progress);
    if (self->json) {
        print_json_set(self, score);
        return;
    }
    if (score->sets == 1) {
        print_set(score);
        return;
    }
    if (self->rows++ == 0)
        printf("%-16s %9s %10s %9s %9s %18s\n", score->pairs > 0 ? "length/pairs" : "length", "examples", "queries", "loss",
               "accuracy", "sequence_accuracy");
    dr_print(stdout, "%-16s %9" PRId64 " %10" PRId64 " %9.4f %9.4f %18.4f\n", score->set, score->examples, score->queries,
             score->loss, score->accuracy, score->sequence_accuracy);
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

static dr_status score_task(dr_model *model, const dr_train_options *options, output *self) {
    const dr_task_score_calls calls = {.progress = report, .set = report_set, .context = self};
    self->unit = "examples";
    self->task = dr_train_options_get(options, "task");
    dr_status status = dr_score_task(model, options, &calls);
    cli_progress_end(&self->progress);
    return status;
}

/* ---- flags ---- */

/* The settings that flags of tasks stand for. */
static const char *const names_in_run[FLAGS] = {[EXAMPLES] = "held_out",
                                                [SEED] = "held_out_seed",
                                                [BATCH] = "batch",
                                                [LENGTHS] = "held_out_lengths",
                                                [SEQ_LEN] = "seq_len",
                                                [PAIRS] = "pairs",
                                                [UPDATES] = "updates",
                                                [POWER_A] = "power_a",
                                                [RANDOM_FILLERS] = "random_fillers",
                                                [GROUP] = "group",
                                                [MOVES] = "moves",
                                                [ELEMENT_TOKENS] = "element_tokens",
                                                [REPEAT_ELEMENTS] = "repeat_elements"};

/* The task of the run that a model's folder holds, in `options` with its other settings; NULL: it holds none. */
static const char *read_run(const char *folder, dr_train_options *options) {
    char path[4096];
    snprintf(path, sizeof path, "%s/settings.json", folder);
    if (access(path, F_OK) != 0 || dr_train_options_read(options, folder) != DR_OK) return NULL;
    return dr_train_options_get(options, "task");
}

/* The settings of the run, so that its last evaluation is repeated, and over them the flags. */
static dr_status read_flags(const cli_flag *flags, dr_train_options *options) {
    if ((flags[SEQ_LEN].given || flags[PAIRS].given) && !flags[LENGTHS].given) { /* instead of the lists of the run */
        dr_status status = dr_train_options_set(options, "lengths", "auto");
        if (status == DR_OK) status = dr_train_options_set(options, "held_out_lengths", "auto");
        if (status != DR_OK) return status;
    }
    for (int i = EXAMPLES; i < FLAGS; i++) {
        if (!flags[i].given) continue;
        dr_status status = dr_train_options_set(options, names_in_run[i], flags[i].value);
        if (status != DR_OK) return status;
    }
    return DR_OK;
}

/* Whether a flag of this group is of the task. */
static bool is_of_task(const char *group, const char *task) {
    return strcmp(group, ALL_TASKS) == 0 || strcmp(group + strlen("Task "), task) == 0;
}

/* Flags of another task would be passed over in silence. */
static bool check_flags(const cli_flag *flags, const char *task, int *status) {
    const bool text = strcmp(task, "lm") == 0;
    for (int i = CORPUS; i < JSON && !text; i++) {
        if (!flags[i].given) continue;
        *status = cli_usage(&cli_score, "%s is a setting of task lm, and this is task %s", flags[i].setting.name, task);
        return false;
    }
    for (int i = EXAMPLES; i < FLAGS; i++) {
        const char *group = flags[i].setting.group;
        if (!flags[i].given || (!text && is_of_task(group, task))) continue;
        if (strcmp(group, ALL_TASKS) == 0)
            *status = cli_usage(&cli_score, "%s is a setting of the tasks but lm: add --task NAME", flags[i].setting.name);
        else
            *status = cli_usage(&cli_score, "%s is a setting of task %s, and this is task %s", flags[i].setting.name,
                                group + strlen("Task "), task);
        return false;
    }
    if (!text || flags[CORPUS].given) return true;
    *status = cli_usage(&cli_score, "--corpus PATH is missing; a model of another task is scored with --task NAME");
    return false;
}

#define TEXT_FLAG(key, value, words, name, line)                                                                               \
    { .setting = {key, DR_SETTING_TEXT, value, 0, 0, words, NULL, line}, .placeholder = name }
#define INTEGER_FLAG(key, value, least, most, line)                                                                            \
    { .setting = {key, DR_SETTING_INTEGER, value, least, most, NULL, NULL, line}, .placeholder = "N" }
#define NUMBER_FLAG(key, least, most, heading, line)                                                                           \
    { .setting = {key, DR_SETTING_INTEGER, NULL, least, most, NULL, heading, line}, .placeholder = "N" }
#define BOOLEAN_FLAG(key, heading, line)                                                                                       \
    { .setting = {key, DR_SETTING_BOOLEAN, NULL, 0, 0, NULL, heading, line}, .placeholder = "true|false" }
#define SWITCH(key, line)                                                                                                      \
    {                                                                                                                          \
        .setting = { key, DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL, line }                                                \
    }

static const cli_flag table[FLAGS] = {
    [MODEL] = {.setting = {"model", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL, "folder with config.json and model.safetensors"},
               .placeholder = "DIR",
               .required = true},
    [TASK] = TEXT_FLAG("task", NULL, NULL, "NAME",
                       "what is scored: text, or another task; lm, unless the folder holds a run of another one"),
    [CORPUS] = TEXT_FLAG("corpus", NULL, NULL, "PATH", "a UTF-8 text file, a folder of them, or - for standard input"),
    [WINDOW] = INTEGER_FLAG("window", "1024", 1, 1 << 20, "tokens a call; the state is carried from window to window"),
    [TOKENIZER] = CLI_FLAG_TOKENIZER,
    [SKIP_UNREADABLE] =
        SWITCH("skip_unreadable", "leave out and name the files of a folder that cannot be read or are no text"),
    [PER_FILE] = SWITCH("per_file", "a line for each file before those of all"),
    [COMPARE] =
        SWITCH("compare", "what weights in bf16 and int8 cost against float32 on the text of a file: bits, agreement, memory, "
                          "speed"),
    [JSON] = SWITCH("json", "a JSON object a line, that of all files last"),
    [VERBOSE] = CLI_FLAG_VERBOSE,
    [BACKEND] = CLI_FLAG_BACKEND,
    [DTYPE] = CLI_FLAG_DTYPE,
    [DEVICE] = CLI_FLAG_DEVICE,
    [THREADS] = CLI_FLAG_THREADS,
    [WEIGHTS] = CLI_FLAG_WEIGHTS,
    [ISA] = CLI_FLAG_ISA,
    [EXAMPLES] = NUMBER_FLAG("examples", 1, 1e6, ALL_TASKS,
                             "how many are asked of each length; by default, like all of these, as the run that the folder "
                             "holds"),
    [SEED] = NUMBER_FLAG("seed", 0, 9007199254740992.0, ALL_TASKS,
                         "of the examples; a run's held_out_seed gives those it evaluates on"),
    [BATCH] = NUMBER_FLAG("batch", 1, 1e6, ALL_TASKS, "examples a call"),
    [LENGTHS] = {.setting = {"lengths", DR_SETTING_TEXT, NULL, 0, 0, NULL, ALL_TASKS,
                             "a score for each of these lengths or ranges, such as \"40 64 128-256\"; of task mqar with pairs, "
                             "\"64/4 128/8\""},
                 .placeholder = "LIST"},
    [SEQ_LEN] = NUMBER_FLAG("seq_len", 4, 1e7, MQAR, "tokens an example"),
    [PAIRS] = NUMBER_FLAG("pairs", 1, 1e6, MQAR, "keys with their values; 4 tokens of seq_len each"),
    [UPDATES] = NUMBER_FLAG("updates", 0, 1e6, MQAR, "keys that get a second value"),
    [POWER_A] = {.setting = {"power_a", DR_SETTING_REAL, NULL, 1e-6, 100, NULL, MQAR,
                             "slot g of the queries has weight (g + 1)^(power_a - 1)"},
                 .placeholder = "X"},
    [RANDOM_FILLERS] = BOOLEAN_FLAG("random_fillers", MQAR, "other tokens are random, not 0"),
    [GROUP] = {.setting = {"group", DR_SETTING_TEXT, NULL, 0, 0, NULL, OF_GROUPS, "the group, such as S5 or A4xZ5"},
               .placeholder = "NAME"},
    [MOVES] = NUMBER_FLAG("moves", 0, 1e6, OF_GROUPS, "only elements that move at most so many points; 0: all"),
    [ELEMENT_TOKENS] = NUMBER_FLAG("element_tokens", 1, 64, OF_GROUPS, "tokens of an element"),
    [REPEAT_ELEMENTS] = BOOLEAN_FLAG("repeat_elements", OF_GROUPS, "the further tokens of an element repeat it"),
};

/* ---- the command ---- */

/* task: the settings of a task that is not lm, or NULL. */
static int score(const cli_flag *flags, const dr_train_options *task, const char *text, size_t bytes) {
    const cli_model_flags how = {
        &flags[BACKEND], &flags[THREADS], &flags[ISA],   task ? NULL : &flags[TOKENIZER], cli_flag_boolean(&flags[VERBOSE]),
        &flags[WEIGHTS], &flags[DTYPE],   &flags[DEVICE]};
    cli_model of;
    int exit_status = cli_model_open(&cli_score, flags[MODEL].value, &how, &of);
    if (exit_status) return exit_status;
    cli_interrupt_catch("\nstopping; once more to leave at once\n");
    output self = {.progress = cli_progress_begin(stderr),
                   .json = cli_flag_boolean(&flags[JSON]),
                   .per_file = cli_flag_boolean(&flags[PER_FILE])};
    dr_status status = task ? score_task(of.model, task, &self) : score_text(of.model, of.tokenizer, flags, text, bytes, &self);
    if (cli_interrupted())
        exit_status = CLI_STATUS_INTERRUPTED;
    else if (status != DR_OK && !ferror(stdout))
        exit_status = cli_failure(&cli_score, status); /* else main tells of stdout */
    cli_model_close(&of);
    return exit_status;
}

/* ---- weights in fewer bits ---- */

static const char *const weight_types[] = {"float32", "bf16", "int8"};

static void print_comparison(const output *self, const char *type, const dr_comparison *c) {
    const named_number numbers[] = {{"bits_per_byte", c->other_bits_per_byte},
                                    {"divergence", c->divergence},
                                    {"largest_divergence", c->largest_divergence},
                                    {"agreement", c->agreement},
                                    {"tokens_per_second", c->tokens_per_second}};
    if (self->json) {
        printf("{\"weights\": \"%s\", \"tokens\": %" PRId64 ", \"weight_bytes\": %" PRId64 ", ", type, c->tokens,
               c->weight_bytes);
        end_json_line(numbers, sizeof numbers / sizeof *numbers);
        return;
    }
    dr_print(stdout, "%-8s %15" PRId64 "  %13.5f  %10.2e  %10.2e  %9.5f  %12.1f\n", type, c->weight_bytes,
             c->other_bits_per_byte, c->divergence, c->largest_divergence, c->agreement, c->tokens_per_second);
}

/* The model once more with weights of this type, against the one in float32. */
static int compare_type(const cli_flag *flags, const cli_model *plain, const char *type, const char *text, size_t bytes,
                        output *self) {
    dr_score_options options = dr_score_defaults();
    dr_comparison comparison;
    cli_flag weights = flags[WEIGHTS];
    cli_model other;
    weights.value = type;
    const cli_model_flags how = {&flags[BACKEND], &flags[THREADS], &flags[ISA],   NULL,
                                 false,           &weights,        &flags[DTYPE], &flags[DEVICE]};
    int exit_status = cli_model_open(&cli_score, flags[MODEL].value, &how, &other);
    if (exit_status) return exit_status;
    options.tokenizer = plain->tokenizer;
    options.progress = report;
    options.context = self;
    const dr_status status = dr_compare_text(plain->model, other.model, text, bytes, &options, &comparison);
    cli_progress_end(&self->progress);
    if (status == DR_OK) print_comparison(self, type, &comparison);
    if (cli_interrupted())
        exit_status = CLI_STATUS_INTERRUPTED;
    else if (status != DR_OK && !ferror(stdout))
        exit_status = cli_failure(&cli_score, status);
    cli_model_close(&other);
    return exit_status;
}

static int compare(const cli_flag *flags, const char *text, size_t bytes) {
    cli_flag weights = flags[WEIGHTS];
    cli_model plain;
    weights.value = weight_types[0];
    const cli_model_flags how = {
        &flags[BACKEND], &flags[THREADS], &flags[ISA],   &flags[TOKENIZER], cli_flag_boolean(&flags[VERBOSE]),
        &weights,        &flags[DTYPE],   &flags[DEVICE]};
    int exit_status = cli_model_open(&cli_score, flags[MODEL].value, &how, &plain);
    if (exit_status) return exit_status;
    cli_interrupt_catch("\nstopping; once more to leave at once\n");
    output self = {.progress = cli_progress_begin(stderr), .json = cli_flag_boolean(&flags[JSON]), .unit = "tokens"};
    if (!self.json)
        printf("%-8s %15s  %13s  %10s  %10s  %9s  %12s\n", "weights", "bytes", "bits_per_byte", "divergence", "largest",
               "agreement", "tokens/s");
    for (size_t i = 0; i < sizeof weight_types / sizeof *weight_types && exit_status == 0; i++)
        exit_status = compare_type(flags, &plain, weight_types[i], text, bytes, &self);
    cli_model_close(&plain);
    return exit_status;
}

/* The choices of the setting `task` of training runs. */
static const char *tasks(void) {
    const dr_setting *settings;
    const int count = dr_train_settings(&settings);
    for (int i = 0; i < count; i++)
        if (strcmp(settings[i].name, "task") == 0) return settings[i].choices;
    return NULL;
}

/* Which task is scored, and its settings in `options`, which the caller makes. */
static dr_status choose_task(const cli_flag *flags, dr_train_options **options, const char **task) {
    const char *of_run = NULL;
    dr_status status = dr_train_options_create(options);
    if (status != DR_OK) return status;
    if (flags[TASK].given || !flags[CORPUS].given) of_run = read_run(flags[MODEL].value, *options);
    *task = flags[TASK].given ? flags[TASK].value : of_run ? of_run : "lm";
    if (of_run && strcmp(of_run, *task) == 0) return DR_OK;
    dr_train_options_destroy(*options); /* what a run of another task, or a folder that holds none, left in them */
    status = dr_train_options_create(options);
    return status == DR_OK ? dr_train_options_set(*options, "task", *task) : status;
}

static int run(int argc, char **argv) {
    cli_flag flags[FLAGS];
    int operands, exit_status;
    memcpy(flags, table, sizeof flags);
    flags[TASK].setting.choices = tasks();
    if (!cli_flags_parse(&cli_score, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    dr_train_options *options = NULL;
    const char *task;
    char *text = NULL;
    size_t bytes = 0;
    exit_status = 0;
    dr_status status = choose_task(flags, &options, &task);
    if (status == DR_OK && check_flags(flags, task, &exit_status)) status = read_flags(flags, options);
    if (status != DR_OK) exit_status = cli_failure(&cli_score, status);
    const bool compares = cli_flag_boolean(&flags[COMPARE]);
    if (exit_status == 0 && compares && (flags[WEIGHTS].given || flags[PER_FILE].given))
        exit_status =
            cli_usage(&cli_score, "--compare scores one text with all types of weights: leave --weights and --per-file out");
    if (exit_status == 0 && flags[CORPUS].given && (compares || strcmp(flags[CORPUS].value, "-") == 0))
        exit_status = cli_read_input(&cli_score, flags[CORPUS].value, 0, &text, &bytes);
    if (exit_status == 0 && compares)
        exit_status = compare(flags, text, bytes);
    else if (exit_status == 0)
        exit_status = score(flags, flags[CORPUS].given ? NULL : options, text, bytes);
    dr_train_options_destroy(options);
    free(text);
    return exit_status;
}

const cli_command cli_score = {
    .name = "score",
    .arguments = "--model DIR [--corpus PATH | --task NAME] [flags]",
    .summary = "loss, perplexity and bits per byte of a model on text, or its accuracy in another task",
    .details = "Each file is read from its beginning in windows, the state carried from one to the next. loss is in nats a\n"
               "token, bits_per_byte counts the bytes of the text. Of other tasks a query is a token at which something is\n"
               "asked; sequence_accuracy counts examples of which all are right. A loss that is not finite is a failure.",
    .run = run,
};
