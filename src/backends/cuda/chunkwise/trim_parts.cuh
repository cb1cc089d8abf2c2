/* How much of a part the first pass has to take, where states decay: what chunks leave of a state before them is
 * Phi S, and of a gradient behind them Phi^T dS, and
 *
 *     |Phi| <= product of (max D + sum over rows of |c R~| |X|)
 *
 * over the chunks (docs/chunkwise.md, What a state forgets), of tensors that prepare has left, and rows that it reads. If the
 * last chunks of a part bring that to 2^-24, what float32 rounds, they do for the state behind it, from whatever state they
 * begin with; back the first ones do for the gradient before it; and nobody asks what the part does to a state. Both ends have
 * to, since a forward leaves to its backward what parts do. It depends on the sequence's data alone. */
#ifndef DR_CUDA_TRIM_PARTS_CUH
#define DR_CUDA_TRIM_PARTS_CUH

#include "backends/cuda/chunkwise/scan.cuh"
#include "backends/cuda/device/lanes.cuh"

enum {
    TRIM_THREADS = 1024,
    TRIM_SHARE = 256,                         /* threads that a chunk has, four for each row */
    TRIM_AT_ONCE = TRIM_THREADS / TRIM_SHARE, /* chunks */
    TRIM_MOST = TRIM_THREADS / 32             /* that may do: with more the first pass takes the whole part */
};

/* The larger one, or NaN. */
static __device__ inline float dr_trim_max(float a, float b) {
    return b > a || b != b ? b : a;
}

/* |x| |y| of a row, which four lanes share; y has `size` columns, a multiple of eight. */
template <typename T, int width> static __device__ inline float dr_trim_norms(const T *x, const T *y, int size) {
    float squares[2] = {};
#pragma unroll
    for (int i = 0; i < width / 32; i++) {
        const int at = (i * 4 + (int)(threadIdx.x % 4)) * 8;
        if (at >= size) continue;
        const uint4 of[2] = {*(const uint4 *)(x + at), *(const uint4 *)(y + at)};
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const unsigned words[4] = {of[j].x, of[j].y, of[j].z, of[j].w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float2 pair = dr_unpack(T(), words[e]);
                squares[j] = fmaf(pair.x, pair.x, fmaf(pair.y, pair.y, squares[j]));
            }
        }
    }
#pragma unroll
    for (int step = 1; step <= 2; step++)
#pragma unroll
        for (int j = 0; j < 2; j++) squares[j] += __shfl_xor_sync(0xffffffffu, squares[j], step);
    return sqrtf(squares[0]) * sqrtf(squares[1]);
}

/* A thread block for each end of a part of a head, the last chunks and the first ones. */
template <typename T, int width>
static __global__ void __launch_bounds__(TRIM_THREADS) trim_parts(const __grid_constant__ dr_scan_call call) {
    __shared__ float kept[TRIM_MOST];
    __shared__ __align__(16) float rows[TRIM_AT_ONCE][TRIM_SHARE / 32];
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_chunk_tensors &tensors = call.tensors;
    const bool first = blockIdx.x % 2;
    const dr_scan_place place = dr_scan_find(call, 0, blockIdx.x / 2);
    if (place.part >= place.parts || place.parts == 1) return;
    const dr_cuda_rows &inputs = plan.rows;
    const dr_source source = dr_reader_source(inputs);
    const bool known = !plan.reads || !plan.reader_direct || (inputs.steps == 1 && inputs.aligned);
    const bool wanted = first ? place.part > 0 : place.part + 1 < place.parts;
    const int warp = (int)(threadIdx.x / 32), lane = (int)(threadIdx.x % 32);
    const int chunks = place.end - place.begin, most = chunks < TRIM_MOST ? chunks : TRIM_MOST;
    const auto block_of = [&](int i) {
        return (place.slot + (first ? place.begin + i : place.end - 1 - i)) * plan.value_heads + place.head;
    };
    if (wanted && warp < most) {
        const float *keep = tensors.keep + block_of(warp) * width;
        float largest = 0;
#pragma unroll
        for (int i = 0; i < width / 32; i++)
            if (i * 32 + lane < plan.rows.key_size) largest = dr_trim_max(largest, keep[i * 32 + lane]);
#pragma unroll
        for (int step = 1; step < 32; step *= 2) largest = dr_trim_max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
        if (lane == 0) kept[warp] = largest;
    }
    __syncthreads();
    float bound = 0;
    int taken = 0;
    /* without what rows add, which is no less than 0 */
    if (wanted && !(known && dr_warp_sum(lane < most ? lanes_log_near(kept[lane]) : 0) <= DR_FORGOTTEN)) taken = -1;
    while (wanted && taken >= 0 && !(bound <= DR_FORGOTTEN)) {
        const int slot = warp / (TRIM_SHARE / 32), row = (int)(threadIdx.x % TRIM_SHARE / 4);
        if (plan.reads && taken + slot < most) {
            const int chunk = first ? place.begin + taken + slot : place.end - 1 - taken - slot;
            const int64_t block = block_of(taken + slot), at = (block * 64 + row) * width;
            const dr_chunk_place tokens = dr_chunk_of(plan, tensors.cu, place.sequence, chunk);
            const T *const read = !plan.reader_direct ? (const T *)tensors.reader + at
                                                      : (const T *)source.at + (tokens.first + row) * source.token +
                                                            place.head / inputs.group * source.head;
            const int size = !plan.reader_direct ? width : row < tokens.tokens ? inputs.key_size : 0;
            const float norms = dr_trim_norms<T, width>((const T *)tensors.exit + at, read, size);
            const float sum = dr_warp_sum(norms * fabsf(tensors.factors[block].erase[row]));
            if (lane == 0) rows[slot][warp % (TRIM_SHARE / 32)] = sum / 4; /* a row's number is that of four lanes */
        }
        __syncthreads();
        for (int i = 0; i < TRIM_AT_ONCE && taken < most && !(bound <= DR_FORGOTTEN); i++) {
            float left = kept[taken++];
            const float4 *more = (const float4 *)rows[i];
            for (int w = 0; w < TRIM_SHARE / 128 && plan.reads; w++) left += more[w].x + more[w].y + (more[w].z + more[w].w);
            bound += lanes_log_near(left);
        }
        /* if it goes on so, all that may be will not do */
        if (!(bound * most <= DR_FORGOTTEN * taken)) taken = -1;
        __syncthreads();
    }
    if (threadIdx.x == 0) (first ? tensors.trims[place.place].first : tensors.trims[place.place].last) = taken;
}

#endif
