/* The chunkwise stages by storage type; each type's kernels are a file of their own. */
#ifndef DR_CUDA_CHUNKWISE_KERNELS_H
#define DR_CUDA_CHUNKWISE_KERNELS_H

#include "backends/cuda/chunkwise/chunkwise.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DR_CHUNKWISE_DECLARE(suffix)                                                                                           \
    dr_status dr_cuda_chunk_prepare_##suffix(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors,             \
                                             dr_cuda_stream stream);                                                           \
    dr_status dr_cuda_chunk_scan_##suffix(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors,                \
                                          const float *initial, void *o, float *final, void *saved, dr_cuda_stream stream)

DR_CHUNKWISE_DECLARE(bf16);
DR_CHUNKWISE_DECLARE(float32);

/* plan.early is of warp groups, which 16 bits have. */
dr_status dr_cuda_chunk_begin_early_bf16(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors,
                                         const float *initial, void *o, float *final, void *saved, bool never,
                                         dr_cuda_stream stream);

#ifdef __cplusplus
}
#endif
#endif
