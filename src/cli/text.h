/* Text from outside on its way out: to a terminal, which must not get control characters, or into JSON. */
#ifndef DR_CLI_TEXT_H
#define DR_CLI_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* A stream of bytes that come in pieces. Characters are written whole: the beginning of one waits for its end, and is left out
 * if that never comes. */
typedef struct {
    FILE *stream;
    bool
        plain; /* control characters but tab and newline, and bytes that are not UTF-8, are shown as \xNN; false: as they are */
    char held[4];
    int held_count;
    char last; /* the byte written last, or 0 */
} cli_text;

/* plain if the stream is a terminal. */
cli_text cli_text_begin(FILE *stream);
/* False if it could not be written. */
bool cli_text_write(cli_text *text, const char *bytes, size_t count);

/* A name in one line: newlines and tabs are shown too. */
void cli_print_name(FILE *stream, const char *name);
/* "text" on standard output, with what JSON wants escaped; bytes that are not UTF-8 become U+FFFD. */
void cli_print_json_string(const char *text, size_t bytes);
/* "key": "text", with what JSON wants escaped; bytes that are not UTF-8 become U+FFFD. */
void cli_print_json_text(const char *key, const char *text);
/* "key": number, or null for what is not finite, which JSON has no number for. */
void cli_print_json_number(const char *key, double number);

#endif
