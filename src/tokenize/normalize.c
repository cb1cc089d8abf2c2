/* Normal forms are utf8proc's, with the code points left alone that the original leaves alone: what stands between two of them
 * is normalized by itself. Everything else goes character by character. */
#include "tokenize/normalize.h"

#include "base/error.h"
#include "base/utf8.h"
#include "tokenize/bpe.h"
#include "tokenize/characters.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

void dr_normalizer_release(dr_normalizer *normalizer) {
    dr_text_release(&normalizer->find);
    dr_text_release(&normalizer->content);
    dr_pattern_destroy(normalizer->pattern);
    *normalizer = (dr_normalizer){0};
}

/* ---- normal forms ---------------------------------------------------------------------------------------------------- */

/* Ranges of characters that NFC and NFD, or all four, leave as they are wherever they stand between characters of such ranges.
 */
static bool stays_composed(uint32_t c) {
    return c < 0x300 || (c >= 0x400 && c < 0x483) || (c >= 0x3041 && c < 0x3099) || (c >= 0x309b && c < 0x3100) ||
           (c >= 0x3400 && c < 0xa000) || (c >= 0xac00 && c < 0xd7a4) || (c >= 0x2010 && c < 0x2126) ||
           (c >= 0x3000 && c < 0x302a) || (c >= 0x5d0 && c < 0x5eb) || (c >= 0x620 && c < 0x64b) ||
           (c >= 0xff00 && c < 0xffe0) || (c >= 0x1f000 && c < 0x1fa00) || (c >= 0x2460 && c < 0x2adc);
}

bool dr_normalizes_to_itself(const dr_normalizer *normalizer, const char *text, size_t bytes) {
    const bool composed = normalizer->kind == DR_NORMALIZE_NFC;
    if (normalizer->kind > DR_NORMALIZE_NFKD) return false;
    for (size_t at = 0, length; at < bytes; at += length) {
        uint64_t eight;
        length = 8;
        if (bytes - at >= 8) {
            memcpy(&eight, text + at, 8);
            if (!(eight & UINT64_C(0x8080808080808080))) continue;
        }
        uint32_t c = dr_utf8_character(text + at, &length);
        if (composed ? !stays_composed(c) : c >= 0x80) return false;
    }
    return true;
}

static dr_status normalize_stretch(const char *text, size_t bytes, int options, dr_text *to) {
    utf8proc_uint8_t *mapped = NULL;
    if (bytes == 0) return DR_OK;
    utf8proc_ssize_t length =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &mapped, (utf8proc_option_t)options);
    if (length < 0) {
        free(mapped);
        if (length == UTF8PROC_ERROR_NOMEM) return dr_fail(DR_ERROR_MEMORY, "there is no memory for %zu bytes of text", bytes);
        return dr_fail(DR_ERROR_UNSUPPORTED, "a text of %zu bytes cannot be normalized: %s", bytes, utf8proc_errmsg(length));
    }
    dr_status status = dr_text_append(to, (const char *)mapped, (size_t)length);
    free(mapped);
    return status;
}

static dr_status normal_form(dr_normalize_kind kind, const char *text, size_t bytes, dr_text *to) {
    int options =
        UTF8PROC_STABLE | (kind == DR_NORMALIZE_NFC || kind == DR_NORMALIZE_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
    if (kind == DR_NORMALIZE_NFKC || kind == DR_NORMALIZE_NFKD) options |= UTF8PROC_COMPAT;
    size_t from = 0;
    for (size_t at = 0, length; at < bytes; at += length) {
        uint32_t c = dr_utf8_character(text + at, &length);
        if (c < 0x7fd || !dr_is_inert(c)) continue;
        DR_TRY(normalize_stretch(text + from, at - from, options, to));
        DR_TRY(dr_text_append(to, text + at, length));
        from = at + length;
    }
    return normalize_stretch(text + from, bytes - from, options, to);
}

/* ---- character by character ------------------------------------------------------------------------------------------ */

static dr_status put(dr_text *to, uint32_t character) {
    char text[4];
    return dr_text_append(to, text, dr_utf8_write(character, text));
}

static dr_status strip(const dr_normalizer *normalizer, const char *text, size_t bytes, dr_text *to, bool *begins) {
    size_t start = 0, end = bytes, length;
    while (normalizer->left && start < end && dr_is_space(dr_utf8_character(text + start, &length))) start += length;
    while (normalizer->right && end > start) {
        size_t before = dr_utf8_before(text, end);
        if (!dr_is_space(dr_utf8_character(text + before, &length))) break;
        end = before;
    }
    if (start > 0) *begins = false;
    return dr_text_append(to, text + start, end - start);
}

static dr_status by_characters(dr_normalize_kind kind, const char *text, size_t bytes, dr_text *to, bool *begins) {
    for (size_t at = 0, length; at < bytes; at += length) {
        uint32_t c = dr_utf8_character(text + at, &length), lower[2];
        const bool drop = (kind == DR_NORMALIZE_STRIP_ACCENTS && dr_is_accent(c)) ||
                          (kind == DR_NORMALIZE_STRIP_MN && dr_is_nonspacing(c)) ||
                          (kind == DR_NORMALIZE_BERT_CLEAN && (c == 0 || c == 0xfffd || dr_is_control(c)));
        if (drop) {
            if (to->count == 0) *begins = false;
        } else if (kind == DR_NORMALIZE_LOWERCASE) {
            int count = dr_lower(c, lower);
            for (int i = 0; i < count; i++) DR_TRY(put(to, lower[i]));
        } else if (kind == DR_NORMALIZE_BERT_CLEAN && dr_is_space(c)) {
            DR_TRY(put(to, ' '));
        } else if (kind == DR_NORMALIZE_BERT_CHINESE && dr_is_chinese(c)) {
            DR_TRY(put(to, ' '));
            DR_TRY(put(to, c));
            DR_TRY(put(to, ' '));
        } else {
            DR_TRY(dr_text_append(to, text + at, length));
        }
    }
    return DR_OK;
}

static dr_status to_alphabet(const char *text, size_t bytes, dr_text *to) {
    for (size_t i = 0; i < bytes; i++) DR_TRY(put(to, dr_alphabet_character((uint8_t)text[i])));
    return DR_OK;
}

/* ---- Replace --------------------------------------------------------------------------------------------------------- */

static dr_status replace_text(const dr_normalizer *n, const char *text, size_t bytes, dr_text *to, bool *begins) {
    size_t from = 0;
    while (from < bytes) {
        const char *found = memmem(text + from, bytes - from, n->find.bytes, n->find.count);
        if (!found) break;
        size_t start = (size_t)(found - text);
        DR_TRY(dr_text_append(to, text + from, start - from));
        if (to->count == 0 && n->content.count == 0) *begins = false;
        DR_TRY(dr_text_append(to, n->content.bytes, n->content.count));
        from = start + n->find.count;
    }
    return dr_text_append(to, text + from, bytes - from);
}

static dr_status replace_pattern(const dr_normalizer *n, dr_searcher *searcher, const char *text, size_t bytes, dr_text *to,
                                 bool *begins) {
    size_t copied = 0, from = 0, last = SIZE_MAX, start, end, length;
    while (from <= bytes) {
        bool found;
        DR_TRY(dr_pattern_search(n->pattern, searcher, text, bytes, from, &found, &start, &end));
        if (!found) break;
        if (start == end && end == last) { /* an empty match right behind another does not count */
            if (from >= bytes) break;
            dr_utf8_character(text + from, &length);
            from += length;
            continue;
        }
        from = last = end;
        DR_TRY(dr_text_append(to, text + copied, start - copied));
        if (to->count == 0 && n->content.count == 0 && end > start) *begins = false;
        DR_TRY(dr_text_append(to, n->content.bytes, n->content.count));
        copied = end;
    }
    return dr_text_append(to, text + copied, bytes - copied);
}

dr_status dr_normalize(const dr_normalizer *n, dr_searcher *searcher, const char *from, size_t bytes, dr_text *to,
                       bool *begins) {
    to->count = 0;
    DR_TRY(dr_text_reserve(to, bytes + 1));
    switch (n->kind) {
    case DR_NORMALIZE_NFC:
    case DR_NORMALIZE_NFD:
    case DR_NORMALIZE_NFKC:
    case DR_NORMALIZE_NFKD:
        return normal_form(n->kind, from, bytes, to);
    case DR_NORMALIZE_STRIP:
        return strip(n, from, bytes, to, begins);
    case DR_NORMALIZE_LOWERCASE:
    case DR_NORMALIZE_STRIP_ACCENTS:
    case DR_NORMALIZE_STRIP_MN:
    case DR_NORMALIZE_BERT_CLEAN:
    case DR_NORMALIZE_BERT_CHINESE:
        return by_characters(n->kind, from, bytes, to, begins);
    case DR_NORMALIZE_REPLACE:
        return n->pattern ? replace_pattern(n, searcher, from, bytes, to, begins) : replace_text(n, from, bytes, to, begins);
    case DR_NORMALIZE_PREPEND:
        if (bytes > 0) DR_TRY(dr_text_append(to, n->content.bytes, n->content.count));
        return dr_text_append(to, from, bytes);
    case DR_NORMALIZE_BYTE_LEVEL:
        return to_alphabet(from, bytes, to);
    }
    return dr_fail(DR_ERROR_ARGUMENT, "there is no normalizer %d", (int)n->kind);
}
