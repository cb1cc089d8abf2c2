/* The recurrence on a GPU: the entries of the table of operations, as ops/operations.h says. */
#ifndef DR_CUDA_RECURRENCE_H
#define DR_CUDA_RECURRENCE_H

#include "backends/cuda/cuda.h"

dr_status dr_cuda_recurrence_plan(dr_plan *plan);
dr_status dr_cuda_recurrence_forward(const dr_plan *plan, const dr_call *call);
dr_status dr_cuda_recurrence_backward(const dr_plan *plan, const dr_call *call);
dr_status dr_cuda_recurrence_decode(const dr_plan *plan, const dr_call *call);
int64_t dr_cuda_recurrence_chunk(const dr_plan *plan);
dr_status dr_cuda_recurrence_boundary(const dr_plan *plan, const dr_call *call, int64_t sequence, int64_t boundary,
                                      const dr_mutable_states *states);
int dr_cuda_recurrence_kernel(const dr_plan *plan, bool decode, char *text, size_t size);
void dr_cuda_recurrence_path(const dr_plan *plan, bool packed, dr_stage stage, dr_stage_path *path);

#endif
