/* The diagonal scan, or the gradient of its A, in one pass: chunks make the state before them for one another while they run.
 *
 * A thread block takes a chunk of a key head, a warp a block of 16 rows of it and 64 channels, a lane two of these. Each chunk
 * tells what it makes of zero, looks for the nearest chunk on the way that has told the state it leaves, and goes from there
 * through what the chunks between told, always in the same order: so the bits do not depend on who came first. A chunk waits
 * only for thread blocks of lower index, which start before it. */
#ifndef DR_CUDA_DIAGONAL_CHAIN_CUH
#define DR_CUDA_DIAGONAL_CHAIN_CUH

#include "backends/cuda/device/tiles.cuh"
#include "backends/cuda/diagonal/diagonal.cuh"
#include "backends/cuda/rows/source.cuh"

enum { CHAIN_ROWS = 64, CHAIN_BLOCK = 16, CHAIN_BLOCKS = CHAIN_ROWS / CHAIN_BLOCK };

/* Shared memory behind the tiles. */
typedef struct {
    float dot[CHAIN_ROWS];       /* backward: gradient of key . write key */
    float4 row[CHAIN_ROWS];      /* alpha, gain, times w that settle its gradient; weight of the row in A after its block */
    float product[CHAIN_BLOCKS]; /* of the alphas of a block */
    float sums[CHAIN_ROWS][4][2],
        centre[CHAIN_BLOCKS * 4]; /* backward: of a row and 64 channels, for gain and alpha; of a warp */
    float part[];                 /* [1 or 2][CHAIN_BLOCKS][width]: what a block makes of A = 0, of d = 0 */
} chain_room;

/* What a thread has to know of its chunk and channels. */
typedef struct {
    dr_chunk_place place;
    int64_t own, told;                         /* slot and head; head and slot */
    int64_t ahead, rest;                       /* chunks of the sequence that come before this one on the way, and behind it */
    int64_t state;                             /* of the sequence and head: where its states begin, with the first channel */
    int head, warp, block, box, channel, left; /* left: channels that exist from the first on */
} chain_place;

/* dir: where the chunk lies whose state this one takes up: the slot before, -1, or behind, 1. Chunks of equal sequences take
 * turns, so that those they wait for have begun long before. */
template <int dir> static __device__ inline chain_place chain_find(const dr_cuda_chunk_plan &plan, const int64_t *cu) {
    chain_place x;
    const int64_t H = plan.key_heads, n = dr_place_divide(blockIdx.x, H);
    int64_t slot = dir < 0 ? n : plan.slots - 1 - n;
    if (plan.length) {
        const int64_t chunks = plan.sequence_chunks;
        const int64_t turn = dr_place_divide(n, plan.sequences), sequence = n - turn * plan.sequences;
        slot = sequence * chunks + (dir < 0 ? turn : chunks - 1 - turn);
    }
    x.place = dr_find_chunk(plan, cu, slot);
    const int64_t index = slot - dr_sequence_slot(plan, cu, x.place.sequence);
    const int64_t behind = dr_sequence_chunks(plan, cu, x.place.sequence) - 1 - index;
    x.head = (int)(blockIdx.x - n * H);
    x.own = slot * H + x.head;
    x.told = x.head * plan.slots + slot;
    x.ahead = dir < 0 ? index : behind;
    x.rest = dir < 0 ? behind : index;
    x.warp = (int)(threadIdx.x / 32);
    x.block = x.warp % CHAIN_BLOCKS;
    x.box = x.warp / CHAIN_BLOCKS;
    x.channel = x.box * 64 + (int)(threadIdx.x % 32) * 2;
    x.left = plan.rows.key_size - x.channel;
    x.state = (x.place.sequence * H + x.head) * plan.rows.key_size + x.channel;
    return x;
}

/* ---- pairs of channels --------------------------------------------------------------------------------------------------- */

template <typename T> static __device__ inline float2 chain_pair(const char *tile, int row, int column) {
    const char *at = tile + dr_tile_at<T>(0, CHAIN_ROWS, row, column);
    if constexpr (sizeof(T) == 4) return *(const float2 *)at;
    const unsigned word = *(const unsigned *)at; /* bf16: the upper half of a float */
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

static __device__ inline float2 &chain_floats(char *tile, int row, int column) {
    return *(float2 *)(tile + dr_tile_at<float>(0, CHAIN_ROWS, row, column));
}

template <typename T> static __device__ inline void chain_put_pair(char *tile, int row, int column, float2 x) {
    dr_store_pair<T>((T *)(tile + dr_tile_at<T>(0, CHAIN_ROWS, row, column)), x.x, x.y);
}

static __device__ inline float2 chain_load(const dr_cuda_rows &rows, const float *from, int left) {
    float x[2];
    dr_load_lane<float, 2>(from, left, rows.aligned, x);
    return make_float2(x[0], x[1]);
}

static __device__ inline void chain_store(const dr_cuda_rows &rows, float *to, int left, float2 pair) {
    const float x[2] = {pair.x, pair.y};
    dr_store_lane<float, 2>(to, left, rows.aligned, x);
}

/* ---- rows ---------------------------------------------------------------------------------------------------------------- */

/* The numbers of row i = the thread, of the first two warps; a barrier behind. settle: of a token and head, or NULL. */
static __device__ inline void chain_put_row(const dr_cuda_rows &rows, const chain_place &x, const float *settle,
                                            chain_room &room) {
    const int i = (int)threadIdx.x, own = i % CHAIN_BLOCK;
    if (i >= CHAIN_ROWS) return;
    const bool there = i < x.place.tokens;
    const int64_t token = x.place.first + i;
    const float alpha = there ? dr_diagonal_alpha(rows, token, x.head) : 1;
    const float gain = there ? dr_diagonal_gain(rows, token, x.head) : 0;
    const float more = there && settle ? settle[token * rows.key_heads + x.head] : 0;
    const float product = dr_product_behind<CHAIN_BLOCK>(alpha); /* from this row to the end of its block */
    const float after = __shfl_down_sync(0xffffffffu, product, 1);
    room.row[i] = make_float4(alpha, gain, more, own == CHAIN_BLOCK - 1 ? gain : gain * after);
    if (own == 0) room.product[i / CHAIN_BLOCK] = product;
}

/* A after the block if it is zero before. */
template <typename T>
static __device__ inline float2 chain_sum(const chain_room &room, const char *keys, int block, int column) {
    float2 sum = make_float2(0, 0);
    DR_UNROLL (i, CHAIN_BLOCK) {
        const float2 key = chain_pair<T>(keys, block * CHAIN_BLOCK + i, column);
        const float weight = room.row[block * CHAIN_BLOCK + i].w;
        sum.x = fmaf(weight, key.x * key.x, sum.x);
        sum.y = fmaf(weight, key.y * key.y, sum.y);
    }
    return sum;
}

/* Over a block of rows: product x + what it makes of zero. */
static __device__ inline float2 chain_over(float product, float2 x, const float *from_zero) {
    const float2 y = *(const float2 *)from_zero;
    return make_float2(fmaf(product, x.x, y.x), fmaf(product, x.y, y.y));
}

/* ---- chunks -------------------------------------------------------------------------------------------------------------- */

/* After a barrier behind what is told: by the first thread. */
static __device__ inline void chain_tell(unsigned *told, unsigned what) {
    dr_fence_device();
    *(volatile unsigned *)told = what;
}

/* How many chunks lie on the way to this one from the nearest that has told the state it leaves; told: this one's. A warp looks
 * at 32 at once. */
template <int dir> static __device__ inline int chain_look(const volatile unsigned *told, int64_t chunks) {
    const int lane = (int)(threadIdx.x % 32);
    for (;;) {
        const unsigned state = lane < chunks ? told[dir * (lane + 1)] : CHAIN_NOTHING;
        const unsigned whole = __ballot_sync(0xffffffffu, state == CHAIN_WHOLE),
                       some = __ballot_sync(0xffffffffu, state != CHAIN_NOTHING);
        const int between = __ffs((int)whole) - 1;
        if (between >= 0 && !(~some & ((1u << between) - 1))) {
            dr_fence_device();
            return between;
        }
    }
}

/* The state before the chunk on the way, of this thread's channels. product, end: what the chunk makes of a state, which the
 * warps of the first block tell. Barriers before and behind. */
template <int dir>
static __device__ inline float2 chain_pass(const dr_cuda_rows &rows, const dr_cuda_diagonal_chain &chain, const chain_place &x,
                                           float product, float2 end) {
    const int64_t H = rows.key_heads, K = rows.key_size;
    unsigned *told = chain.told + x.told;
    const int64_t at = x.own * K + x.channel;
    float2 state = make_float2(0, 0);
    if (x.ahead == 0) {
        if (chain.initial) state = chain_load(rows, chain.initial + x.state, x.left);
        if (x.block == 0) chain_store(rows, chain.entry + at, x.left, state);
    } else {
        if (x.block == 0) chain_store(rows, chain.end + at, x.left, end);
        if (threadIdx.x == 0) chain.product[x.own] = product;
        __syncthreads();
        if (threadIdx.x == 0 && ((const volatile unsigned *)told)[dir] != CHAIN_WHOLE) chain_tell(told, CHAIN_SUM);
        const int between = chain_look<dir>(told, x.ahead);
        const float *ends = chain.end + at + dir * between * H * K, *products = chain.product + x.own + dir * between * H;
        const float *entry = chain.entry + (ends - chain.end);
        if (x.left > 0) state.x = __ldcg(entry);
        if (x.left > 1) state.y = __ldcg(entry + 1);
#pragma unroll 4
        for (int i = between; i > 0; i--) {
            const float p = __ldcg(products);
            state.x = fmaf(p, state.x, x.left > 0 ? __ldcg(ends) : 0);
            state.y = fmaf(p, state.y, x.left > 1 ? __ldcg(ends + 1) : 0);
            ends -= dir * H * K, products -= dir * H;
        }
    }
    if (x.block == 0) {
        const float2 leaves = make_float2(fmaf(product, state.x, end.x), fmaf(product, state.y, end.y));
        if (x.rest > 0)
            chain_store(rows, chain.entry + at - dir * H * K, x.left, leaves);
        else if (chain.final)
            chain_store(rows, chain.final + x.state, x.left, leaves);
    }
    __syncthreads();
    if (threadIdx.x == 0) chain_tell(told, CHAIN_WHOLE);
    return state;
}

#endif
