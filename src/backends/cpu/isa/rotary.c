/* Rotary embedding. The angle of pair i at position p is p times its frequency: it is counted in turns, in double, so that
 * whole turns drop out exactly however far the position is, and what is left, at most half a turn, goes to single precision.
 * Sine and cosine are made once for a token and used by all its heads. */
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

/* n pairs whose elements lie apart */
static void turn_halves(float *first, float *second, int64_t n, direction d) {
    const lanes a = lanes_load_n(first, n), b = lanes_load_n(second, n);
    lanes_store_n(first, n, lanes_fnma(b, d.sine, a * d.cosine));
    lanes_store_n(second, n, lanes_fma(a, d.sine, b * d.cosine));
}

/* n pairs side by side */
static void turn_pairs(float *x, int64_t n, direction d) {
    lanes a = lanes_load_n(x, 2 * n), b = 2 * n > LANES ? lanes_load_n(x + LANES, 2 * n - LANES) : lanes_zero();
    lanes_part(&a, &b);
    lanes first = lanes_fnma(b, d.sine, a * d.cosine), second = lanes_fma(a, d.sine, b * d.cosine);
    lanes_deal(&first, &second);
    lanes_store_n(x, 2 * n, first);
    if (2 * n > LANES) lanes_store_n(x + LANES, 2 * n - LANES, second);
}

void DR_ISA_NAME(dr_cpu_rotary)(const dr_rotary *rotary, int64_t rows, int64_t position, const double *turns, bool backward,
                                float *x) {
    const double round_to_whole = 0x1.8p52; /* adding it leaves no bits behind the point */
    const int64_t half = rotary->dim / 2;
    const lanes factor = lanes_set((float)rotary->factor);
    for (int64_t row = 0; row < rows; row++, x += rotary->row) {
        double p = (double)(backward ? -(position + row) : position + row);
        for (int64_t i = 0; i < half; i += LANES) {
            int64_t n = lanes_left(half, i);
            float rest[LANES] = {0};
            for (int64_t j = 0; j < n; j++) {
                double t = p * turns[i + j];
                rest[j] = (float)(t - ((t + round_to_whole) - round_to_whole));
            }
            direction d = direction_of(lanes_load(rest));
            d = (direction){factor * d.sine, factor * d.cosine};
            for (int64_t h = 0; h < rotary->heads; h++) {
                float *head = x + h * rotary->size + rotary->first;
                if (rotary->interleaved)
                    turn_pairs(head + 2 * i, n, d);
                else
                    turn_halves(head + i, head + i + half, n, d);
            }
        }
    }
}
