/* keys: what queries, read keys and write keys get, for every chunk, value head and 64 channels of K.
 *
 *     d_query_i = scale f(at_i, 0) (S dO_i) + sum_j G_ij f w_j           d_read_i = f(at_i, 0) (S dY_i) + sum_j M_ij f w_j / s
 *     d_far_j   = f(N, j+1) (dS' U_j)                                   d_near_j = sum_i f (G_ij q_i - c_i M_ij r_i / s)
 *
 * No or scalar decay: f is in G and M already, the factors from entry and to exit scale rows. Decay by channel: blocks of 16
 * rows, one a warp. A pair of rows in different blocks takes f = head (start of the reader's block to the reader) * the blocks
 * between * tail (writer to the end of its block); the sum over the blocks between is nested, each step multiplying what came
 * so far, the state's part first, by one block's factor. Pairs between the halves of a block go the same way, and a pair in one
 * half is done element by element with running products of alpha. No quotient, no positive exponent.
 *
 * One block of four warps; a warp owns 16 rows. */
#include "backends/cuda/device.cuh"
#include "backends/cuda/row_tiles.cuh"

typedef struct {
    int stage[5];                         /* dO, dY, U, S, dS' while the states pass by, */
    int score, erase, write, query, read; /* then G, M, w, q~, r in the same places */
    int scaled[6], alpha;                 /* decay by channel: keys scaled to the borders of their blocks, of their halves */
    int small, bytes;
} keys_room;

static __host__ __device__ inline keys_room lay_room(int element, bool channel) {
    const int tile = 64 * 64 * element, floats = 64 * 64 * (int)sizeof(float);
    keys_room room;
    for (int i = 0; i < 5; i++) room.stage[i] = i * tile;
    room.score = room.stage[0];
    room.erase = room.stage[1];
    room.write = room.stage[2];
    room.query = room.stage[3];
    room.read = room.stage[4];
    for (int i = 0; i < 6; i++) room.scaled[i] = (5 + i) * tile;
    room.alpha = 11 * tile;
    room.small = channel ? 11 * tile + floats : 5 * tile;
    room.bytes = room.small + 22 * 64 * (int)sizeof(float);
    return room;
}

/* Factors of rows and channels, [64] each. */
typedef struct {
    float *split, *inverse, *rest;        /* s, 1/s, -(c/s) */
    float *head_query, *head_read, *tail; /* scalar decay: from entry, to exit */
    float *alpha, *gain;
    float *exit;  /* [2][64] halves of S . dS' by channel */
    float *total; /* [4][64] by block and channel */
    float *half;  /* [8][64] the same of half blocks */
} keys_rows;

static __device__ inline keys_rows lay_rows(char *shared, const keys_room &room) {
    float *at = (float *)(shared + room.small);
    keys_rows rows;
    rows.split = at;
    rows.rest = at + 64;
    rows.head_query = at + 128;
    rows.head_read = at + 192;
    rows.tail = at + 256;
    rows.alpha = at + 320;
    rows.gain = at + 384;
    rows.exit = at + 448;
    rows.total = at + 576;
    rows.half = at + 832;
    rows.inverse = at + 1344;
    return rows;
}

/* ---- no or scalar decay -------------------------------------------------------------------------------------------------- */

static __device__ inline void scalar_fades(const dr_cuda_rows &rows, const keys_rows &k) {
    const int i = (int)threadIdx.x;
    if (i >= 64) return;
    float head = 1, tail = 1;
    for (int j = 0; j < i; j++) head *= k.alpha[j];
    for (int j = 63; j > i; j--) tail *= k.alpha[j];
    k.head_read[i] = dr_undecayed(rows, i) ? head : head * k.alpha[i];
    k.head_query[i] = head * k.alpha[i];
    k.tail[i] = tail;
}

static __device__ inline void scale_rows(float (&c)[8][4], const float *factor, float more) {
    const int row = (int)(threadIdx.x / 32) * 16 + (int)(threadIdx.x % 32) / 4;
    const float upper = factor[row] * more, lower = factor[row + 8] * more;
#pragma unroll
    for (int n = 0; n < 8; n++) c[n][0] *= upper, c[n][1] *= upper, c[n][2] *= lower, c[n][3] *= lower;
}

/* Row sums of c times a tile, of this warp's rows: lane 4 g has rows g and g + 8. */
template <typename T> static __device__ inline float2 dot_rows(const float (&c)[8][4], const char *tile) {
    const int lane = (int)(threadIdx.x % 32), row = (int)(threadIdx.x / 32) * 16 + lane / 4, t = lane % 4;
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const T *upper = (const T *)(tile + dr_tile_at<T>(0, 64, row, 8 * n + 2 * t));
        const T *lower = (const T *)(tile + dr_tile_at<T>(0, 64, row + 8, 8 * n + 2 * t));
#pragma unroll
        for (int e = 0; e < 2; e++) {
            sum.x = fmaf(c[n][e], dr_to_float(upper[e]), sum.x);
            sum.y = fmaf(c[n][2 + e], dr_to_float(lower[e]), sum.y);
        }
    }
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        sum.x += __shfl_xor_sync(0xffffffffu, sum.x, step);
        sum.y += __shfl_xor_sync(0xffffffffu, sum.y, step);
    }
    return sum;
}

/* What the rows of the block bring to the gradient of the decays, lane 4 g its rows g and g + 8: reader . its gradient, less
 * writer . its gradient from readers of the chunk, goes into a suffix sum over rows, where pairs that do not span a row cancel
 * (G and M are rounded once for both); writer . its gradient from the exit into a prefix sum. An undecayed read counts as one
 * of the row before. reads: times -c. */
static __device__ inline void decay_parts(const dr_cuda_backward_call &call, const dr_row_block &x, float *readers,
                                          float *reads, float2 reader, float2 read, float2 far) {
    const int lane = (int)(threadIdx.x % 32), row = (int)(threadIdx.x / 32) * 16 + lane / 4;
    const int64_t at = (x.block * (call.plan.key_width / 64) + blockIdx.x % (call.plan.key_width / 64)) * 64;
    if (lane % 4 == 0) {
        call.back.writer_part[at + row] = far.x;
        call.back.writer_part[at + row + 8] = far.y;
        readers[row] = reader.x;
        readers[row + 8] = reader.y;
        reads[row] = read.x;
        reads[row + 8] = read.y;
    }
    __syncthreads();
    const int i = (int)threadIdx.x;
    if (i >= 64) return;
    float sum = readers[i];
    if (!dr_undecayed(call.plan.rows, i)) sum += reads[i];
    if (i < 63 && dr_undecayed(call.plan.rows, i + 1)) sum += reads[i + 1];
    call.back.reader_part[at + i] = sum;
}

/* ---- decay by channel ------------------------------------------------------------------------------------------------------
 */

/* alpha of every row and channel as floats: 1 at rows that do not decay. */
static __device__ inline void load_alpha(const dr_cuda_rows &rows, const dr_row_block &x, int first, char *alpha) {
    const int lane = (int)(threadIdx.x % 32);
#pragma unroll 4
    for (int row = (int)(threadIdx.x / 32); row < 64; row += BLOCK_THREADS / 32) {
        float a[2] = {1, 1};
        if (row < x.rows && row % rows.steps == 0) {
            dr_row_channel_alpha<2>(rows, x.place.first + row / rows.steps, x.head, first + 2 * lane, a);
            if (first + 2 * lane >= rows.key_size) a[0] = 1;
            if (first + 2 * lane + 1 >= rows.key_size) a[1] = 1;
        }
        *(float2 *)(alpha + dr_tile_at<float>(0, 64, row, 2 * lane)) = make_float2(a[0], a[1]);
    }
}

template <typename T> static __device__ inline float tile_value(const char *tile, int row, int column) {
    return dr_to_float(*(const T *)(tile + dr_tile_at<T>(0, 64, row, column)));
}

template <typename T> static __device__ inline void set_tile(char *tile, int row, int column, float x) {
    *(T *)(tile + dr_tile_at<T>(0, 64, row, column)) = dr_from_float<T>(x);
}

static __device__ inline float alpha_at(const char *alpha, int row, int column) {
    return *(const float *)(alpha + dr_tile_at<float>(0, 64, row, column));
}

/* Keys scaled to the borders of their blocks, and for pairs between the halves of a block to the border of the halves (zero in
 * the half that has no such pairs); the factors of blocks and halves. A thread takes one channel of two blocks. */
template <typename T>
static __device__ inline void scale_keys(const dr_cuda_rows &rows, char *shared, const keys_room &room, const keys_rows &k,
                                         const char *alpha) {
    const int d = (int)threadIdx.x % 64;
    for (int block = (int)threadIdx.x / 64; block < 4; block += 2) {
        const int start = block * 16;
        float first = 1, product = 1; /* of the first half; from the start of the half */
#pragma unroll 4
        for (int i = 0; i < 16; i++) {
            const int row = start + i;
            if (i == 8) {
                first = product;
                product = 1;
            }
            const float before = product;
            product *= alpha_at(alpha, row, d);
            const float q = tile_value<T>(shared + room.query, row, d) * product;
            const float r = tile_value<T>(shared + room.read, row, d) * (dr_undecayed(rows, row) ? before : product);
            set_tile<T>(shared + room.scaled[1], row, d, i < 8 ? q : q * first);
            set_tile<T>(shared + room.scaled[2], row, d, i < 8 ? r : r * first);
            set_tile<T>(shared + room.scaled[4], row, d, i < 8 ? 0 : q);
            set_tile<T>(shared + room.scaled[5], row, d, i < 8 ? 0 : r);
        }
        k.half[block * 128 + d] = first;
        k.half[block * 128 + 64 + d] = product;
        k.total[block * 64 + d] = first * product;
        const float second = product;
        product = 1;
#pragma unroll 4
        for (int i = 15; i >= 0; i--) {
            const int row = start + i;
            if (i == 7) product = 1;
            const float w = tile_value<T>(shared + room.write, row, d) * product;
            set_tile<T>(shared + room.scaled[0], row, d, i < 8 ? w * second : w);
            set_tile<T>(shared + room.scaled[3], row, d, i < 8 ? w : 0);
            product *= alpha_at(alpha, row, d);
        }
    }
}

static __device__ inline void scale_columns(float (&c)[8][4], const float *factor) {
    const int t = (int)(threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 f = *(const float2 *)(factor + 8 * n + 2 * t);
        c[n][0] *= f.x, c[n][1] *= f.y, c[n][2] *= f.x, c[n][3] *= f.y;
    }
}

/* c *= the product of alpha from the start of the half block to the row (readers) or from the row to its end (writers): a scan
 * over the eight lanes that hold a channel. */
template <bool reader>
static __device__ inline void fade_rows(const dr_cuda_rows &rows, float (&c)[8][4], const char *alpha, bool erases) {
    const int first = (int)(threadIdx.x / 32) * 16, g = (int)(threadIdx.x % 32) / 4, t = (int)(threadIdx.x % 4);
    const int place = reader ? g : 7 - g; /* from where the product begins */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = first + g + 8 * h;
        const bool exclusive = !reader || (erases && dr_undecayed(rows, row));
        __syncwarp();
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float2 f = *(const float2 *)(alpha + dr_tile_at<float>(0, 64, row, 8 * n + 2 * t));
#pragma unroll
            for (int step = 1; step <= 8; step *= 2) { /* the last turn asks for the product without the row's own */
                const int distance = 4 * (step == 8 ? 1 : step);
                const float x =
                    reader ? __shfl_up_sync(0xffffffffu, f.x, distance) : __shfl_down_sync(0xffffffffu, f.x, distance);
                const float y =
                    reader ? __shfl_up_sync(0xffffffffu, f.y, distance) : __shfl_down_sync(0xffffffffu, f.y, distance);
                if (step < 8) {
                    f.x *= place >= step ? x : 1;
                    f.y *= place >= step ? y : 1;
                } else {
                    f.x = !exclusive ? f.x : place > 0 ? x : 1;
                    f.y = !exclusive ? f.y : place > 0 ? y : 1;
                }
            }
            c[n][2 * h] *= f.x;
            c[n][2 * h + 1] *= f.y;
        }
    }
}

/* Rows of the second half of this warp's block (upper false: of the first) *= factor of the columns, += more. */
static __device__ inline void join_halves(float (&c)[8][4], const float (&more)[8][4], const float *factor, int half) {
    const int t = (int)(threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 f = *(const float2 *)(factor + 8 * n + 2 * t);
        if (half) {
            c[n][2] = fmaf(c[n][2], f.x, more[n][2]);
            c[n][3] = fmaf(c[n][3], f.y, more[n][3]);
        } else {
            c[n][0] = fmaf(c[n][0], f.x, more[n][0]);
            c[n][1] = fmaf(c[n][1], f.y, more[n][1]);
        }
    }
}

/* The pairs of half a block, element by element: a thread takes one channel of four halves. Adds to what the products left in
 * d_query, d_read, d_near. Without branches, so that the loads of many pairs are under way at once. */
template <typename T, bool reads>
static __device__ inline void pairs_within(const dr_cuda_backward_call &call, const dr_row_block &x, char *shared,
                                           const keys_room &room, const keys_rows &k, const char *alpha, int first) {
    enum { N = 8 };
    const dr_cuda_rows &rows = call.plan.rows;
    const int d = (int)threadIdx.x % 64, width = call.plan.key_width;
    unsigned undecayed = 0; /* a bit for each row of the half */
    for (int half = (int)threadIdx.x / 64; half < 64 / N; half += 2) {
        const int start = half * N;
        if (reads)
            for (int i = 0; i < N; i++) undecayed = (undecayed >> 1) | (dr_undecayed(rows, start + i) ? 1u << (N - 1) : 0);
        const int64_t at = (x.block * 64 + start) * width + first + d;
        float *to_query = call.back.d_query + at, *to_near = call.back.d_near + at;
        float *to_read = reads ? call.back.d_read + at : NULL;
        float q[N], r[N], a[N], d_q[N], d_r[N], d_w[N], old[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            q[i] = tile_value<T>(shared + room.query, start + i, d);
            r[i] = reads ? k.rest[start + i] * tile_value<T>(shared + room.read, start + i, d) : 0;
            a[i] = alpha_at(alpha, start + i, d);
            d_q[i] = to_query[i * width];
            d_r[i] = 0;
            d_w[i] = to_near[i * width];
            old[i] = reads ? to_read[i * width] : 0;
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
            const float w = tile_value<T>(shared + room.write, start + j, d);
            const float own = tile_value<T>(shared + room.score, start + j, start + j);
            float fade = 1;
            d_q[j] = fmaf(own, w, d_q[j]);
            d_w[j] = fmaf(own, q[j], d_w[j]);
#pragma unroll
            for (int i = j + 1; i < N; i++) {
                const float before = fade;
                fade *= a[i];
                if (reads) {
                    const float f = undecayed >> i & 1 ? before : fade;
                    const float m = tile_value<T>(shared + room.erase, start + i, start + j) * f;
                    d_r[i] = fmaf(m, w, d_r[i]);
                    d_w[j] = fmaf(m, r[i], d_w[j]);
                }
                const float score = tile_value<T>(shared + room.score, start + i, start + j) * fade;
                d_q[i] = fmaf(score, w, d_q[i]);
                d_w[j] = fmaf(score, q[i], d_w[j]);
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            to_query[i * width] = d_q[i];
            to_near[i * width] = d_w[i];
            if (reads) to_read[i * width] = fmaf(d_r[i], k.inverse[start + i], old[i]);
        }
    }
}

/* ---- results ---------------------------------------------------------------------------------------------------------------
 */

static __device__ inline void store_rows(float *to, int width, const float (&c)[8][4]) {
    const int row = (int)(threadIdx.x / 32) * 16 + (int)(threadIdx.x % 32) / 4, t = (int)(threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2 *)(to + (int64_t)(row + 8 * h) * width + 8 * n + 2 * t) = make_float2(c[n][2 * h], c[n][2 * h + 1]);
}

/* ---- gradients at once -----------------------------------------------------------------------------------------------------
 */

/* For rules whose row is its input (dr_rows_direct): gradients of query and key, and this part of -r . d_read for the gain. */
template <typename T>
static __device__ inline void store_direct(const dr_cuda_backward_call &call, const dr_row_block &x, int first, float2 dot,
                                           const float (&q)[8][4], const float (&r)[8][4], const float (&w)[8][4]) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const int mine = (int)(threadIdx.x / 32) * 16, g = (int)(threadIdx.x % 32) / 4, t = (int)(threadIdx.x % 4);
    const dr_cuda_input &query = rows.input[DR_INPUT_QUERY], &key = rows.input[DR_INPUT_KEY];
    if (plan.reads) {
        const int64_t at = (x.block * (plan.key_width / 64) + first / 64) * 64 + mine + g;
        if (t == 0) {
            call.back.gain_part[at] = -dot.x;
            call.back.gain_part[at + 8] = -dot.y;
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = mine + g + 8 * h;
        if (row >= x.rows) continue;
        const float gain = plan.reads ? call.chunk.factors[x.block * 64 + row].gain : 0;
        T *to_query = (T *)query.gradient, *to_key = (T *)key.gradient;
        if (to_query) to_query += dr_input_index(query, x.place.first + row, 0, x.key_head) + first;
        if (to_key) to_key += dr_input_index(key, x.place.first + row, 0, x.key_head) + first;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int d = 8 * n + 2 * t, left = rows.key_size - first - d;
            const float k0 = plan.reads ? w[n][2 * h] - gain * r[n][2 * h] : w[n][2 * h];
            const float k1 = plan.reads ? w[n][2 * h + 1] - gain * r[n][2 * h + 1] : w[n][2 * h + 1];
            if (rows.aligned && left > 1) {
                if (to_query) dr_store_pair<T>(to_query + d, q[n][2 * h], q[n][2 * h + 1]);
                if (to_key) dr_store_pair<T>(to_key + d, k0, k1);
                continue;
            }
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (left > e) {
                    if (to_query) to_query[d + e] = dr_from_float<T>(q[n][2 * h + e]);
                    if (to_key) to_key[d + e] = dr_from_float<T>(e ? k1 : k0);
                }
        }
    }
}

/* ---- the kernel, second half: after the states
 * -------------------------------------------------------------------------------- */

/* No or scalar decay. */
template <typename T>
static __device__ inline void finish_scalar(const dr_cuda_backward_call &call, const dr_row_block &x, char *shared,
                                            const keys_room &room, const keys_rows &k, int first, float (&q)[8][4],
                                            float (&r)[8][4], float (&w)[8][4]) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const int warp = (int)(threadIdx.x / 32);
    const unsigned base = dr_shared_address(shared);
    scale_rows(q, k.head_query, rows.scale);
    scale_rows(w, k.tail, 1);
    if (plan.reads) {
        scale_rows(r, k.head_read, 1);
        scale_rows(r, k.split, 1);
    }
    float2 far = make_float2(0, 0), read = far;
    if (rows.scalar_decay) far = dot_rows<T>(w, shared + room.write);
    dr_multiply_tiles<T, false>(q, base + room.score, base + room.write, 0, warp + 1);
    dr_multiply_turned<T>(w, base + room.score, base + room.query, warp, 4, NULL);
    if (plan.reads) {
        dr_multiply_tiles<T, false>(r, base + room.erase, base + room.write, 0, warp + 1);
        dr_multiply_turned<T>(w, base + room.erase, base + room.read, warp, 4, k.rest);
        scale_rows(r, k.inverse, 1);
        read = dot_rows<T>(r, shared + room.read);
    }
    if (dr_rows_direct(rows)) {
        store_direct<T>(call, x, first, read, q, r, w);
    } else {
        const int64_t at = x.block * 64 * plan.key_width + first;
        if (plan.reads) store_rows(call.back.d_read + at, plan.key_width, r);
        store_rows(call.back.d_query + at, plan.key_width, q);
        store_rows(call.back.d_near + at, plan.key_width, w);
    }
    if (!rows.scalar_decay) return;
    const int row = warp * 16 + (int)(threadIdx.x % 32) / 4;
    const float2 query = dot_rows<T>(q, shared + room.query), write = dot_rows<T>(w, shared + room.write);
    const float2 reader = make_float2(query.x - (write.x - far.x), query.y - (write.y - far.y));
    read.x *= -k.gain[row];
    read.y *= -k.gain[row + 8];
    decay_parts(call, x, k.total, k.total + 64, reader, read, far);
}

/* Decay by channel. */
template <typename T>
static __device__ inline void finish_channel(const dr_cuda_backward_call &call, const dr_row_block &x, char *shared,
                                             const keys_room &room, const keys_rows &k, int first, float (&q)[8][4],
                                             float (&r)[8][4], float (&w)[8][4]) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const int warp = (int)(threadIdx.x / 32);
    const unsigned base = dr_shared_address(shared);
    const int64_t at = x.block * 64 * plan.key_width + first;
    const char *alpha = shared + room.alpha;
    scale_keys<T>(rows, shared, room, k, alpha);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) q[n][i] *= rows.scale;
    if (plan.reads) scale_rows(r, k.split, 1);
    for (int b = 0; b < warp; b++) {
        scale_columns(q, k.total + b * 64);
        dr_multiply_tiles<T, false>(q, base + room.score, base + room.scaled[0], b, b + 1);
        if (!plan.reads) continue;
        scale_columns(r, k.total + b * 64);
        dr_multiply_tiles<T, false>(r, base + room.erase, base + room.scaled[0], b, b + 1);
    }
    {
        float more[8][4] = {};
        dr_multiply_tiles<T, false>(more, base + room.score, base + room.scaled[3], warp, warp + 1);
        join_halves(q, more, k.half + warp * 128, 1);
    }
    fade_rows<true>(rows, q, alpha, false);
    store_rows(call.back.d_query + at, plan.key_width, q);
    if (plan.reads) {
        float more[8][4] = {};
        dr_multiply_tiles<T, false>(more, base + room.erase, base + room.scaled[3], warp, warp + 1);
        join_halves(r, more, k.half + warp * 128, 1);
        fade_rows<true>(rows, r, alpha, true);
        scale_rows(r, k.inverse, 1);
        store_rows(call.back.d_read + at, plan.key_width, r);
    }
    float near[8][4] = {};
    for (int b = 3; b > warp; b--) {
        scale_columns(w, k.total + b * 64);
        if (b < 3) scale_columns(near, k.total + b * 64);
        dr_multiply_turned<T>(near, base + room.score, base + room.scaled[1], b, b + 1, NULL);
        if (plan.reads) dr_multiply_turned<T>(near, base + room.erase, base + room.scaled[2], b, b + 1, k.rest);
    }
    float more[8][4] = {};
    join_halves(w, more, k.half + warp * 128 + 64, 0);
    dr_multiply_turned<T>(more, base + room.score, base + room.scaled[4], warp, warp + 1, NULL);
    if (plan.reads) dr_multiply_turned<T>(more, base + room.erase, base + room.scaled[5], warp, warp + 1, k.rest);
    join_halves(near, more, k.half + warp * 128 + 64, 0);
    fade_rows<false>(rows, w, alpha, false);
    fade_rows<false>(rows, near, alpha, false);
    store_rows(call.back.d_far + at, plan.key_width, w);
    store_rows(call.back.d_near + at, plan.key_width, near);
    __syncthreads(); /* what the products left is there for the pairs within half a block */
    if (plan.reads)
        pairs_within<T, true>(call, x, shared, room, k, alpha, first);
    else
        pairs_within<T, false>(call, x, shared, room, k, alpha, first);
}

template <typename T, bool channel>
static __global__ void __launch_bounds__(BLOCK_THREADS, sizeof(T) == 4 ? 1
                                                        : channel      ? 2
                                                                       : 3)
    keys(const __grid_constant__ dr_cuda_backward_call call) {
    extern __shared__ __align__(1024) char shared[];
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const int parts = plan.key_width / 64, first = (int)(blockIdx.x % parts) * 64;
    const dr_row_block x = dr_row_block_of(plan, call.chunk.cu, blockIdx.x / parts);
    if (x.rows == 0) return;
    keys_room room = lay_room(sizeof(T), channel);
    if (!plan.reads || dr_rows_tied(rows)) room.read = room.write;
    const keys_rows k = lay_rows(shared, room);
    const int thread = (int)threadIdx.x;
    const int64_t block = x.block;
    const unsigned base = dr_shared_address(shared);
    if (thread < 64) {
        const float gain = call.chunk.factors[block * 64 + thread].gain, split = dr_score_gain(gain);
        k.split[thread] = split;
        k.inverse[thread] = 1 / split;
        k.gain[thread] = gain;
        k.rest[thread] = -gain / split;
        const bool decays = !channel && thread < x.rows && thread % rows.steps == 0;
        k.alpha[thread] = decays ? dr_row_alpha(rows, x.place.first + thread / rows.steps, x.head) : 1;
    }
    __syncthreads();
    if (!channel) scalar_fades(rows, k);

    /* from the states: S dO, S dY, dS' U; of 16-bit types also with the rest of the states that are given in float */
    constexpr bool narrow = sizeof(T) == 2;
    const float *entry = dr_given_state(call, x, false), *beyond = dr_given_state(call, x, true);
    float q[8][4] = {}, r[8][4] = {}, w[8][4] = {}, exit = 0;
    for (int column = 0; column < plan.value_width; column += 64) {
        const int64_t rows_at = block * 64 * plan.value_width, states_at = (block * plan.value_width + column) * plan.key_width;
        __syncthreads();
        dr_load_output_rows<T>(shared + room.stage[0], rows, x, call.d_o, column);
        if (plan.reads)
            dr_load_columns<T>(shared + room.stage[1], (const T *)call.back.d_update + rows_at, plan.value_width, column);
        dr_load_columns<T>(shared + room.stage[2], (const T *)call.back.update + rows_at, plan.value_width, column);
        dr_load_columns<T>(shared + room.stage[3], (const T *)call.saved + states_at, plan.key_width, first);
        dr_load_columns<T>(shared + room.stage[4], (const T *)call.back.d_exit + states_at, plan.key_width, first);
        dr_copy_commit();
        if (channel && column == 0) load_alpha(rows, x, first, shared + room.alpha);
        dr_copy_wait<0>();
        __syncthreads();
        dr_multiply_tiles<T, false>(q, base + room.stage[0], base + room.stage[3], 0, 4);
        if (plan.reads) dr_multiply_tiles<T, false>(r, base + room.stage[1], base + room.stage[3], 0, 4);
        dr_multiply_tiles<T, false>(w, base + room.stage[2], base + room.stage[4], 0, 4);
        const int d = thread % 64;
        for (int v = thread / 64 * 32; v < thread / 64 * 32 + 32; v++) {
            float s = tile_value<T>(shared + room.stage[3], v, d), d_s = tile_value<T>(shared + room.stage[4], v, d);
            if (narrow && entry) s = dr_state_element(rows, entry, first + d, column + v);
            if (narrow && beyond) d_s = dr_state_element(rows, beyond, first + d, column + v);
            exit = fmaf(s, d_s, exit);
        }
        if (!narrow || !(entry || beyond)) continue;
        __syncthreads();
        if (entry) dr_load_rest<T>(shared + room.stage[3], rows, entry, column, first);
        if (beyond) dr_load_rest<T>(shared + room.stage[4], rows, beyond, column, first);
        __syncthreads();
        if (entry) dr_multiply_tiles<T, false>(q, base + room.stage[0], base + room.stage[3], 0, 4);
        if (entry && plan.reads) dr_multiply_tiles<T, false>(r, base + room.stage[1], base + room.stage[3], 0, 4);
        if (beyond) dr_multiply_tiles<T, false>(w, base + room.stage[2], base + room.stage[4], 0, 4);
    }
    k.exit[thread] = exit;
    __syncthreads();
    dr_load_columns<T>(shared + room.score, (const T *)call.back.d_score + block * 64 * 64, 64, 0);
    if (plan.reads) dr_load_columns<T>(shared + room.erase, (const T *)call.back.d_erase + block * 64 * 64, 64, 0);
    dr_load_row_keys<T>(plan, x, first, room.read == room.write ? NULL : shared + room.read, shared + room.write,
                        shared + room.query);
    if (thread < 64) {
        const int64_t at = block * plan.key_width + first + thread;
        call.back.exit_part[at] = call.chunk.keep[at] * (k.exit[thread] + k.exit[64 + thread]);
    }
    dr_copy_wait<0>();
    __syncthreads();
    if constexpr (channel)
        finish_channel<T>(call, x, shared, room, k, first, q, r, w);
    else
        finish_scalar<T>(call, x, shared, room, k, first, q, r, w);
}

template <typename T, bool channel> static dr_status launch(const dr_cuda_backward_call *call, cudaStream_t stream) {
    const int bytes = lay_room(sizeof(T), channel).bytes;
    const int64_t sizes[] = {call->plan.blocks, call->plan.key_width / 64};
    unsigned grid;
    DR_TRY(dr_cuda_grid(sizes, 2, "keys", &grid));
    DR_CUDA(cudaFuncSetAttribute(keys<T, channel>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    keys<T, channel><<<grid, BLOCK_THREADS, (size_t)bytes, stream>>>(*call);
    DR_CUDA_LAUNCHED("keys");
    return DR_OK;
}

dr_status dr_cuda_backward_keys(const dr_cuda_backward_call *call, cudaStream_t stream) {
    if (call->plan.blocks == 0) return DR_OK;
    DR_CUDA_CHUNK_STORAGE(call->plan.storage, T, {
        return call->plan.rows.channel_decay ? launch<T, true>(call, stream) : launch<T, false>(call, stream);
    });
    return DR_OK;
}
