/* The clock that tells how long something took. */
#ifndef DR_BASE_CLOCK_H
#define DR_BASE_CLOCK_H

#include <time.h>

/* Seconds from some moment in the past; never set back. */
static inline double dr_clock_now(void) {
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return (double)moment.tv_sec + 1e-9 * (double)moment.tv_nsec;
}

#endif
