/* The time mix and the channel mix of RWKV-7: backwards against differences in double, y against a token loop, and the backends
 * against each other, also token by token. */
#include "module_backends.h"
#include "module_problem.h"
#include "nn/mixers/rwkv7.h"
#include "nn/modules/rwkv7_channel_mix.h"

static dr_rwkv7_description basic(bool first) {
    return (dr_rwkv7_description){.heads = 2,
                                  .key_size = 3,
                                  .value_size = 4,
                                  .decay_rank = 2,
                                  .rate_rank = 3,
                                  .value_rank = first ? 0 : 2,
                                  .gate_rank = 4,
                                  .first = first,
                                  .norm_eps = 0.1,
                                  .unit_eps = 1e-2};
}

static dr_status create(dr_backend *backend, int64_t hidden, const void *description, dr_layer_parameters *list,
                        dr_module **module) {
    return dr_rwkv7_create(backend, hidden, description, "", list, module);
}

static dr_status create_channel_mix(dr_backend *backend, int64_t hidden, const void *width, dr_layer_parameters *list,
                                    dr_module **module) {
    return dr_rwkv7_channel_mix_create(backend, hidden, *(const int64_t *)width, "", list, module);
}

static void test_gradients(void **state) {
    (void)state;
    for (int first = 0; first < 2; first++) {
        const dr_rwkv7_description d = basic(first);
        module_problem of = {.backend = reference};
        MADE_OK(create(reference, 7, &d, &of.list, &of.module));
        module_begin(&of);
        module_check(first ? "rwkv7, first" : "rwkv7", &of, 1e-6);
        module_end(&of);
    }
    const int64_t width = 5;
    module_problem of = {.backend = reference};
    MADE_OK(create_channel_mix(reference, 7, &width, &of.list, &of.module));
    module_begin(&of);
    module_check("rwkv7's channel mix", &of, 1e-6);
    module_end(&of);
}

/* ---- against a token loop ------------------------------------------------------------------------------------------------ */

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

enum { HIDDEN = 5, ROWS = 9, HEADS = 2, KEY = 3, VALUE = 4, KEYS = HEADS * KEY, VALUES = HEADS * VALUE };

/* y [out] = weight [out, in] x */
static void product(int out, int in, const double *weight, const double *x, double *y) {
    for (int o = 0; o < out; o++) {
        y[o] = 0;
        for (int i = 0; i < in; i++) y[o] += weight[o * in + i] * x[i];
    }
}

/* y [out] of the low rank called name; function: 't'anh, 's'igmoid or none */
static void low(const made_module *of, const char *name, int rank, int out, char function, const double *x, double *y) {
    double inner[8];
    char full[40];
    snprintf(full, sizeof full, "%s_lora.0.weight", name);
    product(rank, HIDDEN, made_values(of, full), x, inner);
    for (int i = 0; i < rank; i++) inner[i] = function == 't' ? tanh(inner[i]) : function == 's' ? sigmoid(inner[i]) : inner[i];
    snprintf(full, sizeof full, "%s_lora.1.weight", name);
    product(out, rank, made_values(of, full), inner, y);
    snprintf(full, sizeof full, "%s_lora.1.bias", name);
    for (int i = 0; function != 's' && i < out; i++) y[i] += made_values(of, full)[i];
}

/* One sequence. passed [ROWS, VALUES]: written by a first layer, else read. */
static void by_tokens(const dr_rwkv7_description *d, const made_module *of, const double *x, double *passed, double *y) {
    double S[HEADS][KEY][VALUE] = {{{0}}};
    for (int t = 0; t < ROWS; t++) {
        double mixed[6][HIDDEN], r[KEYS], k[KEYS], v[VALUES], w[KEYS], a[KEYS], g[VALUES], share[VALUES], out[VALUES];
        for (int m = 0; m < 6; m++)
            for (int i = 0; i < HIDDEN; i++) {
                const double now = x[t * HIDDEN + i], before = t > 0 ? x[(t - 1) * HIDDEN + i] : 0;
                mixed[m][i] = now + (before - now) * made_values(of, "x_mix")[m * HIDDEN + i];
            }
        product(KEYS, HIDDEN, made_values(of, "r_proj.weight"), mixed[0], r);
        low(of, "w", 2, KEYS, 't', mixed[1], w);
        product(KEYS, HIDDEN, made_values(of, "k_proj.weight"), mixed[2], k);
        product(VALUES, HIDDEN, made_values(of, "v_proj.weight"), mixed[3], v);
        low(of, "a", 3, KEYS, 0, mixed[4], a);
        low(of, "g", 4, VALUES, 's', mixed[5], g);
        if (!d->first) low(of, "v", 2, VALUES, 0, mixed[3], share);
        for (int i = 0; i < VALUES; i++) {
            double *first = passed + t * VALUES + i;
            if (d->first) *first = v[i];
            if (!d->first) v[i] += (*first - v[i]) * sigmoid(share[i]);
        }
        for (int h = 0; h < HEADS; h++) {
            double kk[KEY], squares = 0, sum = 0, mean = 0, variance = 0, *o = out + h * VALUE;
            for (int i = 0; i < KEY; i++) {
                const int at = h * KEY + i;
                a[at] = sigmoid(a[at]);
                kk[i] = k[at] * made_values(of, "k_k")[at];
                squares += kk[i] * kk[i];
                k[at] *= 1 + (a[at] - 1) * made_values(of, "k_a")[at];
                sum += r[at] * k[at] * made_values(of, "r_k")[at];
            }
            for (int i = 0; i < KEY; i++) kk[i] /= sqrt(squares + (d->unit_clamped ? d->unit_eps * d->unit_eps : d->unit_eps));
            for (int j = 0; j < VALUE; j++) {
                double read = 0;
                o[j] = 0;
                for (int i = 0; i < KEY; i++) read += S[h][i][j] * kk[i];
                for (int i = 0; i < KEY; i++) {
                    const int at = h * KEY + i;
                    S[h][i][j] =
                        exp(-exp(-0.5) * sigmoid(w[at])) * S[h][i][j] - a[at] * kk[i] * read + k[at] * v[h * VALUE + j];
                    o[j] += S[h][i][j] * r[at];
                }
                mean += o[j] / VALUE;
            }
            for (int j = 0; j < VALUE; j++) variance += (o[j] - mean) * (o[j] - mean) / VALUE;
            for (int j = 0; j < VALUE; j++) {
                const int at = h * VALUE + j;
                o[j] = (o[j] - mean) / sqrt(variance + d->norm_eps) * made_values(of, "g_norm.weight")[at] +
                       made_values(of, "g_norm.bias")[at];
                o[j] = (o[j] + sum * v[at]) * g[at];
            }
        }
        product(HIDDEN, VALUES, made_values(of, "o_proj.weight"), out, y + t * HIDDEN);
    }
}

static void test_values(void **state) {
    (void)state;
    for (int first = 0; first < 2; first++, numbers_release()) {
        dr_rwkv7_description d = basic(first);
        d.unit_clamped = first;
        const module_maker maker = {"values", create, &d, HIDDEN, 0};
        const dr_layout rows = {1, ROWS, NULL};
        const double *x = floats(ROWS * HIDDEN, 1);
        double wanted[ROWS * HIDDEN], passed[ROWS * VALUES];
        made_module of;
        made_begin(&maker, reference, &of);
        for (int i = 0; i < ROWS * VALUES; i++) passed[i] = x[i / VALUES * HIDDEN + i % VALUES % HIDDEN]; /* as made_run does */
        by_tokens(&d, &of, x, passed, wanted);
        made_near("rwkv7", "y by tokens", made_run(&of, &rows, false, x, NULL, NULL), wanted, ROWS * HIDDEN, 1e-13);
        if (first) made_near("rwkv7", "the value passed on", of.passed, passed, ROWS * VALUES, 1e-13);
        made_end(&of);
    }
}

static void test_backends(void **state) {
    (void)state;
    for (int draw = 0; draw < 6; draw++) {
        dr_rwkv7_description d = basic(draw % 2);
        const bool real = draw >= 4;
        /* the norms of few channels are steep where all of these are near zero, but for a large eps */
        d.norm_eps = real ? 64e-5 : 0.1;
        d.unit_eps = real ? 1e-6 : 1e-2;
        d.heads = number_between(1, 4);
        d.key_size = real ? 64 : number_between(2, 24);
        d.value_size = real ? 64 : number_between(2, 24);
        const module_maker maker = {"rwkv7", create, &d, number_between(4, 70), 0};
        module_on_backends(&maker, draw % 3 ? 40 : 150);
    }
    for (int draw = 0; draw < 4; draw++) {
        const int64_t width = draw ? number_between(1, 70) : 256;
        const module_maker maker = {"rwkv7's channel mix", create_channel_mix, &width, draw ? number_between(1, 70) : 64, 0};
        module_on_backends(&maker, 40);
    }
}

static void refuse(dr_rwkv7_description d, const char *words) {
    dr_layer_parameters list = {0};
    dr_module *module = NULL;
    assert_int_equal(create(reference, 4, &d, &list, &module), DR_ERROR_ARGUMENT);
    assert_null(module);
    if (!strstr(dr_last_error(), words)) fail_msg("\"%s\" does not say \"%s\"", dr_last_error(), words);
    dr_layer_parameters_release(&list);
}

static void test_refused(void **state) {
    (void)state;
    dr_rwkv7_description d = basic(false);
    d.heads = 0;
    refuse(d, "heads");
    d = basic(false);
    d.value_rank = 0;
    refuse(d, "rank of the value");
    d = basic(true);
    d.gate_rank = (int64_t)1 << 40;
    refuse(d, "rank of the gate");
    dr_layer_parameters list = {0};
    dr_module *module = NULL;
    const int64_t width = 0;
    assert_int_equal(create_channel_mix(reference, 4, &width, &list, &module), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "width 0"));
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
