/* The mixer of Mamba-2: the backward of every option against differences in double, y against a token loop, and the backends
 * against each other, also token by token. */
#include "module_backends.h"
#include "module_problem.h"
#include "nn/mixers/mamba2.h"

static dr_mamba2_description basic(void) {
    return (dr_mamba2_description){.heads = 4,
                                   .head_size = 3,
                                   .groups = 2,
                                   .state_size = 5,
                                   .conv_size = 3,
                                   .conv_bias = true,
                                   .most_step = (double)INFINITY,
                                   .norm = DR_MAMBA2_NORM_GATED,
                                   .norm_groups = 2,
                                   .norm_eps = 0.1,
                                   .factor = {1, 1, 1, 1, 1}};
}

static dr_status create(dr_backend *backend, int64_t hidden, const void *description, dr_layer_parameters *list,
                        dr_module **module) {
    return dr_mamba2_create(backend, hidden, description, "", list, module);
}

static int variants(dr_mamba2_description *all) {
    int count = 0;
    for (int i = 0; i < 8; i++) all[i] = basic();
    count++;
    all[count].norm = DR_MAMBA2_NORM_THEN_GATE;
    all[count++].input_bias = true;
    all[count].norm = DR_MAMBA2_NORM_NONE;
    all[count++].conv_bias = false;
    all[count].least_step = 0.1; /* steps are about ln 2 with dt_bias as drawn: some of them are clamped */
    all[count++].most_step = 0.3;
    all[count].groups = 1;
    all[count].norm_groups = 1;
    all[count++].conv_size = 1;
    const double factors[] = {0.5, -2, 0.25, 3, 1.5};
    memcpy(all[count].factor, factors, sizeof factors);
    all[count].input_bias = true;
    all[count++].output_bias = true;
    all[count].groups = 4;
    all[count++].norm_groups = 3;
    return count;
}

enum { MOST = 8 };

static void test_gradients(void **state) {
    (void)state;
    dr_mamba2_description all[MOST];
    const int count = variants(all);
    for (int i = 0; i < count; i++) {
        char name[48];
        module_problem of = {.backend = reference};
        snprintf(name, sizeof name, "mamba2, variant %d", i);
        MADE_OK(create(reference, 7, &all[i], &of.list, &of.module));
        module_begin(&of);
        module_check(name, &of, 1e-6);
        module_end(&of);
    }
}

/* ---- against a token loop ------------------------------------------------------------------------------------------------ */

static double silu(double x) {
    return x / (1 + exp(-x));
}

enum { HIDDEN = 5, ROWS = 9, MOST_ROWS = 96 };

/* y [ROWS, HIDDEN] as facts of the published models have it: one sequence, every option. */
static void by_tokens(const dr_mamba2_description *d, const made_module *of, const double *x, double *y) {
    const int heads = (int)d->heads, size = (int)d->head_size, groups = (int)d->groups, keys = (int)d->state_size;
    const int inner = heads * size, channels = inner + 2 * groups * keys, rows = inner + channels + heads;
    const double *in = made_values(of, "in_proj.weight"), *in_bias = made_optional(of, "in_proj.bias"),
                 *taps = made_values(of, "conv1d.weight"), *conv_bias = made_optional(of, "conv1d.bias"),
                 *norm = made_optional(of, "norm.weight"), *out = made_values(of, "o_proj.weight"),
                 *out_bias = made_optional(of, "o_proj.bias");
    assert_true(rows <= MOST_ROWS);
    const int ends[] = {inner, 2 * inner, 2 * inner + groups * keys, 2 * inner + 2 * groups * keys, rows};
    double raw[ROWS][MOST_ROWS], S[8][8][8] = {{{0}}};
    for (int t = 0; t < ROWS; t++) {
        double u[MOST_ROWS], o[MOST_ROWS], gated[MOST_ROWS];
        for (int r = 0, p = 0; r < rows; r++) {
            while (r >= ends[p]) p++;
            raw[t][r] = in_bias ? in_bias[r] : 0;
            for (int i = 0; i < HIDDEN; i++) raw[t][r] += in[r * HIDDEN + i] * x[t * HIDDEN + i];
            raw[t][r] *= d->factor[p];
        }
        for (int c = 0; c < channels; c++) {
            double sum = conv_bias ? conv_bias[c] : 0;
            for (int w = 0; w < d->conv_size; w++) {
                const int from = t - (int)d->conv_size + 1 + w;
                if (from >= 0) sum += taps[c * d->conv_size + w] * raw[from][inner + c];
            }
            u[c] = silu(sum);
        }
        for (int h = 0; h < heads; h++) {
            const double *B = u + inner + h / (heads / groups) * keys, *C = B + groups * keys;
            double step = log1p(exp(raw[t][inner + channels + h] + made_values(of, "dt_bias")[h]));
            step = fmin(fmax(step, d->least_step), d->most_step);
            const double decay = exp(-exp(made_values(of, "A_log")[h]) * step);
            for (int i = 0; i < size; i++) {
                o[h * size + i] = made_values(of, "D")[h] * u[h * size + i];
                for (int k = 0; k < keys; k++) {
                    S[h][k][i] = decay * S[h][k][i] + B[k] * step * u[h * size + i];
                    o[h * size + i] += S[h][k][i] * C[k];
                }
            }
        }
        const bool first = d->norm == DR_MAMBA2_NORM_GATED, none = d->norm == DR_MAMBA2_NORM_NONE;
        const int width = inner / (int)d->norm_groups;
        for (int c = 0; c < inner; c++) gated[c] = first || none ? o[c] * silu(raw[t][c]) : o[c];
        for (int g = 0; g < d->norm_groups && !none; g++) {
            double squares = 0;
            for (int c = g * width; c < (g + 1) * width; c++) squares += gated[c] * gated[c];
            for (int c = g * width; c < (g + 1) * width; c++) {
                gated[c] *= norm[c] / sqrt(squares / width + d->norm_eps);
                if (!first) gated[c] *= silu(raw[t][c]);
            }
        }
        for (int i = 0; i < HIDDEN; i++) {
            y[t * HIDDEN + i] = out_bias ? out_bias[i] : 0;
            for (int c = 0; c < inner; c++) y[t * HIDDEN + i] += out[i * inner + c] * gated[c];
        }
    }
}

static void test_values(void **state) {
    (void)state;
    dr_mamba2_description all[MOST];
    const int count = variants(all);
    for (int i = 0; i < count; i++, numbers_release()) {
        const module_maker maker = {"values", create, &all[i], HIDDEN, 0};
        const dr_layout rows = {1, ROWS, NULL};
        const double *x = floats(ROWS * HIDDEN, 1);
        double wanted[ROWS * HIDDEN];
        made_module of;
        made_begin(&maker, reference, &of);
        by_tokens(&all[i], &of, x, wanted);
        made_near("mamba2", "y by tokens", made_run(&of, &rows, false, x, NULL, NULL), wanted, ROWS * HIDDEN, 1e-13);
        made_end(&of);
    }
}

static void test_backends(void **state) {
    (void)state;
    dr_mamba2_description all[MOST];
    const int count = variants(all);
    for (int i = 0; i < count; i++) {
        const bool real = i == 2;
        all[i].norm_eps = 1e-5;
        all[i].head_size = real ? 64 : all[i].norm_groups * number_between(1, 12);
        all[i].state_size = real ? 128 : number_between(1, 40);
        const module_maker maker = {"mamba2", create, &all[i], number_between(4, 70), 0};
        module_on_backends(&maker, i % 3 ? 40 : 150);
    }
}

/* ---- refused ----------------------------------------------------------------------------------------------------------- */

static void refuse(dr_mamba2_description d, const char *words) {
    dr_layer_parameters list = {0};
    dr_module *module = NULL;
    assert_int_equal(create(reference, 4, &d, &list, &module), DR_ERROR_ARGUMENT);
    assert_null(module);
    if (!strstr(dr_last_error(), words)) fail_msg("\"%s\" does not say \"%s\"", dr_last_error(), words);
    dr_layer_parameters_release(&list);
}

static void test_refused(void **state) {
    (void)state;
    dr_mamba2_description d = basic();
    d.heads = 3;
    refuse(d, "3 heads");
    d = basic();
    d.conv_size = 0;
    refuse(d, "convolution size");
    d = basic();
    d.norm_groups = 5;
    refuse(d, "5 equal groups");
    d = basic();
    d.most_step = 0;
    refuse(d, "steps");
    d = basic();
    d.factor[3] = NAN;
    refuse(d, "factor");
    d = basic();
    d.state_size = (int64_t)1 << 40;
    refuse(d, "state size");
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
