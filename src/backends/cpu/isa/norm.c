/* RMS norm, with or without a gate, and L2 norm, row by row: n = u / s with s the root of the squares, and the gradient of u is
 * that of n without its part along n (backends/reference/norm.c has the formulas).
 *
 * Each row is read twice while it is in the first-level cache: for its sums, four of each side by side because one would wait
 * for itself, then for the results. The kind of gate is a constant of each instance, so that nothing is asked in the inner
 * loops. */
#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa/lanes.h"

#define INLINE static inline __attribute__((always_inline))

INLINE lanes activate(dr_activation kind, lanes gate) {
    return kind == DR_ACTIVATION_SILU      ? lanes_silu(gate)
           : kind == DR_ACTIVATION_SIGMOID ? lanes_sigmoid(gate)
                                           : lanes_set(1.0f);
}

/* what is normed: x, or x act(gate) */
INLINE lanes normed(dr_activation kind, bool first, const float *x, const float *gate, int64_t n) {
    lanes u = lanes_load_n(x, n);
    return first ? u * activate(kind, lanes_load_n(gate, n)) : u;
}

/* the weight of n elements; of the vector with number `row` of a call */
INLINE lanes weight_of(const dr_rms_norm *norm, const float *weight, int64_t n) {
    return lanes_load_n(weight, n) + lanes_set((float)norm->weight_offset);
}
static const float *weights_of(const dr_rms_norm *norm, const float *weight, int64_t row) {
    return norm->groups > 1 ? weight + row % norm->groups * norm->dim : weight;
}

enum { SUMS = 4 };

INLINE float sum_of(const lanes sum[SUMS]) {
    return lanes_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

INLINE float inverse_of(const dr_rms_norm *norm, float squares) {
    return (float)(1 / sqrt((double)squares / (double)norm->dim + norm->eps));
}

INLINE float inverse_root(const dr_rms_norm *norm, dr_activation kind, bool first, const float *x, const float *gate) {
    lanes sum[SUMS] = {lanes_zero(), lanes_zero(), lanes_zero(), lanes_zero()};
    int64_t i = 0;
    for (; i + SUMS * LANES <= norm->dim; i += SUMS * LANES)
#pragma GCC unroll 4
        for (int k = 0; k < SUMS; k++) {
            lanes u = normed(kind, first, x + i + k * LANES, gate + i + k * LANES, LANES);
            sum[k] = lanes_fma(u, u, sum[k]);
        }
    for (; i < norm->dim; i += LANES) {
        lanes u = normed(kind, first, x + i, gate + i, lanes_left(norm->dim, i));
        sum[0] = lanes_fma(u, u, sum[0]);
    }
    return inverse_of(norm, sum_of(sum));
}

INLINE void forward(const dr_rms_norm *norm, dr_activation kind, bool first, int64_t rows, const float *x, const float *weight,
                    const float *gate, float *y) {
    int64_t dim = norm->dim, gate_step = kind == DR_ACTIVATION_NONE ? 0 : dim;
    for (int64_t r = 0; r < rows; r++, x += dim, y += dim, gate += gate_step) {
        lanes inverse = lanes_set(inverse_root(norm, kind, first, x, gate));
        const float *w = weights_of(norm, weight, r);
        for (int64_t i = 0; i < dim; i += LANES) {
            int64_t n = lanes_left(dim, i);
            lanes value = normed(kind, first, x + i, gate + i, n) * inverse * weight_of(norm, w + i, n);
            if (kind != DR_ACTIVATION_NONE && !first) value = value * activate(kind, lanes_load_n(gate + i, n));
            lanes_store_n(y + i, n, value);
        }
    }
}

typedef struct {
    const float *x, *weight, *gate, *d_y;
    float *d_x, *d_weight, *d_gate; /* each may be NULL */
    bool accumulate;
} backward_row;

/* Whether d_gate, which the second pass writes, keeps the tail of the gate's sigmoid for it. */
INLINE bool keeps_tail(const backward_row *row) {
    return row->d_gate && row->d_gate != row->gate;
}

/* n vectors' part of sum u^2 and of sum d_n u. */
INLINE void add_sums(const dr_rms_norm *norm, dr_activation kind, bool first, const backward_row *row, int64_t i, int64_t n,
                     lanes *squares, lanes *along) {
    const bool gated = kind != DR_ACTIVATION_NONE;
    lanes u = lanes_load_n(row->x + i, n), d_n = lanes_load_n(row->d_y + i, n) * weight_of(norm, row->weight + i, n);
    if (gated) {
        lanes gate = lanes_load_n(row->gate + i, n), tail = lanes_sigmoid_tail(gate), s = lanes_sigmoid_of_tail(gate, tail);
        if (keeps_tail(row)) lanes_store_n(row->d_gate + i, n, tail);
        lanes a = kind == DR_ACTIVATION_SILU ? gate * s : s;
        if (first)
            u = u * a;
        else
            d_n = d_n * a;
    }
    *squares = lanes_fma(u, u, *squares);
    *along = lanes_fma(d_n, u, *along);
}

/* With a the gate's activation: d_n = d_y w a (gate after) or d_y w (first); d_u = (d_n - n mean(d_n n)) / s */
INLINE void backward(const dr_rms_norm *norm, dr_activation kind, bool first, backward_row row) {
    int64_t dim = norm->dim, j = 0;
    bool gated = kind != DR_ACTIVATION_NONE;
    lanes squares[SUMS] = {lanes_zero(), lanes_zero(), lanes_zero(), lanes_zero()};
    lanes along[SUMS] = {lanes_zero(), lanes_zero(), lanes_zero(), lanes_zero()};
    for (; j + SUMS * LANES <= dim; j += SUMS * LANES)
#pragma GCC unroll 4
        for (int k = 0; k < SUMS; k++) add_sums(norm, kind, first, &row, j + k * LANES, LANES, &squares[k], &along[k]);
    for (; j < dim; j += LANES) add_sums(norm, kind, first, &row, j, lanes_left(dim, j), &squares[0], &along[0]);
    const float root = inverse_of(norm, sum_of(squares));
    lanes inverse = lanes_set(root), mean = lanes_set(root * sum_of(along) / (float)dim);
    for (int64_t i = 0; i < dim; i += LANES) {
        int64_t n = lanes_left(dim, i);
        lanes x = lanes_load_n(row.x + i, n), d_y = lanes_load_n(row.d_y + i, n), weight = weight_of(norm, row.weight + i, n);
        lanes gate = gated ? lanes_load_n(row.gate + i, n) : lanes_zero(), tail = lanes_zero();
        if (gated) tail = keeps_tail(&row) ? lanes_load_n(row.d_gate + i, n) : lanes_sigmoid_tail(gate);
        lanes s = lanes_sigmoid_of_tail(gate, tail);
        lanes a = kind == DR_ACTIVATION_SILU ? gate * s : s, after = first ? lanes_set(1.0f) : a;
        lanes value = (first ? x * a : x) * inverse, d_w = d_y * value;
        lanes d_u = inverse * lanes_fnma(value, mean, d_y * weight * after);
        if (row.d_weight) lanes_store_n(row.d_weight + i, n, lanes_fma(d_w, after, lanes_load_n(row.d_weight + i, n)));
        if (gated && row.d_gate) {
            lanes slope = lanes_sigmoid_slope_of_tail(tail);
            if (kind == DR_ACTIVATION_SILU) slope = lanes_fma(gate, slope, s);
            lanes_store_n(row.d_gate + i, n, (first ? d_u * x : d_w * weight) * slope);
        }
        if (row.d_x) {
            lanes before = row.accumulate ? lanes_load_n(row.d_x + i, n) : lanes_zero();
            lanes_store_n(row.d_x + i, n, before + (first ? d_u * a : d_u));
        }
    }
}

void DR_ISA_NAME(dr_cpu_rms_norm_forward)(const dr_rms_norm *norm, int64_t rows, const float *x, const float *weight,
                                          const float *gate, float *y) {
    if (norm->gate == DR_ACTIVATION_NONE)
        forward(norm, DR_ACTIVATION_NONE, false, rows, x, weight, x, y);
    else if (norm->gate == DR_ACTIVATION_SILU && norm->gate_first)
        forward(norm, DR_ACTIVATION_SILU, true, rows, x, weight, gate, y);
    else if (norm->gate == DR_ACTIVATION_SILU)
        forward(norm, DR_ACTIVATION_SILU, false, rows, x, weight, gate, y);
    else
        forward(norm, DR_ACTIVATION_SIGMOID, norm->gate_first, rows, x, weight, gate, y);
}

void DR_ISA_NAME(dr_cpu_rms_norm_backward)(const dr_rms_norm *norm, int64_t rows, const float *x, const float *weight,
                                           const float *gate, const float *d_y, float *d_x, bool accumulate, float *d_weight,
                                           float *d_gate) {
    int64_t dim = norm->dim;
    for (int64_t r = 0; r < rows; r++) {
        backward_row row = {.x = x + r * dim,
                            .weight = weights_of(norm, weight, r),
                            .gate = norm->gate == DR_ACTIVATION_NONE ? x : gate + r * dim,
                            .d_y = d_y + r * dim,
                            .d_x = d_x ? d_x + r * dim : NULL,
                            .d_weight = d_weight ? d_weight + (weights_of(norm, weight, r) - weight) : NULL,
                            .d_gate = d_gate ? d_gate + r * dim : NULL,
                            .accumulate = accumulate};
        if (norm->gate == DR_ACTIVATION_NONE)
            backward(norm, DR_ACTIVATION_NONE, false, row);
        else if (norm->gate == DR_ACTIVATION_SILU && norm->gate_first)
            backward(norm, DR_ACTIVATION_SILU, true, row);
        else if (norm->gate == DR_ACTIVATION_SILU)
            backward(norm, DR_ACTIVATION_SILU, false, row);
        else
            backward(norm, DR_ACTIVATION_SIGMOID, norm->gate_first, row);
    }
}

/* sum x y */
INLINE float dot(int64_t dim, const float *x, const float *y) {
    lanes sum[SUMS] = {lanes_zero(), lanes_zero(), lanes_zero(), lanes_zero()};
    int64_t i = 0;
    for (; i + SUMS * LANES <= dim; i += SUMS * LANES)
#pragma GCC unroll 4
        for (int k = 0; k < SUMS; k++) sum[k] = lanes_fma(lanes_load(x + i + k * LANES), lanes_load(y + i + k * LANES), sum[k]);
    for (; i < dim; i += LANES) {
        const int64_t n = lanes_left(dim, i);
        sum[0] = lanes_fma(lanes_load_n(x + i, n), lanes_load_n(y + i, n), sum[0]);
    }
    return sum_of(sum);
}

static float inverse_length(const dr_l2_norm *norm, const float *x) {
    return (float)(1 / sqrt((double)dot(norm->dim, x, x) + norm->eps));
}

void DR_ISA_NAME(dr_cpu_l2_norm_forward)(const dr_l2_norm *norm, int64_t rows, const float *x, float *y) {
    int64_t dim = norm->dim;
    for (int64_t r = 0; r < rows; r++, x += dim, y += dim) {
        lanes inverse = lanes_set(inverse_length(norm, x));
        for (int64_t i = 0; i < dim; i += LANES) {
            int64_t n = lanes_left(dim, i);
            lanes_store_n(y + i, n, lanes_load_n(x + i, n) * inverse);
        }
    }
}

void DR_ISA_NAME(dr_cpu_l2_norm_backward)(const dr_l2_norm *norm, int64_t rows, const float *x, const float *d_y, float *d_x) {
    int64_t dim = norm->dim;
    for (int64_t r = 0; r < rows; r++, x += dim, d_y += dim, d_x += dim) {
        const float root = inverse_length(norm, x);
        lanes inverse = lanes_set(root), along = lanes_set(root * dot(dim, d_y, x));
        for (int64_t i = 0; i < dim; i += LANES) {
            int64_t n = lanes_left(dim, i);
            lanes value = lanes_load_n(x + i, n) * inverse;
            lanes_store_n(d_x + i, n, inverse * lanes_fnma(value, along, lanes_load_n(d_y + i, n)));
        }
    }
}
