/* Forward of a mixer, in this order:
 *
 *     streams      raw = projection of x;  mapped = convolution or gate of raw
 *     couplings    p = sigmoid(decay) key;  query -= D p;  both before the norms, as published
 *     finish       featured = feature map of mapped;  out = norm of that, turned by the rotary embedding
 *     recurrence   o from the streams (and, where the rule has them, ridge, scan centre, constant decay)
 *     output       o += D value (stepped values);  y = norm and gate of o;  then the last projection
 *
 * Prefill, training and one-token decode differ in the engine only (nn/mixers/engine.c). */
#include "base/error.h"
#include "nn/mixers/engine.h"
#include "nn/mixers/recurrent/recurrent.h"

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static void place_stream(const dr_module_call *call, int index, bool keep, dr_arena *arena, dr_recurrent_memory *memory) {
    const dr_stream *stream = &dr_recurrent_of(call)->stream[index];
    int64_t rows = call->layout.rows;
    int64_t count = rows * stream->heads * stream->dim;
    size_t vectors = dr_kind_bytes(call->backend, DR_VECTOR, count),
           bytes = dr_kind_bytes(call->backend, dr_stream_kind(stream), count);
    memory->hidden[index] = stream->down == DR_NO_PARAMETER
                                ? NULL
                                : dr_arena_take(arena, dr_kind_bytes(call->backend, DR_VECTOR, rows * stream->rank));
    memory->raw[index] = dr_arena_take(arena, vectors);
    memory->mapped[index] = stream->map == DR_MAP_NONE ? memory->raw[index] : dr_arena_take(arena, bytes);
    const bool featured = stream->feature != DR_FUNCTION_IDENTITY, scaled = stream->length != DR_LENGTH_FREE;
    memory->featured[index] = featured && keep ? dr_arena_take(arena, bytes) : memory->mapped[index];
    memory->out[index] = scaled && keep ? dr_arena_take(arena, bytes) : memory->featured[index];
}

void dr_recurrent_place(const dr_module_call *call, bool keep, dr_arena *arena, void *place) {
    dr_recurrent_memory *memory = place;
    const dr_recurrent *mixer = dr_recurrent_of(call);
    int64_t rows = call->layout.rows;
    size_t keys = dr_kind_bytes(call->backend, DR_VECTOR, rows * mixer->heads * mixer->key_size);
    size_t values = dr_kind_bytes(call->backend, DR_VECTOR, rows * mixer->value_heads * mixer->value_size);
    *memory = (dr_recurrent_memory){0};
    for (int i = 0; i < mixer->streams; i++) place_stream(call, i, keep, arena, memory);
    if (mixer->is.stepped) {
        memory->step = dr_arena_take(arena, dr_kind_bytes(call->backend, DR_NUMBER, rows * mixer->value_heads));
        memory->stepped = dr_arena_take(arena, values);
    }
    if (mixer->feedback) {
        memory->feedback_factor = dr_arena_take(arena, dr_kind_bytes(call->backend, DR_NUMBER, mixer->heads));
        memory->feedback = dr_arena_take(arena, keys);
        memory->erasing = mixer->is.key_length != DR_LENGTH_FREE ? dr_arena_take(arena, keys) : memory->feedback;
    }
    if (mixer->corrected) memory->correction = dr_arena_take(arena, keys);
    if (mixer->ridge_floor)
        memory->ridge = dr_arena_take(arena, dr_kind_bytes(call->backend, DR_NUMBER, mixer->heads * mixer->key_size));
    if (mixer->fixed_lambda >= 0)
        memory->fixed_lambda = dr_arena_take(arena, dr_kind_bytes(call->backend, DR_NUMBER, rows * mixer->value_heads));
    memory->o = dr_arena_take(arena, values);
    if (keep) memory->saved = dr_engine_place_saved(call, arena);
}

/* ---- streams -------------------------------------------------------------------------------------------------------- */

static dr_status project(const dr_module_call *call, int index, const void *x, const dr_recurrent_memory *memory) {
    const dr_stream *stream = &dr_recurrent_of(call)->stream[index];
    const dr_operations *ops = call->backend->ops;
    int64_t rows = call->layout.rows;
    const void *in = x;
    if (stream->down != DR_NO_PARAMETER) {
        dr_linear down = {rows, dr_recurrent_of(call)->module.hidden, stream->rank};
        DR_TRY(ops->linear_forward(call->backend, &down, x, dr_module_weight(call, stream->down), NULL, memory->hidden[index]));
        in = memory->hidden[index];
    }
    const void *weight = dr_module_weight(call, stream->weight);
    if (stream->grouped) {
        dr_grouped_linear grouped = {rows, stream->heads, stream->rank / stream->heads, stream->dim};
        return ops->grouped_linear_forward(call->backend, &grouped, in, weight, memory->raw[index]);
    }
    dr_linear linear = {rows, stream->rank, stream->heads * stream->dim};
    return ops->linear_forward(call->backend, &linear, in, weight, dr_module_parameter(call, stream->bias), memory->raw[index]);
}

static dr_status map(const dr_module_call *call, int index, const dr_recurrent_memory *memory,
                     const dr_recurrent_state *state) {
    const dr_stream *stream = &dr_recurrent_of(call)->stream[index];
    const dr_operations *ops = call->backend->ops;
    const void *weight = dr_module_parameter(call, stream->map_weight), *bias = dr_module_parameter(call, stream->map_bias);
    if (stream->map == DR_MAP_CONV) {
        dr_conv conv = {call->layout, stream->heads * stream->dim, dr_recurrent_of(call)->is.conv_size,
                        stream->activated ? DR_ACTIVATION_SILU : DR_ACTIVATION_NONE};
        void *carried = state ? state->conv[index] : NULL;
        return ops->conv_forward(call->backend, &conv, memory->raw[index], weight, bias, carried, memory->mapped[index],
                                 carried);
    }
    if (stream->map == DR_MAP_GATE) {
        dr_gate gate = dr_recurrent_gate(call, stream);
        return ops->gate_forward(call->backend, &gate, memory->raw[index], weight, bias, memory->mapped[index]);
    }
    return DR_OK;
}

/* p = sigmoid(decay) key, and query -= D p; without a feedback key p is the key. */
static dr_status couple(const dr_module_call *call, const dr_recurrent_memory *memory) {
    const dr_recurrent *mixer = dr_recurrent_of(call);
    const dr_operations *ops = call->backend->ops;
    int64_t rows = call->layout.rows, heads = mixer->heads, dim = mixer->key_size;
    const void *key = memory->mapped[mixer->of[DR_INPUT_KEY]];
    if (mixer->feedback) {
        dr_gate gate = {
            .kind = DR_GATE_SIGMOID, .rows = 1, .heads = heads, .dim = 1, .multiplier = 1, .from = DR_NUMBER, .to = DR_NUMBER};
        DR_TRY(ops->gate_forward(call->backend, &gate, dr_module_parameter(call, mixer->own.feedback), NULL, NULL,
                                 memory->feedback_factor));
        DR_TRY(ops->scale_heads_forward(call->backend, rows, heads, dim, true, memory->feedback_factor, key, memory->feedback,
                                        false));
    }
    if (mixer->corrected) {
        DR_TRY(ops->scale_heads_forward(call->backend, rows, heads, dim, true, dr_module_parameter(call, mixer->own.correction),
                                        mixer->feedback ? memory->feedback : key, memory->correction, false));
        DR_TRY(ops->add(call->backend, DR_VECTOR, rows * heads * dim, -1, memory->correction,
                        memory->mapped[mixer->of[DR_INPUT_QUERY]]));
    }
    if (mixer->feedback && memory->erasing != memory->feedback) {
        dr_l2_norm norm = {rows * heads, dim, 1e-6};
        DR_TRY(ops->l2_norm_forward(call->backend, &norm, memory->feedback, memory->erasing));
    }
    return DR_OK;
}

static dr_status finish(const dr_module_call *call, int index, const dr_recurrent_memory *memory) {
    const dr_stream *stream = &dr_recurrent_of(call)->stream[index];
    const dr_operations *ops = call->backend->ops;
    const int64_t vectors = call->layout.rows * stream->heads;
    const dr_l2_norm norm = {vectors, stream->dim, 1e-6};
    if (stream->feature != DR_FUNCTION_IDENTITY)
        DR_TRY(ops->apply_forward(call->backend, stream->feature, vectors * stream->dim, memory->mapped[index],
                                  memory->featured[index]));
    switch (stream->length) {
    case DR_LENGTH_FREE:
        break;
    case DR_LENGTH_UNIT:
        DR_TRY(ops->l2_norm_forward(call->backend, &norm, memory->featured[index], memory->out[index]));
        break;
    case DR_LENGTH_SUM:
        DR_TRY(ops->sum_norm_forward(call->backend, vectors, stream->dim, memory->featured[index], memory->out[index]));
        break;
    }
    if (stream->rotated) {
        const dr_rotary rotary = dr_recurrent_rotary(call, stream);
        DR_TRY(ops->rotary(call->backend, &rotary, memory->out[index], false));
    }
    return DR_OK;
}

/* ---- recurrence and output ------------------------------------------------------------------------------------------ */

/* step = softplus(u), u the projection behind the decay; the recurrence reads step times the value. */
static dr_status step_values(const dr_module_call *call, const dr_recurrent_memory *memory) {
    const dr_recurrent *mixer = dr_recurrent_of(call);
    const dr_operations *ops = call->backend->ops;
    int64_t rows = call->layout.rows, heads = mixer->value_heads;
    dr_gate gate = {.kind = DR_GATE_SOFTPLUS, .rows = rows, .heads = heads, .dim = 1, .to = DR_NUMBER};
    DR_TRY(ops->gate_forward(call->backend, &gate, memory->raw[mixer->of[DR_INPUT_LOG_DECAY]], NULL,
                             dr_module_parameter(call, mixer->own.step_bias), memory->step));
    return ops->scale_heads_forward(call->backend, rows, heads, mixer->value_size, false, memory->step,
                                    memory->out[mixer->of[DR_INPUT_VALUE]], memory->stepped, false);
}

static dr_status make_ridge(const dr_module_call *call, const dr_recurrent_memory *memory) {
    const dr_recurrent *mixer = dr_recurrent_of(call);
    const dr_operations *ops = call->backend->ops;
    dr_gate gate = {
        .kind = DR_GATE_SOFTPLUS, .rows = 1, .heads = mixer->heads, .dim = mixer->key_size, .from = DR_NUMBER, .to = DR_NUMBER};
    DR_TRY(ops->gate_forward(call->backend, &gate, dr_module_parameter(call, mixer->own.ridge), NULL, NULL, memory->ridge));
    return ops->add(call->backend, DR_NUMBER, mixer->heads * mixer->key_size, 1, mixer->ridge_floor, memory->ridge);
}

/* The same lambda everywhere: twice its value times sigmoid(0). */
static dr_status fix_lambda(const dr_module_call *call, const dr_recurrent_memory *memory) {
    const dr_recurrent *mixer = dr_recurrent_of(call);
    int64_t count = call->layout.rows * mixer->value_heads;
    dr_gate gate = {.kind = DR_GATE_SIGMOID,
                    .rows = count,
                    .heads = 1,
                    .dim = 1,
                    .multiplier = 2 * mixer->fixed_lambda,
                    .from = DR_NUMBER,
                    .to = DR_NUMBER};
    call->backend->ops->zero(call->backend, memory->fixed_lambda, dr_kind_bytes(call->backend, DR_NUMBER, count));
    return call->backend->ops->gate_forward(call->backend, &gate, memory->fixed_lambda, NULL, NULL, memory->fixed_lambda);
}

dr_inputs dr_recurrent_inputs(const dr_module_call *call, const dr_recurrent_memory *memory) {
    const dr_recurrent *mixer = dr_recurrent_of(call);
    dr_inputs inputs = {{NULL}};
    for (int i = 0; i < mixer->streams; i++)
        if (mixer->stream[i].input != DR_INPUTS) inputs.at[mixer->stream[i].input] = memory->out[i];
    if (mixer->constant_decay) inputs.at[DR_INPUT_LOG_DECAY] = mixer->constant_decay;
    if (mixer->is.stepped) inputs.at[DR_INPUT_VALUE] = memory->stepped;
    if (mixer->feedback) inputs.at[DR_INPUT_FEEDBACK_KEY] = memory->erasing;
    if (mixer->ridge_floor) inputs.at[DR_INPUT_RIDGE] = memory->ridge;
    if (mixer->fixed_lambda >= 0) inputs.at[DR_INPUT_LAMBDA] = memory->fixed_lambda;
    inputs.at[DR_INPUT_SCAN_CENTRE] = dr_module_parameter(call, mixer->own.scan_centre);
    return inputs;
}

static dr_activation gate_of(const dr_recurrent *mixer) {
    if (mixer->of[DR_INPUTS] < 0) return DR_ACTIVATION_NONE;
    return mixer->is.gate == DR_FUNCTION_SIGMOID ? DR_ACTIVATION_SIGMOID : DR_ACTIVATION_SILU;
}

dr_rms_norm dr_recurrent_output_norm(const dr_module_call *call) {
    const dr_recurrent *mixer = dr_recurrent_of(call);
    bool whole = mixer->is.gate_first; /* all heads as one group */
    return (dr_rms_norm){.rows = call->layout.rows * (whole ? 1 : mixer->value_heads),
                         .dim = mixer->value_size * (whole ? mixer->value_heads : 1),
                         .eps = mixer->is.norm_eps,
                         .gate = gate_of(mixer),
                         .gate_first = whole};
}

dr_status dr_recurrent_norm_output(const dr_module_call *call, const dr_recurrent_memory *memory,
                                   const dr_recurrent_scratch *scratch) {
    const dr_recurrent *mixer = dr_recurrent_of(call);
    const dr_rms_norm norm = dr_recurrent_output_norm(call);
    const int gate = mixer->of[DR_INPUTS];
    return call->backend->ops->rms_norm_forward(call->backend, &norm, memory->o,
                                                dr_module_parameter(call, mixer->own.output_norm),
                                                gate >= 0 ? memory->out[gate] : NULL, scratch->y);
}

dr_status dr_recurrent_forward(const dr_module_call *call, const void *x, void *y) {
    const dr_recurrent_memory *memory = call->memory;
    const dr_recurrent_scratch *scratch = call->scratch;
    const dr_recurrent_state *state = call->state;
    const dr_recurrent *mixer = dr_recurrent_of(call);
    const dr_operations *ops = call->backend->ops;
    int64_t rows = call->layout.rows, heads = mixer->value_heads, dim = mixer->value_size;
    for (int i = 0; i < mixer->streams; i++) {
        DR_TRY(project(call, i, x, memory));
        DR_TRY(map(call, i, memory, state));
    }
    DR_TRY(couple(call, memory));
    for (int i = 0; i < mixer->streams; i++) DR_TRY(finish(call, i, memory));
    if (mixer->is.stepped) DR_TRY(step_values(call, memory));
    if (mixer->ridge_floor) DR_TRY(make_ridge(call, memory));
    if (mixer->fixed_lambda >= 0) DR_TRY(fix_lambda(call, memory));
    const dr_inputs inputs = dr_recurrent_inputs(call, memory);
    DR_TRY(dr_engine_forward(call, &inputs, memory->saved, scratch->workspace, state ? state->at : NULL, memory->o));
    if (mixer->is.stepped)
        DR_TRY(ops->scale_heads_forward(call->backend, rows, heads, dim, true, dr_module_parameter(call, mixer->own.skip),
                                        memory->out[mixer->of[DR_INPUT_VALUE]], memory->o, true));
    DR_TRY(dr_recurrent_norm_output(call, memory, scratch));
    dr_linear linear = {rows, heads * dim, mixer->module.hidden};
    return ops->linear_forward(call->backend, &linear, scratch->y, dr_module_weight(call, mixer->own.output), NULL, y);
}
