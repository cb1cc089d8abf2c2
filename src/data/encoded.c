/* Text that is encoded when it is opened: for corpora that are small beside the memory. Larger ones are made into shards. */
#include "data/encoded.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/encode.h"

#include <string.h>

enum { MOST_NARROW = 65536 };

typedef struct {
    dr_tokens tokens;
    uint8_t *ids; /* [room, width] */
    int64_t room;
    size_t width;
    int64_t *begin; /* [documents] */
    int64_t documents;
} encoded_tokens;

static int32_t id_at(const encoded_tokens *self, int64_t token) {
    uint16_t narrow;
    int32_t wide;
    if (self->width == sizeof wide) {
        memcpy(&wide, self->ids + (size_t)token * sizeof wide, sizeof wide);
        return wide;
    }
    memcpy(&narrow, self->ids + (size_t)token * sizeof narrow, sizeof narrow);
    return narrow;
}

/* The first document that begins with this token or a later one. */
static int64_t document_from(const encoded_tokens *self, int64_t token) {
    int64_t low = 0, high = self->documents;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (self->begin[middle] >= token)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static dr_status read_encoded(dr_tokens *tokens, int64_t from, int64_t count, int32_t *ids, uint8_t *marks) {
    const encoded_tokens *self = (const encoded_tokens *)tokens;
    for (int64_t i = 0; i < count; i++) ids[i] = id_at(self, from + i);
    memset(marks, 0, (size_t)count);
    for (int64_t i = document_from(self, from); i < self->documents && self->begin[i] < from + count; i++)
        marks[self->begin[i] - from] = DR_TOKEN_BEGINS;
    return DR_OK;
}

static void destroy_encoded(dr_tokens *tokens) {
    encoded_tokens *self = (encoded_tokens *)tokens;
    dr_release(self->ids);
    dr_release(self->begin);
    dr_release(self);
}

/* Room for `more` ids behind those that are there. */
static dr_status reserve(encoded_tokens *self, int64_t more) {
    const int64_t needed = self->tokens.count + more;
    if (needed <= self->room) return DR_OK;
    const int64_t room = needed + needed / 4;
    void *memory = self->ids;
    DR_TRY(self->ids ? dr_resize(&memory, (size_t)self->room * self->width, (size_t)room * self->width, "the ids of a corpus")
                     : dr_allocate((size_t)room * self->width, "the ids of a corpus", &memory));
    self->ids = memory;
    self->room = room;
    return DR_OK;
}

static dr_status append(encoded_tokens *self, const int32_t *ids, int64_t count) {
    DR_TRY(reserve(self, count));
    for (int64_t i = 0; i < count; i++) {
        const uint16_t narrow = (uint16_t)ids[i];
        uint8_t *at = self->ids + (size_t)(self->tokens.count + i) * self->width;
        memcpy(at, self->width == sizeof narrow ? (const void *)&narrow : (const void *)&ids[i], self->width);
    }
    self->tokens.count += count;
    return DR_OK;
}

static dr_status allocate_places(int64_t count, int64_t **places) {
    void *memory;
    DR_TRY(dr_allocate((size_t)(count + 1) * sizeof(int64_t), "the places of documents", &memory));
    *places = memory;
    return DR_OK;
}

static dr_status encode_all(encoded_tokens *self, const dr_documents *documents, dr_document_encoder *encoder,
                            dr_token_documents *places) {
    DR_TRY(allocate_places(documents->count, &self->begin));
    DR_TRY(allocate_places(documents->count, &places->begin));
    DR_TRY(allocate_places(documents->count, &places->bytes));
    for (int64_t i = 0; i < documents->count; i++) {
        const dr_document *document = &documents->at[i];
        const int32_t *ids;
        int64_t count;
        DR_TRY(dr_document_check(document));
        dr_status status = dr_document_encode(encoder, (const char *)document->text, document->bytes, &ids, &count);
        if (status != DR_OK) return dr_fail_in(status, "%s", document->name);
        dr_document_forget(document);
        self->begin[i] = places->begin[i] = self->tokens.count;
        places->bytes[i] = document->bytes;
        DR_TRY(append(self, ids, count));
        places->begin[i + 1] = self->tokens.count;
        self->documents = places->count = i + 1;
    }
    return DR_OK;
}

dr_status dr_tokens_of_text(const dr_documents *documents, const dr_tokenizer *tokenizer, dr_tokens **tokens,
                            dr_token_documents *places) {
    dr_document_encoder encoder;
    void *memory;
    *tokens = NULL;
    *places = (dr_token_documents){0};
    DR_TRY(dr_allocate_zero(sizeof(encoded_tokens), "a row of tokens", &memory));
    encoded_tokens *self = memory;
    self->tokens = (dr_tokens){.read = read_encoded, .destroy = destroy_encoded};
    self->width = dr_tokenizer_size(tokenizer) > MOST_NARROW ? sizeof(int32_t) : sizeof(uint16_t);
    dr_status status = dr_document_encoder_create(tokenizer, &encoder);
    if (status == DR_OK) status = encode_all(self, documents, &encoder, places);
    dr_document_encoder_release(&encoder);
    if (status == DR_OK) {
        *tokens = &self->tokens;
        return DR_OK;
    }
    destroy_encoded(&self->tokens);
    dr_token_documents_release(places);
    return status;
}
