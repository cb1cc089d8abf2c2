/* Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/): momentum whose step for a matrix is made orthogonal,
 * so that all its singular values are near 1. For parameters [rows, columns] of a layer; embeddings, heads and vectors have
 * AdamW.
 *
 *     momentum = beta momentum + g
 *     X        = (g + beta momentum), of Frobenius norm 1                          (Nesterov's step)
 *     X        = a X + (b A + c A^2) X,  A = X X^T,  five times                    (Newton-Schulz, of the shorter side)
 *     p        = p - rate (0.2 sqrt(max(rows, columns)) X + decay p)
 *
 * with (a, b, c) = (3.4445, -4.7750, 2.0315) as published there. The factor of the last line gives steps of the size that
 * AdamW's have, so that its learning rates and weight decay serve here too (Liu et al. 2025, arXiv:2502.16982, section 2.2).
 *
 * All of it is computed by the backend: products in its vectors, the momentum in its numbers. */
#ifndef DR_TRAIN_MUON_H
#define DR_TRAIN_MUON_H

#include "base/for_check.h"

#include "ops/operations.h"

typedef struct dr_muon dr_muon;

/* Memory for matrices of up to so many elements with a shorter side of up to `side`. DR_ERROR_UNSUPPORTED, with the operation,
 * on a backend that lacks one. */
dr_status dr_muon_create(dr_backend *backend, int64_t elements, int64_t side, dr_muon **muon);
void dr_muon_destroy(dr_muon *muon);                     /* NULL is allowed */
DR_FOR_CHECK int64_t dr_muon_bytes(const dr_muon *muon); /* of the backend's memory; 0 of NULL */

typedef struct {
    int64_t rows, columns;
    double learning_rate, beta, weight_decay;
} dr_muon_step;

/* One matrix: gradient, parameter and momentum [rows, columns], numbers. Changes nothing in a skipped step. */
dr_status dr_muon_update(dr_muon *muon, const dr_muon_step *step, const dr_control *control, const void *gradient,
                         void *parameter, void *momentum);

#endif
