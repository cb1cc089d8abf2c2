/* Synthetic examples: every generator's labels against slow definitions of their own, what is drawn against the published
 * distributions, lists of sizes. */
#include "data/group.h"
#include "data/sizes.h"
#include "data/streams.h"
#include "scratch.h"
#include "statuses.h"

#include <math.h>

enum { MOST_TOKENS = 4096 };

typedef struct {
    int32_t ids[MOST_TOKENS], labels[MOST_TOKENS];
    int64_t positions[MOST_TOKENS];
    int64_t tokens, targets;
} example;

static dr_generator *open_generator(const char *name, const dr_generator_options *options, int64_t length, int64_t pairs) {
    dr_generator *generator;
    must(dr_generator_find(name)->create(options, (dr_example_size){length, pairs}, &generator));
    return generator;
}

/* Example `index` of seed 7, with guards behind what it may write. */
static void draw(dr_generator *generator, int64_t index, dr_example_size size, example *made) {
    dr_random random = dr_stream(7, DR_STREAM_TRAINING_EXAMPLES, index);
    made->tokens = generator->kind->tokens(generator, size);
    made->targets = generator->kind->targets(generator, size);
    assert_true(made->tokens < MOST_TOKENS && made->targets < MOST_TOKENS && made->targets >= 1);
    memset(made->ids, 0x5a, sizeof made->ids);
    memset(made->labels, 0x5a, sizeof made->labels);
    memset(made->positions, 0x5a, sizeof made->positions);
    generator->kind->draw(generator, &random, size, &(dr_example){made->ids, made->positions, made->labels});
    for (int64_t t = 0; t < made->tokens; t++) assert_in_range(made->ids[t], 0, generator->vocabulary - 1);
    for (int64_t k = 0; k < made->targets; k++) {
        assert_true(made->positions[k] >= 0 && made->positions[k] < made->tokens);
        assert_true(k == 0 || made->positions[k] > made->positions[k - 1]);
        assert_in_range(made->labels[k], 0, generator->vocabulary - 1);
    }
    assert_int_equal(made->ids[made->tokens], 0x5a5a5a5a);
    assert_int_equal(made->labels[made->targets], 0x5a5a5a5a);
}

/* Whether a count of events of a probability lies within five standard deviations. */
static void assert_frequency(int64_t count, int64_t of, double probability) {
    const double deviation = sqrt((double)of * probability * (1 - probability));
    if (fabs((double)count - (double)of * probability) > 5 * deviation + 1)
        fail_msg("%lld of %lld, expected %.1f +- %.1f", (long long)count, (long long)of, (double)of * probability, deviation);
}

/* ---- parity ---- */

static void test_parity(void **state) {
    (void)state;
    static example one;
    dr_generator *generator = open_generator("parity", &(dr_generator_options){0}, 256, 0);
    int64_t twos = 0, symbols = 0;
    assert_int_equal(generator->vocabulary, 3);
    for (int64_t n = 0; n < 2000; n++) {
        const int64_t length = 2 + n % 255;
        int64_t count = 0;
        draw(generator, n, (dr_example_size){length, 0}, &one);
        assert_true(one.tokens == length - 1 && one.targets == 1 && one.positions[0] == length - 2);
        for (int64_t t = 0; t < one.tokens; t++) assert_in_range(one.ids[t], 1, 2), count += one.ids[t] == 2;
        assert_int_equal(one.labels[0], count % 2 + 1);
        twos += count, symbols += one.tokens;
    }
    assert_frequency(twos, symbols, 0.5);
    dr_generator_destroy(generator);
}

/* ---- arithmetic ---- */

/* From an expression in characters its value, by recursive descent over integers that are not reduced before the end; they stay
 * small enough in the lengths here. term: product of factors. */
static const char *at;
static __int128 sum_of(void);

static __int128 factor_of(void) {
    if (*at == '-') return at++, -factor_of();
    if (*at != '(') {
        assert_true(*at >= '0' && *at <= '4');
        return *at++ - '0';
    }
    at++;
    const __int128 value = sum_of();
    assert_int_equal(*at, ')');
    at++;
    return value;
}

static __int128 term_of(void) {
    __int128 value = factor_of();
    while (*at == '*') at++, value *= factor_of();
    return value;
}

static __int128 sum_of(void) {
    __int128 value = term_of();
    while (*at == '+' || *at == '-') {
        const char sign = *at++;
        const __int128 term = term_of();
        value = sign == '+' ? value + term : value - term;
    }
    return value;
}

/* The value modulo 5 of an expression that ends with "=". */
static int64_t value_of(const example *one, const char *characters, int64_t pairs_of_brackets) {
    static char text[MOST_TOKENS];
    int64_t opened = 0;
    for (int64_t t = 0; t < one->tokens; t++) text[t] = characters[one->ids[t]], opened += text[t] == '(';
    assert_int_equal(text[one->tokens - 1], '=');
    assert_true(pairs_of_brackets < 0 || opened == pairs_of_brackets);
    at = text;
    const int64_t value = (int64_t)(sum_of() % 5);
    assert_ptr_equal(at, text + one->tokens - 1); /* all of it was read */
    return (value + 5) % 5;
}

static void test_arithmetic(void **state) {
    (void)state;
    static example one;
    dr_generator *generator = open_generator("arithmetic", &(dr_generator_options){0}, 101, 0);
    int64_t of[10] = {0}, digits = 0, signs = 0;
    assert_int_equal(generator->vocabulary, 10);
    for (int64_t n = 0; n < 3000; n++) {
        const int64_t length = 3 + 2 * (n % 50);
        draw(generator, n, (dr_example_size){length, 0}, &one);
        assert_true(one.tokens == length - 1 && one.targets == 1 && one.positions[0] == length - 2);
        assert_int_equal(one.labels[0], 5 + value_of(&one, "?+-*=01234", 0));
        for (int64_t t = 0; t + 1 < one.tokens; t++) of[one.ids[t]]++;
        digits += (length - 1) / 2, signs += (length - 3) / 2;
    }
    for (int id = 1; id < 4; id++) assert_frequency(of[id], signs, 1.0 / 3);
    for (int id = 5; id < 10; id++) assert_frequency(of[id], digits, 0.2);
    dr_generator_destroy(generator);
}

/* What the definition makes of the left of the outermost operator. */
static int64_t left_length(const example *one) {
    int64_t depth = 0, t = 1;
    for (;; t++) {
        depth += (one->ids[t] == 8) - (one->ids[t] == 9);
        const bool is_operator =
            one->ids[t] == 5 || (one->ids[t] == 6 && t > 1 && (one->ids[t - 1] < 5 || one->ids[t - 1] == 9));
        if (depth == 0 && is_operator) return t - 1;
    }
}

static void test_arithmetic_with_brackets(void **state) {
    (void)state;
    static example one;
    enum { OF_SPLITS = 12, SPLITS = OF_SPLITS - 4, EXAMPLES = 8000 };
    dr_generator *generator = open_generator("arithmetic_brackets", &(dr_generator_options){0}, 4096, 0);
    int64_t splits[SPLITS + 1] = {0}, minus = 0;
    assert_int_equal(generator->vocabulary, 12);
    for (int64_t n = 0; n < 3000; n++) {
        const int64_t length = n % 100 == 99 ? 4000 : 5 + n % 120;
        draw(generator, n, (dr_example_size){length, 0}, &one);
        assert_true(one.tokens == length - 2 && one.targets == 1 && one.positions[0] == one.tokens - 1);
        assert_int_equal(one.labels[0], value_of(&one, "01234+-*()=?", -1));
        for (int64_t t = 0; t < one.tokens; t++) assert_true(one.ids[t] != 7 && one.ids[t] != 11);
    }
    for (int64_t n = 0; n < EXAMPLES; n++) { /* (L op R): all splits alike, + and - alike */
        draw(generator, n, (dr_example_size){OF_SPLITS + 3, 0}, &one);
        const int64_t left = left_length(&one);
        assert_in_range(left, 1, SPLITS);
        splits[left]++;
        minus += one.ids[1 + left] == 6;
    }
    for (int left = 1; left <= SPLITS; left++) assert_frequency(splits[left], EXAMPLES, 1.0 / SPLITS);
    assert_frequency(minus, EXAMPLES, 0.5);
    dr_generator_destroy(generator);
}

/* ---- groups ---- */

/* A group's laws, and its number of elements of each order where that tells it from others of its size. */
static void assert_group(const char *name, int64_t order, int64_t of_order_two, bool commutes) {
    dr_group group;
    must(dr_group_create(name, &group));
    const int64_t n = group.order;
    int64_t involutions = 0, uncommuting = 0;
    assert_int_equal(n, order);
    for (int64_t x = 0; x < n; x++) {
        uint8_t found[DR_MOST_GROUP] = {0};
        assert_true(group.product[x] == x && group.product[x * n] == x); /* 0 is the identity */
        for (int64_t y = 0; y < n; y++) {
            const int64_t xy = group.product[x * n + y];
            assert_in_range(xy, 0, n - 1);
            assert_false(found[xy]++); /* a row has each element once */
            uncommuting += xy != group.product[y * n + x];
        }
        involutions += x > 0 && group.product[x * n + x] == 0;
        assert_int_equal(group.moved[x] == 0, x == 0);
    }
    dr_random random = dr_random_start(3, 0);
    for (int i = 0; i < 5000; i++) {
        const int64_t x = (int64_t)dr_random_below(&random, (uint64_t)n), y = (int64_t)dr_random_below(&random, (uint64_t)n),
                      z = (int64_t)dr_random_below(&random, (uint64_t)n);
        assert_int_equal(group.product[group.product[x * n + y] * n + z], group.product[x * n + group.product[y * n + z]]);
    }
    assert_int_equal(involutions, of_order_two);
    assert_int_equal(uncommuting == 0, commutes);
    dr_group_destroy(&group);
}

static void test_groups(void **state) {
    (void)state;
    assert_group("S3", 6, 3, false);
    assert_group("S4", 24, 9, false);
    assert_group("A4", 12, 3, false);
    assert_group("A5", 60, 15, false);
    assert_group("S5", 120, 25, false);
    assert_group("A6", 360, 45, false);
    assert_group("Z2", 2, 1, true);
    assert_group("Z60", 60, 1, true);
    assert_group("Z1", 1, 0, true);
    assert_group("A4xZ5", 60, 3, false);
    assert_group("Z2xZ2xZ3", 12, 3, true);
}

/* How many points the elements of S5 move: 1, 10 swaps, 20 + 15, .. (the published easier inputs). */
static void test_moved_points(void **state) {
    (void)state;
    static const int64_t expected[] = {1, 0, 10, 20, 45, 44};
    int64_t with[6] = {0};
    dr_group group;
    must(dr_group_create("S5", &group));
    for (int64_t x = 0; x < group.order; x++) {
        with[group.moved[x]]++;
        if (group.moved[x] == 2) assert_int_equal(group.product[x * group.order + x], 0); /* a swap undoes itself */
    }
    assert_memory_equal(with, expected, sizeof with);
    dr_group_destroy(&group);
}

/* The words of permutations as such: element `number` in lexicographic order, by counting up. */
static void permutation(int number, int points, bool even_only, int p[5]) {
    for (int code = 0;; code++) { /* digits of base `points`: all tuples in lexicographic order */
        int rest = code, used = 0, inversions = 0;
        for (int i = points - 1; i >= 0; i--) p[i] = rest % points, rest /= points;
        assert_int_equal(rest, 0);
        for (int i = 0; i < points; i++) used |= 1 << p[i];
        for (int i = 0; i < points; i++)
            for (int j = i + 1; j < points; j++) inversions += p[i] > p[j];
        if (used == (1 << points) - 1 && (!even_only || inversions % 2 == 0) && number-- == 0) return;
    }
}

static void check_words(const char *name, int points, bool even_only, const dr_generator_options *options) {
    static example one;
    dr_generator *generator = open_generator("group", options, 64, 0);
    dr_group group;
    must(dr_group_create(name, &group));
    const int64_t order = group.order;
    for (int64_t n = 0; n < 30; n++) {
        const int64_t length = 1 + n * 7 % 64, k = options->tokens;
        int whole[5] = {0, 1, 2, 3, 4};
        draw(generator, n, (dr_example_size){length, 0}, &one);
        assert_true(one.tokens == 1 + length * k && one.targets == length && one.ids[0] == order);
        for (int64_t i = 0; i < length; i++) {
            int x[5], label[5], product[5], moved = 0;
            const int32_t element = one.ids[1 + i * k];
            assert_in_range(element, 0, order - 1);
            permutation(element, points, even_only, x);
            for (int j = 0; j < points; j++) moved += x[j] != j;
            assert_true(options->moves == 0 || moved <= options->moves);
            for (int64_t t = 1; t < k; t++)
                assert_int_equal(one.ids[1 + i * k + t], options->repeat_elements ? element : order + 1);
            for (int j = 0; j < points; j++) product[j] = whole[x[j]]; /* acc x: first x, then acc */
            memcpy(whole, product, sizeof whole);
            assert_int_equal(one.positions[i], (i + 1) * k);
            permutation(one.labels[i], points, even_only, label);
            assert_memory_equal(label, whole, (size_t)points * sizeof(int));
        }
    }
    assert_int_equal(generator->vocabulary, order + 1 + (options->tokens > 1 && !options->repeat_elements));
    dr_group_destroy(&group);
    dr_generator_destroy(generator);
}

static void test_words(void **state) {
    (void)state;
    check_words("S3", 3, false, &(dr_generator_options){.group = "S3", .tokens = 1});
    check_words("S5", 5, false, &(dr_generator_options){.group = "S5", .tokens = 1, .moves = 2});
    check_words("S4", 4, false, &(dr_generator_options){.group = "S4", .tokens = 3, .moves = 3});
    check_words("A5", 5, true, &(dr_generator_options){.group = "A5", .tokens = 2, .repeat_elements = true});
    check_words("A4", 4, true, &(dr_generator_options){.group = "A4", .tokens = 1});
}

/* Inputs are uniform over the elements that may come up. */
static void test_elements_are_uniform(void **state) {
    (void)state;
    static example one;
    int64_t of[120] = {0};
    dr_generator *generator = open_generator("group", &(dr_generator_options){.group = "S5", .tokens = 1, .moves = 2}, 200, 0);
    dr_group group;
    must(dr_group_create("S5", &group));
    for (int64_t n = 0; n < 50; n++) {
        draw(generator, n, (dr_example_size){200, 0}, &one);
        for (int t = 1; t <= 200; t++) of[one.ids[t]]++;
    }
    for (int x = 0; x < 120; x++) {
        if (group.moved[x] <= 2) assert_frequency(of[x], 50 * 200, 1.0 / 11);
        if (group.moved[x] > 2) assert_int_equal(of[x], 0);
    }
    dr_group_destroy(&group);
    dr_generator_destroy(generator);
}

/* ---- forgetting recall ---- */

static void test_updates(void **state) {
    (void)state;
    static example one;
    static const struct {
        int64_t vocabulary, length, pairs, updates;
    } cases[] = {{8192, 64, 8, 4}, {64, 48, 8, 8}, {33, 32, 5, 5}, {17, 16, 3, 2}, {8192, 256, 16, 1}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const dr_generator_options options = {
            .vocabulary = cases[c].vocabulary, .power = 0.01, .random_fillers = c % 2 == 0, .updates = cases[c].updates};
        const int64_t pairs = cases[c].pairs, updates = cases[c].updates, context = 2 * (pairs + updates);
        int64_t updated[16] = {0};
        dr_generator *generator = open_generator("mqar", &options, cases[c].length, pairs);
        for (int64_t n = 0; n < 1000; n++) {
            draw(generator, n, (dr_example_size){cases[c].length, pairs}, &one);
            assert_int_equal(one.targets, pairs);
            for (int64_t u = pairs; u < pairs + updates; u++) { /* a key of the block, once, with a value never seen before */
                int64_t of = -1;
                for (int64_t i = 0; i < u; i++) {
                    assert_int_not_equal(one.ids[2 * i + 1], one.ids[2 * u + 1]);
                    if (one.ids[2 * i] == one.ids[2 * u]) assert_int_equal(of, -1), of = i;
                }
                assert_in_range(of, 0, pairs - 1);
                updated[of]++;
                assert_in_range(one.ids[2 * u + 1], cases[c].vocabulary / 2, cases[c].vocabulary - 1);
            }
            for (int64_t q = 0; q < pairs; q++) { /* the last value counts */
                int32_t value = -1;
                assert_true(one.positions[q] >= context && (one.positions[q] - context) % 2 == 0);
                for (int64_t t = 0; t < context; t += 2)
                    if (one.ids[t] == one.ids[one.positions[q]]) value = one.ids[t + 1];
                assert_int_equal(one.labels[q], value);
            }
        }
        for (int64_t i = 0; i < pairs; i++) assert_frequency(updated[i], 1000, (double)updates / (double)pairs);
        dr_generator_destroy(generator);
    }
}

/* ---- sizes ---- */

static void test_sizes_are_read(void **state) {
    (void)state;
    dr_sizes sizes;
    must(dr_sizes_parse("lengths", "  3-40 64/4*5  128/8 ", 2, true, &sizes));
    assert_int_equal(sizes.count, 3);
    assert_true(sizes.at[0].least == 3 && sizes.at[0].most == 40 && sizes.at[0].pairs == 2 && sizes.at[0].weight == 1);
    assert_true(sizes.at[1].least == 64 && sizes.at[1].most == 64 && sizes.at[1].pairs == 4 && sizes.at[1].weight == 5);
    assert_string_equal(sizes.at[0].name, "3-40/2");
    assert_string_equal(sizes.at[1].name, "64/4");
    must(dr_sizes_parse("lengths", "7", 0, false, &sizes));
    assert_string_equal(sizes.at[0].name, "7");
    static const char *const wrong[] = {"0", "-3", "a", "5-4", "5-", "5,6", "5*2", "5/2", "10000001", "5 x", "3-4-5", "5.5"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_refused(dr_sizes_parse("lengths", wrong[i], 0, false, &sizes), DR_ERROR_ARGUMENT, "is not a length such as 64");
    assert_refused(dr_sizes_parse("lengths", "64/0", 4, true, &sizes), DR_ERROR_ARGUMENT, "64/0");
    assert_refused(dr_sizes_parse("lengths", "64*0", 4, true, &sizes), DR_ERROR_ARGUMENT, "64*0");
    assert_refused(dr_sizes_parse("lengths", " ", 0, false, &sizes), DR_ERROR_ARGUMENT, "lengths is empty");
    char many[3 * DR_MOST_SIZES + 8] = "";
    for (int i = 0; i <= DR_MOST_SIZES; i++) strcat(many, "64 ");
    assert_refused(dr_sizes_parse("lengths", many, 0, false, &sizes), DR_ERROR_ARGUMENT, "64 items and no more");
}

/* Items come up by their weights, and the lengths that a generator has within a range alike. */
static void test_sizes_are_drawn(void **state) {
    (void)state;
    enum { DRAWS = 20000 };
    dr_sizes sizes;
    int64_t of[130] = {0};
    dr_generator *generator = open_generator("arithmetic", &(dr_generator_options){0}, 129, 0);
    must(dr_sizes_parse("lengths", "4-12*3 128-129", 0, true, &sizes));
    must(dr_sizes_fit(generator, "lengths", &sizes));
    dr_random random = dr_random_start(5, 0);
    for (int i = 0; i < DRAWS; i++) {
        const dr_example_size size = dr_sizes_draw(&sizes, generator->kind, &random);
        assert_in_range(size.length, 4, 129);
        of[size.length]++;
    }
    for (int length = 5; length <= 11; length += 2) assert_frequency(of[length], DRAWS, 0.75 / 4);
    assert_frequency(of[129], DRAWS, 0.25);
    assert_int_equal(of[5] + of[7] + of[9] + of[11] + of[129], DRAWS);
    dr_generator_destroy(generator);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parity),
        cmocka_unit_test(test_arithmetic),
        cmocka_unit_test(test_arithmetic_with_brackets),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_moved_points),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_elements_are_uniform),
        cmocka_unit_test(test_updates),
        cmocka_unit_test(test_sizes_are_read),
        cmocka_unit_test(test_sizes_are_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
