/* What the recurrences of a model read in a call: the streams of each recurrent mixer, kept as for a backward. */
#ifndef DR_NN_OBSERVE_H
#define DR_NN_OBSERVE_H

#include "base/for_check.h"
#include "nn/session.h"

/* Of one layer, valid until the session's next call. The inputs lie in the backend's memory in the types of
 * dr_recurrence_input_dtype, NULL where the rule does not read them. */
typedef struct {
    dr_recurrence recurrence; /* as the engine runs it, of one sequence */
    dr_inputs inputs;
} dr_observed;

/* Runs the model on one sequence of tokens and keeps what each layer made. */
DR_FOR_CHECK dr_status dr_observe(dr_session *session, const int32_t *ids, int64_t count);
/* The layer's recurrence in the last dr_observe; false: the layer has no recurrent mixer. */
DR_FOR_CHECK bool dr_observed_layer(const dr_session *session, int64_t layer, dr_observed *observed);

#endif
