/* Moving tensors of a file into a backend and measuring what comes back.
 *
 * Values go through double both ways: exact for float32 and float64, and a file's data need not be aligned. */
#include "verify/measure.h"

#include "base/error.h"
#include "base/memory.h"
#include "formats/safetensors.h"

#include <math.h>
#include <stdio.h>

void dr_device_free(dr_device_memory *memory) {
    for (int i = 0; i < memory->count; i++) dr_backend_free(memory->backend, memory->block[i]);
    memory->count = 0;
}

dr_status dr_device_bytes(dr_device_memory *memory, size_t bytes, void **block) {
    if (memory->count == DR_DEVICE_BLOCKS)
        return dr_fail(DR_ERROR_MEMORY, "a case needs more than %d blocks", DR_DEVICE_BLOCKS);
    DR_TRY(dr_backend_allocate(memory->backend, bytes, block));
    memory->block[memory->count++] = *block;
    return DR_OK;
}

dr_status dr_device_zero(dr_device_memory *memory, int64_t count, void **block) {
    size_t bytes = (size_t)count * dr_dtype_size(dr_backend_dtype(memory->backend));
    DR_TRY(dr_device_bytes(memory, bytes, block));
    dr_backend_zero(memory->backend, *block, bytes);
    return DR_OK;
}

dr_status dr_device_unset(dr_device_memory *memory, int64_t count, void **block) {
    double nan = NAN;
    dr_tensor unset = {.dtype = DR_F64, .data = &nan};
    return dr_device_fill(memory, &unset, count, block);
}

dr_status dr_device_fill(dr_device_memory *memory, const dr_tensor *tensor, int64_t count, void **block) {
    void *host = NULL;
    DR_TRY(dr_device_bytes(memory, (size_t)count * dr_dtype_size(dr_backend_dtype(memory->backend)), block));
    DR_TRY(dr_allocate((size_t)count * sizeof(double), "a tensor", &host));
    double *values = host;
    int64_t each = count > 0 ? count / dr_tensor_count(tensor) : 1;
    for (int64_t i = 0; i < count; i++) values[i] = dr_tensor_element(tensor, i / each);
    dr_status status = dr_backend_upload(memory->backend, *block, values, DR_F64, count);
    dr_release(host);
    return status;
}

void dr_measurement_start(dr_measurement *measurement) {
    *measurement = (dr_measurement){.forward = {.error = -1}, .backward = {.error = -1}};
}

void dr_measure(const double *actual, const dr_tensor *expected, const char *prefix, const char *name, dr_worst *worst) {
    int64_t count = dr_tensor_count(expected);
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        double b = dr_tensor_element(expected, i);
        difference += (actual[i] - b) * (actual[i] - b);
        norm += b * b;
    }
    double error = sqrt(difference) / fmax(sqrt(norm), 1e-6 * sqrt((double)count));
    if (count == 0) error = 0;
    if (!isfinite(difference) || !isfinite(norm)) error = INFINITY;
    if (error <= worst->error) return;
    worst->error = error;
    snprintf(worst->tensor, sizeof worst->tensor, "%s%s", prefix, name);
}

dr_status dr_measure_block(dr_backend *backend, const void *actual, const dr_tensor *expected, const char *prefix,
                           const char *name, dr_worst *worst) {
    return dr_measure_sums(backend, actual, dr_tensor_count(expected), expected, prefix, name, worst);
}

dr_status dr_measure_sums(dr_backend *backend, const void *actual, int64_t count, const dr_tensor *expected, const char *prefix,
                          const char *name, dr_worst *worst) {
    void *host = NULL;
    DR_TRY(dr_allocate((size_t)count * sizeof(double), "a tensor", &host));
    dr_status status = dr_backend_download(backend, host, DR_F64, actual, count);
    double *values = host;
    int64_t sums = dr_tensor_count(expected), each = sums > 0 ? count / sums : 1;
    for (int64_t i = 0; each > 1 && i < sums; i++) {
        double sum = 0;
        for (int64_t j = 0; j < each; j++) sum += values[i * each + j];
        values[i] = sum; /* i <= i each: read before it is written */
    }
    if (status == DR_OK) dr_measure(values, expected, prefix, name, worst);
    dr_release(host);
    return status;
}
