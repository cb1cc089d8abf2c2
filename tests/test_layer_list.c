/* Hybrids: lists of layers in both forms, and the models that they make. A model of several kinds of layers has the gradient of
 * its loss, in double; the CPU's agrees with it, and with itself bit for bit over threads and packing; a sequence in parts, or
 * token by token, gives what it gives whole; and a folder gives the model back. */
#include "backends/cpu/cpu.h"
#include "backends/reference/reference.h"
#include "base/random.h"
#include "differences.h"
#include "learner.h"
#include "nn/config.h"
#include "nn/describe.h"
#include "nn/layer_list.h"
#include "nn/model.h"
#include "scratch.h"

#include <string.h>

static dr_backend *reference, *cpu;

#define ASSERT_OK(call)                                                                                                        \
    do {                                                                                                                       \
        if ((call) != DR_OK) fail_msg("%s: %s", #call, dr_last_error());                                                       \
    } while (0)

static int open_backends(void **state) {
    return scratch_begin(state) != 0 || dr_reference_open(NULL, &reference) != DR_OK ||
           dr_cpu_open(&(dr_backend_options){.threads = 2}, &cpu) != DR_OK;
}

static int close_backends(void **state) {
    reference->ops->close(reference);
    cpu->ops->close(cpu);
    return scratch_end(state);
}

/* ---- texts ---------------------------------------------------------------------------------------------------------- */

static void test_short_form(void **state) {
    (void)state;
    static const struct {
        const char *text, *list;
        int64_t count;
    } cases[] = {
        {"gdn", "[{\"mixer\":\"gdn\"}]", 1},
        {" eda*3  attention ", "[{\"mixer\":\"eda\",\"repeat\":3},{\"mixer\":\"attention\"}]", 4},
        {"(eda*3 attention+experts)*6 gdn",
         "[{\"layers\":[{\"mixer\":\"eda\",\"repeat\":3},{\"mixer\":\"attention\",\"feed\":\"experts\"}],\"repeat\":6},{"
         "\"mixer\":\"gdn\"}]",
         25},
        {"((gdn kda)*2 eda)*2",
         "[{\"layers\":[{\"layers\":[{\"mixer\":\"gdn\"},{\"mixer\":\"kda\"}],\"repeat\":2},{\"mixer\":"
         "\"eda\"}],\"repeat\":2}]",
         10},
        {"[{\"mixer\": \"gdn\", \"repeat\": 2}]", "[{\"mixer\":\"gdn\",\"repeat\":2}]", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *list;
        int64_t count = 0;
        ASSERT_OK(dr_layer_list_parse(cases[i].text, &list));
        char *text;
        ASSERT_OK(dr_layer_list_text(list, &text));
        assert_string_equal(text, cases[i].list);
        ASSERT_OK(dr_layer_list_count(list, &count));
        assert_int_equal(count, cases[i].count);
        dr_release(text);
        json_decref(list);
    }
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "its end"},
        {"gdn*", "how often"},
        {"gdn*0", "16384"},
        {"gdn*99999", "16384"},
        {"(gdn", "closing bracket"},
        {"gdn)", "\")\""},
        {"gdn+", "a name"},
        {"gdn,kda", "a blank"},
        {"nobody", "nobody"},
        {"gdn+nothing", "nothing"},
        {"((((((((((gdn))))))))))", "deep"},
        {"(gdn*9000)*2", "more than 16384"},
        {"[]", "has none"},
        {"[1]", "no JSON object"},
        {"[{\"mixer\": \"gdn\", \"hidden\": 3}]", "hidden"},
        {"[{\"mixer\": \"gdn\"}, {\"mixer\": \"gdn\", \"repeat\": -1}]", "repeat"},
        {"[{\"mixer\": \"kda\"}, {\"mixer\": \"retnet\", \"key_size\": 5}]", "layer 1: key_size is 5"},
        {"[{\"mixer\": \"attention\", \"heads\": 4, \"key_heads\": 3}]", "key_heads, 3"},
        {"[{\"mixer\": \"attention\", \"gate\": \"both\"}]", "both"},
        {"[{\"mixer\": \"gdn\", \"experts\": {\"count\": 2, \"chosen\": 3}}]", "chosen"},
        {"[", "no JSON list"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
        dr_model *model = NULL;
        config.layer_list = cases[i].text;
        if (dr_model_create(reference, &config, 1, &model) != DR_ERROR_ARGUMENT) fail_msg("\"%s\" is taken", cases[i].text);
        if (!strstr(dr_last_error(), cases[i].says))
            fail_msg("\"%s\": the sentence lacks \"%s\": %s", cases[i].text, cases[i].says, dr_last_error());
    }
}

/* ---- models --------------------------------------------------------------------------------------------------------- */

static const char *const hybrids[] = {
    "gdn kda+none eda",
    "gdn*2 attention",
    "eda*3 attention+experts",
    "[{\"mixer\": \"attention\", \"heads\": 4, \"key_heads\": 2, \"key_size\": 6, \"window\": 3, \"gate\": \"head\", "
    "\"query_key_norm\": true, \"bias\": true, \"rotary_size\": 4}, {\"mixer\": \"kda\"}]",
    "[{\"mixer\": \"gdn\", \"value_heads\": 4, \"intermediate\": 5}, {\"mixer\": \"delta_net\", \"key_size\": 3}, {\"mixer\": "
    "\"retnet\", \"output_gate\": false}]",
};

static dr_model_config small(const char *layers) {
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = 11, config.hidden = 8, config.heads = 2, config.key_size = 4, config.intermediate = 6;
    config.norm_eps = 0.3, config.initializer_range = 0.25;
    config.layer_list = layers;
    return config;
}

enum { ROWS = 9 };
static const int32_t ids[ROWS] = {3, 1, 4, 1, 5, 9, 2, 6, 5}, labels[ROWS] = {8, 9, 7, 9, 3, 2, 3, 8, 4};
static const int64_t begins[] = {0, 4, 4, 5, ROWS};

static dr_batch packed(void) {
    return (dr_batch){.layout = {4, ROWS, begins}, .ids = ids, .labels = labels, .targets = ROWS};
}

static double loss_of(void *model) {
    const dr_batch batch = packed();
    double loss;
    ASSERT_OK(learner_loss(model, &batch, NULL, &loss, NULL, NULL, NULL));
    return loss;
}

static void check_gradients(dr_model *model) {
    const dr_batch batch = packed();
    const dr_parameter *list;
    double loss, *values = dr_model_parameter_block(model), *gradients = learner_gradients(model);
    dr_random random = dr_random_start(9, 0);
    for (int64_t i = 0; i < dr_model_block_count(model); i++) values[i] += 0.1 * dr_random_normal(&random);
    ASSERT_OK(learner_gradient(model, &batch, 1, &loss, NULL));
    assert_true(loss == loss_of(model));
    const int64_t listed = dr_model_parameters(model, &list);
    for (int64_t i = 0; i < listed; i++)
        assert_gradient(list[i].name, loss_of, model, values + list[i].offset, list[i].count, gradients + list[i].offset, 1e-6);
}

static void test_gradients(void **state) {
    (void)state;
    for (size_t h = 0; h < sizeof hybrids / sizeof *hybrids; h++) {
        const dr_model_config config = small(hybrids[h]);
        dr_model *model;
        ASSERT_OK(dr_model_create(reference, &config, 5, &model));
        check_gradients(model);
        learner_destroy(model);
    }
}

/* What published models have around their layers: norms of the embedding and behind parts, scales, mixers side by side, a
 * layer that is a mixer or a feed-forward alone. */
static void test_wiring(void **state) {
    (void)state;
    const dr_norm_description rms = {.kind = DR_NORM_RMS, .eps = 0.3, .offset = 1},
                              layer = {.kind = DR_NORM_LAYER, .eps = 0.3, .bias = true};
    dr_model_config config = small("gdn attention gdn gdn"), resolved;
    dr_description description;
    dr_model *model;
    ASSERT_OK(dr_config_resolve(&config, &resolved));
    ASSERT_OK(dr_describe(&resolved, &description));
    dr_layer_description *layers = description.layers;
    description.embedding_scale = 1.7, description.logits_scale = 0.6;
    description.embedding_norm = layer, description.final_norm = rms;
    layers[0].mixers = 2;
    layers[0].mixer[1] = layers[1].mixer[0];
    layers[0].mixer[0].input_scale = 0.8, layers[0].mixer[0].output_scale = 1.3, layers[0].mixer[1].output_scale = 0.7;
    layers[1].mixer_after = rms, layers[1].feed_after = layer, layers[1].mixer_norm = (dr_norm_description){0};
    layers[2].mixers = 0;
    layers[3].feed = (dr_feed_description){0};
    layers[3].mixer_after = layer;
    resolved.layer_list = NULL;
    ASSERT_OK(dr_model_build_described(reference, &description, &resolved, &model));
    ASSERT_OK(dr_model_allocate(model));
    double *values = dr_model_parameter_block(model);
    for (int64_t i = 0; i < model->listed; i++)
        dr_initial_draw(&model->initials[i], 0.25, 3, model->parameters[i].name, model->parameters[i].count,
                        values + model->parameters[i].offset);
    check_gradients(model);
    learner_destroy(model);
}

static void logits_of(const dr_model *model, int64_t begin, int64_t count, dr_model_state *state, double *logits) {
    const dr_batch batch = {.layout = {1, count, NULL}, .ids = ids + begin, .targets = count};
    ASSERT_OK(learner_logits(model, &batch, state, DR_F64, logits));
}

/* The first sequence in one call, in two, and token by token. */
static void test_parts(void **state) {
    (void)state;
    for (size_t h = 0; h < sizeof hybrids / sizeof *hybrids; h++) {
        const dr_model_config config = small(hybrids[h]);
        double whole[ROWS * 11], parts[ROWS * 11];
        float step[11];
        dr_model *model;
        dr_model_state *carried, *stepped;
        ASSERT_OK(dr_model_create(reference, &config, 5, &model));
        ASSERT_OK(dr_model_state_create(model, 1, &carried));
        ASSERT_OK(dr_model_state_create(model, 1, &stepped));
        logits_of(model, 0, ROWS, NULL, whole);
        logits_of(model, 0, 4, carried, parts);
        logits_of(model, 4, ROWS - 4, carried, parts + 4 * 11);
        for (int i = 0; i < ROWS * 11; i++) assert_true(fabs(parts[i] - whole[i]) <= 1e-12);
        for (int t = 0; t < ROWS; t++) {
            ASSERT_OK(dr_model_step(model, &ids[t], stepped, step));
            for (int i = 0; i < 11; i++) assert_true(fabs(step[i] - whole[t * 11 + i]) <= 1e-6);
        }
        dr_model_state_destroy(carried);
        dr_model_state_destroy(stepped);
        dr_model_destroy(model);
    }
}

/* Real sizes on the CPU: near the reference, the same bits for any number of threads, packed as separate. */
static void test_cpu(void **state) {
    (void)state;
    enum { LENGTH = 70, COUNT = 2 * LENGTH, HIDDEN = 64, VOCABULARY = 50 };
    for (size_t h = 0; h < sizeof hybrids / sizeof *hybrids; h++) {
        dr_model_config config = small(hybrids[h]);
        int32_t many[COUNT], next[COUNT];
        double *exact, *found, *again, *alone;
        dr_backend *threads;
        dr_model *model, *twin, *other;
        config.hidden = HIDDEN, config.heads = 2, config.key_size = 32, config.vocabulary = VOCABULARY,
        config.intermediate = 96;
        config.initializer_range = 0.1;
        for (int i = 0; i < COUNT; i++) many[i] = (i * 17 + i * i) % VOCABULARY, next[i] = (i * 5 + 3) % VOCABULARY;
        const int64_t both[] = {0, LENGTH, COUNT};
        dr_batch batch = {.layout = {2, COUNT, both}, .ids = many, .labels = next, .targets = COUNT};
        exact = malloc(4 * COUNT * VOCABULARY * sizeof(double));
        assert_non_null(exact);
        found = exact + COUNT * VOCABULARY, again = found + COUNT * VOCABULARY, alone = again + COUNT * VOCABULARY;
        ASSERT_OK(dr_cpu_open(&(dr_backend_options){.threads = 4}, &threads));
        ASSERT_OK(dr_model_create(reference, &config, 5, &model));
        ASSERT_OK(dr_model_create(cpu, &config, 5, &twin));
        ASSERT_OK(dr_model_create(threads, &config, 5, &other));
        ASSERT_OK(learner_logits(model, &batch, NULL, DR_F64, exact));
        ASSERT_OK(learner_logits(twin, &batch, NULL, DR_F64, found));
        ASSERT_OK(learner_logits(other, &batch, NULL, DR_F64, again));
        assert_memory_equal(found, again, COUNT * VOCABULARY * sizeof(double));
        double apart = 0, size = 0;
        for (int i = 0; i < COUNT * VOCABULARY; i++)
            apart += (found[i] - exact[i]) * (found[i] - exact[i]), size += exact[i] * exact[i];
        assert_true(sqrt(apart / size) <= 1e-5);
        batch = (dr_batch){.layout = {1, LENGTH, NULL}, .ids = many + LENGTH, .targets = LENGTH};
        ASSERT_OK(learner_logits(twin, &batch, NULL, DR_F64, alone));
        assert_memory_equal(alone, found + LENGTH * VOCABULARY, LENGTH * VOCABULARY * sizeof(double));
        dr_model_destroy(model);
        dr_model_destroy(twin);
        dr_model_destroy(other);
        threads->ops->close(threads);
        free(exact);
    }
}

static void test_folder(void **state) {
    (void)state;
    for (size_t h = 0; h < sizeof hybrids / sizeof *hybrids; h++) {
        const dr_model_config config = small(hybrids[h]);
        dr_model *model, *loaded;
        char folder[PATH_MAX];
        snprintf(folder, sizeof folder, "%s/hybrid%zu", scratch_folder, h);
        ASSERT_OK(dr_model_create(reference, &config, 5, &model));
        ASSERT_OK(dr_model_save(model, folder));
        ASSERT_OK(dr_model_load(reference, folder, &loaded));
        assert_string_equal(dr_model_get_config(model)->layer_list, dr_model_get_config(loaded)->layer_list);
        assert_true(loss_of(model) == loss_of(loaded));
        dr_model_destroy(model);
        dr_model_destroy(loaded);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_form), cmocka_unit_test(test_refusals), cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_wiring),     cmocka_unit_test(test_parts),    cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_folder),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
