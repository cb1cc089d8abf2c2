/* In place of the project's header of that name, which holds instructions of the GPU: the same functions by those of block.h.
 * What the kernels under test do not use ends the program. */
#ifndef DR_CUDA_INSTRUCTIONS_CUH
#define DR_CUDA_INSTRUCTIONS_CUH

#include "block.h"

static inline unsigned dr_shared_address(const void *pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

static inline void dr_load_matrices(unsigned (&to)[4], unsigned address) {
    warp_matrices(to, address, true, false);
}

static inline void dr_load_matrices_transposed(unsigned (&to)[4], unsigned address) {
    warp_matrices(to, address, true, true);
}

/* Of 8 x 8 numbers of 16 bits a lane has two of row lane / 4. */
static inline unsigned dr_transpose_matrix(unsigned x) {
    const int lane = (int)(threadIdx.x % 32), row = lane / 4, column = lane % 4 * 2;
    const unsigned first = warp_shuffle(0xffffffffu, x, column * 4 + row / 2) >> row % 2 * 16;
    const unsigned second = warp_shuffle(0xffffffffu, x, (column + 1) * 4 + row / 2) >> row % 2 * 16;
    return (first & 0xffff) | second << 16;
}

static inline float dr_load_shared(unsigned address) {
    return *(float *)shared_at(address, 4);
}

static inline float2 dr_load_shared2(unsigned address) {
    return *(float2 *)shared_at(address, 8);
}

static inline void dr_store_shared4(unsigned address, const float (&x)[4]) {
    memcpy(shared_at(address, 16), x, sizeof x);
}

static inline void dr_fence_device() {}

static inline float dr_exp2_near(float x) {
    return exp2f(x);
}

static inline float dr_log2_near(float x) {
    return log2f(x);
}

static inline float dr_reciprocal_near(float x) {
    return 1 / x;
}

static inline float dr_larger(float x, float y) {
    return isnan(x) || isnan(y) ? NAN : fmaxf(fabsf(x), fabsf(y));
}

static inline void dr_multiply(__nv_bfloat16, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    warp_multiply(c, a, b0, b1, false);
}

static inline void dr_multiply_tf32(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    warp_multiply(c, a, b0, b1, true);
}

static inline __nv_bfloat162 __hfma2(__nv_bfloat162 x, __nv_bfloat162 y, __nv_bfloat162 z) {
    const auto sum = [](__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
        return fmaf(__bfloat162float(a), __bfloat162float(b), __bfloat162float(c));
    };
    return __floats2bfloat162_rn(sum(x.x, y.x, z.x), sum(x.y, y.y, z.y));
}

static inline unsigned dr_forget(unsigned x) {
    return x;
}

static inline void dr_copy_async(unsigned to, const void *from, bool valid) {
    copy_ask(to, from, 16, valid);
}

static inline void dr_copy_whole(unsigned to, const void *from) {
    copy_ask(to, from, 16, true);
}

static inline void dr_copy_word(unsigned to, const void *from, bool valid) {
    copy_ask(to, from, 4, valid);
}

static inline void dr_copy_commit() {}

/* Of all groups, also where fewer are asked for. */
template <int unfinished> static inline void dr_copy_wait() {
    copy_wait();
}

static inline void dr_prefetch(const void *) {}

#endif
