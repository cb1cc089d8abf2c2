/* The reverse scan: chunk after chunk, last first, the gradient dS of the state for 64 columns of V.
 *
 *     dY = P'^T dO + X dS'      dS = D dS' + Q~^T dO - R~^T diag(c) dY
 *
 * The scan (scan.cuh) with the roles of R~ and X exchanged and one more source: the same tiles, the same transposes, so that
 * every result is operand A of the next product. It needs no state, and stores dS' and dY for the stages that do. */
#include "backends/cuda/backward.h"
#include "backends/cuda/device.cuh"
#include "backends/cuda/scan.cuh"

template <typename T>
static __device__ inline void load_outputs(const dr_scan_block &x, const dr_chunk_place &place) {
    const dr_cuda_rows &rows = x.call.plan.rows;
    const int64_t stride = (int64_t)rows.value_heads * rows.value_size;
    const T *from = (const T *)x.call.o + place.first * stride + (int64_t)x.head * rows.value_size + x.columns;
    const int tokens = place.tokens;
    dr_load_tile<T>(x.shared + x.room.value, x.call.plan.query_rows, 64, rows.value_size - x.columns, rows.aligned,
                    [=](int row) { return row < tokens ? from + row * stride : (const T *)NULL; });
}

template <typename T>
static __device__ inline void load_factors(const dr_scan_block &x, int64_t block) {
    const int thread = (int)threadIdx.x, width = x.call.plan.key_width;
    if (thread < 64)
        dr_copy_async(dr_shared_address(x.shared + x.room.factors) + thread * 16, x.call.tensors.factors + block * 64 + thread,
                      true);
    else if (thread - 64 < width / 4)
        dr_copy_async(dr_shared_address(x.shared + x.room.keep) + (thread - 64) * 16,
                      x.call.tensors.keep + block * width + (thread - 64) * 4, true);
}

/* dY^T = dS'^T X^T + dO^T P' */
template <typename T, int tiles>
static __device__ inline void reverse_updates(const dr_scan_block &x, const float (&s)[tiles][4], float (&y)[8][4]) {
    const dr_cuda_chunk_plan &plan = x.call.plan;
    const int mine = (int)(threadIdx.x / 32) * 16;
    const unsigned exit = dr_shared_address(x.shared + x.room.exit), score = dr_shared_address(x.shared + x.room.score);
    const unsigned output = dr_shared_address(x.shared + x.room.value);
#pragma unroll
    for (int k = 0; k < tiles / 2; k++) {
        dr_operand_a<T> a;
        dr_operand_from<T>(a, s[2 * k], s[2 * k + 1]);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            dr_operand_b<T> b[2];
            dr_load_b<T>(b, exit, 64, n * 16, k * 16);
            dr_product<T>(y[2 * n], a, b[0]);
            dr_product<T>(y[2 * n + 1], a, b[1]);
        }
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (k * 16 < plan.query_rows) {
            float d_o[2][4];
            dr_load_transposed<T>(d_o, output, plan.query_rows, k * 16, mine);
            dr_operand_a<T> a;
            dr_operand_from<T>(a, d_o[0], d_o[1]);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                dr_operand_b<T> b[2];
                dr_load_b_straight<T>(b, score, plan.query_rows, k * 16, n * 16);
                dr_product<T>(y[2 * n], a, b[0]);
                dr_product<T>(y[2 * n + 1], a, b[1]);
            }
        }
}

/* dS^T = dS'^T D + dO^T Q~ - (diag(c) dY)^T R~ */
template <typename T, int tiles>
static __device__ inline void reverse_state(const dr_scan_block &x, float (&s)[tiles][4], const float (&y)[8][4]) {
    const dr_cuda_chunk_plan &plan = x.call.plan;
    const int mine = (int)(threadIdx.x / 32) * 16, t = (int)(threadIdx.x % 4);
    const unsigned reader = dr_shared_address(x.shared + x.room.reader), query = dr_shared_address(x.shared + x.room.query);
    const unsigned output = dr_shared_address(x.shared + x.room.value);
    const dr_cuda_row_factors *factors = (const dr_cuda_row_factors *)(x.shared + x.room.factors);
    const float *keep = (const float *)(x.shared + x.room.keep) + t * 2;
#pragma unroll
    for (int n = 0; n < tiles; n++) {
        const float2 d = *(const float2 *)(keep + n * 8);
        s[n][0] *= d.x, s[n][1] *= d.y, s[n][2] *= d.x, s[n][3] *= d.y;
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (k * 16 < plan.query_rows) {
            float d_o[2][4];
            dr_load_transposed<T>(d_o, output, plan.query_rows, k * 16, mine);
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const float factor = factors[k * 16 + h * 8 + 2 * t + j].query;
                    d_o[h][j] *= factor;
                    d_o[h][j + 2] *= factor;
                }
            dr_operand_a<T> a;
            dr_operand_from<T>(a, d_o[0], d_o[1]);
#pragma unroll
            for (int n = 0; n < tiles / 2; n++) {
                dr_operand_b<T> b[2];
                dr_load_b_straight<T>(b, query, plan.query_rows, k * 16, n * 16);
                dr_product<T>(s[2 * n], a, b[0]);
                dr_product<T>(s[2 * n + 1], a, b[1]);
            }
        }
    if (!plan.reads) return;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float erased[2][4];
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const dr_cuda_row_factors f = factors[k * 16 + h * 8 + 2 * t + j];
                const float factor = -f.gain * f.reader;
                erased[h][j] = factor * y[2 * k + h][j];
                erased[h][j + 2] = factor * y[2 * k + h][j + 2];
            }
        dr_operand_a<T> a;
        dr_operand_from<T>(a, erased[0], erased[1]);
#pragma unroll
        for (int n = 0; n < tiles / 2; n++) {
            dr_operand_b<T> b[2];
            dr_load_b_straight<T>(b, reader, 64, k * 16, n * 16);
            dr_product<T>(s[2 * n], a, b[0]);
            dr_product<T>(s[2 * n + 1], a, b[1]);
        }
    }
}

/* Turns dY^T and stores it as rows of [64][Vp]. */
template <typename T>
static __device__ inline void store_updates(const dr_scan_block &x, void *d_update, int64_t block, const float (&y)[8][4]) {
    const int64_t width = x.call.plan.value_width;
    const int lane = (int)(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    T *to = (T *)d_update + block * 64 * width + x.columns + threadIdx.x / 32 * 16;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if constexpr (sizeof(T) == 2) {
#pragma unroll
            for (int h = 0; h < 2; h++)
                *(unsigned *)(to + (n * 8 + g) * width + 8 * h + 2 * t) =
                    dr_transpose_matrix(dr_pack(T(), y[n][2 * h], y[n][2 * h + 1]));
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) to[(n * 8 + 2 * t + i % 2) * width + g + i / 2 * 8] = y[n][i];
        }
    }
}

template <typename T, int boxes>
static __global__ void __launch_bounds__(SCAN_THREADS) reverse(const __grid_constant__ dr_scan_call call, void *d_update) {
    extern __shared__ __align__(1024) char shared[];
    constexpr int tiles = boxes * 8, width = boxes * 64;
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const int groups = plan.value_width / 64, group = (int)(blockIdx.x % groups);
    const int64_t chain = blockIdx.x / groups, sequence = chain / plan.value_heads;
    const int head = (int)(chain % plan.value_heads);
    const dr_scan_block x = {call, shared, dr_scan_lay(plan, sizeof(T), false), head, head / rows.group, group * 64};
    const int64_t chunks = dr_sequence_chunks(plan, call.tensors.cu, sequence);
    const int64_t slot = dr_sequence_slot(plan, call.tensors.cu, sequence);
    const int64_t state = chain * rows.key_size * rows.value_size;

    float s[tiles][4] = {};
    if (call.initial) dr_scan_each<tiles>(x, s, [&](float &element, int64_t at) { element = call.initial[state + at]; });

    const auto block_of = [&](int64_t chunk) { return (slot + chunk) * plan.value_heads + head; };
    const auto place_of = [&](int64_t chunk) { return dr_chunk_of(plan, call.tensors.cu, sequence, chunk); };
    if (chunks > 0) {
        dr_scan_load_writers<T, width>(x, block_of(chunks - 1));
        load_outputs<T>(x, place_of(chunks - 1));
        dr_copy_commit();
        dr_scan_load_readers<T, width>(x, place_of(chunks - 1), block_of(chunks - 1));
        load_factors<T>(x, block_of(chunks - 1));
        dr_copy_commit();
    }
    for (int64_t chunk = chunks - 1; chunk >= 0; chunk--) {
        float y[8][4] = {};
        dr_scan_save<T, tiles>(x, block_of(chunk), s);
        dr_copy_wait<1>();
        __syncthreads(); /* X, P', dO are there */
        reverse_updates<T, tiles>(x, s, y);
        store_updates<T>(x, d_update, block_of(chunk), y);
        dr_copy_wait<0>();
        __syncthreads(); /* R~, Q~ and factors are there; X, P' are read */
        if (chunk > 0) dr_scan_load_writers<T, width>(x, block_of(chunk - 1));
        dr_copy_commit();
        reverse_state<T, tiles>(x, s, y);
        __syncthreads(); /* all tiles are read */
        if (chunk > 0) load_outputs<T>(x, place_of(chunk - 1));
        dr_copy_commit();
        if (chunk > 0) {
            dr_scan_load_readers<T, width>(x, place_of(chunk - 1), block_of(chunk - 1));
            load_factors<T>(x, block_of(chunk - 1));
        }
        dr_copy_commit();
    }
    if (call.final) dr_scan_each<tiles>(x, s, [&](float &element, int64_t at) { call.final[state + at] = element; });
}

template <typename T, int boxes>
static dr_status launch(const dr_scan_call *call, void *d_update, cudaStream_t stream) {
    const int bytes = dr_scan_lay(call->plan, sizeof(T), false).bytes;
    const int64_t sizes[] = {call->plan.sequences, call->plan.value_heads, call->plan.value_width / 64};
    unsigned grid;
    DR_TRY(dr_cuda_grid(sizes, 3, "reverse", &grid));
    DR_CUDA(cudaFuncSetAttribute(reverse<T, boxes>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    reverse<T, boxes><<<grid, SCAN_THREADS, (size_t)bytes, stream>>>(*call, d_update);
    DR_CUDA_LAUNCHED("reverse");
    return DR_OK;
}

dr_status dr_cuda_backward_reverse(const dr_cuda_backward_call *call, cudaStream_t stream) {
    dr_scan_call scan = {call->plan, call->chunk, call->d_final, call->d_initial, (void *)call->d_o, call->back.d_exit};
    DR_CUDA_STORAGE(call->plan.storage, T, {
        if (call->plan.key_width == 64) return launch<T, 1>(&scan, call->back.d_update, stream);
        if (call->plan.key_width == 128) return launch<T, 2>(&scan, call->back.d_update, stream);
        return launch<T, 4>(&scan, call->back.d_update, stream);
    });
    return DR_OK;
}
