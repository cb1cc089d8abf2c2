/* Reading files that may be compressed. Memory is bounded whatever the file says: zlib's window has 32 KB, and libzstd refuses
 * windows of more than 128 MB. How much comes out is the caller's to bound. */
#include "shards/stream.h"

#include "base/error.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { INPUT = 1 << 17 };

typedef enum { PLAIN, GZIP, ZSTANDARD } stream_kind;

struct dr_stream_reader {
    stream_kind kind;
    const char *path; /* borrowed */
    int descriptor;   /* -1: not open */
    int64_t consumed;
    bool ended;     /* no more input */
    bool inside;    /* a member or frame has begun and not ended */
    uint8_t *input; /* [INPUT] of compressed data */
    size_t have, used;
    z_stream zlib;
    bool zlib_ready;
    ZSTD_DStream *zstd;
};

static bool ends_with(const char *path, const char *end) {
    size_t length = strlen(path), end_length = strlen(end);
    return length > end_length && strcmp(path + length - end_length, end) == 0;
}

static stream_kind kind_of(const char *path) {
    return ends_with(path, ".gz") ? GZIP : ends_with(path, ".zst") ? ZSTANDARD : PLAIN;
}

size_t dr_stream_stem(const char *path) {
    const stream_kind kind = kind_of(path);
    return strlen(path) - (kind == GZIP ? strlen(".gz") : kind == ZSTANDARD ? strlen(".zst") : 0);
}

static dr_status fail_format(const dr_stream_reader *reader, const char *what) {
    return dr_fail(DR_ERROR_FORMAT, "%s is %s", reader->path, what);
}

static dr_status prepare(dr_stream_reader *reader) {
    void *memory;
    if (reader->kind == PLAIN) return DR_OK;
    DR_TRY(dr_allocate(INPUT, "compressed text", &memory));
    reader->input = memory;
    if (reader->kind == GZIP) {
        reader->zlib_ready = inflateInit2(&reader->zlib, 15 + 16) == Z_OK; /* gzip only */
        return reader->zlib_ready ? DR_OK : dr_fail(DR_ERROR_MEMORY, "there is no memory to decompress %s", reader->path);
    }
    reader->zstd = ZSTD_createDStream();
    return reader->zstd ? DR_OK : dr_fail(DR_ERROR_MEMORY, "there is no memory to decompress %s", reader->path);
}

dr_status dr_stream_open(const char *path, dr_stream_reader **reader) {
    void *memory;
    *reader = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_stream_reader), "a file that is read", &memory));
    dr_stream_reader *made = memory;
    made->kind = kind_of(path);
    made->path = path;
    made->descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    dr_status status =
        made->descriptor >= 0 ? prepare(made) : dr_fail(DR_ERROR_IO, "%s cannot be opened: %s", path, dr_system_text(errno));
    if (status != DR_OK)
        dr_stream_close(made);
    else
        *reader = made;
    return status;
}

void dr_stream_close(dr_stream_reader *reader) {
    if (!reader) return;
    if (reader->descriptor >= 0) close(reader->descriptor);
    if (reader->zlib_ready) inflateEnd(&reader->zlib);
    ZSTD_freeDStream(reader->zstd);
    dr_release(reader->input);
    dr_release(reader);
}

int64_t dr_stream_consumed(const dr_stream_reader *reader) {
    return reader->consumed - (int64_t)(reader->have - reader->used);
}

static dr_status read_file(dr_stream_reader *reader, void *to, size_t room, size_t *got) {
    ssize_t bytes;
    do bytes = read(reader->descriptor, to, room);
    while (bytes < 0 && errno == EINTR);
    if (bytes < 0) return dr_fail(DR_ERROR_IO, "%s cannot be read: %s", reader->path, dr_system_text(errno));
    *got = (size_t)bytes;
    reader->consumed += bytes;
    reader->ended = bytes == 0;
    return DR_OK;
}

static dr_status refill(dr_stream_reader *reader) {
    if (reader->used < reader->have || reader->ended) return DR_OK;
    reader->used = reader->have = 0;
    return read_file(reader, reader->input, INPUT, &reader->have);
}

/* Decompresses what the input holds into at most `room` bytes. A file may have several members, one after another. */
static dr_status inflate_some(dr_stream_reader *reader, void *to, size_t room, size_t *got) {
    z_stream *z = &reader->zlib;
    z->next_in = reader->input + reader->used;
    z->avail_in = (uInt)(reader->have - reader->used);
    z->next_out = to;
    z->avail_out = (uInt)room;
    int result = inflate(z, Z_NO_FLUSH);
    reader->used = reader->have - z->avail_in;
    *got = room - z->avail_out;
    reader->inside = true;
    if (result == Z_STREAM_END) {
        reader->inside = false;
        inflateReset(z);
    } else if (result == Z_MEM_ERROR) {
        return dr_fail(DR_ERROR_MEMORY, "there is no memory to decompress %s", reader->path);
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return fail_format(reader, "broken, or no gzip file");
    }
    return DR_OK;
}

static dr_status decompress_some(dr_stream_reader *reader, void *to, size_t room, size_t *got) {
    ZSTD_inBuffer in = {reader->input, reader->have, reader->used};
    ZSTD_outBuffer out = {to, room, 0};
    size_t result = ZSTD_decompressStream(reader->zstd, &out, &in);
    reader->used = in.pos;
    *got = out.pos;
    if (ZSTD_isError(result))
        return dr_fail(DR_ERROR_FORMAT, "%s is no zstd file or is broken: %s", reader->path, ZSTD_getErrorName(result));
    reader->inside = result != 0;
    return DR_OK;
}

dr_status dr_stream_read(dr_stream_reader *reader, void *to, size_t room, size_t *got) {
    *got = 0;
    if (room > 1 << 30) room = 1 << 30;
    if (reader->kind == PLAIN) return read_file(reader, to, room, got);
    while (*got == 0) {
        const size_t before = reader->have - reader->used;
        DR_TRY(refill(reader));
        if (reader->ended && !reader->inside && reader->used == reader->have) break;
        DR_TRY(reader->kind == GZIP ? inflate_some(reader, to, room, got) : decompress_some(reader, to, room, got));
        if (*got == 0 && reader->ended && before == reader->have - reader->used && reader->inside)
            return fail_format(reader, "cut short: its compressed data have no end");
    }
    return DR_OK;
}
