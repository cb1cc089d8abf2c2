/* The reference with vectors stored in 16 bits (DR_BF16 or DR_F16): the specification of where a value is rounded.
 *
 * Each operation widens the vectors it reads to double, runs as it stands in the other files, and rounds each vector that it
 * writes once, to the nearest, ties to even. Numbers stay double and are passed on as they are. A vector that is added to is
 * widened, added to in double and rounded. Operations that only move rows (embedding, rows_gather, rows_scatter,
 * attention_append, experts_gather_forward) round nothing and serve both types. */
#include "backends/reference/stored.h"
#include "backends/reference/recurrence.h"
#include "backends/reference/stored_call.h"
#include "ops/host.h"
#include "ops/shapes.h"

/* ---- memory --------------------------------------------------------------------------------------------------------- */

/* Single floats of the host become double on the way, so that a value is rounded once. */
static dr_status upload_as(dr_backend *backend, void *to, dr_dtype to_dtype, const void *from, dr_dtype from_dtype,
                           int64_t count) {
    void *memory = NULL;
    if (to_dtype != backend->storage)
        return dr_fail(DR_ERROR_ARGUMENT, "the memory of this backend holds F64 and %s, not %s",
                       dr_dtype_name(backend->storage), dr_dtype_name(to_dtype));
    DR_TRY(dr_allocate((size_t)(count + 1) * sizeof(double), "vectors in double", &memory));
    dr_status status = dr_reference_upload(backend, memory, from, from_dtype, count);
    for (int64_t i = 0; i < count && status == DR_OK; i++) store(to_dtype, to, i, ((double *)memory)[i]);
    dr_release(memory);
    return status;
}

static dr_status download_as(dr_backend *backend, void *to, dr_dtype to_dtype, const void *from, dr_dtype from_dtype,
                             int64_t count) {
    widened call = {.backend = backend};
    if (from_dtype != backend->storage)
        return dr_fail(DR_ERROR_ARGUMENT, "the memory of this backend holds F64 and %s, not %s",
                       dr_dtype_name(backend->storage), dr_dtype_name(from_dtype));
    const double *wide = widen(&call, from, count);
    if (count > 0) RUN(call, dr_reference_download(backend, to, to_dtype, wide, count));
    return finish(&call);
}

static dr_status store_vectors(dr_backend *backend, int64_t count, const void *x, void *y) {
    for (int64_t i = 0; i < count; i++) store(backend->storage, y, i, ((const double *)x)[i]);
    return DR_OK;
}

/* ---- products ------------------------------------------------------------------------------------------------------- */

/* Elements from the first of a panel to the last that its columns take. Rounding covers the elements between two rows as well;
 * they hold rounded values, which rounding leaves as they are. */
static int64_t panel_count(int64_t rows, int64_t row, int64_t columns) {
    return rows > 0 ? (rows - 1) * row + columns : 0;
}

static dr_status linear_forward(dr_backend *backend, const dr_linear *linear, const void *x, const void *weight,
                                const void *bias, void *y) {
    widened call = {.backend = backend};
    const int64_t count = panel_count(linear->rows, dr_linear_pitch(linear), linear->in);
    const double *from = widen(&call, x, count), *by = widen(&call, weight, linear->out * linear->in);
    double *to = result(&call, y, linear->rows * linear->out);
    dr_linear wide = *linear;
    wide.plus = widen(&call, linear->plus, linear->rows * linear->out);
    RUN(call, dr_reference_linear_forward(backend, &wide, from, by, bias, to));
    return finish(&call);
}

static dr_status linear_backward(dr_backend *backend, const dr_linear *linear, const void *x, const void *weight,
                                 const void *d_y, void *d_x, bool accumulate, void *d_weight, void *d_bias) {
    widened call = {.backend = backend};
    const int64_t count = panel_count(linear->rows, dr_linear_pitch(linear), linear->in);
    const double *from = widen(&call, x, count), *by = widen(&call, weight, linear->out * linear->in),
                 *d_to = widen(&call, d_y, linear->rows * linear->out);
    double *d_from = result(&call, d_x, count);
    RUN(call, dr_reference_linear_backward(backend, linear, from, by, d_to, d_from, accumulate, d_weight, d_bias));
    return finish(&call);
}

static dr_status grouped_linear_forward(dr_backend *backend, const dr_grouped_linear *linear, const void *x, const void *weight,
                                        void *y) {
    widened call = {.backend = backend};
    const int64_t count = panel_count(linear->rows, dr_grouped_linear_pitch(linear), linear->groups * linear->in);
    const double *from = widen(&call, x, count), *by = widen(&call, weight, linear->groups * linear->out * linear->in);
    double *to = result(&call, y, linear->rows * linear->groups * linear->out);
    RUN(call, dr_reference_grouped_linear_forward(backend, linear, from, by, to));
    return finish(&call);
}

static dr_status grouped_linear_backward(dr_backend *backend, const dr_grouped_linear *linear, const void *x,
                                         const void *weight, const void *d_y, void *d_x, void *d_weight) {
    widened call = {.backend = backend};
    const int64_t count = panel_count(linear->rows, dr_grouped_linear_pitch(linear), linear->groups * linear->in);
    const double *from = widen(&call, x, count), *by = widen(&call, weight, linear->groups * linear->out * linear->in),
                 *d_to = widen(&call, d_y, linear->rows * linear->groups * linear->out);
    double *d_from = result(&call, d_x, count);
    RUN(call, dr_reference_grouped_linear_backward(backend, linear, from, by, d_to, d_from, d_weight));
    return finish(&call);
}

static dr_status embedding_backward(dr_backend *backend, int64_t rows, int64_t dim, const int32_t *ids, const void *d_y,
                                    void *d_table) {
    widened call = {.backend = backend};
    const double *d_to = widen(&call, d_y, rows * dim);
    RUN(call, dr_reference_embedding_backward(backend, rows, dim, ids, d_to, d_table));
    return finish(&call);
}

/* ---- norms, convolution --------------------------------------------------------------------------------------------- */

static int64_t gate_count(const dr_rms_norm *norm) {
    if (norm->gate_row == 0) return norm->rows * norm->dim;
    return panel_count(norm->rows / norm->gate_vectors, norm->gate_row, norm->gate_vectors * norm->dim);
}

static dr_status rms_norm_forward(dr_backend *backend, const dr_rms_norm *norm, const void *x, const void *weight,
                                  const void *gate, void *y) {
    widened call = {.backend = backend};
    const int64_t count = norm->rows * norm->dim;
    const double *from = widen(&call, x, count), *by = widen(&call, gate, gate_count(norm));
    double *to = result(&call, y, count);
    RUN(call, dr_reference_rms_norm_forward(backend, norm, from, weight, by, to));
    return finish(&call);
}

static dr_status rms_norm_backward(dr_backend *backend, const dr_rms_norm *norm, const void *x, const void *weight,
                                   const void *gate, const void *d_y, void *d_x, bool accumulate, void *d_weight,
                                   void *d_gate) {
    widened call = {.backend = backend};
    const int64_t count = norm->rows * norm->dim;
    const double *from = widen(&call, x, count), *by = widen(&call, gate, gate_count(norm)), *d_to = widen(&call, d_y, count);
    double *d_from = result(&call, d_x, count), *d_by = result(&call, d_gate, gate_count(norm));
    RUN(call, dr_reference_rms_norm_backward(backend, norm, from, weight, by, d_to, d_from, accumulate, d_weight, d_by));
    return finish(&call);
}

static dr_status l2_norm_forward(dr_backend *backend, const dr_l2_norm *norm, const void *x, void *y) {
    widened call = {.backend = backend};
    const double *from = widen(&call, x, norm->rows * norm->dim);
    double *to = result(&call, y, norm->rows * norm->dim);
    RUN(call, dr_reference_l2_norm_forward(backend, norm, from, to));
    return finish(&call);
}

static dr_status l2_norm_backward(dr_backend *backend, const dr_l2_norm *norm, const void *x, const void *d_y, void *d_x) {
    widened call = {.backend = backend};
    const double *from = widen(&call, x, norm->rows * norm->dim), *d_to = widen(&call, d_y, norm->rows * norm->dim);
    double *d_from = result(&call, d_x, norm->rows * norm->dim);
    RUN(call, dr_reference_l2_norm_backward(backend, norm, from, d_to, d_from));
    return finish(&call);
}

static dr_status conv_forward(dr_backend *backend, const dr_conv *conv, const void *x, const void *weight, const void *bias,
                              const void *initial, void *y, void *final) {
    widened call = {.backend = backend};
    const double *from = widen(&call, x, panel_count(conv->layout.rows, dr_conv_pitch(conv), conv->channels));
    double *to = result(&call, y, conv->layout.rows * conv->channels);
    RUN(call, dr_reference_conv_forward(backend, conv, from, weight, bias, initial, to, final));
    return finish(&call);
}

static dr_status conv_backward(dr_backend *backend, const dr_conv *conv, const void *x, const void *weight, const void *bias,
                               const void *initial, const void *d_y, void *d_x, void *d_weight, void *d_bias) {
    widened call = {.backend = backend};
    const int64_t count = panel_count(conv->layout.rows, dr_conv_pitch(conv), conv->channels);
    const double *from = widen(&call, x, count), *d_to = widen(&call, d_y, conv->layout.rows * conv->channels);
    double *d_from = result(&call, d_x, count);
    RUN(call, dr_reference_conv_backward(backend, conv, from, weight, bias, initial, d_to, d_from, d_weight, d_bias));
    return finish(&call);
}

/* ---- element by element --------------------------------------------------------------------------------------------- */

static dr_status gate_forward(dr_backend *backend, const dr_gate *gate, const void *x, const void *a_log, const void *bias,
                              void *y) {
    widened call = {.backend = backend};
    const int64_t columns = gate->heads * gate->dim, count = gate->rows * columns;
    const int64_t read = panel_count(gate->rows, dr_gate_pitch(gate), columns);
    const void *from = gate->from == DR_VECTOR ? widen(&call, x, read) : x;
    void *to = gate->to == DR_VECTOR ? result(&call, y, count) : y;
    RUN(call, dr_reference_gate_forward(backend, gate, from, a_log, bias, to));
    return finish(&call);
}

static dr_status gate_backward(dr_backend *backend, const dr_gate *gate, const void *x, const void *a_log, const void *bias,
                               const void *d_y, void *d_x, bool accumulate, void *d_a_log, void *d_bias) {
    widened call = {.backend = backend};
    const int64_t columns = gate->heads * gate->dim, count = gate->rows * columns;
    const int64_t read = panel_count(gate->rows, dr_gate_pitch(gate), columns);
    const void *from = gate->from == DR_VECTOR ? widen(&call, x, read) : x;
    const void *d_to = gate->to == DR_VECTOR ? widen(&call, d_y, count) : d_y;
    void *d_from = gate->from == DR_VECTOR ? result(&call, d_x, read) : d_x;
    RUN(call, dr_reference_gate_backward(backend, gate, from, a_log, bias, d_to, d_from, accumulate, d_a_log, d_bias));
    return finish(&call);
}

static dr_status rotary(dr_backend *backend, const dr_rotary *turn, void *x, bool backward) {
    widened call = {.backend = backend};
    const int64_t rows = turn->layout.rows;
    double *turned = result(&call, x, panel_count(rows, turn->row, turn->heads * turn->size));
    RUN(call, dr_reference_rotary(backend, turn, turned, backward));
    return finish(&call);
}

static dr_status swiglu_forward(dr_backend *backend, int64_t count, const void *gate, const void *up, void *y) {
    widened call = {.backend = backend};
    const double *one = widen(&call, gate, count), *other = widen(&call, up, count);
    double *to = result(&call, y, count);
    RUN(call, dr_reference_swiglu_forward(backend, count, one, other, to));
    return finish(&call);
}

static dr_status swiglu_backward(dr_backend *backend, int64_t count, const void *gate, const void *up, const void *d_y,
                                 void *d_gate, void *d_up) {
    widened call = {.backend = backend};
    const double *one = widen(&call, gate, count), *other = widen(&call, up, count), *d_to = widen(&call, d_y, count);
    double *d_one = result(&call, d_gate, count), *d_other = result(&call, d_up, count);
    RUN(call, dr_reference_swiglu_backward(backend, count, one, other, d_to, d_one, d_other));
    return finish(&call);
}

static dr_status swiglu_panel_forward(dr_backend *backend, int64_t rows, int64_t columns, const void *panel, void *y) {
    widened call = {.backend = backend};
    const double *from = widen(&call, panel, 2 * rows * columns);
    double *to = result(&call, y, rows * columns);
    RUN(call, dr_reference_swiglu_panel_forward(backend, rows, columns, from, to));
    return finish(&call);
}

static dr_status swiglu_panel_backward(dr_backend *backend, int64_t rows, int64_t columns, const void *panel, const void *d_y,
                                       void *d_panel) {
    widened call = {.backend = backend};
    const double *from = widen(&call, panel, 2 * rows * columns), *d_to = widen(&call, d_y, rows * columns);
    double *d_from = result(&call, d_panel, 2 * rows * columns);
    RUN(call, dr_reference_swiglu_panel_backward(backend, rows, columns, from, d_to, d_from));
    return finish(&call);
}

static dr_status add(dr_backend *backend, dr_kind kind, int64_t count, double factor, const void *x, void *y) {
    widened call = {.backend = backend};
    if (kind == DR_NUMBER) return dr_reference_add(backend, kind, count, factor, x, y);
    const double *from = widen(&call, x, count);
    double *to = result(&call, y, count);
    RUN(call, dr_reference_add(backend, kind, count, factor, from, to));
    return finish(&call);
}

static dr_status scale_heads_forward(dr_backend *backend, int64_t rows, int64_t heads, int64_t dim, bool shared,
                                     const void *factor, const void *x, void *y, bool accumulate) {
    widened call = {.backend = backend};
    const double *from = widen(&call, x, rows * heads * dim);
    double *to = result(&call, y, rows * heads * dim);
    RUN(call, dr_reference_scale_heads_forward(backend, rows, heads, dim, shared, factor, from, to, accumulate));
    return finish(&call);
}

static dr_status scale_heads_backward(dr_backend *backend, int64_t rows, int64_t heads, int64_t dim, bool shared,
                                      const void *factor, const void *x, const void *d_y, void *d_factor, void *d_x,
                                      bool accumulate) {
    widened call = {.backend = backend};
    const double *from = widen(&call, x, rows * heads * dim), *d_to = widen(&call, d_y, rows * heads * dim);
    double *d_from = result(&call, d_x, rows * heads * dim);
    RUN(call,
        dr_reference_scale_heads_backward(backend, rows, heads, dim, shared, factor, from, d_to, d_factor, d_from, accumulate));
    return finish(&call);
}

static dr_status cross_entropy(dr_backend *backend, int64_t count, int64_t vocabulary, const void *logits,
                               const int32_t *labels, double factor, double *loss, uint8_t *hit, void *d_logits) {
    widened call = {.backend = backend};
    const double *from = widen(&call, logits, count * vocabulary);
    double *d_from = result(&call, d_logits, count * vocabulary);
    RUN(call, dr_reference_cross_entropy(backend, count, vocabulary, from, labels, factor, loss, hit, d_from));
    return finish(&call);
}

static dr_status choose(dr_backend *backend, int64_t count, int64_t vocabulary, int64_t allowed, const void *logits,
                        const dr_draw *draws, int32_t *ids) {
    widened call = {.backend = backend};
    const double *from = widen(&call, logits, count * vocabulary);
    RUN(call, dr_reference_choose(backend, count, vocabulary, allowed, from, draws, ids));
    return finish(&call);
}

/* ---- attention ------------------------------------------------------------------------------------------------------ */

typedef struct {
    int64_t q, k, v, o; /* elements of a call's tensors */
} attention_counts;

static attention_counts count_attention(const dr_attention *a) {
    const int64_t rows = a->layout.rows;
    return (attention_counts){.q = rows * a->heads * a->key_size,
                              .k = rows * a->key_heads * a->key_size,
                              .v = rows * a->key_heads * a->value_size,
                              .o = rows * a->heads * a->value_size};
}

/* Tokens that the slots of a call's sequences may hold. */
static int64_t remembered(const dr_attention *attention, const dr_attention_memory *memory) {
    int64_t slots = 0;
    for (int64_t i = 0; i < attention->layout.sequences; i++) {
        int64_t slot = memory->slot ? memory->slot[i] : i;
        if (slot >= slots) slots = slot + 1;
    }
    return slots * memory->capacity;
}

static dr_status attention_forward(dr_backend *backend, const dr_attention *attention, const void *q, const void *k,
                                   const void *v, const dr_attention_memory *memory, void *o, void *log_sums) {
    widened call = {.backend = backend};
    const attention_counts count = count_attention(attention);
    const double *queries = widen(&call, q, count.q), *keys = widen(&call, k, count.k), *values = widen(&call, v, count.v);
    double *to = result(&call, o, count.o);
    dr_attention_memory wide;
    if (memory) {
        const int64_t tokens = remembered(attention, memory) * attention->key_heads;
        wide = *memory;
        wide.keys = widen(&call, memory->keys, tokens * attention->key_size);
        wide.values = widen(&call, memory->values, tokens * attention->value_size);
    }
    RUN(call, dr_reference_attention_forward(backend, attention, queries, keys, values, memory ? &wide : NULL, to, log_sums));
    return finish(&call);
}

static dr_status attention_backward(dr_backend *backend, const dr_attention *attention, const void *q, const void *k,
                                    const void *v, const void *o, const void *log_sums, const void *d_o, void *d_q, void *d_k,
                                    void *d_v) {
    widened call = {.backend = backend};
    const attention_counts count = count_attention(attention);
    const double *queries = widen(&call, q, count.q), *keys = widen(&call, k, count.k), *values = widen(&call, v, count.v),
                 *out = widen(&call, o, count.o), *d_out = widen(&call, d_o, count.o);
    double *d_queries = result(&call, d_q, count.q), *d_keys = result(&call, d_k, count.k),
           *d_values = result(&call, d_v, count.v);
    RUN(call, dr_reference_attention_backward(backend, attention, queries, keys, values, out, log_sums, d_out, d_queries,
                                              d_keys, d_values));
    return finish(&call);
}

/* ---- Muon ----------------------------------------------------------------------------------------------------------- */

static dr_status momentum(dr_backend *backend, double beta, const dr_control *control, int64_t count, const void *gradient,
                          void *kept, void *y) {
    widened call = {.backend = backend};
    if (control->skipped_in_row > 0) return DR_OK;
    double *to = result(&call, y, count);
    RUN(call, dr_reference_momentum(backend, beta, control, count, gradient, kept, to));
    return finish(&call);
}

static dr_status descend(dr_backend *backend, const dr_descent *descent, const dr_control *control, int64_t count,
                         const void *direction, void *parameter) {
    widened call = {.backend = backend};
    const double *along = widen(&call, direction, count);
    RUN(call, dr_reference_descend(backend, descent, control, count, along, parameter));
    return finish(&call);
}

/* ---- recurrence ----------------------------------------------------------------------------------------------------- */

static dr_inputs widen_inputs(widened *call, const dr_recurrence *recurrence, const dr_inputs *inputs) {
    dr_inputs wide = *inputs;
    for (int i = 0; i < DR_INPUTS; i++)
        if (inputs->at[i] && dr_input_kind((dr_input)i) == DR_VECTOR)
            wide.at[i] = widen(call, inputs->at[i], dr_recurrence_input_count(recurrence, (dr_input)i));
    return wide;
}

static int64_t output_count(const dr_recurrence *recurrence) {
    return recurrence->layout.rows * recurrence->value_heads * recurrence->value_size;
}

static dr_status run_forward(const dr_plan *plan, const dr_call *given,
                             dr_status (*run)(const dr_plan *plan, const dr_call *call)) {
    widened call = {.backend = plan->backend};
    dr_call wide = *given;
    if (plan->formed) return run(plan, given); /* which reads these types itself */
    dr_inputs inputs = widen_inputs(&call, &plan->recurrence, given->inputs);
    wide.inputs = &inputs;
    wide.o = result(&call, given->o, output_count(&plan->recurrence));
    RUN(call, run(plan, &wide));
    return finish(&call);
}

static dr_status recurrence_forward(const dr_plan *plan, const dr_call *call) {
    return run_forward(plan, call, dr_reference_recurrence_forward);
}

static dr_status recurrence_decode(const dr_plan *plan, const dr_call *call) {
    return run_forward(plan, call, dr_reference_recurrence_decode);
}

static dr_status recurrence_backward(const dr_plan *plan, const dr_call *given) {
    widened call = {.backend = plan->backend};
    dr_call wide = *given;
    if (plan->formed) return dr_reference_recurrence_backward(plan, given);
    dr_inputs inputs = widen_inputs(&call, &plan->recurrence, given->inputs);
    dr_input_gradients gradients = *given->d_inputs;
    for (int i = 0; i < DR_INPUTS; i++)
        if (gradients.at[i] && dr_input_kind((dr_input)i) == DR_VECTOR)
            gradients.at[i] = result(&call, given->d_inputs->at[i], dr_recurrence_input_count(&plan->recurrence, (dr_input)i));
    wide.inputs = &inputs;
    wide.d_inputs = &gradients;
    wide.d_o = widen(&call, given->d_o, output_count(&plan->recurrence));
    RUN(call, dr_reference_recurrence_backward(plan, &wide));
    return finish(&call);
}

/* ---- table ---------------------------------------------------------------------------------------------------------- */

static void describe(const dr_backend *backend, void (*line)(void *context, const char *text), void *context) {
    line(context, backend->storage == DR_BF16
                      ? "reference: double precision, vectors stored as BF16; the specification of rounding"
                      : "reference: double precision, vectors stored as F16; the specification of rounding");
}

/* An operation that is not named here cannot be asked for: it would take stored vectors for doubles. */
const dr_operations dr_reference_stored_operations = {
    .name = "reference",
    .dtype = DR_F64,
    .forms = true,
    .panels = 1,
    .allocate = dr_reference_allocate,
    .free = dr_host_free,
    .zero = dr_host_zero,
    .upload = dr_reference_upload,
    .download = dr_reference_download,
    .upload_as = upload_as,
    .download_as = download_as,
    .copy = dr_host_copy,
    .put = dr_host_copy,
    .get = dr_host_copy,
    .describe = describe,
    .close = dr_reference_close,
    .linear_forward = linear_forward,
    .linear_backward = linear_backward,
    .grouped_linear_forward = grouped_linear_forward,
    .grouped_linear_backward = grouped_linear_backward,
    .embedding_forward = dr_reference_embedding_forward,
    .embedding_backward = embedding_backward,
    .rms_norm_forward = rms_norm_forward,
    .rms_norm_backward = rms_norm_backward,
    .l2_norm_forward = l2_norm_forward,
    .l2_norm_backward = l2_norm_backward,
    .conv_forward = conv_forward,
    .conv_backward = conv_backward,
    .gate_forward = gate_forward,
    .gate_backward = gate_backward,
    .rotary = rotary,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .attention_append = dr_reference_attention_append,
    .layer_norm_forward = dr_reference_stored_layer_norm_forward,
    .layer_norm_backward = dr_reference_stored_layer_norm_backward,
    .sum_norm_forward = dr_reference_stored_sum_norm_forward,
    .sum_norm_backward = dr_reference_stored_sum_norm_backward,
    .token_shift_forward = dr_reference_stored_token_shift_forward,
    .token_shift_backward = dr_reference_stored_token_shift_backward,
    .blend_forward = dr_reference_stored_blend_forward,
    .blend_backward = dr_reference_stored_blend_backward,
    .bonus_forward = dr_reference_stored_bonus_forward,
    .bonus_backward = dr_reference_stored_bonus_backward,
    .depth_forward = dr_reference_stored_depth_forward,
    .depth_backward = dr_reference_stored_depth_backward,
    .apply_forward = dr_reference_stored_apply_forward,
    .apply_backward = dr_reference_stored_apply_backward,
    .gated_forward = dr_reference_stored_gated_forward,
    .gated_backward = dr_reference_stored_gated_backward,
    .bound_forward = dr_reference_stored_bound_forward,
    .bound_backward = dr_reference_stored_bound_backward,
    .route_forward = dr_reference_route_forward,
    .route_backward = dr_reference_route_backward,
    .balance = dr_reference_balance,
    .experts_sort = dr_reference_experts_sort,
    .experts_gather_forward = dr_reference_experts_gather_forward,
    .experts_gather_backward = dr_reference_stored_experts_gather_backward,
    .experts_linear_forward = dr_reference_stored_experts_linear_forward,
    .experts_linear_backward = dr_reference_stored_experts_linear_backward,
    .experts_combine_forward = dr_reference_stored_experts_combine_forward,
    .experts_combine_backward = dr_reference_stored_experts_combine_backward,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .swiglu_panel_forward = swiglu_panel_forward,
    .swiglu_panel_backward = swiglu_panel_backward,
    .add = add,
    .store_vectors = store_vectors,
    .scale_heads_forward = scale_heads_forward,
    .scale_heads_backward = scale_heads_backward,
    .copy_heads = dr_reference_stored_copy_heads,
    .rows_gather = dr_reference_rows_gather,
    .rows_scatter = dr_reference_rows_scatter,
    .cross_entropy = cross_entropy,
    .choose = choose,
    .sum_losses = dr_host_sum_losses,
    .sum_squares = dr_reference_sum_squares,
    .clip = dr_host_clip,
    .adamw = dr_reference_adamw,
    .momentum = momentum,
    .descend = descend,
    .recurrence_plan = dr_reference_recurrence_plan,
    .recurrence_forward = recurrence_forward,
    .recurrence_backward = recurrence_backward,
    .recurrence_decode = recurrence_decode,
    .recurrence_kernel = dr_reference_recurrence_kernel,
    .recurrence_path = dr_reference_recurrence_path,
};
