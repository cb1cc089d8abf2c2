/* Running a recorded recurrence whole, through the recurrent or the chunkwise engine.
 *
 * Order: upload the inputs (query and key through the normalisation if the case has one), forward, measure o and
 * the final states, then upload the cotangents, backward, measure the gradient of every input and initial state. All results
 * start as NaN, so one that is never written fails. */
#include "check/verify/recurrence_run.h"

#include "base/error.h"
#include "base/memory.h"
#include "formats/safetensors.h"
#include "ops/operations.h"

#include <math.h>

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

/* The normalisation of query and key, which stands before the recurrence and is none of its operations: in double on the host,
 * so that a backend need not have it and every one reads the same numbers. y = x / sqrt(sum x^2 + eps). */
static void normalise(const dr_recurrence_run *run, int64_t count, const double *x, double *y) {
    const int64_t size = run->recurrence.key_size;
    for (int64_t i = 0; i < count; i += size) {
        double sum = run->read->qk_l2norm;
        for (int64_t d = i; d < i + size; d++) sum += x[d] * x[d];
        for (int64_t d = i; d < i + size; d++) y[d] = x[d] / sqrt(sum);
    }
}

/* gradient: from that of y to that of x, (d_y - y (y . d_y)) / sqrt(sum x^2 + eps) */
static void normalise_back(const dr_recurrence_run *run, int64_t count, const double *x, double *gradient) {
    const int64_t size = run->recurrence.key_size;
    for (int64_t i = 0; i < count; i += size) {
        double sum = run->read->qk_l2norm, dot = 0;
        for (int64_t d = i; d < i + size; d++) sum += x[d] * x[d];
        for (int64_t d = i; d < i + size; d++) dot += x[d] * gradient[d];
        for (int64_t d = i; d < i + size; d++) gradient[d] = (gradient[d] - x[d] * dot / sum) / sqrt(sum);
    }
}

static dr_status allocate_doubles(int64_t count, double **block) {
    void *memory = NULL;
    DR_TRY(dr_allocate((size_t)count * sizeof(double), "a tensor", &memory));
    *block = memory;
    return DR_OK;
}

static dr_status upload_normalised(dr_recurrence_run *run, dr_input input, int64_t count, void **block) {
    const dr_dtype dtype = dr_recurrence_input_dtype(run->types, input);
    double *normalised = NULL;
    dr_status status;
    DR_TRY(allocate_doubles(count, &run->raw[input]));
    DR_TRY(allocate_doubles(count, &normalised));
    dr_tensor_repeat(&run->read->input[input].value, count, run->raw[input]);
    normalise(run, count, run->raw[input], normalised);
    DR_GO(dr_device_unset_as(&run->memory, dtype, count, block));
    DR_GO(dr_device_put_as(run->backend, dtype, normalised, count, *block));
done:
    dr_release(normalised);
    return status;
}

static dr_status upload(dr_recurrence_run *run) {
    const dr_recurrence_case *read = run->read;
    for (int i = 0; i < DR_INPUTS; i++) {
        void *block = NULL;
        const int64_t count = dr_recurrence_run_inputs(&run->recurrence, (dr_input)i);
        if (!read->input[i].name) continue;
        if (read->qk_l2norm != 0 && (i == DR_INPUT_QUERY || i == DR_INPUT_KEY))
            DR_TRY(upload_normalised(run, (dr_input)i, count, &block));
        else
            DR_TRY(dr_device_fill_as(&run->memory, dr_recurrence_input_dtype(run->types, (dr_input)i), &read->input[i].value,
                                     count, &block));
        run->inputs.at[i] = block;
    }
    for (int i = 0; i < DR_STATES; i++) {
        void *block = NULL;
        if (!read->state[i].has_initial) continue;
        DR_TRY(dr_device_fill(&run->memory, &read->state[i].initial,
                              dr_recurrence_run_states(&run->recurrence, (dr_state_kind)i), &block));
        run->initial.at[i] = block;
    }
    return DR_OK;
}

int64_t dr_recurrence_run_outputs(const dr_recurrence *recurrence) {
    return recurrence->layout.rows * recurrence->value_heads * recurrence->value_size;
}

static dr_status run_forward(dr_recurrence_run *run, const dr_recurrence_memory *bytes, void **saved, dr_worst *worst) {
    const dr_recurrence_case *read = run->read;
    dr_mutable_states final = {{NULL}};
    void *o = NULL, *workspace = NULL;
    const dr_dtype dtype = dr_recurrence_output_dtype(run->types);
    const int64_t count = dr_recurrence_run_outputs(&run->recurrence);
    DR_TRY(dr_device_unset_as(&run->memory, dtype, count, &o));
    for (int i = 0; i < DR_STATES; i++)
        if (read->state[i].has_final)
            DR_TRY(dr_device_unset(&run->memory, dr_recurrence_run_states(&run->recurrence, (dr_state_kind)i), &final.at[i]));
    if (read->backward) DR_TRY(dr_device_bytes(&run->memory, bytes->saved, saved));
    DR_TRY(dr_device_bytes(&run->memory, bytes->forward, &workspace));
    DR_TRY(dr_recurrence_forward(run->backend, &run->recurrence, &run->inputs, &run->initial, o, &final, *saved, workspace));
    if (read->has_output) DR_TRY(dr_measure_sums(run->backend, dtype, o, count, &read->output, "out.", "o", worst));
    for (int i = 0; i < DR_STATES; i++)
        if (read->state[i].has_final)
            DR_TRY(
                dr_measure_block(run->backend, final.at[i], &read->state[i].final, "out.", read->state[i].final_name, worst));
    return DR_OK;
}

/* The gradient of a normalised input, led back through the normalisation. */
static dr_status measure_normalised(dr_recurrence_run *run, dr_input input, const void *gradient, dr_worst *worst) {
    const dr_case_input *read = &run->read->input[input];
    const int64_t count = dr_recurrence_run_inputs(&run->recurrence, input);
    double *values = NULL;
    dr_status status;
    DR_TRY(allocate_doubles(count, &values));
    DR_GO(dr_device_get_as(run->backend, dr_recurrence_input_dtype(run->types, input), gradient, count, values));
    normalise_back(run, count, run->raw[input], values);
    dr_measure(values, &read->gradient, "grad.", read->name, worst);
done:
    dr_release(values);
    return status;
}

/* Gradients of the inputs against the recorded ones. */
static dr_status measure_input_gradients(dr_recurrence_run *run, const dr_input_gradients *d_inputs, dr_worst *worst) {
    for (int i = 0; i < DR_INPUTS; i++) {
        const dr_case_input *read = &run->read->input[i];
        if (!read->has_gradient) continue;
        if (run->raw[i])
            DR_TRY(measure_normalised(run, (dr_input)i, d_inputs->at[i], worst));
        else
            DR_TRY(dr_measure_sums(run->backend, dr_recurrence_input_dtype(run->types, (dr_input)i), d_inputs->at[i],
                                   dr_recurrence_run_inputs(&run->recurrence, (dr_input)i), &read->gradient, "grad.",
                                   read->name, worst));
    }
    return DR_OK;
}

static dr_status run_backward(dr_recurrence_run *run, const dr_recurrence_memory *bytes, const void *saved, dr_worst *worst) {
    const dr_recurrence_case *read = run->read;
    dr_input_gradients d_inputs = {{NULL}};
    dr_mutable_states d_initial = {{NULL}};
    dr_states d_final = {{NULL}};
    void *d_o = NULL, *workspace = NULL;
    DR_TRY(dr_device_fill_as(&run->memory, dr_recurrence_output_dtype(run->types), &read->output_cotangent,
                             dr_recurrence_run_outputs(&run->recurrence), &d_o));
    for (int i = 0; i < DR_INPUTS; i++)
        if (read->input[i].has_gradient)
            DR_TRY(dr_device_unset_as(&run->memory, dr_recurrence_input_dtype(run->types, (dr_input)i),
                                      dr_recurrence_run_inputs(&run->recurrence, (dr_input)i), &d_inputs.at[i]));
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

dr_status dr_recurrence_run_start(const dr_recurrence_case *read, dr_backend *backend, const dr_backend *types, dr_path path,
                                  dr_recurrence_run *run) {
    *run = (dr_recurrence_run){
        .read = read, .backend = backend, .types = types, .recurrence = read->recurrence, .memory = {.backend = backend}};
    run->recurrence.path = path;
    return upload(run);
}

void dr_recurrence_run_end(dr_recurrence_run *run) {
    for (int i = 0; i < DR_INPUTS; i++) dr_release(run->raw[i]);
    dr_device_free(&run->memory);
}

dr_status dr_recurrence_case_run(const dr_recurrence_case *read, dr_backend *backend, const dr_backend *types, dr_path path,
                                 dr_measurement *result) {
    dr_recurrence recurrence = read->recurrence;
    recurrence.path = path;
    dr_recurrence_memory bytes;
    DR_TRY(dr_recurrence_plan(backend, &recurrence, &bytes));
    dr_recurrence_kernel(backend, &recurrence, false, result->kernel, sizeof result->kernel);
    dr_recurrence_run run;
    void *saved = NULL;
    dr_status status;
    DR_GO(dr_recurrence_run_start(read, backend, types, path, &run));
    DR_GO(run_forward(&run, &bytes, &saved, &result->forward));
    if (read->backward) DR_GO(run_backward(&run, &bytes, saved, &result->backward));
done:
    dr_recurrence_run_end(&run);
    return status;
}
