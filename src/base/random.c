/* Philox 4x32-10: ten rounds of multiplication and exclusive-or turn a counter of four words into four random words.
 *
 * Counter: the number of the block (low half) and the stream (high half); key: the seed. Word i of a stream is word i mod 4 of
 * block i / 4, so the position is one number and any word can be had without those before it. */
#include "base/random.h"

#include <math.h>
#include <string.h>

void dr_random_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t words[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

static void compute_block(const dr_random *random, uint32_t block[4]) {
    const uint64_t number = random->drawn / 4;
    const uint32_t counter[4] = {(uint32_t)number, (uint32_t)(number >> 32), (uint32_t)random->stream,
                                 (uint32_t)(random->stream >> 32)};
    const uint32_t key[2] = {(uint32_t)random->seed, (uint32_t)(random->seed >> 32)};
    dr_random_philox(counter, key, block);
}

/* The next count words; a block is computed once for all of its words that are asked for. */
static void draw(dr_random *random, uint32_t *words, int count) {
    uint32_t block[4];
    for (int i = 0; i < count; i++) {
        const unsigned at = (unsigned)(random->drawn % 4);
        if (i == 0 || at == 0) compute_block(random, block);
        words[i] = block[at];
        random->drawn++;
    }
}

static uint64_t draw_64_bits(dr_random *random) {
    uint32_t words[2];
    draw(random, words, 2);
    return (uint64_t)words[1] << 32 | words[0];
}

static double to_unit_interval(uint64_t bits) {
    return (double)(bits >> 11) * 0x1p-53;
}

dr_random dr_random_start(uint64_t seed, uint64_t stream) {
    return (dr_random){.seed = seed, .stream = stream, .drawn = 0};
}

uint32_t dr_random_word(dr_random *random) {
    uint32_t word;
    draw(random, &word, 1);
    return word;
}

double dr_random_uniform(dr_random *random) {
    return to_unit_interval(draw_64_bits(random));
}

uint64_t dr_random_below(dr_random *random, uint64_t bound) {
    /* 2^64 mod bound values at the low end are dropped: what is left is a multiple of bound. Few values are below bound, so
     * that the remainder is rarely asked for. */
    uint64_t bits;
    do bits = draw_64_bits(random);
    while (bits < bound && bits < -bound % bound);
    return bits % bound;
}

static const double TURN = 6.283185307179586476925; /* in radians */

double dr_random_normal(dr_random *random) {
    uint32_t words[4];
    draw(random, words, 4);
    double radius = 1 - to_unit_interval((uint64_t)words[1] << 32 | words[0]); /* in (0, 1]: its logarithm is finite */
    double turn = to_unit_interval((uint64_t)words[3] << 32 | words[2]);
    return sqrt(-2 * log(radius)) * cos(TURN * turn);
}

/* ---- many normal numbers -------------------------------------------------------------------------------------------- */

/* A float has 24 bits, and both logarithm and cosine below are right to 50: where the result with that error up and down comes
 * to one float, that is the float of dr_random_normal, too. Else, once in a million, dr_random_normal is asked. Their
 * polynomials are those of FreeBSD's msun (e_log.c, k_cos.c, k_sin.c). */

enum { AT_ONCE = 256 };
static const double MOST_ERROR = 1e-14; /* of the normal number, relative to its radius */

/* x in (0, 1], no subnormal: 2^k m with m from sqrt(1/2) to sqrt(2). */
static inline double fast_log(double x) {
    uint64_t bits;
    double m;
    memcpy(&bits, &x, sizeof bits);
    const int64_t k = (int64_t)(bits - UINT64_C(0x3fe6a09e667f3bcd)) >> 52;
    bits -= (uint64_t)k << 52;
    memcpy(&m, &bits, sizeof m);
    const double f = m - 1, s = f / (2 + f), z = s * s, w = z * z, half = 0.5 * f * f, power = (double)k;
    const double even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    const double odd = z * (6.666666666666735130e-01 +
                            w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    return power * 6.93147180369123816490e-01 - ((half - (s * (half + odd + even) + power * 1.90821492927058770002e-10)) - f);
}

/* x from 0 to 2 pi: q quarters of a turn, and the rest. */
static inline double fast_cos(double x) {
    const int q = (int)(x * 0.63661977236758134308 + 0.5);
    const double r = (x - q * 1.57079632673412561417e+00) - q * 6.07710050650619224932e-11, z = r * r;
    const double c =
        1 - 0.5 * z +
        z * z *
            (4.16666666666666019037e-02 +
             z * (-1.38888888888741095749e-03 +
                  z * (2.48015872894767294178e-05 +
                       z * (-2.75573143513906633035e-07 + z * (2.08757232129817482790e-09 - z * 1.13596475577881948265e-11)))));
    const double s =
        r +
        r * z *
            (-1.66666666666666324348e-01 +
             z * (8.33333333332248946124e-03 +
                  z * (-1.98412698298579493134e-04 +
                       z * (2.75573137070700676789e-06 + z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)))));
    const double value = q & 1 ? s : c;
    return (q + 1) & 2 ? -value : value;
}

/* Radius and turn of the next count normal numbers. */
static void draw_pairs(const dr_random *random, int count, double *radius, double *turn) {
    dr_random next = *random;
    for (int i = 0; i < count; i++) {
        uint32_t words[4];
        compute_block(&next, words);
        next.drawn += 4;
        radius[i] = 1 - to_unit_interval((uint64_t)words[1] << 32 | words[0]);
        turn[i] = to_unit_interval((uint64_t)words[3] << 32 | words[2]);
    }
}

void dr_random_normals(dr_random *random, double scale, int64_t count, float *to) {
    double radius[AT_ONCE], turn[AT_ONCE];
    for (int64_t first = 0; first < count; first += AT_ONCE) {
        const int some = count - first < AT_ONCE ? (int)(count - first) : AT_ONCE;
        draw_pairs(random, some, radius, turn);
        for (int i = 0; i < some; i++) {
            radius[i] = scale * sqrt(-2 * fast_log(radius[i]));
            turn[i] = radius[i] * fast_cos(TURN * turn[i]);
        }
        for (int i = 0; i < some; i++) {
            const double error = MOST_ERROR * fabs(radius[i]);
            const float low = (float)(turn[i] - error), high = (float)(turn[i] + error);
            dr_random exact = *random;
            exact.drawn += 4 * (uint64_t)i;
            to[first + i] = low == high && error > 0 ? low : (float)(scale * dr_random_normal(&exact));
        }
        random->drawn += 4 * (uint64_t)some;
    }
}
