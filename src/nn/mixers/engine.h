/* The recurrence of a mixer at work: what mixers that run one share, whatever stands around it. Their plan is a dr_plan. */
#ifndef DR_NN_MIXERS_ENGINE_H
#define DR_NN_MIXERS_ENGINE_H

#include "nn/module.h"

/* Plans a recurrence for a call over such a layout, whose boundaries lie in host memory; the recurrence's own layout is not
 * read. plan: a dr_plan. */
dr_status dr_engine_plan(dr_backend *backend, dr_recurrence recurrence, const dr_layout *layout, void *plan);

/* Tokens of a chunk of a recurrence's forward over many tokens, whatever its layout. */
dr_status dr_engine_chunk(dr_backend *backend, dr_recurrence recurrence, int64_t *tokens);

/* Parts of an arena: what a forward saves for the backward; what the call's forward or decoding and, if there is one, its
 * backward use. */
void *dr_engine_place_saved(const dr_module_call *call, dr_arena *arena);
void *dr_engine_place_work(const dr_module_call *call, bool backward, dr_arena *arena);

/* What so many sequences carry through a recurrence, by kind of state; what its rule does not carry stays as it is. The
 * recurrence's layout has that many sequences. */
void dr_engine_place_states(const dr_recurrence *recurrence, dr_backend *backend, dr_arena *arena, void *states[DR_STATES]);

/* o from the inputs, with saved and work as they were placed. states: carried in and out, by kind; NULL: from zero. */
dr_status dr_engine_forward(const dr_module_call *call, const dr_inputs *inputs, void *saved, void *work,
                            void *const states[DR_STATES], void *o);
/* Gradients of the inputs from d_o, after a forward from zero with the same inputs and saved. */
dr_status dr_engine_backward(const dr_module_call *call, const dr_inputs *inputs, void *saved, void *work, const void *d_o,
                             const dr_input_gradients *gradients);

#endif
