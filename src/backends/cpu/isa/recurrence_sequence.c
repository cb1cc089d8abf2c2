/* One sequence and one key head through the stages, forward and backward, and one token of a value head.
 *
 *     forward    for each chunk:            inputs and diagonal scan of the key head
 *                    for each value head:   inputs -> rows -> prepare -> scan -> output
 *     backward   the chunks in reverse, each from the state that the forward saved before it; gradients of the key head are
 *                summed over its value heads in order, then passed through the diagonal scan */
#include "backends/cpu/isa/recurrence_stages.h"
#include <string.h>

/* ---- copies ---------------------------------------------------------------------------------------------------------- */

/* rows of `width` floats between a tensor (stride) and the chunk (pitch); the chunk's are zero up to whole tiles */
static void copy_in(int64_t rows, int64_t width, const float *from, int64_t stride, float *to, int64_t pitch) {
    const int64_t padding = round_to_tile(width) - width;
    for (int64_t i = 0; i < rows; i++, to += pitch) {
        if (from)
            memcpy(to, from + i * stride, (size_t)width * sizeof(float));
        else
            memset(to, 0, (size_t)width * sizeof(float));
        memset(to + width, 0, (size_t)padding * sizeof(float));
    }
}

static void copy_out(int64_t rows, int64_t width, const float *from, int64_t pitch, float *to, int64_t stride) {
    for (int64_t i = 0; i < rows; i++) memcpy(to + i * stride, from + i * pitch, (size_t)width * sizeof(float));
}

static void load_state(const dr_cpu_plan *plan, const float *from, float *state) {
    copy_in(plan->key_size, plan->value_size, from, plan->value_size, state, plan->value_pitch);
}

static void store_state(const dr_cpu_plan *plan, const float *state, float *to) {
    copy_out(plan->key_size, plan->value_size, state, plan->value_pitch, to, plan->value_size);
}

/* S [sequences, HV, K, V] of one value head; NULL if there is none */
static float *state_of(const dr_cpu_plan *plan, void *states, int64_t sequence, int64_t value_head) {
    if (!states) return NULL;
    return (float *)states + (sequence * plan->value_heads + value_head) * plan->key_size * plan->value_size;
}

/* A [sequences, H, K] of one key head */
static float *scan_of(const dr_cpu_plan *plan, void *states, int64_t sequence, int64_t key_head) {
    return states ? (float *)states + (sequence * plan->key_heads + key_head) * plan->key_size : NULL;
}

static void *member(const dr_states *states, dr_state_kind kind) {
    return states ? (void *)states->at[kind] : NULL;
}

static void *mutable_member(const dr_mutable_states *states, dr_state_kind kind) {
    return states ? states->at[kind] : NULL;
}

static float *own_state(const dr_cpu_plan *plan, float *states, int64_t member_of_group) {
    return states + member_of_group * plan->key_width * plan->value_pitch;
}

/* ---- chunks ---------------------------------------------------------------------------------------------------------- */

static void set_tokens(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t first, int64_t tokens) {
    chunk->first = first;
    chunk->tokens = tokens;
    chunk->rows = tokens * plan->steps;
    chunk->erases = tokens * plan->erases;
    chunk->readers = chunk->erases + tokens;
}

/* Tokens of the chunk at hand in o or d_o [rows, HV, V] of a value head. */
static int64_t output_at(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t value_head) {
    return (chunk->first * plan->value_heads + value_head) * plan->value_size;
}

static bool scans(const dr_cpu_plan *plan) {
    return plan->rule->scan == DR_SCAN_DIAGONAL;
}

static void forward_chunk(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, float *state) {
    dr_chunk_map_rows(plan, chunk);
    if (!plan->chunkwise) {
        dr_tokens_forward(plan, chunk, state, plan->value_pitch);
        return;
    }
    dr_chunk_prepare(plan, chunk);
    dr_chunk_scan(plan, chunk, state);
    dr_chunk_output(plan, chunk, state);
}

static void forward(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t sequence, int64_t key_head) {
    const int64_t begin = dr_layout_begin(&plan->layout, sequence), end = dr_layout_begin(&plan->layout, sequence + 1);
    const int64_t V = plan->value_size, first_head = key_head * plan->group;
    int64_t slot = dr_cpu_first_slot(plan, sequence);
    for (int64_t i = 0; i < plan->group; i++)
        load_state(plan, state_of(plan, member(call->initial, DR_STATE_S), sequence, first_head + i),
                   own_state(plan, chunk->state, i));
    if (scans(plan))
        copy_in(1, plan->key_size, scan_of(plan, member(call->initial, DR_STATE_A), sequence, key_head), 0, chunk->scan, 0);
    for (int64_t first = begin; first < end; first += plan->chunk, slot++) {
        set_tokens(plan, chunk, first, end - first < plan->chunk ? end - first : plan->chunk);
        if (call->saved_scan) copy_out(1, plan->key_size, chunk->scan, 0, scan_of(plan, call->saved_scan, slot, key_head), 0);
        dr_chunk_load_keys(plan, call->inputs, chunk, key_head);
        dr_chunk_scan_keys(plan, chunk);
        for (int64_t i = 0; i < plan->group; i++) {
            const int64_t head = first_head + i;
            float *state = own_state(plan, chunk->state, i);
            if (call->saved_states) store_state(plan, state, state_of(plan, call->saved_states, slot, head));
            dr_chunk_load_rows(plan, call->inputs, chunk, head);
            forward_chunk(plan, chunk, state);
            copy_out(chunk->tokens, V, chunk->output, plan->value_pitch, (float *)call->o + output_at(plan, chunk, head),
                     plan->value_heads * V);
        }
        if (scans(plan)) copy_in(1, plan->key_width, chunk->scan + chunk->tokens * plan->key_pitch, 0, chunk->scan, 0);
    }
    float *final = mutable_member(call->final, DR_STATE_S), *final_scan = mutable_member(call->final, DR_STATE_A);
    if (final)
        for (int64_t i = 0; i < plan->group; i++)
            store_state(plan, own_state(plan, chunk->state, i), state_of(plan, final, sequence, first_head + i));
    if (final_scan && scans(plan))
        copy_out(1, plan->key_size, chunk->scan, 0, scan_of(plan, final_scan, sequence, key_head), 0);
}

/* ---- backward -------------------------------------------------------------------------------------------------------- */

static void backward_chunk(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, float *d_state) {
    dr_chunk_map_rows(plan, chunk);
    if (plan->chunkwise) {
        dr_chunk_prepare(plan, chunk);
        dr_chunk_scan(plan, chunk, chunk->state);
        dr_chunk_scan_back(plan, chunk, d_state);
        dr_chunk_gradients(plan, chunk, chunk->state, d_state);
        dr_chunk_pass_back(plan, chunk, d_state);
    } else {
        dr_tokens_forward(plan, chunk, chunk->state, plan->value_pitch);
        dr_tokens_backward(plan, chunk, chunk->state, d_state);
    }
    dr_chunk_map_rows_back(plan, chunk);
}

static void clear_partial_sums(const dr_cpu_plan *plan, const dr_cpu_call *call, int64_t sequence, int64_t key_head) {
    for (int i = 0; i < DR_INPUTS; i++) {
        const dr_cpu_input *input = &plan->input[i];
        if (!call->d_parameter[i]) continue;
        int64_t heads = input->key_owned ? 1 : plan->group, first = sequence * input->heads + key_head * heads;
        memset(call->d_parameter[i] + first * input->width, 0, (size_t)(heads * input->width) * sizeof(double));
    }
}

static void store_initial(const dr_cpu_plan *plan, const dr_cpu_call *call, const dr_cpu_chunk *chunk, int64_t sequence,
                          int64_t key_head) {
    float *states = mutable_member(call->d_initial, DR_STATE_S), *scan = mutable_member(call->d_initial, DR_STATE_A);
    if (states)
        for (int64_t i = 0; i < plan->group; i++)
            store_state(plan, own_state(plan, chunk->d_state, i), state_of(plan, states, sequence, key_head * plan->group + i));
    if (scan && scans(plan)) copy_out(1, plan->key_size, chunk->d_scan, 0, scan_of(plan, scan, sequence, key_head), 0);
}

static void backward(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t sequence,
                     int64_t key_head) {
    const int64_t begin = dr_layout_begin(&plan->layout, sequence), end = dr_layout_begin(&plan->layout, sequence + 1);
    const int64_t V = plan->value_size, first_head = key_head * plan->group;
    const int64_t chunks = (end - begin + plan->chunk - 1) / plan->chunk, first_slot = dr_cpu_first_slot(plan, sequence);
    clear_partial_sums(plan, call, sequence, key_head);
    for (int64_t i = 0; i < plan->group; i++)
        load_state(plan, state_of(plan, member(call->d_final, DR_STATE_S), sequence, first_head + i),
                   own_state(plan, chunk->d_state, i));
    if (scans(plan))
        copy_in(1, plan->key_size, scan_of(plan, member(call->d_final, DR_STATE_A), sequence, key_head), 0, chunk->d_scan, 0);
    for (int64_t c = chunks - 1; c >= 0; c--) {
        const int64_t first = begin + c * plan->chunk, slot = first_slot + c;
        set_tokens(plan, chunk, first, end - first < plan->chunk ? end - first : plan->chunk);
        if (scans(plan)) copy_in(1, plan->key_size, scan_of(plan, call->saved_scan, slot, key_head), 0, chunk->scan, 0);
        dr_chunk_load_keys(plan, call->inputs, chunk, key_head);
        dr_chunk_scan_keys(plan, chunk);
        dr_chunk_clear_keys(plan, chunk);
        for (int64_t i = 0; i < plan->group; i++) {
            const int64_t head = first_head + i;
            load_state(plan, state_of(plan, call->saved_states, slot, head), chunk->state);
            dr_chunk_load_rows(plan, call->inputs, chunk, head);
            dr_chunk_clear_rows(plan, chunk);
            copy_in(chunk->tokens, V, (const float *)call->d_o + output_at(plan, chunk, head), plan->value_heads * V,
                    chunk->d_output, plan->value_pitch);
            backward_chunk(plan, chunk, own_state(plan, chunk->d_state, i));
            dr_chunk_store_rows(plan, call, chunk, sequence, head);
        }
        dr_chunk_scan_keys_back(plan, chunk);
        dr_chunk_store_keys(plan, call, chunk, sequence, key_head);
    }
    store_initial(plan, call, chunk, sequence, key_head);
}

/* ---- decode ---------------------------------------------------------------------------------------------------------- */

static void load_token(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t sequence,
                       int64_t key_head) {
    set_tokens(plan, chunk, sequence, 1);
    if (scans(plan))
        copy_in(1, plan->key_size, scan_of(plan, call->final->at[DR_STATE_A], sequence, key_head), 0, chunk->scan, 0);
    dr_chunk_load_keys(plan, call->inputs, chunk, key_head);
    dr_chunk_scan_keys(plan, chunk);
}

static void decode(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t sequence,
                   int64_t value_head) {
    float *state = state_of(plan, call->final->at[DR_STATE_S], sequence, value_head);
    load_token(plan, call, chunk, sequence, value_head / plan->group);
    dr_chunk_load_rows(plan, call->inputs, chunk, value_head);
    dr_chunk_map_rows(plan, chunk);
    if (plan->value_size == plan->value_width) {
        dr_tokens_forward(plan, chunk, state, plan->value_size);
    } else {
        load_state(plan, state, chunk->state);
        dr_tokens_forward(plan, chunk, chunk->state, plan->value_pitch);
        store_state(plan, chunk->state, state);
    }
    copy_out(1, plan->value_size, chunk->output, 0, (float *)call->o + output_at(plan, chunk, value_head), 0);
}

static void decode_scan(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t sequence,
                        int64_t key_head) {
    load_token(plan, call, chunk, sequence, key_head);
    copy_out(1, plan->key_size, chunk->scan + plan->key_pitch, 0,
             scan_of(plan, call->final->at[DR_STATE_A], sequence, key_head), 0);
}

const dr_cpu_recurrence_kernels dr_cpu_recurrence_kernels_ = {
    .forward = forward, .backward = backward, .decode = decode, .decode_scan = decode_scan};
