/* Types with Mamba-2 layers: mamba2 (transformers' and flash-linear-attention's keys), nemotron_h, bamba, falcon_h1. */
#include "base/error.h"
#include "formats/names/transformers.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { FACTORS = 5 };

typedef struct {
    dr_transformers hf; /* first: its tables fill it in */
    int64_t mamba_heads, mamba_head_size, groups, state_size, conv_size, expand, inner;
    bool projection_bias, output_bias, conv_bias;
    const json_t *limit; /* of steps */
    double least_step;
    double norm_eps;
    bool gated_norm, norm_first;
    /* falcon_h1 */
    double embedding, head, attention_in, attention_out, mamba_in, mamba_out, key;
    const json_t *mamba_factors, *feed_factors;
    /* bamba, nemotron_h */
    const json_t *attention_layers, *blocks;
    const char *pattern;
    int64_t latent, shared_width, shared_count;
} mamba_keys;

#define SIZE(name, field)         DR_KEY_RANGE(WHOLE, mamba_keys, name, field, 1, 1 << 24)
#define COUNT(name, field)        DR_KEY_RANGE(WHOLE, mamba_keys, name, field, 0, 1 << 24)
#define REAL(name, field)         DR_KEY_RANGE(REAL, mamba_keys, name, field, -1e9, 1e9)
#define TRUTH(name, field)        DR_KEY(TRUTH, mamba_keys, name, field)
#define ANY(name, field)          DR_KEY(ANY, mamba_keys, name, field)
#define TABLE(name, keys_, idle_) static const dr_key_table name = {keys_, sizeof keys_ / sizeof keys_[0], idle_}

static mamba_keys defaults(void) {
    return (mamba_keys){.hf = dr_transformers_defaults(),
                        .groups = 1,
                        .state_size = 128,
                        .conv_size = 4,
                        .expand = 2,
                        .conv_bias = true,
                        .norm_eps = 1e-5,
                        .embedding = 1,
                        .head = 1,
                        .attention_in = 1,
                        .attention_out = 1,
                        .mamba_in = 1,
                        .mamba_out = 1,
                        .key = 1,
                        .gated_norm = true};
}

/* [least, most] of "time_step_limit" */
static dr_status read_limit(const json_t *limit, const char *key, dr_mamba2_description *mamba) {
    mamba->most_step = (double)INFINITY;
    if (!limit) return DR_OK;
    if (json_array_size(limit) != 2) return dr_fail(DR_ERROR_FORMAT, "\"%s\" must be an array of two numbers", key);
    DR_TRY(dr_keys_real(json_array_get(limit, 0), key, &mamba->least_step));
    DR_TRY(dr_keys_real(json_array_get(limit, 1), key, &mamba->most_step));
    if (mamba->least_step >= 0 && mamba->least_step <= mamba->most_step) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "\"%s\" is from %g to %g: it must rise from 0 on", key, mamba->least_step,
                   mamba->most_step);
}

static dr_mamba2_norm norm_of(const mamba_keys *keys) {
    if (!keys->gated_norm) return DR_MAMBA2_NORM_NONE;
    return keys->norm_first ? DR_MAMBA2_NORM_THEN_GATE : DR_MAMBA2_NORM_GATED;
}

static dr_status add_mamba(const mamba_keys *keys, dr_layer_description *layer, dr_mixer_description **made) {
    dr_mixer_description *mixer = dr_published_mixer(layer, DR_MIXER_MAMBA2);
    dr_mamba2_description *mamba = &mixer->of.mamba2;
    *mamba = (dr_mamba2_description){.heads = keys->mamba_heads,
                                     .head_size = keys->mamba_head_size,
                                     .groups = keys->groups,
                                     .state_size = keys->state_size,
                                     .conv_size = keys->conv_size,
                                     .conv_bias = keys->conv_bias,
                                     .input_bias = keys->projection_bias,
                                     .output_bias = keys->projection_bias,
                                     .norm = norm_of(keys),
                                     .norm_groups = keys->groups,
                                     .norm_eps = keys->norm_eps,
                                     .factor = {1, 1, 1, 1, 1}};
    if (made) *made = mixer;
    if (keys->mamba_heads < 1 || keys->mamba_head_size < 1)
        return dr_fail(DR_ERROR_FORMAT, "the number or the size of the Mamba-2 heads is missing");
    if (keys->mamba_heads % keys->groups != 0)
        return dr_fail(DR_ERROR_FORMAT, "%" PRId64 " Mamba-2 heads cannot be in %" PRId64 " equal groups", keys->mamba_heads,
                       keys->groups);
    return DR_OK;
}

/* ---- mamba2 -----------------------------------------------------------------------------------------------------------------
 */

static dr_status read_mamba2(const json_t *config, dr_description *description) {
    static const dr_key own[] = {
        SIZE("vocab_size", hf.vocabulary),
        SIZE("hidden_size", hf.hidden),
        SIZE("num_hidden_layers", hf.layers),
        TRUTH("tie_word_embeddings", hf.tied),
        SIZE("num_heads", mamba_heads),
        SIZE("head_dim", mamba_head_size),
        SIZE("n_groups", groups),
        SIZE("state_size", state_size),
        SIZE("expand", expand),
        DR_KEY_RANGE(WHOLE, mamba_keys, "conv_kernel", conv_size, 1, 1 << 10),
        TRUTH("use_bias", projection_bias),
        TRUTH("use_conv_bias", conv_bias),
        DR_KEY_RANGE(REAL, mamba_keys, "layer_norm_epsilon", norm_eps, 1e-30, 1),
        DR_KEY_RANGE(REAL, mamba_keys, "norm_eps", norm_eps, 1e-30, 1),
        ANY("time_step_limit", limit),
        ANY("dt_limit", limit),
        DR_KEY_MUST("hidden_act", "\"silu\"|\"swish\""),
        TRUTH("rmsnorm", gated_norm),
        TRUTH("norm_before_gate", norm_first),
        DR_KEY_MUST("D_has_hdim", "false"),
        DR_KEY_MUST("quantization_config", "null"),
    };
    static const char *const idle[] = {"chunk_size", "time_step_rank", "time_step_min", "time_step_max", "time_step_floor",
                                       "dt_min",     "dt_max",         "dt_init_floor", "A_init_range",  "conv_init",
                                       NULL};
    static const char *const needed[] = {"vocab_size", "hidden_size", "num_hidden_layers", "head_dim", NULL};
    TABLE(table, own, idle);
    static const dr_key_table *const tables[] = {&table, &dr_published_idle, NULL};
    mamba_keys keys = defaults();
    /* transformers' class has 8 groups by default, flash-linear-attention's has one; only the former has this key */
    if (json_object_get(config, "layer_norm_epsilon")) keys.groups = 8;
    DR_TRY(dr_json_required(config, needed));
    DR_TRY(dr_keys_read(config, tables, &keys));
    const int64_t inner = keys.expand * keys.hf.hidden;
    if (keys.mamba_heads == 0) keys.mamba_heads = inner / keys.mamba_head_size;
    if (keys.mamba_heads * keys.mamba_head_size != inner)
        return dr_fail(DR_ERROR_FORMAT,
                       "\"expand\" times \"hidden_size\" is %" PRId64 "; it must be \"num_heads\" times \"head_dim\", %" PRId64,
                       inner, keys.mamba_heads * keys.mamba_head_size);
    DR_TRY(dr_published_layers(description, keys.hf.layers));
    description->vocabulary = keys.hf.vocabulary;
    description->hidden = keys.hf.hidden;
    description->tied = keys.hf.tied;
    description->final_norm = dr_published_rms(keys.norm_eps, 0);
    for (int64_t i = 0; i < description->count; i++) {
        dr_mixer_description *mixer = NULL;
        DR_TRY(add_mamba(&keys, &description->layers[i], &mixer));
        DR_TRY(read_limit(keys.limit, json_object_get(config, "dt_limit") ? "dt_limit" : "time_step_limit", &mixer->of.mamba2));
        description->layers[i].mixer_norm = dr_published_rms(keys.norm_eps, 0);
    }
    return DR_OK;
}

/* ---- nemotron_h: one norm and one part a layer ------------------------------------------------------------------- */

typedef enum { BLOCK_MAMBA, BLOCK_ATTENTION, BLOCK_FEED, BLOCK_EXPERTS } block;

static dr_status block_of(const mamba_keys *keys, int64_t layer, block *kind) {
    static const char letters[] = "M*-E";
    static const char *const names[][2] = {
        {"linear_attention", "mamba"}, {"full_attention", "attention"}, {"mlp", "mlp"}, {"moe", "moe"}};
    if (!keys->blocks) {
        const char *found = strchr(letters, keys->pattern[layer]);
        if (!found)
            return dr_fail(DR_ERROR_UNSUPPORTED, "\"hybrid_override_pattern\" is of M, *, - and E; it has a '%c'",
                           keys->pattern[layer]);
        *kind = (block)(found - letters);
        return DR_OK;
    }
    const char *text = json_string_value(json_array_get(keys->blocks, (size_t)layer));
    for (int i = 0; text && i < 4; i++)
        if (strcmp(text, names[i][0]) == 0 || strcmp(text, names[i][1]) == 0) {
            *kind = (block)i;
            return DR_OK;
        }
    return dr_fail(DR_ERROR_UNSUPPORTED,
                   "\"layers_block_type\" has \"%.60s\"; linear_attention, full_attention, mlp and moe are supported",
                   text ? text : "no text");
}

static dr_feed_forward_description squared_relu(int64_t width, bool bias) {
    return (dr_feed_forward_description){
        .width = width, .function = DR_FUNCTION_SQUARED_RELU, .bias = bias, .gate_factor = 1, .down_factor = 1};
}

static dr_status add_nemotron_experts(const mamba_keys *keys, dr_layer_description *layer) {
    const dr_transformers *hf = &keys->hf;
    const dr_experts_description experts = {.router = dr_transformers_sigmoid_router(hf),
                                            .corrected = true,
                                            .expert = squared_relu(hf->expert_width, false),
                                            .latent = keys->latent,
                                            .shared = keys->shared_width * keys->shared_count,
                                            .outer_bias = hf->mlp_bias,
                                            .balance = hf->balance};
    DR_TRY(dr_published_need(hf->expert_width, "moe_intermediate_size"));
    return dr_transformers_add_experts(&experts, layer);
}

static dr_status add_nemotron_layer(const mamba_keys *keys, int64_t index, dr_layer_description *layer) {
    block kind = BLOCK_MAMBA;
    DR_TRY(block_of(keys, index, &kind));
    const dr_norm_description norm = dr_published_rms(keys->norm_eps, 0);
    if (kind == BLOCK_MAMBA || kind == BLOCK_ATTENTION)
        layer->mixer_norm = norm;
    else
        layer->feed_norm = norm;
    switch (kind) {
    case BLOCK_MAMBA: {
        dr_mixer_description *mixer = NULL;
        DR_TRY(add_mamba(keys, layer, &mixer));
        mixer->of.mamba2.least_step = keys->least_step; /* the class clamps to this and not to time_step_limit */
        mixer->of.mamba2.most_step = (double)INFINITY;
        return DR_OK;
    }
    case BLOCK_ATTENTION: {
        dr_attention_description *attention = &dr_published_mixer(layer, DR_MIXER_ATTENTION)->of.attention;
        *attention = dr_published_attention(keys->hf.heads, keys->hf.key_heads, keys->hf.head_size);
        return DR_OK; /* without biases, whatever "attention_bias" is: so the class has it */
    }
    case BLOCK_FEED:
        layer->feed =
            (dr_feed_description){.kind = DR_FEED_PLAIN, .of.forward = squared_relu(keys->hf.width, keys->hf.mlp_bias)};
        return dr_published_need(keys->hf.width, "intermediate_size");
    case BLOCK_EXPERTS:
        return add_nemotron_experts(keys, layer);
    }
    return DR_OK;
}

static const dr_key nemotron_keys[] = {
    SIZE("mamba_num_heads", mamba_heads),
    SIZE("mamba_head_dim", mamba_head_size),
    SIZE("n_groups", groups),
    SIZE("ssm_state_size", state_size),
    DR_KEY_RANGE(WHOLE, mamba_keys, "conv_kernel", conv_size, 1, 1 << 10),
    TRUTH("use_bias", projection_bias),
    TRUTH("use_conv_bias", conv_bias),
    DR_KEY_RANGE(REAL, mamba_keys, "layer_norm_epsilon", norm_eps, 1e-30, 1),
    DR_KEY_RANGE(REAL, mamba_keys, "time_step_min", least_step, 0, 1e9),
    ANY("layers_block_type", blocks),
    DR_KEY(TEXT, mamba_keys, "hybrid_override_pattern", pattern),
    COUNT("n_routed_experts", hf.experts),
    SIZE("num_experts_per_tok", hf.chosen),
    SIZE("moe_intermediate_size", hf.expert_width),
    COUNT("moe_shared_expert_intermediate_size", shared_width),
    COUNT("n_shared_experts", shared_count),
    SIZE("moe_latent_size", latent),
    SIZE("n_group", hf.groups),
    SIZE("topk_group", hf.kept),
    TRUTH("norm_topk_prob", hf.normalised),
    DR_KEY_RANGE(REAL, mamba_keys, "routed_scaling_factor", hf.routed_scale, -1e9, 1e9),
    DR_KEY_MUST("mlp_hidden_act", "\"relu2\""),
    DR_KEY_MUST("mamba_hidden_act", "\"silu\""),
    DR_KEY_MUST("sliding_window", "null"),
};
/* the number of layers is that of the pattern; expand is not read; time_step_limit neither (see above) */
static const char *const nemotron_idle[] = {"chunk_size",
                                            "expand",
                                            "time_step_limit",
                                            "time_step_max",
                                            "time_step_floor",
                                            "time_step_rank",
                                            "mamba_ssm_cache_dtype",
                                            "mamba_proj_bias",
                                            "moe_shared_expert_overlap",
                                            "mtp_layers_block_type",
                                            "num_nextn_predict_layers",
                                            "use_mamba_kernels",
                                            "mtp_hybrid_override_pattern",
                                            NULL};
TABLE(nemotron, nemotron_keys, nemotron_idle);

static dr_status read_nemotron(const json_t *config, dr_description *description) {
    static const char *const needed[] = {"mamba_num_heads", "mamba_head_dim", NULL};
    static const dr_key_table *const tables[] = {
        &nemotron, &dr_transformers_base, &dr_transformers_biases, &dr_transformers_mlp_bias, &dr_published_idle, NULL};
    mamba_keys keys = defaults();
    keys.least_step = 0.001;
    keys.groups = 8;
    keys.shared_count = 1;
    DR_TRY(dr_json_required(config, needed));
    const json_t *blocks = json_object_get(config, "layers_block_type"),
                 *pattern = json_object_get(config, "hybrid_override_pattern");
    const int64_t layers = json_is_array(blocks) ? (int64_t)json_array_size(blocks) : (int64_t)json_string_length(pattern);
    if (layers == 0)
        return dr_fail(DR_ERROR_FORMAT,
                       "\"hybrid_override_pattern\" and \"layers_block_type\" are missing: one must say what each layer is");
    json_t *whole = json_copy((json_t *)config);
    dr_status status = whole && json_object_set_new(whole, "num_hidden_layers", json_integer(layers)) == 0
                           ? dr_transformers_read(whole, tables, &keys, description)
                           : dr_fail(DR_ERROR_MEMORY, "there is no memory for a configuration");
    description->tied = false; /* the class has a head of its own, whatever "tie_word_embeddings" is */
    if (status == DR_OK) description->final_norm = dr_published_rms(keys.norm_eps, 0);
    for (int64_t i = 0; status == DR_OK && i < description->count; i++)
        status = add_nemotron_layer(&keys, i, &description->layers[i]);
    json_decref(whole);
    return status;
}

/* ---- bamba, falcon_h1 -------------------------------------------------------------------------------------------- */

static const dr_key mamba_layer_keys[] = {
    SIZE("mamba_n_heads", mamba_heads),
    SIZE("mamba_d_head", mamba_head_size),
    SIZE("mamba_n_groups", groups),
    SIZE("mamba_d_state", state_size),
    DR_KEY_RANGE(WHOLE, mamba_keys, "mamba_d_conv", conv_size, 1, 1 << 10),
    TRUTH("mamba_conv_bias", conv_bias),
    TRUTH("mamba_proj_bias", projection_bias),
    ANY("time_step_limit", limit),
    DR_KEY(NUMBERS, mamba_keys, "attn_layer_indices", attention_layers),
    SIZE("mamba_d_ssm", inner),
};
static const char *const mamba_layer_idle[] = {
    "mamba_chunk_size", "mamba_expand", "time_step_min", "time_step_max", "time_step_floor", "time_step_rank", NULL};
TABLE(mamba_layer, mamba_layer_keys, mamba_layer_idle);

static dr_status add_attention(const mamba_keys *keys, dr_layer_description *layer) {
    dr_attention_description *attention = NULL;
    DR_TRY(dr_transformers_attention(&keys->hf, layer, &attention));
    attention->key_factor = keys->key;
    layer->mixer[layer->mixers - 1].input_scale = keys->attention_in;
    layer->mixer[layer->mixers - 1].output_scale = keys->attention_out;
    return DR_OK;
}

static dr_status read_bamba(const json_t *config, dr_description *description) {
    static const dr_key_table *const tables[] = {&mamba_layer,
                                                 &dr_transformers_base,
                                                 &dr_transformers_biases,
                                                 &dr_transformers_mlp_bias,
                                                 &dr_transformers_partial,
                                                 &dr_published_idle,
                                                 NULL};
    mamba_keys keys = defaults();
    DR_TRY(dr_transformers_read(config, tables, &keys, description));
    keys.norm_eps = keys.hf.norm_eps;
    for (int64_t i = 0; i < description->count; i++) {
        dr_layer_description *layer = &description->layers[i];
        dr_mixer_description *mixer = NULL;
        if (dr_transformers_has(keys.attention_layers, i)) {
            DR_TRY(add_attention(&keys, layer));
            dr_rotary_spectrum *spectrum = &layer->mixer[0].of.attention.spectrum;
            dr_published_turn(keys.hf.head_size / 2, keys.hf.head_size,
                              spectrum); /* the class turns a half, whatever the configuration says */
            const dr_status status = dr_rotary_check(spectrum);
            if (status != DR_OK) return dr_fail_in(DR_ERROR_FORMAT, "the rotary embedding");
        } else {
            DR_TRY(add_mamba(&keys, layer, &mixer));
            DR_TRY(read_limit(keys.limit, "time_step_limit", &mixer->of.mamba2));
        }
        DR_TRY(dr_transformers_pre_norms(&keys.hf, layer, 0));
        DR_TRY(dr_transformers_feed(&keys.hf, i, layer));
    }
    return DR_OK;
}

static dr_status read_factors(const json_t *array, const char *key, size_t count, double *factors) {
    for (size_t i = 0; i < count; i++) factors[i] = 1;
    if (!array) return DR_OK;
    if (json_array_size(array) != count) return dr_fail(DR_ERROR_FORMAT, "\"%s\" must be an array of %zu numbers", key, count);
    for (size_t i = 0; i < count; i++) DR_TRY(dr_keys_real(json_array_get(array, i), key, &factors[i]));
    return DR_OK;
}

static dr_status add_falcon_layer(const mamba_keys *keys, int64_t index, dr_layer_description *layer) {
    double factors[2];
    dr_mixer_description *mixer = NULL;
    DR_TRY(add_mamba(keys, layer, &mixer));
    mixer->input_scale = keys->mamba_in;
    mixer->output_scale = keys->mamba_out;
    dr_mamba2_description *mamba = &mixer->of.mamba2;
    mamba->output_bias = keys->output_bias; /* the class takes "mamba_proj_bias" for the other projection only */
    DR_TRY(read_limit(keys->limit, "time_step_limit", mamba));
    DR_TRY(read_factors(keys->mamba_factors, "ssm_multipliers", FACTORS, mamba->factor));
    DR_TRY(add_attention(keys, layer));
    DR_TRY(dr_transformers_pre_norms(&keys->hf, layer, 0));
    DR_TRY(dr_transformers_feed(&keys->hf, index, layer));
    DR_TRY(read_factors(keys->feed_factors, "mlp_multipliers", 2, factors));
    layer->feed.of.forward.gate_factor = factors[0];
    layer->feed.of.forward.down_factor = factors[1];
    return DR_OK;
}

static dr_status read_falcon(const json_t *config, dr_description *description) {
    static const dr_key own[] = {
        REAL("embedding_multiplier", embedding),
        REAL("lm_head_multiplier", head),
        REAL("attention_in_multiplier", attention_in),
        REAL("attention_out_multiplier", attention_out),
        REAL("ssm_in_multiplier", mamba_in),
        REAL("ssm_out_multiplier", mamba_out),
        REAL("key_multiplier", key),
        ANY("ssm_multipliers", mamba_factors),
        ANY("mlp_multipliers", feed_factors),
        TRUTH("mamba_rms_norm", gated_norm),
        TRUTH("mamba_norm_before_gate", norm_first),
        TRUTH("projectors_bias", output_bias),
        DR_KEY_MUST("attn_layer_indices", "null"),
    };
    TABLE(falcon, own, NULL);
    static const dr_key_table *const tables[] = {
        &falcon, &mamba_layer, &dr_transformers_base, &dr_transformers_biases, &dr_transformers_mlp_bias, &dr_published_idle,
        NULL};
    mamba_keys keys = defaults();
    keys.gated_norm = false;
    keys.norm_first = true;
    DR_TRY(dr_transformers_read(config, tables, &keys, description));
    keys.norm_eps = keys.hf.norm_eps;
    if (keys.inner > 0 && keys.inner != keys.mamba_heads * keys.mamba_head_size)
        return dr_fail(DR_ERROR_FORMAT,
                       "\"mamba_d_ssm\" is %" PRId64 "; it must be \"mamba_n_heads\" times \"mamba_d_head\", %" PRId64,
                       keys.inner, keys.mamba_heads * keys.mamba_head_size);
    description->embedding_scale = keys.embedding;
    description->logits_scale = keys.head;
    for (int64_t i = 0; i < description->count; i++) DR_TRY(add_falcon_layer(&keys, i, &description->layers[i]));
    return DR_OK;
}

const dr_published_type dr_published_mamba_types[] = {
    {.model_type = "mamba2", .read = read_mamba2},
    {.model_type = "nemotron_h", .read = read_nemotron},
    {.model_type = "bamba", .read = read_bamba},
    {.model_type = "falcon_h1", .read = read_falcon},
    {0},
};
