/* The gain c of a row and the factor on its value, from scalars of one token and value head, forward and backward.
 *
 *     base     1, beta, erase_gain, beta / (1 + beta s), 1 / (s + eps), (1 - exp(-beta s)) / s       s = r . w, or key . key
 *     factor   1, 1/m, 1/(1 + m), 1/(alpha + beta m)                                                   m = key . (B key)
 *     c        = base factor;   z = c v (gain_v), factor v (v), factor write_gate v (gated_v)
 *
 * A zero key erases and writes nothing. So 1 / (s + eps), 1/m and 1/(alpha + beta m) are 0, and pass no gradient on, where the
 * denominator is 0 or so small that float has no quotient. */
#ifndef DR_MAPS_GAIN_H
#define DR_MAPS_GAIN_H

#include "maps/map.h"

#include <deltarule/rule.h>
#include <math.h>

typedef struct {
    float beta, erase_gain, alpha, dot, key_dot;
} dr_map_gain_inputs;

/* (1 - exp(-x)) / x and its derivative; near 0 by their series, where the quotients would cancel */
DR_MAP float dr_map_decay_mean(float x) {
    if (fabsf(x) < 0.5f) return 1 - x / 2 * (1 - x / 3 * (1 - x / 4 * (1 - x / 5 * (1 - x / 6 * (1 - x / 7 * (1 - x / 8))))));
    return -expm1f(-x) / x;
}

DR_MAP float dr_map_decay_mean_slope(float x) {
    if (fabsf(x) < 0.5f) {
        float sum = x / 45360 - 1.0f / 5760;
        sum = sum * x + 1.0f / 840;
        sum = sum * x - 1.0f / 144;
        sum = sum * x + 1.0f / 30;
        sum = sum * x - 1.0f / 8;
        sum = sum * x + 1.0f / 3;
        return sum * x - 1.0f / 2;
    }
    return ((x + 1) * expf(-x) - 1) / (x * x);
}

/* 1 / x, or 0 where that is infinite; NaN stays */
DR_MAP float dr_map_reciprocal(float x) {
    const float quotient = 1 / x;
    return isinf(quotient) ? 0 : quotient;
}

DR_MAP float dr_map_base_gain(dr_gain gain, double eps, const dr_map_gain_inputs *x) {
    switch (gain) {
    case DR_GAIN_ONE:
        return 1;
    case DR_GAIN_BETA:
        return x->beta;
    case DR_GAIN_GAMMA:
        return x->erase_gain;
    case DR_GAIN_IMPLICIT:
        return x->beta / (1 + x->beta * x->dot);
    case DR_GAIN_NORMALIZED:
        return dr_map_reciprocal(x->dot + (float)eps);
    case DR_GAIN_EXPONENTIAL:
        return x->beta * dr_map_decay_mean(x->beta * x->dot);
    }
    return 0;
}

/* The normalizer of a row with a preconditioned write key. */
DR_MAP float dr_map_normalizer(dr_normalizer normalizer, const dr_map_gain_inputs *x) {
    switch (normalizer) {
    case DR_NORMALIZER_NONE:
        return 1;
    case DR_NORMALIZER_INVERSE:
        return dr_map_reciprocal(x->key_dot);
    case DR_NORMALIZER_IMPLICIT:
        return 1 / (1 + x->key_dot);
    case DR_NORMALIZER_DISCOUNTED:
        return dr_map_reciprocal(x->alpha + x->beta * x->key_dot);
    }
    return 0;
}

/* Adds to dx what d_base brings. */
DR_MAP void dr_map_base_gain_backward(dr_gain gain, const dr_map_gain_inputs *x, float base, float d_base,
                                      dr_map_gain_inputs *dx) {
    switch (gain) {
    case DR_GAIN_ONE:
        break;
    case DR_GAIN_BETA:
        dx->beta += d_base;
        break;
    case DR_GAIN_GAMMA:
        dx->erase_gain += d_base;
        break;
    case DR_GAIN_IMPLICIT: {
        float shrink = 1 / (1 + x->beta * x->dot);
        dx->beta += d_base * shrink * shrink;
        dx->dot -= d_base * base * base;
        break;
    }
    case DR_GAIN_NORMALIZED:
        dx->dot -= d_base * base * base;
        break;
    case DR_GAIN_EXPONENTIAL:
        dx->beta += d_base * expf(-x->beta * x->dot);
        dx->dot += d_base * x->beta * x->beta * dr_map_decay_mean_slope(x->beta * x->dot);
        break;
    }
}

DR_MAP void dr_map_normalizer_backward(dr_normalizer normalizer, const dr_map_gain_inputs *x, float factor, float d_factor,
                                       dr_map_gain_inputs *dx) {
    float d_inverse = -d_factor * factor * factor;
    switch (normalizer) {
    case DR_NORMALIZER_NONE:
        break;
    case DR_NORMALIZER_INVERSE:
    case DR_NORMALIZER_IMPLICIT:
        dx->key_dot += d_inverse;
        break;
    case DR_NORMALIZER_DISCOUNTED:
        dx->alpha += d_inverse;
        dx->beta += d_inverse * x->key_dot;
        dx->key_dot += d_inverse * x->beta;
        break;
    }
}

#endif
