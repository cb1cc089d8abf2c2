/* Layer norm, and division by the sum, vector by vector (backends/reference/layer_norm.c has the formulas). A vector is read
 * three times while it is in the first-level cache: for its mean, for its squares about it, for the results. */
#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa/lanes.h"

enum { SUMS = 4 };

/* sum (x - from) y, with y NULL: 1; four sums side by side, since one would wait for itself */
static float sum_about(int64_t dim, float from, const float *x, const float *y, bool squared) {
    lanes sum[SUMS] = {lanes_zero(), lanes_zero(), lanes_zero(), lanes_zero()};
    for (int64_t i = 0, k = 0; i < dim; i += LANES, k = (k + 1) % SUMS) {
        const int64_t n = lanes_left(dim, i);
        lanes term = lanes_load_n(x + i, n) - lanes_set(from);
        if (n < LANES) term = lanes_select(lanes_first(n), term, lanes_zero());
        if (squared) term = term * term;
        sum[k] = y ? lanes_fma(term, lanes_load_n(y + i, n), sum[k]) : sum[k] + term;
    }
    return lanes_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

typedef struct {
    float mean, inverse;
} moments;

static moments moments_of(const dr_layer_norm *norm, const float *x) {
    const float mean = sum_about(norm->dim, 0, x, NULL, false) / (float)norm->dim;
    const double square = (double)sum_about(norm->dim, mean, x, NULL, true) / (double)norm->dim;
    return (moments){mean, (float)(1 / sqrt(square + norm->eps))};
}

void DR_ISA_NAME(dr_cpu_layer_norm_forward)(const dr_layer_norm *norm, int64_t tokens, const float *x, const float *weight,
                                            const float *bias, float *y) {
    const int64_t dim = norm->dim, groups = norm->groups;
    for (int64_t r = 0; r < tokens * groups; r++, x += dim, y += dim) {
        const moments m = moments_of(norm, x);
        const int64_t group = r % groups * dim;
        for (int64_t i = 0; i < dim; i += LANES) {
            const int64_t n = lanes_left(dim, i);
            const lanes value = (lanes_load_n(x + i, n) - lanes_set(m.mean)) * lanes_set(m.inverse);
            const lanes shift = bias ? lanes_load_n(bias + group + i, n) : lanes_zero();
            lanes_store_n(y + i, n, lanes_fma(value, lanes_load_n(weight + group + i, n), shift));
        }
    }
}

/* means of d_n and of d_n n over one vector, d_n = d_y weight */
static void means_of(int64_t dim, moments m, const float *x, const float *weight, const float *d_y, float *mean, float *along) {
    lanes first[2] = {lanes_zero(), lanes_zero()}, second[2] = {lanes_zero(), lanes_zero()};
    for (int64_t i = 0, k = 0; i < dim; i += LANES, k = 1 - k) {
        const int64_t n = lanes_left(dim, i);
        const lanes d_n = lanes_load_n(d_y + i, n) * lanes_load_n(weight + i, n);
        first[k] = first[k] + d_n;
        second[k] = lanes_fma(d_n, lanes_load_n(x + i, n) - lanes_set(m.mean), second[k]);
    }
    *mean = lanes_sum(first[0] + first[1]) / (float)dim;
    *along = lanes_sum(second[0] + second[1]) * m.inverse / (float)dim;
}

void DR_ISA_NAME(dr_cpu_layer_norm_backward)(const dr_layer_norm *norm, int64_t tokens, const float *x, const float *weight,
                                             const float *d_y, float *d_x, bool accumulate, float *d_weight, float *d_bias) {
    const int64_t dim = norm->dim, groups = norm->groups;
    for (int64_t r = 0; r < tokens * groups; r++, x += dim, d_y += dim) {
        const int64_t group = r % groups * dim;
        const moments m = moments_of(norm, x);
        float mean, along;
        means_of(dim, m, x, weight + group, d_y, &mean, &along);
        for (int64_t i = 0; i < dim; i += LANES) {
            const int64_t n = lanes_left(dim, i);
            const lanes value = (lanes_load_n(x + i, n) - lanes_set(m.mean)) * lanes_set(m.inverse),
                        d = lanes_load_n(d_y + i, n);
            if (d_x) {
                const lanes d_n = d * lanes_load_n(weight + group + i, n) - lanes_set(mean);
                const lanes before = accumulate ? lanes_load_n(d_x + r * dim + i, n) : lanes_zero();
                lanes_store_n(d_x + r * dim + i, n,
                              lanes_fma(lanes_fnma(value, lanes_set(along), d_n), lanes_set(m.inverse), before));
            }
            if (d_weight) {
                float *to = d_weight + group + i;
                lanes_store_n(to, n, lanes_fma(d, value, lanes_load_n(to, n)));
            }
            if (d_bias) lanes_store_n(d_bias + group + i, n, lanes_load_n(d_bias + group + i, n) + d);
        }
    }
}

void DR_ISA_NAME(dr_cpu_sum_norm_forward)(int64_t rows, int64_t dim, const float *x, float *y) {
    for (int64_t r = 0; r < rows; r++, x += dim, y += dim) {
        const lanes inverse = lanes_set(1.0f / sum_about(dim, 0, x, NULL, false));
        for (int64_t i = 0; i < dim; i += LANES) {
            const int64_t n = lanes_left(dim, i);
            lanes_store_n(y + i, n, lanes_load_n(x + i, n) * inverse);
        }
    }
}

void DR_ISA_NAME(dr_cpu_sum_norm_backward)(int64_t rows, int64_t dim, const float *x, const float *d_y, float *d_x) {
    for (int64_t r = 0; r < rows; r++, x += dim, d_y += dim, d_x += dim) {
        const float inverse = 1.0f / sum_about(dim, 0, x, NULL, false);
        const lanes along = lanes_set(inverse * sum_about(dim, 0, x, d_y, false));
        for (int64_t i = 0; i < dim; i += LANES) {
            const int64_t n = lanes_left(dim, i);
            lanes_store_n(d_x + i, n, (lanes_load_n(d_y + i, n) - along) * lanes_set(inverse));
        }
    }
}
