/* From a rule to a mixer: which streams and parameters each option of an axis needs. The rule is asked what it reads
 * (dr_rule_uses), never for its name, so every composition gets its layer here too. */
#include "nn/mixer.h"
#include "base/error.h"
#include <math.h>
#include <string.h>

enum { LOW_RANK = 16 }; /* of gla's gate, and of each head of an erase key or an erase-then-delta decay */

static const dr_initial normal = {DR_INITIAL_NORMAL, 0}, zero = {DR_INITIAL_CONSTANT, 0}, one = {DR_INITIAL_CONSTANT, 1};

static dr_stream *begin_stream(dr_mixer *mixer, dr_input input, int64_t heads, int64_t dim) {
    dr_stream *stream = &mixer->stream[mixer->streams];
    *stream = (dr_stream){.input = input,
                          .down = DR_ROLES,
                          .weight = DR_ROLES,
                          .bias = DR_ROLES,
                          .rank = mixer->hidden,
                          .heads = heads,
                          .dim = dim,
                          .map_weight = DR_ROLES,
                          .map_bias = DR_ROLES};
    mixer->of[input] = mixer->streams++;
    return stream;
}

static dr_status add_straight(dr_mixer *mixer, dr_input input, dr_role weight, int64_t heads, int64_t dim) {
    dr_stream *stream = begin_stream(mixer, input, heads, dim);
    stream->weight = weight;
    return dr_slot_fill(mixer->slot, weight, normal, heads * dim, mixer->hidden, 0);
}

static dr_status add_bias(dr_mixer *mixer, dr_input input, dr_role bias) {
    dr_stream *stream = &mixer->stream[mixer->of[input]];
    stream->bias = bias;
    return dr_slot_fill(mixer->slot, bias, zero, stream->heads * stream->dim, 0, 0);
}

/* bias may be DR_ROLES; grouped: rank is that of each head */
static dr_status add_low_rank(dr_mixer *mixer, dr_input input, dr_role down, dr_role up, dr_role bias, int64_t heads,
                              int64_t dim, int64_t rank, bool grouped) {
    dr_stream *stream = begin_stream(mixer, input, heads, dim);
    stream->down = down;
    stream->weight = up;
    stream->bias = bias;
    stream->grouped = grouped;
    stream->rank = grouped ? heads * rank : rank;
    DR_TRY(dr_slot_fill(mixer->slot, down, normal, stream->rank, mixer->hidden, 0));
    if (grouped)
        DR_TRY(dr_slot_fill(mixer->slot, up, normal, heads, dim, rank));
    else
        DR_TRY(dr_slot_fill(mixer->slot, up, normal, heads * dim, rank, 0));
    return bias == DR_ROLES ? DR_OK : dr_slot_fill(mixer->slot, bias, zero, heads * dim, 0, 0);
}

static void set_gate(dr_stream *stream, dr_gate_kind kind, double multiplier, double shift) {
    stream->map = DR_MAP_GATE;
    stream->gate =
        (dr_gate){.kind = kind, .heads = stream->heads, .dim = stream->dim, .multiplier = multiplier, .shift = shift};
}

/* ---- query, key, value ---------------------------------------------------------------------------------------------- */

static dr_status add_token_stream(dr_mixer *mixer, dr_input input, dr_role weight, dr_role conv, dr_role conv_bias,
                                  int64_t heads, int64_t dim) {
    DR_TRY(add_straight(mixer, input, weight, heads, dim));
    dr_stream *stream = &mixer->stream[mixer->of[input]];
    if (input == DR_INPUT_VALUE && mixer->family.plain_value) return DR_OK;
    if (mixer->conv_size > 0) {
        stream->map = DR_MAP_CONV;
        stream->map_weight = conv;
        DR_TRY(dr_slot_fill(mixer->slot, conv, mixer->conv_initial, heads * dim, 1, mixer->conv_size));
        if (mixer->family.conv_bias) {
            stream->map_bias = conv_bias;
            DR_TRY(dr_slot_fill(mixer->slot, conv_bias, zero, heads * dim, 0, 0));
        }
    } else if (mixer->family.activated) {
        set_gate(stream, DR_GATE_SILU, 1, 0);
    }
    dr_unit unit = mixer->family.unit;
    stream->unit = (input == DR_INPUT_QUERY && unit != DR_UNIT_NONE) || (input == DR_INPUT_KEY && unit == DR_UNIT_BOTH);
    stream->rotated = input != DR_INPUT_VALUE && mixer->rotary_base > 0;
    return DR_OK;
}

static dr_status add_tokens(dr_mixer *mixer) {
    int64_t steps = mixer->rule.repeat;
    DR_TRY(add_token_stream(mixer, DR_INPUT_QUERY, DR_ROLE_QUERY, DR_ROLE_QUERY_CONV, DR_ROLE_QUERY_CONV_BIAS, mixer->heads,
                            mixer->key_size));
    DR_TRY(add_token_stream(mixer, DR_INPUT_KEY, DR_ROLE_KEY, DR_ROLE_KEY_CONV, DR_ROLE_KEY_CONV_BIAS, steps * mixer->heads,
                            mixer->key_size));
    return add_token_stream(mixer, DR_INPUT_VALUE, DR_ROLE_VALUE, DR_ROLE_VALUE_CONV, DR_ROLE_VALUE_CONV_BIAS,
                            steps * mixer->value_heads, mixer->value_size);
}

/* ---- decay ---------------------------------------------------------------------------------------------------------- */

static dr_status add_decay_projection(dr_mixer *mixer) {
    int64_t heads = mixer->value_heads, dim = mixer->key_size;
    const dr_role down = DR_ROLE_DECAY_DOWN, up = DR_ROLE_DECAY_UP;
    if (mixer->rule.decay == DR_DECAY_SCALAR) {
        DR_TRY(add_straight(mixer, DR_INPUT_LOG_DECAY, DR_ROLE_DECAY, heads, 1));
        return mixer->family.gains_biased ? add_bias(mixer, DR_INPUT_LOG_DECAY, DR_ROLE_DECAY_BIAS) : DR_OK;
    }
    switch (mixer->family.decay) {
    case DR_DECAY_LOW_RANK_HEADS:
        return add_low_rank(mixer, DR_INPUT_LOG_DECAY, down, up, DR_ROLES, heads, dim, LOW_RANK, true);
    case DR_DECAY_LOW_RANK_BIAS:
        return add_low_rank(mixer, DR_INPUT_LOG_DECAY, down, up, DR_ROLE_DECAY_UP_BIAS, heads, dim, LOW_RANK, false);
    default:
        return add_low_rank(mixer, DR_INPUT_LOG_DECAY, down, up, DR_ROLES, heads, dim, mixer->value_size, false);
    }
}

static dr_status add_decay(dr_mixer *mixer, const dr_model_config *config) {
    DR_TRY(add_decay_projection(mixer));
    dr_stream *stream = &mixer->stream[mixer->of[DR_INPUT_LOG_DECAY]];
    if (mixer->family.log_sigmoid > 0) {
        set_gate(stream, DR_GATE_LOG_SIGMOID, mixer->family.log_sigmoid, 0);
        return DR_OK;
    }
    dr_initial a_log = {DR_INITIAL_A_LOG, mixer->family.a_least};
    dr_gate_kind kind = DR_GATE_LOG_DECAY;
    if (config->gates.gate == DR_GATE_FORM_KDA_BOUNDED) {
        kind = DR_GATE_KDA_BOUNDED;
        a_log = zero;
    } else if (config->gates.gate == DR_GATE_FORM_EDA_BOUNDED) {
        kind = DR_GATE_EDA_BOUNDED;
    }
    set_gate(stream, kind, 1, 0);
    stream->gate.lower_bound = config->gates.lower_bound;
    stream->map_weight = DR_ROLE_A_LOG;
    stream->map_bias = DR_ROLE_DT_BIAS;
    stream->gate.a_log_per_channel = config->a_log_per_channel;
    DR_TRY(dr_slot_fill(mixer->slot, DR_ROLE_A_LOG, a_log, stream->heads, config->a_log_per_channel ? stream->dim : 0, 0));
    return dr_slot_fill(mixer->slot, DR_ROLE_DT_BIAS, (dr_initial){DR_INITIAL_STEP, 0}, stream->heads * stream->dim, 0, 0);
}

/* RetNet's: log(1 - 2^(-5-h)) for value head h, no parameter */
static dr_status make_constant_decay(dr_backend *backend, dr_mixer *mixer) {
    int64_t heads = mixer->value_heads;
    void *host = NULL;
    DR_TRY(dr_allocate((size_t)heads * sizeof(double), "constant decays", &host));
    double *decay = host;
    for (int64_t h = 0; h < heads; h++) decay[h] = log1p(-exp2((double)(-5 - h)));
    dr_status status = backend->ops->allocate(backend, dr_kind_bytes(backend, DR_NUMBER, heads), &mixer->constant_decay);
    if (status == DR_OK) status = backend->ops->upload(backend, mixer->constant_decay, decay, DR_F64, heads);
    dr_release(host);
    return status;
}

/* ---- gains, erase keys, gates --------------------------------------------------------------------------------------- */

static dr_status add_sigmoid(dr_mixer *mixer, dr_input input, dr_role weight, int64_t heads, int64_t dim, double multiplier,
                             double shift) {
    if (!dr_rule_uses(&mixer->rule, input)) return DR_OK;
    DR_TRY(add_straight(mixer, input, weight, heads, dim));
    set_gate(&mixer->stream[mixer->of[input]], DR_GATE_SIGMOID, multiplier, shift);
    return DR_OK;
}

/* sigmoid of a projection less a constant, or plus one number that the layer learns; or no stream where it is fixed */
static dr_status add_lambda(dr_mixer *mixer, const dr_model_config *config, double reach) {
    const dr_initial low = {DR_INITIAL_CONSTANT, -0.8};
    if (!dr_rule_uses(&mixer->rule, DR_INPUT_LAMBDA)) return DR_OK;
    if (config->gates.lambda == DR_LAMBDA_FIXED) {
        mixer->fixed_lambda = reach * config->gates.lambda_value;
        return DR_OK;
    }
    bool learned = config->gates.lambda_bias_learned;
    DR_TRY(
        add_sigmoid(mixer, DR_INPUT_LAMBDA, DR_ROLE_LAMBDA, mixer->value_heads, 1, reach, learned ? 0 : -config->lambda_bias));
    if (!learned) return DR_OK;
    dr_stream *stream = &mixer->stream[mixer->of[DR_INPUT_LAMBDA]];
    stream->gate.heads = 1;
    stream->map_bias = DR_ROLE_LAMBDA_BIAS;
    return dr_slot_fill(mixer->slot, DR_ROLE_LAMBDA_BIAS, low, 1, 0, 0);
}

static dr_status add_gains(dr_mixer *mixer, const dr_model_config *config) {
    int64_t heads = mixer->value_heads;
    double reach = config->gates.negative_eigenvalues ? 2 : 1; /* of a step along the key it erases */
    DR_TRY(add_sigmoid(mixer, DR_INPUT_BETA, DR_ROLE_BETA, mixer->rule.repeat * heads, 1, reach, 0));
    if (mixer->family.gains_biased && mixer->of[DR_INPUT_BETA] >= 0) DR_TRY(add_bias(mixer, DR_INPUT_BETA, DR_ROLE_BETA_BIAS));
    DR_TRY(add_sigmoid(mixer, DR_INPUT_ERASE_GAIN, DR_ROLE_ERASE_GAIN, heads, 1, 1, 0));
    DR_TRY(add_lambda(mixer, config, reach));
    DR_TRY(add_sigmoid(mixer, DR_INPUT_ERASE_GATE, DR_ROLE_ERASE_GATE, heads, mixer->key_size, reach, 0));
    DR_TRY(add_sigmoid(mixer, DR_INPUT_WRITE_GATE, DR_ROLE_WRITE_GATE, heads, mixer->value_size, 1, 0));
    if (!dr_rule_uses(&mixer->rule, DR_INPUT_ERASE_KEY)) return DR_OK;
    DR_TRY(add_low_rank(mixer, DR_INPUT_ERASE_KEY, DR_ROLE_ERASE_KEY_DOWN, DR_ROLE_ERASE_KEY_UP, DR_ROLES, mixer->heads,
                        mixer->key_size, LOW_RANK, true));
    mixer->stream[mixer->of[DR_INPUT_ERASE_KEY]].unit = true;
    return DR_OK;
}

/* ---- the diagonal scan and what is read through it ------------------------------------------------------------------ */

static dr_status add_scan(dr_mixer *mixer) {
    int64_t heads = mixer->heads;
    if (dr_rule_uses(&mixer->rule, DR_INPUT_SCAN_LOG_DECAY)) {
        DR_TRY(add_straight(mixer, DR_INPUT_SCAN_LOG_DECAY, DR_ROLE_SCAN_DECAY, heads, 1));
        dr_stream *stream = &mixer->stream[mixer->of[DR_INPUT_SCAN_LOG_DECAY]];
        set_gate(stream, DR_GATE_LOG_DECAY, 1, 0);
        stream->map_weight = DR_ROLE_SCAN_A_LOG;
        stream->map_bias = DR_ROLE_SCAN_DT_BIAS;
        dr_initial a_log = {DR_INITIAL_A_LOG, mixer->family.a_least};
        DR_TRY(dr_slot_fill(mixer->slot, DR_ROLE_SCAN_A_LOG, a_log, heads, 0, 0));
        DR_TRY(dr_slot_fill(mixer->slot, DR_ROLE_SCAN_DT_BIAS, (dr_initial){DR_INITIAL_STEP, 0}, heads, 0, 0));
        if (mixer->family.scan_decay_name && mixer->rule.decay == DR_DECAY_CHANNEL)
            mixer->slot[DR_ROLE_SCAN_DECAY].name = mixer->family.scan_decay_name;
    }
    DR_TRY(add_sigmoid(mixer, DR_INPUT_SCAN_GAIN, DR_ROLE_SCAN_GAIN, heads, 1, 1, 0));
    if (dr_rule_uses(&mixer->rule, DR_INPUT_SCAN_CENTRE))
        DR_TRY(dr_slot_fill(mixer->slot, DR_ROLE_SCAN_CENTRE, (dr_initial){DR_INITIAL_CONSTANT, -0.2}, heads, 0, 0));
    return DR_OK;
}

/* ridge = softplus(p) + 1/4 with p = ln(e^(3/4) - 1) at first, so that it starts at one */
static dr_status add_ridge(dr_backend *backend, dr_mixer *mixer) {
    const double floor = 0.25;
    int64_t count = mixer->heads * mixer->key_size;
    DR_TRY(dr_slot_fill(mixer->slot, DR_ROLE_RIDGE, (dr_initial){DR_INITIAL_CONSTANT, log(expm1(1 - floor))}, mixer->heads,
                        mixer->key_size, 0));
    void *host = NULL;
    DR_TRY(dr_allocate((size_t)count * sizeof(double), "the least ridge", &host));
    for (int64_t i = 0; i < count; i++) ((double *)host)[i] = floor;
    dr_status status = backend->ops->allocate(backend, dr_kind_bytes(backend, DR_NUMBER, count), &mixer->ridge_floor);
    if (status == DR_OK) status = backend->ops->upload(backend, mixer->ridge_floor, host, DR_F64, count);
    dr_release(host);
    return status;
}

/* ---- output --------------------------------------------------------------------------------------------------------- */

static dr_status add_output(dr_mixer *mixer, const dr_model_config *config) {
    int64_t heads = mixer->value_heads, dim = mixer->value_size;
    if (config->output_gate && mixer->family.gate_low_rank)
        DR_TRY(
            add_low_rank(mixer, DR_INPUTS, DR_ROLE_GATE_DOWN, DR_ROLE_GATE_UP, DR_ROLE_GATE_UP_BIAS, heads, dim, dim, false));
    else if (config->output_gate)
        DR_TRY(add_straight(mixer, DR_INPUTS, DR_ROLE_GATE, heads, dim));
    DR_TRY(dr_slot_fill(mixer->slot, DR_ROLE_OUTPUT_NORM, one, mixer->family.gate_first ? heads * dim : dim, 0, 0));
    if (mixer->family.stepped) DR_TRY(dr_slot_fill(mixer->slot, DR_ROLE_SKIP, one, heads, 0, 0));
    return dr_slot_fill(mixer->slot, DR_ROLE_OUTPUT, normal, mixer->hidden, heads * dim, 0);
}

static dr_status build(dr_backend *backend, const dr_model_config *config, dr_mixer *mixer) {
    DR_TRY(add_tokens(mixer));
    if (mixer->rule.decay == DR_DECAY_CONSTANT)
        DR_TRY(make_constant_decay(backend, mixer));
    else if (mixer->rule.decay != DR_DECAY_NONE)
        DR_TRY(add_decay(mixer, config));
    DR_TRY(add_gains(mixer, config));
    DR_TRY(add_scan(mixer));
    if (mixer->feedback) DR_TRY(dr_slot_fill(mixer->slot, DR_ROLE_FEEDBACK, one, mixer->heads, 0, 0));
    if (mixer->corrected) DR_TRY(dr_slot_fill(mixer->slot, DR_ROLE_CORRECTION, one, mixer->heads, 0, 0));
    if (dr_rule_uses(&mixer->rule, DR_INPUT_RIDGE)) DR_TRY(add_ridge(backend, mixer));
    return add_output(mixer, config);
}

dr_status dr_mixer_create(dr_backend *backend, const dr_model_config *config, dr_mixer *mixer) {
    *mixer = (dr_mixer){.family = dr_layer_family_of(&config->rule),
                        .rule = config->rule,
                        .hidden = config->hidden,
                        .heads = config->heads,
                        .value_heads = config->value_heads,
                        .key_size = config->key_size,
                        .value_size = config->value_size,
                        .conv_size = config->conv_size,
                        .conv_initial = config->conv_initializer_range > 0
                                            ? (dr_initial){DR_INITIAL_UNIFORM, config->conv_initializer_range}
                                            : normal,
                        .norm_eps = config->norm_eps,
                        .fixed_lambda = -1};
    mixer->scale = mixer->family.scale;
    mixer->rotary_base = mixer->family.rotary_base;
    for (int input = 0; input <= DR_INPUTS; input++) mixer->of[input] = -1;
    mixer->feedback = dr_rule_uses(&config->rule, DR_INPUT_FEEDBACK_KEY);
    mixer->corrected = config->rule.query == DR_QUERY_CORRECTED;
    if (mixer->corrected) mixer->rule.query = DR_QUERY_PLAIN;
    dr_status status = build(backend, config, mixer);
    if (status != DR_OK) dr_mixer_destroy(backend, mixer);
    return status;
}

void dr_mixer_destroy(dr_backend *backend, dr_mixer *mixer) {
    if (mixer->constant_decay) backend->ops->free(backend, mixer->constant_decay);
    if (mixer->ridge_floor) backend->ops->free(backend, mixer->ridge_floor);
    *mixer = (dr_mixer){0};
}

/* ---- one layer at work ---------------------------------------------------------------------------------------------- */

dr_kind dr_stream_kind(const dr_stream *stream) {
    return stream->input == DR_INPUTS ? DR_VECTOR : dr_input_kind(stream->input);
}

const void *dr_layer_parameter(const dr_layer *layer, dr_role role) {
    if (role == DR_ROLES || layer->mixer->slot[role].count == 0) return NULL;
    return layer->parameters + dr_kind_bytes(layer->backend, DR_NUMBER, layer->mixer->slot[role].offset);
}

const void *dr_layer_weight(const dr_layer *layer, dr_role role) {
    if (role == DR_ROLES || layer->mixer->slot[role].count == 0) return NULL;
    return layer->weights + dr_kind_bytes(layer->backend, DR_VECTOR, layer->mixer->slot[role].offset);
}

void *dr_layer_gradient(const dr_layer *layer, dr_role role) {
    if (!layer->gradients || role == DR_ROLES || layer->mixer->slot[role].count == 0) return NULL;
    return layer->gradients + dr_kind_bytes(layer->backend, DR_NUMBER, layer->mixer->slot[role].offset);
}

dr_gate dr_layer_gate(const dr_layer *layer, const dr_stream *stream) {
    dr_gate gate = stream->gate;
    gate.to = dr_stream_kind(stream);
    gate.rows = layer->layout.rows * (stream->heads / gate.heads);
    return gate;
}

dr_rotary dr_layer_rotary(const dr_layer *layer, const dr_stream *stream) {
    return (dr_rotary){.layout = layer->layout,
                       .heads = stream->heads,
                       .size = stream->dim,
                       .row = stream->heads * stream->dim,
                       .dim = stream->dim,
                       .factor = 1,
                       .base = layer->mixer->rotary_base,
                       .offset = layer->seen};
}

dr_recurrence dr_layer_recurrence(const dr_layer *layer) {
    const dr_mixer *mixer = layer->mixer;
    return (dr_recurrence){.rule = &mixer->rule,
                           .forget = DR_FORGET,
                           .layout = {layer->layout.sequences, layer->layout.rows, NULL},
                           .key_heads = mixer->heads,
                           .value_heads = mixer->value_heads,
                           .key_size = mixer->key_size,
                           .value_size = mixer->value_size,
                           .scale = mixer->scale};
}

dr_call dr_layer_call(const dr_layer *layer, const dr_inputs *inputs, const dr_mixer_memory *memory,
                      const dr_mixer_scratch *scratch) {
    return (dr_call){.size = sizeof(dr_call),
                     .boundaries = {.at = layer->decode ? NULL : layer->layout.cu_seqlens, .dtype = DR_I64, .device = true},
                     .inputs = inputs,
                     .saved = memory->saved,
                     .workspace = scratch->workspace};
}
