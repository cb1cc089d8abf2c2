/* A model's configuration as config.json. Where a published model type can say all of it, it is written with the keys of
 * flash-linear-attention's class, which then loads what was trained here; everything else is model_type "deltarule", whose keys
 * are the fields of dr_model_config. Published types are read by formats/names, and what is written is held against that. */
#include "base/error.h"
#include "base/memory.h"
#include "formats/json.h"
#include "nn/config.h"
#include "nn/family.h"
#include "nn/layer_list.h"
#include "nn/published.h"
#include "rules/compare.h"
#include "rules/json.h"
#include <string.h>

/* ---- model_type "deltarule" ----------------------------------------------------------------------------------------- */

/* A number of layers, or a list of them in either form (nn/layer_list.h). */
static dr_status read_layers(const json_t *object, dr_model_config *config, char **layer_list) {
    const json_t *layers = json_object_get(object, "layers");
    if (!json_is_array(layers) && !json_is_string(layers))
        return dr_json_integer(object, "layers", 1, DR_LARGEST_SIZE, &config->layers);
    DR_TRY(json_is_string(layers) ? dr_copy_string(json_string_value(layers), layer_list)
                                  : dr_layer_list_text(layers, layer_list));
    config->layer_list = *layer_list;
    return DR_OK;
}

/* What a layer may have of its own. */
static dr_status read_own_layer(const json_t *object, dr_model_config *config) {
    bool output_gate = false;
    DR_TRY(dr_json_integer(object, "heads", 1, DR_LARGEST_SIZE, &config->heads));
    DR_TRY(dr_json_integer(object, "value_heads", 0, DR_LARGEST_SIZE, &config->value_heads));
    DR_TRY(dr_json_integer(object, "key_size", 0, DR_LARGEST_SIZE, &config->key_size));
    DR_TRY(dr_json_integer(object, "value_size", 0, DR_LARGEST_SIZE, &config->value_size));
    DR_TRY(dr_json_integer(object, "conv_size", 0, DR_LARGEST_SIZE, &config->conv_size));
    const json_t *gate = json_object_get(object, "output_gate");
    DR_TRY(dr_json_boolean(object, "output_gate", &output_gate));
    if (gate && !json_is_null(gate)) config->output_gate = output_gate;
    DR_TRY(dr_gates_from_json(object, &config->gates));
    DR_TRY(dr_json_boolean(object, "force", &config->force));
    DR_TRY(dr_json_boolean(object, "a_log_per_channel", &config->a_log_per_channel));
    return dr_json_real(object, "lambda_bias", -1e300, 1e300, &config->lambda_bias);
}

dr_status dr_config_read_layer(const json_t *item, dr_model_config *config) {
    static const char *const keys[] = {
        "mixer",       "feed",     "repeat",      "experts",   "intermediate",      "heads",
        "value_heads", "key_size", "value_size",  "conv_size", "output_gate",       "negative_eigenvalues",
        "force",       "gate",     "lower_bound", "lambda",    "a_log_per_channel", "lambda_bias",
        NULL};
    DR_TRY(dr_json_known(item, keys));
    return read_own_layer(item, config);
}

static dr_status read_own(const json_t *object, dr_model_config *config, char **layer_list) {
    static const char *const keys[] = {
        "model_type", "dtype", "rule", "vocabulary", "hidden", "layers", "heads", "value_heads", "key_size", "value_size",
        "conv_size", "intermediate", "output_gate", "tied", "negative_eigenvalues", "force", "gate", "lower_bound", "lambda",
        "a_log_per_channel", "lambda_bias", "norm_eps", "initializer_range", "conv_initializer_range",
        /* of transformers, which change nothing of what is computed */
        "architectures", "transformers_version", "auto_map", "bos_token_id", "eos_token_id", "pad_token_id", NULL};
    static const char *const needed[] = {"rule", "vocabulary", "hidden", "layers", "heads", NULL};
    dr_rule rule;
    dr_gates gates;
    DR_TRY(dr_json_known(object, keys));
    DR_TRY(dr_json_required(object, needed));
    dr_status status = dr_rule_from_json(json_object_get(object, "rule"), &rule, &gates);
    if (status != DR_OK) return dr_fail_in(DR_ERROR_FORMAT, "rule");
    /* rules were written without a family once: then it was that of the base with its axes, or of compositions */
    const json_t *object_of_rule = json_object_get(object, "rule");
    if (json_is_object(object_of_rule) && !json_object_get(object_of_rule, "family") && !rule.name)
        rule.family = DR_FAMILY_COMPOSITION;
    *config = dr_model_config_default(&rule);
    config->gates = gates;
    DR_TRY(dr_json_integer(object, "vocabulary", 1, DR_LARGEST_SIZE, &config->vocabulary));
    DR_TRY(dr_json_integer(object, "hidden", 1, DR_LARGEST_SIZE, &config->hidden));
    DR_TRY(read_layers(object, config, layer_list));
    DR_TRY(read_own_layer(object, config));
    DR_TRY(dr_json_integer(object, "intermediate", -1, DR_LARGEST_SIZE, &config->intermediate));
    DR_TRY(dr_json_boolean(object, "tied", &config->tied));
    DR_TRY(dr_json_real(object, "norm_eps", 0, 1, &config->norm_eps));
    DR_TRY(dr_json_real(object, "conv_initializer_range", 0, 1e300, &config->conv_initializer_range));
    return dr_json_real(object, "initializer_range", 0, 1e300, &config->initializer_range);
}

static json_t *write_rule(const dr_rule *rule) {
    const dr_rule *named = dr_rule_with_axes(rule);
    bool same = named && dr_rule_equal(named, rule) && named->family == rule->family;
    return same ? json_string(named->name) : dr_rule_to_json(rule, NULL);
}

/* The number of layers, or the list of them; NULL without memory. */
static json_t *write_layers(const dr_model_config *config) {
    json_t *list = NULL;
    if (!config->layer_list) return json_integer(config->layers);
    return dr_layer_list_parse(config->layer_list, &list) == DR_OK ? list : NULL;
}

json_t *dr_config_write_own(const dr_model_config *config, const char *dtype) {
    json_t *object = json_pack(
        "{s:s, s:s, s:o, s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:b, s:b, s:b, s:f, s:f, s:f, s:f}", "model_type",
        "deltarule", "dtype", dtype, "rule", write_rule(&config->rule), "vocabulary", (json_int_t)config->vocabulary, "hidden",
        (json_int_t)config->hidden, "layers", write_layers(config), "heads", (json_int_t)config->heads, "value_heads",
        (json_int_t)config->value_heads, "key_size", (json_int_t)config->key_size, "value_size", (json_int_t)config->value_size,
        "conv_size", (json_int_t)config->conv_size, "intermediate", (json_int_t)config->intermediate, "output_gate",
        config->output_gate < 0 ? json_null() : json_boolean(config->output_gate), "tied", config->tied, "force", config->force,
        "a_log_per_channel", config->a_log_per_channel, "lambda_bias", config->lambda_bias, "norm_eps", config->norm_eps,
        "initializer_range", config->initializer_range, "conv_initializer_range", config->conv_initializer_range);
    if (object && dr_gates_to_json(&config->gates, object) == 0) return object;
    json_decref(object);
    return NULL;
}

/* ---- published model types ------------------------------------------------------------------------------------------ */

/* What a type has beside the keys of all. */
typedef struct {
    const char *model_type;
    dr_family family;         /* of its rule */
    const char *architecture; /* the publishers' class, or NULL */
    const char *gate;         /* the key that says whether there is an output gate, or NULL: there is one */
    bool by_model;            /* sizes are given for all heads as parts of the hidden size (else head_dim for one) */
    bool square;              /* values have as many channels as keys */
    bool negative;            /* has allow_neg_eigval */
    bool bounded;             /* has lower_bound */
    bool value_heads;         /* has num_v_heads */
    bool steps;               /* has num_householder and use_forget_gate */
    bool squash;              /* has squash_x and squash_eps */
    bool lambda;              /* has lamb_bias */
    bool features;            /* names beta, norm and function of queries and keys */
} published;

/* The first that can say all of a configuration is written. */
/* clang-format off */
static const published types[] = {
    {.model_type = "delta_net", DR_FAMILY_DELTA_NET, "DeltaNetForCausalLM", "use_gate", .by_model = true, .negative = true, .features = true},
    {.model_type = "precond_deltanet", DR_FAMILY_DELTA_NET, NULL, "use_gate", .negative = true, .value_heads = true, .squash = true},
    {.model_type = "gated_deltanet", DR_FAMILY_GDN, "GatedDeltaNetForCausalLM", "use_gate", .negative = true, .value_heads = true},
    {.model_type = "gated_deltaproduct", DR_FAMILY_GDN, "GatedDeltaProductForCausalLM", "use_output_gate", .negative = true, .steps = true},
    {.model_type = "comba", DR_FAMILY_COMBA, "CombaForCausalLM", "use_output_gate", .value_heads = true},
    {.model_type = "kda", DR_FAMILY_KDA, "KDAForCausalLM", NULL, .negative = true, .bounded = true, .value_heads = true},
    {.model_type = "gdn2", DR_FAMILY_KDA, NULL, NULL, .negative = true},
    {.model_type = "precond_gated_deltanet", DR_FAMILY_PGDN, "PrecondGatedDeltaNetForCausalLM", "use_gate", .negative = true,
     .value_heads = true, .squash = true},
    {.model_type = "precond_kda", DR_FAMILY_PKDA, "PrecondKDAForCausalLM", NULL, .negative = true, .bounded = true, .squash = true},
    {.model_type = "qdelta", DR_FAMILY_QDELTA, NULL, "use_gate", .negative = true, .value_heads = true, .lambda = true},
    {.model_type = "gla", DR_FAMILY_GLA, "GLAForCausalLM", "use_output_gate", .by_model = true},
    {.model_type = "retnet", DR_FAMILY_RETNET, "RetNetForCausalLM", "use_output_gate", .by_model = true},
    {.model_type = "mesa_net", DR_FAMILY_MESANET, "MesaNetForCausalLM", "use_output_gate", .square = true},
};
/* clang-format on */

static int set_sizes(json_t *object, const published *type, const dr_model_config *config) {
    const double hidden = (double)config->hidden, heads = (double)config->heads;
    int failed = json_object_set_new(object, "num_heads", json_integer(config->heads));
    if (type->value_heads) failed |= json_object_set_new(object, "num_v_heads", json_integer(config->value_heads));
    if (type->by_model) {
        failed |= json_object_set_new(object, "expand_k", json_real((double)config->key_size * heads / hidden));
        return failed | json_object_set_new(object, "expand_v", json_real((double)config->value_size * heads / hidden));
    }
    failed |= json_object_set_new(object, "head_dim", json_integer(config->key_size));
    if (type->square) return failed;
    return failed | json_object_set_new(object, "expand_v", json_real((double)config->value_size / (double)config->key_size));
}

static int set_layer(json_t *object, const published *type, const dr_model_config *config) {
    const bool bounded = config->gates.gate == DR_GATE_FORM_KDA_BOUNDED;
    int failed = json_object_set_new(object, "use_short_conv", json_boolean(config->conv_size > 0));
    failed |= json_object_set_new(object, "conv_size", json_integer(config->conv_size > 0 ? config->conv_size : 4));
    if (type->negative)
        failed |= json_object_set_new(object, "allow_neg_eigval", json_boolean(config->gates.negative_eigenvalues));
    if (type->gate) failed |= json_object_set_new(object, type->gate, json_boolean(config->output_gate));
    if (type->bounded) {
        failed |= json_object_set_new(object, "safe_gate", json_boolean(bounded));
        failed |= json_object_set_new(object, "lower_bound", bounded ? json_real(config->gates.lower_bound) : json_null());
    }
    if (type->steps) {
        failed |= json_object_set_new(object, "num_householder", json_integer(config->rule.repeat));
        failed |= json_object_set_new(object, "use_forget_gate", json_boolean(config->rule.decay != DR_DECAY_NONE));
    }
    if (type->squash) {
        failed |= json_object_set_new(object, "squash_x", json_real(config->rule.squash.x));
        failed |= json_object_set_new(object, "squash_eps", json_real(config->rule.squash.eps));
    }
    if (type->lambda) failed |= json_object_set_new(object, "lamb_bias", json_real(config->lambda_bias));
    if (type->features) {
        failed |= json_object_set_new(object, "use_beta", json_true());
        failed |= json_object_set_new(object, "qk_activation", json_string("silu"));
        failed |= json_object_set_new(object, "qk_norm", json_string("l2"));
    }
    return failed;
}

static json_t *write_published(const published *type, const dr_model_config *config, const char *dtype) {
    json_t *object = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:n, s:s, s:f, s:I, s:f, s:b, s:s, s:n, s:n, s:n, s:n}", "model_type", type->model_type,
        "dtype", dtype, "vocab_size", (json_int_t)config->vocabulary, "hidden_size", (json_int_t)config->hidden,
        "num_hidden_layers", (json_int_t)config->layers, "hidden_ratio", "hidden_act", "swish", "norm_eps", config->norm_eps,
        "intermediate_size", (json_int_t)config->intermediate, "initializer_range", config->initializer_range,
        "tie_word_embeddings", config->tied, "attn_mode", "chunk", "attn", "bos_token_id", "eos_token_id", "pad_token_id");
    if (!object) return NULL;
    int failed = set_sizes(object, type, config) | set_layer(object, type, config);
    if (config->conv_initializer_range > 0) /* a key of our own: publishers have one range for all */
        failed |= json_object_set_new(object, "conv_initializer_range", json_real(config->conv_initializer_range));
    if (type->architecture) failed |= json_object_set_new(object, "architectures", json_pack("[s]", type->architecture));
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

/* ---- either --------------------------------------------------------------------------------------------------------- */

dr_status dr_config_read(const json_t *object, dr_model_config *config, char **layer_list) {
    const char *name = NULL;
    *layer_list = NULL;
    DR_TRY(dr_json_text(object, "model_type", &name));
    if (!name) return dr_fail(DR_ERROR_FORMAT, "the key \"model_type\" is missing");
    if (strcmp(name, "deltarule") == 0) return read_own(object, config, layer_list);
    return dr_published_config(object, config);
}

/* The classes refuse a lower bound below -5, where their kernels lose precision. */
static bool class_refuses(const dr_model_config *config) {
    return config->gates.gate == DR_GATE_FORM_KDA_BOUNDED && config->gates.lower_bound < -5;
}

json_t *dr_config_write(const dr_model_config *config, const char *dtype) {
    for (size_t i = 0; i < sizeof types / sizeof types[0] && !config->layer_list; i++) {
        if (dr_rule_family(&config->rule) != types[i].family || class_refuses(config)) continue;
        bool all = false;
        json_t *object = write_published(&types[i], config, dtype);
        const dr_status status = object ? dr_published_says(object, config, &all) : DR_ERROR_MEMORY;
        if (status == DR_OK && all) return object;
        json_decref(object);
        if (status != DR_OK) return NULL;
    }
    return dr_config_write_own(config, dtype);
}
