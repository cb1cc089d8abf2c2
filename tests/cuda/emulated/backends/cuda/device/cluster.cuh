/* In place of the project's header of that name: thread blocks run one after another, so there are no clusters of several. */
#ifndef DR_CUDA_CLUSTER_CUH
#define DR_CUDA_CLUSTER_CUH

#include "block.h"

#define DR_CLUSTER_OF(blocks)

static inline void dr_cluster_open(unsigned, unsigned) {
    grid_fail("clusters are not emulated");
}

static inline void dr_cluster_join() {
    grid_fail("clusters are not emulated");
}

static inline void dr_cluster_put(unsigned, unsigned, unsigned, float) {
    grid_fail("clusters are not emulated");
}

static inline void dr_cluster_await(unsigned) {
    grid_fail("clusters are not emulated");
}

#endif
