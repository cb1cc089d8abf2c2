/* Muon and groups of parameters: steps against plain loops in double, matrices that become orthogonal, stacks of experts, steps
 * that are skipped, which parameter has which treatment, and runs that are resumed. */
#include "short_backends.h"

#include "base/random.h"
#include "train/groups.h"
#include "train/optimizer.h"

/* ---- the step by plain loops ---- */

/* c = a b^T with a [m, k], b [n, k] */
static void product(int64_t m, int64_t n, int64_t k, const double *a, const double *b, double *c) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++) sum += a[i * k + l] * b[j * k + l];
            c[i * n + j] = sum;
        }
}

static void transpose(int64_t rows, int64_t columns, const double *x, double *y) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) y[j * rows + i] = x[i * columns + j];
}

/* X of Frobenius norm 1, then five times X = a X + (b A + c A^2) X with A = X X^T; in the shape that was given. */
static void orthogonalise(int64_t rows, int64_t columns, double *x) {
    const size_t elements = (size_t)(rows * columns), square = (size_t)(rows * rows);
    double *gram = malloc(square * sizeof *gram), *mix = malloc(square * sizeof *mix), norm = 0;
    double *turned = malloc(elements * sizeof *turned), *next = malloc(elements * sizeof *next);
    for (size_t i = 0; i < elements; i++) norm += x[i] * x[i];
    for (size_t i = 0; i < elements; i++) x[i] /= sqrt(norm);
    for (int step = 0; step < 5; step++) {
        product(rows, rows, columns, x, x, gram);
        product(rows, rows, rows, gram, gram, mix);
        for (size_t i = 0; i < square; i++) mix[i] = 2.0315 * mix[i] - 4.7750 * gram[i];
        transpose(rows, columns, x, turned);
        product(rows, columns, rows, mix, turned, next);
        for (size_t i = 0; i < elements; i++) x[i] = 3.4445 * x[i] + next[i];
    }
    free(gram);
    free(mix);
    free(turned);
    free(next);
}

/* p, m [rows, columns] after a step with gradient g times scale. */
static void expect_step(int64_t rows, int64_t columns, double scale, const double *g, double *p, double *m) {
    const int64_t count = rows * columns;
    double *x = malloc((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++) {
        m[i] = 0.9 * m[i] + scale * g[i];
        x[i] = scale * g[i] + 0.9 * m[i];
    }
    orthogonalise(rows, columns, x);
    const double factor = 0.2 * sqrt((double)(rows > columns ? rows : columns));
    for (int64_t i = 0; i < count; i++) p[i] -= 0.01 * (factor * x[i] + 0.1 * p[i]);
    free(x);
}

static double *draw(uint64_t seed, int64_t count) {
    double *values = malloc((size_t)count * sizeof *values);
    dr_random random = dr_random_start(seed, 1);
    for (int64_t i = 0; i < count; i++) values[i] = dr_random_normal(&random);
    return values;
}

static void *upload(dr_backend *backend, const double *values, int64_t count) {
    void *memory;
    must(dr_backend_allocate(backend, dr_kind_bytes(backend, DR_NUMBER, count), &memory));
    must(dr_backend_upload(backend, memory, values, DR_F64, count));
    return memory;
}

/* |got - wanted| / |wanted - start|: of the change that the steps have made. */
static double error_of(dr_backend *backend, const void *got, const double *wanted, const double *start, int64_t count) {
    double *values = malloc((size_t)count * sizeof *values), wrong = 0, all = 0;
    must(dr_backend_download(backend, values, DR_F64, got, count));
    for (int64_t i = 0; i < count; i++) {
        wrong += (values[i] - wanted[i]) * (values[i] - wanted[i]);
        all += (wanted[i] - start[i]) * (wanted[i] - start[i]);
    }
    free(values);
    return sqrt(wrong / all);
}

/* Two steps, the second with a gradient of another direction, at scale 1/2. */
static void check_shape(dr_backend *backend, int64_t rows, int64_t columns, double tolerance) {
    const int64_t count = rows * columns, shorter = rows < columns ? rows : columns;
    double *p = draw(1, count), *start = draw(1, count), *m = calloc((size_t)count, sizeof *m),
           *zero = calloc((size_t)count, sizeof *m);
    void *parameter = upload(backend, p, count), *momentum = upload(backend, m, count);
    const dr_muon_step step = {.rows = rows, .columns = columns, .learning_rate = 0.01, .beta = 0.9, .weight_decay = 0.1};
    const dr_control control = {.scale = 0.5, .updates = 1};
    dr_muon *muon;
    must(dr_muon_create(backend, count + 3, shorter + 2, &muon));
    for (uint64_t i = 0; i < 2; i++) {
        double *g = draw(2 + i, count);
        void *gradient = upload(backend, g, count);
        must(dr_muon_update(muon, &step, &control, gradient, parameter, momentum));
        expect_step(rows, columns, 0.5, g, p, m);
        dr_backend_free(backend, gradient);
        free(g);
    }
    const double of_parameter = error_of(backend, parameter, p, start, count),
                 of_momentum = error_of(backend, momentum, m, zero, count);
    if (!(of_parameter < tolerance && of_momentum < tolerance))
        fail_msg("%lld x %lld on %s: errors %g and %g", (long long)rows, (long long)columns, dr_backend_name(backend),
                 of_parameter, of_momentum);
    dr_muon_destroy(muon);
    dr_backend_free(backend, parameter);
    dr_backend_free(backend, momentum);
    free(p);
    free(start);
    free(m);
    free(zero);
}

/* Float32 keeps five digits of a step; vectors of 8 bits of fraction, as published, two. */
static void test_steps_against_plain_loops(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{2, 2}, {5, 7}, {7, 5}, {16, 16}, {3, 70}, {65, 24}, {64, 128}, {256, 64}, {128, 256}};
    dr_backend *stored;
    must(dr_backend_open("reference", &(dr_backend_options){.dtype = DR_BF16}, &stored));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const bool small = shapes[i][0] * shapes[i][1] < 5000;
        if (small) check_shape(reference, shapes[i][0], shapes[i][1], 1e-9);
        if (small) check_shape(stored, shapes[i][0], shapes[i][1], 0.05);
        check_shape(cpu, shapes[i][0], shapes[i][1], 2e-4);
    }
    dr_backend_close(stored);
}

/* A diagonal keeps its zeros, and each of its elements, 0.05 of the norm or more, comes close to 1: with a rate of 1, no decay
 * and a side of 25 the step is X itself. */
static void test_singular_values_come_close_to_one(void **state) {
    (void)state;
    enum { SIDE = 25, COUNT = SIDE * SIDE };
    double g[COUNT] = {0}, zero[COUNT] = {0}, value[COUNT];
    for (int i = 0; i < SIDE; i++) g[i * SIDE + i] = (i % 2 ? -1 : 1) * (1 + 0.1 * i);
    void *gradient = upload(reference, g, COUNT), *parameter = upload(reference, zero, COUNT),
         *momentum = upload(reference, zero, COUNT);
    dr_muon *muon;
    must(dr_muon_create(reference, COUNT, SIDE, &muon));
    const dr_muon_step step = {.rows = SIDE, .columns = SIDE, .learning_rate = 1, .beta = 0.95};
    must(dr_muon_update(muon, &step, &(dr_control){.scale = 1}, gradient, parameter, momentum));
    must(dr_backend_download(reference, value, DR_F64, parameter, COUNT));
    for (int i = 0; i < COUNT; i++) {
        const double wanted = g[i] > 0 ? -1 : g[i] < 0 ? 1 : 0;
        assert_true(fabs(value[i] - wanted) < (wanted == 0 ? 1e-12 : 0.35));
    }
    dr_muon_destroy(muon);
    dr_backend_free(reference, gradient);
    dr_backend_free(reference, parameter);
    dr_backend_free(reference, momentum);
}

/* ---- in an optimizer ---- */

static const dr_optimizer_settings SETTINGS_OF_MUON = {
    .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .muon = true, .momentum = 0.9};

static dr_model *make_model(dr_backend *backend) {
    static const char experts[] = "[{\"experts\": {\"count\": 3, \"chosen\": 2, \"width\": 6, \"balance\": 0.1}}]";
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    dr_model *model;
    config.vocabulary = 11, config.hidden = 8, config.layers = 1, config.heads = 2, config.intermediate = 8,
    config.tied = false;
    config.layer_list = experts;
    must(dr_model_create(backend, &config, 1, &model));
    return model;
}

static bool ends_with(const char *name, const char *ending) {
    const size_t length = strlen(name), tail = strlen(ending);
    return length >= tail && strcmp(name + length - tail, ending) == 0;
}

/* Each matrix of a stack has a step of its own; embeddings, heads, vectors and filters have AdamW's. */
static void test_matrices_of_a_model(void **state) {
    (void)state;
    dr_model *model = make_model(reference);
    dr_optimizer *optimizer;
    const dr_parameter *parameters;
    must(dr_optimizer_create(model, &SETTINGS_OF_MUON, &optimizer));
    const int64_t count = dr_model_parameters(model, &parameters), block = dr_model_block_count(model);
    double *value = dr_model_parameter_block(model), *gradient = optimizer->gradient,
           *before = malloc((size_t)block * sizeof *before);
    memcpy(before, value, (size_t)block * sizeof *before);
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0; k < parameters[i].count; k++)
            gradient[parameters[i].offset + k] = sin(1 + (double)(parameters[i].offset + k));
    must(dr_optimizer_update(optimizer, 0.01));
    int stacks = 0, matrices = 0;
    for (int64_t i = 0; i < count; i++) {
        const dr_parameter *is = &parameters[i];
        const bool of_tokens = ends_with(is->name, "embeddings.weight") || ends_with(is->name, "lm_head.weight");
        const bool muon = is->decays && !of_tokens && !strstr(is->name, "conv");
        double m = 0, change = 0;
        for (int64_t k = 0; k < is->count; k++) m += fabs(((double *)optimizer->square)[is->offset + k]);
        if (muon != (m == 0)) fail_msg("%s %s Muon", is->name, muon ? "does not have" : "has");
        matrices += muon, stacks += muon && is->rank == 3;
        const int64_t rows = is->shape[is->rank - 2 > 0 ? is->rank - 2 : 0], columns = is->shape[is->rank - 1];
        for (int64_t at = is->offset; muon && at < is->offset + is->count; at += rows * columns) {
            double moment[256] = {0};
            assert_true(rows * columns <= 256);
            expect_step(rows, columns, 1, gradient + at, before + at, moment);
            for (int64_t k = 0; k < rows * columns; k++) change = fmax(change, fabs(before[at + k] - value[at + k]));
        }
        if (change > 1e-10) fail_msg("%s is off by %g", is->name, change);
    }
    assert_true(stacks == 3 && matrices > 6);
    free(before);
    dr_optimizer_destroy(optimizer);
    dr_model_destroy(model);
}

/* Neither parameters nor momentum take anything of a gradient that is not finite. */
static void test_skipped_steps_change_nothing(void **state) {
    (void)state;
    dr_backend *const backends[] = {reference, cpu};
    for (int b = 0; b < 2; b++) {
        dr_model *model = make_model(backends[b]);
        dr_optimizer *optimizer;
        const int64_t block = dr_model_block_count(model);
        const size_t bytes = dr_kind_bytes(backends[b], DR_NUMBER, block);
        must(dr_optimizer_create(model, &SETTINGS_OF_MUON, &optimizer));
        void *parameters = dr_model_parameter_block(model), *before = malloc(bytes), *mean = malloc(bytes);
        double *values = malloc((size_t)block * sizeof *values), norm;
        bool skipped;
        for (int64_t i = 0; i < block; i++) values[i] = cos((double)i);
        must(dr_backend_upload(backends[b], optimizer->gradient, values, DR_F64, block));
        must(dr_optimizer_step(optimizer, 0.01, &norm, &skipped));
        assert_false(skipped);
        memcpy(before, parameters, bytes);
        memcpy(mean, optimizer->mean, bytes);
        values[block / 2] = NAN;
        must(dr_backend_upload(backends[b], optimizer->gradient, values, DR_F64, block));
        must(dr_optimizer_step(optimizer, 0.01, &norm, &skipped));
        assert_true(skipped);
        assert_memory_equal(parameters, before, bytes);
        assert_memory_equal(optimizer->mean, mean, bytes);
        free(values);
        free(before);
        free(mean);
        dr_optimizer_destroy(optimizer);
        dr_model_destroy(model);
    }
}

static void test_backends_without_the_operation(void **state) {
    (void)state;
    const dr_operations *whole = reference->ops;
    dr_operations part = *whole;
    dr_muon *muon;
    part.descend = NULL;
    reference->ops = &part;
    const dr_status status = dr_muon_create(reference, 4, 2, &muon);
    reference->ops = whole;
    assert_refused(status, DR_ERROR_UNSUPPORTED, "backend reference has no operation muon");
}

/* ---- groups ---- */

static void test_groups(void **state) {
    (void)state;
    dr_model *model = make_model(reference);
    const dr_parameter *parameters;
    const int64_t count = dr_model_parameters(model, &parameters);
    dr_treatment *is = malloc((size_t)count * sizeof *is);
    dr_groups groups;
    must(dr_groups_parse(
        " *norm* rate=0.5 decay=0.25;; *.layers.*proj.weight rate=0.125; *o_proj.weight rate=2 optimizer=adamw; "
        "*embeddings* optimizer=muon;",
        &groups));
    must(dr_groups_treat(&groups, model, 0.1, true, is));
    for (int64_t i = 0; i < count; i++) {
        const char *name = parameters[i].name;
        const bool norm = strstr(name, "norm") != NULL, out = ends_with(name, "o_proj.weight");
        const bool projection = strstr(name, ".layers.") && ends_with(name, "proj.weight");
        assert_true(is[i].rate == (out ? 2 : projection ? 0.125 : norm ? 0.5 : 1));
        assert_true(is[i].decay == (norm ? 0.25 : parameters[i].decays ? 0.1 : 0));
        if (out) assert_false(is[i].muon);
        if (strstr(name, "embeddings")) assert_true(is[i].muon);
        if (ends_with(name, "lm_head.weight")) assert_false(is[i].muon);
    }
    dr_groups_release(&groups);
    free(is);
    dr_model_destroy(model);
}

/* The rate of a group is a factor of the schedule's, for AdamW and for Muon. */
static void test_rates_of_groups(void **state) {
    (void)state;
    for (int muon = 0; muon < 2; muon++) {
        dr_model *model = make_model(reference);
        dr_optimizer_settings settings = SETTINGS_OF_MUON;
        dr_optimizer *optimizer;
        const dr_parameter *parameters;
        settings.muon = muon, settings.groups = "* rate=0; *q_proj.weight rate=1";
        must(dr_optimizer_create(model, &settings, &optimizer));
        const int64_t count = dr_model_parameters(model, &parameters), block = dr_model_block_count(model);
        double *value = dr_model_parameter_block(model), *before = malloc((size_t)block * sizeof *before);
        memcpy(before, value, (size_t)block * sizeof *before);
        for (int64_t i = 0; i < block; i++) ((double *)optimizer->gradient)[i] = cos((double)i);
        must(dr_optimizer_update(optimizer, 0.01));
        int changed = 0;
        for (int64_t i = 0; i < count; i++) {
            const int64_t at = parameters[i].offset;
            const bool same = memcmp(value + at, before + at, (size_t)parameters[i].count * sizeof *value) == 0;
            assert_true(same != ends_with(parameters[i].name, "q_proj.weight"));
            changed += !same;
        }
        assert_true(changed > 0);
        free(before);
        dr_optimizer_destroy(optimizer);
        dr_model_destroy(model);
    }
}

static void test_bad_groups_are_refused(void **state) {
    (void)state;
    static const char *const bad[][2] = {{"*", "pattern * says nothing"},
                                         {"* rat=2", "\"rat\" of pattern * is none of rate=X"},
                                         {"* rate", "\"rate\" of pattern * is none of"},
                                         {"* rate=-1", "rate is \"-1\": it must be a number from 0 to 1000"},
                                         {"* decay=x", "decay is \"x\": it must be a number from 0 to 10"},
                                         {"* rate=nan", "rate is \"nan\""},
                                         {"* optimizer=sgd", "optimizer is \"sgd\": it must be adamw or muon"},
                                         {"*.weigh rate=2", "no parameter of the model has a name like \"*.weigh\""},
                                         {"*norm* optimizer=muon", "none of the parameters like \"*norm*\" is a matrix"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) short_refused(cpu, bad[i][1], SETTINGS("groups", bad[i][0]));
    char many[33 * 12 + 1] = "";
    for (int i = 0; i < 33; i++) strcat(many, "* rate=1;");
    short_refused(cpu, "groups has more than 32 patterns", SETTINGS("groups", many));
}

/* ---- runs ---- */

static void test_runs_with_muon(void **state) {
    (void)state;
    short_run whole = {0}, stopped = {.stop_at = 3}, threads = {0};
    const char *const *settings =
        SETTINGS("optimizer", "muon", "groups", "*embeddings* rate=0.5; *norm* rate=2", "steps", "8", "learning_rate", "0.02");
    dr_backend *three = open_backend("cpu", NULL, 3);
    must(short_train(cpu, "whole", &whole, settings));
    assert_int_equal(short_train(cpu, "stopped", &stopped, settings), DR_ERROR_INTERRUPTED);
    must(short_resume(cpu, "stopped", &stopped));
    must(short_train(three, "threads", &threads, settings));
    for (int64_t step = 1; step <= 8; step++)
        assert_true(stopped.told[step].loss == whole.told[step].loss && threads.told[step].loss == whole.told[step].loss);
    short_assert_same_file("whole", "stopped", "model.safetensors");
    short_assert_same_file("whole", "threads", "model.safetensors");
    assert_true(whole.told[8].loss < whole.told[1].loss - 0.5);
    dr_backend_close(three);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_against_plain_loops),
        cmocka_unit_test(test_singular_values_come_close_to_one),
        cmocka_unit_test(test_matrices_of_a_model),
        cmocka_unit_test(test_skipped_steps_change_nothing),
        cmocka_unit_test(test_backends_without_the_operation),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_rates_of_groups),
        cmocka_unit_test(test_bad_groups_are_refused),
        cmocka_unit_test(test_runs_with_muon),
    };
    return cmocka_run_group_tests(tests, short_begin, short_end);
}
