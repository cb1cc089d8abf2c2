/* Copies of whole blocks of memory from global to shared memory that one thread asks for and no register sees, and the
 * barriers in shared memory that tell when they are done: instructions of sm_90, beside those of instructions.cuh. */
#ifndef DR_CUDA_BULK_CUH
#define DR_CUDA_BULK_CUH

#include "backends/cuda/device/instructions.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* A barrier, 8 bytes of shared memory, whose phase ends when so many arrivals, and the bytes that were promised, have come. */
static __device__ inline void dr_mbarrier_create(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/* Makes barriers that this thread created visible to the copies. */
static __device__ inline void dr_mbarrier_publish() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ inline void dr_mbarrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

static __device__ inline void dr_mbarrier_promise(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/* Waits until the phase of that parity has ended: the first has parity 0; before any has ended, parity 1 passes. */
static __device__ inline void dr_mbarrier_wait(unsigned barrier, unsigned parity) {
    unsigned done;
    do
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    while (!done);
}

/* What a copy says of its memory to the second-level cache: nothing that other loads would not say. */
static __device__ inline uint64_t dr_bulk_ordinary() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* bytes, a multiple of 16 like both addresses; they count towards the barrier's phase. */
static __device__ inline void dr_bulk_load(unsigned to, const void *from, unsigned bytes, unsigned barrier, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
}

/* The other way; whoever wrote them has passed dr_shared_fence and met this thread since. */
static __device__ inline void dr_bulk_store(void *to, unsigned from, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to),
                 "r"(from), "r"(bytes)
                 : "memory");
}

/* Until all that this thread stores by such copies, or by those of boxes.cuh, is in memory. */
static __device__ inline void dr_bulk_wait() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Asks the second-level cache for bytes that will be loaded soon, a multiple of 16 like the address. */
static __device__ inline void dr_bulk_prefetch(const void *from, unsigned bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

#endif
#endif
