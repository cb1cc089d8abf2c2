/* Floats as 16 bits that share an exponent: what write keys get, on its way from gradients.cu to key_scan.cu. That is not yet a
 * gradient of the call, so it may not lose what bfloat16 takes from the largest of a row's numbers; whole numbers of a unit
 * that the row has are off by half of it.
 *
 * The unit is a power of two, the largest magnitude within [2^14, 2^15) of it: so that one rounding, 2^-15 of the largest at
 * most, is all that changes. 2^23 + 2^15 and a whole number together are a float whose last 16 bits are that number, 2^15
 * above: both ways take one addition and a move of bytes. Where a number is none, infinite or beyond 2^118, all that share its
 * unit come back as none. */
#ifndef DR_CUDA_SHARED_EXPONENT_CUH
#define DR_CUDA_SHARED_EXPONENT_CUH

#include "backends/cuda/device/instructions.cuh"

/* 2^23 + 2^15 */
#define DR_SHARED_ZERO 8421376.0f

typedef struct {
    float per_unit; /* one over it */
    float unit;
} dr_shared_unit;

/* largest: the largest magnitude (dr_larger) of what is to share the unit. If it would be rounded up to 2^15 it takes the next
 * one; below 2^-112 the unit is that of 2^-112, since both numbers have to be normal. */
static __device__ inline dr_shared_unit dr_share_unit(float largest) {
    const unsigned least = 15u << 23, power = __float_as_uint(fmaf(largest, 0x1p-15f, largest)) & 0x7f800000u,
                   bits = power > least ? power : least;
    return {__uint_as_float((268u << 23) - bits), __uint_as_float(bits) * 0x1p-14f};
}

/* left in the lower half. */
static __device__ inline unsigned dr_pack_shared(float left, float right, float per_unit) {
    const float low = fmaf(left, per_unit, DR_SHARED_ZERO), high = fmaf(right, per_unit, DR_SHARED_ZERO);
    return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x5410);
}

static __device__ inline float2 dr_unpack_shared(unsigned pair, float unit) {
    const float low = __uint_as_float(__byte_perm(pair, 0x4b000000u, 0x7610)),
                high = __uint_as_float(__byte_perm(pair, 0x4b000000u, 0x7632)), zero = -DR_SHARED_ZERO * unit;
    return make_float2(fmaf(low, unit, zero), fmaf(high, unit, zero));
}

#endif
