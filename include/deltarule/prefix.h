/* A store of prefixes: the states behind texts that were read before, so that a text that begins like one of them is read from
 * there on. A recurrent state cannot be cut back to any token, as keys and values can: what the store has are snapshots, made
 * while prompts were read (dr_pool_item.snapshots) and at the end of answers (dr_pool_snapshot).
 *
 *     dr_prefixes_create(model, &options, &prefixes);
 *     dr_prefixes_restore(prefixes, pool, slot, ids, count, true, &tokens);
 *     read ids[tokens ..] in the slot, and take a snapshot;
 *     dr_prefixes_add(prefixes, ids, tokens, snapshot);
 *
 * Exact or not. A snapshot at a multiple of the grain, of tokens that were read and not decoded, is exact: going on from it
 * gives the bits of the whole text read at once. One behind decoded tokens gives them to rounding: what a chat wants, whose
 * next turn begins with the answer that was decoded.
 *
 * Bounded. Snapshots take at most so many bytes in memory; those that were used least lately go first. In a folder, if there is
 * one, each is a file, in at most so many bytes of files; there they outlive the process. A file is written whole or not at
 * all, is checked when it is read, and one that is damaged is counted and removed. Files of another model are left alone.
 *
 * Threads. A store is used by one thread at a time. Several processes may have one folder. */
#ifndef DELTARULE_PREFIX_H
#define DELTARULE_PREFIX_H

#include <deltarule/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    size_t bytes;        /* of snapshots in memory */
    const char *folder;  /* NULL: none. It is made if it is missing; the store keeps a copy of the name */
    size_t folder_bytes; /* of files of this model in it */
} dr_prefix_options;

DR_API dr_prefix_options dr_prefix_defaults(void); /* 256 MiB, no folder, 1 GiB */

typedef struct dr_prefixes dr_prefixes;
/* Where there is a folder, reads the model for its identity, and the names and ids of what is in the folder. The model must
 * outlive the store. */
DR_API dr_status dr_prefixes_create(const dr_model *model, const dr_prefix_options *options, dr_prefixes **prefixes);
DR_API void dr_prefixes_destroy(dr_prefixes *prefixes); /* NULL is allowed */

/* Takes over a snapshot of one sequence that has read ids [count], count at least 1, also if it fails or the store has one of
 * these tokens already. DR_ERROR_ARGUMENT if the snapshot is of another model or of other tokens. A snapshot that is larger
 * than the bound is dropped and counted. DR_ERROR_IO if its file cannot be written; it is in memory then. */
DR_API dr_status dr_prefixes_add(dr_prefixes *prefixes, const int32_t *ids, int64_t count, dr_model_state *snapshot);

/* The longest stored prefix of ids [count]; an exact one goes before one that is not. *snapshot: the store's, valid until its
 * next call, or NULL where there is none. inexact: take those behind decoded tokens too. */
DR_API dr_status dr_prefixes_find(dr_prefixes *prefixes, const int32_t *ids, int64_t count, bool inexact,
                                  const dr_model_state **snapshot);
/* The slot goes on from the longest stored prefix of all but the last of ids [count], count at least 1, so that there is a
 * token to predict from; *tokens: how many that are. 0: there is none, and the slot is reset. */
DR_API dr_status dr_prefixes_restore(dr_prefixes *prefixes, dr_pool *pool, int64_t slot, const int32_t *ids, int64_t count,
                                     bool inexact, int64_t *tokens);

/* Since the store was made. A look-up is a hit, or a miss for one of four reasons. */
typedef struct {
    int64_t hits;
    int64_t empty;                      /* misses: nothing was stored */
    int64_t unknown;                    /* no stored text is a prefix, nor was one of those that had to go */
    int64_t gone;                       /* there was a prefix, which had to go for the bound */
    int64_t inexact;                    /* there is one, which is not exact, and that was wanted */
    int64_t tokens_found, tokens_asked; /* in all look-ups */
    int64_t added, known, too_large;    /* snapshots: taken, there already, larger than the bound */
    int64_t evicted, files_evicted;     /* for the bounds */
    int64_t files_damaged, files_of_others;
    int64_t snapshots, files; /* there now, as are the bytes */
    size_t bytes, file_bytes;
} dr_prefix_counts;
DR_API dr_status dr_prefixes_count(const dr_prefixes *prefixes, dr_prefix_counts *counts);

#ifdef __cplusplus
}
#endif
#endif
