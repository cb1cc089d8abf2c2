/* Where sequences begin, brought to the device by kernels that carry the numbers in their arguments. */
#include "backends/cuda/device/launch.cuh"

/* 4 KB of arguments are allowed on every device. */
enum { CARRIED = 480 };

typedef struct {
    int64_t value[CARRIED];
} carried;

static __global__ void put(const __grid_constant__ carried numbers, int64_t count, int64_t *to) {
    if (threadIdx.x < count) to[threadIdx.x] = numbers.value[threadIdx.x];
}

size_t dr_cuda_layout_bytes(const dr_layout *layout) {
    return layout->cu_seqlens ? (size_t)(layout->sequences + 1) * sizeof(int64_t) : 0;
}

dr_status dr_cuda_layout_put(const dr_cuda *gpu, const dr_layout *layout, void *memory, dr_cuda_layout *put_to) {
    *put_to = dr_cuda_layout{layout->sequences, layout->rows, 0, NULL};
    if (!layout->cu_seqlens) {
        put_to->tokens = layout->rows / layout->sequences;
        return DR_OK;
    }
    int64_t *offsets = (int64_t *)memory;
    for (int64_t i = 0; i <= layout->sequences; i += CARRIED) {
        carried numbers;
        const int64_t left = layout->sequences + 1 - i, count = left < CARRIED ? left : (int64_t)CARRIED;
        memcpy(numbers.value, layout->cu_seqlens + i, (size_t)count * sizeof(int64_t));
        DR_TRY(dr_cuda_launch("put", put, {1}, CARRIED, 0, gpu->stream, numbers, count, offsets + i));
    }
    put_to->offsets = offsets;
    return DR_OK;
}
