/* How much of a part the first pass has to take, where states decay: what chunks leave of a state before them is Phi S, and of
 * a gradient behind them Phi^T dS, and over the chunks
 *
 *     |Phi| <= product of (max D + |X^T diag(c) R~|)
 *     |X^T diag(c) R~|^2 <= sum over i, j of c_i c_j (x_i . x_j) (r_i . r_j)      and <= (sum over i of |c_i x_i| |r_i|)^2
 *
 * (docs/chunkwise.md, What a state forgets), of tensors that prepare has left, and rows that it reads. If the last chunks of a
 * part bring that to plan.forgotten, they do for the state behind it, from whatever state they begin with; back the
 * first ones do for the gradient before it; and nobody asks what the part does to a state. Both ends have to, since a forward
 * leaves to its backward what parts do. It depends on the sequence's data alone. */
#ifndef DR_CUDA_TRIM_PARTS_CUH
#define DR_CUDA_TRIM_PARTS_CUH

#include "backends/cuda/chunkwise/scan.cuh"
#include "backends/cuda/device/fragments.cuh"
#include "backends/cuda/device/lanes.cuh"

enum {
    TRIM_THREADS = 512,
    TRIM_SHARE = 128,                         /* threads that a chunk has, a warp for 16 rows */
    TRIM_AT_ONCE = TRIM_THREADS / TRIM_SHARE, /* chunks */
    TRIM_MOST = 32                            /* that may do: with more the first pass takes the whole part */
};

/* The larger one, or NaN. */
static __device__ inline float dr_trim_max(float a, float b) {
    return b > a || b != b ? b : a;
}

/* Rows of a tensor that lie at one stride: `rows` of them are there, `size` columns, a multiple of eight; zeros otherwise. */
template <typename T> struct dr_trim_rows {
    const T *at;
    int64_t stride;
    int rows, size;
};

/* Inner products of a warp's 16 rows with 48, their own and the two blocks of 16 behind them in a circle. A lane has 16 bytes
 * of a row, so that what is contracted stands in another order, the same in both operands. */
template <typename T, int width>
static __device__ inline void dr_trim_products(const dr_trim_rows<T> &from, int first, float (&c)[6][4]) {
    const int g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    DR_UNROLL_BY (k, width, 32) {
        uint4 x[6];
        DR_UNROLL (n, 6) {
            const int row = (first + n * 8 + g) % 64, at = k + t * 8;
            const bool there = row < from.rows && at < from.size;
            x[n] = there ? *(const uint4 *)(from.at + row * from.stride + at) : make_uint4(0, 0, 0, 0);
        }
        DR_UNROLL (n, 6) {
            const unsigned low[4] = {x[0].x, x[1].x, x[0].y, x[1].y}, high[4] = {x[0].z, x[1].z, x[0].w, x[1].w};
            dr_multiply(T(), c[n], low, x[n].x, x[n].y);
            dr_multiply(T(), c[n], high, x[n].z, x[n].w);
        }
    }
}

/* What a warp's rows add to both bounds of |X^T diag(c) R~|, the first squared. Blocks one apart meet once, two apart twice. */
template <typename T, int width>
static __device__ inline float2 dr_trim_add(const dr_trim_rows<T> &exit, const dr_trim_rows<T> &reader, const float *erase,
                                            int first) {
    const int g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    float x[6][4] = {}, r[6][4] = {}, sums[2] = {};
    dr_trim_products<T, width>(exit, first, x);
    dr_trim_products<T, width>(reader, first, r);
    DR_UNROLL (n, 6)
        DR_UNROLL (e, 4) {
            const int i = g + e / 2 * 8, j = n * 8 + 2 * t + e % 2;
            const float scale = erase[first + i] * erase[(first + j) % 64], term = scale * x[n][e] * r[n][e];
            sums[0] += n / 2 == 1 ? 2 * term : term;
            if (i == j) sums[1] += sqrtf(fmaxf(term, 0));
        }
    return make_float2(dr_warp_sum(sums[0]), dr_warp_sum(sums[1]));
}

/* A thread block for each end of a part of a head, the last chunks and the first ones. */
template <typename T, int width>
static __global__ void __launch_bounds__(TRIM_THREADS) trim_parts(const __grid_constant__ dr_scan_call call) {
    __shared__ float kept[TRIM_MOST];
    __shared__ float2 rows[TRIM_AT_ONCE][TRIM_SHARE / 32];
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
    const auto chunk_of = [&](int i) { return first ? place.begin + i : place.end - 1 - i; };
    const auto block_of = [&](int i) { return (place.slot + chunk_of(i)) * plan.value_heads + place.head; };
    for (int chunk = warp; wanted && chunk < most; chunk += TRIM_THREADS / 32) {
        const float *keep = tensors.keep + block_of(chunk) * width;
        float largest = 0;
        DR_UNROLL (i, width / 32)
            if (i * 32 + lane < plan.rows.key_size) largest = dr_trim_max(largest, keep[i * 32 + lane]);
#pragma unroll
        for (int step = 1; step < 32; step *= 2) largest = dr_trim_max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
        if (lane == 0) kept[chunk] = largest;
    }
    __syncthreads();
    float bound = 0;
    int taken = 0;
    /* without what rows add, which is no less than 0 */
    if (wanted && !(known && dr_warp_sum(lane < most ? lanes_log_near(kept[lane]) : 0) <= plan.forgotten)) taken = -1;
    while (wanted && taken >= 0 && !(bound <= plan.forgotten)) {
        const int slot = warp / (TRIM_SHARE / 32), quarter = warp % (TRIM_SHARE / 32);
        if (plan.reads && taken + slot < most) {
            const int64_t block = block_of(taken + slot);
            const dr_chunk_place tokens = dr_chunk_of(plan, tensors.cu, place.sequence, chunk_of(taken + slot));
            const dr_trim_rows<T> exit = {(const T *)tensors.exit + block * 64 * width, width, 64, width};
            dr_trim_rows<T> reader = {(const T *)tensors.reader + block * 64 * width, width, 64, width};
            if (plan.reader_direct)
                reader = {(const T *)source.at + tokens.first * source.token + place.head / inputs.group * source.head,
                          source.token, tokens.tokens, (int)inputs.key_size};
            const float2 add = dr_trim_add<T, width>(exit, reader, tensors.factors[block].erase, quarter * 16);
            if (lane == 0) rows[slot][quarter] = add;
        }
        __syncthreads();
        for (int i = 0; i < TRIM_AT_ONCE && taken < most && !(bound <= plan.forgotten); i++) {
            float square = 0, sum = 0;
            for (int w = 0; w < TRIM_SHARE / 32 && plan.reads; w++) square += rows[i][w].x, sum += rows[i][w].y;
            /* what rounding may have taken from the products is at most 1e-5 of |x_i| |x_j| |r_i| |r_j| */
            const float rounded = fmaf(1e-5f * sum, sum, square),
                        least = rounded > sum * sum ? sum * sum : rounded; /* or NaN */
            bound += lanes_log_near(kept[taken++] + sqrtf(least));
        }
        /* if it goes on so, all that may be will not do */
        if (!(bound * most <= plan.forgotten * taken)) taken = -1;
        __syncthreads();
    }
    if (threadIdx.x == 0) (first ? tensors.trims[place.place].first : tensors.trims[place.place].last) = taken;
}

#endif
