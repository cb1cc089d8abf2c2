/* Each thread takes the next task until there is none. A task that fails stops the taking: those before it were taken and run
 * to their end, so the least one that fails is the same in every run. */
#include "base/tasks.h"

#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

enum { MOST_THREADS = 64, MESSAGE_BYTES = 1024 };

typedef struct {
    dr_task task;
    void *context;
    int64_t count;
    _Atomic int64_t next;
    atomic_bool failed;
    pthread_mutex_t lock; /* of what follows */
    int64_t first;        /* task that failed */
    dr_status status;
    char message[MESSAGE_BYTES];
} work;

static void note_failure(work *w, int64_t index, dr_status status) {
    atomic_store(&w->failed, true);
    pthread_mutex_lock(&w->lock);
    if (w->status == DR_OK || index < w->first) {
        w->first = index;
        w->status = status;
        snprintf(w->message, sizeof w->message, "%s", dr_last_error());
    }
    pthread_mutex_unlock(&w->lock);
}

static void *run(void *context) {
    work *w = context;
    while (!atomic_load(&w->failed)) {
        const int64_t index = atomic_fetch_add(&w->next, 1);
        if (index >= w->count) break;
        const dr_status status = w->task(w->context, index);
        if (status != DR_OK) note_failure(w, index, status);
    }
    return NULL;
}

dr_status dr_run_tasks(int threads, int64_t count, void *context, dr_task task) {
    work w = {.task = task, .context = context, .count = count, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t made[MOST_THREADS];
    const int64_t wanted = threads < count ? threads : count;
    int others = 0;
    while (others + 1 < wanted && others < MOST_THREADS && pthread_create(&made[others], NULL, run, &w) == 0) others++;
    run(&w);
    for (int i = 0; i < others; i++) pthread_join(made[i], NULL);
    return w.status == DR_OK ? DR_OK : dr_fail(w.status, "%s", w.message);
}
