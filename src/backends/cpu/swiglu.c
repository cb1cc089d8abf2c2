/* SwiGLU: y = silu(gate) up, in equal parts for threads. */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"

dr_status dr_cpu_swiglu_forward(dr_backend *backend, int64_t count, const void *gate, const void *up, void *y) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    int64_t parts = dr_cpu_threads(backend, count, count);
#pragma omp parallel for schedule(static) num_threads((int)parts)
    for (int64_t part = 0; part < parts; part++) {
        int64_t first = dr_cpu_part(count, part, parts), last = dr_cpu_part(count, part + 1, parts);
        kernels->swiglu_forward(last - first, (const float *)gate + first, (const float *)up + first, (float *)y + first);
    }
    return DR_OK;
}

dr_status dr_cpu_swiglu_backward(dr_backend *backend, int64_t count, const void *gate, const void *up, const void *d_y,
                                 void *d_gate, void *d_up) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    int64_t parts = dr_cpu_threads(backend, count, count);
#pragma omp parallel for schedule(static) num_threads((int)parts)
    for (int64_t part = 0; part < parts; part++) {
        int64_t first = dr_cpu_part(count, part, parts), last = dr_cpu_part(count, part + 1, parts);
        kernels->swiglu_backward(last - first, (const float *)gate + first, (const float *)up + first,
                                 (const float *)d_y + first, d_gate ? (float *)d_gate + first : NULL,
                                 d_up ? (float *)d_up + first : NULL);
    }
    return DR_OK;
}
