/* Rows that move by an index: embedding, gather and scatter. The gradient of a table is the sum over the rows that have an id,
 * added up in the order of rows: ids are put in order first, each by counting the ids that come before it, which for 32,768
 * rows is some 0.2 ms of comparisons; then a block adds up the rows of one id. */
#include "backends/cuda/network/columns.cuh"

enum { THREADS = 256 };

/* to[i] = from[index[i] / each], or scatter: to[index[i]] = from[i] */
template <typename I, typename T> struct move_rows {
    int64_t dim, each;
    const I *index;
    const T *from;
    T *to;
    bool scatter;

    template <int N> __device__ void at(int64_t i) const {
        const int64_t row = i / dim, channel = i % dim, other = index[row] / each;
        const dr_floats<N> x = dr_load_floats<N>(from + (scatter ? row : other) * dim + channel);
        dr_store_floats<N>(to + (scatter ? other : row) * dim + channel, x);
    }
};

template <typename I>
static dr_status run_move(dr_backend *backend, const char *name, int64_t rows, int64_t dim, const I *index, int64_t each,
                          bool scatter, const void *from, void *to) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_INSTANCE(backend, dim, (from, to), T, N,
                        const move_rows<I, T> call = {dim, each, index, (const T *)from, (T *)to, scatter};
                        return dr_run_each<N>(gpu, name, rows * dim, call))
}

dr_status dr_cuda_embedding_forward(dr_backend *backend, int64_t rows, int64_t dim, const int32_t *ids, const void *table,
                                    void *y) {
    return run_move(backend, "embedding", rows, dim, ids, 1, false, table, y);
}

dr_status dr_cuda_experts_gather_forward(dr_backend *backend, const dr_experts *of, int64_t dim, const int32_t *order,
                                         const void *x, void *y) {
    return run_move(backend, "experts_gather", of->rows * of->chosen, dim, order, of->chosen, false, x, y);
}

dr_status dr_cuda_rows_gather(dr_backend *backend, int64_t count, int64_t dim, const int64_t *positions, const void *x,
                              void *y) {
    return run_move(backend, "rows_gather", count, dim, positions, 1, false, x, y);
}

dr_status dr_cuda_rows_scatter(dr_backend *backend, int64_t rows, int64_t count, int64_t dim, const int64_t *positions,
                               const void *d_y, void *d_x) {
    DR_NETWORK_ENTER(backend);
    DR_CUDA(cudaMemsetAsync(d_x, 0, dr_kind_bytes(backend, DR_VECTOR, rows * dim), gpu->stream.at));
    return run_move(backend, "rows_scatter", count, dim, positions, 1, true, d_y, d_x);
}

/* ---- the gradient of a table ----------------------------------------------------------------------------------------------
 */

enum { ROWS_OF_WARP = 4 };

/* order[i] = the row that comes i-th by its id, of equal ids by its number. The lanes of a warp share the ids that some rows
 * are compared with. */
static __global__ void __launch_bounds__(THREADS) order_ids(const int32_t *ids, int rows, int32_t *order) {
    const int first = (int)(((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32 * ROWS_OF_WARP), lane = (int)threadIdx.x % 32;
    int32_t own[ROWS_OF_WARP], before[ROWS_OF_WARP];
#pragma unroll
    for (int r = 0; r < ROWS_OF_WARP; r++) own[r] = first + r < rows ? ids[first + r] : 0, before[r] = 0;
#pragma unroll 4
    for (int i = lane; i < rows; i += 32) {
        const int32_t other = ids[i];
#pragma unroll
        for (int r = 0; r < ROWS_OF_WARP; r++) before[r] += other < own[r] || (other == own[r] && i < first + r);
    }
#pragma unroll
    for (int r = 0; r < ROWS_OF_WARP; r++) {
        for (int apart = 16; apart > 0; apart /= 2) before[r] += __shfl_xor_sync(0xffffffff, before[r], apart);
        if (lane == 0 && first + r < rows) order[before[r]] = first + r;
    }
}

/* d_table[id] += the rows of d_y that have the id, in order: by the thread whose row is the first of them. */
template <typename T> struct table_call {
    int64_t rows, dim;
    const int32_t *ids, *order;
    const T *d_y;
    float *d_table;

    template <int N> __device__ void at(int64_t i) const {
        const int64_t place = i / dim, channel = i % dim;
        const int32_t id = ids[order[place]];
        if (place > 0 && ids[order[place - 1]] == id) return;
        dr_floats<N> sum = dr_load_floats<N>(d_table + id * dim + channel);
        for (int64_t p = place; p < rows && ids[order[p]] == id; p++) {
            const dr_floats<N> x = dr_load_floats<N>(d_y + order[p] * dim + channel);
            EACH sum.at[n] += x.at[n];
        }
        dr_store_floats<N>(d_table + id * dim + channel, sum);
    }
};

dr_status dr_cuda_embedding_backward(dr_backend *backend, int64_t rows, int64_t dim, const int32_t *ids, const void *d_y,
                                     void *d_table) {
    DR_NETWORK_ENTER(backend);
    const dr_scratch scratch(backend, rows * (int64_t)sizeof(int32_t));
    DR_TRY(scratch.status);
    int32_t *const order = (int32_t *)scratch.at;
    DR_TRY(dr_cuda_launch("order_ids", order_ids, {dr_blocks_of(rows, THREADS / 32 * ROWS_OF_WARP)}, THREADS, 0, gpu->stream,
                          ids, (int)rows, order));
    DR_NETWORK_INSTANCE(backend, dim, (d_y, d_table), T, N,
                        const table_call<T> call = {rows, dim, ids, order, (const T *)d_y, (float *)d_table};
                        return dr_run_each<N>(gpu, "embedding_back", rows * dim, call))
}
