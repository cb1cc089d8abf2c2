/* Where the reference rounds that stores vectors in 16 bits (rounding.h): each operation, then whole models: every layer trains
 * on it, near the double and not equal to it. */
#include "learner.h"
#include "nn/config.h"
#include "ops/shapes.h"
#include "rounding.h"

#include <math.h>
#include <stdio.h>

#include <deltarule/deltarule.h>

OPERATION(linear) {
    return b->ops->linear_forward(b, c->descriptor, at[0], at[1], at[2], at[3]);
}
OPERATION(linear_back) {
    return b->ops->linear_backward(b, c->descriptor, at[0], at[1], at[2], at[3], c->flag, at[4], at[5]);
}
OPERATION(grouped) {
    return b->ops->grouped_linear_forward(b, c->descriptor, at[0], at[1], at[2]);
}
OPERATION(grouped_back) {
    return b->ops->grouped_linear_backward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4]);
}

static void test_products(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        dr_linear l = {.rows = number_between(0, 9), .in = number_between(1, 40), .out = number_between(1, 40)};
        dr_grouped_linear g = {.rows = number_between(0, 9),
                               .groups = number_between(1, 4),
                               .in = number_between(1, 20),
                               .out = number_between(1, 20)};
        int64_t x = l.rows * l.in, w = l.in * l.out, y = l.rows * l.out, gx = g.rows * g.groups * g.in,
                gw = g.groups * g.in * g.out, gy = g.rows * g.groups * g.out;
        bool add = draw % 2;
        check(&(call){
            "linear_forward", &l, 0, {VECTOR("x", x), VECTOR("weight", w), NUMBER("bias", l.out), TO_VECTOR("y", y)}, linear});
        check(&(call){"linear_backward",
                      &l,
                      add,
                      {VECTOR("x", x), VECTOR("weight", w), VECTOR("d_y", y), ADD_VECTOR("d_x", add, x), ADD_NUMBER("d_w", w),
                       ADD_NUMBER("d_bias", l.out)},
                      linear_back});
        check(&(call){"grouped_linear_forward", &g, 0, {VECTOR("x", gx), VECTOR("weight", gw), TO_VECTOR("y", gy)}, grouped});
        check(&(call){"grouped_linear_backward",
                      &g,
                      0,
                      {VECTOR("x", gx), VECTOR("weight", gw), VECTOR("d_y", gy), TO_VECTOR("d_x", gx), ADD_NUMBER("d_w", gw)},
                      grouped_back});
    }
}

OPERATION(rms) {
    return b->ops->rms_norm_forward(b, c->descriptor, at[0], at[1], at[2], at[3]);
}
OPERATION(rms_back) {
    return b->ops->rms_norm_backward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], c->flag, at[5], at[6]);
}
OPERATION(l2) {
    return b->ops->l2_norm_forward(b, c->descriptor, at[0], at[1]);
}
OPERATION(l2_back) {
    return b->ops->l2_norm_backward(b, c->descriptor, at[0], at[1], at[2]);
}
OPERATION(conv) {
    return b->ops->conv_forward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], at[5]);
}
OPERATION(conv_back) {
    return b->ops->conv_backward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7]);
}

static void test_norms_and_convolution(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        bool add = draw % 2;
        dr_rms_norm n = {.rows = number_between(0, 9),
                         .dim = number_between(1, 40),
                         .eps = 1e-6,
                         .gate = (dr_activation)(1 + draw % 2),
                         .gate_first = draw % 3 == 0};
        dr_l2_norm l = {n.rows, n.dim, 1e-6};
        dr_conv c = {.layout = layout_drawn(9),
                     .channels = number_between(1, 20),
                     .width = number_between(1, 4),
                     .activation = DR_ACTIVATION_SILU};
        int64_t x = n.rows * n.dim, y = c.layout.rows * c.channels, w = c.channels * c.width,
                kept = c.layout.sequences * (c.width - 1) * c.channels;
        check(&(call){
            "rms_norm_forward", &n, 0, {VECTOR("x", x), NUMBER("weight", n.dim), VECTOR("gate", x), TO_VECTOR("y", x)}, rms});
        check(&(call){"rms_norm_backward",
                      &n,
                      add,
                      {VECTOR("x", x), NUMBER("weight", n.dim), VECTOR("gate", x), VECTOR("d_y", x), ADD_VECTOR("d_x", add, x),
                       ADD_NUMBER("d_weight", n.dim), TO_VECTOR("d_gate", x)},
                      rms_back});
        check(&(call){"l2_norm_forward", &l, 0, {VECTOR("x", x), TO_VECTOR("y", x)}, l2});
        check(&(call){"l2_norm_backward", &l, 0, {VECTOR("x", x), VECTOR("d_y", x), TO_VECTOR("d_x", x)}, l2_back});
        check(&(call){"conv_forward",
                      &c,
                      0,
                      {VECTOR("x", y), NUMBER("weight", w), NUMBER("bias", c.channels), NUMBER("initial", kept),
                       TO_VECTOR("y", y), TO_NUMBER("final", kept)},
                      conv});
        check(&(call){"conv_backward",
                      &c,
                      0,
                      {VECTOR("x", y), NUMBER("weight", w), NUMBER("bias", c.channels), NUMBER("initial", kept),
                       VECTOR("d_y", y), TO_VECTOR("d_x", y), ADD_NUMBER("d_weight", w), ADD_NUMBER("d_bias", c.channels)},
                      conv_back});
    }
}

OPERATION(gate) {
    return b->ops->gate_forward(b, c->descriptor, at[0], at[1], at[2], at[3]);
}
OPERATION(gate_back) {
    return b->ops->gate_backward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], c->flag, at[5], at[6]);
}

static void test_gates(void **state) {
    (void)state;
    for (int draw = 0; draw < 28; draw++, numbers_release()) {
        bool add = draw % 3 == 0;
        dr_gate g = {.kind = (dr_gate_kind)(draw % 7),
                     .rows = number_between(0, 9),
                     .heads = number_between(1, 4),
                     .dim = number_between(1, 9),
                     .multiplier = 0.7,
                     .lower_bound = -5,
                     .from = (dr_kind)(draw / 7 % 2),
                     .to = (dr_kind)(draw / 14)};
        int64_t x = g.rows * g.heads * g.dim, bias = g.heads * g.dim;
        check(&(call){"gate_forward",
                      &g,
                      0,
                      {make("x", g.from, READ, x), NUMBER("A_log", g.heads), NUMBER("bias", bias), make("y", g.to, WRITTEN, x)},
                      gate});
        check(
            &(call){"gate_backward",
                    &g,
                    add,
                    {make("x", g.from, READ, x), NUMBER("A_log", g.heads), NUMBER("bias", bias), make("d_y", g.to, READ, x),
                     make("d_x", g.from, add ? ADDED : WRITTEN, x), ADD_NUMBER("d_A_log", g.heads), ADD_NUMBER("d_bias", bias)},
                    gate_back});
    }
}

typedef struct {
    int64_t rows, heads, dim;
} shape;

OPERATION(rotary) {
    return b->ops->rotary(b, c->descriptor, at[0], c->flag);
}
OPERATION(swiglu) {
    return b->ops->swiglu_forward(b, *(const int64_t *)c->descriptor, at[0], at[1], at[2]);
}
OPERATION(swiglu_back) {
    return b->ops->swiglu_backward(b, *(const int64_t *)c->descriptor, at[0], at[1], at[2], at[3], at[4]);
}
OPERATION(add_vectors) {
    return b->ops->add(b, DR_VECTOR, *(const int64_t *)c->descriptor, 0.3, at[0], at[1]);
}
OPERATION(add_numbers) {
    return b->ops->add(b, DR_NUMBER, *(const int64_t *)c->descriptor, 0.3, at[0], at[1]);
}
OPERATION(scale) {
    const shape *s = c->descriptor;
    return b->ops->scale_heads_forward(b, s->rows, s->heads, s->dim, false, at[0], at[1], at[2], c->flag);
}
OPERATION(scale_back) {
    const shape *s = c->descriptor;
    return b->ops->scale_heads_backward(b, s->rows, s->heads, s->dim, false, at[0], at[1], at[2], at[3], at[4], c->flag);
}
OPERATION(scale_shared_back) {
    const shape *s = c->descriptor;
    return b->ops->scale_heads_backward(b, s->rows, s->heads, s->dim, true, at[0], at[1], at[2], at[3], at[4], c->flag);
}

static void test_elements(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        bool add = draw % 2;
        dr_rotary r = {.layout = layout_drawn(9), .heads = number_between(1, 3), .size = 2 * number_between(1, 5)};
        r.row = r.heads * r.size + draw % 3, r.dim = r.size, r.factor = 1.5, r.base = 10000;
        shape s = {number_between(0, 9), number_between(1, 4), number_between(1, 9)};
        int64_t n = number_between(0, 50), turned = r.layout.rows * r.row, x = s.rows * s.heads * s.dim,
                factors = s.rows * s.heads;
        check(&(call){"rotary", &r, add, {make("x", DR_VECTOR, ADDED, turned)}, rotary});
        check(&(call){"swiglu_forward", &n, 0, {VECTOR("gate", n), VECTOR("up", n), TO_VECTOR("y", n)}, swiglu});
        check(&(call){"swiglu_backward",
                      &n,
                      0,
                      {VECTOR("gate", n), VECTOR("up", n), VECTOR("d_y", n), TO_VECTOR("d_gate", n), TO_VECTOR("d_up", n)},
                      swiglu_back});
        check(&(call){"add", &n, 0, {VECTOR("x", n), make("y", DR_VECTOR, ADDED, n)}, add_vectors});
        check(&(call){"add", &n, 0, {NUMBER("x", n), ADD_NUMBER("y", n)}, add_numbers});
        check(&(call){
            "scale_heads_forward", &s, add, {NUMBER("factor", factors), VECTOR("x", x), ADD_VECTOR("y", add, x)}, scale});
        check(&(call){"scale_heads_backward",
                      &s,
                      add,
                      {NUMBER("factor", factors), VECTOR("x", x), VECTOR("d_y", x), TO_NUMBER("d_factor", factors),
                       ADD_VECTOR("d_x", add, x)},
                      scale_back});
        check(&(call){"scale_heads_backward",
                      &s,
                      add,
                      {NUMBER("factor", s.heads), VECTOR("x", x), VECTOR("d_y", x), ADD_NUMBER("d_factor", s.heads),
                       ADD_VECTOR("d_x", add, x)},
                      scale_shared_back});
    }
}

/* ---- attention ------------------------------------------------------------------------------------------------------ */

static const int64_t past[] = {3, 0, 2, 5}, slots[] = {2, 4, 0, 1};
enum { CAPACITY = 6, SLOTS = 5 };

OPERATION(attend) {
    const dr_attention_memory memory = {CAPACITY, past, slots, at[3], at[4]};
    return b->ops->attention_forward(b, c->descriptor, at[0], at[1], at[2], c->flag ? &memory : NULL, at[5], at[6]);
}
OPERATION(attend_back) {
    return b->ops->attention_backward(b, c->descriptor, at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8]);
}
OPERATION(append) {
    const dr_attention_memory memory = {CAPACITY, past, slots, at[2], at[3]};
    return b->ops->attention_append(b, c->descriptor, at[0], at[1], &memory);
}

static void test_attention(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        const int64_t keys = number_between(1, 2);
        dr_attention a = {.layout = layout_drawn(5),
                          .heads = keys * number_between(1, 3),
                          .key_heads = keys,
                          .key_size = number_between(1, 6),
                          .value_size = number_between(1, 6),
                          .scale = 0.5,
                          .window = draw % 2 ? 3 : 0};
        int64_t rows = a.layout.rows, q = rows * a.heads * a.key_size, k = rows * keys * a.key_size,
                v = rows * keys * a.value_size, o = rows * a.heads * a.value_size, held = SLOTS * CAPACITY * keys;
        check(&(call){"attention_forward",
                      &a,
                      draw % 3 > 0,
                      {VECTOR("q", q), VECTOR("k", k), VECTOR("v", v), VECTOR("keys", held * a.key_size),
                       VECTOR("values", held * a.value_size), TO_VECTOR("o", o), TO_NUMBER("log_sums", rows * a.heads)},
                      attend});
        check(&(call){"attention_backward",
                      &a,
                      0,
                      {VECTOR("q", q), VECTOR("k", k), VECTOR("v", v), VECTOR("o", o), NUMBER("log_sums", rows * a.heads),
                       VECTOR("d_o", o), TO_VECTOR("d_q", q), TO_VECTOR("d_k", k), TO_VECTOR("d_v", v)},
                      attend_back});
        check(&(call){"attention_append",
                      &a,
                      0,
                      {VECTOR("k", k), VECTOR("v", v), make("keys", DR_VECTOR, ADDED, held * a.key_size),
                       make("values", DR_VECTOR, ADDED, held * a.value_size)},
                      append});
    }
}

/* ---- rows ----------------------------------------------------------------------------------------------------------- */

static const int32_t ids[] = {2, 0, 2, 5};
static const int64_t positions[] = {1, 2, 5};
enum { IDS = 4, POSITIONS = 3, ROWS = 6, WIDTH = 5 };

OPERATION(embedding) {
    (void)c;
    return b->ops->embedding_forward(b, IDS, WIDTH, ids, at[0], at[1]);
}
OPERATION(embedding_back) {
    (void)c;
    return b->ops->embedding_backward(b, IDS, WIDTH, ids, at[0], at[1]);
}
OPERATION(gather) {
    (void)c;
    return b->ops->rows_gather(b, POSITIONS, WIDTH, positions, at[0], at[1]);
}
OPERATION(scatter) {
    (void)c;
    return b->ops->rows_scatter(b, ROWS, POSITIONS, WIDTH, positions, at[0], at[1]);
}
OPERATION(entropy) {
    (void)c;
    double loss[IDS];
    uint8_t hit[IDS];
    dr_status status = b->ops->cross_entropy(b, IDS, ROWS, at[0], ids, 0.25, loss, hit, at[2]);
    return status == DR_OK ? b->ops->upload(b, at[1], loss, DR_F64, IDS) : status;
}

static void test_rows(void **state) {
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++, numbers_release()) {
        check(&(call){"embedding", NULL, 0, {VECTOR("table", ROWS * WIDTH), TO_VECTOR("y", IDS * WIDTH)}, embedding});
        check(&(call){
            "embedding_backward", NULL, 0, {VECTOR("d_y", IDS * WIDTH), ADD_NUMBER("d_table", ROWS * WIDTH)}, embedding_back});
        check(&(call){"rows_gather", NULL, 0, {VECTOR("x", ROWS * WIDTH), TO_VECTOR("y", POSITIONS * WIDTH)}, gather});
        check(&(call){"rows_scatter", NULL, 0, {VECTOR("d_y", POSITIONS * WIDTH), TO_VECTOR("d_x", ROWS * WIDTH)}, scatter});
        check(&(call){"cross_entropy",
                      NULL,
                      0,
                      {VECTOR("logits", IDS * ROWS), TO_NUMBER("loss", IDS), TO_VECTOR("d_logits", IDS * ROWS)},
                      entropy});
    }
}

/* ---- recurrences ---------------------------------------------------------------------------------------------------- */

enum { TOKENS = 11 };

/* A recurrence on one backend: its inputs from values, then output and gradients as doubles. */
static void recur(dr_backend *b, const dr_recurrence *r, double *const values[DR_INPUTS], const double *d_values, double *o,
                  double *const gradients[DR_INPUTS]) {
    const int64_t outputs = TOKENS * r->value_heads * r->value_size;
    dr_recurrence_memory memory;
    dr_inputs inputs = {{NULL}};
    dr_input_gradients d_inputs = {{NULL}};
    void *at[DR_INPUTS] = {NULL}, *out, *d_out, *workspace;
    assert_int_equal(dr_recurrence_plan(b, r, &memory), DR_OK);
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!values[i]) continue;
        int64_t count = dr_recurrence_input_count(r, (dr_input)i);
        size_t bytes = dr_kind_bytes(b, dr_input_kind((dr_input)i), count);
        assert_int_equal(dr_backend_allocate(b, bytes, &at[i]), DR_OK);
        assert_int_equal(dr_backend_allocate(b, bytes, &d_inputs.at[i]), DR_OK);
        assert_int_equal(dr_backend_upload_as(b, at[i], dr_kind_dtype(b, dr_input_kind((dr_input)i)), values[i], DR_F64, count),
                         DR_OK);
        inputs.at[i] = at[i];
    }
    assert_int_equal(dr_backend_allocate(b, dr_kind_bytes(b, DR_VECTOR, outputs), &out), DR_OK);
    assert_int_equal(dr_backend_allocate(b, dr_kind_bytes(b, DR_VECTOR, outputs), &d_out), DR_OK);
    assert_int_equal(dr_backend_allocate(b, memory.backward > memory.forward ? memory.backward : memory.forward, &workspace),
                     DR_OK);
    assert_int_equal(dr_backend_upload_as(b, d_out, dr_kind_dtype(b, DR_VECTOR), d_values, DR_F64, outputs), DR_OK);
    assert_int_equal(dr_recurrence_forward(b, r, &inputs, NULL, out, NULL, NULL, workspace), DR_OK);
    assert_int_equal(dr_kind_download(b, DR_VECTOR, o, DR_F64, out, outputs), DR_OK);
    assert_int_equal(dr_recurrence_backward(b, r, &inputs, NULL, NULL, d_out, NULL, &d_inputs, NULL, workspace), DR_OK);
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!values[i]) continue;
        int64_t count = dr_recurrence_input_count(r, (dr_input)i);
        assert_int_equal(dr_kind_download(b, dr_input_kind((dr_input)i), gradients[i], DR_F64, d_inputs.at[i], count), DR_OK);
        dr_backend_free(b, at[i]), dr_backend_free(b, d_inputs.at[i]);
    }
    dr_backend_free(b, out), dr_backend_free(b, d_out), dr_backend_free(b, workspace);
}

static double value_for(dr_input input, double normal) {
    switch (input) {
    case DR_INPUT_LOG_DECAY:
    case DR_INPUT_SCAN_LOG_DECAY:
        return -fabs(normal);
    case DR_INPUT_RIDGE:
        return 1 + fabs(normal);
    default:
        return dr_input_kind(input) == DR_NUMBER ? 1 / (1 + exp(-normal)) : 0.3 * normal;
    }
}

static void check_recurrence(const dr_rule *rule) {
    const dr_layout layout = {1, TOKENS, NULL};
    const dr_recurrence r = {.rule = rule, .layout = layout, .key_heads = 2, .value_heads = 2, .key_size = 5, .value_size = 6};
    double *values[DR_INPUTS] = {NULL}, *one[DR_INPUTS] = {NULL}, *other[DR_INPUTS] = {NULL},
           *d_o = numbers_normal(TOKENS * 12, 1), *o = numbers_block(TOKENS * 12, sizeof(double)),
           *o_stored = numbers_block(TOKENS * 12, sizeof(double));
    for (int i = 0; i < TOKENS * 12; i++) d_o[i] = rounded(d_o[i]);
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dr_rule_uses(rule, (dr_input)i)) continue;
        int64_t count = dr_recurrence_input_count(&r, (dr_input)i);
        values[i] = numbers_normal(count, 1);
        one[i] = numbers_block(count, sizeof(double)), other[i] = numbers_block(count, sizeof(double));
        for (int64_t j = 0; j < count; j++) {
            values[i][j] = value_for((dr_input)i, values[i][j]);
            if (dr_input_kind((dr_input)i) == DR_VECTOR) values[i][j] = rounded(values[i][j]);
        }
    }
    recur(exact, &r, values, d_o, o, one);
    recur(stored, &r, values, d_o, o_stored, other);
    for (int j = 0; j < TOKENS * 12; j++) assert_true(o_stored[j] == rounded(o[j]));
    for (int i = 0; i < DR_INPUTS; i++)
        for (int64_t j = 0; values[i] && j < dr_recurrence_input_count(&r, (dr_input)i); j++) {
            double wanted = dr_input_kind((dr_input)i) == DR_VECTOR ? rounded(one[i][j]) : one[i][j];
            if (other[i][j] != wanted)
                fail_msg("%s: the gradient of %s[%lld] is %a and must be %a", rule->name, dr_input_name((dr_input)i),
                         (long long)j, other[i][j], wanted);
        }
    numbers_release();
}

static void test_recurrences(void **state) {
    (void)state;
    for (int i = 0; i < dr_rule_count(); i++) check_recurrence(dr_rule_at(i));
}

/* ---- models --------------------------------------------------------------------------------------------------------- */

enum { VOCABULARY = 23, LENGTH = 24 };

/* Loss, logits and gradients of a small model whose parameters are those of seed. */
static double model_loss(dr_backend *b, const dr_model_config *config, double *gradient, double *logits, int64_t *count) {
    int32_t tokens[LENGTH + 1];
    dr_model *model;
    double loss;
    dr_random random = dr_random_start(5, 0);
    for (int i = 0; i <= LENGTH; i++) tokens[i] = (int32_t)dr_random_below(&random, VOCABULARY);
    dr_batch batch = {{2, LENGTH, NULL}, tokens, LENGTH, NULL, tokens + 1};
    assert_int_equal(dr_model_create(b, config, 3, &model), DR_OK);
    assert_non_null(learner_gradients(model));
    assert_int_equal(learner_gradient(model, &batch, 1, &loss, NULL), DR_OK);
    *count = dr_model_block_count(model);
    assert_true(*count <= 1 << 16);
    assert_int_equal(dr_backend_download(b, gradient, DR_F64, learner_gradients(model), *count), DR_OK);
    assert_int_equal(learner_logits(model, &batch, NULL, DR_F64, logits), DR_OK);
    learner_destroy(model);
    return loss / LENGTH;
}

static double distance(const double *one, const double *other, int64_t count) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += (one[i] - other[i]) * (one[i] - other[i]);
        size += one[i] * one[i];
    }
    return sqrt(difference / size);
}

/* Every layer computes where vectors are of another type than numbers: no function takes one for the other. The distance from
 * the double is that of one rounding, times what two layers make of it; mesanet, which solves a system, makes most of it. */
static void test_models(void **state) {
    (void)state;
    const double unit = stored->storage == DR_BF16 ? 0x1p-8 : 0x1p-11;
    double worst = 0;
    for (int i = 0; i < dr_rule_count(); i++) {
        dr_model_config config = dr_model_config_default(dr_rule_at(i));
        config.vocabulary = VOCABULARY, config.hidden = 16, config.layers = 2, config.heads = 2, config.key_size = 8;
        config.intermediate = 12, config.initializer_range = 0.1;
        double *one = numbers_block(1 << 16, sizeof(double)), *other = numbers_block(1 << 16, sizeof(double));
        double *logits = numbers_block(LENGTH * VOCABULARY, sizeof(double)),
               *others = numbers_block(LENGTH * VOCABULARY, sizeof(double));
        int64_t count;
        double loss = model_loss(exact, &config, one, logits, &count),
               near = model_loss(stored, &config, other, others, &count);
        double far = distance(logits, others, LENGTH * VOCABULARY), gradients = distance(one, other, count);
        if (!(fabs(loss - near) < unit * loss && far > 0.02 * unit && far < 10 * unit && gradients > 0.02 * unit &&
              gradients < 100 * unit))
            fail_msg("%s: loss %g and %g, logits differ by %g, gradients by %g", dr_rule_at(i)->name, loss, near, far,
                     gradients);
        if (gradients > worst) worst = gradients;
        numbers_release();
    }
    printf("gradients with %s vectors differ from those in double by at most %.2g\n", dr_dtype_name(stored->storage), worst);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),    cmocka_unit_test(test_norms_and_convolution),
        cmocka_unit_test(test_gates),       cmocka_unit_test(test_elements),
        cmocka_unit_test(test_rows),        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_recurrences), cmocka_unit_test(test_models),
    };
    int failed = cmocka_run_group_tests_name("bf16", tests, open_bf16, close_both);
    return failed + cmocka_run_group_tests_name("f16", tests, open_f16, close_both);
}
