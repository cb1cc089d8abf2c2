/* A text that a model has read and made so far: its state, its ids, and the logits of its next token. */
#ifndef DR_GENERATE_CONTEXT_H
#define DR_GENERATE_CONTEXT_H

#include <deltarule/generate.h>

typedef struct {
    const dr_model *model;
    dr_session *session;
    dr_model_state *state;
    float *logits; /* [vocabulary of the model] */
    int32_t *ids;  /* [count] that the state has read */
    int64_t count, room;
} dr_context;

/* Release it, also after a failure. */
dr_status dr_context_create(const dr_model *model, dr_context *context);
void dr_context_release(dr_context *context);
void dr_context_reset(dr_context *context);

/* Reads more ids by the chunkwise engine, at least one. After a failure it must be reset. */
dr_status dr_context_read(dr_context *context, const int32_t *ids, int64_t count);
/* One more id by the decode engine. */
dr_status dr_context_step(dr_context *context, int32_t id);

#endif
