/* What rows are made of, made before the chunks: products of two inputs (gated read keys and values, write keys that are a rate
 * times what is read), sums of key and query that are read, queries less a part of the key, gains that are formulas of r . w.
 * The chunks then have inputs in their places (dr_cuda_rows_make_before in rows_make.h), so that a rule with such a row runs
 * the kernels of one without. In a forward one_pass makes some of this itself (plan.made_within). Behind the backward the
 * gradients of what was made become those of what it was made of. */
#ifndef DR_CUDA_MADE_H
#define DR_CUDA_MADE_H

#include "backends/cuda/cuda.h"
#include "backends/cuda/rows/rows.h"
#include "base/memory.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of a call: the rows as its inputs and their gradients lie. */
typedef struct {
    dr_cuda_rows from;
    int64_t tokens;
    float *d_correction; /* [tokens, H], of a backward whose queries are made */
    float *d_dot;        /* [tokens, H], where the diagonal scan's backward leads on what r . w gets of gains; else NULL */
} dr_cuda_made;

/* Keeps the rows in made, and puts what is made in the place of their inputs; of a backward its gradients, too, which lie where
 * those of the inputs will, if these are wanted. */
void dr_cuda_made_lay(bool backward, dr_dtype storage, int64_t tokens, dr_cuda_rows *rows, dr_arena *arena, dr_cuda_made *made);

/* rows: as dr_cuda_made_lay left them. Behind the diagonal scan, whose keys gains may be made of. A backward has no use for
 * gains. */
dr_status dr_cuda_made_make(const dr_cuda_made *made, const dr_cuda_rows *rows, dr_dtype storage, bool backward,
                            dr_cuda_stream stream);

/* Adds to gradients that others have left, and writes those of other inputs. */
dr_status dr_cuda_made_lead(const dr_cuda_made *made, const dr_cuda_rows *rows, dr_dtype storage, dr_cuda_stream stream);

#ifdef __cplusplus
}
#endif
#endif
