/* Matrix products with weights: y = x W^T + b, and one matrix a group. Every sum runs over its index in rising order. */
#include "backends/reference/reference.h"

/* y[o] = bias + sum_i w[o, i] x[i] */
static void apply(int64_t in, int64_t out, const double *weight, const double *x, const double *bias, double *y) {
    for (int64_t o = 0; o < out; o++) {
        double sum = bias ? bias[o] : 0;
        for (int64_t i = 0; i < in; i++) sum += weight[o * in + i] * x[i];
        y[o] = sum;
    }
}

/* d_x[i] = sum_o w[o, i] d_y[o], or added to */
static void apply_transposed(int64_t in, int64_t out, const double *weight, const double *d_y, bool accumulate, double *d_x) {
    for (int64_t i = 0; i < in && !accumulate; i++) d_x[i] = 0;
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) d_x[i] += weight[o * in + i] * d_y[o];
}

/* d_w[o, i] += d_y[o] x[i] */
static void add_outer(int64_t in, int64_t out, const double *d_y, const double *x, double *d_weight) {
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) d_weight[o * in + i] += d_y[o] * x[i];
}

dr_status dr_reference_linear_forward(dr_backend *backend, const dr_linear *linear, const void *x_, const void *weight,
                                      const void *bias, void *y_) {
    (void)backend;
    int64_t in = linear->in, out = linear->out, row = dr_linear_pitch(linear);
    const double *x = x_, *plus = linear->plus;
    double *y = y_;
    for (int64_t r = 0; r < linear->rows; r++) {
        apply(in, out, weight, x + r * row, bias, y + r * out);
        for (int64_t o = r * out; o < (r + 1) * out && plus; o++) y[o] += plus[o];
    }
    return DR_OK;
}

dr_status dr_reference_linear_backward(dr_backend *backend, const dr_linear *linear, const void *x_, const void *weight,
                                       const void *d_y_, void *d_x_, bool accumulate, void *d_weight, void *d_bias_) {
    (void)backend;
    int64_t in = linear->in, out = linear->out, row = dr_linear_pitch(linear);
    const double *x = x_, *d_y = d_y_;
    double *d_x = d_x_, *d_bias = d_bias_;
    for (int64_t r = 0; r < linear->rows; r++) { /* d_x may take the place of x */
        if (d_weight) add_outer(in, out, d_y + r * out, x + r * row, d_weight);
        if (d_x) apply_transposed(in, out, weight, d_y + r * out, accumulate, d_x + r * row);
        if (d_bias)
            for (int64_t o = 0; o < out; o++) d_bias[o] += d_y[r * out + o];
    }
    return DR_OK;
}

dr_status dr_reference_grouped_linear_forward(dr_backend *backend, const dr_grouped_linear *linear, const void *x_,
                                              const void *weight_, void *y_) {
    (void)backend;
    int64_t in = linear->in, out = linear->out, groups = linear->groups, row = dr_grouped_linear_pitch(linear);
    const double *x = x_, *weight = weight_;
    double *y = y_;
    for (int64_t r = 0; r < linear->rows; r++)
        for (int64_t g = 0; g < groups; g++)
            apply(in, out, weight + g * out * in, x + r * row + g * in, NULL, y + (r * groups + g) * out);
    return DR_OK;
}

dr_status dr_reference_grouped_linear_backward(dr_backend *backend, const dr_grouped_linear *linear, const void *x_,
                                               const void *weight_, const void *d_y_, void *d_x_, void *d_weight_) {
    (void)backend;
    int64_t in = linear->in, out = linear->out, groups = linear->groups, row = dr_grouped_linear_pitch(linear);
    const double *x = x_, *weight = weight_, *d_y = d_y_;
    double *d_x = d_x_, *d_weight = d_weight_;
    for (int64_t r = 0; r < linear->rows; r++)
        for (int64_t g = 0; g < groups; g++) {
            int64_t at = r * groups + g, x_at = r * row + g * in;
            if (d_weight) add_outer(in, out, d_y + at * out, x + x_at, d_weight + g * out * in);
            if (d_x) apply_transposed(in, out, weight + g * out * in, d_y + at * out, false, d_x + x_at);
        }
    return DR_OK;
}
