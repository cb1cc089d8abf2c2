/* A folder of a test's own under /tmp, removed at the end, and files in it. Include it in one file only. */
#ifndef DR_TESTS_SCRATCH_H
#define DR_TESTS_SCRATCH_H

#include <ftw.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

static char scratch_folder[] = "/tmp/deltarule-test-XXXXXX";

static int scratch_remove_one(const char *path, const struct stat *facts, int kind, struct FTW *place) {
    (void)facts, (void)kind, (void)place;
    return remove(path);
}

static inline void scratch_remove(const char *path) {
    nftw(path, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline int scratch_begin(void **state) {
    (void)state;
    return mkdtemp(scratch_folder) ? 0 : -1;
}

static inline int scratch_end(void **state) {
    (void)state;
    scratch_remove(scratch_folder);
    return 0;
}

/* The path of a name in the folder; the text is valid until the eighth call from here. */
static inline const char *scratch_path(const char *name) {
    static char path[8][PATH_MAX];
    static unsigned next;
    char *text = path[next++ % 8];
    assert_in_range(snprintf(text, PATH_MAX, "%s/%s", scratch_folder, name), 1, PATH_MAX - 1);
    return text;
}

static inline void scratch_write_at(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* Makes a file in the folder, and the subfolders it lies in. */
static inline const char *scratch_write(const char *name, const void *data, size_t bytes) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", scratch_path(name));
    for (char *slash = strchr(path + strlen(scratch_folder) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
    scratch_write_at(path, data, bytes);
    return scratch_path(name);
}

/* The whole of a file, with a zero byte behind it; free it. NULL if there is none. */
static inline char *scratch_read_at(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    struct stat about;
    if (!file) return NULL;
    assert_int_equal(fstat(fileno(file), &about), 0);
    char *text = calloc(1, (size_t)about.st_size + 1);
    assert_non_null(text);
    *bytes = fread(text, 1, (size_t)about.st_size, file);
    fclose(file);
    return text;
}

#endif
