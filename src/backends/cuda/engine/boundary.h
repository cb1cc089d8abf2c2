/* Taking a state out of what the chunkwise forward saved. */
#ifndef DR_CUDA_BOUNDARY_H
#define DR_CUDA_BOUNDARY_H

#include "backends/cuda/plan/chunkwise.h"

#ifdef __cplusplus
extern "C" {
#endif

/* to [HV, K, V] from the states before the chunk in that slot; of float storage only. */
dr_status dr_cuda_boundary_copy(const dr_cuda *gpu, const dr_cuda_chunk_plan *plan, const void *saved, int64_t slot, float *to);

#ifdef __cplusplus
}
#endif
#endif
