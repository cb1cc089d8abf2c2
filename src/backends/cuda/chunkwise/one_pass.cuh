/* Prepare and scan in one kernel, on sm_90a for 16-bit types: a thread block has all columns of a head's state, makes what
 * prepare would have made of its chunks by itself, and X, P' and A go through no memory.
 *
 *     make       four warps: copies of keys and queries and the decays of the chunk ahead; P, and from A to X and P'
 *     columns    two groups of four warps that hold 64 columns each (scan_warpgroups.cuh), and copy their values
 *     solve      four warps: A, of the chunk that is made next
 *
 * So three chunks are under way, in three stages of keys and queries; what lies between the groups has two places. All wait for
 * one another at barriers in shared memory, chunk by chunk. No group has the registers that it would like: so the columns take
 * rows by halves.
 *
 * For rules that prepare calls plain, with a scalar decay or none, one row a token, K and V of 65 to 128, sequences of one
 * length that are not cut, and where no backward follows, which wants what prepare leaves (plan.c). The bits are those of the
 * two kernels. */
#ifndef DR_CUDA_ONE_PASS_CUH
#define DR_CUDA_ONE_PASS_CUH

#include "backends/cuda/chunkwise/prepare.cuh"
#include "backends/cuda/chunkwise/scan_warpgroups.cuh"

enum { ONE_PASS_THREADS = 512, ONE_PASS_STAGES = 3, ONE_PASS_PLACES = 2 };

/* Decays and factors of a chunk's rows. What a thread's dr_prepare_near is made of: the upper and the lower pair, and products
 * of decays within halves of blocks of 16 rows, from the half's start and to its end. */
typedef struct alignas(16) {
    dr_prepare_small small;
    float2 upper[128], lower[128];
    float head[64], tail[64];
    dr_cuda_factors factors;
    float keep[2]; /* the chunk's decay, twice */
} dr_one_rows;

/* Shared memory: where things begin, tiles at multiples of 1024, and behind all the barriers. What is in threes goes by a
 * chunk's stage, what is in twos by its place. */
enum {
    ONE_PASS_TILE = 64 * 128 * 2,
    ONE_PASS_QUERY = ONE_PASS_TILE, /* in a stage, behind the keys */
    ONE_PASS_STAGE = 2 * ONE_PASS_TILE,
    ONE_PASS_SCORE = ONE_PASS_TILE,                   /* in a place, behind X; A's halves lie where X will be */
    ONE_PASS_VALUE = ONE_PASS_SCORE + 64 * 64 * 2,    /* and where outputs will be */
    ONE_PASS_MATRIX = ONE_PASS_VALUE + ONE_PASS_TILE, /* A */
    ONE_PASS_PLACE = ONE_PASS_MATRIX + 64 * DR_MATRIX_PITCH * 4,
    ONE_PASS_PLACES_BEGIN = ONE_PASS_STAGES * ONE_PASS_STAGE,
    ONE_PASS_ROWS = ONE_PASS_PLACES_BEGIN + ONE_PASS_PLACES * ONE_PASS_PLACE,
    ONE_PASS_FILLED = ONE_PASS_ROWS + ONE_PASS_STAGES * (int)sizeof(dr_one_rows), /* stages: keys and queries have come */
    ONE_PASS_DECAYED = ONE_PASS_FILLED + ONE_PASS_STAGES * 8,                     /* decays and factors are there */
    ONE_PASS_FREE = ONE_PASS_DECAYED + ONE_PASS_STAGES * 8,                       /* the columns have read all of a chunk */
    ONE_PASS_SOLVED = ONE_PASS_FREE + ONE_PASS_STAGES * 8,                        /* places: A is there, and its halves */
    ONE_PASS_TURNED = ONE_PASS_SOLVED + ONE_PASS_PLACES * 8,                      /* the matrix is read */
    ONE_PASS_LAID = ONE_PASS_TURNED + ONE_PASS_PLACES * 8,                        /* X and P' are there */
    ONE_PASS_BYTES = ONE_PASS_LAID + ONE_PASS_PLACES * 8
};
static_assert(ONE_PASS_BYTES <= DR_BLOCK_SHARED, "a thread block has no more shared memory");

typedef struct {
    dr_scan_call scan;
    dr_plain_rows key, query, value;
    bool whole; /* chunks of 64 tokens are copied as they lie */
} dr_one_pass_call;

static inline dr_one_pass_call dr_one_pass_call_of(const dr_scan_call &scan) {
    const dr_cuda_rows &rows = scan.plan.rows;
    const auto plain = [&](const dr_source &source) { return dr_plain_rows_of(source, (int)dr_dtype_size(scan.plan.storage)); };
    return {scan, plain(dr_write_source(rows)), plain(dr_source_of(rows.input[DR_INPUT_QUERY])),
            plain(dr_source_of(rows.input[DR_INPUT_VALUE])), rows.aligned && rows.key_size == 128 && rows.value_size == 128};
}

/* A chunk of a chain, its stage and the turn of the stage's barriers. */
typedef struct {
    int chunk, stage;
    unsigned turn;
} dr_one_turn;

#ifdef DR_CUDA_WARPGROUPS

static __device__ inline void dr_one_next(dr_one_turn &at) {
    at.chunk++;
    if (++at.stage == ONE_PASS_STAGES) at.stage = 0, at.turn ^= 1;
}

static __device__ inline int dr_one_place_of(const dr_one_turn &at) {
    return (int)((unsigned)at.chunk % ONE_PASS_PLACES);
}

/* The chunk before; before the first one: nothing has to be waited for. */
static __device__ inline dr_one_turn dr_one_before(const dr_one_turn &at) {
    const bool wraps = at.stage == 0;
    return {at.chunk - 1, wraps ? ONE_PASS_STAGES - 1 : at.stage - 1, wraps ? at.turn ^ 1 : at.turn};
}

static __device__ inline unsigned dr_one_stage(unsigned base, int stage) {
    return (unsigned)dr_same_in_warp((int)base + stage * ONE_PASS_STAGE);
}

static __device__ inline unsigned dr_one_place(unsigned base, int place) {
    return (unsigned)dr_same_in_warp((int)base + ONE_PASS_PLACES_BEGIN + place * ONE_PASS_PLACE);
}

static __device__ inline dr_one_rows &dr_one_rows_of(char *shared, int stage) {
    return *(dr_one_rows *)(shared + ONE_PASS_ROWS + stage * (int)sizeof(dr_one_rows));
}

/* Waits at the barrier of a chunk's stage, or of its place; arrives there. */
static __device__ inline void dr_one_await_stage(unsigned base, int barrier, const dr_one_turn &at) {
    dr_gate_wait(base + (unsigned)(barrier + at.stage * 8), at.turn);
}

static __device__ inline void dr_one_await_place(unsigned base, int barrier, const dr_one_turn &at) {
    dr_gate_wait(base + (unsigned)(barrier + dr_one_place_of(at) * 8), (unsigned)at.chunk / ONE_PASS_PLACES % 2);
}

static __device__ inline void dr_one_tell_stage(unsigned base, int barrier, const dr_one_turn &at) {
    dr_gate_arrive(base + (unsigned)(barrier + at.stage * 8));
}

static __device__ inline void dr_one_tell_place(unsigned base, int barrier, const dr_one_turn &at) {
    dr_gate_arrive(base + (unsigned)(barrier + dr_one_place_of(at) * 8));
}

/* ---- decays ------------------------------------------------------------------------------------------------------------- */

/* What is asked for of a chunk before its decays are made, a thread each. */
typedef struct {
    dr_map_gain_inputs gain;
    float log_decay, lambda;
} dr_one_early;

/* A chunk of a chain, or what would be one behind the last. first, end: of its sequence. */
static __device__ inline dr_prepare_block dr_one_block(const dr_cuda_rows &rows, int head, int first, int end, int chunk) {
    dr_prepare_block x = {};
    x.head = head, x.key_head = head / rows.group, x.boxes = 2;
    x.place.first = first + chunk * 64;
    const int left = end - first - chunk * 64;
    x.alive = x.place.tokens = left < 64 ? left : 64;
    return x;
}

template <bool sums> static __device__ inline dr_one_early dr_one_ask(const dr_cuda_rows &rows, const dr_prepare_block &x) {
    const int i = dr_copy_thread();
    dr_one_early early;
    early.gain = dr_prepare_gain_inputs<DR_PREPARE_PLAIN>(rows, x, i < 64 ? i : x.alive);
    early.lambda = sums && i < x.alive ? dr_chunk_scalar(rows, DR_INPUT_LAMBDA, x, i, 0, x.head) : 0;
    early.log_decay = dr_prepare_log_decay(rows, x);
    return early;
}

template <bool sums>
static __device__ inline void dr_one_decay(const dr_cuda_rows &rows, const dr_prepare_block &x, const dr_one_early &early,
                                           dr_one_rows &put) {
    dr_prepare_small &small = put.small;
    const int i = dr_copy_thread(), lane = (int)(threadIdx.x % 32);
    const dr_prepare_half half = dr_prepare_halve(expf(early.log_decay));
    const dr_prepare_near near = dr_prepare_pairs(rows, half, false);
    dr_prepare_spread(rows, half, small);
    put.upper[i] = near.upper, put.lower[i] = near.lower;
    if (lane < 16) put.head[i / 32 * 16 + lane] = half.head, put.tail[i / 32 * 16 + lane] = half.tail;
    dr_meet<ONE_PASS_THREADS / 128>();
    if (i < 64) {
        dr_row_factors factors =
            dr_prepare_factors<DR_PREPARE_PLAIN>(rows, x, i, dr_prepare_gain<DR_PREPARE_PLAIN>(rows, x, i, early.gain, 0));
        small.gain[i] = factors.gain;
        small.leave[i] = dr_prepare_span(rows, small, i, x.place.tokens, factors);
        dr_put_factors(put.factors, i, factors);
        if (sums) small.lambda[i] = early.lambda;
        if (i < 2) put.keep[i] = small.total[0] * small.total[1] * small.total[2] * small.total[3];
    }
}

static __device__ inline dr_prepare_near dr_one_near(const dr_one_rows &rows) {
    const int i = dr_copy_thread(), g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    const float head = rows.head[i / 32 * 16 + g + 8];
    const float2 tail = *(const float2 *)&rows.tail[i / 32 * 16 + 2 * t];
    return {rows.upper[i], rows.lower[i], make_float2(head * tail.x, head * tail.y)};
}

/* ---- copies ------------------------------------------------------------------------------------------------------------- */

/* Whole rows of a chunk, 128 channels of each, to two boxes. */
template <typename T> static __device__ inline void dr_one_copy(unsigned tile, const dr_plain_rows &rows, int head, int first) {
    const unsigned thread = (unsigned)dr_copy_thread(), row = thread / 8, within = thread % 8;
    dr_load_boxes<T, 2>(tile + (thread * 16 ^ row % 8 * 16), dr_plain_unit(rows, (unsigned)first + row, (unsigned)head, within),
                        rows.token);
}

template <typename T>
static __device__ inline void dr_one_fill(const dr_one_pass_call &one, char *stage, unsigned filled,
                                          const dr_prepare_block &x) {
    const dr_cuda_rows &rows = one.scan.plan.rows;
    if (one.whole && x.alive == 64) {
        dr_one_copy<T>(dr_shared_address(stage), one.key, x.key_head, (int)x.place.first);
        dr_one_copy<T>(dr_shared_address(stage + ONE_PASS_QUERY), one.query, x.key_head, (int)x.place.first);
        dr_gate_arrive_copied(filled);
        return;
    }
    dr_load_tokens<T>(stage, dr_write_source(rows), x.place, x.key_head, 0, rows.key_size, 2, rows.aligned);
    dr_load_tokens<T>(stage + ONE_PASS_QUERY, dr_source_of(rows.input[DR_INPUT_QUERY]), x.place, x.key_head, 0, rows.key_size,
                      2, rows.aligned);
    dr_copy_commit();
    dr_copy_wait<0>();
    dr_shared_fence();
    dr_gate_arrive(filled);
}

/* Products of rows of a tile of 128 channels with rows of another one. */
template <typename T, int columns>
static __device__ inline void dr_one_scores(float (&c)[columns][4], unsigned readers, unsigned writers) {
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const uint64_t w = dr_group_operand(writers + k / 4 * 8192, 16), r = dr_group_operand(readers + k / 4 * 8192, 16);
        dr_group_multiply_tiles<false, true>(T(), c, dr_group_forward(r, k % 4 * 32), dr_group_forward(w, k % 4 * 32), k > 0);
    }
}

/* ---- making ------------------------------------------------------------------------------------------------------------- */

/* Copies of keys and queries, decays, P, and from A to X and P'. */
template <typename T, bool sums>
static __device__ inline void dr_one_make(const dr_one_pass_call &one, char *shared, unsigned chain) {
    constexpr int groups = ONE_PASS_THREADS / 128;
    const dr_cuda_chunk_plan &plan = one.scan.plan;
    const dr_cuda_rows &rows = plan.rows;
    const unsigned base = dr_shared_address(shared);
    const int head = (int)(chain % (unsigned)plan.value_heads), warp = dr_prepare_warp();
    const int begin = (int)(chain / (unsigned)plan.value_heads * plan.length), end = begin + (int)plan.length;
    const int chunks = (int)((plan.length + 63) / 64);
    dr_one_early early = dr_one_ask<sums>(rows, dr_one_block(rows, head, begin, end, 0));
    const auto block = [&](const dr_one_turn &at) { return dr_one_block(rows, head, begin, end, at.chunk); };
    const auto copy = [&](const dr_one_turn &at) {
        dr_one_fill<T>(one, shared + at.stage * ONE_PASS_STAGE, base + (unsigned)(ONE_PASS_FILLED + at.stage * 8), block(at));
    };
    const auto decay = [&](dr_one_turn at) {
        dr_one_decay<sums>(rows, block(at), early, dr_one_rows_of(shared, at.stage));
        dr_one_tell_stage(base, ONE_PASS_DECAYED, at);
        dr_one_next(at);
        early = dr_one_ask<sums>(rows, block(at));
    };
    dr_one_turn at = {0, 0, 0};
    copy(at), decay(at);
    while (at.chunk < chunks) {
        const int which = dr_one_place_of(at);
        const unsigned stage = dr_one_stage(base, at.stage), made = dr_one_place(base, which);
        char *place = shared + ONE_PASS_PLACES_BEGIN + which * ONE_PASS_PLACE;
        dr_one_turn next = at;
        dr_one_next(next);
        const dr_one_rows &numbers = dr_one_rows_of(shared, at.stage);
        dr_one_await_stage(base, ONE_PASS_FREE, dr_one_before(dr_one_before(at))); /* the place, and the next one's stage */
        if (next.chunk < chunks) copy(next);
        float p[8][4];
        dr_one_await_stage(base, ONE_PASS_FILLED, at);
        dr_shared_fence();
        dr_group_begin();
        dr_one_scores<T>(p, stage + ONE_PASS_QUERY, stage);
        dr_group_commit();
        decay(next); /* while P is under way; behind the last chunk nobody asks for them */
        dr_one_await_stage(base, ONE_PASS_DECAYED, at);
        const dr_prepare_near near = dr_one_near(numbers);
        dr_group_wait<0>();
        float none[8][4] = {};
        dr_prepare_mask(rows, numbers.small, near, near, false, NULL, none, p);
        dr_one_await_place(base, ONE_PASS_SOLVED, at);
        dr_shared_fence();
        {
            float c[8][4];
            dr_halves_combine<T>(c, p, warp, made);
            dr_group_lay_rows<T>(place + ONE_PASS_SCORE, c);
        }
        unsigned high[4][4], low[4][4];
        dr_halves_turn<T>((const float *)(place + ONE_PASS_MATRIX), numbers.small.leave, high, low);
        dr_one_tell_place(base, ONE_PASS_TURNED, at);
        dr_meet<groups>(); /* A's halves are read */
#pragma unroll 1
        for (int box = 0; box < 2; box++) {
            float exit[8][4];
            dr_halves_exit_box<T>(high, low, stage + (unsigned)box * 8192, exit);
            dr_group_lay_rows<T>(place + box * 8192, exit);
        }
        dr_shared_fence();
        dr_one_tell_place(base, ONE_PASS_LAID, at);
        at = next;
    }
}

/* ---- solving ------------------------------------------------------------------------------------------------------------ */

/* R W^T of a chunk, of keys begun, of key + lambda query done: from K W^T and Q W^T of 32 columns at a time, for want of
 * registers. */
template <typename T, bool sums>
static __device__ inline void dr_one_read(const dr_prepare_small &small, unsigned stage, float (&l)[8][4]) {
    if constexpr (!sums) {
        dr_group_begin();
        dr_one_scores<T>(l, stage, stage);
        dr_group_commit();
        return;
    }
    const auto tile = [=](int offset, int k) {
        return dr_group_forward(dr_group_operand(stage + (unsigned)(offset + k / 4 * 8192), 16), k % 4 * 32);
    };
    const int row = dr_prepare_warp() * 16 + (int)(threadIdx.x % 32 / 4);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float key[4][4], query[4][4];
        dr_group_begin();
#pragma unroll
        for (int k = 0; k < 8; k++) {
            dr_group_multiply_tiles<false, true>(T(), key, tile(0, k), tile(half * 4096, k), k > 0);
            dr_group_multiply_tiles<false, true>(T(), query, tile(ONE_PASS_QUERY, k), tile(half * 4096, k), k > 0);
        }
        dr_group_commit();
        dr_group_wait<0>();
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) l[half * 4 + n][e] = fmaf(small.lambda[row + e / 2 * 8], query[n][e], key[n][e]);
    }
}

/* A of each chunk, in the matrix and as halves where X will be. */
template <typename T, bool sums> static __device__ inline void dr_one_solve(const dr_scan_call &call, char *shared) {
    constexpr int groups = ONE_PASS_THREADS / 128;
    const dr_cuda_rows &rows = call.plan.rows;
    const unsigned base = dr_shared_address(shared);
    const int chunks = (int)((call.plan.length + 63) / 64);
    for (dr_one_turn at = {0, 0, 0}; at.chunk < chunks; dr_one_next(at)) {
        const unsigned stage = dr_one_stage(base, at.stage);
        char *place = shared + ONE_PASS_PLACES_BEGIN + dr_one_place_of(at) * ONE_PASS_PLACE;
        const dr_one_turn had = dr_one_before(dr_one_before(at)); /* the place */
        float *matrix = (float *)(place + ONE_PASS_MATRIX);
        const dr_one_rows &numbers = dr_one_rows_of(shared, at.stage);
        float l[8][4];
        dr_one_await_stage(base, ONE_PASS_FILLED, at);
        if (sums) dr_one_await_stage(base, ONE_PASS_DECAYED, at);
        dr_shared_fence();
        dr_one_read<T, sums>(numbers.small, stage, l);
        if (!sums) dr_one_await_stage(base, ONE_PASS_DECAYED, at);
        const dr_prepare_near near = dr_one_near(numbers);
        dr_one_await_place(base, ONE_PASS_TURNED, had);
        if (!sums) dr_group_wait<0>();
        float none[8][4] = {};
        dr_prepare_mask(rows, numbers.small, near, near, true, matrix, l, none);
        dr_meet<groups>();
        dr_triangle_invert<false, groups>(matrix);
        dr_one_await_stage(base, ONE_PASS_FREE, had);
        dr_halves_put<T>(matrix, place);
        dr_shared_fence();
        dr_one_tell_place(base, ONE_PASS_SOLVED, at);
    }
}

/* ---- columns ------------------------------------------------------------------------------------------------------------ */

/* 32 rows of O^T through a tile to rows of o, of which the first `tokens` are there. at: the lane's place in the first; step:
 * elements from a row to the 16th after it. */
template <typename T>
static __device__ inline void dr_one_put(T *at, int64_t step, unsigned tile, int tokens, const float (&o)[4][4]) {
    const int thread = (int)dr_forget(threadIdx.x % 128), row = thread % 32 / 2; /* for want of registers */
    dr_group_lay_output<T, 4>(tile, o);
    const char *from = (const char *)__cvta_shared_to_generic(dr_tile_at<T>(tile, 64, row, thread / 32 * 16 + thread % 2 * 8));
    const uint4 first = *(const uint4 *)from, second = *(const uint4 *)(from + 2048);
    if (row < tokens) *(uint4 *)at = first;
    if (row + 16 < tokens) *(uint4 *)(at + step) = second;
}

/* The warp's 16 columns of values to its part of a tile, as a group of copies. from: the lane's place in the chunk's first
 * rows; columns: that exist, of its eight. */
template <typename T>
static __device__ inline void dr_one_values(const dr_one_pass_call &one, const char *from, unsigned tile, int columns,
                                            int alive) {
    const int thread = (int)dr_forget(threadIdx.x % 128), row = thread % 32 / 2; /* for want of registers */
    const unsigned to = dr_tile_at<T>(tile, 64, row, thread / 32 * 16 + thread % 2 * 8);
#pragma unroll
    for (int j = 0; j < 64; j += 16) {
        if (one.whole)
            dr_copy_async(to + j * 128, from, row + j < alive);
        else
            for (int e = 0; e < 8; e++)
                ((T *)__cvta_shared_to_generic(to + j * 128))[e] =
                    row + j < alive && e < columns ? ((const T *)from)[e] : dr_from_float<T>(0.0f);
        from += 16 * (uint64_t)one.value.token;
    }
    dr_copy_commit();
}

/* group: of columns; chain: sequence and head. What an output wants is made for each half of the rows, with keys + lambda
 * queries once more. */
template <typename T, bool sums>
static __device__ inline void dr_one_hold(const dr_one_pass_call &one, char *shared, int group, unsigned chain) {
    const dr_scan_call &call = one.scan;
    const dr_cuda_chunk_plan &plan = call.plan;
    shared = dr_group_forget(shared);
    const unsigned base = dr_shared_address(shared);
    const int head = (int)(chain % (unsigned)plan.value_heads), lane = (int)(threadIdx.x % 32);
    /* of values and outputs */
    const int64_t row = (int64_t)(chain / (unsigned)plan.value_heads) * plan.length + lane / 2;
    const int column = group * 64 + dr_scan_warp() * 16 + lane % 2 * 8;
    const int64_t stride = (int64_t)plan.value_heads * 128, step = 16 * stride;
    const char *values = one.value.at + row * one.value.token + ((unsigned)head * one.value.head + column * (int)sizeof(T));
    T *to = (T *)call.o + row * stride + head * 128 + column;
    const auto ask = [&](int chunk) {
        const int there = (int)plan.length - chunk * 64;
        if (there > 0)
            dr_one_values<T>(one, values + chunk * (64 * (uint64_t)one.value.token),
                             dr_one_place(base, chunk % ONE_PASS_PLACES) + (unsigned)(ONE_PASS_VALUE + group * 8192),
                             plan.rows.value_size - column, there);
        else
            dr_copy_commit();
    };
    ask(0), ask(1);
    float s[16][4] = {};
    const dr_scan_place place = dr_scan_find(call, (unsigned)group, chain);
    dr_scan_begin<16>(dr_scan_block_of(call, shared, place), place, s);
    for (dr_one_turn at = {0, 0, 0}; at.chunk * 64 < (int)plan.length; dr_one_next(at)) {
        const unsigned tile = dr_one_stage(base, at.stage), made = dr_one_place(base, dr_one_place_of(at));
        const int left = (int)plan.length - at.chunk * 64;
        const unsigned value = made + (unsigned)(ONE_PASS_VALUE + group * 8192);
        const dr_one_rows &rows = dr_one_rows_of(shared, at.stage);
        unsigned a[8][4], y[4][4];
        dr_one_await_stage(base, ONE_PASS_FILLED, at);
        dr_one_await_stage(base, ONE_PASS_DECAYED, at);
        dr_shared_fence();
        dr_group_state<T, 16>(s, a);
        dr_group_decay<16, false>(rows.keep, s);
        dr_group_settle(s);
        dr_copy_wait<1>();
        __syncwarp();
        constexpr int parts = sums ? 2 : 1, count = 8 / parts;
#pragma unroll
        for (int part = 0; part < parts; part++) {
            float u[count][4], o[count][4];
            dr_group_begin();
            if (sums) dr_group_chain<T, true>(o, a, tile + ONE_PASS_QUERY + part * 4096, 8192, false);
            dr_group_chain<T, true>(u, a, tile + part * 4096, 8192, false);
            dr_group_commit();
            dr_group_wait<0>();
#pragma unroll
            for (int n = 0; n < count; n += 2) {
                unsigned v[4];
                dr_load_matrices_transposed(
                    v, dr_lane_at<T>(value + dr_lane_along<T>(), 64, part * 32 + n * 8, dr_scan_warp() * 16));
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int m = part * count + n + e;
                    dr_group_rows row = dr_group_write<T, false>(rows.factors, m, &v[e * 2], NULL, false, false);
                    if constexpr (sums) dr_group_join(row, dr_column_pair(rows.small.lambda, m), o[n + e]);
                    dr_group_update<T, true>(row, u[n + e], &y[m / 2][m % 2 * 2]);
                }
            }
        }
        dr_one_await_place(base, ONE_PASS_LAID, at);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float o[4][4];
            dr_group_begin();
            dr_group_chain<T, true>(o, a, tile + ONE_PASS_QUERY + half * 4096, 8192, false);
            if (half == 0) dr_group_chain<T, false>(s, y, made, 8192, true);
            dr_group_commit();
            dr_group_wait<0>();
            dr_scale_columns(o, rows.factors.query, half * 4);
            dr_group_begin();
            dr_group_chain<T, true>(o, y, made + ONE_PASS_SCORE + half * 4096, 0, true);
            dr_group_commit();
            dr_group_wait<0>();
            if (one.whole) {
                dr_one_put<T>(to + 2 * half * step, step, value + half * 4096, left - half * 32, o);
            } else {
                const int head = (int)(dr_forget(chain) % (unsigned)plan.value_heads), here = left - half * 32;
                const int first =
                    (int)(dr_forget(chain) / (unsigned)plan.value_heads * plan.length) + at.chunk * 64 + half * 32;
                dr_scan_place place = {};
                place.head = head, place.columns = group * 64;
                dr_group_put_output<T, 4>(call, place, value + half * 4096, shared, first, here < 32 ? here : 32, o);
            }
        }
        dr_one_tell_stage(base, ONE_PASS_FREE, at);
        __syncwarp();
        ask(at.chunk + 2);
        to += 4 * step;
    }
    /* found once more rather than kept in registers */
    const dr_scan_place again = dr_scan_find(call, dr_forget((unsigned)group), dr_forget(chain));
    dr_scan_end<16>(dr_scan_block_of(call, shared, again), again, s);
}

#endif

template <typename T, bool sums>
static __global__ void __launch_bounds__(ONE_PASS_THREADS, 1) one_pass(const __grid_constant__ dr_one_pass_call one) {
#ifdef DR_CUDA_WARPGROUPS
    extern __shared__ __align__(1024) char shared[];
    const unsigned base = dr_shared_address(shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < ONE_PASS_STAGES * 8; i += 8) {
            dr_gate_open(base + ONE_PASS_FILLED + i, 128);
            dr_gate_open(base + ONE_PASS_DECAYED + i, 128);
            dr_gate_open(base + ONE_PASS_FREE + i, 256);
        }
        for (int i = 0; i < ONE_PASS_PLACES * 8; i += 8) {
            dr_gate_open(base + ONE_PASS_SOLVED + i, 128);
            dr_gate_open(base + ONE_PASS_TURNED + i, 128);
            dr_gate_open(base + ONE_PASS_LAID + i, 128);
        }
    }
    __syncthreads();
    const unsigned group = threadIdx.x / 128;
    if (group == 0) {
        dr_registers_give<sums ? 96 : 104>();
        dr_one_make<T, sums>(one, shared, blockIdx.x);
    } else if (group == 3) {
        dr_registers_give<sums ? 80 : 88>();
        dr_one_solve<T, sums>(one.scan, shared);
    } else {
        dr_registers_take<sums ? 168 : 160>();
        dr_one_hold<T, sums>(one, shared, (int)group - 1, blockIdx.x);
    }
#endif
}

#endif
