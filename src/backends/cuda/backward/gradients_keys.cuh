/* The last part of gradients.cu: what queries, read keys and write keys of a chunk get, a group of warps 64 channels of K. */
#ifndef DR_CUDA_GRADIENTS_KEYS_CUH
#define DR_CUDA_GRADIENTS_KEYS_CUH

#include "backends/cuda/backward/gradients.cuh"
#include "backends/cuda/backward/shared_exponent.cuh"

#ifdef DR_CUDA_WARPGROUPS

/* ---- what queries and keys get ------------------------------------------------------------------------------------------ */

/* The sum of S . dS' over tiles of 64 channels and all columns of V, this thread's part. By four warps. */
template <typename T, int value_boxes> static __device__ inline float exit_sum(const char *state, const char *d_state) {
    float sum[4] = {};
#pragma unroll 4
    for (int i = (int)(threadIdx.x % 128); i < value_boxes * 64 * 8; i += 128) {
        const uint4 s = *(const uint4 *)(state + i * 16), d = *(const uint4 *)(d_state + i * 16);
        const unsigned of_s[4] = {s.x, s.y, s.z, s.w}, of_d[4] = {d.x, d.y, d.z, d.w};
        DR_UNROLL (e, 4) {
            const float2 a = dr_unpack(T(), of_s[e]), b = dr_unpack(T(), of_d[e]);
            sum[e] = fmaf(a.x, b.x, fmaf(a.y, b.y, sum[e]));
        }
    }
    return sum[0] + sum[1] + (sum[2] + sum[3]);
}

/* The same with what the call gives of them as it is. first: of the channels. */
template <typename T, int value_boxes>
static __device__ inline float given_exit_sum(const dr_cuda_backward_call &call, const chunk_rows &told, int first,
                                              const char *state, const char *d_state) {
    const dr_cuda_rows &rows = call.plan.rows;
    const float *entry = dr_given_state(call, told.x, false), *beyond = dr_given_state(call, told.x, true);
    float sum = 0;
#pragma unroll 1
    for (int i = (int)(threadIdx.x % 128); i < value_boxes * 64 * 64; i += 128) {
        const int column = i % (value_boxes * 64), channel = i / (value_boxes * 64);
        const unsigned at = dr_tile_at<T>(0, 64, column, channel);
        const float before =
            entry ? dr_state_element(rows, entry, first + channel, column) : dr_to_float(*(const T *)(state + at));
        const float after =
            beyond ? dr_state_element(rows, beyond, first + channel, column) : dr_to_float(*(const T *)(d_state + at));
        sum = fmaf(before, after, sum);
    }
    return sum;
}

/* The thread's part of the diagonal. */
static __device__ inline float trace_of(const worker &w, const float (&c)[8][4]) {
    const int g = w.row % 8, warp = dr_scan_warp();
    unsigned sum = 0; /* its bits, so that no array is indexed by the warp */
    DR_UNROLL_BY (n, 8, 2) {
        const float two = g % 2 ? c[n][1] + c[n + 1][3] : c[n][0] + c[n + 1][2];
        sum |= __float_as_uint(two) & (n == 2 * warp && g / 2 == w.t ? 0xffffffffu : 0);
    }
    return __uint_as_float(sum);
}

/* The rows to tokens of [tokens][..][size], the group's 64 columns from `to` on, through the warp's rows of a box. */
template <typename T>
static __device__ inline void put_tokens(const worker &w, unsigned box, T *to, int64_t stride, int size,
                                         const float (&c)[8][4]) {
    const bool aligned = w.plain || w.call.plan.rows.aligned;
    const int left = size - w.group * 64, first = dr_scan_warp() * 16, alive = w.rows.x.rows - first;
    const int lane = (int)(threadIdx.x % 32), row = lane / 8, column = lane % 8 * 8;
    uint4 eight[4];
    dr_group_lay_rows<T>(w.shared + box, c);
    DR_UNROLL (i, 4) eight[i] = *(const uint4 *)(w.shared + dr_tile_at<T>(box, 64, first + row + 4 * i, column));
    to += (first + row) * stride + column;
    DR_UNROLL (i, 4) {
        if (row + 4 * i >= alive) break;
        T *at = to + 4 * i * stride;
        const T *x = (const T *)&eight[i];
        if (aligned) { /* an assignment would become four stores */
            if (column < left) __stwb((uint4 *)at, eight[i]);
        } else {
            DR_UNROLL (e, 8)
                if (column + e < left) at[e] = x[e];
        }
    }
}

/* The rows as floats to [64][Kp]. */
static __device__ inline void put_floats(const worker &w, float *to, const float (&c)[8][4]) {
    const int width = w.call.plan.key_width;
    to += w.rows.x.block * 64 * width + w.group * 64 + 2 * w.t;
    DR_UNROLL (n, 8)
        DR_UNROLL (h, 2) *(float2 *)(to + (int64_t)(w.row + 8 * h) * width + 8 * n) = make_float2(c[n][2 * h], c[n][2 * h + 1]);
}

/* Likewise as floats to the diagonal scan's backward. */
static __device__ inline void put_scan(const worker &w, float *to, const float (&c)[8][4]) {
    const dr_cuda_rows &rows = w.call.plan.rows;
    const int64_t stride = (int64_t)rows.key_heads * rows.key_size;
    const int left = rows.key_size - w.group * 64 - 2 * w.t;
    to += w.rows.x.place.first * stride + w.rows.x.key_head * rows.key_size + w.group * 64 + 2 * w.t;
    DR_UNROLL (h, 2) {
        const int row = w.row + 8 * h;
        if (row >= w.rows.x.rows) continue;
        DR_UNROLL (n, 8) {
            float *pair = to + row * stride + 8 * n;
            if (rows.aligned && 8 * n < left) {
                *(float2 *)pair = make_float2(c[n][2 * h], c[n][2 * h + 1]);
            } else {
                if (8 * n < left) pair[0] = c[n][2 * h];
                if (8 * n + 1 < left) pair[1] = c[n][2 * h + 1];
            }
        }
    }
}

/* Likewise as key_scan.cu takes them, [64][128] whole numbers of a unit that a row's 64 channels share; through the warp's rows
 * of a box. */
static __device__ inline void put_shared(const worker &w, unsigned box, const dr_cuda_diagonal_gradients &to,
                                         const float (&c)[8][4]) {
    const int lane = (int)(threadIdx.x % 32), row = dr_scan_warp() * 16 + lane / 8, column = lane % 8 * 8;
    const int64_t first = w.rows.x.block * 64;
    unsigned pairs[4][4];
    DR_UNROLL (h, 2) {
        float largest = 0;
        DR_UNROLL (n, 8) largest = dr_larger(largest, dr_larger(c[n][2 * h], c[n][2 * h + 1]));
#pragma unroll
        for (int step = 1; step < 4; step *= 2) /* over the lanes that share the row */
            largest = dr_larger(largest, __shfl_xor_sync(0xffffffffu, largest, step));
        const dr_shared_unit shared = dr_share_unit(largest);
        DR_UNROLL (n, 8) pairs[n / 2][n % 2 * 2 + h] = dr_pack_shared(c[n][2 * h], c[n][2 * h + 1], shared.per_unit);
        if (w.t == 0) to.row[first + w.row + 8 * h].unit[w.group] = (uint16_t)(__float_as_uint(shared.unit) >> 16);
    }
    put_box<__nv_bfloat16>(w.base + box, pairs);
    __syncwarp();
    uint4 *at = (uint4 *)((uint16_t *)to.squashed + (first + row) * 128 + w.group * 64 + column);
    DR_UNROLL (i, 4)
        at[4 * i * (128 / 8)] = *(const uint4 *)(w.shared + dr_tile_at<__nv_bfloat16>(box, 64, row + 4 * i, column));
}

/* Sums over a box's 64 columns of C times the box, and of its squares, of the thread's two rows. */
template <typename T> static __device__ inline float2 dots_and_squares(const float (&c)[8][4], unsigned box, float2 &squares) {
    unsigned x[8][2];
    load_places<T>(box, x);
    float2 dots = squares = make_float2(0, 0);
    DR_UNROLL (n, 8) {
        const float2 upper = dr_unpack(T(), x[n][0]), lower = dr_unpack(T(), x[n][1]);
        dots.x = fmaf(c[n][0], upper.x, fmaf(c[n][1], upper.y, dots.x));
        dots.y = fmaf(c[n][2], lower.x, fmaf(c[n][3], lower.y, dots.y));
        squares.x = fmaf(upper.x, upper.x, fmaf(upper.y, upper.y, squares.x));
        squares.y = fmaf(lower.x, lower.x, fmaf(lower.y, lower.y, squares.y));
    }
    squares = sum_of_four(squares);
    return sum_of_four(dots);
}

/* Gradients of queries, and of keys, where rows are their inputs or made of them by the diagonal scan, else what row_gradients
 * takes. */
template <typename T> static __device__ inline void put_input(const worker &w, unsigned box, int i, const float (&c)[8][4]) {
    const dr_cuda_rows &rows = w.call.plan.rows;
    const dr_cuda_input &input = rows.input[i];
    if (!input.gradient) return;
    T *to = (T *)input.gradient + dr_gradient_index(rows, input, w.rows.x.place.first, w.rows.x.head) + w.group * 64;
    put_tokens<T>(w, box, to, input.token * dr_gradient_spread(rows, input), rows.key_size, c);
}

template <typename T> static __device__ inline void put_query(const worker &w, unsigned box, const float (&q)[8][4]) {
    if (w.plain || w.call.direct || w.call.made)
        put_input<T>(w, box, DR_INPUT_QUERY, q);
    else
        put_floats(w, w.call.back.d_query, q);
}

/* r has its factor s. read, write: boxes that they may go through. */
template <typename T, int reading>
static __device__ inline void put_keys(const worker &w, unsigned read, unsigned write, float (&r)[8][4], float (&k)[8][4]) {
    constexpr bool reads = reading != READS_NOTHING;
    const gradients_call &call = w.call;
    const bool made = leads_made(call, reading, w.plain);
    if (!w.plain && !made && !call.direct) {
        if (reads) {
            scale_rows(r, 1 / dr_score_gain(w.rows.gain[w.row]), 1 / dr_score_gain(w.rows.gain[w.row + 8]));
            put_floats(w, call.back.d_read, r);
        }
        put_floats(w, call.back.d_write, k);
        return;
    }
    const float factor[2] = {reads ? w.rows.rest[w.row] : 0, reads ? w.rows.rest[w.row + 8] : 0};
    DR_UNROLL (n, 8)
        DR_UNROLL (i, 4) {
            if (reading == READS_WRITTEN || reading == READS_SUM)
                k[n][i] = fmaf(factor[i / 2], r[n][i], k[n][i]);
            else
                r[n][i] = reads ? factor[i / 2] * r[n][i] : 0;
        }
    if (made && (w.plain || !call.diagonal.key)) {
        put_input<T>(w, read, DR_INPUT_KEY, r);
        put_shared(w, write, call.diagonal, k);
        return;
    }
    if (made) {
        put_scan(w, call.diagonal.key, r);
        put_scan(w, call.diagonal.squashed, k);
        return;
    }
    if (reading == READS_OTHER) put_input<T>(w, read, call.read, r);
    put_input<T>(w, write, call.written, k);
}

/* Of r = key + lambda query: what the query and lambda get of its gradient; dot: of that with the query. Both have their factor
 * s. */
static __device__ inline void lead_sum(const worker &w, float2 dot, const float (&r)[8][4], float (&q)[8][4]) {
    put_rows(w, w.sums.lambda[w.group], make_float2(w.rows.rest[w.row] * dot.x, w.rows.rest[w.row + 8] * dot.y));
    const float factor[2] = {w.rows.mixed[w.row], w.rows.mixed[w.row + 8]};
    DR_UNROLL (n, 8)
        DR_UNROLL (i, 4) q[n][i] = fmaf(factor[i / 2], r[n][i], q[n][i]);
}

/* What G^T and M^T for the queries of read keys lose when they are rounded as one: k gets it, so that the sums over pairs that
 * make the gradient of log decays have the same pairs from both sides. */
template <typename T>
static __device__ inline void add_rest(const worker &w, unsigned score, unsigned erase, unsigned query, float (&k)[8][4]) {
    unsigned rest[4][4], all[4][4];
    operands_turned<T>(rest, score);
    operands_turned<T>(all, erase);
    scale_turned<T, SCALE_REST>(rest, all, w.rows.mixed);
    dr_group_settle(rest), dr_group_settle(k);
    dr_group_begin();
    chain_rows<T>(k, rest, w.base + query);
    dr_group_commit();
    dr_group_wait<0>();
}

/* d_query = f scale S dO + G W, d_read = (f s S dY + M W) / s, d_write = f dS' U + G^T Q - (c/s M)^T R, of 64 channels; q, r:
 * S dO, S dY. */
template <typename T, int key_boxes, int value_boxes, int reading>
static __device__ inline void make_keys(const worker &all, float (&q)[8][4], float (&r)[8][4]) {
    typedef chunk_shape<key_boxes, value_boxes, reading> shape;
    worker w = all;
    if (shape::sums) w.row = (int)dr_forget((unsigned)w.row); /* addresses are made once more rather than kept in registers */
    const dr_cuda_rows &rows = w.call.plan.rows;
    const unsigned own = (unsigned)w.group * BOX, score = w.base + WORK, erase = score + BOX;
    const unsigned update = w.base + tile_of(w, shape::value), state = tile_of(w, shape::state + w.group),
                   key = tile_of(w, shape::key) + own, query = await_tile(w, shape::query) + own,
                   write_key = (shape::apart ? await_tile(w, shape::write) : tile_of(w, shape::key)) + own,
                   d_state = await_tile(w, shape::exit + w.group);
    const unsigned rest = shape::reads ? w.base + tile_of(w, shape::inverse) : 0; /* of U */
    const chunk_decays &decay = w.rows.decay;
    const bool made = leads_made(w.call, reading, w.plain);
    float k[8][4];
    const auto from_exit = [&](bool add) {
        dr_group_begin();
        DR_UNROLL (b, value_boxes) {
            chain<T, false, false>(k, update + b * BOX, w.base + d_state + b * BOX, add || b > 0);
            if (shape::reads) chain<T, false, false>(k, rest + b * BOX, w.base + d_state + b * BOX, true);
        }
        dr_group_commit();
    };
    dr_shared_fence();
    if (gives_beyond(w)) {
        const auto replace = [&](const float *given) {
            meet_group(w);
            for (int b = 0; b < value_boxes; b++)
                replace_states<T>(w, d_state + b * BOX, given, w.call.back.d_exit, b * 64, w.group * 64);
            dr_shared_fence();
            meet_group(w);
        };
        replace(dr_given_state(w.call, w.rows.x, true));
        from_exit(false);
        dr_group_wait<0>();
        replace(NULL);
    }
    if (rows.scalar_decay) { /* S . dS' is the trace of a product, which takes fewer instructions than the sum */
        float all[8][4];
        from_exit(gives_beyond(w));
        dr_group_begin();
        DR_UNROLL (b, value_boxes) chain<T, true, false>(all, w.base + state + b * BOX, w.base + d_state + b * BOX, b > 0);
        dr_group_commit();
        dr_group_wait<0>();
        float exit = trace_of(w, all);
        if (gives_entry(w) || gives_beyond(w))
            exit = given_exit_sum<T, value_boxes>(w.call, w.rows, w.group * 64, w.shared + state, w.shared + d_state);
        exit = dr_warp_sum(exit);
        if (threadIdx.x % 32 == 0) w.sums.exit[w.group * 4 + dr_scan_warp()] = exit;
    } else {
        from_exit(gives_beyond(w));
        dr_group_wait<0>();
    }
    leave_tile(w, shape::output);
    DR_UNROLL (b, key_boxes) leave_tile(w, shape::state + b), leave_tile(w, shape::exit + b);
    leave_tile(w, shape::d_update);
    leave_tile(w, shape::value);
    if (shape::reads) leave_tile(w, shape::inverse);
    {
        const float before = decay_between(decay, w.row, false), behind = decay_between(decay, w.row, true);
        scale_rows(q, rows.scale * before * decay.head[w.row], rows.scale * before * decay.head[w.row + 8]);
        if (shape::reads)
            scale_rows(r, dr_score_gain(w.rows.gain[w.row]) * before * decay.read[w.row],
                       dr_score_gain(w.rows.gain[w.row + 8]) * before * decay.read[w.row + 8]);
        scale_rows(k, behind * decay.tail[w.row], behind * decay.tail[w.row + 8]);
    }
    float2 ask = make_float2(0, 0), far = ask, read = ask, write = ask;
    const int64_t part = (w.rows.x.block * key_boxes + w.group) * 64;
    if (made) {
        float2 squares;
        far = dots_and_squares<T>(k, w.base + write_key, squares);
        put_rows(w, w.call.back.square_part + part, squares);
    } else if (rows.scalar_decay) {
        far = dots_with<T>(k, w.base + write_key);
    }
    unsigned turned[4][4], joint[4][4]; /* M^T times what keys are multiplied by; G^T, and M^T for the queries of read keys */
    if (shape::reads) {
        unsigned all[4][4];
        operands_turned<T>(all, erase);
        scale_turned<T, SCALE_ALONE>(turned, all, w.rows.rest);
        dr_group_settle(turned), dr_group_settle(r);
        if (shape::sums) {
            operands_turned<T>(joint, score);
            scale_turned<T, SCALE_SUM>(joint, all, w.rows.mixed);
            dr_group_settle(joint);
        }
    }
    dr_group_settle(q), dr_group_settle(k);
    dr_group_begin();
    chain<T, false, false>(q, score, w.base + write_key, true);
    if (shape::reads) chain<T, false, false>(r, erase, w.base + write_key, true);
    dr_group_commit();
    if (shape::sums)
        chain_rows<T>(k, joint, w.base + query);
    else
        chain<T, true, false>(k, score, w.base + query, true);
    if (shape::reads) chain_rows<T>(k, turned, w.base + key);
    dr_group_commit();
    dr_group_wait<1>();
    float2 mix = make_float2(0, 0); /* r . query; r has its factor s as yet */
    if (shape::sums) {
        dots_with<T>(q, r, w.base + query, ask, mix);
        if (leads_direct(w.call, reading, w.plain)) lead_sum(w, mix, r, q);
    } else if (rows.scalar_decay) {
        ask = dots_with<T>(q, w.base + query);
    }
    dr_group_wait<0>();
    if (shape::sums) add_rest<T>(w, score, erase, query, k);
    if (reading == READS_WRITTEN || shape::sums) {
        dots_with<T>(r, k, w.base + key, read, write);
        read.x = fmaf(shape::sums ? w.rows.lambda[w.row] : 0, mix.x, read.x);
        read.y = fmaf(shape::sums ? w.rows.lambda[w.row + 8] : 0, mix.y, read.y);
    } else {
        if (shape::reads) read = dots_with<T>(r, w.base + key);
        if (rows.scalar_decay || made) write = dots_with<T>(k, w.base + write_key);
    }
    read.x /= dr_score_gain(w.rows.gain[w.row]), read.y /= dr_score_gain(w.rows.gain[w.row + 8]);
    put_rows(w, w.sums.reader[w.group], make_float2(ask.x - (write.x - far.x), ask.y - (write.y - far.y)));
    put_rows(w, w.sums.read[w.group], read);
    put_rows(w, w.sums.writer[w.group], far);
    if (made) {
        if (shape::reads) put_rows(w, w.call.back.gain_part + part, make_float2(-read.x, -read.y));
        put_rows(w, w.call.back.write_part + part, write);
    }
    meet_group(w); /* queries and keys are read */
    put_query<T>(w, query, q);
    put_keys<T, reading>(w, key, write_key, r, k);
    leave_tile(w, shape::key);
    if (shape::apart) leave_tile(w, shape::write);
    leave_tile(w, shape::query);
}

#endif
#endif
