/* Asking a model items one after the other. */
#ifndef DR_EVALUATE_ASKED_H
#define DR_EVALUATE_ASKED_H

#include "data/encode.h"
#include "evaluate/item.h"

typedef struct {
    const dr_model *model;
    const dr_evaluate_options *options;
    const dr_tokenizer *tokenizer;
    dr_tokenizer *own_tokenizer; /* bytes */
    dr_encoder *encoder;
    int32_t start; /* begins a text; stands before one that has no context, whatever the options */
    dr_session *session;
    dr_model_state *state;
    int32_t *ids; /* [room] of a request */
    int64_t count, room;
    double logprobs[DR_MOST_CHOICES];
    char *text; /* [text_bytes] of an answer, and a zero byte */
    size_t text_bytes, text_room;
    bool no_memory; /* an answer could not be held */
} dr_asker;

/* Release it, also after a failure. */
dr_status dr_asker_create(const dr_model *model, const dr_evaluate_options *options, dr_asker *asker);
void dr_asker_release(dr_asker *asker);

/* *skipped: the cut leaves it out. *sum: all log-probabilities of a text. What score points to is valid until the next call. */
dr_status dr_ask(dr_asker *asker, const dr_item *item, dr_item_score *score, bool *skipped, double *sum);

#endif
