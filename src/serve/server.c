/* Models are held by the requests that use them, so that they can be replaced while requests run: whoever replaces them waits
 * until nobody holds the old ones. */
#include "serve/server.h"

#include "base/error.h"
#include "base/memory.h"

#include <string.h>

dr_served *dr_server_acquire(dr_server *server, const char *name) {
    dr_served *found = NULL;
    pthread_mutex_lock(&server->lock);
    for (int64_t i = 0; i < server->options.model_count && !found; i++)
        if (!name || strcmp(server->served[i]->name, name) == 0) found = server->served[i];
    if (found) found->users++;
    pthread_mutex_unlock(&server->lock);
    return found;
}

void dr_server_release(dr_server *server, dr_served *served) {
    if (!served) return;
    pthread_mutex_lock(&server->lock);
    served->users--;
    pthread_cond_broadcast(&server->released);
    pthread_mutex_unlock(&server->lock);
}

/* Frees a list of models, each once nobody holds it. */
static void destroy_models(dr_server *server, dr_served **models) {
    for (int64_t i = 0; models && i < server->options.model_count; i++) {
        if (!models[i]) continue;
        pthread_mutex_lock(&server->lock);
        while (models[i]->users > 0) pthread_cond_wait(&server->released, &server->lock);
        pthread_mutex_unlock(&server->lock);
        dr_served_destroy(models[i]);
    }
    dr_release(models);
}

static dr_status load_models(dr_server *server, dr_served ***models) {
    void *memory;
    const int64_t count = server->options.model_count;
    DR_TRY(dr_allocate_zero((size_t)count * sizeof(dr_served *), "the models", &memory));
    dr_served **made = memory;
    dr_status status = DR_OK;
    for (int64_t i = 0; i < count && status == DR_OK; i++) {
        status = dr_served_load(&server->options, server->options.models[i], server->metrics, &made[i]);
        for (int64_t j = 0; j < i && status == DR_OK; j++)
            if (strcmp(made[i]->name, made[j]->name) == 0)
                status =
                    dr_fail(DR_ERROR_ARGUMENT, "two models are named \"%s\": name one otherwise, NAME=FOLDER", made[i]->name);
    }
    if (status != DR_OK)
        destroy_models(server, made);
    else
        *models = made;
    return status;
}

static dr_status start(dr_server *server) {
    DR_TRY(dr_metrics_create(&server->metrics));
    dr_metrics_set(server->metrics, DR_GAUGE_SLOTS, server->options.slots * server->options.model_count);
    DR_TRY(load_models(server, &server->served));
    DR_TRY(dr_watch_create(server->options.client_seconds, server->options.request_seconds, server->metrics, &server->watch));
    return dr_http_start(server);
}

dr_status dr_server_start(const dr_serve_options *options, dr_server **server) {
    void *memory;
    DR_TRY(dr_allocate_zero(sizeof(dr_server), "a server", &memory));
    dr_server *made = memory;
    made->options = *options;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->released, NULL);
    dr_status status = start(made);
    if (status != DR_OK)
        dr_server_stop(made);
    else
        *server = made;
    return status;
}

int dr_server_port(const dr_server *server) {
    return server->port;
}

dr_status dr_server_reload(dr_server *server) {
    dr_served **models, **old;
    DR_TRY(load_models(server, &models));
    pthread_mutex_lock(&server->lock);
    old = server->served;
    server->served = models;
    pthread_mutex_unlock(&server->lock);
    destroy_models(server, old);
    dr_metrics_add(server->metrics, DR_COUNTER_RELOADS, 1);
    return DR_OK;
}

void dr_server_stop(dr_server *server) {
    if (!server) return;
    dr_http_quiesce(server);
    pthread_mutex_lock(&server->lock);
    server->stopping = true;
    while (server->active > 0) pthread_cond_wait(&server->released, &server->lock);
    pthread_mutex_unlock(&server->lock);
    dr_http_stop(server);
    dr_watch_destroy(server->watch);
    destroy_models(server, server->served);
    dr_metrics_destroy(server->metrics);
    pthread_cond_destroy(&server->released);
    pthread_mutex_destroy(&server->lock);
    dr_release(server);
}
