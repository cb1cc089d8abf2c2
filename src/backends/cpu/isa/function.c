/* Functions of single elements and their slopes; the function is a constant of each loop. */
#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa/lanes.h"

#define INLINE static inline __attribute__((always_inline))

typedef struct {
    lanes y, slope;
} value;

/* x N(x), with the normal distribution function N(-a) = erfc(a / sqrt 2) / 2 for a = |x|, and
 * erfc z = t e^(-z^2 + P(t)), t = 1 / (1 + z/2), to 1.2e-7 of its size (Press et al., Numerical Recipes, 6.2). e^(-a^2/2) is
 * made of a^2 and of what its rounding leaves, since an error of the exponent is one of the result. Beyond 20 it is 0. */
INLINE value gelu(lanes x) {
    static const float p[] = {0.17087277f,  -0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f,
                              -0.18628806f, 0.09678418f,  0.37409196f, 1.00002368f,  -1.26551223f};
    const lanes one = lanes_set(1.0f), half = lanes_set(0.5f), a = lanes_min(lanes_set(20.0f), lanes_abs(x)), square = a * a;
    const lanes rest = half * lanes_fma(a, a, -square), fall = lanes_exp_fall(half * square) * (one - rest);
    const lanes t = one / lanes_fma(a, lanes_set(0.353553391f), one);
    lanes sum = lanes_set(p[0]);
    for (int i = 1; i < 10; i++) sum = lanes_fma(sum, t, lanes_set(p[i]));
    const lanes tail = half * t * lanes_exp(sum) * fall, below = lanes_select(lanes_less(x, lanes_zero()), tail, one - tail);
    return (value){x * below, lanes_fma(x, lanes_set(0.398942280f) * fall, below)};
}

/* x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
INLINE value gelu_tanh(lanes x) {
    const lanes square = lanes_min(lanes_set(400.0f), x * x), factor = lanes_set(1.595769122f); /* sigmoid is 0 or 1 there */
    const lanes u = factor * x * lanes_fma(square, lanes_set(0.044715f), lanes_set(1.0f));
    const lanes slope = factor * lanes_fma(square, lanes_set(0.134145f), lanes_set(1.0f));
    const lanes tail = lanes_sigmoid_tail(u), s = lanes_sigmoid_of_tail(u, tail);
    return (value){x * s, lanes_fma(x * lanes_sigmoid_slope_of_tail(tail), slope, s)};
}

INLINE value sigmoid(lanes x, bool times_x) {
    const lanes tail = lanes_sigmoid_tail(x), s = lanes_sigmoid_of_tail(x, tail), slope = lanes_sigmoid_slope_of_tail(tail);
    return times_x ? (value){x * s, lanes_fma(x, slope, s)} : (value){s, slope};
}

INLINE value evaluate(dr_function function, lanes x) {
    const lanes zero = lanes_zero(), one = lanes_set(1.0f);
    switch (function) {
    case DR_FUNCTION_IDENTITY:
        return (value){x, one};
    case DR_FUNCTION_RELU: /* max gives its second operand where one is NaN */
        return (value){lanes_max(zero, x), lanes_select(lanes_less(zero, x), one, zero)};
    case DR_FUNCTION_SQUARED_RELU: {
        const lanes above = lanes_max(zero, x);
        return (value){above * above, above + above};
    }
    case DR_FUNCTION_SIGMOID:
        return sigmoid(x, false);
    case DR_FUNCTION_SILU:
        return sigmoid(x, true);
    case DR_FUNCTION_TANH:
        return (value){lanes_tanh(x), lanes_set(4.0f) * sigmoid(x + x, false).slope};
    case DR_FUNCTION_GELU:
        return gelu(x);
    case DR_FUNCTION_GELU_TANH:
        return gelu_tanh(x);
    case DR_FUNCTION_ELU_1: {
        const lanes fall = lanes_exp(lanes_min(zero, x));
        return (value){lanes_select(lanes_less(zero, x), x + one, fall), lanes_select(lanes_less(zero, x), one, fall)};
    }
    case DR_FUNCTIONS:
        break;
    }
    return (value){lanes_set(NAN), lanes_set(NAN)};
}

/* y = f(gate) x, or f(gate) where x is NULL */
INLINE void forward(dr_function function, int64_t count, const float *x, const float *gate, float *y) {
    for (int64_t i = 0; i < count; i += LANES) {
        const int64_t n = lanes_left(count, i);
        const lanes f = evaluate(function, lanes_load_n(gate + i, n)).y;
        lanes_store_n(y + i, n, x ? f * lanes_load_n(x + i, n) : f);
    }
}

INLINE void backward(dr_function function, int64_t count, const float *x, const float *gate, const float *d_y, float *d_x,
                     float *d_gate) {
    for (int64_t i = 0; i < count; i += LANES) {
        const int64_t n = lanes_left(count, i);
        const value f = evaluate(function, lanes_load_n(gate + i, n));
        const lanes d = lanes_load_n(d_y + i, n), d_f = x ? d * lanes_load_n(x + i, n) : d;
        if (d_x) lanes_store_n(d_x + i, n, f.y * d);
        if (d_gate) lanes_store_n(d_gate + i, n, f.slope * d_f);
    }
}

#define EACH_FUNCTION(call)                                                                                                    \
    switch (function) {                                                                                                        \
    case DR_FUNCTION_IDENTITY:                                                                                                 \
        call(DR_FUNCTION_IDENTITY);                                                                                            \
        break;                                                                                                                 \
    case DR_FUNCTION_RELU:                                                                                                     \
        call(DR_FUNCTION_RELU);                                                                                                \
        break;                                                                                                                 \
    case DR_FUNCTION_SQUARED_RELU:                                                                                             \
        call(DR_FUNCTION_SQUARED_RELU);                                                                                        \
        break;                                                                                                                 \
    case DR_FUNCTION_SIGMOID:                                                                                                  \
        call(DR_FUNCTION_SIGMOID);                                                                                             \
        break;                                                                                                                 \
    case DR_FUNCTION_SILU:                                                                                                     \
        call(DR_FUNCTION_SILU);                                                                                                \
        break;                                                                                                                 \
    case DR_FUNCTION_TANH:                                                                                                     \
        call(DR_FUNCTION_TANH);                                                                                                \
        break;                                                                                                                 \
    case DR_FUNCTION_GELU:                                                                                                     \
        call(DR_FUNCTION_GELU);                                                                                                \
        break;                                                                                                                 \
    case DR_FUNCTION_GELU_TANH:                                                                                                \
        call(DR_FUNCTION_GELU_TANH);                                                                                           \
        break;                                                                                                                 \
    case DR_FUNCTION_ELU_1:                                                                                                    \
        call(DR_FUNCTION_ELU_1);                                                                                               \
        break;                                                                                                                 \
    case DR_FUNCTIONS:                                                                                                         \
        break;                                                                                                                 \
    }

void DR_ISA_NAME(dr_cpu_gated_forward)(dr_function function, int64_t count, const float *x, const float *gate, float *y) {
#define FORWARD(constant) forward(constant, count, x, gate, y)
    EACH_FUNCTION(FORWARD)
#undef FORWARD
}

void DR_ISA_NAME(dr_cpu_gated_backward)(dr_function function, int64_t count, const float *x, const float *gate,
                                        const float *d_y, float *d_x, float *d_gate) {
#define BACKWARD(constant) backward(constant, count, x, gate, d_y, d_x, d_gate)
    EACH_FUNCTION(BACKWARD)
#undef BACKWARD
}
