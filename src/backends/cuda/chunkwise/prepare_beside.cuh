/* Prepare beside the scan, on sm_90a for 16-bit types: where the scan has fewer blocks than there are multiprocessors, prepare
 * goes on on the others while the scan takes what is made (device/beside.cuh).
 *
 * A thread block has a multiprocessor to itself: four groups of four warps, with a decay of each channel two or, of two rows a
 * token or with the diagonal scan, three. They make a chunk of a value head each and meet nobody. Chunks are made in the
 * order in which the scan takes them. All multiprocessors take part in the first rounds; then the scan gets those that it
 * needs. Which group makes what follows from the plan alone; but where the chunk before makes what a chunk needs
 * (plan.scan_inside) each takes the next that nobody has, so that none waits for one that no running block has. */
#ifndef DR_CUDA_PREPARE_BESIDE_CUH
#define DR_CUDA_PREPARE_BESIDE_CUH

#include "backends/cuda/chunkwise/prepare_channel.cuh"
#include "backends/cuda/device/beside.cuh"

/* Bytes of a group; tiles begin at multiples of 1024. */
static __host__ __device__ inline int dr_beside_bytes(const dr_prepare_call &call) {
    return (call.facts.room.bytes + 1023) / 1024 * 1024;
}

#ifdef DR_CUDA_WARPGROUPS

/* What the calling group makes in a round, as an index in the scan's order; behind all blocks: nothing any more. */
template <int groups> static __device__ inline unsigned dr_beside_index(const dr_cuda_beside &beside, unsigned round) {
    const unsigned group = threadIdx.x / PREPARE_THREADS, rounds = (unsigned)beside.rounds;
    const unsigned stay = (unsigned)beside.processors;
    if (round < rounds) return (round * groups + group) * gridDim.x + blockIdx.x;
    if (blockIdx.x >= stay) return ~0u;
    return rounds * groups * gridDim.x + ((round - rounds) * groups + group) * stay + blockIdx.x;
}

/* Whether the block takes part in a round. */
static __device__ inline bool dr_beside_stays(const dr_cuda_beside &beside, unsigned round) {
    return round < (unsigned)beside.rounds || blockIdx.x < (unsigned)beside.processors;
}

#endif

/* channel: prepare_channel.cuh, with pairs or not, else prepare.cuh. A group takes its next ticket late in the chunk before, so
 * that chunks begin nearly in the order of their tickets: taken when that chunk begins, a group that waits long would begin
 * long after others that wait for it. */
template <typename T, int groups, bool channel, bool pairs, dr_prepare_form form>
static __global__ void __launch_bounds__(groups *PREPARE_THREADS, 1)
    prepare_beside(const __grid_constant__ dr_prepare_call call) {
#ifdef DR_CUDA_WARPGROUPS
    constexpr bool scans = dr_prepare_scans(form), fetched = scans && channel;
    extern __shared__ __align__(1024) char shared[];
    __shared__ unsigned taken[groups];
    __shared__ dr_prepare_block places[fetched ? groups : 1];
    const dr_cuda_beside &beside = call.plan.beside;
    const unsigned blocks = (unsigned)call.plan.blocks, group = threadIdx.x / PREPARE_THREADS;
    const bool first = dr_copy_thread() == 0;
    if (dr_begins_early(call.plan, call.tensors, 0, 0)) return; /* all heads of one sequence then (plan.c) */
    unsigned index;
    if constexpr (scans) {
        dr_beside_close(); /* tickets and flags are there */
        if (first) taken[group] = dr_beside_stays(beside, 0) ? atomicAdd(call.tensors.scan.ticket, 1u) : blocks;
    } else {
        for (unsigned round = (unsigned)dr_copy_thread(); (index = dr_beside_index<groups>(beside, round)) < blocks;
             round += PREPARE_THREADS)
            call.tensors.made[dr_block_number(call.facts.by, dr_block_find(call.facts.by, index, true))] = 0;
    }
    dr_beside_open();
#pragma unroll 1
    for (unsigned round = 0;; round++) {
        index = scans ? taken[group] : dr_beside_index<groups>(beside, dr_forget(round));
        if (index >= blocks) break;
        unsigned next = blocks;
        const auto take = [&] {
            if (scans && first && dr_beside_stays(beside, round + 1)) next = atomicAdd(call.tensors.scan.ticket, 1u);
        };
        /* kept as the warp's, its registers would be lacking where chunks are fetched */
        const int mine =
            fetched ? (int)(dr_forget(threadIdx.x) / PREPARE_THREADS) : dr_same_in_warp((int)(threadIdx.x / PREPARE_THREADS));
        char *own = shared + mine * dr_beside_bytes(call);
        dr_prepare_block held;
        const dr_prepare_block &x = fetched ? places[group] : held; /* fetched where it is wanted, for want of registers */
        if (!fetched) held = dr_prepare_find<true>(call, index, true);
        if (fetched && first) places[group] = dr_prepare_find<true>(call, index, true);
        if (fetched) dr_meet<groups>();
        if constexpr (channel)
            dr_channel_chunk<T, pairs, form, groups>(call, x, own, take);
        else
            dr_prepare_chunk<T, groups, form>(call, x, own, take);
        if (scans && first) taken[group] = next;
        dr_meet<groups>(); /* everything is written, and the tiles are read */
        if (first) dr_flag_raise(call.tensors.made + x.block);
    }
#endif
}

#endif
