/* Characters and texts as Python's str has them: positions count code points, letters change by Unicode's full mappings. */
#include "tokenize/template.h"

#include <string.h>
#include <utf8proc.h>

uint32_t dr_character_next(dr_span text, size_t *at) {
    const uint8_t *s = (const uint8_t *)text.bytes + *at;
    size_t length = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    uint32_t character = length == 1 ? s[0] : s[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) character = character << 6 | (s[i] & 0x3f);
    *at += length;
    return character;
}

size_t dr_character_bytes(uint32_t character, char bytes[4]) {
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)character, (utf8proc_uint8_t *)bytes);
}

bool dr_character_line_end(uint32_t c) {
    return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool dr_character_blank(uint32_t c) {
    return c == ' ' || c == '\t' || c == 0x1f || dr_character_line_end(c) || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x202f || c == 0x205f || c == 0x3000;
}

static utf8proc_category_t category(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)c);
}

bool dr_character_printable(uint32_t c) {
    utf8proc_category_t k = category(c);
    bool is_other = k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CS ||
                    k == UTF8PROC_CATEGORY_CO || k == UTF8PROC_CATEGORY_CN;
    bool is_separator = k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP || k == UTF8PROC_CATEGORY_ZS;
    return c == ' ' || (!is_other && !is_separator);
}

/* Letters that have a case by category, and those that Unicode counts among them (Other_Uppercase, Other_Lowercase). */
bool dr_character_cased(uint32_t c) {
    static const uint32_t others[][2] = {{0xaa, 0xaa},     {0xba, 0xba},     {0x2b0, 0x2b8},   {0x2c0, 0x2c1},
                                         {0x2e0, 0x2e4},   {0x345, 0x345},   {0x37a, 0x37a},   {0x1d2c, 0x1d6a},
                                         {0x1d78, 0x1d78}, {0x1d9b, 0x1dbf}, {0x2071, 0x2071}, {0x207f, 0x207f},
                                         {0x2090, 0x209c}, {0x2160, 0x217f}, {0x24b6, 0x24e9}, {0x2c7c, 0x2c7d},
                                         {0xa69c, 0xa69d}, {0xa770, 0xa770}, {0xa7f8, 0xa7f9}, {0xab5c, 0xab5f}};
    utf8proc_category_t k = category(c);
    if (k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT) return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (c >= others[i][0] && c <= others[i][1]) return true;
    return false;
}

bool dr_character_letter(uint32_t c) {
    utf8proc_category_t k = category(c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT || k == UTF8PROC_CATEGORY_LM ||
           k == UTF8PROC_CATEGORY_LO;
}

bool dr_character_digit(uint32_t c) {
    return category(c) == UTF8PROC_CATEGORY_ND || c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 ||
           (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089);
}

bool dr_character_numeric(uint32_t c) {
    utf8proc_category_t k = category(c);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool dr_text_valid(dr_template *t, dr_span text) {
    t->line = 1;
    for (size_t at = 0; at < text.count;) {
        utf8proc_int32_t character;
        utf8proc_ssize_t length =
            utf8proc_iterate((const utf8proc_uint8_t *)text.bytes + at, (utf8proc_ssize_t)(text.count - at), &character);
        if (length <= 0) return dr_template_fail(t, "the template is not UTF-8: byte 0x%02x", (uint8_t)text.bytes[at]);
        t->line += character == '\n';
        at += (size_t)length;
    }
    return true;
}

int64_t dr_text_characters(dr_span text) {
    int64_t count = 0;
    for (size_t i = 0; i < text.count; i++) count += (text.bytes[i] & 0xc0) != 0x80;
    return count;
}

size_t dr_text_offset(dr_span text, int64_t character) {
    size_t at = 0;
    for (; at < text.count; at++)
        if ((text.bytes[at] & 0xc0) != 0x80 && character-- == 0) break;
    return at;
}

/* ---- letters changed --------------------------------------------------------------------------------------------------- */

/* Mappings to more than one character: Unicode 14, SpecialCasing.txt, those that no language and no place decides. */
static const struct {
    uint32_t from;
    dr_text_case change;
    uint32_t to[3];
} special[] = {
    {0x00df, DR_TEXT_UPPER, {0x53, 0x53, 0}},       {0x00df, DR_TEXT_TITLE, {0x53, 0x73, 0}},
    {0x0130, DR_TEXT_LOWER, {0x69, 0x307, 0}},      {0x0149, DR_TEXT_UPPER, {0x2bc, 0x4e, 0}},
    {0x0149, DR_TEXT_TITLE, {0x2bc, 0x4e, 0}},      {0x01f0, DR_TEXT_UPPER, {0x4a, 0x30c, 0}},
    {0x01f0, DR_TEXT_TITLE, {0x4a, 0x30c, 0}},      {0x0390, DR_TEXT_UPPER, {0x399, 0x308, 0x301}},
    {0x0390, DR_TEXT_TITLE, {0x399, 0x308, 0x301}}, {0x03b0, DR_TEXT_UPPER, {0x3a5, 0x308, 0x301}},
    {0x03b0, DR_TEXT_TITLE, {0x3a5, 0x308, 0x301}}, {0x0587, DR_TEXT_UPPER, {0x535, 0x552, 0}},
    {0x0587, DR_TEXT_TITLE, {0x535, 0x582, 0}},     {0x1e96, DR_TEXT_UPPER, {0x48, 0x331, 0}},
    {0x1e96, DR_TEXT_TITLE, {0x48, 0x331, 0}},      {0x1e97, DR_TEXT_UPPER, {0x54, 0x308, 0}},
    {0x1e97, DR_TEXT_TITLE, {0x54, 0x308, 0}},      {0x1e98, DR_TEXT_UPPER, {0x57, 0x30a, 0}},
    {0x1e98, DR_TEXT_TITLE, {0x57, 0x30a, 0}},      {0x1e99, DR_TEXT_UPPER, {0x59, 0x30a, 0}},
    {0x1e99, DR_TEXT_TITLE, {0x59, 0x30a, 0}},      {0x1e9a, DR_TEXT_UPPER, {0x41, 0x2be, 0}},
    {0x1e9a, DR_TEXT_TITLE, {0x41, 0x2be, 0}},      {0x1f50, DR_TEXT_UPPER, {0x3a5, 0x313, 0}},
    {0x1f50, DR_TEXT_TITLE, {0x3a5, 0x313, 0}},     {0x1f52, DR_TEXT_UPPER, {0x3a5, 0x313, 0x300}},
    {0x1f52, DR_TEXT_TITLE, {0x3a5, 0x313, 0x300}}, {0x1f54, DR_TEXT_UPPER, {0x3a5, 0x313, 0x301}},
    {0x1f54, DR_TEXT_TITLE, {0x3a5, 0x313, 0x301}}, {0x1f56, DR_TEXT_UPPER, {0x3a5, 0x313, 0x342}},
    {0x1f56, DR_TEXT_TITLE, {0x3a5, 0x313, 0x342}}, {0x1f80, DR_TEXT_UPPER, {0x1f08, 0x399, 0}},
    {0x1f81, DR_TEXT_UPPER, {0x1f09, 0x399, 0}},    {0x1f82, DR_TEXT_UPPER, {0x1f0a, 0x399, 0}},
    {0x1f83, DR_TEXT_UPPER, {0x1f0b, 0x399, 0}},    {0x1f84, DR_TEXT_UPPER, {0x1f0c, 0x399, 0}},
    {0x1f85, DR_TEXT_UPPER, {0x1f0d, 0x399, 0}},    {0x1f86, DR_TEXT_UPPER, {0x1f0e, 0x399, 0}},
    {0x1f87, DR_TEXT_UPPER, {0x1f0f, 0x399, 0}},    {0x1f88, DR_TEXT_UPPER, {0x1f08, 0x399, 0}},
    {0x1f89, DR_TEXT_UPPER, {0x1f09, 0x399, 0}},    {0x1f8a, DR_TEXT_UPPER, {0x1f0a, 0x399, 0}},
    {0x1f8b, DR_TEXT_UPPER, {0x1f0b, 0x399, 0}},    {0x1f8c, DR_TEXT_UPPER, {0x1f0c, 0x399, 0}},
    {0x1f8d, DR_TEXT_UPPER, {0x1f0d, 0x399, 0}},    {0x1f8e, DR_TEXT_UPPER, {0x1f0e, 0x399, 0}},
    {0x1f8f, DR_TEXT_UPPER, {0x1f0f, 0x399, 0}},    {0x1f90, DR_TEXT_UPPER, {0x1f28, 0x399, 0}},
    {0x1f91, DR_TEXT_UPPER, {0x1f29, 0x399, 0}},    {0x1f92, DR_TEXT_UPPER, {0x1f2a, 0x399, 0}},
    {0x1f93, DR_TEXT_UPPER, {0x1f2b, 0x399, 0}},    {0x1f94, DR_TEXT_UPPER, {0x1f2c, 0x399, 0}},
    {0x1f95, DR_TEXT_UPPER, {0x1f2d, 0x399, 0}},    {0x1f96, DR_TEXT_UPPER, {0x1f2e, 0x399, 0}},
    {0x1f97, DR_TEXT_UPPER, {0x1f2f, 0x399, 0}},    {0x1f98, DR_TEXT_UPPER, {0x1f28, 0x399, 0}},
    {0x1f99, DR_TEXT_UPPER, {0x1f29, 0x399, 0}},    {0x1f9a, DR_TEXT_UPPER, {0x1f2a, 0x399, 0}},
    {0x1f9b, DR_TEXT_UPPER, {0x1f2b, 0x399, 0}},    {0x1f9c, DR_TEXT_UPPER, {0x1f2c, 0x399, 0}},
    {0x1f9d, DR_TEXT_UPPER, {0x1f2d, 0x399, 0}},    {0x1f9e, DR_TEXT_UPPER, {0x1f2e, 0x399, 0}},
    {0x1f9f, DR_TEXT_UPPER, {0x1f2f, 0x399, 0}},    {0x1fa0, DR_TEXT_UPPER, {0x1f68, 0x399, 0}},
    {0x1fa1, DR_TEXT_UPPER, {0x1f69, 0x399, 0}},    {0x1fa2, DR_TEXT_UPPER, {0x1f6a, 0x399, 0}},
    {0x1fa3, DR_TEXT_UPPER, {0x1f6b, 0x399, 0}},    {0x1fa4, DR_TEXT_UPPER, {0x1f6c, 0x399, 0}},
    {0x1fa5, DR_TEXT_UPPER, {0x1f6d, 0x399, 0}},    {0x1fa6, DR_TEXT_UPPER, {0x1f6e, 0x399, 0}},
    {0x1fa7, DR_TEXT_UPPER, {0x1f6f, 0x399, 0}},    {0x1fa8, DR_TEXT_UPPER, {0x1f68, 0x399, 0}},
    {0x1fa9, DR_TEXT_UPPER, {0x1f69, 0x399, 0}},    {0x1faa, DR_TEXT_UPPER, {0x1f6a, 0x399, 0}},
    {0x1fab, DR_TEXT_UPPER, {0x1f6b, 0x399, 0}},    {0x1fac, DR_TEXT_UPPER, {0x1f6c, 0x399, 0}},
    {0x1fad, DR_TEXT_UPPER, {0x1f6d, 0x399, 0}},    {0x1fae, DR_TEXT_UPPER, {0x1f6e, 0x399, 0}},
    {0x1faf, DR_TEXT_UPPER, {0x1f6f, 0x399, 0}},    {0x1fb2, DR_TEXT_UPPER, {0x1fba, 0x399, 0}},
    {0x1fb2, DR_TEXT_TITLE, {0x1fba, 0x345, 0}},    {0x1fb3, DR_TEXT_UPPER, {0x391, 0x399, 0}},
    {0x1fb4, DR_TEXT_UPPER, {0x386, 0x399, 0}},     {0x1fb4, DR_TEXT_TITLE, {0x386, 0x345, 0}},
    {0x1fb6, DR_TEXT_UPPER, {0x391, 0x342, 0}},     {0x1fb6, DR_TEXT_TITLE, {0x391, 0x342, 0}},
    {0x1fb7, DR_TEXT_UPPER, {0x391, 0x342, 0x399}}, {0x1fb7, DR_TEXT_TITLE, {0x391, 0x342, 0x345}},
    {0x1fbc, DR_TEXT_UPPER, {0x391, 0x399, 0}},     {0x1fc2, DR_TEXT_UPPER, {0x1fca, 0x399, 0}},
    {0x1fc2, DR_TEXT_TITLE, {0x1fca, 0x345, 0}},    {0x1fc3, DR_TEXT_UPPER, {0x397, 0x399, 0}},
    {0x1fc4, DR_TEXT_UPPER, {0x389, 0x399, 0}},     {0x1fc4, DR_TEXT_TITLE, {0x389, 0x345, 0}},
    {0x1fc6, DR_TEXT_UPPER, {0x397, 0x342, 0}},     {0x1fc6, DR_TEXT_TITLE, {0x397, 0x342, 0}},
    {0x1fc7, DR_TEXT_UPPER, {0x397, 0x342, 0x399}}, {0x1fc7, DR_TEXT_TITLE, {0x397, 0x342, 0x345}},
    {0x1fcc, DR_TEXT_UPPER, {0x397, 0x399, 0}},     {0x1fd2, DR_TEXT_UPPER, {0x399, 0x308, 0x300}},
    {0x1fd2, DR_TEXT_TITLE, {0x399, 0x308, 0x300}}, {0x1fd3, DR_TEXT_UPPER, {0x399, 0x308, 0x301}},
    {0x1fd3, DR_TEXT_TITLE, {0x399, 0x308, 0x301}}, {0x1fd6, DR_TEXT_UPPER, {0x399, 0x342, 0}},
    {0x1fd6, DR_TEXT_TITLE, {0x399, 0x342, 0}},     {0x1fd7, DR_TEXT_UPPER, {0x399, 0x308, 0x342}},
    {0x1fd7, DR_TEXT_TITLE, {0x399, 0x308, 0x342}}, {0x1fe2, DR_TEXT_UPPER, {0x3a5, 0x308, 0x300}},
    {0x1fe2, DR_TEXT_TITLE, {0x3a5, 0x308, 0x300}}, {0x1fe3, DR_TEXT_UPPER, {0x3a5, 0x308, 0x301}},
    {0x1fe3, DR_TEXT_TITLE, {0x3a5, 0x308, 0x301}}, {0x1fe4, DR_TEXT_UPPER, {0x3a1, 0x313, 0}},
    {0x1fe4, DR_TEXT_TITLE, {0x3a1, 0x313, 0}},     {0x1fe6, DR_TEXT_UPPER, {0x3a5, 0x342, 0}},
    {0x1fe6, DR_TEXT_TITLE, {0x3a5, 0x342, 0}},     {0x1fe7, DR_TEXT_UPPER, {0x3a5, 0x308, 0x342}},
    {0x1fe7, DR_TEXT_TITLE, {0x3a5, 0x308, 0x342}}, {0x1ff2, DR_TEXT_UPPER, {0x1ffa, 0x399, 0}},
    {0x1ff2, DR_TEXT_TITLE, {0x1ffa, 0x345, 0}},    {0x1ff3, DR_TEXT_UPPER, {0x3a9, 0x399, 0}},
    {0x1ff4, DR_TEXT_UPPER, {0x38f, 0x399, 0}},     {0x1ff4, DR_TEXT_TITLE, {0x38f, 0x345, 0}},
    {0x1ff6, DR_TEXT_UPPER, {0x3a9, 0x342, 0}},     {0x1ff6, DR_TEXT_TITLE, {0x3a9, 0x342, 0}},
    {0x1ff7, DR_TEXT_UPPER, {0x3a9, 0x342, 0x399}}, {0x1ff7, DR_TEXT_TITLE, {0x3a9, 0x342, 0x345}},
    {0x1ffc, DR_TEXT_UPPER, {0x3a9, 0x399, 0}},     {0xfb00, DR_TEXT_UPPER, {0x46, 0x46, 0}},
    {0xfb00, DR_TEXT_TITLE, {0x46, 0x66, 0}},       {0xfb01, DR_TEXT_UPPER, {0x46, 0x49, 0}},
    {0xfb01, DR_TEXT_TITLE, {0x46, 0x69, 0}},       {0xfb02, DR_TEXT_UPPER, {0x46, 0x4c, 0}},
    {0xfb02, DR_TEXT_TITLE, {0x46, 0x6c, 0}},       {0xfb03, DR_TEXT_UPPER, {0x46, 0x46, 0x49}},
    {0xfb03, DR_TEXT_TITLE, {0x46, 0x66, 0x69}},    {0xfb04, DR_TEXT_UPPER, {0x46, 0x46, 0x4c}},
    {0xfb04, DR_TEXT_TITLE, {0x46, 0x66, 0x6c}},    {0xfb05, DR_TEXT_UPPER, {0x53, 0x54, 0}},
    {0xfb05, DR_TEXT_TITLE, {0x53, 0x74, 0}},       {0xfb06, DR_TEXT_UPPER, {0x53, 0x54, 0}},
    {0xfb06, DR_TEXT_TITLE, {0x53, 0x74, 0}},       {0xfb13, DR_TEXT_UPPER, {0x544, 0x546, 0}},
    {0xfb13, DR_TEXT_TITLE, {0x544, 0x576, 0}},     {0xfb14, DR_TEXT_UPPER, {0x544, 0x535, 0}},
    {0xfb14, DR_TEXT_TITLE, {0x544, 0x565, 0}},     {0xfb15, DR_TEXT_UPPER, {0x544, 0x53b, 0}},
    {0xfb15, DR_TEXT_TITLE, {0x544, 0x56b, 0}},     {0xfb16, DR_TEXT_UPPER, {0x54e, 0x546, 0}},
    {0xfb16, DR_TEXT_TITLE, {0x54e, 0x576, 0}},     {0xfb17, DR_TEXT_UPPER, {0x544, 0x53d, 0}},
    {0xfb17, DR_TEXT_TITLE, {0x544, 0x56d, 0}},
};

enum { SPECIALS = sizeof special / sizeof *special };

/* The first of the mappings whose `from` is not below a character. */
static size_t special_place(uint32_t c) {
    size_t begin = 0, end = SPECIALS;
    while (begin < end) {
        size_t middle = (begin + end) / 2;
        if (special[middle].from < c)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

static bool skipped_for_sigma(uint32_t c) {
    utf8proc_category_t k = category(c);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_LM ||
           k == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' || c == ':' || c == 0xb7 || c == 0x2018 || c == 0x2019;
}

/* Whether a letter stands behind a place of a text, not counting what is skipped. */
static bool letter_follows(dr_template *t, dr_span text, size_t at) {
    for (size_t begin = at; at < text.count;) {
        uint32_t c = dr_character_next(text, &at);
        if (!skipped_for_sigma(c)) return dr_template_charge(t, (at - begin) / 16) && dr_character_cased(c);
    }
    return false;
}

static bool append_character(dr_template *t, dr_builder *out, uint32_t c) {
    char bytes[4];
    return dr_builder_append(t, out, bytes, dr_character_bytes(c, bytes));
}

static bool append_changed(dr_template *t, dr_builder *out, uint32_t c, dr_text_case change) {
    for (size_t i = special_place(c); i < SPECIALS && special[i].from == c; i++) {
        if (special[i].change != change) continue;
        for (int j = 0; j < 3 && special[i].to[j]; j++)
            if (!append_character(t, out, special[i].to[j])) return false;
        return true;
    }
    utf8proc_int32_t from = (utf8proc_int32_t)c, folded[8];
    int boundary = 0;
    if (change == DR_TEXT_FOLD) {
        utf8proc_ssize_t count = utf8proc_decompose_char(from, folded, 8, UTF8PROC_CASEFOLD, &boundary);
        for (utf8proc_ssize_t i = 0; i < count; i++)
            if (!append_character(t, out, (uint32_t)folded[i])) return false;
        return true;
    }
    utf8proc_int32_t to = change == DR_TEXT_UPPER   ? utf8proc_toupper(from)
                          : change == DR_TEXT_TITLE ? utf8proc_totitle(from)
                                                    : utf8proc_tolower(from);
    return append_character(t, out, (uint32_t)to);
}

bool dr_text_change(dr_template *t, dr_span text, dr_text_case change, dr_builder *out) {
    bool in_word = false, behind_letter = false; /* the latter not counting what is skipped for a sigma */
    for (size_t at = 0; at < text.count;) {
        uint32_t c = dr_character_next(text, &at);
        dr_text_case now = change;
        if (change == DR_TEXT_TITLE && in_word) now = DR_TEXT_LOWER;
        if (change == DR_TEXT_SWAP) now = category(c) == UTF8PROC_CATEGORY_LU ? DR_TEXT_LOWER : DR_TEXT_UPPER;
        if (change == DR_TEXT_SWAP && category(c) != UTF8PROC_CATEGORY_LU && category(c) != UTF8PROC_CATEGORY_LL) {
            if (!append_character(t, out, c)) return false;
        } else if (now == DR_TEXT_LOWER && c == 0x3a3) { /* a capital sigma: another letter at the end of a word */
            bool ends = behind_letter && !letter_follows(t, text, at);
            if (!append_character(t, out, ends ? 0x3c2 : 0x3c3)) return false;
        } else if (!append_changed(t, out, c, now)) {
            return false;
        }
        in_word = dr_character_cased(c);
        if (!skipped_for_sigma(c)) behind_letter = in_word;
    }
    return dr_template_charge(t, text.count / 4);
}

bool dr_text_capitalize(dr_template *t, dr_span text, dr_builder *out) {
    size_t at = 0;
    if (text.count == 0) return true;
    dr_character_next(text, &at);
    dr_builder whole = {0};
    if (!dr_text_change(t, (dr_span){text.bytes, at}, DR_TEXT_TITLE, out)) return false;
    if (!dr_text_change(t, text, DR_TEXT_LOWER, &whole)) return false; /* whole: a sigma looks at what is before it */
    dr_builder first = {0};
    if (!dr_text_change(t, (dr_span){text.bytes, at}, DR_TEXT_LOWER, &first)) return false;
    return dr_builder_append(t, out, whole.bytes + first.count, whole.count - first.count);
}

bool dr_text_escape(dr_template *t, dr_span text, dr_builder *out) {
    static const char from[] = "&<>'\"", *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    for (size_t i = 0; i < text.count; i++) {
        const char *entity = text.bytes[i] ? strchr(from, text.bytes[i]) : NULL;
        if (entity ? !dr_builder_string(t, out, to[entity - from]) : !dr_builder_append(t, out, text.bytes + i, 1))
            return false;
    }
    return true;
}

/* ---- parts ------------------------------------------------------------------------------------------------------------- */

static bool in_set(uint32_t c, const dr_span *set) {
    if (!set) return dr_character_blank(c);
    for (size_t at = 0; at < set->count;)
        if (dr_character_next(*set, &at) == c) return true;
    return false;
}

dr_span dr_text_strip(dr_span text, const dr_span *set, int sides) {
    while ((sides & 1) && text.count > 0) {
        size_t at = 0;
        if (!in_set(dr_character_next(text, &at), set)) break;
        text.bytes += at, text.count -= at;
    }
    while ((sides & 2) && text.count > 0) {
        size_t begin = text.count - 1, at;
        while ((text.bytes[begin] & 0xc0) == 0x80) begin--;
        at = begin;
        if (!in_set(dr_character_next(text, &at), set)) break;
        text.count = begin;
    }
    return text;
}

size_t dr_text_find(dr_span text, dr_span part, size_t from) {
    const char *found = from <= text.count ? memmem(text.bytes + from, text.count - from, part.bytes, part.count) : NULL;
    return found ? (size_t)(found - text.bytes) : text.count + 1;
}

size_t dr_text_find_last(dr_template *t, dr_span text, dr_span part) {
    enum { OFTEN = 1 << 16 };
    size_t compared = 0;
    if (part.count > text.count) return text.count + 1;
    for (size_t at = text.count - part.count;; at--) {
        size_t same = 0;
        while (same < part.count && text.bytes[at + same] == part.bytes[same]) same++;
        compared += same + 1;
        bool ends = same == part.count || at == 0;
        if ((ends || compared > OFTEN) && !dr_template_charge(t, compared / 16)) return text.count + 1;
        if (ends) return same == part.count ? at : text.count + 1;
        if (compared > OFTEN) compared = 0;
    }
}

bool dr_text_replace(dr_template *t, dr_span text, dr_span from, dr_span to, int64_t most, dr_builder *out) {
    size_t at = 0;
    for (; most != 0; most--) {
        size_t place = dr_text_find(text, from, at), next = place + from.count;
        if (!dr_template_charge(t, 1) || place > text.count) break;
        if (from.count == 0) { /* before every character and at the end */
            if (!dr_builder_append(t, out, to.bytes, to.count)) return false;
            if (at == text.count) return true;
            dr_character_next(text, &next);
        } else if (!dr_builder_append(t, out, text.bytes + at, place - at) || !dr_builder_append(t, out, to.bytes, to.count)) {
            return false;
        }
        if (from.count == 0 && !dr_builder_append(t, out, text.bytes + at, next - at)) return false;
        at = next;
    }
    return dr_builder_append(t, out, text.bytes + at, text.count - at);
}

const dr_object *dr_text_lines(dr_template *t, dr_span text, bool keep_ends) {
    dr_values lines = {0};
    for (size_t at = 0; at < text.count;) {
        size_t begin = at, end = at;
        bool ended = false;
        while (at < text.count && !ended) {
            end = at;
            ended = dr_character_line_end(dr_character_next(text, &at));
        }
        if (!ended) end = at;
        if (ended && text.bytes[end] == '\r' && at < text.count && text.bytes[at] == '\n') at++;
        if (!dr_values_append(t, &lines, dr_object_text(t, text.bytes + begin, (keep_ends ? at : end) - begin))) return NULL;
    }
    return dr_object_list(t, DR_OBJECT_LIST, lines);
}
