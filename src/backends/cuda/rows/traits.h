/* A rule as the kernels see it: how each vector and number of a row is obtained, and from which tensors. Tensors are data,
 * named by their index in dr_cuda_rows.input (rows.h), so that rules which differ in their tensors alone run the same kernels.
 * traits.c makes all of it of a rule's options, and is the only file of the backend that reads these. */
#ifndef DR_CUDA_TRAITS_H
#define DR_CUDA_TRAITS_H

#include <deltarule/recurrence.h>
#include <stdbool.h>

/* Tensors beside the inputs: what the diagonal scan makes, [tokens, H, K] in the call's type; before the chunks (engine/made.h)
 * a sum that rows read, likewise, and gains that are made of r . w, [tokens, steps, HV] floats. */
enum {
    DR_SOURCE_SQUASHED = DR_INPUTS, /* B * key */
    DR_SOURCE_MORRISON,             /* the Sherman-Morrison key */
    DR_SOURCE_RIDGE_QUERY,          /* query / (A_t + ridge) */
    DR_SOURCE_SUM,                  /* key + lambda query */
    DR_SOURCE_GAIN,
    DR_SOURCES,
    DR_NO_SOURCE = DR_SOURCES
};

/* The read key r. */
typedef enum {
    DR_READS_NONE,
    DR_READS_TIED,    /* the write key, a tensor: `read` is `write` */
    DR_READS_TENSOR,  /* `read`, or its negative */
    DR_READS_PRODUCT, /* `read` times `read_other`, channel by channel */
    DR_READS_AFFINE   /* `read` + `read_factor` `read_other` */
} dr_reads;

/* The write key w. */
typedef enum {
    DR_WRITES_TENSOR,  /* `write`, an input */
    DR_WRITES_MADE,    /* `write`, which the diagonal scan makes */
    DR_WRITES_PRODUCT, /* `write` times r */
} dr_writes;

/* The query q~. */
typedef enum {
    DR_ASKS_TENSOR, /* `asked`, an input */
    DR_ASKS_MADE,   /* `asked`, which the diagonal scan makes */
    DR_ASKS_AFFINE  /* `asked` - `ask_factor` `ask_other` */
} dr_asks;

typedef enum { DR_GAINS_ONE, DR_GAINS_INPUT, DR_GAINS_OF_DOT } dr_gains; /* OF_DOT: of inputs and of r . w */

typedef enum {
    DR_VALUES_NONE,   /* z = 0 */
    DR_VALUES_PLAIN,  /* the value */
    DR_VALUES_GAINED, /* c times the value */
    DR_VALUES_GATED   /* the write gate times the value */
} dr_values;

typedef struct {
    dr_reads reads;
    dr_writes writes;
    dr_gains gains;
    dr_values values;
    bool undecayed; /* reads the state before its token's decay */
    bool negative;  /* r is -`read` */
    bool normalized;
    int32_t read, read_other, read_factor, write;
    int32_t gain; /* the input that the gain is; of other gains one that may not be there */
    /* Inputs that have a gradient as it stands, DR_NO_SOURCE: none. written: that of w; led: a gradient of its own from r, that
     * of the gate in a product; gained: that of the gain. */
    int32_t written, led, gained;
    dr_gain formula; /* as src/maps/gain.h takes them */
    dr_normalizer normalizer;
} dr_cuda_row;

#endif
