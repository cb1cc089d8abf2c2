/* keys where every channel has a decay of its own (keys.cu has the formulas): a block of eight warps for 64 channels of K. In
 * products a warp has the 16 rows of a block of rows and 32 of the channels; what is done element by element it does for half
 * of such a block, eight rows, and all channels, two a lane.
 *
 * A pair of rows in different blocks takes f = head (start of the reader's block to the reader) * the blocks between * tail
 * (writer to the end of its block); the sum over the blocks between is nested, each step multiplying what came so far, the
 * state's part first, by one block's factor. Pairs between the halves of a block go the same way. No quotient, no positive
 * exponent. Mild chunks have a shorter way (keys_channel_mild.cuh).
 *
 * What is left, pairs in one half and all that depends on a row and a channel alone, is done after the accumulators have passed
 * through shared memory, a warp's rows one after another: products of alpha run along, and so do the sums that make the
 * gradient of the log decays (keys_channel.cuh says which). */
#include "backends/cuda/backward/keys_channel_scan.cuh"
#include "backends/cuda/device/device.cuh"
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/plan/find.cuh"

/* ---- loads, decays ------------------------------------------------------------------------------------------------------ */

/* What a thread copies of the states' stages: 16 bytes of every so many rows of dY and S, in the first half of the threads,
 * which have dO as well, and of U and dS'; of the columns of V that come next. */
template <typename T> struct stage_copy {
    const T *rows, *state, *d_o;
    unsigned to;  /* in the first stage, of dY or U */
    unsigned out; /* and of dO in a lean form of pairs */
    int left;     /* tokens of dO that are there from the first on */
};

template <typename T, int form>
static __device__ inline stage_copy<T> stage_copy_of(const dr_cuda_backward_call &call, const dr_row_block &x,
                                                     const char *shared, const keys_room &room, int first, int half) {
    constexpr int unit = 16 / (int)sizeof(T), units = 64 / unit;
    const dr_cuda_chunk_plan &plan = call.plan;
    const int thread = dr_copy_thread(), row = thread / units, within = thread % units * unit, V = plan.value_width;
    const bool one = half == COPY_FIRST;
    const int64_t d_o_width = plan.rows.value_heads * plan.rows.value_size;
    stage_copy<T> copy;
    copy.rows = (const T *)(one ? call.back.d_update : call.back.update) + x.block * 64 * V + (row * V + within);
    copy.state = (const T *)(one ? call.saved : call.back.d_exit) + x.block * V * plan.key_width +
                 (row * plan.key_width + first + within);
    copy.d_o =
        (const T *)call.d_o + x.place.first * d_o_width + (x.head * plan.rows.value_size + row * (int)d_o_width + within);
    copy.left = x.place.tokens - row;
    copy.to = dr_tile_at<T>(dr_shared_address(shared + (one ? room.stage[1] : room.stage[2])), 64, row, within);
    copy.out = dr_tile_at<T>(dr_shared_address(shared + room.stage[0]), 64, 2 * row + 1, within);
    return copy;
}

/* Asks for the stage at `place`, columns of V from `column` on. whole: all 64 rows of dO are there, a token each, and columns.
 * In a lean form rows of dO without a query hold anything: what products make of them stays in rows that nobody reads. */
template <typename T, int form>
static __device__ inline void load_stage(const dr_cuda_backward_call &call, const dr_row_block &x, char *shared,
                                         const keys_room &room, int place, int column, int half, bool whole,
                                         stage_copy<T> &copy) {
    constexpr int units = 64 * (int)sizeof(T) / 16, step = DR_COPY_THREADS / units, bytes = step * 64 * (int)sizeof(T);
    const dr_cuda_chunk_plan &plan = call.plan;
    const int K = plan.key_width, V = plan.value_width, tile = room.stage[1] - room.stage[0];
    const int d_o_step = plan.rows.value_heads * plan.rows.value_size * step;
    constexpr bool lean = form & LEAN, pairs = form & PAIRS;
    const unsigned to = copy.to + (unsigned)place, out = lean && pairs ? copy.out + (unsigned)place : to - (unsigned)tile;
    const bool one = half == COPY_FIRST, reads = lean ? form & READS : plan.reads;
    if (one && !lean && !whole) dr_load_output_rows<T>(shared + place + room.stage[0], plan.rows, x, call.d_o, column);
    DR_UNROLL (j, 64 / step) {
        if (one && lean && j * step < (pairs ? 32 : 64))
            dr_copy_async(out + (unsigned)(j * bytes * (pairs ? 2 : 1)), copy.d_o + j * d_o_step, j * step < copy.left);
        if (one && !lean && whole) dr_copy_whole(out + (unsigned)(j * bytes), copy.d_o + j * d_o_step);
        if (reads || !one) dr_copy_whole(to + (unsigned)(j * bytes), copy.rows + j * step * V);
        dr_copy_whole(to + (unsigned)(j * bytes + 2 * tile), copy.state + j * step * K);
    }
    copy.d_o += 64, copy.rows += 64, copy.state += 64 * K;
}

/* Asks for keys and queries where they stand in tensors as they are and all rows are there and aligned (whole), and for those
 * of the diagonal scan, which always stand there; 128 threads. */
template <typename T, int form>
static __device__ inline bool load_straight(const dr_cuda_rows &rows, const dr_row_block &x, char *shared,
                                            const keys_room &room, int first, bool whole) {
    constexpr bool made = form & MADE;
    const dr_source write = dr_write_source(rows), query = dr_query_source(rows);
    if (!made && (!write.at || !query.at || room.read != room.write)) return false;
#pragma unroll 1
    for (int i = 0; i < (made ? 3 : 2); i++) {
        const dr_source from = i == 0 ? write : i == 1 ? query : dr_source_of(rows.input[rows.row[0].read]);
        char *tile = shared + (i == 0 ? room.write : i == 1 ? room.query : room.read);
        const T *at = (const T *)from.at + x.place.first * from.token + x.key_head * from.head + first;
        if (!made || whole)
            dr_load_columns<T>(tile, at, (int)from.token, 0);
        else
            dr_copy_rows<T>(tile, 64, 1, 64, rows.aligned, 64, 0, 1, {at, from.token, x.place.tokens});
    }
    return true;
}

/* For a lean form, 64 channels of a head's vector of each token, zeros behind the chunk's tokens, to rows of a tile; of two
 * rows a token to the first or second (step). 128 threads. */
template <typename T, int form>
static __device__ inline void load_tokens(const dr_source &from, int head, const dr_row_block &x, int first, char *tile,
                                          int step) {
    constexpr int unit = 16 / (int)sizeof(T), units = 64 / unit, tokens = DR_COPY_THREADS / units, steps = form & PAIRS ? 2 : 1;
    const int thread = dr_copy_thread(), token = thread / units, within = thread % units * unit, left = x.place.tokens - token;
    const T *at = (const T *)from.at + (x.place.first + token) * from.token + head * from.head + first + within;
    const unsigned to = dr_shared_address(tile) + unit_at<T, form>(token * steps + step, within);
#pragma unroll
    for (int j = 0; j < 64 / steps; j += tokens, at += tokens * from.token)
        dr_copy_async(to + unit_at<T, form>(j * steps, 0), at, j < left);
}

/* Asks for keys and queries of a lean form, for gates in place of gated keys. */
template <typename T, int form>
static __device__ inline void load_keys(const dr_cuda_rows &rows, const dr_row_block &x, char *shared, const keys_room &room,
                                        int first) {
    constexpr int last = form & PAIRS ? 1 : 0;
    const auto load = [&](const dr_source &from, int tile, int step) {
        load_tokens<T, form>(from, x.key_head, x, first, shared + tile, step);
    };
    const dr_cuda_row &row = rows.row[0];
    load(dr_source_of(rows.input[rows.asked]), room.query, last);
    load(dr_source_of(rows.input[form & MADE ? row.read : rows.row[last].write]), form & MADE ? room.read : room.write, last);
    if (form & PAIRS) load(dr_source_of(rows.input[row.write]), room.write, 0);
    if (form & GATED) load_tokens<T, form>(dr_source_of(rows.input[row.read_other]), x.head, x, first, shared + room.read, 0);
    if (form & MADE) load(dr_write_source(rows), room.write, 0);
}

/* Asks for the log decays of every row and channel as floats: 0 at rows that do not decay, but where nobody asks for those; 128
 * threads. */
template <int form>
static __device__ inline void load_decays(const dr_cuda_rows &rows, const dr_row_block &x, int first, char *alpha, bool whole) {
    const int decays = dr_whole_tokens(rows), spacing = rows.steps;
    const dr_cuda_input &decay = rows.input[DR_INPUT_LOG_DECAY];
    const dr_strided<float> from = {(const float *)decay.at + dr_input_index(decay, x.place.first, 0, x.head) + first,
                                    decay.token, x.place.tokens};
    if (form & LEAN) {
        load_tokens<float, form>(dr_source_of(decay), x.head, x, first, alpha, 0);
        return;
    }
    if (whole) {
        dr_load_columns<float>(alpha, from.at, (int)from.stride, 0);
        return;
    }
    if (!(form & (SINGLE | PAIRS))) dr_clear_rows<float>(alpha, 64, 1, 0, spacing);
    if (decays * spacing < 64) { /* the rows behind the last whole token */
        for (int i = dr_copy_thread(); i < 16; i += DR_COPY_THREADS)
            *(float4 *)(alpha + dr_tile_at<float>(0, 64, decays * spacing, i * 4)) = make_float4(0, 0, 0, 0);
    }
    dr_copy_rows<float>(alpha, 64, 1, rows.key_size - first, rows.aligned, decays, 0, spacing, from);
}

/* alpha in their place: a thread's elements are anywhere in their row. */
template <typename T, int form> static __device__ inline void make_alphas(char *alpha) {
    constexpr int units = 64 / 4, rows = form & PAIRS ? 32 : 64;
    DR_UNROLL (j, rows * units / THREADS) {
        const unsigned i = dr_forget(threadIdx.x) + j * THREADS;
        float4 &x = ((float4 *)alpha)[i / units * (64 / rows) * units + i % units];
        x = make_float4(dr_channel_alpha<T>(x.x), dr_channel_alpha<T>(x.y), dr_channel_alpha<T>(x.z), dr_channel_alpha<T>(x.w));
    }
}

/* Keys scaled to the borders of their blocks, and for pairs between the halves of a block to the border of the halves, read
 * keys also by what is left of their gains; the factors of blocks and halves. second: which half the warp has; the first has
 * writers of such pairs, the second their readers. */
template <typename T, int form, bool second>
static __device__ inline void scale_half(const dr_cuda_rows &rows, char *shared, const keys_room &room, const keys_rows &k) {
    constexpr bool reads = form & READS;
    constexpr int steps = form & PAIRS ? 2 : 1, count = HALF / steps; /* rows of one decay, such decays */
    const unsigned thread = dr_forget(threadIdx.x); /* or the places of rows are kept, and spilled, for rows_near */
    const int warp = (int)(thread / 32), start = warp * HALF, d = (int)(thread % 32) * 2;
    const char *alpha = shared + room.alpha, *beside = alpha + (second ? -HALF : HALF) * 256; /* the other half's */
    const float2 one = make_float2(1, 1), none = make_float2(0, 0);
    float2 a[count], after[count]; /* to the end of the half */
    float2 other = one, product = one;
    DR_UNROLL (i, count) {
        other = times(other, row_pair<float, form>(beside, thread, i * steps));
        a[i] = row_pair<float, form>(alpha, thread, i * steps);
    }
    after[count - 1] = one;
#pragma unroll
    for (int i = count - 2; i >= 0; i--) after[i] = times(after[i + 1], a[i + 1]);
    DR_UNROLL (i, HALF) {
        const float2 key = row_pair<T, form>(shared + room.write, thread, i), before = product,
                     w = times(key, after[i / steps]);
        if (row_decays<form>(i)) product = times(product, a[i / steps]);
        const float2 q = row_asks<form>(i) ? times(row_pair<T, form>(shared + room.query, thread, i), product) : none;
        set_row<T>(shared + room.scaled[0], thread, i, second ? w : times(w, other));
        set_row<T>(shared + room.scaled[1], thread, i, second ? times(q, other) : q);
        set_row<T>(shared + room.scaled[second ? 4 : 3], thread, i, second ? q : w);
        if (!reads) continue;
        const float2 head = row_late<form>(rows, start + i) ? before : product,
                     rest = make_float2(k.rest[start + i], k.rest[start + i]);
        const float2 r = times(times(read_pair<T, form>(row_pair<T, form>(shared + room.read, thread, i), key), rest), head);
        set_row<T>(shared + room.scaled[2], thread, i, second ? times(r, other) : r);
        if (second) set_row<T>(shared + room.scaled[5], thread, i, r);
    }
    *(float2 *)(k.half + warp * 64 + d) = product;
    if (!second) *(float2 *)(k.total + warp / 2 * 64 + d) = times(product, other);
}

template <typename T, int form>
static __device__ inline void scale_keys(const dr_cuda_rows &rows, char *shared, const keys_room &room, const keys_rows &k) {
    if (threadIdx.x / 32 % 2)
        scale_half<T, form, true>(rows, shared, room, k);
    else
        scale_half<T, form, false>(rows, shared, room, k);
}

/* ---- products: 32 channels, from `column` on ----------------------------------------------------------------------------- */

static __device__ inline void scale_columns(float (&c)[4][4], const float *factor, int column) {
    const int t = (int)(threadIdx.x % 4);
    DR_UNROLL (n, 4) {
        const float2 f = *(const float2 *)(factor + column + 8 * n + 2 * t);
        c[n][0] *= f.x, c[n][1] *= f.y, c[n][2] *= f.x, c[n][3] *= f.y;
    }
}

/* Rows of the second half of this warp's block (upper 0: of the first) *= factor of the columns, += more. */
static __device__ inline void join_halves(float (&c)[4][4], const float (&more)[4][4], const float *factor, int column,
                                          int second) {
    const int t = (int)(threadIdx.x % 4);
    DR_UNROLL (n, 4) {
        const float2 f = *(const float2 *)(factor + column + 8 * n + 2 * t);
        if (second) {
            c[n][2] = fmaf(c[n][2], f.x, more[n][2]);
            c[n][3] = fmaf(c[n][3], f.y, more[n][3]);
        } else {
            c[n][0] = fmaf(c[n][0], f.x, more[n][0]);
            c[n][1] = fmaf(c[n][1], f.y, more[n][1]);
        }
    }
}

/* q += dO S, r += dY S, w += U dS' over the 64 columns of V in the stages; most often with all of it. */
template <typename T, bool often>
static __device__ inline void multiply_states(const keys_room &room, unsigned at, bool reads, bool entry, bool exit, int row,
                                              int column, float (&q)[4][4], float (&r)[4][4], float (&w)[4][4]) {
#pragma unroll(often && sizeof(T) == 2 ? 4 : 1)
    for (int k = 0; k < 4; k++) {
        if (entry) {
            dr_operand_a<T> d_o, d_u;
            dr_load_a<T>(d_o, at + room.stage[0], 64, row, k * 16);
            if (reads) dr_load_a<T>(d_u, at + room.stage[1], 64, row, k * 16);
            DR_UNROLL (n, 2) {
                dr_operand_b<T> s[2];
                dr_load_b_straight<T>(s, at + room.stage[3], 64, k * 16, column + n * 16);
                DR_UNROLL (i, 2) {
                    dr_product<T>(q[2 * n + i], d_o, s[i]);
                    if (reads) dr_product<T>(r[2 * n + i], d_u, s[i]);
                }
            }
        }
        if (exit) {
            dr_operand_a<T> u;
            dr_load_a<T>(u, at + room.stage[2], 64, row, k * 16);
            dr_multiply_row<T, false, 2>(w, u, at + room.stage[4], 64, k * 16, column);
        }
    }
}

/* The same, but a warp group's products are only begun, or, what a given state lost (often false), made one after another. */
template <typename T, bool often>
static __device__ inline void begin_states(const keys_room &room, unsigned at, bool reads, bool entry, bool exit, int row,
                                           int column, float (&q)[4][4], float (&r)[4][4], float (&w)[4][4]) {
    if constexpr (!dr_groups_multiply<T>()) {
        multiply_states<T, often>(room, at, reads, entry, exit, row, column, q, r, w);
    } else if constexpr (often) {
        begin_tiles(room, at, reads, true, true, q, r, w);
    } else {
        if (entry) begin_tiles(room, at, reads, true, false, q, r, w), finish_tiles<T>();
        if (exit) begin_tiles(room, at, reads, false, true, q, r, w), finish_tiles<T>();
    }
}

/* What the exit gives the decays, S . dS' of every channel, over the 64 columns of V in the stages: the diagonal of S^T dS'. A
 * warp takes 16 channels and half of the columns. */
template <typename T> static __device__ inline void multiply_exit(const keys_room &room, unsigned at, float (&exit)[2][4]) {
    const int warp = (int)(threadIdx.x / 32), channel = warp % 4 * 16, first = warp / 4 * 2;
#pragma unroll
    for (int k = first; k < first + 2; k++) {
        dr_operand_a<T> s;
        dr_operand_b<T> d_s[2];
        dr_load_turned<T>(s, at + room.stage[3], k, channel);
        dr_load_b_straight<T>(d_s, at + room.stage[4], 64, k * 16, channel);
        dr_product<T>(exit[0], s, d_s[0]);
        dr_product<T>(exit[1], s, d_s[1]);
    }
}

/* The diagonal, to [2][64] parts. */
static __device__ inline void put_exit(float *parts, const float (&exit)[2][4]) {
    const int warp = (int)(threadIdx.x / 32), g = (int)(threadIdx.x % 32) / 4, t = (int)(threadIdx.x % 4);
    parts += warp / 4 * 64 + warp % 4 * 16 + g;
    if (g / 2 != t) return;
    parts[0] = g % 2 ? exit[0][1] : exit[0][0];
    parts[8] = g % 2 ? exit[1][3] : exit[1][2];
}

/* Which of the sixteen rows that are contracted take part: all, or those of one half, where others are anything. */
enum { BOTH_HALVES, FIRST_HALF, SECOND_HALF };

template <int half> static __device__ inline void take_half(dr_operand_b<__nv_bfloat16> (&b)[2]) {
    if (half != BOTH_HALVES) b[0].x[half == FIRST_HALF] = b[1].x[half == FIRST_HALF] = 0;
}

template <int half> static __device__ inline void take_half(dr_operand_b<float> (&b)[2]) {
    constexpr int out = half == FIRST_HALF;
#pragma unroll
    for (int n = 0; n < 2 && half != BOTH_HALVES; n++)
        b[n].high[out][0] = b[n].high[out][1] = b[n].low[out][0] = b[n].low[out][1] = 0;
}

/* q += 16 columns of G, those of block b, of this warp's rows, times rows of keys, and r that of M. */
template <typename T, bool reads, int half = BOTH_HALVES>
static __device__ inline void add_writers(float (&q)[4][4], float (&r)[4][4], unsigned scores, unsigned erases, unsigned keys,
                                          int b, int row, int column) {
    dr_operand_a<T> score, erase;
    dr_load_a<T>(score, scores, 64, row, b * 16);
    if (reads) dr_load_a<T>(erase, erases, 64, row, b * 16);
    DR_UNROLL (n, 2) {
        dr_operand_b<T> w[2];
        dr_load_b_straight<T>(w, keys, 64, b * 16, column + n * 16);
        take_half<half>(w);
        DR_UNROLL (i, 2) {
            dr_product<T>(q[2 * n + i], score, w[i]);
            if (reads) dr_product<T>(r[2 * n + i], erase, w[i]);
        }
    }
}

/* C += the transpose of 16 rows of G or M, those of block b, times rows of keys, in this warp's columns. */
template <typename T, int half = BOTH_HALVES>
static __device__ inline void add_readers(float (&c)[4][4], unsigned scores, unsigned keys, int b, int row, int column) {
    dr_operand_a<T> a;
    dr_load_turned<T>(a, scores, b, row);
    DR_UNROLL (n, 2) {
        dr_operand_b<T> q[2];
        dr_load_b_straight<T>(q, keys, 64, b * 16, column + n * 16);
        take_half<half>(q);
        dr_product<T>(c[2 * n], a, q[0]);
        dr_product<T>(c[2 * n + 1], a, q[1]);
    }
}

/* Sums of scaled rows times accumulators, of some rows of the warp's block and 32 channels: two neighbours of every eight,
 * until sum_meetings makes them one channel's. */
typedef struct {
    float of[8];
} meetings;

enum {
    UPPER_ROWS = 1,
    LOWER_ROWS = 2,
    ASKING_ROWS = 4 /* of two rows a token, the second: the first one's sums are anything */
};

template <typename T, int which>
static __device__ inline void add_meetings(meetings &sums, const float (&c)[4][4], const char *tile, int row, int column) {
    DR_UNROLL (n, 4)
        DR_UNROLL (h, 2) {
            if (which & ASKING_ROWS && row % 2 == 0) continue;
            if (!(which & (h ? LOWER_ROWS : UPPER_ROWS))) continue;
            const float2 x = tile_pair<T>(tile, row + 8 * h, column + 8 * n + (int)(threadIdx.x % 4) * 2);
            sums.of[2 * n] = fmaf(x.x, c[n][2 * h], sums.of[2 * n]);
            sums.of[2 * n + 1] = fmaf(x.y, c[n][2 * h + 1], sums.of[2 * n + 1]);
        }
}

/* The channel, of 32, that a lane has of sum_meetings. */
static __device__ inline int meeting_channel() {
    const int lane = (int)(threadIdx.x % 32);
    return lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2;
}

static __device__ inline float sum_meetings(meetings &sums) {
#pragma unroll
    for (int half = 4; half > 0; half /= 2) {
        const bool upper = threadIdx.x & (unsigned)(half * 4);
        DR_UNROLL (i, half) {
            const float first = sums.of[i], second = sums.of[i + half];
            sums.of[i] = (upper ? second : first) + __shfl_xor_sync(0xffffffffu, upper ? first : second, half * 4);
        }
    }
    return sums.of[0];
}

/* ---- all of it ----------------------------------------------------------------------------------------------------------- */

/* Rows, and where their gradients lead. */
template <typename T, int form>
static __device__ inline void finish_rows(const dr_cuda_backward_call &call, const dr_row_block &x, char *shared,
                                          const keys_room &room, const keys_rows &k, char *own, int first,
                                          const float (&w)[4][4], const mild_chunk *mild) {
    const channel_results to = channel_results_of<T, form>(call, x, first);
    made_rows<form> r;
    make_all_rows<T, form>(call.plan.rows, shared, room, k, own, w, mild, to, r);
    put_writes<T, form>(shared, room, to, r);
    __syncthreads();
    give_decays<form>(call.plan.rows, x, shared + room.alpha, k, first, r.decays);
    store_tiles<T, form>(call, x, shared, room, k, first, to);
}

/* What crosses the first and the second half of the warp's block, one of its ends in the other half: a channel a lane. */
typedef struct {
    float first, second;
} crossing;

static __device__ inline void put_crossing(const keys_rows &k, int block, int column, const crossing &x) {
    crossing_first(k, block)[column + meeting_channel()] = x.first;
    crossing_second(k, block)[column + meeting_channel()] = x.second;
}

/* From S dO, S dY, dS' U of the warp's products: q and r but for the decay from the start of the row's half of its block, w but
 * for that to its end, and likewise near, of readers in the chunk. Decays go from border to border of blocks. What log decays
 * get of pairs that cross a half is made on the way: there q and r have what was written before a block, and no more. */
template <typename T, int form>
static __device__ inline crossing multiply_keys(const dr_cuda_rows &rows, char *shared, const keys_room &room,
                                                const keys_rows &k, float (&q)[4][4], float (&r)[4][4], float (&near)[4][4],
                                                float (&w)[4][4]) {
    constexpr bool reads = form & READS;
    constexpr int asking = form & PAIRS ? ASKING_ROWS : 0;
    const int block = product_block<T>(), column = product_column<T>(), mine = block * 16;
    const int row = mine + (int)(threadIdx.x % 32) / 4;
    const unsigned base = dr_shared_address(shared), scores = base + room.score, erases = base + room.erase;
    const float *half = k.half + block * 128;
    scale_keys<T, form>(rows, shared, room, k);
    __syncthreads();
    DR_UNROLL (n, 4)
        DR_UNROLL (i, 4) q[n][i] *= rows.scale;
    if (reads) scale_rows(r, k.split, row, 1);
#pragma unroll 1
    for (int b = 0; b < block; b++) {
        meetings sums = {};
        add_meetings<T, UPPER_ROWS | LOWER_ROWS | asking>(sums, q, shared + room.scaled[1], row, column);
        if (reads) add_meetings<T, UPPER_ROWS | LOWER_ROWS>(sums, r, shared + room.scaled[2], row, column);
        float sum = sum_meetings(sums);
        const int channel = column + meeting_channel();
        for (int between = b; between < block; between++) sum *= k.total[between * 64 + channel];
        crossing_block(k, b, block)[channel] = sum;
        scale_columns(q, k.total + b * 64, column);
        if (reads) scale_columns(r, k.total + b * 64, column);
        add_writers<T, reads>(q, r, scores, erases, base + room.scaled[0], b, mine, column);
    }
    crossing across;
    {
        meetings sums = {};
        add_meetings<T, LOWER_ROWS | asking>(sums, q, shared + room.scaled[1], row, column);
        if (reads) add_meetings<T, LOWER_ROWS>(sums, r, shared + room.scaled[2], row, column);
        across.first = sum_meetings(sums);
    }
    {
        float more_q[4][4] = {}, more_r[4][4] = {};
        add_writers<T, reads, FIRST_HALF>(more_q, more_r, scores, erases, base + room.scaled[3], block, mine, column);
        join_halves(q, more_q, half, column, 1);
        if (reads) join_halves(r, more_r, half, column, 1);
    }
#pragma unroll 1
    for (int b = 3; b > block; b--) {
        scale_columns(w, k.total + b * 64, column);
        if (b < 3) scale_columns(near, k.total + b * 64, column);
        add_readers<T>(near, scores, base + room.scaled[1], b, mine, column);
        if (reads) add_readers<T>(near, erases, base + room.scaled[2], b, mine, column);
    }
    {
        meetings sums = {};
        add_meetings<T, UPPER_ROWS>(sums, near, shared + room.scaled[0], row, column);
        across.second = sum_meetings(sums);
    }
    {
        float more[4][4] = {};
        join_halves(w, more, half + 64, column, 0);
        add_readers<T, SECOND_HALF>(more, scores, base + room.scaled[4], block, mine, column);
        if (reads) add_readers<T, SECOND_HALF>(more, erases, base + room.scaled[5], block, mine, column);
        join_halves(near, more, half + 64, column, 0);
    }
    return across;
}

/* q, r, w: S dO, S dY, dS' U of the warp's products. */
template <typename T, int form, int blocks>
static __device__ inline void finish(const dr_cuda_backward_call &call, const dr_row_block &x, char *shared,
                                     const keys_room &room, const keys_rows &k, int first, float (&q)[4][4], float (&r)[4][4],
                                     float (&w)[4][4]) {
    const dr_cuda_rows &rows = call.plan.rows;
    char *own = shared + room.scaled[0] + (int)(threadIdx.x / 64) * 3 * OWN_BYTES;
    float near[4][4] = {};
    bool mild = false;
    mild_span span = {};
    own_scores scores = {};
    crossing across;
    if constexpr (keys_may_be_mild<T, form>()) {
        mild = mild_find(k, span) && !(form & LATE && rows.row[0].undecayed) && (form & (SINGLE | PAIRS) || rows.steps == 1);
        if (mild) {
            scores = take_own_scores<T, form>(shared, room);
            scale_mildly<T, form>(shared, room, k, span);
            dr_shared_fence();
            __syncthreads();
            multiply_mildly<T, form>(shared, room, k, rows.scale, q, r, near, w);
        } else {
            make_alphas<T, form>(shared + room.alpha);
            __syncthreads(); /* the sums are read, too */
        }
    }
    if (!mild) across = multiply_keys<T, form>(rows, shared, room, k, q, r, near, w);
    __syncthreads(); /* all products are made: the place of the scaled keys is free */
    if (!mild) put_crossing(k, product_block<T>(), product_column<T>(), across);
    put_own<T>(own, q);
    if (form & READS) put_own<T>(own + OWN_BYTES, r);
    put_own<T>(own + 2 * OWN_BYTES, near);
    if (mild) put_exits<T>(shared, room, w);
    __syncthreads();
    const mild_chunk in = {span, scores};
    if constexpr (form & MADE)
        finish_made<T, form, blocks>(call, x, shared, room, k, own, first, w, mild ? &in : NULL);
    else
        finish_rows<T, form>(call, x, shared, room, k, own, first, w, mild ? &in : NULL);
}

/* What all chunks of a call have in common. */
typedef struct {
    unsigned char input[LEADS]; /* lead_input */
    bool tied;
    bool plain; /* where all rows of a chunk are there, tiles of one row a token are copied as they lie */
    dr_block_dividers by;
    dr_divider group; /* value heads of a key head */
} keys_rule;

/* The chunk and head that come `index`th; in_turn: of equal sequences' all in turn (dr_block_find). equal: all sequences are
 * equally long, which is known. */
template <bool equal = false>
static __device__ inline dr_row_block find_rows(const dr_cuda_backward_call &call, const keys_rule &rule, unsigned index,
                                                bool in_turn) {
    const dr_cuda_chunk_plan &plan = call.plan;
    dr_block_place at = dr_block_find(rule.by, index, equal || in_turn);
    dr_row_block x;
    x.block = dr_block_number(rule.by, at);
    x.head = (int)at.head;
    x.key_head = (int)dr_divide(at.head, rule.group);
    x.place = dr_block_chunk<equal>(plan, call.chunk.cu, at);
    x.rows = x.place.tokens * plan.rows.steps;
    return x;
}

/* dr_given_state where it is asked for so late that nothing is kept for it. */
static __device__ inline const float *given_state(const dr_cuda_backward_call &call, dr_row_block x, bool exit) {
    const int64_t end = dr_sequence_begin(call.plan, call.chunk.cu, x.place.sequence + 1);
    x.place.last = end - x.place.first <= call.plan.chunk;
    return dr_given_state(call, x, exit);
}

/* 64 channels of a chunk, from `first` on. */
template <typename T, int form, int blocks>
static __device__ inline void make_keys(const dr_cuda_backward_call &call, const keys_rule &rule, const dr_row_block &x,
                                        int first) {
    extern __shared__ __align__(1024) char shared[];
    constexpr bool reads = form & READS;
    const dr_cuda_chunk_plan &plan = call.plan;
    keys_room room = lay_room(sizeof(T), true);
    if (!reads || (!(form & MADE) && (form & LEAN ? !(form & GATED) : rule.tied))) room.read = room.write;
    const keys_rows k = lay_rows(shared, room);
    const unsigned thread = threadIdx.x;
    const int row = product_block<T>() * 16, side = product_column<T>();
    if (thread < 64) { /* the first copies of all: in registers they would be waited for, or spilled */
        dr_copy_word(dr_shared_address(k.gain + thread), &call.chunk.factors[x.block].gain[thread], true);
        dr_copy_word(dr_shared_address(k.exit + thread), call.chunk.keep + (x.block * plan.key_width + first + thread), true);
    }
    if constexpr (form & MADE) load_numbers(plan.rows, x, k);
    const int half = thread < DR_COPY_THREADS ? COPY_FIRST : COPY_SECOND; /* of the threads: what they copy */
    const unsigned base = dr_shared_address(shared);

    /* from the states: S dO, S dY, dS' U; of 16-bit types also with the rest of the states that are given in float */
    constexpr bool lean = form & LEAN, narrow = sizeof(T) == 2 && !lean;
    const bool given = narrow && (call.initial || call.d_final);
    float q[4][4] = {}, r[4][4] = {}, w[4][4] = {};
    float exit[2][4] = {};
    float2 given_exit = make_float2(0, 0);
    /* Two stages, columns of V in turn; once the first stage is done with, the tiles that follow take its place. */
    const int V = plan.value_width;
    const bool whole = form & SINGLE && rule.plain && x.rows == 64; /* most often */
    stage_copy<T> copy = stage_copy_of<T, form>(call, x, shared, room, first, half);
#pragma unroll 1
    for (int column = -128; column < V; column += 64) { /* what is asked for is two turns ahead */
        const int place = column % 128 ? room.ahead : 0, next = column + 128;
        const unsigned at = base + (unsigned)place;
        if (column == 0) { /* while the first tiles are under way */
            if (!lean && thread / LEADS == 64 / LEADS + 1) {
                const int i = (int)(thread % LEADS);
                put_lead<T>(plan.rows, x, first, (dr_input)rule.input[i], k.leads + i);
            }
        }
        if (column >= 0) {
            dr_copy_wait<1>();
            dr_shared_fence();
            __syncthreads();
            begin_states<T, true>(room, at, reads, true, true, row, side, q, r, w);
            const float *entry = given ? given_state(call, x, false) : NULL,
                        *beyond = given ? given_state(call, x, true) : NULL;
            if (narrow && (entry || beyond))
                exit_part<T, 64 / WARPS>(plan.rows, shared + place, room, entry, beyond, first, column, given_exit);
            else
                multiply_exit<T>(room, at, exit);
            if (column == 0) {
                if constexpr (keys_may_be_mild<T, form>())
                    mild_sum_rows<form>(shared + room.alpha, k);
                else
                    make_alphas<T, form>(shared + room.alpha);
                if (thread < 64) put_gain(k, (int)thread, k.gain[thread]);
                if constexpr (form & MADE) put_numbers(k);
            }
            finish_tiles<T>();
            if (narrow && (entry || beyond)) {
                __syncthreads();
                if (entry && half == COPY_FIRST)
                    dr_load_rest<T>(shared + place + room.stage[3], plan.rows, entry, column, first);
                if (beyond && half == COPY_SECOND)
                    dr_load_rest<T>(shared + place + room.stage[4], plan.rows, beyond, column, first);
                dr_shared_fence();
                __syncthreads();
                begin_states<T, false>(room, at, reads, entry, beyond, row, side, q, r, w);
            }
            __syncthreads(); /* the stage is read */
        }
        if (column >= 0 && next >= V && place == 0) { /* once */
            if (lean) {
                if (half == COPY_FIRST)
                    load_scores<T>(call, x, shared, room);
                else
                    load_keys<T, form>(plan.rows, x, shared, room, first);
                dr_copy_commit();
                continue;
            }
            const bool straight = half == COPY_SECOND && (form & MADE || (form & SINGLE && whole));
            if (straight && load_straight<T, form>(plan.rows, x, shared, room, first, whole))
                dr_copy_commit();
            else
                load_pairs<T, form & PAIRS ? 2 : 1>(call, x, shared, room, first, form & MADE ? COPY_FIRST : half);
            continue;
        }
        if (next < V) load_stage<T, form>(call, x, shared, room, place, next, half, whole, copy);
        if (next == 0 && half == COPY_SECOND) load_decays<form>(plan.rows, x, first, shared + room.alpha, whole);
        dr_copy_commit(); /* with nothing in it, too: the waits count groups */
    }
    *(float2 *)(k.half + thread / 32 * 64 + thread % 32 * 2) = given_exit;
    put_exit(k.half + WARPS * 64, exit);
    __syncthreads();
    if (thread < 64) {
        float sum = 0;
        for (int i = 0; i < WARPS + 2; i++) sum += k.half[i * 64 + thread];
        k.exit[thread] *= sum;
    }
    dr_copy_wait<0>();
    dr_shared_fence(); /* of G and M */
    __syncthreads();
    if constexpr (reads && !lean && (form & ~(PAIRS | SINGLE | MADE)) != READS)
        finish_pairs<T>(call, x, shared, room, first); /* which takes registers */
    finish<T, form, blocks>(call, x, shared, room, k, first, q, r, w);
}

template <typename T, int form>
static __global__ void __launch_bounds__(THREADS, sizeof(T) == 4 ? 1 : 2)
    keys_channel(const __grid_constant__ dr_cuda_backward_call call, const __grid_constant__ keys_rule rule) {
    const unsigned parts = (unsigned)call.plan.key_width / 64; /* 1, 2 or 4 */
    const dr_row_block x = find_rows(call, rule, blockIdx.x >> parts / 2, false);
    if (x.rows > 0) make_keys<T, form, 1>(call, rule, x, (int)(blockIdx.x & (parts - 1)) * 64);
}

/* With the backward of the diagonal scan: chunks from the last on, of equal sequences all in turn. LEAN provides for these
 * only: to ask whether sequences are packed costs pkda 3%. */
template <typename T, int form, int blocks>
static __global__ void __launch_bounds__(THREADS, 2)
    keys_channel_made(const __grid_constant__ dr_cuda_backward_call call, const __grid_constant__ keys_rule rule) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    const dr_cuda_chunk_plan &plan = call.plan;
    const int block = (int)(blockIdx.x % blocks);
    const dr_row_block x =
        find_rows<(form & LEAN) != 0>(call, rule, (unsigned)plan.blocks - 1 - blockIdx.x / blocks, plan.length > 0);
    if (x.rows > 0)
        make_keys<T, form, blocks>(call, rule, x, block * 64);
    else if (threadIdx.x == 0)
        *scan_centre(call, x, block) = 0;
#endif
}

typedef void (*keys_kernel)(dr_cuda_backward_call, keys_rule);

static dr_status launch(const dr_cuda_backward_call *call, keys_kernel kernel, int element, dr_cuda_stream stream) {
    const int more = dr_cuda_diagonal_inside_back(&call->plan) ? (int)sizeof(scan_dots) : 0;
    const dr_cuda_chunk_plan &plan = call->plan;
    keys_rule rule;
    rule.tied = plan.rows.tied;
    rule.plain = dr_vectors_whole(plan);
    rule.by = dr_block_dividers_of(plan), rule.group = dr_divider_of(plan.rows.group);
    for (int i = 0; i < LEADS; i++) rule.input[i] = (unsigned char)lead_input(plan.rows, i);
    return dr_cuda_launch("keys_channel", kernel, {call->plan.blocks, call->plan.key_width / 64}, THREADS,
                          lay_room(element, true).bytes + more, stream, *call, rule);
}

template <typename T, int form> static keys_kernel choose_made(const dr_cuda_chunk_plan &plan) {
    return plan.key_width == 64 ? keys_channel_made<T, form, 1> : keys_channel_made<T, form, 2>;
}

/* The lean form of a rule whose gradients all lead to inputs; 0: there is none. */
static int lean_form_of(const dr_cuda_rows &rows) {
    const dr_cuda_row &row = rows.row[0];
    if (row.undecayed) return 0;
    if (rows.steps == 2) {
        const bool both = rows.tied && row.reads != DR_READS_NONE && rows.row[1].reads != DR_READS_NONE;
        return both && !rows.step_axis ? READS | PAIRS | LEAN : 0;
    }
    if (rows.steps != 1) return 0;
    switch (row.reads) {
    case DR_READS_NONE:
        return SINGLE | LEAN;
    case DR_READS_TIED:
        return READS | SINGLE | LEAN;
    case DR_READS_PRODUCT:
        return READS | GATED | SINGLE | LEAN;
    case DR_READS_TENSOR:
    case DR_READS_AFFINE:
        return 0;
    }
    return 0;
}

static int form_of(const dr_cuda_chunk_plan &plan) {
    const dr_cuda_rows &rows = plan.rows;
    bool late = rows.row[0].undecayed;
    for (int i = 0; i < rows.kinds; i++) late |= rows.row[i].negative;
    if (!plan.reads) return rows.direct ? 0 : FLOATS;
    if (!rows.direct) return READS | FLOATS | (late ? LATE : 0);
    if (rows.steps == 2) return READS | PAIRS | (late ? LATE : 0);
    if (late || rows.steps > 2) return READS | LATE;
    return READS | SINGLE | (rows.row[0].reads == DR_READS_PRODUCT ? GATED : 0);
}

template <typename T> static keys_kernel kernel_of(int form) {
    switch (form) {
#define DR_KEYS_FORM(form)                                                                                                     \
    case form:                                                                                                                 \
        return keys_channel<T, form>;
#include "backends/cuda/rows/instances.def"
    }
    if constexpr (sizeof(T) == 2) switch (form) {
#define DR_KEYS_LEAN_FORM(form)                                                                                                \
    case form:                                                                                                                 \
        return keys_channel<T, form>;
#include "backends/cuda/rows/instances.def"
        }
    return NULL;
}

template <typename T> static keys_kernel choose_form(const dr_cuda_backward_call &call) {
    const dr_cuda_chunk_plan &plan = call.plan;
    if constexpr (sizeof(T) == 2) {
        if (dr_cuda_diagonal_inside_back(&plan))
            return dr_call_plain(call) && plan.length ? choose_made<T, READS | SINGLE | MADE | LEAN>(plan)
                                                      : choose_made<T, READS | SINGLE | MADE>(plan);
        const int lean = plan.rows.direct && dr_call_plain(call) ? lean_form_of(plan.rows) : 0;
        if (lean) return kernel_of<T>(lean);
    }
    return kernel_of<T>(form_of(plan));
}

dr_status dr_cuda_backward_keys_channel(const dr_cuda_backward_call *call, dr_cuda_stream stream) {
    DR_CUDA_CHUNK_STORAGE(call->plan.storage, T, return launch(call, choose_form<T>(*call), sizeof(T), stream));
    return DR_OK;
}
