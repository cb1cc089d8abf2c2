/* The norm of a gradient, AdamW, and the two operations of Muon. The squares are summed in double in blocks of fixed size,
 * DR_CPU_PARTS of them side by side. */
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

static void update_run(dr_backend *backend, const dr_adamw *adamw, const dr_control *control, const dr_adamw_run *run,
                       const float *gradient, float *parameter, float *m, float *v) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    int64_t parts = dr_cpu_threads(backend, run->count, run->count);
#pragma omp parallel for schedule(static) num_threads((int)parts)
    for (int64_t part = 0; part < parts; part++) {
        int64_t first = run->begin + dr_cpu_part(run->count, part, parts);
        int64_t count = run->begin + dr_cpu_part(run->count, part + 1, parts) - first;
        kernels->adamw(adamw, run, control, count, gradient + first, parameter + first, m + first, v + first);
    }
}

dr_status dr_cpu_adamw(dr_backend *backend, const dr_adamw *adamw, const dr_control *control, int runs, const dr_adamw_run *run,
                       const void *gradient, void *parameter, void *m, void *v) {
    if (control->skipped_in_row > 0) return DR_OK;
    for (int i = 0; i < runs; i++) update_run(backend, adamw, control, &run[i], gradient, parameter, m, v);
    return DR_OK;
}

dr_status dr_cpu_momentum(dr_backend *backend, double beta, const dr_control *control, int64_t count, const void *gradient_,
                          void *momentum_, void *y_) {
    if (control->skipped_in_row > 0) return DR_OK;
    const float factor = (float)beta, scale = (float)control->scale, *gradient = gradient_;
    float *momentum = momentum_, *y = y_;
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, count, count))
    for (int64_t i = 0; i < count; i++) {
        const float g = scale * gradient[i];
        momentum[i] = factor * momentum[i] + g;
        y[i] = g + factor * momentum[i];
    }
    return DR_OK;
}

dr_status dr_cpu_descend(dr_backend *backend, const dr_descent *descent, const dr_control *control, int64_t count,
                         const void *direction_, void *parameter_) {
    if (control->skipped_in_row > 0) return DR_OK;
    const float rate = (float)(descent->learning_rate * descent->factor), *direction = direction_;
    const float decay = (float)(descent->learning_rate * descent->weight_decay);
    float *parameter = parameter_;
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, count, count))
    for (int64_t i = 0; i < count; i++) parameter[i] -= rate * direction[i] + decay * parameter[i];
    return DR_OK;
}
