/* The entries of widened.h: buffers of float for the call's vectors, the chunkwise engine between them. */
#include "backends/cuda/engine/widened.h"
#include "backends/cuda/rows/rows_make.h"

/* Float in the place of the call's narrow tensors; others are the call's own. */
typedef struct {
    dr_inputs inputs;
    dr_input_gradients gradients;
    float *o; /* or d_o */
    void *workspace;
} widened;

/* Channels of keys and values from which on rounding averages out over a head. */
enum { LEAST_CHANNELS = 64 };

bool dr_cuda_widens(dr_dtype storage, const dr_recurrence *recurrence) {
    if (storage != DR_BF16) return storage == DR_F16;
    if (recurrence->key_size < LEAST_CHANNELS || recurrence->value_size < LEAST_CHANNELS) return true;
    return dr_cuda_rule_widens(recurrence->rule);
}

static int64_t output_count(const dr_recurrence *recurrence) {
    return recurrence->layout.rows * recurrence->value_heads * recurrence->value_size;
}

/* The engine's workspace lies behind ours. */
static void lay(const dr_recurrence *recurrence, bool backward, size_t engine, dr_arena *arena, widened *w) {
    *w = (widened){.o = NULL};
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dr_rule_uses(recurrence->rule, (dr_input)i) || !dr_input_is_vector((dr_input)i)) continue;
        const size_t bytes = (size_t)dr_recurrence_input_count(recurrence, (dr_input)i) * sizeof(float);
        w->inputs.at[i] = dr_arena_take(arena, bytes);
        if (backward) w->gradients.at[i] = dr_arena_take(arena, bytes);
    }
    w->o = dr_arena_take(arena, (size_t)output_count(recurrence) * sizeof(float));
    w->workspace = dr_arena_take(arena, engine);
}

void dr_cuda_widened_plan(const dr_recurrence *recurrence, dr_recurrence_memory *memory) {
    widened w;
    dr_arena forward = {0}, backward = {0};
    lay(recurrence, false, memory->forward, &forward, &w);
    lay(recurrence, true, memory->backward, &backward, &w);
    memory->forward = forward.used;
    memory->backward = backward.used;
}

static dr_status widen_inputs(const dr_cuda_call *call, widened *w) {
    for (int i = 0; i < DR_INPUTS; i++) {
        float *to = (float *)w->inputs.at[i];
        if (to)
            DR_TRY(dr_cuda_widen(call->storage, call->inputs->at[i], dr_recurrence_input_count(call->recurrence, (dr_input)i),
                                 to, call->gpu->stream));
        else
            w->inputs.at[i] = call->inputs->at[i];
    }
    return DR_OK;
}

/* The call of the engine. */
static dr_cuda_call wide_of(const dr_cuda_call *call, const widened *w) {
    dr_cuda_call wide = *call;
    wide.storage = DR_F32;
    wide.inputs = &w->inputs;
    wide.workspace = w->workspace;
    return wide;
}

dr_status dr_cuda_widened_forward(const dr_cuda_call *call) {
    widened w;
    lay(call->recurrence, false, 0, &(dr_arena){.block = call->workspace}, &w);
    DR_TRY(widen_inputs(call, &w));
    dr_cuda_call wide = wide_of(call, &w);
    wide.o = w.o;
    DR_TRY(dr_cuda_chunkwise_forward(&wide));
    return dr_cuda_narrow(call->storage, w.o, output_count(call->recurrence), call->o, call->gpu->stream);
}

dr_status dr_cuda_widened_backward(const dr_cuda_call *call) {
    const dr_cuda_stream stream = call->gpu->stream;
    const dr_input_gradients *d_inputs = call->d_inputs;
    widened w;
    lay(call->recurrence, true, 0, &(dr_arena){.block = call->workspace}, &w);
    DR_TRY(widen_inputs(call, &w));
    DR_TRY(dr_cuda_widen(call->storage, call->d_o, output_count(call->recurrence), w.o, stream));
    for (int i = 0; i < DR_INPUTS; i++) /* wanted is what the call wants */
        if (!w.gradients.at[i] || !d_inputs->at[i]) w.gradients.at[i] = d_inputs->at[i];
    dr_cuda_call wide = wide_of(call, &w);
    wide.d_o = w.o;
    wide.d_inputs = &w.gradients;
    DR_TRY(dr_cuda_chunkwise_backward(&wide));
    for (int i = 0; i < DR_INPUTS; i++)
        if (w.gradients.at[i] != d_inputs->at[i])
            DR_TRY(dr_cuda_narrow(call->storage, (const float *)w.gradients.at[i],
                                  dr_recurrence_input_count(call->recurrence, (dr_input)i), d_inputs->at[i], stream));
    return DR_OK;
}
