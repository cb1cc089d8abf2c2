/* What a tokenizer is made of. src/tokenize/read.c fills it from JSON. */
#ifndef DR_TOKENIZE_TOKENIZER_H
#define DR_TOKENIZE_TOKENIZER_H

#include <deltarule/tokenizer.h>

#include "tokenize/added.h"
#include "tokenize/bpe.h"
#include "tokenize/characters.h"
#include "tokenize/normalize.h"
#include "tokenize/split.h"

#include <jansson.h>

/* One step of a decoder over the texts of the tokens. */
typedef enum {
    DR_DECODER_BYTE_LEVEL,
    DR_DECODER_REPLACE,
    DR_DECODER_BYTE_FALLBACK,
    DR_DECODER_FUSE,
    DR_DECODER_STRIP,
    DR_DECODER_METASPACE
} dr_decoder_kind;

typedef struct {
    dr_decoder_kind kind;
    dr_normalizer replace; /* Replace; Metaspace: find is the mark */
    uint32_t strip;        /* Strip: the character */
    int64_t start, stop;   /* Strip: at most so many of it on either side */
    bool keeps_first;      /* Metaspace: the first token's marks become spaces as well */
} dr_decoder_stage;

struct dr_tokenizer {
    bool bytes; /* the tokenizer of bytes: of the rest only byte_texts, size and special are used */
    char byte_texts[256];
    dr_classes classes;
    dr_bpe bpe;
    struct dr_token {
        size_t at, bytes; /* in the texts of the vocabulary; at SIZE_MAX: there is none */
        int32_t added;    /* index, or -1 */
    } * tokens;           /* [size] */
    int64_t size;
    dr_added *added;
    int32_t added_count;
    dr_trie raw, normalized; /* of added tokens */
    dr_normalizer *normalizers;
    int normalizer_count;
    dr_stage *stages;
    int stage_count;
    dr_ids around; /* the template: ids, -1 for the text */
    dr_decoder_stage *decoders;
    int decoder_count;
    bool has_decoder;
    int32_t special[DR_TOKEN_ROLES];
};

/* Fills a zeroed tokenizer from the object of a tokenizer.json; what was made stands in it when it fails. */
dr_status dr_tokenizer_read(const json_t *object, dr_tokenizer *tokenizer);

/* Its parts, in src/tokenize/read_parts.c. */
dr_status dr_read_normalizers(const json_t *tokenizer_json, dr_tokenizer *tokenizer);
dr_status dr_read_stages(const json_t *tokenizer_json, dr_tokenizer *tokenizer);
dr_status dr_read_template(const json_t *tokenizer_json, dr_tokenizer *tokenizer);
dr_status dr_read_decoders(const json_t *tokenizer_json, dr_tokenizer *tokenizer);

/* Normalizes by all normalizers in turn, but Prepend only if `prepends`; *result is the text itself or one of the two buffers.
 * begins: see dr_normalize. */
dr_status dr_normalize_all(const dr_tokenizer *tokenizer, dr_searcher *searcher, const char *text, size_t bytes, bool prepends,
                           dr_text buffers[2], const char **result, size_t *result_bytes, bool *begins);

#endif
