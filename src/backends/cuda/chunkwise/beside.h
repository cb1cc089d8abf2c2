/* Where the scan leaves multiprocessors empty, prepare runs beside it on the others (prepare_beside.cuh): on how many. It
 * follows from shapes and the device model, as the plan does. */
#ifndef DR_CUDA_CHUNKWISE_BESIDE_H
#define DR_CUDA_CHUNKWISE_BESIDE_H

#include "backends/cuda/chunkwise/chunkwise.h"

typedef struct {
    int32_t processors; /* that prepare keeps while the scan runs; 0: it ends before the scan begins */
    int32_t rounds;     /* in which all take part before, each group of threads making a block of rows */
} dr_cuda_beside;

/* The scan's blocks keep a multiprocessor each. Prepare makes four blocks of rows at once on each of the others, in eleven times
 * what the scan takes for one (docs/cuda.md): the first rounds leave it what it can make during the scan. Packed sequences end
 * one after another in the order of blocks, so that the scan would wait for the last. */
static inline dr_cuda_beside dr_cuda_beside_of(const dr_cuda_chunk_plan *plan) {
    enum { AT_ONCE = 4, SCAN_CHUNKS = 11 };
    dr_cuda_beside beside = {0, 0};
    const int64_t chains = plan->sequences * plan->value_heads, columns = plan->value_width / DR_CUDA_COLUMNS;
    const int64_t left = plan->processors - chains * columns;
    if (!plan->warpgroups || plan->linear || plan->rows.channel_decay || plan->parts > 1 || plan->length <= plan->chunk)
        return beside;
    if (left < plan->processors / 4 || plan->blocks > INT32_MAX) return beside;
    const int64_t during = AT_ONCE * left * (plan->slots / plan->sequences) / SCAN_CHUNKS, round = AT_ONCE * plan->processors;
    beside.processors = (int32_t)left;
    if (plan->blocks > during) beside.rounds = (int32_t)((plan->blocks - during + round / 2) / round);
    return beside;
}

#endif
