/* Gradients against differences: for a scalar function of some numbers in memory, the derivative by each number is estimated
 * from four values around it,
 *
 *     f' = (8 (f(x + h) - f(x - h)) - (f(x + 2h) - f(x - 2h))) / 12h + O(h^4),
 *
 * whose error at h = 2e-4 is some 1e-12 of f from rounding and 1e-15 f''''' from the formula: far below the 1e-6 to which
 * gradients are held, also where a factor such as exp(A_log) = 16 makes derivatives grow with their order. */
#ifndef DR_TESTS_DIFFERENCES_H
#define DR_TESTS_DIFFERENCES_H

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <setjmp.h>

#include <cmocka.h>

typedef double (*difference_function)(void *context);

/* Where a gradient is worst: |analytic - numeric| divided by the largest |numeric| of the whole tensor. A gradient that is not
 * finite has infinite error. */
typedef struct {
    double error;
    int64_t index;
    double analytic, numeric;
} difference_worst;

static inline double difference_estimate(difference_function function, void *context, double *variable) {
    double x = *variable, h = 2e-4 * fmax(1, fabs(x)), value[4];
    static const double steps[4] = {1, -1, 2, -2};
    for (int i = 0; i < 4; i++) {
        *variable = x + steps[i] * h;
        value[i] = function(context);
    }
    *variable = x;
    return (8 * (value[0] - value[1]) - (value[2] - value[3])) / (12 * h);
}

/* gradient[i] is held against the estimate for variable[i], which function reads from its place; it is put back. */
static inline difference_worst differences_compare(difference_function function, void *context, double *variable, int64_t count,
                                                   const double *gradient) {
    difference_worst worst = {0};
    double scale = 0, distance = -1;
    for (int64_t i = 0; i < count; i++) {
        double numeric = difference_estimate(function, context, variable + i), apart = fabs(gradient[i] - numeric);
        if (!isfinite(apart)) return (difference_worst){INFINITY, i, gradient[i], numeric};
        scale = fmax(scale, fabs(numeric));
        if (apart > distance) {
            distance = apart;
            worst = (difference_worst){0, i, gradient[i], numeric};
        }
    }
    /* Where every derivative is 0 the estimates are rounding noise: an analytic 0, or noise of that size, is right. */
    if (count > 0) worst.error = distance / fmax(scale, 1e-4);
    return worst;
}

/* Fails the test, naming the gradient, if its worst error exceeds tolerance. */
static inline void assert_gradient(const char *name, difference_function function, void *context, double *variable,
                                   int64_t count, const double *gradient, double tolerance) {
    difference_worst worst = differences_compare(function, context, variable, count, gradient);
    if (!(worst.error <= tolerance))
        fail_msg("%s[%lld]: gradient %.17g, differences %.17g, relative error %.3g of at most %.3g", name,
                 (long long)worst.index, worst.analytic, worst.numeric, worst.error, tolerance);
}

#endif
