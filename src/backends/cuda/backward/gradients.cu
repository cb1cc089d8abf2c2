/* gradients: what updates, keys and decay (backward.h) compute, in one kernel of sm_90a, for 16-bit types, K and V up to 128,
 * no or scalar decay and one row a token. U, G and M never leave the multiprocessor, and S, dO and dY come once:
 *
 *     S dO, S dY                                      a group of four warps 64 channels of K: asked for first, wanted last
 *     U = A (Z - diag(c) R~ S)                        a group 64 columns of V
 *     G = scale dO U^T f, M = s dY U^T f              a group one of them
 *     what q~, r and w get                            a group 64 channels of K
 *
 * One persistent block a multiprocessor takes every gridDim-th chunk and value head. Four producer warps copy tiles of 16 KB
 * into a ring of places. Each warp fills a place of its own, as far ahead as places are free, since issuing a tile's copies
 * takes a warp longer than the memory takes to answer. The producers also make the decays of a chunk, and lead the gradients
 * of decays and gains to their inputs when it is done. Two consumer groups of four warps compute. Each place has two barriers:
 * the copies arrive at the first when the tile is there, all consumers at the second when they are done with it. The tiles
 * come in an order in which those that are left early take the places of those that are needed first (chunk_shape). */
#include "backends/cuda/backward/gradients_keys.cuh"
#include "backends/cuda/device/device.cuh"
#include "backends/cuda/device/launch.cuh"

static gradients_reading reading_of(const dr_cuda_chunk_plan *plan) {
    if (!plan->reads) return READS_NOTHING;
    if (plan->rows.tied) return READS_WRITTEN;
    if (plan->reader_sum) return READS_SUM;
    return plan->reader_direct ? READS_OTHER : READS_NEITHER;
}

bool dr_cuda_backward_fuses(const dr_cuda_chunk_plan *plan) {
    const dr_cuda_rows *rows = &plan->rows;
    const dr_cuda_row *row = &rows->row[0];
    return plan->warpgroups && plan->value_width <= 128 && !rows->channel_decay && rows->steps == 1 &&
           reading_of(plan) != READS_NEITHER && rows->asks != DR_ASKS_AFFINE && row->writes != DR_WRITES_PRODUCT &&
           (row->values == DR_VALUES_PLAIN || row->values == DR_VALUES_GAINED);
}

#ifdef DR_CUDA_WARPGROUPS

/* ---- U ------------------------------------------------------------------------------------------------------------------ */

/* Gradients of values from dZ = dY, 16 bytes a thread of four rows, and sums of value . dz. */
template <typename T> static __device__ inline void put_values(const worker &w, const char *values, const char *d_update) {
    const dr_cuda_rows &rows = w.call.plan.rows;
    const dr_cuda_input &value = rows.input[DR_INPUT_VALUE];
    const int thread = (int)(threadIdx.x % 128), lane = thread % 32, first = thread / 8, within = thread % 8 * 8;
    const int column = w.group * 64 + within, left = rows.value_size - column, alive = w.rows.x.rows;
    const unsigned at = dr_tile_at<T>(0, 64, first, within);
    union {
        uint4 words;
        unsigned word[4];
        T x[8];
    } put[4];
    float sum[4];
    DR_UNROLL (j, 4) {
        const uint4 v = *(const uint4 *)(values + at + j * 16 * 128), d = *(const uint4 *)(d_update + at + j * 16 * 128);
        const unsigned of_v[4] = {v.x, v.y, v.z, v.w}, of_d[4] = {d.x, d.y, d.z, d.w};
        const float factor = w.rows.value[first + 16 * j];
        float even = 0, odd = 0;
        DR_UNROLL (i, 4) {
            const float2 x = dr_unpack(T(), of_v[i]), y = dr_unpack(T(), of_d[i]);
            even = fmaf(x.x, y.x, even);
            odd = fmaf(x.y, y.y, odd);
            put[j].word[i] = dr_pack(T(), factor * y.x, factor * y.y);
        }
        sum[j] = even + odd;
    }
    T *to = (T *)value.gradient;
    if (to) {
        to += (w.rows.x.place.first + first) * value.token + (int64_t)w.rows.x.head * value.head + column;
        if (w.plain || rows.aligned) {
            DR_UNROLL (j, 4)
                if (left > 0 && first + 16 * j < alive) __stwb((uint4 *)(to + 16 * j * value.token), put[j].words);
        } else {
            DR_UNROLL (j, 4)
                DR_UNROLL (e, 8)
                    if (e < left && first + 16 * j < alive) to[16 * j * value.token + e] = put[j].x[e];
        }
    }
    /* over eight lanes: each pair of lanes is left with one of the four rows */
#pragma unroll
    for (int step = 4, half = 2; half > 0; step /= 2, half /= 2)
        DR_UNROLL (j, half) {
            const float first = sum[j], second = sum[j + half]; /* loaded in the choice they would leave the registers */
            const float mine = lane & step ? second : first, other = lane & step ? first : second;
            sum[j] = mine + __shfl_xor_sync(0xffffffffu, other, step);
        }
    sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], 1);
    if (lane % 2 == 0) w.sums.value_dot[w.group][first + 16 * (lane / 4 % 2 * 2 + lane / 2 % 2)] = sum[0];
}

/* The same of the group's 64 columns of the chunk. */
template <typename T, int key_boxes, int value_boxes, int reading> static __device__ inline void take_values(const worker &w) {
    typedef chunk_shape<key_boxes, value_boxes, reading> shape;
    const unsigned columns = (unsigned)w.group * BOX;
    const unsigned values = await_tile(w, shape::value) + columns, d_update = await_tile(w, shape::d_update) + columns;
    put_values<T>(w, w.shared + values, w.shared + d_update);
}

/* Products with the states before the chunk are asked for: ask(add). Where the call gives these in float, what rounding took
 * from them goes first. own: whether the group has columns of V. */
template <typename T, int key_boxes, int value_boxes, int reading, bool own, typename F>
static __device__ inline void ask_states(const worker &w, F ask) {
    typedef chunk_shape<key_boxes, value_boxes, reading> shape;
    const bool entry = gives_entry(w);
    if (entry) {
        const auto replace = [&](bool rest) {
            const float *given = rest ? dr_given_state(w.call, w.rows.x, false) : NULL;
            meet_all<shape::groups>();
            for (int b = 0; b < key_boxes && own; b++)
                replace_states<T>(w, tile_of(w, shape::state + b) + (unsigned)w.group * BOX, given, w.call.saved, w.group * 64,
                                  b * 64);
            dr_shared_fence();
            meet_all<shape::groups>();
        };
        replace(true);
        ask(false);
        dr_group_wait<0>();
        replace(false);
    }
    ask(entry);
}

/* R S of the group's 64 columns of V: K S and, where R is a sum, Q S. */
template <typename T, int key_boxes, int value_boxes, int reading>
static __device__ inline void ask_updates(const worker &w, bool add, float (&u)[8][4], float (&asked)[8][4]) {
    typedef chunk_shape<key_boxes, value_boxes, reading> shape;
    const unsigned key = w.base + tile_of(w, shape::key), query = shape::sums ? w.base + await_tile(w, shape::query) : 0;
    dr_shared_fence();
    dr_group_begin();
    DR_UNROLL (b, key_boxes) {
        const unsigned state = w.base + tile_of(w, shape::state + b) + (unsigned)w.group * BOX;
        chain<T, false, true>(u, key + b * BOX, state, add || b > 0);
        if (shape::sums) chain<T, false, true>(asked, query + b * BOX, state, add || b > 0);
    }
    dr_group_commit();
}

/* S dO, S dY of the group's 64 channels of K, which are wanted last but wait for nothing else. */
template <typename T, int key_boxes, int value_boxes, int reading>
static __device__ inline void ask_keys(const worker &w, bool add, float (&q)[8][4], float (&r)[8][4]) {
    typedef chunk_shape<key_boxes, value_boxes, reading> shape;
    const unsigned own = w.base + tile_of(w, shape::state + w.group), output = w.base + await_tile(w, shape::output),
                   d_update = w.base + await_tile(w, shape::d_update);
    dr_shared_fence();
    dr_group_begin();
    DR_UNROLL (b, value_boxes) {
        chain<T, false, false>(q, output + b * BOX, own + b * BOX, add || b > 0);
        if (shape::reads) chain<T, false, false>(r, d_update + b * BOX, own + b * BOX, add || b > 0);
    }
    dr_group_commit();
}

/* Y = Z - diag(c) R~ S of the group's 64 columns, from K S and Q S. */
template <typename T, int key_boxes, int value_boxes, int reading>
static __device__ inline void take_rest(const worker &w, float (&u)[8][4], const float (&asked)[8][4]) {
    typedef chunk_shape<key_boxes, value_boxes, reading> shape;
    unsigned values[8][2];
    load_places<T>(w.base + tile_of(w, shape::value) + (unsigned)w.group * BOX, values);
    const float before = shape::reads ? decay_between(w.rows.decay, w.row, false) : 0;
    DR_UNROLL (h, 2) {
        const int row = w.row + 8 * h;
        const float f = w.rows.value[row], c = w.rows.gain[row] * before * w.rows.decay.read[row];
        const float lambda = shape::sums ? w.rows.lambda[row] : 0;
        DR_UNROLL (n, 8) {
            const float2 v = dr_unpack(T(), values[n][h]);
            float &left = u[n][2 * h], &right = u[n][2 * h + 1];
            if (shape::sums) left = fmaf(lambda, asked[n][2 * h], left), right = fmaf(lambda, asked[n][2 * h + 1], right);
            left = shape::reads ? fmaf(-c, left, f * v.x) : f * v.x;
            right = shape::reads ? fmaf(-c, right, f * v.y) : f * v.y;
        }
    }
}

/* U = A Y to the place of the values; u: Y, and then U; rest: what rounding takes from U. */
template <typename T, int key_boxes, int value_boxes, int reading>
static __device__ inline void make_updates(const worker &w, float (&u)[8][4], unsigned (&rest)[4][4]) {
    typedef chunk_shape<key_boxes, value_boxes, reading> shape;
    const unsigned columns = (unsigned)w.group * BOX, values = w.base + tile_of(w, shape::value) + columns;
    unsigned y[4][4];
    if (shape::reads) {
        const unsigned high = w.base + await_tile(w, shape::inverse), low = high + BOX, left = w.base + WORK + columns;
        halves_of<T>(y, rest, u);
        put_box<T>(values, y);
        put_box<T>(left, rest);
        dr_shared_fence();
        meet_group(w);
        dr_group_begin();
        chain<T, false, false>(u, high, values, false);
        chain<T, false, false>(u, low, values, true);
        chain<T, false, false>(u, high, left, true);
        dr_group_commit();
        dr_group_wait<0>();
        meet_group(w); /* Y is read */
    }
    if (shape::reads)
        halves_of<T>(y, rest, u);
    else
        operands_of<T>(y, u);
    put_box<T>(values, y);
    dr_shared_fence();
    if (shape::reads || !leads_direct(w.call, reading, w.plain))
        put_rows(w, w.sums.write_dot[w.group], dots_with<T>(u, w.base + tile_of(w, shape::d_update) + columns));
}

/* ---- G and M ------------------------------------------------------------------------------------------------------------ */

/* dO U^T (erase: dY U^T) up to the diagonal (below it) times the decays and factors of rows, to a box behind the places. */
template <typename T, int key_boxes, int value_boxes, int reading>
static __device__ inline void make_scores(const worker &w, bool erase) {
    typedef chunk_shape<key_boxes, value_boxes, reading> shape;
    const dr_cuda_rows &rows = w.call.plan.rows;
    const chunk_decays &decay = w.rows.decay;
    const unsigned update = w.base + tile_of(w, shape::value),
                   reader = w.base + tile_of(w, erase ? shape::d_update : shape::output);
    float c[8][4];
    dr_shared_fence();
    dr_group_begin();
    DR_UNROLL (b, value_boxes) chain<T, false, true>(c, reader + b * BOX, update + b * BOX, b > 0);
    dr_group_commit();
    float factor[2], begin[2];
    const float *near[2];
    DR_UNROLL (h, 2) {
        const int row = w.row + 8 * h;
        factor[h] = erase ? dr_score_gain(w.rows.gain[row]) : rows.scale;
        begin[h] = factor[h] * (erase ? decay.read[row] : decay.head[row]);
        near[h] = decay.near[!w.plain && erase && dr_undecayed(rows, row) && row > 0 ? row - 1 : row];
    }
    dr_group_wait<0>();
    if (shape::reads && w.call.full) { /* what rounding took from U */
        const unsigned rest = w.base + tile_of(w, shape::inverse);
        dr_group_settle(c);
        dr_group_begin();
        DR_UNROLL (b, value_boxes) chain<T, false, true>(c, reader + b * BOX, rest + b * BOX, true);
        dr_group_commit();
        dr_group_wait<0>();
    }
    mask_scores(w, factor, begin, near, erase, c);
    unsigned x[4][4];
    operands_of<T>(x, c);
    put_box<T>(w.base + WORK + (erase ? BOX : 0), x);
    dr_shared_fence();
}

/* ---- the kernel --------------------------------------------------------------------------------------------------------- */

/* only: the group, where not all have the same to do, so that no product is conditional; else -1. */
template <typename T, int key_boxes, int value_boxes, int reading, bool plain, int only>
static __device__ inline void compute_chunks(const gradients_call &call, char *shared) {
    typedef chunk_shape<key_boxes, value_boxes, reading> shape;
    constexpr bool has_values = only < value_boxes, has_keys = only < key_boxes;
    const dr_cuda_chunk_plan &plan = call.plan;
    const int thread = (int)(threadIdx.x % 128), group = only < 0 ? dr_same_in_warp((int)(threadIdx.x / 128) - 1) : only,
              lane = thread % 32;
    const unsigned base = dr_shared_address(shared);
    ring_at at = {0, 0};
    unsigned side = 0, turn = 0;
#pragma unroll 1
    for (;;) {
        dr_gate_wait(filled_gate(base, PLACES + side), turn);
        const chunk_rows &told = ((const chunk_rows *)(shared + ROWS))[side];
        const int64_t block = told.x.block;
        if (block < 0) break;
        chunk_sums &sums = ((chunk_sums *)(shared + SUMS))[side];
        const worker w = {call, told, sums, shared, base, group, thread / 32 * 16 + lane / 4, lane % 4, at, plain};
        float u[8][4], asked[8][4], q[8][4], r[8][4];
        unsigned rest[4][4];
        DR_UNROLL (i, key_boxes) await_tile(w, shape::state + i);
        await_tile(w, shape::key);
        ask_states<T, key_boxes, value_boxes, reading, has_values>(w, [&](bool add) {
            if (shape::reads && has_values) ask_updates<T, key_boxes, value_boxes, reading>(w, add, u, asked);
            if (has_keys) ask_keys<T, key_boxes, value_boxes, reading>(w, add, q, r);
        });
        if (has_values) {
            take_values<T, key_boxes, value_boxes, reading>(w);
            if (shape::reads) dr_group_wait<has_keys ? 1 : 0>();
            take_rest<T, key_boxes, value_boxes, reading>(w, u, asked);
        }
        meet_all<shape::groups>(); /* the values are read, and G and M of the chunk before */
        if (has_values) make_updates<T, key_boxes, value_boxes, reading>(w, u, rest);
        meet_all<shape::groups>();
        if (shape::reads && has_values) { /* in the place of A, which both groups have read */
            put_box<T>(w.base + tile_of(w, shape::inverse) + (unsigned)w.group * BOX, rest);
            dr_shared_fence();
        }
        if (shape::reads && call.full) meet_all<shape::groups>();
        if (shape::groups == 1) make_scores<T, key_boxes, value_boxes, reading>(w, false);
        if (shape::reads || (shape::groups == 2 && group == 0))
            make_scores<T, key_boxes, value_boxes, reading>(w, shape::groups == 1 || group != 0);
        if (!leads_direct(call, reading, plain) && group == shape::groups - 1 && thread < 64) {
            float value = sums.value_dot[0][thread], write = sums.write_dot[0][thread];
            if (value_boxes == 2) value += sums.value_dot[1][thread], write += sums.write_dot[1][thread];
            call.back.value_dot[block * 64 + thread] = value;
            call.back.write_dot[block * 64 + thread] = write;
        }
        meet_all<shape::groups>();
        if (has_keys) {
            make_keys<T, key_boxes, value_boxes, reading>(w, q, r);
        } else {
            DR_UNROLL (i, shape::tiles) leave_tile(w, i);
        }
        dr_gate_arrive(free_gate(base, PLACES + side));
        at = ring_forward(at, shape::tiles);
        at.place = dr_same_in_warp(at.place);
        turn ^= side;
        side ^= 1;
    }
}

#endif

template <typename T, int key_boxes, int value_boxes, int reading, bool plain>
static __global__ void __launch_bounds__(128 + 128 * (key_boxes > value_boxes ? key_boxes : value_boxes), 1)
    gradients(const __grid_constant__ gradients_call call) {
#ifdef DR_CUDA_WARPGROUPS
    typedef chunk_shape<key_boxes, value_boxes, reading> shape;
    extern __shared__ __align__(1024) char shared[];
    const unsigned base = dr_shared_address(shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < PLACES + 2; i++) {
            dr_gate_open(filled_gate(base, i), i < PLACES ? 32 : 128); /* a warp fills a place */
            dr_gate_open(free_gate(base, i), 128 * shape::groups);
        }
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        if (shape::groups == 2) dr_registers_give<40>();
        copy_chunks<T, key_boxes, value_boxes, reading, plain>(call, shared);
    } else {
        if (shape::groups == 2) dr_registers_take<232>();
        if constexpr (key_boxes == value_boxes)
            compute_chunks<T, key_boxes, value_boxes, reading, plain, shape::groups == 1 ? 0 : -1>(call, shared);
        else if (threadIdx.x < 256)
            compute_chunks<T, key_boxes, value_boxes, reading, plain, 0>(call, shared);
        else
            compute_chunks<T, key_boxes, value_boxes, reading, plain, 1>(call, shared);
    }
#endif
}

template <typename T, int key_boxes, int value_boxes, int reading>
static dr_status launch(const dr_cuda_backward_call *call, dr_cuda_stream stream) {
    const dr_cuda_chunk_plan *plan = &call->plan;
    const int64_t grid = plan->blocks < plan->processors ? plan->blocks : plan->processors;
    const gradients_call known = gradients_of(*call);
    const auto run = [&](auto kernel) {
        return dr_cuda_launch("gradients", kernel, {grid}, chunk_shape<key_boxes, value_boxes, reading>::threads, SHARED_BYTES,
                              stream, known);
    };
    /* of calls without reads, those that training makes are mostly gradients_linear's */
    if constexpr (key_boxes == 2 && value_boxes == 2 && reading != READS_NOTHING)
        if (gradients_plain(known, reading)) return run(gradients<T, key_boxes, value_boxes, reading, true>);
    return run(gradients<T, key_boxes, value_boxes, reading, false>);
}

template <int reading> static dr_status launch_width(const dr_cuda_backward_call *call, dr_cuda_stream stream) {
    typedef __nv_bfloat16 T;
    const bool wide = call->plan.value_width == 128;
    if (call->plan.key_width == 64)
        return wide ? launch<T, 1, 2, reading>(call, stream) : launch<T, 1, 1, reading>(call, stream);
    return wide ? launch<T, 2, 2, reading>(call, stream) : launch<T, 2, 1, reading>(call, stream);
}

dr_status dr_cuda_backward_gradients(const dr_cuda_backward_call *call, dr_cuda_stream stream) {
    if (call->plan.blocks == 0) return DR_OK;
    if (call->plan.linear_back) return dr_cuda_backward_gradients_linear(call, stream);
    switch (reading_of(&call->plan)) {
#define DR_GRADIENTS_FORM(name)                                                                                                \
    case READS_##name:                                                                                                         \
        return launch_width<READS_##name>(call, stream);
#include "backends/cuda/rows/instances.def"
    case READS_NEITHER: /* which does not fuse */
        break;
    }
    return DR_OK;
}
