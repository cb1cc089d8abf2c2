/* Most places of a text begin no added token: a bit map of the first two bytes tells so before the trie is asked. */
#include "tokenize/added.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "tokenize/characters.h"

#include <string.h>

enum { MAP_WORDS = 0x10000 / 64 };

static dr_status node_add(dr_trie *trie, uint8_t byte, int32_t *index) {
    void *nodes = trie->nodes;
    if (trie->count >= INT32_MAX) return dr_fail(DR_ERROR_UNSUPPORTED, "the added tokens are too long");
    DR_TRY(dr_array_reserve(&nodes, trie->count, &trie->room, 1, sizeof *trie->nodes, "added tokens"));
    trie->nodes = nodes;
    *index = (int32_t)trie->count;
    trie->nodes[trie->count++] = (struct dr_trie_node){-1, -1, -1, byte};
    return DR_OK;
}

static int32_t child_of(const dr_trie *trie, int32_t node, uint8_t byte) {
    int32_t child = trie->nodes[node].child;
    while (child >= 0 && trie->nodes[child].byte != byte) child = trie->nodes[child].sibling;
    return child;
}

static void mark_start(dr_trie *trie, const char *text, size_t bytes) {
    unsigned first = (uint8_t)text[0];
    for (unsigned second = 0; second < 256; second++)
        if (bytes < 2 || second == (uint8_t)text[1]) trie->starts[(first << 8 | second) / 64] |= UINT64_C(1) << (second & 63);
}

dr_status dr_trie_add(dr_trie *trie, const char *text, size_t bytes, int32_t token) {
    int32_t node = 0;
    if (bytes == 0) return DR_OK;
    if (!trie->starts) {
        void *memory;
        DR_TRY(dr_allocate_zero(MAP_WORDS * sizeof(uint64_t), "added tokens", &memory));
        trie->starts = memory;
        DR_TRY(node_add(trie, 0, &node));
    }
    for (size_t i = 0; i < bytes; i++) {
        int32_t child = child_of(trie, node, (uint8_t)text[i]);
        if (child < 0) {
            DR_TRY(node_add(trie, (uint8_t)text[i], &child));
            trie->nodes[child].sibling = trie->nodes[node].child;
            trie->nodes[node].child = child;
        }
        node = child;
    }
    trie->nodes[node].token = token;
    mark_start(trie, text, bytes);
    return DR_OK;
}

void dr_trie_release(dr_trie *trie) {
    dr_release(trie->starts);
    dr_release(trie->nodes);
    *trie = (dr_trie){0};
}

/* The longest text that begins at `at`; -1: none. */
static int32_t longest(const dr_trie *trie, const char *text, size_t bytes, size_t at, size_t *end) {
    int32_t node = 0, found = -1;
    for (size_t i = at; i < bytes; i++) {
        node = child_of(trie, node, (uint8_t)text[i]);
        if (node < 0) break;
        if (trie->nodes[node].token < 0) continue;
        found = trie->nodes[node].token;
        *end = i + 1;
    }
    return found;
}

/* The first place from `at` on where a text may begin. */
static size_t candidate(const dr_trie *trie, const char *text, size_t bytes, size_t at) {
    const uint8_t *t = (const uint8_t *)text;
    for (; at + 1 < bytes; at++) {
        unsigned pair = (unsigned)t[at] << 8 | t[at + 1];
        if (trie->starts[pair / 64] >> (pair & 63) & 1) return at;
    }
    return at;
}

static bool word_beside(const char *text, size_t bytes, size_t start, size_t end) {
    size_t length;
    if (start > 0 && dr_is_word(dr_utf8_character(text + dr_utf8_before(text, start), &length))) return true;
    return end < bytes && dr_is_word(dr_utf8_character(text + end, &length));
}

static size_t strip_left(const char *text, size_t least, size_t start) {
    while (start > least) {
        size_t length, before = dr_utf8_before(text, start);
        if (!dr_is_space(dr_utf8_character(text + before, &length))) break;
        start = before;
    }
    return start;
}

static size_t strip_right(const char *text, size_t bytes, size_t end) {
    while (end < bytes) {
        size_t length;
        if (!dr_is_space(dr_utf8_character(text + end, &length))) break;
        end += length;
    }
    return end;
}

bool dr_added_next(const dr_trie *trie, const dr_added *list, const char *text, size_t bytes, dr_added_walk *walk,
                   dr_part *part) {
    if (walk->waits) {
        *part = walk->waiting;
        walk->waits = false;
        return true;
    }
    while (trie->starts && walk->at < bytes) {
        size_t start = candidate(trie, text, bytes, walk->at), end = start;
        if (start >= bytes) break;
        int32_t token = longest(trie, text, bytes, start, &end);
        if (token < 0) {
            walk->at = start + 1;
            continue;
        }
        const dr_added *added = &list[token];
        walk->at = end;
        if (added->single_word && word_beside(text, bytes, start, end)) continue;
        if (added->left_strip) start = strip_left(text, walk->from, start);
        if (added->right_strip) end = strip_right(text, bytes, end);
        walk->waiting = (dr_part){start, end, token};
        *part = (dr_part){walk->from, start, -1};
        walk->waits = walk->from < start;
        if (!walk->waits) *part = walk->waiting;
        walk->from = end;
        return true;
    }
    if (walk->from >= bytes) return false;
    *part = (dr_part){walk->from, bytes, -1};
    walk->from = walk->at = bytes;
    return true;
}
