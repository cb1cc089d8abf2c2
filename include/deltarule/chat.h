/* Chats as text: the chat template of a tokenizer, rendered.
 *
 * A template is a small program (Jinja) that turns messages into the text which a model was trained on. The interpreter has
 * what templates of published models use, with the meanings of Jinja2 3.1 as Hugging Face's transformers runs it; it is bounded
 * in steps, memory, depth and output, whatever the template is. */
#ifndef DELTARULE_CHAT_H
#define DELTARULE_CHAT_H

#include <deltarule/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Templates by name and special tokens. Does not change after it was made: any thread may render with it. */
typedef struct dr_chat dr_chat;

/* Reads a tokenizer's folder: special tokens from tokenizer_config.json (and special_tokens_map.json for those that it does not
 * name), templates from chat_template.jinja, else from "chat_template" of tokenizer_config.json, which is one or a list of
 * named ones. DR_ERROR_IO or DR_ERROR_FORMAT; a folder without a template is DR_ERROR_UNSUPPORTED. */
DR_API dr_status dr_chat_load(const char *folder, dr_chat **chat);

/* A chat of one template, named "default", without special tokens. */
DR_API dr_status dr_chat_create(const char *text, size_t length, dr_chat **chat);

DR_API void dr_chat_destroy(dr_chat *chat); /* NULL is allowed */

typedef struct {
    size_t size;                /* sizeof(dr_chat_options) */
    const char *messages;       /* JSON: a list of messages, [{"role": "user", "content": "Hi"}] */
    const char *tools;          /* JSON: a list, or NULL for none */
    const char *documents;      /* JSON: a list, or NULL for none */
    const char *variables;      /* JSON: an object with more variables, which go before special tokens; or NULL */
    const char *name;           /* which template; NULL: tool_use if there are tools and it is there, else default */
    bool add_generation_prompt; /* begins the answer */
    bool has_time;              /* strftime_now gives `time`, else the clock's, both in the local time zone */
    int64_t time;               /* seconds since 1970 */
} dr_chat_options;

/* Renders the messages. *text (UTF-8, *length bytes and a zero byte behind them) is the caller's: dr_chat_free_text. It holds
 * the special tokens, the one for the beginning too, so tokenize it without adding any. DR_ERROR_FORMAT if the JSON or the
 * template is wrong or the template refuses the messages, with the line of the template. */
DR_API dr_status dr_chat_render(const dr_chat *chat, const dr_chat_options *options, char **text, size_t *length);
DR_API void dr_chat_free_text(char *text);

#ifdef __cplusplus
}
#endif
#endif
