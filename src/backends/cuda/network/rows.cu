/* Rows that move by an index: embedding, gather and scatter. The gradient of a table is the sum over the rows that have an id.
 * Rows are put in the order of their ids first: tiles by themselves, then each row by its place in every other tile. An id may
 * have most of the rows, as a filler has, so that its sum is made in chunks of rows, which are added up in their order. */
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

enum { TILE = 1024, TILE_BITS = 10, CHUNK = 128 };

/* Each block puts the rows of one tile in order, by a bitonic network: by their ids, those of equal ids by their numbers. */
static __global__ void __launch_bounds__(THREADS)
    order_tile(const int32_t *ids, int rows, int32_t *tile_ids, int32_t *tile_rows) {
    __shared__ uint64_t keys[TILE]; /* id, then number in the tile; behind the rows what is above all of them */
    const int first = (int)blockIdx.x * TILE, count = rows - first < TILE ? rows - first : TILE;
    for (int i = (int)threadIdx.x; i < TILE; i += THREADS)
        keys[i] = i < count ? (uint64_t)ids[first + i] << TILE_BITS | (uint64_t)i : ~(uint64_t)0;
    for (int size = 2; size <= TILE; size *= 2)
        for (int apart = size / 2; apart > 0; apart /= 2) {
            __syncthreads();
#pragma unroll
            for (int pair = (int)threadIdx.x; pair < TILE / 2; pair += THREADS) {
                const int low = 2 * pair - (pair & (apart - 1));
                const uint64_t one = keys[low], other = keys[low + apart];
                const bool exchange = (one > other) == ((low & size) == 0);
                if (exchange) keys[low] = other, keys[low + apart] = one;
            }
        }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < count; i += THREADS) {
        tile_ids[first + i] = (int32_t)(keys[i] >> TILE_BITS);
        tile_rows[first + i] = first + (int)(keys[i] & (TILE - 1));
    }
}

/* Of `count` keys in order: how many are below a limit. */
static __device__ inline int count_below(const int32_t *keys, int count, int32_t limit) {
    int below = 0;
#pragma unroll
    for (int step = TILE; step > 0; step /= 2)
        if (below + step <= count && keys[below + step - 1] < limit) below += step;
    return below;
}

/* A thread takes a row of a tile in order, and counts what comes before it in the other tiles: of those before its own the
 * rows of its id, too. */
static __global__ void __launch_bounds__(THREADS)
    place_rows(const int32_t *tile_ids, const int32_t *tile_rows, int rows, int32_t *ordered, int32_t *order) {
    __shared__ int32_t keys[2][TILE];
    const int i = (int)(blockIdx.x * THREADS + threadIdx.x), own = (int)(blockIdx.x * THREADS) / TILE;
    const int32_t id = i < rows ? tile_ids[i] : 0;
    int place = i % TILE, turn = 0;
    for (int first = 0, tile = 0; first < rows; first += TILE, tile++) {
        const int count = rows - first < TILE ? rows - first : TILE;
        if (tile == own) continue;
        int32_t *const now = keys[turn];
        turn ^= 1;
        for (int k = (int)threadIdx.x; k < count; k += THREADS) now[k] = tile_ids[first + k];
        __syncthreads();
        place += count_below(now, count, id + (tile < own));
    }
    if (i >= rows) return;
    ordered[place] = id;
    order[place] = tile_rows[i];
}

/* Rows in order of their ids, with what those of an id add to the table. Stretches of CHUNK places are added up by themselves:
 * where all rows of an id lie in one, onto the table; else what they come to is left in partial [chunks, 2, dim], of the id
 * that begins in an earlier chunk and of the one that begins in this and goes on in the next. */
template <typename T> struct table_call {
    int64_t rows, dim;
    const int32_t *ids, *order; /* [rows] in order */
    const T *d_y;
    float *d_table, *partial;

    __device__ bool begins(int64_t place) const { return place == 0 || ids[place - 1] != ids[place]; }

    template <int N> __device__ void at(int64_t i) const {
        const int64_t place = i / dim, channel = i % dim, chunk = place / CHUNK, left = rows - place;
        const bool first = begins(place);
        if (!first && place % CHUNK != 0) return;
        const int32_t id = ids[place];
        const int most = (int)(CHUNK - place % CHUNK),
                  count = count_below(ids + place, (int)(left < most ? left : most), id + 1);
        const bool all = first && (place + count == rows || ids[place + count] != id);
        float *const to = all ? d_table + id * dim : partial + (chunk * 2 + first) * dim;
        dr_floats<N> sum = all ? dr_load_floats<N>(to + channel) : dr_same<N>(0);
#pragma unroll 8
        for (int p = 0; p < count; p++) {
            const dr_floats<N> x = dr_load_floats<N>(d_y + order[place + p] * dim + channel);
            EACH sum.at[n] += x.at[n];
        }
        dr_store_floats<N>(to + channel, sum);
    }
};

/* Adds to the table, chunk by chunk, what chunks left of the id that goes on behind a chunk in which it begins. */
template <typename T> struct join_call {
    table_call<T> of;

    template <int N> __device__ void at(int64_t i) const {
        const int64_t dim = of.dim, chunk = i / dim, channel = i % dim, next = (chunk + 1) * CHUNK;
        const int32_t id = of.ids[next - 1];
        if (of.ids[next] != id || (chunk > 0 && of.ids[chunk * CHUNK - 1] == id)) return;
        int64_t end = chunk + 1; /* behind the last chunk that begins with it */
        for (int64_t step = 1 << 22; step > 0; step /= 2)
            if ((end + step - 1) * CHUNK < of.rows && of.ids[(end + step - 1) * CHUNK] == id) end += step;
        dr_floats<N> sum = dr_load_floats<N>(of.d_table + id * dim + channel);
        const dr_floats<N> begun = dr_load_floats<N>(of.partial + (chunk * 2 + 1) * dim + channel);
        EACH sum.at[n] += begun.at[n];
#pragma unroll 8
        for (int64_t c = chunk + 1; c < end; c++) {
            const dr_floats<N> x = dr_load_floats<N>(of.partial + c * 2 * dim + channel);
            EACH sum.at[n] += x.at[n];
        }
        dr_store_floats<N>(of.d_table + id * dim + channel, sum);
    }
};

template <int N, typename T> static dr_status run_table(const dr_cuda *gpu, const table_call<T> &call) {
    const int64_t crossings = (call.rows - 1) / CHUNK; /* ends of chunks that are not that of the rows */
    DR_TRY(dr_run_each<N>(gpu, "embedding_back", call.rows * call.dim, call));
    const join_call<T> join = {call};
    return dr_run_each<N>(gpu, "embedding_back_join", crossings * call.dim, join);
}

dr_status dr_cuda_embedding_backward(dr_backend *backend, int64_t rows, int64_t dim, const int32_t *ids, const void *d_y,
                                     void *d_table) {
    DR_NETWORK_ENTER(backend);
    const int64_t sums = dr_blocks_of(rows, CHUNK) * 2 * dim, numbers = sums * (int64_t)sizeof(float);
    if (rows == 0) return DR_OK;
    const dr_scratch scratch(backend, numbers + 4 * rows * (int64_t)sizeof(int32_t));
    DR_TRY(scratch.status);
    float *const partial = (float *)scratch.at;
    int32_t *const tile_ids = (int32_t *)(partial + sums), *const tile_rows = tile_ids + rows;
    int32_t *const ordered = tile_rows + rows, *const order = ordered + rows;
    const int32_t *const ids_there = tile_ids, *const rows_there = tile_rows;
    DR_TRY(dr_cuda_launch("order_tile", order_tile, {dr_blocks_of(rows, TILE)}, THREADS, 0, gpu->stream, ids, (int)rows,
                          tile_ids, tile_rows));
    DR_TRY(dr_cuda_launch("place_rows", place_rows, {dr_blocks_of(rows, THREADS)}, THREADS, 0, gpu->stream, ids_there,
                          rows_there, (int)rows, ordered, order));
    DR_NETWORK_INSTANCE(backend, dim, (d_y, d_table), T, N,
                        const table_call<T> call = {rows, dim, ordered, order, (const T *)d_y, (float *)d_table, partial};
                        return run_table<N>(gpu, call))
}
