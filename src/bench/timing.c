/* Rounds of measurements and their figures. Medians of ratios within a round are what a shared machine leaves meaningful; the
 * best of all rounds is printed beside them. */
#include "bench/timing.h"

#include "base/error.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double LEAST_SECONDS = 0.02;

static double now(void) {
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return (double)moment.tv_sec + 1e-9 * (double)moment.tv_nsec;
}

static dr_status time_runs(const dr_bench_item *item, int64_t runs, double *seconds) {
    double start = now();
    for (int64_t i = 0; i < runs; i++) DR_TRY(item->run(item->context));
    *seconds = (now() - start) / (double)runs;
    return DR_OK;
}

/* How often an item runs each round, from a warm run. */
static dr_status runs_of(const dr_bench_item *item, int64_t *runs) {
    double seconds;
    DR_TRY(item->run(item->context));
    DR_TRY(time_runs(item, 1, &seconds));
    *runs = seconds < LEAST_SECONDS ? (int64_t)(LEAST_SECONDS / (seconds + 1e-7)) + 1 : 1;
    return DR_OK;
}

dr_status dr_bench_measure(dr_bench_item *items, int count, int64_t repeats) {
    void *memory = NULL;
    DR_TRY(dr_allocate((size_t)count * sizeof(int64_t), "numbers of runs", &memory));
    int64_t *runs = memory;
    dr_status status = DR_OK;
    for (int i = 0; i < count; i++) DR_GO(runs_of(&items[i], &runs[i]));
    for (int64_t n = 0; n < repeats; n++)
        for (int i = 0; i < count; i++) DR_GO(time_runs(&items[i], runs[i], &items[i].seconds[n]));
done:
    dr_release(memory);
    return status;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value below which a share q of sorted values lies, between neighbours by their distance. */
static double quantile(const double *sorted, int64_t count, double q) {
    double place = q * (double)(count - 1);
    int64_t below = (int64_t)place, above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (place - (double)below) * (sorted[above] - sorted[below]);
}

dr_bench_seconds dr_bench_summary(const double *seconds, int64_t repeats) {
    double sorted[DR_BENCH_MOST_REPEATS];
    memcpy(sorted, seconds, (size_t)repeats * sizeof *sorted);
    qsort(sorted, (size_t)repeats, sizeof *sorted, compare);
    double median = quantile(sorted, repeats, 0.5);
    double spread = (quantile(sorted, repeats, 0.75) - quantile(sorted, repeats, 0.25)) / median;
    return (dr_bench_seconds){.median = median, .best = sorted[0], .spread = spread};
}

double dr_bench_median_ratio(const double *numerator, const double *denominator, int64_t repeats) {
    double ratio[DR_BENCH_MOST_REPEATS];
    for (int64_t n = 0; n < repeats; n++) ratio[n] = numerator[n] / denominator[n];
    return dr_bench_summary(ratio, repeats).median;
}
