/* Which part of a chat is learned.
 *
 * A template does not say where an answer stands in its text. But a chat that ends before an answer, rendered with the prompt
 * for one, is the text before the answer; and a chat that ends with the answer is the text up to its end. Where both are
 * beginnings of the whole text, the answer is what lies between. Templates that show an answer otherwise once messages follow
 * (without its reasoning, say) break that: then the answer's own content is looked for, behind the answer before. */
#include "shards/chat_pieces.h"

#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const dr_chat *chat;
    const json_t *messages;
    char *tools;   /* as JSON, or NULL */
    size_t length; /* of the whole text */
    dr_chat_pieces *made;
} cutter;

/* The text of the first `count` messages. */
static dr_status render(const cutter *self, size_t count, bool prompt, char **text, size_t *length) {
    json_t *first = json_array();
    bool whole = first != NULL;
    for (size_t i = 0; i < count && whole; i++) whole = json_array_append(first, json_array_get(self->messages, i)) == 0;
    char *json = whole ? dr_json_format(first, JSON_COMPACT) : NULL;
    json_decref(first);
    if (!json) return dr_fail(DR_ERROR_MEMORY, "there is no memory for a chat");
    dr_chat_options options = {
        .size = sizeof options, .messages = json, .tools = self->tools, .add_generation_prompt = prompt, .has_time = true};
    dr_status status = dr_chat_render(self->chat, &options, text, length);
    free(json);
    return status;
}

/* Length of the text of the first `count` messages if the whole text begins with it, else -1; also where the template refuses
 * so few messages. */
static dr_status beginning(const cutter *self, size_t count, bool prompt, int64_t *bytes) {
    char *text = NULL;
    size_t length;
    *bytes = -1;
    dr_status status = render(self, count, prompt, &text, &length);
    if (status == DR_ERROR_FORMAT) return DR_OK;
    DR_TRY(status);
    if (length <= self->length && memcmp(text, self->made->text, length) == 0) *bytes = (int64_t)length;
    dr_chat_free_text(text);
    return DR_OK;
}

/* A piece from the end of the last one to `end`. */
static dr_status add_piece(cutter *self, int64_t end, bool given) {
    dr_chat_pieces *made = self->made;
    const dr_text_piece *last = made->count > 0 ? &made->pieces[made->count - 1] : NULL;
    const char *begin = last ? last->text + last->bytes : made->text;
    void *memory = made->pieces;
    if (made->text + end == begin) return DR_OK;
    dr_status status = dr_grow(&memory, made->count, sizeof(dr_text_piece), "the pieces of a chat");
    made->pieces = memory;
    if (status == DR_OK)
        made->pieces[made->count++] = (dr_text_piece){.text = begin, .bytes = made->text + end - begin, .given = given};
    return status;
}

static int64_t end_of_pieces(const cutter *self) {
    const dr_text_piece *last = self->made->count > 0 ? &self->made->pieces[self->made->count - 1] : NULL;
    return last ? last->text + last->bytes - self->made->text : 0;
}

/* Where the content of an answer stands behind the pieces that are there. */
static dr_status find_content(const cutter *self, size_t index, int64_t *begin, int64_t *end) {
    const json_t *content = json_object_get(json_array_get(self->messages, index), "content");
    const char *text = json_string_value(content);
    const int64_t from = end_of_pieces(self);
    const size_t length = json_string_length(content);
    const char *found = text && length > 0 ? memmem(self->made->text + from, self->length - (size_t)from, text, length) : NULL;
    if (!found)
        return dr_fail(DR_ERROR_FORMAT, "the chat template shows the answer of message %zu in no place that can be found",
                       index);
    *begin = found - self->made->text;
    *end = *begin + (int64_t)length;
    return DR_OK;
}

static dr_status add_answer(cutter *self, size_t index) {
    int64_t begin, end;
    DR_TRY(beginning(self, index, true, &begin));
    DR_TRY(beginning(self, index + 1, false, &end));
    if (begin < end_of_pieces(self) || end < begin) DR_TRY(find_content(self, index, &begin, &end));
    DR_TRY(add_piece(self, begin, true));
    return add_piece(self, end, false);
}

static dr_status cut(cutter *self) {
    for (size_t i = 0; i < json_array_size(self->messages); i++) {
        const char *role = json_string_value(json_object_get(json_array_get(self->messages, i), "role"));
        if (role && strcmp(role, "assistant") == 0) DR_TRY(add_answer(self, i));
    }
    return add_piece(self, (int64_t)self->length, true);
}

dr_status dr_chat_pieces_make(const dr_chat *chat, const json_t *messages, const json_t *tools, dr_chat_pieces *pieces) {
    cutter self = {.chat = chat, .messages = messages, .made = pieces};
    *pieces = (dr_chat_pieces){0};
    if (!json_is_array(messages) || json_array_size(messages) == 0) return dr_fail(DR_ERROR_FORMAT, "has no list of messages");
    if (json_is_array(tools)) {
        self.tools = dr_json_format(tools, JSON_COMPACT);
        if (!self.tools) return dr_fail(DR_ERROR_MEMORY, "there is no memory for the tools of a chat");
    }
    dr_status status = render(&self, json_array_size(messages), false, &pieces->text, &self.length);
    if (status == DR_OK) status = cut(&self);
    free(self.tools);
    return status;
}

void dr_chat_pieces_release(dr_chat_pieces *pieces) {
    dr_chat_free_text(pieces->text);
    dr_release(pieces->pieces);
    *pieces = (dr_chat_pieces){0};
}
