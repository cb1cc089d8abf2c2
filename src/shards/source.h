/* The documents of one file of a corpus: a text, or JSON lines, either of them perhaps compressed. */
#ifndef DR_SHARDS_SOURCE_H
#define DR_SHARDS_SOURCE_H

#include "data/files.h"

#include <deltarule/chat.h>
#include <stdbool.h>
#include <stddef.h>

/* A part of a document. */
typedef struct {
    const char *text;
    int64_t bytes;
    bool given; /* the model reads it, and does not learn to say it */
} dr_text_piece;

typedef struct {
    const dr_text_piece *pieces; /* [count]; 0: a document without text */
    int64_t count, bytes;
    bool template; /* the pieces hold their special tokens: those of the tokenizer are not added */
} dr_source_document;

typedef struct {
    const char *field;        /* of JSON lines: the key of the text */
    const char *messages;     /* or the key of a list of messages; NULL: texts */
    const dr_chat *chat;      /* renders them */
    int64_t longest_document; /* bytes */
} dr_source_options;

typedef struct dr_source dr_source;

/* DR_ERROR_FORMAT for kinds of files that are not read, by their names. The file's path and the options must outlive it. */
dr_status dr_source_open(const dr_found_file *file, const dr_source_options *options, dr_source **source);
void dr_source_close(dr_source *source); /* NULL is allowed */

/* The next document, valid until the next call; *more false: there is none. DR_ERROR_FORMAT says what is wrong with the file,
 * or with one line of it: then *more is true, and the next call goes on behind that line. */
dr_status dr_source_next(dr_source *source, dr_source_document *document, bool *more);
/* Passes over the next document without looking at it; *more false: there is none. */
dr_status dr_source_skip(dr_source *source, bool *more);
/* How many bytes of the file were read. */
int64_t dr_source_consumed(const dr_source *source);

#endif
