/* A model that is served: what was read from its folder, and the scheduler that computes with it. */
#ifndef DR_SERVE_SERVED_H
#define DR_SERVE_SERVED_H

#include "serve/calls.h"
#include "serve/scheduler.h"
#include "serve/serve.h"

#include <deltarule/chat.h>

typedef struct {
    char *name, *folder;
    dr_model *model;
    dr_tokenizer *tokenizer;
    dr_chat *chat;       /* NULL: it has no template */
    dr_call_form *calls; /* how it writes calls of tools; NULL: it does not, or in a form that is not known */
    int64_t created;     /* seconds since 1970 */
    dr_scheduler *scheduler;
    int64_t users; /* requests that hold it; the server's lock guards this */
} dr_served;

/* Loads a model: "NAME=FOLDER", or a folder whose last part is the name. */
dr_status dr_served_load(const dr_serve_options *options, const char *model, dr_metrics *metrics, dr_served **served);
/* Finishes what was submitted, then frees; NULL is allowed. */
void dr_served_destroy(dr_served *served);

/* DR_ERROR_FORMAT where an id is not one of the model's. */
dr_status dr_served_check_ids(const dr_served *served, const int32_t *ids, int64_t count);

/* The text of ids with special tokens, broken characters as U+FFFD. Free *text with dr_release. */
dr_status dr_served_decode(const dr_served *served, const int32_t *ids, int64_t count, char **text, size_t *bytes);

#endif
