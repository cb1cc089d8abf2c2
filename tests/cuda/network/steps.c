/* Cases of what a decoding step has, products of few rows and convolutions of one token a sequence, of products of many short
 * rows, and of the gated unit of a panel. */
#include "calls.h"

#include "base/error.h"

#define OPERATION(name) static dr_status name(const call *c, dr_backend *b, void *const at[])
#define CASE(name)      static void name(trials *t, int round)

/* What rows of a product have when they are alone, less what they have together: nothing, where there are few in 16 bits. */
OPERATION(apart) {
    const dr_linear all = *(const dr_linear *)c->descriptor;
    dr_linear one = all;
    one.rows = 1;
    for (int64_t r = 0; r < all.rows; r++) {
        one.plus = column_of(b, DR_VECTOR, at[4], r * all.out);
        DR_TRY(b->ops->linear_forward(b, &one, column_of(b, DR_VECTOR, at[0], r * all.in), at[1], at[2],
                                      column_of(b, DR_VECTOR, at[5], r * all.out)));
    }
    dr_linear together = all;
    together.plus = at[4];
    DR_TRY(b->ops->linear_forward(b, &together, at[0], at[1], at[2], at[3]));
    return b->ops->add(b, DR_VECTOR, all.rows * all.out, -1, at[3], at[5]);
}

CASE(few_rows) {
    static const int64_t most[] = {8, 16, 32, 64};
    const int64_t from = round % 4 > 0 ? most[round % 4 - 1] + 1 : 1;
    dr_linear l = {.rows = draw_between(t, from, most[round % 4]),
                   .in = 8 * draw_between(t, 1, 170),
                   .out = draw_width(t, 90),
                   .computed = draw_flip(t)};
    const int more = (round + round / 4) % 3; /* rows of weights that a block takes beside one */
    if (round % 4 > 1 && more > 0) l.rows = from, l.in = 8 * draw_between(t, 1, 20), l.out = 2048 * more + 4 * l.out;
    if (t->tested->storage != DR_BF16) return;
    check_call(t, &(call){.name = "linear of few rows",
                          .descriptor = &l,
                          .aligned = true,
                          .tensors = {draw_vectors(t, "x", READ, l.rows, l.in), draw_vectors(t, "weight", READ, l.out, l.in),
                                      perhaps(t, draw_numbers(t, "bias", READ, 1, l.out)),
                                      draw_vectors(t, "y", WRITTEN, l.rows, l.out),
                                      perhaps(t, draw_vectors(t, "plus", READ, l.rows, l.out)),
                                      draw_vectors(t, "apart", WRITTEN, l.rows, l.out)},
                          .run = apart});
}

/* Many rows of a few columns, of a panel or dense, with a bias. */
OPERATION(shallow) {
    dr_linear of = *(const dr_linear *)c->descriptor;
    of.plus = at[4];
    return b->ops->linear_forward(b, &of, column_of(b, DR_VECTOR, at[0], c->numbers[0]), at[1], at[2], at[3]);
}

CASE(shallow_rows) {
    const int64_t in = 8 * draw_between(t, 1, 16), before = 8 * draw_between(t, 0, 2);
    const dr_linear l = {.rows = draw_between(t, 1024, 1300),
                         .in = in,
                         .out = 8 * draw_between(t, 1, 34),
                         .x_row = round % 2 ? in + before + 8 : 0};
    if (t->tested->storage != DR_BF16) return;
    check_call(t, &(call){.name = "linear of shallow rows",
                          .descriptor = &l,
                          .numbers = {l.x_row ? before : 0},
                          .aligned = true,
                          .tensors = {draw_vectors(t, "x", READ, l.rows, dr_linear_pitch(&l)),
                                      draw_vectors(t, "weight", READ, l.out, l.in), draw_numbers(t, "bias", READ, 1, l.out),
                                      draw_vectors(t, "y", WRITTEN, l.rows, l.out),
                                      perhaps(t, draw_vectors(t, "plus", READ, l.rows, l.out))},
                          .run = shallow});
}

/* One token a sequence, which takes its state and leaves it in the same place. */
OPERATION(conv_step) {
    return b->ops->conv_forward(b, c->descriptor, column_of(b, DR_VECTOR, at[0], c->numbers[0]), at[1], at[2], at[4], at[3],
                                at[4]);
}

CASE(convolution_steps) {
    const int64_t rows = draw_between(t, 1, 9);
    dr_conv n = {.layout = {rows, rows, NULL},
                 .channels = round == 1 ? 256 : draw_width(t, 128),
                 .width = round % 3 ? 4 : draw_between(t, 2, 8),
                 .activation = (dr_activation)(round % 2)};
    if (round % 3 && draw_flip(t)) n.unit = draw_unit(t, round), n.channels = n.unit * draw_between(t, 1, 3), n.eps = 1e-6;
    const columns_drawn panel = draw_columns(t, n.channels);
    n.x_row = n.unit > 0 ? panel.row / 8 * 8 + 8 * (panel.row % 8 > 0) : panel.row;
    check_call(t, &(call){.name = "conv of a step",
                          .descriptor = &n,
                          .numbers = {panel.column},
                          .aligned = n.unit > 0,
                          .tensors = {draw_vectors(t, "x", READ, rows, dr_conv_pitch(&n)),
                                      draw_numbers(t, "weight", READ, n.channels, n.width),
                                      perhaps(t, draw_numbers(t, "bias", READ, 1, n.channels)),
                                      draw_vectors(t, "y", WRITTEN, rows, n.channels),
                                      draw_numbers(t, "state", ADDED, rows * (n.width - 1), n.channels)},
                          .run = conv_step});
}

OPERATION(panel) {
    return b->ops->swiglu_panel_forward(b, c->numbers[0], c->numbers[1], at[0], at[1]);
}
OPERATION(panel_back) {
    return b->ops->swiglu_panel_backward(b, c->numbers[0], c->numbers[1], at[0], at[1], at[2] ? at[2] : at[0]);
}

CASE(panels) {
    const int64_t rows = draw_between(t, round == 0 ? 0 : 1, 40),
                  columns = draw_flip(t) ? draw_width(t, 90) : 8 * draw_between(t, 1, 30);
    const bool in_place = round % 2;
    check_call(
        t, &(call){.name = "swiglu_panel",
                   .numbers = {rows, columns},
                   .tolerance = backward_tolerance,
                   .tensors = {draw_vectors(t, "panel", READ, rows, 2 * columns), draw_vectors(t, "y", WRITTEN, rows, columns)},
                   .run = panel});
    tensor d_panel = draw_vectors(t, "d_panel", WRITTEN, rows, 2 * columns);
    if (in_place) d_panel.values = NULL;
    check_call(t, &(call){.name = "swiglu_panel_back",
                          .numbers = {rows, columns},
                          .tolerance = backward_tolerance,
                          .tensors = {draw_vectors(t, "panel", in_place ? ADDED : READ, rows, 2 * columns),
                                      draw_vectors(t, "d_y", READ, rows, columns), d_panel},
                          .run = panel_back});
}

const network_case step_cases[] = {
    {"few_rows", few_rows}, {"shallow_rows", shallow_rows}, {"convolution_steps", convolution_steps}, {"panels", panels}, {0}};
