/* Adding tensors, and picking the rows at which something is predicted. Positions rise and none comes twice, so the scatter is
 * the gather's transpose without a sum. */
#include "backends/reference/reference.h"

dr_status dr_reference_add(dr_backend *backend, int64_t count, double factor, const void *x_, void *y_) {
    (void)backend;
    const double *x = x_;
    double *y = y_;
    for (int64_t i = 0; i < count; i++) y[i] += factor * x[i];
    return DR_OK;
}

dr_status dr_reference_rows_gather(dr_backend *backend, int64_t count, int64_t dim, const int64_t *positions, const void *x_,
                                   void *y_) {
    (void)backend;
    const double *x = x_;
    double *y = y_;
    for (int64_t i = 0; i < count; i++)
        for (int64_t d = 0; d < dim; d++) y[i * dim + d] = x[positions[i] * dim + d];
    return DR_OK;
}

dr_status dr_reference_rows_scatter(dr_backend *backend, int64_t rows, int64_t count, int64_t dim, const int64_t *positions,
                                    const void *d_y_, void *d_x_) {
    (void)backend;
    const double *d_y = d_y_;
    double *d_x = d_x_;
    for (int64_t at = 0; at < rows * dim; at++) d_x[at] = 0;
    for (int64_t i = 0; i < count; i++)
        for (int64_t d = 0; d < dim; d++) d_x[positions[i] * dim + d] = d_y[i * dim + d];
    return DR_OK;
}
