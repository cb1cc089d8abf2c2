/* A forward that is planned like that of a gradient keeps every layer's memory, which is where the streams are. */
#include "nn/observe.h"

#include "base/error.h"
#include "nn/mixers/recurrent/recurrent.h"

dr_status dr_observe(dr_session *session, const int32_t *ids, int64_t count) {
    const int64_t last = count - 1;
    const dr_batch batch = {.layout = {.sequences = 1, .rows = count}, .ids = ids, .targets = 1, .positions = &last};
    DR_TRY(dr_session_prepare(session, DR_PHASE_GRADIENT, &batch.layout, batch.targets, true, false));
    DR_TRY(dr_session_upload(session, &batch, NULL, NULL));
    return dr_session_run(session, NULL);
}

bool dr_observed_layer(const dr_session *session, int64_t layer, dr_observed *observed) {
    const dr_layer *kind = session->model->layers[layer].kind;
    for (int part = 0; part < kind->parts; part++) {
        const dr_module *module = kind->part[part].module;
        if (module->operations != &dr_recurrent_operations) continue;
        dr_module_call call = dr_model_layer_call(session->model, layer, NULL);
        call.module = module;
        call.layout = session->tokens.layout;
        observed->recurrence = dr_recurrent_recurrence((const dr_recurrent *)module, &call.layout);
        observed->inputs = dr_recurrent_inputs(&call, session->layers[layer].module[part]);
        return true;
    }
    return false;
}
