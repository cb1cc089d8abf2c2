/* Mixing of rows: token shift, blending, the bonus, attention over depth, and steps held between bounds: values by hand, the
 * reference's gradients against differences, the CPU backend against the reference, split and packed sequences. */
#include "allocation.h"
#include "cpu_calls.h"
#include "operation_gradients.h"

enum { GRADIENT_DRAWS = 30 };

/* ---- the reference --------------------------------------------------------------------------------------------------- */

/* Two sequences of two tokens and of one, two mixes; the second sequence goes on from a state. */
static void test_values(void **state) {
    (void)state;
    static const int64_t begins[] = {0, 2, 3};
    const dr_token_shift shift = {{2, 3, begins}, 1, 2};
    const double x[] = {1, 5, 7}, factors[] = {0.25, 1}, wanted[] = {0.75, 4, 8, 0, 1, 11};
    double states[] = {0, 11}, y[6];
    assert_int_equal(reference->ops->token_shift_forward(reference, &shift, x, factors, states, y, states), DR_OK);
    for (int i = 0; i < 6; i++) assert_true(fabs(y[i] - wanted[i]) < 1e-15);
    assert_true(states[0] == 5 && states[1] == 7);
    const double z[] = {3, 9, 7}, half[] = {0.5};
    assert_int_equal(reference->ops->blend_forward(reference, 3, 1, true, x, z, half, y), DR_OK);
    assert_true(y[0] == 2 && y[1] == 7 && y[2] == 7);
    const dr_bonus bonus = {1, 1, 2, 2};
    const double r[] = {1, 2}, k[] = {3, 4}, u[] = {5, -1}, v[] = {10, 1};
    double o[] = {1, 1};
    assert_int_equal(reference->ops->bonus_forward(reference, &bonus, r, k, u, v, o), DR_OK);
    assert_true(o[0] == 71 && o[1] == 8);
    /* without a query the mean; with one, root mean squares 1: scores 2 ln 3 and 0 */
    const dr_depth depth = {1, 2, 2, 0};
    const double first[] = {sqrt(2), 0}, second[] = {0, sqrt(2)}, ones[] = {1, 1}, none[] = {0, 0},
                 query[] = {sqrt(2) * log(3), 0};
    const void *const list[] = {first, second};
    assert_int_equal(reference->ops->depth_forward(reference, &depth, list, ones, none, y), DR_OK);
    assert_true(fabs(y[0] - sqrt(0.5)) < 1e-15 && fabs(y[1] - sqrt(0.5)) < 1e-15);
    assert_int_equal(reference->ops->depth_forward(reference, &depth, list, ones, query, y), DR_OK);
    assert_true(fabs(y[0] - 0.9 * sqrt(2)) < 1e-15 && fabs(y[1] - 0.1 * sqrt(2)) < 1e-15);
    const dr_gate gate = {.kind = DR_GATE_SOFTPLUS, .rows = 1, .heads = 3, .dim = 1, .lower_bound = 0.1, .upper_bound = 2};
    const double steps[] = {-9, 0, 9};
    assert_int_equal(reference->ops->gate_forward(reference, &gate, steps, NULL, NULL, y), DR_OK);
    assert_true(y[0] == 0.1 && fabs(y[1] - log(2)) < 1e-15 && y[2] == 2);
}

static dr_status shift_forward(const operation *o) {
    return reference->ops->token_shift_forward(reference, o->descriptor, o->operands[0].at, o->operands[1].at, o->extra, o->y,
                                               NULL);
}
static dr_status shift_backward(const operation *o, double *const d[]) {
    return reference->ops->token_shift_backward(reference, o->descriptor, o->operands[0].at, o->operands[1].at, o->extra,
                                                o->d_y, d[0], o->accumulate, d[1]);
}

typedef struct {
    int64_t rows, dim;
    bool shared;
} blend_shape;

static dr_status blend_forward(const operation *o) {
    const blend_shape *s = o->descriptor;
    return reference->ops->blend_forward(reference, s->rows, s->dim, s->shared, o->operands[0].at, o->operands[1].at,
                                         o->operands[2].at, o->y);
}
static dr_status blend_backward(const operation *o, double *const d[]) {
    const blend_shape *s = o->descriptor;
    return reference->ops->blend_backward(reference, s->rows, s->dim, s->shared, o->operands[0].at, o->operands[1].at,
                                          o->operands[2].at, o->d_y, d[0], d[1], o->accumulate, d[2]);
}

static dr_status bonus_forward(const operation *o) {
    memset(o->y, 0, (size_t)o->count * sizeof *o->y);
    return reference->ops->bonus_forward(reference, o->descriptor, o->operands[0].at, o->operands[1].at, o->operands[2].at,
                                         o->operands[3].at, o->y);
}
static dr_status bonus_backward(const operation *o, double *const d[]) {
    return reference->ops->bonus_backward(reference, o->descriptor, o->operands[0].at, o->operands[1].at, o->operands[2].at,
                                          o->operands[3].at, o->d_y, d[0], d[1], d[2], d[3]);
}

/* the first operands are the tensors, then weight and query */
static dr_status depth_forward(const operation *o) {
    const dr_depth *d = o->descriptor;
    const void *x[MAX_OPERANDS];
    for (int64_t l = 0; l < d->count; l++) x[l] = o->operands[l].at;
    return reference->ops->depth_forward(reference, d, x, o->operands[d->count].at, o->operands[d->count + 1].at, o->y);
}
static dr_status depth_backward(const operation *o, double *const gradients[]) {
    const dr_depth *d = o->descriptor;
    const void *x[MAX_OPERANDS];
    void *d_x[MAX_OPERANDS];
    for (int64_t l = 0; l < d->count; l++) x[l] = o->operands[l].at, d_x[l] = gradients[l];
    return reference->ops->depth_backward(reference, d, x, o->operands[d->count].at, o->operands[d->count + 1].at, o->d_y, d_x,
                                          gradients[d->count], gradients[d->count + 1]);
}

static dr_status gate_forward(const operation *o) {
    return reference->ops->gate_forward(reference, o->descriptor, o->operands[0].at, NULL, o->operands[1].at, o->y);
}
static dr_status gate_backward(const operation *o, double *const d[]) {
    return reference->ops->gate_backward(reference, o->descriptor, o->operands[0].at, NULL, o->operands[1].at, o->d_y, d[0],
                                         false, NULL, d[1]);
}

static void check_shift_gradients(void) {
    const dr_token_shift shift = {layout_drawn(5), number_between(1, 4), number_between(1, 3)};
    const int64_t count = shift.layout.rows * shift.dim;
    const bool accumulate = number_flip();
    operation o = {.descriptor = &shift,
                   .extra = number_flip() ? numbers_normal(shift.layout.sequences * shift.dim, 1) : NULL,
                   .operands = {{"x", numbers_normal(count, 1), count, accumulate},
                                {"factors", numbers_normal(shift.mixes * shift.dim, 1), shift.mixes * shift.dim, true}},
                   .count = shift.mixes * count,
                   .accumulate = accumulate,
                   .forward = shift_forward,
                   .backward = shift_backward};
    check_operation(&o);
}

static void check_blend_gradients(void) {
    const blend_shape s = {number_between(0, 4), number_between(1, 5), number_flip()};
    const int64_t count = s.rows * s.dim, factors = s.shared ? s.dim : count;
    const bool accumulate = number_flip();
    operation o = {.descriptor = &s,
                   .operands = {{"x", numbers_normal(count, 1), count, false},
                                {"z", numbers_normal(count, 1), count, accumulate},
                                {"factor", numbers_normal(factors, 1), factors, s.shared}},
                   .count = count,
                   .accumulate = accumulate,
                   .forward = blend_forward,
                   .backward = blend_backward};
    check_operation(&o);
}

static void check_bonus_gradients(void) {
    const dr_bonus b = {number_between(0, 3), number_between(1, 3), number_between(1, 4), number_between(1, 4)};
    const int64_t keys = b.rows * b.heads * b.key_size, values = b.rows * b.heads * b.value_size, u = b.heads * b.key_size;
    operation o = {.descriptor = &b,
                   .operands = {{"r", numbers_normal(keys, 1), keys, true},
                                {"k", numbers_normal(keys, 1), keys, true},
                                {"u", numbers_normal(u, 1), u, true},
                                {"v", numbers_normal(values, 1), values, true}},
                   .count = values,
                   .forward = bonus_forward,
                   .backward = bonus_backward};
    check_operation(&o);
}

static void check_gate_gradients(void) {
    const dr_gate gate = {.kind = number_flip() ? DR_GATE_SOFTPLUS : DR_GATE_LOG_DECAY,
                          .rows = number_between(0, 4),
                          .heads = 3,
                          .dim = 1,
                          .lower_bound = 0.3,
                          .upper_bound = number_flip() ? 1.1 : 0};
    const int64_t count = gate.rows * 3;
    operation o = {.descriptor = &gate,
                   .operands = {{"x", numbers_normal(count, 2), count, false}, {"bias", numbers_normal(3, 1), 3, true}},
                   .count = count,
                   .forward = gate_forward,
                   .backward = gate_backward};
    check_operation(&o);
}

static void check_depth_gradients(void) {
    const dr_depth depth = {number_between(0, 3), number_between(1, 6), number_between(1, 4), 0.1};
    const int64_t count = depth.rows * depth.dim;
    operation o = {.descriptor = &depth, .count = count, .forward = depth_forward, .backward = depth_backward};
    for (int64_t l = 0; l < depth.count; l++) o.operands[l] = (operand){"x", numbers_normal(count, 1), count, true};
    o.operands[depth.count] = (operand){"weight", numbers_normal(depth.dim, 1), depth.dim, true};
    o.operands[depth.count + 1] = (operand){"query", numbers_normal(depth.dim, 1), depth.dim, true};
    check_operation(&o);
}

static void test_gradients(void **state) {
    (void)state;
    for (int draw = 0; draw < GRADIENT_DRAWS; draw++, numbers_release()) {
        check_shift_gradients();
        check_blend_gradients();
        check_bonus_gradients();
        check_gate_gradients();
        check_depth_gradients();
    }
}

/* ---- the CPU against the reference ----------------------------------------------------------------------------------- */

static dr_status cpu_shift(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->token_shift_forward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4]);
}
/* the state in place */
static dr_status cpu_shift_on(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->token_shift_forward(b, c->descriptor, at[0], at[1], at[2], at[3], at[2]);
}
static dr_status cpu_shift_backward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->token_shift_backward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], *(const bool *)c->extra, at[5]);
}
static dr_status cpu_blend(const call *c, dr_backend *b, void *const at[]) {
    const blend_shape *s = c->descriptor;
    return b->ops->blend_forward(b, s->rows, s->dim, s->shared, at[0], at[1], at[2], at[3]);
}
static dr_status cpu_blend_backward(const call *c, dr_backend *b, void *const at[]) {
    const blend_shape *s = c->descriptor;
    return b->ops->blend_backward(b, s->rows, s->dim, s->shared, at[0], at[1], at[2], at[3], at[4], at[5],
                                  *(const bool *)c->extra, at[6]);
}
static dr_status cpu_bonus(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->bonus_forward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4]);
}
static dr_status cpu_bonus_backward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->bonus_backward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8]);
}
static dr_status cpu_gate(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->gate_forward(b, c->descriptor, at[0], NULL, at[1], at[2]);
}
static dr_status cpu_gate_backward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->gate_backward(b, c->descriptor, at[0], NULL, at[1], at[2], at[3], false, NULL, at[4]);
}

/* three tensors at most, then weight and query */
static dr_status cpu_depth(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->depth_forward(b, c->descriptor, (const void *const *)at, at[3], at[4], at[5]);
}
static dr_status cpu_depth_backward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->depth_backward(b, c->descriptor, (const void *const *)at, at[3], at[4], at[5], at + 6, at[9], at[10]);
}

static dr_status cpu_copy_heads(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->copy_heads(b, c->descriptor, at[0], at[1]);
}

/* Parts of wider rows to parts of wider rows; the shared head of all, and the sum of all. What is beside stays. */
static void check_copy(int64_t rows, int64_t heads, int64_t dim, bool from_shared, bool to_shared) {
    const int64_t from = dim + number_between(0, 3), to = dim + number_between(0, 3);
    const dr_copy_heads copy = {rows, heads, dim, heads * from + 1, from_shared ? 0 : from, heads * to + 2, to_shared ? 0 : to};
    check(&(call){"copy_heads",
                  &copy,
                  NULL,
                  tolerance_forward,
                  {input("x", rows * copy.from_row), added("y", rows * copy.to_row)},
                  cpu_copy_heads});
    numbers_release();
}

static void test_copied_heads(void **state) {
    (void)state;
    const dr_copy_heads spread = {2, 2, 1, 1, 0, 5, 2}, gathered = {2, 2, 1, 5, 2, 1, 0};
    const double x[] = {3, 4}, wanted[] = {3, 0, 3, 0, 0, 4, 0, 4, 0, 0};
    double y[10] = {0}, sums[] = {9, 9};
    assert_int_equal(reference->ops->copy_heads(reference, &spread, x, y), DR_OK);
    assert_same_bits(y, wanted, 10);
    assert_int_equal(reference->ops->copy_heads(reference, &gathered, y, sums), DR_OK);
    assert_true(sums[0] == 6 && sums[1] == 8);
    for (int draw = 0; draw < DRAWS; draw++)
        check_copy(number_between(0, 40), number_between(1, 9), size_drawn(128), draw % 3 == 1, draw % 3 == 2);
}

static void check_shift(dr_layout layout, int64_t dim, int64_t mixes) {
    const dr_token_shift shift = {layout, dim, mixes};
    const int64_t count = layout.rows * dim, states = layout.sequences * dim;
    const bool accumulate = number_flip();
    check(&(call){"token_shift",
                  &shift,
                  NULL,
                  tolerance_forward,
                  {input("x", count), input("factors", mixes * dim), maybe(input("initial", states)),
                   overwritten("y", mixes * count), maybe(overwritten("final", states))},
                  cpu_shift});
    check(&(call){"token_shift in place",
                  &shift,
                  NULL,
                  tolerance_forward,
                  {input("x", count), input("factors", mixes * dim), added("state", states), overwritten("y", mixes * count)},
                  cpu_shift_on});
    check(
        &(call){"token_shift backward",
                &shift,
                &accumulate,
                tolerance_backward,
                {input("x", count), input("factors", mixes * dim), maybe(input("initial", states)), input("d_y", mixes * count),
                 maybe(accumulated("d_x", count, accumulate)), maybe(added("d_factors", mixes * dim))},
                cpu_shift_backward});
    numbers_release();
}

static void check_blend(blend_shape s) {
    const int64_t count = s.rows * s.dim, factors = s.shared ? s.dim : count;
    const bool accumulate = number_flip();
    check(&(call){"blend",
                  &s,
                  NULL,
                  tolerance_forward,
                  {input("x", count), input("z", count), input("factor", factors), overwritten("y", count)},
                  cpu_blend});
    check(&(call){"blend backward",
                  &s,
                  &accumulate,
                  tolerance_backward,
                  {input("x", count), input("z", count), input("factor", factors), input("d_y", count),
                   maybe(overwritten("d_x", count)), maybe(accumulated("d_z", count, accumulate)),
                   maybe(accumulated("d_factor", factors, s.shared))},
                  cpu_blend_backward});
    numbers_release();
}

static void check_bonus(dr_bonus b) {
    const int64_t keys = b.rows * b.heads * b.key_size, values = b.rows * b.heads * b.value_size, u = b.heads * b.key_size;
    check(&(call){"bonus",
                  &b,
                  NULL,
                  tolerance_backward,
                  {input("r", keys), input("k", keys), input("u", u), input("v", values), added("y", values)},
                  cpu_bonus});
    check(&(call){"bonus backward",
                  &b,
                  NULL,
                  tolerance_backward,
                  {input("r", keys), input("k", keys), input("u", u), input("v", values), input("d_y", values),
                   maybe(added("d_r", keys)), maybe(added("d_k", keys)), maybe(added("d_u", u)), maybe(added("d_v", values))},
                  cpu_bonus_backward});
    numbers_release();
}

static void check_gate(int64_t rows, int64_t heads) {
    const dr_gate gate = {.kind = number_flip() ? DR_GATE_SOFTPLUS : DR_GATE_LOG_DECAY,
                          .rows = rows,
                          .heads = heads,
                          .dim = 1,
                          .lower_bound = number_flip() ? 0 : 0.4,
                          .upper_bound = number_flip() ? 0 : 1.2};
    const int64_t count = rows * heads;
    check(&(call){"bounded step",
                  &gate,
                  NULL,
                  tolerance_forward,
                  {input("x", count), maybe(input("bias", heads)), overwritten("y", count)},
                  cpu_gate});
    tensor bias = maybe(input("bias", heads)), none = {.values = NULL};
    check(&(call){"bounded step, backward",
                  &gate,
                  NULL,
                  tolerance_backward,
                  {input("x", count), bias, input("d_y", count), overwritten("d_x", count),
                   bias.values ? maybe(added("d_bias", heads)) : none},
                  cpu_gate_backward});
    numbers_release();
}

static void check_depth(int64_t rows, int64_t dim) {
    const dr_depth depth = {rows, dim, number_between(1, 3), 1e-3};
    const int64_t count = rows * dim;
    tensor query = input("query", dim); /* scores of some size for any dim */
    for (int64_t i = 0; i < dim; i++) query.values[i] = (double)(float)(query.values[i] / sqrt((double)dim));
    check(
        &(call){"depth",
                &depth,
                NULL,
                tolerance_forward,
                {input("x", count), input("x", count), input("x", count), input("weight", dim), query, overwritten("y", count)},
                cpu_depth});
    check(&(call){"depth backward",
                  &depth,
                  NULL,
                  tolerance_backward,
                  {input("x", count), input("x", count), input("x", count), input("weight", dim), query, input("d_y", count),
                   maybe(added("d_x", count)), maybe(added("d_x", count)), maybe(added("d_x", count)),
                   maybe(added("d_weight", dim)), maybe(added("d_query", dim))},
                  cpu_depth_backward});
    numbers_release();
}

static void test_cpu(void **state) {
    (void)state;
    for (int draw = 0; draw < 2 * DRAWS; draw++) {
        check_shift(layout_drawn(draw % 3 ? 40 : 200), size_drawn(100), number_between(1, 6));
        check_blend((blend_shape){size_drawn(200), size_drawn(120), draw % 2});
        check_bonus((dr_bonus){size_drawn(100), number_between(1, 4), size_drawn(64), size_drawn(64)});
        check_gate(size_drawn(300), number_between(1, 40));
        check_depth(size_drawn(100), size_drawn(120));
    }
    check_depth(64, 256);
    check_shift((dr_layout){.sequences = 2, .rows = 300}, 256, 6);
    check_bonus((dr_bonus){70, 2, 64, 128});
}

/* ---- the same bits --------------------------------------------------------------------------------------------------- */

/* A sequence in two parts, the second from the first one's state, on every backend. */
static void test_split(void **state) {
    (void)state;
    enum { DIM = 5, MIXES = 2 };
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        const int64_t rows = number_between(1, 40), cut = number_between(0, rows);
        float x[40 * DIM], factors[MIXES * DIM], whole[MIXES * 40 * DIM], part[MIXES * 40 * DIM], kept[DIM];
        for (int i = 0; i < 40 * DIM; i++) x[i] = (float)dr_random_normal(&numbers_random);
        for (int i = 0; i < MIXES * DIM; i++) factors[i] = (float)dr_random_normal(&numbers_random);
        dr_backend *b = cpu[draw % isas][draw % THREADS];
        const dr_token_shift all = {{1, rows, NULL}, DIM, MIXES};
        assert_int_equal(b->ops->token_shift_forward(b, &all, x, factors, NULL, whole, NULL), DR_OK);
        const int64_t ends[3] = {0, cut, rows};
        for (int p = 0; p < 2; p++) {
            const int64_t count = ends[p + 1] - ends[p];
            const dr_token_shift some = {{1, count, NULL}, DIM, MIXES};
            assert_int_equal(b->ops->token_shift_forward(b, &some, x + ends[p] * DIM, factors, p ? kept : NULL, part, kept),
                             DR_OK);
            for (int64_t m = 0; m < MIXES && count > 0; m++)
                assert_memory_equal(part + m * count * DIM, whole + (m * rows + ends[p]) * DIM,
                                    (size_t)(count * DIM) * sizeof(float));
        }
        assert_memory_equal(kept, x + (rows - 1) * DIM, sizeof kept);
    }
}

/* Sequences without tokens beside one of two, from states: the states stay what they were, also where they lie elsewhere. */
static void test_empty_sequences(void **state) {
    (void)state;
    static const int64_t begins[] = {0, 0, 2, 2};
    static const float x[] = {1, 2, 3, 4}, factors[] = {0.5F, 0.25F}, initial[] = {5, 6, 7, 8, 9, 10};
    static const float wanted[] = {5, 6, 3, 4, 9, 10};
    const dr_token_shift shift = {{3, 2, begins}, 2, 1};
    for (int isa = 0; isa < isas; isa++) {
        dr_backend *b = cpu[isa][0];
        float y[4], final[6], states[6];
        memcpy(states, initial, sizeof states);
        assert_int_equal(b->ops->token_shift_forward(b, &shift, x, factors, initial, y, final), DR_OK);
        assert_memory_equal(final, wanted, sizeof final);
        assert_int_equal(b->ops->token_shift_forward(b, &shift, x, factors, states, y, states), DR_OK);
        assert_memory_equal(states, wanted, sizeof states);
    }
}

static void test_allocations(void **state) {
    (void)state;
    const dr_token_shift shift = {{1, 1, NULL}, 1, 1};
    const dr_bonus bonus = {1, 1, 1, 1};
    const float one[1] = {1};
    float out[1] = {0}, d[1] = {0};
    const dr_depth depth = {1, 1, 1, 1};
    const void *const list[] = {one};
    void *const d_list[] = {d};
    for (int which = 0; which < 5; which++) {
        dr_backend *b;
        assert_int_equal(dr_cpu_open(NULL, &b), DR_OK);
        const long alive = allocation_alive;
        allocation_fail_at(1);
        const dr_status status = which == 0   ? b->ops->token_shift_backward(b, &shift, one, one, NULL, one, out, false, d)
                                 : which == 1 ? b->ops->blend_backward(b, 1, 1, true, one, one, one, one, out, out, false, d)
                                 : which == 2 ? b->ops->bonus_backward(b, &bonus, one, one, one, one, one, NULL, NULL, d, NULL)
                                 : which == 3 ? b->ops->depth_forward(b, &depth, list, one, one, out)
                                              : b->ops->depth_backward(b, &depth, list, one, one, one, d_list, NULL, NULL);
        allocation_fail_at(0);
        assert_int_equal(status, DR_ERROR_MEMORY);
        assert_int_equal(allocation_alive, alive);
        b->ops->close(b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copied_heads),    cmocka_unit_test(test_values),
        cmocka_unit_test(test_gradients),       cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_split),           cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_empty_sequences),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
