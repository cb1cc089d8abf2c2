/* What the recurrence reads is made of what the caller gave, and gradients go back, element by element in double:
 *
 *     query, key   y = x / sqrt(x . x + eps)               d_x = (d_y - y (y . d_y)) / sqrt(x . x + eps)
 *     beta         factor sg(x)                            d_x = d factor sg(x) sg(-x)
 *     log_decay    u = x + dt_bias, r = exp(A_log):
 *                  -r sp(u)                                d_u = -d r sg(u)              d_A_log = -d r sp(u)
 *                  l sg(r u)                               d_u = d l r sg(ru) sg(-ru)    d_A_log = u d_u
 *
 * Types of 16 bits are rounded once, to the nearest. Where the gradient d of a log decay is 0, so are those behind it. */
#include "backends/reference/recurrence_forms.h"
#include "backends/reference/activation.h"
#include "base/half.h"
#include "base/memory.h"
#include "ops/forms.h"
#include "ops/shapes.h"
#include <string.h>

static double get(dr_dtype dtype, const void *tensor, int64_t at) {
    switch (dtype) {
    case DR_F64:
        return ((const double *)tensor)[at];
    case DR_BF16:
        return (double)dr_bf16_to_float(((const uint16_t *)tensor)[at]);
    case DR_F16:
        return (double)dr_f16_to_float(((const uint16_t *)tensor)[at]);
    default:
        return (double)((const float *)tensor)[at];
    }
}

static void put(dr_dtype dtype, double value, void *tensor, int64_t at) {
    switch (dtype) {
    case DR_F64:
        ((double *)tensor)[at] = value;
        break;
    case DR_BF16:
        ((uint16_t *)tensor)[at] = dr_bf16_from_double(value);
        break;
    case DR_F16:
        ((uint16_t *)tensor)[at] = dr_f16_from_double(value);
        break;
    default:
        ((float *)tensor)[at] = (float)value;
    }
}

/* An input of each token: [tokens][steps][heads][size], tokens being `token` elements apart in the caller's. */
typedef struct {
    dr_input input;
    dr_input_form form;
    int64_t tokens, rows, token, d_token; /* rows: of size elements, in all */
    dr_dtype dtype;
    bool made;
} tensor;

static tensor tensor_of(const dr_plan *plan, dr_input input) {
    const dr_recurrence *recurrence = &plan->recurrence;
    const dr_input_form form = dr_recurrence_input_form(recurrence, input);
    const int64_t tokens = form.per_row ? recurrence->layout.rows : 1;
    return (tensor){.input = input,
                    .form = form,
                    .tokens = tokens,
                    .rows = tokens * form.steps * form.heads,
                    .token = dr_forms_token(recurrence, input, plan->forms.pitch[input]),
                    .d_token = dr_forms_token(recurrence, input, plan->forms.gradient_pitch[input]),
                    .dtype = plan->forms.dtype[input],
                    .made = dr_forms_make(&plan->forms, input)};
}

/* The caller's first element of a row of the dense tensor, and the row's head. */
static int64_t element_of(const tensor *t, int64_t row, int64_t token) {
    const int64_t each = t->form.steps * t->form.heads;
    return row / each * token + row % each * t->form.size;
}

static int64_t head_of(const tensor *t, int64_t row) {
    return row % t->form.heads;
}

/* ---- log decays ------------------------------------------------------------------------------------------------------ */

typedef struct {
    double y, d_u, d_A_log; /* and its derivatives */
} decay_value;

static decay_value evaluate_decay(const dr_plan *plan, const dr_call *call, double x, int64_t head, int64_t d) {
    const double *A_log = call->A_log, *dt_bias = call->dt_bias, bound = plan->forms.lower_bound;
    const double rate = A_log ? exp(A_log[head]) : 1;
    const double u = x + (dt_bias ? dt_bias[head * dr_forms_bias_size(&plan->recurrence) + d] : 0);
    if (plan->forms.decay == DR_DECAY_FORM_SOFTPLUS)
        return (decay_value){-rate * softplus(u), -rate * sigmoid(u), -rate * softplus(u)};
    const double d_u = bound * rate * sigmoid_derivative(rate * u);
    return (decay_value){bound * sigmoid(rate * u), d_u, u * d_u};
}

/* ---- inputs ---------------------------------------------------------------------------------------------------------- */

static double root_of(const dr_plan *plan, const tensor *t, const double *x) {
    double squares = plan->forms.normalize_eps;
    for (int64_t d = 0; d < t->form.size; d++) squares += x[d] * x[d];
    return sqrt(squares);
}

static void make_row(const dr_plan *plan, const dr_call *call, const tensor *t, int64_t head, double *x) {
    const int64_t size = t->form.size;
    if (t->input == DR_INPUT_BETA) {
        x[0] = plan->forms.beta_factor * sigmoid(x[0]);
    } else if (t->input == DR_INPUT_LOG_DECAY) {
        for (int64_t d = 0; d < size; d++) x[d] = evaluate_decay(plan, call, x[d], head, d).y;
    } else {
        const double root = root_of(plan, t, x);
        for (int64_t d = 0; d < size; d++) x[d] /= root;
    }
}

static void unpack(const dr_plan *plan, const dr_call *call, const tensor *t, double *to) {
    const void *from = call->inputs->at[t->input];
    for (int64_t row = 0; row < t->rows; row++, to += t->form.size) {
        const int64_t at = element_of(t, row, t->token);
        for (int64_t d = 0; d < t->form.size; d++) to[d] = get(t->dtype, from, at + d);
        if (t->made) make_row(plan, call, t, head_of(t, row), to);
    }
}

/* ---- gradients ------------------------------------------------------------------------------------------------------- */

static void decay_row_back(const dr_plan *plan, const dr_call *call, const tensor *t, int64_t row, double *d_x) {
    const void *from = call->inputs->at[t->input];
    const int64_t size = t->form.size, head = head_of(t, row), at = element_of(t, row, t->token);
    double *d_A_log = call->d_A_log, *d_dt_bias = call->d_dt_bias;
    for (int64_t d = 0; d < size; d++) {
        const double dy = d_x[d];
        const decay_value value = evaluate_decay(plan, call, get(t->dtype, from, at + d), head, d);
        d_x[d] = dy == 0 ? 0 : dy * value.d_u;
        if (d_A_log && dy != 0) d_A_log[head] += dy * value.d_A_log;
        if (d_dt_bias) d_dt_bias[head * size + d] += d_x[d];
    }
}

static void norm_row_back(const dr_plan *plan, const dr_call *call, const tensor *t, int64_t row, double *d_x, double *x) {
    const void *from = call->inputs->at[t->input];
    const int64_t size = t->form.size, at = element_of(t, row, t->token);
    for (int64_t d = 0; d < size; d++) x[d] = get(t->dtype, from, at + d);
    const double root = root_of(plan, t, x);
    double along = 0;
    for (int64_t d = 0; d < size; d++) along += x[d] / root * d_x[d];
    for (int64_t d = 0; d < size; d++) d_x[d] = (d_x[d] - x[d] / root * along) / root;
}

/* The dense gradient, in place what the caller gave's, goes to the caller; scratch: a row. */
static void pack(const dr_plan *plan, const dr_call *call, const tensor *t, double *d_x, double *scratch) {
    void *to = call->d_inputs->at[t->input];
    const double slope = plan->forms.beta_factor;
    for (int64_t row = 0; row < t->rows; row++, d_x += t->form.size) {
        const int64_t at = element_of(t, row, t->d_token);
        if (t->made && t->input == DR_INPUT_LOG_DECAY)
            decay_row_back(plan, call, t, row, d_x);
        else if (t->made && t->input == DR_INPUT_BETA)
            d_x[0] *= slope * sigmoid_derivative(get(t->dtype, call->inputs->at[t->input], element_of(t, row, t->token)));
        else if (t->made)
            norm_row_back(plan, call, t, row, d_x, scratch);
        for (int64_t d = 0; to && d < t->form.size; d++) put(t->dtype, d_x[d], to, at + d);
    }
}

/* ---- calls ----------------------------------------------------------------------------------------------------------- */

static int64_t output_count(const dr_plan *plan) {
    return plan->recurrence.layout.rows * plan->recurrence.value_heads * plan->recurrence.value_size;
}

static bool wants_decay_parameters(const dr_call *call) {
    return call->d_A_log || call->d_dt_bias;
}

/* Parameters that all tokens share stay where they are: they are doubles already. */
static bool is_dense_already(const tensor *t) {
    return !t->form.per_row;
}

static double *take(dr_arena *arena, int64_t count) {
    return dr_arena_take(arena, (size_t)count * sizeof(double));
}

/* dense: what is laid, without the given call's other members */
static void lay(const dr_plan *plan, bool backward, dr_arena *arena, dr_reference_dense *dense) {
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dr_rule_uses(&plan->rule, (dr_input)i)) continue;
        const tensor t = tensor_of(plan, (dr_input)i);
        if (is_dense_already(&t)) continue;
        dense->inputs.at[i] = take(arena, t.rows * t.form.size);
        if (backward) dense->d_inputs.at[i] = take(arena, t.rows * t.form.size);
    }
    double *outputs = take(arena, output_count(plan));
    if (backward)
        dense->call.d_o = outputs;
    else
        dense->call.o = outputs;
}

size_t dr_reference_forms_bytes(const dr_plan *plan, bool backward) {
    dr_arena arena = {0};
    dr_reference_dense dense = {0};
    if (plan->formed) lay(plan, backward, &arena, &dense);
    return arena.used;
}

void dr_reference_forms_begin(const dr_plan *plan, const dr_call *given, bool backward, void *memory,
                              dr_reference_dense *dense) {
    dr_arena arena = {.block = memory};
    *dense = (dr_reference_dense){.call = *given};
    lay(plan, backward, &arena, dense);
    dense->call.inputs = &dense->inputs;
    dense->call.d_inputs = &dense->d_inputs;
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!given->inputs->at[i]) continue;
        const tensor t = tensor_of(plan, (dr_input)i);
        if (is_dense_already(&t)) {
            dense->inputs.at[i] = given->inputs->at[i];
            if (backward) dense->d_inputs.at[i] = given->d_inputs->at[i];
            continue;
        }
        unpack(plan, given, &t, (double *)dense->inputs.at[i]);
        const bool wanted = backward && (given->d_inputs->at[i] || (i == DR_INPUT_LOG_DECAY && wants_decay_parameters(given)));
        if (!wanted) dense->d_inputs.at[i] = NULL;
    }
    for (int64_t i = 0; backward && i < output_count(plan); i++)
        ((double *)dense->call.d_o)[i] = get(plan->forms.output, given->d_o, i);
}

void dr_reference_forms_keep(const dr_plan *plan, const dr_call *given, const dr_reference_dense *dense) {
    for (int64_t i = 0; given->slots && i < output_count(plan); i++)
        ((double *)dense->call.o)[i] = get(plan->forms.output, given->o, i);
}

static void zero(double *numbers, int64_t count) {
    if (numbers) memset(numbers, 0, (size_t)count * sizeof(double));
}

void dr_reference_forms_end(const dr_plan *plan, const dr_call *given, bool backward, const dr_reference_dense *dense) {
    const int64_t HV = plan->recurrence.value_heads;
    if (!backward) {
        for (int64_t i = 0; i < output_count(plan); i++)
            put(plan->forms.output, ((const double *)dense->call.o)[i], given->o, i);
        return;
    }
    zero(given->d_A_log, HV);
    zero(given->d_dt_bias, HV * dr_forms_bias_size(&plan->recurrence));
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dense->d_inputs.at[i]) continue;
        const tensor t = tensor_of(plan, (dr_input)i);
        /* the dense input is no longer needed: its first row is scratch */
        if (!is_dense_already(&t)) pack(plan, given, &t, dense->d_inputs.at[i], (double *)dense->inputs.at[i]);
    }
}
