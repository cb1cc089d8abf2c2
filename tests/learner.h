/* Calls of a model in sessions that last for the call, and one block of gradients kept beside each model: what most tests want.
 * Models that have had a gradient are destroyed with learner_destroy. */
#ifndef DR_TESTS_LEARNER_H
#define DR_TESTS_LEARNER_H

#include <deltarule/model.h>
#include <stdlib.h>

enum { LEARNER_MODELS = 64 };
static struct {
    const dr_model *model;
    void *gradients;
} learner_kept[LEARNER_MODELS];

/* The block, zero at first; NULL if there is no memory. */
static inline void *learner_gradients(const dr_model *model) {
    int free_place = -1;
    for (int i = 0; i < LEARNER_MODELS; i++) {
        if (learner_kept[i].model == model) return learner_kept[i].gradients;
        if (!learner_kept[i].model && free_place < 0) free_place = i;
    }
    if (free_place < 0) abort();
    if (dr_model_gradients_create(model, &learner_kept[free_place].gradients) != DR_OK) return NULL;
    learner_kept[free_place].model = model;
    return learner_kept[free_place].gradients;
}

static inline void learner_destroy(dr_model *model) {
    for (int i = 0; model && i < LEARNER_MODELS; i++) {
        if (learner_kept[i].model != model) continue;
        dr_backend_free(dr_model_backend(model), learner_kept[i].gradients);
        learner_kept[i].model = NULL;
    }
    dr_model_destroy(model);
}

static inline dr_status learner_gradient(const dr_model *model, const dr_batch *batch, double factor, double *loss,
                                         int64_t *hits) {
    dr_session *session = NULL;
    void *gradients = learner_gradients(model);
    dr_status status = gradients ? dr_session_create(model, &session) : DR_ERROR_MEMORY;
    if (status == DR_OK) status = dr_session_gradient(session, batch, factor, gradients, loss, hits);
    dr_session_destroy(session);
    return status;
}

static inline dr_status learner_loss(const dr_model *model, const dr_batch *batch, dr_model_state *state, double *loss,
                                     int64_t *hits, double *per_target, uint8_t *per_hit) {
    dr_session *session = NULL;
    dr_status status = dr_session_create(model, &session);
    if (status == DR_OK) status = dr_session_loss(session, batch, state, loss, hits, per_target, per_hit);
    dr_session_destroy(session);
    return status;
}

static inline dr_status learner_logits(const dr_model *model, const dr_batch *batch, dr_model_state *state, dr_dtype dtype,
                                       void *logits) {
    dr_session *session = NULL;
    dr_status status = dr_session_create(model, &session);
    if (status == DR_OK) status = dr_session_logits(session, batch, state, dtype, logits);
    dr_session_destroy(session);
    return status;
}

#endif
