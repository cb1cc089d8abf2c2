/* Tokenizers: ids, texts and streams as recorded of Hugging Face's `tokenizers`; what is refused; failed allocations.
 *
 * The recorded cases lie in tests/tokenizers; DELTARULE_TOKENIZERS names a folder with more, one tokenizer a subfolder, each
 * with an expected.json. */
#include "allocation.h"
#include "base/random.h"
#include "scratch.h"
#include "statuses.h"

#include <deltarule/tokenizer.h>

#include <dirent.h>
#include <jansson.h>

#include <cmocka.h>

typedef struct {
    const char *folder;
    dr_tokenizer *tokenizer;
    dr_encoder *encoder;
    long checks, failures;
} recorded;

static void complain(recorded *r, const char *what, const json_t *of) {
    char *text = json_dumps(of, JSON_ENCODE_ANY | JSON_COMPACT);
    if (r->failures++ < 20) print_error("%s: %s differ: %.300s\n", r->folder, what, text);
    free(text);
}

/* Of the same value as another, a key may be left out. */
static const json_t *value_of(const json_t *of, const char *key) {
    static const char *const same[][2] = {
        {"ids_without_special", "ids"}, {"decoded_skip_special", "decoded"}, {"decoded", "text"}};
    for (int i = 0; i < 3; i++)
        if (!json_object_get(of, key) && strcmp(key, same[i][0]) == 0) key = same[i][1];
    return json_object_get(of, key);
}

static void check_ids(recorded *r, const json_t *of, const char *key, bool special) {
    const json_t *text = json_object_get(of, "text"), *expected = value_of(of, key);
    const int32_t *ids;
    size_t count;
    must(dr_encoder_encode(r->encoder, json_string_value(text), json_string_length(text), special, &ids, &count));
    bool same = count == json_array_size(expected);
    for (size_t i = 0; i < count && same; i++) same = ids[i] == json_integer_value(json_array_get(expected, i));
    r->checks++;
    if (!same) complain(r, key, text);
}

static size_t ids_of(const json_t *list, int32_t *ids, size_t room) {
    size_t count = json_array_size(list);
    assert_true(count <= room);
    for (size_t i = 0; i < count; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return count;
}

enum { MOST_IDS = 1 << 16 };
static int32_t id_room[MOST_IDS];

static void check_text(recorded *r, const json_t *of, const char *key, int flags) {
    const json_t *expected = value_of(of, key);
    size_t count = ids_of(json_object_get(of, "ids"), id_room, MOST_IDS), bytes;
    dr_decoder *decoder;
    const char *text;
    must(dr_decoder_create(r->tokenizer, flags, &decoder));
    must(dr_decoder_decode(decoder, id_room, count, &text, &bytes));
    r->checks++;
    if (bytes != json_string_length(expected) || memcmp(text, json_string_value(expected), bytes) != 0)
        complain(r, key, expected);
    dr_decoder_destroy(decoder);
}

/* A piece is a text, null where there is none yet, or an object where the stream fails, its last. */
static void check_stream(recorded *r, const json_t *of) {
    const json_t *ids = json_object_get(of, "ids"), *pieces = json_object_get(of, "pieces");
    dr_decoder *decoder;
    must(dr_decoder_create(r->tokenizer, json_is_true(json_object_get(of, "skip_special_tokens")) ? DR_DECODE_NO_SPECIAL : 0,
                           &decoder));
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        const json_t *piece = json_array_get(pieces, i);
        const char *text;
        size_t bytes;
        dr_status status = dr_decoder_step(decoder, (int32_t)json_integer_value(json_array_get(ids, i)), &text, &bytes);
        bool same = status == (json_is_object(piece) ? DR_ERROR_FORMAT : DR_OK);
        if (same && status == DR_OK)
            same = bytes == json_string_length(piece) && memcmp(text, bytes ? json_string_value(piece) : "", bytes) == 0;
        r->checks++;
        if (!same) complain(r, "pieces", piece);
    }
    dr_decoder_destroy(decoder);
}

/* All recorded cases of one folder; returns how many numbers and texts were compared. */
static long check_folder(const char *folder) {
    recorded r = {.folder = folder};
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/expected.json", folder);
    json_t *expected = json_load_file(path, JSON_ALLOW_NUL, NULL);
    assert_non_null(expected);
    must(dr_tokenizer_load(folder, &r.tokenizer));
    must(dr_encoder_create(r.tokenizer, &r.encoder));
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(expected, "cases"), i, item) {
        check_ids(&r, item, "ids", true);
        check_ids(&r, item, "ids_without_special", false);
        check_text(&r, item, "decoded", 0);
        check_text(&r, item, "decoded_skip_special", DR_DECODE_NO_SPECIAL);
    }
    json_array_foreach(json_object_get(expected, "decode"), i, item) {
        check_text(&r, item, "decoded", 0);
        check_text(&r, item, "decoded_skip_special", DR_DECODE_NO_SPECIAL);
    }
    json_array_foreach(json_object_get(expected, "streams"), i, item) check_stream(&r, item);
    json_decref(expected);
    dr_encoder_destroy(r.encoder);
    dr_tokenizer_destroy(r.tokenizer);
    if (r.failures > 0) fail_msg("%s: %ld of %ld checks failed", folder, r.failures, r.checks);
    return r.checks;
}

/* Every subfolder with an expected.json; those of models that are refused must be refused by name. */
static int check_folders(const char *root) {
    DIR *stream = opendir(root);
    int folders = 0;
    if (!stream) fail_msg("cannot open the folder %s", root);
    for (struct dirent *item; (item = readdir(stream));) {
        char folder[PATH_MAX], file[PATH_MAX + 16];
        snprintf(folder, sizeof folder, "%s/%s", root, item->d_name);
        snprintf(file, sizeof file, "%s/expected.json", folder);
        if (item->d_name[0] == '.' || access(file, R_OK) != 0) continue;
        if (strcmp(item->d_name, "unigram") == 0 || strcmp(item->d_name, "wordpiece") == 0) {
            dr_tokenizer *none;
            assert_refused(dr_tokenizer_load(folder, &none), DR_ERROR_UNSUPPORTED, "only BPE");
            continue;
        }
        print_message("%s: %ld checks\n", item->d_name, check_folder(folder));
        folders++;
    }
    closedir(stream);
    return folders;
}

static void test_recorded(void **state) {
    (void)state;
    assert_true(check_folders(DR_TESTS_FOLDER "/tokenizers") >= 12);
}

static void test_recorded_elsewhere(void **state) {
    (void)state;
    const char *root = getenv("DELTARULE_TOKENIZERS");
    if (!root) {
        print_message("DELTARULE_TOKENIZERS names no folder with more recorded cases\n");
        skip();
    }
    assert_true(check_folders(root) > 0);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------------- */

/* Parts of UTF-8 and none: characters of all lengths, lone and surplus bytes, blanks, text that looks like tokens. */
static size_t draw_bytes(dr_random *random, char *text, size_t most) {
    static const char *const parts[] = {
        "a",    "cat ",     " ",        "  ",      "\n",       "\xc3\xa9",     "\xe4\xbb\x8a", "\xf0\x9f\x98\x80",
        "\xff", "\xe4\xbb", "\xf0\x9f", "\x80",    "\xc0\xaf", "\xed\xa0\x80", "\xe2\x96\x81", "<0x41>",
        "12",   "'s",       "\t",       "\xc2\xa0"};
    size_t bytes = 0;
    for (uint64_t count = dr_random_below(random, 20); count > 0 && bytes + 8 < most; count--) {
        if (dr_random_below(random, 4) == 0) {
            text[bytes++] = (char)dr_random_below(random, 256);
            continue;
        }
        const char *part = parts[dr_random_below(random, sizeof parts / sizeof *parts)];
        memcpy(text + bytes, part, strlen(part));
        bytes += strlen(part);
    }
    return bytes;
}

/* Tokenizers that lose nothing give the bytes of any text back. But those that write a space as a mark
 * take a mark for a space, and what stands behind an added token, four spaces here, gets one of its own; and mistral's takes a
 * space at the beginning for its own. */
static void test_round_trip(void **state) {
    static const struct {
        const char *name;
        bool marks;
    } tokenizers[] = {{"gpt2", false}, {"llama3", false}, {"deepseek", false}, {"kimi", false},
                      {"olmo", false}, {"llama2", true},  {"mistral", true},   {"gemma", true}};
    (void)state;
    for (size_t t = 0; t < sizeof tokenizers / sizeof *tokenizers; t++) {
        char folder[PATH_MAX];
        dr_tokenizer *tokenizer;
        dr_encoder *encoder;
        dr_decoder *decoder;
        snprintf(folder, sizeof folder, "%s/tokenizers/%s", DR_TESTS_FOLDER, tokenizers[t].name);
        must(dr_tokenizer_load(folder, &tokenizer));
        must(dr_encoder_create(tokenizer, &encoder));
        must(dr_decoder_create(tokenizer, DR_DECODE_BYTES, &decoder));
        dr_random random = dr_random_start(11, t);
        for (int i = 0; i < 2000; i++) {
            char text[200];
            const char *back;
            const int32_t *ids;
            size_t bytes = draw_bytes(&random, text, sizeof text), count, back_bytes;
            if (tokenizers[t].marks &&
                (memmem(text, bytes, "\xe2\x96\x81", 3) || memmem(text, bytes, "    ", 4) || (bytes > 0 && text[0] == ' ')))
                continue;
            must(dr_encoder_encode(encoder, text, bytes, false, &ids, &count));
            must(dr_decoder_decode(decoder, ids, count, &back, &back_bytes));
            if (back_bytes == bytes && memcmp(back, text, bytes) == 0) continue;
            for (size_t k = 0; k < bytes; k++) print_error("%02x ", (uint8_t)text[k]);
            print_error("\n");
            for (size_t k = 0; k < back_bytes; k++) print_error("%02x ", (uint8_t)back[k]);
            fail_msg("%s: not the same bytes", tokenizers[t].name);
        }
        dr_decoder_destroy(decoder);
        dr_encoder_destroy(encoder);
        dr_tokenizer_destroy(tokenizer);
    }
}

/* ---- allocations ------------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *file, *text;
} journey;

static dr_status there_and_back(void *context) {
    const journey *j = context;
    dr_tokenizer *tokenizer;
    dr_encoder *encoder = NULL;
    dr_decoder *decoder = NULL;
    const int32_t *ids;
    const char *back;
    size_t count = 0, bytes;
    DR_TRY(dr_tokenizer_load(j->file, &tokenizer));
    dr_status status = dr_encoder_create(tokenizer, &encoder);
    if (status == DR_OK) status = dr_decoder_create(tokenizer, DR_DECODE_BYTES, &decoder);
    if (status == DR_OK) status = dr_encoder_encode(encoder, j->text, strlen(j->text), true, &ids, &count);
    if (status == DR_OK) status = dr_decoder_decode(decoder, ids, count, &back, &bytes);
    for (size_t i = 0; i < count && status == DR_OK; i++) {
        status = dr_decoder_step(decoder, ids[i], &back, &bytes);
        if (status == DR_ERROR_FORMAT) status = DR_OK; /* a byte that was valid alone */
    }
    if (status == DR_OK) status = dr_decoder_finish(decoder, &back, &bytes);
    dr_decoder_destroy(decoder);
    dr_encoder_destroy(encoder);
    dr_tokenizer_destroy(tokenizer);
    return status;
}

static dr_status learn(void *context) {
    dr_tokenizer_trainer *trainer;
    dr_tokenizer_training options = dr_tokenizer_training_defaults();
    int64_t size;
    options.ids = 270;
    DR_TRY(dr_tokenizer_trainer_create(&trainer));
    dr_status status = dr_tokenizer_trainer_add(trainer, "the cat and the dog and the end", 31);
    if (status == DR_OK) status = dr_tokenizer_trainer_write(trainer, &options, context, &size);
    dr_tokenizer_trainer_destroy(trainer);
    return status;
}

static void test_allocations(void **state) {
    (void)state;
    journey journeys[] = {{"byte_level", "<s>Hello  the world's 1234567 <x>caf\xc3\xa9 \xe4\xbb\x8a\n\n \xff\xc3 don't</s>"},
                          {"byte_fallback", "<s>Hello  the world's 1234567 \xff\xc3 \xe4\xbb\x8a</s>"},
                          {"metaspace", "Hello  the <x>caf\xc3\xa9 12"}};
    for (size_t i = 0; i < sizeof journeys / sizeof *journeys; i++) {
        char file[PATH_MAX];
        snprintf(file, sizeof file, "%s/../fuzz/seeds/tokenizers/%s.json", DR_TESTS_FOLDER, journeys[i].file);
        journeys[i].file = file;
        assert_survives_failed_allocations(there_and_back, &journeys[i]);
    }
    assert_survives_failed_allocations(learn, (void *)scratch_path("learnt"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_recorded_elsewhere),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
