/* A long row of tokens: the documents of a corpus one after another, however they are kept. Training windows are cut from it,
 * and held-out documents are scored in it. */
#ifndef DR_DATA_TOKENS_H
#define DR_DATA_TOKENS_H

#include "data/document.h"

#include <stdbool.h>

/* What is known of a token beside its id. */
enum {
    DR_TOKEN_BEGINS = 1, /* a document begins with it */
    DR_TOKEN_GIVEN = 2   /* it is part of what a model is given, not of what it shall learn to say */
};

typedef struct dr_tokens dr_tokens;
struct dr_tokens {
    int64_t count;
    bool gives; /* whether any token is DR_TOKEN_GIVEN */
    /* Tokens from, .., from + count - 1: ids [count] and marks [count]. DR_ERROR_IO if a file of them changed since it was
     * opened. */
    dr_status (*read)(dr_tokens *, int64_t from, int64_t count, int32_t *ids, uint8_t *marks);
    void (*destroy)(dr_tokens *);
};
void dr_tokens_destroy(dr_tokens *tokens); /* NULL is allowed */

/* The bytes of documents, each behind a DR_DOCUMENT_START. The documents must outlive the row. */
dr_status dr_tokens_of_bytes(const dr_documents *documents, dr_tokens **tokens);

/* Tokens from, .., from + count - 1 of a row, which must outlive its part. */
dr_status dr_tokens_part(dr_tokens *whole, int64_t from, int64_t count, dr_tokens **part);

/* Where the documents of a row begin. */
typedef struct {
    int64_t count;
    int64_t *begin; /* [count + 1] the first token of each; the last is the length of the row */
    int64_t *bytes; /* [count] of the text of each, or NULL where nobody knows */
} dr_token_documents;

/* Reads a row from its beginning to its end to find them; what comes before the first mark is a document too. Release it, also
 * after a failure. */
dr_status dr_token_documents_find(dr_tokens *tokens, dr_token_documents *documents);
void dr_token_documents_release(dr_token_documents *documents);

#endif
