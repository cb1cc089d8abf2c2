/* Memory of the GPU. Numbers are converted on the host, a part of the tensor at a time, and copied from and to ordinary host
 * memory: these calls set up and read back, they are not for the inner loop of a program that keeps its tensors on the GPU. */
#include "backends/cuda/memory.h"

#include "base/half.h"

enum { PART = 1 << 20 }; /* elements converted at a time */

dr_status dr_cuda_allocate(dr_backend *backend, size_t bytes, void **memory) {
    int before;
    void *got = NULL;
    DR_TRY(dr_cuda_refuse_capture(dr_cuda_of(backend), "allocating memory"));
    DR_TRY(dr_cuda_enter(backend, &before));
    cudaError_t error = cudaMalloc(&got, bytes ? bytes : 1);
    if (error == cudaErrorMemoryAllocation || error == cudaErrorInvalidValue) {
        size_t left = 0, all = 0;
        cudaGetLastError();
        cudaMemGetInfo(&left, &all);
        dr_cuda_leave(before);
        return dr_fail(DR_ERROR_MEMORY, "there are no %zu bytes for tensors on GPU %d: %zu of %zu are free", bytes,
                       dr_cuda_of(backend)->device, left, all);
    }
    dr_cuda_leave(before);
    DR_TRY(dr_cuda_check(error, "cudaMalloc"));
    *memory = got;
    return DR_OK;
}

void dr_cuda_free(dr_backend *backend, void *memory) {
    int before;
    if (dr_cuda_enter(backend, &before) != DR_OK) return;
    cudaFree(memory);
    dr_cuda_leave(before);
}

enum { RESERVE = 1 << 29 }; /* bytes for products, for memory between kernels and for the driver */

int64_t dr_cuda_available(dr_backend *backend) {
    size_t left = 0, all = 0;
    int before;
    if (dr_cuda_enter(backend, &before) != DR_OK) return 0;
    if (cudaMemGetInfo(&left, &all) != cudaSuccess) cudaGetLastError();
    dr_cuda_leave(before);
    return left > RESERVE ? (int64_t)(left - RESERVE) : 0;
}

void dr_cuda_zero(dr_backend *backend, void *memory, size_t bytes) {
    int before;
    if (!bytes || dr_cuda_enter(backend, &before) != DR_OK) return;
    cudaMemsetAsync(memory, 0, bytes, dr_cuda_of(backend)->stream.at);
    dr_cuda_leave(before);
}

/* ---- conversions ----------------------------------------------------------------------------------------------------- */

static double element(const void *from, dr_dtype dtype, int64_t i) {
    switch (dtype) {
    case DR_F32:
        return (double)((const float *)from)[i];
    case DR_F16:
        return (double)dr_f16_to_float(((const uint16_t *)from)[i]);
    case DR_BF16:
        return (double)dr_bf16_to_float(((const uint16_t *)from)[i]);
    default:
        return ((const double *)from)[i];
    }
}

/* A double becomes a 16-bit number by way of float, as everywhere in the project. */
static void set_element(void *to, dr_dtype dtype, int64_t i, double value) {
    switch (dtype) {
    case DR_F32:
        ((float *)to)[i] = (float)value;
        break;
    case DR_F16:
        ((uint16_t *)to)[i] = dr_f16_from_float((float)value);
        break;
    case DR_BF16:
        ((uint16_t *)to)[i] = dr_bf16_from_float((float)value);
        break;
    default:
        ((double *)to)[i] = value;
        break;
    }
}

static void convert(void *to, dr_dtype to_dtype, const void *from, dr_dtype from_dtype, int64_t count) {
    for (int64_t i = 0; i < count; i++) set_element(to, to_dtype, i, element(from, from_dtype, i));
}

/* Copies and waits. */
static dr_status copy(const dr_cuda *gpu, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    DR_TRY(dr_cuda_refuse_capture(gpu, "a copy between host and GPU, which waits,"));
    DR_CUDA(cudaMemcpyAsync(to, from, bytes, kind, gpu->stream.at));
    DR_CUDA(cudaStreamSynchronize(gpu->stream.at));
    return DR_OK;
}

/* One of to and from is on the GPU; part holds PART elements of the type there. */
static dr_status copy_parts(const dr_cuda *gpu, bool up, void *to, dr_dtype to_dtype, const void *from, dr_dtype from_dtype,
                            int64_t count, void *part) {
    const size_t to_size = dr_dtype_size(to_dtype), from_size = dr_dtype_size(from_dtype);
    for (int64_t i = 0; i < count; i += PART) {
        const int64_t some = count - i < PART ? count - i : PART;
        const char *source = (const char *)from + (size_t)i * from_size;
        char *target = (char *)to + (size_t)i * to_size;
        if (up) convert(part, to_dtype, source, from_dtype, some);
        if (up) DR_TRY(copy(gpu, target, part, (size_t)some * to_size, cudaMemcpyHostToDevice));
        if (!up) DR_TRY(copy(gpu, part, source, (size_t)some * from_size, cudaMemcpyDeviceToHost));
        if (!up) convert(target, to_dtype, part, from_dtype, some);
    }
    return DR_OK;
}

static dr_status move(dr_backend *backend, bool up, void *to, dr_dtype to_dtype, const void *from, dr_dtype from_dtype,
                      int64_t count) {
    const dr_cuda *gpu = dr_cuda_of(backend);
    int before;
    void *part = NULL;
    dr_status status = DR_OK;
    if (count == 0) return DR_OK;
    DR_TRY(dr_cuda_enter(backend, &before));
    if (to_dtype == from_dtype) {
        status =
            copy(gpu, to, from, (size_t)count * dr_dtype_size(to_dtype), up ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost);
    } else {
        status = dr_allocate((size_t)(count < PART ? count : PART) * dr_dtype_size(up ? to_dtype : from_dtype),
                             "a part of a tensor", &part);
        if (status == DR_OK) status = copy_parts(gpu, up, to, to_dtype, from, from_dtype, count, part);
        dr_release(part);
    }
    dr_cuda_leave(before);
    return status;
}

static dr_status check_stored(dr_dtype dtype) {
    if (dtype == DR_F32 || dtype == DR_BF16 || dtype == DR_F16) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "tensors on a GPU are F32, BF16 or F16, not %s", dr_dtype_name(dtype));
}

dr_status dr_cuda_upload_as(dr_backend *backend, void *to, dr_dtype to_dtype, const void *from, dr_dtype from_dtype,
                            int64_t count) {
    DR_TRY(check_stored(to_dtype));
    return move(backend, true, to, to_dtype, from, from_dtype, count);
}

dr_status dr_cuda_download_as(dr_backend *backend, void *to, dr_dtype to_dtype, const void *from, dr_dtype from_dtype,
                              int64_t count) {
    DR_TRY(check_stored(from_dtype));
    return move(backend, false, to, to_dtype, from, from_dtype, count);
}

dr_status dr_cuda_upload(dr_backend *backend, void *to, const void *from, dr_dtype from_dtype, int64_t count) {
    return move(backend, true, to, DR_F32, from, from_dtype, count);
}

dr_status dr_cuda_download(dr_backend *backend, void *to, dr_dtype to_dtype, const void *from, int64_t count) {
    return move(backend, false, to, to_dtype, from, DR_F32, count);
}

dr_status dr_cuda_copy(dr_backend *backend, void *to, const void *from, size_t bytes) {
    int before;
    DR_TRY(dr_cuda_enter(backend, &before));
    dr_status status = dr_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, dr_cuda_of(backend)->stream.at),
                                     "copying within the GPU's memory");
    dr_cuda_leave(before);
    return status;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------------ */

/* As it is; waits, so that from may change and to is there. */
static dr_status move_bytes(dr_backend *backend, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    int before;
    if (bytes == 0) return DR_OK;
    DR_TRY(dr_cuda_enter(backend, &before));
    const dr_status status = copy(dr_cuda_of(backend), to, from, bytes, kind);
    dr_cuda_leave(before);
    return status;
}

dr_status dr_cuda_put_and_wait(dr_backend *backend, void *to, const void *from, size_t bytes) {
    return move_bytes(backend, to, from, bytes, cudaMemcpyHostToDevice);
}

dr_status dr_cuda_get(dr_backend *backend, void *to, const void *from, size_t bytes) {
    return move_bytes(backend, to, from, bytes, cudaMemcpyDeviceToHost);
}
