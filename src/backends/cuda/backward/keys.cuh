/* What keys.cu and keys_channel.cu share: places in shared memory, loads, and where gradients lead. */
#ifndef DR_CUDA_KEYS_CUH
#define DR_CUDA_KEYS_CUH

#include "backends/cuda/backward/row_tiles.cuh"

typedef struct {
    int stage[5];                         /* dO, dY, U, S, dS' while the states pass by, */
    int score, erase, write, query, read; /* then G, M, w, q~, r in the same places */
    int scaled[6], alpha;                 /* decay by channel: keys scaled to the borders of their blocks, of their halves */
    int ahead; /* from the stages to others behind them, where the scaled keys will lie; 0: there are none */
    int small, bytes;
} keys_room;

/* Where the rows of a tile lead: `at` that of the first token, a stride of elements to the next. */
enum { LEADS_QUERY, LEADS_WRITE, LEADS_READ, LEADS = 2 * (LEADS_READ + 1) };
typedef struct {
    void *at;
    int64_t stride;
} lead;

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
    room.bytes = room.small + (13 + (channel ? 16 : 0)) * 64 * (int)sizeof(float) + LEADS * (int)sizeof(lead);
    return room;
}

/* Factors of rows and channels, [64] each. */
typedef struct {
    float *split, *inverse, *rest;        /* s, 1/s, -(c/s) */
    float *head_query, *head_read, *tail; /* scalar decay: from entry, to exit */
    float *alpha, *gain;
    float *exit;  /* [64] D (S . dS') of every channel */
    float *total; /* [4][64] factors by block and channel; before that, parts of exit */
    float *half;  /* decay by channel: [8][64] factors of half blocks; before and after that, sums of theirs, [2][8][64] */
    lead *leads;  /* [LEADS] */
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
    rows.inverse = at + 768;
    rows.leads = (lead *)(at + 832);
    rows.half = at + 832 + LEADS * (int)(sizeof(lead) / sizeof(float));
    return rows;
}

/* Rows `row` and row + 8 of an accumulator times their factors, and `more`. */
template <int tiles> static __device__ inline void scale_rows(float (&c)[tiles][4], const float *factor, int row, float more) {
    const float upper = factor[row] * more, lower = factor[row + 8] * more;
    DR_UNROLL (n, tiles) c[n][0] *= upper, c[n][1] *= upper, c[n][2] *= lower, c[n][3] *= lower;
}

/* Two neighbouring channels of a tile as floats, and back. */
template <typename T> static __device__ inline float2 tile_pair(const char *tile, int row, int column) {
    return dr_load_pair<T>(tile + dr_tile_at<T>(0, 64, row, column));
}

template <typename T> static __device__ inline void set_pair(char *tile, int row, int column, float2 x) {
    dr_store_pair<T>((T *)(tile + dr_tile_at<T>(0, 64, row, column)), x.x, x.y);
}

/* ---- loads --------------------------------------------------------------------------------------------------------------- */

/* exit += S . dS' of two channels a lane, over the warp's `count` of the 64 columns of V in the stages; of states that are
 * given in float, from those. */
template <typename T, int count>
static __device__ inline void exit_part(const dr_cuda_rows &rows, const char *shared, const keys_room &room, const float *entry,
                                        const float *beyond, int first, int column, float2 &exit) {
    const int d = (int)(threadIdx.x % 32) * 2, start = (int)(threadIdx.x / 32) * count;
    const bool given = entry || beyond;
#pragma unroll 8
    for (int v = start; v < start + count && !given; v++) {
        const float2 s = tile_pair<T>(shared + room.stage[3], v, d), d_s = tile_pair<T>(shared + room.stage[4], v, d);
        exit.x = fmaf(s.x, d_s.x, exit.x);
        exit.y = fmaf(s.y, d_s.y, exit.y);
    }
    for (int i = 0; i < 2 * count && given; i++) {
        const int v = start + i / 2, channel = d + i % 2;
        const float2 s = tile_pair<T>(shared + room.stage[3], v, d), d_s = tile_pair<T>(shared + room.stage[4], v, d);
        const float before = entry ? dr_state_element(rows, entry, first + channel, column + v) : i % 2 ? s.y : s.x;
        const float after = beyond ? dr_state_element(rows, beyond, first + channel, column + v) : i % 2 ? d_s.y : d_s.x;
        (i % 2 ? exit.y : exit.x) = fmaf(before, after, i % 2 ? exit.y : exit.x);
    }
}

/* Copies are asked for by 128 threads, all of them, or one of two halves. */
enum { COPY_FIRST = 1, COPY_SECOND = 2, COPY_ALL = COPY_FIRST | COPY_SECOND };

/* Asks for dO, dY, U of 64 columns of V, and S, dS' of them and 64 channels. */
template <typename T>
static __device__ inline void load_states(const dr_cuda_backward_call &call, const dr_row_block &x, char *stage,
                                          const keys_room &room, int first, int column, int parts) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const int64_t rows_at = x.block * 64 * plan.value_width, states_at = (x.block * plan.value_width + column) * plan.key_width;
    if (parts & COPY_FIRST) {
        dr_load_output_rows<T>(stage + room.stage[0], plan.rows, x, call.d_o, column);
        if (plan.reads)
            dr_load_columns<T>(stage + room.stage[1], (const T *)call.back.d_update + rows_at, plan.value_width, column);
        dr_load_columns<T>(stage + room.stage[3], (const T *)call.saved + states_at, plan.key_width, first);
    }
    if (parts & COPY_SECOND) {
        dr_load_columns<T>(stage + room.stage[2], (const T *)call.back.update + rows_at, plan.value_width, column);
        dr_load_columns<T>(stage + room.stage[4], (const T *)call.back.d_exit + states_at, plan.key_width, first);
    }
}

/* Asks for G and M. */
template <typename T>
static __device__ inline void load_scores(const dr_cuda_backward_call &call, const dr_row_block &x, char *shared,
                                          const keys_room &room) {
    dr_load_columns<T>(shared + room.score, (const T *)call.back.d_score + x.block * 64 * 64, 64, 0);
    if (call.plan.reads) dr_load_columns<T>(shared + room.erase, (const T *)call.back.d_erase + x.block * 64 * 64, 64, 0);
}

/* Asks for G, M, and the keys of 64 channels, as a group. */
template <typename T, int steps = 1>
static __device__ inline void load_pairs(const dr_cuda_backward_call &call, const dr_row_block &x, char *shared,
                                         const keys_room &room, int first, int parts) {
    if (parts & COPY_FIRST) load_scores<T>(call, x, shared, room);
    if (parts & COPY_SECOND)
        dr_load_row_keys<T, steps>(call.plan, x, first, room.read == room.write ? NULL : shared + room.read,
                                   shared + room.write, shared + room.query); /* ends the group */
    else
        dr_copy_commit();
}

/* Makes of the keys, once they have come, those that stand in no tensor: all threads. */
template <typename T>
static __device__ inline void finish_pairs(const dr_cuda_backward_call &call, const dr_row_block &x, char *shared,
                                           const keys_room &room, int first) {
    dr_finish_row_keys<T>(call.plan, x, first, room.read == room.write ? NULL : shared + room.read, shared + room.write,
                          shared + room.query);
}

/* The gain of row i and what G and M are to be divided by. */
static __device__ inline void put_gain(const keys_rows &k, int i, float gain) {
    const float split = dr_score_gain(gain);
    k.split[i] = split;
    k.inverse[i] = 1 / split;
    k.gain[i] = gain;
    k.rest[i] = -gain / split;
}

static __device__ inline void put_gains(const dr_cuda_backward_call &call, const dr_row_block &x, const keys_rows &k) {
    const int i = (int)threadIdx.x;
    if (i < 64) put_gain(k, i, call.chunk.factors[x.block].gain[i]);
}

/* ---- where gradients of rows lead (rows.h) ------------------------------------------------------------------------------- */

/* The input that the rows of a tile lead to, by row of a token: index = 2 tile + row; DR_NO_SOURCE: none. */
static __host__ __device__ inline int lead_input(const dr_cuda_rows &rows, int index) {
    const int tile = index / 2, kind = index % 2;
    if (kind >= rows.kinds) return DR_NO_SOURCE;
    if (tile == LEADS_WRITE) return rows.row[kind].written;
    if (tile == LEADS_READ) return rows.row[kind].led;
    return kind == rows.kinds - 1 ? (int)DR_INPUT_QUERY : DR_NO_SOURCE;
}

/* Where the gradient of input i lies; made once, since that takes many steps to find. */
template <typename T>
static __device__ inline void put_lead(const dr_cuda_rows &rows, const dr_row_block &x, int first, int i, lead *leads) {
    lead to = {NULL, 0};
    if (i != DR_NO_SOURCE && rows.input[i].gradient) {
        const dr_cuda_input &input = rows.input[i];
        to.at = (T *)input.gradient + dr_gradient_index(rows, input, x.place.first, x.head) + first;
        to.stride = (rows.step_axis && i == DR_INPUT_KEY ? input.step : input.token) * dr_gradient_spread(rows, input);
    }
    *leads = to;
}

template <typename T>
static __device__ inline void put_leads(const dr_cuda_rows &rows, const dr_row_block &x, int first, lead *leads) {
    const int i = (int)threadIdx.x;
    if (i < LEADS) put_lead<T>(rows, x, first, lead_input(rows, i), leads + i);
}

/* Where row `row` of a tile, of token `token`, leads, its channel `first`; NULL: nowhere. Of vectors, only keys have an axis of
 * steps. */
template <typename T>
static __device__ inline T *lead_of(const dr_cuda_rows &rows, const dr_row_block &x, const lead *leads, int tile, int row,
                                    int token) {
    if (row >= x.rows) return NULL;
    const int step = row - token * rows.steps;
    if (rows.step_axis && tile == LEADS_QUERY && step != rows.steps - 1) return NULL;
    const lead to = leads[2 * tile + (rows.step_axis ? 0 : step)];
    return to.at ? (T *)to.at + (rows.step_axis && tile != LEADS_QUERY ? row : token) * to.stride : NULL;
}

template <typename T>
static __device__ inline T *lead_of(const dr_cuda_rows &rows, const dr_row_block &x, const lead *leads, int tile, int row) {
    return lead_of<T>(rows, x, leads, tile, row, dr_row_token(rows, row));
}

#endif
