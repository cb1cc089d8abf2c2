/* A step whose batch is computed in parts: the same losses, gradients and parameters as in one piece, but for rounding; the
 * same bits when it is resumed; and the sizes that settings say. */
#include "short_backends.h"

static void assert_near(double one, double other, double tolerance) {
    if (!(fabs(one - other) <= tolerance * fmax(fabs(one), fabs(other)))) fail_msg("%.17g and %.17g differ", one, other);
}

/* Batches of text, and of examples, each of which has its own length and number of targets. */
static void test_parts_are_the_whole(void **state) {
    (void)state;
    static const char *const tasks[][3] = {{"lm", "auto", "auto"}, {"mqar", "5", "auto"}, {"mqar", "5", "12/1 16/2"}};
    for (int t = 0; t < 3; t++) {
        short_run whole = {0}, parts = {0}, single = {0};
        must(short_train(reference, "whole", &whole,
                         SETTINGS("task", tasks[t][0], "held_out", tasks[t][1], "lengths", tasks[t][2])));
        must(short_train(reference, "parts", &parts,
                         SETTINGS("task", tasks[t][0], "held_out", tasks[t][1], "lengths", tasks[t][2], "accumulate", "2")));
        must(short_train(reference, "single", &single,
                         SETTINGS("task", tasks[t][0], "held_out", tasks[t][1], "lengths", tasks[t][2], "accumulate", "4")));
        for (int64_t step = 1; step <= 6; step++) {
            assert_near(parts.told[step].loss, whole.told[step].loss, 1e-11);
            assert_near(single.told[step].loss, whole.told[step].loss, 1e-11);
            assert_near(parts.told[step].gradient_norm, whole.told[step].gradient_norm, 1e-9);
            assert_near(single.told[step].gradient_norm, whole.told[step].gradient_norm, 1e-9);
            if (t == 0) assert_near(parts.told[step].bits_per_byte, whole.told[step].bits_per_byte, 1e-11);
        }
        assert_near(single.told[6].held_out, whole.told[6].held_out, 1e-9);
    }
}

/* Each part balances its own experts; what is told is the mean over parts. Without learning, two steps of one sequence are the
 * parts of one step of two. */
static void test_balancing_loss(void **state) {
    (void)state;
    const char *layers = "[{\"experts\": {\"count\": 4, \"chosen\": 2, \"width\": 8, \"balance\": 0.5}}]";
    short_run ones = {0}, two = {0}, none = {0};
    must(short_train(reference, "ones", &ones,
                     SETTINGS("layer_list", layers, "learning_rate", "0", "batch", "1", "steps", "2")));
    must(short_train(reference, "two", &two,
                     SETTINGS("layer_list", layers, "learning_rate", "0", "batch", "2", "steps", "1", "accumulate", "2")));
    assert_true(ones.told[1].balancing_loss > 0 && ones.told[1].balancing_loss != ones.told[2].balancing_loss);
    assert_near(two.told[1].balancing_loss, (ones.told[1].balancing_loss + ones.told[2].balancing_loss) / 2, 1e-12);
    must(short_train(reference, "none", &none, SETTINGS("steps", "1")));
    assert_true(isnan(none.told[1].balancing_loss));
    short_run single = {0};
    must(short_train(cpu, "single", &single, SETTINGS("layer_list", layers, "learning_rate", "0", "batch", "1", "steps", "2")));
    assert_near(single.told[2].balancing_loss, ones.told[2].balancing_loss, 1e-4);
    char path[PATH_MAX + 16], *text, *line;
    size_t bytes;
    snprintf(path, sizeof path, "%s/metrics.csv", scratch_path("ones"));
    text = scratch_read_at(path, &bytes);
    assert_non_null(text);
    line = strchr(text, '\n');
    assert_non_null(strstr(text, ",balancing_loss\n"));
    assert_near(strtod(memrchr(line + 1, ',', strcspn(line + 1, "\n")) + 1, NULL), ones.told[1].balancing_loss, 1e-8);
    free(text);
}

/* On the CPU, whose sums are float32, with a stop at step 3. */
static void test_resumed_parts_are_the_same(void **state) {
    (void)state;
    short_run whole = {0}, stopped = {.stop_at = 3};
    const char *const *settings = SETTINGS("accumulate", "2", "evaluate_every", "2");
    must(short_train(cpu, "whole", &whole, settings));
    assert_int_equal(short_train(cpu, "stopped", &stopped, settings), DR_ERROR_INTERRUPTED);
    must(short_resume(cpu, "stopped", &stopped));
    for (int64_t step = 1; step <= 6; step++) assert_true(stopped.told[step].loss == whole.told[step].loss);
    short_assert_same_file("whole", "stopped", "model.safetensors");
}

static void test_tokens_per_step(void **state) {
    (void)state;
    short_run by_batch = {0}, by_tokens = {0};
    must(short_train(cpu, "whole", &by_batch, SETTINGS("batch", "6", "steps", "2")));
    must(short_train(cpu, "tokens", &by_tokens, SETTINGS("batch", "8", "tokens_per_step", "96", "steps", "2")));
    for (int64_t step = 1; step <= 2; step++) assert_true(by_batch.told[step].loss == by_tokens.told[step].loss);
    short_refused(cpu, "tokens_per_step is 100: it must be a multiple", SETTINGS("batch", "8", "tokens_per_step", "100"));
    short_refused(cpu, "leave out one of the two", SETTINGS("batch", "3", "tokens_per_step", "96"));
    short_refused(cpu, "accumulate is 4: it must divide the 6 sequences", SETTINGS("batch", "6", "accumulate", "4"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_are_the_whole),
        cmocka_unit_test(test_balancing_loss),
        cmocka_unit_test(test_resumed_parts_are_the_same),
        cmocka_unit_test(test_tokens_per_step),
    };
    return cmocka_run_group_tests(tests, short_begin, short_end);
}
