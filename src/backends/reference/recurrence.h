/* The recurrence in double, token by token: the specification that every other engine is held to. The functions are the
 * recurrence_* members of dr_operations (ops/operations.h), called with checked arguments. There is one path, "recurrent":
 * path and chunk of the descriptor are ignored, and nothing is saved between a forward and its backward. */
#ifndef DR_BACKENDS_REFERENCE_RECURRENCE_H
#define DR_BACKENDS_REFERENCE_RECURRENCE_H

#include "ops/operations.h"

dr_status dr_reference_recurrence_plan(dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory);
dr_status dr_reference_recurrence_forward(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                          const dr_states *initial, void *o, const dr_mutable_states *final, void *saved,
                                          void *workspace);
dr_status dr_reference_recurrence_backward(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                           const dr_states *initial, const void *saved, const void *d_o,
                                           const dr_states *d_final, const dr_input_gradients *d_inputs,
                                           const dr_mutable_states *d_initial, void *workspace);
dr_status dr_reference_recurrence_decode(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                         const dr_mutable_states *states, void *o, void *workspace);
int dr_reference_recurrence_kernel(const dr_backend *backend, const dr_recurrence *recurrence, bool decode, char *text,
                                   size_t size);

#endif
