/* Linear layers, whole and by groups: y = x W^T + b, d_x = d_y W, d_W += d_y^T x, d_b += column sums of d_y.
 *
 * All products go to one kernel (isa/product.c) in which an element of the result does not depend on what is computed beside
 * it, so that the cut into tasks may follow the number of threads: first blocks of columns, since B is copied once for each
 * block of columns, then, where those do not come out even, blocks of rows. */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"
#include "base/error.h"

#include <omp.h>

enum {
    COLUMN_BLOCK = 256,      /* the width that the kernel keeps in cache, and a multiple of its tiles */
    COLUMN_STEP = 32,        /* a multiple of the tiles' width on every instruction set */
    ROW_STEP = 12,           /* a multiple of their height */
    PRODUCT_GRAIN = 1 << 18, /* multiplications below which another thread costs more than it saves */
};

static int64_t blocks_of(int64_t count, int64_t block) {
    return (count + block - 1) / block;
}

static int64_t round_up(int64_t value, int64_t step) {
    return blocks_of(value, step) * step;
}

/* groups products that differ by fixed steps in A, B and C */
static dr_status multiply(dr_backend *backend, const dr_cpu_product *p, int64_t groups, int64_t a_group, int64_t b_group,
                          int64_t c_group) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    double work = (double)(p->m * groups) * (double)p->n * (double)p->k;
    const int team = work < PRODUCT_GRAIN ? 1 : dr_cpu_team(backend->threads);
    int64_t threads = work / PRODUCT_GRAIN < team ? (int64_t)(work / PRODUCT_GRAIN) + 1 : team; /* that have enough to do */
    int64_t width = round_up(blocks_of(p->n, threads), COLUMN_STEP);
    if (width > COLUMN_BLOCK) width = COLUMN_BLOCK;
    int64_t across = blocks_of(p->n, width), height = p->m;
    if (across * groups % threads != 0) height = round_up(blocks_of(p->m, threads), ROW_STEP);
    int64_t down = height > 0 ? blocks_of(p->m, height) : 0, tasks = groups * across * down;
    dr_cpu_scratch *scratch;
    DR_TRY(dr_cpu_scratch_take(backend, (size_t)team * DR_CPU_PRODUCT_SPACE * sizeof(float), &scratch));
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t task = 0; task < tasks; task++) {
        int64_t group = task / (across * down), column = task / down % across * width, row = task % down * height;
        dr_cpu_product part = *p;
        part.space = (float *)scratch->memory + omp_get_thread_num() * DR_CPU_PRODUCT_SPACE;
        part.a += group * a_group;
        part.b += group * b_group;
        part.c += group * c_group;
        kernels->product(&part, row, row + height < p->m ? row + height : p->m, column,
                         column + width < p->n ? column + width : p->n);
    }
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}

/* The product of a panel: each member's columns as a product of their own has them, whose last few the kernel sums otherwise.
 * Blocks of columns end where a member's do; narrow members make small tasks, so threads take what is left. */
static dr_status multiply_members(dr_backend *backend, const dr_cpu_product *p, const dr_linear *linear) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    const double work = (double)p->m * (double)p->n * (double)p->k;
    const int team = work < PRODUCT_GRAIN ? 1 : dr_cpu_team(backend->threads);
    const int64_t height = team > 1 ? round_up(blocks_of(p->m, 2), ROW_STEP) : p->m;
    const int64_t down = height > 0 ? blocks_of(p->m, height) : 0;
    int64_t tasks = 0;
    for (int i = 0; i < linear->members; i++) tasks += down * blocks_of(linear->columns[i], COLUMN_BLOCK);
    dr_cpu_scratch *scratch;
    DR_TRY(dr_cpu_scratch_take(backend, (size_t)team * DR_CPU_PRODUCT_SPACE * sizeof(float), &scratch));
#pragma omp parallel for schedule(dynamic) num_threads(team)
    for (int64_t task = 0; task < tasks; task++) {
        int64_t block = task / down, row = task % down * height, first = 0;
        int member = 0;
        for (; block >= blocks_of(linear->columns[member], COLUMN_BLOCK); first += linear->columns[member++])
            block -= blocks_of(linear->columns[member], COLUMN_BLOCK);
        dr_cpu_product part = *p;
        part.space = (float *)scratch->memory + omp_get_thread_num() * DR_CPU_PRODUCT_SPACE;
        part.n = linear->columns[member];
        part.b += first * p->b_column;
        part.c += first;
        if (p->bias) part.bias += first;
        const int64_t column = block * COLUMN_BLOCK, end = column + COLUMN_BLOCK;
        kernels->product(&part, row, row + height < p->m ? row + height : p->m, column, end < part.n ? end : part.n);
    }
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}

dr_status dr_cpu_linear_forward(dr_backend *backend, const dr_linear *linear, const void *x, const void *weight,
                                const void *bias, void *y) {
    int64_t rows = linear->rows, in = linear->in, out = linear->out;
    dr_cpu_product p = {
        .m = rows, .n = out, .k = in, .a = x, .a_row = in, .a_step = 1, .b = weight, .b_step = 1, .b_column = in};
    p.c = y;
    p.c_row = out;
    p.bias = bias;
    return linear->members > 1 ? multiply_members(backend, &p, linear) : multiply(backend, &p, 1, 0, 0, 0);
}

/* d_bias [out] += sums of the columns of d_y [rows, out]: threads share the columns out; in double, since rows are many */
static void add_columns(const dr_backend *backend, int64_t rows, int64_t out, const float *d_y, float *d_bias) {
    enum { BLOCK = 32 };
    int64_t blocks = blocks_of(out, BLOCK);
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, blocks, rows *out))
    for (int64_t b = 0; b < blocks; b++) {
        double sum[BLOCK] = {0};
        int64_t first = b * BLOCK, n = out - first < BLOCK ? out - first : BLOCK;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < n; c++) sum[c] += (double)d_y[r * out + first + c];
        for (int64_t c = 0; c < n; c++) d_bias[first + c] += (float)sum[c];
    }
}

dr_status dr_cpu_linear_backward(dr_backend *backend, const dr_linear *linear, const void *x, const void *weight,
                                 const void *d_y, void *d_x, bool accumulate, void *d_weight, void *d_bias) {
    int64_t rows = linear->rows, in = linear->in, out = linear->out;
    if (d_x) {
        dr_cpu_product p = {.m = rows, .n = in, .k = out, .a = d_y, .a_row = out, .a_step = 1, .b = weight, .b_step = in};
        p.b_column = 1;
        p.c = d_x;
        p.c_row = in;
        p.accumulate = accumulate;
        DR_TRY(multiply(backend, &p, 1, 0, 0, 0));
    }
    if (d_weight) {
        dr_cpu_product p = {.m = out, .n = in, .k = rows, .a = d_y, .a_row = 1, .a_step = out, .b = x, .b_step = in};
        p.b_column = 1;
        p.c = d_weight;
        p.c_row = in;
        p.accumulate = true;
        DR_TRY(multiply(backend, &p, 1, 0, 0, 0));
    }
    if (d_bias) add_columns(backend, rows, out, d_y, d_bias);
    return DR_OK;
}

dr_status dr_cpu_grouped_linear_forward(dr_backend *backend, const dr_grouped_linear *linear, const void *x, const void *weight,
                                        void *y) {
    int64_t groups = linear->groups, in = linear->in, out = linear->out;
    dr_cpu_product p = {.m = linear->rows, .n = out, .k = in, .a = x, .a_row = groups * in, .a_step = 1, .b = weight};
    p.b_step = 1;
    p.b_column = in;
    p.c = y;
    p.c_row = groups * out;
    return multiply(backend, &p, groups, in, out * in, out);
}

dr_status dr_cpu_grouped_linear_backward(dr_backend *backend, const dr_grouped_linear *linear, const void *x,
                                         const void *weight, const void *d_y, void *d_x, void *d_weight) {
    int64_t rows = linear->rows, groups = linear->groups, in = linear->in, out = linear->out;
    if (d_x) {
        dr_cpu_product p = {.m = rows, .n = in, .k = out, .a = d_y, .a_row = groups * out, .a_step = 1, .b = weight};
        p.b_step = in;
        p.b_column = 1;
        p.c = d_x;
        p.c_row = groups * in;
        DR_TRY(multiply(backend, &p, groups, out, out * in, in));
    }
    if (d_weight) {
        dr_cpu_product p = {.m = out, .n = in, .k = rows, .a = d_y, .a_row = 1, .a_step = groups * out, .b = x};
        p.b_step = groups * in;
        p.b_column = 1;
        p.c = d_weight;
        p.c_row = in;
        p.accumulate = true;
        DR_TRY(multiply(backend, &p, groups, out, in, out * in));
    }
    return DR_OK;
}
