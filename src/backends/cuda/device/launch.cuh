/* Launching kernels whose shared memory is told at the launch. */
#ifndef DR_CUDA_LAUNCH_CUH
#define DR_CUDA_LAUNCH_CUH

#include "backends/cuda/cuda.h"

#include <stdio.h>

/* sizes: their product is the number of blocks, none of which is nothing to do; bytes: of dynamic shared memory. */
template <int N, typename... P>
static dr_status dr_cuda_launch(const char *name, void (*kernel)(P...), const int64_t (&sizes)[N], int threads, int bytes,
                                cudaStream_t stream, P... arguments) {
    unsigned grid;
    DR_TRY(dr_cuda_grid(sizes, N, name, &grid));
    if (grid == 0) return DR_OK;
    if (bytes) DR_TRY(dr_cuda_allow_shared((const void *)kernel, bytes));
    kernel<<<grid, (unsigned)threads, (size_t)bytes, stream>>>(arguments...);
    const cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return DR_OK;
    char what[64];
    snprintf(what, sizeof what, "launching %s", name);
    return dr_cuda_check(error, what);
}

#endif
