/* What the commands of `deltarule bench` share: their flags, numbers of threads, and how a measurement is printed. */
#ifndef DR_CLI_BENCH_H
#define DR_CLI_BENCH_H

#include "cli/flags.h"

#include <deltarule/bench.h>

extern const cli_command cli_bench_op, cli_bench_decode, cli_bench_train, cli_bench_score, cli_bench_generate;

enum { CLI_MOST_THREAD_COUNTS = 8, CLI_MOST_BENCH_RULES = 16 };

#define CLI_INTEGER(key, value, low, high, line)                                                                               \
    { .setting = {key, DR_SETTING_INTEGER, value, low, high, NULL, NULL, line}, .placeholder = "N" }
#define CLI_REAL(key, value, low, high, line)                                                                                  \
    { .setting = {key, DR_SETTING_REAL, value, low, high, NULL, NULL, line}, .placeholder = "X" }
#define CLI_TEXT(key, value, words, word, line)                                                                                \
    { .setting = {key, DR_SETTING_TEXT, value, 0, 0, words, NULL, line}, .placeholder = word }
#define CLI_SWITCH(key, line)                                                                                                  \
    {                                                                                                                          \
        .setting = { key, DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL, line }                                                \
    }

/* The flags of how to measure. CLI_BENCH_FLAGS of them, in this order, end the table of each command. */
enum {
    CLI_BENCH_AGAINST,
    CLI_BENCH_THREADS,
    CLI_BENCH_REPEATS,
    CLI_BENCH_SEED,
    CLI_BENCH_JSON,
    CLI_BENCH_ISA,
    CLI_BENCH_FLAGS
};
extern const cli_flag cli_bench_flags[CLI_BENCH_FLAGS];

/* Where recurrences are measured: CLI_BENCH_WHERE_FLAGS, in this order. */
enum { CLI_BENCH_BACKEND, CLI_BENCH_DTYPE, CLI_BENCH_DEVICE, CLI_BENCH_WHERE_FLAGS };
extern const cli_flag cli_bench_where_flags[CLI_BENCH_WHERE_FLAGS];
/* Puts them into the options. */
void cli_bench_where(const cli_flag *flags, dr_bench_options *options);
bool cli_bench_is_gpu(const dr_bench_options *options);

/* How to measure, from those flags; threads holds the numbers of threads. Returns false after a message. */
bool cli_bench_options(const cli_command *command, const cli_flag *flags, int threads[CLI_MOST_THREAD_COUNTS],
                       dr_bench_options *options);

/* The rule of --rule, then those of --against between commas, copied into one block that the caller frees; a JSON object is one
 * rule, whatever commas are in it. Returns how many there are, 0 after a message. */
int cli_bench_rule_list(const cli_command *command, const char *rule, const cli_flag *flags,
                        const char *list[CLI_MOST_BENCH_RULES], char **block);

/* What a command's works are measured in. */
typedef struct {
    const char *rate, *limit, *limit_key; /* "GFLOP/s", "sgemm", "sgemm_gflops" */
    const char *rate_key, *amount_key;    /* "gflops", "operations" */
} cli_bench_unit;
extern const cli_bench_unit cli_bench_arithmetic, cli_bench_bandwidth;
extern const cli_bench_unit cli_bench_gpu_arithmetic, cli_bench_gpu_bandwidth;

/* The heading of the table, and a line of it. rule: its name. moved: a GPU's table, with the memory's share. */
void cli_bench_print_heading(const cli_bench_unit *unit);
void cli_bench_print_work(const char *rule, int threads, const char *what, const dr_bench_work *work);
void cli_bench_print_gpu_heading(bool moved);
void cli_bench_print_gpu_work(const char *rule, const char *what, const dr_bench_work *work, bool moved);
/* , "key": the share that was measured, or null where there was no limit. */
void cli_bench_print_json_share(const char *key, const dr_bench_work *work);
/* Says on standard error why there was no limit, if there was none. */
void cli_bench_print_lacking(const cli_command *command, const char *lacking);
/* "name": {...}, with a comma before it. performed: operations, or 0 to leave them out. */
void cli_bench_print_json_work(const cli_bench_unit *unit, const char *name, const dr_bench_work *work, double performed);

/* A rule by name, from the text of a JSON object or from a .json file. */
dr_status cli_read_rule(const char *text, dr_rule *rule);

#endif
