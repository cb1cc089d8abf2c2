/* The first checkpoint of a run on a backend that can work beside itself: steps go on while it is written, nothing is in the
 * folder until it is whole, and one that fails or is killed leaves a folder that a new run can have. */
#include "scratch.h"
#include "statuses.h"

#include <deltarule/train.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- the disk, for the thread that writes beside the run ---- */

typedef enum { FAST, HELD, BROKEN } disk_kind;

static _Atomic int disk = FAST;
static pthread_t main_thread;

int __wrap_fsync(int descriptor);
int __wrap_fsync(int descriptor) {
    (void)descriptor;
    if (pthread_equal(pthread_self(), main_thread)) return 0;
    while (atomic_load(&disk) == HELD) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (atomic_load(&disk) != BROKEN) return 0;
    errno = EIO;
    return -1;
}

/* ---- runs ---- */

enum { STEPS = 8, RELEASED_AFTER = 5, KILLED = 7 };

static dr_backend *reference;
static dr_train_options *options;
static int64_t released_after, kill_after; /* steps; 0: never */

static bool is_there(const char *name) {
    return access(scratch_path(name), F_OK) == 0;
}

static bool follow(void *context, const dr_progress *progress) {
    *(int64_t *)context = progress->step;
    if (progress->step == kill_after) _exit(KILLED);
    if (progress->step == released_after) {
        assert_false(is_there("run/settings.json"));
        assert_false(is_there("run/metrics.csv"));
        atomic_store(&disk, FAST);
    }
    return true;
}

/* last: the step that was told last. */
static dr_status train(const char *name, disk_kind kind, int64_t *last) {
    dr_run *run;
    *last = 0;
    atomic_store(&disk, kind);
    must(dr_run_create(reference, options, scratch_path(name), &run));
    const dr_status status = dr_run_train(run, follow, last);
    dr_run_destroy(run);
    return status;
}

static void assert_same_file(const char *name) {
    char one[64], other[64];
    size_t bytes, other_bytes;
    snprintf(one, sizeof one, "run/%s", name);
    snprintf(other, sizeof other, "plain/%s", name);
    void *data = scratch_read_at(scratch_path(one), &bytes), *other_data = scratch_read_at(scratch_path(other), &other_bytes);
    assert_int_equal(bytes, other_bytes);
    assert_memory_equal(data, other_data, bytes);
    free(data);
    free(other_data);
}

/* Lines of the file; the steps in them must be 1, 2 and so on. */
static int64_t count_steps(const char *name) {
    size_t bytes;
    char *text = scratch_read_at(scratch_path(name), &bytes), *rest = NULL;
    int64_t steps = -1;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        if (++steps > 0) assert_int_equal(strtoll(line, NULL, 10), steps);
    free(text);
    return steps;
}

static void test_steps_go_on(void **state) {
    (void)state;
    int64_t last;
    must(train("plain", FAST, &last));
    released_after = RELEASED_AFTER;
    must(train("run", HELD, &last));
    released_after = 0;
    assert_int_equal(last, STEPS);
    assert_int_equal(count_steps("run/metrics.csv"), STEPS);
    assert_same_file("model.safetensors");
    scratch_remove(scratch_path("run"));
    scratch_remove(scratch_path("plain"));
}

static void test_failure_leaves_no_folder(void **state) {
    (void)state;
    int64_t last;
    assert_int_equal(train("run", BROKEN, &last), DR_ERROR_IO);
    assert_non_null(strstr(dr_last_error(), "cannot sync a new file"));
    assert_false(is_there("run"));
}

static void test_kill_leaves_nothing_to_resume(void **state) {
    (void)state;
    int status;
    int64_t last;
    dr_run *run;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        main_thread = pthread_self();
        kill_after = 2;
        train("run", HELD, &last);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == KILLED);
    assert_int_equal(dr_run_resume(reference, scratch_path("run"), NULL, &run), DR_ERROR_ARGUMENT);
    must(train("run", FAST, &last));
    assert_int_equal(last, STEPS);
    assert_int_equal(count_steps("run/metrics.csv"), STEPS);
}

static int set_up(void **state) {
    static const char *const settings[] = {"task",          "mqar", "held_out", "1", "vocabulary", "16", "pairs",  "1",
                                           "stop_accuracy", "0",    "batch",    "1", "seq_len",    "8",  "hidden", "8",
                                           "save_every",    "0",    NULL};
    char steps[8];
    main_thread = pthread_self();
    if (scratch_begin(state) != 0) return -1;
    must(dr_backend_open("reference", &(dr_backend_options){.threads = 1}, &reference));
    must(dr_train_options_create(&options));
    for (int i = 0; settings[i]; i += 2) must(dr_train_options_set(options, settings[i], settings[i + 1]));
    snprintf(steps, sizeof steps, "%d", STEPS);
    must(dr_train_options_set(options, "steps", steps));
    return 0;
}

static int tear_down(void **state) {
    dr_train_options_destroy(options);
    dr_backend_close(reference);
    return scratch_end(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps_go_on), cmocka_unit_test(test_failure_leaves_no_folder),
                                       cmocka_unit_test(test_kill_leaves_nothing_to_resume)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
