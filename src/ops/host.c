/* What the backends in host memory share. */
#include "ops/host.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/weight_row.h"

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

dr_status dr_host_weights_store(dr_backend *backend, int64_t rows, int64_t columns, const void *from, void *weight) {
    const size_t row = dr_weight_row_bytes(backend->weights, columns), item = dr_dtype_size(backend->ops->dtype);
    for (int64_t r = 0; r < rows; r++)
        dr_weight_row_store(backend->weights, columns, (const char *)from + (size_t)(r * columns) * item, backend->ops->dtype,
                            (char *)weight + (size_t)r * row);
    return DR_OK;
}

/* In the backend's own type first, which it then converts; every stored weight is exact in either type but the products of a
 * scale, which are rounded to single floats where the backend has these. */
dr_status dr_host_weights_load(dr_backend *backend, int64_t columns, int64_t first, int64_t count, const void *weight, void *to,
                               dr_dtype to_dtype) {
    enum { PIECE = 256 };
    const size_t row = dr_weight_row_bytes(backend->weights, columns);
    for (int64_t done = 0; done < count;) {
        double wide[PIECE];
        float narrow[PIECE];
        const int64_t at = (first + done) % columns, left = count - done < columns - at ? count - done : columns - at;
        const int64_t some = left < PIECE ? left : PIECE;
        dr_weight_row_load(backend->weights, (const char *)weight + (size_t)((first + done) / columns) * row, at, some, wide);
        for (int64_t i = 0; i < some; i++) narrow[i] = (float)wide[i];
        const void *own = backend->ops->dtype == DR_F64 ? (const void *)wide : narrow;
        DR_TRY(backend->ops->download(backend, (char *)to + (size_t)done * dr_dtype_size(to_dtype), to_dtype, own, some));
        done += some;
    }
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
