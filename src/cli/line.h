/* Lines that a user types: on a terminal with editing and a history (libedit, where the program was built with it), else as
 * they come. */
#ifndef DR_CLI_LINE_H
#define DR_CLI_LINE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct cli_lines cli_lines;

typedef enum { CLI_LINE, CLI_LINE_END, CLI_LINE_INTERRUPTED, CLI_LINE_FAILED } cli_line_kind;

/* NULL without memory. */
cli_lines *cli_lines_open(void);
void cli_lines_close(cli_lines *lines);
/* Whether somebody types: standard input and output are terminals. */
bool cli_lines_typed(const cli_lines *lines);

/* The next line without its end, which is valid until the next call; prompt is shown where somebody types. A line that ends
 * with a backslash goes on in the next. CLI_LINE_INTERRUPTED: a signal came instead. CLI_LINE_FAILED: reading failed, as errno
 * says, or a line has more than `most` bytes (EFBIG). */
cli_line_kind cli_lines_read(cli_lines *lines, const char *prompt, size_t most, char **line, size_t *bytes);

#endif
