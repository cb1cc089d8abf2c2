/* What pad.h says: a thread block for each sequence, and one for what lies between tensors. */
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/plan/pad.h"

enum { PAD_THREADS = 256 };

static __global__ void __launch_bounds__(PAD_THREADS) pad_saved(const __grid_constant__ dr_cuda_saved_pad pad) {
    if (blockIdx.x == 0) {
        for (int i = 0; i < pad.gaps; i++)
            if ((int)threadIdx.x < pad.gap[i].bytes) pad.gap[i].at[threadIdx.x] = 0;
        return;
    }
    const int64_t sequence = (int64_t)blockIdx.x - 1, begin = pad.cu[sequence], end = pad.cu[sequence + 1];
    const int64_t used = begin / pad.chunk + sequence + (end - begin + pad.chunk - 1) / pad.chunk;
    const int64_t next = sequence + 1 < pad.sequences ? end / pad.chunk + sequence + 1 : pad.slots;
    for (int i = 0; i < pad.parts; i++)
        for (int64_t k = used * pad.part[i].each + threadIdx.x; k < next * pad.part[i].each; k += PAD_THREADS)
            pad.part[i].at[k] = 0;
}

void dr_cuda_pad_whole(dr_cuda_saved_pad *pad, void *at, size_t bytes) {
    const size_t over = bytes % DR_CUDA_SAVED_ALIGNMENT;
    if (!at || over == 0) return;
    pad->gap[pad->gaps].at = (char *)at + bytes;
    pad->gap[pad->gaps++].bytes = (int32_t)(DR_CUDA_SAVED_ALIGNMENT - over);
}

void dr_cuda_pad_slots(dr_cuda_saved_pad *pad, void *at, size_t each) {
    if (!at) return;
    pad->part[pad->parts].at = (uint32_t *)at;
    pad->part[pad->parts++].each = (int64_t)(each / sizeof(uint32_t));
    dr_cuda_pad_whole(pad, at, each * (size_t)pad->slots);
}

dr_status dr_cuda_pad(const dr_cuda_saved_pad *pad, dr_cuda_stream stream) {
    if (!pad->gaps && !pad->cu) return DR_OK;
    return dr_cuda_launch("pad_saved", pad_saved, {1 + (pad->cu ? pad->sequences : 0)}, PAD_THREADS, 0, stream, *pad);
}
