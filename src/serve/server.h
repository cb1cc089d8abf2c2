/* The server as its files see it. */
#ifndef DR_SERVE_SERVER_H
#define DR_SERVE_SERVER_H

#include "serve/served.h"
#include "serve/watch.h"

#include <stdbool.h>

struct dr_server {
    dr_serve_options options;
    dr_metrics *metrics;
    dr_watch *watch;
    void *daemon; /* struct MHD_Daemon */
    int port;
    pthread_mutex_t lock;     /* guards what follows */
    pthread_cond_t released;  /* a request let go of its model, or ended */
    dr_served **served;       /* [options.model_count] */
    int64_t active, requests; /* requests that are answered now; all that there were */
    bool stopping;
};

/* The model of this name, NULL: the first; held until it is released. NULL: there is none. */
dr_served *dr_server_acquire(dr_server *server, const char *name);
void dr_server_release(dr_server *server, dr_served *served);

/* http.c */
dr_status dr_http_start(dr_server *server);
void dr_http_quiesce(dr_server *server); /* no new connections */
void dr_http_stop(dr_server *server);

#endif
