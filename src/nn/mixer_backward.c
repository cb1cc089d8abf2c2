/* Backward of a mixer: the forward's stages in reverse (nn/mixer_forward.c). The gradient of each stream's output becomes that
 * of its projection in place, but for the convolution, and where the two are of different types: those go through one buffer
 * that all streams share. What is
 * cheap is made again instead of kept: the normed output. */
#include "base/error.h"
#include "nn/mixer.h"

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Whether a stream's output is of another type than its projection, so that their gradients cannot share memory. */
static bool changes_type(const dr_layer *layer, const dr_stream *stream) {
    return dr_kind_dtype(layer->backend, dr_stream_kind(stream)) != dr_kind_dtype(layer->backend, DR_VECTOR);
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static void place_backward(const dr_layer *layer, dr_arena *arena, dr_mixer_scratch *scratch) {
    const dr_mixer *mixer = layer->mixer;
    int64_t rows = layer->layout.rows, widest = 0, widest_hidden = 0;
    size_t keys = dr_kind_bytes(layer->backend, DR_VECTOR, rows * mixer->heads * mixer->key_size);
    size_t values = dr_kind_bytes(layer->backend, DR_VECTOR, rows * mixer->value_heads * mixer->value_size);
    for (int i = 0; i < mixer->streams; i++) {
        const dr_stream *stream = &mixer->stream[i];
        scratch->d_out[i] =
            dr_arena_take(arena, dr_kind_bytes(layer->backend, dr_stream_kind(stream), rows * stream->heads * stream->dim));
        if (stream->map == DR_MAP_CONV || changes_type(layer, stream)) widest = larger(widest, stream->heads * stream->dim);
        if (stream->down != DR_ROLES) widest_hidden = larger(widest_hidden, stream->rank);
    }
    if (mixer->corrected) widest = larger(widest, mixer->heads * mixer->key_size);
    scratch->d_raw = dr_arena_take(arena, dr_kind_bytes(layer->backend, DR_VECTOR, rows * widest));
    scratch->d_hidden = dr_arena_take(arena, dr_kind_bytes(layer->backend, DR_VECTOR, rows * widest_hidden));
    scratch->d_y = dr_arena_take(arena, values);
    scratch->d_o = dr_arena_take(arena, values);
    if (mixer->family.stepped) {
        scratch->d_step = dr_arena_take(arena, dr_kind_bytes(layer->backend, DR_NUMBER, rows * mixer->value_heads));
        scratch->d_stepped = dr_arena_take(arena, values);
    }
    if (mixer->feedback) {
        scratch->d_erasing = dr_arena_take(arena, keys);
        scratch->d_factor = dr_arena_take(arena, dr_kind_bytes(layer->backend, DR_NUMBER, mixer->heads));
    }
    if (mixer->slot[DR_ROLE_SCAN_CENTRE].count)
        scratch->d_centre = dr_arena_take(arena, dr_kind_bytes(layer->backend, DR_NUMBER, mixer->heads));
    if (mixer->ridge_floor)
        scratch->d_ridge = dr_arena_take(arena, dr_kind_bytes(layer->backend, DR_NUMBER, mixer->heads * mixer->key_size));
}

void dr_mixer_place_scratch(const dr_layer *layer, bool backward, dr_arena *arena, dr_mixer_scratch *scratch) {
    const dr_mixer *mixer = layer->mixer;
    const dr_recurrence_memory *engine = &layer->plan->memory;
    size_t work = layer->decode ? engine->decode : engine->forward;
    if (backward && engine->backward > work) work = engine->backward;
    *scratch = (dr_mixer_scratch){0};
    scratch->y = dr_arena_take(
        arena, dr_kind_bytes(layer->backend, DR_VECTOR, layer->layout.rows * mixer->value_heads * mixer->value_size));
    scratch->workspace = dr_arena_take(arena, work);
    if (backward) place_backward(layer, arena, scratch);
}

/* ---- output and recurrence ------------------------------------------------------------------------------------------ */

/* d_o, the gate's gradient, and with stepped values the part of the value's that goes past the recurrence */
static dr_status output_backward(const dr_layer *layer, const void *d_y, const dr_mixer_memory *memory,
                                 const dr_mixer_scratch *scratch) {
    const dr_mixer *mixer = layer->mixer;
    const dr_operations *ops = layer->backend->ops;
    int64_t rows = layer->layout.rows, heads = mixer->value_heads, dim = mixer->value_size;
    int gate = mixer->of[DR_INPUTS], value = mixer->of[DR_INPUT_VALUE];
    dr_linear linear = {rows, heads * dim, mixer->hidden};
    dr_rms_norm norm = dr_mixer_output_norm(layer);
    DR_TRY(dr_mixer_norm_output(layer, memory, scratch));
    DR_TRY(ops->linear_backward(layer->backend, &linear, scratch->y, dr_layer_weight(layer, DR_ROLE_OUTPUT), d_y, scratch->d_y,
                                false, dr_layer_gradient(layer, DR_ROLE_OUTPUT), NULL));
    DR_TRY(ops->rms_norm_backward(layer->backend, &norm, memory->o, dr_layer_parameter(layer, DR_ROLE_OUTPUT_NORM),
                                  gate >= 0 ? memory->out[gate] : NULL, scratch->d_y, scratch->d_o, false,
                                  dr_layer_gradient(layer, DR_ROLE_OUTPUT_NORM), gate >= 0 ? scratch->d_out[gate] : NULL));
    if (!mixer->family.stepped) return DR_OK;
    return ops->scale_heads_backward(layer->backend, rows, heads, dim, true, dr_layer_parameter(layer, DR_ROLE_SKIP),
                                     memory->out[value], scratch->d_o, dr_layer_gradient(layer, DR_ROLE_SKIP),
                                     scratch->d_out[value], false);
}

static dr_status recur_backward(const dr_layer *layer, const dr_mixer_memory *memory, const dr_mixer_scratch *scratch) {
    const dr_mixer *mixer = layer->mixer;
    dr_inputs inputs = dr_mixer_inputs(layer, memory);
    dr_input_gradients gradients = {{NULL}};
    for (int i = 0; i < mixer->streams; i++)
        if (mixer->stream[i].input != DR_INPUTS) gradients.at[mixer->stream[i].input] = scratch->d_out[i];
    if (mixer->family.stepped) gradients.at[DR_INPUT_VALUE] = scratch->d_stepped;
    if (mixer->feedback) gradients.at[DR_INPUT_FEEDBACK_KEY] = scratch->d_erasing;
    gradients.at[DR_INPUT_SCAN_CENTRE] = scratch->d_centre;
    gradients.at[DR_INPUT_RIDGE] = scratch->d_ridge;
    dr_call call = dr_layer_call(layer, &inputs, memory, scratch);
    call.d_o = scratch->d_o;
    call.d_inputs = &gradients;
    return dr_plan_backward(layer->plan, &call);
}

/* Parameters that the recurrence reads as they are, or through a map without tokens. */
static dr_status parameters_backward(const dr_layer *layer, const dr_mixer_scratch *scratch) {
    const dr_mixer *mixer = layer->mixer;
    const dr_operations *ops = layer->backend->ops;
    if (scratch->d_centre)
        DR_TRY(ops->add(layer->backend, DR_NUMBER, mixer->heads, 1, scratch->d_centre,
                        dr_layer_gradient(layer, DR_ROLE_SCAN_CENTRE)));
    if (!scratch->d_ridge) return DR_OK;
    dr_gate gate = {
        .kind = DR_GATE_SOFTPLUS, .rows = 1, .heads = mixer->heads, .dim = mixer->key_size, .from = DR_NUMBER, .to = DR_NUMBER};
    return ops->gate_backward(layer->backend, &gate, dr_layer_parameter(layer, DR_ROLE_RIDGE), NULL, NULL, scratch->d_ridge,
                              dr_layer_gradient(layer, DR_ROLE_RIDGE), true, NULL, NULL);
}

/* ---- streams -------------------------------------------------------------------------------------------------------- */

static dr_status finish_backward(const dr_layer *layer, int index, const dr_mixer_memory *memory,
                                 const dr_mixer_scratch *scratch) {
    const dr_stream *stream = &layer->mixer->stream[index];
    const dr_operations *ops = layer->backend->ops;
    if (stream->rotated) {
        const dr_rotary rotary = dr_layer_rotary(layer, stream);
        DR_TRY(ops->rotary(layer->backend, &rotary, scratch->d_out[index], true));
    }
    if (!stream->unit) return DR_OK;
    dr_l2_norm norm = {layer->layout.rows * stream->heads, stream->dim, 1e-6};
    return ops->l2_norm_backward(layer->backend, &norm, memory->mapped[index], scratch->d_out[index], scratch->d_out[index]);
}

/* query -= D p, p = factor key: from the gradients of query and p to those of D, p, factor and key */
static dr_status couple_backward(const dr_layer *layer, const dr_mixer_memory *memory, const dr_mixer_scratch *scratch) {
    const dr_mixer *mixer = layer->mixer;
    const dr_operations *ops = layer->backend->ops;
    int64_t rows = layer->layout.rows, heads = mixer->heads, dim = mixer->key_size;
    int key = mixer->of[DR_INPUT_KEY];
    if (mixer->feedback && memory->erasing != memory->feedback) {
        dr_l2_norm norm = {rows * heads, dim, 1e-6};
        DR_TRY(ops->l2_norm_backward(layer->backend, &norm, memory->feedback, scratch->d_erasing, scratch->d_erasing));
    }
    if (mixer->corrected) {
        void *d_correction = scratch->d_raw;
        ops->zero(layer->backend, d_correction, dr_kind_bytes(layer->backend, DR_VECTOR, rows * heads * dim));
        DR_TRY(ops->add(layer->backend, DR_VECTOR, rows * heads * dim, -1, scratch->d_out[mixer->of[DR_INPUT_QUERY]],
                        d_correction));
        DR_TRY(ops->scale_heads_backward(layer->backend, rows, heads, dim, true, dr_layer_parameter(layer, DR_ROLE_CORRECTION),
                                         mixer->feedback ? memory->feedback : memory->mapped[key], d_correction,
                                         dr_layer_gradient(layer, DR_ROLE_CORRECTION),
                                         mixer->feedback ? scratch->d_erasing : scratch->d_out[key], true));
    }
    if (!mixer->feedback) return DR_OK;
    ops->zero(layer->backend, scratch->d_factor, dr_kind_bytes(layer->backend, DR_NUMBER, heads));
    DR_TRY(ops->scale_heads_backward(layer->backend, rows, heads, dim, true, memory->feedback_factor, memory->mapped[key],
                                     scratch->d_erasing, scratch->d_factor, scratch->d_out[key], true));
    dr_gate gate = {
        .kind = DR_GATE_SIGMOID, .rows = 1, .heads = heads, .dim = 1, .multiplier = 1, .from = DR_NUMBER, .to = DR_NUMBER};
    return ops->gate_backward(layer->backend, &gate, dr_layer_parameter(layer, DR_ROLE_FEEDBACK), NULL, NULL, scratch->d_factor,
                              dr_layer_gradient(layer, DR_ROLE_FEEDBACK), true, NULL, NULL);
}

/* From d_out to the gradient of the projection; *d_raw is where that stands. */
static dr_status map_backward(const dr_layer *layer, int index, const dr_mixer_memory *memory, const dr_mixer_scratch *scratch,
                              void **d_raw) {
    const dr_stream *stream = &layer->mixer->stream[index];
    const dr_operations *ops = layer->backend->ops;
    const void *weight = dr_layer_parameter(layer, stream->map_weight), *bias = dr_layer_parameter(layer, stream->map_bias);
    void *d_weight = dr_layer_gradient(layer, stream->map_weight), *d_bias = dr_layer_gradient(layer, stream->map_bias);
    *d_raw = scratch->d_out[index];
    if (stream->map == DR_MAP_CONV) {
        dr_conv conv = {layer->layout, stream->heads * stream->dim, layer->mixer->conv_size, DR_ACTIVATION_SILU};
        *d_raw = scratch->d_raw;
        return ops->conv_backward(layer->backend, &conv, memory->raw[index], weight, bias, NULL, scratch->d_out[index], *d_raw,
                                  d_weight, d_bias);
    }
    if (stream->map == DR_MAP_GATE) {
        dr_gate gate = dr_layer_gate(layer, stream);
        if (changes_type(layer, stream)) *d_raw = scratch->d_raw;
        return ops->gate_backward(layer->backend, &gate, memory->raw[index], weight, bias, scratch->d_out[index], *d_raw, false,
                                  d_weight, d_bias);
    }
    return DR_OK;
}

/* The first stream overwrites d_x, the others add to it. */
static dr_status project_backward(const dr_layer *layer, int index, const void *x, const void *d_raw, void *d_x,
                                  const dr_mixer_memory *memory, const dr_mixer_scratch *scratch) {
    const dr_stream *stream = &layer->mixer->stream[index];
    const dr_operations *ops = layer->backend->ops;
    int64_t rows = layer->layout.rows;
    bool low_rank = stream->down != DR_ROLES;
    const void *weight = dr_layer_weight(layer, stream->weight), *in = low_rank ? memory->hidden[index] : x;
    void *d_in = low_rank ? scratch->d_hidden : d_x, *d_weight = dr_layer_gradient(layer, stream->weight);
    if (stream->grouped) {
        dr_grouped_linear grouped = {rows, stream->heads, stream->rank / stream->heads, stream->dim};
        DR_TRY(ops->grouped_linear_backward(layer->backend, &grouped, in, weight, d_raw, d_in, d_weight));
    } else {
        dr_linear linear = {rows, stream->rank, stream->heads * stream->dim};
        DR_TRY(ops->linear_backward(layer->backend, &linear, in, weight, d_raw, d_in, !low_rank && index > 0, d_weight,
                                    dr_layer_gradient(layer, stream->bias)));
    }
    if (!low_rank) return DR_OK;
    dr_linear down = {rows, layer->mixer->hidden, stream->rank};
    return ops->linear_backward(layer->backend, &down, x, dr_layer_weight(layer, stream->down), d_in, d_x, index > 0,
                                dr_layer_gradient(layer, stream->down), NULL);
}

/* d_value and d_step from the value's product with the step */
static dr_status step_backward(const dr_layer *layer, const dr_mixer_memory *memory, const dr_mixer_scratch *scratch) {
    const dr_mixer *mixer = layer->mixer;
    int value = mixer->of[DR_INPUT_VALUE];
    return layer->backend->ops->scale_heads_backward(layer->backend, layer->layout.rows, mixer->value_heads, mixer->value_size,
                                                     false, memory->step, memory->out[value], scratch->d_stepped,
                                                     scratch->d_step, scratch->d_out[value], true);
}

/* adds what the step gives to the projection behind the decay */
static dr_status step_projection_backward(const dr_layer *layer, const dr_mixer_memory *memory, const dr_mixer_scratch *scratch,
                                          void *d_raw) {
    const dr_mixer *mixer = layer->mixer;
    dr_gate gate = {
        .kind = DR_GATE_SOFTPLUS, .rows = layer->layout.rows, .heads = mixer->value_heads, .dim = 1, .to = DR_NUMBER};
    return layer->backend->ops->gate_backward(layer->backend, &gate, memory->raw[mixer->of[DR_INPUT_LOG_DECAY]], NULL,
                                              dr_layer_parameter(layer, DR_ROLE_DT_BIAS), scratch->d_step, d_raw, true, NULL,
                                              dr_layer_gradient(layer, DR_ROLE_DT_BIAS));
}

dr_status dr_mixer_backward(const dr_layer *layer, const void *x, const void *d_y, void *d_x, const dr_mixer_memory *memory,
                            const dr_mixer_scratch *scratch) {
    const dr_mixer *mixer = layer->mixer;
    DR_TRY(output_backward(layer, d_y, memory, scratch));
    DR_TRY(recur_backward(layer, memory, scratch));
    DR_TRY(parameters_backward(layer, scratch));
    if (mixer->family.stepped) DR_TRY(step_backward(layer, memory, scratch));
    for (int i = 0; i < mixer->streams; i++) DR_TRY(finish_backward(layer, i, memory, scratch));
    DR_TRY(couple_backward(layer, memory, scratch));
    for (int i = 0; i < mixer->streams; i++) {
        void *d_raw = NULL;
        DR_TRY(map_backward(layer, i, memory, scratch, &d_raw));
        if (mixer->family.stepped && mixer->stream[i].input == DR_INPUT_LOG_DECAY)
            DR_TRY(step_projection_backward(layer, memory, scratch, d_raw));
        DR_TRY(project_backward(layer, i, x, d_raw, d_x, memory, scratch));
    }
    return DR_OK;
}
