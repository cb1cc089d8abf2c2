/* Launching kernels whose shared memory is told at the launch. */
#ifndef DR_CUDA_LAUNCH_CUH
#define DR_CUDA_LAUNCH_CUH

#include "backends/cuda/cuda.h"

#include <cuda.h>
#include <stdio.h>

/* By the runtime, which finds the context of the calling thread, and says what is wrong. */
static inline dr_status dr_cuda_launch_slowly(bool beside, const char *name, const void *kernel, unsigned grid, int threads,
                                              int bytes, cudaStream_t stream, void **arguments) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = (unsigned)threads, config.dynamicSmemBytes = (size_t)bytes;
    config.stream = stream;
    config.attrs = &early, config.numAttrs = beside ? 1 : 0;
    cudaLaunchKernelExC(&config, kernel, arguments);
    const cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return DR_OK;
    char what[64];
    snprintf(what, sizeof what, "launching %s", name);
    return dr_cuda_check(error, what);
}

/* By the driver; false: not so, as where the calling thread has no context yet. */
static inline bool dr_cuda_launch_fast(const dr_cuda_kernels *kernels, void *function, bool beside, unsigned grid, int threads,
                                       int bytes, cudaStream_t stream, void **arguments) {
    typedef CUresult(CUDAAPI * launcher)(const CUlaunchConfig *, CUfunction, void **, void **);
    CUlaunchAttribute early = {};
    early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    early.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config = {};
    config.gridDimX = grid, config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = (unsigned)threads, config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = (unsigned)bytes;
    config.hStream = stream;
    config.attrs = &early, config.numAttrs = beside ? 1 : 0;
    return function && ((launcher)kernels->launch)(&config, (CUfunction)function, arguments, NULL) == CUDA_SUCCESS;
}

/* sizes: their product is the number of blocks, none of which is nothing to do; bytes: of dynamic shared memory. beside: the
 * blocks begin as soon as all those of the kernel that is before it in the stream have opened or ended (beside.cuh). */
template <int N, typename... P>
static dr_status dr_cuda_launch_when(bool beside, const char *name, void (*kernel)(P...), const int64_t (&sizes)[N],
                                     int threads, int bytes, dr_cuda_stream stream, const P &...arguments) {
    unsigned grid;
    DR_TRY(dr_cuda_grid(sizes, N, name, &grid));
    if (grid == 0) return DR_OK;
    void *function, *at[] = {(void *)&arguments...};
    DR_TRY(dr_cuda_find_kernel(stream.kernels, (const void *)kernel, bytes, &function));
    if (dr_cuda_launch_fast(stream.kernels, function, beside, grid, threads, bytes, stream.at, at)) return DR_OK;
    return dr_cuda_launch_slowly(beside, name, (const void *)kernel, grid, threads, bytes, stream.at, at);
}

/* In the stream's order. */
template <int N, typename... P>
static dr_status dr_cuda_launch(const char *name, void (*kernel)(P...), const int64_t (&sizes)[N], int threads, int bytes,
                                dr_cuda_stream stream, const P &...arguments) {
    return dr_cuda_launch_when(false, name, kernel, sizes, threads, bytes, stream, arguments...);
}

#endif
