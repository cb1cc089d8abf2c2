/* Loss, gradient and logits of a batch: the pass through the blocks, then the head at the targets, some rows at a time. */
#include "base/error.h"
#include "nn/model.h"
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
    DR_TRY(check_ids("id", batch->ids, batch->layout.rows, model->config.vocabulary));
    if (labelled) DR_TRY(check_ids("label", batch->labels, batch->targets, model->config.vocabulary));
    if (state && state->model != model) return dr_fail(DR_ERROR_ARGUMENT, "the state is of another model");
    if (state && state->sequences != batch->layout.sequences)
        return dr_fail(DR_ERROR_ARGUMENT, "a batch of %" PRId64 " sequences with a state of %" PRId64, batch->layout.sequences,
                       state->sequences);
    return DR_OK;
}

/* ---- passes --------------------------------------------------------------------------------------------------------- */

/* Runs the blocks; pass->selected are then the targets' rows. */
static dr_status run_blocks(dr_model *model, const dr_batch *batch, dr_pass_kind kind, dr_model_state *state) {
    dr_pass *pass = model->pass;
    DR_TRY(dr_pass_prepare(model, pass, kind, &batch->layout, batch->targets, batch->positions != NULL));
    DR_TRY(dr_pass_forward(model, pass, kind, &batch->layout, batch->ids, state));
    if (!batch->positions) return DR_OK;
    return model->backend->ops->rows_gather(model->backend, batch->targets, model->config.hidden, batch->positions, pass->x,
                                            pass->selected);
}

static int64_t rows_at(const dr_batch *batch, int64_t begin) {
    int64_t left = batch->targets - begin;
    return left < DR_HEAD_ROWS ? left : DR_HEAD_ROWS;
}

dr_status dr_model_loss(dr_model *model, const dr_batch *batch, dr_model_state *state, double *loss, int64_t *hits,
                        double *per_target, uint8_t *per_hit) {
    DR_NEED(model);
    DR_NEED(batch);
    DR_NEED(loss);
    dr_pass *pass = model->pass;
    DR_TRY(check_batch(model, batch, state, true));
    double sum = 0;
    int64_t right = 0;
    if (batch->layout.rows > 0) DR_TRY(run_blocks(model, batch, DR_PASS_FORWARD, state));
    for (int64_t begin = 0; begin < batch->targets; begin += DR_HEAD_ROWS) {
        int64_t count = rows_at(batch, begin);
        double *losses = per_target ? per_target + begin : pass->loss;
        uint8_t *hit = per_hit ? per_hit + begin : pass->hit;
        DR_TRY(dr_pass_head(model, pass, pass->selected, begin, count));
        DR_TRY(model->backend->ops->cross_entropy(model->backend, count, model->config.vocabulary, pass->logits,
                                                  batch->labels + begin, 1, losses, hit, NULL));
        for (int64_t i = 0; i < count; i++) {
            sum += losses[i];
            right += hit[i];
        }
    }
    *loss = sum;
    if (hits) *hits = right;
    return DR_OK;
}

dr_status dr_model_gradient(dr_model *model, const dr_batch *batch, double factor, double *loss, int64_t *hits) {
    DR_NEED(model);
    DR_NEED(batch);
    DR_NEED(loss);
    const dr_operations *ops = model->backend->ops;
    dr_pass *pass = model->pass;
    DR_TRY(check_batch(model, batch, NULL, true));
    if (!dr_model_gradient_block(model)) return dr_fail(DR_ERROR_MEMORY, "there is no memory for the gradients");
    double sum = 0;
    int64_t right = 0;
    if (batch->layout.rows > 0) DR_TRY(run_blocks(model, batch, DR_PASS_GRADIENT, NULL));
    for (int64_t begin = 0; begin < batch->targets; begin += DR_HEAD_ROWS) {
        int64_t count = rows_at(batch, begin);
        DR_TRY(dr_pass_head(model, pass, pass->selected, begin, count));
        DR_TRY(ops->cross_entropy(model->backend, count, model->config.vocabulary, pass->logits, batch->labels + begin, factor,
                                  pass->loss, pass->hit, pass->logits));
        DR_TRY(dr_pass_head_backward(model, pass, pass->selected, pass->d_selected, begin, count));
        for (int64_t i = 0; i < count; i++) {
            sum += pass->loss[i];
            right += pass->hit[i];
        }
    }
    if (batch->layout.rows > 0) {
        if (batch->positions)
            DR_TRY(ops->rows_scatter(model->backend, batch->layout.rows, batch->targets, model->config.hidden, batch->positions,
                                     pass->d_selected, pass->d_x));
        DR_TRY(dr_pass_backward(model, pass, &batch->layout, batch->ids));
    }
    *loss = sum;
    if (hits) *hits = right;
    return DR_OK;
}

dr_status dr_model_logits(dr_model *model, const dr_batch *batch, dr_model_state *state, dr_dtype dtype, void *logits) {
    DR_NEED(model);
    DR_NEED(batch);
    dr_pass *pass = model->pass;
    if (dtype != DR_F32 && dtype != DR_F64)
        return dr_fail(DR_ERROR_ARGUMENT, "logits are written as F32 or F64, not as %s", dr_dtype_name(dtype));
    DR_TRY(check_batch(model, batch, state, false));
    if (batch->targets > 0) DR_NEED(logits);
    if (batch->layout.rows > 0) DR_TRY(run_blocks(model, batch, DR_PASS_FORWARD, state));
    for (int64_t begin = 0; begin < batch->targets; begin += DR_HEAD_ROWS) {
        int64_t count = rows_at(batch, begin), vocabulary = model->config.vocabulary;
        DR_TRY(dr_pass_head(model, pass, pass->selected, begin, count));
        char *to = (char *)logits + (size_t)(begin * vocabulary) * dr_dtype_size(dtype);
        DR_TRY(dr_kind_download(model->backend, DR_VECTOR, to, dtype, pass->logits, count * vocabulary));
    }
    return DR_OK;
}
