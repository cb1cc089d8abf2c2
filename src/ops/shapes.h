/* How the recurrence's inputs and states lie in memory, and whether its descriptor makes sense: asked by every backend, so that
 * a shape is written down once. */
#ifndef DR_OPS_SHAPES_H
#define DR_OPS_SHAPES_H

#include <deltarule/recurrence.h>

/* An input is [rows][steps][heads][size], each axis there or not:
 * element (row, step, head, i) is at ((row * steps + step) * heads + head) * size + i. */
typedef struct {
    bool per_row;
    int64_t steps;  /* repeat, or 1: no such axis */
    bool per_value; /* heads is HV, not H */
    int64_t heads;  /* H or HV */
    int64_t size;   /* K or V, or 1: no such axis */
    bool vector;    /* has that axis */
} dr_input_form;

dr_input_form dr_recurrence_input_form(const dr_recurrence *recurrence, dr_input input);

/* A vector for each token, whatever the rule: log decays are none, nor are parameters. */
bool dr_input_is_vector(dr_input input);

/* Elements of a used input, of a carried state. */
int64_t dr_recurrence_input_count(const dr_recurrence *recurrence, dr_input input);
int64_t dr_recurrence_state_count(const dr_recurrence *recurrence, dr_state_kind state);

/* Element type of a state between calls, where the backend's is dtype. */
dr_dtype dr_recurrence_state_dtype(const dr_recurrence *recurrence, dr_state_kind state, dr_dtype dtype);

/* Tokens of the longest sequence, 0 where there is none. */
int64_t dr_layout_longest(const dr_layout *layout);

/* DR_ERROR_ARGUMENT unless the rule, the layout, the sizes and the options are right, and every tensor is countable. */
dr_status dr_recurrence_check(const dr_recurrence *recurrence);

/* The same of a recurrence whose calls say where sequences begin: cu_seqlens is not read. */
dr_status dr_recurrence_check_bounds(const dr_recurrence *recurrence);

#endif
