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

static void check_tokens_per_step(void) {
    SPY_RUN("batch", "8", "tokens_per_step", "24", "steps", "1");
    assert_int_equal(spy.trained[0].rows, 24);
}

#endif
