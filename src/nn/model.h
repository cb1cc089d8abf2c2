/* What a model holds: its configuration, layers and parameters, which sessions and states only read. */
#ifndef DR_NN_MODEL_H
#define DR_NN_MODEL_H

#include "nn/layer.h"
#include <jansson.h>

/* One layer of the model: how it is configured, and where its parameters begin in the block (elements). */
typedef struct {
    const dr_layer *kind;
    int64_t offset;
    size_t weights_at; /* likewise in weights that are stored apart (bytes) */
} dr_model_layer;

struct dr_model {
    dr_backend *backend;
    dr_model_config config;     /* as callers see it */
    char *layer_list;           /* its text, or NULL */
    dr_description description; /* what is built */
    json_t *published;          /* the configuration that it was read from and is saved with; NULL: `config` says all of it */
    dr_layer *kinds;            /* [kind_count] layers that are configured alike share one */
    int64_t kind_count;
    int64_t passed;                     /* columns of what goes from layer to layer beside the stream; 0: nothing does */
    dr_model_layer *layers;             /* [description.count] */
    dr_layer_parameters trunk;          /* what is no layer's; offsets are from the block's start */
    dr_norm embedding_norm, final_norm; /* list of the trunk */
    dr_depth_query depth;               /* likewise, of the head, where halves of layers attend to earlier outputs */
    int embedding, head;                /* likewise; one and the same where they are tied */
    dr_parameter *parameters;
    dr_initial *initials; /* of each parameter */
    int64_t listed, count, block_count;
    size_t *weights_at; /* of each parameter without numbers (offset -1): where it lies in `weights` */
    char *values;       /* numbers */
    /* What products read: copies of all elements as vectors, or weights that are stored apart and have no numbers (ops/kind.h);
     * NULL where vectors are of the numbers' type. */
    char *weights;
    char **ignored; /* [ignored_count] names of stored tensors that are not used */
    int64_t ignored_count;
};

/* A model of this configuration with the list of its parameters, but no memory for them yet. */
dr_status dr_model_build(dr_backend *backend, const dr_model_config *config, dr_model **model);
/* The same from a description, which the model takes over in any case. config: as far as it can say what the model is. */
dr_status dr_model_build_described(dr_backend *backend, dr_description *description, const dr_model_config *config,
                                   dr_model **model);
/* Elements first .. first + count - 1 of a parameter, by its number in the list, to host memory: as products read them where it
 * has no numbers. */
dr_status dr_model_elements(const dr_model *model, int64_t parameter, int64_t first, int64_t count, dr_dtype dtype, void *to);
/* Puts rows of numbers, in the backend's memory, in place of a parameter's that has no numbers itself; a row is its last size.
 */
dr_status dr_model_put_rows(dr_model *model, int64_t parameter, int64_t row, int64_t rows, const void *from);

/* Allocates the block of parameters, which whoever calls fills in; the gaps between them are zero. */
dr_status dr_model_allocate(dr_model *model);

/* DR_ERROR_UNSUPPORTED where there can be no gradients, since weights have no numbers. */
dr_status dr_model_learns(const dr_model *model);

/* What the functions of parameters need of a call over the trunk's, or a layer's; gradients: the block of them, or NULL. */
dr_module_call dr_model_trunk(const dr_model *model, char *gradients);
dr_module_call dr_model_layer_call(const dr_model *model, int64_t index, char *gradients);

#endif
