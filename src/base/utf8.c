/* Text is checked eight bytes at a time where all are ASCII, which most text is nearly everywhere. */
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

/* The second byte of a character has a range of its own behind E0, ED, F0 and F4; all other followers are 80 to BF. */
int dr_utf8_step(const char *text, size_t left) {
    const uint8_t *t = (const uint8_t *)text;
    uint8_t first = t[0], least = 0x80, most = 0xbf;
    int length;
    if (first < 0x80) return 1;
    if (first < 0xc2 || first > 0xf4) return -1;
    if (first < 0xe0) {
        length = 2;
    } else if (first < 0xf0) {
        length = 3;
        if (first == 0xe0) least = 0xa0;
        if (first == 0xed) most = 0x9f;
    } else {
        length = 4;
        if (first == 0xf0) least = 0x90;
        if (first == 0xf4) most = 0x8f;
    }
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= left || t[i] < least || t[i] > most) return -i;
        least = 0x80;
        most = 0xbf;
    }
    return length;
}

/* Bytes of the character at text, 0 if none that is valid begins there. */
static int64_t character(const uint8_t *text, int64_t bytes) {
    int step = dr_utf8_step((const char *)text, (size_t)bytes);
    return step > 0 ? step : 0;
}

int64_t dr_utf8_valid(const uint8_t *text, int64_t bytes) {
    int64_t i = 0;
    while (i < bytes) {
        uint64_t word;
        while (bytes - i >= 8 && (memcpy(&word, text + i, 8), (word & 0x8080808080808080) == 0)) i += 8;
        if (i == bytes) break;
        int64_t length = character(text + i, bytes - i);
        if (length == 0) return i;
        i += length;
    }
    return bytes;
}

const char *dr_printable(const char *name, char *text, size_t size) {
    int64_t left = (int64_t)strlen(name);
    size_t used = 0;
    const uint8_t *at = (const uint8_t *)name;
    while (left > 0) {
        int64_t length = character(at, left);
        /* C0, DEL, and C1, which is two bytes in UTF-8 */
        int control = *at < 0x20 || *at == 0x7f || (length == 2 && at[0] == 0xc2 && at[1] < 0xa0);
        int64_t taken = length > 0 ? length : 1;
        size_t needed = length == 0 || control ? 4 * (size_t)taken : (size_t)taken;
        if (used + needed >= size) break;
        for (int64_t k = 0; k < taken; k++)
            if (length == 0 || control)
                used += (size_t)snprintf(text + used, size - used, "\\x%02x", at[k]);
            else
                text[used++] = (char)at[k];
        at += taken, left -= taken;
    }
    if (size > 0) text[used] = '\0';
    return text;
}
