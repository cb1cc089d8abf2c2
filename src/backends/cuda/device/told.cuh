/* Numbers that thread blocks tell one another while they run: a place holds DR_UNTOLD until its number is stored, so that the
 * number itself says that it is there, and no flag, fence or second round trip to the second-level cache is needed. No
 * arithmetic gives DR_UNTOLD: it is a NaN, and theirs is another. Every number is its own message; none says anything of the
 * others. */
#ifndef DR_CUDA_TOLD_CUH
#define DR_CUDA_TOLD_CUH

enum : unsigned { DR_UNTOLD = 0xffffffffu };

/* 1, 2 or 4 neighbours, at a multiple of their bytes. */
template <int count> static __device__ inline void dr_tell(float *to, const float (&x)[count]) {
    if constexpr (count == 4)
        asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]),
                     "f"(x[3])
                     : "memory");
    else if constexpr (count == 2)
        asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x[0]), "f"(x[1]) : "memory");
    else
        asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(x[0]) : "memory");
}

/* As they are at the moment. */
template <int count> static __device__ inline void dr_hear(const float *from, float (&x)[count]) {
    if constexpr (count == 4)
        asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                     : "l"(from)
                     : "memory");
    else if constexpr (count == 2)
        asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(x[0]), "=f"(x[1]) : "l"(from) : "memory");
    else
        asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x[0]) : "l"(from) : "memory");
}

template <int count> static __device__ inline bool dr_told(const float (&x)[count]) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < count; i++) all = all && __float_as_uint(x[i]) != DR_UNTOLD;
    return all;
}

/* Once they are there. */
template <int count> static __device__ inline void dr_hear_told(const float *from, float (&x)[count]) {
    do dr_hear<count>(from, x);
    while (!dr_told<count>(x));
}

#endif
