/* The backward of softmax attention by warp groups (attention_groups.cuh, attention_back.cu): one kernel whose own side is
 * queries makes d_q, another one whose own side is keys makes d_k and d_v. Both make probabilities again from the forward's
 * logarithms, and every sum has one order.
 *
 *     d_q   S = Q K^T, dP = d_O V^T, dS = P (dP - along), d_Q += dS K
 *     keys  the transposes: S^T = K Q^T, dP^T = V d_O^T, d_V += P^T d_O, d_K += dS^T Q
 *
 * Gradients of queries and keys are multiplied by the scale at their end. */
#include "backends/cuda/network/attention_groups.cuh"

#ifdef DR_CUDA_WARPGROUPS

/* scores becomes probabilities. */
static __device__ inline void probabilities_of_rows(const dr_group_attention &call, bool cut, int key, const int (&position)[2],
                                                    const float (&logs)[2], float (&scores)[8][4]) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) scores[n][i] = dr_exp2_near(fmaf(scores[n][i], call.scale, -logs[i / 2]));
    if (!cut) return;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!dr_group_sees(call, position[i / 2], key + dr_tile_column(n, i))) scores[n][i] = 0;
}

template <int boxes>
static __device__ inline void query_gradients(const dr_group_attention &call, char *shared, const dr_group_room<boxes, 2> &room,
                                              const dr_attention_place &place, dr_stretch all, int group) {
    const int first = (int)place.first + group * DR_SIDE, rows_there = (int)place.rows;
    const int low = first / call.group, high = (first + DR_SIDE - 1) / call.group;
    const int least = low - call.window + 1, before = call.window > 0 && least > 0 ? least / DR_SIDE * DR_SIDE : 0;
    dr_stretch mine = {before > all.begin ? before : all.begin, high + 1 < all.end ? high + 1 : all.end};
    if (first >= rows_there) mine = {all.end, all.end};
    int position[2];
    float logs[2], along[2], sum[8 * boxes][4];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = first + dr_group_row(2 * r);
        position[r] = row / call.group, logs[r] = along[r] = 0;
        if (row >= rows_there) continue;
        const int64_t at = dr_group_query(call, place, row);
        logs[r] = call.log_sums[at] * DR_LOG2_E, along[r] = call.along[at];
    }
    dr_zero_tile(sum);
    dr_gate_wait(room.ready(), 0);
    dr_shared_fence();
    const unsigned queries = room.tile(0, dr_same_in_warp(group)), slopes = room.tile(1, dr_same_in_warp(group));
    dr_use_stages(room, all, mine, [&](unsigned stage, int key) {
        float scores[8][4], d_p[8][4];
        unsigned d_s[4][4];
        dr_group_anew(scores), dr_group_anew(d_p);
        dr_group_begin();
        dr_multiply_sides<boxes>(scores, queries, stage);
        dr_group_commit();
        dr_multiply_sides<boxes>(d_p, slopes, stage + boxes * DR_BOX);
        dr_group_commit();
        dr_group_wait<1>();
        dr_group_settle(scores);
        probabilities_of_rows(call, key + DR_SIDE - 1 > low || (call.window > 0 && key <= high - call.window), key, position,
                              logs, scores);
        dr_group_wait<0>();
        dr_group_settle(d_p);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) scores[n][i] *= d_p[n][i] - along[i / 2];
        dr_round_to_operands(d_s, scores);
        dr_group_settle(d_s), dr_group_settle(sum);
        dr_group_begin();
        dr_multiply_rows(sum, d_s, stage);
        dr_group_commit();
        dr_group_wait<0>();
        dr_group_settle(sum);
    });
    const float by[2] = {call.shape.scale, call.shape.scale};
    dr_store_side(shared, queries, sum, by, call.key_size, [&](int r) -> dr_word * {
        if (first + r >= rows_there) return NULL;
        return call.d_q + dr_group_query(call, place, first + r) * call.key_size;
    });
}

/* The transposes; row: the first query row of the tile, numbers: logarithms and along of its rows. */
static __device__ inline void probabilities_of_columns(const dr_group_attention &call, bool cut, int row, const int (&key)[2],
                                                       const float *numbers, float (&scores)[8][4]) {
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 logs = dr_column_pair(numbers, n);
        const float log[2] = {logs.x * DR_LOG2_E, logs.y * DR_LOG2_E};
#pragma unroll
        for (int i = 0; i < 4; i++) scores[n][i] = dr_exp2_near(fmaf(scores[n][i], call.scale, -log[i % 2]));
    }
    if (!cut) return;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!dr_group_sees(call, (row + dr_tile_column(n, i)) / call.group, key[i / 2])) scores[n][i] = 0;
}

template <int boxes>
static __device__ inline void key_gradients(const dr_group_attention &call, char *shared, const dr_group_room<boxes, 2> &room,
                                            const dr_attention_place &place, dr_stretch all, int group) {
    const int first = (int)place.first + group * DR_SIDE, rows_there = (int)place.rows, last = first + DR_SIDE - 1;
    const int begin = first * call.group / DR_SIDE * DR_SIDE;
    const bool ends = call.window > 0 && last + call.window < rows_there; /* before the sequence does */
    const int end = ends ? (last + call.window) * call.group : all.end;
    dr_stretch mine = {begin > all.begin ? begin : all.begin, end < all.end ? end : all.end};
    if (first >= rows_there) mine = {all.end, all.end};
    int key[2];
    float d_k[8 * boxes][4], d_v[8 * boxes][4];
#pragma unroll
    for (int r = 0; r < 2; r++) key[r] = first + dr_group_row(2 * r);
    dr_zero_tile(d_k), dr_zero_tile(d_v);
    dr_gate_wait(room.ready(), 0);
    dr_shared_fence();
    const unsigned keys = room.tile(0, dr_same_in_warp(group)), values = room.tile(1, dr_same_in_warp(group));
    dr_use_stages(room, all, mine, [&](unsigned stage, int row) {
        const float *const numbers = (const float *)(shared + (stage - room.at) + 2 * boxes * DR_BOX);
        const int low = row / call.group, high = (row + DR_SIDE - 1) / call.group; /* tokens of the tile's queries */
        const bool cut = low < last || (call.window > 0 && high >= first + call.window);
        float scores[8][4], d_p[8][4];
        unsigned weights[4][4], d_s[4][4];
        dr_group_anew(scores), dr_group_anew(d_p);
        dr_group_begin();
        dr_multiply_sides<boxes>(scores, keys, stage);
        dr_group_commit();
        dr_multiply_sides<boxes>(d_p, values, stage + boxes * DR_BOX);
        dr_group_commit();
        dr_group_wait<1>();
        dr_group_settle(scores);
        probabilities_of_columns(call, cut, row, key, numbers, scores);
        dr_round_to_operands(weights, scores);
        dr_group_settle(weights), dr_group_settle(d_v);
        dr_group_begin();
        dr_multiply_rows(d_v, weights, stage + boxes * DR_BOX);
        dr_group_commit();
        dr_group_wait<1>();
        dr_group_settle(d_p);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 pair = dr_column_pair(numbers + DR_SIDE, n);
            const float along[2] = {pair.x, pair.y};
#pragma unroll
            for (int i = 0; i < 4; i++) scores[n][i] *= d_p[n][i] - along[i % 2];
        }
        dr_round_to_operands(d_s, scores);
        dr_group_settle(d_s), dr_group_settle(d_k);
        dr_group_begin();
        dr_multiply_rows(d_k, d_s, stage);
        dr_group_commit();
        dr_group_wait<0>();
        dr_group_settle(d_k), dr_group_settle(d_v);
    });
    const float by_scale[2] = {call.shape.scale, call.shape.scale}, as_is[2] = {1, 1};
    const auto row_of = [&](dr_word *tensor, int size) {
        return [&call, &place, tensor, size, first, rows_there](int r) -> dr_word * {
            return first + r < rows_there ? tensor + dr_key_row(call.shape, place, first + r) * size : NULL;
        };
    };
    if (call.d_k) dr_store_side(shared, keys, d_k, by_scale, call.key_size, row_of(call.d_k, call.key_size));
    if (call.d_v) dr_store_side(shared, values, d_v, as_is, call.value_size, row_of(call.d_v, call.value_size));
}

#endif

template <int boxes>
static __global__ void __launch_bounds__(DR_GROUP_THREADS, 1)
    attention_groups_query(const __grid_constant__ dr_group_attention call) {
#ifdef DR_CUDA_WARPGROUPS
    extern __shared__ __align__(1024) char shared[];
    const dr_group_room<boxes, 2> room = {dr_shared_address(shared)};
    dr_attention_place place;
    if (!dr_attention_place_of<DR_OWN, true>(call.shape, call.group, 1, &place)) return;
    room.open();
    const int first = (int)place.first, rows = (int)place.rows, last = first + DR_OWN < rows ? first + DR_OWN - 1 : rows - 1;
    const int least = first / call.group - call.window + 1, tokens = (int)(place.of.end - place.of.begin);
    const dr_stretch all = {call.window > 0 && least > 0 ? least / DR_SIDE * DR_SIDE : 0, last / call.group + 1};
    if (threadIdx.x < 128) {
        dr_registers_give<40>();
        for (int g = 0; g < 2; g++) {
            const int from = first + g * DR_SIDE;
            dr_copy_side<boxes>(room.tile(0, g), call.key_size, call.q,
                                dr_query_rows(call, place, rows, call.q, call.key_size, from));
            dr_copy_side<boxes>(room.tile(1, g), call.value_size, call.d_o,
                                dr_query_rows(call, place, rows, call.d_o, call.value_size, from));
        }
        dr_gate_arrive_copied(room.ready());
        dr_fill_stages(room, all, [&](unsigned stage, int key) {
            dr_copy_side<boxes>(stage, call.key_size, call.k, dr_key_rows(call, place, tokens, call.k, call.key_size, key));
            dr_copy_side<boxes>(stage + boxes * DR_BOX, call.value_size, call.v,
                                dr_key_rows(call, place, tokens, call.v, call.value_size, key));
        });
    } else {
        dr_registers_take<232>();
        query_gradients<boxes>(call, shared, room, place, all, (int)threadIdx.x / 128 - 1);
    }
#endif
}

template <int boxes>
static __global__ void __launch_bounds__(DR_GROUP_THREADS, 1)
    attention_groups_key(const __grid_constant__ dr_group_attention call) {
#ifdef DR_CUDA_WARPGROUPS
    extern __shared__ __align__(1024) char shared[];
    const dr_group_room<boxes, 2> room = {dr_shared_address(shared)};
    dr_attention_place place;
    if (!dr_attention_place_of<DR_OWN, false>(call.shape, 1, 1, &place)) return;
    room.open();
    const int first = (int)place.first, tokens = (int)place.rows,
              last = first + DR_OWN < tokens ? first + DR_OWN - 1 : tokens - 1;
    const int rows = tokens * call.group;
    const bool ends = call.window > 0 && last + call.window < tokens;
    const dr_stretch all = {first * call.group / DR_SIDE * DR_SIDE, ends ? (last + call.window) * call.group : rows};
    if (threadIdx.x < 128) {
        dr_registers_give<40>();
        for (int g = 0; g < 2; g++) {
            const int from = first + g * DR_SIDE;
            dr_copy_side<boxes>(room.tile(0, g), call.key_size, call.k,
                                dr_key_rows(call, place, tokens, call.k, call.key_size, from));
            dr_copy_side<boxes>(room.tile(1, g), call.value_size, call.v,
                                dr_key_rows(call, place, tokens, call.v, call.value_size, from));
        }
        dr_gate_arrive_copied(room.ready());
        dr_fill_stages(room, all, [&](unsigned stage, int row) {
            dr_copy_side<boxes>(stage, call.key_size, call.q, dr_query_rows(call, place, rows, call.q, call.key_size, row));
            dr_copy_side<boxes>(stage + boxes * DR_BOX, call.value_size, call.d_o,
                                dr_query_rows(call, place, rows, call.d_o, call.value_size, row));
            const int mine = row + (int)threadIdx.x % DR_SIDE;
            const float *const from = threadIdx.x < DR_SIDE ? call.log_sums : call.along;
            dr_copy_word(stage + 2 * boxes * DR_BOX + threadIdx.x * 4,
                         mine < rows ? from + dr_group_query(call, place, mine) : from, mine < rows);
        });
    } else {
        dr_registers_take<232>();
        key_gradients<boxes>(call, shared, room, place, all, (int)threadIdx.x / 128 - 1);
    }
#endif
}

dr_status dr_attention_groups_backward(const dr_cuda *gpu, const dr_attention &of, const dr_group_attention &call) {
    const bool one = of.key_size <= 64 && of.value_size <= 64;
    const int bytes = one ? dr_group_bytes<1>(2) : dr_group_bytes<2>(2);
    if (call.d_q)
        DR_TRY(dr_cuda_launch("attention_groups_query", one ? attention_groups_query<1> : attention_groups_query<2>,
                              {dr_attention_tiles(of, call.group, DR_OWN), of.key_heads}, DR_GROUP_THREADS, bytes, gpu->stream,
                              call));
    if (!call.d_k && !call.d_v) return DR_OK;
    return dr_cuda_launch("attention_groups_key", one ? attention_groups_key<1> : attention_groups_key<2>,
                          {dr_attention_tiles(of, 1, DR_OWN), of.key_heads}, DR_GROUP_THREADS, bytes, gpu->stream, call);
}
