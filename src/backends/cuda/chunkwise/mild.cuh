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

/* Of some channels, as powers of two: from half of the chunk's decay to before a row; that half. */
template <int channels> struct dr_mild_span { float start[channels], half[channels]; };

/* Whether the chunk is mild, asked by all lanes of a warp, and then the span to before rows of part `own`. take(part, sum): the
 * sums over rows of a part, one of `parts`, of the lane's channels. */
template <int parts, int channels, typename function>
static __device__ inline bool dr_mild_find(int own, dr_mild_span<channels> &span, const function &take) {
    float total[channels] = {}, before[channels] = {};
    DR_UNROLL (part, parts) {
        float sum[channels];
        take(part, sum);
        DR_UNROLL (e, channels) {
            before[e] = part == own ? total[e] : before[e];
            total[e] += sum[e];
        }
    }
    bool mild = true;
    DR_UNROLL (e, channels) {
        mild = mild && total[e] >= -MILD_MOST; /* not of a NaN */
        span.half[e] = 0.5f * MILD_LOG2 * total[e];
        span.start[e] = fmaf(MILD_LOG2, before[e], -span.half[e]);
    }
    return __all_sync(0xffffffffu, mild);
}

#endif
