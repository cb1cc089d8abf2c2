/* Choosing a token from logits. */
#ifndef DR_GENERATE_SAMPLING_H
#define DR_GENERATE_SAMPLING_H

#include "base/random.h"

#include <deltarule/generate.h>

typedef struct {
    double weight; /* exp of the logit's distance to the largest, over the temperature */
    int32_t id;
} dr_candidate;

/* DR_ERROR_ARGUMENT names the option that cannot be. */
dr_status dr_sampling_check(const dr_generate_options *options);

/* The chosen id. logits [vocabulary]; candidates [vocabulary] is scratch. One draw from random unless the temperature is 0.
 * DR_ERROR_NUMERIC if a logit is not a number or none is finite. */
dr_status dr_sample(const dr_generate_options *options, const float *logits, int64_t vocabulary, dr_candidate *candidates,
                    dr_random *random, int32_t *id);

#endif
