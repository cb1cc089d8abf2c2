/* Shards: a corpus as files of token ids, made once, from which runs train without reading more than they need.
 *
 * A folder of shards holds shards.json, the tokenizer's files, and for each shard SET_NUMBER.bin (ids behind the header of
 * llm.c, 16 bits each, or 32 for vocabularies of more than 65536 ids), SET_NUMBER.index (where documents begin) and, where some
 * tokens are given rather than learned, SET_NUMBER.mask. docs/corpora.md has the formats.
 *
 * Threads. Different folders may be written at once. Functions of the caller's are called on the thread that writes. */
#ifndef DELTARULE_SHARDS_H
#define DELTARULE_SHARDS_H

#include <deltarule/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t documents, bytes; /* bytes: of text */
    int64_t tokens, shards;
    int64_t files, read, total; /* files that are done; bytes of files that were read, and of all */
    double seconds;             /* of this call */
} dr_shards_progress;

/* What is written. Take dr_shards_defaults() and change fields. Functions may be NULL and get `context`. */
typedef struct {
    size_t size;                /* sizeof(dr_shards_options) */
    const char *tokenizer;      /* folder with tokenizer.json, or "bytes" */
    const char *const *corpora; /* [corpus_count] files and folders */
    int64_t corpus_count;
    const char *const *validation; /* [validation_count] "NAME=PATH": text for the validation set val_NAME */
    int64_t validation_count;
    double validation_share;  /* of the corpora's documents, in [0, 0.5], drawn by the seed: the validation set val; 0.01 */
    uint64_t seed;            /* 1 */
    const char *field;        /* of JSON lines: the key of the text; "text" */
    const char *messages;     /* of JSON lines: the key of a list of messages, rendered by the tokenizer's chat template; what
                                 the assistant says is learned, all else given. NULL: the lines are texts */
    int64_t shard_tokens;     /* a shard ends with the document that takes it to so many, in [1, 1e9]; 1e7 */
    int64_t longest_document; /* bytes, in [1, 2^30]; 2^30 */
    bool skip_unreadable;     /* leave out files and lines that cannot be used; false: refuse them */
    bool (*progress)(void *context, const dr_shards_progress *progress); /* now and then; false to stop */
    void (*left_out)(void *context, const char *sentence);               /* each file and line that is left out */
    void *context;
} dr_shards_options;

DR_API dr_shards_options dr_shards_defaults(void);

/* Writes the shards of corpora into a folder, which is made if it is missing. Corpora are text files (UTF-8), JSON lines
 * (.jsonl, .ndjson), both also as .gz and .zst, and folders of them, links followed. Each document begins with the tokenizer's
 * token for the beginning of a text, or for its end.
 *
 * A kill at any moment leaves shards that are whole, and the same call goes on behind them; the folder is complete, and can be
 * trained on, when the call has ended with DR_OK. A folder that is complete already is left as it is. *total may be NULL.
 * DR_ERROR_ARGUMENT: options that cannot be, no text, or a folder that holds something else; DR_ERROR_FORMAT: what cannot be
 * used, with file and line; DR_ERROR_IO; DR_ERROR_INTERRUPTED: progress returned false. */
DR_API dr_status dr_shards_write(const char *folder, const dr_shards_options *options, dr_shards_progress *total);

/* Reads the corpora of the options (field, longest_document, skip_unreadable and left_out count, the rest does not), and calls
 * document for the text of each document, in order; it returns false to stop, which gives DR_ERROR_INTERRUPTED. Errors as
 * dr_shards_write. */
DR_API dr_status dr_corpora_read(const dr_shards_options *options,
                                 bool (*document)(void *context, const char *text, size_t bytes), void *context);

#ifdef __cplusplus
}
#endif
#endif
