/* The chunkwise engine's entries (engines.h): memory, and the stages in order.
 *
 *     forward     diagonal scan -> prepare -> scan, which gives outputs too and keeps the state before each chunk
 *                 (or one kernel for all of it, or for parts that begin early)
 *     backward    reverse, updates, keys, decay, rows -> diagonal scan back
 *
 * A forward that a backward follows keeps what prepare made beside the states: making it again costs up to as much as all the
 * rest. So it does with A before each chunk, and what the diagonal scan made of keys and queries. */
#include "backends/cuda/backward/backward.h"
#include "backends/cuda/chunkwise/stages.h"
#include "backends/cuda/engine/engines.h"
#include "backends/cuda/engine/made.h"
#include "backends/cuda/rows/rows_make.h"

/* All of a call: the plan with its tensors. */
typedef struct {
    dr_cuda_backward_call call;
    dr_cuda_diagonal_chain diagonal;
    dr_cuda_made made;
    void *layout;      /* in the workspace */
    void *states;      /* of the saved ones */
    float *scan_entry; /* of the saved ones: A before each chunk */
    char *saved_parts; /* where what first passes say of parts begins, which they need not fill */
} engine;

dr_status dr_cuda_chunkwise_make(const dr_cuda *gpu, dr_dtype storage, const dr_recurrence *recurrence, bool packed,
                                 dr_cuda_chunk_plan *plan) {
    DR_TRY(dr_cuda_chunk_make_plan(recurrence, packed, storage, gpu, plan));
    const bool fused = dr_cuda_backward_fuses(plan);
    plan->scan_inside = dr_cuda_diagonal_inside(plan) && (fused || plan->rows.channel_decay);
    dr_cuda_chunk_plan_stages(plan);
    return DR_OK;
}

static void lay_saved(engine *e, dr_arena *arena) {
    dr_cuda_chunk_lay_between(&e->call.plan, true, arena, &e->call.chunk);
    e->states = dr_arena_take(arena, dr_cuda_chunk_saved_bytes(&e->call.plan));
    e->scan_entry = dr_arena_take(arena, dr_cuda_diagonal_entry_bytes(&e->call.plan));
    dr_cuda_diagonal_lay_made(&e->call.plan, arena);
    e->saved_parts = dr_cuda_chunk_lay_saved_parts(&e->call.plan, arena, &e->call.chunk);
}

static void lay_workspace(const dr_recurrence *recurrence, bool packed, bool backward, engine *e, dr_arena *arena) {
    e->layout = dr_arena_take(arena, dr_cuda_layout_bytes(&recurrence->layout, packed));
    dr_cuda_made_lay(backward, e->call.plan.storage, e->call.plan.tokens, &e->call.plan.rows, arena, &e->made);
    if (!backward) {
        dr_cuda_chunk_lay_between(&e->call.plan, false, arena, &e->call.chunk);
        dr_cuda_chunk_lay_rest(&e->call.plan, arena, &e->call.chunk);
    }
    dr_cuda_diagonal_lay(&e->call.plan, arena, &e->diagonal);
    if (!backward) {
        e->diagonal.entry = dr_arena_take(arena, dr_cuda_diagonal_entry_bytes(&e->call.plan));
        if (!e->call.plan.scan_inside) dr_cuda_diagonal_lay_made(&e->call.plan, arena);
        return;
    }
    dr_cuda_backward_lay(&e->call.plan, arena, &e->call.back);
    dr_cuda_diagonal_lay_gradients(&e->call.plan, arena, &e->call.diagonal);
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

void dr_cuda_chunkwise_plan(const dr_cuda_chunk_plan *plan, const dr_recurrence *recurrence, bool packed, int64_t longest,
                            dr_recurrence_memory *memory, dr_saved_size *saved) {
    engine e = {.call.plan = *plan};
    dr_arena forward = {0}, backward = {0}, made = {0};
    lay_workspace(recurrence, packed, false, &e, &forward);
    lay_workspace(recurrence, packed, true, &e, &backward);
    memory->forward = larger(memory->forward, forward.used);
    memory->backward = larger(memory->backward, backward.used);
    dr_cuda_chunk_plan row = *plan; /* what the diagonal scan makes of a token: a millionth, beyond which rounding up is lost */
    row.tokens = 1 << 20;
    dr_cuda_diagonal_lay_made(&row, &made);
    const size_t channels = (size_t)(recurrence->key_heads * recurrence->key_size);
    *saved = (dr_saved_size){.fixed = 0};
    saved->per_row = made.used >> 20;
    if (plan->rows.diagonal_scan) saved->per_segment = channels * sizeof(float);
    dr_cuda_chunk_saved_size(plan, longest, saved);
}

/* What both directions do first: the plan with the call's pointers, and where sequences begin. */
static void begin(const dr_cuda_call *call, const dr_input_gradients *gradients, engine *e) {
    *e = (engine){.call.plan = dr_cuda_packed(call) ? call->engine->packed : call->engine->even};
    dr_cuda_rows_point(call->inputs, gradients, &e->call.plan.rows);
}

static dr_status tell_layout(const dr_cuda_call *call, engine *e) {
    dr_cuda_layout layout;
    DR_TRY(dr_cuda_layout_put(call->gpu, &call->recurrence->layout, call->boundaries, e->layout, &layout));
    e->call.chunk.cu = (int64_t *)layout.offsets;
    return DR_OK;
}

/* Whether a state is given where one goes. */
static bool shares(const dr_states *initial, const dr_mutable_states *final) {
    for (int i = 0; i < DR_STATES; i++)
        if (initial->at[i] && initial->at[i] == final->at[i]) return true;
    return false;
}

/* Zeros in all of what is saved that the stages leave. */
static dr_status pad_saved(const dr_cuda_call *call, const engine *e) {
    const dr_cuda_chunk_plan *plan = &e->call.plan;
    const dr_cuda_rows *rows = &plan->rows;
    const size_t keys = (size_t)plan->key_heads, vectors = keys * (size_t)rows->key_size * dr_dtype_size(plan->storage);
    const size_t slots = (size_t)plan->slots, tokens = (size_t)plan->tokens;
    char *const end = (char *)call->saved + call->saved_bytes;
    dr_cuda_saved_pad pad = {.cu = e->call.chunk.cu, .sequences = plan->sequences, .slots = plan->slots, .chunk = plan->chunk};
    if (slots > 0) {
        dr_cuda_chunk_pad(plan, &e->call.chunk, &pad);
        dr_cuda_pad_slots(&pad, e->states, dr_cuda_chunk_saved_bytes(plan) / slots);
        dr_cuda_pad_slots(&pad, e->scan_entry, dr_cuda_diagonal_entry_bytes(plan) / slots);
    }
    for (int i = DR_INPUTS; i < DR_SOURCE_SUM; i++) dr_cuda_pad_whole(&pad, (void *)rows->input[i].at, tokens * vectors);
    dr_cuda_pad_whole(&pad, rows->key_dot, tokens * keys * sizeof(float));
    DR_CUDA(cudaMemsetAsync(e->saved_parts, 0, (size_t)(end - e->saved_parts), call->gpu->stream.at));
    return dr_cuda_pad(&pad, call->gpu->stream);
}

dr_status dr_cuda_chunkwise_forward(const dr_cuda_call *call) {
    const dr_cuda *gpu = call->gpu;
    const dr_states *initial = call->initial;
    const dr_mutable_states *final = call->final;
    void *const o = call->o;
    engine e;
    begin(call, NULL, &e);
    lay_workspace(call->recurrence, dr_cuda_packed(call), false, &e, &(dr_arena){.block = call->workspace});
    /* a backward wants what prepare leaves, which one kernel stores as boxes; key + lambda query, which it rounds, and other
     * tensors that rows read beside what they write it takes as boxes alone, so that a forward has the same bits without a
     * backward, and narrow heads, too; where a state lies that is given, the last part's may not go before the first one has
     * begun */
    const bool boxed = dr_cuda_chunk_boxed(&e.call.plan, o), apart = !shares(initial, final);
    if (!boxed && (call->saved || dr_cuda_one_pass_boxed(&e.call.plan))) e.call.plan.one_pass = false;
    if (!boxed) e.call.plan.made_within = false;
    DR_TRY(tell_layout(call, &e));
    if (call->saved) {
        lay_saved(&e, &(dr_arena){.block = call->saved});
        DR_TRY(pad_saved(call, &e));
        if (e.call.chunk.sums) e.call.chunk.reader = e.call.chunk.sums;
        if (e.scan_entry) e.diagonal.entry = e.scan_entry;
    }
    e.diagonal.initial = initial->at[DR_STATE_A];
    e.diagonal.final = final->at[DR_STATE_A];
    e.call.chunk.scan = e.diagonal;
    if (e.call.plan.scan_inside && !e.call.plan.one_pass)
        DR_TRY(dr_cuda_diagonal_begin_inside(&e.call.plan, e.call.chunk.cu, &e.diagonal, e.call.chunk.made, gpu->stream));
    else if (e.call.plan.rows.diagonal_scan && !e.call.plan.scan_inside)
        DR_TRY(dr_cuda_diagonal_forward(&e.call.plan, e.call.chunk.cu, &e.diagonal, gpu->stream));
    if (e.call.plan.made_within)
        e.call.plan.rows = e.made.from; /* as the inputs lie */
    else
        DR_TRY(dr_cuda_made_make(&e.made, &e.call.plan.rows, e.call.plan.storage, false, gpu->stream));
    const bool never = !boxed || !apart;
    DR_TRY(dr_cuda_chunk_begin_early(&e.call.plan, &e.call.chunk, initial->at[DR_STATE_S], o, final->at[DR_STATE_S], e.states,
                                     never, gpu->stream));
    if (never) e.call.chunk.early = NULL; /* a backward has what it says */
    if (e.call.plan.blocks > 0) DR_TRY(dr_cuda_chunk_prepare(&e.call.plan, &e.call.chunk, gpu->stream));
    return dr_cuda_chunk_scan(&e.call.plan, &e.call.chunk, initial->at[DR_STATE_S], o, final->at[DR_STATE_S], e.states,
                              gpu->stream);
}

dr_status dr_cuda_chunkwise_backward(const dr_cuda_call *call) {
    const dr_cuda *gpu = call->gpu;
    engine e;
    begin(call, call->d_inputs, &e);
    lay_workspace(call->recurrence, dr_cuda_packed(call), true, &e, &(dr_arena){.block = call->workspace});
    lay_saved(&e, &(dr_arena){.block = call->saved});
    e.call.saved = e.states;
    e.call.d_o = call->d_o;
    e.call.initial = call->initial->at[DR_STATE_S];
    e.call.d_final = call->d_final->at[DR_STATE_S];
    e.call.d_initial = call->d_initial->at[DR_STATE_S];
    e.diagonal.entry = e.scan_entry;
    e.call.chunk.scan.entry = e.scan_entry;
    e.call.chain =
        dr_cuda_diagonal_turn(&e.diagonal, &e.call.diagonal, call->d_final->at[DR_STATE_A], call->d_initial->at[DR_STATE_A]);
    DR_TRY(tell_layout(call, &e));
    DR_TRY(dr_cuda_made_make(&e.made, &e.call.plan.rows, e.call.plan.storage, true, gpu->stream));
    DR_TRY(dr_cuda_backward_run(&e.call, gpu->stream));
    e.made.d_dot = e.call.diagonal.dot;
    DR_TRY(dr_cuda_made_lead(&e.made, &e.call.plan.rows, e.call.plan.storage, gpu->stream));
    if (!e.call.plan.rows.diagonal_scan) return DR_OK;
    return dr_cuda_diagonal_backward(&e.call.plan, e.call.chunk.cu, &e.diagonal, &e.call.diagonal,
                                     call->d_final->at[DR_STATE_A], call->d_initial->at[DR_STATE_A], gpu->stream);
}

/* ---- what a forward saved -------------------------------------------------------------------------------------------- */

dr_cuda_saved_states dr_cuda_chunkwise_saved(const dr_cuda_call *call) {
    const bool packed = dr_cuda_packed(call);
    engine e = {.call.plan = packed ? call->engine->packed : call->engine->even};
    lay_saved(&e, &(dr_arena){.block = call->saved});
    const dr_cuda_chunk_plan *plan = &e.call.plan;
    const int64_t width = plan->key_width, head = plan->value_width * width; /* [HV, Vp, Kp], padded */
    return (dr_cuda_saved_states){
        .S = e.states,
        .A = e.scan_entry,
        .slot = plan->value_heads * head,
        .scan_slot = call->recurrence->key_heads * call->recurrence->key_size,
        .head = head,
        .key = 1,
        .value = width,
        .chunk = plan->chunk,
        .chunks = packed ? 0 : plan->sequence_chunks,
    };
}
