/* The scalar functions of networks and their derivatives in float. Loops over vectors are limited by instructions where these
 * are divisions and exponentials to the last bit: so exponentials and reciprocals are those that the GPU has an instruction
 * for, good to 2^-22 (device/instructions.cuh). */
#ifndef DR_CUDA_NETWORK_FUNCTIONS_CUH
#define DR_CUDA_NETWORK_FUNCTIONS_CUH

#include "backends/cuda/cuda.h"
#include "backends/cuda/device/lanes.cuh"

/* sigmoid(x) and sigmoid(-x), which is 1 - sigmoid(x) without its cancellation. */
typedef struct {
    float is, other;
} dr_sigmoids;

static __device__ inline dr_sigmoids dr_sigmoids_of(float x) {
    const float small = lanes_exp_near(-fabsf(x)), near = dr_reciprocal_near(1 + small), far = small * near;
    return x >= 0 ? dr_sigmoids{near, far} : dr_sigmoids{far, near};
}

static __device__ inline float dr_sigmoid(float x) {
    return dr_sigmoids_of(x).is;
}

static __device__ inline float dr_sigmoid_slope(float x) {
    const dr_sigmoids s = dr_sigmoids_of(x);
    return s.is * s.other;
}

/* ln(1 + exp x), whose derivative is sigmoid(x). With e = exp(-|x|) and z = e / (2 + e) at most 1/3, ln(1 + e) is
 * 2 (z + z^3/3 + z^5/5 + ..), which keeps its digits where e is small; what is left out is below 2^-22 of it. */
static __device__ inline float dr_softplus(float x) {
    const float small = lanes_exp_near(-fabsf(x)), z = small * dr_reciprocal_near(2 + small), q = z * z;
    const float series = fmaf(q, fmaf(q, fmaf(q, fmaf(q, fmaf(q, 1.0f / 11, 1.0f / 9), 1.0f / 7), 1.0f / 5), 1.0f / 3), 1.0f);
    return fmaf(2 * z, series, fmaxf(x, 0));
}

static __device__ inline float dr_silu(float x) {
    return x * dr_reciprocal_near(1 + lanes_exp_near(-x));
}

/* s (1 + x (1 - s)): beside 1, which the cancellation is the error of, nothing is lost */
static __device__ inline float dr_silu_slope(float x) {
    const float s = dr_reciprocal_near(1 + lanes_exp_near(-x));
    return s * fmaf(x, 1 - s, 1);
}

static __device__ inline float dr_activate(dr_activation kind, float x) {
    return kind == DR_ACTIVATION_SILU ? dr_silu(x) : kind == DR_ACTIVATION_SIGMOID ? dr_sigmoid(x) : x;
}

static __device__ inline float dr_activation_slope(dr_activation kind, float x) {
    return kind == DR_ACTIVATION_SILU ? dr_silu_slope(x) : kind == DR_ACTIVATION_SIGMOID ? dr_sigmoid_slope(x) : 1;
}

#endif
