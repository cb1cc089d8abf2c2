/* Rotary embedding: the pair i of every head of the token at position p, which counts from the sequence's start plus its
 * offset, is turned by the angle p f_i, or back by it, and multiplied by the factor. */
#include "backends/reference/reference.h"

#include <math.h>

/* x: the elements of one head that are turned */
static void turn(const dr_rotary *rotary, double *x, double position) {
    const int64_t half = rotary->dim / 2;
    for (int64_t i = 0; i < half; i++) {
        const double frequency =
            rotary->frequencies ? rotary->frequencies[i] : pow(rotary->base, -2 * (double)i / (double)rotary->dim);
        const double sine = rotary->factor * sin(position * frequency), cosine = rotary->factor * cos(position * frequency);
        const int64_t one = rotary->interleaved ? 2 * i : i, other = rotary->interleaved ? 2 * i + 1 : i + half;
        const double first = x[one], second = x[other];
        x[one] = first * cosine - second * sine;
        x[other] = second * cosine + first * sine;
    }
}

dr_status dr_reference_rotary(dr_backend *backend, const dr_rotary *rotary, void *x_, bool backward) {
    (void)backend;
    double *x = x_;
    for (int64_t i = 0; i < rotary->layout.sequences; i++) {
        int64_t begin = dr_layout_begin(&rotary->layout, i), end = dr_layout_begin(&rotary->layout, i + 1);
        for (int64_t t = begin; t < end; t++) {
            double position = (double)(t - begin + (rotary->offset ? rotary->offset[i] : 0));
            for (int64_t h = 0; h < rotary->heads; h++)
                turn(rotary, x + t * rotary->row + h * rotary->size + rotary->first, backward ? -position : position);
        }
    }
    return DR_OK;
}
