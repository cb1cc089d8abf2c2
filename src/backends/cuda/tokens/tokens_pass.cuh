/* Rows of the rule, forward, on a block's 32 columns of a state: used by the pass forward (tokens.cu), which explains how the
 * threads share the work, by decoding (decode.cu) and by the replay of the pass backward (tokens_back.cu). */
#ifndef DR_CUDA_TOKENS_PASS_CUH
#define DR_CUDA_TOKENS_PASS_CUH

#include "backends/cuda/tokens/tokens.cuh"
#include "backends/cuda/tokens/tokens.h"

constexpr int THREADS = 128, WARPS = THREADS / 32, COLUMNS = 32, COLUMN_GROUPS = COLUMNS / 4;
constexpr int ROW_GROUPS = THREADS / COLUMN_GROUPS;

/* What a row of the rule does to channel k: .x reads (decayed unless undecayed), .y writes, .z decays, .w queries. */
typedef struct {
    float4 erased[WARPS][COLUMN_GROUPS], read[WARPS][COLUMN_GROUPS];
    float query_write[WARPS];
} row_sums; /* each warp's part */

/* Rows as 128 threads make them, one of so many groups. */
template <int KT, int GROUPS> struct made_rows {
    float4 channel[2][KT]; /* of two rows in turn: one is read while the next is made */
    float dot[2][WARPS], key_dot[WARPS], morrison[WARPS];
};

template <int KT> struct token_shared {
    made_rows<KT, 1> made;
    row_sums sums;
};

/* This thread among the 128 that make a row, or that hold columns of a state. */
static __device__ inline int group_thread() {
    return (int)(threadIdx.x % THREADS);
}

/* Waits for those 128 threads: each of the groups that a block has may have a barrier of its own. */
template <int GROUPS> static __device__ inline void meet() {
    __barrier_sync_count(GROUPS == 1 ? 0 : threadIdx.x / THREADS, THREADS);
}

static __device__ inline float sum_warps(const float (&parts)[WARPS]) {
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}

static __device__ inline float4 sum_warps(const float4 (&parts)[WARPS][COLUMN_GROUPS], int group) {
    const float4 a = parts[0][group], b = parts[1][group], c = parts[2][group], d = parts[3][group];
    return make_float4((a.x + b.x) + (c.x + d.x), (a.y + b.y) + (c.y + d.y), (a.z + b.z) + (c.z + d.z),
                       (a.w + b.w) + (c.w + d.w));
}

static __device__ inline void multiply_add(float a, float4 x, float4 &sum) {
    sum.x = fmaf(a, x.x, sum.x);
    sum.y = fmaf(a, x.y, sum.y);
    sum.z = fmaf(a, x.z, sum.z);
    sum.w = fmaf(a, x.w, sum.w);
}

/* Over the four lanes of a warp that hold the same columns. */
static __device__ inline float sum_rows(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}
static __device__ inline float4 sum_rows(float4 x) {
    return make_float4(sum_rows(x.x), sum_rows(x.y), sum_rows(x.z), sum_rows(x.w));
}

/* Where a block stands. */
typedef struct {
    int64_t sequence, begin, tokens;
    int value_head, key_head, column, group;
    bool whole; /* states are read and written 16 bytes at a time */
} place;

/* Where the state of the value head begins in states [..][HV][K][V]. */
static __device__ inline int64_t state_at(const dr_cuda_rows &rows, int64_t index, const place &at) {
    return (index * rows.value_heads + at.value_head) * ((int64_t)rows.key_size * rows.value_size);
}

/* The slot that a sequence starts from; -1: it is skipped. */
static __device__ inline int64_t first_slot(const dr_cuda_tokens &call, const place &at) {
    return call.from ? call.from[at.sequence] : at.sequence;
}

/* This thread's part of the state of a value head, [K, V] at `from`: 4 columns of rows group,
 * group + 16, .. */
template <int ROWS>
static __device__ inline void load_state(const float *from, int K, int V, const place &at, float4 (&S)[ROWS]) {
    const int left = V - at.column;
    from += (int64_t)at.group * V + at.column;
    DR_UNROLL (i, ROWS) {
        const float *row = from + (int64_t)i * ROW_GROUPS * V;
        S[i] = make_float4(0, 0, 0, 0);
        if (at.group + i * ROW_GROUPS >= K) continue;
        if (at.whole) {
            if (left > 0) S[i] = __ldcs(reinterpret_cast<const float4 *>(row));
        } else {
            if (left > 0) S[i].x = row[0];
            if (left > 1) S[i].y = row[1];
            if (left > 2) S[i].z = row[2];
            if (left > 3) S[i].w = row[3];
        }
    }
}

template <int ROWS> static __device__ inline void clear_state(float4 (&S)[ROWS]) {
    DR_UNROLL (i, ROWS) S[i] = make_float4(0, 0, 0, 0);
}

template <int ROWS>
static __device__ inline void store_state(float *to, int K, int V, const place &at, const float4 (&S)[ROWS]) {
    const int left = V - at.column;
    to += (int64_t)at.group * V + at.column;
    DR_UNROLL (i, ROWS) {
        float *row = to + (int64_t)i * ROW_GROUPS * V;
        if (at.group + i * ROW_GROUPS >= K) continue;
        if (at.whole) {
            if (left > 0) __stcs(reinterpret_cast<float4 *>(row), S[i]);
        } else {
            if (left > 0) row[0] = S[i].x;
            if (left > 1) row[1] = S[i].y;
            if (left > 2) row[2] = S[i].z;
            if (left > 3) row[3] = S[i].w;
        }
    }
}

/* This thread's part of the sums that a row needs, over rows group, group + 16, .. of the state. */
typedef struct {
    float4 erased, read;
    float query_write;
} channel_sums;

template <bool ERASES, bool QUERIES, int KT, int ROWS>
static __device__ inline channel_sums sum_thread(const float4 (&channel)[KT], int group, const float4 (&S)[ROWS]) {
    channel_sums sums = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0), 0};
    DR_UNROLL (i, ROWS) {
        const float4 x = channel[group + i * ROW_GROUPS];
        if (ERASES) multiply_add(x.x, S[i], sums.erased);
        if (QUERIES) multiply_add(x.z * x.w, S[i], sums.read);
        if (QUERIES) sums.query_write = fmaf(x.w, x.y, sums.query_write);
    }
    return sums;
}

/* The same, what the row has no use for being 0. */
template <int KT, int ROWS>
static __device__ inline channel_sums sum_thread(bool erases, bool queries, const float4 (&channel)[KT], int group,
                                                 const float4 (&S)[ROWS]) {
    if (erases && queries) return sum_thread<true, true>(channel, group, S);
    return erases ? sum_thread<true, false>(channel, group, S) : sum_thread<false, true>(channel, group, S);
}

/* The sums of a block, each left in shared memory by its warp. */
template <int KT, int ROWS>
static __device__ inline void sum_channels(bool erases, bool queries, row_sums &sums, const float4 (&channel)[KT], int group,
                                           const float4 (&S)[ROWS]) {
    channel_sums x = sum_thread(erases, queries, channel, group, S);
    const int warp = group_thread() / 32, lane = threadIdx.x % 32;
    if (erases) x.erased = sum_rows(x.erased);
    if (queries) x.read = sum_rows(x.read);
    if (queries) x.query_write = sum_rows(x.query_write);
    if (lane >= COLUMN_GROUPS) return;
    if (erases) sums.erased[warp][lane] = x.erased;
    if (queries) sums.read[warp][lane] = x.read;
    if (queries && lane == 0) sums.query_write[warp] = x.query_write;
}

/* The diagonal scan's part of a token: this thread's channels of B or of the Sherman-Morrison key, and key . (B key), which all
 * threads return; A moves on. */
template <typename T, int KT, int GROUPS, int CHANNELS>
static __device__ inline float pass_scan(const dr_cuda_rows &rows, const place &at, int64_t token,
                                         made_rows<KT, GROUPS> &shared, float (&a)[CHANNELS], float (&squash)[CHANNELS],
                                         float (&morrison)[CHANNELS]) {
    const bool needs_key_dot = rows.normalized;
    const bool needs_morrison = rows.morrison;
    float key_dot = 0, morrison_dot = 0;
    DR_UNROLL (c, CHANNELS) {
        const int d = group_thread() + c * THREADS;
        if (d >= rows.key_size) continue;
        const float before = a[c];
        a[c] = scan_step_at<T>(rows, token, at.key_head, d, before);
        const scan_channel made = scan_channel_at<T>(rows, token, at.key_head, d, before, a[c]);
        squash[c] = made.squash;
        morrison[c] = made.m;
        key_dot += made.key_dot;
        morrison_dot += made.morrison;
    }
    if (!needs_key_dot && !needs_morrison) return 0;
    key_dot = dr_warp_sum(key_dot);
    morrison_dot = dr_warp_sum(morrison_dot);
    meet<GROUPS>(); /* the sums of the token before have been read */
    if (threadIdx.x % 32 == 0) {
        shared.key_dot[group_thread() / 32] = key_dot;
        shared.morrison[group_thread() / 32] = morrison_dot;
    }
    meet<GROUPS>();
    if (needs_morrison) {
        const float factor = 1 / (1 + sum_warps(shared.morrison));
        DR_UNROLL (c, CHANNELS) morrison[c] *= factor;
    }
    return sum_warps(shared.key_dot);
}

/* This thread's channels of A at a slot of `from` (NULL: zero). */
template <int CHANNELS>
static __device__ inline void load_scan(const dr_cuda_tokens &call, const float *from, int64_t slot, const place &at,
                                        float (&a)[CHANNELS]) {
    DR_UNROLL (c, CHANNELS) {
        const int d = group_thread() + c * THREADS;
        a[c] = 0;
        if (call.rows.diagonal_scan && from && d < call.rows.key_size)
            a[c] = from[(slot * call.rows.key_heads + at.key_head) * call.rows.key_size + d];
    }
}

/* This thread's channels of q~; after: A_t. */
template <typename T, int CHANNELS>
static __device__ inline void make_query(const dr_cuda_rows &rows, const place &at, int64_t token,
                                         const float (&after)[CHANNELS], float (&query)[CHANNELS]) {
    DR_UNROLL (c, CHANNELS) {
        const int d = group_thread() + c * THREADS;
        if (d < rows.key_size) query[c] = query_channel_at<T>(rows, token, at.key_head, d, after[c]);
    }
}

/* Makes this thread's channels of a row; returns its part of r . w. */
template <typename T, int KT, int CHANNELS>
static __device__ inline float make_channels(const dr_cuda_rows &rows, const place &at, int64_t token, int step, float alpha,
                                             const float (&squash)[CHANNELS], const float (&morrison)[CHANNELS],
                                             const float (&query)[CHANNELS], float4 (&channel)[KT]) {
    const dr_cuda_row &row = dr_rule_row(rows, step);
    const float factor = dr_read_factor(rows, row, token, at.value_head);
    const bool last = step == rows.steps - 1, undecayed = dr_row_undecayed(rows, step);
    float dot = 0;
    DR_UNROLL (c, CHANNELS) {
        const int d = group_thread() + c * THREADS;
        float4 x = make_float4(0, 0, 0, 0);
        if (d < rows.key_size) {
            const dr_key_lanes<1> keys = key_channel_at<T>(rows, row, token, dr_step_index(rows, step), at.key_head,
                                                           at.value_head, d, squash[c], morrison[c]);
            float r[1], w[1];
            dr_make_keys<1>(row, keys, factor, r, w);
            x.x = r[0], x.y = w[0];
            dot = fmaf(x.x, x.y, dot);
            x.z = step > 0             ? 1.0f
                  : rows.channel_decay ? expf(channel_at<float>(rows, DR_INPUT_LOG_DECAY, token, 0, at.value_head, d))
                                       : alpha;
            if (!undecayed) x.x *= x.z;
            if (last) x.w = query[c];
        }
        if (d < KT) channel[d] = x;
    }
    return dot;
}

/* Channels, gain and raw value of a row, made at once; waits for the 128 threads. */
typedef struct {
    dr_row_gains gains;
    float z[4]; /* value (times its gate) without gain or factor: this thread's columns */
} row_operands;

template <typename T, int KT, int GROUPS, int CHANNELS>
static __device__ inline row_operands make_row(const dr_cuda_rows &rows, const place &at, int64_t token, int step, int turn,
                                               float alpha, float key_dot, const float (&squash)[CHANNELS],
                                               const float (&morrison)[CHANNELS], const float (&query)[CHANNELS],
                                               made_rows<KT, GROUPS> &shared) {
    row_operands made;
    float dot = make_channels<T>(rows, at, token, step, alpha, squash, morrison, query, shared.channel[turn]);
    dr_map_gain_inputs inputs = dr_row_gain_inputs(rows, token, step, at.key_head, at.value_head, 0);
    inputs.key_dot = key_dot;
    const dr_row_gains one = {1, 1, 1};
    dr_row_value<T, 4>(rows, token, step, at.value_head, one, at.column, made.z);
    if (dr_row_needs_dot(rows, step)) {
        dot = dr_warp_sum(dot);
        if (threadIdx.x % 32 == 0) shared.dot[turn][group_thread() / 32] = dot;
    }
    meet<GROUPS>();
    if (dr_row_needs_dot(rows, step)) inputs.dot = sum_warps(shared.dot[turn]);
    made.gains = dr_row_gain_of(rows, step, inputs);
    return made;
}

static __device__ inline float row_value_factor(const dr_cuda_row &row, const dr_row_gains &gains) {
    return row.values == DR_VALUES_GAINED ? gains.gain : gains.factor;
}

/* S = D + w u for rows group, group + 16, .. */
template <int KT, int ROWS>
static __device__ inline void move_state(const float4 (&channel)[KT], int group, float4 u, float4 (&S)[ROWS]) {
    DR_UNROLL (i, ROWS) {
        const float4 x = channel[group + i * ROW_GROUPS];
        S[i] = make_float4(fmaf(x.y, u.x, x.z * S[i].x), fmaf(x.y, u.y, x.z * S[i].y), fmaf(x.y, u.z, x.z * S[i].z),
                           fmaf(x.y, u.w, x.z * S[i].w));
    }
}

/* What a row adds to the state, u = z - c e, and e, which is 0 where the row does not read; S moves on. Where the row is the
 * token's last, its sums are left for read_output. */
typedef struct {
    float4 update, erased;
} row_pass;

template <int KT, int ROWS>
static __device__ inline row_pass pass_row(const dr_cuda_rows &rows, const place &at, int step, int turn,
                                           const row_operands &made, token_shared<KT> &shared, float4 (&S)[ROWS]) {
    const bool erases = dr_row_reads(rows, step), last = step == rows.steps - 1;
    const float z = row_value_factor(dr_rule_row(rows, step), made.gains);
    const float4(&channel)[KT] = shared.made.channel[turn];
    if (erases || last) {
        sum_channels(erases, last, shared.sums, channel, at.group, S);
        meet<1>();
    }
    row_pass pass;
    pass.update = make_float4(made.z[0] * z, made.z[1] * z, made.z[2] * z, made.z[3] * z);
    pass.erased = make_float4(0, 0, 0, 0);
    if (erases) {
        pass.erased = sum_warps(shared.sums.erased, threadIdx.x % COLUMN_GROUPS);
        multiply_add(-made.gains.gain, pass.erased, pass.update);
    }
    move_state(channel, at.group, pass.update, S);
    return pass;
}

/* The output, this thread's columns, after the token's last row. */
static __device__ inline float4 read_output(const dr_cuda_rows &rows, const row_sums &sums, float4 update) {
    float4 out = sum_warps(sums.read, threadIdx.x % COLUMN_GROUPS);
    multiply_add(sum_warps(sums.query_write), update, out);
    return make_float4(rows.scale * out.x, rows.scale * out.y, rows.scale * out.z, rows.scale * out.w);
}

/* Where block `index` stands, for so many slices of the columns of V. Divisions of 32 bits: those of 64 take longer than a
 * state takes to arrive. */
static __device__ inline place place_of(const dr_cuda_tokens &call, unsigned index, unsigned slices) {
    place at;
    const unsigned head = index / slices, HV = (unsigned)call.rows.value_heads;
    at.sequence = head / HV;
    at.value_head = (int)(head % HV);
    at.key_head = at.value_head / call.rows.group;
    at.column = (int)(index % slices) * COLUMNS + 4 * (int)(threadIdx.x % COLUMN_GROUPS);
    at.group = group_thread() / COLUMN_GROUPS;
    at.begin = sequence_begin(call.layout, at.sequence);
    at.tokens = sequence_begin(call.layout, at.sequence + 1) - at.begin;
    at.whole = call.whole;
    return at;
}

static __host__ __device__ inline unsigned slices_of(const dr_cuda_rows &rows) {
    return ((unsigned)rows.value_size + COLUMNS - 1) / COLUMNS;
}

/* Asks for what the rows of a token will read, a lane for each input and so many warps for other lines of 128 bytes: a row's
 * loads wait for one another, and so find it near. */
static __device__ inline void prefetch_token(const dr_cuda_rows &rows, const place &at, int64_t token, int warp, int warps) {
    static_assert(DR_INPUTS <= 32, "a lane for each input");
    const int lane = threadIdx.x % 32;
    if (lane >= DR_INPUTS || !rows.input[lane].at) return;
    const dr_cuda_input &input = rows.input[lane];
    const int64_t first = dr_input_index(input, token, 0, input.per_value ? at.value_head : at.key_head);
    const char *from = (const char *)input.at + first * input.element;
    for (int line = warp * 128; line < input.bytes; line += warps * 128)
        asm volatile("prefetch.global.L1 [%0];" ::"l"(from + line));
}

/* The rows of a token, and its output; S and A, this thread's channels of which are in a, move on. */
template <typename T, int KT, int ROWS, int CHANNELS>
static __device__ inline void pass_token(const dr_cuda_tokens &call, const place &at, int64_t token, int &turn,
                                         token_shared<KT> &shared, float4 (&S)[ROWS], float (&a)[CHANNELS]) {
    const dr_cuda_rows &rows = call.rows;
    const int V = rows.value_size;
    float squash[CHANNELS], morrison[CHANNELS], query[CHANNELS];
    DR_UNROLL (c, CHANNELS) squash[c] = morrison[c] = query[c] = 0;
    const float alpha = dr_row_alpha(rows, token, at.value_head);
    float key_dot = 0;
    if (rows.diagonal_scan) key_dot = pass_scan<T>(rows, at, token, shared.made, a, squash, morrison);
    make_query<T>(rows, at, token, a, query);
    for (int step = 0; step < rows.steps; step++, turn ^= 1) {
        const row_operands made =
            make_row<T>(rows, at, token, step, turn, alpha, key_dot, squash, morrison, query, shared.made);
        const row_pass pass = pass_row(rows, at, step, turn, made, shared, S);
        if (step < rows.steps - 1 || at.group != 0 || at.column >= V) continue;
        const float4 out = read_output(rows, shared.sums, pass.update);
        const float o[4] = {out.x, out.y, out.z, out.w};
        dr_store_lane<T, 4>((T *)call.o + (token * rows.value_heads + at.value_head) * V + at.column, V - at.column,
                            call.whole_output, o);
    }
}

#endif
