/* A line is gathered from pieces, since one that ends with a backslash goes on. Without libedit, and where nobody types, pieces
 * come from getline(). */
#include "cli/line.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef DR_WITH_LIBEDIT
#include <histedit.h>
#endif

struct cli_lines {
    bool typed;
    const char *prompt;
    char *piece; /* of getline() */
    size_t piece_room;
    char *line; /* [line_bytes] and a zero byte */
    size_t line_bytes, line_room;
#ifdef DR_WITH_LIBEDIT
    EditLine *edit;
    History *history;
    HistEvent event;
#endif
};

#ifdef DR_WITH_LIBEDIT
static char *show_prompt(EditLine *edit) {
    cli_lines *lines = NULL;
    el_get(edit, EL_CLIENTDATA, &lines);
    return (char *)lines->prompt;
}

/* Characters of several bytes are edited whole only in a locale that has them. */
static void choose_characters(void) {
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
}

static void open_editing(cli_lines *lines) {
    enum { REMEMBERED = 1000 };
    choose_characters();
    lines->history = history_init();
    lines->edit = lines->history ? el_init("deltarule", stdin, stdout, stderr) : NULL;
    if (!lines->edit) return;
    history(lines->history, &lines->event, H_SETSIZE, REMEMBERED);
    history(lines->history, &lines->event, H_SETUNIQUE, 1);
    el_set(lines->edit, EL_CLIENTDATA, lines);
    el_set(lines->edit, EL_PROMPT, show_prompt);
    el_set(lines->edit, EL_EDITOR, "emacs");
    el_set(lines->edit, EL_HIST, history, lines->history);
    el_set(lines->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(lines->edit, NULL);
}
#endif

cli_lines *cli_lines_open(void) {
    cli_lines *lines = calloc(1, sizeof *lines);
    if (!lines) return NULL;
    lines->typed = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
#ifdef DR_WITH_LIBEDIT
    if (lines->typed) open_editing(lines);
#endif
    return lines;
}

void cli_lines_close(cli_lines *lines) {
    if (!lines) return;
#ifdef DR_WITH_LIBEDIT
    if (lines->edit) el_end(lines->edit);
    if (lines->history) history_end(lines->history);
#endif
    free(lines->piece);
    free(lines->line);
    free(lines);
}

bool cli_lines_typed(const cli_lines *lines) {
    return lines->typed;
}

/* A piece with its newline; *count below 0: none, and errno says why, 0 at the end. */
static const char *read_piece(cli_lines *lines, const char *prompt, ssize_t *count) {
    errno = 0;
#ifdef DR_WITH_LIBEDIT
    if (lines->edit) {
        int bytes = 0;
        lines->prompt = prompt;
        const char *piece = el_gets(lines->edit, &bytes);
        *count = piece ? bytes : -1;
        if (!piece && errno != EINTR) errno = 0;
        return piece;
    }
#endif
    if (lines->typed) {
        fputs(prompt, stdout);
        fflush(stdout);
    }
    *count = getline(&lines->piece, &lines->piece_room, stdin);
    if (*count < 0 && !ferror(stdin)) errno = 0;
    if (*count < 0) clearerr(stdin);
    return lines->piece;
}

static bool append(cli_lines *lines, const char *piece, size_t bytes) {
    if (lines->line_bytes + bytes + 1 > lines->line_room) {
        const size_t room = 2 * (lines->line_bytes + bytes + 1);
        char *larger = realloc(lines->line, room);
        if (!larger) return false;
        lines->line = larger;
        lines->line_room = room;
    }
    memcpy(lines->line + lines->line_bytes, piece, bytes);
    lines->line_bytes += bytes;
    lines->line[lines->line_bytes] = '\0';
    return true;
}

static void remember(cli_lines *lines) {
#ifdef DR_WITH_LIBEDIT
    if (lines->edit && lines->line_bytes > 0) history(lines->history, &lines->event, H_ENTER, lines->line);
#else
    (void)lines;
#endif
}

cli_line_kind cli_lines_read(cli_lines *lines, const char *prompt, size_t most, char **line, size_t *bytes) {
    bool goes_on = true;
    lines->line_bytes = 0;
    for (bool first = true; goes_on; first = false) {
        ssize_t count;
        const char *piece = read_piece(lines, first ? prompt : "... ", &count);
        if (count < 0 && errno == EINTR) return CLI_LINE_INTERRUPTED;
        if (count < 0 && errno != 0) return CLI_LINE_FAILED;
        if (count <= 0 && first) return CLI_LINE_END;
        if (count <= 0) break; /* the text ends behind a backslash */
        size_t length = (size_t)count;
        if (piece[length - 1] == '\n') length--;
        goes_on = length > 0 && piece[length - 1] == '\\';
        if (lines->line_bytes + length > most) errno = EFBIG;
        if (errno == EFBIG || !append(lines, piece, goes_on ? length - 1 : length)) return CLI_LINE_FAILED;
        if (goes_on && !append(lines, "\n", 1)) return CLI_LINE_FAILED;
    }
    remember(lines);
    *line = lines->line;
    *bytes = lines->line_bytes;
    return CLI_LINE;
}
