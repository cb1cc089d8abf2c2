/* Training windows of a corpus: the documents one after another, each behind a DR_DOCUMENT_START, cut into windows. */
#ifndef DR_DATA_WINDOWS_H
#define DR_DATA_WINDOWS_H

#include "base/random.h"
#include "data/corpus.h"

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
    dr_documents documents; /* borrowed */
    int64_t *starts;        /* [documents.count] tokens before each document */
    int64_t tokens;         /* bytes and separators */
    int64_t length;         /* of a window */
    int64_t windows;        /* in an epoch */
    uint64_t seed;
    dr_window_order current, next;
} dr_windows;

/* DR_ERROR_ARGUMENT if there are not length + 1 tokens, or more than 2^32 windows. The documents must outlive the windows. */
dr_status dr_windows_create(const dr_documents *documents, int64_t length, uint64_t seed, dr_windows **windows);
void dr_windows_destroy(dr_windows *windows); /* NULL is allowed */

/* Makes the order that window number index lies in, which takes time in proportion to the windows of an epoch. dr_windows_get
 * does it too where it must; whoever measures time calls this before. */
void dr_windows_prepare(dr_windows *windows, int64_t index);

/* Window number index of the endless order of windows: ids [length] and the tokens that follow them, labels [length]. The
 * answer depends on documents, length, seed and index alone, so the index is all of the data position. DR_ERROR_IO if a file
 * of the window changed since it was opened. */
dr_status dr_windows_get(dr_windows *windows, int64_t index, int32_t *ids, int32_t *labels);

#endif
