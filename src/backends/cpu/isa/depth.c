/* Softmax attention over depth, row by row (backends/reference/depth.c has the formulas). */
#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa/lanes.h"

#include <math.h>

static float dot(int64_t dim, const float *x, const float *y) {
    lanes sum = lanes_zero();
    for (int64_t i = 0; i < dim; i += LANES) {
        const int64_t n = lanes_left(dim, i);
        sum = lanes_fma(lanes_load_n(x + i, n), lanes_load_n(y + i, n), sum);
    }
    return lanes_sum(sum);
}

/* to += factor x */
static void add(int64_t dim, float factor, const float *x, float *to) {
    const lanes by = lanes_set(factor);
    for (int64_t i = 0; i < dim; i += LANES) {
        const int64_t n = lanes_left(dim, i);
        lanes_store_n(to + i, n, lanes_fma(by, lanes_load_n(x + i, n), lanes_load_n(to + i, n)));
    }
}

/* score, inverse root and weight in the sum of one row of each tensor, `at` elements from its start */
static void weigh(const dr_depth *depth, int64_t at, const float *const *x, const float *direction, double *score,
                  double *inverse, double *share) {
    double largest = -(double)INFINITY, sum = 0;
    for (int64_t l = 0; l < depth->count; l++) {
        inverse[l] = 1 / sqrt((double)dot(depth->dim, x[l] + at, x[l] + at) / (double)depth->dim + depth->eps);
        score[l] = inverse[l] * (double)dot(depth->dim, direction, x[l] + at);
        largest = fmax(largest, score[l]);
    }
    for (int64_t l = 0; l < depth->count; l++) sum += share[l] = exp(score[l] - largest);
    for (int64_t l = 0; l < depth->count; l++) share[l] /= sum;
}

void DR_ISA_NAME(dr_cpu_depth_forward)(const dr_depth *depth, int64_t begin, int64_t end, const float *const *x,
                                       const float *direction, float *y) {
    double score[DR_DEPTH_MOST], inverse[DR_DEPTH_MOST], share[DR_DEPTH_MOST];
    const int64_t dim = depth->dim;
    for (int64_t row = begin; row < end; row++) {
        float *to = y + row * dim;
        weigh(depth, row * dim, x, direction, score, inverse, share);
        for (int64_t i = 0; i < dim; i += LANES) {
            const int64_t n = lanes_left(dim, i);
            lanes sum = lanes_zero();
            for (int64_t l = 0; l < depth->count; l++)
                sum = lanes_fma(lanes_set((float)share[l]), lanes_load_n(x[l] + row * dim + i, n), sum);
            lanes_store_n(to + i, n, sum);
        }
    }
}

void DR_ISA_NAME(dr_cpu_depth_backward)(const dr_depth *depth, int64_t begin, int64_t end, const float *const *x,
                                        const float *direction, const float *d_y, float *const *d_x, float *d_direction) {
    double score[DR_DEPTH_MOST], inverse[DR_DEPTH_MOST], share[DR_DEPTH_MOST], along[DR_DEPTH_MOST];
    const int64_t dim = depth->dim;
    for (int64_t row = begin; row < end; row++) {
        const int64_t at = row * dim;
        double mean = 0;
        weigh(depth, at, x, direction, score, inverse, share);
        for (int64_t l = 0; l < depth->count; l++) {
            along[l] = (double)dot(dim, d_y + at, x[l] + at);
            mean += share[l] * along[l];
        }
        for (int64_t l = 0; l < depth->count; l++) {
            const double d_score = share[l] * (along[l] - mean) * inverse[l];
            if (d_x[l]) {
                add(dim, (float)share[l], d_y + at, d_x[l] + at);
                add(dim, (float)d_score, direction, d_x[l] + at);
                add(dim, (float)(-d_score * score[l] * inverse[l] / (double)dim), x[l] + at, d_x[l] + at);
            }
            if (d_direction) add(dim, (float)d_score, x[l] + at, d_direction);
        }
    }
}
