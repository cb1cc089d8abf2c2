/* The folders of published models in tests/checkpoints. */
#ifndef TESTS_CHECKPOINT_FOLDERS_H
#define TESTS_CHECKPOINT_FOLDERS_H

#include <dirent.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

/* Calls `visit` with the path of each folder that has recorded results. */
static inline void each_checkpoint(void (*visit)(const char *folder, void *context), void *context) {
    DIR *listing = opendir(DR_TESTS_FOLDER "/checkpoints");
    int folders = 0;
    assert_non_null(listing);
    for (const struct dirent *item = readdir(listing); item; item = readdir(listing)) {
        char path[600];
        snprintf(path, sizeof path, "%s/checkpoints/%s/expected.safetensors", DR_TESTS_FOLDER, item->d_name);
        if (access(path, F_OK) != 0) continue;
        *strrchr(path, '/') = 0;
        visit(path, context);
        folders++;
    }
    closedir(listing);
    assert_true(folders > 20);
}

#endif
