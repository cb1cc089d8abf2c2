/* What running a recorded recurrence whole and token by token share: its tensors in a backend's memory. */
#ifndef DR_VERIFY_RECURRENCE_RUN_H
#define DR_VERIFY_RECURRENCE_RUN_H

#include "verify/recurrence_case.h"

typedef struct {
    const dr_recurrence_case *read;
    dr_backend *backend;
    dr_recurrence recurrence;  /* the case's, with a path */
    dr_device_memory memory;   /* the caller frees it, also after a failure */
    dr_inputs inputs;          /* query and key normalised if the case says so */
    void *raw_query, *raw_key; /* before the normalisation, or NULL */
    dr_states initial;
} dr_recurrence_run;

dr_status dr_recurrence_run_start(const dr_recurrence_case *read, dr_backend *backend, dr_path path, dr_recurrence_run *run);

/* Elements of an input, a state, the output. */
int64_t dr_recurrence_run_inputs(const dr_recurrence *recurrence, dr_input input);
int64_t dr_recurrence_run_states(const dr_recurrence *recurrence, dr_state_kind state);
int64_t dr_recurrence_run_outputs(const dr_recurrence *recurrence);

#endif
