/* Checked calls of the CUDA runtime, whose device is the calling thread's, and what a launch needs beside its arguments. */
#include "backends/cuda/cuda.h"

__thread dr_cuda_capture dr_cuda_captured;

dr_status dr_cuda_check(cudaError_t error, const char *call) {
    if (error == cudaSuccess) return DR_OK;
    if (error == cudaErrorMemoryAllocation) return dr_fail(DR_ERROR_MEMORY, "the GPU has no memory left: %s", call);
    return dr_fail(DR_ERROR_DEVICE, "the GPU failed: %s: %s (%s)", call, cudaGetErrorString(error), cudaGetErrorName(error));
}

dr_status dr_cuda_enter(const dr_backend *backend, int *before) {
    const int own = dr_cuda_of(backend)->device;
    DR_CUDA(cudaGetDevice(before));
    if (*before != own)
        DR_CUDA(cudaSetDevice(own));
    else
        *before = -1;
    return DR_OK;
}

void dr_cuda_leave(int before) {
    if (before >= 0) cudaSetDevice(before);
}

dr_status dr_cuda_grid(const int64_t *sizes, int count, const char *kernel, unsigned *blocks) {
    int64_t product;
    if (!dr_product(sizes, count, &product) || product > INT32_MAX)
        return dr_fail(DR_ERROR_UNSUPPORTED, "kernel %s would need more than %d blocks: use fewer sequences a call", kernel,
                       INT32_MAX);
    *blocks = (unsigned)product;
    return DR_OK;
}

/* ---- kernels --------------------------------------------------------------------------------------------------------- */

/* The entry of a kernel, which is made if there is none; NULL: there is no room. */
static dr_cuda_kernel *entry_of(dr_cuda_kernels *kernels, const void *kernel) {
    const size_t first = (size_t)((uintptr_t)kernel / 16 * 0x9E3779B97F4A7C15u >> 40);
    for (size_t i = 0; kernels && i < DR_CUDA_MOST_KERNELS; i++) {
        dr_cuda_kernel *entry = &kernels->kernel[(first + i) % DR_CUDA_MOST_KERNELS];
        const void *there = __atomic_load_n(&entry->kernel, __ATOMIC_ACQUIRE);
        if (there == kernel) return entry;
        if (there) continue;
        if (__atomic_compare_exchange_n(&entry->kernel, &there, kernel, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
            there == kernel)
            return entry;
    }
    return NULL;
}

static dr_status raise_shared(const void *kernel) {
    struct cudaFuncAttributes attributes;
    int device, most;
    DR_CUDA(cudaFuncGetAttributes(&attributes, kernel));
    DR_CUDA(cudaGetDevice(&device));
    DR_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    DR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most - (int)attributes.sharedSizeBytes));
    return DR_OK;
}

dr_status dr_cuda_find_kernel(dr_cuda_kernels *kernels, const void *kernel, int bytes, void **function) {
    dr_cuda_kernel *entry = entry_of(kernels, kernel);
    const bool raises = bytes > DR_CUDA_SHARED_AS_IT_IS;
    *function = NULL;
    if (raises && !(entry && __atomic_load_n(&entry->raised, __ATOMIC_ACQUIRE))) {
        DR_TRY(raise_shared(kernel));
        if (entry) __atomic_store_n(&entry->raised, true, __ATOMIC_RELEASE);
    }
    if (!entry || !kernels->launch) return DR_OK;
    *function = __atomic_load_n(&entry->function, __ATOMIC_ACQUIRE);
    if (*function) return DR_OK;
    cudaFunction_t found = NULL;
    if (cudaGetFuncBySymbol(&found, kernel) == cudaSuccess)
        __atomic_store_n(&entry->function, (void *)found, __ATOMIC_RELEASE);
    else
        cudaGetLastError(); /* the runtime then says what is wrong */
    *function = (void *)found;
    return DR_OK;
}

void dr_cuda_open_kernels(dr_cuda_kernels *kernels) {
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *launch = NULL;
    enum { SINCE = 11080 };
    if (cudaGetDriverEntryPointByVersion("cuLaunchKernelEx", &launch, SINCE, cudaEnableDefault, &found) != cudaSuccess)
        cudaGetLastError();
    kernels->launch = found == cudaDriverEntryPointSuccess ? launch : NULL;
}

/* ---- graphs ---------------------------------------------------------------------------------------------------------- */

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
