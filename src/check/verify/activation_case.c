/* Gates and the l2 norm: read a file, run the operation forward and backward, measure. */
#include "check/verify/activation_case.h"

#include "base/error.h"
#include "formats/json.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *rule;
    dr_gate_kind kind;
    int rank; /* of the input: 3 is one value a head, 4 is one a channel */
    bool bounded, a_log_per_channel;
} gates[] = {
    {"act_gate_gdn", DR_GATE_LOG_DECAY, 3, false, false},
    {"act_gate_kda_safe", DR_GATE_KDA_BOUNDED, 4, true, false},
    {"act_gate_eda_safe", DR_GATE_EDA_BOUNDED, 4, true, true},
};

enum { LOWER_BOUND_LIMIT = 1000 };

/* Input, output, cotangent and gradient have one shape, which the input sets. */
static dr_status read_stream(dr_vector_file *file, const char *name, int rank, dr_activation_case *read) {
    read->input_name = name;
    read->backward = file->backward;
    DR_TRY(dr_vector_file_take_any(file, "in.", name, DR_F32, rank, &read->input));
    const int64_t *shape = read->input.shape;
    if (dr_tensor_count(&read->input) == 0) return dr_fail(DR_ERROR_FORMAT, "the tensor 'in.%s' is empty", name);
    DR_TRY(dr_vector_file_take(file, "out.", "y", DR_F64, rank, shape, &read->output));
    if (!read->backward) return DR_OK;
    DR_TRY(dr_vector_file_take(file, "cot.", "y", DR_F32, rank, shape, &read->cotangent));
    return dr_vector_file_take(file, "grad.", name, DR_F64, rank, shape, &read->d_input);
}

static dr_status read_parameter(dr_vector_file *file, const char *name, int rank, const int64_t *shape, dr_tensor *value,
                                dr_tensor *gradient) {
    DR_TRY(dr_vector_file_take(file, "in.", name, DR_F32, rank, shape, value));
    return file->backward ? dr_vector_file_take(file, "grad.", name, DR_F64, rank, shape, gradient) : DR_OK;
}

static dr_status read_gate(dr_vector_file *file, size_t which, dr_activation_case *read) {
    static const char *const bounded_options[] = {"lo", NULL}, *const no_options[] = {NULL};
    double lower_bound = 0;
    DR_TRY(dr_json_known(file->options, gates[which].bounded ? bounded_options : no_options));
    DR_TRY(dr_json_real(file->options, "lo", -LOWER_BOUND_LIMIT, 0, &lower_bound));
    if (gates[which].bounded && lower_bound == 0) return dr_fail(DR_ERROR_FORMAT, "its option 'lo' must be below 0");
    DR_TRY(read_stream(file, "a", gates[which].rank, read));
    const int64_t *shape = read->input.shape;
    int parameter_rank = gates[which].rank - 2; /* [heads] or [heads, dim] */
    read->is_gate = true;
    read->gate = (dr_gate){
        .kind = gates[which].kind,
        .rows = shape[0] * shape[1],
        .heads = shape[2],
        .dim = parameter_rank == 2 ? shape[3] : 1,
        .multiplier = 1,
        .lower_bound = lower_bound,
        .a_log_per_channel = gates[which].a_log_per_channel,
        .from = DR_NUMBER,
        .to = DR_NUMBER,
    };
    DR_TRY(read_parameter(file, "A_log", gates[which].a_log_per_channel ? 2 : 1, shape + 2, &read->a_log, &read->d_a_log));
    return read_parameter(file, "dt_bias", parameter_rank, shape + 2, &read->bias, &read->d_bias);
}

static dr_status read_norm(dr_vector_file *file, dr_activation_case *read) {
    static const char *const options[] = {"eps", NULL};
    DR_TRY(dr_json_known(file->options, options));
    DR_TRY(dr_json_required(file->options, options));
    DR_TRY(dr_json_real(file->options, "eps", 0, 1, &read->norm.eps));
    DR_TRY(read_stream(file, "x", 4, read));
    read->norm.dim = read->input.shape[3];
    read->norm.rows = dr_tensor_count(&read->input) / read->norm.dim;
    return DR_OK;
}

dr_status dr_activation_case_read(dr_vector_file *file, dr_activation_case *read) {
    *read = (dr_activation_case){0};
    dr_status status = DR_ERROR_UNSUPPORTED;
    for (size_t i = 0; i < sizeof gates / sizeof gates[0]; i++)
        if (strcmp(file->rule, gates[i].rule) == 0) status = read_gate(file, i, read);
    if (strcmp(file->rule, "act_l2norm") == 0)
        status = read_norm(file, read);
    else if (status == DR_ERROR_UNSUPPORTED)
        return dr_fail(DR_ERROR_UNSUPPORTED, "'%.40s' is no activation of this build", file->rule);
    return status == DR_OK ? dr_vector_file_all_taken(file) : status;
}

static dr_status run_gate(const dr_activation_case *read, dr_device_memory *memory, const void *x, const void *d_y, void *y,
                          void *d_x, dr_measurement *result) {
    dr_backend *backend = memory->backend;
    int64_t a_logs = dr_tensor_count(&read->a_log), biases = dr_tensor_count(&read->bias);
    void *a_log = NULL, *bias = NULL, *d_a_log = NULL, *d_bias = NULL;
    DR_TRY(dr_device_fill(memory, &read->a_log, a_logs, &a_log));
    DR_TRY(dr_device_fill(memory, &read->bias, biases, &bias));
    DR_TRY(backend->ops->gate_forward(backend, &read->gate, x, a_log, bias, y));
    if (!read->backward) return DR_OK;
    DR_TRY(dr_device_zero(memory, a_logs, &d_a_log));
    DR_TRY(dr_device_zero(memory, biases, &d_bias));
    DR_TRY(backend->ops->gate_backward(backend, &read->gate, x, a_log, bias, d_y, d_x, false, d_a_log, d_bias));
    DR_TRY(dr_measure_block(backend, d_a_log, &read->d_a_log, "grad.", "A_log", &result->backward));
    return dr_measure_block(backend, d_bias, &read->d_bias, "grad.", "dt_bias", &result->backward);
}

static dr_status run_norm(const dr_activation_case *read, dr_backend *backend, const void *x, const void *d_y, void *y,
                          void *d_x) {
    DR_TRY(backend->ops->l2_norm_forward(backend, &read->norm, x, y));
    return read->backward ? backend->ops->l2_norm_backward(backend, &read->norm, x, d_y, d_x) : DR_OK;
}

dr_dtype dr_activation_case_dtype(const dr_activation_case *read, const dr_backend *types) {
    return read->is_gate ? dr_backend_dtype(types) : types->storage;
}

dr_status dr_activation_case_run(const dr_activation_case *read, dr_backend *backend, const dr_backend *types,
                                 dr_measurement *result) {
    if (!dr_supports(backend, DR_OPERATION_GATE) || !dr_supports(backend, DR_OPERATION_L2_NORM))
        return dr_fail(DR_ERROR_UNSUPPORTED, "backend %s has no activations: it offers recurrences only",
                       dr_backend_name(backend));
    dr_device_memory memory = {.backend = backend};
    const int64_t count = dr_tensor_count(&read->input);
    const dr_dtype dtype = dr_activation_case_dtype(read, types);
    void *x = NULL, *y = NULL, *d_x = NULL, *d_y = NULL;
    dr_status status;
    snprintf(result->kernel, sizeof result->kernel, "%s %s", dr_backend_name(backend), dr_backend_isa(backend));
    DR_GO(dr_device_fill_as(&memory, dtype, &read->input, count, &x));
    DR_GO(dr_device_unset_as(&memory, dtype, count, &y));
    if (read->backward) DR_GO(dr_device_fill_as(&memory, dtype, &read->cotangent, count, &d_y));
    if (read->backward) DR_GO(dr_device_unset_as(&memory, dtype, count, &d_x));
    DR_GO(read->is_gate ? run_gate(read, &memory, x, d_y, y, d_x, result) : run_norm(read, backend, x, d_y, y, d_x));
    DR_GO(dr_measure_sums(backend, dtype, y, count, &read->output, "out.", "y", &result->forward));
    if (read->backward)
        DR_GO(dr_measure_sums(backend, dtype, d_x, count, &read->d_input, "grad.", read->input_name, &result->backward));
done:
    dr_device_free(&memory);
    return status;
}
