/* The mixer of every named rule, and of compositions that use each option of each axis that has a layer: its hand-written
 * backward against differences in double on the reference, by the input and by every parameter. What it gives the recurrence
 * and what it makes of the output, which differences cannot tell from another network: lengths and turns of keys, ridges, the
 * skip, the norm, first values. */
#include "backends/reference/reference.h"
#include "module_problem.h"
#include "nn/config.h"
#include "nn/describe.h"
#include "nn/mixers/recurrent/recurrent.h"

static const double tolerance = 1e-6;

static dr_backend *backend;

static int open_backend(void **state) {
    (void)state;
    return dr_reference_open(NULL, &backend) != DR_OK;
}

static int close_backend(void **state) {
    (void)state;
    backend->ops->close(backend);
    return 0;
}

static void begin_described(module_problem *of, int64_t hidden, const dr_recurrent_description *description) {
    *of = (module_problem){.backend = backend};
    ASSERT_OK(dr_recurrent_create(backend, hidden, description, "", &of->list, &of->module));
    module_begin(of);
}

static dr_recurrent_description describe(const dr_model_config *config) {
    dr_model_config resolved;
    dr_description description;
    ASSERT_OK(dr_config_resolve(config, &resolved));
    ASSERT_OK(dr_describe(&resolved, &description));
    const dr_recurrent_description found = description.layers[0].mixer[0].of.recurrent;
    dr_description_release(&description);
    return found;
}

static void begin(module_problem *of, const dr_model_config *config) {
    const dr_recurrent_description description = describe(config);
    begin_described(of, config->hidden, &description);
}

static void check_described(const char *name, int64_t hidden, const dr_recurrent_description *description) {
    module_problem of;
    begin_described(&of, hidden, description);
    module_check(name, &of, tolerance);
    assert_true(of.list.count >= 5); /* query, key, value, norm and output at least */
    module_end(&of);
}

static void check(const char *name, const dr_model_config *config) {
    const dr_recurrent_description description = describe(config);
    check_described(name, config->hidden, &description);
}

/* Sizes that are no multiples of anything, three value heads a key head. The large eps keeps the norms of these few channels
 * from being steep where all of them are near zero. */
static dr_model_config small(const dr_rule *rule) {
    dr_model_config config = dr_model_config_default(rule);
    config.hidden = 7;
    config.heads = 2;
    config.value_heads = rule->tied_scan ? 2 : 6;
    config.key_size = 4;
    config.value_size = 3;
    config.norm_eps = 0.3;
    if (config.conv_size > 0) config.conv_size = 3;
    return config;
}

/* ---- named rules ---------------------------------------------------------------------------------------------------- */

static void test_named_rules(void **state) {
    (void)state;
    for (int i = 0; i < dr_rule_count(); i++) {
        const dr_rule *rule = dr_rule_at(i);
        dr_model_config config = small(rule);
        check(rule->name, &config);
    }
}

/* Without convolution, with and without the output gate, with negative eigenvalues, bounded decay gates. */
static void test_variants(void **state) {
    (void)state;
    dr_model_config config = small(dr_rule_find("gdn"));
    config.conv_size = 0;
    config.output_gate = 0;
    config.gates.negative_eigenvalues = true;
    check("gdn without convolution and gate, beta to 2", &config);
    config = small(dr_rule_find("qdelta"));
    config.gates.negative_eigenvalues = true;
    check("qdelta, beta and lambda to 2", &config);
    config.gates.lambda_bias_learned = true;
    check("qdelta, learned bias of lambda", &config);
    config = small(dr_rule_find("qdelta"));
    config.gates.lambda = DR_LAMBDA_FIXED;
    config.gates.lambda_value = 0.2;
    check("qdelta, fixed lambda", &config);
    config = small(dr_rule_find("mesanet"));
    config.output_gate = 1;
    check("mesanet with gate", &config);
    config = small(dr_rule_find("comba"));
    config.conv_size = 0;
    config.value_heads = 2;
    check("comba without convolution", &config);
    config = small(dr_rule_find("gdn2"));
    config.gates.negative_eigenvalues = true;
    config.gates.gate = DR_GATE_FORM_EDA_BOUNDED;
    check("gdn2 with eda's gate, erase gate to 2", &config);
    config = small(dr_rule_find("kda"));
    config.gates.gate = DR_GATE_FORM_KDA_BOUNDED;
    config.gates.lower_bound = -3;
    check("kda bounded", &config);
    config = small(dr_rule_find("eda"));
    config.a_log_per_channel = true;
    check("eda with A_log by channel", &config);
    config = small(dr_rule_find("gdn"));
    config.gates.gate = DR_GATE_FORM_EDA_BOUNDED;
    check("gdn with eda's gate", &config);
    config = small(dr_rule_find("gla"));
    config.conv_size = 2;
    check("gla with convolution", &config);
    config = small(dr_rule_find("delta_net"));
    config.output_gate = 1;
    config.value_heads = 2;
    check("delta_net with gate", &config);
    config = small(dr_rule_find("pgdn"));
    config.gates.negative_eigenvalues = config.force = true;
    check("pgdn forced to negative eigenvalues", &config);
}

/* ---- compositions --------------------------------------------------------------------------------------------------- */

static dr_rule one_row(dr_decay decay, dr_row row) {
    dr_rule rule = dr_rule_blank();
    rule.decay = decay;
    rule.rows = 1;
    rule.row[0] = row;
    return rule;
}

static void check_composition(const char *name, dr_rule rule) {
    dr_model_config config = small(&rule);
    check(name, &config);
}

static void test_compositions(void **state) {
    (void)state;
    const dr_row linear = {DR_READ_NONE, false, DR_WRITE_KEY, DR_GAIN_ONE, DR_VALUE_V};
    const dr_row delta = {DR_READ_KEY, false, DR_WRITE_KEY, DR_GAIN_BETA, DR_VALUE_GAIN};
    const dr_row gated = {DR_READ_GATED_KEY, false, DR_WRITE_KEY, DR_GAIN_ONE, DR_VALUE_GATED};
    const dr_row feedback = {DR_READ_FEEDBACK, true, DR_WRITE_KEY, DR_GAIN_BETA, DR_VALUE_GAIN};
    const dr_row implicit = {DR_READ_KEY, false, DR_WRITE_KEY, DR_GAIN_IMPLICIT, DR_VALUE_GAIN};
    const dr_row exponential = {DR_READ_KEY, false, DR_WRITE_KEY, DR_GAIN_EXPONENTIAL, DR_VALUE_GAIN};
    const dr_row preconditioned = {DR_READ_KEY, false, DR_WRITE_PRECONDITIONED, DR_GAIN_BETA, DR_VALUE_GAIN};
    const dr_row unstable = {DR_READ_KEY, false, DR_WRITE_SHERMAN_MORRISON, DR_GAIN_BETA, DR_VALUE_GAIN};
    dr_rule rule = one_row(DR_DECAY_CHANNEL, gated);
    check_composition("gated key and value", rule);
    rule = one_row(DR_DECAY_SCALAR, feedback);
    check_composition("feedback", rule);
    rule.query = DR_QUERY_CORRECTED;
    check_composition("feedback and corrected query", rule);
    rule = one_row(DR_DECAY_SCALAR, delta);
    rule.query = DR_QUERY_CORRECTED;
    check_composition("corrected query", rule);
    rule = one_row(DR_DECAY_SCALAR, delta);
    rule.repeat = 3;
    check_composition("three steps a token", rule);
    check_composition("implicit gain", one_row(DR_DECAY_NONE, implicit));
    check_composition("exponential gain", one_row(DR_DECAY_CONSTANT, exponential));
    rule = one_row(DR_DECAY_CHANNEL, linear);
    rule.scan = DR_SCAN_DIAGONAL;
    rule.query = DR_QUERY_RIDGE;
    check_composition("ridge query", rule);
    rule = one_row(DR_DECAY_NONE, unstable);
    rule.scan = DR_SCAN_DIAGONAL;
    check_composition("sherman-morrison write key", rule);
    rule = one_row(DR_DECAY_SCALAR, preconditioned);
    rule.scan = DR_SCAN_DIAGONAL;
    rule.tied_scan = true;
    check_composition("tied scan", rule);
    rule.tied_scan = false;
    for (int n = DR_NORMALIZER_INVERSE; n <= DR_NORMALIZER_DISCOUNTED; n++) {
        rule.normalizer = (dr_normalizer)n;
        rule.squash.interval = (dr_squash_interval)(n - 1);
        rule.squash.function = n == DR_NORMALIZER_IMPLICIT ? DR_SQUASH_TANH : DR_SQUASH_RATIONAL;
        check_composition(dr_normalizer_name(rule.normalizer), rule);
    }
    rule.normalizer = DR_NORMALIZER_NONE;
    rule.squash.x = 2;
    rule.query = DR_QUERY_RIDGE;
    check_composition("both preconditioners", rule);
    rule = one_row(DR_DECAY_SCALAR, delta);
    rule.scan = DR_SCAN_GRAM;
    rule.query = DR_QUERY_CONJUGATE_GRADIENT; /* as many steps as key channels: converged */
    rule.cg_iters = 6;
    check_composition("conjugate gradients", rule);
    rule = one_row(DR_DECAY_CHANNEL, (dr_row){DR_READ_ERASE_KEY, true, DR_WRITE_ERASE_KEY, DR_GAIN_GAMMA, DR_VALUE_NONE});
    rule.row[rule.rows++] = (dr_row){DR_READ_KEY_PLUS_QUERY, false, DR_WRITE_PRECONDITIONED, DR_GAIN_BETA, DR_VALUE_GAIN};
    rule.scan = DR_SCAN_DIAGONAL;
    check_composition("erase, then a delta along key and query with a preconditioned write key", rule);
}

/* What lambda is in the recurrence: the fixed number, doubled with negative eigenvalues; sigmoid(bias) under a zero projection.
 */
static void check_lambda(bool fixed, bool learned, bool negative, double expected) {
    module_problem of;
    dr_model_config config = small(dr_rule_find("qdelta"));
    config.gates.lambda = fixed ? DR_LAMBDA_FIXED : DR_LAMBDA_PROJECTED;
    config.gates.lambda_value = 0.8;
    config.gates.lambda_bias_learned = learned;
    config.gates.negative_eigenvalues = negative;
    begin(&of, &config);
    const dr_layer_parameter *weight = module_parameter(&of, "lamb_proj.weight"), *bias = module_parameter(&of, "lamb_bias");
    assert_int_equal(bias != NULL, learned);
    assert_int_equal(weight == NULL, fixed);
    for (int64_t i = 0; weight && i < weight->count; i++) of.parameters[weight->offset + i] = 0;
    if (learned) of.parameters[bias->offset] = bias->initial.value;
    module_objective(&of);
    const dr_recurrent *mixer = dr_recurrent_of(&of.call);
    const dr_recurrent_memory *memory = of.call.memory;
    const double *lambda = memory->at[mixer->input[DR_INPUT_LAMBDA]];
    for (int64_t i = 0; i < MODULE_ROWS * mixer->value_heads; i++) assert_true(fabs(lambda[i] - expected) <= 1e-15);
    module_end(&of);
}

static void test_lambda(void **state) {
    (void)state;
    check_lambda(true, false, false, 0.8);
    check_lambda(true, false, true, 1.6);
    check_lambda(false, false, false, 1 / (1 + exp(0.9)));
    check_lambda(false, true, false, 1 / (1 + exp(0.8)));
    check_lambda(false, true, true, 2 / (1 + exp(0.8)));
}

/* Feature maps of query and key with each norm, after a convolution and without one; positive ones, where a sum divides. */
static void test_features(void **state) {
    (void)state;
    static const struct {
        const char *name;
        dr_function feature;
        dr_length_kind length;
    } cases[] = {
        {"silu, unit", DR_FUNCTION_SILU, DR_LENGTH_UNIT},     {"elu + 1, sum", DR_FUNCTION_ELU_1, DR_LENGTH_SUM},
        {"elu + 1, free", DR_FUNCTION_ELU_1, DR_LENGTH_FREE}, {"elu + 1, unit", DR_FUNCTION_ELU_1, DR_LENGTH_UNIT},
        {"sigmoid, sum", DR_FUNCTION_SIGMOID, DR_LENGTH_SUM}, {"identity, unit", DR_FUNCTION_IDENTITY, DR_LENGTH_UNIT},
        {"gelu, free", DR_FUNCTION_GELU, DR_LENGTH_FREE},     {"identity, free", DR_FUNCTION_IDENTITY, DR_LENGTH_FREE},
    };
    dr_model_config config = small(dr_rule_find("delta_net"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int64_t width = 0; width <= 3; width += 3) {
            config.conv_size = width;
            dr_recurrent_description is = describe(&config);
            is.feature = cases[i].feature;
            is.query_length = is.key_length = cases[i].length;
            is.rotary = i % 2 == 1;
            is.spectrum = (dr_rotary_spectrum){.kind = DR_ROTARY_PLAIN, .dim = is.key_size, .base = 100};
            if (i % 3 == 0) is.activate = DR_FUNCTION_IDENTITY, is.value_conv = false;
            check_described(cases[i].name, config.hidden, &is);
        }
}

/* Projections in one piece where the family has them in two, with biases. */
static void test_projections(void **state) {
    (void)state;
    const dr_model_config config = small(dr_rule_find("kda"));
    dr_recurrent_description is = describe(&config);
    is.decay = (dr_projection_description){.bias = true};
    is.gate_projection = (dr_projection_description){.bias = true};
    check_described("kda, decay and gate in one piece", config.hidden, &is);
    module_problem of;
    begin_described(&of, config.hidden, &is);
    assert_non_null(module_parameter(&of, "f_proj.bias"));
    assert_non_null(module_parameter(&of, "g_proj.bias"));
    module_end(&of);
}

/* Free keys beside a feedback key, and a rate on a plain key, in compositions that no name has. */
static void test_free_keys(void **state) {
    (void)state;
    dr_rule rule = one_row(DR_DECAY_SCALAR, (dr_row){DR_READ_FREE, true, DR_WRITE_FREE, DR_GAIN_ONE, DR_VALUE_NONE});
    rule.row[rule.rows++] = (dr_row){DR_READ_FEEDBACK, false, DR_WRITE_KEY, DR_GAIN_BETA, DR_VALUE_GAIN};
    check_composition("free keys, then feedback", rule);
    rule = one_row(DR_DECAY_CHANNEL, (dr_row){DR_READ_KEY, true, DR_WRITE_RATE_READ, DR_GAIN_ONE, DR_VALUE_NONE});
    rule.row[rule.rows++] = (dr_row){DR_READ_NONE, false, DR_WRITE_KEY, DR_GAIN_ONE, DR_VALUE_V};
    check_composition("a rate on the key", rule);
}

/* ---- values by hand ------------------------------------------------------------------------------------------------- */

/* What the recurrence read as an input in the last forward. */
static const double *input_of(const module_problem *of, dr_input input) {
    const double *values = dr_recurrent_inputs(&of->call, of->call.memory).at[input];
    assert_non_null(values);
    return values;
}

/* The last forward's o [rows, HV, V], with the skip. */
static const double *output_of(const module_problem *of) {
    const dr_recurrent_memory *memory = of->call.memory;
    return memory->at[dr_recurrent_of(&of->call)->output];
}

static void set_parameter(module_problem *of, const char *name, double value) {
    const dr_layer_parameter *parameter = module_parameter(of, name);
    assert_non_null(parameter);
    for (int64_t i = 0; i < parameter->count; i++) of->parameters[parameter->offset + i] = value;
}

static double first_value(const dr_model_config *config, const char *name) {
    module_problem of;
    begin(&of, config);
    const dr_layer_parameter *parameter = module_parameter(&of, name);
    assert_non_null(parameter);
    assert_int_equal(parameter->initial.kind, DR_INITIAL_CONSTANT);
    const double value = parameter->initial.value;
    module_end(&of);
    return value;
}

static void test_first_values(void **state) {
    (void)state;
    dr_model_config config = small(dr_rule_find("pgdn"));
    assert_true(first_value(&config, "log_atk_scale") == -0.2);
    assert_true(first_value(&config, "o_norm.weight") == 1);
    config = small(dr_rule_find("comba"));
    assert_true(first_value(&config, "decay") == 1 && first_value(&config, "D") == 1);
    config = small(dr_rule_find("mamba2"));
    assert_true(first_value(&config, "D_skip") == 1 && first_value(&config, "q_conv1d.bias") == 0);
    config = small(dr_rule_find("qdelta"));
    config.gates.lambda_bias_learned = true;
    assert_true(first_value(&config, "lamb_bias") == -0.8);
}

/* Each head's part of these inputs [rows, H, K] has length 1, but for the norm's eps. */
static void check_units(const dr_rule *rule, const dr_input *inputs, int count) {
    const dr_model_config config = small(rule);
    module_problem of;
    begin(&of, &config);
    module_objective(&of);
    for (int n = 0; n < count; n++) {
        const double *keys = input_of(&of, inputs[n]);
        for (int64_t i = 0; i < MODULE_ROWS * config.heads; i++) {
            double square = 0;
            for (int64_t k = 0; k < config.key_size; k++)
                square += keys[i * config.key_size + k] * keys[i * config.key_size + k];
            if (!(fabs(square - 1) <= 1e-3)) fail_msg("input %s: the square of a head is %g", dr_input_name(inputs[n]), square);
        }
    }
    module_end(&of);
}

static void test_keys_are_units(void **state) {
    (void)state;
    static const dr_input erasing[] = {DR_INPUT_QUERY, DR_INPUT_KEY, DR_INPUT_ERASE_KEY},
                          feeding[] = {DR_INPUT_QUERY, DR_INPUT_KEY, DR_INPUT_FEEDBACK_KEY},
                          free_keys[] = {DR_INPUT_FREE_READ, DR_INPUT_FREE_WRITE};
    check_units(dr_rule_find("eda"), erasing, 3);
    check_units(dr_rule_find("comba"), feeding, 3);
    dr_rule rule = one_row(DR_DECAY_SCALAR, (dr_row){DR_READ_FREE, true, DR_WRITE_FREE, DR_GAIN_ONE, DR_VALUE_NONE});
    rule.row[rule.rows++] = (dr_row){DR_READ_NONE, false, DR_WRITE_KEY, DR_GAIN_ONE, DR_VALUE_V};
    check_units(&rule, free_keys, 2);
}

/* softplus(p) + least: one at first, the least where p is far below 0. */
static void test_ridge(void **state) {
    (void)state;
    const dr_model_config config = small(dr_rule_find("mesanet"));
    const double first = first_value(&config, "ridge");
    module_problem of;
    begin(&of, &config);
    const double least = dr_recurrent_of(&of.call)->is.least_ridge;
    assert_true(least == 0.25);
    for (int step = 0; step < 2; step++) {
        set_parameter(&of, "ridge", step == 0 ? first : -60);
        module_objective(&of);
        const double *ridge = input_of(&of, DR_INPUT_RIDGE), expected = step == 0 ? 1 : least;
        for (int64_t i = 0; i < config.heads * config.key_size; i++) assert_true(fabs(ridge[i] - expected) <= 1e-14);
    }
    module_end(&of);
}

/* Queries and keys of 4 channels turned by position p: channel i with i + 2, by p times 1 and 1/10. Positions begin anew in
 * each sequence. */
static void test_turns(void **state) {
    (void)state;
    dr_model_config config = small(dr_rule_find("delta_net"));
    config.value_heads = config.heads;
    dr_recurrent_description is = describe(&config);
    module_problem plain, turned;
    is.rotary = false;
    begin_described(&plain, config.hidden, &is);
    is.rotary = true;
    is.spectrum = (dr_rotary_spectrum){.kind = DR_ROTARY_PLAIN, .dim = 4, .base = 100};
    begin_described(&turned, config.hidden, &is);
    module_objective(&plain), module_objective(&turned);
    for (int n = 0; n < 2; n++) {
        const dr_input input = n == 0 ? DR_INPUT_QUERY : DR_INPUT_KEY;
        const double *from = input_of(&plain, input), *to = input_of(&turned, input);
        for (int s = 0; s < MODULE_SEQUENCES; s++)
            for (int64_t row = module_begins[s]; row < module_begins[s + 1]; row++)
                for (int64_t i = 0; i < config.heads * 4; i++) {
                    const int64_t at = row * config.heads * 4 + i, low = i % 4 < 2 ? at : at - 2;
                    const double angle = (double)(row - module_begins[s]) * (i % 2 == 0 ? 1 : 0.1);
                    const double expected = low == at ? cos(angle) * from[low] - sin(angle) * from[low + 2]
                                                      : sin(angle) * from[low] + cos(angle) * from[low + 2];
                    assert_true(fabs(to[at] - expected) <= 1e-14);
                }
    }
    module_end(&plain), module_end(&turned);
}

/* o += D v: D of each value head, v the value before the step, which the recurrence has read times softplus(u) =
 * -log_decay exp(-A_log). */
static void test_skip(void **state) {
    (void)state;
    const dr_model_config config = small(dr_rule_find("mamba2"));
    const int64_t heads = config.value_heads, size = config.value_size, count = MODULE_ROWS * heads * size;
    double *without = module_doubles(count), largest = 0;
    module_problem of;
    begin(&of, &config);
    set_parameter(&of, "D_skip", 0);
    module_objective(&of);
    memcpy(without, output_of(&of), (size_t)count * sizeof *without);
    double *skip = of.parameters + module_parameter(&of, "D_skip")->offset;
    const double *a_log = of.parameters + module_parameter(&of, "A_log")->offset;
    for (int64_t h = 0; h < heads; h++) skip[h] = 0.5 + (double)h;
    module_objective(&of);
    const double *with = output_of(&of), *stepped = input_of(&of, DR_INPUT_VALUE), *decay = input_of(&of, DR_INPUT_LOG_DECAY);
    for (int64_t i = 0; i < count; i++) {
        const int64_t head = i / size % heads;
        const double value = stepped[i] / (-decay[i / size] * exp(-a_log[head]));
        assert_true(fabs(with[i] - (without[i] + skip[head] * value)) <= 1e-12);
        largest = fmax(largest, fabs(without[i]));
    }
    assert_true(largest > 0.01);
    module_end(&of);
    free(without);
}
/* A copy of the output's gate [rows, HV, V], which is dense or columns of a panel. */
static double *gate_of(const module_problem *of) {
    const dr_recurrent *mixer = dr_recurrent_of(&of->call);
    const dr_recurrent_memory *memory = of->call.memory;
    const int index = mixer->node[mixer->nodes - 1].with;
    const dr_node_value *gate = &mixer->value[index];
    const bool column = gate->panel != DR_NO_VALUE;
    const int64_t row = column ? mixer->value[gate->panel].columns : gate->columns;
    const double *from = (const double *)memory->at[column ? gate->panel : index] + (column ? gate->column : 0);
    double *copy = module_doubles(MODULE_ROWS * gate->columns);
    for (int64_t r = 0; r < MODULE_ROWS; r++)
        memcpy(copy + r * gate->columns, from + r * row, (size_t)gate->columns * sizeof *copy);
    return copy;
}

/* The normed output: w o / rms(o) silu(g) of each head by itself, or of all heads as one, w o silu(g) / rms(o silu(g)). */
static void check_output(const char *name, bool whole) {
    const dr_model_config config = small(dr_rule_find(name));
    const int64_t size = config.value_size, columns = config.value_heads * size, group = whole ? columns : size;
    module_problem of;
    begin(&of, &config);
    module_objective(&of);
    const dr_recurrent_scratch *scratch = of.call.scratch;
    const double *o = output_of(&of), *normed = scratch->y;
    double *g = gate_of(&of);
    const double *weight = of.parameters + module_parameter(&of, "o_norm.weight")->offset;
    assert_int_equal(module_parameter(&of, "o_norm.weight")->count, group);
    for (int64_t begin = 0; begin < MODULE_ROWS * columns; begin += group) {
        double square = 0;
        for (int64_t i = begin; i < begin + group; i++) {
            const double u = whole ? o[i] * g[i] / (1 + exp(-g[i])) : o[i];
            square += u * u / (double)group;
        }
        for (int64_t i = begin; i < begin + group; i++) {
            const double expected = weight[i - begin] * o[i] * g[i] / (1 + exp(-g[i])) / sqrt(square + config.norm_eps);
            assert_true(fabs(normed[i] - expected) <= 1e-12);
        }
    }
    free(g);
    module_end(&of);
}

static void test_outputs(void **state) {
    (void)state;
    check_output("mamba2", true);
    check_output("gdn", false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_named_rules), cmocka_unit_test(test_variants),     cmocka_unit_test(test_compositions),
        cmocka_unit_test(test_lambda),      cmocka_unit_test(test_features),     cmocka_unit_test(test_projections),
        cmocka_unit_test(test_free_keys),   cmocka_unit_test(test_first_values), cmocka_unit_test(test_keys_are_units),
        cmocka_unit_test(test_ridge),       cmocka_unit_test(test_turns),        cmocka_unit_test(test_skip),
        cmocka_unit_test(test_outputs),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
