/* Corpora in memory. */
#ifndef DR_TESTS_MADE_CORPUS_H
#define DR_TESTS_MADE_CORPUS_H

#include "data/corpus.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* A corpus of documents of the given sizes: lines of 9 letters, so that a line starts at every tenth byte. */
static inline dr_corpus made_corpus(const int64_t *sizes, int64_t count) {
    dr_corpus corpus = {.documents = {.at = calloc((size_t)count, sizeof(dr_document)), .count = count}};
    assert_non_null(corpus.documents.at);
    for (int64_t i = 0; i < count; i++) {
        uint8_t *text = malloc((size_t)sizes[i]);
        assert_non_null(text);
        for (int64_t byte = 0; byte < sizes[i]; byte++) text[byte] = byte % 10 == 9 ? '\n' : (uint8_t)('a' + (i + byte) % 26);
        corpus.documents.at[i] = (dr_document){.name = "made", .text = text, .bytes = sizes[i]};
        corpus.documents.bytes += sizes[i];
    }
    return corpus;
}

static inline void free_corpus(dr_corpus *corpus) {
    for (int64_t i = 0; i < corpus->documents.count; i++) free((void *)corpus->documents.at[i].text);
    free(corpus->documents.at);
}

#endif
