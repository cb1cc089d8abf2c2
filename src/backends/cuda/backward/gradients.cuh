/* What gradients.cu and gradients_linear.cu share: the ring of tiles in shared memory, the warps that copy, what a computing
 * thread knows, and what it does with its rows. */
#ifndef DR_CUDA_GRADIENTS_CUH
#define DR_CUDA_GRADIENTS_CUH

#include "backends/cuda/backward/backward.h"
#include "backends/cuda/backward/copy_tiles.cuh"
#include "backends/cuda/backward/group_tiles.cuh"
#include "backends/cuda/chunkwise/scan_warpgroups.cuh"
#include "backends/cuda/plan/find.cuh"
#include "backends/cuda/rows/rows_make.h"

enum { PLACES = 12, PLACE = 16 * 1024 };

/* Products of the decays of a chunk's rows. From after row j to what reader i sees: in blocks of 16 rows head of i * totals
 * between * tail of j, within one from a table. */
typedef struct {
    float head[64], read[64]; /* from the start of its block to after row i, which a query sees; to what a read key sees */
    float tail[64];           /* from after row i to the end of its block */
    float total[4];           /* of a block */
    float near[64][16];       /* (i, j % 16): from after row j to after row i of the same block */
} chunk_decays;

/* What the copying warps tell of a chunk. */
typedef struct {
    chunk_decays decay;                    /* first, since pairs of numbers are read */
    float gain[64], value[64], lambda[64]; /* gain: where rows read the negative of a tensor, the tensor's, which is negative */
    float rest[64];                        /* -(c/s) */
    float mixed[64];                       /* lambda times that */
    dr_row_block x;                        /* x.block < 0: there are no more */
    bool entry, beyond; /* the call gives the state before the chunk, the gradient of that after it (dr_given_state) */
} chunk_rows;

/* What a group has of sums over K or V. */
typedef struct {
    float value_dot[2][64], write_dot[2][64];
    float reader[2][64], read[2][64], writer[2][64], lambda[2][64];
    float exit[2 * 4]; /* of a warp */
} chunk_sums;

/* Behind the places: where Y's rest, then G and M lie; the rows of two chunks; the barriers. */
enum {
    WORK = PLACES * PLACE,
    ROWS = WORK + PLACE,
    SUMS = ROWS + 2 * (int)sizeof(chunk_rows),
    GATES = SUMS + 2 * (int)sizeof(chunk_sums), /* filled and free of each place, then of the rows of a chunk */
    SHARED_BYTES = GATES + (PLACES + 2) * 16
};
static_assert(SHARED_BYTES <= DR_BLOCK_SHARED, "one block of a multiprocessor has all of its shared memory");

/* What rows read. */
typedef enum {
#define DR_GRADIENTS_FORM(name) READS_##name,
#include "backends/cuda/rows/instances.def"
    READS_NEITHER
} gradients_reading;

/* For K up to 64 key_boxes and V up to 64 value_boxes: the groups that compute, and the tiles of a chunk in the order of their
 * coming. Of S and dS' a tile has 64 channels and all columns of V; key: what rows read, if they do, write: what they write;
 * inverse: both halves of A. Keys and queries are wanted first and left last. They come behind the tiles that are left before,
 * so that what waits for their places are the tiles of the exit alone, which the next chunk wants last. */
template <int key_boxes, int value_boxes, int reading> struct chunk_shape {
    enum { groups = key_boxes > value_boxes ? key_boxes : value_boxes, threads = 128 + 128 * groups };
    enum { reads = reading != READS_NOTHING, apart = reading == READS_OTHER, sums = reading == READS_SUM };
    enum {
        state = 0,
        d_update = key_boxes,
        output,
        value,
        inverse = value + reads,
        key = inverse + 1,
        query,
        write = key + (apart ? 2 : 0),
        exit = query + 1 + apart,
        tiles = exit + key_boxes
    };
};

/* A call, and what follows from its rows, which a thread would look through in every chunk. */
struct gradients_call : dr_cuda_backward_call {
    dr_block_dividers by;
    bool direct, made, full;   /* those of the rows; full: U goes into the scores in two parts of 16 bits */
    int read, written, gained; /* led, written and gained of the row */
};

static inline gradients_call gradients_of(const dr_cuda_backward_call &call) {
    const dr_cuda_rows *rows = &call.plan.rows;
    const dr_cuda_row *row = &rows->row[0];
    return {call,
            dr_block_dividers_of(call.plan),
            rows->direct,
            rows->made,
            dr_cuda_rows_step_fully(rows),
            row->led,
            row->written,
            row->gained};
}

/* Whether a call is such as training makes: vectors are aligned, no state is given in float, rows decay the state before they
 * read it, and gradients lead to the inputs or, with READS_OTHER, to key_scan. Such calls have instances of their own: a warp
 * runs through its code once a chunk, and waits for what it passes by as well. */
static inline bool gradients_plain(const gradients_call &call, int reading) {
    const dr_cuda_rows &rows = call.plan.rows;
    return rows.aligned && !call.initial && !call.d_final && !rows.row[0].undecayed &&
           (reading == READS_OTHER ? call.made && !call.diagonal.key : call.direct);
}

/* Whether gradients of rows lead to the inputs; whether those of keys lead to the diagonal scan's backward. */
static __device__ inline bool leads_direct(const gradients_call &call, int reading, bool plain) {
    return plain ? reading != READS_OTHER : call.direct;
}

static __device__ inline bool leads_made(const gradients_call &call, int reading, bool plain) {
    return plain ? reading == READS_OTHER : (reading == READS_OTHER || reading == READS_NOTHING) && call.made;
}

static __device__ inline dr_row_block find_row_block(const gradients_call &call, unsigned index) {
    const dr_block_place at = dr_block_find(call.by, index, false);
    const int head = (int)at.head, group = call.plan.rows.group;
    return dr_row_block_found(call.plan, call.chunk.cu, at, index, group == 1 ? head : head / group, 1);
}

#ifdef DR_CUDA_WARPGROUPS

/* ---- the ring ----------------------------------------------------------------------------------------------------------- */

typedef struct {
    int place;
    unsigned turn;
} ring_at;

static __device__ inline ring_at ring_forward(ring_at at, int tiles) {
    at.place += tiles;
    if (at.place >= PLACES) at.place -= PLACES, at.turn ^= 1;
    return at;
}

static __device__ inline unsigned filled_gate(unsigned shared, int place) {
    return shared + (unsigned)(GATES + place * 16);
}

static __device__ inline unsigned free_gate(unsigned shared, int place) {
    return filled_gate(shared, place) + 8;
}

/* The thread's copies of a tile count towards its barrier; some may have come through registers. */
static __device__ inline void tell_tile(unsigned base, const ring_at &at, bool aligned) {
    if (aligned) {
        dr_gate_arrive_copied(filled_gate(base, at.place));
        return;
    }
    dr_copy_commit();
    dr_copy_wait<0>();
    dr_shared_fence();
    dr_gate_arrive(filled_gate(base, at.place));
}

/* ---- gradients of rows: of decays (decay.cu says of what) and gains ---------------------------------------------------- */

/* By one warp: two rows a lane. groups: that had channels. */
template <bool reads>
static __device__ inline void put_decays(const dr_cuda_backward_call &call, const chunk_rows &told, const chunk_sums &sums,
                                         int groups, bool plain) {
    const dr_cuda_rows &rows = call.plan.rows;
    const dr_cuda_input &decay = rows.input[DR_INPUT_LOG_DECAY];
    const int lane = (int)(threadIdx.x % 32);
    float reader[2] = {}, writer[2] = {}, exit = 0;
    for (int g = 0; g < groups; g++) {
        DR_UNROLL (e, 2) {
            const int i = 2 * lane + e;
            reader[e] += sums.reader[g][i];
            writer[e] += sums.writer[g][i];
            if (reads && (plain || !dr_undecayed(rows, i))) reader[e] -= told.gain[i] * sums.read[g][i];
            if (reads && !plain && i < 63 && dr_undecayed(rows, i + 1)) reader[e] -= told.gain[i + 1] * sums.read[g][i + 1];
        }
        DR_UNROLL (i, 4) exit += sums.exit[g * 4 + i];
    }
    exit *= told.decay.total[0] * told.decay.total[1] * told.decay.total[2] * told.decay.total[3];
    float behind = reader[0] + reader[1], before = writer[0] + writer[1]; /* with the lanes behind, before this one */
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float right = __shfl_down_sync(0xffffffffu, behind, step), left = __shfl_up_sync(0xffffffffu, before, step);
        if (lane + step < 32) behind += right;
        if (lane >= step) before += left;
    }
    behind = __shfl_down_sync(0xffffffffu, behind, 1);
    before = __shfl_up_sync(0xffffffffu, before, 1);
    if (lane == 31) behind = 0;
    if (lane == 0) before = 0;
    const float late = behind + reader[1];
    float sum[2] = {exit + before + (late + reader[0]), exit + (before + writer[0]) + late};
    if (lane == 0 && dr_begins_empty(call, told.x)) sum[0] = 0;
    DR_UNROLL (e, 2) {
        const int row = 2 * lane + e;
        if (row >= told.x.rows) continue;
        const int64_t token = told.x.place.first + row;
        const float alpha = row % 16 ? told.decay.near[row][row % 16 - 1] : told.decay.head[row];
        if (rows.constant_decay)
            call.back.d_log_decay[token * rows.value_heads + told.x.head] = sum[e];
        else if (decay.gradient)
            ((float *)decay.gradient)[dr_input_index(decay, token, 0, told.x.head)] = alpha == 0 ? 0 : sum[e];
    }
}

static __device__ inline bool reads_negative(const dr_cuda_rows &rows) {
    return rows.row[0].negative;
}

/* Of the gains, and of lambda, where rows lead to their inputs: likewise. c dc = u . dz less what z has of it is nearer than
 * r . dr, which has been through rounded scores (settle_gain in row_gradients.cu). */
template <bool reads>
static __device__ inline void put_gains(const gradients_call &call, const chunk_rows &told, const chunk_sums &sums,
                                        int key_groups, int value_groups) {
    const dr_cuda_rows &rows = call.plan.rows;
    const dr_cuda_row &spec = rows.row[0];
    const int gained = call.gained;
    const bool wanted = gained != DR_NO_SOURCE && rows.input[gained].gradient;
    const dr_cuda_input &lambda = rows.input[DR_INPUT_LAMBDA];
    for (int row = (int)(threadIdx.x % 32); row < told.x.rows; row += 32) {
        const int64_t token = told.x.place.first + row;
        const float sign = reads_negative(rows) ? -1.0f : 1.0f, gain = sign * told.gain[row];
        float values = 0, writes = 0, read = 0, of_lambda = 0;
        for (int g = 0; g < value_groups; g++) {
            values += sums.value_dot[g][row];
            if (reads) writes += sums.write_dot[g][row];
        }
        for (int g = 0; g < key_groups && reads; g++) read += sums.read[g][row], of_lambda += sums.lambda[g][row];
        const bool valued = spec.values == DR_VALUES_GAINED; /* z is c times the value */
        float sum = (valued ? values : 0) - sign * read;
        if (reads && fabsf(gain) >= 0x1p-10f) sum = (valued ? writes : writes - told.value[row] * values) / gain;
        if (wanted) ((float *)rows.input[gained].gradient)[dr_input_index(rows.input[gained], token, 0, told.x.head)] = sum;
        if (lambda.at && lambda.gradient) ((float *)lambda.gradient)[dr_input_index(lambda, token, 0, told.x.head)] = of_lambda;
    }
}

/* What is left of a chunk when all computing threads are done with it: a warp each. */
template <int key_boxes, int value_boxes, int reading, bool plain>
static __device__ inline void finish_chunk(const gradients_call &call, const chunk_rows &told, const chunk_sums &sums) {
    const dr_cuda_rows &rows = call.plan.rows;
    if (threadIdx.x / 32 == 0 && rows.scalar_decay) put_decays<true>(call, told, sums, key_boxes, plain);
    if (threadIdx.x / 32 == 1 && leads_direct(call, reading, plain))
        put_gains<reading != READS_NOTHING>(call, told, sums, key_boxes, value_boxes);
    __barrier_sync_count(1, 128); /* of the copying warps */
}

/* ---- copying ------------------------------------------------------------------------------------------------------------ */

/* A block of rows a warp: the lower lanes run down from a row each, the upper ones from the start of the block. alpha: of row
 * lane % 16 of the block. */
static __device__ inline void make_decays(const dr_cuda_rows &rows, float alpha, bool plain, chunk_decays &to) {
    const int lane = (int)(threadIdx.x % 32), own = lane % 16, begin = (int)(threadIdx.x / 32 % 4) * 16, i = begin + own;
    float head = 1, before = 1, product = 1; /* product: from after row i to after row m */
    DR_UNROLL (m, 16) {
        const float other = __shfl_sync(0xffffffffu, alpha, m);
        before = m <= own ? head : before;
        head = m <= own ? head * other : head;
        product = m > own ? product * other : 1.0f;
        if (lane < 16) to.near[begin + m][own] = product;
    }
    if (lane < 16) {
        to.tail[i] = product;
        return;
    }
    to.head[i] = head;
    to.read[i] = !plain && dr_undecayed(rows, i) ? before : head;
    if (own == 15) to.total[begin / 16] = head;
}

/* What the rows of a chunk are made of, asked for before anything waits. */
typedef struct {
    float log_decay;           /* of a row of make_decays */
    float gain, value, lambda; /* of a row of the chunk */
} row_inputs;

static __device__ inline row_inputs fetch_rows(const dr_cuda_backward_call &call, const dr_row_block &x) {
    const dr_cuda_rows &rows = call.plan.rows;
    const int i = (int)threadIdx.x, row = i / 32 * 16 + i % 16;
    row_inputs from = {0, 0, 0, 0};
    if (row < x.rows && rows.scalar_decay)
        from.log_decay = dr_input_scalar(rows, DR_INPUT_LOG_DECAY, x.place.first + row, 0, x.head);
    const dr_cuda_factors &factors = call.chunk.factors[x.block];
    if (i < 64) from.gain = factors.gain[i], from.value = factors.value[i];
    if (i < x.rows) from.lambda = dr_input_scalar(rows, DR_INPUT_LAMBDA, x.place.first + i, 0, x.head);
    return from;
}

static __device__ inline void make_rows(const dr_cuda_backward_call &call, const dr_row_block &x, const row_inputs &from,
                                        bool plain, chunk_rows &to) {
    const dr_cuda_rows &rows = call.plan.rows;
    const int i = (int)threadIdx.x;
    if (i == 0) {
        to.x = x;
        if (!plain) {
            to.entry = dr_given_state(call, x, false) != NULL;
            to.beyond = dr_given_state(call, x, true) != NULL;
        }
    }
    if (i < 64) {
        const float gain = reads_negative(rows) ? -from.gain : from.gain, rest = -gain / dr_score_gain(gain);
        to.gain[i] = gain;
        to.value[i] = from.value;
        to.rest[i] = rest;
        to.lambda[i] = from.lambda;
        to.mixed[i] = rest * from.lambda;
    }
    make_decays(rows, expf(from.log_decay), plain, to.decay);
}

template <typename T, int key_boxes, int value_boxes, int reading, bool plain>
static __device__ inline void copy_chunks(const gradients_call &call, char *shared) {
    typedef chunk_shape<key_boxes, value_boxes, reading> shape;
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const unsigned base = dr_shared_address(shared);
    const int width = plan.key_width, key_size = rows.key_size, value_size = rows.value_size;
    const bool aligned = plain || rows.aligned;
    const dr_source d_o = {call.d_o, (int64_t)rows.value_heads * rows.value_size, 0, rows.value_size};
    const dr_source d_update = {call.back.d_update, plan.value_width, 0, 0};
    chunk_rows *told = (chunk_rows *)(shared + ROWS);
    const chunk_sums *sums = (const chunk_sums *)(shared + SUMS);
    ring_at at = {0, 1};
    unsigned side = 0, turn = 1;
    int over = 0,
        made = 0; /* sides that have been told of since there are no more chunks; that hold one, as far as it matters */
#pragma unroll 1
    for (unsigned index = blockIdx.x; over < 2; index += gridDim.x) {
        const bool more = index < (unsigned)plan.blocks;
        const dr_row_block x = find_row_block(call, more ? index : 0);
        if (more && x.rows == 0) continue;
        const int64_t block = x.block;
        row_inputs inputs;
        if (more) inputs = fetch_rows(call, x);
        dr_gate_wait(free_gate(base, PLACES + side), turn);
        if (made + over >= 2) finish_chunk<key_boxes, value_boxes, reading, plain>(call, told[side], sums[side]);
        made += more && made < 2;
        if (more)
            make_rows(call, x, inputs, plain, told[side]);
        else if (threadIdx.x == 0)
            told[side].x.block = -1;
        dr_gate_arrive(filled_gate(base, PLACES + side));
        turn ^= side;
        side ^= 1;
        if (!more) {
            over++;
            continue;
        }
        const T *states = (const T *)call.saved + block * plan.value_width * width,
                *exits = (const T *)call.back.d_exit + block * plan.value_width * width;
#pragma unroll 1
        for (int i = dr_same_in_warp((int)threadIdx.x / 32); i < shape::tiles; i += 4) { /* a tile a warp */
            const ring_at own = ring_forward(at, i);
            char *to = shared + own.place * PLACE;
            dr_gate_wait(free_gate(base, own.place), own.turn);
            if (i < key_boxes || i >= shape::exit) {
                const T *from = i < key_boxes ? states + i * 64 : exits + (i - shape::exit) * 64;
                warp_copy_rows<T, value_boxes * 64, 1>(to, from, width, value_boxes * 64, 64, true);
            } else if (shape::reads && i == shape::inverse) {
                warp_copy_tile(to, (const char *)call.chunk.inverse + block * DR_HALVES_BYTES);
            } else if (i == shape::value || i == shape::output || i == shape::d_update) {
                const dr_source source = i == shape::value    ? dr_source_of(rows.input[DR_INPUT_VALUE])
                                         : i == shape::output ? d_o
                                                              : d_update;
                const bool ours = i == shape::d_update;
                warp_copy_rows<T, 64, value_boxes>(
                    to, (const T *)source.at + (ours ? block * 64 : x.place.first) * source.token + x.head * source.head,
                    source.token, ours ? 64 : x.rows, ours ? value_boxes * 64 : value_size, ours || aligned);
            } else {
                const dr_source source = i == shape::write ? dr_write_source(rows)
                                         : i == shape::key ? dr_reader_source(rows)
                                                           : dr_query_source(rows);
                warp_copy_rows<T, 64, key_boxes>(to,
                                                 (const T *)source.at + x.place.first * source.token + x.key_head * source.head,
                                                 source.token, x.rows, key_size, aligned);
            }
            tell_tile(base, own, aligned);
        }
        at = ring_forward(at, shape::tiles);
    }
}

/* ---- computing ---------------------------------------------------------------------------------------------------------- */

/* A thread's chunk and place: groups count from 0, rows are row and row + 8, columns 8 n + 2 t of 64. */
typedef struct {
    const gradients_call &call;
    const chunk_rows &rows;
    chunk_sums &sums;
    char *shared;
    unsigned base;
    int group, row, t;
    ring_at first; /* where the tiles of the chunk begin */
    bool plain;    /* gradients_plain, known to the compiler */
} worker;

/* Whether the call gives the state before the chunk; the gradient of that after it. */
static __device__ inline bool gives_entry(const worker &w) {
    return !w.plain && w.rows.entry;
}

static __device__ inline bool gives_beyond(const worker &w) {
    return !w.plain && w.rows.beyond;
}

static __device__ inline void meet_group(const worker &w) {
    __barrier_sync_count(2 + w.group, 128);
}

template <int groups> static __device__ inline void meet_all() {
    __barrier_sync_count(2 + groups, 128 * groups);
}

/* The tile that comes as the i-th of the chunk: its bytes from the start of shared memory. */
static __device__ inline unsigned tile_of(const worker &w, int i) {
    return (unsigned)(ring_forward(w.first, i).place * PLACE);
}

static __device__ inline unsigned await_tile(const worker &w, int i) {
    const ring_at at = ring_forward(w.first, i);
    dr_gate_wait(filled_gate(w.base, at.place), at.turn);
    return (unsigned)(at.place * PLACE);
}

static __device__ inline void leave_tile(const worker &w, int i) {
    dr_gate_arrive(free_gate(w.base, ring_forward(w.first, i).place));
}

/* The transpose of a box as operands A. */
template <typename T> static __device__ inline void operands_turned(unsigned (&a)[4][4], unsigned box) {
    const int mine = dr_scan_warp() * 16;
    DR_UNROLL (k, 4) dr_load_matrices_transposed(a[k], dr_lane_at<T>(box + dr_lane_along<T>(), 64, k * 16, mine));
}

/* The box's rows times factor[row], to a: in place of its numbers, their sum, or what rounding takes off the sum. */
enum { SCALE_ALONE, SCALE_SUM, SCALE_REST };
template <typename T, int what>
static __device__ inline void scale_turned(unsigned (&a)[4][4], const unsigned (&from)[4][4], const float *factor) {
    factor += threadIdx.x % 4 * 2;
    DR_UNROLL (k, 4)
        DR_UNROLL (i, 4) {
            const float2 pair = dr_unpack(T(), from[k][i]), f = *(const float2 *)(factor + k * 16 + i / 2 * 8);
            if constexpr (what == SCALE_ALONE) {
                a[k][i] = dr_pack(T(), f.x * pair.x, f.y * pair.y);
                continue;
            }
            float2 sum = dr_unpack(T(), a[k][i]);
            sum = make_float2(fmaf(f.x, pair.x, sum.x), fmaf(f.y, pair.y, sum.y));
            a[k][i] = dr_pack(T(), sum.x, sum.y);
            if constexpr (what == SCALE_REST) {
                const float2 taken = dr_unpack(T(), a[k][i]);
                a[k][i] = dr_pack(T(), sum.x - taken.x, sum.y - taken.y);
            }
        }
}

/* dots_with of two matrices and one box. */
template <typename T>
static __device__ inline void dots_with(const float (&c)[8][4], const float (&d)[8][4], unsigned box, float2 &c_dot,
                                        float2 &d_dot) {
    unsigned x[8][2];
    load_places<T>(box, x);
    c_dot = d_dot = make_float2(0, 0);
    DR_UNROLL (n, 8) {
        const float2 upper = dr_unpack(T(), x[n][0]), lower = dr_unpack(T(), x[n][1]);
        c_dot.x = fmaf(c[n][0], upper.x, fmaf(c[n][1], upper.y, c_dot.x));
        c_dot.y = fmaf(c[n][2], lower.x, fmaf(c[n][3], lower.y, c_dot.y));
        d_dot.x = fmaf(d[n][0], upper.x, fmaf(d[n][1], upper.y, d_dot.x));
        d_dot.y = fmaf(d[n][2], lower.x, fmaf(d[n][3], lower.y, d_dot.y));
    }
    c_dot = sum_of_four(c_dot);
    d_dot = sum_of_four(d_dot);
}

static __device__ inline void scale_rows(float (&c)[8][4], float upper, float lower) {
    DR_UNROLL (n, 8) c[n][0] *= upper, c[n][1] *= upper, c[n][2] *= lower, c[n][3] *= lower;
}

/* Both numbers to the thread's rows of `to`, once for the four that have them. */
static __device__ inline void put_rows(const worker &w, float *to, float2 x) {
    if (w.t != 0) return;
    to[w.row] = x.x;
    to[w.row + 8] = x.y;
}

/* Decay of the blocks of rows before the row's (after: behind it). */
static __device__ inline float decay_between(const chunk_decays &decay, int row, bool after) {
    float product = 1;
    DR_UNROLL (b, 4)
        if (after ? b > row / 16 : b < row / 16) product *= decay.total[b];
    return product;
}

/* Scores up to the diagonal (below: below it) times the decays and the factors of rows; begin: the factor times the decay from
 * the start of the row's block, near: the decays within it, both of the thread's two rows. */
static __device__ inline void mask_scores(const worker &w, const float (&factor)[2], float (&begin)[2],
                                          const float *const (&near)[2], bool below, float (&c)[8][4]) {
    const chunk_decays &decay = w.rows.decay;
    const int warp = dr_scan_warp();
#pragma unroll
    for (int b = 3; b >= 0; b--) {
        if (b > warp) {
            DR_UNROLL (e, 8) c[2 * b + e / 4][e % 4] = 0;
        } else if (b < warp) {
#pragma unroll
            for (int n = 2 * b; n < 2 * b + 2; n++) {
                const float2 tail = *(const float2 *)&decay.tail[n * 8 + 2 * w.t];
                DR_UNROLL (h, 2) c[n][2 * h] *= begin[h] * tail.x, c[n][2 * h + 1] *= begin[h] * tail.y;
            }
            DR_UNROLL (h, 2) begin[h] *= decay.total[b];
        } else {
            DR_UNROLL (n, 2) {
                const int j = n * 8 + 2 * w.t;
                DR_UNROLL (h, 2) {
                    const int last = w.row % 16 + 8 * h - (below ? 1 : 0);
                    const float2 f = *(const float2 *)&near[h][j];
                    float(&score)[4] = c[2 * b + n];
                    score[2 * h] = j <= last ? factor[h] * f.x * score[2 * h] : 0.0f;
                    score[2 * h + 1] = j + 1 <= last ? factor[h] * f.y * score[2 * h + 1] : 0.0f;
                }
            }
        }
    }
}

/* ---- states that are given in float ------------------------------------------------------------------------------------- */

/* 64 columns of V and 64 channels of the states in a tile become what rounding took from those that the call gives or (given
 * NULL) themselves again. */
template <typename T>
static __device__ inline void replace_states(const worker &w, unsigned part, const float *given, const void *states, int column,
                                             int channel) {
    const dr_cuda_chunk_plan &plan = w.call.plan;
    char *to = w.shared + part;
    if (given) {
        dr_load_rest<T>(to, plan.rows, given, column, channel);
        return;
    }
    const T *from = (const T *)states + (w.rows.x.block * plan.value_width + column) * plan.key_width + channel;
    for (int i = dr_copy_thread(); i < 64 * 8; i += 128)
        *(uint4 *)(to + dr_tile_at<T>(0, 64, i / 8, i % 8 * 8)) =
            *(const uint4 *)(from + (int64_t)(i / 8) * plan.key_width + i % 8 * 8);
}

#endif
#endif
