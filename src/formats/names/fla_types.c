/* Types of flash-linear-attention: recurrent layers of one kind, among which some layers may have softmax attention ("attn").
 */
#include "base/error.h"
#include "formats/names/published.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

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
} fla_keys;

#define SIZE(name, field)              DR_KEY_RANGE(WHOLE, fla_keys, name, field, 1, 1 << 30)
#define REAL(name, field, least, most) DR_KEY_RANGE(REAL, fla_keys, name, field, least, most)
#define TRUTH(name, field)             DR_KEY(TRUTH, fla_keys, name, field)
#define TEXT(name, field)              DR_KEY(TEXT, fla_keys, name, field)
#define ANY(name, field)               DR_KEY(ANY, fla_keys, name, field)
#define TABLE(name, keys_, idle_)      static const dr_key_table name = {keys_, sizeof keys_ / sizeof keys_[0], idle_}

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
    DR_KEY_RANGE(WHOLE, fla_keys, "conv_size", conv_size, 1, 1 << 10),
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

static fla_keys defaults(void) {
    return (fla_keys){.ratio = 4,
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

/* int(whole part), as the publishers compute it */
static int64_t part_of(int64_t whole, double part) {
    return (int64_t)((double)whole * part);
}

/* ---- softmax attention in some layers
 * ------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t heads, key_heads, window;
    double theta;
    bool bias;
    const json_t *layers;
} attention_keys;

static dr_status read_attention(const json_t *object, attention_keys *keys) {
    static const dr_key own[] = {
        DR_KEY_RANGE(WHOLE, attention_keys, "num_heads", heads, 1, 1 << 30),
        DR_KEY_RANGE(WHOLE, attention_keys, "num_kv_heads", key_heads, 1, 1 << 30),
        DR_KEY_RANGE(WHOLE, attention_keys, "window_size", window, 1, 1 << 30),
        DR_KEY_RANGE(REAL, attention_keys, "rope_theta", theta, 1, 1e300),
        DR_KEY(TRUTH, attention_keys, "qkv_bias", bias),
        DR_KEY(ANY, attention_keys, "layers", layers),
    };
    TABLE(table, own, NULL);
    static const dr_key_table *const tables[] = {&table, NULL};
    static const char *const needed[] = {"layers", "num_heads", NULL};
    *keys = (attention_keys){.theta = 10000};
    if (!json_is_object(object)) return dr_fail(DR_ERROR_FORMAT, "\"attn\" must be an object, or an array of objects");
    dr_status status = dr_json_required(object, needed);
    if (status == DR_OK) status = dr_keys_read(object, tables, keys);
    return status == DR_OK ? DR_OK : dr_fail_in(status, "attn");
}

static bool has_layer(const json_t *layers, int64_t layer) {
    for (size_t i = 0; i < json_array_size(layers); i++)
        if (json_is_integer(json_array_get(layers, i)) && json_integer_value(json_array_get(layers, i)) == layer) return true;
    return false;
}

/* The object of "attn" that has a layer, or *found false. */
static dr_status find_attention(const json_t *attention, int64_t layer, attention_keys *keys, bool *found) {
    *found = false;
    if (!attention) return DR_OK;
    const size_t count = json_is_array(attention) ? json_array_size(attention) : 1;
    for (size_t i = 0; i < count && !*found; i++) {
        DR_TRY(read_attention(json_is_array(attention) ? json_array_get(attention, i) : attention, keys));
        *found = has_layer(keys->layers, layer);
    }
    return DR_OK;
}

static dr_status add_attention(int64_t hidden, const attention_keys *keys, bool norms, dr_layer_description *layer) {
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

/* ---- the skeleton of all types
 * ----------------------------------------------------------------------------------------------------- */

typedef dr_status (*mixer_maker)(const fla_keys *keys, int64_t index, dr_layer_description *layer);

static dr_status make_model(const fla_keys *keys, mixer_maker make, dr_description *description) {
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
    }
    const int64_t width = (part_of(keys->hidden, keys->ratio * 2 / 3) + 255) / 256 * 256;
    for (int64_t i = 0; i < description->count; i++) {
        dr_layer_description *layer = &description->layers[i];
        attention_keys attention;
        bool softmax = false;
        DR_TRY(find_attention(keys->attention, i, &attention, &softmax));
        DR_TRY(softmax ? add_attention(keys->hidden, &attention, false, layer) : make(keys, i, layer));
        layer->feed = dr_published_swiglu(keys->width > 0 ? keys->width : width);
        layer->mixer_norm = layer->feed_norm = norm;
    }
    return DR_OK;
}

static dr_status read_model(const json_t *config, const dr_key_table *own, fla_keys *keys, mixer_maker make,
                            dr_description *description) {
    const dr_key_table *const tables[] = {own, &common, &initial, &dr_published_idle, NULL};
    static const char *const needed[] = {"hidden_size", "num_hidden_layers", "num_heads", "vocab_size", NULL};
    DR_TRY(dr_json_required(config, needed));
    DR_TRY(dr_keys_read(config, tables, keys));
    return make_model(keys, make, description);
}

static dr_status need_head_size(const json_t *config) {
    static const char *const needed[] = {"head_dim", NULL};
    return dr_json_required(config, needed);
}

/* What a recurrent layer has of the keys of all types. */
static dr_recurrent_description *add_recurrent(const fla_keys *keys, dr_layer_description *layer,
                                               const dr_recurrent_description *like) {
    dr_recurrent_description *recurrent = &dr_published_mixer(layer, DR_MIXER_RECURRENT)->of.recurrent;
    *recurrent = *like;
    recurrent->conv_size = keys->short_conv ? keys->conv_size : 0;
    recurrent->gated = keys->gated;
    recurrent->norm_eps = keys->norm_eps;
    recurrent->gates.negative_eigenvalues = keys->negative_eigenvalues;
    return recurrent;
}

static dr_status check_heads(const dr_recurrent_description *recurrent, bool equal) {
    const bool fits = equal ? recurrent->value_heads == recurrent->heads : recurrent->value_heads % recurrent->heads == 0;
    if (!fits)
        return dr_fail(equal ? DR_ERROR_UNSUPPORTED : DR_ERROR_FORMAT,
                       "\"num_v_heads\" is %" PRId64 "; it must be %s \"num_heads\", %" PRId64, recurrent->value_heads,
                       equal ? "equal to" : "a multiple of", recurrent->heads);
    if (recurrent->key_size >= 1 && recurrent->value_size >= 1) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "the heads would have %" PRId64 " key and %" PRId64 " value channels", recurrent->key_size,
                   recurrent->value_size);
}

static void size_by_head(const fla_keys *keys, dr_recurrent_description *recurrent) {
    dr_published_recurrent_sizes(recurrent, keys->heads, keys->value_heads > 0 ? keys->value_heads : keys->heads,
                                 keys->head_size, part_of(keys->head_size, keys->expand_v));
}

static dr_status size_by_model(const fla_keys *keys, dr_recurrent_description *recurrent) {
    dr_published_recurrent_sizes(recurrent, keys->heads, keys->heads, part_of(keys->hidden, keys->expand_k) / keys->heads,
                                 part_of(keys->hidden, keys->expand_v) / keys->heads);
    return check_heads(recurrent, true);
}

#define BY_HEAD  SIZE("head_dim", head_size), REAL("expand_v", expand_v, 1e-9, 1e9), SIZE("num_v_heads", value_heads)
#define NEGATIVE TRUTH("allow_neg_eigval", negative_eigenvalues)
#define USE_GATE TRUTH("use_gate", gated)
#define SQUASH   REAL("squash_x", squash_x, 1, 2), REAL("squash_eps", squash_eps, 1e-300, 1e300)
#define BOUND    TRUTH("safe_gate", safe_gate), ANY("lower_bound", lower_bound)

/* ---- delta_net
 * ---------------------------------------------------------------------------------------------------------------------- */

static dr_status make_delta_net(const fla_keys *keys, int64_t index, dr_layer_description *layer) {
    static const struct {
        const char *name;
        dr_function function;
    } functions[] = {
        {"silu", DR_FUNCTION_SILU}, {"relu", DR_FUNCTION_RELU}, {"elu", DR_FUNCTION_ELU_1}, {"identity", DR_FUNCTION_IDENTITY}};
    (void)index;
    dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_DELTA_NET, DR_READ_KEY, DR_WRITE_KEY);
    dr_recurrent_description *recurrent = add_recurrent(keys, layer, &like);
    bool known = !keys->activation;
    for (size_t i = 0; !known && i < sizeof functions / sizeof functions[0]; i++) {
        known = strcmp(keys->activation, functions[i].name) == 0;
        if (known) recurrent->feature = functions[i].function;
    }
    if (!known)
        return dr_fail(DR_ERROR_UNSUPPORTED, "\"qk_activation\" is \"%.40s\"; silu, relu, elu and identity are supported",
                       keys->activation);
    if (keys->length && strcmp(keys->length, "sum") == 0)
        recurrent->length = DR_LENGTH_SUM;
    else if (keys->length && strcmp(keys->length, "l2") != 0)
        return dr_fail(DR_ERROR_UNSUPPORTED, "\"qk_norm\" is \"%.40s\"; l2 and sum are supported", keys->length);
    return size_by_model(keys, recurrent);
}

static dr_status read_delta_net(const json_t *config, dr_description *description) {
    static const dr_key own[] = {REAL("expand_k", expand_k, 1e-9, 1e9),
                                 REAL("expand_v", expand_v, 1e-9, 1e9),
                                 USE_GATE,
                                 NEGATIVE,
                                 TEXT("qk_activation", activation),
                                 TEXT("qk_norm", length),
                                 DR_KEY_MUST("use_beta", "true")};
    TABLE(table, own, NULL);
    fla_keys keys = defaults();
    keys.gated = false;
    return read_model(config, &table, &keys, make_delta_net, description);
}

/* ---- gated_deltanet, comba, gated_deltaproduct, qdelta, with and without a preconditioner
 * --------------------------------------------- */

static dr_status set_gate_function(const fla_keys *keys, dr_recurrent_description *recurrent) {
    const char *name = keys->gate_function;
    if (!name || strcmp(name, "swish") == 0 || strcmp(name, "silu") == 0) return DR_OK;
    if (strcmp(name, "sigmoid") != 0)
        return dr_fail(DR_ERROR_UNSUPPORTED, "\"output_gate_activation\" is \"%.40s\"; swish, silu and sigmoid are supported",
                       name);
    recurrent->gate = DR_FUNCTION_SIGMOID;
    return DR_OK;
}

static dr_status make_gated_delta_net(const fla_keys *keys, int64_t index, dr_layer_description *layer) {
    (void)index;
    dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_GDN, DR_READ_KEY, DR_WRITE_KEY);
    dr_recurrent_description *recurrent = add_recurrent(keys, layer, &like);
    size_by_head(keys, recurrent);
    DR_TRY(set_gate_function(keys, recurrent));
    return check_heads(recurrent, false);
}

static dr_status read_gated_delta_net(const json_t *config, dr_description *description) {
    static const dr_key own[] = {BY_HEAD, USE_GATE, NEGATIVE, TEXT("output_gate_activation", gate_function)};
    TABLE(table, own, NULL);
    fla_keys keys = defaults();
    keys.expand_v = 2;
    DR_TRY(need_head_size(config));
    return read_model(config, &table, &keys, make_gated_delta_net, description);
}

static dr_status make_delta_product(const fla_keys *keys, int64_t index, dr_layer_description *layer) {
    DR_TRY(make_gated_delta_net(keys, index, layer));
    dr_rule *rule = &layer->mixer[0].of.recurrent.rule;
    rule->repeat = (int)keys->steps;
    if (!keys->forget) rule->decay = DR_DECAY_NONE;
    return DR_OK;
}

static dr_status read_delta_product(const json_t *config, dr_description *description) {
    static const dr_key own[] = {BY_HEAD, NEGATIVE, TRUTH("use_output_gate", gated), TRUTH("use_forget_gate", forget),
                                 DR_KEY_RANGE(WHOLE, fla_keys, "num_householder", steps, 1, 64)};
    TABLE(table, own, NULL);
    fla_keys keys = defaults();
    keys.expand_v = 2;
    DR_TRY(need_head_size(config));
    return read_model(config, &table, &keys, make_delta_product, description);
}

static dr_status make_comba(const fla_keys *keys, int64_t index, dr_layer_description *layer) {
    (void)index;
    dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_COMBA, DR_READ_FEEDBACK, DR_WRITE_KEY);
    dr_recurrent_description *recurrent = add_recurrent(keys, layer, &like);
    size_by_head(keys, recurrent);
    recurrent->gate = DR_FUNCTION_SIGMOID;
    return check_heads(recurrent, true);
}

static dr_status read_comba(const json_t *config, dr_description *description) {
    static const dr_key own[] = {BY_HEAD, TRUTH("use_output_gate", gated), DR_KEY_MUST("use_output_correction", "true"),
                                 DR_KEY_MUST("use_inner_decay", "true")};
    TABLE(table, own, NULL);
    fla_keys keys = defaults();
    keys.expand_v = 2;
    DR_TRY(need_head_size(config));
    return read_model(config, &table, &keys, make_comba, description);
}

static dr_status make_qdelta(const fla_keys *keys, int64_t index, dr_layer_description *layer) {
    (void)index;
    dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_QDELTA, DR_READ_KEY_PLUS_QUERY, DR_WRITE_KEY);
    dr_recurrent_description *recurrent = add_recurrent(keys, layer, &like);
    size_by_head(keys, recurrent);
    recurrent->lambda_bias = keys->lambda_bias;
    return check_heads(recurrent, false);
}

static dr_status read_qdelta(const json_t *config, dr_description *description) {
    static const dr_key own[] = {BY_HEAD, USE_GATE, NEGATIVE, REAL("lamb_bias", lambda_bias, -100, 100)};
    TABLE(table, own, NULL);
    fla_keys keys = defaults();
    keys.expand_v = 2;
    DR_TRY(need_head_size(config));
    return read_model(config, &table, &keys, make_qdelta, description);
}

static void set_squash(const fla_keys *keys, dr_recurrent_description *recurrent) {
    recurrent->rule.squash.x = keys->squash_x;
    recurrent->rule.squash.eps = keys->squash_eps;
}

static dr_status make_precond_gated(const fla_keys *keys, int64_t index, dr_layer_description *layer) {
    (void)index;
    dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_PGDN, DR_READ_KEY, DR_WRITE_PRECONDITIONED);
    dr_recurrent_description *recurrent = add_recurrent(keys, layer, &like);
    size_by_head(keys, recurrent);
    set_squash(keys, recurrent);
    return check_heads(recurrent, false);
}

static dr_status make_precond_delta(const fla_keys *keys, int64_t index, dr_layer_description *layer) {
    (void)index;
    dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_DELTA_NET, DR_READ_KEY, DR_WRITE_PRECONDITIONED);
    dr_recurrent_description *recurrent = add_recurrent(keys, layer, &like);
    size_by_head(keys, recurrent);
    set_squash(keys, recurrent);
    return check_heads(recurrent, false);
}

static const dr_key precond_keys[] = {BY_HEAD, USE_GATE, NEGATIVE, SQUASH};
TABLE(precond, precond_keys, NULL);

static dr_status read_precond_gated(const json_t *config, dr_description *description) {
    fla_keys keys = defaults();
    keys.expand_v = 2;
    DR_TRY(need_head_size(config));
    return read_model(config, &precond, &keys, make_precond_gated, description);
}

static dr_status read_precond_delta(const json_t *config, dr_description *description) {
    fla_keys keys = defaults();
    DR_TRY(need_head_size(config));
    return read_model(config, &precond, &keys, make_precond_delta, description);
}

/* ---- kda, precond_kda, gdn2
 * ----------------------------------------------------------------------------------------------------------- */

static dr_status make_channel_decay(const fla_keys *keys, const dr_recurrent_description *like, bool equal_heads,
                                    dr_layer_description *layer) {
    dr_recurrent_description *recurrent = add_recurrent(keys, layer, like);
    size_by_head(keys, recurrent);
    recurrent->gate = DR_FUNCTION_SIGMOID;
    recurrent->decay.rank = recurrent->gate_projection.rank = recurrent->value_size;
    recurrent->gate_projection.bias = true;
    if (keys->lower_bound) {
        recurrent->gates.gate = DR_GATE_FORM_KDA_BOUNDED;
        recurrent->gates.lower_bound = json_number_value(keys->lower_bound);
        if (!(recurrent->gates.lower_bound < 0 && recurrent->gates.lower_bound >= -1000))
            return dr_fail(DR_ERROR_FORMAT, "\"lower_bound\" must be a number below 0 and at least -1000");
    } else if (keys->safe_gate) {
        return dr_fail(DR_ERROR_FORMAT, "\"safe_gate\" is true without \"lower_bound\"; it needs one, such as -5");
    }
    return check_heads(recurrent, equal_heads);
}

static dr_status make_kda(const fla_keys *keys, int64_t index, dr_layer_description *layer) {
    (void)index;
    const dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_KDA, DR_READ_KEY, DR_WRITE_KEY);
    return make_channel_decay(keys, &like, false, layer);
}

static dr_status make_gdn2(const fla_keys *keys, int64_t index, dr_layer_description *layer) {
    (void)index;
    const dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_KDA, DR_READ_GATED_KEY, DR_WRITE_KEY);
    return make_channel_decay(keys, &like, true, layer);
}

static dr_status make_precond_kda(const fla_keys *keys, int64_t index, dr_layer_description *layer) {
    (void)index;
    const dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_PKDA, DR_READ_KEY, DR_WRITE_PRECONDITIONED);
    DR_TRY(make_channel_decay(keys, &like, true, layer));
    set_squash(keys, &layer->mixer[0].of.recurrent);
    return DR_OK;
}

static const dr_key kda_keys[] = {BY_HEAD, NEGATIVE, BOUND};
TABLE(kda_table, kda_keys, NULL);
static const dr_key gdn2_keys[] = {BY_HEAD, NEGATIVE};
TABLE(gdn2_table, gdn2_keys, NULL);
static const dr_key precond_kda_keys[] = {BY_HEAD, NEGATIVE, BOUND, SQUASH};
TABLE(precond_kda_table, precond_kda_keys, NULL);

static dr_status read_kda(const json_t *config, dr_description *description) {
    fla_keys keys = defaults();
    DR_TRY(need_head_size(config));
    return read_model(config, &kda_table, &keys, make_kda, description);
}

static dr_status read_gdn2(const json_t *config, dr_description *description) {
    fla_keys keys = defaults();
    DR_TRY(need_head_size(config));
    return read_model(config, &gdn2_table, &keys, make_gdn2, description);
}

static dr_status read_precond_kda(const json_t *config, dr_description *description) {
    fla_keys keys = defaults();
    DR_TRY(need_head_size(config));
    return read_model(config, &precond_kda_table, &keys, make_precond_kda, description);
}

/* ---- gla, retnet
 * ------------------------------------------------------------------------------------------------------------------------ */

static dr_status check_key_heads(const fla_keys *keys) {
    if (keys->key_heads == 0 || keys->key_heads == keys->heads) return DR_OK;
    return dr_fail(DR_ERROR_UNSUPPORTED, "\"num_kv_heads\" is %" PRId64 "; only \"num_heads\", %" PRId64 ", is supported",
                   keys->key_heads, keys->heads);
}

static dr_status make_gla(const fla_keys *keys, int64_t index, dr_layer_description *layer) {
    (void)index;
    dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_GLA, DR_READ_NONE, DR_WRITE_KEY);
    dr_recurrent_description *recurrent = add_recurrent(keys, layer, &like);
    recurrent->feature = keys->short_conv ? DR_FUNCTION_SILU : DR_FUNCTION_IDENTITY;
    recurrent->value_conv = keys->short_conv;
    recurrent->length = DR_LENGTH_FREE;
    recurrent->decay = (dr_projection_description){.rank = 16, .bias = true};
    recurrent->decay_factor = 1.0 / 16;
    if (keys->clamp) recurrent->least_decay = json_number_value(keys->clamp);
    if (keys->clamp && !(json_is_number(keys->clamp) && recurrent->least_decay < 0))
        return dr_fail(DR_ERROR_FORMAT, "\"clamp_min\" must be a number below 0, or null");
    DR_TRY(check_key_heads(keys));
    return size_by_model(keys, recurrent);
}

static dr_status read_gla(const json_t *config, dr_description *description) {
    static const dr_key own[] = {REAL("expand_k", expand_k, 1e-9, 1e9),
                                 REAL("expand_v", expand_v, 1e-9, 1e9),
                                 SIZE("num_kv_heads", key_heads),
                                 TRUTH("use_output_gate", gated),
                                 ANY("clamp_min", clamp),
                                 DR_KEY_MUST("feature_map", "null"),
                                 DR_KEY_MUST("use_gk", "true"),
                                 DR_KEY_MUST("use_gv", "false")};
    TABLE(table, own, NULL);
    fla_keys keys = defaults();
    keys.expand_k = 0.5;
    keys.short_conv = false;
    return read_model(config, &table, &keys, make_gla, description);
}

static dr_status make_retnet(const fla_keys *keys, int64_t index, dr_layer_description *layer) {
    (void)index;
    dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_RETNET, DR_READ_NONE, DR_WRITE_KEY);
    dr_recurrent_description *recurrent = add_recurrent(keys, layer, &like);
    recurrent->feature = keys->short_conv ? DR_FUNCTION_SILU : DR_FUNCTION_IDENTITY;
    recurrent->value_conv = keys->short_conv;
    recurrent->length = DR_LENGTH_FREE;
    DR_TRY(check_key_heads(keys));
    DR_TRY(size_by_model(keys, recurrent));
    recurrent->rotary = true;
    recurrent->spectrum = dr_published_plain_spectrum(recurrent->key_size, 10000);
    const dr_status status = dr_rotary_check(&recurrent->spectrum);
    return status == DR_OK ? DR_OK : dr_fail_in(DR_ERROR_FORMAT, "the rotary embedding");
}

static dr_status read_retnet(const json_t *config, dr_description *description) {
    static const dr_key own[] = {REAL("expand_k", expand_k, 1e-9, 1e9), REAL("expand_v", expand_v, 1e-9, 1e9),
                                 SIZE("num_kv_heads", key_heads), TRUTH("use_output_gate", gated),
                                 DR_KEY_MUST("feature_map", "null")};
    TABLE(table, own, NULL);
    fla_keys keys = defaults();
    keys.expand_v = 2;
    keys.ratio = 2;
    keys.short_conv = false;
    return read_model(config, &table, &keys, make_retnet, description);
}

/* ---- mesa_net: the system of each token is solved to the end, so the number of steps must be that of convergence
 * ------------------------- */

static dr_status make_mesa_net(const fla_keys *keys, int64_t index, dr_layer_description *layer) {
    enum { CONVERGED = 30 };
    (void)index;
    dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_MESANET, DR_READ_NONE, DR_WRITE_KEY);
    dr_recurrent_description *recurrent = add_recurrent(keys, layer, &like);
    size_by_head(keys, recurrent);
    recurrent->query_scale = 1;
    recurrent->value_conv = false;
    recurrent->decay.bias = recurrent->beta.bias = true;
    recurrent->decay_factor = 1;
    recurrent->least_ridge = keys->least_ridge;
    if (keys->solver_steps < CONVERGED || keys->solver_steps_decoding < CONVERGED)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "\"max_cg_step_training\" is %" PRId64 " and \"max_cg_step_decoding\" %" PRId64
                       "; at least %d are supported, "
                       "since systems are solved to the end here",
                       keys->solver_steps, keys->solver_steps_decoding, CONVERGED);
    return check_heads(recurrent, true);
}

static dr_status read_mesa_net(const json_t *config, dr_description *description) {
    static const dr_key own[] = {SIZE("head_dim", head_size), TRUTH("use_output_gate", gated),
                                 REAL("lambda_lower_bound", least_ridge, 1e-9, 1e9), SIZE("max_cg_step_training", solver_steps),
                                 SIZE("max_cg_step_decoding", solver_steps_decoding)};
    TABLE(table, own, NULL);
    fla_keys keys = defaults();
    keys.gated = false;
    DR_TRY(need_head_size(config));
    return read_model(config, &table, &keys, make_mesa_net, description);
}

/* ---- transformer
 * -------------------------------------------------------------------------------------------------------------------------- */

static dr_status make_transformer(const fla_keys *keys, int64_t index, dr_layer_description *layer) {
    const attention_keys attention = {.heads = keys->heads,
                                      .key_heads = keys->key_heads,
                                      .window = keys->window,
                                      .theta = keys->theta,
                                      .bias = keys->input_bias};
    (void)index;
    return add_attention(keys->hidden, &attention, keys->query_norms, layer);
}

static dr_status read_transformer(const json_t *config, dr_description *description) {
    static const dr_key own[] = {SIZE("num_kv_heads", key_heads), SIZE("window_size", window),
                                 REAL("rope_theta", theta, 1, 1e300), TRUTH("qk_norm", query_norms),
                                 TRUTH("qkv_bias", input_bias)};
    TABLE(table, own, NULL);
    fla_keys keys = defaults();
    return read_model(config, &table, &keys, make_transformer, description);
}

/* ---- rwkv7
 * ----------------------------------------------------------------------------------------------------------------------------------
 */

/* Ranks that a configuration leaves open grow with the root of the model's width. */
static int64_t default_rank(const fla_keys *keys, double factor, bool by_head) {
    const double root = sqrt((double)keys->hidden), size = by_head ? (double)keys->head_size / 64 : 1;
    const int64_t rank = 32 * (int64_t)nearbyint(factor * root * size / 32);
    return rank > 32 ? rank : 32;
}

static dr_status make_rwkv7(const fla_keys *keys, int64_t index, dr_layer_description *layer) {
    dr_rwkv7_description *mixer = &dr_published_mixer(layer, DR_MIXER_RWKV7)->of.rwkv7;
    const json_t *size =
        json_is_array(keys->value_sizes) ? json_array_get(keys->value_sizes, (size_t)index) : keys->value_sizes;
    if (size && json_integer_value(size) != keys->hidden)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "\"value_dim\" of layer %" PRId64 " is not the model's width; only %" PRId64 " is supported", index,
                       keys->hidden);
    *mixer = (dr_rwkv7_description){.heads = keys->hidden / keys->head_size,
                                    .key_size = keys->head_size,
                                    .value_size = keys->head_size,
                                    .decay_rank = keys->decay_rank > 0 ? keys->decay_rank : default_rank(keys, 2.5, true),
                                    .rate_rank = keys->rate_rank > 0 ? keys->rate_rank : default_rank(keys, 2.5, true),
                                    .value_rank = keys->value_rank > 0 ? keys->value_rank : default_rank(keys, 1.7, true),
                                    .gate_rank = keys->gate_rank > 0 ? keys->gate_rank : default_rank(keys, 5, false),
                                    .first = index == 0,
                                    .norm_eps = (double)keys->head_size * keys->norm_eps,
                                    .unit_eps = keys->fused_norm ? 1e-6 : 1e-12,
                                    .unit_clamped = !keys->fused_norm};
    return DR_OK;
}

static dr_status read_rwkv7(const json_t *config, dr_description *description) {
    static const dr_key own[] = {
        SIZE("head_dim", head_size),          SIZE("decay_low_rank_dim", decay_rank),
        SIZE("gate_low_rank_dim", gate_rank), SIZE("a_low_rank_dim", rate_rank),
        SIZE("v_low_rank_dim", value_rank),   ANY("value_dim", value_sizes),
        TRUTH("norm_bias", norm_bias),        TRUTH("fuse_norm", fused_norm),
        DR_KEY_MUST("norm_first", "true"),    DR_KEY_MUST("hidden_act", "\"sqrelu\""),
    };
    TABLE(table, own, NULL);
    const dr_key_table *const tables[] = {&table, &common, &dr_published_idle, NULL};
    static const char *const needed[] = {"hidden_size", "num_hidden_layers", "vocab_size", NULL};
    fla_keys keys = defaults();
    keys.norm_eps = 1e-5;
    DR_TRY(dr_json_required(config, needed));
    DR_TRY(dr_keys_read(config, tables, &keys));
    if (keys.head_size == 0 && keys.heads > 0) keys.head_size = keys.hidden / keys.heads;
    if (keys.head_size == 0) keys.head_size = 64;
    if (keys.hidden % keys.head_size != 0)
        return dr_fail(DR_ERROR_FORMAT, "\"hidden_size\" is %" PRId64 "; it must be a multiple of \"head_dim\", %" PRId64,
                       keys.hidden, keys.head_size);
    DR_TRY(make_model(&keys, make_rwkv7, description));
    const dr_norm_description norm = {.kind = DR_NORM_LAYER, .eps = keys.norm_eps, .bias = keys.norm_bias};
    const int64_t width = (part_of(keys.hidden, keys.ratio) + 31) / 32 * 32;
    description->embedding_norm = description->final_norm = norm;
    for (int64_t i = 0; i < description->count; i++) {
        dr_layer_description *layer = &description->layers[i];
        layer->mixer_norm = layer->feed_norm = norm;
        layer->feed =
            (dr_feed_description){.kind = DR_FEED_RWKV7, .of.forward = {.width = keys.width > 0 ? keys.width : width}};
    }
    return DR_OK;
}

const dr_published_type dr_published_fla_types[] = {
    {.model_type = "delta_net", .read = read_delta_net},
    {.model_type = "gated_deltanet", .read = read_gated_delta_net},
    {.model_type = "gated_deltaproduct", .read = read_delta_product},
    {.model_type = "comba", .read = read_comba},
    {.model_type = "qdelta", .read = read_qdelta},
    {.model_type = "precond_deltanet", .read = read_precond_delta},
    {.model_type = "precond_gated_deltanet", .read = read_precond_gated},
    {.model_type = "kda", .read = read_kda},
    {.model_type = "precond_kda", .read = read_precond_kda},
    {.model_type = "gdn2", .read = read_gdn2},
    {.model_type = "gla", .read = read_gla},
    {.model_type = "retnet", .read = read_retnet},
    {.model_type = "mesa_net", .read = read_mesa_net},
    {.model_type = "transformer", .read = read_transformer},
    {.model_type = "rwkv7", .read = read_rwkv7},
    {0},
};
