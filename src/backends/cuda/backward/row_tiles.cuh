/* What the backward's stages over chunks share: the 64 rows of a block, with a query in the last row of its token. */
#ifndef DR_CUDA_ROW_TILES_CUH
#define DR_CUDA_ROW_TILES_CUH

#include "backends/cuda/backward/backward.h"
#include "backends/cuda/chunkwise/prepare_load.cuh"
#include "backends/cuda/plan/find.cuh"

enum { BLOCK_THREADS = 128 };

/* A thread block's chunk, value head and place in shared memory. */
typedef struct {
    dr_chunk_place place;
    int64_t block;
    int head, key_head, rows; /* rows that are there */
} dr_row_block;

static __device__ inline dr_row_block dr_row_block_of(const dr_cuda_chunk_plan &plan, const int64_t *cu, unsigned block) {
    const unsigned heads = (unsigned)plan.value_heads, slot = block / heads;
    dr_row_block x;
    x.block = block;
    x.head = (int)(block - slot * heads);
    x.key_head = plan.rows.group == 1 ? x.head : x.head / plan.rows.group;
    x.place = dr_find_chunk(plan, cu, slot);
    x.rows = x.place.tokens * plan.rows.steps;
    return x;
}

/* The same of a block that the launch's divisions have found (find.cuh); key_head: its. */
static __device__ inline dr_row_block dr_row_block_found(const dr_cuda_chunk_plan &plan, const int64_t *cu, dr_block_place at,
                                                         int64_t block, int key_head, int steps) {
    dr_row_block x;
    x.block = block;
    x.head = (int)at.head;
    x.key_head = key_head;
    x.place = dr_block_chunk(plan, cu, at);
    x.rows = x.place.tokens * steps;
    return x;
}

/* The states that the call gives in float, before a sequence's first chunk and after its last: [K][V] of this head, or NULL. Of
 * 16-bit types the tensors between the stages hold them rounded. */
static __device__ inline const float *dr_given_state(const dr_cuda_backward_call &call, const dr_row_block &x, bool exit) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const float *states = exit ? call.d_final : call.initial;
    if (!states) return NULL;
    const bool there = exit ? x.place.last : x.place.first == dr_sequence_begin(plan, call.chunk.cu, x.place.sequence);
    const int64_t size = (int64_t)plan.rows.key_size * plan.rows.value_size;
    return there ? states + (x.place.sequence * plan.value_heads + x.head) * size : NULL;
}

/* Whether nothing lies before the chunk: the first decay of a sequence that begins without a state has a gradient of 0,
 * whatever rounding leaves of the sums. */
static __device__ inline bool dr_begins_empty(const dr_cuda_backward_call &call, const dr_row_block &x) {
    return !call.initial && x.place.first == dr_sequence_begin(call.plan, call.chunk.cu, x.place.sequence);
}

/* Whether vectors fill their boxes of channels, and lie aligned. */
static inline bool dr_vectors_whole(const dr_cuda_chunk_plan &plan) {
    const dr_cuda_rows &rows = plan.rows;
    return rows.aligned && rows.key_size == plan.key_width && rows.value_size == plan.value_width;
}

/* Whether that is so and the call gives no states: kernels that provide for nothing else are half as long. */
static inline bool dr_call_plain(const dr_cuda_backward_call &call) {
    return dr_vectors_whole(call.plan) && !call.initial && !call.d_final;
}

/* Where the gradient of an input's vector lies that rows lead to (rows.direct): every value head has a part of its own.
 * Where several share a key head, inputs of that have parts as well, which sum_heads adds up, and between tokens lie spread
 * times as many elements as in the input. */
static __device__ inline int dr_gradient_spread(const dr_cuda_rows &rows, const dr_cuda_input &input) {
    return input.per_value ? 1 : rows.group;
}

static __device__ inline int64_t dr_gradient_index(const dr_cuda_rows &rows, const dr_cuda_input &input, int64_t token,
                                                   int value_head) {
    return dr_gradient_spread(rows, input) * (token * input.token) + value_head * input.head;
}

static __device__ inline float dr_state_element(const dr_cuda_rows &rows, const float *state, int channel, int column) {
    const bool there = channel < rows.key_size && column < rows.value_size;
    return there ? state[(int64_t)channel * rows.value_size + column] : 0;
}

/* What rounding to T takes from 64 columns of V and 64 channels of a given state, to a tile as the stages hold it. */
template <typename T>
static __device__ inline void dr_load_rest(char *tile, const dr_cuda_rows &rows, const float *state, int column, int first) {
#pragma unroll 4
    for (int i = dr_copy_thread(); i < 64 * 64; i += BLOCK_THREADS) {
        const float x = dr_state_element(rows, state, first + i / 64, column + i % 64);
        *(T *)(tile + dr_tile_at<T>(0, 64, i % 64, i / 64)) = dr_from_float<T>(x - dr_to_float(dr_from_float<T>(x)));
    }
}

/* How often w is to be added to its gradient so that their product is `target`; dot: w . d_w, square: w . w. */
static __device__ inline float dr_settle_by(float target, float dot, float square) {
    return square > 0 ? (target - dot) / square : 0;
}

static __device__ inline bool dr_undecayed(const dr_cuda_rows &rows, int row) {
    return rows.row[0].undecayed && (rows.steps == 1 || row % rows.steps == 0);
}

/* 64 columns of a matrix of ours, [64][width]: whole, so that a thread's addresses are one and multiples of a stride. */
template <typename T> static __device__ inline void dr_load_columns(char *tile, const T *from, int width, int column) {
    constexpr int unit = 16 / (int)sizeof(T), units = 64 / unit, step = DR_COPY_THREADS / units;
    const int thread = (int)(dr_forget(threadIdx.x) % DR_COPY_THREADS), row = thread / units, within = thread % units * unit;
    const T *at = from + row * width + column + within;
    const unsigned to = dr_tile_at<T>(dr_shared_address(tile), 64, row, within);
    DR_UNROLL_BY (j, 64, step) dr_copy_async(to + (unsigned)(j * 64 * (int)sizeof(T)), at + j * width, true);
}

/* 64 columns of d_o, the query rows of it. */
template <typename T>
static __device__ inline void dr_load_output_rows(char *tile, const dr_cuda_rows &rows, const dr_row_block &x, const void *d_o,
                                                  int column) {
    const int64_t stride = (int64_t)rows.value_heads * rows.value_size;
    const dr_strided<T> from = {(const T *)d_o + x.place.first * stride + (int64_t)x.head * rows.value_size + column, stride,
                                x.place.tokens};
    dr_clear_rows<T>(tile, 64, 1, rows.steps - 1, rows.steps);
    dr_copy_rows<T>(tile, 64, 1, rows.value_size - column, rows.aligned, dr_whole_tokens(rows), rows.steps - 1, rows.steps,
                    from);
}

/* From a tile to 64 columns of such a matrix. */
template <typename T> static __device__ inline void dr_store_columns(T *to, int width, int column, const char *tile) {
    constexpr int unit = 16 / (int)sizeof(T), units = 64 / unit, step = BLOCK_THREADS / units;
    const int row = (int)threadIdx.x / units, within = (int)threadIdx.x % units * unit;
    to += row * width + column + within;
    tile += dr_tile_at<T>(0, 64, row, within);
    DR_UNROLL_BY (j, 64, step) *(uint4 *)(to + j * width) = *(const uint4 *)(tile + j * 64 * (int)sizeof(T));
}

template <typename T> static __device__ inline void dr_put_pair(char *tile, int row, int column, float left, float right) {
    dr_store_pair<T>((T *)(tile + dr_tile_at<T>(0, 64, row, column)), left, right);
}

static __device__ inline dr_prepare_block dr_row_keys_block(const dr_row_block &x, int first) {
    return {x.block, x.place, x.head, x.key_head, x.rows, first, 1, 0, 0};
}

/* Asks for read keys, write keys and queries of 64 channels from `first` on; there once the copies are waited for, a barrier is
 * passed and they are finished (a barrier follows what that does). read NULL: not wanted, or the write keys serve. */
template <typename T, int steps>
static __device__ inline void dr_load_row_keys(const dr_cuda_chunk_plan &plan, const dr_row_block &x, int first, char *read,
                                               char *write, char *query) {
    dr_load_rows<T, steps>(plan, dr_row_keys_block(x, first), write, read, query);
}

template <typename T>
static __device__ inline void dr_finish_row_keys(const dr_cuda_chunk_plan &plan, const dr_row_block &x, int first, char *read,
                                                 char *write, const char *query) {
    dr_finish_rows<T>(plan, dr_row_keys_block(x, first), write, read, query);
}

/* The gain that goes into M, and what is left of the gain beside it. */
static __device__ inline float dr_score_gain(float gain) {
    return fabsf(gain) < 0x1p-20f ? 1.0f : gain;
}

/* C [16 x 16 count] += A [16 x 16] B, B the rows `contracted` .. of a tile, its columns from `column` on, or (turned) the
 * transpose of the columns `contracted` .. of it. Of 16-bit types the operands of up to four products are loaded before the
 * first of them, so that they do not wait for each other. */
template <typename T, bool turned, int count>
static __device__ inline void dr_multiply_row(float (&c)[2 * count][4], const dr_operand_a<T> &a, unsigned tile, int rows,
                                              int contracted, int column = 0) {
    constexpr int ahead = sizeof(T) == 4 ? 1 : count < 4 ? count : 4;
    DR_UNROLL_BY (first, count, ahead) {
        dr_operand_b<T> b[ahead][2];
        DR_UNROLL (n, ahead) {
            if constexpr (turned)
                dr_load_b<T>(b[n], tile, rows, (first + n) * 16, contracted);
            else
                dr_load_b_straight<T>(b[n], tile, rows, contracted, column + (first + n) * 16);
        }
        DR_UNROLL (n, ahead) {
            dr_product<T>(c[2 * (first + n)], a, b[n][0]);
            dr_product<T>(c[2 * (first + n) + 1], a, b[n][1]);
        }
    }
}

/* C [16 of this warp x 64] += A B with A rows of one tile; B the transpose of another's rows (turned), or its rows. Sixteen of
 * the 64 that are contracted, from 16 k on. */
template <typename T, bool turned>
static __device__ inline void dr_multiply_sixteen(float (&c)[8][4], unsigned a_tile, unsigned b_tile, int k) {
    dr_operand_a<T> a;
    dr_load_a<T>(a, a_tile, 64, (int)(threadIdx.x / 32) * 16, k * 16);
    dr_multiply_row<T, turned, 4>(c, a, b_tile, 64, k * 16);
}

/* first, end: of the 64, in tiles of 16. */
template <typename T, bool turned>
static __device__ inline void dr_multiply_tiles(float (&c)[8][4], unsigned a_tile, unsigned b_tile, int first, int end) {
#pragma unroll(sizeof(T) == 4 ? 1 : 4)
    for (int k = 0; k < 4; k++)
        if (k >= first && k < end) dr_multiply_sixteen<T, turned>(c, a_tile, b_tile, k);
}

/* A the transpose of a tile: its columns from `mine` on, its rows 16 k .. */
template <typename T> static __device__ inline void dr_load_turned(dr_operand_a<T> &a, unsigned tile, int k, int mine) {
    if constexpr (sizeof(T) == 4) {
        float x[2][4];
        dr_load_transposed<T>(x, tile, 64, k * 16, mine);
        dr_operand_from<T>(a, x[0], x[1]);
    } else {
        dr_load_matrices_transposed(a.x, dr_lane_at<T>(tile + dr_lane_along<T>(), 64, k * 16, mine));
    }
}

/* The same, those rows times factor[row]; NULL: 1. */
template <typename T>
static __device__ inline void dr_load_turned(dr_operand_a<T> &a, unsigned tile, int k, int mine, const float *factor) {
    if (!factor) {
        dr_load_turned<T>(a, tile, k, mine);
        return;
    }
    const int t = (int)(threadIdx.x % 4);
    float x[2][4];
    dr_load_transposed<T>(x, tile, 64, k * 16, mine);
    DR_UNROLL (h, 2)
        DR_UNROLL (j, 2) {
            const float f = factor[k * 16 + h * 8 + 2 * t + j];
            x[h][j] *= f;
            x[h][j + 2] *= f;
        }
    dr_operand_from<T>(a, x[0], x[1]);
}

/* The same as above with such an A. */
template <typename T>
static __device__ inline void dr_multiply_turned(float (&c)[8][4], unsigned a_tile, unsigned b_tile, int first, int end,
                                                 const float *factor) {
#pragma unroll(sizeof(T) == 4 ? 1 : 4)
    for (int k = 0; k < 4; k++)
        if (k >= first && k < end) {
            dr_operand_a<T> a;
            dr_load_turned<T>(a, a_tile, k, (int)(threadIdx.x / 32) * 16, factor);
            dr_multiply_row<T, false, 4>(c, a, b_tile, 64, k * 16);
        }
}

/* Columns up to this warp's rows of the rows of one tile times the transpose of another: a triangle of scores. */
template <typename T> static __device__ inline void dr_multiply_scores(float (&c)[8][4], unsigned a_tile, unsigned b_tile) {
    const int warp = (int)(threadIdx.x / 32);
    DR_UNROLL (k, 4) {
        dr_operand_a<T> a;
        dr_load_a<T>(a, a_tile, 64, warp * 16, k * 16);
        DR_UNROLL (n, 4)
            if (n <= warp) {
                dr_operand_b<T> b[2];
                dr_load_b<T>(b, b_tile, 64, n * 16, k * 16);
                dr_product<T>(c[2 * n], a, b[0]);
                dr_product<T>(c[2 * n + 1], a, b[1]);
            }
    }
}

#endif
