/* Filling in what the load stage is told (rows.h): all but what the diagonal scan makes, which is NULL. */
#ifndef DR_CUDA_ROWS_MAKE_H
#define DR_CUDA_ROWS_MAKE_H

#include "backends/cuda/cuda.h"
#include "backends/cuda/rows/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* DR_ERROR_UNSUPPORTED if no engine of the GPU has what the rule gathers beside its state. */
dr_status dr_cuda_rule_check(const dr_rule *rule);

/* Whether kernels that round to 16 bits between stages would cost the rule more than twice what 16-bit inputs cost it. */
bool dr_cuda_rule_widens(const dr_rule *rule);

/* Whether a row takes off all that the key it writes reads. The gradient of the state then loses what dY has along that key,
 * chunk after chunk, and dY rounded once would leave more of it than a plain loop's rounding does. */
bool dr_cuda_rows_step_fully(const dr_cuda_rows *rows);

/* The rule's traits, in rows whose `group` is set and whose other traits are zeros. */
void dr_cuda_rows_traits(const dr_rule *rule, dr_cuda_rows *rows);

/* For kernels that take chunks: rows whose keys, values, queries and gains may be made before these then have inputs in their
 * places (engine/made.h). */
void dr_cuda_rows_make_before(dr_cuda_rows *rows);

/* What all calls have in common, vectors being stored so. */
void dr_cuda_rows_plan(const dr_recurrence *recurrence, dr_dtype storage, dr_cuda_rows *rows);

/* Then, in a call's copy, its pointers; gradients NULL: none wanted. */
void dr_cuda_rows_point(const dr_inputs *inputs, const dr_input_gradients *gradients, dr_cuda_rows *rows);

#ifdef __cplusplus
}
#endif
#endif
