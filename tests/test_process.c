/* The library in a process of its host: forks, threads that cannot be made, and the host's own use of OpenMP. Public headers
 * only: the archive and the shared library each have a program of it. */
#include "process/work.h"

#include <dlfcn.h>
#include <errno.h>
#include <omp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

/* ---- threads, counted and refused ------------------------------------------------------------------------------------ */

static int threads_made, threads_allowed; /* in the process at once; 0: any number */

static int threads_here(void) {
    struct stat threads;
    return stat("/proc/self/task", &threads) ? 0 : (int)threads.st_nlink - 2;
}

/* Before the C library's: the runtime of OpenMP finds this one. */
__attribute__((visibility("default"))) int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                                          void *(*start)(void *), void *argument) {
    static int (*make)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!make)
        make = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
    if (threads_allowed > 0 && threads_here() >= threads_allowed) return EAGAIN;
    __atomic_add_fetch(&threads_made, 1, __ATOMIC_RELAXED);
    return make(thread, attributes, start, argument);
}

/* In a child of its own, so that no test's threads are another's; the test passes if it returns 0. */
static void in_child_of_its_own(int (*work)(void)) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(300); /* what hangs ends */
        _exit(work());
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(WIFSIGNALED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

#define EXPECT(condition)                                                                                                      \
    do {                                                                                                                       \
        if (!(condition)) {                                                                                                    \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, dr_last_error());                   \
            return 1;                                                                                                          \
        }                                                                                                                      \
    } while (0)

static uint64_t expected; /* the work's digest on one thread */

/* ---- fork ------------------------------------------------------------------------------------------------------------ */

enum { FORKS = 100 };

static int wait_for(pid_t child) {
    int status;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return 0;
}

/* A child with its parent's backend, with one of its own, and with a child that has both. */
static int work_in_child(int kind, dr_backend *backend) {
    EXPECT((kind == 1 ? work_on_threads(4) : work_on(backend)) == expected);
    EXPECT(threads_here() == 1);
    if (kind == 2) {
        const pid_t grandchild = fork();
        if (grandchild == 0) _exit(work_on(backend) != expected || work_on_threads(3) != expected);
        return wait_for(grandchild);
    }
    return 0;
}

static int fork_after_threads(void) {
    dr_backend *backend = NULL;
    EXPECT(dr_backend_open("cpu", &(dr_backend_options){.threads = 4}, &backend) == DR_OK);
    EXPECT(work_on(backend) == expected);
    EXPECT(threads_here() == 4);
    for (int i = 0; i < FORKS; i++) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(60);
            _exit(work_in_child(i % 3, backend));
        }
        if (wait_for(child)) return 1;
        if (i % 10 == 0) EXPECT(work_on(backend) == expected);
    }
    EXPECT(threads_here() == 4);
    dr_backend_close(backend);
    return 0;
}

static void children_of_threads_compute_on_one(void **state) {
    (void)state;
    in_child_of_its_own(fork_after_threads);
}

/* A backend that is open has no threads yet: children of a process with one thread make their own. */
static int fork_before_threads(void) {
    dr_backend *backend = NULL;
    EXPECT(dr_backend_open("cpu", &(dr_backend_options){.threads = 4}, &backend) == DR_OK);
    EXPECT(threads_here() == 1);
    for (int i = 0; i < 4; i++) {
        const pid_t child = fork();
        if (child == 0) _exit(work_on(backend) != expected || threads_here() != 4);
        if (wait_for(child)) return 1;
    }
    EXPECT(work_on(backend) == expected);
    EXPECT(threads_here() == 4);
    return 0;
}

static void children_before_threads_make_their_own(void **state) {
    (void)state;
    in_child_of_its_own(fork_before_threads);
}

/* The host's own region leaves threads behind as well. */
static int fork_after_region_of_host(void) {
    int threads = 0;
#pragma omp parallel num_threads(3) reduction(+ : threads)
    threads++;
    EXPECT(threads == 3);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        _exit(work_on_threads(3) != expected);
    }
    return wait_for(child);
}

static void children_of_a_host_with_threads_compute(void **state) {
    (void)state;
    in_child_of_its_own(fork_after_region_of_host);
}

static void *fork_and_wait(void *backend) {
    if (work_on(backend) != expected) return (void *)1;
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        _exit(work_on(backend) != expected);
    }
    return wait_for(child) ? (void *)1 : NULL;
}

/* The thread that forks need not be the one that computed. */
static int fork_from_other_threads(void) {
    dr_backend *backends[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        EXPECT(dr_backend_open("cpu", &(dr_backend_options){.threads = 2}, &backends[i]) == DR_OK);
        EXPECT(pthread_create(&threads[i], NULL, fork_and_wait, backends[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failed = NULL;
        EXPECT(pthread_join(threads[i], &failed) == 0 && !failed);
        dr_backend_close(backends[i]);
    }
    return 0;
}

/* GCC's address sanitizer does not take its allocator's locks around fork: a child made while another thread allocates may wait
 * for such a lock for ever. The test is skipped there; without the sanitizer, malloc is made ready for children by the C
 * library. */
static void children_of_several_threads_compute(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    print_message("the address sanitizer's allocator cannot be used in a child of several running threads\n");
    skip();
#endif
    in_child_of_its_own(fork_from_other_threads);
}

/* ---- threads that cannot be made ------------------------------------------------------------------------------------- */

static int open_with_few_threads(void) {
    for (threads_allowed = 1; threads_allowed < 4; threads_allowed++) {
        dr_backend *backend = NULL;
        char text[64];
        EXPECT(dr_backend_open("cpu", &(dr_backend_options){.threads = 4}, &backend) == DR_ERROR_UNSUPPORTED);
        snprintf(text, sizeof text, "4 threads cannot be made, only %d: %s", threads_allowed, strerror(EAGAIN));
        EXPECT(strstr(dr_last_error(), text) && !backend);
        EXPECT(dr_backend_open("cpu", &(dr_backend_options){.threads = threads_allowed}, &backend) == DR_OK);
        EXPECT(work_on(backend) == expected);
        dr_backend_close(backend);
    }
    return 0;
}

static void a_backend_needs_its_threads(void **state) {
    (void)state;
    in_child_of_its_own(open_with_few_threads);
}

/* Threads that can no longer be made when work begins: it goes on with those that can. */
static int work_with_few_threads(void) {
    dr_backend *backend = NULL;
    EXPECT(dr_backend_open("cpu", &(dr_backend_options){.threads = 4}, &backend) == DR_OK);
    for (int allowed = 1; allowed <= 4; allowed++) {
        const pid_t child = fork();
        if (child == 0) {
            threads_allowed = allowed;
            _exit(work_on(backend) != expected || threads_here() != allowed);
        }
        if (wait_for(child)) return 1;
    }
    dr_backend_close(backend);
    return 0;
}

static void work_goes_on_with_fewer_threads(void **state) {
    (void)state;
    in_child_of_its_own(work_with_few_threads);
}

/* One team of threads for all work of a thread: sizes of regions do not make and end threads. */
static int count_threads(void) {
    dr_backend *backend = NULL;
    EXPECT(dr_backend_open("cpu", &(dr_backend_options){.threads = 4}, &backend) == DR_OK);
    EXPECT(threads_made == 3);
    EXPECT(work_on(backend) == expected && work_on(backend) == expected);
    EXPECT(threads_made == 9);
    dr_backend_close(backend);
    return 0;
}

static void threads_are_made_once(void **state) {
    (void)state;
    threads_made = 0;
    in_child_of_its_own(count_threads);
}

/* ---- numbers of threads ---------------------------------------------------------------------------------------------- */

static void expect_refused(const char *environment, int threads, const char *sentence) {
    dr_backend *backend = NULL;
    if (environment) setenv("OMP_NUM_THREADS", environment, 1);
    assert_int_equal(dr_backend_open("cpu", &(dr_backend_options){.threads = threads}, &backend), DR_ERROR_ARGUMENT);
    if (!strstr(dr_last_error(), sentence)) fail_msg("\"%s\" is not in \"%s\"", sentence, dr_last_error());
    assert_null(backend);
    unsetenv("OMP_NUM_THREADS");
}

static void absurd_numbers_of_threads_are_refused(void **state) {
    (void)state;
    static const char *const wrong[] = {"", "0", "-1", "abc", "4x", "1025", "99999999999999999999", "2,,2", "2,x", " ", "1e3"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) expect_refused(wrong[i], 0, "OMP_NUM_THREADS is \"");
    expect_refused(NULL, -1, "-1 threads: ask for 1 to 1024");
    expect_refused(NULL, 1025, "1025 threads: ask for 1 to 1024");
    expect_refused(NULL, 2147483647, "2147483647 threads: ask for 1 to 1024");
    const int before = omp_get_max_threads();
    omp_set_num_threads(100000);
    expect_refused(NULL, 0, "OpenMP is set to 100000 threads");
    omp_set_num_threads(before);

    static const char *const right[] = {"1", "2", " 3 ", "2,4", "2 , 1024"};
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        dr_backend *backend = NULL;
        setenv("OMP_NUM_THREADS", right[i], 1);
        assert_int_equal(dr_backend_open("cpu", NULL, &backend), DR_OK);
        assert_int_equal(dr_backend_threads(backend), before);
        dr_backend_close(backend);
    }
    setenv("OMP_NUM_THREADS", "abc", 1); /* which nobody asks */
    dr_backend *backend = NULL;
    assert_int_equal(dr_backend_open("cpu", &(dr_backend_options){.threads = 2}, &backend), DR_OK);
    dr_backend_close(backend);
    unsetenv("OMP_NUM_THREADS");
}

/* ---- the host's own OpenMP ------------------------------------------------------------------------------------------- */

static int work_within_regions(void) {
    for (int levels = 1; levels <= 2; levels++) {
        int wrong = 0;
        omp_set_max_active_levels(levels);
#pragma omp parallel num_threads(3) reduction(+ : wrong)
        wrong += work_on_threads(4) != expected;
        EXPECT(wrong == 0);
        EXPECT(threads_here() <= 4);
    }
    return 0;
}

static void a_region_of_the_host_may_call(void **state) {
    (void)state;
    in_child_of_its_own(work_within_regions);
}

static int work_between_settings(void) {
    dr_backend *backend = NULL;
    EXPECT(dr_backend_open("cpu", &(dr_backend_options){.threads = 4}, &backend) == DR_OK);
    for (int i = 0; i < 12; i++) {
        omp_set_num_threads(1 + i % 5);
        omp_set_dynamic(i % 2);
        int threads = 0;
#pragma omp parallel reduction(+ : threads)
        threads++;
        EXPECT(threads >= 1);
        EXPECT(work_on(backend) == expected);
        EXPECT(omp_get_max_threads() == 1 + i % 5 && omp_get_dynamic() == i % 2);
    }
    dr_backend_close(backend);
    return 0;
}

static void the_host_may_change_its_settings(void **state) {
    (void)state;
    in_child_of_its_own(work_between_settings);
}

static int find_expected(void **state) {
    (void)state;
    expected = work_on_threads(1);
    return expected == 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(children_of_threads_compute_on_one),
        cmocka_unit_test(children_before_threads_make_their_own),
        cmocka_unit_test(children_of_a_host_with_threads_compute),
        cmocka_unit_test(children_of_several_threads_compute),
        cmocka_unit_test(a_backend_needs_its_threads),
        cmocka_unit_test(work_goes_on_with_fewer_threads),
        cmocka_unit_test(threads_are_made_once),
        cmocka_unit_test(absurd_numbers_of_threads_are_refused),
        cmocka_unit_test(a_region_of_the_host_may_call),
        cmocka_unit_test(the_host_may_change_its_settings),
    };
    return cmocka_run_group_tests(tests, find_expected, NULL);
}
