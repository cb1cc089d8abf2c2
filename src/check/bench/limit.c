/* The limits: several products a run, since one takes only milliseconds, and one pass over memory, in vectors as wide as the
 * machine has. */
#include "check/bench/limit.h"

#include "base/cpu.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/random.h"

#include <omp.h>
#include <stdio.h>

/* ---- arithmetic ------------------------------------------------------------------------------------------------------ */

enum { SIZE = 512, ELEMENTS = SIZE * SIZE, PRODUCTS = 8, STREAM_MATRICES = 1 };

dr_status dr_bench_blas(char *text, size_t size) {
    const dr_blas *blas;
    DR_NEED(text);
    if (size == 0) return dr_fail(DR_ERROR_ARGUMENT, "text must have room for a description");
    DR_TRY(dr_blas_open(&blas));
    snprintf(text, size, "%s%s%s", blas->description, blas->weak[0] ? "; no measure of it: " : "", blas->weak);
    return DR_OK;
}

dr_status dr_bench_sgemm_create(int threads, uint64_t seed, dr_bench_sgemm *sgemm) {
    void *memory = NULL;
    size_t count = (size_t)threads * 3 * ELEMENTS;
    *sgemm = (dr_bench_sgemm){.threads = threads};
    bool is_open = dr_blas_open(&sgemm->blas) == DR_OK;
    snprintf(sgemm->lacking, sizeof sgemm->lacking, "%s", is_open ? sgemm->blas->weak : dr_last_error());
    if (sgemm->lacking[0]) return DR_OK;
    DR_TRY(dr_allocate(count * sizeof(float), "matrices to multiply", &memory));
    sgemm->matrices = memory;
    dr_random random = dr_random_start(seed, STREAM_MATRICES);
    for (size_t i = 0; i < count; i++) sgemm->matrices[i] = (float)(2 * dr_random_uniform(&random) - 1);
    return DR_OK;
}

void dr_bench_sgemm_destroy(dr_bench_sgemm *sgemm) {
    dr_release(sgemm->matrices);
}

/* One thread a product. A build of OpenBLAS with OpenMP takes as many as OpenMP would give it, which is one within a region of
 * several threads; a build with threads of its own is told so, and told afterwards what it was before: others may use it. */
static dr_status run_sgemm(void *context) {
    const dr_bench_sgemm *sgemm = context;
    const dr_blas *blas = sgemm->blas;
    int threads = blas->own_threads ? blas->threads() : 0;
    if (threads > 0) blas->set_threads(1);
#pragma omp parallel num_threads(sgemm->threads)
    {
        omp_set_num_threads(1); /* for regions that this task opens: matters where the region has one thread */
        float *a = sgemm->matrices + (size_t)omp_get_thread_num() * 3 * ELEMENTS;
        for (int i = 0; i < PRODUCTS; i++)
            blas->sgemm(DR_BLAS_ROW_MAJOR, DR_BLAS_AS_IT_IS, DR_BLAS_AS_IT_IS, SIZE, SIZE, SIZE, 1, a, SIZE, a + ELEMENTS, SIZE,
                        0, a + 2 * ELEMENTS, SIZE);
    }
    if (threads > 0) blas->set_threads(threads);
    return DR_OK;
}

void dr_bench_sgemm_item(dr_bench_sgemm *sgemm, dr_bench_item *item) {
    if (sgemm->lacking[0]) return;
    item->run = run_sgemm;
    item->context = sgemm;
    item->amount = 2.0 * SIZE * ELEMENTS * PRODUCTS * sgemm->threads;
}

/* ---- memory ---------------------------------------------------------------------------------------------------------- */

/* The fixed point of this map is 1: y neither grows nor reaches the slow numbers near 0. */
static inline __attribute__((always_inline)) void pass(float *y, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] = 0.5F * y[i] + 0.5F;
}

static void pass_portable(float *y, int64_t count) {
    pass(y, count);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void pass_avx2(float *y, int64_t count) {
    pass(y, count);
}

/* clang takes no width here */
#if defined(__clang__)
#define WIDE "avx512f,fma"
#else
#define WIDE "avx512f,fma,prefer-vector-width=512"
#endif
__attribute__((target(WIDE))) static void pass_avx512(float *y, int64_t count) {
    pass(y, count);
}
#endif

dr_status dr_bench_stream_create(int threads, int64_t count, dr_bench_stream *stream) {
    void *memory = NULL;
    DR_TRY(dr_allocate((size_t)count * sizeof(float), "memory to stream", &memory));
    *stream = (dr_bench_stream){.threads = threads, .count = count, .y = memory, .pass = pass_portable};
    for (int64_t i = 0; i < count; i++) stream->y[i] = (float)(i % 7);
#if defined(__x86_64__)
    /* asked once: a virtual machine takes long to answer */
    dr_cpu_features features = dr_cpu_detect();
    stream->pass = features.avx512 ? pass_avx512 : features.avx2 ? pass_avx2 : pass_portable;
#endif
    return DR_OK;
}

void dr_bench_stream_destroy(dr_bench_stream *stream) {
    dr_release(stream->y);
}

static dr_status run_stream(void *context) {
    const dr_bench_stream *stream = context;
#pragma omp parallel num_threads(stream->threads)
    {
        int64_t thread = omp_get_thread_num(), begin = stream->count * thread / stream->threads;
        stream->pass(stream->y + begin, stream->count * (thread + 1) / stream->threads - begin);
    }
    return DR_OK;
}

void dr_bench_stream_item(dr_bench_stream *stream, dr_bench_item *item) {
    item->run = run_stream;
    item->context = stream;
    item->amount = 2.0 * (double)stream->count * sizeof(float);
}
