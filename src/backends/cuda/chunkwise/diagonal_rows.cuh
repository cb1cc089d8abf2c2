/* The diagonal scan of a chunk where its keys are at hand, by the 128 threads that make all else of the chunk
 * (plan.scan_inside): write keys B * key from a tile of keys to a tile beside it. A warp takes a block of 16 rows, a lane two
 * or four channels.
 *
 * - What the rows make of A = 0 gives the block's part; the parts make what the chunk makes of zero, which it tells at once.
 * - A before the chunk is asked for when the keys have come, and mostly there with the parts. Where it is not, the chunk
 *   goes from the nearest before it that has told the state it leaves through what those between make of zero: always in the
 *   same order, so that the bits do not depend on who came first. Then it tells the state it leaves itself.
 * - Then A, B and w of the rows. Most rules squash by s = r / (1 + |r|): then it is 12 instructions a row and channel.
 *
 * Rows go a few at a time in loops: written out, the code runs once a chunk and waits for instructions.
 *
 * The threads of a chunk wait only for chunks that were taken before theirs, by blocks that run. */
#ifndef DR_CUDA_DIAGONAL_ROWS_CUH
#define DR_CUDA_DIAGONAL_ROWS_CUH

#include "backends/cuda/chunkwise/prepare_load.cuh"
#include "backends/cuda/device/beside.cuh"
#include "backends/cuda/device/told.cuh"
#include "backends/cuda/diagonal/diagonal.cuh"

enum { INSIDE_BLOCK = 16, INSIDE_BLOCKS = 4, INSIDE_AT_ONCE = 8 };

/* Shared memory. Of rows, of blocks of rows. */
typedef struct {
    float alpha[64], gain[64], shift[64]; /* X of the row: alpha X + (gain key^2 + shift) (dr_inside_squash) */
    float weight[64];                     /* of key^2 in A after the block */
    float product[INSIDE_BLOCKS];         /* of a block's alphas */
    float part[INSIDE_BLOCKS][128];       /* what a block makes of A = 0 */
    float before[128];                    /* A before the chunk */
    unsigned known[4];                    /* of a warp's channels */
} dr_inside_room;

/* The chunk among those of its sequence and head. */
typedef struct {
    unsigned own; /* slot and head */
    int ahead;    /* chunks of the sequence before it */
    unsigned *told;
} dr_inside_place;

static __device__ inline dr_inside_place dr_inside_find(const dr_cuda_chunk_plan &plan, const dr_cuda_chunk_tensors &tensors,
                                                        const dr_prepare_block &x) {
    return {(unsigned)x.block, (int)x.before, tensors.scan.told + ((unsigned)x.key_head * (unsigned)plan.slots + x.slot)};
}

/* ---- channels of a lane ------------------------------------------------------------------------------------------------ */

template <int C> static __device__ inline void dr_inside_take(const float *from, float (&x)[C]) {
    if constexpr (C == 4) {
        dr_take_fours(from, x);
    } else {
        const float2 both = *(const float2 *)from;
        x[0] = both.x, x[1] = both.y;
    }
}

template <int C> static __device__ inline void dr_inside_lay(float *to, const float (&x)[C]) {
    if constexpr (C == 4)
        *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
    else
        *(float2 *)to = make_float2(x[0], x[1]);
}

/* The lane's channels of a row, as they lie in a tile. */
template <int C> struct alignas(2 * C) dr_inside_pairs { unsigned pair[C / 2]; };

/* Of row i + j of a tile; i a multiple of 4 and j < 4, or of 8. The bits by which its place differs from that of row j do not
 * depend on j. */
template <typename T, int C> static __device__ inline dr_inside_pairs<C> *dr_inside_row(const char *tile, int i, int j) {
    const unsigned at = dr_tile_at<T>(0, 64, j, (int)(threadIdx.x % 32) * C) ^ dr_tile_at<T>(0, 64, i, 0);
    return (dr_inside_pairs<C> *)(tile + at);
}

template <typename T, int C> static __device__ inline void dr_inside_key(const char *tile, int i, int j, float (&k)[C]) {
    const dr_inside_pairs<C> word = *dr_inside_row<T, C>(tile, i, j);
    DR_UNROLL_BY (e, C, 2) {
        const float2 pair = dr_unpack(T(), word.pair[e / 2]);
        k[e] = pair.x, k[e + 1] = pair.y;
    }
}

template <typename T, int C> static __device__ inline void dr_inside_put(char *tile, int i, int j, const float (&w)[C]) {
    dr_inside_pairs<C> word;
    DR_UNROLL_BY (e, C, 2) word.pair[e / 2] = dr_pack(T(), w[e], w[e + 1]);
    *dr_inside_row<T, C>(tile, i, j) = word;
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
template <int C> static __device__ inline int dr_inside_channel() {
    return dr_copy_thread() / 32 * (8 * C) + (int)(threadIdx.x % (8 * C));
}

/* Where a chunk of a head has its number of the thread's channel. */
template <int C> static __device__ inline float *dr_inside_of(float *numbers, unsigned own) {
    return numbers + dr_inside_channel<C>() + (uint64_t)own * (32 * C);
}

/* A before the chunk as it is at the moment, the first thing of what dr_cuda_diagonal_begin_inside has prepared. */
template <int C>
static __device__ inline float dr_inside_hear(const dr_cuda_chunk_plan &plan, const dr_cuda_diagonal_chain &chain,
                                              const dr_prepare_block &x, const dr_inside_place &place) {
    if (!plan.early.parts) dr_beside_close(); /* else it was behind the kernel before this one */
    if (place.ahead > 0) return dr_hear(dr_inside_of<C>(chain.entry, place.own));
    if (!chain.initial) return 0;
    return *dr_inside_of<C>((float *)chain.initial, (unsigned)(x.place.sequence * plan.key_heads) + (unsigned)x.key_head);
}

/* A before the chunk, from the nearest of which it is known that it has told the state it leaves; is that far, there may be a
 * nearer one by now. looked: when the keys had come. */
template <int C>
static __device__ inline float dr_inside_await(const dr_cuda_chunk_plan &plan, const dr_cuda_diagonal_chain &chain,
                                               const dr_inside_place &place, unsigned looked) {
    const unsigned H = (unsigned)plan.key_heads;
    const int lane = (int)(threadIdx.x % 32);
    int between = dr_inside_between(looked);
    if (between >= INSIDE_AT_ONCE) between = -1;
    while (between < 0) between = dr_inside_between(dr_inside_look(place));
    const unsigned first = place.own - (unsigned)between * H; /* of the chunks between; lane l has the alphas of the lth */
    float state = 0, product = 0;
    for (int i = 0;;) {
        float end[INSIDE_AT_ONCE];
        if (i == 0) {
            state = dr_hear(dr_inside_of<C>(chain.entry, first));
            product = dr_hear(chain.product + first + (lane < between ? lane : 0) * H);
        }
        DR_UNROLL (n, INSIDE_AT_ONCE)
            end[n] = dr_hear(dr_inside_of<C>(chain.end, first + (unsigned)(i + n < between ? i + n : i) * H));
        bool told = dr_is_told(state) && dr_is_told(product);
        DR_UNROLL (n, INSIDE_AT_ONCE) told = told && dr_is_told(end[n]);
        if (!__all_sync(0xffffffffu, told)) continue;
        DR_UNROLL (n, INSIDE_AT_ONCE) {
            const float over = __shfl_sync(0xffffffffu, product, i + n);
            if (i + n < between) state = fmaf(over, state, end[n]);
        }
        if ((i += INSIDE_AT_ONCE) >= between) return state;
    }
}

/* A before the chunk to the room; to others what the chunk makes of zero, and what it leaves. heard, looked: when the keys had
 * come. Behind the parts; what is in the room is there at the end. */
template <int C, int groups>
static __device__ inline void dr_inside_pass(const dr_cuda_chunk_plan &plan, const dr_cuda_diagonal_chain &chain,
                                             const dr_prepare_block &x, const dr_inside_place &place, float heard,
                                             unsigned looked, dr_inside_room &room) {
    const int channel = dr_inside_channel<C>();
    const bool first = dr_copy_thread() == 0;
    const unsigned mine = place.ahead == 0 || __all_sync(0xffffffffu, dr_is_told(heard));
    room.before[channel] = heard;
    room.known[dr_copy_thread() / 32] = mine;
    dr_meet<groups>();
    float over[INSIDE_BLOCKS], end = 0;
    dr_take_fours(room.product, over);
    DR_UNROLL (b, INSIDE_BLOCKS) end = fmaf(over[b], end, room.part[b][channel]);
    const float product = over[0] * over[1] * (over[2] * over[3]);
    dr_tell(dr_inside_of<C>(chain.end, place.own), end);
    if (first) dr_tell(chain.product + place.own, product);
    const uint4 known = *(const uint4 *)room.known;
    if (!(known.x & known.y & known.z & known.w)) {
        if (!mine) room.before[channel] = heard = dr_inside_await<C>(plan, chain, place, looked);
        dr_meet<groups>();
    }
    if (place.ahead == 0) *dr_inside_of<C>(chain.entry, place.own) = heard;
    end = fmaf(product, heard, end);
    if (!x.place.last) {
        dr_tell(dr_inside_of<C>(chain.entry, place.own + (unsigned)plan.key_heads), end);
        if (first) *(volatile unsigned *)place.told = CHAIN_WHOLE;
    } else if (chain.final) {
        *dr_inside_of<C>(chain.final, (unsigned)(x.place.sequence * plan.key_heads) + (unsigned)x.key_head) = end;
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------------- */

/* The squash where it is s = r / (1 + |r|), r = ln(A + eps) - centre: of X = (A + eps) e^-centre it is z / (1 / ln 2 + |z|),
 * z = log2 X, and B = 2^(offset - factor s). X takes A's own steps: alpha X + (gain e^-centre key^2 + eps e^-centre (1 -
 * alpha)). */
typedef struct {
    float scale, eps, offset, factor; /* e^-centre, eps e^-centre; in powers of 2, with the sign */
} dr_inside_squash;

static __device__ inline bool dr_inside_is_fast(const dr_map_squash &squash, float centre) {
    return !squash.tanh && fabsf(centre) <= 40 && squash.eps >= 1e-15f;
}

/* Where it is not, X is A, which eps = 0 says. */
static __device__ inline dr_inside_squash dr_inside_squash_of(const dr_map_squash &squash, float centre) {
    const float log2_e = 1.44269504f;
    if (!dr_inside_is_fast(squash, centre)) return {1, 0, 0, 0};
    const float scale = dr_exp2_near(-log2_e * centre);
    return {scale, squash.eps * scale, log2_e * squash.offset, -log2_e * squash.factor};
}

/* What is asked for before the keys have come. */
typedef struct {
    dr_inside_place place;
    float log_decay, gain, centre; /* of row lane % 16 of the warp's */
} dr_inside_early;

static __device__ inline dr_inside_early dr_inside_ask(const dr_cuda_chunk_plan &plan, const dr_cuda_chunk_tensors &tensors,
                                                       const dr_prepare_block &x) {
    const dr_cuda_rows &rows = plan.rows;
    const int i = dr_copy_thread() / 32 * INSIDE_BLOCK + (int)(threadIdx.x % INSIDE_BLOCK);
    const bool there = i < x.place.tokens;
    dr_inside_early early;
    early.place = dr_inside_find(plan, tensors, x);
    early.log_decay = there ? dr_chunk_scalar(rows, dr_diagonal_decay_input(rows), x, i, 0, x.key_head) : 0;
    early.gain = there ? dr_chunk_scalar(rows, dr_diagonal_gain_input(rows), x, i, 0, x.key_head) : 0;
    early.centre = dr_input_scalar(rows, DR_INPUT_SCAN_CENTRE, 0, 0, x.key_head);
    return early;
}

/* The numbers of the warp's rows. */
static __device__ inline void dr_inside_put_rows(const dr_cuda_chunk_plan &plan, const dr_inside_early &early,
                                                 dr_inside_room &room) {
    const dr_inside_squash squash = dr_inside_squash_of(plan.rows.squash, early.centre);
    const int lane = (int)(threadIdx.x % 32), warp = dr_copy_thread() / 32, own = lane % INSIDE_BLOCK;
    const float alpha = expf(early.log_decay);
    const float tail = dr_product_behind<INSIDE_BLOCK>(alpha); /* from the row to the end of the block */
    const float after = __shfl_down_sync(0xffffffffu, tail, 1);
    if (lane >= INSIDE_BLOCK) return;
    const int i = warp * INSIDE_BLOCK + own;
    room.alpha[i] = alpha, room.gain[i] = early.gain * squash.scale, room.shift[i] = squash.eps * (1 - alpha);
    room.weight[i] = own == INSIDE_BLOCK - 1 ? early.gain : early.gain * after;
    if (own == 0) room.product[warp] = tail;
}

/* A after the warp's rows if it is zero before. */
template <typename T, int C>
static __device__ inline void dr_inside_from_zero(const dr_inside_room &room, const char *keys, float (&a)[C]) {
    const int first = dr_copy_thread() / 32 * INSIDE_BLOCK;
    DR_UNROLL (e, C) a[e] = 0;
#pragma unroll 1
    for (int i = first; i < first + INSIDE_BLOCK; i += 4) {
        float weight[4];
        dr_take_fours(room.weight + i, weight);
        DR_UNROLL (j, 4) {
            float k[C];
            dr_inside_key<T, C>(keys, i, j, k);
            DR_UNROLL (e, C) a[e] = fmaf(weight[j], k[e] * k[e], a[e]);
        }
    }
}

/* B of a channel. */
static __device__ inline float dr_inside_squashed(const dr_inside_squash &squash, float x) {
    const float z = dr_log2_near(x), shrink = dr_reciprocal_near(1.44269504f + fabsf(z));
    return dr_exp2_near(fmaf(squash.factor, z * shrink, squash.offset));
}

/* Write keys of the warp's rows: of `rows` what is read comes before what is written, since these may be one place to the
 * compiler, and it would take row after row. x: X before the block. */
template <typename T, int C, int rows = 4>
static __device__ inline void dr_inside_writes(const dr_inside_room &room, const dr_inside_squash &squash, const char *keys,
                                               char *writes, float (&x)[C]) {
    const int first = dr_copy_thread() / 32 * INSIDE_BLOCK;
#pragma unroll 1
    for (int i = first; i < first + INSIDE_BLOCK; i += rows) {
        float alpha[rows], gain[rows], shift[rows], k[rows][C];
        dr_take_fours(room.alpha + i, alpha);
        dr_take_fours(room.gain + i, gain);
        dr_take_fours(room.shift + i, shift);
        DR_UNROLL (j, rows) dr_inside_key<T, C>(keys, i, j, k[j]);
        DR_UNROLL (j, rows)
            DR_UNROLL (e, C) {
                x[e] = fmaf(alpha[j], x[e], fmaf(gain[j], k[j][e] * k[j][e], shift[j]));
                k[j][e] *= dr_inside_squashed(squash, x[e]);
            }
        DR_UNROLL (j, rows) dr_inside_put<T, C>(writes, i, j, k[j]);
    }
}

/* The same by the squash as it is defined, row after row. */
template <typename T, int C>
static __device__ inline void dr_inside_writes_slowly(const dr_inside_room &room, const dr_map_squash &squash, float centre,
                                                      const char *keys, char *writes, float (&a)[C]) {
    const int first = dr_copy_thread() / 32 * INSIDE_BLOCK;
#pragma unroll 1
    for (int i = first; i < first + INSIDE_BLOCK; i++) {
        float w[C], slope;
        dr_inside_key<T, C>(keys, i & ~3, i & 3, w);
        DR_UNROLL (e, C) {
            a[e] = dr_map_scan_step(a[e], room.alpha[i], room.gain[i], w[e]);
            w[e] *= dr_map_squash_value(&squash, a[e], centre, &slope);
        }
        dr_inside_put<T, C>(writes, i & ~3, i & 3, w);
    }
}

/* Write keys to memory, where a backward wants them; behind a barrier. */
template <typename T>
static __device__ inline void dr_inside_keep(const dr_cuda_chunk_plan &plan, const dr_prepare_block &x, const char *writes) {
    const dr_cuda_rows &rows = plan.rows;
    if (!rows.input[DR_SOURCE_SQUASHED].at) return;
    dr_strided<T> to = dr_rows_at<T>(x, rows.input[DR_SOURCE_SQUASHED]);
#pragma unroll 1
    for (int box = 0; box < x.boxes; box++) {
        dr_store_rows<T>(to, writes + box * 64 * 64 * (int)sizeof(T), 64, rows.aligned);
        to.at += 64;
    }
}

/* ---- all of it --------------------------------------------------------------------------------------------------------- */

/* From a tile of keys the tile of write keys, by lanes of C channels; behind a barrier where the keys and the rows' numbers are
 * there. */
template <typename T, int C, int groups>
static __device__ inline void dr_inside_make(const dr_cuda_chunk_plan &plan, const dr_cuda_chunk_tensors &tensors,
                                             const dr_prepare_block &x, const dr_inside_early &early, dr_inside_room &room,
                                             const char *keys, char *writes) {
    const int warp = dr_copy_thread() / 32, channel = (int)(threadIdx.x % 32) * C;
    const dr_inside_squash squash = dr_inside_squash_of(plan.rows.squash, early.centre);
    float a[C];
    const float heard = dr_inside_hear<C>(plan, tensors.scan, x, early.place);
    const unsigned looked = dr_inside_look(early.place);
    dr_inside_from_zero<T, C>(room, keys, a);
    dr_inside_lay<C>(room.part[warp] + channel, a);
    dr_inside_pass<C, groups>(plan, tensors.scan, x, early.place, heard, looked, room);
    dr_inside_take<C>(room.before + channel, a);
#pragma unroll 1
    for (int b = 0; b < warp; b++) {
        float part[C];
        dr_inside_take<C>(room.part[b] + channel, part);
        DR_UNROLL (e, C) a[e] = fmaf(room.product[b], a[e], part[e]);
    }
    if (squash.eps == 0) {
        dr_inside_writes_slowly<T, C>(room, plan.rows.squash, early.centre, keys, writes, a);
        return;
    }
    DR_UNROLL (e, C) a[e] = fmaf(squash.scale, a[e], squash.eps);
    dr_inside_writes<T, C>(room, squash, keys, writes, a);
}

#endif
