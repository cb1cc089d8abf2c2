/* Measuring several things in turn, so that what else the machine does meets all of them, and figures over the repeats. */
#ifndef DR_BENCH_TIMING_H
#define DR_BENCH_TIMING_H

#include <deltarule/bench.h>

typedef struct {
    dr_status (*run)(void *context);
    void *context;
    double *seconds; /* [repeats] of one run */
} dr_bench_item;

/* Runs each item until it is warm, then `repeats` rounds of all in order. What takes less than some 20 ms runs several times
 * each round, and the mean counts. */
dr_status dr_bench_measure(dr_bench_item *items, int count, int64_t repeats);

dr_bench_seconds dr_bench_summary(const double *seconds, int64_t repeats);
/* median over the repeats of numerator / denominator */
double dr_bench_median_ratio(const double *numerator, const double *denominator, int64_t repeats);

#endif
