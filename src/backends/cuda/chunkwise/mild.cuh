/* Mild chunks: of no channel do the log decays, none of which is positive, sum to less than -MILD_MOST over the chunk. Then
 * decays from the middle of what a chunk decays by, to any of its rows and back, are numbers that floats and bf16 hold, and all
 * pairs of rows go by products of rows that are scaled once (prepare_mild.cuh, backward/keys_channel_mild.cuh). Other chunks
 * take no quotient of decays. Which way a chunk goes follows from its data. */
#ifndef DR_CUDA_MILD_CUH
#define DR_CUDA_MILD_CUH

constexpr float MILD_MOST = 120, MILD_LOG2 = 1.44269504f; /* of e; log2 e */

#endif
