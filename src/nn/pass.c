/* A run through the blocks: embedding, blocks, final norm and head at the targets only; and back.
 *
 * Memory is planned by handing it out from an arena that only counts, then again from a block of that many bytes. The head's
 * part and the blocks' scratch of the backward are never in use together and share their place. */
#include "base/error.h"
#include "nn/model.h"
#include <inttypes.h>

/* of vectors */
static size_t bytes_of(const dr_model *model, int64_t rows, int64_t columns) {
    return dr_kind_bytes(model->backend, DR_VECTOR, rows * columns);
}

static const void *value_at(const dr_model *model, int64_t offset) {
    return model->values + dr_kind_bytes(model->backend, DR_NUMBER, offset);
}

/* of a matrix that products read */
static const void *weight_at(const dr_model *model, int64_t offset) {
    if (!model->copies) return value_at(model, offset);
    return model->copies + dr_kind_bytes(model->backend, DR_VECTOR, offset);
}

static void *gradient_at(const dr_model *model, int64_t offset) {
    return model->gradients + dr_kind_bytes(model->backend, DR_NUMBER, offset);
}

static dr_layer layer_at(const dr_model *model, int64_t index, dr_pass_kind kind, const dr_layout *layout,
                         const int64_t *seen) {
    int64_t offset = model->first_layer + index * model->layer_stride;
    return (dr_layer){.mixer = &model->mixer,
                      .backend = model->backend,
                      .parameters = value_at(model, offset),
                      .weights = weight_at(model, offset),
                      .gradients = kind == DR_PASS_GRADIENT ? gradient_at(model, offset) : NULL,
                      .layout = *layout,
                      .seen = seen,
                      .decode = kind == DR_PASS_DECODE};
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

dr_status dr_pass_create(const dr_model *model, dr_pass **pass) {
    void *memory = NULL, *blocks = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_pass), "a pass", &memory));
    dr_status status = dr_allocate_zero((size_t)model->config.layers * sizeof(dr_block_memory), "a pass", &blocks);
    if (status != DR_OK) {
        dr_release(memory);
        return status;
    }
    *pass = memory;
    (*pass)->blocks = blocks;
    return DR_OK;
}

void dr_pass_destroy(dr_backend *backend, dr_pass *pass) {
    if (!pass) return;
    if (pass->block) backend->ops->free(backend, pass->block);
    dr_release(pass->blocks);
    dr_release(pass);
}

static void place_blocks(const dr_model *model, dr_pass *pass, const dr_layer *layer, const dr_recurrence_memory *engine,
                         bool keep, dr_arena *arena) {
    size_t stream = bytes_of(model, layer->layout.rows, model->config.hidden);
    if (!keep) {
        pass->x = pass->blocks[0].x = dr_arena_take(arena, stream);
        dr_block_place(layer, engine, false, arena, &pass->blocks[0]);
        for (int64_t i = 1; i < model->config.layers; i++) pass->blocks[i] = pass->blocks[0];
        return;
    }
    for (int64_t i = 0; i < model->config.layers; i++) {
        pass->blocks[i].x = dr_arena_take(arena, stream);
        dr_block_place(layer, engine, true, arena, &pass->blocks[i]);
    }
    pass->x = dr_arena_take(arena, stream);
    pass->d_x = dr_arena_take(arena, stream);
}

static void place(const dr_model *model, dr_pass *pass, dr_pass_kind kind, const dr_layer *layer,
                  const dr_recurrence_memory *engine, int64_t targets, bool selects, dr_arena *arena) {
    bool keep = kind == DR_PASS_GRADIENT;
    int64_t hidden = model->config.hidden, chunk = targets < DR_HEAD_ROWS ? targets : DR_HEAD_ROWS;
    place_blocks(model, pass, layer, engine, keep, arena);
    size_t shared = arena->used;
    dr_block_place_scratch(layer, engine, keep, arena, &pass->scratch);
    dr_arena_rewind(arena, shared);
    pass->selected = selects ? dr_arena_take(arena, bytes_of(model, targets, hidden)) : pass->x;
    pass->normed = dr_arena_take(arena, bytes_of(model, chunk, hidden));
    pass->logits = dr_arena_take(arena, bytes_of(model, chunk, model->config.vocabulary));
    if (!keep) return;
    pass->d_selected = selects ? dr_arena_take(arena, bytes_of(model, targets, hidden)) : pass->d_x;
    pass->d_normed = dr_arena_take(arena, bytes_of(model, chunk, hidden));
}

dr_status dr_pass_prepare(const dr_model *model, dr_pass *pass, dr_pass_kind kind, const dr_layout *layout, int64_t targets,
                          bool selects) {
    const dr_operations *ops = model->backend->ops;
    dr_layer layer = layer_at(model, 0, DR_PASS_FORWARD, layout, NULL);
    layer.decode = kind == DR_PASS_DECODE;
    dr_recurrence recurrence = dr_layer_recurrence(&layer);
    dr_recurrence_memory engine;
    DR_TRY(dr_recurrence_plan(model->backend, &recurrence, &engine));
    dr_arena arena = {0};
    place(model, pass, kind, &layer, &engine, targets, selects, &arena);
    size_t needed = arena.peak;
    if (needed > pass->capacity) {
        if (pass->block) ops->free(model->backend, pass->block);
        pass->block = NULL;
        pass->capacity = 0;
        DR_TRY(ops->allocate(model->backend, needed, &pass->block));
        pass->capacity = needed;
    }
    arena = (dr_arena){.block = pass->block};
    place(model, pass, kind, &layer, &engine, targets, selects, &arena);
    return DR_OK;
}

/* ---- blocks --------------------------------------------------------------------------------------------------------- */

dr_status dr_pass_forward(const dr_model *model, dr_pass *pass, dr_pass_kind kind, const dr_layout *layout, const int32_t *ids,
                          dr_model_state *state) {
    const dr_operations *ops = model->backend->ops;
    int64_t layers = model->config.layers;
    DR_TRY(ops->embedding_forward(model->backend, layout->rows, model->config.hidden, ids, weight_at(model, 0),
                                  pass->blocks[0].x));
    for (int64_t i = 0; i < layers; i++) {
        dr_layer layer = layer_at(model, i, kind, layout, state ? state->seen : NULL);
        void *y = i + 1 < layers ? pass->blocks[i + 1].x : pass->x;
        DR_TRY(dr_block_forward(&layer, y, &pass->blocks[i], &pass->scratch, state ? &state->layers[i] : NULL));
    }
    if (!state) return DR_OK;
    for (int64_t i = 0; i < layout->sequences; i++)
        state->seen[i] += dr_layout_begin(layout, i + 1) - dr_layout_begin(layout, i);
    return DR_OK;
}

dr_status dr_pass_backward(const dr_model *model, dr_pass *pass, const dr_layout *layout, const int32_t *ids) {
    for (int64_t i = model->config.layers - 1; i >= 0; i--) {
        dr_layer layer = layer_at(model, i, DR_PASS_GRADIENT, layout, NULL);
        DR_TRY(dr_block_backward(&layer, pass->d_x, &pass->blocks[i], &pass->scratch));
    }
    return model->backend->ops->embedding_backward(model->backend, layout->rows, model->config.hidden, ids, pass->d_x,
                                                   model->gradients);
}

/* ---- head ----------------------------------------------------------------------------------------------------------- */

static dr_rms_norm final_norm(const dr_model *model, int64_t rows) {
    return (dr_rms_norm){.rows = rows, .dim = model->config.hidden, .eps = model->config.norm_eps};
}

dr_status dr_pass_head(const dr_model *model, dr_pass *pass, const void *rows, int64_t begin, int64_t count) {
    const dr_operations *ops = model->backend->ops;
    int64_t hidden = model->config.hidden;
    dr_rms_norm norm = final_norm(model, count);
    dr_linear linear = {count, hidden, model->config.vocabulary};
    DR_TRY(ops->rms_norm_forward(model->backend, &norm, (const char *)rows + bytes_of(model, begin, hidden),
                                 value_at(model, model->final_norm), NULL, pass->normed));
    return ops->linear_forward(model->backend, &linear, pass->normed, weight_at(model, model->head), NULL, pass->logits);
}

dr_status dr_pass_head_backward(const dr_model *model, dr_pass *pass, const void *rows, void *d_rows, int64_t begin,
                                int64_t count) {
    const dr_operations *ops = model->backend->ops;
    int64_t hidden = model->config.hidden;
    size_t skipped = bytes_of(model, begin, hidden);
    dr_rms_norm norm = final_norm(model, count);
    dr_linear linear = {count, hidden, model->config.vocabulary};
    DR_TRY(ops->linear_backward(model->backend, &linear, pass->normed, weight_at(model, model->head), pass->logits,
                                pass->d_normed, false, gradient_at(model, model->head), NULL));
    return ops->rms_norm_backward(model->backend, &norm, (const char *)rows + skipped, value_at(model, model->final_norm), NULL,
                                  pass->d_normed, (char *)d_rows + skipped, false, gradient_at(model, model->final_norm), NULL);
}
