/* Moving tensors of a file into a backend and measuring what comes back.
 *
 * Values go through double both ways: exact for float32 and float64, and a file's data need not be aligned. */
#include "check/verify/measure.h"

#include "base/error.h"
#include "base/half.h"
#include "base/memory.h"
#include "formats/safetensors.h"
#include "ops/kind.h"
#include <deltarule/recurrence.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

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
    size_t bytes = dr_kind_bytes(memory->backend, DR_NUMBER, count);
    DR_TRY(dr_device_bytes(memory, bytes, block));
    dr_backend_zero(memory->backend, *block, bytes);
    return DR_OK;
}

static double rounded(double value, dr_dtype dtype) {
    switch (dtype) {
    case DR_F16:
        return (double)dr_f16_to_float(dr_f16_from_float((float)value));
    case DR_BF16:
        return (double)dr_bf16_to_float(dr_bf16_from_float((float)value));
    default:
        return value;
    }
}

static void round_all(dr_dtype dtype, double *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) values[i] = rounded(values[i], dtype);
}

static bool holds(const dr_backend *backend, dr_dtype dtype) {
    return dtype == dr_recurrence_output_dtype(backend) || dtype == dr_backend_dtype(backend);
}

dr_status dr_device_put_as(dr_backend *backend, dr_dtype dtype, const double *values, int64_t count, void *block) {
    void *copy = NULL;
    if (holds(backend, dtype)) return dr_backend_upload_as(backend, block, dtype, values, DR_F64, count);
    DR_TRY(dr_allocate((size_t)count * sizeof(double), "a tensor", &copy));
    memcpy(copy, values, (size_t)count * sizeof(double));
    round_all(dtype, copy, count);
    dr_status status = dr_backend_upload(backend, block, copy, DR_F64, count);
    dr_release(copy);
    return status;
}

dr_status dr_device_get_as(dr_backend *backend, dr_dtype dtype, const void *block, int64_t count, double *values) {
    if (holds(backend, dtype)) return dr_backend_download_as(backend, values, DR_F64, block, dtype, count);
    DR_TRY(dr_backend_download(backend, values, DR_F64, block, count));
    round_all(dtype, values, count);
    return DR_OK;
}

dr_status dr_device_unset(dr_device_memory *memory, int64_t count, void **block) {
    return dr_device_unset_as(memory, dr_backend_dtype(memory->backend), count, block);
}

dr_status dr_device_unset_as(dr_device_memory *memory, dr_dtype dtype, int64_t count, void **block) {
    double nan = (double)NAN;
    dr_tensor unset = {.dtype = DR_F64, .data = &nan};
    return dr_device_fill_as(memory, dtype, &unset, count, block);
}

dr_status dr_device_fill(dr_device_memory *memory, const dr_tensor *tensor, int64_t count, void **block) {
    return dr_device_fill_as(memory, dr_backend_dtype(memory->backend), tensor, count, block);
}

void dr_tensor_repeat(const dr_tensor *tensor, int64_t count, double *values) {
    const int64_t each = count > 0 ? count / dr_tensor_count(tensor) : 1;
    for (int64_t i = 0; i < count; i++) values[i] = dr_tensor_element(tensor, i / each);
}

dr_status dr_device_fill_as(dr_device_memory *memory, dr_dtype dtype, const dr_tensor *tensor, int64_t count, void **block) {
    void *host = NULL;
    const dr_dtype held = holds(memory->backend, dtype) ? dtype : dr_backend_dtype(memory->backend);
    DR_TRY(dr_device_bytes(memory, (size_t)count * dr_dtype_size(held), block));
    DR_TRY(dr_allocate((size_t)count * sizeof(double), "a tensor", &host));
    dr_tensor_repeat(tensor, count, host);
    dr_status status = dr_device_put_as(memory->backend, dtype, host, count, *block);
    dr_release(host);
    return status;
}

/* The root mean square of the error over a unit in the last place at 1, of numbers whose logarithm is spread evenly: an error
 * spread evenly over half a unit to both sides, divided by 1 <= m < 2 with E[1 / m^2] = 3 / (8 ln 2). */
double dr_rounding_error(dr_dtype dtype) {
    const double part = sqrt(3 / (8 * log(2))) / sqrt(12);
    return dtype == DR_BF16 ? part * 0x1p-7 : dtype == DR_F16 ? part * 0x1p-10 : 0;
}

void dr_measurement_start(dr_measurement *measurement, double forward_tolerance, double backward_tolerance) {
    *measurement = (dr_measurement){.forward = {.error = -1, .tolerance = forward_tolerance},
                                    .backward = {.error = -1, .tolerance = backward_tolerance}};
}

/* What a tensor's error may be. */
static double allowed(const dr_worst *worst, const char *tensor) {
    for (int i = 0; worst->plain && i < worst->plain->count; i++)
        if (strcmp(worst->plain->of[i].tensor, tensor) == 0)
            return fmax(worst->tolerance, 2 * fmax(worst->least, worst->plain->of[i].error));
    return worst->tolerance;
}

static void keep(dr_errors *kept, const char *tensor, double error) {
    if (!kept || kept->count == DR_DEVICE_BLOCKS) return;
    snprintf(kept->of[kept->count].tensor, sizeof kept->of[0].tensor, "%s", tensor);
    kept->of[kept->count++].error = error;
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
    if (!isfinite(difference) || !isfinite(norm)) error = (double)INFINITY;
    char tensor[sizeof worst->tensor];
    snprintf(tensor, sizeof tensor, "%s%s", prefix, name);
    keep(worst->kept, tensor, error);
    const double excess = error / allowed(worst, tensor);
    if (worst->error >= 0 && excess <= worst->excess) return;
    worst->error = error;
    worst->excess = excess;
    memcpy(worst->tensor, tensor, sizeof tensor);
}

dr_status dr_measure_block(dr_backend *backend, const void *actual, const dr_tensor *expected, const char *prefix,
                           const char *name, dr_worst *worst) {
    return dr_measure_sums(backend, dr_backend_dtype(backend), actual, dr_tensor_count(expected), expected, prefix, name,
                           worst);
}

dr_status dr_measure_sums(dr_backend *backend, dr_dtype dtype, const void *actual, int64_t count, const dr_tensor *expected,
                          const char *prefix, const char *name, dr_worst *worst) {
    void *host = NULL;
    DR_TRY(dr_allocate((size_t)count * sizeof(double), "a tensor", &host));
    dr_status status = dr_device_get_as(backend, dtype, actual, count, host);
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
