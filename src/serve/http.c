/* HTTP by libmicrohttpd, a thread for each connection: a thread may wait for the scheduler, and what answers a request reads
 * from top to bottom. Connections are limited, so threads are too.
 *
 * A request comes in pieces: its head, its body, its end. It is refused at its head where that can be told already (no key, no
 * such path, a body that says it is too long), so that nobody sends a body for nothing. */
#include "serve/http.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/utf8.h"
#include "serve/reply.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct route {
    const char *method, *path;
    enum MHD_Result (*answer)(dr_exchange *exchange);
    bool open; /* needs no key */
} routes[] = {
    /* a path that ends with / goes on, but for the first */
    {"GET", "/", dr_answer_page, true},
    {"GET", "/health", dr_answer_health, true},
    {"GET", "/metrics", dr_answer_metrics, false},
    {"GET", "/v1/models", dr_answer_models, false},
    {"GET", "/v1/models/", dr_answer_model, false},
    {"POST", "/v1/completions", dr_answer_completion, false},
    {"POST", "/v1/chat/completions", dr_answer_chat, false},
    {"POST", "/v1/embeddings", dr_answer_embedding, false},
    {"POST", "/tokenize", dr_answer_tokenize, false},
    {"POST", "/detokenize", dr_answer_detokenize, false},
    {"GET", "/tokenizer_info", dr_answer_tokenizer_info, false},
};
enum { ROUTES = sizeof routes / sizeof *routes };

/* ---- responses ---- */

enum MHD_Result dr_http_queue(dr_exchange *exchange, int status, const char *type, struct MHD_Response *response) {
    if (!response) return MHD_NO;
    exchange->status = status;
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (status == 401) MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (status == 429 || status == 503) MHD_add_response_header(response, "Retry-After", "1");
    enum MHD_Result result = MHD_queue_response(exchange->connection, (unsigned)status, response);
    MHD_destroy_response(response);
    return result;
}

enum MHD_Result dr_http_send(dr_exchange *exchange, int status, const char *type, char *text, size_t bytes) {
    return dr_http_queue(exchange, status, type, MHD_create_response_from_buffer(bytes, text, MHD_RESPMEM_MUST_FREE));
}

enum MHD_Result dr_http_send_constant(dr_exchange *exchange, int status, const char *type, const char *text) {
    return dr_http_queue(exchange, status, type,
                         MHD_create_response_from_buffer(strlen(text), (void *)text, MHD_RESPMEM_PERSISTENT));
}

enum MHD_Result dr_http_send_error(dr_exchange *exchange, int status, const char *message, const char *param,
                                   const char *code) {
    char *text = dr_reply_error(status, message, param, code);
    return text ? dr_http_send(exchange, status, "application/json", text, strlen(text)) : MHD_NO;
}

enum MHD_Result dr_http_send_failure(dr_exchange *exchange, dr_status status, const char *param) {
    const bool mendable = status == DR_ERROR_ARGUMENT || status == DR_ERROR_FORMAT || status == DR_ERROR_UNSUPPORTED;
    return dr_http_send_error(exchange, mendable ? 400 : status == DR_ERROR_MEMORY ? 503 : 500, dr_last_error(), param, NULL);
}

enum MHD_Result dr_http_send_json(dr_exchange *exchange, json_t *json) {
    char *text = json ? dr_json_format(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (!text) return dr_http_send_error(exchange, 503, "no memory for the response", NULL, NULL);
    return dr_http_send(exchange, 200, "application/json", text, strlen(text));
}

void dr_http_silence(dr_exchange *exchange, bool allowed) {
    const double seconds = exchange->server->options.client_seconds;
    MHD_set_connection_option(exchange->connection, MHD_CONNECTION_OPTION_TIMEOUT, allowed ? 0u : (unsigned)seconds);
}

bool dr_http_gone(const dr_exchange *exchange) {
    char byte;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(exchange->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info) return false;
    const ssize_t count = recv(info->connect_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* ---- requests ---- */

static void name_client(dr_exchange *exchange) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(exchange->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *address = info ? info->client_addr : NULL;
    const void *number = !address                        ? NULL
                         : address->sa_family == AF_INET ? (const void *)&((const struct sockaddr_in *)address)->sin_addr
                                                         : (const void *)&((const struct sockaddr_in6 *)address)->sin6_addr;
    if (!number || !inet_ntop(address->sa_family, number, exchange->client, sizeof exchange->client)) exchange->client[0] = 0;
}

static dr_exchange *open_exchange(dr_server *server, struct MHD_Connection *connection, const char *path, const char *method) {
    void *memory;
    if (dr_allocate_zero(sizeof(dr_exchange), "a request", &memory) != DR_OK) return NULL;
    dr_exchange *exchange = memory;
    exchange->server = server;
    exchange->connection = connection;
    exchange->began_at = dr_clock_now();
    dr_printable(path, exchange->path, sizeof exchange->path);
    dr_printable(method, exchange->method, sizeof exchange->method);
    name_client(exchange);
    return exchange;
}

/* Compares in a time that does not tell how much of the key is right. */
static bool same_key(const char *given, const char *key) {
    const size_t given_bytes = strlen(given), key_bytes = strlen(key);
    unsigned difference = given_bytes != key_bytes;
    for (size_t i = 0; i < given_bytes; i++) difference |= (unsigned)(given[i] ^ key[key_bytes > 0 ? i % key_bytes : 0]);
    return difference == 0;
}

static bool has_key(const dr_exchange *exchange) {
    static const char scheme[] = "Bearer ";
    const char *key = exchange->server->options.api_key;
    const char *given = MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND, "Authorization");
    if (!key) return true;
    return given && strncmp(given, scheme, sizeof scheme - 1) == 0 && same_key(given + sizeof scheme - 1, key);
}

static bool leads_to(const struct route *route, const char *path) {
    const size_t bytes = strlen(route->path);
    const bool goes_on = bytes > 1 && route->path[bytes - 1] == '/';
    return goes_on ? strncmp(path, route->path, bytes) == 0 && path[bytes] : strcmp(path, route->path) == 0;
}

static const struct route *find_route(const char *path, const char *method, bool *known) {
    *known = false;
    if (strcmp(method, "HEAD") == 0) method = "GET";
    for (int i = 0; i < ROUTES; i++) {
        if (!leads_to(&routes[i], path)) continue;
        *known = true;
        if (strcmp(routes[i].method, method) == 0) return &routes[i];
    }
    return NULL;
}

enum { MOST_PASSED_OVER = 64 << 20 }; /* bytes of a body beyond the limit that are read and dropped */

static enum MHD_Result refuse_large(dr_exchange *exchange) {
    char message[128];
    snprintf(message, sizeof message, "the request's body is too long: at most %lld bytes are read",
             (long long)exchange->server->options.body_bytes);
    return dr_http_send_error(exchange, 413, message, NULL, NULL);
}

/* What can be refused before the body is read; *route NULL: it was. */
static enum MHD_Result check_head(dr_exchange *exchange, const char *path, const char *method, const struct route **route) {
    char message[400];
    bool known;
    const struct route *found = find_route(path, method, &known);
    *route = NULL;
    if (!known) {
        snprintf(message, sizeof message, "there is nothing at %s", exchange->path);
        return dr_http_send_error(exchange, 404, message, NULL, NULL);
    }
    if (!found) {
        snprintf(message, sizeof message, "%s cannot be used with the method %s", exchange->path, exchange->method);
        return dr_http_send_error(exchange, 405, message, NULL, NULL);
    }
    if (!found->open && !has_key(exchange))
        return dr_http_send_error(exchange, 401, "the API key is missing or wrong: send the header Authorization: Bearer KEY",
                                  NULL, "invalid_api_key");
    const char *length = MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND, "Content-Length");
    int64_t bytes = 0;
    const int64_t most = exchange->server->options.body_bytes;
    if (length && dr_integer_parse(length, &bytes) && bytes > most) {
        if (bytes - most > MOST_PASSED_OVER) return refuse_large(exchange);
        exchange->too_large = true; /* refused behind the body: many a client reads no answer before it has sent all */
    }
    *route = found;
    return MHD_YES;
}

static void take_body(dr_exchange *exchange, const char *data, size_t bytes) {
    const size_t most = (size_t)exchange->server->options.body_bytes, needed = exchange->bytes + bytes;
    if (exchange->too_large) return;
    if (needed > most) {
        exchange->too_large = true;
        return;
    }
    if (needed > exchange->room) {
        void *memory = exchange->body;
        const size_t room = 2 * needed < most ? 2 * needed : most;
        dr_status status = memory ? dr_resize(&memory, exchange->room, room, "a request's body")
                                  : dr_allocate(room, "a request's body", &memory);
        exchange->too_large = status != DR_OK;
        if (status != DR_OK) return;
        exchange->body = memory;
        exchange->room = room;
    }
    memcpy(exchange->body + exchange->bytes, data, bytes);
    exchange->bytes = needed;
}

/* Counts a request among those that the end of the server waits for; false: it is ending. */
static bool enter(dr_exchange *exchange) {
    dr_server *server = exchange->server;
    pthread_mutex_lock(&server->lock);
    exchange->counted = !server->stopping;
    exchange->number = ++server->requests;
    if (exchange->counted) server->active++;
    pthread_mutex_unlock(&server->lock);
    return exchange->counted;
}

static dr_watched *clock_of(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *path, const char *method,
                                  const char *version, const char *data, size_t *bytes, void **place) {
    dr_exchange *exchange = *place;
    dr_server *server = context;
    const struct route *route;
    bool known;
    (void)version;
    if (!exchange) {
        dr_watch_head(server->watch, clock_of(connection));
        exchange = *place = open_exchange(server, connection, path, method);
        return exchange ? check_head(exchange, path, method, &route) : MHD_NO;
    }
    if (*bytes > 0) {
        dr_watch_body(server->watch, clock_of(connection), *bytes);
        take_body(exchange, data, *bytes);
        *bytes = 0;
        return MHD_YES;
    }
    dr_watch_request(server->watch, clock_of(connection));
    if (exchange->too_large) return refuse_large(exchange);
    if (!enter(exchange)) return dr_http_send_error(exchange, 503, "the server is stopping", NULL, NULL);
    dr_http_silence(exchange, true);
    enum MHD_Result result = find_route(path, method, &known)->answer(exchange);
    dr_http_silence(exchange, false);
    return result;
}

static void write_log(const dr_exchange *exchange, const char *how) {
    FILE *log = exchange->server->options.log;
    char when[32];
    struct tm parts;
    const time_t now = time(NULL);
    const double seconds = dr_clock_now() - exchange->began_at;
    if (!log) return;
    gmtime_r(&now, &parts);
    dr_format_time(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &parts);
    dr_print(log, "%s %s %s %s %d prompt=%lld cached=%lld store=%s answer=%lld first=%.3f seconds=%.3f%s\n", when,
             exchange->client, exchange->method, exchange->path, exchange->status, (long long)exchange->prompt_tokens,
             (long long)exchange->cached_tokens, exchange->store ? exchange->store : "-", (long long)exchange->answer_tokens,
             exchange->first_at > 0 ? exchange->first_at - exchange->began_at : 0.0, seconds, how);
    fflush(log);
}

static void on_end(void *context, struct MHD_Connection *connection, void **place, enum MHD_RequestTerminationCode how) {
    dr_server *server = context;
    dr_exchange *exchange = *place;
    if (!exchange) return;
    *place = NULL;
    dr_watch_answered(server->watch, clock_of(connection));
    if (exchange->end_stream) exchange->end_stream(exchange->stream);
    if (exchange->status >= 100) dr_metrics_add(server->metrics, DR_COUNTER_STATUS + exchange->status / 100, 1);
    dr_metrics_observe(server->metrics, DR_HISTOGRAM_REQUEST, dr_clock_now() - exchange->began_at);
    write_log(exchange, how == MHD_REQUEST_TERMINATED_COMPLETED_OK ? "" : " (the client went away)");
    const bool counted = exchange->counted;
    dr_release(exchange->body);
    dr_release(exchange);
    if (!counted) return;
    pthread_mutex_lock(&server->lock);
    server->active--;
    pthread_cond_broadcast(&server->released);
    pthread_mutex_unlock(&server->lock);
}

static void on_connection(void *context, struct MHD_Connection *connection, void **place,
                          enum MHD_ConnectionNotificationCode how) {
    dr_server *server = context;
    const bool begins = how == MHD_CONNECTION_NOTIFY_STARTED;
    dr_metrics_change(server->metrics, DR_GAUGE_CONNECTIONS, begins ? 1 : -1);
    const union MHD_ConnectionInfo *info =
        begins ? MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD) : NULL;
    if (info) {
        /* what a client does not take does not stay in the system's memory behind a connection that was closed */
        const unsigned milliseconds = (unsigned)(server->options.client_seconds * 1e3);
        (void)setsockopt(info->connect_fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
        *place = dr_watch_add(server->watch, info->connect_fd);
    }
    if (begins) return;
    dr_watch_remove(server->watch, *place);
    *place = NULL;
}

/* ---- life ---- */

static dr_status read_address(const dr_serve_options *options, struct sockaddr_storage *address) {
    struct sockaddr_in *four = (struct sockaddr_in *)address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)address;
    const char *host = strcmp(options->host, "localhost") == 0 ? "127.0.0.1" : options->host;
    memset(address, 0, sizeof *address);
    if (inet_pton(AF_INET, host, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons((uint16_t)options->port);
        return DR_OK;
    }
    if (inet_pton(AF_INET6, host, &six->sin6_addr) == 1) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons((uint16_t)options->port);
        return DR_OK;
    }
    return dr_fail(DR_ERROR_ARGUMENT, "the host is \"%s\": it must be a numeric address such as 127.0.0.1 or ::1, or localhost",
                   options->host);
}

static void say_nothing(void *context, const char *format, va_list arguments) {
    (void)context;
    (void)format;
    (void)arguments;
}

dr_status dr_http_start(dr_server *server) {
    struct sockaddr_storage address;
    DR_TRY(read_address(&server->options, &address));
    const unsigned six = address.ss_family == AF_INET6 ? MHD_USE_IPv6 : 0;
    errno = 0;
    server->daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL | MHD_USE_ERROR_LOG | MHD_USE_ITC | six,
        0, NULL, NULL, on_request, server, MHD_OPTION_EXTERNAL_LOGGER, say_nothing, NULL, MHD_OPTION_SOCK_ADDR, &address,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)server->options.connections, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)server->options.client_seconds, MHD_OPTION_NOTIFY_COMPLETED, on_end, server, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, server, MHD_OPTION_END);
    if (!server->daemon)
        return dr_fail(DR_ERROR_IO, "cannot listen on %s, port %d: %s", server->options.host, server->options.port,
                       dr_system_text(errno));
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_BIND_PORT);
    server->port = info ? info->port : server->options.port;
    return DR_OK;
}

void dr_http_quiesce(dr_server *server) {
    if (!server->daemon) return;
    const MHD_socket listening = MHD_quiesce_daemon(server->daemon);
    if (listening != MHD_INVALID_SOCKET) close(listening);
}

void dr_http_stop(dr_server *server) {
    if (server->daemon) MHD_stop_daemon(server->daemon);
    server->daemon = NULL;
}
