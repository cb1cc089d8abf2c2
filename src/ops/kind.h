/* The two kinds of tensors. A backend may store what is large in a narrower type than what must be exact, so each argument of
 * each operation is of one of two kinds, and ops/operations.h says of which:
 *
 *     vector   activations, their gradients, weights that a product reads: in the backend's storage type
 *     number   gates, log decays, gains, states, weights of norms and convolutions, losses, parameters as the optimizer holds
 *              them and their gradients: in the backend's own type
 *
 *                reference           cpu   cuda
 *     vector     F64, BF16 or F16    F32   F32, BF16 or F16
 *     number     F64                 F32   F32
 *
 * Weights, the vectors that products read as matrices, may be of a third type, narrower than the backend's own: then they stand
 * apart, as rows (base/weight_row.h), and no numbers are kept beside them (dr_weights_apart).
 *
 * The reference that stores vectors in 16 bits says where a value is rounded: it computes each operation in double, from the
 * stored vectors, and rounds each vector that the operation writes once.
 *
 * Whoever takes memory for an argument asks dr_kind_bytes, and multiplies no count by an element size. */
#ifndef DR_OPS_KIND_H
#define DR_OPS_KIND_H

#include "base/for_check.h"

#include <deltarule/recurrence.h>
#include <stdbool.h>

typedef enum { DR_VECTOR, DR_NUMBER } dr_kind;

dr_dtype dr_kind_dtype(const dr_backend *backend, dr_kind kind);
DR_FOR_CHECK size_t dr_kind_bytes(const dr_backend *backend, dr_kind kind, int64_t count); /* of so many elements */

/* Whether vectors are of another type than numbers, so that products read copies of the parameters. */
DR_FOR_CHECK bool dr_has_copies(const dr_backend *backend);

/* Whether weights are stored apart, and the bytes of rows of a weight, as vectors or apart. */
bool dr_weights_apart(const dr_backend *backend);
size_t dr_weight_bytes(const dr_backend *backend, int64_t rows, int64_t columns);

/* Whether the backend can have weights of this type: DR_ERROR_ARGUMENT, or UNSUPPORTED where its vectors are narrower already.
 */
dr_status dr_weights_check(const dr_backend *backend, dr_dtype weights);

/* Copies count elements of this kind to host memory, converting. */
dr_status dr_kind_download(dr_backend *backend, dr_kind kind, void *to, dr_dtype to_dtype, const void *from, int64_t count);

/* Of what a recurrence reads, and of its gradient. The output is a vector, every state a number. */
dr_kind dr_input_kind(dr_input input);

#endif
