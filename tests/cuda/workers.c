/* Cases that several threads share, each with the backends of one GPU opened for itself. */
#include "suites.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

/* Cases are taken in order; those that do not hold are printed, and the others go on until so many have failed. */
enum { MOST_FAILED = 40 };

typedef struct {
    bool (*holds)(gpu *own, uint64_t n, void *context, fault *what);
    void *context;
    uint64_t last;
    atomic_uint_fast64_t next, failed;
} case_queue;

typedef struct {
    pthread_t thread;
    case_queue *queue;
    gpu own;
} worker;

static void *run(void *given) {
    worker *w = given;
    case_queue *queue = w->queue;
    for (uint64_t n; (n = atomic_fetch_add(&queue->next, 1)) <= queue->last && atomic_load(&queue->failed) < MOST_FAILED;) {
        fault what = {""};
        if (queue->holds(&w->own, n, queue->context, &what)) continue;
        atomic_fetch_add(&queue->failed, 1);
        printf("case %llu: %s\n", (unsigned long long)n, what.text[0] ? what.text : dr_last_error());
        fflush(stdout);
    }
    return NULL;
}

static void add_counts(gpu *sum, const gpu *g) {
    sum->checks += g->checks;
    sum->refused += g->refused;
    for (int i = 0; i < 3; i++) sum->worst[i] = fmax(sum->worst[i], g->worst[i]);
}

bool gpu_share(gpu *g, uint64_t first, uint64_t last, bool (*holds)(gpu *own, uint64_t n, void *context, fault *what),
               void *context, fault *what) {
    worker workers[MOST_WORKERS] = {0};
    case_queue queue = {.holds = holds, .context = context, .last = last, .next = first};
    int opened = 0, started = 0;
    bool ready = true;
    for (; opened < g->threads && ready; opened++) {
        workers[opened] = (worker){.queue = &queue, .own = {.reference = g->reference, .device = g->device, .brief = g->brief}};
        ready = gpu_open(&workers[opened].own, what);
    }
    trial_draw(1); /* counts the options of all axes, which threads then read */
    while (started < opened && ready)
        if (pthread_create(&workers[started].thread, NULL, run, &workers[started]) == 0)
            started++;
        else
            ready = fault_is(what, "no thread could be started");
    for (int i = 0; i < started; i++) pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < opened; i++) {
        add_counts(g, &workers[i].own);
        gpu_close(&workers[i].own);
    }
    const unsigned long long failed = atomic_load(&queue.failed);
    return ready && (failed == 0 || fault_is(what, "%llu cases do not hold, above%s", failed,
                                             failed >= MOST_FAILED ? "; others were not tried" : ""));
}
