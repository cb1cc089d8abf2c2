/* Division of numbers below 2^31 by one that a launch knows: a product and a shift, where the general one takes some fifteen
 * instructions that wait for one another. */
#ifndef DR_CUDA_DIVIDE_CUH
#define DR_CUDA_DIVIDE_CUH

#include <cuda_runtime_api.h>
#include <stdint.h>

typedef struct {
    uint32_t by, multiplier, shift;
} dr_divider;

/* For 0 < by < 2^31: with 2^(s - 1) < by <= 2^s and m = ceil(2^(31 + s) / by), m by - 2^(31 + s) < by <= 2^s, so that
 * x m / 2^(31 + s) is too large by less than x / 2^31 / by, less than 1 / by. */
static inline dr_divider dr_divider_of(int64_t by) {
    unsigned power = 0;
    while (((int64_t)1 << power) < by) power++;
    const uint64_t unit = (uint64_t)1 << (31 + power), divisor = (uint64_t)by;
    const dr_divider divider = {(uint32_t)by, (uint32_t)((unit + divisor - 1) / divisor), 31 + power};
    return divider;
}

static __device__ inline unsigned dr_divide(unsigned x, const dr_divider &divider) {
    return (unsigned)((uint64_t)x * divider.multiplier >> divider.shift);
}

#endif
