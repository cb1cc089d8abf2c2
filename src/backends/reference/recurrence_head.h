/* The recurrence of one value head over one sequence, in parts: the scans A (recurrence_scan.c), K and P (recurrence_matrix.c),
 * the maps from inputs to what a row and the query read (recurrence_maps.c), and the state S over the rows (recurrence_rows.c).
 * recurrence.c puts them together. Tokens count from the sequence's first. */
#ifndef DR_BACKENDS_REFERENCE_RECURRENCE_HEAD_H
#define DR_BACKENDS_REFERENCE_RECURRENCE_HEAD_H

#include "ops/operations.h"

typedef struct {
    const dr_recurrence *recurrence;
    const dr_inputs *inputs;
    const dr_input_gradients *gradients; /* NULL in a forward; members NULL where not wanted; added to */
    int64_t first_row, tokens;           /* of the sequence */
    int64_t key_head, value_head;
    double *A;   /* [tokens + 1, K]: A[0] initial, A[t + 1] after token t */
    double *d_A; /* the same, added to by the maps */

    /* Matrix scans, of a value head. matrix: K or P after t tokens at t matrix_stride, which is K K in a backward; in a forward
     * it is 0, and only the last one is kept. */
    double *matrix;
    int64_t matrix_stride;
    double *d_matrix;       /* [K, K] the gradient of the last one, going back */
    double *solved;         /* [tokens, K] q~ without the scale, or the exact write key */
    double *d_solved;       /* the same, added to by the maps */
    double *system;         /* [K, K] scratch */
    double *matrix_scratch; /* [3, K] */
} dr_reference_head;

/* A row at one token and step: D = decay . S;  e = r^T D;  S = D + w (z - c e)^T. Its gradients have the same form. */
typedef struct {
    double *r; /* [K], zero where the row reads nothing */
    double *w; /* [K] */
    double *z; /* [V] */
    double c;
} dr_reference_row;

/* Scratch of the passes over the rows, all [K], [V] or as said. */
typedef struct {
    double *alpha, *d_alpha; /* [K] the token's decay */
    double *query, *d_query; /* [K] scale q~ */
    dr_reference_row row, d_row;
    double *erased, *d_erased, *update; /* [V] e, its gradient, z - c e */
    double *S;                          /* forward: [K, V]; backward: [tokens steps + 1, K, V], before each step and last */
    double *D;                          /* [K, V] */
    double *d_S;                        /* [K, V] */
} dr_reference_scratch;

/* The slice of an input at a token and step (0 without repeat) that this head reads: [K], [V] or one element. */
const double *dr_reference_input(const dr_reference_head *head, dr_input input, int64_t token, int64_t step);
/* The same slice of its gradient, or NULL. */
double *dr_reference_gradient(const dr_reference_head *head, dr_input input, int64_t token, int64_t step);

/* A over the tokens from A[0]; and back from d_A, whose last row holds the gradient of the final A: leaves that of the initial
 * one in d_A[0]. Once for a key head. */
void dr_reference_scan_forward(const dr_reference_head *head);
void dr_reference_scan_backward(const dr_reference_head *head);

static inline bool dr_reference_has_matrix(const dr_rule *rule) {
    return rule->scan == DR_SCAN_GRAM || rule->scan == DR_SCAN_INVERSE_GRAM;
}

/* A matrix of zeros becomes the inverse Gram matrix before the first token; what its gradient gives to the ridge. initial: the
 * state that the caller gave, or NULL. */
void dr_reference_matrix_start(const dr_reference_head *head);
void dr_reference_matrix_start_backward(const dr_reference_head *head, const double *initial);
/* The matrix over the tokens, and solved; back from d_solved and d_matrix. Once for a value head. */
void dr_reference_matrix_forward(const dr_reference_head *head);
void dr_reference_matrix_backward(const dr_reference_head *head);

/* alpha[K] of a token, and what d_alpha[K] gives to log_decay */
void dr_reference_decay_forward(const dr_reference_head *head, int64_t token, double *alpha);
void dr_reference_decay_backward(const dr_reference_head *head, int64_t token, const double *alpha, const double *d_alpha);

/* r, w, c, z at a step of a token. The backward may overwrite d_row. */
void dr_reference_row_forward(const dr_reference_head *head, int64_t token, int64_t step, dr_reference_row *row);
void dr_reference_row_backward(const dr_reference_head *head, int64_t token, int64_t step, const dr_reference_row *row,
                               dr_reference_row *d_row);

/* query[K] = scale q~ */
void dr_reference_query_forward(const dr_reference_head *head, int64_t token, double *query);
void dr_reference_query_backward(const dr_reference_head *head, int64_t token, const double *d_query);

/* S [K, V] from the initial to the final state in place, o [rows, HV, V] of this head's tokens. */
void dr_reference_rows_forward(const dr_reference_head *head, dr_reference_scratch *scratch, double *o);
/* From scratch->S[0], the initial state, forward again keeping each state, then back. d_S: from the final state's gradient to
 * the initial one's. */
void dr_reference_rows_backward(const dr_reference_head *head, dr_reference_scratch *scratch, const double *d_o);

static inline double dr_reference_dot(int64_t n, const double *x, const double *y) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

/* to += factor x; nothing where to, a gradient that is not wanted, is NULL */
static inline void dr_reference_add(int64_t n, double factor, const double *x, double *to) {
    if (!to) return;
    for (int64_t i = 0; i < n; i++) to[i] += factor * x[i];
}

/* to += x * y elementwise, or nothing */
static inline void dr_reference_add_product(int64_t n, const double *x, const double *y, double *to) {
    if (!to) return;
    for (int64_t i = 0; i < n; i++) to[i] += x[i] * y[i];
}

#endif
