/* What keys.cu and keys_channel.cuh share: places in shared memory, and factors of accumulators. */
#ifndef DR_CUDA_KEYS_CUH
#define DR_CUDA_KEYS_CUH

#include "backends/cuda/row_tiles.cuh"

typedef struct {
    int stage[5];                         /* dO, dY, U, S, dS' while the states pass by, */
    int score, erase, write, query, read; /* then G, M, w, q~, r in the same places */
    int scaled[6], alpha;                 /* decay by channel: keys scaled to the borders of their blocks, of their halves */
    int ahead; /* from the stages to others behind them, where the scaled keys will lie; 0: there are none */
    int small, bytes;
} keys_room;

static __host__ __device__ inline keys_room lay_room(int element, bool channel) {
    const int tile = 64 * 64 * element, floats = 64 * 64 * (int)sizeof(float);
    keys_room room;
    for (int i = 0; i < 5; i++) room.stage[i] = i * tile;
    room.score = room.stage[0];
    room.erase = room.stage[1];
    room.write = room.stage[2];
    room.query = room.stage[3];
    room.read = room.stage[4];
    for (int i = 0; i < 6; i++) room.scaled[i] = (5 + i) * tile;
    room.ahead = channel ? 5 * tile : 0;
    room.alpha = 11 * tile;
    room.small = channel ? 11 * tile + floats : 5 * tile;
    room.bytes = room.small + 21 * 64 * (int)sizeof(float);
    return room;
}

/* Factors of rows and channels, [64] each. */
typedef struct {
    float *split, *inverse, *rest;        /* s, 1/s, -(c/s) */
    float *head_query, *head_read, *tail; /* scalar decay: from entry, to exit */
    float *alpha, *gain;
    float *exit;  /* [64] D (S . dS') of every channel */
    float *total; /* [4][64] factors by block and channel; before that, parts of exit */
    float *half;  /* [8][64] the same of half blocks */
} keys_rows;

static __device__ inline keys_rows lay_rows(char *shared, const keys_room &room) {
    float *at = (float *)(shared + room.small);
    keys_rows rows;
    rows.split = at;
    rows.rest = at + 64;
    rows.head_query = at + 128;
    rows.head_read = at + 192;
    rows.tail = at + 256;
    rows.alpha = at + 320;
    rows.gain = at + 384;
    rows.exit = at + 448;
    rows.total = at + 512;
    rows.half = at + 768;
    rows.inverse = at + 1280;
    return rows;
}

static __device__ inline void scale_rows(float (&c)[8][4], const float *factor, float more) {
    const int row = (int)(threadIdx.x / 32) * 16 + (int)(threadIdx.x % 32) / 4;
    const float upper = factor[row] * more, lower = factor[row + 8] * more;
#pragma unroll
    for (int n = 0; n < 8; n++) c[n][0] *= upper, c[n][1] *= upper, c[n][2] *= lower, c[n][3] *= lower;
}

/* Two neighbouring channels of a tile as floats, and back. */
template <typename T> static __device__ inline float2 tile_pair(const char *tile, int row, int column) {
    const T *at = (const T *)(tile + dr_tile_at<T>(0, 64, row, column));
    return make_float2(dr_to_float(at[0]), dr_to_float(at[1]));
}

template <typename T> static __device__ inline void set_pair(char *tile, int row, int column, float2 x) {
    dr_store_pair<T>((T *)(tile + dr_tile_at<T>(0, 64, row, column)), x.x, x.y);
}

/* ---- where gradients of rows lead (leads.h) ---------------------------------------------------------------------------------
 */

/* Channel `first` of the gradient of an input at a row's token, or NULL: there is none, or it is not wanted. Of vectors that
 * rows of steps lead to, the key alone has an axis of them. */
template <typename T>
static __device__ inline T *dr_input_gradient(const dr_cuda_rows &rows, const dr_row_block &x, dr_input i, int row, int first) {
    if (i == DR_INPUTS || row >= x.rows || !rows.input[i].gradient) return NULL;
    const dr_cuda_input &input = rows.input[i];
    const int token = dr_row_token(rows, row), step = i == DR_INPUT_KEY ? dr_step_index(rows, row - token * rows.steps) : 0;
    return (T *)input.gradient + dr_input_index(input, x.place.first + token, step, x.head) + first;
}

static __device__ inline const dr_row &dr_row_kind(const dr_cuda_rows &rows, int row) {
    return dr_rule_row(rows, row - dr_row_token(rows, row) * rows.steps);
}

template <typename T>
static __device__ inline T *dr_query_gradient(const dr_cuda_rows &rows, const dr_row_block &x, int row, int first) {
    return dr_input_gradient<T>(rows, x, dr_queries(rows, row) ? DR_INPUT_QUERY : DR_INPUTS, row, first);
}

template <typename T>
static __device__ inline T *dr_written_gradient(const dr_cuda_rows &rows, const dr_row_block &x, int row, int first) {
    return dr_input_gradient<T>(rows, x, dr_row_written(&dr_row_kind(rows, row)), row, first);
}

template <typename T>
static __device__ inline T *dr_led_gradient(const dr_cuda_rows &rows, const dr_row_block &x, int row, int first) {
    return dr_input_gradient<T>(rows, x, dr_row_led(&dr_row_kind(rows, row)), row, first);
}

#endif
