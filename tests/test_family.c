/* The family of a rule's layers: a variant of a named rule keeps that rule's layer, a composition that equals a named rule is
 * the same model bit for bit, files written before rules had a family load as the model that they were, and whatever keys stand
 * beside a base, a model trains or is refused with a sentence. */
#include "base/error.h"
#include "learner.h"
#include "nn/config.h"
#include "nn/family.h"
#include "numbers.h"
#include "rules/compare.h"
#include "rules/json.h"

#include <deltarule/backend.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define ASSERT_OK(call)                                                                                                        \
    do {                                                                                                                       \
        if ((call) != DR_OK) fail_msg("%s: %s", #call, dr_last_error());                                                       \
    } while (0)

static dr_backend *backend;

/* 0 where the file says nothing: the family decides. */
static dr_model_config tiny(const dr_rule *rule) {
    dr_model_config config = dr_model_config_default(rule);
    config.vocabulary = 7;
    config.hidden = 8;
    config.layers = 1;
    config.heads = 2;
    config.intermediate = 4;
    return config;
}

/* The rule of a JSON object, with ' for ". */
static dr_rule read_rule(const char *text) {
    char json[2048];
    dr_rule rule;
    snprintf(json, sizeof json, "%s", text);
    for (char *at = json; *at; at++)
        if (*at == '\'') *at = '"';
    if (dr_rule_read_text(json, &rule, NULL) != DR_OK) fail_msg("%s: %s", text, dr_last_error());
    return rule;
}

static dr_model_config resolved(const dr_rule *rule) {
    dr_model_config config = tiny(rule), result;
    ASSERT_OK(dr_config_resolve(&config, &result));
    return result;
}

/* config.json as text; to be freed */
static char *written(const dr_model_config *config) {
    json_t *object = dr_config_write(config, "float32");
    assert_non_null(object);
    char *text = json_dumps(object, JSON_SORT_KEYS | JSON_INDENT(1));
    json_decref(object);
    return text;
}

static void assert_same_config(const char *name, const dr_model_config *one, const dr_model_config *other) {
    char *a = written(one), *b = written(other);
    if (strcmp(a, b) != 0) fail_msg("%s:\n%s\nis not\n%s", name, a, b);
    free(a);
    free(b);
}

/* Same parameters with the same bits, and the same bits of loss and gradients. */
static void assert_same_model(const char *name, const dr_rule *one, const dr_rule *other) {
    const dr_rule *rules[2] = {one, other};
    static const int32_t ids[] = {1, 2, 3, 4, 5, 6}, labels[] = {2, 3, 4, 5, 6, 0};
    dr_model *model[2];
    const dr_parameter *parameters[2];
    double loss[2];
    for (int i = 0; i < 2; i++) {
        const dr_model_config config = tiny(rules[i]);
        int64_t hits;
        ASSERT_OK(dr_model_create(backend, &config, 42, &model[i]));
        const dr_batch batch = {.layout = {1, 6, NULL}, .ids = ids, .labels = labels, .targets = 6};
        ASSERT_OK(learner_gradient(model[i], &batch, 1, &loss[i], &hits));
    }
    assert_same_config(name, dr_model_get_config(model[0]), dr_model_get_config(model[1]));
    const int64_t count = dr_model_parameters(model[0], &parameters[0]);
    assert_int_equal(count, dr_model_parameters(model[1], &parameters[1]));
    for (int64_t i = 0; i < count; i++) {
        assert_string_equal(parameters[0][i].name, parameters[1][i].name);
        assert_int_equal(parameters[0][i].rank, parameters[1][i].rank);
        for (int d = 0; d < parameters[0][i].rank; d++) assert_int_equal(parameters[0][i].shape[d], parameters[1][i].shape[d]);
    }
    const size_t bytes = (size_t)dr_model_block_count(model[0]) * sizeof(double);
    assert_memory_equal(dr_model_parameter_block(model[0]), dr_model_parameter_block(model[1]), bytes);
    assert_memory_equal(learner_gradients(model[0]), learner_gradients(model[1]), bytes);
    assert_memory_equal(loss, loss + 1, sizeof *loss);
    for (int i = 0; i < 2; i++) learner_destroy(model[i]);
}

/* ---- equal compositions ---------------------------------------------------------------------------------------------- */

static void test_equal_composition_is_same_model(void **state) {
    (void)state;
    for (int i = 0; i < dr_rule_count(); i++) {
        const dr_rule *named = dr_rule_at(i);
        dr_rule filled = *named, read; /* as a caller fills it in from dr_rule_blank() */
        char text[4096];
        filled.name = filled.title = filled.source = NULL;
        filled.family = dr_rule_blank().family;
        assert_same_model(named->name, named, &filled);
        assert_true(dr_rule_write_text(&filled, NULL, text, sizeof text) > 0);
        assert_null(strstr(text, "base"));
        ASSERT_OK(dr_rule_read_text(text, &read, NULL));
        assert_same_model(named->name, named, &read);
    }
    /* the base's own options beside it */
    const dr_rule rule =
        read_rule("{'base': 'gdn', 'decay': 'scalar', 'rows': [{'read': 'key', 'write': 'key', 'gain': 'beta', "
                  "'value': 'gain_v'}], 'family': 'gdn'}");
    assert_same_model("gdn", dr_rule_find("gdn"), &rule);
}

/* Published model types find their rule by it. */
static void test_family_is_named_after_first_rule(void **state) {
    (void)state;
    for (int family = DR_FAMILY_COMPOSITION + 1; family < DR_FAMILIES; family++) {
        int i = 0;
        while (i < dr_rule_count() && (int)dr_rule_at(i)->family != family) i++;
        assert_true(i < dr_rule_count());
        assert_string_equal(dr_rule_at(i)->name, dr_family_name((dr_family)family));
    }
    for (int i = 0; i < dr_rule_count(); i++) {
        assert_int_not_equal(dr_rule_at(i)->family, DR_FAMILY_AUTO);
        assert_ptr_equal(dr_rule_with_axes(dr_rule_at(i)), dr_rule_at(i)); /* no two have the same axes */
    }
}

/* ---- variants ---------------------------------------------------------------------------------------------------------- */

static void assert_same_treatment(const char *text, const dr_rule *base) {
    const dr_rule rule = read_rule(text);
    const dr_model_config one = resolved(&rule), other = resolved(base);
    assert_int_equal(one.value_size, other.value_size);
    assert_int_equal(one.conv_size, other.conv_size);
    assert_int_equal(one.output_gate, other.output_gate);
    assert_int_equal(one.gates.gate, other.gates.gate);
    const dr_layer_family treatment = dr_layer_family_of(&rule), of_base = dr_layer_family_of(base);
    assert_int_equal(treatment.unit, of_base.unit);
    assert_int_equal(treatment.gate, of_base.gate);
    assert_true(treatment.a_least == of_base.a_least && treatment.scale == of_base.scale);
}

static void test_variant_keeps_layer(void **state) {
    (void)state;
    const dr_rule *gdn = dr_rule_find("gdn");
    assert_same_treatment("{'base': 'gdn', 'scan': 'diagonal', 'query': 'ridge'}", gdn);
    assert_same_treatment("{'base': 'gdn', 'rows': [{'read': 'key_plus_query', 'gain': 'beta', 'value': 'gain_v'}]}", gdn);
    assert_same_treatment("{'base': 'gdn', 'query': 'corrected'}", gdn);
    assert_same_treatment("{'base': 'gdn', 'decay': 'channel'}", gdn); /* the axes of kda, with the layer of gdn */
    assert_same_treatment("{'base': 'gdn', 'repeat': 3}", gdn);
    assert_same_treatment("{'base': 'delta_net', 'query': 'corrected'}", dr_rule_find("delta_net"));
    assert_same_treatment("{'base': 'mesanet', 'query': 'conjugate_gradient', 'cg_iters': 3}", dr_rule_find("mesanet"));
    assert_int_equal(resolved(gdn).value_size, 2 * resolved(gdn).key_size); /* the half of the state that was missing */
    /* a key says otherwise */
    const dr_rule plain = read_rule("{'base': 'gdn', 'family': 'composition'}");
    assert_int_equal(resolved(&plain).value_size, resolved(&plain).key_size);
    const dr_rule other = read_rule("{'base': 'gdn', 'family': 'delta_net'}");
    assert_int_equal(resolved(&other).output_gate, 0);
    /* in C a copy of a named rule, changed */
    dr_rule copy = *gdn;
    copy.query = DR_QUERY_CORRECTED;
    assert_int_equal(resolved(&copy).value_size, 2 * resolved(&copy).key_size);
}

/* Every base with every family and with keys at random: a model takes a step, or a sentence says why there is none. */
static void test_any_family_with_any_axes(void **state) {
    (void)state;
    static const char *const keys[] = {"",
                                       ", 'decay': 'none'",
                                       ", 'decay': 'constant'",
                                       ", 'decay': 'scalar'",
                                       ", 'decay': 'channel'",
                                       ", 'repeat': 2",
                                       ", 'scan': 'none', 'query': 'query'",
                                       ", 'scan': 'diagonal', 'query': 'ridge'",
                                       ", 'scan': 'gram', 'query': 'exact'",
                                       ", 'query': 'corrected'",
                                       (", 'scan': 'diagonal', 'rows': [{'read': 'key', 'write': 'preconditioned', "
                                        "'gain': 'beta', 'value': 'gain_v'}]"),
                                       ", 'rows': [{'read': 'feedback', 'undecayed': true, 'gain': 'beta', 'value': 'gain_v'}]",
                                       ", 'rows': [{'read': 'gated_key', 'value': 'gated_v'}]"};
    static const int32_t ids[] = {1, 2, 3, 4}, labels[] = {2, 3, 4, 5};
    int trained = 0, refused = 0;
    for (int family = DR_FAMILY_COMPOSITION; family < DR_FAMILIES; family++)
        for (int i = 0; i < dr_rule_count(); i++)
            for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
                char text[512];
                dr_rule rule;
                dr_model *model;
                snprintf(text, sizeof text, "{'base': '%s', 'family': '%s'%s}", dr_rule_at(i)->name,
                         dr_family_name((dr_family)family), keys[k]);
                for (char *at = text; *at; at++)
                    if (*at == '\'') *at = '"';
                if (dr_rule_read_text(text, &rule, NULL) != DR_OK) continue; /* no combination of axes: not about layers */
                dr_model_config config = tiny(&rule);
                config.hidden = 4;
                dr_status status = dr_model_create(backend, &config, 1, &model);
                if (status != DR_OK) {
                    const bool stepped = dr_layer_family_of(&rule).stepped;
                    if (!stepped) fail_msg("%s: %s", text, dr_last_error());
                    assert_true(strlen(dr_last_error()) > 20);
                    refused++;
                    continue;
                }
                double loss;
                int64_t hits;
                const dr_batch batch = {.layout = {1, 4, NULL}, .ids = ids, .labels = labels, .targets = 4};
                ASSERT_OK(learner_gradient(model, &batch, 1, &loss, &hits));
                if (!isfinite(loss)) fail_msg("%s: loss %g", text, loss);
                const dr_parameter *parameters;
                const int64_t count = dr_model_parameters(model, &parameters);
                for (int64_t a = 0; a < count; a++)
                    for (int64_t b = 0; b < a; b++)
                        if (strcmp(parameters[a].name, parameters[b].name) == 0)
                            fail_msg("%s: two parameters are called %s", text, parameters[a].name);
                learner_destroy(model);
                trained++;
            }
    printf("%d models trained, %d refused\n", trained, refused);
    assert_true(trained > 1000 && refused > 0);
}

/* ---- files ------------------------------------------------------------------------------------------------------------- */

static dr_model_config read_config(const char *rule) {
    char text[2048];
    snprintf(
        text, sizeof text,
        "{'model_type': 'deltarule', 'rule': %s, 'vocabulary': 7, 'hidden': 8, 'layers': 1, 'heads': 2, 'intermediate': 4}",
        rule);
    for (char *at = text; *at; at++)
        if (*at == '\'') *at = '"';
    json_t *object = json_loads(text, 0, NULL);
    dr_model_config config, result;
    char *layer_list;
    assert_non_null(object);
    ASSERT_OK(dr_config_read(object, &config, &layer_list));
    json_decref(object);
    ASSERT_OK(dr_config_resolve(&config, &result));
    return result;
}

static void assert_reads_back(const dr_model_config *config) {
    json_t *object = dr_config_write(config, "float32");
    dr_model_config read, again;
    char *layer_list;
    ASSERT_OK(dr_config_read(object, &read, &layer_list));
    json_decref(object);
    ASSERT_OK(dr_config_resolve(&read, &again));
    assert_int_equal(again.rule.family, config->rule.family);
    assert_same_config("read back", config, &again);
}

#define DELTA_ROW "{'read': 'key', 'write': 'key', 'gain': 'beta', 'value': 'gain_v'}"

static void test_earlier_files(void **state) {
    (void)state;
    static const struct {
        const char *rule;
        dr_family family;
    } files[] = {
        {"'gdn'", DR_FAMILY_GDN},
        {"{'base': 'pgdn', 'squash': {'x': 1.25}}", DR_FAMILY_PGDN},
        {"{'base': 'gdn', 'query': 'corrected'}", DR_FAMILY_COMPOSITION},
        {"{'decay': 'scalar', 'rows': [" DELTA_ROW "]}", DR_FAMILY_COMPOSITION}, /* equal to gdn, without its layer */
        {"{'decay': 'channel', 'rows': [" DELTA_ROW "], 'query': 'corrected'}", DR_FAMILY_COMPOSITION},
        /* of today */
        {"{'base': 'gdn', 'query': 'corrected', 'family': 'gdn'}", DR_FAMILY_GDN},
        {"{'decay': 'scalar', 'rows': [" DELTA_ROW "], 'family': 'auto'}", DR_FAMILY_GDN},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        const dr_model_config config = read_config(files[i].rule);
        if (config.rule.family != files[i].family)
            fail_msg("%s: family %s instead of %s", files[i].rule, dr_family_name(config.rule.family),
                     dr_family_name(files[i].family));
        assert_reads_back(&config);
    }
}

static void test_every_rule_reads_back(void **state) {
    (void)state;
    for (int i = 0; i < dr_rule_count(); i++)
        for (int family = DR_FAMILY_AUTO; family < DR_FAMILIES; family++) {
            dr_rule rule = *dr_rule_at(i);
            rule.family = (dr_family)family;
            dr_model_config config = tiny(&rule), result;
            if (dr_config_resolve(&config, &result) == DR_OK) assert_reads_back(&result);
        }
}

static int open_backend(void **state) {
    (void)state;
    return dr_backend_open("reference", NULL, &backend) != DR_OK;
}

static int close_backend(void **state) {
    (void)state;
    dr_backend_close(backend);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_composition_is_same_model),
        cmocka_unit_test(test_family_is_named_after_first_rule),
        cmocka_unit_test(test_variant_keeps_layer),
        cmocka_unit_test(test_any_family_with_any_axes),
        cmocka_unit_test(test_earlier_files),
        cmocka_unit_test(test_every_rule_reads_back),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
