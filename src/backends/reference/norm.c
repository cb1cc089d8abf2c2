/* RMS norm, with or without a gate, and L2 norm, row by row.
 *
 * Both divide a vector u by a root s of its squares, n = u / s. The gradient of n takes out the part along n:
 *
 *     RMS  s = sqrt(mean u^2 + eps)   d_u = (d_n - n mean(d_n n)) / s
 *     L2   s = sqrt(sum u^2 + eps)    d_u = (d_n - n sum(d_n n)) / s
 *
 * With a = activation(gate), or 1 without a gate, RMS norm is y = n w a for u = x (gate after), or y = n w for u = x a (gate
 * first). */
#include "backends/reference/activation.h"
#include "backends/reference/reference.h"

static double gate_factor(const dr_rms_norm *norm, const double *gate, int64_t i) {
    return gate && norm->gate != DR_ACTIVATION_NONE ? activation(norm->gate, gate[i]) : 1;
}

/* what the norm divides: x, or x a */
static double normed_input(const dr_rms_norm *norm, const double *x, const double *gate, int64_t i) {
    return norm->gate_first ? x[i] * gate_factor(norm, gate, i) : x[i];
}

/* which weights a vector has */
static int64_t group_of(const dr_rms_norm *norm, int64_t row) {
    return norm->groups > 0 ? row % norm->groups : 0;
}

static double inverse_rms(const dr_rms_norm *norm, const double *x, const double *gate) {
    double sum = 0;
    for (int64_t i = 0; i < norm->dim; i++) {
        double u = normed_input(norm, x, gate, i);
        sum += u * u;
    }
    return 1 / sqrt(sum / (double)norm->dim + norm->eps);
}

dr_status dr_reference_rms_norm_forward(dr_backend *backend, const dr_rms_norm *norm, const void *x_, const void *weight_,
                                        const void *gate_, void *y_) {
    (void)backend;
    const double *weight = weight_;
    for (int64_t r = 0; r < norm->rows; r++) {
        const double *x = (const double *)x_ + r * norm->dim;
        const double *gate = gate_ ? (const double *)gate_ + dr_rms_norm_gate_at(norm, r) : NULL,
                     *w = weight + group_of(norm, r) * norm->dim;
        double *y = (double *)y_ + r * norm->dim;
        double inverse = inverse_rms(norm, x, gate);
        for (int64_t i = 0; i < norm->dim; i++) {
            double n = normed_input(norm, x, gate, i) * inverse;
            y[i] = n * (w[i] + norm->weight_offset) * (norm->gate_first ? 1 : gate_factor(norm, gate, i));
        }
    }
    return DR_OK;
}

/* One row of the backward. d_x, d_weight, d_gate may be NULL. */
static void rms_norm_row_backward(const dr_rms_norm *norm, const double *x, const double *weight, const double *gate,
                                  const double *d_y, double *d_x, bool accumulate, double *d_weight, double *d_gate) {
    double inverse = inverse_rms(norm, x, gate), mean = 0; /* of d_n n */
    for (int64_t i = 0; i < norm->dim; i++) {
        double n = normed_input(norm, x, gate, i) * inverse;
        double after = norm->gate_first ? 1 : gate_factor(norm, gate, i);
        mean += d_y[i] * (weight[i] + norm->weight_offset) * after * n / (double)norm->dim;
    }
    for (int64_t i = 0; i < norm->dim; i++) {
        double n = normed_input(norm, x, gate, i) * inverse, factor = gate_factor(norm, gate, i);
        double after = norm->gate_first ? 1 : factor;
        double d_u = inverse * (d_y[i] * (weight[i] + norm->weight_offset) * after - n * mean);
        double d_factor = norm->gate_first ? d_u * x[i] : d_y[i] * n * (weight[i] + norm->weight_offset);
        if (d_weight) d_weight[i] += d_y[i] * n * after;
        if (d_gate) d_gate[i] = d_factor * activation_derivative(norm->gate, gate[i]);
        if (d_x) d_x[i] = (accumulate ? d_x[i] : 0) + (norm->gate_first ? d_u * factor : d_u);
    }
}

dr_status dr_reference_rms_norm_backward(dr_backend *backend, const dr_rms_norm *norm, const void *x, const void *weight,
                                         const void *gate, const void *d_y, void *d_x, bool accumulate, void *d_weight,
                                         void *d_gate) {
    (void)backend;
    for (int64_t r = 0; r < norm->rows; r++) {
        int64_t at = r * norm->dim, group = group_of(norm, r) * norm->dim, by = dr_rms_norm_gate_at(norm, r);
        rms_norm_row_backward(norm, (const double *)x + at, (const double *)weight + group,
                              gate ? (const double *)gate + by : NULL, (const double *)d_y + at,
                              d_x ? (double *)d_x + at : NULL, accumulate, d_weight ? (double *)d_weight + group : NULL,
                              d_gate && gate ? (double *)d_gate + by : NULL);
    }
    return DR_OK;
}

static double inverse_length(const dr_l2_norm *norm, const double *x) {
    double sum = 0;
    for (int64_t i = 0; i < norm->dim; i++) sum += x[i] * x[i];
    return 1 / sqrt(sum + norm->eps);
}

dr_status dr_reference_l2_norm_forward(dr_backend *backend, const dr_l2_norm *norm, const void *x_, void *y_) {
    (void)backend;
    for (int64_t r = 0; r < norm->rows; r++) {
        const double *x = (const double *)x_ + r * norm->dim;
        double *y = (double *)y_ + r * norm->dim;
        double inverse = inverse_length(norm, x);
        for (int64_t i = 0; i < norm->dim; i++) y[i] = x[i] * inverse;
    }
    return DR_OK;
}

dr_status dr_reference_l2_norm_backward(dr_backend *backend, const dr_l2_norm *norm, const void *x_, const void *d_y_,
                                        void *d_x_) {
    (void)backend;
    for (int64_t r = 0; r < norm->rows; r++) {
        const double *x = (const double *)x_ + r * norm->dim, *d_y = (const double *)d_y_ + r * norm->dim;
        double *d_x = (double *)d_x_ + r * norm->dim;
        double inverse = inverse_length(norm, x), along = 0;
        for (int64_t i = 0; i < norm->dim; i++) along += d_y[i] * x[i] * inverse;
        for (int64_t i = 0; i < norm->dim; i++) d_x[i] = inverse * (d_y[i] - x[i] * inverse * along);
    }
    return DR_OK;
}
