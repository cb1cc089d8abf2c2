/* The machine's own limits, measured beside what is held against them. */
#ifndef DR_BENCH_LIMIT_H
#define DR_BENCH_LIMIT_H

#include <deltarule/status.h>
#include <stdint.h>

/* OpenBLAS sgemm at 512: each thread multiplies matrices of its own, so that threads do not wait for each other. */
typedef struct {
    int threads;
    float *matrices; /* [threads, 3, 512, 512] */
} dr_bench_sgemm;

dr_status dr_bench_sgemm_create(int threads, uint64_t seed, dr_bench_sgemm *sgemm);
void dr_bench_sgemm_destroy(dr_bench_sgemm *sgemm);
/* One run, of a dr_bench_sgemm. */
dr_status dr_bench_sgemm_run(void *context);
/* Operations of a run. */
double dr_bench_sgemm_operations(const dr_bench_sgemm *sgemm);

#endif
