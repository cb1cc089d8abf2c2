/* The bound of 16-bit types, for the suites that draw compositions. */
#ifndef DR_TESTS_CUDA_ROUNDING_H
#define DR_TESTS_CUDA_ROUNDING_H

#include "suites.h"

/* Whether backend `type` (1: bf16, 2: fp16) stays within so many times the error of the plain loop in every row; moves:
 * neighbours of the problem whose plain loop counts, too, since one of few numbers may be lucky. what: the worst tensor. */
bool rounds_as_plain(gpu *g, int type, const problem *p, dr_path path, double times, int moves, dr_random *random, fault *what);

#endif
