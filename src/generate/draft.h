/* Guesses of the next tokens of a text, and computing them together.
 *
 * The model computes the tokens that were chosen last and the guesses behind them in one call, one after another through the
 * decode engine, which gives the bits of single steps and reads each weight once (dr_session_steps). Then tokens are chosen as
 * without guesses, from the logits of each; the first that is not the guess ends the round. A recurrent state cannot be cut
 * back, so the state goes back to a copy that was made before the round, and the next round computes the tokens that stayed
 * once more, with its own guesses behind them. So a round is one call whatever stays. */
#ifndef DR_GENERATE_DRAFT_H
#define DR_GENERATE_DRAFT_H

#include <deltarule/generate.h>

/* DR_ERROR_ARGUMENT unless the options' guesses are possible with this model. */
dr_status dr_draft_check(const dr_model *model, const dr_generate_options *options);

typedef struct dr_draft dr_draft;
/* state: of one sequence, which has read ids [count]. It and the options must outlive the draft. */
dr_status dr_draft_create(const dr_model *model, const dr_generate_options *options, dr_model_state *state, const int32_t *ids,
                          int64_t count, dr_draft **draft);
void dr_draft_destroy(dr_draft *draft); /* NULL is allowed */

/* Guesses, and computes them behind the tokens that were chosen; one was, at least, since the last call. */
dr_status dr_draft_compute(dr_draft *draft);
/* The logits that the next token is chosen from, and the token that was chosen from them. *same: it is the guess, so that there
 * are logits of one more. A first token, chosen from the prompt's logits, is told without dr_draft_next. */
void dr_draft_next(dr_draft *draft, const float **logits);
dr_status dr_draft_chosen(dr_draft *draft, int32_t id, bool *same);

/* Adds how many tokens were guessed, and how many stayed. */
void dr_draft_count(const dr_draft *draft, int64_t *drafted, int64_t *accepted);

#endif
