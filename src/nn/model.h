/* What a model holds, and a pass: one run through its blocks in memory that is planned before and used again. */
#ifndef DR_NN_MODEL_H
#define DR_NN_MODEL_H

#include "nn/block.h"

/* The head's products go through so many targets at a time, so that logits never take more than this many rows. */
enum { DR_HEAD_ROWS = 1024 };

typedef enum { DR_PASS_FORWARD, DR_PASS_GRADIENT, DR_PASS_DECODE } dr_pass_kind;

/* Memory of calls. The block grows when a call needs more and is kept; blocks and scratch point into it. A forward needs one
 * block's memory, since nothing is kept; a gradient needs that of every layer. */
typedef struct {
    void *block;
    size_t capacity;
    dr_block_memory *blocks; /* [layers] */
    dr_block_scratch scratch;
    void *x;                          /* [rows, hidden] after the last block; the gradient of the stream in a backward */
    void *selected, *d_selected;      /* [targets, hidden] rows of x at the positions */
    void *normed, *d_normed, *logits; /* [up to DR_HEAD_ROWS, hidden or vocabulary] */
    void *d_x;                        /* [rows, hidden] */
    double loss[DR_HEAD_ROWS];        /* in host memory */
    uint8_t hit[DR_HEAD_ROWS];
} dr_pass;

struct dr_model {
    dr_backend *backend;
    dr_model_config config;
    dr_mixer mixer; /* the same for all layers; its slots hold the whole layer */
    dr_parameter *parameters;
    dr_initial *initials; /* of each parameter */
    int64_t listed, count, block_count;
    int64_t first_layer, layer_stride, final_norm, head; /* offsets into the block; the embedding is at 0 */
    char *values, *gradients;                            /* numbers */
    char *copies; /* the same elements as vectors, for products; NULL where vectors are of the numbers' type */
    dr_pass *pass;
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
    int64_t *seen; /* [sequences] tokens */
    dr_pass *step;
};

/* A model of this configuration with the list of its parameters, but no memory for them yet. */
dr_status dr_model_build(dr_backend *backend, const dr_model_config *config, dr_model **model);
/* Allocates the block of parameters, zero. */
dr_status dr_model_allocate(dr_model *model);

dr_status dr_pass_create(const dr_model *model, dr_pass **pass);
void dr_pass_destroy(dr_backend *backend, dr_pass *pass);
/* Plans and, where that is more than before, allocates the memory of a pass over such a layout. selects: targets are not all
 * rows. */
dr_status dr_pass_prepare(const dr_model *model, dr_pass *pass, dr_pass_kind kind, const dr_layout *layout, int64_t targets,
                          bool selects);

/* From ids to pass->x through all blocks. state: carried in and out, or NULL: from zero. */
dr_status dr_pass_forward(const dr_model *model, dr_pass *pass, dr_pass_kind kind, const dr_layout *layout, const int32_t *ids,
                          dr_model_state *state);
/* From pass->d_x to the gradient block, after a forward of kind DR_PASS_GRADIENT. */
dr_status dr_pass_backward(const dr_model *model, dr_pass *pass, const dr_layout *layout, const int32_t *ids);

/* Logits of targets begin .. begin + count into pass->logits; rows: [targets, hidden] before the final norm. */
dr_status dr_pass_head(const dr_model *model, dr_pass *pass, const void *rows, int64_t begin, int64_t count);
/* The gradient of the same rows into d_rows from that of pass->logits, and the head's and the final norm's. */
dr_status dr_pass_head_backward(const dr_model *model, dr_pass *pass, const void *rows, void *d_rows, int64_t begin,
                                int64_t count);

#endif
