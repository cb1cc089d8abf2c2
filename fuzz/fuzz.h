/* What every fuzzer has: the entry point that libFuzzer calls (fuzz/replay.c without it), and its input as a file, since the
 * library opens paths. Whatever the bytes are, the library must return a status: no crash, no leak, no sanitizer report. */
#ifndef DR_FUZZ_H
#define DR_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Runs read on a path under which the bytes can be opened; the file lives in memory. */
static inline void fuzz_with_file(const uint8_t *data, size_t size, void (*read)(const char *path)) {
    char path[64];
    int descriptor = memfd_create("fuzz", MFD_CLOEXEC);
    if (descriptor < 0 || write(descriptor, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    read(path);
    close(descriptor);
}

#endif
