/* Models of layers that no configuration of deltarule's own has: RWKV-7's, whose first value goes from layer to layer,
 * Mamba-2's, and experts with a loss of their own; and halves of layers that attend to
 * earlier outputs. The gradient of the whole in double against differences; tokens one by one
 * against all at once; the CPU against the reference. */
#include "backends/cpu/cpu.h"
#include "backends/reference/reference.h"
#include "base/random.h"
#include "differences.h"
#include "learner.h"
#include "nn/config.h"
#include "nn/describe.h"
#include "nn/model.h"
#include "nn/session.h"

#include <string.h>

enum { BACKENDS = 3 };
static dr_backend *reference, *cpu[BACKENDS]; /* of 1, 2 and 4 threads */

#define ASSERT_OK(call)                                                                                                        \
    do {                                                                                                                       \
        if ((call) != DR_OK) fail_msg("%s: %s", #call, dr_last_error());                                                       \
    } while (0)

static int open_backends(void **state) {
    (void)state;
    for (int i = 0; i < BACKENDS; i++)
        if (dr_cpu_open(&(dr_backend_options){.threads = 1 << i}, &cpu[i]) != DR_OK) return 1;
    return dr_reference_open(NULL, &reference) != DR_OK;
}

static int close_backends(void **state) {
    (void)state;
    reference->ops->close(reference);
    for (int i = 0; i < BACKENDS; i++) cpu[i]->ops->close(cpu[i]);
    return 0;
}

enum { ROWS = 9, VOCABULARY = 11, HIDDEN = 8 };
static const int32_t ids[ROWS] = {3, 1, 4, 1, 5, 9, 2, 6, 5}, labels[ROWS] = {8, 9, 7, 9, 3, 2, 3, 8, 4};
static const int64_t begins[] = {0, 4, 4, 5, ROWS};

static dr_mixer_description rwkv7(bool first) {
    return (dr_mixer_description){.kind = DR_MIXER_RWKV7,
                                  .input_scale = 1,
                                  .output_scale = 1,
                                  .of.rwkv7 = {.heads = 2,
                                               .key_size = 4,
                                               .value_size = 3,
                                               .decay_rank = 2,
                                               .rate_rank = 2,
                                               .value_rank = first ? 0 : 2,
                                               .gate_rank = 2,
                                               .first = first,
                                               .norm_eps = 0.1,
                                               .unit_eps = 1e-2}};
}

static dr_mixer_description mamba2(void) {
    return (dr_mixer_description){.kind = DR_MIXER_MAMBA2,
                                  .input_scale = 1,
                                  .output_scale = 1,
                                  .of.mamba2 = {.heads = 4,
                                                .head_size = 3,
                                                .groups = 2,
                                                .state_size = 4,
                                                .conv_size = 3,
                                                .conv_bias = true,
                                                .most_step = (double)INFINITY,
                                                .norm = DR_MAMBA2_NORM_GATED,
                                                .norm_groups = 2,
                                                .norm_eps = 0.1,
                                                .factor = {1, 1, 1, 1, 1}}};
}

static dr_feed_description channel_mix(void) {
    return (dr_feed_description){.kind = DR_FEED_RWKV7, .of.forward = {.width = 6, .gate_factor = 1, .down_factor = 1}};
}

static dr_feed_description balanced_experts(void) {
    return (dr_feed_description){
        .kind = DR_FEED_EXPERTS,
        .of.experts = {.router = {.of = {.experts = 4, .chosen = 2}, .groups = 1, .kept = 1, .scale = 1, .normalised = true},
                       .corrected = true,
                       .gated = true,
                       .expert = {.width = 3, .function = DR_FUNCTION_SILU, .gate_factor = 1, .down_factor = 1},
                       .shared = 2,
                       .balance = 0.2}};
}

/* Five layers: rwkv7 with channel mix; mamba2 alone; rwkv7 with experts; rwkv7 and mamba2 side by side; experts alone: eight
 * halves. block: of those that attend to earlier outputs, 0: each reads the sum. */
static void describe(int64_t block, dr_model_config *resolved, dr_description *description) {
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = VOCABULARY, config.hidden = HIDDEN, config.heads = 2, config.key_size = 4, config.intermediate = 6;
    config.norm_eps = 0.3, config.layers = 5;
    ASSERT_OK(dr_config_resolve(&config, resolved));
    ASSERT_OK(dr_describe(resolved, description));
    dr_layer_description *layers = description->layers;
    for (int i = 0; i < 5; i++) layers[i].mixer[0] = rwkv7(i == 0);
    layers[0].feed = channel_mix();
    layers[1].mixer[0] = mamba2();
    layers[1].feed = (dr_feed_description){0};
    layers[2].feed = balanced_experts();
    layers[3].mixers = 2;
    layers[3].mixer[1] = mamba2();
    layers[3].mixer[1].output_scale = 0.5;
    layers[4].mixers = 0;
    layers[4].feed = balanced_experts();
    if (block == 0) return;
    description->residual = DR_RESIDUAL_ATTENTION;
    description->residual_block = block;
    description->depth_norm = (dr_norm_description){DR_NORM_RMS, 0.3, 0, false};
    for (int i = 0; i < 5; i++) layers[i].depth_norm = description->depth_norm;
}

static const int64_t blocks[] = {0, 1, 2, 3, 8, 100};
enum { BLOCKS = sizeof blocks / sizeof *blocks };

static dr_model *build(dr_backend *backend, int64_t block) {
    dr_description description;
    dr_model_config resolved;
    dr_model *model = NULL;
    describe(block, &resolved, &description);
    ASSERT_OK(dr_model_build_described(backend, &description, &resolved, &model));
    ASSERT_OK(dr_model_allocate(model));
    dr_random random = dr_random_start(4, 0);
    for (int64_t i = 0; i < model->listed; i++) {
        const dr_parameter *parameter = &model->parameters[i];
        double *values = calloc((size_t)parameter->count, sizeof *values);
        assert_non_null(values);
        dr_initial_draw(&model->initials[i], 0.25, 3, parameter->name, parameter->count, values);
        for (int64_t j = 0; j < parameter->count; j++) values[j] = (double)(float)(values[j] + 0.1 * dr_random_normal(&random));
        ASSERT_OK(backend->ops->upload(backend, model->values + dr_kind_bytes(backend, DR_NUMBER, parameter->offset), values,
                                       DR_F64, parameter->count));
        free(values);
    }
    ASSERT_OK(dr_model_changed(model));
    return model;
}

static dr_batch packed(void) {
    return (dr_batch){.layout = {4, ROWS, begins}, .ids = ids, .labels = labels, .targets = ROWS};
}

/* of the losses: the sum stays so small that its rounding is far below the differences */
static const double FACTOR = 0.5;

/* FACTOR (loss + targets extra) */
static double objective(void *context) {
    dr_model *model = context;
    const dr_batch batch = packed();
    dr_session *session;
    void *unused;
    double loss, extra, scored, none;
    ASSERT_OK(dr_session_create(model, &session));
    ASSERT_OK(dr_model_gradients_create(model, &unused));
    ASSERT_OK(dr_session_gradient(session, &batch, FACTOR, unused, &loss, NULL));
    ASSERT_OK(dr_session_extra_loss(session, &extra));
    assert_true(extra > 0.2 * 2 * 1.9 && extra < 4); /* two layers; even use of two of the experts gives 2 */
    ASSERT_OK(dr_session_loss(session, &batch, NULL, &scored, NULL, NULL, NULL));
    ASSERT_OK(dr_session_extra_loss(session, &none));
    assert_true(scored == loss && none == 0);
    dr_session_destroy(session);
    model->backend->ops->free(model->backend, unused);
    return FACTOR * (loss + ROWS * extra);
}

static void check_gradients(int64_t of_block) {
    dr_model *model = build(reference, of_block);
    const dr_batch batch = packed();
    double *values = dr_model_parameter_block(model), *gradients = learner_gradients(model);
    ASSERT_OK(learner_gradient(model, &batch, FACTOR, NULL, NULL));
    for (int64_t i = 0; i < model->listed; i++) {
        const dr_parameter *p = &model->parameters[i];
        assert_gradient(p->name, objective, model, values + p->offset, p->count, gradients + p->offset, 1e-6);
    }
    /* a session's second gradient is as its first: nothing of one call is left in the next */
    dr_session *session;
    void *block;
    ASSERT_OK(dr_session_create(model, &session));
    ASSERT_OK(dr_model_gradients_create(model, &block));
    for (int call = 0; call < 2; call++) ASSERT_OK(dr_session_gradient(session, &batch, FACTOR, block, NULL, NULL));
    const double *twice = block;
    for (int64_t i = 0; i < dr_model_block_count(model); i++)
        assert_true(fabs(twice[i] - 2 * gradients[i]) <= 1e-12 * fabs(gradients[i]));
    dr_session_destroy(session);
    model->backend->ops->free(model->backend, block);
    learner_destroy(model);
}

/* A step along a direction in which all parameters move. */
typedef struct {
    dr_model *model;
    const double *from, *direction; /* [block] */
    double step;
} line;

static double objective_along(void *context) {
    const line *l = context;
    double *values = dr_model_parameter_block(l->model);
    for (int64_t i = 0; i < dr_model_block_count(l->model); i++) values[i] = l->from[i] + l->step * l->direction[i];
    return objective(l->model);
}

static void check_direction(int64_t of_block) {
    dr_model *model = build(reference, of_block);
    const dr_batch batch = packed();
    const int64_t count = dr_model_block_count(model);
    double *from = calloc((size_t)count, sizeof *from), *direction = calloc((size_t)count, sizeof *direction);
    double *gradients = learner_gradients(model), slope = 0;
    dr_random random = dr_random_start(6, (uint64_t)of_block);
    assert_true(from && direction);
    ASSERT_OK(learner_gradient(model, &batch, FACTOR, NULL, NULL));
    memcpy(from, dr_model_parameter_block(model), (size_t)count * sizeof *from);
    for (int64_t i = 0; i < count; i++) {
        direction[i] = dr_random_normal(&random);
        slope += gradients[i] * direction[i];
    }
    line l = {model, from, direction, 0};
    assert_gradient("along a line", objective_along, &l, &l.step, 1, &slope, 1e-6);
    free(from);
    free(direction);
    learner_destroy(model);
}

static void test_gradients(void **state) {
    (void)state;
    check_gradients(0);
    check_gradients(3);
    for (int i = 0; i < BLOCKS; i++) check_direction(blocks[i]);
}

/* The CPU's gradients are the reference's to rounding, and the same bits with any number of threads. */
static void test_gradients_of_cpu(void **state) {
    (void)state;
    const dr_batch batch = packed();
    for (int b = 0; b < BLOCKS; b++) {
        dr_model *exact = build(reference, blocks[b]), *models[BACKENDS];
        ASSERT_OK(learner_gradient(exact, &batch, FACTOR, NULL, NULL));
        const double *wanted = learner_gradients(exact);
        const int64_t count = dr_model_block_count(exact);
        double error = 0, norm = 0;
        for (int i = 0; i < BACKENDS; i++) {
            models[i] = build(cpu[i], blocks[b]);
            ASSERT_OK(learner_gradient(models[i], &batch, FACTOR, NULL, NULL));
            assert_memory_equal(learner_gradients(models[i]), learner_gradients(models[0]), (size_t)count * sizeof(float));
        }
        const float *got = (const void *)learner_gradients(models[0]);
        for (int64_t i = 0; i < count; i++) {
            error += ((double)got[i] - wanted[i]) * ((double)got[i] - wanted[i]);
            norm += wanted[i] * wanted[i];
        }
        assert_true(norm > 0 && sqrt(error) <= 1e-5 * sqrt(norm));
        for (int i = 0; i < BACKENDS; i++) learner_destroy(models[i]);
        learner_destroy(exact);
    }
}

/* Logits of a whole text, of its tokens one by one, of two parts, and packed with another text: the last two bit for bit. */
static void check_steps(int64_t block) {
    dr_model *exact = build(reference, block), *model = build(cpu[1], block);
    const dr_batch one = {.layout = {1, ROWS, NULL}, .ids = ids, .targets = ROWS};
    double wanted[ROWS * VOCABULARY], got[ROWS * VOCABULARY], part[2 * ROWS * VOCABULARY];
    float step[VOCABULARY];
    dr_model_state *state_of;
    ASSERT_OK(learner_logits(exact, &one, NULL, DR_F64, wanted));
    ASSERT_OK(learner_logits(model, &one, NULL, DR_F64, got));
    for (int i = 0; i < ROWS * VOCABULARY; i++) assert_true(fabs(got[i] - wanted[i]) <= 2e-5);
    ASSERT_OK(dr_model_state_create(model, 1, &state_of));
    for (int t = 0; t < ROWS; t++) {
        ASSERT_OK(dr_model_step(model, &ids[t], state_of, step));
        for (int i = 0; i < VOCABULARY; i++) assert_true(fabs((double)step[i] - wanted[t * VOCABULARY + i]) <= 2e-5);
    }
    dr_model_state_reset(state_of);
    enum { CUT = 4 };
    const dr_batch head = {.layout = {1, CUT, NULL}, .ids = ids, .targets = CUT},
                   tail = {.layout = {1, ROWS - CUT, NULL}, .ids = ids + CUT, .targets = ROWS - CUT};
    ASSERT_OK(learner_logits(model, &head, state_of, DR_F64, part));
    ASSERT_OK(learner_logits(model, &tail, state_of, DR_F64, part + CUT * VOCABULARY));
    for (int i = 0; i < ROWS * VOCABULARY; i++) assert_true(fabs(part[i] - wanted[i]) <= 2e-5);
    int32_t both[2 * ROWS];
    for (int i = 0; i < 2 * ROWS; i++) both[i] = i < ROWS ? ids[ROWS - 1 - i] : ids[i - ROWS];
    const int64_t two[] = {0, ROWS, 2 * ROWS};
    const dr_batch with = {.layout = {2, 2 * ROWS, two}, .ids = both, .targets = 2 * ROWS};
    ASSERT_OK(learner_logits(model, &with, NULL, DR_F64, part));
    assert_memory_equal(part + ROWS * VOCABULARY, got, sizeof got);
    dr_model_state_destroy(state_of);
    dr_model_destroy(exact);
    dr_model_destroy(model);
}

static void test_steps(void **state) {
    (void)state;
    for (int i = 0; i < BLOCKS; i++) check_steps(blocks[i]);
}

/* A value that nobody passes on, one that two layers do, and one of another size. */
static void test_refused(void **state) {
    (void)state;
    static const char *const says[] = {"none before it", "only the first", "channels"};
    for (int i = 0; i < 3; i++) {
        dr_description description;
        dr_model_config resolved;
        dr_model *model = NULL;
        describe(0, &resolved, &description);
        if (i == 0) description.layers[0].mixer[0] = rwkv7(false);
        if (i == 1) description.layers[2].mixer[0] = rwkv7(true);
        if (i == 2) description.layers[2].mixer[0].of.rwkv7.value_size = 5;
        assert_int_equal(dr_model_build_described(reference, &description, &resolved, &model), DR_ERROR_ARGUMENT);
        assert_null(model);
        if (!strstr(dr_last_error(), says[i])) fail_msg("\"%s\" does not say \"%s\"", dr_last_error(), says[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_gradients_of_cpu),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
