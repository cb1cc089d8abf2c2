/* Folders and files of token ids, mapped: sets of documents for training and validation. */
#ifndef DR_SHARDS_SHARDS_H
#define DR_SHARDS_SHARDS_H

#include "data/tokens.h"

/* One set. As a row of tokens it is its files one after another. */
typedef struct dr_shard_set dr_shard_set;

typedef struct {
    int64_t vocabulary;   /* every id is below it */
    int32_t start;        /* the id that begins a document; -1: nobody knows, and each set is one document */
    bool own;             /* this library's, with shards.json */
    uint64_t fingerprint; /* changes with any id, document or mask */
    dr_shard_set **sets;  /* [count]; those for validation behind those for training */
    int64_t count;
} dr_shards;

/* Whether a path is a folder of shards or a file of token ids: it has shards.json, or files that end with .bin, with "train" in
 * a name or no other files but JSON beside them, or is such a file. Nothing is opened. */
bool dr_shards_are(const char *path);

/* What is asked of shards that say nothing about themselves. vocabulary 0, start -1: not known. */
typedef struct {
    int64_t vocabulary;
    int32_t start;
} dr_shards_of;

/* Opens shards and reads them once from end to end, since an id beyond the vocabulary would be found in the middle of training.
 * Of files without shards.json those whose name has "val" in it are for validation. DR_ERROR_ARGUMENT where the vocabulary is
 * not known, or shards.json has another than `of`; DR_ERROR_FORMAT says what is wrong with which file. */
dr_status dr_shards_open(const char *path, const dr_shards_of *of, dr_shards **shards);
void dr_shards_close(dr_shards *shards); /* NULL is allowed */

dr_tokens *dr_shard_set_tokens(dr_shard_set *set); /* lives as long as the shards; not to be destroyed */
const char *dr_shard_set_name(const dr_shard_set *set);
bool dr_shard_set_validates(const dr_shard_set *set);
/* Documents and bytes of text; -1: not known. */
int64_t dr_shard_set_document_count(const dr_shard_set *set);
int64_t dr_shard_set_bytes(const dr_shard_set *set);
/* All documents, with the bytes of their text where they are known. Release them, also after a failure. */
dr_status dr_shard_set_documents(dr_shard_set *set, dr_token_documents *documents);

#endif
