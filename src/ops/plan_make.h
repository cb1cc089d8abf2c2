/* Making plans without allocating, and calls whose boundaries were checked: what plans and the functions that plan at each call
 * share within ops. */
#ifndef DR_OPS_PLAN_MAKE_H
#define DR_OPS_PLAN_MAKE_H

#include "ops/plan.h"

/* recurrence and forms were checked; calls: kinds of calls that will be; forms NULL: the default ones. */
dr_status dr_plan_make(dr_backend *backend, const dr_recurrence *recurrence, const dr_forms *forms, unsigned calls,
                       dr_plan *plan);

/* As dr_plan_create_with_forms, in the caller's memory. */
dr_status dr_plan_make_any(dr_backend *backend, const dr_recurrence *recurrence, const dr_forms *forms, dr_plan *plan);

/* The calls of plan.h. bounded: the boundaries are known to be right. */
dr_status dr_plan_run_forward(const dr_plan *plan, const dr_call *call, bool bounded);
dr_status dr_plan_run_backward(const dr_plan *plan, const dr_call *call, bool bounded);
dr_status dr_plan_run_decode(const dr_plan *plan, const dr_call *call);
dr_status dr_plan_find_boundaries(const dr_plan *plan, const dr_call *call, int64_t sequence, int64_t *chunk, int64_t *count);
dr_status dr_plan_find_boundary(const dr_plan *plan, const dr_call *call, int64_t sequence, int64_t boundary,
                                const dr_mutable_states *states);

#endif
