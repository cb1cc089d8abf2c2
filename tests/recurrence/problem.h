/* Recurrence problems for tests of a backend: a rule, sizes and numbers at which no gain meets a pole; running them on a
 * backend and comparing the results. Every number of a problem is exact in float32, so that all backends see the same. Nothing
 * here ends the test: what went wrong is a sentence that the caller deals with. */
#ifndef DR_TESTS_RECURRENCE_PROBLEM_H
#define DR_TESTS_RECURRENCE_PROBLEM_H

#include "base/random.h"
#include "ops/operations.h"

enum { MOST_SEQUENCES = 4, MOVES = 3 };

/* What is wrong, a sentence. */
typedef struct {
    char text[1280];
} fault;

/* Writes the sentence; returns false. */
bool fault_is(fault *what, const char *format, ...) __attribute__((format(printf, 2, 3)));

double uniform(dr_random *random, double from, double to);
int64_t between(dr_random *random, int64_t least, int64_t most);

/* Memory full of NaN, in either type. */
void *block(size_t bytes);
double *numbers(int64_t count);

typedef struct {
    dr_rule rule;
    dr_recurrence recurrence;
    int64_t cu_seqlens[MOST_SEQUENCES + 1];
    int64_t input_count[DR_INPUTS], state_count[DR_STATES], o_count; /* 0 where the rule has none */
    double *input[DR_INPUTS], *initial[DR_STATES], *d_final[DR_STATES], *d_o;
} problem;

typedef struct {
    double *o, *final[DR_STATES], *gradient[DR_INPUTS], *d_initial[DR_STATES];
} result;

/* sizes: sizes and layout (cu_seqlens is copied); the rule and what depends on it are set here. strong: decays down to -60 and
 * -inf, gains of 2, zero keys. */
problem *problem_create(const dr_rule *rule, const dr_recurrence *sizes, bool strong, dr_random *random);
problem *problem_copy(const problem *from);
/* Tokens first[i] .. first[i] + tokens[i] - 1 of each of the sequences from sequence on, as a problem of its own, from the
 * given initial states (of these sequences) or from its own. */
problem *problem_part(const problem *from, int64_t sequence, int64_t sequences, const int64_t *first, const int64_t *tokens,
                      double *const initial[DR_STATES]);
/* From now on without initial states and gradients of final ones. */
void problem_forget_states(problem *p);
void problem_free(problem *p);
void result_free(result *r);

/* The numbers of token of input, o_count of o: that of all of them for a parameter. */
int64_t input_width(const problem *p, dr_input input);
bool is_per_token(const problem *p, dr_input input);
bool equally_long(const dr_layout *layout); /* and not empty */

/* Every input moved by at most half a unit in the last place of float32. */
void move_inputs(problem *p, dr_random *random);

/* Memory of the backend full of NaN in every type. The program ends if there is none. */
void *backend_block(const dr_backend *backend, size_t bytes);
void backend_release(const dr_backend *backend, void *memory);

/* A tensor in the backend's memory and the given type, or its own: converted in, or poisoned for what is to be written.
 * tensor_out frees from. */
void *tensor_in_as(const dr_backend *backend, dr_dtype dtype, const double *from, int64_t count);
void tensor_out_as(const dr_backend *backend, dr_dtype dtype, void *from, double *to, int64_t count);
void *poisoned_as(const dr_backend *backend, dr_dtype dtype, const double *like, int64_t count);
void *tensor_in(const dr_backend *backend, const double *from, int64_t count);
void tensor_out(const dr_backend *backend, void *from, double *to, int64_t count);
void *poisoned(const dr_backend *backend, const double *like, int64_t count);

/* Forward and, if backwards, backward into a result, which is to be freed in any case. */
bool problem_run(dr_backend *backend, const problem *p, dr_path path, int64_t chunk, bool backwards, result *r, fault *what);
/* The same with `around` between: it gets the run's calls of the backend, and makes them by calls(run), once or again. */
typedef dr_status (*problem_calls)(void *run);
bool problem_run_around(dr_backend *backend, const problem *p, dr_path path, int64_t chunk, bool backwards,
                        dr_status (*around)(problem_calls calls, void *run, void *context), void *context, result *r,
                        fault *what);
/* The same forward, and the states of a sequence that it saved at its last boundary but `back` of them, which lies before its
 * token *token; states: of one sequence each, to be freed in any case. *token is -1 if there are not so many boundaries. */
bool problem_boundary(dr_backend *backend, const problem *p, dr_path path, int64_t chunk, int64_t sequence, int64_t back,
                      int64_t *token, double *states[DR_STATES], fault *what);
/* The same forward, one token at a time; all sequences are equally long. */
bool problem_decode(dr_backend *backend, const problem *p, result *r, fault *what);

/* ||got - want|| / max(||want||, least sqrt(count)); infinite where a number is missing or not finite. */
double error_of(const double *got, const double *want, int64_t count, double least);

/* The least size that numbers are held to, beside inputs and gradients of the size of one. The chunkwise engine erases by
 * subtracting: what it leaves of the past is right to the size of what was there, not of what is left. There were as many terms
 * as tokens; behind the gradient of a decay as many as pairs of tokens, and so for each token if all share one decay.
 * results_near takes least_size_chunkwise times the root of that number. */
extern const double least_size, least_size_chunkwise;

/* What the results of a float32 backend are held against: the reference's. Allowed is the tolerance of the recorded results,
 * and beside it, for numbers that are sums which all but cancel, some multiple of what float32 costs there: how far the
 * reference moves when every input moves by at most half a unit in the last place, and how far off a plain loop in float32 is
 * (the reference with float for double), each the worst of some tries. */
typedef struct {
    result want, moved[MOVES], moved_plain[MOVES]; /* of inputs moved in so many ways, in double and in float */
} standard;

extern const double tolerance_forward, tolerance_backward;

/* Not to be closed. */
dr_backend *plain_float_backend(void);
/* The plain loop in float32 forward and backward, under one of the directions of rounding: rounding to the nearest hides, by
 * luck, what another order of the same sums would show, such as x (1 / x) not being one. */
bool problem_run_plain(const problem *p, int try, result *r, fault *what);

bool standard_create(dr_backend *reference, const problem *p, dr_random *random, standard *s, fault *what);
void standard_free(standard *s);
/* worst: raised to the largest error in units of what is allowed. */
bool results_near(const char *name, const problem *p, const result *got, const standard *s, bool backwards, dr_path path,
                  double *worst, fault *what);

bool numbers_same(const char *name, const char *of, const double *a, const double *b, int64_t count, fault *what);
bool results_same(const char *name, const problem *p, const result *a, const result *b, fault *what);

/* A sequence alone, whose problem is `own`, has the bits that it has among the others. */
bool sequence_same(const problem *p, const problem *own, int64_t sequence, const result *packed, const result *alone,
                   fault *what);

/* Where a log decay is -inf its gradient is 0 to the bit. */
bool dead_decays(const char *name, const problem *p, const result *r, fault *what);

/* Where a row erases all that its key reads (gain 1/(r . w), or the normalizer 1/m), a key of one number leaves nothing of the
 * past: gradients into it are sums that are zero but for rounding, to which no bound is relative. Then 2, else 1. */
int64_t least_key_size(const dr_rule *rule);

/* Sizes for a rule; lengths from 0 on, or all equal, which decoding needs. */
dr_recurrence draw_sizes(dr_random *random, const dr_rule *rule, int64_t cu_seqlens[MOST_SEQUENCES + 1]);

#endif
