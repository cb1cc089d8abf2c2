/* The limit of arithmetic: OpenBLAS sgemm at 512, several products a run. */
#include "bench/limit.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/random.h"

#include <cblas.h>
#include <omp.h>

enum { SIZE = 512, ELEMENTS = SIZE * SIZE, PRODUCTS = 8 };

dr_status dr_bench_sgemm_create(int threads, uint64_t seed, dr_bench_sgemm *sgemm) {
    void *memory = NULL;
    size_t count = (size_t)threads * 3 * ELEMENTS;
    DR_TRY(dr_allocate(count * sizeof(float), "matrices to multiply", &memory));
    *sgemm = (dr_bench_sgemm){.threads = threads, .matrices = memory};
    dr_random random = dr_random_start(seed, 1);
    for (size_t i = 0; i < count; i++) sgemm->matrices[i] = (float)(2 * dr_random_uniform(&random) - 1);
    return DR_OK;
}

void dr_bench_sgemm_destroy(dr_bench_sgemm *sgemm) {
    dr_release(sgemm->matrices);
}

/* OpenBLAS's OpenMP build takes as many threads as OpenMP would give it, but within a region of several threads one. */
dr_status dr_bench_sgemm_run(void *context) {
    const dr_bench_sgemm *sgemm = context;
#pragma omp parallel num_threads(sgemm->threads)
    {
        omp_set_num_threads(1); /* of this region's tasks */
        float *a = sgemm->matrices + (size_t)omp_get_thread_num() * 3 * ELEMENTS;
        for (int i = 0; i < PRODUCTS; i++)
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, SIZE, SIZE, SIZE, 1, a, SIZE, a + ELEMENTS, SIZE, 0,
                        a + 2 * ELEMENTS, SIZE);
    }
    return DR_OK;
}

double dr_bench_sgemm_operations(const dr_bench_sgemm *sgemm) {
    return 2.0 * SIZE * ELEMENTS * PRODUCTS * sgemm->threads;
}
