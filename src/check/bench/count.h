/* Operations of a recurrence, two a multiplication with its addition. */
#ifndef DR_BENCH_COUNT_H
#define DR_BENCH_COUNT_H

#include <deltarule/recurrence.h>

/* Of a forward, the same for every engine: the chunkwise form in chunks of 64 tokens. */
double dr_bench_counted(const dr_recurrence *recurrence);
/* Of a forward, and of a backward alone, as they are done: the chunkwise form in chunks of so many tokens, or token by token
 * (chunk 1). segment: tokens from one saved state to the next. */
double dr_bench_performed_forward(const dr_recurrence *recurrence, int64_t chunk);
double dr_bench_performed_backward(const dr_recurrence *recurrence, int64_t chunk, int64_t segment);

#endif
