/* deltarule bench: finds the command named second, and what its commands share. */
#include "cli/bench.h"
#include "base/number.h"
#include "cli/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cli_command *const kinds[] = {&cli_bench_op,    &cli_bench_decode,   &cli_bench_train,
                                           &cli_bench_score, &cli_bench_generate, NULL};

/* ---- how to measure -------------------------------------------------------------------------------------------------- */

const cli_flag cli_bench_flags[CLI_BENCH_FLAGS] = {
    [CLI_BENCH_AGAINST] = CLI_TEXT("against", NULL, NULL, "NAME[,NAME...]", "other rules, measured in turn with the first"),
    [CLI_BENCH_THREADS] = CLI_TEXT("threads", "1", NULL, "N[,N...]", "threads; of several numbers, each is measured in turn"),
    [CLI_BENCH_REPEATS] = CLI_INTEGER("repeats", "9", 1, DR_BENCH_MOST_REPEATS, "measurements of each; the median counts"),
    [CLI_BENCH_SEED] = CLI_INTEGER("seed", "1", 0, 9007199254740992.0, "of the random inputs"),
    [CLI_BENCH_JSON] = CLI_SWITCH("json", "a JSON object a line, one for each number of threads and rule"),
    [CLI_BENCH_ISA] = CLI_FLAG_ISA,
};

const cli_flag cli_bench_where_flags[CLI_BENCH_WHERE_FLAGS] = {
    [CLI_BENCH_BACKEND] =
        CLI_TEXT("backend", "cpu", "cpu cuda", "NAME", "where to measure: this machine's processor or its GPU"),
    [CLI_BENCH_DTYPE] = CLI_FLAG_DTYPE,
    [CLI_BENCH_DEVICE] = CLI_FLAG_DEVICE,
};

void cli_bench_where(const cli_flag *flags, dr_bench_options *options) {
    options->backend = flags[CLI_BENCH_BACKEND].value;
    options->dtype = cli_flag_dtype(&flags[CLI_BENCH_DTYPE]);
    options->device = (int)cli_flag_integer(&flags[CLI_BENCH_DEVICE]);
}

bool cli_bench_is_gpu(const dr_bench_options *options) {
    return strcmp(options->backend, "cuda") == 0;
}

/* "1,2": how many numbers of threads, 0 if it is no such list. */
static int read_threads(const char *text, int threads[CLI_MOST_THREAD_COUNTS]) {
    for (int count = 0; count < CLI_MOST_THREAD_COUNTS; text++) {
        char *end;
        long number = strtol(text, &end, 10);
        if (end == text || number < 1 || number > 1024 || (*end && *end != ',')) return 0;
        threads[count++] = (int)number;
        text = end;
        if (!*end) return count;
    }
    return 0;
}

bool cli_bench_options(const cli_command *command, const cli_flag *flags, int threads[CLI_MOST_THREAD_COUNTS],
                       dr_bench_options *options) {
    *options = (dr_bench_options){.repeats = cli_flag_integer(&flags[CLI_BENCH_REPEATS]),
                                  .threads = threads,
                                  .thread_counts = read_threads(flags[CLI_BENCH_THREADS].value, threads),
                                  .isa = flags[CLI_BENCH_ISA].value,
                                  .seed = (uint64_t)cli_flag_integer(&flags[CLI_BENCH_SEED])};
    if (options->thread_counts > 0) return true;
    cli_usage(command, "--threads takes up to %d numbers from 1 to 1024 with commas between, not '%s'", CLI_MOST_THREAD_COUNTS,
              flags[CLI_BENCH_THREADS].value);
    return false;
}

int cli_bench_rule_list(const cli_command *command, const char *rule, const cli_flag *flags,
                        const char *list[CLI_MOST_BENCH_RULES], char **block) {
    const char *against = flags[CLI_BENCH_AGAINST].value;
    int count = 0;
    *block = strdup(against ? against : "");
    if (!*block) {
        fprintf(stderr, "deltarule %s: out of memory\n", command->name);
        return 0;
    }
    list[count++] = rule;
    bool is_object = **block == '{';
    for (char *next = against ? *block : NULL; next; count++) {
        if (count == CLI_MOST_BENCH_RULES) {
            cli_usage(command, "--against takes up to %d rules", CLI_MOST_BENCH_RULES - 1);
            return 0;
        }
        list[count] = is_object ? next : strsep(&next, ",");
        if (is_object) next = NULL;
    }
    return count;
}

/* ---- printing -------------------------------------------------------------------------------------------------------- */

const cli_bench_unit cli_bench_arithmetic = {"GFLOP/s", "sgemm", "sgemm_gflops", "gflops", "operations"};
const cli_bench_unit cli_bench_bandwidth = {"GB/s", "ay+b", "stream_gbs", "gbs", "bytes"};
const cli_bench_unit cli_bench_gpu_arithmetic = {"GFLOP/s", "product", "product_gflops", "gflops", "operations"};
const cli_bench_unit cli_bench_gpu_bandwidth = {"GB/s", "copy", "copy_gbs", "gbs", "bytes"};

void cli_bench_print_heading(const cli_bench_unit *unit) {
    printf("%-16s %7s  %-18s %10s %10s %7s %9s %9s %7s %7s %7s %8s\n", "rule", "threads", "what", "ms", "best ms", "spread",
           unit->rate, unit->limit, "share", "best", "ratio", "speed-up");
}

void cli_bench_print_work(const char *rule, int threads, const char *what, const dr_bench_work *work) {
    dr_print(stdout, "%-16s %7d  %-18s %10.3f %10.3f %6.1f%% %9.2f", rule, threads, what, 1e3 * work->seconds.median,
             1e3 * work->seconds.best, 100 * work->seconds.spread, 1e-9 * work->rate);
    if (work->limit > 0)
        dr_print(stdout, " %9.2f %6.1f%% %6.1f%%", 1e-9 * work->limit, 100 * work->share, 100 * work->share_best);
    else
        printf(" %9s %7s %7s", "-", "-", "-");
    dr_print(stdout, " %7.3f %8.3f\n", work->ratio, work->speed_up);
}

void cli_bench_print_gpu_heading(bool moved) {
    printf("%-16s %-18s %9s %9s %7s", "rule", "what", "us", "best us", "spread");
    if (moved) printf(" %9s %9s %7s", "TFLOP/s", "product", "share");
    printf(" %9s %9s %7s %7s\n", "GB/s", "copy", "share", "ratio");
}

void cli_bench_print_gpu_work(const char *rule, const char *what, const dr_bench_work *work, bool moved) {
    dr_print(stdout, "%-16s %-18s %9.1f %9.1f %6.1f%%", rule, what, 1e6 * work->seconds.median, 1e6 * work->seconds.best,
             100 * work->seconds.spread);
    if (moved && work->limit > 0)
        dr_print(stdout, " %9.1f %9.1f %6.1f%%", 1e-12 * work->rate, 1e-12 * work->limit, 100 * work->share);
    else if (moved)
        dr_print(stdout, " %9.1f %9s %7s", 1e-12 * work->rate, "-", "-");
    dr_bench_moved memory = moved ? work->moved : (dr_bench_moved){work->amount, work->rate, work->limit, work->share};
    dr_print(stdout, " %9.1f %9.1f %6.1f%% %7.3f\n", 1e-9 * memory.rate, 1e-9 * memory.limit, 100 * memory.share, work->ratio);
}

/* A figure that stands against a limit: null without one. */
static void print_json_limited(const char *prefix, const char *key, const dr_bench_work *work, double figure) {
    if (work->limit > 0)
        dr_print(stdout, ", \"%s%s\": %.6g", prefix, key, figure);
    else
        printf(", \"%s%s\": null", prefix, key);
}

void cli_bench_print_json_share(const char *key, const dr_bench_work *work) {
    print_json_limited("", key, work, work->share);
}

void cli_bench_print_lacking(const cli_command *command, const char *lacking) {
    if (lacking[0]) fprintf(stderr, "deltarule %s: there are no shares: %s\n", command->name, lacking);
}

void cli_bench_print_json_work(const cli_bench_unit *unit, const char *name, const dr_bench_work *work, double performed) {
    dr_print(stdout, ", \"%s\": {\"seconds\": %.9g, \"best_seconds\": %.9g, \"spread\": %.4g", name, work->seconds.median,
             work->seconds.best, work->seconds.spread);
    dr_print(stdout, ", \"%s\": %.0f", unit->amount_key, work->amount);
    if (performed > 0) dr_print(stdout, ", \"performed\": %.0f", performed);
    dr_print(stdout, ", \"%s\": %.6g", unit->rate_key, 1e-9 * work->rate);
    print_json_limited("", unit->limit_key, work, 1e-9 * work->limit);
    print_json_limited("best_", unit->limit_key, work, 1e-9 * work->limit_best);
    print_json_limited("", "share", work, work->share);
    print_json_limited("", "best_share", work, work->share_best);
    dr_print(stdout, ", \"ratio\": %.6g, \"speed_up\": %.6g", work->ratio, work->speed_up);
    if (work->moved.limit > 0)
        dr_print(stdout, ", \"bytes\": %.0f, \"gbs\": %.6g, \"copy_gbs\": %.6g, \"share_of_copy\": %.6g", work->moved.bytes,
                 1e-9 * work->moved.rate, 1e-9 * work->moved.limit, work->moved.share);
    putchar('}');
}

/* ---- the command ----------------------------------------------------------------------------------------------------- */

static const char *kind_name(const void *context, int i) {
    (void)context;
    return kinds[i] ? kinds[i]->name + strlen("bench ") : NULL;
}

static int run(int argc, char **argv) {
    for (int i = 0; argc > 1 && kinds[i]; i++)
        if (strcmp(argv[1], kind_name(NULL, i)) == 0) return kinds[i]->run(argc - 1, argv + 1);
    int operands, exit_status;
    if (!cli_flags_parse(&cli_bench, NULL, 0, argc, argv, &operands, &exit_status)) return exit_status;
    const char *near = cli_nearest(argv[1], kind_name, NULL);
    return cli_usage(&cli_bench, "it measures op, decode, train, score or generate, not '%s'%s%s%s", argv[1],
                     near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

const cli_command cli_bench = {
    .name = "bench",
    .arguments = "op | decode | train | score | generate [flags]",
    .summary = "times, as shares of the machine's own limit",
    .details =
        "  op      a recurrence over many tokens, forward and backward, against OpenBLAS sgemm at 512\n"
        "  decode  one token for many sequences, against a pass y = a y + b over as much memory\n"
        "  train   optimizer steps of a language model, against sgemm\n"
        "  score   the loss of a batch, likewise\n"
        "  generate  tokens for many sequences, likewise\n\n"
        "With --backend cuda they run on a GPU, against a copy in its memory and a product by cuBLAS.\n"
        "Limit and work are measured in turn in one process, each several times, and the median of the shares counts:\n"
        "compare what one call has measured. sgemm is OpenBLAS's, which chooses its kernels by the processor's model:\n"
        "where they are below what the processor has there are no shares, and a line says which OPENBLAS_CORETYPE to set.\n"
        "docs/performance.md tells how work is counted, and what was measured.\n"
        "'deltarule bench op --help' tells its flags.",
    .run = run,
    .least_operands = 1,
    .most_operands = 1,
};
