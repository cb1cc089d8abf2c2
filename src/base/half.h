/* Conversions between float and the two 16-bit formats, bit by bit: to the nearest, ties to even, as the processor's own
 * instructions do. NaN stays NaN (made quiet), overflow becomes infinity, subnormal numbers are kept. */
#ifndef DR_BASE_HALF_H
#define DR_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t dr_float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float dr_float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float dr_bf16_to_float(uint16_t half) {
    return dr_float_of_bits((uint32_t)half << 16);
}

static inline uint16_t dr_bf16_from_float(float value) {
    uint32_t bits = dr_float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x0040u); /* rounding could carry NaN to infinity */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float dr_f16_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31u, fraction = half & 0x3ffu;
    if (exponent == 31) return dr_float_of_bits(sign | 0x7f800000u | fraction << 13 | (fraction ? 0x00400000u : 0u));
    if (exponent == 0) return dr_float_of_bits(sign | dr_float_bits((float)fraction * 0x1p-24f)); /* zero or subnormal */
    return dr_float_of_bits(sign | (exponent + 112u) << 23 | fraction << 13);
}

static inline uint16_t dr_f16_from_float(float value) {
    uint32_t bits = dr_float_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* from 65520, halfway between the largest and 2^16 */
    if (magnitude < 0x38800000u) /* below 2^-14: adding 1/2, whose last place is worth 2^-24, rounds */
        return (uint16_t)(sign | (dr_float_bits(dr_float_of_bits(magnitude) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
}

/* The float beside a double towards zero, with its last bit set where it is not the double itself: what 16 bits make of it is
 * then what they would make of the double, rounded once. */
static inline float dr_float_to_odd(double value) {
    float nearest = (float)value;
    if ((double)nearest == value || value != value) return nearest;
    uint32_t bits = dr_float_bits(nearest);
    double size = value < 0 ? -value : value;
    if ((double)dr_float_of_bits(bits & 0x7fffffffu) > size) bits--;
    return dr_float_of_bits(bits | 1u);
}

static inline uint16_t dr_bf16_from_double(double value) {
    return dr_bf16_from_float(dr_float_to_odd(value));
}

static inline uint16_t dr_f16_from_double(double value) {
    return dr_f16_from_float(dr_float_to_odd(value));
}

#endif
