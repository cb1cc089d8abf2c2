/* A request that is computed: what it holds while it is answered. */
#ifndef DR_SERVE_COMPLETE_H
#define DR_SERVE_COMPLETE_H

#include "serve/http.h"
#include "serve/reply.h"

typedef struct {
    dr_exchange *exchange;
    dr_request request;
    dr_served *served;
    dr_job *job;
    dr_schema *call; /* where the answer must be a call of a tool */
    bool submitted;
    dr_reply reply;
    dr_sent *sent; /* [parts of the job] of a stream */
    char *pending; /* [pending_bytes] of an event that is being sent, from `taken` on */
    size_t pending_bytes, taken;
    int64_t turn;         /* the part that is looked at next */
    bool counted, closed; /* the counts of tokens were sent; the end was */
} dr_completion;

/* Reads the request, computes it, and sends what `send` makes of the finished job, or a stream where one was asked for. */
enum MHD_Result dr_complete(dr_exchange *exchange, dr_request_kind kind, enum MHD_Result (*send)(dr_completion *completion));

#endif
