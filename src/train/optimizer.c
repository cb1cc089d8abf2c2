/* AdamW. The block's gaps between parameters hold zeros, in gradients and means too, so a run of parameters with the same
 * weight decay is updated as one vector. A gradient that is not finite must not reach the means, which would never forget it.
 */
#include "train/optimizer.h"

#include "base/error.h"
#include "base/memory.h"
static int64_t find_runs(const dr_model *model, dr_parameter_run *runs) {
    const dr_parameter *parameters;
    int64_t count = dr_model_parameters(model, &parameters), found = 0;
    for (int64_t i = 0; i < count; i++) {
        const dr_parameter *parameter = &parameters[i];
        if (found == 0 || runs[found - 1].decays != parameter->decays)
            runs[found++] = (dr_parameter_run){.offset = parameter->offset, .decays = parameter->decays};
        runs[found - 1].count = parameter->offset + parameter->count - runs[found - 1].offset;
    }
    return found;
}

static dr_status fill(dr_optimizer *optimizer) {
    dr_backend *backend = dr_model_backend(optimizer->model);
    const dr_parameter *parameters;
    int64_t most_runs = dr_model_parameters(optimizer->model, &parameters);
    size_t bytes = dr_kind_bytes(backend, DR_NUMBER, optimizer->count);
    void *memory;
    DR_TRY(dr_allocate((size_t)most_runs * sizeof(dr_parameter_run), "the optimizer", &memory));
    optimizer->runs = memory;
    optimizer->run_count = find_runs(optimizer->model, optimizer->runs);
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
    dr_release(optimizer->runs);
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

dr_status dr_optimizer_update(dr_optimizer *optimizer, double learning_rate) {
    dr_backend *backend = dr_model_backend(optimizer->model);
    const dr_optimizer_settings *settings = &optimizer->settings;
    void *parameters = dr_model_parameter_block(optimizer->model);
    DR_TRY(backend->ops->sum_squares(backend, optimizer->count, optimizer->gradient, optimizer->control));
    DR_TRY(backend->ops->clip(backend, settings->clip, optimizer->control));
    dr_adamw step = {.learning_rate = learning_rate, .beta1 = settings->beta1, .beta2 = settings->beta2, .eps = settings->eps};
    for (int64_t i = 0; i < optimizer->run_count; i++) {
        const dr_parameter_run *run = &optimizer->runs[i];
        step.weight_decay = run->decays ? settings->weight_decay : 0;
        DR_TRY(backend->ops->adamw(backend, &step, optimizer->control, run->count,
                                   element(backend, optimizer->gradient, run->offset),
                                   element(backend, parameters, run->offset), element(backend, optimizer->mean, run->offset),
                                   element(backend, optimizer->square, run->offset)));
    }
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
