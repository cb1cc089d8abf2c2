/* Whole models on a backend that is tested against the reference: loss and gradient of a packed batch with sequences of 0 to
 * 235 tokens. By the norm of a parameter's gradient; what is no matrix is one vector with its like of all layers, since few
 * numbers have no steady rounding error:
 *
 *     float32    within 1e-4
 *     bf16       within twice the error of the reference that stores vectors in bf16, plus 1e-3
 *     again      the same bits, in the fourth call of a session */
#ifndef DR_TESTS_CUDA_NETWORK_MODELS_H
#define DR_TESTS_CUDA_NETWORK_MODELS_H

#include "ops/operations.h"

/* One of them; folder: of tests/checkpoints, else a rule or a list of layers (docs/models.md), width 256, heads of 128. */
typedef struct {
    const char *name, *folder, *rule, *layer_list;
    int64_t layers, heads;
    bool brief;  /* a batch of 75 tokens: for emulated kernels */
    bool routed; /* a router's choice is no continuous function: float32 only */
} model_case;

/* recurrent: with recurrences, which an emulated backend does not have. The list ends with a case without a name. */
const model_case *models_to_hold(bool recurrent);

/* Whether all of them hold on the tested backend; a line tells of each. threads: that compute the reference's results. checks
 * is added to. */
bool models_hold(dr_backend *tested, const model_case *cases, int threads, long *checks);

#endif
