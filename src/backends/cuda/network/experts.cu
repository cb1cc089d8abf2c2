/* Experts of a mixture: slots in the order of experts, rows gathered back and combined, and one product for the rows of each
 * expert. How many rows an expert has is known on the GPU only. */
#include "backends/cuda/network/blocks.cuh"
#include "backends/cuda/network/sequences.cuh"
#include "backends/cuda/network/tiles.cuh"

enum { THREADS = 256 };

/* ---- sort -----------------------------------------------------------------------------------------------------------------
 */

/* counts [blocks][experts]: how many slots of a block go to an expert. Sums of integers are the same in any order. */
static __global__ void __launch_bounds__(THREADS)
    count_slots(const int32_t *index, int64_t slots, int experts, unsigned *counts) {
    extern __shared__ char shared[];
    unsigned *const own = (unsigned *)shared;
    const int64_t slot = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (int e = (int)threadIdx.x; e < experts; e += THREADS) own[e] = 0;
    __syncthreads();
    if (slot < slots) atomicAdd(&own[index[slot]], 1u);
    __syncthreads();
    for (int e = (int)threadIdx.x; e < experts; e += THREADS) counts[(int64_t)blockIdx.x * experts + e] = own[e];
}

/* counts becomes what lies before each block's slots of an expert: those of lesser experts and those of earlier blocks. By one
 * block, whose threads take experts. */
static __global__ void __launch_bounds__(THREADS)
    place_experts(int64_t blocks, int experts, unsigned *counts, int32_t *begins) {
    for (int e = (int)threadIdx.x; e < experts; e += THREADS) {
        unsigned sum = 0;
        for (int64_t b = 0; b < blocks; b++) {
            const unsigned own = counts[b * experts + e];
            counts[b * experts + e] = sum;
            sum += own;
        }
        begins[e + 1] = (int32_t)sum;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    begins[0] = 0;
    for (int e = 0; e < experts; e++) begins[e + 1] += begins[e];
}

static __global__ void __launch_bounds__(THREADS)
    place_slots(const int32_t *index, int64_t slots, int experts, const unsigned *counts, const int32_t *begins, int32_t *order,
                int32_t *place) {
    __shared__ int32_t some[THREADS];
    const int64_t slot = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    some[threadIdx.x] = slot < slots ? index[slot] : -1;
    __syncthreads();
    if (slot >= slots) return;
    const int32_t own = some[threadIdx.x];
    int32_t at = begins[own] + (int32_t)counts[(int64_t)blockIdx.x * experts + own];
    for (int i = 0; i < (int)threadIdx.x; i++) at += some[i] == own;
    place[slot] = at;
    order[at] = (int32_t)slot;
}

dr_status dr_cuda_experts_sort(dr_backend *backend, const dr_experts *of, const int32_t *index, int32_t *order, int32_t *place,
                               int32_t *begins) {
    DR_NETWORK_ENTER(backend);
    const int64_t slots = of->rows * of->chosen, blocks = dr_blocks_of(slots, THREADS);
    const int experts = (int)of->experts, bytes = experts * (int)sizeof(unsigned);
    const dr_scratch scratch(backend, blocks * bytes);
    DR_TRY(scratch.status);
    unsigned *const counts = (unsigned *)scratch.at;
    DR_TRY(dr_cuda_launch("count_slots", count_slots, {blocks}, THREADS, bytes, gpu->stream, index, slots, experts, counts));
    DR_TRY(dr_cuda_launch("place_experts", place_experts, {1}, THREADS, 0, gpu->stream, blocks, experts, counts, begins));
    return dr_cuda_launch("place_slots", place_slots, {blocks}, THREADS, 0, gpu->stream, index, slots, experts,
                          (const unsigned *)counts, (const int32_t *)begins, order, place);
}

/* ---- sums over the slots of a token ---------------------------------------------------------------------------------------
 */

/* y[token] = the weighted sum of its slots' rows; weights NULL: ones */
template <typename T> struct combine_call {
    int64_t dim, chosen;
    const int32_t *place;
    const float *weights;
    const T *x;
    T *y;
    bool accumulate;

    template <int N> __device__ void at(int64_t i) const {
        const int64_t token = i / dim, channel = i % dim;
        dr_floats<N> sum = dr_same<N>(0);
        for (int64_t slot = token * chosen; slot < (token + 1) * chosen; slot++) {
            const dr_floats<N> row = dr_load_floats<N>(x + place[slot] * dim + channel);
            const float weight = weights ? weights[slot] : 1;
            EACH sum.at[n] += weight * row.at[n];
        }
        dr_store_or_add<N>(y + i, sum, accumulate);
    }
};

static dr_status combine(dr_backend *backend, const char *name, const dr_experts *of, int64_t dim, const int32_t *place,
                         const void *weights, const void *x, void *y, bool accumulate) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_INSTANCE(
        backend, dim, (x, y), T, N,
        const combine_call<T> call = {dim, of->chosen, place, (const float *)weights, (const T *)x, (T *)y, accumulate};
        return dr_run_each<N>(gpu, name, of->rows * dim, call))
}

dr_status dr_cuda_experts_gather_backward(dr_backend *backend, const dr_experts *of, int64_t dim, const int32_t *place,
                                          const void *d_y, void *d_x, bool accumulate) {
    return combine(backend, "experts_gather_back", of, dim, place, NULL, d_y, d_x, accumulate);
}

dr_status dr_cuda_experts_combine_forward(dr_backend *backend, const dr_experts *of, int64_t dim, const int32_t *place,
                                          const void *weights, const void *x, void *y, bool accumulate) {
    return combine(backend, "experts_combine", of, dim, place, weights, x, y, accumulate);
}

template <typename T> struct combine_back_call {
    int64_t slots, dim, chosen;
    const int32_t *place;
    const float *weights;
    const T *x, *d_y;
    float *d_weights;
    T *d_x;
};

/* A warp a slot. */
template <int N, typename T>
static __global__ void __launch_bounds__(THREADS) combine_back(const __grid_constant__ combine_back_call<T> call) {
    const int64_t slot = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (slot >= call.slots) return;
    const int lane = (int)threadIdx.x % 32;
    const int64_t row = call.place[slot] * call.dim, token = slot / call.chosen * call.dim;
    const float weight = call.weights[slot];
    float sum = 0;
    for (int64_t i = lane * N; i < call.dim; i += 32 * N) {
        const dr_floats<N> x = dr_load_floats<N>(call.x + row + i);
        dr_floats<N> d = dr_load_floats<N>(call.d_y + token + i);
        EACH {
            sum += x.at[n] * d.at[n];
            d.at[n] *= weight;
        }
        if (call.d_x) dr_store_floats<N>(call.d_x + row + i, d);
    }
    sum = dr_sum_lanes(sum, 32);
    if (call.d_weights && lane == 0) call.d_weights[slot] = sum;
}

dr_status dr_cuda_experts_combine_backward(dr_backend *backend, const dr_experts *of, int64_t dim, const int32_t *place,
                                           const void *weights, const void *x, const void *d_y, void *d_weights, void *d_x) {
    DR_NETWORK_ENTER(backend);
    const int64_t slots = of->rows * of->chosen;
    DR_NETWORK_INSTANCE(backend, dim, (x, d_y, d_x), T, N,
                        const combine_back_call<T> call = {slots, dim, of->chosen, place, (const float *)weights, (const T *)x,
                                                           (const T *)d_y, (float *)d_weights, (T *)d_x};
                        return dr_cuda_launch("experts_combine_back", combine_back<N, T>, {dr_blocks_of(slots * 32, THREADS)},
                                              THREADS, 0, gpu->stream, call))
}

/* ---- one product for the rows of each expert ------------------------------------------------------------------------------
 */

/* An operand: element (i, k) of an expert lies at i along + k across behind the expert's own part. One of both steps is 1. */
template <typename T> struct operand {
    const T *at;
    int64_t along, across, apart; /* apart: from expert to expert; of rows of slots, which begins tells, 0 */
};

/* c (i, j) (+)= sum over k of a (i, k) b (j, k), of each expert. by_rows: i counts the expert's rows, k to depth; else k counts
 * them, i to rows. */
template <typename T, typename C> struct experts_call {
    int64_t experts, rows, columns, depth;
    const int32_t *begins;
    operand<T> a, b;
    C *c;
    bool by_rows, add;
};

/* The rows from i and columns from k of an operand, zeros behind their ends. */
template <typename T>
static __device__ void load_tile(T *tile, const operand<T> &from, const T *at, int64_t i, int64_t i_end, int64_t k,
                                 int64_t k_end) {
    for (int n = (int)threadIdx.x; n < DR_TILE * DR_TILE; n += DR_TILE_THREADS) {
        const bool swept = from.across == 1; /* neighbouring threads read neighbouring elements */
        const int row = swept ? n / DR_TILE : n % DR_TILE, column = swept ? n % DR_TILE : n / DR_TILE;
        const bool there = i + row < i_end && k + column < k_end;
        tile[row * DR_TILE_ROW + column] =
            there ? at[(i + row) * from.along + (k + column) * from.across] : dr_from_float<T>(0);
    }
}

template <typename T, typename C>
static __global__ void __launch_bounds__(DR_TILE_THREADS) experts_product(const __grid_constant__ experts_call<T, C> call) {
    extern __shared__ char shared[];
    T *const a = (T *)shared, *const b = a + DR_TILE * DR_TILE_ROW;
    const int64_t column_tiles = (call.columns + DR_TILE - 1) / DR_TILE, j = blockIdx.x % column_tiles * DR_TILE;
    const int64_t tile = blockIdx.x / column_tiles, row_tiles = (call.rows + DR_TILE - 1) / DR_TILE;
    /* an expert's tiles of rows begin behind those that lesser ones can have */
    const auto first_tile = [&](int64_t e) { return call.by_rows ? call.begins[e] / DR_TILE + e : e * row_tiles; };
    const int64_t e = dr_last_before(call.experts, tile, first_tile), begin = call.begins[e], own = call.begins[e + 1] - begin;
    const int64_t i = (tile - first_tile(e)) * DR_TILE;
    const int64_t rows = call.by_rows ? own : call.rows, depth = call.by_rows ? call.depth : own;
    if (i >= rows || (depth == 0 && call.add)) return;
    const T *const a_at = call.a.at + e * call.a.apart + (call.by_rows ? begin * call.a.along : begin * call.a.across);
    const T *const b_at = call.b.at + e * call.b.apart + (call.by_rows ? 0 : begin * call.b.across);
    C *const c = call.c + (call.by_rows ? begin * call.columns : e * call.rows * call.columns);
    float sum[DR_TILE / 8][4];
    dr_zero_tile(sum);
    for (int64_t k = 0; k < depth; k += DR_TILE) {
        __syncthreads();
        load_tile(a, call.a, a_at, i, rows, k, depth);
        load_tile(b, call.b, b_at, j, call.columns, k, depth);
        __syncthreads();
        dr_multiply_tiles(sum, a + threadIdx.x / 32 * 16 * DR_TILE_ROW, b, DR_TILE);
    }
    for (int nb = 0; nb < DR_TILE / 8; nb++)
        for (int n = 0; n < 4; n++) {
            const int64_t row = i + threadIdx.x / 32 * 16 + dr_tile_row(n), column = j + dr_tile_column(nb, n);
            if (row >= rows || column >= call.columns) continue;
            C *const to = c + row * call.columns + column;
            *to = dr_from_float<C>((call.add ? dr_to_float(*to) : 0) + sum[nb][n]);
        }
}

template <typename T, typename C> static dr_status run(const dr_cuda *gpu, int64_t slots, const experts_call<T, C> &call) {
    const int64_t tiles = call.by_rows ? slots / DR_TILE + call.experts : call.experts * dr_blocks_of(call.rows, DR_TILE);
    return dr_cuda_launch("experts_product", experts_product<T, C>, {tiles, dr_blocks_of(call.columns, DR_TILE)},
                          DR_TILE_THREADS, 2 * dr_tile_bytes<T>(), gpu->stream, call);
}

dr_status dr_cuda_experts_linear_forward(dr_backend *backend, const dr_experts *of, int64_t in, int64_t out,
                                         const int32_t *begins, const void *x, const void *weight, void *y) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_TYPE(backend, T, experts_call<T, T> call = {}; call.experts = of->experts, call.begins = begins;
                    call.columns = out, call.depth = in, call.by_rows = true; call.a = {(const T *)x, in, 1, 0};
                    call.b = {(const T *)weight, in, 1, out * in}; call.c = (T *)y;
                    return run(gpu, of->rows * of->chosen, call))
}

template <typename T>
static dr_status backward(const dr_cuda *gpu, const dr_experts *of, int64_t in, int64_t out, const int32_t *begins, const T *x,
                          const T *weight, const T *d_y, T *d_x, bool accumulate, float *d_weight) {
    const int64_t slots = of->rows * of->chosen;
    if (d_x) {
        experts_call<T, T> call = {};
        call.experts = of->experts, call.begins = begins, call.columns = in, call.depth = out, call.by_rows = true;
        call.a = {d_y, out, 1, 0}, call.b = {weight, 1, in, out * in}, call.c = d_x, call.add = accumulate;
        DR_TRY(run(gpu, slots, call));
    }
    if (!d_weight) return DR_OK;
    experts_call<T, float> call = {};
    call.experts = of->experts, call.begins = begins, call.rows = out, call.columns = in, call.add = true;
    call.a = {d_y, 1, out, 0}, call.b = {x, 1, in, 0}, call.c = d_weight;
    return run(gpu, slots, call);
}

dr_status dr_cuda_experts_linear_backward(dr_backend *backend, const dr_experts *of, int64_t in, int64_t out,
                                          const int32_t *begins, const void *x, const void *weight, const void *d_y, void *d_x,
                                          bool accumulate, void *d_weight) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_TYPE(backend, T,
                    return backward(gpu, of, in, out, begins, (const T *)x, (const T *)weight, (const T *)d_y, (T *)d_x,
                                    accumulate, (float *)d_weight))
}
