/* The scan by warp groups (scan_warpgroups.cuh) where a thread block has only 64 columns: what follows from chunk to chunk and
 * what follows from it in the same chunk are the work of two groups.
 *
 *     four warps   copy
 *     four warps   carry S: Y = Z - diag(c) R~ S, S := D S + X^T Y; each leaves S and Y, rounded, in a tile when it has them
 *     four warps   O = Q~ S + P' Y, queries as rows, from tiles alone; and the states that a backward wants
 *
 * So the time of a chunk is that of two products and what lies between them. There is one tile for S and one for Y, each with a
 * barrier that says it is filled and one that it is free. */
#ifndef DR_CUDA_SCAN_DIVIDED_CUH
#define DR_CUDA_SCAN_DIVIDED_CUH

#include "backends/cuda/prepare_warpgroups.cuh"
#include "backends/cuda/scan_warpgroups.cuh"

/* The tiles between the groups lie before the stages: S^T [64 x K] and Y^T [64 x 64]. Their barriers lie behind those of the
 * stages. */
static __host__ __device__ inline int dr_divided_tile_bytes(const dr_cuda_chunk_plan &plan) {
    return 64 * plan.key_width * 2 + 64 * 64 * 2;
}

enum { DR_DIVIDED_BARRIER_BYTES = 4 * (int)sizeof(uint64_t) };

#ifdef DR_CUDA_WARPGROUPS

/* tiles: where they begin; gates: their barriers. */
static __device__ inline dr_group_hand dr_divided_hand(const char *tiles, int boxes, unsigned gates) {
    const unsigned state = dr_shared_address(tiles);
    const dr_group_hand hand = {state, state + (unsigned)(boxes * 8192), gates, gates + 8, gates + 16, gates + 24};
    return hand;
}

/* Before the block's threads meet. */
static __device__ inline void dr_divided_open(const dr_group_hand &hand) {
    if (threadIdx.x > 0) return;
    dr_gate_open(hand.state_filled, 128), dr_gate_open(hand.state_free, 128);
    dr_gate_open(hand.update_filled, 128), dr_gate_open(hand.update_free, 128);
}

/* C += rows of `left` times the transposes of 64 rows of `right`. left_box: bytes from one box of 64 columns to the next; behind
 * fewer than 64 rows lies something else, which makes rows of C that nobody stores. */
template <typename T, int boxes>
static __device__ inline void dr_divided_product(float (&c)[8][4], unsigned left, unsigned left_box, unsigned right) {
    const uint64_t a = dr_group_operand(left, 16), b = dr_group_operand(right, 16);
    dr_group_begin();
#pragma unroll
    for (int k = 0; k < boxes * 4; k++) {
        const unsigned on = k % 4 * 32;
        dr_group_multiply_tiles(T(), c, dr_group_forward(a, k / 4 * left_box + on), dr_group_forward(b, k / 4 * 8192 + on));
    }
    dr_group_commit();
}

/* S before the chunk, [V][K], from its tile: 16 bytes a lane. */
template <typename T, int boxes>
static __device__ inline void dr_divided_save(const dr_scan_call &call, const dr_scan_place &place, int64_t block,
                                              const char *state) {
    const dr_cuda_chunk_plan &plan = call.plan;
    T *to = (T *)call.saved + (block * plan.value_width + place.columns) * (boxes * 64);
#pragma unroll
    for (int i = 0; i < boxes * 4; i++) {
        const int unit = i * 128 + (int)threadIdx.x % 128, row = unit / (boxes * 8), column = unit % (boxes * 8) * 8;
        *(uint4 *)(to + row * boxes * 64 + column) = *(const uint4 *)(state + dr_tile_at<T>(0, 64, row, column));
    }
}

/* The warp's 16 rows of O, through 2 KB of shared memory that are its own: eight lanes write a row. */
template <typename T>
static __device__ inline void dr_divided_put_output(const dr_scan_call &call, const dr_scan_place &place, char *tile,
                                                    int64_t token, int tokens, const float (&o)[8][4]) {
    const dr_cuda_rows &rows = call.plan.rows;
    const int lane = (int)(threadIdx.x % 32), column = lane % 8 * 8, columns = rows.value_size - place.columns - column;
    const int64_t stride = (int64_t)rows.value_heads * rows.value_size;
    const int first = dr_scan_warp() * 16 + lane / 8;
    T *to = (T *)call.o + (token + first) * stride + place.head * rows.value_size + place.columns + column;
    dr_group_lay_rows<T>(tile, o);
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
        const uint4 x = *(const uint4 *)(tile + dr_tile_at<T>(0, 64, first + i, column));
        if (first + i < tokens && rows.aligned && columns > 0) *(uint4 *)to = x;
        if (first + i < tokens && !rows.aligned) {
            const T *element = (const T *)&x;
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (e < columns) to[e] = element[e];
        }
        to += 4 * stride;
    }
}

/* ready: the barriers that say what a chunk reads lies in its stage, `step` bytes from one to the next. */
template <typename T, int boxes>
static __device__ inline void dr_divided_outputs(const dr_group_scan_call &group_call, char *stages, const dr_group_hand &hand,
                                                 unsigned ready, unsigned step, unsigned columns, unsigned rest) {
    const dr_scan_call &call = group_call.call;
    const dr_cuda_chunk_plan &plan = call.plan;
    const unsigned gates = dr_shared_address(stages);
    const dr_scan_place place = dr_scan_find(call, columns, rest);
    const int row = dr_scan_warp() * 16 + (int)(threadIdx.x % 32 / 4);
    int64_t token = dr_sequence_begin(plan, call.tensors.cu, place.sequence) + (int64_t)place.begin * plan.chunk;
    const int64_t end = dr_sequence_begin(plan, call.tensors.cu, place.sequence + 1);
    int64_t block = (place.slot + place.begin) * plan.value_heads + place.head;
    dr_group_turn at = {0, 0};
    for (int chunk = place.begin; chunk < place.end; chunk++) {
        char *stage = stages + at.stage * call.room.bytes;
        const unsigned tile = gates + (unsigned)(at.stage * call.room.bytes), turn = (unsigned)(chunk - place.begin) % 2;
        const dr_cuda_row_factors *factors = (const dr_cuda_row_factors *)(stage + call.room.factors);
        float o[8][4] = {};
        dr_gate_wait(ready + (unsigned)at.stage * step, at.turn);
        dr_shared_fence();
        dr_gate_wait(hand.state_filled, turn);
        dr_divided_product<T, boxes>(o, tile + (unsigned)call.room.query, plan.query_rows * 128, hand.state);
        if (call.saved) dr_divided_save<T, boxes>(call, place, block, stages - (gates - hand.state));
        const float upper = factors[row].query, lower = factors[row + 8].query;
        dr_group_wait<0>();
        dr_gate_arrive(hand.state_free);
#pragma unroll
        for (int n = 0; n < 8; n++) o[n][0] *= upper, o[n][1] *= upper, o[n][2] *= lower, o[n][3] *= lower;
        dr_gate_wait(hand.update_filled, turn);
        dr_divided_product<T, 1>(o, tile + (unsigned)call.room.score, 0, hand.update);
        dr_group_wait<0>();
        dr_gate_arrive(hand.update_free);
        const int64_t left = end - token;
        /* the values are read by then */
        dr_divided_put_output<T>(call, place, stage + call.room.value, token, left < plan.chunk ? (int)left : plan.chunk, o);
        dr_gate_arrive(dr_group_free(group_call, gates, at.stage));
        dr_group_next(at, group_call.stages);
        token += plan.chunk;
        block += plan.value_heads;
    }
}

#endif

template <typename T, int boxes, int reading>
static __global__ void __launch_bounds__(384, 1) scan_divided(const __grid_constant__ dr_group_scan_call group_call) {
#ifdef DR_CUDA_WARPGROUPS
    extern __shared__ __align__(1024) char shared[];
    const dr_scan_call &call = group_call.call;
    const unsigned all = (unsigned)dr_scan_groups(call), column = blockIdx.x % all, rest = blockIdx.x / all;
    const dr_scan_place place = dr_scan_find(call, column, rest);
    if (dr_scan_idle(call, place)) return;
    char *stages = shared + dr_divided_tile_bytes(call.plan);
    const unsigned base = dr_shared_address(stages);
    const dr_group_hand hand = dr_divided_hand(shared, boxes, base + (unsigned)dr_group_scan_bytes(group_call));
    dr_divided_open(hand);
    dr_group_open(group_call, base, 2);
    if (threadIdx.x < 128) {
        dr_registers_give<56>();
        const int columns[2] = {place.columns, -1};
        dr_group_copy<T, boxes>(group_call, stages, place, columns);
    } else if (threadIdx.x < 256) {
        dr_registers_take<240>();
        dr_group_compute<T, boxes, 0, reading, true>(group_call, stages, 0, column, rest, hand);
    } else {
        dr_registers_give<120>();
        dr_divided_outputs<T, boxes>(group_call, stages, hand, dr_group_filled(group_call, base, 0), 16, column, rest);
    }
#endif
}

#endif
