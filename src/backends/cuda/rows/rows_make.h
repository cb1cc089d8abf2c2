/* Filling in what the load stage is told (rows.h): all but what the diagonal scan makes, which is NULL. */
#ifndef DR_CUDA_ROWS_MAKE_H
#define DR_CUDA_ROWS_MAKE_H

#include "backends/cuda/cuda.h"
#include "backends/cuda/rows/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* inputs NULL: none yet; gradients NULL: none wanted. */
void dr_cuda_rows_make(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                       const dr_input_gradients *gradients, dr_cuda_rows *rows);

#ifdef __cplusplus
}
#endif
#endif
