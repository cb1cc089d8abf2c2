/* Where sequences begin: told by the host, brought to the device by kernels that carry the numbers in their arguments; or told
 * on the device. */
#include "backends/cuda/device/launch.cuh"

/* 4 KB of arguments are allowed on every device. */
enum { CARRIED = 480 };

typedef struct {
    int64_t value[CARRIED];
} carried;

static __global__ void put(const __grid_constant__ carried numbers, int64_t count, int64_t *to) {
    if (threadIdx.x < count) to[threadIdx.x] = numbers.value[threadIdx.x];
}

static __global__ void widen_boundaries(const int32_t *from, int64_t count, int64_t *to) {
    const int64_t i = (int64_t)blockIdx.x * CARRIED + threadIdx.x;
    if (i < count) to[i] = from[i];
}

size_t dr_cuda_layout_bytes(const dr_layout *layout, bool packed) {
    return packed ? (size_t)(layout->sequences + 1) * sizeof(int64_t) : 0;
}

dr_status dr_cuda_layout_put(const dr_cuda *gpu, const dr_layout *layout, const dr_boundaries *boundaries, void *memory,
                             dr_cuda_layout *put_to) {
    const int64_t all = layout->sequences + 1;
    int64_t *offsets = (int64_t *)memory;
    *put_to = dr_cuda_layout{layout->sequences, layout->rows, 0, offsets};
    if (!boundaries->at) {
        put_to->tokens = layout->rows / layout->sequences;
        put_to->offsets = NULL;
        return DR_OK;
    }
    if (boundaries->device && boundaries->dtype == DR_I64) {
        put_to->offsets = (const int64_t *)boundaries->at;
        return DR_OK;
    }
    if (boundaries->device)
        return dr_cuda_launch("widen_boundaries", widen_boundaries, {(all + CARRIED - 1) / CARRIED}, CARRIED, 0, gpu->stream,
                              (const int32_t *)boundaries->at, all, offsets);
    for (int64_t i = 0; i < all; i += CARRIED) {
        carried numbers;
        const int64_t left = all - i, count = left < CARRIED ? left : (int64_t)CARRIED;
        for (int64_t k = 0; k < count; k++) numbers.value[k] = dr_boundaries_at(boundaries, i + k);
        DR_TRY(dr_cuda_launch("put", put, {1}, CARRIED, 0, gpu->stream, numbers, count, offsets + i));
    }
    return DR_OK;
}
