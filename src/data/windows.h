/* Training windows of a row of tokens, in an order of their own in each epoch. */
#ifndef DR_DATA_WINDOWS_H
#define DR_DATA_WINDOWS_H

#include "base/random.h"
#include "data/tokens.h"

/* The order of one epoch while it is made: each call of dr_windows_get adds to the next one, so that no call makes all of it.
 */
typedef struct {
    int64_t epoch;   /* -1: none */
    int64_t phase;   /* where its first window begins, below length */
    int64_t done;    /* so many places of the order are made; windows: all */
    uint32_t *order; /* [windows] */
    dr_random random;
} dr_window_order;

typedef struct {
    dr_tokens *tokens; /* borrowed */
    int64_t length;    /* of a window */
    int64_t windows;   /* in an epoch */
    uint64_t seed;
    int32_t *ids;   /* [length + 1] of the window at hand */
    uint8_t *marks; /* [length + 1] */
    dr_window_order current, next;
} dr_windows;

/* DR_ERROR_ARGUMENT if there are not length + 1 tokens, or more than 2^32 windows. The tokens must outlive the windows. */
dr_status dr_windows_create(dr_tokens *tokens, int64_t length, uint64_t seed, dr_windows **windows);
void dr_windows_destroy(dr_windows *windows); /* NULL is allowed */

/* Makes the order that window number index lies in, which takes time in proportion to the windows of an epoch. dr_windows_get
 * does it too where it must; whoever measures time calls this before. */
void dr_windows_prepare(dr_windows *windows, int64_t index);

/* Window number index of the endless order of windows: ids [length]; the tokens that follow them, labels [length]; and marks
 * [length], which say whether a document begins with an id (DR_TOKEN_BEGINS), and whether its label is given
 * (DR_TOKEN_GIVEN). The answer depends on tokens, length, seed and index alone, so the index is all of the data position.
 * DR_ERROR_IO if a file of the window changed since it was opened. */
dr_status dr_windows_get(dr_windows *windows, int64_t index, int32_t *ids, int32_t *labels, uint8_t *marks);

#endif
