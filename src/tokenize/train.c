/* Making a byte-level tokenizer: byte-pair encoding over the words of a corpus (Sennrich et al. 2016).
 *
 * Texts are cut into words by the expression of the Llama 3 tokenizers, and equal words are counted once. Each step merges the
 * pair of symbols that is the most frequent over all words, of equally frequent ones the pair with the smallest ids. A heap
 * holds what pairs were worth when they were last counted: the top is counted anew, and goes back where it has lost. Only the
 * words that a pair stands in are looked at when it is merged. The result depends on the texts alone, not on their order. */
#include <deltarule/tokenizer.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "formats/folder.h"
#include "formats/json.h"
#include "tokenize/bpe.h"
#include "tokenize/scan.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES = 256, LONGEST_WORD = 1 << 12, LLAMA3 = 1 };

struct dr_tokenizer_trainer {
    dr_classes classes;
    dr_words words;  /* ids count up from 0 in the order in which words come */
    int64_t *counts; /* [words.count] */
    size_t count_room;
};

dr_status dr_tokenizer_trainer_create(dr_tokenizer_trainer **trainer) {
    DR_NEED(trainer);
    void *memory;
    DR_TRY(dr_allocate_zero(sizeof **trainer, "the training of a tokenizer", &memory));
    dr_tokenizer_trainer *made = memory;
    dr_classes_fill(&made->classes);
    dr_status status = dr_words_create(1 << 12, &made->words);
    if (status != DR_OK) {
        dr_release(made);
        return status;
    }
    *trainer = made;
    return DR_OK;
}

void dr_tokenizer_trainer_destroy(dr_tokenizer_trainer *trainer) {
    if (!trainer) return;
    dr_words_release(&trainer->words);
    dr_release(trainer->counts);
    dr_release(trainer);
}

static dr_status count_word(dr_tokenizer_trainer *trainer, const char *word, size_t bytes) {
    int32_t id = dr_words_find(&trainer->words, word, bytes);
    if (id < 0) {
        void *counts = trainer->counts;
        if (trainer->words.count >= INT32_MAX) return dr_fail(DR_ERROR_UNSUPPORTED, "the corpus has more than 2^31 words");
        id = (int32_t)trainer->words.count;
        DR_TRY(dr_array_reserve(&counts, (size_t)id, &trainer->count_room, 1, sizeof *trainer->counts, "counts of words"));
        trainer->counts = counts;
        trainer->counts[id] = 0;
        DR_TRY(dr_words_add(&trainer->words, word, bytes, id));
    }
    trainer->counts[id]++;
    return DR_OK;
}

dr_status dr_tokenizer_trainer_add(dr_tokenizer_trainer *trainer, const char *text, size_t bytes) {
    DR_NEED(trainer);
    if (bytes > 0) DR_NEED(text);
    const char *expression = dr_scanner_expression(LLAMA3);
    dr_scanner scan = dr_scanner_of(expression, strlen(expression));
    for (size_t from = 0; from < bytes;) {
        size_t valid = dr_utf8_valid_bytes(text + from, bytes - from);
        for (size_t at = 0, end; at < valid; at = end) {
            end = scan(&trainer->classes, text + from, valid, at);
            if (end - at <= LONGEST_WORD) DR_TRY(count_word(trainer, text + from + at, end - at));
        }
        from += valid;
        if (from < bytes) from += (size_t)-dr_utf8_step(text + from, bytes - from); /* what is broken teaches nothing */
    }
    return DR_OK;
}

/* ---- pairs ----------------------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t key; /* left << 32 | right */
    int64_t count;
    int32_t *words; /* where it stands, or stood; some twice */
    size_t word_count, word_room;
} pair;

typedef struct {
    int64_t count;
    size_t pair;
} candidate;

typedef struct {
    int32_t *symbols; /* all words, one behind the other; -1 behind those that were merged away */
    size_t *starts, *lengths;
    const int64_t *counts;
    pair *pairs; /* by first appearance */
    size_t pair_count, pair_room;
    uint32_t *slots; /* [slot_mask + 1] index + 1 of a pair, by its key; 0: empty */
    size_t slot_mask;
    candidate *heap;
    size_t heap_count, heap_room;
} learning;

static uint64_t spread(uint64_t key) {
    key ^= key >> 31;
    key *= UINT64_C(0x9e3779b97f4a7c15);
    return key ^ key >> 32;
}

static dr_status grow_slots(learning *l) {
    size_t slots = l->slots ? 2 * (l->slot_mask + 1) : 1 << 16;
    void *memory;
    DR_TRY(dr_allocate_zero(slots * sizeof *l->slots, "pairs", &memory));
    dr_release(l->slots);
    l->slots = memory;
    l->slot_mask = slots - 1;
    for (size_t i = 0; i < l->pair_count; i++) {
        size_t at = spread(l->pairs[i].key) & l->slot_mask;
        while (l->slots[at]) at = (at + 1) & l->slot_mask;
        l->slots[at] = (uint32_t)i + 1;
    }
    return DR_OK;
}

static dr_status find_pair(learning *l, int32_t left, int32_t right, size_t *index) {
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    if (!l->slots || 2 * l->pair_count >= l->slot_mask) DR_TRY(grow_slots(l));
    size_t at = spread(key) & l->slot_mask;
    while (l->slots[at] && l->pairs[l->slots[at] - 1].key != key) at = (at + 1) & l->slot_mask;
    if (!l->slots[at]) {
        void *pairs = l->pairs;
        if (l->pair_count >= UINT32_MAX - 1) return dr_fail(DR_ERROR_UNSUPPORTED, "the corpus has too many pairs of symbols");
        DR_TRY(dr_array_reserve(&pairs, l->pair_count, &l->pair_room, 1, sizeof *l->pairs, "pairs"));
        l->pairs = pairs;
        l->pairs[l->pair_count++] = (pair){.key = key};
        l->slots[at] = (uint32_t)l->pair_count;
    }
    *index = l->slots[at] - 1;
    return DR_OK;
}

/* Counts a pair that stands in a word. */
static dr_status add_pair(learning *l, int32_t left, int32_t right, int32_t word, int64_t count, size_t *index) {
    DR_TRY(find_pair(l, left, right, index));
    pair *p = &l->pairs[*index];
    p->count += count; /* NOLINT(clang-analyzer-core.NullDereference): it takes a slot to be filled before the first pair */
    if (p->word_count > 0 && p->words[p->word_count - 1] == word) return DR_OK;
    void *words = p->words;
    DR_TRY(dr_array_reserve(&words, p->word_count, &p->word_room, 1, sizeof *p->words, "places of pairs"));
    p->words = words;
    p->words[p->word_count++] = word;
    return DR_OK;
}

static bool better(const learning *l, candidate a, candidate b) {
    return a.count != b.count ? a.count > b.count : l->pairs[a.pair].key < l->pairs[b.pair].key;
}

static dr_status heap_push(learning *l, size_t index) {
    candidate c = {l->pairs[index].count, index};
    void *heap = l->heap;
    if (c.count <= 0) return DR_OK;
    DR_TRY(dr_array_reserve(&heap, l->heap_count, &l->heap_room, 1, sizeof *l->heap, "candidates"));
    l->heap = heap;
    size_t at = l->heap_count++;
    for (; at > 0 && better(l, c, l->heap[(at - 1) / 2]); at = (at - 1) / 2) l->heap[at] = l->heap[(at - 1) / 2];
    l->heap[at] = c;
    return DR_OK;
}

static candidate heap_pop(learning *l) {
    candidate top = l->heap[0], last = l->heap[--l->heap_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= l->heap_count) break;
        if (child + 1 < l->heap_count && better(l, l->heap[child + 1], l->heap[child])) child++;
        if (!better(l, l->heap[child], last)) break;
        l->heap[at] = l->heap[child];
        at = child;
    }
    l->heap[at] = last;
    return top;
}

/* The most frequent pair; false: there is none. A candidate whose count has changed goes back with the right one. */
static dr_status best_pair(learning *l, size_t *index, bool *found) {
    *found = false;
    while (l->heap_count > 0) {
        candidate top = heap_pop(l);
        if (l->pairs[top.pair].count == top.count) {
            *index = top.pair;
            *found = true;
            return DR_OK;
        }
        DR_TRY(heap_push(l, top.pair));
    }
    return DR_OK;
}

/* ---- learning -------------------------------------------------------------------------------------------------------- */

static dr_status begin_learning(const dr_tokenizer_trainer *trainer, learning *l) {
    const dr_words *words = &trainer->words;
    size_t symbols = words->texts.count, index;
    void *memory;
    DR_TRY(dr_allocate((symbols + 1) * sizeof *l->symbols, "symbols", &memory));
    l->symbols = memory;
    DR_TRY(dr_allocate((words->count + 1) * sizeof *l->starts, "words", &memory));
    l->starts = memory;
    DR_TRY(dr_allocate((words->count + 1) * sizeof *l->lengths, "words", &memory));
    l->lengths = memory;
    l->counts = trainer->counts;
    for (size_t i = 0; i < symbols; i++) l->symbols[i] = (uint8_t)words->texts.bytes[i];
    for (size_t i = 0; i <= words->mask; i++)
        if (words->slots[i].id >= 0) {
            l->starts[words->slots[i].id] = words->slots[i].at;
            l->lengths[words->slots[i].id] = words->slots[i].bytes;
        }
    for (size_t w = 0; w < words->count; w++)
        for (size_t i = 0; i + 1 < l->lengths[w]; i++)
            DR_TRY(
                add_pair(l, l->symbols[l->starts[w] + i], l->symbols[l->starts[w] + i + 1], (int32_t)w, l->counts[w], &index));
    for (size_t i = 0; i < l->pair_count; i++) DR_TRY(heap_push(l, i));
    return DR_OK;
}

static void end_learning(learning *l) {
    for (size_t i = 0; i < l->pair_count; i++) dr_release(l->pairs[i].words);
    dr_release(l->symbols);
    dr_release(l->starts);
    dr_release(l->lengths);
    dr_release(l->pairs);
    dr_release(l->slots);
    dr_release(l->heap);
}

/* Takes one occurrence from a pair. */
static dr_status drop_pair(learning *l, int32_t left, int32_t right, int64_t count) {
    size_t index;
    DR_TRY(find_pair(l, left, right, &index));
    l->pairs[index].count -= count;
    return DR_OK;
}

/* Counts a pair that a merge has made. New pairs, from number `old` on, go to the heap when all are counted; others go now. */
static dr_status gain_pair(learning *l, int32_t left, int32_t right, int32_t word, size_t old) {
    size_t index;
    DR_TRY(add_pair(l, left, right, word, l->counts[word], &index));
    return index < old ? heap_push(l, index) : DR_OK;
}

/* Merges left, right to `made` in one word. What its neighbours had with it is counted anew. */
static dr_status merge_in_word(learning *l, int32_t word, int32_t left, int32_t right, int32_t made, size_t old) {
    int32_t *symbols = l->symbols + l->starts[word];
    const int64_t count = l->counts[word];
    size_t length = l->lengths[word], to = 0;
    for (size_t from = 0; from < length; from++) {
        if (from + 1 == length || symbols[from] != left || symbols[from + 1] != right) {
            symbols[to++] = symbols[from];
            continue;
        }
        if (to > 0) {
            DR_TRY(drop_pair(l, symbols[to - 1], left, count));
            DR_TRY(gain_pair(l, symbols[to - 1], made, word, old));
        }
        if (from + 2 < length) {
            DR_TRY(drop_pair(l, right, symbols[from + 2], count));
            DR_TRY(gain_pair(l, made, symbols[from + 2], word, old));
        }
        DR_TRY(drop_pair(l, left, right, count));
        symbols[to++] = made;
        from++;
    }
    l->lengths[word] = to;
    return DR_OK;
}

static dr_status merge_everywhere(learning *l, size_t index, int32_t made) {
    const int32_t left = (int32_t)(l->pairs[index].key >> 32), right = (int32_t)(uint32_t)l->pairs[index].key;
    const size_t before = l->pair_count;
    int32_t *words = l->pairs[index].words; /* taken out: counting may move the list of pairs */
    const size_t count = l->pairs[index].word_count;
    dr_status status = DR_OK;
    l->pairs[index].words = NULL;
    l->pairs[index].word_count = l->pairs[index].word_room = 0;
    for (size_t i = 0; i < count && status == DR_OK; i++) status = merge_in_word(l, words[i], left, right, made, before);
    dr_release(words);
    for (size_t i = before; i < l->pair_count && status == DR_OK; i++) status = heap_push(l, i);
    return status;
}

/* ---- the file -------------------------------------------------------------------------------------------------------- */

/* The symbols' bytes in the byte alphabet. */
static dr_status spell(const dr_text *bytes, size_t at, size_t count, dr_text *spelt) {
    spelt->count = 0;
    for (size_t i = 0; i < count; i++) {
        char text[4];
        DR_TRY(dr_text_append(spelt, text, dr_utf8_write(dr_alphabet_character((uint8_t)bytes->bytes[at + i]), text)));
    }
    return dr_text_append(spelt, "", 1);
}

/* Symbols: bytes, then what merges made. */
typedef struct {
    dr_text bytes;
    struct {
        size_t at, count;
    } * symbols;
    size_t count, room;
    json_t *vocabulary, *merges;
} learned;

static dr_status no_memory(void) {
    return dr_fail(DR_ERROR_MEMORY, "there is no memory for a vocabulary");
}

static dr_status add_symbol(learned *made, const char *bytes, size_t count, dr_text *spelt) {
    void *symbols = made->symbols;
    DR_TRY(dr_array_reserve(&symbols, made->count, &made->room, 1, sizeof *made->symbols, "symbols"));
    made->symbols = symbols;
    made->symbols[made->count].at = made->bytes.count;
    made->symbols[made->count].count = count;
    DR_TRY(dr_text_append(&made->bytes, bytes, count));
    DR_TRY(spell(&made->bytes, made->symbols[made->count].at, count, spelt));
    if (json_object_set_new(made->vocabulary, spelt->bytes, json_integer((json_int_t)made->count)) != 0) return no_memory();
    made->count++;
    return DR_OK;
}

/* The symbol that two others make, unless there is one of the same bytes already. */
static dr_status add_merge(learned *made, int32_t left, int32_t right, dr_text *scratch, int32_t *symbol) {
    dr_text joined = {0}, other = {0};
    dr_status status;
    const size_t left_count = made->symbols[left].count, right_count = made->symbols[right].count;
    DR_GO(dr_text_append(&joined, made->bytes.bytes + made->symbols[left].at, left_count));
    DR_GO(dr_text_append(&joined, made->bytes.bytes + made->symbols[right].at, right_count));
    DR_GO(spell(&made->bytes, made->symbols[left].at, left_count, scratch));
    DR_GO(spell(&made->bytes, made->symbols[right].at, right_count, &other));
    if (json_array_append_new(made->merges, json_pack("[s, s]", scratch->bytes, other.bytes)) != 0) DR_GO(no_memory());
    DR_GO(spell(&joined, 0, joined.count, scratch));
    const json_t *old = json_object_get(made->vocabulary, scratch->bytes);
    *symbol = old ? (int32_t)json_integer_value(old) : (int32_t)made->count;
    if (!old) DR_GO(add_symbol(made, joined.bytes, joined.count, scratch));
done:
    dr_text_release(&joined);
    dr_text_release(&other);
    return status;
}

static dr_status learn(learning *l, learned *made, const dr_tokenizer_training *options, size_t symbols) {
    dr_text scratch = {0};
    dr_status status = DR_OK;
    for (unsigned byte = 0; byte < BYTES; byte++) {
        char c = (char)byte;
        DR_GO(add_symbol(made, &c, 1, &scratch));
    }
    while (made->count < symbols) {
        size_t index;
        bool found;
        int32_t symbol = 0;
        DR_GO(best_pair(l, &index, &found));
        if (!found || l->pairs[index].count < options->least_count) break;
        const uint64_t key = l->pairs[index].key;
        DR_GO(add_merge(made, (int32_t)(key >> 32), (int32_t)(uint32_t)key, &scratch, &symbol));
        DR_GO(merge_everywhere(l, index, symbol));
        if (options->progress && !options->progress(options->context, (int64_t)made->count, (int64_t)symbols))
            DR_GO(dr_fail(DR_ERROR_INTERRUPTED, "the training of the tokenizer was stopped"));
    }
done:
    dr_text_release(&scratch);
    return status;
}

static json_t *tokenizer_json(learned *made, const char *end_of_text) {
    json_t *byte_level =
        json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 0);
    json_t *split = json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", dr_scanner_expression(LLAMA3),
                              "behavior", "Isolated", "invert", 0);
    json_t *added = json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (int)made->count, "content", end_of_text,
                              "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
    json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:O, s:O}", "type", "BPE", "dropout", "unk_token",
                              "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
                              "ignore_merges", 0, "vocab", made->vocabulary, "merges", made->merges);
    json_t *file = json_pack("{s:s, s:n, s:n, s:[o], s:n, s:{s:s, s:[o, O]}, s:n, s:O, s:o}", "version", "1.0", "truncation",
                             "padding", "added_tokens", added, "normalizer", "pre_tokenizer", "type", "Sequence",
                             "pretokenizers", split, byte_level, "post_processor", "decoder", byte_level, "model", model);
    json_decref(byte_level);
    return file;
}

static dr_status write_folder(learned *made, const char *end_of_text, const char *folder) {
    dr_folder *change = NULL;
    dr_status status;
    json_t *file = tokenizer_json(made, end_of_text);
    json_t *config = json_pack("{s:s, s:s, s:s, s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "bos_token", end_of_text,
                               "eos_token", end_of_text, "clean_up_tokenization_spaces", 0);
    if (!file || !config) DR_GO(no_memory());
    DR_GO(dr_folder_begin(folder, &change));
    DR_GO(dr_json_write(dr_folder_path(change, "tokenizer.json"), file));
    DR_GO(dr_json_write(dr_folder_path(change, "tokenizer_config.json"), config));
    status = dr_folder_commit(change);
    change = NULL;
done:
    if (change) dr_folder_abandon(change);
    json_decref(file);
    json_decref(config);
    return status;
}

dr_tokenizer_training dr_tokenizer_training_defaults(void) {
    return (dr_tokenizer_training){.ids = 32768, .least_count = 2, .end_of_text = "<|endoftext|>"};
}

dr_status dr_tokenizer_trainer_write(dr_tokenizer_trainer *trainer, const dr_tokenizer_training *options, const char *folder,
                                     int64_t *size) {
    DR_NEED(trainer);
    DR_NEED(options);
    DR_NEED(folder);
    DR_NEED(size);
    learning l = {0};
    learned made = {0};
    dr_status status;
    if (options->ids < BYTES + 1 || options->ids > DR_MOST_IDS)
        return dr_fail(DR_ERROR_ARGUMENT, "a vocabulary of %lld ids: it must be from %d to %d", (long long)options->ids,
                       BYTES + 1, DR_MOST_IDS);
    if (!options->end_of_text || !*options->end_of_text)
        return dr_fail(DR_ERROR_ARGUMENT, "the token that ends a text (end_of_text) must not be empty");
    if (trainer->words.count == 0) return dr_fail(DR_ERROR_ARGUMENT, "there is no text to make a vocabulary of");
    made.vocabulary = json_object();
    made.merges = json_array();
    if (!made.vocabulary || !made.merges) DR_GO(no_memory());
    DR_GO(begin_learning(trainer, &l));
    DR_GO(learn(&l, &made, options, (size_t)options->ids - 1));
    DR_GO(write_folder(&made, options->end_of_text, folder));
    *size = (int64_t)made.count + 1;
done:
    end_learning(&l);
    dr_text_release(&made.bytes);
    dr_release(made.symbols);
    json_decref(made.vocabulary);
    json_decref(made.merges);
    return status;
}
