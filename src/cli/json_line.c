/* Strings are read in place: an escape is never shorter than what it stands for. */
#include "cli/json_line.h"

#include <string.h>

static size_t skip_blanks(const char *line, size_t bytes, size_t at) {
    while (at < bytes && (line[at] == ' ' || line[at] == '\t' || line[at] == '\r' || line[at] == '\n')) at++;
    return at;
}

/* Four hexadecimal digits, or -1. */
static int32_t four_digits(const char *text, size_t left) {
    int32_t value = 0;
    if (left < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = 16 * value + digit;
    }
    return value;
}

static size_t put_character(uint32_t c, char *text) {
    if (c < 0x80) {
        text[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        text[0] = (char)(0xc0 | c >> 6);
        text[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        text[0] = (char)(0xe0 | c >> 12);
        text[1] = (char)(0x80 | (c >> 6 & 0x3f));
        text[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    text[0] = (char)(0xf0 | c >> 18);
    text[1] = (char)(0x80 | (c >> 12 & 0x3f));
    text[2] = (char)(0x80 | (c >> 6 & 0x3f));
    text[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

/* \uXXXX, and the second half of a pair, from behind the u on; 0: it is broken. */
static uint32_t unicode_escape(const char *line, size_t bytes, size_t *at, bool *known) {
    int32_t first = four_digits(line + *at, bytes - *at), second;
    *known = first >= 0 && !(first >= 0xdc00 && first < 0xe000);
    if (!*known) return 0;
    *at += 4;
    if (first < 0xd800 || first >= 0xe000) return (uint32_t)first;
    *known = bytes - *at >= 6 && line[*at] == '\\' && line[*at + 1] == 'u';
    second = *known ? four_digits(line + *at + 2, bytes - *at - 2) : -1;
    *known = second >= 0xdc00 && second < 0xe000;
    if (!*known) return 0;
    *at += 6;
    return 0x10000u + ((uint32_t)(first - 0xd800) << 10) + (uint32_t)(second - 0xdc00);
}

bool cli_json_string(char *line, size_t bytes, size_t *text_bytes, const char **what) {
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    size_t at = skip_blanks(line, bytes, 0), used = 0;
    *what = "it must be a JSON string, \"...\"";
    if (at == bytes || line[at++] != '"') return false;
    while (at < bytes && line[at] != '"') {
        if ((unsigned char)line[at] < 0x20) {
            *what = "a control character stands in the string: write \\n, \\t or \\u00XX";
            return false;
        }
        if (line[at] != '\\') {
            line[used++] = line[at++];
            continue;
        }
        if (++at == bytes) return false;
        const char *letter = line[at] ? strchr(letters, line[at]) : NULL;
        bool known = letter != NULL;
        if (letter) {
            line[used++] = values[letter - letters];
            at++;
        } else if (line[at] == 'u') {
            at++;
            uint32_t character = unicode_escape(line, bytes, &at, &known);
            if (known) used += put_character(character, line + used);
        }
        if (!known) {
            *what = "a broken escape stands in the string";
            return false;
        }
    }
    if (at == bytes || skip_blanks(line, bytes, at + 1) != bytes) return false;
    *text_bytes = used;
    return true;
}

bool cli_json_ids(const char *line, size_t bytes, int32_t *ids, size_t *count, const char **what) {
    size_t at = skip_blanks(line, bytes, 0);
    *count = 0;
    *what = "it must be a JSON list of token ids, [1, 2]";
    if (at == bytes || line[at++] != '[') return false;
    at = skip_blanks(line, bytes, at);
    if (at < bytes && line[at] == ']') return skip_blanks(line, bytes, at + 1) == bytes;
    for (;;) {
        int64_t id = 0;
        size_t begin = at = skip_blanks(line, bytes, at);
        for (; at < bytes && line[at] >= '0' && line[at] <= '9' && id <= INT32_MAX; at++) id = 10 * id + (line[at] - '0');
        if (at == begin || id > INT32_MAX) return false;
        ids[(*count)++] = (int32_t)id;
        at = skip_blanks(line, bytes, at);
        if (at == bytes || (line[at] != ',' && line[at] != ']')) return false;
        if (line[at++] == ']') return skip_blanks(line, bytes, at) == bytes;
    }
}

void cli_json_print(FILE *stream, const char *text, size_t bytes) {
    static const char letters[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    size_t from = 0;
    putc('"', stream);
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) continue;
        const char *letter = c ? strchr(letters, c) : NULL;
        fwrite(text + from, 1, i - from, stream);
        from = i + 1;
        if (letter)
            fprintf(stream, "\\%c", names[letter - letters]);
        else
            fprintf(stream, "\\u%04x", c);
    }
    fwrite(text + from, 1, bytes - from, stream);
    putc('"', stream);
}
