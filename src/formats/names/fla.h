/* Keys that configurations of flash-linear-attention share, and the skeleton of its models: recurrent layers of one kind, among
 * which some may have softmax attention ("attn"). */
#ifndef DR_FORMATS_NAMES_FLA_H
#define DR_FORMATS_NAMES_FLA_H

#include "formats/names/published.h"

typedef struct {
    int64_t vocabulary, hidden, layers, heads, value_heads, key_heads, head_size, width, window, residual_block, conv_size;
    double ratio, norm_eps, theta, expand_k, expand_v;
    bool tied, gated, short_conv, negative_eigenvalues, safe_gate, forget, query_norms, input_bias;
    const json_t *attention, *lower_bound, *clamp;
    const char *gate_function, *feature, *length, *activation;
    double squash_x, squash_eps, lambda_bias, least_ridge;
    int64_t steps, solver_steps, solver_steps_decoding;
    /* rwkv7 */
    int64_t decay_rank, rate_rank, value_rank, gate_rank;
    bool norm_bias, fused_norm;
    const json_t *value_sizes;
} dr_fla_keys;

#define SIZE(name, field)              DR_KEY_RANGE(WHOLE, dr_fla_keys, name, field, 1, 1 << 24)
#define REAL(name, field, least, most) DR_KEY_RANGE(REAL, dr_fla_keys, name, field, least, most)
#define TRUTH(name, field)             DR_KEY(TRUTH, dr_fla_keys, name, field)
#define TEXT(name, field)              DR_KEY(TEXT, dr_fla_keys, name, field)
#define ANY(name, field)               DR_KEY(ANY, dr_fla_keys, name, field)
#define TABLE(name, keys_, idle_)      static const dr_key_table name = {keys_, sizeof keys_ / sizeof keys_[0], idle_}

dr_fla_keys dr_fla_defaults(void);
/* int(whole part), as the publishers compute it */
int64_t dr_fla_part(int64_t whole, double part);

/* One softmax attention: of "attn", or of every layer of the transformer type. */
typedef struct {
    int64_t heads, key_heads, window;
    double theta;
    bool bias;
    const json_t *layers; /* numbers from 0 */
} dr_fla_attention;
/* norms: of queries and keys */
dr_status dr_fla_add_attention(int64_t hidden, const dr_fla_attention *keys, bool norms, dr_layer_description *layer);

/* Adds the mixer of a layer that "attn" does not name. */
typedef dr_status (*dr_fla_maker)(const dr_fla_keys *keys, int64_t index, dr_layer_description *layer);
/* Reads the keys of `own` and those of all types, which must not be missing, and makes the model. */
dr_status dr_fla_read(const json_t *config, const dr_key_table *own, const char *const *needed, dr_fla_keys *keys,
                      dr_fla_maker make, dr_description *description);

#endif
