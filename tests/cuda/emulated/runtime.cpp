/* What the host parts of operations call of CUDA, where memory is the host's and every launch has run when it returns. */
#include "runtime.h"

#include "backends/cuda/cuda.h"
#include "block.h"

#include <stdlib.h>

extern "C" {
void emulate_manner(unsigned seed) {
    manner = {seed, false, (unsigned char)(seed % 2 ? 0xff : 0xa5)};
}

cudaError_t cudaMalloc(void **memory, size_t bytes) {
    *memory = aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);
    if (*memory) memset(*memory, manner.fill, bytes);
    return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *memory) {
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t) {
    memset(memory, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind, cudaStream_t) {
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned) {
    return cudaMalloc(memory, bytes);
}

cudaError_t cudaFreeHost(void *memory) {
    return cudaFree(memory);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    *event = NULL;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t) {
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t) {
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t) {
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, enum cudaStreamCaptureStatus *status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all) {
    *left = *all = 0;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int) {
    return cudaSuccess;
}

cudaError_t cudaGetLastError() {
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t) {
    return "emulated";
}

const char *cudaGetErrorName(cudaError_t) {
    return "emulated";
}
}
