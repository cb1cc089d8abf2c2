/* Gradients of parameters that all rows share: sums over rows, the same bits in every run.
 *
 * A block takes a stretch of rows and 32 loads of neighbouring columns; its warps take turns at the rows and are added up in
 * order in shared memory. What the blocks of a stretch leave is added to the gradients by a second kernel, in the order of the
 * stretches. The number of stretches follows from the shape alone. */
#ifndef DR_CUDA_NETWORK_COLUMNS_CUH
#define DR_CUDA_NETWORK_COLUMNS_CUH

#include "backends/cuda/network/vectors.cuh"

enum { DR_COLUMN_WARPS = 8, DR_COLUMN_THREADS = 32 * DR_COLUMN_WARPS, DR_MOST_STRETCHES = 64, DR_LEAST_STRETCH = 64 };

static inline int64_t dr_stretch_of(int64_t rows) {
    const int64_t rows_each = dr_blocks_of(rows, DR_MOST_STRETCHES);
    return rows_each < DR_LEAST_STRETCH ? (int64_t)DR_LEAST_STRETCH : rows_each;
}

/* partial [stretches][K][columns]. f.add<N>(row, column, sums) adds what a row has for N columns to K sums of each. */
template <int N, int K, typename F>
static __global__ void __launch_bounds__(DR_COLUMN_THREADS)
    dr_sum_columns(const __grid_constant__ F f, int64_t rows, int64_t columns, int64_t stretch, float *partial) {
    __shared__ float sums[DR_COLUMN_WARPS][N][32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t tiles = (columns + 32 * N - 1) / (32 * N), part = blockIdx.x / tiles;
    const int64_t column = (blockIdx.x % tiles * 32 + lane) * N, first = part * stretch;
    const int64_t end = first + stretch < rows ? first + stretch : rows;
    dr_floats<N> sum[K];
#pragma unroll
    for (int k = 0; k < K; k++) sum[k] = dr_same<N>(0);
    for (int64_t row = first + warp; row < end && column < columns; row += DR_COLUMN_WARPS) f.template add<N>(row, column, sum);
    for (int k = 0; k < K; k++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N; i++) sums[warp][i][lane] = sum[k].at[i];
        __syncthreads();
        for (int i = warp; i < N && column < columns; i += DR_COLUMN_WARPS) {
            float all = 0;
            for (int w = 0; w < DR_COLUMN_WARPS; w++) all += sums[w][i][lane];
            partial[(part * K + k) * columns + column + i] = all;
        }
    }
}

/* Where sums go: that of column c to at[c * step], or those of `fold` neighbouring columns together to at[c / fold * step].
 * NULL: it is not wanted. */
typedef struct {
    float *at;
    int64_t step, fold;
} dr_column_target;

template <int K> struct dr_column_targets { dr_column_target of[K]; };

/* A thread adds up a target's element. */
template <int K>
static __global__ void __launch_bounds__(DR_EACH_THREADS)
    dr_add_columns(const __grid_constant__ dr_column_targets<K> targets, int64_t columns, int64_t stretches,
                   const float *partial) {
    const int64_t index = (int64_t)blockIdx.x * DR_EACH_THREADS + threadIdx.x;
    const int k = (int)(index / columns);
    if (k >= K) return;
    const dr_column_target target = targets.of[k];
    const int64_t element = index % columns;
    if (!target.at || element * target.fold >= columns) return;
    double sum = 0;
    for (int64_t part = 0; part < stretches; part++)
        for (int64_t i = 0; i < target.fold; i++) sum += partial[(part * K + k) * columns + element * target.fold + i];
    target.at[element * target.step] += (float)sum;
}

template <int K>
static dr_status dr_run_add_columns(const dr_cuda *gpu, const dr_column_targets<K> &targets, int64_t columns, int64_t stretches,
                                    const float *partial) {
    return dr_cuda_launch("add_columns", dr_add_columns<K>, {dr_blocks_of(columns * K, DR_EACH_THREADS)}, DR_EACH_THREADS, 0,
                          gpu->stream, targets, columns, stretches, partial);
}

template <int K> static inline int64_t dr_column_bytes(int64_t rows, int64_t columns) {
    return dr_blocks_of(rows, dr_stretch_of(rows)) * K * columns * (int64_t)sizeof(float);
}

/* partial: of dr_column_bytes. */
template <int N, int K, typename F>
static dr_status dr_run_columns(const dr_cuda *gpu, const char *name, const F &f, int64_t rows, int64_t columns, float *partial,
                                const dr_column_targets<K> &targets) {
    const int64_t stretch = dr_stretch_of(rows), stretches = dr_blocks_of(rows, stretch);
    if (rows == 0 || columns == 0) return DR_OK;
    DR_TRY(dr_cuda_launch(name, dr_sum_columns<N, K, F>, {stretches, dr_blocks_of(columns, 32 * N)}, DR_COLUMN_THREADS, 0,
                          gpu->stream, f, rows, columns, stretch, partial));
    return dr_run_add_columns<K>(gpu, targets, columns, stretches, partial);
}

#endif
