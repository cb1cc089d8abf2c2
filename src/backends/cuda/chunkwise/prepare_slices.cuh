/* Scores with a decay of each channel, a slice of 32 channels at a time: what prepare_channel.cuh sums over slices. Rows in
 * blocks of 16, a warp each, and these in quarters of 4:
 *
 *     scale     a thread takes a quarter's 4 rows and 4 channels: the scores within the quarter element by element in float32;
 *               r and q from the start of the quarter, w to its end, as tables
 *     score     from earlier quarters by tf32 products (three for float). The decay between the writer's quarter and the
 *               reader's is multiplied to operands: within a block that of quarter 1 to w, of quarter 2 to r and q; between
 *               blocks to r and q as far as the start of their block, to w as far as the end of its own
 *     leave     r, q from the start of the chunk to memory, w to its end to a tile
 *
 * Within a block the columns of w that readers of its quarters 1, 2 and 3 need (4, 8 and 12) fill two operands of 8.
 *
 * With two rows a token (pairs) only the first of them decays and only the second has a query: half the exponentials, and the
 * eight queries of a block are the upper rows of their operand, whose lower ones are zero. */
#ifndef DR_CUDA_PREPARE_SLICES_CUH
#define DR_CUDA_PREPARE_SLICES_CUH

#include "backends/cuda/chunkwise/prepare.cuh"

enum { SLICE = 32, SLICE_ROW = SLICE * 4 /* bytes */, SLICE_REST = 4 };

/* Tables of one slice of channels. Rows of the first three lie by dr_slice_at. */
typedef struct {
    float reader[64][SLICE], query[64][SLICE]; /* times the decay from the start of row i's quarter */
    float writer[64][SLICE];                   /* w times the decay from after row i to the end of its quarter */
    float decay[4][6][SLICE]; /* of a block: of each of its quarters; from SLICE_REST on, from the ends of its first two
                                 quarters to its own. Of the last of these, channel c is at c ^ 16: loads of both meet in no
                                 bank. */
    float total[4][SLICE];    /* of a block, if `totals`: where rows read other keys than they write there is no room for it,
                                 and it is made of the decays of its first quarter and from there on */
} dr_slice_tables;

/* Decay of a block, of four channels. */
template <bool totals>
static __device__ inline void dr_slice_total(const dr_slice_tables &tables, int block, int channel, float (&x)[4]) {
    if (totals) return dr_take_fours(&tables.total[block][channel], x);
    float first[4], rest[4];
    dr_take_fours(&tables.decay[block][0][channel], first);
    dr_take_fours(&tables.decay[block][SLICE_REST][channel], rest);
    DR_UNROLL (e, 4) x[e] = first[e] * rest[e];
}

/* What follows the tables once all slices are done. */
typedef struct {
    float matrix[64][DR_MATRIX_PITCH];
    float near_read[64][4],
        near_query[64][4]; /* [i][d]: the scores of row i and row i - d of the same quarter, without gains */
} dr_slice_results;

/* Where a row of a table has a channel: units of 16 bytes change places with the row, so that no two of eight neighbouring
 * rows, nor of rows 8 to 11 and 0 to 3, have a unit in the same banks. Other channels of the row are reached by ^ with the bits
 * in which they differ. */
static __device__ inline int dr_slice_at(int row, int channel) {
    return row * SLICE + (channel ^ ((row ^ (row >> 1 & 4)) & 7) * 4);
}

/* A thread's quarter of the chunk's rows, and its 4 channels of a slice. What follows from rows alone is found once. */
typedef struct {
    int block, quarter, row, channel; /* row: the first; channel: within the slice */
    int decay[4];                     /* of row i: where its log decays begin, from those of the chunk; -1: it does not decay */
    int query[4];                     /* where its query goes, among those of the chunk; -1: it has none */
    bool undecayed[4];                /* it reads before its decay */
} dr_quarter_place;

/* Which block of rows a warp takes. Later ones are more work, and warps of one number share a scheduler: so the order changes
 * from chunk to chunk, and between groups of four warps that lie on one multiprocessor. */
static __device__ inline int dr_channel_block(const dr_prepare_block &x) {
    const unsigned chunk = (unsigned)x.block;
    return (int)((threadIdx.x / 32 + threadIdx.x / 128 * 2 + chunk + chunk / 4) % 4);
}

static __device__ inline dr_quarter_place dr_quarter_find(const dr_cuda_chunk_plan &plan, const dr_prepare_block &x, int steps,
                                                          bool undecayed) {
    const int lane = (int)(threadIdx.x % 32), block = dr_channel_block(x);
    const int stride = (int)plan.rows.input[DR_INPUT_LOG_DECAY].token;
    dr_quarter_place at = {block, lane / 8, block * 16 + lane / 8 * 4, lane % 8 * 4};
    DR_UNROLL (i, 4) {
        int token = at.row + i, step = 0;
        const bool alive = token < x.alive;
        if (steps > 1) step = token % steps, token /= steps;
        at.decay[i] = alive && step == 0 ? token * stride : -1;
        at.query[i] = step == steps - 1 && token < plan.chunk ? token * plan.key_width : -1;
        at.undecayed[i] = undecayed && step == 0;
    }
    return at;
}

/* Scores within a quarter, of row i and row j <= i at i (i + 1) / 2 + j; over the thread's channels. */
typedef struct {
    float read[10], asked[10];
} dr_quarter_sums;

/* The keys, [row][channel], and what becomes of them. */
typedef struct {
    float reader[4][4], query[4][4], writer[4][4];
} dr_quarter_keys;

/* Decays from the start of the block to the quarter, and from the quarter to the block's end. */
typedef struct {
    float before[4], rest[4];
} dr_quarter_decays;

/* Tables hold numbers for tf32 products that are not exact: dr_round_tf32 says why. */
template <typename T> static __device__ inline float dr_slice_lift() {
    return sizeof(T) == 4 ? 1.0f : 1.000345f;
}

/* Whether row i of a quarter may have a query, or a decay. */
template <bool pairs> static __device__ constexpr bool dr_quarter_asks(int i) {
    return !pairs || i % 2 == 1;
}

template <bool pairs> static __device__ constexpr bool dr_quarter_decays_at(int i) {
    return !pairs || i % 2 == 0;
}

/* Where the query of a row of the chunk stands among those of the table. */
template <bool pairs> static __device__ inline int dr_query_row(int row) {
    return pairs ? row / 2 : row;
}

/* Log decays of the quarter's rows, four channels of `from`, of which `left` exist; 0 where a row does not decay. */
template <bool pairs>
static __device__ inline void dr_slice_fetch(const dr_quarter_place &at, const float *from, int left, bool aligned,
                                             float (&g)[4][4]) {
    if (aligned) {
        DR_UNROLL (i, 4) {
            if (!dr_quarter_decays_at<pairs>(i)) continue;
            float4 all = make_float4(0, 0, 0, 0);
            if (at.decay[i] >= 0 && left > 0) all = __ldg((const float4 *)(from + at.decay[i]));
            g[i][0] = all.x, g[i][1] = all.y, g[i][2] = all.z, g[i][3] = all.w;
        }
        return;
    }
    DR_UNROLL (i, 4)
        DR_UNROLL (e, 4) g[i][e] = at.decay[i] >= 0 && e < left ? from[at.decay[i] + e] : 0.0f;
}

/* The thread's quarter: adds to its scores; its keys with their decays, and the quarter's own. */
template <typename T, bool pairs>
static __device__ inline void dr_quarter_scale(const dr_quarter_place &at, bool reads, const float (&g)[4][4],
                                               const dr_tile_words<T> (&reader)[4], const dr_tile_words<T> (&query)[4],
                                               const dr_tile_words<T> (&writer)[4], dr_quarter_sums &sums, dr_quarter_keys &x,
                                               float (&total)[4]) {
    DR_UNROLL (e, 4) {
        float alpha[4], f[4]; /* f: w of row j times its decay up to before the row at hand */
        DR_UNROLL (i, 4) alpha[i] = dr_quarter_decays_at<pairs>(i) ? dr_channel_alpha<T>(g[i][e]) : 1.0f;
        float head = dr_slice_lift<T>(), tail = head;
        DR_UNROLL (i, 4) {
            const int first = i * (i + 1) / 2;
            const float r = dr_tile_channel<T>(reader[i], e),
                        q = dr_quarter_asks<pairs>(i) ? dr_tile_channel<T>(query[i], e) : 0;
            const float read = r * (at.undecayed[i] ? 1.0f : alpha[i]), asked = q * alpha[i];
            DR_UNROLL (j, i) {
                if (dr_quarter_asks<pairs>(i)) sums.asked[first + j] = fmaf(asked, f[j], sums.asked[first + j]);
                if (reads) sums.read[first + j] = fmaf(read, f[j], sums.read[first + j]);
                f[j] *= alpha[i];
            }
            f[i] = dr_tile_channel<T>(writer[i], e); /* no decay lies between a row and itself */
            if (dr_quarter_asks<pairs>(i)) sums.asked[first + i] = fmaf(q, f[i], sums.asked[first + i]);
            if (reads) sums.read[first + i] = fmaf(r, f[i], sums.read[first + i]);
            x.query[i][e] = asked * head;
            x.reader[i][e] = read * head;
            head *= alpha[i];
        }
#pragma unroll
        for (int i = 3; i >= 0; i--) {
            x.writer[i][e] = tail * dr_tile_channel<T>(writer[i], e);
            tail *= alpha[i];
        }
        total[e] = alpha[0] * alpha[1] * (alpha[2] * alpha[3]);
    }
}

/* All tables of a slice. */
template <typename T, bool pairs, bool totals>
static __device__ inline void dr_slice_tabulate(dr_slice_tables &tables, const dr_quarter_place &at, const char *writer,
                                                const char *reader, const char *query, int slice, bool reads,
                                                const float (&g)[4][4], dr_quarter_sums &sums, dr_quarter_keys &x,
                                                dr_quarter_decays &decays) {
    float total[4];
    dr_tile_words<T> read[4], asked[4], written[4];
    DR_UNROLL (i, 4) {
        written[i] = dr_tile_take<T>(writer, at.row + i, slice + at.channel);
        asked[i] = written[i];
        if (dr_quarter_asks<pairs>(i)) asked[i] = dr_tile_take<T>(query, at.row + i, slice + at.channel);
        read[i] = written[i];
    }
    if (reader != writer)
        DR_UNROLL (i, 4) read[i] = dr_tile_take<T>(reader, at.row + i, slice + at.channel);
    dr_quarter_scale<T, pairs>(at, reads, g, read, asked, written, sums, x, total);
    DR_UNROLL (i, 4) {
        const int own = dr_slice_at(at.row + i, at.channel);
        dr_put_four<float>(tables.writer[0] + own, x.writer[i]);
        if (dr_quarter_asks<pairs>(i))
            dr_put_four<float>(tables.query[0] + dr_slice_at(dr_query_row<pairs>(at.row + i), at.channel), x.query[i]);
        if (reads) dr_put_four<float>(tables.reader[0] + own, x.reader[i]);
    }
    dr_put_four<float>(&tables.decay[at.block][at.quarter][at.channel], total);
    DR_UNROLL (e, 4) { /* the other quarter of the same half, the other half */
        const float other = __shfl_xor_sync(0xffffffffu, total[e], 8), half = total[e] * other;
        const float far = __shfl_xor_sync(0xffffffffu, half, 16);
        decays.before[e] = (at.quarter & 1 ? other : 1.0f) * (at.quarter & 2 ? far : 1.0f);
        decays.rest[e] = (at.quarter & 1 ? 1.0f : other) * (at.quarter & 2 ? 1.0f : far);
        total[e] = half * far;
    }
    if (totals && at.quarter == 0) dr_put_four<float>(&tables.total[at.block][at.channel], total);
    if (at.quarter < 2)
        dr_put_four<float>(&tables.decay[at.block][SLICE_REST + at.quarter][at.channel ^ at.quarter * 16], decays.rest);
}

/* ---- products --------------------------------------------------------------------------------------------------------- */

/* 16 rows and 8 channels of a table, as an operand A without a type; two operands B of 8 rows each. at: of each lane's row, in
 * bytes. */
static __device__ inline void dr_slice_load(float (&x)[4], const void *table, unsigned at) {
    unsigned word[4];
    dr_load_matrices(word, dr_shared_address(table) + at);
    DR_UNROLL (i, 4) x[i] = __uint_as_float(word[i]);
}

/* Scores of 16 readers or queries and eight writers, over eight channels. */
template <bool precise>
static __device__ inline void dr_slice_multiply(float (&c)[4], const float (&rows)[4], const float *writers) {
    dr_eight_a<precise> a;
    dr_eight_b<precise> w;
    DR_UNROLL (i, 4) dr_round<precise, true>(rows[i], a.high[i], a.low[i]);
    DR_UNROLL (i, 2) dr_round<precise, true>(writers[i], w.high[i], w.low[i]);
    dr_product_rounded<precise>(c, a.high, a.low, w.high, w.low);
}

/* Scores of twice eight writers and eight queries, transposed. */
template <bool precise>
static __device__ inline void dr_slice_multiply_turned(float (&c)[4], const float *upper, const float *lower,
                                                       const float (&queries)[4]) {
    dr_eight_a<precise> w;
    dr_eight_b<precise> b;
    DR_UNROLL (i, 2) {
        dr_round<precise, true>(upper[i], w.high[2 * i], w.low[2 * i]);
        dr_round<precise, true>(lower[i], w.high[2 * i + 1], w.low[2 * i + 1]);
        dr_round<precise, true>(queries[i], b.high[i], b.low[i]);
    }
    dr_product_rounded<precise>(c, w.high, w.low, b.high, b.low);
}

/* Scores of the warp's rows: with blocks before theirs in l and p; with earlier quarters of their own in `own`, whose columns
 * are w of rows 0..7 for readers of quarters 2 and 3, and w of rows 8..11 for quarter 3 and of 0..3 for quarter 1. What else is
 * in those products is not used. Of the queries of pairs, eight a block, p and own_p hold transposed scores, of 16 writers
 * each: p[b] of block b, own_p[0] of what is for quarters 2 and 3, the upper half of own_p[1] of the rest. */
template <bool precise, bool pairs, bool totals>
static __device__ inline void dr_slice_scores(const dr_slice_tables &tables, int block, bool reads, float (&l)[8][4],
                                              float (&p)[8][4], float (&own_l)[2][4], float (&own_p)[2][4]) {
    const int lane = (int)(threadIdx.x % 32), g = lane / 4, t = lane % 4, r = lane % 8;
    const bool second = g >= 4;
    const int own_row = block * 16 + (lane < 16 ? r : r < 4 ? 8 + r : r - 4);
    /* places in the tables, found once: only k moves */
    const auto place = [](int row, int channel) { return dr_forget((unsigned)dr_slice_at(row, channel) * 4); }; /* bytes */
    const unsigned row = place(block * 16 + lane % 16, lane / 16 * 4), own = place(own_row, lane / 8 % 2 * 4),
                   writer = place(lane / 16 * 8 + r, lane / 8 % 2 * 4), asked = pairs ? place(block * 8 + g, t) : 0,
                   mine = dr_forget(block * (int)sizeof tables.decay[0] + t * 4),
                   rest = dr_forget((SLICE_REST + g / 4) * SLICE_ROW + (t ^ g / 4 * 16) * 4);
    const auto number = [](const void *table, unsigned at) { return *(const float *)((const char *)table + at); };
    const auto decay_of = [&](int b, int i, unsigned at) { return number(tables.decay[b][i], at); };
#pragma unroll 1
    for (unsigned k = 0; k < SLICE_ROW; k += 32) { /* bytes of eight channels */
        float reader[4] = {}, query[4];
        if (reads) dr_slice_load(reader, tables.reader, row ^ k);
        if constexpr (pairs) {
            DR_UNROLL (i, 2) query[i] = number(tables.query, asked ^ (k + i * 16));
        } else {
            dr_slice_load(query, tables.query, row ^ k);
        }
        float decay[3][2], w[4], near[2]; /* near: w of rows 0..7 for quarter 2 */
        DR_UNROLL (q, 3)
            DR_UNROLL (i, 2) decay[q][i] = decay_of(0, q, mine + k + i * 16);
        dr_slice_load(w, tables.writer, own ^ k);
        if (reads) dr_slice_multiply<precise>(own_l[1], reader, w + 2);
        if constexpr (!pairs) dr_slice_multiply<precise>(own_p[1], query, w + 2);
        DR_UNROLL (i, 2) near[i] = second ? w[i] : w[i] * decay[1][i];
        if constexpr (pairs) {
            const float none[2] = {};
            float far[2];
            DR_UNROLL (i, 2) far[i] = near[i] * decay[2][i];
            dr_slice_multiply_turned<precise>(own_p[0], near, far, query);
            dr_slice_multiply_turned<precise>(own_p[1], w + 2, none, query);
        }
        DR_UNROLL (i, 2) { /* quarter 3 sees quarter 2 go by as well */
            const float late = second ? decay[2][i] : 1.0f;
            reader[2 * i + 1] *= late;
            if constexpr (!pairs) query[2 * i + 1] *= late;
        }
        if (reads) dr_slice_multiply<precise>(own_l[0], reader, near);
        if constexpr (!pairs) dr_slice_multiply<precise>(own_p[0], query, near);
        if (block == 0) continue;
        /* from the start of the block: quarters 0 and 1 in the upper rows, 2 and 3 in the lower ones; two of pairs' queries
         * a quarter */
        DR_UNROLL (i, 2) {
            const float upper = second ? decay[0][i] : 1.0f, half = decay[0][i] * decay[1][i];
            reader[2 * i] *= upper, reader[2 * i + 1] *= half;
            if constexpr (pairs)
                query[i] *= second ? (g & 2 ? half * decay[2][i] : half) : g & 2 ? decay[0][i] : 1.0f;
            else
                query[2 * i] *= upper, query[2 * i + 1] *= half;
        }
#pragma unroll
        for (int b = 2; b >= 0; b--)
            if (b < block) {
                dr_slice_load(w, tables.writer[b * 16], writer ^ k);
                DR_UNROLL (n, 2) {
                    DR_UNROLL (i, 2) {
                        const float late = decay_of(b, 3, t * 4 + k + i * 16);
                        w[2 * n + i] *= n == 0 ? decay_of(b, 0, (rest ^ k) + i * 16) : second ? 1.0f : late;
                    }
                    if (reads) dr_slice_multiply<precise>(l[2 * b + n], reader, w + 2 * n);
                    if constexpr (!pairs) dr_slice_multiply<precise>(p[2 * b + n], query, w + 2 * n);
                }
                if constexpr (pairs) dr_slice_multiply_turned<precise>(p[b], w, w + 2, query);
                if (b > 0)
                    DR_UNROLL (i, 2) {
                        const unsigned at = t * 4 + k + i * 16;
                        const float total =
                            totals ? number(tables.total[b], at) : decay_of(b, 0, at) * decay_of(b, SLICE_REST, at);
                        reader[2 * i] *= total, reader[2 * i + 1] *= total;
                        if constexpr (pairs)
                            query[i] *= total;
                        else
                            query[2 * i] *= total, query[2 * i + 1] *= total;
                    }
            }
    }
}

/* Puts what is in `own` to its place among the columns of the warp's own block. */
static __device__ inline void dr_slice_place(int block, const float (&own)[2][4], float (&scores)[8][4]) {
    float first[2]; /* rows of quarter 1, columns 0..3, which stand four columns on */
    DR_UNROLL (e, 2) first[e] = __shfl_xor_sync(0xffffffffu, own[1][e], 2);
#pragma unroll
    for (int n = 0; n < 8; n += 2)
        DR_UNROLL (e, 2) { /* no branches: they would take the array out of registers */
            const bool here = n == 2 * block;
            scores[n][e] = here ? first[e] : scores[n][e];
            scores[n][2 + e] = here ? own[0][2 + e] : scores[n][2 + e];
            scores[n + 1][2 + e] = here ? own[1][2 + e] : scores[n + 1][2 + e];
        }
}

/* 8 x 8 numbers of an accumulator, transposed: the upper rows of one. */
static __device__ inline void dr_slice_turn(float left, float right, float (&turned)[4]) {
    const int g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    DR_UNROLL (e, 2) {
        const int from = (2 * t + e) * 4 + g / 2;
        const float even = __shfl_sync(0xffffffffu, left, from), odd = __shfl_sync(0xffffffffu, right, from);
        turned[e] = g % 2 ? odd : even;
        turned[2 + e] = 0;
    }
}

/* Of pairs: what is in `own` to its place among the rows of the warp's own block, and the scores turned: queries are the upper
 * eight rows. */
static __device__ inline void dr_slice_place_pairs(int block, const float (&own)[2][4], float (&p)[8][4]) {
    const int quarter = (int)(threadIdx.x % 4); /* of the queries in this lane's columns */
    float first[2];                             /* rows 0..3, which stand four rows on */
    DR_UNROLL (e, 2) first[e] = __shfl_xor_sync(0xffffffffu, own[1][e], 16);
#pragma unroll
    for (int b = 3; b >= 0; b--) {
        float x[4];
        DR_UNROLL (e, 2) {
            const float near = quarter < 2 ? first[e] : quarter == 2 ? own[0][e] : own[0][2 + e];
            x[e] = b == block ? near : p[b][e];
            x[2 + e] = b == block ? own[1][e] : p[b][2 + e];
        }
        dr_slice_turn(x[0], x[1], p[2 * b]);
        dr_slice_turn(x[2], x[3], p[2 * b + 1]);
    }
}

/* Four channels of W~: a tile of floats or, where a warp group multiplies it, one of T and one of what that lost. */
template <typename T>
static __device__ inline void dr_leaving_put(char *leaving, int width, int row, int column, const float (&y)[4]) {
#ifdef DR_CUDA_WARPGROUPS
    if constexpr (sizeof(T) == 2) {
        uint2 high, low;
        dr_halve<T>(y[0], y[1], high.x, low.x);
        dr_halve<T>(y[2], y[3], high.y, low.y);
        char *to = leaving + dr_tile_at<T>(0, 64, row, column);
        *(uint2 *)to = high;
        *(uint2 *)(to + width * 128) = low;
        return;
    }
#endif
    dr_put_four<float>((float *)(leaving + dr_tile_at<float>(0, 64, row, column)), y);
}

/* Four channels to memory by one store: a plain one of a pair of words the compiler takes apart. */
template <typename T> static __device__ inline void dr_slice_put(T *to, const float (&y)[4]) {
    if constexpr (sizeof(T) == 2)
        __stwb((uint2 *)to, make_uint2(dr_pack(T(), y[0], y[1]), dr_pack(T(), y[2], y[3])));
    else
        __stwb((float4 *)to, make_float4(y[0], y[1], y[2], y[3]));
}

/* Four numbers that the thread has put to a table: held or, where it has no registers for that, taken from there. */
template <bool again> static __device__ inline void dr_quarter_again(const float (&held)[4], const float *from, float (&x)[4]) {
    if (again) {
        dr_take_fours(from, x);
    } else {
        DR_UNROLL (e, 4) x[e] = held[e];
    }
}

/* Decayed readers to memory, decayed write keys to their tile or, where no row reads, to memory, too: they are X then. */
template <typename T, bool pairs, bool totals, bool again>
static __device__ inline void dr_slice_leave(const dr_cuda_chunk_plan &plan, bool reads, const dr_slice_tables &tables,
                                             const dr_quarter_place &at, const dr_quarter_keys &keys,
                                             const dr_quarter_decays &decays, char *leaving, int slice, T *reader_to,
                                             T *query_to, T *exit_to) {
    const float lower = 1.0f / dr_slice_lift<T>();
    float before[4], after[4];
    DR_UNROLL (e, 4) before[e] = lower * decays.before[e], after[e] = lower * decays.rest[e];
    DR_UNROLL (b, 4) {
        if (b == at.block) continue;
        float total[4];
        dr_slice_total<totals>(tables, b, at.channel, total);
        DR_UNROLL (e, 4)
            if (b < at.block)
                before[e] *= total[e];
            else
                after[e] *= total[e];
    }
    const int column = slice + at.channel;
    reader_to += at.row * plan.key_width + column; /* then from row to row, or each address is made from the start */
    DR_UNROLL (i, 4) {
        const int row = at.row + i, own = dr_slice_at(row, at.channel);
        float x[4], y[4];
        if (reads) {
            dr_quarter_again<again>(keys.reader[i], tables.reader[0] + own, x);
            DR_UNROLL (e, 4) y[e] = before[e] * x[e];
            dr_slice_put<T>(reader_to, y);
            reader_to += plan.key_width;
        }
        if (dr_quarter_asks<pairs>(i) && at.query[i] >= 0) {
            dr_quarter_again<again>(keys.query[i], tables.query[0] + dr_slice_at(dr_query_row<pairs>(row), at.channel), x);
            DR_UNROLL (e, 4) y[e] = before[e] * x[e];
            dr_slice_put<T>(query_to + at.query[i] + column, y);
        }
        dr_quarter_again<again>(keys.writer[i], tables.writer[0] + own, x);
        DR_UNROLL (e, 4) y[e] = after[e] * x[e];
        if (reads)
            dr_leaving_put<T>(leaving, plan.key_width, row, column, y);
        else
            dr_slice_put<T>(exit_to + row * plan.key_width + column, y);
    }
    for (int i = plan.chunk + at.block; i < plan.query_rows; i += 4)
        query_to[i * plan.key_width + slice + threadIdx.x % 32] = dr_from_float<T>(0.0f);
}

/* The sums of all threads of a quarter, to results. */
template <bool pairs>
static __device__ inline void dr_quarter_put(const dr_quarter_place &at, const dr_quarter_sums &sums,
                                             dr_slice_results &results) {
    DR_UNROLL (i, 4)
#pragma unroll
        for (int j = 0; j <= i; j++) {
            float read = sums.read[i * (i + 1) / 2 + j], asked = sums.asked[i * (i + 1) / 2 + j];
#pragma unroll
            for (int step = 4; step > 0; step /= 2) {
                read += __shfl_xor_sync(0xffffffffu, read, step);
                if (dr_quarter_asks<pairs>(i)) asked += __shfl_xor_sync(0xffffffffu, asked, step);
            }
            if (at.channel != 0) continue;
            results.near_read[at.row + i][i - j] = read;
            if (dr_quarter_asks<pairs>(i)) results.near_query[at.row + i][i - j] = asked;
        }
}

#endif
