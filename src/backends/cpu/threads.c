/* How many threads a parallel region gets, where OpenMP's runtime would hang or end the process.
 *
 * The runtime keeps the threads of a region for the next one. A child of fork has only the thread that forked: a region that
 * waits for the others waits for ever. So a process that is forked while it has several threads leaves children that compute
 * on one. A process with one thread has nothing to lose, and its children may make threads.
 *
 * Where a thread cannot be made, libgomp ends the process. So the threads of a region are made here first, all at once and with
 * the same stacks, and go again before the region makes its own. The runtime ends the threads of a larger region when a smaller
 * one comes, and makes them anew: regions therefore have one thread, which leaves the others waiting, or all of the backend's,
 * and `team` remembers how many the calling thread has made.
 *
 * LLVM's runtime reads the environment when it is first used, and ends the process or makes threads without end where a
 * variable holds what it cannot read. So it is first used here, while such a variable is hidden from it. */
#include "backends/cpu/threads.h"
#include "base/error.h"
#include "base/memory.h"

#include <dlfcn.h>
#include <errno.h>
#include <omp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static bool is_child; /* of a process that had several threads; written only where there is one thread */

static _Thread_local struct {
    int team;          /* threads of the last region of several that this thread opened */
    int most;          /* the most that the system let it make, 0: it has refused none */
    bool leaves_child; /* at a fork: whether the process has several threads */
} own;

/* ---- fork and dlclose ------------------------------------------------------------------------------------------------ */

static void before_fork(void) {
    const int error = errno;
    struct stat threads; /* a folder for each, beside "." and ".." */
    own.leaves_child = stat("/proc/self/task", &threads) != 0 || threads.st_nlink != 3;
    errno = error;
}

static void in_child(void) {
    is_child |= own.leaves_child;
    own.team = own.most = 0;
}

/* The threads that wait for the next region run code of this object, the shared library or a plug-in with the archive in it:
 * it must stay when the host closes it. A program cannot be closed, and dlopen refuses it. */
static void stay_loaded(void) {
    Dl_info object;
    if (dladdr(&is_child, &object) && object.dli_fname) dlopen(object.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

/* Without the handlers, which only a lack of memory prevents, forks are those of an OpenMP program. */
__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(before_fork, NULL, in_child);
}

/* ---- the environment ------------------------------------------------------------------------------------------------- */

/* A list of numbers of threads from 1 to DR_MOST_THREADS. */
static bool counts_are_right(const char *text) {
    for (const char *at = text;; at++) {
        char *end;
        const long number = strtol(at, &end, 10);
        if (end == at || number < 1 || number > DR_MOST_THREADS) return false;
        end += strspn(end, " \t");
        if (*end == '\0') return true;
        if (*end != ',') return false;
        at = end;
    }
}

/* Bytes of a stack: a number, of KiB where no unit follows; 0 where the text is no such number or one beyond memory. */
static size_t bytes_in(const char *text) {
    char *end;
    errno = 0;
    const unsigned long long number = strtoull(text, &end, 10);
    const bool is_number = end != text && errno == 0;
    end += strspn(end, " \t");
    const char *const units = "bBkKmMgG", *unit = strchr(units, *end ? *end : 'k');
    const int shift = unit ? (int)(unit - units) / 2 * 10 : 0;
    return unit && is_number && number <= (SIZE_MAX >> 1) >> shift ? (size_t)number << shift : 0;
}

/* Bytes of a stack as the environment says; 0: it says nothing. */
static size_t stack_bytes(void) {
    const char *text = getenv("OMP_STACKSIZE");
    if (!text) text = getenv("GOMP_STACKSIZE");
    return text ? bytes_in(text) : 0;
}

static bool stack_is_right(const char *text) {
    return bytes_in(text) > 0;
}

/* Processors as "0 2,4-7 8-14:2": numbers, ranges, ranges with a step. */
static bool processors_are_right(const char *text) {
    const char *const digits = "0123456789", *const between = " \t,";
    const char *at = text;
    do {
        const char *const marks = "-:";
        for (int mark = 0;; mark++) {
            const size_t count = strspn(at, digits);
            if (count == 0 || count > 6) return false;
            at += count;
            if (mark == 2 || *at != marks[mark]) break;
            at++;
        }
        const size_t gap = strspn(at, between);
        if (*at && gap == 0) return false;
        at += gap;
    } while (*at);
    return true;
}

/* What LLVM's runtime does not survive, or tells the user in words of its own. */
static const struct {
    const char *name;
    bool (*is_right)(const char *text);
} variables[] = {
    {"OMP_NUM_THREADS", counts_are_right}, {"OMP_STACKSIZE", stack_is_right},           {"GOMP_STACKSIZE", stack_is_right},
    {"KMP_STACKSIZE", stack_is_right},     {"GOMP_CPU_AFFINITY", processors_are_right},
};
enum { VARIABLES = sizeof variables / sizeof *variables };

/* The environment is as it was afterwards. Where nothing is wrong, the runtime is left to start when it likes. */
__attribute__((constructor)) static void start_runtime(void) {
    char *kept[VARIABLES] = {NULL};
    bool is_any_wrong = false;
    for (int i = 0; i < VARIABLES; i++) {
        const char *text = getenv(variables[i].name);
        if (!text || variables[i].is_right(text) || dr_copy_string(text, &kept[i]) != DR_OK) continue;
        unsetenv(variables[i].name);
        is_any_wrong = true;
    }
    if (!is_any_wrong) return;
    omp_get_max_threads();
    for (int i = 0; i < VARIABLES; i++) {
        if (kept[i]) setenv(variables[i].name, kept[i], 1);
        dr_release(kept[i]);
    }
}

/* ---- making threads -------------------------------------------------------------------------------------------------- */

typedef struct {
    pthread_t thread;
    pid_t id;
    pthread_mutex_t *gate; /* closed until all are made */
} trial;

static void *wait_at_gate(void *argument) {
    trial *self = argument;
    self->id = (pid_t)syscall(SYS_gettid);
    pthread_mutex_lock(self->gate);
    pthread_mutex_unlock(self->gate);
    return NULL;
}

/* The system counts a thread for a moment after it was joined. */
static void wait_until_gone(pid_t id) {
    for (int i = 0; i < 2000 && syscall(SYS_tgkill, getpid(), id, 0) == 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

/* Makes `count` threads beside those of the process, all at once, and ends them: how many there were, and why not more. */
static int try_threads(int count, int *error) {
    trial trials[DR_MOST_THREADS];
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_attr_t attributes;
    *error = pthread_attr_init(&attributes);
    if (*error) return 0;
    if (stack_bytes() > 0) pthread_attr_setstacksize(&attributes, stack_bytes());
    int made = 0;
    pthread_mutex_lock(&gate);
    while (made < count) {
        trials[made].gate = &gate;
        *error = pthread_create(&trials[made].thread, &attributes, wait_at_gate, &trials[made]);
        if (*error) break;
        made++;
    }
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < made; i++) pthread_join(trials[i].thread, NULL);
    for (int i = 0; i < made; i++) wait_until_gone(trials[i].id);
    pthread_attr_destroy(&attributes);
    return made;
}

int dr_cpu_team(int most) {
    if (most < 2 || is_child || omp_in_parallel()) return 1;
    if (own.most > 0 && most > own.most) most = own.most;
    if (most > own.team) {
        static pthread_once_t once = PTHREAD_ONCE_INIT;
        pthread_once(&once, stay_loaded);
        int error, before = own.team > 0 ? own.team : 1, made = try_threads(most - before, &error);
        if (made < most - before) most = own.most = before + made;
    }
    if (most > 1) own.team = most;
    return most;
}

/* ---- opening a backend ----------------------------------------------------------------------------------------------- */

static dr_status check_asked(int asked, int *threads) {
    const int limit = omp_get_thread_limit();
    if (asked > limit)
        return dr_fail(DR_ERROR_ARGUMENT, "%d threads: OMP_THREAD_LIMIT allows %d; ask for no more, or raise it", asked, limit);
    *threads = asked;
    if (asked > 0) return DR_OK;

    const char *environment = getenv("OMP_NUM_THREADS");
    if (environment && !counts_are_right(environment))
        return dr_fail(DR_ERROR_ARGUMENT, "OMP_NUM_THREADS is \"%.60s\": set it to a number from 1 to %d, or unset it",
                       environment, DR_MOST_THREADS);
    int told = omp_get_max_threads();
    if (told > DR_MOST_THREADS && told > omp_get_num_procs())
        return dr_fail(DR_ERROR_ARGUMENT, "OpenMP is set to %d threads: set it to 1 to %d, or ask for that many", told,
                       DR_MOST_THREADS);
    if (told > limit) told = limit;
    *threads = told < DR_MOST_THREADS ? told : DR_MOST_THREADS;
    return DR_OK;
}

dr_status dr_cpu_choose_threads(int asked, int *threads) {
    int wanted = 0, error = 0;
    DR_TRY(check_asked(asked, &wanted));
    if (is_child) wanted = 1;
    const int before = own.team > 0 ? own.team : 1, missing = wanted - before;
    const int made = missing > 0 ? try_threads(missing, &error) : 0;
    if (missing > 0 && made < missing)
        return dr_fail(
            DR_ERROR_UNSUPPORTED,
            "%d threads cannot be made, only %d: %s; ask for no more than that (--threads, OMP_NUM_THREADS), or raise "
            "what limits them: processes (ulimit -u, pids.max of a cgroup) or memory (ulimit -v, OMP_STACKSIZE)",
            wanted, before + made, dr_system_text(error));
    own.most = 0;
    *threads = wanted;
    return DR_OK;
}
