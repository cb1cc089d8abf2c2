/* A batch in the backend's memory: what operations read of it lies in one block, which one copy fills for each call. */
#ifndef DR_NN_ROWS_H
#define DR_NN_ROWS_H

#include "base/memory.h"
#include "ops/operations.h"
#include <deltarule/model.h>

typedef struct {
    dr_layout layout;         /* cu_seqlens in the backend's memory */
    int64_t longest;          /* tokens of the longest sequence, 1 at least */
    int64_t targets;          /* how many */
    bool selects, labelled;   /* whether there are positions, labels */
    const int64_t *seen;      /* [sequences] tokens before this call */
    const int64_t *slot;      /* [sequences] of a state that grows, or NULL: sequence i has slot i */
    const int64_t *positions; /* [targets] of the targets' rows, or NULL: all rows */
    const int32_t *ids;       /* [rows] */
    const int32_t *labels;    /* [targets], or NULL */
    void *block;              /* all of these, in the backend's memory */
    void *staging;            /* likewise in host memory */
    size_t bytes, room;       /* of this call; of staging */
} dr_rows;

/* The sizes of a call, and its part of the arena. */
void dr_rows_place(const dr_layout *layout, int64_t targets, bool selects, bool labelled, dr_arena *arena, dr_rows *tokens);
/* Host memory for that many bytes, which is kept until a call needs more. */
dr_status dr_rows_reserve(dr_rows *tokens);
/* Copies a batch of the planned sizes to the backend. Ids that are NULL are there already; there are no labels then. seen:
 * [sequences], or NULL: none; slot: [sequences], or NULL. */
dr_status dr_rows_upload(dr_backend *backend, const dr_batch *batch, const int64_t *seen, const int64_t *slot, dr_rows *tokens);
void dr_rows_release(dr_rows *tokens);

#endif
