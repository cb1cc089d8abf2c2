/* A pool of slots: its memory, and what is done with one slot. nn/pool_step.c computes. */
#include "nn/pool.h"

#include "base/error.h"
#include "base/hash.h"
#include "nn/mixers/attend.h"

#include <inttypes.h>
#include <string.h>

enum { LEAST_GRAIN = 64, MOST_SLOTS = 1 << 16, MOST_ROWS_OF_CALL = 1 << 20 };

dr_pool_options dr_pool_defaults(void) {
    return (dr_pool_options){.slots = 1, .rows = 512, .tokens = 0};
}

/* ---- making --------------------------------------------------------------------------------------------------------- */

dr_status dr_model_grain(const dr_model *model, int64_t *tokens) {
    int64_t grain = 1;
    DR_NEED(model);
    DR_NEED(tokens);
    for (int64_t i = 0; i < model->kind_count; i++) {
        int64_t chunk = 1;
        DR_TRY(dr_layer_chunk(&model->kinds[i], model->backend, &chunk));
        grain = dr_common_multiple(grain, chunk);
    }
    if (grain < 1 || grain > DR_ATTEND_BACK)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "the chunks of the model's layers have %" PRId64
                       " tokens as their common multiple; a pool of slots needs at most %d",
                       grain, DR_ATTEND_BACK);
    *tokens = grain * ((LEAST_GRAIN + grain - 1) / grain);
    return DR_OK;
}

static dr_status check_options(const dr_pool_options *options, int64_t grain) {
    if (options->slots < 1 || options->slots > MOST_SLOTS)
        return dr_fail(DR_ERROR_ARGUMENT, "a pool of %" PRId64 " slots; there must be 1 to %d", options->slots, MOST_SLOTS);
    if (options->rows < grain || options->rows > MOST_ROWS_OF_CALL)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "calls of %" PRId64 " rows; there must be %" PRId64 ", the grain of this model, to %d", options->rows,
                       grain, MOST_ROWS_OF_CALL);
    if (options->tokens < 0)
        return dr_fail(DR_ERROR_ARGUMENT, "slots of %" PRId64 " tokens; it must be 0, for no bound, or more", options->tokens);
    return DR_OK;
}

/* The host's lists, from an arena that counts first. */
static void lay(dr_pool *pool, dr_arena *arena) {
    const size_t slots = (size_t)pool->options.slots, rows = (size_t)pool->options.rows;
    pool->slot = dr_arena_take(arena, slots * sizeof *pool->slot);
    pool->tails = dr_arena_take(arena, slots * (size_t)pool->grain * sizeof *pool->tails);
    pool->work = dr_arena_take(arena, slots * sizeof *pool->work);
    pool->called = dr_arena_take(arena, slots * sizeof *pool->called);
    pool->held = dr_arena_take(arena, slots * sizeof *pool->held);
    pool->list = dr_arena_take(arena, slots * sizeof *pool->list);
    pool->seen = dr_arena_take(arena, slots * sizeof *pool->seen);
    pool->begins = dr_arena_take(arena, (slots + 1) * sizeof *pool->begins);
    pool->ids = dr_arena_take(arena, (rows > slots ? rows : slots) * sizeof *pool->ids);
    pool->positions = dr_arena_take(arena, (rows > slots ? rows : slots) * sizeof *pool->positions);
    pool->result = dr_arena_take(arena, (rows > slots ? rows : slots) * sizeof *pool->result);
    pool->named = dr_arena_take(arena, slots * sizeof *pool->named);
}

/* Sessions with memory for the largest calls: of prompts, all rows of one slot, and as many slots as there can be with rows
 * shared evenly. */
static dr_status plan_calls(dr_pool *pool) {
    const int64_t slots = pool->options.slots, rows = pool->options.rows, many = slots < rows ? slots : rows;
    const dr_layout steps = {slots, slots, NULL};
    for (int64_t i = 0; i < many; i++) pool->begins[i] = i < many - 1 ? i : many - 1;
    pool->begins[many] = rows;
    const dr_layout longest = {many, rows, pool->begins};
    DR_TRY(dr_session_create(pool->model, &pool->decode));
    DR_TRY(dr_session_prepare(pool->decode, DR_PHASE_DECODE, &steps, slots, true, false));
    DR_TRY(dr_session_create(pool->model, &pool->read));
    DR_TRY(dr_session_prepare(pool->read, DR_PHASE_FORWARD, &longest, rows, true, false));
    for (int64_t i = 1; i < many; i++) pool->begins[i] = pool->begins[i - 1] + (rows - pool->begins[i - 1]) / (many - i + 1);
    return dr_session_prepare(pool->read, DR_PHASE_FORWARD, &longest, rows, true, false);
}

static dr_status fill(dr_pool *pool) {
    const dr_operations *ops = pool->backend->ops;
    dr_arena arena = {0};
    void *memory = NULL;
    lay(pool, &arena);
    DR_TRY(dr_allocate_zero(arena.used, "a pool of slots", &memory));
    arena = (dr_arena){.block = memory};
    lay(pool, &arena);
    for (int64_t i = 0; i < pool->options.slots; i++) pool->slot[i].tail = pool->tails + i * pool->grain;
    DR_TRY(dr_model_state_make(pool->model, pool->options.slots, &pool->state));
    DR_TRY(dr_model_state_room(pool->state, pool->options.tokens));
    const size_t records = (size_t)pool->options.slots * pool->state->record;
    DR_TRY(ops->allocate(pool->backend, 2 * records, &pool->block));
    pool->current = pool->block;
    pool->boundary = pool->current + records;
    for (int64_t i = 0; i < pool->options.slots; i++) dr_pool_clear(pool, i);
    return plan_calls(pool);
}

dr_status dr_pool_create(const dr_model *model, const dr_pool_options *options, dr_pool **pool) {
    int64_t grain;
    void *memory = NULL;
    DR_NEED(model);
    DR_NEED(options);
    DR_NEED(pool);
    DR_TRY(dr_model_grain(model, &grain));
    DR_TRY(check_options(options, grain));
    DR_TRY(dr_allocate_zero(sizeof(dr_pool), "a pool of slots", &memory));
    dr_pool *made = memory;
    *made = (dr_pool){.model = model, .backend = model->backend, .options = *options, .grain = grain};
    const dr_status status = fill(made);
    if (status == DR_OK)
        *pool = made;
    else
        dr_pool_destroy(made);
    return status;
}

void dr_pool_destroy(dr_pool *pool) {
    if (!pool) return;
    dr_session_destroy(pool->decode);
    dr_session_destroy(pool->read);
    dr_model_state_destroy(pool->state);
    if (pool->block) pool->backend->ops->free(pool->backend, pool->block);
    dr_release(pool->slot); /* the first of the host's lists */
    dr_release(pool);
}

/* ---- what it is asked ----------------------------------------------------------------------------------------------- */

const dr_model *dr_pool_model(const dr_pool *pool) {
    return pool ? pool->model : NULL;
}

int64_t dr_pool_slots(const dr_pool *pool) {
    return pool ? pool->options.slots : 0;
}

int64_t dr_pool_grain(const dr_pool *pool) {
    return pool ? pool->grain : 0;
}

int64_t dr_pool_tokens(const dr_pool *pool) {
    return pool ? pool->options.tokens : 0;
}

size_t dr_pool_bytes(const dr_pool *pool) {
    return pool ? dr_model_state_bytes(pool->state) + 2 * (size_t)pool->options.slots * pool->state->record : 0;
}

static dr_status check_slot(const dr_pool *pool, int64_t slot) {
    DR_NEED(pool);
    if (slot >= 0 && slot < pool->options.slots) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "slot %" PRId64 " of a pool of %" PRId64 "; it must be from 0 to %" PRId64, slot,
                   pool->options.slots, pool->options.slots - 1);
}

dr_status dr_pool_about(const dr_pool *pool, int64_t slot, dr_position *about) {
    DR_TRY(check_slot(pool, slot));
    DR_NEED(about);
    const dr_pool_slot *of = &pool->slot[slot];
    *about = (dr_position){of->boundary + of->behind, of->decoded, of->hash};
    return DR_OK;
}

dr_status dr_pool_boundary(const dr_pool *pool, int64_t slot, int64_t *tokens) {
    DR_TRY(check_slot(pool, slot));
    DR_NEED(tokens);
    *tokens = pool->slot[slot].boundary;
    return DR_OK;
}

/* ---- one slot ------------------------------------------------------------------------------------------------------- */

char *dr_pool_record(const dr_pool *pool, char *records, int64_t slot) {
    return records + (size_t)slot * pool->state->record;
}

dr_status dr_pool_flush(dr_pool *pool) {
    for (int64_t i = 0; i < pool->held_count; i++)
        DR_TRY(dr_state_store(pool->state, i, dr_pool_record(pool, pool->current, pool->held[i])));
    pool->held_count = 0;
    return DR_OK;
}

void dr_pool_clear(dr_pool *pool, int64_t slot) {
    dr_pool_slot *of = &pool->slot[slot];
    *of = (dr_pool_slot){.hash = DR_HASH_START, .boundary_hash = DR_HASH_START, .tail = of->tail};
    pool->backend->ops->zero(pool->backend, dr_pool_record(pool, pool->current, slot), pool->state->record);
}

dr_status dr_pool_reset(dr_pool *pool, int64_t slot) {
    DR_TRY(check_slot(pool, slot));
    DR_TRY(dr_pool_flush(pool));
    dr_pool_clear(pool, slot);
    return DR_OK;
}

dr_status dr_pool_keep(dr_pool *pool, int64_t slot, dr_model_state **made) {
    const dr_pool_slot *of = &pool->slot[slot];
    dr_model_state *state = NULL;
    dr_status status;
    DR_TRY(dr_pool_flush(pool));
    DR_TRY(dr_model_state_make(pool->model, 1, &state));
    DR_GO(dr_model_state_room(state, of->boundary));
    DR_GO(dr_state_fetch(state, 0, dr_pool_record(pool, of->behind > 0 ? pool->boundary : pool->current, slot)));
    DR_GO(dr_state_copy_grown(pool->state, slot, of->boundary, state, 0));
    state->seen[0] = of->boundary;
    state->decoded[0] = of->decoded;
    state->hash[0] = of->boundary_hash;
    *made = state;
    return DR_OK;
done:
    dr_model_state_destroy(state);
    return status;
}

dr_status dr_pool_snapshot(dr_pool *pool, int64_t slot, dr_model_state **snapshot) {
    DR_TRY(check_slot(pool, slot));
    DR_NEED(snapshot);
    return dr_pool_keep(pool, slot, snapshot);
}

dr_status dr_pool_restore(dr_pool *pool, int64_t slot, const dr_model_state *state) {
    DR_TRY(check_slot(pool, slot));
    DR_NEED(state);
    if (state->model != pool->model) return dr_fail(DR_ERROR_ARGUMENT, "the state is of another model than the pool");
    if (state->sequences != 1)
        return dr_fail(DR_ERROR_ARGUMENT, "a slot goes on from a state of 1 sequence, not of %" PRId64, state->sequences);
    const int64_t tokens = state->seen[0];
    if (pool->options.tokens > 0 && tokens > pool->options.tokens)
        return dr_fail(DR_ERROR_ARGUMENT, "the state has %" PRId64 " tokens, but slots of the pool at most %" PRId64, tokens,
                       pool->options.tokens);
    DR_TRY(dr_model_state_room(pool->state, tokens));
    DR_TRY(dr_pool_flush(pool));
    DR_TRY(dr_state_store(state, 0, dr_pool_record(pool, pool->current, slot)));
    DR_TRY(dr_state_copy_grown(state, 0, tokens, pool->state, slot));
    pool->slot[slot] = (dr_pool_slot){.boundary = tokens,
                                      .decoded = state->decoded[0],
                                      .hash = state->hash[0],
                                      .boundary_hash = state->hash[0],
                                      .tail = pool->slot[slot].tail};
    return DR_OK;
}

dr_status dr_pool_copy(dr_pool *pool, int64_t from, int64_t to) {
    DR_TRY(check_slot(pool, from));
    DR_TRY(check_slot(pool, to));
    if (from == to) return DR_OK;
    const dr_pool_slot *source = &pool->slot[from];
    int32_t *tail = pool->slot[to].tail;
    DR_TRY(dr_pool_flush(pool));
    char *const records[] = {pool->current, pool->boundary};
    for (int i = 0; i < 2; i++)
        DR_TRY(pool->backend->ops->copy(pool->backend, dr_pool_record(pool, records[i], to),
                                        dr_pool_record(pool, records[i], from), pool->state->record));
    /* what the boundary's next tokens may see, then what the newest ones left */
    DR_TRY(dr_state_copy_grown(pool->state, from, source->boundary, pool->state, to));
    DR_TRY(dr_state_copy_grown(pool->state, from, source->boundary + source->behind, pool->state, to));
    memcpy(tail, source->tail, (size_t)source->behind * sizeof *tail);
    pool->slot[to] = *source;
    pool->slot[to].tail = tail;
    return DR_OK;
}
