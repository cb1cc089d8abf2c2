/* shards.json: what a folder of shards holds, what made it, and how far its writer has come. */
#ifndef DR_SHARDS_MANIFEST_H
#define DR_SHARDS_MANIFEST_H

#include <deltarule/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DR_SET_NAME = 64, DR_SHARD_NAME = 96 };

typedef struct {
    char set[DR_SET_NAME];            /* "train", "val", "val_NAME" */
    char file[DR_SHARD_NAME];         /* SET_000000.bin; SET_000000.index has its documents, SET_000000.mask what is given */
    int64_t tokens, documents, bytes; /* bytes: of the text */
    bool masked;                      /* whether there is a mask */
    uint64_t hash;                    /* of ids, documents and mask */
} dr_shard_entry;

/* Where a writer goes on: of the corpora in their order, the files in theirs. */
typedef struct {
    int64_t corpus, file;
    int64_t document; /* so many documents of that file are done */
    int64_t seen;     /* documents of all files that are done, those without text too */
} dr_shard_position;

typedef struct {
    bool complete;
    int64_t vocabulary;
    int32_t start;     /* the id that every document begins with */
    uint64_t recipe;   /* a number of all that decides the ids: tokenizer, corpora, options */
    uint64_t contents; /* of the corpora's files: which they are, how large, how old */
    dr_shard_position position;
    dr_shard_entry *shards; /* [count] */
    int64_t count;
} dr_shard_manifest;

/* Whether a folder has one. */
bool dr_shard_manifest_exists(const char *folder);
/* DR_ERROR_FORMAT, DR_ERROR_IO. Release it also after a failure. */
dr_status dr_shard_manifest_read(const char *folder, dr_shard_manifest *manifest);
/* The same of its text; source names it in messages. */
dr_status dr_shard_manifest_parse(const char *text, size_t bytes, const char *source, dr_shard_manifest *manifest);
/* path: of the file to write. */
dr_status dr_shard_manifest_write(const char *path, const dr_shard_manifest *manifest);
dr_status dr_shard_manifest_append(dr_shard_manifest *manifest, const dr_shard_entry *entry);
void dr_shard_manifest_release(dr_shard_manifest *manifest);

/* Whether a text can be the name of a set: letters, digits, _ and -, at most 48 of them. */
bool dr_set_name_fits(const char *name);

#endif
