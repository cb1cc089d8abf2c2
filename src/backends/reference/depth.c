/* Softmax attention over depth (attention residuals): a token weighs its own rows of several tensors. With
 * u = query weight, r_l = 1 / sqrt(mean x_l^2 + eps) and s_l = r_l u . x_l:
 *
 *     y     = sum_l p_l x_l,  p = softmax(s)
 *     d_s_l = p_l (d_y . x_l - sum_m p_m d_y . x_m)
 *     d_x_l = p_l d_y + d_s_l r_l (u - s_l r_l x_l / dim),   d_u = sum over rows and l of d_s_l r_l x_l */
#include "backends/reference/reference.h"
#include "base/error.h"

#include <math.h>

static double dot(int64_t dim, const double *x, const double *y) {
    double sum = 0;
    for (int64_t i = 0; i < dim; i++) sum += x[i] * y[i];
    return sum;
}

/* score, inverse root and weight in the sum of row `row` of each tensor */
static void weigh(const dr_depth *depth, int64_t row, const void *const *x, const double *weight, const double *query,
                  double *score, double *inverse, double *share) {
    double largest = -(double)INFINITY, sum = 0;
    for (int64_t l = 0; l < depth->count; l++) {
        const double *of = (const double *)x[l] + row * depth->dim;
        inverse[l] = 1 / sqrt(dot(depth->dim, of, of) / (double)depth->dim + depth->eps);
        score[l] = 0;
        for (int64_t i = 0; i < depth->dim; i++) score[l] += query[i] * weight[i] * of[i] * inverse[l];
        largest = fmax(largest, score[l]);
    }
    for (int64_t l = 0; l < depth->count; l++) sum += share[l] = exp(score[l] - largest);
    for (int64_t l = 0; l < depth->count; l++) share[l] /= sum;
}

dr_status dr_reference_depth_forward(dr_backend *backend, const dr_depth *depth, const void *const *x, const void *weight,
                                     const void *query, void *y_) {
    double score[DR_DEPTH_MOST], inverse[DR_DEPTH_MOST], share[DR_DEPTH_MOST];
    (void)backend;
    for (int64_t row = 0; row < depth->rows; row++) {
        double *y = (double *)y_ + row * depth->dim;
        weigh(depth, row, x, weight, query, score, inverse, share);
        for (int64_t i = 0; i < depth->dim; i++) {
            double sum = 0;
            for (int64_t l = 0; l < depth->count; l++) sum += share[l] * ((const double *)x[l])[row * depth->dim + i];
            y[i] = sum;
        }
    }
    return DR_OK;
}

dr_status dr_reference_depth_backward(dr_backend *backend, const dr_depth *depth, const void *const *x, const void *weight_,
                                      const void *query_, const void *d_y_, void *const *d_x, void *d_weight, void *d_query) {
    double score[DR_DEPTH_MOST], inverse[DR_DEPTH_MOST], share[DR_DEPTH_MOST], along[DR_DEPTH_MOST];
    const double *weight = weight_, *query = query_;
    const int64_t dim = depth->dim;
    (void)backend;
    for (int64_t row = 0; row < depth->rows; row++) {
        const double *d_y = (const double *)d_y_ + row * dim;
        double mean = 0;
        weigh(depth, row, x, weight, query, score, inverse, share);
        for (int64_t l = 0; l < depth->count; l++) {
            along[l] = dot(dim, d_y, (const double *)x[l] + row * dim);
            mean += share[l] * along[l];
        }
        for (int64_t l = 0; l < depth->count; l++) {
            const double *of = (const double *)x[l] + row * dim;
            const double d_score = share[l] * (along[l] - mean) * inverse[l], part = score[l] * inverse[l] / (double)dim;
            for (int64_t i = 0; i < dim; i++) {
                if (d_x[l])
                    ((double *)d_x[l])[row * dim + i] += share[l] * d_y[i] + d_score * (query[i] * weight[i] - part * of[i]);
                if (d_weight) ((double *)d_weight)[i] += d_score * of[i] * query[i];
                if (d_query) ((double *)d_query)[i] += d_score * of[i] * weight[i];
            }
        }
    }
    return DR_OK;
}
