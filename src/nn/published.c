/* A published configuration is read into a description. Where all layers are alike, a recurrent mixer and SwiGLU as the rule's
 * family has them, the same model follows from a dr_model_config, with which it can be trained further; whether it does is
 * decided by describing that and comparing the two. */
#include "nn/published.h"
#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"
#include "formats/names/published.h"
#include "nn/config.h"
#include "nn/describe.h"
#include "nn/model.h"
#include "rules/compare.h"
#include <math.h>
#include <string.h>

static bool same_norm(const dr_norm_description *a, const dr_norm_description *b) {
    return a->kind == b->kind && a->eps == b->eps && a->offset == b->offset && a->bias == b->bias;
}

static bool same_projection(const dr_projection_description *a, const dr_projection_description *b) {
    return a->rank == b->rank && a->bias == b->bias && a->by_head == b->by_head;
}

static bool same_gates(const dr_gates *a, const dr_gates *b) {
    return a->negative_eigenvalues == b->negative_eigenvalues && a->gate == b->gate &&
           (a->gate == DR_GATE_FORM_LOG || a->lower_bound == b->lower_bound) && a->lambda == b->lambda &&
           a->lambda_bias_learned == b->lambda_bias_learned;
}

static double scale_of(const dr_recurrent_description *is) {
    return is->query_scale != 0 ? is->query_scale : 1 / sqrt((double)is->key_size);
}

/* Whether two mixers compute the same; their first values may differ. */
static bool same_mixer(const dr_recurrent_description *a, const dr_recurrent_description *b) {
    if (!dr_rule_equal(&a->rule, &b->rule) || !same_gates(&a->gates, &b->gates)) return false;
    if (a->heads != b->heads || a->value_heads != b->value_heads || a->key_size != b->key_size ||
        a->value_size != b->value_size)
        return false;
    if (a->conv_size != b->conv_size || a->conv_bias != b->conv_bias || a->value_conv != b->value_conv ||
        a->feature != b->feature || a->activate != b->activate)
        return false;
    if (a->query_length != b->query_length || a->key_length != b->key_length || scale_of(a) != scale_of(b)) return false;
    if (!same_projection(&a->decay, &b->decay) || !same_projection(&a->beta, &b->beta) || a->decay_factor != b->decay_factor ||
        a->least_decay != b->least_decay || a->a_log_per_channel != b->a_log_per_channel)
        return false;
    if (a->gated != b->gated ||
        (a->gated && (a->gate != b->gate || !same_projection(&a->gate_projection, &b->gate_projection))))
        return false;
    if (dr_rule_uses(&a->rule, DR_INPUT_LAMBDA) && a->lambda_bias != b->lambda_bias) return false;
    if (dr_rule_uses(&a->rule, DR_INPUT_RIDGE) && a->least_ridge != b->least_ridge) return false;
    return a->gate_first == b->gate_first && a->norm_eps == b->norm_eps && a->stepped == b->stepped && a->rotary == b->rotary;
}

static bool same_layer(const dr_layer_description *a, const dr_layer_description *b) {
    if (a->mixers != 1 || a->mixer[0].kind != DR_MIXER_RECURRENT || a->feed.kind != DR_FEED_GATED ||
        b->feed.kind != DR_FEED_GATED)
        return false;
    const dr_feed_forward_description *x = &a->feed.of.forward, *y = &b->feed.of.forward;
    if (x->width != y->width || x->function != y->function || x->bias != y->bias || x->limit != y->limit) return false;
    return same_norm(&a->mixer_norm, &b->mixer_norm) && same_norm(&a->mixer_after, &b->mixer_after) &&
           same_norm(&a->feed_norm, &b->feed_norm) && same_norm(&a->feed_after, &b->feed_after) &&
           same_mixer(&a->mixer[0].of.recurrent, &b->mixer[0].of.recurrent);
}

static bool same_model(const dr_description *a, const dr_description *b) {
    if (a->vocabulary != b->vocabulary || a->hidden != b->hidden || a->tied != b->tied || a->count != b->count ||
        a->residual != b->residual || a->embedding_scale != b->embedding_scale || a->logits_scale != b->logits_scale)
        return false;
    if (!same_norm(&a->embedding_norm, &b->embedding_norm) || !same_norm(&a->final_norm, &b->final_norm)) return false;
    for (int64_t i = 0; i < a->count; i++)
        if (!same_layer(&a->layers[i], &b->layers[i])) return false;
    return true;
}

/* What callers see of other models: sizes of the model, and of its first recurrent layer. */
static dr_model_config seen_config(const dr_description *description) {
    dr_model_config config = {.vocabulary = description->vocabulary,
                              .hidden = description->hidden,
                              .layers = description->count,
                              .tied = description->tied,
                              .norm_eps = description->final_norm.eps,
                              .initializer_range = 0.02};
    for (int64_t i = 0; i < description->count; i++) {
        const dr_mixer_description *mixer = &description->layers[i].mixer[0];
        if (description->layers[i].mixers == 0 || mixer->kind != DR_MIXER_RECURRENT) continue;
        const dr_recurrent_description *is = &mixer->of.recurrent;
        config.rule = is->rule;
        config.gates = is->gates;
        config.heads = is->heads;
        config.value_heads = is->value_heads;
        config.key_size = is->key_size;
        config.value_size = is->value_size;
        config.conv_size = is->conv_size;
        config.output_gate = is->gated;
        config.lambda_bias = is->lambda_bias;
        break;
    }
    return config;
}

/* What a configuration would be if it said all of a description whose layers are all as the first. */
static dr_model_config likely_config(const dr_description *description) {
    const dr_model_config seen = seen_config(description);
    dr_model_config config = dr_model_config_default(&seen.rule);
    config.vocabulary = seen.vocabulary;
    config.hidden = seen.hidden;
    config.layers = seen.layers;
    config.tied = seen.tied;
    config.norm_eps = seen.norm_eps;
    config.heads = seen.heads;
    config.value_heads = seen.value_heads;
    config.key_size = seen.key_size;
    config.value_size = seen.value_size;
    config.conv_size = seen.conv_size;
    config.output_gate = seen.output_gate;
    config.intermediate = description->layers[0].feed.of.forward.width;
    config.gates.negative_eigenvalues = seen.gates.negative_eigenvalues;
    config.gates.gate = seen.gates.gate;
    if (seen.gates.gate != DR_GATE_FORM_LOG) config.gates.lower_bound = seen.gates.lower_bound;
    if (dr_rule_uses(&seen.rule, DR_INPUT_LAMBDA)) config.lambda_bias = seen.lambda_bias;
    config.force =
        config.gates.negative_eigenvalues && dr_rule_uses(&seen.rule, DR_INPUT_SCAN_GAIN); /* whoever trained it has decided */
    return config;
}

/* Whether a description is that of a resolved configuration. */
static dr_status compare(const dr_description *description, const dr_model_config *config, bool *same) {
    dr_description own;
    DR_TRY(dr_describe(config, &own));
    *same = same_model(description, &own);
    dr_description_release(&own);
    return DR_OK;
}

/* Whether a configuration of our own says all of a description; *config is it. */
static dr_status find_config(const json_t *object, const dr_description *description, dr_model_config *config, bool *found) {
    *found = false;
    if (description->layers[0].feed.kind != DR_FEED_GATED || description->layers[0].mixer[0].kind != DR_MIXER_RECURRENT)
        return DR_OK;
    dr_model_config read = likely_config(description);
    DR_TRY(dr_json_real(object, "conv_initializer_range", 0, 100, &read.conv_initializer_range));
    DR_TRY(dr_json_real(object, "initializer_range", 0, 100, &read.initializer_range));
    return dr_config_resolve(&read, config) == DR_OK ? compare(description, config, found) : DR_OK;
}

dr_status dr_published_says(const json_t *object, const dr_model_config *config, bool *all) {
    dr_description description;
    *all = false;
    dr_status status = dr_published_read(object, &description);
    if (status != DR_OK) return status == DR_ERROR_MEMORY ? status : DR_OK;
    status = compare(&description, config, all);
    dr_description_release(&description);
    return status;
}

dr_status dr_published_config(const json_t *object, dr_model_config *config) {
    dr_description description;
    bool found = false;
    DR_TRY(dr_published_read(object, &description));
    dr_status status = find_config(object, &description, config, &found);
    if (status == DR_OK && !found)
        status =
            dr_fail(DR_ERROR_UNSUPPORTED, "no configuration of rules with layers all alike says what this one of type %s does",
                    description.model_type);
    dr_description_release(&description);
    return status;
}

/* Whether a configuration is written as this type again. */
static dr_status keeps_type(const dr_model_config *config, const char *type, bool *keeps) {
    json_t *written = dr_config_write(config, "float32");
    const char *name = json_string_value(json_object_get(written, "model_type"));
    *keeps = name && strcmp(name, type) == 0;
    json_decref(written);
    return name ? DR_OK : dr_fail(DR_ERROR_MEMORY, "there is no memory for a configuration");
}

dr_status dr_model_build_published(dr_backend *backend, json_t *object, dr_model **model) {
    const char *type = json_string_value(json_object_get(object, "model_type"));
    dr_model_config config;
    dr_description description;
    bool own = false;
    if (type && strcmp(type, "deltarule") == 0) {
        char *layer_list = NULL;
        dr_status status = dr_config_read(object, &config, &layer_list);
        if (status == DR_OK) status = dr_model_build(backend, &config, model);
        dr_release(layer_list);
        return status;
    }
    DR_TRY(dr_published_read(object, &description));
    dr_status status = find_config(object, &description, &config, &own);
    if (status == DR_OK && own) status = keeps_type(&config, description.model_type, &own);
    if (status != DR_OK || own) {
        dr_description_release(&description);
        return status == DR_OK ? dr_model_build(backend, &config, model) : status;
    }
    config = seen_config(&description);
    DR_TRY(dr_model_build_described(backend, &description, &config, model));
    (*model)->published = json_incref(object);
    return DR_OK;
}
