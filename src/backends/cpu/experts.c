/* Tokens by expert, the products of experts, and their weighted sums (ops/experts.h).
 *
 * The products of all experts are one list of tasks, each some columns of one expert's result: threads take them as they come,
 * since experts have unequally many tokens. A row's result depends on neither. */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"
#include "base/error.h"

#include <omp.h>
#include <string.h>

enum {
    COLUMN_BLOCK = 256,      /* columns of a task: the width that the kernel keeps in cache */
    COLUMN_STEP = 64,        /* or a multiple of this, which is one of the tiles' width on every instruction set */
    PRODUCT_GRAIN = 1 << 18, /* multiplications below which another thread costs more than it saves */
    TASKS_A_THREAD = 4
};

dr_status dr_cpu_experts_sort(dr_backend *backend, const dr_experts *of, const int32_t *index, int32_t *order, int32_t *place,
                              int32_t *begins) {
    (void)backend;
    const int64_t slots = of->rows * of->chosen;
    memset(begins, 0, (size_t)(of->experts + 1) * sizeof *begins);
    for (int64_t s = 0; s < slots; s++) begins[index[s] + 1]++;
    for (int64_t e = 0; e < of->experts; e++) begins[e + 1] += begins[e];
    for (int64_t s = 0; s < slots; s++) { /* begins[e] is where the next slot of expert e goes */
        place[s] = begins[index[s]]++;
        order[place[s]] = (int32_t)s;
    }
    memmove(begins + 1, begins, (size_t)of->experts * sizeof *begins);
    begins[0] = 0;
    return DR_OK;
}

dr_status dr_cpu_experts_gather_forward(dr_backend *backend, const dr_experts *of, int64_t dim, const int32_t *order,
                                        const void *x, void *y) {
    const int64_t slots = of->rows * of->chosen;
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, slots, slots *dim))
    for (int64_t i = 0; i < slots; i++)
        memcpy((float *)y + i * dim, (const float *)x + order[i] / of->chosen * dim, (size_t)dim * sizeof(float));
    return DR_OK;
}

dr_status dr_cpu_experts_gather_backward(dr_backend *backend, const dr_experts *of, int64_t dim, const int32_t *place,
                                         const void *d_y, void *d_x_, bool accumulate) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, of->rows, of->rows * of->chosen * dim))
    for (int64_t t = 0; t < of->rows; t++) {
        float *d_x = (float *)d_x_ + t * dim;
        if (!accumulate) memset(d_x, 0, (size_t)dim * sizeof *d_x);
        for (int64_t j = 0; j < of->chosen; j++)
            kernels->add(dim, 1, (const float *)d_y + place[t * of->chosen + j] * dim, d_x);
    }
    return DR_OK;
}

dr_status dr_cpu_experts_combine_forward(dr_backend *backend, const dr_experts *of, int64_t dim, const int32_t *place,
                                         const void *weights, const void *x, void *y_, bool accumulate) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, of->rows, of->rows * of->chosen * dim))
    for (int64_t t = 0; t < of->rows; t++) {
        float *y = (float *)y_ + t * dim;
        if (!accumulate) memset(y, 0, (size_t)dim * sizeof *y);
        for (int64_t s = t * of->chosen; s < (t + 1) * of->chosen; s++)
            kernels->add(dim, ((const float *)weights)[s], (const float *)x + place[s] * dim, y);
    }
    return DR_OK;
}

dr_status dr_cpu_experts_combine_backward(dr_backend *backend, const dr_experts *of, int64_t dim, const int32_t *place,
                                          const void *weights, const void *x, const void *d_y, void *d_weights, void *d_x) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    const int64_t slots = of->rows * of->chosen;
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, slots, slots *dim))
    for (int64_t s = 0; s < slots; s++)
        kernels->scale_backward(1, dim, (const float *)weights + s, (const float *)x + place[s] * dim,
                                (const float *)d_y + s / of->chosen * dim, d_weights ? (float *)d_weights + s : NULL,
                                d_x ? (float *)d_x + place[s] * dim : NULL, false);
    return DR_OK;
}

/* ---- products -------------------------------------------------------------------------------------------------------- */

/* The product of one expert, whose rows of x, y and their gradients are begin .. end - 1. */
typedef dr_cpu_product (*product_of)(const void *context, int64_t expert, int64_t begin, int64_t end);

/* Products of n columns each; work: multiplications of all. */
static dr_status multiply(dr_backend *backend, const dr_experts *of, const int32_t *begins, int64_t n, double work,
                          product_of product, const void *context) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    const int team = work < PRODUCT_GRAIN ? 1 : dr_cpu_team(backend->threads);
    int64_t width = of->experts * n / (TASKS_A_THREAD * team) / COLUMN_STEP * COLUMN_STEP;
    width = width < COLUMN_STEP ? COLUMN_STEP : width > COLUMN_BLOCK ? COLUMN_BLOCK : width;
    const int64_t across = (n + width - 1) / width;
    dr_cpu_scratch *scratch;
    DR_TRY(dr_cpu_scratch_take(backend, (size_t)team * DR_CPU_PRODUCT_SPACE * sizeof(float), &scratch));
#pragma omp parallel for schedule(dynamic, 1) num_threads(team)
    for (int64_t task = 0; task < of->experts * across; task++) {
        const int64_t expert = task / across, column = task % across * width;
        if (begins[expert] == begins[expert + 1]) continue;
        dr_cpu_product p = product(context, expert, begins[expert], begins[expert + 1]);
        p.space = (float *)scratch->memory + omp_get_thread_num() * DR_CPU_PRODUCT_SPACE;
        kernels->product(&p, 0, p.m, column, column + width < n ? column + width : n);
    }
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}

typedef struct {
    int64_t in, out;
    const float *x, *weight, *d_y;
    float *y, *d_x, *d_weight;
    bool accumulate;
} linear;

static dr_cpu_product product_y(const void *context, int64_t expert, int64_t begin, int64_t end) {
    const linear *l = context;
    return (dr_cpu_product){.m = end - begin,
                            .n = l->out,
                            .k = l->in,
                            .a = l->x + begin * l->in,
                            .a_row = l->in,
                            .a_step = 1,
                            .b = l->weight + expert * l->out * l->in,
                            .b_step = 1,
                            .b_column = l->in,
                            .c = l->y + begin * l->out,
                            .c_row = l->out};
}

static dr_cpu_product product_d_x(const void *context, int64_t expert, int64_t begin, int64_t end) {
    const linear *l = context;
    return (dr_cpu_product){.m = end - begin,
                            .n = l->in,
                            .k = l->out,
                            .a = l->d_y + begin * l->out,
                            .a_row = l->out,
                            .a_step = 1,
                            .b = l->weight + expert * l->out * l->in,
                            .b_step = l->in,
                            .b_column = 1,
                            .c = l->d_x + begin * l->in,
                            .c_row = l->in,
                            .accumulate = l->accumulate};
}

static dr_cpu_product product_d_weight(const void *context, int64_t expert, int64_t begin, int64_t end) {
    const linear *l = context;
    return (dr_cpu_product){.m = l->out,
                            .n = l->in,
                            .k = end - begin,
                            .a = l->d_y + begin * l->out,
                            .a_row = 1,
                            .a_step = l->out,
                            .b = l->x + begin * l->in,
                            .b_step = l->in,
                            .b_column = 1,
                            .c = l->d_weight + expert * l->out * l->in,
                            .c_row = l->in,
                            .accumulate = true};
}

static double work_of(const dr_experts *of, int64_t in, int64_t out) {
    return (double)(of->rows * of->chosen) * (double)in * (double)out;
}

dr_status dr_cpu_experts_linear_forward(dr_backend *backend, const dr_experts *of, int64_t in, int64_t out,
                                        const int32_t *begins, const void *x, const void *weight, void *y) {
    const linear l = {.in = in, .out = out, .x = x, .weight = weight, .y = y};
    return multiply(backend, of, begins, out, work_of(of, in, out), product_y, &l);
}

dr_status dr_cpu_experts_linear_backward(dr_backend *backend, const dr_experts *of, int64_t in, int64_t out,
                                         const int32_t *begins, const void *x, const void *weight, const void *d_y, void *d_x,
                                         bool accumulate, void *d_weight) {
    const linear l = {in, out, x, weight, d_y, NULL, d_x, d_weight, accumulate};
    if (d_x) DR_TRY(multiply(backend, of, begins, in, work_of(of, in, out), product_d_x, &l));
    if (d_weight) DR_TRY(multiply(backend, of, begins, in, work_of(of, in, out), product_d_weight, &l));
    return DR_OK;
}
