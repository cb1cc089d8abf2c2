/* What the kernels of softmax attention share (ops/attention.h).
 *
 * A tile is 64 rows of one side: queries, which are the heads of some tokens that share a key head, row r being head r % group
 * of token r / group of the sequence; or keys, one a token. Tiles begin at multiples of 64 rows counted from a sequence's
 * start, so that a token's result does not depend on what else is in the call. Products of two tiles go in depths of 64
 * channels. The kernels of warp groups (attention_groups.cuh) take 128 rows in place of the 64 of their own side. */
#ifndef DR_CUDA_NETWORK_ATTENTION_CUH
#define DR_CUDA_NETWORK_ATTENTION_CUH

#include "backends/cuda/network/sequences.cuh"
#include "backends/cuda/network/tiles.cuh"

/* A tensor of one side: [rows][heads][size]. */
template <typename T> struct dr_side {
    const T *at;
    int64_t size;
};

typedef struct {
    dr_cuda_layout layout;
    int64_t heads, key_heads, group; /* group: heads of a key head */
    int64_t window;                  /* 0: none */
    float scale;
} dr_attention_shape;

static inline dr_attention_shape dr_attention_shape_of(const dr_attention &attention) {
    return {dr_layout_on_device(attention.layout), attention.heads,  attention.key_heads,
            attention.heads / attention.key_heads, attention.window, (float)attention.scale};
}

/* Where a block works: rows `first` to `first` + 63 of a sequence's side of `rows` rows. */
typedef struct {
    dr_span of;
    int64_t key_head, first, rows, chunk; /* chunk: of the columns of what it makes */
} dr_attention_place;

/* Tiles of `tile` rows of a side whose tokens have `each` rows, as a launch counts them: those of a sequence begin behind as
 * many as the rows before it may have. */
static inline int64_t dr_attention_tiles(const dr_attention &attention, int64_t each, int64_t tile) {
    return attention.layout.rows * each / tile + attention.layout.sequences;
}

/* false: no rows are there. last_first: the last tile of a sequence has the first of its blocks. */
template <int TILE = DR_TILE, bool last_first = false>
static __device__ inline bool dr_attention_place_of(const dr_attention_shape &shape, int64_t each, int64_t chunks,
                                                    dr_attention_place *place) {
    const int64_t tile = blockIdx.x / chunks / shape.key_heads;
    const auto first_tile = [&](int64_t i) { return sequence_begin(shape.layout, i) * each / TILE + i; };
    const int64_t sequence = dr_last_before(shape.layout.sequences, tile, first_tile);
    place->of = dr_span_at(shape.layout, sequence);
    place->chunk = blockIdx.x % chunks;
    place->key_head = blockIdx.x / chunks % shape.key_heads;
    place->first = (last_first ? first_tile(sequence + 1) - 1 - tile : tile - first_tile(sequence)) * TILE;
    place->rows = (place->of.end - place->of.begin) * each;
    return place->first < place->rows;
}

/* Which row of its tensor row r of a sequence's side is. */
static __device__ inline int64_t dr_query_row(const dr_attention_shape &shape, const dr_attention_place &place, int64_t r) {
    return (place.of.begin + r / shape.group) * shape.heads + place.key_head * shape.group + r % shape.group;
}

static __device__ inline int64_t dr_key_row(const dr_attention_shape &shape, const dr_attention_place &place, int64_t r) {
    return (place.of.begin + r) * shape.key_heads + place.key_head;
}

/* By loads of N channels. */
template <int N, typename T, typename F>
static __device__ inline void dr_load_side_by(T *tile, int64_t size, int64_t channel, bool turned, const F &row_at) {
    constexpr int loads = DR_TILE / N;
    for (int n = (int)threadIdx.x; n < DR_TILE * loads; n += DR_TILE_THREADS) {
        const int row = n / loads, column = n % loads * N;
        const T *const from = row_at(row);
        T part[N];
#pragma unroll
        for (int i = 0; i < N; i++) part[i] = dr_from_float<T>(0);
        if (from && channel + column < size) {
            if constexpr (N == 1) {
                part[0] = from[channel + column];
            } else {
                const uint4 words = *(const uint4 *)(const void *)(from + channel + column);
                memcpy(part, &words, sizeof part);
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++) tile[turned ? (column + i) * DR_TILE_ROW + row : row * DR_TILE_ROW + column + i] = part[i];
    }
}

/* 64 rows and the channels from `channel` on of vectors of `size` channels, zeros behind their ends; turned: the tile has a row
 * a channel. row_at(r): where row r of the tile begins, NULL: it is zero. wide: rows begin at 16 bytes and so do channels. */
template <typename T, typename F>
static __device__ inline void dr_load_side(T *tile, int64_t size, int64_t channel, bool turned, bool wide, const F &row_at) {
    if (wide)
        dr_load_side_by<dr_wide<T>>(tile, size, channel, turned, row_at);
    else
        dr_load_side_by<1>(tile, size, channel, turned, row_at);
}

#endif
