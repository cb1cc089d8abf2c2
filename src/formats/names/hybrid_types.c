/* Hybrids of gated delta rule and softmax attention, as transformers writes them: qwen3_next, qwen3_5 and its mixtures, within
 * folders of images and text too, lara_mini, olmo_hybrid. */
#include "base/error.h"
#include "formats/names/transformers.h"

#include <inttypes.h>

static dr_status check_linear(const dr_transformers *hf) {
    if (hf->linear_heads < 1 || hf->linear_value_heads < 1 || hf->linear_key_size < 1 || hf->linear_value_size < 1)
        return dr_fail(DR_ERROR_FORMAT, "one of \"linear_num_key_heads\", \"linear_num_value_heads\", \"linear_key_head_dim\" "
                                        "and \"linear_value_head_dim\" is missing");
    if (hf->linear_value_heads % hf->linear_heads == 0) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT,
                   "\"linear_num_value_heads\" is %" PRId64 "; it must be a multiple of \"linear_num_key_heads\", %" PRId64,
                   hf->linear_value_heads, hf->linear_heads);
}

static dr_recurrent_description *add_recurrent(const dr_transformers *hf, dr_layer_description *layer, double norm_eps) {
    dr_recurrent_description *recurrent = &dr_published_mixer(layer, DR_MIXER_RECURRENT)->of.recurrent;
    *recurrent = dr_published_recurrent(DR_FAMILY_GDN, DR_READ_KEY, DR_WRITE_KEY);
    dr_published_recurrent_sizes(recurrent, hf->linear_heads, hf->linear_value_heads, hf->linear_key_size,
                                 hf->linear_value_size);
    recurrent->conv_size = hf->conv_size;
    recurrent->norm_eps = norm_eps;
    recurrent->gates.negative_eigenvalues = hf->negative_eigenvalues;
    return recurrent;
}

/* ---- Qwen ---------------------------------------------------------------------------------------------------------------- */

static const dr_key interval[] = {
    DR_KEY_RANGE(WHOLE, dr_transformers, "full_attention_interval", full_interval, 1, 1 << 20),
    DR_KEY(ANY, dr_transformers, "layer_types", layer_types),
};
static const char *const idle_of_qwen[] = {"mamba_ssm_dtype",       "num_nextn_predict_layers",
                                           "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings",
                                           "attn_output_gate",      NULL};
static const dr_key_table of_qwen = {interval, sizeof interval / sizeof interval[0], idle_of_qwen};

static dr_status read_qwen(const json_t *config, const dr_key_table *const *tables, dr_description *description) {
    dr_transformers hf = dr_transformers_defaults();
    hf.rope.partial = 0.25;
    hf.full_interval = 4;
    DR_TRY(dr_transformers_read(config, tables, &hf, description));
    description->final_norm.offset = 1;
    for (int64_t i = 0; i < description->count; i++) {
        dr_layer_description *layer = &description->layers[i];
        dr_transformers_layer kind = (i + 1) % hf.full_interval == 0 ? DR_TRANSFORMERS_FULL : DR_TRANSFORMERS_LINEAR;
        DR_TRY(dr_transformers_layer_type(&hf, i, false, &kind));
        if (kind == DR_TRANSFORMERS_LINEAR) {
            DR_TRY(check_linear(&hf));
            add_recurrent(&hf, layer, hf.norm_eps);
        } else {
            dr_attention_description *attention = NULL;
            DR_TRY(dr_transformers_attention(&hf, layer, &attention));
            attention->gate = DR_GATED_BY_ELEMENT;
            attention->query_norm = attention->key_norm = dr_published_rms(hf.norm_eps, 1);
        }
        DR_TRY(dr_transformers_pre_norms(&hf, layer, 1));
        DR_TRY(dr_transformers_feed(&hf, i, layer));
    }
    return DR_OK;
}

static const dr_key_table *const sparse_qwen[] = {&dr_transformers_base,    &dr_transformers_biases,
                                                  &dr_transformers_linear,  &dr_transformers_partial,
                                                  &dr_transformers_experts, &of_qwen,
                                                  &dr_published_idle,       NULL};

static dr_status read_sparse_qwen(const json_t *config, dr_description *description) {
    return read_qwen(config, sparse_qwen, description);
}

static dr_status read_dense_qwen(const json_t *config, dr_description *description) {
    /* keys of the sparse class, which the dense one may write and does not read */
    static const char *const idle[] = {"num_experts",
                                       "num_experts_per_tok",
                                       "moe_intermediate_size",
                                       "norm_topk_prob",
                                       "shared_expert_intermediate_size",
                                       "decoder_sparse_step",
                                       "mlp_only_layers",
                                       NULL};
    static const dr_key_table no_experts = {.idle = idle};
    static const dr_key_table *const tables[] = {&dr_transformers_base,
                                                 &dr_transformers_biases,
                                                 &dr_transformers_linear,
                                                 &dr_transformers_partial,
                                                 &no_experts,
                                                 &of_qwen,
                                                 &dr_published_idle,
                                                 NULL};
    return read_qwen(config, tables, description);
}

/* A model of images and text, of which the text is read; whether the head is tied stands at the top. */
typedef struct {
    const json_t *text;
    bool tied;
} nested;

static dr_status read_nested(const json_t *config, dr_description *description,
                             dr_status (*read)(const json_t *config, dr_description *description)) {
    static const dr_key keys[] = {DR_KEY(OBJECT, nested, "text_config", text),
                                  DR_KEY(TRUTH, nested, "tie_word_embeddings", tied)};
    static const char *const idle[] = {"vision_config",
                                       "image_token_id",
                                       "video_token_id",
                                       "vision_start_token_id",
                                       "vision_end_token_id",
                                       "language_model_only",
                                       NULL};
    static const dr_key_table top = {keys, sizeof keys / sizeof keys[0], idle};
    static const dr_key_table *const tables[] = {&top, &dr_published_idle, NULL};
    nested whole = {0};
    DR_TRY(dr_keys_read(config, tables, &whole));
    if (!json_is_object(whole.text)) return dr_fail(DR_ERROR_FORMAT, "the key \"text_config\" is missing");
    const dr_status status = read(whole.text, description);
    if (status != DR_OK) return dr_fail_in(status, "text_config");
    if (json_object_get(config, "tie_word_embeddings")) description->tied = whole.tied;
    return DR_OK;
}

static dr_status read_qwen3_5(const json_t *config, dr_description *description) {
    return read_nested(config, description, read_dense_qwen);
}

static dr_status read_qwen3_5_moe(const json_t *config, dr_description *description) {
    return read_nested(config, description, read_sparse_qwen);
}

/* ---- lara_mini: rotary embedding in the layers with a window only ---------------------------------------------------------
 */

static dr_status read_lara(const json_t *config, dr_description *description) {
    static const dr_key keys[] = {DR_KEY_MUST("attention_bias", "false")};
    static const dr_key_table plain = {keys, 1, NULL};
    static const dr_key_table *const tables[] = {
        &dr_transformers_base, &plain, &dr_transformers_linear, &dr_transformers_window, &dr_transformers_experts,
        &dr_published_idle,    NULL};
    static const dr_transformers_layer period[] = {DR_TRANSFORMERS_LINEAR, DR_TRANSFORMERS_SLIDING, DR_TRANSFORMERS_LINEAR,
                                                   DR_TRANSFORMERS_FULL, DR_TRANSFORMERS_SLIDING};
    dr_transformers hf = dr_transformers_defaults();
    hf.tied = true;
    hf.sliding_window = 512;
    DR_TRY(dr_transformers_read(config, tables, &hf, description));
    for (int64_t i = 0; i < description->count; i++) {
        dr_layer_description *layer = &description->layers[i];
        dr_transformers_layer kind = period[i % 5];
        DR_TRY(dr_transformers_layer_type(&hf, i, true, &kind));
        if (kind == DR_TRANSFORMERS_LINEAR) {
            DR_TRY(check_linear(&hf));
            add_recurrent(&hf, layer, hf.norm_eps);
        } else {
            dr_attention_description *attention = NULL;
            DR_TRY(dr_transformers_attention(&hf, layer, &attention));
            attention->query_norm = attention->key_norm = dr_published_rms(hf.norm_eps, 0);
            attention->rotary = attention->rotary && kind == DR_TRANSFORMERS_SLIDING;
            attention->window = kind == DR_TRANSFORMERS_SLIDING ? hf.sliding_window : 0;
        }
        DR_TRY(dr_transformers_pre_norms(&hf, layer, 0));
        DR_TRY(dr_transformers_feed(&hf, i, layer));
        layer->feed.of.experts.shared_gate = false;
    }
    return DR_OK;
}

/* ---- olmo_hybrid: attention layers have their norms behind, and norms of whole queries and keys ----------------------------
 */

static dr_status read_olmo(const json_t *config, dr_description *description) {
    static const dr_key keys[] = {DR_KEY(TRUTH, dr_transformers, "linear_allow_neg_eigval", negative_eigenvalues)};
    static const char *const idle[] = {"linear_a_log_min", "linear_a_log_max",     "linear_dt_min",
                                       "linear_dt_max",    "linear_dt_init_floor", NULL};
    static const dr_key_table own = {keys, 1, idle};
    static const dr_key_table *const tables[] = {
        &dr_transformers_base,   &dr_transformers_layer_types, &own, &dr_transformers_linear,
        &dr_transformers_biases, &dr_published_idle,           NULL};
    dr_transformers hf = dr_transformers_defaults();
    hf.negative_eigenvalues = true;
    DR_TRY(dr_transformers_read(config, tables, &hf, description));
    for (int64_t i = 0; i < description->count; i++) {
        dr_layer_description *layer = &description->layers[i];
        const bool full = (i + 1) % 4 == 0 || (hf.layers < 4 && i == hf.layers - 1);
        dr_transformers_layer kind = full ? DR_TRANSFORMERS_FULL : DR_TRANSFORMERS_LINEAR;
        DR_TRY(dr_transformers_layer_type(&hf, i, false, &kind));
        DR_TRY(dr_transformers_feed(&hf, i, layer));
        if (kind == DR_TRANSFORMERS_LINEAR) {
            DR_TRY(check_linear(&hf));
            add_recurrent(&hf, layer, 1e-5); /* the class has this number, whatever rms_norm_eps is */
            DR_TRY(dr_transformers_pre_norms(&hf, layer, 0));
            continue;
        }
        dr_attention_description *attention = NULL;
        DR_TRY(dr_transformers_attention(&hf, layer, &attention));
        attention->query_norm = attention->key_norm = dr_published_rms(hf.norm_eps, 0);
        attention->norm_whole = true;
        layer->mixer_after = layer->feed_after = dr_published_rms(hf.norm_eps, 0);
    }
    return DR_OK;
}

const dr_published_type dr_published_hybrid_types[] = {
    {.model_type = "qwen3_next", .read = read_sparse_qwen},
    {.model_type = "qwen3_5_text", .read = read_dense_qwen},
    {.model_type = "qwen3_5_moe_text", .read = read_sparse_qwen},
    {.model_type = "qwen3_5", .read = read_qwen3_5},
    {.model_type = "qwen3_5_moe", .read = read_qwen3_5_moe},
    {.model_type = "lara_mini", .read = read_lara},
    {.model_type = "olmo_hybrid", .read = read_olmo},
    {0},
};
