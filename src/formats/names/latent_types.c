/* Hybrids of Kimi delta attention and multi-head latent attention with mixtures of experts: kimi_linear, bailing_hybrid. */
#include "base/error.h"
#include "formats/names/transformers.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define SIZE(name, field)  DR_KEY_RANGE(WHOLE, dr_transformers, name, field, 1, 1 << 24)
#define COUNT(name, field) DR_KEY_RANGE(WHOLE, dr_transformers, name, field, 0, 1 << 24)

static const dr_key keys[] = {
    SIZE("kv_lora_rank", rank),
    SIZE("q_lora_rank", query_rank),
    SIZE("qk_nope_head_dim", plain),
    COUNT("qk_rope_head_dim", turned),
    SIZE("v_head_dim", value_size),
    DR_KEY(ANY, dr_transformers, "layer_types", layer_types),
    DR_KEY(ANY, dr_transformers, "mlp_layer_types", mlp_layer_types),
    COUNT("first_k_dense_replace", dense_first),
    COUNT("num_experts", experts),
    COUNT("num_local_experts", experts),
    SIZE("num_experts_per_token", chosen),
    SIZE("num_experts_per_tok", chosen),
    COUNT("num_shared_experts", shared_experts),
    COUNT("n_shared_experts", shared_experts),
    SIZE("moe_intermediate_size", expert_width),
    SIZE("num_expert_group", groups),
    SIZE("n_group", groups),
    SIZE("topk_group", kept),
    DR_KEY(TRUTH, dr_transformers, "moe_renormalize", normalised),
    DR_KEY(TRUTH, dr_transformers, "norm_topk_prob", normalised),
    DR_KEY_RANGE(REAL, dr_transformers, "routed_scaling_factor", routed_scale, -1e9, 1e9),
    DR_KEY_RANGE(WHOLE, dr_transformers, "linear_conv_kernel_dim", conv_size, 1, 1 << 10),
    DR_KEY_RANGE(WHOLE, dr_transformers, "short_conv_kernel_size", short_conv_size, 1, 1 << 10),
    SIZE("linear_head_dim", linear_head_size),
    SIZE("linear_num_heads", linear_num_heads),
    DR_KEY_MUST("attention_bias", "false"),
    DR_KEY_MUST("moe_router_activation_func", "\"sigmoid\""),
    DR_KEY_MUST("score_function", "\"sigmoid\""),
    DR_KEY_MUST("moe_layer_freq", "1"),
};
/* qk_head_dim is the sum of two others; predictors of further tokens are not read */
static const char *const idle[] = {
    "model_max_length", "qk_head_dim", "num_nextn_predict_layers", "num_mtp_layers", "mtp_loss_scaling_factor",
    "use_grouped_topk", NULL};
static const dr_key_table latent = {keys, sizeof keys / sizeof keys[0], idle};

/* The classes have a head of their own, whatever "tie_word_embeddings" is. */
static dr_status read_common(const json_t *config, const dr_key_table *const *tables, dr_transformers *hf,
                             dr_description *description) {
    DR_TRY(dr_transformers_read(config, tables, hf, description));
    description->tied = false;
    if (hf->conv_size == 0) hf->conv_size = hf->short_conv_size > 0 ? hf->short_conv_size : 4;
    return DR_OK;
}

static void add_recurrent(const dr_transformers *hf, int64_t heads, int64_t size, int64_t rank, dr_layer_description *layer) {
    dr_recurrent_description *recurrent = &dr_published_mixer(layer, DR_MIXER_RECURRENT)->of.recurrent;
    *recurrent = dr_published_recurrent(DR_FAMILY_KDA, DR_READ_KEY, DR_WRITE_KEY);
    dr_published_recurrent_sizes(recurrent, heads, heads, size, size);
    recurrent->conv_size = hf->conv_size;
    recurrent->decay.rank = recurrent->gate_projection.rank = rank;
    recurrent->gate = DR_FUNCTION_SIGMOID;
    recurrent->norm_eps = hf->norm_eps;
    if (!hf->safe_gate) return;
    recurrent->gates.gate = DR_GATE_FORM_KDA_BOUNDED;
    recurrent->gates.lower_bound = hf->lower_bound;
}

static dr_status add_latent(const dr_transformers *hf, dr_layer_description *layer, dr_latent_attention_description **made) {
    DR_TRY(dr_published_need(hf->rank, "kv_lora_rank"));
    DR_TRY(dr_published_need(hf->plain, "qk_nope_head_dim"));
    DR_TRY(dr_published_need(hf->value_size, "v_head_dim"));
    dr_latent_attention_description *attention = &dr_published_mixer(layer, DR_MIXER_LATENT_ATTENTION)->of.latent;
    *attention = (dr_latent_attention_description){
        .heads = hf->heads,
        .plain = hf->plain,
        .turned = hf->turned,
        .value_size = hf->value_size,
        .query_rank = hf->query_rank,
        .rank = hf->rank,
        .scale = 1 / sqrt((double)(hf->plain + hf->turned)),
        .query_norm = dr_published_rms(1e-6, 0), /* the classes have this number, whatever rms_norm_eps is */
        .norm = dr_published_rms(1e-6, 0)};
    *made = attention;
    return DR_OK;
}

static dr_status is_sparse(const dr_transformers *hf, int64_t layer, bool *sparse) {
    *sparse = layer >= hf->dense_first;
    if (!hf->mlp_layer_types) return DR_OK;
    const char *text = json_string_value(json_array_get(hf->mlp_layer_types, (size_t)layer));
    if (!text || (strcmp(text, "dense") != 0 && strcmp(text, "sparse") != 0))
        return dr_fail(DR_ERROR_FORMAT, "\"mlp_layer_types\" must be an array of %" PRId64 " texts, \"dense\" or \"sparse\"",
                       hf->layers);
    *sparse = strcmp(text, "sparse") == 0;
    return DR_OK;
}

static dr_status add_feed(const dr_transformers *hf, int64_t index, dr_layer_description *layer) {
    bool sparse = false;
    DR_TRY(is_sparse(hf, index, &sparse));
    if (!sparse) {
        DR_TRY(dr_published_need(hf->width, "intermediate_size"));
        layer->feed = dr_published_swiglu(hf->width);
        return DR_OK;
    }
    DR_TRY(dr_published_need(hf->expert_width, "moe_intermediate_size"));
    DR_TRY(dr_published_need(hf->chosen, "num_experts_per_token"));
    const dr_experts_description experts = {.router = dr_transformers_sigmoid_router(hf),
                                            .corrected = true,
                                            .gated = true,
                                            .expert = dr_published_swiglu(hf->expert_width).of.forward,
                                            .shared = hf->expert_width * hf->shared_experts,
                                            .balance = hf->balance};
    return dr_transformers_add_experts(&experts, layer);
}

/* ---- kimi_linear: no rotary embedding -------------------------------------------------------------------------------------
 */

typedef struct {
    int64_t size, heads, conv;
    const json_t *recurrent, *full; /* numbers of layers, from 1 */
} kimi_linear_keys;

static const dr_key linear_keys[] = {
    DR_KEY_RANGE(WHOLE, kimi_linear_keys, "head_dim", size, 1, 1 << 24),
    DR_KEY_RANGE(WHOLE, kimi_linear_keys, "num_heads", heads, 1, 1 << 24),
    DR_KEY_RANGE(WHOLE, kimi_linear_keys, "short_conv_kernel_size", conv, 1, 1 << 10),
    DR_KEY(NUMBERS, kimi_linear_keys, "kda_layers", recurrent),
    DR_KEY(NUMBERS, kimi_linear_keys, "full_attn_layers", full),
};
static const dr_key_table of_linear = {linear_keys, sizeof linear_keys / sizeof linear_keys[0], NULL};

static dr_status read_kimi(const json_t *config, dr_description *description) {
    static const dr_key own[] = {DR_KEY(OBJECT, dr_transformers, "linear_attn_config", linear_config),
                                 DR_KEY_MUST("mla_use_nope", "true")};
    static const dr_key_table kimi = {own, sizeof own / sizeof own[0], NULL};
    static const dr_key_table *const tables[] = {&dr_transformers_base, &latent, &kimi, &dr_published_idle, NULL};
    static const dr_key_table *const linear[] = {&of_linear, NULL};
    dr_transformers hf = dr_transformers_defaults();
    hf.conv_size = 0;
    hf.norm_eps = 1e-5;
    hf.dense_first = 1;
    DR_TRY(read_common(config, tables, &hf, description));
    kimi_linear_keys dict = {.size = hf.linear_head_size, .heads = hf.linear_num_heads, .conv = hf.conv_size};
    if (hf.linear_config) {
        const dr_status status = dr_keys_read(hf.linear_config, linear, &dict);
        if (status != DR_OK) return dr_fail_in(status, "linear_attn_config");
    }
    hf.conv_size = dict.conv;
    DR_TRY(dr_published_need(dict.size, "linear_head_dim"));
    DR_TRY(dr_published_need(dict.heads, "linear_num_heads"));
    for (int64_t i = 0; i < description->count; i++) {
        dr_layer_description *layer = &description->layers[i];
        bool full = dict.full ? dr_transformers_has(dict.full, i + 1) : i > 0 && i % 4 == 0;
        if (hf.layer_types) {
            dr_transformers_layer kind = DR_TRANSFORMERS_FULL;
            DR_TRY(dr_transformers_layer_type(&hf, i, false, &kind));
            full = kind == DR_TRANSFORMERS_FULL;
        } else if (dict.full && full == dr_transformers_has(dict.recurrent, i + 1)) {
            return dr_fail(
                DR_ERROR_FORMAT,
                "\"linear_attn_config\": layer %" PRId64 " must be in one of \"kda_layers\" and \"full_attn_layers\"", i + 1);
        }
        dr_latent_attention_description *attention;
        if (full)
            DR_TRY(add_latent(&hf, layer, &attention));
        else
            add_recurrent(&hf, dict.heads, dict.size, dict.size, layer);
        DR_TRY(dr_transformers_pre_norms(&hf, layer, 0));
        DR_TRY(add_feed(&hf, i, layer));
    }
    return DR_OK;
}

/* ---- bailing_hybrid: rotary embedding of pairs, a gate for each head --------------------------------------------- */

static dr_status add_bailing_latent(const dr_transformers *hf, dr_layer_description *layer) {
    dr_latent_attention_description *attention = NULL;
    DR_TRY(add_latent(hf, layer, &attention));
    attention->gate = DR_GATED_BY_HEAD;
    attention->interleaved = true;
    DR_TRY(dr_published_spectrum(&hf->rope, hf->turned, &attention->rotary, &attention->spectrum));
    const dr_rotary_spectrum *spectrum = &attention->spectrum;
    if (spectrum->kind == DR_ROTARY_PLAIN || spectrum->mscale_dims == 0 || spectrum->stretch <= 1) return DR_OK;
    const double mscale = 0.1 * spectrum->mscale_dims * log(spectrum->stretch) + 1;
    attention->scale *= mscale * mscale;
    return DR_OK;
}

static dr_status read_bailing(const json_t *config, dr_description *description) {
    static const dr_key own[] = {
        SIZE("layer_group_size", group_size),
        DR_KEY(TRUTH, dr_transformers, "kda_safe_gate", safe_gate),
        DR_KEY_RANGE(REAL, dr_transformers, "kda_lower_bound", lower_bound, -1000, -1e-9),
    };
    static const dr_key_table bailing = {own, sizeof own / sizeof own[0], NULL};
    static const dr_key_table *const tables[] = {&dr_transformers_base, &latent, &bailing, &dr_published_idle, NULL};
    dr_transformers hf = dr_transformers_defaults();
    hf.conv_size = 0;
    hf.rope.theta = 6e6;
    hf.group_size = 6;
    hf.dense_first = 2;
    hf.safe_gate = true;
    const char *architecture = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    if (architecture && strcmp(architecture, "BailingHybridForCausalLM") != 0)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "\"architectures\" has \"%.60s\", which is another model of this type; "
                       "BailingHybridForCausalLM is supported",
                       architecture);
    DR_TRY(read_common(config, tables, &hf, description));
    const int64_t size = hf.linear_head_size > 0 ? hf.linear_head_size : hf.head_size; /* head_dim may be the rotary width */
    for (int64_t i = 0; i < description->count; i++) {
        dr_layer_description *layer = &description->layers[i];
        dr_transformers_layer kind = (i + 1) % hf.group_size == 0 ? DR_TRANSFORMERS_FULL : DR_TRANSFORMERS_LINEAR;
        DR_TRY(dr_transformers_layer_type(&hf, i, false, &kind));
        if (kind == DR_TRANSFORMERS_FULL)
            DR_TRY(add_bailing_latent(&hf, layer));
        else
            add_recurrent(&hf, hf.linear_num_heads > 0 ? hf.linear_num_heads : hf.heads, size, 0, layer);
        DR_TRY(dr_transformers_pre_norms(&hf, layer, 0));
        DR_TRY(add_feed(&hf, i, layer));
    }
    return DR_OK;
}

const dr_published_type dr_published_latent_types[] = {
    {.model_type = "kimi_linear", .read = read_kimi},
    {.model_type = "bailing_hybrid", .read = read_bailing},
    {0},
};
