/* Regular expressions: what the translation for PCRE2 cuts, as recorded of Hugging Face's `tokenizers`, which run Oniguruma
 * (tests/expressions.json, made by tests/python/record_expressions.py); what is refused; what would take for ever. */
#include "allocation.h"
#include "statuses.h"
#include "tokenize/split.h"

#include <jansson.h>

#include <cmocka.h>

/* ---- recorded pieces --------------------------------------------------------------------------------------------------- */

static dr_status append(void *context, const char *text, size_t bytes) {
    return json_array_append_new(context, json_stringn(text, bytes)) == 0 ? DR_OK : DR_ERROR_MEMORY;
}

/* The pieces that an expression cuts a text into: matches and what lies between, or only the latter. */
static dr_status cut(const char *expression, const char *text, size_t bytes, dr_behavior behavior, json_t *pieces) {
    dr_text changed[2] = {{0}, {0}};
    dr_stage stage = {.match = DR_MATCH_PATTERN, .behavior = behavior};
    dr_split_work work = {.changed = changed, .emit = append, .context = pieces};
    dr_status status;
    DR_GO(dr_pattern_compile(expression, strlen(expression), &stage.pattern));
    DR_GO(dr_searcher_create(&work.searcher));
    dr_searcher_begin(work.searcher, bytes);
    DR_GO(dr_split_piece(&stage, 1, &work, (dr_piece){text, bytes, true}));
done:
    dr_searcher_destroy(work.searcher);
    dr_pattern_destroy(stage.pattern);
    return status;
}

static bool cuts_as(const json_t *recorded, const char *key, dr_behavior behavior) {
    const char *expression = json_string_value(json_object_get(recorded, "expression"));
    const json_t *text = json_object_get(recorded, "text"), *expected = json_object_get(recorded, key);
    json_t *pieces = json_array();
    must(cut(expression, json_string_value(text), json_string_length(text), behavior, pieces));
    bool same = json_equal(pieces, expected);
    if (!same) {
        char *found = json_dumps(pieces, 0), *wanted = json_dumps(expected, 0);
        print_error("%s: %s instead of %s\n", expression, found, wanted);
        free(found), free(wanted);
    }
    json_decref(pieces);
    return same;
}

static void test_recorded(void **state) {
    json_t *file = json_load_file(DR_TESTS_FOLDER "/expressions.json", 0, NULL), *one;
    size_t index, failures = 0;
    (void)state;
    json_array_foreach(json_object_get(file, "cases"), index, one) {
        failures += !cuts_as(one, "pieces", DR_ISOLATED);
        failures += !cuts_as(one, "between", DR_REMOVED);
    }
    assert_in_range(index, 70, 1000);
    assert_int_equal(failures, 0);
    json_decref(file);
}

/* ---- refused ----------------------------------------------------------------------------------------------------------- */

static void test_refused(void **state) {
    static const struct {
        const char *expression;
        dr_status status;
        const char *words;
    } cases[] = {{"(a)\\1", DR_ERROR_UNSUPPORTED, "an escape that is not known at byte 4"},
                 {"\\K", DR_ERROR_UNSUPPORTED, "at byte 1"},
                 {"\\G", DR_ERROR_UNSUPPORTED, "at byte 1"},
                 {"\\X", DR_ERROR_UNSUPPORTED, "at byte 1"},
                 {"[[:alpha:]]", DR_ERROR_UNSUPPORTED, "a class of POSIX"},
                 {"(?~a)", DR_ERROR_UNSUPPORTED, "a group of another kind"},
                 {"(?(1)a|b)", DR_ERROR_UNSUPPORTED, "a group of another kind"},
                 {"\\p{Script=Han}", DR_ERROR_UNSUPPORTED, "a property of another name"},
                 {"\\p{Nonsense}", DR_ERROR_UNSUPPORTED, "a property of another name"},
                 {"(?i:ss)", DR_ERROR_UNSUPPORTED, ""},
                 {"\\xff", DR_ERROR_UNSUPPORTED, "a byte of a character"},
                 {"a{70000}", DR_ERROR_UNSUPPORTED, "more repeats than 65535"},
                 {"(?=a)*", DR_ERROR_UNSUPPORTED, "a repeated anchor or lookaround"},
                 {"(a", DR_ERROR_FORMAT, "a group is not closed"},
                 {"a)", DR_ERROR_FORMAT, "a closing bracket too many"},
                 {"[a", DR_ERROR_FORMAT, "a class is not closed"},
                 {"*a", DR_ERROR_FORMAT, "there is nothing to repeat"},
                 {"a\\", DR_ERROR_FORMAT, "it ends with a backslash"},
                 {"\\x{110000}", DR_ERROR_FORMAT, "there is no such character"},
                 {"\\u00", DR_ERROR_FORMAT, "four hexadecimal digits"},
                 {"(?<n", DR_ERROR_FORMAT, "the name of a group is not closed"},
                 {"(?#", DR_ERROR_FORMAT, "a comment is not closed"},
                 {"\xff", DR_ERROR_FORMAT, "it is not UTF-8"},
                 {"(?<=a*)b", DR_ERROR_UNSUPPORTED, "cannot be used"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dr_pattern *none;
        assert_refused(dr_pattern_compile(cases[i].expression, strlen(cases[i].expression), &none), cases[i].status,
                       cases[i].words);
    }
}

/* A part again and again. */
static char *repeated(const char *part, size_t times) {
    const size_t length = strlen(part);
    char *text = malloc(times * length + 1);
    assert_non_null(text);
    for (size_t i = 0; i < times; i++) memcpy(text + i * length, part, length);
    text[times * length] = '\0';
    return text;
}

static void test_deep(void **state) {
    static const char *const parts[] = {"(", "[", "(?:", "(?=", "[^", "(?i)", "(a|", "[a&&", "a{9}{9}", "\\p{L}", "[a-"};
    (void)state;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (size_t times = 50; times <= 50000; times *= 10) {
            char *expression = repeated(parts[i], times);
            dr_pattern *pattern;
            if (dr_pattern_compile(expression, strlen(expression), &pattern) == DR_OK)
                dr_pattern_destroy(pattern);
            else
                assert_true(strlen(dr_last_error()) > 10);
            free(expression);
        }
}

/* ---- time -------------------------------------------------------------------------------------------------------------- */

/* Expressions whose searches explode, each by itself or all together. */
static void test_explosions(void **state) {
    static const struct {
        const char *expression, *part;
        size_t times;
        const char *words;
    } cases[] = {{"(a*)*b|x", "a", 20000, "takes too many steps on this text"},
                 {"(?=(a|a)*q)z|a", "a", 20000, "takes too many steps on this text"},
                 {"(?:a?){30}a{30}q|a", "a", 3000, "takes too many steps on this text"},
                 {"(?=.*q)z|x", "x", 400000, "take too long on this text of 400000 bytes"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = repeated(cases[i].part, cases[i].times);
        json_t *pieces = json_array();
        assert_refused(cut(cases[i].expression, text, strlen(text), DR_ISOLATED, pieces), DR_ERROR_UNSUPPORTED, cases[i].words);
        json_decref(pieces);
        free(text);
    }
}

/* ---- allocations ------------------------------------------------------------------------------------------------------- */

static dr_status compile_and_cut(void *context) {
    json_t *pieces = json_array();
    dr_status status = cut(context, "it's 12 AB\n", 11, DR_ISOLATED, pieces);
    json_decref(pieces);
    return status;
}

static void test_allocations(void **state) {
    (void)state;
    assert_survives_failed_allocations(compile_and_cut,
                                       "(?i:'s|'t)|[\\p{L}&&[^\\p{Han}]]+|\\p{N}{1,3}+|\\b[^[^a]]|\\s+(?!\\S)|\\s");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_recorded), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_deep), cmocka_unit_test(test_explosions),
                                       cmocka_unit_test(test_allocations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
