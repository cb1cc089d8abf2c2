/* One factor a head: y[r, h, :] = f[r, h] x[r, h, :], or f[h] where all rows share it; and heads copied from and to parts of
 * wider rows. */
#include "backends/reference/reference.h"

dr_status dr_reference_scale_heads_forward(dr_backend *backend, int64_t rows, int64_t heads, int64_t dim, bool shared,
                                           const void *factor_, const void *x_, void *y_, bool accumulate) {
    (void)backend;
    const double *factor = factor_, *x = x_;
    double *y = y_;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++) {
            double f = factor[shared ? h : r * heads + h];
            for (int64_t at = (r * heads + h) * dim, end = at + dim; at < end; at++)
                y[at] = (accumulate ? y[at] : 0) + f * x[at];
        }
    return DR_OK;
}

dr_status dr_reference_scale_heads_backward(dr_backend *backend, int64_t rows, int64_t heads, int64_t dim, bool shared,
                                            const void *factor_, const void *x_, const void *d_y_, void *d_factor_, void *d_x_,
                                            bool accumulate) {
    (void)backend;
    const double *factor = factor_, *x = x_, *d_y = d_y_;
    double *d_factor = d_factor_, *d_x = d_x_;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t head = r * heads + h;
            double f = factor[shared ? h : head], sum = 0; /* of d_y x */
            for (int64_t at = head * dim, end = at + dim; at < end; at++) {
                sum += d_y[at] * x[at];
                if (d_x) d_x[at] = (accumulate ? d_x[at] : 0) + f * d_y[at];
            }
            if (d_factor && shared) d_factor[h] += sum;
            if (d_factor && !shared) d_factor[head] = sum;
        }
    return DR_OK;
}

dr_status dr_reference_copy_heads(dr_backend *backend, const dr_copy_heads *copy, const void *x_, void *y_) {
    (void)backend;
    for (int64_t r = 0; r < copy->rows; r++)
        for (int64_t h = 0; h < copy->heads; h++) {
            const double *x = (const double *)x_ + r * copy->from_row + h * copy->from_head;
            double *y = (double *)y_ + r * copy->to_row + h * copy->to_head;
            const bool add = copy->to_head == 0 && h > 0;
            for (int64_t i = 0; i < copy->dim; i++) y[i] = (add ? y[i] : 0) + x[i];
        }
    return DR_OK;
}
