/* Names of machines out of Linux's /proc. */
#include "cli/machine.h"

#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* What stands behind the colon of a file's first line that begins so. */
static bool read_name(const char *file, const char *key, char name[CLI_MACHINE_SIZE]) {
    char line[256];
    bool found = false;
    FILE *from = fopen(file, "r");
    while (from && !found && fgets(line, sizeof line, from)) {
        const char *value = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) != 0 || !value) continue;
        value += 1 + strspn(value + 1, " \t");
        snprintf(name, CLI_MACHINE_SIZE, "%.*s", (int)strcspn(value, "\n"), value);
        found = *name != '\0';
    }
    if (from) fclose(from);
    return found;
}

void cli_machine_name(const char *backend, char name[CLI_MACHINE_SIZE]) {
    bool found = false;
    if (strcmp(backend, "cuda") == 0) {
        glob_t files;
        if (glob("/proc/driver/nvidia/gpus/*/information", 0, NULL, &files) == 0) {
            found = read_name(files.gl_pathv[0], "Model", name);
            globfree(&files);
        }
    } else {
        found = read_name("/proc/cpuinfo", "model name", name);
    }
    if (!found) snprintf(name, CLI_MACHINE_SIZE, "unknown");
}
