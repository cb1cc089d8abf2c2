/* Measuring in turn. What takes less than LEAST_SECONDS runs several times a repeat, and their mean counts; limits and work of
 * a pair follow each other, so that all meet the same state of the machine. */
#include "check/bench/grid.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/order.h"
#include "ops/operations.h"

#include <stdlib.h>
#include <string.h>

static const double LEAST_SECONDS = 0.02;
static const double LEAST_DEVICE_SECONDS = 0.005; /* nothing else runs on it */

enum { ITEMS = 3 }; /* limit, memory, work */

dr_status dr_bench_check(const dr_bench_options *options, int rules) {
    DR_NEED(options->threads);
    if (options->repeats < 1 || options->repeats > DR_BENCH_MOST_REPEATS)
        return dr_fail(DR_ERROR_ARGUMENT, "%lld repeats cannot be: ask for 1 to %d", (long long)options->repeats,
                       DR_BENCH_MOST_REPEATS);
    if (options->thread_counts < 1 || rules < 1)
        return dr_fail(DR_ERROR_ARGUMENT, "%d numbers of threads and %d rules leave nothing to measure", options->thread_counts,
                       rules);
    for (int i = 0; i < options->thread_counts; i++)
        if (options->threads[i] < 1)
            return dr_fail(DR_ERROR_ARGUMENT, "%d threads cannot run: ask for 1 or more", options->threads[i]);
    const bool on_cpu = !options->backend || strcmp(options->backend, "cpu") == 0;
    if (!on_cpu && (options->thread_counts > 1 || options->threads[0] > 1))
        return dr_fail(DR_ERROR_ARGUMENT, "backend \"%s\" has no threads to choose: leave them at 1", options->backend);
    return DR_OK;
}

dr_status dr_bench_grid_create(const dr_bench_options *options, int rules, int works, dr_bench_grid *grid) {
    *grid = (dr_bench_grid){.threads = options->thread_counts, .rules = rules, .works = works, .repeats = options->repeats};
    size_t pairs = (size_t)grid->threads * (size_t)rules * (size_t)works;
    void *pair = NULL, *seconds = NULL;
    dr_status status;
    DR_GO(dr_allocate_zero(pairs * sizeof(dr_bench_pair), "measurements", &pair));
    DR_GO(dr_allocate_zero(pairs * ITEMS * (size_t)options->repeats * sizeof(double), "measurements", &seconds));
    grid->pair = pair;
    grid->seconds = seconds;
    for (size_t i = 0; i < pairs; i++) {
        grid->pair[i].limit.seconds = grid->seconds + ITEMS * i * (size_t)options->repeats;
        grid->pair[i].memory.seconds = grid->pair[i].limit.seconds + options->repeats;
        grid->pair[i].work.seconds = grid->pair[i].memory.seconds + options->repeats;
    }
    return DR_OK;
done:
    dr_release(seconds);
    dr_release(pair);
    return status;
}

void dr_bench_grid_destroy(dr_bench_grid *grid) {
    dr_release(grid->seconds);
    dr_release(grid->pair);
}

dr_bench_pair *dr_bench_grid_at(const dr_bench_grid *grid, int thread, int rule, int work) {
    return &grid->pair[(thread * grid->rules + rule) * grid->works + work];
}

/* ---- measuring ------------------------------------------------------------------------------------------------------- */

static dr_status time_runs(const dr_bench_item *item, int64_t runs, double *seconds) {
    double start = dr_clock_now();
    if (item->device) {
        DR_TRY(item->device->ops->time_runs(item->device, item->run, item->context, runs, item->replayed, seconds));
        *seconds /= (double)runs;
        return DR_OK;
    }
    for (int64_t i = 0; i < runs; i++) DR_TRY(item->run(item->context));
    *seconds = (dr_clock_now() - start) / (double)runs;
    return DR_OK;
}

static dr_status warm_up(dr_bench_item *item) {
    double seconds, least = item->device ? LEAST_DEVICE_SECONDS : LEAST_SECONDS;
    if (!item->run) return DR_OK;
    DR_TRY(item->run(item->context));
    DR_TRY(time_runs(item, 1, &seconds));
    item->runs = seconds < least ? (int64_t)(least / (seconds + 1e-7)) + 1 : 1;
    return DR_OK;
}

static dr_status measure(const dr_bench_item *item, int64_t repeat) {
    return item->run ? time_runs(item, item->runs, &item->seconds[repeat]) : DR_OK;
}

dr_status dr_bench_grid_measure(dr_bench_grid *grid) {
    int pairs = grid->threads * grid->rules * grid->works;
    for (int i = 0; i < pairs; i++) {
        DR_TRY(warm_up(&grid->pair[i].limit));
        DR_TRY(warm_up(&grid->pair[i].memory));
        DR_TRY(warm_up(&grid->pair[i].work));
    }
    for (int64_t n = 0; n < grid->repeats; n++)
        for (int i = 0; i < pairs; i++) {
            const dr_bench_pair *pair = &grid->pair[i];
            DR_TRY(measure(&pair->limit, n));
            DR_TRY(measure(&pair->memory, n));
            DR_TRY(measure(&pair->work, n));
        }
    return DR_OK;
}

/* ---- figures --------------------------------------------------------------------------------------------------------- */

/* The value below which a share q of sorted values lies, between neighbours in proportion. */
static double quantile(const double *sorted, int64_t count, double q) {
    double place = q * (double)(count - 1);
    int64_t below = (int64_t)place, above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (place - (double)below) * (sorted[above] - sorted[below]);
}

dr_bench_seconds dr_bench_summary(const double *seconds, int64_t repeats) {
    double sorted[DR_BENCH_MOST_REPEATS];
    memcpy(sorted, seconds, (size_t)repeats * sizeof *sorted);
    qsort(sorted, (size_t)repeats, sizeof *sorted, dr_ascending);
    double median = quantile(sorted, repeats, 0.5);
    return (dr_bench_seconds){.median = median,
                              .best = sorted[0],
                              .spread = (quantile(sorted, repeats, 0.75) - quantile(sorted, repeats, 0.25)) / median};
}

double dr_bench_median_ratio(const double *numerator, const double *denominator, int64_t repeats) {
    double ratio[DR_BENCH_MOST_REPEATS];
    for (int64_t n = 0; n < repeats; n++) ratio[n] = numerator[n] / denominator[n];
    return dr_bench_summary(ratio, repeats).median;
}

dr_bench_work dr_bench_grid_work(const dr_bench_grid *grid, int thread, int rule, int work) {
    const dr_bench_pair *pair = dr_bench_grid_at(grid, thread, rule, work);
    const double *seconds = pair->work.seconds;
    const double *of_first_rule = dr_bench_grid_at(grid, thread, 0, work)->work.seconds;
    const double *of_first_threads = dr_bench_grid_at(grid, 0, rule, work)->work.seconds;
    dr_bench_work result = {.seconds = dr_bench_summary(seconds, grid->repeats), .amount = pair->work.amount};
    result.rate = result.amount / result.seconds.median;
    if (pair->limit.amount > 0) {
        dr_bench_seconds limit = dr_bench_summary(pair->limit.seconds, grid->repeats);
        result.limit = pair->limit.amount / limit.median;
        result.limit_best = pair->limit.amount / limit.best;
        result.share = result.amount / pair->limit.amount * dr_bench_median_ratio(pair->limit.seconds, seconds, grid->repeats);
        result.share_best = result.amount / result.seconds.best / result.limit_best;
    }
    if (pair->memory.run) {
        const double *copy = pair->memory.seconds;
        result.moved =
            (dr_bench_moved){.bytes = pair->bytes,
                             .rate = pair->bytes / result.seconds.median,
                             .limit = pair->memory.amount / dr_bench_summary(copy, grid->repeats).median,
                             .share = pair->bytes / pair->memory.amount * dr_bench_median_ratio(copy, seconds, grid->repeats)};
    }
    result.ratio = dr_bench_median_ratio(seconds, of_first_rule, grid->repeats);
    result.speed_up = dr_bench_median_ratio(of_first_threads, seconds, grid->repeats);
    return result;
}
