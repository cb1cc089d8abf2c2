/* The backward of the diagonal scan that makes write keys w = B * key, where keys_channel has their gradients in shared memory
 * (diagonal_rows_back.cuh): a warp takes its eight rows, a lane its two channels, and so neither gradients of w nor what keys
 * get beside the scan go through memory.
 *
 * The thread blocks of a chunk, one for 64 channels, are a cluster and settle w's gradients together, since w . d_w is a sum
 * over all channels. Each has its own chain over the chunks of a sequence, from the last on: its first warp tells what the
 * chunk makes of zero before the gradients of the log decays and queries leave, and looks for what comes from behind after
 * that. A thread block waits for those of lower index only. */
#ifndef DR_CUDA_KEYS_CHANNEL_SCAN_CUH
#define DR_CUDA_KEYS_CHANNEL_SCAN_CUH

#include "backends/cuda/backward/keys_channel.cuh"
#include "backends/cuda/device/cluster.cuh"
#include "backends/cuda/rows/diagonal_rows_back.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* A warp's part of the tile of write keys, once it has read them. */
typedef struct {
    float2 end[32];   /* A behind its rows, if it is zero before them */
    float2 begin[32]; /* d before its rows, if it is zero behind them */
    float2 exit[32];  /* the first warp's: d behind the chunk */
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

/* [2][2][64]: w . d_w and w . w of every row, over each thread block's channels; where the factors of blocks of rows were. */
static __device__ inline float *scan_dots(const keys_rows &k) {
    return k.total;
}

/* Thread block `block` of the chunk and head that come n-th: chunks of equal sequences from the last on, all sequences in
 * turn. */
static __device__ inline unsigned scan_block(const dr_cuda_chunk_plan &plan, unsigned n) {
    const unsigned heads = (unsigned)plan.key_heads, turn = n / heads, head = n - turn * heads, slots = (unsigned)plan.slots;
    if (!plan.length) return (slots - 1 - turn) * heads + head;
    const unsigned sequences = (unsigned)plan.sequences, chunks = slots / sequences, index = turn / sequences;
    return ((turn - index * sequences) * chunks + chunks - 1 - index) * heads + head;
}

/* Sums over the warp of two numbers a row, of each thread block's channels for all of them. */
template <int blocks>
static __device__ inline void share_dots(const keys_rows &k, int own, int start, float (&dots)[2 * HALF]) {
    const int lane = (int)(threadIdx.x % 32), index = lane / 2;
    dr_warp_sums<2 * HALF>(dots);
    float *at = scan_dots(k) + own * 128 + index / HALF * 64 + start + index % HALF;
    if constexpr (blocks > 1) {
        dr_cluster_wait(); /* the other has done with the factors that were there */
        if (lane % 2) dr_cluster_put(dr_shared_address(at), (unsigned)own ^ 1, dots[0]);
    }
    if (lane % 2 == 0) *at = dots[0];
    if constexpr (blocks > 1) dr_cluster_arrive();
}

/* How often w is to be added to its gradient so that their product is `target` (row_gradients.cu: settle_write). */
template <int blocks> static __device__ inline float settle_row(const keys_rows &k, int row, float target) {
    const float *dots = scan_dots(k);
    float dot = 0, square = 0;
#pragma unroll
    for (int block = 0; block < blocks; block++) dot += dots[block * 128 + row], square += dots[block * 128 + 64 + row];
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
    float dots[2 * HALF];
    rows_far<T, form>(rows, shared, room, k, own, before_first, to, dots);
    share_dots<blocks>(k, first / 64, start, dots);

    /* A */
    unsigned key[HALF];
    float2 a[HALF], d_a[HALF], d_key[HALF];
#pragma unroll
    for (int i = 0; i < HALF; i++) key[i] = *(const unsigned *)(shared + room.read + dr_tile_at<T>(0, 64, start + i, d));
    dr_scan_replay<T, HALF>(key, number, a);
    __syncwarp(); /* the warp's write keys are read */
    share.end[lane] = a[HALF - 1];
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < warp; i++) entry = chain_over(scan_factor(k, i), entry, &scan_share_of(shared, room, i).end[lane].x);

    /* its gradient from zero */
    if constexpr (blocks > 1) dr_cluster_wait();
    if (lane < HALF) share.more[lane] = settle_row<blocks>(k, start + lane, target);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < HALF; i++) d_a[i] = own_pair(own + OWN_BYTES, i), d_key[i] = beside_pair(shared, room, start + i);
    float centre = rows.squash.tanh ? dr_scan_sources<T, true, HALF>(squash, key, number, share.more, entry, a, d_a, d_key)
                                    : dr_scan_sources<T, false, HALF>(squash, key, number, share.more, entry, a, d_a, d_key);
    share.begin[lane] = dr_scan_back<HALF>(number, d_a);
    centre = dr_warp_sum(centre);
    if (lane == 0) share.centre = centre;
    const dr_chain_back chain = scan_chain(call, x, first);
    const unsigned peeked = dr_chain_peek(call.chain, chain);
    __syncthreads();

    /* what comes from behind */
    float2 end = make_float2(0, 0), behind = end;
    float product = 1;
    bool known = false;
    if (warp == 0) {
        known = dr_chain_fetch(rows, call.chain, chain, peeked, behind);
        end = scan_through(shared, room, k, end, 0);
        for (int i = 0; i < WARPS; i++) product *= scan_factor(k, i);
        if (!known) dr_chain_tell_sum(call.chain, chain, product, end);
    }
    give_decays<form>(rows, x, shared, room, k, own, first, to);
    store_tile<T, form>(rows, x, shared + room.query, k.leads, LEADS_QUERY, first);
    if (warp == 0) {
        if (!known) behind = dr_chain_await(call.chain, chain);
        dr_chain_leave(rows, call.chain, chain, product, end, behind);
        share.exit[lane] = behind;
    }
    __syncthreads();
    behind = scan_through(shared, room, k, scan_share_of(shared, room, 0).exit[lane], warp + 1);

    float sums[2 * HALF]; /* of each row's gain and alpha */
    dr_scan_give<T, HALF>(key, number, entry, behind, a, d_a, d_key, sums, sums + HALF);
#pragma unroll
    for (int i = 0; i < HALF; i++) set_pair<T>(shared + room.read, start + i, d, d_key[i]);
    dr_warp_sums<2 * HALF>(sums);
    const int64_t parts = call.plan.key_width / 64, part = x.block * parts + first / 64;
    if (lane % 2 == 0)
        (lane < 16 ? call.back.scan_gain_part : call.back.scan_decay_part)[part * 64 + start + lane / 2 % HALF] = sums[0];
    __syncwarp();
    store_tile<T, form>(rows, x, shared + room.read, k.leads, LEADS_READ, first);
    if (threadIdx.x == 0) {
        float all = 0;
        for (int i = 0; i < WARPS; i++) all += scan_share_of(shared, room, i).centre;
        *scan_centre(call, x, first / 64) = all;
    }
}

#endif
#endif
