/* Chat templates: chats as recorded of Hugging Face's transformers, with their ids; snippets as recorded of Jinja2; hostile
 * templates; failed allocations. DELTARULE_TOKENIZERS names a folder with more, one tokenizer a subfolder, whose expected.json
 * has "chats". tests/python/chat_templates.py compares with Jinja2 itself, where it is installed. */
#include "allocation.h"
#include "statuses.h"
#include "tokenize/template.h"

#include <deltarule/chat.h>
#include <deltarule/tokenizer.h>

#include <dirent.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmocka.h>

static json_t *read_json(const char *path) {
    json_error_t error;
    json_t *value = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (!value) fail_msg("%s, line %d: %s", path, error.line, error.text);
    return value;
}

/* ---- recorded chats ---------------------------------------------------------------------------------------------------- */

static char *dumped(const json_t *value) {
    return value && !json_is_null(value) ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
}

static void check_ids(const char *folder, const json_t *expected, const char *text, size_t length) {
    dr_tokenizer *tokenizer;
    dr_encoder *encoder;
    const int32_t *ids;
    size_t count;
    must(dr_tokenizer_load(folder, &tokenizer));
    must(dr_encoder_create(tokenizer, &encoder));
    must(dr_encoder_encode(encoder, text, length, false, &ids, &count));
    bool same = count == json_array_size(expected);
    for (size_t i = 0; i < count && same; i++) same = ids[i] == json_integer_value(json_array_get(expected, i));
    if (!same) fail_msg("%s: other ids for %s", folder, text);
    dr_encoder_destroy(encoder);
    dr_tokenizer_destroy(tokenizer);
}

/* Keyword arguments hold tools, documents and variables of the template. */
static void check_chat(const char *folder, const dr_chat *chat, const json_t *recorded) {
    json_t *more = json_deep_copy(json_object_get(recorded, "kwargs"));
    char *messages = dumped(json_object_get(recorded, "messages")), *text;
    char *tools = dumped(json_object_get(more, "tools")), *documents = dumped(json_object_get(more, "documents"));
    json_object_del(more, "tools");
    json_object_del(more, "documents");
    char *variables = dumped(more);
    dr_chat_options options = {.size = sizeof options,
                               .messages = messages,
                               .tools = tools,
                               .documents = documents,
                               .variables = variables,
                               .name = json_string_value(json_object_get(recorded, "template")),
                               .add_generation_prompt = json_is_true(json_object_get(recorded, "add_generation_prompt"))};
    const json_t *expected = json_object_get(recorded, "rendered");
    const char *error = json_string_value(json_object_get(recorded, "error"));
    size_t length;
    if (error) {
        assert_refused(dr_chat_render(chat, &options, &text, &length), DR_ERROR_FORMAT, error);
    } else {
        must(dr_chat_render(chat, &options, &text, &length));
        assert_string_equal(text, json_string_value(expected));
        assert_int_equal(length, json_string_length(expected));
        check_ids(folder, json_object_get(recorded, "ids"), text, length);
        dr_chat_free_text(text);
    }
    free(messages), free(tools), free(documents), free(variables);
    json_decref(more);
}

/* Returns how many chats a folder has. */
static size_t check_folder(const char *folder) {
    char path[PATH_MAX + 32];
    struct stat about;
    snprintf(path, sizeof path, "%s/chats.json", folder);
    bool alone = stat(path, &about) == 0;
    if (!alone) snprintf(path, sizeof path, "%s/expected.json", folder);
    if (!alone && stat(path, &about) != 0) return 0;
    json_t *file = read_json(path), *chats = alone ? file : json_object_get(file, "chats"), *one;
    size_t index, count = json_array_size(chats);
    dr_chat *chat = NULL;
    if (count > 0) must(dr_chat_load(folder, &chat));
    json_array_foreach(chats, index, one) check_chat(folder, chat, one);
    dr_chat_destroy(chat);
    json_decref(file);
    return count;
}

static size_t check_folders(const char *root) {
    DIR *directory = opendir(root);
    struct dirent *entry;
    size_t count = 0;
    if (!directory) fail_msg("cannot read %s", root);
    while ((entry = readdir(directory))) {
        char folder[PATH_MAX];
        if (entry->d_name[0] == '.') continue;
        snprintf(folder, sizeof folder, "%s/%s", root, entry->d_name);
        count += check_folder(folder);
    }
    closedir(directory);
    return count;
}

static void test_recorded_chats(void **state) {
    (void)state;
    assert_int_equal(check_folders(DR_TESTS_FOLDER "/tokenizers"), 8 * 18);
    const char *more = getenv("DELTARULE_TOKENIZERS");
    if (more) print_message("%zu chats of %s\n", check_folders(more), more);
}

/* ---- recorded snippets -------------------------------------------------------------------------------------------------- */

static void test_recorded_snippets(void **state) {
    json_t *file = read_json(DR_TESTS_FOLDER "/templates/snippets.json"), *one;
    size_t index, failures = 0;
    (void)state;
    setenv("TZ", "UTC", 1);
    json_array_foreach(json_object_get(file, "snippets"), index, one) {
        const json_t *source = json_object_get(one, "template"), *expected = json_object_get(one, "rendered");
        char *text = NULL;
        size_t length = 0;
        dr_status status =
            dr_template_render(json_string_value(source), json_string_length(source), json_object_get(file, "variables"),
                               json_integer_value(json_object_get(file, "now")), &text, &length);
        bool same = expected ? status == DR_OK && length == json_string_length(expected) &&
                                   memcmp(text, json_string_value(expected), length) == 0
                             : status == DR_ERROR_FORMAT && strstr(dr_last_error(), "line ");
        if (!same) {
            print_error("%s\n  gives   %s\n  must be %s\n", json_string_value(source), status == DR_OK ? text : dr_last_error(),
                        expected ? json_string_value(expected) : "refused with its line");
            failures++;
        }
        dr_release(text);
    }
    assert_in_range(index, 200, 10000);
    json_decref(file);
    assert_int_equal(failures, 0);
}

/* ---- hostile ------------------------------------------------------------------------------------------------------------ */

static dr_status render(const char *source) {
    json_t *variables = json_object();
    char *text = NULL;
    size_t length;
    dr_status status = dr_template_render(source, strlen(source), variables, 0, &text, &length);
    dr_release(text);
    json_decref(variables);
    return status;
}

static void test_endless_templates(void **state) {
    static const char *const endless[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(x) %}{{ f(x + x) }}{% endmacro %}{{ f('abc') }}",
        "{% set ns = namespace(x='abcdefgh') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, "
        "ns.y] %}"
        "{% endfor %}{{ ns.x == ns.y }}",
        "{{ 'a' * 1000000000 }}",
        "{{ ('a' * 30000000).replace('a', 'bbb') }}",
        "{{ range(10 ** 12) }}",
        "{{ '%99999d' % 1 }}",
        "{{ 'x'.center(10 ** 10) }}",
        "{{ 'x' | indent(10 ** 10) }}",
        "{{ [1] | tojson(indent=10 ** 10) }}",
        "{{ 2 ** 100 }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ [] | slice(10 ** 9) | list }}",
        "{{ [1] | batch(10 ** 9, 'x') | list }}",
        "{% set ns = namespace(x=(1,)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ {ns.x: 1} }}",
        "{% set ns = namespace(x=(1,)) %}{% for i in range(90000) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ {ns.x: 1} }}",
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
        ("{% set a = ('a' * 1000) * 16000 %}{{ a.rfind(a[:8000000]) }}{{ a.rfind(a[:8000000] ~ 'b') }}{{ a.rsplit(a[:9999] ~ "
         "'b') }}"),
        "{% set a = ('\u03a3' * 1000) * 8000 %}{% for i in range(1000) %}{{ a.lower() == a.upper() }}{% endfor %}"};
    (void)state;
    for (size_t i = 0; i < sizeof endless / sizeof *endless; i++) {
        dr_status status = render(endless[i]);
        if (status != DR_ERROR_FORMAT || !strstr(dr_last_error(), "line 1: "))
            fail_msg("%s: %s, %s", endless[i], dr_status_name(status), dr_last_error());
    }
}

/* An opening repeated, and a deep tree without one. */
static void test_deep_templates(void **state) {
    static const char *const parts[] = {"{% if 1 %}",
                                        "{{ (",
                                        "{{ [",
                                        "(",
                                        "[",
                                        "{",
                                        "-",
                                        "not ",
                                        "{% for a in b %}",
                                        "1 if 1 else ",
                                        "{{ 1",
                                        "a.b",
                                        "|upper",
                                        " + 1",
                                        "{% macro a() %}",
                                        "{% filter upper %}"};
    enum { TIMES = 20000 };
    (void)state;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t length = strlen(parts[i]);
        char *source = malloc(TIMES * length + 16);
        assert_non_null(source);
        strcpy(source, strncmp(parts[i], "{%", 2) ? "{{ a " : "");
        for (size_t at = strlen(source), n = 0; n < TIMES; n++, at += length) memcpy(source + at, parts[i], length + 1);
        assert_int_equal(render(source), DR_ERROR_FORMAT);
        free(source);
    }
}

static void test_messages(void **state) {
    static const struct {
        const char *source, *words;
    } wrong[] = {{"a\nb\n{{ x.y }}", "line 3: 'x' is undefined"},
                 {"{{ 'a' + 1 }}", "line 1: a str + a int has no meaning"},
                 {"\n{% if %}", "line 2: expected an expression, found 'end of the tag'"},
                 {"{% if a %}\n", "the template ends before {% endif %}"},
                 {"{{ a | nosuch }}", "there is no filter 'nosuch'"},
                 {"{{ a is nosuch }}", "there is no test 'nosuch'"},
                 {"{% include 'x' %}", "a chat template cannot have the tag 'include'"},
                 {"{{ [1].append(2) }}", "a list has no 'append'"},
                 {"{{ raise_exception('No.') }}", "the template says: No."},
                 {"{{ 'abc", "a string has no end: a ' is missing"},
                 {"{# abc", "the comment that begins in line 1 has no end"},
                 {"\xff", "line 1: the template is not UTF-8: byte 0xff"}};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_refused(render(wrong[i].source), DR_ERROR_FORMAT, wrong[i].words);
}

static void test_wrong_json(void **state) {
    dr_chat *chat;
    char *text;
    size_t length;
    (void)state;
    must(dr_chat_create("{{ messages | length }}{{ a }}", 30, &chat));
    dr_chat_options options = {.size = sizeof options, .messages = "[1, 2]", .variables = "{\"a\": \"x\"}"};
    must(dr_chat_render(chat, &options, &text, &length));
    assert_string_equal(text, "2x");
    dr_chat_free_text(text);
    static const struct {
        dr_chat_options options;
        const char *words;
    } wrong[] = {{{.messages = "{}"}, "messages holds an object: it must be a JSON list"},
                 {{.messages = "[1"}, "messages, line 1"},
                 {{.messages = "[]", .tools = "\"x\""}, "tools holds the string"},
                 {{.messages = "[], \"tools\": []"}, "messages"},
                 {{.messages = "[]", .variables = "[]"}, "variables holds an array: it must be a JSON object"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        options = wrong[i].options;
        options.size = sizeof options;
        assert_refused(dr_chat_render(chat, &options, &text, &length), DR_ERROR_FORMAT, wrong[i].words);
    }
    options = (dr_chat_options){.messages = "[]"};
    assert_refused(dr_chat_render(chat, &options, &text, &length), DR_ERROR_ARGUMENT, "the options say that they have 0 bytes");
    options.size = sizeof options;
    options.name = "other";
    assert_refused(dr_chat_render(chat, &options, &text, &length), DR_ERROR_ARGUMENT, "there are: default");
    dr_chat_destroy(chat);
    assert_refused(dr_chat_load(DR_TESTS_FOLDER "/tokenizers/gpt2", &chat), DR_ERROR_UNSUPPORTED, "has no chat template");
    assert_refused(dr_chat_load("/no/such/folder", &chat), DR_ERROR_IO, "there is no folder /no/such/folder");
}

/* ---- allocations -------------------------------------------------------------------------------------------------------- */

static dr_status load_and_render(void *context) {
    dr_chat *chat;
    char *text = NULL;
    size_t length;
    dr_chat_options options = {
        .size = sizeof options, .messages = "[{\"role\": \"user\", \"content\": \"Hi\"}]", .tools = "[{\"a\": [1, 2.5]}]"};
    DR_TRY(dr_chat_load(context, &chat));
    dr_status status = dr_chat_render(chat, &options, &text, &length);
    if (status == DR_OK) dr_chat_free_text(text);
    dr_chat_destroy(chat);
    return status;
}

static void test_allocations(void **state) {
    (void)state;
    assert_survives_failed_allocations(load_and_render, DR_TESTS_FOLDER "/tokenizers/qwen3_5");
    assert_survives_failed_allocations(load_and_render, DR_TESTS_FOLDER "/tokenizers/kimi");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded_chats),    cmocka_unit_test(test_recorded_snippets),
        cmocka_unit_test(test_endless_templates), cmocka_unit_test(test_deep_templates),
        cmocka_unit_test(test_messages),          cmocka_unit_test(test_wrong_json),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
