/* Thread blocks of a cluster run at the same time and store to one another's shared memory, where a barrier counts what has
 * come (bulk.cuh). Instructions of sm_90: kernels that have them are launched nowhere else. */
#ifndef DR_CUDA_CLUSTER_CUH
#define DR_CUDA_CLUSTER_CUH

#include "backends/cuda/device/bulk.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* Says of a kernel how many blocks a cluster has. */
#define DR_CLUSTER_OF(blocks) __cluster_dims__(blocks, 1, 1)

/* By all threads: the block's barrier, 8 bytes of shared memory, is to count so many bytes. */
static __device__ inline void dr_cluster_open(unsigned barrier, unsigned bytes) {
    if (threadIdx.x == 0) {
        dr_mbarrier_create(barrier, 1);
        dr_mbarrier_publish();
    }
    __syncwarp(); /* the warp creates it as one, which would look like a race with the promise */
    if (threadIdx.x == 0) dr_mbarrier_promise(barrier, bytes);
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/* By all threads: waits until every block has opened its barrier. */
static __device__ inline void dr_cluster_join() {
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

/* x to that place in the shared memory of block `rank`, whose barrier gets the four bytes. */
static __device__ inline void dr_cluster_put(unsigned address, unsigned barrier, unsigned rank, float x) {
    unsigned there, told;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(told) : "r"(barrier), "r"(rank));
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(there), "f"(x),
                 "r"(told)
                 : "memory");
}

/* Waits until all bytes have come. A block does not end before. */
static __device__ inline void dr_cluster_await(unsigned barrier) {
    dr_mbarrier_wait(barrier, 0);
}

#else

#define DR_CLUSTER_OF(blocks)

static __device__ inline void dr_cluster_open(unsigned, unsigned) {}
static __device__ inline void dr_cluster_join() {}
static __device__ inline void dr_cluster_put(unsigned, unsigned, unsigned, float) {}
static __device__ inline void dr_cluster_await(unsigned) {}

#endif
#endif
