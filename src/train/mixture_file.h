/* A file that names several corpora and how much of each a run trains on. */
#ifndef DR_TRAIN_MIXTURE_FILE_H
#define DR_TRAIN_MIXTURE_FILE_H

#include <deltarule/status.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    char *path;
    double weight;
} dr_mixture_item;

typedef struct {
    dr_mixture_item *at; /* [count] */
    int64_t count;
} dr_mixture_items;

/* Whether a path is such a file: it ends with .json and is no folder. */
bool dr_is_mixture_file(const char *path);
/* {"mixture": [{"corpus": PATH, "weight": 0.7}, ..]}: paths are relative to the file's folder. Release it, also after a
 * failure. DR_ERROR_FORMAT, DR_ERROR_IO. */
dr_status dr_mixture_file_read(const char *path, dr_mixture_items *items);
/* One corpus. */
dr_status dr_mixture_single(const char *path, dr_mixture_items *items);
void dr_mixture_items_release(dr_mixture_items *items);

#endif
