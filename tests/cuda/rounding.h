/* The bounds that results on a GPU are held to, row by row: a row is what a token (or a sequence) has of a head. */
#ifndef DR_TESTS_CUDA_ROUNDING_H
#define DR_TESTS_CUDA_ROUNDING_H

#include "suites.h"

/* Whether backend `type` (1: bf16, 2: fp16) stays within twice the error of the plain loop in every row. The largest error
 * counts that the loop has of the problem and of neighbours of it, since one of few numbers may be lucky. what: the worst
 * tensor. */
bool rounds_as_plain(gpu *g, int type, const problem *p, dr_path path, dr_random *random, fault *what);
/* The same in two steps, for several calls of the same numbers: what is right, and how far a row of each tensor may be off. The
 * plain loop's error in a number is a draw around zero: the largest of three draws is below half of a fourth in one case of 15,
 * of 24 in one of 2,500. So up to 24 problems are drawn, until a result is within the bound. */
enum { ROW_TENSORS = 1 + 2 * DR_STATES + DR_INPUTS };
enum { MOST_DRAWS = 24 };
typedef struct {
    result want;
    int draws; /* so far: a result that they allow asks for no more of them */
    double error[MOST_DRAWS][ROW_TENSORS];
    dr_random random;
} plain_bound;
bool plain_bound_create(gpu *g, int type, const problem *p, dr_random *random, plain_bound *bound, fault *what);
bool within_bound(gpu *g, int type, const problem *p, dr_path path, plain_bound *bound, fault *what);
/* What the bound is made of, for suites that measure otherwise: what draws first to end - 1, of which 0 is the problem and the
 * others are neighbours, come to exactly and rounded. The bound is times_of_plain times the error, which is at least
 * least_error. */
typedef void plain_loop(const problem *p, result *exact, const result *rounded, void *context); /* may take exact over */
bool plain_loops(gpu *g, int type, const problem *p, int first, int end, dr_random *random, plain_loop *take, void *context,
                 fault *what);
extern const double times_of_plain;
double least_error(const dr_backend *cuda);
/* The norm of the worst row's error over the root mean square of the rows' norms; infinite where a number is not finite. */
double row_error(const double *got, const double *want, int64_t rows, int64_t width);
/* To the numbers of a type of 16 bits. */
void round_numbers(double *x, int64_t count, dr_dtype dtype);

/* The same of float32 and the tolerances of the recorded results. */
bool floats_are_near(gpu *g, const problem *p, dr_path path, const result *want, fault *what);

/* Prints a trial that does not hold, in one piece. */
void trial_tell(const trial *t);

#endif
