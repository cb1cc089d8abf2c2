/* Each function reads the keys of one concern and leaves the key it looks at in request->param, where an error finds it. */
#include "serve/request.h"

#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- single keys ---- */

static dr_status integer(dr_request *request, const char *key, int64_t least, int64_t most, int64_t *value) {
    request->param = key;
    return dr_json_integer(request->json, key, least, most, value);
}

static dr_status real(dr_request *request, const char *key, double least, double most, double *value) {
    request->param = key;
    return dr_json_real(request->json, key, least, most, value);
}

static dr_status boolean(dr_request *request, const char *key, bool *value) {
    request->param = key;
    return dr_json_boolean(request->json, key, value);
}

static dr_status text(dr_request *request, const char *key, const char **value) {
    request->param = key;
    return dr_json_text(request->json, key, value);
}

/* The value of a key, or NULL where it is missing or null. */
static json_t *present(dr_request *request, const char *key) {
    json_t *value = json_object_get(request->json, key);
    request->param = key;
    return json_is_null(value) ? NULL : value;
}

static dr_status wrong_type(const char *key, const char *needed, const json_t *value) {
    char found[96];
    dr_json_describe(value, found, sizeof found);
    return dr_fail(DR_ERROR_FORMAT, "\"%s\" must be %s, not %s", key, needed, found);
}

/* ---- prompts ---- */

static dr_status add_prompt(dr_request *request, dr_request_prompt prompt) {
    void *memory = request->prompts;
    dr_status status = dr_grow(&memory, request->prompt_count, sizeof prompt, "the prompts");
    if (status != DR_OK) {
        dr_release(prompt.ids);
        return status;
    }
    request->prompts = memory;
    request->prompts[request->prompt_count++] = prompt;
    return DR_OK;
}

static dr_status add_text(dr_request *request, const json_t *value) {
    return add_prompt(request, (dr_request_prompt){.text = json_string_value(value), .bytes = json_string_length(value)});
}

static dr_status add_ids(dr_request *request, const json_t *list) {
    const int64_t count = (int64_t)json_array_size(list);
    void *memory;
    DR_TRY(dr_allocate((size_t)count * sizeof(int32_t), "the ids of a prompt", &memory));
    int32_t *ids = memory;
    for (int64_t i = 0; i < count; i++) {
        int64_t id;
        const json_t *value = json_array_get(list, (size_t)i);
        if (!json_is_number(value) || !dr_json_whole(value, &id) || id < 0 || id > INT32_MAX) {
            char found[96];
            dr_json_describe(value, found, sizeof found);
            dr_release(ids);
            return dr_fail(DR_ERROR_FORMAT, "\"%s\" has %s at place %lld of a list of token ids", request->param, found,
                           (long long)i);
        }
        ids[i] = (int32_t)id;
    }
    return add_prompt(request, (dr_request_prompt){.ids = ids, .count = count});
}

/* A text, a list of texts, a list of ids, or a list of lists of ids. */
static dr_status read_prompts(dr_request *request, const char *key) {
    static const char shapes[] = "a string, a list of strings, a list of token ids or a list of such lists";
    const json_t *value = present(request, key);
    if (!value) return dr_fail(DR_ERROR_FORMAT, "\"%s\" is missing: it must be %s", key, shapes);
    if (json_is_string(value)) return add_text(request, value);
    if (!json_is_array(value)) return wrong_type(key, shapes, value);
    const size_t count = json_array_size(value);
    if (count == 0) return dr_fail(DR_ERROR_FORMAT, "\"%s\" is an empty list: it must be %s", key, shapes);
    if (json_is_number(json_array_get(value, 0))) return add_ids(request, value);
    if (count > DR_MOST_PROMPTS)
        return dr_fail(DR_ERROR_FORMAT, "\"%s\" has %zu prompts: at most %d", key, count, DR_MOST_PROMPTS);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(value, i);
        if (json_is_string(item))
            DR_TRY(add_text(request, item));
        else if (json_is_array(item))
            DR_TRY(add_ids(request, item));
        else
            return wrong_type(key, shapes, item);
    }
    return DR_OK;
}

/* ---- sampling ---- */

static dr_status read_stops(dr_request *request) {
    const json_t *value = present(request, "stop");
    const size_t count = !value ? 0 : json_is_array(value) ? json_array_size(value) : 1;
    if (count > DR_MOST_STOPS) return dr_fail(DR_ERROR_FORMAT, "\"stop\" has %zu texts: at most %d", count, DR_MOST_STOPS);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_string(item)) return wrong_type("stop", "a string or a list of strings", item);
        if (json_string_length(item) == 0)
            return dr_fail(DR_ERROR_FORMAT, "\"stop\" has an empty text: it would end every answer at once");
        request->stops[i] = json_string_value(item);
    }
    request->options.stop_count = (int64_t)count;
    return DR_OK;
}

/* {"15043": -100, ...}: -100 or less means never. */
static dr_status read_bias(dr_request *request) {
    const char *key;
    json_t *value, *object = present(request, "logit_bias");
    void *memory;
    if (!object) return DR_OK;
    if (!json_is_object(object)) return wrong_type("logit_bias", "an object of token ids and numbers", object);
    DR_TRY(dr_allocate((json_object_size(object) + 1) * sizeof(dr_logit_bias), "the biases", &memory));
    request->bias = memory;
    json_object_foreach(object, key, value) {
        int64_t id;
        if (!dr_integer_parse(key, &id) || id < 0 || id > INT32_MAX || !json_is_number(value))
            return dr_fail(DR_ERROR_FORMAT, "\"logit_bias\" has the key \"%.40s\": it must give numbers to token ids", key);
        const double bias = json_number_value(value);
        request->bias[request->options.sampling.bias_count++] =
            (dr_logit_bias){.id = (int32_t)id, .bias = bias <= -100 ? -HUGE_VAL : bias};
    }
    request->options.sampling.bias = request->bias;
    return DR_OK;
}

static dr_status read_sampling(dr_request *request) {
    dr_sampling *o = &request->options.sampling;
    int64_t seed = 0;
    DR_TRY(real(request, "temperature", 0, 100, &o->temperature));
    DR_TRY(real(request, "top_p", 0, 1, &o->top_p));
    if (o->top_p == 0) o->top_p = 1e-12; /* the likeliest alone */
    DR_TRY(real(request, "min_p", 0, 1, &o->min_p));
    DR_TRY(integer(request, "top_k", -1, INT32_MAX, &o->top_k));
    if (o->top_k < 0) o->top_k = 0;
    DR_TRY(real(request, "presence_penalty", -2, 2, &o->presence_penalty));
    DR_TRY(real(request, "frequency_penalty", -2, 2, &o->frequency_penalty));
    DR_TRY(real(request, "repetition_penalty", 1e-3, 1e3, &o->repetition_penalty));
    request->seeded = present(request, "seed") != NULL;
    DR_TRY(integer(request, "seed", INT64_MIN, INT64_MAX, &seed));
    o->seed = (uint64_t)seed;
    DR_TRY(boolean(request, "ignore_eos", &request->options.ignore_eos));
    DR_TRY(read_bias(request));
    return read_stops(request);
}

/* Refuses what would change the answer and is not done. */
static dr_status refuse_key(dr_request *request, const char *key) {
    const json_t *value = present(request, key);
    if (!value || json_is_false(value) || (json_is_string(value) && json_string_length(value) == 0)) return DR_OK;
    if ((json_is_array(value) && json_array_size(value) == 0) || (json_is_object(value) && json_object_size(value) == 0))
        return DR_OK;
    return dr_fail(DR_ERROR_UNSUPPORTED, "\"%s\" is not supported: leave it out", key);
}

static dr_status refuse_unsupported(dr_request *request) {
    static const char *const keys[] = {"suffix", "functions", "audio", "guided_json", "guided_regex"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) DR_TRY(refuse_key(request, keys[i]));
    return DR_OK;
}

/* Text, any JSON object, or JSON of a schema. */
static dr_status read_format(dr_request *request) {
    const json_t *format = present(request, "response_format");
    if (!format) return DR_OK;
    const char *type = json_string_value(json_object_get(format, "type"));
    if (type && strcmp(type, "text") == 0) return DR_OK;
    if (type && strcmp(type, "json_object") == 0) {
        DR_TRY(dr_schema_create_object(&request->schema));
    } else if (type && strcmp(type, "json_schema") == 0) {
        const json_t *schema = json_object_get(json_object_get(format, "json_schema"), "schema");
        if (!schema)
            return dr_fail(DR_ERROR_FORMAT, "\"response_format\" has no schema: it must be {\"type\": \"json_schema\", "
                                            "\"json_schema\": {\"name\": ..., \"schema\": {...}}}");
        DR_TRY(dr_schema_create(schema, &request->schema));
    } else {
        return dr_fail(DR_ERROR_FORMAT,
                       "\"response_format\" is of type \"%.40s\": it must be \"text\", \"json_object\" or \"json_schema\"",
                       type ? type : "");
    }
    if (!request->options.ignore_eos) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "\"ignore_eos\" is true: an answer of a \"response_format\" ends where its JSON does");
}

/* ---- answers ---- */

static dr_status read_stream(dr_request *request) {
    DR_TRY(boolean(request, "stream", &request->stream));
    const json_t *options = present(request, "stream_options");
    if (!options) return DR_OK;
    if (!json_is_object(options)) return wrong_type("stream_options", "an object", options);
    return dr_json_boolean(options, "include_usage", &request->include_usage);
}

static dr_status read_answers(dr_request *request) {
    int64_t best = 0;
    DR_TRY(text(request, "model", &request->model));
    DR_TRY(integer(request, "n", 1, DR_MOST_CHOICES, &request->choices));
    DR_TRY(integer(request, "best_of", 1, DR_MOST_CHOICES, &best));
    if (best > 0 && best != request->choices)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "\"best_of\" is %lld and \"n\" is %lld: answers are not chosen from more than \"n\"", (long long)best,
                       (long long)request->choices);
    DR_TRY(integer(request, "max_tokens", 0, INT32_MAX, &request->max_tokens));
    DR_TRY(read_stream(request));
    DR_TRY(read_sampling(request));
    DR_TRY(refuse_unsupported(request));
    return read_format(request);
}

static dr_status read_completion(dr_request *request) {
    request->max_tokens = 16;
    DR_TRY(read_prompts(request, "prompt"));
    DR_TRY(read_answers(request));
    DR_TRY(boolean(request, "echo", &request->echo));
    const json_t *logprobs = present(request, "logprobs");
    if (json_is_boolean(logprobs)) {
        request->top = json_is_true(logprobs) ? 1 : -1;
        return DR_OK;
    }
    return integer(request, "logprobs", 0, DR_MOST_SHOWN, &request->top);
}

/* ---- chats ---- */

/* A value of the request as JSON text; NULL: it is missing. */
static dr_status keep_json(dr_request *request, const char *key, bool list, char **kept) {
    const json_t *value = present(request, key);
    if (!value) return DR_OK;
    if (list ? !json_is_array(value) : !json_is_object(value)) return wrong_type(key, list ? "a list" : "an object", value);
    *kept = dr_json_format(value, JSON_COMPACT);
    return *kept ? DR_OK : dr_fail(DR_ERROR_MEMORY, "no memory for \"%s\"", key);
}

/* The text of a part of a message's content, or NULL: it is none. */
static const char *part_text(const json_t *part) {
    const char *type = json_string_value(json_object_get(part, "type"));
    return type && strcmp(type, "text") == 0 ? json_string_value(json_object_get(part, "text")) : NULL;
}

/* Content in parts becomes one text; parts that are no text are refused. */
static dr_status join_parts(json_t *message) {
    const json_t *content = json_object_get(message, "content");
    if (!json_is_array(content)) return DR_OK;
    void *memory;
    size_t bytes = 0, used = 0;
    for (size_t i = 0; i < json_array_size(content); i++) {
        const char *words = part_text(json_array_get(content, i));
        if (!words)
            return dr_fail(DR_ERROR_UNSUPPORTED,
                           "a part of a message's \"content\" is no text: parts must be of type \"text\"");
        bytes += strlen(words);
    }
    DR_TRY(dr_allocate(bytes, "a message", &memory));
    for (size_t i = 0; i < json_array_size(content); i++) {
        const char *words = part_text(json_array_get(content, i));
        memcpy((char *)memory + used, words, strlen(words));
        used += strlen(words);
    }
    const int set = json_object_set_new(message, "content", json_stringn(memory, bytes));
    dr_release(memory);
    return set == 0 ? DR_OK : dr_fail(DR_ERROR_MEMORY, "no memory for the messages");
}

/* Clients send a call's arguments as the text of an object, templates take the object. */
static void parse_arguments(json_t *message) {
    json_t *calls = json_object_get(message, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *function = json_object_get(json_array_get(calls, i), "function");
        const json_t *text = json_object_get(function, "arguments");
        json_t *value = json_is_string(text) ? dr_json_value(json_string_value(text)) : NULL;
        if (json_is_object(value)) json_object_set(function, "arguments", value);
        json_decref(value);
    }
}

static dr_status check_messages(dr_request *request) {
    const json_t *messages = present(request, "messages");
    if (!messages || (json_is_array(messages) && json_array_size(messages) == 0))
        return dr_fail(DR_ERROR_FORMAT, "\"messages\" is missing: it must be a list of at least one message, "
                                        "{\"role\": \"user\", \"content\": \"Hi\"}");
    if (!json_is_array(messages)) return wrong_type("messages", "a list", messages);
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        if (!json_is_object(message)) return wrong_type("messages", "a list of objects", message);
        if (!json_is_string(json_object_get(message, "role")))
            return dr_fail(DR_ERROR_FORMAT, "message %zu has no \"role\": it must be a string, such as \"user\"", i);
        const json_t *content = json_object_get(message, "content");
        if (content && !json_is_string(content) && !json_is_array(content) && !json_is_null(content))
            return wrong_type("content", "a string or a list of parts", content);
        DR_TRY(join_parts(message));
        parse_arguments(message);
    }
    return DR_OK;
}

/* The name of a tool, or NULL: it is no function. */
static const char *tool_name(const json_t *tool) {
    const char *type = json_string_value(json_object_get(tool, "type"));
    return type && strcmp(type, "function") == 0 ? json_string_value(json_object_get(json_object_get(tool, "function"), "name"))
                                                 : NULL;
}

static dr_status check_tools(dr_request *request) {
    const json_t *tools = present(request, "tools");
    if (tools && !json_is_array(tools)) return wrong_type("tools", "a list", tools);
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!tool_name(json_array_get(tools, i)))
            return dr_fail(DR_ERROR_FORMAT, "tool %zu must be {\"type\": \"function\", \"function\": {\"name\": ...}}", i);
    return DR_OK;
}

/* auto, none, required, or the name of one tool. *none: the model is not to know of the tools. */
static dr_status read_tool_choice(dr_request *request, bool *none) {
    static const char forms[] = "\"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}";
    const json_t *tools = json_object_get(request->json, "tools"), *choice = present(request, "tool_choice");
    const char *word = json_string_value(choice);
    *none = word && strcmp(word, "none") == 0;
    if (!choice || *none || (word && strcmp(word, "auto") == 0)) return DR_OK;
    request->must_call = true;
    request->tool = tool_name(choice);
    if (!request->tool && !(word && strcmp(word, "required") == 0)) return wrong_type("tool_choice", forms, choice);
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!request->tool || strcmp(tool_name(json_array_get(tools, i)), request->tool) == 0) {
            if (!request->schema && !request->options.ignore_eos) return DR_OK;
            return dr_fail(DR_ERROR_FORMAT,
                           "\"tool_choice\" asks for a call: leave out \"response_format\" and \"ignore_eos\"");
        }
    return dr_fail(DR_ERROR_FORMAT, "\"tool_choice\" asks for a call of %s%.60s%s, which \"tools\" does not have",
                   request->tool ? "\"" : "a tool", request->tool ? request->tool : "", request->tool ? "\"" : "");
}

static dr_status read_chat(dr_request *request) {
    bool logprobs = false;
    request->max_tokens = -1;
    DR_TRY(check_messages(request));
    DR_TRY(read_answers(request));
    DR_TRY(integer(request, "max_completion_tokens", 0, INT32_MAX, &request->max_tokens));
    DR_TRY(boolean(request, "logprobs", &logprobs));
    if (logprobs) {
        request->top = 0;
        DR_TRY(integer(request, "top_logprobs", 0, DR_MOST_SHOWN, &request->top));
    }
    DR_TRY(boolean(request, "add_generation_prompt", &request->add_generation_prompt));
    DR_TRY(keep_json(request, "messages", true, &request->messages));
    bool none;
    DR_TRY(check_tools(request));
    DR_TRY(read_tool_choice(request, &none));
    if (!none) DR_TRY(keep_json(request, "tools", true, &request->tools));
    return keep_json(request, "chat_template_kwargs", false, &request->variables);
}

/* ---- the other bodies ---- */

static dr_status read_embedding(dr_request *request) {
    const char *format = "float";
    DR_TRY(text(request, "model", &request->model));
    request->max_tokens = 0;
    DR_TRY(refuse_key(request, "dimensions"));
    DR_TRY(text(request, "encoding_format", &format));
    request->base64 = strcmp(format, "base64") == 0;
    if (!request->base64 && strcmp(format, "float") != 0)
        return dr_fail(DR_ERROR_FORMAT, "\"encoding_format\" is \"%.40s\": it must be \"float\" or \"base64\"", format);
    return read_prompts(request, "input");
}

static dr_status read_tokenize(dr_request *request) {
    DR_TRY(text(request, "model", &request->model));
    DR_TRY(boolean(request, "add_special_tokens", &request->special));
    const json_t *prompt = present(request, "prompt");
    if (!json_is_string(prompt))
        return prompt ? wrong_type("prompt", "a string", prompt)
                      : dr_fail(DR_ERROR_FORMAT, "\"prompt\" is missing: it must be a string");
    return add_text(request, prompt);
}

static dr_status read_detokenize(dr_request *request) {
    DR_TRY(text(request, "model", &request->model));
    const json_t *tokens = present(request, "tokens");
    if (!json_is_array(tokens))
        return tokens ? wrong_type("tokens", "a list of token ids", tokens)
                      : dr_fail(DR_ERROR_FORMAT, "\"tokens\" is missing: it must be a list of token ids");
    return add_ids(request, tokens);
}

static dr_status read_kind(dr_request *request) {
    switch (request->kind) {
    case DR_REQUEST_COMPLETION:
        return read_completion(request);
    case DR_REQUEST_CHAT:
        return read_chat(request);
    case DR_REQUEST_EMBEDDING:
        return read_embedding(request);
    case DR_REQUEST_TOKENIZE:
        return read_tokenize(request);
    case DR_REQUEST_DETOKENIZE:
        return read_detokenize(request);
    }
    return dr_fail(DR_ERROR_ARGUMENT, "there is no kind of request %d", (int)request->kind);
}

dr_status dr_request_parse(dr_request_kind kind, const char *body, size_t bytes, dr_request *request) {
    *request = (dr_request){.kind = kind, .choices = 1, .top = -1, .add_generation_prompt = true, .special = true};
    request->options = dr_generate_defaults();
    request->options.sampling = dr_sampling_defaults();
    request->options.stop = request->stops;
    DR_TRY(dr_json_parse(body, bytes, "the request's body", &request->json));
    DR_TRY(read_kind(request));
    request->param = NULL;
    return DR_OK;
}

void dr_request_release(dr_request *request) {
    for (int64_t i = 0; i < request->prompt_count; i++) dr_release(request->prompts[i].ids);
    dr_release(request->prompts);
    dr_release(request->bias);
    free(request->messages);
    free(request->tools);
    free(request->variables);
    dr_schema_destroy(request->schema);
    json_decref(request->json);
    *request = (dr_request){0};
}
