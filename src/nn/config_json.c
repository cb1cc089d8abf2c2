/* A model's configuration as config.json. Published model types have the keys of flash-linear-attention's classes, so that
 * those load what we write and we load what they write; everything else is model_type "deltarule", whose keys are the fields of
 * dr_model_config.
 *
 * A published configuration has many keys that only steer other programs; they are passed over. Keys that change what the model
 * computes are honoured, or refused with the value that would do. */
#include "base/error.h"
#include "formats/json.h"
#include "nn/config.h"
#include "nn/family.h"
#include "nn/layer_list.h"
#include "rules/compare.h"
#include "rules/json.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- model_type "deltarule" ----------------------------------------------------------------------------------------- */

/* A number of layers, or a list of them in either form (nn/layer_list.h). */
static dr_status read_layers(const json_t *object, dr_model_config *config, char **layer_list) {
    const json_t *layers = json_object_get(object, "layers");
    if (!json_is_array(layers) && !json_is_string(layers))
        return dr_json_integer(object, "layers", 1, DR_LARGEST_SIZE, &config->layers);
    *layer_list = json_is_string(layers) ? strdup(json_string_value(layers)) : dr_layer_list_text(layers);
    if (!*layer_list) return dr_fail(DR_ERROR_MEMORY, "there is no memory for a list of layers");
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
    dr_family family;         /* its rule is the first of the table that has it */
    const char *architecture; /* the publishers' class, or NULL */
    bool expand_k;            /* sizes are given for all heads as parts of the hidden size (else head_dim for one) */
    bool use_gate, gated;     /* the output gate can be left out; it is there if nothing is said */
    bool bounded;             /* has lower_bound */
    bool value_heads;         /* has num_v_heads */
    bool squash;              /* has squash_x and squash_eps */
    bool lambda;              /* has lamb_bias */
    double expand_v;          /* default */
} published;

static const published types[] = {
    {.model_type = "delta_net",
     .family = DR_FAMILY_DELTA_NET,
     .architecture = "DeltaNetForCausalLM",
     .expand_k = true,
     .use_gate = true,
     .expand_v = 1},
    {.model_type = "gated_deltanet",
     .family = DR_FAMILY_GDN,
     .architecture = "GatedDeltaNetForCausalLM",
     .use_gate = true,
     .gated = true,
     .value_heads = true,
     .expand_v = 2},
    {.model_type = "kda",
     .family = DR_FAMILY_KDA,
     .architecture = "KDAForCausalLM",
     .gated = true,
     .bounded = true,
     .value_heads = true,
     .expand_v = 1},
    {.model_type = "precond_gated_deltanet",
     .family = DR_FAMILY_PGDN,
     .architecture = "PrecondGatedDeltaNetForCausalLM",
     .use_gate = true,
     .gated = true,
     .value_heads = true,
     .squash = true,
     .expand_v = 2},
    {.model_type = "precond_kda",
     .family = DR_FAMILY_PKDA,
     .architecture = "PrecondKDAForCausalLM",
     .gated = true,
     .bounded = true,
     .squash = true,
     .expand_v = 1},
    {.model_type = "qdelta",
     .family = DR_FAMILY_QDELTA,
     .use_gate = true,
     .gated = true,
     .value_heads = true,
     .lambda = true,
     .expand_v = 2},
};

/* Keys that must have one value, as JSON; missing or null will do where the value is null or the default. */
static const struct {
    const char *key, *value;
} demands[] = {
    {"attn", "null"},        {"attnres_block_size", "null"}, {"hidden_act", "\"swish\""},
    {"use_l2warp", "false"}, {"qk_norm", "\"l2\""},          {"qk_activation", "\"silu\""},
    {"use_beta", "true"},    {"conv_bias", "false"},         {"quantization_config", "null"},
};

static dr_status check_demands(const json_t *object) {
    for (size_t i = 0; i < sizeof demands / sizeof demands[0]; i++) {
        const json_t *value = json_object_get(object, demands[i].key);
        if (!value || json_is_null(value)) continue;
        json_t *wanted = dr_json_value(demands[i].value);
        bool same = wanted && json_equal(value, wanted);
        json_decref(wanted);
        /* both names of the same function are about */
        same |=
            strcmp(demands[i].key, "hidden_act") == 0 && json_is_string(value) && strcmp(json_string_value(value), "silu") == 0;
        if (same) continue;
        char found[100];
        dr_json_describe(value, found, sizeof found);
        return dr_fail(DR_ERROR_UNSUPPORTED, "\"%s\" is %s; only %s is supported", demands[i].key, found, demands[i].value);
    }
    return DR_OK;
}

/* int(whole * part) as the publishers compute it */
static int64_t part_of(int64_t whole, double part) {
    return (int64_t)((double)whole * part);
}

static dr_status read_sizes(const json_t *object, const published *type, dr_model_config *config) {
    double expand_k = 1, expand_v = type->expand_v, ratio = 4;
    DR_TRY(dr_json_integer(object, "num_heads", 1, DR_LARGEST_SIZE, &config->heads));
    DR_TRY(dr_json_integer(object, "num_v_heads", 1, DR_LARGEST_SIZE, &config->value_heads));
    if (!type->value_heads && config->value_heads != 0 && config->value_heads != config->heads)
        return dr_fail(DR_ERROR_UNSUPPORTED, "\"num_v_heads\" is %" PRId64 "; %s needs it equal to \"num_heads\", %" PRId64,
                       config->value_heads, type->model_type, config->heads);
    DR_TRY(dr_json_real(object, "expand_v", 1e-9, 1e9, &expand_v));
    if (type->expand_k) {
        DR_TRY(dr_json_real(object, "expand_k", 1e-9, 1e9, &expand_k));
        config->key_size = part_of(config->hidden, expand_k) / config->heads;
        config->value_size = part_of(config->hidden, expand_v) / config->heads;
    } else {
        DR_TRY(dr_json_integer(object, "head_dim", 1, DR_LARGEST_SIZE, &config->key_size));
        config->value_size = part_of(config->key_size, expand_v);
    }
    if (config->key_size < 1 || config->value_size < 1)
        return dr_fail(DR_ERROR_FORMAT,
                       "the heads would have %" PRId64 " key and %" PRId64 " value channels; \"expand_v\" is %g",
                       config->key_size, config->value_size, expand_v);
    DR_TRY(dr_json_real(object, "hidden_ratio", 1e-9, 1e9, &ratio));
    config->intermediate = (part_of(config->hidden, ratio * 2 / 3) + 255) / 256 * 256;
    return dr_json_integer(object, "intermediate_size", 1, DR_LARGEST_SIZE, &config->intermediate);
}

static dr_status read_layer(const json_t *object, const published *type, dr_model_config *config) {
    bool gate = type->gated, convolution = true, safe = false;
    const json_t *bound = json_object_get(object, "lower_bound");
    DR_TRY(dr_json_boolean(object, "use_short_conv", &convolution));
    DR_TRY(dr_json_integer(object, "conv_size", 1, 1 << 10, &config->conv_size));
    if (!convolution) config->conv_size = 0;
    if (type->use_gate) DR_TRY(dr_json_boolean(object, "use_gate", &gate));
    config->output_gate = gate;
    config->gates.gate = DR_GATE_FORM_LOG;
    if (type->bounded && bound && !json_is_null(bound)) {
        DR_TRY(dr_json_real(object, "lower_bound", -1000, -1e-9, &config->gates.lower_bound));
        config->gates.gate = DR_GATE_FORM_KDA_BOUNDED;
    }
    DR_TRY(dr_json_boolean(object, "safe_gate", &safe));
    if (type->bounded && safe && config->gates.gate == DR_GATE_FORM_LOG)
        return dr_fail(DR_ERROR_FORMAT, "\"safe_gate\" is true without \"lower_bound\"; it needs one, such as -5");
    if (type->squash) {
        DR_TRY(dr_json_real(object, "squash_x", 1, 2, &config->rule.squash.x));
        DR_TRY(dr_json_real(object, "squash_eps", 1e-300, 1e300, &config->rule.squash.eps));
    }
    if (type->lambda) DR_TRY(dr_json_real(object, "lamb_bias", -100, 100, &config->lambda_bias));
    DR_TRY(dr_json_boolean(object, "allow_neg_eigval", &config->gates.negative_eigenvalues));
    config->force = config->gates.negative_eigenvalues && type->squash; /* whoever trained it has decided */
    return DR_OK;
}

static const dr_rule *rule_of(const published *type) {
    int i = 0;
    while (i < dr_rule_count() && dr_rule_at(i)->family != type->family) i++;
    return dr_rule_at(i);
}

static dr_status read_published(const json_t *object, const published *type, dr_model_config *config) {
    static const char *const needed[] = {"hidden_size", "num_hidden_layers", "num_heads", "vocab_size", NULL};
    static const char *const head[] = {"head_dim", NULL};
    DR_TRY(dr_json_required(object, needed));
    if (!type->expand_k) DR_TRY(dr_json_required(object, head));
    DR_TRY(check_demands(object));
    *config = dr_model_config_default(rule_of(type));
    DR_TRY(dr_json_integer(object, "vocab_size", 1, DR_LARGEST_SIZE, &config->vocabulary));
    DR_TRY(dr_json_integer(object, "hidden_size", 1, DR_LARGEST_SIZE, &config->hidden));
    DR_TRY(dr_json_integer(object, "num_hidden_layers", 1, DR_LARGEST_SIZE, &config->layers));
    DR_TRY(read_sizes(object, type, config));
    DR_TRY(read_layer(object, type, config));
    DR_TRY(dr_json_boolean(object, "tie_word_embeddings", &config->tied));
    DR_TRY(dr_json_real(object, "norm_eps", 1e-30, 1, &config->norm_eps));
    DR_TRY(dr_json_real(object, "conv_initializer_range", 0, 100, &config->conv_initializer_range));
    return dr_json_real(object, "initializer_range", 0, 100, &config->initializer_range);
}

/* Whether the type's keys can say all of a configuration. */
static bool can_say(const published *type, const dr_model_config *config) {
    const dr_rule *rule = &config->rule, *named = rule_of(type);
    double ratio = (double)config->value_size / (double)config->key_size;
    if (config->layer_list || rule->family != type->family || !dr_rule_same_axes(named, rule)) return false;
    if (rule->normalizer != DR_NORMALIZER_NONE || rule->tied_scan || rule->squash.interval != DR_SQUASH_SYMMETRIC ||
        rule->squash.function != DR_SQUASH_RATIONAL)
        return false;
    if (config->gates.lambda != DR_LAMBDA_PROJECTED || config->gates.lambda_bias_learned) return false;
    if (config->a_log_per_channel) return false;
    if (config->intermediate == 0 || (!type->value_heads && config->value_heads != config->heads)) return false;
    if (!type->use_gate && !config->output_gate) return false;
    if (config->gates.gate != DR_GATE_FORM_LOG &&
        !(type->bounded && config->gates.gate == DR_GATE_FORM_KDA_BOUNDED && config->gates.lower_bound >= -5))
        return false;
    if (!type->expand_k) return part_of(config->key_size, ratio) == config->value_size;
    double hidden = (double)config->hidden, heads = (double)config->heads;
    return part_of(config->hidden, (double)config->key_size * heads / hidden) == config->key_size * config->heads &&
           part_of(config->hidden, (double)config->value_size * heads / hidden) == config->value_size * config->heads;
}

static int set_sizes(json_t *object, const published *type, const dr_model_config *config) {
    double hidden = (double)config->hidden, heads = (double)config->heads;
    int failed = json_object_set_new(object, "num_heads", json_integer(config->heads));
    if (type->value_heads) failed |= json_object_set_new(object, "num_v_heads", json_integer(config->value_heads));
    if (type->expand_k) {
        failed |= json_object_set_new(object, "expand_k", json_real((double)config->key_size * heads / hidden));
        failed |= json_object_set_new(object, "expand_v", json_real((double)config->value_size * heads / hidden));
        return failed;
    }
    failed |= json_object_set_new(object, "head_dim", json_integer(config->key_size));
    return failed | json_object_set_new(object, "expand_v", json_real((double)config->value_size / (double)config->key_size));
}

static int set_layer(json_t *object, const published *type, const dr_model_config *config) {
    bool bounded = config->gates.gate == DR_GATE_FORM_KDA_BOUNDED;
    int failed = json_object_set_new(object, "use_short_conv", json_boolean(config->conv_size > 0));
    failed |= json_object_set_new(object, "conv_size", json_integer(config->conv_size > 0 ? config->conv_size : 4));
    failed |= json_object_set_new(object, "allow_neg_eigval", json_boolean(config->gates.negative_eigenvalues));
    if (type->use_gate) failed |= json_object_set_new(object, "use_gate", json_boolean(config->output_gate));
    if (type->bounded) {
        failed |= json_object_set_new(object, "safe_gate", json_boolean(bounded));
        failed |= json_object_set_new(object, "lower_bound", bounded ? json_real(config->gates.lower_bound) : json_null());
    }
    if (type->squash) {
        failed |= json_object_set_new(object, "squash_x", json_real(config->rule.squash.x));
        failed |= json_object_set_new(object, "squash_eps", json_real(config->rule.squash.eps));
    }
    if (type->lambda) failed |= json_object_set_new(object, "lamb_bias", json_real(config->lambda_bias));
    if (type->expand_k) { /* delta_net names what the others take for granted */
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
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(name, types[i].model_type) == 0) return read_published(object, &types[i], config);
    char known[200] = "deltarule";
    for (size_t i = 0, used = strlen(known); i < sizeof types / sizeof types[0] && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, ", %s", types[i].model_type);
    return dr_fail(DR_ERROR_UNSUPPORTED, "\"model_type\" is \"%.60s\"; supported are %s", name, known);
}

json_t *dr_config_write(const dr_model_config *config, const char *dtype) {
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (can_say(&types[i], config)) return write_published(&types[i], config, dtype);
    return dr_config_write_own(config, dtype);
}
