/* Mixture of experts: routing against choices worked out by hand and by sorting, gradients of the reference against
 * differences, the CPU backend against the reference, and a token's result beside other tokens and alone. */
#include "allocation.h"
#include "cpu_calls.h"
#include "operation_gradients.h"

enum { GRADIENT_DRAWS = 30 };

static dr_router router_drawn(int64_t most_rows, int64_t most_experts) {
    dr_router r = {
        .groups = 1, .kept = 1, .sigmoid = number_flip(), .normalised = number_flip(), .scale = number_flip() ? 1 : 2.5};
    r.of.rows = number_between(0, most_rows);
    r.of.experts = number_between(1, most_experts);
    if (most_experts >= 4 && number_flip()) {
        r.groups = number_between(2, most_experts / 2);
        r.of.experts = r.groups * number_between(2, most_experts / r.groups);
        r.kept = number_between(1, r.groups);
    }
    r.of.chosen = number_between(1, r.of.experts / r.groups * r.kept);
    assert_int_equal(dr_router_check(&r), DR_OK);
    return r;
}

/* ---- routing --------------------------------------------------------------------------------------------------------- */

/* One token, six experts in three groups. */
static void test_route_values(void **state) {
    (void)state;
    const double logits[6] = {0, log(3), log(2), log(2), -log(2), 0}, bias[6] = {0, 0, 0, 0, 1, 0};
    dr_router r = {.of = {1, 6, 2}, .groups = 1, .kept = 1, .scale = 1};
    int32_t index[3];
    double weights[3];
    const dr_operations *ops = reference->ops;
    assert_int_equal(ops->route_forward(reference, &r, logits, NULL, index, weights), DR_OK);
    assert_true(index[0] == 1 && index[1] == 2); /* of the two equal ones the first */
    assert_true(fabs(weights[0] - 3 / 9.5) < 1e-15 && fabs(weights[1] - 2 / 9.5) < 1e-15);
    r.normalised = true;
    r.scale = 2.5;
    assert_int_equal(ops->route_forward(reference, &r, logits, NULL, index, weights), DR_OK);
    assert_true(fabs(weights[0] - 1.5) < 1e-15 && fabs(weights[1] - 1) < 1e-15);
    /* sigmoids 1/2, 3/4 | 2/3, 2/3 | 1/3, 1/2; the bias lifts expert 4 and its group, not its weight */
    r.sigmoid = true;
    r.normalised = false;
    r.scale = 1;
    r.groups = 3;
    r.kept = 2;
    r.of.chosen = 3;
    assert_int_equal(ops->route_forward(reference, &r, logits, bias, index, weights), DR_OK);
    assert_true(index[0] == 4 && index[1] == 2 && index[2] == 3); /* group 0 has 5/4, group 1 4/3, group 2 11/6 */
    assert_true(fabs(weights[0] - 1. / 3) < 1e-15 && fabs(weights[1] - 2. / 3) < 1e-15);
    r.normalised = true;
    assert_int_equal(ops->route_forward(reference, &r, logits, bias, index, weights), DR_OK);
    assert_true(fabs(weights[0] - 0.2) < 1e-15 && fabs(weights[2] - 0.4) < 1e-15);
}

/* Two tokens to one of two experts each, the same one: f = (2, 0)/2 chosen times, P its mean score. */
static void test_balance_values(void **state) {
    (void)state;
    const double logits[4] = {log(3), 0, 0, -log(4)};
    const dr_router r = {.of = {2, 2, 1}, .groups = 1, .kept = 1, .scale = 1};
    const int32_t index[2] = {0, 0};
    double loss = 7;
    assert_int_equal(reference->ops->balance(reference, &r, logits, index, 0.5, &loss, NULL), DR_OK);
    assert_true(fabs(loss - 7 - 0.5 * 2 * (0.75 + 0.8) / 2) < 1e-15);
    /* even use of all experts is 1 with one choice, and chosen with more */
    const double even[6] = {0};
    const dr_router three = {.of = {2, 3, 3}, .groups = 1, .kept = 1, .scale = 1, .sigmoid = true};
    const int32_t all[6] = {0, 1, 2, 2, 0, 1};
    loss = 0;
    assert_int_equal(reference->ops->balance(reference, &three, even, all, 1, &loss, NULL), DR_OK);
    assert_true(fabs(loss - 3) < 1e-15);
}

static dr_status route_forward(const operation *o) {
    const dr_router *r = o->descriptor;
    int32_t *index = numbers_block(r->of.rows * r->of.chosen, sizeof *index);
    const dr_status status = reference->ops->route_forward(reference, r, o->operands[0].at, o->extra, index, o->y);
    free(index);
    numbers_count--;
    return status;
}

static dr_status route_backward(const operation *o, double *const d[]) {
    const dr_router *r = o->descriptor;
    int32_t *index = numbers_block(r->of.rows * r->of.chosen, sizeof *index);
    double *weights = numbers_filled(o->count, NAN);
    assert_int_equal(reference->ops->route_forward(reference, r, o->operands[0].at, o->extra, index, weights), DR_OK);
    return reference->ops->route_backward(reference, r, o->operands[0].at, index, o->d_y, d[0]);
}

static dr_status balance_forward(const operation *o) {
    o->y[0] = 0;
    return reference->ops->balance(reference, o->descriptor, o->operands[0].at, o->extra, 0.7, o->y, NULL);
}

static dr_status balance_backward(const operation *o, double *const d[]) {
    double loss = 0;
    return reference->ops->balance(reference, o->descriptor, o->operands[0].at, o->extra, 0.7 * o->d_y[0], &loss, d[0]);
}

static int32_t *index_drawn(const dr_experts *of) {
    int32_t *index = numbers_block(of->rows * of->chosen, sizeof *index);
    for (int64_t t = 0; t < of->rows; t++) { /* some neighbours in the ring of experts */
        const int64_t first = number_between(0, of->experts - 1);
        for (int64_t j = 0; j < of->chosen; j++) index[t * of->chosen + j] = (int32_t)((first + j) % of->experts);
    }
    return index;
}

static void test_route_gradients(void **state) {
    (void)state;
    for (int draw = 0; draw < GRADIENT_DRAWS; draw++, numbers_release()) {
        const dr_router r = router_drawn(4, 8);
        const int64_t count = r.of.rows * r.of.experts;
        operation route = {.descriptor = &r,
                           .extra = number_flip() ? numbers_normal(r.of.experts, 0.5) : NULL,
                           .operands = {{"logits", numbers_normal(count, 2), count, false}},
                           .count = r.of.rows * r.of.chosen,
                           .forward = route_forward,
                           .backward = route_backward};
        check_operation(&route);
        operation balance = {.descriptor = &r,
                             .extra = index_drawn(&r.of),
                             .operands = {{"logits", numbers_normal(count, 2), count, true}},
                             .count = 1,
                             .forward = balance_forward,
                             .backward = balance_backward};
        check_operation(&balance);
    }
}

/* ---- the way of tokens ----------------------------------------------------------------------------------------------- */

/* Everything between x [rows, in] and y [rows, out] in one: operands x, weight, weights. */
typedef struct {
    dr_experts of;
    int64_t in, out;
    int32_t *order, *place, *begins;
} way;

static way way_drawn(int64_t most_rows, int64_t most_experts, int64_t most_size) {
    way w = {.of = {number_between(0, most_rows), number_between(1, most_experts), 0}};
    w.of.chosen = number_between(1, w.of.experts < 4 ? w.of.experts : 4);
    w.in = number_between(1, most_size);
    w.out = number_between(1, most_size);
    w.order = numbers_block(w.of.rows * w.of.chosen, sizeof(int32_t));
    w.place = numbers_block(w.of.rows * w.of.chosen, sizeof(int32_t));
    w.begins = numbers_block(w.of.experts + 1, sizeof(int32_t));
    return w;
}

static dr_status go(dr_backend *b, const way *w, const void *x, const void *weight, const void *weights, void *slots_x,
                    void *slots_y, void *y, bool accumulate) {
    const dr_operations *ops = b->ops;
    DR_TRY(ops->experts_gather_forward(b, &w->of, w->in, w->order, x, slots_x));
    DR_TRY(ops->experts_linear_forward(b, &w->of, w->in, w->out, w->begins, slots_x, weight, slots_y));
    return ops->experts_combine_forward(b, &w->of, w->out, w->place, weights, slots_y, y, accumulate);
}

static dr_status way_forward(const operation *o) {
    const way *w = o->descriptor;
    double *const *slots = o->extra;
    return go(reference, w, o->operands[0].at, o->operands[1].at, o->operands[2].at, slots[0], slots[1], o->y, false);
}

static dr_status way_backward(const operation *o, double *const d[]) {
    const way *w = o->descriptor;
    const int64_t slots = w->of.rows * w->of.chosen;
    double *const *saved = o->extra, *d_slots_x = numbers_filled(slots * w->in, NAN);
    double *d_slots_y = numbers_filled(slots * w->out, NAN);
    const dr_operations *ops = reference->ops;
    DR_TRY(way_forward(o));
    DR_TRY(ops->experts_combine_backward(reference, &w->of, w->out, w->place, o->operands[2].at, saved[1], o->d_y, d[2],
                                         d_slots_y));
    DR_TRY(ops->experts_linear_backward(reference, &w->of, w->in, w->out, w->begins, saved[0], o->operands[1].at, d_slots_y,
                                        d_slots_x, false, d[1]));
    return d[0] ? ops->experts_gather_backward(reference, &w->of, w->in, w->place, d_slots_x, d[0], o->accumulate) : DR_OK;
}

static void test_way_gradients(void **state) {
    (void)state;
    for (int draw = 0; draw < GRADIENT_DRAWS; draw++, numbers_release()) {
        const way w = way_drawn(6, 5, 4);
        const int64_t slots = w.of.rows * w.of.chosen, x = w.of.rows * w.in, weight = w.of.experts * w.out * w.in;
        double *const saved[2] = {numbers_filled(slots * w.in, NAN), numbers_filled(slots * w.out, NAN)};
        const bool accumulate = number_flip();
        assert_int_equal(reference->ops->experts_sort(reference, &w.of, index_drawn(&w.of), w.order, w.place, w.begins), DR_OK);
        operation o = {.descriptor = &w,
                       .extra = saved,
                       .operands = {{"x", numbers_normal(x, 1), x, accumulate},
                                    {"weight", numbers_normal(weight, 1), weight, true},
                                    {"weights", numbers_normal(slots, 1), slots, false}},
                       .count = w.of.rows * w.out,
                       .accumulate = accumulate,
                       .forward = way_forward,
                       .backward = way_backward};
        check_operation(&o);
    }
}

/* Slots by expert, of one expert by token; the three lists say the same. */
static void check_sorted(const way *w, const int32_t *index) {
    const int64_t slots = w->of.rows * w->of.chosen;
    assert_int_equal(w->begins[0], 0);
    assert_int_equal(w->begins[w->of.experts], slots);
    for (int64_t e = 0; e < w->of.experts; e++)
        for (int64_t i = w->begins[e]; i < w->begins[e + 1]; i++) {
            assert_int_equal(index[w->order[i]], e);
            assert_int_equal(w->place[w->order[i]], i);
            if (i > w->begins[e]) assert_true(w->order[i] > w->order[i - 1]);
        }
}

static void test_sort(void **state) {
    (void)state;
    for (int draw = 0; draw < GRADIENT_DRAWS; draw++, numbers_release()) {
        const way w = way_drawn(50, 20, 1);
        const int32_t *index = index_drawn(&w.of);
        dr_backend *const backends[2] = {reference, cpu[0][0]};
        for (int b = 0; b < 2; b++) {
            assert_int_equal(backends[b]->ops->experts_sort(backends[b], &w.of, index, w.order, w.place, w.begins), DR_OK);
            check_sorted(&w, index);
        }
    }
}

/* ---- the CPU against the reference ----------------------------------------------------------------------------------- */

/* index comes back as numbers */
static dr_status cpu_route_forward(const call *c, dr_backend *b, void *const at[]) {
    const dr_router *r = c->descriptor;
    const int64_t slots = r->of.rows * r->of.chosen;
    int32_t *index = malloc((size_t)(slots + 1) * sizeof *index);
    double *numbers = malloc((size_t)(slots + 1) * sizeof *numbers);
    const dr_status status = b->ops->route_forward(b, r, at[0], at[1], index, at[2]);
    for (int64_t i = 0; i < slots; i++) numbers[i] = index[i];
    assert_int_equal(b->ops->upload(b, at[3], numbers, DR_F64, slots), DR_OK);
    free(index);
    free(numbers);
    return status;
}

static dr_status cpu_route_backward(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->route_backward(b, c->descriptor, at[0], c->extra, at[1], at[2]);
}

static dr_status cpu_balance(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->balance(b, c->descriptor, at[0], c->extra, 0.3, at[1], at[2]);
}

static void test_cpu_routing(void **state) {
    (void)state;
    for (int draw = 0; draw < 3 * DRAWS; draw++, numbers_release()) {
        const dr_router r = router_drawn(draw % 3 ? 40 : 600, draw % 2 ? 8 : 70);
        const int64_t count = r.of.rows * r.of.experts, slots = r.of.rows * r.of.chosen;
        tensor logits = input("logits", count);
        for (int64_t i = 0; i < count; i += 5) logits.values[i] = floor(logits.values[i]); /* ties, far apart and near */
        for (int64_t i = 0; i < count; i += 11) logits.values[i] *= 64;
        check(&(call){"route_forward",
                      &r,
                      NULL,
                      tolerance_forward,
                      {logits, maybe(input("bias", r.of.experts)), overwritten("weights", slots), overwritten("index", slots)},
                      cpu_route_forward});
        const int32_t *index = index_drawn(&r.of);
        check(&(call){"route_backward",
                      &r,
                      index,
                      tolerance_backward,
                      {logits, input("d_weights", slots), overwritten("d_logits", count)},
                      cpu_route_backward});
        check(&(call){"balance",
                      &r,
                      index,
                      tolerance_backward,
                      {logits, added("loss", 1), maybe(added("d_logits", count))},
                      cpu_balance});
    }
}

/* Where sigmoid(x) rounds to 1 its slope is still exp(-x). */
static void test_saturated(void **state) {
    (void)state;
    const dr_router r = {.of = {.rows = 1, .experts = 2, .chosen = 1}, .groups = 1, .kept = 1, .sigmoid = true, .scale = 1};
    const float logits[2] = {30, -2}, d_weights[1] = {1};
    const int32_t index[1] = {0};
    float d_logits[2] = {NAN, NAN};
    dr_backend *const backend = cpu[0][0];
    assert_int_equal(backend->ops->route_backward(backend, &r, logits, index, d_weights, d_logits), DR_OK);
    assert_true(fabs((double)d_logits[0] / exp(-30) - 1) < 1e-6);
    assert_true(d_logits[1] == 0);
}

static dr_status cpu_way(const call *c, dr_backend *b, void *const at[]) {
    return go(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], at[5], *(const bool *)c->extra);
}

static dr_status cpu_way_backward(const call *c, dr_backend *b, void *const at[]) {
    const way *w = c->descriptor;
    const bool accumulate = *(const bool *)c->extra;
    const dr_operations *ops = b->ops;
    DR_TRY(ops->experts_combine_backward(b, &w->of, w->out, w->place, at[2], at[4], at[5], at[6], at[7]));
    DR_TRY(ops->experts_linear_backward(b, &w->of, w->in, w->out, w->begins, at[3], at[1], at[7], at[8], accumulate, at[9]));
    return ops->experts_gather_backward(b, &w->of, w->in, w->place, at[8], at[10], accumulate);
}

static void check_way(way w) {
    const int64_t slots = w.of.rows * w.of.chosen, xs = w.of.rows * w.in, ys = w.of.rows * w.out;
    const int64_t weights = w.of.experts * w.out * w.in;
    const bool accumulate = number_flip();
    assert_int_equal(reference->ops->experts_sort(reference, &w.of, index_drawn(&w.of), w.order, w.place, w.begins), DR_OK);
    check(&(call){"experts forward",
                  &w,
                  &accumulate,
                  tolerance_forward,
                  {input("x", xs), input("weight", weights), input("weights", slots), overwritten("slots of x", slots * w.in),
                   overwritten("slots of y", slots * w.out), accumulated("y", ys, accumulate)},
                  cpu_way});
    check(&(call){"experts backward",
                  &w,
                  &accumulate,
                  tolerance_backward,
                  {input("x", xs), input("weight", weights), input("weights", slots), input("slots of x", slots * w.in),
                   input("slots of y", slots * w.out), input("d_y", ys), maybe(overwritten("d_weights", slots)),
                   overwritten("d_slots of y", slots * w.out), accumulated("d_slots of x", slots * w.in, accumulate),
                   maybe(added("d_weight", weights)), accumulated("d_x", xs, accumulate)},
                  cpu_way_backward});
    numbers_release();
}

static void test_cpu_way(void **state) {
    (void)state;
    for (int draw = 0; draw < 2 * DRAWS; draw++) check_way(way_drawn(draw % 3 ? 30 : 300, 9, 90));
    static const int64_t sizes[] = {64, 128, 256};
    for (int i = 0; i < 3; i++) {
        way w = way_drawn(400, 8, 1);
        w.in = sizes[i];
        w.out = sizes[2 - i];
        check_way(w);
    }
}

/* A token gets the same bits with all others and with a part of them. */
static void test_cut(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        way w = way_drawn(200, 6, 80);
        dr_backend *b = cpu[draw % isas][draw % THREADS];
        const int64_t slots = w.of.rows * w.of.chosen, ys = w.of.rows * w.out;
        const int32_t *index = index_drawn(&w.of);
        float *x = numbers_block(w.of.rows * w.in, 4), *weight = numbers_block(w.of.experts * w.out * w.in, 4);
        float *weights = numbers_block(slots, 4), *sx = numbers_block(slots * w.in, 4), *sy = numbers_block(slots * w.out, 4);
        float *whole = numbers_block(ys, 4), *parts = numbers_block(ys, 4);
        for (int64_t i = 0; i < w.of.rows * w.in; i++) x[i] = (float)dr_random_normal(&numbers_random);
        for (int64_t i = 0; i < w.of.experts * w.out * w.in; i++) weight[i] = (float)dr_random_normal(&numbers_random);
        for (int64_t i = 0; i < slots; i++) weights[i] = (float)dr_random_normal(&numbers_random);
        assert_int_equal(b->ops->experts_sort(b, &w.of, index, w.order, w.place, w.begins), DR_OK);
        assert_int_equal(go(b, &w, x, weight, weights, sx, sy, whole, false), DR_OK);
        const int64_t rows = w.of.rows;
        for (int64_t from = 0; from < rows; from += w.of.rows) {
            w.of.rows = number_between(1, rows - from);
            assert_int_equal(b->ops->experts_sort(b, &w.of, index + from * w.of.chosen, w.order, w.place, w.begins), DR_OK);
            assert_int_equal(
                go(b, &w, x + from * w.in, weight, weights + from * w.of.chosen, sx, sy, parts + from * w.out, false), DR_OK);
        }
        if (ys > 0) assert_memory_equal(whole, parts, (size_t)ys * 4);
    }
}

/* ---- what cannot be -------------------------------------------------------------------------------------------------- */

static void refuse(int64_t experts, int64_t chosen, int64_t groups, int64_t kept, double scale, const char *words) {
    const dr_router r = {.of = {1, experts, chosen}, .groups = groups, .kept = kept, .scale = scale};
    assert_int_equal(dr_router_check(&r), DR_ERROR_ARGUMENT);
    if (!strstr(dr_last_error(), words)) fail_msg("\"%s\" does not say \"%s\"", dr_last_error(), words);
}

static void test_refused(void **state) {
    (void)state;
    refuse(0, 1, 1, 1, 1, "0 experts");
    refuse(4, 0, 1, 1, 1, "0 of 4 experts");
    refuse(4, 5, 1, 1, 1, "5 of 4 experts");
    refuse(4, 1, 0, 1, 1, "0 equal groups");
    refuse(6, 1, 4, 1, 1, "4 equal groups");
    refuse(4, 1, 4, 1, 1, "groups of one expert");
    refuse(4, 1, 2, 3, 1, "3 of 2 groups");
    refuse(4, 1, 2, 0, 1, "0 of 2 groups");
    refuse(8, 3, 4, 1, 1, "from 1 groups of 2");
    refuse(4, 1, 1, 1, NAN, "nan");
}

static void test_allocations(void **state) {
    (void)state;
    const dr_router r = {.of = {1, 2, 1}, .groups = 1, .kept = 1, .scale = 1};
    const double logits[2] = {0, 1};
    int32_t index[1] = {0}, begins[3] = {0, 1, 1};
    double out[4] = {0};
    for (int on_cpu = 0; on_cpu < 2; on_cpu++)
        for (int which = 0; which < 4; which++) {
            dr_backend *b;
            assert_int_equal(on_cpu ? dr_cpu_open(NULL, &b) : dr_reference_open(NULL, &b), DR_OK);
            const long alive = allocation_alive;
            allocation_fail_at(1);
            const dr_status status = which == 0   ? b->ops->route_forward(b, &r, logits, NULL, index, out)
                                     : which == 1 ? b->ops->route_backward(b, &r, logits, index, logits, out)
                                     : which == 2 ? b->ops->balance(b, &r, logits, index, 1, out, out + 1)
                                                  : b->ops->experts_linear_forward(b, &r.of, 1, 1, begins, logits, logits, out);
            allocation_fail_at(0);
            assert_int_equal(status, which == 3 && !on_cpu ? DR_OK : DR_ERROR_MEMORY);
            assert_int_equal(allocation_alive, alive);
            b->ops->close(b);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_route_values),  cmocka_unit_test(test_balance_values), cmocka_unit_test(test_route_gradients),
        cmocka_unit_test(test_way_gradients), cmocka_unit_test(test_sort),           cmocka_unit_test(test_cpu_routing),
        cmocka_unit_test(test_saturated),     cmocka_unit_test(test_cpu_way),        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
