/* updates (updates.cu) for sm_90a, 16-bit types, V of 65 to 128, K likewise where rows read, else up to 128, and a decay of
 * each channel, and for the rows that such rules mostly have (updates_kind): all of a chunk is asked for at once, two groups of
 * four warps have 64 columns of V each, and of G and M each makes one. What comes of a product is laid where the operands of
 * one before it were. */
#ifndef DR_CUDA_UPDATES_WARPGROUPS_CUH
#define DR_CUDA_UPDATES_WARPGROUPS_CUH

#include "backends/cuda/backward/group_tiles.cuh"
#include "backends/cuda/plan/find.cuh"

enum { UPDATES_THREADS = 256 };

/* UPDATES_OTHER: none of these, or other sizes. */
typedef enum {
#define DR_UPDATES_FORM(name) UPDATES_##name,
#include "backends/cuda/rows/instances.def"
    UPDATES_OTHER
} updates_kind;

static inline updates_kind updates_kind_of(const dr_cuda_chunk_plan *plan) {
    const dr_cuda_rows *rows = &plan->rows;
    const dr_values first = rows->row[0].values, second = rows->row[1].values;
    if (!plan->warpgroups || !rows->channel_decay || plan->value_width != 128 || !rows->aligned) return UPDATES_OTHER;
    if (rows->steps == 1 && !plan->reads && first != DR_VALUES_GATED) return UPDATES_LINEAR;
    if (!plan->reads || plan->key_width != 128) return UPDATES_OTHER;
    if (rows->steps == 1) return first == DR_VALUES_GATED ? UPDATES_GATED : UPDATES_PLAIN;
    const bool one = (first == DR_VALUES_NONE) != (second == DR_VALUES_NONE);
    const bool gated = first == DR_VALUES_GATED || second == DR_VALUES_GATED;
    return rows->steps == 2 && !rows->step_axis && one && !gated ? UPDATES_PAIRS : UPDATES_OTHER;
}

/* Where the boxes of 64 x 64 lie. state: for each group two, S, then what Y is made of, then G or M. value: for each group one,
 * values, their gradients, U. output: dO; before that, of gated values, the gates and their gradients. inverse: both halves of
 * A. reader: R~. */
template <bool reads> struct updates_places {
    enum {
        state = 0,
        value = reads ? 4 * BOX : BOX,
        d_update = value + 2 * BOX,
        output = d_update + 2 * BOX,
        inverse = output + 2 * BOX,
        reader = inverse + (reads ? 2 * BOX : 0),
        sums = reader + (reads ? 2 * BOX : 0),
        bytes = sums + (int)sizeof(float[2][2][64])
    };
};

struct updates_call : dr_cuda_backward_call {
    dr_block_dividers by;
    int valued; /* of two rows a token, the one that has a value */
};

#ifdef DR_CUDA_WARPGROUPS

static __device__ inline dr_row_block find_block(const updates_call &call, unsigned index, int steps) {
    const dr_block_place at = dr_block_find(call.by, index, false);
    const int no_key_head = (int)at.head; /* nothing here is a key head's */
    return dr_row_block_found(call.plan, call.chunk.cu, at, index, no_key_head, steps);
}

/* Asks for 64 columns of a chunk's vectors of V, to rows first, first + steps, .. of a box; the others are zeros. */
template <typename T, int steps>
static __device__ inline void ask_vectors(char *box, const dr_cuda_rows &rows, const dr_row_block &x, const dr_source &source,
                                          int column, int first) {
    const T *at = (const T *)source.at + x.place.first * source.token + x.head * source.head + column;
    const dr_strided<T> from = {at, source.token, x.place.tokens};
    dr_clear_rows<T>(box, 64, 1, first, steps);
    dr_copy_rows<T>(box, 64, 1, rows.value_size - column, true, 64 / steps, first, steps, from);
}

template <typename T, int steps>
static __device__ inline void ask_output(const updates_call &call, const dr_row_block &x, char *box, int column) {
    const dr_cuda_rows &rows = call.plan.rows;
    const dr_source source = {call.d_o, (int64_t)rows.value_heads * rows.value_size, 0, rows.value_size};
    ask_vectors<T, steps>(box, rows, x, source, column, steps - 1);
}

/* Asks for a chunk, of what is V wide the group's columns: what is wanted last is a group of copies of its own. dO comes in it
 * unless gates have its place. */
template <typename T, updates_kind kind>
static __device__ inline void ask_chunk(const updates_call &call, const dr_row_block &x, char *shared, int group) {
    constexpr bool reads = kind != UPDATES_LINEAR;
    constexpr int steps = kind == UPDATES_PAIRS ? 2 : 1;
    typedef updates_places<reads> places;
    const dr_cuda_rows &rows = call.plan.rows;
    const int column = group * 64, own = group * BOX;
    if (reads) {
        const T *states = (const T *)call.saved + (x.block * 128 + column) * 128;
        const T *readers = (const T *)call.chunk.reader + x.block * 64 * 128;
        DR_UNROLL (b, 2) dr_load_columns<T>(shared + places::state + 2 * own + b * BOX, states, 128, b * 64);
        dr_load_columns<T>(shared + places::reader + own, readers, 128, column);
    }
    dr_load_columns<T>(shared + places::d_update + own, (const T *)call.back.d_update + x.block * 64 * 128, 128, column);
    ask_vectors<T, steps>(shared + places::value + own, rows, x, dr_source_of(rows.input[DR_INPUT_VALUE]), column, call.valued);
    if (kind == UPDATES_GATED)
        ask_vectors<T, 1>(shared + places::output + own, rows, x, dr_source_of(rows.input[DR_INPUT_WRITE_GATE]), column, 0);
    dr_copy_commit();
    if (reads) {
        const unsigned mine = (unsigned)own + (unsigned)dr_copy_thread() * 16;
        const char *from = (const char *)call.chunk.inverse + x.block * DR_HALVES_BYTES + mine;
        DR_UNROLL_BY (i, BOX, 128 * 16) dr_copy_whole(dr_shared_address(shared) + places::inverse + mine + i, from + i);
    }
    if (kind != UPDATES_GATED) ask_output<T, steps>(call, x, shared + places::output + own, column);
    dr_copy_commit();
}

/* Rows of 64 columns of the warp, through its rows of a box, eight lanes a row: of every `steps` rows one leads to `to`, stride
 * elements from one to the next. alive: rows of the block that are there; size: columns. */
template <typename T, int steps = 1>
static __device__ inline void put_rows_at(char *box, const float (&c)[8][4], T *to, int64_t stride, int alive, int size,
                                          int valued = 0) {
    const int lane = (int)(threadIdx.x % 32), first = dr_scan_warp() * 16 + lane / 8;
    if (lane % 8 * 8 >= size || first % steps != valued) alive = 0;
    to += first / steps * stride + lane % 8 * 8;
    alive -= first;
    dr_group_put_rows<T>(box, c, [&](int row, int, uint4 eight) {
        const int behind = row - lane / 8;
        if (behind < alive) __stwb((uint4 *)(to + behind / steps * stride), eight);
    });
}

/* The same to a gradient of an input; NULL: it is not wanted. */
template <typename T, int steps>
static __device__ inline void put_gradient(char *box, const float (&c)[8][4], const dr_cuda_input &input, const dr_row_block &x,
                                           int column, int value_size, int valued) {
    if (!input.gradient) return;
    T *to = (T *)input.gradient + x.place.first * input.token + x.head * input.head + column;
    put_rows_at<T, steps>(box, c, to, input.token, x.rows, value_size - column, valued);
}

/* C: what stands in its places. */
template <typename T> static __device__ inline void unpack_places(float (&c)[8][4], const unsigned (&x)[8][2]) {
    DR_UNROLL (n, 8)
        DR_UNROLL (h, 2) {
            const float2 pair = dr_unpack(T(), x[n][h]);
            c[n][2 * h] = pair.x, c[n][2 * h + 1] = pair.y;
        }
}

/* C times factors of its rows times, where gates are there, these. */
template <typename T, bool gated>
static __device__ inline void open_places(float (&c)[8][4], const float (&factor)[2], const unsigned (&gates)[8][2]) {
    DR_UNROLL (n, 8)
        DR_UNROLL (h, 2) {
            float2 open = make_float2(factor[h], factor[h]);
            if (gated) open = dr_unpack(T(), gates[n][h]), open.x *= factor[h], open.y *= factor[h];
            c[n][2 * h] *= open.x, c[n][2 * h + 1] *= open.y;
        }
}

/* Y -= diag(c) R~ S, from Z and R~ S. */
static __device__ inline void take_reads(float (&z)[8][4], const float (&read)[8][4], const float (&gain)[2]) {
    DR_UNROLL (n, 8)
        DR_UNROLL (e, 4) z[n][e] = fmaf(-gain[e / 2], read[n][e], z[n][e]);
}

#endif

template <typename T, updates_kind kind>
static __global__ void __launch_bounds__(UPDATES_THREADS, 2) updates_warpgroups(const __grid_constant__ updates_call call) {
#ifdef DR_CUDA_WARPGROUPS
    constexpr bool reads = kind != UPDATES_LINEAR, gated = kind == UPDATES_GATED;
    constexpr int steps = kind == UPDATES_PAIRS ? 2 : 1;
    typedef updates_places<reads> places;
    extern __shared__ __align__(1024) char shared[];
    const dr_cuda_rows &rows = call.plan.rows;
    const dr_row_block x = find_block(call, blockIdx.x, steps);
    if (x.rows == 0) return;
    const int thread = dr_copy_thread(), group = dr_same_in_warp((int)threadIdx.x / 128), lane = thread % 32, t = lane % 4,
              row = dr_scan_warp() * 16 + lane / 4, column = group * 64;
    ask_chunk<T, kind>(call, x, shared, group);
    const unsigned base = dr_shared_address(shared), own = (unsigned)(group * BOX);
    const unsigned state = places::state + (reads ? 2 * own : 0), value = places::value + own, output = places::output + own;
    float(*sums)[2][64] = (float(*)[2][64])(shared + places::sums); /* of value . dz and u . dz, by groups */
    const dr_cuda_factors &factors = call.chunk.factors[x.block];
    float factor[2], gain[2], read_gain[2];
    DR_UNROLL (h, 2) {
        gain[h] = factors.gain[row + 8 * h], read_gain[h] = factors.erase[row + 8 * h], factor[h] = factors.value[row + 8 * h];
    }
    dr_copy_wait<1>();
    dr_shared_fence();
    __syncthreads();
    float u[8][4];
    const auto ask_reads = [&](bool add) {
        dr_group_begin();
        DR_UNROLL (b, 2) chain<T, false, true>(u, base + places::reader + b * BOX, base + state + b * BOX, add || b > 0);
        dr_group_commit();
    };
    if (reads && !gated) ask_reads(false); /* gates take the registers */
    unsigned v[8][2], gates[8][2], d_z[8][2];
    load_places<T>(base + value, v);
    if (gated) load_places<T>(base + output, gates);
    load_places<T>(base + places::d_update + own, d_z);
    {
        const float plain[2] = {1, 1};
        float c[8][4];
        unpack_places<T>(c, v);
        if (gated) open_places<T, true>(c, plain, gates);
        const float2 dots = dots_with<T>(c, d_z);
        if (t == 0) sums[0][group][row] = dots.x, sums[0][group][row + 8] = dots.y;
        unpack_places<T>(c, d_z);
        open_places<T, gated>(c, factor, gates);
        put_gradient<T, steps>(shared + value, c, rows.input[DR_INPUT_VALUE], x, column, rows.value_size, call.valued);
        if (gated) {
            unpack_places<T>(c, d_z);
            open_places<T, true>(c, factor, v);
            put_gradient<T, 1>(shared + output, c, rows.input[DR_INPUT_WRITE_GATE], x, column, rows.value_size, 0);
        }
    }
    float y[8][4];
    unpack_places<T>(y, v);
    open_places<T, gated>(y, factor, gates);
    if (reads) {
        if (gated) ask_reads(false);
        dr_group_wait<0>();
        if (const float *entry = dr_given_state(call, x, false)) {
            dr_meet<2>();
#pragma unroll 1
            for (int b = 0; b < 2; b++) dr_load_rest<T>(shared + state + b * BOX, rows, entry, column, b * 64);
            dr_shared_fence();
            dr_meet<2>();
            ask_reads(true);
            dr_group_wait<0>();
        }
        take_reads(y, u, read_gain);
        unsigned high[4][4], low[4][4];
        halves_of<T>(high, low, y);
        dr_meet<2>(); /* the group has read S, and its gates */
        if (gated) {
            ask_output<T, steps>(call, x, shared + output, column);
            dr_copy_commit();
        }
        put_box<T>(base + state, high);
        put_box<T>(base + state + BOX, low);
        dr_copy_wait<gated ? 1 : 0>();
        dr_shared_fence();
        __syncthreads();
        dr_group_begin();
        chain<T, false, false>(y, base + places::inverse, base + state, false);
        chain<T, false, false>(y, base + places::inverse + BOX, base + state, true);
        chain<T, false, false>(y, base + places::inverse, base + state + BOX, true);
        dr_group_commit();
        dr_group_wait<0>();
    }
    put_rows_at<T>(shared + value, y, (T *)call.back.update + x.block * 64 * 128 + column, 128, 64, 64);
    if (gated) load_places<T>(base + places::d_update + own, d_z);
    const float2 dots = dots_with<T>(y, d_z);
    if (t == 0) sums[1][group][row] = dots.x, sums[1][group][row + 8] = dots.y;
    if (gated || !reads) dr_copy_wait<0>();
    dr_shared_fence();
    __syncthreads();
    if (thread < 64) {
        float *to = group ? call.back.write_dot : call.back.value_dot;
        to[x.block * 64 + thread] = sums[group][0][thread] + sums[group][1][thread];
    }
    if (!reads && group) return;
    const unsigned scored = base + (group ? places::d_update : places::output);
    dr_group_begin();
    DR_UNROLL (b, 2) chain<T, false, true>(u, scored + b * BOX, base + places::value + b * BOX, b > 0);
    dr_group_commit();
    dr_group_wait<0>();
    DR_UNROLL (h, 2) {
        const float f = group ? dr_score_gain(gain[h]) : rows.scale;
        const int last = row + 8 * h - 2 * t - group; /* G up to the diagonal, M below it */
        DR_UNROLL (n, 8) {
            u[n][2 * h] = 8 * n <= last ? f * u[n][2 * h] : 0;
            u[n][2 * h + 1] = 8 * n + 1 <= last ? f * u[n][2 * h + 1] : 0;
        }
    }
    T *to = (T *)(group ? call.back.d_erase : call.back.d_score);
    put_rows_at<T>(shared + state, u, to + x.block * 64 * 64, 64, 64, 64);
#endif
}

#endif
