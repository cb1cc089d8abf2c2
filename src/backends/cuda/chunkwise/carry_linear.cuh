/* The state without its outputs, chunk after chunk, for rules whose rows read nothing, with one decay a head or none; and the
 * mirror image of it, the gradient of the state (back):
 *
 *     forward    S := D S + W^T (Z decayed to the end of the chunk)            first chunk first
 *     back       dS := D dS + (Q decayed from its start, times scale)^T dO     last chunk first
 *
 * It is the first pass over the parts of a cut sequence, both ways; and the reverse scan of those rules (keeps), which stores
 * the gradient after each chunk. It loads half of what the scan does and has one product a chunk, so that a thread block waits
 * for memory alone:
 *
 *     four warps          copy keys and values (queries and dO), as far ahead as there are stages
 *     4 or 8 warps        hold 64 columns of V a group, S^T [64 x K] in registers, as in scan_warpgroups.cuh
 *     four warps          in turn make what the values of a chunk's rows are multiplied by, and D
 *
 * The first pass takes only as many chunks of a part, those that come last, as leave more than 2^-20 of what was before
 * (dr_carry_trim): most often two. join_linear makes the states between parts. */
#ifndef DR_CUDA_CARRY_LINEAR_CUH
#define DR_CUDA_CARRY_LINEAR_CUH

#include "backends/cuda/chunkwise/scan_linear.cuh"
#include "backends/cuda/device/launch.cuh"

enum {
    DR_CARRY_MOST_STAGES = 6,
    DR_CARRY_DECAY_THREADS = 128,
    DR_CARRY_TRIMS = 32 /* chunks, at most, of a part cut short */,
    DR_JOIN_THREADS = 256,
    DR_JOIN_AHEAD = 8
};

/* Of a chunk. */
typedef struct __align__(16) {
    float row[64]; /* what the row's value, or dO, is multiplied by: read in pairs */
    float keep;    /* D */
}
dr_carry_decays;

/* scan: back with d_final as the initial state, d_initial as the final one, dO as o and, where they are kept, dS' as the saved
 * states. Parts have slots as in chunkwise.h. */
typedef struct {
    dr_scan_call scan;
    float *local;   /* [part slots][HV][Vp][Kp] what comes of a part that begins at zero; at the edge: at what is given */
    float *between; /* likewise: what a part begins with */
    float *passage; /* [part slots][HV] the decay of a part */
    int value, gate, bytes;     /* places in a stage, and its size */
    int stages, decays, filled; /* behind the stages: two barriers and the decays of each, and products of decays by warp */
} dr_carry_call;

static inline dr_carry_call dr_carry_lay(const dr_scan_call &scan, float *local, float *between, float *passage, int groups,
                                         bool gated) {
    const int tile = groups * 64 * 64 * 2, beside = (int)sizeof(dr_carry_decays) + 2 * (int)sizeof(uint64_t);
    dr_carry_call call = {scan, local, between, passage, 64 * scan.plan.key_width * 2, 0, 0, 0, 0, 0};
    call.gate = call.value + tile;
    call.bytes = call.gate + (gated ? tile : 0);
    call.stages = (DR_BLOCK_SHARED - 1024) / (call.bytes + beside);
    if (call.stages > DR_CARRY_MOST_STAGES) call.stages = DR_CARRY_MOST_STAGES;
    call.filled = call.stages * call.bytes;
    call.decays = call.filled + call.stages * 2 * (int)sizeof(uint64_t);
    return call;
}

/* Whether there is nothing to do: no such part, or none that wants to know what comes of it. */
template <bool back, bool keeps>
static __device__ inline bool dr_carry_idle(const dr_carry_call &call, const dr_scan_place &place) {
    return place.part >= place.parts || (!keeps && place.part == (back ? 0 : place.parts - 1));
}

#ifdef DR_CUDA_WARPGROUPS

/* Columns column .. of an input of that size, one head, that fill a tile: all rows, or those of the last chunk and of vectors
 * at odd places. */
template <typename T, int boxes>
static __device__ inline void dr_carry_load(dr_group_stream &stream, const dr_cuda_rows &rows, const dr_source &source,
                                            const dr_chunk_place &place, int head, int column, int size, unsigned to,
                                            char *tile) {
    if (stream.at && place.tokens == 64) {
        dr_group_fill<boxes>(stream, to, 64);
        return;
    }
    if (stream.at) stream.at += 4 * (int64_t)stream.step + stream.skip;
    dr_load_tokens<T>(tile, source, place, head, column, size, boxes, rows.aligned);
}

static __device__ inline unsigned dr_carry_filled(const dr_carry_call &call, unsigned shared, int stage) {
    return shared + (unsigned)(call.filled + stage * 16);
}

static __device__ inline unsigned dr_carry_free(const dr_carry_call &call, unsigned shared, int stage) {
    return dr_carry_filled(call, shared, stage) + 8;
}

/* The chunk that comes first. */
template <bool back>
static __device__ inline dr_chunk_place dr_carry_first(const dr_carry_call &call, const dr_scan_place &place) {
    return dr_chunk_of(call.scan.plan, call.scan.tensors.cu, place.sequence, back ? place.end - 1 : place.begin);
}

/* Leaves of a part's chunks those that come last, until the product of their decays is at most plan.forgotten: then it
 * is as if they began at zero. By all threads of a block; sums: of log decays, by chunk. */
template <bool back>
static __device__ inline void dr_carry_trim(const dr_carry_call &call, float (&sums)[DR_CARRY_TRIMS], dr_scan_place &place) {
    const dr_cuda_chunk_plan &plan = call.scan.plan;
    const int warp = (int)(threadIdx.x / 32), lane = (int)(threadIdx.x % 32), warps = (int)(blockDim.x / 32);
    const int chunks = place.end - place.begin, most = chunks < DR_CARRY_TRIMS ? chunks : DR_CARRY_TRIMS;
    if (!plan.rows.scalar_decay || !plan.forgets || chunks < 2) return;
    for (int i = warp; i < most; i += warps) {
        const int chunk = back ? place.begin + i : place.end - 1 - i;
        const dr_chunk_place at = dr_chunk_of(plan, call.scan.tensors.cu, place.sequence, chunk);
        float sum = 0;
        for (int row = lane; row < at.tokens; row += 32)
            sum += dr_input_scalar(plan.rows, DR_INPUT_LOG_DECAY, at.first + row, 0, place.head);
        sum = dr_warp_sum(sum);
        if (lane == 0) sums[i] = sum;
    }
    __syncthreads();
    float sum = 0;
    int taken = 0;
    while (taken < most && !(sum <= plan.forgotten)) sum += sums[taken++];
    if (!(sum <= plan.forgotten)) return;
    if (back)
        place.end = place.begin + taken;
    else
        place.begin = place.end - taken;
}

/* Tokens of the chunk that begins there, which may be behind the end. */
static __device__ inline int dr_carry_tokens(const dr_carry_call &call, const dr_scan_place &place, int64_t first) {
    const int64_t left = dr_sequence_begin(call.scan.plan, call.scan.tensors.cu, place.sequence + 1) - first;
    return left < call.scan.plan.chunk ? left < 0 ? 0 : (int)left : call.scan.plan.chunk;
}

/* ---- copying ------------------------------------------------------------------------------------------------------------- */

/* groups: of 64 columns of V, from place.columns on. */
template <typename T, int boxes, bool back>
static __device__ inline void dr_carry_copy(const dr_carry_call &call, char *shared, const dr_scan_place &place, int groups) {
    const dr_cuda_chunk_plan &plan = call.scan.plan;
    const dr_cuda_rows &rows = plan.rows;
    const bool gated = !back && rows.input[DR_INPUT_WRITE_GATE].at;
    const int thread = (int)threadIdx.x, key_head = place.head / rows.group, step = back ? -1 : 1;
    const unsigned base = dr_shared_address(shared);
    const unsigned mine = (unsigned)(thread / 8 * 128 + ((thread % 8 ^ thread / 8 % 8) << 4));
    const dr_source key = back ? dr_query_source(rows) : dr_write_source(rows),
                    gate = dr_source_of(rows.input[DR_INPUT_WRITE_GATE]),
                    d_o = {call.scan.o, (int64_t)rows.value_heads * rows.value_size, 0, rows.value_size},
                    value = back ? d_o : dr_source_of(rows.input[DR_INPUT_VALUE]);
    dr_chunk_place now = dr_carry_first<back>(call, place);
    dr_group_stream keys = dr_group_open_input<T>(plan, key, now.first, key_head, 0, 64, rows.key_size == boxes * 64, step);
    dr_group_stream values[2], gates[2];
    DR_UNROLL (g, 2) {
        const int column = place.columns + g * 64;
        const bool whole = g < groups && column + 64 <= rows.value_size;
        values[g] = dr_group_open_input<T>(plan, value, now.first, place.head, column, 64, whole, step);
        gates[g] = dr_group_open_input<T>(plan, gate, now.first, place.head, column, 64, whole && gated, step);
    }
    dr_group_turn at = {0, 1};
    for (int left = place.end - place.begin; left > 0; left--) {
        dr_gate_wait(dr_carry_free(call, base, at.stage), at.turn);
        const int stage = at.stage * call.bytes;
        dr_carry_load<T, boxes>(keys, rows, key, now, key_head, 0, rows.key_size, base + (unsigned)stage + mine,
                                shared + stage);
        DR_UNROLL (g, 2) {
            if (g >= groups) continue;
            const int column = place.columns + g * 64, to = stage + call.value + g * 64 * 64 * 2;
            dr_carry_load<T, 1>(values[g], rows, value, now, place.head, column, rows.value_size, base + (unsigned)to + mine,
                                shared + to);
            if (gated)
                dr_carry_load<T, 1>(gates[g], rows, gate, now, place.head, column, rows.value_size,
                                    base + (unsigned)(to - call.value + call.gate) + mine,
                                    shared + (to - call.value + call.gate));
        }
        dr_linear_tell(dr_carry_filled(call, base, at.stage), rows.aligned);
        dr_group_next(at, call.stages);
        now.first += step * plan.chunk;
        now.tokens = back ? plan.chunk : dr_carry_tokens(call, place, now.first);
    }
}

/* ---- decays -------------------------------------------------------------------------------------------------------------- */

/* Every fourth chunk by a warp, two rows a lane. */
template <bool back, bool keeps>
static __device__ inline void dr_carry_decay(const dr_carry_call &call, char *shared, const dr_scan_place &place) {
    const dr_cuda_rows &rows = call.scan.plan.rows;
    const unsigned base = dr_shared_address(shared);
    const int lane = (int)(threadIdx.x % 32), warp = (int)(threadIdx.x / 32 % 4), chunk = call.scan.plan.chunk;
    const int step = back ? -chunk : chunk;
    int left = place.end - place.begin - warp; /* from the warp's chunk on */
    dr_prepare_block next = {0, dr_carry_first<back>(call, place), place.head, place.head / rows.group, 0, 0, 0, 0, 0};
    dr_linear_asked asked[2];
    const auto ask = [&](int chunks) { /* of the chunk so many further on */
                                       next.place.first += chunks * step;
                                       if (!back || chunks > 0)
                                           next.place.tokens = back ? chunk : dr_carry_tokens(call, place, next.place.first);
                                       next.alive = next.place.tokens;
                                       DR_UNROLL (e, 2) asked[e] = dr_linear_ask(rows, next, 2 * lane + e, 2 * lane + e);
    };
    if (left > 0) ask(warp);
    float passage = 1;
    dr_group_turn at = {0, 1};
    for (int i = 0; i < warp; i++) dr_group_next(at, call.stages);
    for (; left > 0; left -= 4) {
        const dr_prepare_block x = next;
        float alpha[2], factor[2];
        DR_UNROLL (e, 2) {
            const int i = 2 * lane + e;
            alpha[e] = rows.scalar_decay ? expf(asked[e].log_decay) : 1.0f;
            factor[e] = back ? i < x.alive ? rows.scale : 0.0f : dr_linear_factors(rows, x, i, asked[e].gain).value;
        }
        if (left > 4) ask(4);
        float product = alpha[0] * alpha[1]; /* of the rows up to the lane's, or from them on */
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const float other =
                back ? __shfl_up_sync(0xffffffffu, product, distance) : __shfl_down_sync(0xffffffffu, product, distance);
            product *= (back ? lane >= distance : lane + distance < 32) ? other : 1.0f;
        }
        const float keep = __shfl_sync(0xffffffffu, product, back ? 31 : 0);
        float beside = back ? __shfl_up_sync(0xffffffffu, product, 1) : __shfl_down_sync(0xffffffffu, product, 1);
        if (lane == (back ? 0 : 31)) beside = 1;
        dr_gate_wait(dr_carry_free(call, base, at.stage), at.turn);
        dr_carry_decays &to = ((dr_carry_decays *)(shared + call.decays))[at.stage];
        *(float2 *)&to.row[2 * lane] = back ? make_float2(factor[0] * (beside * alpha[0]), factor[1] * product)
                                            : make_float2(factor[0] * (alpha[1] * beside), factor[1] * beside);
        if (lane == 0) to.keep = keep;
        dr_gate_arrive(dr_carry_filled(call, base, at.stage));
        for (int i = 0; i < 4; i++) dr_group_next(at, call.stages);
        passage *= keep;
    }
    if (keeps) return;
    float *passages = (float *)(shared + call.decays + call.stages * (int)sizeof(dr_carry_decays));
    if (lane == 0) passages[warp] = passage;
    __barrier_sync_count(1, DR_CARRY_DECAY_THREADS);
    if (lane + warp == 0 && place.columns == 0)
        call.passage[place.place] = passages[0] * passages[1] * passages[2] * passages[3];
}

/* ---- computing ----------------------------------------------------------------------------------------------------------- */

/* The values times what the decays say, as operands A. gate: the tile of write gates. */
template <typename T, bool gated>
static __device__ inline void dr_carry_values(const dr_carry_decays &decays, unsigned value, unsigned gate,
                                              unsigned (&z)[4][4]) {
    const float *row = decays.row + threadIdx.x % 4 * 2;
    unsigned w[4][4];
    dr_group_values<T>(false, 0xffffffffu, value, z);
    if (gated) dr_group_values<T>(false, 0xffffffffu, gate, w);
    DR_UNROLL (n, 8) { /* two rows, and columns g and g + 8 */
        const float2 f = *(const float2 *)&row[n * 8];
        DR_UNROLL (i, 2) {
            unsigned &pair = z[n / 2][n % 2 * 2 + i];
            float2 x = dr_unpack(T(), pair);
            if (gated) {
                const float2 open = dr_unpack(T(), w[n / 2][n % 2 * 2 + i]);
                x.x *= open.x, x.y *= open.y;
            }
            pair = dr_pack(T(), x.x * f.x, x.y * f.y);
        }
    }
}

template <typename T, int boxes, bool back, bool keeps>
static __device__ inline void dr_carry_compute(const dr_carry_call &call, char *shared, int group, unsigned columns,
                                               unsigned rest, int chunks) {
    constexpr int tiles = boxes * 8, steps = tiles / 2;
    const dr_scan_call &scan = call.scan;
    const bool gated = !back && scan.plan.rows.input[DR_INPUT_WRITE_GATE].at;
    const unsigned base = dr_shared_address(shared);
    const dr_scan_place place = dr_scan_find(scan, columns, rest);
    const dr_scan_block x = {scan, shared, scan.room, place.head, place.head / scan.plan.rows.group, place.columns, false};
    float s[tiles][4] = {};
    dr_scan_enter<tiles>(x, place, place.part == (back ? place.parts - 1 : 0), !keeps, scan.initial, call.between, s);
    if (!keeps && chunks < place.end - place.begin) {
        DR_UNROLL (i, tiles * 4) s[i / 4][i % 4] = 0;
    }
    int64_t block = (place.slot + (back ? place.end - 1 : place.begin)) * scan.plan.value_heads + place.head;
    dr_group_turn at = {0, 0};
    for (int left = chunks; left > 0; left--) {
        const unsigned key = base + (unsigned)(at.stage * call.bytes),
                       value = key + (unsigned)(call.value + group * 64 * 64 * 2);
        const dr_carry_decays &decays = ((const dr_carry_decays *)(shared + call.decays))[at.stage];
        unsigned z[4][4];
        dr_gate_wait(dr_carry_filled(call, base, at.stage), at.turn);
        dr_shared_fence();
        if (gated)
            dr_carry_values<T, true>(decays, value, value - (unsigned)(call.value - call.gate), z);
        else
            dr_carry_values<T, false>(decays, value, 0, z);
        const float keep = decays.keep;
        unsigned a[steps][4];
        if (keeps) dr_group_state<T, tiles>(s, a);
        DR_UNROLL (i, tiles * 4) s[i / 4][i % 4] *= keep;
        dr_group_begin();
        dr_group_chain<T, false>(s, z, key, 8192, true);
        dr_group_commit();
        if (keeps) dr_group_save<T, steps>(scan, place, block, a);
        dr_group_wait<0>();
        dr_gate_arrive(dr_carry_free(call, base, at.stage));
        dr_group_next(at, call.stages);
        block += back ? -scan.plan.value_heads : scan.plan.value_heads;
    }
    /* found once more rather than kept in registers */
    const dr_scan_place again = dr_scan_find(scan, dr_forget(columns), dr_forget(rest));
    if (!keeps) {
        dr_scan_pass<tiles, true>(x, s, call.local + again.place * scan.plan.value_width * scan.plan.key_width);
    } else if (scan.final && again.part == (back ? 0 : again.parts - 1)) {
        float *final = scan.final + again.chain * scan.plan.rows.key_size * scan.plan.rows.value_size;
        dr_scan_each<tiles>(x, s, [&](float &element, int64_t place_of) { final[place_of] = element; });
    }
}

#endif

template <typename T, int boxes, int groups, bool back, bool keeps>
static __global__ void __launch_bounds__(128 + 128 * groups + DR_CARRY_DECAY_THREADS, 1)
    carry_linear(const __grid_constant__ dr_carry_call call) {
#ifdef DR_CUDA_WARPGROUPS
    extern __shared__ __align__(1024) char shared[];
    const unsigned all = (unsigned)call.scan.plan.value_width / 64, blocks = (all + groups - 1) / groups;
    const unsigned first = blockIdx.x % blocks * groups, rest = blockIdx.x / blocks;
    const int busy = all - first < groups ? 1 : groups, role = (int)threadIdx.x / 128;
    dr_scan_place place = dr_scan_find(call.scan, first, rest);
    if (dr_carry_idle<back, keeps>(call, place)) return;
    __shared__ float sums[DR_CARRY_TRIMS];
    if constexpr (!keeps) dr_carry_trim<back>(call, sums, place);
    if (threadIdx.x == 0) {
        for (int i = 0; i < call.stages; i++) {
            dr_gate_open(dr_carry_filled(call, dr_shared_address(shared), i), 128 + 32);
            dr_gate_open(dr_carry_free(call, dr_shared_address(shared), i), 128 * busy);
        }
    }
    __syncthreads();
    if (role == 0)
        dr_carry_copy<T, boxes, back>(call, shared, place, busy);
    else if (role > groups)
        dr_carry_decay<back, keeps>(call, shared, place);
    else if (role - 1 < busy)
        dr_carry_compute<T, boxes, back, keeps>(call, shared, role - 1, first + (unsigned)role - 1, rest,
                                                place.end - place.begin);
#endif
}

/* ---- between parts ------------------------------------------------------------------------------------------------------- */

/* What a part begins with, in float32, part after part: between(p + 1) = passage(p) between(p) + local(p), where local of the
 * part at the edge has all of it; back likewise, from the last part on. A thread four elements, some parts' loads at once. */
template <bool back>
static __global__ void __launch_bounds__(DR_JOIN_THREADS) join_linear(const __grid_constant__ dr_carry_call call) {
    const dr_cuda_chunk_plan &plan = call.scan.plan;
    const int64_t *cu = call.scan.tensors.cu;
    const int size = plan.value_width * plan.key_width, blocks = size / (4 * DR_JOIN_THREADS);
    const int64_t chain = blockIdx.x / blocks, sequence = chain / plan.value_heads;
    const int64_t at = blockIdx.x % blocks * 4 * DR_JOIN_THREADS + threadIdx.x * 4;
    const int64_t first =
        dr_sequence_slot(plan, cu, sequence) / DR_CUDA_PART_CHUNKS * plan.value_heads + chain % plan.value_heads;
    int32_t length;
    const int parts = dr_sequence_parts(plan, cu, sequence, &length);
    const auto place_of = [=](int i) { return first + (int64_t)(back ? parts - 1 - i : i) * plan.value_heads; };
    float4 x = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int begin = 0; begin + 1 < parts; begin += DR_JOIN_AHEAD) {
        float4 local[DR_JOIN_AHEAD];
        float passage[DR_JOIN_AHEAD];
        DR_UNROLL (i, DR_JOIN_AHEAD)
            if (begin + i + 1 < parts) {
                local[i] = *(const float4 *)(call.local + place_of(begin + i) * size + at);
                passage[i] = begin + i ? call.passage[place_of(begin + i)] : 0;
            }
        DR_UNROLL (i, DR_JOIN_AHEAD)
            if (begin + i + 1 < parts) {
                x.x = fmaf(passage[i], x.x, local[i].x), x.y = fmaf(passage[i], x.y, local[i].y);
                x.z = fmaf(passage[i], x.z, local[i].z), x.w = fmaf(passage[i], x.w, local[i].w);
                *(float4 *)(call.between + place_of(begin + i + 1) * size + at) = x;
            }
    }
}

/* ---- launches ------------------------------------------------------------------------------------------------------------ */

template <typename T, int groups, bool back, bool keeps>
static dr_status dr_launch_carry_groups(const dr_scan_call &scan, float *local, float *between, float *passage,
                                        dr_cuda_stream stream) {
    const dr_cuda_chunk_plan *plan = &scan.plan;
    const bool gated = !back && plan->rows.input[DR_INPUT_WRITE_GATE].at != NULL;
    const dr_carry_call call = dr_carry_lay(scan, local, between, passage, groups, gated);
    const int columns = plan->value_width / DR_CUDA_COLUMNS;
    return dr_cuda_launch(
        "carry_linear",
        plan->key_width == 64 ? carry_linear<T, 1, groups, back, keeps> : carry_linear<T, 2, groups, back, keeps>,
        {dr_group_scan_chains(*plan), (columns + groups - 1) / groups}, 128 + 128 * groups + DR_CARRY_DECAY_THREADS,
        call.decays + call.stages * (int)sizeof(dr_carry_decays) + 4 * (int)sizeof(float), stream, call);
}

template <typename T, bool back, bool keeps>
static dr_status dr_launch_carry(const dr_scan_call &scan, float *local, float *between, float *passage,
                                 dr_cuda_stream stream) {
    if (dr_group_scan_groups(scan.plan) == 2)
        return dr_launch_carry_groups<T, 2, back, keeps>(scan, local, between, passage, stream);
    return dr_launch_carry_groups<T, 1, back, keeps>(scan, local, between, passage, stream);
}

/* What the parts of cut sequences begin with, to `between`. */
template <typename T, bool back>
static dr_status dr_launch_linear_parts(const dr_scan_call &scan, float *local, float *between, float *passage,
                                        dr_cuda_stream stream) {
    DR_TRY((dr_launch_carry<T, back, false>(scan, local, between, passage, stream)));
    const dr_carry_call call = {scan, local, between, passage, 0, 0, 0, 0, 0, 0};
    const int64_t size = (int64_t)scan.plan.value_width * scan.plan.key_width;
    return dr_cuda_launch("join_linear", join_linear<back>,
                          {scan.plan.sequences, scan.plan.value_heads, size / (4 * DR_JOIN_THREADS)}, DR_JOIN_THREADS, 0,
                          stream, call);
}

#endif
