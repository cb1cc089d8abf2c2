/* The stages of a chunkwise forward, and those of each storage type, whose kernels are a file of their own. */
#ifndef DR_CUDA_CHUNKWISE_KERNELS_H
#define DR_CUDA_CHUNKWISE_KERNELS_H

#include "backends/cuda/plan/chunkwise.h"

#ifdef __cplusplus
extern "C" {
#endif

/* With plan.early, before prepare and behind what comes before the diagonal scan: finds how early parts begin, and makes all
 * that prepare and scan would of the sequences whose every part may; these then pass them over. Arguments as below. never: of
 * none, and then what comes goes without tensors.early. */
dr_status dr_cuda_chunk_begin_early(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors, const float *initial,
                                    void *o, float *final, void *saved, bool never, dr_cuda_stream stream);

/* Whether inputs and outputs lie as boxes can (device/boxes.cuh), which one kernel for both stages moves by one thread. */
static inline bool dr_cuda_chunk_boxed(const dr_cuda_chunk_plan *plan, const void *o) {
    return plan->rows.aligned && (uintptr_t)o % 16 == 0;
}

/* plan->rows with inputs and the results of the diagonal scan (rows.h); fills exit .. keep. */
dr_status dr_cuda_chunk_prepare(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors, dr_cuda_stream stream);

/* initial, final [sequences][HV][K][V] float or NULL; o [tokens][HV][V] T; saved as above or NULL. initial may be final. */
dr_status dr_cuda_chunk_scan(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors, const float *initial,
                             void *o, float *final, void *saved, dr_cuda_stream stream);

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
