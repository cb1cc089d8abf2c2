/* Forms of a plan's tensors within ops: their check, and what backends ask of them. */
#ifndef DR_OPS_FORMS_H
#define DR_OPS_FORMS_H

#include "ops/plan.h"

/* recurrence was checked. DR_ERROR_ARGUMENT with the member that cannot be. */
dr_status dr_forms_check(const dr_backend *backend, const dr_recurrence *recurrence, const dr_forms *forms);

/* Beside the kinds of calls that a plan is for: its forwards take slots. */
enum { DR_CALLS_POOLED = 4 };

/* Whether they are those of dr_forms_default. */
bool dr_forms_are_plain(const dr_backend *backend, const dr_forms *forms);

/* Elements from a token of the input to the next, where the caller told `pitch`; 0: it is no input of each token. */
int64_t dr_forms_token(const dr_recurrence *recurrence, dr_input input, int64_t pitch);

/* A dt_bias of a value head: as many elements as its log decay has. */
int64_t dr_forms_bias_size(const dr_recurrence *recurrence);

/* What the recurrence reads is made of this input. */
bool dr_forms_make(const dr_forms *forms, dr_input input);

#endif
