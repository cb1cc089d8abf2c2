/* Replacing the files of a folder: killed before every system call, and with every system call failing once.
 *
 * The linker puts the functions below before those of the system that src/formats/folder.c calls. Each counts one step; at a
 * chosen step the process ends as if it had been killed, or the call fails. Since nothing changes between two calls, this goes
 * through all moments that a kill can hit. */
#include "formats/folder.h"
#include "formats/safetensors.h"
#include "scratch.h"

#include "base/error.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cmocka.h>

static long steps, kill_at, fail_at; /* 0: never */
static char trace[256];              /* a letter for each sync, rename and unlink */

enum { KILLED = 99 };

static void note(char letter) {
    size_t length = strlen(trace);
    if (length + 1 < sizeof trace) trace[length] = letter;
}

/* Counts a system call; false: it is to fail. */
static bool step(void) {
    steps++;
    if (steps == kill_at) _exit(KILLED);
    errno = ENOSPC;
    return steps != fail_at;
}

int __real_openat(int folder, const char *name, int flags, ...);
int __real_mkdir(const char *name, mode_t mode);
char *__real_mkdtemp(char *name);
int __real_renameat(int from, const char *old, int to, const char *name);
int __real_unlinkat(int folder, const char *name, int flags);
int __real_flock(int descriptor, int operation);
DIR *__real_fdopendir(int descriptor);

int __wrap_openat(int folder, const char *name, int flags, ...);
int __wrap_mkdir(const char *name, mode_t mode);
char *__wrap_mkdtemp(char *name);
int __wrap_renameat(int from, const char *old, int to, const char *name);
int __wrap_unlinkat(int folder, const char *name, int flags);
int __wrap_fsync(int descriptor);
int __wrap_flock(int descriptor, int operation);
DIR *__wrap_fdopendir(int descriptor);

int __wrap_openat(int folder, const char *name, int flags, ...) {
    return step() ? __real_openat(folder, name, flags) : -1;
}

int __wrap_mkdir(const char *name, mode_t mode) {
    return step() ? __real_mkdir(name, mode) : -1;
}

char *__wrap_mkdtemp(char *name) {
    return step() ? __real_mkdtemp(name) : NULL;
}

int __wrap_renameat(int from, const char *old, int to, const char *name) {
    note('r');
    return step() ? __real_renameat(from, old, to, name) : -1;
}

int __wrap_unlinkat(int folder, const char *name, int flags) {
    note('u');
    return step() ? __real_unlinkat(folder, name, flags) : -1;
}

/* Nothing here cuts the power, so a valid descriptor is all that is asked for: thousands of real syncs would take minutes. */
int __wrap_fsync(int descriptor) {
    note('s');
    return step() ? -(fcntl(descriptor, F_GETFD) < 0) : -1;
}

int __wrap_flock(int descriptor, int operation) {
    return step() ? __real_flock(descriptor, operation) : -1;
}

DIR *__wrap_fdopendir(int descriptor) {
    return step() ? __real_fdopendir(descriptor) : NULL;
}

static void start_steps(long kill_step, long fail_step) {
    steps = 0;
    kill_at = kill_step;
    memset(trace, 0, sizeof trace);
    fail_at = fail_step;
}

/* "kept" is in no change; "added" is only in the new version. */
static void write_old(const char *folder) {
    char path[600];
    scratch_remove(folder);
    mkdir(folder, 0777);
    const char *names[] = {"a", "b", "kept"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        scratch_write_at(path, "old", 3);
    }
}

/* The whole change, as a user writes it. */
static dr_status write_new(const char *folder) {
    dr_folder *change = NULL;
    const char *names[] = {"a", "b", "added"};
    DR_TRY(dr_folder_begin(folder, &change));
    for (int i = 0; i < 3; i++) {
        if (!step()) {
            dr_folder_abandon(change);
            return dr_fail(DR_ERROR_IO, "cannot write: No space left on device");
        }
        scratch_write_at(dr_folder_path(change, names[i]), "new", 3);
    }
    return dr_folder_commit(change);
}

static bool holds(const char *folder, const char *name, const char *text) {
    char path[600];
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    char *found = scratch_read_at(path, &bytes);
    bool same = text ? found && strcmp(found, text) == 0 : !found;
    free(found);
    return same;
}

/* True: all new; false: all old. Anything else, or anything left over, fails. */
static bool is_new(const char *folder, const char *when, long at) {
    bool new = holds(folder, "a", "new") && holds(folder, "b", "new") && holds(folder, "added", "new");
    bool old = holds(folder, "a", "old") && holds(folder, "b", "old") && holds(folder, "added", NULL);
    if (new == old || !holds(folder, "kept", "old")) fail_msg("%s step %ld the files are mixed", when, at);
    DIR *stream = opendir(folder);
    for (struct dirent *item; (item = readdir(stream));)
        if (item->d_name[0] == '.' && strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0)
            fail_msg("%s step %ld %s is left", when, at, item->d_name);
    closedir(stream);
    return new;
}

/* Runs an action in a child that is killed at a step. Returns whether it got to the end. */
static bool run_killed(dr_status (*action)(const char *folder), const char *folder, long at) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        start_steps(at, 0);
        _exit(action(folder) == DR_OK ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_in_set(WEXITSTATUS(status), ((const unsigned long[]){0, KILLED}), 2);
    return WEXITSTATUS(status) == 0;
}

static void test_kill_at_every_step(void **state) {
    (void)state;
    const char *folder = scratch_path("killed");
    bool finished = false, was_new = false;
    long changes = 0;
    start_steps(0, 0);
    for (long at = 1; !finished; at++) {
        write_old(folder);
        finished = run_killed(write_new, folder, at);
        assert_int_equal(dr_folder_recover(folder), DR_OK);
        bool new = is_new(folder, "killed before", at);
        changes += new != was_new;
        was_new = new;
    }
    assert_true(was_new);
    assert_int_equal(changes, 1); /* there is one moment of publication */
}

/* The recovery, too, may be killed anywhere. */
static void test_kill_the_recovery(void **state) {
    (void)state;
    const char *folder = scratch_path("recovered");
    bool finished = false;
    long cases = 0;
    start_steps(0, 0);
    for (long at = 1; !finished; at++) {
        bool recovered = false;
        for (long again = 1; !recovered; again++, cases++) {
            write_old(folder);
            finished = run_killed(write_new, folder, at);
            recovered = run_killed(dr_folder_recover, folder, again);
            assert_int_equal(dr_folder_recover(folder), DR_OK);
            is_new(folder, "the recovery killed before", again);
        }
    }
    assert_true(cases > 100);
}

static void test_fail_at_every_step(void **state) {
    (void)state;
    const char *folder = scratch_path("failed");
    long total, failures = 0;
    write_old(folder);
    start_steps(0, 0);
    assert_int_equal(write_new(folder), DR_OK);
    total = steps;
    for (long at = 1; at <= total; at++) {
        write_old(folder);
        start_steps(0, at);
        dr_status status = write_new(folder);
        start_steps(0, 0);
        if (status != DR_OK) {
            assert_int_equal(status, DR_ERROR_IO);
            assert_non_null(strstr(dr_last_error(), "No space left on device"));
            failures++;
        }
        assert_int_equal(dr_folder_recover(folder), DR_OK);
        bool new = is_new(folder, "failed at", at);
        if (status == DR_OK && !new) fail_msg("success was reported at step %ld, but the files are old", at);
    }
    assert_true(failures > 10);
}

/* Three files and their subfolder are synced, then published; the folder is synced, the files moved, the empty subfolder
 * removed, the folder synced again. */
static void test_order_of_syncs(void **state) {
    (void)state;
    const char *folder = scratch_path("synced");
    write_old(folder);
    start_steps(0, 0);
    assert_int_equal(write_new(folder), DR_OK);
    assert_string_equal(trace, "ssss"
                               "r"
                               "s"
                               "rrr"
                               "u"
                               "s");
}

static void test_missing_folders(void **state) {
    (void)state;
    dr_folder *change = NULL;
    start_steps(0, 0);
    assert_int_equal(dr_folder_recover(scratch_path("none")), DR_ERROR_IO);
    assert_non_null(strstr(dr_last_error(), "none: cannot open the folder: No such file"));
    assert_int_equal(dr_folder_begin("", &change), DR_ERROR_ARGUMENT);
    const char *deep = scratch_path("x/y//z/");
    assert_int_equal(write_new(deep), DR_OK);
    assert_true(holds(deep, "a", "new"));
    scratch_write_at(scratch_path("file"), "text", 4);
    assert_int_equal(dr_folder_begin(scratch_path("file"), &change), DR_ERROR_IO);
    assert_int_equal(dr_folder_begin(scratch_path("file/below"), &change), DR_ERROR_IO);
    dr_folder_abandon(NULL);
}

/* A living writer's files stay when somebody recovers; a dead one's go. */
static void test_living_and_dead_writers(void **state) {
    (void)state;
    const char *folder = scratch_path("living");
    dr_folder *first = NULL, *second = NULL;
    write_old(folder);
    start_steps(0, 0);
    assert_int_equal(dr_folder_begin(folder, &first), DR_OK);
    scratch_write_at(dr_folder_path(first, "a"), "new", 3);
    assert_int_equal(dr_folder_begin(folder, &second), DR_OK);
    scratch_write_at(dr_folder_path(second, "a"), "two", 3);
    assert_true(run_killed(dr_folder_recover, folder, 0));
    assert_int_equal(access(dr_folder_path(first, "a"), F_OK), 0);
    assert_true(holds(folder, "a", "old"));
    assert_int_equal(dr_folder_commit(first), DR_OK);
    assert_true(holds(folder, "a", "new"));
    assert_int_equal(dr_folder_commit(second), DR_OK);
    assert_true(holds(folder, "a", "two"));

    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        if (dr_folder_begin(folder, &first) != DR_OK) _exit(1);
        scratch_write_at(dr_folder_path(first, "a"), "new", 3);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(ready[0]);
    close(ready[1]);
    assert_int_equal(dr_folder_recover(folder), DR_OK);
    DIR *stream = opendir(folder);
    for (struct dirent *item; (item = readdir(stream));) assert_int_not_equal(strncmp(item->d_name, ".new-", 5), 0);
    closedir(stream);
    assert_true(holds(folder, "a", "two"));
}

/* Several processes publish pairs of equal files; whoever came last, the pair must match. */
static void test_many_writers(void **state) {
    (void)state;
    enum { WRITERS = 4, ROUNDS = 25 };
    const char *folder = scratch_path("many");
    start_steps(0, 0);
    pid_t children[WRITERS];
    for (int w = 0; w < WRITERS; w++) {
        children[w] = fork();
        if (children[w] != 0) continue;
        for (int round = 0; round < ROUNDS; round++) {
            dr_folder *change = NULL;
            char text[32];
            snprintf(text, sizeof text, "%d of %d", round, w);
            if (dr_folder_begin(folder, &change) != DR_OK) _exit(1);
            scratch_write_at(dr_folder_path(change, "a"), text, strlen(text));
            scratch_write_at(dr_folder_path(change, "b"), text, strlen(text));
            if (dr_folder_commit(change) != DR_OK) _exit(1);
        }
        _exit(0);
    }
    for (int w = 0; w < WRITERS; w++) {
        int status = 0;
        waitpid(children[w], &status, 0);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    char path[600];
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/a", folder);
    char *a = scratch_read_at(path, &bytes);
    assert_non_null(a);
    assert_true(holds(folder, "b", a));
    free(a);
}

/* A disk that fills while the new files are written takes nothing from the old ones. */
static void test_full_disk(void **state) {
    (void)state;
    const char *folder = scratch_path("disk"), *name = "a";
    float values[1000] = {0};
    dr_tensor tensor = {DR_F32, 1, {1000}, values};
    struct rlimit limit;
    dr_folder *change = NULL;
    write_old(folder);
    start_steps(0, 0);
    assert_int_equal(dr_folder_begin(folder, &change), DR_OK);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = 2000;
    setrlimit(RLIMIT_FSIZE, &limit);
    assert_int_equal(dr_safetensors_write(dr_folder_path(change, "a"), 1, &name, &tensor, NULL), DR_ERROR_IO);
    char said[512];
    snprintf(said, sizeof said, "%s", dr_last_error());
    limit.rlim_cur = before;
    setrlimit(RLIMIT_FSIZE, &limit);
    dr_folder_abandon(change);
    assert_string_equal(dr_last_error(), said); /* tidying up keeps the reason */
    assert_false(is_new(folder, "full disk,", 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill_at_every_step), cmocka_unit_test(test_kill_the_recovery),
        cmocka_unit_test(test_fail_at_every_step), cmocka_unit_test(test_order_of_syncs),
        cmocka_unit_test(test_missing_folders),    cmocka_unit_test(test_living_and_dead_writers),
        cmocka_unit_test(test_many_writers),       cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
