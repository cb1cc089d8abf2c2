/* What a run would take, counted from its settings: no parameter is made, no text is read, but for the
 * model that a run goes on from. */
#include "base/error.h"
#include "base/memory.h"
#include "data/corpus.h"
#include "nn/session.h"
#include "train/optimizer.h"
#include "train/settings.h"
#include "train/task.h"
#include "train/trial.h"

#include <deltarule/train.h>
#include <string.h>

/* The largest batch of a step's parts. */
typedef struct {
    int64_t vocabulary, sequences, rows, targets;
    bool selects;
} batch_shape;

/* Of task lm without its corpus: ids as the setting says, else bytes. */
static dr_status language_shape(const dr_train_options *options, int64_t vocabulary, batch_shape *shape) {
    const int64_t length = dr_setting_integer(options, DR_SET_SEQ_LEN);
    int64_t step;
    DR_TRY(dr_train_batch(options, length, &step, &shape->sequences));
    shape->vocabulary = vocabulary > 0                                  ? vocabulary
                        : dr_setting_is_set(options, DR_SET_VOCABULARY) ? dr_setting_integer(options, DR_SET_VOCABULARY)
                                                                        : DR_BYTE_VOCABULARY;
    shape->selects = false;
    if (!dr_product((int64_t[]){shape->sequences, length}, 2, &shape->rows))
        return dr_fail(DR_ERROR_ARGUMENT, "batch times seq_len is more than can be counted");
    shape->targets = shape->rows;
    return DR_OK;
}

static dr_status find_shape(const dr_train_options *options, int64_t vocabulary, batch_shape *shape) {
    dr_task *task;
    if (strcmp(dr_setting_text(options, DR_SET_TASK), "lm") == 0) return language_shape(options, vocabulary, shape);
    DR_TRY(dr_task_create(options, &task));
    *shape = (batch_shape){.vocabulary = task->vocabulary,
                           .sequences = task->sequences,
                           .rows = task->rows,
                           .targets = task->targets,
                           .selects = task->selects};
    task->ops->destroy(task);
    return DR_OK;
}

/* Of each kind of parts; the share of a stack of experts that one token goes through. */
static void count_layer(const dr_model *model, int64_t layer, dr_run_plan *plan) {
    const dr_layer *kind = model->layers[layer].kind;
    const dr_feed_description *feed = &kind->description->feed;
    const dr_experts *experts = &feed->of.experts.router.of;
    for (int i = 0; i < kind->list.count; i++) {
        const dr_layer_parameter *parameter = &kind->list.at[i];
        const bool of_feed = strncmp(parameter->name, "mlp.", 4) == 0;
        const bool norm = !of_feed && !parameter->decays && !strchr(parameter->name, '.');
        const bool stack = feed->kind == DR_FEED_EXPERTS && of_feed && parameter->rank == 3;
        const bool stands_alone = strncmp(parameter->name, "mlp_norm", 8) == 0 || strncmp(parameter->name, "attn_norm", 9) == 0;
        int64_t *group = of_feed ? &plan->feed_forwards : norm || stands_alone ? &plan->norms : &plan->mixers;
        *group += parameter->count;
        plan->active += stack ? parameter->count / experts->experts * experts->chosen : parameter->count;
    }
}

static void count_parameters(const dr_model *model, dr_run_plan *plan) {
    const dr_layer_parameters *trunk = &model->trunk;
    for (int i = 0; i < trunk->count; i++) {
        int64_t *group = i == model->embedding ? &plan->embedding : i == model->head ? &plan->head : &plan->norms;
        *group += trunk->at[i].count;
        plan->active += trunk->at[i].count;
    }
    for (int64_t i = 0; i < model->description.count; i++) count_layer(model, i, plan);
    plan->parameters = model->count;
}

int64_t dr_plan_active(const dr_model *model) {
    dr_run_plan plan = {0};
    count_parameters(model, &plan);
    return plan.active;
}

/* Bytes of the block, of its gradient and means, and of a part of a step. */
static dr_status count_bytes(const dr_train_options *options, dr_model *model, const batch_shape *shape, dr_run_plan *plan) {
    const dr_layout layout = {.sequences = shape->sequences, .rows = shape->rows};
    const int64_t block = (int64_t)dr_kind_bytes(model->backend, DR_NUMBER, model->block_count);
    const int64_t copies =
        dr_has_copies(model->backend) ? (int64_t)dr_kind_bytes(model->backend, DR_VECTOR, model->block_count) : 0;
    dr_session *session;
    size_t bytes = 0;
    plan->parameter_bytes = block + copies;
    plan->gradient_bytes = block;
    plan->optimizer_bytes = 2 * block;
    DR_TRY(dr_session_create(model, &session));
    dr_status status = dr_session_keep(session, dr_setting_integer(options, DR_SET_KEEP_LEVEL));
    if (status == DR_OK)
        status = dr_session_bytes(session, DR_PHASE_GRADIENT, &layout, shape->targets, shape->selects, true, &bytes);
    plan->step_bytes = (int64_t)bytes;
    dr_session_destroy(session);
    return status;
}

dr_status dr_run_plan_make(dr_backend *backend, const dr_train_options *options, int64_t vocabulary, dr_run_plan *plan) {
    DR_NEED(backend);
    DR_NEED(options);
    DR_NEED(plan);
    const int64_t parts = dr_setting_integer(options, DR_SET_ACCUMULATE);
    batch_shape shape = {0};
    dr_model_config config;
    dr_schedule schedule;
    dr_model *model;
    *plan = (dr_run_plan){.steps = dr_setting_integer(options, DR_SET_STEPS)};
    DR_TRY(find_shape(options, vocabulary, &shape));
    DR_TRY(dr_train_schedule(options, &schedule));
    if (*dr_setting_text(options, DR_SET_INIT)) {
        DR_TRY(dr_model_load(backend, dr_setting_text(options, DR_SET_INIT), &model));
    } else {
        DR_TRY(dr_train_model_config(options, shape.vocabulary, &config));
        DR_TRY(dr_model_build(backend, &config, &model));
    }
    count_parameters(model, plan);
    plan->tokens = shape.rows * parts;
    const dr_status status = count_bytes(options, model, &shape, plan);
    dr_model_destroy(model);
    return status;
}
