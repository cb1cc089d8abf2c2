/* What the backward's stages over chunks share: the 64 rows of a block, with a query in the last row of its token. */
#ifndef DR_CUDA_ROW_TILES_CUH
#define DR_CUDA_ROW_TILES_CUH

#include "backends/cuda/backward.h"
#include "backends/cuda/places.cuh"
#include "backends/cuda/rows.cuh"
#include "backends/cuda/tiles.cuh"

enum { BLOCK_THREADS = 128 };

/* A thread block's chunk, value head and place in shared memory. */
typedef struct {
    dr_chunk_place place;
    int64_t block;
    int head, key_head, rows; /* rows that are there */
} dr_row_block;

static __device__ inline dr_row_block dr_row_block_of(const dr_cuda_chunk_plan &plan, const int64_t *cu, int64_t block) {
    dr_row_block x;
    x.block = block;
    x.head = (int)(block % plan.value_heads);
    x.key_head = x.head / plan.rows.group;
    x.place = dr_find_chunk(plan, cu, block / plan.value_heads);
    x.rows = x.place.tokens * plan.rows.steps;
    return x;
}

/* Whether a query stands in the row: it is the last of its token. */
static __device__ inline bool dr_queries(const dr_cuda_rows &rows, int row) {
    return rows.steps == 1 || row % rows.steps == rows.steps - 1;
}

static __device__ inline bool dr_undecayed(const dr_cuda_rows &rows, int row) {
    return rows.row[0].undecayed && (rows.steps == 1 || row % rows.steps == 0);
}

/* 64 columns of a matrix of ours, [64][width]. */
template <typename T> static __device__ inline void dr_load_columns(void *tile, const T *from, int width, int column) {
    dr_load_tile<T>(tile, 64, 64, 64, true, [=](int row) { return from + (int64_t)row * width + column; });
}

/* 64 columns of d_o, the query rows of it. */
template <typename T>
static __device__ inline void dr_load_output_rows(void *tile, const dr_cuda_rows &rows, const dr_row_block &x, const void *d_o,
                                                  int column) {
    const int64_t stride = (int64_t)rows.value_heads * rows.value_size;
    const T *from = (const T *)d_o + x.place.first * stride + (int64_t)x.head * rows.value_size + column;
    const int steps = rows.steps, alive = x.rows;
    dr_load_tile<T>(tile, 64, 64, rows.value_size - column, rows.aligned, [=](int row) {
        const int token = steps == 1 ? row : row / steps;
        return row < alive && (steps == 1 || row - token * steps == steps - 1) ? from + token * stride : (const T *)NULL;
    });
}

template <typename T> static __device__ inline void dr_store_pair(void *tile, int row, int column, float left, float right) {
    T *to = (T *)((char *)tile + dr_tile_at<T>(0, 64, row, column));
    to[0] = dr_from_float<T>(left);
    to[1] = dr_from_float<T>(right);
}

/* Read keys (times read_factor[row]), write keys and queries of 64 channels from `first` on, a warp taking every fourth row.
 * NULL tiles are not wanted. */
template <typename T>
static __device__ inline void dr_load_row_keys(const dr_cuda_rows &rows, const dr_row_block &x, int first,
                                               const float *read_factor, void *read, void *write, void *query) {
    const int lane = (int)(threadIdx.x % 32), channel = first + 2 * lane;
#pragma unroll 4
    for (int row = (int)(threadIdx.x / 32); row < 64; row += BLOCK_THREADS / 32) {
        const int token = rows.steps == 1 ? row : row / rows.steps, step = row - token * rows.steps;
        float r[2] = {}, w[2] = {}, q[2] = {};
        if (row < x.rows) {
            if (read || write) dr_row_keys<T, 2>(rows, x.place.first + token, step, x.key_head, x.head, channel, r, w);
            if (query && dr_queries(rows, row)) dr_row_query<T, 2>(rows, x.place.first + token, x.key_head, channel, q);
        }
        if (read) dr_store_pair<T>(read, row, 2 * lane, r[0] * read_factor[row], r[1] * read_factor[row]);
        if (write) dr_store_pair<T>(write, row, 2 * lane, w[0], w[1]);
        if (query) dr_store_pair<T>(query, row, 2 * lane, q[0], q[1]);
    }
}

/* The gain that goes into M, and what is left of the gain beside it. */
static __device__ inline float dr_score_gain(float gain) {
    return fabsf(gain) < 0x1p-20f ? 1.0f : gain;
}

/* C [16 of this warp x 64] += A B with A rows of one tile; B the transpose of another's rows (turned), or its rows. first, end:
 * of the 64 that are contracted, in tiles of 16. */
template <typename T, bool turned>
static __device__ inline void dr_multiply_tiles(float (&c)[8][4], unsigned a_tile, unsigned b_tile, int first, int end) {
    const int mine = (int)(threadIdx.x / 32) * 16;
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (k >= first && k < end) {
            dr_operand_a<T> a;
            dr_load_a<T>(a, a_tile, 64, mine, k * 16);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                dr_operand_b<T> b[2];
                if constexpr (turned)
                    dr_load_b<T>(b, b_tile, 64, n * 16, k * 16);
                else
                    dr_load_b_straight<T>(b, b_tile, 64, k * 16, n * 16);
                dr_product<T>(c[2 * n], a, b[0]);
                dr_product<T>(c[2 * n + 1], a, b[1]);
            }
        }
}

/* The same with A the transpose of a tile: its columns of this warp. */
template <typename T>
static __device__ inline void dr_multiply_turned(float (&c)[8][4], unsigned a_tile, unsigned b_tile, int first, int end) {
    const int mine = (int)(threadIdx.x / 32) * 16;
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (k >= first && k < end) {
            dr_operand_a<T> a;
            float x[2][4];
            dr_load_transposed<T>(x, a_tile, 64, k * 16, mine);
            dr_operand_from<T>(a, x[0], x[1]);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                dr_operand_b<T> b[2];
                dr_load_b_straight<T>(b, b_tile, 64, k * 16, n * 16);
                dr_product<T>(c[2 * n], a, b[0]);
                dr_product<T>(c[2 * n + 1], a, b[1]);
            }
        }
}

#endif
