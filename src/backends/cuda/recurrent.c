/* The engine that goes token by token, and decoding: what is kept where, and the kernels of tokens.cu in order. It takes every
 * rule that recurrence.c lets through, so that whatever the chunkwise engine does not take still runs. */
#include "backends/cuda/engines.h"
#include "backends/cuda/rows_make.h"
#include "backends/cuda/tokens.h"

enum { CHUNK = 16 }; /* tokens from one kept state to the next, unless the caller says */

int64_t dr_cuda_recurrent_chunk(const dr_recurrence *recurrence) {
    return recurrence->chunk ? recurrence->chunk : CHUNK;
}

static int64_t slots_of(const dr_recurrence *recurrence) {
    return recurrence->layout.rows / dr_cuda_recurrent_chunk(recurrence) + recurrence->layout.sequences;
}

static void lay_saved(const dr_recurrence *recurrence, dr_arena *arena, dr_cuda_tokens *call) {
    const size_t slots = (size_t)slots_of(recurrence), keys = (size_t)(recurrence->key_heads * recurrence->key_size);
    const size_t states = (size_t)(recurrence->value_heads * recurrence->key_size) * (size_t)recurrence->value_size;
    call->chunk = dr_cuda_recurrent_chunk(recurrence);
    call->saved = dr_arena_take(arena, slots * states * sizeof(float));
    if (recurrence->rule->scan == DR_SCAN_DIAGONAL) call->saved_scan = dr_arena_take(arena, slots * keys * sizeof(float));
}

dr_status dr_cuda_recurrent_plan(const dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory) {
    (void)backend;
    dr_arena saved = {0};
    dr_cuda_tokens call = {.chunk = 0};
    lay_saved(recurrence, &saved, &call);
    memory->saved = saved.used;
    memory->forward = dr_cuda_layout_bytes(&recurrence->layout);
    memory->backward = dr_cuda_layout_bytes(&recurrence->layout);
    return DR_OK;
}

static bool begins_at_16(const void *pointer) {
    return (uintptr_t)pointer % 16 == 0;
}

/* Inputs, output and states of a call; the rest is zero. */
static dr_cuda_tokens call_of(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                              const dr_states *initial, void *o, const dr_mutable_states *final) {
    dr_cuda_tokens call = {
        .initial = initial->at[DR_STATE_S],
        .initial_scan = initial->at[DR_STATE_A],
        .final = final->at[DR_STATE_S],
        .final_scan = final->at[DR_STATE_A],
        .o = o,
    };
    dr_cuda_rows_make(backend, recurrence, inputs, NULL, &call.rows);
    call.whole = recurrence->value_size % 4 == 0 && begins_at_16(call.initial) && begins_at_16(call.final);
    call.whole_output = recurrence->value_size % 8 == 0 && begins_at_16(o);
    return call;
}

dr_status dr_cuda_recurrent_forward(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                    const dr_states *initial, void *o, const dr_mutable_states *final, void *saved,
                                    void *workspace) {
    const dr_cuda *gpu = dr_cuda_of(backend);
    dr_cuda_tokens call = call_of(backend, recurrence, inputs, initial, o, final);
    if (saved) lay_saved(recurrence, &(dr_arena){.block = saved}, &call);
    if (saved && !begins_at_16(saved)) call.whole = false;
    DR_TRY(dr_cuda_layout_put(gpu, &recurrence->layout, workspace, &call.layout));
    return dr_cuda_tokens_forward(gpu, backend->storage, &call);
}

/* ---- what a forward saved -------------------------------------------------------------------------------------------- */

static dr_status copy_slot(const dr_cuda *gpu, const float *saved, int64_t slot, int64_t count, void *to) {
    if (saved && to)
        DR_CUDA(
            cudaMemcpyAsync(to, saved + slot * count, (size_t)count * sizeof(float), cudaMemcpyDeviceToDevice, gpu->stream));
    return DR_OK;
}

dr_status dr_cuda_recurrent_boundary(const dr_backend *backend, const dr_recurrence *recurrence, const void *saved,
                                     int64_t sequence, int64_t boundary, const dr_mutable_states *states) {
    dr_cuda_tokens call = {.chunk = 0};
    lay_saved(recurrence, &(dr_arena){.block = (char *)saved}, &call);
    const int64_t slot = dr_layout_begin(&recurrence->layout, sequence) / call.chunk + sequence + boundary;
    const int64_t K = recurrence->key_size;
    DR_TRY(copy_slot(dr_cuda_of(backend), call.saved, slot, recurrence->value_heads * K * recurrence->value_size,
                     states->at[DR_STATE_S]));
    return copy_slot(dr_cuda_of(backend), call.saved_scan, slot, recurrence->key_heads * K, states->at[DR_STATE_A]);
}

/* ---- decoding -------------------------------------------------------------------------------------------------------- */

dr_status dr_cuda_decode_plan(const dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory) {
    (void)backend, (void)recurrence;
    memory->decode = 0;
    return DR_OK;
}

dr_status dr_cuda_decode(const dr_backend *backend, const dr_recurrence *recurrence, const dr_slots *slots,
                         const dr_inputs *inputs, const dr_mutable_states *states, void *o, void *workspace) {
    (void)workspace;
    dr_states initial;
    for (int i = 0; i < DR_STATES; i++) initial.at[i] = states->at[i];
    dr_cuda_tokens call = call_of(backend, recurrence, inputs, &initial, o, states);
    call.layout = (dr_cuda_layout){.sequences = recurrence->layout.sequences, .rows = recurrence->layout.rows};
    call.layout.tokens = call.layout.rows / call.layout.sequences;
    call.from = slots ? slots->from : NULL;
    call.to = slots ? slots->to : NULL;
    return dr_cuda_tokens_forward(dr_cuda_of(backend), backend->storage, &call);
}

dr_status dr_cuda_recurrent_backward(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                     const dr_states *initial, const void *saved, const void *d_o, const dr_states *d_final,
                                     const dr_input_gradients *d_inputs, const dr_mutable_states *d_initial, void *workspace) {
    (void)recurrence, (void)inputs, (void)initial, (void)saved, (void)d_o, (void)d_final, (void)d_inputs, (void)d_initial,
        (void)workspace;
    return dr_fail(DR_ERROR_UNSUPPORTED, "backend %s has no gradients token by token yet", backend->ops->name);
}
