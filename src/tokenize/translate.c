/* Oniguruma's expressions (Ruby's syntax) in PCRE2's.
 *
 * What differs, and how it is written: X{1,3}+ is (X{1,3})+, not possessive, and X{2}? is (X{2})?, not lazy; ^ and $ match at
 * every line; (?m) lets . match a line feed; a(?i)b|c is a(?i:b|c); \s, \w, \h, \R and the properties are written out as
 * ranges, since PCRE2's own follow another version or another definition; classes in classes, [a&&[^b]], become lookaheads.
 * Groups capture nothing. All that is not known here is refused, so that nothing is read as something else.
 *
 * A parser by recursive descent that writes as it reads. */
#include "tokenize/pattern.h"

#include "base/error.h"
#include "base/utf8.h"
#include "tokenize/characters.h"

#include <stdio.h>
#include <string.h>

enum { DEEPEST = 100, MOST_REPEATS = 65535 };

typedef struct {
    const char *text;
    size_t bytes, at;
    dr_text *out;
    int depth;
    bool caseless, dot_all;
    uint32_t before; /* the caseless literal before this one, or 0 */
} parser;

static dr_status refuse(const parser *p, const char *what) {
    return dr_fail(DR_ERROR_UNSUPPORTED, "the regular expression '%.*s' has %s at byte %zu, which is not supported",
                   (int)(p->bytes < 200 ? p->bytes : 200), p->text, what, p->at);
}

static dr_status broken(const parser *p, const char *what) {
    return dr_fail(DR_ERROR_FORMAT, "the regular expression '%.*s' is broken at byte %zu: %s",
                   (int)(p->bytes < 200 ? p->bytes : 200), p->text, p->at, what);
}

static bool more(const parser *p) {
    return p->at < p->bytes;
}

static char peek(const parser *p, size_t ahead) {
    return p->at + ahead < p->bytes ? p->text[p->at + ahead] : '\0';
}

static bool looking_at(const parser *p, const char *words) {
    size_t length = strlen(words);
    return p->bytes - p->at >= length && memcmp(p->text + p->at, words, length) == 0;
}

static dr_status put(dr_text *out, const char *string) {
    return dr_text_append_string(out, string);
}

static dr_status put_character(dr_text *out, uint32_t character) {
    char text[16];
    snprintf(text, sizeof text, "\\x{%x}", character);
    return put(out, text);
}

static dr_status put_range(dr_text *out, uint32_t first, uint32_t last) {
    DR_TRY(put_character(out, first));
    if (last == first) return DR_OK;
    DR_TRY(put(out, "-"));
    return put_character(out, last);
}

/* ---- properties: as items of a class --------------------------------------------------------------------------------- */

/* The newer code points whose category begins so. */
static dr_status put_newer(dr_text *out, const char *category) {
    for (int i = 0; i < dr_newer_category_count; i++)
        if (strncmp(dr_newer_categories[i].category, category, strlen(category)) == 0)
            DR_TRY(put_range(out, dr_newer_categories[i].first, dr_newer_categories[i].last));
    return DR_OK;
}

static dr_status put_category(dr_text *out, const char *category) {
    char text[16];
    snprintf(text, sizeof text, "\\p{%s}", category);
    DR_TRY(put(out, text));
    return put_newer(out, category);
}

static dr_status put_spaces(dr_text *out) {
    return put(out,
               "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}");
}

/* Letters, marks, Nd, Nl, Pc, and what else is alphabetic; of Latin-1, Oniguruma takes the other numbers too. */
static dr_status put_words(dr_text *out) {
    static const char *const categories[] = {"L", "M", "Nd", "Nl", "Pc"};
    for (int i = 0; i < 5; i++) DR_TRY(put_category(out, categories[i]));
    return put(out, "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}"
                    "\\x{1f170}-\\x{1f189}");
}

static const struct {
    const char *name, *category;
} long_names[] = {{"letter", "L"},
                  {"uppercaseletter", "Lu"},
                  {"lowercaseletter", "Ll"},
                  {"titlecaseletter", "Lt"},
                  {"modifierletter", "Lm"},
                  {"otherletter", "Lo"},
                  {"mark", "M"},
                  {"combiningmark", "M"},
                  {"nonspacingmark", "Mn"},
                  {"spacingmark", "Mc"},
                  {"enclosingmark", "Me"},
                  {"number", "N"},
                  {"decimalnumber", "Nd"},
                  {"letternumber", "Nl"},
                  {"othernumber", "No"},
                  {"punctuation", "P"},
                  {"symbol", "S"},
                  {"mathsymbol", "Sm"},
                  {"currencysymbol", "Sc"},
                  {"modifiersymbol", "Sk"},
                  {"othersymbol", "So"},
                  {"separator", "Z"},
                  {"spaceseparator", "Zs"},
                  {"control", "Cc"},
                  {"format", "Cf"},
                  {"digit", "Nd"}};

static const char *const categories[] = {"l",  "lu", "ll", "lt", "lm", "lo", "m",  "mn", "mc", "me", "n", "nd",
                                         "nl", "no", "p",  "pc", "pd", "ps", "pe", "pi", "pf", "po", "s", "sm",
                                         "sc", "sk", "so", "z",  "zs", "zl", "zp", "cc", "cf", "co"};

static const char *const scripts[] = {"Arabic",   "Armenian", "Bengali",  "Cyrillic", "Devanagari", "Ethiopic", "Georgian",
                                      "Greek",    "Gujarati", "Gurmukhi", "Hangul",   "Hebrew",     "Hiragana", "Kannada",
                                      "Katakana", "Khmer",    "Lao",      "Latin",    "Malayalam",  "Myanmar",  "Sinhala",
                                      "Tamil",    "Telugu",   "Thai",     "Tibetan",  "Bopomofo",   "Mongolian"};

/* Names as Oniguruma compares them: small letters, without blanks, - and _. */
static void plain_name(const char *name, size_t bytes, char plain[32]) {
    size_t used = 0;
    for (size_t i = 0; i < bytes && used < 31; i++) {
        char c = name[i];
        if (c == ' ' || c == '_' || c == '-') continue;
        plain[used++] = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
    }
    plain[used] = '\0';
}

static dr_status put_property(parser *p, const char *name, size_t bytes, dr_text *out) {
    char plain[32], script[32];
    plain_name(name, bytes, plain);
    for (size_t i = 0; i < sizeof categories / sizeof categories[0]; i++)
        if (strcmp(plain, categories[i]) == 0) {
            char category[3] = {(char)(plain[0] - 32), plain[1], '\0'};
            if (p->caseless && plain[0] == 'l' && plain[1] && plain[1] != 'm' && plain[1] != 'o')
                return refuse(p, "a property of upper or lower case without regard to case");
            return put_category(out, category);
        }
    for (size_t i = 0; i < sizeof long_names / sizeof long_names[0]; i++)
        if (strcmp(plain, long_names[i].name) == 0)
            return put_property(p, long_names[i].category, strlen(long_names[i].category), out);
    if (strcmp(plain, "space") == 0 || strcmp(plain, "whitespace") == 0) return put_spaces(out);
    if (strcmp(plain, "word") == 0) return put_words(out);
    if (strcmp(plain, "any") == 0) return put_range(out, 0, 0x10ffff);
    if (strcmp(plain, "han") == 0) {
        for (int i = 0; i < dr_han_range_count; i++) DR_TRY(put_range(out, dr_han_ranges[i].first, dr_han_ranges[i].last));
        return DR_OK;
    }
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        plain_name(scripts[i], strlen(scripts[i]), script);
        if (strcmp(plain, script) != 0) continue;
        DR_TRY(put(out, "\\p{sc:"));
        DR_TRY(put(out, scripts[i]));
        return put(out, "}");
    }
    return refuse(p, "a property of another name");
}

/* ---- classes --------------------------------------------------------------------------------------------------------- */

/* A set of characters: [items], or if `whole` has text, the expression of one character that stands there, which includes
 * items. */
typedef struct {
    dr_text items, whole;
} set;

static void set_release(set *s) {
    dr_text_release(&s->items);
    dr_text_release(&s->whole);
}

/* Writes an expression that matches one character of the set. */
static dr_status put_set(dr_text *out, const set *s) {
    if (s->whole.count == 0 && s->items.count == 0) return put(out, "(?!)");
    if (s->whole.count > 0 && s->items.count > 0) DR_TRY(put(out, "(?:"));
    if (s->items.count > 0) {
        DR_TRY(put(out, "["));
        DR_TRY(dr_text_append(out, s->items.bytes, s->items.count));
        DR_TRY(put(out, "]"));
    }
    if (s->whole.count > 0 && s->items.count > 0) DR_TRY(put(out, "|"));
    DR_TRY(dr_text_append(out, s->whole.bytes, s->whole.count));
    return s->whole.count > 0 && s->items.count > 0 ? put(out, ")") : DR_OK;
}

/* Adds an alternative of one character to `whole`. */
static dr_status set_add(set *s, const dr_text *alternative) {
    if (s->whole.count == 0) {
        DR_TRY(put(&s->whole, "(?:"));
    } else {
        s->whole.count--; /* the closing bracket */
        DR_TRY(put(&s->whole, "|"));
    }
    DR_TRY(dr_text_append(&s->whole, alternative->bytes, alternative->count));
    return put(&s->whole, ")");
}

static dr_status set_negate(set *s) {
    dr_text negated = {0};
    dr_status status;
    if (s->whole.count == 0 && s->items.count > 0) {
        DR_GO(put(&negated, "[^"));
        DR_GO(dr_text_append(&negated, s->items.bytes, s->items.count));
        DR_GO(put(&negated, "]"));
    } else {
        DR_GO(put(&negated, "(?:(?!"));
        DR_GO(put_set(&negated, s));
        DR_GO(put(&negated, ")[\\x{0}-\\x{10ffff}])"));
    }
    s->items.count = s->whole.count = 0;
    DR_GO(dr_text_append(&s->whole, negated.bytes, negated.count));
    /* a lone alternative, in brackets as set_add leaves it */
    DR_GO(dr_text_insert(&s->whole, 0, "(?:", 3));
    DR_GO(put(&s->whole, ")"));
done:
    dr_text_release(&negated);
    return status;
}

/* Joins another set to this one. */
static dr_status set_join(set *s, const set *other) {
    DR_TRY(dr_text_append(&s->items, other->items.bytes, other->items.count));
    return other->whole.count > 0 ? set_add(s, &other->whole) : DR_OK;
}

/* this and other */
static dr_status set_intersect(set *s, const set *other) {
    dr_text both = {0};
    dr_status status;
    DR_GO(put(&both, "(?:(?="));
    DR_GO(put_set(&both, s));
    DR_GO(put(&both, ")"));
    DR_GO(put_set(&both, other));
    DR_GO(put(&both, ")"));
    s->items.count = s->whole.count = 0;
    DR_GO(dr_text_append(&s->whole, both.bytes, both.count));
    DR_GO(dr_text_insert(&s->whole, 0, "(?:", 3));
    DR_GO(put(&s->whole, ")"));
done:
    dr_text_release(&both);
    return status;
}

static int hexadecimal(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Digits of a base from p->at on, at most `most`; returns how many. */
static int digits(parser *p, int base, int most, uint32_t *value) {
    int count = 0;
    *value = 0;
    while (count < most && more(p)) {
        int digit = hexadecimal(p->text[p->at]);
        if (digit < 0 || digit >= base) break;
        *value = *value * (uint32_t)base + (uint32_t)digit;
        p->at++;
        count++;
    }
    return count;
}

/* The character of an escape behind the backslash, at p->at; *known false: it is none of a character. */
static dr_status escaped_character(parser *p, uint32_t *character, bool *known) {
    static const char letters[] = "tnrfvae", values[] = "\t\n\r\f\v\a\x1b";
    char c = p->text[p->at];
    const char *letter = c ? strchr(letters, c) : NULL;
    *known = true;
    if (letter) {
        *character = (uint8_t)values[letter - letters];
        p->at++;
    } else if (c == 'x' && peek(p, 1) == '{') {
        p->at += 2;
        if (digits(p, 16, 8, character) == 0 || peek(p, 0) != '}') return broken(p, "\\x{...} needs hexadecimal digits");
        p->at++;
    } else if (c == 'x') {
        p->at++;
        if (digits(p, 16, 2, character) == 0) return broken(p, "\\x needs hexadecimal digits");
        if (*character > 0x7f) return refuse(p, "a byte of a character, \\x80 to \\xff,");
    } else if (c == 'u') {
        p->at++;
        if (digits(p, 16, 4, character) != 4) return broken(p, "\\u needs four hexadecimal digits");
    } else if (c == '0') {
        digits(p, 8, 3, character);
    } else if ((uint8_t)c >= 0x80) {
        size_t length;
        *character = dr_utf8_character(p->text + p->at, &length);
        p->at += length;
    } else if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) {
        *character = (uint8_t)c;
        p->at++;
    } else {
        *known = false;
    }
    if (*known && (*character > 0x10ffff || (*character >= 0xd800 && *character < 0xe000)))
        return broken(p, "there is no such character");
    return DR_OK;
}

/* \d, \p{L} and their kin behind the backslash, at p->at, joined to the set; *known false: it is none. */
static dr_status escaped_class(parser *p, set *s, bool *known) {
    set one = {0};
    dr_status status = DR_OK;
    char c = p->text[p->at];
    bool negated = c == 'D' || c == 'S' || c == 'W' || c == 'H' || c == 'P';
    *known = c != '\0' && strchr("dDsSwWhHpP", c);
    if (!*known) return DR_OK;
    p->at++;
    switch (c) {
    case 'd':
    case 'D':
        DR_GO(put_category(&one.items, "Nd"));
        break;
    case 's':
    case 'S':
        DR_GO(put_spaces(&one.items));
        break;
    case 'w':
    case 'W':
        DR_GO(put_words(&one.items));
        break;
    case 'h':
    case 'H':
        DR_GO(put(&one.items, "0-9A-Fa-f"));
        break;
    default: { /* \p{NAME}, \p{^NAME} */
        const char *end = peek(p, 0) == '{' ? memchr(p->text + p->at, '}', p->bytes - p->at) : NULL;
        if (!end) DR_GO(refuse(p, "\\p without {name}"));
        p->at++;
        if (peek(p, 0) == '^') {
            negated = !negated;
            p->at++;
        }
        DR_GO(put_property(p, p->text + p->at, (size_t)(end - (p->text + p->at)), &one.items));
        p->at = (size_t)(end + 1 - p->text);
    }
    }
    if (negated) DR_GO(set_negate(&one));
    DR_GO(set_join(s, &one));
done:
    set_release(&one);
    return status;
}

/* Characters that Oniguruma, without regard to case, also takes for two or three letters. */
static bool folds_to_several(uint32_t c) {
    return c == 0xdf || c == 0x1e9e || c == 0x130 || c == 0x149 || c == 0x1f0 || c == 0x390 || c == 0x3b0 || c == 0x587 ||
           (c >= 0x1e96 && c <= 0x1e9a) || (c >= 0x1f50 && c <= 0x1fff) || (c >= 0xfb00 && c <= 0xfb17);
}

static dr_status check_caseless(const parser *p, uint32_t c) {
    static const char *const pairs[] = {"ss", "st", "ff", "fi", "fl"};
    bool several = folds_to_several(c);
    uint32_t a = p->before | 32, b = c | 32;
    for (int i = 0; i < 5; i++)
        several |= a == (uint32_t)pairs[i][0] && b == (uint32_t)pairs[i][1] && c < 0x80 && p->before < 0x80;
    several |= p->before != 0 && (c == 0x300 || c == 0x301 || c == 0x307 || c == 0x308 || c == 0x30a || c == 0x30c ||
                                  c == 0x313 || c == 0x331 || c == 0x342 || c == 0x3b9 || c == 0x2be);
    several |= p->before == 0x2bc && b == 'n';
    return several ? refuse(p, "letters that without regard to case are one other letter,") : DR_OK;
}

static dr_status parse_class(parser *p, set *result);

/* One character of a class, at p->at; *known false: it is a class. Errors as they come. */
static dr_status class_character(parser *p, uint32_t *character, bool *known) {
    *known = true;
    if (p->text[p->at] == '\\') {
        p->at++;
        if (!more(p)) return broken(p, "it ends with a backslash");
        return escaped_character(p, character, known);
    }
    size_t length;
    *character = dr_utf8_character(p->text + p->at, &length);
    p->at += length;
    return DR_OK;
}

/* A character or a range of characters, joined to the set. */
static dr_status parse_class_range(parser *p, set *s) {
    uint32_t first, last;
    bool known;
    DR_TRY(class_character(p, &first, &known));
    if (!known) {
        DR_TRY(escaped_class(p, s, &known));
        return known ? DR_OK : refuse(p, "an escape that is not known");
    }
    last = first;
    if (peek(p, 0) == '-' && peek(p, 1) != ']' && peek(p, 1) != '\0' && !(peek(p, 1) == '&' && peek(p, 2) == '&')) {
        p->at++;
        if (peek(p, 0) == '[') return refuse(p, "a range that ends with a class");
        DR_TRY(class_character(p, &last, &known));
        if (!known) return refuse(p, "a range that ends with a class");
        if (last < first) return broken(p, "a range goes backwards");
    }
    if (p->caseless && (folds_to_several(first) || folds_to_several(last)))
        return refuse(p, "letters that without regard to case are two others,");
    return put_range(&s->items, first, last);
}

/* The items of a class up to its end or an intersection. */
static dr_status parse_class_items(parser *p, set *s, bool first) {
    dr_status status = DR_OK;
    set inner = {0};
    while (more(p)) {
        if (p->text[p->at] == ']' && !first) break;
        if (looking_at(p, "&&")) break;
        first = false;
        if (p->text[p->at] == '[') {
            if (peek(p, 1) == ':') DR_GO(refuse(p, "a class of POSIX, [:name:],"));
            p->at++;
            DR_GO(parse_class(p, &inner));
            DR_GO(set_join(s, &inner));
            inner.items.count = inner.whole.count = 0;
        } else {
            DR_GO(parse_class_range(p, s));
        }
    }
done:
    set_release(&inner);
    return status;
}

/* Behind the opening bracket, up to behind the closing one. */
static dr_status parse_class(parser *p, set *result) {
    dr_status status = DR_OK;
    set part = {0};
    if (++p->depth > DEEPEST) return refuse(p, "more brackets in each other than 100");
    bool negated = peek(p, 0) == '^';
    if (negated) p->at++;
    DR_GO(parse_class_items(p, result, true));
    while (looking_at(p, "&&")) {
        p->at += 2;
        part.items.count = part.whole.count = 0;
        DR_GO(parse_class_items(p, &part, false));
        DR_GO(set_intersect(result, &part));
    }
    if (!more(p)) DR_GO(broken(p, "a class is not closed"));
    p->at++;
    if (negated) DR_GO(set_negate(result));
    p->depth--;
done:
    set_release(&part);
    return status;
}

/* ---- terms ----------------------------------------------------------------------------------------------------------- */

static dr_status parse_alternatives(parser *p);

/* {n}, {n,}, {,m}, {n,m} at p->at; *is false: a brace that stands for itself. */
static dr_status parse_interval(parser *p, bool *is, bool *exact, char text[32]) {
    size_t begin = p->at;
    uint32_t least = 0, most = 0;
    *is = false;
    p->at++;
    int low = digits(p, 10, 6, &least), high = 0;
    bool comma = peek(p, 0) == ',';
    if (comma) {
        p->at++;
        high = digits(p, 10, 6, &most);
    }
    if (peek(p, 0) != '}' || (low == 0 && high == 0)) {
        p->at = begin;
        return DR_OK;
    }
    p->at++;
    if (least > MOST_REPEATS || most > MOST_REPEATS) return refuse(p, "more repeats than 65535");
    if (high > 0 && least > most) return refuse(p, "an interval that goes backwards");
    *is = true;
    *exact = !comma;
    if (!comma)
        snprintf(text, 32, "{%u}", least);
    else if (high == 0)
        snprintf(text, 32, "{%u,}", least);
    else
        snprintf(text, 32, "{%u,%u}", least, most);
    return DR_OK;
}

/* (?#...) at p->at. */
static dr_status skip_comment(parser *p) {
    const char *end = memchr(p->text + p->at, ')', p->bytes - p->at);
    if (!end) return broken(p, "a comment is not closed");
    p->at = (size_t)(end + 1 - p->text);
    return DR_OK;
}

/* Quantifiers behind the atom that begins at `atom` in what was written. */
static dr_status parse_quantifiers(parser *p, size_t atom, bool repeatable) {
    for (bool first = true; more(p); first = false) {
        while (looking_at(p, "(?#")) DR_TRY(skip_comment(p));
        if (!more(p)) break;
        char c = p->text[p->at], text[32];
        bool interval = false, exact = false;
        if (c == '{') DR_TRY(parse_interval(p, &interval, &exact, text));
        if (!interval && (c == '{' || !strchr("?*+", c) || c == '\0')) return DR_OK;
        if (!repeatable) return refuse(p, "a repeated anchor or lookaround");
        if (!first) {
            DR_TRY(dr_text_insert(p->out, atom, "(?:", 3));
            DR_TRY(put(p->out, ")"));
        }
        if (!interval) {
            snprintf(text, sizeof text, "%c", c);
            p->at++;
        }
        DR_TRY(put(p->out, text));
        char next = peek(p, 0);
        if ((next == '?' && !(interval && exact)) || (next == '+' && !interval)) {
            char mode[2] = {next, '\0'};
            DR_TRY(put(p->out, mode));
            p->at++;
        }
        p->before = 0;
    }
    return DR_OK;
}

/* A boundary of words, or with `negated` a place that is none. */
static dr_status put_boundary(parser *p, bool negated) {
    dr_text words = {0};
    dr_status status;
    DR_GO(put(&words, "["));
    DR_GO(put_words(&words));
    DR_GO(put(&words, "]"));
    static const char *const pieces[2][5] = {{"(?:(?<=", ")(?!", ")|(?<!", ")(?=", "))"},
                                             {"(?:(?<=", ")(?=", ")|(?<!", ")(?!", "))"}};
    for (int i = 0; i < 5; i++) {
        DR_GO(put(p->out, pieces[negated][i]));
        if (i < 4) DR_GO(dr_text_append(p->out, words.bytes, words.count));
    }
done:
    dr_text_release(&words);
    return status;
}

static dr_status put_literal(parser *p, uint32_t character) {
    if (p->caseless) DR_TRY(check_caseless(p, character));
    p->before = character;
    return put_character(p->out, character);
}

static dr_status parse_escape(parser *p, bool *repeatable) {
    dr_status status = DR_OK;
    set s = {0};
    uint32_t character;
    bool known;
    p->at++;
    if (!more(p)) return broken(p, "it ends with a backslash");
    char c = p->text[p->at];
    if (c && strchr("AzZ", c)) {
        char text[3] = {'\\', c, '\0'};
        *repeatable = false;
        p->at++;
        return put(p->out, text);
    }
    if (c == 'b' || c == 'B') {
        *repeatable = false;
        p->at++;
        return put_boundary(p, c == 'B');
    }
    if (c == 'R') {
        p->at++;
        return put(p->out, "(?>\\x{d}\\x{a}|[\\x{a}-\\x{d}\\x{85}\\x{2028}\\x{2029}])");
    }
    DR_TRY(escaped_character(p, &character, &known));
    if (known) return put_literal(p, character);
    DR_GO(escaped_class(p, &s, &known));
    if (!known) DR_GO(refuse(p, "an escape that is not known"));
    DR_GO(put_set(p->out, &s));
    p->before = 0;
done:
    set_release(&s);
    return status;
}

/* Options at p->at, behind "(?": i, m, - up to : or ). */
static dr_status parse_options(parser *p, bool *lone) {
    bool on = true;
    for (; more(p); p->at++) {
        char c = p->text[p->at];
        if (c == '-')
            on = false;
        else if (c == 'i')
            p->caseless = on;
        else if (c == 'm')
            p->dot_all = on;
        else
            break;
    }
    if (peek(p, 0) != ':' && peek(p, 0) != ')') return refuse(p, "a group of another kind");
    *lone = p->text[p->at++] == ')';
    return put(p->out, p->caseless ? "(?i:" : "(?-i:");
}

/* A group from its opening bracket on. A lone (?i) holds to the end of the group that it stands in, alternatives included. */
static dr_status parse_group(parser *p, bool *repeatable) {
    static const struct {
        const char *opening, *written;
        bool place; /* takes no characters */
    } kinds[] = {{"(?:", "(?:", false},  {"(?=", "(?=", true},   {"(?!", "(?!", true},
                 {"(?<=", "(?<=", true}, {"(?<!", "(?<!", true}, {"(?>", "(?>", false}};
    const bool caseless = p->caseless, dot_all = p->dot_all;
    bool opened = false, lone = false;
    if (++p->depth > DEEPEST) return refuse(p, "more groups in each other than 100");
    p->before = 0;
    if (looking_at(p, "(?#")) {
        p->depth--;
        *repeatable = false;
        return skip_comment(p);
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0] && !opened; i++)
        if (looking_at(p, kinds[i].opening)) {
            p->at += strlen(kinds[i].opening);
            DR_TRY(put(p->out, kinds[i].written));
            *repeatable = !kinds[i].place;
            opened = true;
        }
    if (!opened && looking_at(p, "(?<")) {
        const char *end = memchr(p->text + p->at, '>', p->bytes - p->at);
        if (!end) return broken(p, "the name of a group is not closed");
        p->at = (size_t)(end + 1 - p->text);
        DR_TRY(put(p->out, "(?:"));
    } else if (!opened && looking_at(p, "(?")) {
        p->at += 2;
        DR_TRY(parse_options(p, &lone));
    } else if (!opened) {
        p->at++;
        DR_TRY(put(p->out, "(?:"));
    }
    DR_TRY(parse_alternatives(p));
    if (!lone) {
        if (!more(p)) return broken(p, "a group is not closed");
        p->at++;
    }
    p->caseless = caseless;
    p->dot_all = dot_all;
    p->before = 0;
    p->depth--;
    return put(p->out, ")");
}

static dr_status parse_term(parser *p) {
    size_t atom = p->out->count;
    bool repeatable = true;
    char c = p->text[p->at];
    if (c == '(') {
        DR_TRY(parse_group(p, &repeatable));
    } else if (c == '[') {
        set s = {0};
        p->at++;
        dr_status status = parse_class(p, &s);
        if (status == DR_OK) status = put_set(p->out, &s);
        set_release(&s);
        DR_TRY(status);
        p->before = 0;
    } else if (c == '\\') {
        DR_TRY(parse_escape(p, &repeatable));
    } else if (c == '^' || c == '$') {
        p->at++;
        repeatable = false;
        DR_TRY(put(p->out, c == '^' ? "(?m:^)" : "(?m:$)"));
    } else if (c == '.') {
        p->at++;
        p->before = 0;
        DR_TRY(put(p->out, p->dot_all ? "[\\x{0}-\\x{10ffff}]" : "[^\\x{a}]"));
    } else if (c != '\0' && strchr("?*+", c)) {
        return broken(p, "there is nothing to repeat");
    } else {
        size_t length;
        uint32_t character = dr_utf8_character(p->text + p->at, &length);
        p->at += length;
        DR_TRY(put_literal(p, character));
    }
    return parse_quantifiers(p, atom, repeatable);
}

static dr_status parse_alternatives(parser *p) {
    while (more(p) && p->text[p->at] != ')') {
        if (p->text[p->at] == '|') {
            p->at++;
            p->before = 0;
            DR_TRY(put(p->out, "|"));
        } else {
            DR_TRY(parse_term(p));
        }
    }
    return DR_OK;
}

dr_status dr_pattern_translate(const char *expression, size_t bytes, dr_text *translated) {
    parser p = {.text = expression, .bytes = bytes, .out = translated};
    if (dr_utf8_valid_bytes(expression, bytes) < bytes) return broken(&p, "it is not UTF-8");
    DR_TRY(parse_alternatives(&p));
    return more(&p) ? broken(&p, "a closing bracket too many") : DR_OK;
}
