/* The diagonal scan on a GPU, see diagonal.h. Where a token needs sums over channels, one warp takes a chunk of a key head and
 * a lane E neighbouring channels; else as many warps as there are channels by 32, and a thread one of them: what is made of a
 * channel (logarithms, quotients) then runs on four times as many warps. */
#include "backends/cuda/device.cuh"
#include "backends/cuda/diagonal.h"
#include "backends/cuda/places.cuh"
#include "backends/cuda/rows.cuh"
#include "maps/diagonal.h"

enum { WARPS = 4 };

/* ---- memory ---------------------------------------------------------------------------------------------------------- */

static size_t chunk_floats(const dr_cuda_chunk_plan *plan) {
    return (size_t)plan->slots * (size_t)plan->key_heads * (size_t)plan->rows.key_size;
}

static size_t token_elements(const dr_cuda_chunk_plan *plan) {
    return (size_t)plan->tokens * (size_t)plan->key_heads * (size_t)plan->rows.key_size;
}

static bool writes(const dr_cuda_chunk_plan *plan, dr_write write) {
    const int rows = plan->rows.step_axis ? 1 : plan->rows.steps;
    for (int i = 0; i < rows; i++)
        if (plan->rows.row[i].write == write) return true;
    return false;
}

void dr_cuda_diagonal_lay(const dr_cuda_chunk_plan *plan, dr_arena *arena, dr_cuda_diagonal_tensors *tensors) {
    *tensors = dr_cuda_diagonal_tensors{};
    if (!plan->rows.diagonal_scan) return;
    tensors->end = (float *)dr_arena_take(arena, chunk_floats(plan) * sizeof(float));
    tensors->product = (float *)dr_arena_take(arena, (size_t)plan->slots * (size_t)plan->key_heads * sizeof(float));
}

size_t dr_cuda_diagonal_entry_bytes(const dr_cuda_chunk_plan *plan) {
    return plan->rows.diagonal_scan ? chunk_floats(plan) * sizeof(float) : 0;
}

void dr_cuda_diagonal_lay_made(dr_cuda_chunk_plan *plan, dr_arena *arena) {
    if (!plan->rows.diagonal_scan) return;
    const size_t bytes = token_elements(plan) * dr_dtype_size(plan->storage);
    if (writes(plan, DR_WRITE_PRECONDITIONED)) plan->rows.squashed = dr_arena_take(arena, bytes);
    if (writes(plan, DR_WRITE_SHERMAN_MORRISON)) plan->rows.morrison = dr_arena_take(arena, bytes);
    if (plan->rows.query == DR_QUERY_RIDGE) plan->rows.ridge_query = dr_arena_take(arena, bytes);
    if (plan->rows.normalizer != DR_NORMALIZER_NONE)
        plan->rows.key_dot = (float *)dr_arena_take(arena, (size_t)plan->tokens * (size_t)plan->key_heads * sizeof(float));
}

void dr_cuda_diagonal_lay_gradients(const dr_cuda_chunk_plan *plan, dr_arena *arena, dr_cuda_diagonal_gradients *gradients) {
    *gradients = dr_cuda_diagonal_gradients{};
    if (!plan->rows.diagonal_scan) return;
    const size_t bytes = token_elements(plan) * sizeof(float);
    const bool squashes = writes(plan, DR_WRITE_PRECONDITIONED), morrison = writes(plan, DR_WRITE_SHERMAN_MORRISON);
    const bool ridge_query = plan->rows.query == DR_QUERY_RIDGE;
    gradients->key = (float *)dr_arena_take(arena, bytes);
    if (dr_rows_made(&plan->rows))
        gradients->settle = (float *)dr_arena_take(arena, (size_t)plan->tokens * (size_t)plan->key_heads * sizeof(float));
    else
        gradients->query = (float *)dr_arena_take(arena, bytes);
    if (squashes) gradients->squashed = (float *)dr_arena_take(arena, bytes);
    if (morrison) gradients->morrison = (float *)dr_arena_take(arena, bytes);
    if (ridge_query) gradients->read_query = (float *)dr_arena_take(arena, bytes);
    gradients->end = (float *)dr_arena_take(arena, chunk_floats(plan) * sizeof(float));
    gradients->exit = (float *)dr_arena_take(arena, chunk_floats(plan) * sizeof(float));
    if (morrison || ridge_query) gradients->ridge = (float *)dr_arena_take(arena, chunk_floats(plan) * sizeof(float));
    if (squashes)
        gradients->centre = (float *)dr_arena_take(arena, (size_t)plan->slots * (size_t)plan->key_heads * sizeof(float));
}

/* ---- what both directions share -------------------------------------------------------------------------------------- */

static __device__ inline dr_input decay_input(const dr_cuda_rows &rows) {
    return rows.tied_scan ? DR_INPUT_LOG_DECAY : DR_INPUT_SCAN_LOG_DECAY;
}

static __device__ inline dr_input gain_input(const dr_cuda_rows &rows) {
    return rows.tied_scan ? DR_INPUT_BETA : DR_INPUT_SCAN_GAIN;
}

static __device__ inline float scan_alpha(const dr_cuda_rows &rows, int64_t token, int head) {
    return expf(dr_input_scalar(rows, decay_input(rows), token, 0, head));
}

/* A value of this lane's channels in [..][H][K] float. */
static __device__ inline float *channels(const dr_cuda_rows &rows, float *at, int64_t index, int head, int first) {
    return at + (index * rows.key_heads + head) * rows.key_size + first;
}

template <int E>
static __device__ inline void load_channels(const dr_cuda_rows &rows, float *at, int64_t index, int head, int first,
                                            float (&to)[E]) {
    dr_load_lane<float, E>(channels(rows, at, index, head, first), rows.key_size - first, rows.aligned, to);
}

template <int E>
static __device__ inline void store_channels(const dr_cuda_rows &rows, float *at, int64_t index, int head, int first,
                                             const float (&from)[E]) {
    dr_store_lane<float, E>(channels(rows, at, index, head, first), rows.key_size - first, rows.aligned, from);
}

/* The ridge is 1 behind the true size, where A and the keys are 0. */
template <int E> static __device__ inline void load_ridge(const dr_cuda_rows &rows, int head, int first, float (&ridge)[E]) {
    if (!rows.input[DR_INPUT_RIDGE].at) {
#pragma unroll
        for (int e = 0; e < E; e++) ridge[e] = 1;
        return;
    }
    dr_input_vector<float, E>(rows, DR_INPUT_RIDGE, 0, 0, head, rows.key_size, first, ridge);
#pragma unroll
    for (int e = 0; e < E; e++)
        if (first + e >= rows.key_size) ridge[e] = 1;
}

template <typename T, int E>
static __device__ inline void scan_key(const dr_cuda_rows &rows, int64_t token, int head, int first, float (&key)[E]) {
    dr_input_vector<T, E>(rows, DR_INPUT_KEY, token, 0, head, rows.key_size, first, key);
}

/* The chunk and key head of this warp, or with more warps a chunk of this block; false: there is none, or nothing in
 * it. */
template <int W>
static __device__ inline bool own_chunk(const dr_cuda_chunk_plan &plan, const int64_t *cu, int64_t *slot, int *head,
                                        dr_chunk_place *place) {
    const int64_t task = W == 1 ? (int64_t)blockIdx.x * WARPS + threadIdx.x / 32 : blockIdx.x;
    if (task >= plan.slots * plan.key_heads) return false;
    *slot = task / plan.key_heads;
    *head = (int)(task % plan.key_heads);
    *place = dr_find_chunk(plan, cu, *slot);
    return place->tokens > 0;
}

/* The first channel of this thread. */
template <int E, int W> static __device__ inline int own_first() {
    return (int)(threadIdx.x % (32 * W)) * E;
}

/* ---- forward --------------------------------------------------------------------------------------------------------- */

template <typename T, int E, int W>
static __global__ void __launch_bounds__(W == 1 ? 32 * WARPS : 32 * W)
    scan_ends(const __grid_constant__ dr_cuda_chunk_plan plan, const int64_t *cu,
              const __grid_constant__ dr_cuda_diagonal_tensors tensors) {
    int64_t slot;
    int head;
    dr_chunk_place place;
    if (!own_chunk<W>(plan, cu, &slot, &head, &place)) return;
    const dr_cuda_rows &rows = plan.rows;
    const int first = own_first<E, W>();
    float a[E], product = 1;
#pragma unroll
    for (int e = 0; e < E; e++) a[e] = 0;
#pragma unroll 4
    for (int t = 0; t < place.tokens; t++) {
        float key[E];
        scan_key<T, E>(rows, place.first + t, head, first, key);
        const float alpha = scan_alpha(rows, place.first + t, head);
        const float b = dr_input_scalar(rows, gain_input(rows), place.first + t, 0, head);
#pragma unroll
        for (int e = 0; e < E; e++) a[e] = dr_map_scan_step(a[e], alpha, b, key[e]);
        product *= alpha;
    }
    store_channels<E>(rows, tensors.end, slot, head, first, a);
    if (first == 0) tensors.product[slot * plan.key_heads + head] = product;
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

/* B, and the write key B * key; *sum is key . (B * key). */
template <int E>
static __device__ inline void squash_key(const dr_cuda_rows &rows, const float (&a)[E], const float (&key)[E], float centre,
                                         float (&b)[E], float (&write)[E], float (&slope)[E]) {
#pragma unroll
    for (int e = 0; e < E; e++) {
        b[e] = dr_map_squash_value(&rows.squash, a[e], centre, &slope[e]);
        write[e] = b[e] * key[e];
    }
}

template <typename T, int E>
static __device__ inline void store_made(const dr_cuda_rows &rows, void *made, int64_t token, int head, int first,
                                         const float (&from)[E]) {
    dr_store_lane<T, E>((T *)made + (token * rows.key_heads + head) * rows.key_size + first, rows.key_size - first,
                        rows.aligned, from);
}

template <typename T, int E, int W>
static __global__ void __launch_bounds__(W == 1 ? 32 * WARPS : 32 * W)
    scan_replay(const __grid_constant__ dr_cuda_chunk_plan plan, const int64_t *cu,
                const __grid_constant__ dr_cuda_diagonal_tensors tensors) {
    int64_t slot;
    int head;
    dr_chunk_place place;
    if (!own_chunk<W>(plan, cu, &slot, &head, &place)) return;
    const dr_cuda_rows &rows = plan.rows;
    const int first = own_first<E, W>();
    const float centre = dr_input_scalar(rows, DR_INPUT_SCAN_CENTRE, 0, 0, head);
    float a[E], ridge[E];
    load_ridge<E>(rows, head, first, ridge);
    load_channels<E>(rows, tensors.entry, slot, head, first, a);
#pragma unroll 4
    for (int t = 0; t < place.tokens; t++) {
        const int64_t token = place.first + t;
        float key[E], made[E], b[E], slope[E];
        scan_key<T, E>(rows, token, head, first, key);
        if (rows.morrison) { /* w = m / (1 + key . m), m = key / (A_{t-1} + ridge) */
#pragma unroll
            for (int e = 0; e < E; e++) made[e] = key[e] / (a[e] + ridge[e]);
            const float factor = 1 / (1 + dr_lane_dot<E>(key, made));
#pragma unroll
            for (int e = 0; e < E; e++) made[e] *= factor;
            store_made<T, E>(rows, rows.morrison, token, head, first, made);
        }
        const float alpha = scan_alpha(rows, token, head);
        const float gain = dr_input_scalar(rows, gain_input(rows), token, 0, head);
#pragma unroll
        for (int e = 0; e < E; e++) a[e] = dr_map_scan_step(a[e], alpha, gain, key[e]);
        if (rows.squashed) {
            squash_key<E>(rows, a, key, centre, b, made, slope);
            store_made<T, E>(rows, rows.squashed, token, head, first, made);
            if (rows.key_dot) {
                const float dot = dr_lane_dot<E>(key, made);
                if (threadIdx.x % 32 == 0) rows.key_dot[token * plan.key_heads + head] = dot;
            }
        }
        if (rows.ridge_query) {
            dr_input_vector<T, E>(rows, DR_INPUT_QUERY, token, 0, head, rows.key_size, first, made);
#pragma unroll
            for (int e = 0; e < E; e++) made[e] /= a[e] + ridge[e];
            store_made<T, E>(rows, rows.ridge_query, token, head, first, made);
        }
    }
}

/* ---- backward -------------------------------------------------------------------------------------------------------- */

/* What the gradients of this token's keys and query add to that of A_t (after) and of A_{t-1} (before). */
template <typename T, int E>
static __device__ inline void scan_sources(const dr_cuda_rows &rows, const dr_cuda_diagonal_gradients &gradients, int64_t token,
                                           int head, int first, const float (&key)[E], const float (&ridge)[E], float centre,
                                           const float (&a_before)[E], const float (&a_after)[E], float (&d_before)[E],
                                           float (&d_after)[E]) {
#pragma unroll
    for (int e = 0; e < E; e++) d_before[e] = d_after[e] = 0;
    float d[E];
    if (gradients.read_query) {
        float query[E];
        load_channels<E>(rows, gradients.read_query, token, head, first, d);
        dr_input_vector<T, E>(rows, DR_INPUT_QUERY, token, 0, head, rows.key_size, first, query);
#pragma unroll
        for (int e = 0; e < E; e++) {
            const float sum = a_after[e] + ridge[e];
            d_after[e] -= query[e] / sum * (d[e] / sum);
        }
    }
    if (gradients.squashed) {
        load_channels<E>(rows, gradients.squashed, token, head, first, d);
        const float settle = gradients.settle ? gradients.settle[token * rows.key_heads + head] : 0;
#pragma unroll
        for (int e = 0; e < E; e++) {
            float slope;
            const float b = dr_map_squash_value(&rows.squash, a_after[e], centre, &slope);
            d_after[e] += slope * (key[e] * fmaf(settle, b * key[e], d[e])) / (a_after[e] + rows.squash.eps);
        }
    }
    if (gradients.morrison) { /* w = f m: dm = f dw - f (w . dw) key */
        float m[E];
        load_channels<E>(rows, gradients.morrison, token, head, first, d);
#pragma unroll
        for (int e = 0; e < E; e++) m[e] = key[e] / (a_before[e] + ridge[e]);
        const float f = 1 / (1 + dr_lane_dot<E>(key, m)), d_dot = -f * f * dr_lane_dot<E>(m, d);
#pragma unroll
        for (int e = 0; e < E; e++) d_before[e] -= m[e] * fmaf(d_dot, key[e], f * d[e]) / (a_before[e] + ridge[e]);
    }
}

/* Gradient of A before a chunk, if that after it were zero. In the order of the tokens: a source at A_t comes back to the entry
 * through the alphas of the tokens up to t. */
template <typename T, int E, int W>
static __global__ void __launch_bounds__(W == 1 ? 32 * WARPS : 32 * W)
    scan_ends_back(const __grid_constant__ dr_cuda_chunk_plan plan, const int64_t *cu,
                   const __grid_constant__ dr_cuda_diagonal_tensors tensors,
                   const __grid_constant__ dr_cuda_diagonal_gradients gradients) {
    int64_t slot;
    int head;
    dr_chunk_place place;
    if (!own_chunk<W>(plan, cu, &slot, &head, &place)) return;
    const dr_cuda_rows &rows = plan.rows;
    const int first = own_first<E, W>();
    const float centre = dr_input_scalar(rows, DR_INPUT_SCAN_CENTRE, 0, 0, head);
    float a[E], ridge[E], sum[E], product = 1;
    load_ridge<E>(rows, head, first, ridge);
    load_channels<E>(rows, tensors.entry, slot, head, first, a);
#pragma unroll
    for (int e = 0; e < E; e++) sum[e] = 0;
#pragma unroll 4
    for (int t = 0; t < place.tokens; t++) {
        const int64_t token = place.first + t;
        float key[E], after[E], d_before[E], d_after[E];
        scan_key<T, E>(rows, token, head, first, key);
        const float alpha = scan_alpha(rows, token, head);
        const float gain = dr_input_scalar(rows, gain_input(rows), token, 0, head);
#pragma unroll
        for (int e = 0; e < E; e++) after[e] = dr_map_scan_step(a[e], alpha, gain, key[e]);
        scan_sources<T, E>(rows, gradients, token, head, first, key, ridge, centre, a, after, d_before, d_after);
#pragma unroll
        for (int e = 0; e < E; e++) {
            sum[e] = fmaf(product, d_before[e], sum[e]);
            sum[e] = fmaf(product * alpha, d_after[e], sum[e]);
            a[e] = after[e];
        }
        product *= alpha;
    }
    store_channels<E>(rows, gradients.end, slot, head, first, sum);
    if (first == 0) tensors.product[slot * plan.key_heads + head] = product;
}

/* What a token's backward reads, asked for one token ahead. */
template <int E> struct scan_token {
    float key[E], query[E], d_key[E], d_query[E], d_read[E], d_squashed[E], alpha, gain, settle;
};

/* Where that lies for the first token of a chunk, and elements from one token to the next. */
template <typename T> struct scan_rows {
    const T *key, *query;
    const float *d_key, *d_query, *d_read, *d_squashed, *alpha, *gain, *settle;
    int key_stride, query_stride, made_stride, alpha_stride, gain_stride, settle_stride;
};

template <typename T>
static __device__ inline scan_rows<T> scan_rows_of(const dr_cuda_rows &rows, const dr_cuda_diagonal_gradients &gradients,
                                                   int64_t token, int head, int first) {
    const dr_cuda_input &key = rows.input[DR_INPUT_KEY], &query = rows.input[DR_INPUT_QUERY];
    const dr_cuda_input &alpha = rows.input[decay_input(rows)], &gain = rows.input[gain_input(rows)];
    const int64_t made = (token * rows.key_heads + head) * rows.key_size + first;
    const auto at = [=](const float *from) { return from ? from + made : NULL; };
    scan_rows<T> x;
    x.key = (const T *)key.at + dr_input_index(key, token, 0, head) + first;
    x.query = (const T *)query.at + dr_input_index(query, token, 0, head) + first;
    x.d_key = at(gradients.key), x.d_query = at(gradients.query), x.d_read = at(gradients.read_query);
    x.d_squashed = at(gradients.squashed);
    x.alpha = alpha.at ? (const float *)alpha.at + dr_input_index(alpha, token, 0, head) : NULL;
    x.gain = gain.at ? (const float *)gain.at + dr_input_index(gain, token, 0, head) : NULL;
    x.settle = gradients.settle ? gradients.settle + token * rows.key_heads + head : NULL;
    x.key_stride = (int)key.token, x.query_stride = (int)query.token, x.made_stride = rows.key_heads * rows.key_size;
    x.alpha_stride = (int)alpha.token, x.gain_stride = (int)gain.token, x.settle_stride = rows.key_heads;
    return x;
}

/* Token t of the chunk. left: channels that exist from the thread's first on. */
template <typename T, int E>
static __device__ inline void load_token(const scan_rows<T> &from, bool aligned, int left, int t, scan_token<E> &x) {
    const int made = t * from.made_stride;
    dr_load_lane<T, E>(from.key + t * from.key_stride, left, aligned, x.key);
    dr_load_lane<float, E>(from.d_key + made, left, aligned, x.d_key);
    if (from.d_query) dr_load_lane<float, E>(from.d_query + made, left, aligned, x.d_query);
    if (from.d_squashed) dr_load_lane<float, E>(from.d_squashed + made, left, aligned, x.d_squashed);
    if (from.d_read) {
        dr_load_lane<float, E>(from.d_read + made, left, aligned, x.d_read);
        dr_load_lane<T, E>(from.query + t * from.query_stride, left, aligned, x.query);
    }
    x.alpha = from.alpha ? from.alpha[t * from.alpha_stride] : 0;
    x.gain = from.gain ? from.gain[t * from.gain_stride] : 0;
    x.settle = from.settle ? from.settle[t * from.settle_stride] : 0;
}

/* Gradients of a token's gain and alpha. */
static __device__ inline void put_scalars(const dr_cuda_rows &rows, int64_t token, int head, float alpha, float d_gain,
                                          float d_alpha) {
    const dr_cuda_input &gains = rows.input[gain_input(rows)], &decays = rows.input[decay_input(rows)];
    float *to_gain = (float *)gains.gradient, *to_decay = (float *)decays.gradient;
    if (to_gain) {
        to_gain += dr_input_index(gains, token, 0, head);
        *to_gain = rows.tied_scan ? *to_gain + d_gain : d_gain;
    }
    if (to_decay) {
        to_decay += dr_input_index(decays, token, 0, head);
        const float d_decay = alpha == 0 ? 0 : alpha * d_alpha;
        *to_decay = rows.tied_scan ? *to_decay + d_decay : d_decay;
    }
}

/* One chunk a block: A before every token of it stays in shared memory, [chunk][32 E W] floats; behind that every warp's part
 * of the sums over channels, [chunk][W][2]. */
template <typename T, int E, int W>
static __global__ void __launch_bounds__(32 * W)
    scan_replay_back(const __grid_constant__ dr_cuda_chunk_plan plan, const int64_t *cu,
                     const __grid_constant__ dr_cuda_diagonal_tensors tensors,
                     const __grid_constant__ dr_cuda_diagonal_gradients gradients) {
    extern __shared__ float kept[];
    constexpr int threads = 32 * W;
    const dr_cuda_rows &rows = plan.rows;
    const int64_t slot = blockIdx.x / plan.key_heads;
    const int head = (int)(blockIdx.x % plan.key_heads), thread = (int)threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int first = own_first<E, W>(), left = rows.key_size - first;
    const dr_chunk_place place = dr_find_chunk(plan, cu, slot);
    const float centre = dr_input_scalar(rows, DR_INPUT_SCAN_CENTRE, 0, 0, head);
    float *parts = kept + plan.chunk * E * threads;
    float a[E] = {}, ridge[E], d_a[E] = {}, d_ridge[E], d_centre = 0;
    load_ridge<E>(rows, head, first, ridge);
    if (place.tokens > 0) load_channels<E>(rows, tensors.entry, slot, head, first, a);
    constexpr int batch = E == 1 ? 8 : 2; /* tokens asked for at once */
    for (int begin = 0; begin < place.tokens; begin += batch) {
        float key[batch][E], alpha[batch], gain[batch];
#pragma unroll
        for (int i = 0; i < batch; i++) {
            const int64_t token = place.first + (begin + i < place.tokens ? begin + i : begin);
            scan_key<T, E>(rows, token, head, first, key[i]);
            alpha[i] = dr_input_scalar(rows, decay_input(rows), token, 0, head);
            gain[i] = dr_input_scalar(rows, gain_input(rows), token, 0, head);
        }
#pragma unroll
        for (int i = 0; i < batch; i++)
            if (begin + i < place.tokens) {
                alpha[i] = expf(alpha[i]);
#pragma unroll
                for (int e = 0; e < E; e++) {
                    kept[((begin + i) * E + e) * threads + thread] = a[e];
                    a[e] = dr_map_scan_step(a[e], alpha[i], gain[i], key[i][e]);
                }
            }
    }
    if (place.tokens > 0) load_channels<E>(rows, gradients.exit, slot, head, first, d_a);
#pragma unroll
    for (int e = 0; e < E; e++) d_ridge[e] = 0;
    scan_token<E> x, next;
    const scan_rows<T> from = scan_rows_of<T>(rows, gradients, place.first, head, first);
    if (place.tokens > 0) load_token<T, E>(from, rows.aligned, left, place.tokens - 1, next);
    for (int t = place.tokens - 1; t >= 0; t--) {
        const int64_t token = place.first + t;
        float before[E];
        x = next;
        if (t > 0) load_token<T, E>(from, rows.aligned, left, t - 1, next);
#pragma unroll
        for (int e = 0; e < E; e++) before[e] = kept[(t * E + e) * threads + thread];
        const float alpha = expf(x.alpha);
        T *to_query = (T *)rows.input[DR_INPUT_QUERY].gradient, *to_key = (T *)rows.input[DR_INPUT_KEY].gradient;
        if (gradients.read_query) { /* q~ = q / (A_t + ridge) */
#pragma unroll
            for (int e = 0; e < E; e++) {
                const float sum = a[e] + ridge[e], d_q = x.d_read[e] / sum, d_sum = -(x.query[e] / sum) * d_q;
                x.d_query[e] += d_q;
                d_ridge[e] += d_sum;
                d_a[e] += d_sum;
            }
        }
        if (to_query && gradients.query)
            dr_store_lane<T, E>(to_query + dr_input_index(rows.input[DR_INPUT_QUERY], token, 0, head) + first, left,
                                rows.aligned, x.d_query);
        if (gradients.squashed) { /* w = B * key */
#pragma unroll
            for (int e = 0; e < E; e++) {
                float slope;
                const float b = dr_map_squash_value(&rows.squash, a[e], centre, &slope);
                const float d_squashed = fmaf(x.settle, b * x.key[e], x.d_squashed[e]);
                const float d_position = slope * (x.key[e] * d_squashed);
                if (e < left) d_centre -= d_position;
                x.d_key[e] = fmaf(b, d_squashed, x.d_key[e]);
                d_a[e] += d_position / (a[e] + rows.squash.eps);
            }
        }
        float sums[2] = {0, 0}; /* A_t = alpha A_{t-1} + gain key * key: d_gain, d_alpha */
#pragma unroll
        for (int e = 0; e < E; e++) {
            sums[0] = fmaf(x.key[e] * x.key[e], d_a[e], sums[0]);
            sums[1] = fmaf(before[e], d_a[e], sums[1]);
            x.d_key[e] = fmaf(2 * x.gain * x.key[e], d_a[e], x.d_key[e]);
            d_a[e] *= alpha;
        }
        dr_warp_sums<2>(sums);
        if (lane % 16 == 0) parts[(t * W + warp) * 2 + lane / 16] = sums[0];
        if (W == 1 && gradients.morrison) {
            float m[E], d[E];
            load_channels<E>(rows, gradients.morrison, token, head, first, d);
#pragma unroll
            for (int e = 0; e < E; e++) m[e] = x.key[e] / (before[e] + ridge[e]);
            const float f = 1 / (1 + dr_lane_dot<E>(x.key, m)), d_dot = -f * f * dr_lane_dot<E>(m, d);
#pragma unroll
            for (int e = 0; e < E; e++) {
                const float d_m = fmaf(d_dot, x.key[e], f * d[e]) / (before[e] + ridge[e]), d_sum = -(m[e] * d_m);
                x.d_key[e] += fmaf(d_dot, m[e], d_m);
                d_ridge[e] += d_sum;
                d_a[e] += d_sum;
            }
        }
        if (to_key)
            dr_store_lane<T, E>(to_key + dr_input_index(rows.input[DR_INPUT_KEY], token, 0, head) + first, left, rows.aligned,
                                x.d_key);
#pragma unroll
        for (int e = 0; e < E; e++) a[e] = before[e];
    }
    if (gradients.ridge) store_channels<E>(rows, gradients.ridge, slot, head, first, d_ridge);
    __shared__ float centres[W];
    if (gradients.centre) {
        d_centre = dr_warp_sum(d_centre);
        if (lane == 0) centres[warp] = d_centre;
    }
    __syncthreads();
    for (int t = thread; t < place.tokens; t += threads) {
        float d_gain = 0, d_alpha = 0;
        for (int w = 0; w < W; w++) d_gain += parts[(t * W + w) * 2], d_alpha += parts[(t * W + w) * 2 + 1];
        put_scalars(rows, place.first + t, head, scan_alpha(rows, place.first + t, head), d_gain, d_alpha);
    }
    if (gradients.centre && thread == 0) {
        d_centre = 0;
        for (int w = 0; w < W; w++) d_centre += centres[w];
        gradients.centre[slot * plan.key_heads + head] = d_centre;
    }
}

/* ---- sums over chunks or tokens ---------------------------------------------------------------------------------------- */

enum { SUM_THREADS = 256 };

static __global__ void sum_rows(const float *partial, int64_t rows, int64_t columns, const float *zero_at, float *to) {
    __shared__ double sums[SUM_THREADS];
    const int64_t column = blockIdx.x;
    double sum = 0;
    for (int64_t row = threadIdx.x; row < rows; row += SUM_THREADS) sum += partial[row * columns + column];
    sums[threadIdx.x] = sum;
    for (int half = SUM_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) to[column] = zero_at && zero_at[column] == -INFINITY ? 0 : (float)sums[0];
}

/* ---- launches -------------------------------------------------------------------------------------------------------- */

/* E channels a thread, W warps a chunk: one where a token's sums over channels are asked for at once. */
#define FOR_LANES(K, whole, E, W, ...)                                                                                         \
    if (whole) {                                                                                                               \
        constexpr int W = 1;                                                                                                   \
        if ((K) <= 64) {                                                                                                       \
            constexpr int E = 2;                                                                                               \
            __VA_ARGS__;                                                                                                       \
        } else if ((K) <= 128) {                                                                                               \
            constexpr int E = 4;                                                                                               \
            __VA_ARGS__;                                                                                                       \
        } else {                                                                                                               \
            constexpr int E = 8;                                                                                               \
            __VA_ARGS__;                                                                                                       \
        }                                                                                                                      \
    } else {                                                                                                                   \
        constexpr int E = 1;                                                                                                   \
        if ((K) <= 64) {                                                                                                       \
            constexpr int W = 2;                                                                                               \
            __VA_ARGS__;                                                                                                       \
        } else if ((K) <= 128) {                                                                                               \
            constexpr int W = 4;                                                                                               \
            __VA_ARGS__;                                                                                                       \
        } else {                                                                                                               \
            constexpr int W = 8;                                                                                               \
            __VA_ARGS__;                                                                                                       \
        }                                                                                                                      \
    }

dr_status dr_cuda_sum_rows(const float *partial, int64_t rows, int64_t columns, const float *zero_at, float *to,
                           cudaStream_t stream) {
    if (columns == 0) return DR_OK;
    unsigned grid;
    DR_TRY(dr_cuda_grid(&columns, 1, "sum_rows", &grid));
    sum_rows<<<grid, SUM_THREADS, 0, stream>>>(partial, rows, columns, zero_at, to);
    DR_CUDA_LAUNCHED("sum_rows");
    return DR_OK;
}

static dr_status carry(const dr_cuda_chunk_plan *plan, const int64_t *cu, const float *end, const float *product,
                       const float *from, bool backward, float *carried, float *to, cudaStream_t stream) {
    enum { THREADS = 64 };
    const int64_t channels = plan->sequences * plan->key_heads * plan->rows.key_size;
    const int64_t blocks = (channels + THREADS - 1) / THREADS;
    unsigned grid;
    DR_TRY(dr_cuda_grid(&blocks, 1, "scan_carry", &grid));
    scan_carry<<<grid, THREADS, 0, stream>>>(*plan, cu, end, product, from, backward, carried, to);
    DR_CUDA_LAUNCHED("scan_carry");
    return DR_OK;
}

/* Blocks of kernels with W warps for each chunk and key head, WARPS of them where W is 1. */
static dr_status chunk_grid(const dr_cuda_chunk_plan *plan, int chunks, const char *kernel, unsigned *grid) {
    const int64_t blocks = (plan->slots * plan->key_heads + chunks - 1) / chunks;
    return dr_cuda_grid(&blocks, 1, kernel, grid);
}

template <typename T, int E, int W>
static dr_status ends(const dr_cuda_chunk_plan *plan, const int64_t *cu, const dr_cuda_diagonal_tensors *tensors,
                      cudaStream_t stream) {
    unsigned grid;
    DR_TRY(chunk_grid(plan, W == 1 ? WARPS : 1, "scan_ends", &grid));
    scan_ends<T, E, W><<<grid, W == 1 ? 32 * WARPS : 32 * W, 0, stream>>>(*plan, cu, *tensors);
    DR_CUDA_LAUNCHED("scan_ends");
    return DR_OK;
}

template <typename T, int E, int W>
static dr_status replay(const dr_cuda_chunk_plan *plan, const int64_t *cu, const dr_cuda_diagonal_tensors *tensors,
                        cudaStream_t stream) {
    unsigned grid;
    DR_TRY(chunk_grid(plan, W == 1 ? WARPS : 1, "scan_replay", &grid));
    scan_replay<T, E, W><<<grid, W == 1 ? 32 * WARPS : 32 * W, 0, stream>>>(*plan, cu, *tensors);
    DR_CUDA_LAUNCHED("scan_replay");
    return DR_OK;
}

template <typename T, int E, int W>
static dr_status ends_back(const dr_cuda_chunk_plan *plan, const int64_t *cu, const dr_cuda_diagonal_tensors *tensors,
                           const dr_cuda_diagonal_gradients *gradients, cudaStream_t stream) {
    unsigned grid;
    DR_TRY(chunk_grid(plan, W == 1 ? WARPS : 1, "scan_ends_back", &grid));
    scan_ends_back<T, E, W><<<grid, W == 1 ? 32 * WARPS : 32 * W, 0, stream>>>(*plan, cu, *tensors, *gradients);
    DR_CUDA_LAUNCHED("scan_ends_back");
    return DR_OK;
}

template <typename T, int E, int W>
static dr_status replay_back(const dr_cuda_chunk_plan *plan, const int64_t *cu, const dr_cuda_diagonal_tensors *tensors,
                             const dr_cuda_diagonal_gradients *gradients, cudaStream_t stream) {
    unsigned grid;
    DR_TRY(chunk_grid(plan, 1, "scan_replay_back", &grid));
    const int bytes = plan->chunk * W * (32 * E + 2) * (int)sizeof(float);
    DR_TRY(dr_cuda_allow_shared((const void *)scan_replay_back<T, E, W>));
    scan_replay_back<T, E, W><<<grid, 32 * W, (size_t)bytes, stream>>>(*plan, cu, *tensors, *gradients);
    DR_CUDA_LAUNCHED("scan_replay_back");
    return DR_OK;
}

dr_status dr_cuda_diagonal_forward(const dr_cuda_chunk_plan *plan, const int64_t *cu, const dr_cuda_diagonal_tensors *tensors,
                                   const float *initial, float *final, bool replay_only, cudaStream_t stream) {
    const bool there = plan->slots > 0, whole = plan->rows.morrison || plan->rows.key_dot;
    const int32_t K = plan->rows.key_size;
    if (!replay_only) {
        if (there)
            DR_CUDA_CHUNK_STORAGE(plan->storage, T,
                                  FOR_LANES(K, false, E, W, { DR_TRY((ends<T, E, W>(plan, cu, tensors, stream))); }));
        DR_TRY(carry(plan, cu, tensors->end, tensors->product, initial, false, tensors->entry, final, stream));
    }
    if (there)
        DR_CUDA_CHUNK_STORAGE(plan->storage, T,
                              FOR_LANES(K, whole, E, W, { DR_TRY((replay<T, E, W>(plan, cu, tensors, stream))); }));
    return DR_OK;
}

dr_status dr_cuda_diagonal_backward(const dr_cuda_chunk_plan *plan, const int64_t *cu, const dr_cuda_diagonal_tensors *tensors,
                                    const dr_cuda_diagonal_gradients *gradients, const float *d_final, float *d_initial,
                                    cudaStream_t stream) {
    const bool there = plan->slots > 0, whole = gradients->morrison;
    const int32_t K = plan->rows.key_size;
    if (there)
        DR_CUDA_CHUNK_STORAGE(plan->storage, T, FOR_LANES(K, whole, E, W, {
                                  DR_TRY((ends_back<T, E, W>(plan, cu, tensors, gradients, stream)));
                              }));
    DR_TRY(carry(plan, cu, gradients->end, tensors->product, d_final, true, gradients->exit, d_initial, stream));
    if (there)
        DR_CUDA_CHUNK_STORAGE(plan->storage, T, FOR_LANES(K, whole, E, W, {
                                  DR_TRY((replay_back<T, E, W>(plan, cu, tensors, gradients, stream)));
                              }));
    const dr_cuda_input *ridge = &plan->rows.input[DR_INPUT_RIDGE], *centre = &plan->rows.input[DR_INPUT_SCAN_CENTRE];
    const int64_t H = plan->key_heads;
    if (gradients->ridge && ridge->gradient)
        DR_TRY(
            dr_cuda_sum_rows(gradients->ridge, plan->slots, H * plan->rows.key_size, NULL, (float *)ridge->gradient, stream));
    if (gradients->centre && centre->gradient)
        DR_TRY(dr_cuda_sum_rows(gradients->centre, plan->slots, H, NULL, (float *)centre->gradient, stream));
    return DR_OK;
}
