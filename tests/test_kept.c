/* The copies of a run's last checkpoints: which there are, what they are good for, and that no kill leaves a part of one. */
#include "short_runs.h"

#include <deltarule/model.h>
#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- kills ---- */

enum { KILLED = 7 };

static long changes, kill_at; /* changes of names and folders; 0: never */

static void change(void) {
    if (++changes == kill_at) _exit(KILLED);
}

int __real_mkdir(const char *name, mode_t mode);
char *__real_mkdtemp(char *name);
int __real_rename(const char *old, const char *name);
int __real_renameat(int from, const char *old, int to, const char *name);
int __real_unlinkat(int folder, const char *name, int flags);
int __wrap_mkdir(const char *name, mode_t mode);
char *__wrap_mkdtemp(char *name);
int __wrap_rename(const char *old, const char *name);
int __wrap_renameat(int from, const char *old, int to, const char *name);
int __wrap_unlinkat(int folder, const char *name, int flags);

int __wrap_mkdir(const char *name, mode_t mode) {
    change();
    return __real_mkdir(name, mode);
}

char *__wrap_mkdtemp(char *name) {
    change();
    return __real_mkdtemp(name);
}

int __wrap_rename(const char *old, const char *name) {
    change();
    return __real_rename(old, name);
}

int __wrap_renameat(int from, const char *old, int to, const char *name) {
    change();
    return __real_renameat(from, old, to, name);
}

int __wrap_unlinkat(int folder, const char *name, int flags) {
    change();
    return __real_unlinkat(folder, name, flags);
}

/* ---- what is there ---- */

static dr_backend *reference;

/* Four saves of a run that is as short as can be. */
static const char *const recall[] = {"task",          "mqar", "held_out",   "1", "vocabulary", "16", "pairs",  "1",
                                     "stop_accuracy", "0",    "batch",      "1", "seq_len",    "8",  "hidden", "8",
                                     "steps",         "4",    "save_every", "1", "save_keep",  "2",  NULL};

/* Every copy in the folder must load as a model. Their names, with blanks, in order of the steps. */
static const char *copies(const char *folder) {
    static char names[1024];
    char path[PATH_MAX];
    struct dirent **found;
    snprintf(path, sizeof path, "%s/checkpoints", scratch_path(folder));
    names[0] = '\0';
    const int count = scandir(path, &found, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        if (found[i]->d_name[0] != '.') {
            dr_model *model;
            snprintf(path, sizeof path, "%s/checkpoints/%s", scratch_path(folder), found[i]->d_name);
            must(dr_model_load(reference, path, &model));
            dr_model_destroy(model);
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s ", found[i]->d_name);
        }
        free(found[i]);
    }
    if (count >= 0) free(found);
    return names;
}

static void test_the_last_ones_stay(void **state) {
    (void)state;
    short_run seen = {0};
    must(short_train(reference, "last", &seen, SETTINGS("steps", "7", "save_every", "2", "save_keep", "3")));
    assert_string_equal(copies("last"), "step-000004 step-000006 step-000007 ");
    short_assert_same_file("last", "last/checkpoints/step-000007", "model.safetensors");
    short_assert_same_file("last", "last/checkpoints/step-000007", "optimizer.safetensors");
    short_assert_same_file("last", "last/checkpoints/step-000007", "settings.json");
    must(short_train(reference, "other", &seen, SETTINGS("steps", "7", "save_every", "2")));
    short_assert_same_file("last", "other", "model.safetensors");
    assert_string_equal(copies("other"), "");
}

/* Steps go on while a checkpoint is written: it is that of its step, as of a run that ends there. */
static void test_written_beside_later_steps(void **state) {
    (void)state;
    static const char *const steps[] = {"2", "4", "6"};
    short_run seen = {0};
    must(short_train(reference, "beside", &seen,
                     SETTINGS("steps", "7", "save_every", "1", "save_keep", "7", "schedule", "constant", "warmup_steps", "2")));
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        char name[32], copy[64];
        snprintf(name, sizeof name, "ends-%s", steps[i]);
        snprintf(copy, sizeof copy, "beside/checkpoints/step-00000%s", steps[i]);
        must(short_train(reference, name, &seen, SETTINGS("steps", steps[i], "schedule", "constant", "warmup_steps", "2")));
        short_assert_same_file(name, copy, "model.safetensors");
    }
}

static dr_status resume(const char *folder, const char *steps, const char *keep) {
    dr_train_options *changed;
    dr_run *run = NULL;
    must(dr_train_options_create(&changed));
    must(dr_train_options_set(changed, "steps", steps));
    must(dr_train_options_set(changed, "save_keep", keep));
    dr_status status = dr_run_resume(reference, scratch_path(folder), changed, &run);
    if (status == DR_OK) status = dr_run_train(run, NULL, NULL);
    dr_run_destroy(run);
    dr_train_options_destroy(changed);
    return status;
}

/* Puts a copy in the place of the run's own checkpoint, as a user does who is not content with what came after. */
static void set_back(const char *folder, const char *copy) {
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    char name[256];
    for (int i = 0; i < 2; i++) {
        size_t bytes = 0;
        snprintf(name, sizeof name, "%s/checkpoints/%s/%s", folder, copy, files[i]);
        char *data = scratch_read_at(scratch_path(name), &bytes);
        assert_non_null(data);
        snprintf(name, sizeof name, "%s/%s", folder, files[i]);
        scratch_write_at(scratch_path(name), data, bytes);
        free(data);
    }
}

/* A copy goes on as the run did. One of a later step than the run's own, and folders of other names, are left alone. */
static void test_copies_are_resumed(void **state) {
    (void)state;
    short_run seen = {0};
    must(short_train(reference, "long", &seen, SETTINGS("steps", "6", "save_every", "2", "save_keep", "5")));
    assert_string_equal(copies("long"), "step-000002 step-000004 step-000006 ");
    must(short_resume(reference, "long/checkpoints/step-000002", &seen));
    short_assert_same_file("long", "long/checkpoints/step-000002", "model.safetensors");
    must(short_train(reference, "back", &seen, SETTINGS("steps", "6", "save_every", "2", "save_keep", "2")));
    set_back("back", "step-000004");
    short_run stopped = {.stop_at = 5};
    assert_int_equal(short_resume(reference, "back", &stopped), DR_ERROR_INTERRUPTED);
    assert_string_equal(copies("back"), "step-000004 step-000005 step-000006 ");
    must(short_resume(reference, "back", &seen));
    assert_string_equal(copies("back"), "step-000005 step-000006 ");
    short_assert_same_file("back", "back/checkpoints/step-000006", "optimizer.safetensors");
}

/* More, fewer and none when a run goes on. */
static void test_the_number_may_change(void **state) {
    (void)state;
    short_run seen = {0};
    must(short_train(reference, "number", &seen, SETTINGS("steps", "4", "save_every", "1")));
    must(resume("number", "4", "3"));
    assert_string_equal(copies("number"), "step-000004 ");
    must(resume("number", "8", "3"));
    assert_string_equal(copies("number"), "step-000006 step-000007 step-000008 ");
    must(resume("number", "8", "1"));
    assert_string_equal(copies("number"), "step-000008 ");
    must(resume("number", "9", "0"));
    assert_string_equal(copies("number"), "step-000008 ");
}

static bool train_killed(long at) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        short_run seen = {0};
        dr_train_options *options = short_options(recall);
        dr_run *run;
        changes = 0, kill_at = at;
        must(dr_run_create(reference, options, scratch_path("killed"), &run));
        _exit(dr_run_train(run, short_follow, &seen) == DR_OK ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_in_set(WEXITSTATUS(status), ((const unsigned long[]){0, KILLED}), 2);
    return WEXITSTATUS(status) == 0;
}

/* Every visible copy loads; once there were two, one of them and the run's own are there at any moment; and the run goes on to
 * the copies and the model of one that was not killed. */
static void test_kill_at_every_change(void **state) {
    (void)state;
    short_run seen = {0};
    long kills = 0, with_copies = 0;
    bool had = false;
    must(short_train(reference, "whole", &seen, recall));
    assert_string_equal(copies("whole"), "step-000003 step-000004 ");
    for (long at = 1;; at++, kills++) {
        scratch_remove(scratch_path("killed"));
        bool finished = train_killed(at);
        const char *names = copies("killed");
        const bool two = strlen(names) >= 2 * strlen("step-000001 ");
        if (had) assert_true(two);
        had = had || two;
        with_copies += two;
        if (finished) break;
        if (access(scratch_path("killed/settings.json"), F_OK) != 0) continue; /* it had not begun */
        must(short_resume(reference, "killed", &seen));
        assert_string_equal(copies("killed"), "step-000003 step-000004 ");
        short_assert_same_file("whole", "killed", "model.safetensors");
    }
    assert_true(kills > 50);
    assert_true(with_copies > 20);
}

static int begin(void **state) {
    if (scratch_begin(state) != 0) return -1;
    short_write_corpus();
    return dr_backend_open("reference", NULL, &reference) == DR_OK ? 0 : -1;
}

static int end(void **state) {
    dr_backend_close(reference);
    return scratch_end(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_ones_stay),   cmocka_unit_test(test_written_beside_later_steps),
        cmocka_unit_test(test_copies_are_resumed),   cmocka_unit_test(test_the_number_may_change),
        cmocka_unit_test(test_kill_at_every_change),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
