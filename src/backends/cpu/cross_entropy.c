/* The softmax loss of each row of logits and its gradient, rows shared out among threads. */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"

dr_status dr_cpu_cross_entropy(dr_backend *backend, int64_t count, int64_t vocabulary, const void *logits,
                               const int32_t *labels, double factor, double *loss, uint8_t *hit, void *d_logits) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, count, count *vocabulary))
    for (int64_t i = 0; i < count; i++)
        loss[i] = kernels->cross_entropy(vocabulary, (const float *)logits + i * vocabulary, labels[i], (float)factor, &hit[i],
                                         d_logits ? (float *)d_logits + i * vocabulary : NULL);
    return DR_OK;
}
