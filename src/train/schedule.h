/* The learning rate of a step. */
#ifndef DR_TRAIN_SCHEDULE_H
#define DR_TRAIN_SCHEDULE_H

#include <stdint.h>

typedef struct {
    double peak;       /* learning rate after the warm-up */
    double last_ratio; /* the last step's, as a share of the peak */
    double warmup;     /* share of the steps */
    int64_t steps;
} dr_schedule;

/* Of step 1 .. steps: rises linearly over the warm-up (reaching the peak at its last step), then falls along half a cosine. */
double dr_schedule_rate(const dr_schedule *schedule, int64_t step);

#endif
