/* deltarule bench op, deltarule bench decode: recurrences of a shape, over many tokens or one token for many sequences. */
#include "base/number.h"
#include "cli/bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS, VALUE_HEADS, HEAD_SIZE, VALUE_SIZE, SHAPE_FLAGS }; /* of both, after RULE */
enum { MOST_RESULTS = CLI_MOST_THREAD_COUNTS * CLI_MOST_BENCH_RULES };

static const cli_flag rule_flag =
    CLI_TEXT("rule", "gdn", NULL, "NAME", "a name that `deltarule rules` lists, or a JSON file that composes one");

static const cli_flag shape_flags[SHAPE_FLAGS] = {
    [HEADS] = CLI_INTEGER("heads", "8", 1, 1e5, "query and key heads"),
    [VALUE_HEADS] = CLI_INTEGER("value_heads", "0", 0, 1e5, "a multiple of heads; 0: as many"),
    [HEAD_SIZE] = CLI_INTEGER("head_size", "128", 1, 1e5, "of keys, and of values if --value-size is 0"),
    [VALUE_SIZE] = CLI_INTEGER("value_size", "0", 0, 1e5, "of values; 0: as of keys"),
};

dr_status cli_read_rule(const char *text, dr_rule *rule) {
    size_t length = strlen(text);
    if (text[strspn(text, " \t\n")] == '{') return dr_rule_read_text(text, rule, NULL);
    if (length > 5 && strcmp(text + length - 5, ".json") == 0) return dr_rule_read_file(text, rule, NULL);
    const dr_rule *named = dr_rule_find(text);
    if (!named) return DR_ERROR_ARGUMENT;
    *rule = *named;
    return DR_OK;
}

static const char *rule_name(const dr_recurrence *recurrence) {
    return recurrence->rule->name ? recurrence->rule->name : "composition";
}

/* Rules and shapes from the flags. Returns how many recurrences there are; 0: the command ends with *status. */
static int read_recurrences(const cli_command *command, const cli_flag *rule, const cli_flag *how, const cli_flag *shape,
                            dr_rule rules[CLI_MOST_BENCH_RULES], dr_recurrence recurrences[CLI_MOST_BENCH_RULES], int *status) {
    const char *list[CLI_MOST_BENCH_RULES];
    char *block;
    int count = cli_bench_rule_list(command, rule->value, how, list, &block);
    *status = CLI_STATUS_REFUSED;
    for (int i = 0; i < count; i++) {
        dr_status read = cli_read_rule(list[i], &rules[i]);
        if (read != DR_OK) {
            *status = cli_failure(command, read);
            count = 0;
            break;
        }
        int64_t value_heads = cli_flag_integer(&shape[VALUE_HEADS]), value_size = cli_flag_integer(&shape[VALUE_SIZE]);
        recurrences[i] = dr_recurrence_default();
        recurrences[i].rule = &rules[i];
        recurrences[i].key_heads = cli_flag_integer(&shape[HEADS]);
        recurrences[i].key_size = cli_flag_integer(&shape[HEAD_SIZE]);
        recurrences[i].value_heads = value_heads ? value_heads : recurrences[i].key_heads;
        recurrences[i].value_size = value_size ? value_size : recurrences[i].key_size;
    }
    free(block);
    return count;
}

/* What a GPU's figures need beside its table: the kernel, memory, and the first run of the process. */
static void print_gpu_op(const dr_recurrence *recurrence, const dr_bench_op_result *result, bool forward_only) {
    double heads = (double)recurrence->layout.rows * (double)recurrence->value_heads;
    cli_bench_print_gpu_work(rule_name(recurrence), "forward", &result->forward, true);
    if (!forward_only) cli_bench_print_gpu_work(rule_name(recurrence), "forward + backward", &result->forward_backward, true);
    dr_print(stdout, "%16s %s: %.3f GFLOP counted; workspace %.1f bytes a token and value head", "", result->kernel,
             1e-9 * result->forward.amount, result->workspace_forward / heads);
    if (!forward_only)
        dr_print(stdout, ", with the backward %.1f of which %.1f are saved", result->workspace_forward_backward / heads,
                 result->saved / heads);
    dr_print(stdout, "; first run after %.3f s\n", result->first);
}

static void print_json_shape(const dr_recurrence *recurrence, const char *kernel, int threads) {
    printf("{\"rule\": \"%s\", \"kernel\": \"%s\", \"threads\": %d, \"sequences\": %" PRId64 ", \"heads\": %" PRId64
           ", \"value_heads\": %" PRId64 ", \"head_size\": %" PRId64 ", \"value_size\": %" PRId64,
           rule_name(recurrence), kernel, threads, recurrence->layout.sequences, recurrence->key_heads, recurrence->value_heads,
           recurrence->key_size, recurrence->value_size);
}

/* ---- op -------------------------------------------------------------------------------------------------------------- */

enum {
    OP_RULE,
    OP_TOKENS,
    OP_SEQUENCES,
    OP_PACKED,
    OP_PATH,
    OP_CHUNK,
    OP_FORWARD_ONLY,
    OP_LOG_DECAY,
    OP_WEAK_HEADS,
    OP_SHAPE,
    OP_WHERE = OP_SHAPE + SHAPE_FLAGS,
    OP_BENCH = OP_WHERE + CLI_BENCH_WHERE_FLAGS,
    OP_FLAGS = OP_BENCH + CLI_BENCH_FLAGS
};

static void print_op(const dr_recurrence *recurrence, const dr_bench_op_result *result, bool forward_only) {
    cli_bench_print_work(rule_name(recurrence), result->threads, "forward", &result->forward);
    if (!forward_only)
        cli_bench_print_work(rule_name(recurrence), result->threads, "forward + backward", &result->forward_backward);
    dr_print(stdout, "%25s  %s: %.3f GFLOP counted, %.3f performed", "", result->kernel, 1e-9 * result->forward.amount,
             1e-9 * result->performed_forward);
    if (!forward_only)
        dr_print(stdout, "; with the backward %.3f and %.3f", 1e-9 * result->forward_backward.amount,
                 1e-9 * result->performed_forward_backward);
    putchar('\n');
}

/* Of each sequence: all have as many. */
static int64_t tokens_of(const dr_layout *layout) {
    return layout->sequences > 0 ? layout->rows / layout->sequences : 0;
}

static void print_json_op(const dr_recurrence *recurrence, const cli_bench_unit *unit, const dr_bench_op_result *result,
                          bool forward_only) {
    print_json_shape(recurrence, result->kernel, result->threads);
    dr_print(stdout, ", \"tokens\": %" PRId64 ", \"chunk\": %" PRId64 ", \"first_seconds\": %.6g, \"workspace_forward\": %.0f",
             tokens_of(&recurrence->layout), result->chunk, result->first, result->workspace_forward);
    if (!forward_only)
        dr_print(stdout, ", \"workspace_forward_backward\": %.0f, \"saved\": %.0f", result->workspace_forward_backward,
                 result->saved);
    cli_bench_print_json_share("share_forward", &result->forward);
    if (!forward_only) cli_bench_print_json_share("share_forward_backward", &result->forward_backward);
    cli_bench_print_json_work(unit, "forward", &result->forward, result->performed_forward);
    if (!forward_only)
        cli_bench_print_json_work(unit, "forward_backward", &result->forward_backward, result->performed_forward_backward);
    printf("}\n");
}

static dr_path path_of(const char *name) {
    if (strcmp(name, "recurrent") == 0) return DR_PATH_RECURRENT;
    return strcmp(name, "chunkwise") == 0 ? DR_PATH_CHUNKWISE : DR_PATH_BEST;
}

/* Where each sequence begins, and the last ends; the caller frees it. NULL: there is no memory. */
static int64_t *packed_begins(int64_t sequences, int64_t tokens) {
    int64_t *begins = malloc((size_t)(sequences + 1) * sizeof *begins);
    for (int64_t i = 0; begins && i <= sequences; i++) begins[i] = i * tokens;
    return begins;
}

static int run_op(int argc, char **argv) {
    cli_flag flags[OP_FLAGS] = {
        [OP_RULE] = rule_flag,
        [OP_TOKENS] = CLI_INTEGER("tokens", "4096", 1, 1e9, "of a sequence"),
        [OP_SEQUENCES] = CLI_INTEGER("sequences", "1", 1, 1e6, "of so many tokens each"),
        [OP_PACKED] = CLI_SWITCH("packed", "sequences as of any lengths, told by where each begins"),
        [OP_PATH] = CLI_TEXT("path", "best", "best recurrent chunkwise", "NAME", "the engine; best: chunkwise where it exists"),
        [OP_CHUNK] = CLI_INTEGER("chunk", "0", 0, 1e6, "tokens a chunk; 0: as planned"),
        [OP_FORWARD_ONLY] = CLI_SWITCH("forward_only", "no backward"),
        [OP_LOG_DECAY] = CLI_REAL("log_decay", "0", -1e3, 0, "of every token; 0: random ones, of a layer's first step"),
        [OP_WEAK_HEADS] = CLI_INTEGER("weak_heads", "0", 0, 1e6, "value heads whose log decays are -0.0001, the first ones"),
    };
    memcpy(flags + OP_SHAPE, shape_flags, sizeof shape_flags);
    memcpy(flags + OP_WHERE, cli_bench_where_flags, sizeof cli_bench_where_flags);
    memcpy(flags + OP_BENCH, cli_bench_flags, sizeof cli_bench_flags);
    int operands, exit_status, threads[CLI_MOST_THREAD_COUNTS];
    dr_bench_options options;
    dr_rule rules[CLI_MOST_BENCH_RULES];
    dr_recurrence recurrences[CLI_MOST_BENCH_RULES];
    if (!cli_flags_parse(&cli_bench_op, flags, OP_FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    if (!cli_bench_options(&cli_bench_op, flags + OP_BENCH, threads, &options)) return CLI_STATUS_REFUSED;
    cli_bench_where(flags + OP_WHERE, &options);
    options.log_decay = cli_flag_real(&flags[OP_LOG_DECAY]);
    options.weak_heads = cli_flag_integer(&flags[OP_WEAK_HEADS]);
    int count =
        read_recurrences(&cli_bench_op, &flags[OP_RULE], flags + OP_BENCH, flags + OP_SHAPE, rules, recurrences, &exit_status);
    if (count < 1) return exit_status;
    if (options.weak_heads > recurrences[0].value_heads)
        return cli_usage(&cli_bench_op, "--weak-heads %" PRId64 " are more than the %" PRId64 " value heads",
                         options.weak_heads, recurrences[0].value_heads);
    int64_t sequences = cli_flag_integer(&flags[OP_SEQUENCES]), tokens = cli_flag_integer(&flags[OP_TOKENS]);
    const bool packed = cli_flag_boolean(&flags[OP_PACKED]);
    int64_t *begins = packed ? packed_begins(sequences, tokens) : NULL; /* NULL: all have that many tokens */
    if (packed && !begins) {
        fprintf(stderr, "deltarule bench op: no memory for where %" PRId64 " sequences begin\n", sequences);
        return 1;
    }
    for (int i = 0; i < count; i++) {
        recurrences[i].layout = (dr_layout){.sequences = sequences, .rows = sequences * tokens, .cu_seqlens = begins};
        recurrences[i].path = path_of(flags[OP_PATH].value);
        recurrences[i].chunk = cli_flag_integer(&flags[OP_CHUNK]);
    }
    bool forward_only = cli_flag_boolean(&flags[OP_FORWARD_ONLY]);
    bool json = cli_flag_boolean(&flags[OP_BENCH + CLI_BENCH_JSON]);
    dr_bench_op_result results[MOST_RESULTS];
    dr_status status = dr_bench_op(&options, forward_only, count, recurrences, results);
    free(begins);
    if (status != DR_OK) return cli_failure(&cli_bench_op, status);
    bool gpu = cli_bench_is_gpu(&options);
    if (!json && gpu) cli_bench_print_gpu_heading(true);
    if (!json && !gpu) cli_bench_print_heading(&cli_bench_arithmetic);
    for (int i = 0; i < options.thread_counts * count; i++) {
        if (json)
            print_json_op(&recurrences[i % count], gpu ? &cli_bench_gpu_arithmetic : &cli_bench_arithmetic, &results[i],
                          forward_only);
        else
            (gpu ? print_gpu_op : print_op)(&recurrences[i % count], &results[i], forward_only);
    }
    cli_bench_print_lacking(&cli_bench_op, results[0].lacking);
    return 0;
}

const cli_command cli_bench_op = {
    .name = "bench op",
    .arguments = "[flags]",
    .summary = "times of a recurrence over many tokens, against OpenBLAS sgemm at 512",
    .details =
        "Operations are counted as by the chunkwise form in chunks of 64 tokens, whatever runs: for a rule of one row\n"
        "that reads, forward 6 K V + 64 (2 K + 2 V) a token and value head, three times that with the backward.\n"
        "share: of sgemm's rate just before, on as many threads, median; best: the best time against the best of\n"
        "sgemm; ratio: time over the first rule's; speed-up: over the first number of threads.\n\n"
        "On --backend cuda times are the GPU's own, of runs in a CUDA graph on inputs that are not in its caches; share:\n"
        "of cuBLAS's rate at 8192 x 8192 in bf16, and of a copy's in bytes, where inputs and outputs count once each way.",
    .run = run_op,
};

/* ---- decode ---------------------------------------------------------------------------------------------------------- */

enum {
    DECODE_RULE,
    DECODE_SEQUENCES,
    DECODE_STATE,
    DECODE_SHAPE,
    DECODE_WHERE = DECODE_SHAPE + SHAPE_FLAGS,
    DECODE_BENCH = DECODE_WHERE + CLI_BENCH_WHERE_FLAGS,
    DECODE_FLAGS = DECODE_BENCH + CLI_BENCH_FLAGS
};

static void print_decode(const dr_recurrence *recurrence, const dr_bench_decode_result *result) {
    cli_bench_print_work(rule_name(recurrence), result->threads, "a token each", &result->token);
    dr_print(stdout, "%25s  %s: %.1f MB of states, %.0f tokens/s\n", "", result->kernel, 0.5e-6 * result->token.amount,
             (double)recurrence->layout.sequences / result->token.seconds.median);
}

static void print_gpu_decode(const dr_recurrence *recurrence, const dr_bench_decode_result *result) {
    cli_bench_print_gpu_work(rule_name(recurrence), "a token each", &result->token, false);
    dr_print(stdout, "%16s %s: %.1f MB of states, %.0f tokens/s\n", "", result->kernel, 0.5e-6 * result->token.amount,
             (double)recurrence->layout.sequences / result->token.seconds.median);
}

static void print_json_decode(const dr_recurrence *recurrence, const cli_bench_unit *unit,
                              const dr_bench_decode_result *result) {
    print_json_shape(recurrence, result->kernel, result->threads);
    dr_print(stdout, ", \"state\": \"%s\", \"share_of_bandwidth\": %.6g", recurrence->bf16_state ? "bf16" : "f32",
             result->token.share);
    cli_bench_print_json_work(unit, "token", &result->token, 0);
    printf("}\n");
}

static int run_decode(int argc, char **argv) {
    cli_flag flags[DECODE_FLAGS] = {
        [DECODE_RULE] = rule_flag,
        [DECODE_SEQUENCES] = CLI_INTEGER("sequences", "64", 1, 1e6, "that take a token each"),
        [DECODE_STATE] = CLI_TEXT("state", "f32", "f32 bf16", "TYPE", "how the state S is kept"),
    };
    memcpy(flags + DECODE_SHAPE, shape_flags, sizeof shape_flags);
    memcpy(flags + DECODE_WHERE, cli_bench_where_flags, sizeof cli_bench_where_flags);
    memcpy(flags + DECODE_BENCH, cli_bench_flags, sizeof cli_bench_flags);
    flags[DECODE_SHAPE + HEADS].setting.fallback = "16";
    int operands, exit_status, threads[CLI_MOST_THREAD_COUNTS];
    dr_bench_options options;
    dr_rule rules[CLI_MOST_BENCH_RULES];
    dr_recurrence recurrences[CLI_MOST_BENCH_RULES];
    if (!cli_flags_parse(&cli_bench_decode, flags, DECODE_FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    if (!cli_bench_options(&cli_bench_decode, flags + DECODE_BENCH, threads, &options)) return CLI_STATUS_REFUSED;
    cli_bench_where(flags + DECODE_WHERE, &options);
    int count = read_recurrences(&cli_bench_decode, &flags[DECODE_RULE], flags + DECODE_BENCH, flags + DECODE_SHAPE, rules,
                                 recurrences, &exit_status);
    if (count < 1) return exit_status;
    for (int i = 0; i < count; i++) {
        int64_t sequences = cli_flag_integer(&flags[DECODE_SEQUENCES]);
        recurrences[i].layout = (dr_layout){.sequences = sequences, .rows = sequences};
        recurrences[i].bf16_state = strcmp(flags[DECODE_STATE].value, "bf16") == 0;
    }
    bool json = cli_flag_boolean(&flags[DECODE_BENCH + CLI_BENCH_JSON]);
    dr_bench_decode_result results[MOST_RESULTS];
    dr_status status = dr_bench_decode(&options, count, recurrences, results);
    if (status != DR_OK) return cli_failure(&cli_bench_decode, status);
    bool gpu = cli_bench_is_gpu(&options);
    if (!json && gpu) cli_bench_print_gpu_heading(false);
    if (!json && !gpu) cli_bench_print_heading(&cli_bench_bandwidth);
    for (int i = 0; i < options.thread_counts * count; i++) {
        if (json)
            print_json_decode(&recurrences[i % count], gpu ? &cli_bench_gpu_bandwidth : &cli_bench_bandwidth, &results[i]);
        else
            (gpu ? print_gpu_decode : print_decode)(&recurrences[i % count], &results[i]);
    }
    return 0;
}

const cli_command cli_bench_decode = {
    .name = "bench decode",
    .arguments = "[flags]",
    .summary = "times of one token for many sequences, against a pass over as much memory",
    .details =
        "Bytes are those of the states, read and written. The limit is an in-place y = a y + b over as many, on as many\n"
        "threads; share: of its rate just before, median. On --backend cuda it is a copy in the GPU's memory, and times are\n"
        "the GPU's own, of runs in a CUDA graph on states that are not in its caches.",
    .run = run_decode,
};
