/* The norm of a gradient and AdamW. The squares are summed in double in blocks of fixed size, DR_CPU_PARTS of them side by
 * side. */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"

dr_status dr_cpu_sum_squares(dr_backend *backend, int64_t count, const void *x, dr_control *control) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    double sums[DR_CPU_PARTS], sum = 0;
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, DR_CPU_PARTS, count))
    for (int part = 0; part < DR_CPU_PARTS; part++) {
        int64_t first = dr_cpu_part(count, part, DR_CPU_PARTS), last = dr_cpu_part(count, part + 1, DR_CPU_PARTS);
        sums[part] = kernels->sum_squares(last - first, (const float *)x + first);
    }
    for (int part = 0; part < DR_CPU_PARTS; part++) sum += sums[part];
    control->squares = sum;
    return DR_OK;
}

dr_status dr_cpu_adamw(dr_backend *backend, const dr_adamw *adamw, const dr_control *control, int64_t count,
                       const void *gradient, void *parameter, void *m, void *v) {
    if (control->skipped_in_row > 0) return DR_OK;
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    int64_t parts = dr_cpu_threads(backend, count, count);
#pragma omp parallel for schedule(static) num_threads((int)parts)
    for (int64_t part = 0; part < parts; part++) {
        int64_t first = dr_cpu_part(count, part, parts), last = dr_cpu_part(count, part + 1, parts);
        kernels->adamw(adamw, control, last - first, (const float *)gradient + first, (float *)parameter + first,
                       (float *)m + first, (float *)v + first);
    }
    return DR_OK;
}
