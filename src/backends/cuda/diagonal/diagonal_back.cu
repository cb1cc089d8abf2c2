/* The diagonal scan's backward (diagonal.h), from the gradients that the rows' backward leaves: memory, kernels, launches. */
#include "backends/cuda/diagonal/diagonal.cuh"

size_t dr_cuda_diagonal_dots_bytes(const dr_cuda_chunk_plan *plan) {
    const size_t chunks = (size_t)plan->slots * (size_t)plan->key_heads;
    return dr_cuda_diagonal_inside_back(plan) && plan->key_width > 64 ? chunks * 2 * 128 * sizeof(float) : 0;
}

void dr_cuda_diagonal_lay_gradients(const dr_cuda_chunk_plan *plan, dr_arena *arena, dr_cuda_diagonal_gradients *gradients) {
    *gradients = dr_cuda_diagonal_gradients{};
    if (!plan->rows.diagonal_scan) return;
    const size_t chunks = (size_t)plan->slots * (size_t)plan->key_heads,
                 tokens = (size_t)plan->tokens * (size_t)plan->key_heads;
    const size_t states = dr_cuda_diagonal_entry_bytes(plan), bytes = tokens * (size_t)plan->rows.key_size * sizeof(float);
    const bool squashes = plan->rows.squashes, morrison = plan->rows.morrison;
    const bool ridge_query = plan->rows.asks == DR_ASKS_MADE;
    gradients->end = (float *)dr_arena_take(arena, states);
    gradients->exit = (float *)dr_arena_take(arena, states);
    if (dr_cuda_diagonal_inside_back(plan)) {
        gradients->centre = (float *)dr_arena_take(arena, chunks * ((size_t)plan->key_width / 64) * sizeof(float));
        if (dr_cuda_diagonal_dots_bytes(plan) > 0)
            gradients->dots = (float *)dr_arena_take(arena, dr_cuda_diagonal_dots_bytes(plan));
        return;
    }
    if (dr_cuda_diagonal_rows_back(plan)) {
        gradients->row = (dr_cuda_scan_row *)dr_arena_take(arena, chunks * DR_CUDA_CHUNK_ROWS * sizeof(dr_cuda_scan_row));
        gradients->squashed = (float *)dr_arena_take(arena, chunks * DR_CUDA_CHUNK_ROWS * 128 * sizeof(uint16_t));
        gradients->centre = (float *)dr_arena_take(arena, chunks * sizeof(float));
        return;
    }
    gradients->key = (float *)dr_arena_take(arena, bytes);
    if (plan->rows.made)
        gradients->settle = (float *)dr_arena_take(arena, tokens * sizeof(float));
    else
        gradients->query = (float *)dr_arena_take(arena, bytes);
    if (plan->rows.gains_made) gradients->dot = (float *)dr_arena_take(arena, tokens * sizeof(float));
    if (squashes) gradients->squashed = (float *)dr_arena_take(arena, bytes);
    if (morrison) gradients->morrison = (float *)dr_arena_take(arena, bytes);
    if (ridge_query) gradients->read_query = (float *)dr_arena_take(arena, bytes);
    if (morrison || ridge_query) gradients->ridge = (float *)dr_arena_take(arena, states);
    if (squashes) gradients->centre = (float *)dr_arena_take(arena, chunks * sizeof(float));
}

/* What the gradients of this token's keys and query add to that of A_t (after) and of A_{t-1} (before). */
template <typename T, int E>
static __device__ inline void scan_sources(const dr_cuda_rows &rows, const dr_cuda_diagonal_gradients &gradients, int64_t token,
                                           int head, int first, const float (&key)[E], const float (&ridge)[E], float centre,
                                           const float (&a_before)[E], const float (&a_after)[E], float (&d_before)[E],
                                           float (&d_after)[E]) {
    DR_UNROLL (e, E) d_before[e] = d_after[e] = 0;
    float d[E];
    if (gradients.read_query) {
        float query[E];
        dr_diagonal_load<E>(rows, gradients.read_query, token, head, first, d);
        dr_input_vector<T, E>(rows, DR_INPUT_QUERY, token, 0, head, rows.key_size, first, query);
        DR_UNROLL (e, E) {
            const float sum = a_after[e] + ridge[e];
            d_after[e] -= query[e] / sum * (d[e] / sum);
        }
    }
    if (gradients.squashed) {
        dr_diagonal_load<E>(rows, gradients.squashed, token, head, first, d);
        DR_UNROLL (e, E) {
            float slope;
            dr_map_squash_value(&rows.squash, a_after[e], centre, &slope);
            d_after[e] += slope * (key[e] * d[e]) / (a_after[e] + rows.squash.eps);
        }
    }
    if (gradients.morrison) { /* w = f m: dm = f dw - f (w . dw) key */
        float m[E];
        dr_diagonal_load<E>(rows, gradients.morrison, token, head, first, d);
        DR_UNROLL (e, E) m[e] = key[e] / (a_before[e] + ridge[e]);
        const float f = 1 / (1 + dr_lane_dot<E>(key, m)), d_dot = -f * f * dr_lane_dot<E>(m, d);
        DR_UNROLL (e, E) d_before[e] -= m[e] * fmaf(d_dot, key[e], f * d[e]) / (a_before[e] + ridge[e]);
    }
}

/* Gradient of A before a chunk, if that after it were zero. In the order of the tokens: a source at A_t comes back to the entry
 * through the alphas of the tokens up to t. */
template <typename T, int E, int W>
static __global__ void __launch_bounds__(W == 1 ? 32 * DR_DIAGONAL_WARPS : 32 * W)
    scan_ends_back(const __grid_constant__ dr_cuda_chunk_plan plan, const int64_t *cu,
                   const __grid_constant__ dr_cuda_diagonal_chain chain,
                   const __grid_constant__ dr_cuda_diagonal_gradients gradients) {
    const auto [slot, head, first, place] = dr_diagonal_own_chunk<E, W>(plan, cu);
    if (place.tokens <= 0) return;
    const dr_cuda_rows &rows = plan.rows;
    const float centre = dr_input_scalar(rows, DR_INPUT_SCAN_CENTRE, 0, 0, head);
    float a[E], ridge[E], sum[E], product = 1;
    dr_diagonal_ridges<E>(rows, head, first, ridge);
    dr_diagonal_load<E>(rows, chain.entry, slot, head, first, a);
    DR_UNROLL (e, E) sum[e] = 0;
#pragma unroll 4
    for (int t = 0; t < place.tokens; t++) {
        const int64_t token = place.first + t;
        float key[E], after[E], d_before[E], d_after[E];
        dr_diagonal_key<T, E>(rows, token, head, first, key);
        const float alpha = dr_diagonal_alpha(rows, token, head);
        const float gain = dr_diagonal_gain(rows, token, head);
        DR_UNROLL (e, E) after[e] = dr_map_scan_step(a[e], alpha, gain, key[e]);
        scan_sources<T, E>(rows, gradients, token, head, first, key, ridge, centre, a, after, d_before, d_after);
        DR_UNROLL (e, E) {
            sum[e] = fmaf(product, d_before[e], sum[e]);
            sum[e] = fmaf(product * alpha, d_after[e], sum[e]);
            a[e] = after[e];
        }
        product *= alpha;
    }
    dr_diagonal_store<E>(rows, gradients.end, slot, head, first, sum);
    if (first == 0) chain.product[slot * plan.key_heads + head] = product;
}

/* What a token's backward reads, asked for one token ahead. */
template <int E> struct scan_token { float key[E], query[E], d_key[E], d_query[E], d_read[E], d_squashed[E], alpha, gain; };

/* Where that lies for the first token of a chunk, and elements from one token to the next. */
template <typename T> struct scan_rows {
    const T *key, *query;
    const float *d_key, *d_query, *d_read, *d_squashed, *alpha, *gain;
    int key_stride, query_stride, made_stride, alpha_stride, gain_stride;
};

template <typename T>
static __device__ inline scan_rows<T> scan_rows_of(const dr_cuda_rows &rows, const dr_cuda_diagonal_gradients &gradients,
                                                   int64_t token, int head, int first) {
    const dr_cuda_input &key = rows.input[DR_INPUT_KEY], &query = rows.input[DR_INPUT_QUERY];
    const dr_cuda_input &alpha = rows.input[dr_diagonal_decay_input(rows)], &gain = rows.input[dr_diagonal_gain_input(rows)];
    const int64_t made = (token * rows.key_heads + head) * rows.key_size + first;
    const auto at = [=](const float *from) { return from ? from + made : NULL; };
    scan_rows<T> x;
    x.key = (const T *)key.at + dr_input_index(key, token, 0, head) + first;
    x.query = (const T *)query.at + dr_input_index(query, token, 0, head) + first;
    x.d_key = at(gradients.key), x.d_query = at(gradients.query), x.d_read = at(gradients.read_query);
    x.d_squashed = at(gradients.squashed);
    x.alpha = alpha.at ? (const float *)alpha.at + dr_input_index(alpha, token, 0, head) : NULL;
    x.gain = gain.at ? (const float *)gain.at + dr_input_index(gain, token, 0, head) : NULL;
    x.key_stride = (int)key.token, x.query_stride = (int)query.token, x.made_stride = rows.key_heads * rows.key_size;
    x.alpha_stride = (int)alpha.token, x.gain_stride = (int)gain.token;
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
}

/* One chunk a block: A before every token of it stays in shared memory, [chunk][32 E W] floats; behind that every warp's part
 * of the sums over channels, [chunk][W][2]. */
template <typename T, int E, int W>
static __global__ void __launch_bounds__(32 * W)
    scan_replay_back(const __grid_constant__ dr_cuda_chunk_plan plan, const int64_t *cu,
                     const __grid_constant__ dr_cuda_diagonal_chain chain,
                     const __grid_constant__ dr_cuda_diagonal_gradients gradients) {
    extern __shared__ float kept[];
    constexpr int threads = 32 * W;
    const dr_cuda_rows &rows = plan.rows;
    const int64_t slot = blockIdx.x / plan.key_heads;
    const int head = (int)(blockIdx.x % plan.key_heads), thread = (int)threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int first = thread * E, left = rows.key_size - first;
    const dr_chunk_place place = dr_find_chunk(plan, cu, slot);
    const float centre = dr_input_scalar(rows, DR_INPUT_SCAN_CENTRE, 0, 0, head);
    float *parts = kept + plan.chunk * E * threads;
    float a[E] = {}, ridge[E], d_a[E] = {}, d_ridge[E], d_centre = 0;
    dr_diagonal_ridges<E>(rows, head, first, ridge);
    if (place.tokens > 0) dr_diagonal_load<E>(rows, chain.entry, slot, head, first, a);
    constexpr int batch = E == 1 ? 8 : 2; /* tokens asked for at once */
    for (int begin = 0; begin < place.tokens; begin += batch) {
        float key[batch][E], alpha[batch], gain[batch];
        DR_UNROLL (i, batch) {
            const int64_t token = place.first + (begin + i < place.tokens ? begin + i : begin);
            dr_diagonal_key<T, E>(rows, token, head, first, key[i]);
            alpha[i] = dr_input_scalar(rows, dr_diagonal_decay_input(rows), token, 0, head);
            gain[i] = dr_diagonal_gain(rows, token, head);
        }
        DR_UNROLL (i, batch)
            if (begin + i < place.tokens) {
                alpha[i] = expf(alpha[i]);
                DR_UNROLL (e, E) {
                    kept[((begin + i) * E + e) * threads + thread] = a[e];
                    a[e] = dr_map_scan_step(a[e], alpha[i], gain[i], key[i][e]);
                }
            }
    }
    if (place.tokens > 0) dr_diagonal_load<E>(rows, gradients.exit, slot, head, first, d_a);
    DR_UNROLL (e, E) d_ridge[e] = 0;
    scan_token<E> x, next;
    const scan_rows<T> from = scan_rows_of<T>(rows, gradients, place.first, head, first);
    if (place.tokens > 0) load_token<T, E>(from, rows.aligned, left, place.tokens - 1, next);
    for (int t = place.tokens - 1; t >= 0; t--) {
        const int64_t token = place.first + t;
        float before[E];
        x = next;
        if (t > 0) load_token<T, E>(from, rows.aligned, left, t - 1, next);
        DR_UNROLL (e, E) before[e] = kept[(t * E + e) * threads + thread];
        const float alpha = expf(x.alpha);
        T *to_query = (T *)rows.input[DR_INPUT_QUERY].gradient, *to_key = (T *)rows.input[DR_INPUT_KEY].gradient;
        if (gradients.read_query) { /* q~ = q / (A_t + ridge) */
            DR_UNROLL (e, E) {
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
            DR_UNROLL (e, E) {
                float slope;
                const float b = dr_map_squash_value(&rows.squash, a[e], centre, &slope);
                const float d_squashed = x.d_squashed[e];
                const float d_position = slope * (x.key[e] * d_squashed);
                if (e < left) d_centre -= d_position;
                x.d_key[e] = fmaf(b, d_squashed, x.d_key[e]);
                d_a[e] += d_position / (a[e] + rows.squash.eps);
            }
        }
        float sums[2] = {0, 0}; /* A_t = alpha A_{t-1} + gain key * key: d_gain, d_alpha */
        DR_UNROLL (e, E) {
            sums[0] = fmaf(x.key[e] * x.key[e], d_a[e], sums[0]);
            sums[1] = fmaf(before[e], d_a[e], sums[1]);
            x.d_key[e] = fmaf(2 * x.gain * x.key[e], d_a[e], x.d_key[e]);
            d_a[e] *= alpha;
        }
        dr_warp_sums<2>(sums);
        if (lane % 16 == 0) parts[(t * W + warp) * 2 + lane / 16] = sums[0];
        if (W == 1 && gradients.morrison) {
            float m[E], d[E];
            dr_diagonal_load<E>(rows, gradients.morrison, token, head, first, d);
            DR_UNROLL (e, E) m[e] = x.key[e] / (before[e] + ridge[e]);
            const float f = 1 / (1 + dr_lane_dot<E>(x.key, m)), d_dot = -f * f * dr_lane_dot<E>(m, d);
            DR_UNROLL (e, E) {
                const float d_m = fmaf(d_dot, x.key[e], f * d[e]) / (before[e] + ridge[e]), d_sum = -(m[e] * d_m);
                x.d_key[e] += fmaf(d_dot, m[e], d_m);
                d_ridge[e] += d_sum;
                d_a[e] += d_sum;
            }
        }
        if (to_key)
            dr_store_lane<T, E>(to_key + dr_input_index(rows.input[DR_INPUT_KEY], token, 0, head) + first, left, rows.aligned,
                                x.d_key);
        DR_UNROLL (e, E) a[e] = before[e];
    }
    if (gradients.ridge) dr_diagonal_store<E>(rows, gradients.ridge, slot, head, first, d_ridge);
    __shared__ float centres[W];
    if (gradients.centre) {
        d_centre = dr_warp_sum(d_centre);
        if (lane == 0) centres[warp] = d_centre;
    }
    __syncthreads();
    for (int t = thread; t < place.tokens; t += threads) {
        float d_gain = 0, d_alpha = 0;
        for (int w = 0; w < W; w++) d_gain += parts[(t * W + w) * 2], d_alpha += parts[(t * W + w) * 2 + 1];
        dr_diagonal_put_scalars(rows, place.first + t, head, dr_diagonal_alpha(rows, place.first + t, head), d_gain, d_alpha);
    }
    if (gradients.centre && thread == 0) {
        d_centre = 0;
        for (int w = 0; w < W; w++) d_centre += centres[w];
        gradients.centre[slot * plan.key_heads + head] = d_centre;
    }
}

/* Ends, exits and replay (diagonal.h). */
template <typename T, int E, int W>
static dr_status in_three_steps(const dr_cuda_chunk_plan *plan, const int64_t *cu, const dr_cuda_diagonal_chain *chain,
                                const dr_cuda_diagonal_gradients *gradients, const float *d_final, float *d_initial,
                                dr_cuda_stream stream) {
    DR_TRY(
        (dr_diagonal_launch_chunks<W>("scan_ends_back", scan_ends_back<T, E, W>, plan, stream, *plan, cu, *chain, *gradients)));
    DR_TRY(dr_cuda_diagonal_carry(plan, cu, gradients->end, chain->product, d_final, true, gradients->exit, d_initial, stream));
    return dr_cuda_launch("scan_replay_back", scan_replay_back<T, E, W>, {plan->slots, plan->key_heads}, 32 * W,
                          plan->chunk * W * (32 * E + 2) * (int)sizeof(float), stream, *plan, cu, *chain, *gradients);
}

dr_status dr_cuda_diagonal_backward(const dr_cuda_chunk_plan *plan, const int64_t *cu, const dr_cuda_diagonal_chain *chain,
                                    const dr_cuda_diagonal_gradients *gradients, const float *d_final, float *d_initial,
                                    dr_cuda_stream stream) {
    const bool inside = dr_cuda_diagonal_inside_back(plan), made = inside || dr_cuda_diagonal_rows_back(plan);
    const bool squashes_only = gradients->squashed && !gradients->morrison && !gradients->read_query;
    if (squashes_only && !made)
        DR_TRY(dr_cuda_diagonal_chain_backward(plan, cu, chain, gradients, d_final, d_initial, stream));
    else if (!made)
        DR_CUDA_CHUNK_STORAGE(plan->storage, T, {
            if (gradients->morrison)
                DR_DIAGONAL_FOR(plan->rows.key_size, E,
                                { DR_TRY((in_three_steps<T, E, 1>(plan, cu, chain, gradients, d_final, d_initial, stream))); })
            else
                DR_DIAGONAL_FOR(plan->rows.key_size, W,
                                { DR_TRY((in_three_steps<T, 1, W>(plan, cu, chain, gradients, d_final, d_initial, stream))); })
        });
    const dr_cuda_input *ridge = &plan->rows.input[DR_INPUT_RIDGE], *centre = &plan->rows.input[DR_INPUT_SCAN_CENTRE];
    const int64_t H = plan->key_heads;
    if (gradients->ridge && ridge->gradient)
        DR_TRY(
            dr_cuda_sum_rows(gradients->ridge, plan->slots, H * plan->rows.key_size, NULL, (float *)ridge->gradient, stream));
    if (gradients->centre && centre->gradient)
        DR_TRY(dr_cuda_sum_rows(gradients->centre, plan->slots * (inside ? plan->key_width / 64 : 1), H, NULL,
                                (float *)centre->gradient, stream));
    return DR_OK;
}
