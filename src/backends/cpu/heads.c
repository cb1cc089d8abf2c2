/* One factor a head. A factor that all rows share is read row by row; its gradient is summed over rows in DR_CPU_PARTS parts.
 * And heads copied from and to parts of wider rows. */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"
#include "base/error.h"

#include <string.h>

dr_status dr_cpu_scale_heads_forward(dr_backend *backend, int64_t rows, int64_t heads, int64_t dim, bool shared,
                                     const void *factor, const void *x, void *y, bool accumulate) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, rows, rows *heads *dim))
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = r * heads * dim;
        kernels->scale_forward(heads, dim, (const float *)factor + (shared ? 0 : r * heads), (const float *)x + at,
                               (float *)y + at, accumulate);
    }
    return DR_OK;
}

dr_status dr_cpu_scale_heads_backward(dr_backend *backend, int64_t rows, int64_t heads, int64_t dim, bool shared,
                                      const void *factor, const void *x, const void *d_y, void *d_factor, void *d_x,
                                      bool accumulate) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    dr_cpu_scratch *scratch = NULL;
    bool summed = shared && d_factor;
    if (summed) DR_TRY(dr_cpu_scratch_take(backend, (size_t)(2 * DR_CPU_PARTS * heads) * sizeof(float), &scratch));
    float *sums = scratch ? (float *)scratch->memory : NULL,
          *of_rows = sums ? sums + DR_CPU_PARTS * heads : NULL; /* both [DR_CPU_PARTS, heads] */
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, DR_CPU_PARTS, rows *heads *dim))
    for (int part = 0; part < DR_CPU_PARTS; part++) {
        float *sum = summed ? sums + part * heads : NULL, *of_row = summed ? of_rows + part * heads : NULL;
        if (sum) memset(sum, 0, (size_t)heads * sizeof *sum);
        for (int64_t r = dr_cpu_part(rows, part, DR_CPU_PARTS); r < dr_cpu_part(rows, part + 1, DR_CPU_PARTS); r++) {
            int64_t at = r * heads * dim;
            float *d_row = shared ? of_row : d_factor ? (float *)d_factor + r * heads : NULL;
            kernels->scale_backward(heads, dim, (const float *)factor + (shared ? 0 : r * heads), (const float *)x + at,
                                    (const float *)d_y + at, d_row, d_x ? (float *)d_x + at : NULL, accumulate);
            for (int64_t h = 0; sum && h < heads; h++) sum[h] += of_row[h];
        }
    }
    if (summed) dr_cpu_add_parts(sums, heads, d_factor);
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}

dr_status dr_cpu_copy_heads(dr_backend *backend, const dr_copy_heads *copy, const void *x_, void *y_) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, copy->rows, copy->rows * copy->heads * copy->dim))
    for (int64_t r = 0; r < copy->rows; r++)
        for (int64_t h = 0; h < copy->heads; h++) {
            const float *x = (const float *)x_ + r * copy->from_row + h * copy->from_head;
            float *y = (float *)y_ + r * copy->to_row + h * copy->to_head;
            if (copy->to_head == 0 && h > 0)
                kernels->add(copy->dim, 1, x, y);
            else
                memcpy(y, x, (size_t)copy->dim * sizeof *y);
        }
    return DR_OK;
}
