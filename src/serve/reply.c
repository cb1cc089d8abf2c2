/* A response is whole or a stream of pieces; both are made from the same records and text, so that they say the same. */
#include "serve/reply.h"

#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LONGEST_TOKEN = 512 };

dr_status dr_reply_create(const dr_request *request, const dr_served *served, dr_job *job, int64_t number, dr_reply *reply) {
    const char *kind = request->kind == DR_REQUEST_CHAT ? "chatcmpl" : "cmpl";
    *reply = (dr_reply){.request = request, .served = served, .job = job, .created = (int64_t)time(NULL)};
    snprintf(reply->id, sizeof reply->id, "%s-%llx-%lld", kind, (unsigned long long)reply->created, (long long)number);
    return dr_decoder_create(served->tokenizer, DR_DECODE_BYTES, &reply->decoder);
}

void dr_reply_release(dr_reply *reply) {
    dr_decoder_destroy(reply->decoder);
    *reply = (dr_reply){0};
}

static const char *reason(dr_outcome outcome) {
    switch (outcome) {
    case DR_OUTCOME_STOP:
        return "stop";
    case DR_OUTCOME_LENGTH:
        return "length";
    case DR_OUTCOME_NONE:
    case DR_OUTCOME_TIMEOUT:
    case DR_OUTCOME_GONE:
    case DR_OUTCOME_FAILED:
        break;
    }
    return NULL;
}

static json_t *reason_json(dr_outcome outcome) {
    const char *word = reason(outcome);
    return word ? json_string(word) : json_null();
}

/* ---- single tokens ---- */

/* The bytes of one token. A decoder takes the blank before a text's first word away, so the token is decoded behind itself. */
static size_t token_bytes(dr_reply *reply, int32_t id, char bytes[LONGEST_TOKEN]) {
    const int32_t twice[] = {id, id};
    const char *text;
    size_t once, both;
    if (dr_decoder_decode(reply->decoder, twice, 1, &text, &once) != DR_OK) return 0;
    if (dr_decoder_decode(reply->decoder, twice, 2, &text, &both) != DR_OK || both < once) return 0;
    const size_t count = both - once < LONGEST_TOKEN ? both - once : LONGEST_TOKEN;
    if (count > 0) memcpy(bytes, text + both - count, count);
    return count;
}

/* Bytes as text: what is no UTF-8 is written "bytes:\xNN...", as OpenAI does, and so is what has a zero byte, which no key of
 * an object can have. */
static json_t *token_json(const char *bytes, size_t count) {
    char text[4 * LONGEST_TOKEN + 8] = "bytes:";
    size_t used = strlen(text);
    if (dr_utf8_valid_bytes(bytes, count) == count && !memchr(bytes, 0, count)) return json_stringn_nocheck(bytes, count);
    for (size_t i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "\\x%02x", (unsigned char)bytes[i]);
    return json_stringn_nocheck(text, used);
}

static json_t *logprob_json(double logprob) {
    return isnan(logprob) ? json_null() : json_real(logprob < -9999 ? -9999 : logprob);
}

/* The likeliest tokens of a record by text, the record's own among them. Of tokens with the same text the likeliest counts. */
static json_t *top_object(dr_reply *reply, const dr_part *part, int64_t record) {
    char bytes[LONGEST_TOKEN];
    const dr_token_logprob own = part->records[record].token;
    json_t *object = isnan(own.logprob) ? json_null() : json_object();
    for (int64_t i = 0; i <= reply->job->top && json_is_object(object); i++) {
        const dr_token_logprob token = i < reply->job->top ? part->tops[record * reply->job->top + i] : own;
        if (token.id < 0) continue;
        json_t *name = token_json(bytes, token_bytes(reply, token.id, bytes));
        if (!json_object_get(object, json_string_value(name)))
            json_object_set_new(object, json_string_value(name), logprob_json(token.logprob));
        json_decref(name);
    }
    return object;
}

static int64_t characters(const char *text, size_t bytes) {
    int64_t count = 0;
    for (size_t i = 0; i < bytes; i++) count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

/* logprobs of a completion: records from `from` on. *offset: characters before them, counted on. */
static json_t *completion_logprobs(dr_reply *reply, const dr_part *part, int64_t from) {
    char bytes[LONGEST_TOKEN];
    json_t *tokens = json_array(), *logprobs = json_array(), *tops = json_array(), *offsets = json_array();
    int64_t offset = 0;
    for (int64_t i = from; i < part->record_count; i++) {
        const size_t count = token_bytes(reply, part->records[i].token.id, bytes);
        json_array_append_new(tokens, token_json(bytes, count));
        json_array_append_new(logprobs, logprob_json(part->records[i].token.logprob));
        json_array_append_new(tops, top_object(reply, part, i));
        json_array_append_new(offsets, json_integer(offset));
        offset += characters(bytes, count);
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", logprobs, "top_logprobs", tops, "text_offset",
                     offsets);
}

static json_t *chat_token(dr_reply *reply, dr_token_logprob token) {
    char bytes[LONGEST_TOKEN];
    const size_t count = token_bytes(reply, token.id, bytes);
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    return json_pack("{s:o, s:o, s:o}", "token", token_json(bytes, count), "logprob", logprob_json(token.logprob), "bytes",
                     list);
}

static json_t *chat_logprobs(dr_reply *reply, const dr_part *part, int64_t from) {
    json_t *content = json_array();
    for (int64_t i = from; i < part->record_count; i++) {
        json_t *token = chat_token(reply, part->records[i].token), *tops = json_array();
        for (int64_t k = 0; k < reply->job->top; k++)
            json_array_append_new(tops, chat_token(reply, part->tops[i * reply->job->top + k]));
        json_object_set_new(token, "top_logprobs", tops);
        json_array_append_new(content, token);
    }
    return json_pack("{s:o}", "content", content);
}

static json_t *logprobs_json(dr_reply *reply, const dr_part *part, int64_t from) {
    if (reply->job->top < 0) return json_null();
    return reply->request->kind == DR_REQUEST_CHAT ? chat_logprobs(reply, part, from) : completion_logprobs(reply, part, from);
}

/* ---- choices ---- */

/* The text of the prompt before its answer, where the client wants it. */
static dr_status echoed(dr_reply *reply, int64_t i, char **echo, size_t *bytes) {
    const dr_request_prompt *prompt = &reply->request->prompts[i / reply->request->choices];
    *echo = NULL;
    *bytes = 0;
    if (!reply->request->echo) return DR_OK;
    if (!prompt->text) return dr_served_decode(reply->served, prompt->ids, prompt->count, echo, bytes);
    void *memory;
    DR_TRY(dr_allocate(prompt->bytes + 1, "the prompt", &memory));
    memcpy(memory, prompt->text, prompt->bytes);
    *echo = memory;
    *bytes = prompt->bytes;
    return DR_OK;
}

/* The text of part i from byte `from` to `to`, with the echo before it at the beginning. */
static dr_status text_json(dr_reply *reply, int64_t i, size_t from, size_t to, bool begins, json_t **json) {
    const dr_part *part = &reply->job->parts[i];
    char *echo = NULL;
    size_t echo_bytes = 0;
    void *memory;
    if (begins) DR_TRY(echoed(reply, i, &echo, &echo_bytes));
    const size_t bytes = to > from ? to - from : 0;
    dr_status status = dr_allocate(echo_bytes + bytes + 1, "a response", &memory);
    if (status == DR_OK) {
        if (echo_bytes > 0) memcpy(memory, echo, echo_bytes);
        if (bytes > 0) memcpy((char *)memory + echo_bytes, part->text + from, bytes);
        *json = json_stringn(memory, echo_bytes + bytes);
        dr_release(memory);
        if (!*json) status = dr_fail(DR_ERROR_MEMORY, "no memory for the response");
    }
    dr_release(echo);
    return status;
}

/* The calls of tools in a part that is over; none where the client has no tools. */
static dr_status read_calls(const dr_reply *reply, const dr_part *part, dr_calls *calls) {
    const dr_request *request = reply->request;
    *calls = (dr_calls){.text = part->text_bytes, .rest = part->text_bytes};
    if (!request->tools || !reply->served->calls || part->text_bytes == 0) return DR_OK;
    return dr_calls_read(reply->served->calls, json_object_get(request->json, "tools"), part->text, part->text_bytes, calls);
}

/* The calls as clients know them. numbered: each with its place, as in streams. */
static json_t *calls_json(const dr_reply *reply, int64_t i, const dr_calls *calls, bool numbered) {
    json_t *list = json_array();
    for (size_t k = 0; k < json_array_size(calls->calls); k++) {
        char id[80];
        snprintf(id, sizeof id, "call-%s-%lld-%zu", reply->id + strlen("chatcmpl-"), (long long)i, k);
        json_t *call = json_pack("{s:s, s:s, s:O}", "id", id, "type", "function", "function", json_array_get(calls->calls, k));
        if (numbered) json_object_set_new(call, "index", json_integer((json_int_t)k));
        json_array_append_new(list, call);
    }
    return list;
}

static json_t *finish_json(dr_outcome outcome, const dr_calls *calls) {
    return outcome == DR_OUTCOME_STOP && json_array_size(calls->calls) > 0 ? json_string("tool_calls") : reason_json(outcome);
}

/* The text of part i from byte `from` on, without its calls. */
static dr_status content_json(dr_reply *reply, int64_t i, size_t from, bool begins, const dr_calls *calls, json_t **content) {
    const dr_part *part = &reply->job->parts[i];
    const bool called = json_array_size(calls->calls) > 0;
    DR_TRY(text_json(reply, i, from, calls->text, begins, content));
    if (!called || part->text_bytes == calls->rest) return DR_OK;
    json_t *rest = json_stringn(part->text + calls->rest, part->text_bytes - calls->rest);
    json_t *both =
        rest ? json_pack("s+%", json_string_value(*content), json_string_value(rest), json_string_length(rest)) : NULL;
    json_decref(rest);
    json_decref(*content);
    *content = both;
    return both ? DR_OK : dr_fail(DR_ERROR_MEMORY, "no memory for the response");
}

/* The message of a chat: its text, null where there are only calls; and the calls. */
static dr_status message_json(dr_reply *reply, int64_t i, const dr_calls *calls, json_t **message) {
    const bool called = json_array_size(calls->calls) > 0;
    json_t *content;
    DR_TRY(content_json(reply, i, 0, true, calls, &content));
    if (called && json_string_length(content) == 0) {
        json_decref(content);
        content = json_null();
    }
    *message = json_pack("{s:s, s:o}", "role", "assistant", "content", content);
    if (called) json_object_set_new(*message, "tool_calls", calls_json(reply, i, calls, false));
    return DR_OK;
}

static dr_status whole_choice(dr_reply *reply, int64_t i, json_t **choice) {
    const dr_part *part = &reply->job->parts[i];
    const bool chat = reply->request->kind == DR_REQUEST_CHAT;
    dr_calls calls;
    json_t *content = NULL;
    DR_TRY(read_calls(reply, part, &calls));
    dr_status status =
        chat ? message_json(reply, i, &calls, &content) : text_json(reply, i, 0, part->text_bytes, true, &content);
    if (status == DR_OK) {
        json_t *logprobs = logprobs_json(reply, part, 0);
        *choice = json_pack("{s:I, s:o, s:o, s:o}", "index", (json_int_t)i, chat ? "message" : "text", content, "logprobs",
                            logprobs, "finish_reason", finish_json(part->outcome, &calls));
    }
    json_decref(calls.calls);
    return status;
}

static json_t *usage_json(const dr_reply *reply) {
    json_int_t prompt = 0, cached = 0, made = 0;
    const dr_job *job = reply->job;
    for (int64_t i = 0; i < job->count; i++) {
        made += job->parts[i].made;
        if (i % reply->request->choices != 0) continue;
        prompt += job->parts[i].prompt_count;
        cached += job->parts[i].cached;
    }
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", prompt, "completion_tokens", made, "total_tokens",
                     prompt + made, "prompt_tokens_details", "cached_tokens", cached);
}

/* The object of a response or of an event around its choices. */
static json_t *envelope(const dr_reply *reply, bool piece, json_t *choices) {
    const char *object = reply->request->kind != DR_REQUEST_CHAT ? "text_completion"
                         : piece                                 ? "chat.completion.chunk"
                                                                 : "chat.completion";
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", reply->id, "object", object, "created", (json_int_t)reply->created,
                     "model", reply->served->name, "choices", choices);
}

static dr_status take_text(json_t *json, const char *format, char **text) {
    char *body = json ? dr_json_format(json, JSON_COMPACT) : NULL;
    json_decref(json);
    *text = NULL;
    if (body) {
        const size_t room = strlen(body) + strlen(format) + 1;
        *text = malloc(room);
        if (*text) snprintf(*text, room, "%s%s%s", *format ? "data: " : "", body, *format ? "\n\n" : "");
    }
    free(body);
    return *text ? DR_OK : dr_fail(DR_ERROR_MEMORY, "no memory for the response");
}

/* The longest form of an event around a body. */
static const char event[] = "data: \n\n", plain[] = "";

dr_status dr_reply_whole(dr_reply *reply, char **text) {
    json_t *choices = json_array(), *choice = NULL;
    for (int64_t i = 0; i < reply->job->count; i++) {
        dr_status status = whole_choice(reply, i, &choice);
        if (status != DR_OK) {
            json_decref(choices);
            return status;
        }
        json_array_append_new(choices, choice);
    }
    json_t *json = envelope(reply, false, choices);
    if (json) json_object_set_new(json, "usage", usage_json(reply));
    return take_text(json, plain, text);
}

/* ---- events ---- */

/* What a stream has of a part so far: with tools what may become a call waits for the end. */
static dr_status read_shown(const dr_reply *reply, const dr_part *part, bool ends, dr_calls *calls) {
    if (ends) return read_calls(reply, part, calls);
    *calls = (dr_calls){.text = part->text_bytes, .rest = part->text_bytes};
    if (reply->request->tools && reply->served->calls && part->text_bytes > 0)
        calls->text = dr_calls_certain(reply->served->calls, part->text, part->text_bytes);
    return DR_OK;
}

/* The new text, and what else there is at the end; takes over the text. */
static json_t *delta_json(const dr_reply *reply, int64_t i, json_t *text, bool begins, const dr_calls *calls) {
    json_t *delta = json_object();
    if (begins) json_object_set_new(delta, "role", json_string("assistant"));
    json_object_set_new(delta, "content", text);
    if (json_array_size(calls->calls) > 0) json_object_set_new(delta, "tool_calls", calls_json(reply, i, calls, true));
    return delta;
}

dr_status dr_reply_event(dr_reply *reply, int64_t i, dr_sent *sent, char **text) {
    const dr_part *part = &reply->job->parts[i];
    const bool ends = part->outcome != DR_OUTCOME_NONE, chat = reply->request->kind == DR_REQUEST_CHAT;
    const bool records = reply->job->top >= 0 && part->record_count > sent->records;
    const bool begins = !sent->begun && (chat || part->made > 0 || ends);
    dr_calls calls;
    json_t *piece;
    *text = NULL;
    if (sent->ended) return DR_OK;
    DR_TRY(read_shown(reply, part, ends, &calls));
    if (!(begins || ends || calls.text > sent->text || records)) return DR_OK;
    dr_status status = content_json(reply, i, sent->text, begins, &calls, &piece);
    if (status == DR_OK) {
        json_t *logprobs = records ? logprobs_json(reply, part, sent->records) : json_null();
        json_t *content = chat ? delta_json(reply, i, piece, begins, &calls) : piece;
        const size_t shown = calls.text > sent->text ? calls.text : sent->text;
        *sent = (dr_sent){.begun = true, .ended = ends, .records = part->record_count, .text = shown};
        json_t *choice = json_pack("{s:I, s:o, s:o, s:o}", "index", (json_int_t)i, chat ? "delta" : "text", content, "logprobs",
                                   logprobs, "finish_reason", finish_json(part->outcome, &calls));
        status = take_text(envelope(reply, true, json_pack("[o]", choice)), event, text);
    }
    json_decref(calls.calls);
    return status;
}

dr_status dr_reply_usage_event(dr_reply *reply, char **text) {
    json_t *json = envelope(reply, true, json_array());
    if (json) json_object_set_new(json, "usage", usage_json(reply));
    return take_text(json, event, text);
}

/* ---- errors ---- */

static json_t *error_json(int status, const char *message, const char *param, const char *code) {
    const char *type = status == 401   ? "authentication_error"
                       : status == 404 ? "not_found_error"
                       : status == 429 ? "rate_limit_error"
                       : status < 500  ? "invalid_request_error"
                                       : "server_error";
    char valid[1024];
    return json_pack("{s:{s:s, s:s, s:o, s:o}}", "error", "message", dr_printable(message, valid, sizeof valid), "type", type,
                     "param", param ? json_string(param) : json_null(), "code", code ? json_string(code) : json_null());
}

char *dr_reply_error(int status, const char *message, const char *param, const char *code) {
    char *text;
    return take_text(error_json(status, message, param, code), plain, &text) == DR_OK ? text : NULL;
}

dr_status dr_reply_error_event(const char *message, char **text) {
    return take_text(error_json(500, message, NULL, NULL), event, text);
}
