/* What a rule does not decide about its layer, by family. */
#ifndef DR_NN_FAMILY_H
#define DR_NN_FAMILY_H

#include "ops/operations.h"
#include <deltarule/model.h>

/* Which of query and key are divided by their length, head by head. */
typedef enum { DR_UNIT_NONE, DR_UNIT_QUERY, DR_UNIT_BOTH } dr_unit;

/* How the decay is projected: one number a head (scalar decay); down to a head's value size and up; down to 16 and up, with a
 * bias; down to 16 a head and up head by head. */
typedef enum { DR_DECAY_FULL, DR_DECAY_LOW_RANK, DR_DECAY_LOW_RANK_BIAS, DR_DECAY_LOW_RANK_HEADS } dr_decay_projection;

typedef struct {
    int64_t conv_size;  /* of query, key and value by default; 0: none */
    bool conv_bias;     /* of the convolutions */
    bool activated;     /* silu after the convolution, or in its place */
    bool plain_value;   /* the value has neither of the two */
    dr_unit unit;       /* L2 norm of query and key, after the activation */
    bool output_gate;   /* by default */
    dr_activation gate; /* of the output */
    bool gate_low_rank; /* the gate's projection goes through the value size, with a bias on the second */
    bool gate_first;    /* RMS of o * gate over all heads, instead of RMS of each head, then the gate */
    int64_t expansion;  /* value size over key size by default */
    double scale;       /* of the query read; 0: K^-1/2 */
    dr_decay_projection decay;
    double log_sigmoid;          /* log_decay = this times logsigmoid(u), without A_log and dt_bias; 0: -exp(A_log) softplus */
    bool gains_biased;           /* the projections of a scalar decay and of beta have a bias */
    double a_least;              /* A_log is ln of a draw between this and 16 */
    dr_gate_form form;           /* of the decay gate by default, where tokens decide the decay */
    double rotary_base;          /* of the rotary embedding of query and key; 0: none */
    const char *scan_decay_name; /* of the scan's decay projection where publishers call it otherwise, or NULL; channel decay */
    bool stepped;                /* the value is softplus(u) times the projected one, u a scalar decay's; and o += D value */
} dr_layer_family;

/* What the family of a rule (dr_rule_family) says about its layers. */
dr_layer_family dr_layer_family_of(const dr_rule *rule);

#endif
