/* The scalar functions of networks and their derivatives in float, each written so that neither end overflows: an exponential
 * is only taken of a number that is not positive. */
#ifndef DR_CUDA_NETWORK_FUNCTIONS_CUH
#define DR_CUDA_NETWORK_FUNCTIONS_CUH

#include "backends/cuda/cuda.h"
#include "backends/cuda/device/lanes.cuh"

static __device__ inline float dr_sigmoid(float x) {
    const float small = expf(-fabsf(x));
    return (x >= 0 ? 1 : small) / (1 + small);
}

/* 1 - sigmoid(x) is sigmoid(-x), without its cancellation */
static __device__ inline float dr_sigmoid_slope(float x) {
    return dr_sigmoid(x) * dr_sigmoid(-x);
}

/* ln(1 + exp x), whose derivative is sigmoid(x) */
static __device__ inline float dr_softplus(float x) {
    return fmaxf(x, 0) + log1pf(expf(-fabsf(x)));
}

static __device__ inline float dr_silu(float x) {
    return x * dr_sigmoid(x);
}

static __device__ inline float dr_silu_slope(float x) {
    return dr_sigmoid(x) + x * dr_sigmoid_slope(x);
}

static __device__ inline float dr_activate(dr_activation kind, float x) {
    return kind == DR_ACTIVATION_SILU ? dr_silu(x) : kind == DR_ACTIVATION_SIGMOID ? dr_sigmoid(x) : x;
}

static __device__ inline float dr_activation_slope(dr_activation kind, float x) {
    return kind == DR_ACTIVATION_SILU ? dr_silu_slope(x) : kind == DR_ACTIVATION_SIGMOID ? dr_sigmoid_slope(x) : 1;
}

#endif
