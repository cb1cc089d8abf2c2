/* Synthetic examples as tasks: fresh ones each step, numbered through the run, each drawn from the stream of its number, of a
 * size that is drawn first; held-out ones from streams of their own. Only some tokens have labels, and the loss is computed
 * only there. */
#include "train/example_task.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/streams.h"
#include "evaluate/examples.h"

#include <math.h>
#include <stdio.h>

typedef struct {
    dr_task task;
    dr_example_task of;
    uint64_t seed;
    dr_example_batch examples;
    const char *names[DR_MOST_SIZES];
    dr_set_evaluation sets[DR_MOST_SIZES];
} synthetic;

static dr_status batch(dr_task *task, int64_t number, dr_batch *result, int64_t *bytes) {
    synthetic *self = (synthetic *)task;
    dr_generator *generator = self->of.generator;
    dr_example_batch_clear(&self->examples);
    for (int64_t i = 0; i < self->of.batch; i++) {
        dr_random random = dr_stream(self->seed, DR_STREAM_TRAINING_EXAMPLES, (number - 1) * self->of.batch + i);
        const dr_example_size size = dr_sizes_draw(&self->of.training, generator->kind, &random);
        dr_example_batch_draw(&self->examples, generator, &random, size);
    }
    *result = dr_examples_as_batch(&self->examples);
    *bytes = 0;
    return DR_OK;
}

/* A loss that is not finite is a result like others. All sets count alike. */
static dr_status evaluate(dr_task *task, dr_session *session, dr_evaluation *evaluation) {
    synthetic *self = (synthetic *)task;
    const int count = self->of.held_out.count;
    double loss = 0, accuracy = 0;
    for (int i = 0; i < count; i++) {
        const dr_examples_options options = {.generator = self->of.generator,
                                             .size = &self->of.held_out.at[i],
                                             .examples = self->of.examples,
                                             .batch = self->of.batch,
                                             .rows = dr_example_task_rows(&self->of),
                                             .seed = self->of.held_out_seed};
        dr_examples_score score = {.loss = (double)NAN};
        const dr_status status = dr_score_examples(session, &options, NULL, NULL, &score);
        if (status != DR_ERROR_NUMERIC) DR_TRY(status);
        self->sets[i] = (dr_set_evaluation){.loss = score.loss,
                                            .bits_per_byte = (double)NAN,
                                            .accuracy = score.accuracy,
                                            .sequence_accuracy = score.sequence_accuracy};
        loss += score.loss / count;
        accuracy += score.accuracy / count;
    }
    *evaluation = (dr_evaluation){
        .loss = isnan(loss) ? (double)NAN : loss, .bits_per_byte = (double)NAN, .accuracy = accuracy, .sets = self->sets};
    return DR_OK;
}

/* "64/4, 128/8" */
static void list_names(const dr_sizes *sizes, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < sizes->count && used + DR_MOST_SIZE_NAME < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "", sizes->at[i].name);
}

static void describe(const dr_task *task, void (*line)(void *context, const char *text), void *context) {
    const dr_example_task *of = &((const synthetic *)task)->of;
    char text[512], what[256], sizes[384];
    of->generator->kind->describe(of->generator, what, sizeof what);
    snprintf(text, sizeof text, "task: %s", what);
    line(context, text);
    list_names(&of->training, sizes, sizeof sizes);
    snprintf(text, sizeof text, "data: %lld fresh examples a step of length%s %s", (long long)of->step,
             of->generator->kind->has_pairs ? "/pairs" : "", sizes);
    line(context, text);
    list_names(&of->held_out, sizes, sizeof sizes);
    snprintf(text, sizeof text, "held out: %lld examples each of %s", (long long)of->examples, sizes);
    line(context, text);
}

static void destroy(dr_task *task) {
    synthetic *self = (synthetic *)task;
    dr_example_batch_destroy(&self->examples);
    dr_example_task_close(&self->of);
    dr_release(self);
}

dr_status dr_task_examples_create(const dr_train_options *options, dr_task **task) {
    static const dr_task_operations operations = {
        .batch = batch, .evaluate = evaluate, .describe = describe, .destroy = destroy};
    void *memory;
    DR_TRY(dr_allocate_zero(sizeof(synthetic), "the task", &memory));
    synthetic *self = memory;
    dr_status status;
    DR_GO(dr_example_task_open(options, 0, &self->of));
    const dr_example_size largest = dr_sizes_largest(&self->of.training, NULL);
    DR_GO(dr_example_batch_create(self->of.generator, largest, self->of.batch, &self->examples));
    self->seed = (uint64_t)dr_setting_integer(options, DR_SET_SEED);
    for (int i = 0; i < self->of.held_out.count; i++) self->names[i] = self->of.held_out.at[i].name;
    self->task = (dr_task){.ops = &operations,
                           .vocabulary = self->of.generator->vocabulary,
                           .sequences = self->of.batch,
                           .rows = self->examples.most_rows,
                           .targets = self->examples.most_targets,
                           .selects = true,
                           .sets = {.names = self->names, .count = self->of.named ? self->of.held_out.count : 0}};
    *task = &self->task;
    return DR_OK;
done:
    destroy(&self->task);
    return status;
}
