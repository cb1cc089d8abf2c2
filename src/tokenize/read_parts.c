/* tokenizer.json: normalizers, pre-tokenizers, the template and the decoders. Each is one object with a "type", or a Sequence
 * of them, which is read as the list of its members. */
#include "tokenize/tokenizer.h"

#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/utf8.h"

#include <string.h>

enum { DEEPEST = 16, MOST_MEMBERS = 64 };

/* ---- one object or a sequence ---------------------------------------------------------------------------------------- */

typedef dr_status (*member_reader)(const json_t *member, const char *type, dr_tokenizer *t);

/* Calls read for the object, or for each member of a Sequence, whose list stands under `list`. */
static dr_status read_sequence(const json_t *value, const char *list, int depth, member_reader read, dr_tokenizer *t) {
    const char *type = NULL;
    if (!value || json_is_null(value)) return DR_OK;
    if (!json_is_object(value)) return dr_fail(DR_ERROR_FORMAT, "it must be null or an object with a \"type\"");
    DR_TRY(dr_json_text(value, "type", &type));
    if (!type) return dr_fail(DR_ERROR_FORMAT, "it has no \"type\"");
    if (strcmp(type, "Sequence") != 0) {
        dr_status status = read(value, type, t);
        return status == DR_OK ? DR_OK : dr_fail_in(status, "%.40s", type);
    }
    const json_t *members = json_object_get(value, list);
    if (!json_is_array(members)) return dr_fail(DR_ERROR_FORMAT, "Sequence needs a list \"%s\"", list);
    if (depth == DEEPEST) return dr_fail(DR_ERROR_UNSUPPORTED, "Sequences stand in each other deeper than %d", DEEPEST);
    for (size_t i = 0; i < json_array_size(members); i++)
        DR_TRY(read_sequence(json_array_get(members, i), list, depth + 1, read, t));
    return DR_OK;
}

static dr_status read_part(const json_t *object, const char *part, const char *list, member_reader read, dr_tokenizer *t) {
    dr_status status = read_sequence(json_object_get(object, part), list, 0, read, t);
    return status == DR_OK ? DR_OK : dr_fail_in(status, "%s", part);
}

/* Room for one more in an array of at most MOST_MEMBERS; the new one is zeroed. */
static dr_status grow(void **array, int *count, size_t size, void **member) {
    if (*count == MOST_MEMBERS) return dr_fail(DR_ERROR_UNSUPPORTED, "there are more than %d steps", MOST_MEMBERS);
    if (!*array) DR_TRY(dr_allocate_zero(MOST_MEMBERS * size, "steps of a tokenizer", array));
    *member = (char *)*array + (size_t)(*count)++ * size;
    return DR_OK;
}

static dr_status needed_text(const json_t *object, const char *key, const char **text) {
    *text = NULL;
    DR_TRY(dr_json_text(object, key, text));
    return *text ? DR_OK : dr_fail(DR_ERROR_FORMAT, "the key \"%s\" is missing", key);
}

static dr_status needed_boolean(const json_t *object, const char *key, bool *value) {
    const char *const keys[] = {key, NULL};
    DR_TRY(dr_json_required(object, keys));
    return dr_json_boolean(object, key, value);
}

/* "pattern": {"String": s} or {"Regex": r}. An empty text is an expression too: it matches everywhere. */
static dr_status read_pattern(const json_t *object, dr_text *text, dr_pattern **pattern) {
    static const char *const keys[] = {"String", "Regex", NULL};
    const json_t *value = json_object_get(object, "pattern");
    const char *string = NULL, *expression = NULL;
    if (!json_is_object(value) || json_object_size(value) != 1)
        return dr_fail(DR_ERROR_FORMAT, "\"pattern\" must be {\"String\": text} or {\"Regex\": expression}");
    DR_TRY(dr_json_known(value, keys));
    DR_TRY(dr_json_text(value, "String", &string));
    DR_TRY(dr_json_text(value, "Regex", &expression));
    if (!string && !expression)
        return dr_fail(DR_ERROR_FORMAT, "\"pattern\" must be {\"String\": text} or {\"Regex\": expression}");
    if (string && *string) return dr_text_append_string(text, string);
    if (!expression) expression = "";
    DR_TRY(dr_text_append_string(text, expression));
    return dr_pattern_compile(expression, strlen(expression), pattern);
}

/* ---- normalizers ----------------------------------------------------------------------------------------------------- */

static dr_status add_normalizer(dr_tokenizer *t, dr_normalize_kind kind, dr_normalizer **added) {
    void *array = t->normalizers, *member = NULL;
    dr_status status = grow(&array, &t->normalizer_count, sizeof **added, &member);
    t->normalizers = array;
    DR_TRY(status);
    *added = member;
    (*added)->kind = kind;
    return DR_OK;
}

static dr_status read_bert_normalizer(const json_t *member, dr_tokenizer *t) {
    static const char *const keys[] = {"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase", NULL};
    bool clean = true, chinese = true, lower = true;
    dr_normalizer *added;
    DR_TRY(dr_json_known(member, keys));
    DR_TRY(dr_json_boolean(member, "clean_text", &clean));
    DR_TRY(dr_json_boolean(member, "handle_chinese_chars", &chinese));
    DR_TRY(dr_json_boolean(member, "lowercase", &lower));
    bool accents = lower;
    DR_TRY(dr_json_boolean(member, "strip_accents", &accents));
    if (clean) DR_TRY(add_normalizer(t, DR_NORMALIZE_BERT_CLEAN, &added));
    if (chinese) DR_TRY(add_normalizer(t, DR_NORMALIZE_BERT_CHINESE, &added));
    if (accents) DR_TRY(add_normalizer(t, DR_NORMALIZE_NFD, &added));
    if (accents) DR_TRY(add_normalizer(t, DR_NORMALIZE_STRIP_MN, &added));
    return lower ? add_normalizer(t, DR_NORMALIZE_LOWERCASE, &added) : DR_OK;
}

static dr_status read_normalizer(const json_t *member, const char *type, dr_tokenizer *t) {
    static const char *const types[] = {"NFC",       "NFD",          "NFKC",    "NFKD",    "Lowercase",
                                        "Strip",     "StripAccents", "Replace", "Prepend", "BertNormalizer",
                                        "ByteLevel", "Sequence",     NULL};
    static const struct {
        const char *type;
        dr_normalize_kind kind;
        const char *keys[4];
    } simple[] = {{"NFC", DR_NORMALIZE_NFC, {"type"}},
                  {"NFD", DR_NORMALIZE_NFD, {"type"}},
                  {"NFKC", DR_NORMALIZE_NFKC, {"type"}},
                  {"NFKD", DR_NORMALIZE_NFKD, {"type"}},
                  {"Lowercase", DR_NORMALIZE_LOWERCASE, {"type"}},
                  {"StripAccents", DR_NORMALIZE_STRIP_ACCENTS, {"type"}},
                  {"ByteLevel", DR_NORMALIZE_BYTE_LEVEL, {"type"}},
                  {"Strip", DR_NORMALIZE_STRIP, {"type", "strip_left", "strip_right"}},
                  {"Replace", DR_NORMALIZE_REPLACE, {"type", "pattern", "content"}},
                  {"Prepend", DR_NORMALIZE_PREPEND, {"type", "prepend"}}};
    const char *text;
    dr_normalizer *added;
    if (strcmp(type, "BertNormalizer") == 0) return read_bert_normalizer(member, t);
    for (size_t i = 0; i < sizeof simple / sizeof simple[0]; i++) {
        if (strcmp(type, simple[i].type) != 0) continue;
        DR_TRY(dr_json_known(member, simple[i].keys));
        DR_TRY(add_normalizer(t, simple[i].kind, &added));
        switch (simple[i].kind) {
        case DR_NORMALIZE_STRIP:
            DR_TRY(needed_boolean(member, "strip_left", &added->left));
            return needed_boolean(member, "strip_right", &added->right);
        case DR_NORMALIZE_REPLACE:
            DR_TRY(read_pattern(member, &added->find, &added->pattern));
            DR_TRY(needed_text(member, "content", &text));
            return dr_text_append_string(&added->content, text);
        case DR_NORMALIZE_PREPEND:
            DR_TRY(needed_text(member, "prepend", &text));
            return dr_text_append_string(&added->content, text);
        case DR_NORMALIZE_NFC:
        case DR_NORMALIZE_NFD:
        case DR_NORMALIZE_NFKC:
        case DR_NORMALIZE_NFKD:
        case DR_NORMALIZE_LOWERCASE:
        case DR_NORMALIZE_STRIP_ACCENTS:
        case DR_NORMALIZE_STRIP_MN:
        case DR_NORMALIZE_BERT_CLEAN:
        case DR_NORMALIZE_BERT_CHINESE:
        case DR_NORMALIZE_BYTE_LEVEL:
            return DR_OK;
        }
    }
    return dr_json_fail_unknown("type", type, types);
}

dr_status dr_read_normalizers(const json_t *object, dr_tokenizer *t) {
    return read_part(object, "normalizer", "normalizers", read_normalizer, t);
}

/* ---- pre-tokenizers -------------------------------------------------------------------------------------------------- */

static dr_status add_stage(dr_tokenizer *t, dr_stage **added) {
    void *array = t->stages, *member = NULL;
    dr_status status = grow(&array, &t->stage_count, sizeof **added, &member);
    t->stages = array;
    DR_TRY(status);
    *added = member;
    return DR_OK;
}

static dr_status add_characters(dr_tokenizer *t, bool (*is)(uint32_t), dr_behavior behavior) {
    dr_stage *stage;
    DR_TRY(add_stage(t, &stage));
    stage->match = DR_MATCH_CHARACTER;
    stage->is = is;
    stage->behavior = behavior;
    return DR_OK;
}

static dr_status read_behavior(const json_t *member, dr_behavior *behavior) {
    static const char *const names[] = {[DR_ISOLATED] = "Isolated",
                                        [DR_REMOVED] = "Removed",
                                        [DR_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
                                        [DR_MERGED_WITH_NEXT] = "MergedWithNext",
                                        [DR_CONTIGUOUS] = "Contiguous",
                                        NULL};
    const char *name;
    DR_TRY(needed_text(member, "behavior", &name));
    for (int i = 0; names[i]; i++)
        if (strcmp(name, names[i]) == 0) {
            *behavior = (dr_behavior)i;
            return DR_OK;
        }
    return dr_json_fail_unknown("behavior", name, names);
}

static dr_status read_split(const json_t *member, dr_tokenizer *t) {
    static const char *const keys[] = {"type", "pattern", "behavior", "invert", NULL};
    dr_stage *stage;
    DR_TRY(dr_json_known(member, keys));
    DR_TRY(add_stage(t, &stage));
    stage->match = DR_MATCH_TEXT;
    DR_TRY(read_pattern(member, &stage->text, &stage->pattern));
    if (stage->pattern) {
        stage->scanner = dr_scanner_of(stage->text.bytes, stage->text.count);
        stage->match = stage->scanner ? DR_MATCH_SCAN : DR_MATCH_PATTERN;
    }
    DR_TRY(read_behavior(member, &stage->behavior));
    return needed_boolean(member, "invert", &stage->invert);
}

static dr_status read_byte_level(const json_t *member, dr_tokenizer *t) {
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex", NULL};
    bool expression = true;
    dr_stage *stage;
    DR_TRY(dr_json_known(member, keys));
    DR_TRY(add_stage(t, &stage));
    DR_TRY(needed_boolean(member, "add_prefix_space", &stage->space));
    DR_TRY(dr_json_boolean(member, "use_regex", &expression));
    stage->match = expression ? DR_MATCH_SCAN : DR_MATCH_NOTHING;
    stage->scanner = dr_scan_gpt2;
    stage->behavior = DR_ISOLATED;
    stage->alphabet = true;
    return DR_OK;
}

static dr_status read_scheme(const json_t *member, dr_prepend *prepend) {
    static const char *const names[] = {
        [DR_PREPEND_NEVER] = "never", [DR_PREPEND_FIRST] = "first", [DR_PREPEND_ALWAYS] = "always", NULL};
    const char *name = "always";
    bool space = true;
    DR_TRY(dr_json_text(member, "prepend_scheme", &name));
    DR_TRY(dr_json_boolean(member, "add_prefix_space", &space)); /* of older files */
    for (int i = 0; names[i]; i++)
        if (strcmp(name, names[i]) == 0) {
            *prepend = (dr_prepend)i;
            if (!space && *prepend != DR_PREPEND_NEVER)
                return dr_fail(DR_ERROR_FORMAT, "\"add_prefix_space\" false and \"prepend_scheme\" \"%s\" do not agree", name);
            return DR_OK;
        }
    return dr_json_fail_unknown("prepend_scheme", name, names);
}

static dr_status read_mark(const json_t *member, dr_text *mark) {
    const char *text;
    size_t length = 0;
    DR_TRY(needed_text(member, "replacement", &text));
    if (*text) dr_utf8_character(text, &length);
    if (!*text || text[length]) return dr_fail(DR_ERROR_FORMAT, "\"replacement\" must be one character");
    return dr_text_append(mark, text, length);
}

static dr_status read_metaspace(const json_t *member, dr_tokenizer *t) {
    static const char *const keys[] = {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep", NULL};
    bool split = true;
    dr_stage *stage;
    DR_TRY(dr_json_known(member, keys));
    DR_TRY(add_stage(t, &stage));
    DR_TRY(read_mark(member, &stage->mark));
    DR_TRY(read_scheme(member, &stage->prepend));
    DR_TRY(dr_json_boolean(member, "split", &split));
    stage->match = split ? DR_MATCH_TEXT : DR_MATCH_NOTHING;
    stage->behavior = DR_MERGED_WITH_NEXT;
    return dr_text_append(&stage->text, stage->mark.bytes, stage->mark.count);
}

static dr_status read_digits(const json_t *member, dr_tokenizer *t) {
    static const char *const keys[] = {"type", "individual_digits", NULL};
    bool individual = false;
    DR_TRY(dr_json_known(member, keys));
    DR_TRY(needed_boolean(member, "individual_digits", &individual));
    return add_characters(t, dr_is_number, individual ? DR_ISOLATED : DR_CONTIGUOUS);
}

static dr_status read_punctuation(const json_t *member, dr_tokenizer *t) {
    static const char *const keys[] = {"type", "behavior", NULL};
    dr_behavior behavior = DR_ISOLATED;
    DR_TRY(dr_json_known(member, keys));
    if (json_object_get(member, "behavior")) DR_TRY(read_behavior(member, &behavior));
    return add_characters(t, dr_is_punctuation, behavior);
}

static dr_status read_delimiter(const json_t *member, dr_tokenizer *t) {
    static const char *const keys[] = {"type", "delimiter", NULL};
    const char *text;
    dr_stage *stage;
    DR_TRY(dr_json_known(member, keys));
    DR_TRY(needed_text(member, "delimiter", &text));
    if (!*text) return dr_fail(DR_ERROR_FORMAT, "\"delimiter\" must be one character");
    DR_TRY(add_stage(t, &stage));
    stage->match = DR_MATCH_TEXT;
    stage->behavior = DR_REMOVED;
    return dr_text_append_string(&stage->text, text);
}

static dr_status read_stage(const json_t *member, const char *type, dr_tokenizer *t) {
    static const char *const types[] = {
        "Split",           "ByteLevel",        "Metaspace",          "Digits",   "Punctuation", "Whitespace",
        "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit", "Sequence", NULL};
    static const char *const only_type[] = {"type", NULL};
    if (strcmp(type, "Split") == 0) return read_split(member, t);
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(member, t);
    if (strcmp(type, "Metaspace") == 0) return read_metaspace(member, t);
    if (strcmp(type, "Digits") == 0) return read_digits(member, t);
    if (strcmp(type, "Punctuation") == 0) return read_punctuation(member, t);
    if (strcmp(type, "CharDelimiterSplit") == 0) return read_delimiter(member, t);
    const bool words = strcmp(type, "Whitespace") == 0, bert = strcmp(type, "BertPreTokenizer") == 0;
    if (!words && !bert && strcmp(type, "WhitespaceSplit") != 0) return dr_json_fail_unknown("type", type, types);
    DR_TRY(dr_json_known(member, only_type));
    DR_TRY(add_characters(t, dr_is_space, DR_REMOVED));
    if (bert) return add_characters(t, dr_is_punctuation, DR_ISOLATED);
    if (!words) return DR_OK;
    dr_stage *stage;
    DR_TRY(add_stage(t, &stage));
    stage->match = DR_MATCH_SCAN;
    stage->scanner = dr_scan_words;
    return DR_OK;
}

/* If the last stage is ByteLevel, words go to the model as bytes, without the detour over the alphabet. */
dr_status dr_read_stages(const json_t *object, dr_tokenizer *t) {
    DR_TRY(read_part(object, "pre_tokenizer", "pretokenizers", read_stage, t));
    dr_stage *last = t->stage_count > 0 ? &t->stages[t->stage_count - 1] : NULL;
    if (!last || !last->alphabet) return DR_OK;
    last->alphabet = false;
    t->bpe.byte_level = true;
    return DR_OK;
}

/* ---- the template ---------------------------------------------------------------------------------------------------- */

/* Puts ids where the template so far has its text: {before, text, behind}. */
static dr_status surround(dr_tokenizer *t, const dr_ids *template) {
    dr_ids old = t->around;
    dr_status status = DR_OK;
    t->around = (dr_ids){0};
    for (size_t i = 0; i < template->count && status == DR_OK; i++)
        status =
            template->at[i] < 0 ? dr_ids_append(&t->around, old.at, old.count) : dr_ids_append(&t->around, &template->at[i], 1);
    if (status == DR_OK && t->around.count > 4096)
        status = dr_fail(DR_ERROR_UNSUPPORTED, "the template has more than 4096 parts");
    dr_ids_release(&old);
    return status;
}

static dr_status append_special(const json_t *specials, const char *name, dr_tokenizer *t, dr_ids *template) {
    const json_t *ids = json_object_get(json_object_get(specials, name), "ids");
    if (!json_is_array(ids)) return dr_fail(DR_ERROR_FORMAT, "\"special_tokens\" has no ids of \"%.80s\"", name);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        if (!json_is_integer(json_array_get(ids, i)) || id < 0 || id >= t->size)
            return dr_fail(DR_ERROR_FORMAT, "id %zu of \"%.80s\" is none of the vocabulary's", i, name);
        DR_TRY(dr_ids_append(template, &(int32_t){(int32_t)id}, 1));
    }
    return DR_OK;
}

static dr_status template_element(const json_t *element, const json_t *specials, dr_tokenizer *t, dr_ids *template) {
    const char *name = json_string_value(json_object_get(json_object_get(element, "SpecialToken"), "id"));
    const char *sequence = json_string_value(json_object_get(json_object_get(element, "Sequence"), "id"));
    if (name) return append_special(specials, name, t, template);
    if (!sequence || strcmp(sequence, "A") != 0)
        return dr_fail(DR_ERROR_FORMAT, "a part of \"single\" is neither a SpecialToken nor the Sequence A");
    return dr_ids_append(template, &(int32_t){-1}, 1);
}

static dr_status read_template(const json_t *member, dr_tokenizer *t) {
    static const char *const keys[] = {"type", "single", "pair", "special_tokens", NULL};
    const json_t *single = json_object_get(member, "single");
    dr_ids template = {0};
    dr_status status;
    bool text = false;
    DR_TRY(dr_json_known(member, keys));
    if (!json_is_array(single)) return dr_fail(DR_ERROR_FORMAT, "\"single\" must be a list");
    DR_GO(dr_ids_reserve(&template, 1));
    for (size_t i = 0; i < json_array_size(single); i++)
        DR_GO(template_element(json_array_get(single, i), json_object_get(member, "special_tokens"), t, &template));
    for (size_t i = 0; i < template.count; i++) text |= template.at[i] < 0;
    if (!text) DR_GO(dr_fail(DR_ERROR_FORMAT, "\"single\" does not have the Sequence A"));
    DR_GO(surround(t, &template));
done:
    dr_ids_release(&template);
    return status;
}

/* "cls": ["[CLS]", 101] of Bert's and Roberta's. */
static dr_status read_pair(const json_t *member, const char *key, dr_tokenizer *t, int32_t *id) {
    const json_t *value = json_array_get(json_object_get(member, key), 1);
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 0 || number >= t->size)
        return dr_fail(DR_ERROR_FORMAT, "\"%s\" must be [token, id] with an id of the vocabulary", key);
    *id = (int32_t)number;
    return DR_OK;
}

static dr_status read_processor(const json_t *member, const char *type, dr_tokenizer *t) {
    static const char *const types[] = {"TemplateProcessing", "ByteLevel", "BertProcessing",
                                        "RobertaProcessing",  "Sequence",  NULL};
    int32_t around[3] = {0, -1, 0};
    if (strcmp(type, "ByteLevel") == 0) return DR_OK; /* offsets only */
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(member, t);
    if (strcmp(type, "BertProcessing") != 0 && strcmp(type, "RobertaProcessing") != 0)
        return dr_json_fail_unknown("type", type, types);
    DR_TRY(read_pair(member, "cls", t, &around[0]));
    DR_TRY(read_pair(member, "sep", t, &around[2]));
    return surround(t, &(dr_ids){around, 3, 3});
}

dr_status dr_read_template(const json_t *object, dr_tokenizer *t) {
    DR_TRY(dr_ids_append(&t->around, &(int32_t){-1}, 1));
    return read_part(object, "post_processor", "processors", read_processor, t);
}

/* ---- decoders -------------------------------------------------------------------------------------------------------- */

static dr_status read_strip(const json_t *member, dr_decoder_stage *stage) {
    static const char *const keys[] = {"type", "content", "start", "stop", NULL};
    const char *text;
    size_t length = 0;
    DR_TRY(dr_json_known(member, keys));
    DR_TRY(dr_json_required(member, keys));
    DR_TRY(needed_text(member, "content", &text));
    if (*text) stage->strip = dr_utf8_character(text, &length);
    if (!*text || text[length]) return dr_fail(DR_ERROR_FORMAT, "\"content\" must be one character");
    DR_TRY(dr_json_integer(member, "start", 0, INT32_MAX, &stage->start));
    return dr_json_integer(member, "stop", 0, INT32_MAX, &stage->stop);
}

static dr_status read_decoder(const json_t *member, const char *type, dr_tokenizer *t) {
    static const char *const types[] = {[DR_DECODER_BYTE_LEVEL] = "ByteLevel",
                                        [DR_DECODER_REPLACE] = "Replace",
                                        [DR_DECODER_BYTE_FALLBACK] = "ByteFallback",
                                        [DR_DECODER_FUSE] = "Fuse",
                                        [DR_DECODER_STRIP] = "Strip",
                                        [DR_DECODER_METASPACE] = "Metaspace",
                                        "Sequence",
                                        NULL};
    static const char *const replace_keys[] = {"type", "pattern", "content", NULL};
    const char *text;
    dr_decoder_stage *stage;
    dr_prepend prepend;
    int kind = 0;
    while (kind <= DR_DECODER_METASPACE && strcmp(type, types[kind]) != 0) kind++;
    if (kind > DR_DECODER_METASPACE) return dr_json_fail_unknown("type", type, types);
    void *array = t->decoders, *added = NULL;
    dr_status status = grow(&array, &t->decoder_count, sizeof *stage, &added);
    t->decoders = array;
    DR_TRY(status);
    stage = added;
    stage->kind = (dr_decoder_kind)kind;
    switch (stage->kind) {
    case DR_DECODER_REPLACE:
        DR_TRY(dr_json_known(member, replace_keys));
        stage->replace.kind = DR_NORMALIZE_REPLACE;
        DR_TRY(read_pattern(member, &stage->replace.find, &stage->replace.pattern));
        DR_TRY(needed_text(member, "content", &text));
        return dr_text_append_string(&stage->replace.content, text);
    case DR_DECODER_STRIP:
        return read_strip(member, stage);
    case DR_DECODER_METASPACE:
        DR_TRY(read_mark(member, &stage->replace.find));
        DR_TRY(read_scheme(member, &prepend));
        stage->keeps_first = prepend == DR_PREPEND_NEVER;
        return DR_OK;
    case DR_DECODER_BYTE_LEVEL:
    case DR_DECODER_BYTE_FALLBACK:
    case DR_DECODER_FUSE:
        return DR_OK;
    }
    return DR_OK;
}

dr_status dr_read_decoders(const json_t *object, dr_tokenizer *t) {
    const json_t *decoder = json_object_get(object, "decoder");
    t->has_decoder = decoder && !json_is_null(decoder);
    return read_part(object, "decoder", "decoders", read_decoder, t);
}
