/* A rendered call is cut at the name and the arguments that were put into it. What stands before the call is what the template
 * renders when it begins an answer; what ends the turn is what stands behind an answer without calls. */
#include "serve/calls.h"

#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static const char blanks[] = " \t\r\n";

static dr_status copy(const char *text, size_t bytes, char **copied) {
    void *memory;
    DR_TRY(dr_allocate(bytes + 1, "the form of a call", &memory));
    if (bytes > 0) memcpy(memory, text, bytes);
    *copied = memory;
    (*copied)[bytes] = 0;
    return DR_OK;
}

static size_t without_blanks_behind(const char *text, size_t bytes, const char *more) {
    while (bytes > 0 && text[bytes - 1] && (strchr(blanks, text[bytes - 1]) || strchr(more, text[bytes - 1]))) bytes--;
    return bytes;
}

static size_t skip(const char *text, size_t bytes, size_t at, const char *more) {
    while (at < bytes && text[at] && (strchr(blanks, text[at]) || strchr(more, text[at]))) at++;
    return at;
}

/* Where the words stand in text [bytes] from `from` on; `bytes`: nowhere. */
static size_t find(const char *text, size_t bytes, size_t from, const char *words) {
    const char *found = from < bytes ? memmem(text + from, bytes - from, words, strlen(words)) : NULL;
    return found ? (size_t)(found - text) : bytes;
}

static bool stands(const char *text, size_t bytes, size_t at, const char *words) {
    const size_t count = strlen(words);
    return count <= bytes - at && memcmp(text + at, words, count) == 0;
}

/* Bytes of the object that a text begins with, up to the bracket that closes it; 0: it begins with none, or that has no end. */
static size_t object_length(const char *text, size_t bytes) {
    int64_t deep = 0;
    bool quoted = false;
    for (size_t i = 0; i < bytes && (i > 0 || text[0] == '{'); i++) {
        if (quoted && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            quoted = !quoted;
        else if (!quoted && text[i] == '{')
            deep++;
        else if (!quoted && text[i] == '}' && --deep == 0)
            return i + 1;
    }
    return 0;
}

/* ---- the form ---- */

/* The call is of another function than the tool that the template lists, so that its name stands at one place. */
#define USER "{\"role\": \"user\", \"content\": \"probe\"}"
static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"listed\", \"description\": \"d\", \"parameters\": "
    "{\"type\": \"object\", \"properties\": {\"p\": {\"type\": \"string\", \"description\": \"d\"}}, "
    "\"required\": [\"p\"]}}}]";
static const char name[] = "probe_function", key[] = "probe_key", spoken[] = "probe_words";
static const char asked[] = "[" USER "]";
static const char answered[] = "[" USER ", {\"role\": \"assistant\", \"content\": \"probe_words\"}]";
static const char called[] =
    "[" USER
    ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"functions.probe_function:0\", \"type\": "
    "\"function\", \"name\": \"probe_function\", \"arguments\": {\"probe_key\": \"v\"}, \"function\": {\"name\": "
    "\"probe_function\", \"arguments\": {\"probe_key\": \"v\"}}}]}]";

typedef struct {
    char *asked, *answered, *called; /* rendered */
} probes;

static dr_status render(const dr_chat *chat, const char *messages, bool begins, char **text) {
    size_t bytes;
    const dr_chat_options options = {
        .size = sizeof options, .messages = messages, .tools = tools, .add_generation_prompt = begins};
    dr_status status = dr_chat_render(chat, &options, text, &bytes);
    if (status != DR_OK) *text = NULL;
    return status == DR_ERROR_MEMORY ? status : DR_OK;
}

static void release(probes *p) {
    dr_chat_free_text(p->asked);
    dr_chat_free_text(p->answered);
    dr_chat_free_text(p->called);
}

/* The last word in quotes of a text. */
static dr_status last_quoted(const char *text, char **word) {
    size_t end = strlen(text), begin;
    while (end > 0 && text[end - 1] != '"') end--;
    /* before the name stands its opening quote, behind it its closing one: the word is the pair before or behind that */
    begin = end > 0 ? end - 1 : 0;
    while (begin > 0 && text[begin - 1] != '"') begin--;
    return copy(text + begin, end > begin ? end - begin - 1 : 0, word);
}

/* A token of the vocabulary that decoding leaves out, so that no answer's text has it. */
static bool is_left_out(const dr_tokenizer *tokenizer, const char *words) {
    const int32_t id = dr_tokenizer_id(tokenizer, words, strlen(words));
    return id >= 0 && dr_tokenizer_is_special(tokenizer, id);
}

static dr_status read_object_form(dr_call_form *form, const dr_tokenizer *tokenizer) {
    const char *brace = strrchr(form->before, '{'), *closing = strchr(form->behind, '}');
    char *opened;
    if (!closing) return DR_OK;
    DR_TRY(copy(form->before, (size_t)(brace - form->before), &form->marker));
    form->marker[without_blanks_behind(form->marker, strlen(form->marker), "[")] = 0;
    const size_t from = skip(closing, strlen(closing), 1, "]");
    DR_TRY(copy(closing + from, strlen(closing + from), &form->end));
    DR_TRY(copy(brace, without_blanks_behind(brace, strlen(brace), "\""), &opened)); /* {"name": */
    dr_status status = last_quoted(opened, &form->name_key);
    dr_release(opened);
    DR_TRY(status);
    DR_TRY(last_quoted(form->middle, &form->arguments_key));
    if (!is_left_out(tokenizer, form->marker)) return DR_OK;
    memmove(form->before, brace, strlen(brace) + 1);
    *form->marker = 0;
    if (is_left_out(tokenizer, form->end)) *form->end = 0, form->behind[(size_t)(closing - form->behind) + 1] = 0;
    return DR_OK;
}

static dr_status read_parameter_form(dr_call_form *form) {
    const char *function = strstr(form->before, "<function=");
    form->kind = DR_CALL_PARAMETERS;
    DR_TRY(copy(form->before, (size_t)(function - form->before), &form->marker));
    form->marker[without_blanks_behind(form->marker, strlen(form->marker), "")] = 0;
    if (!*form->marker) {
        dr_release(form->marker);
        DR_TRY(copy("<function=", 10, &form->marker));
    }
    return copy("</tool_call>", 12, &form->end);
}

/* Cuts the rendered call; *known: into a form that is known. */
static dr_status cut(const probes *p, const dr_tokenizer *tokenizer, dr_call_form *form, bool *known) {
    size_t start = 0, same = 0;
    while (p->asked[start] && p->asked[start] == p->called[start]) start++;
    const char *named = strstr(p->called + start, name), *turn = strstr(p->answered, spoken);
    if (!named || !turn) return DR_OK;
    const char *after = named + strlen(name), *argument = strstr(after, key), *thought = NULL;
    for (const char *t = p->called + start; (t = strstr(t, "</think>")) && t < named; t += 8) thought = t + 8;
    const char *before = thought ? thought + strspn(thought, blanks) : p->called + start;
    if (!argument) return DR_OK;
    DR_TRY(copy(before, (size_t)(named - before), &form->before));
    if (argument[-1] != '"') {
        *known = strstr(form->before, "<function=") && argument - after >= 11 && memcmp(argument - 11, "<parameter=", 11) == 0;
        return *known ? read_parameter_form(form) : DR_OK;
    }
    while (argument > after && *argument != '{') argument--;
    const size_t object_bytes = object_length(argument, strlen(argument));
    if (object_bytes == 0) return DR_OK;
    DR_TRY(copy(after, (size_t)(argument - after), &form->middle));
    const char *rest = argument + object_bytes;
    size_t bytes = strlen(rest);
    const size_t turn_bytes = strlen(turn + strlen(spoken));
    const char *turn_end = turn + strlen(spoken) + turn_bytes;
    while (same < bytes && same < turn_bytes && rest[bytes - 1 - same] == turn_end[-1 - (ptrdiff_t)same]) same++;
    DR_TRY(copy(rest, bytes - same, &form->behind));
    *known = true;
    if (strchr(form->before, '{')) return read_object_form(form, tokenizer);
    form->kind = DR_CALL_WORDS;
    DR_TRY(copy(form->before, strlen(form->before), &form->marker));
    return copy(form->behind, strlen(form->behind), &form->end);
}

dr_status dr_call_form_learn(const dr_chat *chat, const dr_tokenizer *tokenizer, dr_call_form **form) {
    probes p = {0};
    void *memory;
    bool known = false;
    dr_status status;
    *form = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_call_form), "the form of a call", &memory));
    dr_call_form *made = memory;
    DR_GO(render(chat, asked, true, &p.asked));
    DR_GO(render(chat, answered, false, &p.answered));
    DR_GO(render(chat, called, false, &p.called));
    if (p.asked && p.answered && p.called) DR_GO(cut(&p, tokenizer, made, &known));
    if (known && made->marker && (made->kind != DR_CALL_WORDS || *made->marker)) {
        *form = made;
        made = NULL;
    }
done:
    release(&p);
    dr_call_form_destroy(made);
    return status;
}

void dr_call_form_destroy(dr_call_form *form) {
    if (!form) return;
    dr_release(form->before);
    dr_release(form->middle);
    dr_release(form->behind);
    dr_release(form->marker);
    dr_release(form->end);
    dr_release(form->name_key);
    dr_release(form->arguments_key);
    dr_release(form);
}

/* ---- answers ---- */

/* Adds a call, and gives up its arguments; *known: it was one. */
static dr_status add_call(dr_calls *calls, const char *function, size_t bytes, json_t *arguments) {
    char *text = json_is_string(arguments) ? strdup(json_string_value(arguments)) : dr_json_format(arguments, JSON_COMPACT);
    json_decref(arguments);
    json_t *call = text ? json_pack("{s:s%, s:s}", "name", function, bytes, "arguments", text) : NULL;
    free(text);
    if (call && json_array_append_new(calls->calls, call) == 0) return DR_OK;
    return dr_fail(DR_ERROR_MEMORY, "no memory for a call");
}

/* The value that a text holds, NULL: none. */
static dr_status value_of(const char *text, size_t bytes, json_t **value) {
    char *copied;
    DR_TRY(copy(text, bytes, &copied));
    *value = dr_json_value(copied);
    dr_release(copied);
    return DR_OK;
}

/* An object at a place of the text, which then is behind it; NULL: there is none. */
static dr_status object_at(const char *text, size_t bytes, size_t *at, json_t **object) {
    const size_t count = *at < bytes ? object_length(text + *at, bytes - *at) : 0;
    *object = NULL;
    if (count > 0) DR_TRY(value_of(text + *at, count, object));
    if (*object) *at += count;
    return DR_OK;
}

/* Each reads one call behind its marker. *at: behind it, or as it was where there is none. */
static dr_status read_object(const dr_call_form *form, const char *text, size_t bytes, size_t *at, dr_calls *calls) {
    size_t end = skip(text, bytes, *at, "[,;");
    json_t *object;
    DR_TRY(object_at(text, bytes, &end, &object));
    const json_t *function = json_object_get(object, form->name_key);
    json_t *arguments = json_object_get(object, form->arguments_key);
    dr_status status = DR_OK;
    if (json_is_string(function) && (!arguments || json_is_object(arguments) || json_is_string(arguments))) {
        status = add_call(calls, json_string_value(function), json_string_length(function),
                          arguments ? json_incref(arguments) : json_object());
        *at = end;
    }
    json_decref(object);
    if (status == DR_OK && stands(text, bytes, skip(text, bytes, *at, "]"), form->end))
        *at = skip(text, bytes, *at, "]") + strlen(form->end);
    return status;
}

static dr_status read_words(const dr_call_form *form, const char *text, size_t bytes, size_t *at, dr_calls *calls) {
    const size_t middle = find(text, bytes, *at, form->middle);
    size_t end = middle + strlen(form->middle);
    json_t *object = NULL;
    if (middle < bytes) DR_TRY(object_at(text, bytes, &end, &object));
    if (!object) return DR_OK;
    DR_TRY(add_call(calls, text + *at, middle - *at, object));
    *at = end;
    if (stands(text, bytes, *at, form->end)) *at += strlen(form->end);
    return DR_OK;
}

/* The type that the request's tools give a parameter, or NULL. */
static const char *type_of(const json_t *request_tools, const char *function, const char *parameter) {
    for (size_t i = 0; i < json_array_size(request_tools); i++) {
        const json_t *tool = json_object_get(json_array_get(request_tools, i), "function");
        const char *named = json_string_value(json_object_get(tool, "name"));
        const json_t *properties = json_object_get(json_object_get(tool, "parameters"), "properties");
        if (named && strcmp(named, function) == 0)
            return json_string_value(json_object_get(json_object_get(properties, parameter), "type"));
    }
    return NULL;
}

/* A parameter that is not said to be a string is read as JSON, and is a string where it is none. */
static dr_status parameter_value(const char *type, const char *text, size_t bytes, json_t **value) {
    *value = NULL;
    if (bytes > 0 && text[0] == '\n') text++, bytes--;
    if (bytes > 0 && text[bytes - 1] == '\n') bytes--;
    if (!type || strcmp(type, "string") != 0) DR_TRY(value_of(text, bytes, value));
    if (!*value) *value = json_stringn(text, bytes);
    return *value ? DR_OK : dr_fail(DR_ERROR_MEMORY, "no memory for a call");
}

static dr_status read_parameters(const dr_call_form *form, const json_t *request_tools, const char *text, size_t bytes,
                                 size_t *at, dr_calls *calls) {
    static const char opening[] = "<parameter=", closing[] = "</parameter>", over[] = "</function>";
    char function[256], parameter[256];
    size_t here = skip(text, bytes, *at, "");
    if (stands(text, bytes, here, "<function=")) here += 10;
    size_t stop = find(text, bytes, here, ">");
    const size_t end = find(text, bytes, here, over);
    if (stop >= end || end == bytes || stop - here >= sizeof function) return DR_OK;
    snprintf(function, sizeof function, "%.*s", (int)(stop - here), text + here);
    json_t *arguments = json_object();
    for (here = find(text, end, stop, opening); here < end; here = find(text, end, stop, opening)) {
        const size_t begin = here + strlen(opening), named = find(text, end, begin, ">");
        stop = find(text, end, named, closing);
        if (named >= end || stop == end || named - begin >= sizeof parameter) break;
        snprintf(parameter, sizeof parameter, "%.*s", (int)(named - begin), text + begin);
        json_t *value;
        dr_status status =
            parameter_value(type_of(request_tools, function, parameter), text + named + 1, stop - named - 1, &value);
        if (status != DR_OK) {
            json_decref(arguments);
            return status;
        }
        json_object_set_new(arguments, parameter, value);
    }
    *at = skip(text, bytes, end + strlen(over), "");
    if (stands(text, bytes, *at, form->end)) *at += strlen(form->end);
    return add_call(calls, function, strlen(function), arguments);
}

/* Where the first call begins, or what may become its beginning; bytes: nowhere. */
static size_t find_marker(const dr_call_form *form, const char *text, size_t bytes, bool whole) {
    const size_t count = strlen(form->marker), begin = skip(text, bytes, 0, "");
    if (count == 0) return begin == bytes ? (whole ? bytes : 0) : text[begin] == '{' || text[begin] == '[' ? begin : bytes;
    size_t at = find(text, bytes, 0, form->marker);
    for (size_t part = count - 1; part > 0 && at == bytes && !whole; part--)
        if (part <= bytes && memcmp(text + bytes - part, form->marker, part) == 0) at = bytes - part;
    return at;
}

size_t dr_calls_certain(const dr_call_form *form, const char *text, size_t bytes) {
    return without_blanks_behind(text, find_marker(form, text, bytes, false), "");
}

dr_status dr_calls_read(const dr_call_form *form, const json_t *request_tools, const char *text, size_t bytes,
                        dr_calls *calls) {
    size_t at = find_marker(form, text, bytes, true);
    *calls = (dr_calls){.text = bytes, .rest = bytes, .calls = json_array()};
    const size_t before = without_blanks_behind(text, at, "");
    dr_status status = calls->calls ? DR_OK : dr_fail(DR_ERROR_MEMORY, "no memory for a call");
    while (status == DR_OK && at < bytes) {
        if (stands(text, bytes, at, form->marker)) at += strlen(form->marker);
        const size_t from = at;
        switch (form->kind) {
        case DR_CALL_OBJECT:
            status = read_object(form, text, bytes, &at, calls);
            break;
        case DR_CALL_WORDS:
            status = read_words(form, text, bytes, &at, calls);
            break;
        case DR_CALL_PARAMETERS:
            status = read_parameters(form, request_tools, text, bytes, &at, calls);
            break;
        }
        const size_t count = json_array_size(calls->calls);
        if (at == from || count == 0) break;
        calls->text = before;
        calls->rest = at = skip(text, bytes, at, form->kind == DR_CALL_OBJECT ? "]" : "");
        const bool again = *form->marker ? stands(text, bytes, at, form->marker) : at < bytes && strchr("{,;", text[at]);
        if (!again && !(form->kind == DR_CALL_OBJECT && at < bytes && text[at] == ',')) break;
    }
    return status;
}
