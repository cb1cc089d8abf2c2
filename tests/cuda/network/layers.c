/* Cases of what works on rows and elements: products, norms, convolution, gates, heads, functions, sums. */
#include "calls.h"

#include <math.h>
#include <string.h>

#include "backends/reference/activation.h"

#define OPERATION(name) static dr_status name(const call *c, dr_backend *b, void *const at[])
#define CASE(name)      static void name(trials *t, int round)

/* ---- products ------------------------------------------------------------------------------------------------------------ */

OPERATION(linear) {
    dr_linear of = *(const dr_linear *)c->descriptor;
    of.plus = at[4];
    return b->ops->linear_forward(b, &of, column_of(b, DR_VECTOR, at[0], c->numbers[1]), at[1], at[2], at[3]);
}
OPERATION(linear_back) {
    void *const x = column_of(b, DR_VECTOR, at[0], c->numbers[1]), *const d_x = c->numbers[2] ? x : at[3];
    return b->ops->linear_backward(b, c->descriptor, x, at[1], at[2], d_x, c->numbers[0], at[4], at[5]);
}
OPERATION(grouped) {
    return b->ops->grouped_linear_forward(b, c->descriptor, column_of(b, DR_VECTOR, at[0], c->numbers[1]), at[1], at[2]);
}
OPERATION(grouped_back) {
    void *const x = column_of(b, DR_VECTOR, at[0], c->numbers[1]), *const d_x = c->numbers[2] ? x : at[3];
    return b->ops->grouped_linear_backward(b, c->descriptor, x, at[1], at[2], d_x, at[4]);
}

CASE(products) {
    dr_linear l = {.rows = draw_between(t, 0, 70), .in = draw_width(t, 128), .out = draw_width(t, 128)};
    dr_grouped_linear g = {
        .rows = draw_between(t, 1, 40), .groups = draw_between(t, 1, 4), .in = draw_width(t, 64), .out = draw_width(t, 64)};
    const columns_drawn one = draw_columns(t, l.in), many = draw_columns(t, g.groups * g.in);
    l.x_row = one.row, g.x_row = many.row;
    const int64_t l_row = dr_linear_pitch(&l), g_row = dr_grouped_linear_pitch(&g);
    const bool l_in_place = l.x_row > 0, g_in_place = g.x_row > 0, add = !l_in_place && round % 2;
    check_call(t, &(call){.name = "linear",
                          .descriptor = &l,
                          .numbers = {0, one.column},
                          .tensors = {draw_vectors(t, "x", READ, l.rows, l_row), draw_vectors(t, "weight", READ, l.out, l.in),
                                      perhaps(t, draw_numbers(t, "bias", READ, 1, l.out)),
                                      draw_vectors(t, "y", WRITTEN, l.rows, l.out),
                                      perhaps(t, draw_vectors(t, "plus", READ, l.rows, l.out))},
                          .run = linear});
    tensor d_x = perhaps(t, draw_vectors(t, "d_x", add ? ADDED : WRITTEN, l.rows, l.in));
    if (l_in_place) d_x.values = NULL;
    check_call(t, &(call){.name = "linear_back",
                          .descriptor = &l,
                          .numbers = {add, one.column, l_in_place},
                          .tolerance = backward_tolerance,
                          .tensors = {draw_vectors(t, "x", l_in_place ? ADDED : READ, l.rows, l_row),
                                      draw_vectors(t, "weight", READ, l.out, l.in), draw_vectors(t, "d_y", READ, l.rows, l.out),
                                      d_x, perhaps(t, draw_numbers(t, "d_weight", ADDED, l.out, l.in)),
                                      perhaps(t, draw_numbers(t, "d_bias", ADDED, 1, l.out))},
                          .run = linear_back});
    check_call(t, &(call){.name = "grouped_linear",
                          .descriptor = &g,
                          .numbers = {0, many.column},
                          .tensors = {draw_vectors(t, "x", READ, g.rows, g_row),
                                      draw_vectors(t, "weight", READ, g.groups * g.out, g.in),
                                      draw_vectors(t, "y", WRITTEN, g.rows, g.groups * g.out)},
                          .run = grouped});
    d_x = perhaps(t, draw_vectors(t, "d_x", WRITTEN, g.rows, g.groups * g.in));
    if (g_in_place) d_x.values = NULL;
    check_call(t, &(call){.name = "grouped_linear_back",
                          .descriptor = &g,
                          .numbers = {0, many.column, g_in_place},
                          .tolerance = backward_tolerance,
                          .tensors = {draw_vectors(t, "x", g_in_place ? ADDED : READ, g.rows, g_row),
                                      draw_vectors(t, "weight", READ, g.groups * g.out, g.in),
                                      draw_vectors(t, "d_y", READ, g.rows, g.groups * g.out), d_x,
                                      perhaps(t, draw_numbers(t, "d_weight", ADDED, g.groups * g.out, g.in))},
                          .run = grouped_back});
}

/* ---- norms --------------------------------------------------------------------------------------------------------------- */

OPERATION(rms) {
    void *const gate = column_of(b, DR_VECTOR, at[2], c->numbers[1]);
    return b->ops->rms_norm_forward(b, c->descriptor, at[0], at[1], gate, at[3]);
}
OPERATION(rms_back) {
    void *const gate = column_of(b, DR_VECTOR, at[2], c->numbers[1]), *const d_gate = c->numbers[2] ? gate : at[6];
    return b->ops->rms_norm_backward(b, c->descriptor, at[0], at[1], gate, at[3], at[4], c->numbers[0], at[5], d_gate);
}
OPERATION(layer_norm) {
    return b->ops->layer_norm_forward(b, c->descriptor, at[0], at[1], at[2], at[3]);
}
OPERATION(layer_norm_back) {
    return b->ops->layer_norm_backward(b, c->descriptor, at[0], at[1], at[2], at[3], c->numbers[0], at[4], at[5]);
}
OPERATION(l2) {
    return b->ops->l2_norm_forward(b, c->descriptor, at[0], at[1]);
}
OPERATION(l2_back) {
    return b->ops->l2_norm_backward(b, c->descriptor, at[0], at[1], at[2]);
}
OPERATION(sum_norm) {
    return b->ops->sum_norm_forward(b, c->numbers[0], c->numbers[1], at[0], at[1]);
}
OPERATION(sum_norm_back) {
    return b->ops->sum_norm_backward(b, c->numbers[0], c->numbers[1], at[0], at[1], at[2]);
}

/* What the backward takes the part along the normed vector from, [rows, dim]: of d_x, or of d_gate where the gate comes first.
 * Of narrow vectors little is left: of one element what eps makes of it. */
static double *terms_of(trials *t, const dr_rms_norm *n, const double *x, const double *weight, const double *gate,
                        const double *d_y, bool of_gate) {
    double *terms = draw_block(t, n->rows * n->dim, sizeof(double));
    for (int64_t r = 0; r < n->rows; r++) {
        const double *w = weight + (n->groups ? r % n->groups : 0) * n->dim;
        double squares = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t i = 0; i < n->dim; i++) {
                const int64_t at = r * n->dim + i;
                const double a = gate ? activation(n->gate, gate[at]) : 1, u = n->gate_first ? x[at] * a : x[at];
                const double by = of_gate ? x[at] * activation_derivative(n->gate, gate[at]) : n->gate_first ? a : 1;
                if (pass == 0) squares += u * u / (double)n->dim;
                terms[at] = d_y[at] * (w[i] + n->weight_offset) * (n->gate_first ? 1 : a) * by / sqrt(squares + n->eps);
            }
    }
    return terms;
}

/* Likewise of the L2 norm. */
static double *terms_of_l2(trials *t, const dr_l2_norm *n, const double *x, const double *d_y) {
    double *terms = draw_block(t, n->rows * n->dim, sizeof(double));
    for (int64_t r = 0; r < n->rows; r++) {
        double squares = 0;
        for (int64_t i = r * n->dim; i < (r + 1) * n->dim; i++) squares += x[i] * x[i];
        for (int64_t i = r * n->dim; i < (r + 1) * n->dim; i++) terms[i] = d_y[i] / sqrt(squares + n->eps);
    }
    return terms;
}

static void check_rms_norm(trials *t, const dr_rms_norm *n, bool add) {
    const int64_t groups = n->groups ? n->groups : 1;
    tensor gate = draw_vectors(t, "gate", READ, n->rows, n->dim), d_gate = draw_vectors(t, "d_gate", WRITTEN, n->rows, n->dim);
    if (n->gate == DR_ACTIVATION_NONE) gate.values = d_gate.values = NULL;
    const tensor x = draw_vectors(t, "x", READ, n->rows, n->dim), weight = draw_numbers(t, "weight", READ, groups, n->dim),
                 d_y = draw_vectors(t, "d_y", READ, n->rows, n->dim);
    tensor d_x = perhaps(t, draw_vectors(t, "d_x", add ? ADDED : WRITTEN, n->rows, n->dim));
    d_x.terms = terms_of(t, n, x.values, weight.values, gate.values, d_y.values, false);
    if (n->gate_first && gate.values) d_gate.terms = terms_of(t, n, x.values, weight.values, gate.values, d_y.values, true);
    check_call(t, &(call){.name = "rms_norm",
                          .descriptor = n,
                          .tensors = {x, weight, gate, draw_vectors(t, "y", WRITTEN, n->rows, n->dim)},
                          .run = rms});
    check_call(t, &(call){.name = "rms_norm_back",
                          .descriptor = n,
                          .numbers = {add},
                          .tolerance = backward_tolerance,
                          .tensors = {x, weight, gate, d_y, d_x, perhaps(t, draw_numbers(t, "d_weight", ADDED, groups, n->dim)),
                                      d_gate},
                          .run = rms_back});
}

CASE(rms_norms) {
    const int64_t groups = round % 4 == 3 ? draw_between(t, 2, 4) : 1;
    const bool many = round == 2; /* more than blocks that stay take at once */
    const int64_t few = draw_between(t, round == 0 ? 0 : 1, 150), wide = draw_flip(t) ? 8 * draw_between(t, 1, 130) : 0;
    const dr_rms_norm n = {.rows = groups * (many ? 4200 : few),
                           .dim = round == 1 ? 1024
                                  : many     ? 256
                                  : wide     ? wide
                                             : draw_width(t, 256),
                           .eps = 1e-6,
                           .gate = (dr_activation)(round % 3),
                           .gate_first = draw_flip(t),
                           .groups = groups > 1 ? groups : 0,
                           .weight_offset = draw_flip(t) ? 1 : 0};
    check_rms_norm(t, &n, round % 2);
}

/* The gate in columns of a panel, over which its gradient is written. */
CASE(panel_norms) {
    const bool add = round % 2;
    const int64_t vectors = draw_between(t, 1, 4), dim = round % 3 == 0 ? draw_width(t, 128) : 8 * draw_between(t, 1, 32);
    columns_drawn panel = draw_columns(t, vectors * dim);
    while (panel.row == 0) panel = draw_columns(t, vectors * dim);
    const int64_t tokens = draw_between(t, 1, round == 1 ? 1200 : 50), rows = tokens * vectors;
    const dr_rms_norm n = {.rows = rows,
                           .dim = dim,
                           .eps = 1e-6,
                           .gate = draw_flip(t) ? DR_ACTIVATION_SILU : DR_ACTIVATION_SIGMOID,
                           .gate_row = panel.row,
                           .gate_vectors = vectors};
    check_call(t,
               &(call){.name = "rms_norm of a panel",
                       .descriptor = &n,
                       .numbers = {0, panel.column},
                       .tensors = {draw_vectors(t, "x", READ, rows, dim), draw_numbers(t, "weight", READ, 1, dim),
                                   draw_vectors(t, "gate", READ, tokens, panel.row), draw_vectors(t, "y", WRITTEN, rows, dim)},
                       .run = rms});
    const tensor x = draw_vectors(t, "x", READ, rows, dim), weight = draw_numbers(t, "weight", READ, 1, dim),
                 d_y = draw_vectors(t, "d_y", READ, rows, dim), gate = draw_vectors(t, "gate", ADDED, tokens, panel.row);
    double *dense = draw_block(t, rows * dim, sizeof(double));
    for (int64_t r = 0; r < rows; r++)
        memcpy(dense + r * dim, (double *)gate.values + panel.column + dr_rms_norm_gate_at(&n, r),
               (size_t)dim * sizeof(double));
    tensor d_x = perhaps(t, draw_vectors(t, "d_x", add ? ADDED : WRITTEN, rows, dim));
    d_x.terms = terms_of(t, &n, x.values, weight.values, dense, d_y.values, false);
    check_call(t, &(call){.name = "rms_norm_back of a panel",
                          .descriptor = &n,
                          .numbers = {add, panel.column, true},
                          .tolerance = backward_tolerance,
                          .tensors = {x, weight, gate, d_y, d_x, perhaps(t, draw_numbers(t, "d_weight", ADDED, 1, dim))},
                          .run = rms_back});
}

/* Many vectors of few elements, the gate before the norm and after it. */
CASE(narrow_norms) {
    static const int64_t widths[] = {1, 3, 7, 24, 120};
    for (int i = 0; i < 5; i++) {
        const dr_rms_norm n = {.rows = widths[i] < 120 ? 4200 : 700,
                               .dim = widths[i],
                               .eps = 1e-6,
                               .gate = (dr_activation)((round + i + 2) % 3),
                               .gate_first = round / 3 % 2 == 0};
        check_rms_norm(t, &n, round % 2);
    }
}

CASE(other_norms) {
    const bool add = round % 2;
    const dr_layer_norm n = {draw_between(t, 1, 40), draw_between(t, 1, 3), 1 + draw_width(t, 255), 1e-5};
    const dr_l2_norm l = {draw_between(t, 0, 100), draw_width(t, 256), 1e-6};
    const int64_t row = n.groups * n.dim;
    tensor positive = draw_vectors(t, "x", READ, l.rows, l.dim);
    double *values = positive.values;
    for (int64_t i = 0; i < positive.count; i++) values[i] = values[i] < 0 ? -values[i] : values[i];
    check_call(
        t, &(call){.name = "layer_norm",
                   .descriptor = &n,
                   .tensors = {draw_vectors(t, "x", READ, n.rows, row), draw_numbers(t, "weight", READ, 1, row),
                               perhaps(t, draw_numbers(t, "bias", READ, 1, row)), draw_vectors(t, "y", WRITTEN, n.rows, row)},
                   .run = layer_norm});
    check_call(t, &(call){.name = "layer_norm_back",
                          .descriptor = &n,
                          .numbers = {add},
                          .tolerance = backward_tolerance,
                          .tensors = {draw_vectors(t, "x", READ, n.rows, row), draw_numbers(t, "weight", READ, 1, row),
                                      draw_vectors(t, "d_y", READ, n.rows, row),
                                      perhaps(t, draw_vectors(t, "d_x", add ? ADDED : WRITTEN, n.rows, row)),
                                      perhaps(t, draw_numbers(t, "d_weight", ADDED, 1, row)),
                                      perhaps(t, draw_numbers(t, "d_bias", ADDED, 1, row))},
                          .run = layer_norm_back});
    check_call(t, &(call){.name = "l2_norm",
                          .descriptor = &l,
                          .tensors = {draw_vectors(t, "x", READ, l.rows, l.dim), draw_vectors(t, "y", WRITTEN, l.rows, l.dim)},
                          .run = l2});
    const tensor x = draw_vectors(t, "x", READ, l.rows, l.dim), d_y = draw_vectors(t, "d_y", READ, l.rows, l.dim);
    tensor d_x = draw_vectors(t, "d_x", WRITTEN, l.rows, l.dim);
    d_x.terms = terms_of_l2(t, &l, x.values, d_y.values);
    check_call(t, &(call){.name = "l2_norm_back",
                          .descriptor = &l,
                          .tolerance = backward_tolerance,
                          .tensors = {x, d_y, d_x},
                          .run = l2_back});
    check_call(t, &(call){.name = "sum_norm",
                          .numbers = {l.rows, l.dim},
                          .tensors = {positive, draw_vectors(t, "y", WRITTEN, l.rows, l.dim)},
                          .run = sum_norm});
    if (l.dim > 1) /* of one element the gradient is nothing, with which no error can be compared */
        check_call(t, &(call){.name = "sum_norm_back",
                              .numbers = {l.rows, l.dim},
                              .tolerance = backward_tolerance,
                              .tensors = {positive, draw_vectors(t, "d_y", READ, l.rows, l.dim),
                                          draw_vectors(t, "d_x", WRITTEN, l.rows, l.dim)},
                              .run = sum_norm_back});
}

/* ---- convolution and token shift ----------------------------------------------------------------------------------------- */

OPERATION(conv) {
    dr_conv of = *(const dr_conv *)c->descriptor;
    of.layout = placed_layout(&of.layout, at[0]);
    return b->ops->conv_forward(b, &of, column_of(b, DR_VECTOR, at[1], c->numbers[0]), at[2], at[3], at[4], at[5], at[6]);
}
OPERATION(conv_back) {
    dr_conv of = *(const dr_conv *)c->descriptor;
    of.layout = placed_layout(&of.layout, at[0]);
    void *const x = column_of(b, DR_VECTOR, at[1], c->numbers[0]), *const d_x = c->numbers[1] ? x : at[6];
    return b->ops->conv_backward(b, &of, x, at[2], at[3], at[4], at[5], d_x, at[7], at[8]);
}

CASE(convolutions) {
    dr_conv n = {.layout = draw_layout(t, round == 0 ? 5 : 90),
                 .channels = round == 1 ? 256 : draw_width(t, 128),
                 .width = round % 3 ? 4 : draw_between(t, 1, 8),
                 .activation = (dr_activation)(round % 2)};
    if (round % 3 && draw_flip(t)) { /* vectors of it are divided by their lengths */
        n.unit = draw_unit(t, round), n.channels = n.unit * draw_between(t, 1, 3);
        n.eps = 1e-6;
    }
    const columns_drawn panel = draw_columns(t, n.channels);
    n.x_row = n.unit > 0 ? panel.row / 8 * 8 + 8 * (panel.row % 8 > 0) : panel.row;
    const int64_t rows = n.layout.rows, row = n.channels, x_row = dr_conv_pitch(&n), kept = n.layout.sequences * (n.width - 1);
    check_call(
        t,
        &(call){.name = "conv",
                .descriptor = &n,
                .numbers = {panel.column},
                .aligned = n.unit > 0,
                .tensors = {boundaries_of(&n.layout), draw_vectors(t, "x", READ, rows, x_row),
                            draw_numbers(t, "weight", READ, row, n.width), perhaps(t, draw_numbers(t, "bias", READ, 1, row)),
                            perhaps(t, draw_numbers(t, "initial", READ, kept, row)), draw_vectors(t, "y", WRITTEN, rows, row),
                            perhaps(t, draw_numbers(t, "final", WRITTEN, kept, row))},
                .run = conv});
    const bool in_place = n.x_row > 0; /* as the gradient of a panel */
    tensor d_x = perhaps(t, draw_vectors(t, "d_x", WRITTEN, rows, row));
    if (in_place) d_x.values = NULL;
    check_call(
        t, &(call){.name = "conv_back",
                   .descriptor = &n,
                   .numbers = {panel.column, in_place},
                   .aligned = n.unit > 0,
                   .tolerance = backward_tolerance,
                   .tensors = {boundaries_of(&n.layout), draw_vectors(t, "x", in_place ? ADDED : READ, rows, x_row),
                               draw_numbers(t, "weight", READ, row, n.width), perhaps(t, draw_numbers(t, "bias", READ, 1, row)),
                               perhaps(t, draw_numbers(t, "initial", READ, kept, row)), draw_vectors(t, "d_y", READ, rows, row),
                               d_x, perhaps(t, draw_numbers(t, "d_weight", ADDED, row, n.width)),
                               perhaps(t, draw_numbers(t, "d_bias", ADDED, 1, row))},
                   .run = conv_back});
}

OPERATION(shift) {
    dr_token_shift of = *(const dr_token_shift *)c->descriptor;
    of.layout = placed_layout(&of.layout, at[0]);
    return b->ops->token_shift_forward(b, &of, at[1], at[2], at[3], at[4], at[5]);
}
OPERATION(shift_back) {
    dr_token_shift of = *(const dr_token_shift *)c->descriptor;
    of.layout = placed_layout(&of.layout, at[0]);
    return b->ops->token_shift_backward(b, &of, at[1], at[2], at[3], at[4], at[5], c->numbers[0], at[6]);
}

CASE(shifts) {
    const bool add = round % 2;
    const dr_token_shift n = {draw_layout(t, 20), draw_width(t, 64), draw_between(t, 1, 6)};
    const int64_t rows = n.layout.rows, states = n.layout.sequences;
    check_call(t, &(call){.name = "token_shift",
                          .descriptor = &n,
                          .tensors = {boundaries_of(&n.layout), draw_vectors(t, "x", READ, rows, n.dim),
                                      draw_numbers(t, "factors", READ, n.mixes, n.dim),
                                      perhaps(t, draw_numbers(t, "initial", READ, states, n.dim)),
                                      draw_vectors(t, "y", WRITTEN, n.mixes * rows, n.dim),
                                      perhaps(t, draw_numbers(t, "final", WRITTEN, states, n.dim))},
                          .run = shift});
    check_call(t, &(call){.name = "token_shift_back",
                          .descriptor = &n,
                          .numbers = {add},
                          .tolerance = backward_tolerance,
                          .tensors = {boundaries_of(&n.layout), draw_vectors(t, "x", READ, rows, n.dim),
                                      draw_numbers(t, "factors", READ, n.mixes, n.dim),
                                      perhaps(t, draw_numbers(t, "initial", READ, states, n.dim)),
                                      draw_vectors(t, "d_y", READ, n.mixes * rows, n.dim),
                                      perhaps(t, draw_vectors(t, "d_x", add ? ADDED : WRITTEN, rows, n.dim)),
                                      perhaps(t, draw_numbers(t, "d_factors", ADDED, n.mixes, n.dim))},
                          .run = shift_back});
}

/* ---- gates --------------------------------------------------------------------------------------------------------------- */

OPERATION(gate) {
    const dr_gate *of = c->descriptor;
    return b->ops->gate_forward(b, of, column_of(b, of->from, at[0], c->numbers[1]), at[1], at[2], at[3]);
}
OPERATION(gate_back) {
    const dr_gate *of = c->descriptor;
    void *const x = column_of(b, of->from, at[0], c->numbers[1]), *const d_x = c->numbers[2] ? x : at[4];
    return b->ops->gate_backward(b, of, x, at[1], at[2], at[3], d_x, c->numbers[0], at[5], at[6]);
}

static tensor of_kind(trials *t, dr_kind kind, const char *name, role is, int64_t rows, int64_t row) {
    return kind == DR_VECTOR ? draw_vectors(t, name, is, rows, row) : draw_numbers(t, name, is, rows, row);
}

CASE(gates) {
    for (int kind = DR_GATE_SIGMOID; kind <= DR_GATE_IDENTITY; kind++) {
        const bool bounded = kind == DR_GATE_KDA_BOUNDED || kind == DR_GATE_EDA_BOUNDED;
        const bool decays = bounded || kind == DR_GATE_LOG_DECAY;
        dr_gate g = {.kind = (dr_gate_kind)kind,
                     .rows = draw_between(t, round == 0 ? 0 : 1, 100),
                     .heads = draw_between(t, 1, 4),
                     .dim = draw_flip(t) ? 1 : draw_width(t, 64),
                     .multiplier = kind == DR_GATE_LOG_SIGMOID ? 1.0 / 16 : 2,
                     .shift = draw_flip(t) ? 0.5 : 0,
                     .lower_bound = bounded          ? -5
                                    : round % 3 == 2 ? 0.2
                                                     : 0,
                     .upper_bound = !bounded && round % 3 == 2 ? 1.5 : 0,
                     .a_log_per_channel = draw_flip(t),
                     .from = draw_flip(t) ? DR_VECTOR : DR_NUMBER,
                     .to = draw_flip(t) ? DR_VECTOR : DR_NUMBER};
        const columns_drawn panel = draw_columns(t, g.heads * g.dim);
        g.x_row = panel.row;
        const bool in_place = g.x_row > 0, add = !in_place && draw_flip(t);
        const int64_t row = g.heads * g.dim, x_row = dr_gate_pitch(&g), parameters = g.a_log_per_channel ? row : g.heads;
        tensor a_log = draw_numbers(t, "A_log", READ, 1, parameters),
               d_a_log = perhaps(t, draw_numbers(t, "d_A_log", ADDED, 1, parameters));
        tensor bias = perhaps(t, draw_numbers(t, "bias", READ, 1, row));
        if (!decays) a_log.values = d_a_log.values = NULL;
        tensor d_x = perhaps(t, of_kind(t, g.from, "d_x", add ? ADDED : WRITTEN, g.rows, row));
        if (in_place) d_x.values = NULL;
        check_call(t, &(call){.name = "gate",
                              .descriptor = &g,
                              .numbers = {0, panel.column},
                              .tolerance = backward_tolerance,
                              .tensors = {of_kind(t, g.from, "x", READ, g.rows, x_row), a_log, bias,
                                          of_kind(t, g.to, "y", WRITTEN, g.rows, row)},
                              .run = gate});
        check_call(t, &(call){.name = "gate_back",
                              .descriptor = &g,
                              .numbers = {add, panel.column, in_place},
                              .tolerance = backward_tolerance,
                              .tensors = {of_kind(t, g.from, "x", in_place ? ADDED : READ, g.rows, x_row), a_log, bias,
                                          of_kind(t, g.to, "d_y", READ, g.rows, row), d_x, d_a_log,
                                          perhaps(t, draw_numbers(t, "d_bias", ADDED, 1, row))},
                              .run = gate_back});
        release_draws(t);
    }
}

/* ---- functions and sums -------------------------------------------------------------------------------------------------- */

OPERATION(apply) {
    return b->ops->apply_forward(b, (dr_function)c->numbers[0], c->numbers[1], at[0], at[1]);
}
OPERATION(apply_back) {
    return b->ops->apply_backward(b, (dr_function)c->numbers[0], c->numbers[1], at[0], at[1], at[2]);
}
OPERATION(gated) {
    return b->ops->gated_forward(b, (dr_function)c->numbers[0], c->numbers[1], at[0], at[1], at[2]);
}
OPERATION(gated_back) {
    return b->ops->gated_backward(b, (dr_function)c->numbers[0], c->numbers[1], at[0], at[1], at[2], at[3], at[4]);
}
OPERATION(swiglu) {
    return b->ops->swiglu_forward(b, c->numbers[1], at[0], at[1], at[2]);
}
OPERATION(swiglu_back) {
    return b->ops->swiglu_backward(b, c->numbers[1], at[0], at[1], at[2], at[3], at[4]);
}
OPERATION(bound) {
    return b->ops->bound_forward(b, c->descriptor, c->numbers[1], at[0], at[1]);
}
OPERATION(bound_back) {
    return b->ops->bound_backward(b, c->descriptor, c->numbers[1], at[0], at[1], at[2]);
}
OPERATION(add_scaled) {
    return b->ops->add(b, (dr_kind)c->numbers[0], c->numbers[1], 0.3, at[0], at[1]);
}

/* A call of vectors of one length: what is read, then what is written. */
static void check_elements(trials *t, const char *name, const void *descriptor, int function, int64_t count, int reads,
                           int writes, dr_status (*run)(const call *, dr_backend *, void *const[])) {
    call c = {
        .name = name, .descriptor = descriptor, .numbers = {function, count}, .tolerance = backward_tolerance, .run = run};
    for (int i = 0; i < reads; i++) c.tensors[i] = draw_vectors(t, "an input", READ, 1, count);
    for (int i = reads; i < reads + writes; i++) c.tensors[i] = draw_vectors(t, "a result", WRITTEN, 1, count);
    check_call(t, &c);
}

CASE(elements) {
    const dr_bound limit = {1.5, -1, draw_flip(t) ? 0.75 : 2};
    for (int f = 0; f < DR_FUNCTIONS; f++) {
        const int64_t count = round == 0 ? f : draw_flip(t) ? draw_between(t, 1, 3000) : 8 * draw_between(t, 1, 300);
        check_elements(t, "apply", NULL, f, count, 1, 1, apply);
        check_elements(t, "apply_back", NULL, f, count, 2, 1, apply_back);
        check_elements(t, "gated", NULL, f, count, 2, 1, gated);
        check_elements(t, "gated_back", NULL, f, count, 3, 2, gated_back);
        release_draws(t);
    }
    const int64_t count = draw_flip(t) ? draw_between(t, 1, 3000) : 8 * draw_between(t, 1, 300);
    check_elements(t, "swiglu", NULL, 0, count, 2, 1, swiglu);
    check_elements(t, "swiglu_back", NULL, 0, count, 3, 2, swiglu_back);
    check_elements(t, "bound", &limit, 0, count, 1, 1, bound);
    check_elements(t, "bound_back", &limit, 0, count, 2, 1, bound_back);
    check_call(t, &(call){.name = "add",
                          .numbers = {DR_VECTOR, count},
                          .tensors = {draw_vectors(t, "x", READ, 1, count), draw_vectors(t, "y", ADDED, 1, count)},
                          .run = add_scaled});
    check_call(t, &(call){.name = "add of numbers",
                          .numbers = {DR_NUMBER, count},
                          .tensors = {draw_numbers(t, "x", READ, 1, count), draw_numbers(t, "y", ADDED, 1, count)},
                          .run = add_scaled});
}

OPERATION(blend) {
    return b->ops->blend_forward(b, c->numbers[0], c->numbers[1], c->numbers[2], at[0], at[1], at[2], at[3]);
}
OPERATION(blend_back) {
    return b->ops->blend_backward(b, c->numbers[0], c->numbers[1], c->numbers[2], at[0], at[1], at[2], at[3], at[4], at[5],
                                  c->numbers[3], at[6]);
}

CASE(blends) {
    const bool shared = round % 2, add = draw_flip(t);
    const int64_t rows = draw_between(t, 1, 90), dim = draw_width(t, 64);
    const tensor factor = draw_numbers(t, "factor", READ, shared ? 1 : rows, dim);
    check_call(t, &(call){.name = "blend",
                          .numbers = {rows, dim, shared},
                          .tensors = {draw_vectors(t, "x", READ, rows, dim), draw_vectors(t, "z", READ, rows, dim), factor,
                                      draw_vectors(t, "y", WRITTEN, rows, dim)},
                          .run = blend});
    check_call(
        t, &(call){.name = "blend_back",
                   .numbers = {rows, dim, shared, add},
                   .tolerance = backward_tolerance,
                   .tensors = {draw_vectors(t, "x", READ, rows, dim), draw_vectors(t, "z", READ, rows, dim), factor,
                               draw_vectors(t, "d_y", READ, rows, dim), perhaps(t, draw_vectors(t, "d_x", WRITTEN, rows, dim)),
                               perhaps(t, draw_vectors(t, "d_z", add ? ADDED : WRITTEN, rows, dim)),
                               perhaps(t, draw_numbers(t, "d_factor", shared ? ADDED : WRITTEN, shared ? 1 : rows, dim))},
                   .run = blend_back});
}

/* ---- heads --------------------------------------------------------------------------------------------------------------- */

OPERATION(scale) {
    const int64_t *n = c->numbers;
    return b->ops->scale_heads_forward(b, n[0], n[1], n[2], n[3], at[0], at[1], at[2], n[4]);
}
OPERATION(scale_back) {
    const int64_t *n = c->numbers;
    return b->ops->scale_heads_backward(b, n[0], n[1], n[2], n[3], at[0], at[1], at[2], at[3], at[4], n[4]);
}
OPERATION(copy_parts) {
    return b->ops->copy_heads(b, c->descriptor, at[0], at[1]);
}
OPERATION(bonus) {
    return b->ops->bonus_forward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4]);
}
OPERATION(bonus_back) {
    return b->ops->bonus_backward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8]);
}

CASE(heads) {
    const bool shared = round % 2, add = draw_flip(t);
    const int64_t rows = draw_between(t, 1, 80), heads = draw_between(t, 1, 4), dim = draw_width(t, 128), row = heads * dim;
    const tensor factor = draw_numbers(t, "factor", READ, shared ? 1 : rows, heads);
    check_call(t, &(call){.name = "scale_heads",
                          .numbers = {rows, heads, dim, shared, add},
                          .tensors = {factor, draw_vectors(t, "x", READ, rows, row),
                                      draw_vectors(t, "y", add ? ADDED : WRITTEN, rows, row)},
                          .run = scale});
    check_call(t,
               &(call){.name = "scale_heads_back",
                       .numbers = {rows, heads, dim, shared, add},
                       .tolerance = backward_tolerance,
                       .tensors = {factor, draw_vectors(t, "x", READ, rows, row), draw_vectors(t, "d_y", READ, rows, row),
                                   perhaps(t, draw_numbers(t, "d_factor", shared ? ADDED : WRITTEN, shared ? 1 : rows, heads)),
                                   perhaps(t, draw_vectors(t, "d_x", add ? ADDED : WRITTEN, rows, row))},
                       .run = scale_back});
    const int64_t wide = row + 8 * draw_between(t, 0, 2) + round % 2;
    const dr_copy_heads n = {rows, heads, dim, wide, round % 4 == 1 ? 0 : dim, wide, round % 4 == 2 ? 0 : dim};
    check_call(t, &(call){.name = "copy_heads",
                          .descriptor = &n,
                          .tensors = {draw_vectors(t, "x", READ, rows, wide), draw_vectors(t, "y", ADDED, rows, wide)},
                          .run = copy_parts});
    const dr_bonus o = {rows, heads, draw_width(t, 64), draw_width(t, 64)};
    const int64_t keys = heads * o.key_size, values = heads * o.value_size;
    check_call(t, &(call){.name = "bonus",
                          .descriptor = &o,
                          .tensors = {draw_vectors(t, "r", READ, rows, keys), draw_vectors(t, "k", READ, rows, keys),
                                      draw_numbers(t, "u", READ, 1, keys), draw_vectors(t, "v", READ, rows, values),
                                      draw_vectors(t, "y", ADDED, rows, values)},
                          .run = bonus});
    check_call(t, &(call){.name = "bonus_back",
                          .descriptor = &o,
                          .tolerance = backward_tolerance,
                          .tensors = {draw_vectors(t, "r", READ, rows, keys), draw_vectors(t, "k", READ, rows, keys),
                                      draw_numbers(t, "u", READ, 1, keys), draw_vectors(t, "v", READ, rows, values),
                                      draw_vectors(t, "d_y", READ, rows, values),
                                      perhaps(t, draw_vectors(t, "d_r", ADDED, rows, keys)),
                                      perhaps(t, draw_vectors(t, "d_k", ADDED, rows, keys)),
                                      perhaps(t, draw_numbers(t, "d_u", ADDED, 1, keys)),
                                      perhaps(t, draw_vectors(t, "d_v", ADDED, rows, values))},
                          .run = bonus_back});
}

const network_case layer_cases[] = {{"products", products},
                                    {"rms norms", rms_norms},
                                    {"norms of panels", panel_norms},
                                    {"narrow norms", narrow_norms},
                                    {"other norms", other_norms},
                                    {"convolutions", convolutions},
                                    {"token shift", shifts},
                                    {"gates", gates},
                                    {"elements", elements},
                                    {"blend", blends},
                                    {"heads", heads},
                                    {NULL, NULL}};
