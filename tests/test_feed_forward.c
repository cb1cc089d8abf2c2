/* Feed-forwards: the backward of each kind and option against differences in double, values against formulas, and the backends
 * against each other. */
#include "module_backends.h"
#include "module_problem.h"
#include "nn/modules/feed_forward.h"

typedef struct {
    dr_feed_forward_description of;
    bool gated;
} feed;

static const feed swiglu = {.of = {.width = 5, .function = DR_FUNCTION_SILU, .gate_factor = 1, .down_factor = 1},
                            .gated = true};

static dr_status create(dr_backend *backend, int64_t hidden, const void *description, dr_layer_parameters *list,
                        dr_module **module) {
    const feed *of = description;
    return dr_feed_forward_create(backend, hidden, &of->of, of->gated, "", list, module);
}

/* Every option off and on, beside each function. */
static int variants(feed *all) {
    int count = 0;
    for (int f = 0; f < DR_FUNCTIONS; f++)
        for (int gated = 0; gated < 2; gated++) {
            feed of = swiglu;
            of.gated = gated;
            of.of.function = (dr_function)f;
            all[count++] = of;
            of.of.bias = true;
            of.of.down_factor = -1.5;
            all[count++] = of;
        }
    for (int options = 0; options < 4; options++) {
        feed of = swiglu;
        of.of.limit = options % 2 ? 0.4 : 0;
        of.of.gate_factor = options / 2 % 2 ? 0.7 : 1;
        of.of.function = options == 3 ? DR_FUNCTION_GELU : DR_FUNCTION_SILU;
        all[count++] = of;
    }
    return count;
}

enum { MOST = 4 * DR_FUNCTIONS + 4 };

static void test_gradients(void **state) {
    (void)state;
    feed all[MOST];
    const int count = variants(all);
    for (int i = 0; i < count; i++) {
        char name[48];
        module_problem of = {.backend = reference};
        snprintf(name, sizeof name, "function %d, gated %d, limit %g", (int)all[i].of.function, all[i].gated, all[i].of.limit);
        MADE_OK(create(reference, 7, &all[i], &of.list, &of.module));
        module_begin(&of);
        module_check(name, &of, 1e-6);
        module_end(&of);
    }
}

/* y of one token by the formula, with every option at once. */
static void test_values(void **state) {
    (void)state;
    enum { WIDTH = 8 };
    const feed of = {
        .of = {.width = WIDTH, .function = DR_FUNCTION_TANH, .bias = true, .limit = 1.5, .gate_factor = 2, .down_factor = 0.5},
        .gated = true};
    const module_maker maker = {"values", create, &of, 2, 0};
    const dr_layout one = {1, 1, NULL};
    const double x[2] = {3, -2};
    double wanted[2] = {0, 0};
    int above = 0, below = 0; /* of gates: these are bounded from above only */
    made_module made;
    made_begin(&maker, reference, &made);
    const double *p[6];
    assert_int_equal(made.list.count, 6);
    for (int i = 0; i < 6; i++) p[i] = (const double *)(const void *)made.parameters + made.list.at[i].offset;
    for (int j = 0; j < WIDTH; j++) {
        double gate = 2 * (p[0][2 * j] * x[0] + p[0][2 * j + 1] * x[1] + p[1][j]);
        double up = p[2][2 * j] * x[0] + p[2][2 * j + 1] * x[1] + p[3][j];
        above += gate > 1.5;
        below += gate < -1.5;
        gate = gate > 1.5 ? 1.5 : gate;
        up = up > 1.5 ? 1.5 : up < -1.5 ? -1.5 : up;
        for (int i = 0; i < 2; i++) wanted[i] += 0.5 * p[4][WIDTH * i + j] * tanh(gate) * up;
    }
    for (int i = 0; i < 2; i++) wanted[i] += 0.5 * p[5][i];
    const double *y = made_run(&made, &one, false, x, NULL, NULL);
    for (int i = 0; i < 2; i++) assert_true(fabs(y[i] - wanted[i]) < 1e-14);
    assert_true(above > 0 && below > 0);
    made_end(&made);
    numbers_release();
}

static void test_backends(void **state) {
    (void)state;
    feed all[MOST];
    const int count = variants(all);
    for (int i = 0; i < count; i++) {
        all[i].of.width = number_between(0, 3) ? number_between(1, 70) : 128;
        const module_maker maker = {"feed-forward", create, &all[i], number_between(0, 3) ? number_between(1, 70) : 64, 0};
        module_on_backends(&maker, i % 7 ? 40 : 300);
    }
}

static void refuse(feed of, const char *words) {
    dr_layer_parameters list = {0};
    dr_module *module = NULL;
    assert_int_equal(create(reference, 4, &of, &list, &module), DR_ERROR_ARGUMENT);
    assert_null(module);
    assert_non_null(strstr(dr_last_error(), words));
    dr_layer_parameters_release(&list);
}

static void test_refused(void **state) {
    (void)state;
    feed of = swiglu;
    of.of.width = 0;
    refuse(of, "width 0");
    of = swiglu;
    of.of.function = DR_FUNCTIONS;
    refuse(of, "no function");
    of = swiglu;
    of.of.limit = -1;
    refuse(of, "limit");
    of = swiglu;
    of.of.down_factor = NAN;
    refuse(of, "factors");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_backends),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
