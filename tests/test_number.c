/* Numbers as text: hard cases of reading and writing, in the locale "C" and in others whose numbers look different. */
#include "base/error.h"
#include "base/number.h"
#include "base/random.h"
#include "foreign_locale.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

static uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double double_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void assert_reads(const char *text, dr_number_kind kind, double value, size_t used) {
    double read = -77;
    const char *end = dr_number_read(text, strlen(text), kind, &read);
    if (!end || (size_t)(end - text) != used || bits_of(read) != bits_of(value))
        fail_msg("\"%.40s\" was read as %a, %d characters", text, read, end ? (int)(end - text) : -1);
}

static void assert_refuses(const char *text, dr_number_kind kind) {
    double read = -77;
    if (dr_number_read(text, strlen(text), kind, &read)) fail_msg("\"%.40s\" was read as %a", text, read);
    assert_false(dr_number_parse(text, kind, &read));
    assert_true(read == -77);
}

static const struct {
    const char *text;
    double value;
} whole[] = {
    {"0", 0},
    {"-0", -0.0},
    {"+7", 7},
    {"0.5", 0.5},
    {".5", 0.5},
    {"5.", 5},
    {"1e3", 1000},
    {"1E+3", 1000},
    {"-12.5e-1", -1.25},
    {"0x1.8p1", 3},
    {"0X.8P+1", 1},
    {"-0xA", -10},
    {"0x1.fffffffffffffp1023", DBL_MAX},
    {"1.7976931348623157e308", DBL_MAX},
    {"1.7976931348623158e308", DBL_MAX}, /* rounds down */
    {"2.2250738585072011e-308", 0x0.fffffffffffffp-1022},
    {"2.2250738585072012e-308", 0x1p-1022},
    {"4.9406564584124654e-324", 0x1p-1074},
    {"2.4703282292062328e-324", 0x1p-1074}, /* just above half of the least number */
    {"2.4703282292062327e-324", 0},         /* just below */
    {"1e-400", 0},
    {"-1e-99999999999999999999", -0.0},
    {"9007199254740993", 9007199254740992},                                              /* a tie goes to even */
    {"9007199254740993.00000000000000000000000000000000000000000001", 9007199254740994}, /* just above the tie */
    {"0.1000000000000000055511151231257827021181583404541015625", 0.1},
};

static void test_reading_whole_texts(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        double value;
        assert_reads(whole[i].text, DR_NUMBER_FINITE, whole[i].value, strlen(whole[i].text));
        assert_true(dr_number_parse(whole[i].text, DR_NUMBER_ANY, &value));
        assert_true(bits_of(value) == bits_of(whole[i].value));
    }
}

static void test_reading_stops_where_the_number_ends(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double value;
        size_t used;
    } begun[] = {
        {"0,5", 0, 1},
        {"1.5,2", 1.5, 3},
        {"1.2.3", 1.2, 3},
        {"1e", 1, 1},
        {"1e+", 1, 1},
        {"1e5.5", 1e5, 3},
        {"0x", 0, 1},
        {"0x.p1", 0, 1},
        {"0xg", 0, 1},
        {"0x1p", 1, 3},
        {"1p3", 1, 1},
        {"2 ", 2, 1},
        {"3\n4", 3, 1},
        {"1'000", 1, 1},
        {"1\xd9\xab"
         "5",
         1, 1},
        {"4f", 4, 1},
        {"1.000,5", 1, 5},
    };
    for (size_t i = 0; i < sizeof begun / sizeof *begun; i++) {
        double value = -77;
        assert_reads(begun[i].text, DR_NUMBER_FINITE, begun[i].value, begun[i].used);
        assert_false(dr_number_parse(begun[i].text, DR_NUMBER_ANY, &value));
        assert_true(value == -77);
    }
}

static void test_what_is_no_number(void **state) {
    (void)state;
    static const char *const wrong[] = {"",         " 1",  "\t1",  "+",     "-",      ".",        "e5",
                                        ".e5",      "--1", "+-1",  "x1",    ",5",     "one",      "in",
                                        "na",       "-i",  "\xff", "1e400", "-1e400", "0x1p1024", "1.7976931348623159e308",
                                        "\331\2535"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_refuses(wrong[i], DR_NUMBER_FINITE);
        assert_refuses(wrong[i], DR_NUMBER_ANY);
    }
}

static void test_infinity_and_nan_where_allowed(void **state) {
    (void)state;
    static const char *const words[] = {"inf", "-inf", "+INF", "Infinity", "-INFINITY", "nan", "-NaN"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        double value = 0;
        assert_refuses(words[i], DR_NUMBER_FINITE);
        assert_true(dr_number_parse(words[i], DR_NUMBER_ANY, &value));
        assert_true(strpbrk(words[i], "aA") ? isnan(value) : isinf(value) && (value < 0) == (words[i][0] == '-'));
    }
    assert_reads("infinite", DR_NUMBER_ANY, INFINITY, 3);
    assert_reads("-inf,", DR_NUMBER_ANY, -INFINITY, 4);
}

static void test_long_numbers(void **state) {
    (void)state;
    char text[DR_NUMBER_LONGEST + 2];
    memset(text, '0', sizeof text);
    text[0] = '1';
    text[1] = '.';
    text[DR_NUMBER_LONGEST] = '\0';
    assert_reads(text, DR_NUMBER_FINITE, 1, DR_NUMBER_LONGEST);
    text[DR_NUMBER_LONGEST] = '0';
    text[DR_NUMBER_LONGEST + 1] = '\0';
    assert_refuses(text, DR_NUMBER_FINITE);
    memset(text, '9', 309);
    text[309] = '\0';
    assert_refuses(text, DR_NUMBER_FINITE);
    text[308] = '\0';
    assert_reads(text, DR_NUMBER_FINITE, 1e308, 308);
    /* the middle between 1 and the next double has 53 digits; what decides stands in the last of a thousand */
    memset(text, '0', DR_NUMBER_LONGEST);
    memcpy(text, "1.00000000000000011102230246251565404236316680908203125", 55);
    text[1000] = '\0';
    assert_reads(text, DR_NUMBER_FINITE, 1, 1000);
    text[999] = '1';
    assert_reads(text, DR_NUMBER_FINITE, 1 + DBL_EPSILON, 1000);
}

static void test_whole_numbers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {
        {"0", 0}, {"-0", 0}, {"+7", 7}, {"00012", 12}, {"9223372036854775807", INT64_MAX}, {"-9223372036854775808", INT64_MIN}};
    static const char *const wrong[] = {"",
                                        "-",
                                        "+",
                                        " 1",
                                        "\t1",
                                        "1 ",
                                        "1.0",
                                        "1e3",
                                        "0x10",
                                        "1,000",
                                        "9223372036854775808",
                                        "-9223372036854775809",
                                        "99999999999999999999",
                                        "--1"};
    int64_t value = -77;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (dr_integer_parse(wrong[i], &value)) fail_msg("\"%s\" was read as a whole number", wrong[i]);
    assert_int_equal(value, -77);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(dr_integer_parse(good[i].text, &value));
        assert_true(value == good[i].value);
    }
}

/* Nothing behind the text is touched, even if the number would go on there. */
static void test_reading_stays_inside_the_text(void **state) {
    (void)state;
    long page = sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, (size_t)(2 * page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    assert_int_equal(mprotect(pages + page, (size_t)page, PROT_NONE), 0);
    static const char *const texts[] = {"1.25", "1e", "1e+", "0x", "-", "0x1.p", "inf", "infinit", "na", "+.", "7"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        double value = -77, expected = -77;
        size_t length = strlen(texts[i]);
        char *copy = pages + page - length;
        memcpy(copy, texts[i], length);
        const char *end = dr_number_read(copy, length, DR_NUMBER_ANY, &value);
        const char *right = dr_number_read(texts[i], length, DR_NUMBER_ANY, &expected);
        assert_int_equal(end ? end - copy : -1, right ? right - texts[i] : -1);
        assert_true(value == expected);
    }
    double value;
    const char *digits = "12345";
    assert_ptr_equal(dr_number_read(digits, 2, DR_NUMBER_FINITE, &value), digits + 2);
    assert_true(value == 12);
    assert_null(dr_number_read("12345", 0, DR_NUMBER_FINITE, &value));
    munmap(pages, (size_t)(2 * page));
}

static void test_errno_is_kept(void **state) {
    (void)state;
    double value;
    errno = EPIPE;
    assert_true(dr_number_parse("1e-400", DR_NUMBER_FINITE, &value));
    assert_int_equal(errno, EPIPE);
    assert_false(dr_number_parse("1e400", DR_NUMBER_FINITE, &value));
    assert_int_equal(errno, EPIPE);
}

static void assert_writes(double value, const char *expected) {
    char text[DR_NUMBER_SIZE];
    dr_number_write(value, text);
    assert_string_equal(text, expected);
}

static void test_writing(void **state) {
    (void)state;
    assert_writes(0, "0");
    assert_writes(-0.0, "-0");
    assert_writes(1, "1");
    assert_writes(0.1, "0.1");
    assert_writes(-2.5, "-2.5");
    assert_writes(0.1 + 0.2, "0.30000000000000004");
    assert_writes(1.0 / 3, "0.3333333333333333");
    assert_writes(1e15, "1e+15");
    assert_writes(123456, "123456");
    assert_writes(1e23, "1e+23");
    assert_writes(DBL_MAX, "1.7976931348623157e+308");
    assert_writes(0x1p-1074, "5e-324");
    assert_writes(DBL_MIN, "2.2250738585072014e-308");
    assert_writes(INFINITY, "inf");
    assert_writes(-INFINITY, "-inf");
    assert_writes(NAN, "nan");
    assert_writes(-NAN, "nan");
}

static void test_everything_written_is_read_with_the_same_bits(void **state) {
    (void)state;
    dr_random random = {.seed = 33};
    for (int i = 0; i < 200000; i++) {
        double value = double_of(((uint64_t)dr_random_below(&random, 1ull << 32) << 32) | dr_random_below(&random, 1ull << 32));
        char text[DR_NUMBER_SIZE], exact[64];
        double again, exactly;
        if (isnan(value)) continue;
        if (i % 3 == 1) value = ldexp(value, -1000); /* around and below the least normal number */
        if (i % 3 == 2) value = (double)(float)value;
        dr_number_write(value, text);
        dr_format(exact, sizeof exact, "%a", value);
        assert_in_range(strlen(text), 1, DR_NUMBER_SIZE - 1);
        assert_null(strchr(text, ','));
        assert_true(dr_number_parse(text, DR_NUMBER_ANY, &again));
        assert_true(dr_number_parse(exact, DR_NUMBER_ANY, &exactly));
        assert_true(bits_of(again) == bits_of(value));
        assert_true(bits_of(exactly) == bits_of(value));
    }
}

static void test_formats_and_sentences(void **state) {
    (void)state;
    char text[64];
    assert_int_equal(dr_format(text, sizeof text, "%g and %.3f, %a of %d %s", 0.5, 1234.5, 1.5, 7, "x"), 33);
    assert_string_equal(text, "0.5 and 1234.500, 0x1.8p+0 of 7 x");
    assert_int_equal(dr_format(text, 4, "%.2f", 1.25), 4);
    assert_string_equal(text, "1.2");
    dr_fail(DR_ERROR_ARGUMENT, "it is %g, not %.2f", 0.25, 1.5);
    dr_fail_in(DR_ERROR_ARGUMENT, "at %g", 2.5);
    assert_string_equal(dr_last_error(), "at 2.5: it is 0.25, not 1.50");
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_int_equal(dr_print(file, "%.1f;%d\n", 2.5, 3), 6);
    rewind(file);
    assert_non_null(fgets(text, sizeof text, file));
    assert_string_equal(text, "2.5;3\n");
    fclose(file);
}

/* The host's locale is as it was after every call, on this thread and on others. */
static void *other_thread(void *rounds) {
    for (int i = 0; i < *(int *)rounds; i++) {
        char text[DR_NUMBER_SIZE];
        double value;
        dr_number_write(0.5, text);
        if (strcmp(text, "0.5") != 0 || !dr_number_parse("2.5", DR_NUMBER_FINITE, &value) || value != 2.5) return rounds;
    }
    return NULL;
}

static void test_the_locale_of_the_host_stays(void **state) {
    (void)state;
    char here[64], before[64];
    int rounds = 20000;
    void *wrong;
    pthread_t thread;
    snprintf(before, sizeof before, "%.2f", 0.5);
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &rounds), 0);
    for (int i = 0; i < rounds; i++) {
        snprintf(here, sizeof here, "%.2f", 0.5);
        assert_string_equal(here, before);
    }
    assert_null(other_thread(&rounds));
    snprintf(here, sizeof here, "%.2f", 0.5);
    assert_string_equal(here, before);
    assert_int_equal(pthread_join(thread, &wrong), 0);
    assert_null(wrong);
    /* a locale of the thread's own is put back as well */
    locale_t own = duplocale(LC_GLOBAL_LOCALE);
    locale_t first = uselocale(own);
    assert_null(other_thread(&rounds));
    assert_ptr_equal(uselocale((locale_t)0), own);
    uselocale(first);
    freelocale(own);
}

static int run(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reading_whole_texts),
        cmocka_unit_test(test_reading_stops_where_the_number_ends),
        cmocka_unit_test(test_what_is_no_number),
        cmocka_unit_test(test_infinity_and_nan_where_allowed),
        cmocka_unit_test(test_long_numbers),
        cmocka_unit_test(test_whole_numbers),
        cmocka_unit_test(test_reading_stays_inside_the_text),
        cmocka_unit_test(test_errno_is_kept),
        cmocka_unit_test(test_writing),
        cmocka_unit_test(test_everything_written_is_read_with_the_same_bits),
        cmocka_unit_test(test_formats_and_sentences),
        cmocka_unit_test(test_the_locale_of_the_host_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void) {
    int failed = run(), set = 0;
    for (int i = 0; i < FOREIGN_LOCALES; i++) {
        if (!foreign_locale_set(i)) continue;
        printf("in the locale %s:\n", foreign_locales[i]);
        failed += run();
        set++;
    }
    return failed ? 1 : set ? 0 : SKIPPED;
}
