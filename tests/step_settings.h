/* Whether the settings of a step arrive where they are used: how large it is, in which parts it is computed, how its learning
 * rate goes and what updates which parameters. A part of test_settings.c. */
#ifndef DR_TESTS_STEP_SETTINGS_H
#define DR_TESTS_STEP_SETTINGS_H

#include "run_spy.h"

/* Both parts of a step are scaled by the targets of the whole step. */
static void check_accumulate(void) {
    SPY_RUN("task", "mqar", "batch", "4", "accumulate", "2", "steps", "1");
    assert_int_equal(spy.trainings, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(spy.trained[i].sequences, 2);
        assert_true(spy.trained[i].factor == 1.0 / (double)(spy.trained[0].targets + spy.trained[1].targets));
    }
}

/* Each layer but the last runs forward twice. */
static void check_keep_level(void) {
    SPY_RUN("steps", "1", "layers", "3", "evaluate_tokens", "1");
    const int once = spy.convs;
    SPY_RUN("steps", "1", "layers", "3", "evaluate_tokens", "1", "keep_level", "4");
    assert_true(spy.convs > once);
}

/* Of the steps 2, 4, 6 and 7. */
static void check_save_keep(void) {
    SPY_RUN("task", "mqar", "steps", "7", "save_every", "2", "save_keep", "2");
    assert_int_equal(access(scratch_path("run/checkpoints/step-000006/model.safetensors"), F_OK), 0);
    assert_int_equal(access(scratch_path("run/checkpoints/step-000007/model.safetensors"), F_OK), 0);
    assert_int_equal(access(scratch_path("run/checkpoints/step-000004"), F_OK), -1);
    SPY_RUN("task", "mqar", "steps", "2", "save_every", "1", "save_keep", "0");
    assert_int_equal(access(scratch_path("run/checkpoints"), F_OK), -1);
}

static void check_tokens_per_step(void) {
    SPY_RUN("batch", "8", "tokens_per_step", "24", "steps", "1");
    assert_int_equal(spy.trained[0].rows, 24);
}

/* The first step of a run that goes on from the model of another has its parameters. */
static void check_init(void) {
    char folder[PATH_MAX];
    SPY_RUN("steps", "1", "learning_rate", "0", "seed", "5");
    snprintf(folder, sizeof folder, "%s", scratch_path("earlier"));
    scratch_remove(folder);
    assert_int_equal(rename(spy_folder, folder), 0);
    const double first = spy.value[3];
    SPY_RUN("steps", "1", "hidden", "128", "layers", "3", "heads", "2", "intermediate", "256", "init", folder);
    assert_true(spy.value[3] == (double)(float)first || spy.value[3] == first);
    scratch_remove(folder);
}

/* The rates of ten steps, of which the first two are the warm-up. */
static void check_rates(const char *schedule, const char *decay, const char *shape, const double rates[10]) {
    SPY_RUN("task", "mqar", "steps", "10", "learning_rate", "0.5", "warmup_steps", "2", "min_learning_rate_ratio", "0.2",
            "schedule", schedule, "decay", decay, "decay_shape", shape);
    for (int i = 0; i < 10; i++)
        if (fabs(spy.progress[i].learning_rate - rates[i]) > 1e-12)
            fail_msg("schedule %s, step %d: %g, not %g", schedule, i + 1, spy.progress[i].learning_rate, rates[i]);
}

/* From 0.5 to 0.1: eight steps along a line; four behind four at the peak. 1 - sqrt(p) at p = 1/4 .. 1. */
static void check_schedule(void) {
    const double rise = 0.4 / 7, root = sqrt(0.5), last = sqrt(0.75);
    check_rates("linear", "0.2", "linear",
                (double[]){0.25, 0.5, 0.5, 0.5 - rise, 0.5 - 2 * rise, 0.5 - 3 * rise, 0.5 - 4 * rise, 0.5 - 5 * rise,
                           0.5 - 6 * rise, 0.1});
    check_rates("constant", "0.2", "linear", (double[]){0.25, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5});
    check_rates("wsd", "0.4", "linear", (double[]){0.25, 0.5, 0.5, 0.5, 0.5, 0.5, 0.4, 0.3, 0.2, 0.1});
    check_rates("wsd", "0.4", "cosine",
                (double[]){0.25, 0.5, 0.5, 0.5, 0.5, 0.5, 0.1 + 0.2 * (1 + root), 0.3, 0.1 + 0.2 * (1 - root), 0.1});
    check_rates("wsd", "0.4", "sqrt",
                (double[]){0.25, 0.5, 0.5, 0.5, 0.5, 0.5, 0.3, 0.1 + 0.4 * (1 - root), 0.1 + 0.4 * (1 - last), 0.1});
    check_rates("wsd", "0", "linear", (double[]){0.25, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5});
}

static void check_optimizer(void) {
    SPY_RUN("steps", "1");
    assert_true(spy.beta == 0);
    SPY_RUN("steps", "1", "optimizer", "muon", "muon_momentum", "0.75");
    assert_true(spy.beta == 0.75 && spy.updates > 0);
}

static void check_groups(void) {
    int halves = 0;
    SPY_RUN("steps", "1", "learning_rate", "0.5", "groups", "*norm* rate=0.5 decay=0.25");
    for (int i = 0; i < spy.updates; i++)
        if (spy.update[i].run.weight_decay == 0.25) assert_true(spy.update[i].run.learning_rate == 0.25), halves++;
    assert_true(halves > 0 && halves < spy.updates);
}

/* Their rows of the table. */
#define STEP_SETTINGS                                                                                                          \
    [DR_SET_INIT] = check_init, [DR_SET_TOKENS_PER_STEP] = check_tokens_per_step, [DR_SET_ACCUMULATE] = check_accumulate,      \
    [DR_SET_KEEP_LEVEL] = check_keep_level, [DR_SET_WARMUP_STEPS] = check_schedule, [DR_SET_SCHEDULE] = check_schedule,        \
    [DR_SET_DECAY] = check_schedule, [DR_SET_DECAY_SHAPE] = check_schedule, [DR_SET_OPTIMIZER] = check_optimizer,              \
    [DR_SET_MUON_MOMENTUM] = check_optimizer, [DR_SET_GROUPS] = check_groups, [DR_SET_SAVE_KEEP] = check_save_keep

#endif
