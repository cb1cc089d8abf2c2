/* Which sequence a row belongs to, where boundaries lie in the GPU's memory. */
#ifndef DR_CUDA_NETWORK_SEQUENCES_CUH
#define DR_CUDA_NETWORK_SEQUENCES_CUH

#include "backends/cuda/device/device.cuh"

/* Rows of one sequence. */
typedef struct {
    int64_t index, begin, end;
} dr_span;

static __device__ inline dr_span dr_span_at(const dr_cuda_layout &layout, int64_t i) {
    return {i, sequence_begin(layout, i), sequence_begin(layout, i + 1)};
}

/* The last i of 0 to count - 1 with first(i) <= at; first(0) <= at, and first never falls. */
template <typename F> static __device__ inline int64_t dr_last_before(int64_t count, int64_t at, const F &first) {
    int64_t low = 0, high = count - 1;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (first(middle) <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* The sequence that has a row; empty ones have none. */
static __device__ inline dr_span dr_span_of(const dr_cuda_layout &layout, int64_t row) {
    if (!layout.offsets) return dr_span_at(layout, row / layout.tokens);
    return dr_span_at(layout, dr_last_before(layout.sequences, row, [&](int64_t i) { return layout.offsets[i]; }));
}

/* A layout whose boundaries are in the GPU's memory. */
static inline dr_cuda_layout dr_layout_on_device(const dr_layout &layout) {
    return {layout.sequences, layout.rows, layout.rows / layout.sequences, layout.cu_seqlens};
}

#endif
