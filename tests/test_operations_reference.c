/* Gradients of the reference's operations against differences, each with random shapes (operation_gradients.h). */
#include "backends/reference/reference.h"
#include "operation_gradients.h"

static dr_backend *backend;
static const dr_operations *ops;

enum { DRAWS = 25 };

static dr_status linear_forward(const operation *o) {
    return ops->linear_forward(backend, o->descriptor, o->operands[0].at, o->operands[1].at, o->operands[2].at, o->y);
}

static dr_status linear_backward(const operation *o, double *const d[]) {
    return ops->linear_backward(backend, o->descriptor, o->operands[0].at, o->operands[1].at, o->d_y, d[0], o->accumulate, d[1],
                                d[2]);
}

static void test_linear(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        dr_linear linear = {.rows = number_between(0, 5), .in = number_between(1, 7), .out = number_between(1, 7)};
        bool accumulate = number_flip(), bias = number_flip();
        operation o = {.descriptor = &linear,
                       .operands = {{"x", numbers_normal(linear.rows * linear.in, 1), linear.rows * linear.in, accumulate},
                                    {"weight", numbers_normal(linear.out * linear.in, 1), linear.out * linear.in, true},
                                    {"bias", bias ? numbers_normal(linear.out, 1) : NULL, linear.out, true}},
                       .count = linear.rows * linear.out,
                       .accumulate = accumulate,
                       .forward = linear_forward,
                       .backward = linear_backward};
        check_operation(&o);
    }
}

static dr_status grouped_linear_forward(const operation *o) {
    return ops->grouped_linear_forward(backend, o->descriptor, o->operands[0].at, o->operands[1].at, o->y);
}

static dr_status grouped_linear_backward(const operation *o, double *const d[]) {
    return ops->grouped_linear_backward(backend, o->descriptor, o->operands[0].at, o->operands[1].at, o->d_y, d[0], d[1]);
}

static void test_grouped_linear(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        dr_grouped_linear linear = {.rows = number_between(0, 5),
                                    .groups = number_between(1, 4),
                                    .in = number_between(1, 6),
                                    .out = number_between(1, 6)};
        int64_t x = linear.rows * linear.groups * linear.in, weight = linear.groups * linear.out * linear.in;
        operation o = {.descriptor = &linear,
                       .operands = {{"x", numbers_normal(x, 1), x, false}, {"weight", numbers_normal(weight, 1), weight, true}},
                       .count = linear.rows * linear.groups * linear.out,
                       .forward = grouped_linear_forward,
                       .backward = grouped_linear_backward};
        check_operation(&o);
    }
}

typedef struct {
    int64_t rows, dim;
} row_shape;

static dr_status embedding_forward(const operation *o) {
    const row_shape *shape = o->descriptor;
    return ops->embedding_forward(backend, shape->rows, shape->dim, o->extra, o->operands[0].at, o->y);
}

static dr_status embedding_backward(const operation *o, double *const d[]) {
    const row_shape *shape = o->descriptor;
    return ops->embedding_backward(backend, shape->rows, shape->dim, o->extra, o->d_y, d[0]);
}

/* up to 8 tokens of up to 3 ids: most come again */
static void test_embedding(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        row_shape shape = {number_between(0, 8), number_between(1, 5)};
        int64_t vocabulary = number_between(1, 3);
        int32_t *ids = numbers_block(shape.rows, sizeof *ids);
        for (int64_t r = 0; r < shape.rows; r++) ids[r] = (int32_t)number_between(0, vocabulary - 1);
        operation o = {.descriptor = &shape,
                       .extra = ids,
                       .operands = {{"table", numbers_normal(vocabulary * shape.dim, 1), vocabulary * shape.dim, true}},
                       .count = shape.rows * shape.dim,
                       .forward = embedding_forward,
                       .backward = embedding_backward};
        check_operation(&o);
    }
}

static dr_status rms_norm_forward(const operation *o) {
    return ops->rms_norm_forward(backend, o->descriptor, o->operands[0].at, o->operands[1].at, o->operands[2].at, o->y);
}

static dr_status rms_norm_backward(const operation *o, double *const d[]) {
    return ops->rms_norm_backward(backend, o->descriptor, o->operands[0].at, o->operands[1].at, o->operands[2].at, o->d_y, d[0],
                                  o->accumulate, d[1], d[2]);
}

static void test_rms_norm(void **state) {
    (void)state;
    static const dr_activation gates[] = {DR_ACTIVATION_NONE, DR_ACTIVATION_SILU, DR_ACTIVATION_SIGMOID};
    for (int draw = 0; draw < 2 * 2 * 3 * 6; draw++, numbers_release()) {
        dr_rms_norm norm = {.rows = number_between(0, 4),
                            .dim = number_between(1, 9),
                            .eps = number_flip() ? 1e-6 : 0.1,
                            .gate = gates[draw % 3],
                            .gate_first = draw / 3 % 2 == 1};
        int64_t count = norm.rows * norm.dim;
        bool accumulate = draw / 6 % 2 == 1, gated = norm.gate != DR_ACTIVATION_NONE;
        operation o = {.descriptor = &norm,
                       .operands = {{"x", numbers_normal(count, 1), count, accumulate},
                                    {"weight", numbers_normal(norm.dim, 1), norm.dim, true},
                                    {"gate", gated ? numbers_normal(count, 2) : NULL, count, false}},
                       .count = count,
                       .accumulate = accumulate,
                       .forward = rms_norm_forward,
                       .backward = rms_norm_backward};
        /* at dim 1 without eps y is the sign of x: keep away from where it jumps */
        for (int64_t i = 0; i < count; i++) {
            o.operands[0].at[i] += copysign(0.3, o.operands[0].at[i]);
            if (gated) o.operands[2].at[i] += copysign(0.3, o.operands[2].at[i]);
        }
        check_operation(&o);
    }
}

static dr_status l2_norm_forward(const operation *o) {
    return ops->l2_norm_forward(backend, o->descriptor, o->operands[0].at, o->y);
}

static dr_status l2_norm_backward(const operation *o, double *const d[]) {
    return ops->l2_norm_backward(backend, o->descriptor, o->operands[0].at, o->d_y, d[0]);
}

static void test_l2_norm(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        dr_l2_norm norm = {.rows = number_between(0, 4), .dim = number_between(1, 9), .eps = number_flip() ? 1e-6 : 0.1};
        int64_t count = norm.rows * norm.dim;
        operation o = {.descriptor = &norm,
                       .operands = {{"x", numbers_normal(count, 1), count, false}},
                       .count = count,
                       .forward = l2_norm_forward,
                       .backward = l2_norm_backward};
        for (int64_t i = 0; i < count; i++) o.operands[0].at[i] += copysign(0.3, o.operands[0].at[i]);
        check_operation(&o);
        double *in_place = numbers_copied(o.d_y, count), *apart = numbers_filled(count, NAN);
        assert_int_equal(ops->l2_norm_backward(backend, &norm, o.operands[0].at, o.d_y, apart), DR_OK);
        assert_int_equal(ops->l2_norm_backward(backend, &norm, o.operands[0].at, in_place, in_place), DR_OK);
        assert_same_bits(in_place, apart, count);
    }
}

static dr_status conv_forward(const operation *o) {
    return ops->conv_forward(backend, o->descriptor, o->operands[0].at, o->operands[1].at, o->operands[2].at, o->extra, o->y,
                             NULL);
}

static dr_status conv_backward(const operation *o, double *const d[]) {
    return ops->conv_backward(backend, o->descriptor, o->operands[0].at, o->operands[1].at, o->operands[2].at, o->extra, o->d_y,
                              d[0], d[1], d[2]);
}

static void test_conv(void **state) {
    (void)state;
    static const dr_activation activations[] = {DR_ACTIVATION_NONE, DR_ACTIVATION_SILU, DR_ACTIVATION_SIGMOID};
    for (int draw = 0; draw < 5 * 3 * 5; draw++, numbers_release()) {
        dr_conv conv = {.layout = layout_drawn(7),
                        .channels = number_between(1, 3),
                        .width = 1 + draw % 5,
                        .activation = activations[draw / 5 % 3]};
        int64_t count = conv.layout.rows * conv.channels, weight = conv.channels * conv.width;
        bool bias = number_flip();
        operation o = {.descriptor = &conv,
                       .operands = {{"x", numbers_normal(count, 1), count, false},
                                    {"weight", numbers_normal(weight, 1), weight, true},
                                    {"bias", bias ? numbers_normal(conv.channels, 1) : NULL, conv.channels, true}},
                       .count = count,
                       .forward = conv_forward,
                       .backward = conv_backward};
        if (number_flip()) o.extra = numbers_normal(conv.layout.sequences * (conv.width - 1) * conv.channels, 1);
        check_operation(&o);
    }
}

static dr_status gate_forward(const operation *o) {
    return ops->gate_forward(backend, o->descriptor, o->operands[0].at, o->operands[1].at, o->operands[2].at, o->y);
}

static dr_status gate_backward(const operation *o, double *const d[]) {
    return ops->gate_backward(backend, o->descriptor, o->operands[0].at, o->operands[1].at, o->operands[2].at, o->d_y, d[0],
                              o->accumulate, d[1], d[2]);
}

/* Every kind, with A_log (up to ln 16, as layers start) of both shapes, with and without bias, added to or not. */
static void test_gate(void **state) {
    (void)state;
    for (int draw = 0; draw < 8 * 2 * 2 * 2 * 3; draw++, numbers_release()) {
        dr_gate gate = {.kind = (dr_gate_kind)(draw % 8),
                        .rows = number_between(0, 4),
                        .heads = number_between(1, 3),
                        .dim = number_between(1, 4),
                        .multiplier = number_flip() ? 1.0 / 16 : 2,
                        .shift = number_flip() ? 0 : -0.9,
                        .lower_bound = -5,
                        .a_log_per_channel = draw / 8 % 2 == 1};
        bool has_a = gate.kind == DR_GATE_LOG_DECAY || gate.kind == DR_GATE_KDA_BOUNDED || gate.kind == DR_GATE_EDA_BOUNDED;
        bool bias = draw / 16 % 2 == 1, accumulate = draw / 32 % 2 == 1;
        int64_t channels = gate.heads * gate.dim, count = gate.rows * channels;
        int64_t a_count = gate.a_log_per_channel ? channels : gate.heads;
        operation o = {.descriptor = &gate,
                       .operands = {{"x", numbers_normal(count, 2), count, accumulate},
                                    {"A_log", has_a ? numbers_filled(a_count, 0) : NULL, a_count, true},
                                    {"bias", bias ? numbers_normal(channels, 1) : NULL, channels, true}},
                       .count = count,
                       .accumulate = accumulate,
                       .forward = gate_forward,
                       .backward = gate_backward};
        for (int64_t i = 0; has_a && i < a_count; i++) o.operands[1].at[i] = log(16) * dr_random_uniform(&numbers_random);
        check_operation(&o);
        if (accumulate) continue;
        double *in_place = numbers_copied(o.d_y, count), *apart = numbers_filled(count, NAN);
        gate_backward(&o, (double *[]){apart, NULL, NULL});
        o.d_y = in_place;
        gate_backward(&o, (double *[]){in_place, NULL, NULL});
        assert_same_bits(in_place, apart, count);
    }
}

static dr_status swiglu_forward(const operation *o) {
    return ops->swiglu_forward(backend, o->count, o->operands[0].at, o->operands[1].at, o->y);
}

static dr_status swiglu_backward(const operation *o, double *const d[]) {
    return ops->swiglu_backward(backend, o->count, o->operands[0].at, o->operands[1].at, o->d_y, d[0], d[1]);
}

static void test_swiglu(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        int64_t count = number_between(0, 40);
        operation o = {
            .operands = {{"gate", numbers_normal(count, 3), count, false}, {"up", numbers_normal(count, 1), count, false}},
            .count = count,
            .forward = swiglu_forward,
            .backward = swiglu_backward};
        check_operation(&o);
    }
}

typedef struct {
    int64_t rows, heads, dim;
    bool shared;
} head_shape;

static dr_status scale_heads_forward(const operation *o) {
    const head_shape *s = o->descriptor;
    if (o->accumulate) /* onto numbers that do not move, so that the differences are those of the product alone */
        for (int64_t i = 0; i < o->count; i++) o->y[i] = 0.25 * (double)(i % 7);
    return ops->scale_heads_forward(backend, s->rows, s->heads, s->dim, s->shared, o->operands[0].at, o->operands[1].at, o->y,
                                    o->accumulate);
}

static dr_status scale_heads_backward(const operation *o, double *const d[]) {
    const head_shape *s = o->descriptor;
    return ops->scale_heads_backward(backend, s->rows, s->heads, s->dim, s->shared, o->operands[0].at, o->operands[1].at,
                                     o->d_y, d[0], d[1], o->accumulate);
}

static void test_scale_heads(void **state) {
    (void)state;
    for (int draw = 0; draw < 4 * 8; draw++, numbers_release()) {
        head_shape s = {number_between(0, 4), number_between(1, 4), number_between(1, 5), draw % 2 == 1};
        int64_t factors = s.shared ? s.heads : s.rows * s.heads, count = s.rows * s.heads * s.dim;
        bool accumulate = draw / 2 % 2 == 1;
        operation o = {.descriptor = &s,
                       .operands = {{"factor", numbers_normal(factors, 1), factors, s.shared},
                                    {"x", numbers_normal(count, 1), count, accumulate}},
                       .count = count,
                       .accumulate = accumulate,
                       .forward = scale_heads_forward,
                       .backward = scale_heads_backward};
        check_operation(&o);
    }
}

typedef struct {
    int64_t rows, count, dim;
} pick_shape;

static dr_status rows_forward(const operation *o) {
    const pick_shape *s = o->descriptor;
    return ops->rows_gather(backend, s->count, s->dim, o->extra, o->operands[0].at, o->y);
}

static dr_status rows_backward(const operation *o, double *const d[]) {
    const pick_shape *s = o->descriptor;
    return ops->rows_scatter(backend, s->rows, s->count, s->dim, o->extra, o->d_y, d[0]);
}

static void test_rows(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        pick_shape s = {.rows = number_between(0, 9), .count = 0, .dim = number_between(1, 4)};
        int64_t *positions = numbers_block(s.rows, sizeof *positions);
        for (int64_t r = 0; r < s.rows; r++)
            if (number_flip()) positions[s.count++] = r;
        operation o = {.descriptor = &s,
                       .extra = positions,
                       .operands = {{"x", numbers_normal(s.rows * s.dim, 1), s.rows * s.dim, false}},
                       .count = s.count * s.dim,
                       .forward = rows_forward,
                       .backward = rows_backward};
        check_operation(&o);
    }
}

typedef struct {
    int64_t count, vocabulary;
    double factor;
    uint8_t *hit;
} score_shape;

static dr_status cross_entropy_forward(const operation *o) {
    const score_shape *s = o->descriptor;
    return ops->cross_entropy(backend, s->count, s->vocabulary, o->operands[0].at, o->extra, s->factor, o->y, s->hit, NULL);
}

static dr_status cross_entropy_backward(const operation *o, double *const d[]) {
    const score_shape *s = o->descriptor;
    return ops->cross_entropy(backend, s->count, s->vocabulary, o->operands[0].at, o->extra, s->factor, o->y, s->hit, d[0]);
}

static void test_cross_entropy(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        score_shape s = {number_between(0, 5), number_between(1, 8), number_flip() ? 1 : -0.125, NULL};
        int32_t *labels = numbers_block(s.count, sizeof *labels);
        for (int64_t i = 0; i < s.count; i++) labels[i] = (int32_t)number_between(0, s.vocabulary - 1);
        s.hit = numbers_block(s.count, 1);
        operation o = {.descriptor = &s,
                       .extra = labels,
                       .operands = {{"logits", numbers_normal(s.count * s.vocabulary, 2), s.count * s.vocabulary, false}},
                       .d_y = numbers_filled(s.count, s.factor),
                       .count = s.count,
                       .forward = cross_entropy_forward,
                       .backward = cross_entropy_backward};
        check_operation(&o);
    }
}

static int open_backend(void **state) {
    (void)state;
    if (dr_reference_open(NULL, &backend) != DR_OK) return -1;
    ops = backend->ops;
    return 0;
}

static int close_backend(void **state) {
    (void)state;
    ops->close(backend);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),   cmocka_unit_test(test_grouped_linear), cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_rms_norm), cmocka_unit_test(test_l2_norm),        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_gate),     cmocka_unit_test(test_swiglu),         cmocka_unit_test(test_scale_heads),
        cmocka_unit_test(test_rows),     cmocka_unit_test(test_cross_entropy),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
