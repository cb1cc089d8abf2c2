/* The backward of softmax attention. With p_ij = exp(scale q_i . k_j - l_i) made again from the saved logarithms, and
 * along_i = d_o_i . o_i:
 *
 *     ds_ij = scale p_ij (d_o_i . v_j - along_i)
 *     d_q_i = sum_j ds_ij k_j     d_k_j = sum_i ds_ij q_i     d_v_j = sum_i p_ij d_o_i
 *
 * Each of the three is one kernel of the same form: a block has 64 rows of its own side and goes past the tiles of the other
 * side in order, so that every sum has one order and nothing is added atomically. What it makes of two tiles, p or ds, is
 * multiplied by the other side's tile. Results of more than CHUNK channels take several blocks. */
#include "backends/cuda/network/attention_groups.cuh"

enum { CHUNK = 128, THREADS = 256 };

typedef enum { QUERY, KEY, VALUE } gradient_of;

template <typename T> struct backward_call {
    dr_attention_shape shape;
    gradient_of of;
    dr_side<T> q, k, v, d_o;
    const float *log_sums, *along; /* [rows][heads] */
    T *to;
    int64_t size, chunks; /* channels of a row of `to` */
    bool wide;
};

/* along [rows heads] = d_o . o; so many lanes of a warp each */
template <int N, typename T>
static __global__ void __launch_bounds__(THREADS)
    attention_along(int64_t rows, int64_t size, int lanes, const T *o, const T *d_o, float *along) {
    const int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / lanes;
    float sum = 0;
    for (int64_t i = threadIdx.x % lanes * N; i < size && row < rows; i += lanes * N) {
        const dr_floats<N> x = dr_load_floats<N>(o + row * size + i), d_x = dr_load_floats<N>(d_o + row * size + i);
        EACH sum += x.at[n] * d_x.at[n];
    }
    sum = dr_sum_lanes(sum, lanes);
    if (row < rows && threadIdx.x % lanes == 0) along[row] = sum;
}

static dr_status run_along(dr_backend *backend, const dr_cuda *gpu, const dr_attention *of, const void *o, const void *d_o,
                           float *along) {
    const int64_t rows = of->layout.rows * of->heads, size = of->value_size;
    DR_NETWORK_INSTANCE(backend, size, (o, d_o), T, N, const int lanes = dr_lanes_for(dr_blocks_of(size, N));
                        return dr_cuda_launch("attention_along", attention_along<N, T>, {dr_blocks_of(rows * lanes, THREADS)},
                                              THREADS, 0, gpu->stream, rows, size, lanes, (const T *)o, (const T *)d_o, along))
}

/* scores += a b^T over all channels of a tile of the own side and one of the other. */
template <typename T, typename A, typename B>
static __device__ void multiply_sides(const backward_call<T> &call, int64_t size, T *own, T *other, float (&scores)[8][4],
                                      const A &own_row, const B &other_row) {
    for (int64_t depth = 0; depth < size; depth += DR_TILE) {
        __syncthreads();
        dr_load_side(own, size, depth, false, call.wide, own_row);
        dr_load_side(other, size, depth, false, call.wide, other_row);
        __syncthreads();
        dr_multiply_tiles(scores, own + threadIdx.x / 32 * 16 * DR_TILE_ROW, other, DR_TILE);
    }
}

template <int CB, typename T>
static __global__ void __launch_bounds__(DR_TILE_THREADS) attention_back(const __grid_constant__ backward_call<T> call) {
    extern __shared__ char shared[];
    T *const own = (T *)shared, *const other = own + DR_TILE * DR_TILE_ROW;
    const int warp = (int)threadIdx.x / 32;
    T *const weights = other + DR_TILE * DR_TILE_ROW + warp * 16 * DR_TILE_ROW;
    const dr_attention_shape &shape = call.shape;
    const bool queries = call.of == QUERY;
    const int64_t group = shape.group;
    dr_attention_place place;
    if (!dr_attention_place_of(shape, queries ? group : 1, call.chunks, &place)) return;
    const int64_t channel = place.chunk * CHUNK, tokens = place.of.end - place.of.begin;
    const int64_t others = queries ? tokens : tokens * group; /* rows of the other side */
    const int64_t first_token = queries ? place.first / group : place.first;
    const int64_t last_own = place.first + DR_TILE < place.rows ? place.first + DR_TILE - 1 : place.rows - 1;
    const int64_t last_token = queries ? last_own / group : last_own;
    /* rows of the other side that any own row meets */
    int64_t begin, end;
    if (queries) {
        const int64_t sees = first_token - shape.window + 1;
        begin = shape.window > 0 && sees > 0 ? sees : 0, end = last_token + 1;
    } else {
        begin = first_token * group;
        end = shape.window > 0 && last_token + shape.window < tokens ? (last_token + shape.window) * group : others;
    }
    const auto query_row = [&](int64_t r) { return dr_query_row(shape, place, r); };
    const auto key_row = [&](int64_t r) { return dr_key_row(shape, place, r); };
    float sum[CB][4];
    dr_zero_tile(sum);
    for (int64_t at = begin / DR_TILE * DR_TILE; at < end; at += DR_TILE) {
        const auto row_of = [&](const dr_side<T> &side, bool of_queries, bool of_own) {
            return [&, of_queries, of_own](int r) -> const T * {
                const int64_t row = (of_own ? place.first : at) + r;
                if (row >= (of_own ? place.rows : others)) return NULL;
                return side.at + (of_queries ? query_row(row) : key_row(row)) * side.size;
            };
        };
        float scores[DR_TILE / 8][4], slopes[DR_TILE / 8][4];
        dr_zero_tile(scores), dr_zero_tile(slopes);
        multiply_sides(call, call.q.size, own, other, scores, row_of(queries ? call.q : call.k, queries, true),
                       row_of(queries ? call.k : call.q, !queries, false));
        if (call.of != VALUE)
            multiply_sides(call, call.v.size, own, other, slopes, row_of(queries ? call.d_o : call.v, queries, true),
                           row_of(queries ? call.v : call.d_o, !queries, false));
        for (int nb = 0; nb < DR_TILE / 8; nb++)
            for (int i = 0; i < 4; i++) {
                const int64_t mine = place.first + warp * 16 + dr_tile_row(i), theirs = at + dr_tile_column(nb, i);
                const int64_t query = queries ? mine : theirs, key = queries ? theirs : mine, token = query / group;
                const bool seen =
                    mine < place.rows && theirs < others && key <= token && (shape.window == 0 || key > token - shape.window);
                float weight = 0;
                if (seen) {
                    const int64_t row = query_row(query);
                    weight = expf(shape.scale * scores[nb][i] - call.log_sums[row]);
                    if (call.of != VALUE) weight *= shape.scale * (slopes[nb][i] - call.along[row]);
                }
                weights[dr_tile_row(i) * DR_TILE_ROW + dr_tile_column(nb, i)] = dr_from_float<T>(weight);
            }
        const dr_side<T> &by = queries ? call.k : call.of == KEY ? call.q : call.d_o;
#pragma unroll
        for (int part = 0; part < CB * 8 / DR_TILE; part++) {
            __syncthreads();
            dr_load_side(other, by.size, channel + part * DR_TILE, true, call.wide, row_of(by, !queries, false));
            __syncthreads();
            dr_multiply_tiles(*(float(*)[DR_TILE / 8][4])(sum + part * (DR_TILE / 8)), weights, other, DR_TILE);
        }
    }
    for (int i = 0; i < 4; i++) {
        const int64_t row = place.first + warp * 16 + dr_tile_row(i);
        for (int nb = 0; nb < CB && row < place.rows; nb++) {
            const int64_t column = channel + dr_tile_column(nb, i);
            if (column < call.size)
                call.to[(queries ? query_row(row) : key_row(row)) * call.size + column] = dr_from_float<T>(sum[nb][i]);
        }
    }
}

template <typename T>
static dr_status run(const dr_cuda *gpu, const dr_attention *attention, const char *name, gradient_of of, int64_t size,
                     void *to, backward_call<T> call) {
    if (!to) return DR_OK;
    call.of = of, call.to = (T *)to, call.size = size, call.chunks = dr_blocks_of(size, CHUNK);
    const int64_t tiles = dr_attention_tiles(*attention, of == QUERY ? call.shape.group : 1, DR_TILE);
    return dr_cuda_launch(name, size <= DR_TILE ? attention_back<8, T> : attention_back<16, T>,
                          {tiles, attention->key_heads, call.chunks}, DR_TILE_THREADS, 3 * dr_tile_bytes<T>(), gpu->stream,
                          call);
}

template <typename T>
static dr_status backward(const dr_cuda *gpu, const dr_attention *of, const backward_call<T> &call, void *d_q, void *d_k,
                          void *d_v) {
    DR_TRY(run(gpu, of, "attention_query", QUERY, of->key_size, d_q, call));
    DR_TRY(run(gpu, of, "attention_key", KEY, of->key_size, d_k, call));
    return run(gpu, of, "attention_value", VALUE, of->value_size, d_v, call);
}

dr_status dr_cuda_attention_backward(dr_backend *backend, const dr_attention *of, const void *q, const void *k, const void *v,
                                     const void *o, const void *log_sums, const void *d_o, void *d_q, void *d_k, void *d_v) {
    DR_NETWORK_ENTER(backend);
    if (of->layout.rows == 0) return DR_OK;
    const dr_scratch scratch(backend, of->layout.rows * of->heads * (int64_t)sizeof(float));
    DR_TRY(scratch.status);
    float *const along = (float *)scratch.at;
    DR_TRY(run_along(backend, gpu, of, o, d_o, along));
    if (dr_groups_take(backend, gpu, *of, q, k, v, d_o, d_q, d_k, d_v)) {
        dr_group_attention call = dr_group_attention_of(*of, q, k, v);
        call.d_o = (const dr_word *)d_o, call.log_sums = (const float *)log_sums, call.along = along;
        call.d_q = (dr_word *)d_q, call.d_k = (dr_word *)d_k, call.d_v = (dr_word *)d_v;
        return dr_attention_groups_backward(gpu, *of, call);
    }
    DR_NETWORK_TYPE(backend, T, backward_call<T> call = {}; call.shape = dr_attention_shape_of(*of);
                    call.q = {(const T *)q, of->key_size}, call.k = {(const T *)k, of->key_size};
                    call.v = {(const T *)v, of->value_size}, call.d_o = {(const T *)d_o, of->value_size};
                    call.log_sums = (const float *)log_sums, call.along = along;
                    call.wide = dr_can_be_wide(dr_wide<T>, of->key_size | of->value_size, q, k, v, d_o);
                    return backward(gpu, of, call, d_q, d_k, d_v))
}
