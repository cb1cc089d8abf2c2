/* Layer norm, and division by the sum: rows in DR_CPU_PARTS parts, each with sums of the parameters' gradients of its own. */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"
#include "base/error.h"

#include <string.h>

dr_status dr_cpu_layer_norm_forward(dr_backend *backend, const dr_layer_norm *norm, const void *x, const void *weight,
                                    const void *bias, void *y) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    const int64_t width = norm->groups * norm->dim;
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, DR_CPU_PARTS, norm->rows *width))
    for (int part = 0; part < DR_CPU_PARTS; part++) {
        const int64_t begin = dr_cpu_part(norm->rows, part, DR_CPU_PARTS),
                      end = dr_cpu_part(norm->rows, part + 1, DR_CPU_PARTS);
        kernels->layer_norm_forward(norm, end - begin, (const float *)x + begin * width, weight, bias,
                                    (float *)y + begin * width);
    }
    return DR_OK;
}

dr_status dr_cpu_layer_norm_backward(dr_backend *backend, const dr_layer_norm *norm, const void *x, const void *weight,
                                     const void *d_y, void *d_x, bool accumulate, void *d_weight, void *d_bias) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    const int64_t width = norm->groups * norm->dim;
    dr_cpu_scratch *scratch;
    const size_t bytes = (size_t)(2 * DR_CPU_PARTS * width) * sizeof(float);
    DR_TRY(dr_cpu_scratch_take(backend, bytes, &scratch));
    memset(scratch->memory, 0, bytes);
    float *weight_sums = (float *)scratch->memory, *bias_sums = weight_sums + DR_CPU_PARTS * width; /* [DR_CPU_PARTS, width] */
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, DR_CPU_PARTS, norm->rows *width))
    for (int part = 0; part < DR_CPU_PARTS; part++) {
        const int64_t begin = dr_cpu_part(norm->rows, part, DR_CPU_PARTS),
                      end = dr_cpu_part(norm->rows, part + 1, DR_CPU_PARTS);
        kernels->layer_norm_backward(norm, end - begin, (const float *)x + begin * width, weight,
                                     (const float *)d_y + begin * width, d_x ? (float *)d_x + begin * width : NULL, accumulate,
                                     d_weight ? weight_sums + part * width : NULL, d_bias ? bias_sums + part * width : NULL);
    }
    if (d_weight) dr_cpu_add_parts(weight_sums, width, d_weight);
    if (d_bias) dr_cpu_add_parts(bias_sums, width, d_bias);
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}

dr_status dr_cpu_sum_norm_forward(dr_backend *backend, int64_t rows, int64_t dim, const void *x, void *y) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, DR_CPU_PARTS, rows *dim))
    for (int part = 0; part < DR_CPU_PARTS; part++) {
        const int64_t begin = dr_cpu_part(rows, part, DR_CPU_PARTS), end = dr_cpu_part(rows, part + 1, DR_CPU_PARTS);
        kernels->sum_norm_forward(end - begin, dim, (const float *)x + begin * dim, (float *)y + begin * dim);
    }
    return DR_OK;
}

dr_status dr_cpu_sum_norm_backward(dr_backend *backend, int64_t rows, int64_t dim, const void *x, const void *d_y, void *d_x) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, DR_CPU_PARTS, rows *dim))
    for (int part = 0; part < DR_CPU_PARTS; part++) {
        const int64_t begin = dr_cpu_part(rows, part, DR_CPU_PARTS), end = dr_cpu_part(rows, part + 1, DR_CPU_PARTS);
        kernels->sum_norm_backward(end - begin, dim, (const float *)x + begin * dim, (const float *)d_y + begin * dim,
                                   (float *)d_x + begin * dim);
    }
    return DR_OK;
}
