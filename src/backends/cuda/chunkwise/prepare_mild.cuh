/* Scores with a decay of each channel, of mild chunks: none of their log decays is positive, and those of no channel sum to
 * less than -MILD_MOST. With a_i a channel's sum up to row i and a that of the chunk,
 *
 *     r_i e^(a_i - a/2)      q_i e^(a_i - a/2)      w_j e^(a/2 - a_j)
 *
 * are then numbers that a float holds, since no exponent leaves +-MILD_MOST / 2. So of a slice of 32 channels they are tables,
 * all of whose scores are tf32 products of a warp group, and times e^(a/2) they are what leaves. A product of two of them is as
 * exact as r_i w_j e^(a_i - a_j): each rounds what it is made of, and nothing cancels. What stands above the diagonal may be
 * infinite; masks leave it out by choosing.
 *
 * Other chunks go by prepare_slices.cuh, which takes no quotient of decays. So it follows from a chunk's data which way it
 * goes, on sm_90a for 16-bit types and rules that prepare has forms for. */
#ifndef DR_CUDA_PREPARE_MILD_CUH
#define DR_CUDA_PREPARE_MILD_CUH

#include "backends/cuda/chunkwise/mild.cuh"
#include "backends/cuda/chunkwise/prepare_slices.cuh"

/* Tables of one slice of channels, rows of 128 bytes as products want them. Behind them what is there all the time: of each
 * block of 16 rows the sums of log decays, of each row the gain. */
typedef struct {
    float reader[64][SLICE], query[64][SLICE], writer[64][SLICE];
    float sum[4][128];
    float gain[64];
} dr_mild_tables;

static_assert(sizeof(dr_mild_tables) <= offsetof(dr_slice_tables, total), "there is no room for the tables of mild chunks");
static_assert(sizeof(dr_slice_results) <= offsetof(dr_mild_tables, gain), "gains lie where the matrix will be");
static_assert(sizeof(dr_inside_room) <= offsetof(dr_mild_tables, sum), "the diagonal scan lies where decays are summed");

/* Sums of log decays over a block of rows, of channels 4 lane ..; such that the chunk is not mild where chunks go the other
 * way whatever their data. */
template <bool pairs>
static __device__ inline void dr_mild_sum(const dr_cuda_chunk_plan &plan, const dr_prepare_block &x, int block,
                                          float (&sum)[4]) {
    constexpr int tokens = pairs ? 8 : 16; /* only the first row of a token decays */
    const dr_cuda_rows &rows = plan.rows;
    const dr_cuda_input &decays = rows.input[DR_INPUT_LOG_DECAY];
    const bool may = rows.aligned && plan.key_width <= 128;
    const int channel = (int)(threadIdx.x % 32) * 4, first = block * tokens;
    const int left = channel < rows.key_size ? x.place.tokens - first : 0;
    const float *from = (const float *)decays.at + (x.place.first + first) * decays.token + x.head * decays.head + channel;
    float most = may ? 0.0f : 1.0f;
    DR_UNROLL (e, 4) sum[e] = 0;
    const auto add = [&](float4 g) {
        sum[0] += g.x, sum[1] += g.y, sum[2] += g.z, sum[3] += g.w;
        most = fmaxf(fmaxf(most, fmaxf(g.x, g.y)), fmaxf(g.z, g.w));
    };
    if (may && left >= tokens) {
        float4 g[tokens];
#pragma unroll
        for (int i = 0; i < tokens; i++, from += decays.token) g[i] = __ldg((const float4 *)from);
        DR_UNROLL (i, tokens) add(g[i]);
    } else {
#pragma unroll 1
        for (int i = 0; may && i < left; i++, from += decays.token) add(__ldg((const float4 *)from));
    }
    DR_UNROLL (e, 4) sum[e] = dr_mild_sum_of(sum[e], most);
}

/* Decays of the chunk, of each channel, by one warp. */
static __device__ inline void dr_mild_keep(const dr_mild_span<4> &span, int width, float *keep) {
    const int channel = (int)(threadIdx.x % 32) * 4;
    if (channel >= width) return;
    *(float4 *)(keep + channel) = make_float4(dr_exp2_near(2 * span.half[0]), dr_exp2_near(2 * span.half[1]),
                                              dr_exp2_near(2 * span.half[2]), dr_exp2_near(2 * span.half[3]));
}

/* Four numbers to a row of a table. */
static __device__ inline void dr_mild_put(const float (&table)[64][SLICE], int row, int channel, const float (&x)[4]) {
    dr_store_shared4(dr_shared_address(table[row] + (channel ^ (row & 7) * 4)), x);
}

/* A slice's tables, of the thread's quarter and channels, and what leaves of them. */
template <typename T, bool pairs, bool reads, bool tied>
static __device__ inline void dr_mild_tabulate(const dr_cuda_chunk_plan &plan, dr_mild_tables &tables,
                                               const dr_quarter_place &at, const dr_mild_span<4> &span, const float (&g)[4][4],
                                               const char *writer, const char *reader, const char *query, char *leaving,
                                               int slice, T *reader_to, T *query_to, T *exit_to) {
    float x[4], leave[4];
    const int lane = (int)(threadIdx.x % 32), from = slice / 4 + lane % 8, column = slice + at.channel;
    DR_UNROLL (e, 4) {
        float sum = 0; /* of the block's quarters before */
        DR_UNROLL (i, 4)
            if (dr_quarter_decays_at<pairs>(i)) sum += g[i][e];
#pragma unroll
        for (int step = 8; step < 32; step *= 2) {
            const float before = __shfl_up_sync(0xffffffffu, sum, step);
            sum += lane >= step ? before : 0.0f;
        }
        sum = __shfl_up_sync(0xffffffffu, sum, 8);
        x[e] = fmaf(MILD_LOG2, lane < 8 ? 0.0f : sum, __shfl_sync(0xffffffffu, span.start[e], from));
        leave[e] = dr_exp2_near(__shfl_sync(0xffffffffu, span.half[e], from));
    }
    reader_to += at.row * plan.key_width + column; /* then from row to row, or each address is made from the start */
    float up[4], down[4], y[4], seen[4];           /* seen: by what is read */
    DR_UNROLL (e, 4) up[e] = dr_exp2_near(x[e]);
    DR_UNROLL (i, 4) {
        const int row = at.row + i;
        const dr_tile_words<T> written = dr_tile_take<T>(writer, row, column);
        if (dr_quarter_decays_at<pairs>(i)) {
            DR_UNROLL (e, 4) {
                seen[e] = up[e], x[e] = fmaf(MILD_LOG2, g[i][e], x[e]);
                up[e] = dr_exp2_near(x[e]), down[e] = dr_exp2_near(-x[e]);
            }
        }
        if (reads) {
            const dr_tile_words<T> read = tied ? written : dr_tile_take<T>(reader, row, column);
            DR_UNROLL (e, 4) y[e] = (at.undecayed[i] ? seen[e] : up[e]) * dr_tile_channel<T>(read, e);
            dr_mild_put(tables.reader, row, at.channel, y);
            DR_UNROLL (e, 4) y[e] *= leave[e];
            dr_slice_put<T>(reader_to, y);
            reader_to += plan.key_width;
        }
        if (dr_quarter_asks<pairs>(i)) {
            const dr_tile_words<T> asked = dr_tile_take<T>(query, row, column);
            DR_UNROLL (e, 4) y[e] = up[e] * dr_tile_channel<T>(asked, e);
            /* of pairs a block's eight queries are the upper rows of its 16 */
            dr_mild_put(tables.query, pairs ? at.block * 16 + row % 16 / 2 : row, at.channel, y);
            DR_UNROLL (e, 4) y[e] *= leave[e];
            if (at.query[i] >= 0) dr_slice_put<T>(query_to + at.query[i] + column, y);
        }
        DR_UNROLL (e, 4) y[e] = down[e] * dr_tile_channel<T>(written, e);
        dr_mild_put(tables.writer, row, at.channel, y);
        DR_UNROLL (e, 4) y[e] *= leave[e];
        if (reads)
            dr_leaving_put<T>(leaving, plan.key_width, row, column, y);
        else
            dr_slice_put<T>(exit_to + row * plan.key_width + column, y);
    }
    for (int i = plan.chunk + at.block; i < plan.query_rows; i += 4)
        query_to[i * plan.key_width + slice + lane] = dr_from_float<T>(0.0f);
}

/* Adds the slice's scores: rows 16 warp .., all columns. */
template <bool reads> static __device__ inline void dr_mild_scores(unsigned tables, float (&l)[8][4], float (&p)[8][4]) {
#ifdef DR_CUDA_WARPGROUPS
    const uint64_t r = dr_group_operand(tables + offsetof(dr_mild_tables, reader), 16),
                   q = dr_group_operand(tables + offsetof(dr_mild_tables, query), 16),
                   w = dr_group_operand(tables + offsetof(dr_mild_tables, writer), 16);
    dr_group_begin();
#pragma unroll
    for (unsigned k = 0; k < SLICE_ROW; k += 32) {
        if (reads) dr_group_multiply_tf32(l, dr_group_forward(r, k), dr_group_forward(w, k));
        dr_group_multiply_tf32(p, dr_group_forward(q, k), dr_group_forward(w, k));
    }
    dr_group_commit();
    dr_group_wait<0>();
#endif
}

/* Masks, gains and scale; what tf32 has cut from both operands is lifted. */
template <bool pairs>
static __device__ inline void dr_mild_mask(float scale, const float *gains, int warp, float (&l)[8][4], float (&p)[8][4]) {
    constexpr float lift = DR_CUT_LIFT * DR_CUT_LIFT;
    const int g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    const float gain[2] = {lift * gains[warp * 16 + g], lift * gains[warp * 16 + g + 8]};
    scale *= lift;
    DR_UNROLL (n, 8)
        DR_UNROLL (e, 4) {
            const int column = n % 2 * 8 + 2 * t + e % 2, row = g + e / 2 * 8, asker = pairs ? 2 * g + 1 : row;
            const bool before = n / 2 < warp, own = n / 2 == warp;
            l[n][e] = before || (own && column < row) ? gain[e / 2] * l[n][e] : 0.0f;
            p[n][e] = (before || (own && column <= asker)) && (!pairs || e < 2) ? scale * p[n][e] : 0.0f;
        }
}

#endif
