/* Gains and normalizers of a row as the fast backends compute them (maps/gain.h), against their formulas in double and,
 * backward, against differences of these; to the precision of a float, which the whole recurrences are too coarse for. */
#include "maps/gain.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void assert_near(const char *what, double found, double wanted, double tolerance) {
    if (!(fabs(found - wanted) <= tolerance * fmax(1e-3, fabs(wanted)))) fail_msg("%s is %.9g, not %.9g", what, found, wanted);
}

/* (1 - exp(-x)) / x and its derivative, on both sides of where the series ends. */
static void test_decay_mean(void **state) {
    (void)state;
    for (int i = -400; i <= 2000; i++) {
        double x = i == 0 ? 1e-9 : i / 400.0;
        double mean = -expm1(-x) / x, slope = fabs(x) < 1e-3 ? -0.5 + x / 3 - x * x / 8 : ((x + 1) * exp(-x) - 1) / (x * x);
        assert_near("the mean", (double)dr_map_decay_mean((float)x), mean, 4e-7);
        assert_near("its slope", (double)dr_map_decay_mean_slope((float)x), slope, 2e-6);
    }
}

static void test_reciprocal(void **state) {
    (void)state;
    assert_true(dr_map_reciprocal(4) == 0.25F && dr_map_reciprocal(-4) == -0.25F);
    assert_true(dr_map_reciprocal(0) == 0 && dr_map_reciprocal(1e-45F) == 0);
    assert_true(isnan(dr_map_reciprocal(NAN)) && dr_map_reciprocal(INFINITY) == 0);
}

typedef struct {
    double beta, erase_gain, alpha, dot, key_dot;
} numbers;

static double base(dr_gain gain, double eps, const numbers *x) {
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
        return 1 / (x->dot + eps);
    case DR_GAIN_EXPONENTIAL:
        return (1 - exp(-x->beta * x->dot)) / x->dot;
    }
    return NAN;
}

static double factor(dr_normalizer normalizer, const numbers *x) {
    switch (normalizer) {
    case DR_NORMALIZER_NONE:
        return 1;
    case DR_NORMALIZER_INVERSE:
        return 1 / x->key_dot;
    case DR_NORMALIZER_IMPLICIT:
        return 1 / (1 + x->key_dot);
    case DR_NORMALIZER_DISCOUNTED:
        return 1 / (x->alpha + x->beta * x->key_dot);
    }
    return NAN;
}

static const numbers cases[] = {
    {0.7, 0.3, 0.9, 1.25, 0.8}, {0.2, 0.9, 0.5, 0.75, 1.5}, {1.5, 0.1, 0.25, 2, 0.5}, {0.9, 0.5, 0, 0.4, 2}};
enum { CASES = sizeof cases / sizeof *cases };

static dr_map_gain_inputs rounded(const numbers *x) {
    return (dr_map_gain_inputs){(float)x->beta, (float)x->erase_gain, (float)x->alpha, (float)x->dot, (float)x->key_dot};
}

/* The member of a gradient, and of the numbers it is of. */
static float *gradient_at(dr_map_gain_inputs *dx, int i) {
    float *const at[] = {&dx->beta, &dx->erase_gain, &dx->alpha, &dx->dot, &dx->key_dot};
    return at[i];
}

static double *number_at(numbers *x, int i) {
    double *const at[] = {&x->beta, &x->erase_gain, &x->alpha, &x->dot, &x->key_dot};
    return at[i];
}

static void test_gains(void **state) {
    (void)state;
    const double eps = 0.125, h = 1e-5;
    for (int gain = DR_GAIN_ONE; gain <= DR_GAIN_EXPONENTIAL; gain++)
        for (int c = 0; c < CASES; c++) {
            const dr_map_gain_inputs x = rounded(&cases[c]);
            const float found = dr_map_base_gain((dr_gain)gain, eps, &x);
            dr_map_gain_inputs dx = {1, 1, 1, 1, 1}; /* added to */
            assert_near(dr_gain_name((dr_gain)gain), (double)found, base((dr_gain)gain, eps, &cases[c]), 1e-6);
            dr_map_base_gain_backward((dr_gain)gain, &x, found, 2, &dx);
            for (int i = 0; i < 5; i++) {
                numbers more = cases[c], less = cases[c];
                *number_at(&more, i) += h;
                *number_at(&less, i) -= h;
                double slope = (base((dr_gain)gain, eps, &more) - base((dr_gain)gain, eps, &less)) / (2 * h);
                assert_near("a gradient of a gain", (double)*gradient_at(&dx, i), 1 + 2 * slope, 1e-5);
            }
        }
}

static void test_normalizers(void **state) {
    (void)state;
    const double h = 1e-5;
    for (int kind = DR_NORMALIZER_NONE; kind <= DR_NORMALIZER_DISCOUNTED; kind++)
        for (int c = 0; c < CASES; c++) {
            const dr_map_gain_inputs x = rounded(&cases[c]);
            const float found = dr_map_normalizer((dr_normalizer)kind, &x);
            dr_map_gain_inputs dx = {1, 1, 1, 1, 1};
            assert_near(dr_normalizer_name((dr_normalizer)kind), (double)found, factor((dr_normalizer)kind, &cases[c]), 1e-6);
            dr_map_normalizer_backward((dr_normalizer)kind, &x, found, 2, &dx);
            for (int i = 0; i < 5; i++) {
                numbers more = cases[c], less = cases[c];
                *number_at(&more, i) += h;
                *number_at(&less, i) -= h;
                double slope = (factor((dr_normalizer)kind, &more) - factor((dr_normalizer)kind, &less)) / (2 * h);
                assert_near("a gradient of a normalizer", (double)*gradient_at(&dx, i), 1 + 2 * slope, 1e-5);
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decay_mean),
        cmocka_unit_test(test_reciprocal),
        cmocka_unit_test(test_gains),
        cmocka_unit_test(test_normalizers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
