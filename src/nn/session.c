/* A run through the layers: embedding, layers, final norm and head at the targets only; and back.
 *
 * Memory is planned by handing it out from an arena that only counts, then again from a block of that many bytes. The head's
 * part and the layers' scratch of the backward are never in use together and share their place, as do the scratch of different
 * kinds of layers and, where nothing is kept for a backward, the memory of all layers. */
#include "base/error.h"
#include "nn/state.h"

#include <inttypes.h>

/* of vectors */
static size_t bytes_of(const dr_session *session, int64_t rows, int64_t columns) {
    return dr_kind_bytes(session->backend, DR_VECTOR, rows * columns);
}

static const dr_layer *kind_of(const dr_session *session, int64_t layer) {
    return session->model->layers[layer].kind;
}

static dr_layer_scratch *scratch_of(const dr_session *session, int64_t layer) {
    return &session->kinds[kind_of(session, layer) - session->model->kinds];
}

/* Whether parts attend to earlier outputs. */
static bool attends(const dr_session *session) {
    return session->model->description.residual == DR_RESIDUAL_ATTENTION;
}

static int64_t parts_of(const dr_model *model) {
    int64_t parts = 0;
    for (int64_t i = 0; i < model->description.count; i++) parts += model->layers[i].kind->parts;
    return parts;
}

/* What all layers are told of the planned call. */
static void describe_call(const dr_session *session, dr_module_call *call) {
    call->layout = session->tokens.layout;
    call->longest = session->tokens.longest;
    call->seen = session->tokens.seen;
    call->slot = session->tokens.slot;
    call->decode = session->phase == DR_PHASE_DECODE;
}

static dr_module_call layer_call(const dr_session *session, int64_t index, char *gradients) {
    dr_module_call call = dr_model_layer_call(session->model, index, gradients);
    describe_call(session, &call);
    call.passed = session->passed;
    if (session->phase == DR_PHASE_GRADIENT) {
        call.keeps = session->keeps;
        call.remakes_saved = session->level == 2 || session->level == 3;
        call.remakes_inputs = session->level == 3;
        call.d_passed = session->d_passed;
        call.extra_loss = session->extra;
        call.extra_factor = session->extra_factor;
    }
    return call;
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

/* Host memory of the modules' structs, from an arena that counts first. */
static void place_host(dr_session *session, dr_arena *host) {
    const dr_model *model = session->model;
    for (int64_t i = 0; i < model->description.count; i++) dr_layer_host_memory(kind_of(session, i), host, &session->layers[i]);
    for (int64_t k = 0; k < model->kind_count; k++) dr_layer_host_scratch(&model->kinds[k], host, &session->kinds[k]);
}

static dr_status make_host(dr_session *session) {
    const dr_model *model = session->model;
    void *memory = NULL;
    dr_arena host = {0};
    if (attends(session)) DR_TRY(dr_depth_sums_create(model->description.residual_block, parts_of(model), &session->depth));
    DR_TRY(dr_allocate_zero((size_t)model->description.count * sizeof(dr_layer_memory), "a session", &memory));
    session->layers = memory;
    DR_TRY(dr_allocate_zero((size_t)model->kind_count * sizeof(dr_layer_scratch), "a session", &memory));
    session->kinds = memory;
    place_host(session, &host);
    DR_TRY(dr_allocate_zero(host.used, "a session", &session->host));
    host = (dr_arena){.block = session->host};
    place_host(session, &host);
    return DR_OK;
}

dr_status dr_session_create(const dr_model *model, dr_session **session) {
    DR_NEED(model);
    DR_NEED(session);
    void *memory = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_session), "a session", &memory));
    dr_session *made = memory;
    made->model = model, made->backend = model->backend;
    made->head_rows = model->backend->ops->device ? DR_HEAD_ROWS_DEVICE : DR_HEAD_ROWS;
    dr_status status = make_host(made);
    if (status == DR_OK) status = dr_session_keep(made, 0);
    if (status == DR_OK)
        *session = made;
    else
        dr_session_destroy(made);
    return status;
}

void dr_session_destroy(dr_session *session) {
    if (!session) return;
    if (session->kept) session->backend->ops->forget(session->backend, session->kept);
    if (session->block) session->backend->ops->free(session->backend, session->block);
    dr_rows_release(&session->tokens);
    dr_depth_sums_release(&session->depth);
    dr_release(session->layers);
    dr_release(session->kinds);
    dr_release(session->host);
    dr_release(session);
}

const dr_model *dr_session_model(const dr_session *session) {
    return session ? session->model : NULL;
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static void place_layer(dr_session *session, int64_t index, void *x, bool keep, dr_arena *arena) {
    const dr_module_call call = layer_call(session, index, NULL);
    session->layers[index].stream[0] = x;
    dr_layer_place(kind_of(session, index), &call, keep, arena, &session->layers[index], scratch_of(session, index));
}

/* One place for all layers, as large as the largest needs, beside where each begins. */
static void place_in_turn(dr_session *session, bool keep, dr_arena *arena) {
    const size_t shared = arena->used;
    size_t end = shared;
    for (int64_t i = 0; i < session->model->description.count; i++) {
        dr_arena_rewind(arena, shared);
        place_layer(session, i, session->layers[i].stream[0], keep, arena);
        if (arena->used > end) end = arena->used;
    }
    dr_arena_rewind(arena, end);
}

/* Of a gradient: each layer has its own, or only where it begins. */
static void place_layers(dr_session *session, size_t stream, dr_arena *arena) {
    for (int64_t i = 0; i < session->model->description.count; i++) {
        void *x = dr_arena_take(arena, stream);
        session->layers[i].stream[0] = x;
        if (!session->recomputes) place_layer(session, i, x, true, arena);
    }
    if (session->recomputes) place_in_turn(session, true, arena);
    session->x = dr_arena_take(arena, stream);
    session->d_x = dr_arena_take(arena, stream);
}

/* Of a forward alone, which keeps nothing. */
static void place_shared_layers(dr_session *session, size_t stream, dr_arena *arena) {
    session->x = dr_arena_take(arena, stream);
    for (int64_t i = 0; i < session->model->description.count; i++) session->layers[i].stream[0] = session->x;
    place_in_turn(session, false, arena);
}

/* Of the embedding, where a norm stands between it and the layers. */
static void place_embedded(dr_session *session, size_t stream, dr_arena *arena) {
    const bool normed = session->model->embedding_norm.kind != DR_NORM_NONE;
    session->first = attends(session) ? session->depth.sum[0] : session->layers[0].stream[0];
    session->embedded = normed ? dr_arena_take(arena, stream) : session->first;
}

static void place_scratch(dr_session *session, bool backward, dr_arena *arena) {
    const dr_model *model = session->model;
    const size_t shared = arena->used;
    dr_module_call call = {.backend = session->backend};
    describe_call(session, &call);
    call.remakes_saved = backward && (session->level == 2 || session->level == 3);
    call.remakes_inputs = backward && session->level == 3;
    for (int64_t k = 0; k < model->kind_count; k++) {
        dr_layer_place_scratch(&model->kinds[k], &call, backward, arena, &session->kinds[k]);
        dr_arena_rewind(arena, shared);
    }
}

static void place(dr_session *session, const dr_layout *layout, int64_t targets, bool selects, bool labelled, dr_arena *arena) {
    bool keep = session->phase == DR_PHASE_GRADIENT;
    int64_t hidden = session->model->description.hidden, chunk = targets < session->head_rows ? targets : session->head_rows;
    dr_rows_place(layout, targets, selects, labelled, arena, &session->tokens);
    session->sum = dr_arena_take(arena, sizeof *session->sum);
    session->extra = dr_arena_take(arena, dr_kind_bytes(session->backend, DR_NUMBER, 1));
    session->losses = dr_arena_take(arena, (size_t)chunk * sizeof *session->losses);
    session->hits = dr_arena_take(arena, (size_t)chunk);
    session->draws = NULL, session->chosen = NULL;
    if (session->phase == DR_PHASE_DECODE && session->backend->ops->choose) {
        session->draws = dr_arena_take(arena, (size_t)targets * sizeof *session->draws);
        session->chosen = dr_arena_take(arena, (size_t)targets * sizeof *session->chosen);
    }
    const size_t passed = bytes_of(session, layout->rows, session->model->passed);
    session->passed = session->d_passed = NULL;
    if (passed > 0) session->passed = dr_arena_take(arena, passed);
    if (passed > 0 && keep) session->d_passed = dr_arena_take(arena, passed);
    if (keep)
        place_layers(session, bytes_of(session, layout->rows, hidden), arena);
    else
        place_shared_layers(session, bytes_of(session, layout->rows, hidden), arena);
    if (attends(session)) dr_depth_sums_place(&session->depth, bytes_of(session, layout->rows, hidden), keep, arena);
    place_embedded(session, bytes_of(session, layout->rows, hidden), arena);
    place_scratch(session, keep, arena);
    session->selected = selects ? dr_arena_take(arena, bytes_of(session, targets, hidden)) : session->x;
    session->normed = dr_arena_take(arena, bytes_of(session, chunk, hidden));
    session->logits = dr_arena_take(arena, bytes_of(session, chunk, session->model->description.vocabulary));
    if (!keep) return;
    session->d_selected = selects ? dr_arena_take(arena, bytes_of(session, targets, hidden)) : session->d_x;
    session->d_normed = dr_arena_take(arena, bytes_of(session, chunk, hidden));
}

dr_status dr_session_bytes(dr_session *session, dr_phase phase, const dr_layout *layout, int64_t targets, bool selects,
                           bool labelled, size_t *bytes) {
    const dr_layout step = {layout->sequences, layout->sequences, NULL}; /* what a decode engine computes at once */
    const dr_layout *planned = phase == DR_PHASE_DECODE ? &step : layout;
    dr_arena arena = {0};
    session->phase = phase;
    for (int64_t k = 0; k < session->model->kind_count; k++)
        DR_TRY(dr_layer_plan(&session->model->kinds[k], session->backend, planned, &session->kinds[k]));
    place(session, layout, targets, selects, labelled, &arena);
    *bytes = arena.peak;
    return DR_OK;
}

dr_status dr_session_keep(dr_session *session, int64_t level) {
    if (level < 0 || level > 4)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "keep_level is %" PRId64 ": it must be from 0, which keeps everything, to 4, which keeps the input of "
                       "each layer",
                       level);
    if (level == 4 && attends(session))
        return dr_fail(DR_ERROR_UNSUPPORTED, "parts of this model attend to the outputs of earlier ones, which must be kept: "
                                             "train it with keep_level 0");
    session->level = (int)level;
    session->recomputes = level == 4;
    session->keeps = level == 0 && session->backend->ops->device;
    return DR_OK;
}

dr_status dr_session_prepare(dr_session *session, dr_phase phase, const dr_layout *layout, int64_t targets, bool selects,
                             bool labelled) {
    const dr_operations *ops = session->backend->ops;
    dr_arena arena;
    size_t needed;
    DR_TRY(dr_session_bytes(session, phase, layout, targets, selects, labelled, &needed));
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

dr_status dr_session_upload(dr_session *session, const dr_batch *batch, const int64_t *seen, const int64_t *slot) {
    if (session->phase != DR_PHASE_DECODE) { /* which has no losses */
        session->backend->ops->zero(session->backend, session->sum, sizeof *session->sum);
        session->backend->ops->zero(session->backend, session->extra, dr_kind_bytes(session->backend, DR_NUMBER, 1));
    }
    return dr_rows_upload(session->backend, batch, seen, slot, &session->tokens);
}

/* ---- layers --------------------------------------------------------------------------------------------------------- */

static dr_status embed(dr_session *session) {
    const dr_model *model = session->model;
    const dr_module_call trunk = dr_model_trunk(model, NULL);
    const dr_rows *tokens = &session->tokens;
    const int64_t rows = tokens->layout.rows, hidden = model->description.hidden;
    DR_TRY(session->backend->ops->embedding_forward(session->backend, rows, hidden, tokens->ids,
                                                    dr_module_weight(&trunk, model->embedding), session->embedded));
    DR_TRY(dr_module_scale(session->backend, model->description.embedding_scale, rows * hidden, session->embedded,
                           session->embedded));
    if (model->embedding_norm.kind == DR_NORM_NONE) return DR_OK;
    return dr_norm_forward(&model->embedding_norm, &trunk, rows, session->embedded, session->first);
}

/* From the gradient d of what layers begin with; x, of which the head's backward was the last reader, is used for that of what
 * the norm read. */
static dr_status embed_back(dr_session *session, void *d, char *gradients) {
    const dr_model *model = session->model;
    const dr_module_call trunk = dr_model_trunk(model, gradients);
    const int64_t rows = session->tokens.layout.rows, hidden = model->description.hidden;
    if (model->embedding_norm.kind != DR_NORM_NONE) {
        DR_TRY(dr_norm_backward(&model->embedding_norm, &trunk, rows, session->embedded, d, session->x, false));
        d = session->x;
    }
    DR_TRY(dr_module_scale(session->backend, model->description.embedding_scale, rows * hidden, d, d));
    return session->backend->ops->embedding_backward(session->backend, rows, hidden, session->tokens.ids, d,
                                                     dr_module_gradient(&trunk, model->embedding));
}

/* The trunk's parameters for the rows of the call. */
static dr_module_call trunk_call(const dr_session *session, char *gradients) {
    dr_module_call call = dr_model_trunk(session->model, gradients);
    describe_call(session, &call);
    return call;
}

/* Part by part, each from a weighted sum of earlier outputs. */
static dr_status run_attending(dr_session *session, dr_model_state *state) {
    const dr_model *model = session->model;
    const int64_t hidden = model->description.hidden;
    const dr_depth_sums *sums = &session->depth;
    const dr_module_call trunk = trunk_call(session, NULL);
    int64_t part = 0;
    for (int64_t i = 0; i < model->description.count; i++) {
        const dr_module_call call = layer_call(session, i, NULL);
        const dr_layer *kind = kind_of(session, i);
        for (int p = 0; p < kind->parts; p++, part++) {
            void *x = session->layers[i].stream[p];
            DR_TRY(dr_depth_read(&kind->part[p].depth, &call, sums, part, hidden, x));
            DR_TRY(dr_layer_part_forward(kind, p, &call, x, dr_depth_base(sums, part), sums->sum[part + 1], &session->layers[i],
                                         scratch_of(session, i), state ? &state->layers[i] : NULL));
        }
    }
    return dr_depth_read(&model->depth, &trunk, sums, part, hidden, session->x);
}

static dr_status run_back_attending(dr_session *session, char *gradients) {
    const dr_model *model = session->model;
    const int64_t hidden = model->description.hidden;
    const dr_depth_sums *sums = &session->depth;
    const dr_module_call trunk = trunk_call(session, gradients);
    int64_t part = sums->parts;
    dr_depth_sums_zero(sums, session->backend, bytes_of(session, session->tokens.layout.rows, hidden));
    DR_TRY(dr_depth_read_back(&model->depth, &trunk, sums, part, hidden, session->d_x));
    for (int64_t i = model->description.count - 1; i >= 0; i--) {
        const dr_module_call call = layer_call(session, i, gradients);
        const dr_layer *kind = kind_of(session, i);
        for (int p = kind->parts - 1; p >= 0; p--) {
            DR_TRY(dr_layer_part_backward(kind, p, &call, dr_depth_gradient(sums, part), session->d_x, false,
                                          &session->layers[i], scratch_of(session, i)));
            DR_TRY(dr_depth_read_back(&kind->part[p].depth, &call, sums, --part, hidden, session->d_x));
        }
    }
    return embed_back(session, dr_depth_gradient(sums, 0), gradients);
}

dr_status dr_session_run(dr_session *session, dr_model_state *state) {
    const int64_t layers = session->model->description.count;
    DR_TRY(embed(session));
    if (attends(session)) return run_attending(session, state);
    for (int64_t i = 0; i < layers; i++) {
        const dr_module_call call = layer_call(session, i, NULL);
        void *y = i + 1 < layers ? session->layers[i + 1].stream[0] : session->x;
        DR_TRY(dr_layer_forward(kind_of(session, i), &call, y, &session->layers[i], scratch_of(session, i),
                                state ? &state->layers[i] : NULL));
    }
    return DR_OK;
}

/* Makes what a layer kept before the next one took its place. The stream behind it is written once more, with the same bits. */
static dr_status run_again(dr_session *session, int64_t i) {
    dr_module_call call = layer_call(session, i, NULL);
    call.extra_loss = NULL; /* it was added to in the forward */
    return dr_layer_forward(kind_of(session, i), &call, session->layers[i + 1].stream[0], &session->layers[i],
                            scratch_of(session, i), NULL);
}

dr_status dr_session_run_back(dr_session *session, char *gradients) {
    if (session->d_passed)
        session->backend->ops->zero(session->backend, session->d_passed,
                                    bytes_of(session, session->tokens.layout.rows, session->model->passed));
    if (attends(session)) return run_back_attending(session, gradients);
    const int64_t last = session->model->description.count - 1;
    for (int64_t i = last; i >= 0; i--) {
        const dr_module_call call = layer_call(session, i, gradients);
        if (session->recomputes && i < last) DR_TRY(run_again(session, i));
        DR_TRY(dr_layer_backward(kind_of(session, i), &call, session->d_x, &session->layers[i], scratch_of(session, i)));
    }
    return embed_back(session, session->d_x, gradients);
}

/* ---- head ----------------------------------------------------------------------------------------------------------- */

dr_status dr_session_head(dr_session *session, const void *rows, int64_t begin, int64_t count) {
    const dr_model *model = session->model;
    const dr_module_call trunk = dr_model_trunk(model, NULL);
    const int64_t hidden = model->description.hidden;
    const dr_linear linear = {.rows = count, .in = hidden, .out = model->description.vocabulary};
    DR_TRY(dr_norm_forward(&model->final_norm, &trunk, count, (const char *)rows + bytes_of(session, begin, hidden),
                           session->normed));
    DR_TRY(session->backend->ops->linear_forward(session->backend, &linear, session->normed,
                                                 dr_module_weight(&trunk, model->head), NULL, session->logits));
    return dr_module_scale(session->backend, model->description.logits_scale, count * model->description.vocabulary,
                           session->logits, session->logits);
}

dr_status dr_session_head_back(dr_session *session, const void *rows, void *d_rows, int64_t begin, int64_t count,
                               char *gradients) {
    const dr_model *model = session->model;
    const dr_module_call trunk = dr_model_trunk(model, gradients);
    const int64_t hidden = model->description.hidden;
    const size_t skipped = bytes_of(session, begin, hidden);
    const dr_linear linear = {.rows = count, .in = hidden, .out = model->description.vocabulary};
    DR_TRY(dr_module_scale(session->backend, model->description.logits_scale, count * model->description.vocabulary,
                           session->logits, session->logits));
    DR_TRY(session->backend->ops->linear_backward(session->backend, &linear, session->normed,
                                                  dr_module_weight(&trunk, model->head), session->logits, session->d_normed,
                                                  false, dr_module_gradient(&trunk, model->head), NULL));
    return dr_norm_backward(&model->final_norm, &trunk, count, (const char *)rows + skipped, session->d_normed,
                            (char *)d_rows + skipped, false);
}
