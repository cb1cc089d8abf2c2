/* Tokenizers: ids, texts and streams as recorded of Hugging Face's `tokenizers`; what is refused; failed allocations.
 *
 * The recorded cases lie in tests/tokenizers; DELTARULE_TOKENIZERS names a folder with more, one tokenizer a subfolder, each
 * with an expected.json. */
#include "allocation.h"
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_recorded_elsewhere),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
