/* Probes: figures of streams that are small enough to compute by hand; the plain recurrence against the reference engine on the
 * streams of a model; models that have nothing to look at. */
#include "base/memory.h"
#include "base/random.h"
#include "check/probe/probe.h"
#include "nn/observe.h"

#include <deltarule/backend.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* The figures of one run. */
typedef struct {
    char name[96];
    int64_t layer;
    dr_probe_figure figure;
} kept;

static kept figures[256];
static int count;

static void keep(void *context, const dr_probe_figure *figure) {
    (void)context;
    assert_true(count < 256);
    snprintf(figures[count].name, sizeof figures[count].name, "%s", figure->name);
    figures[count].layer = figure->layer;
    figures[count++].figure = *figure;
}

static const dr_probe_figure *figure(const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(figures[i].name, name) == 0) return &figures[i].figure;
    fail_msg("no figure %s", name);
    return NULL;
}

static void near(double one, double other) {
    if (!(fabs(one - other) < 1e-9)) fail_msg("%.12g instead of %.12g", one, other);
}

static dr_probe_layer layer_of(const dr_rule *rule, int64_t tokens, int64_t key_size, int64_t value_size) {
    dr_probe_layer layer = {.layer = 0, .tokens = tokens, .recurrence = dr_recurrence_default()};
    layer.recurrence.rule = rule;
    layer.recurrence.layout = (dr_layout){.sequences = 1, .rows = tokens};
    layer.recurrence.key_heads = layer.recurrence.value_heads = 1;
    layer.recurrence.key_size = key_size;
    layer.recurrence.value_size = value_size;
    return layer;
}

static const dr_probe_listener listener = {keep, NULL};
static dr_backend *backend;

static void test_value(void **state) {
    (void)state;
    double query[] = {0, 1, 1, 0}, key[] = {1, 0, 0.6, 0.8}, value[] = {2, 4, 1, 3}, decay[] = {log(0.5), log(0.5)},
           beta[] = {0.5, 0.5};
    dr_probe_layer layer = layer_of(dr_rule_find("gdn"), 2, 2, 2);
    layer.at[DR_INPUT_QUERY] = query, layer.at[DR_INPUT_KEY] = key, layer.at[DR_INPUT_VALUE] = value;
    layer.at[DR_INPUT_LOG_DECAY] = decay, layer.at[DR_INPUT_BETA] = beta;
    count = 0;
    assert_true(dr_probe_value.applies(layer.recurrence.rule));
    assert_int_equal(dr_probe_run(&dr_probe_value, &layer, &listener), DR_OK);
    /* of the first token there is no cosine; then S = [[1, 2], [0, 0]], of rank one */
    assert_int_equal(figure("cosine of readout and value prediction")->count, 1);
    near(figure("cosine of readout and value prediction")->mean, 1);
    near(figure("beta times key and read key")->least, 0.5);
    near(figure("drift")->most, sqrt(20));
    near(figure("drift")->least, sqrt(0.36 + 0.04));
    near(figure("error before the write")->least, 2.5); /* [1, 3] - [0.3, 0.6] */
    near(figure("error after the write")->least, 0.5 * 2.5);
    near(figure("error after the write")->median, 0.5 * (sqrt(5) + 0.5 * 2.5));
    near(figure("recall at the write key")->most, 1); /* [1, 2] beside [2, 4] */
    near(figure("recall at the write key")->least, (0.65 + 3 * 1.8) / sqrt((0.65 * 0.65 + 1.8 * 1.8) * 10));
    double lambda[] = {0.5, 0.5};
    layer.at[DR_INPUT_LAMBDA] = lambda;
    layer.recurrence.rule = dr_rule_find("qdelta");
    count = 0;
    assert_true(dr_probe_value.applies(layer.recurrence.rule));
    assert_int_equal(dr_probe_run(&dr_probe_value, &layer, &listener), DR_OK);
    near(figure("beta times key and read key")->most, 0.5 * (1 + 0.5 * 0.6));
    assert_false(dr_probe_value.applies(dr_rule_find("pgdn")));
    assert_false(dr_probe_value.applies(dr_rule_find("eda")));
    assert_false(dr_probe_value.applies(dr_rule_find("delta_product")));
}

static void test_squash(void **state) {
    (void)state;
    dr_squash squash = {.x = 2, .eps = 1e-6, .interval = DR_SQUASH_SYMMETRIC, .function = DR_SQUASH_RATIONAL};
    near(dr_probe_squash(&squash, exp(1) - 1e-6, 0), pow(2, -0.5)); /* r = 1, s = 1/2 */
    near(dr_probe_squash(&squash, exp(1) - 1e-6, 1), 1);
    squash.interval = DR_SQUASH_AMPLIFY;
    near(dr_probe_squash(&squash, exp(1) - 1e-6, 1), sqrt(2));
    squash.interval = DR_SQUASH_DAMPEN;
    near(dr_probe_squash(&squash, exp(1) - 1e-6, 1), sqrt(0.5));
    squash.function = DR_SQUASH_TANH;
    near(dr_probe_squash(&squash, exp(1) - 1e-6, 0), pow(2, -(1 + tanh(1)) / 2));
}

static void test_preconditioner(void **state) {
    (void)state;
    double query[] = {1, 0}, key[] = {1, 0}, value[] = {1}, decay[] = {log(0.5)}, beta[] = {0.75}, scan_decay[] = {log(0.9)},
           gain[] = {2}, centre[] = {log(2 + 1e-6)};
    dr_probe_layer layer = layer_of(dr_rule_find("pgdn"), 1, 2, 1);
    layer.at[DR_INPUT_QUERY] = query, layer.at[DR_INPUT_KEY] = key, layer.at[DR_INPUT_VALUE] = value;
    layer.at[DR_INPUT_LOG_DECAY] = decay, layer.at[DR_INPUT_BETA] = beta, layer.at[DR_INPUT_SCAN_LOG_DECAY] = scan_decay;
    layer.at[DR_INPUT_SCAN_GAIN] = gain, layer.at[DR_INPUT_SCAN_CENTRE] = centre;
    count = 0;
    assert_true(dr_probe_preconditioner.applies(layer.recurrence.rule));
    assert_int_equal(dr_probe_run(&dr_probe_preconditioner, &layer, &listener), DR_OK);
    near(figure("A, the scan")->most, 2); /* 0.9 . 0 + 2 . 1 */
    near(figure("A, the scan")->least, 0);
    near(figure("B, the preconditioner")->least, 1); /* at its centre; that of A = 0 is near 1.5 */
    assert_true(figure("B, the preconditioner")->most > 1.4 && figure("B, the preconditioner")->most < 1.5);
    near(figure("key times preconditioned key")->mean, 1);
    near(figure("gain times that")->mean, 0.75);
    near(figure("eigenvalue of the transition along the key")->mean, 0.125);
    near(figure("share of these below 0")->mean, 0);
    assert_false(dr_probe_preconditioner.applies(dr_rule_find("gdn")));
    assert_false(dr_probe_preconditioner.applies(dr_rule_find("pla")));
}

/* Keys along two axes have a Gram matrix of rank two; a B that damps is held against its own bounds. */
static void test_spectrum_and_saturation(void **state) {
    (void)state;
    double query[] = {1, 0, 1, 0}, key[] = {1, 0, 0, 1}, value[] = {1, 1}, decay[] = {0, 0}, beta[] = {0.5, 0.5},
           scan_decay[] = {0, 0}, gain[] = {1e30, 1e30}, centre[] = {0, 0}, of_one = 1, eigenvalue;
    dr_rule rule = *dr_rule_find("pgdn");
    rule.squash = (dr_squash){.x = 2, .eps = 1e-6, .interval = DR_SQUASH_DAMPEN, .function = DR_SQUASH_RATIONAL};
    dr_probe_layer layer = layer_of(&rule, 2, 2, 1);
    layer.at[DR_INPUT_QUERY] = query, layer.at[DR_INPUT_KEY] = key, layer.at[DR_INPUT_VALUE] = value;
    layer.at[DR_INPUT_LOG_DECAY] = decay, layer.at[DR_INPUT_BETA] = beta, layer.at[DR_INPUT_SCAN_LOG_DECAY] = scan_decay;
    layer.at[DR_INPUT_SCAN_GAIN] = gain, layer.at[DR_INPUT_SCAN_CENTRE] = centre;
    count = 0;
    assert_int_equal(dr_probe_run(&dr_probe_preconditioner, &layer, &listener), DR_OK);
    /* ln A = 69 squashes to 0.986 of the way to a bound; where nothing was scanned, ln 1e-6 to 0.932 of that to the other */
    near(figure("share of B within 5% of a bound")->mean, 0.75);
    if (dr_probe_eigenvalues(1, &of_one, &eigenvalue) == DR_ERROR_UNSUPPORTED) return;
    near(figure("effective rank of the Gram matrix")->mean, 2);
    near(figure("shares of the Gram matrix's eigenvalues")->least, 0.5);
    /* the last token's preconditioner is nearly 1/2 along both axes */
    near(figure("effective rank of the preconditioned Gram matrix")->mean, 2);
    /* along the first axis 1e30 was scanned, along the second nothing: B = 2^(-(1 + s)/2) */
    gain[1] = 0, scan_decay[1] = 0;
    count = 0;
    assert_int_equal(dr_probe_run(&dr_probe_preconditioner, &layer, &listener), DR_OK);
    const double s = log(1e30) / (1 + log(1e30)), other = log(1e-6) / (1 - log(1e-6)), one = pow(2, -(1 + s) / 2);
    const double share = one / (one + pow(2, -(1 + other) / 2));
    near(figure("shares of the preconditioned Gram matrix's eigenvalues")->least, share);
    near(figure("effective rank of the preconditioned Gram matrix")->mean,
         exp(-share * log(share) - (1 - share) * log(1 - share)));
    near(figure("effective rank of the Gram matrix")->mean, 2);
}

static void test_erase(void **state) {
    (void)state;
    double query[] = {1, 1, 1, 1}, key[] = {0, 1, 1, 0}, value[] = {2, 3}, erase[] = {1, 0, 0, 1}, gamma[] = {0.5, 0.5},
           beta[] = {0.25, 1}, decay[] = {log(0.5), log(0.5), 0, 0};
    dr_probe_layer layer = layer_of(dr_rule_find("eda"), 2, 2, 1);
    layer.at[DR_INPUT_QUERY] = query, layer.at[DR_INPUT_KEY] = key, layer.at[DR_INPUT_VALUE] = value;
    layer.at[DR_INPUT_LOG_DECAY] = decay, layer.at[DR_INPUT_BETA] = beta, layer.at[DR_INPUT_ERASE_KEY] = erase;
    layer.at[DR_INPUT_ERASE_GAIN] = gamma;
    count = 0;
    assert_true(dr_probe_erase.applies(layer.recurrence.rule));
    assert_int_equal(dr_probe_run(&dr_probe_erase, &layer, &listener), DR_OK);
    near(figure("share of decay")->most, 0.5 / 0.875);
    near(figure("share of decay")->least, 0);
    near(figure("share of write, retention 0.5 to 0.8")->mean, 0.125 / 0.875);
    near(figure("share of erase, retention above 0.99")->mean, 0.5 / 1.5);
    near(figure("absolute cosine of erase and write key")->mean, 0);
    near(figure("recall at the write key")->mean, 1);
    /* S = [0, 0.5], then 0.25 is erased and 3 written: o = 3.25; without erasing 3.5, as with keys to erase along, at which
     * nothing is */
    near(figure("change of readouts, without erasing")->most, 0.25 / 3.25);
    near(figure("change of readouts, without erasing")->least, 0);
    near(figure("change of readouts, erase keys equal to keys")->most, 0.25 / 3.25);
    near(figure("change of readouts, erase keys of the next head")->most, 0); /* there is one head */
    assert_false(dr_probe_erase.applies(dr_rule_find("kda")));
}

/* Quarters of eight tokens whose retention rises, and gains that rise or fall with it. */
static void test_erase_and_retention(void **state) {
    (void)state;
    enum { TOKENS = 8 };
    double query[TOKENS], key[TOKENS], value[TOKENS], erase[TOKENS], gamma[TOKENS], beta[TOKENS], decay[TOKENS];
    dr_probe_layer layer = layer_of(dr_rule_find("eda"), TOKENS, 1, 1);
    layer.at[DR_INPUT_QUERY] = query, layer.at[DR_INPUT_KEY] = key, layer.at[DR_INPUT_VALUE] = value;
    layer.at[DR_INPUT_LOG_DECAY] = decay, layer.at[DR_INPUT_BETA] = beta, layer.at[DR_INPUT_ERASE_KEY] = erase;
    layer.at[DR_INPUT_ERASE_GAIN] = gamma;
    for (int falls = 0; falls < 2; falls++) {
        for (int t = 0; t < TOKENS; t++) {
            const double a = 0.1 * ((5 * t) % TOKENS + 1); /* 0.1 to 0.8, not in order */
            query[t] = key[t] = value[t] = erase[t] = 1, beta[t] = 0.5;
            decay[t] = log(a), gamma[t] = falls ? 0.9 - a : a;
        }
        count = 0;
        assert_int_equal(dr_probe_run(&dr_probe_erase, &layer, &listener), DR_OK);
        near(figure("correlation of erase gain and retention")->mean, falls ? -1 : 1);
        const dr_probe_figure *least = figure("share of erase, the quarter of least retention");
        assert_int_equal(least->count, 2);
        /* a gamma/(1 - a + a beta + a gamma) at a = 0.1 and 0.2 */
        const double gains[] = {falls ? 0.8 : 0.1, falls ? 0.7 : 0.2};
        near(least->mean,
             0.5 * (0.1 * gains[0] / (0.9 + 0.05 + 0.1 * gains[0]) + 0.2 * gains[1] / (0.8 + 0.1 + 0.2 * gains[1])));
        assert_int_equal(figure("share of erase, the quarter of most retention")->count, 2);
    }
}

/* The eigenvalue that the probe tells of a token is that of the transition of the engine, which with value 0 takes the state I
 * to the matrix itself: alpha times, but for one, K - 1 times (Preconditioned DeltaNet, lemma E.1). */
static void check_transition(const dr_rule *rule, int64_t K, uint64_t seed) {
    dr_random random = dr_random_start(seed, (uint64_t)K);
    dr_probe_layer layer = layer_of(rule, 1, K, K);
    dr_recurrence_memory memory;
    const size_t room = (size_t)(K * K);
    double *numbers = calloc(3 * room + 6 * (size_t)K, sizeof *numbers), *S = numbers, *M = S + room, *o = M + room;
    double *query = o + K, *key = query + K, *value = key + K, *eigenvalues = value + K, *decay = eigenvalues + K;
    double beta = dr_random_uniform(&random), scan_decay = log(0.9), gain = dr_random_uniform(&random), centre = -0.2;
    const double alpha = 0.5 + 0.5 * dr_random_uniform(&random);
    *decay = log(alpha);
    double length = 0;
    for (int64_t i = 0; i < K; i++) {
        query[i] = dr_random_normal(&random), key[i] = dr_random_normal(&random);
        length += key[i] * key[i];
        S[i * K + i] = 1;
    }
    for (int64_t i = 0; i < K; i++) key[i] /= sqrt(length);
    layer.at[DR_INPUT_QUERY] = query, layer.at[DR_INPUT_KEY] = key, layer.at[DR_INPUT_VALUE] = value;
    if (layer.recurrence.rule->decay != DR_DECAY_NONE) layer.at[DR_INPUT_LOG_DECAY] = decay;
    layer.at[DR_INPUT_BETA] = &beta, layer.at[DR_INPUT_SCAN_LOG_DECAY] = &scan_decay;
    layer.at[DR_INPUT_SCAN_GAIN] = &gain, layer.at[DR_INPUT_SCAN_CENTRE] = &centre;
    count = 0;
    assert_int_equal(dr_probe_run(&dr_probe_preconditioner, &layer, &listener), DR_OK);
    dr_inputs inputs = {{NULL}};
    for (int i = 0; i < DR_INPUTS; i++) inputs.at[i] = layer.at[i];
    assert_int_equal(dr_recurrence_plan(backend, &layer.recurrence, &memory), DR_OK);
    void *workspace = malloc(memory.forward + 1);
    const dr_states initial = {.at = {[DR_STATE_S] = S}};
    const dr_mutable_states final = {.at = {[DR_STATE_S] = M}};
    assert_int_equal(dr_recurrence_forward(backend, &layer.recurrence, &inputs, &initial, o, &final, NULL, workspace), DR_OK);
    if (dr_probe_eigenvalues(K, M, eigenvalues) == DR_OK) {
        const double every = layer.recurrence.rule->decay == DR_DECAY_NONE ? 1 : alpha;
        double single = every; /* the one that is farthest from alpha */
        for (int64_t i = 0; i < K; i++)
            if (fabs(eigenvalues[i] - every) > fabs(single - every)) single = eigenvalues[i];
        if (!(fabs(single - figure("eigenvalue of the transition along the key")->mean) < 1e-8))
            fail_msg("%s, normaliser %d, K %lld: %.12g instead of %.12g", rule->name, (int)rule->normalizer, (long long)K,
                     figure("eigenvalue of the transition along the key")->mean, single);
    }
    free(workspace);
    free(numbers);
}

static void test_transitions(void **state) {
    (void)state;
    static const int64_t sizes[] = {2, 7, 64, 128};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            dr_rule rule = *dr_rule_find("pgdn");
            check_transition(dr_rule_find("pdn"), sizes[i], seed);
            for (int normalizer = DR_NORMALIZER_NONE; normalizer <= DR_NORMALIZER_DISCOUNTED; normalizer++) {
                rule.normalizer = (dr_normalizer)normalizer;
                check_transition(&rule, sizes[i], seed);
            }
        }
}

/* ---- models --------------------------------------------------------------------------------------------------------- */

static dr_model *make_model(const char *rule) {
    dr_model *model;
    dr_model_config config = dr_model_config_default(dr_rule_find(rule));
    config.vocabulary = 257;
    config.hidden = 16;
    config.layers = 2;
    config.heads = 2;
    config.intermediate = 16;
    if (dr_model_create(backend, &config, 1, &model) != DR_OK) fail_msg("%s", dr_last_error());
    return model;
}

static const char text[] = "The state of a token is a matrix, which keys write and queries read.";

/* o of the engine on what a layer read is S^T q of the plain recurrence. */
static void test_streams(void **state) {
    (void)state;
    enum { TOKENS = 20 };
    int32_t ids[TOKENS];
    dr_model *model = make_model("eda");
    dr_session *session;
    dr_observed observed;
    dr_recurrence_memory memory;
    for (int i = 0; i < TOKENS; i++) ids[i] = text[i];
    assert_int_equal(dr_session_create(model, &session), DR_OK);
    assert_int_equal(dr_observe(session, ids, TOKENS), DR_OK);
    assert_true(dr_observed_layer(session, 1, &observed));
    const dr_recurrence *recurrence = &observed.recurrence;
    const int64_t HV = recurrence->value_heads, K = recurrence->key_size, V = recurrence->value_size;
    dr_probe_layer layer = {.tokens = TOKENS, .recurrence = *recurrence};
    for (int i = 0; i < DR_INPUTS; i++) layer.at[i] = (double *)observed.inputs.at[i]; /* the reference's own memory */
    assert_int_equal(dr_recurrence_plan(backend, recurrence, &memory), DR_OK);
    double *o = calloc((size_t)(TOKENS * HV * V), sizeof *o), *S = calloc((size_t)(K * V), sizeof *S), read[256];
    void *workspace = malloc(memory.forward + 1);
    assert_true(o && S && workspace && V <= 256);
    assert_int_equal(dr_recurrence_forward(backend, recurrence, &observed.inputs, NULL, o, NULL, NULL, workspace), DR_OK);
    const double scale = recurrence->scale > 0 ? recurrence->scale : 1 / sqrt((double)K);
    for (int64_t j = 0; j < HV; j++) {
        memset(S, 0, (size_t)(K * V) * sizeof *S);
        for (int64_t t = 0; t < TOKENS; t++) {
            const double *erase = dr_probe_input(&layer, DR_INPUT_ERASE_KEY, t, j);
            const double *key = dr_probe_input(&layer, DR_INPUT_KEY, t, j);
            dr_probe_state_decay(&layer, t, j, S);
            dr_probe_state_read(recurrence, S, erase, read);
            dr_probe_state_write(recurrence, *dr_probe_input(&layer, DR_INPUT_ERASE_GAIN, t, j), erase, NULL, read, S);
            dr_probe_state_read(recurrence, S, key, read);
            dr_probe_state_write(recurrence, *dr_probe_input(&layer, DR_INPUT_BETA, t, j), key,
                                 dr_probe_input(&layer, DR_INPUT_VALUE, t, j), read, S);
            dr_probe_state_read(recurrence, S, dr_probe_input(&layer, DR_INPUT_QUERY, t, j), read);
            for (int64_t v = 0; v < V; v++)
                assert_true(fabs(scale * read[v] - o[(t * HV + j) * V + v]) <= 1e-10 * (1 + fabs(o[(t * HV + j) * V + v])));
        }
    }
    free(o);
    free(S);
    free(workspace);
    dr_session_destroy(session);
    dr_model_destroy(model);
}

static dr_status probe(const char *rule, const char *kind, int64_t tokens) {
    dr_model *model = make_model(rule);
    count = 0;
    dr_status status = dr_probe(model, kind, text, strlen(text), tokens, NULL, keep, NULL);
    dr_model_destroy(model);
    return status;
}

static void test_models(void **state) {
    (void)state;
    static const char *const pairs[][2] = {{"gdn", "value"},           {"kda", "value"},          {"qdelta", "value"},
                                           {"delta_net", "value"},     {"eda", "erase"},          {"pdn", "preconditioner"},
                                           {"pgdn", "preconditioner"}, {"pkda", "preconditioner"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (probe(pairs[i][0], pairs[i][1], 40) != DR_OK) fail_msg("%s %s: %s", pairs[i][0], pairs[i][1], dr_last_error());
        assert_true(count > 10);
        assert_int_equal(figures[0].layer, 0);
        assert_int_equal(figures[count - 1].layer, 1);
    }
    assert_int_equal(probe("gdn", "erase", 40), DR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(dr_last_error(), "no layer of the model has a rule that erases"));
    assert_int_equal(probe("gdn", "erasure", 40), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "there is no probe 'erasure'"));
    assert_int_equal(probe("gdn", "value", 1), DR_ERROR_ARGUMENT);
    assert_int_equal(probe("gdn", "value", -5), DR_ERROR_ARGUMENT);
    assert_null(dr_probe_kind(3));
    assert_null(dr_probe_kind(-1));
}

static int open_backend(void **state) {
    (void)state;
    return dr_backend_open("reference", NULL, &backend) == DR_OK ? 0 : -1;
}

static int close_backend(void **state) {
    (void)state;
    dr_backend_close(backend);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_value),          cmocka_unit_test(test_squash),
                                       cmocka_unit_test(test_preconditioner), cmocka_unit_test(test_spectrum_and_saturation),
                                       cmocka_unit_test(test_erase),          cmocka_unit_test(test_erase_and_retention),
                                       cmocka_unit_test(test_transitions),    cmocka_unit_test(test_streams),
                                       cmocka_unit_test(test_models)};
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
