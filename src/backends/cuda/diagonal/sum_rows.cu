/* Sums of partial sums, in an order that depends on their number only, in double. */
#include "backends/cuda/device/device.cuh"
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/diagonal/diagonal.h"

enum { SUM_THREADS = 256 };

static __global__ void sum_rows(const float *partial, int64_t rows, int64_t columns, const float *zero_at, float *to) {
    __shared__ double sums[SUM_THREADS];
    const int64_t column = blockIdx.x;
    double sum = 0;
    for (int64_t row = threadIdx.x; row < rows; row += SUM_THREADS) sum += partial[row * columns + column];
    sums[threadIdx.x] = sum;
    for (int half = SUM_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) to[column] = zero_at && zero_at[column] == -INFINITY ? 0 : (float)sums[0];
}

dr_status dr_cuda_sum_rows(const float *partial, int64_t rows, int64_t columns, const float *zero_at, float *to,
                           dr_cuda_stream stream) {
    return dr_cuda_launch("sum_rows", sum_rows, {columns}, SUM_THREADS, 0, stream, partial, rows, columns, zero_at, to);
}
