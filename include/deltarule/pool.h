/* A pool of slots: the states of many sequences that a server computes together, in memory that is taken when it is made.
 *
 *     dr_pool_create(model, &options, &pool);
 *     dr_pool_step(pool, items, count, &results);      (again and again: some items decode a token, some read a prompt)
 *
 * One step takes some slots and for each its next tokens, as many as one likes: part of a prompt, which goes through the
 * chunkwise engine, or the token that was made last, which goes through the decode engine. So prompts are read between the
 * tokens of running answers. Slots do not know of each other: on a CPU an answer has the same bits whichever slots stand beside
 * it, in whatever order, on any number of threads.
 *
 * Cut anywhere. The tokens that a slot reads may come in any pieces and have the bits of all of them read at once. For this the
 * pool keeps the state at the last multiple of dr_pool_grain tokens, and the ids of the tokens behind it, and reads these again
 * when more come: a caller who cuts prompts at multiples of the grain has nothing read twice. Tokens that were decoded round
 * differently; the multiples are counted anew from the last of them.
 *
 * Threads. A pool is used by one thread at a time; the model is only read. */
#ifndef DELTARULE_POOL_H
#define DELTARULE_POOL_H

#include <deltarule/model.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t slots;  /* at least 1 */
    int64_t rows;   /* tokens that go through the layers in one call, at least the grain; more tokens take several calls */
    int64_t tokens; /* the most that a slot may come to. 0: no bound, and the keys and values of attention grow */
} dr_pool_options;

DR_API dr_pool_options dr_pool_defaults(void); /* 1 slot, calls of 512 rows, no bound */

typedef struct dr_pool dr_pool;
/* Takes all memory that steps will need, but for what grows without a bound. The model must outlive the pool. */
DR_API dr_status dr_pool_create(const dr_model *model, const dr_pool_options *options, dr_pool **pool);
DR_API void dr_pool_destroy(dr_pool *pool); /* NULL is allowed */

/* What one slot is asked in a step. */
typedef struct {
    int64_t slot;
    const int32_t *ids; /* [count] the next tokens, at least one */
    int64_t count;
    bool decode;    /* one after the other through the decode engine, as dr_model_step; else by chunks, as a prompt */
    int64_t wanted; /* results are wanted behind so many of the last tokens: 1 to draw the next one, 0, or up to count */
    /* By chunks: where snapshots are made, rising tokens of the sequence, each in (tokens before, tokens after] and a multiple
     * of the grain, as the pool counts them (dr_pool_boundary). made [snapshots]: states of one sequence, the caller's. */
    int64_t snapshots;
    const int64_t *positions;
    dr_model_state **made;
} dr_pool_item;

/* Of the wanted tokens of all items, in order: [sum of wanted, vocabulary] and [sum of wanted, hidden], behind the final norm,
 * in host memory. NULL: not needed. */
typedef struct {
    float *logits, *hidden;
} dr_pool_results;

/* No slot may stand in two items. DR_ERROR_ARGUMENT names what cannot be, and then nothing has happened; after any other
 * failure the items' slots are reset, and no snapshot is left. */
DR_API dr_status dr_pool_step(dr_pool *pool, const dr_pool_item *items, int64_t count, const dr_pool_results *results);

DR_API const dr_model *dr_pool_model(const dr_pool *pool); /* NULL of NULL */
DR_API int64_t dr_pool_slots(const dr_pool *pool);         /* 0 of NULL, as the next three */
DR_API int64_t dr_pool_grain(const dr_pool *pool);         /* tokens: a multiple of every layer's chunk, at least 64 */
DR_API int64_t dr_pool_tokens(const dr_pool *pool);        /* the bound; 0: there is none */
DR_API size_t dr_pool_bytes(const dr_pool *pool);          /* of the backend's memory in states */
/* Of a model, before there is a pool. */
DR_API dr_status dr_model_grain(const dr_model *model, int64_t *tokens);

DR_API dr_status dr_pool_about(const dr_pool *pool, int64_t slot, dr_position *about);
/* The largest position at which a snapshot of the slot can be made now: the last multiple of the grain. The next ones lie a
 * grain apart behind it. */
DR_API dr_status dr_pool_boundary(const dr_pool *pool, int64_t slot, int64_t *tokens);

/* Back to no token. */
DR_API dr_status dr_pool_reset(dr_pool *pool, int64_t slot);
/* A state of one sequence, the caller's: of all that the slot has read if it decoded last, else at dr_pool_boundary. The tokens
 * behind it are not in it: who goes on from it reads them again, which gives the bits of the slot that went on. */
DR_API dr_status dr_pool_snapshot(dr_pool *pool, int64_t slot, dr_model_state **snapshot);
/* The slot goes on from a state of one sequence, of the pool's model. The state stays as it is. */
DR_API dr_status dr_pool_restore(dr_pool *pool, int64_t slot, const dr_model_state *state);
/* Slot `to` goes on as slot `from` does: several answers to one prompt. */
DR_API dr_status dr_pool_copy(dr_pool *pool, int64_t from, int64_t to);

#ifdef __cplusplus
}
#endif
#endif
