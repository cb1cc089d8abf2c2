/* The live line is written after a carriage return and padded with blanks to the length of the one before. */
#include "cli/progress.h"

#include "base/number.h"
#include "cli/flags.h"

#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { NARROWEST_TERMINAL = 20, FORMATTED = 32 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int columns(const cli_progress *progress) {
    struct winsize size;
    if (ioctl(fileno(progress->stream), TIOCGWINSZ, &size) != 0 || size.ws_col < NARROWEST_TERMINAL) return 80;
    return size.ws_col;
}

bool cli_progress_lost(const cli_progress *progress) {
    return ferror(progress->stream) && !cli_closed(progress->stream);
}

cli_progress cli_progress_begin(FILE *stream) {
    return (cli_progress){.stream = stream, .live = isatty(fileno(stream)), .last_update = -(double)INFINITY};
}

bool cli_progress_due(const cli_progress *progress) {
    return now() - progress->last_update >= (progress->live ? 0.1 : 5);
}

void cli_progress_show(cli_progress *progress, bool lasting, const char *line) {
    progress->last_update = now();
    if (!progress->live) {
        fprintf(progress->stream, "%s\n", line);
    } else {
        int width = lasting ? (int)strlen(line) : columns(progress) - 1; /* a full line would wrap: nothing could rewrite it */
        int shown = fprintf(progress->stream, "\r%.*s", width, line) - 1;
        fprintf(progress->stream, "%*s", progress->shown > shown ? progress->shown - shown : 0, "");
        if (lasting) fputc('\n', progress->stream);
        progress->shown = lasting ? 0 : shown;
    }
    fflush(progress->stream);
}

void cli_progress_end(cli_progress *progress) {
    if (progress->live && progress->shown) fprintf(progress->stream, "\r%*s\r", progress->shown, "");
    progress->shown = 0;
    fflush(progress->stream);
}

const char *cli_format_seconds(double seconds, char *text) {
    long long whole = isfinite(seconds) && seconds > 0 ? llround(seconds) : 0;
    if (whole < 60)
        snprintf(text, FORMATTED, "%lld s", whole);
    else if (whole < 3600)
        snprintf(text, FORMATTED, "%lld min %02lld s", whole / 60, whole % 60);
    else
        snprintf(text, FORMATTED, "%lld h %02lld min", whole / 3600, whole / 60 % 60);
    return text;
}

const char *cli_format_count(double count, char *text) {
    if (count < 1e3)
        dr_format(text, FORMATTED, "%.0f", count);
    else if (count < 1e6)
        dr_format(text, FORMATTED, "%.1f k", count / 1e3);
    else
        dr_format(text, FORMATTED, "%.2f M", count / 1e6);
    return text;
}
