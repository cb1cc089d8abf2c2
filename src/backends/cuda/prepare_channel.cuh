/* Prepare with a decay of each channel. As prepare.cuh, but for the scores, whose decay stands inside the contraction, and the
 * decayed readers, which are stored.
 *
 * Every factor is a product of decays, none a quotient, so 0 and underflow need no care. 32 channels at a time, rows in blocks
 * of 16 and these in quarters of 4:
 *
 *     quarter of the column before that of the row    (r f(at, e)) (w f(e, j + 1))^T with the end e of the column's quarter or,
 * from another block, of its block: tf32 products (three for float) same quarter                                    element by
 * element in float32, at most 3 factors
 *
 * The columns of one quarter take part in a product whose other columns are zeros, so the three products of a block on the
 * diagonal add up in the same accumulators. */
#ifndef DR_CUDA_PREPARE_CHANNEL_CUH
#define DR_CUDA_PREPARE_CHANNEL_CUH

#include "backends/cuda/prepare.cuh"

enum { SLICE = 32, SLICE_PITCH = 40 /* rows of 8 bytes from 4 rows lie in different banks */ };

/* Tables of one slice of channels, and what follows them once all slices are done. */
typedef struct {
    float alpha[64][SLICE + 4];  /* narrower: two thread blocks have room on a Hopper multiprocessor with K = 128 */
    float head[64][SLICE_PITCH]; /* from the start of row i's quarter to after row i */
    float writer[64][SLICE + 4]; /* w times the decay from after row i to the end of its quarter */
    float quarter[16][SLICE];    /* decay of a quarter */
    float rest[16][SLICE];       /* from the end of a quarter to the end of its block */
    float total[4][SLICE];       /* of a block */
} dr_slice_tables;

typedef struct {
    float matrix[64][DR_MATRIX_PITCH];
    float near_read[64][4],
        near_query[64][4]; /* [i][d]: the scores of row i and row i - d of the same quarter, without gains */
} dr_slice_results;

typedef struct {
    int writer, reader, query, leaving, tables, gain, dot, bytes;
} dr_channel_room;

static __host__ __device__ inline dr_channel_room dr_channel_lay(const dr_cuda_chunk_plan &plan, int element) {
    dr_channel_room room;
    const int tile = 64 * plan.key_width * element;
    const bool reader = plan.reads && !dr_rows_tied(plan.rows);
    room.writer = 0;
    room.query = tile;
    room.reader = reader ? 2 * tile : 0;
    int end = reader ? 3 * tile : 2 * tile;
    room.leaving = 0; /* float: in the place of the write keys */
    if (element != 4) {
        room.leaving = end;
        end += 64 * plan.key_width * 4;
    }
    room.tables = end;
    room.gain = room.tables + (int)sizeof(dr_slice_tables);
    room.dot = room.gain + 64 * (int)sizeof(float);
    room.bytes = room.dot + 64 * (int)sizeof(float);
    return room;
}

/* One block of 16 rows, by one warp, a channel a lane. g: log decays of the rows, or 0. */
template <typename T>
static __device__ inline void dr_slice_tabulate(dr_slice_tables &tables, const char *writer, int channel,
                                                const float (&g)[16]) {
    const int block = (int)(threadIdx.x / 32), c = (int)(threadIdx.x % 32);
    float total = 1, rest = 1;
#pragma unroll
    for (int q = 3; q >= 0; q--) {
        float alpha[4], head = 1, tail = 1;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = block * 16 + q * 4 + i;
            alpha[i] = sizeof(T) == 4 ? expf(g[q * 4 + i]) : __expf(g[q * 4 + i]);
            head *= alpha[i];
            tables.alpha[row][c] = alpha[i];
            tables.head[row][c] = head;
        }
        tables.quarter[block * 4 + q][c] = head;
        tables.rest[block * 4 + q][c] = rest;
        rest *= head;
        total *= head;
#pragma unroll
        for (int i = 3; i >= 0; i--) {
            const int row = block * 16 + q * 4 + i;
            tables.writer[row][c] = tail * dr_to_float(*(const T *)(writer + dr_tile_at<T>(0, 64, row, channel)));
            tail *= alpha[i];
        }
    }
    tables.total[block][c] = total;
}

/* Log decays of the warp's block, channel a lane; 0 where a row does not decay. */
static __device__ inline void dr_slice_fetch(const dr_cuda_rows &rows, const dr_prepare_block &x, int channel, float (&g)[16]) {
    const dr_cuda_input &input = rows.input[DR_INPUT_LOG_DECAY];
    const float *from = (const float *)input.at + x.place.first * input.token + x.head * input.head + channel;
    const int first = (int)(threadIdx.x / 32) * 16;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int row = first + i, token = dr_row_token(rows, row);
        const bool decays = row < x.alive && row == token * rows.steps && channel < rows.key_size;
        g[i] = decays ? from[token * input.token] : 0.0f;
    }
}

/* Two neighbouring channels of a tile. */
template <typename T> static __device__ inline float2 dr_tile_pair(const char *tile, int row, int column) {
    const T *at = (const T *)(tile + dr_tile_at<T>(0, 64, row, column));
    return make_float2(dr_to_float(at[0]), dr_to_float(at[1]));
}

static __device__ inline float2 operator*(float2 x, float2 y) {
    return make_float2(x.x * y.x, x.y * y.y);
}

/* What a warp's two rows of a lane, g and g + 8 of its block, bring to a product: their decay from the reference. */
typedef struct {
    float2 upper, lower;
} dr_row_pair;

template <bool precise>
static __device__ inline void dr_slice_operand(dr_eight_a<precise> &a, const dr_row_pair &x, const dr_row_pair &decay) {
    const float2 upper = x.upper * decay.upper, lower = x.lower * decay.lower;
    dr_round<precise>(upper.x, a.high[0], a.low[0]);
    dr_round<precise>(lower.x, a.high[1], a.low[1]);
    dr_round<precise>(upper.y, a.high[2], a.low[2]);
    dr_round<precise>(lower.y, a.high[3], a.low[3]);
}

/* Decays from references to what the rows of a lane read: from the ends of quarters 0, 1, 2 of their block (0 where that lies
 * behind them) and from its start. */
typedef struct {
    dr_row_pair end[3], start;
} dr_reader_decays;

static __device__ inline dr_reader_decays dr_slice_decays(float2 upper, float2 lower, const float2 (&quarter)[3], bool second) {
    const float2 zero = make_float2(0, 0);
    dr_reader_decays d;
    /* upper row: quarter 0 or (second) 1; lower row: quarter 2 or 3 */
    d.end[2].upper = zero, d.end[1].upper = zero;
    d.end[0].upper = second ? upper : zero;
    d.start.upper = second ? upper * quarter[0] : upper;
    d.end[2].lower = second ? lower : zero;
    d.end[1].lower = second ? lower * quarter[2] : lower;
    d.end[0].lower = d.end[1].lower * quarter[1];
    d.start.lower = d.end[0].lower * quarter[0];
    return d;
}

/* The scores that the warp's rows get from columns of earlier quarters, over the slice's channels. */
template <typename T>
static __device__ inline void dr_slice_scores(const dr_cuda_rows &rows, const dr_slice_tables &tables, const char *reader,
                                              const char *query, int slice, bool reads, float (&l)[8][4], float (&p)[8][4]) {
    constexpr bool precise = sizeof(T) == 4;
    const int warp = (int)(threadIdx.x / 32), g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    const int row = warp * 16 + g;
    const bool second = g >= 4;
    const bool undecayed[2] = {rows.row[0].undecayed && row % rows.steps == 0,
                               rows.row[0].undecayed && (row + 8) % rows.steps == 0};
#pragma unroll 1
    for (int k = 0; k < SLICE; k += 8) {
        const int c = k + 2 * t;
        const float2 one = make_float2(1, 1);
        const float2 quarter[3] = {*(const float2 *)&tables.quarter[warp * 4][c],
                                   *(const float2 *)&tables.quarter[warp * 4 + 1][c],
                                   *(const float2 *)&tables.quarter[warp * 4 + 2][c]};
        const float2 upper = *(const float2 *)&tables.head[row][c], lower = *(const float2 *)&tables.head[row + 8][c];
        const dr_reader_decays of_query = dr_slice_decays(upper, lower, quarter, second);
        dr_reader_decays of_read = of_query;
        if (rows.row[0].undecayed) {
            const float2 upper_before = g % 4 ? *(const float2 *)&tables.head[row - (g % 4 > 0)][c] : one;
            const float2 lower_before = g % 4 ? *(const float2 *)&tables.head[row + 7][c] : one;
            of_read =
                dr_slice_decays(undecayed[0] ? upper_before : upper, undecayed[1] ? lower_before : lower, quarter, second);
        }
        const dr_row_pair q = {dr_tile_pair<T>(query, row, slice + c), dr_tile_pair<T>(query, row + 8, slice + c)};
        dr_row_pair r = q;
        if (reads) r = {dr_tile_pair<T>(reader, row, slice + c), dr_tile_pair<T>(reader, row + 8, slice + c)};

        const auto multiply = [&](const dr_row_pair &read_decay, const dr_row_pair &query_decay, int n, float2 w) {
            dr_eight_a<precise> a;
            dr_eight_b<precise> b;
            dr_round<precise>(w.x, b.high[0], b.low[0]);
            dr_round<precise>(w.y, b.high[1], b.low[1]);
            if (reads) {
                dr_slice_operand<precise>(a, r, read_decay);
                dr_product_rounded<precise>(l[n], a.high, a.low, b.high, b.low);
            }
            dr_slice_operand<precise>(a, q, query_decay);
            dr_product_rounded<precise>(p[n], a.high, a.low, b.high, b.low);
        };
        /* the block on the diagonal */
#pragma unroll
        for (int n = 0; n < 8; n += 2)
            if (n == 2 * warp) {
                const float2 zero = make_float2(0, 0);
                const float2 w = *(const float2 *)&tables.writer[row][c], w_lower = *(const float2 *)&tables.writer[row + 8][c];
                multiply(of_read.end[0], of_query.end[0], n, second ? zero : w);
                multiply(of_read.end[1], of_query.end[1], n, second ? w : zero);
                multiply(of_read.end[2], of_query.end[2], n + 1, second ? zero : w_lower);
            }
        /* blocks before it, the nearest first */
        dr_row_pair read_decay = of_read.start, query_decay = of_query.start;
#pragma unroll
        for (int b = 2; b >= 0; b--)
            if (b < warp) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int j = b * 16 + h * 8 + g;
                    multiply(read_decay, query_decay, 2 * b + h,
                             *(const float2 *)&tables.writer[j][c] * *(const float2 *)&tables.rest[j / 4][c]);
                }
                const float2 total = *(const float2 *)&tables.total[b][c];
                read_decay.upper = read_decay.upper * total, read_decay.lower = read_decay.lower * total;
                query_decay.upper = query_decay.upper * total, query_decay.lower = query_decay.lower * total;
            }
    }
}

/* Four channels of a row of a tile. */
template <typename T> static __device__ inline void dr_tile_four(const char *tile, int row, int column, float (&x)[4]) {
    const T *at = (const T *)(tile + dr_tile_at<T>(0, 64, row, column));
#pragma unroll
    for (int e = 0; e < 4; e++) x[e] = dr_to_float(at[e]);
}

/* Scores within a quarter: two threads a row, every other four channels each. read[d], query[d]: with row i - d. */
template <typename T>
static __device__ inline void dr_slice_near(const dr_cuda_rows &rows, const dr_slice_tables &tables, const char *writer,
                                            const char *reader, const char *query, int slice, bool reads, float (&read)[4],
                                            float (&asked)[4]) {
    const int i = (int)(threadIdx.x / 2), within = i % 4;
    const bool undecayed = rows.row[0].undecayed && i % rows.steps == 0;
#pragma unroll 1
    for (int k = (int)(threadIdx.x % 2) * 4; k < SLICE; k += 8) {
        float r[4] = {}, q[4], w[4], f_read[4], f_query[4] = {1, 1, 1, 1};
        if (reads) dr_tile_four<T>(reader, i, slice + k, r);
        dr_tile_four<T>(query, i, slice + k, q);
        dr_tile_four<T>(writer, i, slice + k, w);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            read[0] = fmaf(r[e], w[e], read[0]); /* for the gain */
            asked[0] = fmaf(q[e], w[e], asked[0]);
            f_read[e] = 1;
        }
#pragma unroll
        for (int d = 1; d < 4; d++) {
            if (d > within) break;
            const float4 packed = *(const float4 *)&tables.alpha[i - d + 1][k];
            const float alpha[4] = {packed.x, packed.y, packed.z, packed.w};
            dr_tile_four<T>(writer, i - d, slice + k, w);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                f_query[e] *= alpha[e];
                if (d > 1 || !undecayed) f_read[e] *= alpha[e];
                read[d] = fmaf(r[e] * f_read[e], w[e], read[d]);
                asked[d] = fmaf(q[e] * f_query[e], w[e], asked[d]);
            }
        }
    }
}

/* Decayed readers to memory, decayed write keys to their tile; a warp's block of rows, a channel a lane. */
template <typename T>
static __device__ inline void dr_slice_leave(const dr_cuda_chunk_plan &plan, const dr_prepare_block &x,
                                             const dr_slice_tables &tables, const char *reader, const char *query,
                                             char *leaving, int slice, T *reader_to, T *query_to) {
    const dr_cuda_rows &rows = plan.rows;
    const int block = (int)(threadIdx.x / 32), c = (int)(threadIdx.x % 32), channel = slice + c;
    float before = 1, after = 1;
    for (int b = 0; b < block; b++) before *= tables.total[b][c];
    for (int b = block + 1; b < 4; b++) after *= tables.total[b][c];
    float entry = before; /* from the start of the chunk to the row */
#pragma unroll 4
    for (int i = 0; i < 16; i++) {
        const int row = block * 16 + i, token = dr_row_token(rows, row), step = row - token * rows.steps;
        const bool undecayed = rows.row[0].undecayed && step == 0;
        const unsigned at = dr_tile_at<T>(0, 64, row, channel);
        const float upto = before * tables.head[row][c];
        if (plan.reads)
            reader_to[row * plan.key_width + channel] =
                dr_from_float<T>((undecayed ? entry : upto) * dr_to_float(*(const T *)(reader + at)));
        if (step == rows.steps - 1 && token < plan.chunk)
            query_to[token * plan.key_width + channel] = dr_from_float<T>(upto * dr_to_float(*(const T *)(query + at)));
        *(float *)(leaving + dr_tile_at<float>(0, 64, row, channel)) = tables.writer[row][c] * tables.rest[row / 4][c] * after;
        entry = upto;
        if (i % 4 == 3) before = upto;
    }
    for (int i = plan.chunk + block; i < plan.query_rows; i += 4)
        query_to[i * plan.key_width + channel] = dr_from_float<T>(0.0f);
}

/* Masks, gains and scale; what is within a quarter comes from its table. */
static __device__ inline void dr_channel_mask(const dr_cuda_rows &rows, dr_slice_results &results, const float *gains,
                                              float (&l)[8][4], float (&p)[8][4]) {
    const int warp = (int)(threadIdx.x / 32), g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int i = warp * 16 + g + 8 * h;
        const float gain = gains[i];
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int j = n * 8 + 2 * t + e;
                float &score = p[n][2 * h + e], &lower = l[n][2 * h + e];
                if (i / 4 == j / 4 && j <= i) {
                    score = results.near_query[i][i - j];
                    lower = results.near_read[i][i - j];
                }
                score = j <= i ? rows.scale * score : 0.0f;
                lower = j < i ? gain * lower : 0.0f;
            }
            *(float2 *)&results.matrix[i][n * 8 + 2 * t] = make_float2(l[n][2 * h], l[n][2 * h + 1]);
        }
    }
}

template <typename T>
static __global__ void __launch_bounds__(PREPARE_THREADS, 2) prepare_channel(const __grid_constant__ dr_prepare_call call) {
    extern __shared__ __align__(1024) char shared[];
    constexpr bool precise = sizeof(T) == 4;
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_chunk_tensors &tensors = call.tensors;
    const dr_cuda_rows &rows = plan.rows;
    const dr_prepare_block x = dr_prepare_find(call);
    if (x.place.tokens <= 0) return;
    const dr_channel_room room = dr_channel_lay(plan, sizeof(T));
    dr_slice_tables &tables = *(dr_slice_tables *)(shared + room.tables);
    dr_slice_results &results = *(dr_slice_results *)(shared + room.tables);
    float *gain = (float *)(shared + room.gain), *dot = (float *)(shared + room.dot);
    char *writer = shared + room.writer, *query = shared + room.query;
    char *reader = room.reader ? shared + room.reader : writer, *leaving = shared + room.leaving;
    const int64_t tile = x.block * 64 * plan.key_width;
    const int i = (int)threadIdx.x;

    float g[16];
    dr_slice_fetch(rows, x, i % 32, g);
    dr_load_rows<T>(plan, x, writer, room.reader ? reader : NULL, query);
    dr_copy_wait<0>();
    __syncthreads();

    float l[8][4] = {}, p[8][4] = {}, near_read[4] = {}, near_query[4] = {};
    for (int slice = 0; slice < plan.key_width; slice += SLICE) {
        dr_slice_tabulate<T>(tables, writer, slice + i % 32, g);
        if (slice + SLICE < plan.key_width) dr_slice_fetch(rows, x, slice + SLICE + i % 32, g);
        __syncthreads();
        if (i < SLICE)
            tensors.keep[x.block * plan.key_width + slice + i] =
                tables.total[0][i] * tables.total[1][i] * tables.total[2][i] * tables.total[3][i];
        dr_slice_scores<T>(rows, tables, reader, query, slice, plan.reads, l, p);
        dr_slice_near<T>(rows, tables, writer, reader, query, slice, plan.reads, near_read, near_query);
        if (precise) __syncthreads(); /* the write keys are overwritten */
        dr_slice_leave<T>(plan, x, tables, reader, query, leaving, slice, (T *)tensors.reader + tile,
                          (T *)tensors.query + x.block * plan.query_rows * plan.key_width);
        __syncthreads();
    }
#pragma unroll
    for (int d = 0; d < 4; d++) {
        near_read[d] += __shfl_xor_sync(0xffffffffu, near_read[d], 1);
        near_query[d] += __shfl_xor_sync(0xffffffffu, near_query[d], 1);
        if (i % 2 == 0) {
            results.near_read[i / 2][d] = near_read[d];
            results.near_query[i / 2][d] = near_query[d];
        }
    }
    if (i % 2 == 0) dot[i / 2] = near_read[0];
    __syncthreads();
    if (i < 64) {
        dr_cuda_row_factors factors = dr_prepare_factors(rows, x, i, dr_prepare_gain(rows, x, i, dot[i]));
        gain[i] = factors.gain;
        factors.reader = 1;
        factors.query = i < x.place.tokens ? rows.scale : 0.0f;
        tensors.factors[x.block * 64 + i] = factors;
    }
    __syncthreads();
    dr_channel_mask(rows, results, gain, l, p);
    __syncthreads();

    T *score = (T *)tensors.score + x.block * plan.query_rows * 64, *exit = (T *)tensors.exit + tile;
    float *matrix = &results.matrix[0][0];
    float c[8][4] = {};
    if (plan.reads) dr_triangle_invert<precise>(matrix);
    if (plan.reads) {
        dr_prepare_combine<precise>(matrix, p, c);
        dr_prepare_put_score<T>(plan, score, c);
        dr_prepare_put_exit<T, float>(plan, matrix, NULL, dr_shared_address(leaving), exit);
        dr_prepare_put_inverse(tensors, x, matrix);
        return;
    }
    dr_prepare_put_score<T>(plan, score, p);
    for (int e = i; e < 64 * plan.key_width; e += PREPARE_THREADS) {
        const float w = *(const float *)(leaving + dr_tile_at<float>(0, 64, e / plan.key_width, e % plan.key_width));
        exit[e] = dr_from_float<T>(w);
    }
}

#endif
