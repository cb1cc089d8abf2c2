/* The scalar functions that several operations share, and their derivatives, each written so that neither end overflows: an
 * exponential is only ever taken of a number that is not positive. */
#ifndef DR_BACKENDS_REFERENCE_ACTIVATION_H
#define DR_BACKENDS_REFERENCE_ACTIVATION_H

#include "ops/operations.h"

#include <math.h>

static inline double sigmoid(double x) {
    double small = exp(-fabs(x));
    return x >= 0 ? 1 / (1 + small) : small / (1 + small);
}

/* 1 - sigmoid(x) is sigmoid(-x), without its cancellation */
static inline double sigmoid_derivative(double x) {
    return sigmoid(x) * sigmoid(-x);
}

/* ln(1 + exp x); its derivative is sigmoid(x) */
static inline double softplus(double x) {
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}

static inline double silu(double x) {
    return x * sigmoid(x);
}

static inline double silu_derivative(double x) {
    return sigmoid(x) + x * sigmoid_derivative(x);
}

static inline double activation(dr_activation kind, double x) {
    switch (kind) {
    case DR_ACTIVATION_NONE:
        return x;
    case DR_ACTIVATION_SILU:
        return silu(x);
    case DR_ACTIVATION_SIGMOID:
        return sigmoid(x);
    }
    return (double)NAN;
}

static inline double activation_derivative(dr_activation kind, double x) {
    switch (kind) {
    case DR_ACTIVATION_NONE:
        return 1;
    case DR_ACTIVATION_SILU:
        return silu_derivative(x);
    case DR_ACTIVATION_SIGMOID:
        return sigmoid_derivative(x);
    }
    return (double)NAN;
}

#endif
