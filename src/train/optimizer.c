/* AdamW and Muon. The block's gaps between parameters hold zeros, in gradients and means too, so a run of parameters that AdamW
 * treats alike is updated as one vector. A gradient that is not finite must not reach the means, which would never forget it.
 */
#include "train/optimizer.h"

#include "base/error.h"
#include "base/memory.h"
#include "train/groups.h"

#include <stdlib.h>

/* ---- runs ----------------------------------------------------------------------------------------------------------- */

static dr_parameter_run run_of(const dr_parameter *parameter, const dr_treatment *treatment) {
    dr_parameter_run run = {
        .offset = parameter->offset, .count = parameter->count, .rate = treatment->rate, .decay = treatment->decay};
    if (treatment->muon) dr_is_matrix(parameter, &run.rows, &run.columns);
    return run;
}

/* Whether one call can update both. */
static bool alike(const dr_parameter_run *one, const dr_parameter_run *other) {
    return one->rows == 0 && other->rows == 0 && one->rate == other->rate && one->decay == other->decay;
}

static int compare_offsets(const void *a, const void *b) {
    const int64_t x = ((const dr_parameter_run *)a)->offset, y = ((const dr_parameter_run *)b)->offset;
    return (x > y) - (x < y);
}

/* In the order of the block, which is not that of the list. */
static int64_t find_runs(const dr_model *model, const dr_treatment *treatments, dr_parameter_run *runs) {
    const dr_parameter *parameters;
    int64_t count = dr_model_parameters(model, &parameters), found = 0;
    for (int64_t i = 0; i < count; i++) runs[i] = run_of(&parameters[i], &treatments[i]);
    qsort(runs, (size_t)count, sizeof *runs, compare_offsets);
    for (int64_t i = 0; i < count; i++) {
        const dr_parameter_run next = runs[i];
        if (found > 0 && alike(&runs[found - 1], &next))
            runs[found - 1].count = next.offset + next.count - runs[found - 1].offset;
        else
            runs[found++] = next;
    }
    return found;
}

static dr_status treat(dr_optimizer *optimizer, dr_treatment *treatments) {
    const dr_optimizer_settings *settings = &optimizer->settings;
    dr_groups groups;
    dr_status status = dr_groups_parse(settings->groups ? settings->groups : "", &groups);
    if (status == DR_OK)
        status = dr_groups_treat(&groups, optimizer->model, settings->weight_decay, settings->muon, treatments);
    dr_groups_release(&groups);
    if (status == DR_OK) optimizer->run_count = find_runs(optimizer->model, treatments, optimizer->runs);
    return status;
}

static dr_status make_runs(dr_optimizer *optimizer) {
    const int64_t parameters = dr_model_parameters(optimizer->model, NULL);
    void *memory;
    DR_TRY(dr_allocate((size_t)parameters * sizeof(dr_parameter_run), "the optimizer", &memory));
    optimizer->runs = memory;
    DR_TRY(dr_allocate((size_t)parameters * sizeof(dr_adamw_run), "the optimizer", &memory));
    optimizer->adamw = memory;
    DR_TRY(dr_allocate((size_t)parameters * sizeof(dr_treatment), "the optimizer", &memory));
    const dr_status status = treat(optimizer, memory);
    dr_release(memory);
    return status;
}

/* Memory for the largest matrix, if Muon has any. */
static dr_status make_muon(dr_optimizer *optimizer) {
    int64_t elements = 0, side = 0;
    for (int64_t i = 0; i < optimizer->run_count; i++) {
        const dr_parameter_run *run = &optimizer->runs[i];
        const int64_t shorter = run->rows < run->columns ? run->rows : run->columns;
        if (run->rows * run->columns > elements) elements = run->rows * run->columns;
        if (shorter > side) side = shorter;
    }
    return elements > 0 ? dr_muon_create(dr_model_backend(optimizer->model), elements, side, &optimizer->muon) : DR_OK;
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

static dr_status fill(dr_optimizer *optimizer) {
    dr_backend *backend = dr_model_backend(optimizer->model);
    size_t bytes = dr_kind_bytes(backend, DR_NUMBER, optimizer->count);
    void *memory;
    DR_TRY(make_runs(optimizer));
    DR_TRY(make_muon(optimizer));
    DR_TRY(dr_backend_allocate(backend, bytes, &optimizer->mean));
    DR_TRY(dr_backend_allocate(backend, bytes, &optimizer->square));
    dr_backend_zero(backend, optimizer->mean, bytes);
    dr_backend_zero(backend, optimizer->square, bytes);
    DR_TRY(dr_model_gradients_create(optimizer->model, &optimizer->gradient));
    DR_TRY(dr_backend_allocate(backend, sizeof *optimizer->control, &memory));
    optimizer->control = memory;
    return dr_optimizer_resume(optimizer, 0);
}

dr_status dr_optimizer_create(dr_model *model, const dr_optimizer_settings *settings, dr_optimizer **optimizer) {
    void *memory;
    *optimizer = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_optimizer), "the optimizer", &memory));
    dr_optimizer *made = memory;
    made->model = model, made->settings = *settings, made->count = dr_model_block_count(model);
    dr_status status = fill(made);
    if (status != DR_OK)
        dr_optimizer_destroy(made);
    else
        *optimizer = made;
    return status;
}

void dr_optimizer_destroy(dr_optimizer *optimizer) {
    if (!optimizer) return;
    dr_backend_free(dr_model_backend(optimizer->model), optimizer->control);
    dr_backend_free(dr_model_backend(optimizer->model), optimizer->gradient);
    dr_backend_free(dr_model_backend(optimizer->model), optimizer->mean);
    dr_backend_free(dr_model_backend(optimizer->model), optimizer->square);
    dr_muon_destroy(optimizer->muon);
    dr_release(optimizer->runs);
    dr_release(optimizer->adamw);
    dr_release(optimizer);
}

static char *element(const dr_backend *backend, void *block, int64_t index) {
    return (char *)block + dr_kind_bytes(backend, DR_NUMBER, index);
}

void dr_optimizer_zero(dr_optimizer *optimizer) {
    dr_backend *backend = dr_model_backend(optimizer->model);
    dr_backend_zero(backend, optimizer->gradient, dr_kind_bytes(backend, DR_NUMBER, optimizer->count));
}

dr_status dr_optimizer_resume(dr_optimizer *optimizer, int64_t updates) {
    dr_backend *backend = dr_model_backend(optimizer->model);
    const dr_control control = {.scale = 1, .updates = updates};
    optimizer->updates = updates;
    return backend->ops->put(backend, optimizer->control, &control, sizeof control);
}

/* All that Muon leaves. */
static dr_status update_by_adamw(dr_optimizer *optimizer, double learning_rate) {
    dr_backend *backend = dr_model_backend(optimizer->model);
    const dr_optimizer_settings *settings = &optimizer->settings;
    const dr_adamw adamw = {.beta1 = settings->beta1, .beta2 = settings->beta2, .eps = settings->eps};
    int count = 0;
    for (int64_t i = 0; i < optimizer->run_count; i++) {
        const dr_parameter_run *run = &optimizer->runs[i];
        if (run->rows > 0) continue;
        optimizer->adamw[count++] = (dr_adamw_run){
            .begin = run->offset, .count = run->count, .learning_rate = run->rate * learning_rate, .weight_decay = run->decay};
    }
    return backend->ops->adamw(backend, &adamw, optimizer->control, count, optimizer->adamw, optimizer->gradient,
                               dr_model_parameter_block(optimizer->model), optimizer->mean, optimizer->square);
}

/* Matrix by matrix. */
static dr_status update_by_muon(dr_optimizer *optimizer, const dr_parameter_run *run, double learning_rate) {
    dr_backend *backend = dr_model_backend(optimizer->model);
    const dr_muon_step step = {.rows = run->rows,
                               .columns = run->columns,
                               .learning_rate = run->rate * learning_rate,
                               .beta = optimizer->settings.momentum,
                               .weight_decay = run->decay};
    const int64_t matrix = run->rows * run->columns;
    for (int64_t at = run->offset; at < run->offset + run->count; at += matrix)
        DR_TRY(dr_muon_update(optimizer->muon, &step, optimizer->control, element(backend, optimizer->gradient, at),
                              element(backend, dr_model_parameter_block(optimizer->model), at),
                              element(backend, optimizer->mean, at)));
    return DR_OK;
}

dr_status dr_optimizer_update(dr_optimizer *optimizer, double learning_rate) {
    dr_backend *backend = dr_model_backend(optimizer->model);
    DR_TRY(backend->ops->sum_squares(backend, optimizer->count, optimizer->gradient, optimizer->control));
    DR_TRY(backend->ops->clip(backend, optimizer->settings.clip, optimizer->control));
    for (int64_t i = 0; i < optimizer->run_count; i++) {
        if (optimizer->runs[i].rows > 0) DR_TRY(update_by_muon(optimizer, &optimizer->runs[i], learning_rate));
    }
    DR_TRY(update_by_adamw(optimizer, learning_rate));
    return dr_model_changed(optimizer->model);
}

dr_status dr_optimizer_result(dr_optimizer *optimizer, double *norm, bool *skipped) {
    dr_backend *backend = dr_model_backend(optimizer->model);
    dr_control control;
    DR_TRY(backend->ops->get(backend, &control, optimizer->control, sizeof control));
    optimizer->updates = control.updates;
    *norm = control.norm;
    *skipped = control.skipped_in_row > 0;
    return DR_OK;
}

dr_status dr_optimizer_step(dr_optimizer *optimizer, double learning_rate, double *norm, bool *skipped) {
    DR_TRY(dr_optimizer_update(optimizer, learning_rate));
    return dr_optimizer_result(optimizer, norm, skipped);
}
