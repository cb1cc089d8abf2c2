/* Completions and chats: from the request's body to a job, and from the job's records to a response, whole or as a stream of
 * server-sent events. */
#include "serve/complete.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "data/encode.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Seconds after which a thread that waits looks whether its client is still there. */
static const double look = 0.2;

static void release(dr_completion *c) {
    if (c->job) {
        pthread_mutex_lock(&c->job->lock);
        for (int64_t i = 0; i < c->job->count; i++) c->exchange->answer_tokens += c->job->parts[i].made;
        for (int64_t i = 0; i < c->job->count; i++) c->exchange->cached_tokens += c->job->parts[i].cached;
        c->exchange->store = c->job->parts[0].store;
        pthread_mutex_unlock(&c->job->lock);
    }
    dr_job_destroy(c->job, c->submitted);
    dr_schema_destroy(c->call);
    dr_reply_release(&c->reply);
    dr_request_release(&c->request);
    dr_server_release(c->exchange->server, c->served);
    free(c->pending);
    dr_release(c->sent);
    dr_release(c);
}

/* ---- from the request to a job ---- */

static dr_status render_chat(dr_completion *c) {
    char *text;
    size_t bytes;
    if (!c->served->chat)
        return dr_fail(DR_ERROR_UNSUPPORTED, "the model \"%s\" has no chat template: use /v1/completions", c->served->name);
    dr_chat_options options = {.size = sizeof options,
                               .messages = c->request.messages,
                               .tools = c->request.tools,
                               .variables = c->request.variables,
                               .add_generation_prompt = c->request.add_generation_prompt};
    DR_TRY(dr_chat_render(c->served->chat, &options, &text, &bytes));
    void *memory;
    dr_status status = dr_allocate_zero(sizeof(dr_request_prompt), "the prompts", &memory);
    if (status == DR_OK) {
        c->request.prompts = memory;
        c->request.prompt_count = 1;
        status =
            dr_text_ids(c->served->tokenizer, text, bytes, DR_TEXT_AS_IS, &c->request.prompts->ids, &c->request.prompts->count);
    }
    dr_chat_free_text(text);
    return status;
}

static dr_status check_prompt(dr_completion *c, const dr_request_prompt *prompt) {
    if (prompt->count < 1) return dr_fail(DR_ERROR_FORMAT, "a prompt has no tokens: it must have at least one");
    DR_TRY(dr_served_check_ids(c->served, prompt->ids, prompt->count));
    const int64_t context = c->exchange->server->options.context, made = c->request.max_tokens < 0 ? 1 : c->request.max_tokens;
    if (prompt->count > context || made > context - prompt->count)
        return dr_fail(DR_ERROR_FORMAT, "a prompt has %lld tokens and its answer may have %lld: together at most %lld",
                       (long long)prompt->count, (long long)made, (long long)context);
    return DR_OK;
}

static dr_status make_prompts(dr_completion *c) {
    if (c->request.kind == DR_REQUEST_CHAT) DR_TRY(render_chat(c));
    for (int64_t i = 0; i < c->request.prompt_count; i++) {
        dr_request_prompt *prompt = &c->request.prompts[i];
        if (prompt->text)
            DR_TRY(dr_text_ids(c->served->tokenizer, prompt->text, prompt->bytes, DR_TEXT_OPEN, &prompt->ids, &prompt->count));
        DR_TRY(check_prompt(c, prompt));
        c->exchange->prompt_tokens += prompt->count;
    }
    return DR_OK;
}

/* What a call of a tool looks like: the template's words, and arguments of the tool's schema. */
static dr_status make_choice(const dr_call_form *form, const json_t *tool, dr_schema_choice *choice, void **words) {
    const json_t *function = json_object_get(tool, "function");
    const char *name = json_string_value(json_object_get(function, "name"));
    const size_t room = strlen(form->before) + strlen(name) + strlen(form->middle) + 1;
    DR_TRY(dr_allocate(room, "a call", words));
    snprintf(*words, room, "%s%s%s", form->before, name, form->middle);
    *choice = (dr_schema_choice){*words, form->behind, json_object_get(function, "parameters")};
    return DR_OK;
}

static dr_status bind_to_calls(dr_completion *c) {
    const json_t *tools = json_object_get(c->request.json, "tools");
    const dr_call_form *form = c->served->calls;
    dr_schema_choice choices[DR_SCHEMA_ALTERNATIVES];
    void *words[DR_SCHEMA_ALTERNATIVES] = {NULL};
    int32_t count = 0;
    dr_status status = DR_OK;
    if (!form || form->kind == DR_CALL_PARAMETERS)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "\"tool_choice\" cannot ask the model \"%s\" for a call: its chat template renders none as an "
                       "object of arguments; leave it \"auto\"",
                       c->served->name);
    for (size_t i = 0; i < json_array_size(tools) && status == DR_OK; i++) {
        const json_t *tool = json_array_get(tools, i);
        const char *name = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        if (c->request.tool && strcmp(name, c->request.tool) != 0) continue;
        if (count == DR_SCHEMA_ALTERNATIVES)
            status = dr_fail(DR_ERROR_UNSUPPORTED, "\"tool_choice\" is \"required\" with more than %d tools",
                             DR_SCHEMA_ALTERNATIVES);
        else
            status = make_choice(form, tool, &choices[count], &words[count]), count++;
    }
    if (status == DR_OK) status = dr_schema_create_choices(choices, count, &c->call);
    for (int32_t i = 0; i < count; i++) dr_release(words[i]);
    return status;
}

static dr_status make_job(dr_completion *c) {
    const dr_request *request = &c->request;
    dr_generate_options options = request->options;
    options.tokenizer = c->served->tokenizer;
    options.sampling.logprobs = request->top >= 0;
    options.sampling.top_logprobs = request->top > 0 ? request->top : 0;
    if (!request->seeded && getrandom(&options.sampling.seed, sizeof options.sampling.seed, 0) < 0) options.sampling.seed = 0;
    DR_TRY(dr_sampling_check(&options.sampling, dr_tokenizer_size(c->served->tokenizer)));
    if (request->must_call) DR_TRY(bind_to_calls(c));
    DR_TRY(dr_job_create(request->prompt_count * request->choices, &c->job));
    c->job->top = request->top;
    c->job->schema = c->call ? c->call : request->schema;
    c->job->embed = request->kind == DR_REQUEST_EMBEDDING;
    c->job->score_prompt = request->echo && request->top >= 0;
    c->job->deadline = c->job->created_at + c->exchange->server->options.request_seconds;
    for (int64_t i = 0; i < c->job->count; i++) {
        dr_part *part = &c->job->parts[i];
        const dr_request_prompt *prompt = &request->prompts[i / request->choices];
        part->prompt = prompt->ids;
        part->prompt_count = prompt->count;
        part->store = c->job->score_prompt ? "scored" : NULL;
        part->options = options;
        part->options.sampling.sample = i % request->choices;
        const int64_t left = c->exchange->server->options.context - prompt->count;
        part->options.tokens = request->max_tokens < 0 ? left : request->max_tokens;
    }
    return dr_reply_create(request, c->served, c->job, c->exchange->number, &c->reply);
}

/* ---- whole responses ---- */

/* Waits until the job is done; false: its client went away. */
static bool wait_for_job(dr_completion *c) {
    bool there = true;
    pthread_mutex_lock(&c->job->lock);
    while (c->job->done < c->job->count && there) {
        dr_job_wait(c->job, look);
        if (c->exchange->first_at == 0 && c->job->parts[0].made > 0) c->exchange->first_at = dr_clock_now();
        there = !dr_http_gone(c->exchange);
    }
    pthread_mutex_unlock(&c->job->lock);
    return there;
}

/* A part that did not end as it should, or NULL. */
static const dr_part *failed_part(const dr_job *job) {
    for (int64_t i = 0; i < job->count; i++) {
        const dr_outcome outcome = job->parts[i].outcome;
        if (outcome == DR_OUTCOME_TIMEOUT || outcome == DR_OUTCOME_FAILED || outcome == DR_OUTCOME_GONE) return &job->parts[i];
    }
    return NULL;
}

static const char *failure_text(const dr_part *part) {
    if (part->outcome == DR_OUTCOME_TIMEOUT) return "the request took longer than a request may";
    return part->outcome == DR_OUTCOME_GONE ? "the request was given up" : part->error;
}

static enum MHD_Result send_whole(dr_completion *c, enum MHD_Result (*send)(dr_completion *)) {
    dr_exchange *exchange = c->exchange;
    if (!wait_for_job(c)) return MHD_NO;
    const dr_part *failed = failed_part(c->job);
    if (failed)
        return dr_http_send_error(exchange, failed->outcome == DR_OUTCOME_TIMEOUT ? 504 : 500, failure_text(failed), NULL,
                                  NULL);
    return send(c);
}

static enum MHD_Result send_reply(dr_completion *c) {
    dr_exchange *exchange = c->exchange;
    char *text;
    dr_status status = dr_reply_whole(&c->reply, &text);
    if (status != DR_OK) return dr_http_send_failure(exchange, status, NULL);
    return dr_http_send(exchange, 200, "application/json", text, strlen(text));
}

/* ---- streams ---- */

/* The next event of any part, in turn; with the job's lock held. */
static dr_status part_event(dr_completion *c) {
    for (int64_t i = 0; i < c->job->count && !c->pending; i++) {
        DR_TRY(dr_reply_event(&c->reply, c->turn, &c->sent[c->turn], &c->pending));
        c->turn = (c->turn + 1) % c->job->count;
    }
    return DR_OK;
}

/* What ends a stream: a failure, the counts if they were asked for, and the word DONE. */
static dr_status last_events(dr_completion *c) {
    const dr_part *failed = failed_part(c->job);
    if (failed && !c->counted) {
        c->counted = true;
        return dr_reply_error_event(failure_text(failed), &c->pending);
    }
    if (c->request.include_usage && !c->counted) {
        c->counted = true;
        return dr_reply_usage_event(&c->reply, &c->pending);
    }
    if (!c->closed) c->pending = strdup("data: [DONE]\n\n");
    c->closed = true;
    return c->pending ? DR_OK : dr_fail(DR_ERROR_MEMORY, "no memory for the response");
}

/* Waits for the next event; *over: there is none. */
static dr_status next_event(dr_completion *c, bool *over) {
    dr_status status = DR_OK;
    *over = c->closed;
    if (c->closed) return DR_OK;
    pthread_mutex_lock(&c->job->lock);
    for (;;) {
        const bool done = c->job->done == c->job->count;
        if (c->exchange->first_at == 0 && c->job->parts[0].made > 0) c->exchange->first_at = dr_clock_now();
        status = part_event(c);
        if (status == DR_OK && !c->pending && done) status = last_events(c);
        if (status != DR_OK || c->pending) break;
        dr_job_wait(c->job, look);
        if (!dr_http_gone(c->exchange)) continue;
        status = dr_fail(DR_ERROR_INTERRUPTED, "the client went away");
        break;
    }
    pthread_mutex_unlock(&c->job->lock);
    if (status == DR_OK) c->pending_bytes = strlen(c->pending), c->taken = 0;
    return status;
}

static ssize_t read_stream(void *context, uint64_t position, char *buffer, size_t most) {
    dr_completion *c = context;
    bool over = false;
    (void)position;
    if (!c->pending) {
        dr_http_silence(c->exchange, true);
        dr_status status = next_event(c, &over);
        dr_http_silence(c->exchange, false);
        if (status != DR_OK) return MHD_CONTENT_READER_END_WITH_ERROR;
        if (over) return MHD_CONTENT_READER_END_OF_STREAM;
    }
    const size_t left = c->pending_bytes - c->taken, count = left < most ? left : most;
    memcpy(buffer, c->pending + c->taken, count);
    c->taken += count;
    if (c->taken == c->pending_bytes) {
        free(c->pending);
        c->pending = NULL;
    }
    return (ssize_t)count;
}

static void end_stream(void *context) {
    release(context);
}

/* The completion lives until the request has ended. */
static enum MHD_Result send_stream(dr_completion *c) {
    void *memory;
    c->exchange->stream = c;
    c->exchange->end_stream = end_stream;
    dr_status status = dr_allocate_zero((size_t)c->job->count * sizeof(dr_sent), "a stream", &memory);
    if (status != DR_OK) return dr_http_send_failure(c->exchange, status, NULL);
    c->sent = memory;
    struct MHD_Response *response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 1 << 14, read_stream, c, NULL);
    if (response) MHD_add_response_header(response, "Cache-Control", "no-cache");
    return dr_http_queue(c->exchange, 200, "text/event-stream; charset=utf-8", response);
}

/* ---- both ---- */

static enum MHD_Result refuse_model(dr_completion *c) {
    char message[300];
    snprintf(message, sizeof message, "there is no model \"%.100s\": /v1/models lists those that there are", c->request.model);
    return dr_http_send_error(c->exchange, 404, message, "model", "model_not_found");
}

/* Until the job is queued; *refused: a response was sent. */
static enum MHD_Result submit(dr_completion *c, dr_request_kind kind, bool *refused) {
    dr_exchange *exchange = c->exchange;
    *refused = true;
    dr_status status = dr_request_parse(kind, exchange->body ? exchange->body : "", exchange->bytes, &c->request);
    if (status != DR_OK) return dr_http_send_failure(exchange, status, c->request.param);
    c->served = dr_server_acquire(exchange->server, c->request.model);
    if (!c->served) return refuse_model(c);
    status = make_prompts(c);
    if (status != DR_OK)
        return dr_http_send_failure(exchange, status,
                                    kind == DR_REQUEST_CHAT        ? "messages"
                                    : kind == DR_REQUEST_EMBEDDING ? "input"
                                                                   : "prompt");
    const int64_t count = c->request.prompt_count * c->request.choices;
    if (count > exchange->server->options.queue) {
        char message[160];
        snprintf(message, sizeof message, "%lld answers in one request: at most %lld can wait", (long long)count,
                 (long long)exchange->server->options.queue);
        return dr_http_send_error(exchange, 400, message, "n", NULL);
    }
    status = make_job(c);
    if (status != DR_OK) return dr_http_send_failure(exchange, status, NULL);
    dr_scheduler_submit(c->served->scheduler, c->job, &c->submitted);
    if (!c->submitted) {
        dr_metrics_add(exchange->server->metrics, DR_COUNTER_REFUSED, 1);
        return dr_http_send_error(exchange, 429, "too many requests wait already: try again later", NULL, "queue_full");
    }
    *refused = false;
    return MHD_YES;
}

enum MHD_Result dr_complete(dr_exchange *exchange, dr_request_kind kind, enum MHD_Result (*send)(dr_completion *completion)) {
    void *memory;
    bool refused;
    dr_status status = dr_allocate_zero(sizeof(dr_completion), "a request", &memory);
    if (status != DR_OK) return dr_http_send_failure(exchange, status, NULL);
    dr_completion *c = memory;
    c->exchange = exchange;
    enum MHD_Result result = submit(c, kind, &refused);
    if (!refused && c->request.stream) return send_stream(c);
    if (!refused) result = send_whole(c, send);
    release(c);
    return result;
}

enum MHD_Result dr_answer_completion(dr_exchange *exchange) {
    return dr_complete(exchange, DR_REQUEST_COMPLETION, send_reply);
}

enum MHD_Result dr_answer_chat(dr_exchange *exchange) {
    return dr_complete(exchange, DR_REQUEST_CHAT, send_reply);
}
