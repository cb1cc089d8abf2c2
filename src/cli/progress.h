/* How far a long command is: one line that rewrites itself on a terminal, plain lines now and then elsewhere. */
#ifndef DR_CLI_PROGRESS_H
#define DR_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdio.h>

typedef struct {
    FILE *stream;
    bool live;          /* the stream is a terminal */
    int shown;          /* columns of the live line on the screen */
    double last_update; /* seconds; of the monotonic clock */
} cli_progress;

cli_progress cli_progress_begin(FILE *stream);
/* Whether the stream could be written and no longer can. One that was closed from the beginning was meant to show nothing. */
bool cli_progress_lost(const cli_progress *progress);
/* Whether it is time for another line: ten a second on a terminal, one in five seconds elsewhere. */
bool cli_progress_due(const cli_progress *progress);
/* Shows a line. lasting: it stays on the terminal; plain streams get every line. */
void cli_progress_show(cli_progress *progress, bool lasting, const char *line);
/* Takes a live line off the screen. */
void cli_progress_end(cli_progress *progress);

/* "45 s", "3 min 05 s", "2 h 10 min"; text has room for 32 characters. */
const char *cli_format_seconds(double seconds, char *text);
/* 950, 12.3 k, 4.56 M */
const char *cli_format_count(double count, char *text);

#endif
