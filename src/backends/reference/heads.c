/* One factor a head: y[r, h, :] = f[r, h] x[r, h, :], or f[h] where all rows share it. */
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
