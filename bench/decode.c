/* Decoding beside the machine's reading of memory: a model of random weights that no cache holds, one token after another, in
 * float32, bf16 and int8. In turn, with the same threads: bytes a second of adding up a buffer as large as the weights, and
 * bytes of weights a token times tokens a second. Prints medians and the ratio of the two for each type. */
#include <deltarule/model.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 9, TOKENS = 8, MOST_VOCABULARY = 1 << 16 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(dr_status status) {
    if (status == DR_OK) return;
    fprintf(stderr, "decode: %s\n", dr_last_error());
    exit(1);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of one pass over a buffer, each thread its part, in sums that the compiler makes of vectors. */
static double read_once(const uint64_t *buffer, int64_t words, int threads) {
    uint64_t all = 0;
    const double begin = now();
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : all)
    for (int64_t part = 0; part < threads; part++) {
        const int64_t from = words / threads * part, to = words / threads * (part + 1);
        uint64_t sum = 0;
        for (int64_t i = from; i < to; i++) sum += buffer[i];
        all += sum;
    }
    const double seconds = now() - begin;
    if (all == 1) puts("");
    return seconds;
}

/* Bytes of weights that one token makes a model read: those of all matrices but the embedding, of which it reads one row. A row
 * of int8 has a float32 scale. */
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

static void measure(const dr_model_config *config, dr_dtype type, const char *name, int threads) {
    dr_backend *backend;
    dr_model *model;
    dr_model_state *state;
    static float logits[MOST_VOCABULARY];
    double streaming[ROUNDS], decoding[ROUNDS], ratio[ROUNDS];
    check(dr_backend_open("cpu", &(dr_backend_options){.threads = threads, .weights = type}, &backend));
    check(dr_model_create(backend, config, 1, &model));
    check(dr_model_state_create(model, 1, &state));
    const double bytes = weight_bytes(model, type);
    const int64_t words = (int64_t)(bytes / sizeof(uint64_t));
    uint64_t *buffer = aligned_alloc(4096, ((size_t)words * sizeof *buffer + 4095) / 4096 * 4096);
    if (!buffer) exit(1);
    memset(buffer, 3, (size_t)words * sizeof *buffer);
    for (int round = -1; round < ROUNDS; round++) {
        const double read = read_once(buffer, words, threads), begin = now();
        for (int t = 0; t < TOKENS; t++) check(dr_model_step(model, &(int32_t){t}, state, logits));
        const double token = (now() - begin) / TOKENS;
        if (round < 0) continue;
        streaming[round] = bytes / read * 1e-9, decoding[round] = bytes / token * 1e-9, ratio[round] = read / token;
    }
    qsort(streaming, ROUNDS, sizeof(double), by_size);
    qsort(decoding, ROUNDS, sizeof(double), by_size);
    qsort(ratio, ROUNDS, sizeof(double), by_size);
    printf("%-8s %6.0f MB of weights  reading %6.2f GB/s  decoding %6.2f GB/s (%6.1f tokens/s)  ratio %.2f (%.2f to %.2f)\n",
           name, bytes * 1e-6, streaming[ROUNDS / 2], decoding[ROUNDS / 2], decoding[ROUNDS / 2] * 1e9 / bytes,
           ratio[ROUNDS / 2], ratio[0], ratio[ROUNDS - 1]);
    free(buffer);
    dr_model_state_destroy(state);
    dr_model_destroy(model);
    dr_backend_close(backend);
}

int main(int argc, char **argv) {
    const int threads = argc > 1 ? atoi(argv[1]) : omp_get_max_threads();
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = 32000, config.hidden = 2048, config.layers = argc > 2 ? atoi(argv[2]) : 3, config.heads = 8;
    config.value_size = 256;
    if (threads < 1 || config.layers < 1) return fprintf(stderr, "usage: decode [THREADS [LAYERS]]\n"), 2;
    printf("%d threads, gdn, %ld layers of %ld, vocabulary %ld\n", threads, (long)config.layers, (long)config.hidden,
           (long)config.vocabulary);
    measure(&config, DR_F32, "float32", threads);
    measure(&config, DR_BF16, "bf16", threads);
    measure(&config, DR_I8, "int8", threads);
    return 0;
}
