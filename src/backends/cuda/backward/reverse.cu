/* The reverse scan: chunk after chunk, last first, the gradient dS of the state for 64 columns of V.
 *
 *     dY = P'^T dO + X dS'      dS = D dS' + Q~^T dO - R~^T diag(c) dY
 *
 * The scan (scan.cuh) with the roles of R~ and X exchanged and one more source: the same tiles, the same transposes, so that
 * every result is operand A of the next product. It needs no state, and stores dS' and dY for the stages that do.
 *
 * A long sequence is cut into the parts of the forward (chunkwise.h). A first pass takes every part but the first from zero,
 * the last from the gradient of the final state; join_parts makes the gradients between parts, exit(p - 1) = M(p)^T exit(p) +
 * local(p), with the M that the forward saved. Rules whose rows read nothing go another way (carry_linear.cuh). */
#include "backends/cuda/backward/reverse_warpgroups.cuh"
#include "backends/cuda/backward/row_tiles.cuh"
#include "backends/cuda/chunkwise/carry_linear.cuh"
#include "backends/cuda/chunkwise/parts.cuh"
#include "backends/cuda/device/device.cuh"
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/rows/rows_make.h"

/* ---- products ---------------------------------------------------------------------------------------------------------- */

/* dY^T = dS'^T X^T. whole: what rounding takes from dS' goes through the product, too. */
template <typename T, int tiles>
static __device__ inline void update_from_exit(const dr_scan_block &x, bool whole, const float (&s)[tiles][4],
                                               float (&y)[8][4]) {
    DR_UNROLL (k, tiles / 2) {
        const unsigned exit = dr_forget(dr_shared_address(x.shared)) + (unsigned)x.room.exit;
        dr_operand_a<T> a;
        dr_operand_from<T>(a, s[2 * k], s[2 * k + 1]);
        dr_multiply_row<T, true, 4>(y, a, exit, 64, k * 16);
        if constexpr (sizeof(T) == 2)
            if (whole) {
                float rest[2][4];
                DR_UNROLL (i, 8) rest[i / 4][i % 4] = reverse_lost<T>(s[2 * k + i / 4][i % 4]);
                dr_operand_from<T>(a, rest[0], rest[1]);
                dr_multiply_row<T, true, 4>(y, a, exit, 64, k * 16);
            }
    }
}

/* += dO^T P' */
template <typename T> static __device__ inline void update_from_outputs(const dr_scan_block &x, float (&y)[8][4]) {
    const dr_cuda_chunk_plan &plan = x.call.plan;
    const int mine = (int)(threadIdx.x / 32) * 16;
    DR_UNROLL (k, 4)
        if (k * 16 < plan.query_rows) {
            const unsigned base = dr_forget(dr_shared_address(x.shared));
            float d_o[2][4];
            dr_load_transposed<T>(d_o, base + (unsigned)x.room.value, plan.query_rows, k * 16, mine);
            dr_operand_a<T> a;
            dr_operand_from<T>(a, d_o[0], d_o[1]);
            dr_multiply_row<T, false, 4>(y, a, base + (unsigned)x.room.score, plan.query_rows, k * 16);
        }
}

/* dS^T = dS'^T D + dO^T Q~ - (diag(c) dY)^T R~ */
template <typename T, int tiles>
static __device__ inline void reverse_state(const dr_scan_block &x, bool full, float (&s)[tiles][4], const float (&y)[8][4]) {
    const dr_cuda_chunk_plan &plan = x.call.plan;
    const int mine = (int)(threadIdx.x / 32) * 16, t = (int)(threadIdx.x % 4);
    const unsigned reader = dr_shared_address(x.shared + x.room.reader), query = dr_shared_address(x.shared + x.room.query);
    const unsigned output = dr_shared_address(x.shared + x.room.value);
    const dr_cuda_factors &factors = *(const dr_cuda_factors *)(x.shared + x.room.factors);
    dr_scale_columns(s, (const float *)(x.shared + x.room.keep));
#pragma unroll(sizeof(T) == 4 ? 1 : 4)
    for (int k = 0; k < 4; k++)
        if (k * 16 < plan.query_rows) {
            float d_o[2][4];
            dr_load_transposed<T>(d_o, output, plan.query_rows, k * 16, mine);
            DR_UNROLL (h, 2)
                DR_UNROLL (j, 2) {
                    const float factor = factors.query[k * 16 + h * 8 + 2 * t + j];
                    d_o[h][j] *= factor;
                    d_o[h][j + 2] *= factor;
                }
            dr_operand_a<T> a;
            dr_operand_from<T>(a, d_o[0], d_o[1]);
            dr_multiply_row<T, false, tiles / 2>(s, a, query, plan.query_rows, k * 16);
        }
    if (!plan.reads) return;
    DR_UNROLL (k, 4) {
        dr_operand_a<T> a;
        reverse_erased<T>(a, factors.erase + k * 16 + 2 * t, y[2 * k], y[2 * k + 1], false);
        dr_multiply_row<T, false, tiles / 2>(s, a, reader, 64, k * 16);
        if (sizeof(T) == 4 || !full) continue;
        reverse_erased<T>(a, factors.erase + k * 16 + 2 * t, y[2 * k], y[2 * k + 1], true);
        dr_multiply_row<T, false, tiles / 2>(s, a, reader, 64, k * 16);
    }
}

/* Turns dY^T and stores it as rows of [64][Vp]. */
template <typename T>
static __device__ inline void store_updates(const dr_scan_block &x, void *d_update, int64_t block, const float (&y)[8][4]) {
    const int64_t width = x.call.plan.value_width;
    const int lane = (int)(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    T *to = (T *)d_update + block * 64 * width + x.columns + threadIdx.x / 32 * 16;
    DR_UNROLL (n, 8) {
        if constexpr (sizeof(T) == 2) {
            DR_UNROLL (h, 2)
                *(unsigned *)(to + (n * 8 + g) * width + 8 * h + 2 * t) =
                    dr_transpose_matrix(dr_pack(T(), y[n][2 * h], y[n][2 * h + 1]));
        } else {
            DR_UNROLL (i, 4) to[(n * 8 + 2 * t + i % 2) * width + g + i / 2 * 8] = y[n][i];
        }
    }
}

/* ---- chunk after chunk --------------------------------------------------------------------------------------------------- */

/* Asks for what a chunk needs but X, in the two groups that the waits count. */
template <typename T, int width>
static __device__ inline void load_rest(const dr_scan_block &x, const dr_chunk_place &place, int64_t block) {
    dr_scan_load_scores<T>(x, block);
    load_outputs<T>(x, place, x.room.value);
    dr_scan_load_factors(x, block);
    dr_copy_commit();
    dr_scan_load_readers<T, width>(x, place, block);
    dr_copy_commit();
}

template <typename T, int boxes>
static __global__ void __launch_bounds__(SCAN_THREADS, sizeof(T) == 4 || boxes == 4 ? 1 : 3)
    reverse(const __grid_constant__ reverse_call call) {
    extern __shared__ __align__(1024) char shared[];
    constexpr int tiles = boxes * 8, width = boxes * 64;
    constexpr bool late = boxes == 4 || sizeof(T) == 4; /* X is asked for at the end of a chunk: registers are short */
    const dr_cuda_chunk_plan &plan = call.scan.plan;
    const int64_t *cu = call.scan.tensors.cu;
    const unsigned groups = (unsigned)plan.value_width / 64;
    const reverse_part part = reverse_find(call, blockIdx.x % groups, blockIdx.x / groups);
    const dr_scan_place &place = part.place;
    if (part.idle) return;
    const dr_scan_block x = {call.scan, shared, call.scan.room, place.head, place.head / plan.rows.group, place.columns, false};
    float s[tiles][4] = {};
    begin_back<tiles>(call, x, part, s);

    dr_chunk_place now = dr_chunk_of(plan, cu, place.sequence, place.end - 1);
    int64_t block = (place.slot + place.end - 1) * plan.value_heads + place.head;
    int left = place.end - place.begin;
    if (left > 0) {
        dr_scan_load_exit<T, width>(x, block);
        dr_copy_commit();
        load_rest<T, width>(x, now, block);
    }
    for (; left > 0; left--) {
        const bool more = left > 1;
        float y[8][4] = {};
        if (!call.summary) dr_scan_save<T, tiles>(x, block, s);
        dr_copy_wait<2>();
        __syncthreads();                                            /* X is there */
        update_from_exit<T, tiles>(x, now.last || call.full, s, y); /* that of the last is given in float */
        dr_copy_wait<1>();
        __syncthreads(); /* P', dO and factors are there; X is read */
        if (more && !late) dr_scan_load_exit<T, width>(x, block - plan.value_heads);
        dr_copy_commit(); /* with nothing in it, too: the waits count groups */
        update_from_outputs<T>(x, y);
        if (!call.summary) store_updates<T>(x, call.d_update, block, y);
        dr_copy_wait<1>();
        __syncthreads(); /* Q~, R~ are there */
        reverse_state<T, tiles>(x, call.full, s, y);
        __syncthreads(); /* all tiles but X are read */
        now.first -= plan.chunk;
        now.tokens = plan.chunk;
        now.last = false;
        block -= plan.value_heads;
        if (more) {
            if (late) dr_scan_load_exit<T, width>(x, block);
            dr_copy_commit();
            load_rest<T, width>(x, now, block);
        }
    }
    const unsigned again = dr_forget(blockIdx.x); /* found once more rather than kept in registers */
    end_back<tiles>(call, x, dr_scan_find(call.scan, again % groups, again / groups), s);
}

/* ---- launches ------------------------------------------------------------------------------------------------------------ */

template <typename T, int boxes> static dr_status launch_reverse(const reverse_call *call, dr_cuda_stream stream) {
    const dr_cuda_chunk_plan *plan = &call->scan.plan;
    return dr_cuda_launch("reverse", reverse<T, boxes>,
                          {plan->sequences, plan->value_heads, plan->parts, plan->value_width / DR_CUDA_COLUMNS}, SCAN_THREADS,
                          call->scan.room.bytes, stream, *call);
}

typedef void (*group_reverse_kernel)(group_reverse_call);

template <typename T, int boxes, int groups> static group_reverse_kernel choose_groups(const dr_cuda_chunk_plan *plan) {
    if constexpr (dr_scan_is_wide(boxes)) {
        return plan->rows.channel_decay ? reverse_warpgroups<T, boxes, 2, 4, DR_SCAN_READS, true>
                                        : reverse_warpgroups<T, boxes, 2, 4, DR_SCAN_READS, false>;
    } else {
        if (!plan->reads) return reverse_warpgroups<T, boxes, groups, 4, DR_SCAN_BLIND, true>;
        if (plan->reader_sum) return reverse_warpgroups<T, boxes, groups, 4, DR_SCAN_SUMS, false>;
        if (plan->query_rows != 64) return reverse_warpgroups<T, boxes, groups, 2, DR_SCAN_READS, true>;
        return plan->rows.channel_decay ? reverse_warpgroups<T, boxes, groups, 4, DR_SCAN_READS, true>
                                        : reverse_warpgroups<T, boxes, groups, 4, DR_SCAN_READS, false>;
    }
}

/* Chunks of other lengths than the rules' own are for the other form. */
static bool fits_groups(const dr_cuda_chunk_plan *plan) {
    return dr_cuda_scan_wide(plan) || (plan->warpgroups && (plan->query_rows == 64 || (plan->query_rows == 32 && plan->reads)));
}

template <typename T, int boxes> static dr_status launch_groups(const reverse_call *call, dr_cuda_stream stream) {
    const dr_cuda_chunk_plan *plan = &call->scan.plan;
    const int columns = plan->value_width / DR_CUDA_COLUMNS, groups = dr_group_scan_groups(*plan);
    const group_reverse_kernel kernel = groups == 1 ? choose_groups<T, boxes, 1>(plan) : choose_groups<T, boxes, 2>(plan);
    const group_reverse_call group_call = {*call, dr_group_scan_lay(call->scan, groups, false)};
    return dr_cuda_launch("reverse_warpgroups", kernel, {dr_group_scan_chains(*plan), (columns + groups - 1) / groups},
                          128 + 128 * groups, dr_group_scan_bytes(group_call.scan), stream, group_call);
}

template <typename T, int boxes> static dr_status launch(const reverse_call *call, dr_cuda_stream stream) {
    const auto pass = [=](const reverse_call *which) {
        if constexpr (sizeof(T) == 2)
            if (fits_groups(&which->scan.plan)) return launch_groups<T, boxes>(which, stream);
        return launch_reverse<T, boxes>(which, stream);
    };
    const dr_cuda_chunk_plan *plan = &call->scan.plan;
    if constexpr (sizeof(T) == 2 && boxes < 4)
        if (plan->linear) {
            if (plan->parts > 1)
                DR_TRY((dr_launch_linear_parts<T, true>(call->scan, call->local, call->between, call->passage, stream)));
            if (!plan->linear_back) return pass(call);
            return dr_launch_carry<T, true, true>(call->scan, NULL, call->between, NULL, stream);
        }
    if (plan->parts > 1) {
        reverse_call summary = *call;
        summary.summary = true;
        DR_TRY(pass(&summary));
        const dr_join_call join = {*plan, call->scan.tensors, call->local, call->between};
        DR_TRY(dr_launch_join<true>(join, stream));
    }
    return pass(call);
}

dr_status dr_cuda_backward_reverse(const dr_cuda_backward_call *call, dr_cuda_stream stream) {
    const reverse_call reverse = {{call->plan, call->chunk, call->d_final, call->d_initial, (void *)call->d_o,
                                   call->back.d_exit, dr_scan_lay(call->plan, (int)dr_dtype_size(call->plan.storage), false),
                                   false},
                                  call->back.d_update,
                                  call->back.local,
                                  call->back.between,
                                  call->back.passage,
                                  false,
                                  dr_cuda_rows_step_fully(&call->plan.rows)};
    DR_CUDA_CHUNK_STORAGE(call->plan.storage, T,
                          DR_CUDA_KEY_BOXES(call->plan.key_width, boxes, return launch<T, boxes>(&reverse, stream)));
    return DR_OK;
}
