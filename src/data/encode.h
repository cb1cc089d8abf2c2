/* Documents as token ids: one rule for training, scoring and shards. */
#ifndef DR_DATA_ENCODE_H
#define DR_DATA_ENCODE_H

#include "base/for_check.h"

#include <deltarule/tokenizer.h>

/* The id that every document begins with: what the tokenizer has for the beginning of a sequence, else for the end of one,
 * which then stands between documents. DR_ERROR_UNSUPPORTED if it has neither. */
dr_status dr_document_start(const dr_tokenizer *tokenizer, int32_t *start);

/* Whether a model with a vocabulary of so many ids may be one of this tokenizer, or without one (NULL) of bytes:
 * DR_ERROR_UNSUPPORTED says why not. */
DR_FOR_CHECK dr_status dr_vocabulary_check(int64_t vocabulary, const dr_tokenizer *tokenizer);

/* The ids of a text as the tokenizer's template has them, and before them the start, unless they begin with it. *ids is valid
 * until the next call with this object. */
typedef struct {
    dr_encoder *encoder;
    int32_t start;
    int32_t *ids; /* [room] */
    int64_t room;
} dr_document_encoder;

/* Release it, also after a failure. */
dr_status dr_document_encoder_create(const dr_tokenizer *tokenizer, dr_document_encoder *encoder);
void dr_document_encoder_release(dr_document_encoder *encoder);
dr_status dr_document_encode(dr_document_encoder *encoder, const char *text, int64_t bytes, const int32_t **ids,
                             int64_t *count);

/* One text on its own. */
typedef enum {
    DR_TEXT_WHOLE, /* a document */
    DR_TEXT_OPEN,  /* a document that is not over: without the end that the tokenizer's template has behind it */
    DR_TEXT_AS_IS  /* the text alone, without its template's beginning too */
} dr_text_kind;

/* Its ids [*count], to be freed with dr_release. tokenizer NULL: the separator and the bytes, of any kind. */
DR_FOR_CHECK dr_status dr_text_ids(const dr_tokenizer *tokenizer, const char *text, size_t bytes, dr_text_kind kind,
                                   int32_t **ids, int64_t *count);

/* How many bytes of text each id stands for: [size of the tokenizer]. What a tokenizer's normalizer took away is not in them.
 * Free with dr_release. */
dr_status dr_token_lengths(const dr_tokenizer *tokenizer, int32_t **lengths);

#endif
