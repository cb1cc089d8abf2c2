/* Counting how often each pair of options of different axes came up in trials, and which pairs cannot. */
#ifndef DR_TESTS_RECURRENCE_PAIRS_H
#define DR_TESTS_RECURRENCE_PAIRS_H

#include "trial.h"

enum { SAMPLES = 8 };

typedef struct {
    int options;   /* of all axes */
    long *count;   /* [options, options] */
    bool *refused; /* [options, options] found by pairs_find_refused */
    trial *sample; /* [options, SAMPLES] some that had the option */
    long *samples; /* [options] seen so far */
} pairs;

pairs pairs_create(void);
void pairs_free(pairs *p);
void pairs_add(pairs *p, const trial *t);

/* Pairs that never came up are searched for at length, from trials that have one of the two; those that no search finds are
 * marked as refused. Returns how many came up in the search only: they could have been covered, and were not. missing: the
 * first of them as text. */
long pairs_find_refused(pairs *p, char *missing, size_t size);

/* A row for each option and a column for each axis: the least count over the axis's options, without refused pairs. all: then
 * every pair with its count. */
void pairs_print(const pairs *p, bool all, FILE *to);

#endif
