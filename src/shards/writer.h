/* Shards while they are written: rounds of one shard for each set, published together with shards.json. */
#ifndef DR_SHARDS_WRITER_H
#define DR_SHARDS_WRITER_H

#include "formats/folder.h"
#include "shards/manifest.h"

typedef struct dr_shard_writer dr_shard_writer;

/* manifest: of what is there already; the writer adds to it. Both it and folder must outlive the writer. */
dr_status dr_shard_writer_create(const char *folder, dr_shard_manifest *manifest, dr_shard_writer **writer);
/* Drops what was not committed. NULL is allowed. */
void dr_shard_writer_destroy(dr_shard_writer *writer);

/* Begins a document of so many bytes of text in a set. */
dr_status dr_shard_writer_begin(dr_shard_writer *writer, const char *set, int64_t bytes);
/* Tokens of the document that was begun last. */
dr_status dr_shard_writer_add(dr_shard_writer *writer, const int32_t *ids, int64_t count, bool given);
/* Tokens of the fullest shard of this round. */
int64_t dr_shard_writer_tokens(const dr_shard_writer *writer);

/* The folder's change of this round, for files beside the shards. */
dr_status dr_shard_writer_change(dr_shard_writer *writer, dr_folder **change);
/* Publishes the round and the manifest, and begins the next one. */
dr_status dr_shard_writer_commit(dr_shard_writer *writer);

#endif
