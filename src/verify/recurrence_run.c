/* Running a recorded recurrence whole, through the recurrent or the chunkwise engine.
 *
 * Order: upload the inputs (query and key through the normalisation if the case has one), forward, measure o and
 * the final states, then upload the cotangents, backward, measure the gradient of every input and initial state. All results
 * start as NaN, so one that is never written fails. */
#include "verify/recurrence_run.h"

#include "base/error.h"
#include "base/memory.h"
#include "ops/operations.h"

int64_t dr_recurrence_run_inputs(const dr_recurrence *recurrence, dr_input input) {
    int64_t shape[DR_MAX_RANK], count = 0;
    dr_product(shape, dr_recurrence_input_shape(recurrence, input, shape), &count);
    return count;
}

int64_t dr_recurrence_run_states(const dr_recurrence *recurrence, dr_state_kind state) {
    int64_t shape[DR_MAX_RANK], count = 0;
    dr_product(shape, dr_recurrence_state_shape(recurrence, state, shape), &count);
    return count;
}

static dr_l2_norm normalisation(const dr_recurrence_run *run, dr_input input) {
    int64_t size = run->recurrence.key_size;
    return (dr_l2_norm){
        .rows = dr_recurrence_run_inputs(&run->recurrence, input) / size, .dim = size, .eps = run->read->qk_l2norm};
}

/* Puts the normalised input in place of the raw one, which is kept for the backward. */
static dr_status normalise(dr_recurrence_run *run, dr_input input, void **raw) {
    dr_l2_norm norm = normalisation(run, input);
    void *result = NULL;
    *raw = (void *)run->inputs.at[input];
    DR_TRY(dr_device_unset(&run->memory, norm.rows * norm.dim, &result));
    run->inputs.at[input] = result;
    return run->backend->ops->l2_norm_forward(run->backend, &norm, *raw, result);
}

static dr_status upload(dr_recurrence_run *run) {
    const dr_recurrence_case *read = run->read;
    for (int i = 0; i < DR_INPUTS; i++) {
        void *block = NULL;
        if (!read->input[i].name) continue;
        DR_TRY(dr_device_fill(&run->memory, &read->input[i].value, dr_recurrence_run_inputs(&run->recurrence, (dr_input)i),
                              &block));
        run->inputs.at[i] = block;
    }
    for (int i = 0; i < DR_STATES; i++) {
        void *block = NULL;
        if (!read->state[i].has_initial) continue;
        DR_TRY(dr_device_fill(&run->memory, &read->state[i].initial,
                              dr_recurrence_run_states(&run->recurrence, (dr_state_kind)i), &block));
        run->initial.at[i] = block;
    }
    if (read->qk_l2norm == 0) return DR_OK;
    DR_TRY(normalise(run, DR_INPUT_QUERY, &run->raw_query));
    return normalise(run, DR_INPUT_KEY, &run->raw_key);
}

int64_t dr_recurrence_run_outputs(const dr_recurrence *recurrence) {
    return recurrence->layout.rows * recurrence->value_heads * recurrence->value_size;
}

static dr_status run_forward(dr_recurrence_run *run, const dr_recurrence_memory *bytes, void **saved, dr_worst *worst) {
    const dr_recurrence_case *read = run->read;
    dr_mutable_states final = {{NULL}};
    void *o = NULL, *workspace = NULL;
    DR_TRY(dr_device_unset(&run->memory, dr_recurrence_run_outputs(&run->recurrence), &o));
    for (int i = 0; i < DR_STATES; i++)
        if (read->state[i].has_final)
            DR_TRY(dr_device_unset(&run->memory, dr_recurrence_run_states(&run->recurrence, (dr_state_kind)i), &final.at[i]));
    if (read->backward) DR_TRY(dr_device_bytes(&run->memory, bytes->saved, saved));
    DR_TRY(dr_device_bytes(&run->memory, bytes->forward, &workspace));
    DR_TRY(dr_recurrence_forward(run->backend, &run->recurrence, &run->inputs, &run->initial, o, &final, *saved, workspace));
    if (read->has_output) DR_TRY(dr_measure_block(run->backend, o, &read->output, "out.", "o", worst));
    for (int i = 0; i < DR_STATES; i++)
        if (read->state[i].has_final)
            DR_TRY(
                dr_measure_block(run->backend, final.at[i], &read->state[i].final, "out.", read->state[i].final_name, worst));
    return DR_OK;
}

/* Gradients of the inputs, those of query and key led back through the normalisation, against the recorded ones. */
static dr_status measure_input_gradients(dr_recurrence_run *run, const dr_input_gradients *d_inputs, dr_worst *worst) {
    const dr_recurrence_case *read = run->read;
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!read->input[i].has_gradient) continue;
        const void *raw = i == DR_INPUT_QUERY ? run->raw_query : i == DR_INPUT_KEY ? run->raw_key : NULL;
        void *gradient = d_inputs->at[i];
        if (raw) {
            dr_l2_norm norm = normalisation(run, (dr_input)i);
            DR_TRY(dr_device_unset(&run->memory, norm.rows * norm.dim, &gradient));
            DR_TRY(run->backend->ops->l2_norm_backward(run->backend, &norm, raw, d_inputs->at[i], gradient));
        }
        DR_TRY(dr_measure_sums(run->backend, gradient, dr_recurrence_run_inputs(&run->recurrence, (dr_input)i),
                               &read->input[i].gradient, "grad.", read->input[i].name, worst));
    }
    return DR_OK;
}

static dr_status run_backward(dr_recurrence_run *run, const dr_recurrence_memory *bytes, const void *saved, dr_worst *worst) {
    const dr_recurrence_case *read = run->read;
    dr_input_gradients d_inputs = {{NULL}};
    dr_mutable_states d_initial = {{NULL}};
    dr_states d_final = {{NULL}};
    void *d_o = NULL, *workspace = NULL;
    DR_TRY(dr_device_fill(&run->memory, &read->output_cotangent, dr_recurrence_run_outputs(&run->recurrence), &d_o));
    for (int i = 0; i < DR_INPUTS; i++)
        if (read->input[i].has_gradient)
            DR_TRY(dr_device_unset(&run->memory, dr_recurrence_run_inputs(&run->recurrence, (dr_input)i), &d_inputs.at[i]));
    for (int i = 0; i < DR_STATES; i++) {
        int64_t count = dr_recurrence_run_states(&run->recurrence, (dr_state_kind)i);
        void *cotangent = NULL;
        if (read->state[i].has_initial_gradient) DR_TRY(dr_device_unset(&run->memory, count, &d_initial.at[i]));
        if (read->state[i].has_cotangent) DR_TRY(dr_device_fill(&run->memory, &read->state[i].cotangent, count, &cotangent));
        d_final.at[i] = cotangent;
    }
    DR_TRY(dr_device_bytes(&run->memory, bytes->backward, &workspace));
    DR_TRY(dr_recurrence_backward(run->backend, &run->recurrence, &run->inputs, &run->initial, saved, d_o, &d_final, &d_inputs,
                                  &d_initial, workspace));
    DR_TRY(measure_input_gradients(run, &d_inputs, worst));
    for (int i = 0; i < DR_STATES; i++)
        if (read->state[i].has_initial_gradient)
            DR_TRY(dr_measure_block(run->backend, d_initial.at[i], &read->state[i].initial_gradient, "grad.",
                                    read->state[i].initial_name, worst));
    return DR_OK;
}

dr_status dr_recurrence_run_start(const dr_recurrence_case *read, dr_backend *backend, dr_path path, dr_recurrence_run *run) {
    *run =
        (dr_recurrence_run){.read = read, .backend = backend, .recurrence = read->recurrence, .memory = {.backend = backend}};
    run->recurrence.path = path;
    return upload(run);
}

dr_status dr_recurrence_case_run(const dr_recurrence_case *read, dr_backend *backend, dr_path path, dr_measurement *result) {
    dr_recurrence recurrence = read->recurrence;
    recurrence.path = path;
    dr_recurrence_memory bytes;
    DR_TRY(dr_recurrence_plan(backend, &recurrence, &bytes));
    dr_recurrence_kernel(backend, &recurrence, false, result->kernel, sizeof result->kernel);
    dr_recurrence_run run;
    void *saved = NULL;
    dr_status status;
    DR_GO(dr_recurrence_run_start(read, backend, path, &run));
    DR_GO(run_forward(&run, &bytes, &saved, &result->forward));
    if (read->backward) DR_GO(run_backward(&run, &bytes, saved, &result->backward));
done:
    dr_device_free(&run.memory);
    return status;
}
