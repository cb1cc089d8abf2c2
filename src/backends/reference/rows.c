/* Adding tensors, and picking the rows at which something is predicted. Positions rise and none comes twice, so the scatter is
 * the gather's transpose without a sum. Rows are moved as they are stored. */
#include "backends/reference/reference.h"

#include <string.h>

dr_status dr_reference_add(dr_backend *backend, dr_kind kind, int64_t count, double factor, const void *x_, void *y_) {
    (void)backend, (void)kind;
    const double *x = x_;
    double *y = y_;
    for (int64_t i = 0; i < count; i++) y[i] += factor * x[i];
    return DR_OK;
}

dr_status dr_reference_rows_gather(dr_backend *backend, int64_t count, int64_t dim, const int64_t *positions, const void *x,
                                   void *y) {
    size_t row = dr_kind_bytes(backend, DR_VECTOR, dim);
    for (int64_t i = 0; i < count; i++) memcpy((char *)y + (size_t)i * row, (const char *)x + (size_t)positions[i] * row, row);
    return DR_OK;
}

dr_status dr_reference_rows_scatter(dr_backend *backend, int64_t rows, int64_t count, int64_t dim, const int64_t *positions,
                                    const void *d_y, void *d_x) {
    size_t row = dr_kind_bytes(backend, DR_VECTOR, dim);
    memset(d_x, 0, (size_t)rows * row);
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)d_x + (size_t)positions[i] * row, (const char *)d_y + (size_t)i * row, row);
    return DR_OK;
}
