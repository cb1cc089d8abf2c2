/* Conversations: what each turn reads, that answers are those of the whole text, messages and their files. */
#include "allocation.h"
#include "data/corpus.h"
#include "scratch.h"

#include <deltarule/conversation.h>

enum { MOST = 4096 };

static dr_backend *backend;
static dr_model *model;
static dr_chat *chat, *rewriting;

/* Messages between brackets; and the same but for its first line, which counts the messages. */
static const char plain[] = "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}[assistant|";
static const char counting[] =
    "{{ messages | length }}{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}[assistant|";

static int begin(void **state) {
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = DR_BYTE_VOCABULARY, config.hidden = 32, config.layers = 2, config.heads = 2, config.intermediate = 48;
    config.initializer_range = 0.3;
    if (dr_backend_open("cpu", NULL, &backend) != DR_OK) return -1;
    if (dr_model_create(backend, &config, 3, &model) != DR_OK) return -1;
    if (dr_chat_create(plain, sizeof plain - 1, &chat) != DR_OK) return -1;
    if (dr_chat_create(counting, sizeof counting - 1, &rewriting) != DR_OK) return -1;
    return scratch_begin(state);
}

static int end(void **state) {
    dr_chat_destroy(chat);
    dr_chat_destroy(rewriting);
    dr_model_destroy(model);
    dr_backend_close(backend);
    return scratch_end(state);
}

typedef struct {
    char text[MOST];
    size_t bytes;
    int64_t calls, stop_after;
} output;

static bool collect(void *context, const char *bytes, size_t count) {
    output *out = context;
    memcpy(out->text + out->bytes, bytes, count);
    out->bytes += count;
    out->text[out->bytes] = '\0';
    return ++out->calls != out->stop_after;
}

/* Only letters are made, so that text and tokens are the same. */
static dr_logit_bias letters[DR_BYTE_VOCABULARY];

static dr_generate_options greedy(int64_t tokens) {
    dr_generate_options options = dr_generate_defaults();
    for (int i = 0; i < DR_BYTE_VOCABULARY; i++) letters[i] = (dr_logit_bias){i, i >= 'a' && i <= 'z' ? 100 : 0};
    options.tokens = tokens;
    options.sampling.temperature = 0;
    options.sampling.bias = letters, options.sampling.bias_count = DR_BYTE_VOCABULARY;
    return options;
}

static dr_turn say(dr_conversation *conversation, const char *text, const dr_generate_options *options, output *out) {
    dr_turn turn;
    *out = (output){.bytes = 0};
    assert_int_equal(dr_conversation_add(conversation, "user", text, strlen(text)), DR_OK);
    assert_int_equal(dr_conversation_answer(conversation, options, collect, out, &turn), DR_OK);
    return turn;
}

static const char *message(const dr_conversation *conversation, int64_t index, const char *role) {
    const char *found, *text;
    assert_int_equal(dr_conversation_message(conversation, index, &found, &text), DR_OK);
    assert_string_equal(found, role);
    return text;
}

/* Ten turns: each reads the closing bracket and what was said, and nothing before it. */
static void test_a_turn_reads_only_what_is_new(void **state) {
    (void)state;
    const dr_generate_options options = greedy(7);
    dr_conversation *conversation;
    output out;
    int64_t before = 0;
    assert_int_equal(dr_conversation_create(model, NULL, chat, &conversation), DR_OK);
    for (int i = 0; i < 10; i++) {
        const dr_turn turn = say(conversation, "what?", &options, &out);
        assert_int_equal(turn.kept, before);
        assert_int_equal(turn.read, (i > 0) + (int64_t)strlen("[user|what?][assistant|"));
        assert_int_equal(turn.made, 7);
        assert_int_equal(turn.finish, DR_FINISH_LENGTH);
        assert_true(turn.first_token_seconds > 0);
        assert_string_equal(message(conversation, 2 * i + 1, "assistant"), out.text);
        before = turn.kept + turn.read + turn.made;
    }
    assert_int_equal(dr_conversation_count(conversation), 20);
    dr_conversation_destroy(conversation);
}

/* A model of bytes may make zero bytes, which no message holds. */
static void test_zero_bytes(void **state) {
    (void)state;
    dr_generate_options options = greedy(3);
    dr_conversation *conversation;
    output out;
    letters[0].bias = 1000;
    assert_int_equal(dr_conversation_create(model, NULL, chat, &conversation), DR_OK);
    for (int i = 0; i < 2; i++) {
        const dr_turn turn = say(conversation, "what?", &options, &out);
        assert_int_equal(out.bytes, 3);
        assert_memory_equal(out.text, "\0\0\0", 3);
        assert_int_equal(turn.read, (i > 0) + (int64_t)strlen("[user|what?][assistant|"));
        assert_string_equal(message(conversation, 2 * i + 1, "assistant"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    }
    assert_int_equal(dr_conversation_add(conversation, "user", "a\0b", 3), DR_ERROR_FORMAT);
    assert_non_null(strstr(dr_last_error(), "zero byte"));
    assert_int_equal(dr_conversation_count(conversation), 4);
    dr_conversation_destroy(conversation);
}

/* What was taken back is not read again, as far as the states before the last turns go, and is as if it had never been said. */
static void test_a_message_that_was_taken_back(void **state) {
    (void)state;
    const dr_generate_options options = greedy(7);
    dr_conversation *conversation, *never;
    output out, again;
    dr_turn turn, other;
    int64_t before[14];
    assert_int_equal(dr_conversation_create(model, NULL, chat, &conversation), DR_OK);
    assert_int_equal(dr_conversation_create(model, NULL, chat, &never), DR_OK);
    for (int i = 0; i < 12; i++) {
        turn = say(conversation, "what?", &options, &out);
        before[i] = turn.kept;
        if (i < 10) say(never, "what?", &options, &again);
    }
    assert_int_equal(dr_conversation_undo(conversation), DR_OK); /* the same once more */
    turn = say(conversation, "what?", &options, &again);
    assert_int_equal(turn.kept, before[11]);
    assert_string_equal(again.text, out.text);
    for (int i = 0; i < 2; i++) assert_int_equal(dr_conversation_undo(conversation), DR_OK);
    turn = say(conversation, "no?", &options, &out);
    other = say(never, "no?", &options, &again);
    assert_int_equal(turn.kept, before[10]);
    assert_int_equal(turn.read, (int64_t)strlen("][user|no?][assistant|"));
    assert_true(other.kept == turn.kept && other.read == turn.read);
    assert_string_equal(again.text, out.text);
    for (int i = 0; i < 5; i++) { /* on from there, the bits are those of the conversation without */
        say(conversation, "go on", &options, &out);
        say(never, "go on", &options, &again);
        assert_string_equal(again.text, out.text);
    }
    for (int i = 0; i < 15; i++) assert_int_equal(dr_conversation_undo(conversation), DR_OK); /* further than states are kept */
    turn = say(conversation, "what?", &options, &out);
    assert_int_equal(turn.kept, 0);
    dr_conversation_destroy(never);
    dr_conversation_destroy(conversation);
}

/* The second answer is that of one prompt with all that was said. */
static void test_answers_are_those_of_the_whole_text(void **state) {
    (void)state;
    dr_generate_options options = greedy(9);
    dr_conversation *conversation;
    output first, second, whole = {.bytes = 0};
    char prompt[3 * MOST];
    assert_int_equal(dr_conversation_create(model, NULL, chat, &conversation), DR_OK);
    say(conversation, "one", &options, &first);
    say(conversation, "two", &options, &second);
    snprintf(prompt, sizeof prompt, "[user|one][assistant|%s][user|two][assistant|", first.text);
    dr_conversation *other; /* a template that holds the whole prompt and nothing else */
    dr_chat *fixed;
    assert_int_equal(dr_chat_create(prompt, strlen(prompt), &fixed), DR_OK);
    assert_int_equal(dr_conversation_create(model, NULL, fixed, &other), DR_OK);
    assert_int_equal(dr_conversation_answer(other, &options, collect, &whole, NULL), DR_OK);
    assert_string_equal(whole.text, second.text);
    dr_conversation_destroy(other);
    dr_chat_destroy(fixed);
    dr_conversation_destroy(conversation);
}

/* What was said earlier is another text: all of it is read anew, and the answer does not change. */
static void test_a_text_that_was_rewritten_is_read_anew(void **state) {
    (void)state;
    const dr_generate_options options = greedy(5);
    dr_conversation *conversation, *fresh;
    output out, anew;
    assert_int_equal(dr_conversation_create(model, NULL, rewriting, &conversation), DR_OK);
    say(conversation, "one", &options, &out);
    dr_turn turn = say(conversation, "two", &options, &out);
    assert_int_equal(turn.kept, 0);
    assert_int_equal(dr_conversation_save(conversation, scratch_path("saved.json")), DR_OK);

    /* after undo, and after a file was read */
    assert_int_equal(dr_conversation_undo(conversation), DR_OK);
    assert_int_equal(dr_conversation_count(conversation), 2);
    turn = say(conversation, "two", &options, &anew);
    assert_string_equal(out.text, anew.text);
    assert_int_equal(dr_conversation_create(model, NULL, rewriting, &fresh), DR_OK);
    assert_int_equal(dr_conversation_load(fresh, scratch_path("saved.json")), DR_OK);
    assert_int_equal(dr_conversation_count(fresh), 4);
    assert_string_equal(message(fresh, 3, "assistant"), out.text);
    assert_int_equal(dr_conversation_undo(fresh), DR_OK);
    say(fresh, "two", &options, &anew);
    assert_string_equal(out.text, anew.text);
    dr_conversation_destroy(fresh);
    dr_conversation_destroy(conversation);
}

/* An answer that emit ends is a message, and its text has been read. */
static void test_an_interrupted_answer_stays(void **state) {
    (void)state;
    const dr_generate_options options = greedy(50);
    dr_conversation *conversation;
    output out = {.stop_after = 4};
    dr_turn turn;
    assert_int_equal(dr_conversation_create(model, NULL, chat, &conversation), DR_OK);
    assert_int_equal(dr_conversation_add(conversation, "user", "go", 2), DR_OK);
    assert_int_equal(dr_conversation_answer(conversation, &options, collect, &out, &turn), DR_OK);
    assert_int_equal(turn.made, 4);
    assert_int_equal(turn.finish, DR_FINISH_NOT);
    assert_int_equal(strlen(message(conversation, 1, "assistant")), 4);
    const int64_t before = turn.read + 4;
    turn = say(conversation, "on", &options, &out);
    assert_int_equal(turn.kept, before);
    dr_conversation_destroy(conversation);
}

/* Without a template an answer ends where the user would speak again. */
static void test_plain_text(void **state) {
    (void)state;
    dr_generate_options options = greedy(5);
    dr_conversation *conversation;
    output out;
    assert_int_equal(dr_conversation_create(model, NULL, NULL, &conversation), DR_OK);
    dr_turn turn = say(conversation, "one", &options, &out);
    assert_int_equal(turn.read, 1 + (int64_t)strlen("User: one\nAssistant:"));
    turn = say(conversation, "two", &options, &out);
    assert_int_equal(turn.read, (int64_t)strlen("\nUser: two\nAssistant:"));
    dr_conversation_destroy(conversation);
}

static void test_what_cannot_be(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"{", "saved"},
        {"{}", "\"messages\" must be a list"},
        {"{\"messages\": 3}", "\"messages\" must be a list"},
        {"{\"messages\": [3]}", "message 1 must be an object"},
        {"{\"messages\": [{\"role\": \"user\"}]}", "message 1 must be an object"},
        {"{\"messages\": [{\"role\": 1, \"content\": \"a\"}]}", "message 1 must be an object"}};
    dr_generate_options options = greedy(3);
    dr_conversation *conversation;
    dr_chat *refusing, *silent;
    output out = {.bytes = 0};
    assert_int_equal(dr_conversation_create(model, NULL, chat, &conversation), DR_OK);
    assert_int_equal(dr_conversation_undo(conversation), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_conversation_message(conversation, 0, NULL, NULL), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_conversation_add(conversation, "user", "a\xff", 2), DR_ERROR_FORMAT);
    assert_int_equal(dr_conversation_add(conversation, "us\xff", "a", 1), DR_ERROR_FORMAT);
    assert_int_equal(dr_conversation_count(conversation), 0);
    assert_int_equal(dr_conversation_add(conversation, "user", "kept", 4), DR_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *path = scratch_write("saved", bad[i][0], strlen(bad[i][0]));
        assert_int_equal(dr_conversation_load(conversation, path), DR_ERROR_FORMAT);
        assert_non_null(strstr(dr_last_error(), bad[i][1]));
        assert_string_equal(message(conversation, 0, "user"), "kept");
    }
    assert_int_equal(dr_conversation_load(conversation, scratch_path("none")), DR_ERROR_IO);
    assert_int_equal(dr_conversation_save(conversation, "/no/such/folder/file"), DR_ERROR_IO);
    options.sampling.top_p = 2;
    assert_int_equal(dr_conversation_answer(conversation, &options, collect, &out, NULL), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_conversation_count(conversation), 1);
    dr_conversation_destroy(conversation);

    static const char refuses[] = "{{ raise_exception('roles must alternate') }}", nothing[] = "{% if false %}x{% endif %}";
    options = greedy(3);
    assert_int_equal(dr_chat_create(refuses, sizeof refuses - 1, &refusing), DR_OK);
    assert_int_equal(dr_conversation_create(model, NULL, refusing, &conversation), DR_OK);
    assert_int_equal(dr_conversation_answer(conversation, &options, collect, &out, NULL), DR_ERROR_FORMAT);
    assert_non_null(strstr(dr_last_error(), "roles must alternate"));
    dr_conversation_destroy(conversation);
    dr_chat_destroy(refusing);
    assert_int_equal(dr_chat_create(nothing, sizeof nothing - 1, &silent), DR_OK);
    assert_int_equal(dr_conversation_create(model, NULL, silent, &conversation), DR_OK);
    assert_int_equal(dr_conversation_answer(conversation, &options, collect, &out, NULL), DR_ERROR_FORMAT);
    assert_non_null(strstr(dr_last_error(), "makes no text"));
    dr_conversation_destroy(conversation);
    dr_chat_destroy(silent);
}

static dr_status talk(void *context) {
    const dr_generate_options options = greedy(3);
    dr_conversation *conversation;
    output out = {.bytes = 0};
    (void)context;
    DR_TRY(dr_conversation_create(model, NULL, NULL, &conversation));
    dr_status status = dr_conversation_add(conversation, "user", "a", 1);
    if (status == DR_OK) status = dr_conversation_answer(conversation, &options, collect, &out, NULL);
    dr_conversation_destroy(conversation);
    return status;
}

static void test_failed_allocations_are_survived(void **state) {
    (void)state;
    assert_int_equal(talk(NULL), DR_OK);
    assert_true(assert_survives_failed_allocations(talk, NULL) > 15);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_turn_reads_only_what_is_new),
        cmocka_unit_test(test_zero_bytes),
        cmocka_unit_test(test_a_message_that_was_taken_back),
        cmocka_unit_test(test_answers_are_those_of_the_whole_text),
        cmocka_unit_test(test_a_text_that_was_rewritten_is_read_anew),
        cmocka_unit_test(test_an_interrupted_answer_stays),
        cmocka_unit_test(test_plain_text),
        cmocka_unit_test(test_what_cannot_be),
        cmocka_unit_test(test_failed_allocations_are_survived),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
