/* keys: what queries, read keys and write keys get, for every chunk, value head and 64 channels of K.
 *
 *     d_query_i = scale f(at_i, 0) (S dO_i) + sum_j G_ij f w_j           d_read_i = f(at_i, 0) (S dY_i) + sum_j M_ij f w_j / s
 *     d_far_j   = f(N, j+1) (dS' U_j)                                   d_near_j = sum_i f (G_ij q_i - c_i M_ij r_i / s)
 *
 * No or scalar decay: f is in G and M already, the factors from entry and to exit scale rows. Decay by channel: blocks of 16
 * rows, one a warp. A pair of rows in different blocks takes f = head (start of the reader's block to the reader) * the blocks
 * between * tail (writer to the end of its block); the sum over the blocks between is nested, each step multiplying what came so
 * far, the state's part first, by one block's factor. A pair in one block is done element by element with running products of
 * alpha. No quotient, no positive exponent.
 *
 * One block of four warps; a warp owns 16 rows. */
#include "backends/cuda/device.cuh"
#include "backends/cuda/row_tiles.cuh"

typedef struct {
    int stage[5];            /* dO, dY, U, S, dS' while the states pass by; then scaled keys and alpha */
    int score, erase;        /* G, M */
    int write, query, read;  /* w, q~, -(c/s) r */
    int small, bytes;
} keys_room;

static __host__ __device__ inline keys_room lay_room(int element) {
    const int tile = 64 * 64 * element;
    keys_room room;
    for (int i = 0; i < 5; i++) room.stage[i] = i * tile;
    room.score = 5 * tile;
    room.erase = 6 * tile;
    room.write = 7 * tile;
    room.query = 8 * tile;
    room.read = 9 * tile;
    room.small = 10 * tile;
    room.bytes = room.small + 14 * 64 * (int)sizeof(float);
    return room;
}

/* Factors of rows and channels, [64] each. */
typedef struct {
    float *split, *read; /* s, -(c/s) */
    float *head_query, *head_read, *tail; /* scalar decay: from entry, to exit */
    float *alpha;
    float *exit;  /* [2][64] halves of S . dS' by channel */
    float *total; /* [4][64] by block and channel */
} keys_rows;

static __device__ inline keys_rows lay_rows(char *shared, const keys_room &room) {
    float *at = (float *)(shared + room.small);
    keys_rows rows;
    rows.split = at;
    rows.read = at + 64;
    rows.head_query = at + 128;
    rows.head_read = at + 192;
    rows.tail = at + 256;
    rows.alpha = at + 320;
    rows.exit = at + 384;
    rows.total = at + 512;
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
template <typename T>
static __device__ inline float2 dot_rows(const float (&c)[8][4], const char *tile) {
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

/* The parts of the decay's gradient that come from the states on either side, by row: `decayed` collects readers at the last
 * row whose decay they have, so an undecayed read stands one row up. */
template <typename T>
static __device__ inline void decay_parts(const dr_cuda_backward_call &call, const dr_row_block &x, const char *shared,
                                          const keys_room &room, float *queries, float *reads, const float (&q)[8][4],
                                          const float (&r)[8][4], const float (&w)[8][4]) {
    const int lane = (int)(threadIdx.x % 32), row = (int)(threadIdx.x / 32) * 16 + lane / 4;
    const int64_t at = (x.block * (call.plan.key_width / 64) + blockIdx.x % (call.plan.key_width / 64)) * 64;
    const float2 query = dot_rows<T>(q, shared + room.query), write = dot_rows<T>(w, shared + room.write);
    const float2 read = call.plan.reads ? dot_rows<T>(r, shared + room.read) : make_float2(0, 0);
    if (lane % 4 == 0) {
        call.back.writer_part[at + row] = write.x;
        call.back.writer_part[at + row + 8] = write.y;
        queries[row] = query.x;
        queries[row + 8] = query.y;
        reads[row] = read.x;
        reads[row + 8] = read.y;
    }
    __syncthreads();
    const int i = (int)threadIdx.x;
    if (i >= 64) return;
    float sum = queries[i];
    if (!dr_undecayed(call.plan.rows, i)) sum += reads[i];
    if (i < 63 && dr_undecayed(call.plan.rows, i + 1)) sum += reads[i + 1];
    call.back.reader_part[at + i] = sum;
}

/* ---- decay by channel ------------------------------------------------------------------------------------------------------ */

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

template <typename T>
static __device__ inline float tile_value(const char *tile, int row, int column) {
    return dr_to_float(*(const T *)(tile + dr_tile_at<T>(0, 64, row, column)));
}

template <typename T>
static __device__ inline void set_tile(char *tile, int row, int column, float x) {
    *(T *)(tile + dr_tile_at<T>(0, 64, row, column)) = dr_from_float<T>(x);
}

static __device__ inline float alpha_at(const char *alpha, int row, int column) {
    return *(const float *)(alpha + dr_tile_at<float>(0, 64, row, column));
}

/* Keys scaled to the borders of their blocks, and the blocks' own factors. A thread takes one channel of two blocks. */
template <typename T>
static __device__ inline void scale_keys(const dr_cuda_rows &rows, char *shared, const keys_room &room, const keys_rows &k,
                                         const char *alpha) {
    const int d = (int)threadIdx.x % 64;
    for (int block = (int)threadIdx.x / 64; block < 4; block += 2) {
        float product = 1;
        for (int row = block * 16; row < block * 16 + 16; row++) {
            const float before = product;
            product *= alpha_at(alpha, row, d);
            set_tile<T>(shared + room.stage[1], row, d, tile_value<T>(shared + room.query, row, d) * product);
            set_tile<T>(shared + room.stage[2], row, d,
                        tile_value<T>(shared + room.read, row, d) * (dr_undecayed(rows, row) ? before : product));
        }
        k.total[block * 64 + d] = product;
        product = 1;
        for (int row = block * 16 + 15; row >= block * 16; row--) {
            set_tile<T>(shared + room.stage[0], row, d, tile_value<T>(shared + room.write, row, d) * product);
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

/* c *= the product of alpha from the block's start to the row (readers) or from the row to the block's end (writers). */
static __device__ inline void fade_rows(const dr_cuda_rows &rows, float (&c)[8][4], const char *alpha, bool reader, bool erases) {
    const int first = (int)(threadIdx.x / 32) * 16, g = (int)(threadIdx.x % 32) / 4, t = (int)(threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int d = 8 * n + 2 * t + e;
            float upper = 1, lower = 1;
            if (reader) {
                const int upper_end = g + !(erases && dr_undecayed(rows, first + g));
                const int lower_end = g + 8 + !(erases && dr_undecayed(rows, first + g + 8));
                for (int j = 0; j < lower_end; j++) {
                    if (j == upper_end) upper = lower;
                    lower *= alpha_at(alpha, first + j, d);
                }
                if (upper_end == lower_end) upper = lower;
            } else {
                for (int j = 15; j > g; j--) {
                    if (j == g + 8) lower = upper;
                    upper *= alpha_at(alpha, first + j, d);
                }
            }
            c[n][e] *= upper;
            c[n][2 + e] *= lower;
        }
}

/* The pairs of one block: a thread takes one channel of two blocks. Adds to what the products left in d_query, d_read, d_near. */
template <typename T>
static __device__ inline void pairs_within(const dr_cuda_backward_call &call, const dr_row_block &x, char *shared,
                                           const keys_room &room, const keys_rows &k, const char *alpha, int first) {
    const dr_cuda_rows &rows = call.plan.rows;
    const int d = (int)threadIdx.x % 64, width = call.plan.key_width;
    const bool reads = call.plan.reads;
    for (int block = (int)threadIdx.x / 64; block < 4; block += 2) {
        const int start = block * 16;
        float q[16], r[16], a[16], d_q[16], d_r[16];
#pragma unroll
        for (int i = 0; i < 16; i++) {
            q[i] = tile_value<T>(shared + room.query, start + i, d);
            r[i] = reads ? tile_value<T>(shared + room.read, start + i, d) : 0;
            a[i] = alpha_at(alpha, start + i, d);
            d_q[i] = d_r[i] = 0;
        }
        const int64_t at = (x.block * 64 + start) * width + first + d;
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const float w = tile_value<T>(shared + room.write, start + j, d);
            float fade = 1, sum;
            const float own = tile_value<T>(shared + room.score, start + j, start + j);
            d_q[j] = fmaf(own, w, d_q[j]);
            sum = own * q[j];
#pragma unroll
            for (int i = j + 1; i < 16; i++) {
                const float before = fade;
                fade *= a[i];
                if (reads) {
                    const float f = dr_undecayed(rows, start + i) ? before : fade;
                    const float m = tile_value<T>(shared + room.erase, start + i, start + j) * f;
                    d_r[i] = fmaf(m, w, d_r[i]);
                    sum = fmaf(m, r[i], sum);
                }
                const float score = tile_value<T>(shared + room.score, start + i, start + j) * fade;
                d_q[i] = fmaf(score, w, d_q[i]);
                sum = fmaf(score, q[i], sum);
            }
            call.back.d_near[at + (int64_t)j * width] += sum;
        }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            call.back.d_query[at + (int64_t)i * width] += d_q[i];
            if (reads) call.back.d_read[at + (int64_t)i * width] += d_r[i] / k.split[start + i];
        }
    }
}

/* ---- the kernel ------------------------------------------------------------------------------------------------------------ */

static __device__ inline void store_rows(float *to, int width, const float (&c)[8][4]) {
    const int row = (int)(threadIdx.x / 32) * 16 + (int)(threadIdx.x % 32) / 4, t = (int)(threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2 *)(to + (int64_t)(row + 8 * h) * width + 8 * n + 2 * t) = make_float2(c[n][2 * h], c[n][2 * h + 1]);
}

static __device__ inline void divide_rows(float (&c)[8][4], const float *by) {
    const int row = (int)(threadIdx.x / 32) * 16 + (int)(threadIdx.x % 32) / 4;
#pragma unroll
    for (int n = 0; n < 8; n++)
        c[n][0] /= by[row], c[n][1] /= by[row], c[n][2] /= by[row + 8], c[n][3] /= by[row + 8];
}

template <typename T, bool channel>
static __global__ void __launch_bounds__(BLOCK_THREADS) keys(const __grid_constant__ dr_cuda_backward_call call) {
    extern __shared__ __align__(1024) char shared[];
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const int parts = plan.key_width / 64, first = (int)(blockIdx.x % parts) * 64;
    const dr_row_block x = dr_row_block_of(plan, call.chunk.cu, blockIdx.x / parts);
    if (x.rows == 0) return;
    const keys_room room = lay_room(sizeof(T));
    const keys_rows k = lay_rows(shared, room);
    const int thread = (int)threadIdx.x, warp = thread / 32;
    const int64_t block = x.block;
    const unsigned base = dr_shared_address(shared);
    if (thread < 64) {
        const float gain = call.chunk.factors[block * 64 + thread].gain, split = dr_score_gain(gain);
        k.split[thread] = split;
        k.read[thread] = -gain / split;
        const bool decays = !channel && thread < x.rows && thread % rows.steps == 0;
        k.alpha[thread] = decays ? dr_row_alpha(rows, x.place.first + thread / rows.steps, x.head) : 1;
    }
    __syncthreads();
    if (!channel) scalar_fades(rows, k);
    dr_load_row_keys<T>(rows, x, first, k.read, plan.reads ? shared + room.read : NULL, shared + room.write,
                        shared + room.query);
    dr_load_columns<T>(shared + room.score, (const T *)call.back.d_score + block * 64 * 64, 64, 0);
    if (plan.reads) dr_load_columns<T>(shared + room.erase, (const T *)call.back.d_erase + block * 64 * 64, 64, 0);
    dr_copy_commit();

    /* from the states: S dO, S dY, dS' U */
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
        dr_copy_wait<0>();
        __syncthreads();
        dr_multiply_tiles<T, false>(q, base + room.stage[0], base + room.stage[3], 0, 4);
        if (plan.reads) dr_multiply_tiles<T, false>(r, base + room.stage[1], base + room.stage[3], 0, 4);
        dr_multiply_tiles<T, false>(w, base + room.stage[2], base + room.stage[4], 0, 4);
        const int d = thread % 64;
        for (int v = thread / 64 * 32; v < thread / 64 * 32 + 32; v++)
            exit = fmaf(tile_value<T>(shared + room.stage[3], v, d), tile_value<T>(shared + room.stage[4], v, d), exit);
    }
    k.exit[thread] = exit;
    __syncthreads();
    if (thread < 64) {
        const int64_t at = block * plan.key_width + first + thread;
        call.back.exit_part[at] = call.chunk.keep[at] * (k.exit[thread] + k.exit[64 + thread]);
    }
    const int64_t at = block * 64 * plan.key_width + first;
    if constexpr (!channel) {
        scale_rows(q, k.head_query, rows.scale);
        scale_rows(w, k.tail, 1);
        if (plan.reads) {
            scale_rows(r, k.head_read, 1);
            scale_rows(r, k.split, 1);
        }
        if (rows.scalar_decay) decay_parts<T>(call, x, shared, room, k.total, k.total + 64, q, r, w);
        dr_multiply_tiles<T, false>(q, base + room.score, base + room.write, 0, warp + 1);
        dr_multiply_turned<T>(w, base + room.score, base + room.query, warp, 4);
        if (plan.reads) {
            dr_multiply_tiles<T, false>(r, base + room.erase, base + room.write, 0, warp + 1);
            dr_multiply_turned<T>(w, base + room.erase, base + room.read, warp, 4);
            divide_rows(r, k.split);
            store_rows(call.back.d_read + at, plan.key_width, r);
        }
        store_rows(call.back.d_query + at, plan.key_width, q);
        store_rows(call.back.d_near + at, plan.key_width, w);
    } else {
        const char *alpha = shared + room.stage[3];
        load_alpha(rows, x, first, shared + room.stage[3]); /* float: tiles 3 and 4 of 16-bit types */
        __syncthreads();
        scale_keys<T>(rows, shared, room, k, alpha);
        __syncthreads();
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) q[n][i] *= rows.scale;
        if (plan.reads) scale_rows(r, k.split, 1);
        for (int b = 0; b < warp; b++) {
            scale_columns(q, k.total + b * 64);
            dr_multiply_tiles<T, false>(q, base + room.score, base + room.stage[0], b, b + 1);
            if (!plan.reads) continue;
            scale_columns(r, k.total + b * 64);
            dr_multiply_tiles<T, false>(r, base + room.erase, base + room.stage[0], b, b + 1);
        }
        fade_rows(rows, q, alpha, true, false);
        store_rows(call.back.d_query + at, plan.key_width, q);
        if (plan.reads) {
            fade_rows(rows, r, alpha, true, true);
            divide_rows(r, k.split);
            store_rows(call.back.d_read + at, plan.key_width, r);
        }
        float near[8][4] = {};
        for (int b = 3; b > warp; b--) {
            scale_columns(w, k.total + b * 64);
            if (b < 3) scale_columns(near, k.total + b * 64);
            dr_multiply_turned<T>(near, base + room.score, base + room.stage[1], b, b + 1);
            if (plan.reads) dr_multiply_turned<T>(near, base + room.erase, base + room.stage[2], b, b + 1);
        }
        fade_rows(rows, w, alpha, false, false);
        fade_rows(rows, near, alpha, false, false);
        store_rows(call.back.d_far + at, plan.key_width, w);
        store_rows(call.back.d_near + at, plan.key_width, near);
        __syncthreads(); /* what the products left is there for the pairs within a block */
        pairs_within<T>(call, x, shared, room, k, alpha, first);
    }
}

template <typename T, bool channel>
static dr_status launch(const dr_cuda_backward_call *call, cudaStream_t stream) {
    const int bytes = lay_room(sizeof(T)).bytes;
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
    DR_CUDA_STORAGE(call->plan.storage, T, {
        return call->plan.rows.channel_decay ? launch<T, true>(call, stream) : launch<T, false>(call, stream);
    });
    return DR_OK;
}
