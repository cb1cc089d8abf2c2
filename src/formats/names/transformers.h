/* Keys that configurations of transformers share, group by group, and the parts of layers that follow from them. */
#ifndef DR_FORMATS_NAMES_TRANSFORMERS_H
#define DR_FORMATS_NAMES_TRANSFORMERS_H

#include "formats/names/published.h"

typedef struct {
    int64_t vocabulary, hidden, layers, heads, key_heads, head_size, width;
    double norm_eps;
    bool tied, attention_bias, mlp_bias;
    dr_published_rope rope;
    const json_t *layer_types; /* NULL: as the type has it */
    int64_t sliding_window, max_window_layers, full_interval;
    bool use_sliding_window;
    /* experts */
    int64_t experts, chosen, expert_width, shared_width, sparse_step, dense_first;
    const json_t *dense_layers, *mlp_layer_types;
    bool normalised;
    double balance; /* factor of the balancing loss in training */
    /* experts chosen by sigmoid scores and groups */
    int64_t groups, kept, shared_experts;
    double routed_scale;
    /* linear attention */
    int64_t linear_heads, linear_value_heads, linear_key_size, linear_value_size, conv_size, short_conv_size;
    bool negative_eigenvalues;
    /* latent attention */
    int64_t rank, query_rank, plain, turned, value_size;
    /* Kimi delta attention */
    const json_t *linear_config;
    int64_t linear_head_size, linear_num_heads, group_size;
    bool safe_gate;
    double lower_bound;
} dr_transformers;

extern const dr_key_table dr_transformers_base; /* sizes, norm, tied head, rotary embedding */
extern const dr_key_table dr_transformers_biases, dr_transformers_mlp_bias, dr_transformers_window, dr_transformers_experts,
    dr_transformers_linear, dr_transformers_partial, dr_transformers_layer_types;

dr_transformers dr_transformers_defaults(void);
/* Reads into what begins with a dr_transformers, checks what every model needs, and makes the description's layers. */
dr_status dr_transformers_read(const json_t *config, const dr_key_table *const *tables, void *keys,
                               dr_description *description);

typedef enum { DR_TRANSFORMERS_FULL, DR_TRANSFORMERS_SLIDING, DR_TRANSFORMERS_LINEAR } dr_transformers_layer;
/* Of "layer_types", where it is there; else *kind stays. windows: whether the type has layers with a window. */
dr_status dr_transformers_layer_type(const dr_transformers *hf, int64_t layer, bool windows, dr_transformers_layer *kind);

/* A softmax attention of the sizes above with its rotary embedding and biases, as the layer's next mixer. */
dr_status dr_transformers_attention(const dr_transformers *hf, dr_layer_description *layer, dr_attention_description **made);
dr_status dr_transformers_pre_norms(const dr_transformers *hf, dr_layer_description *layer, double offset);
/* The feed-forward of a layer: experts where "num_experts" and the keys beside it put them, with softmax scores; else gated. */
dr_status dr_transformers_feed(const dr_transformers *hf, int64_t index, dr_layer_description *layer);
/* The router with sigmoid scores, in groups, of the keys above. */
dr_router dr_transformers_sigmoid_router(const dr_transformers *hf);
/* These experts as the layer's feed-forward; DR_ERROR_FORMAT if their router cannot be. */
dr_status dr_transformers_add_experts(const dr_experts_description *mixture, dr_layer_description *layer);
/* Whether an array of numbers has this one. NULL has none. */
bool dr_transformers_has(const json_t *array, int64_t number);

#endif
