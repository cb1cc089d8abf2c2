/* A vector of LANES floats and the arithmetic on it: 16 on AVX-512, 8 on AVX2, 4 on plain x86-64 and elsewhere. + - * / and
 * unary - are written as they are; the rest are functions here.
 *
 * Tails use the same operations as whole vectors: load_n fills the missing lanes with zero and store_n leaves the memory behind
 * them alone, so that a result never depends on where in a row it stands. The build turns contraction off (-ffp-contract=off):
 * a product is fused into a sum where lanes_fma says so, nowhere else.
 *
 * exp, log and what is built on them are accurate to about two units in the last place over the whole range: exp underflows
 * gradually to 0, exp(-inf) = 0, log(0) = -inf, and NaN passes through. Their polynomials are minimax fits (Remez). */
#ifndef DR_CPU_LANES_H
#define DR_CPU_LANES_H

#if defined(__SSE2__)
#include <immintrin.h>
#endif
#include <math.h>
#include <stdint.h>

#if defined(DR_ISA_avx512)

enum { LANES = 16 };
typedef float lanes __attribute__((vector_size(64)));
typedef __mmask16 lanes_mask;
typedef __m512i lanes_int;

static inline lanes lanes_set(float x) {
    return _mm512_set1_ps(x);
}
static inline lanes lanes_load(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline void lanes_store(float *p, lanes x) {
    _mm512_storeu_ps(p, x);
}
static inline lanes_mask lanes_first(int64_t n) {
    return (lanes_mask)(n >= 16 ? 0xffff : (1u << n) - 1);
}
static inline lanes lanes_load_n(const float *p, int64_t n) {
    return n >= 16 ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(lanes_first(n), p);
}
static inline void lanes_store_n(float *p, int64_t n, lanes x) {
    if (n >= 16)
        _mm512_storeu_ps(p, x);
    else
        _mm512_mask_storeu_ps(p, lanes_first(n), x);
}
static inline lanes lanes_fma(lanes a, lanes b, lanes c) {
    return _mm512_fmadd_ps(a, b, c);
}
static inline lanes lanes_fnma(lanes a, lanes b, lanes c) {
    return _mm512_fnmadd_ps(a, b, c);
}
static inline lanes lanes_max(lanes a, lanes b) {
    return _mm512_max_ps(a, b);
}
static inline lanes lanes_min(lanes a, lanes b) {
    return _mm512_min_ps(a, b);
}
static inline lanes lanes_sqrt(lanes x) {
    return _mm512_sqrt_ps(x);
}
static inline lanes_mask lanes_less(lanes a, lanes b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
static inline lanes_mask lanes_equal(lanes a, lanes b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
static inline lanes lanes_select(lanes_mask m, lanes yes, lanes no) {
    return _mm512_mask_blend_ps(m, no, yes);
}
static inline lanes_int lanes_bits(lanes x) {
    return _mm512_castps_si512(x);
}
static inline lanes lanes_of_bits(lanes_int x) {
    return _mm512_castsi512_ps(x);
}
static inline lanes_int lanes_int_set(int32_t x) {
    return _mm512_set1_epi32(x);
}
static inline lanes_int lanes_int_and(lanes_int a, lanes_int b) {
    return _mm512_and_si512(a, b);
}
static inline lanes_int lanes_int_or(lanes_int a, lanes_int b) {
    return _mm512_or_si512(a, b);
}
static inline lanes_int lanes_int_xor(lanes_int a, lanes_int b) {
    return _mm512_xor_si512(a, b);
}
static inline lanes_int lanes_int_add(lanes_int a, lanes_int b) {
    return _mm512_add_epi32(a, b);
}
static inline lanes_int lanes_int_sub(lanes_int a, lanes_int b) {
    return _mm512_sub_epi32(a, b);
}
static inline lanes_int lanes_round(lanes x) {
    return _mm512_cvtps_epi32(x);
}
static inline lanes lanes_of_int(lanes_int x) {
    return _mm512_cvtepi32_ps(x);
}
#define lanes_int_left(x, bits)  _mm512_slli_epi32(x, bits)
#define lanes_int_right(x, bits) _mm512_srai_epi32(x, bits)
static inline __m256 lanes_low_(lanes x) {
    return _mm512_castps512_ps256(x);
}
static inline __m256 lanes_high_(lanes x) {
    return _mm512_extractf32x8_ps(x, 1);
}

#elif defined(DR_ISA_avx2)

enum { LANES = 8 };
typedef float lanes __attribute__((vector_size(32)));
typedef __m256 lanes_mask;
typedef __m256i lanes_int;

static inline lanes lanes_set(float x) {
    return _mm256_set1_ps(x);
}
static inline lanes lanes_load(const float *p) {
    return _mm256_loadu_ps(p);
}
static inline void lanes_store(float *p, lanes x) {
    _mm256_storeu_ps(p, x);
}
static inline __m256i lanes_first_(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n > 8 ? 8 : n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline lanes_mask lanes_first(int64_t n) {
    return _mm256_castsi256_ps(lanes_first_(n));
}
static inline lanes lanes_load_n(const float *p, int64_t n) {
    return n >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, lanes_first_(n));
}
static inline void lanes_store_n(float *p, int64_t n, lanes x) {
    if (n >= 8)
        _mm256_storeu_ps(p, x); /* masked stores are slow on some processors */
    else
        _mm256_maskstore_ps(p, lanes_first_(n), x);
}
static inline lanes lanes_fma(lanes a, lanes b, lanes c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline lanes lanes_fnma(lanes a, lanes b, lanes c) {
    return _mm256_fnmadd_ps(a, b, c);
}
static inline lanes lanes_max(lanes a, lanes b) {
    return _mm256_max_ps(a, b);
}
static inline lanes lanes_min(lanes a, lanes b) {
    return _mm256_min_ps(a, b);
}
static inline lanes lanes_sqrt(lanes x) {
    return _mm256_sqrt_ps(x);
}
static inline lanes_mask lanes_less(lanes a, lanes b) {
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
static inline lanes_mask lanes_equal(lanes a, lanes b) {
    return _mm256_cmp_ps(a, b, _CMP_EQ_OQ);
}
static inline lanes lanes_select(lanes_mask m, lanes yes, lanes no) {
    return _mm256_blendv_ps(no, yes, m);
}
static inline lanes_int lanes_bits(lanes x) {
    return _mm256_castps_si256(x);
}
static inline lanes lanes_of_bits(lanes_int x) {
    return _mm256_castsi256_ps(x);
}
static inline lanes_int lanes_int_set(int32_t x) {
    return _mm256_set1_epi32(x);
}
static inline lanes_int lanes_int_and(lanes_int a, lanes_int b) {
    return _mm256_and_si256(a, b);
}
static inline lanes_int lanes_int_or(lanes_int a, lanes_int b) {
    return _mm256_or_si256(a, b);
}
static inline lanes_int lanes_int_xor(lanes_int a, lanes_int b) {
    return _mm256_xor_si256(a, b);
}
static inline lanes_int lanes_int_add(lanes_int a, lanes_int b) {
    return _mm256_add_epi32(a, b);
}
static inline lanes_int lanes_int_sub(lanes_int a, lanes_int b) {
    return _mm256_sub_epi32(a, b);
}
static inline lanes_int lanes_round(lanes x) {
    return _mm256_cvtps_epi32(x);
}
static inline lanes lanes_of_int(lanes_int x) {
    return _mm256_cvtepi32_ps(x);
}
#define lanes_int_left(x, bits)  _mm256_slli_epi32(x, bits)
#define lanes_int_right(x, bits) _mm256_srai_epi32(x, bits)

#elif !defined(__SSE2__)

#include "backends/cpu/isa/lanes_vector.h"

#else

enum { LANES = 4 };
typedef float lanes __attribute__((vector_size(16)));
typedef __m128 lanes_mask;
typedef __m128i lanes_int;

static inline lanes lanes_set(float x) {
    return _mm_set1_ps(x);
}
static inline lanes lanes_load(const float *p) {
    return _mm_loadu_ps(p);
}
static inline void lanes_store(float *p, lanes x) {
    _mm_storeu_ps(p, x);
}
static inline lanes_mask lanes_first(int64_t n) {
    return _mm_castsi128_ps(_mm_cmpgt_epi32(_mm_set1_epi32((int)(n > 4 ? 4 : n)), _mm_setr_epi32(0, 1, 2, 3)));
}
static inline lanes lanes_load_n(const float *p, int64_t n) {
    if (n >= 4) return _mm_loadu_ps(p);
    return _mm_setr_ps(n > 0 ? p[0] : 0.0f, n > 1 ? p[1] : 0.0f, n > 2 ? p[2] : 0.0f, 0.0f);
}
static inline void lanes_store_n(float *p, int64_t n, lanes x) {
    if (n >= 4) {
        _mm_storeu_ps(p, x);
        return;
    }
    float part[4];
    _mm_storeu_ps(part, x);
    for (int i = 0; i < n; i++) p[i] = part[i];
}
static inline lanes lanes_fma(lanes a, lanes b, lanes c) {
    return a * b + c;
}
static inline lanes lanes_fnma(lanes a, lanes b, lanes c) {
    return c - a * b;
}
static inline lanes lanes_max(lanes a, lanes b) {
    return _mm_max_ps(a, b);
}
static inline lanes lanes_min(lanes a, lanes b) {
    return _mm_min_ps(a, b);
}
static inline lanes lanes_sqrt(lanes x) {
    return _mm_sqrt_ps(x);
}
static inline lanes_mask lanes_less(lanes a, lanes b) {
    return _mm_cmplt_ps(a, b);
}
static inline lanes_mask lanes_equal(lanes a, lanes b) {
    return _mm_cmpeq_ps(a, b);
}
static inline lanes lanes_select(lanes_mask m, lanes yes, lanes no) {
    return _mm_or_ps(_mm_and_ps(m, yes), _mm_andnot_ps(m, no));
}
static inline lanes_int lanes_bits(lanes x) {
    return _mm_castps_si128(x);
}
static inline lanes lanes_of_bits(lanes_int x) {
    return _mm_castsi128_ps(x);
}
static inline lanes_int lanes_int_set(int32_t x) {
    return _mm_set1_epi32(x);
}
static inline lanes_int lanes_int_and(lanes_int a, lanes_int b) {
    return _mm_and_si128(a, b);
}
static inline lanes_int lanes_int_or(lanes_int a, lanes_int b) {
    return _mm_or_si128(a, b);
}
static inline lanes_int lanes_int_xor(lanes_int a, lanes_int b) {
    return _mm_xor_si128(a, b);
}
static inline lanes_int lanes_int_add(lanes_int a, lanes_int b) {
    return _mm_add_epi32(a, b);
}
static inline lanes_int lanes_int_sub(lanes_int a, lanes_int b) {
    return _mm_sub_epi32(a, b);
}
static inline lanes_int lanes_round(lanes x) {
    return _mm_cvtps_epi32(x);
}
static inline lanes lanes_of_int(lanes_int x) {
    return _mm_cvtepi32_ps(x);
}
#define lanes_int_left(x, bits)  _mm_slli_epi32(x, bits)
#define lanes_int_right(x, bits) _mm_srai_epi32(x, bits)

#endif

/* asks for a line of memory that is read soon, into the second-level cache */
#define lanes_prefetch(p) __builtin_prefetch((p), 0, 2)

static inline lanes lanes_zero(void) {
    return lanes_set(0.0f);
}

/* how many of the LANES from position i of n are there: for load_n and store_n in a loop that steps by LANES */
static inline int64_t lanes_left(int64_t n, int64_t i) {
    return n - i < LANES ? n - i : LANES;
}

static inline lanes lanes_abs(lanes x) {
    return lanes_of_bits(lanes_int_and(lanes_bits(x), lanes_int_set(0x7fffffff)));
}

/* magnitude's bits below the sign, sign's sign; magnitude >= 0 */
static inline lanes lanes_copy_sign(lanes magnitude, lanes sign) {
    return lanes_of_bits(lanes_int_or(lanes_bits(magnitude), lanes_int_and(lanes_bits(sign), lanes_int_set(INT32_MIN))));
}

/* bfloat16 to floats; and back, to the nearest, ties to even, as base/half.h does it */
static inline lanes lanes_load_bf16(const uint16_t *p) {
#if defined(DR_ISA_avx512)
    return lanes_of_bits(lanes_int_left(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
#elif defined(DR_ISA_avx2)
    return lanes_of_bits(lanes_int_left(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
#elif !defined(__SSE2__)
    return lanes_of_bits((lanes_int){(int32_t)((uint32_t)p[0] << 16), (int32_t)((uint32_t)p[1] << 16),
                                     (int32_t)((uint32_t)p[2] << 16), (int32_t)((uint32_t)p[3] << 16)});
#else
    return lanes_of_bits(_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i *)p)));
#endif
}
/* x rounded, in the upper halves; the lower hold what is left */
static inline lanes_int lanes_nearest_bf16_(lanes x) {
    lanes_int bits = lanes_bits(x), up = lanes_int_add(bits, lanes_int_set(0x7fff));
#if defined(DR_ISA_avx512)
    return _mm512_mask_add_epi32(up, _mm512_test_epi32_mask(bits, lanes_int_set(0x10000)), up, lanes_int_set(1));
#else
    return lanes_int_add(up, lanes_int_and(lanes_int_right(bits, 16), lanes_int_set(1)));
#endif
}
static inline void lanes_store_bf16(uint16_t *p, lanes x) {
    lanes quiet = lanes_of_bits(lanes_int_or(lanes_bits(x), lanes_int_set(0x00400000))); /* rounding could carry NaN to 0 */
    lanes nearest = lanes_select(lanes_equal(x, x), lanes_of_bits(lanes_nearest_bf16_(x)), quiet);
    lanes_int bits = lanes_int_right(lanes_bits(nearest), 16);
#if defined(DR_ISA_avx512)
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(bits));
#elif defined(DR_ISA_avx2)
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1)));
#elif !defined(__SSE2__)
    for (int i = 0; i < 4; i++) p[i] = (uint16_t)bits[i];
#else
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi32(bits, bits));
#endif
}

/* 2 LANES of them at once, those at even and at odd places apart, which takes no permutation. What is stored may be a NaN only
 * with the bits of one in bfloat16: sums and products of such have no others. */
static inline lanes lanes_plain_nan(lanes x) {
    return lanes_select(lanes_equal(x, x), x, lanes_set(NAN));
}
static inline void lanes_load_bf16_pairs(const uint16_t *p, lanes *even, lanes *odd) {
    const lanes_int both = lanes_bits(lanes_load((const void *)p));
    *even = lanes_of_bits(lanes_int_left(both, 16));
    *odd = lanes_of_bits(lanes_int_and(both, lanes_int_set(-0x10000)));
}
static inline void lanes_store_bf16_pairs(uint16_t *p, lanes even, lanes odd) {
    const lanes_int low = lanes_nearest_bf16_(even), high = lanes_nearest_bf16_(odd);
#if defined(DR_ISA_avx512)
    const lanes_int both = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(low, 16), high);
#elif defined(DR_ISA_avx2)
    const lanes_int both = _mm256_blend_epi16(_mm256_srli_epi32(low, 16), high, 0xaa);
#elif !defined(__SSE2__)
    const lanes_int upper = lanes_int_set(-0x10000);
    const lanes_int both = (lanes_int_right(low, 16) & ~upper) | (high & upper);
#else
    const lanes_int both = _mm_or_si128(_mm_srli_epi32(low, 16), _mm_and_si128(high, lanes_int_set(-0x10000)));
#endif
    lanes_store((void *)p, lanes_of_bits(both));
}

/* Sum and largest of the lanes, by halves: always the same order. A NaN among them may be lost by lanes_largest. */
#if !defined(__SSE2__)
static inline float lanes_sum(lanes x) {
    return (x[0] + x[2]) + (x[1] + x[3]);
}
static inline float lanes_largest(lanes x) {
    const float even = x[0] > x[2] ? x[0] : x[2], odd = x[1] > x[3] ? x[1] : x[3];
    return even > odd ? even : odd;
}
#else
static inline float lanes_sum(lanes x) {
#if defined(DR_ISA_avx512)
    __m256 y = lanes_low_(x) + lanes_high_(x);
    __m128 z = _mm256_castps256_ps128(y) + _mm256_extractf128_ps(y, 1);
#elif defined(DR_ISA_avx2)
    __m128 z = _mm256_castps256_ps128(x) + _mm256_extractf128_ps(x, 1);
#else
    __m128 z = x;
#endif
    z = z + _mm_movehl_ps(z, z);
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_shuffle_ps(z, z, 1)));
}

static inline float lanes_largest(lanes x) {
#if defined(DR_ISA_avx512)
    __m256 y = _mm256_max_ps(lanes_low_(x), lanes_high_(x));
    __m128 z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
#elif defined(DR_ISA_avx2)
    __m128 z = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
#else
    __m128 z = x;
#endif
    z = _mm_max_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_shuffle_ps(z, z, 1)));
}
#endif

#if defined(DR_ISA_avx512)

/* e^x for x that is at most 89: 2^n 2^(j/16) e^r with n + j/16 = round(16 x / ln 2) / 16, |r| <= ln(2)/32: adding 1.5 2^19
 * rounds to sixteenths and leaves j in the last bits; ln 2 in two parts so that r is exact. Limits: beyond them the result is 0
 * or infinity in any case; a NaN passes because min and max give their second operand then. */
static inline lanes lanes_exp_bounded_(lanes x) {
    static const float root[LANES] = {1.0f,        1.04427373f, 1.09050775f, 1.13878858f, 1.18920708f, 1.24185777f,
                                      1.29683959f, 1.35425556f, 1.41421354f, 1.47682619f, 1.54221082f, 1.61049032f,
                                      1.68179286f, 1.75625217f, 1.8340081f,  1.91520655f};
    x = lanes_max(lanes_set(-104.5f), x);
    const lanes rounded = lanes_fma(x, lanes_set(1.44269504f), lanes_set(786432.0f)), n = rounded - lanes_set(786432.0f);
    lanes r = lanes_fnma(n, lanes_set(0.693359375f), x);
    r = lanes_fnma(n, lanes_set(-2.12194440e-4f), r);
    const lanes p = lanes_fma(lanes_fma(r, lanes_set(1.666666716e-01f), lanes_set(0.5f)), r * r, r);
    const lanes t = _mm512_permutexvar_ps(lanes_bits(rounded), lanes_load(root));
    return _mm512_scalef_ps(lanes_fma(t, p, t), n); /* which takes n's whole part, rounded down */
}

#else

/* x 2^n for a whole n in [-252, 254], correctly rounded when the result is subnormal: two factors, of which the first keeps x
 * exact for x near 1 */
static inline lanes lanes_scale_(lanes x, lanes_int n) {
    lanes_int half = lanes_int_right(n, 1), rest = lanes_int_sub(n, half), bias = lanes_int_set(127);
    lanes one = lanes_of_bits(lanes_int_left(lanes_int_add(half, bias), 23));
    lanes two = lanes_of_bits(lanes_int_left(lanes_int_add(rest, bias), 23));
    return x * one * two;
}

/* e^x for x that is at most 89: 2^n e^r with n = round(x / ln 2), |r| <= ln(2)/2; ln 2 in two parts so that r is exact. Limits:
 * beyond them the result is 0 or infinity in any case; a NaN passes because min and max give their second operand then. */
static inline lanes lanes_exp_bounded_(lanes x) {
    x = lanes_max(lanes_set(-104.5f), x);
    lanes_int n = lanes_round(x * lanes_set(1.44269504f));
    lanes whole = lanes_of_int(n);
    lanes r = lanes_fnma(whole, lanes_set(0.693359375f), x);
    r = lanes_fnma(whole, lanes_set(-2.12194440e-4f), r);
    lanes p = lanes_set(1.395045902e-03f);
    p = lanes_fma(p, r, lanes_set(8.368880611e-03f));
    p = lanes_fma(p, r, lanes_set(4.166620638e-02f));
    p = lanes_fma(p, r, lanes_set(1.666651893e-01f));
    p = lanes_fma(p, r, lanes_set(5.000000095e-01f));
    p = lanes_fma(p, r * r, r) + lanes_set(1.0f);
    return lanes_scale_(p, n);
}

#endif

static inline lanes lanes_exp(lanes x) {
    return lanes_exp_bounded_(lanes_min(lanes_set(89.0f), x));
}
/* e^-|x|, of which the sigmoid and its kin are made */
static inline lanes lanes_exp_fall(lanes x) {
    return lanes_exp_bounded_(-lanes_abs(x));
}

/* e^x - 1 for |x| <= ln 2: x + x^2 P(x), without the way there and back that the whole range needs. Here and below polynomials
 * are summed in pairs, which halves the time that one step waits for the one before it. */
static inline lanes lanes_expm1_near_(lanes x) {
    lanes square = x * x;
    lanes p = lanes_fma(lanes_set(1.666667004e-01f), x, lanes_set(0.5f));
    lanes q = lanes_fma(lanes_set(8.332772592e-03f), x, lanes_set(4.166667003e-02f));
    lanes r = lanes_fma(lanes_set(2.007427480e-04f), x, lanes_set(1.388832881e-03f));
    r = lanes_fma(lanes_set(2.503438013e-05f), square, r);
    p = lanes_fma(lanes_fma(r, square, q), square, p);
    return lanes_fma(p, square, x);
}

static inline lanes lanes_reciprocal_near(lanes x) {
    return lanes_set(1.0f) / x;
}

static inline lanes lanes_exp_near(lanes x) {
    return lanes_expm1_near_(x) + lanes_set(1.0f);
}

/* 1 - e^-x for x >= 0, which keeps its relative accuracy near 0 */
static inline lanes lanes_saturation(lanes x) {
    lanes near = -lanes_expm1_near_(-x), far = lanes_set(1.0f) - lanes_exp_fall(x);
    return lanes_select(lanes_less(x, lanes_set(0.6931f)), near, far);
}

/* f^3 Q(f) of ln(1 + f) = f - f^2/2 + f^3 Q(f), 1 + f in [sqrt(1/2), sqrt(2)] */
static inline lanes lanes_log_rest_(lanes f, lanes square) {
    lanes p = lanes_fma(lanes_set(-2.500080904e-01f), f, lanes_set(3.333331672e-01f));
    lanes q = lanes_fma(lanes_set(-1.662459550e-01f), f, lanes_set(2.000228705e-01f));
    lanes r = lanes_fma(lanes_set(-1.312838169e-01f), f, lanes_set(1.418118531e-01f));
    lanes s = lanes_fma(lanes_set(-7.860541656e-02f), f, lanes_set(1.288161626e-01f));
    p = lanes_fma(q, square, p);
    r = lanes_fma(s, square, r);
    return lanes_fma(r, square * square, p) * f * square;
}

#if defined(DR_ISA_avx512)

/* ln x = e ln 2 + ln(1 + f). ln 0 = -inf, ln of a negative number is NaN: the exponent of 0 is -inf, that of infinity infinity,
 * and the mantissa of a negative number is asked to be NaN. */
static inline lanes lanes_log(lanes x) {
    lanes m = _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_nan), e = _mm512_getexp_ps(x);
    lanes_mask above = _mm512_cmp_ps_mask(m, lanes_set(1.41421354f), _CMP_GE_OQ);
    m = _mm512_mask_mul_ps(m, above, m, lanes_set(0.5f));
    e = _mm512_mask_add_ps(e, above, e, lanes_set(1.0f));
    lanes f = m - lanes_set(1.0f), square = f * f, q = lanes_log_rest_(f, square);
    q = lanes_fma(e, lanes_set(-2.12194440e-4f), q);
    q = lanes_fma(square, lanes_set(-0.5f), q);
    const lanes_mask zero_or_infinite = _mm512_fpclass_ps_mask(x, 0x02 | 0x04 | 0x08); /* +0, -0, +inf: e is the logarithm */
    return lanes_select(zero_or_infinite, e, lanes_fma(e, lanes_set(0.693359375f), q + f));
}

/* ln x where only its absolute error counts, some 1e-7: with the mantissa's first four bits c = 1 / inverse is looked up, which
 * leaves ln(1 + f) for |f| < 1/32. Takes half the operations of the other. */
static inline lanes lanes_log_near(lanes x) {
    static const float inverse[LANES] = {0.969696999f, 0.914285719f, 0.864864886f, 0.820512831f, 0.780487776f, 0.744186044f,
                                         0.711111128f, 0.680851042f, 0.653061211f, 0.627451003f, 0.603773594f, 0.581818163f,
                                         0.561403513f, 0.542372882f, 0.524590135f, 0.507936537f};
    static const float log_c[LANES] = {0.030771628f, 0.0896121562f, 0.145181984f, 0.19782573f,  0.247836202f, 0.295464218f,
                                       0.340926558f, 0.384411722f,  0.426084429f, 0.466089696f, 0.504556f,    0.541597307f,
                                       0.577315331f, 0.611801565f,  0.645138025f, 0.677398741f};
    const lanes m = _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_nan), e = _mm512_getexp_ps(x);
    const lanes_int first = lanes_int_right(lanes_bits(m), 19); /* and what a permutation does not look at */
    const lanes f = lanes_fma(m, _mm512_permutexvar_ps(first, lanes_load(inverse)), lanes_set(-1.0f)), square = f * f;
    const lanes whole = lanes_fma(e, lanes_set(0.693147182f), _mm512_permutexvar_ps(first, lanes_load(log_c)));
    lanes p = lanes_fma(f, lanes_set(3.333333433e-01f), lanes_set(-0.5f));
    p = lanes_fma(square, lanes_fma(f, lanes_set(0.2f), lanes_set(-0.25f)), p);
    return whole + lanes_fma(p, square, f);
}

#else

/* ln x = e ln 2 + ln(1 + f), 1 + f in [sqrt(1/2), sqrt(2)], subnormal x scaled by 2^23 first.
 * ln 0 = -inf, ln of a negative number is NaN. */
static inline lanes lanes_log(lanes x) {
    lanes_mask small = lanes_less(x, lanes_set(0x1p-126f));
    lanes y = lanes_select(small, x * lanes_set(0x1p23f), x);
    lanes_int bits = lanes_int_sub(lanes_bits(y), lanes_int_set(0x3f3504f3)); /* bits of sqrt(1/2): f from its exponent on */
    lanes e = lanes_of_int(lanes_int_right(bits, 23)) - lanes_select(small, lanes_set(23.0f), lanes_zero());
    lanes m = lanes_of_bits(lanes_int_add(lanes_int_and(bits, lanes_int_set(0x007fffff)), lanes_int_set(0x3f3504f3)));
    lanes f = m - lanes_set(1.0f), square = f * f;
    lanes q = lanes_log_rest_(f, square);
    q = lanes_fma(e, lanes_set(-2.12194440e-4f), q);
    q = lanes_fma(square, lanes_set(-0.5f), q);
    lanes value = lanes_fma(e, lanes_set(0.693359375f), q + f);
    value = lanes_select(lanes_less(x, lanes_set(INFINITY)), value, x); /* infinity and NaN are their own logarithm */
    value = lanes_select(lanes_equal(x, lanes_zero()), lanes_set(-INFINITY), value);
    return lanes_select(lanes_less(x, lanes_zero()), lanes_set(NAN), value);
}

static inline lanes lanes_log_near(lanes x) {
    return lanes_log(x);
}

#endif

#if defined(DR_ISA_avx512)

/* ln(1 + x) for x in [0, 1]: by the nearest of 16 places in that range c = 1 / inverse is looked up, which leaves ln(1 + f) for
 * |f| < 1/30. At the first c is 1 and f is x, so that small x lose nothing. */
static inline lanes lanes_log1p(lanes x) {
    static const float inverse[LANES] = {1.0f,         0.939357162f, 0.885648966f, 0.837750137f, 0.794766545f, 0.755978525f,
                                         0.7208004f,   0.688750565f, 0.65942955f,  0.632503033f, 0.607689261f, 0.584748983f,
                                         0.563477635f, 0.543699563f, 0.525262773f, 0.508035421f};
    static const float log_c[LANES] = {0.0f,         0.0625595078f, 0.121434607f, 0.177035391f, 0.229706869f, 0.279742301f,
                                       0.327393025f, 0.372876108f,  0.416380137f, 0.458070278f, 0.498091608f, 0.536572635f,
                                       0.573627651f, 0.60935843f,   0.643856645f, 0.677204132f};
    const lanes_int place = lanes_bits(lanes_fma(x, lanes_set(15.49f), lanes_set(12582912.0f))); /* in its last four bits */
    const lanes i = _mm512_permutexvar_ps(place, lanes_load(inverse));
    const lanes f = lanes_fma(x, i, i - lanes_set(1.0f)), square = f * f;
    const lanes p = lanes_fma(f, lanes_set(3.333333433e-01f), lanes_set(-0.5f));
    const lanes q = lanes_fma(f, lanes_set(0.2f), lanes_set(-0.25f));
    return _mm512_permutexvar_ps(place, lanes_load(log_c)) + lanes_fma(lanes_fma(square, q, p), square, f);
}

#else

/* ln(1 + x) for x in [0, 1]: what 1 + x rounds away comes back as a first-order term */
static inline lanes lanes_log1p(lanes x) {
    lanes u = lanes_set(1.0f) + x;
    return lanes_log(u) + (x - (u - lanes_set(1.0f))) / u;
}

#endif

/* ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|) */
static inline lanes lanes_softplus(lanes x) {
    return lanes_max(lanes_zero(), x) + lanes_log1p(lanes_exp_fall(x));
}

/* 1 / (1 + e^-x), relatively accurate at both ends */
static inline lanes lanes_sigmoid(lanes x) {
    lanes e = lanes_exp_fall(x);
    return lanes_select(lanes_less(x, lanes_zero()), e, lanes_set(1.0f)) / (lanes_set(1.0f) + e);
}

/* The smaller of sigmoid(x) and sigmoid(-x); both follow from it, and their product, without losing relative accuracy. */
static inline lanes lanes_sigmoid_tail(lanes x) {
    lanes e = lanes_exp_fall(x);
    return e / (lanes_set(1.0f) + e);
}
static inline lanes lanes_sigmoid_of_tail(lanes x, lanes tail) {
    return lanes_select(lanes_less(x, lanes_zero()), tail, lanes_set(1.0f) - tail);
}
/* s (1 - s) */
static inline lanes lanes_sigmoid_slope_of_tail(lanes tail) {
    return lanes_fnma(tail, tail, tail);
}

static inline lanes lanes_silu(lanes x) {
    return x * lanes_sigmoid(x);
}

/* Derivatives. */
static inline lanes lanes_sigmoid_slope(lanes x) {
    return lanes_sigmoid_slope_of_tail(lanes_sigmoid_tail(x));
}
static inline lanes lanes_silu_slope(lanes x) {
    const lanes tail = lanes_sigmoid_tail(x);
    return lanes_fma(x, lanes_sigmoid_slope_of_tail(tail), lanes_sigmoid_of_tail(x, tail));
}

/* tanh x = x + x^3 P(x^2) near 0, else 1 - 2 / (e^2|x| + 1) with the sign of x */
static inline lanes lanes_tanh(lanes x) {
    lanes a = lanes_abs(x), z = x * x;
    lanes p = lanes_set(-5.719365250e-03f);
    p = lanes_fma(p, z, lanes_set(2.065328915e-02f));
    p = lanes_fma(p, z, lanes_set(-5.374458615e-02f));
    p = lanes_fma(p, z, lanes_set(1.333150892e-01f));
    p = lanes_fma(p, z, lanes_set(-3.333328486e-01f));
    p = lanes_fma(p * z, x, x);
    lanes far = lanes_set(1.0f) - lanes_set(2.0f) / (lanes_exp(a + a) + lanes_set(1.0f));
    return lanes_select(lanes_less(a, lanes_set(0.625f)), p, lanes_copy_sign(far, x));
}

static inline lanes lanes_tanh_near(lanes x) {
    return lanes_tanh(x);
}

#if defined(DR_ISA_avx512)
#define LANES_DEAL_LOW_  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define LANES_DEAL_HIGH_ 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define LANES_EVEN_      0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define LANES_ODD_       1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif defined(DR_ISA_avx2)
#define LANES_DEAL_LOW_  0, 8, 1, 9, 2, 10, 3, 11
#define LANES_DEAL_HIGH_ 4, 12, 5, 13, 6, 14, 7, 15
#define LANES_EVEN_      0, 2, 4, 6, 8, 10, 12, 14
#define LANES_ODD_       1, 3, 5, 7, 9, 11, 13, 15
#else
#define LANES_DEAL_LOW_  0, 4, 1, 5
#define LANES_DEAL_HIGH_ 2, 6, 3, 7
#define LANES_EVEN_      0, 2, 4, 6
#define LANES_ODD_       1, 3, 5, 7
#endif
/* 2 LANES floats in order, x then y, from those at even places x and at odd places y; and back */
static inline void lanes_deal(lanes *x, lanes *y) {
    const lanes even = *x, odd = *y;
    *x = __builtin_shufflevector(even, odd, LANES_DEAL_LOW_);
    *y = __builtin_shufflevector(even, odd, LANES_DEAL_HIGH_);
}
static inline void lanes_part(lanes *x, lanes *y) {
    const lanes first = *x, second = *y;
    *x = __builtin_shufflevector(first, second, LANES_EVEN_);
    *y = __builtin_shufflevector(first, second, LANES_ODD_);
}

/* Turns a square block: lane j of x[i] becomes lane i of x[j]. Each pass deals the first and second half of the vectors into
 * each other like two halves of a pack of cards; LANES cards are in turned order after log2(LANES) passes. */
static inline void lanes_turn(lanes x[LANES]) {
    lanes y[LANES];
#pragma GCC unroll 4
    for (int pass = 1; pass < LANES; pass *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            y[2 * i] = __builtin_shufflevector(x[i], x[i + LANES / 2], LANES_DEAL_LOW_);
            y[2 * i + 1] = __builtin_shufflevector(x[i], x[i + LANES / 2], LANES_DEAL_HIGH_);
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) x[i] = y[i];
    }
}

#endif
