/* Where the vectors of rows stand in the call's tensors. */
#ifndef DR_CUDA_SOURCE_CUH
#define DR_CUDA_SOURCE_CUH

#include "backends/cuda/rows/rows.h"

/* Where the vectors of one head lie, by token and step. Strides in elements. */
typedef struct {
    const void *at;
    int64_t token, step, head;
} dr_source;

static __host__ __device__ inline dr_source dr_source_of(const dr_cuda_input &input) {
    return {input.at, input.token, input.step, input.head};
}

/* Where write keys of a token's row, and queries, stand in a tensor as they are; else NULL at `at`. */
static __host__ __device__ inline dr_source dr_write_source(const dr_cuda_rows &rows, int row = 0) {
    return rows.row[row].writes == DR_WRITES_PRODUCT ? dr_source{} : dr_source_of(rows.input[rows.row[row].write]);
}

static __host__ __device__ inline dr_source dr_query_source(const dr_cuda_rows &rows) {
    return rows.asks == DR_ASKS_AFFINE ? dr_source{} : dr_source_of(rows.input[rows.asked]);
}

/* The vectors that the first row reads; of sums and products the first of them. */
static __host__ __device__ inline dr_source dr_reader_source(const dr_cuda_rows &rows) {
    return dr_source_of(rows.input[rows.row[0].read]);
}

#endif
