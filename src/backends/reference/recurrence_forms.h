/* Calls whose tensors come in other forms (dr_forms): dense tensors of double in the workspace stand for them meanwhile. States
 * are the caller's, whose layout recurrence.c reads. */
#ifndef DR_BACKENDS_REFERENCE_RECURRENCE_FORMS_H
#define DR_BACKENDS_REFERENCE_RECURRENCE_FORMS_H

#include "ops/plan.h"

typedef struct {
    dr_call call; /* the given one with the tensors below */
    dr_inputs inputs;
    dr_input_gradients d_inputs;
} dr_reference_dense;

/* Bytes of them; none where the plan's forms are the default ones. */
size_t dr_reference_forms_bytes(const dr_plan *plan, bool backward);

/* The inputs as the recurrence reads them and, in a backward, d_o; room for what it writes. */
void dr_reference_forms_begin(const dr_plan *plan, const dr_call *given, bool backward, void *memory,
                              dr_reference_dense *dense);

/* Before a decode from a pool: the outputs of sequences that it skips stay what they are. */
void dr_reference_forms_keep(const dr_plan *plan, const dr_call *given, const dr_reference_dense *dense);

/* What it wrote, in the caller's forms. */
void dr_reference_forms_end(const dr_plan *plan, const dr_call *given, bool backward, const dr_reference_dense *dense);

#endif
