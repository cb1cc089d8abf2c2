/* All gradients of rules whose rows read nothing, with one decay a head or none, from the inputs, the state S before each chunk
 * and the gradient dS' after it (carry_linear.cuh), on sm_90a for 16-bit types, K and V up to 128:
 *
 *     G = scale dO V^T f    P = scale Q W^T f         a group of four warps one of them; f: decays, up to the diagonal
 *     dQ = f scale S dO + G (value W)                 a group 64 channels of K
 *     dW = value (f dS' V + G^T Q)                    likewise
 *     dZ = f W dS'^T + P^T dO    dV = value dZ        a group 64 columns of V
 *
 * As in gradients.cu a block stays on a multiprocessor and takes every gridDim-th chunk and value head, and tiles of 16 KB go
 * through a ring of places. Nothing is made of inputs before it is multiplied, so groups meet once a chunk, when G and P lie in
 * shared memory. Beside those that copy and those that compute, four warps make the decays of the next chunk, sum S . dS', and
 * lead gradients of decays and gains to their inputs. What they do a chunk must not take longer than its products: so they ask
 * for inputs a chunk ahead. */
#include "backends/cuda/backward/gradients_keys.cuh"
#include "backends/cuda/chunkwise/scan_linear.cuh"
#include "backends/cuda/device/device.cuh"
#include "backends/cuda/device/launch.cuh"

/* The order in which tiles come: first those that are done with first, whose places then take the last tiles of the next chunk.
 * Behind them, where the call gives the state before the chunk or the gradient after it in float, what rounding took from both
 * (rests), so that it goes through their products, too. */
template <int key_boxes, int value_boxes> struct linear_shape {
    enum { groups = key_boxes > value_boxes ? key_boxes : value_boxes, threads = 256 + 128 * groups };
    enum { state, exit = key_boxes, output = 2 * key_boxes, value, query, key, rests };
    static_assert(rests + 2 * key_boxes <= PLACES, "computing threads may wait for all tiles of a chunk at once");
};

/* Behind the barriers of gradients.cuh one that says that G and P are read. */
enum { READ = SHARED_BYTES, LINEAR_BYTES = READ + 16 };
static_assert(LINEAR_BYTES <= DR_BLOCK_SHARED, "one block of a multiprocessor has all of its shared memory");

#ifdef DR_CUDA_WARPGROUPS

/* ---- copying ------------------------------------------------------------------------------------------------------------- */

/* Whole rows of ours, `rows` of 64 columns from a matrix of that width. */
template <typename T> static __device__ inline void copy_box(char *to, const T *from, int width, int rows) {
    const dr_strided<T> source = {from, width, 64};
    dr_copy_rows<T>(to, 64, 1, 64, true, 64, 0, 1, source);
    if (rows == 64) return;
    const dr_strided<T> below = {from + 64 * (int64_t)width, width, 64};
    dr_copy_rows<T>(to + BOX, 64, 1, 64, true, 64, 0, 1, below);
}

template <typename T, int key_boxes, int value_boxes, bool plain>
static __device__ inline void copy_linear(const gradients_call &call, char *shared) {
    typedef linear_shape<key_boxes, value_boxes> shape;
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const unsigned base = dr_shared_address(shared);
    const int width = plan.key_width, key_size = plain ? key_boxes * 64 : rows.key_size,
              value_size = plain ? value_boxes * 64 : rows.value_size;
    const bool aligned = plain || rows.aligned;
    const dr_source d_o = {call.d_o, (int64_t)rows.value_heads * rows.value_size, 0, rows.value_size};
    ring_at at = {0, 1};
#pragma unroll 1
    for (int64_t block = blockIdx.x; block < plan.blocks; block += gridDim.x) {
        const dr_row_block x = find_row_block(call, (unsigned)block);
        if (x.rows == 0) continue;
        const T *states = (const T *)call.saved + block * plan.value_width * width,
                *exits = (const T *)call.back.d_exit + block * plan.value_width * width;
#pragma unroll 1
        for (int i = 0; i < shape::rests; i++) {
            char *to = shared + at.place * PLACE;
            dr_gate_wait(free_gate(base, at.place), at.turn);
            if (i < shape::exit)
                copy_box<T>(to, states + i * 64, width, value_boxes * 64);
            else if (i < shape::output)
                copy_box<T>(to, exits + (i - shape::exit) * 64, width, value_boxes * 64);
            else if (i == shape::key)
                dr_load_tokens<T>(to, dr_write_source(rows), x.place, x.key_head, 0, key_size, key_boxes, aligned);
            else if (i == shape::query)
                dr_load_tokens<T>(to, dr_query_source(rows), x.place, x.key_head, 0, key_size, key_boxes, aligned);
            else if (i == shape::value)
                dr_load_tokens<T>(to, dr_source_of(rows.input[DR_INPUT_VALUE]), x.place, x.head, 0, value_size, value_boxes,
                                  aligned);
            else
                dr_load_tokens<T>(to, d_o, x.place, x.head, 0, value_size, value_boxes, aligned);
            tell_tile(base, at, aligned);
            at = ring_forward(at, 1);
        }
        if (plain) continue;
        const dr_strided<T> none = {NULL, 0, 0};
        const float *given[2] = {dr_given_state(call, x, false), dr_given_state(call, x, true)};
#pragma unroll 1
        for (int i = 0; i < 2 * key_boxes && (given[0] || given[1]); i++) {
            char *to = shared + at.place * PLACE;
            dr_gate_wait(free_gate(base, at.place), at.turn);
            const float *from = i < key_boxes ? given[0] : given[1];
            for (int box = 0; box < value_boxes; box++) {
                char *part = to + box * BOX;
                if (from)
                    dr_load_rest<T>(part, rows, from, box * 64, i % key_boxes * 64);
                else
                    dr_copy_rows<T>(part, 64, 1, 64, true, 64, 0, 1, none);
            }
            tell_tile(base, at, false);
            at = ring_forward(at, 1);
        }
    }
}

/* Tiles of a chunk. */
template <int key_boxes, int value_boxes, bool plain> static __device__ inline int linear_tiles(const chunk_rows &told) {
    return linear_shape<key_boxes, value_boxes>::rests + (!plain && (told.entry || told.beyond) ? 2 * key_boxes : 0);
}

/* ---- making -------------------------------------------------------------------------------------------------------------- */

/* What is left of a chunk when all computing threads are done with it. */
template <int key_boxes, int value_boxes, bool plain>
static __device__ inline void finish_linear(const gradients_call &call, const chunk_rows &told, const chunk_sums &sums) {
    const dr_cuda_rows &rows = call.plan.rows;
    const int thread = (int)(threadIdx.x % 128), row = thread - 64;
    __barrier_sync_count(1, 128); /* sums of all warps are there */
    if (thread < 32 && rows.scalar_decay) put_decays<false>(call, told, sums, key_boxes, plain);
    if (thread / 32 == 1 && leads_direct(call, READS_NOTHING, plain))
        put_gains<false>(call, told, sums, key_boxes, value_boxes);
    if (row >= 0 && !leads_direct(call, READS_NOTHING, plain)) {
        const float dot = value_boxes == 2 ? sums.value_dot[0][row] + sums.value_dot[1][row] : sums.value_dot[0][row];
        call.back.value_dot[told.x.block * 64 + row] = dot;
        call.back.write_dot[told.x.block * 64 + row] = told.value[row] * dot;
    }
    __barrier_sync_count(1, 128);
}

/* What a chunk's rows are made of, asked for while the one before is summed; the decay of a row of make_decays. */
typedef struct {
    dr_row_block x;
    dr_linear_asked row;
} linear_rows;

static __device__ inline linear_rows ask_linear_rows(const gradients_call &call, unsigned block) {
    const int i = (int)(threadIdx.x % 128);
    const dr_row_block x = find_row_block(call, block);
    return {x, dr_linear_ask(call.plan.rows, dr_row_keys_block(x, 0), i / 32 * 16 + i % 16, i < 64 ? i : 64)};
}

static __device__ inline void make_linear_rows(const dr_cuda_backward_call &call, const linear_rows &asked, bool plain,
                                               chunk_rows &to) {
    const dr_cuda_rows &rows = call.plan.rows;
    const dr_row_block &x = asked.x;
    const int i = (int)(threadIdx.x % 128);
    if (i == 0) {
        to.x = x;
        if (!plain) {
            to.entry = dr_given_state(call, x, false) != NULL;
            to.beyond = dr_given_state(call, x, true) != NULL;
        }
    }
    if (i < 64) to.value[i] = dr_linear_factors(rows, dr_row_keys_block(x, 0), i, asked.row.gain).value;
    make_decays(rows, expf(asked.row.log_decay), plain, to.decay);
}

/* Leaves `tiles` from the one that is `at`. */
static __device__ inline void leave_tiles(unsigned base, ring_at at, int tiles) {
#pragma unroll 1
    for (int i = 0; i < tiles; i++) {
        dr_gate_arrive(free_gate(base, at.place));
        at = ring_forward(at, 1);
    }
}

/* S . dS', by warp; and leaves their tiles. When the first of them have come, so have tiles that came before: these are left,
 * from `behind` on, which nobody here has read. */
template <typename T, int key_boxes, int value_boxes, bool plain>
static __device__ inline void sum_exit(const dr_cuda_backward_call &call, const chunk_rows &told, chunk_sums &sums,
                                       const char *shared, unsigned base, ring_at at, ring_at behind, int tiles) {
    typedef linear_shape<key_boxes, value_boxes> shape;
    for (int b = 0; b < key_boxes; b++) {
        const ring_at state = ring_forward(at, shape::state + b), exit = ring_forward(at, shape::exit + b);
        dr_gate_wait(filled_gate(base, state.place), state.turn);
        if (b == 0) leave_tiles(base, behind, tiles);
        dr_gate_wait(filled_gate(base, exit.place), exit.turn);
        if (!call.plan.rows.scalar_decay) continue;
        const char *before = shared + state.place * PLACE, *after = shared + exit.place * PLACE;
        const bool given = !plain && (told.entry || told.beyond);
        const float sum = dr_warp_sum(given ? given_exit_sum<T, value_boxes>(call, told, b * 64, before, after)
                                            : exit_sum<T, value_boxes>(before, after));
        if (threadIdx.x % 32 == 0) sums.exit[b * 4 + threadIdx.x / 32 % 4] = sum;
    }
    leave_tiles(base, at, shape::output);
}

template <typename T, int key_boxes, int value_boxes, bool plain>
static __device__ inline void make_linear(const gradients_call &call, char *shared) {
    typedef linear_shape<key_boxes, value_boxes> shape;
    const dr_cuda_chunk_plan &plan = call.plan;
    const unsigned base = dr_shared_address(shared);
    chunk_rows *told = (chunk_rows *)(shared + ROWS);
    chunk_sums *sums = (chunk_sums *)(shared + SUMS);
    ring_at at = {0, 0}, behind = at;
    int tiles = 0; /* from `behind` on, of the chunk before, which are yet to be left */
    unsigned side = 0, turn = 1;
    int over = 0, made = 0; /* sides told of since there are no more chunks; that hold one, as far as it matters */
    int64_t block = blockIdx.x;
    linear_rows asked = {};
    /* the next block that has rows */
    const auto ask = [&] {
        for (; block < plan.blocks; block += gridDim.x) {
            asked = ask_linear_rows(call, (unsigned)block);
            if (asked.x.rows > 0) break;
        }
    };
    ask();
#pragma unroll 1
    while (over < 2) {
        const bool more = block < plan.blocks;
        dr_gate_wait(free_gate(base, PLACES + side), turn);
        if (made + over >= 2) finish_linear<key_boxes, value_boxes, plain>(call, told[side], sums[side]);
        made += more && made < 2;
        if (more)
            make_linear_rows(call, asked, plain, told[side]);
        else if (threadIdx.x % 128 == 0)
            told[side].x.block = -1;
        dr_gate_arrive(filled_gate(base, PLACES + side));
        if (more) {
            block += gridDim.x;
            ask();
            if (!plain) __barrier_sync_count(1, 128); /* what told has is there */
            sum_exit<T, key_boxes, value_boxes, plain>(call, told[side], sums[side], shared, base, at, behind, tiles);
            behind = ring_forward(at, shape::output);
            tiles = linear_tiles<key_boxes, value_boxes, plain>(told[side]) - shape::output;
            at = ring_forward(behind, tiles);
        }
        turn ^= side;
        side ^= 1;
        over += !more;
    }
}

/* ---- computing ----------------------------------------------------------------------------------------------------------- */

/* C += A B^T of tiles at a and b, asked for. boxes: of both; 0: count says. */
template <typename T, int boxes> static __device__ inline void ask_scores(float (&c)[8][4], unsigned a, unsigned b, int count) {
    dr_group_settle(c);
    if constexpr (boxes > 0) {
        dr_group_begin();
        DR_UNROLL (box, boxes) chain<T, false, true>(c, a + box * BOX, b + box * BOX, true);
        dr_group_commit();
    } else {
#pragma unroll 1
        for (int box = 0; box < count; box++) {
            dr_group_begin();
            chain<T, false, true>(c, a + box * BOX, b + box * BOX, true);
            dr_group_commit();
            dr_group_wait<0>();
        }
    }
}

/* G (times the factors of values) or P to its box. */
template <typename T>
static __device__ inline void put_scores(const worker &w, float (&c)[8][4], bool weighted, unsigned turn) {
    const chunk_decays &decay = w.rows.decay;
    const float scale = w.call.plan.rows.scale, factor[2] = {scale, scale};
    float begin[2] = {scale * decay.head[w.row], scale * decay.head[w.row + 8]};
    const float *const near[2] = {decay.near[w.row], decay.near[w.row + 8]};
    mask_scores(w, factor, begin, near, false, c);
    if (weighted) dr_scale_columns(c, w.rows.value);
    unsigned x[4][4];
    operands_of<T>(x, c);
    dr_gate_wait(w.base + (unsigned)READ, turn);
    put_box<T>(w.base + WORK + (weighted ? 0 : BOX), x);
    dr_shared_fence();
}

/* Gradients of the group's 64 columns of values, through a box. */
template <typename T> static __device__ inline void put_linear_values(const worker &w, unsigned box, float (&z)[8][4]) {
    const dr_cuda_input &value = w.call.plan.rows.input[DR_INPUT_VALUE];
    if (!value.gradient) return;
    scale_rows(z, w.rows.value[w.row], w.rows.value[w.row + 8]);
    put_tokens<T>(w, box, (T *)value.gradient + dr_input_index(value, w.rows.x.place.first, 0, w.rows.x.head) + w.group * 64,
                  value.token, w.call.plan.rows.value_size, z);
}

/* turn: of the boxes of scores. No product is conditional: a group that has no channels of K, or no columns of V, of its own
 * makes those of the other once more. */
template <typename T, int key_boxes, int value_boxes, bool plain>
static __device__ inline void compute_chunk(const worker &w, unsigned turn) {
    typedef linear_shape<key_boxes, value_boxes> shape;
    constexpr bool single = shape::groups == 1;
    constexpr int boxes = key_boxes == value_boxes ? key_boxes : 0; /* of all tiles of scores' products */
    const int mine = key_boxes == 2 ? w.group : 0;
    const dr_cuda_rows &rows = w.call.plan.rows;
    const chunk_decays &decay = w.rows.decay;
    const bool direct = leads_direct(w.call, READS_NOTHING, plain), dots = !direct || rows.row[0].values == DR_VALUES_GAINED;
    const unsigned channels = (unsigned)mine * BOX, columns = value_boxes == 2 ? (unsigned)w.group * BOX : 0,
                   score = w.base + WORK;
    float c[8][4] = {}, q[8][4] = {}, k[8][4] = {}, z[8][4] = {};
    const int given = plain ? 0 : dr_same_in_warp(w.rows.entry || w.rows.beyond);
    const unsigned output = w.base + await_tile(w, shape::output), value = w.base + await_tile(w, shape::value),
                   query = w.base + await_tile(w, shape::query), key = w.base + await_tile(w, shape::key);
    dr_group_settle(q), dr_group_settle(k), dr_group_settle(z); /* zeros, before products begin */
#pragma unroll 1
    for (int i = 1 - given; i < 2; i++) { /* rests, then states */
        const int first = i ? 0 : shape::rests;
        const unsigned state = w.base + await_tile(w, first + shape::state + mine),
                       own = w.base + await_tile(w, first + shape::exit + mine);
        unsigned exit[key_boxes];
        DR_UNROLL (b, key_boxes) exit[b] = w.base + await_tile(w, first + shape::exit + b);
        dr_shared_fence();
        dr_group_wait<0>();
        dr_group_begin();
        DR_UNROLL (b, value_boxes) {
            chain<T, false, false>(q, output + b * BOX, state + b * BOX, true);
            chain<T, false, false>(k, value + b * BOX, own + b * BOX, true);
        }
        DR_UNROLL (b, key_boxes) chain<T, false, true>(z, key + b * BOX, exit[b] + columns, true);
        dr_group_commit();
    }
    const bool asked = w.group == 1; /* P, else G */
    ask_scores<T, boxes>(c, asked ? query : output, asked ? key : value, asked ? key_boxes : value_boxes);
    dr_group_wait<1>();
    DR_UNROLL (b, 2 * key_boxes) leave_tile(w, shape::state + b);
#pragma unroll 1
    for (int i = 0; i < given * 2 * key_boxes; i++) leave_tile(w, shape::rests + i);
    dr_group_wait<0>();
    put_scores<T>(w, c, single || !asked, turn);
    if constexpr (single) {
        DR_UNROLL (n, 32) c[n / 4][n % 4] = 0;
        ask_scores<T, boxes>(c, query, key, 0);
        dr_group_wait<0>();
        put_scores<T>(w, c, false, turn);
    }
    meet_all<shape::groups>(); /* G and P are there */
    {
        const float before = decay_between(decay, w.row, false), behind = decay_between(decay, w.row, true);
        const float upper = behind * decay.tail[w.row], lower = behind * decay.tail[w.row + 8];
        scale_rows(q, rows.scale * before * decay.head[w.row], rows.scale * before * decay.head[w.row + 8]);
        scale_rows(k, w.rows.value[w.row] * upper, w.rows.value[w.row + 8] * lower);
        scale_rows(z, upper, lower);
    }
    float2 far = make_float2(0, 0);
    if (rows.scalar_decay) far = dots_with<T>(k, key + channels);
    dr_group_settle(q), dr_group_settle(k), dr_group_settle(z);
    dr_group_begin();
    chain<T, false, false>(q, score, key + channels, true);
    chain<T, true, false>(z, score + BOX, output + columns, true);
    dr_group_commit();
    chain<T, true, false>(k, score, query + channels, true);
    dr_group_commit();
    dr_group_wait<1>();
    float2 ask = make_float2(0, 0), write = ask;
    if (rows.scalar_decay) ask = dots_with<T>(q, query + channels);
    if (dots) put_rows(w, w.sums.value_dot[w.group], dots_with<T>(z, value + columns));
    dr_group_wait<0>();
    dr_gate_arrive(w.base + (unsigned)READ);
    if (rows.scalar_decay) write = dots_with<T>(k, key + channels);
    put_rows(w, w.sums.reader[w.group], make_float2(ask.x - (write.x - far.x), ask.y - (write.y - far.y)));
    put_rows(w, w.sums.writer[w.group], far);
    if (key_boxes == value_boxes)
        meet_group(w); /* of the group's boxes all are read */
    else
        meet_all<shape::groups>();
    if (w.group < key_boxes) put_query<T>(w, query + channels - w.base, q);
    if (w.group < value_boxes) put_linear_values<T>(w, output + columns - w.base, z);
    if (w.group < key_boxes && direct) put_input<T>(w, key + channels - w.base, w.call.written, k);
    if (w.group < key_boxes && !direct) put_floats(w, w.call.back.d_write, k);
#pragma unroll
    for (int i = shape::output; i < shape::rests; i++) leave_tile(w, i);
}

template <typename T, int key_boxes, int value_boxes, bool plain>
static __device__ inline void compute_linear(const gradients_call &call, char *shared) {
    typedef linear_shape<key_boxes, value_boxes> shape;
    const int thread = (int)(threadIdx.x % 128), group = dr_same_in_warp((int)(threadIdx.x / 128) - 2), lane = thread % 32;
    const unsigned base = dr_shared_address(shared);
    ring_at at = {0, 0};
    unsigned side = 0, turn = 0, read = 1;
#pragma unroll 1
    for (;;) {
        dr_gate_wait(filled_gate(base, PLACES + side), turn);
        const chunk_rows &told = ((const chunk_rows *)(shared + ROWS))[side];
        if (told.x.block < 0) break;
        chunk_sums &sums = ((chunk_sums *)(shared + SUMS))[side];
        const worker w = {call, told, sums, shared, base, group, thread / 32 * 16 + lane / 4, lane % 4, at, plain};
        const int tiles = linear_tiles<key_boxes, value_boxes, plain>(told);
        compute_chunk<T, key_boxes, value_boxes, plain>(w, read);
        dr_gate_arrive(free_gate(base, PLACES + side));
        at = ring_forward(at, tiles);
        at.place = dr_same_in_warp(at.place);
        read ^= 1;
        turn ^= side;
        side ^= 1;
    }
}

#endif

template <typename T, int key_boxes, int value_boxes, bool plain>
static __global__ void __launch_bounds__(256 + 128 * (key_boxes > value_boxes ? key_boxes : value_boxes), 1)
    gradients_linear(const __grid_constant__ gradients_call call) {
#ifdef DR_CUDA_WARPGROUPS
    typedef linear_shape<key_boxes, value_boxes> shape;
    extern __shared__ __align__(1024) char shared[];
    const unsigned base = dr_shared_address(shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < PLACES + 2; i++) {
            dr_gate_open(filled_gate(base, i), 128);
            dr_gate_open(free_gate(base, i), 128 * shape::groups + (i < PLACES ? 128 : 0));
        }
        dr_gate_open(base + (unsigned)READ, 128 * shape::groups);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        dr_registers_give<40>();
        copy_linear<T, key_boxes, value_boxes, plain>(call, shared);
    } else if (threadIdx.x < 256) {
        dr_registers_give<88>();
        make_linear<T, key_boxes, value_boxes, plain>(call, shared);
    } else {
        dr_registers_take<shape::groups == 2 ? 192 : 240>();
        compute_linear<T, key_boxes, value_boxes, plain>(call, shared);
    }
#endif
}

template <typename T, int key_boxes, int value_boxes>
static dr_status launch(const dr_cuda_backward_call *call, dr_cuda_stream stream) {
    const dr_cuda_chunk_plan *plan = &call->plan;
    const int64_t grid = plan->blocks < plan->processors ? plan->blocks : plan->processors;
    const gradients_call known = gradients_of(*call);
    const auto run = [&](auto kernel) {
        return dr_cuda_launch("gradients_linear", kernel, {grid}, linear_shape<key_boxes, value_boxes>::threads, LINEAR_BYTES,
                              stream, known);
    };
    if constexpr (key_boxes == 2 && value_boxes == 2)
        if (dr_vectors_whole(*plan) && gradients_plain(known, READS_NOTHING))
            return run(gradients_linear<T, key_boxes, value_boxes, true>);
    return run(gradients_linear<T, key_boxes, value_boxes, false>);
}

dr_status dr_cuda_backward_gradients_linear(const dr_cuda_backward_call *call, dr_cuda_stream stream) {
    typedef __nv_bfloat16 T;
    const bool wide = call->plan.value_width == 128;
    if (call->plan.key_width == 64) return wide ? launch<T, 1, 2>(call, stream) : launch<T, 1, 1>(call, stream);
    return wide ? launch<T, 2, 2>(call, stream) : launch<T, 2, 1>(call, stream);
}
