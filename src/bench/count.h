/* Operations of a recurrence, two a multiplication with its addition. */
#ifndef DR_BENCH_COUNT_H
#define DR_BENCH_COUNT_H

#include <deltarule/recurrence.h>

/* Forward, as it is counted for every rule and engine: the chunkwise form with chunks of 64 tokens. */
double dr_bench_counted(const dr_recurrence *recurrence);
/* Forward, and backward alone, as the engine does them: chunkwise with this chunk, or token by token. */
double dr_bench_performed_forward(const dr_recurrence *recurrence, bool chunkwise, int64_t chunk);
double dr_bench_performed_backward(const dr_recurrence *recurrence, bool chunkwise, int64_t chunk);

#endif
