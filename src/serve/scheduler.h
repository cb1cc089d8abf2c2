/* The thread that computes: it gives slots to parts, reads prompts in chunks and makes one token of every running part
 * in turn.
 *
 * Everything that belongs to the model's computation (session, states, samplers) is this thread's alone. Other threads submit
 * jobs and read what has become of them. All slots are made when it starts, so that its memory does not grow. */
#ifndef DR_SERVE_SCHEDULER_H
#define DR_SERVE_SCHEDULER_H

#include "serve/job.h"
#include "serve/metrics.h"

#include <deltarule/prefix.h>

typedef struct dr_scheduler dr_scheduler;

typedef struct {
    const dr_model *model;
    const dr_tokenizer *tokenizer;
    int64_t slots;           /* parts that are computed at once */
    int64_t queue;           /* parts that may wait */
    int64_t context;         /* tokens of a prompt and its answer */
    dr_prefix_options store; /* of kept states; bytes 0: none is kept */
    dr_metrics *metrics;
} dr_scheduler_options;

dr_status dr_scheduler_create(const dr_scheduler_options *options, dr_scheduler **scheduler);
/* Queues all parts of a job, or none. *accepted: false if the queue has no room, or the scheduler is closing. */
void dr_scheduler_submit(dr_scheduler *scheduler, dr_job *job, bool *accepted);
/* Finishes what was submitted, takes nothing more, and frees; NULL is allowed. */
void dr_scheduler_destroy(dr_scheduler *scheduler);

#endif
