/* Numbers and lines as the command line shows them. */
#include "cli/progress.h"
#include "scratch.h"

#include <math.h>

static void test_seconds(void **state) {
    (void)state;
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "0 s"},           {0.4, "0 s"},         {59.4, "59 s"},
                 {59.6, "1 min 00 s"}, {61, "1 min 01 s"},   {3599, "59 min 59 s"},
                 {3600, "1 h 00 min"}, {7384, "2 h 03 min"}, {90000, "25 h 00 min"},
                 {-5, "0 s"},          {NAN, "0 s"},         {INFINITY, "0 s"}};
    char text[32];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(cli_format_seconds(cases[i].seconds, text), cases[i].text);
}

static void test_counts(void **state) {
    (void)state;
    static const struct {
        double count;
        const char *text;
    } cases[] = {{0, "0"}, {999, "999"}, {1000, "1.0 k"}, {25340, "25.3 k"}, {1e6, "1.00 M"}, {12345678, "12.35 M"}};
    char text[32];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(cli_format_count(cases[i].count, text), cases[i].text);
}

/* A live line is written over the one before, with blanks where that was longer; one that lasts ends in a line feed. */
static void test_lines(void **state) {
    (void)state;
    static const struct {
        bool live;
        const char *wanted;
    } cases[] = {{false, "a long line\nshort\nlasting\n"}, {true, "\ra long line\rshort      \rlasting\n"}};
    for (int i = 0; i < 2; i++) {
        size_t bytes = 0;
        const char *path = scratch_write("lines", "", 0);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        cli_progress progress = cli_progress_begin(file);
        assert_false(progress.live); /* a file is no terminal */
        assert_true(cli_progress_due(&progress));
        progress.live = cases[i].live;
        cli_progress_show(&progress, false, "a long line");
        assert_false(cli_progress_due(&progress));
        cli_progress_show(&progress, false, "short");
        cli_progress_show(&progress, true, "lasting");
        cli_progress_end(&progress);
        fclose(file);
        char *text = scratch_read_at(path, &bytes);
        assert_string_equal(text, cases[i].wanted);
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seconds),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_lines),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
