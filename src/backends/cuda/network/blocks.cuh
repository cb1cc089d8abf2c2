/* What the threads of one block bring together, in an order that their number decides. */
#ifndef DR_CUDA_NETWORK_BLOCKS_CUH
#define DR_CUDA_NETWORK_BLOCKS_CUH

#include "backends/cuda/device/lanes.cuh"

/* join(a, b) of all threads' values, to all of them. shared: a value a thread; it may be used again when all have the result.
 */
template <int THREADS, typename V, typename F>
static __device__ inline V dr_join_threads(V mine, V (&shared_values)[THREADS], const F &join) {
    __syncthreads();
    shared_values[threadIdx.x] = mine;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            shared_values[threadIdx.x] = join(shared_values[threadIdx.x], shared_values[threadIdx.x + half]);
    }
    __syncthreads();
    return shared_values[0];
}

#endif
