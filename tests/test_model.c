/* Whole models: gradients against differences in double on the reference; the CPU against the reference; one-token steps, split
 * and packed sequences against whole ones; losses at chosen positions; the same bits for any number of threads; refused
 * batches; failed allocations. */
#include "allocation.h"
#include "base/random.h"
#include "differences.h"
#include "learner.h"
#include "nn/parameters.h"
#include "nn/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ASSERT_OK(call)                                                                                                        \
    do {                                                                                                                       \
        if ((call) != DR_OK) fail_msg("%s: %s", #call, dr_last_error());                                                       \
    } while (0)

static dr_backend *reference, *cpu;

static int open_backends(void **state) {
    (void)state;
    return dr_backend_open("reference", NULL, &reference) != DR_OK || dr_backend_open("cpu", NULL, &cpu) != DR_OK;
}

static int close_backends(void **state) {
    (void)state;
    dr_backend_close(reference);
    dr_backend_close(cpu);
    return 0;
}

/* ---- models and batches --------------------------------------------------------------------------------------------- */

/* The large eps keeps the norms of these few channels from being steep where all of them are near zero. */
static dr_model_config tiny(const char *name) {
    dr_model_config config = dr_model_config_default(dr_rule_find(name));
    config.vocabulary = 13;
    config.hidden = 8;
    config.layers = 2;
    config.heads = 2;
    config.key_size = 4;
    config.value_size = 3;
    config.intermediate = 10;
    config.initializer_range = 0.4;
    config.norm_eps = 0.3;
    if (config.conv_size > 0) config.conv_size = 3;
    return config;
}

/* Sizes nearer to use, so that the vector kernels and the products' row blocks are at work. */
static dr_model_config medium(const char *name) {
    dr_model_config config = dr_model_config_default(dr_rule_find(name));
    config.vocabulary = 50;
    config.hidden = 48;
    config.layers = 2;
    config.heads = 3;
    config.value_heads = 6;
    config.key_size = 16;
    config.value_size = 20;
    config.intermediate = 80;
    config.initializer_range = 0.15;
    return config;
}

static dr_model *make(dr_backend *backend, const dr_model_config *config) {
    dr_model *model = NULL;
    ASSERT_OK(dr_model_create(backend, config, 5, &model));
    return model;
}

/* On the reference, with the very numbers that the CPU's float32 model has. */
static dr_model *make_twin(dr_model *of) {
    dr_model *twin = make(reference, dr_model_get_config(of));
    ASSERT_OK(dr_backend_download(cpu, dr_model_parameter_block(twin), DR_F64, dr_model_parameter_block(of),
                                  dr_model_block_count(of)));
    return twin;
}

enum { MOST_ROWS = 1200 };

typedef struct {
    int32_t ids[MOST_ROWS], labels[MOST_ROWS];
    dr_batch batch;
} tokens;

static tokens draw_tokens(dr_layout layout, int64_t vocabulary, uint64_t stream) {
    dr_random random = dr_random_start(3, stream);
    tokens drawn = {.batch = {.layout = layout, .targets = layout.rows}};
    for (int64_t i = 0; i < layout.rows; i++) {
        drawn.ids[i] = (int32_t)dr_random_below(&random, (uint64_t)vocabulary);
        drawn.labels[i] = (int32_t)dr_random_below(&random, (uint64_t)vocabulary);
    }
    return drawn;
}

/* The batch of rows begin .. end as sequences of their own; layout's rows are end - begin. */
static dr_batch part(const tokens *of, dr_layout layout, int64_t begin) {
    return (dr_batch){.layout = layout, .ids = of->ids + begin, .labels = of->labels + begin, .targets = layout.rows};
}

static double *logits_of(dr_model *model, const dr_batch *batch, dr_model_state *state) {
    double *logits = calloc((size_t)(batch->targets * dr_model_get_config(model)->vocabulary) + 1, sizeof(double));
    assert_non_null(logits);
    ASSERT_OK(learner_logits(model, batch, state, DR_F64, logits));
    return logits;
}

static double distance(const double *one, const double *other, int64_t count) {
    double apart = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        apart += (one[i] - other[i]) * (one[i] - other[i]);
        size += other[i] * other[i];
    }
    return sqrt(apart / fmax(size, 1e-300));
}

static double length_of(const double *x, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

static void assert_near(const char *what, const char *rule, const double *one, const double *other, int64_t count,
                        double tolerance) {
    double error = distance(one, other, count);
    if (!(error <= tolerance)) fail_msg("%s of %s: relative error %.3g of at most %.3g", what, rule, error, tolerance);
}

/* ---- gradients against differences ---------------------------------------------------------------------------------- */

typedef struct {
    dr_model *model;
    const dr_batch *batch;
} loss_context;

static double loss_of(void *context) {
    const loss_context *of = context;
    double loss;
    ASSERT_OK(learner_loss(of->model, of->batch, NULL, &loss, NULL, NULL, NULL));
    return 0.7 * loss;
}

static void check_gradient(const dr_model_config *config, const dr_batch *batch) {
    loss_context context = {make(reference, config), batch};
    const dr_parameter *list;
    int64_t listed = dr_model_parameters(context.model, &list);
    double loss, *values = dr_model_parameter_block(context.model), *gradients = learner_gradients(context.model);
    int64_t hits;
    dr_random random = dr_random_start(9, 0);
    /* norms and biases off their first values */
    for (int64_t i = 0; i < dr_model_block_count(context.model); i++) values[i] += 0.1 * dr_random_normal(&random);
    ASSERT_OK(learner_gradient(context.model, batch, 0.7, &loss, &hits));
    assert_true(0.7 * loss == loss_of(&context));
    for (int64_t i = 0; i < listed; i++) {
        char label[160];
        snprintf(label, sizeof label, "%s: %s", config->rule.name, list[i].name);
        assert_gradient(label, loss_of, &context, values + list[i].offset, list[i].count, gradients + list[i].offset, 1e-6);
    }
    learner_destroy(context.model);
}

static void test_gradients(void **state) {
    (void)state;
    static const int64_t begins[] = {0, 4, 4, 5, 9}, positions[] = {1, 3, 5, 8};
    static const char *const rules[] = {"gdn", "pkda", "eda", "retnet"};
    tokens drawn = draw_tokens((dr_layout){4, 9, begins}, 13, 0);
    dr_batch all = part(&drawn, drawn.batch.layout, 0), chosen = all;
    chosen.positions = positions;
    chosen.targets = 4;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        dr_model_config config = tiny(rules[i]);
        config.tied = i % 2 == 0;
        check_gradient(&config, i < 2 ? &chosen : &all);
    }
    dr_model_config config = tiny("mamba2");
    config.intermediate = 0;
    config.heads = 1;
    config.value_heads = 2;
    check_gradient(&config, &chosen);
}

/* Gradients are added to, in proportion to the factor; without a target they are zero. */
static void test_gradient_adds(void **state) {
    (void)state;
    dr_model_config config = tiny("gdn");
    dr_model *model = make(reference, &config);
    tokens drawn = draw_tokens((dr_layout){1, 6, NULL}, 13, 1);
    dr_batch batch = part(&drawn, drawn.batch.layout, 0), none = batch;
    double loss, *gradients = learner_gradients(model);
    int64_t count = dr_model_block_count(model), hits = -1;
    none.targets = 0;
    none.positions = (const int64_t[]){0};
    ASSERT_OK(learner_gradient(model, &none, 1, &loss, &hits));
    assert_true(loss == 0 && hits == 0);
    for (int64_t i = 0; i < count; i++) assert_true(gradients[i] == 0);
    ASSERT_OK(learner_gradient(model, &batch, 0.25, &loss, NULL));
    double *once = calloc((size_t)count, sizeof *once);
    for (int64_t i = 0; i < count; i++) once[i] = 4 * gradients[i];
    ASSERT_OK(learner_gradient(model, &batch, 0.75, &loss, NULL));
    assert_near("gradient", "gdn", gradients, once, count, 1e-12);
    free(once);
    learner_destroy(model);
}

/* ---- the CPU and the reference -------------------------------------------------------------------------------------- */

static void test_cpu_agrees(void **state) {
    (void)state;
    static const int64_t begins[] = {0, 40, 40, 75, 97};
    tokens drawn = draw_tokens((dr_layout){4, 97, begins}, 50, 2);
    dr_batch batch = part(&drawn, drawn.batch.layout, 0);
    for (int i = 0; i < dr_rule_count(); i++) {
        const char *name = dr_rule_at(i)->name;
        dr_model_config config = medium(name);
        dr_model *model = make(cpu, &config), *twin = make_twin(model);
        int64_t count = dr_model_block_count(model);
        double *fast = logits_of(model, &batch, NULL), *exact = logits_of(twin, &batch, NULL), loss, exact_loss;
        assert_near("logits", name, fast, exact, batch.targets * 50, 1e-4);
        ASSERT_OK(learner_gradient(model, &batch, 0.01, &loss, NULL));
        ASSERT_OK(learner_gradient(twin, &batch, 0.01, &exact_loss, NULL));
        assert_true(fabs(loss - exact_loss) <= 1e-5 * exact_loss);
        double *gradients = calloc((size_t)count, sizeof *gradients);
        ASSERT_OK(dr_backend_download(cpu, gradients, DR_F64, learner_gradients(model), count));
        const dr_parameter *list;
        int64_t listed = dr_model_parameters(model, &list);
        assert_near("gradients", name, gradients, learner_gradients(twin), count, 1e-4);
        const double whole = length_of(learner_gradients(twin), count);
        for (int64_t k = 0; k < listed; k++) {
            const double *twins = (const double *)learner_gradients(twin) + list[k].offset;
            const double size = length_of(twins, list[k].count);
            if (size > 1e-5 * whole)
                assert_near(list[k].name, name, gradients + list[k].offset, twins, list[k].count, 1e-3);
            else /* a norm behind it takes nearly all of its effect away, and what is left is rounding */
                assert_true(distance(gradients + list[k].offset, twins, list[k].count) * size <= 1e-6 * whole);
        }
        free(gradients);
        free(fast);
        free(exact);
        learner_destroy(model);
        learner_destroy(twin);
    }
}

/* ---- steps, splits, packing ----------------------------------------------------------------------------------------- */

enum { SEQUENCES = 2, LENGTH = 37 };

/* Two sequences token by token through the decode engine, against the whole at once. */
static void check_steps(dr_backend *backend, const char *name, double tolerance) {
    dr_model_config config = medium(name);
    dr_model *model = make(backend, &config);
    dr_model_state *carried = NULL;
    tokens drawn = draw_tokens((dr_layout){SEQUENCES, SEQUENCES * LENGTH, NULL}, 50, 3);
    dr_batch batch = part(&drawn, drawn.batch.layout, 0);
    double *whole = logits_of(model, &batch, NULL), *stepped = calloc(SEQUENCES * LENGTH * 50, sizeof *stepped);
    ASSERT_OK(dr_model_state_create(model, SEQUENCES, &carried));
    allocation_fail_at(0);
    for (int64_t t = 0; t < LENGTH; t++) {
        float logits[SEQUENCES * 50];
        int32_t ids[SEQUENCES];
        for (int64_t s = 0; s < SEQUENCES; s++) ids[s] = drawn.ids[s * LENGTH + t];
        ASSERT_OK(dr_model_step(model, ids, carried, logits));
        for (int64_t s = 0; s < SEQUENCES; s++)
            for (int64_t i = 0; i < 50; i++) stepped[(s * LENGTH + t) * 50 + i] = (double)logits[s * 50 + i];
    }
    assert_int_equal(allocation_calls, 0); /* a step allocates nothing */
    assert_near("steps", name, stepped, whole, SEQUENCES * LENGTH * 50, tolerance);
    free(whole);
    free(stepped);
    dr_model_state_destroy(carried);
    learner_destroy(model);
}

static void test_steps(void **state) {
    (void)state;
    for (int i = 0; i < dr_rule_count(); i++) {
        check_steps(reference, dr_rule_at(i)->name, 1e-7); /* a step's logits are float32 */
        check_steps(cpu, dr_rule_at(i)->name, 1e-4);
    }
}

/* Two sequences cut at two places, the second cut behind one token; the state is carried over, then reset. */
static void check_split(dr_backend *backend, const char *name, double tolerance) {
    static const int64_t cuts[] = {0, 20, 21, LENGTH};
    dr_model_config config = medium(name);
    dr_model *model = make(backend, &config);
    dr_model_state *carried = NULL;
    tokens drawn = draw_tokens((dr_layout){SEQUENCES, SEQUENCES * LENGTH, NULL}, 50, 4);
    dr_batch batch = part(&drawn, drawn.batch.layout, 0);
    double *whole = logits_of(model, &batch, NULL);
    ASSERT_OK(dr_model_state_create(model, SEQUENCES, &carried));
    for (int round = 0; round < 2; round++) {
        for (int c = 0; c < 3; c++) {
            int64_t length = cuts[c + 1] - cuts[c];
            int32_t ids[SEQUENCES * LENGTH];
            for (int64_t s = 0; s < SEQUENCES; s++)
                memcpy(ids + s * length, drawn.ids + s * LENGTH + cuts[c], (size_t)length * sizeof *ids);
            dr_batch piece = {.layout = {SEQUENCES, SEQUENCES * length, NULL}, .ids = ids, .targets = SEQUENCES * length};
            double *logits = logits_of(model, &piece, carried);
            for (int64_t s = 0; s < SEQUENCES; s++)
                assert_near("split", name, logits + s * length * 50, whole + (s * LENGTH + cuts[c]) * 50, length * 50,
                            tolerance);
            free(logits);
        }
        dr_model_state_reset(carried);
    }
    free(whole);
    dr_model_state_destroy(carried);
    learner_destroy(model);
}

static void test_split(void **state) {
    (void)state;
    for (int i = 0; i < dr_rule_count(); i++) {
        check_split(reference, dr_rule_at(i)->name, 1e-11);
        check_split(cpu, dr_rule_at(i)->name, 1e-4);
    }
}

static void check_packed(dr_backend *backend, const char *name) {
    static const int64_t begins[] = {0, 70, 70, 71, 90};
    dr_model_config config = medium(name);
    dr_model *model = make(backend, &config);
    tokens drawn = draw_tokens((dr_layout){4, 90, begins}, 50, 5);
    dr_batch batch = part(&drawn, drawn.batch.layout, 0);
    double *packed = logits_of(model, &batch, NULL);
    for (int s = 0; s < 4; s++) {
        dr_batch one = part(&drawn, (dr_layout){1, begins[s + 1] - begins[s], NULL}, begins[s]);
        double *alone = logits_of(model, &one, NULL);
        if (memcmp(alone, packed + begins[s] * 50, (size_t)(one.targets * 50) * sizeof *alone) != 0)
            fail_msg("%s on %s: sequence %d of a pack has other bits alone", name, dr_backend_name(backend), s);
        free(alone);
    }
    free(packed);
    learner_destroy(model);
}

static void test_packed(void **state) {
    (void)state;
    for (int i = 0; i < dr_rule_count(); i++) {
        check_packed(reference, dr_rule_at(i)->name);
        check_packed(cpu, dr_rule_at(i)->name);
    }
}

/* ---- threads -------------------------------------------------------------------------------------------------------- */

static void test_threads(void **state) {
    (void)state;
    static const int64_t begins[] = {0, 150, 151, 333};
    tokens drawn = draw_tokens((dr_layout){3, 333, begins}, 50, 6);
    dr_batch batch = part(&drawn, drawn.batch.layout, 0);
    for (int i = 0; i < dr_rule_count(); i++) {
        dr_model_config config = medium(dr_rule_at(i)->name);
        float *first = NULL;
        double first_loss = 0, loss;
        for (int threads = 1; threads <= 4; threads *= 2) {
            dr_backend_options options = {.threads = threads};
            dr_backend *backend = NULL;
            ASSERT_OK(dr_backend_open("cpu", &options, &backend));
            dr_model *model = make(backend, &config);
            size_t bytes = (size_t)dr_model_block_count(model) * sizeof(float);
            ASSERT_OK(learner_gradient(model, &batch, 0.01, &loss, NULL));
            const float *gradients = learner_gradients(model);
            if (!first) {
                first = malloc(bytes);
                assert_non_null(first);
                memcpy(first, gradients, bytes);
                first_loss = loss;
            }
            if (loss != first_loss || memcmp(first, gradients, bytes) != 0)
                fail_msg("%s: %d threads give other bits than one", config.rule.name, threads);
            learner_destroy(model);
            dr_backend_close(backend);
        }
        free(first);
    }
}

/* ---- targets -------------------------------------------------------------------------------------------------------- */

/* Losses at positions are those of the same rows among all; sums and hits are those of the targets. More targets than the head
 * takes at a time. */
static void test_positions(void **state) {
    (void)state;
    enum { ROWS = DR_HEAD_ROWS + 150 };
    static int64_t positions[ROWS];
    static double every[ROWS], chosen[ROWS];
    static uint8_t every_hit[ROWS], chosen_hit[ROWS];
    dr_model_config config = tiny("gdn");
    dr_model *model = make(cpu, &config);
    tokens *drawn = malloc(sizeof *drawn);
    *drawn = draw_tokens((dr_layout){2, ROWS, NULL}, 13, 7);
    dr_batch batch = part(drawn, drawn->batch.layout, 0);
    double loss, sum = 0;
    int64_t hits, right = 0, targets = 0;
    ASSERT_OK(learner_loss(model, &batch, NULL, &loss, &hits, every, every_hit));
    for (int64_t i = 0; i < ROWS; i++) {
        sum += every[i];
        right += every_hit[i];
    }
    assert_true(sum == loss && right == hits && hits > 0 && hits < ROWS);
    int32_t *labels = malloc(ROWS * sizeof *labels);
    for (int64_t i = 0; i < ROWS; i++) {
        if (i % 3 == 1) continue;
        labels[targets] = drawn->labels[i];
        positions[targets++] = i;
    }
    dr_batch some = batch;
    some.positions = positions;
    some.targets = targets;
    some.labels = labels;
    sum = 0;
    ASSERT_OK(learner_loss(model, &some, NULL, &loss, &hits, chosen, chosen_hit));
    for (int64_t i = 0; i < targets; i++) {
        assert_true(chosen[i] == every[positions[i]] && chosen_hit[i] == every_hit[positions[i]]);
        sum += chosen[i];
    }
    assert_true(sum == loss);
    double again;
    ASSERT_OK(learner_gradient(model, &some, 1, &again, &right));
    assert_true(again == loss && right == hits);
    free(labels);
    free(drawn);
    learner_destroy(model);
}

/* ---- refusals ------------------------------------------------------------------------------------------------------- */

static void refuse_batch(dr_model *model, dr_batch batch, dr_model_state *carried, const char *sentence) {
    double loss = 42, *gradients = learner_gradients(model);
    assert_int_equal(learner_loss(model, &batch, carried, &loss, NULL, NULL, NULL), DR_ERROR_ARGUMENT);
    if (!strstr(dr_last_error(), sentence)) fail_msg("no \"%s\" in \"%s\"", sentence, dr_last_error());
    if (!carried) assert_int_equal(learner_gradient(model, &batch, 1, &loss, NULL), DR_ERROR_ARGUMENT);
    assert_true(loss == 42);
    for (int64_t i = 0; i < dr_model_block_count(model); i++) assert_true(gradients[i] == 0);
}

static void test_refused_batches(void **state) {
    (void)state;
    dr_model_config config = tiny("gdn");
    dr_model *model = make(reference, &config), *other = make(reference, &config);
    dr_model_state *carried = NULL, *foreign = NULL;
    ASSERT_OK(dr_model_state_create(model, 3, &carried));
    ASSERT_OK(dr_model_state_create(other, 1, &foreign));
    tokens drawn = draw_tokens((dr_layout){1, 6, NULL}, 13, 8);
    const dr_batch good = part(&drawn, drawn.batch.layout, 0);
    dr_batch batch = good;
    batch.ids = (const int32_t[]){0, 1, 13, 3, 4, 5};
    refuse_batch(model, batch, NULL, "id 2 is 13; it must be from 0 to 12");
    batch = good;
    batch.labels = (const int32_t[]){0, -1, 2, 3, 4, 5};
    refuse_batch(model, batch, NULL, "label 1 is -1");
    batch = good;
    batch.ids = NULL;
    refuse_batch(model, batch, NULL, "id is NULL");
    batch = good;
    batch.targets = 5;
    refuse_batch(model, batch, NULL, "without positions every row is a target");
    batch = good;
    batch.targets = -1;
    refuse_batch(model, batch, NULL, "targets is -1");
    batch = good;
    batch.targets = 3;
    batch.positions = (const int64_t[]){0, 2, 2};
    refuse_batch(model, batch, NULL, "positions must rise");
    batch.positions = (const int64_t[]){0, 2, 6};
    refuse_batch(model, batch, NULL, "stay below rows, 6");
    batch = good;
    batch.layout.sequences = 4;
    refuse_batch(model, batch, NULL, "cannot be 4 sequences");
    refuse_batch(model, good, carried, "a batch of 1 sequences with a state of 3");
    refuse_batch(model, good, foreign, "another model");
    float logits[3 * 13];
    assert_int_equal(dr_model_step(model, (const int32_t[]){0, 99, 2}, carried, logits), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "id 1 is 99"));
    assert_int_equal(learner_logits(model, &good, NULL, DR_BF16, logits), DR_ERROR_ARGUMENT);
    dr_model_state *none = NULL;
    assert_int_equal(dr_model_state_create(model, 0, &none), DR_ERROR_ARGUMENT);
    assert_null(none);
    dr_model_state_destroy(carried);
    dr_model_state_destroy(foreign);
    learner_destroy(model);
    learner_destroy(other);
}

/* ---- creation ------------------------------------------------------------------------------------------------------- */

static void test_first_values(void **state) {
    (void)state;
    dr_model_config config = medium("pkda");
    dr_model *model = make(reference, &config), *same = make(reference, &config), *fast = make(cpu, &config), *other = NULL;
    ASSERT_OK(dr_model_create(reference, &config, 6, &other));
    int64_t block = dr_model_block_count(model), count = 0;
    const dr_parameter *list;
    int64_t listed = dr_model_parameters(model, &list);
    const double *values = dr_model_parameter_block(model);
    assert_memory_equal(values, dr_model_parameter_block(same), (size_t)block * sizeof(double));
    assert_true(memcmp(values, dr_model_parameter_block(other), (size_t)block * sizeof(double)) != 0);
    const float *rounded = dr_model_parameter_block(fast);
    for (int64_t i = 0; i < block; i++) assert_true(rounded[i] == (float)values[i]);
    for (int64_t i = 0; i < listed; i++) {
        assert_int_equal(list[i].offset % 16, 0);
        assert_true(list[i].offset + list[i].count <= block);
        count += list[i].count;
        for (int64_t k = 0; k < i; k++) assert_string_not_equal(list[i].name, list[k].name);
        const double *of = values + list[i].offset;
        double sum = 0;
        for (int64_t k = 0; k < list[i].count; k++) {
            sum += of[k] * of[k];
            if (strstr(list[i].name, "A_log")) assert_true(of[k] >= 0 && of[k] <= log(16));
            if (strstr(list[i].name, "dt_bias")) assert_true(log1p(exp(of[k])) > 0.999e-3 && log1p(exp(of[k])) < 0.1001);
            if (strstr(list[i].name, "norm")) assert_true(of[k] == 1);
            if (strstr(list[i].name, "log_atk_scale")) assert_true(of[k] == -0.2);
        }
        assert_int_equal(list[i].decays, list[i].rank > 1);
        if (list[i].count > 1000) assert_true(fabs(sqrt(sum / (double)list[i].count) / 0.15 - 1) < 0.1);
    }
    assert_int_equal(count, dr_model_parameter_count(model));
    learner_destroy(model);
    learner_destroy(same);
    learner_destroy(fast);
    learner_destroy(other);
}

/* Uniform first taps fill their range and nothing else changes its law. */
static void test_first_taps(void **state) {
    (void)state;
    dr_model_config config = medium("gdn");
    config.conv_initializer_range = 0.5;
    dr_model *model = make(reference, &config);
    const dr_parameter *list;
    int64_t listed = dr_model_parameters(model, &list), convolutions = 0;
    const double *values = dr_model_parameter_block(model);
    for (int64_t i = 0; i < listed; i++) {
        const double *of = values + list[i].offset;
        double sum = 0, most = 0;
        for (int64_t k = 0; k < list[i].count; k++) sum += of[k] * of[k], most = fmax(most, fabs(of[k]));
        const double deviation = sqrt(sum / (double)list[i].count);
        if (strstr(list[i].name, "_conv1d")) {
            convolutions++;
            assert_true(most <= 0.5 && most > 0.48 && fabs(deviation / (0.5 / sqrt(3)) - 1) < 0.15);
        } else if (list[i].count > 1000)
            assert_true(fabs(deviation / 0.15 - 1) < 0.1);
    }
    assert_int_equal(convolutions, 3 * config.layers);
    learner_destroy(model);
}

/* The sentence names the field. */
static void refuse_config(dr_model_config config, const char *sentence) {
    dr_model *model = NULL;
    assert_int_equal(dr_model_create(reference, &config, 1, &model), DR_ERROR_ARGUMENT);
    assert_null(model);
    if (!strstr(dr_last_error(), sentence)) fail_msg("no \"%s\" in \"%s\"", sentence, dr_last_error());
}

static void test_refused_configs(void **state) {
    (void)state;
    const dr_model_config good = tiny("gdn");
#define REFUSE(name, field, value, sentence)                                                                                   \
    do {                                                                                                                       \
        dr_model_config config = tiny(name);                                                                                   \
        config.field = value;                                                                                                  \
        refuse_config(config, sentence);                                                                                       \
    } while (0)
    REFUSE("gdn", vocabulary, 0, "vocabulary is 0");
    REFUSE("gdn", hidden, -3, "hidden is -3");
    REFUSE("gdn", layers, 0, "layers is 0");
    REFUSE("gdn", layers, INT64_C(1) << 40, "layers is 1099511627776");
    REFUSE("gdn", heads, 0, "heads is 0");
    REFUSE("gdn", value_heads, 3, "value_heads is 3; it must be a multiple of heads, 2");
    REFUSE("gdn", key_size, -1, "key_size is -1");
    REFUSE("gdn", key_size, 1 << 24, "value_heads times key_size");
    REFUSE("gdn", value_size, 1 << 24, "value_heads times value_size");
    REFUSE("gdn", intermediate, -2, "intermediate is -2");
    REFUSE("gdn", conv_size, -1, "conv_size is -1");
    REFUSE("gdn", output_gate, 2, "output_gate is 2");
    REFUSE("gdn", gates.gate, (dr_gate_form)9, "gate is 9");
    REFUSE("delta_net", gates.gate, DR_GATE_FORM_KDA_BOUNDED, "no decay");
    REFUSE("gla", gates.gate, DR_GATE_FORM_EDA_BOUNDED, "gla");
    REFUSE("eda", gates.lower_bound, 0, "lower_bound is 0");
    REFUSE("gdn", norm_eps, 0, "norm_eps is 0");
    REFUSE("gdn", initializer_range, NAN, "initializer_range is nan");
    REFUSE("gdn", conv_initializer_range, -1, "conv_initializer_range is -1");
    REFUSE("gla", gates.negative_eigenvalues, true, "neither");
    REFUSE("pgdn", gates.negative_eigenvalues, true, "force");
    REFUSE("retnet", key_size, 5, "key_size is 5");
    REFUSE("qdelta", gates.lambda_value, 1.5, "lambda is 1.5");
    REFUSE("qdelta", gates.lambda, (dr_lambda_kind)2, "lambda is 2");
    REFUSE("gdn", a_log_per_channel, true, "no A_log of a channel decay");
    REFUSE("gla", a_log_per_channel, true, "no A_log of a channel decay");
    REFUSE("gdn", gates.lambda, DR_LAMBDA_FIXED, "reads no lambda");
    REFUSE("kda", gates.lambda_bias_learned, true, "reads no lambda");
#undef REFUSE
    dr_model_config config = good;
    config.key_size = 0;
    config.hidden = 9;
    refuse_config(config, "give key_size");
    config = good;
    config.rule.rows = 3;
    refuse_config(config, "rows");
}

static dr_status live(void *context) {
    const dr_model_config *config = context;
    dr_model *model = NULL;
    dr_model_state *carried = NULL;
    dr_status status = dr_model_create(cpu, config, 1, &model);
    double loss;
    float logits[2 * 13];
    dr_batch batch = {.layout = {2, 6, NULL},
                      .ids = (const int32_t[]){1, 2, 3, 4, 5, 6},
                      .labels = (const int32_t[]){2, 3, 4, 5, 6, 7},
                      .targets = 6};
    if (status == DR_OK) status = dr_model_state_create(model, 2, &carried);
    if (status == DR_OK) status = learner_gradient(model, &batch, 1, &loss, NULL);
    if (status == DR_OK) status = learner_loss(model, &batch, carried, &loss, NULL, NULL, NULL);
    if (status == DR_OK) status = dr_model_step(model, batch.ids, carried, logits);
    dr_model_state_destroy(carried);
    learner_destroy(model);
    return status;
}

static void test_failed_allocations(void **state) {
    (void)state;
    dr_model_config config = tiny("retnet");
    assert_true(assert_survives_failed_allocations(live, &config) > 8);
    config = tiny("pgdn");
    assert_true(assert_survives_failed_allocations(live, &config) > 8);
}

/* Several threads draw a parameter in parts: the parts are those of the whole. */
static void test_first_values_in_parts(void **state) {
    (void)state;
    enum { COUNT = 101, CUT = 37 };
    for (int kind = DR_INITIAL_NORMAL; kind <= DR_INITIAL_STEP; kind++) {
        const dr_initial initial = {(dr_initial_kind)kind, 0.5};
        double whole[COUNT], parts[COUNT];
        float floats[COUNT];
        dr_initial_draw(&initial, 0.25, 3, "weight", COUNT, whole);
        dr_initial_draw_part(&initial, 0.25, 3, "weight", 0, CUT, parts);
        dr_initial_draw_part(&initial, 0.25, 3, "weight", CUT, COUNT - CUT, parts + CUT);
        assert_memory_equal(whole, parts, sizeof whole);
        dr_initial_draw_floats(&initial, 0.25, 3, "weight", 0, CUT, floats);
        dr_initial_draw_floats(&initial, 0.25, 3, "weight", CUT, COUNT - CUT, floats + CUT);
        for (int i = 0; i < COUNT; i++) assert_true(floats[i] == (float)whole[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),       cmocka_unit_test(test_gradient_adds),
        cmocka_unit_test(test_first_values),    cmocka_unit_test(test_first_values_in_parts),
        cmocka_unit_test(test_first_taps),      cmocka_unit_test(test_refused_configs),
        cmocka_unit_test(test_refused_batches), cmocka_unit_test(test_cpu_agrees),
        cmocka_unit_test(test_steps),           cmocka_unit_test(test_split),
        cmocka_unit_test(test_packed),          cmocka_unit_test(test_threads),
        cmocka_unit_test(test_positions),       cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
