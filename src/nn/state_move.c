/* Sequences of a model's states, copied from one state to another: clones, slices, batches put together, snapshots gone back
 * to. What has a fixed size is copied as it lies; of keys and values those tokens that the next query may see, each to where
 * the other state's ring has its position. */
#include "base/error.h"
#include "base/hash.h"
#include "nn/state.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- one sequence --------------------------------------------------------------------------------------------------- */

dr_status dr_state_store(const dr_model_state *state, int64_t sequence, char *record) {
    for (int64_t i = 0; i < state->part_count; i++) {
        const dr_state_part *part = &state->parts[i];
        DR_TRY(state->backend->ops->copy(state->backend, record, part->at + (size_t)sequence * part->bytes, part->bytes));
        record += part->bytes;
    }
    return DR_OK;
}

dr_status dr_state_fetch(dr_model_state *state, int64_t sequence, const char *record) {
    for (int64_t i = 0; i < state->part_count; i++) {
        const dr_state_part *part = &state->parts[i];
        DR_TRY(state->backend->ops->copy(state->backend, part->at + (size_t)sequence * part->bytes, record, part->bytes));
        record += part->bytes;
    }
    return DR_OK;
}

static char *place_of(const dr_backend *backend, const dr_grown *grown, int64_t sequence, int64_t position) {
    const int64_t row = sequence * grown->capacity + position % grown->capacity;
    return (char *)grown->at + dr_kind_bytes(backend, DR_VECTOR, row * grown->columns);
}

/* Tokens from a position on that lie together, at most as many as are left. */
static int64_t together(const dr_grown *grown, int64_t position, int64_t left) {
    const int64_t to_end = grown->capacity - position % grown->capacity;
    return left < to_end ? left : to_end;
}

dr_status dr_state_copy_grown(const dr_model_state *from, int64_t sequence, int64_t tokens, dr_model_state *to, int64_t other) {
    dr_backend *backend = to->backend;
    for (int64_t i = 0; i < from->grown_count; i++) {
        const dr_grown *a = &from->grown[i], *b = &to->grown[i];
        int64_t position = tokens > a->most ? tokens - a->most : 0;
        while (position < tokens) {
            const int64_t count = together(b, position, together(a, position, tokens - position));
            DR_TRY(backend->ops->copy(backend, place_of(backend, b, other, position), place_of(backend, a, sequence, position),
                                      dr_kind_bytes(backend, DR_VECTOR, count * a->columns)));
            position += count;
        }
    }
    return DR_OK;
}

static dr_status copy_sequence(const dr_model_state *from, int64_t sequence, dr_model_state *to, int64_t other) {
    dr_backend *backend = to->backend;
    for (int64_t i = 0; i < from->part_count; i++) {
        const dr_state_part *a = &from->parts[i], *b = &to->parts[i];
        DR_TRY(backend->ops->copy(backend, b->at + (size_t)other * b->bytes, a->at + (size_t)sequence * a->bytes, a->bytes));
    }
    DR_TRY(dr_state_copy_grown(from, sequence, from->seen[sequence], to, other));
    to->seen[other] = from->seen[sequence];
    to->decoded[other] = from->decoded[sequence];
    to->hash[other] = from->hash[sequence];
    return DR_OK;
}

/* ---- states --------------------------------------------------------------------------------------------------------- */

int64_t dr_model_state_sequences(const dr_model_state *state) {
    return state ? state->sequences : 0;
}

const dr_model *dr_model_state_model(const dr_model_state *state) {
    return state ? state->model : NULL;
}

static dr_status check_range(const dr_model_state *state, const char *what, int64_t first, int64_t count) {
    if (first >= 0 && count >= 1 && first <= state->sequences - count) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "%" PRId64 " sequences from %" PRId64 " on are not among the %" PRId64 " of %s", count,
                   first, state->sequences, what);
}

dr_status dr_model_state_about(const dr_model_state *state, int64_t sequence, dr_position *about) {
    DR_NEED(state);
    DR_NEED(about);
    DR_TRY(check_range(state, "the state", sequence, 1));
    *about = (dr_position){state->seen[sequence], state->decoded[sequence], state->hash[sequence]};
    return DR_OK;
}

size_t dr_model_state_bytes(const dr_model_state *state) {
    size_t bytes = 0;
    if (!state) return 0;
    for (int64_t i = 0; i < state->grown_count; i++)
        bytes +=
            dr_kind_bytes(state->backend, DR_VECTOR, state->sequences * state->grown[i].capacity * state->grown[i].columns);
    return bytes + state->bytes;
}

dr_status dr_model_state_copy(const dr_model_state *from, int64_t first, int64_t count, dr_model_state *to, int64_t begin) {
    int64_t tokens = 0;
    DR_NEED(from);
    DR_NEED(to);
    if (from->model != to->model)
        return dr_fail(DR_ERROR_ARGUMENT, "the states are of two models: sequences go from one to another of the same");
    DR_TRY(check_range(from, "the state that is copied", first, count));
    DR_TRY(check_range(to, "the state that is written", begin, count));
    if (from == to && first < begin + count && begin < first + count)
        return dr_fail(DR_ERROR_ARGUMENT, "sequences %" PRId64 " and on would be copied over themselves", first);
    for (int64_t i = 0; i < count; i++)
        if (from->seen[first + i] > tokens) tokens = from->seen[first + i];
    DR_TRY(dr_model_state_room(to, tokens));
    for (int64_t i = 0; i < count; i++) DR_TRY(copy_sequence(from, first + i, to, begin + i));
    return DR_OK;
}

dr_status dr_model_state_slice(const dr_model_state *state, int64_t first, int64_t count, dr_model_state **part) {
    dr_model_state *made = NULL;
    DR_NEED(state);
    DR_NEED(part);
    DR_TRY(check_range(state, "the state", first, count));
    DR_TRY(dr_model_state_make(state->model, count, &made));
    const dr_status status = dr_model_state_copy(state, first, count, made, 0);
    if (status == DR_OK)
        *part = made;
    else
        dr_model_state_destroy(made);
    return status;
}

dr_status dr_model_state_clone(const dr_model_state *state, dr_model_state **copy) {
    DR_NEED(state);
    DR_NEED(copy);
    return dr_model_state_slice(state, 0, state->sequences, copy);
}

dr_status dr_model_state_restore(dr_model_state *state, const dr_model_state *snapshot) {
    DR_NEED(state);
    DR_NEED(snapshot);
    if (state->sequences != snapshot->sequences)
        return dr_fail(DR_ERROR_ARGUMENT, "the state has %" PRId64 " sequences, but the snapshot %" PRId64, state->sequences,
                       snapshot->sequences);
    return state == snapshot ? DR_OK : dr_model_state_copy(snapshot, 0, snapshot->sequences, state, 0);
}

static dr_status check_parts(const dr_model_state *const *parts, int64_t count, int64_t *sequences) {
    *sequences = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!parts[i]) return dr_fail(DR_ERROR_ARGUMENT, "part %" PRId64 " is missing", i);
        if (parts[i]->model != parts[0]->model)
            return dr_fail(DR_ERROR_ARGUMENT, "part %" PRId64 " is of another model than part 0", i);
        *sequences += parts[i]->sequences;
    }
    return DR_OK;
}

dr_status dr_model_state_concatenate(const dr_model_state *const *parts, int64_t count, dr_model_state **whole) {
    int64_t sequences, begin = 0;
    dr_model_state *made = NULL;
    dr_status status = DR_OK;
    DR_NEED(parts);
    DR_NEED(whole);
    if (count < 1) return dr_fail(DR_ERROR_ARGUMENT, "there must be at least one part to put together");
    DR_TRY(check_parts(parts, count, &sequences));
    DR_TRY(dr_model_state_make(parts[0]->model, sequences, &made));
    for (int64_t i = 0; i < count && status == DR_OK; i++) {
        status = dr_model_state_copy(parts[i], 0, parts[i]->sequences, made, begin);
        begin += parts[i]->sequences;
    }
    if (status == DR_OK)
        *whole = made;
    else
        dr_model_state_destroy(made);
    return status;
}
