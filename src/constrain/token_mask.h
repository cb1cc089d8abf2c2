/* Which tokens an answer may go on with: those whose bytes the automaton takes. */
#ifndef DR_CONSTRAIN_TOKEN_MASK_H
#define DR_CONSTRAIN_TOKEN_MASK_H

#include "constrain/automaton.h"

#include <deltarule/tokenizer.h>

/* The bytes of a tokenizer's tokens, and working memory: for one thread at a time. */
typedef struct dr_token_mask dr_token_mask;

dr_status dr_token_mask_create(const dr_tokenizer *tokenizer, dr_token_mask **mask);
void dr_token_mask_destroy(dr_token_mask *mask); /* NULL is allowed */

/* logits [size of the tokenizer] with -infinity for the tokens that cannot come: *masked, valid until the next call. Special
 * tokens cannot, but for `end` where the text is whole. DR_ERROR_NUMERIC if no token is left. */
dr_status dr_token_mask_apply(dr_token_mask *mask, const dr_schema *schema, const dr_automaton *automaton, int32_t end,
                              const float *logits, const float **masked);
/* Takes the bytes of a token; false: they cannot come, and the automaton follows nothing more. */
bool dr_token_mask_take(dr_token_mask *mask, const dr_schema *schema, dr_automaton *automaton, int32_t id);

#endif
