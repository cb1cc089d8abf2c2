/* The machine's own limits, measured beside what is held against them. */
#ifndef DR_BENCH_LIMIT_H
#define DR_BENCH_LIMIT_H

#include "check/bench/grid.h"
#include "check/blas.h"

/* Arithmetic: OpenBLAS sgemm at 512. Each thread multiplies matrices of its own, so that none waits for another. */
typedef struct {
    int threads;
    const dr_blas *blas;
    float *matrices;   /* [threads, 3, 512, 512] */
    char lacking[192]; /* why it is no limit: OpenBLAS is not there, or its kernels are below the processor; "": it is one */
} dr_bench_sgemm;

dr_status dr_bench_sgemm_create(int threads, uint64_t seed, dr_bench_sgemm *sgemm);
void dr_bench_sgemm_destroy(dr_bench_sgemm *sgemm);
/* Fills in run, context and amount (operations); nothing if something is lacking. */
void dr_bench_sgemm_item(dr_bench_sgemm *sgemm, dr_bench_item *item);

/* Memory: y = a y + b in place, each thread over its part. */
typedef struct {
    int threads;
    int64_t count;
    float *y;                              /* [count] */
    void (*pass)(float *y, int64_t count); /* in the widest vectors of the machine */
} dr_bench_stream;

dr_status dr_bench_stream_create(int threads, int64_t count, dr_bench_stream *stream);
void dr_bench_stream_destroy(dr_bench_stream *stream);
/* Fills in run, context and amount (bytes, read and written). */
void dr_bench_stream_item(dr_bench_stream *stream, dr_bench_item *item);

#endif
