/* Elementwise maps of the diagonal scan: the squash of A and its slope, the Sherman-Morrison key before its common factor.
 * Each acts on one lane of channels; sums over channels and tokens are the backend's. */
#ifndef DR_MAPS_DIAGONAL_H
#define DR_MAPS_DIAGONAL_H

#include "maps/map.h"
#include "maps/squash.h"

/* B(A), and in *slope dB/dr = -factor B s'(r); the gradient of A is slope / (A + eps), that of the centre -slope. */
DR_MAP lanes dr_map_squash_value(const dr_map_squash *squash, lanes a, lanes centre, lanes *slope) {
    const lanes one = lanes_set(1.0f);
    lanes r = lanes_log_near(a + lanes_set(squash->eps)) - centre, s, ds;
    if (squash->tanh) {
        s = lanes_tanh_near(r);
        ds = one - s * s;
    } else {
        lanes shrink = lanes_reciprocal_near(one + lanes_abs(r));
        s = r * shrink;
        ds = shrink * shrink;
    }
    lanes b = lanes_exp_near(lanes_fnma(lanes_set(squash->factor), s, lanes_set(squash->offset)));
    *slope = -lanes_set(squash->factor) * b * ds;
    return b;
}

/* A_t = alpha A_{t-1} + b key * key */
DR_MAP lanes dr_map_scan_step(lanes a, lanes alpha, lanes b, lanes key) {
    return lanes_fma(alpha, a, b * (key * key));
}

#endif
