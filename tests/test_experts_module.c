/* Mixtures of experts: the backward of every option against differences in double, y against a plain sum over the chosen
 * experts, and the backends against each other. */
#include "module_backends.h"
#include "module_problem.h"
#include "nn/modules/experts.h"
#include "nn/modules/feed_forward.h"

static dr_experts_description basic(void) {
    return (dr_experts_description){
        .router = {.of = {.experts = 4, .chosen = 2}, .groups = 1, .kept = 1, .scale = 1, .normalised = true},
        .gated = true,
        .expert = {.width = 3, .function = DR_FUNCTION_SILU, .gate_factor = 1, .down_factor = 1}};
}

static dr_status create(dr_backend *backend, int64_t hidden, const void *description, dr_layer_parameters *list,
                        dr_module **module) {
    return dr_experts_create(backend, hidden, description, "", list, module);
}

/* Option by option, then all that can stand together. */
static int variants(dr_experts_description *all) {
    int count = 0;
    for (int i = 0; i < 10; i++) all[i] = basic();
    all[count++].router.normalised = false;
    all[count++].router.sigmoid = true;
    all[count++].balance = 0.1;
    all[count].gated = false;
    all[count++].expert.function = DR_FUNCTION_SQUARED_RELU;
    all[count].latent = 5;
    all[count++].expert.down_factor = 0.5;
    all[count++].shared = 4;
    all[count].shared = 2;
    all[count++].shared_gate = true;
    all[count].router.of = (dr_experts){0, 1, 1};
    all[count++].corrected = true;
    dr_experts_description *whole = &all[count++];
    *whole = (dr_experts_description){
        .router =
            {.of = {.experts = 6, .chosen = 3}, .sigmoid = true, .normalised = true, .groups = 3, .kept = 2, .scale = 2.5},
        .corrected = true,
        .gated = true,
        .expert = {.width = 4, .function = DR_FUNCTION_GELU_TANH, .limit = 0.6, .gate_factor = 0.8, .down_factor = -1.5},
        .latent = 5,
        .shared = 3,
        .shared_gate = true,
        .balance = 0.2};
    return count;
}

enum { MOST = 10 };

static void test_gradients(void **state) {
    (void)state;
    dr_experts_description all[MOST];
    const int count = variants(all);
    for (int i = 0; i < count; i++) {
        char name[48];
        module_problem of = {.backend = reference};
        snprintf(name, sizeof name, "experts, variant %d", i);
        MADE_OK(create(reference, 7, &all[i], &of.list, &of.module));
        module_begin(&of);
        module_check(name, &of, 1e-6);
        assert_true((of.extra != 0) == (all[i].balance != 0));
        const dr_layer_parameter *bias = module_parameter(&of, "router.bias");
        assert_int_equal(bias != NULL, all[i].corrected);
        for (int64_t j = 0; bias && j < bias->count; j++) assert_true(of.gradients[bias->offset + j] == 0);
        if (bias) assert_false(bias->decays);
        module_end(&of);
    }
}

/* ---- against a plain sum ------------------------------------------------------------------------------------------------- */

/* y [out] += factor * weight [out, in] x */
static void add_product(int out, int in, const double *weight, const double *x, double factor, double *y) {
    for (int o = 0; o < out; o++)
        for (int i = 0; i < in; i++) y[o] += factor * weight[o * in + i] * x[i];
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* down (silu(gate x) up x) times a factor, of an expert that reads and writes `in` numbers */
static void add_swiglu(int in, int width, const double *gate, const double *up, const double *down, const double *x,
                       double factor, double *y) {
    double g[8] = {0}, u[8] = {0};
    add_product(width, in, gate, x, 1, g);
    add_product(width, in, up, x, 1, u);
    for (int i = 0; i < width; i++) g[i] *= sigmoid(g[i]) * u[i];
    add_product(in, width, down, g, factor, y);
}

/* Four experts of width 3 in a latent of 2 numbers, two chosen by sigmoid + bias; a shared expert with a gate. */
static void test_values(void **state) {
    (void)state;
    enum { HIDDEN = 5, LATENT = 2, WIDTH = 3, EXPERTS = 4, ROWS = 6 };
    dr_experts_description d = basic();
    d.router.sigmoid = true;
    d.router.scale = 2.5;
    d.corrected = true;
    d.latent = LATENT;
    d.shared = 4;
    d.shared_gate = true;
    const module_maker maker = {"values", create, &d, HIDDEN, 0};
    const dr_layout rows = {1, ROWS, NULL};
    const double *x = floats(ROWS * HIDDEN, 1);
    made_module of;
    made_begin(&maker, reference, &of);
    const double *y = made_run(&of, &rows, false, x, NULL, NULL);
    for (int t = 0; t < ROWS; t++, x += HIDDEN) {
        double s[EXPERTS] = {0}, latent[LATENT] = {0}, mixed[LATENT] = {0}, wanted[HIDDEN] = {0}, gate = 0;
        add_product(EXPERTS, HIDDEN, made_values(&of, "router.weight"), x, 1, s);
        add_product(LATENT, HIDDEN, made_values(&of, "latent_down.weight"), x, 1, latent);
        add_product(1, HIDDEN, made_values(&of, "shared_gate.weight"), x, 1, &gate);
        int best[2] = {-1, -1};
        for (int e = 0; e < EXPERTS; e++) s[e] = sigmoid(s[e]);
        for (int k = 0; k < 2; k++)
            for (int e = 0; e < EXPERTS; e++) {
                const double *bias = made_values(&of, "router.bias");
                if (e != best[0] && (best[k] < 0 || s[e] + bias[e] > s[best[k]] + bias[best[k]])) best[k] = e;
            }
        for (int k = 0; k < 2; k++) {
            const int at = best[k] * WIDTH * LATENT;
            add_swiglu(LATENT, WIDTH, made_values(&of, "experts.gate_proj") + at, made_values(&of, "experts.up_proj") + at,
                       made_values(&of, "experts.down_proj") + at, latent, 2.5 * s[best[k]] / (s[best[0]] + s[best[1]]), mixed);
        }
        add_product(HIDDEN, LATENT, made_values(&of, "latent_up.weight"), mixed, 1, wanted);
        add_swiglu(HIDDEN, 4, made_values(&of, "shared.gate_proj.weight"), made_values(&of, "shared.up_proj.weight"),
                   made_values(&of, "shared.down_proj.weight"), x, sigmoid(gate), wanted);
        for (int i = 0; i < HIDDEN; i++) assert_true(fabs(y[t * HIDDEN + i] - wanted[i]) < 1e-14);
    }
    made_end(&of);
    numbers_release();
}

static void test_backends(void **state) {
    (void)state;
    dr_experts_description all[MOST];
    const int count = variants(all);
    for (int i = 0; i < count; i++) {
        all[i].expert.width = number_between(0, 2) ? number_between(1, 70) : 64;
        if (all[i].shared) all[i].shared = number_between(1, 70);
        if (all[i].latent) all[i].latent = number_between(1, 40);
        const module_maker maker = {"experts", create, &all[i], number_between(0, 2) ? number_between(4, 70) : 128, 0.3};
        module_on_backends(&maker, i % 3 ? 40 : 300);
    }
}

/* ---- refused ----------------------------------------------------------------------------------------------------------- */

static void refuse(dr_experts_description d, dr_status status, const char *words) {
    dr_layer_parameters list = {0};
    dr_module *module = NULL;
    assert_int_equal(create(reference, 4, &d, &list, &module), status);
    assert_null(module);
    if (!strstr(dr_last_error(), words)) fail_msg("\"%s\" does not say \"%s\"", dr_last_error(), words);
    dr_layer_parameters_release(&list);
}

static void test_refused(void **state) {
    (void)state;
    dr_experts_description d = basic();
    d.router.of.chosen = 5;
    refuse(d, DR_ERROR_ARGUMENT, "5 of 4 experts");
    d = basic();
    d.expert.width = 0;
    refuse(d, DR_ERROR_ARGUMENT, "width 0");
    d = basic();
    d.expert.bias = true;
    refuse(d, DR_ERROR_UNSUPPORTED, "biases");
    d = basic();
    d.shared_gate = true;
    refuse(d, DR_ERROR_ARGUMENT, "no shared expert");
    d = basic();
    d.latent = -1;
    refuse(d, DR_ERROR_ARGUMENT, "negative");
    d = basic();
    d.balance = NAN;
    refuse(d, DR_ERROR_ARGUMENT, "balancing");
    /* so many rows that slots overflow 32 bits: the plan says so */
    d = basic();
    dr_layer_parameters list = {0};
    dr_module *module = NULL;
    const dr_layout rows = {1, (int64_t)1 << 30, NULL};
    MADE_OK(create(reference, 4, &d, &list, &module));
    assert_int_equal(module->operations->plan(module, reference, &rows, NULL), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "1073741823"));
    module->operations->destroy(reference, module);
    dr_layer_parameters_release(&list);
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
