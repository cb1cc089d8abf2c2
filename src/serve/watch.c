#include "serve/watch.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <time.h>

static const double bytes_a_second = 1024; /* of a body, beside the seconds that it has in any case */

struct dr_watched {
    int socket;
    double until; /* clock */
    dr_watched *next, *previous;
};

struct dr_watch {
    double client_seconds, request_seconds;
    dr_metrics *metrics;
    pthread_t thread;
    bool started, ending;
    pthread_mutex_t lock; /* guards what follows, `ending` and all connections */
    pthread_cond_t woken; /* on the monotonic clock */
    dr_watched *first;
};

static double pause_of(const dr_watch *watch) {
    return watch->client_seconds < 4 ? watch->client_seconds / 4 : 1;
}

static void shut_down_late(dr_watch *watch) {
    const double now = dr_clock_now();
    for (dr_watched *w = watch->first; w; w = w->next) {
        if (now <= w->until) continue;
        shutdown(w->socket, SHUT_RDWR);
        w->until = HUGE_VAL;
        dr_metrics_add(watch->metrics, DR_COUNTER_SLOW, 1);
    }
}

static void *run(void *context) {
    dr_watch *watch = context;
    const long pause = (long)(pause_of(watch) * 1e9);
    pthread_mutex_lock(&watch->lock);
    while (!watch->ending) {
        struct timespec then;
        clock_gettime(CLOCK_MONOTONIC, &then);
        then.tv_sec += (then.tv_nsec + pause) / 1000000000;
        then.tv_nsec = (then.tv_nsec + pause) % 1000000000;
        pthread_cond_timedwait(&watch->woken, &watch->lock, &then);
        shut_down_late(watch);
    }
    pthread_mutex_unlock(&watch->lock);
    return NULL;
}

dr_status dr_watch_create(double client_seconds, double request_seconds, dr_metrics *metrics, dr_watch **watch) {
    void *memory;
    pthread_condattr_t monotonic;
    DR_TRY(dr_allocate_zero(sizeof(dr_watch), "the clocks of connections", &memory));
    dr_watch *made = memory;
    made->client_seconds = client_seconds, made->request_seconds = request_seconds, made->metrics = metrics;
    pthread_mutex_init(&made->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&made->woken, &monotonic);
    pthread_condattr_destroy(&monotonic);
    made->started = pthread_create(&made->thread, NULL, run, made) == 0;
    if (!made->started) {
        dr_watch_destroy(made);
        return dr_fail(DR_ERROR_MEMORY, "no thread can be made for the clocks of connections");
    }
    *watch = made;
    return DR_OK;
}

void dr_watch_destroy(dr_watch *watch) {
    if (!watch) return;
    pthread_mutex_lock(&watch->lock);
    watch->ending = true;
    pthread_cond_signal(&watch->woken);
    pthread_mutex_unlock(&watch->lock);
    if (watch->started) pthread_join(watch->thread, NULL);
    pthread_cond_destroy(&watch->woken);
    pthread_mutex_destroy(&watch->lock);
    dr_release(watch);
}

dr_watched *dr_watch_add(dr_watch *watch, int socket) {
    void *memory;
    if (dr_allocate_zero(sizeof(dr_watched), "a connection", &memory) != DR_OK) return NULL;
    dr_watched *watched = memory;
    watched->socket = socket;
    watched->until = dr_clock_now() + watch->client_seconds;
    pthread_mutex_lock(&watch->lock);
    watched->next = watch->first;
    if (watched->next) watched->next->previous = watched;
    watch->first = watched;
    pthread_mutex_unlock(&watch->lock);
    return watched;
}

void dr_watch_remove(dr_watch *watch, dr_watched *watched) {
    if (!watched) return;
    pthread_mutex_lock(&watch->lock);
    if (watched->next) watched->next->previous = watched->previous;
    if (watched->previous)
        watched->previous->next = watched->next;
    else
        watch->first = watched->next;
    pthread_mutex_unlock(&watch->lock);
    dr_release(watched);
}

/* It must be further in so many seconds from now. One that was shut down stays so. */
static void set(dr_watch *watch, dr_watched *watched, double seconds) {
    if (!watched) return;
    pthread_mutex_lock(&watch->lock);
    if (isfinite(watched->until)) watched->until = dr_clock_now() + seconds;
    pthread_mutex_unlock(&watch->lock);
}

void dr_watch_head(dr_watch *watch, dr_watched *watched) {
    set(watch, watched, watch->client_seconds);
}

void dr_watch_body(dr_watch *watch, dr_watched *watched, size_t bytes) {
    if (!watched) return;
    pthread_mutex_lock(&watch->lock);
    watched->until += (double)bytes / bytes_a_second;
    pthread_mutex_unlock(&watch->lock);
}

void dr_watch_request(dr_watch *watch, dr_watched *watched) {
    set(watch, watched, watch->request_seconds + watch->client_seconds);
}

void dr_watch_answered(dr_watch *watch, dr_watched *watched) {
    set(watch, watched, 2 * watch->client_seconds);
}
