/* Trials: random compositions of a rule's options with random shapes, ways of packing, splitting and so on.
 *
 * Everything that can be chosen is an axis with numbered options, option 0 the plainest; one table has them all. The options of
 * a rule's axes are walked through as dr_rule_check knows them, so a new option of an axis joins by itself and a new axis with
 * a line. A seed gives a trial; each trial is drawn around two options of different axes chosen in advance, so that rare pairs
 * of options come up as well. */
#ifndef DR_TESTS_RECURRENCE_TRIAL_H
#define DR_TESTS_RECURRENCE_TRIAL_H

#include "problem.h"

#include <stdio.h>

typedef enum { PACKING_ONE, PACKING_EQUAL, PACKING_RAGGED, PACKING_EMPTY } trial_packing;
typedef enum { HEADS_ONE, HEADS_SEVERAL, HEADS_GROUPED } trial_heads;
typedef enum { VALUES_MILD, VALUES_STRONG } trial_values;
typedef enum { CHUNK_ONE, CHUNK_SHORT, CHUNK_LONG } trial_chunk;
typedef enum { SPLIT_START, SPLIT_INSIDE, SPLIT_END } trial_split;

typedef struct {
    uint64_t seed; /* of the numbers too */
    dr_rule rule;
    trial_packing packing;
    trial_heads heads;
    trial_values values;
    trial_chunk chunking;
    trial_split splitting;
    int threads; /* from 1: held against one thread */
    int isa;     /* of the checks that look at one only: portable, avx2, avx512 */
    /* drawn within the options above, shrunk below them */
    int64_t key_heads, group, key_size, value_size, sequences, length[MOST_SEQUENCES], chunk, cut[MOST_SEQUENCES];
    double scale;
} trial;

int axis_count(void);
const char *axis_name(int axis);
int axis_options(int axis); /* how many */
/* The option's name, valid until the next call. */
const char *option_name(int axis, int option);
int option_of(const trial *t, int axis);
void set_option(trial *t, int axis, int option);
/* Whether the axis means anything under the other options: a second row's read where there is one row only does not. */
bool axis_matters(const trial *t, int axis);

/* Every seed gives a trial whose rule is right. So many seeds in a row go through all pairs of options of rules: each trial is
 * drawn around one pair. */
trial trial_draw(uint64_t seed);
uint64_t trial_cycle(void);
/* Changes the options of a right trial until it has these two, both of which matter. False if that was not found. */
bool trial_change(dr_random *random, trial *t, int axis, int option, int other_axis, int other_option);
/* Just a rule. */
dr_rule draw_rule(dr_random *random);

/* The trial's problem. */
problem *trial_problem(const trial *t);

/* Options, sizes and the equation, in a few lines. */
void trial_print(const trial *t, FILE *to);

/* Makes a trial smaller or plainer by the named step; false if it is as small in that already, or there is no such step. */
bool trial_shrink_by(trial *t, const char *step);
/* Takes every step after which holds still says false, until none is left. steps: their names with commas, size bytes. */
void trial_shrink(trial *t, bool (*holds)(const trial *t, void *context), void *context, char *steps, size_t size);

#endif
