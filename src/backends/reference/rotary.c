/* Half-split rotary embedding: the pair (x[i], x[i + dim/2]) of every head of the token at position p, which counts from the
 * sequence's start plus its offset, is turned by the angle p base^(-2i/dim), or back by it. */
#include "backends/reference/reference.h"

#include <math.h>

static void turn(double *x, int64_t dim, double base, double position) {
    for (int64_t i = 0; i < dim / 2; i++) {
        double angle = position * pow(base, -2 * (double)i / (double)dim);
        double first = x[i], second = x[i + dim / 2];
        x[i] = first * cos(angle) - second * sin(angle);
        x[i + dim / 2] = second * cos(angle) + first * sin(angle);
    }
}

dr_status dr_reference_rotary(dr_backend *backend, const dr_rotary *rotary, void *x_, bool inverse) {
    (void)backend;
    double *x = x_;
    for (int64_t i = 0; i < rotary->layout.sequences; i++) {
        int64_t begin = dr_layout_begin(&rotary->layout, i), end = dr_layout_begin(&rotary->layout, i + 1);
        for (int64_t t = begin; t < end; t++) {
            double position = (double)(t - begin + (rotary->offset ? rotary->offset[i] : 0));
            for (int64_t h = 0; h < rotary->heads; h++)
                turn(x + (t * rotary->heads + h) * rotary->dim, rotary->dim, rotary->base, inverse ? -position : position);
        }
    }
    return DR_OK;
}
