/* Every option of `bench op`, `bench decode` and `bench train` that --help lists, at a value that is not its default, in the
 * library call that it is for; the functions that measure are replaced. An option without a line here fails. */
#include "cli/bench.h"
#include "cli/commands.h"
#include "scratch.h"
#include "statuses.h"

#include <deltarule/bench.h>

/* ---- what the library was called with ---- */

enum { MOST_RULES = 4 };

static struct {
    dr_bench_options options;
    int threads[4], count, calls;
    char backend[16], isa[16];
    bool forward_only, packed;
    int64_t begins[4];
    dr_recurrence recurrence[MOST_RULES];
    dr_rule rule[MOST_RULES];
    char setting[MOST_RULES][256]; /* the value of seen_setting */
} seen;

static const char *seen_setting = "rule";

static void keep_options(const dr_bench_options *options, int count) {
    seen.options = *options;
    seen.count = count;
    seen.calls++;
    assert_true(options->thread_counts <= 4 && count <= MOST_RULES);
    for (int i = 0; i < options->thread_counts; i++) seen.threads[i] = options->threads[i];
    snprintf(seen.backend, sizeof seen.backend, "%s", options->backend ? options->backend : "");
    snprintf(seen.isa, sizeof seen.isa, "%s", options->isa ? options->isa : "");
}

static void keep_recurrences(int count, const dr_recurrence *recurrences) {
    for (int i = 0; i < count; i++) {
        seen.recurrence[i] = recurrences[i];
        seen.rule[i] = *recurrences[i].rule;
    }
    seen.packed = recurrences[0].layout.cu_seqlens != NULL;
    for (int64_t i = 0; seen.packed && i <= recurrences[0].layout.sequences && i < 4; i++)
        seen.begins[i] = recurrences[0].layout.cu_seqlens[i];
}

dr_status __wrap_dr_bench_op(const dr_bench_options *, bool, int, const dr_recurrence *, dr_bench_op_result *);
dr_status __wrap_dr_bench_op(const dr_bench_options *options, bool forward_only, int count, const dr_recurrence *recurrences,
                             dr_bench_op_result *results) {
    keep_options(options, count);
    keep_recurrences(count, recurrences);
    seen.forward_only = forward_only;
    memset(results, 0, sizeof *results * (size_t)(count * options->thread_counts));
    for (int i = 0; i < count * options->thread_counts; i++) {
        results[i].threads = options->threads[i / count];
        results[i].forward.amount = 3e9, results[i].forward.share = 0.25;
        results[i].forward_backward.share = 0.125;
    }
    return DR_OK;
}

dr_status __wrap_dr_bench_decode(const dr_bench_options *, int, const dr_recurrence *, dr_bench_decode_result *);
dr_status __wrap_dr_bench_decode(const dr_bench_options *options, int count, const dr_recurrence *recurrences,
                                 dr_bench_decode_result *results) {
    keep_options(options, count);
    keep_recurrences(count, recurrences);
    memset(results, 0, sizeof *results * (size_t)(count * options->thread_counts));
    for (int i = 0; i < count * options->thread_counts; i++) results[i].token.share = 0.5;
    return DR_OK;
}

dr_status __wrap_dr_bench_train(const dr_bench_options *, int, const dr_train_options *const *, dr_bench_train_result *);
dr_status __wrap_dr_bench_train(const dr_bench_options *options, int count, const dr_train_options *const *settings,
                                dr_bench_train_result *results) {
    keep_options(options, count);
    for (int i = 0; i < count; i++)
        snprintf(seen.setting[i], sizeof seen.setting[i], "%s", dr_train_options_get(settings[i], seen_setting));
    memset(results, 0, sizeof *results * (size_t)(count * options->thread_counts));
    return DR_OK;
}

/* ---- calling a command ---- */

static char output[1 << 16]; /* standard output of the last call */

static int call(char **words) {
    int argc = 0;
    fflush(stdout);
    int kept = dup(STDOUT_FILENO);
    const char *path = scratch_write("output", "", 0);
    FILE *file = freopen(path, "w", stdout);
    assert_non_null(file);
    while (words[argc]) argc++;
    memset(&seen, 0, sizeof seen);
    int status = cli_bench.run(argc, words);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    size_t bytes = 0;
    char *text = scratch_read_at(path, &bytes);
    snprintf(output, sizeof output, "%s", text);
    free(text);
    return status;
}

/* ---- the options ---- */

#define FIRST seen.recurrence[0]

/* After `bench KIND --OPTION VALUE` this must be true; VALUE NULL: a switch. */
#define OF_OP(X)                                                                                                               \
    X("op", "rule", "kda", strcmp(seen.rule[0].name, "kda") == 0)                                                              \
    X("op", "tokens", "33", FIRST.layout.rows == 33)                                                                           \
    X("op", "sequences", "3", FIRST.layout.sequences == 3 && FIRST.layout.rows == 3 * 4096)                                    \
    X("op", "packed", NULL, seen.packed &&seen.begins[1] == 4096)                                                              \
    X("op", "path", "recurrent", FIRST.path == DR_PATH_RECURRENT)                                                              \
    X("op", "path", "chunkwise", FIRST.path == DR_PATH_CHUNKWISE)                                                              \
    X("op", "chunk", "24", FIRST.chunk == 24)                                                                                  \
    X("op", "forward-only", NULL, seen.forward_only)                                                                           \
    X("op", "log-decay", "-0.25", seen.options.log_decay == -0.25)                                                             \
    X("op", "weak-heads", "2", seen.options.weak_heads == 2)
#define OF_DECODE(X)                                                                                                           \
    X("decode", "rule", "kda", strcmp(seen.rule[0].name, "kda") == 0)                                                          \
    X("decode", "sequences", "5", FIRST.layout.sequences == 5 && FIRST.layout.rows == 5)                                       \
    X("decode", "state", "bf16", FIRST.bf16_state)
#define OF_SHAPE(X, kind)                                                                                                      \
    X(kind, "heads", "6", FIRST.key_heads == 6 && FIRST.value_heads == 6)                                                      \
    X(kind, "value-heads", "32", FIRST.value_heads == 32 && FIRST.key_heads != 32)                                             \
    X(kind, "head-size", "48", FIRST.key_size == 48 && FIRST.value_size == 48)                                                 \
    X(kind, "value-size", "40", FIRST.value_size == 40 && FIRST.key_size == 128)
#define OF_ALL(X, kind)                                                                                                        \
    X(kind, "backend", "cuda", strcmp(seen.backend, "cuda") == 0)                                                              \
    X(kind, "dtype", "bf16", seen.options.dtype == DR_BF16)                                                                    \
    X(kind, "device", "3", seen.options.device == 3)                                                                           \
    X(kind, "threads", "1,3", seen.options.thread_counts == 2 && seen.threads[0] == 1 && seen.threads[1] == 3)                 \
    X(kind, "repeats", "4", seen.options.repeats == 4)                                                                         \
    X(kind, "seed", "77", seen.options.seed == 77)                                                                             \
    X(kind, "isa", "portable", strcmp(seen.isa, "portable") == 0)                                                              \
    X(kind, "json", NULL, output[0] == '{' && strstr(output, "\"share"))

static char held[128][32]; /* "KIND OPTION" */
static int helds;

#define CHECK(kind, option, value, holds)                                                                                      \
    do {                                                                                                                       \
        assert_int_equal(call((char *[]){"bench", kind, "--" option, value, NULL}), 0);                                        \
        assert_int_equal(seen.calls, 1);                                                                                       \
        if (!(holds)) fail_msg("--%s of bench %s does not arrive", option, kind);                                              \
        snprintf(held[helds++], sizeof held[0], "%s %s", kind, option);                                                        \
    } while (0);

/* Other rules are measured with the same shape. */
static void check_against(char *kind) {
    assert_int_equal(call((char *[]){"bench", kind, "--rule", "gdn", "--against", "kda,eda", NULL}), 0);
    assert_int_equal(seen.count, 3);
    if (strcmp(kind, "train") != 0) {
        static const char *const names[] = {"gdn", "kda", "eda"};
        for (int i = 0; i < 3; i++) {
            assert_string_equal(seen.rule[i].name, names[i]);
            assert_true(seen.recurrence[i].key_size == 128 && seen.recurrence[i].layout.rows == FIRST.layout.rows);
        }
    }
    snprintf(held[helds++], sizeof held[0], "%s against", kind);
}

static void test_options_arrive(void **state) {
    (void)state;
    OF_OP(CHECK)
    OF_DECODE(CHECK)
    OF_SHAPE(CHECK, "op")
    OF_SHAPE(CHECK, "decode")
    OF_ALL(CHECK, "op")
    OF_ALL(CHECK, "decode")
    OF_ALL(CHECK, "train")
    check_against("op");
    check_against("decode");
    check_against("train");
}

/* bench train takes the settings of a run that decide the time of a step. */
static void test_settings_arrive(void **state) {
    (void)state;
    static const struct {
        char *option;
        const char *setting;
        char *value;
    } settings[] = {{"--rule", "rule", "kda"},       {"--batch", "batch", "3"},    {"--seq-len", "seq_len", "40"},
                    {"--hidden", "hidden", "24"},    {"--layers", "layers", "5"},  {"--heads", "heads", "6"},
                    {"--tied", "tied", "false"},     {"--gate", "gate", "log"},    {"--conv-size", "conv_size", "3"},
                    {"--key-size", "key_size", "9"}, {"--force", "force", "true"}, {"--intermediate", "intermediate", "11"}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        seen_setting = settings[i].setting;
        assert_int_equal(call((char *[]){"bench", "train", settings[i].option, settings[i].value, NULL}), 0);
        assert_string_equal(seen.setting[0], settings[i].value);
    }
    seen_setting = "rule";
    assert_int_equal(call((char *[]){"bench", "train", "--rule", "kda", "--against", "eda,gdn2", NULL}), 0);
    assert_string_equal(seen.setting[0], "kda");
    assert_string_equal(seen.setting[1], "eda");
    assert_string_equal(seen.setting[2], "gdn2");
}

/* --help lists an option in a line "  --NAME ...". Those of train that are settings of runs are held by test_settings.c. */
static void test_no_option_is_forgotten(void **state) {
    (void)state;
    static char *const kinds[] = {"op", "decode", "train"};
    const dr_setting *settings;
    const int count = dr_train_settings(&settings);
    for (int k = 0; k < 3; k++) {
        assert_int_equal(call((char *[]){"bench", kinds[k], "--help", NULL}), 0);
        for (char *line = output; line; line = strchr(line, '\n')) {
            line += *line == '\n';
            if (strncmp(line, "  --", 4) != 0) continue;
            char name[64], wanted[96];
            bool found = false;
            snprintf(name, sizeof name, "%.*s", (int)strcspn(line + 4, " \n"), line + 4);
            snprintf(wanted, sizeof wanted, "%s %s", kinds[k], name);
            for (int i = 0; i < helds; i++) found |= strcmp(held[i], wanted) == 0;
            for (char *c = name; *c; c++) *c = *c == '-' ? '_' : *c;
            for (int i = 0; k == 2 && i < count; i++) found |= strcmp(settings[i].name, name) == 0;
            if (!found && strcmp(name, "help") != 0) fail_msg("nothing here holds --%s of bench %s", name, kinds[k]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_arrive),
        cmocka_unit_test(test_settings_arrive),
        cmocka_unit_test(test_no_option_is_forgotten),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
