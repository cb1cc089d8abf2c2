/* Reading what a user names whole: a file, a pipe, or "-" for standard input. */
#ifndef DR_CLI_INPUT_H
#define DR_CLI_INPUT_H

#include "cli/flags.h"

#include <stddef.h>

/* Bytes until the end, with a zero byte behind them; free *text. On failure says so and returns the exit status, else 0. */
int cli_read_input(const cli_command *command, const char *path, char **text, size_t *bytes);

#endif
