/* Thread blocks of a cluster run at the same time: a barrier for all their threads, and stores to one another's shared memory
 * that a barrier in it counts (bulk.cuh). Instructions of sm_90; elsewhere nothing is launched that has them. */
#ifndef DR_CUDA_CLUSTER_CUH
#define DR_CUDA_CLUSTER_CUH

#include "backends/cuda/device/bulk.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* All threads of a warp, each arrival waited for before the next. What was published before the arrival is there behind the
 * wait; stores are not. */
static __device__ inline void dr_cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

static __device__ inline void dr_cluster_wait() {
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

/* x to that place in the shared memory of block `rank`, which has begun and not ended; its barrier gets the four bytes. */
static __device__ inline void dr_cluster_put(unsigned address, unsigned barrier, unsigned rank, float x) {
    unsigned there, told;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(told) : "r"(barrier), "r"(rank));
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(there), "f"(x),
                 "r"(told)
                 : "memory");
}

#endif
#endif
