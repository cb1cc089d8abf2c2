/* The recurrence in double, token by token: the specification that every other engine is held to. The functions are the
 * recurrence_* members of dr_operations (ops/operations.h), called with checked arguments. There is one path, "recurrent":
 * path and chunk of the descriptor are ignored, and nothing is saved between a forward and its backward. */
#ifndef DR_BACKENDS_REFERENCE_RECURRENCE_H
#define DR_BACKENDS_REFERENCE_RECURRENCE_H

#include "ops/operations.h"

dr_status dr_reference_recurrence_plan(dr_plan *plan);
dr_status dr_reference_recurrence_forward(const dr_plan *plan, const dr_call *call);
dr_status dr_reference_recurrence_backward(const dr_plan *plan, const dr_call *call);
dr_status dr_reference_recurrence_decode(const dr_plan *plan, const dr_call *call);
int dr_reference_recurrence_kernel(const dr_plan *plan, bool decode, char *text, size_t size);
void dr_reference_recurrence_path(const dr_plan *plan, bool packed, dr_stage stage, dr_stage_path *path);

#endif
