/* The lane type over which src/maps is written: one float, one channel. And the element types of a call: float, bf16, fp16. */
#ifndef DR_CUDA_LANES_CUH
#define DR_CUDA_LANES_CUH

#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/unroll.cuh"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <stdint.h>

typedef float lanes;

static __device__ inline lanes lanes_set(float x) {
    return x;
}

static __device__ inline lanes lanes_load(const float *from) {
    return *from;
}

static __device__ inline void lanes_store(float *to, lanes x) {
    *to = x;
}

static __device__ inline lanes lanes_exp(lanes x) {
    return expf(x);
}

static __device__ inline lanes lanes_log(lanes x) {
    return logf(x);
}

static __device__ inline lanes lanes_abs(lanes x) {
    return fabsf(x);
}

static __device__ inline lanes lanes_tanh(lanes x) {
    return tanhf(x);
}

/* What the squash of a diagonal scan is made of (maps/squash.h): one instruction each beside a product. */
static __device__ inline lanes lanes_reciprocal_near(lanes x) {
    return dr_reciprocal_near(x);
}

static __device__ inline lanes lanes_exp_near(lanes x) {
    return dr_exp2_near(1.44269504f * x);
}

static __device__ inline lanes lanes_log_near(lanes x) {
    return 0.693147181f * dr_log2_near(x);
}

/* 1 - 2 / (e^2x + 1) */
static __device__ inline lanes lanes_tanh_near(lanes x) {
    return fmaf(-2.0f, dr_reciprocal_near(1.0f + dr_exp2_near(2.88539008f * x)), 1.0f);
}

static __device__ inline lanes lanes_fma(lanes a, lanes b, lanes c) {
    return fmaf(a, b, c);
}

static __device__ inline lanes lanes_fnma(lanes a, lanes b, lanes c) {
    return fmaf(-a, b, c);
}

static __device__ inline float dr_to_float(float x) {
    return x;
}

static __device__ inline float dr_to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}

static __device__ inline float dr_to_float(__half x) {
    return __half2float(x);
}

template <typename T> static __device__ inline T dr_from_float(float x);

template <> __device__ inline float dr_from_float<float>(float x) {
    return x;
}

template <> __device__ inline __nv_bfloat16 dr_from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}

template <> __device__ inline __half dr_from_float<__half>(float x) {
    return __float2half_rn(x);
}

#endif
