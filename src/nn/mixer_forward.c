/* Forward of a mixer, in this order:
 *
 *     streams      raw = projection of x;  mapped = convolution or gate of raw
 *     couplings    p = sigmoid(decay) key;  query -= D p;  both before the norms, as published
 *     finish       out = L2 norm of mapped, turned by the rotary embedding
 *     recurrence   o from the streams (and, where the rule has them, ridge, scan centre, constant decay)
 *     output       o += D value (stepped values);  y = norm and gate of o;  then the last projection
 *
 * Prefill, training and one-token decode differ in the engine only. */
#include "base/error.h"
#include "nn/mixer.h"

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static void place_stream(const dr_layer *layer, int index, bool keep, dr_arena *arena, dr_mixer_memory *memory) {
    const dr_stream *stream = &layer->mixer->stream[index];
    int64_t rows = layer->layout.rows;
    int64_t count = rows * stream->heads * stream->dim;
    size_t vectors = dr_kind_bytes(layer->backend, DR_VECTOR, count),
           bytes = dr_kind_bytes(layer->backend, dr_stream_kind(stream), count);
    memory->hidden[index] =
        stream->down == DR_ROLES ? NULL : dr_arena_take(arena, dr_kind_bytes(layer->backend, DR_VECTOR, rows * stream->rank));
    memory->raw[index] = dr_arena_take(arena, vectors);
    memory->mapped[index] = stream->map == DR_MAP_NONE ? memory->raw[index] : dr_arena_take(arena, bytes);
    memory->out[index] = stream->unit && keep ? dr_arena_take(arena, bytes) : memory->mapped[index];
}

void dr_mixer_place(const dr_layer *layer, bool keep, dr_arena *arena, dr_mixer_memory *memory) {
    const dr_mixer *mixer = layer->mixer;
    int64_t rows = layer->layout.rows;
    size_t keys = dr_kind_bytes(layer->backend, DR_VECTOR, rows * mixer->heads * mixer->key_size);
    size_t values = dr_kind_bytes(layer->backend, DR_VECTOR, rows * mixer->value_heads * mixer->value_size);
    *memory = (dr_mixer_memory){0};
    for (int i = 0; i < mixer->streams; i++) place_stream(layer, i, keep, arena, memory);
    if (mixer->family.stepped) {
        memory->step = dr_arena_take(arena, dr_kind_bytes(layer->backend, DR_NUMBER, rows * mixer->value_heads));
        memory->stepped = dr_arena_take(arena, values);
    }
    if (mixer->feedback) {
        memory->feedback_factor = dr_arena_take(arena, dr_kind_bytes(layer->backend, DR_NUMBER, mixer->heads));
        memory->feedback = dr_arena_take(arena, keys);
        memory->erasing = mixer->family.unit == DR_UNIT_BOTH ? dr_arena_take(arena, keys) : memory->feedback;
    }
    if (mixer->corrected) memory->correction = dr_arena_take(arena, keys);
    if (mixer->ridge_floor)
        memory->ridge = dr_arena_take(arena, dr_kind_bytes(layer->backend, DR_NUMBER, mixer->heads * mixer->key_size));
    if (mixer->fixed_lambda >= 0)
        memory->fixed_lambda = dr_arena_take(arena, dr_kind_bytes(layer->backend, DR_NUMBER, rows * mixer->value_heads));
    memory->o = dr_arena_take(arena, values);
    if (keep) memory->saved = dr_arena_take(arena, layer->plan->memory.saved);
}

/* ---- streams -------------------------------------------------------------------------------------------------------- */

static dr_status project(const dr_layer *layer, int index, const void *x, const dr_mixer_memory *memory) {
    const dr_stream *stream = &layer->mixer->stream[index];
    const dr_operations *ops = layer->backend->ops;
    int64_t rows = layer->layout.rows;
    const void *in = x;
    if (stream->down != DR_ROLES) {
        dr_linear down = {rows, layer->mixer->hidden, stream->rank};
        DR_TRY(
            ops->linear_forward(layer->backend, &down, x, dr_layer_weight(layer, stream->down), NULL, memory->hidden[index]));
        in = memory->hidden[index];
    }
    const void *weight = dr_layer_weight(layer, stream->weight);
    if (stream->grouped) {
        dr_grouped_linear grouped = {rows, stream->heads, stream->rank / stream->heads, stream->dim};
        return ops->grouped_linear_forward(layer->backend, &grouped, in, weight, memory->raw[index]);
    }
    dr_linear linear = {rows, stream->rank, stream->heads * stream->dim};
    return ops->linear_forward(layer->backend, &linear, in, weight, dr_layer_parameter(layer, stream->bias),
                               memory->raw[index]);
}

static dr_status map(const dr_layer *layer, int index, const dr_mixer_memory *memory, const dr_mixer_state *state) {
    const dr_stream *stream = &layer->mixer->stream[index];
    const dr_operations *ops = layer->backend->ops;
    const void *weight = dr_layer_parameter(layer, stream->map_weight), *bias = dr_layer_parameter(layer, stream->map_bias);
    if (stream->map == DR_MAP_CONV) {
        dr_conv conv = {layer->layout, stream->heads * stream->dim, layer->mixer->conv_size, DR_ACTIVATION_SILU};
        void *carried = state ? state->conv[index] : NULL;
        return ops->conv_forward(layer->backend, &conv, memory->raw[index], weight, bias, carried, memory->mapped[index],
                                 carried);
    }
    if (stream->map == DR_MAP_GATE) {
        dr_gate gate = dr_layer_gate(layer, stream);
        return ops->gate_forward(layer->backend, &gate, memory->raw[index], weight, bias, memory->mapped[index]);
    }
    return DR_OK;
}

/* p = sigmoid(decay) key, and query -= D p; without a feedback key p is the key. */
static dr_status couple(const dr_layer *layer, const dr_mixer_memory *memory) {
    const dr_mixer *mixer = layer->mixer;
    const dr_operations *ops = layer->backend->ops;
    int64_t rows = layer->layout.rows, heads = mixer->heads, dim = mixer->key_size;
    const void *key = memory->mapped[mixer->of[DR_INPUT_KEY]];
    if (mixer->feedback) {
        dr_gate gate = {
            .kind = DR_GATE_SIGMOID, .rows = 1, .heads = heads, .dim = 1, .multiplier = 1, .from = DR_NUMBER, .to = DR_NUMBER};
        DR_TRY(ops->gate_forward(layer->backend, &gate, dr_layer_parameter(layer, DR_ROLE_FEEDBACK), NULL, NULL,
                                 memory->feedback_factor));
        DR_TRY(ops->scale_heads_forward(layer->backend, rows, heads, dim, true, memory->feedback_factor, key, memory->feedback,
                                        false));
    }
    if (mixer->corrected) {
        DR_TRY(ops->scale_heads_forward(layer->backend, rows, heads, dim, true, dr_layer_parameter(layer, DR_ROLE_CORRECTION),
                                        mixer->feedback ? memory->feedback : key, memory->correction, false));
        DR_TRY(ops->add(layer->backend, DR_VECTOR, rows * heads * dim, -1, memory->correction,
                        memory->mapped[mixer->of[DR_INPUT_QUERY]]));
    }
    if (mixer->feedback && memory->erasing != memory->feedback) {
        dr_l2_norm norm = {rows * heads, dim, 1e-6};
        DR_TRY(ops->l2_norm_forward(layer->backend, &norm, memory->feedback, memory->erasing));
    }
    return DR_OK;
}

static dr_status finish(const dr_layer *layer, int index, const dr_mixer_memory *memory) {
    const dr_stream *stream = &layer->mixer->stream[index];
    const dr_operations *ops = layer->backend->ops;
    if (stream->unit) {
        dr_l2_norm norm = {layer->layout.rows * stream->heads, stream->dim, 1e-6};
        DR_TRY(ops->l2_norm_forward(layer->backend, &norm, memory->mapped[index], memory->out[index]));
    }
    if (stream->rotated) {
        const dr_rotary rotary = dr_layer_rotary(layer, stream);
        DR_TRY(ops->rotary(layer->backend, &rotary, memory->out[index], false));
    }
    return DR_OK;
}

/* ---- recurrence and output ------------------------------------------------------------------------------------------ */

/* step = softplus(u), u the projection behind the decay; the recurrence reads step times the value. */
static dr_status step_values(const dr_layer *layer, const dr_mixer_memory *memory) {
    const dr_mixer *mixer = layer->mixer;
    const dr_operations *ops = layer->backend->ops;
    int64_t rows = layer->layout.rows, heads = mixer->value_heads;
    dr_gate gate = {.kind = DR_GATE_SOFTPLUS, .rows = rows, .heads = heads, .dim = 1, .to = DR_NUMBER};
    DR_TRY(ops->gate_forward(layer->backend, &gate, memory->raw[mixer->of[DR_INPUT_LOG_DECAY]], NULL,
                             dr_layer_parameter(layer, DR_ROLE_DT_BIAS), memory->step));
    return ops->scale_heads_forward(layer->backend, rows, heads, mixer->value_size, false, memory->step,
                                    memory->out[mixer->of[DR_INPUT_VALUE]], memory->stepped, false);
}

static dr_status make_ridge(const dr_layer *layer, const dr_mixer_memory *memory) {
    const dr_mixer *mixer = layer->mixer;
    const dr_operations *ops = layer->backend->ops;
    dr_gate gate = {
        .kind = DR_GATE_SOFTPLUS, .rows = 1, .heads = mixer->heads, .dim = mixer->key_size, .from = DR_NUMBER, .to = DR_NUMBER};
    DR_TRY(ops->gate_forward(layer->backend, &gate, dr_layer_parameter(layer, DR_ROLE_RIDGE), NULL, NULL, memory->ridge));
    return ops->add(layer->backend, DR_NUMBER, mixer->heads * mixer->key_size, 1, mixer->ridge_floor, memory->ridge);
}

/* The same lambda everywhere: twice its value times sigmoid(0). */
static dr_status fix_lambda(const dr_layer *layer, const dr_mixer_memory *memory) {
    const dr_mixer *mixer = layer->mixer;
    int64_t count = layer->layout.rows * mixer->value_heads;
    dr_gate gate = {.kind = DR_GATE_SIGMOID,
                    .rows = count,
                    .heads = 1,
                    .dim = 1,
                    .multiplier = 2 * mixer->fixed_lambda,
                    .from = DR_NUMBER,
                    .to = DR_NUMBER};
    layer->backend->ops->zero(layer->backend, memory->fixed_lambda, dr_kind_bytes(layer->backend, DR_NUMBER, count));
    return layer->backend->ops->gate_forward(layer->backend, &gate, memory->fixed_lambda, NULL, NULL, memory->fixed_lambda);
}

dr_inputs dr_mixer_inputs(const dr_layer *layer, const dr_mixer_memory *memory) {
    const dr_mixer *mixer = layer->mixer;
    dr_inputs inputs = {{NULL}};
    for (int i = 0; i < mixer->streams; i++)
        if (mixer->stream[i].input != DR_INPUTS) inputs.at[mixer->stream[i].input] = memory->out[i];
    if (mixer->constant_decay) inputs.at[DR_INPUT_LOG_DECAY] = mixer->constant_decay;
    if (mixer->family.stepped) inputs.at[DR_INPUT_VALUE] = memory->stepped;
    if (mixer->feedback) inputs.at[DR_INPUT_FEEDBACK_KEY] = memory->erasing;
    if (mixer->ridge_floor) inputs.at[DR_INPUT_RIDGE] = memory->ridge;
    if (mixer->fixed_lambda >= 0) inputs.at[DR_INPUT_LAMBDA] = memory->fixed_lambda;
    inputs.at[DR_INPUT_SCAN_CENTRE] = dr_layer_parameter(layer, DR_ROLE_SCAN_CENTRE);
    return inputs;
}

static dr_status recur(const dr_layer *layer, const dr_mixer_memory *memory, const dr_mixer_scratch *scratch,
                       const dr_mixer_state *state) {
    dr_inputs inputs = dr_mixer_inputs(layer, memory);
    dr_states initial = {{NULL}};
    dr_mutable_states final = {{NULL}};
    dr_call call = dr_layer_call(layer, &inputs, memory, scratch);
    call.o = memory->o;
    for (int kind = 0; state && kind < DR_STATES; kind++) initial.at[kind] = final.at[kind] = state->at[kind];
    if (layer->decode) {
        call.states = &final;
        return dr_plan_decode(layer->plan, &call);
    }
    if (state) call.initial = &initial, call.final = &final;
    return dr_plan_forward(layer->plan, &call);
}

dr_rms_norm dr_mixer_output_norm(const dr_layer *layer) {
    const dr_mixer *mixer = layer->mixer;
    bool whole = mixer->family.gate_first; /* all heads as one group */
    return (dr_rms_norm){.rows = layer->layout.rows * (whole ? 1 : mixer->value_heads),
                         .dim = mixer->value_size * (whole ? mixer->value_heads : 1),
                         .eps = mixer->norm_eps,
                         .gate = mixer->of[DR_INPUTS] >= 0 ? mixer->family.gate : DR_ACTIVATION_NONE,
                         .gate_first = whole};
}

dr_status dr_mixer_norm_output(const dr_layer *layer, const dr_mixer_memory *memory, const dr_mixer_scratch *scratch) {
    dr_rms_norm norm = dr_mixer_output_norm(layer);
    int gate = layer->mixer->of[DR_INPUTS];
    return layer->backend->ops->rms_norm_forward(layer->backend, &norm, memory->o,
                                                 dr_layer_parameter(layer, DR_ROLE_OUTPUT_NORM),
                                                 gate >= 0 ? memory->out[gate] : NULL, scratch->y);
}

dr_status dr_mixer_forward(const dr_layer *layer, const void *x, void *y, const dr_mixer_memory *memory,
                           const dr_mixer_scratch *scratch, const dr_mixer_state *state) {
    const dr_mixer *mixer = layer->mixer;
    const dr_operations *ops = layer->backend->ops;
    int64_t rows = layer->layout.rows, heads = mixer->value_heads, dim = mixer->value_size;
    for (int i = 0; i < mixer->streams; i++) {
        DR_TRY(project(layer, i, x, memory));
        DR_TRY(map(layer, i, memory, state));
    }
    DR_TRY(couple(layer, memory));
    for (int i = 0; i < mixer->streams; i++) DR_TRY(finish(layer, i, memory));
    if (mixer->family.stepped) DR_TRY(step_values(layer, memory));
    if (mixer->ridge_floor) DR_TRY(make_ridge(layer, memory));
    if (mixer->fixed_lambda >= 0) DR_TRY(fix_lambda(layer, memory));
    DR_TRY(recur(layer, memory, scratch, state));
    if (mixer->family.stepped)
        DR_TRY(ops->scale_heads_forward(layer->backend, rows, heads, dim, true, dr_layer_parameter(layer, DR_ROLE_SKIP),
                                        memory->out[mixer->of[DR_INPUT_VALUE]], memory->o, true));
    DR_TRY(dr_mixer_norm_output(layer, memory, scratch));
    dr_linear linear = {rows, heads * dim, mixer->hidden};
    return ops->linear_forward(layer->backend, &linear, scratch->y, dr_layer_weight(layer, DR_ROLE_OUTPUT), NULL, y);
}
