/* Mild chunks: of no channel do the log decays, none of which is positive, sum to less than -MILD_MOST over the chunk. Then
 * decays from the middle of what a chunk decays by, to any of its rows and back, are numbers that floats and bf16 hold, and all
 * pairs of rows go by products of rows that are scaled once (prepare_mild.cuh, backward/keys_channel_mild.cuh). Other chunks
 * take no quotient of decays. Which way a chunk goes follows from its data. */
#ifndef DR_CUDA_MILD_CUH
#define DR_CUDA_MILD_CUH

constexpr float MILD_MOST = 120, MILD_LOG2 = 1.44269504f; /* of e; log2 e */

/* A sum of log decays; where the largest of them and 0 is no 0, one of a chunk that is not mild. */
static __device__ inline float dr_mild_sum_of(float sum, float largest) {
    return largest > 0 ? -INFINITY : sum;
}

/* Of a channel's sums over the chunk and before a row, as powers of two: from half of the chunk's decay to that row, and that
 * half. Returns whether the chunk may be mild: not where the sum is none. */
static __device__ inline bool dr_mild_channel(float total, float before, float &start, float &half) {
    const bool may = total >= -MILD_MOST;
    half = 0.5f * MILD_LOG2 * total;
    start = fmaf(MILD_LOG2, before, -half);
    return may;
}

#endif
