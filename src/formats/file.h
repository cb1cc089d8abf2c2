/* Writing one file whole: the old one or the new one is there at any moment, never a part. Reading one whole. */
#ifndef DR_FORMATS_FILE_H
#define DR_FORMATS_FILE_H

#include "base/for_check.h"

#include <deltarule/status.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

/* The first failure sticks: later calls do nothing and return it again, so that only the last one has to be looked at. */
typedef struct {
    int descriptor;   /* -1: not open */
    const char *name; /* borrowed */
    dr_status status;
    char target[PATH_MAX], fresh[PATH_MAX]; /* what is replaced, and what is written; fresh is "" for a device */
} dr_file;

/* Begins a file that shall have this name. Several processes and threads may write one name at once: each writes a file of its
 * own, and the last to finish has its file there. A link is followed; a device is written as it is. */
DR_FOR_CHECK dr_status dr_file_create(const char *name, dr_file *file);
DR_FOR_CHECK dr_status dr_file_write(dr_file *file, const void *data, size_t bytes);
/* Bytes at an offset, which several threads may write at once; a failure does not stick. Zeros: where the file system can, by
 * having it reserve the place for them. */
dr_status dr_file_write_at(const dr_file *file, int64_t offset, const void *data, size_t bytes);
dr_status dr_file_zeros_at(const dr_file *file, int64_t offset, size_t bytes);
/* Writes over bytes that were written before, from `offset` on; what is written next goes behind the last as before. */
dr_status dr_file_rewrite(dr_file *file, int64_t offset, const void *data, size_t bytes);
/* Syncs and puts the file in its place, unless something failed since dr_file_create: then what had this name stays as it was.
 * (Files right in a change of a folder are synced by dr_folder_commit.) DR_ERROR_IO with the reason. */
DR_FOR_CHECK dr_status dr_file_finish(dr_file *file);

/* Adds bytes at the end of a file, which is made where there is none, in one call of the system: of several processes that add
 * at once each has its bytes there together. DR_ERROR_IO with the reason. */
DR_FOR_CHECK dr_status dr_file_append(const char *name, const void *data, size_t bytes);

/* A whole regular file in memory, with a zero byte behind it. At most `most` bytes. Free with dr_release. */
DR_FOR_CHECK dr_status dr_file_read(const char *name, size_t most, char **data, size_t *bytes);

#endif
