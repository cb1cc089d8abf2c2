/* Functions of single elements, alone and as factors, in equal parts for threads. */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"

static const float *at_or_null(const void *x, int64_t i) {
    return x ? (const float *)x + i : NULL;
}

dr_status dr_cpu_gated_forward(dr_backend *backend, dr_function function, int64_t count, const void *x, const void *gate,
                               void *y) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    const int64_t parts = dr_cpu_threads(backend, count, count);
#pragma omp parallel for schedule(static) num_threads((int)parts)
    for (int64_t part = 0; part < parts; part++) {
        const int64_t first = dr_cpu_part(count, part, parts), last = dr_cpu_part(count, part + 1, parts);
        kernels->gated_forward(function, last - first, at_or_null(x, first), (const float *)gate + first, (float *)y + first);
    }
    return DR_OK;
}

dr_status dr_cpu_gated_backward(dr_backend *backend, dr_function function, int64_t count, const void *x, const void *gate,
                                const void *d_y, void *d_x, void *d_gate) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    const int64_t parts = dr_cpu_threads(backend, count, count);
#pragma omp parallel for schedule(static) num_threads((int)parts)
    for (int64_t part = 0; part < parts; part++) {
        const int64_t first = dr_cpu_part(count, part, parts), last = dr_cpu_part(count, part + 1, parts);
        kernels->gated_backward(function, last - first, at_or_null(x, first), (const float *)gate + first,
                                (const float *)d_y + first, d_x ? (float *)d_x + first : NULL,
                                d_gate ? (float *)d_gate + first : NULL);
    }
    return DR_OK;
}

dr_status dr_cpu_apply_forward(dr_backend *backend, dr_function function, int64_t count, const void *x, void *y) {
    return dr_cpu_gated_forward(backend, function, count, NULL, x, y);
}

dr_status dr_cpu_apply_backward(dr_backend *backend, dr_function function, int64_t count, const void *x, const void *d_y,
                                void *d_x) {
    return dr_cpu_gated_backward(backend, function, count, NULL, x, d_y, NULL, d_x);
}

static float bounded(float factor, float low, float high, float x) {
    const float y = factor * x;
    return y < low ? low : y > high ? high : y;
}

dr_status dr_cpu_bound_forward(dr_backend *backend, const dr_bound *bound, int64_t count, const void *x, void *y) {
    const float factor = (float)bound->factor, low = (float)bound->low, high = (float)bound->high;
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, count, count))
    for (int64_t i = 0; i < count; i++) ((float *)y)[i] = bounded(factor, low, high, ((const float *)x)[i]);
    return DR_OK;
}

dr_status dr_cpu_bound_backward(dr_backend *backend, const dr_bound *bound, int64_t count, const void *x, const void *d_y,
                                void *d_x) {
    const float factor = (float)bound->factor, low = (float)bound->low, high = (float)bound->high;
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, count, count))
    for (int64_t i = 0; i < count; i++) {
        const float y = bounded(factor, low, high, ((const float *)x)[i]);
        ((float *)d_x)[i] = y == low || y == high ? 0 : factor * ((const float *)d_y)[i];
    }
    return DR_OK;
}
