/* Shards of token ids: what is written is what is read, runs that train on them, and failed allocations. */
#include "allocation.h"
#include "data/corpus.h"
#include "data/encode.h"
#include "data/encoded.h"
#include "data/windows.h"
#include "evaluate/score_tokens.h"
#include "scratch.h"
#include "shards/layout.h"
#include "shards/manifest.h"
#include "shards/shards.h"
#include "shards/writer.h"
#include "statuses.h"

#include <deltarule/evaluate.h>
#include <deltarule/shards.h>
#include <deltarule/train.h>
#include <math.h>

static const char tokenizer_folder[] = DR_TESTS_FOLDER "/tokenizers/gpt2";

int __wrap_fsync(int);
int __wrap_fsync(int descriptor) { /* nothing here is about the disk */
    (void)descriptor;
    return 0;
}

/* ---- written and read ---- */

enum { TEXTS = 7 };
static const char *const texts[TEXTS] = {"The first text, h\xc3\xa9.",
                                         "b",
                                         "A third one with 12345 numbers\nand lines.\n",
                                         "  blanks  ",
                                         "fifth",
                                         "six \xe6\xbc\xa2\xe5\xad\x97",
                                         "the last of all these texts"};

static void write_texts(void) {
    char name[32];
    for (int i = 0; i < TEXTS; i++) {
        snprintf(name, sizeof name, "texts/%d.txt", i);
        scratch_write(name, texts[i], strlen(texts[i]));
    }
}

static dr_status write_shards(const char *folder, const char *tokenizer, int64_t shard_tokens, double share) {
    static char path[PATH_MAX];
    static const char *corpus = path;
    dr_shards_options options = dr_shards_defaults();
    snprintf(path, sizeof path, "%s", scratch_path("texts"));
    options.tokenizer = tokenizer;
    options.corpora = &corpus;
    options.corpus_count = 1;
    options.shard_tokens = shard_tokens;
    options.validation_share = share;
    return dr_shards_write(folder, &options, NULL);
}

/* Whatever the length of shards and of what is read at once, the row is the documents' ids, one after another. */
static void check_row(const char *tokenizer_path, int64_t shard_tokens) {
    char folder[PATH_MAX], name[64];
    dr_tokenizer *tokenizer;
    dr_document_encoder encoder;
    dr_shards *shards;
    dr_token_documents documents;
    int32_t all[512], read[512];
    uint8_t starts[512] = {0}, marks[512];
    int64_t count = 0;
    snprintf(name, sizeof name, "row-%d-%lld", tokenizer_path == tokenizer_folder, (long long)shard_tokens);
    snprintf(folder, sizeof folder, "%s", scratch_path(name));
    must(write_shards(folder, tokenizer_path, shard_tokens, 0));
    if (tokenizer_path == tokenizer_folder)
        must(dr_tokenizer_load(tokenizer_path, &tokenizer));
    else
        must(dr_tokenizer_bytes(&tokenizer));
    must(dr_document_encoder_create(tokenizer, &encoder));
    for (int i = 0; i < TEXTS; i++) {
        const int32_t *ids;
        int64_t many;
        must(dr_document_encode(&encoder, texts[i], (int64_t)strlen(texts[i]), &ids, &many));
        assert_int_equal(ids[0], encoder.start);
        starts[count] = DR_TOKEN_BEGINS;
        memcpy(all + count, ids, (size_t)many * sizeof *ids);
        count += many;
    }
    must(dr_shards_open(folder, &(dr_shards_of){.start = -1}, &shards));
    assert_true(shards->own && shards->count == 1 && shards->vocabulary == dr_tokenizer_size(tokenizer));
    dr_tokens *row = dr_shard_set_tokens(shards->sets[0]);
    assert_int_equal(row->count, count);
    for (int64_t from = 0; from < count; from += 3)
        for (int64_t some = 1; some <= count - from; some += 11) {
            must(row->read(row, from, some, read, marks));
            assert_memory_equal(read, all + from, (size_t)some * sizeof *read);
            assert_memory_equal(marks, starts + from, (size_t)some);
        }
    must(dr_shard_set_documents(shards->sets[0], &documents));
    assert_int_equal(documents.count, TEXTS);
    for (int i = 0; i < TEXTS; i++) {
        assert_int_equal(documents.bytes[i], strlen(texts[i]));
        assert_int_equal(starts[documents.begin[i]], DR_TOKEN_BEGINS);
    }
    dr_token_documents_release(&documents);
    dr_shards_close(shards);
    dr_document_encoder_release(&encoder);
    dr_tokenizer_destroy(tokenizer);
}

static void test_rows_are_the_documents(void **state) {
    (void)state;
    write_texts();
    const int64_t lengths[] = {1, 20, 1000};
    for (int i = 0; i < 3; i++) {
        check_row("bytes", lengths[i]);
        check_row(tokenizer_folder, lengths[i]);
    }
}

/* The ids of text without special tokens stand for its bytes, one by one. */
static void test_lengths_of_tokens(void **state) {
    (void)state;
    const char *const folders[] = {tokenizer_folder, DR_TESTS_FOLDER "/tokenizers/llama2", DR_TESTS_FOLDER "/tokenizers/gemma"};
    for (int f = 0; f < 3; f++) {
        dr_tokenizer *tokenizer;
        dr_document_encoder encoder;
        int32_t *lengths;
        must(dr_tokenizer_load(folders[f], &tokenizer));
        must(dr_document_encoder_create(tokenizer, &encoder));
        must(dr_token_lengths(tokenizer, &lengths));
        const char *text = texts[2];
        const int32_t *ids;
        int64_t count, bytes = 0;
        must(dr_document_encode(&encoder, text, (int64_t)strlen(text), &ids, &count));
        for (int64_t i = 1; i < count; i++) bytes += lengths[ids[i]];
        /* those of SentencePiece put a blank before the first word */
        assert_true(bytes == (int64_t)strlen(text) || (f > 0 && bytes == (int64_t)strlen(text) + 1));
        dr_release(lengths);
        dr_document_encoder_release(&encoder);
        dr_tokenizer_destroy(tokenizer);
    }
}

/* A window's marks say where its ids begin documents, and which of its labels are given. */
static void check_windows(dr_tokens *row) {
    enum { LENGTH = 6 };
    dr_windows *windows;
    int32_t ids[LENGTH], labels[LENGTH], id;
    uint8_t marks[LENGTH], mark;
    must(dr_windows_create(row, LENGTH, 1, &windows));
    for (int64_t i = 0; i < windows->windows; i++) {
        must(dr_windows_get(windows, i, ids, labels, marks));
        int64_t from = windows->current.phase + windows->current.order[i] * LENGTH;
        for (int64_t t = 0; t < LENGTH; t++) {
            must(row->read(row, from + t, 1, &id, &mark));
            assert_true(id == ids[t] && (mark & DR_TOKEN_BEGINS) == (marks[t] & DR_TOKEN_BEGINS));
            must(row->read(row, from + t + 1, 1, &id, &mark));
            assert_true(id == labels[t] && (mark & DR_TOKEN_GIVEN) == (marks[t] & DR_TOKEN_GIVEN));
        }
    }
    dr_windows_destroy(windows);
}

/* What is given comes back as a mark of each token, over bytes of the mask and ends of shards. */
static void test_masks(void **state) {
    (void)state;
    enum { TOKENS = 37 };
    char folder[PATH_MAX];
    dr_shard_manifest manifest = {.vocabulary = 100, .start = 0, .complete = true};
    dr_shard_writer *writer;
    dr_shards *shards;
    int32_t ids[TOKENS], read[TOKENS];
    uint8_t marks[TOKENS];
    snprintf(folder, sizeof folder, "%s", scratch_path("masks"));
    must(dr_shard_writer_create(folder, &manifest, &writer));
    for (int i = 0; i < TOKENS; i++) ids[i] = i % 10;
    for (int round = 0; round < 2; round++) {
        must(dr_shard_writer_begin(writer, "train", 5));
        must(dr_shard_writer_add(writer, ids, 5, true));
        must(dr_shard_writer_add(writer, ids + 5, 13, false));
        must(dr_shard_writer_begin(writer, "train", 6));
        must(dr_shard_writer_add(writer, ids + 18, TOKENS - 18, round == 1));
        must(dr_shard_writer_commit(writer));
    }
    dr_shard_writer_destroy(writer);
    dr_shard_manifest_release(&manifest);
    must(dr_shards_open(folder, &(dr_shards_of){.start = -1}, &shards));
    dr_tokens *row = dr_shard_set_tokens(shards->sets[0]);
    assert_true(row->gives && row->count == 2 * TOKENS);
    for (int64_t at = 0; at < row->count; at++) {
        int64_t place = at % TOKENS;
        bool given = place < 5 || (place >= 18 && at >= TOKENS), begins = place == 0 || place == 18;
        must(row->read(row, at, 1, read, marks));
        assert_int_equal(marks[0], (given ? DR_TOKEN_GIVEN : 0) | (begins ? DR_TOKEN_BEGINS : 0));
    }
    check_windows(row);
    dr_shards_close(shards);
}

static void test_layouts(void **state) {
    (void)state;
    uint8_t file[DR_SHARD_HEADER + 40];
    dr_shard_layout layout;
    for (int width = 2; width <= 4; width += 2) {
        memset(file, 1, sizeof file);
        dr_shard_header_write(width, 10, file);
        must(dr_shard_layout_read(file, DR_SHARD_HEADER + 10 * width, "f", &layout));
        assert_true(layout.header == DR_SHARD_HEADER && layout.width == width && layout.tokens == 10);
        assert_int_equal(dr_shard_layout_read(file, DR_SHARD_HEADER + 10 * width - 1, "f", &layout), DR_ERROR_FORMAT);
        assert_int_equal(dr_shard_layout_read(file, DR_SHARD_HEADER + 10 * width + 1, "f", &layout), DR_ERROR_FORMAT);
        assert_int_equal(dr_shard_layout_read(file, 12, "f", &layout), DR_ERROR_FORMAT);
        file[4]++; /* the version */
        assert_int_equal(dr_shard_layout_read(file, DR_SHARD_HEADER + 10 * width, "f", &layout), DR_ERROR_FORMAT);
        file[4] -= 2;
        assert_int_equal(dr_shard_layout_read(file, DR_SHARD_HEADER + 10 * width, "f", &layout), DR_ERROR_FORMAT);
        file[4]++, file[11] = 0x80; /* a negative number of tokens */
        assert_int_equal(dr_shard_layout_read(file, DR_SHARD_HEADER + 10 * width, "f", &layout), DR_ERROR_FORMAT);
        file[11] = 0, file[0]++; /* the magic */
        assert_int_equal(dr_shard_layout_read(file, DR_SHARD_HEADER + 10 * width, "f", &layout), DR_ERROR_FORMAT);
    }
    memset(file, 1, sizeof file);
    must(dr_shard_layout_read(file, 14, "f", &layout));
    assert_true(layout.header == 0 && layout.width == 2 && layout.tokens == 7);
    assert_int_equal(dr_shard_layout_read(file, 13, "f", &layout), DR_ERROR_FORMAT);
    assert_int_equal(dr_shard_layout_read(file, 0, "f", &layout), DR_ERROR_FORMAT);
}

/* ---- what is refused ---- */

static dr_status parse_manifest(const char *file, const char *hash) {
    static const char format[] =
        "{\"format\": \"deltarule shards\", \"version\": 1, \"complete\": true, \"vocabulary\": 9, \"start\": 0, "
        "\"recipe\": \"0123456789abcdef\", \"contents\": \"0123456789abcdef\", "
        "\"position\": {\"corpus\": 1, \"file\": 0, \"document\": 0, \"seen\": 2}, \"shards\": [{\"set\": \"train\", "
        "\"file\": \"%s\", \"tokens\": 5, \"documents\": 2, \"bytes\": 9, \"masked\": false, \"hash\": \"%s\"}]}";
    char text[1024];
    dr_shard_manifest manifest;
    const int bytes = snprintf(text, sizeof text, format, file, hash);
    const dr_status status = dr_shard_manifest_parse(text, (size_t)bytes, "m", &manifest);
    dr_shard_manifest_release(&manifest);
    return status;
}

/* No name of a file leads out of the folder, and every hash has all its digits. */
static void test_manifests(void **state) {
    (void)state;
    static const char hash[] = "00000000000000ff";
    static const char *const names[] = {"train_",           "train_0.bin/../../x", "train_000000", "val_000000.bin", "train",
                                        "../train_000.bin", "train_0x.bin",        "train_0.bin ", "train0.bin",     ""};
    static const char *const hashes[] = {"", "ff", "00000000000000ff0", "00000000000000fg", "0x000000000000ff "};
    assert_int_equal(parse_manifest("train_000000.bin", hash), DR_OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) assert_int_equal(parse_manifest(names[i], hash), DR_ERROR_FORMAT);
    for (size_t i = 0; i < sizeof hashes / sizeof *hashes; i++)
        assert_int_equal(parse_manifest("train_000000.bin", hashes[i]), DR_ERROR_FORMAT);
}

/* Shards are those of the vocabulary that is asked for, and whole. */
static void test_shards_fit(void **state) {
    (void)state;
    char path[PATH_MAX], name[PATH_MAX + 16];
    dr_shards *shards;
    dr_shard_manifest manifest;
    write_texts();
    snprintf(path, sizeof path, "%s", scratch_path("fitting"));
    must(write_shards(path, tokenizer_folder, 1000, 0));
    must(dr_shard_manifest_read(path, &manifest));
    for (int more = -1; more <= 1; more++) {
        const dr_shards_of of = {.vocabulary = manifest.vocabulary + more};
        assert_int_equal(dr_shards_open(path, &of, &shards), more ? DR_ERROR_ARGUMENT : DR_OK);
        dr_shards_close(shards);
    }
    manifest.complete = false;
    snprintf(name, sizeof name, "%s/shards.json", path);
    must(dr_shard_manifest_write(name, &manifest));
    assert_int_equal(dr_shards_open(path, &(dr_shards_of){0}, &shards), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "not complete"));
    dr_shard_manifest_release(&manifest);
}

/* Files of other programs: the name of the file, not of its folder, says what it is for; every id counts in the fingerprint. */
static void test_foreign_shards(void **state) {
    (void)state;
    static const uint8_t ids[] = {1, 0, 2, 0, 3, 0, 4, 0}, others[] = {1, 0, 2, 0, 5, 0, 4, 0};
    const dr_shards_of of = {.vocabulary = 9, .start = -1};
    dr_shards *shards;
    scratch_write("values/a_train.bin", ids, sizeof ids);
    must(dr_shards_open(scratch_path("values/a_train.bin"), &of, &shards));
    assert_string_equal(dr_shard_set_name(shards->sets[0]), "train");
    assert_false(dr_shard_set_validates(shards->sets[0]));
    dr_shards_close(shards);
    scratch_write("values/a_val.bin", ids, sizeof ids);
    must(dr_shards_open(scratch_path("values"), &of, &shards));
    assert_int_equal(shards->count, 2);
    assert_true(!dr_shard_set_validates(shards->sets[0]) && dr_shard_set_validates(shards->sets[1]));
    const uint64_t fingerprint = shards->fingerprint;
    dr_shards_close(shards);
    scratch_write("values/a_train.bin", others, sizeof others);
    must(dr_shards_open(scratch_path("values"), &of, &shards));
    assert_true(shards->fingerprint != fingerprint);
    dr_shards_close(shards);
}

/* ---- scoring and training ---- */

static const char *const small[][2] = {{"hidden", "8"},       {"layers", "1"},          {"heads", "1"},
                                       {"intermediate", "8"}, {"batch", "2"},           {"seq_len", "12"},
                                       {"steps", "6"},        {"save_every", "2"},      {"evaluate_every", "3"},
                                       {"held_out", "0.3"},   {"learning_rate", "0.01"}};

static dr_train_options *options_of(const char *corpus) {
    dr_train_options *options;
    must(dr_train_options_create(&options));
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) must(dr_train_options_set(options, small[i][0], small[i][1]));
    must(dr_train_options_set(options, "corpus", corpus));
    return options;
}

static bool stop_after_three(void *context, const dr_progress *progress) {
    (void)context;
    return progress->step < 3;
}

/* A run that is stopped in the middle and resumed ends with the parameters and losses of one that was not. */
static void test_resumed_runs_are_the_same(void **state) {
    (void)state;
    char folder[PATH_MAX], whole[PATH_MAX], stopped[PATH_MAX];
    dr_backend *backend;
    dr_run *run;
    dr_train_options *options;
    size_t bytes, again;
    write_texts();
    snprintf(folder, sizeof folder, "%s", scratch_path("train"));
    snprintf(whole, sizeof whole, "%s", scratch_path("whole"));
    snprintf(stopped, sizeof stopped, "%s", scratch_path("stopped"));
    must(write_shards(folder, tokenizer_folder, 40, 0));
    options = options_of(folder);
    must(dr_backend_open("cpu", NULL, &backend));
    must(dr_run_create(backend, options, whole, &run));
    must(dr_run_train(run, NULL, NULL));
    dr_run_destroy(run);
    must(dr_run_create(backend, options, stopped, &run));
    assert_int_equal(dr_run_train(run, stop_after_three, NULL), DR_ERROR_INTERRUPTED);
    dr_run_destroy(run);
    must(dr_run_resume(backend, stopped, NULL, &run));
    must(dr_run_train(run, NULL, NULL));
    dr_run_destroy(run);
    char *one = scratch_read_at(scratch_path("whole/model.safetensors"), &bytes);
    char *other = scratch_read_at(scratch_path("stopped/model.safetensors"), &again);
    assert_int_equal(bytes, again);
    assert_memory_equal(one, other, bytes);
    free(one);
    free(other);
    dr_train_options_destroy(options);
    dr_backend_close(backend);
}

/* The score of tokens is that of each document alone, and bits per byte are of the text's bytes. */
static void test_scores(void **state) {
    (void)state;
    char folder[PATH_MAX];
    dr_backend *backend;
    dr_model *model;
    dr_session *session;
    dr_tokenizer *tokenizer;
    dr_shards *shards;
    dr_token_documents documents;
    dr_score score, of_text, of_tokens;
    double loss = 0;
    int64_t tokens = 0, bytes = 0;
    write_texts();
    snprintf(folder, sizeof folder, "%s", scratch_path("scored"));
    must(write_shards(folder, tokenizer_folder, 30, 0));
    must(dr_tokenizer_load(tokenizer_folder, &tokenizer));
    must(dr_backend_open("reference", NULL, &backend));
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = dr_tokenizer_size(tokenizer) + 3; /* padded */
    config.hidden = 8, config.layers = 1, config.heads = 1, config.intermediate = 8;
    must(dr_model_create(backend, &config, 3, &model));
    dr_score_options options = dr_score_defaults();
    options.window = 5;
    assert_int_equal(dr_score_text(model, "text", "abc", 3, &options, &score), DR_ERROR_UNSUPPORTED);
    options.tokenizer = tokenizer;
    for (int i = 0; i < TEXTS; i++) {
        must(dr_score_text(model, "text", texts[i], strlen(texts[i]), &options, &score));
        assert_true(fabs(score.bits_per_byte - score.loss * (double)score.tokens / (double)strlen(texts[i]) / log(2)) < 1e-12);
        loss += score.loss * (double)score.tokens, tokens += score.tokens, bytes += score.bytes;
    }
    must(dr_score_files(model, scratch_path("texts"), &options, &of_text));
    must(dr_shards_open(folder, &(dr_shards_of){.start = -1}, &shards));
    must(dr_shard_set_documents(shards->sets[0], &documents));
    must(dr_session_create(model, &session));
    must(dr_score_tokens(session, dr_shard_set_tokens(shards->sets[0]), &documents, &(dr_token_score_options){.window = 7},
                         &of_tokens));
    const dr_score *const scores[] = {&of_text, &of_tokens};
    for (int i = 0; i < 2; i++) {
        assert_true(scores[i]->files == TEXTS && scores[i]->tokens == tokens && scores[i]->bytes == bytes);
        assert_true(fabs(scores[i]->loss - loss / (double)tokens) < 1e-12);
        assert_true(fabs(scores[i]->bits_per_byte - loss / (double)bytes / log(2)) < 1e-12);
    }
    must(dr_score_tokens(session, dr_shard_set_tokens(shards->sets[0]), &documents,
                         &(dr_token_score_options){.window = 7, .most = 40}, &of_tokens));
    assert_in_range(of_tokens.tokens, 1, 40);
    dr_token_documents_release(&documents);
    dr_shards_close(shards);
    dr_session_destroy(session);
    dr_model_destroy(model);
    dr_backend_close(backend);
    dr_tokenizer_destroy(tokenizer);
}

/* ---- failed allocations ---- */

static dr_status use_everything(void *context) {
    const char *const *folders = context;
    dr_tokenizer *tokenizer = NULL;
    dr_shards *shards = NULL;
    dr_corpus *corpus = NULL;
    dr_tokens *tokens = NULL;
    dr_token_documents documents = {0}, places = {0};
    int32_t *lengths = NULL;
    dr_status status;
    scratch_remove(folders[0]);
    DR_GO(write_shards(folders[0], tokenizer_folder, 20, 0.4));
    DR_GO(dr_shards_open(folders[0], &(dr_shards_of){.start = -1}, &shards));
    DR_GO(dr_shard_set_documents(shards->sets[0], &documents));
    DR_GO(dr_tokenizer_load(tokenizer_folder, &tokenizer));
    DR_GO(dr_corpus_read(folders[1], false, &corpus));
    DR_GO(dr_tokens_of_text(&corpus->documents, tokenizer, &tokens, &places));
    DR_GO(dr_token_lengths(tokenizer, &lengths));
done:
    dr_release(lengths);
    dr_tokens_destroy(tokens);
    dr_token_documents_release(&documents);
    dr_token_documents_release(&places);
    dr_shards_close(shards);
    dr_corpus_destroy(corpus);
    dr_tokenizer_destroy(tokenizer);
    return status;
}

static void test_failed_allocations_are_survived(void **state) {
    (void)state;
    char folder[PATH_MAX], corpus[PATH_MAX];
    const char *folders[] = {folder, corpus};
    write_texts();
    snprintf(folder, sizeof folder, "%s", scratch_path("failing"));
    snprintf(corpus, sizeof corpus, "%s", scratch_path("texts"));
    assert_true(assert_survives_failed_allocations(use_everything, folders) > 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_the_documents),
        cmocka_unit_test(test_lengths_of_tokens),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_manifests),
        cmocka_unit_test(test_shards_fit),
        cmocka_unit_test(test_foreign_shards),
        cmocka_unit_test(test_resumed_runs_are_the_same),
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_failed_allocations_are_survived),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
