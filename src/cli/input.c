#include "cli/input.h"

#include "cli/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FIRST_ROOM = 1 << 16 };

static int fail(const cli_command *command, const char *path, const char *reason) {
    fprintf(stderr, "deltarule %s: cannot read ", command->name);
    cli_print_name(stderr, strcmp(path, "-") == 0 ? "standard input" : path);
    fprintf(stderr, ": %s\n", reason);
    return 1;
}

/* NULL with the reason in errno, EFBIG if there are more than `most` bytes. */
static char *read_all(FILE *stream, size_t most, size_t *bytes) {
    size_t room = FIRST_ROOM, have = 0;
    char *text = malloc(room + 1);
    while (text) {
        errno = 0;
        have += fread(text + have, 1, room - have, stream);
        if (have < room && have <= most) break;
        char *larger = have > most ? NULL : realloc(text, 2 * room + 1);
        if (!larger) free(text);
        if (have > most) errno = EFBIG;
        text = larger;
        room *= 2;
    }
    if (text && ferror(stream)) {
        int reason = errno;
        free(text);
        text = NULL;
        errno = reason;
    }
    if (text) text[have] = '\0';
    *bytes = have;
    return text;
}

int cli_read_input(const cli_command *command, const char *path, size_t most, char **text, size_t *bytes) {
    char longer[80];
    if (most == 0) most = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE) / 4;
    struct stat facts;
    FILE *stream = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (!stream) return fail(command, path, strerror(errno));
    if (fstat(fileno(stream), &facts) == 0 && S_ISDIR(facts.st_mode)) {
        if (stream != stdin) fclose(stream);
        return fail(command, path, "it is a folder");
    }
    *text = read_all(stream, most, bytes);
    int reason = errno;
    if (stream != stdin) fclose(stream);
    if (*text) return 0;
    snprintf(longer, sizeof longer, "it has more than the %zu MiB that can be taken at once", most >> 20);
    return fail(command, path, reason == EFBIG ? longer : strerror(reason));
}
