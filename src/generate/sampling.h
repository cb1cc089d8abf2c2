/* What of a sampler's choice a backend can make (ops/operations.h, choose). */
#ifndef DR_GENERATE_SAMPLING_H
#define DR_GENERATE_SAMPLING_H

#include "ops/operations.h"

#include <deltarule/sample.h>

/* Whether tokens with these options follow from logits and a random number alone: not with biases and penalties, which ask for
 * what was chosen before, nor with log-probabilities, which are computed on the host. */
bool dr_sampling_is_plain(const dr_sampling *sampling);

/* The sampler's next draw, for which it draws its random number unless the temperature is 0. */
dr_draw dr_sampler_draw(dr_sampler *sampler);

/* Token id becomes part of the answer, as if dr_sampler_choose had chosen it. */
void dr_sampler_chosen(dr_sampler *sampler, int32_t id);

#endif
