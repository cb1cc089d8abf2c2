/* One request over HTTP, as the functions that answer it see it. */
#ifndef DR_SERVE_HTTP_H
#define DR_SERVE_HTTP_H

#include "serve/server.h"

#include <jansson.h>
#include <microhttpd.h>

typedef struct {
    dr_server *server;
    struct MHD_Connection *connection;
    char method[12], path[256], client[64];
    char *body; /* [bytes] */
    size_t bytes, room;
    int status;     /* of the response; set where it is queued early */
    bool too_large; /* the body is longer than it may be: the rest is thrown away */
    bool counted;   /* among the active ones */
    int64_t number; /* of all requests */
    void *stream;   /* what a stream is made from, until the request ends */
    void (*end_stream)(void *stream);
    double began_at; /* clocks */
    /* for the log */
    int64_t prompt_tokens, cached_tokens, answer_tokens;
    const char *store; /* of the first sequence: dr_part.store */
    double first_at;   /* 0: no token came */
} dr_exchange;

/* Sends a response, which is given up; NULL: there was no memory for it. */
enum MHD_Result dr_http_queue(dr_exchange *exchange, int status, const char *type, struct MHD_Response *response);
/* Sends a text; it is freed with free(). */
enum MHD_Result dr_http_send(dr_exchange *exchange, int status, const char *type, char *text, size_t bytes);
/* Sends text that lives as long as the program. */
enum MHD_Result dr_http_send_constant(dr_exchange *exchange, int status, const char *type, const char *text);
/* Sends {"error": ...}; param and code may be NULL. */
enum MHD_Result dr_http_send_error(dr_exchange *exchange, int status, const char *message, const char *param, const char *code);
/* Sends a JSON value, which is given up; NULL: there was no memory for it. */
enum MHD_Result dr_http_send_json(dr_exchange *exchange, json_t *json);
/* Sends an error for the last failure of the library: 400 for what the client can mend, 503 without memory, else 500. */
enum MHD_Result dr_http_send_failure(dr_exchange *exchange, dr_status status, const char *param);

/* While a request is computed its connection may be silent. */
void dr_http_silence(dr_exchange *exchange, bool allowed);
/* Whether the client closed the connection. */
bool dr_http_gone(const dr_exchange *exchange);

/* Those that answer: complete.c, embed.c, and models.c for what needs no computation. */
enum MHD_Result dr_answer_completion(dr_exchange *exchange);
enum MHD_Result dr_answer_chat(dr_exchange *exchange);
enum MHD_Result dr_answer_embedding(dr_exchange *exchange);
enum MHD_Result dr_answer_health(dr_exchange *exchange);
enum MHD_Result dr_answer_page(dr_exchange *exchange);
enum MHD_Result dr_answer_models(dr_exchange *exchange);
enum MHD_Result dr_answer_model(dr_exchange *exchange);
enum MHD_Result dr_answer_metrics(dr_exchange *exchange);
enum MHD_Result dr_answer_tokenize(dr_exchange *exchange);
enum MHD_Result dr_answer_detokenize(dr_exchange *exchange);
enum MHD_Result dr_answer_tokenizer_info(dr_exchange *exchange);

#endif
