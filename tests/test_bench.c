/* Benchmarks: how work is counted, how measurements become figures, that everything is measured in turn and with the threads
 * asked for, and that inputs are such that every rule stays finite. Times themselves are not tested. */
#include "allocation.h"
#include "base/cpu.h"
#include "check/bench/count.h"
#include "check/bench/grid.h"
#include "check/bench/inputs.h"
#include "check/bench/limit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static dr_recurrence shape(const char *rule, int64_t rows, int64_t key_size, int64_t value_size) {
    return (dr_recurrence){.rule = dr_rule_find(rule),
                           .layout = {.sequences = 1, .rows = rows},
                           .key_heads = 1,
                           .value_heads = 1,
                           .key_size = key_size,
                           .value_size = value_size};
}

/* ---- counts ---------------------------------------------------------------------------------------------------------- */

/* The formulas for one token and value head: factors of K V, C K and C V; of the backward with a state at every chunk, and what
 * the states between take, of K V. */
typedef struct {
    const char *rule;
    double forward[3], backward[3], replay;
} formula;

static const formula formulas[] = {
    {"linear_attention", {4, 1, 1}, {8, 3, 2}, 2},
    {"gdn", {6, 2, 2}, {12, 6, 4}, 2},
    {"kda", {6, 2, 2}, {12, 6, 4}, 2},
    {"pgdn", {6, 2, 2}, {12, 6, 4}, 2},
    {"eda", {10, 6, 6}, {20, 18, 12}, 4},
};

static double value_of(const double factors[3], double key, double value, double chunk) {
    return factors[0] * key * value + factors[1] * chunk * key + factors[2] * chunk * value;
}

static void test_counts(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof formulas / sizeof *formulas; i++) {
        dr_recurrence r = shape(formulas[i].rule, 1, 128, 96);
        assert_non_null(r.rule);
        assert_float_equal(dr_bench_counted(&r), value_of(formulas[i].forward, 128, 96, 64), 0);
        assert_float_equal(dr_bench_performed_forward(&r, 32), value_of(formulas[i].forward, 128, 96, 32), 0);
        double backward = value_of(formulas[i].backward, 128, 96, 32);
        assert_float_equal(dr_bench_performed_backward(&r, 32, 32), backward, 0);
        assert_float_equal(dr_bench_performed_backward(&r, 32, 128), backward + 0.75 * formulas[i].replay * 128 * 96, 0);
        r.layout.rows = 1000;
        r.value_heads = 6;
        r.key_heads = 3;
        assert_float_equal(dr_bench_counted(&r), 6000 * value_of(formulas[i].forward, 128, 96, 64), 0);
    }
    dr_recurrence gdn = shape("gdn", 1, 128, 128);
    assert_float_equal(dr_bench_counted(&gdn), 6 * 128 * 128 + 64 * (2 * 128 + 2 * 128), 0);
    assert_float_equal(dr_bench_performed_forward(&gdn, 1), 7 * 128 * 128, 0);
    assert_float_equal(dr_bench_performed_backward(&gdn, 1, 64), 16 * 128 * 128, 0);
    dr_recurrence no_decay = shape("delta_net", 1, 128, 128);
    assert_float_equal(dr_bench_performed_forward(&no_decay, 1), 6 * 128 * 128, 0);
}

/* ---- figures --------------------------------------------------------------------------------------------------------- */

static void test_summary(void **state) {
    (void)state;
    const double five[] = {5, 1, 4, 2, 3}, four[] = {4, 1, 2, 3}, one[] = {7};
    dr_bench_seconds summary = dr_bench_summary(five, 5);
    assert_float_equal(summary.median, 3, 0);
    assert_float_equal(summary.best, 1, 0);
    assert_float_equal(summary.spread, 2.0 / 3, 1e-15);
    assert_float_equal(dr_bench_summary(four, 4).median, 2.5, 0);
    summary = dr_bench_summary(one, 1);
    assert_float_equal(summary.median, 7, 0);
    assert_float_equal(summary.best, 7, 0);
    assert_float_equal(summary.spread, 0, 0);
    assert_float_equal(five[0], 5, 0); /* as it was */
    /* the median of ratios, not the ratio of medians */
    const double above[] = {1, 9, 4}, below[] = {1, 3, 8};
    assert_float_equal(dr_bench_median_ratio(above, below, 3), 1, 0);
}

static const int two_counts[] = {1, 2};

/* Two numbers of threads, two rules, one work, three repeats; the second pair slows down with its limit. */
static void test_figures(void **state) {
    (void)state;
    static const double seconds[4][2][3] = {
        {{1, 1, 1}, {2, 2, 2}}, {{1, 2, 4}, {4, 8, 16}}, {{1, 1, 1}, {1, 1, 1}}, {{1, 1, 1}, {3, 2, 2.5}}};
    dr_bench_options options = {.repeats = 3, .threads = two_counts, .thread_counts = 2};
    dr_bench_grid grid;
    assert_int_equal(dr_bench_grid_create(&options, 2, 1, &grid), DR_OK);
    for (int i = 0; i < 4; i++) {
        dr_bench_pair *pair = dr_bench_grid_at(&grid, i / 2, i % 2, 0);
        pair->limit.amount = 1000;
        pair->work.amount = 500;
        memcpy(pair->limit.seconds, seconds[i][0], sizeof seconds[i][0]);
        memcpy(pair->work.seconds, seconds[i][1], sizeof seconds[i][1]);
    }
    dr_bench_work first = dr_bench_grid_work(&grid, 0, 0, 0), slowed = dr_bench_grid_work(&grid, 0, 1, 0);
    assert_float_equal(first.rate, 250, 0);
    assert_float_equal(first.limit, 1000, 0);
    assert_float_equal(first.share, 0.25, 0);
    assert_float_equal(first.ratio, 1, 0);
    assert_float_equal(first.speed_up, 1, 0);
    assert_float_equal(slowed.share, 0.125, 0);
    assert_float_equal(slowed.rate, 62.5, 0);
    assert_float_equal(slowed.limit, 500, 0);
    assert_float_equal(slowed.limit_best, 1000, 0);
    assert_float_equal(slowed.share_best, 0.125, 0);
    assert_float_equal(slowed.ratio, 4, 0); /* of 2, 4, 8 */
    dr_bench_work threaded = dr_bench_grid_work(&grid, 1, 1, 0);
    assert_float_equal(threaded.ratio, 2.5, 0);
    assert_float_equal(threaded.speed_up, 4, 0); /* of 4/3, 4, 6.4 */
    dr_bench_grid_destroy(&grid);
}

/* ---- in turn --------------------------------------------------------------------------------------------------------- */

enum { LOG = 64 };
static char run_log[LOG];
static int run_count, run_failing;

/* Takes longer than what is repeated within a measurement. */
static dr_status note(void *context) {
    const struct timespec pause = {.tv_nsec = 21000000};
    if (run_count + 1 < LOG) run_log[run_count] = *(const char *)context;
    run_count++;
    nanosleep(&pause, NULL);
    return run_count == run_failing ? dr_fail(DR_ERROR_NUMERIC, "run %d was to fail", run_count) : DR_OK;
}

static dr_status note_all(dr_bench_grid *grid) {
    static char names[] = "AaBb";
    dr_bench_options options = {.repeats = 2, .threads = two_counts, .thread_counts = 1};
    assert_int_equal(dr_bench_grid_create(&options, 2, 1, grid), DR_OK);
    for (int i = 0; i < 2; i++) {
        dr_bench_pair *pair = dr_bench_grid_at(grid, 0, i, 0);
        pair->limit.run = pair->work.run = note;
        pair->limit.context = &names[2 * i];
        pair->work.context = &names[2 * i + 1];
    }
    memset(run_log, 0, sizeof run_log);
    run_count = 0;
    return dr_bench_grid_measure(grid);
}

static void test_in_turn(void **state) {
    (void)state;
    dr_bench_grid grid;
    run_failing = 0;
    assert_int_equal(note_all(&grid), DR_OK);
    assert_string_equal(run_log, "AAaaBBbb" /* warm */ "AaBb"
                                 "AaBb");
    for (int i = 0; i < 2; i++)
        for (int n = 0; n < 2; n++) {
            assert_true(dr_bench_grid_at(&grid, 0, i, 0)->limit.seconds[n] >= 0.021);
            assert_true(dr_bench_grid_at(&grid, 0, i, 0)->work.seconds[n] >= 0.021);
        }
    dr_bench_grid_destroy(&grid);
    for (run_failing = 1; run_failing <= 16; run_failing += 5) {
        assert_int_equal(note_all(&grid), DR_ERROR_NUMERIC);
        assert_int_equal(run_count, run_failing);
        dr_bench_grid_destroy(&grid);
    }
}

static dr_status do_nothing(void *context) {
    ++*(int64_t *)context;
    return DR_OK;
}

/* What takes no time runs often enough to be measured. The run that decides may be interrupted, but not every time. */
static void test_short_runs(void **state) {
    (void)state;
    bool often = false;
    for (int trial = 0; trial < 5 && !often; trial++) {
        int64_t runs[2] = {0, 0};
        dr_bench_options options = {.repeats = 1, .threads = two_counts, .thread_counts = 1};
        dr_bench_grid grid;
        assert_int_equal(dr_bench_grid_create(&options, 1, 1, &grid), DR_OK);
        dr_bench_pair *pair = dr_bench_grid_at(&grid, 0, 0, 0);
        pair->limit.run = pair->work.run = do_nothing;
        pair->limit.context = &runs[0];
        pair->work.context = &runs[1];
        assert_int_equal(dr_bench_grid_measure(&grid), DR_OK);
        often = runs[0] > 100 && runs[1] > 100;
        assert_int_equal(runs[1], pair->work.runs + 2);
        dr_bench_grid_destroy(&grid);
    }
    assert_true(often);
}

/* ---- limits ---------------------------------------------------------------------------------------------------------- */

static double seconds_of(clockid_t clock) {
    struct timespec moment;
    clock_gettime(clock, &moment);
    return (double)moment.tv_sec + 1e-9 * (double)moment.tv_nsec;
}

/* The kernels that OpenBLAS chose, against what the processor has. */
static void test_weak_kernels(void **state) {
    (void)state;
    char text[192];
    dr_blas_judge("Prescott", true, true, text, sizeof text);
    assert_string_equal(text,
                        "OpenBLAS chose kernels for Prescott, and this processor has AVX-512: set OPENBLAS_CORETYPE=SkylakeX");
    dr_blas_judge("Sandybridge", true, false, text, sizeof text);
    assert_string_equal(text,
                        "OpenBLAS chose kernels for Sandybridge, and this processor has AVX2: set OPENBLAS_CORETYPE=Haswell");
    dr_blas_judge("Zen", true, true, text, sizeof text);
    assert_non_null(strstr(text, "OPENBLAS_CORETYPE=SkylakeX"));
    const struct {
        const char *core;
        bool avx2, avx512;
    } sound[] = {{"Prescott", false, false},  {"Haswell", true, false},   {"Zen", true, false},
                 {"SkylakeX", true, true},    {"Cooperlake", true, true}, {"SapphireRapids", true, true},
                 {"neoversen1", false, false}};
    for (size_t i = 0; i < sizeof sound / sizeof sound[0]; i++) {
        dr_blas_judge(sound[i].core, sound[i].avx2, sound[i].avx512, text, sizeof text);
        assert_string_equal(text, "");
    }
}

static void test_blas_is_described(void **state) {
    (void)state;
    char text[512];
    assert_int_equal(dr_bench_blas(text, sizeof text), DR_OK);
    assert_non_null(strstr(text, "OpenBLAS "));
    assert_non_null(strstr(text, ", kernels for "));
    assert_null(strstr(text, "no measure"));
    assert_int_equal(dr_bench_blas(NULL, 8), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_bench_blas(text, 0), DR_ERROR_ARGUMENT);
}

/* All threads' processor time is that of this one if it works alone. The threads that a build of OpenBLAS starts with wait
 * busily for a while before they sleep, and are given the time for that. */
static void test_sgemm_keeps_to_its_threads(void **state) {
    (void)state;
    dr_bench_sgemm sgemm;
    dr_bench_item item = {0};
    assert_int_equal(dr_bench_sgemm_create(1, 1, &sgemm), DR_OK);
    dr_bench_sgemm_item(&sgemm, &item);
    assert_float_equal(item.amount, 8 * 2.0 * 512 * 512 * 512, 0);
    assert_int_equal(item.run(item.context), DR_OK);
    bool alone = false;
    for (int attempt = 0; attempt < 10 && !alone; attempt++) {
        double process = seconds_of(CLOCK_PROCESS_CPUTIME_ID), own = seconds_of(CLOCK_THREAD_CPUTIME_ID);
        for (int i = 0; i < 4; i++) assert_int_equal(item.run(item.context), DR_OK);
        process = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - process;
        own = seconds_of(CLOCK_THREAD_CPUTIME_ID) - own;
        assert_true(own > 0.01);
        alone = process < 1.2 * own;
    }
    assert_true(alone);

    /* and it is the product */
    const float *a = sgemm.matrices, *b = a + 512 * 512, *c = b + 512 * 512;
    for (int64_t i = 0; i < 512; i += 73)
        for (int64_t j = 0; j < 512; j += 51) {
            double sum = 0;
            for (int64_t k = 0; k < 512; k++) sum += (double)a[i * 512 + k] * b[k * 512 + j];
            assert_float_equal(c[i * 512 + j], sum, 1e-3);
        }
    dr_bench_sgemm_destroy(&sgemm);
}

static void test_stream_passes_over_all(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        dr_bench_stream stream;
        dr_bench_item item = {0};
        assert_int_equal(dr_bench_stream_create(threads, 1013, &stream), DR_OK);
        dr_bench_stream_item(&stream, &item);
        assert_float_equal(item.amount, 2 * 4 * 1013, 0);
        for (int i = 0; i < 1013; i++) stream.y[i] = (float)i;
        assert_int_equal(item.run(item.context), DR_OK);
        for (int i = 0; i < 1013; i++) assert_true(stream.y[i] == 0.5F * (float)i + 0.5F);
        dr_bench_stream_destroy(&stream);
    }
}

/* ---- inputs ---------------------------------------------------------------------------------------------------------- */

/* Every rule, forward over more tokens than its memory holds: finite, and not nothing. */
static void test_inputs_suit_every_rule(void **state) {
    (void)state;
    for (int i = 0; i < dr_rule_count(); i++) {
        dr_bench_memory memory = {0};
        dr_recurrence r = shape(dr_rule_at(i)->name, 300, 16, 8);
        r.key_heads = r.value_heads = 2;
        dr_recurrence_memory bytes;
        dr_inputs inputs;
        void *o, *workspace;
        assert_int_equal(dr_backend_open("cpu", NULL, &memory.backend), DR_OK);
        assert_int_equal(dr_recurrence_plan(memory.backend, &r, &bytes), DR_OK);
        assert_int_equal(dr_bench_inputs(&memory, &r, &(dr_bench_options){.seed = 5}, &inputs), DR_OK);
        assert_int_equal(dr_bench_take(&memory, 300 * 2 * 8 * sizeof(float), &o), DR_OK);
        assert_int_equal(dr_bench_take(&memory, bytes.forward, &workspace), DR_OK);
        if (dr_recurrence_forward(memory.backend, &r, &inputs, NULL, o, NULL, NULL, workspace) != DR_OK ||
            dr_bench_check_finite(memory.backend, o, DR_F32, 300 * 2 * 8, "o") != DR_OK)
            fail_msg("%s: %s", r.rule->name, dr_last_error());
        const float *values = o;
        double squares = 0;
        for (int64_t j = 0; j < 300 * 2 * 8; j++) squares += (double)values[j] * values[j];
        if (!(squares > 1e-3 && squares < 1e7)) fail_msg("%s: squares of o sum to %g", r.rule->name, squares);
        dr_bench_free(&memory);
        dr_backend_close(memory.backend);
    }
}

static void test_inputs_are_realistic(void **state) {
    (void)state;
    dr_bench_memory memory = {0};
    dr_recurrence r = shape("kda", 500, 64, 64);
    dr_inputs inputs, others;
    assert_int_equal(dr_backend_open("cpu", NULL, &memory.backend), DR_OK);
    assert_int_equal(dr_bench_inputs(&memory, &r, &(dr_bench_options){.seed = 1}, &inputs), DR_OK);
    assert_int_equal(dr_bench_inputs(&memory, &r, &(dr_bench_options){.seed = 2, .log_decay = -0.5}, &others), DR_OK);
    const float *key = inputs.at[DR_INPUT_KEY], *decay = inputs.at[DR_INPUT_LOG_DECAY], *beta = inputs.at[DR_INPUT_BETA];
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < 64; i++) squares += (double)key[i] * key[i];
    assert_float_equal(squares, 1, 1e-5);
    for (int64_t i = 0; i < 500 * 64; i++) {
        assert_true(decay[i] < 0 && decay[i] > -20);
        mean += decay[i] / (500 * 64);
    }
    assert_true(mean < -0.1 && mean > -0.5);
    for (int64_t i = 0; i < 500; i++) assert_true(beta[i] > 0 && beta[i] < 1);
    assert_memory_not_equal(key, inputs.at[DR_INPUT_QUERY], 64 * sizeof(float));
    assert_memory_not_equal(key, others.at[DR_INPUT_KEY], 64 * sizeof(float));
    assert_null(inputs.at[DR_INPUT_ERASE_KEY]);
    dr_bench_free(&memory);
    dr_backend_close(memory.backend);
}

/* The first heads' log decays, whether a head has one or each of its channels. */
static void test_some_heads_are_weak(void **state) {
    (void)state;
    enum { TOKENS = 20, HEADS = 3, SIZE = 8, WEAK = 2 };
    static const char *const rules[] = {"gdn", "kda"};
    for (int i = 0; i < 2; i++) {
        const int channels = i == 0 ? 1 : SIZE;
        dr_bench_memory memory = {0};
        dr_recurrence r = shape(rules[i], TOKENS, SIZE, SIZE);
        r.key_heads = r.value_heads = HEADS;
        dr_inputs inputs;
        assert_int_equal(dr_backend_open("cpu", NULL, &memory.backend), DR_OK);
        assert_int_equal(dr_bench_inputs(&memory, &r, &(dr_bench_options){.log_decay = -0.5, .weak_heads = WEAK}, &inputs),
                         DR_OK);
        const float *decay = inputs.at[DR_INPUT_LOG_DECAY];
        for (int j = 0; j < TOKENS * HEADS * channels; j++) {
            const float wanted = j / channels % HEADS < WEAK ? -1e-4f : -0.5f;
            assert_float_equal(decay[j], wanted, 1e-7);
        }
        dr_bench_free(&memory);
        dr_backend_close(memory.backend);
    }
}

static void test_not_finite(void **state) {
    (void)state;
    dr_backend *backend;
    assert_int_equal(dr_backend_open("cpu", NULL, &backend), DR_OK);
    float values[4] = {0, 1, 2, 3};
    assert_int_equal(dr_bench_check_finite(backend, values, DR_F32, 4, "it"), DR_OK);
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        values[3] = bad[i];
        assert_int_equal(dr_bench_check_finite(backend, values, DR_F32, 4, "it"), DR_ERROR_NUMERIC);
        assert_non_null(strstr(dr_last_error(), "element 3 of it"));
        assert_int_equal(dr_bench_check_finite(backend, values, DR_F32, 3, "it"), DR_OK);
    }
    dr_backend_close(backend);
}

/* ---- whole ----------------------------------------------------------------------------------------------------------- */

static void check_work(const dr_bench_work *work, double amount) {
    assert_float_equal(work->amount, amount, 0);
    assert_true(work->seconds.best > 0 && work->seconds.best <= work->seconds.median);
    assert_float_equal(work->rate, amount / work->seconds.median, 1e-9 * work->rate);
    assert_true(work->limit > 0 && work->limit <= work->limit_best);
    assert_float_equal(work->share_best, amount / work->seconds.best / work->limit_best, 1e-9 * work->share_best);
    assert_true(work->share > 0 && work->ratio > 0 && work->speed_up > 0);
}

static void test_op(void **state) {
    (void)state;
    dr_bench_options options = {.repeats = 1, .threads = two_counts, .thread_counts = 2, .seed = 1};
    dr_recurrence r[2] = {shape("gdn", 96, 32, 32), shape("kda", 96, 32, 32)};
    dr_bench_op_result results[4];
    r[1].path = DR_PATH_RECURRENT;
    if (dr_bench_op(&options, false, 2, r, results) != DR_OK) fail_msg("%s", dr_last_error());
    for (int i = 0; i < 4; i++) {
        double counted = dr_bench_counted(&r[i % 2]);
        check_work(&results[i].forward, counted);
        check_work(&results[i].forward_backward, 3 * counted);
        assert_int_equal(results[i].threads, two_counts[i / 2]);
        assert_non_null(strstr(results[i].kernel, i % 2 ? "recurrent" : "chunkwise"));
        if (i % 2)
            assert_int_equal(results[i].chunk, 1);
        else
            assert_true(results[i].chunk > 1);
        assert_float_equal(results[i].performed_forward, dr_bench_performed_forward(&r[i % 2], results[i].chunk), 0);
        assert_true(results[i].performed_forward_backward > results[i].performed_forward);
    }
    assert_float_equal(results[0].forward.ratio, 1, 0);
    assert_float_equal(results[2].forward_backward.ratio, 1, 0);
    assert_float_equal(results[1].forward.speed_up, 1, 0);

    options.thread_counts = 1;
    r[0].chunk = 16;
    assert_int_equal(dr_bench_op(&options, true, 1, r, results), DR_OK);
    check_work(&results[0].forward, dr_bench_counted(&r[0]));
    assert_int_equal(results[0].chunk, 16);
    assert_float_equal(results[0].forward_backward.seconds.median, 0, 0);
}

static void test_decode(void **state) {
    (void)state;
    dr_bench_options options = {.repeats = 1, .threads = two_counts, .thread_counts = 2, .seed = 1};
    dr_recurrence r[2] = {shape("gdn", 5, 32, 16), shape("pgdn", 5, 32, 16)};
    r[0].layout.sequences = r[1].layout.sequences = 5;
    dr_bench_decode_result results[4];
    if (dr_bench_decode(&options, 2, r, results) != DR_OK) fail_msg("%s", dr_last_error());
    for (int i = 0; i < 4; i++) {
        check_work(&results[i].token, 2 * 5 * 4 * (i % 2 ? 32 * 16 + 32 : 32 * 16));
        assert_int_equal(results[i].threads, two_counts[i / 2]);
        assert_non_null(strstr(results[i].kernel, "decode"));
    }
    r[0].bf16_state = r[1].bf16_state = true;
    if (dr_bench_decode(&options, 2, r, results) != DR_OK) fail_msg("%s", dr_last_error());
    for (int i = 0; i < 4; i++) check_work(&results[i].token, 2 * 5 * (i % 2 ? 2 * 32 * 16 + 4 * 32 : 2 * 32 * 16));
}

static dr_train_options *tiny(const char *tied) {
    static const char *const values[][2] = {{"hidden", "16"},       {"layers", "2"}, {"heads", "2"},
                                            {"intermediate", "32"}, {"batch", "2"},  {"seq_len", "24"}};
    dr_train_options *settings;
    assert_int_equal(dr_train_options_create(&settings), DR_OK);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        assert_int_equal(dr_train_options_set(settings, values[i][0], values[i][1]), DR_OK);
    assert_int_equal(dr_train_options_set(settings, "tied", tied), DR_OK);
    return settings;
}

static void test_train(void **state) {
    (void)state;
    dr_bench_options options = {.repeats = 1, .threads = two_counts, .thread_counts = 2, .seed = 1};
    dr_train_options *settings[2] = {tiny("true"), tiny("false")};
    dr_bench_train_result results[4];
    if (dr_bench_train(&options, 2, (const dr_train_options *const *)settings, results) != DR_OK)
        fail_msg("%s", dr_last_error());
    dr_recurrence r = shape("gdn", 48, 8, 16); /* the family's values are twice as wide */
    r.value_heads = 2;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(results[i].tokens, 48);
        assert_string_equal(results[i].rule, "gdn");
        assert_int_equal(results[i].threads, two_counts[i / 2]);
        assert_float_equal(results[i].recurrence, 2 * 3 * dr_bench_counted(&r), 0);
        /* an embedding that is only looked up does not count, the head does */
        check_work(&results[i].step, 6.0 * 48 * (double)results[0].parameters + results[i].recurrence);
    }
    assert_int_equal(results[1].parameters, results[0].parameters + 257 * 16);
    dr_train_options_destroy(settings[0]);
    dr_train_options_destroy(settings[1]);
}

static void refuse(const dr_bench_options *options, int count, const dr_recurrence *r, const char *words) {
    dr_bench_op_result results[2];
    dr_bench_decode_result tokens[2];
    assert_int_equal(dr_bench_op(options, false, count, r, results), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), words));
    assert_int_equal(dr_bench_decode(options, count, r, tokens), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), words));
}

static void test_wrong_arguments(void **state) {
    (void)state;
    const int none[] = {0};
    dr_bench_options sound = {.repeats = 1, .threads = two_counts, .thread_counts = 1, .seed = 1}, options = sound;
    dr_recurrence r = shape("gdn", 1, 8, 8);
    options.repeats = 0;
    refuse(&options, 1, &r, "0 repeats");
    options.repeats = DR_BENCH_MOST_REPEATS + 1;
    refuse(&options, 1, &r, "1000 repeats");
    options = sound;
    options.threads = none;
    refuse(&options, 1, &r, "0 threads");
    options = sound;
    options.isa = "mmx";
    refuse(&options, 1, &r, "mmx");
    refuse(&sound, 0, &r, "0 rules");
    r.value_heads = 0;
    refuse(&sound, 1, &r, "value");
}

/* ---- lack of memory -------------------------------------------------------------------------------------------------- */

static const dr_bench_options short_run = {.repeats = 1, .threads = two_counts, .thread_counts = 1, .seed = 1};

static dr_status call_op(void *context) {
    (void)context;
    dr_recurrence r = shape("pgdn", 3, 4, 4);
    dr_bench_op_result result;
    return dr_bench_op(&short_run, false, 1, &r, &result);
}
static dr_status call_decode(void *context) {
    (void)context;
    dr_recurrence r = shape("pgdn", 1, 4, 4);
    dr_bench_decode_result result;
    return dr_bench_decode(&short_run, 1, &r, &result);
}
static dr_status call_train(void *context) {
    dr_bench_train_result result;
    return dr_bench_train(&short_run, 1, (const dr_train_options *const *)context, &result);
}

static void test_failed_allocations(void **state) {
    (void)state;
    assert_survives_failed_allocations(call_op, NULL);
    assert_survives_failed_allocations(call_decode, NULL);
    dr_train_options *settings = tiny("true");
    assert_survives_failed_allocations(call_train, &settings);
    dr_train_options_destroy(settings);
}

int main(void) {
    /* an OpenBLAS that is older than the processor chooses kernels that are no limit */
    dr_cpu_features features = dr_cpu_detect();
    if (features.avx2) setenv("OPENBLAS_CORETYPE", features.avx512 ? "SkylakeX" : "Haswell", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_summary),
        cmocka_unit_test(test_figures),
        cmocka_unit_test(test_in_turn),
        cmocka_unit_test(test_short_runs),
        cmocka_unit_test(test_weak_kernels),
        cmocka_unit_test(test_blas_is_described),
        cmocka_unit_test(test_sgemm_keeps_to_its_threads),
        cmocka_unit_test(test_stream_passes_over_all),
        cmocka_unit_test(test_inputs_suit_every_rule),
        cmocka_unit_test(test_inputs_are_realistic),
        cmocka_unit_test(test_some_heads_are_weak),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_op),
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_train),
        cmocka_unit_test(test_wrong_arguments),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
