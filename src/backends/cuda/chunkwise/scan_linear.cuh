/* The scan of rules whose rows read nothing (linear attention, with one decay a head or none), straight from the inputs:
 * nothing is solved for, so there is no prepare, and keys, queries and values go through memory once.
 *
 *     P = lower(scale Q W^T decayed)      O = Q~ S + P Z      S := D S + W^T (Z decayed to the end of the chunk)
 *
 * Stages and their barriers are those of scan_stages.cuh. Between the warps that copy and those that compute, one or two
 * groups of four warps, in turn, make P of a chunk and the factors of its rows: P's rows are queries, so that it lies as
 * operand B of the computing groups. The decay to the end of the chunk goes to the values, so that W enters as it is; a second
 * pair of operands costs less than another tile.
 *
 *     64 columns     copy, make, make, compute
 *     128 columns    copy, make, compute, compute
 *
 * For a backward that is not linear_back the makers also write what prepare would have: X, P', the factors, D. */
#ifndef DR_CUDA_SCAN_LINEAR_CUH
#define DR_CUDA_SCAN_LINEAR_CUH

#include "backends/cuda/chunkwise/prepare.cuh"
#include "backends/cuda/chunkwise/scan_warpgroups.cuh"

enum { DR_LINEAR_THREADS = 512 };

/* Behind the stages and their barriers: for each stage one that says its scores and factors are made; and the decays of a
 * chunk, two for each group of makers. */
enum {
    DR_LINEAR_MADE_BYTES = (DR_SCAN_MOST_STAGES + 1) / 2 * 2 * (int)sizeof(uint64_t),
    DR_LINEAR_BESIDE_BYTES = DR_LINEAR_MADE_BYTES + 4 * (int)sizeof(dr_prepare_small)
};

#ifdef DR_CUDA_WARPGROUPS

/* ---- copying ------------------------------------------------------------------------------------------------------------- */

/* Columns column .. of an input of that size, one head, that fill a tile: all rows, or those of the last chunk and of vectors
 * at odd places. */
template <typename T, int boxes>
static __device__ inline void dr_linear_load(dr_group_stream &stream, const dr_cuda_rows &rows, const dr_source &source,
                                             const dr_chunk_place &place, int head, int column, int size, unsigned to,
                                             char *tile) {
    if (stream.at && place.tokens == 64) {
        dr_group_fill<boxes>(stream, to, 64);
        return;
    }
    if (stream.at) stream.at += 4 * (int64_t)stream.step + stream.skip;
    const dr_strided<T> from = {(const T *)source.at + place.first * source.token + head * source.head + column, source.token,
                                place.tokens};
    dr_copy_rows<T>(tile, 64, boxes, size - column, rows.aligned, 64, 0, 1, from);
}

/* Says that the thread's copies have come, without waiting for them; vectors at odd places are not copied but loaded and
 * stored. Who waits for it makes them visible to the matrix units. */
static __device__ inline void dr_linear_tell(unsigned gate, bool aligned) {
    if (aligned) {
        dr_gate_arrive_copied(gate);
        return;
    }
    dr_copy_commit();
    dr_copy_wait<0>();
    dr_gate_arrive(gate);
}

/* columns: of V that the computing groups have, from the first and from the second on; -1: none. */
template <typename T, int boxes>
static __device__ inline void dr_linear_copy(const dr_group_scan_call &group_call, char *shared, const dr_scan_place &place,
                                             const int (&columns)[2]) {
    const dr_scan_call &call = group_call.call;
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const bool gated = rows.input[DR_INPUT_WRITE_GATE].at != NULL, whole_keys = rows.key_size == boxes * 64;
    const unsigned gates = dr_shared_address(shared);
    const int thread = (int)threadIdx.x, key_head = place.head / rows.group;
    const unsigned mine = (unsigned)(thread / 8 * 128 + ((thread % 8 ^ thread / 8 % 8) << 4));
    const int64_t last = dr_sequence_begin(plan, call.tensors.cu, place.sequence + 1);
    dr_chunk_place now = dr_chunk_of(plan, call.tensors.cu, place.sequence, place.begin);
    const dr_source write = dr_write_source(rows), asked = dr_query_source(rows),
                    value = dr_source_of(rows.input[DR_INPUT_VALUE]);
    dr_group_stream writer = dr_group_open_input<T>(plan, write, now.first, key_head, 0, 64, whole_keys);
    dr_group_stream query = dr_group_open_input<T>(plan, asked, now.first, key_head, 0, 64, whole_keys);
    dr_group_stream values[2];
#pragma unroll
    for (int g = 0; g < 2; g++)
        values[g] = dr_group_open_input<T>(plan, value, now.first, place.head, columns[g], 64,
                                           columns[g] >= 0 && columns[g] + 64 <= rows.value_size);

    dr_group_turn at = {0, 1};
    for (int chunk = place.begin; chunk < place.end; chunk++) {
        dr_gate_wait(dr_group_free(group_call, gates, at.stage), at.turn);
        const int64_t left = last - now.first;
        now.tokens = left < 64 ? (int)left : 64;
        dr_scan_block x = {call, shared + at.stage * call.room.bytes, call.room, place.head, key_head, 0, false};
        const unsigned stage = gates + (unsigned)(at.stage * call.room.bytes) + mine;
        dr_linear_load<T, boxes>(writer, rows, write, now, key_head, 0, rows.key_size, stage + (unsigned)call.room.exit,
                                 x.shared + call.room.exit);
        dr_linear_load<T, boxes>(query, rows, asked, now, key_head, 0, rows.key_size, stage + (unsigned)call.room.query,
                                 x.shared + call.room.query);
#pragma unroll
        for (int g = 0; g < 2; g++) {
            x.columns = columns[g];
            if (columns[g] < 0) continue;
            const int tile = g * 64 * 64 * 2;
            dr_linear_load<T, 1>(values[g], rows, value, now, place.head, columns[g], rows.value_size,
                                 stage + (unsigned)(call.room.value + tile), x.shared + call.room.value + tile);
            if (gated) dr_scan_load_values<T>(x, now, DR_INPUT_WRITE_GATE, group_call.gate + tile);
        }
        dr_linear_tell(dr_group_filled(group_call, gates, at.stage), rows.aligned);
        dr_group_next(at, group_call.stages);
        now.first += 64;
    }
}

/* ---- making -------------------------------------------------------------------------------------------------------------- */

/* What the decay and the gain of two rows are made of: asked for a chunk ahead. */
typedef struct {
    float log_decay;
    dr_map_gain_inputs gain;
} dr_linear_row;

static __device__ inline dr_linear_row dr_linear_ask(const dr_cuda_rows &rows, const dr_prepare_block &x, int decaying,
                                                     int gained) {
    const bool decays = rows.scalar_decay && decaying < x.alive;
    dr_linear_row row;
    row.log_decay = decays ? dr_input_scalar(rows, DR_INPUT_LOG_DECAY, x.place.first + decaying, 0, x.head) : 0.0f;
    row.gain = dr_prepare_gain_inputs(rows, x, gained);
    return row;
}

/* What a backward wants of the chunk beside states: factors are those of prepare. */
template <typename T>
static __device__ inline void dr_linear_keep(const dr_scan_call &call, const dr_prepare_block &x, const dr_prepare_small &small,
                                             const char *stage, const dr_cuda_row_factors &factors) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_chunk_tensors &tensors = call.tensors;
    const int thread = (int)threadIdx.x % 128, row = thread / 2, first = thread % 2 * 32;
    if (thread < 64) tensors.factors[x.block * 64 + thread] = factors;
    dr_prepare_put_written<T>(plan, small.leave, stage + call.room.exit, (T *)tensors.exit + x.block * 64 * plan.key_width);
    T *score = (T *)tensors.score + (x.block * 64 + row) * 64;
#pragma unroll
    for (int i = first; i < first + 32; i += 8)
        *(uint4 *)(score + i) = *(const uint4 *)(stage + call.room.score + dr_tile_at<T>(0, 64, row, i));
}

/* From the tiles of a chunk its scores and factors. barrier: of the four warps that make it. */
template <typename T, int boxes>
static __device__ inline void dr_linear_make(const dr_scan_call &call, const dr_prepare_block &x, const dr_linear_row &row,
                                             char *stage, dr_prepare_small &small, bool first, unsigned barrier) {
    const dr_cuda_rows &rows = call.plan.rows;
    const int i = (int)threadIdx.x % 128;
    const unsigned tile = dr_shared_address(stage);
    float p[8][4] = {}, none[8][4] = {};
    const uint64_t a = dr_group_operand(tile + (unsigned)call.room.query, 16),
                   b = dr_group_operand(tile + (unsigned)call.room.exit, 16);
    dr_group_begin();
#pragma unroll
    for (int k = 0; k < boxes * 4; k++) {
        const unsigned on = (unsigned)(k / 4 * 8192 + k % 4 * 32);
        dr_group_multiply_tiles<false, true>(T(), p, dr_group_forward(a, on), dr_group_forward(b, on), 1);
    }
    dr_group_commit();
    const dr_prepare_half half = dr_prepare_halve(rows.scalar_decay ? expf(row.log_decay) : 1.0f);
    dr_prepare_spread(rows, half, small);
    const dr_prepare_near near = dr_prepare_pairs(rows, half, false);
    __barrier_sync_count(barrier, 128);
    dr_cuda_row_factors factors = {0, 0, 0, 0};
    if (i < 64) {
        factors = dr_prepare_factors(rows, x, i, dr_prepare_gain(rows, x, i, row.gain, 0));
        small.leave[i] = dr_prepare_span(rows, small, i, x.alive, factors);
        const float4 scaling = make_float4(0, factors.value * small.leave[i], factors.value, factors.query);
        *(float4 *)(stage + call.room.factors + i * 16) = scaling;
    }
    const float kept = small.total[0] * small.total[1] * small.total[2] * small.total[3];
    if (i == 0) *(float *)(stage + call.room.keep) = kept;
    if (first && call.tensors.exit)
        for (int k = i; k < boxes * 64; k += 128) call.tensors.keep[x.block * boxes * 64 + k] = kept;
    dr_group_wait<0>();
    dr_prepare_mask(rows, small, near, near, false, NULL, none, p);
    dr_group_lay_rows<T>(stage + call.room.score, p);
    dr_shared_fence();
    if (!first || !call.tensors.exit) return;
    __barrier_sync_count(barrier, 128);
    dr_linear_keep<T>(call, x, small, stage, factors);
}

/* Every makers-th chunk from chunk maker of the part on. */
template <typename T, int boxes, int makers>
static __device__ inline void dr_linear_makes(const dr_group_scan_call &group_call, char *shared, const dr_scan_place &place,
                                              int maker) {
    const dr_scan_call &call = group_call.call;
    const dr_cuda_chunk_plan &plan = call.plan;
    const unsigned gates = dr_shared_address(shared), made = gates + (unsigned)dr_group_scan_bytes(group_call);
    const int64_t last = dr_sequence_begin(plan, call.tensors.cu, place.sequence + 1);
    dr_prepare_small *small = (dr_prepare_small *)(shared + dr_group_scan_bytes(group_call) + DR_LINEAR_MADE_BYTES) + maker * 2;
    dr_prepare_block next = {(place.slot + place.begin + maker) * plan.value_heads + place.head,
                             dr_chunk_of(plan, call.tensors.cu, place.sequence, place.begin + maker),
                             place.head,
                             place.head / plan.rows.group,
                             0,
                             0,
                             boxes};
    next.alive = next.place.tokens;
    const int thread = (int)threadIdx.x % 128, decaying = thread / 32 * 16 + thread % 16, gained = thread < 64 ? thread : 64;
    dr_linear_row asked = dr_linear_ask(plan.rows, next, decaying, gained);
    dr_group_turn at = {0, 0};
    for (int i = 0; i < maker; i++) dr_group_next(at, group_call.stages);
    int turn = 0;
    for (int chunk = place.begin + maker; chunk < place.end; chunk += makers) {
        const dr_prepare_block x = next;
        const dr_linear_row row = asked;
        next.block += makers * plan.value_heads;
        next.place.first += makers * 64;
        const int64_t left = last - next.place.first;
        next.alive = next.place.tokens = left < 64 ? left < 0 ? 0 : (int)left : 64;
        asked = dr_linear_ask(plan.rows, next, decaying, gained);
        dr_gate_wait(dr_group_filled(group_call, gates, at.stage), at.turn);
        dr_shared_fence();
        dr_linear_make<T, boxes>(call, x, row, shared + at.stage * call.room.bytes, small[turn], place.columns == 0, 1 + maker);
        dr_gate_arrive(made + (unsigned)at.stage * 8);
#pragma unroll
        for (int i = 0; i < makers; i++) dr_group_next(at, group_call.stages);
        turn ^= 1;
    }
}

/* ---- computing ----------------------------------------------------------------------------------------------------------- */

/* Z^T and the same decayed to the end of the chunk as operands A. gate: the tile of write gates. */
template <typename T, bool gated>
static __device__ inline void dr_linear_values(const dr_cuda_row_factors *factors, unsigned gate, const unsigned (&v)[4][4],
                                               unsigned (&y)[4][4], unsigned (&left)[4][4]) {
    factors += threadIdx.x % 4 * 2;
    unsigned w[4][4];
    if (gated) dr_group_values<T>(false, 0xffffffffu, gate, w);
#pragma unroll
    for (int n = 0; n < 8; n++) { /* two rows, and columns g and g + 8 */
        const float4 f = *(const float4 *)&factors[n * 8], h = *(const float4 *)&factors[n * 8 + 1];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 z = dr_unpack(T(), v[n / 2][n % 2 * 2 + i]);
            if (gated) {
                const float2 open = dr_unpack(T(), w[n / 2][n % 2 * 2 + i]);
                z.x *= open.x, z.y *= open.y;
            }
            y[n / 2][n % 2 * 2 + i] = dr_pack(T(), z.x * f.z, z.y * h.z);
            left[n / 2][n % 2 * 2 + i] = dr_pack(T(), z.x * f.y, z.y * h.y);
        }
    }
}

template <typename T, int boxes>
static __device__ inline void dr_linear_compute(const dr_group_scan_call &group_call, char *shared, int group, unsigned columns,
                                                unsigned rest) {
    constexpr int tiles = boxes * 8, steps = tiles / 2;
    const dr_scan_call &call = group_call.call;
    const dr_cuda_chunk_plan &plan = call.plan;
    const bool gated = plan.rows.input[DR_INPUT_WRITE_GATE].at != NULL;
    const unsigned gates = dr_shared_address(shared), made = gates + (unsigned)dr_group_scan_bytes(group_call);
    const dr_scan_place place = dr_scan_find(call, columns, rest);
    const dr_scan_block x = {call, shared, call.room, place.head, place.head / plan.rows.group, place.columns, false};
    float s[tiles][4] = {};
    dr_scan_begin<tiles>(x, place, s);
    int64_t token = dr_sequence_begin(plan, call.tensors.cu, place.sequence) + (int64_t)place.begin * 64;
    const int64_t end = dr_sequence_begin(plan, call.tensors.cu, place.sequence + 1);
    int64_t block = (place.slot + place.begin) * plan.value_heads + place.head;
    dr_group_turn at = {0, 0};
    for (int chunk = place.begin; chunk < place.end; chunk++) {
        const char *stage = shared + at.stage * call.room.bytes;
        const unsigned tile = gates + (unsigned)(at.stage * call.room.bytes);
        const unsigned value = tile + (unsigned)(call.room.value + group * 64 * 64 * 2);
        const unsigned gate = tile + (unsigned)(group_call.gate + group * 64 * 64 * 2);
        const dr_cuda_row_factors *factors = (const dr_cuda_row_factors *)(stage + call.room.factors);
        unsigned a[steps][4], v[4][4], y[4][4], left[4][4];
        float o[8][4];
        dr_gate_wait(made + (unsigned)at.stage * 8, at.turn);
        dr_shared_fence();
        dr_group_state<T, tiles>(s, a);
        const float kept = *(const float *)(stage + call.room.keep);
#pragma unroll
        for (int i = 0; i < tiles * 4; i++) s[i / 4][i % 4] *= kept;
        dr_group_begin();
        dr_group_chain<T, true>(o, a, tile + (unsigned)call.room.query, 8192, false);
        dr_group_commit();
        if (call.saved) dr_group_save<T, steps>(call, place, block, a);
        dr_group_values<T>(false, 0xffffffffu, value, v);
        if (gated)
            dr_linear_values<T, true>(factors, gate, v, y, left);
        else
            dr_linear_values<T, false>(factors, 0, v, y, left);
        dr_group_begin();
        dr_group_chain<T, false>(s, left, tile + (unsigned)call.room.exit, 8192, true);
        dr_group_commit();
        dr_group_wait<1>();
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) o[n][i] *= factors[n * 8 + threadIdx.x % 4 * 2 + i % 2].query;
        dr_group_begin();
        dr_group_chain<T, true>(o, y, tile + (unsigned)call.room.score, 0, true);
        dr_group_commit();
        dr_group_wait<0>();
        const int64_t there = end - token;
        dr_group_put_output<T, 8>(call, place, value, shared, token, there < 64 ? (int)there : 64, o);
        dr_gate_arrive(dr_group_free(group_call, gates, at.stage));
        dr_group_next(at, group_call.stages);
        token += 64;
        block += plan.value_heads;
    }
    /* found once more rather than kept in registers */
    dr_scan_end<tiles>(x, dr_scan_find(call, dr_forget(columns), dr_forget(rest)), s);
}

#endif

template <typename T, int boxes, int groups>
static __global__ void __launch_bounds__(DR_LINEAR_THREADS, 1)
    scan_linear(const __grid_constant__ dr_group_scan_call group_call) {
#ifdef DR_CUDA_WARPGROUPS
    extern __shared__ __align__(1024) char shared[];
    constexpr int makers = 3 - groups;
    const dr_scan_call &call = group_call.call;
    const unsigned all = (unsigned)dr_scan_groups(call), blocks = (all + groups - 1) / groups;
    const unsigned first = blockIdx.x % blocks * groups, rest = blockIdx.x / blocks;
    const int busy = all - first < groups ? 1 : groups, role = (int)threadIdx.x / 128;
    const dr_scan_place place = dr_scan_find(call, first, rest);
    if (dr_scan_idle(call, place)) return;
    const unsigned made = dr_shared_address(shared) + (unsigned)dr_group_scan_bytes(group_call);
    if (threadIdx.x == 0)
        for (int i = 0; i < group_call.stages; i++) dr_gate_open(made + 8 * i, 128);
    dr_group_open(group_call, dr_shared_address(shared), busy);
    if (role == 0) {
        dr_registers_give<groups == 1 ? 56 : 40>();
        const int columns[2] = {place.columns, busy == 2 ? place.columns + 64 : -1};
        dr_linear_copy<T, boxes>(group_call, shared, place, columns);
    } else if (role <= makers) {
        dr_registers_give<groups == 1 ? 112 : 88>();
        dr_linear_makes<T, boxes, makers>(group_call, shared, place, role - 1);
    } else {
        dr_registers_take<groups == 1 ? 216 : 192>();
        const int g = role - makers - 1;
        if (g < busy) dr_linear_compute<T, boxes>(group_call, shared, g, first + (unsigned)g, rest);
    }
#endif
}

#endif
