/* Byte-pair encoding: a vocabulary, merges with ranks, and the ids of one word.
 *
 * A word starts as the ids of its characters (for a byte-level model: of its bytes); the pair with the lowest rank, the
 * leftmost of several, is merged until no pair has a rank (Sennrich et al. 2016). */
#ifndef DR_TOKENIZE_BPE_H
#define DR_TOKENIZE_BPE_H

#include "tokenize/text.h"

#include <stdbool.h>

enum { DR_MOST_IDS = 1 << 24 }; /* ids are below it */

/* Texts with ids, by a hash of their bytes. */
typedef struct {
    struct dr_word_slot {
        uint32_t hash;
        int32_t id;       /* -1: empty */
        size_t at, bytes; /* in the texts */
    } * slots;
    size_t mask, count;
    dr_text texts;
} dr_words;

dr_status dr_words_create(size_t count, dr_words *words); /* room for so many; it grows */
void dr_words_release(dr_words *words);
dr_status dr_words_add(dr_words *words, const char *text, size_t bytes, int32_t id); /* an old id is replaced */
int32_t dr_words_find(const dr_words *words, const char *text, size_t bytes);        /* -1: none */
uint64_t dr_hash(const char *text, size_t bytes);

typedef struct {
    uint64_t key; /* left << 32 | right; all ones: empty */
    uint32_t rank;
    int32_t id; /* of what the pair becomes */
} dr_merge;

typedef struct {
    bool byte_level; /* words are bytes, and the vocabulary spells them in the byte alphabet */
    bool byte_fallback, fuse_unknown, ignore_merges;
    dr_words vocabulary; /* tokens as tokenizer.json writes them */
    dr_words whole;      /* byte level: tokens as bytes, for ignore_merges */
    dr_merge *merges;    /* [merge_mask + 1] open addressing */
    size_t merge_mask;
    int32_t unknown;       /* id of unk_token; -1: there is none */
    char *unknown_text;    /* unk_token, or NULL */
    int32_t of_byte[256];  /* byte level: the byte's character; else: that of an ASCII character; -1: none */
    int32_t fallback[256]; /* of <0x00> to <0xFF>; -1: none */
    /* Whether a word may be cut before U+2581 behind an ASCII character, or any other: no token has the two side by side. */
    bool cut_before_mark[129];
    bool cuts; /* any of them */
} dr_bpe;

/* Makes room for the merges; then add each. */
dr_status dr_bpe_begin_merges(dr_bpe *bpe, size_t count);
void dr_bpe_add_merge(dr_bpe *bpe, int32_t left, int32_t right, uint32_t rank,
                      int32_t id); /* a later rank replaces an earlier */
/* After vocabulary, flags and merges stand: fills the rest. */
dr_status dr_bpe_finish(dr_bpe *bpe);
void dr_bpe_release(dr_bpe *bpe);

/* Working memory of dr_bpe_encode: one a thread. */
typedef struct {
    int32_t *ids;
    uint32_t *ranks;
    int32_t *results;
    int32_t *previous, *next;
    size_t room;
    struct dr_candidate *heap;
    size_t heap_count, heap_room;
} dr_bpe_work;

void dr_bpe_work_release(dr_bpe_work *work);

/* Appends the ids of a word, which is valid UTF-8 unless the model is byte-level. */
dr_status dr_bpe_encode(const dr_bpe *bpe, dr_bpe_work *work, const char *word, size_t bytes, dr_ids *ids);

/* The byte alphabet: the character that stands for a byte, and the byte of a character or -1. */
uint32_t dr_alphabet_character(uint8_t byte);
int dr_alphabet_byte(uint32_t character);

#endif
