/* Tokens are tried in the order of their bytes: what begins as the last one did goes on from where the automaton was there, and
 * what begins as one that failed is passed over. So a place where little is allowed costs little. */
#include "constrain/token_mask.h"

#include "base/error.h"
#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 64 }; /* bytes of a token; longer ones are not used, since all that they say can be said by shorter ones */

typedef struct {
    const uint8_t *bytes; /* [count] */
    int32_t count, id;
    int32_t shared; /* bytes that it begins with as the one before it does */
} token;

struct dr_token_mask {
    int64_t vocabulary;
    token *tokens; /* [token_count] in the order of their bytes */
    int64_t token_count;
    int64_t *by_id;       /* [vocabulary] place in tokens, -1: none */
    uint8_t *bytes;       /* of all tokens */
    float *row;           /* [vocabulary] */
    dr_automaton *levels; /* [LONGEST + 1] behind so many bytes of the token that is tried */
};

static int compare(const void *a, const void *b) {
    const token *x = a, *y = b;
    const int order = memcmp(x->bytes, y->bytes, (size_t)(x->count < y->count ? x->count : y->count));
    return order != 0 ? order : x->count != y->count ? x->count - y->count : x->id - y->id;
}

/* The bytes of one token. A decoder takes the blank before a text's first word away, so the token is decoded behind itself. */
static dr_status decode(dr_decoder *decoder, int32_t id, const char **bytes, size_t *count) {
    const int32_t twice[] = {id, id};
    size_t once, both;
    DR_TRY(dr_decoder_decode(decoder, twice, 1, bytes, &once));
    DR_TRY(dr_decoder_decode(decoder, twice, 2, bytes, &both));
    *count = both > once ? both - once : 0;
    *bytes += both - *count;
    return DR_OK;
}

/* Tokens whose bytes are still offsets into mask->bytes, which grows. */
static dr_status read_tokens(const dr_tokenizer *tokenizer, dr_decoder *decoder, dr_token_mask *mask, size_t *offsets) {
    size_t used = 0, room = 0;
    for (int64_t id = 0; id < mask->vocabulary; id++) {
        const char *bytes;
        size_t count;
        if (dr_tokenizer_is_special(tokenizer, (int32_t)id)) continue;
        DR_TRY(decode(decoder, (int32_t)id, &bytes, &count));
        if (count == 0 || count > LONGEST) continue;
        if (used + count > room) {
            void *memory = mask->bytes;
            const size_t more = room > 0 ? 2 * room : 1 << 16;
            DR_TRY(room > 0 ? dr_resize(&memory, room, more, "the bytes of tokens")
                            : dr_allocate(more, "the bytes of tokens", &memory));
            mask->bytes = memory;
            room = more;
        }
        memcpy(mask->bytes + used, bytes, count);
        offsets[mask->token_count] = used;
        mask->tokens[mask->token_count++] = (token){.count = (int32_t)count, .id = (int32_t)id};
        used += count;
    }
    return DR_OK;
}

static void sort_tokens(dr_token_mask *mask, const size_t *offsets) {
    for (int64_t i = 0; i < mask->token_count; i++) mask->tokens[i].bytes = mask->bytes + offsets[i];
    qsort(mask->tokens, (size_t)mask->token_count, sizeof *mask->tokens, compare);
    for (int64_t id = 0; id < mask->vocabulary; id++) mask->by_id[id] = -1;
    for (int64_t i = 0; i < mask->token_count; i++) {
        token *now = &mask->tokens[i];
        mask->by_id[now->id] = i;
        while (i > 0 && now->shared < now->count && now->shared < now[-1].count &&
               now->bytes[now->shared] == now[-1].bytes[now->shared])
            now->shared++;
    }
}

static dr_status fill(const dr_tokenizer *tokenizer, dr_token_mask *mask) {
    const size_t vocabulary = (size_t)dr_tokenizer_size(tokenizer);
    dr_decoder *decoder = NULL;
    void *memory, *offsets = NULL;
    dr_status status;
    mask->vocabulary = (int64_t)vocabulary;
    DR_GO(dr_allocate(vocabulary * sizeof(token), "the tokens", &memory));
    mask->tokens = memory;
    DR_GO(dr_allocate(vocabulary * sizeof(int64_t), "the tokens", &memory));
    mask->by_id = memory;
    DR_GO(dr_allocate(vocabulary * sizeof(float), "the logits of tokens that can come", &memory));
    mask->row = memory;
    DR_GO(dr_allocate((LONGEST + 1) * sizeof(dr_automaton), "an automaton", &memory));
    mask->levels = memory;
    DR_GO(dr_allocate(vocabulary * sizeof(size_t), "the bytes of tokens", &offsets));
    DR_GO(dr_decoder_create(tokenizer, DR_DECODE_BYTES, &decoder));
    DR_GO(read_tokens(tokenizer, decoder, mask, offsets));
    sort_tokens(mask, offsets);
done:
    dr_decoder_destroy(decoder);
    dr_release(offsets);
    return status;
}

dr_status dr_token_mask_create(const dr_tokenizer *tokenizer, dr_token_mask **mask) {
    void *memory;
    DR_TRY(dr_allocate_zero(sizeof(dr_token_mask), "the tokens", &memory));
    dr_status status = fill(tokenizer, memory);
    if (status != DR_OK)
        dr_token_mask_destroy(memory);
    else
        *mask = memory;
    return status;
}

void dr_token_mask_destroy(dr_token_mask *mask) {
    if (!mask) return;
    dr_release(mask->tokens);
    dr_release(mask->by_id);
    dr_release(mask->bytes);
    dr_release(mask->row);
    dr_release(mask->levels);
    dr_release(mask);
}

static void copy(const dr_automaton *from, dr_automaton *to) {
    to->count = from->count;
    for (int32_t i = 0; i < from->count; i++) {
        to->readings[i].depth = from->readings[i].depth;
        memcpy(to->readings[i].open, from->readings[i].open, (size_t)from->readings[i].depth * sizeof *from->readings[i].open);
    }
}

dr_status dr_token_mask_apply(dr_token_mask *mask, const dr_schema *schema, const dr_automaton *automaton, int32_t end,
                              const float *logits, const float **masked) {
    int32_t failed = INT32_MAX; /* bytes of the last token with which it failed */
    bool any = false;
    for (int64_t id = 0; id < mask->vocabulary; id++) mask->row[id] = -INFINITY;
    copy(automaton, &mask->levels[0]);
    for (int64_t i = 0; i < mask->token_count; i++) {
        const token *now = &mask->tokens[i];
        if (now->shared >= failed) continue;
        failed = INT32_MAX;
        for (int32_t b = now->shared; b < now->count; b++) {
            if (dr_automaton_take(schema, &mask->levels[b], now->bytes[b], &mask->levels[b + 1])) continue;
            failed = b + 1;
            break;
        }
        if (failed != INT32_MAX) continue;
        mask->row[now->id] = logits[now->id];
        any = true;
    }
    if (end >= 0 && end < mask->vocabulary && dr_automaton_complete(schema, automaton)) {
        mask->row[end] = logits[end];
        any = true;
    }
    *masked = mask->row;
    return any ? DR_OK : dr_fail(DR_ERROR_NUMERIC, "no token of the tokenizer goes on with a text that the schema allows");
}

bool dr_token_mask_take(dr_token_mask *mask, const dr_schema *schema, dr_automaton *automaton, int32_t id) {
    const int64_t place = id >= 0 && id < mask->vocabulary ? mask->by_id[id] : -1;
    for (int32_t b = 0; place >= 0 && b < mask->tokens[place].count; b++) {
        copy(automaton, &mask->levels[0]);
        if (!dr_automaton_take(schema, &mask->levels[0], mask->tokens[place].bytes[b], automaton)) return false;
    }
    return place >= 0;
}
