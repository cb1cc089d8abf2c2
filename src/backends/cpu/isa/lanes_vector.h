/* The vector of lanes.h on processors without SSE: four floats in the compiler's own vectors, which need nothing of the
 * processor; as DR_ISA_neon with the fused products of AArch64. Comparisons give all bits of a lane, and min and max give their
 * second operand where one is NaN, as on x86-64. */
#ifndef DR_CPU_LANES_VECTOR_H
#define DR_CPU_LANES_VECTOR_H

#include <stdint.h>
#include <string.h>
#if defined(DR_ISA_neon)
#include <arm_neon.h>
#endif

enum { LANES = 4 };
typedef float lanes __attribute__((vector_size(16)));
typedef int32_t lanes_int __attribute__((vector_size(16)));
typedef lanes_int lanes_mask;

static inline lanes lanes_set(float x) {
    return (lanes){x, x, x, x};
}
static inline lanes lanes_load(const float *p) {
    lanes x;
    memcpy(&x, p, sizeof x);
    return x;
}
static inline void lanes_store(float *p, lanes x) {
    memcpy(p, &x, sizeof x);
}
static inline lanes_int lanes_int_set(int32_t x) {
    return (lanes_int){x, x, x, x};
}
static inline lanes_mask lanes_first(int64_t n) {
    return (lanes_int){0, 1, 2, 3} < lanes_int_set((int32_t)(n > 4 ? 4 : n));
}
static inline lanes lanes_load_n(const float *p, int64_t n) {
    if (n >= 4) return lanes_load(p);
    return (lanes){n > 0 ? p[0] : 0.0f, n > 1 ? p[1] : 0.0f, n > 2 ? p[2] : 0.0f, 0.0f};
}
static inline void lanes_store_n(float *p, int64_t n, lanes x) {
    for (int i = 0; i < 4 && i < n; i++) p[i] = x[i];
}
#if defined(DR_ISA_neon)
static inline lanes lanes_fma(lanes a, lanes b, lanes c) {
    return (lanes)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
static inline lanes lanes_fnma(lanes a, lanes b, lanes c) {
    return (lanes)vfmsq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
#else
static inline lanes lanes_fma(lanes a, lanes b, lanes c) {
    return a * b + c;
}
static inline lanes lanes_fnma(lanes a, lanes b, lanes c) {
    return c - a * b;
}
#endif
static inline lanes_int lanes_bits(lanes x) {
    return (lanes_int)x;
}
static inline lanes lanes_of_bits(lanes_int x) {
    return (lanes)x;
}
static inline lanes_mask lanes_less(lanes a, lanes b) {
    return a < b;
}
static inline lanes_mask lanes_equal(lanes a, lanes b) {
    return a == b;
}
static inline lanes lanes_select(lanes_mask m, lanes yes, lanes no) {
    return (lanes)((m & (lanes_int)yes) | (~m & (lanes_int)no));
}
static inline lanes lanes_max(lanes a, lanes b) {
    return lanes_select(a > b, a, b);
}
static inline lanes lanes_min(lanes a, lanes b) {
    return lanes_select(a < b, a, b);
}
static inline lanes lanes_sqrt(lanes x) {
    for (int i = 0; i < 4; i++) x[i] = __builtin_sqrtf(x[i]);
    return x;
}
static inline lanes_int lanes_int_and(lanes_int a, lanes_int b) {
    return a & b;
}
static inline lanes_int lanes_int_or(lanes_int a, lanes_int b) {
    return a | b;
}
static inline lanes_int lanes_int_xor(lanes_int a, lanes_int b) {
    return a ^ b;
}
/* sums of bits: they wrap around */
static inline lanes_int lanes_int_add(lanes_int a, lanes_int b) {
    typedef uint32_t words __attribute__((vector_size(16)));
    return (lanes_int)((words)a + (words)b);
}
static inline lanes_int lanes_int_sub(lanes_int a, lanes_int b) {
    typedef uint32_t words __attribute__((vector_size(16)));
    return (lanes_int)((words)a - (words)b);
}
/* to the nearest, ties to even, for |x| below 2^22: adding 1.5 2^23 leaves no bits for a fraction. NaN gives any number. */
static inline lanes_int lanes_round(lanes x) {
    const lanes shifted = x + lanes_set(12582912.0f);
    return lanes_int_sub(lanes_bits(shifted), lanes_bits(lanes_set(12582912.0f)));
}
static inline lanes lanes_of_int(lanes_int x) {
    return __builtin_convertvector(x, lanes);
}
#define lanes_int_left(x, bits)  ((x) << (bits))
#define lanes_int_right(x, bits) ((x) >> (bits))

#endif
