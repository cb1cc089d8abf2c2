/* Reads a tokenizer.json, and with what reads encodes texts, the file itself among them, and decodes the ids: whole and as a
 * stream. */
#include "fuzz.h"

#include <deltarule/tokenizer.h>

enum { MOST_TEXT = 2048 };

/* No piece begins or ends within a character. */
static void stream(dr_decoder *decoder, const int32_t *ids, size_t count) {
    const char *piece;
    size_t bytes;
    for (size_t i = 0; i <= count; i++) {
        dr_status status =
            i < count ? dr_decoder_step(decoder, ids[i], &piece, &bytes) : dr_decoder_finish(decoder, &piece, &bytes);
        if (status != DR_OK) return;
        if (bytes > 0 && ((piece[0] & 0xc0) == 0x80 || (piece[bytes - 1] & 0xc0) == 0xc0)) abort();
    }
}

/* ids lie in the encoder until its next call. */
static void decode(const dr_tokenizer *tokenizer, const int32_t *ids, size_t count) {
    static const int flags[] = {0, DR_DECODE_NO_SPECIAL, DR_DECODE_BYTES};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        dr_decoder *decoder = NULL;
        const char *text;
        size_t bytes;
        if (dr_decoder_create(tokenizer, flags[i], &decoder) != DR_OK) continue;
        dr_decoder_decode(decoder, ids, count, &text, &bytes);
        stream(decoder, ids, count);
        dr_decoder_destroy(decoder);
    }
}

static void use(const dr_tokenizer *tokenizer, const char *text, size_t bytes) {
    dr_encoder *encoder = NULL;
    if (dr_encoder_create(tokenizer, &encoder) != DR_OK) return;
    for (int special = 0; special < 2; special++) {
        const int32_t *ids;
        size_t count;
        if (dr_encoder_encode(encoder, text, bytes, special, &ids, &count) != DR_OK) continue;
        for (size_t i = 0; i < count; i++)
            if (ids[i] < 0 || ids[i] >= dr_tokenizer_size(tokenizer)) abort();
        decode(tokenizer, ids, count);
    }
    dr_encoder_destroy(encoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "Hello  world's the \xc3\xa9\xcc\x81t\xe2\x96\x81 123456\r\n\n\t<s> <x>  don \xff\xe4\xb8\xad";
    dr_tokenizer *tokenizer = NULL;
    if (dr_tokenizer_parse((const char *)data, size, "tokenizer.json", &tokenizer) != DR_OK) return 0;
    use(tokenizer, text, sizeof text - 1);
    use(tokenizer, (const char *)data, size < MOST_TEXT ? size : MOST_TEXT);
    dr_tokenizer_destroy(tokenizer);
    return 0;
}
