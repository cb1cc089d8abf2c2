/* The load stage of prepare: the rows of a chunk as tiles of write keys, read keys and queries, and their gains.
 *
 * Keys that stand in a tensor as they are come by asynchronous copies; for the others a warp maps a row at a time (rows.cuh). A
 * query stands in the last row of its token, other rows of its tile are zero: so scores of erase rows and of queries have the
 * same decay factors and the same shape. */
#ifndef DR_CUDA_PREPARE_LOAD_CUH
#define DR_CUDA_PREPARE_LOAD_CUH

#include "backends/cuda/chunkwise.h"
#include "backends/cuda/places.cuh"
#include "backends/cuda/rows.cuh"
#include "backends/cuda/tiles.cuh"

enum { PREPARE_THREADS = 128 };

typedef struct {
    dr_cuda_chunk_plan plan;
    dr_cuda_chunk_tensors tensors;
} dr_prepare_call;

/* One block of threads: one chunk of one value head. */
typedef struct {
    int64_t block;
    dr_chunk_place place;
    int head, key_head;
    int alive; /* rows that are there */
} dr_prepare_block;

static __device__ inline dr_prepare_block dr_prepare_find(const dr_prepare_call &call) {
    dr_prepare_block x;
    x.block = blockIdx.x;
    x.place = dr_find_chunk(call.plan, call.tensors.cu, x.block / call.plan.value_heads);
    x.head = (int)(x.block % call.plan.value_heads);
    x.key_head = x.head / call.plan.rows.group;
    x.alive = x.place.tokens * call.plan.rows.steps;
    return x;
}

/* Row i of a chunk as token and step of it. */
static __device__ inline int dr_row_token(const dr_cuda_rows &rows, int i) {
    return rows.steps == 1 ? i : i / rows.steps;
}

/* Every row that reads does so by the key that it writes: then one tile serves both. */
static __host__ __device__ inline bool dr_rows_tied(const dr_cuda_rows &rows) {
    const int count = rows.step_axis ? 1 : rows.steps;
    for (int i = 0; i < count; i++) {
        const dr_row &row = rows.row[i];
        const bool same = (row.read == DR_READ_KEY && row.write == DR_WRITE_KEY) ||
                          (row.read == DR_READ_ERASE_KEY && row.write == DR_WRITE_ERASE_KEY);
        if (row.read != DR_READ_NONE && !same) return false;
    }
    return true;
}

/* Whether keys and queries all stand in tensors, and no gain needs an inner product of them. */
static __device__ inline bool dr_rows_plain(const dr_cuda_rows &rows) {
    const int count = rows.step_axis ? 1 : rows.steps;
    for (int i = 0; i < count; i++) {
        const dr_row &row = rows.row[i];
        if (row.read == DR_READ_GATED_KEY || row.read == DR_READ_KEY_PLUS_QUERY || row.read == DR_READ_FREE ||
            row.write == DR_WRITE_RATE_READ || dr_row_needs_dot(rows, i))
            return false;
    }
    return rows.query != DR_QUERY_CORRECTED;
}

static __device__ inline dr_source dr_read_source(const dr_cuda_rows &rows, dr_read read) {
    const dr_source none = {NULL, 0, 0, 0};
    if (read == DR_READ_NONE) return none;
    return dr_source_of(rows.input[read == DR_READ_ERASE_KEY  ? DR_INPUT_ERASE_KEY
                                   : read == DR_READ_FEEDBACK ? DR_INPUT_FEEDBACK_KEY
                                                              : DR_INPUT_KEY]);
}

static __device__ inline dr_source dr_write_source(const dr_cuda_rows &rows, dr_write write) {
    if (write == DR_WRITE_PRECONDITIONED) return dr_source_made(rows, rows.squashed);
    if (write == DR_WRITE_SHERMAN_MORRISON) return dr_source_made(rows, rows.morrison);
    return dr_source_of(rows.input[write == DR_WRITE_ERASE_KEY ? DR_INPUT_ERASE_KEY
                                   : write == DR_WRITE_FREE    ? DR_INPUT_FREE_WRITE
                                                               : DR_INPUT_KEY]);
}

/* Rows of a tile from two sources in turn, or from one with an axis of steps. */
template <typename T>
static __device__ inline void dr_load_plain(void *tile, const dr_cuda_chunk_plan &plan, const dr_prepare_block &x,
                                            const dr_source &first, const dr_source &second) {
    const dr_cuda_rows &rows = plan.rows;
    const int steps = rows.steps, alive = x.alive;
    const bool axis = rows.step_axis;
    const T *one = (const T *)first.at, *two = (const T *)second.at;
    if (one) one += x.place.first * first.token + x.key_head * first.head;
    if (two) two += x.place.first * second.token + x.key_head * second.head;
    dr_load_tile<T>(tile, 64, plan.key_width, rows.key_size, rows.aligned, [=](int row) {
        const int token = steps == 1 ? row : row / steps, step = row - token * steps;
        if (row >= alive) return (const T *)NULL;
        if (axis || step == 0) return one ? one + token * first.token + step * first.step : one;
        return two ? two + token * second.token : two;
    });
}

template <typename T>
static __device__ inline void dr_load_plain_rows(const dr_cuda_chunk_plan &plan, const dr_prepare_block &x, void *writer,
                                                 void *reader, void *query) {
    const dr_cuda_rows &rows = plan.rows;
    const dr_row &last = rows.row[rows.step_axis || rows.steps == 1 ? 0 : 1];
    dr_load_plain<T>(writer, plan, x, dr_write_source(rows, rows.row[0].write), dr_write_source(rows, last.write));
    if (reader) dr_load_plain<T>(reader, plan, x, dr_read_source(rows, rows.row[0].read), dr_read_source(rows, last.read));
    const dr_source source =
        rows.query == DR_QUERY_RIDGE ? dr_source_made(rows, rows.ridge_query) : dr_source_of(rows.input[DR_INPUT_QUERY]);
    const T *from = (const T *)source.at + x.place.first * source.token + x.key_head * source.head;
    const int steps = rows.steps, alive = x.alive;
    dr_load_tile<T>(query, 64, plan.key_width, rows.key_size, rows.aligned, [=](int row) {
        const int token = steps == 1 ? row : row / steps;
        const bool last_row = row - token * steps == steps - 1;
        return row < alive && last_row ? from + token * source.token : (const T *)NULL;
    });
}

/* Eight channels of a row to a tile: one or two units of it. */
template <typename T> static __device__ inline void dr_put_lane(void *tile, int row, int column, const float (&x)[8]) {
    constexpr int unit = 16 / (int)sizeof(T);
#pragma unroll
    for (int i = 0; i < 8; i += unit) {
        T *to = (T *)((char *)tile + dr_tile_at<T>(0, 64, row, column + i));
#pragma unroll
        for (int e = 0; e < unit; e++) to[e] = dr_from_float<T>(x[i + e]);
    }
}

template <typename T> static __device__ inline void dr_put_lane_dense(T *to, const float (&x)[8]) {
    constexpr int unit = 16 / (int)sizeof(T);
#pragma unroll
    for (int i = 0; i < 8; i += unit) {
        union {
            uint4 words;
            T element[unit];
        } pack;
#pragma unroll
        for (int e = 0; e < unit; e++) pack.element[e] = dr_from_float<T>(x[i + e]);
        *(uint4 *)(to + i) = pack.words;
    }
}

/* Row by row through the maps. reader_to [64][Kp], query_to [query_rows][Kp]: written if they are not NULL. */
template <typename T>
static __device__ inline void dr_map_rows(const dr_cuda_chunk_plan &plan, const dr_prepare_block &x, void *writer, void *reader,
                                          void *query, float *dot, T *reader_to, T *query_to) {
    const dr_cuda_rows &rows = plan.rows;
    const int lane = (int)(threadIdx.x % 32), column = lane * 8;
    const bool mine = column < plan.key_width;
    for (int i = (int)(threadIdx.x / 32); i < 64; i += PREPARE_THREADS / 32) {
        const int token = dr_row_token(rows, i), step = i - token * rows.steps;
        float r[8] = {}, w[8] = {}, q[8] = {};
        if (i < x.alive) {
            dr_row_keys<T, 8>(rows, x.place.first + token, step, x.key_head, x.head, r, w);
            if (step == rows.steps - 1) dr_row_query<T, 8>(rows, x.place.first + token, x.key_head, q);
        }
        const float product = dr_lane_dot<8>(r, w);
        if (lane == 0) dot[i] = product;
        if (!mine) continue;
        dr_put_lane<T>(writer, i, column, w);
        if (reader) dr_put_lane<T>(reader, i, column, r);
        dr_put_lane<T>(query, i, column, q);
        if (reader_to) dr_put_lane_dense<T>(reader_to + i * plan.key_width + column, r);
        if (query_to && step == rows.steps - 1 && token < plan.query_rows)
            dr_put_lane_dense<T>(query_to + token * plan.key_width + column, q);
    }
    if (!query_to || !mine) return;
    const float zero[8] = {};
    for (int i = 64 / rows.steps + (int)(threadIdx.x / 32); i < plan.query_rows; i += PREPARE_THREADS / 32)
        dr_put_lane_dense<T>(query_to + i * plan.key_width + column, zero);
}

/* The gains of row i, a thread each. */
static __device__ inline dr_row_gains dr_prepare_gain(const dr_cuda_rows &rows, const dr_prepare_block &x, int i, float dot) {
    const dr_row_gains none = {0, 0, 0};
    if (i >= x.alive) return none;
    const int token = dr_row_token(rows, i);
    return dr_row_gain(rows, x.place.first + token, i - token * rows.steps, x.key_head, x.head, dot);
}

/* gain and value of row i's factors. */
static __device__ inline dr_cuda_row_factors dr_prepare_factors(const dr_cuda_rows &rows, const dr_prepare_block &x, int i,
                                                                const dr_row_gains &gains) {
    dr_cuda_row_factors factors = {0, 0, 0, 0};
    if (i >= x.alive) return factors;
    const dr_row &row = dr_rule_row(rows, i - dr_row_token(rows, i) * rows.steps);
    factors.gain = row.read == DR_READ_NONE ? 0.0f : gains.gain;
    factors.value = row.value == DR_VALUE_NONE ? 0.0f : row.value == DR_VALUE_GAIN ? gains.gain : gains.factor;
    return factors;
}

#endif
