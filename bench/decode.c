/* Decoding beside the machine's reading of memory. A model of random weights in one type, far larger than the last cache, makes
 * one token after another; in turn with it the same threads read a buffer as large as the weights, as fast as they can. Prints,
 * as medians over the rounds, bytes a second of both and their ratio: the weights' bytes of a token over the bytes that are
 * read in the token's time.
 *     bench-decode float32|bf16|int8 [THREADS [MB]]     THREADS: 0, as many as there are; MB: of weights; four times the last
 *                                                       cache and at least 1,000 by default
 *
 * Reading has several shapes: so many streams a thread, side by side, with or without prefetches ahead. The shape that is
 * fastest on this machine is found first, and of each round the best of some passes counts. So the ceiling is the best that
 * plain loads reach here, and not what one loop happens to reach. */
#include "base/clock.h"
#include "base/order.h"

#include <deltarule/model.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    ROUNDS = 9,
    TOKENS = 4,
    PASSES = 3,
    VOCABULARY = 32000,
    HIDDEN = 2048,
    LINE = 64,
    AHEAD = 16,
    LARGE_PAGE = 2 << 20,
    LEAST_MB = 1000
};

static void check(dr_status status) {
    if (status == DR_OK) return;
    fprintf(stderr, "decode: %s\n", dr_last_error());
    exit(1);
}

/* ---- reading ---- */

typedef uint64_t line __attribute__((vector_size(LINE))); /* registers of the processor hold a line or parts of one */

typedef struct {
    int streams;   /* that a thread reads side by side */
    bool prefetch; /* asks for what lies AHEAD lines further on */
} shape;

static const shape shapes[] = {{1, false}, {1, true}, {2, false}, {2, true}, {4, false}, {4, true}, {8, false}, {8, true}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Of the sum of lines at [streams * count], each stream a part of them, the first and the last number together. */
static inline __attribute__((always_inline)) uint64_t sum_of(const line *at, int64_t count, const int streams,
                                                             const bool prefetch) {
    line sum[8] = {{0}};
    for (int64_t i = 0; i < count; i++) {
#pragma GCC unroll 8
        for (int s = 0; s < streams; s++) {
            if (prefetch) __builtin_prefetch(at + s * count + i + AHEAD, 0, 0);
            sum[s] += at[s * count + i];
        }
    }
    for (int s = 1; s < streams; s++) sum[0] += sum[s];
    return sum[0][0] + sum[0][LINE / sizeof(uint64_t) - 1];
}

/* not inlined: each shape is a loop of its own */
static __attribute__((noinline)) uint64_t sum_shaped(const line *at, int64_t lines, shape of) {
    const int64_t count = lines / of.streams;
    switch (of.streams) {
    case 1:
        return of.prefetch ? sum_of(at, count, 1, true) : sum_of(at, count, 1, false);
    case 2:
        return of.prefetch ? sum_of(at, count, 2, true) : sum_of(at, count, 2, false);
    case 4:
        return of.prefetch ? sum_of(at, count, 4, true) : sum_of(at, count, 4, false);
    default:
        return of.prefetch ? sum_of(at, count, 8, true) : sum_of(at, count, 8, false);
    }
}

/* Seconds of one pass over a buffer, each thread its part. lines is a multiple of 8 a thread. */
static double read_once(const line *buffer, int64_t lines, int threads, shape of) {
    uint64_t all = 0;
    const int64_t part = lines / threads;
    const double begin = dr_clock_now();
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : all)
    for (int t = 0; t < threads; t++) all += sum_shaped(buffer + part * t, part, of);
    const double seconds = dr_clock_now() - begin;
    __asm__ volatile("" : : "r"(all)); /* it is wanted */
    return seconds;
}

static double read_best(const line *buffer, int64_t lines, int threads, shape of) {
    double best = read_once(buffer, lines, threads, of);
    for (int i = 1; i < PASSES; i++) {
        const double seconds = read_once(buffer, lines, threads, of);
        if (seconds < best) best = seconds;
    }
    return best;
}

static shape find_shape(const line *buffer, int64_t lines, int threads) {
    shape best = shapes[0];
    double least = 0;
    for (int i = 0; i < SHAPES; i++) {
        const double seconds = read_best(buffer, lines, threads, shapes[i]);
        if (i == 0 || seconds < least) least = seconds, best = shapes[i];
    }
    return best;
}

/* Each thread writes the part that it will read, so that the part lies in memory near it. */
static line *make_buffer(int64_t lines, int threads) {
    const int64_t part = lines / threads;
    const size_t bytes = ((size_t)lines * LINE + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    line *buffer = aligned_alloc(LARGE_PAGE, bytes);
    if (!buffer) {
        fprintf(stderr, "decode: no memory for a buffer of %.0f MB\n", (double)bytes * 1e-6);
        exit(1);
    }
    madvise(buffer, bytes, MADV_HUGEPAGE); /* as the library's memory is */
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int t = 0; t < threads; t++) memset(buffer + part * t, 3, (size_t)part * LINE);
    return buffer;
}

/* ---- decoding ---- */

/* Bytes of the matrices that a model reads for one token. The embedding is left out: a token reads one row of it. A row of int8
 * has a float32 scale. */
static double weight_bytes(const dr_model *model, dr_dtype type) {
    const dr_parameter *list;
    const int64_t count = dr_model_parameters(model, &list);
    double bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!list[i].decays || list[i].rank != 2 || strstr(list[i].name, "embeddings")) continue;
        bytes += (double)list[i].count * (double)dr_dtype_size(type);
        if (type == DR_I8) bytes += sizeof(float) * (double)list[i].shape[0];
    }
    return bytes;
}

/* A model of gdn with all settings beside its layers and its table. */
static dr_model *make_layers(dr_backend *backend, int64_t layers, int64_t vocabulary) {
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    dr_model *model;
    config.layers = layers, config.vocabulary = vocabulary, config.hidden = HIDDEN, config.heads = 8, config.value_size = 256;
    check(dr_model_create(backend, &config, 1, &model));
    return model;
}

static double bytes_of(dr_backend *backend, dr_dtype type, int64_t layers, int64_t vocabulary) {
    dr_model *model = make_layers(backend, layers, vocabulary);
    const double bytes = weight_bytes(model, type);
    dr_model_destroy(model);
    return bytes;
}

/* A model whose tokens read at least so many bytes of weights, and little more. */
static dr_model *make_model(dr_backend *backend, dr_dtype type, double bytes) {
    const double one = bytes_of(backend, type, 1, 2), layer = bytes_of(backend, type, 2, 2) - one;
    const double head = (bytes_of(backend, type, 1, 4) - one) / 2 * VOCABULARY;
    const double layers = (bytes - head) / layer;
    return make_layers(backend, layers > 1 ? (int64_t)layers + 1 : 1, VOCABULARY);
}

/* Prints the numbers of one type of weights in a line that ends with the ratio's median, least and most. */
static void measure(dr_dtype type, const char *name, double wanted, int threads) {
    static float logits[VOCABULARY];
    double streaming[ROUNDS], decoding[ROUNDS], ratio[ROUNDS];
    dr_backend *backend;
    dr_model_state *state;
    check(dr_backend_open("cpu", &(dr_backend_options){.threads = threads, .weights = type}, &backend));
    dr_model *model = make_model(backend, type, wanted);
    check(dr_model_state_create(model, 1, &state));
    const double bytes = weight_bytes(model, type);
    const int64_t lines = (int64_t)(bytes / LINE) / (8 * threads) * (8 * threads);
    line *buffer = make_buffer(lines, threads);
    const shape of = find_shape(buffer, lines, threads);
    for (int round = -1; round < ROUNDS; round++) {
        const double read = read_best(buffer, lines, threads, of) * bytes / ((double)lines * LINE), begin = dr_clock_now();
        for (int t = 0; t < TOKENS; t++) check(dr_model_step(model, &(int32_t){t}, state, logits));
        const double token = (dr_clock_now() - begin) / TOKENS;
        if (round < 0) continue;
        streaming[round] = bytes / read * 1e-9, decoding[round] = bytes / token * 1e-9, ratio[round] = read / token;
    }
    qsort(streaming, ROUNDS, sizeof(double), dr_ascending);
    qsort(decoding, ROUNDS, sizeof(double), dr_ascending);
    qsort(ratio, ROUNDS, sizeof(double), dr_ascending);
    printf("%-8s %d threads, %3ld layers, %5.0f MB of weights a token  reading %6.2f GB/s (%d streams%s)  decoding %6.2f GB/s "
           "(%5.1f tokens/s)  ratio %.3f (%.3f to %.3f)\n",
           name, threads, (long)dr_model_get_config(model)->layers, bytes * 1e-6, streaming[ROUNDS / 2], of.streams,
           of.prefetch ? ", prefetched" : "", decoding[ROUNDS / 2], decoding[ROUNDS / 2] * 1e9 / bytes, ratio[ROUNDS / 2],
           ratio[0], ratio[ROUNDS - 1]);
    fflush(stdout);
    free(buffer);
    dr_model_state_destroy(state);
    dr_model_destroy(model);
    dr_backend_close(backend);
}

static const struct {
    const char *name;
    dr_dtype type;
} types[] = {{"float32", DR_F32}, {"bf16", DR_BF16}, {"int8", DR_I8}};
enum { TYPES = sizeof types / sizeof *types };

int main(int argc, char **argv) {
    const int threads = argc > 2 && atoi(argv[2]) > 0 ? atoi(argv[2]) : omp_get_max_threads();
    const double cache = (double)sysconf(_SC_LEVEL3_CACHE_SIZE) * 1e-6;
    const double megabytes = argc > 3 ? atof(argv[3]) : 4 * cache > LEAST_MB ? 4 * cache : LEAST_MB;
    for (int i = 0; argc > 1 && megabytes >= 1 && i < TYPES; i++)
        if (strcmp(argv[1], types[i].name) == 0) return measure(types[i].type, types[i].name, megabytes * 1e6, threads), 0;
    fprintf(stderr, "usage: bench-decode float32|bf16|int8 [THREADS [MB]]\n");
    return 2;
}
