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
 * Outputs leave by the copying warps, from a tile where they are laid, and decays of a chunk are made while the products of the
 * one before are under way: what computing warps and makers do between two products is what this takes. No number that a loop
 * needs may be spilled, since stores throw it out of the first-level cache. Plain calls (dr_linear_plain) have an instance of
 * their own, whose copying warps go by pointers from chunk to chunk.
 *
 * For a backward that is not linear_back the makers also write what prepare would have: X, P', the factors, D. */
#ifndef DR_CUDA_SCAN_LINEAR_CUH
#define DR_CUDA_SCAN_LINEAR_CUH

#include "backends/cuda/chunkwise/prepare.cuh"
#include "backends/cuda/chunkwise/scan_warpgroups.cuh"

enum { DR_LINEAR_THREADS = 512, DR_LINEAR_TILE = 64 * 64 * 2 };

/* What a call adds to the scan's. Its stages have no more than the tiles, and dr_linear_scales. */
typedef struct {
    dr_group_scan_call scan;
    int small, output; /* behind the stages and their barriers: dr_linear_small, tiles of outputs */
    /* of plain calls: bytes from a row of keys to the 16th after it, and of queries, values, outputs */
    int writes, asks, values, puts;
} dr_linear_call;

/* Factors of a chunk's rows: of two rows each what their values are multiplied by on their way to the state, and to outputs;
 * of queries; and the decay of the state. */
typedef struct {
    float4 pair[32];
    float query[64], keep;
} dr_linear_scales;

/* Barriers behind those of the stages: for each stage one that says its scores and factors are made; outputs are laid; they are
 * taken. */
enum {
    DR_LINEAR_LAID = DR_SCAN_MOST_STAGES * (int)sizeof(uint64_t),
    DR_LINEAR_TAKEN = DR_LINEAR_LAID + (int)sizeof(uint64_t),
    DR_LINEAR_GATES = DR_LINEAR_TAKEN + (int)sizeof(uint64_t)
};

/* What makers have of a chunk beside decays: factors of its rows. */
struct dr_linear_small : dr_prepare_small {
    float value[64], query[64];
};

/* Chunks of which makers have that: the one at hand, the one ahead, and the one before, which a warp may still read. */
enum { DR_LINEAR_TURNS = 3 };

static inline int dr_linear_small_bytes(int groups) {
    return DR_LINEAR_TURNS * (3 - groups) * (int)sizeof(dr_linear_small);
}

/* Bytes that a thread block has beside its stages, at most. */
static inline int dr_linear_beside(int groups) {
    return DR_LINEAR_GATES + dr_linear_small_bytes(groups) + 1024 + groups * DR_LINEAR_TILE;
}

/* Whether all vectors fill their tiles and are copied by 16 bytes, without write gates. */
static inline bool dr_linear_plain(const dr_cuda_chunk_plan &plan, int groups) {
    const dr_cuda_rows &rows = plan.rows;
    const int64_t longest = INT32_MAX / 32; /* of 16 rows, in elements of two bytes */
    return rows.aligned && rows.key_size == plan.key_width && rows.value_size == plan.value_width &&
           plan.value_width % (64 * groups) == 0 && !rows.input[DR_INPUT_WRITE_GATE].at &&
           rows.value_heads * rows.value_size <= longest && rows.input[DR_INPUT_VALUE].token <= longest &&
           dr_write_source(rows).token <= longest && dr_query_source(rows).token <= longest;
}

static inline dr_linear_call dr_linear_call_of(const dr_group_scan_call &scan, int groups) {
    const dr_cuda_rows &rows = scan.call.plan.rows;
    dr_linear_call call = {scan, dr_group_scan_bytes(scan) + DR_LINEAR_GATES, 0, 0, 0, 0, 0};
    call.output = (call.small + dr_linear_small_bytes(groups) + 1023) / 1024 * 1024;
    if (!dr_linear_plain(scan.call.plan, groups)) return call;
    const auto step = [](int64_t token) { return (int)(16 * 2 * token); };
    call.writes = step(dr_write_source(rows).token), call.asks = step(dr_query_source(rows).token);
    call.values = step(rows.input[DR_INPUT_VALUE].token), call.puts = step(rows.value_heads * rows.value_size);
    return call;
}

#ifdef DR_CUDA_WARPGROUPS

/* ---- copying ------------------------------------------------------------------------------------------------------------- */

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

/* A chunk's rows to the thread's place in a tile, from `at` on, which goes on to the next chunk's; zeros behind its tokens. */
template <int boxes> static __device__ inline void dr_linear_fill(const char *&at, int step, unsigned to, int tokens) {
#pragma unroll
    for (int j = 0; j < 4; j++, at += step) {
        const bool valid = j * 16 + (int)threadIdx.x / 8 < tokens;
        DR_UNROLL (box, boxes) dr_copy_async(to + (unsigned)(j * 2048 + box * DR_LINEAR_TILE), at + box * 128, valid);
    }
}

/* The other way: what has been laid in tiles, to memory. */
template <int boxes> static __device__ inline void dr_linear_drain(char *&at, int step, const char *from, int tokens) {
#pragma unroll
    for (int j = 0; j < 4; j++, at += step) {
        if (j * 16 + (int)threadIdx.x / 8 >= tokens) continue;
        DR_UNROLL (box, boxes) *(uint4 *)(at + box * 128) = *(const uint4 *)(from + box * DR_LINEAR_TILE + j * 2048);
    }
}

/* Tiles of a chunk of a call that is not plain. busy: groups that compute. */
template <typename T, int boxes>
static __device__ inline void dr_linear_load(const dr_group_scan_call &group_call, const dr_scan_place &place, int busy,
                                             const dr_chunk_place &now, char *stage) {
    const dr_scan_call &call = group_call.call;
    const dr_cuda_rows &rows = call.plan.rows;
    const int key_head = place.head / rows.group;
    const auto load = [&](const dr_source &source, int tile) {
        dr_load_tokens<T>(stage + tile, source, now, key_head, 0, rows.key_size, boxes, rows.aligned);
    };
    load(dr_write_source(rows), call.room.exit);
    load(dr_query_source(rows), call.room.query);
    dr_scan_block x = {call, stage, call.room, place.head, key_head, place.columns, false};
#pragma unroll 1
    for (int g = 0; g < busy; g++, x.columns += 64) {
        dr_scan_load_values<T>(x, now, DR_INPUT_VALUE, call.room.value + g * DR_LINEAR_TILE);
        if (rows.input[DR_INPUT_WRITE_GATE].at)
            dr_scan_load_values<T>(x, now, DR_INPUT_WRITE_GATE, group_call.gate + g * DR_LINEAR_TILE);
    }
}

/* Its outputs. */
template <typename T>
static __device__ inline void dr_linear_store(const dr_scan_call &call, const dr_scan_place &place, int busy, int64_t token,
                                              int tokens, const char *tiles) {
#pragma unroll 1
    for (int g = 0; g < busy; g++)
        dr_group_store_output<T>(call, place.head, place.columns + g * 64, token, tokens, tiles + g * DR_LINEAR_TILE);
}

/* Tiles of the chunks ahead, and outputs of the chunk that leaves a stage. */
template <typename T, int boxes, int groups, bool plain>
static __device__ inline void dr_linear_copy(const dr_linear_call &call, char *shared, const dr_scan_place &place, int busy) {
    const dr_scan_call &scan = call.scan.call;
    const dr_scan_room &room = scan.room;
    const dr_cuda_chunk_plan &plan = scan.plan;
    const dr_cuda_rows &rows = plan.rows;
    const unsigned base = dr_shared_address(shared), gates = base + (unsigned)dr_group_scan_bytes(call.scan);
    const int thread = (int)threadIdx.x, key_head = place.head / rows.group, chunks = place.end - place.begin;
    const unsigned mine = (unsigned)(thread / 8 * 128 + ((thread % 8 ^ thread / 8 % 8) << 4));
    const int64_t first = dr_chunk_of(plan, scan.tensors.cu, place.sequence, place.begin).first;
    const int tokens = (int)(dr_sequence_begin(plan, scan.tensors.cu, place.sequence + 1) - first);
    const auto open = [&](const dr_source &source, int head, int column) {
        return (char *)((T *)source.at + (first + thread / 8) * source.token + head * source.head + column + thread % 8 * 8);
    };
    const dr_source outputs = {scan.o, (int64_t)rows.value_heads * rows.value_size, 0, rows.value_size};
    const char *key = NULL, *query = NULL, *value = NULL;
    char *output = NULL;
    if (plain) {
        key = open(dr_write_source(rows), key_head, 0), query = open(dr_query_source(rows), key_head, 0);
        value = open(dr_source_of(rows.input[DR_INPUT_VALUE]), place.head, place.columns);
        output = open(outputs, place.head, place.columns);
    }
    dr_group_turn at = {0, 1};
    int done = 0; /* chunks whose outputs have left */
    for (int chunk = 0; done < chunks; chunk++) {
        if (chunk < chunks) {
            dr_gate_wait(dr_group_free(call.scan, base, at.stage), at.turn);
            const int there = tokens - chunk * 64;
            const unsigned stage = base + (unsigned)(at.stage * room.bytes) + mine;
            if (plain) {
                dr_linear_fill<boxes>(key, call.writes, stage + (unsigned)room.exit, there);
                dr_linear_fill<boxes>(query, call.asks, stage + (unsigned)room.query, there);
                dr_linear_fill<groups>(value, call.values, stage + (unsigned)room.value, there);
            } else {
                const dr_chunk_place now = {place.sequence, first + chunk * 64, there < 64 ? there : 64};
                dr_linear_load<T, boxes>(call.scan, place, busy, now, shared + at.stage * room.bytes);
            }
            dr_linear_tell(dr_group_filled(call.scan, base, at.stage), plain || rows.aligned);
            dr_group_next(at, call.scan.stages);
        }
        if (chunk < call.scan.stages) continue;
        const int there = tokens - done * 64;
        dr_gate_wait(gates + DR_LINEAR_LAID, (unsigned)done % 2);
        if (plain)
            dr_linear_drain<groups>(output, call.puts, shared + call.output + mine, there);
        else
            dr_linear_store<T>(scan, place, busy, first + done * 64, there < 64 ? there : 64, shared + call.output);
        dr_gate_arrive(gates + DR_LINEAR_TAKEN);
        done++;
    }
}

/* ---- making -------------------------------------------------------------------------------------------------------------- */

/* What the decay and the gain of two rows are made of: asked for a chunk ahead. */
typedef struct {
    float log_decay;
    dr_map_gain_inputs gain;
} dr_linear_asked;

static __device__ inline dr_linear_asked dr_linear_ask(const dr_cuda_rows &rows, const dr_prepare_block &x, int decaying,
                                                       int gained) {
    const bool decays = rows.scalar_decay && decaying < x.alive;
    dr_linear_asked row;
    row.log_decay = decays ? dr_chunk_scalar(rows, DR_INPUT_LOG_DECAY, x, decaying, 0, x.head) : 0.0f;
    row.gain = dr_prepare_gain_inputs<DR_PREPARE_LINEAR>(rows, x, gained);
    return row;
}

/* Gain and value of row i's factors. */
static __device__ inline dr_row_factors dr_linear_factors(const dr_cuda_rows &rows, const dr_prepare_block &x, int i,
                                                          const dr_map_gain_inputs &inputs) {
    return dr_prepare_factors<DR_PREPARE_LINEAR>(rows, x, i, dr_prepare_gain<DR_PREPARE_LINEAR>(rows, x, i, inputs, 0));
}

/* Decays and factors of a chunk's rows: to shared memory, and of pairs of rows, the thread's. barrier: of the four warps that
 * make a chunk. */
static __device__ inline dr_prepare_near dr_linear_decay(const dr_cuda_rows &rows, const dr_prepare_block &x,
                                                         const dr_linear_asked &row, dr_linear_small &small, unsigned barrier) {
    const int i = (int)dr_forget(threadIdx.x) % 128;
    const dr_prepare_half half = dr_prepare_halve(rows.scalar_decay ? expf(row.log_decay) : 1.0f);
    dr_prepare_spread<true>(rows, half, small);
    const dr_prepare_near near = dr_prepare_pairs(rows, half, false);
    __barrier_sync_count(barrier, 128);
    if (i < 64) {
        dr_row_factors factors = dr_linear_factors(rows, x, i, row.gain);
        small.leave[i] = dr_prepare_span<true>(rows, small, i, x.alive, factors);
        small.value[i] = factors.value, small.query[i] = factors.query;
    }
    return near;
}

/* What a backward wants of the chunk beside states: factors are those of prepare. */
template <typename T>
static __device__ inline void dr_linear_keep(const dr_scan_call &call, int64_t block, const dr_linear_small &small,
                                             const char *stage) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_chunk_tensors &tensors = call.tensors;
    const int thread = (int)(dr_forget(threadIdx.x) % 128), row = thread / 2, first = thread % 2 * 32;
    if (thread < 64) dr_put_factors(tensors.factors[block], thread, {0, 0, small.value[thread], small.query[thread]});
    dr_prepare_put_written<T>(plan, small.leave, stage + call.room.exit, (T *)tensors.exit + block * 64 * plan.key_width);
    T *score = (T *)tensors.score + (block * 64 + row) * 64;
#pragma unroll
    for (int i = first; i < first + 32; i += 8)
        *(uint4 *)(score + i) = *(const uint4 *)(stage + call.room.score + dr_tile_at<T>(0, 64, row, i));
}

/* Asks for the scores of a chunk, not yet masked. */
template <typename T, int boxes>
static __device__ inline void dr_linear_multiply(const dr_scan_room &room, unsigned stage, float (&p)[8][4]) {
    const uint64_t a = dr_group_operand(stage + (unsigned)room.query, 16),
                   b = dr_group_operand(stage + (unsigned)room.exit, 16);
    dr_group_begin();
    DR_UNROLL (k, boxes * 4) {
        const unsigned on = (unsigned)(k / 4 * DR_LINEAR_TILE + k % 4 * 32);
        dr_group_multiply_tiles<false, true>(T(), p, dr_group_forward(a, on), dr_group_forward(b, on), k > 0);
    }
    dr_group_commit();
}

/* Every makers-th chunk from chunk maker of the part on. Decays of a chunk are made while the products of the one before are
 * under way, and their inputs asked for another one before that: behind the fence, which would wait for them. */
template <typename T, int boxes, int makers>
static __device__ inline void dr_linear_makes(const dr_linear_call &linear_call, char *shared, const dr_scan_place &place,
                                              int maker) {
    const dr_group_scan_call &group_call = linear_call.scan;
    const dr_scan_call &call = group_call.call;
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const unsigned gates = dr_shared_address(shared), made = gates + (unsigned)dr_group_scan_bytes(group_call);
    dr_linear_small *small = (dr_linear_small *)(shared + linear_call.small) + maker * DR_LINEAR_TURNS;
    dr_prepare_block next = {(place.slot + place.begin + maker) * plan.value_heads + place.head,
                             dr_chunk_of(plan, call.tensors.cu, place.sequence, place.begin + maker),
                             place.head,
                             place.head / rows.group,
                             0,
                             0,
                             boxes,
                             0,
                             0};
    int left = (int)(dr_sequence_begin(plan, call.tensors.cu, place.sequence + 1) - next.place.first); /* from there on */
    next.alive = next.place.tokens;
    const bool keeps = place.columns == 0 && call.tensors.exit;
    int64_t block = next.block;
    const auto ask = [&] {
        const int thread = (int)dr_forget(threadIdx.x) % 128;
        return dr_linear_ask(rows, next, thread / 32 * 16 + thread % 16, thread < 64 ? thread : 64);
    };
    const auto go_on = [&] {
        next.place.first += makers * 64, left -= makers * 64;
        next.alive = left < 64 ? left < 0 ? 0 : left : 64;
    };
    int turn = 0;
    dr_prepare_near near = dr_linear_decay(rows, next, ask(), small[turn], 1 + maker);
    go_on();
    dr_linear_asked asked = ask();
    dr_group_turn at = {0, 0};
    for (int i = 0; i < maker; i++) dr_group_next(at, group_call.stages);
    for (int chunk = place.begin + maker; chunk < place.end; chunk += makers) {
        char *stage = shared + at.stage * call.room.bytes;
        const int behind = turn == DR_LINEAR_TURNS - 1 ? 0 : turn + 1;
        float p[8][4];
        dr_gate_wait(dr_group_filled(group_call, gates, at.stage), at.turn);
        dr_shared_fence();
        dr_linear_multiply<T, boxes>(call.room, gates + (unsigned)(at.stage * call.room.bytes), p);
        const dr_prepare_near ahead = dr_linear_decay(rows, next, asked, small[behind], 1 + maker);
        go_on();
        asked = ask();
        const int thread = (int)dr_forget(threadIdx.x) % 128;
        dr_linear_scales &scales = *(dr_linear_scales *)(stage + call.room.factors);
        if (thread < 64) {
            const float value = small[turn].value[thread];
            float *pair = &scales.pair[thread / 2].x + thread % 2;
            pair[0] = value * small[turn].leave[thread], pair[2] = value;
            scales.query[thread] = small[turn].query[thread];
        }
        const float4 total = *(const float4 *)small[turn].total;
        const float kept = total.x * total.y * total.z * total.w;
        if (thread == 0) scales.keep = kept;
        if (keeps)
            for (int k = thread; k < boxes * 64; k += 128) call.tensors.keep[block * (boxes * 64) + k] = kept;
        dr_group_wait<0>();
        dr_prepare_mask_queries(rows, small[turn], near, p);
        dr_group_lay_rows<T>(stage + call.room.score, p);
        dr_shared_fence();
        if (keeps) {
            __barrier_sync_count(1 + maker, 128);
            dr_linear_keep<T>(call, block, small[turn], stage);
        }
        dr_gate_arrive(made + (unsigned)at.stage * 8);
        DR_UNROLL (i, makers) dr_group_next(at, group_call.stages);
        block += makers * plan.value_heads;
        near = ahead;
        turn = behind;
    }
}

/* ---- computing ----------------------------------------------------------------------------------------------------------- */

/* Z^T and the same decayed to the end of the chunk as operands A, the warp's columns of the tile of values; gate: the tile of
 * write gates. */
template <typename T, bool gated>
static __device__ inline void dr_linear_values(const dr_linear_scales &scales, unsigned value, unsigned gate,
                                               unsigned (&y)[4][4], unsigned (&left)[4][4]) {
    const unsigned lane = dr_lane_along<T>();
    const int mine = dr_scan_warp() * 16;
    const float4 *pairs = scales.pair + threadIdx.x % 4;
    DR_UNROLL (n, 4) { /* two rows of each half of 16, and columns g and g + 8 */
        unsigned v[4], w[4];
        dr_load_matrices_transposed(v, dr_lane_at<T>(value + lane, 64, n * 16, mine));
        if (gated) dr_load_matrices_transposed(w, dr_lane_at<T>(gate + lane, 64, n * 16, mine));
        DR_UNROLL (i, 4) {
            const float4 scale = pairs[n * 8 + i / 2 * 4];
            float2 z = dr_unpack(T(), v[i]);
            if (gated) {
                const float2 open = dr_unpack(T(), w[i]);
                z.x *= open.x, z.y *= open.y;
            }
            left[n][i] = dr_pack(T(), z.x * scale.x, z.y * scale.y);
            y[n][i] = dr_pack(T(), z.x * scale.z, z.y * scale.w);
        }
    }
}

template <typename T, int boxes>
static __device__ inline void dr_linear_compute(const dr_linear_call &linear_call, char *shared, int group, unsigned columns,
                                                unsigned rest) {
    constexpr int tiles = boxes * 8, steps = tiles / 2;
    const dr_group_scan_call &group_call = linear_call.scan;
    const dr_scan_call &call = group_call.call;
    const dr_cuda_chunk_plan &plan = call.plan;
    const bool gated = plan.rows.input[DR_INPUT_WRITE_GATE].at != NULL;
    const unsigned base = dr_shared_address(shared), gates = base + (unsigned)dr_group_scan_bytes(group_call);
    const unsigned output = base + (unsigned)(linear_call.output + group * DR_LINEAR_TILE);
    const dr_scan_place place = dr_scan_find(call, columns, rest);
    const dr_scan_block x = {call, shared, call.room, place.head, place.head / plan.rows.group, place.columns, false};
    float s[tiles][4] = {};
    dr_scan_begin<tiles>(x, place, s);
    dr_group_turn at = {0, 0};
    int64_t block = (place.slot + place.begin) * plan.value_heads + place.head;
    unsigned taken = 1; /* the turn of what was laid before */
    for (int left = place.end - place.begin; left > 0; left--) {
        const dr_linear_scales &scales = *(const dr_linear_scales *)(shared + at.stage * call.room.bytes + call.room.factors);
        const unsigned tile = base + (unsigned)(at.stage * call.room.bytes);
        const unsigned value = tile + (unsigned)(call.room.value + group * DR_LINEAR_TILE);
        const unsigned gate = tile + (unsigned)(group_call.gate + group * DR_LINEAR_TILE);
        unsigned a[steps][4], y[4][4], leaves[4][4];
        float o[8][4];
        dr_gate_wait(gates + (unsigned)at.stage * 8, at.turn);
        dr_shared_fence();
        dr_group_state<T, tiles>(s, a);
        const float kept = scales.keep;
        DR_UNROLL (i, tiles * 4) s[i / 4][i % 4] *= kept;
        dr_group_begin();
        dr_group_chain<T, true>(o, a, tile + (unsigned)call.room.query, DR_LINEAR_TILE, false);
        dr_group_commit();
        if (call.saved) dr_group_save<T, steps>(call, place, block, a);
        if (gated)
            dr_linear_values<T, true>(scales, value, gate, y, leaves);
        else
            dr_linear_values<T, false>(scales, value, 0, y, leaves);
        dr_group_begin();
        dr_group_chain<T, false>(s, leaves, tile + (unsigned)call.room.exit, DR_LINEAR_TILE, true);
        dr_group_commit();
        dr_group_wait<1>();
        dr_scale_columns(o, scales.query);
        dr_group_begin();
        dr_group_chain<T, true>(o, y, tile + (unsigned)call.room.score, 0, true);
        dr_group_commit();
        dr_group_wait<0>();
        dr_gate_arrive(dr_group_free(group_call, base, at.stage));
        dr_gate_wait(gates + DR_LINEAR_TAKEN, taken);
        dr_group_lay_output<T, 8>(output, o);
        dr_gate_arrive(gates + DR_LINEAR_LAID);
        taken ^= 1;
        dr_group_next(at, group_call.stages);
        block += plan.value_heads;
    }
    /* found once more rather than kept in registers */
    dr_scan_end<tiles>(x, dr_scan_find(call, dr_forget(columns), dr_forget(rest)), s);
}

#endif

template <typename T, int boxes, int groups, bool plain>
static __global__ void __launch_bounds__(DR_LINEAR_THREADS, 1) scan_linear(const __grid_constant__ dr_linear_call call) {
#ifdef DR_CUDA_WARPGROUPS
    extern __shared__ __align__(1024) char shared[];
    constexpr int makers = 3 - groups;
    const dr_scan_call &scan = call.scan.call;
    const unsigned all = (unsigned)dr_scan_groups(scan), blocks = (all + groups - 1) / groups;
    const unsigned first = blockIdx.x % blocks * groups, rest = blockIdx.x / blocks;
    const int busy = all - first < groups ? 1 : groups, role = (int)threadIdx.x / 128;
    if (dr_scan_idle(scan, dr_scan_find(scan, first, rest))) return;
    const unsigned gates = dr_shared_address(shared) + (unsigned)dr_group_scan_bytes(call.scan);
    if (threadIdx.x == 0) {
        for (int i = 0; i < call.scan.stages; i++) dr_gate_open(gates + 8 * i, 128);
        dr_gate_open(gates + DR_LINEAR_LAID, 128 * busy), dr_gate_open(gates + DR_LINEAR_TAKEN, 128);
    }
    dr_group_open(call.scan, dr_shared_address(shared), busy);
    /* found again where there are few registers, rather than kept from before */
    const auto find = [&] { return dr_scan_find(scan, dr_forget(first), dr_forget(rest)); };
    if (role == 0) {
        dr_registers_give<groups == 1 ? 56 : 32>();
        dr_linear_copy<T, boxes, groups, plain>(call, shared, find(), busy);
    } else if (role <= makers) {
        dr_registers_give<groups == 1 ? 112 : 96>();
        dr_linear_makes<T, boxes, makers>(call, shared, find(), role - 1);
    } else {
        dr_registers_take<groups == 1 ? 216 : 192>();
        const int g = role - makers - 1;
        if (g < busy) dr_linear_compute<T, boxes>(call, shared, g, first + (unsigned)g, rest);
    }
#endif
}

#endif
