/* A pool, as the files that make it and run it see it.
 *
 * What has a fixed size lies in records, one a slot, of the current state and of the state at the boundary. A call gathers the
 * records of its slots into the first sequences of a state that the layers compute with, and these stay there until other
 * slots are wanted: the decode steps of one set of answers copy nothing. Keys and values lie in the slots of that state. */
#ifndef DR_NN_POOL_H
#define DR_NN_POOL_H

#include "nn/state.h"
#include <deltarule/pool.h>

/* Tokens of a slot: those up to the boundary, whose state is kept, and those behind it, whose ids are. */
typedef struct {
    int64_t boundary, behind; /* tokens; ids of `behind` are in tail. 0: the current state is that at the boundary */
    int64_t decoded;
    uint64_t hash, boundary_hash; /* of all tokens; of those up to the boundary */
    int32_t *tail;                /* [grain] */
} dr_pool_slot;

/* What an item has left to do within a step. */
typedef struct {
    const dr_pool_item *item;
    dr_pool_slot *slot;
    int64_t from;     /* of the item's ids the first that was not read; negative: the tail comes first */
    int64_t result;   /* of its first wanted token */
    int64_t snapshot; /* the next one */
    int64_t rows;     /* in the call at hand */
} dr_pool_work;

struct dr_pool {
    const dr_model *model;
    dr_backend *backend;
    dr_pool_options options;
    int64_t grain;
    dr_model_state *state;         /* [slots] */
    void *block;                   /* [2][slots] records, current and at the boundary */
    char *current, *boundary;      /* into it */
    dr_session *decode, *read;     /* calls of the two engines */
    int64_t steps, step_targets;   /* that decode is planned for */
    int64_t *held, held_count;     /* [slots] whose current state lies in the first sequences of state, and newer than it */
    dr_pool_slot *slot;            /* [slots] */
    int32_t *tails;                /* [slots, grain] */
    dr_pool_work *work;            /* [slots] */
    int64_t *called;               /* [slots] places in work of a call's sequences */
    int64_t *list, *seen, *begins; /* [slots] of a call, [slots + 1] */
    int32_t *ids;                  /* [rows] */
    int64_t *positions, *result;   /* [rows] of wanted tokens: rows of the call, rows of the results */
    bool *named;                   /* [slots] for checks */
};

/* Writes what the layers' state holds back to the records. */
dr_status dr_pool_flush(dr_pool *pool);
char *dr_pool_record(const dr_pool *pool, char *records, int64_t slot);
/* A state of one sequence from the slot's boundary. */
dr_status dr_pool_keep(dr_pool *pool, int64_t slot, dr_model_state **made);
void dr_pool_clear(dr_pool *pool, int64_t slot);

#endif
