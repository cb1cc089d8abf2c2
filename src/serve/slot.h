/* One sequence that is computed: its place in the pool of states, its sampler, the text of its answer. */
#ifndef DR_SERVE_SLOT_H
#define DR_SERVE_SLOT_H

#include "constrain/token_mask.h"
#include "generate/answer.h"
#include "serve/job.h"
#include "serve/metrics.h"

#include <deltarule/prefix.h>

typedef struct {
    dr_part *part; /* NULL: the slot is free */
    int64_t index; /* in the pool */
    dr_sampler *sampler;
    dr_answer answer;
    dr_automaton *automaton; /* where the answer is in its schema, if it has one */
    int32_t *ids;            /* [context] what the state has seen, and the token that was chosen last */
    int64_t read;            /* tokens of the prompt that the state has seen */
    int64_t made;            /* tokens that were chosen */
    double chose_at;         /* when the last was */
} dr_slot;

/* What all slots of a model share. */
typedef struct {
    const dr_model *model;
    const dr_tokenizer *tokenizer;
    int64_t vocabulary, hidden; /* of the model */
    int64_t grain;              /* prompts are cut at multiples of it */
    int64_t chunk;              /* tokens of prompts in one round */
    int64_t scored;             /* likewise of those whose every token's logits are wanted */
    dr_pool *pool;
    dr_prefixes *kept;        /* states of prompts and answers that were computed; NULL: none is kept */
    dr_prefix_counts counted; /* of `kept`, as the metrics have them */
    dr_metrics *metrics;
    dr_token_mask *mask; /* for answers with a schema */
} dr_slot_shared;

dr_status dr_slot_shared_create(const dr_model *model, const dr_tokenizer *tokenizer, int64_t slots, int64_t context,
                                const dr_prefix_options *store, dr_metrics *metrics, dr_slot_shared *shared);
void dr_slot_shared_release(dr_slot_shared *shared);

dr_status dr_slot_create(const dr_slot_shared *shared, int64_t index, int64_t context, dr_slot *slot);
void dr_slot_release(dr_slot *slot);

/* Gives the slot to a part of a job. */
dr_status dr_slot_begin(dr_slot_shared *shared, dr_slot *slot, dr_part *part);
/* Takes it back; nobody is told. keep: the state may serve a prompt that goes on from here. */
void dr_slot_end(dr_slot_shared *shared, dr_slot *slot, bool keep);

/* Whether the prompt is still to be read. */
bool dr_slot_reads(const dr_slot *slot);
/* The slot's share of the next round: at most so many tokens of its prompt, or the token that was chosen last. The first time
 * it looks for a state to go on from. item->count 0: `most` is too little for it. */
dr_status dr_slot_ask(dr_slot_shared *shared, dr_slot *slot, int64_t most, int64_t most_scored, dr_pool_item *item);
/* What the round gave: logits [wanted, vocabulary] and hidden [wanted, hidden] behind the wanted tokens. */
dr_status dr_slot_take(dr_slot_shared *shared, dr_slot *slot, const dr_pool_item *item, const float *logits,
                       const float *hidden);
/* How the part ended; DR_OUTCOME_NONE: it goes on. */
dr_outcome dr_slot_outcome(const dr_slot *slot);

#endif
