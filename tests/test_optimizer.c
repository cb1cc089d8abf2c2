/* The learning rate over a run and the step of the optimizer, by their formulas. */
#include "train/optimizer.h"
#include "train/schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- schedule ---- */

static void test_schedule(void **state) {
    (void)state;
    const dr_schedule schedule = {.peak = 0.5, .last_ratio = 0.1, .warmup = 0.1, .steps = 101};
    assert_true(fabs(dr_schedule_rate(&schedule, 1) - 0.05) < 1e-15);
    assert_true(fabs(dr_schedule_rate(&schedule, 10) - 0.5) < 1e-15);
    assert_true(fabs(dr_schedule_rate(&schedule, 11) - 0.5) < 1e-15);
    assert_true(fabs(dr_schedule_rate(&schedule, 56) - 0.275) < 1e-15); /* halfway along the cosine: halfway down */
    assert_true(fabs(dr_schedule_rate(&schedule, 101) - 0.05) < 1e-15);
    for (int64_t step = 11; step <= 100; step++)
        assert_true(dr_schedule_rate(&schedule, step + 1) < dr_schedule_rate(&schedule, step));
    const dr_schedule single = {.peak = 0.5, .last_ratio = 0.1, .warmup = 0.05, .steps = 1};
    assert_true(dr_schedule_rate(&single, 1) == 0.5);
}

/* ---- optimizer ---- */

static dr_backend *reference;

/* Two steps on a hand-made gradient, which is longer than 2, against AdamW written out for each parameter. */
static void check_steps(double clip) {
    enum { STEPS = 2 };
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = 11, config.hidden = 8, config.layers = 1, config.heads = 2, config.intermediate = 8;
    const dr_optimizer_settings settings = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = clip};
    dr_model *model;
    dr_optimizer *optimizer;
    assert_int_equal(dr_model_create(reference, &config, 1, &model), DR_OK);
    assert_int_equal(dr_optimizer_create(model, &settings, &optimizer), DR_OK);
    const dr_parameter *parameters;
    int64_t count = dr_model_parameters(model, &parameters), block = dr_model_block_count(model), decaying = 0;
    double *value = dr_model_parameter_block(model), *gradient = optimizer->gradient;
    double *wanted = calloc((size_t)block * 3, sizeof(double)), *mean = wanted + block, *square = mean + block;
    assert_non_null(wanted);
    memcpy(wanted, value, (size_t)block * sizeof(double));
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        decaying += parameters[i].decays;
        for (int64_t k = 0; k < parameters[i].count; k++) {
            int64_t at = parameters[i].offset + k;
            gradient[at] = sin(1 + (double)at);
            sum += gradient[at] * gradient[at];
        }
    }
    assert_true(decaying > 0 && decaying < count && sqrt(sum) > 2);
    for (int step = 1; step <= STEPS; step++) {
        double norm;
        bool skipped;
        assert_int_equal(dr_optimizer_step(optimizer, 0.01, &norm, &skipped), DR_OK);
        assert_false(skipped);
        assert_true(fabs(norm - sqrt(sum)) < 1e-12 * norm);
        for (int64_t i = 0; i < count; i++)
            for (int64_t k = 0; k < parameters[i].count; k++) {
                int64_t at = parameters[i].offset + k;
                double g = gradient[at] * (clip == 2 ? clip / sqrt(sum) : 1);
                mean[at] = 0.9 * mean[at] + 0.1 * g;
                square[at] = 0.95 * square[at] + 0.05 * g * g;
                double change = mean[at] / (1 - pow(0.9, step)) / (sqrt(square[at] / (1 - pow(0.95, step))) + 1e-8);
                wanted[at] -= 0.01 * (change + (parameters[i].decays ? 0.1 : 0) * wanted[at]);
                assert_true(fabs(value[at] - wanted[at]) < 1e-12);
            }
    }
    memcpy(wanted, value, (size_t)block * sizeof(double));
    memcpy(mean, optimizer->mean, (size_t)block * sizeof(double));
    static const double broken[] = {NAN, INFINITY};
    for (int i = 0; i < 2; i++) {
        double norm;
        bool skipped;
        gradient[parameters[count - 1].offset] = broken[i];
        assert_int_equal(dr_optimizer_step(optimizer, 0.01, &norm, &skipped), DR_OK);
        assert_true(skipped && !isfinite(norm));
        assert_memory_equal(value, wanted, (size_t)block * sizeof(double));
        assert_memory_equal(optimizer->mean, mean, (size_t)block * sizeof(double));
        assert_int_equal(optimizer->updates, STEPS);
    }
    free(wanted);
    dr_optimizer_destroy(optimizer);
    dr_model_destroy(model);
}

/* A gradient is made shorter where it is longer than allowed, and never longer; 0 allows any length. */
static void test_optimizer_steps(void **state) {
    (void)state;
    check_steps(2);
    check_steps(1e6);
    check_steps(0);
}

static int open_backend(void **state) {
    (void)state;
    return dr_backend_open("reference", NULL, &reference) == DR_OK ? 0 : -1;
}

static int close_backend(void **state) {
    (void)state;
    dr_backend_close(reference);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule),
        cmocka_unit_test(test_optimizer_steps),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
