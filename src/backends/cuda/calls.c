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

dr_status dr_cuda_allow_shared(const void *kernel, int bytes) {
    struct cudaFuncAttributes attributes;
    int device, most;
    DR_CUDA(cudaFuncGetAttributes(&attributes, kernel));
    if (bytes <= attributes.maxDynamicSharedSizeBytes) return DR_OK;
    DR_CUDA(cudaGetDevice(&device));
    DR_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    DR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most - (int)attributes.sharedSizeBytes));
    return DR_OK;
}
