/* What the types of flash-linear-attention share (formats/names/fla_types.c has the types). */
#include "formats/names/fla.h"

#include "base/error.h"

#include <inttypes.h>

static const dr_key common_keys[] = {
    SIZE("vocab_size", vocabulary),
    SIZE("hidden_size", hidden),
    SIZE("num_hidden_layers", layers),
    SIZE("num_heads", heads),
    REAL("hidden_ratio", ratio, 1e-9, 1e9),
    SIZE("intermediate_size", width),
    REAL("norm_eps", norm_eps, 1e-30, 1),
    TRUTH("tie_word_embeddings", tied),
    ANY("attn", attention),
    SIZE("attnres_block_size", residual_block),
    DR_KEY_RANGE(WHOLE, dr_fla_keys, "conv_size", conv_size, 1, 1 << 10),
    TRUTH("use_short_conv", short_conv),
    DR_KEY_MUST("hidden_act", "\"swish\"|\"silu\""),
    DR_KEY_MUST("quantization_config", "null"),
    DR_KEY_MUST("conv_bias", "false"),
    DR_KEY_MUST("elementwise_affine", "true"),
};
static const char *const common_idle[] = {"attn_mode", "max_position_embeddings", "use_output_norm", "conv_initializer_range",
                                          NULL};
TABLE(common, common_keys, common_idle);

/* initial values of parameters, which a file has */
static const char *const initial_idle[] = {"a_log_init_lower", "log_atk_scale_init", "correction_factor", NULL};
static const dr_key_table initial = {.idle = initial_idle};

dr_fla_keys dr_fla_defaults(void) {
    return (dr_fla_keys){.ratio = 4,
                         .norm_eps = 1e-6,
                         .theta = 10000,
                         .expand_k = 1,
                         .expand_v = 1,
                         .conv_size = 4,
                         .gated = true,
                         .short_conv = true,
                         .squash_x = 1.5,
                         .squash_eps = 1e-6,
                         .lambda_bias = 0.9,
                         .least_ridge = 0.25,
                         .steps = 1,
                         .solver_steps = 30,
                         .solver_steps_decoding = 30,
                         .norm_bias = true,
                         .fused_norm = true};
}

int64_t dr_fla_part(int64_t whole, double part) {
    return (int64_t)((double)whole * part);
}

/* ---- softmax attention in some layers ---------------------------------------------------------------------------- */

static dr_status read_attention(const json_t *object, dr_fla_attention *keys) {
    static const dr_key own[] = {
        DR_KEY_RANGE(WHOLE, dr_fla_attention, "num_heads", heads, 1, 1 << 24),
        DR_KEY_RANGE(WHOLE, dr_fla_attention, "num_kv_heads", key_heads, 1, 1 << 24),
        DR_KEY_RANGE(WHOLE, dr_fla_attention, "window_size", window, 1, 1 << 24),
        DR_KEY_RANGE(REAL, dr_fla_attention, "rope_theta", theta, 1, 1e300),
        DR_KEY(TRUTH, dr_fla_attention, "qkv_bias", bias),
        DR_KEY(NUMBERS, dr_fla_attention, "layers", layers),
    };
    TABLE(table, own, NULL);
    static const dr_key_table *const tables[] = {&table, NULL};
    static const char *const needed[] = {"layers", "num_heads", NULL};
    *keys = (dr_fla_attention){.theta = 10000};
    if (!json_is_object(object)) return dr_fail(DR_ERROR_FORMAT, "\"attn\" must be an object, or an array of objects");
    dr_status status = dr_json_required(object, needed);
    if (status == DR_OK) status = dr_keys_read(object, tables, keys);
    return status == DR_OK ? DR_OK : dr_fail_in(status, "attn");
}

static bool has_layer(const json_t *layers, int64_t layer) {
    for (size_t i = 0; i < json_array_size(layers); i++)
        if (json_integer_value(json_array_get(layers, i)) == layer) return true;
    return false;
}

static size_t count_objects(const json_t *attention) {
    return json_is_array(attention) ? json_array_size(attention) : attention ? 1 : 0;
}

static const json_t *object_at(const json_t *attention, size_t i) {
    return json_is_array(attention) ? json_array_get(attention, i) : attention;
}

/* Each number in "layers" is that of one of `count` layers, and each layer is named once at most. */
static dr_status check_attention(const json_t *attention, int64_t count) {
    int64_t named = 0;
    for (size_t i = 0; i < count_objects(attention); i++) {
        dr_fla_attention keys;
        DR_TRY(read_attention(object_at(attention, i), &keys));
        for (size_t j = 0; j < json_array_size(keys.layers); j++) {
            const int64_t layer = json_integer_value(json_array_get(keys.layers, j));
            if (layer < 0 || layer >= count)
                return dr_fail(DR_ERROR_FORMAT, "\"attn\" names layer %" PRId64 ", where the layers are 0 to %" PRId64, layer,
                               count - 1);
            if (++named > count) return dr_fail(DR_ERROR_FORMAT, "\"attn\" names a layer twice");
        }
    }
    return DR_OK;
}

/* The object of "attn" that has a layer, or *found false. */
static dr_status find_attention(const json_t *attention, int64_t layer, dr_fla_attention *keys, bool *found) {
    *found = false;
    for (size_t i = 0; i < count_objects(attention); i++) {
        dr_fla_attention read;
        DR_TRY(read_attention(object_at(attention, i), &read));
        if (!has_layer(read.layers, layer)) continue;
        if (*found) return dr_fail(DR_ERROR_FORMAT, "two objects of \"attn\" name layer %" PRId64, layer);
        *keys = read;
        *found = true;
    }
    return DR_OK;
}

dr_status dr_fla_add_attention(int64_t hidden, const dr_fla_attention *keys, bool norms, dr_layer_description *layer) {
    const int64_t key_heads = keys->key_heads > 0 ? keys->key_heads : keys->heads;
    if (hidden % keys->heads != 0 || keys->heads % key_heads != 0)
        return dr_fail(DR_ERROR_FORMAT,
                       "attention has %" PRId64 " heads, %" PRId64 " of them with keys, and %" PRId64
                       " channels: each must divide the next",
                       keys->heads, key_heads, hidden);
    dr_attention_description *attention = &dr_published_mixer(layer, DR_MIXER_ATTENTION)->of.attention;
    *attention = dr_published_attention(keys->heads, key_heads, hidden / keys->heads);
    attention->window = keys->window;
    attention->query_bias = attention->key_bias = attention->value_bias = keys->bias;
    attention->rotary = true;
    attention->spectrum = dr_published_plain_spectrum(attention->key_size, keys->theta);
    if (norms) attention->query_norm = attention->key_norm = dr_published_rms(1e-5, 0); /* the class has this number */
    const dr_status status = dr_rotary_check(&attention->spectrum);
    return status == DR_OK ? DR_OK : dr_fail_in(DR_ERROR_FORMAT, "the rotary embedding");
}

/* ---- the skeleton of all types ----------------------------------------------------------------------------------- */

static dr_status make_model(const dr_fla_keys *keys, dr_fla_maker make, dr_description *description) {
    DR_TRY(dr_published_layers(description, keys->layers));
    const dr_norm_description norm = dr_published_rms(keys->norm_eps, 0);
    description->vocabulary = keys->vocabulary;
    description->hidden = keys->hidden;
    description->tied = keys->tied;
    description->final_norm = norm;
    if (keys->residual_block > 0) {
        if (keys->residual_block > 1 && keys->residual_block % 2 != 0)
            return dr_fail(DR_ERROR_FORMAT, "\"attnres_block_size\" is %" PRId64 "; it must be 1 or even",
                           keys->residual_block);
        description->residual = DR_RESIDUAL_ATTENTION;
        description->residual_block = keys->residual_block;
        description->depth_norm = norm;
    }
    DR_TRY(check_attention(keys->attention, description->count));
    const int64_t width = (dr_fla_part(keys->hidden, keys->ratio * 2 / 3) + 255) / 256 * 256;
    for (int64_t i = 0; i < description->count; i++) {
        dr_layer_description *layer = &description->layers[i];
        dr_fla_attention attention;
        bool softmax = false;
        DR_TRY(find_attention(keys->attention, i, &attention, &softmax));
        DR_TRY(softmax ? dr_fla_add_attention(keys->hidden, &attention, false, layer) : make(keys, i, layer));
        layer->feed = dr_published_swiglu(keys->width > 0 ? keys->width : width);
        layer->mixer_norm = layer->feed_norm = norm;
        layer->depth_norm = description->depth_norm;
    }
    return DR_OK;
}

dr_status dr_fla_read(const json_t *config, const dr_key_table *own, const char *const *needed, dr_fla_keys *keys,
                      dr_fla_maker make, dr_description *description) {
    const dr_key_table *const tables[] = {own, &common, &initial, &dr_published_idle, NULL};
    DR_TRY(dr_json_required(config, needed));
    DR_TRY(dr_keys_read(config, tables, keys));
    return make_model(keys, make, description);
}
