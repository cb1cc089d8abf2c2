/* What the programs of this folder that take times have in common. */
#ifndef DR_BENCH_MEASURE_H
#define DR_BENCH_MEASURE_H

#include <time.h>

/* Seconds of a clock that never goes back. */
static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* For qsort of doubles, the least first. */
static inline int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#endif
