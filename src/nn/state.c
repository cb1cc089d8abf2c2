/* What a model carries from token to token: what the modules of each layer do, and how many tokens each sequence has seen. One
 * token a sequence goes through the decode engine in memory that was planned when the state was made: a step allocates
 * nothing, but where layers remember every token, and then seldom: what they have at least doubles. */
#include "base/error.h"
#include "nn/session.h"
#include <inttypes.h>

static void place_host(dr_model_state *state, dr_arena *host) {
    for (int64_t i = 0; i < state->model->description.count; i++)
        dr_layer_host_state(state->model->layers[i].kind, host, &state->layers[i]);
}

static void place_state(dr_model_state *state, dr_arena *arena) {
    for (int64_t i = 0; i < state->model->description.count; i++)
        dr_layer_place_state(state->model->layers[i].kind, state->backend, state->sequences, arena, &state->layers[i]);
}

static dr_status make_host(dr_model_state *state) {
    void *memory = NULL;
    dr_arena host = {0};
    DR_TRY(dr_allocate_zero((size_t)state->model->description.count * sizeof(dr_layer_state), "a model's state", &memory));
    state->layers = memory;
    DR_TRY(dr_allocate_zero((size_t)state->sequences * sizeof(int64_t), "a model's state", &memory));
    state->seen = memory;
    place_host(state, &host);
    DR_TRY(dr_allocate_zero(host.used, "a model's state", &state->host));
    host = (dr_arena){.block = state->host};
    place_host(state, &host);
    return DR_OK;
}

static dr_status fill_state(dr_model_state *state) {
    const dr_operations *ops = state->backend->ops;
    dr_arena arena = {0};
    DR_TRY(make_host(state));
    place_state(state, &arena);
    state->bytes = arena.used;
    DR_TRY(ops->allocate(state->backend, state->bytes, &state->block));
    arena = (dr_arena){.block = state->block};
    place_state(state, &arena);
    dr_model_state_reset(state);
    DR_TRY(dr_session_create(state->model, &state->step));
    dr_layout layout = {state->sequences, state->sequences, NULL};
    return dr_session_prepare(state->step, DR_PHASE_DECODE, &layout, state->sequences, false, false);
}

dr_status dr_model_state_create(const dr_model *model, int64_t sequences, dr_model_state **state) {
    DR_NEED(model);
    DR_NEED(state);
    if (sequences < 1 || sequences > 1 << 20)
        return dr_fail(DR_ERROR_ARGUMENT, "a state of %" PRId64 " sequences; it must be from 1 to %d", sequences, 1 << 20);
    void *memory = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_model_state), "a model's state", &memory));
    dr_model_state *made = memory;
    *made = (dr_model_state){.model = model, .backend = model->backend, .sequences = sequences};
    dr_status status = fill_state(made);
    if (status != DR_OK) {
        dr_model_state_destroy(made);
        return status;
    }
    *state = made;
    return DR_OK;
}

void dr_model_state_reset(dr_model_state *state) {
    if (!state) return;
    state->backend->ops->zero(state->backend, state->block, state->bytes);
    for (int64_t i = 0; i < state->sequences; i++) state->seen[i] = 0;
}

void dr_model_state_destroy(dr_model_state *state) {
    if (!state) return;
    dr_session_destroy(state->step);
    for (int64_t i = 0; state->host && i < state->model->description.count; i++)
        dr_layer_release_state(state->model->layers[i].kind, state->backend, &state->layers[i]);
    if (state->block) state->backend->ops->free(state->backend, state->block);
    dr_release(state->layers);
    dr_release(state->host);
    dr_release(state->seen);
    dr_release(state);
}

dr_status dr_model_state_reserve(dr_model_state *state, const dr_layout *layout) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < layout->sequences; i++) {
        const int64_t seen = state->seen[i] + dr_layout_begin(layout, i + 1) - dr_layout_begin(layout, i);
        if (seen > tokens) tokens = seen;
    }
    for (int64_t i = 0; i < state->model->description.count; i++)
        DR_TRY(
            dr_layer_reserve_state(state->model->layers[i].kind, state->backend, state->sequences, tokens, &state->layers[i]));
    return DR_OK;
}

void dr_model_state_advance(dr_model_state *state, const dr_layout *layout) {
    for (int64_t i = 0; i < layout->sequences; i++)
        state->seen[i] += dr_layout_begin(layout, i + 1) - dr_layout_begin(layout, i);
}

dr_status dr_model_step(const dr_model *model, const int32_t *ids, dr_model_state *state, float *logits) {
    DR_NEED(model);
    DR_NEED(ids);
    DR_NEED(state);
    DR_NEED(logits);
    int64_t vocabulary = model->description.vocabulary;
    if (state->model != model) return dr_fail(DR_ERROR_ARGUMENT, "the state is of another model");
    for (int64_t i = 0; i < state->sequences; i++)
        if (ids[i] < 0 || ids[i] >= vocabulary)
            return dr_fail(DR_ERROR_ARGUMENT, "id %" PRId64 " is %" PRId32 "; it must be from 0 to %" PRId64, i, ids[i],
                           vocabulary - 1);
    dr_session *session = state->step;
    dr_batch batch = {.layout = {state->sequences, state->sequences, NULL}, .ids = ids, .targets = state->sequences};
    DR_TRY(dr_model_state_reserve(state, &batch.layout));
    DR_TRY(dr_session_upload(session, &batch, state));
    DR_TRY(dr_session_run(session, state));
    dr_model_state_advance(state, &batch.layout);
    for (int64_t begin = 0; begin < state->sequences; begin += DR_HEAD_ROWS) {
        int64_t left = state->sequences - begin, count = left < DR_HEAD_ROWS ? left : DR_HEAD_ROWS;
        DR_TRY(dr_session_head(session, session->x, begin, count));
        DR_TRY(dr_kind_download(model->backend, DR_VECTOR, logits + begin * vocabulary, DR_F32, session->logits,
                                count * vocabulary));
    }
    return DR_OK;
}
