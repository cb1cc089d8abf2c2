#include "backends/cuda/chunkwise/launch.cuh"
#include "backends/cuda/chunkwise/stages.h"

DR_CHUNKWISE_KERNELS(__nv_bfloat16, bf16)

dr_status dr_cuda_chunk_begin_early_bf16(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors,
                                         const float *initial, void *o, float *final, void *saved, bool never,
                                         dr_cuda_stream stream) {
    const dr_scan_call call = dr_scan_call_of<__nv_bfloat16>(plan, tensors, initial, o, final, saved);
    DR_TRY(dr_launch_find_early<__nv_bfloat16>(call, never, stream));
    if (never) return DR_OK;
    return dr_launch_one_pass<__nv_bfloat16>(call, stream);
}
