/* What the settings `corpus`, `held_out` and `tokenizer` name: rows of tokens to train on, and held-out sets. */
#ifndef DR_TRAIN_TRAINING_DATA_H
#define DR_TRAIN_TRAINING_DATA_H

#include "data/corpus.h"
#include "data/tokens.h"
#include "shards/shards.h"
#include "train/settings.h"

#include <deltarule/tokenizer.h>

/* One corpus: text as bytes, text as the ids of a tokenizer, or shards. */
typedef struct {
    char *path;
    double weight;
    dr_corpus *text; /* and how it is split, or */
    dr_split split;
    dr_shards *shards;
    dr_tokens *training;      /* to train on */
    dr_tokens *row;           /* of what `training` is a part; NULL: it is whole */
    int64_t documents, bytes; /* to train on; -1: not known */
    int64_t cut;              /* of shards without a validation set: the first token that is held out; 0: none */
} dr_training_corpus;

typedef struct {
    char name[128];           /* "" where the run has one without a name */
    const dr_documents *text; /* where it is text: as files */
    dr_tokens *tokens;        /* NULL: the bytes of the text */
    bool owns_tokens;
    dr_token_documents documents; /* of tokens */
} dr_held_out_set;

typedef struct {
    dr_training_corpus *corpora; /* [count] */
    int64_t count;
    dr_held_out_set *held_out; /* [held_out_count] */
    int64_t held_out_count;
    dr_corpus *held_out_text;   /* where held_out is the path of text, or */
    dr_shards *held_out_shards; /* of shards */
    dr_tokenizer *tokenizer;    /* NULL: bytes, or shards whose tokenizer nobody has */
    char *tokenizer_path;       /* where its files are; NULL: there are none */
    int32_t *lengths;           /* [tokenizer's size] bytes of text of each id; NULL without a tokenizer */
    int64_t vocabulary;
    uint64_t fingerprint; /* of all of it */
} dr_training_data;

/* Reads what the settings name. DR_ERROR_ARGUMENT where corpora do not fit each other or the tokenizer; else as
 * dr_corpus_read, dr_shards_open and dr_tokenizer_load. */
dr_status dr_training_data_open(const dr_train_options *options, dr_training_data **data);
void dr_training_data_close(dr_training_data *data); /* NULL is allowed */

/* Whether ids are bytes. */
static inline bool dr_training_data_is_bytes(const dr_training_data *data) {
    return !data->tokenizer && !data->corpora[0].shards;
}

/* One line a fact, for people. */
void dr_training_data_describe(const dr_training_data *data, void (*line)(void *context, const char *text), void *context);

#endif
