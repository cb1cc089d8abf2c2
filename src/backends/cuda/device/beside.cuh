/* A kernel that runs beside the one that makes what it takes, on multiprocessors that the maker leaves to it (sm_90).
 *
 *     maker    every block: flags := 0, dr_beside_open       then, whenever something is made: dr_flag_raise
 *     taker    dr_flags_look before what it takes            at its end, in one block or in all: dr_beside_close
 *
 * The taker is launched by dr_cuda_launch_when: its blocks begin when all blocks of the maker have opened or ended. Those that
 * have opened are on the multiprocessors and wait at most for what others of them have begun, so that everything that the taker
 * waits for comes, whatever else runs on the GPU. A tool that runs kernels one after another lets the maker end first, and all
 * flags are raised. A block that closes ends no sooner than the maker does: so what follows the taker in the stream follows
 * both.
 *
 * Kernels in a row that may find that there is nothing to do are launched so, too: each begins when all blocks of the one
 * before it have opened or ended, and a block that has something to do closes before it takes what that one makes. The first
 * block of the last one ends behind a count to which all blocks of the first one add (dr_count_add): what follows in the stream
 * follows them all, and none of those between has to wait.
 *
 * What is made is written by ordinary stores of threads that then meet at a barrier; one of them raises the flag (a release of
 * what they wrote, on the whole GPU). A lane of every warp that loads it has seen the flag itself (an acquire), and it is
 * loaded past the first-level cache. A warp looks at many flags at once: a trip to the second-level cache before each chunk is
 * nearly as long as a chunk of the scan. A flag is raised by the block that set it to 0, or a kernel before the maker lowers
 * all: then the maker is launched beside that one, too, and closes (waits for its end) before it opens. */
#ifndef DR_CUDA_BESIDE_CUH
#define DR_CUDA_BESIDE_CUH

#include "backends/cuda/device/instructions.cuh"

static __device__ inline void dr_flag_raise(unsigned *flag) {
    asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
}

/* A warp: how many of `count` flags so many elements apart, and of the first 32, are raised without a gap. */
static __device__ inline int dr_flags_look(const unsigned *flags, int apart, int count) {
    const int lane = (int)(threadIdx.x % 32);
    unsigned mine = 0;
    if (lane < count)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(mine) : "l"(flags + (int64_t)lane * apart) : "memory");
    const unsigned raised = __ballot_sync(0xffffffffu, mine != 0);
    __syncwarp(); /* what one lane has acquired all of them may load */
    return raised == 0xffffffffu ? 32 : __ffs((int)~raised) - 1;
}

/* The same with a count to which several blocks add, a thread of each behind a barrier. */
static __device__ inline void dr_count_add(unsigned *count, unsigned made) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(count), "r"(made) : "memory");
}

/* A thread: waits until the count is `enough`. */
static __device__ inline void dr_count_await(const unsigned *count, unsigned enough) {
    unsigned made;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(made) : "l"(count) : "memory");
    while (made < enough);
}

/* All threads of a block, which opens so: of what it wrote the taker's blocks see what dr_fence_device has fenced. */
static __device__ inline void dr_beside_admit() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* The same; all that they wrote before is seen by the taker's blocks. */
static __device__ inline void dr_beside_open() {
    dr_fence_device();
    __syncthreads();
    dr_beside_admit();
}

static __device__ inline void dr_beside_close() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Kernels one behind the other, each of which has ended before the next one goes on from here: what launching the next takes,
 * and what comes before this in it, is hidden. All blocks come here before they end; what lies two kernels back has ended when
 * a block begins. */
static __device__ inline void dr_chain() {
    dr_beside_close();
    dr_beside_admit();
}

#endif
