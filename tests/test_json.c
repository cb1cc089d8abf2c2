/* JSON files: what other programs write, what is no JSON, values of every type, and numbers that read back as they were. */
#include "allocation.h"
#include "formats/json.h"
#include "scratch.h"

#include <math.h>

static void assert_says(const char *words) {
    if (!strstr(dr_last_error(), words)) fail_msg("\"%s\" does not say %s", dr_last_error(), words);
}

static dr_status read_json(void *context) {
    json_t *object;
    DR_TRY(dr_json_read(context, &object));
    json_decref(object);
    return DR_OK;
}

static void test_json_syntax(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {{"", "c.json is empty: it must be a JSON object"},
                 {"{\"a\": \"x\\u0000\"}", "c.json, line 1, column 15: a text has a zero byte"},
                 {"{\n  \"a\": 1,\n  \"b\" 2\n}", "c.json, line 3, column 7: ':' expected"},
                 {"{\"a\": 1, \"a\": 2}", "duplicate object key"},
                 {"{\"a\": 1} x", "end of file expected"},
                 {"{\"a\": 1e999}", "real number overflow"},
                 {"{\"a\": 99999999999999999999}", "too big integer"},
                 {"{'a': 1}", "line 1"},
                 {"{\"a\": NaN}", "line 1"},
                 {"[1, 2]", "c.json holds an array: it must be a JSON object"}};
    json_t *object = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(dr_json_parse(cases[i].text, strlen(cases[i].text), "c.json", &object), DR_ERROR_FORMAT);
        assert_null(object);
        assert_says(cases[i].says);
    }
    const char *big = scratch_path("big.json");
    scratch_write_at(big, "{}", 2);
    assert_int_equal(truncate(big, 100000001), 0);
    assert_int_equal(dr_json_read(big, &object), DR_ERROR_FORMAT);
    assert_says("at most 100000000 are read");
    assert_int_equal(dr_json_read(scratch_folder, &object), DR_ERROR_IO);
    assert_int_equal(dr_json_read(scratch_path("none.json"), &object), DR_ERROR_IO);
    assert_says("none.json: cannot open: No such file");
}

/* A byte order mark, and the numbers that are not finite as Python writes them: everywhere but in strings. */
static void test_json_of_other_programs(void **state) {
    (void)state;
    static const char text[] = "\xef\xbb\xbf{\"a\": NaN, \"b\": [0.0, Infinity,-Infinity], \"c\": \"NaN \\\" Infinity\", "
                               "\"NaN\":NaN,\"d\\\\\": Infinity}";
    json_t *object = NULL;
    double number = 3;
    assert_int_equal(dr_json_parse(text, strlen(text), "c.json", &object), DR_ERROR_FORMAT);
    scratch_write_at(scratch_path("python.json"), text, strlen(text));
    assert_int_equal(dr_json_read(scratch_path("python.json"), &object), DR_OK);
    assert_int_equal(dr_json_real(object, "a", -1, 1, &number), DR_ERROR_FORMAT);
    assert_says("\"a\" is nan: it must be from -1 to 1");
    assert_int_equal(dr_json_real(object, "d\\", 0, INFINITY, &number), DR_OK);
    assert_true(number == INFINITY);
    assert_string_equal(json_string_value(json_array_get(json_object_get(object, "b"), 2)), "-Infinity");
    assert_string_equal(json_string_value(json_object_get(object, "c")), "NaN \" Infinity");
    assert_non_null(json_object_get(object, "NaN"));
    json_decref(object);
    assert_survives_failed_allocations(read_json, (void *)scratch_path("python.json"));
    static const char *const wrong[] = {"{\"a\": NaNs}",
                                        "{\"a\": -NaN}",
                                        "{\"a\": +Infinity}",
                                        "{\"a\": Infinity1}",
                                        "{\"a\": nan}",
                                        "{\"a\": inf}",
                                        "{\"a\": 1Infinity}",
                                        "{NaN: 1}x",
                                        "{\"a\": \"Infinity",
                                        "\xef\xbb\xbf",
                                        "\xef\xbb{}",
                                        "{\"a\": \"\\",
                                        "{\"a\": 1}\xef\xbb\xbf",
                                        "\xff\xfe{\"a\": 1}",
                                        "NaN",
                                        ""};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (dr_json_parse_lenient(wrong[i], strlen(wrong[i]), "c.json", &object) != DR_ERROR_FORMAT) fail_msg("%s", wrong[i]);
}

/* Numbers beyond int64 and double, as programs in Python write them, are no fault where no key counts them; others stay
 * numbers. */
static void test_json_numbers_too_large(void **state) {
    (void)state;
    static const char text[] =
        "{\"a\": 1000000000000000019884624838656,\"b\":[1e999,-1E+400, 1.5e308], \"c\": 9223372036854775808, "
        "\"d\": 9223372036854775807,\"e\":-9223372036854775808, \"f\": \"1e999\", \"g\": 1e-999, "
        "\"h\": {\"n\": 1e999, \"nan\": NaN, \"text\": \"1e999x\", \"long\": 11111111111111111111111111111111111111111}}";
    json_t *object = NULL;
    int64_t number = 3;
    double real = 0;
    char found[96];
    if (dr_json_parse_lenient(text, strlen(text), "c.json", &object) != DR_OK) fail_msg("%s", dr_last_error());
    assert_string_equal(json_string_value(json_object_get(object, "a")), "1000000000000000019884624838656");
    assert_string_equal(json_string_value(json_array_get(json_object_get(object, "b"), 1)), "-1E+400");
    assert_true(json_is_real(json_array_get(json_object_get(object, "b"), 2)));
    assert_int_equal(dr_json_integer(object, "c", 0, INT64_MAX, &number), DR_ERROR_FORMAT);
    assert_says("\"c\" is the number 9223372036854775808: it is too large");
    assert_int_equal(dr_json_real(json_object_get(object, "h"), "n", -1, 1, &real), DR_ERROR_FORMAT);
    assert_says("\"n\" is the number 1e999: it is too large");
    assert_int_equal(dr_json_integer(json_object_get(object, "h"), "nan", 0, 1, &number), DR_ERROR_FORMAT);
    assert_says("\"nan\" must be an integer, not the number NaN");
    assert_int_equal(dr_json_integer(json_object_get(object, "h"), "text", 0, 1, &number), DR_ERROR_FORMAT);
    assert_says("\"text\" must be an integer, not the string \"1e999x\"");
    dr_json_describe(json_object_get(json_object_get(object, "h"), "long"), found, sizeof found);
    assert_string_equal(found, "the number 1111111111111111111111111111111111111111..");
    assert_int_equal(dr_json_integer(object, "d", 0, INT64_MAX, &number), DR_OK);
    assert_true(number == INT64_MAX);
    assert_int_equal(dr_json_integer(object, "e", INT64_MIN, 0, &number), DR_OK);
    assert_true(number == INT64_MIN);
    json_decref(object);
    static const char *const wrong[] = {"{\"a\": 01e999}", "{\"a\": 1e999x}",  "{\"a\": 1.e999}",
                                        "{\"a\": 1e}",     "{\"a\": --1e999}", "{\"a\": 01000000000000000019884624838656}",
                                        "{\"a\": +1e999}", "{\"a\": -}",       "{\"a\": 1e999"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (dr_json_parse_lenient(wrong[i], strlen(wrong[i]), "c.json", &object) != DR_ERROR_FORMAT) fail_msg("%s", wrong[i]);
}

/* Whole numbers with a point or an exponent are whole numbers. */
static void test_json_whole_numbers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        dr_status status;
        int64_t number;
    } cases[] = {{"32.0", DR_OK, 32},          {"1e3", DR_OK, 1000},
                 {"-2.5e1", DR_OK, -25},       {"9007199254740992.0", DR_OK, 9007199254740992},
                 {"-0.0", DR_OK, 0},           {"1e300", DR_ERROR_FORMAT, 7},
                 {"1.5", DR_ERROR_FORMAT, 7},  {"1e-3", DR_ERROR_FORMAT, 7},
                 {"NaN", DR_ERROR_FORMAT, 7},  {"true", DR_ERROR_FORMAT, 7},
                 {"\"1\"", DR_ERROR_FORMAT, 7}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[64];
        json_t *object = NULL;
        int64_t number = 7;
        int length = snprintf(text, sizeof text, "{\"n\": %s}", cases[i].text);
        assert_int_equal(dr_json_parse_lenient(text, (size_t)length, "c.json", &object), DR_OK);
        assert_int_equal(dr_json_integer(object, "n", INT64_MIN, INT64_MAX, &number), cases[i].status);
        if (number != cases[i].number) fail_msg("%s is read as %lld", cases[i].text, (long long)number);
        json_decref(object);
    }
}

static void test_json_values(void **state) {
    (void)state;
    const char text[] = "{\"n\": 5, \"r\": 2.5, \"t\": true, \"s\": \"text\", \"z\": null, \"o\": {}}";
    static const char *const all[] = {"n", "r", "t", "s", "z", "o", NULL}, *const some[] = {"n", "r", "t", NULL};
    static const char *const null_too[] = {"n", "z", NULL}, *const missing[] = {"n", "q", NULL};
    json_t *object = NULL;
    assert_int_equal(dr_json_parse(text, strlen(text), "c.json", &object), DR_OK);
    int64_t n = -1;
    double r = -1;
    bool t = false;
    const char *s = "default";

    assert_int_equal(dr_json_integer(object, "n", 5, 5, &n), DR_OK);
    assert_int_equal(dr_json_real(object, "r", 0, 3, &r), DR_OK);
    assert_int_equal(dr_json_boolean(object, "t", &t), DR_OK);
    assert_int_equal(dr_json_text(object, "s", &s), DR_OK);
    assert_true(n == 5 && r == 2.5 && t && strcmp(s, "text") == 0);
    assert_int_equal(dr_json_real(object, "n", 0, 9, &r), DR_OK);
    assert_true(r == 5);
    n = -1;
    assert_int_equal(dr_json_integer(object, "z", 0, 9, &n), DR_OK); /* null and missing keep the default */
    assert_int_equal(dr_json_integer(object, "q", 0, 9, &n), DR_OK);
    assert_int_equal(n, -1);

    assert_int_equal(dr_json_integer(object, "n", 6, 9, &n), DR_ERROR_FORMAT);
    assert_says("\"n\" is 5: it must be from 6 to 9");
    assert_int_equal(dr_json_integer(object, "r", 0, 9, &n), DR_ERROR_FORMAT);
    assert_says("\"r\" must be an integer, not the number 2.5");
    assert_int_equal(dr_json_integer(object, "s", 0, 9, &n), DR_ERROR_FORMAT);
    assert_says("\"s\" must be an integer, not the string \"text\"");
    assert_int_equal(dr_json_real(object, "r", 3, 4, &r), DR_ERROR_FORMAT);
    assert_says("\"r\" is 2.5: it must be from 3 to 4");
    assert_int_equal(dr_json_real(object, "t", 0, 9, &r), DR_ERROR_FORMAT);
    assert_says("\"t\" must be a number, not true");
    assert_int_equal(dr_json_boolean(object, "n", &t), DR_ERROR_FORMAT);
    assert_says("\"n\" must be true or false, not the integer 5");
    assert_int_equal(dr_json_text(object, "o", &s), DR_ERROR_FORMAT);
    assert_says("\"o\" must be a string, not an object");
    assert_int_equal(n, -1); /* and nothing was written */

    assert_int_equal(dr_json_known(object, all), DR_OK);
    assert_int_equal(dr_json_known(object, some), DR_ERROR_FORMAT);
    assert_says("unknown key \"s\"; known are n, r, t");
    assert_int_equal(dr_json_required(object, some), DR_OK);
    assert_int_equal(dr_json_required(object, null_too), DR_ERROR_FORMAT);
    assert_says("the key \"z\" is missing");
    assert_int_equal(dr_json_required(object, missing), DR_ERROR_FORMAT);
    assert_says("the key \"q\" is missing");
    json_decref(object);
}

static void test_json_round_trip(void **state) {
    (void)state;
    const char *path = scratch_path("round.json");
    static const struct {
        double real;
        const char *text;
    } cases[] = {{0.02, "\"real\": 0.02,"}, {1e-6, "\"real\": 1e-6,"}, {1.0 / 3, "\"real\": 0.33333333333333331,"}};
    for (int i = 0; i < 3; i++) {
        json_t *object = json_pack("{s:f, s:s, s:[i,i]}", "real", cases[i].real, "name", "\u03b2 \"x\"", "list", 1, 2);
        json_t *again = NULL;
        assert_int_equal(dr_json_write(path, object), DR_OK);
        assert_int_equal(dr_json_read(path, &again), DR_OK);
        assert_true(json_equal(object, again));
        json_decref(object);
        json_decref(again);
        size_t bytes = 0;
        char *text = scratch_read_at(path, &bytes);
        assert_memory_equal(text, "{\n  \"real\"", 10); /* in the order in which keys were set */
        assert_non_null(strstr(text, cases[i].text));
        assert_int_equal(text[bytes - 1], '\n');
        free(text);
    }
}

/* What is read leniently is written as it was read: numbers that JSON does not have without quotes, strings with them. */
static void test_written_as_read(void **state) {
    (void)state;
    static const char *const texts[] = {
        "{\"a\":[0.0,Infinity],\"b\":-Infinity,\"c\":{\"d\":NaN}}",
        "{\"NaN\":1,\"Infinity\":\"NaN?\",\"x\":\"\\\"NaN\",\"y\":\"\"}",
        "{\"a\":{\"__float__\":\"Infinity\"},\"b\":Infinity}",
        "{\"__float__\":1,\"b\":[NaN,\"word\"]}",
        "{\"a\":123456789012345678901234567890,\"b\":\"1e3\",\"c\":\"12\"}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *object;
        if (dr_json_parse_lenient(texts[i], strlen(texts[i]), "text", &object) != DR_OK) fail_msg("%s", dr_last_error());
        char *text = dr_json_format_lenient(object, JSON_COMPACT);
        assert_string_equal(text, texts[i]);
        free(text);
        json_decref(object);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_syntax),
        cmocka_unit_test(test_json_of_other_programs),
        cmocka_unit_test(test_json_numbers_too_large),
        cmocka_unit_test(test_json_whole_numbers),
        cmocka_unit_test(test_json_values),
        cmocka_unit_test(test_json_round_trip),
        cmocka_unit_test(test_written_as_read),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
