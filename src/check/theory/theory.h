/* What the statements of one paper are made of: the table of them, the data they are computed on, and how figures are judged.
 */
#ifndef DR_THEORY_THEORY_H
#define DR_THEORY_THEORY_H

#include "check/theory/matrix.h"

#include <deltarule/recurrence.h>
#include <deltarule/theory.h>

/* What a statement is computed with. */
typedef struct {
    dr_backend *reference, *cpu;
    dr_random random;
} dr_theory;

/* The figure of a statement, and the same figure of its counter-case. */
typedef struct {
    double statement, counter;
} dr_theory_figures;

typedef struct {
    const char *name, *statement, *source, *measure;
    double bound;
    const char *counter_case;
    double counter_bound;
    bool at_least;
    int variant; /* for compute, where statements share one */
    dr_status (*compute)(dr_theory *theory, int variant, dr_theory_figures *figures);
} dr_theory_statement;

/* Statements of a kind, in the order in which they are printed. */
typedef struct {
    const dr_theory_statement *statement;
    int count;
} dr_theory_chapter;
extern const dr_theory_chapter dr_theory_linear, dr_theory_exact, dr_theory_gains, dr_theory_stability, dr_theory_risk,
    dr_theory_preconditioned, dr_theory_qdelta, dr_theory_qdelta_error, dr_theory_eda, dr_theory_chunks;

/* The bounds of an equality in double, whose two sides differ by rounding, and of one that is not. */
#define EQUAL     1e-10
#define DIFFERENT 1e-3

#define Q "Q-Delta (arXiv 2606.08804), "
#define P "Preconditioned DeltaNet (arXiv 2604.21100), "
#define E "Erase-then-Delta Attention (arXiv 2606.26560), "

#define LARGEST_DIFFERENCE "largest difference"

/* Fills in `holds` and `counter_fails` from figures and bounds. A figure that is not finite is on neither side of a bound. */
void dr_theory_judge(dr_theory_result *result);

/* The largest difference of two arrays; infinite if there is a NaN. */
double dr_theory_distance(int count, const double *one, const double *other);
/* ||one - other|| / ||other||; infinite if there is a NaN. */
double dr_theory_relative(int count, const double *one, const double *other);

/* The larger of two figures; infinite if one is NaN. */
static inline double worse(double one, double other) {
    if (isnan(one) || isnan(other)) return (double)INFINITY;
    return one > other ? one : other;
}

static inline double distance(matrix one, matrix other) {
    return dr_theory_distance(one.rows * one.columns, one.at, other.at);
}

/* ---- one head over some tokens --------------------------------------------------------------------------------------- */

enum { SEQUENCE_NUMBERS = 640 };

/* Inputs, states and results of one sequence of one head, scale 1. input and initial that the rule does not have are unused. */
typedef struct {
    dr_rule rule;
    int tokens, key_size, value_size;
    double input[DR_INPUTS][SEQUENCE_NUMBERS];
    double initial[DR_STATES][SEQUENCE_NUMBERS];
    double o[SEQUENCE_NUMBERS]; /* [tokens, V] */
    double final[DR_STATES][SEQUENCE_NUMBERS];
} dr_theory_sequence;

/* A sequence with random inputs and initial states: unit keys, gains in (0, 1), mild decays. rule: a row of the table. */
dr_status dr_theory_draw(dr_theory *theory, const char *rule, int tokens, int key_size, int value_size, dr_theory_sequence *s);
/* One of the same rule and sizes with every input and state zero; its tokens are set by the caller. */
dr_status dr_theory_blank(const char *rule, int tokens, int key_size, int value_size, dr_theory_sequence *s);

/* Computes o and the final states on the reference backend, token by token, or on another. chunk: as in dr_recurrence. */
dr_status dr_theory_run(dr_theory *theory, dr_theory_sequence *s);
dr_status dr_theory_run_chunkwise(dr_backend *backend, int64_t chunk, dr_theory_sequence *s);

/* Copies the inputs of one token of `from` into `one`, which has one token and the same sizes. */
void dr_theory_token(const dr_theory_sequence *from, int token, dr_theory_sequence *one);
/* The final states become the initial ones. */
void dr_theory_advance(dr_theory_sequence *s);

/* What one token with value e_1 and beta 1 writes into an empty state under another rule with the same inputs: B_t * key for
 * "pdn". s has one token. */
dr_status dr_theory_write_key(dr_theory *theory, const char *rule, const dr_theory_sequence *s, matrix *write_key);

/* Numbers a token of an input: those of a parameter (correction, scan_centre, ridge) if it has no tokens. */
int dr_theory_width(const dr_theory_sequence *s, dr_input input);

static inline double number_at(const dr_theory_sequence *s, dr_input input, int token) {
    return s->input[input][token];
}

static inline matrix vector_at(const dr_theory_sequence *s, dr_input input, int token) {
    return row_of(s->input[input], token, dr_theory_width(s, input));
}

static inline matrix o_at(const dr_theory_sequence *s, int token) {
    return row_of(s->o, token, s->value_size);
}

static inline void put(dr_theory_sequence *s, dr_input input, int token, matrix v) {
    for (int i = 0; i < v.rows; i++) s->input[input][token * v.rows + i] = v.at[i];
}

/* The matrix memory [K, V] before the first token, and after the last. */
static inline matrix initial_state(const dr_theory_sequence *s) {
    return from_numbers(s->key_size, s->value_size, s->initial[DR_STATE_S]);
}

static inline matrix final_state(const dr_theory_sequence *s) {
    return from_numbers(s->key_size, s->value_size, s->final[DR_STATE_S]);
}

static inline void start_from(dr_theory_sequence *s, matrix state) {
    for (int i = 0; i < state.rows * state.columns; i++) s->initial[DR_STATE_S][i] = state.at[i];
}

#endif
