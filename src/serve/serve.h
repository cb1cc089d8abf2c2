/* A server of models over HTTP, with the requests and responses of OpenAI's interface.
 *
 * It belongs to the command, not to the library: it needs libmicrohttpd, and without it each of these functions says so. */
#ifndef DR_SERVE_SERVE_H
#define DR_SERVE_SERVE_H

#include <deltarule/backend.h>
#include <stdio.h>

typedef struct {
    dr_backend *backend;       /* outlives the server */
    const char *const *models; /* [model_count] "FOLDER" or "NAME=FOLDER"; like all texts here they outlive the server */
    int64_t model_count;
    const char *tokenizer;    /* NULL: that of each model's folder */
    const char *host;         /* a numeric address or "localhost" */
    int port;                 /* 0: any that is free */
    const char *api_key;      /* NULL: none is needed */
    int64_t slots;            /* sequences of a model that are computed at once */
    int64_t queue;            /* sequences of a model that may wait */
    int64_t context;          /* tokens of a prompt and its answer */
    int64_t body_bytes;       /* of a request */
    int64_t connections;      /* at once */
    int64_t store_bytes;      /* of kept states, for each model */
    const char *state_folder; /* where kept states are files too, of all models; NULL: nowhere */
    int64_t folder_bytes;     /* of a model's files there */
    double request_seconds;   /* a request may take */
    double client_seconds;    /* a client may be silent, or take for the head of a request */
    FILE *log;                /* a line for each request; NULL: none */
} dr_serve_options;

typedef struct dr_server dr_server;

/* Loads the models and listens. Threads are made here, which inherit the blocked signals of the caller. DR_ERROR_UNSUPPORTED
 * where the build has no HTTP. */
dr_status dr_server_start(const dr_serve_options *options, dr_server **server);
int dr_server_port(const dr_server *server);
/* Reads all models anew; requests that have begun end with the old ones. On failure the old ones stay. */
dr_status dr_server_reload(dr_server *server);
/* Takes no more requests, finishes those that have begun, and frees; NULL is allowed. */
void dr_server_stop(dr_server *server);

#endif
