/* A saved state is [HV][Vp][Kp], padded and with K contiguous; a state is [HV][K][V]. */
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/engine/boundary.h"

static __global__ void turn_state(const float *from, int key_width, int value_width, int K, int V, int64_t count, float *to) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const int64_t v = i % V, k = i / V % K, head = i / V / K;
    to[i] = from[(head * value_width + v) * key_width + k];
}

dr_status dr_cuda_boundary_copy(const dr_cuda *gpu, const dr_cuda_chunk_plan *plan, const void *saved, int64_t slot,
                                float *to) {
    constexpr int THREADS = 256;
    const int K = plan->rows.key_size, V = plan->rows.value_size;
    const int64_t state = (int64_t)plan->value_heads * plan->value_width * plan->key_width;
    const int64_t count = (int64_t)plan->value_heads * K * V;
    return dr_cuda_launch("turn_state", turn_state, {(count + THREADS - 1) / THREADS}, THREADS, 0, gpu->stream,
                          (const float *)saved + slot * state, plan->key_width, plan->value_width, K, V, count, to);
}
