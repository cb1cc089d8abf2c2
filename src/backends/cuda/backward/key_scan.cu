/* The diagonal scan's backward behind gradients.cu, where it makes the write keys B * key of the keys that are read and a decay
 * is that of a head: from what write keys get, and what keys get beside the scan,
 *
 *     A           of every row, from A before the chunk
 *     B, slope    s_t = slope key d_write / (A_t + eps)          d_key += B d_write
 *     chain       the gradient of A from the chunks behind       d_t = s_t + alpha_{t+1} d_{t+1}
 *     gradients   d_key += 2 b key d_t       d_b = sum key^2 d_t       d_alpha = sum A_{t-1} d_t
 *
 * A thread block takes a chunk of a head, a warp eight rows of it and all 128 channels, a lane four of these: so a row's
 * numbers, its sums over channels and the addresses cost a quarter of an instruction a channel. Keys, sources and gradients of
 * keys stay in registers, what comes of eight rows is added up by weights, so that no row waits for another, and A before the
 * rows passes through a place of shared memory that only its thread knows. d_write comes as whole numbers of 16 bits
 * (shared_exponent.cuh).
 *
 * Chunks make the gradient for one another while they run, by numbers that say themselves that they are told, 64 channels by
 * themselves (diagonal_rows_back.cuh), in turn from the last chunk on. */
#include "backends/cuda/backward/row_tiles.cuh"
#include "backends/cuda/backward/shared_exponent.cuh"
#include "backends/cuda/device/device.cuh"
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/diagonal/diagonal_rows_back.cuh"
#include "backends/cuda/plan/find.cuh"

enum { WARPS = 8, ROWS = 8, WIDTH = 128, BOXES = WIDTH / 64 };

typedef __nv_bfloat16 T;

typedef struct {
    float4 before[ROWS][32 * WARPS]; /* A before a thread's rows */
    float4 end[WARPS][32];           /* what a warp's rows make of A = 0 */
    float begin[WARPS][WIDTH];       /* of d = 0 */
    float exit[WIDTH];               /* d behind the chunk */
    dr_scan_number number[WARPS * ROWS];
    float2 more[WARPS * ROWS][BOXES]; /* what settles a row; the unit of its 64 channels of d_write */
    float factor[WARPS];              /* product of the alphas of a warp's rows */
    float centre[WARPS];
    bool known[BOXES]; /* whether what comes from behind a box of 64 channels was there before it was waited for */
} scan_room;

/* Four channels that are two pairs. */
typedef struct {
    float2 low, high;
} four;

static __device__ inline four plus(float factor, const four &x, const float *to) {
    const float4 y = *(const float4 *)to;
    return {make_float2(fmaf(factor, x.low.x, y.x), fmaf(factor, x.low.y, y.y)),
            make_float2(fmaf(factor, x.high.x, y.z), fmaf(factor, x.high.y, y.w))};
}

/* Rows of 16 bits: where the lane's channels of its warp's first row lie, bytes from one row to the next, and rows that are
 * there. */
typedef struct {
    int64_t at;
    unsigned stride;
    int alive;
    bool plain; /* all of the warp's are, and lie at eight bytes: nothing to ask of a row */
} scan_rows;

static __device__ inline void load_rows(const scan_rows &rows, const void *tensor, uint2 (&to)[ROWS]) {
    const char *from = (const char *)tensor + rows.at;
    if (rows.plain) {
        DR_UNROLL (i, ROWS) to[i] = *(const uint2 *)(from + (uint64_t)rows.stride * i);
        return;
    }
    DR_UNROLL (i, ROWS) {
        to[i] = make_uint2(0, 0);
        if (i >= rows.alive) continue;
        const unsigned short *x = (const unsigned short *)(from + (uint64_t)rows.stride * i);
        to[i] = make_uint2(x[0] | (unsigned)x[1] << 16, x[2] | (unsigned)x[3] << 16);
    }
}

static __device__ inline void store_rows(const scan_rows &rows, void *tensor, const four (&x)[ROWS]) {
    char *to = (char *)tensor + rows.at;
    DR_UNROLL (i, ROWS) {
        if (!rows.plain && i >= rows.alive) break;
        const uint2 pairs = make_uint2(dr_pack(T(), x[i].low.x, x[i].low.y), dr_pack(T(), x[i].high.x, x[i].high.y));
        char *at = to + (uint64_t)rows.stride * i;
        if (rows.plain) {
            *(uint2 *)at = pairs;
        } else {
            unsigned short *each = (unsigned short *)at;
            each[0] = (unsigned short)pairs.x, each[1] = (unsigned short)(pairs.x >> 16);
            each[2] = (unsigned short)pairs.y, each[3] = (unsigned short)(pairs.y >> 16);
        }
    }
}

/* ---- chunks -------------------------------------------------------------------------------------------------------------- */

struct key_scan_call : dr_cuda_backward_call {
    dr_block_dividers by;
};

typedef struct {
    dr_chunk_place place;
    unsigned block, slot;
    int head, before, behind; /* chunks of the sequence before this one and behind it */
} scan_chunk;

/* The n-th on the way: chunks from the last on, of equal sequences all in turn. */
static __device__ inline scan_chunk find_chunk(const key_scan_call &call, unsigned n) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const int64_t *cu = call.chunk.cu;
    dr_block_place at = dr_block_find(call.by, (unsigned)plan.blocks - 1 - n, plan.length > 0);
    const dr_chunk_place place = dr_block_chunk(plan, cu, at);
    const int chunks = plan.length ? (int)call.by.chunks.by : (int)dr_sequence_chunks(plan, cu, place.sequence);
    return {place, dr_block_number(call.by, at), at.slot, (int)at.head, (int)at.before, chunks - 1 - (int)at.before};
}

/* ---- rows ---------------------------------------------------------------------------------------------------------------- */

/* The rows' A from zero, behind the last of them. */
static __device__ inline float4 end_of(const dr_scan_number *number, const uint2 (&key)[ROWS]) {
    float4 sum = make_float4(0, 0, 0, 0);
    DR_UNROLL (i, ROWS) {
        const float2 low = dr_unpack(T(), key[i].x), high = dr_unpack(T(), key[i].y);
        const float weight = number[i].gain * number[i].tail;
        sum.x = fmaf(weight, low.x * low.x, sum.x);
        sum.y = fmaf(weight, low.y * low.y, sum.y);
        sum.z = fmaf(weight, high.x * high.x, sum.z);
        sum.w = fmaf(weight, high.y * high.y, sum.w);
    }
    return sum;
}

/* dr_scan_source with one division instead of two, since here the special functions would be what holds it: both is
 * 1 / (wide sum), so u is both sum, and u / sum both. centre: what it gets, over -slope. */
static __device__ inline void source_of(const dr_scan_squash &squash, float a, float key, float more, float &d, float &d_key,
                                        float &centre) {
    const float sum = a + squash.eps, z = dr_log2_near(sum) - squash.centre, wide = 1.44269504f + fabsf(z);
    const float both = dr_reciprocal_near(wide * sum), u = both * sum;
    const float b = dr_exp2_near(fmaf(-squash.factor, z * u, squash.offset)), w = b * key, d_write = fmaf(more, w, d);
    const float part = u * (both * (w * d_write));
    d_key = fmaf(b, d_write, d_key);
    d = squash.slope * part;
    centre = fmaf(sum, part, centre);
}

/* A pair of row i: a is stepped over it, d_write becomes s, which is added to what the rows make of d = 0. */
static __device__ inline void take_pair(const dr_scan_squash &squash, const dr_scan_number &row, float settle, float2 k,
                                        float2 &a, float2 &d, float2 &d_key, float2 &begin, float &centre) {
    a.x = dr_map_scan_step(a.x, row.alpha, row.gain, k.x);
    a.y = dr_map_scan_step(a.y, row.alpha, row.gain, k.y);
    source_of(squash, a.x, k.x, settle, d.x, d_key.x, centre);
    source_of(squash, a.y, k.y, settle, d.y, d_key.y, centre);
    begin.x = fmaf(row.head, d.x, begin.x);
    begin.y = fmaf(row.head, d.y, begin.y);
}

/* A pair of a row, d: what comes from behind, and then the row's; d_key becomes whole. */
static __device__ inline void give_pair(float alpha_behind, float twice, float2 k, float2 before, float2 source, float2 &d,
                                        float2 &d_key, float &d_gain, float &d_alpha) {
    d = make_float2(fmaf(alpha_behind, d.x, source.x), fmaf(alpha_behind, d.y, source.y));
    const float2 of_key = make_float2(k.x * d.x, k.y * d.y);
    d_gain = fmaf(k.x, of_key.x, fmaf(k.y, of_key.y, d_gain));
    d_alpha = fmaf(before.x, d.x, fmaf(before.y, d.y, d_alpha));
    d_key = make_float2(fmaf(twice, of_key.x, d_key.x), fmaf(twice, of_key.y, d_key.y));
}

static __global__ void __launch_bounds__(32 * WARPS, 2) key_scan(const __grid_constant__ key_scan_call call) {
    __shared__ scan_room room;
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const scan_chunk x = find_chunk(call, blockIdx.x);
    const int warp = (int)(threadIdx.x / 32), lane = (int)(threadIdx.x % 32), start = warp * ROWS;
    const int channel = 4 * lane, alive = x.place.tokens - start;
    if (x.place.tokens <= 0) {
        if (threadIdx.x == 0) call.diagonal.centre[x.block] = 0;
        return;
    }

    /* asked for before anything waits */
    const dr_cuda_input &input = rows.input[DR_INPUT_KEY];
    const scan_rows keys = {(dr_input_index(input, x.place.first + start, 0, x.head) + channel) * (int)sizeof(T),
                            (unsigned)input.token * (unsigned)sizeof(T), alive, rows.aligned && alive >= ROWS};
    uint2 key[ROWS], beside[ROWS] = {}, packed[ROWS];
    load_rows(keys, input.at, key);
    const int64_t first = (int64_t)x.block * 64 + start;
    float4 told = make_float4(1, 0, 0, 0); /* of row lane % ROWS, dr_cuda_scan_row by one load */
    if (lane % ROWS < alive) told = ((const float4 *)call.diagonal.row)[first + lane % ROWS];
    const float4 entry = *(const float4 *)(call.chunk.scan.entry + x.block * WIDTH + channel);
    four a = {make_float2(entry.x, entry.y), make_float2(entry.z, entry.w)};
    const uint2 *d_write = (const uint2 *)call.diagonal.squashed + first * (WIDTH / 4) + lane;
    DR_UNROLL (i, ROWS) packed[i] = d_write[i * (WIDTH / 4)];
    if (input.gradient) load_rows(keys, input.gradient, beside);
    const dr_scan_squash squash = dr_scan_squash_of(rows, dr_input_scalar(rows, DR_INPUT_SCAN_CENTRE, 0, 0, x.head));

    /* A before the warp's rows */
    const dr_scan_number *of_row = room.number + start;
    const float product = dr_scan_put_numbers<ROWS>(told.x, told.y, room.number + start);
    const float2 unit = dr_unpack(__nv_bfloat16(), __float_as_uint(told.w));
    if (lane < ROWS * BOXES) room.more[start + lane % ROWS][lane / ROWS] = make_float2(told.z, lane < ROWS ? unit.x : unit.y);
    if (lane == 0) room.factor[warp] = product;
    __syncwarp();
    room.end[warp][lane] = end_of(of_row, key);
    __syncthreads();
    DR_UNROLL (i, WARPS - 1)
        if (i < warp) a = plus(room.factor[i], a, (const float *)&room.end[i][lane]);

    /* its gradient from zero; what comes from behind is asked for as late as it can come meanwhile */
    const bool tells = warp < BOXES;
    dr_chain_back chain;
    float2 peeked;
    four d[ROWS], d_key[ROWS], begin = {make_float2(0, 0), make_float2(0, 0)};
    float centre = 0;
    DR_UNROLL (i, ROWS) {
        if (i == ROWS / 2 && tells) {
            chain = dr_chain_back_of(plan, x.place.sequence, x.slot, x.head, warp, x.behind, x.before);
            peeked = dr_chain_peek(rows, call.chain, chain);
        }
        /* taken apart here rather than before the barrier, where that would take three times the registers */
        key[i] = make_uint2(dr_forget(key[i].x), dr_forget(key[i].y));
        beside[i] = make_uint2(dr_forget(beside[i].x), dr_forget(beside[i].y));
        packed[i] = make_uint2(dr_forget(packed[i].x), dr_forget(packed[i].y));
        const dr_scan_number row = of_row[i];
        const float2 more = room.more[start + i][lane / 16];
        d[i] = {dr_unpack_shared(packed[i].x, more.y), dr_unpack_shared(packed[i].y, more.y)};
        room.before[i][threadIdx.x] = make_float4(a.low.x, a.low.y, a.high.x, a.high.y);
        d_key[i] = {dr_unpack(T(), beside[i].x), dr_unpack(T(), beside[i].y)};
        take_pair(squash, row, more.x, dr_unpack(T(), key[i].x), a.low, d[i].low, d_key[i].low, begin.low, centre);
        take_pair(squash, row, more.x, dr_unpack(T(), key[i].y), a.high, d[i].high, d_key[i].high, begin.high, centre);
    }
    *(float4 *)&room.begin[warp][4 * lane] = make_float4(begin.low.x, begin.low.y, begin.high.x, begin.high.y);
    centre = dr_warp_sum(-squash.slope * centre);
    if (lane == 0) room.centre[warp] = centre;
    const int at = warp % BOXES * 64 + 2 * lane;
    if (tells) {
        const bool come = x.behind == 0 || dr_chain_known(peeked);
        room.known[warp] = come;
        *(float2 *)&room.exit[at] = peeked;
    }
    __syncthreads();

    /* and from behind */
    bool known = true;
    DR_UNROLL (i, BOXES) known &= room.known[i];
    if (tells) {
        float2 end = make_float2(0, 0);
        float all = 1;
#pragma unroll
        for (int i = WARPS - 1; i >= 0; i--) {
            const float factor = room.factor[i];
            const float2 y = *(const float2 *)&room.begin[i][at];
            end = make_float2(fmaf(factor, end.x, y.x), fmaf(factor, end.y, y.y));
            all *= factor;
        }
        dr_chain_tell(call.chain, chain, all, end);
        if (!room.known[warp]) *(float2 *)&room.exit[at] = peeked = dr_chain_await(call.chain, chain);
        dr_chain_leave(rows, call.chain, chain, all, end, peeked);
    }
    if (!known) __syncthreads();
    const float4 exit = *(const float4 *)&room.exit[4 * lane];
    four behind = {make_float2(exit.x, exit.y), make_float2(exit.z, exit.w)};
#pragma unroll
    for (int i = WARPS - 1; i > 0; i--)
        if (i > warp) behind = plus(room.factor[i], behind, &room.begin[i][4 * lane]);

    float d_gain[ROWS], d_alpha[ROWS];
#pragma unroll
    for (int i = ROWS - 1; i >= 0; i--) {
        const float4 before = room.before[i][threadIdx.x];
        const float alpha = i + 1 < ROWS ? of_row[i + 1].alpha : 1, twice = 2 * of_row[i].gain;
        d_gain[i] = d_alpha[i] = 0;
        give_pair(alpha, twice, dr_unpack(T(), key[i].x), make_float2(before.x, before.y), d[i].low, behind.low, d_key[i].low,
                  d_gain[i], d_alpha[i]);
        give_pair(alpha, twice, dr_unpack(T(), key[i].y), make_float2(before.z, before.w), d[i].high, behind.high,
                  d_key[i].high, d_gain[i], d_alpha[i]);
    }
    if (input.gradient) store_rows(keys, input.gradient, d_key);
    dr_warp_sums<ROWS>(d_gain);
    dr_warp_sums<ROWS>(d_alpha);
    if (lane % 4 == 0 && lane / 4 < alive)
        dr_diagonal_put_scalars(rows, x.place.first + start + lane / 4, x.head, of_row[lane / 4].alpha, d_gain[0], d_alpha[0]);
    if (threadIdx.x == 0) {
        float sum = 0;
        for (int i = 0; i < WARPS; i++) sum += room.centre[i];
        call.diagonal.centre[x.block] = sum;
    }
}

dr_status dr_cuda_backward_key_scan(const dr_cuda_backward_call *call, dr_cuda_stream stream) {
    const dr_cuda_chunk_plan *plan = &call->plan;
    if (plan->blocks == 0) return DR_OK;
    const key_scan_call own = {*call, dr_block_dividers_of(*plan)};
    return dr_cuda_launch("key_scan", key_scan, {plan->blocks}, 32 * WARPS, 0, stream, own);
}
