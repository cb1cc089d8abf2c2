/* Names of machines out of Linux's /proc. */
#include "cli/machine.h"

#include <dirent.h>
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

/* The first GPU that the driver lists. */
static bool read_gpu(char name[CLI_MACHINE_SIZE]) {
    char file[sizeof "/proc/driver/nvidia/gpus//information" + 256];
    bool found = false;
    DIR *listing = opendir("/proc/driver/nvidia/gpus");
    for (const struct dirent *item; listing && !found && (item = readdir(listing));) {
        snprintf(file, sizeof file, "/proc/driver/nvidia/gpus/%s/information", item->d_name);
        found = item->d_name[0] != '.' && read_name(file, "Model", name);
    }
    if (listing) closedir(listing);
    return found;
}

void cli_machine_name(const char *backend, char name[CLI_MACHINE_SIZE]) {
    const bool found = strcmp(backend, "cuda") == 0 ? read_gpu(name) : read_name("/proc/cpuinfo", "model name", name);
    if (!found) snprintf(name, CLI_MACHINE_SIZE, "unknown");
}
