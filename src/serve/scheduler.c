/* One round of the loop: parts of jobs that wait get free slots; then one step of the pool makes a token of every running
 * answer and reads a chunk of prompts. So a long prompt delays the others by a chunk at a time, and prompts take turns. Jobs
 * take turns at slots too: one of many parts does not keep the others waiting until its last has begun. */
#include "serve/scheduler.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "serve/slot.h"

#include <string.h>

struct dr_scheduler {
    dr_scheduler_options options;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* guards the queue */
    pthread_cond_t woken;
    dr_job *first, *last;
    int64_t queued; /* parts without a slot */
    bool closing;
    dr_slot_shared shared;
    dr_slot *slots;       /* [options.slots] */
    dr_pool_item *items;  /* [options.slots] of a round */
    dr_slot **asked;      /* [options.slots] whose they are */
    float *logits;        /* [options.slots + shared.scored, vocabulary] */
    float *hidden;        /* likewise [.., hidden] */
    int64_t next_to_read; /* prompts take turns from here */
};

/* ---- the queue ---- */

static void append(dr_scheduler *self, dr_job *job) {
    job->next = NULL;
    if (self->last)
        self->last->next = job;
    else
        self->first = job;
    self->last = job;
}

static dr_job *take_first(dr_scheduler *self) {
    dr_job *job = self->first;
    self->first = job->next;
    if (!self->first) self->last = NULL;
    return job;
}

void dr_scheduler_submit(dr_scheduler *scheduler, dr_job *job, bool *accepted) {
    pthread_mutex_lock(&scheduler->lock);
    *accepted = !scheduler->closing && scheduler->queued + job->count <= scheduler->options.queue;
    if (*accepted) {
        append(scheduler, job);
        scheduler->queued += job->count;
        dr_metrics_set(scheduler->options.metrics, DR_GAUGE_QUEUED, scheduler->queued);
        pthread_cond_signal(&scheduler->woken);
    }
    pthread_mutex_unlock(&scheduler->lock);
}

/* The next part that waits, of the job whose turn it is; NULL: none waits. */
static dr_part *next_part(dr_scheduler *self) {
    dr_part *part = NULL;
    pthread_mutex_lock(&self->lock);
    if (self->first) {
        dr_job *job = take_first(self);
        part = &job->parts[job->taken++];
        if (job->taken < job->count) append(self, job);
        self->queued--;
        dr_metrics_set(self->options.metrics, DR_GAUGE_QUEUED, self->queued);
    }
    pthread_mutex_unlock(&self->lock);
    return part;
}

/* Waits while there is nothing to do; false: and there will be nothing. */
static bool wait_for_work(dr_scheduler *self, bool idle) {
    pthread_mutex_lock(&self->lock);
    while (idle && !self->first && !self->closing) pthread_cond_wait(&self->woken, &self->lock);
    const bool more = !idle || self->first;
    pthread_mutex_unlock(&self->lock);
    return more;
}

/* ---- one round ---- */

/* What ends a part from outside. */
static dr_outcome interrupted(const dr_part *part) {
    if (atomic_load(&part->job->gone)) return DR_OUTCOME_GONE;
    return dr_clock_now() > part->job->deadline ? DR_OUTCOME_TIMEOUT : DR_OUTCOME_NONE;
}

static void finish_slot(dr_scheduler *self, dr_slot *slot, dr_outcome outcome, const char *error) {
    dr_part *part = slot->part;
    dr_slot_end(&self->shared, slot, outcome == DR_OUTCOME_STOP || outcome == DR_OUTCOME_LENGTH);
    dr_metrics_add(self->options.metrics, DR_COUNTER_OUTCOME + (int)outcome, 1);
    dr_metrics_change(self->options.metrics, DR_GAUGE_SLOTS_USED, -1);
    dr_part_finish(part, outcome, error);
}

/* Ends a slot's part where it is over. */
static void settle(dr_scheduler *self, dr_slot *slot, dr_status status) {
    const dr_outcome outcome = status == DR_OK ? dr_slot_outcome(slot) : DR_OUTCOME_FAILED;
    if (outcome != DR_OUTCOME_NONE) finish_slot(self, slot, outcome, status == DR_OK ? NULL : dr_last_error());
}

static void fill_slots(dr_scheduler *self) {
    for (int64_t i = 0; i < self->options.slots; i++) {
        dr_slot *slot = &self->slots[i];
        dr_part *part;
        if (slot->part || !(part = next_part(self))) continue;
        const dr_outcome outcome = interrupted(part);
        dr_metrics_change(self->options.metrics, DR_GAUGE_SLOTS_USED, 1);
        dr_status status = dr_slot_begin(&self->shared, slot, part);
        if (outcome != DR_OUTCOME_NONE)
            finish_slot(self, slot, outcome, NULL);
        else
            settle(self, slot, status);
    }
}

static void end_interrupted(dr_scheduler *self) {
    for (int64_t i = 0; i < self->options.slots; i++) {
        const dr_outcome outcome = self->slots[i].part ? interrupted(self->slots[i].part) : DR_OUTCOME_NONE;
        if (outcome != DR_OUTCOME_NONE) finish_slot(self, &self->slots[i], outcome, NULL);
    }
}

/* A token was chosen: how long its reader waited for it. */
static void measure(dr_scheduler *self, dr_slot *slot, bool first) {
    const double now = dr_clock_now();
    if (first)
        dr_metrics_observe(self->options.metrics, DR_HISTOGRAM_FIRST_TOKEN, now - slot->part->job->created_at);
    else
        dr_metrics_observe(self->options.metrics, DR_HISTOGRAM_NEXT_TOKEN, now - slot->chose_at);
    slot->chose_at = now;
    dr_metrics_add(self->options.metrics, DR_COUNTER_ANSWER_TOKENS, 1);
}

/* What a slot's first chunk did not have to read. */
static void count_cached(dr_scheduler *self, const dr_slot *slot) {
    if (slot->part->job->score_prompt) dr_metrics_add(self->options.metrics, DR_COUNTER_STORE_SCORED, 1);
    dr_metrics_add(self->options.metrics, DR_COUNTER_CACHED_TOKENS, slot->read);
}

/* The items of a round: the tokens of running answers, then prompts in turn until the chunk is full. */
static int64_t ask(dr_scheduler *self) {
    const int64_t slots = self->options.slots, first = self->next_to_read;
    int64_t count = 0, left = self->shared.chunk, left_scored = self->shared.scored;
    for (int64_t i = 0; i < 2 * slots; i++) {
        dr_slot *slot = &self->slots[i < slots ? i : (first + i) % slots];
        dr_pool_item *item = &self->items[count];
        if (!slot->part || dr_slot_reads(slot) != (i >= slots) || (i >= slots && left == 0)) continue;
        const bool begins = i >= slots && slot->read == 0;
        dr_status status = dr_slot_ask(&self->shared, slot, left, left_scored, item);
        if (status != DR_OK) {
            settle(self, slot, status);
            continue;
        }
        if (item->count == 0) continue;
        if (begins) count_cached(self, slot);
        if (!item->decode) {
            left -= item->count;
            left_scored -= slot->part->job->score_prompt ? item->count : 0;
            self->next_to_read = (slot - self->slots + 1) % slots;
            dr_metrics_add(self->options.metrics, DR_COUNTER_PROMPT_TOKENS, item->count);
        }
        self->asked[count++] = slot;
    }
    return count;
}

static void step(dr_scheduler *self) {
    const int64_t count = ask(self);
    const dr_pool_results results = {.logits = self->logits, .hidden = self->hidden};
    int64_t row = 0;
    if (count == 0) return;
    dr_status stepped = dr_pool_step(self->shared.pool, self->items, count, &results);
    for (int64_t i = 0; i < count; i++) {
        dr_slot *slot = self->asked[i];
        const int64_t made = slot->made;
        dr_status status = stepped;
        if (status == DR_OK)
            status = dr_slot_take(&self->shared, slot, &self->items[i], self->logits + row * self->shared.vocabulary,
                                  self->hidden + row * self->shared.hidden);
        row += self->items[i].wanted;
        if (slot->made > made) measure(self, slot, made == 0);
        settle(self, slot, status);
    }
}

static bool idle(const dr_scheduler *self) {
    for (int64_t i = 0; i < self->options.slots; i++)
        if (self->slots[i].part) return false;
    return true;
}

static void *run(void *context) {
    dr_scheduler *self = context;
    while (wait_for_work(self, idle(self))) {
        end_interrupted(self);
        fill_slots(self);
        step(self);
    }
    return NULL;
}

/* ---- life ---- */

static dr_status allocate(size_t count, size_t bytes, void *place) {
    void *memory;
    DR_TRY(dr_allocate_zero(count * bytes, "the slots", &memory));
    memcpy(place, &memory, sizeof memory);
    return DR_OK;
}

static dr_status fill(dr_scheduler *self) {
    const dr_scheduler_options *o = &self->options;
    const size_t slots = (size_t)o->slots;
    DR_TRY(dr_slot_shared_create(o->model, o->tokenizer, o->slots, o->context, &o->store, o->metrics, &self->shared));
    const size_t rows = slots + (size_t)self->shared.scored;
    DR_TRY(allocate(slots, sizeof(dr_slot), &self->slots));
    DR_TRY(allocate(slots, sizeof(dr_pool_item), &self->items));
    DR_TRY(allocate(slots, sizeof(dr_slot *), &self->asked));
    DR_TRY(allocate(rows * (size_t)self->shared.vocabulary, sizeof(float), &self->logits));
    DR_TRY(allocate(rows * (size_t)self->shared.hidden, sizeof(float), &self->hidden));
    for (int64_t i = 0; i < o->slots; i++) DR_TRY(dr_slot_create(&self->shared, i, o->context, &self->slots[i]));
    self->started = pthread_create(&self->thread, NULL, run, self) == 0;
    return self->started ? DR_OK : dr_fail(DR_ERROR_MEMORY, "no thread can be made for the model");
}

dr_status dr_scheduler_create(const dr_scheduler_options *options, dr_scheduler **scheduler) {
    void *memory;
    DR_TRY(dr_allocate_zero(sizeof(dr_scheduler), "a scheduler", &memory));
    dr_scheduler *made = memory;
    made->options = *options;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->woken, NULL);
    dr_status status = fill(made);
    if (status != DR_OK) {
        dr_scheduler_destroy(made);
        return status;
    }
    *scheduler = made;
    return DR_OK;
}

void dr_scheduler_destroy(dr_scheduler *scheduler) {
    if (!scheduler) return;
    pthread_mutex_lock(&scheduler->lock);
    scheduler->closing = true;
    pthread_cond_signal(&scheduler->woken);
    pthread_mutex_unlock(&scheduler->lock);
    if (scheduler->started) pthread_join(scheduler->thread, NULL);
    for (int64_t i = 0; scheduler->slots && i < scheduler->options.slots; i++) dr_slot_release(&scheduler->slots[i]);
    dr_release(scheduler->slots);
    dr_release(scheduler->items);
    dr_release(scheduler->asked);
    dr_release(scheduler->logits);
    dr_release(scheduler->hidden);
    dr_slot_shared_release(&scheduler->shared);
    pthread_cond_destroy(&scheduler->woken);
    pthread_mutex_destroy(&scheduler->lock);
    dr_release(scheduler);
}
