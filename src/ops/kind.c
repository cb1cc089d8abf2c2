/* The types of the two kinds on a backend. */
#include "ops/kind.h"

#include "base/error.h"
#include "base/weight_row.h"
#include "ops/operations.h"
#include "ops/shapes.h"

dr_dtype dr_kind_dtype(const dr_backend *backend, dr_kind kind) {
    return kind == DR_VECTOR ? backend->storage : backend->ops->dtype;
}

size_t dr_kind_bytes(const dr_backend *backend, dr_kind kind, int64_t count) {
    return (size_t)count * dr_dtype_size(dr_kind_dtype(backend, kind));
}

bool dr_has_copies(const dr_backend *backend) {
    return backend->storage != backend->ops->dtype;
}

bool dr_weights_apart(const dr_backend *backend) {
    return backend->ops->weights_store != NULL;
}

size_t dr_weight_bytes(const dr_backend *backend, int64_t rows, int64_t columns) {
    if (!dr_weights_apart(backend)) return dr_kind_bytes(backend, DR_VECTOR, rows * columns);
    return (size_t)rows * dr_weight_row_bytes(backend->weights, columns);
}

dr_status dr_weights_check(const dr_backend *backend, dr_dtype weights) {
    if (weights != DR_BF16 && weights != DR_I8)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "weights of backend \"%s\" are stored as BF16 or I8, or as %s without a choice, not as %s",
                       backend->ops->name, dr_dtype_name(backend->ops->dtype), dr_dtype_name(weights));
    if (dr_has_copies(backend))
        return dr_fail(DR_ERROR_UNSUPPORTED, "weights of type %s where vectors are %s: choose one of the two",
                       dr_dtype_name(weights), dr_dtype_name(backend->storage));
    return DR_OK;
}

dr_status dr_kind_download(dr_backend *backend, dr_kind kind, void *to, dr_dtype to_dtype, const void *from, int64_t count) {
    dr_dtype dtype = dr_kind_dtype(backend, kind);
    if (dtype == backend->ops->dtype) return backend->ops->download(backend, to, to_dtype, from, count);
    return backend->ops->download_as(backend, to, to_dtype, from, dtype, count);
}

dr_kind dr_input_kind(dr_input input) {
    return dr_input_is_vector(input) ? DR_VECTOR : DR_NUMBER;
}

dr_dtype dr_recurrence_output_dtype(const dr_backend *backend) {
    return !backend ? DR_F32 : dr_kind_dtype(backend, DR_VECTOR);
}

dr_dtype dr_recurrence_input_dtype(const dr_backend *backend, dr_input input) {
    return !backend ? DR_F32 : dr_kind_dtype(backend, dr_input_kind(input));
}
