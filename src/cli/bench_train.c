/* deltarule bench train: optimizer steps of the model that `deltarule train` with the same flags would train. */
#include "base/number.h"
#include "cli/bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FLAGS = 64, MOST_RESULTS = CLI_MOST_THREAD_COUNTS * CLI_MOST_BENCH_RULES };

/* Whether a setting of a run matters to the time of its steps. */
static bool matters(const dr_setting *setting) {
    static const char *const names[] = {"rule", "batch", "seq_len"};
    for (int i = 0; i < 3; i++)
        if (strcmp(setting->name, names[i]) == 0) return true;
    return strcmp(setting->group, "Model") == 0;
}

/* The settings of a run that matter, then how to measure. Returns how many flags of the former there are. */
static int make_flags(cli_flag flags[MOST_FLAGS]) {
    static const char *const placeholders[] = {
        [DR_SETTING_INTEGER] = "N", [DR_SETTING_REAL] = "X", [DR_SETTING_BOOLEAN] = "true|false", [DR_SETTING_TEXT] = "TEXT"};
    const dr_setting *settings;
    int of_runs = dr_train_settings(&settings), count = 0;
    for (int i = 0; i < of_runs && count + CLI_BENCH_FLAGS < MOST_FLAGS; i++)
        if (matters(&settings[i]))
            flags[count++] =
                (cli_flag){.setting = settings[i], .placeholder = placeholders[settings[i].type], .delegated = true};
    memcpy(flags + count, cli_bench_flags, sizeof cli_bench_flags);
    for (int i = 0; i < CLI_BENCH_FLAGS; i++) flags[count + i].setting.group = "Measuring";
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

static void print_result(const dr_bench_train_result *result) {
    cli_bench_print_work(result->rule, result->threads, "a step", &result->step);
    dr_print(stdout,
             "%25s  %" PRId64 " parameters, %" PRId64 " tokens a step, %.0f tokens/s; recurrences %.1f%% of the operations\n",
             "", result->parameters, result->tokens, (double)result->tokens / result->step.seconds.median,
             100 * result->recurrence / result->step.amount);
}

static void print_json(const dr_bench_train_result *result) {
    dr_print(stdout,
             "{\"rule\": \"%s\", \"threads\": %d, \"parameters\": %" PRId64 ", \"tokens\": %" PRId64
             ", \"tokens_per_second\": %.6g, \"operations_of_recurrence\": %.0f",
             result->rule, result->threads, result->parameters, result->tokens,
             (double)result->tokens / result->step.seconds.median, result->recurrence);
    cli_bench_print_json_share("share_train", &result->step);
    cli_bench_print_json_work(&cli_bench_arithmetic, "step", &result->step, 0);
    printf("}\n");
}

static int run(int argc, char **argv) {
    cli_flag flags[MOST_FLAGS];
    int settings_count = make_flags(flags);
    const cli_flag *how = flags + settings_count;
    int operands, exit_status, threads[CLI_MOST_THREAD_COUNTS];
    dr_bench_options options;
    if (!cli_flags_parse(&cli_bench_train, flags, settings_count + CLI_BENCH_FLAGS, argc, argv, &operands, &exit_status))
        return exit_status;
    if (!cli_bench_options(&cli_bench_train, how, threads, &options)) return 2;

    const char *rules[CLI_MOST_BENCH_RULES];
    char *block;
    int count = cli_bench_rule_list(&cli_bench_train, NULL, how, rules, &block);
    dr_train_options *settings[CLI_MOST_BENCH_RULES] = {NULL};
    dr_bench_train_result results[MOST_RESULTS];
    dr_status status = DR_OK;
    for (int i = 0; i < count && status == DR_OK; i++) status = make_settings(flags, settings_count, rules[i], &settings[i]);
    if (status == DR_OK && count > 0)
        status = dr_bench_train(&options, count, (const dr_train_options *const *)settings, results);
    for (int i = 0; i < count; i++) dr_train_options_destroy(settings[i]);
    free(block);
    if (count < 1) return 2;
    if (status != DR_OK) return cli_failure(&cli_bench_train, status);

    bool json = cli_flag_boolean(&how[CLI_BENCH_JSON]);
    if (!json) cli_bench_print_heading(&cli_bench_arithmetic);
    for (int i = 0; i < options.thread_counts * count; i++) (json ? print_json : print_result)(&results[i]);
    cli_bench_print_lacking(&cli_bench_train, results[0].lacking);
    return 0;
}

const cli_command cli_bench_train = {
    .name = "bench train",
    .arguments = "[flags]",
    .summary = "times of optimizer steps of a language model, against OpenBLAS sgemm at 512",
    .details =
        "The model is that of 'deltarule train' with the same flags, task lm; tokens are random. Counted are 6 operations\n"
        "a parameter and token, and those of the recurrence as 'deltarule bench op' counts them.\n"
        "share: of sgemm's rate just before, on as many threads, median.",
    .run = run,
};
