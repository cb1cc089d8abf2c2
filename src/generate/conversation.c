/* A turn: the messages are rendered; what the rendered text has beyond the text that the state has read is encoded and read; an
 * answer is made. The text of the ids that the state has read is kept beside it, and compared as text, since an answer that is
 * encoded anew may fall into other tokens than those that were made.
 *
 * The last token of an answer has not gone through the model when the answer ends. The one that ends a message belongs to the
 * template, which writes it itself; any other is read then, so that the state has read all of the answer.
 *
 * Before each turn a copy of the state is kept. Where the rendered text does not go on from what was read, since a message was
 * taken back or the template writes earlier ones otherwise, the state goes back to the last copy that it does go on from. */
#include <deltarule/conversation.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"
#include "data/encode.h"
#include "formats/json.h"
#include "generate/answer.h"
#include "generate/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char plain_template[] = "{% for message in messages %}{% if message.role == 'system' %}{{ message.content }}\n"
                                     "{% elif message.role == 'user' %}User: {{ message.content }}\n"
                                     "{% else %}Assistant:{{ message.content }}\n{% endif %}{% endfor %}"
                                     "{% if add_generation_prompt %}Assistant:{% endif %}";
static const char *const plain_stop[] = {"\nUser:"};
enum { MOST_STOPS = 1024, MOST_MESSAGES = 1 << 20, MOST_MARKS = 8 };

typedef struct {
    char *bytes;
    size_t count, room;
} text_buffer;

/* What was read before a turn. */
typedef struct {
    dr_model_state *state;
    int64_t tokens;
    size_t bytes; /* of the text */
} mark;

struct dr_conversation {
    const dr_tokenizer *tokenizer;
    dr_tokenizer *own_tokenizer; /* bytes */
    const dr_chat *chat;
    dr_chat *own_chat; /* the plain template */
    dr_encoder *encoder;
    dr_decoder *decoder; /* of what the state has read, special tokens too */
    dr_context context;
    text_buffer read;       /* the text of what the state has read */
    text_buffer answer;     /* what is emitted of the answer at hand */
    mark marks[MOST_MARKS]; /* [mark_count] of the last turns; each goes on from the one before */
    int mark_count;
    json_t *messages; /* [{"role", "content"}] */
};

static dr_status no_memory(void) {
    return dr_fail(DR_ERROR_MEMORY, "there is no memory for the conversation");
}

static dr_status append(text_buffer *text, const char *bytes, size_t count) {
    const size_t needed = text->count + count;
    if (needed > text->room) {
        void *memory = text->bytes;
        DR_TRY(memory ? dr_resize(&memory, text->room, 2 * needed, "the text of a conversation")
                      : dr_allocate(2 * needed, "the text of a conversation", &memory));
        text->bytes = memory;
        text->room = 2 * needed;
    }
    if (count > 0) memcpy(text->bytes + text->count, bytes, count);
    text->count = needed;
    return DR_OK;
}

/* Text that a model made: a zero byte becomes U+FFFD, as bytes that are no UTF-8 have, since a message holds none. */
static dr_status append_made(text_buffer *text, const char *bytes, size_t count) {
    for (size_t from = 0; from < count;) {
        const char *zero = memchr(bytes + from, '\0', count - from);
        const size_t end = zero ? (size_t)(zero - bytes) : count;
        DR_TRY(append(text, bytes + from, end - from));
        if (zero) DR_TRY(append(text, "\xef\xbf\xbd", 3));
        from = end + 1;
    }
    return DR_OK;
}

/* ---- life ---- */

static dr_status open(dr_conversation *made, const dr_model *model) {
    dr_generate_options options = dr_generate_defaults();
    if (!made->tokenizer) {
        DR_TRY(dr_tokenizer_bytes(&made->own_tokenizer));
        made->tokenizer = made->own_tokenizer;
    }
    options.tokenizer = made->tokenizer;
    DR_TRY(dr_generate_check(model, &options));
    if (!made->chat) {
        DR_TRY(dr_chat_create(plain_template, sizeof plain_template - 1, &made->own_chat));
        made->chat = made->own_chat;
    }
    DR_TRY(dr_encoder_create(made->tokenizer, &made->encoder));
    DR_TRY(dr_decoder_create(made->tokenizer, DR_DECODE_TEXT, &made->decoder));
    made->messages = json_array();
    return made->messages ? dr_context_create(model, &made->context) : no_memory();
}

dr_status dr_conversation_create(const dr_model *model, const dr_tokenizer *tokenizer, const dr_chat *chat,
                                 dr_conversation **conversation) {
    DR_NEED(model);
    DR_NEED(conversation);
    void *memory;
    DR_TRY(dr_allocate_zero(sizeof(dr_conversation), "a conversation", &memory));
    dr_conversation *made = memory;
    made->tokenizer = tokenizer, made->chat = chat;
    const dr_status status = open(made, model);
    if (status == DR_OK)
        *conversation = made;
    else
        dr_conversation_destroy(made);
    return status;
}

/* Of the marks the first `kept` stay. */
static void drop_marks(dr_conversation *self, int kept) {
    while (self->mark_count > kept) dr_model_state_destroy(self->marks[--self->mark_count].state);
}

void dr_conversation_destroy(dr_conversation *conversation) {
    if (!conversation) return;
    drop_marks(conversation, 0);
    dr_context_release(&conversation->context);
    dr_decoder_destroy(conversation->decoder);
    dr_encoder_destroy(conversation->encoder);
    dr_chat_destroy(conversation->own_chat);
    dr_tokenizer_destroy(conversation->own_tokenizer);
    dr_release(conversation->read.bytes);
    dr_release(conversation->answer.bytes);
    json_decref(conversation->messages);
    dr_release(conversation);
}

/* ---- messages ---- */

static dr_status add_message(json_t *messages, const char *role, const char *text, size_t bytes) {
    if (memchr(text, '\0', bytes)) return dr_fail(DR_ERROR_FORMAT, "the text of a message has a zero byte: take it out");
    json_t *name = json_string(role), *content = json_stringn(text, bytes), *message = json_object();
    if (!name || !content) {
        json_decref(name);
        json_decref(content);
        json_decref(message);
        return dr_fail(DR_ERROR_FORMAT, "the %s of a message is not UTF-8", name ? "text" : "role");
    }
    const bool made = message && json_object_set(message, "role", name) == 0 &&
                      json_object_set(message, "content", content) == 0 && json_array_append(messages, message) == 0;
    json_decref(name);
    json_decref(content);
    json_decref(message);
    return made ? DR_OK : no_memory();
}

dr_status dr_conversation_add(dr_conversation *conversation, const char *role, const char *text, size_t bytes) {
    DR_NEED(conversation);
    DR_NEED(role);
    if (bytes > 0) DR_NEED(text);
    if (json_array_size(conversation->messages) >= MOST_MESSAGES)
        return dr_fail(DR_ERROR_ARGUMENT, "a conversation has at most %d messages", MOST_MESSAGES);
    return add_message(conversation->messages, role, text ? text : "", bytes);
}

static const char *message_part(const json_t *messages, size_t index, const char *key) {
    return json_string_value(json_object_get(json_array_get(messages, index), key));
}

dr_status dr_conversation_undo(dr_conversation *conversation) {
    DR_NEED(conversation);
    size_t count = json_array_size(conversation->messages), last = count;
    while (last > 0 && strcmp(message_part(conversation->messages, last - 1, "role"), "user") != 0) last--;
    if (last == 0) return dr_fail(DR_ERROR_ARGUMENT, "there is no message of the user to take back");
    while (count >= last) json_array_remove(conversation->messages, --count);
    return DR_OK;
}

int64_t dr_conversation_count(const dr_conversation *conversation) {
    return conversation ? (int64_t)json_array_size(conversation->messages) : 0;
}

dr_status dr_conversation_message(const dr_conversation *conversation, int64_t index, const char **role, const char **text) {
    DR_NEED(conversation);
    if (index < 0 || index >= dr_conversation_count(conversation))
        return dr_fail(DR_ERROR_ARGUMENT, "there is no message %lld: the conversation has %lld", (long long)index,
                       (long long)dr_conversation_count(conversation));
    if (role) *role = message_part(conversation->messages, (size_t)index, "role");
    if (text) *text = message_part(conversation->messages, (size_t)index, "content");
    return DR_OK;
}

/* ---- files ---- */

dr_status dr_conversation_save(const dr_conversation *conversation, const char *file) {
    DR_NEED(conversation);
    DR_NEED(file);
    json_t *whole = json_object();
    dr_status status = no_memory();
    if (whole && json_object_set(whole, "messages", conversation->messages) == 0) status = dr_json_write(file, whole);
    json_decref(whole);
    return status;
}

static dr_status check_messages(const json_t *messages) {
    if (!json_is_array(messages)) return dr_fail(DR_ERROR_FORMAT, "\"messages\" must be a list");
    if (json_array_size(messages) > MOST_MESSAGES)
        return dr_fail(DR_ERROR_FORMAT, "it has more than %d messages", MOST_MESSAGES);
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!message_part(messages, i, "role") || !message_part(messages, i, "content"))
            return dr_fail(DR_ERROR_FORMAT, "message %zu must be an object with a \"role\" and a \"content\", both texts",
                           i + 1);
    return DR_OK;
}

dr_status dr_conversation_load(dr_conversation *conversation, const char *file) {
    DR_NEED(conversation);
    DR_NEED(file);
    json_t *whole;
    DR_TRY(dr_json_read(file, &whole));
    json_t *messages = json_object_get(whole, "messages");
    dr_status status = check_messages(messages);
    if (status == DR_OK) {
        json_decref(conversation->messages);
        conversation->messages = json_incref(messages);
    } else {
        status = dr_fail_in(status, "%s", file);
    }
    json_decref(whole);
    return status;
}

/* ---- reading ---- */

static dr_status render(const dr_conversation *self, char **text, size_t *length) {
    char *messages = dr_json_format(self->messages, JSON_COMPACT);
    if (!messages) return no_memory();
    const dr_chat_options options = {.size = sizeof options, .messages = messages, .add_generation_prompt = true};
    const dr_status status = dr_chat_render(self->chat, &options, text, length);
    free(messages);
    return status;
}

static dr_status forget(dr_conversation *self) {
    const char *text;
    size_t bytes;
    drop_marks(self, 0);
    dr_context_reset(&self->context);
    self->read.count = 0;
    return dr_decoder_finish(self->decoder, &text, &bytes);
}

/* ---- going back ---- */

/* Remembers what has been read, if that is more than the last mark has; the oldest mark goes where there are too many. */
static dr_status set_mark(dr_conversation *self) {
    dr_model_state *copy = NULL;
    if (self->context.count == 0) return DR_OK;
    if (self->mark_count > 0 && self->marks[self->mark_count - 1].tokens == self->context.count) return DR_OK;
    DR_TRY(dr_model_state_clone(self->context.state, &copy));
    if (self->mark_count == MOST_MARKS) {
        dr_model_state_destroy(self->marks[0].state);
        memmove(self->marks, self->marks + 1, (MOST_MARKS - 1) * sizeof *self->marks);
        self->mark_count--;
    }
    self->marks[self->mark_count++] = (mark){copy, self->context.count, self->read.count};
    return DR_OK;
}

/* To the last mark, which stays, or to nothing. */
static dr_status go_back(dr_conversation *self) {
    const char *text;
    size_t bytes;
    if (self->mark_count == 0) return forget(self);
    const mark *last = &self->marks[self->mark_count - 1];
    DR_TRY(dr_model_state_restore(self->context.state, last->state));
    self->context.count = last->tokens;
    self->read.count = last->bytes;
    return dr_decoder_finish(self->decoder, &text, &bytes);
}

/* Whether a rendered text goes on from the first so many bytes that were read. */
static bool goes_on(const dr_conversation *self, size_t bytes, const char *text, size_t length) {
    return bytes > 0 && bytes < length && memcmp(self->read.bytes, text, bytes) == 0;
}

/* Back to where a rendered text goes on from. */
static dr_status find_beginning(dr_conversation *self, const char *text, size_t length) {
    if (goes_on(self, self->read.count, text, length)) return DR_OK;
    int kept = self->mark_count;
    while (kept > 0 && !goes_on(self, self->marks[kept - 1].bytes, text, length)) kept--;
    drop_marks(self, kept);
    return go_back(self);
}

/* Reads a part of the rendered text, and remembers that it did. */
static dr_status read_ids(dr_conversation *self, const int32_t *ids, int64_t count) {
    const char *text;
    size_t bytes;
    if (count == 0) return DR_OK;
    DR_TRY(dr_context_read(&self->context, ids, count));
    for (int64_t i = 0; i < count; i++) { /* the text is known: the decoder only follows */
        const dr_status status = dr_decoder_step(self->decoder, ids[i], &text, &bytes);
        if (status != DR_OK && status != DR_ERROR_FORMAT) return status;
    }
    return DR_OK;
}

static dr_status read_text(dr_conversation *self, const char *text, size_t length) {
    const int32_t *ids;
    size_t count;
    if (self->context.count == 0 && self->own_chat) { /* the plain text is a document */
        int32_t start;
        DR_TRY(dr_document_start(self->tokenizer, &start));
        DR_TRY(read_ids(self, &start, 1));
    }
    DR_TRY(dr_encoder_encode(self->encoder, text, length, false, &ids, &count));
    if (self->context.count + (int64_t)count == 0)
        return dr_fail(DR_ERROR_FORMAT, "the chat template makes no text of the messages");
    DR_TRY(read_ids(self, ids, (int64_t)count));
    return append(&self->read, text, length);
}

/* Reads what is new of a rendered text. */
static dr_status read_new(dr_conversation *self, const char *text, size_t length, dr_turn *turn) {
    const text_buffer *read = &self->read;
    DR_TRY(find_beginning(self, text, length));
    DR_TRY(set_mark(self));
    const int64_t kept = self->context.count;
    const size_t from = read->count;
    DR_TRY(read_text(self, text + from, length - from));
    turn->kept = kept;
    turn->read = self->context.count - kept;
    return DR_OK;
}

/* ---- answering ---- */

/* The state reads a token of the answer. */
static dr_status follow(dr_conversation *self, int32_t id) {
    const char *text;
    size_t bytes;
    DR_TRY(dr_context_step(&self->context, id));
    const dr_status status = dr_decoder_step(self->decoder, id, &text, &bytes);
    if (status == DR_ERROR_FORMAT) return DR_OK;
    DR_TRY(status);
    return append_made(&self->read, text, bytes);
}

static dr_status make_answer(dr_conversation *self, dr_sampler *sampler, dr_answer *answer,
                             bool (*emit)(void *context, const char *bytes, size_t count), void *context, double start,
                             dr_turn *turn) {
    bool goes_on = true;
    while (answer->finish == DR_FINISH_NOT && goes_on) {
        dr_choice choice;
        DR_TRY(dr_sampler_choose(sampler, self->context.logits, &choice));
        DR_TRY(dr_answer_add(answer, choice.id));
        if (turn->made++ == 0) turn->first_token_seconds = dr_clock_now() - start;
        DR_TRY(append_made(&self->answer, answer->ready, answer->ready_bytes));
        goes_on = emit(context, answer->ready ? answer->ready : "", answer->ready_bytes);
        const bool ends = answer->finish == DR_FINISH_END || answer->finish == DR_FINISH_STOP;
        if (!ends) DR_TRY(follow(self, choice.id));
    }
    turn->finish = goes_on ? answer->finish : DR_FINISH_NOT;
    return DR_OK;
}

/* The caller's options with what ends an answer of a plain text. */
static dr_status complete_options(const dr_conversation *self, const dr_generate_options *options, const char **stops,
                                  dr_generate_options *complete) {
    *complete = *options;
    complete->tokenizer = self->tokenizer;
    DR_TRY(dr_generate_check(self->context.model, complete));
    if (!self->own_chat) return DR_OK;
    if (options->stop_count >= MOST_STOPS)
        return dr_fail(DR_ERROR_ARGUMENT, "stop_count is %lld: at most %d are possible", (long long)options->stop_count,
                       MOST_STOPS - 1);
    for (int64_t i = 0; i < options->stop_count; i++) stops[i] = options->stop[i];
    stops[options->stop_count] = plain_stop[0];
    complete->stop = stops;
    complete->stop_count++;
    return DR_OK;
}

static dr_status answer_messages(dr_conversation *self, const dr_generate_options *options,
                                 bool (*emit)(void *context, const char *bytes, size_t count), void *context, dr_turn *turn) {
    const double start = dr_clock_now();
    dr_sampler *sampler = NULL;
    dr_answer answer = {0};
    char *text = NULL;
    size_t length;
    dr_status status;
    self->answer.count = 0;
    DR_GO(render(self, &text, &length));
    DR_GO(read_new(self, text, length, turn));
    turn->read_seconds = dr_clock_now() - start;
    DR_GO(dr_sampler_create(dr_tokenizer_size(self->tokenizer), &options->sampling, &sampler));
    DR_GO(dr_sampler_read(sampler, self->context.ids, self->context.count));
    DR_GO(dr_answer_create(options, &answer));
    DR_GO(dr_answer_read(&answer, self->context.ids, self->context.count));
    DR_GO(make_answer(self, sampler, &answer, emit, context, start, turn));
    turn->made_seconds = dr_clock_now() - start - turn->read_seconds;
    DR_GO(add_message(self->messages, "assistant", self->answer.count > 0 ? self->answer.bytes : "", self->answer.count));
done:
    dr_answer_release(&answer);
    dr_sampler_destroy(sampler);
    dr_chat_free_text(text);
    return status;
}

dr_status dr_conversation_answer(dr_conversation *conversation, const dr_generate_options *options,
                                 bool (*emit)(void *context, const char *bytes, size_t count), void *context, dr_turn *turn) {
    DR_NEED(conversation);
    DR_NEED(options);
    DR_NEED(emit);
    dr_generate_options complete;
    const char *stops[MOST_STOPS];
    dr_turn unseen;
    DR_TRY(complete_options(conversation, options, stops, &complete));
    if (!turn) turn = &unseen;
    *turn = (dr_turn){0};
    dr_status status = answer_messages(conversation, &complete, emit, context, turn);
    if (status == DR_OK) return DR_OK;
    /* the state may have read a part; what failed is told, whatever going back says */
    char told[512];
    snprintf(told, sizeof told, "%s", dr_last_error());
    if (go_back(conversation) != DR_OK) forget(conversation);
    return dr_fail(status, "%s", told);
}
