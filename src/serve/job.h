/* What passes between the threads that speak HTTP and the thread that computes.
 *
 * A request becomes a job, its prompts and choices become parts. The scheduler writes the results of parts and signals;
 * the client's thread waits, reads and destroys the job. All results are guarded by the job's lock. */
#ifndef DR_SERVE_JOB_H
#define DR_SERVE_JOB_H

#include "constrain/schema.h"

#include <deltarule/generate.h>
#include <pthread.h>
#include <stdatomic.h>

/* One token of an answer, or of a prompt that is scored. */
typedef struct {
    dr_token_logprob token; /* logprob in nats; NAN: a prompt's first, which nothing predicts */
    size_t text_end;        /* bytes of the answer's text that are certain with it */
} dr_record;

typedef enum {
    DR_OUTCOME_NONE,    /* goes on */
    DR_OUTCOME_STOP,    /* by a stop text or the token that ends a text */
    DR_OUTCOME_LENGTH,  /* as many tokens as were asked for, or as the context holds */
    DR_OUTCOME_TIMEOUT, /* took longer than a request may */
    DR_OUTCOME_GONE,    /* nobody waits for it any more */
    DR_OUTCOME_FAILED   /* `error` says why */
} dr_outcome;

typedef struct dr_job dr_job;

typedef struct dr_part {
    dr_job *job;
    const int32_t *prompt; /* [prompt_count] */
    int64_t prompt_count;
    dr_generate_options options; /* `tokens` and `sampling.sample` are the part's own */
    dr_record *records;          /* [record_count] of the prompt if the job is scored, then of the answer */
    dr_token_logprob *tops;      /* [record_count * top] the likeliest tokens of each record, best first */
    int64_t record_count;
    int64_t prompt_records;
    char *text; /* [text_bytes] whole characters */
    size_t text_bytes, text_room;
    int64_t made;      /* tokens of the answer, that which ended it too */
    int64_t cached;    /* tokens of the prompt that were not read again */
    const char *store; /* what was found in the store of states, "hit" or why nothing was; NULL: it was not asked */
    float *embedding;  /* [hidden] */
    double started_at; /* clocks; 0: not yet */
    dr_outcome outcome;
    char error[400];
} dr_part;

struct dr_job {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    dr_part *parts; /* [count] */
    int64_t count, done;
    struct dr_job *next;          /* in the scheduler's queue, which guards these two */
    int64_t taken;                /* parts that have had a slot */
    dr_generate_options sampling; /* `sample` is the answer's choice */
    int64_t top;                  /* -1: no logprobs */
    bool score_prompt;            /* records of the prompt's tokens too */
    bool embed;                   /* the last hidden state in place of an answer */
    const dr_schema *schema;      /* what answers must be; NULL: any text */
    double created_at, deadline;
    atomic_bool gone; /* the client went away */
};

/* A job of so many parts. */
dr_status dr_job_create(int64_t count, dr_job **job);
/* Waits until the scheduler has let go of all parts that were submitted, then frees; NULL is allowed. */
void dr_job_destroy(dr_job *job, bool submitted);

/* Adds a record, with the likeliest tokens where the job has them; to be called with the lock held. */
dr_status dr_part_add(dr_part *part, dr_token_logprob token, const dr_token_logprob *tops);
dr_status dr_part_add_text(dr_part *part, const char *text, size_t bytes);
/* Ends an answer. error: the sentence, or NULL. Takes the lock itself. */
void dr_part_finish(dr_part *part, dr_outcome outcome, const char *error);

/* Waits until an answer has changed, at most so many seconds; to be called with the lock held. */
void dr_job_wait(dr_job *job, double seconds);

#endif
