/* Random inputs as trained layers make them: unit keys and queries, gains from a sigmoid, and decays as Gated DeltaNet starts
 * with them, A in [1, 16] a head and steps dt in [0.001, 0.1], drawn evenly on a logarithmic scale. Each input has its own
 * random stream. */
#include "check/bench/inputs.h"

#include "base/error.h"
#include "base/half.h"
#include "base/memory.h"
#include "base/random.h"

#include <math.h>
#include <string.h>

enum { STREAM_INPUTS = 16, STREAM_NORMALS = 2 };
/* Elements of a tensor: a GPU takes far more than a processor draws in reasonable time. */
enum { MOST_DRAWN = 1 << 20, MOST_CHECKED = 1 << 22 };

dr_status dr_bench_take(dr_bench_memory *memory, size_t bytes, void **block) {
    if (memory->count == DR_BENCH_BLOCKS) return dr_fail(DR_ERROR_MEMORY, "a case needs more than %d blocks", DR_BENCH_BLOCKS);
    DR_TRY(dr_backend_allocate(memory->backend, bytes, block));
    dr_backend_zero(memory->backend, *block, bytes); /* touched: no page faults in what is measured */
    memory->block[memory->count++] = *block;
    return DR_OK;
}

void dr_bench_free(dr_bench_memory *memory) {
    for (int i = 0; i < memory->count; i++) dr_backend_free(memory->backend, memory->block[i]);
    memory->count = 0;
}

/* In place: a 16-bit number never overtakes the float that it is made of. */
static void narrow(float *values, dr_dtype dtype, int64_t count) {
    uint16_t *halves = (uint16_t *)values;
    for (int64_t i = 0; i < count; i++) {
        float value = values[i];
        uint16_t half = dtype == DR_BF16 ? dr_bf16_from_float(value) : dr_f16_from_float(value);
        memcpy(&halves[i], &half, sizeof half);
    }
}

/* A block of count elements, the first `drawn` of which are values; the others repeat them. Overwrites values. */
static dr_status upload(dr_bench_memory *memory, dr_dtype dtype, float *values, int64_t drawn, int64_t count, void **block) {
    const bool is_half = dtype == DR_BF16 || dtype == DR_F16;
    DR_TRY(dr_bench_take(memory, (size_t)count * dr_dtype_size(dtype), block));
    if (is_half) narrow(values, dtype, drawn);
    for (int64_t i = 0; i < count; i += drawn) {
        int64_t some = count - i < drawn ? count - i : drawn;
        char *to = (char *)*block + (size_t)i * dr_dtype_size(dtype);
        DR_TRY(dr_backend_upload_as(memory->backend, to, dtype, values, is_half ? dtype : DR_F32, some));
    }
    return DR_OK;
}

/* How many of count elements are drawn: a multiple of size, if they are not all, so that what repeats them begins alike. */
static int64_t drawn_of(int64_t count, int64_t size) {
    const int64_t most = size < MOST_DRAWN ? MOST_DRAWN / size * size : size;
    return count <= most ? count : most;
}

dr_status dr_bench_normals(dr_bench_memory *memory, dr_dtype dtype, int64_t count, uint64_t seed, void **block) {
    int64_t drawn = drawn_of(count, 1);
    void *host = NULL;
    DR_TRY(dr_allocate((size_t)drawn * sizeof(float), "random numbers", &host));
    dr_random random = dr_random_start(seed, STREAM_NORMALS);
    float *values = host;
    for (int64_t i = 0; i < drawn; i++) values[i] = (float)dr_random_normal(&random);
    dr_status status = upload(memory, dtype, values, drawn, count, block);
    dr_release(host);
    return status;
}

int64_t dr_bench_input_count(const dr_recurrence *recurrence, dr_input input) {
    int64_t shape[DR_MAX_RANK], count = 0;
    dr_product(shape, dr_recurrence_input_shape(recurrence, input, shape), &count);
    return count;
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* -A softplus(x + bias), softplus(bias) = dt */
static double draw_log_decay(dr_random *random) {
    double rate = 1 + 15 * dr_random_uniform(random);
    double step = 0.001 * pow(100, dr_random_uniform(random));
    return -rate * log1p(exp(0.5 * dr_random_normal(random)) * expm1(step));
}

/* log_decay: as in dr_bench_options */
static double draw(dr_random *random, dr_input input, double log_decay) {
    switch (input) {
    case DR_INPUT_LOG_DECAY:
    case DR_INPUT_SCAN_LOG_DECAY:
        return log_decay < 0 ? log_decay : draw_log_decay(random);
    case DR_INPUT_BETA:
    case DR_INPUT_ERASE_GAIN:
    case DR_INPUT_RATE:
    case DR_INPUT_ERASE_GATE:
    case DR_INPUT_WRITE_GATE:
    case DR_INPUT_SCAN_GAIN:
        return sigmoid(dr_random_normal(random));
    case DR_INPUT_LAMBDA:
    case DR_INPUT_CORRECTION:
        return 0.5 * sigmoid(dr_random_normal(random));
    case DR_INPUT_RIDGE:
        return 0.25 + dr_random_uniform(random);
    default:
        return dr_random_normal(random);
    }
}

static bool is_key(dr_input input) {
    return input == DR_INPUT_QUERY || input == DR_INPUT_KEY || input == DR_INPUT_ERASE_KEY || input == DR_INPUT_FEEDBACK_KEY ||
           input == DR_INPUT_FREE_READ || input == DR_INPUT_FREE_WRITE;
}

static void normalise(float *values, int64_t count, int64_t size, double length) {
    for (float *x = values; x < values + count; x += size) {
        double sum = 0;
        for (int64_t i = 0; i < size; i++) sum += (double)x[i] * (double)x[i];
        for (int64_t i = 0; i < size; i++) x[i] = (float)(length * (double)x[i] / sqrt(sum));
    }
}

/* The first `weak` log decays of each token, which has `token` of them. */
static void weaken(float *values, int64_t count, int64_t token, int64_t weak) {
    for (int64_t first = 0; first < count; first += token)
        for (int64_t i = 0; i < weak && i < token; i++) values[first + i] = -1e-4f;
}

/* free_read and free_write are drawn alike, with opposite signs: then a token erases a part of what it reads, and the state
 * stays bounded. */
static dr_status draw_input(dr_bench_memory *memory, const dr_recurrence *recurrence, const dr_bench_options *options,
                            dr_input input, void **block) {
    int64_t channels = recurrence->rule->decay == DR_DECAY_CHANNEL ? recurrence->key_size : 1;
    int64_t token = recurrence->value_heads * recurrence->key_size;
    int64_t count = dr_bench_input_count(recurrence, input), drawn = drawn_of(count, token);
    void *host = NULL;
    DR_TRY(dr_allocate((size_t)drawn * sizeof(float), "an input", &host));
    float *values = host;
    bool is_write = input == DR_INPUT_FREE_WRITE;
    uint64_t stream = is_write ? DR_INPUT_FREE_READ : input;
    dr_random random = dr_random_start(options->seed, STREAM_INPUTS + stream);
    for (int64_t i = 0; i < drawn; i++) values[i] = (float)draw(&random, input, options->log_decay);
    if (input == DR_INPUT_LOG_DECAY) weaken(values, drawn, channels * recurrence->value_heads, channels * options->weak_heads);
    if (is_key(input)) normalise(values, drawn, recurrence->key_size, is_write ? -0.5 : 1);
    dr_status status = upload(memory, dr_recurrence_input_dtype(memory->backend, input), values, drawn, count, block);
    dr_release(host);
    return status;
}

dr_status dr_bench_inputs(dr_bench_memory *memory, const dr_recurrence *recurrence, const dr_bench_options *options,
                          dr_inputs *inputs) {
    *inputs = (dr_inputs){{NULL}};
    for (int i = 0; i < DR_INPUTS; i++) {
        void *block = NULL;
        if (!dr_rule_uses(recurrence->rule, (dr_input)i)) continue;
        DR_TRY(draw_input(memory, recurrence, options, (dr_input)i, &block));
        inputs->at[i] = block;
    }
    return DR_OK;
}

dr_status dr_bench_check_finite(dr_backend *backend, const void *block, dr_dtype dtype, int64_t count, const char *what) {
    int64_t first = count > MOST_CHECKED ? count - MOST_CHECKED : 0, some = count - first;
    const char *from = (const char *)block + (size_t)first * dr_dtype_size(dtype);
    void *host = NULL;
    DR_TRY(dr_allocate((size_t)some * sizeof(float), "results", &host));
    dr_status status = dr_backend_download_as(backend, host, DR_F32, from, dtype, some);
    const float *values = host;
    for (int64_t i = 0; i < some && status == DR_OK; i++)
        if (!isfinite(values[i]))
            status = dr_fail(DR_ERROR_NUMERIC, "element %lld of %s is not finite", (long long)(first + i), what);
    dr_release(host);
    return status;
}
