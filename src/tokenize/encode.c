/* Text to ids: what is not UTF-8 is cut out; added tokens are found; what lies between is normalized, added tokens of the
 * normalized kind are found, the rest is cut into words by the pre-tokenizer, and each word goes through byte-pair encoding. A
 * cache keeps the ids of short words. */
#include "tokenize/tokenizer.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"

#include <string.h>

enum { CACHE_SLOTS = 1 << 15, CACHE_MOST = CACHE_SLOTS / 2, CACHED_BYTES = 32, CACHED_IDS = 10 };

/* A word and its ids, by a hash of the word. */
typedef struct {
    uint64_t hash;
    uint8_t bytes, count; /* bytes 0: empty */
    char word[CACHED_BYTES];
    int32_t ids[CACHED_IDS];
} cached;

struct dr_encoder {
    const dr_tokenizer *tokenizer;
    dr_ids body, whole; /* without and with the template */
    dr_bpe_work work;
    dr_split_work split;
    dr_text normal[2];
    cached *cache; /* [CACHE_SLOTS] */
    int cache_count;
};

void dr_encoder_destroy(dr_encoder *e) {
    if (!e) return;
    dr_ids_release(&e->body);
    dr_ids_release(&e->whole);
    dr_bpe_work_release(&e->work);
    dr_searcher_destroy(e->split.searcher);
    for (int i = 0; e->split.changed && i < 2 * e->tokenizer->stage_count; i++) dr_text_release(&e->split.changed[i]);
    dr_release(e->split.changed);
    dr_text_release(&e->normal[0]);
    dr_text_release(&e->normal[1]);
    dr_release(e->cache);
    dr_release(e);
}

/* ---- words ----------------------------------------------------------------------------------------------------------- */

static bool same_word(const cached *slot, uint64_t hash, const char *word, size_t bytes) {
    return slot->hash == hash && slot->bytes == bytes && memcmp(slot->word, word, bytes) == 0;
}

static dr_status encode_word(dr_encoder *e, const char *word, size_t bytes) {
    if (bytes > CACHED_BYTES) return dr_bpe_encode(&e->tokenizer->bpe, &e->work, word, bytes, &e->body);
    const uint64_t hash = dr_hash(word, bytes);
    cached *slot = &e->cache[hash % CACHE_SLOTS];
    while (slot->bytes > 0 && !same_word(slot, hash, word, bytes))
        if (++slot == e->cache + CACHE_SLOTS) slot = e->cache;
    if (slot->bytes > 0) {
        DR_TRY(dr_ids_reserve(&e->body, CACHED_IDS));
        memcpy(e->body.at + e->body.count, slot->ids, sizeof slot->ids); /* as many as fit, of a fixed number: faster */
        e->body.count += slot->count;
        return DR_OK;
    }
    size_t before = e->body.count;
    DR_TRY(dr_bpe_encode(&e->tokenizer->bpe, &e->work, word, bytes, &e->body));
    size_t count = e->body.count - before;
    if (count > CACHED_IDS) return DR_OK;
    if (e->cache_count == CACHE_MOST) { /* it begins anew */
        memset(e->cache, 0, CACHE_SLOTS * sizeof *e->cache);
        e->cache_count = 0;
        slot = &e->cache[hash % CACHE_SLOTS];
    }
    *slot = (cached){.hash = hash, .bytes = (uint8_t)bytes, .count = (uint8_t)count};
    memcpy(slot->word, word, bytes);
    if (count > 0) memcpy(slot->ids, e->body.at + before, count * sizeof(int32_t));
    e->cache_count++;
    return DR_OK;
}

/* A word of the pre-tokenizer: cut further before each mark where no token could lie over the cut, so that whole texts, which
 * models with marks have for words, become words of the cache. */
static dr_status encode_piece(void *context, const char *text, size_t bytes) {
    dr_encoder *e = context;
    const dr_bpe *bpe = &e->tokenizer->bpe;
    static const char mark[] = "\xe2\x96\x81";
    if (!bpe->cuts) return encode_word(e, text, bytes);
    size_t from = 0;
    for (size_t at = 1; at + 3 <= bytes;) {
        const char *found = memchr(text + at, mark[0], bytes - at - 2);
        if (!found) break;
        at = (size_t)(found - text);
        const uint8_t before = (uint8_t)text[at - 1];
        if (memcmp(found, mark, 3) == 0 && bpe->cut_before_mark[before < 0x80 ? before : 128]) {
            DR_TRY(encode_word(e, text + from, at - from));
            from = at;
        }
        at++;
    }
    return encode_word(e, text + from, bytes - from);
}

dr_status dr_encoder_create(const dr_tokenizer *tokenizer, dr_encoder **encoder) {
    DR_NEED(tokenizer);
    DR_NEED(encoder);
    void *memory;
    dr_status status;
    DR_TRY(dr_allocate_zero(sizeof **encoder, "an encoder", &memory));
    dr_encoder *e = memory;
    e->tokenizer = tokenizer;
    e->split = (dr_split_work){.classes = &tokenizer->classes, .emit = encode_piece, .context = e};
    DR_GO(dr_ids_reserve(&e->body, 1));
    DR_GO(dr_ids_reserve(&e->whole, 1));
    DR_GO(dr_searcher_create(&e->split.searcher));
    DR_GO(dr_allocate_zero((size_t)(2 * tokenizer->stage_count) * sizeof(dr_text), "an encoder", &memory));
    e->split.changed = memory;
    if (!tokenizer->bytes) {
        DR_GO(dr_allocate_zero(CACHE_SLOTS * sizeof *e->cache, "a cache of words", &memory));
        e->cache = memory;
    }
    *encoder = e;
    return DR_OK;
done:
    dr_encoder_destroy(e);
    return status;
}

/* ---- texts ----------------------------------------------------------------------------------------------------------- */

dr_status dr_normalize_all(const dr_tokenizer *t, dr_searcher *searcher, const char *text, size_t bytes, bool prepends,
                           dr_text buffers[2], const char **result, size_t *result_bytes, bool *begins) {
    int next = 0;
    for (int i = 0; i < t->normalizer_count; i++) {
        if (dr_normalizes_to_itself(&t->normalizers[i], text, bytes)) continue;
        if (!prepends && t->normalizers[i].kind == DR_NORMALIZE_PREPEND) continue;
        DR_TRY(dr_normalize(&t->normalizers[i], searcher, text, bytes, &buffers[next], begins));
        text = buffers[next].bytes;
        bytes = buffers[next].count;
        next = !next;
    }
    *result = text;
    *result_bytes = bytes;
    return DR_OK;
}

/* Where a piece of a text stands: at its beginning; behind bytes that are no UTF-8, which it goes on from; or behind an added
 * token. */
typedef enum { BEGINS, GOES_ON, STANDS_ALONE } position;

/* What lies between added tokens. */
static dr_status encode_between(dr_encoder *e, const char *text, size_t bytes, position place) {
    const dr_tokenizer *t = e->tokenizer;
    dr_added_walk walk = {0};
    dr_part part;
    bool begins = place == BEGINS;
    DR_TRY(dr_normalize_all(t, e->split.searcher, text, bytes, place != GOES_ON, e->normal, &text, &bytes, &begins));
    while (dr_added_next(&t->normalized, t->added, text, bytes, &walk, &part)) {
        if (part.token >= 0)
            DR_TRY(dr_ids_append(&e->body, &t->added[part.token].id, 1));
        else
            DR_TRY(dr_split_piece(t->stages, t->stage_count, &e->split,
                                  (dr_piece){text + part.start, part.end - part.start, begins && part.start == 0}));
    }
    return DR_OK;
}

static dr_status encode_valid(dr_encoder *e, const char *text, size_t bytes, position place) {
    const dr_tokenizer *t = e->tokenizer;
    dr_added_walk walk = {0};
    dr_part part;
    while (dr_added_next(&t->raw, t->added, text, bytes, &walk, &part)) {
        if (part.token >= 0)
            DR_TRY(dr_ids_append(&e->body, &t->added[part.token].id, 1));
        else
            DR_TRY(encode_between(e, text + part.start, part.end - part.start, part.start == 0 ? place : STANDS_ALONE));
    }
    return DR_OK;
}

/* Bytes that are not UTF-8: a word of their own in a byte-level model, else each its token of the fallback. */
static dr_status encode_broken(dr_encoder *e, const char *text, size_t bytes, size_t place) {
    const dr_bpe *bpe = &e->tokenizer->bpe;
    if (bpe->byte_level) return dr_bpe_encode(bpe, &e->work, text, bytes, &e->body);
    for (size_t i = 0; i < bytes; i++) {
        int32_t id = bpe->byte_fallback ? bpe->fallback[(uint8_t)text[i]] : -1;
        if (id < 0)
            return dr_fail(DR_ERROR_FORMAT,
                           "the text is not UTF-8 at byte %zu, and the vocabulary has no token for byte 0x%02X", place + i,
                           (unsigned)(uint8_t)text[i]);
        DR_TRY(dr_ids_append(&e->body, &id, 1));
    }
    return DR_OK;
}

static dr_status encode_text(dr_encoder *e, const char *text, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        size_t valid = dr_utf8_valid_bytes(text + at, bytes - at);
        if (valid > 0) DR_TRY(encode_valid(e, text + at, valid, at == 0 ? BEGINS : GOES_ON));
        at += valid;
        size_t broken = at;
        for (int step = -1; broken < bytes; broken += (size_t)-step) {
            step = dr_utf8_step(text + broken, bytes - broken);
            if (step > 0) break;
        }
        if (broken > at) DR_TRY(encode_broken(e, text + at, broken - at, at));
        at = broken;
    }
    return DR_OK;
}

static dr_status encode_bytes(dr_encoder *e, const char *text, size_t bytes, bool special) {
    DR_TRY(dr_ids_reserve(&e->body, bytes + 1));
    if (special) e->body.at[e->body.count++] = e->tokenizer->special[DR_TOKEN_BOS];
    for (size_t i = 0; i < bytes; i++) e->body.at[e->body.count++] = (uint8_t)text[i];
    return DR_OK;
}

dr_status dr_encoder_encode(dr_encoder *encoder, const char *text, size_t bytes, bool special, const int32_t **ids,
                            size_t *count) {
    DR_NEED(encoder);
    if (bytes > 0) DR_NEED(text);
    DR_NEED(ids);
    DR_NEED(count);
    dr_encoder *e = encoder;
    const dr_ids *around = &e->tokenizer->around, *result = &e->body;
    e->body.count = e->whole.count = 0;
    dr_searcher_begin(e->split.searcher, bytes);
    if (e->tokenizer->bytes)
        DR_TRY(encode_bytes(e, text, bytes, special));
    else
        DR_TRY(encode_text(e, text, bytes));
    if (around->count > 1) {
        for (size_t i = 0; i < around->count; i++) {
            if (around->at[i] < 0)
                DR_TRY(dr_ids_append(&e->whole, e->body.at, e->body.count));
            else if (special)
                DR_TRY(dr_ids_append(&e->whole, &around->at[i], 1));
        }
        result = &e->whole;
    }
    *ids = result->at;
    *count = result->count;
    return DR_OK;
}
