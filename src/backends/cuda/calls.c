/* Checked calls of the CUDA runtime, whose device is the calling thread's, and what a launch needs beside its arguments. */
#include "backends/cuda/cuda.h"

dr_status dr_cuda_check(cudaError_t error, const char *call) {
    if (error == cudaSuccess) return DR_OK;
    if (error == cudaErrorMemoryAllocation) return dr_fail(DR_ERROR_MEMORY, "the GPU has no memory left: %s", call);
    return dr_fail(DR_ERROR_DEVICE, "the GPU failed: %s: %s (%s)", call, cudaGetErrorString(error), cudaGetErrorName(error));
}

dr_status dr_cuda_enter(const dr_backend *backend, int *before) {
    DR_CUDA(cudaGetDevice(before));
    if (*before != dr_cuda_of(backend)->device) DR_CUDA(cudaSetDevice(dr_cuda_of(backend)->device));
    return DR_OK;
}

void dr_cuda_leave(int before) {
    int now;
    if (cudaGetDevice(&now) == cudaSuccess && now != before) cudaSetDevice(before);
}

dr_status dr_cuda_grid(const int64_t *sizes, int count, const char *kernel, unsigned *blocks) {
    int64_t product;
    if (!dr_product(sizes, count, &product) || product > INT32_MAX)
        return dr_fail(DR_ERROR_UNSUPPORTED, "kernel %s would need more than %d blocks: use fewer sequences a call", kernel,
                       INT32_MAX);
    *blocks = (unsigned)product;
    return DR_OK;
}

/* The entry of a kernel, or the free one for it; NULL: the table is full. */
static const void **entry_of(dr_cuda_kernels *kernels, const void *kernel) {
    const size_t first = (size_t)((uintptr_t)kernel / 16 * 0x9E3779B97F4A7C15u >> 40);
    for (size_t i = 0; kernels && i < DR_CUDA_MOST_KERNELS; i++) {
        const void **entry = &kernels->raised[(first + i) % DR_CUDA_MOST_KERNELS];
        const void *there = __atomic_load_n(entry, __ATOMIC_ACQUIRE);
        if (!there || there == kernel) return entry;
    }
    return NULL;
}

dr_status dr_cuda_allow_shared(dr_cuda_kernels *kernels, const void *kernel) {
    const void **entry = entry_of(kernels, kernel), *none = NULL;
    if (entry && __atomic_load_n(entry, __ATOMIC_ACQUIRE) == kernel) return DR_OK;
    struct cudaFuncAttributes attributes;
    int device, most;
    DR_CUDA(cudaFuncGetAttributes(&attributes, kernel));
    DR_CUDA(cudaGetDevice(&device));
    DR_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    DR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most - (int)attributes.sharedSizeBytes));
    /* where another thread was faster with another kernel, this one is asked for once more */
    if (entry) __atomic_compare_exchange_n(entry, &none, kernel, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    return DR_OK;
}

dr_status dr_cuda_refuse_capture(const dr_cuda *gpu, const char *what) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t error = cudaStreamIsCapturing(gpu->stream.at, &status);
    if (error == cudaErrorStreamCaptureImplicit) cudaGetLastError(); /* the default stream beside a captured one */
    if (status == cudaStreamCaptureStatusNone && error != cudaErrorStreamCaptureImplicit)
        return error == cudaSuccess ? DR_OK : dr_cuda_check(error, "cudaStreamIsCapturing");
    return dr_fail(DR_ERROR_UNSUPPORTED,
                   "%s cannot be captured in a CUDA graph, and the backend's stream is being captured: do it before or after",
                   what);
}
