/* Types with softmax attention in every layer, as transformers writes them: llama, mistral, qwen2, qwen3, qwen3_moe. */
#include "base/error.h"
#include "formats/names/transformers.h"

typedef struct {
    bool query_norms;   /* of queries and keys, head by head */
    bool input_biases;  /* of query, key and value, always */
    bool window_always; /* sliding_window holds for every layer */
} variant;

static dr_status read_model(const json_t *config, const dr_key_table *const *tables, const variant *how,
                            dr_description *description) {
    dr_transformers hf = dr_transformers_defaults();
    DR_TRY(dr_transformers_read(config, tables, &hf, description));
    for (int64_t i = 0; i < description->count; i++) {
        dr_layer_description *layer = &description->layers[i];
        dr_attention_description *attention = NULL;
        DR_TRY(dr_transformers_attention(&hf, layer, &attention));
        if (how->input_biases) attention->query_bias = attention->key_bias = attention->value_bias = true;
        if (how->query_norms) attention->query_norm = attention->key_norm = dr_published_rms(hf.norm_eps, 0);
        const bool by_number = how->window_always || i >= hf.max_window_layers;
        dr_transformers_layer kind = by_number ? DR_TRANSFORMERS_SLIDING : DR_TRANSFORMERS_FULL;
        if (!how->window_always) DR_TRY(dr_transformers_layer_type(&hf, i, true, &kind));
        if (kind == DR_TRANSFORMERS_LINEAR)
            return dr_fail(DR_ERROR_UNSUPPORTED, "\"layer_types\" has linear_attention, which %s does not have",
                           description->model_type);
        if (kind == DR_TRANSFORMERS_SLIDING && (how->window_always || hf.use_sliding_window))
            attention->window = hf.sliding_window;
        DR_TRY(dr_transformers_pre_norms(&hf, layer, 0));
        DR_TRY(dr_transformers_feed(&hf, i, layer));
    }
    return DR_OK;
}

static dr_status read_llama(const json_t *config, dr_description *description) {
    static const dr_key_table *const tables[] = {&dr_transformers_base, &dr_transformers_biases, &dr_transformers_mlp_bias,
                                                 &dr_published_idle, NULL};
    return read_model(config, tables, &(variant){0}, description);
}

static dr_status read_mistral(const json_t *config, dr_description *description) {
    static const dr_key_table *const tables[] = {&dr_transformers_base, &dr_transformers_window, &dr_published_idle, NULL};
    return read_model(config, tables, &(variant){.window_always = true}, description);
}

static dr_status read_qwen2(const json_t *config, dr_description *description) {
    static const dr_key_table *const tables[] = {&dr_transformers_base, &dr_transformers_window, &dr_published_idle, NULL};
    return read_model(config, tables, &(variant){.input_biases = true}, description);
}

static dr_status read_qwen3(const json_t *config, dr_description *description) {
    static const dr_key_table *const tables[] = {&dr_transformers_base, &dr_transformers_window, &dr_transformers_biases,
                                                 &dr_published_idle, NULL};
    return read_model(config, tables, &(variant){.query_norms = true}, description);
}

static dr_status read_qwen3_moe(const json_t *config, dr_description *description) {
    static const dr_key no_window[] = {DR_KEY_MUST("use_sliding_window", "false")};
    static const char *const idle[] = {"sliding_window", "max_window_layers", NULL};
    static const dr_key_table full = {no_window, 1, idle};
    static const dr_key_table *const tables[] = {
        &dr_transformers_base, &full, &dr_transformers_biases, &dr_transformers_experts, &dr_published_idle, NULL};
    return read_model(config, tables, &(variant){.query_norms = true}, description);
}

const dr_published_type dr_published_attention_types[] = {
    {.model_type = "llama", .read = read_llama},         {.model_type = "mistral", .read = read_mistral},
    {.model_type = "qwen2", .read = read_qwen2},         {.model_type = "qwen3", .read = read_qwen3},
    {.model_type = "qwen3_moe", .read = read_qwen3_moe}, {0},
};
