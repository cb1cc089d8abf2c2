/* Normalizers: what is done to a text before it is cut. */
#ifndef DR_TOKENIZE_NORMALIZE_H
#define DR_TOKENIZE_NORMALIZE_H

#include "tokenize/pattern.h"
#include "tokenize/text.h"

#include <stdbool.h>

typedef enum {
    DR_NORMALIZE_NFC,
    DR_NORMALIZE_NFD,
    DR_NORMALIZE_NFKC,
    DR_NORMALIZE_NFKD,
    DR_NORMALIZE_LOWERCASE,
    DR_NORMALIZE_STRIP,
    DR_NORMALIZE_STRIP_ACCENTS,
    DR_NORMALIZE_STRIP_MN, /* BERT: characters of category Mn */
    DR_NORMALIZE_REPLACE,
    DR_NORMALIZE_PREPEND,
    DR_NORMALIZE_BERT_CLEAN,   /* no control characters, every blank a space */
    DR_NORMALIZE_BERT_CHINESE, /* spaces around ideographs */
    DR_NORMALIZE_BYTE_LEVEL    /* bytes in the byte alphabet */
} dr_normalize_kind;

typedef struct {
    dr_normalize_kind kind;
    bool left, right;      /* Strip */
    dr_text find, content; /* Replace: a text and what stands for it; Prepend: content */
    dr_pattern *pattern;   /* Replace by an expression; else NULL */
} dr_normalizer;

void dr_normalizer_release(dr_normalizer *normalizer);

/* Normalizes valid UTF-8 from `from` into `to`, which is emptied first. *begins tells, and is told, whether the first character
 * of the text comes from the first of the original. */
dr_status dr_normalize(const dr_normalizer *normalizer, dr_searcher *searcher, const char *from, size_t bytes, dr_text *to,
                       bool *begins);
/* Whether the text is sure to stay as it is: a fast look. */
bool dr_normalizes_to_itself(const dr_normalizer *normalizer, const char *text, size_t bytes);

#endif
