/* Texts of layers: parsing of the short form, expansion of repeats, and the description of each layer. */
#include "nn/layer_list.h"
#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"
#include "nn/config.h"
#include "nn/describe.h"
#include "rules/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEPTH = 8, LONGEST_NAME = 64 };

/* ---- the short form ------------------------------------------------------------------------------------------------- */

/* list = item {" " item};  item = (name | "(" list ")") ["+" name] ["*" number] */
typedef struct {
    const char *at;
    int depth;
} reader;

static dr_status bad_text(const reader *r, const char *wanted) {
    char found[24] = "its end";
    if (*r->at) snprintf(found, sizeof found, "\"%.16s\"", r->at);
    return dr_fail(DR_ERROR_ARGUMENT,
                   "a list of layers has %s where %s must stand; it is such as \"(eda*3 attention)*6\", or a JSON list", found,
                   wanted);
}

static void skip_blanks(reader *r) {
    while (*r->at == ' ' || *r->at == '\n' || *r->at == '\t') r->at++;
}

static size_t word_at(const char *text) {
    return strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
}

/* Sets a key of an item to the word that stands here. */
static dr_status read_word(reader *r, json_t *item, const char *key) {
    const size_t length = word_at(r->at);
    if (length == 0 || length > LONGEST_NAME) return bad_text(r, "a name");
    if (json_object_set_new(item, key, json_stringn(r->at, length)) != 0)
        return dr_fail(DR_ERROR_MEMORY, "there is no memory for a list of layers");
    r->at += length;
    return DR_OK;
}

static dr_status read_repeat(reader *r, json_t *item) {
    char *end = NULL;
    if (*r->at != '*') return DR_OK;
    r->at++;
    if (strspn(r->at, "0123456789") == 0) return bad_text(r, "how often the layer comes");
    const long long times = strtoll(r->at, &end, 10);
    if (times < 1 || times > DR_MOST_LAYERS) return bad_text(r, "a number from 1 to 16384");
    r->at = end;
    if (json_object_set_new(item, "repeat", json_integer(times)) != 0)
        return dr_fail(DR_ERROR_MEMORY, "there is no memory for a list of layers");
    return DR_OK;
}

static dr_status read_list(reader *r, json_t *list);

static dr_status read_item(reader *r, json_t *item) {
    if (*r->at != '(') {
        DR_TRY(read_word(r, item, "mixer"));
        if (*r->at != '+') return read_repeat(r, item);
        r->at++;
        DR_TRY(read_word(r, item, "feed"));
        return read_repeat(r, item);
    }
    json_t *inner = json_array();
    if (json_object_set_new(item, "layers", inner) != 0)
        return dr_fail(DR_ERROR_MEMORY, "there is no memory for a list of layers");
    if (++r->depth > MOST_DEPTH) return dr_fail(DR_ERROR_ARGUMENT, "a list of layers is more than %d deep", MOST_DEPTH);
    r->at++;
    DR_TRY(read_list(r, inner));
    if (*r->at != ')') return bad_text(r, "a closing bracket");
    r->at++, r->depth--;
    return read_repeat(r, item);
}

static dr_status read_list(reader *r, json_t *list) {
    for (skip_blanks(r); *r->at && *r->at != ')'; skip_blanks(r)) {
        json_t *item = json_object();
        if (json_array_append_new(list, item) != 0) return dr_fail(DR_ERROR_MEMORY, "there is no memory for a list of layers");
        DR_TRY(read_item(r, item));
        if (*r->at && *r->at != ' ' && *r->at != ')') return bad_text(r, "a blank");
    }
    if (json_array_size(list) == 0) return bad_text(r, "a layer");
    return DR_OK;
}

static dr_status parse_short(const char *text, json_t **list) {
    reader r = {.at = text};
    json_t *made = json_array();
    dr_status status = made ? read_list(&r, made) : dr_fail(DR_ERROR_MEMORY, "there is no memory for a list of layers");
    if (status == DR_OK && *r.at) status = bad_text(&r, "a layer");
    if (status == DR_OK)
        *list = made;
    else
        json_decref(made);
    return status;
}

dr_status dr_layer_list_parse(const char *text, json_t **list) {
    const char *begin = text + strspn(text, " \t\n");
    if (*begin != '[') return parse_short(text, list);
    *list = dr_json_value(begin);
    if (json_is_array(*list)) return DR_OK;
    json_decref(*list);
    return dr_fail(DR_ERROR_ARGUMENT, "the list of layers is no JSON list: \"%.40s\"", begin);
}

dr_status dr_layer_list_text(const json_t *list, char **text) {
    char *made = dr_json_format(list, JSON_COMPACT);
    if (!made) return dr_fail(DR_ERROR_MEMORY, "there is no memory for a list of layers");
    const dr_status status = dr_copy_string(made, text);
    free(made);
    return status;
}

/* ---- expansion ------------------------------------------------------------------------------------------------------- */

/* Calls visit for each layer in turn. */
typedef struct {
    dr_status (*visit)(void *context, const json_t *item, int64_t index);
    void *context;
    int64_t count;
} walk;

static dr_status walk_list(walk *w, const json_t *list, int depth);

static dr_status walk_item(walk *w, const json_t *item, int depth) {
    const json_t *inner = json_object_get(item, "layers");
    int64_t times = 1;
    if (!json_is_object(item)) return dr_fail(DR_ERROR_ARGUMENT, "layer %" PRId64 " is no JSON object", w->count);
    DR_TRY(dr_json_integer(item, "repeat", 1, DR_MOST_LAYERS, &times));
    for (int64_t i = 0; i < times; i++) {
        if (inner) {
            DR_TRY(walk_list(w, inner, depth + 1));
            continue;
        }
        if (w->count == DR_MOST_LAYERS) return dr_fail(DR_ERROR_ARGUMENT, "the list has more than %d layers", DR_MOST_LAYERS);
        if (w->visit) DR_TRY(w->visit(w->context, item, w->count));
        w->count++;
    }
    return DR_OK;
}

static dr_status walk_list(walk *w, const json_t *list, int depth) {
    if (!json_is_array(list) || json_array_size(list) == 0)
        return dr_fail(DR_ERROR_ARGUMENT, "\"layers\" is no list of layers, or has none");
    if (depth > MOST_DEPTH) return dr_fail(DR_ERROR_ARGUMENT, "a list of layers is more than %d deep", MOST_DEPTH);
    for (size_t i = 0; i < json_array_size(list); i++) DR_TRY(walk_item(w, json_array_get(list, i), depth));
    return DR_OK;
}

dr_status dr_layer_list_count(const json_t *list, int64_t *count) {
    walk w = {0};
    const dr_status status = walk_list(&w, list, 1);
    *count = w.count;
    return status == DR_ERROR_FORMAT ? DR_ERROR_ARGUMENT : status;
}

/* ---- attention and experts ------------------------------------------------------------------------------------------- */

static dr_status read_heads(const json_t *item, const dr_model_config *defaults, dr_attention_description *attention) {
    attention->heads = defaults->heads;
    DR_TRY(dr_json_integer(item, "heads", 1, DR_LARGEST_SIZE, &attention->heads));
    attention->key_heads = attention->heads;
    DR_TRY(dr_json_integer(item, "key_heads", 1, DR_LARGEST_SIZE, &attention->key_heads));
    if (attention->heads % attention->key_heads != 0)
        return dr_fail(DR_ERROR_ARGUMENT, "heads is %" PRId64 "; it must be a multiple of key_heads, %" PRId64,
                       attention->heads, attention->key_heads);
    attention->key_size = defaults->key_size > 0 ? defaults->key_size : defaults->hidden / attention->heads;
    DR_TRY(dr_json_integer(item, "key_size", 1, DR_LARGEST_SIZE, &attention->key_size));
    attention->value_size = attention->key_size;
    if (attention->key_size < 1) return dr_fail(DR_ERROR_ARGUMENT, "hidden is less than heads: give the attention a key_size");
    return dr_json_integer(item, "value_size", 1, DR_LARGEST_SIZE, &attention->value_size);
}

static dr_status read_gate(const json_t *item, dr_attention_gate *gate) {
    static const char *const words[] = {"none", "element", "head", NULL};
    const char *word = words[0];
    DR_TRY(dr_json_text(item, "gate", &word));
    for (int i = 0; words[i]; i++)
        if (strcmp(word, words[i]) == 0) {
            *gate = (dr_attention_gate)i;
            return DR_OK;
        }
    return dr_json_fail_unknown("gate of an attention", word, words);
}

static dr_status read_attention(const json_t *item, const dr_model_config *defaults, dr_attention_description *attention) {
    static const char *const keys[] = {"mixer",     "feed",           "repeat",     "experts", "intermediate", "heads",
                                       "key_heads", "key_size",       "value_size", "window",  "rotary_base",  "rotary_size",
                                       "gate",      "query_key_norm", "bias",       NULL};
    bool norm = false, bias = false;
    double base = 10000;
    DR_TRY(dr_json_known(item, keys));
    DR_TRY(read_heads(item, defaults, attention));
    attention->scale = 1 / sqrt((double)attention->key_size);
    attention->key_factor = 1;
    DR_TRY(dr_json_integer(item, "window", 0, INT64_C(1) << 40, &attention->window));
    DR_TRY(dr_json_boolean(item, "bias", &bias));
    attention->query_bias = attention->key_bias = attention->value_bias = bias;
    DR_TRY(dr_json_boolean(item, "query_key_norm", &norm));
    if (norm)
        attention->query_norm = attention->key_norm = (dr_norm_description){.kind = DR_NORM_RMS, .eps = defaults->norm_eps};
    int64_t turned = attention->key_size;
    DR_TRY(dr_json_real(item, "rotary_base", 0, 1e12, &base));
    DR_TRY(dr_json_integer(item, "rotary_size", 2, attention->key_size, &turned));
    attention->rotary = base > 0;
    attention->spectrum = (dr_rotary_spectrum){.kind = DR_ROTARY_PLAIN, .dim = turned, .base = base};
    if (attention->rotary) DR_TRY(dr_rotary_check(&attention->spectrum));
    return read_gate(item, &attention->gate);
}

static dr_feed_forward_description gated(int64_t width) {
    return (dr_feed_forward_description){.width = width, .function = DR_FUNCTION_SILU, .gate_factor = 1, .down_factor = 1};
}

static dr_status read_experts(const json_t *object, int64_t width, dr_experts_description *experts) {
    static const char *const keys[] = {"count",      "chosen", "width",     "shared",  "shared_gate", "scores",
                                       "normalised", "scale",  "corrected", "balance", NULL};
    static const char *const scores[] = {"softmax", "sigmoid", NULL};
    const char *score = scores[0];
    int64_t count = 4, chosen = 2;
    double scale = 1;
    bool normalised = true;
    if (object && !json_is_object(object)) return dr_fail(DR_ERROR_ARGUMENT, "\"experts\" is no JSON object");
    *experts = (dr_experts_description){.gated = true};
    if (object) {
        DR_TRY(dr_json_known(object, keys));
        DR_TRY(dr_json_integer(object, "count", 1, 1 << 16, &count));
        if (chosen > count) chosen = count;
        DR_TRY(dr_json_integer(object, "chosen", 1, count, &chosen));
        DR_TRY(dr_json_integer(object, "width", 1, DR_LARGEST_SIZE, &width));
        DR_TRY(dr_json_integer(object, "shared", 0, DR_LARGEST_SIZE, &experts->shared));
        DR_TRY(dr_json_boolean(object, "shared_gate", &experts->shared_gate));
        DR_TRY(dr_json_boolean(object, "normalised", &normalised));
        DR_TRY(dr_json_real(object, "scale", 1e-6, 1e6, &scale));
        DR_TRY(dr_json_boolean(object, "corrected", &experts->corrected));
        DR_TRY(dr_json_real(object, "balance", 0, 1e6, &experts->balance));
        DR_TRY(dr_json_text(object, "scores", &score));
    }
    const bool sigmoid = strcmp(score, scores[1]) == 0;
    if (!sigmoid && strcmp(score, scores[0]) != 0) return dr_json_fail_unknown("scores of experts", score, scores);
    experts->router = (dr_router){.of = {.experts = count, .chosen = chosen},
                                  .sigmoid = sigmoid,
                                  .normalised = normalised,
                                  .groups = 1,
                                  .kept = 1,
                                  .scale = scale};
    experts->expert = gated(width);
    return dr_router_check(&experts->router);
}

/* ---- one layer ------------------------------------------------------------------------------------------------------- */

/* The configuration of a layer whose mixer is a rule: the model's sizes, the rule's own family, then what the item says. */
static dr_status read_rule(const json_t *item, const dr_model_config *defaults, dr_model_config *config) {
    const json_t *mixer = json_object_get(item, "mixer");
    dr_rule rule = defaults->rule;
    dr_gates gates = defaults->gates;
    if (mixer) {
        gates = dr_gates_default();
        gates.negative_eigenvalues = defaults->gates.negative_eigenvalues;
        DR_TRY(dr_rule_from_json(mixer, &rule, &gates));
    }
    *config = dr_model_config_default(&rule);
    config->gates = gates;
    config->vocabulary = defaults->vocabulary, config->hidden = defaults->hidden, config->layers = 1;
    config->heads = defaults->heads, config->value_heads = defaults->value_heads;
    config->key_size = defaults->key_size, config->value_size = defaults->value_size;
    config->intermediate = defaults->intermediate, config->output_gate = defaults->output_gate;
    config->force = defaults->force, config->lambda_bias = defaults->lambda_bias, config->norm_eps = defaults->norm_eps;
    config->initializer_range = defaults->initializer_range;
    config->conv_initializer_range = defaults->conv_initializer_range;
    if (!mixer) config->conv_size = defaults->conv_size, config->a_log_per_channel = defaults->a_log_per_channel;
    return dr_config_read_layer(item, config);
}

static bool names(const json_t *item, const char *key, const char *word) {
    const char *value = json_string_value(json_object_get(item, key));
    return value && strcmp(value, word) == 0;
}

static dr_status read_feed(const json_t *item, const dr_model_config *defaults, dr_layer_description *layer) {
    static const char *const words[] = {"swiglu", "experts", "none", NULL};
    const char *word = json_object_get(item, "experts") ? words[1] : defaults->intermediate == 0 ? words[2] : words[0];
    int64_t width = defaults->intermediate;
    DR_TRY(dr_json_text(item, "feed", &word));
    DR_TRY(dr_json_integer(item, "intermediate", 1, DR_LARGEST_SIZE, &width));
    if (width < 0) width = dr_config_intermediate(defaults->hidden);
    layer->feed = (dr_feed_description){.kind = DR_FEED_NONE};
    layer->feed_norm = (dr_norm_description){.kind = DR_NORM_NONE};
    if (strcmp(word, words[2]) == 0) return DR_OK;
    if (width == 0) return dr_fail(DR_ERROR_ARGUMENT, "the feed-forward has no width: give the layer an intermediate");
    layer->feed_norm = (dr_norm_description){.kind = DR_NORM_RMS, .eps = defaults->norm_eps};
    if (strcmp(word, words[0]) == 0) {
        layer->feed = (dr_feed_description){.kind = DR_FEED_GATED, .of = {.forward = gated(width)}};
        return DR_OK;
    }
    if (strcmp(word, words[1]) != 0) return dr_json_fail_unknown("feed-forward", word, words);
    layer->feed.kind = DR_FEED_EXPERTS;
    return read_experts(json_object_get(item, "experts"), width, &layer->feed.of.experts);
}

static dr_status describe_layer(const json_t *item, const dr_model_config *defaults, dr_layer_description *layer) {
    layer->mixers = 1;
    layer->mixer_norm = (dr_norm_description){.kind = DR_NORM_RMS, .eps = defaults->norm_eps};
    dr_mixer_description *mixer = &layer->mixer[0];
    mixer->input_scale = mixer->output_scale = 1;
    if (names(item, "mixer", "attention")) {
        mixer->kind = DR_MIXER_ATTENTION;
        DR_TRY(read_attention(item, defaults, &mixer->of.attention));
    } else {
        dr_model_config config, resolved;
        DR_TRY(read_rule(item, defaults, &config));
        DR_TRY(dr_config_resolve(&config, &resolved));
        mixer->kind = DR_MIXER_RECURRENT;
        dr_describe_recurrent(&resolved, &mixer->of.recurrent);
    }
    return read_feed(item, defaults, layer);
}

typedef struct {
    const dr_model_config *defaults;
    dr_layer_description *layers;
} description;

static dr_status describe_at(void *context, const json_t *item, int64_t index) {
    const description *d = context;
    const dr_status status = describe_layer(item, d->defaults, &d->layers[index]);
    if (status == DR_OK) return DR_OK;
    return dr_fail_in(status == DR_ERROR_FORMAT ? DR_ERROR_ARGUMENT : status, "layer %" PRId64, index);
}

dr_status dr_layer_list_describe(const json_t *list, const dr_model_config *defaults, dr_layer_description *layers) {
    description d = {defaults, layers};
    walk w = {describe_at, &d, 0};
    return walk_list(&w, list, 1);
}
