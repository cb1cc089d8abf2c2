/* Settings of tasks of synthetic examples, for test_settings.c, which includes this after run_spy.h. */
#ifndef DR_TESTS_TASK_SETTINGS_H
#define DR_TESTS_TASK_SETTINGS_H

static void check_random_fillers(void) {
    SPY_RUN("task", "mqar", "random_fillers", "false", "seq_len", "20", "vocabulary", "32");
    assert_recall(1, &(dr_mqar_shape){.vocabulary = 32, .length = 20, .pairs = 2, .power = 0.01}, 2);
}

/* Keys of the block stand before the first query again. */
static void check_updates(void) {
    SPY_RUN("task", "mqar", "updates", "2", "seq_len", "20", "vocabulary", "32");
    for (int64_t i = 0; i < 2; i++) {
        const int32_t *ids = spy.trained[0].ids + 20 * i;
        assert_true((ids[4] == ids[0] && ids[6] == ids[2]) || (ids[4] == ids[2] && ids[6] == ids[0]));
    }
}

/* Elements of A5 are ids below 60, and those that move 3 points at most are 21 of them; the second token of each repeats it. */
static void check_group(void) {
    bool seen[64] = {false};
    int different = 0;
    SPY_RUN("task", "group", "group", "A5", "moves", "3", "element_tokens", "2", "repeat_elements", "true", "seq_len", "256",
            "lengths", "60", "held_out_lengths", "4", "batch", "8", "held_out", "3");
    spy_assert_shape("embeddings.weight", 61, 8);
    assert_true(spy.trained[0].rows == 8 * 121 && spy.trained[0].targets == 8 * 60);
    for (int64_t i = 0; i < spy.trained[0].rows; i++) {
        const int64_t t = i % 121;
        if (t % 2 == 1) assert_int_equal(spy.trained[0].ids[i], spy.trained[0].ids[i + 1]);
        if (t > 0) different += !seen[spy.trained[0].ids[i]], seen[spy.trained[0].ids[i]] = true;
    }
    assert_int_equal(different, 21);
}

/* Training takes its lengths from one list, evaluation from the other. */
static void check_lengths(void) {
    SPY_RUN("task", "parity", "seq_len", "256", "lengths", "5", "held_out_lengths", "7 9", "held_out", "3");
    assert_true(spy.trained[0].rows == 2 * 4);
    assert_int_equal(spy.evaluations, 6); /* no call has more tokens than a step */
    int64_t rows = 0;
    for (int i = 0; i < spy.evaluations; i++) rows += spy.evaluated[i].rows;
    assert_int_equal(rows, 3 * 6 + 3 * 8);
}

#endif
