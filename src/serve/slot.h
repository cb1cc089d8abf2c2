/* One sequence that is computed: its state in the model, its sampler, the text of its answer. */
#ifndef DR_SERVE_SLOT_H
#define DR_SERVE_SLOT_H

#include "generate/answer.h"
#include "serve/job.h"

typedef struct {
    dr_sequence *sequence; /* NULL: the slot is free */
    dr_model_state *state;
    dr_sampler *sampler;
    dr_answer answer;
    int64_t read;    /* tokens of the prompt that the state has seen */
    int32_t last;    /* the token that was chosen last, which the state has not seen */
    double chose_at; /* when that was */
} dr_slot;

/* What all slots of a model share. */
typedef struct {
    const dr_model *model;
    const dr_tokenizer *tokenizer;
    int64_t vocabulary; /* of the model */
    int64_t chunk;      /* tokens of a prompt in one call */
    int64_t scored;     /* likewise where every token's logits are wanted */
    dr_session *session;
    float *logits; /* [max(1, scored), vocabulary] */
} dr_slot_shared;

dr_status dr_slot_shared_create(const dr_model *model, const dr_tokenizer *tokenizer, dr_slot_shared *shared);
void dr_slot_shared_release(dr_slot_shared *shared);

dr_status dr_slot_create(const dr_slot_shared *shared, dr_slot *slot);
void dr_slot_release(dr_slot *slot);

/* Gives the slot to a sequence. */
dr_status dr_slot_begin(dr_slot *slot, dr_sequence *sequence);
/* Takes it back; the sequence is not told. */
void dr_slot_end(dr_slot *slot);

/* Whether the prompt is still to be read. */
bool dr_slot_reads(const dr_slot *slot);
/* Reads the next chunk of the prompt, and chooses the first token behind its last. *tokens: how many were read. */
dr_status dr_slot_read(const dr_slot_shared *shared, dr_slot *slot, int64_t *tokens);
/* The next token of the answer. */
dr_status dr_slot_step(const dr_slot_shared *shared, dr_slot *slot);
/* How the sequence ended; DR_OUTCOME_NONE: it goes on. */
dr_outcome dr_slot_outcome(const dr_slot *slot);

#endif
