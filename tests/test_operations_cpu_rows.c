/* What holds of the CPU backend's operations beside the values that test_operations_cpu.c checks: a row's result does not
 * depend on its place or neighbours to the last bit, packed sequences are as separate ones, the functions are accurate over all
 * of single precision, infinities and NaN survive, wrong options are refused. */
#include "cpu_backends.h"

enum { DRAWS = 12 };

/* A row of y and d_x is the same bits alone, at every place of a batch and among any others. */
static void test_linear_rows_alone(void **state) {
    (void)state;
    enum { ROWS = 77 };
    for (int isa = 0; isa < isas; isa++)
        for (int draw = 0; draw < 20; draw++, numbers_release()) {
            dr_backend *b = cpu[isa][number_between(0, THREADS - 1)];
            int64_t in = size_drawn(600), out = size_drawn(300), shift = number_between(1, ROWS - 1);
            const double *x = floats(ROWS * in, 1), *weight = floats(out * in, 1), *bias = floats(out, 1);
            float *xs = numbers_block(2 * ROWS * in, 4), *w = numbers_block(out * in, 4), *add = numbers_block(out, 4);
            float *y = numbers_block(ROWS * out, 4), *turned = numbers_block(ROWS * out, 4), *alone = numbers_block(out, 4);
            float *d_x = numbers_block(ROWS * in, 4), *d_alone = numbers_block(in, 4);
            for (int64_t i = 0; i < 2 * ROWS * in; i++) xs[i] = (float)x[i % (ROWS * in)];
            for (int64_t i = 0; i < out * in; i++) w[i] = (float)weight[i];
            for (int64_t i = 0; i < out; i++) add[i] = (float)bias[i];
            dr_linear all = {.rows = ROWS, .in = in, .out = out}, one = {.rows = 1, .in = in, .out = out};
            assert_int_equal(b->ops->linear_forward(b, &all, xs, w, add, y), DR_OK);
            assert_int_equal(b->ops->linear_forward(b, &all, xs + shift * in, w, add, turned), DR_OK);
            assert_int_equal(b->ops->linear_backward(b, &all, xs, w, y, d_x, false, NULL, NULL), DR_OK);
            for (int64_t r = 0; r < ROWS; r++) {
                assert_memory_equal(y + r * out, turned + (r + ROWS - shift) % ROWS * out, (size_t)out * 4);
                if (r % 7) continue;
                assert_int_equal(b->ops->linear_forward(b, &one, xs + r * in, w, add, alone), DR_OK);
                assert_memory_equal(y + r * out, alone, (size_t)out * 4);
                assert_int_equal(b->ops->linear_backward(b, &one, xs, w, y + r * out, d_alone, false, NULL, NULL), DR_OK);
                assert_memory_equal(d_x + r * in, d_alone, (size_t)in * 4);
            }
        }
}

/* What a sequence gives does not depend on the others of the call, to the last bit. */
static void test_packed_equals_separate(void **state) {
    (void)state;
    enum { CHANNELS = 37, WIDTH = 4 };
    for (int isa = 0; isa < isas; isa++)
        for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
            dr_backend *b = cpu[isa][draw % THREADS];
            dr_layout layout = layout_drawn(draw % 2 ? 9 : 200);
            int64_t count = layout.rows * CHANNELS, kept = layout.sequences * (WIDTH - 1) * CHANNELS;
            float *at[4], *y[2], *d_x[2], *final[2];
            int64_t counts[] = {count, CHANNELS * WIDTH, kept, count};
            for (int i = 0; i < 4; i++) {
                const double *values = floats(counts[i], 1);
                at[i] = numbers_block(counts[i], 4);
                for (int64_t j = 0; j < counts[i]; j++) at[i][j] = (float)values[j];
            }
            for (int i = 0; i < 2; i++) {
                y[i] = numbers_block(count, 4);
                d_x[i] = numbers_block(count, 4);
                final[i] = numbers_block(kept, 4);
            }
            float *x = at[0], *weight = at[1], *initial = at[2], *d_y = at[3];
            dr_conv packed = {.layout = layout, .channels = CHANNELS, .width = WIDTH, .activation = DR_ACTIVATION_SILU};
            assert_int_equal(b->ops->conv_forward(b, &packed, x, weight, NULL, initial, y[0], final[0]), DR_OK);
            assert_int_equal(b->ops->conv_backward(b, &packed, x, weight, NULL, initial, d_y, d_x[0], NULL, NULL), DR_OK);
            for (int64_t i = 0; i < layout.sequences; i++) {
                int64_t begin = dr_layout_begin(&layout, i) * CHANNELS, from = i * (WIDTH - 1) * CHANNELS;
                dr_conv one = packed;
                one.layout = (dr_layout){.sequences = 1, .rows = dr_layout_begin(&layout, i + 1) - begin / CHANNELS};
                assert_int_equal(
                    b->ops->conv_forward(b, &one, x + begin, weight, NULL, initial + from, y[1] + begin, final[1] + from),
                    DR_OK);
                assert_int_equal(b->ops->conv_backward(b, &one, x + begin, weight, NULL, initial + from, d_y + begin,
                                                       d_x[1] + begin, NULL, NULL),
                                 DR_OK);
            }
            if (count > 0) assert_memory_equal(y[0], y[1], (size_t)count * 4);
            if (count > 0) assert_memory_equal(d_x[0], d_x[1], (size_t)count * 4);
            assert_memory_equal(final[0], final[1], (size_t)kept * 4);
        }
}

/* A row's norm, gate, loss does not depend on the rows beside it, to the last bit. */
static void test_rows_alone(void **state) {
    (void)state;
    enum { ROWS = 45 };
    for (int isa = 0; isa < isas; isa++)
        for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
            dr_backend *b = cpu[isa][draw % THREADS];
            int64_t dim = size_drawn(100), count = ROWS * dim;
            const double *values = floats(4 * count + 2 * dim, 1);
            float *x = numbers_block(4 * count + 2 * dim, 4), *all = numbers_block(count, 4), *alone = numbers_block(dim, 4);
            for (int64_t i = 0; i < 4 * count + 2 * dim; i++) x[i] = (float)values[i];
            float *gate = x + count, *d_y = gate + count, *weight = d_y + count, *a_log = weight + dim;
            dr_rms_norm norms[2] = {{.rows = ROWS, .dim = dim, .eps = 1e-6, .gate = draw % 3}};
            norms[1] = norms[0];
            norms[1].rows = 1;
            dr_gate gates[2] = {{.kind = DR_GATE_LOG_DECAY, .rows = ROWS, .heads = 1, .dim = dim, .a_log_per_channel = true}};
            gates[1] = gates[0];
            gates[1].rows = 1;
            const dr_operations *ops = b->ops;
            for (int which = 0; which < 3; which++)
                for (int64_t r = -1; r < ROWS; r++) { /* first all rows, then one by one */
                    int64_t at = r < 0 ? 0 : r * dim;
                    float *to = r < 0 ? all : alone;
                    const dr_rms_norm *norm = &norms[r >= 0];
                    if (which == 0) assert_int_equal(ops->rms_norm_forward(b, norm, x + at, weight, gate + at, to), DR_OK);
                    if (which == 1)
                        assert_int_equal(
                            ops->rms_norm_backward(b, norm, x + at, weight, gate + at, d_y + at, to, false, NULL, NULL), DR_OK);
                    if (which == 2) assert_int_equal(ops->gate_forward(b, &gates[r >= 0], x + at, a_log, NULL, to), DR_OK);
                    if (r >= 0) assert_memory_equal(all + at, alone, (size_t)dim * 4);
                }
        }
}

/* Memory and opening */

static void test_copies(void **state) {
    (void)state;
    dr_backend *b = cpu[0][0];
    const float values[] = {0, -0.0f, 1, -2.5f, 65504, 1e-7f, INFINITY, NAN};
    static const dr_dtype types[] = {DR_F32, DR_F64, DR_F16, DR_BF16};
    for (int i = 0; i < 4; i++) {
        double host[8] = {0};
        float back[8] = {0};
        assert_int_equal(b->ops->download(b, host, types[i], values, 8), DR_OK);
        assert_int_equal(b->ops->upload(b, back, host, types[i], 8), DR_OK);
        for (int j = 0; j < 7; j++) /* 1e-7 and 65504 are rounded in 16 bits */
            assert_true(back[j] == values[j] || fabsf(back[j] - values[j]) <= fabsf(values[j]) * 0x1p-8f + 6e-8f);
        assert_true(back[6] == INFINITY && isnan(back[7]) && signbit(back[1]));
    }
    float one = 1;
    assert_int_equal(b->ops->upload(b, &one, values, DR_I32, 1), DR_ERROR_ARGUMENT);
    assert_int_equal(b->ops->download(b, &one, DR_U8, values, 1), DR_ERROR_ARGUMENT);
    assert_true(one == 1);
    void *memory = NULL;
    assert_int_equal(b->ops->allocate(b, 0, &memory), DR_OK);
    assert_non_null(memory);
    b->ops->free(b, memory);
    b->ops->free(b, NULL);
}

static void count_line(void *context, const char *text) {
    assert_true(strlen(text) > 0);
    ++*(int *)context;
}

static void test_open(void **state) {
    (void)state;
    dr_backend *b = NULL;
    assert_int_equal(dr_cpu_open(&(dr_backend_options){.isa = "sse9"}, &b), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "sse9"));
#ifdef __x86_64__ /* elsewhere there is no such name */
    if (!dr_cpu_detect().avx512) {
        assert_int_equal(dr_cpu_open(&(dr_backend_options){.isa = "avx512"}, &b), DR_ERROR_UNSUPPORTED);
        assert_null(b);
    }
#else
    assert_int_equal(dr_cpu_open(&(dr_backend_options){.isa = "avx512"}, &b), DR_ERROR_ARGUMENT);
#endif
    assert_int_equal(dr_cpu_open(NULL, &b), DR_OK);
    assert_string_equal(b->isa, cpu[isas - 1][0]->isa);
    assert_true(b->threads >= 1);
    int lines = 0;
    b->ops->describe(b, count_line, &lines);
    assert_true(lines >= 3);
    b->ops->close(b);
}

static void test_conv_width(void **state) {
    (void)state;
    dr_conv conv = {.layout = {.sequences = 1, .rows = 1}, .channels = 1, .width = 17};
    float x = 1, y = -7, taps[17] = {0};
    assert_int_equal(cpu[0][0]->ops->conv_forward(cpu[0][0], &conv, &x, taps, NULL, NULL, &y, NULL), DR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(dr_last_error(), "17 taps"));
    assert_true(y == -7);
}

/* The functions behind the gates over all of single precision, against double: relative error, and what infinities and NaN
 * give. Tolerance: 4 units in the last place, or the smallest subnormal number, which silu
 * multiplies by x. */
static void check_function(dr_backend *b, dr_gate_kind kind, const char *name, double (*exact)(double)) {
    enum { COUNT = 20000 };
    float *x = numbers_block(COUNT, 4), *y = numbers_block(COUNT, 4);
    for (int i = 0; i < COUNT; i++) {
        double size = i % 3 == 0 ? ldexp(1 + dr_random_uniform(&numbers_random), (int)number_between(-149, 127)) : 0;
        if (i % 3 == 1) size = 110 * dr_random_uniform(&numbers_random);
        if (i % 3 == 2) size = 4 * dr_random_uniform(&numbers_random);
        x[i] = (float)(number_flip() ? size : -size);
    }
    x[0] = 0.0f;
    x[1] = -0.0f;
    dr_gate gate = {.kind = kind, .rows = COUNT, .heads = 1, .dim = 1, .multiplier = 1};
    assert_int_equal(b->ops->gate_forward(b, &gate, x, NULL, NULL, y), DR_OK);
    for (int i = 0; i < COUNT; i++) {
        double wanted = exact((double)x[i]), error = fabs((double)y[i] - wanted);
        double smallest = 1.5e-45 * (kind == DR_GATE_SILU ? fmax(1, fabs((double)x[i])) : 1);
        if ((double)y[i] == (double)(float)wanted) continue;
        if (!(error <= 4 * 1.2e-7 * fabs(wanted) + smallest))
            fail_msg("%s on %s: %s(%a) is %a, not %a", name, b->isa, name, (double)x[i], (double)y[i], wanted);
    }
}

static double exact_sigmoid(double x) {
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}
static double exact_softplus(double x) {
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}
static double exact_log_sigmoid(double x) {
    return -exact_softplus(-x);
}
static double exact_silu(double x) {
    return x * exact_sigmoid(x);
}

static void test_functions(void **state) {
    (void)state;
    for (int isa = 0; isa < isas; isa++, numbers_release()) {
        dr_backend *b = cpu[isa][0];
        check_function(b, DR_GATE_SIGMOID, "sigmoid", exact_sigmoid);
        check_function(b, DR_GATE_SOFTPLUS, "softplus", exact_softplus);
        check_function(b, DR_GATE_LOG_SIGMOID, "log_sigmoid", exact_log_sigmoid);
        check_function(b, DR_GATE_SILU, "silu", exact_silu);
        const float edges[] = {-INFINITY, INFINITY, NAN};
        float y[3];
        dr_gate gate = {.kind = DR_GATE_SIGMOID, .rows = 3, .heads = 1, .dim = 1, .multiplier = 1};
        assert_int_equal(b->ops->gate_forward(b, &gate, edges, NULL, NULL, y), DR_OK);
        assert_true(y[0] == 0 && y[1] == 1 && isnan(y[2]));
        gate.kind = DR_GATE_SOFTPLUS;
        assert_int_equal(b->ops->gate_forward(b, &gate, edges, NULL, NULL, y), DR_OK);
        assert_true(y[0] == 0 && y[1] == INFINITY && isnan(y[2]));
        /* a decay so strong that nothing stays is -inf, and its gradient not NaN */
        gate.kind = DR_GATE_LOG_DECAY;
        assert_int_equal(b->ops->gate_forward(b, &gate, edges, NULL, NULL, y), DR_OK);
        assert_true(y[0] == 0 && y[1] == -INFINITY && isnan(y[2]));
    }
}

/* Small decays and gates near their bound keep their relative accuracy, element by element. */
static void test_gate_relative(void **state) {
    (void)state;
    enum { COUNT = 400 };
    static const dr_gate_kind kinds[] = {DR_GATE_LOG_DECAY, DR_GATE_KDA_BOUNDED, DR_GATE_EDA_BOUNDED};
    for (int isa = 0; isa < isas; isa++)
        for (int k = 0; k < 3; k++) {
            dr_gate gate = {.kind = kinds[k], .rows = COUNT, .heads = 1, .dim = 1, .lower_bound = -5};
            double x[COUNT], a_log = (double)-0.7f, wanted[COUNT];
            float xs[COUNT], rate = -0.7f, y[COUNT];
            for (int i = 0; i < COUNT; i++) x[i] = (double)(xs[i] = (float)(i - 200) / 3);
            assert_int_equal(reference->ops->gate_forward(reference, &gate, x, &a_log, NULL, wanted), DR_OK);
            assert_int_equal(cpu[isa][0]->ops->gate_forward(cpu[isa][0], &gate, xs, &rate, NULL, y), DR_OK);
            for (int i = 0; i < COUNT; i++) /* exp multiplies the relative error of its argument, here up to 67 */
                if (!(fabs((double)y[i] - wanted[i]) <= 1e-5 * fabs(wanted[i])))
                    fail_msg("gate %d on %s: %g gives %g, not %g", (int)gate.kind, cpu[isa][0]->isa, x[i], (double)y[i],
                             wanted[i]);
        }
}

static void test_cross_entropy_edges(void **state) {
    (void)state;
    const int32_t labels[] = {2, 2, 2, 1};
    float logits[4][19] = {{0}};
    logits[0][5] = NAN;
    logits[1][5] = INFINITY;
    logits[2][5] = 1e30f;
    for (int i = 0; i < 19; i++) logits[3][i] = i == 1 ? 0 : -INFINITY;
    for (int isa = 0; isa < isas; isa++) {
        double loss[4];
        uint8_t hit[4];
        assert_int_equal(cpu[isa][0]->ops->cross_entropy(cpu[isa][0], 4, 19, logits, labels, 1, loss, hit, NULL), DR_OK);
        assert_true(isnan(loss[0]) && isnan(loss[1]));
        assert_true(fabs(loss[2] / 1e30 - 1) < 1e-6 && !hit[2]);
        assert_true(loss[3] == 0 && hit[3]);
    }
}

/* A NaN or infinity at any place shows in the sum of squares. */
static void test_sum_squares_edges(void **state) {
    (void)state;
    for (int isa = 0; isa < isas; isa++)
        for (int64_t place = 0; place < 50; place++) {
            float x[50] = {0};
            dr_control control = {0};
            x[place] = NAN;
            assert_int_equal(cpu[isa][1]->ops->sum_squares(cpu[isa][1], 50, x, &control), DR_OK);
            assert_true(isnan(control.squares));
            x[place] = 1e30f; /* its square is beyond single precision */
            assert_int_equal(cpu[isa][1]->ops->sum_squares(cpu[isa][1], 50, x, &control), DR_OK);
            assert_true(fabs(control.squares / 1e60 - 1) < 1e-6);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_rows_alone),
        cmocka_unit_test(test_packed_equals_separate),
        cmocka_unit_test(test_rows_alone),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_conv_width),
        cmocka_unit_test(test_functions),
        cmocka_unit_test(test_gate_relative),
        cmocka_unit_test(test_cross_entropy_edges),
        cmocka_unit_test(test_sum_squares_edges),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
