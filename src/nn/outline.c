/* How a model computes, as JSON: for programs that compute it by other means, such as the modules of the Python package. Of a
 * recurrent mixer its list of nodes is written (nn/mixers/recurrent/recurrent.h), so that whoever reads it needs to know the
 * kinds of nodes and nothing of rules and their families. */
#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"
#include "nn/config.h"
#include "nn/mixers/recurrent/recurrent.h"
#include "nn/model.h"
#include "nn/published.h"
#include "rules/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- values that may be missing ---------------------------------------------------------------------------------------- */

/* The setters below return 0, or something else where there is no memory. */
static int set_text(json_t *object, const char *key, const char *text) {
    return json_object_set_new(object, key, json_string(text));
}

static int set_integer(json_t *object, const char *key, int64_t number) {
    return json_object_set_new(object, key, json_integer((json_int_t)number));
}

static int set_real(json_t *object, const char *key, double number) {
    return json_object_set_new(object, key, json_real(number));
}

static int set_boolean(json_t *object, const char *key, bool value) {
    return json_object_set_new(object, key, json_boolean(value));
}

static int set_parameter(json_t *object, const char *key, const dr_layer_parameters *list, int index) {
    return index == DR_NO_PARAMETER ? 0 : set_text(object, key, list->at[index].name);
}

static json_t *list_of(const double *numbers, int64_t count) {
    json_t *list = json_array();
    for (int64_t i = 0; i < count; i++)
        if (json_array_append_new(list, json_real(numbers[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* ---- parameters and norms ------------------------------------------------------------------------------------------------ */

static const char *first_name(dr_initial_kind kind) {
    switch (kind) {
    case DR_INITIAL_NORMAL:
        return "normal";
    case DR_INITIAL_UNIFORM:
        return "uniform";
    case DR_INITIAL_CONSTANT:
        return "constant";
    case DR_INITIAL_A_LOG:
        return "a_log";
    case DR_INITIAL_STEP:
        return "step";
    }
    return "";
}

static json_t *parameters_of(const dr_layer_parameters *list) {
    json_t *all = json_array();
    for (int i = 0; i < list->count; i++) {
        const dr_layer_parameter *parameter = &list->at[i];
        json_t *shape = json_array();
        int failed = 0;
        for (int axis = 0; axis < parameter->rank; axis++)
            failed |= json_array_append_new(shape, json_integer((json_int_t)parameter->shape[axis]));
        json_t *object =
            json_pack("{s:s, s:o, s:s, s:f, s:b}", "name", parameter->name, "shape", shape, "first",
                      first_name(parameter->initial.kind), "value", parameter->initial.value, "decays", parameter->decays);
        if (failed || json_array_append_new(all, object) != 0) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

/* null where there is no norm */
static json_t *norm_of(const dr_norm *norm, const dr_layer_parameters *list) {
    json_t *object = json_object();
    if (norm->kind == DR_NORM_NONE) {
        json_decref(object);
        return json_null();
    }
    const int failed = set_text(object, "kind", norm->kind == DR_NORM_RMS ? "rms" : "layer") |
                       set_real(object, "eps", norm->eps) | set_real(object, "offset", norm->offset) |
                       set_parameter(object, "weight", list, norm->weight) | set_parameter(object, "bias", list, norm->bias);
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

static const char *function_name(dr_function function) {
    static const char *const names[DR_FUNCTIONS] = {
        [DR_FUNCTION_IDENTITY] = "identity", [DR_FUNCTION_RELU] = "relu",           [DR_FUNCTION_SQUARED_RELU] = "squared_relu",
        [DR_FUNCTION_SIGMOID] = "sigmoid",   [DR_FUNCTION_SILU] = "silu",           [DR_FUNCTION_TANH] = "tanh",
        [DR_FUNCTION_GELU] = "gelu",         [DR_FUNCTION_GELU_TANH] = "gelu_tanh", [DR_FUNCTION_ELU_1] = "elu_1"};
    return names[function];
}

static const char *activation_name(dr_activation activation) {
    switch (activation) {
    case DR_ACTIVATION_NONE:
        break;
    case DR_ACTIVATION_SILU:
        return "silu";
    case DR_ACTIVATION_SIGMOID:
        return "sigmoid";
    }
    return "identity";
}

/* ---- recurrent mixers ---------------------------------------------------------------------------------------------------- */

static const char *gate_name(dr_gate_kind kind) {
    switch (kind) {
    case DR_GATE_SIGMOID:
        return "sigmoid";
    case DR_GATE_SOFTPLUS:
        return "softplus";
    case DR_GATE_LOG_DECAY:
        return "log_decay";
    case DR_GATE_KDA_BOUNDED:
        return "kda_bounded";
    case DR_GATE_EDA_BOUNDED:
        return "eda_bounded";
    case DR_GATE_LOG_SIGMOID:
        return "log_sigmoid";
    case DR_GATE_SILU:
        return "silu";
    case DR_GATE_IDENTITY:
        return "identity";
    }
    return "";
}

static int set_constant(json_t *object, dr_backend *backend, const dr_node_value *value) {
    void *host = NULL;
    if (!value->constant) return 0;
    if (dr_allocate((size_t)value->columns * sizeof(double), "a constant of a layer", &host) != DR_OK) return -1;
    int failed = backend->ops->download(backend, host, DR_F64, value->constant, value->columns) != DR_OK;
    if (!failed) failed = json_object_set_new(object, "constant", list_of(host, value->columns));
    dr_release(host);
    return failed;
}

static json_t *value_of(dr_backend *backend, const dr_node_value *value, const dr_layer_parameters *list) {
    json_t *object = json_object();
    const int failed = set_boolean(object, "rows", value->of_rows) | set_boolean(object, "number", value->kind == DR_NUMBER) |
                       set_integer(object, "columns", value->columns) |
                       set_parameter(object, "parameter", list, value->parameter) | set_constant(object, backend, value);
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

/* heads and dim stand apart from those of the node: a gate may share its parameters between heads */
static json_t *gate_of(const dr_gate *gate) {
    return json_pack("{s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:b}", "kind", gate_name(gate->kind), "heads",
                     (json_int_t)gate->heads, "dim", (json_int_t)gate->dim, "multiplier", gate->multiplier, "shift",
                     gate->shift, "lower_bound", gate->lower_bound, "upper_bound", gate->upper_bound, "a_log_per_channel",
                     gate->a_log_per_channel);
}

static json_t *output_of(const dr_rms_norm *norm) {
    return json_pack("{s:I, s:f, s:s, s:b}", "dim", (json_int_t)norm->dim, "eps", norm->eps, "gate",
                     activation_name(norm->gate), "gate_first", norm->gate_first);
}

/* What a node has beside the values that every node has. */
static int set_own(json_t *object, const dr_recurrent *mixer, const dr_node *node) {
    if (node->operations == &dr_node_gate) return json_object_set_new(object, "gate", gate_of(&node->gate));
    if (node->operations == &dr_node_output) return json_object_set_new(object, "norm", output_of(&node->norm));
    if (node->operations == &dr_node_function) return set_text(object, "function", function_name(node->function));
    if (node->operations == &dr_node_conv)
        return set_text(object, "function", node->activated ? "silu" : "identity") | set_integer(object, "conv", node->conv);
    if (node->operations == &dr_node_add || node->operations == &dr_node_fill) return set_real(object, "factor", node->factor);
    if (node->operations == &dr_node_rotary)
        return set_real(object, "factor", mixer->rotary_factor) |
               json_object_set_new(object, "frequencies", list_of(mixer->frequencies, node->dim / 2));
    if (node->operations == &dr_node_scale && node->adds) return set_integer(object, "onto", mixer->value[node->to].memory);
    return 0;
}

static json_t *node_of(const dr_recurrent *mixer, const dr_node *node, const dr_layer_parameters *list) {
    json_t *object = json_object();
    int failed = set_text(object, "name", node->operations->name) | set_integer(object, "to", node->to);
    if (node->from != DR_NO_VALUE) failed |= set_integer(object, "from", node->from);
    if (node->with != DR_NO_VALUE) failed |= set_integer(object, "with", node->with);
    if (node->heads > 0) failed |= set_integer(object, "heads", node->heads) | set_integer(object, "dim", node->dim);
    failed |= set_parameter(object, "weight", list, node->weight) | set_parameter(object, "bias", list, node->bias) |
              set_own(object, mixer, node);
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

/* The projections that are columns of a panel, one by one. */
static int append_members(json_t *nodes, const dr_recurrent *mixer, const dr_node *panel, const dr_layer_parameters *list) {
    dr_node member = *panel;
    int failed = 0;
    member.members = 0;
    for (int i = 0; i < mixer->values; i++) {
        if (mixer->value[i].panel != panel->to) continue;
        member.to = i;
        failed |= json_array_append_new(nodes, node_of(mixer, &member, list));
        member.weight = list->at[member.weight].next;
    }
    return failed;
}

static int append_node(json_t *nodes, const dr_recurrent *mixer, const dr_node *node, const dr_layer_parameters *list) {
    if (node->members > 0) return append_members(nodes, mixer, node, list);
    return json_array_append_new(nodes, node_of(mixer, node, list));
}

static json_t *recurrent_of(dr_backend *backend, const dr_recurrent *mixer, const dr_layer_parameters *list) {
    json_t *inputs = json_object(), *values = json_array(), *nodes = json_array();
    int failed = 0;
    for (int i = 0; i < DR_INPUTS; i++)
        if (mixer->input[i] != DR_NO_VALUE) failed |= set_integer(inputs, dr_input_name((dr_input)i), mixer->input[i]);
    for (int i = 0; i < mixer->values; i++) failed |= json_array_append_new(values, value_of(backend, &mixer->value[i], list));
    for (int i = 0; i < mixer->nodes; i++) failed |= append_node(nodes, mixer, &mixer->node[i], list);
    json_t *object =
        json_pack("{s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:f, s:o, s:o, s:o, s:i}", "kind", "recurrent", "rule",
                  dr_rule_to_json(&mixer->rule, NULL), "heads", (json_int_t)mixer->heads, "value_heads",
                  (json_int_t)mixer->value_heads, "key_size", (json_int_t)mixer->key_size, "value_size",
                  (json_int_t)mixer->value_size, "conv_size", (json_int_t)mixer->is.conv_size, "scale", mixer->is.query_scale,
                  "inputs", inputs, "values", values, "nodes", nodes, "output", mixer->output);
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

/* ---- attention and feed-forwards -------------------------------------------------------------------------------------------
 */

static const char *attention_gate_name(dr_attention_gate gate) {
    switch (gate) {
    case DR_GATED_NOT:
        break;
    case DR_GATED_BY_ELEMENT:
        return "element";
    case DR_GATED_BY_HEAD:
        return "head";
    }
    return "none";
}

static int set_frequencies(json_t *object, const dr_attention_description *attention) {
    double *frequencies = NULL, factor = 1;
    if (!attention->rotary) return 0;
    if (dr_rotary_make(&attention->spectrum, &frequencies, &factor) != DR_OK) return -1;
    const int failed = set_real(object, "factor", factor) | set_boolean(object, "interleaved", attention->interleaved) |
                       json_object_set_new(object, "frequencies", list_of(frequencies, attention->spectrum.dim / 2));
    dr_release(frequencies);
    return failed;
}

static json_t *attention_of(const dr_attention_description *attention) {
    json_t *object = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:f, s:I, s:s, s:f, s:b}", "kind", "attention", "heads", (json_int_t)attention->heads,
        "key_heads", (json_int_t)attention->key_heads, "key_size", (json_int_t)attention->key_size, "value_size",
        (json_int_t)attention->value_size, "scale", attention->scale * attention->key_factor, "window",
        (json_int_t)attention->window, "gate", attention_gate_name(attention->gate), "norm_eps",
        attention->query_norm.kind == DR_NORM_NONE ? 0 : attention->query_norm.eps, "norm_whole", attention->norm_whole);
    if (object && set_frequencies(object, attention) == 0) return object;
    json_decref(object);
    return NULL;
}

static json_t *gated_of(const dr_feed_forward_description *feed) {
    return json_pack("{s:s, s:I, s:s, s:b}", "kind", "gated", "width", (json_int_t)feed->width, "function",
                     function_name(feed->function), "bias", feed->bias);
}

static json_t *experts_of(const dr_experts_description *experts) {
    const dr_router *router = &experts->router;
    return json_pack("{s:s, s:I, s:I, s:I, s:s, s:I, s:b, s:b, s:b, s:b, s:f, s:f}", "kind", "experts", "count",
                     (json_int_t)router->of.experts, "chosen", (json_int_t)router->of.chosen, "width",
                     (json_int_t)experts->expert.width, "function", function_name(experts->expert.function), "shared",
                     (json_int_t)experts->shared, "shared_gate", experts->shared_gate, "sigmoid", router->sigmoid, "normalised",
                     router->normalised, "corrected", experts->corrected, "scale", router->scale, "balance", experts->balance);
}

/* ---- layers -------------------------------------------------------------------------------------------------------------- */

/* Whether what a layer has beside its parts' own fields is what an own configuration can say. */
static bool is_own(const dr_model *model) {
    return !model->published && model->passed == 0 && model->description.residual == DR_RESIDUAL_SUM;
}

static json_t *module_of(dr_backend *backend, const dr_layer *layer, int index) {
    const dr_layer_description *is = layer->description;
    const dr_module *module = layer->part[index].module;
    if (index == 0 && is->mixers > 0) {
        if (module->operations == &dr_recurrent_operations)
            return recurrent_of(backend, (const dr_recurrent *)module, &layer->list);
        return attention_of(&is->mixer[0].of.attention);
    }
    return is->feed.kind == DR_FEED_GATED ? gated_of(&is->feed.of.forward) : experts_of(&is->feed.of.experts);
}

static json_t *layer_of(dr_backend *backend, const dr_layer *layer) {
    json_t *parts = json_array();
    int failed = 0;
    for (int i = 0; i < layer->parts; i++)
        failed |= json_array_append_new(parts, json_pack("{s:o, s:o}", "norm", norm_of(&layer->part[i].before, &layer->list),
                                                         "module", module_of(backend, layer, i)));
    json_t *object = json_pack("{s:o, s:o}", "parameters", parameters_of(&layer->list), "parts", parts);
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

static json_t *outline_of(const dr_model *model) {
    json_t *kinds = json_array(), *layers = json_array();
    int failed = 0;
    for (int64_t i = 0; i < model->kind_count; i++)
        failed |= json_array_append_new(kinds, layer_of(model->backend, &model->kinds[i]));
    for (int64_t i = 0; i < model->description.count; i++)
        failed |= json_array_append_new(layers, json_integer((json_int_t)(model->layers[i].kind - model->kinds)));
    json_t *object =
        json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "config", dr_config_write_own(&model->config, "float32"), "published",
                  dr_config_write(&model->config, "float32"), "norm", norm_of(&model->final_norm, &model->trunk), "trunk",
                  parameters_of(&model->trunk), "kinds", kinds, "layers", layers);
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

static dr_status make(dr_backend *backend, const char *config, char **whole) {
    json_t *object = NULL;
    dr_model *model = NULL;
    DR_TRY(dr_json_parse_lenient(config, strlen(config), "the configuration", &object));
    dr_status status = dr_model_build_published(backend, object, &model);
    json_decref(object);
    DR_TRY(status);
    if (!is_own(model)) {
        status = dr_fail(DR_ERROR_UNSUPPORTED,
                         "a model of type %s has parts that no configuration of model_type \"deltarule\" says, so there is no "
                         "outline of it",
                         model->description.model_type);
    } else {
        json_t *outline = outline_of(model);
        *whole = outline ? dr_json_format(outline, JSON_COMPACT) : NULL;
        json_decref(outline);
        if (!*whole) status = dr_fail(DR_ERROR_MEMORY, "there is no memory for the outline of a model");
    }
    dr_model_destroy(model);
    return status;
}

int dr_model_outline(dr_backend *backend, const char *config, char *text, size_t size) {
    char *whole = NULL;
    if (!backend || !config || (!text && size > 0)) {
        (void)dr_fail(DR_ERROR_ARGUMENT, "dr_model_outline: %s is NULL", !backend ? "backend" : !config ? "config" : "text");
        return -1;
    }
    if (make(backend, config, &whole) != DR_OK) return -1;
    const int length = snprintf(text, size, "%s", whole);
    free(whole);
    return length;
}
