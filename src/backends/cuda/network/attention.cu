/* Softmax attention, forward. A block takes 64 rows of queries and all keys that these see, 64 at a time; the largest score and
 * the sum of a row go on from tile to tile (Milakov and Gimelshein 2018; Dao et al. 2022), and the output is divided by the sum
 * at the end. Keys before the call's own come from memory. Each of four warps has 16 rows; a row's scores are those of four
 * lanes. Outputs of more than CHUNK channels take several blocks, which make the same scores. */
#include "backends/cuda/network/attention_groups.cuh"

enum { CHUNK = 128 };

template <typename T> struct forward_call {
    dr_attention_shape shape;
    dr_side<T> q, k, v;
    const T *past_keys, *past_values; /* [slots][capacity][key_heads][size] */
    int64_t capacity;
    const int64_t *past, *slot; /* of each sequence, or NULL */
    T *o;
    float *log_sums;
    int64_t chunks;
    bool wide;
};

/* Where the key or value of a position lies; remembered: those of positions before the call's. */
template <typename T>
static __device__ const T *row_at(const forward_call<T> &call, const dr_attention_place &place, int64_t past, int64_t position,
                                  const dr_side<T> &own, const T *remembered) {
    if (position >= past) return own.at + dr_key_row(call.shape, place, position - past) * own.size;
    const int64_t slot = call.slot ? call.slot[place.of.index] : place.of.index;
    return remembered + ((slot * call.capacity + position % call.capacity) * call.shape.key_heads + place.key_head) * own.size;
}

/* Of the two rows of a lane. */
typedef struct {
    int64_t position[2]; /* -1: there is no such row */
    float most[2], sum[2];
} lane_rows;

/* scores becomes exp(score - most); o and sum are brought to the new maximum. */
template <int NB, int OB>
static __device__ void soften(const dr_attention_shape &shape, int64_t first_key, lane_rows *rows, float (&scores)[NB][4],
                              float (&o)[OB][4]) {
    float most[2] = {rows->most[0], rows->most[1]}, by[2], sum[2] = {0, 0};
#pragma unroll
    for (int nb = 0; nb < NB; nb++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t key = first_key + dr_tile_column(nb, i), position = rows->position[i / 2];
            const bool seen = key <= position && (shape.window == 0 || key > position - shape.window);
            scores[nb][i] = seen ? scores[nb][i] * shape.scale : -INFINITY;
            most[i / 2] = fmaxf(most[i / 2], scores[nb][i]);
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        most[r] = dr_most_of_lanes(most[r], 4);
        by[r] = rows->most[r] == most[r] ? 1 : expf(rows->most[r] - most[r]);
        rows->most[r] = most[r];
    }
#pragma unroll
    for (int nb = 0; nb < NB; nb++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            scores[nb][i] = scores[nb][i] == -INFINITY ? 0 : expf(scores[nb][i] - most[i / 2]);
            sum[i / 2] += scores[nb][i];
        }
#pragma unroll
    for (int r = 0; r < 2; r++) rows->sum[r] = rows->sum[r] * by[r] + dr_sum_lanes(sum[r], 4);
#pragma unroll
    for (int nb = 0; nb < OB; nb++)
#pragma unroll
        for (int i = 0; i < 4; i++) o[nb][i] *= by[i / 2];
}

template <int OB, typename T>
static __global__ void __launch_bounds__(DR_TILE_THREADS) attention(const __grid_constant__ forward_call<T> call) {
    extern __shared__ char shared[];
    T *const own = (T *)shared, *const other = own + DR_TILE * DR_TILE_ROW;
    const int warp = (int)threadIdx.x / 32;
    T *const weights = other + DR_TILE * DR_TILE_ROW + warp * 16 * DR_TILE_ROW;
    const dr_attention_shape &shape = call.shape;
    dr_attention_place place;
    if (!dr_attention_place_of(shape, shape.group, call.chunks, &place)) return;
    const int64_t past = call.past ? call.past[place.of.index] : 0, channel = place.chunk * CHUNK;
    lane_rows rows;
    float o[OB][4];
    for (int r = 0; r < 2; r++) {
        const int64_t row = place.first + warp * 16 + dr_tile_row(2 * r);
        rows.position[r] = row < place.rows ? past + row / shape.group : -1;
        rows.most[r] = -INFINITY, rows.sum[r] = 0;
    }
    dr_zero_tile(o);
    const int64_t last_row = place.first + DR_TILE < place.rows ? place.first + DR_TILE - 1 : place.rows - 1;
    const int64_t last = past + last_row / shape.group, sees = past + place.first / shape.group - shape.window + 1;
    const int64_t begin = shape.window > 0 && sees > 0 ? sees / DR_TILE * DR_TILE : 0;
    for (int64_t key = begin; key <= last; key += DR_TILE) {
        float scores[DR_TILE / 8][4];
        dr_zero_tile(scores);
        for (int64_t depth = 0; depth < call.q.size; depth += DR_TILE) {
            __syncthreads();
            dr_load_side(own, call.q.size, depth, false, call.wide, [&](int r) -> const T * {
                if (place.first + r >= place.rows) return NULL;
                return call.q.at + dr_query_row(shape, place, place.first + r) * call.q.size;
            });
            dr_load_side(other, call.k.size, depth, false, call.wide, [&](int r) -> const T * {
                return key + r <= last ? row_at(call, place, past, key + r, call.k, call.past_keys) : NULL;
            });
            __syncthreads();
            dr_multiply_tiles(scores, own + warp * 16 * DR_TILE_ROW, other, DR_TILE);
        }
        soften(shape, key, &rows, scores, o);
        for (int nb = 0; nb < DR_TILE / 8; nb++)
            for (int i = 0; i < 4; i++)
                weights[dr_tile_row(i) * DR_TILE_ROW + dr_tile_column(nb, i)] = dr_from_float<T>(scores[nb][i]);
#pragma unroll
        for (int part = 0; part < OB * 8 / DR_TILE; part++) {
            __syncthreads();
            dr_load_side(other, call.v.size, channel + part * DR_TILE, true, call.wide, [&](int r) -> const T * {
                return key + r <= last ? row_at(call, place, past, key + r, call.v, call.past_values) : NULL;
            });
            __syncthreads();
            dr_multiply_tiles(*(float(*)[DR_TILE / 8][4])(o + part * (DR_TILE / 8)), weights, other, DR_TILE);
        }
    }
    for (int i = 0; i < 4; i++) {
        const int64_t row = place.first + warp * 16 + dr_tile_row(i);
        if (row >= place.rows) continue;
        const int64_t at = dr_query_row(shape, place, row);
        for (int nb = 0; nb < OB; nb++) {
            const int64_t column = channel + dr_tile_column(nb, i);
            if (column < call.v.size) call.o[at * call.v.size + column] = dr_from_float<T>(o[nb][i] / rows.sum[i / 2]);
        }
        if (call.log_sums && place.chunk == 0 && i % 2 == 0 && threadIdx.x % 4 == 0)
            call.log_sums[at] = rows.most[i / 2] + logf(rows.sum[i / 2]);
    }
}

dr_status dr_cuda_attention_forward(dr_backend *backend, const dr_attention *of, const void *q, const void *k, const void *v,
                                    const dr_attention_memory *memory, void *o, void *log_sums) {
    DR_NETWORK_ENTER(backend);
    const int64_t chunks = dr_blocks_of(of->value_size, CHUNK),
                  tiles = dr_attention_tiles(*of, of->heads / of->key_heads, DR_TILE);
    if (of->layout.rows == 0) return DR_OK;
    if (!memory && dr_groups_take(backend, gpu, *of, q, k, v, o)) {
        dr_group_attention call = dr_group_attention_of(*of, q, k, v);
        call.o = (dr_word *)o, call.sums = (float *)log_sums;
        return dr_attention_groups_forward(gpu, *of, call);
    }
    DR_NETWORK_TYPE(
        backend, T, forward_call<T> call = {}; call.shape = dr_attention_shape_of(*of);
        call.q = {(const T *)q, of->key_size}, call.k = {(const T *)k, of->key_size}; call.v = {(const T *)v, of->value_size};
        if (memory) {
            call.past_keys = (const T *)memory->keys, call.past_values = (const T *)memory->values;
            call.capacity = memory->capacity, call.past = memory->past, call.slot = memory->slot;
        } call.o = (T *)o;
        call.log_sums = (float *)log_sums, call.chunks = chunks;
        call.wide = dr_can_be_wide(dr_wide<T>, of->key_size | of->value_size, q, k, v, call.past_keys, call.past_values);
        const int bytes = 3 * dr_tile_bytes<T>();
        return dr_cuda_launch("attention", of->value_size <= DR_TILE ? attention<8, T> : attention<16, T>,
                              {tiles, of->key_heads, chunks}, DR_TILE_THREADS, bytes, gpu->stream, call))
}

/* ---- memory ---------------------------------------------------------------------------------------------------------------
 */

/* The last `capacity` tokens of each sequence go to their places. */
template <typename T> struct append_call {
    dr_cuda_layout layout;
    int64_t row, capacity; /* row: of all key heads */
    const int64_t *past, *slot;
    const T *from;
    T *to;

    template <int N> __device__ void at(int64_t i) const {
        const int64_t token = i / row;
        const dr_span of = dr_span_of(layout, token);
        if (token < of.end - capacity) return;
        const int64_t position = token - of.begin + (past ? past[of.index] : 0);
        T *const place = to + ((slot ? slot[of.index] : of.index) * capacity + position % capacity) * row;
        dr_store_floats<N>(place + i % row, dr_load_floats<N>(from + i));
    }
};

static dr_status append(dr_backend *backend, const dr_cuda *gpu, const dr_attention *of, const dr_attention_memory *memory,
                        int64_t size, const void *from, void *to) {
    const int64_t row = of->key_heads * size;
    DR_NETWORK_INSTANCE(backend, row, (from, to), T, N,
                        const append_call<T> call = {dr_layout_on_device(of->layout), row, memory->capacity, memory->past,
                                                     memory->slot, (const T *)from, (T *)to};
                        return dr_run_each<N>(gpu, "attention_append", of->layout.rows * row, call))
}

dr_status dr_cuda_attention_append(dr_backend *backend, const dr_attention *of, const void *k, const void *v,
                                   const dr_attention_memory *memory) {
    DR_NETWORK_ENTER(backend);
    DR_TRY(append(backend, gpu, of, memory, of->key_size, k, memory->keys));
    return append(backend, gpu, of, memory, of->value_size, v, memory->values);
}
