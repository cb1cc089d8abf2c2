/* What the load stage of every kernel of the recurrence reads, as plain data that a launch passes by value: where the inputs
 * and their gradients lie, and what the rule makes of them. Strides are in elements; an axis that a tensor has not has stride
 * 0.
 *
 * Two element types: `narrow` tensors (everything with an axis K or V but log decays, scan and ridge) are in the type of the
 * call, the others (gains, decays, parameters, the scan) are always float. */
#ifndef DR_CUDA_ROWS_H
#define DR_CUDA_ROWS_H

#include "maps/squash.h"
#include <deltarule/recurrence.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    const void *at; /* NULL: the rule does not read it */
    void *gradient; /* NULL: not wanted */
    int64_t token, step, head;
    int32_t bytes, element; /* of a head's vector, of one of its elements; 0: the rule does not read it */
    bool per_value;         /* heads are value heads */
    bool vector;            /* has an axis K or V */
} dr_cuda_input;

typedef struct {
    dr_cuda_input input[DR_INPUTS];
    /* what the diagonal scan makes of the keys, [tokens, H, K] in the call's type (key_dot [tokens, H] float); NULL: not used
     */
    void *squashed;    /* write key B * key */
    void *morrison;    /* the Sherman-Morrison write key */
    void *ridge_query; /* query / (A_t + ridge) */
    float *key_dot;    /* key . (B * key), where a normalizer asks for it */

    dr_row row[DR_MAX_ROWS];
    int32_t steps;  /* rows a token */
    bool step_axis; /* key, value and beta have an axis of that many steps */
    bool scalar_decay, constant_decay, channel_decay, tied_scan, diagonal_scan;
    bool aligned; /* all vectors of K, of V begin at 16 bytes: whole vectors are loaded */
    dr_query query;
    dr_normalizer normalizer;
    dr_map_squash squash;
    float gain_eps, scale;
    int32_t key_heads, value_heads, group, key_size, value_size; /* group: value heads a key head */
} dr_cuda_rows;

#endif
