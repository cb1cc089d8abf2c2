/* The forms in which the tensors of a plan's calls come, for callers whose tensors are not what the recurrence reads itself:
 * element types of inputs and output, distances between tokens, states with values first, and three things that a layer makes
 * of its projections. What is made here is made as rows are read, in the precision of the backend, and differentiated by the
 * backward: gradients are of what the caller gave.
 *
 *     dr_forms forms = dr_forms_default(backend);
 *     forms.dtype[DR_INPUT_QUERY] = forms.dtype[DR_INPUT_KEY] = forms.dtype[DR_INPUT_VALUE] = forms.output = DR_BF16;
 *     forms.normalize = true;
 *     forms.beta_factor = 1;
 *     forms.decay = DR_DECAY_FORM_SOFTPLUS;
 *     dr_plan_create_with_forms(backend, &recurrence, &forms, &plan);      then calls with A_log and dt_bias
 *
 * Threads. Forms are only read, and copied into the plan. */
#ifndef DELTARULE_FORMS_H
#define DELTARULE_FORMS_H

#include <deltarule/recurrence.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What log_decay [rows, HV] or [rows, HV, K] of a call is, x, and the log decay that the recurrence reads. A_log [HV] and
 * dt_bias [HV] or [HV, K] are those of the call; without A_log the rate exp(A_log) is 1, without dt_bias it is 0. */
typedef enum {
    DR_DECAY_FORM_LOG,      /* x */
    DR_DECAY_FORM_SOFTPLUS, /* -exp(A_log) softplus(x + dt_bias): Mamba-2, Gated DeltaNet, Kimi Linear */
    DR_DECAY_FORM_BOUNDED,  /* lower_bound sigmoid(exp(A_log) (x + dt_bias)): Kimi Delta Attention with bounded gates */
} dr_decay_form;

typedef struct {
    size_t size; /* sizeof(dr_forms) */
    /* Element types of each input and its gradient: DR_F32, DR_BF16 or DR_F16, on the reference DR_F64 as well. Parameters that
     * all tokens share (a constant log_decay, correction, scan_centre, ridge) are in the backend's own type. Rounding is to the
     * nearest. */
    dr_dtype dtype[DR_INPUTS];
    dr_dtype output; /* of o and d_o */
    /* Elements from a token to the next, at least those of a token; 0: dense. The axes within a token are dense. So query, key
     * and value may be parts of one tensor, and their gradients too. 0 for parameters. */
    int64_t pitch[DR_INPUTS], gradient_pitch[DR_INPUTS];
    /* S, its gradients and boundaries are [sequences or slots, HV, V, K], not [.., HV, K, V]. Decoding turns them on the way.
     */
    bool value_first;
    /* query and key are divided by sqrt(sum of squares over K + normalize_eps), each row of them. */
    bool normalize;
    double normalize_eps; /* at least 0 */
    /* 0: beta itself; else beta = beta_factor sigmoid(what is given). 2 lets eigenvalues be negative. */
    double beta_factor;
    dr_decay_form decay;
    double lower_bound; /* of DR_DECAY_FORM_BOUNDED: below 0, and finite */
} dr_forms;

/* What calls of a plan without forms take: the types of dr_recurrence_input_dtype, dense, nothing made. NULL: of a backend in
 * DR_F32. */
DR_API dr_forms dr_forms_default(const dr_backend *backend);

#ifdef __cplusplus
}
#endif
#endif
