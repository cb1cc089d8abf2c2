/* Documents as token ids. */
#include "data/encode.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/corpus.h"

#include <string.h>

dr_status dr_document_start(const dr_tokenizer *tokenizer, int32_t *start) {
    *start = dr_tokenizer_special(tokenizer, DR_TOKEN_BOS);
    if (*start < 0) *start = dr_tokenizer_special(tokenizer, DR_TOKEN_EOS);
    if (*start >= 0) return DR_OK;
    return dr_fail(DR_ERROR_UNSUPPORTED,
                   "the tokenizer names no token that begins or ends a text: tokenizer_config.json needs a bos_token or an "
                   "eos_token, and documents begin with it");
}

dr_status dr_vocabulary_check(int64_t vocabulary, const dr_tokenizer *tokenizer) {
    if (!tokenizer && vocabulary != DR_BYTE_VOCABULARY)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "the model has a vocabulary of %lld ids, and bytes have %d: give its tokenizer, the folder of its "
                       "tokenizer.json",
                       (long long)vocabulary, DR_BYTE_VOCABULARY);
    if (!tokenizer || vocabulary >= dr_tokenizer_size(tokenizer)) return DR_OK;
    return dr_fail(DR_ERROR_UNSUPPORTED,
                   "the model has a vocabulary of %lld ids, and the tokenizer %lld: it is not the tokenizer of this model",
                   (long long)vocabulary, (long long)dr_tokenizer_size(tokenizer));
}

dr_status dr_document_encoder_create(const dr_tokenizer *tokenizer, dr_document_encoder *encoder) {
    *encoder = (dr_document_encoder){0};
    DR_TRY(dr_document_start(tokenizer, &encoder->start));
    return dr_encoder_create(tokenizer, &encoder->encoder);
}

void dr_document_encoder_release(dr_document_encoder *encoder) {
    dr_encoder_destroy(encoder->encoder);
    dr_release(encoder->ids);
    *encoder = (dr_document_encoder){0};
}

dr_status dr_document_encode(dr_document_encoder *encoder, const char *text, int64_t bytes, const int32_t **ids,
                             int64_t *count) {
    const int32_t *found;
    size_t many;
    DR_TRY(dr_encoder_encode(encoder->encoder, text, (size_t)bytes, true, &found, &many));
    *count = (int64_t)many;
    *ids = found;
    if (many > 0 && found[0] == encoder->start) return DR_OK;
    if (encoder->room < *count + 1) {
        void *memory;
        dr_release(encoder->ids);
        encoder->ids = NULL;
        encoder->room = 0;
        DR_TRY(dr_allocate((size_t)(*count + *count / 4 + 1) * sizeof(int32_t), "the ids of a document", &memory));
        encoder->ids = memory;
        encoder->room = *count + *count / 4 + 1;
    }
    encoder->ids[0] = encoder->start;
    if (many > 0) memcpy(encoder->ids + 1, found, many * sizeof(int32_t));
    *ids = encoder->ids;
    ++*count;
    return DR_OK;
}

/* Token 0 is the separator, token i + 1 byte i: there is always one token to predict from. */
static dr_status byte_ids(const char *text, size_t bytes, int32_t **ids, int64_t *count) {
    void *memory;
    DR_TRY(dr_allocate((bytes + 1) * sizeof(int32_t), "the ids of a text", &memory));
    *ids = memory;
    *count = (int64_t)bytes + 1;
    (*ids)[0] = DR_DOCUMENT_START;
    for (size_t i = 0; i < bytes; i++) (*ids)[i + 1] = (unsigned char)text[i];
    return DR_OK;
}

static dr_status copy_ids(const int32_t *found, int64_t count, int32_t **ids) {
    void *memory;
    DR_TRY(dr_allocate((size_t)count * sizeof(int32_t), "the ids of a text", &memory));
    if (count > 0) memcpy(memory, found, (size_t)count * sizeof(int32_t));
    *ids = memory;
    return DR_OK;
}

static dr_status ids_as_is(const dr_tokenizer *tokenizer, const char *text, size_t bytes, int32_t **ids, int64_t *count) {
    dr_encoder *encoder;
    const int32_t *found;
    size_t many = 0;
    DR_TRY(dr_encoder_create(tokenizer, &encoder));
    dr_status status = dr_encoder_encode(encoder, text, bytes, false, &found, &many);
    *count = (int64_t)many;
    if (status == DR_OK) status = copy_ids(found, *count, ids);
    dr_encoder_destroy(encoder);
    return status;
}

dr_status dr_text_ids(const dr_tokenizer *tokenizer, const char *text, size_t bytes, dr_text_kind kind, int32_t **ids,
                      int64_t *count) {
    if (!tokenizer) return byte_ids(text, bytes, ids, count);
    if (kind == DR_TEXT_AS_IS) return ids_as_is(tokenizer, text, bytes, ids, count);
    dr_document_encoder encoder;
    const int32_t *found;
    dr_status status;
    DR_GO(dr_document_encoder_create(tokenizer, &encoder));
    DR_GO(dr_document_encode(&encoder, text, (int64_t)bytes, &found, count));
    const bool ended = *count > 1 && found[*count - 1] == dr_tokenizer_special(tokenizer, DR_TOKEN_EOS);
    if (kind == DR_TEXT_OPEN && ended) --*count;
    status = copy_ids(found, *count, ids);
done:
    dr_document_encoder_release(&encoder);
    return status;
}

/* A decoder takes the blank before a text's first word away, so each id is decoded behind itself. */
static dr_status measure(dr_decoder *decoder, int32_t id, int32_t *length) {
    const int32_t twice[] = {id, id};
    const char *text;
    size_t once_bytes, twice_bytes;
    DR_TRY(dr_decoder_decode(decoder, twice, 1, &text, &once_bytes));
    DR_TRY(dr_decoder_decode(decoder, twice, 2, &text, &twice_bytes));
    *length = twice_bytes > once_bytes ? (int32_t)(twice_bytes - once_bytes) : 0;
    return DR_OK;
}

dr_status dr_token_lengths(const dr_tokenizer *tokenizer, int32_t **lengths) {
    const int64_t size = dr_tokenizer_size(tokenizer);
    dr_decoder *decoder = NULL;
    void *memory = NULL;
    dr_status status;
    *lengths = NULL;
    DR_GO(dr_decoder_create(tokenizer, DR_DECODE_BYTES, &decoder));
    DR_GO(dr_allocate_zero((size_t)size * sizeof(int32_t), "the lengths of tokens", &memory));
    for (int64_t id = 0; id < size; id++)
        if (!dr_tokenizer_is_special(tokenizer, (int32_t)id)) DR_GO(measure(decoder, (int32_t)id, (int32_t *)memory + id));
    *lengths = memory;
    memory = NULL;
done:
    dr_decoder_destroy(decoder);
    dr_release(memory);
    return status;
}
