/* What the kernels of the diagonal scan share (diagonal.h): who takes a chunk, what they read, how they are launched.
 *
 * Where a token needs sums over channels, one warp takes a chunk of a key head and a lane E neighbouring channels; else as many
 * warps as there are channels by 32, and a thread one of them: what is made of a channel (logarithms, quotients) then runs on
 * four times as many warps. */
#ifndef DR_CUDA_DIAGONAL_CUH
#define DR_CUDA_DIAGONAL_CUH

#include "backends/cuda/device/device.cuh"
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/diagonal/diagonal.h"
#include "backends/cuda/plan/places.cuh"
#include "backends/cuda/rows/rows.cuh"
#include "maps/diagonal.h"

/* Warps of a thread block that take a chunk each. */
enum { DR_DIAGONAL_WARPS = 4 };

static __device__ inline dr_input dr_diagonal_decay_input(const dr_cuda_rows &rows) {
    return rows.tied_scan ? DR_INPUT_LOG_DECAY : DR_INPUT_SCAN_LOG_DECAY;
}

static __device__ inline dr_input dr_diagonal_gain_input(const dr_cuda_rows &rows) {
    return rows.tied_scan ? DR_INPUT_BETA : DR_INPUT_SCAN_GAIN;
}

static __device__ inline float dr_diagonal_alpha(const dr_cuda_rows &rows, int64_t token, int head) {
    return expf(dr_input_scalar(rows, dr_diagonal_decay_input(rows), token, 0, head));
}

static __device__ inline float dr_diagonal_gain(const dr_cuda_rows &rows, int64_t token, int head) {
    return dr_input_scalar(rows, dr_diagonal_gain_input(rows), token, 0, head);
}

/* A value of this lane's channels in [..][H][K] float. */
static __device__ inline float *dr_diagonal_channels(const dr_cuda_rows &rows, float *at, int64_t index, int head, int first) {
    return at + (index * rows.key_heads + head) * rows.key_size + first;
}

template <int E>
static __device__ inline void dr_diagonal_load(const dr_cuda_rows &rows, float *at, int64_t index, int head, int first,
                                               float (&to)[E]) {
    dr_load_lane<float, E>(dr_diagonal_channels(rows, at, index, head, first), rows.key_size - first, rows.aligned, to);
}

template <int E>
static __device__ inline void dr_diagonal_store(const dr_cuda_rows &rows, float *at, int64_t index, int head, int first,
                                                const float (&from)[E]) {
    dr_store_lane<float, E>(dr_diagonal_channels(rows, at, index, head, first), rows.key_size - first, rows.aligned, from);
}

/* The ridge is 1 behind the true size, where A and the keys are 0. */
template <int E>
static __device__ inline void dr_diagonal_ridges(const dr_cuda_rows &rows, int head, int first, float (&ridge)[E]) {
    if (!rows.input[DR_INPUT_RIDGE].at) {
        DR_UNROLL (e, E) ridge[e] = 1;
        return;
    }
    dr_input_vector<float, E>(rows, DR_INPUT_RIDGE, 0, 0, head, rows.key_size, first, ridge);
    DR_UNROLL (e, E)
        if (first + e >= rows.key_size) ridge[e] = 1;
}

template <typename T, int E>
static __device__ inline void dr_diagonal_key(const dr_cuda_rows &rows, int64_t token, int head, int first, float (&key)[E]) {
    dr_input_vector<T, E>(rows, DR_INPUT_KEY, token, 0, head, rows.key_size, first, key);
}

/* A chunk and key head, and the thread's first channel. */
typedef struct {
    int64_t slot;
    int head, first;
    dr_chunk_place place;
} dr_diagonal_chunk;

/* Those of this warp, or with more warps a chunk of this block; no tokens: there are none. */
template <int E, int W>
static __device__ inline dr_diagonal_chunk dr_diagonal_own_chunk(const dr_cuda_chunk_plan &plan, const int64_t *cu) {
    const int64_t task = W == 1 ? (int64_t)blockIdx.x * DR_DIAGONAL_WARPS + threadIdx.x / 32 : blockIdx.x;
    if (task >= plan.slots * plan.key_heads) return {};
    const int64_t slot = task / plan.key_heads;
    const int first = (int)(threadIdx.x % (32 * W)) * E;
    return {slot, (int)(task % plan.key_heads), first, dr_find_chunk(plan, cu, slot)};
}

/* Gradients of a token's gain and alpha. */
static __device__ inline void dr_diagonal_put_scalars(const dr_cuda_rows &rows, int64_t token, int head, float alpha,
                                                      float d_gain, float d_alpha) {
    const dr_cuda_input &gains = rows.input[dr_diagonal_gain_input(rows)], &decays = rows.input[dr_diagonal_decay_input(rows)];
    float *to_gain = (float *)gains.gradient, *to_decay = (float *)decays.gradient;
    if (to_gain) {
        to_gain += dr_input_index(gains, token, 0, head);
        *to_gain = rows.tied_scan ? *to_gain + d_gain : d_gain;
    }
    if (to_decay) {
        to_decay += dr_input_index(decays, token, 0, head);
        const float d_decay = alpha == 0 ? 0 : alpha * d_alpha;
        *to_decay = rows.tied_scan ? *to_decay + d_decay : d_decay;
    }
}

/* ---- launches --------------------------------------------------------------------------------------------------------- */

/* N, of 32 channels each, is how many channels a thread has of one warp's chunk, where a token's sums over channels are asked
 * for at once; else how many warps a chunk has, with one channel a thread. */
#define DR_DIAGONAL_FOR(K, N, ...)                                                                                             \
    if ((K) <= 64) {                                                                                                           \
        constexpr int N = 2;                                                                                                   \
        __VA_ARGS__;                                                                                                           \
    } else if ((K) <= 128) {                                                                                                   \
        constexpr int N = 4;                                                                                                   \
        __VA_ARGS__;                                                                                                           \
    } else {                                                                                                                   \
        constexpr int N = 8;                                                                                                   \
        __VA_ARGS__;                                                                                                           \
    }

/* A launch with a chunk of a key head for W warps. */
template <int W, typename... P>
static dr_status dr_diagonal_launch_chunks(const char *name, void (*kernel)(P...), const dr_cuda_chunk_plan *plan,
                                           dr_cuda_stream stream, P... arguments) {
    const int64_t tasks = plan->slots * plan->key_heads, each = W == 1 ? DR_DIAGONAL_WARPS : 1;
    return dr_cuda_launch(name, kernel, {(tasks + each - 1) / each}, W == 1 ? 32 * DR_DIAGONAL_WARPS : 32 * W, 0, stream,
                          arguments...);
}

/* The product of the lane's number and those behind it among `count` lanes side by side. */
template <int count> static __device__ inline float dr_product_behind(float x) {
#pragma unroll
    for (int step = 1; step < count; step *= 2) {
        const float below = __shfl_down_sync(0xffffffffu, x, step);
        if ((int)(threadIdx.x % count) + step < count) x *= below;
    }
    return x;
}

#endif
