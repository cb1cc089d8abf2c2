/* Rows that move by an index: embedding, gather and scatter. The gradient of a table is the sum over the rows that have an id,
 * added up in the order of rows: ids are put in order first, each by counting the ids that come before it, which for 32,768
 * rows is a tenth of a millisecond of comparisons; then a block adds up the rows of one id. */
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

/* order[i] = the row that comes i-th by its id, of equal ids by its number. */
static __global__ void __launch_bounds__(THREADS) order_ids(const int32_t *ids, int64_t rows, int32_t *order) {
    __shared__ int32_t some[THREADS];
    const int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int32_t own = row < rows ? ids[row] : 0;
    int64_t before = 0;
    for (int64_t first = 0; first < rows; first += THREADS) {
        const int64_t left = rows - first;
        const int count = left < THREADS ? (int)left : (int)THREADS;
        __syncthreads();
        if ((int)threadIdx.x < count) some[threadIdx.x] = ids[first + threadIdx.x];
        __syncthreads();
        for (int i = 0; i < count; i++) before += some[i] < own || (some[i] == own && first + i < row);
    }
    if (row < rows) order[before] = (int32_t)row;
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
    DR_TRY(dr_cuda_launch("order_ids", order_ids, {dr_blocks_of(rows, THREADS)}, THREADS, 0, gpu->stream, ids, rows, order));
    DR_NETWORK_INSTANCE(backend, dim, (d_y, d_table), T, N,
                        const table_call<T> call = {rows, dim, ids, order, (const T *)d_y, (float *)d_table};
                        return dr_run_each<N>(gpu, "embedding_back", rows * dim, call))
}
