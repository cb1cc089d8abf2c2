/* Text at its edges: UTF-8 that ends where memory ends, and the number by which a resumed run knows its corpus. */
#include "base/utf8.h"
#include "data/corpus.h"
#include "statuses.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- UTF-8 ---- */

static uint8_t *page; /* a readable page; the one behind it must not be touched */
static size_t page_bytes;

static int open_pages(void **state) {
    (void)state;
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    page = mmap(NULL, 2 * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return -1;
    return mprotect(page + page_bytes, page_bytes, PROT_NONE);
}

static int close_pages(void **state) {
    (void)state;
    return munmap(page, 2 * page_bytes);
}

/* The first offset that is not valid, of text whose last byte is the last of the page. */
static int64_t valid_at_the_end(const char *text, size_t bytes) {
    uint8_t *begin = page + page_bytes - bytes;
    memcpy(begin, text, bytes);
    return dr_utf8_valid(begin, (int64_t)bytes);
}

/* Each sequence whole, and cut behind each of its bytes: the bytes that are missing are not read. */
static void test_cut_sequences(void **state) {
    (void)state;
    static const char *const whole[] = {"\xc3\xa9",         "\xdf\xbf",         "\xe2\x82\xac",
                                        "\xe0\xa0\x80",     "\xed\x9f\xbf",     "\xef\xbf\xbf",
                                        "\xf0\x9f\x98\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        size_t bytes = strlen(whole[i]);
        assert_int_equal(valid_at_the_end(whole[i], bytes), bytes);
        for (size_t kept = 1; kept < bytes; kept++) {
            char text[8] = "ab";
            memcpy(text + 2, whole[i], kept);
            assert_int_equal(valid_at_the_end(text, 2 + kept), 2);
        }
    }
}

/* Every pair and triple of bytes that begins a sequence, against RFC 3629's table written out. */
static void test_all_beginnings(void **state) {
    (void)state;
    for (int first = 0x80; first < 0x100; first++)
        for (int second = 0; second < 0x100; second++) {
            int least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
            int most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
            bool fits = second >= least && second <= most;
            int bytes = first >= 0xc2 && first <= 0xdf ? 2 : first >= 0xe0 && first <= 0xef ? 3 : 4;
            bool valid = first >= 0xc2 && first <= 0xf4 && fits;
            const char text[] = {(char)first, (char)second, '\x80', '\xbf'};
            assert_int_equal(valid_at_the_end(text, (size_t)bytes), valid ? bytes : 0);
        }
}

/* ---- fingerprint ---- */

static uint64_t fingerprint(const char *const *texts, int64_t count) {
    dr_document documents[4];
    assert_true(count <= 4);
    for (int64_t i = 0; i < count; i++)
        documents[i] = (dr_document){.name = "a", .text = (const uint8_t *)texts[i], .bytes = (int64_t)strlen(texts[i])};
    return dr_corpus_fingerprint(&(dr_corpus){.documents = {.at = documents, .count = count}}, 0);
}

/* 64-bit FNV-1a over length (8 bytes, lowest first) and text of each document. */
static uint64_t by_hand(const char *const *texts, int64_t count) {
    uint64_t hash = 14695981039346656037U;
    for (int64_t i = 0; i < count; i++) {
        uint64_t length = strlen(texts[i]);
        for (int byte = 0; byte < 8; byte++, length >>= 8) hash = (hash ^ (length & 255)) * 1099511628211U;
        for (const char *c = texts[i]; *c; c++) hash = (hash ^ (uint8_t)*c) * 1099511628211U;
    }
    return hash;
}

/* Where documents end and in which order they stand count as much as what they say. */
static void test_fingerprint(void **state) {
    (void)state;
    const char *const texts[][3] = {{"abc", "def", "g"}, {"ab", "cdef", "g"}, {"abc", "de", "fg"}, {"abcdef", "g", ""},
                                    {"def", "abc", "g"}, {"abc", "def", "h"}, {"abcdefg", "", ""}, {"a", "bcdef", "g"}};
    enum { COUNT = sizeof texts / sizeof *texts };
    uint64_t found[COUNT];
    for (int i = 0; i < COUNT; i++) {
        found[i] = fingerprint(texts[i], 3);
        assert_true(found[i] == by_hand(texts[i], 3));
        for (int k = 0; k < i; k++) assert_true(found[i] != found[k]);
    }
    assert_true(fingerprint(texts[0], 2) != fingerprint(texts[0], 3));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_sequences),
        cmocka_unit_test(test_all_beginnings),
        cmocka_unit_test(test_fingerprint),
    };
    return cmocka_run_group_tests(tests, open_pages, close_pages);
}
