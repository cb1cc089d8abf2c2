/* Weights in 16 and 8 bits: products on every instruction set against the reference, which computes with the same stored
 * weights in double; the same bits for any threads, cut and neighbours; rows as base/weight_row.h has them; whole models of all
 * kinds. */
#include "allocation.h"
#include "backends/cpu/cpu.h"
#include "backends/reference/reference.h"
#include "base/cpu.h"
#include "base/half.h"
#include "base/weight_row.h"
#include "checkpoint_folders.h"
#include "formats/safetensors.h"
#include "nn/model.h"
#include "numbers.h"
#include "scratch.h"
#include "statuses.h"

#include <math.h>
#include <stdio.h>

enum { TYPES = 2, MOST_ISAS = 3, TEAMS = 3 };
static const dr_dtype types[TYPES] = {DR_BF16, DR_I8};
static dr_backend *reference[TYPES], *cpu[TYPES][MOST_ISAS][TEAMS];
static int isas;

static int begin(void **state) {
    static const char *const names[MOST_ISAS] = {"portable", "avx2", "avx512"};
    static const int teams[TEAMS] = {1, 2, 3};
    const dr_cpu_features features = dr_cpu_detect();
    isas = features.avx512 ? 3 : features.avx2 ? 2 : 1;
    if (isas < MOST_ISAS) printf("this machine has no %s: not tested\n", names[isas]);
    for (int t = 0; t < TYPES; t++) {
        must(dr_backend_open("reference", &(dr_backend_options){.weights = types[t]}, &reference[t]));
        for (int i = 0; i < isas; i++)
            for (int n = 0; n < TEAMS; n++)
                must(dr_backend_open("cpu", &(dr_backend_options){.isa = names[i], .threads = teams[n], .weights = types[t]},
                                     &cpu[t][i][n]));
    }
    return scratch_begin(state);
}

static int end(void **state) {
    for (int t = 0; t < TYPES; t++) {
        dr_backend_close(reference[t]);
        for (int i = 0; i < isas * TEAMS; i++) dr_backend_close(cpu[t][i / TEAMS][i % TEAMS]);
    }
    return scratch_end(state);
}

/* ---- rows ---- */

static void test_rows_are_rounded_to_the_nearest(void **state) {
    (void)state;
    for (int trial = 0; trial < 200; trial++) {
        const int64_t columns = number_between(1, trial < 190 ? 40 : 3000);
        const double *from = numbers_normal(columns, exp(number_between(-20, 20)));
        double *back = numbers_block(columns, sizeof(double));
        for (int t = 0; t < TYPES; t++) {
            unsigned char *row = numbers_block((int64_t)dr_weight_row_bytes(types[t], columns), 1);
            assert_int_equal(dr_weight_row_bytes(types[t], columns) % (types[t] == DR_I8 ? 4 : 2), 0);
            dr_weight_row_store(types[t], columns, from, DR_F64, row);
            dr_weight_row_load(types[t], row, 0, columns, back);
            double largest = 0;
            for (int64_t i = 0; i < columns; i++) largest = fmax(largest, fabs(from[i]));
            for (int64_t i = 0; i < columns; i++) {
                const double step = types[t] == DR_I8 ? largest / 127 : fabs(from[i]) * 0x1p-7;
                assert_true(fabs(back[i] - from[i]) <= 0.50001 * step);
            }
            double one;
            const int64_t at = number_between(0, columns - 1);
            dr_weight_row_load(types[t], row, at, 1, &one);
            assert_true(one == back[at]);
        }
        numbers_release();
    }
}

static void test_rows_of_zeros_and_of_the_smallest_numbers(void **state) {
    (void)state;
    const double rows[3][5] = {
        {0, 0, -0.0, 0, 0}, {0x1p-149, -0x1p-149, 0, 0x1p-148, 0}, {0x1p-140, -0x1p-145, 0x1p-149, 0, 0}};
    for (int r = 0; r < 3; r++) {
        unsigned char row[32];
        double back[5];
        dr_weight_row_store(DR_I8, 5, rows[r], DR_F64, row);
        dr_weight_row_load(DR_I8, row, 0, 5, back);
        for (int i = 0; i < 5; i++) assert_true(isfinite(back[i]) && fabs(back[i] - rows[r][i]) <= 0x1p-140);
    }
}

/* ---- products ---- */

typedef struct {
    int type;
    int64_t rows, in, out, groups;
    double *x, *bias; /* single floats */
    char *weight;     /* [groups out] rows */
    double *y;        /* the reference's */
    double *size;     /* sums of the magnitudes of an element's terms */
} problem;

static float *as_floats(const double *from, int64_t count) {
    float *to = numbers_block(count, sizeof(float));
    for (int64_t i = 0; i < count; i++) to[i] = (float)from[i];
    return to;
}

static double *floats_of(int64_t count, double deviation) {
    double *values = numbers_normal(count, deviation);
    for (int64_t i = 0; i < count; i++) values[i] = (double)(float)values[i];
    return values;
}

static problem make_problem(int type, int64_t rows, int64_t in, int64_t out, int64_t groups, bool biased) {
    const int64_t all = groups * out;
    problem p = {.type = type, .rows = rows, .in = in, .out = out, .groups = groups};
    p.x = floats_of(rows * groups * in, 1);
    p.bias = biased ? floats_of(out, 1) : NULL;
    p.weight = numbers_block((int64_t)dr_weight_row_bytes(types[type], in) * all, 1);
    must(reference[type]->ops->weights_store(reference[type], all, in, floats_of(all * in, 0.3), p.weight));
    p.y = numbers_block(rows * all, sizeof(double));
    p.size = numbers_block(rows * all, sizeof(double));
    double *row = numbers_block(in, sizeof(double));
    for (int64_t o = 0; o < all; o++) {
        dr_weight_row_load(types[type], p.weight + (size_t)o * dr_weight_row_bytes(types[type], in), 0, in, row);
        for (int64_t r = 0; r < rows; r++) {
            const double *x = p.x + (r * groups + o / out) * in;
            double size = biased ? fabs(p.bias[o]) : 0;
            for (int64_t i = 0; i < in; i++) size += fabs(x[i] * row[i]);
            p.size[r * all + o] = size;
        }
    }
    if (groups == 1)
        must(reference[type]->ops->linear_forward(reference[type], &(dr_linear){.rows = rows, .in = in, .out = out}, p.x,
                                                  p.weight, p.bias, p.y));
    else
        must(reference[type]->ops->grouped_linear_forward(
            reference[type], &(dr_grouped_linear){.rows = rows, .groups = groups, .in = in, .out = out}, p.x, p.weight, p.y));
    return p;
}

static void compute(dr_backend *backend, const problem *p, int64_t rows, const float *x, const float *bias, float *y) {
    if (p->groups == 1)
        must(backend->ops->linear_forward(backend, &(dr_linear){.rows = rows, .in = p->in, .out = p->out}, x, p->weight, bias,
                                          y));
    else
        must(backend->ops->grouped_linear_forward(
            backend, &(dr_grouped_linear){.rows = rows, .groups = p->groups, .in = p->in, .out = p->out}, x, p->weight, y));
}

static double worst[TYPES][MOST_ISAS]; /* error as a share of the sum of magnitudes */

static void hold(const problem *p) {
    const int64_t all = p->groups * p->out, count = p->rows * all, width = p->groups * p->in;
    const float *x = as_floats(p->x, p->rows * width), *bias = p->bias ? as_floats(p->bias, p->out) : NULL;
    float *y = numbers_block(count, sizeof(float)), *other = numbers_block(count, sizeof(float));
    for (int i = 0; i < isas; i++) {
        compute(cpu[p->type][i][0], p, p->rows, x, bias, y);
        for (int64_t j = 0; j < count; j++) {
            const double error = fabs((double)y[j] - p->y[j]) / p->size[j];
            if (error > worst[p->type][i]) worst[p->type][i] = error;
            if (!(error <= 2e-6))
                fail_msg("%s, %ld x %ld x %ld: %g", cpu[p->type][i][0]->isa, (long)p->rows, (long)p->in, (long)p->out, error);
        }
        for (int n = 1; n < TEAMS; n++) {
            compute(cpu[p->type][i][n], p, p->rows, x, bias, other);
            assert_memory_equal(other, y, (size_t)count * sizeof *y);
        }
        const int64_t first = number_between(0, p->rows - 1), some = number_between(1, p->rows - first);
        compute(cpu[p->type][i][1], p, some, x + first * width, bias, other); /* fewer rows, and others beside them */
        assert_memory_equal(other, y + first * all, (size_t)(some * all) * sizeof *y);
    }
}

static int64_t drawn(int64_t most) {
    static const int64_t edges[] = {1, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 65};
    return number_between(0, 2) ? edges[number_between(0, 11)] : number_between(1, most);
}

static void test_products_agree_with_the_stored_weights_in_double(void **state) {
    (void)state;
    for (int trial = 0; trial < 300; trial++) {
        const int type = trial % TYPES;
        const problem p = make_problem(type, number_between(0, 1) ? number_between(1, 9) : drawn(40), drawn(300), drawn(150),
                                       trial % 5 == 0 ? number_between(2, 4) : 1, trial % 5 != 0 && trial % 3 == 0);
        hold(&p);
        numbers_release();
    }
    static const int64_t real[][3] = {{1, 1024, 256},  {1, 1025, 500},  {4, 2048, 128}, {5, 2050, 64},
                                      {64, 1024, 128}, {100, 3000, 40}, {1, 64, 2048},  {128, 128, 256}};
    for (int type = 0; type < TYPES; type++)
        for (size_t i = 0; i < sizeof real / sizeof real[0]; i++) {
            const problem p = make_problem(type, real[i][0], real[i][1], real[i][2], 1, i % 2);
            hold(&p);
            numbers_release();
        }
    for (int type = 0; type < TYPES; type++)
        for (int i = 0; i < isas; i++)
            printf("%s on %s: largest error %.1e of the sum of magnitudes\n", dr_dtype_name(types[type]), cpu[type][i][0]->isa,
                   worst[type][i]);
}

static void test_the_other_way_agrees_and_weights_have_no_gradient(void **state) {
    (void)state;
    for (int trial = 0; trial < 60; trial++) {
        const int type = trial % TYPES;
        const dr_linear linear = {.rows = number_between(1, 9), .in = drawn(400), .out = drawn(60)};
        const problem p = make_problem(type, linear.rows, linear.in, linear.out, 1, false);
        const bool accumulate = trial % 3 == 0;
        double *d_y = floats_of(linear.rows * linear.out, 1), *d_x = floats_of(linear.rows * linear.in, 1);
        float *start = as_floats(d_x, linear.rows * linear.in);
        must(reference[type]->ops->linear_backward(reference[type], &linear, p.x, p.weight, d_y, d_x, accumulate, NULL, NULL));
        for (int i = 0; i < isas * TEAMS; i++) {
            dr_backend *backend = cpu[type][i / TEAMS][i % TEAMS];
            float *got = numbers_block(linear.rows * linear.in, sizeof(float));
            memcpy(got, start, (size_t)(linear.rows * linear.in) * sizeof *got);
            must(backend->ops->linear_backward(backend, &linear, NULL, p.weight, as_floats(d_y, linear.rows * linear.out), got,
                                               accumulate, NULL, NULL));
            for (int64_t j = 0; j < linear.rows * linear.in; j++)
                assert_true(fabs((double)got[j] - d_x[j]) <= 3e-6 * (double)linear.out);
            assert_refused(backend->ops->linear_backward(backend, &linear, NULL, p.weight, got, NULL, false, got, NULL),
                           DR_ERROR_UNSUPPORTED, "have no gradient");
        }
        numbers_release();
    }
}

static void test_rows_of_an_embedding(void **state) {
    (void)state;
    for (int type = 0; type < TYPES; type++)
        for (int trial = 0; trial < 20; trial++) {
            const int64_t dim = drawn(300), vocabulary = number_between(1, 30), rows = number_between(1, 40);
            const problem p = make_problem(type, 1, dim, vocabulary, 1, false);
            int32_t *ids = numbers_block(rows, sizeof(int32_t));
            double *wide = numbers_block(rows * dim, sizeof(double));
            float *got = numbers_block(rows * dim, sizeof(float));
            for (int64_t i = 0; i < rows; i++) ids[i] = (int32_t)number_between(0, vocabulary - 1);
            must(reference[type]->ops->embedding_forward(reference[type], rows, dim, ids, p.weight, wide));
            for (int i = 0; i < isas * TEAMS; i++) {
                dr_backend *backend = cpu[type][i / TEAMS][i % TEAMS];
                must(backend->ops->embedding_forward(backend, rows, dim, ids, p.weight, got));
                for (int64_t j = 0; j < rows * dim; j++) assert_true(got[j] == (float)wide[j]);
            }
            numbers_release();
        }
}

static void test_products_of_experts(void **state) {
    (void)state;
    for (int trial = 0; trial < 20; trial++) {
        const int type = trial % TYPES;
        const dr_experts of = {.rows = number_between(1, 30), .experts = 5, .chosen = 2};
        const int64_t in = drawn(200), out = drawn(100), slots = of.rows * of.chosen;
        const problem p = make_problem(type, slots, in, out * of.experts, 1, false);
        int32_t begins[6] = {0};
        for (int e = 1; e < 5; e++) begins[e] = (int32_t)number_between(begins[e - 1], slots);
        begins[5] = (int32_t)slots;
        double *wide = numbers_block(slots * out, sizeof(double));
        must(reference[type]->ops->experts_linear_forward(reference[type], &of, in, out, begins, p.x, p.weight, wide));
        for (int i = 0; i < isas * TEAMS; i++) {
            dr_backend *backend = cpu[type][i / TEAMS][i % TEAMS];
            float *got = numbers_block(slots * out, sizeof(float));
            must(
                backend->ops->experts_linear_forward(backend, &of, in, out, begins, as_floats(p.x, slots * in), p.weight, got));
            for (int e = 0; e < 5; e++)
                for (int64_t j = begins[e] * out; j < begins[e + 1] * out; j++)
                    assert_true(fabs((double)got[j] - wide[j]) <= 2e-6 * p.size[j / out * out * 5 + e * out + j % out]);
        }
        numbers_release();
    }
}

/* ---- models ---- */

enum { TOKENS = 70, MORE = 12, VOCABULARY = 4096 };

/* Logits of a prompt in one call with a state, then of single tokens behind it. */
static void run_model(const dr_model *model, float *logits) {
    const int64_t vocabulary = dr_model_get_config(model)->vocabulary;
    dr_session *session;
    dr_model_state *state;
    int32_t ids[TOKENS + MORE];
    for (int i = 0; i < TOKENS + MORE; i++) ids[i] = (int32_t)((i * i + 3 * i) % vocabulary);
    must(dr_session_create(model, &session));
    must(dr_model_state_create(model, 1, &state));
    const dr_batch batch = {.layout = {1, TOKENS, NULL}, .ids = ids, .targets = TOKENS};
    must(dr_session_logits(session, &batch, state, DR_F32, logits));
    for (int i = 0; i < MORE; i++) must(dr_model_step(model, ids + TOKENS + i, state, logits + (TOKENS + i) * vocabulary));
    dr_session_destroy(session);
    dr_model_state_destroy(state);
}

static double distance(const float *a, const float *b, int64_t count) {
    double most = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) return INFINITY;
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
        size = fmax(size, fabs((double)b[i]));
    }
    return most / fmax(size, 1e-9);
}

static dr_model *load(dr_backend *backend, const char *folder) {
    dr_model *model;
    must(dr_model_load(backend, folder, &model));
    return model;
}

/* A published model with such weights: the reference's logits on the CPU; saved and loaded, the same bits. */
static void hold_folder(const char *folder, dr_backend *whole, int type) {
    dr_model *full = load(whole, folder), *exact = load(reference[type], folder), *model = load(cpu[type][isas - 1][1], folder);
    const int64_t count = (TOKENS + MORE) * dr_model_get_config(full)->vocabulary;
    float *plain = numbers_block(count, sizeof(float)), *expected = numbers_block(count, sizeof(float)),
          *logits = numbers_block(count, sizeof(float)), *again = numbers_block(count, sizeof(float));
    run_model(full, plain);
    run_model(exact, expected);
    run_model(model, logits);
    const double error = distance(logits, expected, count), cost = distance(logits, plain, count);
    if (!(error <= 2e-4)) fail_msg("%s in %s is %g from the reference", folder, dr_dtype_name(types[type]), error);
    if (!(cost > 0)) fail_msg("%s in %s is as in float32", folder, dr_dtype_name(types[type]));
    dr_model *threads = load(cpu[type][isas - 1][2], folder);
    run_model(threads, again);
    assert_memory_equal(again, logits, (size_t)count * sizeof *logits);

    const char *saved = scratch_path("narrow");
    must(dr_model_save(model, saved));
    dr_model *other = load(cpu[type][isas - 1][0], saved);
    run_model(other, again);
    if (types[type] == DR_BF16) assert_memory_equal(again, logits, (size_t)count * sizeof *logits);
    assert_true(distance(again, logits, count) <= 1e-3); /* a row's largest element stands for its scale again, rounded */

    uint64_t one, two;
    void *gradients;
    must(dr_model_identity(full, &one));
    must(dr_model_identity(model, &two));
    assert_true(one != two);
    assert_refused(dr_model_gradients_create(model, &gradients), DR_ERROR_UNSUPPORTED, "only read");
    dr_model_destroy(full);
    dr_model_destroy(exact);
    dr_model_destroy(model);
    dr_model_destroy(threads);
    dr_model_destroy(other);
    numbers_release();
}

static void hold_types_of_folder(const char *folder, void *whole) {
    for (int type = 0; type < TYPES; type++) hold_folder(folder, whole, type);
}

static void test_published_models(void **state) {
    (void)state;
    dr_backend *whole = open_backend("cpu", NULL, 1);
    each_checkpoint(hold_types_of_folder, whole);
    dr_backend_close(whole);
}

static void test_random_models_and_failed_allocations(void **state) {
    (void)state;
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = 300, config.hidden = 64, config.layers = 2, config.heads = 2, config.tied = true;
    for (int type = 0; type < TYPES; type++) {
        dr_model *one, *two;
        must(dr_model_create(reference[type], &config, 5, &one));
        must(dr_model_create(cpu[type][isas - 1][0], &config, 5, &two));
        const int64_t count = (TOKENS + MORE) * config.vocabulary;
        float *expected = numbers_block(count, sizeof(float)), *logits = numbers_block(count, sizeof(float));
        run_model(one, expected);
        run_model(two, logits);
        assert_true(distance(logits, expected, count) <=
                    2e-3); /* first values are rounded from double there, and from float here */
        const char *folder = scratch_path("tied");
        must(dr_model_save(two, folder));
        long failed = 0;
        for (dr_model *loaded = NULL; !loaded; failed++) {
            const long alive = allocation_alive;
            allocation_fail_at(failed + 1);
            const dr_status status = dr_model_load(cpu[type][0][0], folder, &loaded);
            allocation_fail_at(0);
            if (status == DR_OK) {
                dr_model_destroy(loaded);
                break;
            }
            assert_int_equal(status, DR_ERROR_MEMORY);
            assert_int_equal(allocation_alive, alive);
        }
        assert_true(failed > 20);
        dr_model_destroy(one);
        dr_model_destroy(two);
        numbers_release();
    }
}

static void test_types_that_cannot_be(void **state) {
    (void)state;
    dr_backend *backend;
    assert_refused(dr_backend_open("cpu", &(dr_backend_options){.weights = DR_F16}, &backend), DR_ERROR_ARGUMENT, "BF16 or I8");
    assert_refused(dr_backend_open("reference", &(dr_backend_options){.weights = DR_U8}, &backend), DR_ERROR_ARGUMENT,
                   "BF16 or I8");
    assert_refused(dr_backend_open("reference", &(dr_backend_options){.weights = DR_I8, .dtype = DR_BF16}, &backend),
                   DR_ERROR_UNSUPPORTED, "vectors are BF16");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_rounded_to_the_nearest),
        cmocka_unit_test(test_rows_of_zeros_and_of_the_smallest_numbers),
        cmocka_unit_test(test_products_agree_with_the_stored_weights_in_double),
        cmocka_unit_test(test_the_other_way_agrees_and_weights_have_no_gradient),
        cmocka_unit_test(test_rows_of_an_embedding),
        cmocka_unit_test(test_products_of_experts),
        cmocka_unit_test(test_published_models),
        cmocka_unit_test(test_random_models_and_failed_allocations),
        cmocka_unit_test(test_types_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
