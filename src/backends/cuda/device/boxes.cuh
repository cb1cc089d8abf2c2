/* Boxes of a tensor that the copy unit of sm_90 moves between global and shared memory, for one thread that asks: 64 tokens of
 * one head, 64 channels of 16 bits, in a tile of fragments.cuh. No register sees them, and of what loads and stores of threads
 * pass through they take nothing. What of a box lies outside of the tensor comes as zeros and is not stored. */
#ifndef DR_CUDA_BOXES_CUH
#define DR_CUDA_BOXES_CUH

#include "backends/cuda/cuda.h"
#include "backends/cuda/device/bulk.cuh"

#include <cuda.h>

/* How a tensor lies in memory; a kernel has it as a parameter. */
typedef struct {
    CUtensorMap map;
} dr_boxes;

typedef CUresult (*dr_boxes_encoder)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                     const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                     CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static inline dr_boxes_encoder dr_boxes_find_encoder() {
    void *found = NULL;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? (dr_boxes_encoder)found : NULL;
}

/* at: [sequences][tokens][heads][channels] of 16 bits, at 16 bytes like every row of channels; token, head: bytes from one to
 * the next. DR_ERROR_DEVICE where the driver does not take it. */
static inline dr_status dr_boxes_make(dr_boxes *boxes, const void *at, int channels, int heads, int64_t tokens,
                                      int64_t sequences, int64_t token, int64_t head) {
    static const dr_boxes_encoder encode = dr_boxes_find_encoder();
    if (!encode)
        return dr_fail(DR_ERROR_DEVICE, "the driver cannot describe tensors to the GPU: version 12.0 is the first that can");
    const cuuint64_t sizes[] = {(cuuint64_t)channels, (cuuint64_t)heads, (cuuint64_t)tokens, (cuuint64_t)sequences};
    const cuuint64_t strides[] = {(cuuint64_t)head, (cuuint64_t)token, (cuuint64_t)(tokens * token)};
    const cuuint32_t box[] = {64, 1, 64, 1}, each[] = {1, 1, 1, 1};
    const CUresult error = encode(&boxes->map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, (void *)at, sizes, strides, box, each,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (error == CUDA_SUCCESS) return DR_OK;
    return dr_fail(DR_ERROR_DEVICE, "the driver does not describe a tensor of %d channels, %d heads, %lld tokens (error %d)",
                   channels, heads, (long long)tokens, (int)error);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* The box that begins at a channel, 128 bytes of each row, to a tile, 8192 bytes at a multiple of 1024. They count towards the
 * gate's turn: dr_mbarrier_promise (bulk.cuh), behind it. */
static __device__ inline void dr_boxes_load(const dr_boxes &boxes, unsigned tile, unsigned gate, int channel, int head,
                                            int token, int sequence) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(
            tile),
        "l"(&boxes.map), "r"(channel), "r"(head), "r"(token), "r"(sequence), "r"(gate)
        : "memory");
}

/* The box comes to the second-level cache. */
static __device__ inline void dr_boxes_expect(const dr_boxes &boxes, int channel, int head, int token, int sequence) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(&boxes.map), "r"(channel),
                 "r"(head), "r"(token), "r"(sequence)
                 : "memory");
}

/* A tile to the tensor. Whoever wrote it has passed dr_shared_fence and met this thread since. */
static __device__ inline void dr_boxes_store(const dr_boxes &boxes, unsigned tile, int channel, int head, int token,
                                             int sequence) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];\n"
                 "cp.async.bulk.commit_group;" ::"l"(&boxes.map),
                 "r"(channel), "r"(head), "r"(token), "r"(sequence), "r"(tile)
                 : "memory");
}

/* Until all tiles that this thread stores are read. */
static __device__ inline void dr_boxes_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

#endif
#endif
