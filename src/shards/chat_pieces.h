/* A list of messages as text, cut where the assistant begins and ends to speak. */
#ifndef DR_SHARDS_CHAT_PIECES_H
#define DR_SHARDS_CHAT_PIECES_H

#include "shards/source.h"

#include <jansson.h>

typedef struct {
    char *text;            /* rendered; of dr_chat_render */
    dr_text_piece *pieces; /* [count] of the text, in order */
    int64_t count;
} dr_chat_pieces;

/* Renders messages, a list, with tools, a list or NULL. What the assistant says, up to the end of its turn, is learned, all
 * else is given. DR_ERROR_FORMAT if there is no list of messages, or the template refuses it, or shows an answer in no place
 * that can be found. Release it, also after a failure. */
dr_status dr_chat_pieces_make(const dr_chat *chat, const json_t *messages, const json_t *tools, dr_chat_pieces *pieces);
void dr_chat_pieces_release(dr_chat_pieces *pieces);

#endif
