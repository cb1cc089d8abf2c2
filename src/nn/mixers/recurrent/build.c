/* From a rule to a mixer: which streams and parameters each option of an axis needs. The rule is asked what it reads
 * (dr_rule_uses), never for its name, so every composition gets its layer here too. */
#include "base/error.h"
#include "nn/mixers/engine.h"
#include "nn/mixers/recurrent/recurrent.h"
#include <math.h>

enum { LOW_RANK = 16 }; /* of gla's gate, and of each head of an erase key or an erase-then-delta decay */

static const dr_initial normal = {DR_INITIAL_NORMAL, 0}, zero = {DR_INITIAL_CONSTANT, 0}, one = {DR_INITIAL_CONSTANT, 1};

/* A mixer as it grows. */
typedef struct {
    dr_backend *backend;
    const dr_recurrent_description *is;
    dr_recurrent *mixer;
    dr_recurrent_parts parts;
    dr_layer_parameters *list;
    const char *prefix; /* of its parameters' names */
} builder;

/* Names of the two matrices of a projection that goes through a lower rank, and of the bias of the second or NULL. */
typedef struct {
    const char *down, *up, *bias;
} low_rank;

/* ---- parameters and streams ----------------------------------------------------------------------------------------- */

static dr_status add_matrix(builder *b, const char *name, int64_t rows, int64_t columns, int64_t depth, int *parameter) {
    return dr_add_matrix(b->list, b->prefix, name, normal, rows, columns, depth, parameter);
}

static dr_status add_vector(builder *b, const char *name, dr_initial initial, int64_t rows, int64_t columns, int *parameter) {
    return dr_add_vector(b->list, b->prefix, name, initial, rows, columns, parameter);
}

static dr_stream new_stream(const builder *b, dr_input input, int64_t heads, int64_t dim) {
    return (dr_stream){.input = input,
                       .down = DR_NO_PARAMETER,
                       .weight = DR_NO_PARAMETER,
                       .bias = DR_NO_PARAMETER,
                       .rank = b->mixer->module.hidden,
                       .heads = heads,
                       .dim = dim,
                       .map_weight = DR_NO_PARAMETER,
                       .map_bias = DR_NO_PARAMETER};
}

static dr_stream *stream_of(builder *b, dr_input input) {
    return &b->parts.stream[b->parts.of[input]];
}

static void add_stream(builder *b, const dr_stream *stream) {
    b->parts.stream[b->parts.streams] = *stream;
    b->parts.of[stream->input] = b->parts.streams++;
}

static dr_status add_straight(builder *b, dr_input input, const char *weight, int64_t heads, int64_t dim) {
    dr_stream stream = new_stream(b, input, heads, dim);
    DR_TRY(add_matrix(b, weight, heads * dim, b->mixer->module.hidden, 0, &stream.weight));
    add_stream(b, &stream);
    return DR_OK;
}

static dr_status add_bias(builder *b, dr_input input, const char *name) {
    dr_stream *stream = stream_of(b, input);
    return add_vector(b, name, zero, stream->heads * stream->dim, 0, &stream->bias);
}

/* grouped: rank is that of each head */
static dr_status make_low_rank(builder *b, dr_input input, const low_rank *names, int64_t heads, int64_t dim, int64_t rank,
                               bool grouped, dr_stream *stream) {
    *stream = new_stream(b, input, heads, dim);
    stream->grouped = grouped;
    stream->rank = grouped ? heads * rank : rank;
    DR_TRY(add_matrix(b, names->down, stream->rank, b->mixer->module.hidden, 0, &stream->down));
    if (grouped)
        DR_TRY(add_matrix(b, names->up, heads, dim, rank, &stream->weight));
    else
        DR_TRY(add_matrix(b, names->up, heads * dim, rank, 0, &stream->weight));
    return names->bias ? add_vector(b, names->bias, zero, heads * dim, 0, &stream->bias) : DR_OK;
}

static dr_status add_low_rank(builder *b, dr_input input, const low_rank *names, int64_t heads, int64_t dim, int64_t rank,
                              bool grouped) {
    dr_stream stream;
    DR_TRY(make_low_rank(b, input, names, heads, dim, rank, grouped, &stream));
    add_stream(b, &stream);
    return DR_OK;
}

static void set_gate(dr_stream *stream, dr_gate_kind kind, double multiplier, double shift) {
    stream->map = DR_MAP_GATE;
    stream->gate =
        (dr_gate){.kind = kind, .heads = stream->heads, .dim = stream->dim, .multiplier = multiplier, .shift = shift};
}

/* ---- query, key, value ---------------------------------------------------------------------------------------------- */

static dr_status finish_token_stream(builder *b, dr_input input, const char *conv, const char *conv_bias) {
    const dr_recurrent_description *is = b->is;
    const dr_initial within = {DR_INITIAL_UNIFORM, is->conv_range};
    const bool value = input == DR_INPUT_VALUE;
    dr_stream *stream = stream_of(b, input);
    const int64_t channels = stream->heads * stream->dim;
    stream->feature = value ? is->activate : is->feature;
    if (is->conv_size > 0 && (!value || is->value_conv)) {
        stream->map = DR_MAP_CONV;
        DR_TRY(dr_add_numbers(b->list, b->prefix, conv, is->conv_range > 0 ? within : normal, channels, 1, is->conv_size,
                              &stream->map_weight));
        if (is->conv_bias) DR_TRY(add_vector(b, conv_bias, zero, channels, 0, &stream->map_bias));
        if (stream->feature == DR_FUNCTION_SILU) stream->activated = true, stream->feature = DR_FUNCTION_IDENTITY;
    } else if (stream->feature == DR_FUNCTION_SILU) {
        set_gate(stream, DR_GATE_SILU, 1, 0);
        stream->feature = DR_FUNCTION_IDENTITY;
    }
    if (value) return DR_OK;
    stream->length = input == DR_INPUT_QUERY ? is->query_length : is->key_length;
    stream->rotated = is->rotary;
    return DR_OK;
}

static dr_status add_tokens(builder *b) {
    const dr_recurrent *mixer = b->mixer;
    const int64_t steps = mixer->rule.repeat;
    DR_TRY(add_straight(b, DR_INPUT_QUERY, "q_proj.weight", mixer->heads, mixer->key_size));
    DR_TRY(add_straight(b, DR_INPUT_KEY, "k_proj.weight", steps * mixer->heads, mixer->key_size));
    DR_TRY(add_straight(b, DR_INPUT_VALUE, "v_proj.weight", steps * mixer->value_heads, mixer->value_size));
    DR_TRY(finish_token_stream(b, DR_INPUT_QUERY, "q_conv1d.weight", "q_conv1d.bias"));
    DR_TRY(finish_token_stream(b, DR_INPUT_KEY, "k_conv1d.weight", "k_conv1d.bias"));
    return finish_token_stream(b, DR_INPUT_VALUE, "v_conv1d.weight", "v_conv1d.bias");
}

/* ---- decay ---------------------------------------------------------------------------------------------------------- */

static dr_status add_decay_projection(builder *b) {
    const low_rank names = {"f_proj.0.weight", "f_proj.1.weight", b->is->decay.bias ? "f_proj.1.bias" : NULL};
    const dr_recurrent *mixer = b->mixer;
    const int64_t heads = mixer->value_heads;
    if (mixer->rule.decay == DR_DECAY_CHANNEL && b->is->decay.rank > 0)
        return add_low_rank(b, DR_INPUT_LOG_DECAY, &names, heads, mixer->key_size, b->is->decay.rank, b->is->decay.by_head);
    if (mixer->rule.decay == DR_DECAY_CHANNEL) {
        DR_TRY(add_straight(b, DR_INPUT_LOG_DECAY, "f_proj.weight", heads, mixer->key_size));
        return b->is->decay.bias ? add_bias(b, DR_INPUT_LOG_DECAY, "f_proj.bias") : DR_OK;
    }
    DR_TRY(add_straight(b, DR_INPUT_LOG_DECAY, "a_proj.weight", heads, 1));
    return b->is->decay.bias ? add_bias(b, DR_INPUT_LOG_DECAY, "a_proj.bias") : DR_OK;
}

static dr_status add_decay(builder *b) {
    const dr_gates *gates = &b->is->gates;
    DR_TRY(add_decay_projection(b));
    dr_stream *stream = stream_of(b, DR_INPUT_LOG_DECAY);
    if (b->is->decay_factor > 0) {
        set_gate(stream, DR_GATE_LOG_SIGMOID, b->is->decay_factor, 0);
        return DR_OK;
    }
    dr_initial a_log = {DR_INITIAL_A_LOG, b->is->least_a};
    dr_gate_kind kind = DR_GATE_LOG_DECAY;
    if (gates->gate == DR_GATE_FORM_KDA_BOUNDED) {
        kind = DR_GATE_KDA_BOUNDED;
        a_log = zero;
    } else if (gates->gate == DR_GATE_FORM_EDA_BOUNDED) {
        kind = DR_GATE_EDA_BOUNDED;
    }
    set_gate(stream, kind, 1, 0);
    stream->gate.lower_bound = gates->lower_bound;
    stream->gate.a_log_per_channel = b->is->a_log_per_channel;
    DR_TRY(add_vector(b, "A_log", a_log, stream->heads, b->is->a_log_per_channel ? stream->dim : 0, &stream->map_weight));
    DR_TRY(add_vector(b, "dt_bias", (dr_initial){DR_INITIAL_STEP, 0}, stream->heads * stream->dim, 0, &stream->map_bias));
    b->parts.step_bias = stream->map_bias;
    return DR_OK;
}

/* RetNet's: log(1 - 2^(-5-h)) for value head h, no parameter */
static dr_status make_constant_decay(dr_backend *backend, dr_recurrent *mixer) {
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

static dr_status add_sigmoid(builder *b, dr_input input, const char *weight, int64_t heads, int64_t dim, double multiplier,
                             double shift) {
    if (!dr_rule_uses(&b->mixer->rule, input)) return DR_OK;
    DR_TRY(add_straight(b, input, weight, heads, dim));
    set_gate(stream_of(b, input), DR_GATE_SIGMOID, multiplier, shift);
    return DR_OK;
}

/* sigmoid of a projection less a constant, or plus one number that the layer learns; or no stream where it is fixed */
static dr_status add_lambda(builder *b, double reach) {
    const dr_initial low = {DR_INITIAL_CONSTANT, -0.8};
    const dr_gates *gates = &b->is->gates;
    if (!dr_rule_uses(&b->mixer->rule, DR_INPUT_LAMBDA)) return DR_OK;
    if (gates->lambda == DR_LAMBDA_FIXED) {
        b->parts.fixed_lambda = reach * gates->lambda_value;
        return DR_OK;
    }
    const bool learned = gates->lambda_bias_learned;
    DR_TRY(add_sigmoid(b, DR_INPUT_LAMBDA, "lamb_proj.weight", b->mixer->value_heads, 1, reach,
                       learned ? 0 : -b->is->lambda_bias));
    if (!learned) return DR_OK;
    dr_stream *stream = stream_of(b, DR_INPUT_LAMBDA);
    stream->gate.heads = 1;
    return add_vector(b, "lamb_bias", low, 1, 0, &stream->map_bias);
}

/* A key that is neither the key nor made from it: unit, so that a step multiplies no direction by more than two. */
static dr_status add_free_key(builder *b, dr_input input, const char *weight) {
    if (!dr_rule_uses(&b->mixer->rule, input)) return DR_OK;
    DR_TRY(add_straight(b, input, weight, b->mixer->heads, b->mixer->key_size));
    stream_of(b, input)->length = DR_LENGTH_UNIT;
    return DR_OK;
}

static dr_status add_gains(builder *b) {
    static const low_rank erase_names = {"e_proj.0.weight", "e_proj.1.weight", NULL};
    const dr_recurrent *mixer = b->mixer;
    const int64_t heads = mixer->value_heads;
    const bool erases = dr_rule_uses(&mixer->rule, DR_INPUT_ERASE_KEY);
    const double reach = b->is->gates.negative_eigenvalues ? 2 : 1; /* of a step along the key it erases */
    dr_stream erase_key;
    DR_TRY(add_sigmoid(b, DR_INPUT_BETA, "b_proj.weight", mixer->rule.repeat * heads, 1, reach, 0));
    if (b->is->beta.bias && b->parts.of[DR_INPUT_BETA] >= 0) DR_TRY(add_bias(b, DR_INPUT_BETA, "b_proj.bias"));
    if (erases)
        DR_TRY(make_low_rank(b, DR_INPUT_ERASE_KEY, &erase_names, mixer->heads, mixer->key_size, LOW_RANK, true, &erase_key));
    DR_TRY(add_sigmoid(b, DR_INPUT_ERASE_GAIN, "gamma_proj.weight", heads, 1, 1, 0));
    DR_TRY(add_lambda(b, reach));
    DR_TRY(add_sigmoid(b, DR_INPUT_ERASE_GATE, "erase_gate_proj.weight", heads, mixer->key_size, reach, 0));
    DR_TRY(add_sigmoid(b, DR_INPUT_WRITE_GATE, "write_gate_proj.weight", heads, mixer->value_size, 1, 0));
    if (erases) {
        erase_key.length = DR_LENGTH_UNIT;
        add_stream(b, &erase_key);
    }
    DR_TRY(add_free_key(b, DR_INPUT_FREE_READ, "free_read_proj.weight"));
    DR_TRY(add_free_key(b, DR_INPUT_FREE_WRITE, "free_write_proj.weight"));
    return add_sigmoid(b, DR_INPUT_RATE, "rate_proj.weight", mixer->heads, mixer->key_size, reach, 0);
}

/* ---- the diagonal scan and what is read through it ------------------------------------------------------------------ */

static dr_status add_scan(builder *b) {
    const dr_recurrent *mixer = b->mixer;
    const int64_t heads = mixer->heads;
    const bool decays = dr_rule_uses(&mixer->rule, DR_INPUT_SCAN_LOG_DECAY);
    if (decays)
        DR_TRY(add_straight(b, DR_INPUT_SCAN_LOG_DECAY, b->is->scan_decay ? b->is->scan_decay : "a_atk_proj.weight", heads, 1));
    DR_TRY(add_sigmoid(b, DR_INPUT_SCAN_GAIN, "b_atk_proj.weight", heads, 1, 1, 0));
    if (decays) {
        dr_stream *stream = stream_of(b, DR_INPUT_SCAN_LOG_DECAY);
        const dr_initial a_log = {DR_INITIAL_A_LOG, b->is->least_a};
        set_gate(stream, DR_GATE_LOG_DECAY, 1, 0);
        DR_TRY(add_vector(b, "A_log_atk", a_log, heads, 0, &stream->map_weight));
        DR_TRY(add_vector(b, "dt_bias_atk", (dr_initial){DR_INITIAL_STEP, 0}, heads, 0, &stream->map_bias));
    }
    if (!dr_rule_uses(&mixer->rule, DR_INPUT_SCAN_CENTRE)) return DR_OK;
    return add_vector(b, "log_atk_scale", (dr_initial){DR_INITIAL_CONSTANT, -0.2}, heads, 0, &b->parts.scan_centre);
}

/* ridge = softplus(p) + least, with p such that it starts at one */
static dr_status add_ridge(builder *b) {
    dr_backend *backend = b->backend;
    dr_recurrent *mixer = b->mixer;
    const double floor = b->is->least_ridge;
    int64_t count = mixer->heads * mixer->key_size;
    DR_TRY(add_vector(b, "ridge", (dr_initial){DR_INITIAL_CONSTANT, log(expm1(1 - floor))}, mixer->heads, mixer->key_size,
                      &b->parts.ridge));
    void *host = NULL;
    DR_TRY(dr_allocate((size_t)count * sizeof(double), "the least ridge", &host));
    for (int64_t i = 0; i < count; i++) ((double *)host)[i] = floor;
    dr_status status = backend->ops->allocate(backend, dr_kind_bytes(backend, DR_NUMBER, count), &mixer->ridge_floor);
    if (status == DR_OK) status = backend->ops->upload(backend, mixer->ridge_floor, host, DR_F64, count);
    dr_release(host);
    return status;
}

/* ---- output --------------------------------------------------------------------------------------------------------- */

static dr_status add_output(builder *b) {
    const low_rank gate_names = {"g_proj.0.weight", "g_proj.1.weight", b->is->gate_projection.bias ? "g_proj.1.bias" : NULL};
    const dr_recurrent *mixer = b->mixer;
    const int64_t heads = mixer->value_heads, dim = mixer->value_size;
    if (b->is->stepped) DR_TRY(add_vector(b, "D_skip", one, heads, 0, &b->parts.skip));
    if (b->is->gated && b->is->gate_projection.rank > 0)
        DR_TRY(add_low_rank(b, DR_INPUTS, &gate_names, heads, dim, b->is->gate_projection.rank, false));
    else if (b->is->gated)
        DR_TRY(add_straight(b, DR_INPUTS, "g_proj.weight", heads, dim));
    if (b->is->gated && b->is->gate_projection.rank == 0 && b->is->gate_projection.bias)
        DR_TRY(add_bias(b, DR_INPUTS, "g_proj.bias"));
    DR_TRY(add_vector(b, "o_norm.weight", one, b->is->gate_first ? heads * dim : dim, 0, &b->parts.output_norm));
    return add_matrix(b, "o_proj.weight", mixer->module.hidden, heads * dim, 0, &b->parts.output);
}

/* In the order in which the block holds the parameters and d_x is summed over the streams. */
static dr_status build(builder *b) {
    dr_recurrent *mixer = b->mixer;
    DR_TRY(add_tokens(b));
    if (mixer->rule.decay == DR_DECAY_CONSTANT)
        DR_TRY(make_constant_decay(b->backend, mixer));
    else if (mixer->rule.decay != DR_DECAY_NONE)
        DR_TRY(add_decay(b));
    DR_TRY(add_gains(b));
    if (dr_rule_uses(&mixer->rule, DR_INPUT_FEEDBACK_KEY))
        DR_TRY(add_vector(b, "decay", one, mixer->heads, 0, &b->parts.feedback));
    if (b->is->rule.query == DR_QUERY_CORRECTED) DR_TRY(add_vector(b, "D", one, mixer->heads, 0, &b->parts.correction));
    DR_TRY(add_scan(b));
    if (dr_rule_uses(&mixer->rule, DR_INPUT_RIDGE)) DR_TRY(add_ridge(b));
    return add_output(b);
}

/* ---- the module ----------------------------------------------------------------------------------------------------- */

static void configure(builder *b, int64_t hidden) {
    const dr_recurrent_description *is = b->is;
    *b->mixer = (dr_recurrent){.module = {&dr_recurrent_operations, hidden},
                               .is = *is,
                               .rule = is->rule,
                               .heads = is->heads,
                               .value_heads = is->value_heads,
                               .key_size = is->key_size,
                               .value_size = is->value_size};
    b->parts = (dr_recurrent_parts){.fixed_lambda = -1,
                                    .feedback = DR_NO_PARAMETER,
                                    .correction = DR_NO_PARAMETER,
                                    .scan_centre = DR_NO_PARAMETER,
                                    .ridge = DR_NO_PARAMETER,
                                    .step_bias = DR_NO_PARAMETER,
                                    .skip = DR_NO_PARAMETER,
                                    .output_norm = DR_NO_PARAMETER,
                                    .output = DR_NO_PARAMETER};
    for (int input = 0; input <= DR_INPUTS; input++) b->parts.of[input] = -1;
    if (is->rule.query == DR_QUERY_CORRECTED) b->mixer->rule.query = DR_QUERY_PLAIN;
}

/* A layer is of the backend's kind: what has no operation is refused. */
static dr_status check(const dr_recurrent_description *is) {
    if (is->least_decay == 0) return DR_OK;
    return dr_fail(DR_ERROR_UNSUPPORTED, "log decays with a least value of %g are not built; without one they are",
                   is->least_decay);
}

dr_status dr_recurrent_create(dr_backend *backend, int64_t hidden, const dr_recurrent_description *description,
                              const char *prefix, dr_layer_parameters *list, dr_module **module) {
    void *memory = NULL;
    DR_TRY(check(description));
    DR_TRY(dr_allocate_zero(sizeof(dr_recurrent), "a mixer", &memory));
    builder b = {.backend = backend, .is = description, .mixer = memory, .list = list, .prefix = prefix};
    configure(&b, hidden);
    dr_status status = DR_OK;
    if (description->rotary) status = dr_rotary_make(&description->spectrum, &b.mixer->frequencies, &b.mixer->rotary_factor);
    if (status == DR_OK) status = build(&b);
    if (status == DR_OK) {
        dr_recurrent_list(backend, &b.parts, list, b.mixer);
        *module = &b.mixer->module;
    } else {
        dr_recurrent_operations.destroy(backend, &b.mixer->module);
    }
    return status;
}
