/* The state of a value head back through its tokens, a block for 32 columns at a time: the threads share it as in tokens.cu.
 *
 *     replay    the rows of a chunk forward from the kept state, keeping S before each row, u and e
 *     back      o = scale S^T q:      dq = scale S d_o             dS += scale q d_o^T
 *               S' = D + w u^T:       dw = dS u                    du = dS^T w
 *               u = z - c e:          dz = du, dc = -e . du        de = -c du
 *               e = r^T D (or r^T S): dr = D de (or S de)          dD = dS + r de^T (undecayed: dS)
 *               D = alpha S:          alpha dalpha = alpha S dD    dS = alpha dD (undecayed: + r de^T)
 *
 * Sums over K are made as in the forward; those over the 32 columns by shuffles over the 8 lanes that share a row of the state.
 * A block takes several heads in turn where there are more of them than replays. */
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/tokens/tokens_back.h"
#include "backends/cuda/tokens/tokens_pass.cuh"

static __device__ inline float dot4(float4 x, float4 y) {
    return fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, x.w * y.w)));
}

/* Over the eight lanes of a warp that hold the same rows. */
static __device__ inline float sum_columns(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    x += __shfl_xor_sync(0xffffffffu, x, 2);
    return x + __shfl_xor_sync(0xffffffffu, x, 4);
}

/* This block's replay. */
typedef struct {
    float4 *state;  /* [chunk steps][ROWS][THREADS] */
    float *row;     /* [chunk steps][2][32] */
    float *scan;    /* [chunk][256] */
    float4 *parked; /* [ROWS][THREADS] */
} replay_memory;

template <int ROWS> static __device__ inline void park_state(float4 *to, const float4 (&S)[ROWS]) {
    DR_UNROLL (i, ROWS) to[i * THREADS + threadIdx.x] = S[i];
}

template <int ROWS> static __device__ inline void unpark_state(const float4 *from, float4 (&S)[ROWS]) {
    DR_UNROLL (i, ROWS) S[i] = from[i * THREADS + threadIdx.x];
}

/* A chunk forward from S and a, which move to its end. */
template <typename T, int KT, int ROWS, int CHANNELS>
static __device__ inline void replay_chunk(const dr_cuda_rows &rows, const place &at, int64_t first, int tokens,
                                           const replay_memory &memory, token_shared<KT> &shared, int &turn, float4 (&S)[ROWS],
                                           float (&a)[CHANNELS]) {
    float squash[CHANNELS], morrison[CHANNELS], query[CHANNELS];
    DR_UNROLL (c, CHANNELS) squash[c] = morrison[c] = query[c] = 0;
    for (int t = 0; t < tokens; t++) {
        const int64_t token = at.begin + first + t;
        const float alpha = dr_row_alpha(rows, token, at.value_head);
        float key_dot = 0;
        if (rows.diagonal_scan) {
            DR_UNROLL (c, CHANNELS)
                if (threadIdx.x + c * THREADS < 256) memory.scan[t * 256 + threadIdx.x + c * THREADS] = a[c];
            key_dot = pass_scan<T>(rows, at, token, shared.made, a, squash, morrison);
        }
        for (int step = 0; step < rows.steps; step++, turn ^= 1) {
            const int64_t row = (int64_t)t * rows.steps + step;
            const row_operands made =
                make_row<T>(rows, at, token, step, turn, alpha, key_dot, squash, morrison, query, shared.made);
            DR_UNROLL (i, ROWS) memory.state[(row * ROWS + i) * THREADS + threadIdx.x] = S[i];
            const row_pass pass = pass_row(rows, at, step, turn, made, shared, S);
            if (at.group != 0) continue;
            float4 *kept = reinterpret_cast<float4 *>(memory.row + row * 2 * COLUMNS) + threadIdx.x;
            kept[0] = pass.update;
            kept[COLUMN_GROUPS] = pass.erased;
        }
    }
}

/* Where the block's parts of a row, of a token, go: element k. */
typedef struct {
    float *read, *write, *query, *decay, *gain;
} parts;

/* A row back: dS from that of the state after it to that of the state before it. d_o: of its token, this thread's columns, if
 * the row is the last of it. */
template <int KT, int ROWS>
static __device__ inline float4 row_back(const dr_cuda_rows &rows, const place &at, int step, int turn, float gain, float4 d_o,
                                         const float4 *state, float4 update, float4 erased, const parts &to,
                                         token_shared<KT> &shared, float4 (&dS)[ROWS]) {
    constexpr int UNROLLED = KT <= 128 ? ROWS : 1; /* 16 rows of dS do not fit in registers beside the rest */
    const bool erases = dr_row_reads(rows, step), last = step == rows.steps - 1, undecayed = dr_row_undecayed(rows, step);
    const bool decays = step == 0 && to.decay;
    const int lane = threadIdx.x % 32, column_group = threadIdx.x % COLUMN_GROUPS;
    const float4(&channel)[KT] = shared.made.channel[turn];
    float4 d_update = make_float4(0, 0, 0, 0);
#pragma unroll UNROLLED
    for (int i = 0; i < ROWS; i++) {
        const float4 x = channel[at.group + i * ROW_GROUPS];
        if (last) multiply_add(rows.scale * x.w, d_o, dS[i]);
        multiply_add(x.y, dS[i], d_update);
    }
    d_update = sum_rows(d_update);
    if (lane < COLUMN_GROUPS) shared.sums.erased[threadIdx.x / 32][lane] = d_update;
    __syncthreads();
    d_update = sum_warps(shared.sums.erased, column_group);
    const float4 d_erased = make_float4(-gain * d_update.x, -gain * d_update.y, -gain * d_update.z, -gain * d_update.w);
    if (erases && to.gain) {
        const float d_gain = -sum_columns(dot4(erased, d_update));
        if (threadIdx.x == 0) *to.gain = d_gain;
    }
#pragma unroll UNROLLED
    for (int i = 0; i < ROWS; i++) {
        const int k = at.group + i * ROW_GROUPS;
        const float4 x = channel[k], S = state[i * THREADS + threadIdx.x];
        const bool writes = column_group == 0 && k < rows.key_size;
        float d_write = sum_columns(dot4(dS[i], update));
        if (writes) to.write[k] = d_write;
        if (last) {
            const float4 after = make_float4(fmaf(x.y, update.x, x.z * S.x), fmaf(x.y, update.y, x.z * S.y),
                                             fmaf(x.y, update.z, x.z * S.z), fmaf(x.y, update.w, x.z * S.w));
            const float d_query = rows.scale * sum_columns(dot4(after, d_o));
            if (writes) to.query[k] = d_query;
        }
        const float memory = erases ? sum_columns(dot4(S, d_erased)) : 0;
        if (writes && erases) to.read[k] = undecayed ? memory : x.z * memory;
        if (decays) {
            float d_decay = x.z * sum_columns(dot4(S, dS[i]));
            if (erases && !undecayed) d_decay = fmaf(x.x, memory, d_decay);
            if (writes) to.decay[k] = d_decay;
        }
        dS[i] = make_float4(x.z * dS[i].x, x.z * dS[i].y, x.z * dS[i].z, x.z * dS[i].w);
        if (erases) multiply_add(x.x, d_erased, dS[i]);
    }
    return d_update;
}

/* The parts of a row of a slice. */
static __device__ inline parts parts_of(const dr_cuda_tokens_back &call, int64_t token, int step, int value_head, int slice) {
    const dr_cuda_rows &rows = call.forward.rows;
    const int64_t HV = rows.value_heads, K = rows.key_size, tokens = call.forward.layout.rows;
    const int64_t row = ((slice * tokens + token) * rows.steps + step) * HV + value_head;
    const int64_t of_token = (slice * tokens + token) * HV + value_head;
    parts to;
    to.read = call.d_read ? call.d_read + row * K : NULL;
    to.write = call.d_write + row * K;
    to.query = call.d_query + of_token * K;
    to.decay = call.d_decay ? call.d_decay + of_token * K : NULL;
    to.gain = call.d_gain ? call.d_gain + row : NULL;
    return to;
}

template <typename T, int KT>
static __global__ void __launch_bounds__(THREADS, KT <= 128 ? 2 : 1)
    states_back(const __grid_constant__ dr_cuda_tokens_back call, unsigned places) {
    constexpr int ROWS = KT / ROW_GROUPS, CHANNELS = (KT + THREADS - 1) / THREADS;
    __shared__ token_shared<KT> shared;
    const dr_cuda_rows &rows = call.forward.rows;
    const int K = rows.key_size, V = rows.value_size, HV = rows.value_heads;
    const int64_t chunk = call.forward.chunk;
    replay_memory memory;
    memory.state = reinterpret_cast<float4 *>(call.replay) + blockIdx.x * (chunk * rows.steps + 1) * ROWS * THREADS;
    memory.parked = memory.state + chunk * rows.steps * ROWS * THREADS;
    memory.row = call.replay_row + blockIdx.x * chunk * rows.steps * 2 * COLUMNS;
    memory.scan = call.replay_scan + blockIdx.x * chunk * 256;
    int turn = 0;
    for (unsigned index = blockIdx.x; index < places; index += gridDim.x) {
        const place at = place_of(call.forward, index, (unsigned)call.slices);
        const int slice = (int)(index % (unsigned)call.slices), left = V - at.column;
        const int64_t state = state_at(rows, at.sequence, at);
        float4 dS[ROWS];
        clear_state(dS);
        if (call.d_final) load_state(call.d_final + state, K, V, at, dS);
        const int64_t chunks = (at.tokens + chunk - 1) / chunk;
        for (int64_t n = chunks - 1; n >= 0; n--) {
            const int64_t first = n * chunk, kept = at.begin / chunk + at.sequence + n;
            const int tokens = (int)(at.tokens - first < chunk ? at.tokens - first : chunk);
            float a[CHANNELS], squash[CHANNELS], morrison[CHANNELS], query[CHANNELS];
            {
                float4 S[ROWS];
                /* the two of them do not fit in registers beside each other */
                if (KT > 128) park_state(memory.parked, dS);
                load_state(call.forward.saved + state_at(rows, kept, at), K, V, at, S);
                load_scan(call.forward, call.forward.saved_scan, kept, at, a);
                replay_chunk<T>(rows, at, first, tokens, memory, shared, turn, S, a);
                if (KT > 128) unpark_state(memory.parked, dS);
            }
            __syncthreads(); /* what group 0 kept of the rows is read by all */
            DR_UNROLL (c, CHANNELS) squash[c] = morrison[c] = query[c] = 0;
            for (int t = tokens - 1; t >= 0; t--) {
                const int64_t token = at.begin + first + t;
                const float alpha = dr_row_alpha(rows, token, at.value_head);
                float key_dot = 0;
                if (rows.diagonal_scan) {
                    DR_UNROLL (c, CHANNELS) a[c] = memory.scan[t * 256 + threadIdx.x + c * THREADS];
                    key_dot = pass_scan<T>(rows, at, token, shared.made, a, squash, morrison);
                }
                make_query<T>(rows, at, token, a, query);
                float d_o[4];
                dr_load_lane<T, 4>((const T *)call.d_o + (token * HV + at.value_head) * V + at.column, left,
                                   call.forward.whole_output, d_o);
                for (int step = rows.steps - 1; step >= 0; step--, turn ^= 1) {
                    const int64_t row = (int64_t)t * rows.steps + step;
                    const float4 *kept_row = reinterpret_cast<const float4 *>(memory.row + row * 2 * COLUMNS);
                    const float4 update = kept_row[threadIdx.x % COLUMN_GROUPS];
                    const float4 erased = kept_row[COLUMN_GROUPS + threadIdx.x % COLUMN_GROUPS];
                    const row_operands made =
                        make_row<T>(rows, at, token, step, turn, alpha, key_dot, squash, morrison, query, shared.made);
                    const float4 d_update =
                        row_back(rows, at, step, turn, made.gains.gain, make_float4(d_o[0], d_o[1], d_o[2], d_o[3]),
                                 memory.state + row * ROWS * THREADS, update, erased,
                                 parts_of(call, token, step, at.value_head, slice), shared, dS);
                    if (at.group != 0) continue;
                    const float z[4] = {d_update.x, d_update.y, d_update.z, d_update.w};
                    float *to = call.d_value + ((token * rows.steps + step) * HV + at.value_head) * V + at.column;
                    dr_store_lane<float, 4>(to, left, false, z);
                }
            }
            __syncthreads(); /* the next chunk's replay overwrites what was read */
        }
        if (call.d_initial) store_state(call.d_initial + state, K, V, at, dS);
    }
}

template <typename T> static dr_status launch(const dr_cuda *gpu, const dr_cuda_tokens_back *call) {
    const dr_cuda_rows *rows = &call->forward.rows;
    const int64_t sizes[] = {call->forward.layout.sequences, rows->value_heads, call->slices};
    unsigned places;
    DR_TRY(dr_cuda_grid(sizes, 3, "states_back", &places));
    void (*kernel)(dr_cuda_tokens_back, unsigned) = rows->key_size <= 64    ? states_back<T, 64>
                                                    : rows->key_size <= 128 ? states_back<T, 128>
                                                                            : states_back<T, 256>;
    return dr_cuda_launch("states_back", kernel, {call->blocks}, THREADS, 0, gpu->stream, *call, places);
}

dr_status dr_cuda_states_backward(const dr_cuda *gpu, dr_dtype storage, const dr_cuda_tokens_back *call) {
    DR_CUDA_STORAGE(storage, T, return launch<T>(gpu, call));
    return DR_OK;
}
