/* Prepare with a decay of each channel. As prepare.cuh, but for the scores, whose decay stands inside the contraction, and the
 * decayed readers, which are stored.
 *
 *     scan      with plan.scan_inside, before all else: W of the keys, which are R (diagonal_rows.cuh)
 *     slices    scores, decayed readers and write keys, 32 channels at a time: of mild chunks (prepare_mild.cuh), of all others
 *               (prepare_slices.cuh)
 *     the rest  masks and gains, the inverse, P' and X as in prepare.cuh
 *
 * But in mild chunks every factor is a product of decays, none a quotient, so 0 and underflow need no care. */
#ifndef DR_CUDA_PREPARE_CHANNEL_CUH
#define DR_CUDA_PREPARE_CHANNEL_CUH

#include "backends/cuda/chunkwise/prepare_mild.cuh"

static inline dr_prepare_room dr_channel_lay(const dr_cuda_chunk_plan &plan, int element) {
    dr_prepare_room room = {};
    const int tile = 64 * plan.key_width * element;
    const bool reader = plan.reads && !plan.rows.tied;
    room.query = tile;
    room.reader = reader ? 2 * tile : 0;
    int end = reader ? 3 * tile : 2 * tile;
    /* leaving: float: in the place of the write keys; for warp groups its halves take the places of write keys and queries.
     * What the slices make lies where their tables were, A's halves where readers were: three thread blocks find room. */
    const bool groups = element == 2 && plan.hopper;
    if (element == 2 && !groups) {
        room.leaving = end;
        end += 64 * plan.key_width * 4;
    }
    room.made = end;
    room.rows = room.made + (int)sizeof(dr_slice_results);
    end += reader ? (int)offsetof(dr_slice_tables, total) : (int)sizeof(dr_slice_tables); /* `totals` below */
    room.halves = reader && tile >= DR_HALVES_BYTES ? room.reader : (room.rows + 64 * (int)sizeof(float) + 1023) / 1024 * 1024;
    if (groups && end < room.halves + DR_HALVES_BYTES) end = room.halves + DR_HALVES_BYTES;
    room.bytes = end;
    return room;
}

/* Thread blocks of a multiprocessor: as many as there is room for. */
template <typename T> static __host__ __device__ constexpr int dr_channel_blocks() {
    return sizeof(T) == 2 ? 3 : 2;
}

/* Masks, gains and scale; what is within a quarter comes from its table. Only columns of the warp's own block ask for it. */
template <bool pairs>
static __device__ inline void dr_channel_mask(const dr_cuda_rows &rows, const dr_slice_results &results, const float *gains,
                                              int warp, float (&l)[8][4], float (&p)[8][4]) {
    const int g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    const float gain[2] = {gains[warp * 16 + g], gains[warp * 16 + g + 8]};
    DR_UNROLL (b, 4) {
        if (b < warp) {
#pragma unroll
            for (int n = 2 * b; n < 2 * b + 2; n++)
                DR_UNROLL (e, 4) {
                    l[n][e] *= gain[e / 2];
                    if (!pairs || e < 2) p[n][e] *= rows.scale;
                }
        } else if (b > warp) {
#pragma unroll
            for (int n = 2 * b; n < 2 * b + 2; n++)
                DR_UNROLL (e, 4) {
                    l[n][e] = 0;
                    if (!pairs || e < 2) p[n][e] = 0;
                }
        } else {
#pragma unroll
            for (int n = 2 * b; n < 2 * b + 2; n++)
                DR_UNROLL (e, 4) {
                    const int i = b * 16 + g + e / 2 * 8, asker = pairs ? b * 16 + 2 * g + 1 : i, j = n * 8 + 2 * t + e % 2;
                    float &score = p[n][e], &lower = l[n][e];
                    if (i / 4 == j / 4 && j <= i) lower = results.near_read[i][i - j];
                    lower = j < i ? gain[e / 2] * lower : 0.0f;
                    if (pairs && e >= 2) continue;
                    if (asker / 4 == j / 4 && j <= asker) score = results.near_query[asker][asker - j];
                    score = j <= asker ? rows.scale * score : 0.0f;
                }
        }
    }
}

/* As dr_prepare_chunk. */
template <typename T, bool pairs, dr_prepare_form form, int groups, typename function>
static __device__ inline void dr_channel_chunk(const dr_prepare_call &call, const dr_prepare_block &x, char *shared,
                                               const function &alone) {
    constexpr bool precise = sizeof(T) == 4, warpgroups = dr_groups_multiply<T>(), scans = dr_prepare_scans(form),
                   lean = form != DR_PREPARE_ANY, linear = form == DR_PREPARE_LINEAR, apart = form == DR_PREPARE_APART,
                   totals = form == DR_PREPARE_PLAIN || linear; /* there is no tile of readers */
    constexpr bool scales = warpgroups && lean;                 /* mild chunks */
    constexpr bool again = pairs || (groups != 2 && !linear);   /* three share a multiprocessor, and want the registers */
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_chunk_tensors &tensors = call.tensors;
    const dr_cuda_rows &rows = plan.rows;
    const dr_prepare_room &room = call.facts.room;
    const bool reads = lean ? !linear : plan.reads;
    dr_slice_tables &tables = *(dr_slice_tables *)(shared + room.made);
    dr_slice_results &results = *(dr_slice_results *)(shared + room.made);
    float *gain = (float *)(shared + room.rows);
    char *writer = shared + room.writer, *query = shared + room.query;
    char *reader = shared + room.reader, *leaving = shared + room.leaving;
    const uint64_t tile = (uint64_t)(unsigned)x.block * (unsigned)(64 * plan.key_width);
    const int i = dr_copy_thread();

    const dr_quarter_place at = dr_quarter_find(plan, x, lean ? 1 + pairs : rows.steps, rows.row[0].undecayed);
    const dr_cuda_input &decays = rows.input[DR_INPUT_LOG_DECAY];
    const float *decay = (const float *)decays.at + x.place.first * decays.token + x.head * decays.head + at.channel;
    float g[4][4] = {};
    dr_slice_fetch<pairs>(at, decay, rows.key_size - at.channel, rows.aligned, g);
    dr_inside_early early;
    dr_prepare_load<T, pairs, form>(call, x, shared);
    dr_mild_tables &mild_tables = *(dr_mild_tables *)(shared + room.made);
    if constexpr (scales) {
        float sum[4];
        dr_mild_sum<pairs>(plan, x, at.block, sum);
        dr_put_four<float>(&mild_tables.sum[at.block][i % 32 * 4], sum);
    }
    if constexpr (scans) early = dr_inside_ask(plan, tensors, x);
    const dr_map_gain_inputs gain_inputs = dr_prepare_gain_inputs<form, pairs>(rows, x, i < 64 ? i : x.alive);
    if constexpr (scans) {
        dr_inside_room &scan = *(dr_inside_room *)(shared + room.made);
        dr_inside_put_rows(plan, early, scan);
        dr_copy_wait<1>();
        dr_meet<groups>();
        dr_inside_make<T, dr_prepare_scan_channels(form), groups>(plan, tensors, x, early, scan, reader, writer);
    }
    if constexpr (groups == 1) dr_prepare_expect<T>(call, blockIdx.x, scans && plan.length);
    dr_copy_wait<0>();
    dr_meet<groups>();
    if constexpr (scans)
        dr_inside_keep<T>(plan, x, writer);
    else if (apart && call.facts.late)
        dr_finish_apart<T, groups>(rows, x, writer, reader);
    else if (!lean && call.facts.late)
        dr_finish_rows<T, groups>(plan, x, writer, reader, query);

    float l[8][4] = {}, p[8][4] = {};
    bool mild = false;
    int block = at.block; /* whose scores the warp has */
    T *const reader_to = (T *)tensors.reader + tile, *const exit_to = (T *)tensors.exit + tile;
    T *const query_to = (T *)tensors.query + x.block * plan.query_rows * plan.key_width;
    /* of row i, with its factors */
    const auto put_gain = [&](float *gains, float dot) {
        dr_row_factors factors =
            dr_prepare_factors<form, pairs>(rows, x, i, dr_prepare_gain<form, pairs>(rows, x, i, gain_inputs, dot));
        gains[i] = factors.gain;
        factors.reader = 1;
        factors.query = i < x.place.tokens ? rows.scale : 0.0f;
        dr_put_factors(tensors.factors[x.block], i, factors);
    };
    dr_mild_span<4> span;
    if constexpr (scales)
        mild = dr_mild_find<4>(at.block, span,
                               [&](int b, float(&sum)[4]) { dr_take_fours(&mild_tables.sum[b][i % 32 * 4], sum); });
    if (mild) {
        if (i < 64) put_gain(mild_tables.gain, 0); /* it is an input */
        if (at.block == 0) dr_mild_keep(span, plan.key_width, tensors.keep + x.block * plan.key_width);
        block = dr_prepare_warp();
        if (scans) dr_meet<groups>(); /* write keys are kept, whose tile is overwritten */
#pragma unroll 1
        for (int slice = 0; slice < plan.key_width; slice += SLICE) {
            dr_mild_tabulate<T, pairs, !linear, !apart && !scans>(plan, mild_tables, at, span, g, writer, reader, query,
                                                                  leaving, slice, reader_to, query_to, exit_to);
            decay += SLICE;
            dr_slice_fetch<pairs>(at, decay, rows.key_size - slice - SLICE - at.channel, rows.aligned, g);
            dr_shared_fence();
            dr_meet<groups>();
            dr_mild_scores<!linear>(dr_shared_address(&mild_tables), l, p);
            dr_meet<groups>();
        }
    }
    if (!mild) {
        if (scales) dr_meet<groups>(); /* the sums are read */
        float own_l[2][4] = {}, own_p[2][4] = {};
        dr_quarter_sums sums = {};
#pragma unroll 1
        for (int slice = 0; slice < plan.key_width; slice += SLICE) {
            dr_quarter_keys keys;
            dr_quarter_decays between;
            dr_slice_tabulate<T, pairs, totals>(tables, at, writer, reader, query, slice, reads, g, sums, keys, between);
            decay += SLICE;
            dr_slice_fetch<pairs>(at, decay, rows.key_size - slice - SLICE - at.channel, rows.aligned, g);
            dr_meet<groups>();
            if (i < SLICE) {
                float all = 1;
                DR_UNROLL (b, 4) all *= totals ? tables.total[b][i] : tables.decay[b][0][i] * tables.decay[b][SLICE_REST][i];
                tensors.keep[x.block * plan.key_width + slice + i] = all;
            }
            dr_slice_leave<T, pairs, totals, again>(plan, reads, tables, at, keys, between, leaving, slice, reader_to, query_to,
                                                    exit_to);
            dr_slice_scores<precise, pairs, totals>(tables, at.block, reads, l, p, own_l, own_p);
            dr_meet<groups>();
        }
        dr_slice_place(at.block, own_l, l);
        if (pairs)
            dr_slice_place_pairs(at.block, own_p, p);
        else
            dr_slice_place(at.block, own_p, p);
        dr_quarter_put<pairs>(at, sums, results);
        dr_meet<groups>();
        if (i < 64) put_gain(gain, results.near_read[i][0]);
        dr_meet<groups>();
    }
    if (mild)
        dr_mild_mask<pairs>(rows.scale, mild_tables.gain, block, l, p);
    else
        dr_channel_mask<pairs>(rows, results, gain, block, l, p);
    float *matrix = &results.matrix[0][0];
    if (reads) dr_matrix_put<!warpgroups>(l, block, matrix);

    T *score = (T *)tensors.score + x.block * plan.query_rows * 64;
    if (!reads) {
#ifdef DR_CUDA_WARPGROUPS
        if constexpr (!precise)
            dr_group_put_score<T, pairs>(plan, (char *)matrix, block, p, score);
        else
#endif
            dr_prepare_put_score<T, pairs>(plan, score, block, p);
        return;
    }
    alone();
    dr_triangle_invert<precise, groups>(matrix, block);
#ifdef DR_CUDA_WARPGROUPS
    if constexpr (!precise) {
        dr_prepare_finish<T, true, pairs, groups>(plan, matrix, shared + room.halves, NULL, block, p,
                                                  dr_shared_address(leaving), score, exit_to);
        if (tensors.inverse) dr_halves_save((char *)tensors.inverse + x.block * DR_HALVES_BYTES, shared + room.halves);
        return;
    }
#endif
    dr_prepare_put_inverse(tensors, x, matrix);
    float c[8][4] = {};
    dr_prepare_combine<precise>(matrix, block, p, c);
    dr_prepare_put_score<T, pairs>(plan, score, block, c);
    dr_prepare_put_exit<T, float>(plan, matrix, NULL, dr_shared_address(leaving), exit_to);
}

/* Chunks take turns as in prepare. */
template <typename T, bool pairs, dr_prepare_form form>
static __global__ void __launch_bounds__(PREPARE_THREADS, dr_channel_blocks<T>())
    prepare_channel(const __grid_constant__ dr_prepare_call call) {
    constexpr bool scans = dr_prepare_scans(form);
    extern __shared__ __align__(1024) char shared[];
    const dr_prepare_block x = dr_prepare_find(call, blockIdx.x, scans && call.plan.length);
    if (x.place.tokens > 0)
        dr_channel_chunk<T, pairs, form, 1>(call, x, shared, [] {});
    else if constexpr (scans)
        dr_beside_close();
}

#endif
