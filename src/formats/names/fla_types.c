/* The types of flash-linear-attention. */
#include "base/error.h"
#include "formats/names/fla.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *const needed[] = {"hidden_size", "num_hidden_layers", "num_heads", "vocab_size", NULL};
static const char *const needed_by_head[] = {"hidden_size", "num_hidden_layers", "num_heads", "vocab_size", "head_dim", NULL};

/* What a recurrent layer has of the keys of all types. */
static dr_recurrent_description *add_recurrent(const dr_fla_keys *keys, dr_layer_description *layer,
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

static void size_by_head(const dr_fla_keys *keys, dr_recurrent_description *recurrent) {
    dr_published_recurrent_sizes(recurrent, keys->heads, keys->value_heads > 0 ? keys->value_heads : keys->heads,
                                 keys->head_size, dr_fla_part(keys->head_size, keys->expand_v));
}

static dr_status size_by_model(const dr_fla_keys *keys, dr_recurrent_description *recurrent) {
    dr_published_recurrent_sizes(recurrent, keys->heads, keys->heads, dr_fla_part(keys->hidden, keys->expand_k) / keys->heads,
                                 dr_fla_part(keys->hidden, keys->expand_v) / keys->heads);
    return check_heads(recurrent, true);
}

#define BY_HEAD  SIZE("head_dim", head_size), REAL("expand_v", expand_v, 1e-9, 1e9), SIZE("num_v_heads", value_heads)
#define NEGATIVE TRUTH("allow_neg_eigval", negative_eigenvalues)
#define USE_GATE TRUTH("use_gate", gated)
#define SQUASH   REAL("squash_x", squash_x, 1, 2), REAL("squash_eps", squash_eps, 1e-300, 1e300)
#define BOUND    TRUTH("safe_gate", safe_gate), ANY("lower_bound", lower_bound)

/* A type whose heads have a size of their own. expand_v: value size over key size by default. */
static dr_status read_by_head(const json_t *config, const dr_key_table *own, double expand_v, dr_fla_maker make,
                              dr_description *description) {
    dr_fla_keys keys = dr_fla_defaults();
    keys.expand_v = expand_v;
    return dr_fla_read(config, own, needed_by_head, &keys, make, description);
}

/* ---- delta_net --------------------------------------------------------------------------------------------------- */

static dr_status make_delta_net(const dr_fla_keys *keys, int64_t index, dr_layer_description *layer) {
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
        recurrent->query_length = recurrent->key_length = DR_LENGTH_SUM;
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
    dr_fla_keys keys = dr_fla_defaults();
    keys.gated = false;
    return dr_fla_read(config, &table, needed, &keys, make_delta_net, description);
}

/* ---- gated_deltanet, comba, gated_deltaproduct, qdelta, with and without a preconditioner ------------------------ */

static dr_status set_gate_function(const dr_fla_keys *keys, dr_recurrent_description *recurrent) {
    const char *name = keys->gate_function;
    if (!name || strcmp(name, "swish") == 0 || strcmp(name, "silu") == 0) return DR_OK;
    if (strcmp(name, "sigmoid") != 0)
        return dr_fail(DR_ERROR_UNSUPPORTED, "\"output_gate_activation\" is \"%.40s\"; swish, silu and sigmoid are supported",
                       name);
    recurrent->gate = DR_FUNCTION_SIGMOID;
    return DR_OK;
}

static dr_status make_gated_delta_net(const dr_fla_keys *keys, int64_t index, dr_layer_description *layer) {
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
    return read_by_head(config, &table, 2, make_gated_delta_net, description);
}

static dr_status make_delta_product(const dr_fla_keys *keys, int64_t index, dr_layer_description *layer) {
    DR_TRY(make_gated_delta_net(keys, index, layer));
    dr_rule *rule = &layer->mixer[0].of.recurrent.rule;
    rule->repeat = (int)keys->steps;
    if (!keys->forget) rule->decay = DR_DECAY_NONE;
    return DR_OK;
}

static dr_status read_delta_product(const json_t *config, dr_description *description) {
    static const dr_key own[] = {SIZE("head_dim", head_size),
                                 REAL("expand_v", expand_v, 1e-9, 1e9),
                                 NEGATIVE,
                                 TRUTH("use_output_gate", gated),
                                 TRUTH("use_forget_gate", forget),
                                 DR_KEY_RANGE(WHOLE, dr_fla_keys, "num_householder", steps, 1, 64)};
    static const char *const unread[] = {"num_v_heads", NULL}; /* the class has the key and leaves it alone */
    TABLE(table, own, unread);
    return read_by_head(config, &table, 2, make_delta_product, description);
}

static dr_status make_comba(const dr_fla_keys *keys, int64_t index, dr_layer_description *layer) {
    (void)index;
    dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_COMBA, DR_READ_FEEDBACK, DR_WRITE_KEY);
    dr_recurrent_description *recurrent = add_recurrent(keys, layer, &like);
    size_by_head(keys, recurrent);
    recurrent->gate = DR_FUNCTION_SIGMOID;
    return check_heads(recurrent, true);
}

static dr_status read_comba(const json_t *config, dr_description *description) {
    static const dr_key own[] = {BY_HEAD, TRUTH("use_output_gate", gated)};
    static const char *const unread[] = {"use_output_correction", "use_inner_decay", NULL}; /* likewise: it has both always */
    TABLE(table, own, unread);
    return read_by_head(config, &table, 2, make_comba, description);
}

static dr_status make_qdelta(const dr_fla_keys *keys, int64_t index, dr_layer_description *layer) {
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
    return read_by_head(config, &table, 2, make_qdelta, description);
}

static void set_squash(const dr_fla_keys *keys, dr_recurrent_description *recurrent) {
    recurrent->rule.squash.x = keys->squash_x;
    recurrent->rule.squash.eps = keys->squash_eps;
}

static dr_status make_precond_gated(const dr_fla_keys *keys, int64_t index, dr_layer_description *layer) {
    (void)index;
    dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_PGDN, DR_READ_KEY, DR_WRITE_PRECONDITIONED);
    dr_recurrent_description *recurrent = add_recurrent(keys, layer, &like);
    size_by_head(keys, recurrent);
    set_squash(keys, recurrent);
    return check_heads(recurrent, false);
}

static dr_status make_precond_delta(const dr_fla_keys *keys, int64_t index, dr_layer_description *layer) {
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
    return read_by_head(config, &precond, 2, make_precond_gated, description);
}

static dr_status read_precond_delta(const json_t *config, dr_description *description) {
    return read_by_head(config, &precond, 1, make_precond_delta, description);
}

/* ---- kda, precond_kda, gdn2 -------------------------------------------------------------------------------------- */

static dr_status make_channel_decay(const dr_fla_keys *keys, const dr_recurrent_description *like, bool equal_heads,
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

static dr_status make_kda(const dr_fla_keys *keys, int64_t index, dr_layer_description *layer) {
    (void)index;
    const dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_KDA, DR_READ_KEY, DR_WRITE_KEY);
    return make_channel_decay(keys, &like, false, layer);
}

static dr_status make_gdn2(const dr_fla_keys *keys, int64_t index, dr_layer_description *layer) {
    (void)index;
    const dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_KDA, DR_READ_GATED_KEY, DR_WRITE_KEY);
    return make_channel_decay(keys, &like, true, layer);
}

static dr_status make_precond_kda(const dr_fla_keys *keys, int64_t index, dr_layer_description *layer) {
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
    return read_by_head(config, &kda_table, 1, make_kda, description);
}

static dr_status read_gdn2(const json_t *config, dr_description *description) {
    return read_by_head(config, &gdn2_table, 1, make_gdn2, description);
}

static dr_status read_precond_kda(const json_t *config, dr_description *description) {
    return read_by_head(config, &precond_kda_table, 1, make_precond_kda, description);
}

/* ---- gla, retnet ------------------------------------------------------------------------------------------------- */

static dr_status check_key_heads(const dr_fla_keys *keys) {
    if (keys->key_heads == 0 || keys->key_heads == keys->heads) return DR_OK;
    return dr_fail(DR_ERROR_UNSUPPORTED, "\"num_kv_heads\" is %" PRId64 "; only \"num_heads\", %" PRId64 ", is supported",
                   keys->key_heads, keys->heads);
}

/* "feature_map": what the queries and keys of a layer without a convolution pass through. */
static dr_status set_feature_map(const dr_fla_keys *keys, dr_recurrent_description *recurrent) {
    static const struct {
        const char *name;
        dr_function function;
    } maps[] = {
        {"relu", DR_FUNCTION_RELU}, {"silu", DR_FUNCTION_SILU}, {"swish", DR_FUNCTION_SILU}, {"sigmoid", DR_FUNCTION_SIGMOID}};
    if (!keys->feature) return DR_OK;
    if (recurrent->conv_size > 0)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "\"feature_map\" is \"%.40s\" and \"use_short_conv\" true; only one of them is supported",
                       keys->feature);
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++)
        if (strcmp(keys->feature, maps[i].name) == 0) {
            recurrent->feature = maps[i].function;
            return DR_OK;
        }
    return dr_fail(DR_ERROR_UNSUPPORTED, "\"feature_map\" is \"%.40s\"; null, relu, silu, swish and sigmoid are supported",
                   keys->feature);
}

static dr_status make_gla(const dr_fla_keys *keys, int64_t index, dr_layer_description *layer) {
    (void)index;
    dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_GLA, DR_READ_NONE, DR_WRITE_KEY);
    dr_recurrent_description *recurrent = add_recurrent(keys, layer, &like);
    recurrent->feature = recurrent->activate = keys->short_conv ? DR_FUNCTION_SILU : DR_FUNCTION_IDENTITY;
    recurrent->query_length = recurrent->key_length = DR_LENGTH_FREE;
    recurrent->decay = (dr_projection_description){.rank = 16, .bias = true};
    recurrent->decay_factor = 1.0 / 16;
    recurrent->norm_apart = !keys->fused_norm;
    if (keys->clamp) recurrent->least_decay = json_number_value(keys->clamp);
    if (keys->clamp && !(json_is_number(keys->clamp) && recurrent->least_decay < 0))
        return dr_fail(DR_ERROR_FORMAT, "\"clamp_min\" must be a number below 0, or null");
    DR_TRY(set_feature_map(keys, recurrent));
    DR_TRY(check_key_heads(keys));
    return size_by_model(keys, recurrent);
}

static dr_status read_gla(const json_t *config, dr_description *description) {
    static const dr_key own[] = {REAL("expand_k", expand_k, 1e-9, 1e9),
                                 REAL("expand_v", expand_v, 1e-9, 1e9),
                                 SIZE("num_kv_heads", key_heads),
                                 TRUTH("use_output_gate", gated),
                                 ANY("clamp_min", clamp),
                                 TRUTH("fuse_norm", fused_norm),
                                 TEXT("feature_map", feature)};
    static const char *const unread[] = {"use_gk", "use_gv", NULL}; /* the class has the keys and leaves them alone */
    TABLE(table, own, unread);
    dr_fla_keys keys = dr_fla_defaults();
    keys.expand_k = 0.5;
    keys.short_conv = false;
    return dr_fla_read(config, &table, needed, &keys, make_gla, description);
}

static dr_status make_retnet(const dr_fla_keys *keys, int64_t index, dr_layer_description *layer) {
    (void)index;
    dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_RETNET, DR_READ_NONE, DR_WRITE_KEY);
    dr_recurrent_description *recurrent = add_recurrent(keys, layer, &like);
    recurrent->conv_size = 0; /* the class leaves "use_short_conv" alone */
    recurrent->feature = recurrent->activate = DR_FUNCTION_IDENTITY;
    recurrent->query_length = recurrent->key_length = DR_LENGTH_FREE;
    DR_TRY(set_feature_map(keys, recurrent));
    DR_TRY(check_key_heads(keys));
    DR_TRY(size_by_model(keys, recurrent));
    recurrent->rotary = true;
    recurrent->norm_apart = !keys->fused_norm;
    recurrent->spectrum = dr_published_plain_spectrum(recurrent->key_size, 10000);
    const dr_status status = dr_rotary_check(&recurrent->spectrum);
    return status == DR_OK ? DR_OK : dr_fail_in(DR_ERROR_FORMAT, "the rotary embedding");
}

static dr_status read_retnet(const json_t *config, dr_description *description) {
    static const dr_key own[] = {REAL("expand_k", expand_k, 1e-9, 1e9), REAL("expand_v", expand_v, 1e-9, 1e9),
                                 SIZE("num_kv_heads", key_heads),       TRUTH("use_output_gate", gated),
                                 TRUTH("fuse_norm", fused_norm),        TEXT("feature_map", feature)};
    TABLE(table, own, NULL);
    dr_fla_keys keys = dr_fla_defaults();
    keys.expand_v = 2;
    keys.ratio = 2;
    return dr_fla_read(config, &table, needed, &keys, make_retnet, description);
}

/* ---- mesa_net: the system of each token is solved to the end, so the number of steps must be that of convergence ---- */

static dr_status make_mesa_net(const dr_fla_keys *keys, int64_t index, dr_layer_description *layer) {
    enum { CONVERGED = 30 };
    (void)index;
    dr_recurrent_description like = dr_published_recurrent(DR_FAMILY_MESANET, DR_READ_NONE, DR_WRITE_KEY);
    dr_recurrent_description *recurrent = add_recurrent(keys, layer, &like);
    size_by_head(keys, recurrent);
    recurrent->conv_size = keys->conv_size; /* the class leaves "use_short_conv" alone */
    recurrent->query_scale = 1;
    recurrent->value_conv = false;
    recurrent->activate = DR_FUNCTION_IDENTITY;
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
    dr_fla_keys keys = dr_fla_defaults();
    keys.gated = false;
    return dr_fla_read(config, &table, needed_by_head, &keys, make_mesa_net, description);
}

/* ---- transformer ------------------------------------------------------------------------------------------------- */

static dr_status make_transformer(const dr_fla_keys *keys, int64_t index, dr_layer_description *layer) {
    const dr_fla_attention attention = {.heads = keys->heads,
                                        .key_heads = keys->key_heads,
                                        .window = keys->window,
                                        .theta = keys->theta,
                                        .bias = keys->input_bias};
    (void)index;
    return dr_fla_add_attention(keys->hidden, &attention, keys->query_norms, layer);
}

static dr_status read_transformer(const json_t *config, dr_description *description) {
    static const dr_key own[] = {SIZE("num_kv_heads", key_heads), SIZE("window_size", window),
                                 REAL("rope_theta", theta, 1, 1e300), TRUTH("qk_norm", query_norms),
                                 TRUTH("qkv_bias", input_bias)};
    TABLE(table, own, NULL);
    dr_fla_keys keys = dr_fla_defaults();
    return dr_fla_read(config, &table, needed, &keys, make_transformer, description);
}

/* ---- rwkv7 ---------------------------------------------------------------------------------------------------------- */

/* The width of a head, which the number of heads may say instead. */
static int64_t rwkv7_head_size(const dr_fla_keys *keys) {
    if (keys->head_size > 0) return keys->head_size;
    return keys->heads > 0 && keys->heads <= keys->hidden ? keys->hidden / keys->heads : 64;
}

/* Ranks that a configuration leaves open grow with the root of the model's width. */
static int64_t default_rank(const dr_fla_keys *keys, double factor, bool by_head) {
    const double root = sqrt((double)keys->hidden), size = by_head ? (double)rwkv7_head_size(keys) / 64 : 1;
    const int64_t rank = 32 * (int64_t)nearbyint(factor * root * size / 32);
    return rank > 32 ? rank : 32;
}

static dr_status make_rwkv7(const dr_fla_keys *keys, int64_t index, dr_layer_description *layer) {
    const int64_t head = rwkv7_head_size(keys);
    dr_rwkv7_description *mixer = &dr_published_mixer(layer, DR_MIXER_RWKV7)->of.rwkv7;
    const json_t *size =
        json_is_array(keys->value_sizes) ? json_array_get(keys->value_sizes, (size_t)index) : keys->value_sizes;
    if (keys->hidden % head != 0)
        return dr_fail(DR_ERROR_FORMAT, "\"hidden_size\" is %" PRId64 "; it must be a multiple of \"head_dim\", %" PRId64,
                       keys->hidden, head);
    if (size && json_integer_value(size) != keys->hidden)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "\"value_dim\" of layer %" PRId64 " is not the model's width; only %" PRId64 " is supported", index,
                       keys->hidden);
    *mixer = (dr_rwkv7_description){.heads = keys->hidden / head,
                                    .key_size = head,
                                    .value_size = head,
                                    .decay_rank = keys->decay_rank > 0 ? keys->decay_rank : default_rank(keys, 2.5, true),
                                    .rate_rank = keys->rate_rank > 0 ? keys->rate_rank : default_rank(keys, 2.5, true),
                                    .value_rank = keys->value_rank > 0 ? keys->value_rank : default_rank(keys, 1.7, true),
                                    .gate_rank = keys->gate_rank > 0 ? keys->gate_rank : default_rank(keys, 5, false),
                                    .first = index == 0,
                                    .norm_eps = (double)head * keys->norm_eps,
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
    static const char *const least[] = {"hidden_size", "num_hidden_layers", "vocab_size", NULL};
    dr_fla_keys keys = dr_fla_defaults();
    keys.norm_eps = 1e-5;
    DR_TRY(dr_fla_read(config, &table, least, &keys, make_rwkv7, description));
    const dr_norm_description norm = {.kind = DR_NORM_LAYER, .eps = keys.norm_eps, .bias = keys.norm_bias};
    const int64_t width = (dr_fla_part(keys.hidden, keys.ratio) + 31) / 32 * 32;
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
