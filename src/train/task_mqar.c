/* Multi-query associative recall as a task: fresh examples each step, numbered through the run, each drawn from the stream of
 * its number; held-out examples from streams of their own. Only queries have labels, and the loss is computed only there. */
#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"
#include "data/mqar.h"
#include "data/streams.h"
#include "evaluate/recall.h"
#include "train/task.h"

#include <deltarule/evaluate.h>

#include <math.h>
#include <stdio.h>

typedef struct {
    dr_task task;
    dr_mqar_shape shape;
    dr_mqar *mqar;
    int64_t
        least_pairs; /* a training example has so many, or twice, four times .. as many up to all, one as often as another */
    int mixture;     /* how many these are */
    uint64_t seed, held_out_seed;
    int64_t batch, held_out; /* examples */
    int32_t *ids;            /* [batch, length] */
    int64_t *positions;      /* [batch, pairs] rows of the batch */
    int32_t *labels;         /* [batch, pairs] */
} recall;

/* Training examples first .. first + count - 1. */
static dr_batch draw(recall *task, int64_t first, int64_t count) {
    int64_t length = task->shape.length, targets = 0;
    for (int64_t i = 0; i < count; i++) {
        dr_random random = dr_stream(task->seed, DR_STREAM_MQAR_TRAINING, first + i);
        int64_t pairs = task->shape.pairs;
        if (task->mixture > 1) pairs = task->least_pairs << dr_random_below(&random, (uint64_t)task->mixture);
        int64_t *positions = task->positions + targets;
        dr_mqar_draw(task->mqar, &random, pairs, task->ids + i * length, positions, task->labels + targets);
        for (int64_t k = 0; k < pairs; k++) positions[k] += i * length;
        targets += pairs;
    }
    return (dr_batch){.layout = {.sequences = count, .rows = count * length},
                      .ids = task->ids,
                      .targets = targets,
                      .positions = task->positions,
                      .labels = task->labels};
}

static dr_status batch(dr_task *task, int64_t step, dr_batch *result, int64_t *bytes) {
    recall *self = (recall *)task;
    *result = draw(self, (step - 1) * self->batch, self->batch);
    *bytes = 0;
    return DR_OK;
}

/* Held-out examples have all pairs. A loss that is not finite is a result like others. */
static dr_status evaluate(dr_task *task, dr_session *session, dr_evaluation *evaluation) {
    recall *self = (recall *)task;
    const dr_recall_options options = {.seq_len = self->shape.length,
                                       .pairs = self->shape.pairs,
                                       .examples = self->held_out,
                                       .batch = self->batch,
                                       .power_a = self->shape.power,
                                       .random_fillers = self->shape.random_fillers,
                                       .seed = self->held_out_seed};
    dr_recall_score score = {.loss = (double)NAN};
    dr_status status = dr_score_recall_in(session, &options, NULL, NULL, &score);
    *evaluation = (dr_evaluation){.loss = score.loss, .bits_per_byte = (double)NAN, .accuracy = score.accuracy};
    return status == DR_ERROR_NUMERIC ? DR_OK : status;
}

static void describe(const dr_task *task, void (*line)(void *context, const char *text), void *context) {
    const recall *self = (const recall *)task;
    char text[192], least[48] = "";
    if (self->mixture > 1) snprintf(least, sizeof least, " (in training %lld or more)", (long long)self->least_pairs);
    dr_format(text, sizeof text, "task: recall of %lld pairs%s in %lld tokens, vocabulary %lld, power %g, %s fillers",
              (long long)self->shape.pairs, least, (long long)self->shape.length, (long long)self->shape.vocabulary,
              self->shape.power, self->shape.random_fillers ? "random" : "zero");
    line(context, text);
    snprintf(text, sizeof text, "data: %lld fresh examples a step; held out: %lld examples", (long long)self->batch,
             (long long)self->held_out);
    line(context, text);
}

static void destroy(dr_task *task) {
    recall *self = (recall *)task;
    dr_mqar_destroy(self->mqar);
    dr_release(self->ids);
    dr_release(self->positions);
    dr_release(self->labels);
    dr_release(self);
}

static dr_status allocate(recall *self) {
    void *memory;
    int64_t tokens, targets;
    if (!dr_product((int64_t[]){self->batch, self->shape.length, sizeof(int64_t)}, 3, &tokens) ||
        !dr_product((int64_t[]){self->batch, self->shape.pairs, sizeof(int64_t)}, 3, &targets))
        return dr_fail(DR_ERROR_ARGUMENT, "batch %lld times seq_len %lld is more than can be counted", (long long)self->batch,
                       (long long)self->shape.length);
    DR_TRY(dr_allocate((size_t)tokens, "a batch of examples", &memory));
    self->ids = memory;
    DR_TRY(dr_allocate((size_t)targets, "the positions of queries", &memory));
    self->positions = memory;
    DR_TRY(dr_allocate((size_t)targets, "the labels of queries", &memory));
    self->labels = memory;
    return DR_OK;
}

static dr_status set_mixture(const dr_train_options *options, recall *self) {
    const int64_t least = dr_setting_integer(options, DR_SET_LEAST_PAIRS);
    int64_t pairs = least ? least : self->shape.pairs;
    self->least_pairs = pairs;
    for (self->mixture = 1; pairs < self->shape.pairs; self->mixture++) pairs *= 2;
    if (pairs == self->shape.pairs) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "least_pairs is %lld: doubling it must lead to pairs, which is %lld", (long long)least,
                   (long long)self->shape.pairs);
}

dr_status dr_task_mqar_create(const dr_train_options *options, dr_task **task) {
    static const dr_task_operations operations = {
        .batch = batch, .evaluate = evaluate, .describe = describe, .destroy = destroy};
    void *memory;
    DR_TRY(dr_allocate_zero(sizeof(recall), "the recall task", &memory));
    recall *self = memory;
    self->shape = (dr_mqar_shape){.vocabulary = dr_setting_integer(options, DR_SET_VOCABULARY),
                                  .length = dr_setting_integer(options, DR_SET_SEQ_LEN),
                                  .pairs = dr_setting_integer(options, DR_SET_PAIRS),
                                  .power = dr_setting_real(options, DR_SET_POWER_A),
                                  .random_fillers = dr_setting_boolean(options, DR_SET_RANDOM_FILLERS)};
    self->task = (dr_task){.ops = &operations, .vocabulary = self->shape.vocabulary};
    self->seed = (uint64_t)dr_setting_integer(options, DR_SET_SEED);
    self->batch = dr_setting_integer(options, DR_SET_BATCH);
    self->held_out_seed = (uint64_t)dr_setting_integer(options, DR_SET_HELD_OUT_SEED);
    dr_status status;
    DR_GO(dr_held_out_examples(options, &self->held_out));
    DR_GO(dr_mqar_create(&self->shape, &self->mqar));
    DR_GO(set_mixture(options, self));
    DR_GO(allocate(self));
    self->task.sequences = self->batch, self->task.rows = self->batch * self->shape.length;
    self->task.targets = self->batch * self->shape.pairs, self->task.selects = true;
    *task = &self->task;
    return DR_OK;
done:
    destroy(&self->task);
    return status;
}
