/* The reverse scan: chunk after chunk, last first, the gradient dS of the state for 64 columns of V.
 *
 *     dY = P'^T dO + X dS'      dS = D dS' + Q~^T dO - R~^T diag(c) dY
 *
 * The scan (scan.cuh) with the roles of R~ and X exchanged and one more source: the same tiles, the same transposes, so that
 * every result is operand A of the next product. It needs no state, and stores dS' and dY for the stages that do. Four warps
 * compute and four copy: between the products of a chunk nothing waits for memory. */
#include "backends/cuda/backward.h"
#include "backends/cuda/device.cuh"
#include "backends/cuda/row_tiles.cuh"
#include "backends/cuda/scan.cuh"

enum { COPIERS = 128, THREADS = SCAN_THREADS + COPIERS };

/* As dr_load_tile, by the threads behind the first SCAN_THREADS. Every thread stays in one column of units. */
template <typename T, int width, typename F>
static __device__ inline void copy_rows(char *tile, int rows, int size, bool aligned, F row_at) {
    constexpr int unit = 16 / (int)sizeof(T), units = width / unit;
    const int thread = (int)threadIdx.x - SCAN_THREADS, column = thread % units * unit;
#pragma unroll 8
    for (int row = thread / units; row < rows; row += COPIERS / units) {
        const T *from = row_at(row);
        const unsigned at = dr_tile_at<T>(0, rows, row, column);
        const bool valid = from && column < size;
        if (aligned) {
            dr_copy_async(dr_shared_address(tile) + at, valid ? (const void *)(from + column) : tile, valid);
            continue;
        }
        T *to = (T *)(tile + at);
#pragma unroll
        for (int e = 0; e < unit; e++) to[e] = valid && column + e < size ? from[column + e] : dr_from_float<T>(0.0f);
    }
}

template <typename T, int width>
static __device__ inline void copy_matrix(char *tile, const void *from, int64_t block, int rows) {
    const T *first = (const T *)from + block * rows * width;
    copy_rows<T, width>(tile, rows, width, true, [=](int row) { return first + row * width; });
}

/* All that a chunk needs, into a stage of shared memory. */
template <typename T, int width>
static __device__ inline void copy_chunk(const dr_scan_block &x, char *stage, const dr_chunk_place &place, int64_t block) {
    const dr_cuda_chunk_plan &plan = x.call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const dr_cuda_chunk_tensors &tensors = x.call.tensors;
    const int steps = rows.steps, tokens = place.tokens, alive = tokens * steps, queries = plan.query_rows;
    copy_matrix<T, width>(stage + x.room.exit, tensors.exit, block, 64);
    copy_matrix<T, 64>(stage + x.room.score, tensors.score, block, queries);
    const int64_t stride = (int64_t)rows.value_heads * rows.value_size;
    const T *outputs = (const T *)x.call.o + place.first * stride + (int64_t)x.head * rows.value_size + x.columns;
    copy_rows<T, 64>(stage + x.room.value, queries, rows.value_size - x.columns, rows.aligned,
                     [=](int row) { return row < tokens ? outputs + row * stride : (const T *)NULL; });
    if (plan.query_direct) {
        const dr_source source =
            rows.query == DR_QUERY_RIDGE ? dr_source_made(rows, rows.ridge_query) : dr_source_of(rows.input[DR_INPUT_QUERY]);
        const T *from = (const T *)source.at + place.first * source.token + x.key_head * source.head;
        copy_rows<T, width>(stage + x.room.query, queries, rows.key_size, rows.aligned,
                            [=](int row) { return row < tokens ? from + row * source.token : (const T *)NULL; });
    } else {
        copy_matrix<T, width>(stage + x.room.query, tensors.query, block, queries);
    }
    if (plan.reads && plan.reader_direct) {
        const dr_source source = dr_reader_source(rows);
        const T *from = (const T *)source.at + place.first * source.token + x.key_head * source.head;
        copy_rows<T, width>(stage + x.room.reader, 64, rows.key_size, rows.aligned, [=](int row) {
            const int token = steps == 1 ? row : row / steps;
            return row < alive ? from + token * source.token + (row - token * steps) * source.step : (const T *)NULL;
        });
    } else if (plan.reads) {
        copy_matrix<T, width>(stage + x.room.reader, tensors.reader, block, 64);
    }
    const int thread = (int)threadIdx.x - SCAN_THREADS;
    if (thread < 64)
        dr_copy_async(dr_shared_address(stage + x.room.factors) + thread * 16, tensors.factors + block * 64 + thread, true);
    else if (thread - 64 < width / 4)
        dr_copy_async(dr_shared_address(stage + x.room.keep) + (thread - 64) * 16,
                      tensors.keep + block * width + (thread - 64) * 4, true);
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
        dr_multiply_row<T, true, 4>(y, a, exit, 64, k * 16);
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (k * 16 < plan.query_rows) {
            float d_o[2][4];
            dr_load_transposed<T>(d_o, output, plan.query_rows, k * 16, mine);
            dr_operand_a<T> a;
            dr_operand_from<T>(a, d_o[0], d_o[1]);
            dr_multiply_row<T, false, 4>(y, a, score, plan.query_rows, k * 16);
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
            dr_multiply_row<T, false, tiles / 2>(s, a, query, plan.query_rows, k * 16);
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
        dr_multiply_row<T, false, tiles / 2>(s, a, reader, 64, k * 16);
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

/* The first four warps compute, the others copy the next chunk into the other stage meanwhile; where shared memory holds one
 * stage only, they take turns. */
template <typename T, int boxes>
static __global__ void __launch_bounds__(THREADS)
    reverse(const __grid_constant__ dr_scan_call call, void *d_update, int stages) {
    extern __shared__ __align__(1024) char shared[];
    constexpr int tiles = boxes * 8, width = boxes * 64;
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const int groups = plan.value_width / 64, group = (int)(blockIdx.x % groups);
    const int64_t chain = blockIdx.x / groups, sequence = chain / plan.value_heads;
    const int head = (int)(chain % plan.value_heads);
    dr_scan_block x = {call, shared, dr_scan_lay(plan, sizeof(T), false), head, head / rows.group, group * 64};
    const int64_t chunks = dr_sequence_chunks(plan, call.tensors.cu, sequence);
    const int64_t slot = dr_sequence_slot(plan, call.tensors.cu, sequence);
    const int64_t state = chain * rows.key_size * rows.value_size;
    const auto block_of = [&](int64_t chunk) { return (slot + chunk) * plan.value_heads + head; };

    if (threadIdx.x >= SCAN_THREADS) {
        for (int64_t chunk = chunks - 1; chunk >= 0; chunk--) {
            const int stage = stages == 2 ? (int)(chunk & 1) : 0;
            copy_chunk<T, width>(x, shared + stage * x.room.bytes, dr_chunk_of(plan, call.tensors.cu, sequence, chunk),
                                 block_of(chunk));
            dr_copy_commit();
            dr_copy_wait<0>();
            __syncwarp();
            __syncthreads(); /* the chunk is there; with two stages, the one before it is done */
            if (stages == 1) __syncthreads();
        }
        return;
    }
    float s[tiles][4] = {};
    if (call.initial) dr_scan_each<tiles>(x, s, [&](float &element, int64_t at) { element = call.initial[state + at]; });
    for (int64_t chunk = chunks - 1; chunk >= 0; chunk--) {
        float y[8][4] = {};
        dr_scan_save<T, tiles>(x, block_of(chunk), s);
        __syncthreads();
        x.shared = shared + (stages == 2 ? (int)(chunk & 1) * x.room.bytes : 0);
        reverse_updates<T, tiles>(x, s, y);
        store_updates<T>(x, d_update, block_of(chunk), y);
        reverse_state<T, tiles>(x, s, y);
        if (stages == 1) __syncthreads();
    }
    if (call.final) dr_scan_each<tiles>(x, s, [&](float &element, int64_t at) { call.final[state + at] = element; });
}

template <typename T, int boxes>
static dr_status launch(const dr_scan_call *call, void *d_update, cudaStream_t stream) {
    enum { MOST = 227 * 1024 };
    const int one = dr_scan_lay(call->plan, sizeof(T), false).bytes, stages = 2 * one <= MOST ? 2 : 1, bytes = stages * one;
    const int64_t sizes[] = {call->plan.sequences, call->plan.value_heads, call->plan.value_width / 64};
    unsigned grid;
    DR_TRY(dr_cuda_grid(sizes, 3, "reverse", &grid));
    DR_CUDA(cudaFuncSetAttribute(reverse<T, boxes>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    reverse<T, boxes><<<grid, THREADS, (size_t)bytes, stream>>>(*call, d_update, stages);
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
