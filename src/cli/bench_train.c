/* deltarule bench train: optimizer steps of the model that `deltarule train` with the same flags would train. */
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

static void print_details(const dr_bench_train_result *result) {
    dr_print(stdout,
             "%25s  %" PRId64 " parameters, %" PRId64 " tokens a step, %.0f tokens/s; recurrences %.1f%% of the operations; "
             "%.1f GB\n",
             "", result->parameters, result->tokens, (double)result->tokens / result->step.seconds.median,
             100 * result->recurrence / result->step.amount, 1e-9 * result->bytes);
}

static void print_result(const dr_bench_train_result *result) {
    cli_bench_print_work(result->rule, result->threads, "a step", &result->step);
    print_details(result);
}

static void print_gpu_heading(void) {
    printf("%-16s %-18s %9s %9s %7s %9s %9s %7s %7s\n", "rule", "what", "ms", "best ms", "spread", "TFLOP/s", "product",
           "share", "ratio");
}

static void print_gpu_result(const dr_bench_train_result *result) {
    const dr_bench_work *step = &result->step;
    dr_print(stdout, "%-16s %-18s %9.3f %9.3f %6.1f%% %9.1f", result->rule, "a step", 1e3 * step->seconds.median,
             1e3 * step->seconds.best, 100 * step->seconds.spread, 1e-12 * step->rate);
    if (step->limit > 0)
        dr_print(stdout, " %9.1f %6.1f%%", 1e-12 * step->limit, 100 * step->share);
    else
        printf(" %9s %7s", "-", "-");
    dr_print(stdout, " %7.3f\n", step->ratio);
    print_details(result);
}

static void print_json(const cli_bench_unit *unit, const dr_bench_train_result *result) {
    dr_print(stdout,
             "{\"rule\": \"%s\", \"threads\": %d, \"parameters\": %" PRId64 ", \"tokens\": %" PRId64
             ", \"tokens_per_second\": %.6g, \"operations_of_recurrence\": %.0f, \"bytes\": %.0f",
             result->rule, result->threads, result->parameters, result->tokens,
             (double)result->tokens / result->step.seconds.median, result->recurrence, result->bytes);
    cli_bench_print_json_share("share_train", &result->step);
    cli_bench_print_json_work(unit, "step", &result->step, 0);
    printf("}\n");
}

static int run(int argc, char **argv) {
    cli_flag flags[MOST_FLAGS];
    int settings_count = make_flags(flags);
    const cli_flag *where = flags + settings_count, *how = where + CLI_BENCH_WHERE_FLAGS;
    int operands, exit_status, threads[CLI_MOST_THREAD_COUNTS];
    dr_bench_options options;
    if (!cli_flags_parse(&cli_bench_train, flags, settings_count + HOW_FLAGS, argc, argv, &operands, &exit_status))
        return exit_status;
    if (!cli_bench_options(&cli_bench_train, how, threads, &options)) return 2;
    cli_bench_where(where, &options);

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

    const bool json = cli_flag_boolean(&how[CLI_BENCH_JSON]), gpu = cli_bench_is_gpu(&options);
    if (!json && gpu) print_gpu_heading();
    if (!json && !gpu) cli_bench_print_heading(&cli_bench_arithmetic);
    for (int i = 0; i < options.thread_counts * count; i++) {
        if (json)
            print_json(gpu ? &cli_bench_gpu_arithmetic : &cli_bench_arithmetic, &results[i]);
        else
            (gpu ? print_gpu_result : print_result)(&results[i]);
    }
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
        "share: of sgemm's rate just before, on as many threads, median; on --backend cuda of cuBLAS's at 8192 x 8192\n"
        "in bf16. GB: memory of parameters, gradient, optimizer and a step.",
    .run = run,
};
