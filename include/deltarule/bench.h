/* Times of the recurrences, of decoding and of training, each beside the machine's own limit, which is measured in the same
 * process, in turn with them. Machines are shared: compare what was measured in one call. */
#ifndef DELTARULE_BENCH_H
#define DELTARULE_BENCH_H

#include <deltarule/recurrence.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DR_BENCH_MOST_REPEATS = 999 };

typedef struct {
    int64_t repeats;   /* measurements of each, 1 to DR_BENCH_MOST_REPEATS */
    const char *isa;   /* of the CPU backend; NULL: best */
    uint64_t seed;     /* of the inputs */
    bool forward_only; /* of dr_bench_op: no backward */
} dr_bench_options;

/* Seconds of one run, over the repeats; spread: between the quartiles, as a share of the median. */
typedef struct {
    double median, best, spread;
} dr_bench_seconds;

/* One thing measured. Work is counted the same way whatever the chunk: that of the chunkwise form with chunks of 64
 * tokens (docs/performance.md), three times that with the backward. performed: that form with the chunk that ran.
 *
 * share: counted work over time, as a share of the limit just before, median over the repeats; share_best: the best time
 * against the best of the limit. ratio: time as a multiple of the first case's, median over the repeats. */
typedef struct {
    dr_bench_seconds seconds;
    double counted, performed; /* operations */
    double rate;               /* counted operations a second */
    double share, share_best, ratio;
} dr_bench_work;

typedef struct {
    dr_recurrence recurrence;
    int threads; /* >= 1 */
} dr_bench_op_case;

typedef struct {
    char kernel[96];
    int64_t chunk;
    double limit, limit_best; /* operations a second of OpenBLAS sgemm at 512, one product a thread, as many threads */
    dr_bench_work forward;
    dr_bench_work forward_backward; /* together; zeros if forward_only */
} dr_bench_op_result;

/* Measures recurrences over many tokens in turn: in every repeat each case's sgemm, forward, sgemm, forward and backward. */
DR_API dr_status dr_bench_op(const dr_bench_options *options, int count, const dr_bench_op_case *cases,
                             dr_bench_op_result *results);

#ifdef __cplusplus
}
#endif
#endif
