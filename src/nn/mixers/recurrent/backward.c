/* Backward of a mixer: the forward's stages in reverse (forward.c). The gradient of each stream's output becomes that
 * of its projection in place, but for the convolution, and where the two are of different types: those go through one buffer
 * that all streams share. What is
 * cheap is made again instead of kept: the normed output. */
#include "base/error.h"
#include "nn/mixers/engine.h"
#include "nn/mixers/recurrent/recurrent.h"

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Whether a stream's output is of another type than its projection, so that their gradients cannot share memory. */
static bool changes_type(const dr_module_call *call, const dr_stream *stream) {
    return dr_kind_dtype(call->backend, dr_stream_kind(stream)) != dr_kind_dtype(call->backend, DR_VECTOR);
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static void place_backward(const dr_module_call *call, dr_arena *arena, dr_recurrent_scratch *scratch) {
    const dr_recurrent *mixer = dr_recurrent_of(call);
    int64_t rows = call->layout.rows, widest = 0, widest_hidden = 0;
    size_t keys = dr_kind_bytes(call->backend, DR_VECTOR, rows * mixer->heads * mixer->key_size);
    size_t values = dr_kind_bytes(call->backend, DR_VECTOR, rows * mixer->value_heads * mixer->value_size);
    for (int i = 0; i < mixer->streams; i++) {
        const dr_stream *stream = &mixer->stream[i];
        scratch->d_out[i] =
            dr_arena_take(arena, dr_kind_bytes(call->backend, dr_stream_kind(stream), rows * stream->heads * stream->dim));
        if (stream->map == DR_MAP_CONV || changes_type(call, stream)) widest = larger(widest, stream->heads * stream->dim);
        if (stream->down != DR_NO_PARAMETER) widest_hidden = larger(widest_hidden, stream->rank);
    }
    if (mixer->corrected) widest = larger(widest, mixer->heads * mixer->key_size);
    scratch->d_raw = dr_arena_take(arena, dr_kind_bytes(call->backend, DR_VECTOR, rows * widest));
    scratch->d_hidden = dr_arena_take(arena, dr_kind_bytes(call->backend, DR_VECTOR, rows * widest_hidden));
    scratch->d_y = dr_arena_take(arena, values);
    scratch->d_o = dr_arena_take(arena, values);
    if (mixer->is.stepped) {
        scratch->d_step = dr_arena_take(arena, dr_kind_bytes(call->backend, DR_NUMBER, rows * mixer->value_heads));
        scratch->d_stepped = dr_arena_take(arena, values);
    }
    if (mixer->feedback) {
        scratch->d_erasing = dr_arena_take(arena, keys);
        scratch->d_factor = dr_arena_take(arena, dr_kind_bytes(call->backend, DR_NUMBER, mixer->heads));
    }
    if (mixer->own.scan_centre != DR_NO_PARAMETER)
        scratch->d_centre = dr_arena_take(arena, dr_kind_bytes(call->backend, DR_NUMBER, mixer->heads));
    if (mixer->ridge_floor)
        scratch->d_ridge = dr_arena_take(arena, dr_kind_bytes(call->backend, DR_NUMBER, mixer->heads * mixer->key_size));
}

void dr_recurrent_place_scratch(const dr_module_call *call, bool backward, dr_arena *arena, void *place) {
    dr_recurrent_scratch *scratch = place;
    const dr_recurrent *mixer = dr_recurrent_of(call);
    *scratch = (dr_recurrent_scratch){0};
    scratch->y = dr_arena_take(
        arena, dr_kind_bytes(call->backend, DR_VECTOR, call->layout.rows * mixer->value_heads * mixer->value_size));
    scratch->workspace = dr_engine_place_work(call, backward, arena);
    if (backward) place_backward(call, arena, scratch);
}

/* ---- output and recurrence ------------------------------------------------------------------------------------------ */

/* d_o, the gate's gradient, and with stepped values the part of the value's that goes past the recurrence */
static dr_status output_backward(const dr_module_call *call, const void *d_y, const dr_recurrent_memory *memory,
                                 const dr_recurrent_scratch *scratch) {
    const dr_recurrent *mixer = dr_recurrent_of(call);
    const dr_operations *ops = call->backend->ops;
    int64_t rows = call->layout.rows, heads = mixer->value_heads, dim = mixer->value_size;
    int gate = mixer->of[DR_INPUTS], value = mixer->of[DR_INPUT_VALUE];
    dr_linear linear = {rows, heads * dim, mixer->module.hidden};
    dr_rms_norm norm = dr_recurrent_output_norm(call);
    DR_TRY(dr_recurrent_norm_output(call, memory, scratch));
    DR_TRY(ops->linear_backward(call->backend, &linear, scratch->y, dr_module_weight(call, mixer->own.output), d_y,
                                scratch->d_y, false, dr_module_gradient(call, mixer->own.output), NULL));
    DR_TRY(ops->rms_norm_backward(call->backend, &norm, memory->o, dr_module_parameter(call, mixer->own.output_norm),
                                  gate >= 0 ? memory->out[gate] : NULL, scratch->d_y, scratch->d_o, false,
                                  dr_module_gradient(call, mixer->own.output_norm), gate >= 0 ? scratch->d_out[gate] : NULL));
    if (!mixer->is.stepped) return DR_OK;
    return ops->scale_heads_backward(call->backend, rows, heads, dim, true, dr_module_parameter(call, mixer->own.skip),
                                     memory->out[value], scratch->d_o, dr_module_gradient(call, mixer->own.skip),
                                     scratch->d_out[value], false);
}

static dr_status recur_backward(const dr_module_call *call, const dr_recurrent_memory *memory,
                                const dr_recurrent_scratch *scratch) {
    const dr_recurrent *mixer = dr_recurrent_of(call);
    dr_inputs inputs = dr_recurrent_inputs(call, memory);
    dr_input_gradients gradients = {{NULL}};
    for (int i = 0; i < mixer->streams; i++)
        if (mixer->stream[i].input != DR_INPUTS) gradients.at[mixer->stream[i].input] = scratch->d_out[i];
    if (mixer->is.stepped) gradients.at[DR_INPUT_VALUE] = scratch->d_stepped;
    if (mixer->feedback) gradients.at[DR_INPUT_FEEDBACK_KEY] = scratch->d_erasing;
    gradients.at[DR_INPUT_SCAN_CENTRE] = scratch->d_centre;
    gradients.at[DR_INPUT_RIDGE] = scratch->d_ridge;
    return dr_engine_backward(call, &inputs, memory->saved, scratch->workspace, scratch->d_o, &gradients);
}

/* Parameters that the recurrence reads as they are, or through a map without tokens. */
static dr_status parameters_backward(const dr_module_call *call, const dr_recurrent_scratch *scratch) {
    const dr_recurrent *mixer = dr_recurrent_of(call);
    const dr_operations *ops = call->backend->ops;
    if (scratch->d_centre)
        DR_TRY(ops->add(call->backend, DR_NUMBER, mixer->heads, 1, scratch->d_centre,
                        dr_module_gradient(call, mixer->own.scan_centre)));
    if (!scratch->d_ridge) return DR_OK;
    dr_gate gate = {
        .kind = DR_GATE_SOFTPLUS, .rows = 1, .heads = mixer->heads, .dim = mixer->key_size, .from = DR_NUMBER, .to = DR_NUMBER};
    return ops->gate_backward(call->backend, &gate, dr_module_parameter(call, mixer->own.ridge), NULL, NULL, scratch->d_ridge,
                              dr_module_gradient(call, mixer->own.ridge), true, NULL, NULL);
}

/* ---- streams -------------------------------------------------------------------------------------------------------- */

static dr_status finish_backward(const dr_module_call *call, int index, const dr_recurrent_memory *memory,
                                 const dr_recurrent_scratch *scratch) {
    const dr_stream *stream = &dr_recurrent_of(call)->stream[index];
    const dr_operations *ops = call->backend->ops;
    if (stream->rotated) {
        const dr_rotary rotary = dr_recurrent_rotary(call, stream);
        DR_TRY(ops->rotary(call->backend, &rotary, scratch->d_out[index], true));
    }
    const int64_t vectors = call->layout.rows * stream->heads;
    const dr_l2_norm norm = {vectors, stream->dim, 1e-6};
    void *d = scratch->d_out[index];
    switch (stream->length) {
    case DR_LENGTH_FREE:
        break;
    case DR_LENGTH_UNIT:
        DR_TRY(ops->l2_norm_backward(call->backend, &norm, memory->featured[index], d, d));
        break;
    case DR_LENGTH_SUM:
        DR_TRY(ops->sum_norm_backward(call->backend, vectors, stream->dim, memory->featured[index], d, d));
        break;
    }
    if (stream->feature == DR_FUNCTION_IDENTITY) return DR_OK;
    return ops->apply_backward(call->backend, stream->feature, vectors * stream->dim, memory->mapped[index], d, d);
}

/* query -= D p, p = factor key: from the gradients of query and p to those of D, p, factor and key */
static dr_status couple_backward(const dr_module_call *call, const dr_recurrent_memory *memory,
                                 const dr_recurrent_scratch *scratch) {
    const dr_recurrent *mixer = dr_recurrent_of(call);
    const dr_operations *ops = call->backend->ops;
    int64_t rows = call->layout.rows, heads = mixer->heads, dim = mixer->key_size;
    int key = mixer->of[DR_INPUT_KEY];
    if (mixer->feedback && memory->erasing != memory->feedback) {
        dr_l2_norm norm = {rows * heads, dim, 1e-6};
        DR_TRY(ops->l2_norm_backward(call->backend, &norm, memory->feedback, scratch->d_erasing, scratch->d_erasing));
    }
    if (mixer->corrected) {
        void *d_correction = scratch->d_raw;
        ops->zero(call->backend, d_correction, dr_kind_bytes(call->backend, DR_VECTOR, rows * heads * dim));
        DR_TRY(ops->add(call->backend, DR_VECTOR, rows * heads * dim, -1, scratch->d_out[mixer->of[DR_INPUT_QUERY]],
                        d_correction));
        DR_TRY(ops->scale_heads_backward(
            call->backend, rows, heads, dim, true, dr_module_parameter(call, mixer->own.correction),
            mixer->feedback ? memory->feedback : memory->mapped[key], d_correction,
            dr_module_gradient(call, mixer->own.correction), mixer->feedback ? scratch->d_erasing : scratch->d_out[key], true));
    }
    if (!mixer->feedback) return DR_OK;
    ops->zero(call->backend, scratch->d_factor, dr_kind_bytes(call->backend, DR_NUMBER, heads));
    DR_TRY(ops->scale_heads_backward(call->backend, rows, heads, dim, true, memory->feedback_factor, memory->mapped[key],
                                     scratch->d_erasing, scratch->d_factor, scratch->d_out[key], true));
    dr_gate gate = {
        .kind = DR_GATE_SIGMOID, .rows = 1, .heads = heads, .dim = 1, .multiplier = 1, .from = DR_NUMBER, .to = DR_NUMBER};
    return ops->gate_backward(call->backend, &gate, dr_module_parameter(call, mixer->own.feedback), NULL, NULL,
                              scratch->d_factor, dr_module_gradient(call, mixer->own.feedback), true, NULL, NULL);
}

/* From d_out to the gradient of the projection; *d_raw is where that stands. */
static dr_status map_backward(const dr_module_call *call, int index, const dr_recurrent_memory *memory,
                              const dr_recurrent_scratch *scratch, void **d_raw) {
    const dr_stream *stream = &dr_recurrent_of(call)->stream[index];
    const dr_operations *ops = call->backend->ops;
    const void *weight = dr_module_parameter(call, stream->map_weight), *bias = dr_module_parameter(call, stream->map_bias);
    void *d_weight = dr_module_gradient(call, stream->map_weight), *d_bias = dr_module_gradient(call, stream->map_bias);
    *d_raw = scratch->d_out[index];
    if (stream->map == DR_MAP_CONV) {
        dr_conv conv = {call->layout, stream->heads * stream->dim, dr_recurrent_of(call)->is.conv_size,
                        stream->activated ? DR_ACTIVATION_SILU : DR_ACTIVATION_NONE};
        *d_raw = scratch->d_raw;
        return ops->conv_backward(call->backend, &conv, memory->raw[index], weight, bias, NULL, scratch->d_out[index], *d_raw,
                                  d_weight, d_bias);
    }
    if (stream->map == DR_MAP_GATE) {
        dr_gate gate = dr_recurrent_gate(call, stream);
        if (changes_type(call, stream)) *d_raw = scratch->d_raw;
        return ops->gate_backward(call->backend, &gate, memory->raw[index], weight, bias, scratch->d_out[index], *d_raw, false,
                                  d_weight, d_bias);
    }
    return DR_OK;
}

/* The first stream overwrites d_x, the others add to it. */
static dr_status project_backward(const dr_module_call *call, int index, const void *x, const void *d_raw, void *d_x,
                                  const dr_recurrent_memory *memory, const dr_recurrent_scratch *scratch) {
    const dr_stream *stream = &dr_recurrent_of(call)->stream[index];
    const dr_operations *ops = call->backend->ops;
    int64_t rows = call->layout.rows;
    bool low_rank = stream->down != DR_NO_PARAMETER;
    const void *weight = dr_module_weight(call, stream->weight), *in = low_rank ? memory->hidden[index] : x;
    void *d_in = low_rank ? scratch->d_hidden : d_x, *d_weight = dr_module_gradient(call, stream->weight);
    if (stream->grouped) {
        dr_grouped_linear grouped = {rows, stream->heads, stream->rank / stream->heads, stream->dim};
        DR_TRY(ops->grouped_linear_backward(call->backend, &grouped, in, weight, d_raw, d_in, d_weight));
    } else {
        dr_linear linear = {rows, stream->rank, stream->heads * stream->dim};
        DR_TRY(ops->linear_backward(call->backend, &linear, in, weight, d_raw, d_in, !low_rank && index > 0, d_weight,
                                    dr_module_gradient(call, stream->bias)));
    }
    if (!low_rank) return DR_OK;
    dr_linear down = {rows, dr_recurrent_of(call)->module.hidden, stream->rank};
    return ops->linear_backward(call->backend, &down, x, dr_module_weight(call, stream->down), d_in, d_x, index > 0,
                                dr_module_gradient(call, stream->down), NULL);
}

/* d_value and d_step from the value's product with the step */
static dr_status step_backward(const dr_module_call *call, const dr_recurrent_memory *memory,
                               const dr_recurrent_scratch *scratch) {
    const dr_recurrent *mixer = dr_recurrent_of(call);
    int value = mixer->of[DR_INPUT_VALUE];
    return call->backend->ops->scale_heads_backward(call->backend, call->layout.rows, mixer->value_heads, mixer->value_size,
                                                    false, memory->step, memory->out[value], scratch->d_stepped,
                                                    scratch->d_step, scratch->d_out[value], true);
}

/* adds what the step gives to the projection behind the decay */
static dr_status step_projection_backward(const dr_module_call *call, const dr_recurrent_memory *memory,
                                          const dr_recurrent_scratch *scratch, void *d_raw) {
    const dr_recurrent *mixer = dr_recurrent_of(call);
    dr_gate gate = {
        .kind = DR_GATE_SOFTPLUS, .rows = call->layout.rows, .heads = mixer->value_heads, .dim = 1, .to = DR_NUMBER};
    return call->backend->ops->gate_backward(call->backend, &gate, memory->raw[mixer->of[DR_INPUT_LOG_DECAY]], NULL,
                                             dr_module_parameter(call, mixer->own.step_bias), scratch->d_step, d_raw, true,
                                             NULL, dr_module_gradient(call, mixer->own.step_bias));
}

dr_status dr_recurrent_backward(const dr_module_call *call, const void *x, const void *d_y, void *d_x) {
    const dr_recurrent_memory *memory = call->memory;
    const dr_recurrent_scratch *scratch = call->scratch;
    const dr_recurrent *mixer = dr_recurrent_of(call);
    DR_TRY(output_backward(call, d_y, memory, scratch));
    DR_TRY(recur_backward(call, memory, scratch));
    DR_TRY(parameters_backward(call, scratch));
    if (mixer->is.stepped) DR_TRY(step_backward(call, memory, scratch));
    for (int i = 0; i < mixer->streams; i++) DR_TRY(finish_backward(call, i, memory, scratch));
    DR_TRY(couple_backward(call, memory, scratch));
    for (int i = 0; i < mixer->streams; i++) {
        void *d_raw = NULL;
        DR_TRY(map_backward(call, i, memory, scratch, &d_raw));
        if (mixer->is.stepped && mixer->stream[i].input == DR_INPUT_LOG_DECAY)
            DR_TRY(step_projection_backward(call, memory, scratch, d_raw));
        DR_TRY(project_backward(call, i, x, d_raw, d_x, memory, scratch));
    }
    return DR_OK;
}
