/* Launching kernels whose shared memory is told at the launch. */
#ifndef DR_CUDA_LAUNCH_CUH
#define DR_CUDA_LAUNCH_CUH

#include "backends/cuda/cuda.h"

#include <stdio.h>

/* sizes: their product is the number of blocks, none of which is nothing to do; bytes: of dynamic shared memory. beside: the
 * blocks begin as soon as all those of the kernel that is before it in the stream have opened or ended (beside.cuh). */
template <int N, typename... P>
static dr_status dr_cuda_launch_when(bool beside, const char *name, void (*kernel)(P...), const int64_t (&sizes)[N],
                                     int threads, int bytes, dr_cuda_stream stream, P... arguments) {
    unsigned grid;
    DR_TRY(dr_cuda_grid(sizes, N, name, &grid));
    if (grid == 0) return DR_OK;
    if (bytes > DR_CUDA_SHARED_AS_IT_IS) DR_TRY(dr_cuda_allow_shared(stream.kernels, (const void *)kernel));
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = (unsigned)threads, config.dynamicSmemBytes = (size_t)bytes;
    config.stream = stream.at;
    config.attrs = &early, config.numAttrs = beside ? 1 : 0;
    cudaLaunchKernelEx(&config, kernel, arguments...);
    const cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return DR_OK;
    char what[64];
    snprintf(what, sizeof what, "launching %s", name);
    return dr_cuda_check(error, what);
}

/* In the stream's order. */
template <int N, typename... P>
static dr_status dr_cuda_launch(const char *name, void (*kernel)(P...), const int64_t (&sizes)[N], int threads, int bytes,
                                dr_cuda_stream stream, P... arguments) {
    return dr_cuda_launch_when(false, name, kernel, sizes, threads, bytes, stream, arguments...);
}

#endif
