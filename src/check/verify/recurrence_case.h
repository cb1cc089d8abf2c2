/* A recorded case of a recurrence: what goes in, what must come out, and running it on a backend. */
#ifndef DR_VERIFY_RECURRENCE_CASE_H
#define DR_VERIFY_RECURRENCE_CASE_H

#include "check/verify/measure.h"
#include "check/verify/vector_file.h"
#include <deltarule/recurrence.h>

typedef struct {
    const char *name; /* in the file: "g"; NULL: the rule does not read this input */
    dr_tensor value;  /* may have fewer elements than the input: each stands for several in a row */
    bool has_gradient;
    dr_tensor gradient;
} dr_case_input;

typedef struct {
    bool has_initial, has_initial_gradient, has_final, has_cotangent;
    char initial_name[4];   /* "S0" */
    const char *final_name; /* "S" */
    dr_tensor initial, initial_gradient, final, cotangent;
} dr_case_state;

typedef struct {
    dr_rule rule;
    dr_recurrence recurrence; /* its rule is the one above: a case must stay where it was read */
    int64_t *cu_seqlens;
    double *gram;     /* the final Gram matrix, where the file's has the ridge inside */
    bool step_axis;   /* the file's key, value and beta have an axis of Householder steps, be it of one */
    double qk_l2norm; /* eps of the normalisation of query and key before the recurrence; 0: none */
    bool backward, has_output;
    dr_tensor output, output_cotangent; /* [rows, HV, V]; the cotangent may be of rank 0 */
    dr_case_input input[DR_INPUTS];
    dr_case_state state[DR_STATES];
} dr_recurrence_case;

/* DR_ERROR_FORMAT; DR_ERROR_UNSUPPORTED if this build does not know the rule or one of the file's options. The tensors are
 * those of the file, which must stay open. */
dr_status dr_recurrence_case_read(dr_vector_file *file, dr_recurrence_case *read);
/* The squash B(A) of a file act_squash as a recurrence: see recurrence_case.c. */
dr_status dr_squash_case_read(dr_vector_file *file, dr_recurrence_case *read);
void dr_recurrence_case_close(dr_recurrence_case *read);

/* Forward, and backward if recorded, through one engine. DR_ERROR_UNSUPPORTED if the backend has none for it. types: inputs and
 * results are rounded to the element types of this backend: itself, or one for which the reference stands in as the plain loop
 * that rounds nothing else. */
dr_status dr_recurrence_case_run(const dr_recurrence_case *read, dr_backend *backend, const dr_backend *types, dr_path path,
                                 dr_measurement *result);
/* Forward only, one token a call. A sequence that has ended drops out. */
dr_status dr_recurrence_case_decode(const dr_recurrence_case *read, dr_backend *backend, dr_measurement *result);

#endif
