/* Records grow at powers of two, the text doubles: neither is ever longer than the answer's tokens. */
#include "serve/job.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

dr_status dr_job_create(int64_t count, dr_job **job) {
    void *memory;
    DR_TRY(dr_allocate_zero(sizeof(dr_job), "a job", &memory));
    dr_job *made = memory;
    dr_status status = dr_allocate_zero((size_t)count * sizeof(dr_part), "a job's parts", &memory);
    if (status != DR_OK) {
        dr_release(made);
        return status;
    }
    made->parts = memory;
    made->count = count;
    for (int64_t i = 0; i < count; i++) made->parts[i].job = made;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&made->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&made->lock, NULL);
    made->created_at = dr_clock_now();
    *job = made;
    return DR_OK;
}

void dr_job_wait(dr_job *job, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t nanoseconds = until.tv_nsec + (int64_t)(seconds * 1e9);
    until.tv_sec += (time_t)(nanoseconds / 1000000000);
    until.tv_nsec = (long)(nanoseconds % 1000000000);
    pthread_cond_timedwait(&job->changed, &job->lock, &until);
}

void dr_job_destroy(dr_job *job, bool submitted) {
    if (!job) return;
    if (submitted) {
        atomic_store(&job->gone, true);
        pthread_mutex_lock(&job->lock);
        while (job->done < job->count) dr_job_wait(job, 1);
        pthread_mutex_unlock(&job->lock);
    }
    for (int64_t i = 0; i < job->count; i++) {
        dr_release(job->parts[i].records);
        dr_release(job->parts[i].tops);
        dr_release(job->parts[i].text);
        dr_release(job->parts[i].embedding);
    }
    dr_release(job->parts);
    pthread_cond_destroy(&job->changed);
    pthread_mutex_destroy(&job->lock);
    dr_release(job);
}

dr_status dr_part_add(dr_part *part, dr_token_logprob token, const dr_token_logprob *tops) {
    const int64_t top = part->job->top;
    void *memory = part->records;
    if (top > 0) {
        void *more = part->tops;
        DR_TRY(dr_grow(&more, part->record_count, (size_t)top * sizeof(dr_token_logprob), "logprobs"));
        part->tops = more;
        memcpy(part->tops + part->record_count * top, tops, (size_t)top * sizeof(dr_token_logprob));
    }
    DR_TRY(dr_grow(&memory, part->record_count, sizeof(dr_record), "an answer's tokens"));
    part->records = memory;
    part->records[part->record_count++] = (dr_record){.token = token, .text_end = part->text_bytes};
    return DR_OK;
}

dr_status dr_part_add_text(dr_part *part, const char *text, size_t bytes) {
    const size_t needed = part->text_bytes + bytes;
    if (bytes == 0) return DR_OK;
    if (needed > part->text_room) {
        void *memory = part->text;
        DR_TRY(memory ? dr_resize(&memory, part->text_room, 2 * needed, "an answer's text")
                      : dr_allocate(2 * needed, "an answer's text", &memory));
        part->text = memory;
        part->text_room = 2 * needed;
    }
    memcpy(part->text + part->text_bytes, text, bytes);
    part->text_bytes = needed;
    return DR_OK;
}

void dr_part_finish(dr_part *part, dr_outcome outcome, const char *error) {
    dr_job *job = part->job;
    pthread_mutex_lock(&job->lock);
    part->outcome = outcome;
    if (error) snprintf(part->error, sizeof part->error, "%s", error);
    job->done++;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock); /* the job may be destroyed from here on */
}
