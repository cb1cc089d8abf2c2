/* The files of one set: opened, checked from end to end, read as a row of tokens. */
#ifndef DR_SHARDS_SET_H
#define DR_SHARDS_SET_H

#include "shards/layout.h"
#include "shards/manifest.h"
#include "shards/shards.h"

/* The index of a shard: magic, number of documents, then for each of them, in 64 bits each, its first token in the shard and
 * the bytes of its text. */
enum { DR_INDEX_HEADER = 16, DR_INDEX_ITEM = 16 };
extern const uint8_t dr_index_magic[8];

typedef struct {
    char *path;
    dr_mapping *mapping;
} dr_shard_file;

typedef struct {
    dr_shard_file ids, index, mask; /* index and mask without a mapping: there is none */
    dr_shard_layout layout;
    int64_t first;     /* tokens of the set before it */
    int64_t documents; /* in the index */
    uint64_t hash;     /* of the files */
} dr_shard;

struct dr_shard_set {
    dr_tokens tokens;
    char name[DR_SET_NAME];
    bool validates;
    dr_shard *shards; /* [count] */
    int64_t count;
    int64_t vocabulary;
    int32_t start;            /* -1: none is known */
    int64_t documents, bytes; /* -1: not known */
    uint64_t hash;            /* of all files */
};

dr_status dr_shard_set_create(const char *name, int64_t vocabulary, int32_t start, dr_shard_set **set);
void dr_shard_set_destroy(dr_shard_set *set);
/* Adds the file FOLDER/file to the set, and reads all of it. entry: what shards.json says of it, or NULL. folder NULL: file is
 * the path. */
dr_status dr_shard_set_add(dr_shard_set *set, const char *folder, const char *file, const dr_shard_entry *entry);

/* The hash that shards.json has of FOLDER/file, its index and its mask. */
dr_status dr_shard_hash(const char *folder, const char *file, bool masked, uint64_t *hash);

#endif
