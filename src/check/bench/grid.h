/* A grid of measurements: numbers of threads x rules x kinds of work, each with its limits, all in turn. */
#ifndef DR_BENCH_GRID_H
#define DR_BENCH_GRID_H

#include <deltarule/bench.h>

typedef struct {
    dr_status (*run)(void *context); /* NULL: there is no such limit */
    void *context;
    dr_backend *device; /* whose clock tells the time of its runs; NULL: that of the process does */
    bool replayed;      /* on it: without what launching takes on the host */
    double amount;      /* of a run: operations or bytes */
    int64_t runs;       /* each repeat; the grid chooses */
    double *seconds;    /* [repeats] of one run */
} dr_bench_item;

typedef struct {
    dr_bench_item limit, memory, work; /* memory: a second limit, in bytes; often there is none */
    double bytes;                      /* of a run of the work, against that limit */
} dr_bench_pair;

typedef struct {
    int threads, rules, works;
    int64_t repeats;
    dr_bench_pair *pair; /* [threads, rules, works] */
    double *seconds;
} dr_bench_grid;

/* DR_ERROR_ARGUMENT if the options or the number of rules cannot be. */
dr_status dr_bench_check(const dr_bench_options *options, int rules);

/* To be filled in: run, context and amount of every limit and work, and the device and the bytes where they are on one. */
dr_status dr_bench_grid_create(const dr_bench_options *options, int rules, int works, dr_bench_grid *grid);
void dr_bench_grid_destroy(dr_bench_grid *grid);

dr_bench_pair *dr_bench_grid_at(const dr_bench_grid *grid, int thread, int rule, int work);

/* Runs all until they are warm, then the repeats. */
dr_status dr_bench_grid_measure(dr_bench_grid *grid);
dr_bench_work dr_bench_grid_work(const dr_bench_grid *grid, int thread, int rule, int work);

/* Figures of `repeats` numbers, 1 to DR_BENCH_MOST_REPEATS. */
dr_bench_seconds dr_bench_summary(const double *seconds, int64_t repeats);
double dr_bench_median_ratio(const double *numerator, const double *denominator, int64_t repeats);

#endif
