/* Documents as a row of the token ids of a tokenizer, in memory. */
#ifndef DR_DATA_ENCODED_H
#define DR_DATA_ENCODED_H

#include "data/tokens.h"

#include <deltarule/tokenizer.h>

/* Encodes all documents, two or four bytes a token. places: where they begin, with the bytes of their text; release it. The
 * documents and the tokenizer may go afterwards. */
dr_status dr_tokens_of_text(const dr_documents *documents, const dr_tokenizer *tokenizer, dr_tokens **tokens,
                            dr_token_documents *places);

#endif
