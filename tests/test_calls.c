/* Calls of tools: the forms that templates show, and answers in these forms, whole and in pieces. */
#include "allocation.h"
#include "serve/calls.h"

#include <stdlib.h>

typedef struct {
    dr_chat *chat;
    dr_tokenizer *tokenizer;
    dr_call_form *form;
} fixture;

static void load(const char *folder, const char *template, fixture *f) {
    char path[1024];
    snprintf(path, sizeof path, "%s/tokenizers/%s", DR_TESTS_FOLDER, folder);
    assert_int_equal(dr_tokenizer_load(path, &f->tokenizer), DR_OK);
    assert_int_equal(template ? dr_chat_create(template, strlen(template), &f->chat) : dr_chat_load(path, &f->chat), DR_OK);
    assert_int_equal(dr_call_form_learn(f->chat, f->tokenizer, &f->form), DR_OK);
}

static void release(fixture *f) {
    dr_call_form_destroy(f->form);
    dr_chat_destroy(f->chat);
    dr_tokenizer_destroy(f->tokenizer);
}

/* The calls of an answer as JSON, its text before them and behind them. */
static void assert_calls(const fixture *f, const char *answer, const char *text, const char *calls, const char *rest) {
    static const char tools[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", "
        "\"properties\": {\"s\": {\"type\": \"string\"}, \"n\": {\"type\": \"integer\"}}}}}]";
    json_t *request = json_loads(tools, 0, NULL), *expected = json_loads(calls, 0, NULL);
    const size_t bytes = strlen(answer);
    dr_calls found;
    assert_non_null(expected);
    assert_int_equal(dr_calls_read(f->form, request, answer, bytes, &found), DR_OK);
    if (!json_equal(found.calls, expected)) fail_msg("%s: %s", answer, json_dumps(found.calls, 0));
    assert_int_equal(found.text, strlen(text));
    assert_memory_equal(answer, text, found.text);
    assert_string_equal(answer + found.rest, rest);
    for (size_t i = 0; i <= bytes; i++) { /* nothing that a stream shows is taken back */
        const size_t certain = dr_calls_certain(f->form, answer, i);
        assert_true(certain <= i && certain <= found.text);
    }
    json_decref(found.calls);
    json_decref(request);
    json_decref(expected);
}

/* Of Qwen 2.5 and Qwen 3: an object between two words. */
static void check_tagged(fixture *f) {
    assert_non_null(f->form);
    assert_int_equal(f->form->kind, DR_CALL_OBJECT);
    assert_string_equal(f->form->before, "<tool_call>\n{\"name\": \"");
    assert_string_equal(f->form->middle, "\", \"arguments\": ");
    assert_string_equal(f->form->behind, "}\n</tool_call>");
    assert_calls(f, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>", "",
                 "[{\"name\": \"f\", \"arguments\": \"{\\\"n\\\":1}\"}]", "");
    assert_calls(
        f, "I look.\n<tool_call>\n{\"arguments\": {}, \"name\": \"f\"}\n</tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>",
        "I look.", "[{\"name\": \"f\", \"arguments\": \"{}\"}, {\"name\": \"g\", \"arguments\": \"{}\"}]", "");
    assert_calls(f, "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"</tool_call>\"}}</tool_call> done", "",
                 "[{\"name\": \"f\", \"arguments\": \"{\\\"s\\\":\\\"</tool_call>\\\"}\"}]", "done");
    assert_calls(f, "a < b and <tool is no call", "a < b and <tool is no call", "[]", "");
    assert_calls(f, "<tool_call>\n{\"name\": \"f\", \"argum", "<tool_call>\n{\"name\": \"f\", \"argum", "[]", "");
    assert_calls(f, "<tool_call>\n{\"name\": 1}\n</tool_call>", "<tool_call>\n{\"name\": 1}\n</tool_call>", "[]", "");
    assert_calls(f, "", "", "[]", "");
}

static void test_tagged(void **state) {
    static const char *const folders[] = {"qwen2", "qwen3_5", "kimi"}; /* kimi has a template of its own for tools */
    (void)state;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        fixture f;
        load(folders[i], NULL, &f);
        check_tagged(&f);
        release(&f);
    }
}

/* Of Llama 3: the answer is the object. */
static void test_bare(void **state) {
    fixture f;
    (void)state;
    load("llama3", NULL, &f);
    assert_non_null(f.form);
    assert_string_equal(f.form->marker, "");
    assert_calls(&f, "{\"name\": \"f\", \"parameters\": {\"n\": 1}}", "",
                 "[{\"name\": \"f\", \"arguments\": \"{\\\"n\\\":1}\"}]", "");
    assert_calls(&f, " {\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}", "",
                 "[{\"name\": \"f\", \"arguments\": \"{}\"}, {\"name\": \"g\", \"arguments\": \"{}\"}]", "");
    assert_calls(&f, "Hello {\"name\": \"f\"}", "Hello {\"name\": \"f\"}", "[]", "");
    assert_calls(&f, "{\"a\": 1}", "{\"a\": 1}", "[]", "");
    release(&f);
}

/* Of Mistral: a list behind a special token, which the text of an answer does not have. */
static void test_list(void **state) {
    fixture f;
    (void)state;
    load("qwen2",
         "{% for m in messages %}{% if m.tool_calls %}<|im_start|> [{% for c in m.tool_calls %}{\"name\": \"{{ c.function.name "
         "}}\", "
         "\"arguments\": {{ c.function.arguments | tojson }}, \"id\": \"x\"}{% if not loop.last %}, {% endif %}{% endfor %}]"
         "<|im_end|>{% else %}{{ m.role }}: {{ m.content }}<|im_end|>{% endif %}{% endfor %}",
         &f);
    assert_non_null(f.form);
    assert_string_equal(f.form->marker, "");
    assert_calls(&f, " [{\"name\": \"f\", \"arguments\": {\"n\": 1}, \"id\": \"1\"}, {\"name\": \"g\", \"arguments\": {}}]", "",
                 "[{\"name\": \"f\", \"arguments\": \"{\\\"n\\\":1}\"}, {\"name\": \"g\", \"arguments\": \"{}\"}]", "");
    release(&f);
}

/* Of Qwen 3.5 and Qwen3-Coder as they are published: parameters between words. */
static void test_parameters(void **state) {
    fixture f;
    (void)state;
    load("qwen3_5",
         "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}{% for c in m.tool_calls "
         "%}<tool_call>\n<function="
         "{{ c.function.name }}>\n{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% "
         "endfor %}"
         "</function>\n</tool_call>{% endfor %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
         "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
         &f);
    assert_non_null(f.form);
    assert_int_equal(f.form->kind, DR_CALL_PARAMETERS);
    assert_calls(
        &f,
        "Well.\n\n<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
        "Well.",
        "[{\"name\": \"f\", \"arguments\": \"{\\\"s\\\":\\\"12\\\",\\\"n\\\":12}\"}, {\"name\": \"g\", \"arguments\": \"{}\"}]",
        "");
    assert_calls(&f, "<tool_call>\n<function=f>\n<parameter=s>", "<tool_call>\n<function=f>\n<parameter=s>", "[]", "");
    release(&f);
}

/* Words around the name and the arguments, as Kimi K2 and DeepSeek V3 have them. */
static void test_words(void **state) {
    fixture f;
    (void)state;
    load(
        "qwen2",
        "{% for m in messages %}[{{ m.role }}]{% if m.tool_calls %}{% for c in m.tool_calls %}<call>{{ c.function.name }}<with>"
        "{{ c.function.arguments | tojson }}<over>{% endfor %}{% else %}{{ m.content }}{% endif %}[end]{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}",
        &f);
    assert_non_null(f.form);
    assert_int_equal(f.form->kind, DR_CALL_WORDS);
    assert_string_equal(f.form->behind, "<over>");
    assert_calls(&f, "So: <call>f<with>{\"n\": 1}<over><call>g<with>{}<over>!",
                 "So:", "[{\"name\": \"f\", \"arguments\": \"{\\\"n\\\":1}\"}, {\"name\": \"g\", \"arguments\": \"{}\"}]", "!");
    assert_calls(&f, "<call>f<with>", "<call>f<with>", "[]", "");
    release(&f);
}

static void test_none(void **state) {
    static const char *const templates[] = {
        "{{ messages[0].content }}", "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ raise_exception('no') if m.tool_calls else m.content }}{% endfor %}"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        fixture f;
        load("qwen2", templates[i], &f);
        assert_null(f.form);
        release(&f);
    }
}

static dr_status learn_and_read(void *context) {
    static const char answer[] = "a <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    fixture *f = context;
    dr_call_form *form = NULL;
    dr_calls calls = {0};
    dr_status status;
    DR_GO(dr_call_form_learn(f->chat, f->tokenizer, &form));
    DR_GO(form ? dr_calls_read(form, NULL, answer, strlen(answer), &calls) : DR_ERROR_FORMAT);
done:
    json_decref(calls.calls);
    dr_call_form_destroy(form);
    return status;
}

static void test_allocations(void **state) {
    fixture f;
    (void)state;
    load("qwen2", NULL, &f);
    assert_survives_failed_allocations(learn_and_read, &f);
    release(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tagged),      cmocka_unit_test(test_bare),  cmocka_unit_test(test_list),
        cmocka_unit_test(test_parameters),  cmocka_unit_test(test_words), cmocka_unit_test(test_none),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
