/* updates: from the states before the chunks and dY, for every chunk and value head
 *
 *     Y = Z - diag(c) R~ S      U = A Y      G = scale dO U^T      M = s dY U^T      gradients of values and write gates
 *
 * One block of four warps, 64 columns of V at a time; a warp owns 16 rows. On sm_90a rules with a decay of each channel mostly
 * have warp groups instead (updates_warpgroups.cuh). */
#include "backends/cuda/backward/updates_warpgroups.cuh"
#include "backends/cuda/device/device.cuh"
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/rows/rows_make.h"

/* ---- shared memory ----------------------------------------------------------------------------------------------------- */

typedef struct {
    int reader, state, output, d_update, update, inverse, small, bytes;
    int rest, fade; /* Y and the decay factors, in the place of states and of readers that are read */
} updates_room;

enum { FLOAT_TILE = 64 * 64 * (int)sizeof(float) };

/* How many times 64 channels of readers and states come at once. */
template <typename T> static __host__ __device__ constexpr int ahead() {
    return sizeof(T) == 2 ? 2 : 1;
}

template <typename T> static __host__ __device__ inline updates_room lay_room() {
    const int tile = 64 * 64 * (int)sizeof(T);
    updates_room room;
    room.reader = room.fade = 0; /* the factors have one row more than a tile of floats */
    room.state = room.rest = ahead<T>() * tile;
    room.output = 2 * ahead<T>() * tile;
    room.d_update = room.output + tile;
    room.update = room.d_update + tile;
    room.inverse = room.update + tile;
    room.small = room.inverse + FLOAT_TILE;
    room.bytes = room.small + 6 * 64 * (int)sizeof(float);
    return room;
}

/* ---- stages -------------------------------------------------------------------------------------------------------------- */

/* 64 channels of R~, or of the input that it is a multiple of. */
template <typename T>
static __device__ inline void load_readers(const dr_cuda_backward_call &call, const dr_row_block &x, int first, char *tile) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    if (!plan.reader_direct) {
        dr_load_columns<T>(tile, (const T *)call.chunk.reader + x.block * 64 * plan.key_width, plan.key_width, first);
        return;
    }
    const dr_source source = dr_reader_source(rows);
    const dr_strided<T> from = {(const T *)source.at + x.place.first * source.token + x.key_head * source.head + first,
                                rows.step_axis ? source.step : source.token, x.rows};
    dr_copy_rows<T>(tile, 64, 1, rows.key_size - first, rows.aligned, 64, 0, 1, from);
}

/* Asks for the channels of R~ and S from k on that come at once, as a group; R~ may be there. */
template <typename T>
static __device__ inline void load_reads(const dr_cuda_backward_call &call, const dr_row_block &x, char *shared,
                                         const updates_room &room, int column, int k, bool readers) {
    enum { TILE = 64 * 64 * (int)sizeof(T) };
    const dr_cuda_chunk_plan &plan = call.plan;
    const T *states = (const T *)call.saved + (x.block * plan.value_width + column) * plan.key_width;
    DR_UNROLL (i, ahead<T>()) {
        if (!plan.reads || k + i * 64 >= plan.key_width) break;
        if (readers) load_readers<T>(call, x, k + i * 64, shared + room.reader + i * TILE);
        dr_load_columns<T>(shared + room.state + i * TILE, states, plan.key_width, k + i * 64);
    }
    dr_copy_commit();
}

/* Asks for 64 columns of dO, dY and the values, as a group. */
template <typename T>
static __device__ inline void load_vectors(const dr_cuda_backward_call &call, const dr_row_block &x, char *shared,
                                           const updates_room &room, int column) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const T *d_update = (const T *)call.back.d_update + x.block * 64 * plan.value_width;
    dr_load_output_rows<T>(shared + room.output, plan.rows, x, call.d_o, column);
    dr_load_columns<T>(shared + room.d_update, d_update, plan.value_width, column);
    dr_load_values<T>(shared + room.update, plan.rows, x.place, x.head, column, DR_INPUT_VALUE);
    dr_copy_commit();
}

/* read += R~ S of the channels that are there. */
template <typename T>
static __device__ inline void multiply_reads(float (&read)[8][4], unsigned base, const updates_room &room, int k, int width) {
    enum { TILE = 64 * 64 * (int)sizeof(T) };
    DR_UNROLL (i, ahead<T>())
        if (k + i * 64 < width)
            dr_multiply_tiles<T, true>(read, base + room.reader + i * TILE, base + room.state + i * TILE, 0, 4);
}

/* Gradients of values and write gates of 64 columns from dZ = dY, 16 bytes a thread; dots[row] += (gate) value . dz. A thread
 * takes all rows of a token that share its value, `share` of them. gates: a tile of write gates, where rows have any. */
template <typename T, int share, bool gates_there>
static __device__ inline void value_gradients(const dr_cuda_rows &rows, const dr_row_block &x, int column, const float *factor,
                                              const char *values, const char *gates, const char *d_update, float *dots) {
    constexpr int unit = 16 / (int)sizeof(T), units = 64 / unit;
    union pack {
        uint4 words;
        T x[unit];
    };
    const dr_cuda_input &value = rows.input[DR_INPUT_VALUE], &gate = rows.input[DR_INPUT_WRITE_GATE];
    const int within = (int)threadIdx.x % units * unit, left = rows.value_size - column - within;
    const int vectors = rows.step_axis ? x.rows : x.place.tokens;
    const int64_t stride = rows.step_axis ? value.step : value.token;
    T *to = (T *)value.gradient, *to_gate = gates_there ? (T *)gate.gradient : NULL;
    if (to) to += x.place.first * value.token + (int64_t)x.head * value.head + column + within;
    if (to_gate) to_gate += x.place.first * gate.token + (int64_t)x.head * gate.head + column + within;
#pragma unroll
    for (int at = (int)threadIdx.x / units; at < 64 / share; at += BLOCK_THREADS / units) {
        float d_value[unit] = {}, d_gate[unit] = {};
        DR_UNROLL (i, share) {
            const int row = at * share + i;
            const dr_values kind = rows.row[i].values;
            if (share > 1 && kind == DR_VALUES_NONE) continue;
            const bool gated = gates_there && kind == DR_VALUES_GATED;
            pack v, d, w;
            v.words = *(const uint4 *)(values + dr_tile_at<T>(0, 64, row, within));
            d.words = *(const uint4 *)(d_update + dr_tile_at<T>(0, 64, row, within));
            if (gated) w.words = *(const uint4 *)(gates + dr_tile_at<T>(0, 64, row, within));
            float sum = 0;
            DR_UNROLL (e, unit) {
                const float d_z = dr_to_float(d.x[e]), open = gated ? dr_to_float(w.x[e]) : 1.0f;
                const float z = dr_to_float(v.x[e]);
                sum = fmaf(open * z, d_z, sum);
                d_value[e] = fmaf(factor[row] * open, d_z, d_value[e]);
                if (gated) d_gate[e] = fmaf(factor[row] * z, d_z, d_gate[e]);
            }
#pragma unroll
            for (int step = 1; step < units; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
            if (within == 0) dots[row] += sum;
        }
        if (at >= vectors) continue;
        if (to) dr_store_lane<T, unit>(to + at * stride, left, rows.aligned, d_value);
        if (to_gate) dr_store_lane<T, unit>(to_gate + at * gate.token, left, rows.aligned, d_gate);
    }
}

/* Y = Z - diag(c) R~ S of this warp's rows to u; read: R~ S without the factors of R~, gain: c times those; Z: factor times the
 * value and, of the rows that have one, the write gate. */
template <typename T, bool gates_there>
static __device__ inline void take_rest(const dr_cuda_rows &rows, const char *values, const char *gates, const float *factor,
                                        const float *gain, const float (&read)[8][4], float (&u)[8][4]) {
    const int mine = (int)(threadIdx.x / 32) * 16, g = (int)(threadIdx.x % 32) / 4, t = (int)(threadIdx.x % 4);
    const bool gated = gates_there && rows.row[rows.steps == 2 ? g % 2 : 0].values == DR_VALUES_GATED;
    DR_UNROLL (h, 2) {
        const int row = mine + g + 8 * h;
        const float f = factor[row], c = gain[row];
        DR_UNROLL (n, 8) {
            const unsigned at = dr_tile_at<T>(0, 64, row, 8 * n + 2 * t);
            const float2 z = dr_load_pair<T>(values + at);
            float2 factors = make_float2(f, f);
            if (gated) factors = dr_load_pair<T>(gates + at), factors.x *= f, factors.y *= f;
            u[n][2 * h] = factors.x * z.x - c * read[n][2 * h];
            u[n][2 * h + 1] = factors.y * z.y - c * read[n][2 * h + 1];
        }
    }
}

/* A tile of 64 x 64 numbers that are worth more than T: of 16 bits two tiles, of what T holds and of what it leaves. */
template <typename T> static __device__ inline void put_fine(char *tile, int row, int column, float x, float y) {
    const unsigned at = dr_tile_at<T>(0, 64, row, column);
    dr_store_pair<T>((T *)(tile + at), x, y);
    if constexpr (sizeof(T) == 2) {
        const float left = x - dr_to_float(dr_from_float<T>(x)), right = y - dr_to_float(dr_from_float<T>(y));
        dr_store_pair<T>((T *)(tile + 64 * 64 * 2 + at), left, right);
    }
}

/* U += (A - I) Y, both fine tiles; what is small times small is left out, and so is the diagonal of A if it is there. */
template <typename T> static __device__ inline void apply_inverse(float (&u)[8][4], unsigned inverse, unsigned rest) {
    enum { LOW = 64 * 64 * 2 };
    const int warp = (int)(threadIdx.x / 32), g = (int)(threadIdx.x % 32) / 4, t = (int)(threadIdx.x % 4);
    const unsigned beside = g / 2 != t ? ~0u : g % 2 ? 0x0000ffffu : 0xffff0000u; /* of two neighbours, which may hold it */
    DR_UNROLL (k, 4)
        if (k <= warp) {
            dr_operand_a<T> a, low;
            dr_load_a<T>(a, inverse, 64, warp * 16, k * 16);
            if constexpr (sizeof(T) == 2) {
                dr_load_a<T>(low, inverse + LOW, 64, warp * 16, k * 16);
                if (k == warp) a.x[0] &= beside, a.x[3] &= beside;
            }
            DR_UNROLL (n, 4) {
                dr_operand_b<T> b[2];
                dr_load_b_straight<T>(b, rest, 64, k * 16, n * 16);
                DR_UNROLL (i, 2) {
                    dr_product<T>(u[2 * n + i], a, b[i]);
                    if constexpr (sizeof(T) == 2) dr_product<T>(u[2 * n + i], low, b[i]);
                }
                if constexpr (sizeof(T) == 2) {
                    dr_load_b_straight<T>(b, rest + LOW, 64, k * 16, n * 16);
                    DR_UNROLL (i, 2) dr_product<T>(u[2 * n + i], a, b[i]);
                }
            }
        }
}

/* What rounding takes from U, this warp's rows. */
template <typename T> static __device__ inline void put_lost(char *tile, const float (&u)[8][4]) {
    const int row = (int)(threadIdx.x / 32) * 16 + (int)(threadIdx.x % 32) / 4, t = (int)(threadIdx.x % 4);
    const auto lost = [](float x) { return x - dr_to_float(dr_from_float<T>(x)); };
    DR_UNROLL (i, 16)
        dr_put_pair<T>(tile, row + i % 2 * 8, i / 2 * 8 + 2 * t, lost(u[i / 2][i % 2 * 2]), lost(u[i / 2][i % 2 * 2 + 1]));
}

/* Asks for the inverse as prepare's halves, a fine tile as it is. */
static __device__ inline void copy_inverse(char *tile, const void *halves) {
    const unsigned mine = threadIdx.x * 16;
    DR_UNROLL_BY (i, DR_HALVES_BYTES, BLOCK_THREADS * 16)
        dr_copy_whole(dr_shared_address(tile) + mine + i, (const char *)halves + mine + i);
}

/* The inverse without its diagonal, fine. A thread stays in four columns, its rows are eight apart. */
template <typename T> static __device__ inline void load_inverse(char *tile, const float *from) {
    const int first = (int)threadIdx.x / 16, column = (int)threadIdx.x % 16 * 4;
    from += first * 64 + column;
    tile += dr_tile_at<T>(0, 64, first, column);
    DR_UNROLL_BY (j, 64, 8) {
        const float4 all = *(const float4 *)(from + j * 64);
        float x[4] = {all.x, all.y, all.z, all.w}, rest[4];
        T *to = (T *)(tile + j * 64 * (int)sizeof(T));
        DR_UNROLL (e, 4) {
            x[e] = column + e < first + j ? x[e] : 0;
            rest[e] = x[e] - dr_to_float(dr_from_float<T>(x[e]));
        }
        dr_put_four<T>(to, x);
        if constexpr (sizeof(T) == 2) dr_put_four<T>(to + 64 * 64, rest);
    }
}

/* f(b, j + 1) for boundaries b = 0 .. 64, in [65][64]; 0 for b <= j. A thread takes a column's first or second half. */
static __device__ inline void spread_factors(const float *alpha, float *factors) {
    const int j = (int)threadIdx.x % 64, half = (int)threadIdx.x / 64 * 33;
    float f = j + 1 < half ? 1 : 0;
    for (int b = j + 2; b < half; b++) f *= alpha[b - 1];
#pragma unroll 8
    for (int i = 0; i < 33 && half + i <= 64; i++) {
        const int b = half + i;
        f = b > j + 1 ? f * alpha[b - 1] : b == j + 1 ? 1.0f : 0.0f;
        factors[b * 64 + j] = f;
    }
}

/* ---- the kernel ---------------------------------------------------------------------------------------------------------- */

/* full: U goes into the scores in two parts of 16 bits. */
template <typename T>
static __global__ void __launch_bounds__(BLOCK_THREADS, sizeof(T) == 2 ? 3 : 1)
    updates(const __grid_constant__ dr_cuda_backward_call call, bool full) {
    extern __shared__ __align__(1024) char shared[];
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const dr_row_block x = dr_row_block_of(plan, call.chunk.cu, blockIdx.x);
    if (x.rows == 0) return;
    const updates_room room = lay_room<T>();
    const int thread = (int)threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4, mine = warp * 16;
    const int64_t block = x.block;
    const dr_cuda_factors &factors = call.chunk.factors[block];
    float *gain = (float *)(shared + room.small), *alpha = gain + 64, *dots = alpha + 64, *read_gain = dots + 64,
          *value = read_gain + 64, *write_dots = value + 64;
    const bool gated = rows.input[DR_INPUT_WRITE_GATE].at != NULL, pairs = rows.steps == 2 && !rows.step_axis;
    const int K = plan.key_width, V = plan.value_width, width = 64 * ahead<T>();
    const bool keeps = !gated && K <= width; /* R~ for all columns; gates come into its place */
    const char *inverse = (const char *)call.chunk.inverse + block * 64 * 64 * (int)sizeof(float);
    load_reads<T>(call, x, shared, room, 0, 0, true);
    if (plan.reads && plan.halves) copy_inverse(shared + room.inverse, inverse);
    load_vectors<T>(call, x, shared, room, 0);
    if (thread < 64) {
        gain[thread] = factors.gain[thread];
        value[thread] = factors.value[thread];
        read_gain[thread] = factors.erase[thread];
        const bool decays = thread < x.rows && thread % rows.steps == 0;
        alpha[thread] = decays ? dr_row_alpha(rows, x.place.first + thread / rows.steps, x.head) : 1;
        dots[thread] = write_dots[thread] = 0;
    }
    const unsigned base = dr_shared_address(shared);
    const bool given = sizeof(T) == 2 && dr_given_state(call, x, false);
    if (plan.reads && !plan.halves) load_inverse<T>(shared + room.inverse, (const float *)inverse);

    float scores[8][4] = {}, erases[8][4] = {}; /* dO U^T, dY U^T */
    for (int column = 0; column < V; column += 64) {
        float read[8][4] = {}, u[8][4], write_dot[2] = {};
        for (int k = 0; k < K && plan.reads; k += width) {
            if (k == 0)
                dr_copy_wait<1>(); /* vectors may come later */
            else
                dr_copy_wait<0>();
            __syncthreads();
            multiply_reads<T>(read, base, room, k, K);
            __syncthreads();
            if (given) {
                const float *entry = dr_given_state(call, x, false);
                for (int i = 0; i < width && k + i < K; i += 64)
                    dr_load_rest<T>(shared + room.state + i * 64 * (int)sizeof(T), rows, entry, column, k + i);
                __syncthreads();
                multiply_reads<T>(read, base, room, k, K);
                __syncthreads();
            }
            if (k + width < K) load_reads<T>(call, x, shared, room, column, k + width, true);
        }
        if (gated) {
            dr_load_values<T>(shared + room.reader, rows, x.place, x.head, column, DR_INPUT_WRITE_GATE);
            dr_copy_commit();
        }
        dr_copy_wait<0>();
        __syncthreads();
        const char *gates = shared + room.reader, *values = shared + room.update, *d_update = shared + room.d_update;
        if (gated)
            take_rest<T, true>(rows, values, gates, value, read_gain, read, u);
        else
            take_rest<T, false>(rows, values, gates, value, read_gain, read, u);
        if (pairs && gated)
            value_gradients<T, 2, true>(rows, x, column, value, values, gates, d_update, dots);
        else if (pairs)
            value_gradients<T, 2, false>(rows, x, column, value, values, gates, d_update, dots);
        else if (gated)
            value_gradients<T, 1, true>(rows, x, column, value, values, gates, d_update, dots);
        else
            value_gradients<T, 1, false>(rows, x, column, value, values, gates, d_update, dots);
        DR_UNROLL (n, 8)
            DR_UNROLL (h, 2)
                if (plan.reads) put_fine<T>(shared + room.rest, mine + g + 8 * h, 8 * n + 2 * t, u[n][2 * h], u[n][2 * h + 1]);
        __syncthreads(); /* the values are read as well */
        if (plan.reads) apply_inverse<T>(u, base + room.inverse, base + room.rest);
        DR_UNROLL (n, 8)
            DR_UNROLL (h, 2) {
                const int row = mine + g + 8 * h;
                const float2 d_z = dr_load_pair<T>(shared + room.d_update + dr_tile_at<T>(0, 64, row, 8 * n + 2 * t));
                write_dot[h] = fmaf(u[n][2 * h], d_z.x, write_dot[h]);
                write_dot[h] = fmaf(u[n][2 * h + 1], d_z.y, write_dot[h]);
                dr_put_pair<T>(shared + room.update, row, 8 * n + 2 * t, u[n][2 * h], u[n][2 * h + 1]);
            }
        if (sizeof(T) == 2 && full) {
            __syncthreads(); /* Y is read */
            put_lost<T>(shared + room.rest, u);
            __syncthreads();
            dr_multiply_scores<T>(scores, base + room.output, base + room.rest);
            dr_multiply_scores<T>(erases, base + room.d_update, base + room.rest);
        }
        const float2 sums = sum_of_four(make_float2(write_dot[0], write_dot[1]));
        if (t == 0) write_dots[mine + g] += sums.x, write_dots[mine + g + 8] += sums.y;
        __syncthreads();
        const bool more = column + 64 < V;
        if (more) load_reads<T>(call, x, shared, room, column + 64, 0, !keeps);
        dr_store_columns<T>((T *)call.back.update + block * 64 * V, V, column, shared + room.update);
        dr_multiply_scores<T>(scores, base + room.output, base + room.update);
        if (plan.reads) dr_multiply_scores<T>(erases, base + room.d_update, base + room.update);
        if (!more) continue;
        __syncthreads();
        load_vectors<T>(call, x, shared, room, column + 64);
    }
    __syncthreads();
    if (thread < 64) {
        call.back.value_dot[block * 64 + thread] = dots[thread];
        call.back.write_dot[block * 64 + thread] = write_dots[thread];
    }
    float *fade = (float *)(shared + room.fade);
    if (rows.scalar_decay) spread_factors(alpha, fade);
    __syncthreads();
    DR_UNROLL (n, 8)
        DR_UNROLL (h, 2) {
            const int i = mine + g + 8 * h, j = 8 * n + 2 * t;
            float2 query_fade = make_float2(1, 1), read_fade = query_fade;
            if (rows.scalar_decay) {
                query_fade = *(const float2 *)(fade + (i + 1) * 64 + j);
                read_fade = *(const float2 *)(fade + (dr_undecayed(rows, i) ? i : i + 1) * 64 + j);
            }
            const float s = dr_score_gain(gain[i]);
            dr_put_pair<T>(shared + room.output, i, j, j <= i ? rows.scale * scores[n][2 * h] * query_fade.x : 0,
                           j + 1 <= i ? rows.scale * scores[n][2 * h + 1] * query_fade.y : 0);
            if (plan.reads)
                dr_put_pair<T>(shared + room.d_update, i, j, j < i ? s * (erases[n][2 * h] * read_fade.x) : 0,
                               j + 1 < i ? s * (erases[n][2 * h + 1] * read_fade.y) : 0);
        }
    __syncthreads();
    dr_store_columns<T>((T *)call.back.d_score + block * 64 * 64, 64, 0, shared + room.output);
    if (plan.reads) dr_store_columns<T>((T *)call.back.d_erase + block * 64 * 64, 64, 0, shared + room.d_update);
}

template <typename T> static dr_status launch(const dr_cuda_backward_call *call, dr_cuda_stream stream) {
    const dr_cuda_rows *rows = &call->plan.rows;
    const bool full = dr_cuda_rows_step_fully(rows) || rows->asks == DR_ASKS_MADE;
    return dr_cuda_launch("updates", updates<T>, {call->plan.blocks}, BLOCK_THREADS, lay_room<T>().bytes, stream, *call, full);
}

template <updates_kind kind> static dr_status launch_groups(const dr_cuda_backward_call *call, dr_cuda_stream stream) {
    const int valued = kind == UPDATES_PAIRS && call->plan.rows.row[0].values == DR_VALUES_NONE;
    const updates_call all = {*call, dr_block_dividers_of(call->plan), valued};
    return dr_cuda_launch("updates_warpgroups", updates_warpgroups<__nv_bfloat16, kind>, {call->plan.blocks}, UPDATES_THREADS,
                          updates_places<kind != UPDATES_LINEAR>::bytes, stream, all);
}

dr_status dr_cuda_backward_updates(const dr_cuda_backward_call *call, dr_cuda_stream stream) {
    if (call->plan.blocks == 0) return DR_OK;
    switch (updates_kind_of(&call->plan)) {
#define DR_UPDATES_FORM(name)                                                                                                  \
    case UPDATES_##name:                                                                                                       \
        return launch_groups<UPDATES_##name>(call, stream);
#include "backends/cuda/rows/instances.def"
    case UPDATES_OTHER:
        break;
    }
    DR_CUDA_CHUNK_STORAGE(call->plan.storage, T, return launch<T>(call, stream));
    return DR_OK;
}
