/* Calls of plans with forms (dr_forms), and forwards whose states lie in a pool: stages before and after the engine. Dense
 * tensors in the backend's own types stand in the workspace for the caller's meanwhile, each a pass over memory more. What is
 * dense and in its own type already is read and written where it is. */
#ifndef DR_CUDA_FORMS_FORMS_H
#define DR_CUDA_FORMS_FORMS_H

#include "backends/cuda/engine/engines.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether calls of the plan go this way. */
bool dr_cuda_is_formed(const dr_plan *plan);

/* Adds what lies before the engine's workspaces to their bytes. */
void dr_cuda_forms_plan(dr_plan *plan);

/* call: what the engine would get of `given` without forms. */
typedef dr_status (*dr_cuda_run)(const dr_cuda_call *call);
dr_status dr_cuda_formed_forward(const dr_plan *plan, const dr_call *given, const dr_cuda_call *call, dr_cuda_run engine);
dr_status dr_cuda_formed_backward(const dr_plan *plan, const dr_call *given, const dr_cuda_call *call, dr_cuda_run engine);
typedef dr_status (*dr_cuda_decode_run)(const dr_cuda_call *call, const dr_slots *slots, const dr_mutable_states *states);
dr_status dr_cuda_formed_decode(const dr_plan *plan, const dr_call *given, const dr_cuda_call *call, dr_cuda_decode_run engine);

#ifdef __cplusplus
}
#endif
#endif
