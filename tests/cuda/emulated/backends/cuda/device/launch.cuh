/* In place of the project's header of that name: launches run the kernel on the host, and return when it has run. */
#ifndef DR_CUDA_LAUNCH_CUH
#define DR_CUDA_LAUNCH_CUH

#include "backends/cuda/cuda.h"
#include "block.h"

template <int N, typename... P>
static dr_status dr_cuda_launch(const char *, void (*kernel)(P...), const int64_t (&sizes)[N], int threads, int bytes,
                                dr_cuda_stream, P... arguments) {
    if (bytes > SHARED_SIZE) grid_fail("a launch asks for more shared memory than there is");
    int64_t blocks = 1;
    for (int64_t size : sizes) blocks *= size;
    grid_run((unsigned)blocks, (unsigned)threads, [&] { kernel(arguments...); });
    return DR_OK;
}

template <int N, typename... P>
static dr_status dr_cuda_launch_when(bool, const char *name, void (*kernel)(P...), const int64_t (&sizes)[N], int threads,
                                     int bytes, dr_cuda_stream stream, P... arguments) {
    return dr_cuda_launch(name, kernel, sizes, threads, bytes, stream, arguments...);
}

#endif
