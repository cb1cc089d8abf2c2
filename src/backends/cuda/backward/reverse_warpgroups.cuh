/* The reverse scan (reverse.cu) for sm_90a and 16-bit types, with the products of
 * scan_warpgroups.cuh, the copying warps and the barriers of scan_stages.cuh. In a chunk dS'^T X^T, dO^T P' and dO^T Q~ are
 * asked for at once; dY^T is taken from the first two while the third, which adds to dS^T, is under way. Where rows read key +
 * lambda query, the third waits for dY: it is Q^T (dO - lambda c dY), and keys take the place of R~. */
#ifndef DR_CUDA_REVERSE_WARPGROUPS_CUH
#define DR_CUDA_REVERSE_WARPGROUPS_CUH

#include "backends/cuda/backward/reverse.cuh"
#include "backends/cuda/chunkwise/scan_warpgroups.cuh"

/* scan.call is that of reverse_call. */
typedef struct {
    reverse_call call;
    dr_group_scan_call scan;
} group_reverse_call;

#ifdef DR_CUDA_WARPGROUPS

/* groups: that compute, of 64 columns of V from place.columns on. */
template <typename T, int boxes, int queries, int reading>
static __device__ inline void reverse_copy(const group_reverse_call &group_call, char *shared, const dr_scan_place &place,
                                           int groups) {
    constexpr bool wide = dr_scan_is_wide(boxes);
    const dr_group_scan_call &scan = group_call.scan;
    const dr_scan_call &call = scan.call;
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    shared = dr_group_forget(shared);
    const unsigned gates = dr_shared_address(shared);
    const int key_head = place.head / rows.group, columns[2] = {place.columns, groups > 1 ? place.columns + 64 : -1};
    const dr_source outputs = {call.o, (int64_t)rows.value_heads * rows.value_size, 0, rows.value_size};
    dr_chunk_place now = dr_chunk_of(plan, call.tensors.cu, place.sequence, place.end - 1);
    int64_t block = (place.slot + place.end - 1) * plan.value_heads + place.head;
    const int cut = now.tokens < plan.chunk; /* whole chunks begin with the one before */
    dr_group_tiles tiles =
        dr_group_open_tiles<T, boxes, queries, reading>(scan, place, key_head, block - cut * (int64_t)plan.value_heads,
                                                        now.first - cut * plan.chunk, columns, outputs, queries, 0, -1);
    dr_group_turn at = {0, 1}, told = {0, 0};
    unsigned turn = 1; /* of the one place for the rest of a chunk of wide keys */
    for (int left = place.end - place.begin; left > 0; left--) {
        dr_gate_wait(dr_group_free(scan, gates, at.stage), at.turn);
        const bool whole = tiles.whole && now.tokens == plan.chunk;
        const unsigned stage = gates + (unsigned)(at.stage * call.room.bytes);
        dr_scan_block x = {call, shared + at.stage * call.room.bytes, call.room, place.head, key_head, 0, false};
        if (whole) {
            dr_group_fill_tiles<boxes, queries, reading>(scan, tiles, stage);
        } else {
            dr_scan_load_exit<T, boxes * 64>(x, block);
            dr_scan_load_readers<T, boxes * 64>(x, now, block);
        }
        if constexpr (wide) {
            dr_group_tell_soon(scan, gates, at.stage, whole);
            dr_gate_wait(dr_group_free(scan, gates, scan.stages), turn);
            x.shared = shared, turn ^= 1;
        }
        if (whole) {
            dr_group_fill_rest<boxes, queries, reading, queries>(scan, tiles, wide ? gates : stage);
        } else {
            dr_scan_load_scores<T>(x, block);
#pragma unroll 1
            for (int g = 0; g < groups; g++) {
                x.columns = place.columns + g * 64;
                load_outputs<T>(x, now, call.room.value + g * 64 * 64 * 2);
            }
            dr_scan_load_factors(x, block);
            if (reading == DR_SCAN_SUMS) dr_group_load_lambda(scan, x.shared, now, place.head);
        }
        if constexpr (wide)
            dr_group_tell_soon(scan, gates, scan.stages, whole);
        else
            dr_copy_commit();
        if (!wide && scan.stages == 2)
            dr_group_tell<0>(scan, gates, told);
        else if (!wide && left < place.end - place.begin)
            dr_group_tell<1>(scan, gates, told);
        dr_group_next(at, scan.stages);
        now.first -= plan.chunk;
        now.tokens = plan.chunk;
        block -= plan.value_heads;
    }
    if (wide) dr_copy_commit(), dr_copy_wait<0>();
    if (!wide && scan.stages > 2 && place.end > place.begin) dr_group_tell<0>(scan, gates, told);
}

/* dO^T as operands A: as it is, and times the factors of Q~. tile: 64 columns of dO. */
template <typename T, int steps>
static __device__ inline void reverse_outputs(const dr_cuda_factors &factors, unsigned tile, int rows,
                                              unsigned (&plain)[steps][4], unsigned (&scaled)[steps][4]) {
    const int mine = dr_scan_warp() * 16;
    DR_UNROLL (k, steps) {
        float d_o[2][4];
        dr_operand_a<T> a;
        dr_load_transposed<T>(d_o, tile, rows, k * 16, mine);
        dr_operand_from<T>(a, d_o[0], d_o[1]);
        DR_UNROLL (i, 4) plain[k][i] = a.x[i];
        dr_scale_columns(d_o, factors.query, k * 2);
        dr_operand_from<T>(a, d_o[0], d_o[1]);
        DR_UNROLL (i, 4) scaled[k][i] = a.x[i];
    }
}

/* Minus the factors of R~, c among them. */
static __device__ inline void reverse_factors(const dr_cuda_factors &factors, float (&erase)[8][2]) {
    DR_UNROLL (n, 8) {
        const float2 pair = dr_column_pair(factors.erase, n);
        erase[n][0] = -pair.x, erase[n][1] = -pair.y;
    }
}

/* dY^T times these, as operands A; lost: what rounding takes from them. */
template <typename T, bool lost>
static __device__ inline void reverse_erasures(const float (&erase)[8][2], const float (&u)[8][4], unsigned (&y)[4][4]) {
    DR_UNROLL (n, 8)
        DR_UNROLL (i, 2) {
            const float left = erase[n][0] * u[n][2 * i], right = erase[n][1] * u[n][2 * i + 1];
            y[n / 2][n % 2 * 2 + i] =
                lost ? dr_pack(T(), reverse_lost<T>(left), reverse_lost<T>(right)) : dr_pack(T(), left, right);
        }
}

/* Where R~ = factor (key + lambda query): the same for the keys, and for the queries the factors of Q~ times dO^T and lambda
 * times that. plain: dO^T. */
template <typename T>
static __device__ inline void reverse_sums(const dr_cuda_factors &factors, const float *lambda, const unsigned (&plain)[4][4],
                                           const float (&u)[8][4], unsigned (&scaled)[4][4], unsigned (&y)[4][4]) {
    DR_UNROLL (n, 8) {
        const float2 erase = dr_column_pair(factors.erase, n), query = dr_column_pair(factors.query, n),
                     mix = dr_column_pair(lambda, n);
        DR_UNROLL (i, 2) {
            const float2 d_o = dr_unpack(T(), plain[n / 2][n % 2 * 2 + i]);
            const float left = -erase.x * u[n][2 * i], right = -erase.y * u[n][2 * i + 1];
            y[n / 2][n % 2 * 2 + i] = dr_pack(T(), left, right);
            scaled[n / 2][n % 2 * 2 + i] =
                dr_pack(T(), fmaf(mix.x, left, query.x * d_o.x), fmaf(mix.y, right, query.y * d_o.y));
        }
    }
}

/* dY^T to rows of [64][Vp], through the warp's columns of the tile of dO, which is read by then. */
template <typename T>
static __device__ inline void reverse_put(T *to, int width, unsigned tile, const char *shared, const float (&u)[8][4]) {
    const int lane = (int)(threadIdx.x % 32), mine = dr_scan_warp() * 16, row = lane / 2, column = mine + lane % 2 * 8;
    __syncwarp();
    DR_UNROLL_BY (n, 8, 2) {
        const unsigned x[4] = {dr_pack(T(), u[n][0], u[n][1]), dr_pack(T(), u[n][2], u[n][3]),
                               dr_pack(T(), u[n + 1][0], u[n + 1][1]), dr_pack(T(), u[n + 1][2], u[n + 1][3])};
        dr_store_matrices_transposed(dr_tile_at<T>(tile, 64, n * 8 + lane / 16 * 8 + lane % 8, mine + lane / 8 % 2 * 8), x);
    }
    __syncwarp();
    tile -= dr_shared_address(shared);
    to += row * width + column;
#pragma unroll
    for (int i = 0; i < 64; i += 16)
        *(uint4 *)(to + i * width) = *(const uint4 *)(shared + dr_tile_at<T>(tile, 64, row + i, column));
}

/* What rounding to T takes from a gradient that the call gives in float, as operands A. */
template <typename T, int tiles>
static __device__ inline void reverse_rest(const float (&s)[tiles][4], unsigned (&a)[tiles / 2][4]) {
    DR_UNROLL (k, tiles / 2) {
        float rest[2][4];
        DR_UNROLL (i, 8) rest[i / 4][i % 4] = reverse_lost<T>(s[2 * k + i / 4][i % 4]);
        dr_operand_a<T> operand;
        dr_operand_from<T>(operand, rest[0], rest[1]);
        DR_UNROLL (i, 4) a[k][i] = operand.x[i];
    }
}

/* dS'^T X^T, which is asked for: X in a tile at `exit`; a: dS'^T as operands; given: by the call, in float. */
template <typename T, int tiles>
static __device__ inline void reverse_take(unsigned exit, bool given, float (&s)[tiles][4], unsigned (&a)[tiles / 2][4],
                                           float (&u)[8][4]) {
    if (given) {
        reverse_rest<T, tiles>(s, a);
        dr_group_begin();
        dr_group_chain<T, true>(u, a, exit, 8192, false);
        dr_group_commit();
        dr_group_wait<0>();
    }
    dr_group_state<T, tiles>(s, a);
    dr_group_settle(s);
    dr_group_begin();
    dr_group_chain<T, true>(u, a, exit, 8192, given);
    dr_group_commit();
}

/* The same of wide keys, whose operands are there piece by piece and are stored so. */
template <typename T, int boxes>
static __device__ inline void reverse_take_wide(const dr_scan_call &call, const dr_scan_place &place, int64_t block,
                                                unsigned exit, bool given, bool stores, float (&s)[boxes * 8][4],
                                                float (&u)[8][4]) {
    dr_shared_fence();
    dr_group_settle(s);
    if (given) {
        const auto lost = [&](int i, unsigned(&piece)[2][4]) { reverse_rest<T>(dr_group_piece(s, i), piece); };
        dr_group_pieces<T, boxes>(u, exit, false, lost, [](int, const unsigned(&)[2][4]) {});
        dr_group_wait<0>();
        dr_group_settle(s);
    }
    const auto take = [&](int i, unsigned(&piece)[2][4]) { dr_group_state<T>(dr_group_piece(s, i), piece); };
    dr_group_pieces<T, boxes>(u, exit, given, take, [&](int i, const unsigned(&piece)[2][4]) {
        if (stores) dr_group_save<T, 2, boxes * 64>(call, place, block, piece, i * 32);
    });
}

/* steps: queries a chunk, in 16. */
template <typename T, int boxes, int steps, int reading, bool channel>
static __device__ inline void reverse_compute(const group_reverse_call &group_call, char *shared, int group, unsigned columns,
                                              unsigned rest) {
    constexpr int tiles = boxes * 8;
    constexpr bool sums = reading == DR_SCAN_SUMS, wide = dr_scan_is_wide(boxes);
    const reverse_call &call = group_call.call;
    const dr_group_scan_call &scan = group_call.scan;
    const dr_scan_room &room = scan.call.room;
    const dr_cuda_chunk_plan &plan = scan.call.plan;
    shared = dr_group_forget(shared);
    const unsigned gates = (unsigned)dr_same_in_warp((int)dr_shared_address(shared));
    const reverse_part part = reverse_find(call, columns, rest);
    const dr_scan_place &place = part.place;
    const dr_scan_block x = {scan.call, shared, room, place.head, place.head / plan.rows.group, place.columns, false};
    float s[tiles][4] = {};
    begin_back<tiles>(call, x, part, s);
    int64_t block = (place.slot + place.end - 1) * plan.value_heads + place.head;
    dr_group_turn at = {0, 0};
    bool given = scan.call.initial && part.edge;
    unsigned turn = 0; /* of the one place for the rest of a chunk of wide keys */
    for (int left = place.end - place.begin; left > 0; left--) {
        const char *stage = shared + at.stage * room.bytes;
        const unsigned tile = gates + (unsigned)(at.stage * room.bytes);
        const unsigned rest = wide ? gates : tile, outputs = rest + (unsigned)(room.value + group * 64 * 64 * 2);
        const char *const other = wide ? shared : stage;
        const dr_cuda_factors &factors = *(const dr_cuda_factors *)(other + room.factors);
        const float *keep = (const float *)(other + room.keep);
        const bool stores = !call.summary && left <= part.own;
        unsigned a[wide ? 1 : tiles / 2][4], plain[steps][4], scaled[steps][4], y[4][4];
        float u[8][4], erase[8][2];
        dr_gate_wait(dr_group_filled(scan, gates, at.stage), at.turn);
        if constexpr (wide) {
            reverse_take_wide<T, boxes>(scan.call, place, block, tile + (unsigned)room.exit, given, stores, s, u);
            dr_gate_wait(dr_group_filled(scan, gates, scan.stages), turn);
            dr_shared_fence();
            turn ^= 1;
        } else {
            reverse_take<T, tiles>(tile + (unsigned)room.exit, given, s, a, u);
        }
        dr_group_settle(s);
        dr_group_decay<tiles, channel>(keep, s);
        if (wide) dr_group_wait<0>(); /* the operands' registers are wanted */
        reverse_outputs<T, steps>(factors, outputs, plan.query_rows, plain, scaled);
        dr_group_settle(s), dr_group_settle(plain), dr_group_settle(scaled);
        dr_group_begin();
        dr_group_chain<T, false>(u, plain, rest + (unsigned)room.score, 0, true);
        dr_group_commit();
        if (!sums)
            dr_group_chain<T, false>(s, scaled, tile + (unsigned)room.query, plan.query_rows * 128, true), dr_group_commit();
        if constexpr (!wide)
            if (stores) dr_group_save<T, tiles / 2>(scan.call, place, block, a);
        if (reading == DR_SCAN_READS) reverse_factors(factors, erase);
        dr_group_wait<sums ? 0 : 1>();
        if (reading != DR_SCAN_BLIND) {
            if constexpr (sums)
                reverse_sums<T>(factors, (const float *)(stage + scan.lambda), plain, u, scaled, y);
            else
                reverse_erasures<T, false>(erase, u, y);
            dr_group_begin();
            if (sums) dr_group_chain<T, false>(s, scaled, tile + (unsigned)room.query, plan.query_rows * 128, true);
            dr_group_chain<T, false>(s, y, tile + (unsigned)room.reader, 8192, true);
            dr_group_commit();
        }
        if (stores)
            reverse_put<T>((T *)call.d_update + block * 64 * plan.value_width + place.columns, plan.value_width, outputs,
                           shared, u);
        dr_group_wait<0>();
        if (reading == DR_SCAN_READS && call.full) {
            reverse_factors(factors, erase);
            reverse_erasures<T, true>(erase, u, y);
            dr_group_settle(s), dr_group_settle(y);
            dr_group_begin();
            dr_group_chain<T, false>(s, y, tile + (unsigned)room.reader, 8192, true);
            dr_group_commit();
            dr_group_wait<0>();
        }
        dr_gate_arrive(dr_group_free(scan, gates, at.stage));
        if (wide) dr_gate_arrive(dr_group_free(scan, gates, scan.stages));
        dr_group_next(at, scan.stages);
        block -= plan.value_heads;
        given = false;
    }
    /* found once more rather than kept in registers */
    end_back<tiles>(call, x, dr_scan_find(scan.call, dr_forget(columns), dr_forget(rest)), s);
}

#endif

template <typename T, int boxes, int groups, int steps, int reading, bool channel>
static __global__ void __launch_bounds__(128 + 128 * groups, 1)
    reverse_warpgroups(const __grid_constant__ group_reverse_call group_call) {
#ifdef DR_CUDA_WARPGROUPS
    extern __shared__ __align__(1024) char shared[];
    const dr_group_scan_call &scan = group_call.scan;
    const unsigned all = (unsigned)dr_scan_groups(scan.call), blocks = (all + groups - 1) / groups;
    const unsigned first = blockIdx.x % blocks * groups, rest = blockIdx.x / blocks;
    const int busy = (int)(all - first < groups ? all - first : groups);
    const reverse_part part = reverse_find(group_call.call, first, rest);
    const dr_scan_place &place = part.place;
    if (part.idle) return;
    dr_group_open(scan, dr_shared_address(shared), busy);
    if (threadIdx.x < 128) {
        if (groups == 2) dr_registers_give<dr_scan_is_wide(boxes) ? 40 : 56>();
        reverse_copy<T, boxes, steps * 16, reading>(group_call, shared, place, busy);
    } else {
        if (groups == 2) dr_registers_take<dr_scan_is_wide(boxes) ? 232 : 224>();
        const unsigned g = threadIdx.x / 128 - 1;
        if (g < busy) reverse_compute<T, boxes, steps, reading, channel>(group_call, shared, (int)g, first + g, rest);
    }
#endif
}

#endif
