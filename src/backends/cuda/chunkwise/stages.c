/* The stages of a forward, of the storage type that the plan names. */
#include "backends/cuda/chunkwise/stages.h"

dr_status dr_cuda_chunk_begin_early(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors, const float *initial,
                                    void *o, float *final, void *saved, bool never, dr_cuda_stream stream) {
    if (!plan->early.parts) return DR_OK;
    return dr_cuda_chunk_begin_early_bf16(plan, tensors, initial, o, final, saved, never, stream);
}

dr_status dr_cuda_chunk_prepare(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors, dr_cuda_stream stream) {
    if (plan->linear || plan->one_pass) return DR_OK;
    if (plan->storage == DR_BF16) return dr_cuda_chunk_prepare_bf16(plan, tensors, stream);
    return dr_cuda_chunk_prepare_float32(plan, tensors, stream);
}

dr_status dr_cuda_chunk_scan(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors, const float *initial,
                             void *o, float *final, void *saved, dr_cuda_stream stream) {
    if (plan->storage == DR_BF16) return dr_cuda_chunk_scan_bf16(plan, tensors, initial, o, final, saved, stream);
    return dr_cuda_chunk_scan_float32(plan, tensors, initial, o, final, saved, stream);
}
