/* Functions of single elements, layer norm, division by the sum, and RMS norm by groups: values against formulas, the
 * reference's gradients against differences, the CPU backend against the reference. */
#include "cpu_calls.h"
#include "operation_gradients.h"

enum { GRADIENT_DRAWS = 30 };

/* ---- functions ------------------------------------------------------------------------------------------------------- */

static long double expected(dr_function function, long double x) {
    switch (function) {
    case DR_FUNCTION_IDENTITY:
        return x;
    case DR_FUNCTION_RELU:
        return x > 0 ? x : 0;
    case DR_FUNCTION_SQUARED_RELU:
        return x > 0 ? x * x : 0;
    case DR_FUNCTION_SIGMOID:
        return 1 / (1 + expl(-x));
    case DR_FUNCTION_SILU:
        return x / (1 + expl(-x));
    case DR_FUNCTION_TANH:
        return tanhl(x);
    case DR_FUNCTION_GELU:
        return x * erfcl(-x / sqrtl(2)) / 2;
    case DR_FUNCTION_GELU_TANH: /* (1 + tanh u) / 2, without what cancels where tanh is near -1 */
        return x / (1 + expl(-2 * sqrtl(2 / acosl(-1)) * (x + 0.044715L * x * x * x)));
    case DR_FUNCTION_ELU_1:
        return x > 0 ? x + 1 : expl(x);
    case DR_FUNCTIONS:
        break;
    }
    return NAN;
}

/* On the reference to 1e-13 of each number, the small ones too; on the CPU to 2e-6, and four roundings of the
 * exponent where a number is a power of e. */
static void test_values(void **state) {
    (void)state;
    enum { COUNT = 401 };
    double x[COUNT], y[COUNT];
    float narrow[COUNT], out[COUNT];
    for (int i = 0; i < COUNT; i++) {
        narrow[i] = (float)(i - 200) * 0.03125f;
        x[i] = (double)narrow[i];
    }
    for (int f = 0; f < DR_FUNCTIONS; f++) {
        assert_int_equal(reference->ops->apply_forward(reference, (dr_function)f, COUNT, x, y), DR_OK);
        for (int isa = 0; isa < isas; isa++) {
            dr_backend *b = cpu[isa][0];
            assert_int_equal(b->ops->apply_forward(b, (dr_function)f, COUNT, narrow, out), DR_OK);
            for (int i = 0; i < COUNT; i++) {
                const double wanted = (double)expected((dr_function)f, x[i]);
                const double near = 2e-6 + (wanted != 0 ? 0x1p-22 * fabs(log(fabs(wanted))) : 0);
                if (!(fabs(y[i] - wanted) <= 1e-13 * fabs(wanted)) || !(fabs((double)out[i] - wanted) <= near * fabs(wanted)))
                    fail_msg("function %d of %g: %.17g, on %s %.9g, not %.17g", f, x[i], y[i], b->isa, (double)out[i], wanted);
            }
        }
    }
}

/* Far out nothing overflows, and NaN stays. */
static void test_ends(void **state) {
    (void)state;
    static const float x[] = {-1e30f, -200, -90, 90, 200, NAN};
    for (int isa = 0; isa < isas; isa++)
        for (int f = 0; f < DR_FUNCTIONS; f++) {
            dr_backend *b = cpu[isa][0];
            const float ones[6] = {1, 1, 1, 1, 1, 1};
            float y[6], d[6];
            double wide[6], wanted[6], slope[6], one[6] = {1, 1, 1, 1, 1, 1};
            for (int i = 0; i < 6; i++) wide[i] = (double)x[i];
            assert_int_equal(b->ops->apply_forward(b, (dr_function)f, 6, x, y), DR_OK);
            assert_int_equal(b->ops->apply_backward(b, (dr_function)f, 6, x, ones, d), DR_OK);
            assert_int_equal(reference->ops->apply_forward(reference, (dr_function)f, 6, wide, wanted), DR_OK);
            assert_int_equal(reference->ops->apply_backward(reference, (dr_function)f, 6, wide, one, slope), DR_OK);
            assert_true(isnan(y[5]) && isnan(wanted[5]));
            for (int i = f == DR_FUNCTION_SQUARED_RELU || f == DR_FUNCTION_IDENTITY ? 1 : 0; i < 5; i++)
                if (!(fabs((double)y[i] - wanted[i]) <= 1e-6 * fabs(wanted[i]) + 1e-30) ||
                    !(fabs((double)d[i] - slope[i]) <= 1e-6 * fabs(slope[i]) + 1e-30))
                    fail_msg("function %d of %g on %s: %g, slope %g; the reference has %g, %g", f, wide[i], b->isa,
                             (double)y[i], (double)d[i], wanted[i], slope[i]);
        }
}

static dr_status apply_forward(const operation *o) {
    return reference->ops->apply_forward(reference, *(const dr_function *)o->descriptor, o->count, o->operands[0].at, o->y);
}

static dr_status apply_backward(const operation *o, double *const d[]) {
    return reference->ops->apply_backward(reference, *(const dr_function *)o->descriptor, o->count, o->operands[0].at, o->d_y,
                                          d[0]);
}

static dr_status gated_forward(const operation *o) {
    return reference->ops->gated_forward(reference, *(const dr_function *)o->descriptor, o->count, o->operands[0].at,
                                         o->operands[1].at, o->y);
}

static dr_status gated_backward(const operation *o, double *const d[]) {
    return reference->ops->gated_backward(reference, *(const dr_function *)o->descriptor, o->count, o->operands[0].at,
                                          o->operands[1].at, o->d_y, d[0], d[1]);
}

/* away from the corner at 0 */
static double *bent(int64_t count) {
    double *x = numbers_normal(count, 2);
    for (int64_t i = 0; i < count; i++) x[i] += copysign(0.05, x[i]);
    return x;
}

static void test_function_gradients(void **state) {
    (void)state;
    for (int draw = 0; draw < 4 * DR_FUNCTIONS; draw++, numbers_release()) {
        const dr_function function = (dr_function)(draw % DR_FUNCTIONS);
        const int64_t count = number_between(0, 30);
        operation apply = {.descriptor = &function,
                           .operands = {{"x", bent(count), count, false}},
                           .count = count,
                           .forward = apply_forward,
                           .backward = apply_backward};
        check_operation(&apply);
        operation gated = {.descriptor = &function,
                           .operands = {{"x", numbers_normal(count, 1), count, false}, {"gate", bent(count), count, false}},
                           .count = count,
                           .forward = gated_forward,
                           .backward = gated_backward};
        check_operation(&gated);
    }
}

static dr_status cpu_apply(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->apply_forward(b, *(const dr_function *)c->descriptor, *(const int64_t *)c->extra, at[0], at[1]);
}
static dr_status cpu_apply_backward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->apply_backward(b, *(const dr_function *)c->descriptor, *(const int64_t *)c->extra, at[0], at[1], at[2]);
}
static dr_status cpu_gated(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->gated_forward(b, *(const dr_function *)c->descriptor, *(const int64_t *)c->extra, at[0], at[1], at[2]);
}
static dr_status cpu_gated_backward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->gated_backward(b, *(const dr_function *)c->descriptor, *(const int64_t *)c->extra, at[0], at[1], at[2],
                                  at[3], at[4]);
}

static void test_cpu_functions(void **state) {
    (void)state;
    for (int draw = 0; draw < 3 * DR_FUNCTIONS; draw++, numbers_release()) {
        const dr_function f = (dr_function)(draw % DR_FUNCTIONS);
        const int64_t n = draw < DR_FUNCTIONS ? number_between(0, 40) : size_drawn(40000);
        const double tolerance = tolerance_forward;
        check(&(call){"apply", &f, &n, tolerance, {input("x", n), overwritten("y", n)}, cpu_apply});
        check(&(call){
            "apply backward", &f, &n, tolerance, {input("x", n), input("d_y", n), overwritten("d_x", n)}, cpu_apply_backward});
        check(&(call){"gated", &f, &n, tolerance, {input("x", n), input("gate", n), overwritten("y", n)}, cpu_gated});
        check(&(call){
            "gated backward",
            &f,
            &n,
            tolerance,
            {input("x", n), input("gate", n), input("d_y", n), maybe(overwritten("d_x", n)), maybe(overwritten("d_gate", n))},
            cpu_gated_backward});
    }
}

static dr_status bound_forward(const operation *o) {
    return reference->ops->bound_forward(reference, o->descriptor, o->count, o->operands[0].at, o->y);
}
static dr_status bound_backward(const operation *o, double *const d[]) {
    return reference->ops->bound_backward(reference, o->descriptor, o->count, o->operands[0].at, o->d_y, d[0]);
}
static dr_status cpu_bound(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->bound_forward(b, c->descriptor, *(const int64_t *)c->extra, at[0], at[1]);
}
static dr_status cpu_bound_backward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->bound_backward(b, c->descriptor, *(const int64_t *)c->extra, at[0], at[1], at[2]);
}

static void test_bound(void **state) {
    (void)state;
    const double x[] = {-3, -1, 0.5, 2, NAN}, ones[] = {1, 1, 1, 1, 1}, wanted[] = {-2, -2, 1, 4}, slopes[] = {0, 0, 2, 2};
    const dr_bound below = {2, -2, INFINITY};
    double y[5], d[5];
    assert_int_equal(reference->ops->bound_forward(reference, &below, 5, x, y), DR_OK);
    assert_int_equal(reference->ops->bound_backward(reference, &below, 5, x, ones, d), DR_OK);
    for (int i = 0; i < 4; i++) assert_true(y[i] == wanted[i] && d[i] == slopes[i]);
    assert_true(isnan(y[4]));
    for (int draw = 0; draw < GRADIENT_DRAWS; draw++, numbers_release()) {
        const bool low = number_flip(), high = number_flip();
        const dr_bound bound = {number_flip() ? 1 : -0.25, low ? -0.2 : (double)-INFINITY, high ? 0.3 : (double)INFINITY};
        int64_t n = number_between(0, 30);
        double *at = numbers_normal(n, 1);
        for (int64_t i = 0; i < n; i++) /* away from the corners */
            while (fabs(bound.factor * at[i] + 0.2) < 0.01 || fabs(bound.factor * at[i] - 0.3) < 0.01) at[i] += 0.1;
        operation o = {.descriptor = &bound,
                       .operands = {{"x", at, n, false}},
                       .count = n,
                       .forward = bound_forward,
                       .backward = bound_backward};
        check_operation(&o);
        n = size_drawn(40000);
        check(&(call){"bound", &bound, &n, tolerance_forward, {input("x", n), overwritten("y", n)}, cpu_bound});
        check(&(call){"bound backward",
                      &bound,
                      &n,
                      tolerance_forward,
                      {input("x", n), input("d_y", n), overwritten("d_x", n)},
                      cpu_bound_backward});
    }
}

/* ---- norms ----------------------------------------------------------------------------------------------------------- */

static dr_status layer_norm_forward(const operation *o) {
    return reference->ops->layer_norm_forward(reference, o->descriptor, o->operands[0].at, o->operands[1].at, o->operands[2].at,
                                              o->y);
}

static dr_status layer_norm_backward(const operation *o, double *const d[]) {
    return reference->ops->layer_norm_backward(reference, o->descriptor, o->operands[0].at, o->operands[1].at, o->d_y, d[0],
                                               o->accumulate, d[1], d[2]);
}

static dr_status rms_norm_forward(const operation *o) {
    return reference->ops->rms_norm_forward(reference, o->descriptor, o->operands[0].at, o->operands[1].at, o->operands[2].at,
                                            o->y);
}

static dr_status rms_norm_backward(const operation *o, double *const d[]) {
    return reference->ops->rms_norm_backward(reference, o->descriptor, o->operands[0].at, o->operands[1].at, o->operands[2].at,
                                             o->d_y, d[0], o->accumulate, d[1], d[2]);
}

static dr_status sum_norm_forward(const operation *o) {
    const int64_t *shape = o->descriptor;
    return reference->ops->sum_norm_forward(reference, shape[0], shape[1], o->operands[0].at, o->y);
}

static dr_status sum_norm_backward(const operation *o, double *const d[]) {
    const int64_t *shape = o->descriptor;
    return reference->ops->sum_norm_backward(reference, shape[0], shape[1], o->operands[0].at, o->d_y, d[0]);
}

/* positive, with a sum away from 0 */
static double *positive(int64_t count) {
    double *x = numbers_normal(count, 1);
    for (int64_t i = 0; i < count; i++) x[i] = (double)(float)(fabs(x[i]) + 0.3);
    return x;
}

static void test_norm_gradients(void **state) {
    (void)state;
    static const dr_activation gates[] = {DR_ACTIVATION_NONE, DR_ACTIVATION_SILU, DR_ACTIVATION_SIGMOID};
    for (int draw = 0; draw < GRADIENT_DRAWS; draw++, numbers_release()) {
        const dr_layer_norm norm = {number_between(0, 3), number_between(1, 3), number_between(2, 7), 0.01};
        const int64_t width = norm.groups * norm.dim, count = norm.rows * width;
        const bool accumulate = number_flip();
        operation o = {.descriptor = &norm,
                       .operands = {{"x", numbers_normal(count, 1), count, accumulate},
                                    {"weight", numbers_normal(width, 1), width, true},
                                    {"bias", number_flip() ? numbers_normal(width, 1) : NULL, width, true}},
                       .count = count,
                       .accumulate = accumulate,
                       .forward = layer_norm_forward,
                       .backward = layer_norm_backward};
        check_operation(&o);
        const dr_rms_norm rms = {.rows = norm.rows * norm.groups,
                                 .dim = norm.dim,
                                 .eps = 0.01,
                                 .gate = gates[draw % 3],
                                 .gate_first = draw / 3 % 2 == 1,
                                 .groups = norm.groups,
                                 .weight_offset = number_flip()};
        operation grouped = {.descriptor = &rms,
                             .operands = {{"x", numbers_normal(count, 1), count, accumulate},
                                          {"weight", numbers_normal(width, 1), width, true},
                                          {"gate", rms.gate ? numbers_normal(count, 1) : NULL, count, false}},
                             .count = count,
                             .accumulate = accumulate,
                             .forward = rms_norm_forward,
                             .backward = rms_norm_backward};
        check_operation(&grouped);
        const int64_t shape[2] = {norm.rows, norm.dim};
        operation sum = {.descriptor = shape,
                         .operands = {{"x", positive(norm.rows * norm.dim), norm.rows * norm.dim, false}},
                         .count = norm.rows * norm.dim,
                         .forward = sum_norm_forward,
                         .backward = sum_norm_backward};
        check_operation(&sum);
    }
}

/* One row of two groups, by hand. */
static void test_norm_values(void **state) {
    (void)state;
    const double x[] = {1, 3, 10, 2}, weight[] = {2, 1, 0.5, 3}, bias[] = {0, 1, 0, -1};
    const double with_bias[] = {-2, 2, 0.5, -4}, shares[] = {0.25, 0.75, 10. / 12, 2. / 12};
    double y[4];
    const dr_layer_norm norm = {1, 2, 2, 0};
    assert_int_equal(reference->ops->layer_norm_forward(reference, &norm, x, weight, bias, y), DR_OK);
    for (int i = 0; i < 4; i++) assert_true(fabs(y[i] - with_bias[i]) < 1e-15);
    assert_int_equal(reference->ops->sum_norm_forward(reference, 2, 2, x, y), DR_OK);
    for (int i = 0; i < 4; i++) assert_true(fabs(y[i] - shares[i]) < 1e-15);
    const dr_rms_norm rms = {.rows = 2, .dim = 2, .groups = 2, .weight_offset = 1};
    assert_int_equal(reference->ops->rms_norm_forward(reference, &rms, x, weight, NULL, y), DR_OK);
    const double roots[] = {sqrt(5), sqrt(5), sqrt(52), sqrt(52)};
    for (int i = 0; i < 4; i++) assert_true(fabs(y[i] - x[i] / roots[i] * (weight[i] + 1)) < 1e-15);
}

static dr_status cpu_layer_norm(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->layer_norm_forward(b, c->descriptor, at[0], at[1], at[2], at[3]);
}
static dr_status cpu_layer_norm_backward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->layer_norm_backward(b, c->descriptor, at[0], at[1], at[2], at[3], *(const bool *)c->extra, at[4], at[5]);
}
static dr_status cpu_rms_norm(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->rms_norm_forward(b, c->descriptor, at[0], at[1], at[2], at[3]);
}
static dr_status cpu_rms_norm_backward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->rms_norm_backward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], *(const bool *)c->extra, at[5],
                                     at[6]);
}
static dr_status cpu_sum_norm(const call *c, dr_backend *b, void *const at[]) {
    const int64_t *shape = c->descriptor;
    return b->ops->sum_norm_forward(b, shape[0], shape[1], at[0], at[1]);
}
static dr_status cpu_sum_norm_backward(const call *c, dr_backend *b, void *const at[]) {
    const int64_t *shape = c->descriptor;
    return b->ops->sum_norm_backward(b, shape[0], shape[1], at[0], at[1], at[2]);
}

static void check_norms(int64_t rows, int64_t groups, int64_t dim, dr_activation gate, bool gate_first) {
    const int64_t width = groups * dim, count = rows * width;
    const bool accumulate = number_flip();
    const dr_layer_norm layer = {rows, groups, dim, 1e-3};
    const dr_rms_norm rms = {.rows = rows * groups,
                             .dim = dim,
                             .eps = 1e-6,
                             .gate = gate,
                             .gate_first = gate_first,
                             .groups = groups,
                             .weight_offset = number_flip()};
    const int64_t shape[2] = {rows * groups, dim};
    tensor x = input("x", count), gates = input("gate", count), none = {.values = NULL}, shares = input("x", count);
    for (int64_t i = 0; i < count; i++) x.values[i] += 3; /* a mean that is not small */
    for (int64_t i = 0; i < count; i++) x.values[i] = (double)(float)x.values[i];
    shares.values = positive(count);
    if (gate == DR_ACTIVATION_NONE) gates = none;
    check(&(call){"layer norm",
                  &layer,
                  NULL,
                  tolerance_backward,
                  {x, input("weight", width), maybe(input("bias", width)), overwritten("y", count)},
                  cpu_layer_norm});
    check(&(call){"layer norm backward",
                  &layer,
                  &accumulate,
                  tolerance_backward,
                  {x, input("weight", width), input("d_y", count), maybe(accumulated("d_x", count, accumulate)),
                   maybe(added("d_weight", width)), maybe(added("d_bias", width))},
                  cpu_layer_norm_backward});
    check(&(call){"RMS norm by groups",
                  &rms,
                  NULL,
                  tolerance_forward,
                  {x, input("weight", width), gates, overwritten("y", count)},
                  cpu_rms_norm});
    check(&(call){"RMS norm by groups, backward",
                  &rms,
                  &accumulate,
                  tolerance_backward,
                  {x, input("weight", width), gates, input("d_y", count), maybe(accumulated("d_x", count, accumulate)),
                   maybe(added("d_weight", width)), gates.values ? maybe(overwritten("d_gate", count)) : none},
                  cpu_rms_norm_backward});
    check(&(call){"sum norm", shape, NULL, tolerance_forward, {shares, overwritten("y", count)}, cpu_sum_norm});
    check(&(call){"sum norm backward",
                  shape,
                  NULL,
                  tolerance_backward,
                  {shares, input("d_y", count), overwritten("d_x", count)},
                  cpu_sum_norm_backward});
    numbers_release();
}

static void test_cpu_norms(void **state) {
    (void)state;
    static const dr_activation gates[] = {DR_ACTIVATION_NONE, DR_ACTIVATION_SILU, DR_ACTIVATION_SIGMOID};
    for (int draw = 0; draw < 2 * DRAWS; draw++)
        check_norms(size_drawn(100), number_between(1, 5), number_between(0, 3) ? 1 + size_drawn(200) : 128, gates[draw % 3],
                    draw / 3 % 2);
    check_norms(40, 1, 256, DR_ACTIVATION_NONE, false);
    check_norms(300, 4, 64, DR_ACTIVATION_SILU, true);
    check_norms(0, 2, 8, DR_ACTIVATION_NONE, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),        cmocka_unit_test(test_ends),           cmocka_unit_test(test_function_gradients),
        cmocka_unit_test(test_cpu_functions), cmocka_unit_test(test_norm_gradients), cmocka_unit_test(test_norm_values),
        cmocka_unit_test(test_cpu_norms),     cmocka_unit_test(test_bound),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
