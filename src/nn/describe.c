/* What the family of a rule decides about its layers (nn/family.h) and what a configuration says, as one description. */
#include "nn/describe.h"
#include "base/error.h"
#include "base/memory.h"
#include "nn/family.h"
#include "nn/layer_list.h"

enum { LOW_RANK = 16 }; /* of gla's gate, and of each head of an erase-then-delta decay */

static dr_projection_description decay_projection(const dr_model_config *config, const dr_layer_family *family) {
    if (config->rule.decay != DR_DECAY_CHANNEL) return (dr_projection_description){.bias = family->gains_biased};
    switch (family->decay) {
    case DR_DECAY_LOW_RANK_HEADS:
        return (dr_projection_description){.rank = LOW_RANK, .by_head = true};
    case DR_DECAY_LOW_RANK_BIAS:
        return (dr_projection_description){.rank = LOW_RANK, .bias = true};
    case DR_DECAY_FULL:
    case DR_DECAY_LOW_RANK:
        break;
    }
    return (dr_projection_description){.rank = config->value_size};
}

/* Of query and key, or of the value: silu in the convolution or, where the family has one, without it. */
static dr_function feature(const dr_model_config *config, const dr_layer_family *family) {
    return config->conv_size > 0 || family->activated ? DR_FUNCTION_SILU : DR_FUNCTION_IDENTITY;
}

void dr_describe_recurrent(const dr_model_config *config, dr_recurrent_description *mixer) {
    const dr_layer_family family = dr_layer_family_of(&config->rule);
    const bool low_rank = family.gate_low_rank;
    *mixer = (dr_recurrent_description){
        .rule = config->rule,
        .gates = config->gates,
        .heads = config->heads,
        .value_heads = config->value_heads,
        .key_size = config->key_size,
        .value_size = config->value_size,
        .conv_size = config->conv_size,
        .conv_bias = family.conv_bias,
        .conv_range = config->conv_initializer_range,
        .value_conv = !family.plain_value,
        .feature = feature(config, &family),
        .activate = family.plain_value ? DR_FUNCTION_IDENTITY : feature(config, &family),
        .query_length = family.unit != DR_UNIT_NONE ? DR_LENGTH_UNIT : DR_LENGTH_FREE,
        .key_length = family.unit == DR_UNIT_BOTH ? DR_LENGTH_UNIT : DR_LENGTH_FREE,
        .query_scale = family.scale,
        .decay = decay_projection(config, &family),
        .beta = {.bias = family.gains_biased},
        .decay_factor = family.log_sigmoid,
        .least_a = family.a_least,
        .a_log_per_channel = config->a_log_per_channel,
        .scan_decay = config->rule.decay == DR_DECAY_CHANNEL ? family.scan_decay_name : NULL,
        .gated = config->output_gate,
        .gate = family.gate == DR_ACTIVATION_SIGMOID ? DR_FUNCTION_SIGMOID : DR_FUNCTION_SILU,
        .gate_projection = {.rank = low_rank ? config->value_size : 0, .bias = low_rank},
        .gate_first = family.gate_first,
        .norm_eps = config->norm_eps,
        .lambda_bias = config->lambda_bias,
        .least_ridge = 0.25,
        .stepped = family.stepped,
        .rotary = family.rotary_base > 0,
        .spectrum = {.kind = DR_ROTARY_PLAIN, .dim = config->key_size, .base = family.rotary_base},
    };
}

static dr_norm_description norm(const dr_model_config *config) {
    return (dr_norm_description){.kind = DR_NORM_RMS, .eps = config->norm_eps};
}

static dr_layer_description layer(const dr_model_config *config) {
    dr_layer_description one = {.mixers = 1, .mixer_norm = norm(config)};
    one.mixer[0] = (dr_mixer_description){.kind = DR_MIXER_RECURRENT, .input_scale = 1, .output_scale = 1};
    dr_describe_recurrent(config, &one.mixer[0].of.recurrent);
    if (config->intermediate == 0) return one;
    one.feed_norm = norm(config);
    one.feed = (dr_feed_description){
        .kind = DR_FEED_GATED,
        .of = {.forward = {.width = config->intermediate, .function = DR_FUNCTION_SILU, .gate_factor = 1, .down_factor = 1}}};
    return one;
}

static dr_status describe_list(const dr_model_config *config, dr_layer_description *layers) {
    json_t *list = NULL;
    DR_TRY(dr_layer_list_parse(config->layer_list, &list));
    const dr_status status = dr_layer_list_describe(list, config, layers);
    json_decref(list);
    return status;
}

dr_status dr_describe(const dr_model_config *config, dr_description *description) {
    void *memory = NULL;
    DR_TRY(dr_allocate_zero((size_t)config->layers * sizeof(dr_layer_description), "the description of a model", &memory));
    *description = (dr_description){.model_type = "deltarule",
                                    .vocabulary = config->vocabulary,
                                    .hidden = config->hidden,
                                    .tied = config->tied,
                                    .embedding_scale = 1,
                                    .logits_scale = 1,
                                    .final_norm = norm(config),
                                    .count = config->layers,
                                    .layers = memory};
    if (config->layer_list) {
        const dr_status status = describe_list(config, description->layers);
        if (status != DR_OK) dr_description_release(description);
        return status;
    }
    for (int64_t i = 0; i < config->layers; i++) description->layers[i] = layer(config);
    return DR_OK;
}
