/* Forms and pools (formed.h), in every type. */
#include "formed.h"
#include "instances.h"

#include <math.h>

bool suite_forms(gpu *g, fault *what) {
    static const double forward[3] = {1e-4, 3e-2, 1e-2}, backward[3] = {1e-3, 6e-2, 2e-2};
    for (int type = 0; type < 3; type++) {
        formed_trials t = {.tested = g->cuda[type],
                           .reference = g->reference,
                           .takes = gpu_takes,
                           .brief = g->brief,
                           .saves = true,
                           .forward = forward[type],
                           .backward = backward[type],
                           .what = what};
        const bool holds = formed_calls_hold(&t, 11 + (uint64_t)type);
        g->checks += t.checks;
        g->worst[type] = fmax(g->worst[type], t.worst);
        if (!holds) return false;
    }
    return true;
}
