/* Defaults of a model's configuration, and the check that it can be built. Every refusal names the field and its value. */
#include "nn/config.h"
#include "base/error.h"
#include "nn/family.h"
#include "nn/layer_list.h"
#include "rules/compare.h"
#include <inttypes.h>
#include <math.h>

dr_model_config dr_model_config_default(const dr_rule *rule) {
    if (!rule) return (dr_model_config){0};
    dr_layer_family family = dr_layer_family_of(rule);
    return (dr_model_config){.rule = *rule,
                             .vocabulary = 256,
                             .hidden = 256,
                             .layers = 4,
                             .heads = 4,
                             .intermediate = -1,
                             .conv_size = family.conv_size,
                             .output_gate = -1,
                             .gates = dr_gates_default(),
                             .lambda_bias = 0.9,
                             .norm_eps = 1e-6,
                             .initializer_range = 0.02};
}

int64_t dr_config_intermediate(int64_t hidden) {
    return (hidden * 8 / 3 + 255) / 256 * 256;
}

static dr_status check_size(const char *field, int64_t value, int64_t least, int64_t most) {
    if (value >= least && value <= most) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "%s is %" PRId64 "; it must be from %" PRId64 " to %" PRId64, field, value, least, most);
}

static dr_status check_real(const char *field, double value, double least, double most) {
    if (value >= least && value <= most) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "%s is %g; it must be from %g to %g", field, value, least, most);
}

static dr_status check_sizes(const dr_model_config *config) {
    DR_TRY(check_size("vocabulary", config->vocabulary, 1, DR_LARGEST_SIZE));
    DR_TRY(check_size("hidden", config->hidden, 1, DR_LARGEST_SIZE));
    DR_TRY(check_size("layers", config->layers, 1, DR_MOST_LAYERS));
    DR_TRY(check_size("heads", config->heads, 1, DR_LARGEST_SIZE));
    DR_TRY(check_size("value_heads", config->value_heads, 0, DR_LARGEST_SIZE));
    DR_TRY(check_size("key_size", config->key_size, 0, DR_LARGEST_SIZE));
    DR_TRY(check_size("value_size", config->value_size, 0, DR_LARGEST_SIZE));
    DR_TRY(check_size("intermediate", config->intermediate, -1, DR_LARGEST_SIZE));
    return check_size("conv_size", config->conv_size, 0, DR_LARGEST_SIZE);
}

static dr_status resolve_sizes(dr_model_config *config, const dr_layer_family *family) {
    if (config->value_heads == 0) config->value_heads = config->heads;
    if (config->value_heads % config->heads != 0)
        return dr_fail(DR_ERROR_ARGUMENT, "value_heads is %" PRId64 "; it must be a multiple of heads, %" PRId64,
                       config->value_heads, config->heads);
    if (config->key_size == 0 && config->hidden % config->heads != 0)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "hidden is %" PRId64 " and heads is %" PRId64 ": give key_size, since one does not divide the other",
                       config->hidden, config->heads);
    if (config->key_size == 0) config->key_size = config->hidden / config->heads;
    if (config->value_size == 0) config->value_size = config->key_size * family->expansion;
    if (config->intermediate < 0) config->intermediate = dr_config_intermediate(config->hidden);
    DR_TRY(check_size("value_heads times key_size", config->value_heads * config->key_size, 1, DR_LARGEST_SIZE));
    DR_TRY(check_size("value_heads times value_size", config->value_heads * config->value_size, 1, DR_LARGEST_SIZE));
    if (family->rotary_base > 0 && config->key_size % 2 != 0)
        return dr_fail(DR_ERROR_ARGUMENT, "key_size is %" PRId64 "; family %s turns pairs of channels, so it must be even",
                       config->key_size, dr_family_name(config->rule.family));
    return DR_OK;
}

static bool preconditions_writes(const dr_rule *rule) {
    for (int i = 0; i < rule->rows; i++)
        if (rule->row[i].write == DR_WRITE_PRECONDITIONED) return true;
    return false;
}

static dr_status check_negative_eigenvalues(const dr_model_config *config) {
    const dr_rule *rule = &config->rule;
    if (!config->gates.negative_eigenvalues) return DR_OK;
    if (!dr_rule_uses(rule, DR_INPUT_BETA) && !dr_rule_uses(rule, DR_INPUT_ERASE_GATE))
        return dr_fail(DR_ERROR_ARGUMENT, "negative_eigenvalues doubles beta or the erase gate, and the rule has neither");
    if (preconditions_writes(rule) && !config->force)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "negative_eigenvalues with a preconditioned write key is not stable: beta x must not exceed 2, and x is "
                       "%g; set force to have it all the same",
                       rule->squash.x);
    return DR_OK;
}

static dr_status check_layer(const dr_rule *rule, const dr_layer_family *family) {
    if (family->stepped && (rule->decay != DR_DECAY_SCALAR || rule->repeat > 1))
        return dr_fail(DR_ERROR_ARGUMENT,
                       "family %s multiplies the value by the step that a scalar decay comes from, but the rule has decay %s "
                       "and repeat %d; say \"family\": \"composition\", or another one",
                       dr_family_name(rule->family), dr_decay_name(rule->decay), rule->repeat);
    return DR_OK;
}

static dr_status resolve_gate(dr_model_config *config, const dr_layer_family *family) {
    if (config->a_log_per_channel && (config->rule.decay != DR_DECAY_CHANNEL || family->log_sigmoid > 0))
        return dr_fail(DR_ERROR_ARGUMENT, "a_log_per_channel is set, but the layer has no A_log of a channel decay");
    const bool decided = config->rule.decay == DR_DECAY_SCALAR || config->rule.decay == DR_DECAY_CHANNEL;
    if (config->gates.gate == DR_GATE_AUTO) config->gates.gate = decided ? family->form : DR_GATE_FORM_LOG;
    if (config->gates.gate != DR_GATE_FORM_LOG && config->gates.gate != DR_GATE_FORM_KDA_BOUNDED &&
        config->gates.gate != DR_GATE_FORM_EDA_BOUNDED)
        return dr_fail(DR_ERROR_ARGUMENT, "gate is %d, which is no dr_gate_form", (int)config->gates.gate);
    if (config->gates.gate == DR_GATE_FORM_LOG) return DR_OK;
    if (!decided) return dr_fail(DR_ERROR_ARGUMENT, "gate is bounded, but the rule has no decay that tokens decide");
    if (family->log_sigmoid > 0 || family->stepped)
        return dr_fail(DR_ERROR_ARGUMENT, "gate is bounded, but family %s has a decay gate of its own",
                       dr_family_name(config->rule.family));
    if (!(config->gates.lower_bound < 0 && config->gates.lower_bound >= -1000))
        return dr_fail(DR_ERROR_ARGUMENT, "lower_bound is %g; it must be below 0 and at least -1000",
                       config->gates.lower_bound);
    return DR_OK;
}

static dr_status check_lambda(const dr_model_config *config) {
    const dr_gates *gates = &config->gates;
    if (gates->lambda != DR_LAMBDA_PROJECTED && gates->lambda != DR_LAMBDA_FIXED)
        return dr_fail(DR_ERROR_ARGUMENT, "lambda is %d, which is no dr_lambda_kind", (int)gates->lambda);
    if ((gates->lambda == DR_LAMBDA_FIXED || gates->lambda_bias_learned) && !dr_rule_uses(&config->rule, DR_INPUT_LAMBDA))
        return dr_fail(DR_ERROR_ARGUMENT,
                       "lambda is fixed or has a learned bias, but the rule reads no lambda: no row has read "
                       "key key_plus_query");
    if (gates->lambda == DR_LAMBDA_FIXED && gates->lambda_bias_learned)
        return dr_fail(DR_ERROR_ARGUMENT, "lambda is fixed, so it has no bias that could be learned");
    DR_TRY(check_real("lambda_bias", config->lambda_bias, -100, 100));
    return check_real("lambda", gates->lambda_value, 0, 1);
}

/* A composition that equals a named rule is that rule. The names in a configuration are the table's, which outlive the
 * caller's. */
static void adopt_name(dr_rule *rule) {
    const dr_rule *named = dr_rule_with_axes(rule);
    rule->family = dr_rule_family(rule);
    rule->name = named ? named->name : NULL;
    rule->title = named ? named->title : NULL;
    rule->source = named ? named->source : NULL;
}

/* The layers of a list are checked where they are described, each with its own numbers. */
static dr_status resolve_list(dr_model_config *config) {
    json_t *list = NULL;
    DR_TRY(dr_layer_list_parse(config->layer_list, &list));
    const dr_status status = dr_layer_list_count(list, &config->layers);
    json_decref(list);
    return status;
}

static dr_status resolve_layer(dr_model_config *config) {
    const dr_layer_family family = dr_layer_family_of(&config->rule);
    DR_TRY(check_layer(&config->rule, &family));
    DR_TRY(resolve_sizes(config, &family));
    DR_TRY(check_negative_eigenvalues(config));
    DR_TRY(resolve_gate(config, &family));
    DR_TRY(check_lambda(config));
    if (config->output_gate < 0) config->output_gate = family.output_gate;
    if (config->rule.tied_scan && config->value_heads != config->heads)
        return dr_fail(DR_ERROR_ARGUMENT, "value_heads is %" PRId64 " and heads is %" PRId64 "; a tied scan needs them equal",
                       config->value_heads, config->heads);
    return DR_OK;
}

dr_status dr_config_resolve(const dr_model_config *config, dr_model_config *resolved) {
    dr_model_config result = *config;
    DR_TRY(dr_rule_check(&result.rule));
    adopt_name(&result.rule);
    if (result.layer_list) DR_TRY(resolve_list(&result));
    DR_TRY(check_sizes(&result));
    if (result.output_gate != 0 && result.output_gate != 1 && result.output_gate != -1)
        return dr_fail(DR_ERROR_ARGUMENT, "output_gate is %d; it must be 1, 0, or -1 for what the family has",
                       result.output_gate);
    if (!result.layer_list) DR_TRY(resolve_layer(&result));
    DR_TRY(check_real("norm_eps", result.norm_eps, 1e-30, 1));
    DR_TRY(check_real("initializer_range", result.initializer_range, 0, 100));
    DR_TRY(check_real("conv_initializer_range", result.conv_initializer_range, 0, 100));
    *resolved = result;
    return DR_OK;
}
