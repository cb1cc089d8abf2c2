/* Operations that benchmarks count, for rules of each kind of rows, by the formulas of docs/performance.md with numbers filled
 * in. */
#include "check/bench/count.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { TOKENS = 10, VALUE_HEADS = 3, KEY = 4, VALUE = 8 }; /* K V = 32, 30 tokens and heads */

/* r rows that read, w that write, and what that makes. */
static void check(const dr_rule *rule, double r, double w) {
    const dr_recurrence recurrence = {.rule = rule,
                                      .layout = {.sequences = 2, .rows = TOKENS},
                                      .key_heads = 1,
                                      .value_heads = VALUE_HEADS,
                                      .key_size = KEY,
                                      .value_size = VALUE};
    const double state = 64 * (r + w + 1), pairs = r * w + w, decay = rule->decay != DR_DECAY_NONE;
    assert_float_equal(dr_bench_counted(&recurrence), 30 * (state + 64 * 12 * pairs), 0);
    assert_float_equal(dr_bench_performed_forward(&recurrence, 16), 30 * (state + 16 * 12 * pairs), 0);
    assert_float_equal(dr_bench_performed_forward(&recurrence, 1), 30 * (state + 32 * decay), 0);
    /* three quarters of the states within segments of four chunks are made again */
    const double with_state = 64 * (2 * r + 2 * w + 2), between = 16 * (3 * KEY + 2 * VALUE) * pairs;
    assert_float_equal(dr_bench_performed_backward(&recurrence, 16, 64), 30 * (with_state + 64 * 0.75 * w + between), 1e-6);
    assert_float_equal(dr_bench_performed_backward(&recurrence, 16, 16), 30 * (with_state + between), 0);
    assert_float_equal(dr_bench_performed_backward(&recurrence, 1, 64), 30 * (64 * (3 * r + 2 * w + 2) + 64 * decay), 0);
}

static void test_counts(void **state) {
    (void)state;
    check(dr_rule_find("linear_attention"), 0, 1);
    check(dr_rule_find("gla"), 0, 1);
    check(dr_rule_find("delta_net"), 1, 1);
    check(dr_rule_find("gdn"), 1, 1);
    check(dr_rule_find("eda"), 2, 2);
    dr_rule repeated = *dr_rule_find("delta_product");
    repeated.repeat = 3;
    check(&repeated, 3, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
