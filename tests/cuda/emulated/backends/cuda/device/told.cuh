/* In place of the project's header of that name: blocks run one after another, and tell by plain stores. */
#ifndef DR_CUDA_TOLD_CUH
#define DR_CUDA_TOLD_CUH

#include "block.h"

enum : unsigned { DR_UNTOLD = 0xffffffffu };

static inline void dr_tell(float *to, float x) {
    *to = x;
}

static inline float dr_hear(const float *from) {
    return *from;
}

static inline bool dr_is_told(float x) {
    return __float_as_uint(x) != DR_UNTOLD;
}

#endif
