/* The files of the corpora that shards are made of, in their order, and which set the documents of each are for. */
#ifndef DR_SHARDS_CORPORA_H
#define DR_SHARDS_CORPORA_H

#include "data/files.h"
#include "shards/manifest.h"

#include <deltarule/shards.h>

typedef struct {
    const char *path;      /* borrowed */
    char set[DR_SET_NAME]; /* "val_NAME", or "" for the corpora that are trained on */
    dr_found_files files;
} dr_shard_corpus;

typedef struct {
    dr_shard_corpus *at; /* [count] */
    int64_t count;
    int64_t files, bytes; /* of all: bytes on the disk */
    uint64_t contents;    /* changes with any file's name in its corpus, size or time of change */
} dr_shard_corpora;

/* Whether the options name corpora and how they are read: DR_ERROR_ARGUMENT says what is wrong. */
dr_status dr_corpora_check(const dr_shards_options *options);
/* What a status of reading means: passes a failure on, or where it is to be left out tells it. *left_out: go on without it. */
dr_status dr_corpora_judge(const dr_shards_options *options, dr_status status, bool *left_out);

/* The corpora and the validation sets of the options. Release them, also after a failure. DR_ERROR_ARGUMENT. */
dr_status dr_shard_corpora_find(const dr_shards_options *options, dr_shard_corpora *corpora);
void dr_shard_corpora_release(dr_shard_corpora *corpora);

#endif
