/* A step of a pool. Decode items go through the decode engine together, a token each at a time; then prompts go through the
 * chunkwise engine in calls of at most so many rows, first up to their last boundary, each cut at boundaries only, then what is
 * left behind it. A sequence is so computed in pieces that begin at boundaries, whatever pieces it comes in. */
#include "nn/pool.h"

#include "base/error.h"
#include "base/hash.h"

#include <inttypes.h>
#include <string.h>

/* ---- checks --------------------------------------------------------------------------------------------------------- */

static dr_status check_snapshots(const dr_pool *pool, int64_t index, const dr_pool_item *item, const dr_pool_slot *slot) {
    int64_t last = slot->boundary + slot->behind;
    const int64_t end = last + item->count;
    if (item->snapshots < 0)
        return dr_fail(DR_ERROR_ARGUMENT, "item %" PRId64 " wants %" PRId64 " snapshots; there may be 0 or more", index,
                       item->snapshots);
    if (item->snapshots == 0) return DR_OK;
    if (item->decode)
        return dr_fail(DR_ERROR_ARGUMENT, "item %" PRId64 " decodes: snapshots are made where a prompt is read", index);
    if (!item->positions || !item->made)
        return dr_fail(DR_ERROR_ARGUMENT, "item %" PRId64 " wants snapshots: positions and made must not be NULL", index);
    for (int64_t i = 0; i < item->snapshots; i++) {
        const int64_t at = item->positions[i];
        if (at <= last || at > end)
            return dr_fail(DR_ERROR_ARGUMENT,
                           "item %" PRId64 ": snapshot %" PRId64 " is at token %" PRId64 "; it must be from %" PRId64
                           " to %" PRId64,
                           index, i, at, last + 1, end);
        if ((at - slot->boundary) % pool->grain != 0)
            return dr_fail(DR_ERROR_ARGUMENT,
                           "item %" PRId64 ": snapshot %" PRId64 " is at token %" PRId64 "; it must be a multiple of %" PRId64
                           " tokens behind token %" PRId64,
                           index, i, at, pool->grain, slot->boundary);
        last = at;
    }
    return DR_OK;
}

static dr_status check_item(const dr_pool *pool, int64_t index, const dr_pool_item *item) {
    const int64_t vocabulary = pool->model->description.vocabulary, most = pool->options.tokens;
    if (item->slot < 0 || item->slot >= pool->options.slots)
        return dr_fail(DR_ERROR_ARGUMENT, "item %" PRId64 " is of slot %" PRId64 "; it must be from 0 to %" PRId64, index,
                       item->slot, pool->options.slots - 1);
    if (pool->named[item->slot])
        return dr_fail(DR_ERROR_ARGUMENT, "item %" PRId64 " is of slot %" PRId64 ", as another one is", index, item->slot);
    pool->named[item->slot] = true;
    const dr_pool_slot *slot = &pool->slot[item->slot];
    const int64_t tokens = slot->boundary + slot->behind;
    if (item->count < 1 || !item->ids)
        return dr_fail(DR_ERROR_ARGUMENT, "item %" PRId64 " has %" PRId64 " tokens%s; there must be one at least", index,
                       item->count, item->ids ? "" : ", and ids is NULL");
    if (item->wanted < 0 || item->wanted > item->count)
        return dr_fail(DR_ERROR_ARGUMENT, "item %" PRId64 " wants results of %" PRId64 " tokens; it has %" PRId64, index,
                       item->wanted, item->count);
    if (item->count > INT64_MAX / 2 - tokens || (most > 0 && tokens + item->count > most))
        return dr_fail(DR_ERROR_ARGUMENT,
                       "slot %" PRId64 " has %" PRId64 " tokens and would come to %" PRId64 "; the pool has room for %" PRId64,
                       item->slot, tokens, tokens + item->count, most);
    for (int64_t i = 0; i < item->count; i++)
        if (item->ids[i] < 0 || item->ids[i] >= vocabulary)
            return dr_fail(DR_ERROR_ARGUMENT, "item %" PRId64 ": id %" PRId64 " is %" PRId32 "; it must be from 0 to %" PRId64,
                           index, i, item->ids[i], vocabulary - 1);
    return check_snapshots(pool, index, item, slot);
}

static dr_status check_items(dr_pool *pool, const dr_pool_item *items, int64_t count) {
    memset(pool->named, 0, (size_t)pool->options.slots * sizeof *pool->named);
    if (count < 0 || count > pool->options.slots)
        return dr_fail(DR_ERROR_ARGUMENT, "a step of %" PRId64 " items; there may be 0 to %" PRId64 ", one a slot", count,
                       pool->options.slots);
    for (int64_t i = 0; i < count; i++) DR_TRY(check_item(pool, i, &items[i]));
    return DR_OK;
}

/* ---- one call ------------------------------------------------------------------------------------------------------- */

/* The slots in pool->list become the first sequences of the layers' state. */
static dr_status hold(dr_pool *pool, int64_t count) {
    if (pool->held_count == count && memcmp(pool->held, pool->list, (size_t)count * sizeof *pool->list) == 0) return DR_OK;
    DR_TRY(dr_pool_flush(pool));
    for (int64_t i = 0; i < count; i++)
        DR_TRY(dr_state_fetch(pool->state, i, dr_pool_record(pool, pool->current, pool->list[i])));
    memcpy(pool->held, pool->list, (size_t)count * sizeof *pool->list);
    pool->held_count = count;
    return DR_OK;
}

/* Logits and hidden states of the call's wanted tokens, to their rows of the results. */
static dr_status give(dr_pool *pool, dr_session *session, int64_t targets, const dr_pool_results *results) {
    const int64_t vocabulary = pool->model->description.vocabulary, hidden = pool->model->description.hidden;
    if (targets == 0 || (!results->logits && !results->hidden)) return DR_OK;
    DR_TRY(pool->backend->ops->rows_gather(pool->backend, targets, hidden, session->tokens.positions, session->x,
                                           session->selected));
    for (int64_t begin = 0; begin < targets; begin += DR_HEAD_ROWS) {
        const int64_t left = targets - begin, count = left < DR_HEAD_ROWS ? left : DR_HEAD_ROWS;
        DR_TRY(dr_session_head(session, session->selected, begin, count));
        for (int64_t i = 0; i < count; i++) {
            const int64_t to = pool->result[begin + i];
            if (results->logits)
                DR_TRY(dr_kind_download(pool->backend, DR_VECTOR, results->logits + to * vocabulary, DR_F32,
                                        (char *)session->logits + dr_kind_bytes(pool->backend, DR_VECTOR, i * vocabulary),
                                        vocabulary));
            if (results->hidden)
                DR_TRY(dr_kind_download(pool->backend, DR_VECTOR, results->hidden + to * hidden, DR_F32,
                                        (char *)session->normed + dr_kind_bytes(pool->backend, DR_VECTOR, i * hidden), hidden));
        }
    }
    return DR_OK;
}

/* The same answers go on for many steps: their call is planned once. */
static dr_status plan_steps(dr_pool *pool, const dr_batch *batch) {
    if (pool->steps == batch->layout.sequences && pool->step_targets == batch->targets) return DR_OK;
    pool->steps = 0;
    DR_TRY(dr_session_prepare(pool->decode, DR_PHASE_DECODE, &batch->layout, batch->targets, true, false));
    pool->steps = batch->layout.sequences;
    pool->step_targets = batch->targets;
    return DR_OK;
}

/* The first `count` places of pool->called, with pool->ids and, by chunks, pool->begins. */
static dr_status call(dr_pool *pool, bool decode, int64_t count, int64_t targets, const dr_pool_results *results) {
    dr_session *session = decode ? pool->decode : pool->read;
    const int64_t rows = decode ? count : pool->begins[count];
    const dr_batch batch = {.layout = {count, rows, decode ? NULL : pool->begins},
                            .ids = pool->ids,
                            .targets = targets,
                            .positions = pool->positions};
    int64_t most = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t tokens = pool->seen[i] + (decode ? 1 : pool->begins[i + 1] - pool->begins[i]);
        if (tokens > most) most = tokens;
    }
    DR_TRY(hold(pool, count));
    DR_TRY(dr_model_state_room(pool->state, most));
    if (!decode) DR_TRY(dr_session_prepare(session, DR_PHASE_FORWARD, &batch.layout, targets, true, false));
    if (decode) DR_TRY(plan_steps(pool, &batch));
    DR_TRY(dr_session_upload(session, &batch, pool->seen, pool->list));
    DR_TRY(dr_session_run(session, pool->state));
    return give(pool, session, targets, results);
}

/* Adds a row of an item to the call's targets if its result is wanted. */
static void want(dr_pool *pool, const dr_pool_work *work, int64_t index, int64_t row, int64_t *targets) {
    const int64_t first = work->item->count - work->item->wanted;
    if (index < first) return;
    pool->positions[*targets] = row;
    pool->result[*targets] = work->result + index - first;
    ++*targets;
}

/* ---- decoding ------------------------------------------------------------------------------------------------------- */

/* Token `index` of every decode item that has one. */
static dr_status decode_round(dr_pool *pool, int64_t works, int64_t index, bool *more, const dr_pool_results *results) {
    int64_t count = 0, targets = 0;
    for (int64_t i = 0; i < works; i++) {
        const dr_pool_work *work = &pool->work[i];
        if (!work->item->decode || index >= work->item->count) continue;
        pool->called[count] = i;
        pool->list[count] = work->item->slot;
        pool->seen[count] = work->slot->boundary + work->slot->behind;
        pool->ids[count] = work->item->ids[index];
        want(pool, work, index, count, &targets);
        count++;
    }
    *more = count > 0;
    if (count == 0) return DR_OK;
    DR_TRY(call(pool, true, count, targets, results));
    for (int64_t i = 0; i < count; i++) {
        dr_pool_slot *slot = pool->work[pool->called[i]].slot;
        slot->hash = slot->boundary_hash = dr_hash_word(slot->hash, (uint64_t)pool->ids[i]);
        slot->boundary += slot->behind + 1;
        slot->behind = 0;
        slot->decoded++;
    }
    return DR_OK;
}

/* ---- reading -------------------------------------------------------------------------------------------------------- */

/* Tokens up to the last boundary, or behind it, that an item has left. */
static int64_t left_of(const dr_pool *pool, const dr_pool_work *work, bool behind) {
    const int64_t left = work->item->count - work->from, whole = left / pool->grain * pool->grain;
    if (behind) return left - whole;
    if (work->snapshot == work->item->snapshots) return whole;
    const int64_t to_snapshot = work->item->positions[work->snapshot] - work->slot->boundary;
    return to_snapshot < whole ? to_snapshot : whole;
}

static int32_t id_at(const dr_pool_work *work, int64_t index) {
    return index < 0 ? work->slot->tail[work->slot->behind + index] : work->item->ids[index];
}

/* Puts as many rows of an item as there is room for into the call. */
static void put(dr_pool *pool, dr_pool_work *work, bool behind, int64_t *count, int64_t *targets) {
    const int64_t begin = pool->begins[*count], room = pool->options.rows - begin;
    int64_t rows = left_of(pool, work, behind);
    if (rows > room) rows = behind ? 0 : room / pool->grain * pool->grain;
    work->rows = rows;
    if (rows == 0) return;
    pool->list[*count] = work->item->slot;
    pool->seen[*count] = work->slot->boundary;
    for (int64_t i = 0; i < rows; i++) {
        pool->ids[begin + i] = id_at(work, work->from + i);
        want(pool, work, work->from + i, begin + i, targets);
    }
    pool->begins[++*count] = begin + rows;
}

/* Rows up to a boundary have been read: it is the slot's, and a snapshot may be due. */
static dr_status pass(dr_pool *pool, dr_pool_work *work) {
    dr_pool_slot *slot = work->slot;
    for (int64_t i = 0; i < work->rows; i++)
        slot->boundary_hash = dr_hash_word(slot->boundary_hash, (uint64_t)id_at(work, work->from + i));
    work->from += work->rows;
    slot->boundary += work->rows;
    slot->behind = 0;
    slot->hash = slot->boundary_hash;
    const dr_pool_item *item = work->item;
    if (work->snapshot == item->snapshots || item->positions[work->snapshot] != slot->boundary) return DR_OK;
    DR_TRY(dr_pool_keep(pool, item->slot, &item->made[work->snapshot]));
    work->snapshot++;
    return DR_OK;
}

/* Rows behind the last boundary have been read: their ids are kept. */
static void trail(dr_pool_work *work) {
    dr_pool_slot *slot = work->slot;
    const int64_t old = work->from < 0 ? -work->from : 0;
    for (int64_t i = work->from + old; i < work->item->count; i++) {
        slot->tail[i - work->from] = work->item->ids[i];
        slot->hash = dr_hash_word(slot->hash, (uint64_t)work->item->ids[i]);
    }
    slot->behind = work->rows;
    work->from = work->item->count;
}

/* One call of prompts; *more: there were rows. */
static dr_status read_round(dr_pool *pool, int64_t works, bool behind, bool *more, const dr_pool_results *results) {
    int64_t count = 0, targets = 0;
    pool->begins[0] = 0;
    for (int64_t i = 0; i < works; i++) {
        dr_pool_work *work = &pool->work[i];
        const int64_t before = count;
        work->rows = 0;
        if (!work->item->decode) put(pool, work, behind, &count, &targets);
        if (count > before) pool->called[before] = i;
    }
    *more = count > 0;
    if (count == 0) return DR_OK;
    if (behind) { /* the state that these rows start from is that of the boundary */
        DR_TRY(dr_pool_flush(pool));
        for (int64_t i = 0; i < count; i++)
            DR_TRY(pool->backend->ops->copy(pool->backend, dr_pool_record(pool, pool->boundary, pool->list[i]),
                                            dr_pool_record(pool, pool->current, pool->list[i]), pool->state->record));
    }
    DR_TRY(call(pool, false, count, targets, results));
    for (int64_t i = 0; i < count; i++) {
        dr_pool_work *work = &pool->work[pool->called[i]];
        if (behind)
            trail(work);
        else
            DR_TRY(pass(pool, work));
    }
    return DR_OK;
}

/* Slots that have read beyond a boundary go back to it. */
static dr_status go_back(dr_pool *pool, int64_t works) {
    bool flushed = false;
    for (int64_t i = 0; i < works; i++) {
        const dr_pool_work *work = &pool->work[i];
        if (work->item->decode || work->slot->behind == 0) continue;
        if (!flushed) DR_TRY(dr_pool_flush(pool));
        flushed = true;
        DR_TRY(pool->backend->ops->copy(pool->backend, dr_pool_record(pool, pool->current, work->item->slot),
                                        dr_pool_record(pool, pool->boundary, work->item->slot), pool->state->record));
    }
    return DR_OK;
}

/* ---- the step ------------------------------------------------------------------------------------------------------- */

static dr_status run(dr_pool *pool, int64_t works, const dr_pool_results *results) {
    bool more = true;
    for (int64_t index = 0; more; index++) DR_TRY(decode_round(pool, works, index, &more, results));
    DR_TRY(go_back(pool, works));
    for (int behind = 0; behind < 2; behind++) {
        more = true;
        while (more) DR_TRY(read_round(pool, works, behind == 1, &more, results));
    }
    return DR_OK;
}

/* After a failure: what the layers' state holds of other slots is whole, that of the items' slots is not. */
static void undo(dr_pool *pool, int64_t works) {
    bool shared = false;
    for (int64_t i = 0; i < pool->held_count; i++) shared |= !pool->named[pool->held[i]];
    if (shared) dr_pool_flush(pool);
    pool->held_count = 0;
    for (int64_t i = 0; i < works; i++) {
        const dr_pool_work *work = &pool->work[i];
        for (int64_t s = 0; s < work->snapshot; s++) {
            dr_model_state_destroy(work->item->made[s]);
            work->item->made[s] = NULL;
        }
        dr_pool_clear(pool, work->item->slot);
    }
}

dr_status dr_pool_step(dr_pool *pool, const dr_pool_item *items, int64_t count, const dr_pool_results *results) {
    static const dr_pool_results none = {NULL, NULL};
    int64_t result = 0;
    DR_NEED(pool);
    if (count > 0) DR_NEED(items);
    DR_TRY(check_items(pool, items, count));
    for (int64_t i = 0; i < count; i++) {
        dr_pool_slot *slot = &pool->slot[items[i].slot];
        pool->work[i] =
            (dr_pool_work){.item = &items[i], .slot = slot, .from = items[i].decode ? 0 : -slot->behind, .result = result};
        result += items[i].wanted;
        for (int64_t s = 0; s < items[i].snapshots; s++) items[i].made[s] = NULL;
    }
    const dr_status status = run(pool, count, results ? results : &none);
    if (status != DR_OK) undo(pool, count);
    return status;
}
