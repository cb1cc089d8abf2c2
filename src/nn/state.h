/* A model's state, as the files of src/nn that make, move and keep one see it. */
#ifndef DR_NN_STATE_H
#define DR_NN_STATE_H

#include "nn/session.h"

/* One tensor of numbers of all layers' states, [sequences, ...]: where it begins, and the bytes of one sequence. */
typedef struct {
    char *at;
    size_t bytes;
} dr_state_part;

struct dr_model_state {
    const dr_model *model;
    dr_backend *backend;
    int64_t sequences;
    void *block; /* of all layers, in the backend's memory */
    size_t bytes;
    void *host;             /* the modules' structs */
    dr_layer_state *layers; /* [description.count] */
    int64_t *seen;          /* [sequences] tokens, in host memory, as the next two */
    int64_t *decoded;       /* [sequences] how many of them went through the decode engine */
    uint64_t *hash;         /* [sequences] of the tokens */
    dr_state_part *parts;   /* [part_count] what has a fixed size */
    int64_t part_count;
    size_t record;   /* bytes of one sequence in all parts */
    dr_grown *grown; /* [2][grown_count] what grows, as it lies now and as it lay before */
    int64_t grown_count;
    int64_t moves;     /* how often any of it has come to lie elsewhere */
    dr_session *step;  /* one token each; planned before the first step, or NULL */
    void *choosing[2]; /* copies to the host of what the steps under way choose, the first one first */
    int64_t under_way; /* of these steps */
};

/* As dr_model_state_create, without the memory of steps, which the first one takes. */
dr_status dr_model_state_make(const dr_model *model, int64_t sequences, dr_model_state **state);
/* Makes room for so many tokens of each sequence; on failure the state is as it was. */
dr_status dr_model_state_room(dr_model_state *state, int64_t tokens);
/* The same for the tokens that a call brings. */
dr_status dr_model_state_reserve(dr_model_state *state, const dr_layout *layout);
/* Counts the tokens of a call that has run. Ids that are NULL are added to the hashes when they are known. */
void dr_model_state_advance(dr_model_state *state, const dr_batch *batch, bool decoded);

/* Memory of steps, planned once. */
dr_status dr_model_steps_prepare(dr_model_state *state);

/* What has a fixed size of one sequence, to and from a record of state->record bytes in the backend's memory. */
dr_status dr_state_store(const dr_model_state *state, int64_t sequence, char *record);
dr_status dr_state_fetch(dr_model_state *state, int64_t sequence, const char *record);
/* What grows of one sequence, as it was after so many tokens, which it may have gone beyond by DR_ATTEND_BACK; `to` has room.
 */
dr_status dr_state_copy_grown(const dr_model_state *from, int64_t sequence, int64_t tokens, dr_model_state *to, int64_t other);

#endif
