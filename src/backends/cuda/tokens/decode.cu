/* One token of each sequence, from a state to a state, in place or not: decoding. What bounds it is memory, which sees each
 * state once in and once out.
 *
 * Rules of one row that writes its key, on heads of 128 by 128, have a kernel of their own, compiled for what they read and
 * whether they decay by channel (decode_row): with branches for every rule the loads come later, and what is asked for late is
 * not hidden. A block of 256 threads takes 64 columns of a state, asks at once for the token's inputs and for its part of the
 * state, makes the keys while that comes, and ends with its stores: nothing stays, nothing is handed over, and of such short
 * blocks three a multiprocessor keep memory busy. A warp's accesses are two rows of 256 bytes.
 *
 * Every other rule has the rows of tokens_pass.cuh (decode_token), or, for many sequences on Hopper, tokens_many.cu. Sums are
 * of the same pairs everywhere: rows k, k + 16, .. of a thread, then 16 groups of rows, so that a token gives the same bits
 * whichever kernel takes it. */
#include "backends/cuda/device/beside.cuh"
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/tokens/tokens_pass.cuh"

/* ---- one row that writes its key ------------------------------------------------------------------------------------- */

constexpr int SIZE = 128; /* K, V */
constexpr int TILE = 64, TILE_GROUPS = TILE / 4, SLICES = SIZE / TILE;
constexpr int TILE_THREADS = ROW_GROUPS * TILE_GROUPS, TILE_WARPS = TILE_THREADS / 32;

typedef struct {
    float4 channel[SIZE]; /* as in made_rows */
    float4 erased[TILE_WARPS][TILE_GROUPS], read[TILE_WARPS][TILE_GROUPS];
    float query_write[TILE_WARPS];
} row_shared;

static __device__ inline float4 plus(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

static __device__ inline float plus(float a, float b) {
    return a + b;
}

/* The parts of eight warps, `stride` apart, in pairs. */
template <typename F> static __device__ inline F sum_eight(const F *part, int stride) {
    static_assert(TILE_WARPS == 8, "parts");
    const F low = plus(plus(part[0], part[stride]), plus(part[2 * stride], part[3 * stride]));
    part += 4 * stride;
    return plus(low, plus(plus(part[0], part[stride]), plus(part[2 * stride], part[3 * stride])));
}

/* Over the two lanes of a warp that hold the same columns. */
static __device__ inline float sum_halves(float x) {
    return x + __shfl_xor_sync(0xffffffffu, x, TILE_GROUPS);
}
static __device__ inline float4 sum_halves(float4 x) {
    return make_float4(sum_halves(x.x), sum_halves(x.y), sum_halves(x.z), sum_halves(x.w));
}

template <typename T>
static __device__ inline float4 columns_at(const dr_cuda_rows &rows, dr_input i, int64_t token, int value_head, int column) {
    const dr_cuda_input &input = rows.input[i];
    float x[4];
    dr_load_lane<T, 4>((const T *)input.at + dr_input_index(input, token, 0, value_head) + column, 4, true, x);
    return make_float4(x[0], x[1], x[2], x[3]);
}

template <typename T, dr_reads READ, bool CHANNEL_DECAY>
static __global__ void __launch_bounds__(TILE_THREADS, 3) decode_row(const __grid_constant__ dr_cuda_tokens call) {
    constexpr int ROWS = SIZE / ROW_GROUPS;
    constexpr bool READS = READ != DR_READS_NONE;
    __shared__ row_shared shared;
    const dr_cuda_rows &rows = call.rows;
    const int thread = (int)threadIdx.x, warp = thread / 32, group = thread / TILE_GROUPS, lane = thread % TILE_GROUPS;
    const unsigned state = blockIdx.x / SLICES, HV = (unsigned)rows.value_heads;
    if (!call.from) /* a tile of a row is two lines */
        dr_prefetch(call.initial + (state * SIZE + thread / 2) * (int64_t)SIZE + (blockIdx.x % SLICES) * TILE +
                    thread % 2 * 32);
    dr_chain();
    const int64_t token = state / HV, slot = call.from ? call.from[token] : token;
    if (slot < 0) return;
    const int value_head = (int)(state % HV), key_head = value_head / rows.group;
    const int column = (int)(blockIdx.x % SLICES) * TILE + 4 * lane;

    dr_cuda_row row = rows.row[0];
    row.reads = READ, row.writes = DR_WRITES_TENSOR;
    dr_key_lanes<1> keys = {};
    float query = 0, factor_of_read = 0, log_decay = 0;
    if (thread < SIZE) {
        keys = key_channel_at<T>(rows, row, token, 0, key_head, value_head, thread, 0, 0);
        query = channel_at<T>(rows, rows.asked, token, 0, key_head, thread);
        factor_of_read = dr_read_factor(rows, row, token, value_head);
        if (CHANNEL_DECAY) log_decay = channel_at<float>(rows, DR_INPUT_LOG_DECAY, token, 0, value_head, thread);
        if (!CHANNEL_DECAY) log_decay = dr_input_scalar(rows, DR_INPUT_LOG_DECAY, token, 0, value_head);
    }
    const float gain = row.gains == DR_GAINS_INPUT ? dr_input_scalar(rows, row.gain, token, 0, value_head) : 1;
    float4 update = columns_at<T>(rows, DR_INPUT_VALUE, token, value_head, column);
    float4 gate = make_float4(1, 1, 1, 1);
    if (row.values == DR_VALUES_GATED) gate = columns_at<T>(rows, DR_INPUT_WRITE_GATE, token, value_head, column);
    const int64_t kept = call.to ? call.to[token] : slot, first = group * SIZE + column;
    const float *from = call.initial + (slot * HV + value_head) * (SIZE * SIZE) + first;
    float4 S[ROWS];
    DR_UNROLL (i, ROWS) S[i] = *reinterpret_cast<const float4 *>(from + i * ROW_GROUPS * SIZE);

    if (thread < SIZE) {
        const float read = dr_read_channel<1>(row, keys, factor_of_read, 0), alpha = expf(log_decay);
        shared.channel[thread] = make_float4(read * alpha, keys.write[0], alpha, query);
    }
    __syncthreads();
    channel_sums sums = sum_thread<READS, true>(shared.channel, group, S);
    if (READS) sums.erased = sum_halves(sums.erased);
    sums.read = sum_halves(sums.read);
    sums.query_write = sum_halves(sums.query_write);
    if (thread % 32 < TILE_GROUPS) {
        if (READS) shared.erased[warp][lane] = sums.erased;
        shared.read[warp][lane] = sums.read;
        if (lane == 0) shared.query_write[warp] = sums.query_write;
    }
    __syncthreads();
    const float factor = row.values == DR_VALUES_GAINED ? gain : 1;
    update = make_float4(update.x * gate.x * factor, update.y * gate.y * factor, update.z * gate.z * factor,
                         update.w * gate.w * factor);
    if (READS) multiply_add(-gain, sum_eight(&shared.erased[0][lane], TILE_GROUPS), update);
    if (group == 0) {
        float4 out = sum_eight(&shared.read[0][lane], TILE_GROUPS);
        multiply_add(sum_eight(shared.query_write, 1), update, out);
        const float o[4] = {rows.scale * out.x, rows.scale * out.y, rows.scale * out.z, rows.scale * out.w};
        dr_store_lane<T, 4>((T *)call.o + (token * HV + value_head) * SIZE + column, 4, true, o);
    }
    if (kept < 0) return;
    move_state(shared.channel, group, update, S);
    float *to = call.final + (kept * HV + value_head) * (SIZE * SIZE) + first;
    DR_UNROLL (i, ROWS) *reinterpret_cast<float4 *>(to + i * ROW_GROUPS * SIZE) = S[i];
}

/* Whether decode_row takes the call. */
static bool is_one_row(const dr_cuda_tokens *call) {
    const dr_cuda_rows *rows = &call->rows;
    const dr_cuda_row *row = &rows->row[0];
    return rows->steps == 1 && !row->undecayed && row->writes == DR_WRITES_TENSOR && row->gains != DR_GAINS_OF_DOT &&
           row->values != DR_VALUES_NONE && rows->asks == DR_ASKS_TENSOR && !rows->diagonal_scan && rows->key_size == SIZE &&
           rows->value_size == SIZE && rows->aligned && call->whole && call->whole_output;
}

template <typename T, bool CHANNEL_DECAY> static void (*choose_row(dr_reads reads))(dr_cuda_tokens) {
    switch (reads) {
#define DR_DECODE_FORM(name)                                                                                                   \
    case DR_READS_##name:                                                                                                      \
        return decode_row<T, DR_READS_##name, CHANNEL_DECAY>;
#include "backends/cuda/rows/instances.def"
    }
    return NULL;
}

template <typename T, bool CHANNEL_DECAY> static dr_status launch_row(const dr_cuda *gpu, const dr_cuda_tokens *call) {
    const int64_t sizes[] = {call->layout.sequences, call->rows.value_heads, SLICES};
    return dr_cuda_launch_when(gpu->hopper, "decode_row", choose_row<T, CHANNEL_DECAY>(call->rows.row[0].reads), sizes,
                               TILE_THREADS, 0, gpu->stream, *call);
}

template <typename T> static dr_status launch_row(const dr_cuda *gpu, const dr_cuda_tokens *call) {
    return call->rows.channel_decay ? launch_row<T, true>(gpu, call) : launch_row<T, false>(gpu, call);
}

/* ---- any rule -------------------------------------------------------------------------------------------------------- */

/* What the token reads is asked for at once, before the state. */
template <typename T, int KT>
static __global__ void __launch_bounds__(THREADS, KT <= 64    ? 5
                                                  : KT <= 128 ? 4
                                                              : 2) decode_token(const __grid_constant__ dr_cuda_tokens call) {
    constexpr int ROWS = KT / ROW_GROUPS, CHANNELS = (KT + THREADS - 1) / THREADS;
    __shared__ token_shared<KT> shared;
    const dr_cuda_rows &rows = call.rows;
    const int K = rows.key_size, V = rows.value_size;
    const place at = place_of(call, blockIdx.x, slices_of(rows));
    dr_chain();
    const int64_t slot = first_slot(call, at);
    if (slot < 0) return;
    prefetch_token(rows, at, at.sequence, (int)threadIdx.x / 32, WARPS);
    float4 S[ROWS];
    load_state(call.initial + state_at(rows, slot, at), K, V, at, S);
    float a[CHANNELS];
    load_scan(call, call.initial_scan, slot, at, a);
    const int64_t kept = call.to ? call.to[at.sequence] : slot;
    int turn = 0;
    pass_token<T>(call, at, at.sequence, turn, shared, S, a);
    if (kept >= 0) store_state(call.final + state_at(rows, kept, at), K, V, at, S);
}

template <typename T> static dr_status launch_token(const dr_cuda *gpu, const dr_cuda_tokens *call) {
    const int K = call->rows.key_size;
    const int64_t sizes[] = {call->layout.sequences, call->rows.value_heads, slices_of(call->rows)};
    void (*const kernel)(dr_cuda_tokens) = K <= 64    ? decode_token<T, 64>
                                           : K <= 128 ? decode_token<T, 128>
                                                      : decode_token<T, 256>;
    return dr_cuda_launch_when(gpu->hopper, "decode_token", kernel, sizes, THREADS, 0, gpu->stream, *call);
}

const char *dr_cuda_tokens_decode_kernel(const dr_cuda *gpu, const dr_cuda_tokens *call) {
    return is_one_row(call) ? "decode_row" : dr_cuda_tokens_are_many(gpu, call) ? "decode_many" : "decode_token";
}

dr_status dr_cuda_tokens_decode(const dr_cuda *gpu, dr_dtype storage, const dr_cuda_tokens *call) {
    if (is_one_row(call)) DR_CUDA_STORAGE(storage, T, return launch_row<T>(gpu, call));
    if (dr_cuda_tokens_are_many(gpu, call)) return dr_cuda_tokens_many(gpu, storage, call);
    DR_CUDA_STORAGE(storage, T, return launch_token<T>(gpu, call));
    return DR_OK;
}
