/* Whether a router can be. */
#include "ops/experts.h"

#include "base/error.h"

#include <math.h>

dr_status dr_router_check(const dr_router *router) {
    const long long experts = router->of.experts, chosen = router->of.chosen, groups = router->groups, kept = router->kept;
    if (experts < 1) return dr_fail(DR_ERROR_ARGUMENT, "%lld experts: there must be at least one", experts);
    if (chosen < 1 || chosen > experts)
        return dr_fail(DR_ERROR_ARGUMENT, "a token cannot go to %lld of %lld experts: choose 1 to %lld", chosen, experts,
                       experts);
    if (groups < 1 || experts % groups != 0)
        return dr_fail(DR_ERROR_ARGUMENT, "%lld experts cannot be in %lld equal groups", experts, groups);
    if (groups > 1 && experts / groups < 2)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "groups of one expert: a group is scored by its two best, so it must have two or more");
    if (kept < 1 || kept > groups)
        return dr_fail(DR_ERROR_ARGUMENT, "%lld of %lld groups cannot be kept: keep 1 to %lld", kept, groups, groups);
    if (chosen > experts / groups * kept)
        return dr_fail(DR_ERROR_ARGUMENT, "%lld experts cannot be chosen from %lld groups of %lld", chosen, kept,
                       experts / groups);
    if (!isfinite(router->scale))
        return dr_fail(DR_ERROR_ARGUMENT, "the scale of routed weights is %g: it must be finite", router->scale);
    return DR_OK;
}
