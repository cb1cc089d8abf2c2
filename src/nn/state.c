/* What a model carries from token to token: what the modules of each layer do, and how many tokens each sequence has seen. */
#include "nn/state.h"
#include "base/error.h"
#include "base/hash.h"

#include <inttypes.h>

static void place_host(dr_model_state *state, dr_arena *host) {
    for (int64_t i = 0; i < state->model->description.count; i++)
        dr_layer_host_state(state->model->layers[i].kind, host, &state->layers[i]);
}

static void place_state(dr_model_state *state, dr_arena *arena) {
    for (int64_t i = 0; i < state->model->description.count; i++)
        dr_layer_place_state(state->model->layers[i].kind, state->backend, state->sequences, arena, &state->layers[i]);
}

/* How what grows lies now; list: NULL, or where that goes. */
static int64_t list_grown(const dr_model_state *state, dr_grown *list) {
    int64_t count = 0;
    for (int64_t i = 0; i < state->model->description.count; i++)
        count += dr_layer_grown(state->model->layers[i].kind, &state->layers[i], list ? list + count : NULL);
    return count;
}

static dr_status take(int64_t count, size_t size, void *to) {
    void *memory = NULL;
    DR_TRY(dr_allocate_zero((size_t)count * size, "a model's state", &memory));
    memcpy(to, &memory, sizeof memory);
    return DR_OK;
}

static dr_status make_host(dr_model_state *state) {
    dr_arena host = {0};
    DR_TRY(take(state->model->description.count, sizeof(dr_layer_state), &state->layers));
    DR_TRY(take(state->sequences, sizeof(int64_t), &state->seen));
    DR_TRY(take(state->sequences, sizeof(int64_t), &state->decoded));
    DR_TRY(take(state->sequences, sizeof(uint64_t), &state->hash));
    place_host(state, &host);
    DR_TRY(dr_allocate_zero(host.used, "a model's state", &state->host));
    host = (dr_arena){.block = state->host};
    place_host(state, &host);
    state->grown_count = list_grown(state, NULL);
    DR_TRY(take(2 * state->grown_count, sizeof(dr_grown), &state->grown));
    list_grown(state, state->grown);
    return DR_OK;
}

/* Hands out the block, and writes down its parts. */
static dr_status list_parts(dr_model_state *state) {
    void *memory = NULL;
    const size_t count = (size_t)state->part_count;
    DR_TRY(take(state->part_count, sizeof(dr_state_part), &state->parts));
    DR_TRY(dr_allocate(count * (sizeof(size_t) + sizeof(void *)), "a model's state", &memory));
    dr_arena arena = {.block = state->block, .sizes = memory, .parts = (void *)((size_t *)memory + count)};
    place_state(state, &arena);
    for (int64_t i = 0; i < state->part_count; i++) {
        state->parts[i] = (dr_state_part){arena.parts[i], arena.sizes[i] / (size_t)state->sequences};
        state->record += state->parts[i].bytes;
    }
    dr_release(memory);
    return DR_OK;
}

static dr_status fill_state(dr_model_state *state) {
    const dr_operations *ops = state->backend->ops;
    dr_arena arena = {0};
    DR_TRY(make_host(state));
    place_state(state, &arena);
    state->bytes = arena.used;
    state->part_count = arena.count;
    DR_TRY(ops->allocate(state->backend, state->bytes, &state->block));
    DR_TRY(list_parts(state));
    dr_model_state_reset(state);
    return DR_OK;
}

dr_status dr_model_state_make(const dr_model *model, int64_t sequences, dr_model_state **state) {
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

dr_status dr_model_state_create(const dr_model *model, int64_t sequences, dr_model_state **state) {
    dr_model_state *made = NULL;
    DR_NEED(model);
    DR_NEED(state);
    DR_TRY(dr_model_state_make(model, sequences, &made));
    const dr_status status = dr_model_steps_prepare(made);
    if (status == DR_OK)
        *state = made;
    else
        dr_model_state_destroy(made);
    return status;
}

void dr_model_state_reset(dr_model_state *state) {
    if (!state) return;
    state->backend->ops->zero(state->backend, state->block, state->bytes);
    for (int64_t i = 0; i < state->sequences; i++) state->seen[i] = state->decoded[i] = 0, state->hash[i] = DR_HASH_START;
}

void dr_model_state_destroy(dr_model_state *state) {
    if (!state) return;
    dr_model_choose_forget(state);
    dr_session_destroy(state->step);
    for (int64_t i = 0; state->host && i < state->model->description.count; i++)
        dr_layer_release_state(state->model->layers[i].kind, state->backend, &state->layers[i]);
    if (state->block) state->backend->ops->free(state->backend, state->block);
    dr_release(state->layers);
    dr_release(state->host);
    dr_release(state->seen);
    dr_release(state->decoded);
    dr_release(state->hash);
    dr_release(state->parts);
    dr_release(state->grown);
    dr_release(state);
}

/* Lists what grows anew, and counts when any of it lies elsewhere than before. */
static void relist(dr_model_state *state) {
    const size_t bytes = (size_t)state->grown_count * sizeof(dr_grown);
    dr_grown *before = state->grown + state->grown_count;
    if (bytes == 0) return;
    memcpy(before, state->grown, bytes);
    list_grown(state, state->grown);
    if (memcmp((const char *)before, (const char *)state->grown, bytes) != 0) state->moves++;
}

dr_status dr_model_state_room(dr_model_state *state, int64_t tokens) {
    dr_status status = DR_OK;
    for (int64_t i = 0; i < state->model->description.count && status == DR_OK; i++)
        status =
            dr_layer_reserve_state(state->model->layers[i].kind, state->backend, state->sequences, tokens, &state->layers[i]);
    relist(state); /* of the layers before one that failed too */
    return status;
}

dr_status dr_model_state_reserve(dr_model_state *state, const dr_layout *layout) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < layout->sequences; i++) {
        const int64_t seen = state->seen[i] + dr_layout_begin(layout, i + 1) - dr_layout_begin(layout, i);
        if (seen > tokens) tokens = seen;
    }
    return dr_model_state_room(state, tokens);
}

void dr_model_state_advance(dr_model_state *state, const dr_batch *batch, bool decoded) {
    for (int64_t i = 0; i < batch->layout.sequences; i++) {
        const int64_t begin = dr_layout_begin(&batch->layout, i), end = dr_layout_begin(&batch->layout, i + 1);
        state->seen[i] += end - begin;
        if (decoded) state->decoded[i] += end - begin;
        for (int64_t row = begin; batch->ids && row < end; row++)
            state->hash[i] = dr_hash_word(state->hash[i], (uint64_t)batch->ids[row]);
    }
}
