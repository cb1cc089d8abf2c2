/* Adding, and picking rows by position. */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"

#include <string.h>

dr_status dr_cpu_add(dr_backend *backend, dr_kind kind, int64_t count, double factor, const void *x, void *y) {
    (void)kind; /* one type */
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    int64_t parts = dr_cpu_threads(backend, count, count);
#pragma omp parallel for schedule(static) num_threads((int)parts)
    for (int64_t part = 0; part < parts; part++) {
        int64_t first = dr_cpu_part(count, part, parts), last = dr_cpu_part(count, part + 1, parts);
        kernels->add(last - first, (float)factor, (const float *)x + first, (float *)y + first);
    }
    return DR_OK;
}

dr_status dr_cpu_rows_gather(dr_backend *backend, int64_t count, int64_t dim, const int64_t *positions, const void *x_,
                             void *y_) {
    const float *x = x_;
    float *y = y_;
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, count, count *dim))
    for (int64_t i = 0; i < count; i++) memcpy(y + i * dim, x + positions[i] * dim, (size_t)dim * sizeof *y);
    return DR_OK;
}

dr_status dr_cpu_rows_scatter(dr_backend *backend, int64_t rows, int64_t count, int64_t dim, const int64_t *positions,
                              const void *d_y_, void *d_x_) {
    const float *d_y = d_y_;
    float *d_x = d_x_;
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, count + 1, rows * dim))
    for (int64_t i = 0; i <= count; i++) {
        /* the zero rows before each position, and behind the last */
        int64_t from = i == 0 ? 0 : positions[i - 1] + 1, to = i == count ? rows : positions[i];
        memset(d_x + from * dim, 0, (size_t)((to - from) * dim) * sizeof *d_x);
        if (i < count) memcpy(d_x + to * dim, d_y + i * dim, (size_t)dim * sizeof *d_x);
    }
    return DR_OK;
}
