/* Characters are taken from the pieces one by one, by the first byte's word on how long they are (RFC 3629). */
#include "cli/text.h"

#include "base/number.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* Bytes of the character that begins so: 1 to 4 if it is whole and valid, 0 if more bytes may make it one, -1 if it never is.
 */
static int character(const char *bytes, size_t count) {
    const unsigned char *c = (const unsigned char *)bytes;
    if (c[0] < 0x80) return 1;
    size_t length = c[0] >= 0xc2 && c[0] <= 0xdf ? 2 : (c[0] & 0xf0) == 0xe0 ? 3 : c[0] >= 0xf0 && c[0] <= 0xf4 ? 4 : 0;
    if (length == 0) return -1;
    for (size_t i = 1; i < length; i++) {
        if (i == count) return 0;
        if ((c[i] & 0xc0) != 0x80) return -1;
        if (i > 1) continue;
        if ((c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xf0 && c[1] < 0x90)) return -1; /* overlong */
        if ((c[0] == 0xed && c[1] > 0x9f) || (c[0] == 0xf4 && c[1] > 0x8f)) return -1; /* surrogate, above U+10FFFF */
    }
    return (int)length;
}

/* C0, DEL, and C1, which is two bytes in UTF-8. */
static bool is_control(const char *bytes, int length) {
    unsigned char first = (unsigned char)bytes[0];
    return (length == 1 && (first < 0x20 || first == 0x7f)) || (length == 2 && first == 0xc2 && (unsigned char)bytes[1] < 0xa0);
}

static bool write_bytes(FILE *stream, const char *bytes, int count, bool escaped) {
    if (!escaped) return fwrite(bytes, 1, (size_t)count, stream) == (size_t)count;
    for (int i = 0; i < count; i++)
        if (fprintf(stream, "\\x%02x", (unsigned char)bytes[i]) < 0) return false;
    return true;
}

cli_text cli_text_begin(FILE *stream) {
    return (cli_text){.stream = stream, .plain = isatty(fileno(stream))};
}

/* Writes what is held as far as it is decided. */
static bool write_held(cli_text *text) {
    while (text->held_count > 0) {
        int length = character(text->held, (size_t)text->held_count), taken = length > 0 ? length : 1;
        if (length == 0) return true; /* its end is to come */
        bool bad = length < 0 || (is_control(text->held, length) && text->held[0] != '\n' && text->held[0] != '\t');
        if (!write_bytes(text->stream, text->held, taken, bad && text->plain)) return false;
        text->last = text->held[taken - 1];
        text->held_count -= taken;
        memmove(text->held, text->held + taken, (size_t)text->held_count);
    }
    return true;
}

bool cli_text_write(cli_text *text, const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        text->held[text->held_count++] = bytes[i];
        if (!write_held(text)) return false;
    }
    return true;
}

void cli_print_name(FILE *stream, const char *name) {
    size_t left = strlen(name);
    while (left > 0) {
        int length = character(name, left), taken = length > 0 ? length : 1;
        write_bytes(stream, name, taken, length <= 0 || is_control(name, length));
        name += taken, left -= (size_t)taken;
    }
}

void cli_print_json_string(const char *text, size_t bytes) {
    size_t left = bytes;
    putchar('"');
    while (left > 0) {
        int length = character(text, left), taken = length > 0 ? length : 1;
        if (length <= 0)
            printf("\xef\xbf\xbd");
        else if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else if (length == 1 && ((unsigned char)*text < 0x20 || *text == 0x7f))
            printf("\\u%04x", (unsigned char)*text);
        else
            fwrite(text, 1, (size_t)taken, stdout);
        text += taken, left -= (size_t)taken;
    }
    putchar('"');
}

void cli_print_json_text(const char *key, const char *text) {
    printf("\"%s\": ", key);
    cli_print_json_string(text, strlen(text));
}

void cli_print_json_number(const char *key, double number) {
    if (isfinite(number))
        dr_print(stdout, "\"%s\": %.17g", key, number);
    else
        printf("\"%s\": null", key);
}
