/* Prompts are cut at multiples of the pool's grain, so that nothing is read twice; the pool sees to it that neither the cuts
 * nor the neighbours change a bit. */
#include "serve/slot.h"

#include "base/error.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

/* A round reads a chunk of prompts. Scored chunks hold their logits in 64 MiB. A long prompt is kept every so many tokens. */
enum { CHUNK = 512, SCORED_LOGITS = 1 << 24, KEPT_EVERY = 2048 };

/* Tells the metrics what has changed in the store. */
static void count_store(dr_slot_shared *shared) {
    dr_prefix_counts now;
    if (!shared->kept || dr_prefixes_count(shared->kept, &now) != DR_OK) return;
    dr_metrics_store(shared->metrics, &shared->counted, &now);
    shared->counted = now;
}

dr_status dr_slot_shared_create(const dr_model *model, const dr_tokenizer *tokenizer, int64_t slots, int64_t context,
                                const dr_prefix_options *store, dr_metrics *metrics, dr_slot_shared *shared) {
    const dr_model_config *config = dr_model_get_config(model);
    *shared = (dr_slot_shared){
        .model = model, .tokenizer = tokenizer, .vocabulary = config->vocabulary, .hidden = config->hidden, .metrics = metrics};
    dr_pool_options options = dr_pool_defaults();
    DR_TRY(dr_model_grain(model, &shared->grain));
    shared->chunk = CHUNK > shared->grain ? CHUNK / shared->grain * shared->grain : shared->grain;
    const int64_t scored = SCORED_LOGITS / shared->vocabulary / shared->grain * shared->grain;
    shared->scored = scored > shared->chunk ? shared->chunk : scored < shared->grain ? shared->grain : scored;
    DR_TRY(dr_token_mask_create(tokenizer, &shared->mask));
    options.slots = slots;
    options.rows = shared->chunk;
    options.tokens = context;
    DR_TRY(dr_pool_create(model, &options, &shared->pool));
    if (store->bytes == 0) return DR_OK;
    DR_TRY(dr_prefixes_create(model, store, &shared->kept));
    count_store(shared);
    return DR_OK;
}

void dr_slot_shared_release(dr_slot_shared *shared) {
    /* what is no longer there is no longer counted, but what happened is */
    dr_prefix_counts left = shared->counted;
    left.snapshots = left.files = 0, left.bytes = left.file_bytes = 0;
    if (shared->kept) dr_metrics_store(shared->metrics, &shared->counted, &left);
    dr_prefixes_destroy(shared->kept);
    dr_pool_destroy(shared->pool);
    dr_token_mask_destroy(shared->mask);
    *shared = (dr_slot_shared){0};
}

dr_status dr_slot_create(const dr_slot_shared *shared, int64_t index, int64_t context, dr_slot *slot) {
    void *memory;
    dr_sampling sampling = dr_sampling_defaults();
    sampling.logprobs = true;
    sampling.top_logprobs = DR_MOST_TOP_LOGPROBS;
    *slot = (dr_slot){.index = index};
    DR_TRY(dr_allocate((size_t)(context + 1) * sizeof(int32_t), "the tokens of a slot", &memory));
    slot->ids = memory;
    DR_TRY(dr_allocate(sizeof(dr_automaton), "the automaton of a slot", &memory));
    slot->automaton = memory;
    return dr_sampler_create(dr_tokenizer_size(shared->tokenizer), &sampling, &slot->sampler);
}

void dr_slot_release(dr_slot *slot) {
    dr_answer_release(&slot->answer);
    dr_sampler_destroy(slot->sampler);
    dr_release(slot->ids);
    dr_release(slot->automaton);
    *slot = (dr_slot){0};
}

dr_status dr_slot_begin(dr_slot_shared *shared, dr_slot *slot, dr_part *part) {
    slot->part = part;
    slot->read = slot->made = 0;
    memcpy(slot->ids, part->prompt, (size_t)part->prompt_count * sizeof(int32_t));
    DR_TRY(dr_pool_reset(shared->pool, slot->index));
    DR_TRY(dr_sampler_restart(slot->sampler, &part->options.sampling));
    DR_TRY(dr_sampler_read(slot->sampler, part->prompt, part->prompt_count));
    DR_TRY(dr_answer_create(&part->options, &slot->answer));
    if (part->job->schema) dr_automaton_begin(part->job->schema, slot->automaton);
    return dr_answer_read(&slot->answer, part->prompt, part->prompt_count);
}

/* Keeps the slot's state as far as it can be had; what cannot be kept is read again another time. */
static void keep(dr_slot_shared *shared, const dr_slot *slot) {
    dr_model_state *state;
    dr_position about;
    if (!shared->kept || dr_pool_snapshot(shared->pool, slot->index, &state) != DR_OK) return;
    if (dr_model_state_about(state, 0, &about) == DR_OK && about.tokens > 0) {
        if (dr_prefixes_add(shared->kept, slot->ids, about.tokens, state) == DR_ERROR_IO)
            dr_metrics_add(shared->metrics, DR_COUNTER_FILES_FAILED, 1);
    } else {
        dr_model_state_destroy(state);
    }
    count_store(shared);
}

void dr_slot_end(dr_slot_shared *shared, dr_slot *slot, bool keeps) {
    if (keeps && slot->made > 1 && !slot->part->job->score_prompt) keep(shared, slot);
    dr_answer_release(&slot->answer);
    slot->part = NULL;
}

bool dr_slot_reads(const dr_slot *slot) {
    return slot->read < slot->part->prompt_count;
}

/* How the one look-up between two counts ended. */
static const char *found(const dr_prefix_counts *before, const dr_prefix_counts *after) {
    if (after->hits > before->hits) return "hit";
    if (after->gone > before->gone) return "gone";
    return after->empty > before->empty ? "empty" : "unknown";
}

/* Goes on from the longest beginning of the prompt whose state is kept: one token at least is left to read. */
static dr_status restore(dr_slot_shared *shared, dr_slot *slot) {
    const dr_prefix_counts before = shared->counted;
    if (!shared->kept) return DR_OK;
    DR_TRY(dr_prefixes_restore(shared->kept, shared->pool, slot->index, slot->part->prompt, slot->part->prompt_count, true,
                               &slot->read));
    count_store(shared);
    pthread_mutex_lock(&slot->part->job->lock);
    slot->part->cached = slot->read;
    slot->part->store = found(&before, &shared->counted);
    pthread_mutex_unlock(&slot->part->job->lock);
    return DR_OK;
}

dr_status dr_slot_ask(dr_slot_shared *shared, dr_slot *slot, int64_t most, int64_t most_scored, dr_pool_item *item) {
    const dr_job *job = slot->part->job;
    *item = (dr_pool_item){.slot = slot->index, .count = 1, .wanted = 1};
    if (!dr_slot_reads(slot)) {
        item->decode = true;
        item->ids = slot->ids + slot->part->prompt_count + slot->made - 1;
        return DR_OK;
    }
    item->count = 0; /* a round with so little room left would look for a state and then read nothing */
    if (slot->read == 0 && most < shared->grain && slot->part->prompt_count > most) return DR_OK;
    if (slot->read == 0 && !job->score_prompt) DR_TRY(restore(shared, slot));
    if (job->score_prompt && most_scored < most) most = most_scored;
    const int64_t left = slot->part->prompt_count - slot->read;
    item->ids = slot->part->prompt + slot->read;
    item->count = left <= most ? left : most / shared->grain * shared->grain;
    item->wanted = job->score_prompt ? item->count : item->count == left ? 1 : 0;
    return DR_OK;
}

/* Records of the prompt's tokens: token t + 1 is predicted by row t - from of the logits, the first by nothing. */
static dr_status score_chunk(const dr_slot_shared *shared, dr_part *part, int64_t from, int64_t rows, const float *logits) {
    dr_token_logprob tops[DR_MOST_TOP_LOGPROBS];
    dr_job *job = part->job;
    const int64_t top = job->top > 0 ? job->top : 0;
    dr_status status = DR_OK;
    for (int64_t i = 0; i < top; i++) tops[i] = (dr_token_logprob){.id = -1};
    for (int64_t t = from - (from == 0); t < from + rows && t + 1 < part->prompt_count && status == DR_OK; t++) {
        dr_token_logprob token = {.id = part->prompt[t + 1], .logprob = (double)NAN};
        if (t >= 0)
            status = dr_token_logprobs(logits + (t - from) * shared->vocabulary, shared->vocabulary, token.id, &token.logprob,
                                       top ? tops : NULL, top);
        pthread_mutex_lock(&job->lock);
        if (status == DR_OK) status = dr_part_add(part, token, tops);
        part->prompt_records = part->record_count;
        pthread_mutex_unlock(&job->lock);
    }
    return status;
}

/* Draws among the tokens that the schema lets through. Log-probabilities are the model's, as without a schema. */
static dr_status draw_bound(dr_slot_shared *shared, dr_slot *slot, const float *logits, dr_choice *choice,
                            dr_token_logprob tops[DR_MOST_TOP_LOGPROBS]) {
    const dr_job *job = slot->part->job;
    const int32_t end = slot->answer.end >= 0 ? slot->answer.end : slot->answer.start;
    const float *masked;
    DR_TRY(dr_token_mask_apply(shared->mask, job->schema, slot->automaton, end, logits, &masked));
    DR_TRY(dr_sampler_choose(slot->sampler, masked, choice));
    choice->top = tops;
    if (job->top >= 0)
        DR_TRY(dr_token_logprobs(logits, dr_tokenizer_size(shared->tokenizer), choice->id, &choice->logprob, tops, job->top));
    if (choice->id != end) (void)dr_token_mask_take(shared->mask, job->schema, slot->automaton, choice->id);
    return DR_OK;
}

/* The next token from logits [vocabulary]: what it makes certain goes to whoever waits. */
static dr_status choose(dr_slot_shared *shared, dr_slot *slot, const float *logits) {
    dr_token_logprob tops[DR_MOST_TOP_LOGPROBS];
    dr_part *part = slot->part;
    dr_job *job = part->job;
    dr_choice choice;
    DR_TRY(job->schema ? draw_bound(shared, slot, logits, &choice, tops) : dr_sampler_choose(slot->sampler, logits, &choice));
    DR_TRY(dr_answer_add(&slot->answer, choice.id));
    slot->ids[part->prompt_count + slot->made++] = choice.id;
    pthread_mutex_lock(&job->lock);
    dr_status status = dr_part_add_text(part, slot->answer.ready, slot->answer.ready_bytes);
    if (status == DR_OK && job->top >= 0) status = dr_part_add(part, (dr_token_logprob){choice.id, choice.logprob}, choice.top);
    part->made++;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
    return status;
}

static dr_status take_embedding(const dr_slot_shared *shared, dr_part *part, const float *hidden) {
    void *memory;
    const size_t bytes = (size_t)shared->hidden * sizeof(float);
    DR_TRY(dr_allocate(bytes, "an embedding", &memory));
    memcpy(memory, hidden, bytes);
    pthread_mutex_lock(&part->job->lock);
    part->embedding = memory;
    pthread_mutex_unlock(&part->job->lock);
    return DR_OK;
}

dr_status dr_slot_take(dr_slot_shared *shared, dr_slot *slot, const dr_pool_item *item, const float *logits,
                       const float *hidden) {
    dr_part *part = slot->part;
    const dr_job *job = part->job;
    if (item->decode) return choose(shared, slot, logits);
    const int64_t from = slot->read;
    slot->read += item->count;
    if (job->score_prompt) DR_TRY(score_chunk(shared, part, from, item->count, logits));
    const bool ends = !dr_slot_reads(slot);
    if (!job->score_prompt && (ends || slot->read / KEPT_EVERY > from / KEPT_EVERY)) keep(shared, slot);
    if (!ends) return DR_OK;
    if (job->embed) return take_embedding(shared, part, hidden);
    if (part->options.tokens == 0) return DR_OK;
    return choose(shared, slot, logits + (item->wanted - 1) * shared->vocabulary);
}

dr_outcome dr_slot_outcome(const dr_slot *slot) {
    if (dr_slot_reads(slot)) return DR_OUTCOME_NONE;
    if (slot->part->job->embed) return DR_OUTCOME_LENGTH;
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
