/* The recurrence token by token, forward: a block takes 32 columns of one value head's state through all its tokens.
 *
 * 128 threads hold the columns in registers: 8 groups of 4 columns by 16 groups of rows, row k in group k % 16, so that a
 * warp's 16-byte accesses cover four rows of 128 bytes. A row of the rule passes over the registers twice: e = r^T D, q^T D and
 * q . w are summed together (over 4 lanes by shuffles, over 4 warps in shared memory, in a fixed order); then u = z - c e, S =
 * D + w u, and o = q^T D + (q . w) u, so that the query needs no pass of its own. Meanwhile each thread makes one channel of
 * the keys; the loads of the state are issued before anything waits. Rows without a read sum no e, rows before a token's last
 * no q^T D.
 *
 * Decoding is this kernel with one token, or a few, and states in slots: memory sees each state once in and once out. */
#include "backends/cuda/tokens.cuh"
#include "backends/cuda/tokens.h"

constexpr int THREADS = 128, WARPS = THREADS / 32, COLUMNS = 32, COLUMN_GROUPS = COLUMNS / 4;
constexpr int ROW_GROUPS = THREADS / COLUMN_GROUPS;

/* What a row of the rule does to channel k: .x reads (decayed unless the read is undecayed), .y writes, .z decays, .w queries.
 */
template <int KT> struct token_shared {
    float4 channel[2][KT]; /* of two rows in turn: one is read while the next is made */
    float4 erased[WARPS][COLUMN_GROUPS], read[WARPS][COLUMN_GROUPS];
    float query_write[WARPS], dot[2][WARPS], key_dot[WARPS], morrison[WARPS];
};

static __device__ inline float sum_warps(const float (&parts)[WARPS]) {
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}

static __device__ inline float4 sum_warps(const float4 (&parts)[WARPS][COLUMN_GROUPS], int group) {
    const float4 a = parts[0][group], b = parts[1][group], c = parts[2][group], d = parts[3][group];
    return make_float4((a.x + b.x) + (c.x + d.x), (a.y + b.y) + (c.y + d.y), (a.z + b.z) + (c.z + d.z),
                       (a.w + b.w) + (c.w + d.w));
}

static __device__ inline void multiply_add(float a, float4 x, float4 &sum) {
    sum.x = fmaf(a, x.x, sum.x);
    sum.y = fmaf(a, x.y, sum.y);
    sum.z = fmaf(a, x.z, sum.z);
    sum.w = fmaf(a, x.w, sum.w);
}

/* Over the four lanes of a warp that hold the same columns. */
static __device__ inline float sum_rows(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}
static __device__ inline float4 sum_rows(float4 x) {
    return make_float4(sum_rows(x.x), sum_rows(x.y), sum_rows(x.z), sum_rows(x.w));
}

/* This thread's part of the state of a value head, [K, V] at `from`: 4 columns from `column` on of rows group, group + 16, ..
 */
template <int ROWS>
static __device__ inline void load_state(const float *from, int K, int V, int group, int column, bool whole,
                                         float4 (&S)[ROWS]) {
    const int left = V - column;
    from += (int64_t)group * V + column;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const float *row = from + (int64_t)i * ROW_GROUPS * V;
        S[i] = make_float4(0, 0, 0, 0);
        if (group + i * ROW_GROUPS >= K) continue;
        if (whole) {
            if (left > 0) S[i] = __ldcs(reinterpret_cast<const float4 *>(row));
        } else {
            if (left > 0) S[i].x = row[0];
            if (left > 1) S[i].y = row[1];
            if (left > 2) S[i].z = row[2];
            if (left > 3) S[i].w = row[3];
        }
    }
}

template <int ROWS>
static __device__ inline void store_state(float *to, int K, int V, int group, int column, bool whole, const float4 (&S)[ROWS]) {
    const int left = V - column;
    to += (int64_t)group * V + column;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float *row = to + (int64_t)i * ROW_GROUPS * V;
        if (group + i * ROW_GROUPS >= K) continue;
        if (whole) {
            if (left > 0) __stcs(reinterpret_cast<float4 *>(row), S[i]);
        } else {
            if (left > 0) row[0] = S[i].x;
            if (left > 1) row[1] = S[i].y;
            if (left > 2) row[2] = S[i].z;
            if (left > 3) row[3] = S[i].w;
        }
    }
}

/* The sums that a row needs, each left in shared memory by its warp. */
template <int KT, bool ERASES, bool QUERIES, int ROWS>
static __device__ inline void sum_channels(token_shared<KT> &shared, const float4 (&channel)[KT], int group,
                                           const float4 (&S)[ROWS]) {
    float4 erased = make_float4(0, 0, 0, 0), read = erased;
    float query_write = 0;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const float4 x = channel[group + i * ROW_GROUPS];
        if (ERASES) multiply_add(x.x, S[i], erased);
        if (QUERIES) multiply_add(x.z * x.w, S[i], read);
        if (QUERIES) query_write = fmaf(x.w, x.y, query_write);
    }
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (ERASES) erased = sum_rows(erased);
    if (QUERIES) read = sum_rows(read);
    if (QUERIES) query_write = sum_rows(query_write);
    if (lane >= COLUMN_GROUPS) return;
    if (ERASES) shared.erased[warp][lane] = erased;
    if (QUERIES) shared.read[warp][lane] = read;
    if (QUERIES && lane == 0) shared.query_write[warp] = query_write;
}

/* Where a block stands. */
typedef struct {
    int64_t sequence, begin, tokens;
    int value_head, key_head, column, group;
    bool whole; /* states are read and written 16 bytes at a time */
} place;

/* The diagonal scan's part of a token: this thread's channels of B or of the Sherman-Morrison key, and key . (B key), which all
 * threads return; A moves on. */
template <typename T, int KT, int CHANNELS>
static __device__ inline float pass_scan(const dr_cuda_rows &rows, const place &at, int64_t token, token_shared<KT> &shared,
                                         float (&a)[CHANNELS], float (&squash)[CHANNELS], float (&morrison)[CHANNELS]) {
    const bool needs_key_dot = rows.normalizer != DR_NORMALIZER_NONE;
    const bool needs_morrison = rule_writes(rows, DR_WRITE_SHERMAN_MORRISON);
    float key_dot = 0, morrison_dot = 0;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
        const int d = threadIdx.x + c * THREADS;
        if (d >= rows.key_size) continue;
        const float before = a[c];
        a[c] = scan_step_at<T>(rows, token, at.key_head, d, before);
        const scan_channel made = scan_channel_at<T>(rows, token, at.key_head, d, before, a[c]);
        squash[c] = made.squash;
        morrison[c] = made.m;
        key_dot += made.key_dot;
        morrison_dot += made.morrison;
    }
    if (!needs_key_dot && !needs_morrison) return 0;
    key_dot = dr_warp_sum(key_dot);
    morrison_dot = dr_warp_sum(morrison_dot);
    __syncthreads(); /* the sums of the token before have been read */
    if (threadIdx.x % 32 == 0) {
        shared.key_dot[threadIdx.x / 32] = key_dot;
        shared.morrison[threadIdx.x / 32] = morrison_dot;
    }
    __syncthreads();
    if (needs_morrison) {
        const float factor = 1 / (1 + sum_warps(shared.morrison));
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) morrison[c] *= factor;
    }
    return sum_warps(shared.key_dot);
}

/* Makes this thread's channels of a row; returns its part of r . w. */
template <typename T, int KT, int CHANNELS>
static __device__ inline float make_channels(const dr_cuda_rows &rows, const place &at, int64_t token, int step, float alpha,
                                             const float (&squash)[CHANNELS], const float (&morrison)[CHANNELS],
                                             const float (&query)[CHANNELS], float4 (&channel)[KT]) {
    const dr_row &row = dr_rule_row(rows, step);
    const float lambda = dr_input_scalar(rows, DR_INPUT_LAMBDA, token, 0, at.value_head);
    const bool last = step == rows.steps - 1, undecayed = dr_row_undecayed(rows, step);
    float dot = 0;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
        const int d = threadIdx.x + c * THREADS;
        float4 x = make_float4(0, 0, 0, 0);
        if (d < rows.key_size) {
            key_channel keys = key_channel_at<T>(rows, row, token, dr_step_index(rows, step), at.key_head, at.value_head, d,
                                                 squash[c], morrison[c]);
            const dr_map_keys pointers = key_channel_pointers(keys);
            x.x = dr_map_read(row.read, &pointers, lambda, 0);
            x.y = dr_map_write(row.write, &pointers, x.x, 0);
            dot = fmaf(x.x, x.y, dot);
            x.z = step > 0             ? 1.0f
                  : rows.channel_decay ? expf(channel_at<float>(rows, DR_INPUT_LOG_DECAY, token, 0, at.value_head, d))
                                       : alpha;
            if (!undecayed) x.x *= x.z;
            if (last) x.w = query[c];
        }
        if (d < KT) channel[d] = x;
    }
    return dot;
}

template <typename T, int KT>
static __global__ void __launch_bounds__(THREADS, KT <= 128 ? 4 : 2) pass_tokens(const __grid_constant__ dr_cuda_tokens call) {
    constexpr int ROWS = KT / ROW_GROUPS, CHANNELS = (KT + THREADS - 1) / THREADS;
    __shared__ token_shared<KT> shared;
    const dr_cuda_rows &rows = call.rows;
    const int K = rows.key_size, V = rows.value_size, HV = rows.value_heads;
    const int slices = (V + COLUMNS - 1) / COLUMNS, column_group = threadIdx.x % COLUMN_GROUPS;
    const int64_t head = blockIdx.x / slices;
    place at;
    at.sequence = head / HV;
    at.value_head = (int)(head % HV);
    at.key_head = at.value_head / rows.group;
    at.column = (int)(blockIdx.x % slices) * COLUMNS + 4 * column_group;
    at.group = threadIdx.x / COLUMN_GROUPS;
    at.begin = sequence_begin(call.layout, at.sequence);
    at.tokens = sequence_begin(call.layout, at.sequence + 1) - at.begin;
    at.whole = call.whole;
    const int64_t size = (int64_t)K * V, slot = call.from ? call.from[at.sequence] : at.sequence;
    if (slot < 0) return;

    float4 S[ROWS];
    if (call.initial) {
        load_state(call.initial + (slot * HV + at.value_head) * size, K, V, at.group, at.column, at.whole, S);
    } else {
#pragma unroll
        for (int i = 0; i < ROWS; i++) S[i] = make_float4(0, 0, 0, 0);
    }
    float a[CHANNELS], squash[CHANNELS], morrison[CHANNELS], query[CHANNELS];
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
        const int d = threadIdx.x + c * THREADS;
        squash[c] = morrison[c] = query[c] = a[c] = 0;
        if (rows.diagonal_scan && call.initial_scan && d < K)
            a[c] = call.initial_scan[(slot * rows.key_heads + at.key_head) * K + d];
    }
    int turn = 0;
    for (int64_t t = 0; t < at.tokens; t++) {
        const int64_t token = at.begin + t;
        if (call.saved && t % call.chunk == 0) {
            const int64_t kept = at.begin / call.chunk + at.sequence + t / call.chunk;
            store_state(call.saved + (kept * HV + at.value_head) * size, K, V, at.group, at.column, at.whole, S);
        }
        const float alpha = dr_row_alpha(rows, token, at.value_head);
        float key_dot = 0;
        if (rows.diagonal_scan) key_dot = pass_scan<T>(rows, at, token, shared, a, squash, morrison);
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) {
            const int d = threadIdx.x + c * THREADS;
            if (d < K) query[c] = query_channel_at<T>(rows, token, at.key_head, d, a[c]);
        }
        for (int step = 0; step < rows.steps; step++, turn ^= 1) {
            const dr_row &row = dr_rule_row(rows, step);
            const bool erases = row.read != DR_READ_NONE, last = step == rows.steps - 1;
            float dot = make_channels<T>(rows, at, token, step, alpha, squash, morrison, query, shared.channel[turn]);
            dr_map_gain_inputs inputs = dr_row_gain_inputs(rows, token, step, at.key_head, at.value_head, 0);
            inputs.key_dot = key_dot;
            float z[4];
            const dr_row_gains one = {1, 1, 1};
            dr_row_value<T, 4>(rows, token, step, at.value_head, one, at.column, z);
            if (dr_row_needs_dot(rows, step)) {
                dot = dr_warp_sum(dot);
                if (threadIdx.x % 32 == 0) shared.dot[turn][threadIdx.x / 32] = dot;
            }
            __syncthreads();
            if (dr_row_needs_dot(rows, step)) inputs.dot = sum_warps(shared.dot[turn]);
            const float base = dr_map_base_gain(row.gain, rows.gain_eps, &inputs);
            const float factor = dr_map_normalizer(dr_row_normalizer(rows, step), &inputs), gain = base * factor;
            const float4(&channel)[KT] = shared.channel[turn];
            if (erases && last)
                sum_channels<KT, true, true>(shared, channel, at.group, S);
            else if (erases)
                sum_channels<KT, true, false>(shared, channel, at.group, S);
            else if (last)
                sum_channels<KT, false, true>(shared, channel, at.group, S);
            if (erases || last) __syncthreads();
            const float value = row.value == DR_VALUE_GAIN ? gain : factor;
            float4 u = make_float4(z[0] * value, z[1] * value, z[2] * value, z[3] * value);
            if (erases) multiply_add(-gain, sum_warps(shared.erased, column_group), u);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const float4 x = channel[at.group + i * ROW_GROUPS];
                S[i] = make_float4(fmaf(x.y, u.x, x.z * S[i].x), fmaf(x.y, u.y, x.z * S[i].y), fmaf(x.y, u.z, x.z * S[i].z),
                                   fmaf(x.y, u.w, x.z * S[i].w));
            }
            if (!last || at.group != 0 || at.column >= V) continue;
            float4 out = sum_warps(shared.read, column_group);
            multiply_add(sum_warps(shared.query_write), u, out);
            const float o[4] = {rows.scale * out.x, rows.scale * out.y, rows.scale * out.z, rows.scale * out.w};
            dr_store_lane<T, 4>((T *)call.o + (token * HV + at.value_head) * V + at.column, V - at.column, call.whole_output,
                                o);
        }
        if (!call.to) continue;
        const int64_t kept = call.to[at.sequence * at.tokens + t];
        if (kept >= 0) store_state(call.final + (kept * HV + at.value_head) * size, K, V, at.group, at.column, at.whole, S);
    }
    if (call.final && !call.to)
        store_state(call.final + (slot * HV + at.value_head) * size, K, V, at.group, at.column, at.whole, S);
}

/* A along the tokens, one channel a thread: after the kernel above, which reads the initial A that the final one may replace.
 */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    pass_scan_states(const __grid_constant__ dr_cuda_tokens call, int64_t channels) {
    const dr_cuda_rows &rows = call.rows;
    const int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (index >= channels) return;
    const int K = rows.key_size, H = rows.key_heads, d = (int)(index % K), key_head = (int)(index / K % H);
    const int64_t sequence = index / K / H, begin = sequence_begin(call.layout, sequence);
    const int64_t tokens = sequence_begin(call.layout, sequence + 1) - begin;
    const int64_t slot = call.from ? call.from[sequence] : sequence;
    if (slot < 0) return;
    float a = call.initial_scan ? call.initial_scan[(slot * H + key_head) * K + d] : 0;
    for (int64_t t = 0; t < tokens; t++) {
        if (call.saved_scan && t % call.chunk == 0)
            call.saved_scan[((begin / call.chunk + sequence + t / call.chunk) * H + key_head) * K + d] = a;
        a = scan_step_at<T>(rows, begin + t, key_head, d, a);
        if (!call.to) continue;
        const int64_t kept = call.to[sequence * tokens + t];
        if (kept >= 0) call.final_scan[(kept * H + key_head) * K + d] = a;
    }
    if (call.final_scan && !call.to) call.final_scan[(slot * H + key_head) * K + d] = a;
}

template <typename T> static dr_status launch_tokens(const dr_cuda *gpu, const dr_cuda_tokens *call) {
    const dr_cuda_rows *rows = &call->rows;
    const int64_t slices = (rows->value_size + COLUMNS - 1) / COLUMNS;
    const int64_t sizes[] = {call->layout.sequences, rows->value_heads, slices};
    unsigned blocks;
    DR_TRY(dr_cuda_grid(sizes, 3, "pass_tokens", &blocks));
    if (rows->key_size <= 64)
        pass_tokens<T, 64><<<blocks, THREADS, 0, gpu->stream>>>(*call);
    else if (rows->key_size <= 128)
        pass_tokens<T, 128><<<blocks, THREADS, 0, gpu->stream>>>(*call);
    else
        pass_tokens<T, 256><<<blocks, THREADS, 0, gpu->stream>>>(*call);
    DR_CUDA_LAUNCHED("pass_tokens");
    if (!rows->diagonal_scan || !(call->final_scan || call->saved_scan)) return DR_OK;
    const int64_t channels = call->layout.sequences * rows->key_heads * rows->key_size;
    const int64_t scan_blocks = (channels + THREADS - 1) / THREADS;
    DR_TRY(dr_cuda_grid(&scan_blocks, 1, "pass_scan_states", &blocks));
    pass_scan_states<T><<<blocks, THREADS, 0, gpu->stream>>>(*call, channels);
    DR_CUDA_LAUNCHED("pass_scan_states");
    return DR_OK;
}

dr_status dr_cuda_tokens_forward(const dr_cuda *gpu, dr_dtype storage, const dr_cuda_tokens *call) {
    DR_CUDA_STORAGE(storage, T, return launch_tokens<T>(gpu, call));
    return DR_OK;
}
