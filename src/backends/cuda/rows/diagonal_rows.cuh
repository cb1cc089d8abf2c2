/* The diagonal scan of a chunk where its keys are at hand, by the 128 threads that make all else of the chunk
 * (plan.scan_inside): write keys B * key from a tile of keys to a tile beside it. A warp takes a block of 16 rows, a lane two
 * or four channels.
 *
 * - A of the rows from zero gives the block's part; the parts make what the chunk makes of zero, which it tells at once.
 * - A before the chunk is asked for when the keys have come, and mostly there with the parts. Where it is not, the chunk
 *   goes from the nearest before it that has told the state it leaves through what those between make of zero: always in the
 *   same order, so that the bits do not depend on who came first. Then it tells the state it leaves itself.
 * - Then B and w of the rows, four at a time in a loop: written out, the code runs once a chunk and waits for instructions. In
 *   prepare itself, whose thread blocks are many, A of all rows from zero is held in registers instead, and nothing loops.
 *   Most rules squash by s = r / (1 + |r|), into an interval that is not large: 13 instructions a row and channel.
 *
 * The threads of a chunk wait only for chunks that were taken before theirs, by blocks that run. */
#ifndef DR_CUDA_DIAGONAL_ROWS_CUH
#define DR_CUDA_DIAGONAL_ROWS_CUH

#include "backends/cuda/chunkwise/prepare_load.cuh"
#include "backends/cuda/device/beside.cuh"
#include "backends/cuda/device/told.cuh"
#include "backends/cuda/rows/diagonal.cuh"

enum { INSIDE_BLOCK = 16, INSIDE_BLOCKS = 4, INSIDE_AT_ONCE = 8 };

/* Shared memory. Of rows, of blocks of rows. */
typedef struct {
    float alpha[64], gain[64];
    float over[64];                 /* alphas from the start of the block to after the row */
    float product[INSIDE_BLOCKS];   /* of a block's alphas */
    float part[INSIDE_BLOCKS][128]; /* what a block makes of A = 0 */
    float before[128];              /* A before the chunk */
    unsigned known[4];              /* of a warp's channels */
} dr_inside_room;

/* The chunk among those of its sequence and head. */
typedef struct {
    int64_t own; /* slot and head */
    int ahead;   /* chunks of the sequence before it */
    unsigned *told;
} dr_inside_place;

static __device__ inline dr_inside_place dr_inside_find(const dr_cuda_chunk_plan &plan, const dr_cuda_chunk_tensors &tensors,
                                                        const dr_prepare_block &x) {
    dr_inside_place place;
    place.own = x.block;
    place.ahead = (int)x.before;
    place.told = tensors.scan.told + ((unsigned)x.key_head * (unsigned)plan.slots + x.slot);
    return place;
}

/* ---- channels of a lane ------------------------------------------------------------------------------------------------ */

template <int C> static __device__ inline void dr_inside_lay(float *to, const float (&x)[C]) {
    if constexpr (C == 4)
        *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
    else
        *(float2 *)to = make_float2(x[0], x[1]);
}

/* product state + what it is added to */
template <int C> static __device__ inline void dr_inside_over(float product, float (&state)[C], const float *from_zero) {
#pragma unroll
    for (int e = 0; e < C; e++) state[e] = fmaf(product, state[e], from_zero[e]);
}

static __device__ inline void dr_take_four(const float *from, float (&x)[4]) {
    const float4 all = *(const float4 *)from;
    x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
}

/* The lane's channels of a row, as they lie in a tile. */
template <int C> struct alignas(2 * C) dr_inside_pairs { unsigned pair[C / 2]; };

/* Of row i of a block of rows, which begins at `block` in a tile. */
template <typename T, int C> static __device__ inline dr_inside_pairs<C> *dr_inside_row(const char *block, int i) {
    return (dr_inside_pairs<C> *)(block + dr_tile_at<T>(0, 64, i, (int)(threadIdx.x % 32) * C));
}

template <typename T, int C> static __device__ inline void dr_inside_key(const char *block, int i, float (&k)[C]) {
    const dr_inside_pairs<C> word = *dr_inside_row<T, C>(block, i);
#pragma unroll
    for (int e = 0; e < C; e += 2) {
        const float2 pair = dr_unpack(T(), word.pair[e / 2]);
        k[e] = pair.x, k[e + 1] = pair.y;
    }
}

template <typename T, int C> static __device__ inline void dr_inside_put(char *block, int i, const float (&w)[C]) {
    dr_inside_pairs<C> word;
#pragma unroll
    for (int e = 0; e < C; e += 2) word.pair[e / 2] = dr_pack(T(), w[e], w[e + 1]);
    *dr_inside_row<T, C>(block, i) = word;
}

/* ---- chunks ------------------------------------------------------------------------------------------------------------ */

/* Whether the lane's chunk of the 32 before this one has told the state it leaves: behind its numbers, but by no fence, so that
 * these may come a moment later. */
static __device__ inline unsigned dr_inside_look(const dr_inside_place &place) {
    const int lane = (int)(threadIdx.x % 32);
    return lane < place.ahead ? ((const volatile unsigned *)place.told)[-(lane + 1)] : CHAIN_NOTHING;
}

/* How many chunks lie between this one and the nearest that has; -1: none of 32 has. */
static __device__ inline int dr_inside_between(unsigned looked) {
    return __ffs((int)__ballot_sync(0xffffffffu, looked == CHAIN_WHOLE)) - 1;
}

/* The thread's channel where each warp takes a quarter of them. */
static __device__ inline int dr_inside_channel(int key_size) {
    return dr_copy_thread() / 32 * (key_size / 4) + (int)(threadIdx.x % 32) % (key_size / 4);
}

/* A before the chunk as it is at the moment, the first thing of what dr_cuda_diagonal_begin_inside has prepared. */
static __device__ inline float dr_inside_hear(const dr_cuda_chunk_plan &plan, const dr_cuda_diagonal_chain &chain,
                                              const dr_prepare_block &x, const dr_inside_place &place) {
    const int64_t K = plan.rows.key_size, channel = dr_inside_channel(plan.rows.key_size);
    dr_beside_close();
    if (place.ahead > 0) return dr_hear(chain.entry + place.own * K + channel);
    return chain.initial ? chain.initial[(x.place.sequence * plan.key_heads + x.key_head) * K + channel] : 0.0f;
}

/* A before the chunk, from the nearest of which it is known that it has told the state it leaves; is that far, there may be a
 * nearer one by now. looked: when the keys had come. */
static __device__ inline float dr_inside_await(const dr_cuda_chunk_plan &plan, const dr_cuda_diagonal_chain &chain,
                                               const dr_inside_place &place, unsigned looked) {
    const int64_t H = plan.key_heads, K = plan.rows.key_size, channel = dr_inside_channel(plan.rows.key_size);
    const int lane = (int)(threadIdx.x % 32);
    int between = dr_inside_between(looked);
    if (between >= INSIDE_AT_ONCE) between = -1;
    while (between < 0) between = dr_inside_between(dr_inside_look(place));
    const int64_t first = place.own - between * H; /* of the chunks between; lane l has the alphas of the lth */
    float state = 0, product = 0;
    for (int i = 0;;) {
        float end[INSIDE_AT_ONCE];
        if (i == 0) {
            state = dr_hear(chain.entry + first * K + channel);
            product = dr_hear(chain.product + first + (lane < between ? lane : 0) * H);
        }
#pragma unroll
        for (int n = 0; n < INSIDE_AT_ONCE; n++)
            end[n] = dr_hear(chain.end + (first + (i + n < between ? i + n : i) * H) * K + channel);
        bool told = dr_is_told(state) && dr_is_told(product);
#pragma unroll
        for (int n = 0; n < INSIDE_AT_ONCE; n++) told = told && dr_is_told(end[n]);
        if (!__all_sync(0xffffffffu, told)) continue;
#pragma unroll
        for (int n = 0; n < INSIDE_AT_ONCE; n++) {
            const float over = __shfl_sync(0xffffffffu, product, i + n);
            if (i + n < between) state = fmaf(over, state, end[n]);
        }
        if ((i += INSIDE_AT_ONCE) >= between) return state;
    }
}

/* A before the chunk to the room; to others what the chunk makes of zero, and what it leaves. heard, looked: when the keys had
 * come. Behind the parts; what is in the room is there at the end. */
template <int groups>
static __device__ inline void dr_inside_pass(const dr_cuda_chunk_plan &plan, const dr_cuda_diagonal_chain &chain,
                                             const dr_prepare_block &x, const dr_inside_place &place, float heard,
                                             unsigned looked, dr_inside_room &room) {
    const int64_t H = plan.key_heads, K = plan.rows.key_size;
    const int channel = dr_inside_channel(plan.rows.key_size), warp = dr_copy_thread() / 32;
    const bool first = dr_copy_thread() == 0, mine = place.ahead == 0 || __all_sync(0xffffffffu, dr_is_told(heard));
    float *entry = chain.entry + place.own * K + channel;
    room.before[channel] = heard;
    room.known[warp] = mine;
    dr_meet<groups>();
    const float product = room.product[0] * room.product[1] * (room.product[2] * room.product[3]);
    const bool known = room.known[0] && room.known[1] && room.known[2] && room.known[3];
    float end = 0;
#pragma unroll
    for (int b = 0; b < INSIDE_BLOCKS; b++) end = fmaf(room.product[b], end, room.part[b][channel]);
    dr_tell(chain.end + place.own * K + channel, end);
    if (first) dr_tell(chain.product + place.own, product);
    if (!known) {
        if (!mine) room.before[channel] = heard = dr_inside_await(plan, chain, place, looked);
        dr_meet<groups>();
    }
    if (place.ahead == 0) *entry = heard;
    end = fmaf(product, heard, end);
    if (!x.place.last) {
        dr_tell(entry + H * K, end);
        if (first) *(volatile unsigned *)place.told = CHAIN_WHOLE;
    } else if (chain.final) {
        chain.final[(x.place.sequence * H + x.key_head) * K + channel] = end;
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------------- */

/* The numbers of the warp's rows. alpha, gain: of row lane % 16, asked for before. */
static __device__ inline void dr_inside_put_rows(float alpha, float gain, dr_inside_room &room) {
    const int lane = (int)(threadIdx.x % 32), warp = dr_copy_thread() / 32, own = lane % INSIDE_BLOCK;
    float over = alpha;
#pragma unroll
    for (int step = 1; step < INSIDE_BLOCK; step *= 2) {
        const float above = __shfl_up_sync(0xffffffffu, over, step);
        if (own >= step) over *= above;
    }
    if (lane >= INSIDE_BLOCK) return;
    const int i = warp * INSIDE_BLOCK + own;
    room.alpha[i] = alpha, room.gain[i] = gain, room.over[i] = over;
    if (own == INSIDE_BLOCK - 1) room.product[warp] = over;
}

/* Rows first .. first + 3 of the chunk. */
typedef struct {
    float alpha[4], gain[4];
} dr_inside_four;

static __device__ inline dr_inside_four dr_inside_rows(const dr_inside_room &room, int first) {
    dr_inside_four rows;
    dr_take_four(room.alpha + first, rows.alpha);
    dr_take_four(room.gain + first, rows.gain);
    return rows;
}

template <typename T, int C>
static __device__ inline void dr_inside_step(float alpha, float gain, const dr_inside_pairs<C> &keys, float (&a)[C]) {
#pragma unroll
    for (int e = 0; e < C; e += 2) {
        const float2 k = dr_unpack(T(), keys.pair[e / 2]);
        a[e] = fmaf(alpha, a[e], gain * (k.x * k.x));
        a[e + 1] = fmaf(alpha, a[e + 1], gain * (k.y * k.y));
    }
}

/* A after the warp's rows if it is zero before. keys: the block's. Four rows at a time here and below, in a loop: the code runs
 * once a chunk, so that all of it in a row would wait for instructions. */
template <typename T, int C>
static __device__ inline void dr_inside_from_zero(const dr_inside_room &room, const char *keys, float (&a)[C]) {
#pragma unroll
    for (int e = 0; e < C; e++) a[e] = 0;
#pragma unroll 1
    for (int i = 0; i < INSIDE_BLOCK; i += 4) {
        const dr_inside_four rows = dr_inside_rows(room, dr_copy_thread() / 32 * INSIDE_BLOCK + i);
#pragma unroll
        for (int j = 0; j < 4; j++) dr_inside_step<T, C>(rows.alpha[j], rows.gain[j], *dr_inside_row<T, C>(keys, i + j), a);
    }
}

/* A after every row of the warp, zero before the first: for dr_inside_writes_held. */
template <typename T, int C>
static __device__ inline void dr_inside_hold(const dr_inside_room &room, const char *keys, float (&a)[INSIDE_BLOCK][C]) {
    const int first = dr_copy_thread() / 32 * INSIDE_BLOCK;
#pragma unroll
    for (int i = 0; i < INSIDE_BLOCK; i++) {
        const dr_inside_four rows = dr_inside_rows(room, first + i / 4 * 4); /* read once */
        float k[C];
        dr_inside_key<T, C>(keys, i, k);
#pragma unroll
        for (int e = 0; e < C; e++) {
            const float step = rows.gain[i % 4] * (k[e] * k[e]);
            a[i][e] = i ? fmaf(rows.alpha[i % 4], a[i ? i - 1 : 0][e], step) : step;
        }
    }
}

/* The squash where it is s = r / (1 + |r|), r = ln(A + eps) - centre, as z / (1 / ln 2 + |z|), z = log2((A + eps) e^-centre),
 * and B = e^(offset - factor s) a polynomial of s. */
typedef struct {
    float scale, shift; /* of A: e^-centre, eps e^-centre */
    float b[5];
} dr_inside_squash;

/* The polynomial is the series of the exponential, whose s^5 and s^6 are made of lower powers so that on [-1, 1] the error is
 * even (Chebyshev): under factor^5 / 1920 + factor^6 / 23040 + factor^7 / 5040 of B, 6e-6 by default and 1.1e-4 for 0.7. */
static __device__ inline dr_inside_squash dr_inside_squash_of(const dr_map_squash &squash, float centre) {
    const float f = squash.factor, f2 = f * f, f4 = f2 * f2, whole = expf(squash.offset), scale = expf(-centre);
    const float b0 = 1 + f2 * f4 * (1 / 23040.0f), b1 = -f * (1 - f4 * (1 / 384.0f)), b2 = f2 * (0.5f - f4 * (1 / 1280.0f)),
                b3 = -f * f2 * (1 / 6.0f + f2 * (1 / 96.0f)), b4 = f4 * (1 / 24.0f + f2 * (1 / 480.0f));
    return {scale, squash.eps * scale, {whole * b0, whole * b1, whole * b2, whole * b3, whole * b4}};
}

static __device__ inline bool dr_inside_is_fast(const dr_map_squash &squash, float centre) {
    return !squash.tanh && squash.factor <= 0.7f && fabsf(centre) <= 40 && squash.eps >= 1e-15f;
}

/* B times a pair of keys; one reciprocal does for both. */
template <typename T>
static __device__ inline unsigned dr_inside_write(const dr_inside_squash &squash, unsigned keys, float a0, float a1) {
    const float z0 = dr_log2_near(fmaf(a0, squash.scale, squash.shift)),
                z1 = dr_log2_near(fmaf(a1, squash.scale, squash.shift));
    const float over0 = 1.44269504f + fabsf(z0), over1 = 1.44269504f + fabsf(z1), both = dr_reciprocal_near(over0 * over1);
    const float s0 = z0 * over1 * both, s1 = z1 * over0 * both;
    const float2 k = dr_unpack(T(), keys);
    float b0 = squash.b[4], b1 = squash.b[4];
#pragma unroll
    for (int n = 3; n >= 0; n--) b0 = fmaf(b0, s0, squash.b[n]), b1 = fmaf(b1, s1, squash.b[n]);
    return dr_pack(T(), b0 * k.x, b1 * k.y);
}

/* Write keys of the warp's rows: of four rows what is read comes before what is written, since these may be one place to the
 * compiler, and it would take row after row. a: A before the block; keys, writes: the block's. */
template <typename T, int C>
static __device__ inline void dr_inside_writes(const dr_inside_room &room, const dr_inside_squash &squash, const char *keys,
                                               char *writes, float (&a)[C]) {
#pragma unroll 1
    for (int i = 0; i < INSIDE_BLOCK; i += 4) {
        const dr_inside_four rows = dr_inside_rows(room, dr_copy_thread() / 32 * INSIDE_BLOCK + i);
        dr_inside_pairs<C> w[4];
#pragma unroll
        for (int j = 0; j < 4; j++) w[j] = *dr_inside_row<T, C>(keys, i + j);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            dr_inside_step<T, C>(rows.alpha[j], rows.gain[j], w[j], a);
#pragma unroll
            for (int e = 0; e < C; e += 2) w[j].pair[e / 2] = dr_inside_write<T>(squash, w[j].pair[e / 2], a[e], a[e + 1]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) *dr_inside_row<T, C>(writes, i + j) = w[j];
    }
}

/* The same without a loop, with A of all rows from zero in registers. before: A before the block. */
template <typename T, int C>
static __device__ inline void dr_inside_writes_held(const dr_inside_room &room, const dr_inside_squash &squash,
                                                    const char *keys, char *writes, const float (&a)[INSIDE_BLOCK][C],
                                                    const float (&before)[C]) {
    const int first = dr_copy_thread() / 32 * INSIDE_BLOCK;
#pragma unroll
    for (int i = 0; i < INSIDE_BLOCK; i += 4) {
        float over[4];
        dr_inside_pairs<C> w[4];
        dr_take_four(room.over + first + i, over);
#pragma unroll
        for (int j = 0; j < 4; j++) w[j] = *dr_inside_row<T, C>(keys, i + j);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < C; e += 2)
                w[j].pair[e / 2] = dr_inside_write<T>(squash, w[j].pair[e / 2], fmaf(over[j], before[e], a[i + j][e]),
                                                      fmaf(over[j], before[e + 1], a[i + j][e + 1]));
#pragma unroll
        for (int j = 0; j < 4; j++) *dr_inside_row<T, C>(writes, i + j) = w[j];
    }
}

/* The same by the squash as it is defined, row after row. */
template <typename T, int C>
static __device__ inline void dr_inside_writes_slowly(const dr_inside_room &room, const dr_map_squash &squash, float centre,
                                                      const char *keys, char *writes, float (&a)[C]) {
    const int first = dr_copy_thread() / 32 * INSIDE_BLOCK;
#pragma unroll 1
    for (int i = 0; i < INSIDE_BLOCK; i++) {
        float w[C], slope;
        dr_inside_key<T, C>(keys, i, w);
#pragma unroll
        for (int e = 0; e < C; e++) {
            a[e] = dr_map_scan_step(a[e], room.alpha[first + i], room.gain[first + i], w[e]);
            w[e] *= dr_map_squash_value(&squash, a[e], centre, &slope);
        }
        dr_inside_put<T, C>(writes, i, w);
    }
}

/* Write keys to memory, where a backward wants them; behind a barrier. */
template <typename T>
static __device__ inline void dr_inside_keep(const dr_cuda_chunk_plan &plan, const dr_prepare_block &x, const char *writes) {
    const dr_cuda_rows &rows = plan.rows;
    if (!rows.squashed) return;
    dr_strided<T> to = dr_rows_made<T>(rows, x, rows.squashed);
#pragma unroll 1
    for (int box = 0; box < x.boxes; box++) {
        dr_store_rows<T>(to, writes + box * 64 * 64 * (int)sizeof(T), 64, rows.aligned);
        to.at += 64;
    }
}

/* ---- all of it --------------------------------------------------------------------------------------------------------- */

/* What is asked for before the keys have come. */
typedef struct {
    dr_inside_place place;
    float alpha, gain, centre; /* of row lane % 16 of the warp's */
} dr_inside_early;

static __device__ inline dr_inside_early dr_inside_ask(const dr_cuda_chunk_plan &plan, const dr_cuda_chunk_tensors &tensors,
                                                       const dr_prepare_block &x) {
    const dr_cuda_rows &rows = plan.rows;
    const int i = dr_copy_thread() / 32 * INSIDE_BLOCK + (int)(threadIdx.x % INSIDE_BLOCK);
    const bool there = i < x.place.tokens;
    dr_inside_early early;
    early.place = dr_inside_find(plan, tensors, x);
    early.alpha = there ? dr_diagonal_alpha(rows, x.place.first + i, x.key_head) : 1;
    early.gain = there ? dr_diagonal_gain(rows, x.place.first + i, x.key_head) : 0;
    early.centre = dr_input_scalar(rows, DR_INPUT_SCAN_CENTRE, 0, 0, x.key_head);
    return early;
}

/* From a tile of keys the tile of write keys, by lanes of C channels; behind a barrier where the keys are there. */
template <typename T, int C, int groups, bool hold>
static __device__ inline void dr_inside_lanes(const dr_cuda_chunk_plan &plan, const dr_cuda_chunk_tensors &tensors,
                                              const dr_prepare_block &x, const dr_inside_early &early, dr_inside_room &room,
                                              const char *keys, char *writes) {
    const dr_cuda_rows &rows = plan.rows;
    const int warp = dr_copy_thread() / 32, channel = (int)(threadIdx.x % 32) * C;
    float a[C];
    keys += dr_tile_at<T>(0, 64, warp * INSIDE_BLOCK, 0), writes += dr_tile_at<T>(0, 64, warp * INSIDE_BLOCK, 0);
    const float heard = dr_inside_hear(plan, tensors.scan, x, early.place);
    const unsigned looked = dr_inside_look(early.place);
    float held[hold ? INSIDE_BLOCK : 1][C];
    if constexpr (hold) {
        dr_inside_hold<T, C>(room, keys, held);
        dr_inside_lay<C>(room.part[warp] + channel, held[INSIDE_BLOCK - 1]);
    } else {
        dr_inside_from_zero<T, C>(room, keys, a);
        dr_inside_lay<C>(room.part[warp] + channel, a);
    }
    dr_inside_pass<groups>(plan, tensors.scan, x, early.place, heard, looked, room);
#pragma unroll
    for (int e = 0; e < C; e++) a[e] = room.before[channel + e];
#pragma unroll
    for (int b = 0; b < INSIDE_BLOCKS - 1; b++)
        if (b < warp) dr_inside_over<C>(room.product[b], a, room.part[b] + channel);
    if (!dr_inside_is_fast(rows.squash, early.centre)) {
        dr_inside_writes_slowly<T, C>(room, rows.squash, early.centre, keys, writes, a);
        return;
    }
    const dr_inside_squash squash = dr_inside_squash_of(rows.squash, early.centre);
    if constexpr (hold)
        dr_inside_writes_held<T, C>(room, squash, keys, writes, held, a);
    else
        dr_inside_writes<T, C>(room, squash, keys, writes, a);
}

/* hold: A of the rows stays in registers, where there is room for it. */
template <typename T, int groups, bool hold>
static __device__ inline void dr_inside_make(const dr_cuda_chunk_plan &plan, const dr_cuda_chunk_tensors &tensors,
                                             const dr_prepare_block &x, const dr_inside_early &early, dr_inside_room &room,
                                             const char *keys, char *writes) {
    if (plan.key_width == 128)
        dr_inside_lanes<T, 4, groups, hold>(plan, tensors, x, early, room, keys, writes);
    else
        dr_inside_lanes<T, 2, groups, hold>(plan, tensors, x, early, room, keys, writes);
}

#endif
