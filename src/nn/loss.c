/* Loss, gradient and logits of a batch: the run through the blocks, then the head at the targets, some rows at a time. */
#include "base/error.h"
#include "nn/state.h"
#include <inttypes.h>

enum { MOST_ROWS = 1 << 22 }; /* of a call: sizes of its tensors stay within 64 bits */

/* ---- checks --------------------------------------------------------------------------------------------------------- */

static dr_status check_positions(const dr_batch *batch) {
    if (!batch->positions) {
        if (batch->targets == batch->layout.rows) return DR_OK;
        return dr_fail(DR_ERROR_ARGUMENT,
                       "targets is %" PRId64 " and rows %" PRId64 "; without positions every row is a target", batch->targets,
                       batch->layout.rows);
    }
    for (int64_t i = 0; i < batch->targets; i++) {
        int64_t position = batch->positions[i], before = i > 0 ? batch->positions[i - 1] : -1;
        if (position <= before || position >= batch->layout.rows)
            return dr_fail(DR_ERROR_ARGUMENT,
                           "position %" PRId64 " is row %" PRId64 "; positions must rise and stay below rows, %" PRId64, i,
                           position, batch->layout.rows);
    }
    return DR_OK;
}

static dr_status check_ids(const char *what, const int32_t *ids, int64_t count, int64_t vocabulary) {
    if (!ids && count > 0) return dr_fail(DR_ERROR_ARGUMENT, "%s is NULL; it must hold %" PRId64 " tokens", what, count);
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= vocabulary)
            return dr_fail(DR_ERROR_ARGUMENT, "%s %" PRId64 " is %" PRId32 "; it must be from 0 to %" PRId64, what, i, ids[i],
                           vocabulary - 1);
    return DR_OK;
}

static dr_status check_batch(const dr_model *model, const dr_batch *batch, const dr_model_state *state, bool labelled) {
    DR_TRY(dr_layout_check(&batch->layout));
    if (batch->layout.rows > MOST_ROWS)
        return dr_fail(DR_ERROR_ARGUMENT, "a batch of %" PRId64 " rows; at most %d are possible in one call",
                       batch->layout.rows, MOST_ROWS);
    if (batch->targets < 0)
        return dr_fail(DR_ERROR_ARGUMENT, "targets is %" PRId64 "; it must not be negative", batch->targets);
    DR_TRY(check_positions(batch));
    DR_TRY(check_ids("id", batch->ids, batch->layout.rows, model->description.vocabulary));
    if (labelled) DR_TRY(check_ids("label", batch->labels, batch->targets, model->description.vocabulary));
    if (state && state->model != model) return dr_fail(DR_ERROR_ARGUMENT, "the state is of another model");
    if (state && state->sequences != batch->layout.sequences)
        return dr_fail(DR_ERROR_ARGUMENT, "a batch of %" PRId64 " sequences with a state of %" PRId64, batch->layout.sequences,
                       state->sequences);
    return DR_OK;
}

/* ---- runs ----------------------------------------------------------------------------------------------------------- */

/* Memory of the call, and the batch in it. */
static dr_status begin_call(dr_session *session, const dr_batch *batch, dr_phase phase, bool labelled, dr_model_state *state) {
    DR_TRY(dr_session_prepare(session, phase, &batch->layout, batch->targets, batch->positions != NULL, labelled));
    if (state) DR_TRY(dr_model_state_reserve(state, &batch->layout));
    return dr_session_upload(session, batch, state ? state->seen : NULL, NULL);
}

/* Runs the blocks; session->selected are then the targets' rows. */
static dr_status run_blocks(dr_session *session, const dr_batch *batch, dr_model_state *state) {
    DR_TRY(dr_session_run(session, state));
    if (state) dr_model_state_advance(state, batch, false);
    if (!batch->positions) return DR_OK;
    return session->backend->ops->rows_gather(session->backend, batch->targets, session->model->description.hidden,
                                              session->tokens.positions, session->x, session->selected);
}

static int64_t rows_at(const dr_session *session, const dr_batch *batch, int64_t begin) {
    int64_t left = batch->targets - begin;
    return left < session->head_rows ? left : session->head_rows;
}

/* Losses and hits of so many targets into session->losses and hits and the sum. */
static dr_status measure(dr_session *session, int64_t begin, int64_t count, double factor, void *d_logits) {
    const dr_operations *ops = session->backend->ops;
    DR_TRY(ops->cross_entropy(session->backend, count, session->model->description.vocabulary, session->logits,
                              session->tokens.labels + begin, factor, session->losses, session->hits, d_logits));
    return ops->sum_losses(session->backend, count, session->losses, session->hits, session->sum);
}

dr_status dr_session_result(const dr_session *session, double *loss, int64_t *hits) {
    dr_loss_sum sum = {0};
    DR_NEED(session);
    if (session->measured) DR_TRY(session->backend->ops->get(session->backend, &sum, session->sum, sizeof sum));
    if (loss) *loss = sum.loss;
    if (hits) *hits = sum.hits;
    return DR_OK;
}

dr_status dr_session_extra_loss(const dr_session *session, double *loss) {
    DR_NEED(session);
    DR_NEED(loss);
    *loss = 0;
    if (!session->measured || session->phase != DR_PHASE_GRADIENT) return DR_OK;
    return dr_kind_download(session->backend, DR_NUMBER, loss, DR_F64, session->extra, 1);
}

dr_status dr_session_loss(dr_session *session, const dr_batch *batch, dr_model_state *state, double *loss, int64_t *hits,
                          double *per_target, uint8_t *per_hit) {
    DR_NEED(session);
    DR_NEED(batch);
    DR_NEED(loss);
    const dr_operations *ops = session->backend->ops;
    DR_TRY(check_batch(session->model, batch, state, true));
    session->measured = false;
    if (batch->layout.rows > 0) DR_TRY(begin_call(session, batch, DR_PHASE_FORWARD, true, state));
    if (batch->layout.rows > 0) DR_TRY(run_blocks(session, batch, state));
    session->measured = batch->layout.rows > 0;
    for (int64_t begin = 0; begin < batch->targets; begin += session->head_rows) {
        int64_t count = rows_at(session, batch, begin);
        DR_TRY(dr_session_head(session, session->selected, begin, count));
        DR_TRY(measure(session, begin, count, 1, NULL));
        if (per_target)
            DR_TRY(ops->get(session->backend, per_target + begin, session->losses, (size_t)count * sizeof *per_target));
        if (per_hit) DR_TRY(ops->get(session->backend, per_hit + begin, session->hits, (size_t)count));
    }
    return dr_session_result(session, loss, hits);
}

/* ---- the gradient ----------------------------------------------------------------------------------------------------- */

/* A gradient whose batch is in the backend's memory. */
typedef struct {
    dr_session *session;
    const dr_batch *batch;
    double factor;
    char *gradients;
} gradient_work;

static dr_status compute_gradient(void *context) {
    const gradient_work *work = context;
    dr_session *session = work->session;
    const dr_batch *batch = work->batch;
    DR_TRY(run_blocks(session, batch, NULL));
    for (int64_t begin = 0; begin < batch->targets; begin += session->head_rows) {
        const int64_t count = rows_at(session, batch, begin);
        DR_TRY(dr_session_head(session, session->selected, begin, count));
        DR_TRY(measure(session, begin, count, work->factor, session->logits));
        DR_TRY(dr_session_head_back(session, session->selected, session->d_selected, begin, count, work->gradients));
    }
    if (batch->positions)
        DR_TRY(session->backend->ops->rows_scatter(session->backend, batch->layout.rows, batch->targets,
                                                   session->model->description.hidden, session->tokens.positions,
                                                   session->d_selected, session->d_x));
    return dr_session_run_back(session, work->gradients);
}

static bool same_form(const dr_gradient_form *a, const dr_gradient_form *b) {
    return a->block == b->block && a->gradients == b->gradients && a->rows == b->rows && a->sequences == b->sequences &&
           a->longest == b->longest && a->targets == b->targets && a->factor == b->factor && a->packed == b->packed &&
           a->selects == b->selects && a->level == b->level;
}

/* By the backend's replay: a gradient of the same form as the last one is the same work. */
static dr_status replay_gradient(gradient_work *work) {
    dr_session *session = work->session;
    const dr_operations *ops = session->backend->ops;
    const dr_batch *batch = work->batch;
    if (!ops->replay) return compute_gradient(work);
    const dr_gradient_form form = {.block = session->block,
                                   .gradients = work->gradients,
                                   .rows = batch->layout.rows,
                                   .sequences = batch->layout.sequences,
                                   .longest = session->tokens.longest,
                                   .targets = batch->targets,
                                   .factor = work->factor,
                                   .packed = batch->layout.cu_seqlens != NULL,
                                   .selects = batch->positions != NULL,
                                   .level = session->level};
    if (!same_form(&form, &session->last)) {
        ops->forget(session->backend, session->kept);
        session->kept = NULL;
    }
    session->last = form;
    return ops->replay(session->backend, compute_gradient, work, &session->kept);
}

dr_status dr_session_gradient(dr_session *session, const dr_batch *batch, double factor, void *gradients, double *loss,
                              int64_t *hits) {
    DR_NEED(session);
    DR_NEED(batch);
    DR_NEED(gradients);
    DR_TRY(dr_model_learns(session->model));
    DR_TRY(check_batch(session->model, batch, NULL, true));
    session->measured = false;
    session->extra_factor = factor * (double)batch->targets; /* its mean over targets is as one target's loss */
    if (batch->layout.rows > 0) {
        gradient_work work = {session, batch, factor, gradients};
        DR_TRY(begin_call(session, batch, DR_PHASE_GRADIENT, true, NULL));
        DR_TRY(replay_gradient(&work));
    }
    session->measured = batch->layout.rows > 0;
    return loss || hits ? dr_session_result(session, loss, hits) : DR_OK;
}

/* ---- logits ----------------------------------------------------------------------------------------------------------- */

dr_status dr_session_logits(dr_session *session, const dr_batch *batch, dr_model_state *state, dr_dtype dtype, void *logits) {
    DR_NEED(session);
    DR_NEED(batch);
    if (dtype != DR_F32 && dtype != DR_F64)
        return dr_fail(DR_ERROR_ARGUMENT, "logits are written as F32 or F64, not as %s", dr_dtype_name(dtype));
    DR_TRY(check_batch(session->model, batch, state, false));
    if (batch->targets > 0) DR_NEED(logits);
    session->measured = false;
    if (batch->layout.rows > 0) DR_TRY(begin_call(session, batch, DR_PHASE_FORWARD, false, state));
    if (batch->layout.rows > 0) DR_TRY(run_blocks(session, batch, state));
    for (int64_t begin = 0; begin < batch->targets; begin += session->head_rows) {
        int64_t count = rows_at(session, batch, begin), vocabulary = session->model->description.vocabulary;
        DR_TRY(dr_session_head(session, session->selected, begin, count));
        char *to = (char *)logits + (size_t)(begin * vocabulary) * dr_dtype_size(dtype);
        DR_TRY(dr_kind_download(session->backend, DR_VECTOR, to, dtype, session->logits, count * vocabulary));
    }
    return DR_OK;
}
