/* Tokens of a template. Outside of tags all is data; what the tags around it strip (a minus, a block's line end, blanks before
 * a block on its line) is stripped here. Line ends become \n. */
#include "base/number.h"
#include "tokenize/template_tree.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    dr_template *t;
    dr_span source;
    size_t at;
    int line;
    bool line_start; /* what was read last ended with a line end, or nothing was read */
    dr_tokens *tokens;
} lexer;

static bool push(lexer *l, dr_token_kind kind, dr_span text, const dr_object *value) {
    dr_tokens *k = l->tokens;
    if (k->count == k->room) {
        size_t room = k->room ? 2 * k->room : 64;
        dr_token *at = dr_template_take(l->t, room * sizeof *at);
        if (!at) return false;
        if (k->count) memcpy(at, k->at, k->count * sizeof *at);
        k->at = at, k->room = room;
    }
    k->at[k->count++] = (dr_token){kind, l->line, text, value};
    return true;
}

static bool starts(const lexer *l, size_t at, const char *word) {
    size_t length = strlen(word);
    return l->source.count - at >= length && memcmp(l->source.bytes + at, word, length) == 0;
}

static size_t skip_blanks(const lexer *l, size_t at) {
    while (at < l->source.count) {
        size_t next = at;
        if (!dr_character_blank(dr_character_next(l->source, &next))) break;
        at = next;
    }
    return at;
}

/* Goes on to `end` and counts the lines on the way. */
static void advance(lexer *l, size_t end) {
    l->line_start = end > 0 && l->source.bytes[end - 1] == '\n';
    for (; l->at < end; l->at++)
        if (l->source.bytes[l->at] == '\n') l->line++;
    l->t->line = l->line;
}

/* Data before a tag with this sign, stripped as the sign and the kind of tag say. */
static bool push_data(lexer *l, size_t end, char sign, bool is_output) {
    dr_span data = {l->source.bytes + l->at, end - l->at};
    if (sign == '-') {
        data = dr_text_strip(data, NULL, 2);
    } else if (sign != '+' && !is_output) {
        size_t begin = data.count;
        while (begin > 0 && data.bytes[begin - 1] != '\n') begin--;
        dr_span line = {data.bytes + begin, data.count - begin};
        if ((begin > 0 || l->line_start) && dr_text_strip(line, NULL, 3).count == 0) data.count = begin;
    }
    return data.count == 0 || push(l, DR_TOKEN_DATA, data, NULL);
}

/* If a tag ends at `at`: where what follows begins; else 0. close: "%}" */
static size_t tag_end(const lexer *l, size_t at, const char *close, bool plus, bool trims) {
    if (starts(l, at, close)) {
        at += 2;
        return trims && starts(l, at, "\n") ? at + 1 : at;
    }
    if (starts(l, at, "-") && starts(l, at + 1, close)) return skip_blanks(l, at + 3);
    if (plus && starts(l, at, "+") && starts(l, at + 1, close)) return at + 3;
    return 0;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool in_name(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80);
}

/* Digits with single underscores between them from `at` on: where they end. */
static size_t digits(const lexer *l, size_t at) {
    const char *s = l->source.bytes;
    size_t count = l->source.count;
    while (at < count && (is_digit(s[at]) || (s[at] == '_' && at + 1 < count && is_digit(s[at + 1]) && is_digit(s[at - 1]))))
        at++;
    return at;
}

static bool push_number(lexer *l) {
    const char *s = l->source.bytes;
    size_t begin = l->at, end = digits(l, begin), count = l->source.count, length = 0;
    bool real = false;
    char text[400];
    if (begin == 0 || s[begin - 1] != '.') {
        if (end + 1 < count && s[end] == '.' && is_digit(s[end + 1])) end = digits(l, end + 1), real = true;
        if (end < count && (s[end] == 'e' || s[end] == 'E')) {
            size_t power = end + 1;
            if (power < count && (s[power] == '+' || s[power] == '-')) power++;
            if (power < count && is_digit(s[power])) end = digits(l, power), real = true;
        }
    }
    for (size_t i = begin; i < end && length < sizeof text; i++)
        if (s[i] != '_') text[length++] = s[i];
    if (length == sizeof text) return dr_template_fail(l->t, "a number has more than %zu digits", sizeof text - 1);
    text[length] = '\0';
    const dr_object *value;
    if (real) {
        double number;
        if (!dr_number_parse(text, DR_NUMBER_FINITE, &number))
            return dr_template_fail(l->t, "the number %s is too large", text);
        value = dr_object_real(l->t, number);
    } else {
        int64_t number;
        int base = begin + 1 < count && s[begin] == '0' ? (s[begin + 1] | 32) == 'x'   ? 16
                                                          : (s[begin + 1] | 32) == 'o' ? 8
                                                          : (s[begin + 1] | 32) == 'b' ? 2
                                                                                       : 10
                                                        : 10;
        if (base != 10) {
            length = 0;
            for (end = begin + 2; end < count && in_name(s[end]) && length + 1 < 66; end++)
                if (s[end] != '_') text[length++] = s[end];
            text[length] = '\0';
            char *rest;
            number = (int64_t)strtoull(text, &rest, base);
            if (length == 0 || *rest || number < 0)
                return dr_template_fail(l->t, "%.*s is no number of base %d below 2^63", (int)(end - begin), s + begin, base);
        } else if (!dr_integer_parse(text, &number)) {
            return dr_template_fail(l->t, "the number %s is larger than 9223372036854775807", text);
        } else if (text[0] == '0' && strspn(text, "0") != length) {
            return dr_template_fail(l->t, "the number %s begins with 0", text);
        }
        value = dr_object_integer(l->t, number);
    }
    if (!value || !push(l, DR_TOKEN_CONSTANT, (dr_span){s + begin, end - begin}, value)) return false;
    advance(l, end);
    return true;
}

/* Hexadecimal digits of an escape; -1: they are not there. */
static int64_t escaped_number(dr_span text, size_t at, size_t digits_wanted) {
    int64_t number = 0;
    if (text.count - at < digits_wanted) return -1;
    for (size_t i = at; i < at + digits_wanted; i++) {
        char c = text.bytes[i], letter = (char)(c | 32);
        if (is_digit(c))
            number = 16 * number + (c - '0');
        else if (letter >= 'a' && letter <= 'f')
            number = 16 * number + (letter - 'a' + 10);
        else
            return -1;
    }
    return number;
}

/* The escape at text[*at], behind its backslash. */
static bool unescape(lexer *l, dr_span text, size_t *at, dr_builder *out) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = text.bytes[*at], bytes[4];
    const char *simple = c ? strchr(from, c) : NULL;
    int64_t number = -1;
    if (c == '\n') return (*at)++, true;
    if (simple) return (*at)++, dr_builder_append(l->t, out, to + (simple - from), 1);
    if (c >= '0' && c <= '7') {
        number = 0;
        for (size_t end = *at + 3; *at < end && *at < text.count && text.bytes[*at] >= '0' && text.bytes[*at] <= '7'; (*at)++)
            number = 8 * number + (text.bytes[*at] - '0');
    } else if (c == 'x' || c == 'u' || c == 'U') {
        size_t wanted = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        number = escaped_number(text, *at + 1, wanted);
        if (number < 0) return dr_template_fail(l->t, "\\%c in a string needs %zu hexadecimal digits", c, wanted);
        *at += 1 + wanted;
    } else if (c == 'N') {
        return dr_template_fail(l->t, "\\N{...} in a string is not supported: write \\u and four digits");
    } else {
        return dr_builder_append(l->t, out, "\\", 1); /* the backslash stays, and what follows it is an ordinary character */
    }
    if (number > 0x10ffff || (number >= 0xd800 && number < 0xe000))
        return dr_template_fail(l->t, "a string has an escape for U+%04llX, which is no character", (long long)number);
    return dr_builder_append(l->t, out, bytes, dr_character_bytes((uint32_t)number, bytes));
}

static bool push_string(lexer *l) {
    const char *s = l->source.bytes;
    char quote = s[l->at];
    size_t begin = l->at + 1, end = begin;
    while (end < l->source.count && s[end] != quote) end += s[end] == '\\' ? 2 : 1;
    if (end >= l->source.count) return dr_template_fail(l->t, "a string has no end: a %c is missing", quote);
    dr_span text = {s + begin, end - begin};
    const dr_object *value;
    if (memchr(text.bytes, '\\', text.count)) {
        dr_builder out = {0};
        for (size_t at = 0; at < text.count;) {
            const char *next = memchr(text.bytes + at, '\\', text.count - at);
            size_t plain = next ? (size_t)(next - text.bytes) - at : text.count - at;
            if (!dr_builder_append(l->t, &out, text.bytes + at, plain)) return false;
            at += plain + (next != NULL);
            if (next && !unescape(l, text, &at, &out)) return false;
        }
        value = dr_builder_value(l->t, &out);
    } else {
        value = dr_object_text(l->t, text.bytes, text.count);
    }
    if (!value || !push(l, DR_TOKEN_CONSTANT, text, value)) return false;
    advance(l, end + 1);
    return true;
}

static bool push_operator(lexer *l, char *open, int *open_count) {
    static const char *const pairs[] = {"//", "**", "==", "!=", ">=", "<="};
    const char *s = l->source.bytes + l->at;
    size_t length = *s && strchr("+-/*%~[](){}<>=.:|,;", *s) ? 1 : 0;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (starts(l, l->at, pairs[i])) length = 2;
    if (length == 0) return dr_template_fail(l->t, "unexpected character '%.1s' in an expression", s);
    if (strchr("([{", *s)) {
        if (*open_count == DR_TEMPLATE_DEPTH)
            return dr_template_fail(l->t, "more than %d brackets are open", DR_TEMPLATE_DEPTH);
        open[(*open_count)++] = *s == '(' ? ')' : *s == '[' ? ']' : '}';
    } else if (strchr(")]}", *s)) {
        if (*open_count == 0) return dr_template_fail(l->t, "unexpected '%c'", *s);
        if (open[--*open_count] != *s) return dr_template_fail(l->t, "unexpected '%c', expected '%c'", *s, open[*open_count]);
    }
    if (!push(l, DR_TOKEN_OPERATOR, (dr_span){s, length}, NULL)) return false;
    advance(l, l->at + length);
    return true;
}

/* The tokens of one tag, from behind its beginning to behind its end. */
static bool lex_tag(lexer *l, bool is_output) {
    char open[DR_TEMPLATE_DEPTH];
    int open_count = 0, begun = l->line;
    while (l->at < l->source.count) {
        char c = l->source.bytes[l->at];
        size_t end = open_count ? 0 : tag_end(l, l->at, is_output ? "}}" : "%}", !is_output, !is_output);
        if (end) {
            if (!push(l, is_output ? DR_TOKEN_OUTPUT_END : DR_TOKEN_BLOCK_END, (dr_span){"end of the tag", 14}, NULL))
                return false;
            advance(l, end);
            return true;
        }
        end = skip_blanks(l, l->at);
        if (end > l->at) {
            advance(l, end);
        } else if (is_digit(c)) {
            if (!push_number(l)) return false;
        } else if (in_name(c)) {
            for (end = l->at; end < l->source.count && in_name(l->source.bytes[end]);) end++;
            if (!push(l, DR_TOKEN_NAME, (dr_span){l->source.bytes + l->at, end - l->at}, NULL)) return false;
            advance(l, end);
        } else if (c == '"' || c == '\'') {
            if (!push_string(l)) return false;
        } else if (!push_operator(l, open, &open_count)) {
            return false;
        }
    }
    return dr_template_fail(l->t, "the tag that begins in line %d has no end: %s is missing", begun, is_output ? "}}" : "%}");
}

/* The word raw or endraw with its end of tag behind the beginning of a tag at `at`; 0: it is something else. */
static size_t raw_tag(const lexer *l, size_t at, const char *word, bool is_end) {
    at = skip_blanks(l, at);
    if (!starts(l, at, word)) return 0;
    return tag_end(l, skip_blanks(l, at + strlen(word)), "%}", is_end, is_end);
}

static char sign_at(const lexer *l, size_t at) {
    return starts(l, at, "-") ? '-' : starts(l, at, "+") ? '+' : '\0';
}

static bool lex_raw(lexer *l, size_t begin) {
    int begun = l->line;
    advance(l, begin);
    for (size_t at = begin; at < l->source.count; at++) {
        if (!starts(l, at, "{%")) continue;
        char sign = sign_at(l, at + 2);
        size_t end = raw_tag(l, at + 2 + (sign != 0), "endraw", true);
        if (!end) continue;
        if (!push_data(l, at, sign, false)) return false;
        advance(l, end);
        return true;
    }
    return dr_template_fail(l->t, "the raw block that begins in line %d has no {%% endraw %%}", begun);
}

static bool lex_comment(lexer *l, size_t begin) {
    int begun = l->line;
    for (size_t at = begin; at < l->source.count; at++) {
        size_t end = tag_end(l, at, "#}", true, true);
        if (!end) continue;
        advance(l, end);
        return true;
    }
    return dr_template_fail(l->t, "the comment that begins in line %d has no end: #} is missing", begun);
}

static bool lex_all(lexer *l) {
    while (l->at < l->source.count) {
        size_t at = l->at;
        while (at < l->source.count && !starts(l, at, "{{") && !starts(l, at, "{%") && !starts(l, at, "{#")) at++;
        if (at == l->source.count) {
            if (!push(l, DR_TOKEN_DATA, (dr_span){l->source.bytes + l->at, at - l->at}, NULL)) return false;
            l->at = at;
            break;
        }
        char kind = l->source.bytes[at + 1], sign = sign_at(l, at + 2);
        size_t begin = at + 2 + (sign != 0);
        if (!push_data(l, at, sign, kind == '{')) return false;
        advance(l, at);
        size_t raw = kind == '%' ? raw_tag(l, begin, "raw", false) : 0;
        if (raw) {
            if (!lex_raw(l, raw)) return false;
        } else if (kind == '#') {
            if (!lex_comment(l, begin)) return false;
        } else {
            dr_token_kind token = kind == '{' ? DR_TOKEN_OUTPUT_BEGIN : DR_TOKEN_BLOCK_BEGIN;
            if (!push(l, token, (dr_span){l->source.bytes + at, 2}, NULL)) return false;
            advance(l, begin);
            if (!lex_tag(l, kind == '{')) return false;
        }
    }
    return push(l, DR_TOKEN_END, (dr_span){"end of the template", 19}, NULL);
}

bool dr_template_lex(dr_template *t, dr_span source, dr_tokens *tokens) {
    char *text = dr_template_take(t, source.count + 1);
    size_t count = 0;
    if (!text) return false;
    for (size_t i = 0; i < source.count; i++) {
        if (source.bytes[i] != '\r')
            text[count++] = source.bytes[i];
        else if (i + 1 == source.count || source.bytes[i + 1] != '\n')
            text[count++] = '\n';
    }
    if (count > 0 && text[count - 1] == '\n') count--;
    text[count] = '\0';
    lexer l = {.t = t, .source = {text, count}, .line = 1, .line_start = true, .tokens = tokens};
    t->line = 1;
    return lex_all(&l);
}
