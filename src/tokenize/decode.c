/* Ids to text: a list of the tokens' texts goes through the steps of the decoder and is joined; a stream decodes a window of
 * its last ids and gives what the window's text has more than before. */
#include "tokenize/tokenizer.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"

#include <string.h>

static const char REPLACEMENT[] = "\xef\xbf\xbd"; /* U+FFFD */
enum { REPLACEMENT_BYTES = 3 };

/* Texts one behind the other. */
typedef struct {
    dr_text text;
    size_t *ends; /* [count] */
    size_t count, room;
} pieces;

struct dr_decoder {
    const dr_tokenizer *tokenizer;
    int flags;
    pieces list, other; /* other: what a step makes of list */
    dr_text scratch;
    dr_searcher *searcher;
    /* a stream: its last ids, of which the first `known` have the text `prefix`, which was given */
    dr_ids ids;
    dr_text prefix, piece;
    size_t known;
};

dr_status dr_decoder_create(const dr_tokenizer *tokenizer, int flags, dr_decoder **decoder) {
    DR_NEED(tokenizer);
    DR_NEED(decoder);
    void *memory;
    if (flags < 0 || flags > (DR_DECODE_BYTES | DR_DECODE_NO_SPECIAL))
        return dr_fail(DR_ERROR_ARGUMENT, "there is no way to decode of number %d", flags);
    DR_TRY(dr_allocate_zero(sizeof **decoder, "a decoder", &memory));
    dr_decoder *d = memory;
    d->tokenizer = tokenizer;
    d->flags = flags;
    dr_status status = dr_searcher_create(&d->searcher);
    if (status != DR_OK) {
        dr_decoder_destroy(d);
        return status;
    }
    *decoder = d;
    return DR_OK;
}

static void pieces_release(pieces *list) {
    dr_text_release(&list->text);
    dr_release(list->ends);
}

void dr_decoder_destroy(dr_decoder *d) {
    if (!d) return;
    pieces_release(&d->list);
    pieces_release(&d->other);
    dr_text_release(&d->scratch);
    dr_searcher_destroy(d->searcher);
    dr_ids_release(&d->ids);
    dr_text_release(&d->prefix);
    dr_text_release(&d->piece);
    dr_release(d);
}

static void pieces_clear(pieces *list) {
    list->text.count = list->count = 0;
}

/* What was appended to the text since the last end becomes a piece. */
static dr_status end_piece(pieces *list) {
    void *ends = list->ends;
    DR_TRY(dr_array_reserve(&ends, list->count, &list->room, 1, sizeof *list->ends, "texts of tokens"));
    list->ends = ends;
    list->ends[list->count++] = list->text.count;
    return DR_OK;
}

static dr_status add_piece(pieces *list, const char *text, size_t bytes) {
    DR_TRY(dr_text_append(&list->text, text, bytes));
    return end_piece(list);
}

static const char *piece_at(const pieces *list, size_t i, size_t *bytes) {
    size_t start = i > 0 ? list->ends[i - 1] : 0;
    *bytes = list->ends[i] - start;
    return list->text.bytes + start;
}

/* ---- bytes ----------------------------------------------------------------------------------------------------------- */

/* Appends bytes as UTF-8, U+FFFD for each broken beginning of a character. */
static dr_status append_lossy(dr_text *to, const char *bytes, size_t count) {
    for (size_t at = 0; at < count;) {
        size_t valid = dr_utf8_valid_bytes(bytes + at, count - at);
        DR_TRY(dr_text_append(to, bytes + at, valid));
        at += valid;
        if (at == count) break;
        DR_TRY(dr_text_append(to, REPLACEMENT, REPLACEMENT_BYTES));
        at += (size_t)-dr_utf8_step(bytes + at, count - at);
    }
    return DR_OK;
}

static dr_status append_bytes(const dr_decoder *d, dr_text *to, const char *bytes, size_t count) {
    return d->flags & DR_DECODE_BYTES ? dr_text_append(to, bytes, count) : append_lossy(to, bytes, count);
}

/* A token of the byte alphabet becomes its bytes; one with any other character stays as it is. */
static dr_status append_alphabet(dr_text *to, const char *token, size_t bytes) {
    size_t before = to->count;
    DR_TRY(dr_text_reserve(to, bytes));
    for (size_t at = 0, length; at < bytes; at += length) {
        int byte = dr_alphabet_byte(dr_utf8_character(token + at, &length));
        if (byte < 0) {
            to->count = before;
            return dr_text_append(to, token, bytes);
        }
        to->bytes[to->count++] = (char)byte;
    }
    return DR_OK;
}

static dr_status byte_level(dr_decoder *d) {
    d->scratch.count = 0;
    for (size_t i = 0; i < d->list.count; i++) {
        size_t bytes;
        const char *token = piece_at(&d->list, i, &bytes);
        DR_TRY(append_alphabet(&d->scratch, token, bytes));
    }
    DR_TRY(append_bytes(d, &d->other.text, d->scratch.bytes, d->scratch.count));
    return end_piece(&d->other);
}

static int hexadecimal(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The byte that <0x0A> stands for, or -1. */
static int fallback_byte(const char *token, size_t bytes) {
    if (bytes != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>') return -1;
    int high = token[3] == '+' ? 0 : hexadecimal(token[3]), low = hexadecimal(token[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

/* A run of bytes: its text if it is valid whole, else U+FFFD for each byte. */
static dr_status flush_bytes(dr_decoder *d) {
    const dr_text *run = &d->scratch;
    if (run->count == 0) return DR_OK;
    if (d->flags & DR_DECODE_BYTES || dr_utf8_valid_bytes(run->bytes, run->count) == run->count) {
        DR_TRY(add_piece(&d->other, run->bytes, run->count));
    } else {
        for (size_t i = 0; i < run->count; i++) DR_TRY(add_piece(&d->other, REPLACEMENT, REPLACEMENT_BYTES));
    }
    d->scratch.count = 0;
    return DR_OK;
}

static dr_status byte_fallback(dr_decoder *d) {
    d->scratch.count = 0;
    for (size_t i = 0; i < d->list.count; i++) {
        size_t bytes;
        const char *token = piece_at(&d->list, i, &bytes);
        int byte = fallback_byte(token, bytes);
        if (byte >= 0) {
            char c = (char)byte;
            DR_TRY(dr_text_append(&d->scratch, &c, 1));
            continue;
        }
        DR_TRY(flush_bytes(d));
        DR_TRY(add_piece(&d->other, token, bytes));
    }
    return flush_bytes(d);
}

/* ---- the other steps ------------------------------------------------------------------------------------------------- */

static dr_status replace(dr_decoder *d, const dr_normalizer *what) {
    bool begins = true;
    for (size_t i = 0; i < d->list.count; i++) {
        size_t bytes;
        const char *token = piece_at(&d->list, i, &bytes);
        if (what->pattern && dr_utf8_valid_bytes(token, bytes) < bytes)
            return dr_fail(DR_ERROR_UNSUPPORTED, "this decoder cannot give bytes: it replaces by an expression");
        DR_TRY(dr_normalize(what, d->searcher, token, bytes, &d->scratch, &begins));
        DR_TRY(add_piece(&d->other, d->scratch.bytes, d->scratch.count));
    }
    return DR_OK;
}

static dr_status strip(dr_decoder *d, const dr_decoder_stage *stage) {
    char content[4];
    size_t length = dr_utf8_write(stage->strip, content);
    for (size_t i = 0; i < d->list.count; i++) {
        size_t bytes;
        const char *token = piece_at(&d->list, i, &bytes);
        for (int64_t n = 0; n < stage->start && bytes >= length && memcmp(token, content, length) == 0; n++) {
            token += length;
            bytes -= length;
        }
        for (int64_t n = 0; n < stage->stop && bytes >= length && memcmp(token + bytes - length, content, length) == 0; n++)
            bytes -= length;
        DR_TRY(add_piece(&d->other, token, bytes));
    }
    return DR_OK;
}

/* Marks become spaces; those of the first token go, unless nothing is put before texts. */
static dr_status metaspace(dr_decoder *d, const dr_decoder_stage *stage) {
    const dr_text *mark = &stage->replace.find;
    for (size_t i = 0; i < d->list.count; i++) {
        size_t bytes;
        const char *token = piece_at(&d->list, i, &bytes);
        for (size_t at = 0; at < bytes;) {
            if (bytes - at >= mark->count && memcmp(token + at, mark->bytes, mark->count) == 0) {
                if (i > 0 || stage->keeps_first) DR_TRY(dr_text_append(&d->other.text, " ", 1));
                at += mark->count;
            } else {
                DR_TRY(dr_text_append(&d->other.text, token + at, 1));
                at++;
            }
        }
        DR_TRY(end_piece(&d->other));
    }
    return DR_OK;
}

static dr_status run_stage(dr_decoder *d, const dr_decoder_stage *stage) {
    switch (stage->kind) {
    case DR_DECODER_BYTE_LEVEL:
        return byte_level(d);
    case DR_DECODER_REPLACE:
        return replace(d, &stage->replace);
    case DR_DECODER_BYTE_FALLBACK:
        return byte_fallback(d);
    case DR_DECODER_FUSE:
        return add_piece(&d->other, d->list.text.bytes, d->list.text.count);
    case DR_DECODER_STRIP:
        return strip(d, stage);
    case DR_DECODER_METASPACE:
        return metaspace(d, stage);
    }
    return dr_fail(DR_ERROR_ARGUMENT, "there is no decoder %d", (int)stage->kind);
}

/* ---- decoding -------------------------------------------------------------------------------------------------------- */

/* The texts of the tokens. Without a decoder a space stands between them. */
static dr_status list_tokens(dr_decoder *d, const int32_t *ids, size_t count) {
    const dr_tokenizer *t = d->tokenizer;
    for (size_t i = 0; i < count; i++) {
        size_t bytes;
        const char *text = dr_tokenizer_token(t, ids[i], &bytes);
        int32_t added = text ? t->tokens[ids[i]].added : -1;
        if (!text || (d->flags & DR_DECODE_NO_SPECIAL && added >= 0 && t->added[added].skipped)) continue;
        if (added >= 0) { /* it stands for what it is looked for as */
            text = t->added[added].normalized;
            bytes = t->added[added].normalized_bytes;
        }
        if (!t->has_decoder && d->list.count > 0) DR_TRY(dr_text_append(&d->list.text, " ", 1));
        DR_TRY(add_piece(&d->list, text, bytes));
    }
    return DR_OK;
}

static dr_status decode_bytes(dr_decoder *d, const int32_t *ids, size_t count) {
    d->scratch.count = 0;
    for (size_t i = 0; i < count; i++) {
        char c = (char)ids[i];
        if (ids[i] >= 0 && ids[i] < 256) DR_TRY(dr_text_append(&d->scratch, &c, 1));
    }
    return append_bytes(d, &d->list.text, d->scratch.bytes, d->scratch.count);
}

dr_status dr_decoder_decode(dr_decoder *decoder, const int32_t *ids, size_t count, const char **text, size_t *bytes) {
    DR_NEED(decoder);
    if (count > 0) DR_NEED(ids);
    DR_NEED(text);
    DR_NEED(bytes);
    dr_decoder *d = decoder;
    dr_searcher_begin(d->searcher, count * sizeof *ids);
    pieces_clear(&d->list);
    DR_TRY(dr_text_reserve(&d->list.text, 1));
    if (d->tokenizer->bytes)
        DR_TRY(decode_bytes(d, ids, count));
    else
        DR_TRY(list_tokens(d, ids, count));
    for (int i = 0; i < d->tokenizer->decoder_count; i++) {
        pieces_clear(&d->other);
        DR_TRY(dr_text_reserve(&d->other.text, 1));
        DR_TRY(run_stage(d, &d->tokenizer->decoders[i]));
        pieces made = d->other;
        d->other = d->list;
        d->list = made;
    }
    *text = d->list.text.bytes;
    *bytes = d->list.text.count;
    return DR_OK;
}

/* ---- streams --------------------------------------------------------------------------------------------------------- */

/* A character may yet come of what ends so. */
static bool ends_broken(const char *text, size_t bytes) {
    return bytes >= REPLACEMENT_BYTES && memcmp(text + bytes - REPLACEMENT_BYTES, REPLACEMENT, REPLACEMENT_BYTES) == 0;
}

static dr_status set_prefix(dr_decoder *d, const char *text, size_t bytes) {
    d->prefix.count = 0;
    return dr_text_append(&d->prefix, text, bytes);
}

static void begin_stream(dr_decoder *d) {
    d->ids.count = d->prefix.count = d->known = 0;
}

/* The window's text, which is text whatever the flags say. */
static dr_status decode_window(dr_decoder *d, const char **text, size_t *bytes) {
    const int flags = d->flags;
    d->flags &= DR_DECODE_NO_SPECIAL;
    dr_status status = dr_decoder_decode(d, d->ids.at, d->ids.count, text, bytes);
    d->flags = flags;
    return status;
}

/* What the window's text has more than the prefix goes to *piece; false: it does not begin with the prefix. */
static dr_status take_rest(dr_decoder *d, const char *window, size_t window_bytes, bool *begins) {
    *begins = window_bytes >= d->prefix.count && memcmp(window, d->prefix.bytes, d->prefix.count) == 0;
    if (!*begins) return DR_OK;
    d->piece.count = 0;
    return dr_text_append(&d->piece, window + d->prefix.count, window_bytes - d->prefix.count);
}

dr_status dr_decoder_step(dr_decoder *decoder, int32_t id, const char **text, size_t *bytes) {
    DR_NEED(decoder);
    DR_NEED(text);
    DR_NEED(bytes);
    dr_decoder *d = decoder;
    const char *window;
    size_t window_bytes;
    bool begins;
    *text = "";
    *bytes = 0;
    DR_TRY(dr_text_reserve(&d->prefix, 1));
    if (d->prefix.count == 0 && d->ids.count > 0) {
        DR_TRY(decode_window(d, &window, &window_bytes));
        if (!ends_broken(window, window_bytes)) {
            DR_TRY(set_prefix(d, window, window_bytes));
            d->known = d->ids.count;
        }
    }
    DR_TRY(dr_ids_append(&d->ids, &id, 1));
    DR_TRY(decode_window(d, &window, &window_bytes));
    if (window_bytes <= d->prefix.count || ends_broken(window, window_bytes)) return DR_OK;
    DR_TRY(take_rest(d, window, window_bytes, &begins));
    if (!begins) {
        begin_stream(d);
        return dr_fail(DR_ERROR_FORMAT, "token %d changes text that was given before", id);
    }
    size_t known = d->ids.count - d->known;
    memmove(d->ids.at, d->ids.at + d->known, known * sizeof *d->ids.at);
    d->ids.count = known;
    DR_TRY(decode_window(d, &window, &window_bytes));
    DR_TRY(set_prefix(d, window, window_bytes));
    d->known = known;
    *text = d->piece.bytes;
    *bytes = d->piece.count;
    return DR_OK;
}

dr_status dr_decoder_finish(dr_decoder *decoder, const char **text, size_t *bytes) {
    DR_NEED(decoder);
    DR_NEED(text);
    DR_NEED(bytes);
    dr_decoder *d = decoder;
    const char *window;
    size_t window_bytes;
    bool begins;
    *text = "";
    *bytes = 0;
    DR_TRY(dr_text_reserve(&d->prefix, 1));
    DR_TRY(decode_window(d, &window, &window_bytes));
    DR_TRY(take_rest(d, window, window_bytes, &begins));
    begin_stream(d);
    if (!begins) return DR_OK;
    *text = d->piece.bytes;
    *bytes = d->piece.count;
    return DR_OK;
}
