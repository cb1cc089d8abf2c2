/* A state, as src/states/ sees it. */
#ifndef DR_STATES_STATE_H
#define DR_STATES_STATE_H

#include "ops/operations.h"

#include <deltarule/state.h>

struct dr_state {
    dr_backend *backend;
    dr_rule rule;
    dr_recurrence recurrence; /* of the rule above; layout: one row a sequence */
    int64_t count[DR_STATES]; /* elements a sequence; 0 where the rule carries none */
    void *at[DR_STATES];      /* [sequences, count] in the block */
    void *block;
    size_t bytes;
};

/* A state without its memory, which is enough to check against. DR_ERROR_ARGUMENT if the recurrence cannot be. */
dr_status dr_state_describe(dr_backend *backend, const dr_recurrence *recurrence, dr_state *state);

dr_dtype dr_state_dtype(const dr_state *state, dr_state_kind kind);
/* Elements of the backend's type that hold one sequence: what its operations copy. */
int64_t dr_state_words(const dr_state *state, dr_state_kind kind);

/* DR_ERROR_ARGUMENT unless rule, heads, sizes, element type and, if asked, sequences are the same. what names the first, other
 * the second: "the state", "the recurrence". */
dr_status dr_state_compare(const dr_recurrence *one, const char *what, const dr_recurrence *two, const char *other,
                           bool sequences);

#endif
