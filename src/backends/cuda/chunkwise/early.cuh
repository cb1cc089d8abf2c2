/* Parts that begin early (plan.early): how many chunks before a part, from a state of zero, a state is made that is as good as
 * the true one; and in the reverse scan, behind a part, from a gradient of zero.
 *
 * What m chunks leave of a state S before them is Phi S, and of a gradient behind them Phi^T dS. Their rows bound |Phi| by the
 * product of alpha sigma, sigma the norm of I - c w r^T:
 *
 *     sigma^2 = larger root of s^2 - (2 - 2 p + n) s + (1 - p)^2      p = c w . r      n = c^2 |w|^2 |r|^2
 *
 * (docs/chunkwise.md), 1 where w = r and 0 <= p <= 2. A part begins as many chunks early as bring the bound to what the
 * recurrence takes as forgotten (plan.forgotten). Where w = B r of the diagonal scan, B lies between a and b, and p = c b
 * |r|^2, n = p^2 (a + b)^2 / (4 a b) give the most that sigma can be; A has to be forgotten, too. If one part of a
 * sequence's head would need more chunks than plan.early.most, the parts of all its heads are joined by what they do to a
 * state, or taken whole where the sequence is not cut else. So it depends on the data of the sequence, and on nothing else. */
#ifndef DR_CUDA_EARLY_CUH
#define DR_CUDA_EARLY_CUH

#include "backends/cuda/chunkwise/prepare_load.cuh"
#include "backends/cuda/chunkwise/scan.cuh"
#include "backends/cuda/device/beside.cuh"
#include "backends/cuda/diagonal/diagonal.cuh"

enum {
    EARLY_WARPS = 16,
    EARLY_THREADS = EARLY_WARPS * 32,
    EARLY_ROWS = DR_CUDA_CHUNK_ROWS / EARLY_WARPS, /* of a warp, of each chunk */
    EARLY_HALVES = 2 * DR_CUDA_EARLY_MOST,         /* of chunks, whose decays a warp adds up */
    EARLY_WARP_HALVES = EARLY_HALVES / EARLY_WARPS
};

/* never: nothing begins early whatever the data, which are not read. */
typedef struct {
    dr_cuda_chunk_plan plan;
    int32_t *early;
    bool never;
} dr_early_call;

/* ln sigma */
static __device__ inline float dr_early_growth(float p, float n) {
    const float sum = 2 - 2 * p + n, product = (1 - p) * (1 - p);
    return 0.5f * lanes_log_near(0.5f * (sum + sqrtf(fmaxf(sum * sum - 4 * product, 0))));
}

template <typename T> static __device__ inline float dr_early_dot(uint2 a, uint2 b) {
    const float2 x[2] = {dr_unpack(T(), a.x), dr_unpack(T(), a.y)}, y[2] = {dr_unpack(T(), b.x), dr_unpack(T(), b.y)};
    return fmaf(x[0].x, y[0].x, x[0].y * y[0].y) + fmaf(x[1].x, y[1].x, x[1].y * y[1].y);
}

/* Of a warp's rows of a chunk four channels a lane, and of one of the rows its scalars. */
typedef struct {
    uint2 key[EARLY_ROWS], query[EARLY_ROWS];
    float gain, lambda; /* 0: there is no such row */
} dr_early_rows;

/* The sum over a warp's rows of ln sigma. */
template <typename T, bool sums>
static __device__ inline float dr_early_grows(const dr_cuda_chunk_plan &plan, const dr_early_rows &x) {
    const dr_map_squash &squash = plan.rows.squash;
    float kk[EARLY_ROWS], kq[EARLY_ROWS], qq[EARLY_ROWS], grown;
    DR_UNROLL (i, EARLY_ROWS) {
        kk[i] = dr_early_dot<T>(x.key[i], x.key[i]);
        if (sums) kq[i] = dr_early_dot<T>(x.key[i], x.query[i]), qq[i] = dr_early_dot<T>(x.query[i], x.query[i]);
    }
    dr_warp_sums(kk);
    const float p = x.gain * kk[0];
    if constexpr (sums) {
        dr_warp_sums(kq), dr_warp_sums(qq);
        const float c = x.gain, dot = fmaf(x.lambda, kq[0], kk[0]);
        grown = dr_early_growth(c * dot, c * p * fmaf(x.lambda, fmaf(x.lambda, qq[0], 2 * kq[0]), kk[0]));
    } else if (plan.scan_inside) {
        const float a = expf(squash.offset - squash.factor), b = expf(squash.offset + squash.factor), most = b * p;
        grown = dr_early_growth(most, most * most * (a + b) * (a + b) / (4 * a * b));
    } else {
        grown = p >= 0 && p <= 2 ? 0 : lanes_log_near(fabsf(1 - p)); /* of a NaN a NaN, with which nothing begins early */
    }
    return dr_warp_sum(grown) * (1.0f * EARLY_ROWS / 32); /* a row's number is that of 32 / EARLY_ROWS lanes */
}

/* A lane's log decays of `count` halves of chunks, a row of each; 0 behind them. token, of a sequence that begins at `first`:
 * the row of the first half; apart: rows from there to the next one's. */
static __device__ inline void dr_early_decays(const dr_cuda_input &input, int head, int first, int length, int token, int apart,
                                              int count, float (&to)[EARLY_WARP_HALVES]) {
    const float *from = (const float *)input.at + dr_input_index(input, first + token, 0, head);
#pragma unroll
    for (int i = 0; i < EARLY_WARP_HALVES; i++, token += apart, from += apart * input.token)
        to[i] = i < count && token < length ? *from : 0;
}

/* A thread block for each boundary of a value head: before parts but the first, then behind plan.parts but the last. Two chunks
 * at a time: most often these will do, and so they are asked for with the decays of all. Little code, since it runs once. */
template <typename T, bool sums>
static __global__ void __launch_bounds__(EARLY_THREADS, 2) find_early(const __grid_constant__ dr_early_call call) {
    enum { at_once = 2 };
    __shared__ float2 decay[DR_CUDA_EARLY_MOST], forgets[DR_CUDA_EARLY_MOST]; /* of a chunk's halves */
    __shared__ __align__(16) float growth[DR_CUDA_EARLY_MOST + at_once][EARLY_WARPS];
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const unsigned boundaries = (unsigned)dr_cuda_early_count(&plan), chain = blockIdx.x / boundaries;
    const int which = (int)(blockIdx.x % boundaries), head = (int)(chain % (unsigned)plan.value_heads);
    const int warp = (int)(threadIdx.x / 32), lane = (int)(threadIdx.x % 32), length = (int)plan.length;
    const int sequence = (int)(chain / (unsigned)plan.value_heads), first = sequence * length;
    const int behind = which - (plan.early.parts - 1); /* from 0 on: of the reverse scan's parts */
    const int boundary = behind >= 0 ? (behind + 1) * plan.part_chunks : (which + 1) * plan.early.chunks;
    /* chunks to where the state is given, and how many there may be */
    const int edge = behind < 0 ? boundary : boundary < plan.sequence_chunks ? plan.sequence_chunks - boundary : 0;
    const int most = edge < plan.early.most ? edge : plan.early.most;
    const auto chunk_of = [&](int i) { return behind >= 0 ? boundary + i : boundary - 1 - i; };
    const int key_head = head / rows.group, channel = dr_lane_first<4>(), own = lane / (32 / EARLY_ROWS);
    const dr_source reader = dr_reader_source(rows), queries = dr_source_of(rows.input[DR_INPUT_QUERY]);
    const dr_cuda_input &gains = rows.input[rows.row[0].gain];
    const bool gained = rows.row[0].gains != DR_GAINS_ONE, scanned = !sums && plan.scan_inside && behind < 0;
    if (call.never) { /* vectors may lie anywhere */
        if (threadIdx.x == 0) call.early[blockIdx.x] = -1, *dr_early_flag(plan, call.early, sequence, head) = 0;
        return;
    }
    dr_beside_admit();
    if (blockIdx.x == 0 && threadIdx.x == 0) *dr_early_ended(plan, call.early) = 0;
    float fade[EARLY_WARP_HALVES], forget[EARLY_WARP_HALVES];
    {
        const int token = chunk_of(warp / 2) * DR_CUDA_CHUNK_ROWS + warp % 2 * 32 + lane;
        const int apart = EARLY_WARPS / 2, count = (most - warp / 2 + apart - 1) / apart;
        const auto load = [&](dr_input which, float(&to)[EARLY_WARP_HALVES]) {
            dr_early_decays(rows.input[which], head, first, length, token, (behind >= 0 ? apart : -apart) * DR_CUDA_CHUNK_ROWS,
                            count, to);
        };
        load(DR_INPUT_LOG_DECAY, fade);
        if (scanned) load(dr_diagonal_decay_input(rows), forget);
    }
    float bound = 0, kept = scanned ? 0 : plan.forgotten;
    int count = 0;
#pragma unroll 1
    while (count < most && !(bound <= plan.forgotten && kept <= plan.forgotten)) {
        dr_early_rows x[at_once];
        DR_UNROLL (c, at_once) {
            const int chunk = chunk_of(count + c < most ? count + c : count);
            const int row = chunk * DR_CUDA_CHUNK_ROWS + warp * EARLY_ROWS, left = length - row;
            const T *key = (const T *)reader.at + (int64_t)(first + row) * reader.token + key_head * reader.head + channel;
            const T *query = (const T *)queries.at + (int64_t)(first + row) * queries.token + key_head * queries.head + channel;
            DR_UNROLL (i, EARLY_ROWS) {
                const bool there = i < left && channel < rows.key_size;
                x[c].key[i] = there ? *(const uint2 *)(key + i * reader.token) : make_uint2(0, 0);
                if (sums) x[c].query[i] = there ? *(const uint2 *)(query + i * queries.token) : make_uint2(0, 0);
            }
            x[c].gain = own >= left ? 0
                        : gained    ? ((const float *)gains.at)[dr_input_index(gains, first + row + own, 0, head)]
                                    : 1;
            x[c].lambda = sums && own < left ? dr_input_scalar(rows, DR_INPUT_LAMBDA, first + row + own, 0, head) : 0;
        }
        if (count == 0) {
            const auto put = [&](float(&of)[EARLY_WARP_HALVES], float2 *to) {
                dr_warp_sums(of);
                if (lane % (32 / EARLY_WARP_HALVES) == 0)
                    ((float *)to)[lane / (32 / EARLY_WARP_HALVES) * EARLY_WARPS + warp] = of[0];
            };
            put(fade, decay);
            if (scanned) put(forget, forgets);
        }
        DR_UNROLL (c, at_once) {
            const float grown = dr_early_grows<T, sums>(plan, x[c]);
            if (lane == 0) growth[count + c][warp] = grown;
        }
        __syncthreads();
        if (count == 0) {
            float least = 0; /* without what rows add, which is no less than 0 */
            for (int i = 0; i < most && !(least <= plan.forgotten); i++) least += decay[i].x + decay[i].y;
            if (!(least <= plan.forgotten)) break;
        }
        for (int end = count + at_once; count < end && count < most && !(bound <= plan.forgotten && kept <= plan.forgotten);
             count++) {
            bound += decay[count].x + decay[count].y;
            if (scanned) kept += forgets[count].x + forgets[count].y;
            const float4 *more = (const float4 *)growth[count];
            DR_UNROLL (i, EARLY_WARPS / 4) bound += more[i].x + more[i].y + (more[i].z + more[i].w);
        }
    }
    if (!(bound <= plan.forgotten && kept <= plan.forgotten)) count = most == edge ? edge : -1;
    if (threadIdx.x == 0) call.early[blockIdx.x] = count;
}

#endif
