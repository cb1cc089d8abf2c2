/* Softmax attention over depth, a part of the rows a task. The gradient of what all rows share is summed in DR_CPU_PARTS parts.
 */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"
#include "base/error.h"

#include <string.h>

/* memory: direction [dim], then parts [DR_CPU_PARTS, dim] of its gradient, zeros, where `backward` says so */
static dr_status prepare(dr_backend *backend, const dr_depth *depth, const float *weight, const float *query, bool backward,
                         dr_cpu_scratch **scratch) {
    const int64_t dim = depth->dim, parts = backward ? DR_CPU_PARTS : 0;
    DR_TRY(dr_cpu_scratch_take(backend, (size_t)((1 + parts) * dim) * sizeof(float), scratch));
    float *direction = (float *)(*scratch)->memory;
    for (int64_t i = 0; i < dim; i++) direction[i] = query[i] * weight[i];
    memset(direction + dim, 0, (size_t)(parts * dim) * sizeof(float));
    return DR_OK;
}

dr_status dr_cpu_depth_forward(dr_backend *backend, const dr_depth *depth, const void *const *x, const void *weight,
                               const void *query, void *y) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    dr_cpu_scratch *scratch;
    DR_TRY(prepare(backend, depth, weight, query, false, &scratch));
    const float *direction = (const float *)scratch->memory;
#pragma omp parallel for schedule(static)                                                                                      \
    num_threads(dr_cpu_threads(backend, DR_CPU_PARTS, depth->rows * depth->dim * depth->count))
    for (int part = 0; part < DR_CPU_PARTS; part++)
        kernels->depth_forward(depth, dr_cpu_part(depth->rows, part, DR_CPU_PARTS),
                               dr_cpu_part(depth->rows, part + 1, DR_CPU_PARTS), (const float *const *)x, direction, y);
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}

dr_status dr_cpu_depth_backward(dr_backend *backend, const dr_depth *depth, const void *const *x, const void *weight,
                                const void *query, const void *d_y, void *const *d_x, void *d_weight, void *d_query) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    const bool shared = d_weight || d_query;
    const int64_t dim = depth->dim;
    dr_cpu_scratch *scratch;
    DR_TRY(prepare(backend, depth, weight, query, shared, &scratch));
    float *direction = (float *)scratch->memory, *sums = direction + dim;
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, DR_CPU_PARTS, depth->rows *dim * depth->count))
    for (int part = 0; part < DR_CPU_PARTS; part++)
        kernels->depth_backward(depth, dr_cpu_part(depth->rows, part, DR_CPU_PARTS),
                                dr_cpu_part(depth->rows, part + 1, DR_CPU_PARTS), (const float *const *)x, direction, d_y,
                                (float *const *)d_x, shared ? sums + part * dim : NULL);
    for (int64_t i = 0; i < dim && shared; i++) {
        float sum = 0; /* of the direction's gradient */
        for (int part = 0; part < DR_CPU_PARTS; part++) sum += sums[part * dim + i];
        if (d_weight) ((float *)d_weight)[i] += sum * ((const float *)query)[i];
        if (d_query) ((float *)d_query)[i] += sum * ((const float *)weight)[i];
    }
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}
