/* Opens plug-ins that hold the library (the archive within them, or the shared library beside them), computes on several
 * threads, closes them and goes on. Usage: closing PLUGIN... */
#include <dirent.h>
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void do_nothing(int signal) {
    (void)signal;
}

/* Wakes every thread of the process: one that waits in code that is gone ends the process. */
static void wake_threads(void) {
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = do_nothing}, NULL);
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *thread; threads && (thread = readdir(threads));)
        if (atoi(thread->d_name) > 0) syscall(SYS_tgkill, getpid(), atoi(thread->d_name), SIGUSR1);
    if (threads) closedir(threads);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

static uint64_t open_work_and_close(const char *plugin) {
    void *handle = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        return 0;
    }
    uint64_t (*work)(int threads);
    *(void **)&work = dlsym(handle, "work_on_threads");
    const uint64_t digest = work ? work(4) : 0;
    if (chdir("/") != 0 || dlclose(handle) != 0) return 0;
    wake_threads();
    return digest;
}

/* in a thread that ends, and its team with it */
static void *in_thread(void *plugin) {
    static uint64_t digest;
    digest = open_work_and_close(plugin);
    return &digest;
}

int main(int count, char **plugins) {
    uint64_t first = 0;
    for (int i = 1; i < count; i++) {
        char folder[PATH_MAX], relative[PATH_MAX + 2];
        snprintf(folder, sizeof folder, "%s", plugins[i]);
        snprintf(relative, sizeof relative, "./%s", strrchr(plugins[i], '/') + 1);
        for (int round = 0; round < 5; round++) {
            /* by a name that means nothing once the folder is another */
            if (chdir(dirname(folder)) != 0) return 1;
            uint64_t digest;
            pthread_t thread;
            void *result;
            if (round % 2 == 0) {
                digest = open_work_and_close(round < 2 ? relative : plugins[i]);
            } else {
                if (pthread_create(&thread, NULL, in_thread, plugins[i]) || pthread_join(thread, &result)) return 1;
                digest = *(uint64_t *)result;
            }
            if (first == 0) first = digest;
            if (digest == 0 || digest != first) {
                fprintf(stderr, "%s: wrong in round %d\n", plugins[i], round);
                return 1;
            }
        }
    }
    return first == 0;
}
