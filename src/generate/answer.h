/* The text of one answer as its tokens come: whole characters, cut at stop texts, ended by the tokens that end it. */
#ifndef DR_GENERATE_ANSWER_H
#define DR_GENERATE_ANSWER_H

#include "generate/stop.h"

typedef struct {
    const dr_generate_options *options;
    dr_decoder *decoder; /* NULL: ids are bytes */
    int32_t start, end;  /* begins a text; ends one, -1: none */
    dr_stop stop;
    char *ready; /* [ready_room] text that is certain, since the last token */
    size_t ready_bytes, ready_room;
    int64_t made;
    dr_finish finish;
} dr_answer;

/* DR_ERROR_ARGUMENT names what ends an answer and cannot. */
dr_status dr_answer_check(const dr_generate_options *options);

/* Release it, also after a failure; the options must outlive it. */
dr_status dr_answer_create(const dr_generate_options *options, dr_answer *answer);
void dr_answer_release(dr_answer *answer);

/* Ids of the prompt, since the text of later ids depends on them. */
dr_status dr_answer_read(dr_answer *answer, const int32_t *ids, int64_t count);
/* The next token. answer->ready is then the text that it makes certain, and answer->finish tells whether the answer is over. */
dr_status dr_answer_add(dr_answer *answer, int32_t id);

#endif
