/* Gradients of parameters that all rows share: sums over rows, the same bits in
 * every run.
 *
 * A block takes a stretch of rows and up to 32 loads of neighbouring columns.
 * Its warps take turns at the rows, where columns are few several rows a warp,
 * and are added up in order in shared memory. What the blocks of a stretch
 * leave is added to the gradients by a second kernel, in an order that the
 * number of stretches decides, which follows from the shape alone: it makes
 * some DR_COLUMN_BLOCKS blocks. */
#ifndef DR_CUDA_NETWORK_COLUMNS_CUH
#define DR_CUDA_NETWORK_COLUMNS_CUH

#include "backends/cuda/network/blocks.cuh"
#include "backends/cuda/network/vectors.cuh"

enum { DR_COLUMN_WARPS = 8, DR_COLUMN_THREADS = 32 * DR_COLUMN_WARPS, DR_COLUMN_BLOCKS = 1056, DR_LEAST_STRETCH = 64 };

static inline int64_t dr_stretch_of(int64_t rows, int64_t columns) {
    const int64_t tiles = dr_blocks_of(columns, 256), most = dr_blocks_of(DR_COLUMN_BLOCKS, tiles > 0 ? tiles : 1);
    const int64_t rows_each = dr_blocks_of(rows, most);
    return rows_each < DR_LEAST_STRETCH ? (int64_t)DR_LEAST_STRETCH : rows_each;
}

/* partial [stretches][K][columns]. f.add<N>(row, column, sums) adds what a row
 * has for N columns to K sums of each. lanes: that share a row, a power of two.
 */
template <int N, int K, typename F>
static __global__ void __launch_bounds__(DR_COLUMN_THREADS)
    dr_sum_columns(const __grid_constant__ F f, int64_t rows, int64_t columns, int64_t stretch, int lanes, float *partial) {
    __shared__ float sums[DR_COLUMN_WARPS][N][32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, tile = lanes * N, each = 32 / lanes;
    const int64_t tiles = (columns + tile - 1) / tile, part = blockIdx.x / tiles, begin = blockIdx.x % tiles * tile;
    const int64_t column = begin + lane % lanes * N, first = part * stretch;
    const int64_t end = first + stretch < rows ? first + stretch : rows;
    dr_floats<N> sum[K];
#pragma unroll
    for (int k = 0; k < K; k++) sum[k] = dr_same<N>(0);
#pragma unroll 2
    for (int64_t row = first + warp * each + lane / lanes; row < end && column < columns; row += DR_COLUMN_WARPS * each)
        f.template add<N>(row, column, sum);
    for (int k = 0; k < K; k++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N; i++) {
            float all = sum[k].at[i]; /* of the rows that lanes of the warp have */
            for (int apart = lanes; apart < 32; apart *= 2) all += __shfl_xor_sync(0xffffffff, all, apart);
            sums[warp][i][lane] = all;
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < tile; i += DR_COLUMN_THREADS) {
            const int of = i / lanes, from = i % lanes;
            const int64_t to = begin + from * N + of;
            float all = 0;
            for (int w = 0; w < DR_COLUMN_WARPS; w++) all += sums[w][of][from];
            if (to < columns) partial[(part * K + k) * columns + to] = all;
        }
    }
}

/* Where sums go: that of column c to at[c * step], or those of `fold`
 * neighbouring columns together to at[c / fold * step]. NULL: it is not wanted.
 */
typedef struct {
    float *at;
    int64_t step, fold;
} dr_column_target;

template <int K> struct dr_column_targets { dr_column_target of[K]; };

/* Blocks of a target: 32 columns each, whose stretches the warps take turns at.
 * Where columns are folded a block takes all of one element's, then of the
 * element so many blocks on. */
template <int K>
static __global__ void __launch_bounds__(DR_COLUMN_THREADS)
    dr_add_columns(const __grid_constant__ dr_column_targets<K> targets, int64_t columns, int64_t stretches, int each,
                   const float *partial) {
    __shared__ double sums[DR_COLUMN_THREADS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, k = (int)blockIdx.x / each;
    const dr_column_target target = targets.of[k];
    if (!target.at) return;
    partial += k * columns;
    if (target.fold > 1) {
        const int fold = (int)target.fold, count = (int)stretches * fold;
        for (int64_t element = blockIdx.x % each; element * fold < columns; element += each) {
            double sum = 0;
#pragma unroll 8
            for (int i = (int)threadIdx.x; i < count; i += DR_COLUMN_THREADS)
                sum += partial[(int64_t)(i / fold) * K * columns + element * fold + i % fold];
            sum = dr_join_threads<DR_COLUMN_THREADS>(sum, sums, [](double x, double y) { return x + y; });
            if (threadIdx.x == 0) target.at[element * target.step] += (float)sum;
        }
        return;
    }
    const int64_t column = (int64_t)(blockIdx.x % each) * 32 + lane;
    double sum = 0;
    if (column < columns) {
#pragma unroll 8
        for (int64_t part = warp; part < stretches; part += DR_COLUMN_WARPS) sum += partial[part * K * columns + column];
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (warp > 0 || column >= columns) return;
    for (int w = 1; w < DR_COLUMN_WARPS; w++) sum += sums[w * 32 + lane];
    target.at[column * target.step] += (float)sum;
}

template <int K>
static dr_status dr_run_add_columns(const dr_cuda *gpu, const dr_column_targets<K> &targets, int64_t columns, int64_t stretches,
                                    const float *partial) {
    const int64_t each = dr_blocks_of(columns, 32);
    return dr_cuda_launch("add_columns", dr_add_columns<K>, {each, K}, DR_COLUMN_THREADS, 0, gpu->stream, targets, columns,
                          stretches, (int)each, partial);
}

template <int K> static inline int64_t dr_column_bytes(int64_t rows, int64_t columns) {
    return dr_blocks_of(rows, dr_stretch_of(rows, columns)) * K * columns * (int64_t)sizeof(float);
}

/* partial: of dr_column_bytes. */
template <int N, int K, typename F>
static dr_status dr_run_columns(const dr_cuda *gpu, const char *name, const F &f, int64_t rows, int64_t columns, float *partial,
                                const dr_column_targets<K> &targets) {
    const int64_t stretch = dr_stretch_of(rows, columns), stretches = dr_blocks_of(rows, stretch);
    const int lanes = dr_lanes_for(dr_blocks_of(columns, N));
    if (rows == 0 || columns == 0) return DR_OK;
    DR_TRY(dr_cuda_launch(name, dr_sum_columns<N, K, F>, {stretches, dr_blocks_of(columns, lanes * N)}, DR_COLUMN_THREADS, 0,
                          gpu->stream, f, rows, columns, stretch, lanes, partial));
    return dr_run_add_columns<K>(gpu, targets, columns, stretches, partial);
}

#endif
