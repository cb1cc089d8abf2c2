/* Values of the reference's operations against formulas written here a second time, in long double where precision is in
 * question, and what their contract promises beside values: extreme arguments, splits, packing, memory used twice. */
#include "backends/reference/reference.h"
#include "base/half.h"
#include "numbers.h"

#include <float.h>
#include <math.h>

static dr_backend *backend;
static const dr_operations *ops;

/* relative, and absolute where the numbers are below 1e-290 and lose bits */
static void assert_close(double value, long double expected, double tolerance) {
    if (!(fabsl(value - expected) <= tolerance * fabsl(expected) + 1e-300L))
        fail_msg("%.17g is not %.20Lg to %.1g", value, expected, tolerance);
}

static void test_linear_by_hand(void **state) {
    (void)state;
    double x[] = {1, 2, -1, 0.5}, weight[] = {3, 4, 5, 6, 7, 8}, bias[] = {10, 20, 30}, y[6];
    dr_linear linear = {.rows = 2, .in = 2, .out = 3};
    static const double with_bias[] = {21, 37, 53, 9, 18, 27}, without[] = {11, 17, 23, -1, -2, -3};
    assert_int_equal(ops->linear_forward(backend, &linear, x, weight, bias, y), DR_OK);
    assert_same_bits(y, with_bias, 6);
    assert_int_equal(ops->linear_forward(backend, &linear, x, weight, NULL, y), DR_OK);
    assert_same_bits(y, without, 6);
}

/* one matrix a group: as the plain product of that group's columns */
static void test_grouped_linear_by_groups(void **state) {
    (void)state;
    dr_grouped_linear grouped = {.rows = 3, .groups = 2, .in = 4, .out = 5};
    double *x = numbers_normal(3 * 2 * 4, 1), *weight = numbers_normal(2 * 5 * 4, 1), *y = numbers_filled(3 * 2 * 5, NAN);
    assert_int_equal(ops->grouped_linear_forward(backend, &grouped, x, weight, y), DR_OK);
    for (int64_t r = 0; r < 3; r++)
        for (int64_t g = 0; g < 2; g++) {
            double alone[5];
            dr_linear linear = {.rows = 1, .in = 4, .out = 5};
            ops->linear_forward(backend, &linear, x + (r * 2 + g) * 4, weight + g * 20, NULL, alone);
            assert_same_bits(y + (r * 2 + g) * 5, alone, 5);
        }
    numbers_release();
}

static void test_embedding_picks_and_sums(void **state) {
    (void)state;
    int32_t ids[] = {2, 0, 2, 2};
    double table[] = {1, 2, 3, 4, 5, 6}, y[8], d_y[] = {1, 10, 2, 20, 4, 40, 8, 80}, d_table[] = {0, 0, 7, 7, 100, 100};
    static const double picked[] = {5, 6, 1, 2, 5, 6, 5, 6}, summed[] = {2, 20, 7, 7, 113, 230};
    assert_int_equal(ops->embedding_forward(backend, 4, 2, ids, table, y), DR_OK);
    assert_same_bits(y, picked, 8);
    assert_int_equal(ops->embedding_backward(backend, 4, 2, ids, d_y, d_table), DR_OK);
    assert_same_bits(d_table, summed, 6);
}

static long double sigmoidl(long double x) {
    return 1 / (1 + expl(-x));
}

static long double activated(dr_activation kind, long double x) {
    return kind == DR_ACTIVATION_SILU ? x * sigmoidl(x) : kind == DR_ACTIVATION_SIGMOID ? sigmoidl(x) : x;
}

static void test_norms_by_formula(void **state) {
    (void)state;
    enum { ROWS = 3, DIM = 7 };
    for (int draw = 0; draw < 6; draw++, numbers_release()) {
        dr_rms_norm norm = {.rows = ROWS, .dim = DIM, .eps = 0.01, .gate = (dr_activation)(draw % 3), .gate_first = draw >= 3};
        bool gated = norm.gate != DR_ACTIVATION_NONE;
        double *x = numbers_normal(ROWS * DIM, 1), *gate = gated ? numbers_normal(ROWS * DIM, 2) : NULL;
        double *weight = numbers_normal(DIM, 1), *y = numbers_filled(ROWS * DIM, NAN);
        assert_int_equal(ops->rms_norm_forward(backend, &norm, x, weight, gate, y), DR_OK);
        for (int r = 0; r < ROWS; r++) {
            long double u[DIM], after[DIM], squares = 0;
            for (int i = 0; i < DIM; i++) {
                long double factor = gated ? activated(norm.gate, gate[r * DIM + i]) : 1;
                u[i] = x[r * DIM + i] * (norm.gate_first ? factor : 1);
                after[i] = norm.gate_first ? 1 : factor;
                squares += u[i] * u[i];
            }
            for (int i = 0; i < DIM; i++)
                assert_close(y[r * DIM + i], u[i] / sqrtl(squares / DIM + 0.01L) * weight[i] * after[i], 1e-14);
        }
    }
    dr_l2_norm l2 = {.rows = 2, .dim = 2, .eps = 11};
    double x[] = {3, 4, 0, 5}, y[4];
    assert_int_equal(ops->l2_norm_forward(backend, &l2, x, y), DR_OK);
    for (int i = 0; i < 4; i++) assert_close(y[i], x[i] / 6.0L, 1e-15);
    assert_int_equal(ops->l2_norm_forward(backend, &l2, x, x), DR_OK);
    assert_same_bits(x, y, 4);
}

/* A row of zeros, as a padded or silent token gives, has neither NaN nor infinity. */
static void test_norms_of_zero(void **state) {
    (void)state;
    double x[3] = {0}, weight[] = {1, 2, 3}, d_y[] = {1, 1, 1}, y[3], d_x[3];
    dr_rms_norm rms = {.rows = 1, .dim = 3, .eps = 1e-6};
    dr_l2_norm l2 = {.rows = 1, .dim = 3, .eps = 1e-6};
    ops->rms_norm_forward(backend, &rms, x, weight, NULL, y);
    ops->rms_norm_backward(backend, &rms, x, weight, NULL, d_y, d_x, false, NULL, NULL);
    for (int i = 0; i < 3; i++) assert_close(d_x[i], 1000.0L * weight[i], 1e-12);
    for (int i = 0; i < 3; i++) assert_true(y[i] == 0);
    ops->l2_norm_forward(backend, &l2, x, y);
    ops->l2_norm_backward(backend, &l2, x, d_y, d_x);
    for (int i = 0; i < 3; i++) assert_true(y[i] == 0);
    for (int i = 0; i < 3; i++) assert_close(d_x[i], 1000.0L, 1e-12);
}

/* Against the definition: the sequence with its state before it, convolved. */
static void test_conv_by_formula(void **state) {
    (void)state;
    for (int draw = 0; draw < 60; draw++, numbers_release()) {
        dr_conv conv = {.layout = layout_drawn(7), .channels = number_between(1, 3), .width = 1 + draw % 5};
        conv.activation = (dr_activation)(draw / 5 % 3);
        int64_t channels = conv.channels, kept = conv.width - 1, sequences = conv.layout.sequences;
        double *x = numbers_normal(conv.layout.rows * channels, 1), *y = numbers_filled(conv.layout.rows * channels, NAN);
        double *weight = numbers_normal(channels * conv.width, 1), *bias = number_flip() ? numbers_normal(channels, 1) : NULL;
        double *initial = number_flip() ? numbers_normal(sequences * kept * channels, 1) : NULL;
        double *final = numbers_filled(sequences * kept * channels, NAN);
        assert_int_equal(ops->conv_forward(backend, &conv, x, weight, bias, initial, y, final), DR_OK);
        for (int64_t i = 0; i < sequences; i++) {
            int64_t begin = dr_layout_begin(&conv.layout, i), length = dr_layout_begin(&conv.layout, i + 1) - begin;
            double *whole = numbers_filled((kept + length) * channels, 0);
            if (initial) memcpy(whole, initial + i * kept * channels, (size_t)(kept * channels) * sizeof *whole);
            if (length > 0) memcpy(whole + kept * channels, x + begin * channels, (size_t)(length * channels) * sizeof *whole);
            for (int64_t t = 0; t < length; t++)
                for (int64_t c = 0; c < channels; c++) {
                    long double u = bias ? bias[c] : 0;
                    for (int64_t w = 0; w < conv.width; w++) u += weight[c * conv.width + w] * whole[(t + w) * channels + c];
                    assert_true(fabsl(y[(begin + t) * channels + c] - activated(conv.activation, u)) < 1e-13);
                }
            assert_same_bits(final + i * kept * channels, whole + length * channels, kept * channels);
        }
    }
}

/* Cut anywhere, with the state of the first part given to the second in place, a sequence convolves to the same bits; and so
 * does each sequence of a packed call alone. */
static void test_conv_split_and_packed(void **state) {
    (void)state;
    enum { ROWS = 9, CHANNELS = 2 };
    for (int64_t width = 1; width <= 5; width++)
        for (int64_t cut = 0; cut <= ROWS; cut++, numbers_release()) {
            double *x = numbers_normal(ROWS * CHANNELS, 1), *weight = numbers_normal(CHANNELS * width, 1);
            double *initial = numbers_normal((width - 1) * CHANNELS, 1),
                   *moving = numbers_copied(initial, (width - 1) * CHANNELS);
            double *whole = numbers_filled(ROWS * CHANNELS, NAN), *parts = numbers_filled(ROWS * CHANNELS, NAN);
            double *final = numbers_filled((width - 1) * CHANNELS, NAN);
            dr_conv conv = {.layout = {1, ROWS, NULL}, .channels = CHANNELS, .width = width, .activation = DR_ACTIVATION_SILU};
            dr_conv first = {.layout = {1, cut, NULL}, .channels = CHANNELS, .width = width, .activation = DR_ACTIVATION_SILU};
            dr_conv second = {
                .layout = {1, ROWS - cut, NULL}, .channels = CHANNELS, .width = width, .activation = DR_ACTIVATION_SILU};
            ops->conv_forward(backend, &conv, x, weight, NULL, initial, whole, final);
            ops->conv_forward(backend, &first, x, weight, NULL, moving, parts, moving);
            ops->conv_forward(backend, &second, x + cut * CHANNELS, weight, NULL, moving, parts + cut * CHANNELS, moving);
            assert_same_bits(parts, whole, ROWS * CHANNELS);
            assert_same_bits(moving, final, (width - 1) * CHANNELS);

            int64_t begins[] = {0, cut, cut, ROWS};
            dr_conv packed = {
                .layout = {3, ROWS, begins}, .channels = CHANNELS, .width = width, .activation = DR_ACTIVATION_SILU};
            ops->conv_forward(backend, &packed, x, weight, NULL, NULL, whole, NULL);
            ops->conv_forward(backend, &first, x, weight, NULL, NULL, parts, NULL);
            ops->conv_forward(backend, &second, x + cut * CHANNELS, weight, NULL, NULL, parts + cut * CHANNELS, NULL);
            assert_same_bits(parts, whole, ROWS * CHANNELS);
        }
}

typedef struct {
    long double y, d_u;
} gate_expected;

static gate_expected expect_gate(dr_gate_kind kind, long double u, long double a, long double m, long double l) {
    long double plus = u > 11000 ? u : log1pl(expl(u)), minus = u < -11000 ? -u : log1pl(expl(-u)), s = sigmoidl(u);
    long double decay = expl(-(a / fabsl(l)) * plus);
    switch (kind) {
    case DR_GATE_SIGMOID:
        return (gate_expected){m * s, m * s * sigmoidl(-u)};
    case DR_GATE_SOFTPLUS:
        return (gate_expected){plus, s};
    case DR_GATE_LOG_DECAY:
        return (gate_expected){-a * plus, -a * s};
    case DR_GATE_KDA_BOUNDED:
        return (gate_expected){l * sigmoidl(a * u), l * a * sigmoidl(a * u) * sigmoidl(-a * u)};
    case DR_GATE_EDA_BOUNDED:
        return (gate_expected){-l * expm1l(-(a / fabsl(l)) * plus), -a * decay * s};
    case DR_GATE_LOG_SIGMOID:
        return (gate_expected){-m * minus, m * sigmoidl(-u)};
    case DR_GATE_SILU:
        return (gate_expected){u * s, s + u * s * sigmoidl(-u)};
    case DR_GATE_IDENTITY:
        return (gate_expected){u, 1};
    }
    return (gate_expected){NAN, NAN};
}

/* u from -10000 to 10000: the long double formula neither overflows nor cancels there, and neither may the double one. */
static void test_gates_at_extremes(void **state) {
    (void)state;
    static const double at[] = {-10000, -800, -745, -709, -100, -37, -5,  -1,  -1e-9, 0,
                                1e-9,   1,    5,    37,   100,  709, 745, 800, 10000};
    enum { COUNT = sizeof at / sizeof *at };
    for (int kind = DR_GATE_SIGMOID; kind <= DR_GATE_IDENTITY; kind++)
        for (int i = 0; i < COUNT; i++) {
            double a_log = 0.5, d_y = 1, y, d_x;
            dr_gate gate = {.kind = (dr_gate_kind)kind, .rows = 1, .heads = 1, .dim = 1, .multiplier = 2, .lower_bound = -5};
            assert_int_equal(ops->gate_forward(backend, &gate, &at[i], &a_log, NULL, &y), DR_OK);
            assert_int_equal(ops->gate_backward(backend, &gate, &at[i], &a_log, NULL, &d_y, &d_x, false, NULL, NULL), DR_OK);
            gate_expected expected = expect_gate(gate.kind, at[i], expl(0.5L), 2, -5);
            /* exp(x) has a relative error of |x| times that of x */
            double tolerance = 1e-15 * (10 + 2 * fmin(fabs(at[i]), 750));
            assert_close(y, expected.y, tolerance);
            assert_close(d_x, expected.d_u, tolerance);
        }
}

/* shift and bias add to x; A_log is one a head or one a channel; a bounded decay stays in its bounds */
static void test_gate_parameters(void **state) {
    (void)state;
    enum { ROWS = 3, HEADS = 2, DIM = 3, CHANNELS = HEADS * DIM };
    for (int draw = 0; draw < 7 * 2; draw++, numbers_release()) {
        dr_gate gate = {.kind = (dr_gate_kind)(draw % 7), .rows = ROWS, .heads = HEADS, .dim = DIM, .multiplier = 0.0625};
        gate.shift = -0.9, gate.lower_bound = -3, gate.a_log_per_channel = draw >= 7;
        double *x = numbers_normal(ROWS * CHANNELS, 2), *y = numbers_filled(ROWS * CHANNELS, NAN);
        double *a_log = numbers_normal(CHANNELS, 1), *bias = numbers_normal(CHANNELS, 1);
        assert_int_equal(ops->gate_forward(backend, &gate, x, a_log, bias, y), DR_OK);
        for (int64_t i = 0; i < ROWS * CHANNELS; i++) {
            int64_t channel = i % CHANNELS, a_at = gate.a_log_per_channel ? channel : channel / DIM;
            long double u = (long double)x[i] + gate.shift + bias[channel];
            assert_close(y[i], expect_gate(gate.kind, u, expl(a_log[a_at]), 0.0625L, -3).y, 1e-13);
            if (gate.kind == DR_GATE_KDA_BOUNDED || gate.kind == DR_GATE_EDA_BOUNDED) assert_true(y[i] >= -3 && y[i] <= 0);
        }
    }
}

static void test_elementwise_by_formula(void **state) {
    (void)state;
    double *gate = numbers_normal(50, 4), *up = numbers_normal(50, 1), *y = numbers_filled(50, NAN);
    assert_int_equal(ops->swiglu_forward(backend, 50, gate, up, y), DR_OK);
    for (int i = 0; i < 50; i++) assert_close(y[i], gate[i] * sigmoidl(gate[i]) * up[i], 1e-14);
    double *sum = numbers_copied(y, 50);
    assert_int_equal(ops->add(backend, DR_VECTOR, 50, -0.5, up, sum), DR_OK);
    for (int i = 0; i < 50; i++) assert_true(fabs(sum[i] - (y[i] - 0.5 * up[i])) < 1e-14);

    double factor[] = {2, 3, 5, 7}, x[] = {1, 2, 3, 4, 5, 6, 7, 8}, scaled[8], added[] = {1, 1, 1, 1, 1, 1, 1, 1};
    static const double each[] = {2, 4, 9, 12, 25, 30, 49, 56}, shared[] = {3, 5, 10, 13, 11, 13, 22, 25};
    assert_int_equal(ops->scale_heads_forward(backend, 2, 2, 2, false, factor, x, scaled, false), DR_OK);
    assert_same_bits(scaled, each, 8);
    assert_int_equal(ops->scale_heads_forward(backend, 2, 2, 2, true, factor, x, added, true), DR_OK);
    assert_same_bits(added, shared, 8);

    static const int64_t positions[] = {0, 3};
    static const double gathered[] = {1, 2, 7, 8}, scattered[] = {1, 2, 0, 0, 0, 0, 7, 8};
    double picked[4], spread[8] = {9, 9, 9, 9, 9, 9, 9, 9};
    assert_int_equal(ops->rows_gather(backend, 2, 2, positions, x, picked), DR_OK);
    assert_same_bits(picked, gathered, 4);
    assert_int_equal(ops->rows_scatter(backend, 4, 2, 2, positions, picked, spread), DR_OK);
    assert_same_bits(spread, scattered, 8);
    numbers_release();
}

static void test_cross_entropy_at_extremes(void **state) {
    (void)state;
    enum { V = 3 };
    static const struct {
        double logits[V];
        int32_t label;
        double loss, gradient[V]; /* at factor 1 */
        uint8_t hit;
    } cases[] = {
        {{0, 0, 0}, 0, 1.0986122886681098, {-2.0 / 3, 1.0 / 3, 1.0 / 3}, 1}, /* of equal logits the first counts */
        {{0, 0, 0}, 1, 1.0986122886681098, {1.0 / 3, -2.0 / 3, 1.0 / 3}, 0},
        {{1e300, -1e300, 0}, 0, 0, {0, 0, 0}, 1},
        {{1e300, -1e300, 0}, 1, 2e300, {1, -1, 0}, 0},
        {{-1e4, -1e4, -1e4 - 800}, 2, 800.6931471805599, {0.5, 0.5, -1}, 0},
        {{1e8, 1e8 + 1, 1e8 - 1}, 1, 0.40760596444438041, {0.24472847105479764, -0.33475904422517822, 0.090030573170380462}, 1},
        {{-INFINITY, 2, 2}, 1, 0.6931471805599453, {0, -0.5, 0.5}, 1},
        {{-INFINITY, 2, 2}, 0, INFINITY, {-1, 0.5, 0.5}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double logits[V], d_logits[V], loss, again;
        uint8_t hit;
        memcpy(logits, cases[i].logits, sizeof logits);
        ops->cross_entropy(backend, 1, V, logits, &cases[i].label, 1, &loss, &hit, NULL);
        assert_true(loss == cases[i].loss || fabs(loss - cases[i].loss) <= 1e-12 * fabs(loss));
        assert_int_equal(hit, cases[i].hit);
        ops->cross_entropy(backend, 1, V, logits, &cases[i].label, 1, &again, &hit, d_logits);
        assert_true(again == loss);
        assert_true(fabs(d_logits[0] + d_logits[1] + d_logits[2]) < 1e-14);
        for (int v = 0; v < V; v++) assert_true(fabs(d_logits[v] - cases[i].gradient[v]) < 1e-13);
        ops->cross_entropy(backend, 1, V, logits, &cases[i].label, 1, &again, &hit, logits);
        assert_same_bits(logits, d_logits, V);
    }
    static const double broken[][V] = {{NAN, 1, 2}, {1, NAN, 2}, {1, 2, INFINITY}};
    for (int i = 0; i < 3; i++)
        for (int32_t label = 0; label < V; label++) {
            double loss;
            uint8_t hit;
            ops->cross_entropy(backend, 1, V, broken[i], &label, 1, &loss, &hit, NULL);
            assert_true(isnan(loss));
        }
}

static void test_sum_of_squares(void **state) {
    (void)state;
    double x[] = {3, -4, 12};
    dr_control control = {.squares = NAN};
    assert_int_equal(ops->sum_squares(backend, 3, x, &control), DR_OK);
    assert_true(control.squares == 169);
    assert_int_equal(ops->sum_squares(backend, 0, x, &control), DR_OK);
    assert_true(control.squares == 0);
    x[1] = NAN;
    ops->sum_squares(backend, 3, x, &control);
    assert_true(isnan(control.squares));
    x[1] = -INFINITY;
    ops->sum_squares(backend, 3, x, &control);
    assert_true(isinf(control.squares));
}

/* What a step decides by its norm: one update more with a scale, or one skipped, which changes nothing. */
static void test_clip(void **state) {
    (void)state;
    dr_control control = {.squares = 25, .updates = 7, .skipped = 2, .skipped_in_row = 2};
    const dr_adamw adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    const dr_adamw_run run = {.count = 1, .learning_rate = 1};
    double gradient = 1, parameter = 3, m = 0.5, v = 0.25;
    assert_int_equal(ops->clip(backend, 2, &control), DR_OK);
    assert_true(control.norm == 5 && control.scale == 0.4 && control.updates == 8);
    assert_true(control.skipped == 2 && control.skipped_in_row == 0);
    assert_int_equal(ops->clip(backend, 5, &control), DR_OK);
    assert_true(control.scale == 1 && control.updates == 9);
    assert_int_equal(ops->clip(backend, 0, &control), DR_OK);
    assert_true(control.scale == 1 && control.updates == 10);
    control.squares = INFINITY;
    for (int i = 1; i <= 2; i++) {
        if (i == 2) control.squares = NAN;
        assert_int_equal(ops->clip(backend, 2, &control), DR_OK);
        assert_true(!isfinite(control.norm) && control.updates == 10);
        assert_true(control.skipped == 2 + i && control.skipped_in_row == i);
        assert_int_equal(ops->adamw(backend, &adamw, &control, 1, &run, &gradient, &parameter, &m, &v), DR_OK);
        assert_true(parameter == 3 && m == 0.5 && v == 0.25);
    }
    double losses[] = {0.5, 0.25};
    const uint8_t hits[] = {1, 0};
    dr_loss_sum sum = {.loss = 1, .hits = 4};
    assert_int_equal(ops->sum_losses(backend, 2, losses, hits, &sum), DR_OK);
    assert_true(sum.loss == 1.75 && sum.hits == 5);
}

/* Against the closed form: m_t is the weighted sum of all gradients so far, and its correction the sum of the weights. */
static void test_adamw_by_closed_form(void **state) {
    (void)state;
    enum { STEPS = 6, COUNT = 5 };
    double gradients[STEPS][COUNT], parameter[COUNT], m[COUNT] = {0}, v[COUNT] = {0};
    long double expected[COUNT];
    for (int i = 0; i < COUNT; i++) expected[i] = parameter[i] = dr_random_normal(&numbers_random);
    for (int64_t step = 1; step <= STEPS; step++) {
        const dr_adamw adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
        const dr_adamw_run run = {.count = COUNT, .learning_rate = 0.01 * (double)step, .weight_decay = 0.1};
        const dr_control control = {.scale = 0.25, .updates = step};
        for (int i = 0; i < COUNT; i++) gradients[step - 1][i] = i == 0 ? 0 : dr_random_normal(&numbers_random);
        assert_int_equal(ops->adamw(backend, &adamw, &control, 1, &run, gradients[step - 1], parameter, m, v), DR_OK);
        for (int i = 0; i < COUNT; i++) {
            long double first = 0, second = 0, first_weight = 0, second_weight = 0;
            for (int64_t s = 1; s <= step; s++) {
                long double g = 0.25L * gradients[s - 1][i], age = (long double)(step - s);
                first += powl(0.9, age) * g, first_weight += powl(0.9, age);
                second += powl(0.95, age) * g * g, second_weight += powl(0.95, age);
            }
            long double direction = first / first_weight / (sqrtl(second / second_weight) + 1e-8L);
            expected[i] -= 0.01 * (double)step * (direction + 0.1L * expected[i]);
            assert_true(fabsl(parameter[i] - expected[i]) < 1e-13);
        }
    }
}

static void test_copies_convert(void **state) {
    (void)state;
    enum { COUNT = 7 };
    static const double numbers[COUNT] = {0, -0.0, 1, -2.5, 1.0 / 3, 1e30, INFINITY};
    float singles[COUNT], back[COUNT];
    uint16_t halves[COUNT];
    double at[COUNT], again[COUNT];
    assert_int_equal(ops->upload(backend, at, numbers, DR_F64, COUNT), DR_OK);
    assert_same_bits(at, numbers, COUNT);
    assert_int_equal(ops->download(backend, again, DR_F64, at, COUNT), DR_OK);
    assert_same_bits(again, numbers, COUNT);
    assert_int_equal(ops->download(backend, singles, DR_F32, at, COUNT), DR_OK);
    assert_int_equal(ops->upload(backend, at, singles, DR_F32, COUNT), DR_OK);
    for (int i = 0; i < COUNT; i++) assert_true(singles[i] == (float)numbers[i] && at[i] == (double)(float)numbers[i]);
    assert_int_equal(ops->download(backend, halves, DR_BF16, at, COUNT), DR_OK);
    for (int i = 0; i < COUNT; i++) assert_int_equal(halves[i], dr_bf16_from_float(singles[i]));
    assert_int_equal(ops->upload(backend, at, halves, DR_BF16, COUNT), DR_OK);
    assert_int_equal(ops->download(backend, back, DR_F32, at, COUNT), DR_OK);
    for (int i = 0; i < COUNT; i++) assert_true(back[i] == dr_bf16_to_float(halves[i]));
    assert_int_equal(ops->download(backend, halves, DR_F16, at, COUNT), DR_OK);
    for (int i = 0; i < COUNT; i++) assert_int_equal(halves[i], dr_f16_from_float(back[i]));
    assert_int_equal(ops->upload(backend, at, halves, DR_F16, COUNT), DR_OK);
    for (int i = 0; i < COUNT; i++) assert_true(at[i] == dr_f16_to_float(halves[i]));
    assert_int_equal(ops->upload(backend, at, numbers, DR_I32, 1), DR_ERROR_ARGUMENT);
    assert_int_equal(ops->download(backend, again, DR_U8, at, 1), DR_ERROR_ARGUMENT);
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
        cmocka_unit_test(test_linear_by_hand),
        cmocka_unit_test(test_grouped_linear_by_groups),
        cmocka_unit_test(test_embedding_picks_and_sums),
        cmocka_unit_test(test_norms_by_formula),
        cmocka_unit_test(test_norms_of_zero),
        cmocka_unit_test(test_conv_by_formula),
        cmocka_unit_test(test_conv_split_and_packed),
        cmocka_unit_test(test_gates_at_extremes),
        cmocka_unit_test(test_gate_parameters),
        cmocka_unit_test(test_elementwise_by_formula),
        cmocka_unit_test(test_cross_entropy_at_extremes),
        cmocka_unit_test(test_sum_of_squares),
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_adamw_by_closed_form),
        cmocka_unit_test(test_copies_convert),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
