/* The nodes of a mixer: what each makes of its values, and the gradients of what it read from that of what it made. A backward
 * finds the values as the forward left them, but for the normed output, which it makes again unless that is kept. */
#include "base/error.h"
#include "nn/mixers/engine.h"
#include "nn/mixers/recurrent/recurrent.h"

/* ---- values --------------------------------------------------------------------------------------------------------- */

static const dr_operations *ops_of(const dr_node_call *n) {
    return n->call->backend->ops;
}

/* What is added to the square of a length. */
#define UNIT_EPS 1e-6

static void *own_of(const dr_node_call *n, int value) {
    return n->memory->at[value] || !n->scratch ? n->memory->at[value] : n->scratch->at[value];
}

/* The memory of a value; of columns of a panel, whose rows operations take with a stride, the first one. */
static void *memory_of(const dr_node_call *n, int value) {
    const dr_node_value *v = &n->mixer->value[value];
    if (v->panel == DR_NO_VALUE) return own_of(n, value);
    return (char *)n->memory->at[v->panel] + dr_kind_bytes(n->call->backend, v->kind, v->column);
}

static int64_t row_of(const dr_node_call *n, int value) {
    const int panel = n->mixer->value[value].panel;
    return panel == DR_NO_VALUE ? 0 : n->mixer->value[panel].columns;
}

static const void *read_of(const dr_node_call *n, int value) {
    const dr_node_value *v = &n->mixer->value[value];
    if (value == DR_VALUE_X) return n->x;
    if (v->parameter != DR_NO_PARAMETER) return dr_module_parameter(n->call, v->parameter);
    return v->constant ? v->constant : memory_of(n, value);
}

static void *write_of(const dr_node_call *n, int value) {
    return value == DR_VALUE_Y ? n->y : own_of(n, value);
}

static void *gradient_of(const dr_node_call *n, int value) {
    const int root = dr_gradient_of(n->mixer, value);
    if (root == DR_VALUE_X) return n->d_x;
    switch (n->mixer->value[root].place) {
    case DR_GRADIENT_NONE:
    case DR_GRADIENT_SHARED:
        return NULL;
    case DR_GRADIENT_OWN:
        return n->scratch->d[root];
    case DR_GRADIENT_NORMED:
        return n->scratch->y;
    case DR_GRADIENT_IN_PLACE:
        return memory_of(n, root);
    case DR_GRADIENT_BRIEF:
        return n->scratch->d_brief;
    case DR_GRADIENT_BRIEF_LOW:
        return n->scratch->d_low;
    case DR_GRADIENT_PARAMETER:
        return dr_module_gradient(n->call, n->mixer->value[root].parameter);
    }
    return NULL;
}

static int64_t rows_of(const dr_node_call *n, int value) {
    return n->mixer->value[value].of_rows ? n->call->layout.rows : 1;
}

static int64_t count_of(const dr_node_call *n, int value) {
    return rows_of(n, value) * n->mixer->value[value].columns;
}

static size_t bytes_of(const dr_node_call *n, int value) {
    return dr_kind_bytes(n->call->backend, n->mixer->value[value].kind, count_of(n, value));
}

/* ---- projections ---------------------------------------------------------------------------------------------------- */

static dr_linear linear_of(const dr_node_call *n, const dr_node *node) {
    return (dr_linear){.rows = n->call->layout.rows,
                       .in = n->mixer->value[node->from].columns,
                       .out = n->mixer->value[node->to].columns,
                       .members = node->members,
                       .columns = n->mixer->panel_columns,
                       .x_row = row_of(n, node->from)};
}

static dr_status linear_forward(const dr_node_call *n, const dr_node *node) {
    const dr_linear linear = linear_of(n, node);
    return ops_of(n)->linear_forward(n->call->backend, &linear, read_of(n, node->from), dr_module_weight(n->call, node->weight),
                                     dr_module_parameter(n->call, node->bias), write_of(n, node->to));
}

static dr_status linear_backward(const dr_node_call *n, const dr_node *node) {
    const dr_linear linear = linear_of(n, node);
    return ops_of(n)->linear_backward(n->call->backend, &linear, read_of(n, node->from),
                                      dr_module_weight(n->call, node->weight), gradient_of(n, node->to),
                                      gradient_of(n, node->from), node->accumulates, dr_module_gradient(n->call, node->weight),
                                      dr_module_gradient(n->call, node->bias));
}

const dr_node_operations dr_node_linear = {"linear", linear_forward, linear_backward};

/* one matrix a head */
static dr_grouped_linear grouped_of(const dr_node_call *n, const dr_node *node) {
    return (dr_grouped_linear){.rows = n->call->layout.rows,
                               .groups = node->heads,
                               .in = n->mixer->value[node->from].columns / node->heads,
                               .out = node->dim,
                               .x_row = row_of(n, node->from)};
}

static dr_status grouped_linear_forward(const dr_node_call *n, const dr_node *node) {
    const dr_grouped_linear linear = grouped_of(n, node);
    return ops_of(n)->grouped_linear_forward(n->call->backend, &linear, read_of(n, node->from),
                                             dr_module_weight(n->call, node->weight), write_of(n, node->to));
}

static dr_status grouped_linear_backward(const dr_node_call *n, const dr_node *node) {
    const dr_grouped_linear linear = grouped_of(n, node);
    return ops_of(n)->grouped_linear_backward(n->call->backend, &linear, read_of(n, node->from),
                                              dr_module_weight(n->call, node->weight), gradient_of(n, node->to),
                                              gradient_of(n, node->from), dr_module_gradient(n->call, node->weight));
}

const dr_node_operations dr_node_grouped_linear = {"grouped_linear", grouped_linear_forward, grouped_linear_backward};

/* ---- maps of a projection ------------------------------------------------------------------------------------------- */

static dr_conv conv_of(const dr_node_call *n, const dr_node *node) {
    return (dr_conv){.layout = n->call->layout,
                     .channels = node->heads * node->dim,
                     .width = n->mixer->is.conv_size,
                     .activation = node->activated ? DR_ACTIVATION_SILU : DR_ACTIVATION_NONE,
                     .x_row = row_of(n, node->from),
                     .unit = node->divides ? node->dim : 0,
                     .eps = UNIT_EPS};
}

static dr_status conv_forward(const dr_node_call *n, const dr_node *node) {
    const dr_conv conv = conv_of(n, node);
    void *carried = n->state ? n->state->conv[node->conv] : NULL;
    return ops_of(n)->conv_forward(n->call->backend, &conv, read_of(n, node->from), dr_module_parameter(n->call, node->weight),
                                   dr_module_parameter(n->call, node->bias), carried, write_of(n, node->to), carried);
}

static dr_status conv_backward(const dr_node_call *n, const dr_node *node) {
    const dr_conv conv = conv_of(n, node);
    return ops_of(n)->conv_backward(n->call->backend, &conv, read_of(n, node->from), dr_module_parameter(n->call, node->weight),
                                    dr_module_parameter(n->call, node->bias), NULL, gradient_of(n, node->to),
                                    gradient_of(n, node->from), dr_module_gradient(n->call, node->weight),
                                    dr_module_gradient(n->call, node->bias));
}

const dr_node_operations dr_node_conv = {"conv", conv_forward, conv_backward};

/* weight and bias: A_log and dt_bias, or what the kind of gate has in their place */
static dr_gate gate_of(const dr_node_call *n, const dr_node *node) {
    dr_gate gate = node->gate;
    gate.from = n->mixer->value[node->from].kind;
    gate.to = n->mixer->value[node->to].kind;
    gate.rows = count_of(n, node->from) / (gate.heads * gate.dim);
    gate.x_row = row_of(n, node->from);
    return gate;
}

static dr_status gate_forward(const dr_node_call *n, const dr_node *node) {
    const dr_gate gate = gate_of(n, node);
    return ops_of(n)->gate_forward(n->call->backend, &gate, read_of(n, node->from), dr_module_parameter(n->call, node->weight),
                                   dr_module_parameter(n->call, node->bias), write_of(n, node->to));
}

static dr_status gate_backward(const dr_node_call *n, const dr_node *node) {
    const dr_gate gate = gate_of(n, node);
    return ops_of(n)->gate_backward(n->call->backend, &gate, read_of(n, node->from), dr_module_parameter(n->call, node->weight),
                                    dr_module_parameter(n->call, node->bias), gradient_of(n, node->to),
                                    gradient_of(n, node->from), node->accumulates, dr_module_gradient(n->call, node->weight),
                                    dr_module_gradient(n->call, node->bias));
}

const dr_node_operations dr_node_gate = {"gate", gate_forward, gate_backward};

static dr_status function_forward(const dr_node_call *n, const dr_node *node) {
    return ops_of(n)->apply_forward(n->call->backend, node->function, count_of(n, node->to), read_of(n, node->from),
                                    write_of(n, node->to));
}

static dr_status function_backward(const dr_node_call *n, const dr_node *node) {
    return ops_of(n)->apply_backward(n->call->backend, node->function, count_of(n, node->to), read_of(n, node->from),
                                     gradient_of(n, node->to), gradient_of(n, node->from));
}

const dr_node_operations dr_node_function = {"function", function_forward, function_backward};

static dr_l2_norm unit_of(const dr_node_call *n, const dr_node *node) {
    return (dr_l2_norm){n->call->layout.rows * node->heads, node->dim, UNIT_EPS};
}

static dr_status unit_forward(const dr_node_call *n, const dr_node *node) {
    const dr_l2_norm norm = unit_of(n, node);
    return ops_of(n)->l2_norm_forward(n->call->backend, &norm, read_of(n, node->from), write_of(n, node->to));
}

static dr_status unit_backward(const dr_node_call *n, const dr_node *node) {
    const dr_l2_norm norm = unit_of(n, node);
    return ops_of(n)->l2_norm_backward(n->call->backend, &norm, read_of(n, node->from), gradient_of(n, node->to),
                                       gradient_of(n, node->from));
}

const dr_node_operations dr_node_unit = {"unit", unit_forward, unit_backward};

static dr_status sum_forward(const dr_node_call *n, const dr_node *node) {
    return ops_of(n)->sum_norm_forward(n->call->backend, n->call->layout.rows * node->heads, node->dim, read_of(n, node->from),
                                       write_of(n, node->to));
}

static dr_status sum_backward(const dr_node_call *n, const dr_node *node) {
    return ops_of(n)->sum_norm_backward(n->call->backend, n->call->layout.rows * node->heads, node->dim, read_of(n, node->from),
                                        gradient_of(n, node->to), gradient_of(n, node->from));
}

const dr_node_operations dr_node_sum = {"sum", sum_forward, sum_backward};

/* in place */
static dr_rotary rotary_of(const dr_node_call *n, const dr_node *node) {
    return (dr_rotary){.layout = n->call->layout,
                       .heads = node->heads,
                       .size = node->dim,
                       .row = node->heads * node->dim,
                       .dim = node->dim,
                       .factor = n->mixer->rotary_factor,
                       .frequencies = n->mixer->frequencies,
                       .offset = n->call->seen};
}

static dr_status rotary_forward(const dr_node_call *n, const dr_node *node) {
    const dr_rotary rotary = rotary_of(n, node);
    return ops_of(n)->rotary(n->call->backend, &rotary, write_of(n, node->to), false);
}

static dr_status rotary_backward(const dr_node_call *n, const dr_node *node) {
    const dr_rotary rotary = rotary_of(n, node);
    return ops_of(n)->rotary(n->call->backend, &rotary, gradient_of(n, node->to), true);
}

const dr_node_operations dr_node_rotary = {"rotary", rotary_forward, rotary_backward};

/* ---- couplings ------------------------------------------------------------------------------------------------------ */

/* to = with from, each head by a factor of its own: `with` is [rows, heads], or [heads] for all rows. adds: to += that. */
static dr_status scale_forward(const dr_node_call *n, const dr_node *node) {
    const bool shared = !n->mixer->value[node->with].of_rows;
    return ops_of(n)->scale_heads_forward(n->call->backend, n->call->layout.rows, node->heads, node->dim, shared,
                                          read_of(n, node->with), read_of(n, node->from), write_of(n, node->to), node->adds);
}

static dr_status scale_backward(const dr_node_call *n, const dr_node *node) {
    const dr_node_value *factor = &n->mixer->value[node->with];
    void *d_factor = gradient_of(n, node->with);
    if (!factor->of_rows && factor->place != DR_GRADIENT_PARAMETER)
        ops_of(n)->zero(n->call->backend, d_factor, bytes_of(n, node->with));
    return ops_of(n)->scale_heads_backward(n->call->backend, n->call->layout.rows, node->heads, node->dim, !factor->of_rows,
                                           read_of(n, node->with), read_of(n, node->from), gradient_of(n, node->to), d_factor,
                                           gradient_of(n, node->from), node->accumulates);
}

const dr_node_operations dr_node_scale = {"scale", scale_forward, scale_backward};

/* to = from + factor with, in place */
static dr_status add_forward(const dr_node_call *n, const dr_node *node) {
    return ops_of(n)->add(n->call->backend, n->mixer->value[node->to].kind, count_of(n, node->to), node->factor,
                          read_of(n, node->with), write_of(n, node->to));
}

static dr_status add_backward(const dr_node_call *n, const dr_node *node) {
    void *d = gradient_of(n, node->with);
    if (!d) return DR_OK;
    ops_of(n)->zero(n->call->backend, d, bytes_of(n, node->with));
    return ops_of(n)->add(n->call->backend, n->mixer->value[node->to].kind, count_of(n, node->to), node->factor,
                          gradient_of(n, node->to), d);
}

const dr_node_operations dr_node_add = {"add", add_forward, add_backward};

/* The same number everywhere: twice its value times sigmoid(0). */
static dr_status fill_forward(const dr_node_call *n, const dr_node *node) {
    const dr_gate gate = {.kind = DR_GATE_SIGMOID,
                          .rows = count_of(n, node->to),
                          .heads = 1,
                          .dim = 1,
                          .multiplier = 2 * node->factor,
                          .from = DR_NUMBER,
                          .to = DR_NUMBER};
    void *to = write_of(n, node->to);
    ops_of(n)->zero(n->call->backend, to, bytes_of(n, node->to));
    return ops_of(n)->gate_forward(n->call->backend, &gate, to, NULL, NULL, to);
}

const dr_node_operations dr_node_fill = {"fill", fill_forward, NULL};

/* A parameter that the recurrence reads as it is: the engine overwrites gradients, those of parameters are added to. */
static dr_status read_forward(const dr_node_call *n, const dr_node *node) {
    (void)n, (void)node;
    return DR_OK;
}

static dr_status read_backward(const dr_node_call *n, const dr_node *node) {
    return ops_of(n)->add(n->call->backend, DR_NUMBER, count_of(n, node->from), 1, gradient_of(n, node->to),
                          gradient_of(n, node->from));
}

const dr_node_operations dr_node_read = {"read", read_forward, read_backward};

/* ---- recurrence and output ------------------------------------------------------------------------------------------ */

dr_inputs dr_node_inputs(const dr_node_call *n) {
    dr_inputs inputs = {{NULL}};
    for (int i = 0; i < DR_INPUTS; i++)
        if (n->mixer->input[i] != DR_NO_VALUE) inputs.at[i] = read_of(n, n->mixer->input[i]);
    return inputs;
}

static void *saved_of(const dr_node_call *n) {
    return n->memory->saved ? n->memory->saved : n->scratch->saved;
}

static dr_status recurrence_forward(const dr_node_call *n, const dr_node *node) {
    const dr_inputs inputs = dr_node_inputs(n);
    return dr_engine_forward(n->call, &inputs, saved_of(n), n->scratch->workspace, n->state ? n->state->at : NULL,
                             write_of(n, node->to));
}

static dr_status recurrence_backward(const dr_node_call *n, const dr_node *node) {
    const dr_inputs inputs = dr_node_inputs(n);
    dr_input_gradients gradients = {{NULL}};
    for (int i = 0; i < DR_INPUTS; i++)
        if (n->mixer->input[i] != DR_NO_VALUE) gradients.at[i] = gradient_of(n, n->mixer->input[i]);
    if (n->scratch->saved) DR_TRY(recurrence_forward(n, node)); /* its output is the same again, and not read any more */
    return dr_engine_backward(n->call, &inputs, saved_of(n), n->scratch->workspace, gradient_of(n, node->to), &gradients);
}

const dr_node_operations dr_node_recurrence = {"recurrence", recurrence_forward, recurrence_backward};

/* y = weight norm(from), gated by `with` if there is one. bias: the norm's weight, a parameter. */
static dr_rms_norm norm_of(const dr_node_call *n, const dr_node *node) {
    dr_rms_norm norm = node->norm;
    norm.rows = count_of(n, node->from) / norm.dim;
    if (node->with != DR_NO_VALUE) norm.gate_row = row_of(n, node->with);
    norm.gate_vectors = n->mixer->value[node->from].columns / norm.dim;
    return norm;
}

/* What the output's product reads. */
static void *normed_of(const dr_node_call *n) {
    return n->memory->y ? n->memory->y : n->scratch->y;
}

static dr_status norm_output(const dr_node_call *n, const dr_node *node) {
    const dr_rms_norm norm = norm_of(n, node);
    return ops_of(n)->rms_norm_forward(n->call->backend, &norm, read_of(n, node->from),
                                       dr_module_parameter(n->call, node->bias),
                                       node->with != DR_NO_VALUE ? read_of(n, node->with) : NULL, normed_of(n));
}

static dr_status output_forward(const dr_node_call *n, const dr_node *node) {
    dr_linear linear = linear_of(n, node);
    linear.plus = n->call->plus;
    DR_TRY(norm_output(n, node));
    return ops_of(n)->linear_forward(n->call->backend, &linear, normed_of(n), dr_module_weight(n->call, node->weight), NULL,
                                     write_of(n, node->to));
}

static dr_status output_backward(const dr_node_call *n, const dr_node *node) {
    const dr_linear linear = linear_of(n, node);
    const dr_rms_norm norm = norm_of(n, node);
    const bool gated = node->with != DR_NO_VALUE;
    if (!n->memory->y) DR_TRY(norm_output(n, node));
    DR_TRY(ops_of(n)->linear_backward(n->call->backend, &linear, normed_of(n), dr_module_weight(n->call, node->weight), n->d_y,
                                      n->scratch->d_y, false, dr_module_gradient(n->call, node->weight), NULL));
    return ops_of(n)->rms_norm_backward(n->call->backend, &norm, read_of(n, node->from),
                                        dr_module_parameter(n->call, node->bias), gated ? read_of(n, node->with) : NULL,
                                        n->scratch->d_y, gradient_of(n, node->from), false,
                                        dr_module_gradient(n->call, node->bias), gated ? gradient_of(n, node->with) : NULL);
}

const dr_node_operations dr_node_output = {"output", output_forward, output_backward};
