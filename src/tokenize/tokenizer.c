/* A tokenizer as an object: making it, taking it apart, and what can be asked of it. */
#include "tokenize/tokenizer.h"

#include "base/error.h"
#include "base/memory.h"

#include <string.h>

enum { DOCUMENT_START = 256, BYTE_IDS = 257 };

dr_status dr_tokenizer_bytes(dr_tokenizer **tokenizer) {
    DR_NEED(tokenizer);
    void *memory;
    DR_TRY(dr_allocate_zero(sizeof **tokenizer, "a tokenizer", &memory));
    *tokenizer = memory;
    (*tokenizer)->bytes = true;
    (*tokenizer)->size = BYTE_IDS;
    for (int i = 0; i < DOCUMENT_START; i++) (*tokenizer)->byte_texts[i] = (char)i;
    for (int i = 0; i < DR_TOKEN_ROLES; i++) (*tokenizer)->special[i] = i == DR_TOKEN_BOS ? DOCUMENT_START : -1;
    return DR_OK;
}

void dr_tokenizer_destroy(dr_tokenizer *t) {
    if (!t) return;
    dr_bpe_release(&t->bpe);
    dr_release(t->tokens);
    for (int32_t i = 0; i < t->added_count; i++) {
        dr_release(t->added[i].content);
        dr_release(t->added[i].normalized);
    }
    dr_release(t->added);
    dr_trie_release(&t->raw);
    dr_trie_release(&t->normalized);
    for (int i = 0; i < t->normalizer_count; i++) dr_normalizer_release(&t->normalizers[i]);
    dr_release(t->normalizers);
    for (int i = 0; i < t->stage_count; i++) dr_stage_release(&t->stages[i]);
    dr_release(t->stages);
    for (int i = 0; i < t->decoder_count; i++) dr_normalizer_release(&t->decoders[i].replace);
    dr_release(t->decoders);
    dr_ids_release(&t->around);
    dr_release(t);
}

int64_t dr_tokenizer_size(const dr_tokenizer *tokenizer) {
    return tokenizer ? tokenizer->size : 0;
}

int32_t dr_tokenizer_id(const dr_tokenizer *t, const char *token, size_t bytes) {
    if (!t || !token) return -1;
    if (t->bytes) return bytes == 1 ? (uint8_t)token[0] : -1;
    for (int32_t i = t->added_count - 1; i >= 0; i--)
        if (t->added[i].id >= 0 && t->added[i].content_bytes == bytes && memcmp(t->added[i].content, token, bytes) == 0)
            return t->added[i].id;
    return dr_words_find(&t->bpe.vocabulary, token, bytes);
}

const char *dr_tokenizer_token(const dr_tokenizer *t, int32_t id, size_t *bytes) {
    if (!t || !bytes || id < 0 || id >= t->size) return NULL;
    if (t->bytes) {
        *bytes = 1;
        return id < DOCUMENT_START ? &t->byte_texts[id] : NULL;
    }
    const struct dr_token *token = &t->tokens[id];
    if (token->added >= 0) {
        *bytes = t->added[token->added].content_bytes;
        return t->added[token->added].content;
    }
    *bytes = token->bytes;
    return token->at == SIZE_MAX ? NULL : t->bpe.vocabulary.texts.bytes + token->at;
}

int32_t dr_tokenizer_special(const dr_tokenizer *tokenizer, dr_token_role role) {
    return tokenizer && role >= 0 && role < DR_TOKEN_ROLES ? tokenizer->special[role] : -1;
}

bool dr_tokenizer_is_special(const dr_tokenizer *t, int32_t id) {
    if (!t || id < 0 || id >= t->size) return false;
    if (t->bytes) return id == DOCUMENT_START;
    return t->tokens[id].added >= 0 && t->added[t->tokens[id].added].special;
}
