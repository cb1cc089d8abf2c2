/* Short words are merged by looking through all their pairs, long ones (whole texts, where nothing cuts them) with a heap,
 * whose entries are dropped when what they speak of has changed. Both give the same ids. */
#include "tokenize/bpe.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

enum { SHORT = 48, MARK = 0x2581 };

#define NO_KEY  UINT64_MAX
#define NO_RANK UINT32_MAX

/* ---- the byte alphabet ----------------------------------------------------------------------------------------------- */

static bool stands_for_itself(unsigned byte) {
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* The 68 other bytes are U+0100 and on, in order: 00-20, 7F-A0, AD. */
uint32_t dr_alphabet_character(uint8_t byte) {
    if (stands_for_itself(byte)) return byte;
    if (byte <= 0x20) return 0x100u + byte;
    return byte == 0xad ? 0x143 : 0x121u + byte - 0x7f;
}

int dr_alphabet_byte(uint32_t character) {
    if (character < 0x100) return stands_for_itself(character) ? (int)character : -1;
    if (character <= 0x120) return (int)character - 0x100;
    if (character <= 0x142) return (int)character - 0x121 + 0x7f;
    return character == 0x143 ? 0xad : -1;
}

/* ---- texts with ids -------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

uint64_t dr_hash(const char *text, size_t bytes) {
    uint64_t hash = bytes * UINT64_C(0x9e3779b97f4a7c15), eight = 0;
    for (; bytes >= 8; bytes -= 8, text += 8) {
        memcpy(&eight, text, 8);
        hash = (hash ^ eight) * UINT64_C(0xbf58476d1ce4e5b9);
        hash ^= hash >> 29;
    }
    eight = 0;
    for (size_t i = 0; i < bytes; i++) eight |= (uint64_t)(uint8_t)text[i] << 8 * i;
    return mix(hash ^ eight);
}

dr_status dr_words_create(size_t count, dr_words *words) {
    size_t slots = 16;
    void *memory;
    while (slots < 2 * count + 2) slots *= 2;
    *words = (dr_words){0};
    DR_TRY(dr_allocate(slots * sizeof *words->slots, "a vocabulary", &memory));
    words->slots = memory;
    words->mask = slots - 1;
    for (size_t i = 0; i < slots; i++) words->slots[i].id = -1;
    return DR_OK;
}

void dr_words_release(dr_words *words) {
    dr_release(words->slots);
    dr_text_release(&words->texts);
    *words = (dr_words){0};
}

static struct dr_word_slot *slot_of(const dr_words *words, const char *text, size_t bytes, uint32_t *hash) {
    *hash = (uint32_t)dr_hash(text, bytes);
    for (size_t i = *hash & words->mask;; i = (i + 1) & words->mask) {
        struct dr_word_slot *slot = &words->slots[i];
        if (slot->id < 0) return slot;
        if (slot->hash == *hash && slot->bytes == bytes && memcmp(words->texts.bytes + slot->at, text, bytes) == 0) return slot;
    }
}

/* Twice the slots, the same texts. */
static dr_status grow(dr_words *words) {
    dr_words larger;
    DR_TRY(dr_words_create(2 * words->count, &larger));
    for (size_t i = 0; i <= words->mask; i++) {
        if (words->slots[i].id < 0) continue;
        size_t at = words->slots[i].hash & larger.mask;
        while (larger.slots[at].id >= 0) at = (at + 1) & larger.mask;
        larger.slots[at] = words->slots[i];
    }
    dr_release(words->slots);
    words->slots = larger.slots;
    words->mask = larger.mask;
    return DR_OK;
}

dr_status dr_words_add(dr_words *words, const char *text, size_t bytes, int32_t id) {
    uint32_t hash;
    if (2 * (words->count + 1) > words->mask) DR_TRY(grow(words));
    struct dr_word_slot *slot = slot_of(words, text, bytes, &hash);
    if (slot->id < 0) {
        *slot = (struct dr_word_slot){hash, -1, words->texts.count, bytes};
        DR_TRY(dr_text_append(&words->texts, text, bytes));
        words->count++;
    }
    slot->id = id;
    return DR_OK;
}

int32_t dr_words_find(const dr_words *words, const char *text, size_t bytes) {
    uint32_t hash;
    return words->slots ? slot_of(words, text, bytes, &hash)->id : -1;
}

/* ---- merges ---------------------------------------------------------------------------------------------------------- */

static uint64_t key_of(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static dr_merge *merge_slot(const dr_bpe *bpe, uint64_t key) {
    for (size_t i = mix(key) & bpe->merge_mask;; i = (i + 1) & bpe->merge_mask)
        if (bpe->merges[i].key == key || bpe->merges[i].key == NO_KEY) return &bpe->merges[i];
}

dr_status dr_bpe_begin_merges(dr_bpe *bpe, size_t count) {
    size_t slots = 16;
    void *memory;
    while (slots < 2 * count + 2) slots *= 2;
    DR_TRY(dr_allocate(slots * sizeof *bpe->merges, "merges", &memory));
    bpe->merges = memory;
    bpe->merge_mask = slots - 1;
    for (size_t i = 0; i < slots; i++) bpe->merges[i] = (dr_merge){NO_KEY, NO_RANK, -1};
    return DR_OK;
}

void dr_bpe_add_merge(dr_bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id) {
    uint64_t key = key_of(left, right);
    *merge_slot(bpe, key) = (dr_merge){key, rank, id};
}

/* The rank of a pair, NO_RANK if it is not merged, and what it becomes. */
static inline uint32_t rank_of(const dr_bpe *bpe, int32_t left, int32_t right, int32_t *id) {
    const dr_merge *merge = merge_slot(bpe, key_of(left, right));
    *id = merge->id;
    return merge->rank;
}

/* ---- what is derived ------------------------------------------------------------------------------------------------- */

static void find_bytes(dr_bpe *bpe) {
    char text[8];
    for (unsigned byte = 0; byte < 256; byte++) {
        bpe->of_byte[byte] = -1;
        if (bpe->byte_level || byte < 0x80) {
            size_t length = dr_utf8_write(bpe->byte_level ? dr_alphabet_character((uint8_t)byte) : byte, text);
            bpe->of_byte[byte] = dr_words_find(&bpe->vocabulary, text, length);
        }
        snprintf(text, sizeof text, "<0x%02X>", byte);
        bpe->fallback[byte] = dr_words_find(&bpe->vocabulary, text, 6);
    }
}

/* The bytes of a token that is spelt in the byte alphabet whole; false if it is not. */
static dr_status bytes_of(const char *token, size_t length, dr_text *bytes, bool *all) {
    bytes->count = 0;
    *all = true;
    for (size_t at = 0, step; at < length; at += step) {
        int byte = dr_alphabet_byte(dr_utf8_character(token + at, &step));
        if (byte < 0) *all = false;
        char c = (char)byte;
        DR_TRY(dr_text_append(bytes, &c, 1));
    }
    return DR_OK;
}

static dr_status find_whole(dr_bpe *bpe) {
    dr_text bytes = {0};
    dr_status status = dr_words_create(bpe->vocabulary.count, &bpe->whole);
    for (size_t i = 0; i <= bpe->vocabulary.mask && status == DR_OK; i++) {
        const struct dr_word_slot *slot = &bpe->vocabulary.slots[i];
        bool all;
        if (slot->id < 0) continue;
        status = bytes_of(bpe->vocabulary.texts.bytes + slot->at, slot->bytes, &bytes, &all);
        if (status == DR_OK && all) status = dr_words_add(&bpe->whole, bytes.bytes, bytes.count, slot->id);
    }
    dr_text_release(&bytes);
    return status;
}

/* A cut changes nothing if no token, which merges could make, has the characters on both sides of it; the mark itself must be
 * known, or it could be one of several unknown characters that become one token. */
static void find_cuts(dr_bpe *bpe) {
    char mark[4];
    size_t length = dr_utf8_write(MARK, mark);
    bpe->cuts = !bpe->byte_level && !bpe->ignore_merges && dr_words_find(&bpe->vocabulary, mark, length) >= 0;
    if (!bpe->cuts) return;
    for (int i = 0; i <= 128; i++) bpe->cut_before_mark[i] = true;
    for (size_t i = 0; i <= bpe->vocabulary.mask; i++) {
        const struct dr_word_slot *slot = &bpe->vocabulary.slots[i];
        if (slot->id < 0) continue;
        const char *token = bpe->vocabulary.texts.bytes + slot->at;
        for (size_t at = 1; at + length <= slot->bytes; at++)
            if (memcmp(token + at, mark, length) == 0)
                bpe->cut_before_mark[(uint8_t)token[at - 1] < 0x80 ? token[at - 1] : 128] = false;
    }
}

dr_status dr_bpe_finish(dr_bpe *bpe) {
    find_bytes(bpe);
    find_cuts(bpe);
    return bpe->byte_level && bpe->ignore_merges ? find_whole(bpe) : DR_OK;
}

void dr_bpe_release(dr_bpe *bpe) {
    dr_words_release(&bpe->vocabulary);
    dr_words_release(&bpe->whole);
    dr_release(bpe->merges);
    dr_release(bpe->unknown_text);
    bpe->merges = NULL;
    bpe->unknown_text = NULL;
}

/* ---- the first ids of a word ----------------------------------------------------------------------------------------- */

typedef struct {
    const dr_bpe *bpe;
    dr_bpe_work *work;
    size_t count;
    bool unknown_due; /* an unknown token waits: it stands before the next known one, behind bytes of a fallback */
} start;

static dr_status flush_unknown(start *s) {
    if (!s->unknown_due) return DR_OK;
    if (s->bpe->unknown < 0)
        return dr_fail(DR_ERROR_FORMAT,
                       "the text has a character without a token, and unk_token \"%.80s\" is not in the vocabulary",
                       s->bpe->unknown_text);
    s->work->ids[s->count++] = s->bpe->unknown;
    s->unknown_due = false;
    return DR_OK;
}

/* A character without a token: its bytes' tokens if it has all of them, else unk_token, else nothing. */
static dr_status add_missing(start *s, const char *character, size_t length) {
    const dr_bpe *bpe = s->bpe;
    bool all = bpe->byte_fallback;
    for (size_t i = 0; i < length && all; i++) all = bpe->fallback[(uint8_t)character[i]] >= 0;
    if (all) {
        for (size_t i = 0; i < length; i++) s->work->ids[s->count++] = bpe->fallback[(uint8_t)character[i]];
        return DR_OK;
    }
    if (!bpe->unknown_text) return DR_OK;
    if (!bpe->fuse_unknown) DR_TRY(flush_unknown(s));
    s->unknown_due = true;
    return DR_OK;
}

static dr_status first_ids(start *s, const char *word, size_t bytes) {
    const dr_bpe *bpe = s->bpe;
    for (size_t at = 0, length = 1; at < bytes; at += length) {
        int32_t id = -1;
        char spelt[4];
        const char *character = word + at;
        length = 1;
        if (bpe->byte_level || (uint8_t)word[at] < 0x80) {
            id = bpe->of_byte[(uint8_t)word[at]];
        } else {
            dr_utf8_character(word + at, &length);
            id = dr_words_find(&bpe->vocabulary, word + at, length);
        }
        if (id >= 0) {
            DR_TRY(flush_unknown(s));
            s->work->ids[s->count++] = id;
            continue;
        }
        size_t spelt_length = length;
        if (bpe->byte_level) {
            spelt_length = dr_utf8_write(dr_alphabet_character((uint8_t)word[at]), spelt);
            character = spelt;
        }
        DR_TRY(add_missing(s, character, spelt_length));
    }
    return flush_unknown(s);
}

/* ---- merging --------------------------------------------------------------------------------------------------------- */

static dr_status work_reserve(dr_bpe_work *work, size_t count) {
    if (count <= work->room) return DR_OK;
    size_t room = count < 256 ? 256 : count + count / 2;
    int32_t **arrays[] = {&work->ids, &work->results, &work->previous, &work->next};
    void *memory;
    dr_bpe_work_release(work);
    for (int i = 0; i < 4; i++) {
        DR_TRY(dr_allocate(room * sizeof(int32_t), "a word", &memory));
        *arrays[i] = memory;
    }
    DR_TRY(dr_allocate(room * sizeof *work->ranks, "a word", &memory));
    work->ranks = memory;
    work->room = room;
    return DR_OK;
}

void dr_bpe_work_release(dr_bpe_work *work) {
    dr_release(work->ids);
    dr_release(work->ranks);
    dr_release(work->results);
    dr_release(work->previous);
    dr_release(work->next);
    dr_release(work->heap);
    *work = (dr_bpe_work){0};
}

/* ids[0 .. count - 1] in place; returns how many are left. */
static size_t merge_short(const dr_bpe *bpe, int32_t *ids, uint32_t *ranks, int32_t *results, size_t count) {
    for (size_t i = 0; i + 1 < count; i++) ranks[i] = rank_of(bpe, ids[i], ids[i + 1], &results[i]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best]) best = i;
        if (ranks[best] == NO_RANK) break;
        ids[best] = results[best];
        memmove(ids + best + 1, ids + best + 2, (count - best - 2) * sizeof *ids);
        if (best + 2 < count) {
            memmove(ranks + best + 1, ranks + best + 2, (count - best - 2) * sizeof *ranks);
            memmove(results + best + 1, results + best + 2, (count - best - 2) * sizeof *results);
        }
        count--;
        if (best > 0) ranks[best - 1] = rank_of(bpe, ids[best - 1], ids[best], &results[best - 1]);
        if (best + 1 < count) ranks[best] = rank_of(bpe, ids[best], ids[best + 1], &results[best]);
    }
    return count;
}

/* A pair that may be merged; of equal ranks the leftmost comes first. */
struct dr_candidate {
    uint32_t rank;
    int32_t at;
    int32_t left, right; /* the ids when it was found */
};

static bool before(const struct dr_candidate *a, const struct dr_candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static dr_status heap_push(dr_bpe_work *work, struct dr_candidate candidate) {
    void *heap = work->heap;
    DR_TRY(dr_array_reserve(&heap, work->heap_count, &work->heap_room, 1, sizeof candidate, "candidates of a long word"));
    work->heap = heap;
    size_t at = work->heap_count++;
    for (; at > 0 && before(&candidate, &work->heap[(at - 1) / 2]); at = (at - 1) / 2)
        work->heap[at] = work->heap[(at - 1) / 2];
    work->heap[at] = candidate;
    return DR_OK;
}

static struct dr_candidate heap_pop(dr_bpe_work *work) {
    struct dr_candidate top = work->heap[0], last = work->heap[--work->heap_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= work->heap_count) break;
        if (child + 1 < work->heap_count && before(&work->heap[child + 1], &work->heap[child])) child++;
        if (!before(&work->heap[child], &last)) break;
        work->heap[at] = work->heap[child];
        at = child;
    }
    work->heap[at] = last;
    return top;
}

static dr_status push_pair(const dr_bpe *bpe, dr_bpe_work *work, int32_t at) {
    int32_t result, right = at >= 0 ? work->next[at] : -1;
    if (right < 0) return DR_OK;
    uint32_t rank = rank_of(bpe, work->ids[at], work->ids[right], &result);
    if (rank == NO_RANK) return DR_OK;
    return heap_push(work, (struct dr_candidate){rank, at, work->ids[at], work->ids[right]});
}

static dr_status merge_long(const dr_bpe *bpe, dr_bpe_work *work, size_t count, size_t *left) {
    work->heap_count = 0;
    for (size_t i = 0; i < count; i++) {
        work->previous[i] = (int32_t)i - 1;
        work->next[i] = i + 1 < count ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i + 1 < count; i++) DR_TRY(push_pair(bpe, work, (int32_t)i));
    while (work->heap_count > 0) {
        struct dr_candidate candidate = heap_pop(work);
        int32_t at = candidate.at, right = work->next[at];
        if (work->ids[at] != candidate.left || right < 0 || work->ids[right] != candidate.right) continue;
        int32_t result;
        rank_of(bpe, candidate.left, candidate.right, &result);
        work->ids[at] = result;
        work->ids[right] = -1; /* no id: entries that speak of it are dropped */
        work->next[at] = work->next[right];
        if (work->next[at] >= 0) work->previous[work->next[at]] = at;
        DR_TRY(push_pair(bpe, work, work->previous[at]));
        DR_TRY(push_pair(bpe, work, at));
    }
    *left = 0;
    for (int32_t i = 0; i >= 0; i = work->next[i]) work->ids[(*left)++] = work->ids[i];
    return DR_OK;
}

dr_status dr_bpe_encode(const dr_bpe *bpe, dr_bpe_work *work, const char *word, size_t bytes, dr_ids *ids) {
    if (bytes > INT32_MAX / 4) return dr_fail(DR_ERROR_UNSUPPORTED, "a word of %zu bytes is too long", bytes);
    if (bpe->ignore_merges) {
        int32_t id = dr_words_find(bpe->byte_level ? &bpe->whole : &bpe->vocabulary, word, bytes);
        if (id >= 0) return dr_ids_append(ids, &id, 1);
    }
    DR_TRY(work_reserve(work, 2 * bytes + 1)); /* a byte of the alphabet may fall back to two */
    start s = {bpe, work, 0, false};
    DR_TRY(first_ids(&s, word, bytes));
    size_t left = s.count;
    if (s.count > SHORT)
        DR_TRY(merge_long(bpe, work, s.count, &left));
    else if (s.count > 1)
        left = merge_short(bpe, work->ids, work->ranks, work->results, s.count);
    return dr_ids_append(ids, work->ids, left);
}
