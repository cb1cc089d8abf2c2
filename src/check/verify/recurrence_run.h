/* What running a recorded recurrence whole and token by token share: its tensors in a backend's memory. */
#ifndef DR_VERIFY_RECURRENCE_RUN_H
#define DR_VERIFY_RECURRENCE_RUN_H

#include "check/verify/recurrence_case.h"

typedef struct {
    const dr_recurrence_case *read;
    dr_backend *backend;
    const dr_backend *types;  /* whose element types the tensors have: the backend, or one that it stands in for */
    dr_recurrence recurrence; /* the case's, with a path */
    dr_device_memory memory;
    dr_inputs inputs;       /* query and key normalised if the case says so */
    double *raw[DR_INPUTS]; /* before the normalisation, of query and key; NULL: as they are in the file */
    dr_states initial;
} dr_recurrence_run;

dr_status dr_recurrence_run_start(const dr_recurrence_case *read, dr_backend *backend, const dr_backend *types, dr_path path,
                                  dr_recurrence_run *run);
void dr_recurrence_run_end(dr_recurrence_run *run);

/* Elements of an input, a state, the output. */
int64_t dr_recurrence_run_inputs(const dr_recurrence *recurrence, dr_input input);
int64_t dr_recurrence_run_states(const dr_recurrence *recurrence, dr_state_kind state);
int64_t dr_recurrence_run_outputs(const dr_recurrence *recurrence);

#endif
