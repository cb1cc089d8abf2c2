/* The diagonal scan's memory, and its forward where it is a pass of its own: its ends, entries and replay (diagonal.h). */
#include "backends/cuda/device/beside.cuh"
#include "backends/cuda/device/told.cuh"
#include "backends/cuda/diagonal/diagonal.cuh"

/* ---- memory ---------------------------------------------------------------------------------------------------------- */

/* A Sherman-Morrison key and a normalizer ask for sums over channels. */
bool dr_cuda_diagonal_chained(const dr_cuda_chunk_plan *plan) {
    return !plan->rows.morrison && !plan->rows.normalized;
}

bool dr_cuda_diagonal_inside(const dr_cuda_chunk_plan *plan) {
    const dr_cuda_rows *rows = &plan->rows;
    return plan->warpgroups && plan->chunk == DR_CUDA_CHUNK_ROWS && rows->key_size == plan->key_width && rows->made &&
           rows->reads && !rows->row[0].undecayed && !rows->gains_made;
}

bool dr_cuda_diagonal_inside_back(const dr_cuda_chunk_plan *plan) {
    const dr_map_squash &squash = plan->rows.squash;
    return plan->scan_inside && plan->rows.channel_decay && !squash.tanh && squash.eps >= 1e-15f; /* one division for two */
}

bool dr_cuda_diagonal_rows_back(const dr_cuda_chunk_plan *plan) {
    const dr_map_squash &squash = plan->rows.squash;
    return plan->scan_inside && !plan->rows.channel_decay && plan->key_width == 128 && !squash.tanh && squash.eps >= 1e-15f;
}

void dr_cuda_diagonal_lay(const dr_cuda_chunk_plan *plan, dr_arena *arena, dr_cuda_diagonal_chain *chain) {
    const size_t chunks = (size_t)plan->slots * (size_t)plan->key_heads;
    *chain = dr_cuda_diagonal_chain{};
    if (!plan->rows.diagonal_scan) return;
    chain->end = (float *)dr_arena_take(arena, dr_cuda_diagonal_entry_bytes(plan));
    chain->product = (float *)dr_arena_take(arena, chunks * ((size_t)plan->key_width / 64) * sizeof(float));
    chain->told = (unsigned *)dr_arena_take(arena, chunks * sizeof(unsigned));
    chain->ticket = (unsigned *)dr_arena_take(arena, sizeof(unsigned));
}

size_t dr_cuda_diagonal_entry_bytes(const dr_cuda_chunk_plan *plan) {
    const size_t channels = (size_t)plan->key_heads * (size_t)plan->rows.key_size;
    return plan->rows.diagonal_scan ? (size_t)plan->slots * channels * sizeof(float) : 0;
}

static void *take_vectors(const dr_cuda_chunk_plan *plan, dr_arena *arena) {
    const size_t channels = (size_t)plan->key_heads * (size_t)plan->rows.key_size;
    return dr_arena_take(arena, (size_t)plan->tokens * channels * dr_dtype_size(plan->storage));
}

void dr_cuda_diagonal_lay_made(dr_cuda_chunk_plan *plan, dr_arena *arena) {
    if (!plan->rows.diagonal_scan) return;
    dr_cuda_input *input = plan->rows.input;
    if (plan->rows.squashes) input[DR_SOURCE_SQUASHED].at = take_vectors(plan, arena);
    if (plan->rows.morrison) input[DR_SOURCE_MORRISON].at = take_vectors(plan, arena);
    if (plan->rows.asks == DR_ASKS_MADE) input[plan->rows.asked].at = take_vectors(plan, arena);
    if (plan->rows.normalized)
        plan->rows.key_dot = (float *)dr_arena_take(arena, (size_t)plan->tokens * (size_t)plan->key_heads * sizeof(float));
}

dr_cuda_diagonal_chain dr_cuda_diagonal_turn(const dr_cuda_diagonal_chain *chain, const dr_cuda_diagonal_gradients *gradients,
                                             const float *d_final, float *d_initial) {
    return {gradients->end, chain->product, gradients->exit, chain->told, chain->ticket, d_final, d_initial};
}

/* ---- forward --------------------------------------------------------------------------------------------------------- */

/* What is before a sequence without tokens goes behind it. */
static __device__ inline void pass_empty(const dr_cuda_chunk_plan &plan, const int64_t *cu, const dr_cuda_diagonal_chain &chain,
                                         int64_t i) {
    const int64_t channels = (int64_t)plan.key_heads * plan.rows.key_size;
    if (!chain.final || i >= plan.sequences * channels || dr_sequence_chunks(plan, cu, i / channels) > 0) return;
    chain.final[i] = chain.initial ? chain.initial[i] : 0;
}

/* Before chunks make A for one another: none has told anything. */
static __global__ void scan_begin(const __grid_constant__ dr_cuda_chunk_plan plan, const int64_t *cu,
                                  const __grid_constant__ dr_cuda_diagonal_chain chain) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < plan.slots * plan.key_heads) chain.told[i] = CHAIN_NOTHING;
    pass_empty(plan, cu, chain, i);
}

dr_status dr_cuda_diagonal_begin(const dr_cuda_chunk_plan *plan, const int64_t *cu, const dr_cuda_diagonal_chain *chain,
                                 dr_cuda_stream stream) {
    const int64_t chunks = plan->slots * plan->key_heads, states = plan->sequences * plan->key_heads * plan->rows.key_size;
    const int64_t count = chain->final && states > chunks ? states : chunks;
    return dr_cuda_launch("scan_begin", scan_begin, {(count + 127) / 128}, 128, 0, stream, *plan, cu, *chain);
}

/* The same where the numbers themselves say that they are told; made: flags of prepare beside the scan, or NULL. Prepare, which
 * comes next, loads its tiles meanwhile. */
static __global__ void scan_begin_inside(const __grid_constant__ dr_cuda_chunk_plan plan, const int64_t *cu,
                                         const __grid_constant__ dr_cuda_diagonal_chain chain, unsigned *made) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, chunks = plan.slots * plan.key_heads;
    const float untold = __uint_as_float(DR_UNTOLD);
    dr_beside_open();
    if (i < chunks * (plan.rows.key_size / 4))
        ((float4 *)chain.end)[i] = ((float4 *)chain.entry)[i] = make_float4(untold, untold, untold, untold);
    if (i < chunks * (plan.key_width / 64)) chain.product[i] = untold;
    if (i < chunks) {
        chain.told[i] = CHAIN_NOTHING;
        if (made) made[i] = 0;
    }
    if (i == 0) *chain.ticket = 0;
    pass_empty(plan, cu, chain, i);
}

dr_status dr_cuda_diagonal_begin_inside(const dr_cuda_chunk_plan *plan, const int64_t *cu, const dr_cuda_diagonal_chain *chain,
                                        unsigned *made, dr_cuda_stream stream) {
    const int64_t channels = (int64_t)plan->key_heads * plan->rows.key_size;
    const int64_t fours = plan->slots * channels / 4, states = plan->sequences * channels;
    const int64_t count = chain->final && states > fours ? states : fours;
    return dr_cuda_launch("scan_begin_inside", scan_begin_inside, {(count + 255) / 256}, 256, 0, stream, *plan, cu, *chain,
                          made);
}

template <typename T, int E, int W>
static __global__ void __launch_bounds__(W == 1 ? 32 * DR_DIAGONAL_WARPS : 32 * W)
    scan_ends(const __grid_constant__ dr_cuda_chunk_plan plan, const int64_t *cu,
              const __grid_constant__ dr_cuda_diagonal_chain chain) {
    const auto [slot, head, first, place] = dr_diagonal_own_chunk<E, W>(plan, cu);
    if (place.tokens <= 0) return;
    const dr_cuda_rows &rows = plan.rows;
    float a[E], product = 1;
    DR_UNROLL (e, E) a[e] = 0;
#pragma unroll 4
    for (int t = 0; t < place.tokens; t++) {
        float key[E];
        dr_diagonal_key<T, E>(rows, place.first + t, head, first, key);
        const float alpha = dr_diagonal_alpha(rows, place.first + t, head);
        const float b = dr_diagonal_gain(rows, place.first + t, head);
        DR_UNROLL (e, E) a[e] = dr_map_scan_step(a[e], alpha, b, key[e]);
        product *= alpha;
    }
    dr_diagonal_store<E>(rows, chain.end, slot, head, first, a);
    if (first == 0) chain.product[slot * plan.key_heads + head] = product;
}

/* b: B at the state a of the scan. write: the write key, B * key. slope: the derivative of B by a. */
template <int E>
static __device__ inline void squash_key(const dr_cuda_rows &rows, const float (&a)[E], const float (&key)[E], float centre,
                                         float (&b)[E], float (&write)[E], float (&slope)[E]) {
    DR_UNROLL (e, E) {
        b[e] = dr_map_squash_value(&rows.squash, a[e], centre, &slope[e]);
        write[e] = b[e] * key[e];
    }
}

template <typename T, int E>
static __device__ inline void store_made(const dr_cuda_rows &rows, int made, int64_t token, int head, int first,
                                         const float (&from)[E]) {
    T *to = (T *)rows.input[made].at + dr_input_index(rows.input[made], token, 0, head) + first;
    dr_store_lane<T, E>(to, rows.key_size - first, rows.aligned, from);
}

template <typename T, int E, int W>
static __global__ void __launch_bounds__(W == 1 ? 32 * DR_DIAGONAL_WARPS : 32 * W)
    scan_replay(const __grid_constant__ dr_cuda_chunk_plan plan, const int64_t *cu,
                const __grid_constant__ dr_cuda_diagonal_chain chain) {
    const auto [slot, head, first, place] = dr_diagonal_own_chunk<E, W>(plan, cu);
    if (place.tokens <= 0) return;
    const dr_cuda_rows &rows = plan.rows;
    const float centre = dr_input_scalar(rows, DR_INPUT_SCAN_CENTRE, 0, 0, head);
    float a[E], ridge[E];
    dr_diagonal_ridges<E>(rows, head, first, ridge);
    dr_diagonal_load<E>(rows, chain.entry, slot, head, first, a);
#pragma unroll 4
    for (int t = 0; t < place.tokens; t++) {
        const int64_t token = place.first + t;
        float key[E], made[E], b[E], slope[E];
        dr_diagonal_key<T, E>(rows, token, head, first, key);
        if (rows.input[DR_SOURCE_MORRISON].at) { /* w = m / (1 + key . m), m = key / (A_{t-1} + ridge) */
            DR_UNROLL (e, E) made[e] = key[e] / (a[e] + ridge[e]);
            const float factor = 1 / (1 + dr_lane_dot<E>(key, made));
            DR_UNROLL (e, E) made[e] *= factor;
            store_made<T, E>(rows, DR_SOURCE_MORRISON, token, head, first, made);
        }
        const float alpha = dr_diagonal_alpha(rows, token, head);
        const float gain = dr_diagonal_gain(rows, token, head);
        DR_UNROLL (e, E) a[e] = dr_map_scan_step(a[e], alpha, gain, key[e]);
        if (rows.input[DR_SOURCE_SQUASHED].at) {
            squash_key<E>(rows, a, key, centre, b, made, slope);
            store_made<T, E>(rows, DR_SOURCE_SQUASHED, token, head, first, made);
            if (rows.key_dot) {
                const float dot = dr_lane_dot<E>(key, made);
                if (threadIdx.x % 32 == 0) rows.key_dot[token * plan.key_heads + head] = dot;
            }
        }
        if (rows.input[DR_SOURCE_RIDGE_QUERY].at) {
            dr_input_vector<T, E>(rows, DR_INPUT_QUERY, token, 0, head, rows.key_size, first, made);
            DR_UNROLL (e, E) made[e] /= a[e] + ridge[e];
            store_made<T, E>(rows, DR_SOURCE_RIDGE_QUERY, token, head, first, made);
        }
    }
}

/* One thread takes a channel of a sequence's key head. Forward: entry and final; backward: exit and d_initial, from the last
 * chunk on. */
static __global__ void scan_carry(const __grid_constant__ dr_cuda_chunk_plan plan, const int64_t *cu, const float *end,
                                  const float *product, const float *from, bool backward, float *carried, float *to) {
    const int64_t K = plan.rows.key_size, H = plan.key_heads;
    const int64_t channel = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= plan.sequences * H * K) return;
    const int64_t sequence = channel / (H * K), head = channel / K % H, d = channel % K;
    const int64_t first = dr_sequence_slot(plan, cu, sequence), chunks = dr_sequence_chunks(plan, cu, sequence);
    float a = from ? from[channel] : 0;
#pragma unroll 8
    for (int64_t i = 0; i < chunks; i++) {
        const int64_t at = (first + (backward ? chunks - 1 - i : i)) * H + head;
        carried[at * K + d] = a;
        a = fmaf(product[at], a, end[at * K + d]);
    }
    if (to) to[channel] = a;
}

dr_status dr_cuda_diagonal_carry(const dr_cuda_chunk_plan *plan, const int64_t *cu, const float *end, const float *product,
                                 const float *from, bool backward, float *carried, float *to, dr_cuda_stream stream) {
    enum { THREADS = 64 };
    const int64_t channels = plan->sequences * plan->key_heads * plan->rows.key_size;
    return dr_cuda_launch("scan_carry", scan_carry, {(channels + THREADS - 1) / THREADS}, THREADS, 0, stream, *plan, cu, end,
                          product, from, backward, carried, to);
}

dr_status dr_cuda_diagonal_forward(const dr_cuda_chunk_plan *plan, const int64_t *cu, const dr_cuda_diagonal_chain *chain,
                                   dr_cuda_stream stream) {
    const int32_t K = plan->rows.key_size;
    if (dr_cuda_diagonal_chained(plan)) return dr_cuda_diagonal_chain_forward(plan, cu, chain, stream);
    DR_CUDA_CHUNK_STORAGE(
        plan->storage, T, DR_DIAGONAL_FOR(K, W, {
            DR_TRY((dr_diagonal_launch_chunks<W>("scan_ends", scan_ends<T, 1, W>, plan, stream, *plan, cu, *chain)));
        }));
    DR_TRY(dr_cuda_diagonal_carry(plan, cu, chain->end, chain->product, chain->initial, false, chain->entry, chain->final,
                                  stream));
    DR_CUDA_CHUNK_STORAGE(
        plan->storage, T, DR_DIAGONAL_FOR(K, E, {
            DR_TRY((dr_diagonal_launch_chunks<1>("scan_replay", scan_replay<T, E, 1>, plan, stream, *plan, cu, *chain)));
        }));
    return DR_OK;
}
