/* Random numbers from the words of their stream, worked out by hand: which words each takes, and what it makes of them. */
#include "base/random.h"
#include "data/streams.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* 53 bits of two words, the second one high. */
static double unit(const uint32_t *words) {
    return (double)(((uint64_t)words[1] << 32 | words[0]) >> 11) / 9007199254740992.0;
}

static void take_words(uint64_t seed, uint64_t stream, int skipped, int count, uint32_t *words) {
    dr_random random = dr_random_start(seed, stream);
    for (int i = 0; i < skipped; i++) dr_random_word(&random);
    for (int i = 0; i < count; i++) words[i] = dr_random_word(&random);
}

/* A uniform number takes two words, a normal one four: Box and Muller's, with the radius from the first two. */
static void test_numbers_of_words(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed < 40; seed++) {
        uint32_t words[6];
        dr_random random = dr_random_start(seed, 3);
        take_words(seed, 3, 0, 6, words);
        assert_true(dr_random_uniform(&random) == unit(words));
        double normal = sqrt(-2 * log(1 - unit(words + 2))) * cos(2 * acos(-1.0) * unit(words + 4));
        assert_true(fabs(dr_random_normal(&random) - normal) < 1e-14);
        assert_int_equal(random.drawn, 6);
    }
}

/* Many at once are, bit for bit, those drawn one by one and rounded; how many makes no difference. */
static void test_many_normals(void **state) {
    (void)state;
    enum { COUNT = 1 << 20, ODD = 301 };
    static float many[COUNT];
    const double scales[] = {0.02, 1, 3e-7};
    for (uint64_t i = 0; i < 3; i++) {
        dr_random random = dr_random_start(i, 5), one = random;
        dr_random_normals(&random, scales[i], ODD, many);
        dr_random_normals(&random, scales[i], COUNT - ODD, many + ODD);
        assert_int_equal(random.drawn, 4 * (int64_t)COUNT);
        for (int64_t at = 0; at < COUNT; at++) {
            const float expected = (float)(scales[i] * dr_random_normal(&one));
            if (memcmp(&expected, &many[at], sizeof expected) != 0) fail_msg("number %lld of stream %d", (long long)at, (int)i);
        }
    }
}

/* Below a bound: the rest of 64 bits, where numbers at the low end that would make some rests more likely are drawn again. */
static void test_below(void **state) {
    (void)state;
    const uint64_t bound = (uint64_t)3 << 62, drop = (uint64_t)1 << 62; /* 2^64 mod 3/4 2^64 */
    int again = 0;
    for (uint64_t seed = 1; seed < 60; seed++) {
        uint32_t words[2];
        dr_random random = dr_random_start(seed, 1);
        int skipped = 0;
        uint64_t bits;
        do {
            take_words(seed, 1, skipped, 2, words);
            bits = (uint64_t)words[1] << 32 | words[0];
            skipped += 2;
        } while (bits < drop);
        again += skipped > 2;
        assert_true(dr_random_below(&random, bound) == bits % bound);
        assert_int_equal(random.drawn, skipped);
    }
    assert_true(again > 0);
}

/* Streams and seeds count in all of their 64 bits. */
static void test_seeds_and_streams(void **state) {
    (void)state;
    for (int bit = 0; bit < 64; bit++) {
        dr_random plain = dr_random_start(0, 0), seeded = dr_random_start((uint64_t)1 << bit, 0),
                  streamed = dr_random_start(0, (uint64_t)1 << bit);
        uint32_t word = dr_random_word(&plain);
        assert_int_not_equal(dr_random_word(&seeded), word);
        assert_int_not_equal(dr_random_word(&streamed), word);
    }
}

/* No purpose, and no index of one, has another's numbers. */
static void test_purposes(void **state) {
    (void)state;
    enum { INDEXES = 3, ALL = DR_STREAM_VALIDATION * INDEXES };
    static const int64_t indexes[INDEXES] = {0, 1, (int64_t)1 << 40};
    uint64_t first[ALL];
    for (int i = 0; i < ALL; i++) {
        dr_random random = dr_stream(5, (dr_stream_purpose)(1 + i / INDEXES), indexes[i % INDEXES]);
        first[i] = (uint64_t)dr_random_word(&random) << 32;
        first[i] |= dr_random_word(&random);
        for (int k = 0; k < i; k++) assert_true(first[k] != first[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_of_words),  cmocka_unit_test(test_many_normals), cmocka_unit_test(test_below),
        cmocka_unit_test(test_seeds_and_streams), cmocka_unit_test(test_purposes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
