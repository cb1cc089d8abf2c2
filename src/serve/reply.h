/* Results as the JSON of OpenAI's interface. */
#ifndef DR_SERVE_REPLY_H
#define DR_SERVE_REPLY_H

#include "serve/request.h"
#include "serve/served.h"

#include <stdio.h>

/* What all pieces of a response have in common. */
typedef struct {
    const dr_request *request;
    const dr_served *served;
    dr_job *job;
    dr_decoder *decoder; /* for the texts of single tokens */
    char id[40];
    int64_t created;
} dr_reply;

/* How much of a part has been sent in a stream. */
typedef struct {
    bool begun, ended;
    int64_t records;
    size_t text;
} dr_sent;

/* Release it, also after a failure. number: of the request. */
dr_status dr_reply_create(const dr_request *request, const dr_served *served, dr_job *job, int64_t number, dr_reply *reply);
void dr_reply_release(dr_reply *reply);

/* The response of a job that is done, as text; free it with free(). */
dr_status dr_reply_whole(dr_reply *reply, char **text);
/* The next event of a stream about part i, "data: ...\n\n"; NULL: there is nothing new. The job's lock must be held. Free
 * it with free(). */
dr_status dr_reply_event(dr_reply *reply, int64_t i, dr_sent *sent, char **text);
/* The event with the counts of tokens at the end of a stream. */
dr_status dr_reply_usage_event(dr_reply *reply, char **text);
/* The event that tells of a failure. */
dr_status dr_reply_error_event(const char *message, char **text);

/* {"error": {...}}: param and code may be NULL. NULL: no memory. Free it with free(). */
char *dr_reply_error(int status, const char *message, const char *param, const char *code);

#endif
