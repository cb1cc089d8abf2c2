/* A model's score on the held-out examples of a task: what a training run of these settings evaluates, or other sizes. */
#include "base/error.h"
#include "evaluate/examples.h"
#include "train/example_task.h"

typedef struct {
    const dr_task_score_calls *calls;
    int64_t done, total; /* examples of earlier sets; of all */
} reporter;

static bool report(void *context, int64_t done, int64_t total) {
    const reporter *self = context;
    (void)total;
    return !self->calls->progress || self->calls->progress(self->calls->context, self->done + done, self->total);
}

static dr_status score_set(dr_session *session, const dr_example_task *task, int index, reporter *told) {
    const dr_size_range *size = &task->held_out.at[index];
    const dr_examples_options options = {.generator = task->generator,
                                         .size = size,
                                         .examples = task->examples,
                                         .batch = task->batch,
                                         .rows = dr_example_task_rows(task),
                                         .seed = task->held_out_seed};
    dr_examples_score found;
    DR_TRY(dr_score_examples(session, &options, report, told, &found));
    const dr_task_score score = {.set = size->name,
                                 .sets = task->held_out.count,
                                 .length = size->most,
                                 .pairs = size->pairs,
                                 .examples = found.examples,
                                 .queries = found.targets,
                                 .loss = found.loss,
                                 .accuracy = found.accuracy,
                                 .sequence_accuracy = found.sequence_accuracy,
                                 .seconds = found.seconds};
    if (told->calls->set) told->calls->set(told->calls->context, &score);
    told->done += task->examples;
    return DR_OK;
}

/* Recall is asked in as many ids as the model has; the ids of the other tasks are settled. */
static dr_status check_vocabulary(const dr_train_options *options, const dr_example_task *task, int64_t vocabulary) {
    if (task->generator->vocabulary == vocabulary) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT,
                   "the model has %lld ids, and task %s with these settings has %lld: it is not of this task",
                   (long long)vocabulary, dr_setting_text(options, DR_SET_TASK), (long long)task->generator->vocabulary);
}

dr_status dr_score_task(const dr_model *model, const dr_train_options *options, const dr_task_score_calls *calls) {
    DR_NEED(model);
    DR_NEED(options);
    const dr_task_score_calls nobody = {0};
    const int64_t vocabulary = dr_model_get_config(model)->vocabulary;
    dr_session *session = NULL;
    dr_example_task task = {0};
    dr_status status;
    DR_GO(dr_example_task_open(options, vocabulary, &task));
    DR_GO(check_vocabulary(options, &task, vocabulary));
    DR_GO(dr_session_create(model, &session));
    reporter told = {.calls = calls ? calls : &nobody, .total = task.examples * task.held_out.count};
    for (int i = 0; i < task.held_out.count; i++) DR_GO(score_set(session, &task, i, &told));
done:
    dr_session_destroy(session);
    dr_example_task_close(&task);
    return status;
}
