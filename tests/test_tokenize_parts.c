/* Parts of tokenizers without recorded files: scanners against their expressions, merging and learning against plain loops, and
 * by hand what a tokenizer.json may ask for. */
#include "base/random.h"
#include "scratch.h"
#include "statuses.h"
#include "tokenize/pattern.h"
#include "tokenize/scan.h"

#include <deltarule/tokenizer.h>

#include <jansson.h>

/* ---- scanners -------------------------------------------------------------------------------------------------------- */

/* Letters of contractions in both cases and the long s, a letter and its accent, digits, signs, blanks of all kinds. */
static const char *const pieces[] = {"a",
                                     "e",
                                     "s",
                                     "S",
                                     "t",
                                     "l",
                                     "L",
                                     "r",
                                     "v",
                                     "d",
                                     "'",
                                     "\xc5\xbf",
                                     "\xc3\xa9",
                                     "\xcc\x81",
                                     "1",
                                     "23",
                                     "\xd9\xa3",
                                     "\xe4\xb8\xad",
                                     "!",
                                     "-",
                                     "_",
                                     " ",
                                     "  ",
                                     "\t",
                                     "\n",
                                     "\r\n",
                                     "\xc2\xa0",
                                     "\xe3\x80\x80",
                                     "\xf0\x9f\x99\x82"};

/* Every scanner cuts random texts where its expression does. */
static void test_scanners(void **state) {
    (void)state;
    enum { PIECES = sizeof pieces / sizeof *pieces, TEXTS = 3000, MOST = 16 };
    static dr_classes classes;
    dr_classes_fill(&classes);
    int scanners = 0;
    for (const char *expression; (expression = dr_scanner_expression(scanners)); scanners++) {
        dr_random random = dr_random_start(5, (uint64_t)scanners);
        dr_scanner scan = dr_scanner_of(expression, strlen(expression));
        dr_pattern *pattern;
        dr_searcher *searcher;
        assert_non_null(scan);
        must(dr_pattern_compile(expression, strlen(expression), &pattern));
        must(dr_searcher_create(&searcher));
        for (int i = 0; i < TEXTS; i++) {
            char text[8 * MOST] = "";
            for (uint64_t count = 1 + dr_random_below(&random, MOST); count > 0; count--)
                strcat(text, pieces[dr_random_below(&random, PIECES)]);
            const size_t bytes = strlen(text);
            for (size_t at = 0, end; at < bytes; at = end) {
                size_t found_start, found_end;
                bool found;
                end = scan(&classes, text, bytes, at);
                must(dr_pattern_search(pattern, searcher, text, bytes, at, &found, &found_start, &found_end));
                if (!found || found_start != at || found_end != end)
                    fail_msg("%s cuts \"%s\" at %zu to %zu, its scanner to %zu", expression, text, found_start, found_end, end);
            }
        }
        dr_searcher_destroy(searcher);
        dr_pattern_destroy(pattern);
    }
    assert_true(scanners >= 5);
}

/* ---- tokenizers by hand ---------------------------------------------------------------------------------------------- */

/* A tokenizer of a model's members and of other members, each with its comma. */
static dr_status parse(const char *model, const char *others, dr_tokenizer **tokenizer) {
    char text[8192];
    int length = snprintf(text, sizeof text, "{%s \"model\": {\"type\": \"BPE\", %s}}", others, model);
    assert_true(length > 0 && length < (int)sizeof text);
    return dr_tokenizer_parse(text, (size_t)length, "by hand", tokenizer);
}

static void assert_ids_of(dr_encoder *encoder, const char *text, size_t count, const int32_t *expected) {
    const int32_t *ids;
    size_t found;
    must(dr_encoder_encode(encoder, text, strlen(text), true, &ids, &found));
    bool same = found == count && memcmp(ids, expected, count * sizeof *ids) == 0;
    if (!same) {
        for (size_t i = 0; i < found; i++) print_error("%d ", ids[i]);
        fail_msg("are the %zu ids of \"%s\", not the %zu of which the first is %d", found, text, count, expected[0]);
    }
}

static void assert_ids(const char *model, const char *others, const char *text, size_t count, const int32_t *expected) {
    dr_tokenizer *tokenizer;
    dr_encoder *encoder;
    must(parse(model, others, &tokenizer));
    must(dr_encoder_create(tokenizer, &encoder));
    assert_ids_of(encoder, text, count, expected);
    dr_encoder_destroy(encoder);
    dr_tokenizer_destroy(tokenizer);
}

#define IDS(...)                                                                                                               \
    sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t), (int32_t[]) {                                                          \
        __VA_ARGS__                                                                                                            \
    }

/* A character without a token: unk_token once for each or for all in a row; its bytes' tokens if all are there. */
static void test_missing(void **state) {
    (void)state;
    const char *apart = "\"unk_token\": \"u\", \"vocab\": {\"u\": 0, \"b\": 1}, \"merges\": []";
    const char *fused = "\"unk_token\": \"u\", \"fuse_unk\": true, \"vocab\": {\"u\": 0, \"b\": 1}, \"merges\": []";
    assert_ids(apart, "",
               "\xe2\x98\x83\xe2\x98\x83"
               "b",
               IDS(0, 0, 1));
    assert_ids(fused, "",
               "\xe2\x98\x83\xe2\x98\x83"
               "b\xe2\x98\x83",
               IDS(0, 1, 0));
    const char *all = "\"unk_token\": \"u\", \"byte_fallback\": true, \"merges\": [], "
                      "\"vocab\": {\"u\": 0, \"<0xC3>\": 1, \"<0xA9>\": 2, \"<0xFF>\": 3, \"<0xFE>\": 4, \"a\": 5}";
    const char *some = "\"unk_token\": \"u\", \"byte_fallback\": true, \"merges\": [], \"vocab\": {\"u\": 0, \"<0xC3>\": 1}";
    assert_ids(all, "", "\xc3\xa9", IDS(1, 2));
    assert_ids(some, "", "\xc3\xa9", IDS(0));
    assert_ids(all, "",
               "\xff\xfe"
               "a\xfe",
               IDS(3, 4, 5, 4)); /* no UTF-8: each byte its token */
}

/* Texts with marks are cut before a mark to be looked up word by word, but not where a token lies over the cut. */
static void test_cuts(void **state) {
    (void)state;
    const char *model =
        "\"vocab\": {\"a\": 0, \"b\": 1, \"\u2581\": 2, \"a\u2581\": 3, \"a\u2581b\": 4, \"\u2581b\": 5, \"\u00e9\": 6, "
        "\"\u00e9\u2581\": 7}, \"merges\": [[\"a\", \"\u2581\"], [\"a\u2581\", \"b\"], [\"\u2581\", \"b\"], "
        "[\"\u00e9\", \"\u2581\"]]";
    assert_ids(model, "", "a\u2581b", IDS(4));
    assert_ids(model, "", "b\u2581b", IDS(1, 5));
    assert_ids(model, "", "\u00e9\u2581b", IDS(6, 5));
    assert_ids(model, "", "b\u2581b\u2581a\u2581", IDS(1, 5, 2, 3));
}

/* An expression that may match nothing cuts where it does, but not right behind another match. */
static void test_empty_matches(void **state) {
    (void)state;
    const char *model = "\"vocab\": {\"a\": 0, \"x\": 1, \"b\": 2, \"ax\": 3, \"xx\": 4, \"xb\": 5, \"ab\": 6}, "
                        "\"merges\": [[\"a\", \"x\"], [\"x\", \"x\"], [\"x\", \"b\"], [\"a\", \"b\"]]";
    const char *split =
        "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"x*\"}, \"behavior\": \"Isolated\", "
        "\"invert\": false},";
    assert_ids(model, "", "axxb", IDS(3, 5));
    assert_ids(model, split, "axxb", IDS(0, 4, 2));
    assert_ids(model, split, "ab", IDS(0, 2));
}

/* What each switch of a normalizer takes away: the letters that are left show it. */
static void test_normalizers(void **state) {
    (void)state;
    const char *model = "\"unk_token\": \"u\", \"vocab\": {\"u\": 0, \"a\": 1, \"A\": 2, \"\u00e9\": 3, \"e\": 4, \" \": 5}, "
                        "\"merges\": []";
#define BERT(clean, accents, lower)                                                                                            \
    "\"normalizer\": {\"type\": \"BertNormalizer\", \"clean_text\": " clean ", \"handle_chinese_chars\": false, "              \
    "\"strip_accents\": " accents ", \"lowercase\": " lower "},"
    assert_ids(model, BERT("false", "null", "true"), "A\u00e9", IDS(1, 4)); /* accents go with capitals, unless it is said */
    assert_ids(model, BERT("false", "null", "false"), "A\u00e9", IDS(2, 3));
    assert_ids(model, BERT("false", "false", "true"), "A\u00e9", IDS(1, 3));
    assert_ids(model, BERT("false", "true", "false"), "A\u00e9", IDS(2, 4));
    assert_ids(model, BERT("false", "false", "false"), "a\x01\ta", IDS(1, 0, 0, 1));
    assert_ids(model, BERT("true", "false", "false"), "a\x01\ta", IDS(1, 5, 1)); /* no control characters, blanks for tabs */
#define STRIP(left, right) "\"normalizer\": {\"type\": \"Strip\", \"strip_left\": " left ", \"strip_right\": " right "},"
    assert_ids(model, STRIP("true", "false"), " a ", IDS(1, 5));
    assert_ids(model, STRIP("false", "true"), " a ", IDS(5, 1));
    assert_ids(model, STRIP("true", "true"), " a ", IDS(1));
    assert_ids(model, STRIP("false", "false"), " a ", IDS(5, 1, 5));
}

static void test_metaspace_decoder(void **state) {
    (void)state;
    static const struct { const char *scheme, *text; } cases[] = {{"always", "a b"}, {"first", "a b"}, {"never", " a b"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char decoder_json[160];
        dr_tokenizer *tokenizer;
        dr_decoder *decoder;
        const char *text;
        size_t bytes;
        snprintf(
            decoder_json, sizeof decoder_json,
            "\"decoder\": {\"type\": \"Metaspace\", \"replacement\": \"\u2581\", \"prepend_scheme\": \"%s\", \"split\": true},",
            cases[i].scheme);
        must(parse("\"vocab\": {\"\u2581a\": 0, \"\u2581b\": 1}, \"merges\": []", decoder_json, &tokenizer));
        must(dr_decoder_create(tokenizer, 0, &decoder));
        must(dr_decoder_decode(decoder, (int32_t[]){0, 1}, 2, &text, &bytes));
        if (bytes != strlen(cases[i].text) || memcmp(text, cases[i].text, bytes) != 0)
            fail_msg("\"%.*s\" instead of \"%s\"", (int)bytes, text, cases[i].text);
        dr_decoder_destroy(decoder);
        dr_tokenizer_destroy(tokenizer);
    }
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *model, *others;
        dr_status status;
        const char *words;
    } cases[] = {
        {"\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [[\"a\", \"b\"]]", "", DR_ERROR_FORMAT, "makes \"ab\""},
        {"\"vocab\": {\"a\": 0, \"ab\": 1}, \"merges\": [[\"a\", \"b\"]]", "", DR_ERROR_FORMAT, "has \"b\""},
        {"\"vocab\": {\"a\": 0}, \"merges\": [[\"a\"]]", "", DR_ERROR_FORMAT, "two tokens"},
        {"\"vocab\": {\"a\": 0}, \"merges\": []",
         "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[z-a]\"}, \"behavior\": \"Isolated\", "
         "\"invert\": false},",
         DR_ERROR_FORMAT, "backwards"},
        {"\"vocab\": {\"a\": 0}, \"merges\": []",
         "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a\"}, \"behavior\": \"Isolated\", \"invert\": "
         "false},",
         DR_ERROR_FORMAT, ""},
        {"\"vocab\": {\"a\": 0}, \"merges\": []", "\"pre_tokenizer\": {\"type\": \"Nonsense\"},", DR_ERROR_FORMAT, "Nonsense"},
        {"\"vocab\": {\"a\": 0}, \"merges\": []",
         "\"normalizer\": {\"type\": \"Strip\", \"strip_left\": true, \"strip_right\": true}, \"added_tokens\": [{\"id\": 1, "
         "\"content\": \" \", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": true, \"special\": "
         "false}],",
         DR_ERROR_UNSUPPORTED, "is empty once it is normalized"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dr_tokenizer *none;
        assert_refused(parse(cases[i].model, cases[i].others, &none), cases[i].status, cases[i].words);
    }
}

/* ---- merging --------------------------------------------------------------------------------------------------------- */

enum { LETTERS = 3, MERGES = 40, MOST_LETTERS = 200 };

typedef struct {
    int left[MERGES], right[MERGES], made[MERGES]; /* by rank */
    int merges, tokens;
    char token[LETTERS + MERGES][64];
} merging;

static int token_of(const merging *m, const char *text) {
    for (int i = 0; i < m->tokens; i++)
        if (strcmp(m->token[i], text) == 0) return i;
    return -1;
}

/* Random merges of tokens that are there. Two pairs may make the same token. */
static void draw_merges(dr_random *random, merging *m) {
    *m = (merging){.tokens = LETTERS};
    for (int i = 0; i < LETTERS; i++) m->token[i][0] = (char)('a' + i);
    while (m->merges < MERGES) {
        const int left = (int)dr_random_below(random, (uint64_t)m->tokens),
                  right = (int)dr_random_below(random, (uint64_t)m->tokens);
        char joined[128];
        bool known = false;
        snprintf(joined, sizeof joined, "%s%s", m->token[left], m->token[right]);
        for (int i = 0; i < m->merges; i++) known |= m->left[i] == left && m->right[i] == right;
        if (known || strlen(joined) >= 12) continue;
        int made = token_of(m, joined);
        if (made < 0) memcpy(m->token[made = m->tokens++], joined, strlen(joined) + 1);
        m->left[m->merges] = left, m->right[m->merges] = right, m->made[m->merges++] = made;
    }
}

/* The definition: of the pairs of the lowest rank the leftmost is merged, until there is none. */
static size_t merge_plainly(const merging *m, const char *text, int32_t *ids) {
    size_t count = strlen(text);
    for (size_t i = 0; i < count; i++) ids[i] = text[i] - 'a';
    for (int rank = 0; rank < m->merges;) {
        size_t at = 0;
        while (at + 1 < count && (ids[at] != m->left[rank] || ids[at + 1] != m->right[rank])) at++;
        if (at + 1 >= count) {
            rank++;
            continue;
        }
        ids[at] = m->made[rank];
        memmove(ids + at + 1, ids + at + 2, (count - at - 2) * sizeof *ids);
        count--;
        rank = 0;
    }
    return count;
}

static dr_tokenizer *tokenizer_of(const merging *m) {
    json_t *vocabulary = json_object(), *merges = json_array();
    for (int i = 0; i < m->tokens; i++) json_object_set_new(vocabulary, m->token[i], json_integer(i));
    for (int i = 0; i < m->merges; i++)
        json_array_append_new(merges, json_pack("[s, s]", m->token[m->left[i]], m->token[m->right[i]]));
    json_t *file = json_pack("{s:{s:s, s:o, s:o}}", "model", "type", "BPE", "vocab", vocabulary, "merges", merges);
    char *text = json_dumps(file, JSON_COMPACT);
    dr_tokenizer *tokenizer;
    must(dr_tokenizer_parse(text, strlen(text), "by hand", &tokenizer));
    free(text);
    json_decref(file);
    return tokenizer;
}

static void draw_text(dr_random *random, size_t length, char *text) {
    for (size_t i = 0; i < length; i++) text[i] = (char)('a' + dr_random_below(random, LETTERS));
    text[length] = '\0';
}

/* Short words, long ones and those between, each for the first time and from the cache. */
static void test_merging(void **state) {
    (void)state;
    dr_random random = dr_random_start(8, 0);
    for (int vocabulary = 0; vocabulary < 6; vocabulary++) {
        merging m;
        char text[MOST_LETTERS + 1];
        int32_t expected[MOST_LETTERS];
        dr_encoder *encoder;
        draw_merges(&random, &m);
        dr_tokenizer *tokenizer = tokenizer_of(&m);
        must(dr_encoder_create(tokenizer, &encoder));
        for (int i = 0; i < 600; i++) {
            if (i % 10 == 0) /* one letter again and again: pairs that overlap */
                memset(text, 'a', MOST_LETTERS), text[1 + dr_random_below(&random, 99)] = '\0';
            else
                draw_text(&random, 1 + dr_random_below(&random, i % 3 ? 60 : MOST_LETTERS), text);
            const size_t count = merge_plainly(&m, text, expected);
            for (int again = 0; again < 2; again++) assert_ids_of(encoder, text, count, expected);
        }
        dr_encoder_destroy(encoder);
        dr_tokenizer_destroy(tokenizer);
    }
}

/* So many words of one length that many lie beside each other in the cache. */
static void test_cache(void **state) {
    (void)state;
    enum { LENGTH = 9, WORDS = 19683 }; /* 3^9 */
    dr_random random = dr_random_start(8, 1);
    merging m;
    dr_encoder *encoder;
    draw_merges(&random, &m);
    dr_tokenizer *tokenizer = tokenizer_of(&m);
    must(dr_encoder_create(tokenizer, &encoder));
    for (int again = 0; again < 2; again++)
        for (int word = 0; word < WORDS; word++) {
            char text[LENGTH + 1] = "";
            int32_t expected[LENGTH];
            for (int i = 0, left = word; i < LENGTH; i++, left /= LETTERS) text[i] = (char)('a' + left % LETTERS);
            const size_t count = merge_plainly(&m, text, expected);
            assert_ids_of(encoder, text, count, expected);
        }
    dr_encoder_destroy(encoder);
    dr_tokenizer_destroy(tokenizer);
}

/* ---- learning -------------------------------------------------------------------------------------------------------- */

enum { WORDS = 60, LEARNT = 48, MOST_SYMBOLS = 256 + LEARNT };

typedef struct {
    int32_t at[WORDS][24]; /* words as symbols; all but the first begin with a space */
    int length[WORDS];
    char symbol[MOST_SYMBOLS][64];
    int symbols;
} corpus;

/* The most frequent pair of neighbours, of equal ones that with the smallest symbols; returns how often it is there. */
static int best_plainly(const corpus *c, int32_t *left, int32_t *right) {
    static int counts[MOST_SYMBOLS][MOST_SYMBOLS];
    int best = 0;
    memset(counts, 0, sizeof counts);
    for (int w = 0; w < WORDS; w++)
        for (int i = 0; i + 1 < c->length[w]; i++) counts[c->at[w][i]][c->at[w][i + 1]]++;
    for (int32_t a = 0; a < c->symbols; a++)
        for (int32_t b = 0; b < c->symbols; b++)
            if (counts[a][b] > best) best = counts[a][b], *left = a, *right = b;
    return best;
}

static void merge_in_words(corpus *c, int32_t left, int32_t right, int32_t made) {
    for (int w = 0; w < WORDS; w++) {
        int to = 0;
        for (int i = 0; i < c->length[w]; i++) {
            const bool merged = i + 1 < c->length[w] && c->at[w][i] == left && c->at[w][i + 1] == right;
            c->at[w][to++] = merged ? made : c->at[w][i];
            i += merged;
        }
        c->length[w] = to;
    }
}

/* How the file spells a symbol: a space is U+0120. */
static void spell(const char *symbol, char *text) {
    *text = '\0';
    for (; *symbol; symbol++) snprintf(text + strlen(text), 8, *symbol == ' ' ? "\u0120" : "%c", *symbol);
}

/* The merges of a trained tokenizer are those that a plain count of all pairs before each of them gives. */
static void test_learning(void **state) {
    (void)state;
    dr_random random = dr_random_start(8, 2);
    for (int run = 0; run < 8; run++) {
        static corpus c;
        char text[WORDS * 24] = "";
        dr_tokenizer_trainer *trainer;
        dr_tokenizer_training options = dr_tokenizer_training_defaults();
        int64_t size;
        options.ids = MOST_SYMBOLS + 1;
        c = (corpus){.symbols = 256};
        for (int i = 1; i < 256; i++) c.symbol[i][0] = (char)i;
        for (int w = 0; w < WORDS; w++) {
            char word[24] = " ";
            draw_text(&random, 1 + dr_random_below(&random, 20), word + 1);
            const char *counted = w == 0 ? word + 1 : word;
            strcat(text, counted);
            c.length[w] = (int)strlen(counted);
            for (int i = 0; i < c.length[w]; i++) c.at[w][i] = counted[i];
        }
        must(dr_tokenizer_trainer_create(&trainer));
        must(dr_tokenizer_trainer_add(trainer, text, strlen(text)));
        must(dr_tokenizer_trainer_write(trainer, &options, scratch_path("learnt"), &size));
        dr_tokenizer_trainer_destroy(trainer);
        json_t *file = json_load_file(scratch_path("learnt/tokenizer.json"), 0, NULL), *pair;
        json_t *merges = json_object_get(json_object_get(file, "model"), "merges");
        size_t i;
        assert_true(json_array_size(merges) > 10);
        json_array_foreach(merges, i, pair) {
            int32_t left = 0, right = 0, made;
            char expected[2][128], joined[128];
            assert_true(best_plainly(&c, &left, &right) >= options.least_count);
            spell(c.symbol[left], expected[0]);
            spell(c.symbol[right], expected[1]);
            assert_string_equal(json_string_value(json_array_get(pair, 0)), expected[0]);
            assert_string_equal(json_string_value(json_array_get(pair, 1)), expected[1]);
            snprintf(joined, sizeof joined, "%s%s", c.symbol[left], c.symbol[right]);
            for (made = 1; made < c.symbols && strcmp(c.symbol[made], joined) != 0; made++) {
            }
            if (made == c.symbols) memcpy(c.symbol[c.symbols++], joined, strlen(joined) + 1);
            merge_in_words(&c, left, right, made);
        }
        int32_t left, right;
        assert_int_equal(size, c.symbols + 1);
        assert_true(c.symbols == MOST_SYMBOLS || best_plainly(&c, &left, &right) < options.least_count);
        json_decref(file);
        scratch_remove(scratch_path("learnt"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scanners),      cmocka_unit_test(test_missing),     cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_empty_matches), cmocka_unit_test(test_normalizers), cmocka_unit_test(test_metaspace_decoder),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_merging),     cmocka_unit_test(test_cache),
        cmocka_unit_test(test_learning),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
