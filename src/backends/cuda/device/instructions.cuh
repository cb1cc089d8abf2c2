/* The instructions that C has no name for: matrix products of a warp, loads of their operands from shared memory, copies to
 * shared memory that do not pass through registers. All of them exist from sm_80 on. Nothing else in the backend is written in
 * assembly, and nothing here computes an address. */
#ifndef DR_CUDA_INSTRUCTIONS_CUH
#define DR_CUDA_INSTRUCTIONS_CUH

#include <cuda_bf16.h>
#include <stdint.h>

/* Bytes from the start of the block's shared memory, as the instructions below take it. */
static __device__ inline unsigned dr_shared_address(const void *pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

/* Four 8 x 8 matrices of 16 bits: lane l gives the address of row l % 8 of matrix l / 8, 16 bytes. Lane l gets elements
 * (l / 4, 2 (l % 4)) and the one right of it; transposed: (2 (l % 4), l / 4) and the one below. */
static __device__ inline void dr_load_matrices(unsigned (&to)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

static __device__ inline void dr_load_matrices_transposed(unsigned (&to)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

/* An 8 x 8 matrix of 16 bits that the warp holds as above, transposed. */
static __device__ inline unsigned dr_transpose_matrix(unsigned x) {
    unsigned y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

static __device__ inline float dr_load_shared(unsigned address) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
    return x;
}

static __device__ inline float2 dr_load_shared2(unsigned address) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
    return x;
}

/* By one access, where the compiler would make four. */
static __device__ inline void dr_store_shared4(unsigned address, const float (&x)[4]) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
}

/* Who sees what this thread writes behind it, on the whole GPU, sees also what it has written or seen before. */
static __device__ inline void dr_fence_device() {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

/* 2^x, log2 x and 1/x good to 2^-22; denormal numbers are 0. */
static __device__ inline float dr_exp2_near(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ inline float dr_log2_near(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ inline float dr_reciprocal_near(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The larger of two magnitudes; none where one is none. */
static __device__ inline float dr_larger(float x, float y) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(fabsf(x)), "f"(fabsf(y)));
    return larger;
}

/* C [16 x 8] += A [16 x 16] B [16 x 8] and, for tf32, A [16 x 8] B [8 x 8]. Lane l, g = l / 4, t = l % 4:
 *     C    (g, 2t) (g, 2t+1) (g+8, 2t) (g+8, 2t+1)
 *     A    (g, 2t..) (g+8, 2t..) (g, 2t+8..) (g+8, 2t+8..) in pairs; tf32: (g, t) (g+8, t) (g, t+4) (g+8, t+4)
 *     B    (2t.., g) (2t+8.., g); tf32: (t, g) (t+4, g)
 * Of a tf32 operand the last 13 bits of a float are not read. */
static __device__ inline void dr_multiply(__nv_bfloat16, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
                 "%2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ inline void dr_multiply_tf32(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
                 "%2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Asks for the line of 128 bytes at an address, up to the second-level cache. What another kernel writes there is not missed.
 */
static __device__ inline void dr_prefetch(const void *line) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

/* The same number, of which the compiler does not know where it came from: so it computes anew, in each turn of a loop, what
 * follows from it, instead of keeping dozens of addresses in registers. */
static __device__ inline unsigned dr_forget(unsigned x) {
    asm volatile("" : "+r"(x));
    return x;
}

/* 16 bytes, both addresses multiples of 16; zeros if not valid, and then `from` is not read. */
static __device__ inline void dr_copy_async(unsigned to, const void *from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

/* The same where there is nothing to ask: constants added to the addresses cost nothing. */
static __device__ inline void dr_copy_whole(unsigned to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* 4 bytes. */
static __device__ inline void dr_copy_word(unsigned to, const void *from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0) : "memory");
}

/* The copies asked for since the last commit are a group; waiting leaves at most that many groups of this thread unfinished. */
static __device__ inline void dr_copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int unfinished> static __device__ inline void dr_copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(unfinished) : "memory");
}

#endif
