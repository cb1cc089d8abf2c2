/* Attention over depth (attention residuals; FLA: attnres_block_size): parts of layers read no sum of all that came before, but
 * a weighted sum of few, chosen by a learned query. The outputs of each `block` parts of the model are summed. With S_0 the
 * embedding and S_(j+1) the sum of the block of part j up to and with its output, part j reads
 *
 *     x_j = sum_l p_l R_l,  p = softmax over l of query . norm(R_l),  R = S_0, S_block, S_(2 block), .. before S_j, then S_j
 *     S_(j+1) = y_j, where j is a multiple of block, else S_j + y_j
 *
 * and the head likewise behind the last part. */
#ifndef DR_NN_DEPTH_H
#define DR_NN_DEPTH_H

#include "formats/names/description.h"
#include "nn/module.h"

typedef struct {
    double eps;
    int query, weight; /* list [1, dim], [dim] */
} dr_depth_query;

/* Its parameters "proj.weight" and "norm.weight" behind the prefix. */
dr_status dr_depth_query_create(const dr_norm_description *norm, int64_t dim, const char *prefix, dr_layer_parameters *list,
                                dr_depth_query *query);

/* The sums of a session and, of a gradient, theirs. */
typedef struct {
    int64_t block, parts; /* parts of the whole model */
    void **sum;           /* [parts + 1] S, [rows, hidden] each; where nothing is kept those of a block share one place */
    void **d_sum;         /* [parts / block + 2] gradients of the embedding and of each block's sum */
} dr_depth_sums;

dr_status dr_depth_sums_create(int64_t block, int64_t parts, dr_depth_sums *sums);
void dr_depth_sums_release(dr_depth_sums *sums);
/* Tensors of so many bytes. keep: there will be a backward. */
void dr_depth_sums_place(const dr_depth_sums *sums, size_t bytes, bool keep, dr_arena *arena);
void dr_depth_sums_zero(const dr_depth_sums *sums, dr_backend *backend, size_t bytes); /* the gradients */

/* What part j adds its output to, or NULL; and the gradient of S_j, complete once all later parts have had their backward. */
const void *dr_depth_base(const dr_depth_sums *sums, int64_t part);
void *dr_depth_gradient(const dr_depth_sums *sums, int64_t part);

/* x [rows, hidden] that part j reads; part = parts: the head. The backward adds to the gradients of what was read. */
dr_status dr_depth_read(const dr_depth_query *query, const dr_module_call *call, const dr_depth_sums *sums, int64_t part,
                        int64_t hidden, void *x);
dr_status dr_depth_read_back(const dr_depth_query *query, const dr_module_call *call, const dr_depth_sums *sums, int64_t part,
                             int64_t hidden, const void *d_x);

#endif
