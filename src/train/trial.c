/* A size beyond the machine's memory would end the process when memory is touched, not when it is asked for, and a layer that
 * the backend does not have would fail in the first step: both are found here. */
#include "train/trial.h"

#include "base/error.h"
#include "base/memory.h"
#include "nn/session.h"
#include "train/run.h"

enum {
    BLOCKS = 4, /* parameters, gradient, the two means of AdamW */
    FEW_TOKENS = 4
};

static int64_t block_bytes(const dr_model *model) {
    return (int64_t)dr_kind_bytes(model->backend, DR_NUMBER, model->block_count);
}

/* count: parameters. A run that is resumed cannot be made smaller. */
static dr_status check_available(int64_t needed, int64_t count, const char *what, bool resumed) {
    int64_t available = dr_memory_available();
    if (needed <= available) return DR_OK;
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
    dr_status status = check_available(bytes, model->count, "training", resumed);
    dr_model_destroy(model);
    return status;
}

dr_status dr_trial_run(dr_run *run) {
    const int32_t tokens[FEW_TOKENS] = {0};
    const dr_task *task = run->task;
    dr_model *model = run->model;
    dr_layout layout = {.sequences = task->sequences, .rows = task->rows};
    dr_batch few = {.layout = {.sequences = 1, .rows = FEW_TOKENS}, .ids = tokens, .targets = FEW_TOKENS, .labels = tokens};
    DR_TRY(dr_session_prepare(run->session, DR_PHASE_GRADIENT, &layout, task->targets, task->selects, true));
    DR_TRY(check_available((int64_t)run->session->capacity, model->count, "a step", run->folder != NULL));
    return dr_session_gradient(run->session, &few, 1, run->optimizer->gradient, NULL, NULL);
}

int64_t dr_trial_bytes(const dr_run *run) {
    return BLOCKS * block_bytes(run->model) + (int64_t)run->session->capacity;
}
