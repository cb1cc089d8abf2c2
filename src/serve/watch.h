/* Clocks of connections. An HTTP library that closes silent connections keeps one that says a byte now and then for ever; so
 * each connection has a time until which it must be further, and is shut down when that is over. */
#ifndef DR_SERVE_WATCH_H
#define DR_SERVE_WATCH_H

#include "serve/metrics.h"

#include <deltarule/status.h>
#include <stdint.h>

typedef struct dr_watch dr_watch;
typedef struct dr_watched dr_watched; /* a connection */

/* Starts a thread that looks every second, or more often where clients have less time than some seconds. */
dr_status dr_watch_create(double client_seconds, double request_seconds, dr_metrics *metrics, dr_watch **watch);
void dr_watch_destroy(dr_watch *watch); /* NULL is allowed */

/* A new connection, by its socket, which must be open until it is removed; NULL without memory. It has client_seconds for the
 * head of a request. The functions below take that NULL. */
dr_watched *dr_watch_add(dr_watch *watch, int socket);
void dr_watch_remove(dr_watch *watch, dr_watched *watched);

/* The head is there: the body has client_seconds, and a second more for each KiB that comes. */
void dr_watch_head(dr_watch *watch, dr_watched *watched);
void dr_watch_body(dr_watch *watch, dr_watched *watched, size_t bytes);
/* The request is there: it has request_seconds to be answered, and client_seconds more for the rest of the answer to be read.
 */
void dr_watch_request(dr_watch *watch, dr_watched *watched);
/* It is answered. The library closes the connection after client_seconds of silence, and a next head has as many. */
void dr_watch_answered(dr_watch *watch, dr_watched *watched);

#endif
