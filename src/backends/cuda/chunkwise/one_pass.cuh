/* Prepare and scan in one kernel, on sm_90a for 16-bit types: a thread block has all columns of a head's state, makes what
 * prepare would have made of its chunks by itself, and X, P' and A go through no memory.
 *
 *     solve      four warps: ask for keys and queries; A, of the chunk that is made next
 *     make       four warps: P, and from A to X and P'
 *     columns    two groups of four warps that hold 64 columns each (scan_warpgroups.cuh); in turn they make the decays of the
 *                chunk after the next one, while they would wait for X
 *
 * Where write keys are B * key of the diagonal scan (plan.scan_inside), solve makes what they are made of before it inverts the
 * chunk before, and each group of columns 64 channels of them at the end of its chunk. They lie where X will be, which takes
 * their place box by box, and has three tiles, so that none of them waits for the other group to have read X. Queries have two.
 *
 * Where rows read key + lambda query, solve makes these sums, rounded, as an operand of its own and lays them in a tile for the
 * columns, which then do what they do of one key. Keys are done with when X is there: they have two tiles, which `make` asks
 * for. A tensor that rows read beside what they write lies where the sums do, and comes with the keys. Where
 * plan.made_within is set, solve overwrites one tile: the tile of a key with the product of both keys, or the tile of queries
 * with queries minus a multiple of a key.
 *
 * So three chunks are under way, in three stages of what comes from memory; what lies between the groups has two places. All
 * wait for one another at barriers in shared memory, chunk by chunk (one_pass_stages.cuh). What a chunk takes is what all
 * groups have to do, on a multiprocessor whose instructions and shared memory they share: so keys, queries, values and outputs
 * are moved as boxes (device/boxes.cuh) wherever they lie as boxes can. No group has the registers that it would like, and so
 * outputs are made by halves of the rows.
 *
 * Where a backward follows (saves), X, P' and A go to memory as well, by copies from where they lie in shared memory, and with
 * them states, decays, factors and what the diagonal scan made: whoever has made a thing stores it.
 *
 * For rules that prepare calls plain or makes that scan for, or that read a tensor of its own, with a scalar decay or none, one
 * row a token, K and V of 65 to 128, sequences of one length (plan.c). A thread block takes all of a head, and the bits are
 * those of the two kernels, but of key + lambda query, which those add in float; or a part that begins early (early.cuh). */
#ifndef DR_CUDA_ONE_PASS_CUH
#define DR_CUDA_ONE_PASS_CUH

#include "backends/cuda/chunkwise/one_pass_stages.cuh"

#ifdef DR_CUDA_WARPGROUPS

/* ---- making ------------------------------------------------------------------------------------------------------------- */

/* P, and from A to X and P'. saves: A's halves to memory and, with the diagonal scan, the write keys. */
template <typename T, dr_one_kind kind, bool saves>
static __device__ inline void dr_one_make(const dr_one_pass_call &one, char *shared) {
    const dr_cuda_chunk_plan &plan = one.scan.plan;
    const dr_cuda_rows &rows = plan.rows;
    const unsigned base = dr_shared_address(shared);
    const int warp = dr_prepare_warp(), chunks = dr_one_chunks(shared);
    constexpr bool scans = kind == DR_ONE_SCANS, apart = dr_one_reads_apart(kind);
    if constexpr (apart)
        for (int chunk = 0; chunk < ONE_PASS_PLACES && chunk < chunks; chunk++)
            dr_one_fill<T, kind, true, true>(one, shared, {chunk, chunk, 0});
    for (dr_one_turn at = {0, 0, 0}; at.chunk < chunks; dr_one_next(at)) {
        const unsigned made = base + (unsigned)dr_one_exit<kind>(at), writers = scans ? made : dr_one_keys<kind>(base, at);
        const unsigned halves = scans ? base + ONE_PASS_HALVES : made;
        char *place = dr_one_place_in(shared, at), *exits = shared + dr_one_exit<kind>(at);
        const dr_one_rows &numbers = dr_one_rows_of(shared, at.stage);
        dr_one_await_stage(base, ONE_PASS_FREE, dr_one_before(dr_one_before(at))); /* the place */
        float p[8][4];
        if (!scans) dr_one_await_stage(base, ONE_PASS_FILLED, at);
        if (kind != DR_ONE_TIED)
            dr_one_await_place(base, kind == DR_ONE_APART && plan.made_within ? ONE_PASS_WRITTEN : ONE_PASS_BROUGHT, at);
        if (scans) dr_one_await_place(base, ONE_PASS_WRITTEN, at);
        const bool stores = saves && dr_copy_thread() == 0 && dr_one_owns(shared, at.chunk);
        if (scans && stores) {
            const dr_one_chain chain = dr_one_chain_of(shared);
            for (int box = 0; box < 2; box++)
                dr_boxes_store(one.write, made + box * 8192, box * 64, chain.key_head, chain.row + at.chunk * 64,
                               chain.sequence);
        }
        dr_group_anew(p);
        dr_group_begin();
        dr_one_scores<T>(p, dr_one_queries<kind>(base, at), writers);
        dr_group_commit();
        dr_one_await_stage(base, ONE_PASS_DECAYED, at);
        const dr_prepare_near near = dr_one_near(numbers, false);
        dr_group_wait<0>();
        dr_prepare_mask_queries(rows, numbers.small, near, p);
        dr_one_await_place(base, ONE_PASS_SOLVED, at);
        dr_halves_put<T>((const float *)(place + ONE_PASS_MATRIX), scans ? shared + ONE_PASS_HALVES : exits);
        dr_shared_fence();
        dr_meet<ONE_PASS_GROUPS>();
        if (stores)
            dr_bulk_store((char *)one.scan.tensors.inverse + dr_one_block(plan, shared, at.chunk).block * DR_HALVES_BYTES,
                          halves, DR_HALVES_BYTES);
        unsigned high[4][4], low[4][4];
        dr_halves_score<T>(p, warp, high, low);
        {
            float c[8][4];
            dr_halves_combine<T>(c, high, low, halves);
            dr_group_lay_rows<T>(place + ONE_PASS_SCORE, c);
        }
        dr_halves_turn<T>((const float *)(place + ONE_PASS_MATRIX), numbers.small.leave, high, low);
        dr_one_tell_place(base, ONE_PASS_TURNED, at);
        if (stores) dr_boxes_wait_read();
        if (!scans) dr_meet<ONE_PASS_GROUPS>(); /* A's halves are read */
#pragma unroll 1
        for (int box = 0; box < 2; box++) {
            float exit[8][4];
            dr_halves_exit_box<T>(high, low, writers + (unsigned)box * 8192, exit);
            if (scans) dr_meet<ONE_PASS_GROUPS>(); /* those write keys are read */
            dr_group_lay_rows<T>(exits + box * 8192, exit);
        }
        dr_shared_fence();
        dr_one_tell_place(base, ONE_PASS_LAID, at);
        if constexpr (apart) {
            const dr_one_turn later = dr_one_after(dr_one_after(at));
            dr_one_await_place(base, ONE_PASS_LAID, at); /* all of the group have read the keys */
            if (kind == DR_ONE_APART && warp == 0)
                dr_one_await_place(base, ONE_PASS_READ, at); /* and the columns what rows read */
            if (later.chunk < chunks) dr_one_fill<T, kind, true, true>(one, shared, later);
        }
    }
}

/* ---- solving ------------------------------------------------------------------------------------------------------------ */

/* R of a chunk whose rows read key + lambda query, to its tile, and R W^T. Of two channels at once, lambda rounded to T, too,
 * which takes no more from the sum than its own rounding. */
template <typename T>
static __device__ inline void dr_one_sum(unsigned base, const dr_one_turn &at, const float *lambda, float (&l)[8][4]) {
    const int first = dr_prepare_warp() * 16, row = first + (int)(threadIdx.x % 32 / 4);
    const unsigned factor[2] = {dr_pack(T(), lambda[row], lambda[row]), dr_pack(T(), lambda[row + 8], lambda[row + 8])};
    const unsigned keys = dr_one_keys<DR_ONE_SUMS>(base, at),
                   lane = dr_forget(dr_lane_across<T>()); /* made anew in each chunk */
    const unsigned queries = dr_one_stage(base, at.stage) + ONE_PASS_QUERY, readers = dr_one_readers<DR_ONE_SUMS>(base, at);
    const uint64_t writers = dr_group_operand(keys, 16);
    unsigned r[2][4], key[4], query[4]; /* of 16 channels, made while the product of those before runs */
    const auto load = [&](int k) {
        const unsigned from = dr_lane_at<T>(lane, 64, first, k * 16);
        dr_load_matrices(key, keys + from);
        dr_load_matrices(query, queries + from);
    };
    load(0);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        unsigned(&own)[4] = r[k % 2];
        if (k >= 2) dr_group_wait<1>();
#pragma unroll
        for (int i = 0; i < 4; i++) own[i] = dr_pair_fma(T(), factor[i % 2], query[i], key[i]);
        if (k < 7) load(k + 1);
        dr_store_matrices(readers + dr_lane_at<T>(lane, 64, first, k * 16), own);
        dr_group_begin();
        dr_group_multiply<true>(T(), l, own, dr_group_forward(writers, k % 4 * 32 + k / 4 * 8192), k > 0);
        dr_group_commit();
    }
    dr_shared_fence();
    dr_one_tell_place(base, ONE_PASS_WRITTEN, at);
    dr_group_wait<0>();
}

/* This part of the block copies keys and queries a chunk ahead, and solves for A of each chunk, which stays in the matrix.
 * Where rows read a tensor that they do not write, it copies queries alone; with the diagonal scan it copies queries only when
 * they are needed. */
template <typename T, dr_one_kind kind, bool boxed, bool saves>
static __device__ inline void dr_one_solve(const dr_one_pass_call &one, char *shared) {
    const dr_scan_call &call = one.scan;
    constexpr bool sums = kind == DR_ONE_SUMS, scans = kind == DR_ONE_SCANS;
    const dr_cuda_rows &rows = call.plan.rows;
    const unsigned base = dr_shared_address(shared);
    const int chunks = dr_one_chunks(shared);
    dr_one_fill<T, kind, boxed, false>(one, shared, {0, 0, 0});
    dr_one_asked &asked = ((dr_one_asked *)(shared + ONE_PASS_ASKED))[2];
    float a = 0; /* of the diagonal scan before the next chunk, a channel a thread */
    const auto scan = [&](const dr_one_turn &which) {
        dr_one_scan_rows<T, saves>(call, shared, which, asked, a);
        if (which.chunk + 1 < chunks) dr_one_ask<false>(rows, dr_one_block(call.plan, shared, which.chunk + 1), asked, true);
    };
    if constexpr (scans) {
        if (call.tensors.scan.initial && dr_one_chain_of(shared).begins)
            a = *dr_one_state(call, shared, call.tensors.scan.initial);
        dr_one_ask<false>(rows, dr_one_block(call.plan, shared, 0), asked, true);
        scan({0, 0, 0});
    }
    for (dr_one_turn at = {0, 0, 0}; at.chunk < chunks; dr_one_next(at)) {
        const dr_one_turn next = dr_one_after(at);
        char *place = dr_one_place_in(shared, at);
        const dr_one_turn had = dr_one_before(dr_one_before(at)); /* the place, and the next one's stage */
        float *matrix = (float *)(place + ONE_PASS_MATRIX);
        const dr_one_rows &numbers = dr_one_rows_of(shared, at.stage);
        float l[8][4];
        const auto fill = [&] {
            dr_one_await_stage(base, ONE_PASS_FREE, had);
            if (next.chunk < chunks) dr_one_fill<T, kind, boxed, false>(one, shared, next);
            if (scans) dr_one_fill<T, kind, boxed, true>(one, shared, at);
        };
        if (scans) fill(); /* the diagonal scan wants them before the inverse */
        dr_one_await_stage(base, ONE_PASS_FILLED, at);
        if constexpr (sums) {
            dr_one_await_place(base, ONE_PASS_BROUGHT, at);
            dr_one_await_stage(base, ONE_PASS_DECAYED, at);
            dr_one_await_place(base, ONE_PASS_READ, had); /* the place of R */
            dr_one_sum<T>(base, at, numbers.small.lambda, l);
        } else {
            if (scans) dr_one_await_place(base, ONE_PASS_WRITTEN, at);
            if (kind == DR_ONE_APART) {
                dr_one_await_place(base, ONE_PASS_BROUGHT, at);
                if (call.plan.made_within) dr_one_make_tile<T>(rows, shared, at);
            }
            dr_group_begin();
            dr_one_scores<T>(l, dr_one_readers<kind>(base, at),
                             scans ? base + (unsigned)dr_one_exit<kind>(at) : dr_one_keys<kind>(base, at));
            dr_group_commit();
            dr_one_await_stage(base, ONE_PASS_DECAYED, at);
        }
        const dr_prepare_near near = dr_one_near(numbers, rows.row[0].undecayed);
        dr_one_await_place(base, ONE_PASS_TURNED, had);
        if (!sums) dr_group_wait<0>();
        dr_prepare_mask_reads(numbers.small, near, l);
        dr_matrix_put<false>(l, dr_prepare_warp(), matrix);
        if constexpr (scans)
            if (next.chunk < chunks) scan(next);
        if (!scans) fill(); /* the columns leave that stage late, and nothing before this needs them to */
        dr_triangle_invert<false, ONE_PASS_GROUPS>(matrix, dr_prepare_warp());
        dr_one_tell_place(base, ONE_PASS_SOLVED, at);
    }
    if (scans && call.tensors.scan.final && dr_one_chain_of(shared).ends)
        *dr_one_state(call, shared, call.tensors.scan.final) = a;
}

/* ---- columns ------------------------------------------------------------------------------------------------------------ */

/* The group's columns of values of a chunk to its tile, where its outputs before have lain; `valued` is told. */
template <typename T, bool boxed>
static __device__ inline void dr_one_values(const dr_one_pass_call &one, const char *shared, unsigned tile, unsigned valued,
                                            int group, int chunk) {
    const dr_cuda_rows &rows = one.scan.plan.rows;
    if constexpr (boxed) {
        if (dr_copy_thread() > 0) return;
        const dr_one_chain chain = dr_one_chain_of(shared);
        dr_boxes_wait_read();
        dr_boxes_load(one.value, tile, valued, group * 64, chain.head, chain.row + chunk * 64, chain.sequence);
        dr_mbarrier_promise(valued, 64 * 64 * sizeof(T));
        return;
    }
    const dr_prepare_block x = dr_one_block(one.scan.plan, shared, chunk);
    dr_load_tokens<T>((char *)__cvta_shared_to_generic(tile), dr_source_of(rows.input[DR_INPUT_VALUE]), x.place, x.head,
                      group * 64, rows.value_size, 1, rows.aligned);
    dr_one_loaded(valued);
}

/* Y^T of a chunk from what its rows read. value: the tile. */
template <typename T>
static __device__ inline void dr_one_write(const dr_one_rows &rows, unsigned value, const float (&u)[8][4],
                                           unsigned (&y)[4][4]) {
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        unsigned v[4];
        dr_load_matrices_transposed(v, dr_lane_at<T>(value + dr_lane_along<T>(), 64, n * 8, dr_scan_warp() * 16));
#pragma unroll
        for (int e = 0; e < 2; e++)
            dr_group_update<T, true>(dr_group_write<T, false>(rows.factors, n + e, &v[e * 2], NULL, false, false), u[n + e],
                                     &y[n / 2][e * 2]);
    }
}

/* The columns of a group, as the scan has them. edge: whether the state there is the sequence's. */
static __device__ inline dr_scan_place dr_one_columns(const dr_cuda_chunk_plan &plan, const dr_one_chain &chain, int group,
                                                      bool edge) {
    dr_scan_place place = {};
    place.chain = (int64_t)chain.sequence * plan.value_heads + chain.head;
    place.head = chain.head, place.columns = group * 64;
    place.part = edge ? 0 : -1, place.parts = 1;
    return place;
}

/* group: of columns. For want of registers outputs are made for each half of the rows. */
template <typename T, dr_one_kind kind, bool boxed, bool saves>
static __device__ inline void dr_one_hold(const dr_one_pass_call &one, char *shared, int group) {
    constexpr bool sums = kind == DR_ONE_SUMS, apart = dr_one_reads_apart(kind), scans = kind == DR_ONE_SCANS;
    constexpr int places = kind == DR_ONE_TIED ? ONE_PASS_PLACES : 1; /* of values */
    const dr_scan_call &call = one.scan;
    const dr_cuda_chunk_plan &plan = call.plan;
    shared = dr_group_forget(shared);
    const unsigned base = dr_shared_address(shared);
    /* the group's tile of values in a place, and its barrier */
    const auto value_in = [=](unsigned place) { return place + (unsigned)(ONE_PASS_VALUE + group * 8192); };
    const auto valued_of = [=](int which) { return base + (unsigned)(ONE_PASS_VALUED + (which * 2 + group) * 8); };
    const auto ask_values = [&](int chunk) {
        const int which = chunk % places;
        if (chunk * 64 < dr_one_chain_of(shared).tokens)
            dr_one_values<T, boxed>(one, shared, value_in(dr_one_place(base, which)), valued_of(which), group, chunk);
    };
    /* asked of memory before there is a place for them */
    const auto expect_values = [&](int chunk) {
        const dr_one_chain chain = dr_one_chain_of(shared);
        if (boxed && dr_copy_thread() == 0 && chunk * 64 < chain.tokens)
            dr_boxes_expect(one.value, group * 64, chain.head, chain.row + chunk * 64, chain.sequence);
    };
    ask_values(0);
    dr_one_asked &asked = *(dr_one_asked *)(shared + ONE_PASS_ASKED + group * (int)sizeof(dr_one_asked));
    /* decays of a chunk, by the groups in turn */
    const auto decay = [&](const dr_one_turn &at) {
        dr_one_decay<kind>(call, dr_one_block(plan, shared, at.chunk), asked, dr_one_rows_of(shared, at.stage),
                           saves && dr_one_owns(shared, at.chunk));
        dr_one_tell_stage(base, ONE_PASS_DECAYED, at);
    };
    dr_one_ask<sums>(plan.rows, dr_one_block(plan, shared, group), asked);
    decay({group, group, 0});
    dr_meet<ONE_PASS_GROUPS>(); /* what was asked for is read */
    if constexpr (scans) {
        for (int chunk = 0; chunk < 2 && chunk * 64 < dr_one_chain_of(shared).tokens; chunk++)
            dr_one_write_keys<T>(plan.rows, shared, {chunk, chunk, 0}, group);
    }
    float s[16][4] = {};
    const dr_scan_place place = dr_one_columns(plan, dr_one_chain_of(shared), group, dr_one_chain_of(shared).begins);
    dr_scan_begin<16>(dr_scan_block_of(call, shared, place), place, s);
    for (dr_one_turn at = {0, 0, 0}; at.chunk * 64 < dr_one_chain_of(shared).tokens; dr_one_next(at)) {
        const unsigned queries = dr_one_queries<kind>(base, at), made = base + (unsigned)dr_one_exit<kind>(at);
        const unsigned scores = dr_one_place(base, dr_one_place_of(at)) + ONE_PASS_SCORE;
        const unsigned value = value_in(dr_one_place(base, at.chunk % places)), valued = valued_of(at.chunk % places);
        const dr_one_rows &rows = dr_one_rows_of(shared, at.stage);
        unsigned a[8][4], y[4][4];
        const bool decays = at.chunk % 2 == group; /* are made now, of the chunk after the next one */
        if (decays) dr_one_ask<sums>(plan.rows, dr_one_block(plan, shared, at.chunk + 2), asked);
        dr_one_await_stage(base, ONE_PASS_FILLED, at);
        dr_one_await_stage(base, ONE_PASS_DECAYED, at);
        if (apart) {
            if (at.chunk > 0) ask_values(at.chunk);
            expect_values(at.chunk + 1);
        }
        dr_group_state<T, 16>(s, a);
        if (saves && dr_one_owns(shared, at.chunk)) {
            dr_scan_place place = {};
            place.columns = group * 64;
            dr_group_save<T, 8>(call, place, dr_one_block(plan, shared, at.chunk).block, a);
        }
        dr_group_decay<16, false>(rows.keep, s);
        dr_group_settle(s);
        float u[8][4];
        if (apart) dr_one_await_place(base, sums || plan.made_within ? ONE_PASS_WRITTEN : ONE_PASS_BROUGHT, at);
        dr_group_begin();
        dr_group_chain<T, true>(u, a, dr_one_readers<kind>(base, at), 8192, false);
        dr_group_commit();
        dr_group_wait<0>();
        if (apart) dr_one_tell_place(base, ONE_PASS_READ, at);
        if (kind == DR_ONE_TIED) ask_values(at.chunk + 1);
        dr_gate_wait(valued, (unsigned)at.chunk / places % 2);
        dr_one_write<T>(rows, value, u, y);
        constexpr int halves = 2, tiles = 8 / halves;
        float o[tiles][4];
        const auto ask_output = [&](int half) {
            dr_group_begin();
            dr_group_chain<T, true>(o, a, queries + (unsigned)half * 4096, 8192, false);
            dr_group_commit();
        };
        if (scans) dr_one_await_place(base, ONE_PASS_BROUGHT, at);
        ask_output(0);
        if (decays) {
            dr_one_await_stage(base, ONE_PASS_FREE, dr_one_before(at));
            decay(dr_one_after(dr_one_after(at)));
        }
        dr_group_wait<0>();
        dr_scale_columns(o, rows.factors.query);
        if (saves) dr_group_settle(o);
        dr_one_await_place(base, ONE_PASS_LAID, at);
        const bool stores =
            saves && dr_copy_thread() == 0 && dr_one_owns(shared, at.chunk); /* a half of X, and P' by the first group */
        if (stores) {
            const int row = (int)dr_one_block(plan, shared, at.chunk).block * 64;
            dr_boxes_store(one.exit, made + group * 8192, group * 64, 0, row, 0);
            if (group == 0) dr_boxes_store(one.score, scores, 0, 0, row, 0);
        }
#pragma unroll
        for (int half = 0; half < halves; half++) {
            if (half > 0) {
                ask_output(half);
                dr_group_wait<0>();
                dr_scale_columns(o, rows.factors.query, half * tiles);
            }
            dr_group_begin();
            if (half == 0) dr_group_chain<T, false>(s, y, made, 8192, true);
            dr_group_chain<T, true>(o, y, scores + (unsigned)half * 4096, 0, true);
            dr_group_commit();
            dr_group_wait<0>();
            if (half == halves - 1) {
                if (stores) dr_boxes_wait_read();
                dr_one_tell_stage(base, ONE_PASS_FREE, at);
            }
            if constexpr (boxed) {
                dr_group_lay_output<T, tiles>(value + (unsigned)half * 4096, o);
            } else {
                const dr_prepare_block x = dr_one_block(plan, shared, at.chunk);
                dr_scan_place place = {};
                place.head = x.head, place.columns = group * 64;
                dr_group_put_output<T, tiles>(call, place, value + (unsigned)half * 4096, shared, x.place.first + half * 32,
                                              dr_one_owns(shared, at.chunk) ? x.alive - half * 32 : 0, o);
            }
        }
        dr_shared_fence();
        dr_meet<ONE_PASS_GROUPS>();
        if (boxed && dr_copy_thread() == 0 && dr_one_owns(shared, at.chunk)) {
            const dr_one_chain chain = dr_one_chain_of(shared);
            dr_boxes_store(one.o, value, group * 64, chain.head, chain.row + at.chunk * 64, chain.sequence);
        }
        if constexpr (scans) {
            ask_values(at.chunk + 1);
            const dr_one_turn later = dr_one_after(dr_one_after(at));
            if (later.chunk * 64 < dr_one_chain_of(shared).tokens) {
                dr_one_await_stage(base, ONE_PASS_FREE, dr_one_before(at)); /* X is read where these go */
                dr_one_write_keys<T>(plan.rows, shared, later, group);
            }
        }
    }
    if (boxed) dr_boxes_wait_read();
    /* found once more rather than kept in registers */
    const dr_scan_place again =
        dr_one_columns(plan, dr_one_chain_of(shared), (int)dr_forget((unsigned)group), dr_one_chain_of(shared).ends);
    dr_scan_end<16>(dr_scan_block_of(call, shared, again), again, s);
}

/* The groups of the block. */
template <typename T, dr_one_kind kind, bool boxed, bool saves>
static __device__ inline void dr_one_run(const dr_one_pass_call &one, char *shared) {
    const unsigned group = (unsigned)dr_same_in_warp((int)(threadIdx.x / 128));
    if (group == 0) {
        dr_registers_give<96>();
        dr_one_make<T, kind, saves>(one, shared);
    } else if (group == 3) {
        dr_registers_give<96>();
        dr_one_solve<T, kind, boxed, saves>(one, shared);
    } else {
        dr_registers_take<160>();
        dr_one_hold<T, kind, boxed, saves>(one, shared, (int)group - 1);
    }
}

#endif

template <typename T, dr_one_kind kind, bool boxed, bool saves>
static __global__ void __launch_bounds__(ONE_PASS_THREADS, 1) one_pass(const __grid_constant__ dr_one_pass_call one) {
#ifdef DR_CUDA_WARPGROUPS
    extern __shared__ __align__(1024) char shared[];
    const unsigned base = dr_shared_address(shared);
    const dr_cuda_chunk_plan &plan = one.scan.plan;
    const dr_cuda_chunk_tensors &tensors = one.scan.tensors;
    if (threadIdx.x == 0) {
        const int copying = boxed ? 1 : 128; /* threads, by each group that does */
        for (int i = 0; i < ONE_PASS_STAGES * 8; i += 8) {
            dr_gate_open(base + ONE_PASS_FILLED + i, copying);
            dr_gate_open(base + ONE_PASS_DECAYED + i, 128);
            dr_gate_open(base + ONE_PASS_FREE + i, 256);
        }
        for (int i = 0; i < ONE_PASS_PLACES * 8; i += 8) {
            dr_gate_open(base + ONE_PASS_SOLVED + i, 128);
            dr_gate_open(base + ONE_PASS_TURNED + i, 128);
            dr_gate_open(base + ONE_PASS_LAID + i, 128);
            if (kind != DR_ONE_TIED) {
                dr_gate_open(base + ONE_PASS_WRITTEN + i, kind == DR_ONE_SCANS ? 256 : 128);
                dr_gate_open(base + ONE_PASS_BROUGHT + i, copying);
            }
            if (kind == DR_ONE_SCANS) dr_gate_open(base + ONE_PASS_SCANNED + i, 128);
            if (dr_one_reads_apart(kind)) dr_gate_open(base + ONE_PASS_READ + i, 256);
            dr_gate_open(base + ONE_PASS_VALUED + i * 2, copying), dr_gate_open(base + ONE_PASS_VALUED + i * 2 + 8, copying);
        }
        dr_shared_fence(); /* copies see the barriers */
    }
    bool may = true;
    int ahead = 0;
    if (tensors.early) {
        dr_beside_close(); /* how early parts begin is known */
        ahead = dr_one_ahead(plan, tensors);
        may = dr_one_may(plan, tensors);
    }
    if (threadIdx.x == 0) {
        dr_one_chain chain = dr_one_find(plan, ahead);
        if (kind == DR_ONE_SCANS) chain.centre = dr_input_scalar(plan.rows, DR_INPUT_SCAN_CENTRE, 0, 0, chain.key_head);
        if (kind == DR_ONE_APART && plan.made_within) chain.factor = dr_one_factor(plan.rows, chain.key_head);
        *(dr_one_chain *)(shared + ONE_PASS_CHAIN) = chain;
    }
    __syncthreads();
    if (tensors.early) dr_beside_admit(); /* the kernels behind, which find that there is nothing to do while this one runs */
    if (may) dr_one_run<T, kind, boxed, saves>(one, shared);
    if (tensors.early) {
        dr_bulk_wait();
        __syncthreads();
        if (threadIdx.x == 0) dr_count_add(dr_early_ended(plan, tensors.early), 1);
    }
#endif
}

#endif
