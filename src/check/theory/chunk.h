/* The chunkwise forms of the papers, as printed and as corrected, in double and one head. The engines of this library compute
 * the same without a quotient of decays (docs/chunkwise.md); here the formulas stand as their papers write them. */
#ifndef DR_THEORY_CHUNK_H
#define DR_THEORY_CHUNK_H

#include "check/theory/theory.h"

enum { FORM_ROWS = 200, FORM_SIZE = 6 };

/* A chunk form as corrected, or with one misprint in it. */
typedef enum {
    FORM_CORRECT,
    FORM_SWAPPED_PRODUCT, /* Q-Delta D.2: K X^T for X K^T */
    FORM_NO_GAMMA,        /* Q-Delta eq. 26: M without Gamma */
    FORM_WHOLE_LOWER,     /* Q-Delta eq. 27: Lower with its diagonal */
    FORM_TURNED_STATE,    /* Q-Delta eq. 6 and 26: W S for W S^T, S [V, K] */
    FORM_UNDECAYED,       /* PDN F.2.1: T, W and U of (F.2.6) and (F.2.7), which have no decay */
    FORM_NO_ROW_FACTOR,   /* PDN F.2.1: W without the factor gamma_r of its rows */
    FORM_DECAY_FROM_I,    /* EDA eq. 20: products of D from i on, not from i + 1 */
    FORM_END_FROM_I,      /* EDA eq. 21: the same in A_{i->2t} alone */
    FORM_NO_INVERSE,      /* EDA eq. 21: M where M^-1 is due */
    FORM_NO_GAIN,         /* EDA eq. 21: without Diag(beta') beside M^-1 */
    FORM_RAW_QUERY,       /* PDN F.2.2: the query where q~ is due */
    FORM_GRAM_AFTER,      /* PDN F.1.2: A_t where A_{t-1} is due */
} dr_theory_form;

/* A_t of the diagonal scan for all tokens by the chunk formula F.1.1, or A_{t-1} by F.1.2 (before), [tokens, K]. slipped: with
 * products of alpha from k on, not from k + 1. */
void dr_theory_gram(const dr_theory_sequence *s, int chunk, bool before, bool slipped, double *scan);

/* o [tokens, V] and the last state of a sequence by the form of its rule, in chunks of at most 64 tokens. Replaces s->o and
 * s->final. A token takes one row or two of FORM_ROWS; K and V are at most FORM_SIZE. */
dr_status dr_theory_form_run(dr_theory_form form, int chunk, dr_theory_sequence *s);

#endif
