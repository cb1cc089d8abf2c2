/* Chunks of a prompt have the same bounds whoever computes beside it, and each token goes through a state of its own, so that
 * the bits of an answer do not depend on its neighbours. */
#include "serve/slot.h"

#include "base/error.h"
#include "base/memory.h"

#include <math.h>

/* A chunk is as long as `deltarule generate` reads at once, for the same bits. Scored chunks hold their logits in 64 MiB. */
enum { CHUNK = 512, LEAST_SCORED = 16, SCORED_LOGITS = 1 << 24 };

dr_status dr_slot_shared_create(const dr_model *model, const dr_tokenizer *tokenizer, dr_slot_shared *shared) {
    void *memory;
    const int64_t vocabulary = dr_model_get_config(model)->vocabulary, rows = SCORED_LOGITS / vocabulary;
    *shared = (dr_slot_shared){.model = model, .tokenizer = tokenizer, .vocabulary = vocabulary, .chunk = CHUNK};
    shared->scored = rows > CHUNK ? CHUNK : rows < LEAST_SCORED ? LEAST_SCORED : rows / LEAST_SCORED * LEAST_SCORED;
    DR_TRY(dr_session_create(model, &shared->session));
    DR_TRY(dr_allocate((size_t)(shared->scored * vocabulary) * sizeof(float), "the logits", &memory));
    shared->logits = memory;
    return DR_OK;
}

void dr_slot_shared_release(dr_slot_shared *shared) {
    dr_session_destroy(shared->session);
    dr_release(shared->logits);
    *shared = (dr_slot_shared){0};
}

dr_status dr_slot_create(const dr_slot_shared *shared, dr_slot *slot) {
    dr_sampling sampling = dr_sampling_defaults();
    sampling.logprobs = true;
    sampling.top_logprobs = DR_MOST_TOP_LOGPROBS;
    *slot = (dr_slot){0};
    DR_TRY(dr_model_state_create(shared->model, 1, &slot->state));
    return dr_sampler_create(dr_tokenizer_size(shared->tokenizer), &sampling, &slot->sampler);
}

void dr_slot_release(dr_slot *slot) {
    dr_slot_end(slot);
    dr_sampler_destroy(slot->sampler);
    dr_model_state_destroy(slot->state);
    *slot = (dr_slot){0};
}

dr_status dr_slot_begin(dr_slot *slot, dr_sequence *sequence) {
    slot->sequence = sequence;
    slot->read = 0;
    dr_model_state_reset(slot->state);
    DR_TRY(dr_sampler_restart(slot->sampler, &sequence->options.sampling));
    DR_TRY(dr_sampler_read(slot->sampler, sequence->prompt, sequence->prompt_count));
    DR_TRY(dr_answer_create(&sequence->options, &slot->answer));
    return dr_answer_read(&slot->answer, sequence->prompt, sequence->prompt_count);
}

void dr_slot_end(dr_slot *slot) {
    dr_answer_release(&slot->answer);
    slot->sequence = NULL;
}

bool dr_slot_reads(const dr_slot *slot) {
    return slot->read < slot->sequence->prompt_count;
}

/* Records of the prompt's tokens from `from` on: token t + 1 is predicted by row t - from of the logits. */
static dr_status score_chunk(const dr_slot_shared *shared, dr_sequence *sequence, int64_t from, int64_t rows) {
    dr_token_logprob tops[DR_MOST_TOP_LOGPROBS];
    dr_job *job = sequence->job;
    const int64_t top = job->top > 0 ? job->top : 0;
    dr_status status = DR_OK;
    for (int64_t i = 0; i < top; i++) tops[i] = (dr_token_logprob){.id = -1};
    for (int64_t t = from - (from == 0); t < from + rows && t + 1 < sequence->prompt_count && status == DR_OK; t++) {
        dr_token_logprob token = {.id = sequence->prompt[t + 1], .logprob = NAN};
        if (t >= 0)
            status = dr_token_logprobs(shared->logits + (t - from) * shared->vocabulary, dr_tokenizer_size(shared->tokenizer),
                                       token.id, &token.logprob, top ? tops : NULL, top);
        pthread_mutex_lock(&job->lock);
        if (status == DR_OK) status = dr_sequence_add(sequence, token, tops);
        sequence->prompt_records = sequence->record_count;
        pthread_mutex_unlock(&job->lock);
    }
    return status;
}

/* The next token from logits [vocabulary]: what it makes certain goes to whoever waits. */
static dr_status choose(dr_slot *slot, const float *logits) {
    dr_sequence *sequence = slot->sequence;
    dr_job *job = sequence->job;
    dr_choice choice;
    DR_TRY(dr_sampler_choose(slot->sampler, logits, &choice));
    DR_TRY(dr_answer_add(&slot->answer, choice.id));
    slot->last = choice.id;
    pthread_mutex_lock(&job->lock);
    dr_status status = dr_sequence_add_text(sequence, slot->answer.ready, slot->answer.ready_bytes);
    if (status == DR_OK && job->top >= 0)
        status = dr_sequence_add(sequence, (dr_token_logprob){choice.id, choice.logprob}, choice.top);
    sequence->made++;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
    return status;
}

dr_status dr_slot_read(const dr_slot_shared *shared, dr_slot *slot, int64_t *tokens) {
    dr_sequence *sequence = slot->sequence;
    const bool scores = sequence->job->score_prompt;
    const int64_t most = scores ? shared->scored : shared->chunk, left = sequence->prompt_count - slot->read;
    const int64_t rows = left < most ? left : most, last = rows - 1, from = slot->read;
    const bool ends = rows == left;
    dr_batch batch = {.layout = {.sequences = 1, .rows = rows},
                      .ids = sequence->prompt + from,
                      .targets = scores ? rows
                                 : ends ? 1
                                        : 0,
                      .positions = scores ? NULL : &last};
    *tokens = rows;
    DR_TRY(dr_session_logits(shared->session, &batch, slot->state, DR_F32, shared->logits));
    slot->read += rows;
    if (scores) DR_TRY(score_chunk(shared, sequence, from, rows));
    if (!ends || sequence->options.tokens == 0) return DR_OK;
    return choose(slot, shared->logits + (scores ? last * shared->vocabulary : 0));
}

dr_status dr_slot_step(const dr_slot_shared *shared, dr_slot *slot) {
    DR_TRY(dr_model_step(shared->model, &slot->last, slot->state, shared->logits));
    return choose(slot, shared->logits);
}

dr_outcome dr_slot_outcome(const dr_slot *slot) {
    if (dr_slot_reads(slot)) return DR_OUTCOME_NONE;
    switch (slot->answer.finish) {
    case DR_FINISH_NOT:
        return DR_OUTCOME_NONE;
    case DR_FINISH_LENGTH:
        return DR_OUTCOME_LENGTH;
    case DR_FINISH_END:
    case DR_FINISH_STOP:
        return DR_OUTCOME_STOP;
    }
    return DR_OUTCOME_FAILED;
}
