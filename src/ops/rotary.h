/* Rotary position embedding (Su et al. 2021): pair i of a head's elements is turned by the angle position f_i, with
 * f_i = base^(-2i/dim) or one of the ways to stretch that to longer texts. The frequencies are data: a table, made once. */
#ifndef DR_OPS_ROTARY_H
#define DR_OPS_ROTARY_H

#include <deltarule/tensor.h>

#include <stdbool.h>

/* x [rows, heads, size], its rows `row` elements apart; of each head the elements first .. first + dim - 1 are turned, dim
 * even: the pairs (i, i + dim/2), or if interleaved (2i, 2i + 1), counted from `first`. What is turned is multiplied by factor
 * too. */
typedef struct {
    dr_layout layout;
    int64_t heads, size, row;
    int64_t first, dim;
    bool interleaved;
    double factor;
    const double *frequencies; /* [dim/2] radians from one position to the next, in host memory; NULL: base^(-2i/dim) */
    double base;
    const int64_t *offset; /* [sequences] tokens that each sequence has already seen, in the backend's memory; NULL: zero */
} dr_rotary;

typedef enum {
    DR_ROTARY_PLAIN,
    DR_ROTARY_LINEAR, /* f / stretch */
    DR_ROTARY_LLAMA3, /* f / stretch where a turn takes more than original / low positions, f below original / high */
    DR_ROTARY_YARN,   /* f / stretch for pairs that make few turns in `original` positions, f for many (Peng et al. 2023) */
} dr_rotary_kind;

/* What frequencies follow from. Each kind reads what its line names. */
typedef struct {
    dr_rotary_kind kind;
    int64_t dim;
    int64_t counted; /* of these the exponents are made, base^(-2i/counted), where that is no even number; 0: dim */
    double base;
    double stretch;             /* linear, llama3, yarn: "factor" in configurations */
    double original;            /* llama3, yarn: positions that the model was made with */
    double low, high;           /* llama3: low_freq_factor, high_freq_factor, low < high */
    double fast, slow;          /* yarn: turns, beta_fast and beta_slow, fast > slow */
    bool exact_ends;            /* yarn: the ramp's ends are not rounded to whole pairs ("truncate": false) */
    double attention_factor;    /* yarn: of cosine and sine; 0: it follows from the next two and stretch */
    double mscale, mscale_dims; /* yarn: mscale and mscale_all_dim; 0: not given */
} dr_rotary_spectrum;

/* DR_ERROR_ARGUMENT with a sentence unless dim is positive and even and what the kind reads can be. */
dr_status dr_rotary_check(const dr_rotary_spectrum *spectrum);

/* frequencies [dim/2] and the factor of cosine and sine, of a spectrum that was checked */
void dr_rotary_table(const dr_rotary_spectrum *spectrum, double *frequencies, double *factor);

/* The same of any spectrum, checked, in memory to be given to dr_release. */
dr_status dr_rotary_make(const dr_rotary_spectrum *spectrum, double **frequencies, double *factor);

#endif
