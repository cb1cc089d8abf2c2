/* What the backends in host memory share. */
#include "ops/host.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

void dr_host_free(dr_backend *backend, void *memory) {
    (void)backend;
    dr_release(memory);
}

void dr_host_zero(dr_backend *backend, void *memory, size_t bytes) {
    (void)backend;
    if (bytes > 0) memset(memory, 0, bytes); /* else memory may be NULL */
}

dr_status dr_host_copy(dr_backend *backend, void *to, const void *from, size_t bytes) {
    (void)backend;
    if (bytes > 0) memcpy(to, from, bytes); /* else either may be NULL */
    return DR_OK;
}

dr_status dr_host_sum_losses(dr_backend *backend, int64_t count, const double *loss, const uint8_t *hit, dr_loss_sum *sum) {
    (void)backend;
    for (int64_t i = 0; i < count; i++) {
        sum->loss += loss[i];
        sum->hits += hit[i];
    }
    return DR_OK;
}

dr_status dr_host_clip(dr_backend *backend, double clip, dr_control *control) {
    (void)backend;
    const double norm = sqrt(control->squares);
    control->norm = norm;
    if (!isfinite(norm)) {
        control->skipped++;
        control->skipped_in_row++;
        return DR_OK;
    }
    control->scale = clip > 0 && norm > clip ? clip / norm : 1;
    control->skipped_in_row = 0;
    control->updates++;
    return DR_OK;
}
