/* Tiles of rows in shared memory (fragments.cuh says how they lie there), loaded by all threads of a block. Rows that are not
 * there and columns behind the true size are zeros: a neighbour's NaN must not reach a product. */
#ifndef DR_CUDA_TILES_CUH
#define DR_CUDA_TILES_CUH

#include "backends/cuda/fragments.cuh"
#include "backends/cuda/rows.h"

/* Where the vectors of one head lie, by token and step. Strides in elements. */
typedef struct {
    const void *at;
    int64_t token, step, head;
} dr_source;

static __device__ inline dr_source dr_source_of(const dr_cuda_input &input) {
    const dr_source source = {input.at, input.token, input.step, input.head};
    return source;
}

/* A vector that the scan made, [tokens, H, K]. */
static __device__ inline dr_source dr_source_made(const dr_cuda_rows &rows, const void *made) {
    const dr_source source = {made, (int64_t)rows.key_heads * rows.key_size, 0, rows.key_size};
    return source;
}

/* Asks for the copy of rows x columns elements, columns 64, 128 or 256, of which `size` exist in every row. row_at(row): the
 * row's first element, or NULL for zeros. aligned: rows begin at 16 bytes and size is a multiple of that; else the elements
 * pass through registers. `tile` is where the shared address lies for ordinary stores. */
template <typename T, typename F>
static __device__ inline void dr_load_tile(void *tile, int rows, int columns, int size, bool aligned, F row_at) {
    constexpr int unit = 16 / (int)sizeof(T);
    const int shift = 31 - __clz(columns / unit); /* log2 of the units of a row */
#pragma unroll 4
    for (int i = (int)dr_forget(threadIdx.x); i < rows << shift; i += (int)blockDim.x) {
        const int row = i >> shift, column = (i - (row << shift)) * unit;
        const T *from = row_at(row);
        const unsigned at = dr_tile_at<T>(0, rows, row, column);
        const bool valid = from && column < size;
        if (aligned) {
            dr_copy_async(dr_shared_address(tile) + at, valid ? (const void *)(from + column) : tile, valid);
            continue;
        }
        T *to = (T *)((char *)tile + at);
#pragma unroll
        for (int e = 0; e < unit; e++) to[e] = valid && column + e < size ? from[column + e] : dr_from_float<T>(0.0f);
    }
}

/* The same of a dense matrix of ours, [rows][columns]: always aligned, always whole. */
template <typename T> static __device__ inline void dr_load_matrix(void *tile, const T *from, int rows, int columns) {
    dr_load_tile<T>(tile, rows, columns, columns, true, [=](int row) { return from + (int64_t)row * columns; });
}

#endif
