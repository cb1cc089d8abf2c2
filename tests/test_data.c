/* Corpora, their held-out part and training windows. */
#include "allocation.h"
#include "base/utf8.h"
#include "data/corpus.h"
#include "data/mqar.h"
#include "data/streams.h"
#include "data/windows.h"
#include "made_corpus.h"
#include "scratch.h"

#include <math.h>

/* ---- reading ---- */

static void write_text(const char *name, const char *text) {
    scratch_write(name, text, strlen(text));
}

static void test_folder_is_read_in_order_of_names(void **state) {
    (void)state;
    write_text("order/b.txt", "second");
    write_text("order/a/z.txt", "first");
    write_text("order/c.txt", "third \xe2\x82\xac");
    write_text("order/empty.txt", "");
    write_text("order/.hidden", "never");
    write_text("order/.git/config", "never");
    assert_int_equal(symlink("b.txt", scratch_path("order/alias.txt")), 0);
    assert_int_equal(symlink("..", scratch_path("order/a/loop")), 0);
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s//", scratch_path("order"));
    dr_corpus *corpus;
    assert_int_equal(dr_corpus_read(folder, false, &corpus), DR_OK);
    const char *const texts[] = {"first", "second", "third \xe2\x82\xac"};
    const char *const names[] = {"order/a/z.txt", "order/b.txt", "order/c.txt"};
    assert_int_equal(corpus->documents.count, 3);
    int64_t bytes = 0;
    for (int i = 0; i < 3; i++) {
        const dr_document *document = &corpus->documents.at[i];
        assert_string_equal(document->name, scratch_path(names[i]));
        assert_int_equal(document->bytes, strlen(texts[i]));
        assert_memory_equal(document->text, texts[i], strlen(texts[i]));
        bytes += document->bytes;
    }
    assert_int_equal(corpus->documents.bytes, bytes);
    dr_corpus_destroy(corpus);
}

static void test_many_files(void **state) {
    (void)state;
    char name[64];
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "many/%03d", i);
        scratch_write(name, name, strlen(name));
    }
    dr_corpus *corpus;
    assert_int_equal(dr_corpus_read(scratch_path("many"), false, &corpus), DR_OK);
    assert_int_equal(corpus->documents.count, 100);
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "many/%03d", i);
        assert_memory_equal(corpus->documents.at[i].text, name, strlen(name));
    }
    dr_corpus_destroy(corpus);
}

static void assert_refused(const char *path, dr_status wanted, const char *part) {
    dr_corpus *corpus = (dr_corpus *)1;
    assert_int_equal(dr_corpus_read(path, false, &corpus), wanted);
    assert_null(corpus);
    assert_non_null(strstr(dr_last_error(), part));
    assert_non_null(strstr(dr_last_error(), path));
}

static void test_bad_corpora_are_refused(void **state) {
    (void)state;
    assert_refused(scratch_path("nowhere"), DR_ERROR_ARGUMENT, "give a text file or a folder");
    write_text("empty", "");
    assert_refused(scratch_path("empty"), DR_ERROR_ARGUMENT, "empty");
    write_text("hollow/nothing", "");
    assert_refused(scratch_path("hollow"), DR_ERROR_ARGUMENT, "no file that is not empty");
    write_text("binary/good", "good");
    write_text("binary/latin1", "caf\xe9 au lait");
    assert_int_equal(dr_corpus_read(scratch_path("binary"), false, &(dr_corpus *){NULL}), DR_ERROR_FORMAT);
    assert_non_null(strstr(dr_last_error(), "binary/latin1 is not UTF-8 text: byte 3 (0xe9)"));
    assert_int_equal(mkfifo(scratch_path("pipe"), 0600), 0);
    assert_refused(scratch_path("pipe"), DR_ERROR_ARGUMENT, "not a regular file");
}

/* ---- links, and files that are no text ---- */

static void test_links_are_followed(void **state) {
    (void)state;
    write_text("linked/b.txt", "inside");
    write_text("linked/sub/c.txt", "below");
    write_text("elsewhere/x.txt", "outside");
    write_text("elsewhere/deep/y.txt", "deep outside");
    write_text("lone", "alone");
    assert_int_equal(symlink("b.txt", scratch_path("linked/a-link")), 0); /* a link never stands before the file */
    assert_int_equal(link(scratch_path("linked/b.txt"), scratch_path("linked/z-name")), 0);
    assert_int_equal(symlink("../elsewhere", scratch_path("linked/one")), 0);
    assert_int_equal(symlink("../elsewhere/deep", scratch_path("linked/another")), 0); /* first by name, so it has y.txt */
    assert_int_equal(symlink("../lone", scratch_path("linked/file")), 0);
    assert_int_equal(symlink("../linked", scratch_path("elsewhere/back")), 0); /* round and round */
    assert_int_equal(symlink(".", scratch_path("linked/sub/here")), 0);
    assert_int_equal(symlink("..", scratch_path("linked/sub/up")), 0);
    static const char *const names[] = {"linked/another/y.txt", "linked/b.txt", "linked/file", "linked/one/x.txt",
                                        "linked/sub/c.txt"};
    dr_corpus *corpus;
    assert_int_equal(dr_corpus_read(scratch_path("linked"), false, &corpus), DR_OK);
    assert_int_equal(corpus->documents.count, 5);
    for (int i = 0; i < 5; i++) assert_string_equal(corpus->documents.at[i].name, scratch_path(names[i]));
    assert_int_equal(corpus->left_out.count, 0);
    dr_corpus_destroy(corpus);
}

/* A link out of the folder to one above it would take in the whole machine. */
static void test_links_lead_no_way_up(void **state) {
    (void)state;
    write_text("top/other.txt", "other");
    write_text("top/corpus/a.txt", "inside");
    write_text("aside/b.txt", "aside");
    assert_int_equal(symlink("/", scratch_path("top/corpus/root")), 0);
    assert_int_equal(symlink("..", scratch_path("top/corpus/up")), 0);
    assert_int_equal(symlink("../../aside", scratch_path("top/corpus/aside")), 0);
    assert_int_equal(symlink("../top", scratch_path("aside/back")), 0);
    assert_int_equal(symlink("/proc/self", scratch_path("top/corpus/proc")), 0);
    dr_corpus *corpus;
    assert_int_equal(dr_corpus_read(scratch_path("top/corpus"), false, &corpus), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "leads to a folder that the corpus itself lies in"));
    assert_int_equal(dr_corpus_read(scratch_path("top/corpus"), true, &corpus), DR_OK);
    assert_int_equal(corpus->documents.count, 2);
    static const char *const problems[] = {"aside/back leads to", "proc is a folder of the system's own", "root leads to",
                                           "up leads to"};
    assert_int_equal(corpus->left_out.count, 4);
    for (int i = 0; i < 4; i++) assert_non_null(strstr(corpus->left_out.at[i].problem, problems[i]));
    dr_corpus_destroy(corpus);
    assert_refused("/proc/self", DR_ERROR_ARGUMENT, "a folder of the system's own");
    if (access("/sys/kernel", F_OK) == 0) assert_refused("/sys/kernel", DR_ERROR_ARGUMENT, "a folder of the system's own");
    assert_refused("/proc/self/fd", DR_ERROR_ARGUMENT, "a folder of the system's own");
}

static void make_unreadable(void) {
    write_text("mixed/good", "good");
    write_text("mixed/sub/better", "better");
    write_text("mixed/d-binary", "caf\xe9");
    scratch_write("mixed/e-nul", "ab\0c", 4);
    write_text("mixed/new\nline\x1b \xff", "\xff");
    assert_int_equal(symlink("nothing", scratch_path("mixed/a-dangling")), 0);
    assert_int_equal(symlink("b-self", scratch_path("mixed/b-self")), 0);
    assert_int_equal(mkfifo(scratch_path("mixed/sub/pipe"), 0600), 0);
    assert_int_equal(symlink("/dev/zero", scratch_path("mixed/c-device")), 0);
}

static void test_unreadable_files_are_named_and_counted(void **state) {
    (void)state;
    make_unreadable();
    dr_corpus *corpus;
    assert_int_equal(dr_corpus_read(scratch_path("mixed"), false, &corpus), DR_ERROR_IO);
    assert_null(corpus);
    assert_non_null(strstr(dr_last_error(), "mixed/a-dangling cannot be followed to a file: No such file"));
    assert_non_null(strstr(dr_last_error(), "7 of 9 files cannot be used"));
    assert_non_null(strstr(dr_last_error(), "--skip-unreadable"));
    assert_int_equal(dr_corpus_read(scratch_path("mixed"), true, &corpus), DR_OK);
    assert_int_equal(corpus->documents.count, 2);
    static const char *const problems[] = {"a-dangling cannot be followed",
                                           "b-self cannot be followed to a file: Too many",
                                           "c-device is not a regular file but a device",
                                           "d-binary is not UTF-8 text: byte 3 (0xe9)",
                                           "e-nul is not text but binary: byte 2 is 0",
                                           "new\\x0aline\\x1b \\xff is not UTF-8",
                                           "pipe is not a regular file but a named pipe"};
    assert_int_equal(corpus->left_out.count, 7);
    for (int i = 0; i < 7; i++) assert_non_null(strstr(corpus->left_out.at[i].problem, problems[i]));
    dr_corpus_destroy(corpus);
    write_text("hopeless/binary", "\xff");
    assert_int_equal(dr_corpus_read(scratch_path("hopeless"), true, &corpus), DR_ERROR_FORMAT);
    assert_non_null(strstr(dr_last_error(), "has no text: 1 files cannot be used, the first: "));
    assert_refused(scratch_path("mixed/c-device"), DR_ERROR_ARGUMENT, "not a regular file but a device");
}

/* Folders within folders: no recursion that a deep tree could exhaust. */
static void test_deep_folders(void **state) {
    (void)state;
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s", scratch_path("deep"));
    for (; length < PATH_MAX / 6; length += 2) {
        assert_int_equal(mkdir(path, 0777), 0);
        memcpy(path + length, "/d", 3);
    }
    memcpy(path + length - 2, "/text", 6);
    scratch_write_at(path, "deep", 4);
    dr_corpus *corpus;
    assert_int_equal(dr_corpus_read(scratch_path("deep"), false, &corpus), DR_OK);
    assert_int_equal(corpus->documents.count, 1);
    assert_string_equal(corpus->documents.at[0].name, path);
    dr_corpus_destroy(corpus);
}

/* ---- mapped files ---- */

enum { LARGE = 9 << 20 }; /* more than two blocks of what is looked at at once */

/* A file that is mapped: characters of three bytes, so that some lie across any boundary of a block. */
static uint8_t *large_text(void) {
    uint8_t *text = malloc(LARGE);
    assert_non_null(text);
    for (int i = 0; i < LARGE / 3; i++) memcpy(text + 3 * i, i % 50 == 49 ? "ab\n" : "\xe2\x82\xac", 3);
    return text;
}

static void test_large_files_are_mapped(void **state) {
    (void)state;
    uint8_t *text = large_text();
    const char *path = scratch_write("large", text, LARGE);
    dr_corpus *corpus;
    dr_windows *windows;
    dr_tokens *tokens;
    uint8_t marks[64];
    assert_int_equal(dr_corpus_read(path, false, &corpus), DR_OK);
    const dr_document *document = &corpus->documents.at[0];
    assert_non_null(document->mapping);
    assert_int_equal(document->bytes, LARGE);
    assert_memory_equal(document->text, text, LARGE);
    uint64_t mapped = dr_corpus_fingerprint(corpus, 0);
    dr_document copy = {.name = "copy", .text = text, .bytes = LARGE};
    assert_int_equal(dr_corpus_fingerprint(&(dr_corpus){.documents = {.at = &copy, .count = 1}}, 0), mapped);

    /* touched or grown it is the same text; written to or cut short it is refused where it is read */
    int32_t ids[64], labels[64];
    assert_int_equal(dr_tokens_of_bytes(&corpus->documents, &tokens), DR_OK);
    assert_int_equal(dr_windows_create(tokens, 64, 1, &windows), DR_OK);
    assert_int_equal(dr_windows_get(windows, 0, ids, labels, marks), DR_OK);
    FILE *file = fopen(path, "ab");
    fputs("more", file);
    fclose(file);
    assert_int_equal(dr_windows_get(windows, 1, ids, labels, marks), DR_OK);
    file = fopen(path, "r+b");
    fputs("ab\n", file);
    fclose(file);
    assert_int_equal(dr_windows_get(windows, 2, ids, labels, marks), DR_ERROR_IO);
    assert_non_null(strstr(dr_last_error(), "large was changed while it was in use"));
    assert_int_equal(truncate(path, 1000), 0);
    assert_int_equal(dr_windows_get(windows, 3, ids, labels, marks), DR_ERROR_IO);
    assert_non_null(strstr(dr_last_error(), "large became shorter while it was in use: it had 9437184 bytes and has 1000"));
    assert_int_equal(unlink(path), 0);
    scratch_write("large", "x", 1); /* another file of its name does no harm */
    dr_windows_destroy(windows);
    dr_tokens_destroy(tokens);
    dr_corpus_destroy(corpus);

    scratch_write("large", text, LARGE);
    assert_int_equal(dr_corpus_read(path, false, &corpus), DR_OK);
    assert_int_equal(dr_tokens_of_bytes(&corpus->documents, &tokens), DR_OK);
    assert_int_equal(dr_windows_create(tokens, 64, 1, &windows), DR_OK);
    assert_int_equal(unlink(path), 0);
    scratch_write("large", "x", 1);
    assert_int_equal(dr_windows_get(windows, 3, ids, labels, marks), DR_OK);
    dr_windows_destroy(windows);
    dr_tokens_destroy(tokens);
    dr_corpus_destroy(corpus);
    free(text);
}

/* What no text has is told by its place, at the ends of the parts that are read at once too. */
static void test_bad_bytes_of_large_files(void **state) {
    (void)state;
    uint8_t *text = large_text();
    dr_corpus *corpus;
    static const int64_t places[] = {0, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, LARGE - 1};
    for (int bad = 0; bad < 2; bad++)
        for (int i = 0; i < 5; i++) {
            uint8_t before = text[places[i]];
            char part[64];
            text[places[i]] = bad ? 0xff : 0;
            const char *path = scratch_write("large", text, LARGE);
            assert_int_equal(dr_corpus_read(path, false, &corpus), DR_ERROR_FORMAT);
            /* within a character it is the character that is told */
            int64_t told = (before & 0xc0) == 0x80 ? places[i] - places[i] % 3 : places[i];
            snprintf(part, sizeof part, "byte %lld ", (long long)told);
            assert_non_null(strstr(dr_last_error(), part));
            text[places[i]] = before;
        }
    free(text);
}

static void test_utf8(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes, valid;
    } cases[] = {{"", 0, 0},
                 {"plain\n", 6, 6},
                 {"a\0b", 3, 3},
                 {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, 9},
                 {"\xf4\x8f\xbf\xbf", 4, 4},         /* U+10FFFF */
                 {"\xed\x9f\xbf\xee\x80\x80", 6, 6}, /* the neighbours of the surrogates */
                 {"a\x80", 2, 1},                    /* a continuation alone */
                 {"a\xc3", 2, 1},                    /* cut short */
                 {"\xe2\x82", 2, 0},
                 {"\xf0\x9f\x98", 3, 0},
                 {"\xc3\x28", 2, 0},
                 {"\xc0\x80", 2, 0}, /* overlong */
                 {"\xc1\xbf", 2, 0},
                 {"\xe0\x9f\xbf", 3, 0},
                 {"\xf0\x8f\xbf\xbf", 4, 0},
                 {"\xed\xa0\x80", 3, 0},     /* a surrogate */
                 {"\xf4\x90\x80\x80", 4, 0}, /* above U+10FFFF */
                 {"\xf5\x80\x80\x80", 4, 0},
                 {"\xff", 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(dr_utf8_valid((const uint8_t *)cases[i].text, cases[i].bytes), cases[i].valid);
}

/* ---- held-out documents ---- */

/* Every byte of the corpus is in one part, once, and in the corpus's order. */
static void assert_parts_make_whole(const dr_corpus *corpus, const dr_split *split) {
    int64_t t = 0, h = 0;
    assert_int_equal(split->training.bytes + split->held_out.bytes, corpus->documents.bytes);
    for (int64_t i = 0; i < corpus->documents.count; i++) {
        const dr_document *document = &corpus->documents.at[i];
        int64_t covered = 0;
        if (t < split->training.count && split->training.at[t].text == document->text) covered += split->training.at[t++].bytes;
        if (h < split->held_out.count && split->held_out.at[h].text == document->text + covered)
            covered += split->held_out.at[h++].bytes;
        assert_int_equal(covered, document->bytes);
    }
    assert_int_equal(t, split->training.count);
    assert_int_equal(h, split->held_out.count);
}

static void test_whole_documents_are_held_out(void **state) {
    (void)state;
    enum { COUNT = 500 };
    int64_t sizes[COUNT], total = 0;
    for (int i = 0; i < COUNT; i++) total += sizes[i] = 2000 + 37 * (i % 100);
    sizes[250] = 3000000; /* more than twice the goal: never held out */
    total += 3000000 - (2000 + 37 * 50);
    dr_corpus corpus = made_corpus(sizes, COUNT);
    dr_split split, again, other;
    assert_int_equal(dr_split_create(&corpus, 1, 0, &split), DR_OK);
    assert_int_equal(dr_split_create(&corpus, 1, 0, &again), DR_OK);
    assert_int_equal(dr_split_create(&corpus, 2, 0, &other), DR_OK);
    assert_parts_make_whole(&corpus, &split);
    assert_null(split.cut);
    assert_true(split.held_out.bytes >= total / 20 && split.held_out.bytes >= 100000);
    assert_true(split.held_out.bytes < total / 20 + 6000);
    assert_int_equal(split.held_out.count, again.held_out.count);
    bool differs = split.held_out.count != other.held_out.count;
    for (int64_t i = 0; i < split.held_out.count; i++) {
        assert_ptr_equal(split.held_out.at[i].text, again.held_out.at[i].text);
        differs = differs || split.held_out.at[i].text != other.held_out.at[i].text;
    }
    assert_true(differs);
    dr_split_destroy(&split);
    dr_split_destroy(&again);
    dr_split_destroy(&other);
    free_corpus(&corpus);
}

static void test_one_file_gives_its_end(void **state) {
    (void)state;
    const int64_t size = 1000003;
    dr_corpus corpus = made_corpus(&size, 1);
    dr_split split;
    assert_int_equal(dr_split_create(&corpus, 1, 0, &split), DR_OK);
    assert_parts_make_whole(&corpus, &split);
    assert_string_equal(split.cut, "made");
    assert_true(split.held_out.bytes >= 100000 && split.held_out.bytes < 100010);
    assert_int_equal(split.held_out.at[0].text[-1], '\n');
    dr_split_destroy(&split);
    free_corpus(&corpus);
}

static void test_small_corpora_keep_four_fifths(void **state) {
    (void)state;
    const int64_t sizes[] = {1000, 1000, 1000, 1000, 1000, 1000, 1000};
    dr_corpus corpus = made_corpus(sizes, 7);
    dr_split split;
    assert_int_equal(dr_split_create(&corpus, 3, 0, &split), DR_OK);
    assert_parts_make_whole(&corpus, &split);
    assert_int_equal(split.held_out.bytes, 2000); /* 1400 are wanted */
    dr_split_destroy(&split);
    free_corpus(&corpus);

    uint8_t text[] =
        "\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac"; /* no line: cut at a character */
    dr_document euros = {.name = "euros", .text = text, .bytes = 18};
    corpus = (dr_corpus){.documents = {.at = &euros, .count = 1, .bytes = 18}};
    assert_int_equal(dr_split_create(&corpus, 3, 0, &split), DR_OK);
    assert_int_equal(split.training.bytes, 15);
    dr_split_destroy(&split);

    euros.bytes = corpus.documents.bytes = 3;
    assert_int_equal(dr_split_create(&corpus, 3, 0, &split), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "3 bytes"));
}

static void test_a_share_is_held_out(void **state) {
    (void)state;
    enum { COUNT = 200 };
    int64_t sizes[COUNT], total = 0;
    for (int i = 0; i < COUNT; i++) total += sizes[i] = 2000 + 37 * (i % 100);
    dr_corpus corpus = made_corpus(sizes, COUNT);
    dr_split split;
    static const double shares[] = {0.001, 0.01, 0.1, 0.5, 0.9};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(dr_split_create(&corpus, 1, shares[i], &split), DR_OK);
        assert_parts_make_whole(&corpus, &split);
        assert_true((double)split.held_out.bytes >= shares[i] * (double)total);
        assert_true((double)split.held_out.bytes <= shares[i] * (double)total + 6000);
        dr_split_destroy(&split);
    }
    free_corpus(&corpus);
    const int64_t few[] = {1000, 1000}; /* a whole one would be too much of what is to stay: an end is cut */
    corpus = made_corpus(few, 2);
    assert_int_equal(dr_split_create(&corpus, 1, 0.8, &split), DR_OK);
    assert_parts_make_whole(&corpus, &split);
    assert_true(split.held_out.bytes >= 1600 && split.training.bytes >= 300);
    dr_split_destroy(&split);
    assert_int_equal(dr_split_create(&corpus, 1, 0.99999, &split), DR_ERROR_ARGUMENT);
    free_corpus(&corpus);
}

/* Held-out text by its path: what lies in both, by whatever name, is not trained on. */
static void test_held_out_text_by_path(void **state) {
    (void)state;
    write_text("all/a", "first");
    write_text("all/b/c", "second");
    write_text("all/d", "third");
    write_text("apart/e", "apart");
    assert_int_equal(symlink("../all/b", scratch_path("apart/b")), 0);
    dr_corpus *all, *apart;
    dr_split split;
    assert_int_equal(dr_corpus_read(scratch_path("all"), false, &all), DR_OK);
    assert_int_equal(dr_corpus_read(scratch_path("apart"), false, &apart), DR_OK);
    assert_int_equal(dr_split_create_from(all, apart, &split), DR_OK);
    assert_int_equal(split.training.count, 2);
    assert_string_equal(split.training.at[1].name, scratch_path("all/d"));
    assert_int_equal(split.training.bytes, 10);
    assert_int_equal(split.held_out.count, 2);
    assert_int_equal(split.held_out.bytes, 11);
    dr_split_destroy(&split);
    assert_int_equal(dr_split_create_from(all, all, &split), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "none is left to train on"));
    assert_true(dr_corpus_fingerprint(apart, dr_corpus_fingerprint(all, 0)) != dr_corpus_fingerprint(all, 0));
    dr_corpus_destroy(all);
    dr_corpus_destroy(apart);
}

/* ---- failed allocations ---- */

static dr_status use_everything(void *context) {
    (void)context;
    dr_corpus *corpus = NULL, *other = NULL;
    dr_split split = {0}, from = {0};
    dr_tokens *tokens = NULL;
    dr_windows *windows = NULL;
    dr_mqar *mqar = NULL;
    dr_status status;
    DR_GO(dr_corpus_read(scratch_path("order"), false, &corpus));
    DR_GO(dr_split_create(corpus, 1, 0, &split));
    DR_GO(dr_corpus_read(scratch_path("mixed"), true, &other));
    DR_GO(dr_split_create_from(corpus, other, &from));
    DR_GO(dr_tokens_of_bytes(&split.training, &tokens));
    DR_GO(dr_windows_create(tokens, 4, 1, &windows));
    DR_GO(dr_mqar_create(&(dr_mqar_shape){8192, 64, 4, 0.01, true, 0}, &mqar));
done:
    dr_mqar_destroy(mqar);
    dr_windows_destroy(windows);
    dr_tokens_destroy(tokens);
    dr_split_destroy(&split);
    dr_split_destroy(&from);
    dr_corpus_destroy(corpus);
    dr_corpus_destroy(other);
    return status;
}

static void test_failed_allocations_are_survived(void **state) {
    (void)state;
    assert_true(assert_survives_failed_allocations(use_everything, NULL) > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder_is_read_in_order_of_names),
        cmocka_unit_test(test_many_files),
        cmocka_unit_test(test_bad_corpora_are_refused),
        cmocka_unit_test(test_links_are_followed),
        cmocka_unit_test(test_links_lead_no_way_up),
        cmocka_unit_test(test_unreadable_files_are_named_and_counted),
        cmocka_unit_test(test_deep_folders),
        cmocka_unit_test(test_a_share_is_held_out),
        cmocka_unit_test(test_held_out_text_by_path),
        cmocka_unit_test(test_large_files_are_mapped),
        cmocka_unit_test(test_bad_bytes_of_large_files),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_whole_documents_are_held_out),
        cmocka_unit_test(test_one_file_gives_its_end),
        cmocka_unit_test(test_small_corpora_keep_four_fifths),
        cmocka_unit_test(test_failed_allocations_are_survived),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
