/* Added tokens: texts that are found before anything else is done, the longest at the leftmost place. */
#ifndef DR_TOKENIZE_ADDED_H
#define DR_TOKENIZE_ADDED_H

#include "tokenize/text.h"

#include <stdbool.h>

typedef struct {
    char *content;    /* as written */
    char *normalized; /* what is looked for, and what decoding gives */
    size_t content_bytes, normalized_bytes;
    int32_t id;
    bool single_word, left_strip, right_strip, is_normalized, special;
    bool skipped; /* by decoding without special tokens: what it decodes to is written as a special token */
} dr_added;

/* A trie over the texts that are looked for. */
typedef struct {
    uint64_t *starts; /* bit map of the pairs of bytes that a text begins with; NULL: there are no texts */
    struct dr_trie_node {
        int32_t child, sibling, token; /* -1: none; token: index into the list */
        uint8_t byte;
    } * nodes;
    size_t count, room;
} dr_trie;

dr_status dr_trie_add(dr_trie *trie, const char *text, size_t bytes, int32_t token); /* a later token replaces an earlier one */
void dr_trie_release(dr_trie *trie);

/* A part of a text: an added token, or what stands between two. */
typedef struct {
    size_t start, end;
    int32_t token; /* index into the list; -1: none */
} dr_part;

/* Walks through text[0 .. bytes - 1], valid UTF-8. Start with a zeroed walk. */
typedef struct {
    size_t at, from; /* where the search goes on; where the next part begins */
    dr_part waiting;
    bool waits;
} dr_added_walk;

/* The next part; false: there is none. A part may begin before the end of the one before it: what an added token swallowed to
 * its right may hold another. */
bool dr_added_next(const dr_trie *trie, const dr_added *list, const char *text, size_t bytes, dr_added_walk *walk,
                   dr_part *part);

#endif
