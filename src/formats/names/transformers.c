#include "formats/names/transformers.h"

#include "base/error.h"

#include <inttypes.h>
#include <string.h>

#define SIZE(name, field)  DR_KEY_RANGE(WHOLE, dr_transformers, name, field, 1, LARGEST)
#define COUNT(name, field) DR_KEY_RANGE(WHOLE, dr_transformers, name, field, 0, LARGEST)
#define TRUTH(name, field) DR_KEY(TRUTH, dr_transformers, name, field)
#define ANY(name, field)   DR_KEY(ANY, dr_transformers, name, field)
#define TABLE(name, keys)  const dr_key_table name = {keys, sizeof keys / sizeof keys[0], NULL}

enum { LARGEST = 1 << 24 };

static const dr_key base[] = {
    DR_KEY_RANGE(REAL, dr_transformers, "router_aux_loss_coef", balance, 0, 1e9),
    SIZE("vocab_size", vocabulary),
    SIZE("hidden_size", hidden),
    SIZE("num_hidden_layers", layers),
    SIZE("num_attention_heads", heads),
    SIZE("num_key_value_heads", key_heads),
    SIZE("head_dim", head_size),
    SIZE("intermediate_size", width),
    DR_KEY_RANGE(REAL, dr_transformers, "rms_norm_eps", norm_eps, 1e-30, 1),
    TRUTH("tie_word_embeddings", tied),
    SIZE("max_position_embeddings", rope.positions),
    DR_KEY(OBJECT, dr_transformers, "rope_parameters", rope.parameters),
    DR_KEY(OBJECT, dr_transformers, "rope_scaling", rope.scaling),
    DR_KEY_RANGE(REAL, dr_transformers, "rope_theta", rope.theta, 1, 1e300),
    DR_KEY_MUST("hidden_act", "\"silu\"|\"swish\""),
    DR_KEY_MUST("quantization_config", "null"),
};
TABLE(dr_transformers_base, base);

static const dr_key biases[] = {TRUTH("attention_bias", attention_bias)};
TABLE(dr_transformers_biases, biases);
static const dr_key mlp_bias[] = {TRUTH("mlp_bias", mlp_bias)};
TABLE(dr_transformers_mlp_bias, mlp_bias);
static const dr_key layer_types[] = {ANY("layer_types", layer_types)};
TABLE(dr_transformers_layer_types, layer_types);
static const dr_key window[] = {SIZE("sliding_window", sliding_window), TRUTH("use_sliding_window", use_sliding_window),
                                COUNT("max_window_layers", max_window_layers), ANY("layer_types", layer_types)};
TABLE(dr_transformers_window, window);
static const dr_key partial[] = {DR_KEY_RANGE(REAL, dr_transformers, "partial_rotary_factor", rope.partial, 0, 1)};
TABLE(dr_transformers_partial, partial);
static const dr_key experts[] = {
    COUNT("num_experts", experts),
    COUNT("num_local_experts", experts),
    SIZE("num_experts_per_tok", chosen),
    SIZE("moe_intermediate_size", expert_width),
    COUNT("shared_expert_intermediate_size", shared_width),
    SIZE("decoder_sparse_step", sparse_step),
    DR_KEY(NUMBERS, dr_transformers, "mlp_only_layers", dense_layers),
    TRUTH("norm_topk_prob", normalised),
};
TABLE(dr_transformers_experts, experts);
static const dr_key linear[] = {
    SIZE("linear_num_key_heads", linear_heads),
    SIZE("linear_num_value_heads", linear_value_heads),
    SIZE("linear_key_head_dim", linear_key_size),
    SIZE("linear_value_head_dim", linear_value_size),
    DR_KEY_RANGE(WHOLE, dr_transformers, "linear_conv_kernel_dim", conv_size, 1, 1 << 10),
};
TABLE(dr_transformers_linear, linear);

dr_transformers dr_transformers_defaults(void) {
    return (dr_transformers){.norm_eps = 1e-6,
                             .rope = {.theta = 10000, .partial = 1, .positions = 2048},
                             .sparse_step = 1,
                             .normalised = true,
                             .conv_size = 4,
                             .groups = 1,
                             .kept = 1,
                             .routed_scale = 1,
                             .lower_bound = -5};
}

dr_status dr_transformers_read(const json_t *config, const dr_key_table *const *tables, void *keys,
                               dr_description *description) {
    dr_transformers *hf = keys;
    static const char *const needed[] = {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", NULL};
    DR_TRY(dr_json_required(config, needed));
    DR_TRY(dr_keys_read(config, tables, keys));
    if (hf->key_heads == 0) hf->key_heads = hf->heads;
    if (hf->heads % hf->key_heads != 0)
        return dr_fail(DR_ERROR_FORMAT,
                       "\"num_attention_heads\" is %" PRId64 "; it must be a multiple of \"num_key_value_heads\", %" PRId64,
                       hf->heads, hf->key_heads);
    if (hf->head_size == 0 && hf->hidden % hf->heads != 0)
        return dr_fail(DR_ERROR_FORMAT,
                       "\"hidden_size\" is %" PRId64 " and \"num_attention_heads\" %" PRId64 ": one does not divide the other, "
                       "and \"head_dim\" is missing",
                       hf->hidden, hf->heads);
    if (hf->head_size == 0) hf->head_size = hf->hidden / hf->heads;
    DR_TRY(dr_published_layers(description, hf->layers));
    description->vocabulary = hf->vocabulary;
    description->hidden = hf->hidden;
    description->tied = hf->tied;
    description->final_norm = dr_published_rms(hf->norm_eps, 0);
    return DR_OK;
}

dr_status dr_transformers_layer_type(const dr_transformers *hf, int64_t layer, bool windows, dr_transformers_layer *kind) {
    static const char *const names[] = {"full_attention", "linear_attention", "sliding_attention"};
    static const dr_transformers_layer kinds[] = {DR_TRANSFORMERS_FULL, DR_TRANSFORMERS_LINEAR, DR_TRANSFORMERS_SLIDING};
    if (!hf->layer_types) return DR_OK;
    if (!json_is_array(hf->layer_types) || (int64_t)json_array_size(hf->layer_types) != hf->layers)
        return dr_fail(DR_ERROR_FORMAT, "\"layer_types\" must be an array of %" PRId64 " texts, one a layer", hf->layers);
    const char *text = json_string_value(json_array_get(hf->layer_types, (size_t)layer));
    for (int i = 0; text && i < (windows ? 3 : 2); i++)
        if (strcmp(text, names[i]) == 0) {
            *kind = kinds[i];
            return DR_OK;
        }
    return dr_fail(DR_ERROR_UNSUPPORTED,
                   "\"layer_types\" has \"%.60s\" for layer %" PRId64 "; full_attention%s linear_attention are supported",
                   text ? text : "no text", layer, windows ? ", sliding_attention and" : " and");
}

dr_status dr_transformers_attention(const dr_transformers *hf, dr_layer_description *layer, dr_attention_description **made) {
    dr_attention_description *attention = &dr_published_mixer(layer, DR_MIXER_ATTENTION)->of.attention;
    *attention = dr_published_attention(hf->heads, hf->key_heads, hf->head_size);
    attention->query_bias = attention->key_bias = attention->value_bias = attention->output_bias = hf->attention_bias;
    *made = attention;
    return dr_published_spectrum(&hf->rope, hf->head_size, &attention->rotary, &attention->spectrum);
}

dr_status dr_transformers_pre_norms(const dr_transformers *hf, dr_layer_description *layer, double offset) {
    layer->mixer_norm = layer->feed_norm = dr_published_rms(hf->norm_eps, offset);
    return DR_OK;
}

bool dr_transformers_has(const json_t *array, int64_t number) {
    for (size_t i = 0; i < json_array_size(array); i++)
        if (json_is_integer(json_array_get(array, i)) && json_integer_value(json_array_get(array, i)) == number) return true;
    return false;
}

dr_router dr_transformers_sigmoid_router(const dr_transformers *hf) {
    return (dr_router){.of = {.experts = hf->experts, .chosen = hf->chosen},
                       .sigmoid = true,
                       .normalised = hf->normalised,
                       .groups = hf->groups,
                       .kept = hf->kept,
                       .scale = hf->routed_scale};
}

dr_status dr_transformers_add_experts(const dr_experts_description *mixture, dr_layer_description *layer) {
    layer->feed = (dr_feed_description){.kind = DR_FEED_EXPERTS, .of.experts = *mixture};
    const dr_status status = dr_router_check(&mixture->router);
    return status == DR_OK ? DR_OK : dr_fail_in(DR_ERROR_FORMAT, "experts");
}

dr_status dr_transformers_feed(const dr_transformers *hf, int64_t index, dr_layer_description *layer) {
    const bool sparse = hf->experts > 0 && !dr_transformers_has(hf->dense_layers, index) && (index + 1) % hf->sparse_step == 0;
    if (!sparse) {
        DR_TRY(dr_published_need(hf->width, "intermediate_size"));
        layer->feed = dr_published_swiglu(hf->width);
        layer->feed.of.forward.bias = hf->mlp_bias;
        return DR_OK;
    }
    DR_TRY(dr_published_need(hf->expert_width, "moe_intermediate_size"));
    DR_TRY(dr_published_need(hf->chosen, "num_experts_per_tok"));
    const dr_experts_description mixture = {.router = {.of = {.experts = hf->experts, .chosen = hf->chosen},
                                                       .normalised = hf->normalised,
                                                       .groups = 1,
                                                       .kept = 1,
                                                       .scale = 1},
                                            .gated = true,
                                            .expert = dr_published_swiglu(hf->expert_width).of.forward,
                                            .shared = hf->shared_width,
                                            .shared_gate = hf->shared_width > 0,
                                            .balance = hf->balance};
    return dr_transformers_add_experts(&mixture, layer);
}
