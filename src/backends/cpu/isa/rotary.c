/* Rotary embedding. The angle of pair i at position p is p base^(-2i/dim): it is counted in turns, in double, so that whole
 * turns drop out exactly however far the position is, and what is left, at most half a turn, goes to single precision. Sine and
 * cosine are made once for a token and used by all its heads. */
#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa/lanes.h"

typedef struct {
    lanes sine, cosine;
} direction;

/* Of 2 pi t for |t| <= 1/2. With q = round(4t) quarter turns taken off, |r| <= pi/4, the Taylor series of both need four terms
 * beyond the first; q then says which is which and with what sign. */
static inline direction direction_of(lanes t) {
    lanes_int q = lanes_round(t * lanes_set(4.0f));
    lanes r = lanes_fnma(lanes_of_int(q), lanes_set(0.25f), t) * lanes_set(6.283185307f), z = r * r;
    lanes s = lanes_set(2.7557319e-6f), c = lanes_set(2.4801587e-5f);
    s = lanes_fma(s, z, lanes_set(-1.9841270e-4f));
    s = lanes_fma(s, z, lanes_set(8.3333333e-3f));
    s = lanes_fma(s, z, lanes_set(-1.6666667e-1f));
    s = lanes_fma(s * z, r, r);
    c = lanes_fma(c, z, lanes_set(-1.3888889e-3f));
    c = lanes_fma(c, z, lanes_set(4.1666667e-2f));
    c = lanes_fma(c, z, lanes_set(-0.5f));
    c = lanes_fma(c, z, lanes_set(1.0f));
    lanes_int one = lanes_int_set(1), two = lanes_int_set(2);
    lanes_mask swap = lanes_equal(lanes_of_int(lanes_int_and(q, one)), lanes_set(1.0f));
    lanes sine = lanes_select(swap, c, s), cosine = lanes_select(swap, s, c);
    lanes_int sine_sign = lanes_int_left(lanes_int_and(q, two), 30);
    lanes_int cosine_sign = lanes_int_left(lanes_int_and(lanes_int_add(q, one), two), 30);
    return (direction){.sine = lanes_of_bits(lanes_int_xor(lanes_bits(sine), sine_sign)),
                       .cosine = lanes_of_bits(lanes_int_xor(lanes_bits(cosine), cosine_sign))};
}

void DR_ISA_NAME(dr_cpu_rotary)(int64_t rows, int64_t heads, int64_t dim, int64_t position, const double *turns, bool inverse,
                                float *x) {
    const double round_to_whole = 0x1.8p52; /* adding it leaves no bits behind the point */
    int64_t half = dim / 2;
    for (int64_t row = 0; row < rows; row++, x += heads * dim) {
        double p = (double)(inverse ? -(position + row) : position + row);
        for (int64_t i = 0; i < half; i += LANES) {
            int64_t n = lanes_left(half, i);
            float rest[LANES] = {0};
            for (int64_t j = 0; j < n; j++) {
                double t = p * turns[i + j];
                rest[j] = (float)(t - ((t + round_to_whole) - round_to_whole));
            }
            direction d = direction_of(lanes_load(rest));
            for (int64_t h = 0; h < heads; h++) {
                float *first = x + h * dim + i, *second = first + half;
                lanes a = lanes_load_n(first, n), b = lanes_load_n(second, n);
                lanes_store_n(first, n, lanes_fnma(b, d.sine, a * d.cosine));
                lanes_store_n(second, n, lanes_fma(a, d.sine, b * d.cosine));
            }
        }
    }
}
