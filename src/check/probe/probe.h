/* What the files of this folder share: the streams of a layer in double, samples and what is told of them, a plain recurrence.
 */
#ifndef DR_CHECK_PROBE_PROBE_H
#define DR_CHECK_PROBE_PROBE_H

#include <deltarule/probe.h>
#include <deltarule/recurrence.h>

/* A layer's recurrence over one sequence: inputs as docs/notation.md shapes them, in double. */
typedef struct {
    int64_t layer, tokens;
    dr_recurrence recurrence;
    double *at[DR_INPUTS]; /* NULL: not read */
} dr_probe_layer;

/* The input's vector (or number) of a token and value head. */
const double *dr_probe_input(const dr_probe_layer *layer, dr_input input, int64_t token, int64_t value_head);
/* alpha of a token, value head and channel, 1 where the rule has no decay. */
double dr_probe_decay(const dr_probe_layer *layer, int64_t token, int64_t value_head, int64_t channel);

/* ---- samples ---- */

/* The first failure sticks: later calls do nothing, and dr_probe_tell returns it. */
typedef struct {
    double *values;
    int64_t count;
    dr_status status;
} dr_probe_samples;

/* Numbers that are not finite, such as the cosine with a zero vector, are left out. */
void dr_probe_add(dr_probe_samples *samples, double value);

typedef struct {
    void (*figure)(void *context, const dr_probe_figure *figure);
    void *context;
} dr_probe_listener;

/* Tells of the samples, unless there are none, and releases them. */
dr_status dr_probe_tell(const dr_probe_listener *listener, int64_t layer, const char *name, dr_probe_samples *samples);

/* ---- vectors and the state ---- */

double dr_probe_dot(int64_t count, const double *a, const double *b);
double dr_probe_norm(int64_t count, const double *a);
double dr_probe_cosine(int64_t count, const double *a, const double *b); /* NaN with a zero vector */

/* S [K, V]: S = diag(alpha) S of a token and value head; r = S^T q; S = S + g w (z - r)^T, where r [V] was read; z NULL: 0. */
void dr_probe_state_decay(const dr_probe_layer *layer, int64_t token, int64_t value_head, double *state);
void dr_probe_state_read(const dr_recurrence *recurrence, const double *state, const double *query, double *read);
void dr_probe_state_write(const dr_recurrence *recurrence, double gain, const double *write, const double *value,
                          const double *read, double *state);

/* The eigenvalues of a symmetric matrix [n, n], which is overwritten, in descending order. DR_ERROR_UNSUPPORTED without LAPACK.
 */
dr_status dr_probe_eigenvalues(int64_t n, double *matrix, double *eigenvalues);

/* ---- kinds ---- */

/* Whether a layer of this rule has what a kind looks at, its figures, and what fills them. */
typedef struct {
    const char *name, *of; /* of: what a layer must have, for the message */
    bool (*applies)(const dr_rule *rule);
    const char *const *figures; /* [count] names */
    int count;                  /* DR_PROBE_MOST_FIGURES at most */
    /* Adds the samples [count] of one value head. */
    dr_status (*run_head)(const dr_probe_layer *layer, int64_t value_head, dr_probe_samples *samples);
} dr_probe_kind_entry;

enum { DR_PROBE_MOST_FIGURES = 32 };

/* All value heads of a layer, and what is told of them. */
dr_status dr_probe_run(const dr_probe_kind_entry *kind, const dr_probe_layer *layer, const dr_probe_listener *listener);

extern const dr_probe_kind_entry dr_probe_value, dr_probe_preconditioner, dr_probe_erase;

/* B of the squash for a value A of the scan. */
double dr_probe_squash(const dr_squash *squash, double scan, double centre);

#endif
