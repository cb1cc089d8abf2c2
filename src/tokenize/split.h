/* Pre-tokenizers: a chain of stages, each of which cuts every piece of the one before into smaller pieces. */
#ifndef DR_TOKENIZE_SPLIT_H
#define DR_TOKENIZE_SPLIT_H

#include "tokenize/characters.h"
#include "tokenize/pattern.h"
#include "tokenize/scan.h"
#include "tokenize/text.h"

#include <stdbool.h>

/* What becomes of what a stage's matcher finds, and of what lies between. */
typedef enum {
    DR_ISOLATED,             /* pieces of their own */
    DR_REMOVED,              /* only what lies between is left */
    DR_MERGED_WITH_PREVIOUS, /* end of the piece before */
    DR_MERGED_WITH_NEXT,     /* beginning of the piece behind */
    DR_CONTIGUOUS            /* neighbouring matches are one piece */
} dr_behavior;

typedef enum {
    DR_MATCH_NOTHING,
    DR_MATCH_TEXT,     /* a literal text, not empty */
    DR_MATCH_PATTERN,  /* a regular expression */
    DR_MATCH_SCAN,     /* a scanner, which matches everywhere */
    DR_MATCH_CHARACTER /* single characters of a class */
} dr_match_kind;

typedef enum { DR_PREPEND_NEVER, DR_PREPEND_FIRST, DR_PREPEND_ALWAYS } dr_prepend;

typedef struct {
    dr_match_kind match;
    dr_text text;
    dr_pattern *pattern;
    dr_scanner scanner;
    bool (*is)(uint32_t character);
    dr_behavior behavior;
    bool invert;   /* matches and what lies between change places */
    bool space;    /* ByteLevel: a space before a piece that does not begin with one */
    bool alphabet; /* ByteLevel that is not the last stage: pieces become the byte alphabet */
    dr_text mark;  /* Metaspace: what stands for a space; empty: it is none */
    dr_prepend prepend;
} dr_stage;

void dr_stage_release(dr_stage *stage);

typedef struct {
    const char *text;
    size_t bytes;
    bool first; /* its first character comes from the beginning of the original text */
} dr_piece;

/* Working memory of splitting: one a thread. */
typedef struct {
    dr_searcher *searcher;
    const dr_classes *classes;
    dr_text *changed; /* [stages][2] what stages made of their pieces */
    dr_status (*emit)(void *context, const char *text, size_t bytes);
    void *context;
} dr_split_work;

/* Cuts a piece, valid UTF-8, by stages[0 .. count - 1] and emits what is left, in order, no empty ones. */
dr_status dr_split_piece(const dr_stage *stages, int count, dr_split_work *work, dr_piece piece);

#endif
