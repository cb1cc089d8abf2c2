/* Linear warm-up, then one of several shapes. A function of the step alone, so that a resumed run meets the same rates. */
#include "train/schedule.h"

#include <math.h>

static const double PI = 3.14159265358979323846;

/* From 1 to 0 as p goes from 0 to 1. */
static double decayed(dr_decay_shape shape, double p) {
    switch (shape) {
    case DR_DECAY_LINEAR:
        return 1 - p;
    case DR_DECAY_COSINE:
        return 0.5 * (1 + cos(PI * p));
    case DR_DECAY_SQRT:
        return 1 - sqrt(p);
    }
    return 1;
}

/* The share of the way from the last rate to the peak: 0 at the last step. */
static double stable(const dr_schedule *schedule, int64_t step) {
    const int64_t falling = (int64_t)llround(schedule->decay * (double)schedule->steps);
    const int64_t into = step - (schedule->steps - falling);
    return into > 0 ? decayed(schedule->decay_shape, (double)into / (double)falling) : 1;
}

double dr_schedule_rate(const dr_schedule *schedule, int64_t step) {
    int64_t warm = schedule->warmup_steps > 0 ? schedule->warmup_steps : (int64_t)(schedule->warmup * (double)schedule->steps);
    if (step <= warm) return schedule->peak * (double)step / (double)warm;
    int64_t falling = schedule->steps - warm;
    double passed = falling > 1 ? (double)(step - warm - 1) / (double)(falling - 1) : 0; /* 0 at the first, 1 at the last */
    double low = schedule->peak * schedule->last_ratio;
    switch (schedule->shape) {
    case DR_SCHEDULE_COSINE:
        return low + (schedule->peak - low) * 0.5 * (1 + cos(PI * passed));
    case DR_SCHEDULE_LINEAR:
        return low + (schedule->peak - low) * (1 - passed);
    case DR_SCHEDULE_CONSTANT:
        return schedule->peak;
    case DR_SCHEDULE_STABLE:
        return low + (schedule->peak - low) * stable(schedule, step);
    }
    return schedule->peak;
}
