/* Documents of files. A text that is not compressed is mapped as it is (data/document.c); everything else comes through a
 * buffer that holds one document, or one line, and grows no further than the longest that is allowed: so a small file that
 * would become a huge one ends with a sentence. */
#include "shards/source.h"

#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "data/document.h"
#include "shards/chat_pieces.h"
#include "shards/stream.h"

#include <string.h>

enum { FIRST_ROOM = 1 << 16, PRINTED = 600 };

typedef enum { TEXT, COMPRESSED_TEXT, JSON_LINES } source_kind;

struct dr_source {
    source_kind kind;
    dr_found_file file; /* its path is borrowed */
    const dr_source_options *options;
    dr_document document; /* of a text */
    bool done;            /* a text was given */
    dr_stream_reader *stream;
    char *buffer; /* [room]: bytes [used, have) were read and not given */
    size_t room, have, used;
    bool ended; /* the stream has no more */
    int64_t line;
    json_t *object; /* of the line at hand */
    dr_text_piece piece;
    dr_chat_pieces chat; /* of the line at hand */
};

/* ---- opening ---- */

static bool stem_ends_with(const char *path, const char *end) {
    size_t stem = dr_stream_stem(path), length = strlen(end);
    return stem > length && strncmp(path + stem - length, end, length) == 0;
}

static dr_status check_kind(const char *path) {
    static const struct {
        const char *end, *advice;
    } others[] = {
        {".parquet", "tools/parquet-to-jsonl makes JSON lines of it"},
        {".xz", "decompress it: of compressed files .gz and .zst are read"},
        {".bz2", "decompress it: of compressed files .gz and .zst are read"},
        {".zip", "unpack it"},
        {".tar", "unpack it"},
        {".tgz", "unpack it"},
        {".bin", "it seems to hold token ids, which need no tokenizer"},
    };
    char name[PRINTED];
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (stem_ends_with(path, others[i].end))
            return dr_fail(DR_ERROR_FORMAT, "%s is no text: %s", dr_printable(path, name, sizeof name), others[i].advice);
    return DR_OK;
}

static dr_status open_text(dr_source *source) {
    DR_TRY(dr_document_open(&source->file, 0, &source->document));
    if (!source->file.problem) return DR_OK;
    return dr_fail(source->file.status, "%s", source->file.problem);
}

dr_status dr_source_open(const dr_found_file *file, const dr_source_options *options, dr_source **source) {
    void *memory;
    *source = NULL;
    DR_TRY(check_kind(file->path));
    DR_TRY(dr_allocate_zero(sizeof(dr_source), "a file of a corpus", &memory));
    dr_source *made = memory;
    made->file = (dr_found_file){.path = file->path, .device = file->device, .inode = file->inode};
    made->options = options;
    bool compressed = dr_stream_stem(file->path) != strlen(file->path);
    if (stem_ends_with(file->path, ".jsonl") || stem_ends_with(file->path, ".ndjson"))
        made->kind = JSON_LINES;
    else
        made->kind = compressed ? COMPRESSED_TEXT : TEXT;
    dr_status status = made->kind == TEXT ? open_text(made) : dr_stream_open(file->path, &made->stream);
    if (status != DR_OK)
        dr_source_close(made);
    else
        *source = made;
    return status;
}

void dr_source_close(dr_source *source) {
    if (!source) return;
    dr_document_close(&source->document);
    dr_stream_close(source->stream);
    dr_release(source->file.problem);
    dr_release(source->buffer);
    json_decref(source->object);
    dr_chat_pieces_release(&source->chat);
    dr_release(source);
}

int64_t dr_source_consumed(const dr_source *source) {
    return source->stream ? dr_stream_consumed(source->stream) : source->done ? source->document.bytes : 0;
}

/* ---- the buffer ---- */

/* Reads more behind what is there; most: bytes that may be held. */
static dr_status read_more(dr_source *source, size_t most, const char *what) {
    size_t got;
    if (source->used > 0) {
        memmove(source->buffer, source->buffer + source->used, source->have - source->used);
        source->have -= source->used;
        source->used = 0;
    }
    if (source->have == source->room) {
        size_t room = source->room ? 2 * source->room : FIRST_ROOM;
        void *memory = source->buffer;
        if (source->have > most)
            return dr_fail(DR_ERROR_FORMAT, "%s is longer than %zu bytes, the longest document that is taken", what, most);
        DR_TRY(source->room ? dr_resize(&memory, source->room, room, "a document") : dr_allocate(room, "a document", &memory));
        source->buffer = memory;
        source->room = room;
    }
    DR_TRY(dr_stream_read(source->stream, source->buffer + source->have, source->room - source->have, &got));
    source->have += got;
    source->ended = got == 0;
    return DR_OK;
}

/* ---- texts ---- */

static dr_status check_length(const dr_source *source, int64_t bytes) {
    if (bytes <= source->options->longest_document) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "%s has %lld bytes, and the longest document that is taken %lld", source->file.path,
                   (long long)bytes, (long long)source->options->longest_document);
}

static dr_status give(dr_source *source, const char *text, int64_t bytes, dr_source_document *document) {
    DR_TRY(check_length(source, bytes));
    source->piece = (dr_text_piece){.text = text, .bytes = bytes};
    *document = (dr_source_document){.pieces = &source->piece, .count = bytes > 0, .bytes = bytes};
    return DR_OK;
}

static dr_status next_compressed(dr_source *source, dr_source_document *document) {
    while (!source->ended) DR_TRY(read_more(source, (size_t)source->options->longest_document, source->file.path));
    size_t valid = dr_utf8_valid_bytes(source->buffer, source->have);
    if (valid < source->have)
        return dr_fail(DR_ERROR_FORMAT, "%s is not UTF-8 text: byte %zu (0x%02x) cannot stand there", source->file.path, valid,
                       (uint8_t)source->buffer[valid]);
    return give(source, source->buffer, (int64_t)source->have, document);
}

/* ---- lines ---- */

/* The next line without its end; *more false: there is none. Lines of blanks are passed over, and counted. */
static dr_status next_line(dr_source *source, char **line, size_t *bytes, bool *more) {
    size_t seen = 0; /* without a newline */
    for (;;) {
        size_t left = source->have - source->used;
        char *at = source->buffer + source->used, *end = left > seen ? memchr(at + seen, '\n', left - seen) : NULL;
        if (end || (source->ended && left > 0)) {
            *line = at;
            *bytes = end ? (size_t)(end - at) : left;
            source->used += *bytes + (end != NULL);
            source->line++;
            seen = 0;
            size_t blank = 0;
            while (blank < *bytes && (at[blank] == ' ' || at[blank] == '\t' || at[blank] == '\r')) blank++;
            if (blank == *bytes) continue;
            *more = true;
            return DR_OK;
        }
        *more = false;
        if (source->ended) return DR_OK;
        seen = left;
        dr_status status = read_more(source, (size_t)source->options->longest_document, "a line");
        if (status != DR_OK) return dr_fail_in(status, "%s, line %lld", source->file.path, (long long)source->line + 1);
    }
}

/* The string of a key of the line at hand. */
static dr_status text_of(const json_t *object, const char *key, const char **text, size_t *bytes) {
    char found[128];
    const json_t *value = json_object_get(object, key);
    if (!value) return dr_fail(DR_ERROR_FORMAT, "has no \"%s\"", key);
    if (json_is_string(value)) {
        *text = json_string_value(value);
        *bytes = json_string_length(value);
        return DR_OK;
    }
    dr_json_describe(value, found, sizeof found);
    return dr_fail(DR_ERROR_FORMAT, "has %s as \"%s\": it must be a string", found, key);
}

static dr_status read_chat(dr_source *source, dr_source_document *document) {
    const char *key = source->options->messages;
    int64_t bytes = 0;
    dr_chat_pieces_release(&source->chat);
    dr_status status = dr_chat_pieces_make(source->options->chat, json_object_get(source->object, key),
                                           json_object_get(source->object, "tools"), &source->chat);
    if (status == DR_ERROR_FORMAT) dr_fail_in(status, "\"%s\"", key);
    DR_TRY(status);
    for (int64_t i = 0; i < source->chat.count; i++) bytes += source->chat.pieces[i].bytes;
    DR_TRY(check_length(source, bytes));
    *document =
        (dr_source_document){.pieces = source->chat.pieces, .count = source->chat.count, .bytes = bytes, .template = true};
    return DR_OK;
}

static dr_status read_line(dr_source *source, const char *line, size_t bytes, dr_source_document *document) {
    const char *text = NULL;
    size_t length = 0;
    json_decref(source->object);
    source->object = NULL;
    DR_TRY(dr_json_parse_line(line, bytes, &source->object));
    if (source->options->messages) return read_chat(source, document);
    DR_TRY(text_of(source->object, source->options->field, &text, &length));
    return give(source, text, (int64_t)length, document);
}

static dr_status next_of_lines(dr_source *source, dr_source_document *document, bool *more) {
    char *line;
    size_t bytes;
    DR_TRY(next_line(source, &line, &bytes, more));
    if (!*more) return DR_OK;
    dr_status status = read_line(source, line, bytes, document);
    return status == DR_OK ? status : dr_fail_in(status, "%s, line %lld", source->file.path, (long long)source->line);
}

/* ---- either ---- */

dr_status dr_source_next(dr_source *source, dr_source_document *document, bool *more) {
    *document = (dr_source_document){0};
    *more = false;
    if (source->kind == JSON_LINES) return next_of_lines(source, document, more);
    if (source->done) return DR_OK;
    source->done = true;
    *more = source->kind == TEXT;
    DR_TRY(source->kind == TEXT ? give(source, (const char *)source->document.text, source->document.bytes, document)
                                : next_compressed(source, document));
    *more = true;
    return DR_OK;
}

dr_status dr_source_skip(dr_source *source, bool *more) {
    char *line;
    size_t bytes;
    if (source->kind == JSON_LINES) return next_line(source, &line, &bytes, more);
    *more = !source->done;
    source->done = true;
    return DR_OK;
}
