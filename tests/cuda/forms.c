/* Forms and pools (formed.h), in every type. */
#include "formed.h"
#include "instances.h"

#include <math.h>

static bool type_is_right(gpu *own, uint64_t type, void *context, fault *what) {
    static const double forward[3] = {1e-4, 3e-2, 1e-2}, backward[3] = {1e-3, 6e-2, 2e-2};
    (void)context;
    formed_trials t = {.tested = own->cuda[type],
                       .reference = own->reference,
                       .takes = gpu_takes,
                       .brief = own->brief,
                       .saves = true,
                       .forward = forward[type],
                       .backward = backward[type],
                       .what = what};
    const bool holds = formed_calls_hold(&t, 11 + type);
    own->checks += t.checks;
    own->worst[type] = fmax(own->worst[type], t.worst);
    return holds;
}

bool suite_forms(gpu *g, fault *what) {
    return gpu_share(g, 0, 2, type_is_right, NULL, what);
}
