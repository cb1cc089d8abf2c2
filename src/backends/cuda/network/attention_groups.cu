/* Softmax attention by warp groups, forward (attention_groups.cuh): the own side is queries, 64 keys and values are a tile. As
 * in attention.cu the largest score and the sum of a row go on from tile to tile. Blocks with the most keys come first. */
#include "backends/cuda/network/attention_groups.cuh"

#ifdef DR_CUDA_WARPGROUPS

/* Of the two rows of a thread; sum: of the thread's own columns. */
typedef struct {
    int position[2];
    float most[2], sum[2];
} soft_rows;

/* scores becomes 2^(score - most); o and sums are brought to the new maximum. cut: some keys of the tile are not seen. */
template <int tiles>
static __device__ inline void soften(const dr_group_attention &call, bool cut, int key, soft_rows &rows, float (&scores)[8][4],
                                     float (&o)[tiles][4]) {
    float most[2] = {rows.most[0], rows.most[1]}, by[2], floor[2];
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) scores[n][i] *= call.scale;
    if (cut) {
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (!dr_group_sees(call, rows.position[i / 2], key + dr_tile_column(n, i))) scores[n][i] = -INFINITY;
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) most[i / 2] = fmaxf(most[i / 2], scores[n][i]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        most[r] = dr_most_of_lanes(most[r], 4);
        floor[r] = most[r] == -INFINITY ? 0 : most[r];
        by[r] = dr_exp2_near(rows.most[r] - floor[r]);
        rows.most[r] = most[r], rows.sum[r] *= by[r];
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            scores[n][i] = dr_exp2_near(scores[n][i] - floor[i / 2]);
            rows.sum[i / 2] += scores[n][i];
        }
#pragma unroll
    for (int n = 0; n < tiles; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) o[n][i] *= by[i / 2];
}

template <int boxes>
static __device__ inline void attend(const dr_group_attention &call, char *shared, const dr_group_room<boxes, 1> &room,
                                     const dr_attention_place &place, dr_stretch all, int group) {
    const int first = (int)place.first + group * DR_SIDE, rows_there = (int)place.rows;
    const int low = first / call.group, high = (first + DR_SIDE - 1) / call.group; /* positions of the group's rows */
    const int sees = low - call.window + 1, before = call.window > 0 && sees > 0 ? sees / DR_SIDE * DR_SIDE : 0;
    dr_stretch mine = {before > all.begin ? before : all.begin, high + 1 < all.end ? high + 1 : all.end};
    if (first >= rows_there) mine = {all.end, all.end};
    soft_rows rows;
    float o[8 * boxes][4];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        rows.position[r] = (first + dr_group_row(2 * r)) / call.group;
        rows.most[r] = -INFINITY, rows.sum[r] = 0;
    }
    dr_zero_tile(o);
    dr_gate_wait(room.ready(), 0);
    dr_shared_fence();
    const unsigned queries = room.tile(0, dr_same_in_warp(group));
    dr_use_stages(room, all, mine, [&](unsigned stage, int key) {
        float scores[8][4];
        unsigned weights[4][4];
        dr_group_anew(scores);
        dr_group_begin();
        dr_multiply_sides<boxes>(scores, queries, stage);
        dr_group_commit();
        dr_group_wait<0>();
        dr_group_settle(scores);
        soften(call, key + DR_SIDE - 1 > low || (call.window > 0 && key <= high - call.window), key, rows, scores, o);
        dr_round_to_operands(weights, scores);
        dr_group_settle(o), dr_group_settle(weights);
        dr_group_begin();
        dr_multiply_rows(o, weights, stage + boxes * DR_BOX);
        dr_group_commit();
        dr_group_wait<0>();
        dr_group_settle(o);
    });
    float by[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float sum = dr_sum_lanes(rows.sum[r], 4);
        const int row = first + dr_group_row(2 * r);
        by[r] = 1 / sum;
        if (call.sums && threadIdx.x % 4 == 0 && row < rows_there)
            call.sums[dr_group_query(call, place, row)] = rows.most[r] * (1 / DR_LOG2_E) + logf(sum);
    }
    dr_store_side(shared, queries, o, by, call.value_size, [&](int r) -> dr_word * {
        if (first + r >= rows_there) return NULL;
        return call.o + dr_group_query(call, place, first + r) * call.value_size;
    });
}

#endif

template <int boxes>
static __global__ void __launch_bounds__(DR_GROUP_THREADS, 1)
    attention_groups(const __grid_constant__ dr_group_attention call) {
#ifdef DR_CUDA_WARPGROUPS
    extern __shared__ __align__(1024) char shared[];
    const dr_group_room<boxes, 1> room = {dr_shared_address(shared)};
    dr_attention_place place;
    if (!dr_attention_place_of<DR_OWN, true>(call.shape, call.group, 1, &place)) return;
    room.open();
    const int first = (int)place.first, rows = (int)place.rows, last = first + DR_OWN < rows ? first + DR_OWN - 1 : rows - 1;
    const int sees = first / call.group - call.window + 1;
    const dr_stretch all = {call.window > 0 && sees > 0 ? sees / DR_SIDE * DR_SIDE : 0, last / call.group + 1};
    if (threadIdx.x < 128) {
        dr_registers_give<40>();
        const int tokens = (int)(place.of.end - place.of.begin);
        for (int g = 0; g < 2; g++)
            dr_copy_side<boxes>(room.tile(0, g), call.key_size, call.q,
                                dr_query_rows(call, place, rows, call.q, call.key_size, first + g * DR_SIDE));
        dr_gate_arrive_copied(room.ready());
        dr_fill_stages(room, all, [&](unsigned stage, int key) {
            dr_copy_side<boxes>(stage, call.key_size, call.k, dr_key_rows(call, place, tokens, call.k, call.key_size, key));
            dr_copy_side<boxes>(stage + boxes * DR_BOX, call.value_size, call.v,
                                dr_key_rows(call, place, tokens, call.v, call.value_size, key));
        });
    } else {
        dr_registers_take<232>();
        attend<boxes>(call, shared, room, place, all, (int)threadIdx.x / 128 - 1);
    }
#endif
}

dr_status dr_attention_groups_forward(const dr_cuda *gpu, const dr_attention &of, const dr_group_attention &call) {
    const bool one = of.key_size <= 64 && of.value_size <= 64;
    return dr_cuda_launch("attention_groups", one ? attention_groups<1> : attention_groups<2>,
                          {dr_attention_tiles(of, call.group, DR_OWN), of.key_heads}, DR_GROUP_THREADS,
                          one ? dr_group_bytes<1>(1) : dr_group_bytes<2>(1), gpu->stream, call);
}
