/* A store of prefixes, as its two files see it: nn/prefix.c what it has and gives, nn/prefix_files.c its folder. */
#ifndef DR_NN_PREFIX_H
#define DR_NN_PREFIX_H

#include "nn/state_file.h"
#include <deltarule/prefix.h>

enum { DR_PREFIX_NAME = 64, DR_PREFIX_GONE = 256 };

typedef struct {
    int32_t *ids; /* [sequence.tokens] */
    dr_position sequence;
    bool exact;
    dr_model_state *state; /* NULL: only the file has it */
    size_t bytes;          /* in memory */
    size_t file_bytes;     /* 0: there is no file */
    uint64_t used;         /* when, counted in calls */
} dr_prefix;

/* What had to go. */
typedef struct {
    uint64_t hash;
    int64_t tokens;
} dr_prefix_gone;

struct dr_prefixes {
    const dr_model *model;
    uint64_t identity; /* of the model, where there is a folder: files alone are told apart by it */
    int64_t grain;
    dr_prefix_options options; /* but for the folder */
    char *folder;              /* or NULL */
    dr_prefix *at;             /* [count] */
    int64_t count;
    uint64_t clock;
    dr_prefix_gone gone[DR_PREFIX_GONE]; /* a ring */
    int64_t gone_count;
    dr_prefix_counts counts;
};

/* Takes over ids; the list grows by one prefix without a state or file. On failure the ids are released. */
dr_status dr_prefix_append(dr_prefixes *prefixes, int32_t *ids, const dr_position *sequence, dr_prefix **made);
bool dr_prefix_is_exact(const dr_prefixes *prefixes, const dr_position *sequence);
/* Drops it once neither memory nor the folder has it. */
void dr_prefix_drop(dr_prefixes *prefixes, int64_t index);
void dr_prefix_remember_gone(dr_prefixes *prefixes, const dr_prefix *prefix);

dr_status dr_prefix_open_folder(dr_prefixes *prefixes);
/* Writes the file of a prefix that has none, and removes others for the bound. */
dr_status dr_prefix_write_file(dr_prefixes *prefixes, int64_t index);
/* Counts a file as not there. */
void dr_prefix_forget_file(dr_prefixes *prefixes, dr_prefix *prefix);
/* The state of a prefix that only its file has, for the caller to keep or destroy. NULL: the file was damaged, and it and the
 * prefix are gone. */
dr_status dr_prefix_read_file(dr_prefixes *prefixes, int64_t index, dr_model_state **state);
/* Removes files that were used least lately until the bound holds; drops prefixes that have nothing left. */
void dr_prefix_bound_files(dr_prefixes *prefixes);

#endif
