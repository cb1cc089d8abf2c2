/* keys_channel.cu's chunks that are mild, as prepare_mild.cuh has them: no log decay of the thread block's channels is
 * positive, and no channel's sum is below -MILD_MOST. With a_i the sum up to row i and a that of the chunk, keys are scaled
 * once for all pairs,
 *
 *     q^_i = q_i e^(a_i - a/2)      r^_i likewise, times what is left of its gain      w^_j = w_j e^(a/2 - a_j)
 *
 * and of what the state's part is multiplied by e^(a/2), products of whole tiles make
 *
 *     d_q = e^(a_i - a/2) (e^(a/2) dO S + G w^)      d_r likewise with dY and M
 *     d_w = e^(a/2 - a_j) (G^T q^ + M^T r^ + e^(a/2) U dS')
 *
 * What log decays get are products of scaled keys, as they are rounded, with what stands in brackets: so of pairs that do not
 * span a row only what float rounds is left in the sums over rows. No decay lies between the rows of a token: scores of a token
 * with itself are taken out of G and M before the products, and what they make is added to gradients of keys alone. And no log
 * decay of a mild chunk is below -MILD_DEEPEST here, so that what is rounded stays small beside e to the power of the least. */
#ifndef DR_CUDA_KEYS_CHANNEL_MILD_CUH
#define DR_CUDA_KEYS_CHANNEL_MILD_CUH

#include "backends/cuda/backward/keys_channel.cuh"
#include "backends/cuda/chunkwise/mild.cuh"

/* Whether a form has a way for mild chunks. */
template <typename T, int form> static __device__ constexpr bool keys_may_be_mild() {
    return dr_groups_multiply<T>() && !(form & FLOATS);
}

/* ---- decays ------------------------------------------------------------------------------------------------------------- */

/* Where the sum of a warp's log decays lies, until factors of blocks and halves do: [64]. */
static __device__ inline float *mild_sum(const keys_rows &k, int warp) {
    return warp < 4 ? k.total + warp * 64 : k.half + (WARPS + 2 + warp - 4) * 64;
}

/* And e^(a/2) of each channel, where parts of what the exit gives were: [64]. */
static __device__ inline float *mild_half(const keys_rows &k) {
    return k.half;
}

constexpr float MILD_DEEPEST = 8;

/* Puts the sums over the warp's rows. */
template <int form> static __device__ inline void mild_sum_rows(const char *alpha, const keys_rows &k) {
    float2 sum = make_float2(0, 0);
    float most = 0, least = 0;
    DR_UNROLL (i, HALF) {
        if (!row_decays<form>(i)) continue;
        const float2 g = row_pair<float, form>(alpha, i);
        sum = make_float2(sum.x + g.x, sum.y + g.y);
        most = fmaxf(most, fmaxf(g.x, g.y));
        least = fminf(least, fminf(g.x, g.y));
    }
    if (least < -MILD_DEEPEST) most = INFINITY;
    sum = make_float2(dr_mild_sum_of(sum.x, most), dr_mild_sum_of(sum.y, most));
    *(float2 *)(mild_sum(k, (int)(threadIdx.x / 32)) + threadIdx.x % 32 * 2) = sum;
}

/* Of the lane's two channels. */
typedef dr_mild_span<2> mild_span;

static __device__ inline float2 mild_start(const mild_span &span) {
    return make_float2(span.start[0], span.start[1]);
}

/* Whether the chunk is mild, from the sums of all warps, and then the span to before the warp's rows. */
static __device__ inline bool mild_find(const keys_rows &k, mild_span &span) {
    return dr_mild_find<WARPS>((int)(threadIdx.x / 32), span, [&](int warp, float(&sum)[2]) {
        const float2 both = *(const float2 *)(mild_sum(k, warp) + threadIdx.x % 32 * 2);
        sum[0] = both.x, sum[1] = both.y;
    });
}

static __device__ inline float2 exp2_pair(float2 x) {
    return make_float2(dr_exp2_near(x.x), dr_exp2_near(x.y));
}

static __device__ inline float2 negative(float2 x) {
    return make_float2(-x.x, -x.y);
}

/* ---- products ----------------------------------------------------------------------------------------------------------- */

#ifdef DR_CUDA_WARPGROUPS

/* C += A B of the group's 32 channels, begun. A [64 x 64] a tile or its transpose, B [64 x 64] a tile from the group's column
 * on. */
template <bool turned> static __device__ inline void multiply_tiles(float (&c)[4][4], unsigned a, unsigned b) {
    const uint64_t from = dr_group_operand(a, 16), with = dr_group_operand(b, 16);
    dr_group_begin();
    DR_UNROLL (k, 4)
        dr_group_multiply_tiles<turned, false>(__nv_bfloat16(), c, dr_group_forward(from, k * (turned ? 2048 : 32)),
                                               dr_group_forward(with, k * 2048), 1);
}

#endif

/* Where products are a warp group's: q += dO S, r += dY S, w += U dS' over the 64 columns of V in the stages, begun. */
static __device__ inline void begin_tiles(const keys_room &room, unsigned at, bool reads, bool entry, bool exit,
                                          float (&q)[4][4], float (&r)[4][4], float (&w)[4][4]) {
#ifdef DR_CUDA_WARPGROUPS
    const unsigned column = (unsigned)dr_same_in_warp(product_column<__nv_bfloat16>()) * 2;
    dr_group_settle(q), dr_group_settle(r), dr_group_settle(w);
    if (entry) multiply_tiles<false>(q, at + room.stage[0], at + room.stage[3] + column);
    if (entry && reads) multiply_tiles<false>(r, at + room.stage[1], at + room.stage[3] + column);
    if (exit) multiply_tiles<false>(w, at + room.stage[2], at + room.stage[4] + column);
    dr_group_commit();
#endif
}

/* Until what was begun is there. */
template <typename T> static __device__ inline void finish_tiles() {
#ifdef DR_CUDA_WARPGROUPS
    if constexpr (dr_groups_multiply<T>()) dr_group_wait<0>();
#endif
}

/* Scores of a token with itself, a row of the warp's a lane: of its query with its own write key and, of two rows a token, of
 * the second row's query and read key with the first one's write key. */
typedef struct {
    float query, query_first, read_first;
} own_scores;

/* Takes them out of G and M. */
template <typename T, int form> static __device__ inline own_scores take_own_scores(char *shared, const keys_room &room) {
    const int lane = (int)(threadIdx.x % 32), row = (int)(threadIdx.x / 32) * HALF + lane;
    own_scores scores = {};
    const auto take = [&](int tile, int column) {
        T *at = (T *)(shared + tile + dr_tile_at<T>(0, 64, row, column));
        const float score = dr_to_float(*at);
        *at = dr_from_float<T>(0);
        return score;
    };
    if (lane >= HALF || !row_asks<form>(lane)) return scores;
    scores.query = take(room.score, row);
    if (form & PAIRS) scores.query_first = take(room.score, row - 1);
    if (form & PAIRS && form & READS) scores.read_first = take(room.erase, row - 1);
    return scores;
}

/* How a mild chunk is gone through. */
typedef struct {
    mild_span span;
    own_scores scores;
} mild_chunk;

/* Scaled keys as tiles: of writers, queries and readers; e^(a/2) of each channel. */
template <typename T, int form>
static __device__ inline void scale_mildly(char *shared, const keys_room &room, const keys_rows &k, const mild_span &span) {
    const unsigned thread = dr_forget(threadIdx.x);
    const int start = (int)(thread / 32) * HALF;
    float2 x = mild_start(span), up, down;
    DR_UNROLL (i, HALF) {
        if (row_decays<form>(i)) {
            x = plus(MILD_LOG2, row_pair<float, form>(shared + room.alpha, thread, i), x);
            up = exp2_pair(x), down = exp2_pair(negative(x));
        }
        const float2 w = row_pair<T, form>(shared + room.write, thread, i);
        set_row<T>(shared + room.scaled[0], thread, i, times(w, down));
        if (row_asks<form>(i))
            set_row<T>(shared + room.scaled[1], thread, i, times(row_pair<T, form>(shared + room.query, thread, i), up));
        else
            set_row<T>(shared + room.scaled[1], thread, i, make_float2(0, 0));
        if (!(form & READS)) continue;
        const float2 r = read_pair<T, form>(row_pair<T, form>(shared + room.read, thread, i), w),
                     rest = make_float2(k.rest[start + i], k.rest[start + i]);
        set_row<T>(shared + room.scaled[2], thread, i, times(times(r, rest), up));
    }
    if (thread < 32) *(float2 *)(mild_half(k) + thread * 2) = exp2_pair(make_float2(span.half[0], span.half[1]));
}

/* From S dO, S dY, dS' U of the warp's products what stands in brackets above: q, r, near of readers in the chunk, and w. */
template <typename T, int form>
static __device__ inline void multiply_mildly(char *shared, const keys_room &room, const keys_rows &k, float scale,
                                              float (&q)[4][4], float (&r)[4][4], float (&near)[4][4], float (&w)[4][4]) {
#ifdef DR_CUDA_WARPGROUPS
    constexpr bool reads = form & READS;
    const int column = dr_same_in_warp(product_column<T>());
    const int row = product_block<T>() * 16 + (int)(threadIdx.x % 32) / 4;
    const unsigned base = dr_shared_address(shared), scores = base + room.score, erases = base + room.erase;
    const auto scaled = [&](int i) { return base + (unsigned)(room.scaled[i] + column * 2); };
    DR_UNROLL (n, 4) {
        const float2 half = *(const float2 *)(mild_half(k) + column + 8 * n + threadIdx.x % 4 * 2);
        DR_UNROLL (e, 4) {
            const float f = e % 2 ? half.y : half.x;
            q[n][e] *= scale * f, r[n][e] *= f, w[n][e] *= f;
        }
    }
    if (reads) scale_rows(r, k.split, row, 1);
    dr_group_settle(q), dr_group_settle(r), dr_group_settle(near);
    multiply_tiles<false>(q, scores, scaled(0));
    if (reads) multiply_tiles<false>(r, erases, scaled(0));
    multiply_tiles<true>(near, scores, scaled(1));
    if (reads) multiply_tiles<true>(near, erases, scaled(2));
    dr_group_commit();
    dr_group_wait<0>();
#endif
}

/* ---- rows --------------------------------------------------------------------------------------------------------------- */

/* Two channels of a row where its scores were, units of 16 bytes exchanged by the row: what beside_pair has, but by column. */
static __device__ inline float2 &exit_at(char *shared, const keys_room &room, int row, int column) {
    return *(float2 *)(shared + (column < 32 ? room.score : room.erase) + row * 128 + ((column % 32 * 4) ^ (row % 8 * 16)));
}

/* Accumulators of the warp's products there. */
template <typename T> static __device__ inline void put_exits(char *shared, const keys_room &room, const float (&c)[4][4]) {
    put_pairs<T>(c,
                 [&](int row, int column) -> float2 & { return exit_at(shared, room, product_block<T>() * 16 + row, column); });
}

/* A key as the product has it. */
template <typename T> static __device__ inline float2 rounded(float2 x) {
    return dr_unpack(T(), dr_pack(T(), x.x, x.y));
}

/* The warp's rows, from the last on: gradients to the tiles, and what make_rows leaves. own: [16][64] each, of q, r and near;
 * w lies where scores were. */
template <typename T, int form>
static __device__ inline void make_rows_mildly(char *shared, const keys_room &room, const keys_rows &k, char *own,
                                               const mild_chunk &mild, const channel_results &to, made_rows<form> &made) {
    constexpr bool reads = form & READS;
    constexpr int steps = decay_sums<form>::steps;
    const char *alpha = shared + room.alpha;
    const int start = (int)(threadIdx.x / 32) * HALF, lane = (int)(threadIdx.x % 32);
    const float2 none = make_float2(0, 0);
    float2 x = mild_start(mild.span), suffix = none, prefix = none, e = none, f = none, up = none, down = none;
    float2 first = none; /* what a token's second row gives the write key of its first one */
    float gains[HALF];
    const auto own_score = [](float score, int i) {
        const float x = __shfl_sync(0xffffffffu, score, i);
        return make_float2(x, x);
    };
    DR_UNROLL (i, HALF)
        if (row_decays<form>(i)) x = plus(MILD_LOG2, row_pair<float, form>(alpha, i), x);
#pragma unroll
    for (int i = HALF - 1; i >= 0; i--) {
        const int row = start + i;
        if (row_asks<form>(i)) up = exp2_pair(x), down = exp2_pair(negative(x)), e = f = none;
        const float2 w = row_pair<T, form>(shared + room.write, i), near = own_pair(own + 2 * OWN_BYTES, i),
                     far = exit_at(shared, room, row, lane * 2), scaled = rounded<T>(times(w, down));
        float2 all = times(down, make_float2(near.x + far.x, near.y + far.y));
        e = plus(negative(scaled), near, e), f = plus(scaled, far, f);
        const bool second = form & PAIRS && row_asks<form>(i);
        const float2 w_first = second ? row_pair<T, form>(shared + room.write, i - 1) : none;
        all = make_float2(all.x + first.x, all.y + first.y), first = none;
        if (row_asks<form>(i)) {
            const float2 q = row_pair<T, form>(shared + room.query, i), got = own_pair(own, i),
                         score = own_score(mild.scores.query, i);
            float2 d_q = plus(score, w, times(up, got));
            e = plus(rounded<T>(times(q, up)), got, e);
            all = plus(score, q, all);
            if (second) {
                const float2 with_first = own_score(mild.scores.query_first, i);
                d_q = plus(with_first, w_first, d_q);
                first = times(with_first, q);
            }
            set_row<T, form>(shared + room.query, i, d_q);
        }
        if (reads) {
            const float2 held = row_pair<T, form>(shared + room.read, i), r = read_pair<T, form>(held, w),
                         left = make_float2(k.rest[row], k.rest[row]), got = own_pair(own + OWN_BYTES, i);
            float2 d_r = times(up, got);
            if (second) {
                const float2 with_first = own_score(mild.scores.read_first, i);
                d_r = plus(with_first, w_first, d_r);
                first = plus(with_first, times(left, r), first);
            }
            const float2 erased = times(left, d_r);
            const float inverse = k.inverse[row];
            gains[i] = -inverse * (r.x * d_r.x + r.y * d_r.y);
            e = plus(rounded<T>(times(times(r, left), up)), got, e);
            lead_read<T, form>(shared, room, to, i, w, held, erased, all);
        }
        made.d_write[i] = all;
        made.dot[i] = fmaf(w.x, all.x, w.y * all.y);
        made.square[i] = fmaf(w.x, w.x, w.y * w.y);
        if (!row_decays<form>(i)) continue;
        x = plus(-MILD_LOG2, row_pair<float, form>(alpha, i), x);
        suffix = make_float2(suffix.x + e.x, suffix.y + e.y);
        prefix = make_float2(prefix.x + f.x, prefix.y + f.y);
        made.decays.behind[i / steps] = suffix;
        made.decays.written[i / steps] = f;
    }
    made.decays.decayed = false;
    put_warp_sums(k, suffix, prefix);
    if (reads && to.gain) {
        dr_warp_sums<HALF>(gains);
        if (lane % 4 == 0) to.gain[start + lane / 4] = gains[0];
    }
}

/* The rows of a chunk that is mild, or, mild NULL, of any. */
template <typename T, int form>
static __device__ inline void make_all_rows(const dr_cuda_rows &rows, char *shared, const keys_room &room, const keys_rows &k,
                                            char *own, const float (&w)[4][4], const mild_chunk *mild,
                                            const channel_results &to, made_rows<form> &made) {
    if constexpr (keys_may_be_mild<T, form>())
        if (mild) return make_rows_mildly<T, form>(shared, room, k, own, *mild, to, made);
    make_rows<T, form>(rows, shared, room, k, own, w, to, made);
}

#endif
