/* What the processor can do. */
#ifndef DR_BASE_CPU_H
#define DR_BASE_CPU_H

#include "base/for_check.h"

#include <stdbool.h>

typedef struct {
    bool avx2;   /* AVX2, FMA, F16C, and the operating system saves the registers */
    bool avx512; /* AVX-512 F, BW, DQ, VL, likewise */
} dr_cpu_features;

DR_FOR_CHECK dr_cpu_features dr_cpu_detect(void);

#endif
