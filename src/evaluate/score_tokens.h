/* Scoring a row of tokens, document by document: what training does to held-out shards. */
#ifndef DR_EVALUATE_SCORE_TOKENS_H
#define DR_EVALUATE_SCORE_TOKENS_H

#include "data/tokens.h"

#include <deltarule/evaluate.h>

typedef struct {
    int64_t window;         /* tokens a call */
    int64_t most;           /* so many tokens, of documents from all over the row; 0: all */
    const int32_t *lengths; /* [vocabulary] bytes of text of each id; NULL: not known, and bits_per_byte is NaN */
    int64_t known;          /* ids that have a length */
} dr_token_score_options;

/* Each document is predicted from its first token on, with the state carried from window to window and none from the document
 * before. Tokens that are given are read, not scored. score->files counts documents. A loss that is not finite is no failure.
 * Where nothing can be scored, tokens is 0 and the loss NaN. */
dr_status dr_score_tokens(dr_session *session, dr_tokens *tokens, const dr_token_documents *documents,
                          const dr_token_score_options *options, dr_score *score);

#endif
