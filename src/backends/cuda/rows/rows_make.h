/* Filling in what the load stage is told (rows.h): all but what the diagonal scan makes, which is NULL. */
#ifndef DR_CUDA_ROWS_MAKE_H
#define DR_CUDA_ROWS_MAKE_H

#include "backends/cuda/cuda.h"
#include "backends/cuda/rows/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What all calls have in common, vectors being stored so. */
void dr_cuda_rows_plan(const dr_recurrence *recurrence, dr_dtype storage, dr_cuda_rows *rows);

/* Then, in a call's copy, its pointers; gradients NULL: none wanted. */
void dr_cuda_rows_point(const dr_inputs *inputs, const dr_input_gradients *gradients, dr_cuda_rows *rows);

#ifdef __cplusplus
}
#endif
#endif
