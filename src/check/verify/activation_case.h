/* Recorded cases of the activations that have an operation of their own: the gates and the l2 norm. */
#ifndef DR_VERIFY_ACTIVATION_CASE_H
#define DR_VERIFY_ACTIVATION_CASE_H

#include "check/verify/measure.h"
#include "check/verify/vector_file.h"
#include "ops/operations.h"

typedef struct {
    const char *input_name; /* "a" or "x" */
    bool is_gate, backward;
    dr_gate gate;
    dr_l2_norm norm;
    dr_tensor input, a_log, bias; /* the last two of gates only */
    dr_tensor output, cotangent;
    dr_tensor d_input, d_a_log, d_bias;
} dr_activation_case;

/* DR_ERROR_FORMAT; DR_ERROR_UNSUPPORTED if this build does not know the activation. */
dr_status dr_activation_case_read(dr_vector_file *file, dr_activation_case *read);
/* Of what goes in and comes out. */
dr_dtype dr_activation_case_dtype(const dr_activation_case *read, const dr_backend *types);
/* Forward, and backward if recorded. types: whose element types the tensors have: the backend, or one that it stands in for. */
dr_status dr_activation_case_run(const dr_activation_case *read, dr_backend *backend, const dr_backend *types,
                                 dr_measurement *result);

#endif
