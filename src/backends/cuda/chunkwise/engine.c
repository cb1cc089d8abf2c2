/* The chunkwise engine's entries (engines.h): memory, and the stages in order.
 *
 *     forward     diagonal scan -> prepare -> scan, which gives outputs too and keeps the state before each chunk
 *                 (or one kernel for all of it, or for parts that begin early)
 *     backward    reverse, updates, keys, decay, rows -> diagonal scan back
 *
 * A forward that a backward follows keeps what prepare made beside the states: making it again costs up to as much as all the
 * rest. So it does with A before each chunk, and what the diagonal scan made of keys and queries. */
#include "backends/cuda/backward/backward.h"
#include "backends/cuda/chunkwise/boundary.h"
#include "backends/cuda/engines.h"
#include "backends/cuda/rows/rows_make.h"

/* All of a call: the plan with its tensors. */
typedef struct {
    dr_cuda_backward_call call;
    dr_cuda_diagonal_chain diagonal;
    void *layout;      /* in the workspace */
    void *states;      /* of the saved ones */
    float *scan_entry; /* of the saved ones: A before each chunk */
} engine;

static dr_status make(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                      const dr_input_gradients *gradients, engine *e) {
    *e = (engine){.layout = NULL};
    DR_TRY(dr_cuda_chunk_make_plan(recurrence, backend->storage, dr_cuda_of(backend), &e->call.plan));
    dr_cuda_rows_make(backend, recurrence, inputs, gradients, &e->call.plan.rows);
    const dr_cuda_chunk_plan *plan = &e->call.plan;
    const bool fused = dr_cuda_backward_fuses(plan);
    e->call.plan.scan_inside = dr_cuda_diagonal_inside(plan) && (fused || plan->rows.channel_decay);
    dr_cuda_chunk_plan_stages(recurrence->rule, &e->call.plan);
    return DR_OK;
}

static void lay_saved(engine *e, dr_arena *arena) {
    dr_cuda_chunk_lay(&e->call.plan, true, arena, &e->call.chunk);
    e->states = dr_arena_take(arena, dr_cuda_chunk_saved_bytes(&e->call.plan));
    e->scan_entry = dr_arena_take(arena, dr_cuda_diagonal_entry_bytes(&e->call.plan));
    dr_cuda_diagonal_lay_made(&e->call.plan, arena);
}

/* Of a forward also the tensors that a saving one has elsewhere. */
static void lay_workspace(const dr_recurrence *recurrence, bool backward, engine *e, dr_arena *arena) {
    e->layout = dr_arena_take(arena, dr_cuda_layout_bytes(&recurrence->layout));
    if (!backward) dr_cuda_chunk_lay(&e->call.plan, false, arena, &e->call.chunk);
    dr_cuda_diagonal_lay(&e->call.plan, arena, &e->diagonal);
    if (!backward) {
        e->diagonal.entry = dr_arena_take(arena, dr_cuda_diagonal_entry_bytes(&e->call.plan));
        if (!e->call.plan.scan_inside) dr_cuda_diagonal_lay_made(&e->call.plan, arena);
        return;
    }
    dr_cuda_backward_lay(&e->call.plan, arena, &e->call.back);
    dr_cuda_diagonal_lay_gradients(&e->call.plan, arena, &e->call.diagonal);
}

dr_status dr_cuda_chunkwise_check(const dr_backend *backend, const dr_recurrence *recurrence) {
    engine e;
    return make(backend, recurrence, NULL, NULL, &e);
}

dr_status dr_cuda_chunkwise_plan(const dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory) {
    engine e;
    dr_arena forward = {0}, backward = {0}, saved = {0};
    DR_TRY(make(backend, recurrence, NULL, NULL, &e));
    lay_workspace(recurrence, false, &e, &forward);
    lay_workspace(recurrence, true, &e, &backward);
    lay_saved(&e, &saved);
    memory->forward = forward.used;
    memory->backward = backward.used;
    memory->saved = saved.used;
    return DR_OK;
}

/* What both directions do first. */
static dr_status tell_layout(const dr_cuda *gpu, const dr_recurrence *recurrence, engine *e) {
    dr_cuda_layout layout;
    DR_TRY(dr_cuda_layout_put(gpu, &recurrence->layout, e->layout, &layout));
    e->call.chunk.cu = (int64_t *)layout.offsets;
    return DR_OK;
}

/* Whether a state is given where one goes. */
static bool shares(const dr_states *initial, const dr_mutable_states *final) {
    for (int i = 0; i < DR_STATES; i++)
        if (initial->at[i] && initial->at[i] == final->at[i]) return true;
    return false;
}

dr_status dr_cuda_chunkwise_forward(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                    const dr_states *initial, void *o, const dr_mutable_states *final, void *saved,
                                    void *workspace) {
    const dr_cuda *gpu = dr_cuda_of(backend);
    engine e;
    DR_TRY(make(backend, recurrence, inputs, NULL, &e));
    lay_workspace(recurrence, false, &e, &(dr_arena){.block = workspace});
    /* a backward wants what prepare leaves, which one kernel stores as boxes; key + lambda query, which it rounds, it takes as
     * boxes alone, so that a forward has the same bits without a backward; where a state lies that is given, the last part's
     * may not go before the first one has begun */
    const bool boxed = dr_cuda_chunk_boxed(&e.call.plan, o), apart = !shares(initial, final);
    if (!boxed && (saved || e.call.plan.reader_sum)) e.call.plan.one_pass = false;
    void *const sums = e.call.plan.reader_sum ? e.call.chunk.reader : NULL; /* no backward reads them */
    if (saved) lay_saved(&e, &(dr_arena){.block = saved});
    if (sums) e.call.chunk.reader = sums;
    if (saved && e.scan_entry) e.diagonal.entry = e.scan_entry;
    e.diagonal.initial = initial->at[DR_STATE_A];
    e.diagonal.final = final->at[DR_STATE_A];
    e.call.chunk.scan = e.diagonal;
    DR_TRY(tell_layout(gpu, recurrence, &e));
    if (e.call.plan.scan_inside && !e.call.plan.one_pass)
        DR_TRY(dr_cuda_diagonal_begin_inside(&e.call.plan, e.call.chunk.cu, &e.diagonal, e.call.chunk.made, gpu->stream));
    else if (e.call.plan.rows.diagonal_scan && !e.call.plan.scan_inside)
        DR_TRY(dr_cuda_diagonal_forward(&e.call.plan, e.call.chunk.cu, &e.diagonal, gpu->stream));
    const bool never = !boxed || !apart;
    DR_TRY(dr_cuda_chunk_begin_early(&e.call.plan, &e.call.chunk, initial->at[DR_STATE_S], o, final->at[DR_STATE_S], e.states,
                                     never, gpu->stream));
    if (never) e.call.chunk.early = NULL; /* a backward has what it says */
    if (e.call.plan.blocks > 0) DR_TRY(dr_cuda_chunk_prepare(&e.call.plan, &e.call.chunk, gpu->stream));
    return dr_cuda_chunk_scan(&e.call.plan, &e.call.chunk, initial->at[DR_STATE_S], o, final->at[DR_STATE_S], e.states,
                              gpu->stream);
}

dr_status dr_cuda_chunkwise_backward(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                     const dr_states *initial, const void *saved, const void *d_o, const dr_states *d_final,
                                     const dr_input_gradients *d_inputs, const dr_mutable_states *d_initial, void *workspace) {
    const dr_cuda *gpu = dr_cuda_of(backend);
    engine e;
    DR_TRY(make(backend, recurrence, inputs, d_inputs, &e));
    lay_workspace(recurrence, true, &e, &(dr_arena){.block = workspace});
    lay_saved(&e, &(dr_arena){.block = (char *)saved});
    e.call.saved = e.states;
    e.call.d_o = d_o;
    e.call.initial = initial->at[DR_STATE_S];
    e.call.d_final = d_final->at[DR_STATE_S];
    e.call.d_initial = d_initial->at[DR_STATE_S];
    e.diagonal.entry = e.scan_entry;
    e.call.chunk.scan.entry = e.scan_entry;
    e.call.chain = dr_cuda_diagonal_turn(&e.diagonal, &e.call.diagonal, d_final->at[DR_STATE_A], d_initial->at[DR_STATE_A]);
    DR_TRY(tell_layout(gpu, recurrence, &e));
    DR_TRY(dr_cuda_backward_run(&e.call, gpu->stream));
    if (!e.call.plan.rows.diagonal_scan) return DR_OK;
    return dr_cuda_diagonal_backward(&e.call.plan, e.call.chunk.cu, &e.diagonal, &e.call.diagonal, d_final->at[DR_STATE_A],
                                     d_initial->at[DR_STATE_A], gpu->stream);
}

/* ---- what a forward saved -------------------------------------------------------------------------------------------- */

int64_t dr_cuda_chunkwise_chunk(const dr_backend *backend, const dr_recurrence *recurrence) {
    engine e;
    return make(backend, recurrence, NULL, NULL, &e) == DR_OK ? e.call.plan.chunk : 1;
}

dr_status dr_cuda_chunkwise_boundary(const dr_backend *backend, const dr_recurrence *recurrence, const void *saved,
                                     int64_t sequence, int64_t boundary, const dr_mutable_states *states) {
    const dr_cuda *gpu = dr_cuda_of(backend);
    engine e;
    if (backend->storage != DR_F32)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "the states that a forward saves on backend cuda are rounded to %s: open it with F32, "
                       "or end the forward where the state is wanted",
                       dr_dtype_name(backend->storage));
    DR_TRY(make(backend, recurrence, NULL, NULL, &e));
    lay_saved(&e, &(dr_arena){.block = (char *)saved});
    const dr_cuda_chunk_plan *plan = &e.call.plan;
    const int64_t begin = dr_layout_begin(&recurrence->layout, sequence);
    const int64_t first = recurrence->layout.cu_seqlens ? begin / plan->chunk + sequence : sequence * plan->sequence_chunks;
    const int64_t slot = first + boundary, keys = recurrence->key_heads * recurrence->key_size;
    if (states->at[DR_STATE_S]) DR_TRY(dr_cuda_boundary_copy(gpu, plan, e.states, slot, states->at[DR_STATE_S]));
    if (states->at[DR_STATE_A])
        DR_CUDA(cudaMemcpyAsync(states->at[DR_STATE_A], e.scan_entry + slot * keys, (size_t)keys * sizeof(float),
                                cudaMemcpyDeviceToDevice, gpu->stream));
    return DR_OK;
}

int dr_cuda_chunkwise_kernel(const dr_backend *backend, const dr_recurrence *recurrence, char *text, size_t size) {
    return snprintf(text, size, "cuda chunkwise %s %s chunk %lld", backend->isa, dr_dtype_name(backend->storage),
                    (long long)dr_cuda_chunkwise_chunk(backend, recurrence));
}
