/* Functions of single elements, alone and as factors. */
#include "backends/reference/activation.h"
#include "backends/reference/reference.h"

#define ROOT_HALF         0.70710678118654752440
#define ROOT_TWO_OVER_PI  0.79788456080286535588
#define ROOT_HALF_OVER_PI 0.39894228040143267794

typedef struct {
    double y, slope;
} value;

/* (1 + tanh u) / 2 = sigmoid(2u) */
static value gelu_tanh(double x) {
    const double twice_u = 2 * ROOT_TWO_OVER_PI * (x + 0.044715 * x * x * x);
    const double twice_du = 2 * ROOT_TWO_OVER_PI * (1 + 3 * 0.044715 * x * x);
    return (value){x * sigmoid(twice_u), sigmoid(twice_u) + x * sigmoid_derivative(twice_u) * twice_du};
}

static value evaluate(dr_function function, double x) {
    switch (function) {
    case DR_FUNCTION_IDENTITY:
        return (value){x, 1};
    case DR_FUNCTION_RELU:
        return x > 0 ? (value){x, 1} : (value){isnan(x) ? x : 0, 0};
    case DR_FUNCTION_SQUARED_RELU:
        return x > 0 ? (value){x * x, 2 * x} : (value){isnan(x) ? x : 0, 0};
    case DR_FUNCTION_SIGMOID:
        return (value){sigmoid(x), sigmoid_derivative(x)};
    case DR_FUNCTION_SILU:
        return (value){silu(x), silu_derivative(x)};
    case DR_FUNCTION_TANH:
        return (value){tanh(x), 4 * sigmoid_derivative(2 * x)};
    case DR_FUNCTION_GELU: {
        const double below = erfc(-x * ROOT_HALF) / 2;
        return (value){x * below, below + x * ROOT_HALF_OVER_PI * exp(-x * x / 2)};
    }
    case DR_FUNCTION_GELU_TANH:
        return gelu_tanh(x);
    case DR_FUNCTION_ELU_1:
        return x > 0 ? (value){x + 1, 1} : (value){exp(x), exp(x)};
    case DR_FUNCTIONS:
        break;
    }
    return (value){(double)NAN, (double)NAN};
}

dr_status dr_reference_apply_forward(dr_backend *backend, dr_function function, int64_t count, const void *x, void *y) {
    (void)backend;
    for (int64_t i = 0; i < count; i++) ((double *)y)[i] = evaluate(function, ((const double *)x)[i]).y;
    return DR_OK;
}

dr_status dr_reference_apply_backward(dr_backend *backend, dr_function function, int64_t count, const void *x, const void *d_y,
                                      void *d_x) {
    (void)backend;
    for (int64_t i = 0; i < count; i++)
        ((double *)d_x)[i] = evaluate(function, ((const double *)x)[i]).slope * ((const double *)d_y)[i];
    return DR_OK;
}

dr_status dr_reference_gated_forward(dr_backend *backend, dr_function function, int64_t count, const void *x, const void *gate,
                                     void *y) {
    (void)backend;
    for (int64_t i = 0; i < count; i++)
        ((double *)y)[i] = evaluate(function, ((const double *)gate)[i]).y * ((const double *)x)[i];
    return DR_OK;
}

dr_status dr_reference_gated_backward(dr_backend *backend, dr_function function, int64_t count, const void *x_,
                                      const void *gate, const void *d_y_, void *d_x, void *d_gate) {
    (void)backend;
    for (int64_t i = 0; i < count; i++) {
        const value g = evaluate(function, ((const double *)gate)[i]);
        const double x = ((const double *)x_)[i], d_y = ((const double *)d_y_)[i];
        if (d_x) ((double *)d_x)[i] = g.y * d_y;
        if (d_gate) ((double *)d_gate)[i] = g.slope * x * d_y;
    }
    return DR_OK;
}

static double bounded(const dr_bound *bound, double x) {
    const double y = bound->factor * x;
    return y < bound->low ? bound->low : y > bound->high ? bound->high : y;
}

dr_status dr_reference_bound_forward(dr_backend *backend, const dr_bound *bound, int64_t count, const void *x, void *y) {
    (void)backend;
    for (int64_t i = 0; i < count; i++) ((double *)y)[i] = bounded(bound, ((const double *)x)[i]);
    return DR_OK;
}

dr_status dr_reference_bound_backward(dr_backend *backend, const dr_bound *bound, int64_t count, const void *x, const void *d_y,
                                      void *d_x) {
    (void)backend;
    for (int64_t i = 0; i < count; i++) {
        const double y = bounded(bound, ((const double *)x)[i]);
        ((double *)d_x)[i] = y == bound->low || y == bound->high ? 0 : bound->factor * ((const double *)d_y)[i];
    }
    return DR_OK;
}
