/* Rules are compared field by field: each field changed alone makes another rule, and the names make none. A configuration of a
 * published model type says each of its numbers, and is read with each of them; sizes that are left open are filled in. */
#include "nn/config.h"
#include "rules/compare.h"
#include "statuses.h"

#include <math.h>
#include <stdlib.h>

/* ---- dr_rule_equal ---- */

#define CHANGED(field, value)                                                                                                  \
    do {                                                                                                                       \
        dr_rule other = rule;                                                                                                  \
        other.field = value;                                                                                                   \
        if (dr_rule_equal(&rule, &other) || dr_rule_equal(&other, &rule)) fail_msg("dr_rule_equal does not see %s", #field);   \
    } while (0)

/* A rule of two rows that has something at every place. */
static dr_rule full(void) {
    dr_rule rule = dr_rule_blank();
    rule.name = "full", rule.title = "Full", rule.source = "here";
    rule.decay = DR_DECAY_SCALAR;
    rule.rows = 2;
    rule.repeat = 2;
    for (int i = 0; i < 2; i++)
        rule.row[i] =
            (dr_row){.read = DR_READ_KEY, .write = DR_WRITE_PRECONDITIONED, .gain = DR_GAIN_BETA, .value = DR_VALUE_GAIN};
    rule.scan = DR_SCAN_DIAGONAL;
    rule.query = DR_QUERY_CONJUGATE_GRADIENT;
    rule.cg_iters = 3;
    return rule;
}

static void test_each_field_makes_another_rule(void **state) {
    (void)state;
    const dr_rule rule = full();
    dr_rule same = rule;
    same.name = NULL, same.title = "other", same.source = NULL;
    assert_true(dr_rule_equal(&rule, &same));
    CHANGED(decay, DR_DECAY_CHANNEL);
    CHANGED(rows, 1);
    CHANGED(repeat, 3);
    CHANGED(repeat, 1);
    CHANGED(scan, DR_SCAN_GRAM);
    CHANGED(query, DR_QUERY_EXACT);
    CHANGED(query, DR_QUERY_PLAIN);
    CHANGED(normalizer, DR_NORMALIZER_INVERSE);
    CHANGED(gain_eps, 0.5);
    CHANGED(cg_iters, 4);
    CHANGED(cg_start, DR_CG_JACOBI);
    CHANGED(cg_eps, 0.25);
    CHANGED(tied_scan, true);
    CHANGED(squash.x, 1.75);
    CHANGED(squash.eps, 0.5);
    CHANGED(squash.interval, DR_SQUASH_AMPLIFY);
    CHANGED(squash.function, DR_SQUASH_TANH);
    for (int i = 0; i < 2; i++) {
        CHANGED(row[i].read, DR_READ_GATED_KEY);
        CHANGED(row[i].undecayed, true);
        CHANGED(row[i].write, DR_WRITE_KEY);
        CHANGED(row[i].gain, DR_GAIN_IMPLICIT);
        CHANGED(row[i].value, DR_VALUE_V);
    }
}

/* Rows that the rule does not have do not count. */
static void test_rows_beyond_the_last_do_not_count(void **state) {
    (void)state;
    dr_rule rule = full(), other;
    rule.rows = 1;
    other = rule;
    other.row[1].gain = DR_GAIN_ONE;
    assert_true(dr_rule_equal(&rule, &other));
}

static void test_named_rules_differ(void **state) {
    (void)state;
    for (int i = 0; i < dr_rule_count(); i++)
        for (int k = 0; k < dr_rule_count(); k++)
            if (dr_rule_equal(dr_rule_at(i), dr_rule_at(k)) != (i == k))
                fail_msg("%s and %s", dr_rule_at(i)->name, dr_rule_at(k)->name);
}

/* ---- published model types ---- */

static dr_model_config read(const char *text) {
    json_error_t error;
    dr_model_config config;
    json_t *object = json_loads(text, 0, &error);
    if (!object) fail_msg("%s", error.text);
    char *layer_list;
    must(dr_config_read(object, &config, &layer_list));
    assert_null(layer_list);
    json_decref(object);
    return config;
}

/* Every number of the types, at a value that is nobody's default. */
static void test_published_numbers_are_read(void **state) {
    (void)state;
    dr_model_config config =
        read("{\"model_type\": \"precond_gated_deltanet\", \"hidden_size\": 40, \"num_hidden_layers\": 3, \"num_heads\": 5, "
             "\"num_v_heads\": 10, \"head_dim\": 6, \"expand_v\": 1.5, \"vocab_size\": 99, \"intermediate_size\": 77, "
             "\"conv_size\": 3, \"use_gate\": false, \"squash_x\": 1.25, \"squash_eps\": 0.001, \"allow_neg_eigval\": true, "
             "\"tie_word_embeddings\": true, \"norm_eps\": 0.0005, \"initializer_range\": 0.03}");
    assert_string_equal(config.rule.name, "pgdn");
    assert_true(config.hidden == 40 && config.layers == 3 && config.heads == 5 && config.value_heads == 10);
    assert_true(config.key_size == 6 && config.value_size == 9 && config.vocabulary == 99 && config.intermediate == 77);
    assert_true(config.conv_size == 3 && config.output_gate == 0 && config.tied);
    assert_true(config.rule.squash.x == 1.25 && config.rule.squash.eps == 0.001);
    assert_true(config.gates.negative_eigenvalues && config.force);
    assert_true(config.norm_eps == 0.0005 && config.initializer_range == 0.03);
    assert_int_equal(config.gates.gate, DR_GATE_FORM_LOG);

    config =
        read("{\"model_type\": \"qdelta\", \"hidden_size\": 40, \"num_hidden_layers\": 3, \"num_heads\": 5, "
             "\"head_dim\": 6, \"vocab_size\": 99, \"lamb_bias\": -0.25, \"hidden_ratio\": 30, \"use_short_conv\": false}");
    assert_true(config.lambda_bias == -0.25 && config.value_size == 12 && config.conv_size == 0);
    assert_int_equal(config.intermediate, 1024); /* 40 * 30 * 2/3 = 800, up to a multiple of 256 */
    assert_true(config.output_gate == 1 && !config.tied && !config.gates.negative_eigenvalues && !config.force);

    config = read("{\"model_type\": \"precond_kda\", \"hidden_size\": 40, \"num_hidden_layers\": 3, \"num_heads\": 5, "
                  "\"head_dim\": 6, \"vocab_size\": 99, \"lower_bound\": -3.5, \"safe_gate\": true, \"squash_eps\": 0.01}");
    assert_true(config.gates.gate == DR_GATE_FORM_KDA_BOUNDED && config.gates.lower_bound == -3.5);
    assert_true(config.rule.squash.eps == 0.01 && config.rule.squash.x == 1.5 && config.value_size == 6);

    config = read("{\"model_type\": \"delta_net\", \"hidden_size\": 40, \"num_hidden_layers\": 3, \"num_heads\": 5, "
                  "\"expand_k\": 0.5, \"expand_v\": 2, \"vocab_size\": 99}");
    assert_true(config.key_size == 4 && config.value_size == 16 && config.output_gate == 0);
}

/* What is written is read back with the same numbers. */
static void test_published_numbers_are_written(void **state) {
    (void)state;
    static const char *const rules[] = {"pgdn", "pkda", "qdelta", "gdn", "kda", "delta_net"};
    for (int i = 0; i < 6; i++) {
        dr_model_config config = dr_model_config_default(dr_rule_find(rules[i])), resolved, again;
        config.hidden = 40, config.heads = 5, config.layers = 3, config.vocabulary = 99, config.intermediate = 77;
        config.conv_size = 3, config.tied = true, config.norm_eps = 0.0005, config.initializer_range = 0.03;
        config.output_gate = 1, config.conv_initializer_range = 0.125;
        if (i < 2) config.rule.squash.x = 1.25, config.rule.squash.eps = 0.001;
        if (i == 2) config.lambda_bias = -0.25;
        must(dr_config_resolve(&config, &resolved));
        json_t *object = dr_config_write(&resolved, "float32");
        assert_non_null(object);
        assert_string_not_equal(json_string_value(json_object_get(object, "model_type")), "deltarule");
        char *layer_list;
        must(dr_config_read(object, &again, &layer_list));
        json_decref(object);
        assert_true(dr_rule_equal(&again.rule, &resolved.rule));
        assert_true(again.hidden == 40 && again.heads == 5 && again.layers == 3 && again.vocabulary == 99);
        assert_true(again.key_size == resolved.key_size && again.value_size == resolved.value_size);
        assert_true(again.intermediate == 77 && again.conv_size == 3 && again.tied && again.output_gate == 1);
        assert_true(again.norm_eps == 0.0005 && again.initializer_range == 0.03 && again.conv_initializer_range == 0.125);
        assert_true(i != 2 || again.lambda_bias == -0.25);
        assert_int_equal(again.gates.gate, resolved.gates.gate);
    }
}

/* ---- sizes that are left to the rule's family ---- */

/* 256 ceil(8/3 hidden / 256), a head's share of the width, the family's expansion. */
static void test_sizes_are_filled_in(void **state) {
    (void)state;
    static const struct {
        int64_t hidden, intermediate;
    } widths[] = {{1, 256}, {96, 256}, {97, 512}, {256, 768}, {300, 1024}, {768, 2048}, {769, 2304}};
    dr_model_config resolved;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
        config.hidden = widths[i].hidden, config.heads = 1;
        must(dr_config_resolve(&config, &resolved));
        assert_int_equal(resolved.intermediate, widths[i].intermediate);
        assert_int_equal(resolved.key_size, widths[i].hidden);
        assert_int_equal(resolved.value_size, 2 * widths[i].hidden);
    }
    static const struct {
        const char *rule;
        int64_t expansion, conv_size;
        int output_gate;
    } families[] = {{"gdn", 2, 4, 1}, {"kda", 1, 4, 1},   {"mamba2", 2, 4, 1}, {"retnet", 2, 0, 1},  {"gla", 1, 0, 1},
                    {"pdn", 1, 4, 0}, {"comba", 2, 4, 1}, {"eda", 1, 4, 1},    {"mesanet", 1, 4, 0}, {"delta_net", 1, 4, 0}};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        dr_model_config config = dr_model_config_default(dr_rule_find(families[i].rule));
        config.heads = 8, config.value_heads = 0;
        must(dr_config_resolve(&config, &resolved));
        assert_int_equal(resolved.key_size, 32);
        assert_int_equal(resolved.value_heads, 8);
        assert_int_equal(resolved.value_size, 32 * families[i].expansion);
        assert_int_equal(resolved.conv_size, families[i].conv_size);
        assert_int_equal(resolved.output_gate, families[i].output_gate);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_field_makes_another_rule),
        cmocka_unit_test(test_rows_beyond_the_last_do_not_count),
        cmocka_unit_test(test_named_rules_differ),
        cmocka_unit_test(test_published_numbers_are_read),
        cmocka_unit_test(test_published_numbers_are_written),
        cmocka_unit_test(test_sizes_are_filled_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
