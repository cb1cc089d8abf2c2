/* JSON of one line: a string, and a list of token ids. */
#ifndef DR_CLI_JSON_LINE_H
#define DR_CLI_JSON_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The text of a JSON string that fills the line, blanks around it allowed, written over it. false: it is none, and *what says
 * so. */
bool cli_json_string(char *line, size_t bytes, size_t *text_bytes, const char **what);

/* The ids of a list that fills the line, written to ids, which has room for one more than the line has commas. */
bool cli_json_ids(const char *line, size_t bytes, int32_t *ids, size_t *count, const char **what);

/* Prints a text, UTF-8, as a JSON string. */
void cli_json_print(FILE *stream, const char *text, size_t bytes);

#endif
