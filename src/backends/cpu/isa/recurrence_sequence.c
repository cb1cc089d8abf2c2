/* One sequence and one key head through the stages, forward and backward.
 *
 *     forward    for each chunk:            inputs and diagonal scan of the key head
 *                    for each value head:   inputs -> matrix scan -> rows -> prepare -> scan -> output
 *     backward   the segments in reverse, each from the state that the forward saved before it: the states before its chunks
 * are replayed from their updates, then its chunks follow in reverse; a value head's gradients pass through its matrix scan,
 * those of the key head are summed over its value heads in order, then passed through the diagonal scan
 *     backward in two passes    the first carries nothing but the gradient of the state through the chunks, in which columns of
 * values never meet, and keeps it at the end of each segment; the second takes the segments in any order */
#include "backends/cpu/isa/recurrence_tensors.h"
#include "base/half.h"
#include <string.h>

/* ---- states ---------------------------------------------------------------------------------------------------------- */

static void load_state(const dr_cpu_plan *plan, const float *from, float *state) {
    copy_in(plan->key_size, plan->value_size, from, plan->values, state, plan->value_pitch);
}

static void store_state(const dr_cpu_plan *plan, const float *state, float *to) {
    copy_out(plan->key_size, plan->value_size, state, plan->value_pitch, to, plan->values);
}

/* States that calls carry from one to the next, in the type and layout that the caller chose. from NULL: zero. */
static void load_carried_state(const dr_cpu_plan *plan, const void *from, float *state) {
    const int64_t K = plan->key_size, V = plan->value_size, pitch = plan->value_pitch;
    if (!from || (!plan->bf16_state && !plan->value_major)) {
        load_state(plan, from, state);
        return;
    }
    if (!plan->bf16_state) {
        dr_matrix_transpose(V, K, from, K, state, pitch, K, plan->value_width);
        return;
    }
    const uint16_t *half = from;
    const int64_t row = plan->value_major ? 1 : plan->values, column = plan->value_major ? K : 1;
    for (int64_t k = 0; k < K; k++, state += pitch) {
        for (int64_t v = 0; v < V; v++) state[v] = dr_bf16_to_float(half[k * row + v * column]);
        for (int64_t v = V; v < plan->value_width; v++) state[v] = 0;
    }
}

static void store_carried_state(const dr_cpu_plan *plan, const float *state, void *to) {
    const int64_t K = plan->key_size, V = plan->value_size, pitch = plan->value_pitch;
    if (!plan->bf16_state && !plan->value_major) {
        store_state(plan, state, to);
        return;
    }
    if (!plan->bf16_state) {
        dr_matrix_transpose(K, V, state, pitch, to, K, V, K);
        return;
    }
    uint16_t *half = to;
    const int64_t row = plan->value_major ? 1 : plan->values, column = plan->value_major ? K : 1;
    for (int64_t k = 0; k < K; k++, state += pitch)
        for (int64_t v = 0; v < V; v++) half[k * row + v * column] = dr_bf16_from_float(state[v]);
}

static void *member(const dr_states *states, dr_state_kind kind) {
    return states ? (void *)states->at[kind] : NULL;
}

static void *mutable_member(const dr_mutable_states *states, dr_state_kind kind) {
    return states ? states->at[kind] : NULL;
}

static float *own_matrix(const dr_cpu_plan *plan, float *matrices, int64_t member_of_group) {
    return matrices + member_of_group * plan->key_size * plan->key_pitch;
}

static float *own_state(const dr_cpu_plan *plan, float *states, int64_t member_of_group) {
    return states + member_of_group * dr_cpu_state_floats(plan);
}

/* The same where the engine wants it transposed: in the chunkwise backward. */
static void load_turned_state(const dr_cpu_plan *plan, const float *from, float *state) {
    if (!plan->chunkwise)
        load_state(plan, from, state);
    else if (from)
        dr_matrix_transpose(plan->key_size, plan->value_size, from, plan->values, state, plan->key_pitch, plan->value_width,
                            plan->key_width);
    else
        memset(state, 0, (size_t)dr_cpu_state_floats(plan) * sizeof(float));
}

static void store_turned_state(const dr_cpu_plan *plan, const float *state, float *to) {
    if (plan->chunkwise)
        dr_matrix_transpose(plan->value_size, plan->key_size, state, plan->key_pitch, to, plan->value_size, plan->key_size,
                            plan->value_size);
    else
        store_state(plan, state, to);
}

/* Gradients of the states that calls carry, in the caller's layout: floats. */
static void load_carried_gradient(const dr_cpu_plan *plan, const float *from, float *state) {
    if (!from || !plan->value_major) {
        load_turned_state(plan, from, state);
    } else if (!plan->chunkwise) {
        dr_matrix_transpose(plan->value_size, plan->key_size, from, plan->key_size, state, plan->value_pitch, plan->key_size,
                            plan->value_width);
    } else {
        const int64_t rest = plan->value_width - plan->value_size;
        copy_in(plan->value_size, plan->key_size, from, plan->key_size, state, plan->key_pitch);
        memset(state + plan->value_size * plan->key_pitch, 0, (size_t)(rest * plan->key_pitch) * sizeof(float));
    }
}

static void store_carried_gradient(const dr_cpu_plan *plan, const float *state, float *to) {
    if (!plan->value_major)
        store_turned_state(plan, state, to);
    else if (plan->chunkwise)
        copy_out(plan->value_size, plan->key_size, state, plan->key_pitch, to, plan->key_size);
    else
        dr_matrix_transpose(plan->key_size, plan->value_size, state, plan->value_pitch, to, plan->key_size, plan->value_size,
                            plan->key_size);
}

/* ---- the matrix scan ------------------------------------------------------------------------------------------------- */

static int64_t matrix_floats(const dr_cpu_plan *plan) {
    return plan->key_size * plan->key_pitch;
}

/* What the gradient of the matrix before the first token gives to the initial state and to the ridge. */
static void store_initial_matrix(const dr_cpu_plan *plan, const dr_cpu_call *call, const float *d_matrix, int64_t sequence,
                                 int64_t value_head) {
    void *wanted = mutable_member(call->d_initial, plan->matrix_state);
    if (wanted) store_matrix(plan, d_matrix, matrix_of(plan, wanted, sequence, value_head));
    const float *given = matrix_of(plan, member(call->initial, plan->matrix_state), sequence, value_head);
    double *d_ridge = call->d_parameter[DR_INPUT_RIDGE];
    if (!d_ridge || !is_unset(plan, given)) return;
    const float *ridge = ridge_of(plan, call, value_head);
    d_ridge += (sequence * plan->key_heads + value_head / plan->group) * plan->key_size;
    for (int64_t i = 0; i < plan->key_size; i++)
        d_ridge[i] -= (double)(d_matrix[i * plan->key_pitch + i] / (ridge[i] * ridge[i]));
}

/* ---- chunks ---------------------------------------------------------------------------------------------------------- */

/* The matrix scan of a chunk, from what it saves first if a backward follows. */
static void forward_matrix(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t slot,
                           int64_t value_head, float *matrix) {
    if (call->saved_matrix) store_matrix(plan, matrix, matrix_of(plan, call->saved_matrix, slot, value_head));
    dr_chunk_scan_matrix(plan, chunk, matrix, 0);
}

/* u of the chunk at hand in what a forward saves; NULL if it does not. */
static float *updates_of(const dr_cpu_plan *plan, const dr_cpu_call *call, int64_t first, int64_t value_head) {
    if (!call->saved_updates) return NULL;
    return call->saved_updates + (value_head * plan->layout.rows + first) * plan->steps * plan->values + plan->value_first;
}

/* o [tokens, V] of the chunk, rows of `stride` */
static void forward_chunk(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, float *state, float *saved_updates, void *o,
                          int64_t stride) {
    /* floats without padding may be written where they belong */
    const bool whole = plan->chunkwise && plan->value_size == plan->value_width && plan->forms.output == DR_F32;
    dr_chunk_map_rows(plan, chunk, true);
    if (plan->chunkwise) {
        dr_chunk_fade(plan, chunk);
        dr_chunk_score(plan, chunk);
        dr_chunk_scan(plan, chunk, state);
        if (saved_updates)
            copy_out(chunk->rows, plan->value_size, chunk->update, plan->value_pitch, saved_updates, plan->values);
        dr_chunk_output(plan, chunk, state, whole ? o : chunk->output, whole ? stride : plan->value_pitch);
        dr_chunk_pass(plan, chunk, state);
    } else {
        dr_tokens_forward(plan, chunk, state, plan->value_pitch);
    }
    if (!whole) dr_rows_store(plan->forms.output, chunk->tokens, plan->value_size, chunk->output, plan->value_pitch, o, stride);
}

/* Length of the chunk that begins at token `first`. */
static int64_t tokens_from(const dr_cpu_plan *plan, int64_t first, int64_t end) {
    return end - first < plan->chunk ? end - first : plan->chunk;
}

/* What the forward reads and writes after value head i of the chunk at hand: its next value head, or the first one of the next
 * chunk. */
static void expect_forward(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t key_head, int64_t i,
                           int64_t end) {
    const bool last = i + 1 == plan->group;
    const int64_t first = last ? chunk->first + chunk->tokens : chunk->first, tokens = tokens_from(plan, first, end);
    const int64_t head = key_head * plan->group + (last ? 0 : i + 1), V = plan->value_size;
    dr_ahead_clear(&chunk->ahead);
    if (tokens <= 0) return;
    dr_chunk_expect(plan, call, chunk, first, tokens, head, last, DR_EXPECT_ALL);
    dr_ahead_add(&chunk->ahead, output_of(plan, call->o, first, head), plan->value_heads * plan->values, tokens, V,
                 output_item(plan));
    dr_ahead_add(&chunk->ahead, updates_of(plan, call, first, head), plan->values, tokens * plan->steps, V, sizeof(float));
    dr_ahead_spread(&chunk->ahead, plan->key_size, V);
}

/* Before the first token of a sequence. */
static void load_initial(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t sequence,
                         int64_t key_head) {
    const int64_t at = call->slots ? call->slots->from[sequence] : sequence, first_head = key_head * plan->group;
    const dr_states *initial = at < 0 ? NULL : call->initial;
    for (int64_t i = 0; i < plan->group; i++)
        load_carried_state(plan, carried_state_of(plan, member(initial, DR_STATE_S), at, first_head + i),
                           own_state(plan, chunk->state, i));
    for (int64_t i = 0; plan->matrix && i < plan->group; i++)
        start_matrix(plan, call, matrix_of(plan, member(initial, plan->matrix_state), at, first_head + i), first_head + i,
                     own_matrix(plan, chunk->matrix, i));
    if (scans(plan)) copy_in(1, plan->key_size, scan_of(plan, member(initial, DR_STATE_A), at, key_head), 0, chunk->scan, 0);
}

/* The states at hand to place `at` of the caller's. A is the key head's: the plans of all blocks of values make it, and the
 * first gives it. */
static void store_carried(const dr_cpu_plan *plan, const dr_cpu_call *call, const dr_cpu_chunk *chunk, int64_t at,
                          int64_t key_head) {
    void *S = mutable_member(call->final, DR_STATE_S);
    float *matrices = plan->matrix ? mutable_member(call->final, plan->matrix_state) : NULL;
    float *A = scans(plan) && plan->value_first == 0 ? mutable_member(call->final, DR_STATE_A) : NULL;
    for (int64_t i = 0; i < plan->group; i++) {
        const int64_t head = key_head * plan->group + i;
        if (S) store_carried_state(plan, own_state(plan, chunk->state, i), carried_state_of(plan, S, at, head));
        if (matrices) store_matrix(plan, own_matrix(plan, chunk->matrix, i), matrix_of(plan, matrices, at, head));
    }
    if (A) copy_out(1, plan->key_size, chunk->scan, 0, scan_of(plan, A, at, key_head), 0);
}

/* Where the states after a sequence go, -1: nowhere. */
static int64_t final_slot(const dr_cpu_call *call, int64_t sequence) {
    if (!call->slots) return sequence;
    return call->slots->to ? call->slots->to[sequence] : call->slots->from[sequence];
}

/* Keeps the states before the chunk at hand where the call asks for it. */
static void store_checkpoints(const dr_cpu_plan *plan, const dr_cpu_call *call, const dr_cpu_chunk *chunk, int64_t key_head) {
    const dr_slots *slots = call->slots;
    for (int64_t i = 0; slots && i < slots->checkpoints; i++)
        if (slots->row[i] == chunk->first && slots->slot[i] >= 0) store_carried(plan, call, chunk, slots->slot[i], key_head);
}

static void forward(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t sequence, int64_t key_head) {
    const int64_t begin = dr_layout_begin(&plan->layout, sequence), end = dr_layout_begin(&plan->layout, sequence + 1);
    const int64_t first_head = key_head * plan->group;
    load_initial(plan, call, chunk, sequence, key_head);
    for (int64_t first = begin; first < end; first += plan->chunk) {
        const int64_t from_begin = first - begin, slot = dr_cpu_first_slot(plan, sequence) + from_begin / dr_cpu_segment(plan);
        const bool saves = from_begin % dr_cpu_segment(plan) == 0;
        dr_cpu_set_tokens(plan, chunk, first, tokens_from(plan, first, end));
        if (saves) store_checkpoints(plan, call, chunk, key_head);
        if (saves && call->saved_scan && plan->value_first == 0)
            copy_out(1, plan->key_size, chunk->scan, 0, scan_of(plan, call->saved_scan, slot, key_head), 0);
        dr_chunk_load_keys(plan, call, chunk, key_head);
        dr_chunk_scan_keys(plan, chunk);
        for (int64_t i = 0; i < plan->group; i++) {
            const int64_t head = first_head + i;
            float *state = own_state(plan, chunk->state, i);
            expect_forward(plan, call, chunk, key_head, i, end);
            if (saves && call->saved_states) store_state(plan, state, state_of(plan, call->saved_states, slot, head));
            dr_chunk_load_rows(plan, call, chunk, head);
            dr_chunk_map_decay(plan, chunk);
            if (plan->matrix) forward_matrix(plan, call, chunk, slot, head, own_matrix(plan, chunk->matrix, i));
            forward_chunk(plan, chunk, state, updates_of(plan, call, first, head), output_of(plan, call->o, first, head),
                          plan->value_heads * plan->values);
        }
        if (scans(plan)) copy_in(1, plan->key_width, chunk->scan + chunk->tokens * plan->key_pitch, 0, chunk->scan, 0);
    }
    const int64_t to = final_slot(call, sequence);
    if (to >= 0) store_carried(plan, call, chunk, to, key_head);
}

/* ---- backward -------------------------------------------------------------------------------------------------------- */

/* The rows of the chunk at hand: u is what the forward saved, or z if no row erases. */
static void load_updates(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t value_head) {
    const float *saved = updates_of(plan, call, chunk->first, value_head);
    dr_chunk_map_rows(plan, chunk, !saved);
    if (saved) copy_in(chunk->rows, plan->value_size, saved, plan->value_size, chunk->update, plan->value_pitch);
}

static void backward_chunk(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t value_head,
                           float *state, float *d_state) {
    load_updates(plan, call, chunk, value_head);
    if (plan->chunkwise) {
        dr_chunk_fade(plan, chunk);
        dr_chunk_score(plan, chunk);
        dr_chunk_scan_back(plan, chunk, d_state);
        dr_chunk_gradients(plan, chunk, state, d_state);
        dr_chunk_pass_back(plan, chunk, d_state);
    } else {
        dr_tokens_forward(plan, chunk, state, plan->value_pitch);
        dr_tokens_backward(plan, chunk, state, d_state);
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
            store_carried_gradient(plan, own_state(plan, chunk->d_state, i),
                                   carried_gradient_of(plan, states, sequence, key_head * plan->group + i));
    for (int64_t i = 0; plan->matrix && i < plan->group; i++)
        store_initial_matrix(plan, call, own_matrix(plan, chunk->d_matrix, i), sequence, key_head * plan->group + i);
    if (scan && scans(plan)) copy_out(1, plan->key_size, chunk->d_scan, 0, scan_of(plan, scan, sequence, key_head), 0);
}

/* A chunk of a segment: its place in the sequence, and where the states before it are. */
typedef struct {
    int64_t sequence, key_head, slot;
    int64_t first, at;  /* first token; chunks of the segment before it */
    int64_t begin, end; /* of the sequence; begin: of what of it this task goes through */
} place;

static float *segment_state(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t member_of_group, int64_t at) {
    return own_state(plan, chunk->state, member_of_group * plan->segment + at);
}

static void set_place(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const place *p) {
    dr_cpu_set_tokens(plan, chunk, p->first, tokens_from(plan, p->first, p->end));
    dr_cpu_set_at(plan, chunk, p->at);
}

/* The states before the first chunk of a segment. */
static void load_segment(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, const place *p) {
    dr_cpu_set_at(plan, chunk, 0);
    for (int64_t i = 0; i < plan->group; i++)
        load_turned_state(plan, state_of(plan, call->saved_states, p->slot, p->key_head * plan->group + i),
                          segment_state(plan, chunk, i, 0));
    if (scans(plan)) copy_in(1, plan->key_size, scan_of(plan, call->saved_scan, p->slot, p->key_head), 0, chunk->scan, 0);
}

/* From the states before a chunk to those before the next. */
static void replay(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, const place *p) {
    set_place(plan, chunk, p);
    dr_chunk_load_replay(plan, call, chunk, p->key_head, true);
    dr_chunk_scan_diagonal(plan, chunk);
    for (int64_t i = 0; i < plan->group; i++) {
        const int64_t head = p->key_head * plan->group + i;
        const float *saved = updates_of(plan, call, chunk->first, head);
        dr_chunk_load_replay(plan, call, chunk, head, false);
        dr_chunk_map_decay(plan, chunk);
        dr_chunk_map_writers(plan, chunk);
        if (saved) copy_in(chunk->rows, plan->value_size, saved, plan->value_size, chunk->update, plan->value_pitch);
        dr_chunk_fade_writers(plan, chunk);
        dr_chunk_pass_turned(plan, chunk, segment_state(plan, chunk, i, p->at), segment_state(plan, chunk, i, p->at + 1));
    }
}

/* What the backward will want of value head i. A replay reads whole segments at once: its inputs are asked for at the same
 * place of the segment before. All else waits for the chunk before, so that the second-level cache need not hold it meanwhile.
 */
static void expect_backward(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, const place *p, int64_t i) {
    const int64_t begin = p->begin, tokens = plan->chunk, steps = plan->steps;
    const int64_t before = p->first - tokens, earlier = p->first - dr_cpu_segment(plan);
    const int64_t head = p->key_head * plan->group + i, V = plan->value_size;
    const bool replays = plan->segment > 1;
    dr_ahead_clear(&chunk->ahead);
    if (before >= begin) {
        dr_chunk_expect(plan, call, chunk, before, tokens, head, i == 0, replays ? DR_EXPECT_REST : DR_EXPECT_ALL);
        dr_ahead_add(&chunk->ahead, output_of(plan, call->d_o, before, head), plan->value_heads * V, tokens, V,
                     output_item(plan));
    }
    if (earlier >= begin) {
        if (replays) dr_chunk_expect(plan, call, chunk, earlier, tokens, head, i == 0, DR_EXPECT_REPLAYED);
        dr_ahead_add(&chunk->ahead, updates_of(plan, call, earlier, head), V, tokens * steps, V, sizeof(float));
        /* and this chunk's share of the state before that segment */
        const int64_t from = plan->key_size * p->at / plan->segment, to = plan->key_size * (p->at + 1) / plan->segment;
        dr_ahead_add(&chunk->ahead, state_of(plan, call->saved_states, p->slot - 1, head) + from * V, V, to - from, V,
                     sizeof(float));
    }
    dr_ahead_spread(&chunk->ahead, plan->key_size, V);
}

/* scanned: a replay went over the chunk's keys already. */
static void backward_heads(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, const place *p,
                           bool scanned) {
    set_place(plan, chunk, p);
    dr_chunk_load_keys(plan, call, chunk, p->key_head);
    if (!scanned) dr_chunk_scan_diagonal(plan, chunk);
    dr_chunk_map_query(plan, chunk);
    dr_chunk_clear_keys(plan, chunk);
    for (int64_t i = 0; i < plan->group; i++) {
        const int64_t head = p->key_head * plan->group + i, V = plan->value_size;
        expect_backward(plan, call, chunk, p, i);
        dr_chunk_load_rows(plan, call, chunk, head);
        dr_chunk_clear_rows(plan, call, chunk, head);
        dr_chunk_map_decay(plan, chunk);
        if (plan->matrix) {
            load_matrix(plan, matrix_of(plan, call->saved_matrix, p->slot, head), chunk->matrix);
            dr_chunk_scan_matrix(plan, chunk, chunk->matrix, matrix_floats(plan));
        }
        dr_rows_load(plan->forms.output, chunk->tokens, V, output_of(plan, call->d_o, chunk->first, head),
                     plan->value_heads * V, chunk->d_output, plan->value_pitch);
        backward_chunk(plan, call, chunk, head, segment_state(plan, chunk, i, p->at), own_state(plan, chunk->d_state, i));
        if (plan->matrix)
            dr_chunk_scan_matrix_back(plan, chunk, chunk->matrix, matrix_floats(plan), own_matrix(plan, chunk->d_matrix, i));
        dr_chunk_store_rows(plan, call, chunk, p->sequence, head);
    }
    dr_chunk_scan_keys_back(plan, chunk);
    dr_chunk_store_keys(plan, call, chunk, p->sequence, p->key_head);
}

/* Segment s of what p says of its sequence, from the gradients of the states after it to those before it. */
static void backward_segment(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, place p, int64_t s) {
    const int64_t segment = dr_cpu_segment(plan), first = dr_layout_begin(&plan->layout, p.sequence) + s * segment;
    const int64_t left = p.end - first < segment ? p.end - first : segment, chunks = (left + plan->chunk - 1) / plan->chunk;
    p.slot = dr_cpu_first_slot(plan, p.sequence) + s;
    load_segment(plan, call, chunk, &p);
    for (p.at = 0, p.first = first; p.at < chunks - 1; p.at++, p.first += plan->chunk) replay(plan, call, chunk, &p);
    for (; p.at >= 0; p.at--, p.first -= plan->chunk) backward_heads(plan, call, chunk, &p, p.at < chunks - 1);
}

static int64_t segments_of(const dr_cpu_plan *plan, int64_t sequence) {
    const int64_t tokens = dr_layout_begin(&plan->layout, sequence + 1) - dr_layout_begin(&plan->layout, sequence);
    return (tokens + dr_cpu_segment(plan) - 1) / dr_cpu_segment(plan);
}

/* The gradients of the states behind a sequence. */
static void load_final(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t sequence,
                       int64_t key_head) {
    const int64_t first_head = key_head * plan->group;
    for (int64_t i = 0; i < plan->group; i++)
        load_carried_gradient(plan, carried_gradient_of(plan, member(call->d_final, DR_STATE_S), sequence, first_head + i),
                              own_state(plan, chunk->d_state, i));
    for (int64_t i = 0; plan->matrix && i < plan->group; i++)
        load_matrix(plan, matrix_of(plan, member(call->d_final, plan->matrix_state), sequence, first_head + i),
                    own_matrix(plan, chunk->d_matrix, i));
    if (scans(plan))
        copy_in(1, plan->key_size, scan_of(plan, member(call->d_final, DR_STATE_A), sequence, key_head), 0, chunk->d_scan, 0);
}

static void backward(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t sequence,
                     int64_t key_head) {
    const place p = {.sequence = sequence,
                     .key_head = key_head,
                     .begin = dr_layout_begin(&plan->layout, sequence),
                     .end = dr_layout_begin(&plan->layout, sequence + 1)};
    clear_partial_sums(plan, call, sequence, key_head);
    load_final(plan, call, chunk, sequence, key_head);
    for (int64_t s = segments_of(plan, sequence) - 1; s >= 0; s--) backward_segment(plan, call, chunk, p, s);
    store_initial(plan, call, chunk, sequence, key_head);
}

/* ---- backward in two passes ------------------------------------------------------------------------------------------ */

/* The gradients of a value head's state after the segment of a slot, turned: [V][Kp], from the plan's first column on. */
static float *kept_state(const dr_cpu_plan *plan, const dr_cpu_call *call, int64_t slot, int64_t value_head) {
    const int64_t rows = (slot * plan->value_heads + value_head) * plan->values + plan->value_first;
    return call->kept_states + rows * plan->key_pitch;
}

/* The gradients of the states of the chunk at hand from after it to before it. */
static void carry_heads(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t key_head,
                        int64_t before) {
    const int64_t stride = plan->value_heads * plan->values;
    dr_chunk_load_keys(plan, call, chunk, key_head);
    dr_chunk_map_query(plan, chunk);
    for (int64_t i = 0; i < plan->group; i++) {
        const int64_t head = key_head * plan->group + i;
        dr_ahead_clear(&chunk->ahead);
        if (before >= 0) {
            dr_chunk_expect(plan, call, chunk, before, plan->chunk, head, i == 0, DR_EXPECT_ALL);
            dr_ahead_add(&chunk->ahead, output_of(plan, call->d_o, before, head), stride, plan->chunk, plan->value_size,
                         output_item(plan));
            dr_ahead_spread(&chunk->ahead, plan->key_size, plan->value_size);
        }
        dr_chunk_load_rows(plan, call, chunk, head);
        dr_chunk_map_decay(plan, chunk);
        dr_chunk_map_rows(plan, chunk, false);
        dr_rows_load(plan->forms.output, chunk->tokens, plan->value_size, output_of(plan, call->d_o, chunk->first, head),
                     stride, chunk->d_output, plan->value_pitch);
        float *d_state = own_state(plan, chunk->d_state, i);
        dr_chunk_fade(plan, chunk);
        dr_chunk_score(plan, chunk);
        dr_chunk_scan_back(plan, chunk, d_state);
        dr_chunk_pass_back(plan, chunk, d_state);
    }
}

/* The first pass; of the first segment nobody wants what is before it. */
static void carry(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t sequence, int64_t key_head) {
    const int64_t begin = dr_layout_begin(&plan->layout, sequence), end = dr_layout_begin(&plan->layout, sequence + 1);
    const int64_t segment = dr_cpu_segment(plan);
    load_final(plan, call, chunk, sequence, key_head);
    for (int64_t s = segments_of(plan, sequence) - 1; s >= 0; s--) {
        const int64_t slot = dr_cpu_first_slot(plan, sequence) + s, bound = begin + s * segment;
        for (int64_t i = 0; i < plan->group; i++)
            copy_out(plan->value_size, plan->key_width, own_state(plan, chunk->d_state, i), plan->key_pitch,
                     kept_state(plan, call, slot, key_head * plan->group + i), plan->key_pitch);
        const int64_t chunks = ((end - bound < segment ? end - bound : segment) + plan->chunk - 1) / plan->chunk;
        for (int64_t first = bound + (chunks - 1) * plan->chunk; s > 0 && first >= bound; first -= plan->chunk) {
            dr_cpu_set_tokens(plan, chunk, first, tokens_from(plan, first, end));
            carry_heads(plan, call, chunk, key_head, first - plan->chunk >= begin + segment ? first - plan->chunk : -1);
        }
    }
}

/* The second pass for segment s of a sequence, if it has that many; an empty one has none. */
static void backward_slot(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int64_t sequence,
                          int64_t key_head, int64_t s) {
    const place p = {.sequence = sequence,
                     .key_head = key_head,
                     .begin = dr_layout_begin(&plan->layout, sequence) + s * dr_cpu_segment(plan),
                     .end = dr_layout_begin(&plan->layout, sequence + 1)};
    if (s >= segments_of(plan, sequence)) {
        if (s == 0) backward(plan, call, chunk, sequence, key_head);
        return;
    }
    const int64_t slot = dr_cpu_first_slot(plan, sequence) + s;
    for (int64_t i = 0; i < plan->group; i++) {
        float *d_state = own_state(plan, chunk->d_state, i);
        memset(d_state, 0, (size_t)dr_cpu_state_floats(plan) * sizeof(float));
        copy_out(plan->value_size, plan->key_width, kept_state(plan, call, slot, key_head * plan->group + i), plan->key_pitch,
                 d_state, plan->key_pitch);
    }
    backward_segment(plan, call, chunk, p, s);
    if (s == 0) store_initial(plan, call, chunk, sequence, key_head);
}

const dr_cpu_recurrence_kernels dr_cpu_recurrence_kernels_ = {.forward = forward,
                                                              .backward = backward,
                                                              .carry = carry,
                                                              .backward_slot = backward_slot,
                                                              .decode = dr_decode_heads,
                                                              .decode_scan = dr_decode_scan,
                                                              .decode_slots = dr_decode_slots};
