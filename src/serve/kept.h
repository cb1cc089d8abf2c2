/* States of prompts and answers that were computed, by the tokens they have seen: a prompt that begins with such tokens goes on
 * from there. In memory, within a bound; what was not used for longest makes room. For one thread at a time. */
#ifndef DR_SERVE_KEPT_H
#define DR_SERVE_KEPT_H

#include <deltarule/pool.h>

typedef struct dr_kept_states dr_kept_states;

/* bytes 0: nothing is kept. */
dr_status dr_kept_states_create(int64_t bytes, dr_kept_states **kept);
void dr_kept_states_destroy(dr_kept_states *kept); /* NULL is allowed */

/* Whether anything is kept at all. */
bool dr_kept_states_takes(const dr_kept_states *kept);
/* Keeps the state of one sequence that has seen ids [count], and owns it; what cannot be kept is freed. */
void dr_kept_states_add(dr_kept_states *kept, const int32_t *ids, int64_t count, dr_model_state *state);
/* The state of the most tokens that ids [count] begin with, *tokens of them; NULL: none. Valid until the next call. */
const dr_model_state *dr_kept_states_find(dr_kept_states *kept, const int32_t *ids, int64_t count, int64_t *tokens);

#endif
