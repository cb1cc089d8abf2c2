/* The bytes of a file, decompressed where its name says so. */
#ifndef DR_SHARDS_STREAM_H
#define DR_SHARDS_STREAM_H

#include <deltarule/status.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dr_stream_reader dr_stream_reader;

/* By the end of its name: .gz (zlib), .zst (libzstd), else as it is. DR_ERROR_IO, DR_ERROR_MEMORY. */
dr_status dr_stream_open(const char *path, dr_stream_reader **reader);
void dr_stream_close(dr_stream_reader *reader); /* NULL is allowed */

/* The next bytes, at most `room`; *got 0: the end. DR_ERROR_FORMAT where compressed data are broken or cut short. */
dr_status dr_stream_read(dr_stream_reader *reader, void *to, size_t room, size_t *got);
/* How many bytes of the file itself were read. */
int64_t dr_stream_consumed(const dr_stream_reader *reader);

/* Length of a path without ".gz" or ".zst". */
size_t dr_stream_stem(const char *path);

#endif
