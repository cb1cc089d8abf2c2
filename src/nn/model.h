/* What a model holds: its configuration and parameters, which sessions and states only read. */
#ifndef DR_NN_MODEL_H
#define DR_NN_MODEL_H

#include "nn/block.h"

struct dr_model {
    dr_backend *backend;
    dr_model_config config;
    dr_mixer mixer; /* the same for all layers; its slots hold the whole layer */
    dr_parameter *parameters;
    dr_initial *initials; /* of each parameter */
    int64_t listed, count, block_count;
    int64_t first_layer, layer_stride, final_norm, head; /* offsets into the block; the embedding is at 0 */
    char *values, *gradients;                            /* numbers */
    char *copies;   /* the same elements as vectors, for products; NULL where vectors are of the numbers' type */
    char **ignored; /* [ignored_count] names of stored tensors that are not used */
    int64_t ignored_count;
};

struct dr_model_state {
    const dr_model *model;
    dr_backend *backend;
    int64_t sequences;
    void *block; /* of all layers */
    size_t bytes;
    dr_mixer_state *layers;
    int64_t *seen;    /* [sequences] tokens, in host memory */
    dr_session *step; /* one token each, planned once */
};

/* A model of this configuration with the list of its parameters, but no memory for them yet. */
dr_status dr_model_build(dr_backend *backend, const dr_model_config *config, dr_model **model);
/* Allocates the block of parameters, zero. */
dr_status dr_model_allocate(dr_model *model);

/* Counts the tokens of a call that has run. */
void dr_model_state_advance(dr_model_state *state, const dr_layout *layout);

#endif
