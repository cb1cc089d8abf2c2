/* Steps that keep less and make it again: the same bits with less memory, for every kind of layer; and what is said where
 * memory is short. */
#include "short_backends.h"

#include "nn/session.h"
#include "train/run.h"

static int64_t available; /* what the library is told; 0: the truth */

int64_t __real_dr_memory_available(void);
int64_t __wrap_dr_memory_available(void);
int64_t __wrap_dr_memory_available(void) {
    return available ? available : __real_dr_memory_available();
}

static const char EXPERTS[] =
    "[{\"mixer\": \"attention\", \"experts\": {\"count\": 4, \"chosen\": 2, \"width\": 8, \"balance\": 0.5}}, "
    "{\"mixer\": \"kda\"}, {\"experts\": {\"count\": 3, \"chosen\": 1, \"width\": 8, \"balance\": 0.25}}]";

/* Losses, norms, balancing losses and the model are those of a run that keeps everything. */
static void check_level(dr_backend *backend, const char *rule, const char *layers, const char *level) {
    short_run whole = {0}, again = {0};
    must(short_train(backend, "whole", &whole, SETTINGS("rule", rule, "layers", "3", "layer_list", layers, "steps", "3")));
    must(short_train(backend, "again", &again,
                     SETTINGS("rule", rule, "layers", "3", "layer_list", layers, "steps", "3", "keep_level", level)));
    for (int64_t step = 1; step <= 3; step++) {
        const dr_progress *a = &whole.told[step], *b = &again.told[step];
        assert_true(a->loss == b->loss && a->gradient_norm == b->gradient_norm);
        assert_true(a->balancing_loss == b->balancing_loss || (isnan(a->balancing_loss) && isnan(b->balancing_loss)));
    }
    short_assert_same_file("whole", "again", "model.safetensors");
}

static void check_same(dr_backend *backend, const char *rule, const char *layers) {
    static const char *const levels[] = {"2", "3", "4"};
    for (int i = 0; i < 3; i++) check_level(backend, rule, layers, levels[i]);
}

static void test_the_same_bits(void **state) {
    (void)state;
    static const char *const rules[] = {"gdn", "delta_net", "kda",    "qdelta", "pgdn",
                                        "eda", "mesanet",   "mamba2", "rwkv7",  "comba"};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) check_same(i % 2 ? reference : cpu, rules[i], "");
    check_same(cpu, "gdn", EXPERTS);
    check_same(reference, "gdn", EXPERTS);
}

static size_t capacity_of(const char *level, const char *accumulate) {
    dr_train_options *options =
        short_options(SETTINGS("layers", "8", "batch", "8", "seq_len", "64", "keep_level", level, "accumulate", accumulate));
    dr_run *run;
    must(dr_run_prepare(cpu, options, &run));
    const size_t capacity = run->session->capacity;
    dr_run_destroy(run);
    dr_train_options_destroy(options);
    return capacity;
}

/* Of eight layers little more than one stays; half of a batch needs half. */
static void test_less_memory(void **state) {
    (void)state;
    const size_t whole = capacity_of("0", "1");
    const size_t unsaved = capacity_of("2", "1"), unconvolved = capacity_of("3", "1");
    assert_true(unsaved < whole * 97 / 100 && unconvolved < unsaved * 97 / 100);
    assert_true(capacity_of("4", "1") < whole / 3);
    assert_true(capacity_of("0", "2") < whole * 6 / 10);
}

/* The choice that changes no number is named first, then more parts. */
static void test_a_smaller_choice_is_named(void **state) {
    (void)state;
    static const char *const choices[][3] = {{"2", "1", "with keep_level 2 it would need"},
                                             {"3", "1", "with keep_level 3 it would need"},
                                             {"4", "1", "with keep_level 4 it would need"},
                                             {"4", "2", "with keep_level 4 and accumulate 2 it would need"}};
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        const int64_t enough = (int64_t)capacity_of(choices[i][0], choices[i][1]);
        dr_train_options *options = short_options(SETTINGS("layers", "8", "batch", "8", "seq_len", "64"));
        dr_run *run = NULL;
        available = enough + 1000;
        const dr_status status = dr_run_prepare(cpu, options, &run);
        available = 0;
        assert_refused(status, DR_ERROR_MEMORY, choices[i][2]);
        dr_train_options_destroy(options);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_bits),
        cmocka_unit_test(test_less_memory),
        cmocka_unit_test(test_a_smaller_choice_is_named),
    };
    return cmocka_run_group_tests(tests, short_begin, short_end);
}
