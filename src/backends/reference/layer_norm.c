/* Layer norm, and division by the sum, vector by vector.
 *
 * Layer norm: n = (x - mean x) / s, s = sqrt(mean (x - mean x)^2 + eps), y = n w + b. With d_n = d_y w,
 *
 *     d_x = (d_n - mean d_n - n mean(d_n n)) / s
 *
 * Division: y = x / sum x, d_x = (d_y - sum d_y y) / sum x. */
#include "backends/reference/reference.h"

#include <math.h>

typedef struct {
    double mean, inverse;
} moments;

static moments moments_of(int64_t dim, double eps, const double *x) {
    double mean = 0, square = 0;
    for (int64_t i = 0; i < dim; i++) mean += x[i] / (double)dim;
    for (int64_t i = 0; i < dim; i++) square += (x[i] - mean) * (x[i] - mean) / (double)dim;
    return (moments){mean, 1 / sqrt(square + eps)};
}

dr_status dr_reference_layer_norm_forward(dr_backend *backend, const dr_layer_norm *norm, const void *x_, const void *weight_,
                                          const void *bias_, void *y_) {
    (void)backend;
    const int64_t dim = norm->dim;
    for (int64_t r = 0; r < norm->rows * norm->groups; r++) {
        const double *x = (const double *)x_ + r * dim, *weight = (const double *)weight_ + r % norm->groups * dim;
        const double *bias = bias_ ? (const double *)bias_ + r % norm->groups * dim : NULL;
        const moments m = moments_of(dim, norm->eps, x);
        for (int64_t i = 0; i < dim; i++)
            ((double *)y_)[r * dim + i] = (x[i] - m.mean) * m.inverse * weight[i] + (bias ? bias[i] : 0);
    }
    return DR_OK;
}

dr_status dr_reference_layer_norm_backward(dr_backend *backend, const dr_layer_norm *norm, const void *x_, const void *weight_,
                                           const void *d_y_, void *d_x_, bool accumulate, void *d_weight_, void *d_bias_) {
    (void)backend;
    const int64_t dim = norm->dim;
    for (int64_t r = 0; r < norm->rows * norm->groups; r++) {
        const int64_t group = r % norm->groups * dim;
        const double *x = (const double *)x_ + r * dim, *d_y = (const double *)d_y_ + r * dim;
        const double *weight = (const double *)weight_ + group;
        const moments m = moments_of(dim, norm->eps, x);
        double mean = 0, along = 0; /* of d_n and of d_n n */
        for (int64_t i = 0; i < dim; i++) {
            mean += d_y[i] * weight[i] / (double)dim;
            along += d_y[i] * weight[i] * (x[i] - m.mean) * m.inverse / (double)dim;
        }
        for (int64_t i = 0; i < dim; i++) {
            const double n = (x[i] - m.mean) * m.inverse;
            double *d_x = d_x_ ? (double *)d_x_ + r * dim + i : NULL;
            if (d_x) *d_x = (accumulate ? *d_x : 0) + (d_y[i] * weight[i] - mean - n * along) * m.inverse;
            if (d_weight_) ((double *)d_weight_)[group + i] += d_y[i] * n;
            if (d_bias_) ((double *)d_bias_)[group + i] += d_y[i];
        }
    }
    return DR_OK;
}

dr_status dr_reference_sum_norm_forward(dr_backend *backend, int64_t rows, int64_t dim, const void *x_, void *y) {
    (void)backend;
    for (int64_t r = 0; r < rows; r++) {
        const double *x = (const double *)x_ + r * dim;
        double sum = 0;
        for (int64_t i = 0; i < dim; i++) sum += x[i];
        for (int64_t i = 0; i < dim; i++) ((double *)y)[r * dim + i] = x[i] / sum;
    }
    return DR_OK;
}

dr_status dr_reference_sum_norm_backward(dr_backend *backend, int64_t rows, int64_t dim, const void *x_, const void *d_y_,
                                         void *d_x) {
    (void)backend;
    for (int64_t r = 0; r < rows; r++) {
        const double *x = (const double *)x_ + r * dim, *d_y = (const double *)d_y_ + r * dim;
        double sum = 0, along = 0;
        for (int64_t i = 0; i < dim; i++) sum += x[i];
        for (int64_t i = 0; i < dim; i++) along += d_y[i] * x[i] / sum;
        for (int64_t i = 0; i < dim; i++) ((double *)d_x)[r * dim + i] = (d_y[i] - along) / sum;
    }
    return DR_OK;
}
