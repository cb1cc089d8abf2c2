/* Outlines of models (dr_model_outline): of every rule and of hybrids they list the parameters that a model has and only kinds
 * of nodes that docs/outline.md tells; its own configuration gives the outline back; what cannot be is a sentence, and so is
 * each allocation that fails. python/tests/test_mixer.py computes by them and compares numbers. */
#include "allocation.h"
#include "base/json.h"

#include <deltarule/deltarule.h>
#include <stdio.h>
#include <stdlib.h>

static dr_backend *reference;

static int begin(void **state) {
    (void)state;
    return dr_backend_open("reference", NULL, &reference) != DR_OK;
}

static int end(void **state) {
    (void)state;
    dr_backend_close(reference);
    return 0;
}

static json_t *outline_of(const char *config) {
    char *text;
    const int length = dr_model_outline(reference, config, NULL, 0);
    if (length < 0) fail_msg("%s: %s", config, dr_last_error());
    text = malloc((size_t)length + 1);
    assert_non_null(text);
    assert_int_equal(dr_model_outline(reference, config, text, (size_t)length + 1), length);
    json_t *object = dr_json_value(text);
    assert_true(json_is_object(object));
    free(text);
    return object;
}

/* Names and shapes in the outline are those of the model, in its order: the embedding, the layers, the rest. */
static void compare_parameters(const json_t *outline, const dr_model *model) {
    const dr_parameter *parameters;
    const int64_t count = dr_model_parameters(model, &parameters);
    const json_t *trunk = json_object_get(outline, "trunk"), *layers = json_object_get(outline, "layers");
    int64_t at = 0;
    for (size_t t = 0; t < json_array_size(trunk); t++) {
        const json_t *own = json_array_get(trunk, t);
        assert_string_equal(json_string_value(json_object_get(own, "name")), parameters[at++].name);
        for (size_t i = 0; t == 0 && i < json_array_size(layers); i++) {
            const json_t *kind =
                json_array_get(json_object_get(outline, "kinds"), (size_t)json_integer_value(json_array_get(layers, i)));
            const json_t *list = json_object_get(kind, "parameters");
            for (size_t p = 0; p < json_array_size(list); p++, at++) {
                const json_t *one = json_array_get(list, p), *shape = json_object_get(one, "shape");
                char name[128];
                snprintf(name, sizeof name, "model.layers.%zu.%s", i, json_string_value(json_object_get(one, "name")));
                assert_string_equal(name, parameters[at].name);
                assert_int_equal(json_array_size(shape), parameters[at].rank);
                for (int axis = 0; axis < parameters[at].rank; axis++)
                    assert_int_equal(json_integer_value(json_array_get(shape, (size_t)axis)), parameters[at].shape[axis]);
                assert_int_equal(json_is_true(json_object_get(one, "decays")), parameters[at].decays);
            }
        }
    }
    assert_int_equal(at, count);
}

static bool is_known(const char *name) {
    static const char *const nodes[] = {"linear", "grouped_linear", "conv", "gate", "function", "unit",       "sum",
                                        "rotary", "scale",          "add",  "fill", "read",     "recurrence", "output"};
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
        if (strcmp(nodes[i], name) == 0) return true;
    return false;
}

static void check_nodes(const json_t *outline) {
    const json_t *kinds = json_object_get(outline, "kinds");
    for (size_t k = 0; k < json_array_size(kinds); k++) {
        const json_t *parts = json_object_get(json_array_get(kinds, k), "parts");
        for (size_t p = 0; p < json_array_size(parts); p++) {
            const json_t *nodes = json_object_get(json_object_get(json_array_get(parts, p), "module"), "nodes");
            for (size_t n = 0; n < json_array_size(nodes); n++) {
                const char *name = json_string_value(json_object_get(json_array_get(nodes, n), "name"));
                if (!is_known(name)) fail_msg("docs/outline.md does not tell of the node %s", name);
            }
        }
    }
}

static void check_config(const dr_model_config *config, const char *text) {
    dr_model *model;
    json_t *outline = outline_of(text);
    if (dr_model_create(reference, config, 1, &model) != DR_OK) fail_msg("%s: %s", text, dr_last_error());
    compare_parameters(outline, model);
    check_nodes(outline);
    char *own = dr_json_format(json_object_get(outline, "config"), JSON_COMPACT);
    json_t *again = outline_of(own);
    assert_true(json_equal(outline, again));
    json_decref(again);
    free(own);
    json_decref(outline);
    dr_model_destroy(model);
}

static void test_rules(void **state) {
    (void)state;
    for (int i = 0; i < dr_rule_count(); i++) {
        char text[200];
        dr_model_config config = dr_model_config_default(dr_rule_at(i));
        config.vocabulary = 5, config.hidden = 16, config.layers = 2, config.heads = 2;
        snprintf(
            text, sizeof text,
            "{\"model_type\": \"deltarule\", \"rule\": \"%s\", \"vocabulary\": 5, \"hidden\": 16, \"layers\": 2, \"heads\": 2}",
            dr_rule_at(i)->name);
        check_config(&config, text);
    }
}

static void test_hybrid(void **state) {
    (void)state;
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = 5, config.hidden = 16, config.heads = 2;
    config.layer_list = "gdn*2 attention+experts retnet+none";
    check_config(&config, "{\"model_type\": \"deltarule\", \"rule\": \"gdn\", \"vocabulary\": 5, \"hidden\": 16, \"heads\": 2, "
                          "\"layers\": \"gdn*2 attention+experts retnet+none\"}");
}

/* The keys of flash-linear-attention's class say the same model. */
static void test_published(void **state) {
    (void)state;
    json_t *outline = outline_of("{\"model_type\": \"gated_deltanet\", \"hidden_size\": 16, \"num_hidden_layers\": 1, "
                                 "\"num_heads\": 2, \"head_dim\": 8, \"vocab_size\": 5}");
    const json_t *config = json_object_get(outline, "config"), *published = json_object_get(outline, "published");
    assert_string_equal(json_string_value(json_object_get(config, "rule")), "gdn");
    assert_string_equal(json_string_value(json_object_get(published, "model_type")), "gated_deltanet");
    json_decref(outline);
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *config, *says;
    } cases[] = {
        {"", "the configuration"},
        {"{}", "model_type"},
        {"{\"model_type\": \"deltarule\", \"rule\": \"gdm\", \"vocabulary\": 5, \"hidden\": 16, \"layers\": 1, \"heads\": 2}",
         "gdn"},
        {"{\"model_type\": \"deltarule\", \"rule\": \"gdn\", \"vocabulary\": 5, \"hidden\": 15, \"layers\": 1, \"heads\": 2}",
         "15"},
        {"{\"model_type\": \"llama\", \"hidden_size\": 16, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "
         "\"intermediate_size\": 32, \"vocab_size\": 5}",
         "no configuration of model_type \"deltarule\" says"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(dr_model_outline(reference, cases[i].config, NULL, 0), -1);
        if (!strstr(dr_last_error(), cases[i].says))
            fail_msg("%s: the sentence lacks \"%s\": %s", cases[i].config, cases[i].says, dr_last_error());
    }
}

static void test_memory(void **state) {
    (void)state;
    const char *config = "{\"model_type\": \"deltarule\", \"rule\": \"retnet\", \"vocabulary\": 5, \"hidden\": 16, \"layers\": "
                         "\"retnet attention\", \"heads\": 2}";
    const long alive = allocation_alive;
    int length = -1;
    long failed = 0;
    for (; length < 0 && failed < 1000; failed++) {
        allocation_fail_at(failed + 1);
        length = dr_model_outline(reference, config, NULL, 0);
        allocation_fail_at(0);
        assert_int_equal(allocation_alive, alive);
        if (length < 0 && !strstr(dr_last_error(), "the test lets") && !strstr(dr_last_error(), "no memory"))
            fail_msg("allocation %ld: %s", failed + 1, dr_last_error());
    }
    assert_true(length > 0);
    assert_true(failed > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rules), cmocka_unit_test(test_hybrid),
                                       cmocka_unit_test(test_published), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, begin, end);
}
