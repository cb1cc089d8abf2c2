/* Conversations with a model: messages, answers, and a state that has read what was said, so that each turn reads only what is
 * new.
 *
 * The messages are rendered by a chat template. Where the rendered text begins with the text that the model has read and made
 * so far, as templates of most models have it, the rest alone is read. Else, since a message was taken back or the template
 * rewrites earlier ones, what follows the last turn before which it does: the states before the last 8 turns are kept. An
 * answer to a text that holds earlier answers agrees to rounding with reading them anew.
 *
 * Threads. A conversation is for one thread at a time; any number may be held with one model, tokenizer and template. */
#ifndef DELTARULE_CONVERSATION_H
#define DELTARULE_CONVERSATION_H

#include <deltarule/chat.h>
#include <deltarule/generate.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dr_conversation dr_conversation;

/* model, tokenizer and chat must outlive it. tokenizer NULL: the model's ids are bytes. chat NULL: no template; lines "User:
 * ..." and "Assistant: ..." then make up the text, and an answer ends before the next "User:". Errors as dr_generate_check. */
DR_API dr_status dr_conversation_create(const dr_model *model, const dr_tokenizer *tokenizer, const dr_chat *chat,
                                        dr_conversation **conversation);
DR_API void dr_conversation_destroy(dr_conversation *conversation); /* NULL is allowed */

/* Adds a message of a role ("system", "user", "assistant", or what the template knows). DR_ERROR_FORMAT if a text is not UTF-8.
 */
DR_API dr_status dr_conversation_add(dr_conversation *conversation, const char *role, const char *text, size_t bytes);
/* Takes the last message of the user and what follows it away. DR_ERROR_ARGUMENT if there is none. */
DR_API dr_status dr_conversation_undo(dr_conversation *conversation);

DR_API int64_t dr_conversation_count(const dr_conversation *conversation); /* messages; 0 of NULL */
/* Role and text of a message, valid until messages change; either pointer may be NULL. DR_ERROR_ARGUMENT: no such message. */
DR_API dr_status dr_conversation_message(const dr_conversation *conversation, int64_t index, const char **role,
                                         const char **text);

/* What an answer cost. */
typedef struct {
    int64_t kept, read, made; /* tokens that the state had read already; that were read now; that were made */
    double read_seconds, made_seconds, first_token_seconds;
    dr_finish finish; /* DR_FINISH_NOT: emit stopped it */
} dr_turn;

/* Makes the next answer and adds it as a message of the role "assistant". options->tokenizer is not looked at, and one text is
 * made. emit gets text as dr_generate emits it and returns false to end the answer, which then is DR_OK too, with what was
 * made. turn may be NULL. DR_ERROR_FORMAT if the template refuses the messages; then, and after any other failure, no message
 * was added. */
DR_API dr_status dr_conversation_answer(dr_conversation *conversation, const dr_generate_options *options,
                                        bool (*emit)(void *context, const char *bytes, size_t count), void *context,
                                        dr_turn *turn);

/* The messages as a file {"messages": [{"role": .., "content": ..}]}; loading replaces the messages, or leaves them after a
 * failure. DR_ERROR_IO, DR_ERROR_FORMAT. */
DR_API dr_status dr_conversation_save(const dr_conversation *conversation, const char *file);
DR_API dr_status dr_conversation_load(dr_conversation *conversation, const char *file);

#ifdef __cplusplus
}
#endif
#endif
