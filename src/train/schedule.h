/* The learning rate of a step. */
#ifndef DR_TRAIN_SCHEDULE_H
#define DR_TRAIN_SCHEDULE_H

#include <stdint.h>

/* How the rate goes on after the warm-up, to its last value at the last step. */
typedef enum {
    DR_SCHEDULE_COSINE,   /* falls along half a cosine */
    DR_SCHEDULE_LINEAR,   /* falls along a line */
    DR_SCHEDULE_CONSTANT, /* stays at the peak */
    DR_SCHEDULE_STABLE,   /* stays at the peak, and falls in the last steps: warm-up, stable, decay (Hu et al. 2024,
                             arXiv:2404.06395) */
} dr_schedule_shape;

/* How the rate of a stable schedule falls, p from 0 to 1 being the way through these steps: 1 - p, (1 + cos pi p)/2 or
 * 1 - sqrt p (Haegele et al. 2024, arXiv:2405.18392). */
typedef enum { DR_DECAY_LINEAR, DR_DECAY_COSINE, DR_DECAY_SQRT } dr_decay_shape;

typedef struct {
    dr_schedule_shape shape; /* zero: the cosine */
    dr_decay_shape decay_shape;
    double peak;          /* learning rate after the warm-up */
    double last_ratio;    /* the last step's, as a share of the peak */
    double warmup;        /* share of the steps, */
    int64_t warmup_steps; /* unless this is not 0 */
    double decay;         /* share of the steps in which the rate of a stable schedule falls */
    int64_t steps;
} dr_schedule;

/* Of step 1 .. steps: rises linearly over the warm-up, reaching the peak at its last step, then goes on in its shape. */
double dr_schedule_rate(const dr_schedule *schedule, int64_t step);

#endif
