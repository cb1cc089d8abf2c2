/* Rotary embedding: what is turned and by how much, against formulas; its gradient; the CPU backend against the reference; and
 * the tables of frequencies of each way to stretch them. */
#include "base/error.h"
#include "cpu_calls.h"
#include "operation_gradients.h"
#include "ops/rotary.h"

enum { GRADIENT_DRAWS = 25 };

static dr_rotary rotary_drawn(int64_t most_tokens, int64_t most_pairs, const double *frequencies) {
    dr_rotary r = {
        .layout = layout_drawn(most_tokens), .heads = number_between(1, 4), .dim = 2 * number_between(1, most_pairs)};
    r.first = number_flip() ? 0 : number_between(0, 9);
    r.size = r.first + r.dim + (number_flip() ? 0 : number_between(0, 9));
    r.row = r.heads * r.size + (number_flip() ? 0 : number_between(0, 9));
    r.interleaved = number_flip();
    r.factor = number_flip() ? 1 : 1.25;
    if (number_flip())
        r.frequencies = frequencies;
    else
        r.base = 10000;
    return r;
}

/* ---- the reference --------------------------------------------------------------------------------------------------- */

static void test_formula(void **state) {
    (void)state;
    enum { HEADS = 2, SIZE = 9, ROW = 20, FIRST = 2, DIM = 6, ROWS = 5 };
    static const int64_t begins[] = {0, 0, 2, 5}, offsets[] = {9, 7, 100000}, positions[ROWS] = {7, 8, 100000, 100001, 100002};
    static const double frequencies[DIM / 2] = {1, 0.3, 0.01};
    for (int draw = 0; draw < 8; draw++, numbers_release()) {
        const bool interleaved = draw % 2, tabled = draw / 2 % 2;
        const double factor = draw / 4 ? 1.5 : 1;
        double *x = numbers_normal(ROWS * ROW, 1), *turned = numbers_copied(x, ROWS * ROW);
        const dr_rotary rotary = {.layout = {3, ROWS, begins},
                                  .heads = HEADS,
                                  .size = SIZE,
                                  .row = ROW,
                                  .first = FIRST,
                                  .dim = DIM,
                                  .interleaved = interleaved,
                                  .factor = factor,
                                  .frequencies = tabled ? frequencies : NULL,
                                  .base = 10000,
                                  .offset = offsets};
        assert_int_equal(reference->ops->rotary(reference, &rotary, turned, false), DR_OK);
        double *wanted = numbers_copied(x, ROWS * ROW);
        for (int64_t r = 0; r < ROWS; r++)
            for (int64_t h = 0; h < HEADS; h++)
                for (int64_t i = 0; i < DIM / 2; i++) {
                    const int64_t at = r * ROW + h * SIZE + FIRST, one = at + (interleaved ? 2 * i : i);
                    const int64_t other = at + (interleaved ? 2 * i + 1 : i + DIM / 2);
                    const long double f = tabled ? frequencies[i] : powl(10000, -2.0L * (long double)i / DIM);
                    const long double angle = (long double)positions[r] * f;
                    wanted[one] = (double)(factor * (x[one] * cosl(angle) - x[other] * sinl(angle)));
                    wanted[other] = (double)(factor * (x[other] * cosl(angle) + x[one] * sinl(angle)));
                }
        for (int64_t i = 0; i < ROWS * ROW; i++) /* what lies between is left alone */
            if (!(fabs(turned[i] - wanted[i]) < 1e-10)) fail_msg("[%lld] is %g, not %g", (long long)i, turned[i], wanted[i]);
    }
}

/* A sequence in two parts, the second from its offset on. */
static void test_split(void **state) {
    (void)state;
    enum { HEADS = 2, DIM = 4, ROWS = 6, WIDTH = HEADS * DIM };
    for (int64_t cut = 0; cut <= ROWS; cut++, numbers_release()) {
        int64_t seen = 11, then = seen + cut;
        double *whole = numbers_normal(ROWS * WIDTH, 1), *parts = numbers_copied(whole, ROWS * WIDTH);
        dr_rotary rotary = {.layout = {1, ROWS, NULL}, .heads = HEADS, .size = DIM, .row = WIDTH, .dim = DIM, .factor = 1};
        rotary.base = 10000;
        rotary.offset = &seen;
        dr_rotary first = rotary, second = rotary;
        first.layout.rows = cut;
        second.layout.rows = ROWS - cut;
        second.offset = &then;
        assert_int_equal(reference->ops->rotary(reference, &rotary, whole, false), DR_OK);
        assert_int_equal(reference->ops->rotary(reference, &first, parts, false), DR_OK);
        assert_int_equal(reference->ops->rotary(reference, &second, parts + cut * WIDTH, false), DR_OK);
        assert_same_bits(parts, whole, ROWS * WIDTH);
    }
}

static dr_status forward(const operation *o) {
    if (o->count > 0) memcpy(o->y, o->operands[0].at, (size_t)o->count * sizeof *o->y);
    return reference->ops->rotary(reference, o->descriptor, o->y, false);
}

static dr_status backward(const operation *o, double *const d[]) {
    if (o->count > 0) memcpy(d[0], o->d_y, (size_t)o->count * sizeof *o->d_y);
    return reference->ops->rotary(reference, o->descriptor, d[0], true);
}

static void test_gradient(void **state) {
    (void)state;
    static const int64_t offsets[4] = {0, 3, 1000, 17};
    for (int draw = 0; draw < GRADIENT_DRAWS; draw++, numbers_release()) {
        dr_rotary rotary = rotary_drawn(5, 3, (const double[]){1, 0.2, 0.05});
        if (number_flip()) rotary.offset = offsets;
        const int64_t count = rotary.layout.rows * rotary.row;
        operation o = {.descriptor = &rotary,
                       .operands = {{"x", numbers_normal(count, 1), count, false}},
                       .count = count,
                       .forward = forward,
                       .backward = backward};
        check_operation(&o);
    }
}

/* ---- the CPU against the reference ----------------------------------------------------------------------------------- */

static dr_status rotary(const call *c, dr_backend *b, void *const at[]) {
    return b->ops->rotary(b, c->descriptor, at[0], *(const bool *)c->extra);
}

static void test_cpu(void **state) {
    (void)state;
    for (int draw = 0; draw < 3 * DRAWS; draw++, numbers_release()) {
        double frequencies[64];
        for (int i = 0; i < 64; i++) frequencies[i] = exp2(-(double)number_between(0, 12)) * 1.1;
        dr_rotary r = rotary_drawn(60, 64, frequencies);
        if (draw % 8 == 0) r.layout = (dr_layout){.sequences = 1, .rows = 1 + 20000 / (r.heads * r.dim)}; /* for all threads */
        int64_t *offset = numbers_block(r.layout.sequences, sizeof *offset);
        for (int64_t i = 0; i < r.layout.sequences; i++) offset[i] = number_between(0, draw % 2 ? 100 : 1000000);
        if (number_flip()) r.offset = offset;
        bool back = number_flip();
        check(&(call){"rotary", &r, &back, tolerance_forward, {added("x", r.layout.rows * r.row)}, rotary});
    }
}

/* ---- frequencies ----------------------------------------------------------------------------------------------------- */

static void assert_table(const dr_rotary_spectrum *s, const double *wanted, double wanted_factor) {
    double frequencies[64], factor = 0;
    assert_int_equal(dr_rotary_check(s), DR_OK);
    dr_rotary_table(s, frequencies, &factor);
    for (int64_t i = 0; i < s->dim / 2; i++)
        if (!(fabs(frequencies[i] - wanted[i]) <= 1e-14 * wanted[i]))
            fail_msg("kind %d, pair %lld: %.17g, not %.17g", (int)s->kind, (long long)i, frequencies[i], wanted[i]);
    if (!(fabs(factor - wanted_factor) <= 1e-15)) fail_msg("kind %d: factor %.17g", (int)s->kind, factor);
}

static const dr_rotary_spectrum llama3 = {
    .kind = DR_ROTARY_LLAMA3, .dim = 16, .base = 500000, .stretch = 8, .original = 8192, .low = 1, .high = 4};
static const dr_rotary_spectrum yarn = {
    .kind = DR_ROTARY_YARN, .dim = 16, .base = 10000, .stretch = 4, .original = 2048, .fast = 32, .slow = 1};

/* The numbers were worked out from the formulas of transformers' modeling_rope_utils in another language. */
static void test_tables(void **state) {
    (void)state;
    dr_rotary_spectrum s = {.kind = DR_ROTARY_PLAIN, .dim = 8, .base = 10000};
    assert_table(&s, (const double[]){1, 0.1, 0.01, 0.001}, 1);
    s.kind = DR_ROTARY_LINEAR;
    s.stretch = 4;
    assert_table(&s, (const double[]){0.25, 0.025, 0.0025, 0.00025}, 1);
    assert_table(&llama3,
                 (const double[]){1, 0.19392274474868576, 0.037606030930863933, 0.0072926647372171093, 0.00052484616099295468,
                                  3.4281021959525912e-05, 6.6478698711812354e-06, 1.2891731721515574e-06},
                 1);
    const double grown = 1.1386294361119891;
    assert_table(&yarn,
                 (const double[]){1, 0.31622776601683794, 0.1, 0.02569350598886808, 0.00625, 0.001383496476323666, 0.00025,
                                  7.9056941504209485e-05},
                 grown);
    s = yarn;
    s.exact_ends = true;
    assert_table(&s,
                 (const double[]){1, 0.31622776601683794, 0.1, 0.023870192321736323, 0.0050569715211294351,
                                  0.00081129038170143098, 0.00025, 7.9056941504209485e-05},
                 grown);
    s = yarn; /* a ramp without a width */
    s.dim = 8;
    s.original = 4;
    assert_table(&s, (const double[]){1, 0.025, 0.0025, 0.00025}, grown);
    s = yarn;
    s.attention_factor = 1.5;
    assert_table(&s,
                 (const double[]){1, 0.31622776601683794, 0.1, 0.02569350598886808, 0.00625, 0.001383496476323666, 0.00025,
                                  7.9056941504209485e-05},
                 1.5);
    s.attention_factor = 0;
    s.mscale = 1;
    s.mscale_dims = 0.5;
    assert_table(&s,
                 (const double[]){1, 0.31622776601683794, 0.1, 0.02569350598886808, 0.00625, 0.001383496476323666, 0.00025,
                                  7.9056941504209485e-05},
                 grown / (1 + (grown - 1) / 2));
    s = yarn;
    s.stretch = 1;
    double frequencies[8], factor;
    dr_rotary_table(&s, frequencies, &factor);
    assert_true(factor == 1);
}

static void refuse(dr_rotary_spectrum s, const char *words) {
    assert_int_equal(dr_rotary_check(&s), DR_ERROR_ARGUMENT);
    if (!strstr(dr_last_error(), words)) fail_msg("\"%s\" does not say \"%s\"", dr_last_error(), words);
}

#define REFUSE(from, field, value, words)                                                                                      \
    do {                                                                                                                       \
        dr_rotary_spectrum changed = from;                                                                                     \
        changed.field = value;                                                                                                 \
        refuse(changed, words);                                                                                                \
    } while (0)

static void test_refused(void **state) {
    (void)state;
    REFUSE(llama3, dim, 0, "0 elements");
    REFUSE(llama3, dim, 7, "7 elements");
    REFUSE(llama3, base, 1, "base is 1");
    REFUSE(llama3, base, INFINITY, "base is inf");
    REFUSE(llama3, stretch, 0, "factor is 0");
    REFUSE(llama3, stretch, NAN, "factor is nan");
    REFUSE(llama3, original, 0, "original length is 0");
    REFUSE(llama3, high, 1, "high_freq_factor 1");
    REFUSE(llama3, low, 0, "low_freq_factor 0");
    REFUSE(yarn, fast, 1, "beta_fast 1");
    REFUSE(yarn, slow, -1, "beta_slow -1");
    REFUSE(yarn, attention_factor, -1, "attention factor is -1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula), cmocka_unit_test(test_split),  cmocka_unit_test(test_gradient),
        cmocka_unit_test(test_cpu),     cmocka_unit_test(test_tables), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
