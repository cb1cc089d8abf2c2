/* Training in the process of a host: in the child of a fork, with the host's errno and signals left as they are. */
#include "learner.h"

#include <errno.h>
#include <ftw.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <deltarule/train.h>

static char folder[] = "/tmp/host_XXXXXX";

static const char *const small[][2] = {{"task", "mqar"},  {"hidden", "64"}, {"layers", "1"},       {"heads", "2"},
                                       {"steps", "3"},    {"batch", "8"},   {"vocabulary", "256"}, {"seq_len", "64"},
                                       {"held_out", "8"}, {"pairs", "4"}};

/* Trains in a folder of that name, with 4 threads: the digest of the parameters, 0 if it fails. */
static uint64_t train(dr_backend *backend, const char *name) {
    char path[64];
    dr_train_options *options = NULL;
    dr_run *run = NULL;
    uint64_t digest = 14695981039346656037u;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    bool right = dr_train_options_create(&options) == DR_OK;
    for (size_t i = 0; right && i < sizeof small / sizeof *small; i++)
        right = dr_train_options_set(options, small[i][0], small[i][1]) == DR_OK;
    right = right && dr_run_create(backend, options, path, &run) == DR_OK && dr_run_train(run, NULL, NULL) == DR_OK;
    if (!right) print_error("%s: %s\n", name, dr_last_error());
    const unsigned char *bytes = right ? dr_model_parameter_block(dr_run_model(run)) : NULL;
    const size_t count = right ? (size_t)dr_model_block_count(dr_run_model(run)) * sizeof(float) : 0;
    for (size_t i = 0; i < count; i++) digest = (digest ^ bytes[i]) * 1099511628211u;
    dr_run_destroy(run);
    dr_train_options_destroy(options);
    return right ? digest : 0;
}

static dr_backend *open_cpu(void) {
    dr_backend *backend = NULL;
    assert_int_equal(dr_backend_open("cpu", &(dr_backend_options){.threads = 4}, &backend), DR_OK);
    return backend;
}

static void a_child_trains_as_its_parent(void **unused) {
    (void)unused;
#ifdef EMULATED
    print_message("skipped: qemu-user 7.2 aborts where the child of a fork starts threads\n");
    skip();
#endif
    dr_backend *backend = open_cpu();
    const uint64_t expected = train(backend, "parent");
    assert_true(expected != 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(120); /* what hangs ends */
        _exit(train(backend, "child") == expected ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    dr_backend_close(backend);
}

static void signals_stay_the_hosts(void **unused) {
    (void)unused;
    enum { SIGNALS = 65 };
    static struct sigaction before[SIGNALS], after;
    sigset_t blocked_before, blocked_after;
    for (int i = 1; i < SIGNALS; i++) sigaction(i, NULL, &before[i]);
    sigprocmask(SIG_SETMASK, NULL, &blocked_before);
    dr_backend *backend = open_cpu();
    assert_true(train(backend, "signals") != 0);
    dr_backend_close(backend);
    sigprocmask(SIG_SETMASK, NULL, &blocked_after);
    for (int i = 1; i < SIGNALS; i++) {
        if (sigaction(i, NULL, &after) != 0) continue;
        assert_true(after.sa_handler == before[i].sa_handler);
        assert_int_equal(sigismember(&blocked_after, i), sigismember(&blocked_before, i));
    }
}

/* A forward and a backward leave errno as it was; functions that open, write and read files may set it. On AArch64 gcc's OpenMP
 * sets errno when its threads wait, so that the test is skipped there. */
static void computing_leaves_errno(void **unused) {
    (void)unused;
#ifdef __aarch64__
    print_message("skipped: gcc's OpenMP sets errno when its threads wait on this processor\n");
    skip();
#endif
    dr_backend *backend = open_cpu();
    dr_model *model = NULL;
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = 64;
    config.hidden = 64;
    config.layers = 1;
    int32_t ids[256];
    double loss;
    for (int i = 0; i < 256; i++) ids[i] = i % 64;
    const dr_batch batch = {.layout = {.sequences = 2, .rows = 256}, .ids = ids, .targets = 256, .labels = ids};
    assert_int_equal(dr_model_create(backend, &config, 1, &model), DR_OK);
    for (int i = 0; i < 2; i++) {
        errno = EXDEV;
        assert_int_equal(learner_gradient(model, &batch, 1, &loss, NULL), DR_OK);
        assert_int_equal(errno, EXDEV);
    }
    learner_destroy(model);
    dr_backend_close(backend);
}

static int begin(void **unused) {
    (void)unused;
    return mkdtemp(folder) ? 0 : -1;
}

static int forget(const char *path, const struct stat *facts, int kind, struct FTW *where) {
    (void)facts, (void)kind, (void)where;
    return remove(path);
}

static int end(void **unused) {
    (void)unused;
    return nftw(folder, forget, 8, FTW_DEPTH | FTW_PHYS);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_child_trains_as_its_parent), cmocka_unit_test(signals_stay_the_hosts),
                                       cmocka_unit_test(computing_leaves_errno)};
    return cmocka_run_group_tests(tests, begin, end);
}
