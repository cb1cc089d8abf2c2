/* What the load stage of every kernel of the recurrence reads, as plain data that a launch passes by value: where the inputs
 * and their gradients lie, and what the rule makes of them. Strides are in elements; an axis that a tensor has not has stride
 * 0.
 *
 * Two element types: `narrow` tensors (everything with an axis K or V but log decays, scan and ridge) are in the type of the
 * call, the others (gains, decays, parameters, the scan) are always float. */
#ifndef DR_CUDA_ROWS_H
#define DR_CUDA_ROWS_H

#include "backends/cuda/rows/traits.h"
#include "maps/squash.h"
#include <stdint.h>

typedef struct {
    const void *at;            /* NULL: the rule does not read it */
    void *gradient;            /* NULL: not wanted */
    int64_t token, step, head; /* step: 0 without an axis of steps */
    int32_t bytes, element;    /* of a head's vector, of one of its elements; 0: the rule does not read it */
    bool per_value;            /* heads are value heads */
    bool vector;               /* has an axis K or V */
} dr_cuda_input;

/* A tensor that is made of an input, in whose place it then is, times another one, channel by channel. */
typedef struct {
    int32_t of, by;
    bool negative; /* times -1 */
    bool adds;     /* the other one has gradients of its own, to which this one's are added */
} dr_row_product;

enum { DR_ROW_PRODUCTS = 3 };

typedef struct {
    dr_cuda_input input[DR_SOURCES]; /* behind the inputs what is made of them; at NULL: no such thing is */
    float *key_dot;                  /* [tokens, H] key . (B * key), where a normalizer asks for it */

    dr_cuda_row row[DR_MAX_ROWS];
    int32_t steps;  /* rows a token */
    int32_t kinds;  /* of rows: steps are all like the first */
    bool step_axis; /* key, value and beta have an axis of that many steps */
    bool reads;     /* any row does */
    bool tied;      /* rows that read do so by the key that they write: one tile serves both */
    bool dots;      /* a gain is made of r . w, within the chunks */
    /* What is made before the chunks, and an input to these (engine/made.h): gains, by a formula; queries; the sum that a row
     * reads; products. */
    bool gains_made, query_made, sum_made;
    dr_gain gains_from;
    int32_t products;
    dr_row_product product[DR_ROW_PRODUCTS];
    bool scalar_decay, constant_decay, channel_decay, tied_scan, diagonal_scan;
    bool squashes, morrison;     /* a row writes what the scan makes so */
    bool normalized, discounted; /* by the rule's normalizer, of whichever kind; by the one with the decay */
    /* Every input has its gradient from one row of a token, so that nothing is summed over rows: the backward leads all
     * gradients of vectors to the inputs, or to a part of each value head (backward.c). Otherwise they go through floats. */
    bool direct;
    /* The diagonal scan makes the write key of the key that is read, and value heads have a key head each: the backward leads
     * the gradients of both to the scan's backward, that of the query to the input. */
    bool made;
    bool aligned; /* all vectors of K, of V begin at 16 bytes: whole vectors are loaded */
    dr_asks asks;
    int32_t asked, ask_other, ask_factor;
    dr_map_squash squash;
    float gain_eps, scale;
    int32_t key_heads, value_heads, group, key_size, value_size; /* group: value heads a key head */
} dr_cuda_rows;

#endif
