/* What stands for a GPU where a kernel is compiled as C++ for the host: one thread block at a time, its threads as fibers of
 * one thread of the processor, and the functions that CUDA has for kernels, as far as the kernels under test call them. The
 * headers in backends/cuda/device do the same for the project's own instructions. Arithmetic is that of float on the host, and
 * sums of matrix products are taken in order: results have the GPU's rounding errors, not its bits.
 *
 * Threads take turns only where they wait, and copies and products that a GPU makes on its own are made at once or as late
 * as a kernel allows (grid_manner). Whatever cannot be on a GPU ends the program with a sentence: an address outside of shared
 * memory, lanes of a warp that do different things, threads that wait for one another, products that nobody waits for. */
#ifndef DR_TESTS_CUDA_EMULATED_BLOCK_H
#define DR_TESTS_CUDA_EMULATED_BLOCK_H

#include "base/half.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <functional>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <vector_functions.h>

/* ---- a grid ------------------------------------------------------------------------------------------------------------- */

/* How the next grids run. */
typedef struct {
    unsigned seed;      /* of the order in which threads take their turns and of the rests that warps take: any of odd seeds,
                           some nearly always of even ones; 0: as they are numbered, and none */
    bool late;          /* copies are made when their thread waits for them or nothing else can go on, products when their warp
                           waits for them; else both when they are asked for */
    unsigned char fill; /* every byte of shared memory and of the threads' stacks before a block begins */
} grid_manner;
extern grid_manner manner;

/* Blocks one after another, each thread of them through the kernel. */
void grid_run(unsigned blocks, unsigned threads, const std::function<void()> &kernel);

[[noreturn]] void grid_fail(const char *sentence);

/* ---- what a kernel says of itself --------------------------------------------------------------------------------------- */

extern uint3 thread_index, block_index, block_count, block_size;
#define threadIdx thread_index
#define blockIdx  block_index
#define gridDim   block_count
#define blockDim  block_size

#undef __grid_constant__
#undef __builtin_assume
#undef __launch_bounds__
#undef __shared__
#undef __align__
#define __grid_constant__
#define __builtin_assume(...)
#define __launch_bounds__(...)
#define __shared__       thread_local /* one for all fibers, which are one thread; it may stand behind extern, too */
#define __align__(bytes) __attribute__((aligned(bytes)))

/* ---- shared memory ------------------------------------------------------------------------------------------------------ */

/* Its addresses begin at SHARED_BEGIN, a multiple of 1024 as on the GPU. */
enum { SHARED_BEGIN = 1024, SHARED_SIZE = 227 * 1024 };
extern thread_local char shared[SHARED_SIZE]; /* by the name under which kernels declare it */

char *shared_at(unsigned address, unsigned bytes);

static inline size_t __cvta_generic_to_shared(const void *at) {
    return (size_t)((const char *)at - shared) + SHARED_BEGIN;
}

static inline void *__cvta_shared_to_generic(size_t address) {
    return shared_at((unsigned)address, 1);
}

/* ---- threads that wait for one another ---------------------------------------------------------------------------------- */

/* What the lanes of a warp do together: all have to ask for the same. */
typedef enum {
    WARP_SYNC,
    WARP_SHUFFLE,
    WARP_BALLOT,
    WARP_LOAD,
    WARP_LOAD_TRANSPOSED,
    WARP_STORE,
    WARP_STORE_TRANSPOSED,
    WARP_MULTIPLY,
    WARP_MULTIPLY_BF16,
    WARP_MULTIPLY_TF32,
    WARP_COMMIT,
    WARP_WAIT
} warp_task;

/* Waits for all lanes; the last one runs `together` on what each brought, by lane. */
void warp_meet(warp_task task, void *mine, const std::function<void(void **)> &together);

void block_barrier(unsigned barrier, unsigned threads);

/* Barriers in shared memory (device/warpgroup.cuh). */
void gate_open(unsigned gate, int arrivals);
void gate_arrive(unsigned gate);
void gate_arrive_copied(unsigned gate);
void gate_wait(unsigned gate, unsigned turn);

static inline void __syncthreads() {
    block_barrier(0, blockDim.x);
}

static inline void __barrier_sync_count(unsigned barrier, unsigned threads) {
    block_barrier(barrier, threads);
}

static inline void __syncwarp() {
    warp_meet(WARP_SYNC, NULL, nullptr);
}

/* ---- what warps do ------------------------------------------------------------------------------------------------------ */

uint32_t warp_shuffle(uint32_t mask, uint32_t x, int from);
uint32_t __ballot_sync(uint32_t mask, int x);

static inline int __all_sync(uint32_t mask, int x) {
    return __ballot_sync(mask, x) == 0xffffffffu;
}

/* a word of each lane after another */
template <typename T> static inline T shuffle_from(uint32_t mask, T x, int from) {
    static_assert(sizeof(T) % sizeof(uint32_t) == 0, "whole words");
    uint32_t words[sizeof(T) / sizeof(uint32_t)];
    memcpy(words, &x, sizeof words);
    for (uint32_t &word : words) word = warp_shuffle(mask, word, from);
    memcpy(&x, words, sizeof words);
    return x;
}

template <typename T> static inline T __shfl_sync(uint32_t mask, T x, int lane) {
    return shuffle_from(mask, x, lane % 32);
}

template <typename T> static inline T __shfl_xor_sync(uint32_t mask, T x, int bits) {
    return shuffle_from(mask, x, (int)(threadIdx.x % 32) ^ bits);
}

template <typename T> static inline T __shfl_up_sync(uint32_t mask, T x, int lanes) {
    return shuffle_from(mask, x, (int)(threadIdx.x % 32) - lanes);
}

template <typename T> static inline T __shfl_down_sync(uint32_t mask, T x, int lanes) {
    return shuffle_from(mask, x, (int)(threadIdx.x % 32) + lanes);
}

/* Four 8 x 8 matrices of 16 bits (device/instructions.cuh). */
void warp_matrices(unsigned (&x)[4], unsigned address, bool load, bool transposed);

/* C [64 x 8 columns] (+)= A [64 x 16] B [16 x 8 columns] of a warp group, by each of its warps (device/warpgroup.cuh). a: A in
 * registers, or NULL: it is the tile a_tile, turned or not. tf32: A [64 x 8] and B [8 x 8 columns] are floats, of which the
 * last 13 bits are cut. */
void group_multiply(float (*c)[4], int columns, const unsigned *a, uint64_t a_tile, bool turned, uint64_t b, bool along,
                    bool add, bool tf32 = false);
void group_commit();
void group_wait(int unfinished);

/* C [16 x 8] += A [16 x 16] B [16 x 8] of a warp in bf16 or, for tf32, A [16 x 8] B [8 x 8] of floats whose last 13 bits are
 * cut (device/instructions.cuh). */
void warp_multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bool tf32);

/* ---- what threads do ---------------------------------------------------------------------------------------------------- */

/* Makes a copy now or as late as may be. */
void copy_later(const std::function<void()> &make);
/* One to shared memory, or zeros. */
void copy_ask(unsigned to, const void *from, unsigned bytes, bool valid);
/* All that this thread has asked for. */
void copy_wait();

static inline uint32_t __float_as_uint(float x) {
    return dr_float_bits(x);
}

static inline float __uint_as_float(uint32_t bits) {
    return dr_float_of_bits(bits);
}

static inline float __fmul_rn(float x, float y) {
    return x * y;
}

static inline float __fsub_rn(float x, float y) {
    return x - y;
}

static inline unsigned atomicAdd(unsigned *to, unsigned x) {
    const unsigned before = *to;
    *to += x;
    return before;
}

static inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}

static inline int __ffs(int x) {
    return __builtin_ffs(x);
}

static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t both = (uint64_t)y << 32 | x;
    unsigned chosen = 0;
    for (int i = 0; i < 4; i++) chosen |= (unsigned)(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return chosen;
}

template <typename T> static inline T __ldg(const T *from) {
    return *from;
}

template <typename T> static inline T __ldcg(const T *from) {
    return *from;
}

template <typename T> static inline void __stwb(T *to, T x) {
    *to = x;
}

#endif
