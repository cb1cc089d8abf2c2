/* Work that several threads share, each with the backends of one GPU opened for itself. */
#include "suites.h"

#include <math.h>
#include <pthread.h>

typedef struct {
    pthread_t thread;
    void (*take)(gpu *own, void *context);
    void *context;
    gpu own;
} worker;

static void *run(void *given) {
    worker *w = given;
    w->take(&w->own, w->context);
    return NULL;
}

static void add_counts(gpu *sum, const gpu *g) {
    sum->checks += g->checks;
    sum->refused += g->refused;
    for (int i = 0; i < 3; i++) sum->worst[i] = fmax(sum->worst[i], g->worst[i]);
}

bool gpu_share(gpu *g, void (*take)(gpu *own, void *context), void *context, fault *what) {
    worker workers[MOST_WORKERS] = {0};
    int opened = 0, started = 0;
    bool holds = true;
    for (; opened < g->threads && holds; opened++) {
        workers[opened] = (worker){.take = take, .context = context, .own = {.reference = g->reference, .device = g->device}};
        holds = gpu_open(&workers[opened].own, what);
    }
    trial_draw(1); /* counts the options of all axes, which threads then read */
    while (started < opened && holds)
        if (pthread_create(&workers[started].thread, NULL, run, &workers[started]) == 0)
            started++;
        else
            holds = fault_is(what, "no thread could be started");
    for (int i = 0; i < started; i++) pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < opened; i++) {
        add_counts(g, &workers[i].own);
        gpu_close(&workers[i].own);
    }
    return holds;
}
