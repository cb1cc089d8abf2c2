/* A size beyond the machine's memory would end the process when memory is touched, not when it is asked for, and a layer that
 * the backend does not have would fail in the first step: both are found here. */
#include "train/trial.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"
#include "nn/session.h"
#include "train/run.h"

#include <stdio.h>

enum {
    BLOCKS = 4, /* parameters, gradient, the two means of AdamW */
    FEW_TOKENS = 4
};

static int64_t block_bytes(const dr_model *model) {
    return (int64_t)dr_kind_bytes(model->backend, DR_NUMBER, model->block_count);
}

/* Of the backend's memory. */
static int64_t available_to(dr_backend *backend) {
    return backend->ops->available ? backend->ops->available(backend) : dr_memory_available();
}

/* count: parameters. smaller: what would do, or NULL; a run that is resumed cannot be made smaller in other ways. */
static dr_status check_available(dr_backend *backend, int64_t needed, int64_t count, const char *what, const char *smaller,
                                 bool resumed) {
    const int64_t available = available_to(backend);
    if (needed <= available) return DR_OK;
    if (smaller)
        return dr_fail(
            DR_ERROR_MEMORY,
            "there is no memory for %s of a model of %lld parameters: it needs %.1f GB, and %.1f GB are available; %s", what,
            (long long)count, 1e-9 * (double)needed, 1e-9 * (double)available, smaller);
    return dr_fail(DR_ERROR_MEMORY,
                   "there is no memory for %s of a model of %lld parameters: it needs %.1f GB, and %.1f GB are "
                   "available; %s",
                   what, (long long)count, 1e-9 * (double)needed, 1e-9 * (double)available,
                   resumed ? "free some, or resume the run where there is more"
                           : "make hidden, layers, intermediate, vocabulary, batch or seq_len smaller");
}

dr_status dr_trial_fits(dr_backend *backend, const dr_model_config *config, bool resumed) {
    dr_model *model;
    int64_t bytes;
    DR_TRY(dr_model_build(backend, config, &model));
    if (!dr_product((int64_t[]){block_bytes(model), BLOCKS}, 2, &bytes)) bytes = INT64_MAX;
    dr_status status = check_available(backend, bytes, model->count, "training", NULL, resumed);
    dr_model_destroy(model);
    return status;
}

dr_status dr_trial_fits_beside(const dr_model *model) {
    return check_available(model->backend, (BLOCKS - 1) * block_bytes(model), model->count, "training", NULL, true);
}

/* Bytes of a step in so many parts as it has, times `parts`, that keeps so much. */
static dr_status bytes_of(dr_run *run, int64_t parts, int64_t level, int64_t *bytes) {
    const dr_task *task = run->task;
    const dr_layout layout = {.sequences = task->sequences / parts, .rows = task->rows / parts};
    const int before = run->session->level;
    size_t found = 0;
    dr_status status = dr_session_keep(run->session, level);
    if (status == DR_OK)
        status = dr_session_bytes(run->session, DR_PHASE_GRADIENT, &layout, task->targets / parts, task->selects, true, &found);
    *bytes = (int64_t)found;
    return status == DR_OK ? dr_session_keep(run->session, before) : status;
}

/* Whether a step may make more again than it does. */
static bool may_keep(const dr_run *run, int level) {
    const bool lower = level > run->session->level;
    if (level == 1) return lower && run->model->backend->ops->device;
    return lower && (level < 4 || run->model->description.residual == DR_RESIDUAL_SUM);
}

/* The first choice that fits: more made again, which changes no number, or more parts, or both. "" if none does. */
static dr_status name_smaller(dr_run *run, bool resumed, char *text, size_t size) {
    const int now = run->session->level, levels[] = {1, 2, 3, 4, now};
    const int64_t available = available_to(run->model->backend), sequences = run->task->sequences, parts = run->numbers.parts;
    int64_t bytes;
    text[0] = '\0';
    for (int i = 0; i < 5; i++) {
        const bool other = i < 4;
        for (int64_t more = 1; more <= (resumed || (other && levels[i] < 4) ? 1 : sequences); more++) {
            if (sequences % more != 0 || (other && !may_keep(run, levels[i]))) continue;
            DR_TRY(bytes_of(run, more, levels[i], &bytes));
            if (bytes > available) continue;
            int used = snprintf(text, size, "with");
            if (other) used += snprintf(text + used, size - (size_t)used, " keep_level %d", levels[i]);
            if (more > 1)
                used += snprintf(text + used, size - (size_t)used, "%s accumulate %lld", other ? " and" : "",
                                 (long long)parts * more);
            dr_format(text + used, size - (size_t)used, " it would need %.1f GB", 1e-9 * (double)bytes);
            return DR_OK;
        }
    }
    return DR_OK;
}

/* DR_ERROR_MEMORY, with a choice that fits where there is one. */
static dr_status check_step(dr_run *run) {
    char smaller[128];
    int64_t bytes;
    DR_TRY(bytes_of(run, 1, run->session->level, &bytes));
    if (bytes <= available_to(run->model->backend)) return DR_OK;
    DR_TRY(name_smaller(run, run->folder != NULL, smaller, sizeof smaller));
    return check_available(run->model->backend, bytes, run->model->count, "a step", *smaller ? smaller : NULL,
                           run->folder != NULL);
}

dr_status dr_trial_run(dr_run *run) {
    const int32_t tokens[FEW_TOKENS] = {0};
    const dr_task *task = run->task;
    dr_layout layout = {.sequences = task->sequences, .rows = task->rows};
    dr_batch few = {.layout = {.sequences = 1, .rows = FEW_TOKENS}, .ids = tokens, .targets = FEW_TOKENS, .labels = tokens};
    DR_TRY(check_step(run));
    DR_TRY(dr_session_prepare(run->session, DR_PHASE_GRADIENT, &layout, task->targets, task->selects, true));
    return dr_session_gradient(run->session, &few, 1, run->optimizer->gradient, NULL, NULL);
}

int64_t dr_trial_bytes(const dr_run *run) {
    return BLOCKS * block_bytes(run->model) + (int64_t)run->session->capacity;
}
