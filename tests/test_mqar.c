/* The examples of multi-query associative recall. */
#include "data/mqar.h"
#include "data/streams.h"
#include "scratch.h"

#include <math.h>

enum { MOST_LENGTH = 256, MOST_PAIRS = 16 };

typedef struct {
    int32_t ids[MOST_LENGTH], labels[MOST_PAIRS];
    int64_t positions[MOST_PAIRS];
} example;

static example draw_example(dr_mqar *mqar, int64_t length, int64_t pairs, uint64_t seed, int64_t index) {
    example made;
    dr_random random = dr_stream(seed, DR_STREAM_TRAINING_EXAMPLES, index);
    dr_mqar_draw(mqar, &random, length, pairs, made.ids, made.positions, made.labels);
    return made;
}

static void assert_example_holds(const example *one, const dr_mqar_shape *shape, int64_t pairs) {
    int64_t context = 2 * pairs;
    uint8_t asked[MOST_PAIRS] = {0};
    for (int64_t i = 0; i < pairs; i++) {
        int32_t key = one->ids[2 * i], value = one->ids[2 * i + 1];
        assert_in_range(key, 1, shape->vocabulary / 2 - 1);
        assert_in_range(value, shape->vocabulary / 2, shape->vocabulary - 1);
        for (int64_t j = 0; j < i; j++) {
            assert_int_not_equal(key, one->ids[2 * j]);
            assert_int_not_equal(value, one->ids[2 * j + 1]);
        }
    }
    for (int64_t q = 0; q < pairs; q++) {
        int64_t position = one->positions[q], pair = 0;
        assert_true(position >= context && position < shape->length && (position - context) % 2 == 0);
        assert_true(q == 0 || position > one->positions[q - 1]);
        while (pair < pairs && one->ids[2 * pair] != one->ids[position]) pair++;
        assert_true(pair < pairs);
        assert_false(asked[pair]++);
        assert_int_equal(one->labels[q], one->ids[2 * pair + 1]);
    }
    for (int64_t t = context, q = 0; t < shape->length; t++) {
        if (q < pairs && t == one->positions[q]) {
            q++;
            continue;
        }
        assert_in_range(one->ids[t], 0, shape->random_fillers ? shape->vocabulary - 1 : 0);
    }
}

static void test_recall_examples(void **state) {
    (void)state;
    static const dr_mqar_shape shapes[] = {{8192, 64, 4, 0.01, true, 0}, {8192, 64, 16, 0.01, true, 0},
                                           {100, 64, 16, 1, false, 0},   {65, 64, 16, 0.5, true, 0},
                                           {5, 4, 1, 0.01, true, 0},     {8192, 256, 16, 0.01, false, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        dr_mqar *mqar;
        assert_int_equal(dr_mqar_create(&shapes[i], &mqar), DR_OK);
        for (int64_t n = 0; n < 200; n++) {
            const int64_t pairs = n % 2 ? 1 + n / 2 % shapes[i].pairs : shapes[i].pairs;
            example one = draw_example(mqar, shapes[i].length, pairs, 9, n);
            assert_example_holds(&one, &shapes[i], pairs);
        }
        const int64_t pairs = shapes[i].pairs;
        example one = draw_example(mqar, shapes[i].length, pairs, 9, 0),
                again = draw_example(mqar, shapes[i].length, pairs, 9, 0);
        example other = draw_example(mqar, shapes[i].length, pairs, 10, 0);
        assert_memory_equal(one.ids, again.ids, (size_t)shapes[i].length * sizeof(int32_t));
        if (shapes[i].length > 4) assert_memory_not_equal(one.ids, other.ids, (size_t)shapes[i].length * sizeof(int32_t));
        dr_mqar_destroy(mqar);
    }
}

/* Whether a count of events that are expected with a probability lies within five standard deviations. */
static void assert_frequency(int64_t count, int64_t of, double probability) {
    double deviation = sqrt((double)of * probability * (1 - probability));
    if (fabs((double)count - (double)of * probability) > 5 * deviation + 1)
        fail_msg("%lld of %lld, expected %.1f +- %.1f", (long long)count, (long long)of, (double)of * probability, deviation);
}

/* Slots of the first and the second key against the law of sequential draws with renormalisation. */
static void test_recall_slots_follow_the_power_law(void **state) {
    (void)state;
    enum { PAIRS = 16, LENGTH = 256, SLOTS = 112, EXAMPLES = 20000 };
    const dr_mqar_shape shape = {8192, LENGTH, PAIRS, 0.01, false, 0};
    dr_mqar *mqar;
    assert_int_equal(dr_mqar_create(&shape, &mqar), DR_OK);
    int64_t first[SLOTS] = {0}, second[SLOTS] = {0};
    for (int64_t n = 0; n < EXAMPLES; n++) {
        example one = draw_example(mqar, LENGTH, PAIRS, 11, n);
        for (int64_t q = 0; q < PAIRS; q++) {
            int64_t slot = (one.positions[q] - 2 * PAIRS) / 2;
            first[slot] += one.ids[one.positions[q]] == one.ids[0];
            second[slot] += one.ids[one.positions[q]] == one.ids[2];
        }
    }
    double weight[SLOTS], total = 0, early = 0;
    for (int g = 0; g < SLOTS; g++) total += weight[g] = pow(g + 1, 0.01 - 1);
    for (int g = 0; g < 8; g++) early += weight[g] / total;
    assert_true(fabs(weight[0] / total - 0.185) < 0.0005); /* as the definition's authors have it */
    assert_true(fabs(early - 0.51) < 0.005);
    for (int g = 0; g < SLOTS; g++) {
        double after_others = 0;
        for (int h = 0; h < SLOTS; h++)
            if (h != g) after_others += weight[h] / total * weight[g] / (total - weight[h]);
        assert_frequency(first[g], EXAMPLES, weight[g] / total);
        assert_frequency(second[g], EXAMPLES, after_others);
    }
    dr_mqar_destroy(mqar);
}

/* Keys, values and fillers are uniform over their ranges, in eighths of them. */
static void test_recall_tokens_are_uniform(void **state) {
    (void)state;
    enum { EXAMPLES = 4000, PARTS = 8, VOCABULARY = 1024 };
    const dr_mqar_shape shape = {VOCABULARY, 32, 4, 0.01, true, 0};
    dr_mqar *mqar;
    assert_int_equal(dr_mqar_create(&shape, &mqar), DR_OK);
    int64_t key[PARTS] = {0}, value[PARTS] = {0}, filler[PARTS] = {0}, fillers = 0;
    for (int64_t n = 0; n < EXAMPLES; n++) {
        example one = draw_example(mqar, shape.length, shape.pairs, 13, n);
        key[one.ids[0] * PARTS / (VOCABULARY / 2)]++;
        value[(one.ids[7] - VOCABULARY / 2) * PARTS / (VOCABULARY / 2)]++;
        for (int64_t t = 9; t < 32; t += 2, fillers++) filler[one.ids[t] * PARTS / VOCABULARY]++; /* never a query */
    }
    for (int i = 0; i < PARTS; i++) {
        assert_frequency(key[i], EXAMPLES, (i == 0 ? 63.0 : 64.0) / 511);
        assert_frequency(value[i], EXAMPLES, 1.0 / PARTS);
        assert_frequency(filler[i], fillers, 1.0 / PARTS);
    }
    dr_mqar_destroy(mqar);
}

static void test_impossible_recall_is_refused(void **state) {
    (void)state;
    static const struct {
        dr_mqar_shape shape;
        const char *part;
    } cases[] = {{{8192, 64, 0, 0.01, true, 0}, "pairs is 0"},
                 {{8192, 63, 4, 0.01, true, 0}, "seq_len is 63"},
                 {{8192, 64, 17, 0.01, true, 0}, "17 pairs do not fit into seq_len 64"},
                 {{64, 64, 4, 0.01, true, 0}, "vocabulary is 64"},
                 {{8192, 64, 4, 0, true, 0}, "power_a is 0"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dr_mqar *mqar = (dr_mqar *)1;
        assert_int_equal(dr_mqar_create(&cases[i].shape, &mqar), DR_ERROR_ARGUMENT);
        assert_null(mqar);
        assert_non_null(strstr(dr_last_error(), cases[i].part));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recall_examples),
        cmocka_unit_test(test_recall_slots_follow_the_power_law),
        cmocka_unit_test(test_recall_tokens_are_uniform),
        cmocka_unit_test(test_impossible_recall_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
