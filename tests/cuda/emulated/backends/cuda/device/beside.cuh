/* In place of the project's header of that name: kernels run one after another, and nothing runs beside them. */
#ifndef DR_CUDA_BESIDE_CUH
#define DR_CUDA_BESIDE_CUH

#include "block.h"

static inline void dr_flag_raise(unsigned *flag) {
    *flag = 1;
}

/* By each thread of the warp. */
static inline int dr_flags_look(const unsigned *flags, int apart, int count) {
    int raised = 0;
    while (raised < count && raised < 32 && flags[raised * apart] == 1) raised++;
    if (raised == 0) grid_fail("a flag is waited for that nobody raises");
    return raised;
}

static inline void dr_count_add(unsigned *count, unsigned made) {
    *count += made;
}

/* All that add to it have ended. */
static inline void dr_count_await(const unsigned *count, unsigned enough) {
    if (*count < enough) grid_fail("a count is waited for that nobody raises");
}

static inline void dr_beside_open() {
    __syncthreads();
}

static inline void dr_beside_admit() {}

static inline void dr_beside_close() {}

static inline void dr_chain() {}

#endif
