/* UTF-8: where a text stops to be valid, and names from outside as they may stand in a message. */
#ifndef DR_BASE_UTF8_H
#define DR_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* First offset at which text is not valid UTF-8 (RFC 3629: no overlong forms, no surrogates), or bytes if all of it is. */
int64_t dr_utf8_valid(const uint8_t *text, int64_t bytes);

/* A name for a message or a terminal: control characters and bytes that are not UTF-8 as \xNN, all else as it is. What does not
 * fit into size bytes is cut between characters. Returns text. */
const char *dr_printable(const char *name, char *text, size_t size);

#endif
