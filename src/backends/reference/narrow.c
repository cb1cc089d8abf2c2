/* The reference with weights stored in 16 or 8 bits: the specification of what such weights mean. Each operation that reads
 * weights widens them to double, exactly, and runs as it stands in the other files. */
#include "backends/reference/narrow.h"
#include "backends/reference/reference.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/weight_row.h"
#include "ops/host.h"

/* *wide [rows, columns], to be released */
static dr_status widen(const dr_backend *backend, const void *weight, int64_t rows, int64_t columns, double **wide) {
    const size_t row = dr_weight_row_bytes(backend->weights, columns);
    void *memory = NULL;
    DR_TRY(dr_allocate((size_t)(rows * columns + 1) * sizeof(double), "weights in double", &memory));
    *wide = memory;
    for (int64_t r = 0; r < rows; r++)
        dr_weight_row_load(backend->weights, (const char *)weight + (size_t)r * row, 0, columns, *wide + r * columns);
    return DR_OK;
}

static dr_status linear_forward(dr_backend *backend, const dr_linear *linear, const void *x, const void *weight,
                                const void *bias, void *y) {
    double *wide = NULL;
    DR_TRY(widen(backend, weight, linear->out, linear->in, &wide));
    const dr_status status = dr_reference_linear_forward(backend, linear, x, wide, bias, y);
    dr_release(wide);
    return status;
}

static dr_status linear_backward(dr_backend *backend, const dr_linear *linear, const void *x, const void *weight,
                                 const void *d_y, void *d_x, bool accumulate, void *d_weight, void *d_bias) {
    double *wide = NULL;
    if (d_weight || d_bias)
        return dr_fail(DR_ERROR_UNSUPPORTED, "weights of type %s have no gradient: open the backend without a type of weights",
                       dr_dtype_name(backend->weights));
    DR_TRY(widen(backend, weight, linear->out, linear->in, &wide));
    const dr_status status = dr_reference_linear_backward(backend, linear, x, wide, d_y, d_x, accumulate, NULL, NULL);
    dr_release(wide);
    return status;
}

static dr_status grouped_linear_forward(dr_backend *backend, const dr_grouped_linear *linear, const void *x, const void *weight,
                                        void *y) {
    double *wide = NULL;
    DR_TRY(widen(backend, weight, linear->groups * linear->out, linear->in, &wide));
    const dr_status status = dr_reference_grouped_linear_forward(backend, linear, x, wide, y);
    dr_release(wide);
    return status;
}

static dr_status embedding_forward(dr_backend *backend, int64_t rows, int64_t dim, const int32_t *ids, const void *table,
                                   void *y) {
    const size_t row = dr_weight_row_bytes(backend->weights, dim);
    for (int64_t r = 0; r < rows; r++)
        dr_weight_row_load(backend->weights, (const char *)table + (size_t)ids[r] * row, 0, dim, (double *)y + r * dim);
    return DR_OK;
}

static dr_status experts_linear_forward(dr_backend *backend, const dr_experts *of, int64_t in, int64_t out,
                                        const int32_t *begins, const void *x, const void *weight, void *y) {
    double *wide = NULL;
    DR_TRY(widen(backend, weight, of->experts * out, in, &wide));
    const dr_status status = dr_reference_experts_linear_forward(backend, of, in, out, begins, x, wide, y);
    dr_release(wide);
    return status;
}

void dr_reference_narrow(dr_operations *operations) {
    operations->linear_forward = linear_forward;
    operations->linear_backward = linear_backward;
    operations->grouped_linear_forward = grouped_linear_forward;
    operations->embedding_forward = embedding_forward;
    operations->experts_linear_forward = experts_linear_forward;
    operations->weights_store = dr_host_weights_store;
    operations->weights_load = dr_host_weights_load;
}
