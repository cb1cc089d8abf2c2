/* What kernels share beside the lanes: storage types, sequences. */
#ifndef DR_CUDA_DEVICE_CUH
#define DR_CUDA_DEVICE_CUH

#include "backends/cuda/cuda.h"
#include "backends/cuda/device/lanes.cuh"

/* Runs the statements with T as the type that a tensor's vectors are stored in. */
#define DR_CUDA_STORAGE(dtype, T, ...)                                                                                         \
    switch (dtype) {                                                                                                           \
    case DR_BF16: {                                                                                                            \
        typedef __nv_bfloat16 T;                                                                                               \
        __VA_ARGS__;                                                                                                           \
        break;                                                                                                                 \
    }                                                                                                                          \
    case DR_F16: {                                                                                                             \
        typedef __half T;                                                                                                      \
        __VA_ARGS__;                                                                                                           \
        break;                                                                                                                 \
    }                                                                                                                          \
    default: {                                                                                                                 \
        typedef float T;                                                                                                       \
        __VA_ARGS__;                                                                                                           \
        break;                                                                                                                 \
    }                                                                                                                          \
    }

/* The same in the chunkwise stages, whose only type of 16 bits is bf16 (widened.h). */
#define DR_CUDA_CHUNK_STORAGE(dtype, T, ...)                                                                                   \
    if ((dtype) == DR_BF16) {                                                                                                  \
        typedef __nv_bfloat16 T;                                                                                               \
        __VA_ARGS__;                                                                                                           \
    } else {                                                                                                                   \
        typedef float T;                                                                                                       \
        __VA_ARGS__;                                                                                                           \
    }

/* With a constant `boxes`: of 64 channels, which plans make of keys (plan/chunkwise.h). */
#define DR_CUDA_KEY_BOXES(key_width, boxes, ...)                                                                               \
    if ((key_width) == 64) {                                                                                                   \
        constexpr int boxes = 1;                                                                                               \
        __VA_ARGS__;                                                                                                           \
    } else if ((key_width) == 128) {                                                                                           \
        constexpr int boxes = 2;                                                                                               \
        __VA_ARGS__;                                                                                                           \
    } else {                                                                                                                   \
        constexpr int boxes = 4;                                                                                               \
        __VA_ARGS__;                                                                                                           \
    }

/* First row of sequence i, for i from 0 to sequences. */
static inline __device__ int64_t sequence_begin(const dr_cuda_layout &layout, int64_t i) {
    return layout.offsets ? layout.offsets[i] : i * layout.tokens;
}

#endif
