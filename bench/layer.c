/* The operations of a layer outside its large products, each against its memory traffic: y = a y + b over as many bytes a
 * second is what the machine gives. Traffic counts what is read once and what is written twice, for a store brings its line
 * into the cache first; parameters are left out. Prints a table, shares from the medians.
 *
 * Usage: layer ROWS [THREADS [REPEATS [ISA]]]      vectors of 1024 elements, eight heads where an operation has heads */
#include "base/clock.h"
#include "check/bench/limit.h"
#include "ops/operations.h"

#include <deltarule/backend.h>
#include <deltarule/status.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 1024, HEADS = 8, SIZE = DIM / HEADS, TENSORS = 6 };

typedef struct {
    dr_backend *backend;
    int64_t rows;
    float *x, *y, *z, *d_y, *d_x, *d_z; /* [rows, DIM], not negative */
    float *weight, *d_weight, *d_other; /* [rows, HEADS] or less */
    int32_t *ids;                       /* [rows] */
    double *loss;
    uint8_t *hit;
    dr_bench_item limit;
} bench;

/* What one run moves, in tensors: read, written (and read before). */
typedef struct {
    const char *name;
    int reads, writes, updates; /* updates: read and written in place */
    dr_status (*run)(const bench *);
} operation;

static dr_layout layout_of(const bench *b) {
    return (dr_layout){.rows = b->rows, .sequences = 1};
}

#define RUN(name, ...)                                                                                                         \
    static dr_status name(const bench *b) {                                                                                    \
        const dr_operations *o = b->backend->ops;                                                                              \
        return __VA_ARGS__;                                                                                                    \
    }
#define NORM                                                                                                                   \
    &(dr_rms_norm) {                                                                                                           \
        .rows = b->rows, .dim = DIM, .eps = 1e-6                                                                               \
    }
#define GATED                                                                                                                  \
    &(dr_rms_norm) {                                                                                                           \
        .rows = b->rows * HEADS, .dim = SIZE, .eps = 1e-6, .gate = DR_ACTIVATION_SILU                                          \
    }
#define LENGTH                                                                                                                 \
    &(dr_l2_norm) {                                                                                                            \
        .rows = b->rows * HEADS, .dim = SIZE, .eps = 1e-6                                                                      \
    }
#define CONV                                                                                                                   \
    &(dr_conv) {                                                                                                               \
        .layout = layout_of(b), .channels = DIM, .width = 4, .activation = DR_ACTIVATION_SILU                                  \
    }
#define GATE(k)                                                                                                                \
    &(dr_gate) {                                                                                                               \
        .kind = k, .rows = b->rows, .heads = HEADS, .dim = SIZE, .multiplier = 1, .lower_bound = -5                            \
    }
#define ROTARY                                                                                                                 \
    &(dr_rotary) {                                                                                                             \
        .layout = layout_of(b), .heads = HEADS, .dim = SIZE, .base = 10000                                                     \
    }
#define ADAMW                                                                                                                  \
    &(dr_adamw) {                                                                                                              \
        .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8                                                                               \
    }
#define WHOLE                                                                                                                  \
    &(dr_adamw_run) {                                                                                                          \
        .count = b->rows * DIM, .learning_rate = 1e-3                                                                          \
    }

RUN(norm, o->rms_norm_forward(b->backend, NORM, b->x, b->weight, NULL, b->y))
RUN(norm_back, o->rms_norm_backward(b->backend, NORM, b->x, b->weight, NULL, b->d_y, b->d_x, true, b->d_weight, NULL))
RUN(gated, o->rms_norm_forward(b->backend, GATED, b->x, b->weight, b->z, b->y))
RUN(gated_back, o->rms_norm_backward(b->backend, GATED, b->x, b->weight, b->z, b->d_y, b->d_x, false, b->d_weight, b->d_z))
RUN(length, o->l2_norm_forward(b->backend, LENGTH, b->x, b->y))
RUN(length_back, o->l2_norm_backward(b->backend, LENGTH, b->x, b->d_y, b->d_x))
RUN(conv, o->conv_forward(b->backend, CONV, b->x, b->weight, NULL, NULL, b->y, NULL))
RUN(conv_back, o->conv_backward(b->backend, CONV, b->x, b->weight, NULL, NULL, b->d_y, b->d_x, b->d_weight, NULL))
RUN(decay, o->gate_forward(b->backend, GATE(DR_GATE_LOG_DECAY), b->x, b->weight, b->weight, b->y))
RUN(decay_back, o->gate_backward(b->backend, GATE(DR_GATE_LOG_DECAY), b->x, b->weight, b->weight, b->d_y, b->d_x, false,
                                 b->d_weight, b->d_other))
RUN(sigmoid, o->gate_forward(b->backend, GATE(DR_GATE_SIGMOID), b->x, NULL, NULL, b->y))
RUN(sigmoid_back, o->gate_backward(b->backend, GATE(DR_GATE_SIGMOID), b->x, NULL, NULL, b->d_y, b->d_x, false, NULL, NULL))
RUN(swiglu, o->swiglu_forward(b->backend, b->rows *DIM, b->x, b->z, b->y))
RUN(swiglu_back, o->swiglu_backward(b->backend, b->rows *DIM, b->x, b->z, b->d_y, b->d_x, b->d_z))
RUN(add, o->add(b->backend, DR_VECTOR, b->rows *DIM, 1, b->x, b->y))
RUN(scale, o->scale_heads_forward(b->backend, b->rows, HEADS, SIZE, false, b->weight, b->x, b->y, false))
RUN(rotary, o->rotary(b->backend, ROTARY, b->y, false))
RUN(embedding, o->embedding_forward(b->backend, b->rows, DIM, b->ids, b->x, b->y))
RUN(loss, o->cross_entropy(b->backend, b->rows, DIM, b->x, b->ids, 1.0 / (double)b->rows, b->loss, b->hit, b->d_x))
RUN(adamw, o->adamw(b->backend, ADAMW, &(dr_control){.scale = 1, .updates = 10}, 1, WHOLE, b->d_y, b->d_x, b->z, b->d_z))

static const operation operations[] = {
    {"rms norm", 1, 1, 0, norm},
    {"  backward", 2, 0, 1, norm_back},
    {"gated norm", 2, 1, 0, gated},
    {"  backward", 3, 2, 0, gated_back},
    {"l2 norm", 1, 1, 0, length},
    {"  backward", 2, 1, 0, length_back},
    {"convolution", 1, 1, 0, conv},
    {"  backward", 2, 1, 0, conv_back},
    {"log decay", 1, 1, 0, decay},
    {"  backward", 2, 1, 0, decay_back},
    {"sigmoid", 1, 1, 0, sigmoid},
    {"  backward", 2, 1, 0, sigmoid_back},
    {"swiglu", 2, 1, 0, swiglu},
    {"  backward", 3, 2, 0, swiglu_back},
    {"add", 1, 0, 1, add},
    {"scale heads", 1, 1, 0, scale},
    {"rotary", 0, 0, 1, rotary},
    {"embedding", 1, 1, 0, embedding},
    {"loss, gradient", 1, 1, 0, loss},
    {"adamw", 1, 0, 3, adamw},
};
enum { OPERATIONS = sizeof operations / sizeof *operations };

static void must(dr_status status) {
    if (status == DR_OK) return;
    fprintf(stderr, "layer: %s\n", dr_last_error());
    exit(1);
}

/* which: an operation, or -1 for the limit */
static double seconds_of(const bench *b, int which, int64_t runs) {
    double start = dr_clock_now();
    for (int64_t i = 0; i < runs; i++) must(which < 0 ? b->limit.run(b->limit.context) : operations[which].run(b));
    return (dr_clock_now() - start) / (double)runs;
}

static void *take(dr_backend *backend, size_t bytes) {
    void *memory;
    must(dr_backend_allocate(backend, bytes, &memory));
    memset(memory, 0, bytes);
    return memory;
}

static bench create(int64_t rows, int threads, const char *isa, dr_bench_stream *stream) {
    bench b = {.rows = rows};
    must(dr_backend_open("cpu", &(dr_backend_options){.threads = threads, .isa = isa}, &b.backend));
    must(dr_bench_stream_create(b.backend->threads, rows * DIM, stream));
    dr_bench_stream_item(stream, &b.limit);
    float **tensor[TENSORS] = {&b.x, &b.y, &b.z, &b.d_y, &b.d_x, &b.d_z};
    for (int i = 0; i < TENSORS; i++) {
        *tensor[i] = take(b.backend, (size_t)(rows * DIM) * sizeof(float));
        for (int64_t j = 0; j < rows * DIM; j++) (*tensor[i])[j] = fabsf(sinf(0.1f * (float)j + (float)i));
    }
    const size_t parameters = (size_t)(rows > DIM ? rows : DIM) * HEADS * sizeof(float);
    b.weight = take(b.backend, parameters);
    b.d_weight = take(b.backend, parameters);
    b.d_other = take(b.backend, parameters);
    for (size_t i = 0; i < parameters / sizeof(float); i++) b.weight[i] = 0.5f;
    b.ids = take(b.backend, (size_t)rows * sizeof *b.ids);
    for (int64_t i = 0; i < rows; i++) b.ids[i] = (int32_t)(i * 37 % (rows < DIM ? rows : DIM));
    b.loss = take(b.backend, (size_t)rows * sizeof *b.loss);
    b.hit = take(b.backend, (size_t)rows);
    return b;
}

int main(int count, char **words) {
    const int64_t rows = count > 1 ? strtoll(words[1], NULL, 10) : 8192;
    const int threads = count > 2 ? atoi(words[2]) : 1, repeats = count > 3 ? atoi(words[3]) : 9;
    if (rows < 1 || threads < 1 || repeats < 1 || repeats > DR_BENCH_MOST_REPEATS) {
        fprintf(stderr, "usage: layer ROWS [THREADS [REPEATS [ISA]]], all at least 1\n");
        return 2;
    }
    dr_bench_stream stream;
    const bench b = create(rows, threads, count > 4 ? words[4] : NULL, &stream);
    static double seconds[OPERATIONS + 1][DR_BENCH_MOST_REPEATS];
    const int64_t runs = rows < 8192 ? 8192 / rows : 1;
    for (int n = 0; n < repeats; n++)
        for (int i = -1; i < OPERATIONS; i++) seconds[i + 1][n] = seconds_of(&b, i, runs);
    const double tensor = (double)(rows * DIM) * sizeof(float);
    const double limit = b.limit.amount / dr_bench_summary(seconds[0], repeats).median;
    printf("%s, %d threads, tensors of %.1f MB: y = a y + b moves %.1f GB/s\n", b.backend->isa, threads, tensor * 1e-6,
           limit * 1e-9);
    printf("%-16s %9s %9s %9s %7s\n", "operation", "MB", "ms", "GB/s", "share");
    for (int i = 0; i < OPERATIONS; i++) {
        const operation *o = &operations[i];
        const double bytes = tensor * (o->reads + 2 * o->writes + 2 * o->updates);
        const double median = dr_bench_summary(seconds[i + 1], repeats).median;
        printf("%-16s %9.1f %9.3f %9.1f %6.1f%%\n", o->name, bytes * 1e-6, median * 1e3, bytes / median * 1e-9,
               100 * bytes / median / limit);
    }
    return 0;
}
