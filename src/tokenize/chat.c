/* The chat templates of a tokenizer's folder, and their variables. */
#include "base/error.h"
#include "base/memory.h"
#include "formats/file.h"
#include "formats/json.h"
#include "tokenize/template.h"

#include <deltarule/chat.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { LONGEST_TEMPLATE = 4 * 1024 * 1024 };

struct dr_chat {
    json_t *templates; /* name: text */
    json_t *tokens;    /* variables such as bos_token */
};

static dr_status set(json_t *object, const char *key, json_t *value) {
    if (!value || json_object_set_new(object, key, value) != 0)
        return dr_fail(DR_ERROR_MEMORY, "there is no memory for a chat");
    return DR_OK;
}

static dr_status create(dr_chat **chat) {
    void *memory;
    DR_TRY(dr_allocate_zero(sizeof **chat, "a chat", &memory));
    *chat = memory;
    (*chat)->templates = json_object();
    (*chat)->tokens = json_object();
    if ((*chat)->templates && (*chat)->tokens) return DR_OK;
    dr_chat_destroy(*chat);
    return dr_fail(DR_ERROR_MEMORY, "there is no memory for a chat");
}

void dr_chat_destroy(dr_chat *chat) {
    if (!chat) return;
    json_decref(chat->templates);
    json_decref(chat->tokens);
    dr_release(chat);
}

static dr_status add_template(dr_chat *chat, const char *name, const char *text, size_t length) {
    json_t *value = json_stringn(text ? text : "", length);
    if (!value) return dr_fail(DR_ERROR_FORMAT, "the chat template '%s' is not UTF-8", name);
    return set(chat->templates, name, value);
}

dr_status dr_chat_create(const char *text, size_t length, dr_chat **chat) {
    dr_chat *made;
    if (length > 0) DR_NEED(text);
    DR_NEED(chat);
    if (length > LONGEST_TEMPLATE)
        return dr_fail(DR_ERROR_ARGUMENT, "the chat template has more than %d bytes", LONGEST_TEMPLATE);
    DR_TRY(create(&made));
    dr_status status = add_template(made, "default", text, length);
    if (status == DR_OK)
        *chat = made;
    else
        dr_chat_destroy(made);
    return status;
}

/* ---- a tokenizer's folder ------------------------------------------------------------------------------------------------ */

static bool exists(const char *file) {
    struct stat about;
    return stat(file, &about) == 0;
}

/* A special token is a string, or an object whose "content" is one. */
static const json_t *token_text(const json_t *token) {
    if (json_is_object(token)) token = json_object_get(token, "content");
    return json_is_string(token) ? token : NULL;
}

/* Special tokens that this file has and none before it had. */
static dr_status add_tokens(dr_chat *chat, const json_t *config) {
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *token = token_text(json_object_get(config, names[i]));
        if (!token || json_object_get(chat->tokens, names[i])) continue;
        DR_TRY(set(chat->tokens, names[i], json_deep_copy(token)));
    }
    const json_t *more = json_object_get(config, "additional_special_tokens"), *token;
    size_t index;
    if (json_array_size(more) > 0 && !json_object_get(chat->tokens, "additional_special_tokens")) {
        DR_TRY(set(chat->tokens, "additional_special_tokens", json_array()));
        json_t *list = json_object_get(chat->tokens, "additional_special_tokens");
        json_array_foreach(more, index, token) {
            json_t *copy = token_text(token) ? json_deep_copy(token_text(token)) : NULL;
            if (copy && json_array_append_new(list, copy) != 0)
                return dr_fail(DR_ERROR_MEMORY, "there is no memory for a chat");
        }
    }
    const char *name;
    json_object_foreach((json_t *)json_object_get(config, "extra_special_tokens"), name, token) {
        if (token_text(token) && !json_object_get(chat->tokens, name))
            DR_TRY(set(chat->tokens, name, json_deep_copy(token_text(token))));
    }
    return DR_OK;
}

static dr_status add_templates(dr_chat *chat, const json_t *config) {
    const json_t *given = json_object_get(config, "chat_template"), *one;
    size_t index;
    if (!given || json_is_null(given)) return DR_OK;
    if (json_is_string(given)) return add_template(chat, "default", json_string_value(given), json_string_length(given));
    json_array_foreach(given, index, one) {
        const char *name = json_string_value(json_object_get(one, "name"));
        const json_t *text = json_object_get(one, "template");
        if (!name || !json_is_string(text))
            return dr_fail(DR_ERROR_FORMAT,
                           "entry %zu of \"chat_template\" must be an object with the strings \"name\" and \"template\"",
                           index);
        DR_TRY(add_template(chat, name, json_string_value(text), json_string_length(text)));
    }
    if (json_array_size(given) > 0) return DR_OK;
    char found[64];
    dr_json_describe(given, found, sizeof found);
    return dr_fail(DR_ERROR_FORMAT, "\"chat_template\" is %s: it must be a string or a list of named templates", found);
}

/* One JSON file of the folder, if it is there. */
static dr_status read_config(const char *folder, const char *name, bool templates, dr_chat *chat) {
    char path[PATH_MAX];
    json_t *config = NULL;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return dr_fail(DR_ERROR_IO, "the path %s is too long", folder);
    if (!exists(path)) return DR_OK;
    DR_TRY(dr_json_read(path, &config));
    dr_status status = add_tokens(chat, config);
    if (status == DR_OK && templates) status = add_templates(chat, config);
    json_decref(config);
    return status == DR_OK ? DR_OK : dr_fail_in(status, "%s", path);
}

static dr_status read_template(const char *folder, dr_chat *chat) {
    char path[PATH_MAX], *text;
    size_t length;
    if (snprintf(path, sizeof path, "%s/chat_template.jinja", folder) >= (int)sizeof path)
        return dr_fail(DR_ERROR_IO, "the path %s is too long", folder);
    if (!exists(path)) return DR_OK;
    DR_TRY(dr_file_read(path, LONGEST_TEMPLATE, &text, &length));
    dr_status status = add_template(chat, "default", text, length);
    dr_release(text);
    return status == DR_OK ? DR_OK : dr_fail_in(status, "%s", path);
}

dr_status dr_chat_load(const char *folder, dr_chat **chat) {
    dr_chat *made;
    dr_status status;
    DR_NEED(folder);
    DR_NEED(chat);
    if (!exists(folder)) return dr_fail(DR_ERROR_IO, "there is no folder %s", folder);
    DR_TRY(create(&made));
    DR_GO(read_config(folder, "tokenizer_config.json", true, made));
    DR_GO(read_template(folder, made));
    DR_GO(read_config(folder, "special_tokens_map.json", false, made));
    if (json_object_size(made->templates) == 0)
        DR_GO(dr_fail(DR_ERROR_UNSUPPORTED,
                      "%s has no chat template: neither \"chat_template\" in tokenizer_config.json nor chat_template.jinja",
                      folder));
    *chat = made;
    return DR_OK;
done:
    dr_chat_destroy(made);
    return status;
}

/* ---- rendering ----------------------------------------------------------------------------------------------------------- */

/* Parses a JSON value into a key of the object; text NULL: null. */
static dr_status add_json(json_t *object, const char *key, const char *text, bool is_object) {
    if (!text) return set(object, key, json_null());
    size_t length = strlen(text), room = length + strlen(key) + 16;
    void *memory;
    json_t *parsed = NULL;
    if (strspn(text, " \t\r\n") == length)
        return dr_fail(DR_ERROR_FORMAT, "%s is empty: it must be a JSON %s", key,
                       is_object ? "object, { ... }" : "list, [ ... ]");
    DR_TRY(dr_allocate(room, "the JSON of a chat", &memory));
    int used = snprintf(memory, room, "{\"%s\":%s}", key, text);
    dr_status status = dr_json_parse(memory, (size_t)used, key, &parsed);
    dr_release(memory);
    DR_TRY(status);
    json_t *value = json_object_get(parsed, key);
    if (json_object_size(parsed) != 1 || !(is_object ? json_is_object(value) : json_is_array(value))) {
        char found[64];
        dr_json_describe(value, found, sizeof found);
        status = dr_fail(DR_ERROR_FORMAT, "%s holds %s: it must be a JSON %s", key, found,
                         is_object ? "object, { ... }" : "list, [ ... ]");
    } else {
        status = set(object, key, json_incref(value));
    }
    json_decref(parsed);
    return status;
}

static dr_status gather(const dr_chat *chat, const dr_chat_options *options, json_t *variables) {
    DR_TRY(add_json(variables, "messages", options->messages, false));
    DR_TRY(add_json(variables, "tools", options->tools, false));
    DR_TRY(add_json(variables, "documents", options->documents, false));
    DR_TRY(set(variables, "add_generation_prompt", json_boolean(options->add_generation_prompt)));
    if (json_object_update(variables, chat->tokens) != 0) return dr_fail(DR_ERROR_MEMORY, "there is no memory for a chat");
    if (!options->variables) return DR_OK;
    json_t *more = json_object();
    dr_status status = more ? add_json(more, "variables", options->variables, true)
                            : dr_fail(DR_ERROR_MEMORY, "there is no memory for a chat");
    if (status == DR_OK && json_object_update(variables, json_object_get(more, "variables")) != 0)
        status = dr_fail(DR_ERROR_MEMORY, "there is no memory for a chat");
    json_decref(more);
    return status;
}

static dr_status choose(const dr_chat *chat, const dr_chat_options *options, const json_t **chosen, const char **name) {
    char names[200] = "";
    const char *key;
    json_t *value;
    *name = options->name                                                    ? options->name
            : options->tools && json_object_get(chat->templates, "tool_use") ? "tool_use"
                                                                             : "default";
    *chosen = json_object_get(chat->templates, *name);
    if (*chosen) return DR_OK;
    json_object_foreach(chat->templates, key, value) {
        const size_t used = strlen(names);
        if (used + strlen(key) + 3 < sizeof names) snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", key);
    }
    return dr_fail(DR_ERROR_ARGUMENT, "there is no chat template '%s'; there are: %s", *name, names);
}

dr_status dr_chat_render(const dr_chat *chat, const dr_chat_options *options, char **text, size_t *length) {
    const json_t *chosen;
    const char *name;
    DR_NEED(chat);
    DR_NEED(options);
    DR_NEED(text);
    DR_NEED(length);
    if (options->size != sizeof *options)
        return dr_fail(DR_ERROR_ARGUMENT, "the options say that they have %zu bytes: dr_chat_options of this library has %zu",
                       options->size, sizeof *options);
    DR_NEED(options->messages);
    DR_TRY(choose(chat, options, &chosen, &name));
    json_t *variables = json_object();
    dr_status status = variables ? gather(chat, options, variables) : dr_fail(DR_ERROR_MEMORY, "there is no memory for a chat");
    if (status == DR_OK) {
        int64_t now = options->has_time ? options->time : (int64_t)time(NULL);
        status = dr_template_render(json_string_value(chosen), json_string_length(chosen), variables, now, text, length);
        if (status != DR_OK && status != DR_ERROR_MEMORY) dr_fail_in(status, "chat template '%s'", name);
    }
    json_decref(variables);
    return status;
}

void dr_chat_free_text(char *text) {
    dr_release(text);
}
