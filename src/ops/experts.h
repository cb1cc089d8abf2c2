/* Mixture of experts: each token goes to `chosen` of the experts, and its output is their weighted sum. Nothing is dropped.
 *
 *     route     scores of a token's logits; which experts it goes to, and with which weights
 *     sort      slots, which are pairs of a token and one of its experts, in the order of experts; of one expert, of tokens
 *     gather    the rows of tokens, in that order
 *     linear    y = weight[expert] x, one product for the rows of each expert
 *     combine   the weighted sum of a token's slots, in the order of its choices
 *
 * Slot s is choice s % chosen of token s / chosen. Indices are int32 in the backend's memory. */
#ifndef DR_OPS_EXPERTS_H
#define DR_OPS_EXPERTS_H

#include <deltarule/status.h>

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t rows, experts, chosen; /* chosen <= experts; rows chosen < 2^31 */
} dr_experts;

/* Scores s are softmax(logits) or sigmoid(logits). The experts with the largest s + bias are chosen, of equal ones the first.
 * With groups, which are of equal size, two experts at least: only from the `kept` groups whose two largest s + bias have the
 * largest sums. A weight is scale s, s without the bias, or if normalised scale s / (sum of the chosen s + 1e-20). */
typedef struct {
    dr_experts of;
    bool sigmoid, normalised;
    int64_t groups, kept; /* 1 and 1: no groups */
    double scale;
} dr_router;

/* DR_ERROR_ARGUMENT with a sentence unless the numbers fit each other. */
dr_status dr_router_check(const dr_router *router);

#endif
