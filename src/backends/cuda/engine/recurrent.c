/* The engine that goes token by token, and decoding: what is kept where, and the kernels of tokens.cu in order. It takes every
 * rule that recurrence.c lets through, so that whatever the chunkwise engine does not take still runs. */
#include "backends/cuda/engine/engines.h"
#include "backends/cuda/rows/rows_make.h"
#include "backends/cuda/tokens/tokens_back.h"

enum { CHUNK = 16 }; /* tokens from one kept state to the next, unless the caller says */

int64_t dr_cuda_recurrent_chunk(const dr_recurrence *recurrence) {
    return recurrence->chunk ? recurrence->chunk : CHUNK;
}

static int64_t slots_of(const dr_recurrence *recurrence) {
    return recurrence->layout.rows / dr_cuda_recurrent_chunk(recurrence) + recurrence->layout.sequences;
}

/* The traits of its rule. */
static dr_cuda_rows rows_of(const dr_recurrence *recurrence) {
    dr_cuda_rows rows;
    dr_cuda_rows_plan(recurrence, DR_F32, &rows);
    return rows;
}

/* Of a slot. */
static size_t state_bytes(const dr_recurrence *recurrence) {
    return (size_t)(recurrence->value_heads * recurrence->key_size) * (size_t)recurrence->value_size * sizeof(float);
}

static size_t scan_bytes(const dr_recurrence *recurrence) {
    const size_t keys = (size_t)(recurrence->key_heads * recurrence->key_size);
    return rows_of(recurrence).diagonal_scan ? keys * sizeof(float) : 0;
}

static void lay_saved(const dr_recurrence *recurrence, dr_arena *arena, dr_cuda_tokens *call) {
    const size_t slots = (size_t)slots_of(recurrence);
    call->chunk = dr_cuda_recurrent_chunk(recurrence);
    call->saved = dr_arena_take(arena, slots * state_bytes(recurrence));
    if (scan_bytes(recurrence)) call->saved_scan = dr_arena_take(arena, slots * scan_bytes(recurrence));
}

static float *take(dr_arena *arena, int64_t count) {
    return dr_arena_take(arena, (size_t)count * sizeof(float));
}

/* The workspace of a backward, behind the layout. */
static void lay_backward(const dr_cuda *gpu, const dr_recurrence *recurrence, dr_arena *arena, dr_cuda_tokens_back *call) {
    const dr_rule *rule = recurrence->rule;
    const dr_cuda_rows traits = rows_of(recurrence);
    const int64_t HV = recurrence->value_heads, K = recurrence->key_size, V = recurrence->value_size;
    const int64_t tokens = recurrence->layout.rows, rows = tokens * dr_rule_steps(rule),
                  sequences = recurrence->layout.sequences;
    const int64_t chunk = dr_cuda_recurrent_chunk(recurrence), chunk_rows = chunk * dr_rule_steps(rule);
    const int64_t width = K <= 64 ? 64 : K <= 128 ? 128 : 256, places = sequences * HV * ((V + 31) / 32);
    call->slices = (int32_t)((V + 31) / 32);
    call->blocks = (int32_t)(places < 2 * gpu->processors ? places : 2 * gpu->processors);
    call->replay = take(arena, call->blocks * (chunk_rows + 1) * width * 32);
    call->replay_row = take(arena, call->blocks * chunk_rows * 2 * 32);
    call->replay_scan = take(arena, traits.diagonal_scan ? call->blocks * chunk * 256 : 0);
    call->d_write = take(arena, call->slices * rows * HV * K);
    call->d_query = take(arena, call->slices * tokens * HV * K);
    call->d_value = take(arena, rows * HV * V);
    if (traits.reads) call->d_read = take(arena, call->slices * rows * HV * K);
    if (traits.reads) call->d_gain = take(arena, call->slices * rows * HV);
    if (traits.scalar_decay || traits.channel_decay) call->d_decay = take(arena, call->slices * tokens * HV * K);
    if (traits.diagonal_scan) call->scan = take(arena, (tokens + sequences) * recurrence->key_heads * K);
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dr_rule_uses(rule, (dr_input)i) || dr_recurrence_input_form(recurrence, (dr_input)i).per_row) continue;
        call->parameter_count[i] = dr_recurrence_input_count(recurrence, (dr_input)i);
        call->d_parameter[i] = dr_arena_take(arena, (size_t)(sequences * call->parameter_count[i]) * sizeof(double));
    }
}

void dr_cuda_recurrent_plan(const dr_cuda *gpu, const dr_recurrence *recurrence, bool packed, dr_recurrence_memory *memory,
                            dr_saved_size *saved) {
    dr_arena backward = {0};
    dr_cuda_tokens_back back = {.slices = 0};
    const size_t layout = dr_cuda_layout_bytes(&recurrence->layout, packed);
    dr_arena_take(&backward, layout);
    lay_backward(gpu, recurrence, &backward, &back);
    if (memory->forward < layout) memory->forward = layout;
    if (memory->backward < backward.used) memory->backward = backward.used;
    *saved = (dr_saved_size){
        .fixed = 2 * DR_CUDA_SAVED_ALIGNMENT,
        .per_segment = state_bytes(recurrence) + scan_bytes(recurrence),
        .segment = dr_cuda_recurrent_chunk(recurrence),
    };
}

/* Inputs, output and states of a call; the rest is zero. */
static dr_cuda_tokens tokens_of(const dr_cuda_call *call, const dr_input_gradients *gradients, const dr_states *initial,
                                void *o, const dr_mutable_states *final) {
    const int64_t V = call->recurrence->value_size;
    dr_cuda_tokens tokens = {
        .rows = call->engine->rows,
        .initial = initial->at[DR_STATE_S],
        .initial_scan = initial->at[DR_STATE_A],
        .final = final->at[DR_STATE_S],
        .final_scan = final->at[DR_STATE_A],
        .o = o,
    };
    dr_cuda_rows_point(call->inputs, gradients, &tokens.rows);
    tokens.whole = V % 4 == 0 && dr_cuda_begins_at_16(tokens.initial) && dr_cuda_begins_at_16(tokens.final);
    tokens.whole_output = V % 8 == 0 && dr_cuda_begins_at_16(o);
    return tokens;
}

/* Zeros in the slots that no chunk uses: whether boundaries are known on the host or not, all that is saved before a forward.
 */
static dr_status clear_saved(const dr_cuda_call *call) {
    DR_CUDA(cudaMemsetAsync(call->saved, 0, call->saved_bytes, call->gpu->stream.at));
    return DR_OK;
}

dr_status dr_cuda_recurrent_forward(const dr_cuda_call *call) {
    dr_cuda_tokens tokens = tokens_of(call, NULL, call->initial, call->o, call->final);
    if (call->saved) {
        lay_saved(call->recurrence, &(dr_arena){.block = call->saved}, &tokens);
        DR_TRY(clear_saved(call));
    }
    DR_TRY(dr_cuda_layout_put(call->gpu, &call->recurrence->layout, call->boundaries, call->workspace, &tokens.layout));
    return dr_cuda_tokens_forward(call->gpu, call->storage, &tokens);
}

dr_status dr_cuda_recurrent_backward(const dr_cuda_call *call) {
    const dr_cuda *gpu = call->gpu;
    const dr_recurrence *recurrence = call->recurrence;
    const dr_mutable_states none = {{NULL}};
    dr_arena arena = {.block = call->workspace};
    dr_cuda_tokens_back back = {
        .forward = tokens_of(call, call->d_inputs, call->initial, NULL, &none),
        .d_o = call->d_o,
        .d_final = call->d_final->at[DR_STATE_S],
        .d_final_scan = call->d_final->at[DR_STATE_A],
        .d_initial = call->d_initial->at[DR_STATE_S],
        .d_initial_scan = call->d_initial->at[DR_STATE_A],
    };
    lay_saved(recurrence, &(dr_arena){.block = call->saved}, &back.forward);
    back.forward.whole =
        recurrence->value_size % 4 == 0 && dr_cuda_begins_at_16(back.d_final) && dr_cuda_begins_at_16(back.d_initial);
    back.forward.whole_output = recurrence->value_size % 8 == 0 && dr_cuda_begins_at_16(call->d_o);
    void *layout = dr_arena_take(&arena, dr_cuda_layout_bytes(&recurrence->layout, dr_cuda_packed(call)));
    DR_TRY(dr_cuda_layout_put(gpu, &recurrence->layout, call->boundaries, layout, &back.forward.layout));
    lay_backward(gpu, recurrence, &arena, &back);
    for (int i = 0; i < DR_INPUTS; i++)
        if (!call->d_inputs->at[i]) back.d_parameter[i] = NULL;
    if (back.scan) { /* A before each token: chunks of one */
        dr_cuda_tokens all = back.forward;
        all.saved = NULL;
        all.saved_scan = back.scan;
        all.chunk = 1;
        DR_TRY(dr_cuda_tokens_scan(gpu, call->storage, &all));
    }
    if (recurrence->layout.rows > 0 || back.d_initial) DR_TRY(dr_cuda_states_backward(gpu, call->storage, &back));
    return dr_cuda_inputs_backward(gpu, call->storage, &back);
}

/* ---- what a forward saved -------------------------------------------------------------------------------------------- */

dr_cuda_saved_states dr_cuda_recurrent_saved(const dr_cuda_call *call) {
    const dr_recurrence *recurrence = call->recurrence;
    const int64_t K = recurrence->key_size, V = recurrence->value_size;
    dr_cuda_tokens tokens = {.chunk = 0};
    lay_saved(recurrence, &(dr_arena){.block = call->saved}, &tokens);
    return (dr_cuda_saved_states){
        .S = tokens.saved,
        .A = tokens.saved_scan,
        .slot = recurrence->value_heads * K * V,
        .scan_slot = recurrence->key_heads * K,
        .head = K * V,
        .key = V,
        .value = 1,
        .chunk = tokens.chunk,
    };
}

/* ---- decoding -------------------------------------------------------------------------------------------------------- */

const char *dr_cuda_decode_kernel(const dr_cuda *gpu, const dr_recurrence *recurrence, dr_dtype storage) {
    dr_cuda_tokens tokens = {
        .layout.sequences = recurrence->layout.sequences,
        .whole = recurrence->value_size % 4 == 0,
        .whole_output = recurrence->value_size % 8 == 0,
    };
    dr_cuda_rows_plan(recurrence, storage, &tokens.rows);
    return dr_cuda_tokens_decode_kernel(gpu, &tokens);
}

dr_status dr_cuda_decode(const dr_cuda_call *call, const dr_slots *slots, const dr_mutable_states *states) {
    const dr_layout *layout = &call->recurrence->layout;
    dr_states initial;
    for (int i = 0; i < DR_STATES; i++) initial.at[i] = states->at[i];
    dr_cuda_tokens tokens = tokens_of(call, NULL, &initial, call->o, states);
    tokens.layout = (dr_cuda_layout){.sequences = layout->sequences, .rows = layout->rows};
    tokens.layout.tokens = layout->rows / layout->sequences;
    tokens.decodes = true;
    tokens.from = slots ? slots->from : NULL;
    tokens.to = slots ? slots->to : NULL;
    return dr_cuda_tokens_forward(call->gpu, call->storage, &tokens);
}
