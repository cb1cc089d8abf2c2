/* The options of `score` that are of tasks but lm, for test_options.c, which includes this where its macros are defined. */
#ifndef DR_TESTS_SCORE_TASK_OPTIONS_H
#define DR_TESTS_SCORE_TASK_OPTIONS_H

static void score_seq_len(void) {
    RECALL("--seq-len", "128");
    assert_asked("seq_len=128");
    assert_asked("pairs=4");
}

static void score_pairs(void) {
    RECALL("--pairs", "2");
    assert_asked("pairs=2");
    assert_asked("seq_len=64");
}

static void score_examples(void) {
    RECALL("--examples", "77");
    assert_asked("held_out=77");
}

static void score_seed(void) {
    RECALL("--seed", "9007199254740991");
    assert_asked("held_out_seed=9007199254740991");
}

static void score_batch(void) {
    RECALL("--batch", "5");
    assert_asked("batch=5");
}

static void score_power_a(void) {
    RECALL("--power-a", "0.625");
    assert_asked("power_a=0.625");
}

static void score_random_fillers(void) {
    RECALL("--random-fillers", "false");
    assert_asked("random_fillers=false");
}

static void score_lengths(void) {
    RECALL("--lengths", "64/4 96-128/8");
    assert_asked("held_out_lengths=64/4 96-128/8");
}

static void score_updates(void) {
    RECALL("--updates", "3");
    assert_asked("updates=3");
}

static void score_group(void) {
    GROUP("--group", "A5");
    assert_asked("group=A5");
}

static void score_moves(void) {
    GROUP("--moves", "2");
    assert_asked("moves=2");
}

static void score_element_tokens(void) {
    GROUP("--element-tokens", "3", "--repeat-elements", "true");
    assert_asked("element_tokens=3");
    assert_asked("repeat_elements=true");
}

static void score_dtype(void) {
    SCORE("--dtype", "bf16", "--device", "2");
    assert_int_equal(seen.dtype, DR_BF16);
    assert_int_equal(seen.device, 2);
}

#endif
