/* UTF-8: stepping through text, where a text stops to be valid, and names from outside as they may stand in a message. */
#ifndef DR_BASE_UTF8_H
#define DR_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* First offset at which text is not valid UTF-8 (RFC 3629: no overlong forms, no surrogates), or bytes if all of it is. */
int64_t dr_utf8_valid(const uint8_t *text, int64_t bytes);

/* The same of chars. */
static inline size_t dr_utf8_valid_bytes(const char *text, size_t bytes) {
    return (size_t)dr_utf8_valid((const uint8_t *)text, (int64_t)bytes);
}

/* What stands at text[0], of left >= 1 bytes: the length of a character, 1 to 4, or minus the length of what is broken, -1 to
 * -3: the longest beginning of a character that something else or nothing follows, as Unicode recommends to replace by one
 * U+FFFD. */
int dr_utf8_step(const char *text, size_t left);

/* The character at text[0] of valid UTF-8, and its length. */
static inline uint32_t dr_utf8_character(const char *text, size_t *length) {
    const uint8_t *t = (const uint8_t *)text;
    if (t[0] < 0x80) {
        *length = 1;
        return t[0];
    }
    if (t[0] < 0xe0) {
        *length = 2;
        return (uint32_t)(t[0] & 0x1f) << 6 | (t[1] & 0x3f);
    }
    if (t[0] < 0xf0) {
        *length = 3;
        return (uint32_t)(t[0] & 0x0f) << 12 | (uint32_t)(t[1] & 0x3f) << 6 | (t[2] & 0x3f);
    }
    *length = 4;
    return (uint32_t)(t[0] & 0x07) << 18 | (uint32_t)(t[1] & 0x3f) << 12 | (uint32_t)(t[2] & 0x3f) << 6 | (t[3] & 0x3f);
}

/* Where the character before text[at] of valid UTF-8 begins; at >= 1. */
static inline size_t dr_utf8_before(const char *text, size_t at) {
    do at--;
    while (at > 0 && ((uint8_t)text[at] & 0xc0) == 0x80);
    return at;
}

/* Writes a character, not a surrogate, at most U+10FFFF; returns its length. */
static inline size_t dr_utf8_write(uint32_t character, char text[4]) {
    if (character < 0x80) {
        text[0] = (char)character;
        return 1;
    }
    if (character < 0x800) {
        text[0] = (char)(0xc0 | character >> 6);
        text[1] = (char)(0x80 | (character & 0x3f));
        return 2;
    }
    if (character < 0x10000) {
        text[0] = (char)(0xe0 | character >> 12);
        text[1] = (char)(0x80 | (character >> 6 & 0x3f));
        text[2] = (char)(0x80 | (character & 0x3f));
        return 3;
    }
    text[0] = (char)(0xf0 | character >> 18);
    text[1] = (char)(0x80 | (character >> 12 & 0x3f));
    text[2] = (char)(0x80 | (character >> 6 & 0x3f));
    text[3] = (char)(0x80 | (character & 0x3f));
    return 4;
}

/* A name for a message or a terminal: control characters and bytes that are not UTF-8 as \xNN, all else as it is. What does not
 * fit into size bytes is cut between characters. Returns text. */
const char *dr_printable(const char *name, char *text, size_t size);

#endif
