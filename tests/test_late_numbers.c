/* A backend whose work goes on beside the host's: the numbers of a step are read when the next one is under way, and everything
 * that is told and written is the same, bit for bit. The backend here is the reference with a copy to the host that notes when
 * it is asked for and when it is waited upon. */
#include "short_runs.h"

#include "ops/operations.h"

enum { MOST_COPIES = 64 };

static dr_backend *backend;
static const dr_operations *plain;
static dr_operations late;
static int64_t updates;                 /* AdamW steps so far, one a step of the run */
static int64_t read_after[MOST_COPIES]; /* updates when copy i was waited upon */
static int copies, reads, dropped;
static bool breaks; /* whether gradients are NaN */

typedef struct {
    size_t bytes;
    char at[];
} copy;

static dr_status fetch(dr_backend *of, const void *from, size_t bytes, void **transfer) {
    copy *made = malloc(sizeof *made + bytes);
    (void)of;
    assert_non_null(made);
    made->bytes = bytes;
    memcpy(made->at, from, bytes);
    *transfer = made;
    copies++;
    return DR_OK;
}

static dr_status fetched(dr_backend *of, void *transfer, void *to) {
    copy *made = transfer;
    (void)of;
    if (to) memcpy(to, made->at, made->bytes);
    if (to && reads < MOST_COPIES) read_after[reads++] = updates;
    dropped += !to;
    free(made);
    return DR_OK;
}

static dr_status clip(dr_backend *of, double most, dr_control *control) {
    updates++;
    if (breaks) control->squares = NAN;
    return plain->clip(of, most, control);
}

static void read_late(bool is_late) {
    late = *plain;
    late.clip = clip;
    if (is_late) late.fetch = fetch, late.fetched = fetched;
    backend->ops = &late;
    updates = 0, copies = reads = dropped = 0;
}

static void assert_same_told(const short_run *one, const short_run *two, int64_t steps) {
    for (int64_t step = 1; step <= steps; step++) {
        const dr_progress *a = &one->told[step], *b = &two->told[step];
        assert_true(a->loss == b->loss && a->gradient_norm == b->gradient_norm && a->learning_rate == b->learning_rate);
        assert_true(a->skipped == b->skipped && a->evaluated == b->evaluated && a->bits_per_byte == b->bits_per_byte);
        assert_true(a->held_out == b->held_out || (isnan(a->held_out) && isnan(b->held_out)));
    }
}

/* Evaluations after steps 4 and 8, a checkpoint after 6, the end after 9: these steps are read at once, the others late. */
static void test_numbers_come_one_step_late(void **state) {
    (void)state;
    static const int64_t due[] = {2, 3, 4, 4, 6, 6, 8, 8, 9};
    const char *const *settings = SETTINGS("steps", "9", "evaluate_every", "4", "save_every", "6", "accumulate", "2");
    short_run at_once = {0}, seen = {0};
    read_late(false);
    must(short_train(backend, "at_once", &at_once, settings));
    read_late(true);
    must(short_train(backend, "late", &seen, settings));
    assert_int_equal(reads, 9);
    assert_int_equal(copies, 9);
    assert_int_equal(dropped, 0);
    for (int i = 0; i < 9; i++) assert_int_equal(read_after[i], due[i]);
    assert_int_equal(seen.calls, 9);
    assert_same_told(&at_once, &seen, 9);
    short_assert_same_file("at_once", "late", "model.safetensors");
}

/* Whoever stops a run is told of the step that is under way, and of no later one. */
static void test_a_stop_ends_after_the_step_under_way(void **state) {
    (void)state;
    short_run whole = {0}, stopped = {.stop_at = 3};
    read_late(true);
    must(short_train(backend, "whole", &whole, SETTINGS("steps", "8")));
    assert_int_equal(short_train(backend, "stopped", &stopped, SETTINGS("steps", "8")), DR_ERROR_INTERRUPTED);
    assert_int_equal(stopped.last, 4);
    assert_non_null(strstr(dr_last_error(), "stopped after step 4 of 8"));
    stopped.stop_at = 0;
    must(short_resume(backend, "stopped", &stopped));
    assert_int_equal(stopped.calls, 8);
    assert_same_told(&whole, &stopped, 8);
    short_assert_same_file("whole", "stopped", "model.safetensors");
}

/* 50 steps without an update end a run, with one more under way, whose copy is given up. */
static void test_broken_gradients_end_a_run(void **state) {
    (void)state;
    short_run seen = {0};
    read_late(true);
    breaks = true;
    const dr_status status = short_train(backend, "broken", &seen, SETTINGS("steps", "60"));
    breaks = false;
    assert_refused(status, DR_ERROR_NUMERIC, "50 steps in a row, up to step 50");
    assert_int_equal(seen.calls, 49);
    assert_int_equal(updates, 51);
    assert_int_equal(dropped, 1);
}

static int begin(void **state) {
    if (scratch_begin(state) != 0) return -1;
    short_write_corpus();
    backend = open_backend("reference", NULL, 1);
    plain = backend->ops;
    return 0;
}

static int end(void **state) {
    backend->ops = plain;
    dr_backend_close(backend);
    return scratch_end(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_come_one_step_late),
        cmocka_unit_test(test_a_stop_ends_after_the_step_under_way),
        cmocka_unit_test(test_broken_gradients_end_a_run),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
