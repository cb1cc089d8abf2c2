/* Thread blocks of a cluster run at the same time: a barrier for all their threads, and stores to one another's shared memory.
 * Instructions of sm_90, beside those of instructions.cuh. */
#ifndef DR_CUDA_CLUSTER_CUH
#define DR_CUDA_CLUSTER_CUH

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* What a thread wrote before it arrived, to whichever block's memory, is seen by those that have waited; all threads of a warp,
 * each arrival waited for before the next. */
static __device__ inline void dr_cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

static __device__ inline void dr_cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* x to that place in the shared memory of block `rank`, which has begun and not ended. */
static __device__ inline void dr_cluster_put(unsigned address, unsigned rank, float x) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(x) : "memory");
}

#endif
#endif
