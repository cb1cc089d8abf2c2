/* How much memory a process may still take: the least of what the machine, its control group and its own limit leave. */
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The number behind a name in a file of lines "NAME NUMBER", or in a file that is one number (name ""); -1: it is not there. */
static int64_t read_number(const char *path, const char *name) {
    char line[256];
    int64_t number = -1;
    size_t length = strlen(name);
    FILE *file = fopen(path, "re");
    if (!file) return -1;
    while (number < 0 && fgets(line, sizeof line, file)) {
        const char *digits = line + length;
        if (strncmp(line, name, length) != 0) continue;
        digits += strspn(digits, " \t");
        if (*digits >= '0' && *digits <= '9') number = strtoll(digits, NULL, 10);
    }
    fclose(file);
    return number;
}

static int64_t less(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* What is cached from files does not count: it makes room. */
static int64_t left_by_group(void) {
    int64_t most = read_number("/sys/fs/cgroup/memory.max", ""), used = read_number("/sys/fs/cgroup/memory.stat", "anon ");
    return most < 0 || used < 0 ? INT64_MAX : most > used ? most - used : 0;
}

static int64_t left_by_limit(void) {
    struct rlimit limit;
    int64_t pages = read_number("/proc/self/statm", "");
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || pages < 0) return INT64_MAX;
    int64_t left = (int64_t)limit.rlim_cur - pages * sysconf(_SC_PAGESIZE);
    return left > 0 ? left : 0;
}

int64_t dr_memory_available(void) {
    int64_t free_kb = read_number("/proc/meminfo", "MemAvailable:"), swap_kb = read_number("/proc/meminfo", "SwapFree:");
    int64_t machine = free_kb < 0 ? INT64_MAX : 1024 * (free_kb + (swap_kb > 0 ? swap_kb : 0));
    return less(machine, less(left_by_group(), left_by_limit()));
}
