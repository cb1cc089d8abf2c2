/* Numbers that thread blocks tell one another while they run: a place holds DR_UNTOLD until its number is stored, so that the
 * number itself says that it is there, and no flag, fence or second trip to the second-level cache is needed. No arithmetic
 * gives DR_UNTOLD: it is a NaN, and theirs is another. Every number is its own message; none says anything of the others. */
#ifndef DR_CUDA_TOLD_CUH
#define DR_CUDA_TOLD_CUH

enum : unsigned { DR_UNTOLD = 0xffffffffu };

static __device__ inline void dr_tell(float *to, float x) {
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}

/* As it is at the moment. */
static __device__ inline float dr_hear(const float *from) {
    float x;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
    return x;
}

static __device__ inline bool dr_is_told(float x) {
    return __float_as_uint(x) != DR_UNTOLD;
}

#endif
