/* Operands that the matrix units of sm_90a read from shared memory by themselves, as their products are told of them
 * (warpgroup.cuh). */
#ifndef DR_CUDA_OPERAND_CUH
#define DR_CUDA_OPERAND_CUH

#include <stdint.h>

/* Where operand B begins in a tile of fragments.cuh (16 bits, so the 128-byte swizzle): at a multiple of 1024 bytes or, within
 * a row, of 32. leading: bytes from one box of 64 columns to the next, where B's columns are those of the tile. */
static __device__ inline uint64_t dr_group_operand(unsigned address, unsigned leading) {
    return (uint64_t)(address >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* The operand so many bytes on. */
static __device__ inline uint64_t dr_group_forward(uint64_t b, unsigned bytes) {
    return (b & 0xffffffff00000000u) | ((unsigned)b + (bytes >> 4));
}

/* The same number, of which the compiler then knows that the warp has one: addresses made of it stay in registers of the warp,
 * where products want them. */
static __device__ inline int dr_same_in_warp(int x) {
    return __shfl_sync(0xffffffffu, x, 0);
}

#endif
