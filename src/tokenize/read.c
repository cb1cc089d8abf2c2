/* tokenizer.json: the model, the added tokens, and the folder around it. What would change ids and is not known is refused. */
#include "tokenize/tokenizer.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "formats/file.h"
#include "formats/json.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_FILE_BYTES = 100000000, LONGEST_TOKEN = 1 << 16, MOST_ADDED = 1 << 20 };

/* ---- the vocabulary and the merges ----------------------------------------------------------------------------------- */

static dr_status read_vocabulary(const json_t *model, dr_bpe *bpe) {
    const json_t *vocabulary = json_object_get(model, "vocab");
    if (!json_is_object(vocabulary)) return dr_fail(DR_ERROR_FORMAT, "\"vocab\" must be an object of tokens and ids");
    DR_TRY(dr_words_create(json_object_size(vocabulary), &bpe->vocabulary));
    const char *token;
    json_t *value;
    json_object_foreach((json_t *)vocabulary, token, value) {
        size_t bytes = strlen(token);
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id >= DR_MOST_IDS) {
            char found[64];
            dr_json_describe(value, found, sizeof found);
            return dr_fail(DR_ERROR_FORMAT, "the id of token \"%.80s\" must be an integer from 0 to %d, not %s", token,
                           DR_MOST_IDS - 1, found);
        }
        if (bytes > LONGEST_TOKEN)
            return dr_fail(DR_ERROR_UNSUPPORTED, "a token has %zu bytes: at most %d", bytes, LONGEST_TOKEN);
        DR_TRY(dr_words_add(&bpe->vocabulary, token, bytes, (int32_t)id));
    }
    return DR_OK;
}

/* A merge as ["a", "b"], or as "a b" in older files. */
static dr_status merge_parts(const json_t *merge, size_t number, const char *parts[2], size_t bytes[2]) {
    const char *text = json_string_value(merge);
    if (text) {
        const char *space = strchr(text, ' ');
        if (space && !strchr(space + 1, ' ')) {
            parts[0] = text;
            bytes[0] = (size_t)(space - text);
            parts[1] = space + 1;
            bytes[1] = strlen(space + 1);
            return DR_OK;
        }
    } else if (json_array_size(merge) == 2 && json_is_string(json_array_get(merge, 0)) &&
               json_is_string(json_array_get(merge, 1))) {
        for (size_t i = 0; i < 2; i++) {
            parts[i] = json_string_value(json_array_get(merge, i));
            bytes[i] = strlen(parts[i]);
        }
        return DR_OK;
    }
    return dr_fail(DR_ERROR_FORMAT, "merge %zu must be two tokens, [\"a\", \"b\"] or \"a b\"", number);
}

static dr_status read_merge(dr_bpe *bpe, const json_t *merge, size_t number, dr_text *joined) {
    const char *parts[2];
    size_t bytes[2];
    int32_t ids[2];
    DR_TRY(merge_parts(merge, number, parts, bytes));
    joined->count = 0;
    for (int i = 0; i < 2; i++) {
        ids[i] = dr_words_find(&bpe->vocabulary, parts[i], bytes[i]);
        if (ids[i] < 0)
            return dr_fail(DR_ERROR_FORMAT, "merge %zu has \"%.*s\", which is not in the vocabulary", number,
                           (int)(bytes[i] < 80 ? bytes[i] : 80), parts[i]);
        DR_TRY(dr_text_append(joined, parts[i], bytes[i]));
    }
    int32_t result = dr_words_find(&bpe->vocabulary, joined->bytes, joined->count);
    if (result < 0)
        return dr_fail(DR_ERROR_FORMAT, "merge %zu makes \"%.*s\", which is not in the vocabulary", number,
                       (int)(joined->count < 80 ? joined->count : 80), joined->bytes);
    dr_bpe_add_merge(bpe, ids[0], ids[1], (uint32_t)number, result);
    return DR_OK;
}

static dr_status read_merges(const json_t *model, dr_bpe *bpe) {
    const json_t *merges = json_object_get(model, "merges");
    if (!json_is_array(merges)) return dr_fail(DR_ERROR_FORMAT, "\"merges\" must be a list of pairs of tokens");
    size_t count = json_array_size(merges);
    dr_text joined = {0};
    DR_TRY(dr_bpe_begin_merges(bpe, count));
    dr_status status = dr_text_reserve(&joined, 1);
    for (size_t i = 0; i < count && status == DR_OK; i++) {
        const char *text = json_string_value(json_array_get(merges, i));
        if (text && strncmp(text, "#version", 8) == 0) continue;
        status = read_merge(bpe, json_array_get(merges, i), i, &joined);
    }
    dr_text_release(&joined);
    return status;
}

/* ---- the model ------------------------------------------------------------------------------------------------------- */

static dr_status refuse_affixes(const json_t *model) {
    static const char *const keys[] = {"continuing_subword_prefix", "end_of_word_suffix", NULL};
    for (int i = 0; keys[i]; i++) {
        const char *affix = NULL;
        DR_TRY(dr_json_text(model, keys[i], &affix));
        if (affix && *affix)
            return dr_fail(DR_ERROR_UNSUPPORTED, "\"%s\" is \"%.40s\": models that mark parts of words so are not supported",
                           keys[i], affix);
    }
    double dropout = 0;
    DR_TRY(dr_json_real(model, "dropout", 0, 1, &dropout));
    if (dropout > 0)
        return dr_fail(DR_ERROR_UNSUPPORTED, "\"dropout\" is %g: ids would be drawn at random; make it null", dropout);
    return DR_OK;
}

static dr_status read_model(const json_t *object, dr_bpe *bpe) {
    static const char *const keys[] = {"type",
                                       "dropout",
                                       "unk_token",
                                       "continuing_subword_prefix",
                                       "end_of_word_suffix",
                                       "fuse_unk",
                                       "byte_fallback",
                                       "ignore_merges",
                                       "vocab",
                                       "merges",
                                       NULL};
    const json_t *model = json_object_get(object, "model");
    const char *type = "BPE", *unknown = NULL;
    if (!json_is_object(model)) return dr_fail(DR_ERROR_FORMAT, "\"model\" must be an object");
    DR_TRY(dr_json_text(model, "type", &type));
    if (strcmp(type, "BPE") != 0)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "its model is of type %.40s: only BPE is supported, byte-level or with byte fallback", type);
    DR_TRY(dr_json_known(model, keys));
    DR_TRY(refuse_affixes(model));
    DR_TRY(dr_json_boolean(model, "fuse_unk", &bpe->fuse_unknown));
    DR_TRY(dr_json_boolean(model, "byte_fallback", &bpe->byte_fallback));
    DR_TRY(dr_json_boolean(model, "ignore_merges", &bpe->ignore_merges));
    DR_TRY(dr_json_text(model, "unk_token", &unknown));
    DR_TRY(read_vocabulary(model, bpe));
    if (unknown) DR_TRY(dr_copy_string(unknown, &bpe->unknown_text));
    bpe->unknown = unknown ? dr_words_find(&bpe->vocabulary, unknown, strlen(unknown)) : -1;
    DR_TRY(read_merges(model, bpe));
    return dr_bpe_finish(bpe);
}

/* ---- added tokens ---------------------------------------------------------------------------------------------------- */

static dr_status read_added(const json_t *value, dr_added *added) {
    static const char *const keys[] = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special", NULL};
    const char *content = NULL;
    if (!json_is_object(value)) return dr_fail(DR_ERROR_FORMAT, "it must be an object");
    DR_TRY(dr_json_known(value, keys));
    DR_TRY(dr_json_required(value, keys));
    DR_TRY(dr_json_text(value, "content", &content));
    DR_TRY(dr_json_boolean(value, "single_word", &added->single_word));
    DR_TRY(dr_json_boolean(value, "lstrip", &added->left_strip));
    DR_TRY(dr_json_boolean(value, "rstrip", &added->right_strip));
    DR_TRY(dr_json_boolean(value, "normalized", &added->is_normalized));
    DR_TRY(dr_json_boolean(value, "special", &added->special));
    added->content_bytes = strlen(content);
    if (added->content_bytes > LONGEST_TOKEN)
        return dr_fail(DR_ERROR_UNSUPPORTED, "it has %zu bytes: at most %d", added->content_bytes, LONGEST_TOKEN);
    return dr_copy_string(content, &added->content);
}

/* The index of an added token with this content, or -1. */
static int32_t added_with(const dr_words *contents, const dr_added *added) {
    return dr_words_find(contents, added->content, added->content_bytes);
}

/* What an added token is looked for as: its content, normalized if it says so. */
static dr_status normalize_content(const dr_tokenizer *t, dr_searcher *searcher, dr_text buffers[2], dr_added *added) {
    const char *text = added->content;
    size_t bytes = added->content_bytes;
    bool begins = true;
    void *memory;
    if (added->is_normalized) DR_TRY(dr_normalize_all(t, searcher, text, bytes, true, buffers, &text, &bytes, &begins));
    DR_TRY(dr_allocate(bytes + 1, "an added token", &memory));
    added->normalized = memory;
    memcpy(added->normalized, text, bytes);
    added->normalized_bytes = bytes;
    return DR_OK;
}

/* Ids follow the order of the list, not the ids that it writes: a content that the vocabulary has keeps its id, others get the
 * next id from the vocabulary's number of tokens on. So does the original. */
static dr_status give_id(dr_tokenizer *t, const dr_words *contents, dr_added *added, int64_t *next) {
    int32_t old = added_with(contents, added);
    added->id = old >= 0 ? t->added[old].id : dr_words_find(&t->bpe.vocabulary, added->content, added->content_bytes);
    if (added->id < 0) {
        if (*next >= DR_MOST_IDS) return dr_fail(DR_ERROR_UNSUPPORTED, "there are more ids than %d", DR_MOST_IDS);
        added->id = (int32_t)*next;
    }
    if (added->id >= *next) *next = added->id + 1;
    return DR_OK;
}

static dr_status read_added_tokens(const json_t *object, dr_tokenizer *t) {
    const json_t *list = json_object_get(object, "added_tokens");
    if (!list || json_is_null(list)) return DR_OK;
    size_t count = json_array_size(list);
    if (!json_is_array(list) || count > MOST_ADDED)
        return dr_fail(DR_ERROR_FORMAT, "\"added_tokens\" must be a list of at most %d objects", MOST_ADDED);
    dr_searcher *searcher = NULL;
    dr_words contents = {0};
    dr_text buffers[2] = {{0}, {0}};
    void *memory;
    dr_status status;
    int64_t next = (int64_t)t->bpe.vocabulary.count;
    DR_GO(dr_allocate_zero(count * sizeof *t->added, "added tokens", &memory));
    t->added = memory;
    DR_GO(dr_words_create(count, &contents));
    DR_GO(dr_searcher_create(&searcher));
    for (size_t i = 0; i < count; i++) {
        dr_added *added = &t->added[i];
        t->added_count++;
        status = read_added(json_array_get(list, i), added);
        if (status != DR_OK) {
            dr_fail_in(status, "added token %zu", i);
            goto done;
        }
        DR_GO(normalize_content(t, searcher, buffers, added));
        if (added->content_bytes == 0) {
            added->id = -1; /* it is never found */
            continue;
        }
        if (added->normalized_bytes == 0) /* it would be found between all characters; the original fails on most texts */
            DR_GO(dr_fail(DR_ERROR_UNSUPPORTED,
                          "added token %zu, \"%.40s\", is empty once it is normalized: make \"normalized\" false", i,
                          added->content));
        DR_GO(give_id(t, &contents, added, &next));
        DR_GO(dr_words_add(&contents, added->content, added->content_bytes, (int32_t)i));
        DR_GO(dr_trie_add(added->is_normalized ? &t->normalized : &t->raw, added->normalized, added->normalized_bytes,
                          (int32_t)i));
    }
    for (size_t i = 0; i < count; i++) {
        int32_t same = dr_words_find(&contents, t->added[i].normalized, t->added[i].normalized_bytes);
        t->added[i].skipped = same >= 0 && t->added[same].special;
    }
done:
    dr_text_release(&buffers[0]);
    dr_text_release(&buffers[1]);
    dr_searcher_destroy(searcher);
    dr_words_release(&contents);
    return status;
}

/* ---- tokens by their ids --------------------------------------------------------------------------------------------- */

static dr_status list_tokens(dr_tokenizer *t) {
    const dr_words *vocabulary = &t->bpe.vocabulary;
    void *memory;
    for (size_t i = 0; i <= vocabulary->mask; i++)
        if (vocabulary->slots[i].id >= t->size) t->size = vocabulary->slots[i].id + 1;
    for (int32_t i = 0; i < t->added_count; i++)
        if (t->added[i].id >= t->size) t->size = t->added[i].id + 1;
    DR_TRY(dr_allocate((size_t)t->size * sizeof *t->tokens, "tokens", &memory));
    t->tokens = memory;
    for (int64_t id = 0; id < t->size; id++) t->tokens[id] = (struct dr_token){SIZE_MAX, 0, -1};
    for (size_t i = 0; i <= vocabulary->mask; i++) {
        const struct dr_word_slot *slot = &vocabulary->slots[i];
        if (slot->id < 0) continue;
        struct dr_token *token = &t->tokens[slot->id];
        if (token->at != SIZE_MAX)
            return dr_fail(DR_ERROR_FORMAT, "tokens \"%.*s\" and \"%.*s\" have the same id, %d",
                           (int)(token->bytes < 60 ? token->bytes : 60), vocabulary->texts.bytes + token->at,
                           (int)(slot->bytes < 60 ? slot->bytes : 60), vocabulary->texts.bytes + slot->at, slot->id);
        *token = (struct dr_token){slot->at, slot->bytes, -1};
    }
    for (int32_t i = 0; i < t->added_count; i++)
        if (t->added[i].id >= 0) t->tokens[t->added[i].id].added = i;
    return DR_OK;
}

/* Truncation and padding change ids too. */
static dr_status refuse_lengths(const json_t *object) {
    const json_t *truncation = json_object_get(object, "truncation"), *padding = json_object_get(object, "padding");
    if (truncation && !json_is_null(truncation))
        return dr_fail(DR_ERROR_UNSUPPORTED, "\"truncation\" is set: texts would be cut; make it null");
    if (padding && !json_is_null(padding) && json_is_object(json_object_get(padding, "strategy")))
        return dr_fail(DR_ERROR_UNSUPPORTED, "\"padding\" has a fixed length: texts would be filled up; make it null");
    return DR_OK;
}

dr_status dr_tokenizer_read(const json_t *object, dr_tokenizer *t) {
    static const char *const keys[] = {"version",       "truncation",     "padding", "added_tokens", "normalizer",
                                       "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    DR_TRY(dr_json_known(object, keys));
    DR_TRY(refuse_lengths(object));
    dr_classes_fill(&t->classes);
    DR_TRY(dr_read_normalizers(object, t));
    DR_TRY(dr_read_stages(object, t));
    DR_TRY(read_model(object, &t->bpe));
    DR_TRY(read_added_tokens(object, t));
    DR_TRY(list_tokens(t));
    DR_TRY(dr_read_template(object, t));
    return dr_read_decoders(object, t);
}

/* ---- folders --------------------------------------------------------------------------------------------------------- */

/* Roles from a configuration's "bos_token": a text, or an object with "content". */
static void read_roles(const json_t *config, dr_tokenizer *t) {
    static const char *const keys[DR_TOKEN_ROLES] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                                     "sep_token", "cls_token", "mask_token"};
    for (int i = 0; i < DR_TOKEN_ROLES; i++) {
        const json_t *value = json_object_get(config, keys[i]);
        const char *content = json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
        if (content && t->special[i] < 0) t->special[i] = dr_tokenizer_id(t, content, strlen(content));
    }
}

static dr_status read_config(const char *folder, const char *name, dr_tokenizer *t) {
    char path[4096];
    struct stat about;
    json_t *config = NULL;
    if (snprintf(path, sizeof path, "%s%s", folder, name) >= (int)sizeof path || stat(path, &about) != 0) return DR_OK;
    DR_TRY(dr_json_read(path, &config));
    read_roles(config, t);
    json_decref(config);
    return DR_OK;
}

dr_status dr_tokenizer_parse(const char *text, size_t bytes, const char *source, dr_tokenizer **tokenizer) {
    DR_NEED(text);
    DR_NEED(source);
    DR_NEED(tokenizer);
    json_t *object = NULL;
    void *memory = NULL;
    DR_TRY(dr_json_parse_lenient(text, bytes, source, &object));
    dr_status status = dr_allocate_zero(sizeof **tokenizer, "a tokenizer", &memory);
    if (status == DR_OK) {
        dr_tokenizer *made = memory;
        for (int i = 0; i < DR_TOKEN_ROLES; i++) made->special[i] = -1;
        status = dr_tokenizer_read(object, made);
        if (status == DR_OK) {
            *tokenizer = made;
        } else {
            dr_fail_in(status, "%s", source);
            dr_tokenizer_destroy(made);
        }
    }
    json_decref(object);
    return status;
}

dr_status dr_tokenizer_load(const char *path, dr_tokenizer **tokenizer) {
    DR_NEED(path);
    DR_NEED(tokenizer);
    char folder[4096], file[4096 + 16];
    struct stat about;
    char *text = NULL;
    size_t bytes = 0;
    dr_tokenizer *made = NULL;
    if (strlen(path) >= sizeof folder - 32) return dr_fail(DR_ERROR_ARGUMENT, "a path of %zu bytes is too long", strlen(path));
    snprintf(folder, sizeof folder, "%s", path);
    if (stat(path, &about) == 0 && S_ISDIR(about.st_mode)) {
        snprintf(folder, sizeof folder, "%s/", path);
        snprintf(file, sizeof file, "%stokenizer.json", folder);
    } else {
        snprintf(file, sizeof file, "%s", path);
        char *slash = strrchr(folder, '/');
        if (slash)
            slash[1] = '\0';
        else
            folder[0] = '\0';
    }
    DR_TRY(dr_file_read(file, MOST_FILE_BYTES, &text, &bytes));
    dr_status status = dr_tokenizer_parse(text, bytes, file, &made);
    dr_release(text);
    DR_TRY(status);
    status = read_config(folder, "tokenizer_config.json", made);
    if (status == DR_OK) status = read_config(folder, "special_tokens_map.json", made);
    if (status != DR_OK) {
        dr_tokenizer_destroy(made);
        return status;
    }
    *tokenizer = made;
    return DR_OK;
}
