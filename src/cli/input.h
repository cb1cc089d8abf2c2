/* Reading what a user names whole: a file, a pipe, or "-" for standard input. */
#ifndef DR_CLI_INPUT_H
#define DR_CLI_INPUT_H

#include "cli/flags.h"

#include <stddef.h>

/* More than any prompt, template or conversation: what is longer has no end, or is another file than was meant. */
enum { CLI_MOST_PROMPT = 1 << 26 };

/* Bytes until the end, with a zero byte behind them; free *text. More than `most` bytes are refused, 0: more than a quarter of
 * the memory that is free. On failure says so and returns the exit status, else 0. */
int cli_read_input(const cli_command *command, const char *path, size_t most, char **text, size_t *bytes);

#endif
