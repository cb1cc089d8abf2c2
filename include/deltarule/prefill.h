/* Reading prompts into a pool: plans whose forwards take the states of their sequences out of a pool, and leave them there
 * (dr_slots), as servers keep those of many sequences that are decoded together.
 *
 *     dr_plan_create_for_slots(backend, &recurrence, NULL, &plan);
 *     dr_call call = {.size = sizeof call, .slots = &slots, .initial = &pool, .final = &pool, ...};
 *     dr_plan_forward(plan, &call);
 *
 * Threads. As for dr_plan_create. */
#ifndef DELTARULE_PREFILL_H
#define DELTARULE_PREFILL_H

#include <deltarule/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As dr_plan_create_with_forms; forms may be NULL. On cuda the states of a call's sequences then have a place in its workspace,
 * and forwards of other plans take no slots; elsewhere forwards of every plan take them. On cuda checkpoints are read out of
 * what the forward saves, which such a call gives, and which is exact where the plan's path computes in F32 (dr_plan_path). */
DR_API dr_status dr_plan_create_for_slots(dr_backend *backend, const dr_recurrence *recurrence, const dr_forms *forms,
                                          dr_plan **plan);

#ifdef __cplusplus
}
#endif
#endif
