/* What the expressions have in common: an alternative for 's, 't and so on, one for a word of letters with perhaps one
 * character before it, one for digits, one for other signs, and three for blanks:
 *
 *     \s*[\r\n]+   up to the last line end of the run of blanks
 *     \s+(?!\S)    the run without its last character, which belongs to the next word; all of it at the end of the text
 *     \s+          one blank before a word that takes none
 *
 * Each takes time in proportion to what it reads. */
#include "tokenize/scan.h"

#include "base/utf8.h"

#include <string.h>

typedef struct {
    const dr_classes *classes;
    const char *text;
    size_t bytes;
} source;

static inline uint8_t class_at(const source *s, size_t at, size_t *length) {
    return dr_class(s->classes, dr_utf8_character(s->text + at, length));
}

/* Behind the run of characters that have one of the classes. */
static inline size_t run_of(const source *s, size_t at, uint8_t classes) {
    size_t length;
    while (at < s->bytes && class_at(s, at, &length) & classes) at += length;
    return at;
}

static inline size_t run_without(const source *s, size_t at, uint8_t classes) {
    size_t length;
    while (at < s->bytes && !(class_at(s, at, &length) & classes)) at += length;
    return at;
}

static inline bool is_line_end(char c) {
    return c == '\n' || c == '\r';
}

/* Behind 's 't 'm 'd 're 've 'll at the apostrophe, or at itself. Without regard to case the long s counts as well. */
static size_t contraction(const source *s, size_t at, bool caseless) {
    char one = at + 1 < s->bytes ? s->text[at + 1] : '\0', two = at + 2 < s->bytes ? s->text[at + 2] : '\0';
    if (caseless) {
        if (at + 2 < s->bytes && (uint8_t)one == 0xc5 && (uint8_t)two == 0xbf) return at + 3; /* U+017F */
        if (one >= 'A' && one <= 'Z') one += 32;
        if (two >= 'A' && two <= 'Z') two += 32;
    }
    if (one == 's' || one == 't' || one == 'm' || one == 'd') return at + 2;
    if ((one == 'r' && two == 'e') || (one == 'v' && two == 'e') || (one == 'l' && two == 'l')) return at + 3;
    return at;
}

/* \s+(?!\S)|\s+ at a blank, whose run ends at `end`. */
static size_t blanks(const source *s, size_t at, size_t end) {
    if (end == s->bytes) return end;
    size_t last = dr_utf8_before(s->text, end);
    return last > at ? last : end;
}

/* Behind the last line end of text[at .. end - 1], or `at`. */
static size_t last_line_end(const source *s, size_t at, size_t end) {
    while (end > at && !is_line_end(s->text[end - 1])) end--;
    return end;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
size_t dr_scan_gpt2(const dr_classes *classes, const char *text, size_t bytes, size_t at) {
    const source s = {classes, text, bytes};
    size_t length, from = at;
    if (text[at] == '\'') {
        size_t end = contraction(&s, at, false);
        if (end > at) return end;
    }
    uint8_t class = class_at(&s, at, &length);
    if (text[at] == ' ' && at + 1 < bytes) {
        uint8_t next = class_at(&s, at + 1, &length);
        if (!(next & DR_SPACE)) {
            class = next;
            from = at + 1;
        }
    }
    if (class & DR_LETTER) return run_of(&s, from + length, DR_LETTER);
    if (class & DR_NUMBER) return run_of(&s, from + length, DR_NUMBER);
    if (!(class & DR_SPACE)) return run_without(&s, from + length, DR_SPACE | DR_LETTER | DR_NUMBER);
    return blanks(&s, at, run_of(&s, at, DR_SPACE));
}

size_t dr_scan_words(const dr_classes *classes, const char *text, size_t bytes, size_t at) {
    size_t length;
    (void)classes;
    bool word = dr_is_word(dr_utf8_character(text + at, &length));
    for (at += length; at < bytes && dr_is_word(dr_utf8_character(text + at, &length)) == word; at += length) {
    }
    return at;
}

/* How the expressions that follow cl100k's differ. */
typedef struct {
    uint8_t letters; /* classes that words are of */
    int digits;      /* the most in a piece; 0: any number */
    bool end_first;  /* \s++$ comes before line ends: blanks at the end of the text are one piece */
} dialect;

/* 'CONTRACTION|[^\r\n\p{L}\p{N}]?LETTERS+|\p{N}{1,DIGITS}| ?[^\s LETTERS\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static inline size_t scan_cl100k(const source *s, size_t at, dialect d) {
    size_t length, next_length;
    if (s->text[at] == '\'') {
        size_t end = contraction(s, at, true);
        if (end > at) return end;
    }
    uint8_t class = class_at(s, at, &length);
    if (class & d.letters) return run_of(s, at + length, d.letters);
    if (class & DR_NUMBER) {
        size_t end = at + length;
        for (int count = 1; end < s->bytes && count != d.digits && class_at(s, end, &length) & DR_NUMBER; count++)
            end += length;
        return end;
    }
    const size_t next = at + length;
    const uint8_t next_class = next < s->bytes ? class_at(s, next, &next_length) : 0;
    if (!is_line_end(s->text[at]) && next_class & d.letters) return run_of(s, next + next_length, d.letters);
    const uint8_t no_sign = DR_SPACE | DR_NUMBER | d.letters;
    size_t sign = s->text[at] == ' ' ? next : at;
    if (sign < s->bytes && !((sign == at ? class : next_class) & no_sign)) {
        size_t end = run_without(s, sign, no_sign);
        while (end < s->bytes && is_line_end(s->text[end])) end++;
        return end;
    }
    size_t end = run_of(s, at, DR_SPACE);
    if (d.end_first && end == s->bytes) return end;
    size_t line = last_line_end(s, at, end);
    return line > at ? line : blanks(s, at, end);
}

static size_t scan_llama3(const dr_classes *classes, const char *text, size_t bytes, size_t at) {
    const source s = {classes, text, bytes};
    return scan_cl100k(&s, at, (dialect){DR_LETTER, 3, false});
}

static size_t scan_qwen2(const dr_classes *classes, const char *text, size_t bytes, size_t at) {
    const source s = {classes, text, bytes};
    return scan_cl100k(&s, at, (dialect){DR_LETTER, 1, false});
}

static size_t scan_qwen3_5(const dr_classes *classes, const char *text, size_t bytes, size_t at) {
    const source s = {classes, text, bytes};
    return scan_cl100k(&s, at, (dialect){DR_LETTER | DR_MARK, 1, false});
}

static size_t scan_olmo(const dr_classes *classes, const char *text, size_t bytes, size_t at) {
    const source s = {classes, text, bytes};
    return scan_cl100k(&s, at, (dialect){DR_LETTER, 0, true});
}

static const struct {
    const char *expression;
    dr_scanner scanner;
} table[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", dr_scan_gpt2},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
     "\\s+(?!\\S)|\\s+",
     scan_llama3},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
     "\\s+(?!\\S)|\\s+",
     scan_qwen2},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"
     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     scan_qwen3_5},
    {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|"
     "\\s+(?!\\S)|\\s",
     scan_olmo},
};
enum { SCANNERS = sizeof table / sizeof table[0] };

dr_scanner dr_scanner_of(const char *expression, size_t bytes) {
    for (int i = 0; i < SCANNERS; i++)
        if (strlen(table[i].expression) == bytes && memcmp(table[i].expression, expression, bytes) == 0)
            return table[i].scanner;
    return NULL;
}

const char *dr_scanner_expression(int i) {
    return i < SCANNERS ? table[i].expression : NULL;
}
