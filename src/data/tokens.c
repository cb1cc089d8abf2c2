/* Rows of tokens: of bytes, and parts of others. */
#include "data/tokens.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/corpus.h"

enum { FIND_AT_ONCE = 1 << 14 };

void dr_tokens_destroy(dr_tokens *tokens) {
    if (tokens) tokens->destroy(tokens);
}

/* ---- bytes ---- */

typedef struct {
    dr_tokens tokens;
    dr_documents documents; /* borrowed */
    int64_t *starts;        /* [documents.count] tokens before each document */
} byte_tokens;

/* The document that token number at lies in. */
static int64_t document_of(const byte_tokens *self, int64_t at) {
    int64_t low = 0, high = self->documents.count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (self->starts[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static dr_status read_bytes(dr_tokens *tokens, int64_t from, int64_t count, int32_t *ids, uint8_t *marks) {
    const byte_tokens *self = (const byte_tokens *)tokens;
    const int64_t end = from + count;
    int64_t i = document_of(self, from);
    for (int64_t at = from; at < end; i++) {
        const dr_document *document = &self->documents.at[i];
        int64_t first = self->starts[i], last = first + 1 + document->bytes;
        if (last > end) last = end;
        DR_TRY(dr_document_check(document));
        for (; at < last; at++) {
            ids[at - from] = at == first ? DR_DOCUMENT_START : document->text[at - first - 1];
            marks[at - from] = at == first ? DR_TOKEN_BEGINS : 0;
        }
        dr_document_forget(document);
    }
    return DR_OK;
}

static void destroy_bytes(dr_tokens *tokens) {
    byte_tokens *self = (byte_tokens *)tokens;
    dr_release(self->starts);
    dr_release(self);
}

dr_status dr_tokens_of_bytes(const dr_documents *documents, dr_tokens **tokens) {
    void *memory;
    *tokens = NULL;
    DR_TRY(dr_allocate_zero(sizeof(byte_tokens), "a row of tokens", &memory));
    byte_tokens *self = memory;
    self->tokens = (dr_tokens){.read = read_bytes, .destroy = destroy_bytes};
    self->documents = *documents;
    dr_status status = dr_allocate((size_t)documents->count * sizeof(int64_t), "the places of documents", &memory);
    if (status != DR_OK) {
        dr_release(self);
        return status;
    }
    self->starts = memory;
    for (int64_t i = 0; i < documents->count; i++) {
        self->starts[i] = self->tokens.count;
        self->tokens.count += 1 + documents->at[i].bytes;
    }
    *tokens = &self->tokens;
    return DR_OK;
}

/* ---- parts ---- */

typedef struct {
    dr_tokens tokens;
    dr_tokens *whole; /* borrowed */
    int64_t from;
} part_tokens;

static dr_status read_part(dr_tokens *tokens, int64_t from, int64_t count, int32_t *ids, uint8_t *marks) {
    const part_tokens *self = (const part_tokens *)tokens;
    return self->whole->read(self->whole, self->from + from, count, ids, marks);
}

static void destroy_part(dr_tokens *tokens) {
    dr_release(tokens);
}

dr_status dr_tokens_part(dr_tokens *whole, int64_t from, int64_t count, dr_tokens **part) {
    void *memory;
    *part = NULL;
    DR_TRY(dr_allocate_zero(sizeof(part_tokens), "a part of a row of tokens", &memory));
    part_tokens *self = memory;
    self->tokens = (dr_tokens){.count = count, .gives = whole->gives, .read = read_part, .destroy = destroy_part};
    self->whole = whole;
    self->from = from;
    *part = &self->tokens;
    return DR_OK;
}

/* ---- documents ---- */

static dr_status append(dr_token_documents *documents, int64_t begin) {
    void *memory = documents->begin;
    dr_status status = dr_grow(&memory, documents->count, sizeof(int64_t), "the places of documents");
    documents->begin = memory;
    if (status == DR_OK) documents->begin[documents->count++] = begin;
    return status;
}

dr_status dr_token_documents_find(dr_tokens *tokens, dr_token_documents *documents) {
    int32_t ids[FIND_AT_ONCE];
    uint8_t marks[FIND_AT_ONCE];
    *documents = (dr_token_documents){0};
    for (int64_t from = 0; from < tokens->count; from += FIND_AT_ONCE) {
        int64_t count = tokens->count - from < FIND_AT_ONCE ? tokens->count - from : FIND_AT_ONCE;
        DR_TRY(tokens->read(tokens, from, count, ids, marks));
        for (int64_t i = 0; i < count; i++)
            if (from + i == 0 || (marks[i] & DR_TOKEN_BEGINS)) DR_TRY(append(documents, from + i));
    }
    DR_TRY(append(documents, tokens->count));
    documents->count--;
    return DR_OK;
}

void dr_token_documents_release(dr_token_documents *documents) {
    dr_release(documents->begin);
    dr_release(documents->bytes);
    *documents = (dr_token_documents){0};
}
