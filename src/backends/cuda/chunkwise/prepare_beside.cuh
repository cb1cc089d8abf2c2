/* Prepare beside the scan, on sm_90a for 16-bit types: where the scan has fewer blocks than there are multiprocessors, prepare
 * goes on on the others while the scan takes what is made (device/beside.cuh).
 *
 * A block has a multiprocessor to itself: four groups of four warps, which make a chunk of a value head each and meet nobody.
 * Chunks are made in the scan's order, those of all sequences and heads in turn. All multiprocessors take part in the first
 * rounds; then the scan gets those that it needs. Which group makes what follows from the plan alone. */
#ifndef DR_CUDA_PREPARE_BESIDE_CUH
#define DR_CUDA_PREPARE_BESIDE_CUH

#include "backends/cuda/chunkwise/beside.h"
#include "backends/cuda/chunkwise/prepare.cuh"
#include "backends/cuda/device/beside.cuh"

enum { DR_BESIDE_GROUPS = 4, DR_BESIDE_THREADS = DR_BESIDE_GROUPS * PREPARE_THREADS };

/* Bytes of a group; tiles begin at multiples of 1024. */
static __host__ __device__ inline int dr_beside_bytes(const dr_prepare_call &call) {
    const int bytes = dr_prepare_lay(call.plan, 2, dr_prepare_sums(call.plan, call.tensors)).bytes;
    return (bytes + 1023) / 1024 * 1024;
}

typedef struct {
    dr_prepare_call call;
    dr_cuda_beside beside;
    unsigned *made; /* [blocks] flags */
} dr_beside_call;

#ifdef DR_CUDA_WARPGROUPS

/* The block that is `index`th in the order of the scan; equally long sequences. */
static __device__ inline unsigned dr_beside_block(const dr_cuda_chunk_plan &plan, unsigned index) {
    const unsigned heads = (unsigned)plan.value_heads, sequences = (unsigned)plan.sequences;
    const unsigned chunks = (unsigned)plan.slots / sequences, chunk = index / (sequences * heads);
    const unsigned chain = index - chunk * sequences * heads, sequence = chain / heads;
    return (sequence * chunks + chunk) * heads + (chain - sequence * heads);
}

/* What the calling group makes in a round, as an index in that order; behind all blocks: nothing any more. */
static __device__ inline unsigned dr_beside_index(const dr_beside_call &call, unsigned round) {
    const unsigned group = threadIdx.x / PREPARE_THREADS, rounds = (unsigned)call.beside.rounds;
    const unsigned stay = (unsigned)call.beside.processors;
    if (round < rounds) return (round * DR_BESIDE_GROUPS + group) * gridDim.x + blockIdx.x;
    if (blockIdx.x >= stay) return ~0u;
    return rounds * DR_BESIDE_GROUPS * gridDim.x + ((round - rounds) * DR_BESIDE_GROUPS + group) * stay + blockIdx.x;
}

#endif

template <typename T>
static __global__ void __launch_bounds__(DR_BESIDE_THREADS, 1) prepare_beside(const __grid_constant__ dr_beside_call beside) {
#ifdef DR_CUDA_WARPGROUPS
    extern __shared__ __align__(1024) char shared[];
    const dr_prepare_call &call = beside.call;
    const unsigned blocks = (unsigned)call.plan.blocks;
    unsigned index;
    for (unsigned round = (unsigned)dr_copy_thread(); (index = dr_beside_index(beside, round)) < blocks; round += PREPARE_THREADS)
        beside.made[dr_beside_block(call.plan, index)] = 0;
    dr_beside_open();
#pragma unroll 1
    for (unsigned round = 0; (index = dr_beside_index(beside, dr_forget(round))) < blocks; round++) {
        const unsigned block = dr_beside_block(call.plan, index);
        char *own = shared + dr_forget(threadIdx.x) / PREPARE_THREADS * dr_beside_bytes(call);
        dr_prepare_chunk<T, DR_BESIDE_GROUPS>(call, dr_prepare_find(call, block), own);
        dr_meet<DR_BESIDE_GROUPS>(); /* everything is written, and the tiles are read */
        if (dr_copy_thread() == 0) dr_flag_raise(beside.made + block);
    }
#endif
}

#endif
