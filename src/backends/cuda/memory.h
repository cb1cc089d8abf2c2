/* Memory of the GPU and moves between it and the host: entries of the table of operations. */
#ifndef DR_CUDA_MEMORY_H
#define DR_CUDA_MEMORY_H

#include "backends/cuda/cuda.h"

dr_status dr_cuda_allocate(dr_backend *backend, size_t bytes, void **memory);
void dr_cuda_free(dr_backend *backend, void *memory);
int64_t dr_cuda_available(dr_backend *backend);
void dr_cuda_zero(dr_backend *backend, void *memory, size_t bytes);
dr_status dr_cuda_upload(dr_backend *backend, void *to, const void *from, dr_dtype from_dtype, int64_t count);
dr_status dr_cuda_download(dr_backend *backend, void *to, dr_dtype to_dtype, const void *from, int64_t count);
dr_status dr_cuda_upload_as(dr_backend *backend, void *to, dr_dtype to_dtype, const void *from, dr_dtype from_dtype,
                            int64_t count);
dr_status dr_cuda_download_as(dr_backend *backend, void *to, dr_dtype to_dtype, const void *from, dr_dtype from_dtype,
                              int64_t count);
dr_status dr_cuda_copy(dr_backend *backend, void *to, const void *from, size_t bytes);
dr_status dr_cuda_put_and_wait(dr_backend *backend, void *to, const void *from, size_t bytes); /* small ones: transfer.h */
dr_status dr_cuda_get(dr_backend *backend, void *to, const void *from, size_t bytes);

#endif
