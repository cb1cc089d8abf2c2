/* Medians and their intervals. Of n numbers drawn alike, the k-th smallest and the k-th greatest enclose the median of what
 * they were drawn from unless fewer than k fall on one side of it: with probability 1 - 2 P(B < k), B binomial of n halves. */
#include "check/experiment/experiment.h"

#include "base/order.h"

#include <math.h>
#include <stdlib.h>

dr_spread dr_spread_of(double *values, int count) {
    const double wanted = 0.95;
    const double none = (double)NAN;
    dr_spread spread = {.count = count, .median = none, .low = none, .high = none};
    if (count < 1) return spread;
    qsort(values, (size_t)count, sizeof *values, dr_ascending);
    spread.median = 0.5 * (values[(count - 1) / 2] + values[count / 2]);
    int k = 1;
    double term = pow(0.5, count), below = term; /* P(B < 1) */
    spread.coverage = 1 - 2 * below;
    for (; 2 * (k + 1) <= count; k++) {
        term *= (double)(count - k + 1) / k;
        if (1 - 2 * (below + term) < wanted) break;
        below += term;
        spread.coverage = 1 - 2 * below;
    }
    spread.low = values[k - 1];
    spread.high = values[count - k];
    return spread;
}

int dr_row_values(const dr_experiment *experiment, int row, const char *measure, double *values, int *seed) {
    int count = 0;
    for (int s = 0; s < experiment->seeds; s++) {
        const json_t *value = json_object_get(experiment->cell[row * experiment->seeds + s].measures, measure);
        if (!json_is_number(value)) continue;
        if (seed) seed[count] = s;
        values[count++] = json_number_value(value);
    }
    return count;
}
