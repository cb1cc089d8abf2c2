/* One pass (one_pass.cuh) for heads of up to 64 by 64, whose rows read the key that they write. Such a head has half the
 * columns and a quarter of the state, but a chunk's scores and inverse are as large: so a thread block has two groups of warps
 * instead of four, and a multiprocessor two blocks, a head each.
 *
 *     make       asks for keys and queries; A, then P' and X of the chunk after that of the columns
 *     columns    all columns of values; decays of the chunk that is made next, while it waits for X
 *
 * Keys and queries have three stages of shared memory. What `make` passes to `columns` has two places. A place holds one thing
 * after another: the matrix that A is solved in, the halves of A, then X with P' behind it. `make` overwrites one of them only
 * after it has read it into registers or multiplied by it.
 *
 * The kernel takes vectors that TMA descriptors can describe (boxes). Other vectors, and sequences cut into parts, are computed
 * by prepare and scan_warpgroups (plan.c, engine.c), which give the same bits. */
#ifndef DR_CUDA_ONE_PASS_NARROW_CUH
#define DR_CUDA_ONE_PASS_NARROW_CUH

#include "backends/cuda/chunkwise/one_pass.cuh"

enum {
    NARROW_THREADS = 256,
    NARROW_TILE = 64 * 64 * 2,
    NARROW_QUERY = NARROW_TILE, /* in a stage, behind the keys */
    NARROW_STAGE = 2 * NARROW_TILE,
    NARROW_PLACES_BEGIN = ONE_PASS_STAGES * NARROW_STAGE,
    NARROW_SCORE = NARROW_TILE,                                           /* in a place, behind X */
    NARROW_PLACE = 64 * DR_MATRIX_PITCH * 4,                              /* the matrix; its halves and X with P' are smaller */
    NARROW_VALUES = NARROW_PLACES_BEGIN + ONE_PASS_PLACES * NARROW_PLACE, /* by place, and where outputs will be */
    NARROW_ROWS = NARROW_VALUES + ONE_PASS_PLACES * NARROW_TILE,          /* dr_one_rows, by place */
    NARROW_FILLED = NARROW_ROWS + ONE_PASS_PLACES * (int)sizeof(dr_one_rows), /* barriers as in one_pass_stages.cuh; stages */
    NARROW_FREE = NARROW_FILLED + ONE_PASS_STAGES * 8,
    NARROW_DECAYED = NARROW_FREE + ONE_PASS_STAGES * 8, /* places */
    NARROW_LAID = NARROW_DECAYED + ONE_PASS_PLACES * 8,
    NARROW_VALUED = NARROW_LAID + ONE_PASS_PLACES * 8,
    NARROW_CHAIN = (NARROW_VALUED + ONE_PASS_PLACES * 8 + 15) / 16 * 16, /* dr_one_chain */
    NARROW_ASKED = NARROW_CHAIN + (int)sizeof(dr_one_chain),             /* dr_one_asked */
    NARROW_BYTES = NARROW_ASKED + (int)sizeof(dr_one_asked)
};
static_assert(NARROW_PLACE % 1024 == 0 && (int)NARROW_PLACE >= (int)DR_HALVES_BYTES, "tiles begin at multiples of 1024");
static_assert(2 * (NARROW_BYTES + 1024) <= DR_BLOCK_SHARED + 1024, "a multiprocessor has no room for two thread blocks");

#ifdef DR_CUDA_WARPGROUPS

/* Numbers of the rows of a chunk. */
static __device__ inline dr_one_rows &dr_narrow_rows(char *shared, const dr_one_turn &at) {
    return *(dr_one_rows *)(shared + NARROW_ROWS + dr_one_place_of(at) * (int)sizeof(dr_one_rows));
}

static __device__ inline const dr_one_chain &dr_narrow_chain(const char *shared) {
    return *(const dr_one_chain *)(shared + NARROW_CHAIN);
}

/* Where keys of a chunk lie, with its queries behind them; and X, with P' behind it. */
static __device__ inline unsigned dr_narrow_stage(unsigned base, const dr_one_turn &at) {
    return (unsigned)dr_same_in_warp((int)base + at.stage * NARROW_STAGE);
}

static __device__ inline int dr_narrow_place(const dr_one_turn &at) {
    return dr_same_in_warp(NARROW_PLACES_BEGIN + dr_one_place_of(at) * NARROW_PLACE);
}

/* Keys and queries of a chunk to its stage; one thread asks. */
static __device__ inline void dr_narrow_fill(const dr_one_pass_call &one, const char *shared, const dr_one_turn &at) {
    const dr_one_chain &chain = dr_narrow_chain(shared);
    const unsigned base = dr_shared_address(shared), stage = dr_narrow_stage(base, at);
    const unsigned come = base + (unsigned)(NARROW_FILLED + at.stage * 8);
    if (dr_copy_thread() > 0) return;
    const int row = chain.row + at.chunk * 64;
    dr_boxes_load(one.key, stage, come, 0, chain.key_head, row, chain.sequence);
    dr_boxes_load(one.query, stage + NARROW_QUERY, come, 0, chain.key_head, row, chain.sequence);
    dr_mbarrier_promise(come, 2 * NARROW_TILE);
}

/* A of a chunk, then X and P', in its place. saves: A's halves to memory. */
template <typename T, bool saves>
static __device__ inline void dr_narrow_make_chunk(const dr_one_pass_call &one, char *shared, const dr_one_turn &at) {
    const dr_cuda_chunk_plan &plan = one.scan.plan;
    const dr_one_chain &chain = dr_narrow_chain(shared);
    const unsigned base = dr_shared_address(shared), keys = dr_narrow_stage(base, at), made = base + dr_narrow_place(at);
    const int warp = dr_prepare_warp();
    char *const place = shared + dr_narrow_place(at);
    float *const matrix = (float *)place;
    const dr_one_rows &numbers = dr_narrow_rows(shared, at);
    float l[8][4], p[8][4];
    dr_one_await_stage(base, NARROW_FILLED, at);
    dr_group_scores<T>(keys, keys, keys + NARROW_QUERY, 1, l, p);
    dr_one_await_place(base, NARROW_DECAYED, at);
    dr_prepare_mask_reads(numbers.small, dr_one_near(numbers, plan.rows.row[0].undecayed), l);
    dr_matrix_put<false>(l, warp, matrix);
    dr_prepare_mask_queries(plan.rows, numbers.small, dr_one_near(numbers, false), p);
    dr_triangle_invert<false, ONE_PASS_GROUPS>(matrix, warp);
    unsigned high[4][4], low[4][4];
    dr_halves_turn<T>(matrix, numbers.small.leave, high, low);
    uint4 halves[8];
    unsigned to[4];
    dr_halves_each<T>(matrix, [&](int i, unsigned at, uint4 upper, uint4 lower) {
        halves[2 * i] = upper, halves[2 * i + 1] = lower, to[i] = at;
    });
    dr_meet<ONE_PASS_GROUPS>(); /* the matrix is read */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        *(uint4 *)(place + to[i]) = halves[2 * i];
        *(uint4 *)(place + to[i] + DR_HALVES_BYTES / 2) = halves[2 * i + 1];
    }
    dr_shared_fence();
    dr_meet<ONE_PASS_GROUPS>();
    const bool stores = saves && dr_copy_thread() == 0 && dr_one_owns(chain, at.chunk);
    if (stores)
        dr_bulk_store((char *)one.scan.tensors.inverse + dr_one_block(plan, chain, at.chunk).block * DR_HALVES_BYTES, made,
                      DR_HALVES_BYTES);
    float c[8][4];
    {
        unsigned p_high[4][4], p_low[4][4];
        dr_halves_score<T>(p, warp, p_high, p_low);
        dr_halves_combine<T>(c, p_high, p_low, made);
    }
    if (stores) dr_boxes_wait_read();
    dr_meet<ONE_PASS_GROUPS>(); /* A's halves are read */
    dr_group_lay_rows<T>(place + NARROW_SCORE, c);
    dr_halves_exit_box<T>(high, low, keys, c);
    dr_group_lay_rows<T>(place, c);
    dr_shared_fence();
    dr_one_tell_place(base, NARROW_LAID, at);
}

template <typename T, bool saves> static __device__ inline void dr_narrow_make(const dr_one_pass_call &one, char *shared) {
    const unsigned base = dr_shared_address(shared);
    const int chunks = (dr_narrow_chain(shared).tokens + 63) / 64;
    dr_narrow_fill(one, shared, {0, 0, 0});
    for (dr_one_turn at = {0, 0, 0}; at.chunk < chunks; dr_one_next(at)) {
        const dr_one_turn next = dr_one_after(at);
        dr_one_await_stage(base, NARROW_FREE, dr_one_before(dr_one_before(at))); /* the place, and the next one's stage */
        if (next.chunk < chunks) dr_narrow_fill(one, shared, next);
        dr_narrow_make_chunk<T, saves>(one, shared, at);
    }
}

/* Values of a chunk, if there is one, where outputs of the one two before have lain. */
static __device__ inline void dr_narrow_ask_values(const dr_one_pass_call &one, const char *shared, int chunk) {
    const dr_one_chain &chain = dr_narrow_chain(shared);
    if (dr_copy_thread() > 0 || chunk * 64 >= chain.tokens) return;
    const unsigned base = dr_shared_address(shared), which = (unsigned)chunk % ONE_PASS_PLACES;
    const unsigned come = base + NARROW_VALUED + which * 8;
    dr_boxes_wait_read();
    dr_boxes_load(one.value, base + NARROW_VALUES + which * NARROW_TILE, come, 0, chain.head, chain.row + chunk * 64,
                  chain.sequence);
    dr_mbarrier_promise(come, NARROW_TILE);
}

/* By the columns: decays of a chunk, or of what would be one. */
template <bool saves>
static __device__ inline void dr_narrow_decay(const dr_scan_call &call, char *shared, const dr_one_turn &at) {
    const dr_one_chain &chain = dr_narrow_chain(shared);
    dr_one_decay<DR_ONE_TIED, 64>(call, dr_one_block(call.plan, chain, at.chunk), *(dr_one_asked *)(shared + NARROW_ASKED),
                                  dr_narrow_rows(shared, at), saves && dr_one_owns(chain, at.chunk));
    dr_one_tell_place(dr_shared_address(shared), NARROW_DECAYED, at);
}

template <typename T, bool saves> static __device__ inline void dr_narrow_hold(const dr_one_pass_call &one, char *shared) {
    const dr_scan_call &call = one.scan;
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_one_chain &chain = dr_narrow_chain(shared);
    const unsigned base = dr_shared_address(shared);
    dr_one_asked &asked = *(dr_one_asked *)(shared + NARROW_ASKED);
    dr_narrow_ask_values(one, shared, 0);
    dr_one_ask<false>(plan.rows, dr_one_block(plan, chain, 0), asked);
    dr_narrow_decay<saves>(call, shared, {0, 0, 0});
    dr_meet<ONE_PASS_GROUPS>(); /* what was asked for is read */
    float s[8][4] = {};
    const dr_scan_place place = dr_one_columns(plan, chain, 0, chain.begins);
    dr_scan_begin<8>(dr_scan_block_of(call, shared, place), place, s);
    for (dr_one_turn at = {0, 0, 0}; at.chunk * 64 < chain.tokens; dr_one_next(at)) {
        const unsigned keys = dr_narrow_stage(base, at), made = base + (unsigned)dr_narrow_place(at);
        const unsigned value = base + NARROW_VALUES + (unsigned)(dr_one_place_of(at) * NARROW_TILE);
        const dr_one_rows &rows = dr_narrow_rows(shared, at);
        unsigned a[4][4], y[4][4];
        dr_one_ask<false>(plan.rows, dr_one_block(plan, chain, at.chunk + 1), asked);
        dr_one_await_stage(base, NARROW_FILLED, at);
        dr_group_state<T, 8>(s, a);
        if (saves) {
            dr_scan_place columns = {};
            dr_group_save<T, 4>(call, columns, dr_one_block(plan, chain, at.chunk).block, a);
        }
        dr_group_decay<8, false>(rows.keep, s);
        dr_group_settle(s);
        float u[8][4];
        dr_group_begin();
        dr_group_chain<T, true>(u, a, keys, 8192, false);
        dr_group_commit();
        dr_group_wait<0>();
        dr_narrow_ask_values(one, shared, at.chunk + 1);
        dr_one_await_place(base, NARROW_VALUED, at);
        dr_one_write<T>(rows, value, u, y);
        float o[8][4];
        dr_group_begin();
        dr_group_chain<T, true>(o, a, keys + NARROW_QUERY, 8192, false);
        dr_group_commit();
        dr_narrow_decay<saves>(call, shared, dr_one_after(at));
        dr_group_wait<0>();
        dr_scale_columns(o, rows.factors.query);
        dr_group_settle(o);
        dr_one_await_place(base, NARROW_LAID, at);
        const bool stores = saves && dr_copy_thread() == 0;
        if (stores) {
            const int row = (int)dr_one_block(plan, chain, at.chunk).block * 64;
            dr_boxes_store(one.exit, made, 0, 0, row, 0);
            dr_boxes_store(one.score, made + NARROW_SCORE, 0, 0, row, 0);
        }
        dr_group_begin();
        dr_group_chain<T, false>(s, y, made, 8192, true);
        dr_group_chain<T, true>(o, y, made + NARROW_SCORE, 0, true);
        dr_group_commit();
        dr_group_wait<0>();
        if (stores) dr_boxes_wait_read();
        dr_one_tell_stage(base, NARROW_FREE, at);
        dr_group_lay_output<T, 8>(value, o);
        dr_shared_fence();
        dr_meet<ONE_PASS_GROUPS>();
        if (dr_copy_thread() == 0) dr_boxes_store(one.o, value, 0, chain.head, chain.row + at.chunk * 64, chain.sequence);
    }
    dr_boxes_wait_read();
    const dr_scan_place end = dr_one_columns(plan, chain, 0, chain.ends);
    dr_scan_end<8>(dr_scan_block_of(call, shared, end), end, s);
}

#endif

template <typename T, bool saves>
static __global__ void __launch_bounds__(NARROW_THREADS, 2) one_pass_narrow(const __grid_constant__ dr_one_pass_call one) {
#ifdef DR_CUDA_WARPGROUPS
    extern __shared__ __align__(1024) char shared[];
    const unsigned base = dr_shared_address(shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < ONE_PASS_STAGES * 8; i += 8)
            dr_gate_open(base + NARROW_FILLED + i, 1), dr_gate_open(base + NARROW_FREE + i, 128);
        for (int i = 0; i < ONE_PASS_PLACES * 8; i += 8) {
            dr_gate_open(base + NARROW_DECAYED + i, 128);
            dr_gate_open(base + NARROW_LAID + i, 128);
            dr_gate_open(base + NARROW_VALUED + i, 1);
        }
        dr_shared_fence(); /* copies see the barriers */
        *(dr_one_chain *)(shared + NARROW_CHAIN) = dr_one_find(one.scan.plan, 0);
    }
    __syncthreads();
    if (dr_same_in_warp((int)(threadIdx.x / 128)) == 0)
        dr_narrow_make<T, saves>(one, shared);
    else
        dr_narrow_hold<T, saves>(one, shared);
#endif
}

#endif
