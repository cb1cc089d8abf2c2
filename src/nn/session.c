/* A run through the blocks: embedding, blocks, final norm and head at the targets only; and back.
 *
 * Memory is planned by handing it out from an arena that only counts, then again from a block of that many bytes. The head's
 * part and the blocks' scratch of the backward are never in use together and share their place. */
#include "nn/session.h"
#include "base/error.h"
#include "ops/plan_make.h"
#include "ops/shapes.h"

/* of vectors */
static size_t bytes_of(const dr_session *session, int64_t rows, int64_t columns) {
    return dr_kind_bytes(session->backend, DR_VECTOR, rows * columns);
}

static const void *value_at(const dr_model *model, int64_t offset) {
    return model->values + dr_kind_bytes(model->backend, DR_NUMBER, offset);
}

/* of a matrix that products read */
static const void *weight_at(const dr_model *model, int64_t offset) {
    if (!model->copies) return value_at(model, offset);
    return model->copies + dr_kind_bytes(model->backend, DR_VECTOR, offset);
}

static char *gradient_at(const dr_session *session, char *gradients, int64_t offset) {
    return gradients + dr_kind_bytes(session->backend, DR_NUMBER, offset);
}

static dr_layer layer_at(const dr_session *session, int64_t index, char *gradients) {
    const dr_model *model = session->model;
    int64_t offset = model->first_layer + index * model->layer_stride;
    return (dr_layer){.mixer = &model->mixer,
                      .backend = session->backend,
                      .plan = &session->plan,
                      .parameters = value_at(model, offset),
                      .weights = weight_at(model, offset),
                      .gradients = gradients ? gradient_at(session, gradients, offset) : NULL,
                      .layout = session->tokens.layout,
                      .seen = session->tokens.seen,
                      .decode = session->phase == DR_PHASE_DECODE};
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

dr_status dr_session_create(const dr_model *model, dr_session **session) {
    DR_NEED(model);
    DR_NEED(session);
    void *memory = NULL, *blocks = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_session), "a session", &memory));
    dr_status status = dr_allocate_zero((size_t)model->config.layers * sizeof(dr_block_memory), "a session", &blocks);
    if (status != DR_OK) {
        dr_release(memory);
        return status;
    }
    dr_session *made = memory;
    made->model = model, made->backend = model->backend, made->blocks = blocks;
    *session = made;
    return DR_OK;
}

void dr_session_destroy(dr_session *session) {
    if (!session) return;
    if (session->block) session->backend->ops->free(session->backend, session->block);
    dr_rows_release(&session->tokens);
    dr_release(session->blocks);
    dr_release(session);
}

const dr_model *dr_session_model(const dr_session *session) {
    return session ? session->model : NULL;
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static void place_blocks(dr_session *session, const dr_layer *layer, bool keep, dr_arena *arena) {
    const int64_t layers = session->model->config.layers;
    size_t stream = bytes_of(session, layer->layout.rows, session->model->config.hidden);
    if (!keep) {
        session->x = session->blocks[0].x = dr_arena_take(arena, stream);
        dr_block_place(layer, false, arena, &session->blocks[0]);
        for (int64_t i = 1; i < layers; i++) session->blocks[i] = session->blocks[0];
        return;
    }
    for (int64_t i = 0; i < layers; i++) {
        session->blocks[i].x = dr_arena_take(arena, stream);
        dr_block_place(layer, true, arena, &session->blocks[i]);
    }
    session->x = dr_arena_take(arena, stream);
    session->d_x = dr_arena_take(arena, stream);
}

static void place(dr_session *session, const dr_layout *layout, int64_t targets, bool selects, bool labelled, dr_arena *arena) {
    bool keep = session->phase == DR_PHASE_GRADIENT;
    int64_t hidden = session->model->config.hidden, chunk = targets < DR_HEAD_ROWS ? targets : DR_HEAD_ROWS;
    dr_rows_place(layout, targets, selects, labelled, arena, &session->tokens);
    session->sum = dr_arena_take(arena, sizeof *session->sum);
    session->losses = dr_arena_take(arena, (size_t)chunk * sizeof *session->losses);
    session->hits = dr_arena_take(arena, (size_t)chunk);
    dr_layer layer = layer_at(session, 0, NULL);
    place_blocks(session, &layer, keep, arena);
    size_t shared = arena->used;
    dr_block_place_scratch(&layer, keep, arena, &session->scratch);
    dr_arena_rewind(arena, shared);
    session->selected = selects ? dr_arena_take(arena, bytes_of(session, targets, hidden)) : session->x;
    session->normed = dr_arena_take(arena, bytes_of(session, chunk, hidden));
    session->logits = dr_arena_take(arena, bytes_of(session, chunk, session->model->config.vocabulary));
    if (!keep) return;
    session->d_selected = selects ? dr_arena_take(arena, bytes_of(session, targets, hidden)) : session->d_x;
    session->d_normed = dr_arena_take(arena, bytes_of(session, chunk, hidden));
}

static dr_status plan_recurrence(dr_session *session, const dr_layout *layout) {
    const dr_layer layer = {.mixer = &session->model->mixer, .backend = session->backend, .layout = *layout};
    dr_recurrence recurrence = dr_layer_recurrence(&layer);
    recurrence.layout = *layout;
    DR_TRY(dr_recurrence_check(&recurrence));
    recurrence.longest = dr_layout_longest(layout);
    if (recurrence.longest < 1) recurrence.longest = 1;
    return dr_plan_make(session->backend, &recurrence, layout->cu_seqlens ? DR_CALLS_PACKED : DR_CALLS_EVEN, &session->plan);
}

dr_status dr_session_prepare(dr_session *session, dr_phase phase, const dr_layout *layout, int64_t targets, bool selects,
                             bool labelled) {
    const dr_operations *ops = session->backend->ops;
    session->phase = phase;
    DR_TRY(plan_recurrence(session, layout));
    dr_arena arena = {0};
    place(session, layout, targets, selects, labelled, &arena);
    size_t needed = arena.peak;
    DR_TRY(dr_rows_reserve(&session->tokens));
    if (needed > session->capacity) {
        if (session->block) ops->free(session->backend, session->block);
        session->block = NULL;
        session->capacity = 0;
        DR_TRY(ops->allocate(session->backend, needed, &session->block));
        session->capacity = needed;
    }
    arena = (dr_arena){.block = session->block};
    place(session, layout, targets, selects, labelled, &arena);
    return DR_OK;
}

dr_status dr_session_upload(dr_session *session, const dr_batch *batch, const dr_model_state *state) {
    session->backend->ops->zero(session->backend, session->sum, sizeof *session->sum);
    return dr_rows_upload(session->backend, batch, state ? state->seen : NULL, &session->tokens);
}

/* ---- blocks --------------------------------------------------------------------------------------------------------- */

dr_status dr_session_run(dr_session *session, dr_model_state *state) {
    const dr_model *model = session->model;
    const dr_rows *tokens = &session->tokens;
    int64_t layers = model->config.layers;
    DR_TRY(session->backend->ops->embedding_forward(session->backend, tokens->layout.rows, model->config.hidden, tokens->ids,
                                                    weight_at(model, 0), session->blocks[0].x));
    for (int64_t i = 0; i < layers; i++) {
        dr_layer layer = layer_at(session, i, NULL);
        void *y = i + 1 < layers ? session->blocks[i + 1].x : session->x;
        DR_TRY(dr_block_forward(&layer, y, &session->blocks[i], &session->scratch, state ? &state->layers[i] : NULL));
    }
    return DR_OK;
}

dr_status dr_session_run_back(dr_session *session, char *gradients) {
    const dr_model *model = session->model;
    for (int64_t i = model->config.layers - 1; i >= 0; i--) {
        dr_layer layer = layer_at(session, i, gradients);
        DR_TRY(dr_block_backward(&layer, session->d_x, &session->blocks[i], &session->scratch));
    }
    return session->backend->ops->embedding_backward(session->backend, session->tokens.layout.rows, model->config.hidden,
                                                     session->tokens.ids, session->d_x, gradients);
}

/* ---- head ----------------------------------------------------------------------------------------------------------- */

static dr_rms_norm final_norm(const dr_model *model, int64_t rows) {
    return (dr_rms_norm){.rows = rows, .dim = model->config.hidden, .eps = model->config.norm_eps};
}

dr_status dr_session_head(dr_session *session, const void *rows, int64_t begin, int64_t count) {
    const dr_operations *ops = session->backend->ops;
    const dr_model *model = session->model;
    int64_t hidden = model->config.hidden;
    dr_rms_norm norm = final_norm(model, count);
    dr_linear linear = {count, hidden, model->config.vocabulary};
    DR_TRY(ops->rms_norm_forward(session->backend, &norm, (const char *)rows + bytes_of(session, begin, hidden),
                                 value_at(model, model->final_norm), NULL, session->normed));
    return ops->linear_forward(session->backend, &linear, session->normed, weight_at(model, model->head), NULL,
                               session->logits);
}

dr_status dr_session_head_back(dr_session *session, const void *rows, void *d_rows, int64_t begin, int64_t count,
                               char *gradients) {
    const dr_operations *ops = session->backend->ops;
    const dr_model *model = session->model;
    int64_t hidden = model->config.hidden;
    size_t skipped = bytes_of(session, begin, hidden);
    dr_rms_norm norm = final_norm(model, count);
    dr_linear linear = {count, hidden, model->config.vocabulary};
    DR_TRY(ops->linear_backward(session->backend, &linear, session->normed, weight_at(model, model->head), session->logits,
                                session->d_normed, false, gradient_at(session, gradients, model->head), NULL));
    return ops->rms_norm_backward(session->backend, &norm, (const char *)rows + skipped, value_at(model, model->final_norm),
                                  NULL, session->d_normed, (char *)d_rows + skipped, false,
                                  gradient_at(session, gradients, model->final_norm), NULL);
}
