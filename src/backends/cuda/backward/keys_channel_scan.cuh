/* The backward of the diagonal scan that makes write keys w = B * key, where keys_channel has their gradients in shared memory
 * (diagonal_rows_back.cuh): a warp takes its eight rows, a lane its two channels, and so neither gradients of w nor what keys
 * get beside the scan go through memory.
 *
 * The thread blocks of a chunk, one for 64 channels, are a cluster and settle w's gradients together, since w . d_w is a sum
 * over all channels; gradients of log decays and queries leave meanwhile. Each has a chain of its own over the chunks of a
 * sequence, from the last on, and waits for thread blocks of lower index only. */
#ifndef DR_CUDA_KEYS_CHANNEL_SCAN_CUH
#define DR_CUDA_KEYS_CHANNEL_SCAN_CUH

#include "backends/cuda/backward/keys_channel.cuh"
#include "backends/cuda/device/cluster.cuh"
#include "backends/cuda/rows/diagonal_rows_back.cuh"

/* A warp's part of the tile of write keys, once it has read them. */
typedef struct {
    float2 end[32];   /* A behind its rows, if it is zero before them */
    float2 begin[32]; /* d before its rows, if it is zero behind them */
    float2 exit[32];  /* the last warp's: d behind the chunk */
    float more[HALF], centre;
} scan_share;

static __device__ inline scan_share &scan_share_of(char *shared, const keys_room &room, int warp) {
    return *(scan_share *)(shared + room.write + warp * HALF * 128);
}

/* [64], where the factors of a scalar decay would be. */
static __device__ inline dr_scan_number *scan_numbers(const keys_rows &k) {
    return (dr_scan_number *)k.head_query;
}

/* The factor of a state over a warp's rows. */
static __device__ inline float scan_factor(const keys_rows &k, int warp) {
    return scan_numbers(k)[warp * HALF + HALF - 1].head;
}

/* Behind all else in shared memory: w . d_w and w . w of every row over each thread block's channels, and the barrier that
 * counts what comes from the other one. */
typedef struct {
    float dot[2][2][64];
    uint64_t come;
} scan_dots;

static __device__ inline scan_dots &scan_dots_of(char *shared, const keys_room &room) {
    return *(scan_dots *)(shared + room.bytes);
}

/* Thread block `block` of the chunk and head that come n-th: chunks of equal sequences from the last on, all sequences in
 * turn. */
static __device__ inline unsigned scan_block(const dr_cuda_chunk_plan &plan, unsigned n) {
    const unsigned heads = (unsigned)plan.key_heads, turn = n / heads, head = n - turn * heads, slots = (unsigned)plan.slots;
    if (!plan.length) return (slots - 1 - turn) * heads + head;
    const unsigned sequences = (unsigned)plan.sequences, chunks = slots / sequences, index = turn / sequences;
    return ((turn - index * sequences) * chunks + chunks - 1 - index) * heads + head;
}

/* Sums over the warp of two numbers a row, of the thread block's channels, for all. */
template <int blocks>
static __device__ inline void share_dots(char *shared, const keys_room &room, int own, int start, float (&dot)[HALF],
                                         float (&square)[HALF]) {
    const int lane = (int)(threadIdx.x % 32);
    scan_dots &dots = scan_dots_of(shared, room);
    dr_warp_sums<HALF>(dot);
    dr_warp_sums<HALF>(square);
    const float mine = lane % 2 ? square[0] : dot[0];
    float *at = &dots.dot[own][lane % 2][start + lane / 4];
    if (lane % 4 < 2) *at = mine;
    if constexpr (blocks > 1) {
        dr_cluster_join();
        if (lane % 4 >= 2) dr_cluster_put(dr_shared_address(at), dr_shared_address(&dots.come), (unsigned)own ^ 1, mine);
    }
}

/* How often w is to be added to its gradient so that their product is `target` (row_gradients.cu: settle_write). */
template <int blocks> static __device__ inline float settle_row(const scan_dots &dots, int row, float target) {
    float dot = dots.dot[0][0][row], square = dots.dot[0][1][row];
    if constexpr (blocks > 1) dot += dots.dot[1][0][row], square += dots.dot[1][1][row];
    return square > 0 ? (target - dot) / square : 0;
}

/* Where what the centre gets from 64 channels of the chunk is to lie. */
static __device__ inline float *scan_centre(const dr_cuda_backward_call &call, const dr_row_block &x, int block) {
    const unsigned heads = (unsigned)call.plan.key_heads, slot = (unsigned)x.block / heads;
    return call.diagonal.centre + ((int64_t)slot * (call.plan.key_width / 64) + block) * heads + x.head;
}

/* This chunk among those of its sequence. */
static __device__ inline dr_chain_back scan_chain(const dr_cuda_backward_call &call, const dr_row_block &x, int first) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const int64_t *cu = call.chunk.cu, begin = dr_sequence_begin(plan, cu, x.place.sequence);
    const int64_t end = dr_sequence_begin(plan, cu, x.place.sequence + 1);
    return dr_chain_back_of(plan, x.place.sequence, (unsigned)x.block / (unsigned)plan.key_heads, x.head, first / 64,
                            (int)((end - x.place.first - 1) / 64), (int)((x.place.first - begin) / 64));
}

/* Over what the warps last, last - 1, .. first make of d. */
static __device__ inline float2 scan_through(char *shared, const keys_room &room, const keys_rows &k, float2 d, int first) {
#pragma unroll 1
    for (int w = WARPS - 1; w >= first; w--)
        d = chain_over(scan_factor(k, w), d, &scan_share_of(shared, room, w).begin[threadIdx.x % 32].x);
    return d;
}

/* In finish_rows' place where the scan makes the write keys. */
template <typename T, int form, int blocks>
static __device__ inline void finish_made(const dr_cuda_backward_call &call, const dr_row_block &x, char *shared,
                                          const keys_room &room, const keys_rows &k, char *own, int first, int column,
                                          const float (&w)[4][4]) {
    const dr_cuda_rows &rows = call.plan.rows;
    const int warp = (int)(threadIdx.x / 32), lane = (int)(threadIdx.x % 32), start = warp * HALF, d = lane * 2;
    const dr_scan_number *number = scan_numbers(k) + start;
    scan_share &share = scan_share_of(shared, room, warp);
    const channel_results to = channel_results_of<T, form>(call, x, first);
    const float2 before_first = rows_near<T, form>(rows, shared, room, k, own, to);
    meet_block();
    put_own(own + 2 * OWN_BYTES, column, w);
    meet_block();

    /* asked for long before they are needed */
    float2 entry = *(const float2 *)(call.chunk.scan.entry + x.block * rows.key_size + first + d);
    const dr_scan_squash squash = dr_scan_squash_of(rows, x.head);
    const float target = lane < HALF ? call.back.write_dot[x.block * 64 + start + lane] : 0;
    const dr_chain_back chain = scan_chain(call, x, first);
    const bool tells = warp == WARPS - 1; /* it has the least to add up of what comes from behind */
    unsigned peeked = 0;
    if (tells) peeked = dr_chain_peek(call.chain, chain);
    float dot[HALF], square[HALF];
    rows_far<T, form>(rows, shared, room, k, own, before_first, to, dot, square);
    share_dots<blocks>(shared, room, first / 64, start, dot, square);

    /* A */
    unsigned key[HALF];
    float2 a[HALF], d_a[HALF], d_key[HALF];
#pragma unroll
    for (int i = 0; i < HALF; i++) key[i] = *(const unsigned *)(shared + room.read + dr_tile_at<T>(0, 64, start + i, d));
    dr_scan_replay<T, HALF>(key, number, a);
    __syncwarp(); /* the warp's write keys are read */
    share.end[lane] = a[HALF - 1];
    __syncthreads();
    float2 behind = make_float2(0, 0);
    const bool known = tells && dr_chain_fetch(rows, call.chain, chain, peeked, behind);
    give_decays<form>(rows, x, shared, room, k, own, first, to);
    store_tile<T, form>(rows, x, shared + room.query, k.leads, LEADS_QUERY, first);
#pragma unroll 1
    for (int i = 0; i < warp; i++) entry = chain_over(scan_factor(k, i), entry, &scan_share_of(shared, room, i).end[lane].x);

    /* its gradient from zero */
    const scan_dots &dots = scan_dots_of(shared, room);
    if constexpr (blocks > 1) dr_cluster_await(dr_shared_address(&dots.come));
    if (lane < HALF) share.more[lane] = settle_row<blocks>(dots, start + lane, target);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < HALF; i++) d_a[i] = own_pair(own + OWN_BYTES, i), d_key[i] = beside_pair(shared, room, start + i);
    float centre = rows.squash.tanh ? dr_scan_sources<T, true, HALF>(squash, key, number, share.more, entry, a, d_a, d_key)
                                    : dr_scan_sources<T, false, HALF>(squash, key, number, share.more, entry, a, d_a, d_key);
    share.begin[lane] = dr_scan_back<HALF>(number, d_a);
    centre = dr_warp_sum(centre);
    if (lane == 0) share.centre = centre;
    __syncthreads();

    /* and from behind */
    if (tells) {
        const float2 end = scan_through(shared, room, k, make_float2(0, 0), 0);
        float product = 1;
        for (int i = 0; i < WARPS; i++) product *= scan_factor(k, i);
        if (!known) {
            dr_chain_tell_sum(call.chain, chain, product, end);
            behind = dr_chain_await(call.chain, chain);
        }
        dr_chain_leave(rows, call.chain, chain, product, end, behind);
        share.exit[lane] = behind;
    }
    __syncthreads();
    behind = scan_through(shared, room, k, scan_share_of(shared, room, WARPS - 1).exit[lane], warp + 1);

    float d_gain[HALF], d_alpha[HALF];
    dr_scan_give<T, HALF>(key, number, entry, behind, a, d_a, d_key, d_gain, d_alpha);
#pragma unroll
    for (int i = 0; i < HALF; i++) set_pair<T>(shared + room.read, start + i, d, d_key[i]);
    dr_warp_sums<HALF>(d_gain);
    dr_warp_sums<HALF>(d_alpha);
    const int64_t part = (x.block * (call.plan.key_width / 64) + first / 64) * 64 + start + lane / 4;
    if (lane % 4 == 0) call.back.scan_gain_part[part] = d_gain[0], call.back.scan_decay_part[part] = d_alpha[0];
    __syncwarp();
    store_tile<T, form>(rows, x, shared + room.read, k.leads, LEADS_READ, first);
    if (threadIdx.x == 0) {
        float all = 0;
        for (int i = 0; i < WARPS; i++) all += scan_share_of(shared, room, i).centre;
        *scan_centre(call, x, first / 64) = all;
    }
}

#endif
