/* Where the reference rounds that stores vectors in 16 bits (rounding.h): experts, norms, functions of single elements, mixing
 * of rows. */
#include "rounding.h"

OPERATION(layer) {
    return b->ops->layer_norm_forward(b, c->descriptor, at[0], at[1], at[2], at[3]);
}
OPERATION(layer_back) {
    return b->ops->layer_norm_backward(b, c->descriptor, at[0], at[1], at[2], at[3], c->flag, at[4], at[5]);
}
OPERATION(sum) {
    const int64_t *shape = c->descriptor;
    return b->ops->sum_norm_forward(b, shape[0], shape[1], at[0], at[1]);
}
OPERATION(sum_back) {
    const int64_t *shape = c->descriptor;
    return b->ops->sum_norm_backward(b, shape[0], shape[1], at[0], at[1], at[2]);
}

static void test_norms(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        const dr_layer_norm n = {number_between(0, 5), number_between(1, 3), number_between(1, 20), 0.01};
        const int64_t width = n.groups * n.dim, count = n.rows * width, shape[2] = {n.rows, width};
        const bool add = draw % 2;
        check(&(call){"layer_norm_forward",
                      &n,
                      0,
                      {VECTOR("x", count), NUMBER("weight", width), NUMBER("bias", width), TO_VECTOR("y", count)},
                      layer});
        check(&(call){"layer_norm_backward",
                      &n,
                      add,
                      {VECTOR("x", count), NUMBER("weight", width), VECTOR("d_y", count), ADD_VECTOR("d_x", add, count),
                       ADD_NUMBER("d_weight", width), ADD_NUMBER("d_bias", width)},
                      layer_back});
        check(&(call){"sum_norm_forward", shape, 0, {VECTOR("x", count), TO_VECTOR("y", count)}, sum});
        check(&(call){
            "sum_norm_backward", shape, 0, {VECTOR("x", count), VECTOR("d_y", count), TO_VECTOR("d_x", count)}, sum_back});
    }
}

typedef struct {
    dr_function function;
    int64_t count;
} elements;

OPERATION(apply) {
    const elements *e = c->descriptor;
    return b->ops->apply_forward(b, e->function, e->count, at[0], at[1]);
}
OPERATION(apply_back) {
    const elements *e = c->descriptor;
    return b->ops->apply_backward(b, e->function, e->count, at[0], at[1], at[2]);
}
OPERATION(gated) {
    const elements *e = c->descriptor;
    return b->ops->gated_forward(b, e->function, e->count, at[0], at[1], at[2]);
}
OPERATION(gated_back) {
    const elements *e = c->descriptor;
    return b->ops->gated_backward(b, e->function, e->count, at[0], at[1], at[2], at[3], at[4]);
}

static void test_functions(void **state) {
    (void)state;
    for (int f = 0; f < DR_FUNCTIONS; f++, numbers_release()) {
        const elements e = {(dr_function)f, number_between(0, 90)};
        const int64_t n = e.count;
        check(&(call){"apply_forward", &e, 0, {VECTOR("x", n), TO_VECTOR("y", n)}, apply});
        check(&(call){"apply_backward", &e, 0, {VECTOR("x", n), VECTOR("d_y", n), TO_VECTOR("d_x", n)}, apply_back});
        check(&(call){"gated_forward", &e, 0, {VECTOR("x", n), VECTOR("gate", n), TO_VECTOR("y", n)}, gated});
        check(&(call){"gated_backward",
                      &e,
                      0,
                      {VECTOR("x", n), VECTOR("gate", n), VECTOR("d_y", n), TO_VECTOR("d_x", n), TO_VECTOR("d_gate", n)},
                      gated_back});
    }
}

typedef struct {
    dr_bound bound;
    int64_t count;
} bounded;

OPERATION(bound) {
    const bounded *e = c->descriptor;
    return b->ops->bound_forward(b, &e->bound, e->count, at[0], at[1]);
}
OPERATION(bound_back) {
    const bounded *e = c->descriptor;
    return b->ops->bound_backward(b, &e->bound, e->count, at[0], at[1], at[2]);
}

static void test_bounds(void **state) {
    (void)state;
    const dr_bound bounds[] = {{0.7, -0.3, (double)INFINITY}, {1, -1.1, 0.9}, {-3, (double)-INFINITY, (double)INFINITY}};
    for (int i = 0; i < 3; i++, numbers_release()) {
        const int64_t n = number_between(1, 90);
        const bounded e = {bounds[i], n};
        check(&(call){"bound_forward", &e, 0, {VECTOR("x", n), TO_VECTOR("y", n)}, bound});
        check(&(call){"bound_backward", &e, 0, {VECTOR("x", n), VECTOR("d_y", n), TO_VECTOR("d_x", n)}, bound_back});
    }
}

typedef struct {
    int64_t rows, dim;
    bool shared;
} blended;

OPERATION(shift) {
    return b->ops->token_shift_forward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4]);
}
OPERATION(shift_back) {
    return b->ops->token_shift_backward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], c->flag, at[5]);
}
OPERATION(blend) {
    const blended *s = c->descriptor;
    return b->ops->blend_forward(b, s->rows, s->dim, s->shared, at[0], at[1], at[2], at[3]);
}
OPERATION(blend_back) {
    const blended *s = c->descriptor;
    return b->ops->blend_backward(b, s->rows, s->dim, s->shared, at[0], at[1], at[2], at[3], at[4], at[5], c->flag, at[6]);
}
OPERATION(bonus) {
    return b->ops->bonus_forward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4]);
}
OPERATION(bonus_back) {
    return b->ops->bonus_backward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8]);
}

OPERATION(depth) {
    return b->ops->depth_forward(b, c->descriptor, (const void *const *)at, at[2], at[3], at[4]);
}
OPERATION(depth_back) {
    return b->ops->depth_backward(b, c->descriptor, (const void *const *)at, at[2], at[3], at[4], at + 5, at[7], at[8]);
}

OPERATION(copy) {
    return b->ops->copy_heads(b, c->descriptor, at[0], at[1]);
}

/* Heads read from parts of wider rows and written to others; one read for all, and their sum. */
static void test_copied_heads(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        dr_copy_heads h = {.rows = number_between(0, 4), .heads = number_between(1, 3), .dim = number_between(1, 5)};
        h.from_head = draw % 3 == 0 ? 0 : h.dim + number_between(0, 2);
        h.to_head = draw % 3 == 1 ? 0 : h.dim + number_between(0, 2);
        h.from_row = h.heads * (h.dim + 2), h.to_row = h.heads * (h.dim + 3);
        const int64_t x = h.rows * h.from_row, y = h.rows * h.to_row;
        check(&(call){"copy_heads", &h, 0, {VECTOR("x", x), ADD_VECTOR("y", true, y)}, copy});
    }
}

static void test_mixing(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        const bool add = draw % 2;
        const dr_token_shift s = {layout_drawn(5), number_between(1, 9), number_between(1, 3)};
        const int64_t x = s.layout.rows * s.dim, factors = s.mixes * s.dim, states = s.layout.sequences * s.dim;
        check(&(call){"token_shift_forward",
                      &s,
                      0,
                      {VECTOR("x", x), NUMBER("factors", factors), NUMBER("initial", states), TO_VECTOR("y", s.mixes * x),
                       TO_NUMBER("final", states)},
                      shift});
        check(&(call){"token_shift_backward",
                      &s,
                      add,
                      {VECTOR("x", x), NUMBER("factors", factors), NUMBER("initial", states), VECTOR("d_y", s.mixes * x),
                       ADD_VECTOR("d_x", add, x), ADD_NUMBER("d_factors", factors)},
                      shift_back});
        const blended m = {number_between(0, 6), number_between(1, 9), draw % 3 == 0};
        const int64_t n = m.rows * m.dim, f = m.shared ? m.dim : n;
        check(&(call){"blend_forward", &m, 0, {VECTOR("x", n), VECTOR("z", n), NUMBER("factor", f), TO_VECTOR("y", n)}, blend});
        check(&(call){"blend_backward",
                      &m,
                      add,
                      {VECTOR("x", n), VECTOR("z", n), NUMBER("factor", f), VECTOR("d_y", n), TO_VECTOR("d_x", n),
                       ADD_VECTOR("d_z", add, n), m.shared ? ADD_NUMBER("d_factor", f) : TO_NUMBER("d_factor", f)},
                      blend_back});
        const dr_bonus o = {number_between(0, 4), number_between(1, 3), number_between(1, 8), number_between(1, 8)};
        const int64_t k = o.rows * o.heads * o.key_size, v = o.rows * o.heads * o.value_size, u = o.heads * o.key_size;
        check(&(call){"bonus_forward",
                      &o,
                      0,
                      {VECTOR("r", k), VECTOR("k", k), NUMBER("u", u), VECTOR("v", v), ADD_VECTOR("y", true, v)},
                      bonus});
        check(
            &(call){"bonus_backward",
                    &o,
                    0,
                    {VECTOR("r", k), VECTOR("k", k), NUMBER("u", u), VECTOR("v", v), VECTOR("d_y", v),
                     ADD_VECTOR("d_r", true, k), ADD_VECTOR("d_k", true, k), ADD_NUMBER("d_u", u), ADD_VECTOR("d_v", true, v)},
                    bonus_back});
        const dr_depth d = {number_between(0, 4), number_between(1, 8), 2, 0.01};
        const int64_t c = d.rows * d.dim;
        check(&(call){"depth_forward",
                      &d,
                      0,
                      {VECTOR("x", c), VECTOR("x", c), NUMBER("weight", d.dim), NUMBER("query", d.dim), TO_VECTOR("y", c)},
                      depth});
        check(&(call){"depth_backward",
                      &d,
                      0,
                      {VECTOR("x", c), VECTOR("x", c), NUMBER("weight", d.dim), NUMBER("query", d.dim), VECTOR("d_y", c),
                       ADD_VECTOR("d_x", true, c), ADD_VECTOR("d_x", true, c), ADD_NUMBER("d_weight", d.dim),
                       ADD_NUMBER("d_query", d.dim)},
                      depth_back});
    }
}

/* ---- experts -------------------------------------------------------------------------------------------------------- */

/* tokens in the order of experts; sizes in and out */
typedef struct {
    dr_experts of;
    int64_t in, out;
    int32_t *order, *place, *begins;
} way;

OPERATION(gather) {
    const way *w = c->descriptor;
    return b->ops->experts_gather_forward(b, &w->of, w->in, w->order, at[0], at[1]);
}
OPERATION(gather_back) {
    const way *w = c->descriptor;
    return b->ops->experts_gather_backward(b, &w->of, w->in, w->place, at[0], at[1], c->flag);
}
OPERATION(products) {
    const way *w = c->descriptor;
    return b->ops->experts_linear_forward(b, &w->of, w->in, w->out, w->begins, at[0], at[1], at[2]);
}
OPERATION(products_back) {
    const way *w = c->descriptor;
    return b->ops->experts_linear_backward(b, &w->of, w->in, w->out, w->begins, at[0], at[1], at[2], at[3], c->flag, at[4]);
}
OPERATION(combine) {
    const way *w = c->descriptor;
    return b->ops->experts_combine_forward(b, &w->of, w->in, w->place, at[0], at[1], at[2], c->flag);
}
OPERATION(combine_back) {
    const way *w = c->descriptor;
    return b->ops->experts_combine_backward(b, &w->of, w->in, w->place, at[0], at[1], at[2], at[3], at[4]);
}

static way way_drawn(void) {
    way w = {.of = {number_between(0, 9), number_between(1, 5), 0}, .in = number_between(1, 9), .out = number_between(1, 9)};
    w.of.chosen = number_between(1, w.of.experts);
    const int64_t slots = w.of.rows * w.of.chosen;
    int32_t *index = numbers_block(slots, sizeof *index);
    w.order = numbers_block(slots, sizeof *index);
    w.place = numbers_block(slots, sizeof *index);
    w.begins = numbers_block(w.of.experts + 1, sizeof *index);
    for (int64_t s = 0; s < slots; s++) index[s] = (int32_t)(s * 7 % w.of.experts);
    assert_int_equal(exact->ops->experts_sort(exact, &w.of, index, w.order, w.place, w.begins), DR_OK);
    return w;
}

static void test_experts(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        const way w = way_drawn();
        const bool add = draw % 2;
        const int64_t rows = w.of.rows, slots = rows * w.of.chosen, weights = w.of.experts * w.out * w.in;
        check(&(call){"experts_gather_forward", &w, 0, {VECTOR("x", rows * w.in), TO_VECTOR("y", slots * w.in)}, gather});
        check(&(call){"experts_gather_backward",
                      &w,
                      add,
                      {VECTOR("d_y", slots * w.in), ADD_VECTOR("d_x", add, rows * w.in)},
                      gather_back});
        check(&(call){"experts_linear_forward",
                      &w,
                      0,
                      {VECTOR("x", slots * w.in), VECTOR("weight", weights), TO_VECTOR("y", slots * w.out)},
                      products});
        check(&(call){"experts_linear_backward",
                      &w,
                      add,
                      {VECTOR("x", slots * w.in), VECTOR("weight", weights), VECTOR("d_y", slots * w.out),
                       ADD_VECTOR("d_x", add, slots * w.in), ADD_NUMBER("d_weight", weights)},
                      products_back});
        check(&(call){"experts_combine_forward",
                      &w,
                      add,
                      {NUMBER("weights", slots), VECTOR("x", slots * w.in), ADD_VECTOR("y", add, rows * w.in)},
                      combine});
        check(&(call){"experts_combine_backward",
                      &w,
                      0,
                      {NUMBER("weights", slots), VECTOR("x", slots * w.in), VECTOR("d_y", rows * w.in),
                       TO_NUMBER("d_weights", slots), TO_VECTOR("d_x", slots * w.in)},
                      combine_back});
    }
}

/* Both have all that layers are made of. */
static void test_supported(void **state) {
    (void)state;
    static const dr_operation operations[] = {DR_OPERATION_LAYER_NORM, DR_OPERATION_SUM_NORM, DR_OPERATION_ROUTE,
                                              DR_OPERATION_EXPERTS,    DR_OPERATION_APPLY,    DR_OPERATION_TOKEN_SHIFT,
                                              DR_OPERATION_BLEND,      DR_OPERATION_BONUS,    DR_OPERATION_ATTENTION,
                                              DR_OPERATION_COPY_HEADS, DR_OPERATION_BOUND,    DR_OPERATION_DEPTH};
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        assert_true(dr_supports(exact, operations[i]) && dr_supports(stored, operations[i]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norms),   cmocka_unit_test(test_functions),    cmocka_unit_test(test_mixing),
        cmocka_unit_test(test_experts), cmocka_unit_test(test_copied_heads), cmocka_unit_test(test_supported),
        cmocka_unit_test(test_bounds),
    };
    int failed = cmocka_run_group_tests_name("bf16", tests, open_bf16, close_both);
    return failed + cmocka_run_group_tests_name("f16", tests, open_f16, close_both);
}
