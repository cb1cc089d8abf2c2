/* Measuring on the GPU: times by its own clock, and what its limits are measured with. As in ops/operations.h. */
#ifndef DR_CUDA_MEASURE_H
#define DR_CUDA_MEASURE_H

#include "backends/cuda/cuda.h"

dr_status dr_cuda_time_runs(dr_backend *backend, dr_status (*run)(void *context), void *context, int64_t runs, bool replay,
                            double *seconds);
dr_status dr_cuda_product(dr_backend *backend, int64_t size, const void *a, const void *b, void *c);
/* Gives back the library of dr_cuda_product, if it was opened. */
void dr_cuda_product_close(dr_cuda *gpu);

#endif
