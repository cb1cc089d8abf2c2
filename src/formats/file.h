/* Writing one file whole: every byte written and synced, or nothing left behind. */
#ifndef DR_FORMATS_FILE_H
#define DR_FORMATS_FILE_H

#include <deltarule/status.h>
#include <stddef.h>

/* The first failure sticks: later calls do nothing and return it again, so that only the last one has to be looked at. */
typedef struct {
    int descriptor;
    const char *name; /* borrowed */
    dr_status status;
} dr_file;

/* Makes the file or empties the one that is there. */
dr_status dr_file_create(const char *name, dr_file *file);
dr_status dr_file_write(dr_file *file, const void *data, size_t bytes);
/* Syncs and closes. If anything failed since dr_file_create, the file is removed. DR_ERROR_IO with the reason. */
dr_status dr_file_finish(dr_file *file);

/* A whole regular file in memory, with a zero byte behind it. At most `most` bytes. Free with dr_release. */
dr_status dr_file_read(const char *name, size_t most, char **data, size_t *bytes);

#endif
