/* One round of the loop: sequences that wait get free slots, one prompt is read a chunk further, and every running sequence
 * makes one token. So a long prompt delays the others by a chunk at a time, and prompts take turns. Jobs take turns at slots
 * too: a job of many sequences does not keep the others waiting until its last has begun. */
#include "serve/scheduler.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "serve/slot.h"

struct dr_scheduler {
    dr_scheduler_options options;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* guards the queue */
    pthread_cond_t woken;
    dr_job *first, *last;
    int64_t queued; /* sequences without a slot */
    bool closing;
    dr_slot_shared shared;
    dr_slot *slots;       /* [options.slots] */
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

/* The next sequence that waits, of the job whose turn it is; NULL: none waits. */
static dr_sequence *next_sequence(dr_scheduler *self) {
    dr_sequence *sequence = NULL;
    pthread_mutex_lock(&self->lock);
    if (self->first) {
        dr_job *job = take_first(self);
        sequence = &job->sequences[job->taken++];
        if (job->taken < job->count) append(self, job);
        self->queued--;
        dr_metrics_set(self->options.metrics, DR_GAUGE_QUEUED, self->queued);
    }
    pthread_mutex_unlock(&self->lock);
    return sequence;
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

/* What ends a sequence from outside. */
static dr_outcome interrupted(const dr_sequence *sequence) {
    if (atomic_load(&sequence->job->gone)) return DR_OUTCOME_GONE;
    return dr_clock_now() > sequence->job->deadline ? DR_OUTCOME_TIMEOUT : DR_OUTCOME_NONE;
}

static void finish_slot(dr_scheduler *self, dr_slot *slot, dr_outcome outcome, const char *error) {
    dr_sequence *sequence = slot->sequence;
    dr_slot_end(slot);
    dr_metrics_add(self->options.metrics, DR_COUNTER_OUTCOME + (int)outcome, 1);
    dr_metrics_change(self->options.metrics, DR_GAUGE_SLOTS_USED, -1);
    dr_sequence_finish(sequence, outcome, error);
}

/* Ends a slot's sequence where it is over. */
static void settle(dr_scheduler *self, dr_slot *slot, dr_status status) {
    const dr_outcome outcome = status == DR_OK ? dr_slot_outcome(slot) : DR_OUTCOME_FAILED;
    if (outcome != DR_OUTCOME_NONE) finish_slot(self, slot, outcome, status == DR_OK ? NULL : dr_last_error());
}

static void fill_slots(dr_scheduler *self) {
    for (int64_t i = 0; i < self->options.slots; i++) {
        dr_slot *slot = &self->slots[i];
        dr_sequence *sequence;
        if (slot->sequence || !(sequence = next_sequence(self))) continue;
        const dr_outcome outcome = interrupted(sequence);
        dr_metrics_change(self->options.metrics, DR_GAUGE_SLOTS_USED, 1);
        dr_status status = dr_slot_begin(slot, sequence);
        if (outcome != DR_OUTCOME_NONE)
            finish_slot(self, slot, outcome, NULL);
        else
            settle(self, slot, status);
    }
}

static void end_interrupted(dr_scheduler *self) {
    for (int64_t i = 0; i < self->options.slots; i++) {
        const dr_outcome outcome = self->slots[i].sequence ? interrupted(self->slots[i].sequence) : DR_OUTCOME_NONE;
        if (outcome != DR_OUTCOME_NONE) finish_slot(self, &self->slots[i], outcome, NULL);
    }
}

/* A token was chosen: how long its reader waited for it. */
static void measure(dr_scheduler *self, dr_slot *slot, bool first) {
    const double now = dr_clock_now();
    if (first)
        dr_metrics_observe(self->options.metrics, DR_HISTOGRAM_FIRST_TOKEN, now - slot->sequence->job->created_at);
    else
        dr_metrics_observe(self->options.metrics, DR_HISTOGRAM_NEXT_TOKEN, now - slot->chose_at);
    slot->chose_at = now;
    dr_metrics_add(self->options.metrics, DR_COUNTER_ANSWER_TOKENS, 1);
}

/* One chunk of the prompt whose turn it is. */
static void read_one(dr_scheduler *self) {
    for (int64_t i = 0; i < self->options.slots; i++) {
        dr_slot *slot = &self->slots[(self->next_to_read + i) % self->options.slots];
        int64_t tokens = 0;
        if (!slot->sequence || !dr_slot_reads(slot)) continue;
        self->next_to_read = (slot - self->slots + 1) % self->options.slots;
        dr_status status = dr_slot_read(&self->shared, slot, &tokens);
        dr_metrics_add(self->options.metrics, DR_COUNTER_PROMPT_TOKENS, tokens);
        if (status == DR_OK && !dr_slot_reads(slot) && slot->sequence->options.tokens > 0) measure(self, slot, true);
        settle(self, slot, status);
        return;
    }
}

static void step_all(dr_scheduler *self) {
    for (int64_t i = 0; i < self->options.slots; i++) {
        dr_slot *slot = &self->slots[i];
        if (!slot->sequence || dr_slot_reads(slot)) continue;
        dr_status status = dr_slot_step(&self->shared, slot);
        if (status == DR_OK) measure(self, slot, false);
        settle(self, slot, status);
    }
}

static bool idle(const dr_scheduler *self) {
    for (int64_t i = 0; i < self->options.slots; i++)
        if (self->slots[i].sequence) return false;
    return true;
}

static void *run(void *context) {
    dr_scheduler *self = context;
    while (wait_for_work(self, idle(self))) {
        end_interrupted(self);
        fill_slots(self);
        step_all(self);
        read_one(self);
    }
    return NULL;
}

/* ---- life ---- */

static dr_status fill(dr_scheduler *self) {
    void *memory;
    DR_TRY(dr_slot_shared_create(self->options.model, self->options.tokenizer, &self->shared));
    DR_TRY(dr_allocate_zero((size_t)self->options.slots * sizeof(dr_slot), "the slots", &memory));
    self->slots = memory;
    for (int64_t i = 0; i < self->options.slots; i++) DR_TRY(dr_slot_create(&self->shared, &self->slots[i]));
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
    dr_slot_shared_release(&scheduler->shared);
    pthread_cond_destroy(&scheduler->woken);
    pthread_mutex_destroy(&scheduler->lock);
    dr_release(scheduler);
}
