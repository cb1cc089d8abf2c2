/* Linear warm-up, then cosine. A function of the step alone, so that a resumed run meets the same rates. */
#include "train/schedule.h"

#include <math.h>

double dr_schedule_rate(const dr_schedule *schedule, int64_t step) {
    int64_t warm = (int64_t)(schedule->warmup * (double)schedule->steps);
    if (step <= warm) return schedule->peak * (double)step / (double)warm;
    int64_t falling = schedule->steps - warm;
    double passed = falling > 1 ? (double)(step - warm - 1) / (double)(falling - 1) : 0; /* 0 at the first, 1 at the last */
    double low = schedule->peak * schedule->last_ratio;
    return low + (schedule->peak - low) * 0.5 * (1 + cos(3.14159265358979323846 * passed));
}
