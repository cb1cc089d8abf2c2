/* The types of the two kinds on a backend. */
#include "ops/kind.h"

#include "ops/operations.h"
#include "ops/shapes.h"

/* Only float32 backends store vectors in another type. */
dr_dtype dr_kind_dtype(const dr_backend *backend, dr_kind kind) {
    return kind == DR_VECTOR && backend->ops->dtype == DR_F32 ? backend->storage : backend->ops->dtype;
}

size_t dr_kind_bytes(const dr_backend *backend, dr_kind kind, int64_t count) {
    return (size_t)count * dr_dtype_size(dr_kind_dtype(backend, kind));
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
