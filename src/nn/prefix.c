/* What a store of prefixes has in memory. There are hundreds of snapshots, not millions, since each is a state: a look-up goes
 * through all of them, and compares ids only where hashes agree. */
#include "nn/prefix.h"

#include "base/error.h"
#include "base/hash.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

dr_prefix_options dr_prefix_defaults(void) {
    return (dr_prefix_options){.bytes = (size_t)256 << 20, .folder = NULL, .folder_bytes = (size_t)1 << 30};
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

dr_status dr_prefixes_create(const dr_model *model, const dr_prefix_options *options, dr_prefixes **prefixes) {
    void *memory = NULL;
    DR_NEED(model);
    DR_NEED(options);
    DR_NEED(prefixes);
    DR_TRY(dr_allocate_zero(sizeof(dr_prefixes), "a store of prefixes", &memory));
    dr_prefixes *made = memory;
    dr_status status;
    *made = (dr_prefixes){.model = model, .options = *options};
    made->options.folder = NULL;
    DR_GO(dr_model_grain(model, &made->grain));
    if (options->folder) {
        DR_GO(dr_model_identity(model, &made->identity));
        DR_GO(dr_copy_string(options->folder, &made->folder));
        DR_GO(dr_prefix_open_folder(made));
    }
    *prefixes = made;
    return DR_OK;
done:
    dr_prefixes_destroy(made);
    return status;
}

void dr_prefixes_destroy(dr_prefixes *prefixes) {
    if (!prefixes) return;
    for (int64_t i = 0; i < prefixes->count; i++) {
        dr_model_state_destroy(prefixes->at[i].state);
        dr_release(prefixes->at[i].ids);
    }
    dr_release(prefixes->at);
    dr_release(prefixes->folder);
    dr_release(prefixes);
}

dr_status dr_prefixes_count(const dr_prefixes *prefixes, dr_prefix_counts *counts) {
    DR_NEED(prefixes);
    DR_NEED(counts);
    *counts = prefixes->counts;
    return DR_OK;
}

/* ---- the list ------------------------------------------------------------------------------------------------------- */

bool dr_prefix_is_exact(const dr_prefixes *prefixes, const dr_position *sequence) {
    return sequence->decoded == 0 && sequence->tokens % prefixes->grain == 0;
}

dr_status dr_prefix_append(dr_prefixes *prefixes, int32_t *ids, const dr_position *sequence, dr_prefix **made) {
    void *list = prefixes->at;
    const dr_status status = dr_grow(&list, prefixes->count, sizeof *prefixes->at, "a store of prefixes");
    if (status != DR_OK) {
        dr_release(ids);
        return status;
    }
    prefixes->at = list;
    *made = &prefixes->at[prefixes->count++];
    **made = (dr_prefix){
        .ids = ids, .sequence = *sequence, .exact = dr_prefix_is_exact(prefixes, sequence), .used = ++prefixes->clock};
    return DR_OK;
}

void dr_prefix_drop(dr_prefixes *prefixes, int64_t index) {
    dr_prefix *prefix = &prefixes->at[index];
    if (prefix->state || prefix->file_bytes > 0) return;
    dr_release(prefix->ids);
    /* the list's room follows from its count: where that falls below half of the room, what is left of it goes on as it is */
    prefixes->count--;
    memmove(prefix, prefix + 1, (size_t)(prefixes->count - index) * sizeof *prefix);
    if (prefixes->count == 0) {
        dr_release(prefixes->at);
        prefixes->at = NULL;
    }
}

void dr_prefix_remember_gone(dr_prefixes *prefixes, const dr_prefix *prefix) {
    prefixes->gone[prefixes->gone_count++ % DR_PREFIX_GONE] = (dr_prefix_gone){prefix->sequence.hash, prefix->sequence.tokens};
}

/* Takes a snapshot out of memory. */
static void evict(dr_prefixes *prefixes, int64_t index) {
    dr_prefix *prefix = &prefixes->at[index];
    dr_model_state_destroy(prefix->state);
    prefix->state = NULL;
    prefixes->counts.bytes -= prefix->bytes;
    prefixes->counts.snapshots--;
    prefixes->counts.evicted++;
    if (prefix->file_bytes == 0) dr_prefix_remember_gone(prefixes, prefix);
    dr_prefix_drop(prefixes, index);
}

/* Snapshots that were used least lately go until there is room for so many bytes more. */
static void make_room(dr_prefixes *prefixes, size_t bytes) {
    while (prefixes->counts.bytes > 0 && prefixes->counts.bytes + bytes > prefixes->options.bytes) {
        int64_t oldest = -1;
        for (int64_t i = 0; i < prefixes->count; i++)
            if (prefixes->at[i].state && (oldest < 0 || prefixes->at[i].used < prefixes->at[oldest].used)) oldest = i;
        evict(prefixes, oldest);
    }
}

static size_t bytes_of(const dr_model_state *state) {
    return dr_model_state_bytes(state) + (size_t)state->seen[0] * sizeof(int32_t);
}

/* Puts a state into a prefix that has none. */
static void take_in(dr_prefixes *prefixes, dr_prefix *prefix, dr_model_state *state) {
    prefix->state = state;
    prefix->bytes = bytes_of(state);
    prefixes->counts.bytes += prefix->bytes;
    prefixes->counts.snapshots++;
}

/* ---- adding --------------------------------------------------------------------------------------------------------- */

static dr_status check_snapshot(const dr_prefixes *prefixes, const int32_t *ids, int64_t count, const dr_model_state *state) {
    if (state->model != prefixes->model) return dr_fail(DR_ERROR_ARGUMENT, "the snapshot is of another model than the store");
    if (state->sequences != 1)
        return dr_fail(DR_ERROR_ARGUMENT, "the store takes snapshots of 1 sequence, not of %" PRId64, state->sequences);
    if (count < 1 || state->seen[0] != count)
        return dr_fail(DR_ERROR_ARGUMENT, "the snapshot has read %" PRId64 " tokens, but there are %" PRId64 " ids",
                       state->seen[0], count);
    if (dr_tokens_hash(ids, count) != state->hash[0])
        return dr_fail(DR_ERROR_ARGUMENT, "the snapshot has read %" PRId64 " tokens, but other ones than these ids", count);
    return DR_OK;
}

static int64_t find_same(const dr_prefixes *prefixes, const int32_t *ids, const dr_position *sequence) {
    for (int64_t i = 0; i < prefixes->count; i++) {
        const dr_prefix *prefix = &prefixes->at[i];
        if (prefix->sequence.hash == sequence->hash && prefix->sequence.tokens == sequence->tokens &&
            prefix->exact == dr_prefix_is_exact(prefixes, sequence) &&
            memcmp(prefix->ids, ids, (size_t)sequence->tokens * sizeof *ids) == 0)
            return i;
    }
    return -1;
}

static dr_status add(dr_prefixes *prefixes, const int32_t *ids, int64_t count, dr_model_state **snapshot) {
    dr_model_state *state = *snapshot;
    DR_NEED(ids);
    DR_TRY(check_snapshot(prefixes, ids, count, state));
    const dr_position sequence = {state->seen[0], state->decoded[0], state->hash[0]};
    const size_t bytes = bytes_of(state);
    const int64_t same = find_same(prefixes, ids, &sequence);
    if (same >= 0 || bytes > prefixes->options.bytes) {
        if (same >= 0) prefixes->at[same].used = ++prefixes->clock;
        *(same >= 0 ? &prefixes->counts.known : &prefixes->counts.too_large) += 1;
        return DR_OK;
    }
    void *copy = NULL;
    dr_prefix *prefix = NULL;
    make_room(prefixes, bytes);
    DR_TRY(dr_allocate((size_t)count * sizeof *ids, "the ids of a prefix", &copy));
    memcpy(copy, ids, (size_t)count * sizeof *ids);
    DR_TRY(dr_prefix_append(prefixes, copy, &sequence, &prefix));
    take_in(prefixes, prefix, state);
    *snapshot = NULL;
    prefixes->counts.added++;
    return prefixes->folder ? dr_prefix_write_file(prefixes, prefixes->count - 1) : DR_OK;
}

dr_status dr_prefixes_add(dr_prefixes *prefixes, const int32_t *ids, int64_t count, dr_model_state *snapshot) {
    DR_NEED(snapshot);
    const dr_status status = prefixes ? add(prefixes, ids, count, &snapshot)
                                      : dr_fail(DR_ERROR_ARGUMENT, "prefixes is missing: it must not be NULL");
    dr_model_state_destroy(snapshot);
    return status;
}

/* ---- finding -------------------------------------------------------------------------------------------------------- */

/* Whether a longer one, or an exact one of the same length, than what was found. */
static bool is_better(const dr_prefix *prefix, const dr_prefix *found) {
    if (!found || prefix->sequence.tokens != found->sequence.tokens)
        return !found || prefix->sequence.tokens > found->sequence.tokens;
    return prefix->exact && !found->exact;
}

static bool begins_with(const uint64_t *hashes, const int32_t *ids, int64_t count, const dr_prefix *prefix) {
    const int64_t tokens = prefix->sequence.tokens;
    return tokens <= count && hashes[tokens] == prefix->sequence.hash &&
           memcmp(prefix->ids, ids, (size_t)tokens * sizeof *ids) == 0;
}

/* hashes [count + 1] of the first 0, 1 .. ids. */
static int64_t find_longest(const dr_prefixes *prefixes, const uint64_t *hashes, const int32_t *ids, int64_t count,
                            bool inexact) {
    int64_t found = -1;
    for (int64_t i = 0; i < prefixes->count; i++) {
        const dr_prefix *prefix = &prefixes->at[i];
        if ((prefix->exact || inexact) && is_better(prefix, found < 0 ? NULL : &prefixes->at[found]) &&
            begins_with(hashes, ids, count, prefix))
            found = i;
    }
    return found;
}

static void count_miss(dr_prefixes *prefixes, const uint64_t *hashes, const int32_t *ids, int64_t count) {
    int64_t *reason = prefixes->count == 0 ? &prefixes->counts.empty : &prefixes->counts.unknown;
    const int64_t gone = prefixes->gone_count < DR_PREFIX_GONE ? prefixes->gone_count : DR_PREFIX_GONE;
    for (int64_t i = 0; i < gone; i++)
        if (prefixes->gone[i].tokens <= count && hashes[prefixes->gone[i].tokens] == prefixes->gone[i].hash)
            reason = &prefixes->counts.gone;
    if (find_longest(prefixes, hashes, ids, count, true) >= 0) reason = &prefixes->counts.inexact;
    ++*reason;
}

/* *state: of the longest, in memory from now on. Damaged files are passed over. */
static dr_status find(dr_prefixes *prefixes, const uint64_t *hashes, const int32_t *ids, int64_t count, bool inexact,
                      const dr_model_state **state) {
    prefixes->counts.tokens_asked += count;
    for (;;) {
        int64_t i = find_longest(prefixes, hashes, ids, count, inexact);
        if (i < 0 || !prefixes->at) break;
        dr_prefix *prefix = &prefixes->at[i];
        prefix->used = ++prefixes->clock;
        if (!prefix->state) {
            dr_model_state *read;
            DR_TRY(dr_prefix_read_file(prefixes, i, &read));
            if (!read) continue;                            /* damaged, and out of the list */
            if (bytes_of(read) > prefixes->options.bytes) { /* of a store with a larger bound */
                dr_model_state_destroy(read);
                prefixes->counts.too_large++;
                dr_prefix_forget_file(prefixes, prefix);
                dr_prefix_drop(prefixes, i);
                continue;
            }
            make_room(prefixes, bytes_of(read));
            i = find_longest(prefixes, hashes, ids, count, inexact); /* the list may have become shorter */
            prefix = &prefixes->at[i];
            take_in(prefixes, prefix, read);
        }
        prefixes->counts.hits++;
        prefixes->counts.tokens_found += prefix->sequence.tokens;
        *state = prefix->state;
        return DR_OK;
    }
    count_miss(prefixes, hashes, ids, count);
    return DR_OK;
}

dr_status dr_prefixes_find(dr_prefixes *prefixes, const int32_t *ids, int64_t count, bool inexact,
                           const dr_model_state **snapshot) {
    void *memory = NULL;
    DR_NEED(prefixes);
    DR_NEED(snapshot);
    if (count < 0) return dr_fail(DR_ERROR_ARGUMENT, "%" PRId64 " ids to look up; there must be 0 or more", count);
    if (count > 0) DR_NEED(ids);
    *snapshot = NULL;
    DR_TRY(dr_allocate(((size_t)count + 1) * sizeof(uint64_t), "the hashes of a text", &memory));
    uint64_t *hashes = memory;
    hashes[0] = DR_HASH_START;
    for (int64_t i = 0; i < count; i++) hashes[i + 1] = dr_hash_word(hashes[i], (uint64_t)ids[i]);
    const dr_status status = find(prefixes, hashes, ids, count, inexact, snapshot);
    dr_release(memory);
    return status;
}

dr_status dr_prefixes_restore(dr_prefixes *prefixes, dr_pool *pool, int64_t slot, const int32_t *ids, int64_t count,
                              bool inexact, int64_t *tokens) {
    const dr_model_state *snapshot = NULL;
    DR_NEED(prefixes);
    DR_NEED(pool);
    DR_NEED(ids);
    DR_NEED(tokens);
    if (count < 1) return dr_fail(DR_ERROR_ARGUMENT, "%" PRId64 " ids to go on with; there must be one at least", count);
    if (dr_pool_model(pool) != prefixes->model)
        return dr_fail(DR_ERROR_ARGUMENT, "the pool is of another model than the store of prefixes");
    DR_TRY(dr_pool_reset(pool, slot));
    *tokens = 0;
    DR_TRY(dr_prefixes_find(prefixes, ids, count - 1, inexact, &snapshot));
    if (!snapshot) return DR_OK;
    DR_TRY(dr_pool_restore(pool, slot, snapshot));
    *tokens = snapshot->seen[0];
    return DR_OK;
}
