/* RMS norm and L2 norm: rows in DR_CPU_PARTS parts, each with a sum of the weight's gradient of its own. */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"
#include "base/error.h"

#include <string.h>

/* The end of the vectors from `vector` on, at most `end`, whose gates lie one behind the other. */
static int64_t dense_until(const dr_rms_norm *norm, int64_t vector, int64_t end) {
    if (norm->gate_row == 0) return end;
    const int64_t next = (vector / norm->gate_vectors + 1) * norm->gate_vectors;
    return next < end ? next : end;
}

dr_status dr_cpu_rms_norm_forward(dr_backend *backend, const dr_rms_norm *norm, const void *x, const void *weight,
                                  const void *gate, void *y) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    const int64_t groups = norm->groups > 0 ? norm->groups : 1;
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, DR_CPU_PARTS, norm->rows * norm->dim))
    for (int part = 0; part < DR_CPU_PARTS; part++) {
        int64_t begin = dr_cpu_part(norm->rows / groups, part, DR_CPU_PARTS) * groups;
        int64_t end = dr_cpu_part(norm->rows / groups, part + 1, DR_CPU_PARTS) * groups;
        for (int64_t until; begin < end; begin = until) {
            const int64_t at = begin * norm->dim;
            until = dense_until(norm, begin, end);
            kernels->rms_norm_forward(norm, until - begin, (const float *)x + at, weight,
                                      gate ? (const float *)gate + dr_rms_norm_gate_at(norm, begin) : NULL, (float *)y + at);
        }
    }
    return DR_OK;
}

dr_status dr_cpu_rms_norm_backward(dr_backend *backend, const dr_rms_norm *norm, const void *x, const void *weight,
                                   const void *gate, const void *d_y, void *d_x, bool accumulate, void *d_weight,
                                   void *d_gate) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    const int64_t groups = norm->groups > 0 ? norm->groups : 1;
    dr_cpu_scratch *scratch = NULL;
    size_t bytes = (size_t)(groups * norm->dim) * sizeof(float);
    if (d_weight) DR_TRY(dr_cpu_scratch_take(backend, DR_CPU_PARTS * bytes, &scratch));
    float *sums = scratch ? (float *)scratch->memory : NULL; /* [DR_CPU_PARTS, groups, dim] */
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, DR_CPU_PARTS, norm->rows * norm->dim))
    for (int part = 0; part < DR_CPU_PARTS; part++) {
        int64_t begin = dr_cpu_part(norm->rows / groups, part, DR_CPU_PARTS) * groups;
        int64_t end = dr_cpu_part(norm->rows / groups, part + 1, DR_CPU_PARTS) * groups;
        float *sum = sums ? sums + part * groups * norm->dim : NULL;
        if (sum) memset(sum, 0, bytes);
        for (int64_t until; begin < end; begin = until) {
            const int64_t at = begin * norm->dim, by = dr_rms_norm_gate_at(norm, begin);
            until = dense_until(norm, begin, end);
            kernels->rms_norm_backward(norm, until - begin, (const float *)x + at, weight,
                                       gate ? (const float *)gate + by : NULL, (const float *)d_y + at,
                                       d_x ? (float *)d_x + at : NULL, accumulate, sum, d_gate ? (float *)d_gate + by : NULL);
        }
    }
    if (d_weight) dr_cpu_add_parts(sums, groups * norm->dim, d_weight);
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}

dr_status dr_cpu_l2_norm_forward(dr_backend *backend, const dr_l2_norm *norm, const void *x, void *y) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, DR_CPU_PARTS, norm->rows * norm->dim))
    for (int part = 0; part < DR_CPU_PARTS; part++) {
        int64_t begin = dr_cpu_part(norm->rows, part, DR_CPU_PARTS), end = dr_cpu_part(norm->rows, part + 1, DR_CPU_PARTS);
        kernels->l2_norm_forward(norm, end - begin, (const float *)x + begin * norm->dim, (float *)y + begin * norm->dim);
    }
    return DR_OK;
}

dr_status dr_cpu_l2_norm_backward(dr_backend *backend, const dr_l2_norm *norm, const void *x, const void *d_y, void *d_x) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, DR_CPU_PARTS, norm->rows * norm->dim))
    for (int part = 0; part < DR_CPU_PARTS; part++) {
        int64_t begin = dr_cpu_part(norm->rows, part, DR_CPU_PARTS), end = dr_cpu_part(norm->rows, part + 1, DR_CPU_PARTS);
        int64_t at = begin * norm->dim;
        kernels->l2_norm_backward(norm, end - begin, (const float *)x + at, (const float *)d_y + at, (float *)d_x + at);
    }
    return DR_OK;
}
