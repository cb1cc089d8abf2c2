/* The engine that goes token by token, and decoding: what is kept where, and the kernels of tokens.cu in order. It takes every
 * rule that recurrence.c lets through, so that whatever the chunkwise engine does not take still runs. */
#include "backends/cuda/engines.h"
#include "backends/cuda/rows/rows_make.h"
#include "backends/cuda/tokens/tokens_back.h"

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

static float *take(dr_arena *arena, int64_t count) {
    return dr_arena_take(arena, (size_t)count * sizeof(float));
}

/* The workspace of a backward, behind the layout. */
static void lay_backward(const dr_cuda *gpu, const dr_recurrence *recurrence, dr_arena *arena, dr_cuda_tokens_back *call) {
    const dr_rule *rule = recurrence->rule;
    const int64_t HV = recurrence->value_heads, K = recurrence->key_size, V = recurrence->value_size;
    const int64_t tokens = recurrence->layout.rows, rows = tokens * dr_rule_steps(rule),
                  sequences = recurrence->layout.sequences;
    const int64_t chunk = dr_cuda_recurrent_chunk(recurrence), chunk_rows = chunk * dr_rule_steps(rule);
    const int64_t width = K <= 64 ? 64 : K <= 128 ? 128 : 256, places = sequences * HV * ((V + 31) / 32);
    bool reads = false;
    for (int i = 0; i < rule->rows; i++) reads = reads || rule->row[i].read != DR_READ_NONE;
    call->slices = (int32_t)((V + 31) / 32);
    call->blocks = (int32_t)(places < 2 * gpu->processors ? places : 2 * gpu->processors);
    call->replay = take(arena, call->blocks * (chunk_rows + 1) * width * 32);
    call->replay_row = take(arena, call->blocks * chunk_rows * 2 * 32);
    call->replay_scan = take(arena, rule->scan == DR_SCAN_DIAGONAL ? call->blocks * chunk * 256 : 0);
    call->d_write = take(arena, call->slices * rows * HV * K);
    call->d_query = take(arena, call->slices * tokens * HV * K);
    call->d_value = take(arena, rows * HV * V);
    if (reads) call->d_read = take(arena, call->slices * rows * HV * K);
    if (reads) call->d_gain = take(arena, call->slices * rows * HV);
    if (rule->decay != DR_DECAY_NONE) call->d_decay = take(arena, call->slices * tokens * HV * K);
    if (rule->scan == DR_SCAN_DIAGONAL) call->scan = take(arena, (tokens + sequences) * recurrence->key_heads * K);
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dr_rule_uses(rule, (dr_input)i) || dr_recurrence_input_form(recurrence, (dr_input)i).per_row) continue;
        call->parameter_count[i] = dr_recurrence_input_count(recurrence, (dr_input)i);
        call->d_parameter[i] = dr_arena_take(arena, (size_t)(sequences * call->parameter_count[i]) * sizeof(double));
    }
}

dr_status dr_cuda_recurrent_plan(const dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory) {
    dr_arena saved = {0}, backward = {0};
    dr_cuda_tokens call = {.chunk = 0};
    dr_cuda_tokens_back back = {.slices = 0};
    lay_saved(recurrence, &saved, &call);
    dr_arena_take(&backward, dr_cuda_layout_bytes(&recurrence->layout));
    lay_backward(dr_cuda_of(backend), recurrence, &backward, &back);
    memory->saved = saved.used;
    memory->forward = dr_cuda_layout_bytes(&recurrence->layout);
    memory->backward = backward.used;
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

dr_status dr_cuda_recurrent_backward(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                     const dr_states *initial, const void *saved, const void *d_o, const dr_states *d_final,
                                     const dr_input_gradients *d_inputs, const dr_mutable_states *d_initial, void *workspace) {
    const dr_cuda *gpu = dr_cuda_of(backend);
    const dr_mutable_states none = {{NULL}};
    dr_arena arena = {.block = workspace};
    dr_cuda_tokens_back call = {
        .forward = call_of(backend, recurrence, inputs, initial, NULL, &none),
        .d_o = d_o,
        .d_final = d_final->at[DR_STATE_S],
        .d_final_scan = d_final->at[DR_STATE_A],
        .d_initial = d_initial->at[DR_STATE_S],
        .d_initial_scan = d_initial->at[DR_STATE_A],
    };
    dr_cuda_rows_make(backend, recurrence, inputs, d_inputs, &call.forward.rows);
    lay_saved(recurrence, &(dr_arena){.block = (char *)saved}, &call.forward);
    call.forward.whole =
        recurrence->value_size % 4 == 0 && begins_at_16(saved) && begins_at_16(call.d_final) && begins_at_16(call.d_initial);
    call.forward.whole_output = recurrence->value_size % 8 == 0 && begins_at_16(d_o);
    void *layout = dr_arena_take(&arena, dr_cuda_layout_bytes(&recurrence->layout));
    DR_TRY(dr_cuda_layout_put(gpu, &recurrence->layout, layout, &call.forward.layout));
    lay_backward(gpu, recurrence, &arena, &call);
    for (int i = 0; i < DR_INPUTS; i++)
        if (!d_inputs->at[i]) call.d_parameter[i] = NULL;
    if (call.scan) { /* A before each token: chunks of one */
        dr_cuda_tokens all = call.forward;
        all.saved = NULL;
        all.saved_scan = call.scan;
        all.chunk = 1;
        DR_TRY(dr_cuda_tokens_scan(gpu, backend->storage, &all));
    }
    if (recurrence->layout.rows > 0 || call.d_initial) DR_TRY(dr_cuda_states_backward(gpu, backend->storage, &call));
    return dr_cuda_inputs_backward(gpu, backend->storage, &call);
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
    call.decodes = true;
    call.from = slots ? slots->from : NULL;
    call.to = slots ? slots->to : NULL;
    return dr_cuda_tokens_forward(dr_cuda_of(backend), backend->storage, &call);
}
