/* The operations that read weights, where these are stored in 16 or 8 bits (isa/narrow.c). They are only read: gradients of
 * weights there are none.
 *
 * An element of a result depends on one row of weights and one of x, so that the cut into tasks follows the number of threads.
 */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"
#include "base/error.h"

#include <omp.h>
#include <string.h>

enum {
    COLUMN_BLOCK = 256,      /* of a task: what a thread widens stays in its cache */
    COLUMN_STEP = 32,        /* the panel of the kernel */
    PRODUCT_GRAIN = 1 << 17, /* multiplications below which another thread costs more than it saves */
    TASKS_A_THREAD = 4
};

static int64_t blocks_of(int64_t count, int64_t block) {
    return (count + block - 1) / block;
}

static const char *row_of(const dr_backend *backend, const void *weight, int64_t row, int64_t columns) {
    return (const char *)weight + dr_weight_bytes(backend, row, columns);
}

/* Threads that have enough to do. */
static int team_of(const dr_backend *backend, int64_t rows, int64_t in, int64_t out) {
    const double work = (double)rows * (double)in * (double)out;
    const int team = work < PRODUCT_GRAIN ? 1 : dr_cpu_team(backend->threads);
    return work / PRODUCT_GRAIN < team ? (int)(work / PRODUCT_GRAIN) + 1 : team;
}

/* groups products of `out` columns that differ by fixed steps */
static dr_status multiply(dr_backend *backend, const dr_cpu_narrow *p, int64_t out, int64_t groups) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    const int team = team_of(backend, p->rows * groups, p->in, out);
    int64_t width = blocks_of(blocks_of(out, team), COLUMN_STEP) * COLUMN_STEP;
    if (p->rows > 1 && width > COLUMN_BLOCK) width = COLUMN_BLOCK; /* with one row a thread reads on and on */
    const int64_t across = blocks_of(out, width), tasks = groups * across;
    dr_cpu_scratch *scratch;
    DR_TRY(dr_cpu_scratch_take(backend, (size_t)team * DR_CPU_PRODUCT_SPACE * sizeof(float), &scratch));
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t task = 0; task < tasks; task++) {
        const int64_t group = task / across, column = task % across * width;
        dr_cpu_narrow part = *p;
        part.space = (float *)scratch->memory + omp_get_thread_num() * DR_CPU_PRODUCT_SPACE;
        part.x += group * p->in;
        part.weight = row_of(backend, p->weight, group * out, p->in);
        part.y += group * out;
        kernels->narrow_product(&part, 0, p->rows, column, column + width < out ? column + width : out);
    }
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}

dr_status dr_cpu_narrow_linear_forward(dr_backend *backend, const dr_linear *linear, const void *x, const void *weight,
                                       const void *bias, void *y) {
    const dr_cpu_narrow p = {.type = backend->weights,
                             .rows = linear->rows,
                             .in = linear->in,
                             .x = x,
                             .x_row = linear->in,
                             .weight = weight,
                             .bias = bias,
                             .y = y,
                             .y_row = linear->out};
    return multiply(backend, &p, linear->out, 1);
}

dr_status dr_cpu_narrow_grouped_linear_forward(dr_backend *backend, const dr_grouped_linear *linear, const void *x,
                                               const void *weight, void *y) {
    const dr_cpu_narrow p = {.type = backend->weights,
                             .rows = linear->rows,
                             .in = linear->in,
                             .x = x,
                             .x_row = linear->groups * linear->in,
                             .weight = weight,
                             .y = y,
                             .y_row = linear->groups * linear->out};
    return multiply(backend, &p, linear->out, linear->groups);
}

/* Of what has a gradient of x alone, such as a head's queries on their way to latents. */
dr_status dr_cpu_narrow_linear_backward(dr_backend *backend, const dr_linear *linear, const void *x, const void *weight,
                                        const void *d_y, void *d_x, bool accumulate, void *d_weight, void *d_bias) {
    (void)x;
    if (d_weight || d_bias)
        return dr_fail(DR_ERROR_UNSUPPORTED, "weights of type %s have no gradient: open the backend without a type of weights",
                       dr_dtype_name(backend->weights));
    if (!d_x) return DR_OK;
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    const dr_cpu_narrow p = {.type = backend->weights,
                             .rows = linear->rows,
                             .in = linear->in,
                             .x = d_y,
                             .x_row = linear->out,
                             .weight = weight,
                             .y = d_x,
                             .y_row = linear->in,
                             .accumulate = accumulate};
    const int64_t across = blocks_of(linear->in, COLUMN_BLOCK), tasks = linear->rows * across;
#pragma omp parallel for schedule(static) num_threads(team_of(backend, linear->rows, linear->in, linear->out))
    for (int64_t task = 0; task < tasks; task++) {
        const int64_t row = task / across, column = task % across * COLUMN_BLOCK, end = column + COLUMN_BLOCK;
        kernels->narrow_transposed(&p, linear->out, row, row + 1, column, end < linear->in ? end : linear->in);
    }
    return DR_OK;
}

dr_status dr_cpu_narrow_embedding_forward(dr_backend *backend, int64_t rows, int64_t dim, const int32_t *ids, const void *table,
                                          void *y) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, rows, rows *dim))
    for (int64_t r = 0; r < rows; r++)
        kernels->narrow_widen(backend->weights, dim, row_of(backend, table, ids[r], dim), (float *)y + r * dim);
    return DR_OK;
}

dr_status dr_cpu_narrow_experts_linear_forward(dr_backend *backend, const dr_experts *of, int64_t in, int64_t out,
                                               const int32_t *begins, const void *x, const void *weight, void *y) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    const int team = team_of(backend, of->rows * of->chosen, in, out);
    int64_t width = of->experts * out / (TASKS_A_THREAD * team) / COLUMN_STEP * COLUMN_STEP;
    width = width < COLUMN_STEP ? COLUMN_STEP : width > COLUMN_BLOCK ? COLUMN_BLOCK : width;
    const int64_t across = blocks_of(out, width);
    dr_cpu_scratch *scratch;
    DR_TRY(dr_cpu_scratch_take(backend, (size_t)team * DR_CPU_PRODUCT_SPACE * sizeof(float), &scratch));
#pragma omp parallel for schedule(dynamic, 1) num_threads(team)
    for (int64_t task = 0; task < of->experts * across; task++) {
        const int64_t expert = task / across, column = task % across * width, begin = begins[expert];
        if (begin == begins[expert + 1]) continue;
        const dr_cpu_narrow p = {.type = backend->weights,
                                 .rows = begins[expert + 1] - begin,
                                 .in = in,
                                 .x = (const float *)x + begin * in,
                                 .x_row = in,
                                 .weight = row_of(backend, weight, expert * out, in),
                                 .y = (float *)y + begin * out,
                                 .y_row = out,
                                 .space = (float *)scratch->memory + omp_get_thread_num() * DR_CPU_PRODUCT_SPACE};
        kernels->narrow_product(&p, 0, p.rows, column, column + width < out ? column + width : out);
    }
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}
