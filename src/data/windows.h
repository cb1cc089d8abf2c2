/* Training windows of a corpus: the documents one after another, each behind a DR_DOCUMENT_START, cut into windows. */
#ifndef DR_DATA_WINDOWS_H
#define DR_DATA_WINDOWS_H

#include "data/corpus.h"

typedef struct {
    uint16_t *ids;   /* [tokens] */
    int64_t tokens;  /* bytes and separators */
    int64_t length;  /* of a window */
    int64_t windows; /* in an epoch */
    uint64_t seed;
    int64_t epoch;  /* the one that `order` and `phase` are of, -1: none */
    int64_t phase;  /* where its first window begins, below length */
    int64_t *order; /* [windows] */
} dr_windows;

/* DR_ERROR_ARGUMENT if there are not length + 1 tokens. */
dr_status dr_windows_create(const dr_documents *documents, int64_t length, uint64_t seed, dr_windows **windows);
void dr_windows_destroy(dr_windows *windows); /* NULL is allowed */

/* Window number index of the endless order of windows: ids [length] and the tokens that follow them, labels [length]. The
 * answer depends on documents, length, seed and index alone, so the index is all of the data position. */
void dr_windows_get(dr_windows *windows, int64_t index, int32_t *ids, int32_t *labels);

#endif
