/* The recurrence on a CPU: the entries of the table of operations, as ops/operations.h says. */
#ifndef DR_CPU_RECURRENCE_H
#define DR_CPU_RECURRENCE_H

#include "ops/operations.h"

dr_status dr_cpu_recurrence_plan(dr_plan *plan);
dr_status dr_cpu_recurrence_forward(const dr_plan *plan, const dr_call *call);
dr_status dr_cpu_recurrence_backward(const dr_plan *plan, const dr_call *call);
dr_status dr_cpu_recurrence_decode(const dr_plan *plan, const dr_call *call);
int64_t dr_cpu_recurrence_chunk(const dr_plan *plan);
dr_status dr_cpu_recurrence_boundary(const dr_plan *plan, const dr_call *call, int64_t sequence, int64_t boundary,
                                     const dr_mutable_states *states);
int dr_cpu_recurrence_kernel(const dr_plan *plan, bool decode, char *text, size_t size);
void dr_cpu_recurrence_path(const dr_plan *plan, bool packed, dr_stage stage, dr_stage_path *path);

#endif
