/* From 16 bits to float and back, a thread every so many elements. */
#include "backends/cuda/device/device.cuh"
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/engine/widened.h"

enum { THREADS = 256, MOST_BLOCKS = 132 * 16 };

template <typename T> static __global__ void __launch_bounds__(THREADS) widen(const T *from, int64_t count, float *to) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS)
        to[i] = dr_to_float(from[i]);
}

template <typename T> static __global__ void __launch_bounds__(THREADS) narrow(const float *from, int64_t count, T *to) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS)
        to[i] = dr_from_float<T>(from[i]);
}

static int64_t blocks_for(int64_t count) {
    const int64_t blocks = (count + THREADS - 1) / THREADS;
    return blocks < MOST_BLOCKS ? blocks : (int64_t)MOST_BLOCKS;
}

dr_status dr_cuda_widen(dr_dtype dtype, const void *from, int64_t count, float *to, dr_cuda_stream stream) {
    if (dtype == DR_BF16)
        return dr_cuda_launch("widen", widen<__nv_bfloat16>, {blocks_for(count)}, THREADS, 0, stream,
                              (const __nv_bfloat16 *)from, count, to);
    return dr_cuda_launch("widen", widen<__half>, {blocks_for(count)}, THREADS, 0, stream, (const __half *)from, count, to);
}

dr_status dr_cuda_narrow(dr_dtype dtype, const float *from, int64_t count, void *to, dr_cuda_stream stream) {
    if (dtype == DR_BF16)
        return dr_cuda_launch("narrow", narrow<__nv_bfloat16>, {blocks_for(count)}, THREADS, 0, stream, from, count,
                              (__nv_bfloat16 *)to);
    return dr_cuda_launch("narrow", narrow<__half>, {blocks_for(count)}, THREADS, 0, stream, from, count, (__half *)to);
}
