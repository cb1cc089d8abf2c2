/* The backward of the diagonal scan that makes write keys w = B * key, where keys_channel has their gradients in shared memory
 * (diagonal_rows_back.cuh): a warp takes its eight rows, a lane its two channels, and so neither gradients of w nor what keys
 * get beside the scan go through memory.
 *
 * The thread blocks of a chunk, one for 64 channels, settle w's gradients together, since w . d_w is a sum over all channels:
 * each tells the other its part (told.cuh); gradients of log decays and queries leave meanwhile. Each has a chain of its own
 * over the chunks of a sequence, from the last on. It waits for thread blocks of lower index, and for the other one of its
 * chunk, which is a neighbour. */
#ifndef DR_CUDA_KEYS_CHANNEL_SCAN_CUH
#define DR_CUDA_KEYS_CHANNEL_SCAN_CUH

#include "backends/cuda/backward/keys_channel_mild.cuh"
#include "backends/cuda/diagonal/diagonal_rows_back.cuh"

/* A warp's part of the tile of write keys, once it has read them. */
typedef struct {
    float2 end[32];   /* A behind its rows, if it is zero before them */
    float2 begin[32]; /* d before its rows, if it is zero behind them */
    float2 exit[32];  /* the last warp's: d behind the chunk, */
    float more[HALF], centre;
    bool known; /* and whether it is there */
} scan_share;

static __device__ inline scan_share &scan_share_of(char *shared, const keys_room &room, int warp) {
    return *(scan_share *)(shared + room.write + warp * HALF * 128);
}

/* [64], where the factors of a scalar decay would be. */
static __device__ inline dr_scan_number *scan_numbers(const keys_rows &k) {
    return (dr_scan_number *)k.head_query;
}

/* Asks for the log decays and gains of a warp's rows; 0 where there are none. */
static __device__ inline void load_numbers(const dr_cuda_rows &rows, const dr_row_block &x, const keys_rows &k) {
    const int lane = (int)(threadIdx.x % 32), row = (int)(threadIdx.x / 32) * HALF + lane;
    if (lane >= HALF) return;
    const dr_cuda_input &decay = rows.input[dr_diagonal_decay_input(rows)], &gain = rows.input[dr_diagonal_gain_input(rows)];
    dr_scan_number *number = scan_numbers(k) + row;
    const int64_t token = x.place.first + row;
    dr_copy_word(dr_shared_address(&number->alpha), (const float *)decay.at + dr_input_index(decay, token, 0, x.head),
                 decay.at && row < x.rows);
    dr_copy_word(dr_shared_address(&number->gain), (const float *)gain.at + dr_input_index(gain, token, 0, x.head),
                 gain.at && row < x.rows);
}

/* When they have come. */
static __device__ inline void put_numbers(const keys_rows &k) {
    dr_scan_number *number = scan_numbers(k) + threadIdx.x / 32 * HALF;
    const dr_scan_number mine = number[threadIdx.x % HALF];
    __syncwarp();
    dr_scan_put_numbers<HALF>(expf(mine.alpha), mine.gain, number);
}

/* The factor of a state over a warp's rows. */
static __device__ inline float scan_factor(const keys_rows &k, int warp) {
    return scan_numbers(k)[warp * HALF + HALF - 1].head;
}

/* Behind all else in shared memory: w . d_w and w . w of every row over the thread block's channels. */
typedef struct {
    float of[2][64];
} scan_dots;

static __device__ inline scan_dots &scan_dots_of(char *shared, const keys_room &room) {
    return *(scan_dots *)(shared + room.bytes);
}

/* ---- w's gradients ------------------------------------------------------------------------------------------------------- */

/* Where the block of 64 channels tells the other one its sums of the row, and, 64 numbers on, its squares. */
static __device__ inline float *scan_told(const dr_cuda_backward_call &call, const dr_row_block &x, int block, int row) {
    return call.diagonal.dots + (x.block * 2 + block) * 128 + row;
}

/* Sums over the warp of two numbers a row, of the thread block's channels, for all and for the other block. */
template <int blocks>
static __device__ inline void share_dots(const dr_cuda_backward_call &call, const dr_row_block &x, char *shared,
                                         const keys_room &room, int own, int start, float (&dot)[HALF], float (&square)[HALF]) {
    const int lane = (int)(threadIdx.x % 32), row = start + lane / 4;
    dr_warp_sums<HALF>(dot);
    dr_warp_sums<HALF>(square);
    const float mine = lane % 2 ? square[0] : dot[0];
    if (lane % 4 < 2)
        scan_dots_of(shared, room).of[lane % 2][row] = mine;
    else if constexpr (blocks > 1)
        dr_tell(scan_told(call, x, own, row) + lane % 2 * 64, mine);
}

/* What the other block tells of a row by now; 0 where there is none. */
template <int blocks>
static __device__ inline float2 hear_dots(const dr_cuda_backward_call &call, const dr_row_block &x, int own, int row) {
    if constexpr (blocks == 1) return make_float2(0, 0);
    const float *from = scan_told(call, x, own ^ 1, row);
    return make_float2(dr_hear(from), dr_hear(from + 64));
}

/* How often w is to be added to its gradient so that their product is `target` (dr_settle_by). heard: by now. */
template <int blocks>
static __device__ inline float settle_row(const dr_cuda_backward_call &call, const dr_row_block &x, const scan_dots &dots,
                                          int own, int row, float target, float2 heard) {
    while (!dr_is_told(heard.x) || !dr_is_told(heard.y)) heard = hear_dots<blocks>(call, x, own, row);
    return dr_settle_by(target, dots.of[0][row] + heard.x, dots.of[1][row] + heard.y);
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

/* From A before the chunk to A before the warp's rows, over what the warps before it make of zero. */
static __device__ inline float2 scan_entry(char *shared, const keys_room &room, const keys_rows &k, float2 a, int warp) {
    float factor[WARPS - 1];
    float2 end[WARPS - 1];
    DR_UNROLL (w, WARPS - 1) factor[w] = scan_factor(k, w), end[w] = scan_share_of(shared, room, w).end[threadIdx.x % 32];
    DR_UNROLL (w, WARPS - 1)
        if (w < warp) a = plus(factor[w], a, end[w]);
    return a;
}

/* Keys of the warp's rows, as they lie in their tile: asked for where they are wanted, in registers they would be spilled. */
template <typename T, int form>
static __device__ inline void scan_keys(const char *shared, const keys_room &room, unsigned (&key)[HALF]) {
    const unsigned thread = dr_forget(threadIdx.x);
    DR_UNROLL (i, HALF) key[i] = *(const unsigned *)(shared + room.read + row_at<T, form>(thread, i));
}

/* Over what the warps behind `warp` make of d. */
static __device__ inline float2 scan_through(char *shared, const keys_room &room, const keys_rows &k, float2 d, int warp) {
    float factor[WARPS];
    float2 begin[WARPS];
    DR_UNROLL (w, WARPS) factor[w] = scan_factor(k, w), begin[w] = scan_share_of(shared, room, w).begin[threadIdx.x % 32];
#pragma unroll
    for (int w = WARPS - 1; w >= 0; w--)
        if (w > warp) d = plus(factor[w], d, begin[w]);
    return d;
}

/* In finish_rows' place where the scan makes the write keys. */
template <typename T, int form, int blocks>
static __device__ inline void finish_made(const dr_cuda_backward_call &call, const dr_row_block &x, char *shared,
                                          const keys_room &room, const keys_rows &k, char *own, int first,
                                          const float (&w)[4][4], const mild_chunk *mild) {
    const dr_cuda_rows &rows = call.plan.rows;
    const int warp = (int)(threadIdx.x / 32), lane = (int)(threadIdx.x % 32), start = warp * HALF, d = lane * 2;
    const dr_scan_number *number = scan_numbers(k) + start;
    scan_share &share = scan_share_of(shared, room, warp), &last = scan_share_of(shared, room, WARPS - 1);
    const bool tells = warp == WARPS - 1; /* it has the least to add up of what comes from behind */
    made_rows<form> r;
    make_all_rows<T, form>(rows, shared, room, k, own, w, mild, channel_results_of<T, form>(call, x, first), r);

    /* asked for long before they are needed */
    float2 entry = *(const float2 *)(call.chunk.scan.entry + x.block * rows.key_size + first + d);
    const dr_scan_squash squash = dr_scan_squash_of(rows, dr_input_scalar(rows, DR_INPUT_SCAN_CENTRE, 0, 0, x.head));
    const float target = lane < HALF ? call.back.write_dot[x.block * 64 + start + lane] : 0;
    share_dots<blocks>(call, x, shared, room, first / 64, start, r.dot, r.square);

    /* A */
    unsigned key[HALF];
    float2 a[HALF];
    scan_keys<T, form>(shared, room, key);
    dr_scan_replay<T, HALF>(key, number, a);
    __syncwarp(); /* the warp's write keys are read */
    share.end[lane] = a[HALF - 1];
    __syncthreads();
    entry = scan_entry(shared, room, k, entry, warp);
    float2 peeked = make_float2(0, 0);
    bool given = false; /* by the call */
    if (tells) {
        const dr_chain_back chain = scan_chain(call, x, first);
        peeked = dr_chain_peek(rows, call.chain, chain);
        given = chain.behind == 0;
    }
    float2 heard = make_float2(0, 0);
    if (lane < HALF) heard = hear_dots<blocks>(call, x, first / 64, start + lane);
    give_decays<form>(rows, x, shared + room.alpha, k, first, r.decays);
    store_tile<T, form>(rows, x, shared + room.query, k.leads, LEADS_QUERY, first);

    /* its gradient from zero */
    float2 d_key[HALF];
    const scan_dots &dots = scan_dots_of(shared, room);
    if (lane < HALF) share.more[lane] = settle_row<blocks>(call, x, dots, first / 64, start + lane, target, heard);
    __syncwarp();
    DR_UNROLL (i, HALF) d_key[i] = beside_pair(shared, room, start + i);
    scan_keys<T, form>(shared, room, key);
    float centre = dr_scan_sources<T, HALF>(squash, key, number, share.more, entry, a, r.d_write, d_key);
    share.begin[lane] = dr_scan_back<HALF>(number, r.d_write);
    centre = dr_warp_sum(centre);
    if (lane == 0) share.centre = centre;
    if (tells) {
        last.known = given || dr_chain_known(peeked);
        last.exit[lane] = peeked;
    }
    __syncthreads();

    /* and from behind */
    const bool known = last.known;
    if (tells) {
        const dr_chain_back chain = scan_chain(call, x, first);
        const float2 end = scan_through(shared, room, k, make_float2(0, 0), -1);
        float product = 1;
        DR_UNROLL (i, WARPS) product *= scan_factor(k, i);
        dr_chain_tell(call.chain, chain, product, end);
        if (!known) last.exit[lane] = peeked = dr_chain_await(call.chain, chain);
        dr_chain_leave(rows, call.chain, chain, product, end, peeked);
    }
    if (!known) __syncthreads();
    const float2 behind = scan_through(shared, room, k, last.exit[lane], warp);

    float d_gain[HALF], d_alpha[HALF];
    scan_keys<T, form>(shared, room, key);
    dr_scan_give<T, HALF>(key, number, entry, behind, a, r.d_write, d_key, d_gain, d_alpha);
    DR_UNROLL (i, HALF) set_row<T, form>(shared + room.read, i, d_key[i]);
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
