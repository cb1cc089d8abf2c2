/* The scan (scan.cuh) for sm_90a and 16-bit types: the same transposes in the same registers, but the products are
 * those of warp groups, whose operand B comes from shared memory by itself.
 *
 *     four warps     copy: tiles of the chunks ahead, two or more stages of shared memory (scan_stages.cuh)
 *     1 or 2 groups  of four warps hold 64 columns each; what they share is the tiles
 *
 * In a chunk U = S R~ and Q~ S are asked for at once. While they are under way the state decays, and rows are made ready, so
 * that little stands between U and X^T Y, which goes before P' Y, which nothing waits for. Where a key and lambda times a query
 * are read, Q~ S goes first and joins what the rows write while U is under way. Outputs of one group leave by the copying
 * warps.
 *
 * Of wide keys, K = 256, the state takes 128 registers of a thread. Then S becomes an operand 64 channels at a time, and again
 * for Q~ S when U is done with, so that U, O and the whole of that operand are never there at once (dr_group_pieces). */
#ifndef DR_CUDA_SCAN_WARPGROUPS_CUH
#define DR_CUDA_SCAN_WARPGROUPS_CUH

#include "backends/cuda/chunkwise/scan_stages.cuh"

#ifdef DR_CUDA_WARPGROUPS

/* C (+)= A B for operands A of `steps` times 16 contracted indices, B from a tile; box: bytes from one box of 64 columns to the
 * next. */
template <typename T, bool along, int columns, int steps>
static __device__ inline void dr_group_chain(float (&c)[columns][4], const unsigned (&a)[steps][4], unsigned tile, unsigned box,
                                             bool add) {
    const uint64_t b = dr_group_operand(tile, along ? 16 : box);
    DR_UNROLL (k, steps)
        dr_group_multiply<along>(T(), c, a[k], dr_group_forward(b, along ? k % 4 * 32 + k / 4 * box : k * 2048), add || k > 0);
}

/* The same where C and B have 256 columns. */
template <typename T, bool along, int steps>
static __device__ inline void dr_group_chain(float (&c)[32][4], const unsigned (&a)[steps][4], unsigned tile, unsigned box,
                                             bool add) {
    static_assert(!along, "columns of B lie in boxes side by side");
    dr_group_chain<T, false>((float(&)[16][4])c[0], a, tile, box, add);
    dr_group_chain<T, false>((float(&)[16][4])c[16], a, tile + 2 * box, box, add);
}

/* Of a state the accumulators of 32 channels, a piece. */
template <int tiles> static __device__ inline float (&dr_group_piece(float (&s)[tiles][4], int piece))[4][4] {
    return (float(&)[4][4])s[piece * 4];
}

/* C = A B, or C += A B where `add` is set. A has `boxes` boxes of 64 channels; columns of B are rows of a tile. The product
 * goes in pieces of 32 channels: make(piece, a) makes a piece's operand while the product of the piece before is under way, and
 * use(piece, a) reads the operand after its product has been asked for. */
template <typename T, int boxes, typename F, typename G>
static __device__ inline void dr_group_pieces(float (&c)[8][4], unsigned tile, bool add, F make, G use) {
    unsigned a[2][2][4];
    DR_UNROLL (piece, 2 * boxes) {
        unsigned(&operand)[2][4] = a[piece % 2];
        if (piece > 0) dr_group_wait<1>();
        make(piece, operand);
        dr_group_settle(operand);
        dr_group_begin();
        dr_group_chain<T, true>(c, operand, tile + (unsigned)(piece / 2 * 8192 + piece % 2 * 64), 8192, add || piece > 0);
        dr_group_commit();
        use(piece, operand);
    }
}

/* The warp's columns of a tile of V as accumulators of the transpose, two numbers in each register (dr_load_transposed): asked
 * for while products are under way. there: the bits that are values, the even row's below; zeros for the others, and for
 * columns of the unit matrix. */
template <typename T>
static __device__ inline void dr_group_values(bool unit, unsigned there, unsigned tile, unsigned (&v)[4][4]) {
    const int mine = dr_scan_warp() * 16;
    DR_UNROLL (n, 4) {
        if (!unit) dr_load_matrices_transposed(v[n], dr_lane_at<T>(tile + dr_lane_along<T>(), 64, n * 16, mine));
        DR_UNROLL (i, 4) v[n][i] = unit ? 0 : v[n][i] & there;
    }
}

/* Of eight rows of Y^T, of which a thread has two: what they write beside what they read, and the factors of that. */
typedef struct {
    float write[4], erase[2];
} dr_group_rows;

/* Rows 8 n ..; v, w: values and write gates of the even and the odd row, and of two columns. */
template <typename T, bool gated>
static __device__ inline dr_group_rows dr_group_write(const dr_cuda_factors &factors, int n, const unsigned *v,
                                                      const unsigned *w, bool even, bool odd) {
    const float2 write = dr_column_pair(factors.value, n), erase = dr_column_pair(factors.erase, n);
    float2 upper = dr_unpack(T(), v[0]), lower = dr_unpack(T(), v[1]);
    upper.x *= write.x, upper.y *= write.y, lower.x *= write.x, lower.y *= write.y;
    if (gated) {
        const float2 first = dr_unpack(T(), w[0]), second = dr_unpack(T(), w[1]);
        upper.x *= even ? first.x : 1.0f, upper.y *= odd ? first.y : 1.0f;
        lower.x *= even ? second.x : 1.0f, lower.y *= odd ? second.y : 1.0f;
    }
    return dr_group_rows{{upper.x, upper.y, lower.x, lower.y}, {-erase.x, -erase.y}};
}

/* Y^T of the rows as operands A. */
template <typename T, bool reads>
static __device__ inline void dr_group_update(const dr_group_rows &rows, const float (&u)[4], unsigned *y) {
    float x[4];
    DR_UNROLL (i, 4) x[i] = reads ? fmaf(rows.erase[i % 2], u[i], rows.write[i]) : rows.write[i];
    y[0] = dr_pack(T(), x[0], x[1]), y[1] = dr_pack(T(), x[2], x[3]);
}

/* The same of all rows where values are gated, of two rows a token maybe only one; gate: the tile of write gates. */
template <typename T, bool reads>
static __device__ inline void dr_group_update_gated(const dr_cuda_rows &rows, const dr_cuda_factors &factors, unsigned gate,
                                                    const unsigned (&v)[4][4], const float (&u)[8][4], unsigned (&y)[4][4]) {
    const bool even = rows.row[0].values == DR_VALUES_GATED;
    const bool odd = rows.steps == 2 ? rows.row[1].values == DR_VALUES_GATED : even;
    unsigned w[4][4];
    dr_group_values<T>(false, 0xffffffffu, gate, w);
    DR_UNROLL (n, 8)
        dr_group_update<T, reads>(dr_group_write<T, true>(factors, n, &v[n / 2][n % 2 * 2], &w[n / 2][n % 2 * 2], even, odd),
                                  u[n], &y[n / 2][n % 2 * 2]);
}

/* Where rows read key + lambda query, the query's part of it joins what they write. mix, o: lambda and Q~ S of the rows. */
static __device__ inline void dr_group_join(dr_group_rows &rows, float2 mix, const float (&o)[4]) {
    const float erase[2] = {rows.erase[0] * mix.x, rows.erase[1] * mix.y};
    DR_UNROLL (i, 4) rows.write[i] = fmaf(erase[i % 2], o[i], rows.write[i]);
}

/* S^T as operands A. */
template <typename T, int tiles>
static __device__ inline void dr_group_state(const float (&s)[tiles][4], unsigned (&a)[tiles / 2][4]) {
    DR_UNROLL (k, tiles / 2) {
        dr_operand_a<T> operand;
        dr_operand_from<T>(operand, s[2 * k], s[2 * k + 1]);
        DR_UNROLL (i, 4) a[k][i] = operand.x[i];
    }
}

/* S^T := S^T D; channel: each channel has a decay of its own. One of all is read as a pair: read alone, ptxas serialises the
 * products that it stands between. */
template <int tiles, bool channel> static __device__ inline void dr_group_decay(const float *keep, float (&s)[tiles][4]) {
    const float2 all = *(const float2 *)keep;
    DR_UNROLL (n, tiles) {
        const float2 d = channel ? dr_column_pair(keep, n) : all;
        s[n][0] *= d.x, s[n][1] *= d.y, s[n][2] *= d.x, s[n][3] *= d.y;
    }
}

/* O^T to the warp's columns of a tile, which the warp has read. */
template <typename T, int tiles> static __device__ inline void dr_group_lay_output(unsigned tile, const float (&o)[tiles][4]) {
    const int lane = (int)(threadIdx.x % 32), mine = dr_scan_warp() * 16;
    __syncwarp();
    DR_UNROLL_BY (n, tiles, 2) {
        const unsigned x[4] = {dr_pack(T(), o[n][0], o[n][1]), dr_pack(T(), o[n][2], o[n][3]),
                               dr_pack(T(), o[n + 1][0], o[n + 1][1]), dr_pack(T(), o[n + 1][2], o[n + 1][3])};
        dr_store_matrices_transposed(dr_tile_at<T>(tile, 64, n * 8 + lane / 16 * 8 + lane % 8, mine + lane / 8 % 2 * 8), x);
    }
    __syncwarp();
}

/* To rows of o, through the tile of V, which is read by then. */
template <typename T, int tiles>
static __device__ inline void dr_group_put_output(const dr_scan_call &call, const dr_scan_place &place, unsigned tile,
                                                  const char *shared, int64_t token, int tokens, const float (&o)[tiles][4]) {
    const dr_cuda_rows &rows = call.plan.rows;
    const int lane = (int)(threadIdx.x % 32), mine = dr_scan_warp() * 16;
    dr_group_lay_output<T, tiles>(tile, o);
    const int row = lane / 2, column = lane % 2 * 8, columns = rows.value_size - place.columns - mine - column; /* that exist */
    const int64_t stride = (int64_t)rows.value_heads * rows.value_size;
    T *to = (T *)call.o + (token + row) * stride + place.head * rows.value_size + place.columns + mine + column;
    const char *from = shared + (dr_tile_at<T>(tile, 64, row, mine + column) - dr_shared_address(shared));
    uint4 x[tiles / 2];
    DR_UNROLL (i, tiles / 2) x[i] = *(const uint4 *)(from + i * 16 * 128);
    if (columns <= 0) return;
    if (rows.aligned) {
        DR_UNROLL (i, tiles / 2) {
            if (i * 16 + row < tokens) *(uint4 *)to = x[i];
            to += 16 * stride;
        }
        return;
    }
    DR_UNROLL (i, tiles / 2) {
        const T *element = (const T *)&x[i];
        DR_UNROLL (e, 8)
            if (i * 16 + row < tokens && e < columns) to[e] = element[e];
        to += 16 * stride;
    }
}

/* Four lanes that hold a column of a 4 x 4 matrix each take a row of it each. */
static __device__ inline void dr_group_exchange(unsigned (&x)[4]) {
    const int lane = (int)(threadIdx.x % 4);
#pragma unroll
    for (int step = 1; step <= 2; step++)
        DR_UNROLL (i, 2) {
            unsigned &low = x[step == 1 ? 2 * i : i], &high = x[step == 1 ? 2 * i + 1 : i + 2];
            const unsigned come = __shfl_xor_sync(0xffffffffu, lane & step ? low : high, step);
            low = lane & step ? come : low;
            high = lane & step ? high : come;
        }
}

/* The warp's columns of the state before the chunk, [V][width], from its operands, or from those of the channels from `first`
 * on: 16 bytes a lane. */
template <typename T, int steps, int width = steps * 16>
static __device__ inline void dr_group_save(const dr_scan_call &call, const dr_scan_place &place, int64_t block,
                                            const unsigned (&a)[steps][4], int first = 0) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const int lane = (int)(threadIdx.x % 32), column = place.columns + dr_scan_warp() * 16 + lane / 4;
    T *to = (T *)call.saved + (block * plan.value_width + column) * width + first + lane % 4 * 8;
#pragma unroll
    for (int k = 0; k < steps; k += 2)
        DR_UNROLL (i, 2) {
            unsigned x[4] = {a[k][i], a[k][i + 2], a[k + 1][i], a[k + 1][i + 2]};
            dr_group_exchange(x);
            *(uint4 *)(to + i * 8 * width + k * 16) = make_uint4(x[0], x[1], x[2], x[3]);
        }
}

/* O^T times the factors of its rows. */
template <int rows> static __device__ inline void dr_group_scale_output(const dr_cuda_factors &factors, float (&o)[rows][4]) {
    DR_UNROLL (n, rows) {
        const float2 query = dr_column_pair(factors.query, n);
        o[n][0] *= query.x, o[n][1] *= query.y, o[n][2] *= query.x, o[n][3] *= query.y;
    }
}

/* A chunk of wide keys: S^T and O^T. stage, value: of tiles of keys, and of this group's values; columns: shared memory, whose
 * place for the rest of a chunk is filled in `turn`. */
template <typename T, int boxes, bool channel>
static __device__ inline void dr_group_take_wide(const dr_group_scan_call &group_call, const dr_scan_place &place,
                                                 const char *shared, unsigned base, unsigned stage, unsigned value,
                                                 unsigned turn, int64_t block, float (&s)[boxes * 8][4], float (&o)[8][4]) {
    const dr_scan_call &call = group_call.call;
    const dr_scan_room &room = call.room;
    const dr_cuda_factors &factors = *(const dr_cuda_factors *)(shared + room.factors);
    const float *keep = (const float *)(shared + room.keep);
    unsigned y[4][4];
    /* unrolled, the first operand would be kept for the second use */
#pragma unroll 1
    for (int outputs = 0; outputs < 2; outputs++) {
        dr_group_settle(s);
        const auto take = [&](int piece, unsigned(&a)[2][4]) {
            dr_group_state<T>(dr_group_piece(s, piece), a);
            if (outputs) dr_group_decay<4, channel>(keep + (channel ? piece * 32 : 0), dr_group_piece(s, piece));
        };
        const auto save = [&](int piece, const unsigned(&a)[2][4]) {
            if (call.saved && !outputs) dr_group_save<T, 2, boxes * 64>(call, place, block, a, piece * 32);
        };
        dr_group_pieces<T, boxes>(o, stage + (unsigned)(outputs ? room.query : room.reader), false, take, save);
        if (outputs) break;
        unsigned v[4][4];
        dr_gate_wait(dr_group_filled(group_call, base, group_call.stages), turn);
        dr_shared_fence();
        dr_group_values<T>(false, 0xffffffffu, value, v);
        dr_group_wait<0>();
        DR_UNROLL (n, 8)
            dr_group_update<T, true>(dr_group_write<T, false>(factors, n, &v[n / 2][n % 2 * 2], NULL, false, false), o[n],
                                     &y[n / 2][n % 2 * 2]);
    }
    dr_group_settle(s), dr_group_settle(y);
    dr_group_begin();
    dr_group_chain<T, false>(s, y, stage + (unsigned)room.exit, 8192, true);
    dr_group_commit();
    dr_group_wait<1>();
    dr_group_scale_output(factors, o);
    dr_group_settle(o);
    dr_group_begin();
    dr_group_chain<T, true>(o, y, base + (unsigned)room.score, 0, true);
    dr_group_commit();
    dr_group_wait<0>();
}

/* queries: columns of O^T, 32 or 64, or 0 where what parts do to a state is wanted, without outputs; trim: of dr_scan_trim. */
template <typename T, int boxes, int groups, int queries, int reading, bool channel>
static __device__ inline void dr_group_compute(const dr_group_scan_call &group_call, char *shared, int group, unsigned columns,
                                               unsigned rest, int trim) {
    constexpr int tiles = boxes * 8, steps = tiles / 2, rows = queries ? queries / 8 : 8;
    constexpr bool reads = reading != DR_SCAN_BLIND, sums = reading == DR_SCAN_SUMS, wide = dr_scan_is_wide(boxes);
    /* what registers hold while products are under way: numbers of rows made ahead, eighths; decays of each channel */
    constexpr int ahead = queries ? groups == 1 && !channel ? 4 : 0 : channel ? 4 : 8;
    constexpr bool decays_ahead = queries && groups == 2 && channel;
    const dr_scan_call &call = group_call.call;
    const dr_cuda_chunk_plan &plan = call.plan;
    const bool gated = plan.rows.input[DR_INPUT_WRITE_GATE].at != NULL;
    shared = dr_group_forget(shared);
    const unsigned gates = dr_shared_address(shared);
    const dr_scan_place place = dr_scan_find_trimmed(call, columns, rest, trim);
    if (dr_scan_idle(call, place)) return;
    const dr_scan_block x = dr_scan_block_of(call, shared, place);
    /* 64 queries: a row a token */
    const int only = queries < 64 && plan.rows.steps == 2 && !plan.rows.step_axis ? dr_group_value_row(plan.rows) : -1;
    const unsigned there = only == 0 ? 0x0000ffffu : only == 1 ? 0xffff0000u : 0xffffffffu;
    float s[tiles][4] = {};
    dr_scan_begin<tiles>(x, place, s);
    int64_t token = dr_sequence_begin(plan, call.tensors.cu, place.sequence) + (int64_t)place.begin * plan.chunk;
    const int64_t end = dr_sequence_begin(plan, call.tensors.cu, place.sequence + 1);
    int64_t block = (place.slot + place.begin) * plan.value_heads + place.head;
    dr_group_turn at = {0, 0};
    unsigned taken = 1; /* the turn of the outputs that were laid before */
    for (int chunk = place.begin; chunk < place.end; chunk++) {
        const char *stage = shared + at.stage * call.room.bytes;
        /* told once, before the loop, the compiler forgets it */
        const unsigned tile = (unsigned)dr_same_in_warp((int)gates + at.stage * call.room.bytes);
        const unsigned value = (wide ? gates : tile) + (unsigned)(call.room.value + group * 64 * 64 * 2);
        float o[rows][4];
        dr_gate_wait(dr_group_filled(group_call, gates, at.stage), at.turn);
        if constexpr (wide) {
            dr_shared_fence();
            dr_group_take_wide<T, boxes, channel>(group_call, place, shared, gates, tile, value,
                                                  (unsigned)(chunk - place.begin) % 2, block, s, o);
        } else {
            const dr_cuda_factors &factors = *(const dr_cuda_factors *)(stage + call.room.factors);
            const float *lambda = (const float *)(stage + group_call.lambda);
            unsigned a[steps][4], v[4][4], y[4][4];
            float u[8][4];
            dr_group_rows ready[8];
            const float *keep = (const float *)(stage + call.room.keep);
            dr_group_state<T, tiles>(s, a);
            if (decays_ahead) dr_group_decay<tiles, channel>(keep, s);
            dr_group_settle(s);
            dr_group_begin();
            if (sums) dr_group_chain<T, true>(o, a, tile + (unsigned)call.room.query, 8192, false), dr_group_commit();
            if (reads) dr_group_chain<T, true>(u, a, tile + (unsigned)call.room.reader, 8192, false), dr_group_commit();
            if (queries && !sums)
                dr_group_chain<T, true>(o, a, tile + (unsigned)call.room.query, plan.query_rows * 128, false),
                    dr_group_commit();
            if (queries && call.saved) dr_group_save<T, steps>(call, place, block, a);
            dr_group_settle(s);
            if (!decays_ahead) dr_group_decay<tiles, channel>(keep, s);
            dr_group_values<T>(place.unit, there, value, v);
            const bool gates_now = !sums && gated && !place.unit;
            const auto make = [&](int n) {
                dr_group_rows made = dr_group_write<T, false>(factors, n, &v[n / 2][n % 2 * 2], NULL, false, false);
                if constexpr (sums) dr_group_join(made, dr_column_pair(lambda, n), o[n]);
                return made;
            };
            if (sums) dr_group_wait<1>();
            if (!gates_now)
                DR_UNROLL (n, ahead) ready[n] = make(n);
            if (reads) dr_group_wait<queries && !sums ? 1 : 0>();
            if (gates_now)
                dr_group_update_gated<T, reads>(plan.rows, factors, tile + (unsigned)(group_call.gate + group * 64 * 64 * 2), v,
                                                u, y);
            else
                DR_UNROLL (n, 8) dr_group_update<T, reads>(n < ahead ? ready[n] : make(n), u[n], &y[n / 2][n % 2 * 2]);
            if (queries) {
                dr_group_wait<0>();
                dr_group_scale_output(factors, o);
            }
            dr_group_begin();
            dr_group_chain<T, false>(s, y, tile + (unsigned)call.room.exit, 8192, true);
            if (queries) dr_group_chain<T, true>(o, y, tile + (unsigned)call.room.score, 0, true);
            dr_group_commit();
            dr_group_wait<0>();
        }
        if (queries && groups > 1) {
            const int64_t left = end - token;
            dr_group_put_output<T, rows>(call, place, value, shared, token, left < plan.chunk ? (int)left : plan.chunk, o);
        }
        dr_gate_arrive(dr_group_free(group_call, gates, at.stage));
        if (wide) dr_gate_arrive(dr_group_free(group_call, gates, group_call.stages));
        if (queries && groups == 1) {
            const unsigned leave = gates + (unsigned)dr_group_scan_bytes(group_call);
            dr_gate_wait(leave + DR_LEAVE_TAKEN, taken);
            dr_group_lay_output<T, rows>(gates + (unsigned)dr_leave_tile(group_call), o);
            dr_gate_arrive(leave + DR_LEAVE_LAID);
            taken ^= 1;
        }
        dr_group_next(at, group_call.stages);
        token += plan.chunk;
        block += plan.value_heads;
    }
    /* found once more rather than kept in registers */
    dr_scan_end<tiles>(x, dr_scan_find(call, dr_forget(columns), dr_forget(rest)), s);
}

/* Whether parts that begin early leave nothing to do. Else what is before the scan has ended, unless it runs beside. */
static __device__ inline bool dr_scan_is_made(const dr_scan_call &call, unsigned first, unsigned rest) {
    const dr_cuda_chunk_tensors &tensors = call.tensors;
    const dr_scan_place place = dr_scan_find(call, first, rest);
    if (dr_begins_early(call.plan, tensors, place.sequence, place.head)) return true;
    if (tensors.early && !tensors.made) dr_beside_close();
    return false;
}

/* What comes after the scan is behind the kernel that makes such parts, too. */
static __device__ inline void dr_scan_end_behind(const dr_scan_call &call) {
    if (call.tensors.early && blockIdx.x == 0 && threadIdx.x == 0)
        dr_count_await(dr_early_ended(call.plan, call.tensors.early), dr_early_blocks(call.plan));
}

#endif

template <typename T, int boxes, int groups, int queries, int reading, bool channel>
static __global__ void __launch_bounds__(128 + 128 * groups, 1)
    scan_warpgroups(const __grid_constant__ dr_group_scan_call group_call) {
#ifdef DR_CUDA_WARPGROUPS
    extern __shared__ __align__(1024) char shared[];
    const dr_scan_call &call = group_call.call;
    const unsigned all = (unsigned)dr_scan_groups(call), blocks = (all + groups - 1) / groups;
    const unsigned first = blockIdx.x % blocks * groups, rest = blockIdx.x / blocks;
    const int trim = !queries ? dr_scan_trim(call, rest) : -1;
    int busy = 0, columns[2] = {-1, -1};
    if (!channel && dr_scan_is_made(call, first, rest)) {
        if (queries) dr_scan_end_behind(call);
        return;
    }
    DR_UNROLL (g, groups) {
        const dr_scan_place place = dr_scan_find_trimmed(call, first + g, rest, trim);
        if (first + g >= all || dr_scan_idle(call, place)) continue;
        if (!place.unit) columns[g] = place.columns;
        busy++;
    }
    if (busy == 0) return;
    dr_group_open(group_call, dr_shared_address(shared), busy, groups == 1);
    if (threadIdx.x < 128) {
        if (groups == 2) dr_registers_give<dr_scan_is_wide(boxes) ? 40 : 56>();
        dr_group_copy<T, boxes, queries, reading, groups == 1>(group_call, shared,
                                                               dr_scan_find_trimmed(call, first, rest, trim), columns);
    } else {
        if (groups == 2) dr_registers_take<dr_scan_is_wide(boxes) ? 232 : 224>();
        const unsigned g = threadIdx.x / 128 - 1;
        if (first + g < all)
            dr_group_compute<T, boxes, groups, queries, reading, channel>(group_call, shared, (int)g, first + g, rest, trim);
    }
    if (!channel && queries) dr_scan_end_behind(call);
#endif
}

#endif
