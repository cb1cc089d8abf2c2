/* deltarule bench train, score and generate: optimizer steps of the model that `deltarule train` with the same flags would
 * train, the loss of a batch, and tokens. */
#include "base/number.h"
#include "cli/bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HOW_FLAGS = CLI_BENCH_WHERE_FLAGS + CLI_BENCH_FLAGS,
    MOST_FLAGS = 64,
    MOST_RESULTS = CLI_MOST_THREAD_COUNTS * CLI_MOST_BENCH_RULES
};

/* Whether a setting of a run matters to the time of its steps. */
static bool matters(const dr_setting *setting) {
    static const char *const names[] = {"rule", "batch", "seq_len", "vocabulary", "keep_level", "optimizer"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(setting->name, names[i]) == 0) return true;
    return strcmp(setting->group, "Model") == 0;
}

/* The settings of a run that matter, then where and how to measure. Returns how many flags of the former there are. */
static int make_flags(cli_flag flags[MOST_FLAGS]) {
    static const char *const placeholders[] = {
        [DR_SETTING_INTEGER] = "N", [DR_SETTING_REAL] = "X", [DR_SETTING_BOOLEAN] = "true|false", [DR_SETTING_TEXT] = "TEXT"};
    const dr_setting *settings;
    int of_runs = dr_train_settings(&settings), count = 0;
    for (int i = 0; i < of_runs && count + HOW_FLAGS < MOST_FLAGS; i++)
        if (matters(&settings[i]))
            flags[count++] =
                (cli_flag){.setting = settings[i], .placeholder = placeholders[settings[i].type], .delegated = true};
    memcpy(flags + count, cli_bench_where_flags, sizeof cli_bench_where_flags);
    memcpy(flags + count + CLI_BENCH_WHERE_FLAGS, cli_bench_flags, sizeof cli_bench_flags);
    for (int i = 0; i < HOW_FLAGS; i++) flags[count + i].setting.group = "Measuring";
    return count;
}

/* The settings given, with another rule unless it is NULL. */
static dr_status make_settings(const cli_flag *flags, int count, const char *rule, dr_train_options **settings) {
    dr_status status = dr_train_options_create(settings);
    for (int i = 0; i < count && status == DR_OK; i++)
        if (flags[i].given) status = dr_train_options_set(*settings, flags[i].setting.name, flags[i].value);
    if (status == DR_OK && rule) status = dr_train_options_set(*settings, "rule", rule);
    return status;
}

/* What the commands differ in. */
typedef struct {
    const cli_command *command;
    dr_status (*bench)(const dr_bench_options *, int, const dr_train_options *const *, dr_bench_train_result *);
    const char *what, *unit, *key, *share; /* in the table; of tokens; of the figures, and of the share, as JSON */
} work_kind;

static void print_details(const work_kind *kind, const dr_bench_train_result *result) {
    const dr_bench_moved *moved = &result->step.moved;
    dr_print(stdout,
             "%25s  %" PRId64 " parameters, %" PRId64
             " tokens %s, %.0f tokens/s; recurrences %.1f%% of the operations; %.1f GB\n",
             "", result->parameters, result->tokens, kind->unit, (double)result->tokens / result->step.seconds.median,
             100 * result->recurrence / result->step.amount, 1e-9 * result->bytes);
    if (moved->limit > 0)
        dr_print(stdout, "%25s  weights and states at %.1f GB/s, %.1f%% of a copy's %.1f GB/s\n", "", 1e-9 * moved->rate,
                 100 * moved->share, 1e-9 * moved->limit);
}

static void print_result(const work_kind *kind, const dr_bench_train_result *result) {
    cli_bench_print_work(result->rule, result->threads, kind->what, &result->step);
    print_details(kind, result);
}

static void print_gpu_heading(void) {
    printf("%-16s %-18s %9s %9s %7s %9s %9s %7s %7s\n", "rule", "what", "ms", "best ms", "spread", "TFLOP/s", "product",
           "share", "ratio");
}

static void print_gpu_result(const work_kind *kind, const dr_bench_train_result *result) {
    const dr_bench_work *step = &result->step;
    dr_print(stdout, "%-16s %-18s %9.3f %9.3f %6.1f%% %9.1f", result->rule, kind->what, 1e3 * step->seconds.median,
             1e3 * step->seconds.best, 100 * step->seconds.spread, 1e-12 * step->rate);
    if (step->limit > 0)
        dr_print(stdout, " %9.1f %6.1f%%", 1e-12 * step->limit, 100 * step->share);
    else
        printf(" %9s %7s", "-", "-");
    dr_print(stdout, " %7.3f\n", step->ratio);
    print_details(kind, result);
}

static void print_json(const work_kind *kind, const cli_bench_unit *unit, const dr_bench_train_result *result) {
    dr_print(stdout,
             "{\"rule\": \"%s\", \"threads\": %d, \"parameters\": %" PRId64 ", \"tokens\": %" PRId64
             ", \"tokens_per_second\": %.6g, \"operations_of_recurrence\": %.0f, \"bytes\": %.0f",
             result->rule, result->threads, result->parameters, result->tokens,
             (double)result->tokens / result->step.seconds.median, result->recurrence, result->bytes);
    cli_bench_print_json_share(kind->share, &result->step);
    cli_bench_print_json_work(unit, kind->key, &result->step, 0);
    printf("}\n");
}

static int run(const work_kind *kind, int argc, char **argv) {
    cli_flag flags[MOST_FLAGS];
    int settings_count = make_flags(flags);
    const cli_flag *where = flags + settings_count, *how = where + CLI_BENCH_WHERE_FLAGS;
    int operands, exit_status, threads[CLI_MOST_THREAD_COUNTS];
    dr_bench_options options;
    if (!cli_flags_parse(kind->command, flags, settings_count + HOW_FLAGS, argc, argv, &operands, &exit_status))
        return exit_status;
    if (!cli_bench_options(kind->command, how, threads, &options)) return CLI_STATUS_REFUSED;
    cli_bench_where(where, &options);

    const char *rules[CLI_MOST_BENCH_RULES];
    char *block;
    int count = cli_bench_rule_list(kind->command, NULL, how, rules, &block);
    dr_train_options *settings[CLI_MOST_BENCH_RULES] = {NULL};
    dr_bench_train_result results[MOST_RESULTS];
    dr_status status = DR_OK;
    for (int i = 0; i < count && status == DR_OK; i++) status = make_settings(flags, settings_count, rules[i], &settings[i]);
    if (status == DR_OK && count > 0) status = kind->bench(&options, count, (const dr_train_options *const *)settings, results);
    for (int i = 0; i < count; i++) dr_train_options_destroy(settings[i]);
    free(block);
    if (count < 1) return CLI_STATUS_REFUSED;
    if (status != DR_OK) return cli_failure(kind->command, status);

    const bool json = cli_flag_boolean(&how[CLI_BENCH_JSON]), gpu = cli_bench_is_gpu(&options);
    if (!json && gpu) print_gpu_heading();
    if (!json && !gpu) cli_bench_print_heading(&cli_bench_arithmetic);
    for (int i = 0; i < options.thread_counts * count; i++) {
        if (json)
            print_json(kind, gpu ? &cli_bench_gpu_arithmetic : &cli_bench_arithmetic, &results[i]);
        else
            (gpu ? print_gpu_result : print_result)(kind, &results[i]);
    }
    cli_bench_print_lacking(kind->command, results[0].lacking);
    return 0;
}

static int run_train(int argc, char **argv) {
    static const work_kind kind = {&cli_bench_train, dr_bench_train, "a step", "a step", "step", "share_train"};
    return run(&kind, argc, argv);
}

static int run_score(int argc, char **argv) {
    static const work_kind kind = {&cli_bench_score, dr_bench_score, "a batch", "a batch", "batch", "share_score"};
    return run(&kind, argc, argv);
}

static int run_generate(int argc, char **argv) {
    static const work_kind kind = {&cli_bench_generate, dr_bench_generate, "64 tokens each", "in all",
                                   "tokens_64_each",    "share_generate"};
    return run(&kind, argc, argv);
}

const cli_command cli_bench_train = {
    .name = "bench train",
    .arguments = "[flags]",
    .summary = "times of optimizer steps of a language model, against OpenBLAS sgemm at 512",
    .details =
        "The model is that of 'deltarule train' with the same flags, task lm; tokens are random. Counted are 6 operations\n"
        "a parameter and token, and those of the recurrence as 'deltarule bench op' counts them.\n"
        "share: of sgemm's rate just before, on as many threads, median; on --backend cuda of cuBLAS's at 8192 x 8192\n"
        "in bf16. GB: memory of parameters, gradient, optimizer and a step.",
    .run = run_train,
};

const cli_command cli_bench_score = {
    .name = "bench score",
    .arguments = "[flags]",
    .summary = "times of reading a batch with a language model, against OpenBLAS sgemm at 512",
    .details =
        "The model is that of 'deltarule train' with the same flags, task lm, with random parameters; tokens are random.\n"
        "Counted are 2 operations a parameter and token, and those of the recurrence as 'deltarule bench op' counts them.\n"
        "share: of sgemm's rate just before, on as many threads, median; on --backend cuda of cuBLAS's at 8192 x 8192\n"
        "in bf16. GB: memory of parameters and a call.",
    .run = run_score,
};

const cli_command cli_bench_generate = {
    .name = "bench generate",
    .arguments = "[flags]",
    .summary = "times of making tokens for --batch sequences at once with a language model",
    .details =
        "The model is that of 'deltarule train' with the same flags, task lm, with random parameters. A run makes 64 tokens\n"
        "for each sequence from a zero state, the most likely one each time. Counted as 'deltarule bench score' counts.\n"
        "On --backend cuda a second line tells the rate at which weights and states, the bytes that must move, are read\n"
        "and written, beside a copy's.",
    .run = run_generate,
};
