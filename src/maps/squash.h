/* The squash B of a diagonal scan A, over the lane type of the backend that includes this: a value and its slope.
 *
 *     r = ln(A + eps) - centre      s = r / (1 + |r|) or tanh r      B = exp(offset - factor s)
 *
 * with (offset, factor) = (0, l) for [1/x, x], (l/2, l/2) for [1, x], (-l/2, l/2) for [1/x, 1], l = ln x.
 *
 * All headers of this folder are written over the names lanes, lanes_set, lanes_load, lanes_store, lanes_exp, lanes_log,
 * lanes_abs, lanes_tanh and + - * /: a vector of channels on a CPU, one channel on a GPU. This map also has lanes_fma,
 * lanes_fnma (c - a b), and, since B lies near 1 and of logarithm and tanh only the absolute error counts, lanes_exp_near for
 * small |x|, lanes_log_near, lanes_tanh_near, and lanes_reciprocal_near of numbers from 1 on, which a backend may have as good
 * as that. */
#ifndef DR_MAPS_SQUASH_H
#define DR_MAPS_SQUASH_H

#include <deltarule/rule.h>
#include <math.h>

typedef struct {
    float eps, offset, factor;
    bool tanh;
} dr_map_squash;

static inline dr_map_squash dr_map_squash_make(const dr_squash *squash) {
    double l = log(squash->x);
    double factor = squash->interval == DR_SQUASH_SYMMETRIC ? l : 0.5 * l;
    double offset = squash->interval == DR_SQUASH_SYMMETRIC ? 0 : squash->interval == DR_SQUASH_AMPLIFY ? factor : -factor;
    return (dr_map_squash){(float)squash->eps, (float)offset, (float)factor, squash->function == DR_SQUASH_TANH};
}

#endif
