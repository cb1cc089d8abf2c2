/* deltarule bench: times of the recurrences beside the machine's own limit, measured in the same process. */
#include "cli/commands.h"

#include <deltarule/bench.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_THREAD_COUNTS = 8, CASES = 2 * MOST_THREAD_COUNTS };

/* ---- bench op -------------------------------------------------------------------------------------------------------- */

enum {
    RULE,
    AGAINST,
    TOKENS,
    SEQUENCES,
    HEADS,
    VALUE_HEADS,
    HEAD_SIZE,
    VALUE_SIZE,
    PATH,
    CHUNK,
    FORWARD_ONLY,
    THREADS,
    REPEATS,
    SEED,
    JSON,
    ISA,
    OP_FLAGS
};

#define INTEGER(key, value, low, high, line)                                                                                   \
    { .setting = {key, DR_SETTING_INTEGER, value, low, high, NULL, NULL, line}, .placeholder = "N" }
#define TEXT(key, value, words, word, line)                                                                                    \
    { .setting = {key, DR_SETTING_TEXT, value, 0, 0, words, NULL, line}, .placeholder = word }
#define SWITCH(key, line)                                                                                                      \
    {                                                                                                                          \
        .setting = { key, DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL, line }                                                \
    }

extern const cli_command cli_bench_op;

/* A rule by name, or from a JSON file. */
static dr_status read_rule(const char *text, dr_rule *rule) {
    size_t length = strlen(text);
    bool is_file = strchr(text, '/') || (length > 5 && strcmp(text + length - 5, ".json") == 0);
    if (*text == '{') return dr_rule_read_text(text, rule, NULL);
    if (is_file) return dr_rule_read_file(text, rule, NULL);
    const dr_rule *named = dr_rule_find(text);
    if (!named) return DR_ERROR_ARGUMENT;
    *rule = *named;
    return DR_OK;
}

/* "1,2": numbers of threads. Returns how many, 0 after a message. */
static int read_threads(const cli_command *command, const char *text, int threads[MOST_THREAD_COUNTS]) {
    int count = 0;
    for (const char *at = text;; at++) {
        char *end;
        long number = strtol(at, &end, 10);
        if (end == at || number < 1 || number > 1024 || (*end && *end != ',') || count == MOST_THREAD_COUNTS) {
            cli_usage(command, "--threads takes up to %d numbers from 1 to 1024 with commas between, not '%s'",
                      MOST_THREAD_COUNTS, text);
            return 0;
        }
        threads[count++] = (int)number;
        at = end;
        if (!*at) return count;
    }
}

static void print_work(const char *name, const dr_bench_work *work, bool ratio) {
    printf("  %-18s %10.3f ms  best %10.3f  spread %4.1f%%  %8.2f GFLOP/s  %6.1f%% of sgemm  best %6.1f%%", name,
           1e3 * work->seconds.median, 1e3 * work->seconds.best, 100 * work->seconds.spread, 1e-9 * work->rate,
           100 * work->share, 100 * work->share_best);
    if (ratio) printf("  %6.3fx the first", work->ratio);
    printf("\n  %-18s %10.3f GFLOP counted, %.3f performed\n", "", 1e-9 * work->counted, 1e-9 * work->performed);
}

static void print_json_work(const char *name, const dr_bench_work *work) {
    printf(", \"seconds_%s\": %.9g, \"best_%s\": %.9g, \"spread_%s\": %.4g", name, work->seconds.median, name,
           work->seconds.best, name, work->seconds.spread);
    printf(", \"counted_%s\": %.0f, \"performed_%s\": %.0f, \"gflops_%s\": %.6g", name, work->counted, name, work->performed,
           name, 1e-9 * work->rate);
    printf(", \"share_%s\": %.6g, \"share_best_%s\": %.6g, \"ratio_%s\": %.6g", name, work->share, name, work->share_best, name,
           work->ratio);
}

static const char *rule_name(const dr_rule *rule) {
    return rule->name ? rule->name : "composition";
}

static void print_result(const dr_bench_op_case *asked, const dr_bench_op_result *result, bool json, bool backward, int index) {
    const dr_recurrence *r = &asked->recurrence;
    if (json) {
        printf(
            "{\"rule\": \"%s\", \"kernel\": \"%s\", \"threads\": %d, \"sequences\": %lld, \"tokens\": %lld, \"heads\": %lld, "
            "\"value_heads\": %lld, \"head_size\": %lld, \"value_size\": %lld, \"chunk\": %lld, \"gflops_sgemm\": %.6g, "
            "\"gflops_best_sgemm\": %.6g",
            rule_name(r->rule), result->kernel, asked->threads, (long long)r->layout.sequences,
            (long long)(r->layout.rows / r->layout.sequences), (long long)r->key_heads, (long long)r->value_heads,
            (long long)r->key_size, (long long)r->value_size, (long long)result->chunk, 1e-9 * result->limit,
            1e-9 * result->limit_best);
        print_json_work("forward", &result->forward);
        if (backward) print_json_work("forward_backward", &result->forward_backward);
        printf("}\n");
        return;
    }
    printf("%s: %s, %d thread%s; sgemm at 512: %.2f GFLOP/s, best %.2f\n", rule_name(r->rule), result->kernel, asked->threads,
           asked->threads > 1 ? "s" : "", 1e-9 * result->limit, 1e-9 * result->limit_best);
    print_work("forward", &result->forward, index > 0);
    if (backward) print_work("forward + backward", &result->forward_backward, index > 0);
}

static int run_op(int argc, char **argv) {
    cli_flag flags[OP_FLAGS] = {
        [RULE] = TEXT("rule", "gdn", NULL, "NAME", "a name that `deltarule rules` lists, or a JSON file that composes one"),
        [AGAINST] = TEXT("against", NULL, NULL, "NAME", "a second rule, measured in turn with the first"),
        [TOKENS] = INTEGER("tokens", "4096", 1, 1e9, "of a sequence"),
        [SEQUENCES] = INTEGER("sequences", "1", 1, 1e6, "of that many tokens each"),
        [HEADS] = INTEGER("heads", "8", 1, 1e5, "query and key heads"),
        [VALUE_HEADS] = INTEGER("value_heads", "0", 0, 1e5, "a multiple of heads; 0: as many"),
        [HEAD_SIZE] = INTEGER("head_size", "128", 1, 1e5, "of keys, and of values unless --value-size says else"),
        [VALUE_SIZE] = INTEGER("value_size", "0", 0, 1e5, "of values; 0: as keys"),
        [PATH] = TEXT("path", "best", "best recurrent chunkwise", "NAME", "the engine"),
        [CHUNK] = INTEGER("chunk", "0", 0, 1e6, "tokens a chunk; 0: as planned"),
        [FORWARD_ONLY] = SWITCH("forward_only", "no backward"),
        [THREADS] = TEXT("threads", "1", NULL, "N[,N...]", "threads; of several numbers, each is measured in turn"),
        [REPEATS] = INTEGER("repeats", "9", 1, DR_BENCH_MOST_REPEATS, "measurements of each, of which the median counts"),
        [SEED] = INTEGER("seed", "1", 0, 9007199254740992.0, "of the inputs"),
        [JSON] = SWITCH("json", "a JSON object a line"),
        [ISA] = CLI_FLAG_ISA,
    };
    int operands, exit_status, threads[MOST_THREAD_COUNTS];
    if (!cli_flags_parse(&cli_bench_op, flags, OP_FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    int thread_counts = read_threads(&cli_bench_op, flags[THREADS].value, threads);
    if (thread_counts == 0) return 2;

    dr_rule rule[2];
    int rules = flags[AGAINST].given ? 2 : 1;
    for (int i = 0; i < rules; i++) {
        dr_status status = read_rule(flags[i == 0 ? RULE : AGAINST].value, &rule[i]);
        if (status != DR_OK) return cli_failure(&cli_bench_op, status);
    }
    static const char *const paths[] = {
        [DR_PATH_BEST] = "best", [DR_PATH_RECURRENT] = "recurrent", [DR_PATH_CHUNKWISE] = "chunkwise"};
    int path = DR_PATH_BEST;
    for (int i = 0; i < 3; i++)
        if (strcmp(flags[PATH].value, paths[i]) == 0) path = i;
    int64_t sequences = cli_flag_integer(&flags[SEQUENCES]), heads = cli_flag_integer(&flags[HEADS]);
    int64_t key_size = cli_flag_integer(&flags[HEAD_SIZE]), value_heads = cli_flag_integer(&flags[VALUE_HEADS]);
    int64_t value_size = cli_flag_integer(&flags[VALUE_SIZE]);
    dr_bench_op_case cases[CASES];
    int count = 0;
    for (int t = 0; t < thread_counts; t++)
        for (int i = 0; i < rules; i++)
            cases[count++] = (dr_bench_op_case){
                .recurrence = {.rule = &rule[i],
                               .layout = {.sequences = sequences, .rows = sequences * cli_flag_integer(&flags[TOKENS])},
                               .key_heads = heads,
                               .value_heads = value_heads ? value_heads : heads,
                               .key_size = key_size,
                               .value_size = value_size ? value_size : key_size,
                               .path = (dr_path)path,
                               .chunk = cli_flag_integer(&flags[CHUNK])},
                .threads = threads[t]};
    dr_bench_options options = {.repeats = cli_flag_integer(&flags[REPEATS]),
                                .isa = flags[ISA].value,
                                .seed = (uint64_t)cli_flag_integer(&flags[SEED]),
                                .forward_only = cli_flag_boolean(&flags[FORWARD_ONLY])};
    dr_bench_op_result results[CASES];
    dr_status status = dr_bench_op(&options, count, cases, results);
    if (status != DR_OK) return cli_failure(&cli_bench_op, status);
    for (int i = 0; i < count; i++)
        print_result(&cases[i], &results[i], cli_flag_boolean(&flags[JSON]), !options.forward_only, i);
    return 0;
}

const cli_command cli_bench_op = {
    .name = "bench op",
    .arguments = "[flags]",
    .summary = "times of a recurrence over many tokens",
    .run = run_op,
};

/* ---- the command ----------------------------------------------------------------------------------------------------- */

static int run(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "op") == 0) return run_op(argc - 1, argv + 1);
    return cli_usage(&cli_bench, "say what to measure: op");
}

const cli_command cli_bench = {
    .name = "bench",
    .arguments = "op [flags]",
    .summary = "times beside the machine's own limit",
    .run = run,
};
